//! The environment variables that commands get.
//!
//! Pure. Invariants:
//! - a command gets a variable of the agent only if [`BASIC`] or the configuration names it;
//! - a `CHEOPS_…` variable of the agent never reaches a command, whatever the configuration names: it may
//!   hold a token. The agent sets those that say what a command is for (`CHEOPS_ID` and so on) itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
};

use serde::Deserialize;

use crate::hooks::Pattern;

/// The variables of the agent that every command gets.
const BASIC: [&str; 3] = ["PATH", "HOME", "LANG"];
/// How the names of Cheops' own variables begin.
const OWN: &str = "CHEOPS_";

/// Which variables a command gets, besides those about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The variables of the agent that the command gets.
    pub keep: Vec<Pattern>,
    /// The variables that are set for the command.
    pub set: BTreeMap<String, String>,
}

/// `environment` in a configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentSection {
    #[serde(default)]
    keep: Vec<String>,
    #[serde(default)]
    set: BTreeMap<String, String>,
}

impl Default for Environment {
    /// What commands get if the configuration says nothing.
    fn default() -> Self {
        Self { keep: BASIC.map(Pattern::new).into(), set: BTreeMap::new() }
    }
}

impl Environment {
    /// The variables that a section names, and no others.
    pub fn read(section: EnvironmentSection) -> Result<Self, String> {
        let EnvironmentSection { keep, set } = section;
        let mut names = BTreeSet::new();
        for name in keep.iter().chain(set.keys()) {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("`environment`: `{name}` can't be the name of a variable"));
            }
            if name.starts_with(OWN) {
                return Err(format!(
                    "`environment`: commands never get the agent's own {OWN}… variables, which may hold a token, and Cheops sets those that a command needs: remove `{name}`"
                ));
            }
        }
        if let Some(name) = keep.iter().find(|name| !names.insert(name.as_str())) {
            return Err(format!("`environment`: `keep` names `{name}` twice: remove one"));
        }
        if let Some(name) = set.keys().find(|name| name.contains('*')) {
            return Err(format!(
                "`environment`: `{name}` of `set` holds a `*`, and a value needs the whole name of its variable"
            ));
        }
        if set.values().any(|value| value.contains('\0')) {
            return Err("`environment`: a value of `set` holds a zero byte".to_owned());
        }
        Ok(Self { keep: keep.into_iter().map(Pattern::new).collect(), set })
    }

    /// The same, and the variables that every command gets.
    #[must_use]
    pub fn with_basic(mut self) -> Self {
        let missing = Self::default().keep.into_iter().filter(|name| !self.keep.contains(name));
        let missing: Vec<Pattern> = missing.collect();
        self.keep.splice(0..0, missing);
        self
    }

    /// Whether a command gets this variable of the agent.
    pub fn keeps(&self, name: &str) -> bool {
        !name.starts_with(OWN) && self.keep.iter().any(|kept| kept.matches(name))
    }

    /// The variables of a command, given those of the agent.
    pub fn of(
        &self,
        agent: impl Iterator<Item = (OsString, OsString)>,
    ) -> BTreeMap<OsString, OsString> {
        let kept = agent.filter(|(name, _)| name.to_str().is_some_and(|name| self.keeps(name)));
        let set = self.set.iter().map(|(name, value)| (name.into(), value.into()));
        kept.chain(set).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keep: &[&str], set: &[(&str, &str)]) -> Result<Environment, String> {
        Environment::read(EnvironmentSection {
            keep: keep.iter().map(|name| (*name).to_owned()).collect(),
            set: set.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        })
    }

    #[test]
    fn a_command_gets_what_is_named_and_never_a_variable_of_cheops() {
        let agent = || {
            let all = [
                ("PATH", "/bin"),
                ("HOME", "/root"),
                ("LANG", "C"),
                ("LC_ALL", "C"),
                ("AWS_SECRET", "s"),
                ("CHEOPS_TOKEN", "t"),
            ];
            all.map(|(name, value)| (name.into(), value.into())).into_iter()
        };
        for (keep, set, expected) in [
            (&[][..], &[][..], "HOME=/root LANG=C PATH=/bin"),
            (&["LC_*"], &[], "HOME=/root LANG=C LC_ALL=C PATH=/bin"),
            (&["PATH"], &[("PATH", "/x"), ("A", "b")], "A=b HOME=/root LANG=C PATH=/x"),
            (&["*"], &[], "AWS_SECRET=s HOME=/root LANG=C LC_ALL=C PATH=/bin"),
            (&["C*"], &[], "HOME=/root LANG=C PATH=/bin"),
        ] {
            let environment = read(keep, set).unwrap().with_basic();
            let pairs = environment.of(agent()).into_iter();
            let pairs: Vec<String> = pairs
                .map(|(name, value)| format!("{}={}", name.display(), value.display()))
                .collect();
            assert_eq!(pairs.join(" "), expected, "{keep:?} {set:?}");
        }
    }

    #[test]
    fn names_that_make_no_sense_are_rejected() {
        for (keep, set, expected) in [
            (&[""][..], &[][..], "can't be the name"),
            (&["A=b"], &[], "`A=b` can't be the name"),
            (&["A\0"], &[], "can't be the name"),
            (&[], &[("", "x")], "can't be the name"),
            (&[], &[("A", "x\0")], "zero byte"),
            (&[], &[("LC_*", "C")], "needs the whole name"),
            (&["LC_*", "LC_*"], &[], "names `LC_*` twice"),
            (&["CHEOPS_TOKEN"], &[], "remove `CHEOPS_TOKEN`"),
            (&["CHEOPS_*"], &[], "may hold a token"),
            (&[], &[("CHEOPS_ID", "x")], "remove `CHEOPS_ID`"),
        ] {
            let error = read(keep, set).unwrap_err();
            assert!(error.starts_with("`environment`: "), "{error}");
            assert!(error.contains(expected), "{keep:?} {set:?}: {error}");
        }
    }
}
