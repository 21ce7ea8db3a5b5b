//! Which files go with a command.
//!
//! `--file` names them, or the command does, as in the original program: `{path}` of a file that is
//! there is attached under its own name, and becomes `{name}`. What must stay true: braces that mean
//! something else, to the shell or to a program, stay as they are.

use std::path::{Path, PathBuf};

use crate::report::Failure;

/// A command, and the files that it uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) command: String,
    pub(super) files: Vec<Attached>,
}

/// A file, and the name that the command has for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// Finds the files of a command.
pub(super) fn plan(
    command: &str,
    options: &[String],
    is_file: impl Fn(&str) -> bool,
) -> Result<Plan, Failure> {
    let mut plan = Plan { command: String::new(), files: Vec::new() };
    for option in options {
        let file = named(option)?;
        plan.attach(file)?;
    }
    let mut rest = command;
    while let Some((before, inner, after)) = braces(rest) {
        plan.command += before;
        let is_variable = before.ends_with('$');
        let is_number = inner.starts_with("split ");
        let is_known =
            inner == "id" || is_number || plan.files.iter().any(|file| file.name == inner);
        if is_variable || is_known || !is_file(inner) {
            plan.command.push('{');
            // What follows the brace may hold a pair of its own.
            rest = &rest[before.len() + 1..];
            continue;
        }
        let file = Attached { name: base_name(inner)?, path: inner.into() };
        plan.command.extend(["{", &file.name, "}"]);
        plan.attach(file)?;
        rest = after;
    }
    plan.command += rest;
    Ok(plan)
}

impl Plan {
    fn attach(&mut self, file: Attached) -> Result<(), Failure> {
        match self.files.iter().find(|known| known.name == file.name) {
            None => self.files.push(file),
            Some(known) if known.path == file.path => {}
            Some(known) => {
                return Err(Failure::input(format!("two files have the name `{}`", file.name))
                    .caused_by(format!(
                        "`{}` and `{}` would be one file for the command",
                        known.path.display(),
                        file.path.display()
                    ))
                    .hint("give one of them a name of its own: --file NAME=PATH, and {NAME} in the command"));
            }
        }
        Ok(())
    }
}

/// The first pair of braces with none inside: what is before, inside, and after.
fn braces(text: &str) -> Option<(&str, &str, &str)> {
    let open = text.find('{')?;
    let (before, rest) = (&text[..open], &text[open + 1..]);
    let close = rest.find(['{', '}']);
    match close {
        Some(close) if rest[close..].starts_with('}') => {
            Some((before, &rest[..close], &rest[close + 1..]))
        }
        // Nothing that could be a file: an empty name is none.
        Some(_) => Some((before, "", rest)),
        None => None,
    }
}

/// The file of an option: `PATH`, or `NAME=PATH`.
fn named(option: &str) -> Result<Attached, Failure> {
    match option.split_once('=') {
        Some((name, path)) if !name.contains('/') => {
            check(name).map_err(|why| invalid(option, name).caused_by(why))?;
            if path.is_empty() {
                return Err(invalid(option, option).caused_by("there is no path after `=`"));
            }
            Ok(Attached { name: name.to_owned(), path: path.into() })
        }
        _ => Ok(Attached { name: base_name(option)?, path: option.into() }),
    }
}

fn base_name(path: &str) -> Result<String, Failure> {
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| invalid(path, path).caused_by("the path does not end in a name"))?;
    check(name).map_err(|why| invalid(path, name).caused_by(why))?;
    Ok(name.to_owned())
}

fn check(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("the name is empty"),
        "id" => Err("`{id}` is the resource's id already"),
        _ if name.starts_with("split ") => Err("`{split 10}` is a share of a number already"),
        "." | ".." => Err("that is a directory"),
        _ if name.chars().any(|c| c.is_control() || matches!(c, '{' | '}' | '/')) => {
            Err("a name holds no braces, slashes or control characters")
        }
        _ => Ok(()),
    }
}

fn invalid(text: &str, part: &str) -> Failure {
    let start = text.find(part).unwrap_or(0);
    Failure::input("invalid name of a file")
        .at(text, start..start + part.len())
        .hint("write --file NAME=PATH, and {NAME} in the command")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(command: &str, options: &[&str]) -> Result<(String, Vec<(String, String)>), String> {
        let there = ["deploy.yml", "./deploy.yml", "/etc/a.conf", "b/a.conf", "print $1", "HOME"];
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let plan = plan(command, &options, |path| there.contains(&path));
        let plan = plan.map_err(|failure| failure.line())?;
        let file = |file: Attached| (file.name, file.path.display().to_string());
        Ok((plan.command, plan.files.into_iter().map(file).collect()))
    }

    #[test]
    fn files_that_a_command_names() {
        for (command, options, expected, files) in [
            ("true", &[][..], "true", &[][..]),
            ("apply {deploy.yml}", &[], "apply {deploy.yml}", &[("deploy.yml", "deploy.yml")]),
            ("apply {./deploy.yml}", &[], "apply {deploy.yml}", &[("deploy.yml", "./deploy.yml")]),
            ("cp {/etc/a.conf} {id}", &[], "cp {a.conf} {id}", &[("a.conf", "/etc/a.conf")]),
            (
                "a {/etc/a.conf} {/etc/a.conf}",
                &[],
                "a {a.conf} {a.conf}",
                &[("a.conf", "/etc/a.conf")],
            ),
            // The shell's, awk's and find's braces; the last two name files that are there.
            (
                "echo {a,b} {} {{deploy.yml}",
                &[],
                "echo {a,b} {} {{deploy.yml}",
                &[("deploy.yml", "deploy.yml")],
            ),
            ("echo ${HOME}", &[], "echo ${HOME}", &[]),
            ("echo {not there} {", &[], "echo {not there} {", &[]),
            ("use {conf}", &["conf=b/a.conf"], "use {conf}", &[("conf", "b/a.conf")]),
            ("use {a.conf}", &["b/a.conf"], "use {a.conf}", &[("a.conf", "b/a.conf")]),
            (
                "use {deploy.yml}",
                &["deploy.yml=b/a.conf"],
                "use {deploy.yml}",
                &[("deploy.yml", "b/a.conf")],
            ),
            ("true", &["./x=y"], "true", &[("x=y", "./x=y")]),
        ] {
            let files =
                files.iter().map(|&(name, path)| (name.to_owned(), path.to_owned())).collect();
            assert_eq!(planned(command, options), Ok((expected.to_owned(), files)), "{command}");
        }
    }

    #[test]
    fn names_that_can_not_be_used() {
        for (command, options, expected) in [
            ("a {/etc/a.conf} {b/a.conf}", &[][..], "two files have the name `a.conf`"),
            ("true", &["id=x"], "`{id}` is the resource's id already"),
            ("true", &["=x"], "the name is empty"),
            ("true", &["a="], "there is no path after `=`"),
            ("true", &["a{=x"], "no braces"),
            ("true", &["b/.."], "does not end in a name"),
        ] {
            let error = planned(command, options).unwrap_err();
            assert!(error.contains(expected), "{command} {options:?}: {error}");
        }
    }
}
