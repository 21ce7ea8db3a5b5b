//! What runs at this site: its own decision, which no other site can change.
//!
//! Pure, but for [`Gate`], which knows the system. `read` makes a [`Policy`] of `[policy]` in the site's
//! configuration; [`Policy::decide`] holds one step of an operation against it and gives a [`Permit`] or
//! a [`Denial`], each with the name of the rule; `words` splits a line where there is no shell;
//! `pattern` says what an argument may be; `confine` as whom and within which limits it runs;
//! `environment` which variables it gets.
//!
//! What must stay true:
//! - rules are tried in the order in which they are written, and the first that matches decides;
//! - a command that no rule allows is denied, unless any shell command is allowed, in so many words, or
//!   the site is alone and its configuration says nothing;
//! - what is allowed by program and arguments never reaches a shell;
//! - who asked is part of the question: where that is not known, a rule for some does not allow, and a rule
//!   against some denies.

mod confine;
mod environment;
mod gate;
mod pattern;
pub mod question;
mod read;
mod words;

use std::{cell::LazyCell, path::PathBuf};

use cheops_core::{id::SiteId, matrix::Share};
use percent_encoding::percent_decode_str;

pub use self::{
    confine::{Confine, Identity, Landlock, Limits, Paths, Terms, User},
    environment::{Environment, EnvironmentSection},
    gate::{Allowed, Asker, Gate, MESH, Unusable},
    read::{LINE, PolicySection},
    words::{Known, NeedsShell, Word},
};
use self::{pattern::Pattern as Argument, words::split};
use crate::hooks::Pattern;

/// The name under which what no rule decides is decided.
pub const DEFAULT: &str = "default";

/// What may run at this site.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether what no rule decides may be any shell command; nothing, if nothing is said.
    pub any_shell: Option<bool>,
    /// In the order in which they are tried.
    pub rules: Vec<Rule>,
    /// What becomes of commands with paths of their own where the kernel has no Landlock.
    pub landlock: Landlock,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its name, which is told to whoever asked.
    pub name: String,
    /// What it decides.
    pub decision: Decision,
    /// Who has asked; anybody, if nobody is named.
    pub authors: Vec<Pattern>,
    /// The site that received the operation; any.
    pub origins: Vec<Pattern>,
    /// What it does; anything. `@show`, `@reset` and `@check` are the commands of a resource itself.
    pub kinds: Vec<Pattern>,
    /// What it is for; any.
    pub resources: Vec<Pattern>,
    /// Commands: which.
    pub commands: Commands,
    /// Requests to the application: to which services; none.
    pub services: Vec<Pattern>,
    /// With which methods; any.
    pub methods: Vec<String>,
    /// And paths; any.
    pub paths: Vec<Pattern>,
    /// How commands run.
    pub terms: Terms,
}

/// What a rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It may run.
    Allow,
    /// It may not.
    Deny,
}

/// Which commands a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commands {
    /// None.
    None,
    /// Any, by the shell.
    AnyShell,
    /// These, without a shell.
    These(Vec<Program>),
}

/// A program that may be run, and with which arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its path, or a name to look for in `PATH`.
    pub program: String,
    /// What each of its arguments may be.
    arguments: Vec<Argument>,
    /// Whether any further ones may follow.
    more: bool,
}

/// What is to be run.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Who asked, if that is known.
    pub author: Option<&'a str>,
    /// Which site received it, if that is known.
    pub origin: Option<&'a str>,
    /// What it does.
    pub kind: Kind<'a>,
    /// What it is for.
    pub resource: &'a str,
    /// What of the resource is here.
    pub share: Option<Share>,
    /// What it is.
    pub step: Step<'a>,
}

/// What it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// An operation of this kind.
    Operation(&'a str),
    /// It shows the resource.
    Show,
    /// It empties the resource.
    Reset,
    /// It says whether a run took effect.
    Check,
}

/// One thing to do.
#[derive(Debug, Clone, Copy)]
pub enum Step<'a> {
    /// A command line.
    Command {
        /// As it was written.
        line: &'a str,
        /// The names of its files.
        files: &'a [&'a str],
    },
    /// A request to the application.
    Request {
        /// The service.
        service: &'a str,
        /// The method.
        method: &'a str,
        /// Path and query.
        target: &'a str,
    },
}

/// That something may run, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The rule that allows it.
    pub rule: String,
    /// How.
    pub way: Way,
    /// As whom, and within which limits.
    pub terms: Terms,
}

/// How something runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// It is sent to the application.
    Request,
    /// By the shell.
    Shell,
    /// Without one.
    Program {
        /// The program.
        program: String,
        /// Its arguments.
        arguments: Vec<Word>,
    },
}

/// That something may not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("denied by rule `{rule}`: {why}")]
pub struct Denial {
    /// The rule.
    pub rule: String,
    /// Why, and what to do.
    pub why: String,
}

/// What a policy is told of its site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Here {
    /// The site.
    pub site: SiteId,
    /// Its configuration, if it is in a file.
    pub file: Option<PathBuf>,
    /// Whether there are other sites, which may ask for something.
    pub joined: bool,
}

impl Here {
    /// Where the configuration is, in words.
    fn place(&self) -> String {
        match &self.file {
            Some(file) => format!("in {} at `{}`", file.display(), self.site),
            None => format!("in the configuration of `{}`", self.site),
        }
    }
}

impl Kind<'_> {
    fn matches(self, patterns: &[Pattern]) -> bool {
        let own = match self {
            Self::Operation(kind) => {
                let of_operations = |pattern: &&Pattern| !pattern.as_str().starts_with('@');
                return patterns.is_empty()
                    || patterns.iter().filter(of_operations).any(|p| p.matches(kind));
            }
            Self::Show => "@show",
            Self::Reset => "@reset",
            Self::Check => "@check",
        };
        let of_resources = |pattern: &&Pattern| pattern.as_str().starts_with('@');
        patterns.is_empty() || patterns.iter().filter(of_resources).any(|p| p.matches(own))
    }
}

impl Rule {
    /// Whether it is about who asked, and for what.
    fn concerns(&self, asked: &Asked<'_>) -> bool {
        let known = |patterns: &[Pattern], text: Option<&str>| {
            let matches = |text: &str| patterns.iter().any(|pattern| pattern.matches(text));
            patterns.is_empty() || text.map_or(self.decision == Decision::Deny, matches)
        };
        known(&self.authors, asked.author)
            && known(&self.origins, asked.origin)
            && known(&self.resources, Some(asked.resource))
            && asked.kind.matches(&self.kinds)
    }

    /// Whether it denies whatever it concerns.
    fn is_general(&self) -> bool {
        self.decision == Decision::Deny
            && self.services.is_empty()
            && self.commands == Commands::None
    }

    fn takes_request(&self, service: &str, method: &str, path: &str) -> bool {
        let any = |patterns: &[Pattern], text: &str| patterns.iter().any(|p| p.matches(text));
        any(&self.services, service)
            && (self.methods.is_empty()
                || self.methods.iter().any(|known| known.eq_ignore_ascii_case(method)))
            && (self.paths.is_empty() || any(&self.paths, path))
    }

    /// How it lets a command run, if it does.
    fn way<'a>(&self, words: impl FnOnce() -> Option<&'a [Word]>, known: Known<'_>) -> Option<Way> {
        match &self.commands {
            Commands::None => None,
            Commands::AnyShell => Some(Way::Shell),
            Commands::These(programs) => {
                let (first, arguments) = words()?.split_first()?;
                let found = programs.iter().find(|program| {
                    first.plain().is_some_and(|name| program.is_called(name))
                        && program.takes(arguments, known)
                })?;
                let program = found.program.clone();
                Some(Way::Program { program, arguments: arguments.to_vec() })
            }
        }
    }
}

impl Program {
    /// Whether this is how it is called: by its path, or by its name alone.
    fn is_called(&self, name: &str) -> bool {
        let alone = self.program.rsplit_once('/').map(|(_, alone)| alone);
        self.program == name || alone == Some(name)
    }

    fn takes(&self, arguments: &[Word], known: Known<'_>) -> bool {
        let enough = if self.more {
            arguments.len() >= self.arguments.len()
        } else {
            arguments.len() == self.arguments.len()
        };
        enough && self.arguments.iter().zip(arguments).all(|(p, word)| p.matches(word, known))
    }
}

impl Policy {
    /// Whether some commands are kept from what the agent's own user may do.
    pub fn confines(&self) -> bool {
        self.rules.iter().any(|rule| rule.terms.user.is_some() || rule.terms.paths.is_some())
    }

    /// Decides about one step.
    pub fn decide(&self, asked: &Asked<'_>, here: &Here) -> Result<Permit, Denial> {
        let mut concerned = self.rules.iter().filter(|rule| rule.concerns(asked));
        let (line, files) = match asked.step {
            Step::Command { line, files } => (line, files),
            Step::Request { service, method, target } => {
                return self.decide_request(concerned, service, method, target);
            }
        };
        // Most commands are decided about without.
        let words = LazyCell::new(|| split(line, files));
        let known = Known { id: asked.resource, share: asked.share };
        let decided = concerned.find_map(|rule| {
            if rule.is_general() {
                return Some(Err(rule.denial()));
            }
            let way = rule.way(|| words.as_deref().ok(), known)?;
            Some(Ok(Permit { rule: rule.name.clone(), way, terms: rule.terms.clone() }))
        });
        decided.unwrap_or_else(|| self.otherwise(|| LazyCell::force(&words), here))
    }

    /// What becomes of a command that no rule decides.
    fn otherwise<'a>(
        &self,
        words: impl FnOnce() -> &'a Result<Vec<Word>, NeedsShell>,
        here: &Here,
    ) -> Result<Permit, Denial> {
        let permit =
            |rule: &str, way| Ok(Permit { rule: rule.to_owned(), way, terms: Terms::default() });
        match self.any_shell {
            Some(true) => return permit(LINE, Way::Shell),
            None if self.rules.is_empty() && !here.joined => return permit(DEFAULT, Way::Shell),
            Some(false) | None => {}
        }
        let words = words();
        // It does nothing: a delete that needs no command is written so.
        if let Ok([word]) = words.as_deref()
            && word.plain() == Some("true")
        {
            let program = "true".to_owned();
            return permit(DEFAULT, Way::Program { program, arguments: Vec::new() });
        }
        let needs = match (words, self.rules.is_empty()) {
            (Err(needs), false) => format!(" ({needs})"),
            _ => String::new(),
        };
        let (site, place) = (&here.site, here.place());
        let why = format!(
            "no rule of the policy of `{site}` allows this command{needs}; to let anyone who may ask run any \
             shell command there, write `{LINE} = true` under `[policy]` {place} and restart its \
             agent; to allow certain programs alone, write a rule: see docs/policy.md"
        );
        Err(Denial { rule: DEFAULT.to_owned(), why })
    }

    fn decide_request<'a>(
        &self,
        mut concerned: impl Iterator<Item = &'a Rule>,
        service: &str,
        method: &str,
        target: &str,
    ) -> Result<Permit, Denial> {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        if is_crooked(path) && self.rules.iter().any(|rule| !rule.paths.is_empty()) {
            let why = "its path has `.`, `..`, `//`, `\\`, or something in disguise that needs none (`%61` for `a`), and this site has rules about paths; send the path that is meant".to_owned();
            return Err(Denial { rule: DEFAULT.to_owned(), why });
        }
        let path = &*percent_decode_str(path).decode_utf8_lossy();
        let decided = concerned.find_map(|rule| {
            if rule.is_general() {
                return Some(Err(rule.denial()));
            }
            rule.takes_request(service, method, path).then(|| match rule.decision {
                Decision::Deny => Err(rule.denial()),
                Decision::Allow => {
                    let rule = rule.name.clone();
                    Ok(Permit { rule, way: Way::Request, terms: Terms::default() })
                }
            })
        });
        let allowed =
            || Permit { rule: DEFAULT.to_owned(), way: Way::Request, terms: Terms::default() };
        decided.unwrap_or_else(|| Ok(allowed()))
    }
}

impl Rule {
    fn denial(&self) -> Denial {
        let why = "the policy of this site says so; see `cheops policy test` there".to_owned();
        Denial { rule: self.name.clone(), why }
    }
}

/// Whether servers may take a path for another one than it looks like.
fn is_crooked(path: &str) -> bool {
    let written = path.split('%').skip(1);
    let disguised =
        written.map(|rest| rest.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()));
    let needless = |byte: Option<u8>| {
        byte.is_none_or(|byte| byte.is_ascii_alphanumeric() || b"-._~/\\%\0".contains(&byte))
    };
    disguised.into_iter().any(needless)
        || path.contains("//")
        || path.contains('\\')
        || path.split('/').any(|segment| matches!(segment, "." | ".."))
}

#[cfg(test)]
mod tests;
