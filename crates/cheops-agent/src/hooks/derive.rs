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
    id::{Author, Kind, OpId, ResourceId, SiteId},
    operation::Operation,
    replica::{Durable, Record, State},
    resolve::Fate,
};
use serde::{Deserialize, Serialize};

use super::{
    event::{Name, Teller, cut},
    summary::{Turn, View, turn},
};
use crate::{
    api::{
        model::{HookEvent, Run, RunStatus},
        view,
    },
    engine::Seq,
};

/// How many operations are followed at the same time, and how many resources with something wrong.
const MOST: usize = 10_000;
/// How many resources are looked at in one go.
const ROUND: usize = 200;

/// How long it is put off, in milliseconds.
const PUT_OFF: u64 = 5_000;
/// A resource rests for a millisecond after a look at so many replies: a fiftieth of the time is enough.
const REPLIES: usize = 200;

/// What a look at a resource finds.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) sites: Vec<SiteId>,
    /// The operations that were asked about.
    pub(crate) ops: BTreeMap<OpId, SeenOp>,
    /// How it stands, if that was asked for, and is not too much work.
    pub(crate) standing: Option<Standing>,
    /// How many replies there are to look at, about.
    pub(crate) replies: usize,
}

/// How a resource stands.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) state: State,
    /// A person must decide here.
    pub(crate) stuck: bool,
    /// Which operations are the newest.
    pub(crate) heads: String,
    /// What the sites show, if that differs.
    pub(crate) prints: String,
    /// What is wrong, and what to do.
    pub(crate) wrong: Option<(String, String)>,
}

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) kind: Kind,
    pub(crate) author: Author,
    /// As text, up to a limit.
    pub(crate) command: String,
}

impl Asked {
    pub(super) fn of(op: &Operation) -> Self {
        let command = cut(&view::command(&op.action));
        Self { kind: op.kind.clone(), author: op.author.clone(), command }
    }
}

/// What a look at an operation finds.
#[derive(Debug, Clone)]
pub(crate) struct SeenOp {
    pub(crate) asked: Asked,
    pub(crate) fate: Fate,
    /// The operation that won over it, and why.
    pub(crate) lost: Option<(String, String)>,
    /// How it went at each site of the resource.
    pub(crate) runs: Vec<Run>,
}

/// How an operation ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// All sites have run it, and it went well.
    Settled,
    /// All sites have run it, and it failed at some.
    Failed,
    /// It failed at the site that received it, so that others need not run it.
    Void,
    /// Another won over it before all had run it.
    Superseded {
        /// The one that won.
        by: String,
        /// In which way.
        because: String,
    },
}

impl SeenOp {
    /// How it has ended, if nothing more will come.
    fn end(&self) -> Option<End> {
        let ran = |run: &Run| !matches!(run.status, RunStatus::Waiting | RunStatus::Dropped);
        if self.runs.iter().all(ran) {
            let well = self.runs.iter().all(|run| run.status == RunStatus::Ok);
            return Some(if well { End::Settled } else { End::Failed });
        }
        match (self.fate, &self.lost) {
            (Fate::Kept, _) => None,
            (Fate::Void, _) | (_, None) => Some(End::Void),
            (Fate::Over | Fate::Fallen, Some((by, because))) => {
                Some(End::Superseded { by: by.clone(), because: because.clone() })
            }
        }
    }
}

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
    up: BTreeMap<String, bool>,
    /// The resources whose state is to be looked at, and whether an operation or a reply is why.
    touched: BTreeMap<String, bool>,
    /// Those that rest until a time.
    #[serde(skip)]
    resting: BTreeMap<String, u64>,
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

/// What to look at.
pub(crate) type Wanted = BTreeMap<ResourceId, Want>;

/// What to look at of a resource.
#[derive(Debug, Clone, Default)]
pub(crate) struct Want {
    /// These operations.
    pub(crate) ops: BTreeSet<OpId>,
    /// These, if they have left the block.
    pub(crate) lost: Vec<OpId>,
    /// How it stands.
    pub(crate) standing: bool,
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
            if let Durable::Record(record) = durable {
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

    /// The resources to look at now: those of which something is due, and those that were touched and do
    /// not rest.
    pub(crate) fn ripe(&self, now: u64) -> BTreeSet<ResourceId> {
        let is_due = |ops: &BTreeMap<String, Open>| {
            ops.values().any(|open| open.due.is_some_and(|due| due <= now))
        };
        let due = self.open.iter().filter(|(_, ops)| is_due(ops)).map(|(id, _)| id).take(ROUND);
        let rests = |id: &&String| self.resting.get(*id).is_some_and(|until| *until > now);
        // One after the other, and then from the beginning, so that each gets its turn.
        let after = self.touched.range::<String, _>((Excluded(&self.last), Unbounded));
        let before = self.touched.range::<String, _>((Unbounded, Included(&self.last)));
        let touched = after.chain(before).map(|(id, _)| id).filter(|id| !rests(id)).take(ROUND);
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
                Durable::Record(Record::Operation(op)) => {
                    events.push(teller.accepted(resource, &op.id, &Asked::of(op)));
                    self.open(resource, &op.id);
                    self.touch(resource, true);
                }
                Durable::Record(Record::Reply(reply)) => {
                    events.push(teller.ran(reply, known(&reply.op)));
                    self.touch(resource, true);
                }
                Durable::Record(Record::Shown(_)) => self.touch(resource, false),
                Durable::Forgotten { by, .. } => {
                    events.extend(self.forget(resource, by, teller, moment));
                }
                _ => {}
            }
        }
        for (resource, seen) in seen {
            events.extend(self.operations(resource, seen, teller, moment));
        }
        self.resting.retain(|_, until| *until > moment.now);
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
            let Some(standing) = &seen.standing else {
                self.resting.insert(id.to_owned(), moment.now + PUT_OFF);
                continue;
            };
            let news = self.touched.remove(id).unwrap_or(false);
            events.extend(self.state(resource, standing, news, teller));
            let rest = u64::try_from(seen.replies / REPLIES).unwrap_or(u64::MAX);
            if rest > 0 {
                self.resting.insert(id.to_owned(), moment.now.saturating_add(rest));
            }
        }
        for (peer, up) in &page.links {
            let before = self.up.insert(peer.to_string(), *up);
            // The first time is no news: it was never lost.
            if before.is_some_and(|before| before != *up) || (before.is_none() && !up) {
                events.push(teller.link(peer, *up));
            }
        }
        events
    }

    /// Whether a site could be reached when it was last told of.
    pub(crate) fn was_up(&self, site: &SiteId) -> Option<bool> {
        self.up.get(site.as_str()).copied()
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
            State::Pending | State::Failed => wrong.diverged = before.diverged,
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
mod tests {
    use cheops_core::{
        id::Sites,
        matrix::Config,
        operation::{Action, Declaration},
        plan::Outcome,
        replica::{Replica, Reply, Settings, Version},
        time::{Millis, Timestamp},
    };

    use super::*;
    use crate::hooks::look::look;

    fn site(n: u8) -> SiteId {
        format!("site{n}").parse().unwrap()
    }

    fn op(origin: u8, number: u64, parents: &[(u8, u64)]) -> Durable {
        let id = |(n, number)| OpId { site: site(n), number };
        let declares = Declaration {
            sites: Sites::new([site(1), site(2)]).unwrap(),
            config: Config::default(),
            base: Version::new(),
        };
        Durable::Record(Record::Operation(std::sync::Arc::new(Operation {
            id: id((origin, number)),
            parents: parents.iter().copied().map(id).collect(),
            at: Timestamp::at(Millis(1_000 * number)),
            resource: "web".parse().unwrap(),
            kind: "exec".parse().unwrap(),
            author: "ada".parse().unwrap(),
            action: Action::command("echo hi"),
            keep_going: false,
            reset: false,
            key: None,
            declares: parents.is_empty().then(|| Box::new(declares)),
        })))
    }

    fn reply(at: u8, number: u64, to: (u8, u64), outcome: Outcome) -> Durable {
        Durable::Record(Record::Reply(std::sync::Arc::new(Reply {
            id: OpId { site: site(at), number },
            resource: "web".parse().unwrap(),
            op: OpId { site: site(to.0), number: to.1 },
            attempt: 1,
            outcome,
            era: 1,
            took: Millis(1),
            output: "no\nroom\n".into(),
            made: None,
        })))
    }

    /// A site that writes one thing after the other, and hooks that follow.
    struct World {
        here: SiteId,
        written: Vec<Durable>,
        memory: Memory,
        reachable: BTreeSet<SiteId>,
        now: u64,
    }

    impl World {
        fn new(here: u8) -> Self {
            let (written, memory) = (Vec::new(), Memory::default());
            let reachable = BTreeSet::from([site(1), site(2)]);
            Self { here: site(here), written, memory, reachable, now: 0 }
        }

        /// Takes in a page, and looks at what is ripe then.
        fn take(&mut self, page: &Page) -> Vec<HookEvent> {
            let mut events = self.take_only(page);
            let look = self.memory.ripe(self.now);
            events.extend(self.take_only(&Page { look, ..Page::default() }));
            events
        }

        fn take_only(&mut self, page: &Page) -> Vec<HookEvent> {
            let replica =
                Replica::restore(self.here.clone(), Settings::default(), self.written.clone());
            let wanted = self.memory.wanted(page, self.now);
            let seen = look(&self.here, &replica, &wanted);
            let moment = Moment {
                here: &self.here,
                now: self.now,
                patience: 60,
                reachable: &self.reachable,
            };
            self.memory.take(page, &seen, &moment)
        }

        fn write(&mut self, durables: &[Durable]) -> Vec<HookEvent> {
            let first = self.written.len() as u64 + 1;
            self.written.extend(durables.iter().cloned());
            let written = (first..).zip(durables.iter().cloned()).collect();
            self.take(&Page { written, ..Page::default() })
        }
    }

    fn names(events: &[HookEvent]) -> Vec<String> {
        let name = |event: &HookEvent| {
            let summary = if event.summary { "summary " } else { "" };
            format!("{summary}{} at {}", event.event, event.site)
        };
        events.iter().map(name).collect()
    }

    #[test]
    fn an_operation_from_its_beginning_to_its_end() {
        let mut world = World::new(1);
        assert_eq!(names(&world.write(&[op(1, 1, &[])])), ["operation.accepted at site1"]);
        let ran = world.write(&[reply(1, 2, (1, 1), Outcome::Ok)]);
        assert_eq!(names(&ran), ["operation.ran at site1"]);
        let last = world.write(&[reply(2, 1, (1, 1), Outcome::Ok)]);
        assert_eq!(
            names(&last),
            [
                "operation.ran at site2",
                "operation.settled at site1",
                "summary operation.settled at site1",
                "resource.settled at site1",
            ]
        );
        assert_eq!(last[2].runs.len(), 2);
        assert_eq!(last[2].text, "web: operation site1:1 (exec by ada) went well at all sites");
        assert!(world.memory.open.is_empty() && world.memory.count == 0);
    }

    #[test]
    fn what_fails_at_one_site_is_told_with_what_to_do() {
        let mut world = World::new(1);
        world.write(&[op(1, 1, &[]), reply(1, 2, (1, 1), Outcome::Ok)]);
        let last = world.write(&[reply(2, 1, (1, 1), Outcome::Ko)]);
        assert_eq!(
            names(&last),
            [
                "operation.failed at site2",
                "summary operation.failed at site1",
                "resource.diverged at site1",
            ]
        );
        assert!(last[0].text.ends_with("failed at site2: no; room"), "{}", last[0].text);
        assert!(last[1].text.contains("has failed at 1 of 2 sites: site2"), "{}", last[1].text);
        assert!(last[2].next.as_ref().is_some_and(|next| next.contains("cheops diff web")));
        // It is told once, as long as it lasts.
        let more = world.write(&[op(1, 3, &[(1, 1)])]);
        assert_eq!(names(&more), ["operation.accepted at site1"]);
    }

    #[test]
    fn what_is_void_where_it_was_received_is_over() {
        let mut world = World::new(1);
        world.write(&[op(1, 1, &[]), reply(1, 2, (1, 1), Outcome::Ok)]);
        world.write(&[reply(2, 1, (1, 1), Outcome::Ok)]);
        let last = world.write(&[op(1, 3, &[(1, 1)]), reply(1, 4, (1, 3), Outcome::Ko)]);
        assert!(
            names(&last).contains(&"summary operation.failed at site1".to_owned()),
            "{:?}",
            names(&last)
        );
        assert!(world.memory.open.is_empty());
    }

    /// The same records in any portions, also after a crash that lost the last of what was remembered,
    /// lead to the same ids.
    #[test]
    fn a_crash_leads_to_doubles_with_the_same_ids_and_to_no_loss() {
        let all = [
            op(1, 1, &[]),
            reply(1, 2, (1, 1), Outcome::Ok),
            reply(2, 1, (1, 1), Outcome::Ok),
            op(1, 3, &[(1, 1)]),
            reply(1, 4, (1, 3), Outcome::Ok),
            reply(2, 2, (1, 3), Outcome::Ko),
        ];
        let ids = |events: Vec<HookEvent>| events.into_iter().map(|e| (e.id, e.event));
        let mut whole = World::new(1);
        let told: BTreeSet<_> =
            all.iter().flat_map(|one| ids(whole.write(std::slice::from_ref(one)))).collect();
        for crash in 0..all.len() {
            for saved in 0..=crash {
                let mut world = World::new(1);
                let mut heard: BTreeSet<(String, String)> = BTreeSet::new();
                let mut memory = Memory::default();
                for (n, one) in all[..crash].iter().enumerate() {
                    if n == saved {
                        memory = world.memory.clone();
                    }
                    heard.extend(ids(world.write(std::slice::from_ref(one))));
                }
                if saved == crash {
                    memory = world.memory.clone();
                }
                world.memory = memory;
                let rest = (1..).zip(world.written.clone()).skip(saved).collect();
                heard.extend(ids(world.take(&Page { written: rest, ..Page::default() })));
                for one in &all[crash..] {
                    heard.extend(ids(world.write(std::slice::from_ref(one))));
                }
                let missing: Vec<_> = told.difference(&heard).collect();
                // Each in the state that it is in when somebody looks: what was over by then is not said.
                let transient = |(_, name): &&(String, String)| name == "resource.settled";
                assert!(missing.iter().all(transient), "{crash} {saved}: {missing:?}");
                assert!(heard.is_subset(&told), "{crash} {saved}");
            }
        }
    }

    #[test]
    fn another_site_tells_for_all_if_the_origin_stays_away() {
        let end =
            [op(1, 1, &[]), reply(1, 2, (1, 1), Outcome::Ok), reply(2, 1, (1, 1), Outcome::Ok)];
        let summaries = |events: &[HookEvent]| {
            events.iter().filter(|event| event.summary).map(|e| e.id.clone()).collect::<Vec<_>>()
        };
        let mut origin = World::new(1);
        let own = summaries(&origin.write(&end));
        assert_eq!(own.len(), 1);
        for (stays_away, expected) in [(true, own.clone()), (false, Vec::new())] {
            let mut other = World::new(2);
            other.reachable.remove(&site(1));
            assert!(summaries(&other.write(&end)).is_empty());
            assert!(other.memory.ripe(59).is_empty());
            other.now = 60;
            assert_eq!(other.memory.ripe(60).len(), 1);
            if !stays_away {
                other.reachable.insert(site(1));
            }
            let told = other.take(&Page::default());
            assert_eq!(summaries(&told), expected);
            assert_eq!(names(&told).len(), expected.len(), "{:?}", names(&told));
            assert!(other.memory.open.is_empty());
        }
    }

    #[test]
    fn links_are_told_when_they_change() {
        let mut world = World::new(1);
        let mut link = |up| {
            world.now += 1;
            let links = vec![(site(2), up)];
            names(&world.take(&Page { links, ..Page::default() }))
        };
        assert!(link(true).is_empty());
        assert!(link(true).is_empty());
        assert_eq!(link(false), ["site.lost at site1"]);
        assert_eq!(link(true), ["site.returned at site1"]);
    }

    #[test]
    fn a_deleted_resource_leaves_nothing_behind() {
        let mut world = World::new(1);
        world.write(&[op(1, 1, &[]), op(1, 2, &[(1, 1)])]);
        assert_eq!(world.memory.count, 2);
        let version = Version::from([(site(1), 4), (site(2), 2)]);
        let by = OpId { site: site(1), number: 2 };
        let at = Timestamp::at(Millis(9_000));
        let gone = Durable::Forgotten { resource: "web".parse().unwrap(), version, by, at };
        assert_eq!(
            names(&world.write(&[gone])),
            [
                "operation.settled at site1",
                "summary operation.settled at site1",
                "resource.deleted at site1",
            ]
        );
        assert_eq!((world.memory.count, world.memory.open.len()), (0, 0));
    }
}
