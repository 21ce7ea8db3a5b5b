//! Creations of which nothing came: refused by all sites, or carried out without making anything.
//!
//! Such a resource stands for nothing, and nobody was told an id of it. The site that took the request
//! down deletes it once all sites have replied, with a delete that runs nothing, and it is forgotten at
//! each of them.
//!
//! What must stay true:
//! - what any site has made, or may have made, is not forgotten, nor what anything else was asked of;
//! - the same request again, with the same Idempotency-Key, is not carried out twice within a day.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cheops_core::{
    id::{Kind, ResourceId, SiteId},
    operation::{Action, Names},
    plan::Outcome,
    replica::{Durable, Record, Replica, Resource, Submission, Ticket},
    time::Millis,
};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{Instant, sleep_until},
};

use super::{Shared, write::AUTHOR};
use crate::node::{Stopping, Told};

/// For how long a request with a key is known again.
const KEPT: Millis = Millis(24 * 60 * 60 * 1_000);
/// How often all resources are looked at: some are over only after a while, and a delete may not have
/// been taken down.
const EVERY: Duration = Duration::from_hours(1);
/// How many of them are deleted after one look.
const MOST: usize = 10_000;

impl Shared {
    /// Forgets creations of which nothing came, for as long as the mesh is at work.
    pub(super) async fn forget_nothing(self: Arc<Self>) {
        tokio::select! {
            // A node that stops has nothing to forget any more.
            _ = self.follow_replies() => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn follow_replies(&self) -> Result<(), Stopping> {
        let mut feed = self.node.feed().follow();
        loop {
            self.forget_all().await?;
            let next = Instant::now() + EVERY;
            while let Some(replied) = self.replied(&mut feed, next).await? {
                let (here, now) = (self.here.clone(), self.node.now().wall);
                let look = move |replica: &Replica| {
                    let resources = replied.iter().filter_map(|id| replica.resource(id));
                    let spent = resources.filter(|resource| came_to_nothing(resource, &here, now));
                    spent.map(|resource| resource.id().clone()).collect::<Vec<_>>()
                };
                for id in self.node.read(look).await? {
                    self.forget(id).await;
                }
            }
        }
    }

    /// The resources of which replies came that this site has asked for; nothing when it is time to
    /// look at all of them. What is missed is found then.
    async fn replied(
        &self,
        feed: &mut Receiver<Told>,
        next: Instant,
    ) -> Result<Option<BTreeSet<ResourceId>>, Stopping> {
        let told = tokio::select! {
            told = feed.recv() => told,
            () = sleep_until(next) => return Ok(None),
        };
        let mut replied = BTreeSet::new();
        match told {
            Ok(told) => replied.extend(self.asked_for(&told)),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return Err(Stopping),
        }
        while let Ok(told) = feed.try_recv() {
            replied.extend(self.asked_for(&told));
        }
        Ok(Some(replied))
    }

    fn asked_for(&self, told: &Told) -> Option<ResourceId> {
        let Told::Wrote(_, Durable::Record(Record::Reply(reply), _)) = told else { return None };
        let ours = reply.op.site == self.here && reply.made.is_none();
        (ours && reply.resource.as_str().contains('~')).then(|| reply.resource.clone())
    }

    async fn forget_all(&self) -> Result<(), Stopping> {
        let (here, now) = (self.here.clone(), self.node.now().wall);
        let look = move |_: &Replica, resource: &Resource, found: &mut Vec<ResourceId>| {
            if came_to_nothing(resource, &here, now) {
                found.push(resource.id().clone());
            }
            found.len() < MOST
        };
        for id in self.node.walk(Vec::new(), look).await? {
            self.forget(id).await;
        }
        Ok(())
    }

    async fn forget(&self, resource: ResourceId) {
        let (Ok(kind), Ok(author)) = (Kind::DELETE.parse(), AUTHOR.parse()) else { return };
        let submission = Submission {
            ticket: Ticket(0),
            resource,
            sites: None,
            config: None,
            kind,
            author,
            action: Action::Steps([].into()),
            force: false,
            keep_going: true,
            key: None,
            wait: Millis(0),
        };
        // If it can't be taken down now, it is at the next look.
        let _ = self.node.submit(submission).await;
    }
}

/// Whether nothing has come of a creation, or of a delete of what was not known, that this site has
/// taken down, and nothing will.
fn came_to_nothing(resource: &Resource, here: &SiteId, now: Millis) -> bool {
    let mut log = resource.log().iter();
    let (Some((_, op)), None) = (log.next(), log.next()) else { return false };
    let Action::Http(request) = &op.action else { return false };
    if op.id.site != *here {
        return false;
    }
    let outcome = |site| resource.reply(&op.id, site).map(|reply| reply.outcome);
    let outcomes: Vec<_> = resource.present().map(outcome).collect();
    if outcomes.iter().all(|outcome| outcome.is_some_and(Outcome::is_failure)) {
        return true;
    }
    let makes = matches!(request.names, Names::Makes(_));
    let is_sure =
        |outcome: &Option<Outcome>| outcome.is_some_and(|outcome| outcome != Outcome::Unknown);
    let is_over = op.key.is_none() || op.at.wall().plus(KEPT) < now;
    makes && outcomes.iter().all(is_sure) && resource.mades().next().is_none() && is_over
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problems::tests::{Sent, replicant_after, site};

    #[test]
    fn what_made_nothing_is_forgotten_and_nothing_else() {
        let (makes, uses) = (Sent::makes, Sent::uses);
        let with_key = |sent: Sent| Sent { key: Some("k"), ..sent };
        let made = |sent: Sent| Sent { made: [None, Some("7")], ..sent };
        let (soon, later) = (Millis(100_000), Millis(100_000).plus(KEPT));
        for (what, requests, now, expected) in [
            ("refused by all", vec![makes([422, 400])], soon, true),
            ("refused by all, with a key", vec![with_key(makes([422, 400]))], soon, true),
            ("made nothing", vec![makes([200, 204])], soon, true),
            ("made nothing, or failed", vec![makes([200, 500])], soon, true),
            ("made nothing, with a key", vec![with_key(makes([200, 200]))], soon, false),
            ("the same a day later", vec![with_key(makes([200, 200]))], later, true),
            ("one site has made it", vec![made(makes([500, 201]))], later, false),
            ("nobody knows of one site", vec![makes([200, 0])], later, false),
            ("a site has not replied", vec![Sent::makes([200])], later, false),
            (
                "something else came",
                vec![makes([200, 200]), uses("PATCH", [404, 404])],
                later,
                false,
            ),
            (
                "nothing was to be made",
                vec![Sent { makes: false, ..makes([200, 200]) }],
                later,
                false,
            ),
        ] {
            let (replica, id) = replicant_after(&requests);
            let resource = replica.resource(&id).unwrap();
            assert_eq!(came_to_nothing(resource, &site(1), now), expected, "{what}");
            assert!(!came_to_nothing(resource, &site(2), now), "{what}: it is not site2's");
        }
    }
}
