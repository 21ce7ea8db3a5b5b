//! How many files the system lets a process have open, and what that is enough for.
//!
//! Each connection is one, and what systems allow at the start (often 1,024) is less than an agent
//! may be told to serve. What must stay true: connections do not take the files that the store, the
//! links and the commands need; a command has the limit that the agent was started with, since some
//! programs can't cope with more, or go through all that there could be.

use std::{env, io};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use crate::config::Config;

/// Files for all that is there whatever the configuration says: the store, files that are sent and
/// fetched, clients that are turned away.
const ROOM: u64 = 256;
/// Files for a command that runs, as far as the agent has them open.
const EACH_RUN: u64 = 4;
/// Tells a supervisor the limit of its command.
pub(crate) const VARIABLE: &str = "CHEOPS_OPEN_FILES";

/// Raises the limit of this process as far as it may by itself. Gives the limit that it had, if that
/// was another.
pub fn raise() -> io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(None);
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    Ok(limit.current)
}

/// How many files this process may have open; none means that there is no limit.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Gives a process that was just started its limit.
pub(crate) fn give(process: Pid, files: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    prlimit(Some(process), Resource::Nofile, Rlimit { current: Some(files), ..limit })?;
    Ok(())
}

/// Takes the limit that this process was told to have.
pub(crate) fn take() {
    let told = env::var(VARIABLE).ok().and_then(|files| files.parse().ok());
    if let Some(files) = told {
        let limit = getrlimit(Resource::Nofile);
        // A command that may open more than it should is better than none.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(files), ..limit });
    }
}

/// How many connections an agent can serve with so many files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Of its API.
    pub(crate) api: usize,
    /// Of each listener for the application.
    pub(crate) mesh: usize,
}

/// How many connections an agent can serve with so many files: as many as it is to, or what the rest
/// leaves. Where that is next to nothing, the API still has a quarter, so that somebody can ask what is
/// wrong; of what it leaves, the listeners for the application have equal shares.
pub(crate) fn connections(config: &Config, limit: Option<u64>) -> Connections {
    let wanted = Connections { api: config.serve.connections, mesh: config.mesh.connections };
    let Some(limit) = limit else { return wanted };
    // With a site there is one link, and one more while it is made again.
    let links = 2 * config.sites.len() as u64;
    let runs = EACH_RUN.saturating_mul(config.runs.parallel as u64);
    let left = limit.saturating_sub(ROOM + links).saturating_sub(runs).max(limit / 4).max(1);
    let doors = config.mesh.listeners().count() as u64;
    // A client of the application is one, and its request to the instance is another.
    let each = 2 * doors;
    let for_api = if doors == 0 { left } else { left.div_ceil(2).max(limit / 4).max(1) };
    let api = usize::try_from(for_api).map_or(wanted.api, |most| wanted.api.min(most));
    let rest = left.saturating_sub(api as u64).checked_div(each).unwrap_or(left).max(1);
    let mesh = usize::try_from(rest).map_or(wanted.mesh, |most| wanted.mesh.min(most));
    Connections { api, mesh }
}

#[cfg(test)]
mod tests {
    use cheops_core::trust::PublicKey;

    use super::*;

    #[test]
    fn connections_leave_room_for_the_rest() {
        for (wanted, sites, parallel, limit, expected) in [
            (1_024, 0, 8, None, 1_024),
            (1_024, 0, 8, Some(1 << 20), 1_024),
            (1_024, 0, 8, Some(1_024 + 288), 1_024),
            (1_024, 0, 8, Some(1_024 + 287), 1_023),
            (1_024, 0, 8, Some(1_024), 736),
            (1_024, 100, 8, Some(1_024), 536),
            (1_024, 0, 100, Some(1_024), 368),
            (100, 0, 8, Some(1_024), 100),
            (1_024, 0, 8, Some(300), 75),
            (1_024, 0, 8, Some(256), 64),
            (1_024, 0, 1_000_000, Some(256), 64),
            (1_024, 0, 8, Some(2), 1),
        ] {
            let mut config = Config::new("a".parse().unwrap(), "");
            (config.serve.connections, config.runs.parallel) = (wanted, parallel);
            for n in 0..sites {
                let key = PublicKey::from_bytes([u8::try_from(n).unwrap(); 32]);
                config.add_site(format!("s{n}").parse().unwrap(), "h:1".into(), key).unwrap();
            }
            assert_eq!(connections(&config, limit).api, expected, "{wanted} {sites} {limit:?}");
        }
    }

    #[test]
    fn the_application_has_what_the_api_leaves() {
        for (services, limit, expected) in [
            (0, Some(1_024), (736, 736)),
            (1, None, (1_024, 1_024)),
            (1, Some(1 << 20), (1_024, 1_024)),
            (1, Some(1_024), (368, 184)),
            (4, Some(1_024), (368, 46)),
            (1, Some(2), (1, 1)),
        ] {
            let mut config = Config::new("a".parse().unwrap(), "");
            for n in 0..services {
                let (name, at) = (format!("s{n}").parse().unwrap(), ([127, 0, 0, 1], n).into());
                let service = crate::config::Service::new(name, at, None);
                config.mesh.services.insert(service.name.clone(), service);
            }
            let Connections { api, mesh } = connections(&config, limit);
            assert_eq!((api, mesh), expected, "{services} {limit:?}");
        }
    }
}
