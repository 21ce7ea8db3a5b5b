//! From what the core asks for to what is to be done: command lines, requests, variables and files.
//!
//! Pure, but for the files that are put into place. What must stay true: an operation becomes the same
//! task at each of its sites, or is refused for the same reason at each of them, but for what each part
//! of a resource has of it and what a request needs to know of its site (see `request`); what is refused
//! is not done in part.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    matrix::Share,
    operation::{Action, Attachment, HttpBody, Names, Operation},
};

use super::{
    fill::{Known, check_splits, fill, is_plain},
    job::{Program, Request, Step},
    request::{Local, Ready, ready},
};
use crate::{
    files::{Content, Files},
    policy::{self, Allowed, Way},
};

/// The directory of files under names that need no quotes, beside the one with their own names.
const PLAIN: &str = "plain";
/// The directory of the bodies of requests, by the numbers of their steps.
const BODIES: &str = "bodies";
/// How many bytes of its own name such a file keeps.
const MOST_OF_NAME: usize = 200;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    resource: ResourceId,
    parts: Vec<Part>,
    /// By name.
    files: BTreeMap<Box<str>, Attachment>,
    environment: Vec<(String, Option<OsString>)>,
    /// What of the resource is here, if it is in parts.
    share: Option<Share>,
    /// Why a part of it is left out.
    needless: Option<String>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// A command line, as the operator wrote it, and how it may be run.
    Line(String, Box<Allowed>),
    /// A request, and its body.
    Request(Box<Request>, HttpBody),
}

/// Whether an action names what each site has an id of its own for.
pub(super) fn uses_ids(action: &Action) -> bool {
    match action {
        Action::Command { .. } => false,
        Action::Http(request) => matches!(request.names, Names::Uses(_)),
        Action::Steps(steps) => steps.iter().any(uses_ids),
    }
}

impl Task {
    /// A command of the resource itself: `Show`, `Reset` or `Check`.
    pub(super) fn of_resource(
        here: &SiteId,
        resource: &ResourceId,
        op: Option<&OpId>,
        line: &str,
        share: Option<Share>,
        allowed: Allowed,
    ) -> Result<Self, String> {
        let mut task = Self {
            resource: resource.clone(),
            parts: Vec::new(),
            files: BTreeMap::new(),
            environment: environment(here, resource, op, share),
            share,
            needless: None,
        };
        task.add_line(line, allowed)?;
        Ok(task)
    }

    /// An operation, and how each of its commands may be run, in their order.
    pub(super) fn of_operation(
        here: &SiteId,
        op: &Operation,
        local: Local<'_>,
        allowed: Vec<Allowed>,
    ) -> Result<Self, String> {
        let mut environment = environment(here, &op.resource, Some(&op.id), local.share);
        environment.push(("CHEOPS_TYPE".to_owned(), Some(op.kind.as_str().into())));
        let resource = op.resource.clone();
        let (parts, files, needless) = (Vec::new(), BTreeMap::new(), None);
        let share = local.share;
        let mut task = Self { resource, parts, files, environment, share, needless };
        task.add(&op.action, local, op.kind.is_delete(), &mut allowed.into_iter())?;
        Ok(task)
    }

    fn add(
        &mut self,
        action: &Action,
        local: Local<'_>,
        deletes: bool,
        allowed: &mut impl Iterator<Item = Allowed>,
    ) -> Result<(), String> {
        match action {
            Action::Command { line, files } => {
                let unasked = || "nobody has decided about this command".to_owned();
                self.add_line(line, allowed.next().ok_or_else(unasked)?)?;
                files.iter().try_for_each(|file| self.add_file(file))
            }
            Action::Http(request) => {
                match ready(request, local, deletes)? {
                    Ready::Send(ready, body) => self.parts.push(Part::Request(ready, body)),
                    Ready::Needless(why) => self.needless = Some(why),
                }
                Ok(())
            }
            Action::Steps(steps) => {
                steps.iter().try_for_each(|step| self.add(step, local, deletes, allowed))
            }
        }
    }

    /// Why there is nothing to do, if so.
    pub(super) fn needless(&self) -> Option<&str> {
        self.needless.as_deref().filter(|_| self.parts.is_empty())
    }

    /// Whether the application is asked for something.
    pub(super) fn has_requests(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Request(..)))
    }

    /// The first request, if it begins with one.
    pub(super) fn first_instance(&self) -> Option<&Request> {
        match self.parts.first()? {
            Part::Request(request, _) => Some(request),
            Part::Line(..) => None,
        }
    }

    /// All files that it needs.
    pub(super) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        let bodies = self.parts.iter().filter_map(|part| match part {
            Part::Request(_, HttpBody::File(file)) => Some(file),
            Part::Request(..) | Part::Line(..) => None,
        });
        self.files.values().chain(bodies)
    }

    fn add_line(&mut self, line: &str, allowed: Allowed) -> Result<(), String> {
        if line.contains('\0') {
            return Err("the command holds a zero byte, which no shell takes".to_owned());
        }
        check_splits(line).map_err(|error| error.to_string())?;
        self.parts.push(Part::Line(line.to_owned(), Box::new(allowed)));
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

    /// The steps for the supervisor, and all variables, if the files are in this directory and this is
    /// the shell.
    pub(super) fn at(
        &self,
        files: &Path,
        shell: &Path,
    ) -> (Vec<Step>, Vec<(String, Option<OsString>)>) {
        let paths: BTreeMap<&str, PathBuf> = self.paths(files).collect();
        let known = Known { id: &self.resource, files: &paths, share: self.share };
        let step = |(n, part): (usize, &Part)| match part {
            Part::Line(line, allowed) => self.command(line, allowed, &known, files, shell),
            Part::Request(request, body) => {
                let length = match body {
                    HttpBody::None => None,
                    HttpBody::Inline(bytes) => Some(bytes.len() as u64),
                    HttpBody::File(file) => Some(file.length),
                };
                let body = length.map(|length| (body_path(files, n), length));
                Step::Request(Box::new(Request { body, ..(**request).clone() }))
            }
        };
        let steps = self.parts.iter().enumerate().map(step).collect();
        let mut environment = self.environment.clone();
        if !self.files.is_empty() {
            environment.push(("CHEOPS_FILES".to_owned(), Some(files.into())));
        }
        (steps, environment)
    }

    /// A command as it is started.
    fn command(
        &self,
        line: &str,
        allowed: &Allowed,
        known: &Known<'_>,
        files: &Path,
        shell: &Path,
    ) -> Step {
        let Allowed { way, variables, confine } = allowed;
        let (path, arguments) = match way {
            Way::Program { program, arguments } => {
                let known = policy::Known { id: self.resource.as_str(), share: self.share };
                let filled = arguments.iter().map(|word| word.filled(known, files));
                (program.clone(), filled.collect())
            }
            Way::Shell | Way::Request => {
                let line = fill(line, known);
                if variables.is_none() && confine.is_none() {
                    return Step::Line(line);
                }
                (shell.to_string_lossy().into_owned(), vec!["-c".to_owned(), line])
            }
        };
        let terms = confine.clone().map(|mut confine| {
            if let Some(paths) = &mut confine.paths {
                paths.read.extend([files.to_owned(), files.with_file_name(PLAIN)]);
            }
            // It holds nothing that could not be written.
            serde_json::to_string(&confine).unwrap_or_default()
        });
        Step::Program(Box::new(Program { path, arguments, variables: variables.clone(), terms }))
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

    /// Puts the files into a directory, and those that need another name and the bodies of requests
    /// beside it. Says which one is not in the store, if one is not.
    pub(super) fn link(&self, files: &Files, into: &Path) -> io::Result<Option<Content>> {
        if let Some(missing) = self.link_bodies(files, into)? {
            return Ok(Some(missing));
        }
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
                if !put(&stored, link)? {
                    return Ok(Some(file.content));
                }
            }
        }
        Ok(None)
    }

    fn link_bodies(&self, files: &Files, beside: &Path) -> io::Result<Option<Content>> {
        for (n, part) in self.parts.iter().enumerate() {
            let Part::Request(_, body) = part else { continue };
            let path = body_path(beside, n);
            if *body != HttpBody::None {
                path.parent().map(fs::create_dir_all).transpose()?;
            }
            match body {
                HttpBody::None => {}
                HttpBody::Inline(bytes) => fs::write(&path, bytes)?,
                HttpBody::File(file) => match files.path(&file.content) {
                    Some(stored) if put(&stored, &path)? => {}
                    Some(_) | None => return Ok(Some(file.content)),
                },
            }
        }
        Ok(None)
    }
}

/// Where the body of the request is that is the n-th thing to do.
fn body_path(files: &Path, n: usize) -> PathBuf {
    files.with_file_name(BODIES).join(n.to_string())
}

/// Puts a stored file where it is looked for. Not, if somebody has removed it since.
fn put(stored: &Path, link: &Path) -> io::Result<bool> {
    match fs::hard_link(stored, link) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // The store is on another disk, or the file system has no such links.
        Err(_) => std::os::unix::fs::symlink(stored, link).map(|()| true),
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
    use cheops_core::{
        operation::HttpRequest,
        time::{Millis, Timestamp},
    };

    use super::*;
    use crate::{config::Service, policy::Gate};

    const SHELL: &str = "/bin/sh";

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
        let services = BTreeMap::from([("image".parse().unwrap(), image())]);
        let local = Local { services: &services, made: Some("7"), others: &[], share };
        let allowed = Gate::open("site2".parse().unwrap()).operation(&op, share).unwrap();
        Task::of_operation(&"site2".parse().unwrap(), &op, local, allowed)
    }

    fn http(method: &str, target: &str, body: HttpBody) -> Action {
        Action::Http(Box::new(HttpRequest {
            service: "image".parse().unwrap(),
            method: method.into(),
            target: target.into(),
            headers: [].into(),
            body,
            names: Names::Uses("m1".into()),
        }))
    }

    fn image() -> Service {
        let address = "127.0.0.1:9292".parse().unwrap();
        Service::new("image".parse().unwrap(), address, Some(address))
    }

    #[tokio::test]
    async fn requests_stand_among_lines_with_their_bodies_in_files() {
        let directory = tempfile::tempdir().unwrap();
        let limits = crate::config::Config::new("a".parse().unwrap(), "").store;
        let store = Files::open(directory.path().join("store"), limits).unwrap();
        let content = futures_util::stream::iter([Ok::<_, String>("stored".into())]);
        let (content, length) = store.put(content).await.unwrap();
        // Its name is nobody's business: two bodies may share one, and need none.
        let body = |content| HttpBody::File(Attachment { name: "".into(), content, length });
        let inline = HttpBody::Inline(b"in\0line".as_slice().into());
        let all = task(Action::Steps(
            [
                http("POST", "/m1/a", inline),
                command("two", &[]),
                http("PUT", "/m1/file", body(content)),
                http("DELETE", "/m1", HttpBody::None),
            ]
            .into(),
        ))
        .unwrap();
        assert!(all.has_requests() && all.needless().is_none());
        assert_eq!(all.attachments().count(), 1);
        let into = directory.path().join("r/files");
        assert_eq!(all.link(&store, &into).unwrap(), None);
        let (steps, environment) = all.at(&into, SHELL.as_ref());
        assert!(!environment.contains(&("CHEOPS_FILES".to_owned(), Some(into.clone().into()))));
        let sent = |n: usize| match &steps[n] {
            Step::Request(request) => {
                let body = request.body.as_ref().map(|(path, length)| {
                    let body = fs::read(path).unwrap();
                    assert_eq!(body.len() as u64, *length);
                    body
                });
                (request.target.as_str(), body)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(sent(0), ("/7/a", Some(b"in\0line".to_vec())));
        assert_eq!(steps[1], Step::Line("two".to_owned()));
        assert_eq!(sent(2), ("/7/file", Some(b"stored".to_vec())));
        assert_eq!(sent(3), ("/7", None));
        let gone = task(http("PUT", "/m1/file", body([9; 32]))).unwrap();
        assert_eq!(gone.link(&store, &into).unwrap(), Some([9; 32]));
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
        let (steps, environment) = task(steps).unwrap().at(Path::new("/f"), SHELL.as_ref());
        assert_eq!(steps, ["one x", "two /f/a", "three"].map(|line| Step::Line(line.to_owned())));
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
                shared(command(line, &[]), share).unwrap().at(Path::new("/f"), SHELL.as_ref());
            assert_eq!(lines, [Step::Line(filled.to_owned())]);
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
                let (steps, _) = task.at(&into, SHELL.as_ref());
                let [Step::Line(filled)] = &steps[..] else { panic!("{steps:?}") };
                let shell = std::process::Command::new("/bin/sh").arg("-c").arg(filled).output();
                let printed = String::from_utf8(shell.unwrap().stdout).unwrap();
                assert_eq!(printed.trim_end(), format!("<{name}>"), "{line}: {filled}");
                let content = fs::read_to_string(into.join(name)).unwrap();
                assert_eq!(content, format!("<{name}>"), "by its own name");
            }
        }
    }

    #[test]
    fn what_can_not_be_run_is_refused_with_a_reason() {
        let unknown = http("PUT", "x", HttpBody::None);
        for (action, expected) in [
            (Action::Steps([command("a", &[]), unknown].into()), "`x` can't be the target"),
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
