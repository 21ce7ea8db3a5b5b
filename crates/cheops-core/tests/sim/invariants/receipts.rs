//! Each operation that is not in the block has a receipt: it failed where it was received, or a
//! reset that counts follows it, or a concurrent one that is in the block won over it.

use cheops_core::{
    replica::Resource,
    resolve::{Fate, Receipt},
};

pub fn check(resource: &Resource) {
    let (log, resolution) = (resource.log(), resource.resolution());
    for (ix, op) in log.iter() {
        let what = format!("{} {}", op.resource, op.id);
        let listed = resolution.block().contains(&ix);
        match resolution.receipt(log, ix) {
            None => assert!(listed, "{what} is not in the block, for no reason"),
            Some(Receipt::Void) => {
                let reply = resource.reply(&op.id, &op.id.site);
                let failed = reply.is_some_and(|reply| reply.outcome.is_failure());
                assert!(failed && !op.keep_going && !listed, "{what} is void, for no reason");
            }
            Some(Receipt::Over { by }) => {
                let counts = resolution.fate(by) != Fate::Void && log.op(by).reset;
                let follows = log.precedes(ix, by);
                assert!(counts && follows && !listed, "{what} is over by {}", log.op(by).id);
            }
            Some(Receipt::Fallen { by, row }) => {
                let met = log.concurrent(ix, by) && resolution.block().contains(&by);
                let by_default = row.is_none() && log.op(by).kind.is_delete();
                let told = row.is_some() || by_default;
                assert!(met && told && !listed, "{what} fell to {}", log.op(by).id);
            }
        }
    }
}
