//! The verbs, one file each. A verb reads what it needs, and returns what it has to say. One that
//! goes on for a while (`exec`, `watch`, `demo`) says it as it comes, through [`screen`]; so every
//! verb reports, pipes and exits alike.
//!
//! [`screen`]: crate::screen

use clap::{Subcommand, ValueEnum};
use serde::Serialize;

use crate::{
    client::{Access, Client},
    report::{Exit, Failure, clean},
    table::Table,
};

mod access;
mod agent;
mod ask;
mod audit;
mod completions;
mod delete;
mod demo;
mod describe;
mod diff;
mod engine;
mod exec;
mod get;
mod graph;
mod held;
mod hooks;
mod join;
mod log;
mod matrix;
mod members;
mod output;
mod play;
mod policy;
mod running;
mod scope;
mod show;
mod site;
mod token;
mod watch;

/// What the program can do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Exec(exec::Arguments),
    Show(show::Arguments),
    #[command(subcommand)]
    Get(get::Arguments),
    Describe(describe::Arguments),
    Log(log::Arguments),
    Watch(watch::Arguments),
    Diff(diff::Arguments),
    Delete(delete::Arguments),
    Output(output::Arguments),
    #[command(subcommand)]
    Site(site::Arguments),
    #[command(subcommand)]
    Token(token::Arguments),
    Join(join::Arguments),
    #[command(subcommand)]
    Hooks(hooks::Arguments),
    #[command(subcommand)]
    Policy(policy::Arguments),
    Audit(audit::Arguments),
    #[command(subcommand)]
    Access(access::Arguments),
    Agent(agent::Arguments),
    #[command(subcommand)]
    Engine(engine::Arguments),
    Demo(demo::Arguments),
    Scope(scope::Arguments),
    #[command(subcommand)]
    Matrix(matrix::Arguments),
    Completions(completions::Arguments),
}

impl Command {
    pub(crate) fn run(self, context: &Context) -> Result<Outcome, Failure> {
        match self {
            Self::Exec(arguments) => exec::run(&arguments, context),
            Self::Show(arguments) => show::run(&arguments, context),
            Self::Get(arguments) => get::run(&arguments, context),
            Self::Describe(arguments) => describe::run(&arguments, context),
            Self::Log(arguments) => log::run(&arguments, context),
            Self::Watch(arguments) => watch::run(&arguments, context),
            Self::Diff(arguments) => diff::run(&arguments, context),
            Self::Delete(arguments) => delete::run(&arguments, context),
            Self::Output(arguments) => output::run(&arguments, context),
            Self::Site(arguments) => site::run(&arguments, context),
            Self::Token(arguments) => token::run(&arguments, context),
            Self::Join(arguments) => join::run(&arguments, context),
            Self::Hooks(arguments) => hooks::run(&arguments, context),
            Self::Policy(arguments) => policy::run(&arguments, context),
            Self::Audit(arguments) => audit::run(&arguments, context),
            Self::Access(arguments) => access::run(&arguments, context),
            Self::Agent(arguments) => agent::run(&arguments),
            Self::Engine(arguments) => engine::run(&arguments, context),
            Self::Demo(arguments) => demo::run(&arguments, context),
            Self::Scope(arguments) => scope::run(&arguments, context.output),
            Self::Matrix(arguments) => matrix::run(&arguments, context.output),
            Self::Completions(arguments) => Ok(completions::run(&arguments)),
        }
    }
}

/// What all verbs are told.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) output: Output,
    /// Where the agent is, if the command line says so.
    pub(crate) agent: Option<String>,
    /// By what the agent knows who asks.
    pub(crate) access: Access,
}

impl Context {
    /// A client for the agent.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Client::new(self.agent.as_deref(), &self.access)
    }
}

/// For whom the result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[value(alias = "text")]
    Table,
    /// For people, with more columns
    Wide,
    /// For programs
    Json,
    /// For programs, and easier to read
    Yaml,
    /// Names alone, one a line
    Name,
}

/// Something that can be written in every way.
pub(crate) trait View: Serialize {
    /// For people.
    fn text(&self, wide: bool) -> String;

    /// What it is about, one name each: `resource/web`.
    fn names(&self) -> Vec<String>;
}

/// A table of things that are alike.
pub(crate) trait List: Serialize {
    /// What stands in a row.
    type Item: PartialEq + Clone;

    fn items(&self) -> &[Self::Item];

    /// The name of an item: `resource/web`.
    fn name(item: &Self::Item) -> String;

    /// All that an item is about, by name.
    fn names_of(item: &Self::Item) -> Vec<String> {
        vec![Self::name(item)]
    }

    /// A row for each item, in their order.
    fn table(&self, wide: bool) -> Table;

    /// What is said instead of an empty table.
    fn empty(&self) -> String;

    /// What is said below the table.
    fn note(&self) -> Option<String> {
        None
    }
}

impl<T: List> View for T {
    fn text(&self, wide: bool) -> String {
        let table = self.table(wide);
        let rows = if table.is_empty() { self.empty() + "\n" } else { table.render() };
        rows + &self.note().map(|note| note + "\n").unwrap_or_default()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.items().iter().flat_map(T::names_of).collect();
        names.dedup();
        names
    }
}

impl Output {
    /// A result in the way that was asked for.
    pub(crate) fn write(self, view: &impl View) -> Result<String, Failure> {
        match self {
            Self::Table => Ok(view.text(false)),
            Self::Wide => Ok(view.text(true)),
            Self::Json => json(view),
            Self::Yaml => yaml(view),
            Self::Name => Ok(view.names().iter().map(|name| clean(name) + "\n").collect()),
        }
    }

    /// The result of a verb that has a text for people and a document of its own.
    pub(crate) fn local(
        self,
        text: impl FnOnce() -> String,
        document: impl FnOnce() -> String,
    ) -> Result<String, Failure> {
        match self {
            Self::Table | Self::Wide => Ok(text()),
            Self::Json => Ok(document()),
            Self::Yaml => {
                let value: serde_json::Value =
                    serde_json::from_str(&document()).map_err(unwritable)?;
                yaml(&value)
            }
            Self::Name => Err(Failure::input("there are no names to write here")
                .hint("`-o name` is for lists; use `-o json` for programs")),
        }
    }

    /// Whether people read it.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// A document as JSON, on lines of its own.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(unwritable)
}

/// A document as JSON, on one line.
pub(crate) fn json_line<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value).map(|text| text + "\n").map_err(unwritable)
}

/// A document as YAML.
pub(crate) fn yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    let text = serde_saphyr::to_string(value).map_err(unwritable)?;
    Ok(text.trim_end().to_owned() + "\n")
}

fn unwritable(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Wrong, "cannot write the result in this form").caused_by(error)
}

/// What a verb has to say, and the exit status that says it in a number.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) text: String,
    pub(crate) exit: Exit,
}

impl Outcome {
    /// All is well.
    pub(crate) fn success(text: String) -> Self {
        Self { text, exit: Exit::Fine }
    }

    /// All was said already.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self { text: String::new(), exit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_hold_no_sequences_that_a_terminal_would_obey() {
        let text = "a\u{1b}[2Jb\nc";
        for document in [json(&text), json_line(&text), yaml(&text)] {
            let document = document.unwrap();
            assert!(!document.contains('\u{1b}'), "{document:?}");
            assert!(document.ends_with('\n') && !document.ends_with("\n\n"), "{document:?}");
        }
    }
}
