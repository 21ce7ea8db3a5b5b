//! As whom, within which limits and with which paths a command runs.
//!
//! [`Terms`] are what a rule says; [`Confine`] is what one command gets, with numbers in place of names,
//! and goes as one argument to the process that becomes the command. What must stay true: what can't be
//! had is an error, and never left out in silence.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::Environment;

/// What a rule says of how its commands run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// The user: a name, or numbers (`UID` or `UID:GID`).
    pub user: Option<String>,
    /// The variables; those that `[runs]` names, if nothing is said.
    pub environment: Option<Environment>,
    /// The limits.
    pub limits: Limits,
    /// The paths that it may touch; all, if nothing is said.
    pub paths: Option<Paths>,
}

impl Terms {
    /// Whether a command is kept to paths, and is otherwise whoever the agent is.
    pub fn is_own_user_on_paths(&self) -> bool {
        self.paths.is_some() && self.user.is_none()
    }
}

/// How much a command may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Seconds of CPU time, for each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// Bytes of address space, for each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Processes and threads of the user, all together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Bytes of each file that is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_size: Option<u64>,
    /// Open files, for each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
}

/// The paths that a command may touch, and all that is below them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// To read, and to run.
    pub read: Vec<PathBuf>,
    /// To read, to run and to write.
    pub write: Vec<PathBuf>,
}

/// A user, by numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
}

/// Whether a command runs where the kernel has no Landlock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Landlock {
    /// No: what can't be kept to its paths is denied.
    #[default]
    Required,
    /// Yes, without that protection.
    BestEffort,
}

/// What a process takes upon itself before it becomes the command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confine {
    /// The rule that says so.
    pub rule: String,
    /// Who it is.
    pub user: Option<Identity>,
    /// How much it may take.
    pub limits: Limits,
    /// What it may touch.
    pub paths: Option<Paths>,
    /// Whether it runs where the kernel has no Landlock.
    pub landlock: Landlock,
}

/// A user, as the system's files know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// By numbers.
    pub identity: Identity,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its directory, if it has one.
    pub home: Option<String>,
}

impl Terms {
    /// Whether a process has to take something upon itself.
    pub fn confines(&self) -> bool {
        self.user.is_some() || self.limits != Limits::default() || self.paths.is_some()
    }

    /// All variables that a command gets, besides those about itself, where they differ from those that
    /// all commands get.
    pub fn variables(
        &self,
        common: &Environment,
        agent: impl Iterator<Item = (String, String)>,
        user: Option<&User>,
    ) -> Option<Vec<(String, String)>> {
        if self.environment.is_none() && user.is_none() {
            return None;
        }
        let environment = self.environment.as_ref().unwrap_or(common);
        let mut variables: BTreeMap<String, String> =
            agent.filter(|(name, _)| environment.keeps(name)).collect();
        if let Some(user) = user {
            let name = user.name.iter().flat_map(|name| {
                ["USER", "LOGNAME"].map(|variable| (variable.to_owned(), name.clone()))
            });
            let home = user.home.iter().map(|home| ("HOME".to_owned(), home.clone()));
            variables.extend(name.chain(home));
        }
        variables.extend(environment.set.clone());
        Some(variables.into_iter().collect())
    }
}

/// Finds a user in the texts of `/etc/passwd` and `/etc/group`.
pub(super) fn user(wanted: &str, passwd: &str, group: &str) -> Option<User> {
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let line = |line: &&str| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next(), fields.nth(1));
        name == Some(wanted) || uid == Some(wanted)
    };
    let Some(found) = passwd.lines().find(line) else {
        let (uid, gid) = wanted.split_once(':').unwrap_or((wanted, wanted));
        let identity = Identity { uid: uid.parse().ok()?, gid: gid.parse().ok()?, groups: vec![] };
        return Some(User { identity, name: None, home: None });
    };
    let found = fields(found);
    let [name, _, uid, gid, _, home, ..] = &found[..] else { return None };
    let member = |line: &str| {
        let [_, _, gid, members] = &fields(line)[..] else { return None };
        members.split(',').any(|member| member == name).then(|| gid.parse().ok())?
    };
    let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
    let groups = group.lines().filter_map(member).collect();
    let identity = Identity { uid, gid, groups };
    Some(User { identity, name: Some(name.clone()), home: Some(home.clone()) })
}

/// Finds a user of this system.
pub(super) fn user_here(wanted: &str) -> Option<User> {
    let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    user(wanted, &read("/etc/passwd"), &read("/etc/group"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::Pattern;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nredis:x:101:102::/var/lib/redis:/bin/false\nshort:x:7\n";
    const GROUP: &str = "root:x:0:\nredis:x:102:\nssl:x:110:www,redis\ndocker:x:111:redis\n";

    #[test]
    fn a_user_is_found_by_name_or_number() {
        let find = |wanted| user(wanted, PASSWD, GROUP);
        let redis = find("redis").unwrap();
        assert_eq!(redis.identity, Identity { uid: 101, gid: 102, groups: vec![110, 111] });
        assert_eq!(redis.home.as_deref(), Some("/var/lib/redis"));
        assert_eq!(find("101"), Some(redis));
        let nobody = find("65534:65533").unwrap().identity;
        assert_eq!((nobody.uid, nobody.gid, nobody.groups), (65_534, 65_533, vec![]));
        for wrong in ["", "nobody", "short", "x", "-1", "1:x", "4294967296"] {
            assert_eq!(find(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_command_has_the_variables_that_its_rule_names_and_no_others() {
        let agent = || {
            [
                ("PATH", "/bin"),
                ("SECRET", "s"),
                ("LC_ALL", "C"),
                ("HOME", "/root"),
                ("CHEOPS_TOKEN", "t"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into_iter()
        };
        let terms = |keep: Option<&[&str]>, set: &[(&str, &str)]| Terms {
            environment: keep.map(|keep| Environment {
                keep: keep.iter().map(|kept| Pattern::new(*kept)).collect(),
                set: set.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
            }),
            ..Terms::default()
        };
        let user = user("redis", PASSWD, GROUP);
        let shown = |terms: Terms, user: Option<&User>| {
            let variables = terms.variables(&Environment::default(), agent(), user)?;
            let shown = variables.iter().map(|(name, value)| format!("{name}={value}"));
            Some(shown.collect::<Vec<_>>().join(" "))
        };
        for (keep, set, user, expected) in [
            (None, &[][..], None, None),
            (Some(&[][..]), &[], None, Some("")),
            (Some(&["PATH", "LC_*"]), &[], None, Some("LC_ALL=C PATH=/bin")),
            (Some(&["PATH"]), &[("PATH", "/x"), ("A", "b")], None, Some("A=b PATH=/x")),
            (
                Some(&["HOME"]),
                &[],
                user.as_ref(),
                Some("HOME=/var/lib/redis LOGNAME=redis USER=redis"),
            ),
            (
                None,
                &[],
                user.as_ref(),
                Some("HOME=/var/lib/redis LOGNAME=redis PATH=/bin USER=redis"),
            ),
            (Some(&["*"]), &[], None, Some("HOME=/root LC_ALL=C PATH=/bin SECRET=s")),
        ] {
            assert_eq!(shown(terms(keep, set), user).as_deref(), expected, "{keep:?} {set:?}");
        }
    }

    #[test]
    fn what_a_process_takes_upon_itself_is_read_as_it_was_written() {
        let confine = Confine {
            rule: "it's".to_owned(),
            user: Some(Identity { uid: 1, gid: 2, groups: vec![3] }),
            limits: Limits { cpu: Some(1), ..Limits::default() },
            paths: Some(Paths { read: vec!["/usr".into()], write: vec!["/a b".into()] }),
            landlock: Landlock::BestEffort,
        };
        let text = serde_json::to_string(&confine).unwrap();
        assert_eq!(serde_json::from_str::<Confine>(&text).unwrap(), confine);
    }
}
