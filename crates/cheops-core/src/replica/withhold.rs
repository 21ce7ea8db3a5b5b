//! Resources of which something is lost at this site.
//!
//! What the site wrote about such a resource is known up to some place. What it had told others
//! comes back from them, its own records included; what nobody else heard of is gone. In both cases
//! nobody can say what was run here, so the state is unknown until it is made anew. Where not even the
//! resources are known, the same holds for each that existed by then and is heard of again.
//!
//! What must stay true:
//! - no number up to the *floor* is given to a record again, for the life of the resource and after;
//! - nothing new is recorded here before each other site of the resource has shown what it has, and
//!   that is known here: later numbers would hide what is left of this site's stream, and what was run
//!   here before would not be told from what was not. Each site shows it twice, the second time after
//!   all have shown it once: a record may move from one that was not heard yet to one that was, and
//!   then be lost where it came from;
//! - a record of this site that comes to light later all the same is asked for and taken in (see `gap`);
//! - nothing is run but what makes the state anew, and only after somebody has reset the resource.
//!   When that has succeeded here, and not before, nothing is withheld any more.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};
use core::{fmt, ops::Bound};

use super::{
    Durable, Message, Outbox, Record, Refusal, Replica, Resource, Stretch, Submission, Version,
    resource::LAST_ATTEMPT, run::Work,
};
use crate::{
    id::{ResourceId, SiteId, Sites},
    log::Ix,
    time::{Millis, Now},
};

/// What is known of a loss.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Loss {
    /// The sites that have shown what they have in this round, and that lack nothing of it here.
    heard: BTreeSet<SiteId>,
    /// All have shown it once: this is the second round.
    again: bool,
    /// All have: what still lacks is gone for good.
    whole: bool,
    /// The sites that a request has named, if the resource is not here.
    asked: Option<Sites>,
}

/// Something is lost, and nobody knows of which resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Gap {
    /// When that was found, on the wall clock.
    until: Millis,
    /// How many records it may have been.
    records: u64,
}

/// By how much the clock of a site that created a resource may be ahead of ours. Clocks that differ
/// by more are shown as a problem of their own.
const SKEW: Millis = Millis(60_000);

/// What may be run of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// Anything.
    Open,
    /// What makes the state anew, after a reset.
    Anew,
    /// Nothing.
    Shut,
}

/// Why a request is refused where something is lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lost {
    /// The resource.
    pub resource: ResourceId,
    /// The sites that must be heard of before its state can be declared here; nothing if it can.
    pub unheard: Vec<SiteId>,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = &self.resource;
        write!(
            f,
            "something of `{resource}` is lost at this site, so that nobody knows its state here; "
        )?;
        if self.unheard.is_empty() {
            return f.write_str("declare it with an operation and `force`");
        }
        f.write_str("before it can be declared, this site must hear what others have of it:")?;
        for (n, site) in self.unheard.iter().enumerate() {
            write!(f, "{} {site}", if n == 0 { "" } else { "," })?;
        }
        f.write_str("; ask one of those, or again when they are linked")
    }
}

impl Resource {
    /// Takes note that something of it is lost here.
    pub(super) fn lose(&mut self, floor: u64) {
        self.work = Work::Stuck;
        self.journal.doubt();
        self.floor = Some(floor);
    }

    /// The last attempt at an operation that there may have been here, and that was lost: as many as
    /// this site had used numbers, and once more. An operation of another site may have been run here
    /// before the loss however late it comes back; only one that this site has received since can't.
    pub(super) fn spent(&self, op: Ix, here: &SiteId) -> u32 {
        let id = &self.log.op(op).id;
        let Some(floor) = self.floor.filter(|&floor| id.site != *here || id.number <= floor) else {
            return 0;
        };
        let spent = u32::try_from(floor.saturating_add(1)).unwrap_or(u32::MAX);
        spent.min(LAST_ATTEMPT >> 1)
    }

    /// Whether the block has been reset, and the state follows from that.
    pub(super) fn is_reset(&self) -> bool {
        let from = self.resolution.last_replacing();
        from.is_some_and(|place| self.block().take(place + 1).any(|op| op.reset))
    }
}

impl Replica {
    /// Takes note that something of a resource is lost here: nothing of it is run until its state has
    /// been made anew, after a reset, and no number up to `floor` is used again.
    pub fn withhold(&mut self, id: &ResourceId, floor: u64) {
        let known = self.floors.entry(id.clone()).or_default();
        *known = floor.max(*known);
        let floor = *known;
        self.withheld.insert(id.clone(), Loss::default());
        if let Some(resource) = self.resources.get_mut(id) {
            resource.lose(floor);
        }
        self.made_whole(id);
    }

    /// Takes note that something was lost here by a time, of resources that nobody knows: so many
    /// records, none of which is left. A resource that was created before, and is heard of again, may
    /// have been here: it is withheld from its first operation on.
    pub fn lose_unknown(&mut self, until: Millis, records: u64) {
        self.gap = Some(Gap { until, records });
    }

    /// Withholds a resource that is about to begin here with a record of another site, if it may have
    /// been here before.
    pub(super) fn suspect(&mut self, record: &Record, out: &mut Outbox) {
        let (Some(gap), Record::Operation(op)) = (self.gap, record) else { return };
        let id = &op.resource;
        if !self.resources.contains_key(id)
            && !self.withheld.contains_key(id)
            && op.at.wall() <= gap.until.plus(SKEW)
        {
            self.withhold(id, gap.records);
            self.keep_withheld(id, out);
        }
    }

    /// The resources of which something is lost here. Not all of them need be there.
    pub fn withheld(&self) -> impl Iterator<Item = &ResourceId> {
        self.withheld.keys()
    }

    /// Those of them whose ids lie in a stretch.
    fn withheld_in(&self, stretch: &Stretch) -> impl Iterator<Item = &ResourceId> {
        let from = stretch.from.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let to = stretch.to.clone();
        self.withheld
            .range::<ResourceId, _>((from, Bound::Unbounded))
            .map(|(id, _)| id)
            .take_while(move |id| to.as_ref().is_none_or(|to| *id < to))
    }

    /// Whether something of a resource is lost here.
    pub fn is_withheld(&self, id: &ResourceId) -> bool {
        self.withheld.contains_key(id)
    }

    /// The sites of a withheld resource that this site has yet to hear of, what they have of it.
    pub fn unheard(&self, id: &ResourceId) -> Vec<SiteId> {
        self.resources.get(id).map(|r| self.unheard_of(id, r.sites())).unwrap_or_default()
    }

    fn unheard_of(&self, id: &ResourceId, sites: &Sites) -> Vec<SiteId> {
        let Some(loss) = self.withheld.get(id).filter(|loss| !loss.whole) else {
            return Vec::new();
        };
        let unheard = |site: &&SiteId| {
            **site != self.here && !loss.heard.contains(*site) && !self.removed.contains(*site)
        };
        sites.iter().filter(unheard).cloned().collect()
    }

    /// The last number of this site that may have been used in a time of which something is lost.
    /// Where nobody knows of which resources that was, it may have been of any.
    pub(super) fn floor(&self, id: &ResourceId) -> u64 {
        let unknown = || self.gap.map(|gap| gap.records);
        self.floors.get(id).copied().or_else(unknown).unwrap_or(0)
    }

    /// The number of this site's next record of a resource.
    pub(super) fn next_number(&self, id: &ResourceId) -> u64 {
        self.last_number(id).max(self.floor(id)) + 1
    }

    /// The number of this site's last record of a resource; 0 if there is none.
    pub(super) fn last_number(&self, id: &ResourceId) -> u64 {
        let high = self.resources.get(id).map(|resource| resource.streams().high(&self.here));
        let buried = || self.tomb(id).and_then(|tomb| tomb.version.get(&self.here).copied());
        high.or_else(buried).unwrap_or(0)
    }

    pub(super) fn gate(&self, id: &ResourceId) -> Gate {
        match self.withheld.get(id) {
            None => Gate::Open,
            Some(loss) if loss.whole => Gate::Anew,
            Some(_) => Gate::Shut,
        }
    }

    /// Why a request is refused because of a loss, if so.
    pub(super) fn refused(&self, submission: &Submission) -> Option<Refusal> {
        let id = &submission.resource;
        self.withheld.get(id)?;
        let known = self.resource(id).map(Resource::sites).or(submission.sites.as_ref());
        let known = known.filter(|_| submission.force);
        let unheard = known.map(|sites| self.unheard_of(id, sites)).unwrap_or_default();
        let refused = !submission.force || !unheard.is_empty();
        refused.then(|| Refusal::Withheld(Lost { resource: id.clone(), unheard }))
    }

    /// Takes note of the sites that a resource is to have which is not here: only a request says that, and so
    /// whether all of them were heard.
    pub(super) fn hear_for(&mut self, submission: &Submission) {
        let Submission { resource: id, sites: Some(sites), force: true, .. } = submission else {
            return;
        };
        if self.resources.contains_key(id) {
            return;
        }
        if let Some(loss) =
            self.withheld.get_mut(id).filter(|loss| loss.asked.as_ref() != Some(sites))
        {
            (loss.asked, loss.again) = (Some(sites.clone()), false);
            self.made_whole(id);
        }
    }

    /// Asks the sites that a request has to wait for what they have.
    pub(super) fn ask_unheard(&self, refusal: &Refusal, out: &mut Outbox) {
        let Refusal::Withheld(Lost { resource, unheard }) = refusal else { return };
        for site in unheard.iter().filter(|site| self.up.contains(site)) {
            self.ask_what_it_has(site, resource, out);
        }
    }

    /// Asks a site that has just told something of a withheld resource whether that was all.
    pub(super) fn ask_if_all(&self, from: &SiteId, id: &ResourceId, out: &mut Outbox) {
        if self.unheard(id).contains(from) {
            self.ask_what_it_has(from, id, out);
        }
    }

    /// Asks a site that knows the same of a stretch as this one, as far as digests tell, to show it.
    pub(super) fn ask_within(&self, from: &SiteId, stretch: &Stretch, out: &mut Outbox) {
        if let Some(id) = self.withheld_in(stretch).find(|id| self.unheard(id).contains(from)) {
            let shorter = Stretch { from: Some(id.clone()), to: stretch.to.clone() };
            self.ask_to_show(from, shorter, out);
        }
    }

    fn ask_what_it_has(&self, site: &SiteId, id: &ResourceId, out: &mut Outbox) {
        self.ask_to_show(site, Stretch::of(id), out);
    }

    fn ask_to_show(&self, site: &SiteId, stretch: Stretch, out: &mut Outbox) {
        // Who has the same would not answer.
        let differs = self.digest(site, &stretch).wrapping_add(1);
        out.send(site, Message::Compare(vec![(stretch, differs)]));
    }

    /// Takes note that something new is recorded here, so that nothing that lacks can come back.
    pub(super) fn goes_on(&mut self, id: &ResourceId) {
        if let Some(loss) = self.withheld.get_mut(id).filter(|loss| !loss.whole) {
            loss.whole = true;
        }
    }

    /// Whether a loss has just become one of which all sites were heard, in both rounds.
    pub(super) fn made_whole(&mut self, id: &ResourceId) -> bool {
        let resource = self.resources.get(id);
        let Some(loss) = self.withheld.get_mut(id).filter(|loss| !loss.whole) else { return false };
        let Some(sites) = resource.map(|found| found.sites()).or(loss.asked.as_ref()) else {
            return false;
        };
        let heard = |site: &SiteId| {
            *site == self.here || loss.heard.contains(site) || self.removed.contains(site)
        };
        if !sites.iter().all(heard) {
            return false;
        }
        // With one other site, there is no third that a record could have moved to.
        if !loss.again && sites.len() > 2 {
            loss.again = true;
            loss.heard.clear();
            return false;
        }
        // Another request may name other sites, as long as there is no resource.
        loss.whole = resource.is_some();
        loss.whole
    }

    /// Takes note that a site has nothing that is not known here, of the resources of a stretch.
    /// `theirs`: its versions; none where it has nothing. Equal digests would not do: they leave out
    /// what waits at the other site, which may yet be taken in there.
    pub(super) fn heard(
        &mut self,
        from: &SiteId,
        stretch: &Stretch,
        theirs: &BTreeMap<ResourceId, Version>,
        now: Now,
        out: &mut Outbox,
    ) {
        let lacks_nothing = |id: &&ResourceId| {
            let known = self.version(id);
            let has = |(site, number): (&SiteId, &u64)| known.get(site) >= Some(number);
            theirs.get(*id).is_none_or(|version| version.iter().all(has))
        };
        let heard: Vec<ResourceId> =
            self.withheld_in(stretch).filter(lacks_nothing).cloned().collect();
        for id in heard {
            let Some(loss) = self.withheld.get_mut(&id) else { continue };
            let first_round = !loss.again;
            loss.heard.insert(from.clone());
            if self.made_whole(&id) {
                self.proceed(&id, now, out);
            } else if first_round {
                self.ask_once_more(&id, out);
            }
        }
    }

    /// Asks all sites of a loss to show what they have a second time, if all have shown it once.
    fn ask_once_more(&self, id: &ResourceId, out: &mut Outbox) {
        let Some(loss) = self.withheld.get(id).filter(|loss| loss.again) else { return };
        let known = self.resources.get(id).map(|resource| resource.sites());
        let Some(sites) = known.or(loss.asked.as_ref()) else { return };
        for site in self.unheard_of(id, sites).iter().filter(|site| self.up.contains(site)) {
            self.ask_what_it_has(site, id, out);
        }
    }

    /// Withholds nothing any more once the state was made anew.
    pub(super) fn release(&mut self, id: &ResourceId) {
        if self.withheld.contains_key(id)
            && self.resources.get(id).is_some_and(|resource| resource.journal.is_sure())
        {
            self.withheld.remove(id);
        }
    }

    /// Writes down a loss.
    pub(super) fn keep_withheld(&self, id: &ResourceId, out: &mut Outbox) {
        if self.withheld.contains_key(id) {
            out.persist(Durable::Withheld { resource: id.clone(), floor: self.floor(id) });
        }
    }
}
