//! From what the core asks for to what is to be run: command lines, variables and files.
//!
//! Pure, but for the files that are linked into place. What must stay true: an operation becomes the
//! same task at each of its sites, but for what each part of a resource has of it, or is refused for
//! the same reason at each of them.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    matrix::Share,
    operation::{Action, Attachment, Operation},
};

use super::fill::{Known, check_splits, fill, is_plain};
use crate::files::{Content, Files};

/// The directory of files under names that need no quotes, beside the one with their own names.
const PLAIN: &str = "plain";
/// How many bytes of its own name such a file keeps.
const MOST_OF_NAME: usize = 200;

/// What is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    resource: ResourceId,
    /// As the operator wrote them.
    lines: Vec<String>,
    /// By name.
    pub(super) files: BTreeMap<Box<str>, Attachment>,
    environment: Vec<(String, Option<OsString>)>,
    /// What of the resource is here, if it is in parts.
    share: Option<Share>,
}

impl Task {
    /// A command of the resource itself: `Show`, `Reset` or `Check`.
    pub(super) fn of_resource(
        here: &SiteId,
        resource: &ResourceId,
        op: Option<&OpId>,
        line: &str,
        share: Option<Share>,
    ) -> Result<Self, String> {
        let mut task = Self {
            resource: resource.clone(),
            lines: Vec::new(),
            files: BTreeMap::new(),
            environment: environment(here, resource, op, share),
            share,
        };
        task.add_line(line)?;
        Ok(task)
    }

    /// An operation.
    pub(super) fn of_operation(
        here: &SiteId,
        op: &Operation,
        share: Option<Share>,
    ) -> Result<Self, String> {
        let mut environment = environment(here, &op.resource, Some(&op.id), share);
        environment.push(("CHEOPS_TYPE".to_owned(), Some(op.kind.as_str().into())));
        let (lines, files) = (Vec::new(), BTreeMap::new());
        let mut task = Self { resource: op.resource.clone(), lines, files, environment, share };
        task.add(&op.action)?;
        Ok(task)
    }

    fn add(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Command { line, files } => {
                self.add_line(line)?;
                files.iter().try_for_each(|file| self.add_file(file))
            }
            Action::Http(_) => Err("this agent does not carry out HTTP requests yet".to_owned()),
            Action::Steps(steps) => steps.iter().try_for_each(|step| self.add(step)),
        }
    }

    fn add_line(&mut self, line: &str) -> Result<(), String> {
        if line.contains('\0') {
            return Err("the command holds a zero byte, which no shell takes".to_owned());
        }
        check_splits(line).map_err(|error| error.to_string())?;
        self.lines.push(line.to_owned());
        Ok(())
    }

    fn add_file(&mut self, file: &Attachment) -> Result<(), String> {
        let name = &*file.name;
        if name.is_empty()
            || matches!(name, "." | "..")
            || name.contains(['/', '\0'])
            || name.len() > 255
        {
            return Err(format!(
                "`{name}` can't be the name of an attached file: it is 1 to 255 bytes without `/`"
            ));
        }
        match self.files.insert(file.name.clone(), file.clone()) {
            Some(other) if other.content != file.content => Err(format!(
                "two different files are attached as `{name}`; give them different names"
            )),
            _ => Ok(()),
        }
    }

    /// The command lines for the shell, and all variables, if the files are in this directory.
    pub(super) fn at(&self, files: &Path) -> (Vec<String>, Vec<(String, Option<OsString>)>) {
        let paths: BTreeMap<&str, PathBuf> = self.paths(files).collect();
        let known = Known { id: &self.resource, files: &paths, share: self.share };
        let lines = self.lines.iter().map(|line| fill(line, &known)).collect();
        let mut environment = self.environment.clone();
        if !self.files.is_empty() {
            environment.push(("CHEOPS_FILES".to_owned(), Some(files.into())));
        }
        (lines, environment)
    }

    /// The path of each file that stands for it in a command line. A name that the shell would not
    /// take as it is has another beside it that it does, so that nobody has to know where in the
    /// line quotes are open.
    fn paths(&self, files: &Path) -> impl Iterator<Item = (&str, PathBuf)> {
        let plain = files.with_file_name(PLAIN);
        self.files.keys().enumerate().map(move |(number, name)| {
            if name.chars().all(is_plain) {
                return (&**name, files.join(&**name));
            }
            let like: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
            // The end of a name says what sort of file it is. The number makes it the only one.
            let from = like.len().saturating_sub(MOST_OF_NAME);
            (&**name, plain.join(format!("{number}-{}", &like[from..])))
        })
    }

    /// Puts the files into a directory, and those that need another name beside it. Says which one is not in the store, if one is not.
    pub(super) fn link(&self, files: &Files, into: &Path) -> io::Result<Option<Content>> {
        if self.files.is_empty() {
            return Ok(None);
        }
        fs::create_dir_all(into)?;
        for (name, path) in self.paths(into) {
            let Some(file) = self.files.get(name) else { continue };
            let Some(stored) = files.path(&file.content) else { return Ok(Some(file.content)) };
            let named = into.join(name);
            if path != named {
                path.parent().map(fs::create_dir_all).transpose()?;
            }
            for link in [Some(&named), Some(&path).filter(|path| **path != named)] {
                let Some(link) = link else { continue };
                match fs::hard_link(&stored, link) {
                    // Somebody has removed it since.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        return Ok(Some(file.content));
                    }
                    // The store is on another disk, or the file system has no such links.
                    Err(_) => std::os::unix::fs::symlink(&stored, link)?,
                    Ok(()) => {}
                }
            }
        }
        Ok(None)
    }
}

/// What a command finds about itself. What does not apply is taken away, in case the agent itself
/// was started by a command.
fn environment(
    here: &SiteId,
    resource: &ResourceId,
    op: Option<&OpId>,
    share: Option<Share>,
) -> Vec<(String, Option<OsString>)> {
    let mut environment: Vec<(String, Option<OsString>)> = vec![
        ("CHEOPS_ID".to_owned(), Some(resource.as_str().into())),
        ("CHEOPS_SITE".to_owned(), Some(here.as_str().into())),
        ("CHEOPS_OPERATION".to_owned(), op.map(|op| op.to_string().into())),
        ("CHEOPS_PART".to_owned(), share.map(|share| (share.part + 1).to_string().into())),
        ("CHEOPS_PARTS".to_owned(), share.map(|share| share.parts.to_string().into())),
    ];
    for name in ["CHEOPS_TYPE", "CHEOPS_FILES"] {
        environment.push((name.to_owned(), None));
    }
    environment
}

#[cfg(test)]
mod tests {
    use cheops_core::time::{Millis, Timestamp};

    use super::*;

    fn file(name: &str, content: u8) -> Attachment {
        Attachment { name: name.into(), content: [content; 32], length: 1 }
    }

    fn command(line: &str, files: &[Attachment]) -> Action {
        Action::Command { line: line.into(), files: files.into() }
    }

    fn task(action: Action) -> Result<Task, String> {
        shared(action, None)
    }

    fn shared(action: Action, share: Option<Share>) -> Result<Task, String> {
        let op = Operation {
            id: "DC 1:7".parse().unwrap(),
            resource: "x".parse().unwrap(),
            kind: "right shift".parse().unwrap(),
            author: "a".parse().unwrap(),
            at: Timestamp::at(Millis(1)),
            parents: [].into(),
            action,
            reset: false,
            keep_going: false,
            key: None,
            declares: None,
        };
        Task::of_operation(&"site2".parse().unwrap(), &op, share)
    }

    #[test]
    fn steps_are_lines_in_a_row_with_one_directory_of_files() {
        let steps = Action::Steps(
            [
                command("one {id}", &[]),
                Action::Steps(
                    [command("two {a}", &[file("a", 1)]), command("three", &[file("a", 1)])].into(),
                ),
            ]
            .into(),
        );
        let (lines, environment) = task(steps).unwrap().at(Path::new("/f"));
        assert_eq!(lines, ["one x", "two /f/a", "three"]);
        let mut seen = BTreeMap::new();
        for (name, value) in environment {
            seen.insert(name, value.map(|value| value.into_string().unwrap()));
        }
        for (name, value) in [
            ("CHEOPS_ID", "x"),
            ("CHEOPS_SITE", "site2"),
            ("CHEOPS_OPERATION", "DC 1:7"),
            ("CHEOPS_TYPE", "right shift"),
            ("CHEOPS_FILES", "/f"),
        ] {
            assert_eq!(seen[name].as_deref(), Some(value), "{name}");
        }
    }

    #[test]
    fn each_part_has_its_share_of_a_number() {
        let line = "scale {id} {split 10} of ${split} {split 0}";
        let part = |part| Some(Share { part, parts: 3 });
        for (share, filled, variables) in [
            (None, "scale x 10 of ${split} 0", [None, None]),
            (part(0), "scale x 4 of ${split} 0", [Some("1"), Some("3")]),
            (part(2), "scale x 3 of ${split} 0", [Some("3"), Some("3")]),
        ] {
            let (lines, environment) =
                shared(command(line, &[]), share).unwrap().at(Path::new("/f"));
            assert_eq!(lines, [filled]);
            let named = |name: &str| {
                let found = environment.iter().find(|(found, _)| found == name);
                found.map(|(_, value)| value.as_deref().and_then(|value| value.to_str()))
            };
            assert_eq!([named("CHEOPS_PART"), named("CHEOPS_PARTS")], variables.map(Some));
        }
    }

    #[tokio::test]
    async fn a_file_is_found_by_its_name_within_quotes_of_either_sort_and_without() {
        let directory = tempfile::tempdir().unwrap();
        let limits = crate::config::Config::new("a".parse().unwrap(), "").store;
        let store = Files::open(directory.path().join("store"), limits).unwrap();
        let long = format!("{}.yaml", "é ".repeat(80));
        let names = [
            "plain.txt",
            "my file",
            "my_file",
            "it's",
            "a\"b",
            "$HOME `x`",
            "é\n",
            "*",
            "~",
            &long,
        ];
        let mut files = Vec::new();
        for name in names {
            let content = futures_util::stream::iter([Ok::<_, String>(format!("<{name}>").into())]);
            let (content, length) = store.put(content).await.unwrap();
            files.push(Attachment { name: name.into(), content, length });
        }
        let into = directory.path().join("r/files");
        for name in names {
            for line in [
                format!("cat {{{name}}}"),
                format!("cat \"{{{name}}}\""),
                format!("cat '{{{name}}}'"),
                format!("sh -c 'cat \"{{{name}}}\"'"),
                format!("cat <<END\n$(cat {{{name}}})\nEND"),
            ] {
                let _ = fs::remove_dir_all(directory.path().join("r"));
                let task = task(command(&line, &files)).unwrap();
                assert_eq!(task.link(&store, &into).unwrap(), None);
                let (lines, _) = task.at(&into);
                let shell = std::process::Command::new("/bin/sh").arg("-c").arg(&lines[0]).output();
                let printed = String::from_utf8(shell.unwrap().stdout).unwrap();
                assert_eq!(printed.trim_end(), format!("<{name}>"), "{line}: {lines:?}");
                let content = fs::read_to_string(into.join(name)).unwrap();
                assert_eq!(content, format!("<{name}>"), "by its own name");
            }
        }
    }

    #[test]
    fn what_can_not_be_run_is_refused_with_a_reason() {
        let http = cheops_core::operation::HttpRequest {
            service: "image".parse().unwrap(),
            method: "PUT".into(),
            target: "/".into(),
            headers: [].into(),
            body: cheops_core::operation::HttpBody::None,
            names: cheops_core::operation::Names::Nothing,
        };
        for (action, expected) in [
            (
                Action::Steps([command("a", &[]), Action::Http(Box::new(http))].into()),
                "HTTP requests",
            ),
            (command("a\0b", &[]), "zero byte"),
            (command("a {split x}", &[]), "`{split x}`"),
            (command("a", &[file("../x", 1)]), "`../x` can't be"),
            (command("a", &[file("..", 1)]), "`..` can't be"),
            (command("a", &[file("", 1)]), "can't be"),
            (command("a", &[file(&"x".repeat(256), 1)]), "255 bytes"),
            (command("a", &[file("x", 1), file("x", 2)]), "two different files"),
        ] {
            let error = task(action).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
