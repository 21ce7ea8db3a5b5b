//! The streams of a resource: what each of its sites has recorded, as far as it is known here.
//!
//! What must stay true: a stream is known from its start to its `high` mark without gaps, save for
//! what a later record stands for (a reply to the same operation, a newer print), for what was
//! forgotten with an earlier life of the resource, and for what a site has lost of its own stream or a
//! fence has cut out of it. What was lost can come back and fill its gap: see [`super::gap`].

use alloc::{collections::BTreeSet, vec::Vec};

use super::message::{Reply, Version};
use crate::{
    few::push,
    id::{BySite, OpId, ResourceId, SiteId},
    log::Ix,
    operation::Operation,
};

/// What a number of a stream stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Operation(Ix),
    /// A reply of the stream's site to this operation.
    Reply(Ix),
    /// A reply of the stream's site to an operation that is forgotten.
    Stray,
    /// What the stream's site showed.
    Shown,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    number: u64,
    /// When it came in, counted over all streams: an order in which nothing comes before what it
    /// depends on.
    arrival: u32,
    item: Item,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Stream {
    high: u64,
    entries: Vec<Entry>,
    /// The number of the last reply; 0 if there is none.
    last_reply: u64,
    last_operation: Option<Ix>,
}

impl Stream {
    /// Finds the last reply and the last operation.
    fn find_last(&mut self) {
        let reply = |entry: &Entry| matches!(entry.item, Item::Reply(_)).then_some(entry.number);
        let operation = |entry: &Entry| match entry.item {
            Item::Operation(op) => Some(op),
            Item::Reply(_) | Item::Stray | Item::Shown => None,
        };
        self.last_reply = self.entries.iter().rev().find_map(reply).unwrap_or(0);
        self.last_operation = self.entries.iter().rev().find_map(operation);
    }

    /// Where the record with a number is, or where it would be.
    fn find(&self, number: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Streams {
    by_site: BySite<Stream>,
    arrivals: u32,
    /// A gap was filled since the arrivals were last numbered.
    unordered: bool,
}

impl Streams {
    /// The greatest number that is known of a site's stream; 0 if there is none.
    pub(super) fn high(&self, site: &SiteId) -> u64 {
        self.by_site.get(site).map_or(0, |stream| stream.high)
    }

    pub(super) fn push(&mut self, site: &SiteId, number: u64, item: Item) {
        self.arrivals += 1;
        let stream = self.by_site.entry(site);
        stream.high = number;
        match item {
            Item::Operation(op) => stream.last_operation = Some(op),
            Item::Reply(_) => stream.last_reply = number,
            Item::Stray | Item::Shown => {}
        }
        push(&mut stream.entries, Entry { number, arrival: self.arrivals, item });
    }

    /// Whether a record is here, or was until a later one stood for it.
    pub(super) fn contains(&self, id: &OpId) -> bool {
        self.by_site.get(&id.site).is_some_and(|stream| stream.find(id.number).is_ok())
    }

    /// The number of the record before this one in its stream; 0 if there is none here.
    pub(super) fn before(&self, id: &OpId) -> u64 {
        let Some(stream) = self.by_site.get(&id.site) else { return 0 };
        let place = stream.find(id.number).unwrap_or_else(|place| place);
        stream.entries[..place].last().map_or(0, |entry| entry.number)
    }

    /// Puts a record into a gap of a stream. The arrivals have to be put in order after that.
    pub(super) fn fill(&mut self, id: &OpId, item: Item) {
        self.arrivals += 1;
        let arrival = self.arrivals;
        let stream = self.by_site.entry(&id.site);
        if let Err(place) = stream.find(id.number) {
            stream.entries.insert(place, Entry { number: id.number, arrival, item });
            stream.find_last();
            self.unordered = true;
        }
    }

    /// Numbers the arrivals anew if a gap was filled, so that each record comes after the one before it
    /// in its stream and after what it depends on, and as early as it came so far otherwise. `depends`
    /// names what an item depends on.
    pub(super) fn order(&mut self, depends: impl Fn(&SiteId, u64, Item) -> Vec<OpId>) {
        if !core::mem::take(&mut self.unordered) {
            return;
        }
        let everything = Version::new();
        let mut order: Vec<OpId> = Vec::new();
        let mut met = BTreeSet::new();
        for (site, number, _) in self.beyond(&everything) {
            let mut open = Vec::from([OpId { site: site.clone(), number }]);
            while let Some(id) = open.last().cloned() {
                let item = self.item(&id);
                if met.insert(id.clone())
                    && let Some(item) = item
                {
                    let previous = OpId { site: id.site.clone(), number: self.before(&id) };
                    let first = depends(&id.site, id.number, item).into_iter().chain([previous]);
                    open.extend(first.filter(|other| self.contains(other) && !met.contains(other)));
                } else {
                    open.pop();
                    if item.is_some() {
                        order.push(id);
                    }
                }
            }
        }
        let mut ordered = BTreeSet::new();
        order.retain(|id| ordered.insert(id.clone()));
        for (id, arrival) in order.iter().zip(1..) {
            let stream = self.by_site.entry(&id.site);
            if let Ok(place) = stream.find(id.number) {
                stream.entries[place].arrival = arrival;
            }
        }
    }

    /// What a number of a stream stands for, if the record or a later one in its place is here.
    pub(super) fn item(&self, id: &OpId) -> Option<Item> {
        let stream = self.by_site.get(&id.site)?;
        stream.find(id.number).ok().map(|place| stream.entries[place].item)
    }

    /// Counts records up to these numbers as known, though they are not here.
    pub(super) fn skip(&mut self, version: &Version) {
        for (site, &number) in version.iter().filter(|&(_, &number)| number > 0) {
            let stream = self.by_site.entry(site);
            stream.high = number.max(stream.high);
        }
    }

    pub(super) fn version(&self) -> Version {
        self.by_site.iter().map(|(site, stream)| (site.clone(), stream.high)).collect()
    }

    /// The operations that a site has replied to, its last reply first, with the replies' numbers.
    pub(super) fn replied(&self, site: &SiteId) -> impl Iterator<Item = (u64, Ix)> {
        self.replied_before(site, usize::MAX).map(|(_, number, op)| (number, op))
    }

    /// The same, but for what was recorded before so many records of the site, and with how many came
    /// before each.
    pub(super) fn replied_before(
        &self,
        site: &SiteId,
        before: usize,
    ) -> impl Iterator<Item = (usize, u64, Ix)> {
        let entries = self.entries(site);
        let entries = &entries[..before.min(entries.len())];
        entries.iter().enumerate().rev().filter_map(reply)
    }

    /// The same, but for what was recorded after so many records of the site, the first one first.
    pub(super) fn replied_from(
        &self,
        site: &SiteId,
        from: usize,
    ) -> impl Iterator<Item = (usize, u64, Ix)> {
        let entries = self.entries(site).iter().enumerate();
        entries.skip(from).filter_map(reply)
    }

    /// Whether a number of a site's stream stands for a reply to an operation.
    pub(super) fn is_reply(&self, site: &SiteId, number: u64, op: Ix) -> bool {
        let entries = self.entries(site);
        let at = entries.binary_search_by_key(&number, |entry| entry.number);
        at.is_ok_and(|at| entries[at].item == Item::Reply(op))
    }

    /// How many records of a site are here.
    pub(super) fn recorded(&self, site: &SiteId) -> usize {
        self.entries(site).len()
    }

    /// How many records are here, of all sites.
    pub(super) fn len(&self) -> usize {
        self.arrivals as usize
    }

    fn entries(&self, site: &SiteId) -> &[Entry] {
        self.by_site.get(site).map_or(&[][..], |stream| &stream.entries)
    }

    /// The number of a site's last reply; 0 if there is none.
    pub(super) fn last_reply(&self, site: &SiteId) -> u64 {
        self.by_site.get(site).map_or(0, |stream| stream.last_reply)
    }

    /// The last operation of a site.
    pub(super) fn last_operation(&self, site: &SiteId) -> Option<Ix> {
        self.by_site.get(site)?.last_operation
    }

    /// Whether all that a version covers is known here.
    pub(super) fn covers(&self, version: &Version) -> bool {
        version.iter().all(|(site, &number)| self.high(site) >= number)
    }

    /// What is known here beyond a version, in the order of arrival.
    pub(super) fn beyond(&self, version: &Version) -> Vec<(&SiteId, u64, Item)> {
        debug_assert!(!self.unordered, "a gap was filled, and the arrivals are not in order");
        let mut found: Vec<(u32, &SiteId, u64, Item)> = Vec::new();
        for (site, stream) in self.by_site.iter() {
            let known = version.get(site).copied().unwrap_or(0);
            let from = stream.entries.partition_point(|entry| entry.number <= known);
            let entries = stream.entries[from..].iter();
            found.extend(entries.map(|entry| (entry.arrival, site, entry.number, entry.item)));
        }
        found.sort_unstable_by_key(|&(arrival, ..)| arrival);
        found.into_iter().map(|(_, site, number, item)| (site, number, item)).collect()
    }
}

fn reply((place, entry): (usize, &Entry)) -> Option<(usize, u64, Ix)> {
    match entry.item {
        Item::Reply(op) => Some((place, entry.number, op)),
        Item::Operation(_) | Item::Stray | Item::Shown => None,
    }
}

/// What a site's stream of a resource adds to the digest of what two sites share. Digests are
/// sums, so that a stream that grows changes them in constant time.
pub(super) fn digest(resource: &ResourceId, site: &SiteId, high: u64) -> u64 {
    if high == 0 { 0 } else { hash(resource, &[site.as_str()], &[high]) }
}

/// What an operation adds to the digest. Two that have one number, because a site was restored from
/// an old backup and counts on from there, differ in their times.
pub(super) fn mark(op: &Operation) -> u64 {
    hash(&op.resource, &[op.id.site.as_str()], &[op.id.number, op.at.to_bits()])
}

/// What a reply adds to the digest while it stands.
pub(super) fn mark_reply(reply: &Reply) -> u64 {
    let Reply { id, resource, op, attempt, outcome, era, took, output, made } = reply;
    let made_length = made.as_ref().map_or(0, |made| made.len() as u64 + 1);
    let numbers = [
        id.number,
        op.number,
        u64::from(*attempt),
        *outcome as u64,
        u64::from(*era),
        took.0,
        output.len() as u64,
        made_length,
    ];
    let made = made.as_deref().unwrap_or_default();
    hash(resource, &[id.site.as_str(), op.site.as_str(), output, made], &numbers)
}

/// What it adds to the digest that two different records of a site are known to have this number.
pub(super) fn mark_contradiction(resource: &ResourceId, site: &SiteId, number: u64) -> u64 {
    hash(resource, &[site.as_str(), "two records"], &[number])
}

fn hash(resource: &ResourceId, texts: &[&str], numbers: &[u64]) -> u64 {
    use core::hash::Hasher as _;
    let mut hasher = siphasher::sip::SipHasher13::new();
    hasher.write(resource.as_str().as_bytes());
    hasher.write(&[0]);
    for text in texts {
        hasher.write(text.as_bytes());
        hasher.write(&[0]);
    }
    for number in numbers {
        hasher.write(&number.to_le_bytes());
    }
    hasher.finish()
}
