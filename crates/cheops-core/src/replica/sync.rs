//! How two sites come to know the same.
//!
//! A site pushes each new record of its own to the sites of the resource that it can reach. That is
//! all that happens while links hold. What got lost is found by comparing: digests of all that two
//! sites share, then of shorter and shorter stretches of resource ids where they differ, then the
//! versions of a few resources, then the records that are missing. Two sites that agree exchange
//! one digest; two that differ in one resource of n, a number of digests that grows with log n.
//!
//! What must stay true: nothing about a resource goes to, or is taken from, a site that is not one
//! of its own.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};
use core::ops::Bound;

use super::{
    Alarm, Event, Message, Outbox, Record, Replica, Resource, Sent, Stretch, Version, resource::Fit,
};
use crate::{
    id::{ResourceId, SiteId, Sites},
    time::Now,
};

/// How many resources are listed instead of being compared by digest.
const FEW: usize = 16;
/// Into how many stretches one is split where it differs.
const SPLIT: usize = 16;

impl Replica {
    /// Sends a new record of this site's own to all that may have it and can be reached.
    pub(super) fn publish(&self, record: &Record, out: &mut Outbox) {
        let id = record.resource();
        let Some(resource) = self.resources.get(id) else { return };
        let after = record.id().number - 1;
        for site in resource.sites().iter().filter(|site| self.up.contains(site)) {
            let records = vec![Sent { after, record: record.clone() }];
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
            Message::Have(stretch, versions) => self.have(from, &stretch, versions, out),
            Message::Want(versions) => {
                for (id, version) in versions {
                    self.send_missing(from, &id, &version, out);
                }
            }
            Message::Records { resource, records, more } => {
                // Nothing new is no reason to ask for more: the same would come again.
                if self.take_records(from, &resource, records, now, out) && more {
                    self.want(from, &resource, out);
                }
            }
        }
    }

    /// The resources of a stretch that are shared with a site.
    fn shared_with<'a>(
        &'a self,
        site: &'a SiteId,
        stretch: &'a Stretch,
    ) -> impl Iterator<Item = &'a Resource> {
        let from = stretch.from.as_ref().map_or(Bound::Unbounded, Bound::Included);
        self.resources
            .range::<ResourceId, _>((from, Bound::Unbounded))
            .take_while(|(id, _)| stretch.to.as_ref().is_none_or(|to| *id < to))
            .map(|(_, resource)| resource)
            .filter(move |resource| resource.sites().contains(site))
    }

    fn compare(&self, from: &SiteId, stretch: Stretch, theirs: u64, out: &mut Outbox) {
        let whole = stretch == Stretch::default();
        let digest = if whole {
            self.shared.get(from).copied().unwrap_or(0)
        } else {
            self.shared_with(from, &stretch).fold(0_u64, |sum, r| sum.wrapping_add(r.digest()))
        };
        if digest == theirs {
            return;
        }
        let shared: Vec<&Resource> = self.shared_with(from, &stretch).collect();
        if shared.len() <= FEW {
            let versions = shared.iter().map(|r| (r.id().clone(), r.version())).collect();
            out.send(from, Message::Have(stretch, versions));
        } else {
            out.send(from, Message::Compare(split(&stretch, &shared)));
        }
    }

    fn have(
        &self,
        from: &SiteId,
        stretch: &Stretch,
        versions: Vec<(ResourceId, Version)>,
        out: &mut Outbox,
    ) {
        let theirs: BTreeMap<ResourceId, Version> = versions.into_iter().collect();
        let nothing = Version::new();
        let mut wanted = Vec::new();
        for resource in self.shared_with(from, stretch) {
            let version = theirs.get(resource.id()).unwrap_or(&nothing);
            self.send_missing(from, resource.id(), version, out);
            if !resource.streams().covers(version) {
                wanted.push((resource.id().clone(), resource.version()));
            }
        }
        let unknown = theirs.keys().filter(|id| !self.resources.contains_key(id));
        wanted.extend(unknown.map(|id| (id.clone(), Version::new())));
        if !wanted.is_empty() {
            out.send(from, Message::Want(wanted));
        }
    }

    /// Asks a site for what we lack of a resource.
    fn want(&self, from: &SiteId, id: &ResourceId, out: &mut Outbox) {
        let version = self.resources.get(id).map(Resource::version).unwrap_or_default();
        out.send(from, Message::Want(vec![(id.clone(), version)]));
    }

    /// Sends a site what it lacks of a resource, up to a limit.
    fn send_missing(&self, to: &SiteId, id: &ResourceId, version: &Version, out: &mut Outbox) {
        let Some(resource) = self.resources.get(id).filter(|r| r.sites().contains(to)) else {
            return;
        };
        let mut known = version.clone();
        let (mut records, mut weight, mut sent) = (Vec::new(), 0, 0);
        let mut more = false;
        let mut beyond = resource.streams().beyond(version);
        if version.is_empty() {
            // A site that knows nothing takes nothing before it reads that the resource is its own.
            beyond.sort_by_key(|&(_, _, item)| !resource.invites(to, item));
        }
        for (site, number, item) in beyond {
            let Some(record) = resource.record(site, number, item) else { continue };
            if sent + weight >= self.settings.burst_bytes {
                more = true;
                break;
            }
            let after = known.insert(site.clone(), number).unwrap_or(0);
            weight += record.weight();
            records.push(Sent { after, record });
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
    }

    /// Asks for a resource that is not known yet, or again for what its records wait for.
    pub(super) fn ask(&mut self, id: &ResourceId, site: &SiteId, now: Now, out: &mut Outbox) {
        let waiting = self.resources.get(id).map(Resource::waiting);
        if waiting == Some(0) || !self.up.contains(site) {
            return;
        }
        self.want(site, id, out);
        if waiting.is_some() {
            self.arm(now, self.settings.ask_after, Alarm::Ask(id.clone(), site.clone()));
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
        let mut changed = false;
        let mut todo: Vec<Sent> = records;
        todo.reverse();
        while let Some(sent) = todo.pop() {
            let Some(resource) = self.resources.get_mut(id) else {
                if declares_first(&sent) {
                    self.admit(id, &sent.record, now, out);
                    todo.extend(self.woken(id, &sent));
                    changed = true;
                } else {
                    // It came before the operation that creates the resource. Asked for at once,
                    // each of the messages that follow would bring all of them again.
                    let alarm = Alarm::Ask(id.clone(), from.clone());
                    self.arm(now, self.settings.ask_after, alarm);
                    break;
                }
                continue;
            };
            match resource.fit(&sent) {
                Fit::Known => {}
                Fit::Now => {
                    self.admit(id, &sent.record, now, out);
                    todo.extend(self.woken(id, &sent));
                    changed = true;
                }
                Fit::Blocked(missing) => {
                    if resource.waiting() < self.settings.most_waiting {
                        resource.keep_waiting(sent, missing);
                    }
                    let alarm = Alarm::Ask(id.clone(), from.clone());
                    self.arm(now, self.settings.ask_after, alarm);
                }
                Fit::Wrong(why) => {
                    out.tell(Event::Refused { from: from.clone(), resource: id.clone(), why });
                }
            }
        }
        if changed {
            self.proceed(id, out);
        }
        changed
    }

    fn woken(&mut self, id: &ResourceId, sent: &Sent) -> Vec<Sent> {
        let resource = self.resources.get_mut(id);
        resource.map(|resource| resource.wake(sent.record.id())).unwrap_or_default()
    }

    /// Why records of a resource can't be taken from a site, if so.
    fn stranger(&self, from: &SiteId, id: &ResourceId, records: &[Sent]) -> Option<&'static str> {
        let declared = || {
            let ops = records.iter().filter(|sent| declares_first(sent));
            ops.filter_map(|sent| match &sent.record {
                Record::Operation(op) => op.declares.as_ref().map(|declared| &declared.sites),
                Record::Reply(_) => None,
            })
        };
        if let Some(resource) = self.resources.get(id) {
            let known = resource.sites().contains(from)
                || declared().any(|sites| sites.contains(from) && sites.contains(&self.here));
            return (!known).then_some("it is not one of the resource's sites");
        }
        let sites: BTreeSet<&SiteId> = declared().flat_map(Sites::iter).collect();
        let ours = sites.is_empty() || sites.contains(&self.here) && sites.contains(from);
        (!ours).then_some("this is not one of the resource's sites")
    }
}

/// Whether a record is the first operation of a resource.
fn declares_first(sent: &Sent) -> bool {
    matches!(&sent.record, Record::Operation(op) if op.parents.is_empty() && op.declares.is_some())
}

/// A stretch as shorter ones that cover it, with the digests of what we have in each.
fn split(stretch: &Stretch, shared: &[&Resource]) -> Vec<(Stretch, u64)> {
    let size = shared.len().div_ceil(SPLIT);
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
