//! How two sites come to know the same.
//!
//! A site pushes each new record of its own to the sites of the resource that it can reach. That is
//! all that happens while links hold. What got lost is found by comparing: digests of all that two
//! sites share, then of shorter and shorter stretches of resource ids where they differ, then the
//! versions of a few resources, then the records that are missing. Two sites that agree exchange
//! one digest; two that differ in one resource of n, a number of digests that grows with log n.
//!
//! What was forgotten is not there to be sent. A site that shows a copy of it is told so instead.
//!
//! What must stay true: nothing about a resource goes to, or is taken from, a site that is not one
//! of its own. One that sends a record which contradicts another is told the number of that.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};
use core::ops::Bound;

use super::{
    Alarm, Event, Message, Outbox, Record, Replica, Resource, Sent, Stretch, Version,
    forget::{Tomb, covers, join},
    resource::Fit,
};
use crate::{
    id::{OpId, ResourceId, SiteId, Sites},
    operation::Declaration,
    time::{Millis, Now},
};

/// How many resources are listed instead of being compared by digest.
const FEW: usize = 16;
/// Into how many stretches one is split where it differs.
const SPLIT: usize = 16;

impl Replica {
    /// Sends a new record of this site's own to all that may have it and can be reached.
    /// `after`: the number of the one before it.
    pub(super) fn publish(&self, record: &Record, after: u64, out: &mut Outbox) {
        let id = record.resource();
        let Some(resource) = self.resources.get(id).filter(|r| r.fenced.is_empty()) else { return };
        for site in resource.sites().iter().filter(|site| self.up.contains(site)) {
            let records = vec![Sent { after, record: record.clone(), seal: None }];
            out.send(site, Message::Records { resource: id.clone(), records, more: false });
        }
    }

    /// Asks a site whether it knows the same as we do, now and again after a while.
    pub(super) fn compare_with(&mut self, site: &SiteId, now: Now, out: &mut Outbox) {
        let Some(&digest) = self.shared.get(site).filter(|_| self.up.contains(site)) else {
            return;
        };
        out.send(site, Message::Compare(vec![(Stretch::default(), digest)]));
        self.arm(now, self.settings.compare_every, Alarm::Compare(site.clone()));
    }

    pub(super) fn received(&mut self, from: &SiteId, message: Message, now: Now, out: &mut Outbox) {
        match message {
            Message::Compare(stretches) => {
                for (stretch, digest) in stretches {
                    self.compare(from, stretch, digest, out);
                }
            }
            Message::Have(stretch, versions, digest) => {
                let theirs: BTreeMap<ResourceId, Version> = versions.into_iter().collect();
                if self.have(from, &stretch, &theirs, digest, out) {
                    self.heard(from, &stretch, &theirs, now, out);
                }
            }
            Message::Want(versions) => {
                for (id, version) in versions {
                    self.send_missing(from, &id, &version, out);
                    self.tell_forgotten(from, &id, out);
                }
            }
            Message::Records { resource, records, more } => {
                let answered = self.answered(from, &resource, &records).filter(|_| more);
                let changed = self.take_records(from, &resource, records, now, out);
                match answered {
                    Some(version) => out.send(from, Message::Want(vec![(resource, version)])),
                    None if changed && more => self.want(from, &resource, out),
                    None if changed => self.ask_if_all(from, &resource, out),
                    // Nothing new is no reason to ask for more: the same would come again.
                    None => {}
                }
            }
            Message::Forgotten(versions) => {
                for (id, version) in versions {
                    self.heard_forgotten(from, &id, &version, now, out);
                }
            }
            Message::Contradicted { resource, number } => {
                self.heard_contradiction(from, &resource, &number, out);
            }
        }
    }

    /// The resources of a stretch that are shared with a site.
    pub(super) fn shared_with<'a>(
        &'a self,
        site: &'a SiteId,
        stretch: &'a Stretch,
    ) -> impl Iterator<Item = &'a Resource> {
        let from = stretch.from.as_ref().map_or(Bound::Unbounded, Bound::Included);
        self.resources
            .range::<ResourceId, _>((from, Bound::Unbounded))
            .take_while(|(id, _)| stretch.to.as_ref().is_none_or(|to| *id < to))
            .map(|(_, resource)| &**resource)
            .filter(move |resource| resource.sites().contains(site))
    }

    /// The digest of what is known here of a stretch that is shared with a site.
    pub(super) fn digest(&self, site: &SiteId, stretch: &Stretch) -> u64 {
        if *stretch == Stretch::default() {
            return self.shared_digest(site);
        }
        self.shared_with(site, stretch).fold(0_u64, |sum, r| sum.wrapping_add(r.digest()))
    }

    fn compare(&mut self, from: &SiteId, stretch: Stretch, theirs: u64, out: &mut Outbox) {
        let ours = self.digest(from, &stretch);
        if ours == theirs {
            return self.ask_within(from, &stretch, out);
        }
        let shared: Vec<&Resource> = self.shared_with(from, &stretch).collect();
        if shared.len() <= FEW {
            let versions: Vec<(ResourceId, Version)> =
                shared.iter().map(|r| (r.id().clone(), r.version())).collect();
            // What waits is not had. It must not come in later, behind the back of a site that has
            // lost it and was told that it is not here; one that still has it sends it again.
            for (id, _) in &versions {
                if let Some(resource) = self.resources.get_mut(id) {
                    resource.waiting.give_up(from);
                }
            }
            out.send(from, Message::Have(stretch, versions, ours));
        } else {
            out.send(from, Message::Compare(split(&stretch, &shared, SPLIT)));
        }
    }

    /// Hears what a site has of a stretch, and sends and asks for what differs. Whether that shows all
    /// that the site has.
    fn have(
        &mut self,
        from: &SiteId,
        stretch: &Stretch,
        theirs: &BTreeMap<ResourceId, Version>,
        digest: u64,
        out: &mut Outbox,
    ) -> bool {
        let nothing = Version::new();
        let mut wanted = Vec::new();
        let mut same = true;
        for resource in self.shared_with(from, stretch) {
            let version = theirs.get(resource.id()).unwrap_or(&nothing);
            // What contradicts itself differs for good, and must not hide what else differs.
            same &= resource.version() == *version || resource.is_contradicted();
            self.send_missing(from, resource.id(), version, out);
            if !resource.streams().covers(version) {
                wanted.push((resource.id().clone(), resource.wanted()));
            }
        }
        // What we don't know, or don't know to be theirs: two that were created apart, and met at a
        // site that knows of both.
        for (id, version) in theirs {
            let ours = self.resources.get(id);
            if ours.is_some_and(|resource| resource.sites().contains(from)) {
                continue;
            }
            // Their digest counts what ours does not, so that the two say nothing about the rest.
            same = false;
            self.tell_forgotten(from, id, out);
            let forgotten = |tomb: &Tomb| {
                version
                    .iter()
                    .all(|(site, &n)| tomb.version.get(site).is_some_and(|&high| n <= high))
            };
            if !self.tomb(id).is_some_and(forgotten) {
                wanted.push((id.clone(), self.version(id)));
            }
        }
        if !wanted.is_empty() {
            out.send(from, Message::Want(wanted));
        }
        !same || digest == self.digest(from, stretch) || !self.ask_for_all(from, stretch, out)
    }

    /// Compares the resources of a stretch one by one with those of another site.
    pub(super) fn compare_each(&self, from: &SiteId, stretch: &Stretch, out: &mut Outbox) {
        let shared: Vec<&Resource> = self.shared_with(from, stretch).collect();
        out.send(from, Message::Compare(split(stretch, &shared, shared.len())));
    }

    /// Asks a site for what we lack of a resource.
    fn want(&self, from: &SiteId, id: &ResourceId, out: &mut Outbox) {
        let wanted = self.resources.get(id).map(|resource| resource.wanted());
        let wanted = wanted.unwrap_or_else(|| self.version(id));
        out.send(from, Message::Want(vec![(id.clone(), wanted)]));
    }

    /// How far a resource is known here, or was when it was forgotten.
    pub(super) fn version(&self, id: &ResourceId) -> Version {
        let forgotten = || self.tomb(id).map(|tomb| tomb.version.clone());
        self.resource(id).map(Resource::version).or_else(forgotten).unwrap_or_default()
    }

    /// Sends a site what it lacks of a resource, up to a limit.
    fn send_missing(&self, to: &SiteId, id: &ResourceId, version: &Version, out: &mut Outbox) {
        let may = |r: &&Resource| r.sites().contains(to) && r.fenced.is_empty();
        let Some(resource) = self.resource(id).filter(may) else { return };
        // What is forgotten comes before all that is sent, and takes the place of what it stood for.
        let mut known = version.clone();
        if let Some(forgotten) = resource.forgotten_beyond(version) {
            out.send(to, Message::Forgotten(vec![(id.clone(), forgotten.clone())]));
            join(&mut known, forgotten);
        }
        let (mut records, mut weight, mut sent) = (Vec::new(), 0, 0);
        let mut more = false;
        let mut beyond = resource.streams().beyond(version);
        if version.is_empty() {
            // A site that knows nothing takes nothing before it reads that the resource is its own. What comes
            // after something else of its stream stays there.
            let mut later = BTreeSet::new();
            let (first, rest): (Vec<_>, Vec<_>) =
                beyond.into_iter().partition(|&(site, _, item)| {
                    let invites = !later.contains(site) && resource.invites(to, item);
                    if !invites {
                        later.insert(site);
                    }
                    invites
                });
            beyond = [first, rest].concat();
        }
        for (site, number, item) in beyond {
            let Some(record) = resource.record(site, number, item) else { continue };
            if sent + weight >= self.settings.burst_bytes {
                more = true;
                break;
            }
            let after = known.insert(site.clone(), number).unwrap_or(0);
            weight += record.weight();
            records.push(Sent { after, record, seal: None });
            if weight >= self.settings.message_bytes {
                sent += weight;
                weight = 0;
                let records = core::mem::take(&mut records);
                out.send(to, Message::Records { resource: id.clone(), records, more: false });
            }
        }
        if more || !records.is_empty() {
            out.send(to, Message::Records { resource: id.clone(), records, more });
        }
        resource.tell_contradictions(to, out);
    }

    /// Asks for a resource that is not known yet, or again for what its records wait for, less and
    /// less often.
    pub(super) fn ask(&mut self, id: &ResourceId, site: &SiteId, now: Now, out: &mut Outbox) {
        if !self.up.contains(site) {
            return;
        }
        let Some(resource) = self.resources.get_mut(id) else { return self.want(site, id, out) };
        if let Some(times) = resource.waiting.ask() {
            self.want(site, id, out);
            let span = Millis(self.settings.ask_after.0.saturating_mul(1 << times));
            self.arm(now, span, Alarm::Ask(id.clone(), site.clone()));
        }
    }

    /// Takes in what is new among records. Whether anything was.
    fn take_records(
        &mut self,
        from: &SiteId,
        id: &ResourceId,
        records: Vec<Sent>,
        now: Now,
        out: &mut Outbox,
    ) -> bool {
        if let Some(why) = self.stranger(from, id, &records) {
            out.tell(Event::Refused { from: from.clone(), resource: id.clone(), why });
            return false;
        }
        let changed = self.take_each(from, id, records, now, out);
        self.tell_forgotten(from, id, out);
        if changed {
            self.proceed(id, now, out);
        }
        changed
    }

    /// Takes in records, each if it fits. Whether anything was new.
    pub(super) fn take_each(
        &mut self,
        from: &SiteId,
        id: &ResourceId,
        records: Vec<Sent>,
        now: Now,
        out: &mut Outbox,
    ) -> bool {
        let (mut changed, mut raised) = (false, false);
        let mut todo: Vec<Sent> = records;
        todo.reverse();
        while let Some(sent) = todo.pop() {
            let fit = match (self.resources.get(id), self.declared(&sent)) {
                (Some(resource), _) => resource.fit(&sent),
                (None, Some(declared)) => self.begun(id, declared).fit(&sent),
                (None, None) if self.tomb(id).is_some_and(|tomb| is_over(tomb, &sent)) => {
                    raised |= self.pass_over(&sent);
                    continue;
                }
                (None, None) if self.tomb(id).is_some() => {
                    // It is about a new life, whose first operation has yet to come. What waited
                    // here, before the old one was forgotten, came from the site that recorded it.
                    let origin = &sent.record.id().site;
                    let whom = if *from == self.here { origin } else { from };
                    let alarm = Alarm::Ask(id.clone(), whom.clone());
                    // Once is enough for a while: the same may come again as the answer.
                    if !self.alarms.is_set(&alarm) {
                        self.want(whom, id, out);
                        self.arm(now, self.settings.ask_after, alarm);
                    }
                    break;
                }
                (None, None) => {
                    // It came before the operation that creates the resource. Asked for at once,
                    // each of the messages that follow would bring all of them again.
                    let alarm = Alarm::Ask(id.clone(), from.clone());
                    self.arm(now, self.settings.ask_after, alarm);
                    break;
                }
            };
            match fit {
                Fit::Known => {}
                Fit::Now if self.counts_too_many(&sent) => {
                    let why = "it counts records of this site that were never made";
                    out.tell(Event::Refused { from: from.clone(), resource: id.clone(), why });
                }
                Fit::Now => {
                    // The line of the old life is written down before the new one begins.
                    if core::mem::take(&mut raised) {
                        self.keep_tomb(id, out);
                    }
                    self.suspect(&sent.record, out);
                    self.admit(id, &sent.record, sent.seal.as_ref(), now, out);
                    self.tell_trimmed(&sent.record, out);
                    todo.extend(self.woken(id, &sent));
                    changed = true;
                }
                Fit::Blocked(missing) => {
                    if let Some(resource) = self.resources.get_mut(id) {
                        resource.waiting.keep(sent, missing, self.settings.most_waiting);
                    }
                    let alarm = Alarm::Ask(id.clone(), from.clone());
                    self.arm(now, self.settings.ask_after, alarm);
                }
                Fit::Wrong(why) => {
                    out.tell(Event::Refused { from: from.clone(), resource: id.clone(), why });
                }
                Fit::Contradicts { number, why } => {
                    self.contradict(id, &number, out);
                    self.tell_other_site(from, id, out);
                    out.tell(Event::Refused { from: from.clone(), resource: id.clone(), why });
                }
            }
        }
        if raised {
            self.keep_tomb(id, out);
        }
        if let Some(resource) = self.resources.get_mut(id) {
            resource.order_streams();
        }
        changed
    }

    /// Whether an operation declares that this site has made more records than there can be.
    fn counts_too_many(&self, sent: &Sent) -> bool {
        let Record::Operation(op) = &sent.record else { return false };
        let declared = op.declares.as_ref();
        declared.is_some_and(|declared| self.overstates(&op.resource, &declared.base))
    }

    fn woken(&mut self, id: &ResourceId, sent: &Sent) -> Vec<Sent> {
        let resource = self.resources.get_mut(id);
        resource.map(|resource| resource.waiting.wake(sent.record.id())).unwrap_or_default()
    }

    /// Why records of a resource can't be taken from a site, if so. The sites are those that we know
    /// of, and those of a declaration in the message that has one of them in common.
    fn stranger(&self, from: &SiteId, id: &ResourceId, records: &[Sent]) -> Option<&'static str> {
        if records.iter().any(|sent| sent.record.resource() != id) {
            return Some("a record of another resource");
        }
        let mut declared: Vec<&Sites> =
            records.iter().filter_map(|sent| self.declared(sent)).map(|d| &d.sites).collect();
        if declared.is_empty() && self.tomb(id).is_some_and(|t| t.version.contains_key(from)) {
            return None;
        }
        let mut sites = self.resources.get(id).map(|r| r.sites().clone()).or_else(|| {
            let with_us = declared.iter().find(|sites| sites.contains(&self.here));
            with_us.or(declared.first()).map(|&sites| sites.clone())
        })?;
        while let Some(at) = declared.iter().position(|more| more.iter().any(|s| sites.contains(s)))
        {
            sites = sites.union(declared.swap_remove(at));
        }
        if !sites.contains(&self.here) {
            Some("this is not one of the resource's sites")
        } else if !sites.contains(from) {
            Some("it is not one of the resource's sites")
        } else {
            None
        }
    }

    /// What a record declares, if it is the first operation of a resource, or of a new life of one.
    fn declared<'s>(&self, sent: &'s Sent) -> Option<&'s Declaration> {
        let Record::Operation(op) = &sent.record else { return None };
        let declared = op.declares.as_deref()?;
        let tomb = self.tombs.get(&op.resource).map(|tomb| &tomb.version);
        let is_over = |id: &OpId| tomb.is_some_and(|version| covers(version, id));
        let begins = |parent: &OpId| is_over(parent) || covers(&declared.base, parent);
        (!is_over(&op.id) && op.parents.iter().all(begins)).then_some(declared)
    }
}

/// Whether a record says nothing that counts after a resource was forgotten.
fn is_over(tomb: &Tomb, sent: &Sent) -> bool {
    covers(&tomb.version, sent.record.about())
}

/// A stretch as shorter ones that cover it, with the digests of what we have in each.
fn split(stretch: &Stretch, shared: &[&Resource], parts: usize) -> Vec<(Stretch, u64)> {
    let size = shared.len().div_ceil(parts.max(1)).max(1);
    let chunks: Vec<&[&Resource]> = shared.chunks(size).collect();
    let mut from = stretch.from.clone();
    let mut stretches = Vec::with_capacity(chunks.len());
    for (n, chunk) in chunks.iter().enumerate() {
        let next = chunks.get(n + 1).map(|next| next[0].id().clone());
        let to = next.clone().or_else(|| stretch.to.clone());
        let digest = chunk.iter().fold(0_u64, |sum, r| sum.wrapping_add(r.digest()));
        stretches.push((Stretch { from, to }, digest));
        from = next;
    }
    stretches
}
