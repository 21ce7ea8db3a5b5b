//! Copies what a site has written from one of its engines to the other, as its configuration names them.

use std::{path::PathBuf, sync::Arc};

use cheops_core::replica::Durable;

use super::{CouchDb, Embedded, Options, members};
use crate::{
    arrivals,
    config::{self, Config},
    engine::{
        self, Copied, CopyFailure, EngineError, Filling, Kind, Opened, Progress, Sort, note_choice,
    },
    standby,
    trust::Inspector,
};

/// Copies all that a site has written to an empty engine, makes sure that it is there, and takes note that it
/// is: from then on the agent starts on that one only. No agent may be at work.
pub fn copy_engine(
    config: &Config,
    (from, to): (Kind, Kind),
    tell: &mut dyn FnMut(Progress),
) -> Result<Copied, CopyFailure> {
    let refused = |problem: String| {
        let place = config.data.display().to_string();
        CopyFailure::Refused(EngineError { place, problem, sort: Sort::Disk })
    };
    if from == to {
        return Err(refused(format!("{from} can't be copied to itself: name the other engine")));
    }
    let Some(couchdb) = &config.couchdb else {
        let problem = "there is no section [couchdb] in the configuration: write where it is, like url = 'http://127.0.0.1:5984'";
        return Err(refused(problem.to_owned()));
    };
    if let Some(holder) = engine::chosen(&config.data).map_err(CopyFailure::Refused)?
        && holder != from
    {
        let problem = format!(
            "the records of this site are in {holder}, and what is in {from} is old: copy --from {holder}"
        );
        return Err(refused(problem));
    }
    if from == Kind::Embedded && !store(config).join("about").exists() {
        let problem = format!("there is no store in {}: is `data` right?", store(config).display());
        return Err(refused(problem));
    }
    let mut inspector = match from {
        Kind::Embedded => None,
        Kind::CouchDb => {
            let members = members(config).map_err(|error| refused(error.to_string()))?;
            Some(Inspector::new(Arc::new(members)))
        }
    };
    let mut counts = |stray: &Durable| {
        inspector.as_mut().is_some_and(|of| arrivals::sealed(stray.clone(), of).is_some())
    };
    let open_source = || open(config, couchdb, from);
    let open_target = || fill(config, couchdb, to);
    let mut claimed = standby::claim(config, couchdb).map_err(|problem| {
        let place = couchdb.url.to_string();
        CopyFailure::Refused(EngineError { place, problem, sort: Sort::Server })
    })?;
    let copied = engine::copy(&open_source, &open_target, &mut counts, tell);
    // It counts for nothing without this process, too.
    if let Err(trouble) = claimed.release() {
        tracing::debug!("the databases could not be given up: {trouble}");
    }
    let copied = copied?;
    note_choice(&config.data, to).map_err(CopyFailure::BrokenOff)?;
    if to == Kind::Embedded {
        engine::couchdb::leave(&config.data).map_err(CopyFailure::BrokenOff)?;
    }
    Ok(copied)
}

fn store(config: &Config) -> PathBuf {
    config.data.join("store")
}

fn open(
    config: &Config,
    couchdb: &config::CouchDb,
    kind: Kind,
) -> Result<Box<dyn Opened>, EngineError> {
    let site = config.site.clone();
    Ok(match kind {
        Kind::Embedded => Box::new(Embedded::open(&store(config), Options::of(site))?),
        Kind::CouchDb => Box::new(CouchDb::open(couchdb, site, &config.data)?),
    })
}

fn fill(
    config: &Config,
    couchdb: &config::CouchDb,
    kind: Kind,
) -> Result<Box<dyn Filling>, EngineError> {
    let site = config.site.clone();
    Ok(match kind {
        Kind::Embedded => Box::new(Embedded::fill(&store(config), Options::of(site))?),
        Kind::CouchDb => Box::new(CouchDb::fill(couchdb, site, &config.data)?),
    })
}
