//! Records that others have brought into the store: each is looked at, and told to the node.
//!
//! What must stay true: no record reaches the node that its site has not sealed; no more are taken than the node
//! has written down.

use std::collections::BTreeMap;

use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{Durable, Input, Message, Sent},
};
use tokio::sync::oneshot;

use crate::{engine::Arrivals, node, trust::Inspector};

/// Takes in what comes, until the agent stops.
pub(crate) async fn take_in(
    mut arrivals: Box<dyn Arrivals>,
    mut inspector: Inspector,
    node: node::Handle,
) {
    loop {
        let arrived = arrivals.next().await;
        let sealed = arrived.into_iter().filter_map(|durable| sealed(durable, &mut inspector));
        for (from, message) in messages(sealed) {
            if node.tell(Input::Received { from, message }).await.is_err() {
                return;
            }
        }
        let (written, is_written) = oneshot::channel();
        if node.tell_then(written).await.is_err() || is_written.await.is_err() {
            return;
        }
    }
}

/// A record, if its site has sealed it.
pub(crate) fn sealed(durable: Durable, inspector: &mut Inspector) -> Option<Sent> {
    let Durable::Record(record, seal) = durable else { return None };
    // A store keeps all that a site has recorded; where it does not, the two sites compare.
    let sent = Sent { after: record.id().number.saturating_sub(1), record, seal };
    match inspector.inspect(&sent) {
        Ok(()) => Some(sent),
        Err(doubt) => {
            let (id, resource) = (sent.record.id(), sent.record.resource());
            tracing::error!(
                "the record {id} of `{resource}` in the store does not count: {}",
                doubt.word()
            );
            None
        }
    }
}

/// What the sites of records would have sent.
fn messages(records: impl Iterator<Item = Sent>) -> Vec<(SiteId, Message)> {
    let mut sorted: BTreeMap<(ResourceId, SiteId), BTreeMap<u64, Sent>> = BTreeMap::new();
    for sent in records {
        let (resource, id) = (sent.record.resource().clone(), sent.record.id().clone());
        sorted.entry((resource, id.site)).or_default().insert(id.number, sent);
    }
    let message = |((resource, site), records): ((ResourceId, SiteId), BTreeMap<u64, Sent>)| {
        let records = records.into_values().collect();
        (site, Message::Records { resource, records, more: false })
    };
    sorted.into_iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cheops_core::replica::{Record, Shown};

    use super::*;

    #[test]
    fn records_come_from_their_sites_in_order() {
        let sent = |resource: &str, site: &str, number: u64| Sent {
            after: number - 1,
            record: Record::Shown(Arc::new(Shown {
                id: format!("{site}:{number}").parse().unwrap(),
                resource: resource.parse().unwrap(),
                op: "a:1".parse().unwrap(),
                block: 0,
                print: None,
            })),
            seal: None,
        };
        let records = [sent("y", "a", 2), sent("x", "b", 9), sent("y", "a", 1), sent("y", "b", 1)];
        let messages = messages(records.into_iter());
        let told: Vec<_> = messages
            .iter()
            .map(|(from, message)| {
                let Message::Records { resource, records, more: false } = message else {
                    panic!("{message:?}")
                };
                let numbers: Vec<_> = records.iter().map(|sent| sent.record.id().number).collect();
                (from.as_str(), resource.as_str(), numbers)
            })
            .collect();
        assert_eq!(told, [("b", "x", vec![9]), ("a", "y", vec![1, 2]), ("b", "y", vec![1])]);
    }
}
