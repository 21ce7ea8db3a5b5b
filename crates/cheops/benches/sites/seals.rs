//! What it costs to sign a record where it is made, and to check it where it arrives.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cheops_agent::{
    config::Config,
    trust::{Identity, Inspector, Ledger, Members, Sealer},
};
use cheops_core::{
    id::{OpId, SiteId},
    operation::{Action, Operation},
    replica::{Durable, Record, Sent},
    time::{Millis, Timestamp},
};

const BATCHES: u32 = 500;

/// The time that signing and checking take for each record of 500 bytes, of so many in a batch.
pub(crate) fn cost(batch: usize) -> [Duration; 2] {
    let site: SiteId = "site1".parse().unwrap();
    let config = Config::new(site.clone(), "/nowhere");
    let ledger = Ledger::open(&config.data).unwrap();
    let members = Members::new(&config, Identity::from_seed(&[7; 32]).unwrap(), ledger);
    let (sealer, mut inspector) = (Sealer::of(&members), Inspector::new(Arc::new(members)));
    let record = |number| {
        Record::Operation(Arc::new(Operation {
            id: OpId { site: site.clone(), number },
            resource: "counter".parse().unwrap(),
            kind: "inc".parse().unwrap(),
            author: "operator".parse().unwrap(),
            at: Timestamp::at(Millis(1_800_000_000_000 + number)),
            parents: [].into(),
            action: Action::command("x".repeat(400)),
            reset: false,
            keep_going: false,
            key: None,
            declares: None,
        }))
    };
    let (mut next, mut took) = (0, [Duration::ZERO; 2]);
    for _ in 0..BATCHES {
        let mut records: Vec<Durable> = Vec::new();
        for _ in 0..batch {
            next += 1;
            records.push(Durable::Record(record(next), None));
        }
        let start = Instant::now();
        sealer.seal(&mut records);
        took[0] += start.elapsed();
        let arrived = records.into_iter().filter_map(|durable| match durable {
            Durable::Record(record, seal) => Some(Sent { after: 0, record, seal }),
            _ => None,
        });
        let arrived: Vec<Sent> = arrived.collect();
        let start = Instant::now();
        assert!(arrived.iter().all(|sent| inspector.inspect(sent).is_ok()));
        took[1] += start.elapsed();
    }
    took.map(|span| span / BATCHES / u32::try_from(batch).unwrap())
}
