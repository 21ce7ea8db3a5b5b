//! From what was written down at this site to events.
//!
//! What is written is taken in the order of its numbers, together with a look at the resources that it
//! is about, and with what was remembered of before: the operations of which something more will come,
//! and what is wrong. The same records lead to the same events, and the same ids.
//!
//! What must stay true: no I/O; what is remembered is bounded, and what does not fit is counted; an
//! operation ends once. A look at the replica keeps others from it, so it is short: of a page only what
//! its records name is looked at. The state of a resource, and what became of its other operations, is
//! looked at now and then, the less often the longer that takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Included, Unbounded},
};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::{Durable, Record, State, Version},
};
use serde::{Deserialize, Serialize};

use super::{
    event::{Name, Teller},
    seen::{Asked, End, Seen, Standing, Wanted},
    summary::{Turn, View, turn},
};
use crate::{
    api::{model::HookEvent, view},
    engine::Seq,
};

/// How many operations are followed at the same time, and how many resources with something wrong.
const MOST: usize = 10_000;
/// How many resources are looked at in one go.
const ROUND: usize = 200;

/// What is remembered between one look and the next, also over a restart.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// All that was written up to this number has been taken in.
    pub(crate) seq: Seq,
    /// The operations of which something more will come, by resource and id.
    open: BTreeMap<String, BTreeMap<String, Open>>,
    /// How many these are.
    count: usize,
    /// The resources with something wrong, and the id of the event that told so.
    wrong: BTreeMap<String, Wrong>,
    /// Whether each other site could be reached when it was last told of.
    #[serde(default)]
    links: BTreeMap<String, Link>,
    /// The resources whose state is to be looked at, and whether an operation or a reply is why.
    touched: BTreeMap<String, bool>,
    /// The one that was looked at last.
    #[serde(skip)]
    last: String,
    /// How many operations were not followed to their end, because there were too many.
    pub(crate) unfollowed: u64,
}

/// An operation of which something more will come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Open {
    /// It has ended, at this time, and another site should tell. In milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<u64>,
    /// When to look again whether it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    due: Option<u64>,
}

/// The link to another site.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Link {
    up: bool,
    /// In milliseconds since 1970.
    since: u64,
}

/// What is wrong with a resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Wrong {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    diverged: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stuck: Option<String>,
}

/// What is taken in at once.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// What was written, in order.
    pub(crate) written: Vec<(Seq, Durable)>,
    /// Resources whose state is looked at.
    pub(crate) look: BTreeSet<ResourceId>,
    /// Sites that were lost or came back, in order.
    pub(crate) links: Vec<(SiteId, bool)>,
}

impl Page {
    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.written.is_empty() && self.look.is_empty() && self.links.is_empty()
    }
}

/// When and where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) here: &'a SiteId,
    /// In milliseconds since 1970.
    pub(crate) now: u64,
    /// How long a site waits for another to tell.
    pub(crate) patience: u64,
    /// The sites that can be reached.
    pub(crate) reachable: &'a BTreeSet<SiteId>,
}

impl Memory {
    /// Nothing but that all up to a number is of no interest.
    pub(crate) fn after(seq: Seq) -> Self {
        Self { seq, ..Self::default() }
    }

    /// What has to be looked at to take in a page.
    pub(crate) fn wanted(&self, page: &Page, now: u64) -> Wanted {
        let mut wanted = Wanted::new();
        for (_, durable) in &page.written {
            if let Durable::Record(record, _) = durable {
                let want = wanted.entry(record.resource().clone()).or_default();
                want.ops.insert(record.about().clone());
            }
        }
        for id in &page.look {
            let want = wanted.entry(id.clone()).or_default();
            want.standing = true;
            for (op, open) in self.open.get(id.as_str()).into_iter().flatten() {
                let Ok(op) = op.parse() else { continue };
                match (open.ended, open.due) {
                    (None, _) => want.lost.push(op),
                    (Some(_), Some(due)) if due > now => {}
                    (Some(_), _) => {
                        want.ops.insert(op);
                    }
                }
            }
        }
        wanted
    }

    /// The resources to look at now: those of which something is due, and those that were touched.
    pub(crate) fn ripe(&self, now: u64) -> BTreeSet<ResourceId> {
        let is_due = |ops: &BTreeMap<String, Open>| {
            ops.values().any(|open| open.due.is_some_and(|due| due <= now))
        };
        let due = self.open.iter().filter(|(_, ops)| is_due(ops)).map(|(id, _)| id).take(ROUND);
        // One after the other, and then from the beginning, so that each gets its turn.
        let after = self.touched.range::<String, _>((Excluded(&self.last), Unbounded));
        let before = self.touched.range::<String, _>((Unbounded, Included(&self.last)));
        let touched = after.chain(before).map(|(id, _)| id).take(ROUND);
        due.chain(touched).filter_map(|id| id.parse().ok()).collect()
    }

    /// Has a resource looked at.
    pub(crate) fn touch(&mut self, resource: &ResourceId, news: bool) {
        *self.touched.entry(resource.to_string()).or_default() |= news;
    }

    /// Takes in a page, and says what happened.
    pub(crate) fn take(
        &mut self,
        page: &Page,
        seen: &BTreeMap<ResourceId, Seen>,
        moment: &Moment<'_>,
    ) -> Vec<HookEvent> {
        let at = view::rfc3339(cheops_core::time::Millis(moment.now));
        let teller = Teller { here: moment.here, at: &at };
        let mut events = Vec::new();
        for (seq, durable) in &page.written {
            self.seq = self.seq.max(*seq);
            let resource = durable.resource();
            let known = |op: &OpId| seen.get(resource).and_then(|seen| seen.ops.get(op));
            match durable {
                Durable::Record(Record::Operation(op), _) => {
                    events.push(teller.accepted(resource, &op.id, &Asked::of(op)));
                    self.open(resource, &op.id);
                    self.touch(resource, true);
                }
                Durable::Record(Record::Reply(reply), _) => {
                    events.push(teller.ran(reply, known(&reply.op)));
                    self.touch(resource, true);
                }
                Durable::Record(Record::Shown(_), _) | Durable::Contradicted { .. } => {
                    self.touch(resource, false);
                }
                Durable::Forgotten { by, .. } => {
                    events.extend(self.forget(resource, by, teller, moment));
                }
                Durable::Trimmed { version, .. } => self.trim(resource, version),
                _ => {}
            }
        }
        for (resource, seen) in seen {
            events.extend(self.operations(resource, seen, teller, moment));
        }
        if let Some(last) = page.look.last() {
            self.last = last.to_string();
        }
        for resource in &page.look {
            let id = resource.as_str();
            let Some(seen) = seen.get(resource) else {
                // It is gone.
                self.touched.remove(id);
                continue;
            };
            let Some(standing) = &seen.standing else { continue };
            let news = self.touched.remove(id).unwrap_or(false);
            events.extend(self.state(resource, standing, news, teller));
        }
        for (peer, up) in &page.links {
            events.extend(self.link(peer, *up, teller, moment));
        }
        events
    }

    /// A site was lost, or came back. The first time that it is there is no news: it was never lost.
    fn link(
        &mut self,
        peer: &SiteId,
        up: bool,
        teller: Teller<'_>,
        moment: &Moment<'_>,
    ) -> Option<HookEvent> {
        let before = self.links.get(peer.as_str()).copied();
        if before.is_some_and(|before| before.up == up) {
            return None;
        }
        self.links.insert(peer.to_string(), Link { up, since: moment.now });
        let is_news = before.is_some() || !up;
        is_news.then(|| teller.link(peer, up, before.map(|before| before.since)))
    }

    /// Whether a site could be reached when it was last told of.
    pub(crate) fn was_up(&self, site: &SiteId) -> Option<bool> {
        self.links.get(site.as_str()).map(|link| link.up)
    }

    /// Follows an operation from now on.
    fn open(&mut self, resource: &ResourceId, op: &OpId) {
        if self.count >= MOST {
            self.unfollowed += 1;
            return;
        }
        let ops = self.open.entry(resource.to_string()).or_default();
        if ops.insert(op.to_string(), Open::default()).is_none() {
            self.count += 1;
        }
    }

    fn close(&mut self, resource: &str, op: &str) -> Option<Open> {
        let ops = self.open.get_mut(resource)?;
        let open = ops.remove(op)?;
        self.count -= 1;
        if ops.is_empty() {
            self.open.remove(resource);
        }
        Some(open)
    }

    /// What a resource had before it was deleted and lived again is gone: nothing more comes of it.
    fn trim(&mut self, resource: &ResourceId, version: &Version) {
        let Some(ops) = self.open.get_mut(resource.as_str()) else { return };
        let before = ops.len();
        let is_gone = |op: &OpId| version.get(&op.site).is_some_and(|last| op.number <= *last);
        ops.retain(|op, _| !op.parse().is_ok_and(|op| is_gone(&op)));
        self.count -= before - ops.len();
        if ops.is_empty() {
            self.open.remove(resource.as_str());
        }
    }

    /// A resource is gone from all of its sites: they have all run the operation that deletes it.
    fn forget(
        &mut self,
        resource: &ResourceId,
        by: &OpId,
        teller: Teller<'_>,
        moment: &Moment<'_>,
    ) -> Vec<HookEvent> {
        self.wrong.remove(resource.as_str());
        self.touched.remove(resource.as_str());
        let mut events = Vec::new();
        if self.close(resource.as_str(), &by.to_string()).is_some() {
            events.push(teller.ended((resource, by), None, &End::Settled, false));
            // Nobody knows the other sites any more, so nobody can stand in for the one that received it.
            if by.site == *moment.here {
                events.push(teller.ended((resource, by), None, &End::Settled, true));
            }
        }
        if let Some(rest) = self.open.remove(resource.as_str()) {
            self.count -= rest.len();
        }
        let text = format!("{resource} was deleted at all of its sites");
        events.push(teller.resource(Name::Deleted, resource, &[&by.to_string()], (text, None)));
        events
    }

    /// The operations of a resource that have ended, or of which nobody has told for all sites.
    fn operations(
        &mut self,
        resource: &ResourceId,
        seen: &Seen,
        teller: Teller<'_>,
        moment: &Moment<'_>,
    ) -> Vec<HookEvent> {
        let mut events = Vec::new();
        for (op, found) in &seen.ops {
            let key = op.to_string();
            let open = self.open.get(resource.as_str()).and_then(|ops| ops.get(&key));
            let (Some(open), Some(end)) = (open, found.end()) else { continue };
            let first = open.ended.is_none();
            let since = open.ended.unwrap_or(moment.now);
            if first && matches!(end, End::Settled | End::Superseded { .. }) {
                events.push(teller.ended((resource, op), Some(found), &end, false));
            }
            let view = View {
                here: moment.here,
                origin: &op.site,
                sites: &seen.sites,
                since,
                now: moment.now,
                patience: moment.patience,
            };
            match turn(&view, |site| moment.reachable.contains(site)) {
                Turn::Tell => {
                    events.push(teller.ended((resource, op), Some(found), &end, true));
                    self.close(resource.as_str(), &key);
                }
                Turn::Leave => {
                    self.close(resource.as_str(), &key);
                }
                Turn::Wait(until) => {
                    let waits = Open { ended: Some(since), due: Some(until) };
                    if let Some(ops) = self.open.get_mut(resource.as_str()) {
                        ops.insert(key, waits);
                    }
                }
            }
        }
        events
    }

    /// What became of a resource. `news`: an operation or a reply came in.
    fn state(
        &mut self,
        resource: &ResourceId,
        seen: &Standing,
        news: bool,
        teller: Teller<'_>,
    ) -> Vec<HookEvent> {
        let mut events = Vec::new();
        let before = self.wrong.remove(resource.as_str()).unwrap_or_default();
        let mut wrong = Wrong::default();
        let words = || {
            let (text, next) = seen.wrong.clone().unzip();
            (text.unwrap_or_else(|| format!("the sites of {resource} differ")), next)
        };
        if seen.stuck {
            let facts = [teller.here.as_str(), seen.heads.as_str()];
            let event = teller.resource(Name::NeedsDecision, resource, &facts, words());
            wrong.stuck = Some(event.id.clone());
            if before.stuck.is_none() {
                events.push(event);
            }
        }
        match seen.state {
            State::Diverged => {
                let facts = [seen.heads.as_str(), seen.prints.as_str()];
                let event = teller.resource(Name::Diverged, resource, &facts, words());
                let known = before.diverged.clone();
                wrong.diverged = known.clone().or_else(|| Some(event.id.clone()));
                if known.is_none() {
                    events.push(event);
                }
            }
            State::Settled if news || before.diverged.is_some() => {
                let healed = before.diverged.as_deref().unwrap_or_default();
                let text = format!("all sites of {resource} have run all of its operations");
                let facts = [seen.heads.as_str(), healed];
                events.push(teller.resource(Name::ResourceSettled, resource, &facts, (text, None)));
            }
            // Until it has settled, it is the same trouble.
            State::Pending | State::Failed | State::Denied => wrong.diverged = before.diverged,
            State::Settled => {}
        }
        let is_wrong = wrong != Wrong::default();
        if is_wrong && self.wrong.len() < MOST {
            self.wrong.insert(resource.to_string(), wrong);
        }
        events
    }
}

#[cfg(test)]
mod tests;
