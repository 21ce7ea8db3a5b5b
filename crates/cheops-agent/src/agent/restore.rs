//! Opens what a site keeps its records in, and makes its replica of what is there.
//!
//! What must stay true: what is lost is said, and the resources that it is of are withheld, before anything runs.

use std::{collections::HashMap, sync::Arc};

use cheops_core::{
    id::ResourceId,
    replica::{Durable, Replica, Resource, Settings},
    time::Millis,
};

use super::{Embedded, Options, StartError};
use crate::{
    arrivals,
    config::{self, Config},
    engine::{self, Damage, EngineError, LostUnknown, Opened, couchdb},
    problems::Noted,
    trust::{Inspector, Members},
};

/// Opens the store, and makes the replica as it was.
pub(super) async fn restore(
    config: &Config,
    members: &Members,
    noted: &Noted,
) -> Result<(Replica, Box<dyn Opened>), StartError> {
    let (config, noted) = (config.clone(), noted.clone());
    let inspector = Inspector::new(Arc::new(members.clone()));
    let opened = tokio::task::spawn_blocking(move || {
        let engine = open(&config)?;
        read(&config, engine, inspector, &noted)
    });
    Ok(opened.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?)
}

/// Opens what the site keeps its records in.
fn open(config: &Config) -> Result<Box<dyn Opened>, EngineError> {
    let (site, kind) = (config.site.clone(), config.engine.kind());
    let opened: Box<dyn Opened> = match &config.engine {
        config::Engine::Embedded => {
            Box::new(Embedded::open(&config.data.join("store"), Options::of(site))?)
        }
        config::Engine::CouchDb(couchdb) => couchdb::open(couchdb, site, &config.data)?,
    };
    engine::note_choice(&config.data, kind)?;
    Ok(opened)
}

fn settings(config: &Config) -> Settings {
    Settings { show_after: config.runs.show_after.map(Millis::from), ..Settings::default() }
}

/// Makes the replica of all that was written, and marks what of it was lost.
fn read(
    config: &Config,
    mut engine: Box<dyn Opened>,
    mut inspector: Inspector,
    noted: &Noted,
) -> Result<(Replica, Box<dyn Opened>), EngineError> {
    let mut strays = engine.strays()?;
    strays.retain(|stray| arrivals::sealed(stray.clone(), &mut inspector).is_some());
    let (mut failure, mut given) = (None, Given::new());
    let written =
        engine.written().map_while(|read| read.map_err(|error| failure = Some(error)).ok());
    let written = written.chain(strays.iter().cloned()).inspect(|durable| {
        if let Durable::Record(record, _) = durable
            && record.id().site == config.site
        {
            let (resource, number) = (record.resource(), record.id().number);
            match given.get_mut(resource) {
                Some(last) => *last = number.max(*last),
                None => drop(given.insert(resource.clone(), number)),
            }
        }
    });
    let mut replica = Replica::restore(config.site.clone(), settings(config), written);
    if let Some(error) = failure {
        return Err(error);
    }
    if !strays.is_empty() {
        let count = strays.len();
        tracing::warn!(
            "{count} records of this site were written, and not acknowledged: they count"
        );
        engine.append(&strays)?;
    }
    let damage = engine.damage().iter();
    let markers: Vec<Durable> =
        damage.flat_map(|damage| marked(&replica, &given, damage)).collect();
    for damage in engine.damage() {
        tracing::error!("{damage}");
        noted.damaged(damage.to_string());
    }
    if !markers.is_empty() {
        engine.append(&markers)?;
    }
    for marker in &markers {
        if let Durable::Withheld { resource, floor } = marker {
            replica.withhold(resource, *floor);
        }
    }
    if let Some(LostUnknown { found, records }) = engine.lost_unknown() {
        replica.lose_unknown(Millis(found), records);
    }
    Ok((replica, engine))
}

/// The last number of this site's own records that was found, of each resource. The replica does not know those after
/// a gap.
type Given = HashMap<ResourceId, u64>;

/// What is withheld because of a loss: the resource, or all of them if it is not known which.
fn marked(replica: &Replica, given: &Given, damage: &Damage) -> Vec<Durable> {
    if let Some(resource) = &damage.resource {
        return vec![Durable::Withheld { resource: resource.clone(), floor: damage.floor }];
    }
    // Each of the numbers that are lost may have been that of a record of this site.
    let lost = damage.seqs.clone().count() as u64;
    let floor = |resource: &Resource| {
        let known = resource.version().get(replica.here()).copied().unwrap_or(0);
        known.max(given.get(resource.id()).copied().unwrap_or(0)) + lost
    };
    let withheld = |resource: &Resource| Durable::Withheld {
        resource: resource.id().clone(),
        floor: floor(resource),
    };
    replica.resources().map(withheld).collect()
}
