//! The process that becomes a command: `cheops confine TERMS PROGRAM ARGUMENT…`.
//!
//! It takes upon itself what the policy of the site says, and then becomes the program, under the same
//! process id and in the same group, so that whoever watches it sees one process from start to end. What
//! must stay true: the program starts only if all was taken; what was taken can't be given back; and
//! there are no threads, since some of it is taken by the one thread that asks.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use rustix::{
    process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit},
    thread::{
        CapabilitySet, remove_capability_from_bounding_set, set_no_new_privs, set_thread_gid,
        set_thread_groups, set_thread_uid,
    },
};

use crate::policy::{Confine, Identity, Landlock, Limits, Paths};

/// The word that asks this program for it.
pub const VERB: &str = "confine";
/// What a shell says of a program that it can't start, and of one that it can't find.
const NOT_STARTED: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The newest rights that are asked for; those that a kernel does not know are left out.
const NEWEST: ABI = ABI::V5;

/// Becomes a program, as the whole work of this process. Comes back only if it can't.
pub fn confine(terms: &str, program: &OsString, arguments: &[OsString]) -> ExitCode {
    let (why, code) = match serde_json::from_str(terms) {
        Ok(terms) => become_it(&terms, program, arguments),
        Err(error) => (format!("the terms can't be read: {error}"), NOT_STARTED),
    };
    let _ = writeln!(io::stderr(), "cheops: {} was not started: {why}", program.display());
    ExitCode::from(code)
}

fn become_it(terms: &Confine, program: &OsString, arguments: &[OsString]) -> (String, u8) {
    let mut command = Command::new(program);
    command.args(arguments);
    let taken = take(terms);
    if let Err(why) = taken {
        return (format!("rule `{}` can't be kept: {why}", terms.rule), NOT_STARTED);
    }
    let error = command.exec();
    let found = error.kind() != io::ErrorKind::NotFound;
    (error.to_string(), if found { NOT_STARTED } else { NOT_FOUND })
}

/// Takes all of it. The limits come last: with little memory nothing else would work.
fn take(terms: &Confine) -> Result<(), String> {
    set_no_new_privs(true).map_err(|error| format!("no new rights: {error}"))?;
    if let Some(paths) = &terms.paths {
        keep_to(paths, terms.landlock).map_err(|error| format!("its paths: {error}"))?;
    }
    if let Some(user) = &terms.user {
        become_user(user).map_err(|error| format!("its user: {error}"))?;
    }
    limit(terms.limits).map_err(|error| format!("its limits: {error}"))
}

fn become_user(user: &Identity) -> io::Result<()> {
    let Identity { uid, gid, groups } = user;
    let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    // One who is this user already need not be root.
    if rustix::process::geteuid().as_raw() == *uid && !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    set_thread_groups(&groups)?;
    set_thread_gid(Gid::from_raw(*gid))?;
    set_thread_uid(Uid::from_raw(*uid))?;
    Ok(())
}

fn limit(limits: Limits) -> io::Result<()> {
    if limits != Limits::default() && rustix::process::geteuid().is_root() {
        // Or root could raise them again.
        remove_capability_from_bounding_set(CapabilitySet::SYS_RESOURCE)?;
    }
    let Limits { cpu, memory, processes, file_size, open_files } = limits;
    for (resource, most) in [
        (Resource::Fsize, file_size),
        (Resource::Nofile, open_files),
        (Resource::Nproc, processes),
        (Resource::Cpu, cpu),
        (Resource::As, memory),
    ] {
        let Some(most) = most else { continue };
        let before = getrlimit(resource).maximum;
        let within = |most: u64| Some(before.map_or(most, |before| before.min(most)));
        // A program that is told that its time is over has a second to put things in order.
        let last = if resource == Resource::Cpu { most.saturating_add(1) } else { most };
        setrlimit(resource, Rlimit { current: within(most), maximum: within(last) })?;
    }
    Ok(())
}

/// Keeps this process to certain paths, and to what every program needs.
fn keep_to(paths: &Paths, level: Landlock) -> Result<(), String> {
    match restricted(paths) {
        Ok(RulesetStatus::NotEnforced) if level == Landlock::Required => {
            Err("the kernel has no Landlock".to_owned())
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

fn restricted(paths: &Paths) -> Result<RulesetStatus, String> {
    let said = |error: RulesetError| error.to_string();
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(Ruleset::create)
        .map_err(said)?;
    let null = [PathBuf::from("/dev/null")];
    for (paths, access) in [
        (&paths.read[..], AccessFs::from_read(NEWEST)),
        (&paths.write[..], AccessFs::from_all(NEWEST)),
        (&null[..], AccessFs::from_file(NEWEST)),
    ] {
        for path in paths {
            rules = allow(rules, path, access)?;
        }
    }
    Ok(rules.restrict_self().map_err(said)?.ruleset)
}

fn allow(
    rules: landlock::RulesetCreated,
    path: &Path,
    access: landlock::BitFlags<AccessFs>,
) -> Result<landlock::RulesetCreated, String> {
    // What is not there can't be touched; a run without files has no directory of them.
    let Ok(open) = PathFd::new(path) else { return Ok(rules) };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    rules.add_rule(PathBeneath::new(open, access)).map_err(|error| error.to_string())
}

/// Whether the kernel has Landlock.
pub(crate) fn has_landlock() -> bool {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1));
    rules.and_then(Ruleset::create).is_ok()
}
