//! What is heard of an operation while its client waits, and what the client is told of it.
//!
//! What must stay true:
//! - what this site says comes first; a good answer of another site is told if this one has failed or
//!   can't be reached;
//! - a site whose link ends is not waited for any longer: its reply comes when it is back. If no other site
//!   is left, and this one has no answer to give, nothing is waited for.

use std::{collections::BTreeSet, time::Duration};

use cheops_core::{
    id::{OpId, SiteId},
    plan::Outcome,
    replica::{self, Reply},
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep, sleep_until},
};

use super::pool::Upstream;
use crate::{peers::Peers, run};

/// How long the other sites may take to succeed where this one has failed.
const GRACE: Duration = Duration::from_secs(1);

/// What is known of an operation when the client is answered.
pub(super) enum Told {
    /// How it went at a site.
    Reply(Box<Reply>),
    /// Another operation won over it.
    Superseded(OpId),
    /// Nobody has said.
    Nothing,
}

/// Who waits for what.
pub(super) struct Waiting<'a> {
    pub(super) here: &'a SiteId,
    pub(super) instance: Option<&'a Upstream>,
    pub(super) until: Instant,
    pub(super) peers: &'a Peers,
    /// Sites that each have a part of the answer.
    pub(super) all: BTreeSet<SiteId>,
    /// The other sites of the resource: each may have an answer.
    pub(super) others: BTreeSet<SiteId>,
    /// One of them has no link, or had none.
    pub(super) cut: bool,
}

/// What was heard of an operation.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) replies: Vec<Reply>,
    /// The one to tell of, if it is known already.
    good: Option<usize>,
    superseded: Option<OpId>,
}

impl Heard {
    /// Takes note of a reply. What this site says comes first.
    fn add(&mut self, reply: Reply, here: &SiteId) {
        let ours = reply.id.site == *here;
        // A site that has no part in it has nothing to say.
        let is_answer = run::answer::Answer::of_reply(&reply.output).is_some();
        let is_good = reply.outcome == Outcome::Ok && is_answer;
        let place = if ours { 0 } else { self.replies.len() };
        self.replies.insert(place, reply);
        if ours {
            self.good = self.good.map(|good| good + 1);
        }
        if is_good && (ours || self.good.is_none()) {
            self.good = Some(place);
        }
    }

    /// Whether it went well at a site.
    fn is_ok_at(&self, site: &SiteId) -> bool {
        let ok = |reply: &Reply| reply.id.site == *site && reply.outcome == Outcome::Ok;
        self.replies.iter().any(ok)
    }

    fn has(&self, site: &SiteId) -> bool {
        self.replies.iter().any(|reply| reply.id.site == *site)
    }

    /// The reply that a client is told of, the good one or the first, and the others.
    pub(super) fn told(mut self) -> (Told, Vec<Reply>) {
        let first = (!self.replies.is_empty()).then_some(0);
        let told = match (self.good.or(first), self.superseded.take()) {
            (Some(n), _) => Told::Reply(Box::new(self.replies.swap_remove(n))),
            (None, Some(by)) => Told::Superseded(by),
            (None, None) => Told::Nothing,
        };
        (told, self.replies)
    }
}

impl Waiting<'_> {
    /// Hears until there is something to tell: that it went well here; that it went well elsewhere, and
    /// the instance here has failed or can't be reached; or that nothing came in time.
    pub(super) async fn hear(mut self, answers: &mut UnboundedReceiver<replica::Answer>) -> Heard {
        let mut heard = Heard::default();
        let mut until = self.until;
        let mut expected = self.instance.is_some();
        let peers = self.peers;
        let others = self.others.iter().cloned();
        let mut losses: FuturesUnordered<_> = others
            .map(async |site| {
                peers.lost(&site).await;
                site
            })
            .collect();
        loop {
            let answer = tokio::select! {
                answer = answers.recv() => answer,
                Some(lost) = losses.next() => {
                    self.all.remove(&lost);
                    self.others.remove(&lost);
                    self.cut = true;
                    if self.is_over(&heard, expected) {
                        return heard;
                    }
                    continue;
                }
                () = self.gone(), if expected && (heard.good.is_some() || self.is_alone(&heard)) => None,
                () = sleep_until(until) => None,
            };
            match answer {
                Some(replica::Answer::Reply(reply)) => {
                    if reply.id.site == *self.here {
                        expected = false;
                        if reply.outcome != Outcome::Ok {
                            until = until.min(Instant::now() + GRACE);
                        }
                    }
                    heard.add(*reply, self.here);
                    if self.is_over(&heard, expected) {
                        return heard;
                    }
                }
                Some(replica::Answer::Superseded { by }) => heard.superseded = Some(by),
                Some(replica::Answer::Accepted(..)) => {}
                Some(
                    replica::Answer::Silent(_)
                    | replica::Answer::Done
                    | replica::Answer::Refused(_),
                )
                | None => return heard,
            }
        }
    }

    /// Whether there is a good answer, the instance here has replied or can't, and so has each site
    /// with a part of the answer; or this site has found nothing to do, and no other can answer.
    fn is_over(&self, heard: &Heard, expected: bool) -> bool {
        let found_nothing_to_do = heard.is_ok_at(self.here) && self.is_alone(heard);
        let is_answered = heard.good.is_some() && self.all.iter().all(|site| heard.has(site));
        !expected && (is_answered || found_nothing_to_do)
    }

    /// Whether links are gone, and each other site that still has one has replied: none is left that may
    /// answer.
    fn is_alone(&self, heard: &Heard) -> bool {
        self.cut && self.others.iter().all(|site| heard.has(site))
    }

    /// Returns when the instance here can't be reached.
    async fn gone(&self) {
        let Some(instance) = self.instance else { return };
        while instance.is_there().await {
            sleep(GRACE).await;
        }
    }
}
