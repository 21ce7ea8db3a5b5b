//! One resource at one site: its log, its block, what was run here, and the replies of all sites.
//!
//! What must stay true:
//! - what is recorded depends on the set of records alone, not on the order in which they came;
//! - a record enters after what it depends on: the one before it in its stream, the parents of an
//!   operation, the operation that a reply or a print is about.

use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec::Vec,
};
use core::mem;

use super::{
    Refusal, Submission,
    forget::{covers, join},
    made::Made,
    message::{Record, Reply, Sent, Version},
    replies::Replies,
    run::Work,
    shown::{Look, Shown},
    state::{Glance, tail_of},
    stream::{Item, Streams, digest, mark, mark_reply},
    wait::News,
    waiting::Waiting,
};
use crate::{
    id::{Key, OpId, ResourceId, SiteId, Sites},
    log::{Ix, Log},
    matrix::Config,
    operation::{Declaration, Operation, SharedOperation},
    plan::Journal,
    resolve::{Account, Fate, Resolution},
    rules::Rules,
    time::{Millis, Timestamp},
};

/// Beyond these a site would soon run out of numbers, so whoever sends them is broken.
pub(super) const LAST_NUMBER: u64 = u64::MAX >> 1;
pub(super) const LAST_ATTEMPT: u32 = u32::MAX >> 1;

/// By how much the clock of a site that has lost records may have been set back since.
const BACKDATED: Millis = Millis(24 * 60 * 60 * 1_000);

/// A resource, as this site knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Resource {
    id: ResourceId,
    sites: Sites,
    /// Nothing if no operation has declared one. Many resources share one.
    config: Option<Arc<Config>>,
    /// The operation that declared the configuration.
    configured_by: Option<(Timestamp, OpId)>,
    pub(super) log: Log,
    pub(super) resolution: Resolution,
    pub(super) journal: Journal,
    streams: Streams,
    replies: Replies,
    pub(super) rare: Option<Box<Rare>>,
    /// What each site made, as its replies tell.
    pub(super) made: BTreeMap<SiteId, Made>,
    /// What each site showed last.
    shown: BTreeMap<SiteId, Arc<Shown>>,
    /// The `Show` command runs here.
    pub(super) looking: Option<Look>,
    digest: u64,
    pub(super) waiting: Waiting,
    pub(super) news: News,
    pub(super) work: Work,
    /// The `Reset` command has failed for the block as it is; trying again would fail again.
    pub(super) clear_failed: bool,
    /// Where something was lost: the last number that this site may have used until then; 0 if none.
    pub(super) floor: Option<u64>,
    /// Up to where another site has forgotten the resource's records, if this one has yet to.
    pub(super) due: Version,
    /// The sites that were removed, of this resource or of others.
    pub(super) removed: Arc<BTreeSet<SiteId>>,
    /// Up to where the records of some sites count, if the rest has yet to be taken out here.
    pub(super) fenced: Version,
    /// What a look at the resource needs, kept up to date.
    pub(super) glance: Glance,
}

/// What few resources have.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Rare {
    /// The operation that named the parts, and how many.
    divided_by: Option<((Timestamp, OpId), usize)>,
    /// The operations whose requesters gave a key. Of several with one key, received apart, the
    /// earliest.
    keys: BTreeMap<Key, Ix>,
    /// Replies to operations that are forgotten, and those in whose place an earlier one stands: nobody
    /// asks for them, but streams have no gaps.
    strays: BTreeMap<OpId, Arc<Reply>>,
    /// The site that was asked for all that it has, and how far it has answered.
    pub(super) repair: Option<(SiteId, Version)>,
    /// While a delete is run again: up to where records were forgotten before, which is written down.
    pub(super) forgotten_before: Option<Version>,
    /// The last number of each site that two different records have.
    pub(super) contradictions: Version,
}

/// Whether a record can be taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fit {
    Now,
    Known,
    /// Not before this other record.
    Blocked(OpId),
    /// Never: it breaks a rule.
    Wrong(&'static str),
    /// Never: another record has its number, or that of an operation that it depends on.
    Contradicts {
        number: OpId,
        why: &'static str,
    },
}

impl Resource {
    /// A resource without operations. `forgotten`: what is left of an earlier life.
    pub(super) fn new(id: ResourceId, declared: &Declaration, forgotten: &Version) -> Self {
        let mut this = Self {
            id,
            sites: declared.sites.clone(),
            config: None,
            configured_by: None,
            log: Log::default(),
            resolution: Resolution::new(Rules::new(&Config::default().matrix)),
            journal: Journal::default(),
            streams: Streams::default(),
            replies: Replies::default(),
            rare: None,
            made: BTreeMap::new(),
            shown: BTreeMap::new(),
            looking: None,
            digest: 0,
            waiting: Waiting::default(),
            news: News::default(),
            work: Work::Idle,
            clear_failed: false,
            floor: None,
            due: Version::new(),
            removed: Arc::default(),
            fenced: Version::new(),
            glance: Glance::default(),
        };
        this.skip(&declared.base);
        this.skip(forgotten);
        this
    }

    /// Its id.
    pub fn id(&self) -> &ResourceId {
        &self.id
    }

    /// The sites that it exists on.
    pub fn sites(&self) -> &Sites {
        &self.sites
    }

    /// Those of them that were not removed: the ones to wait for and to compare.
    pub fn present(&self) -> impl Iterator<Item = &SiteId> {
        self.sites.iter().filter(|site| !self.removed.contains(site))
    }

    /// The same, as a set; all of its sites if none is left.
    pub fn present_sites(&self) -> Sites {
        Sites::new(self.present().cloned()).unwrap_or_else(|_| self.sites.clone())
    }

    /// Takes note of the sites that were removed, of this resource or of others.
    pub(super) fn leave_out(&mut self, removed: Arc<BTreeSet<SiteId>>) {
        let before = core::mem::replace(&mut self.removed, removed);
        let differs = |site: &SiteId| before.contains(site) != self.removed.contains(site);
        if self.sites.iter().any(differs) {
            self.glance.all_changed();
        }
    }

    /// Those of them that were removed.
    pub fn absent(&self) -> impl Iterator<Item = &SiteId> {
        self.sites.iter().filter(|site| self.removed.contains(site))
    }

    /// How its operations meet.
    pub fn config(&self) -> &Config {
        static NOTHING: Config = Config::nothing();
        self.config.as_deref().unwrap_or(&NOTHING)
    }

    /// The same, to be shared.
    pub(super) fn shared_config(&self) -> Arc<Config> {
        self.config.clone().unwrap_or_default()
    }

    /// The operation that gave it the configuration that it has, if one did.
    pub fn configured_by(&self) -> Option<&OpId> {
        self.configured_by.as_ref().map(|(_, op)| op)
    }

    /// The operations known here.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// What they amount to.
    pub fn resolution(&self) -> &Resolution {
        &self.resolution
    }

    /// The block, as operations.
    pub fn block(&self) -> impl Iterator<Item = &SharedOperation> {
        self.resolution.block().iter().map(|&ix| self.log.op(ix))
    }

    /// The last known reply of a site to an operation.
    pub fn reply(&self, op: &OpId, site: &SiteId) -> Option<&Reply> {
        let ix = self.log.find(op)?;
        self.reply_to(ix, site)
    }

    pub(super) fn reply_to(&self, op: Ix, site: &SiteId) -> Option<&Reply> {
        self.shared_reply(op, site).map(|reply| &**reply)
    }

    /// The same, by the operation's place in the log, to be shared.
    pub fn shared_reply(&self, op: Ix, site: &SiteId) -> Option<&Arc<Reply>> {
        self.replies.get(op, site)
    }

    pub(super) fn replies(&self) -> &Replies {
        &self.replies
    }

    /// The block from its last replacing operation on: what came before has no influence on the state
    /// any more.
    pub(super) fn tail(&self) -> &[Ix] {
        tail_of(&self.resolution)
    }

    /// What became of an operation; nothing if it is not known here.
    pub fn receipt(&self, op: &OpId) -> Option<Account> {
        let ix = self.log.find(op)?;
        let receipt = self.resolution.receipt(&self.log, ix);
        Some(self.resolution.account(&self.log, ix, receipt, None))
    }

    /// Why an operation is not in the block, by its place in the log; nothing for one that is.
    pub fn dropped(&self, op: Ix) -> Option<Account> {
        let receipt = self.resolution.receipt(&self.log, op)?;
        Some(self.resolution.account(&self.log, op, Some(receipt), None))
    }

    /// The operation that a request repeats, if it does; a refusal if its key stands for another.
    pub(super) fn repeated(
        &self,
        submission: &Submission,
    ) -> Result<Option<SharedOperation>, Refusal> {
        let Some(key) = &submission.key else { return Ok(None) };
        let known = self.rare.as_ref().and_then(|rare| rare.keys.get(key));
        let Some(&ix) = known else { return Ok(None) };
        let op = self.log.op(ix);
        if op.is_request(&submission.kind, &submission.action, submission.keep_going) {
            Ok(Some(op.clone()))
        } else {
            Err(Refusal::KeyReused { key: key.clone(), op: op.id.clone() })
        }
    }

    pub(super) fn last_shown(&self, site: &SiteId) -> Option<&Shown> {
        self.shown.get(site).map(|shown| &**shown)
    }

    /// How far the streams of all sites are known here.
    pub fn version(&self) -> Version {
        self.streams.version()
    }

    /// How many records wait for what they depend on.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn streams(&self) -> &Streams {
        &self.streams
    }

    pub(super) fn streams_mut(&mut self) -> &mut Streams {
        &mut self.streams
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn add_to_digest(&mut self, change: u64) {
        self.digest = self.digest.wrapping_add(change);
    }

    /// Whether nothing is left to do at this site, as far as is known here: the application has
    /// seen the block, or a person must decide.
    pub fn is_idle(&self) -> bool {
        matches!(self.work, Work::Idle | Work::Stuck)
    }

    /// Whether a person must decide.
    pub fn is_stuck(&self) -> bool {
        self.work == Work::Stuck
    }

    /// Whether a record can be taken in now.
    pub(super) fn fit(&self, sent: &Sent) -> Fit {
        let id = sent.record.id();
        let high = self.streams.high(&id.site);
        let fills = id.number <= high && self.fills_gap(&sent.record);
        if id.number <= high && !fills {
            return self.fit_known(&sent.record);
        }
        let (attempt, declares) = match &sent.record {
            Record::Operation(op) => (0, op.declares.as_ref()),
            Record::Reply(reply) => (reply.attempt, None),
            Record::Shown(_) => (0, None),
        };
        let mut numbers = declares.iter().flat_map(|declared| declared.base.values());
        let is_odd = id.number > LAST_NUMBER || numbers.any(|&number| number > LAST_NUMBER);
        if is_odd || attempt > LAST_ATTEMPT {
            return Fit::Wrong("a number that nobody can have counted to");
        }
        if sent.after >= id.number {
            return Fit::Wrong("a record that comes after itself");
        }
        if !fills && sent.after > high {
            return Fit::Blocked(OpId { site: id.site.clone(), number: sent.after });
        }
        self.fit_dependencies(&sent.record)
    }

    /// Whether a record is known whose number is, and is in no gap.
    fn fit_known(&self, record: &Record) -> Fit {
        let id = record.id();
        // What is forgotten can't be compared.
        let Some(item) = self.streams.item(id) else { return Fit::Known };
        let is_same = match (self.record(&id.site, id.number, item), item, record) {
            (Some(known), ..) => known == *record,
            // A later record stands for the one that was here.
            (None, Item::Reply(op), Record::Reply(reply)) => self.log.op(op).id == reply.op,
            (None, Item::Stray, Record::Reply(_)) | (None, Item::Shown, Record::Shown(_)) => true,
            (None, ..) => false,
        };
        if is_same {
            return Fit::Known;
        }
        let why = match item {
            Item::Operation(_) => {
                "its number stands for another operation: was the site restored from an old backup?"
            }
            Item::Reply(_) | Item::Stray => {
                "its number stands for another reply: was the site restored from an old backup?"
            }
            Item::Shown => {
                "its number stands for another record: was the site restored from an old backup?"
            }
        };
        Fit::Contradicts { number: id.clone(), why }
    }

    /// What becomes of a record that depends on an operation that is not here.
    fn fit_without(&self, op: &OpId) -> Fit {
        if !self.streams.contains(op) {
            return Fit::Blocked(op.clone());
        }
        let why = "it depends on an operation whose number stands for another record: was the site restored from an old backup?";
        Fit::Contradicts { number: op.clone(), why }
    }

    /// Whether a record can be taken in as far as what it depends on is concerned.
    fn fit_dependencies(&self, record: &Record) -> Fit {
        match record {
            Record::Operation(op) => self.fit_operation(op),
            Record::Reply(_) | Record::Shown(_) => {
                let op = record.about();
                if self.log.find(op).is_none() && !covers(self.forgotten_durably(), op) {
                    self.fit_without(op)
                } else if self.sites.contains(&record.id().site) {
                    Fit::Now
                } else {
                    Fit::Wrong("a reply of a site that is not one of the resource's")
                }
            }
        }
    }

    fn fit_operation(&self, op: &SharedOperation) -> Fit {
        let forgotten = op.declares.as_ref().map(|declared| &declared.base);
        for parent in &op.parents {
            match self.log.find(parent) {
                None if covers(self.forgotten_durably(), parent) => {}
                // It stands for an earlier life, which this site has yet to forget.
                None if forgotten.is_some_and(|version| covers(version, parent)) => {
                    return Fit::Blocked(parent.clone());
                }
                None => return self.fit_without(parent),
                // What it follows where it was received is another one.
                Some(ix) if self.log.op(ix).key() >= op.key() => {
                    let why = "an operation that is not later than what it follows";
                    return Fit::Contradicts { number: parent.clone(), why };
                }
                Some(_) => {}
            }
        }
        let declares = op.declares.as_ref();
        let sites = declares.map_or(&self.sites, |declared| &declared.sites);
        let followed = op.parents.iter().filter_map(|parent| self.log.find(parent));
        let followed = followed.map(|ix| self.log.timestamp(ix)).max().unwrap_or_default();
        if !op.at.is_plausible_after(followed) {
            Fit::Wrong("an operation from the far future")
        } else if self.is_backdated(op) {
            Fit::Wrong("an operation that is dated long before an earlier one of its site")
        } else if declares.is_none() && op.parents.iter().all(|p| self.log.find(p).is_none()) {
            Fit::Wrong("a first operation that does not say where the resource exists")
        } else if !sites.contains(&op.id.site) && !self.sites.contains(&op.id.site) {
            Fit::Wrong("an operation of a site that is not one of the resource's")
        } else {
            Fit::Now
        }
    }

    /// Whether an operation is dated long before one that its site has recorded earlier. What a site
    /// records follows what it has recorded, unless that was lost there; a clock that was set back since
    /// is set back by less.
    fn is_backdated(&self, op: &Operation) -> bool {
        // One that was lost here and comes back is older than what was recorded since.
        if op.id.number <= self.streams.high(&op.id.site) {
            return false;
        }
        let earlier = self.streams.last_operation(&op.id.site).map(|ix| self.log.timestamp(ix));
        earlier.is_some_and(|earlier| op.at.wall().plus(BACKDATED) < earlier.wall())
    }

    /// Takes in a record that fits.
    pub(super) fn take(&mut self, record: &Record) {
        let id = record.id();
        let item = match record {
            Record::Operation(op) => match self.take_operation(op) {
                Some(ix) => Item::Operation(ix),
                None => return,
            },
            Record::Reply(reply) => match self.take_reply(reply) {
                Some(ix) => Item::Reply(ix),
                None if self.log.is_forgotten(&reply.op) => {
                    let rare = self.rare.get_or_insert_default();
                    rare.strays.insert(reply.id.clone(), reply.clone());
                    Item::Stray
                }
                None => return,
            },
            Record::Shown(shown) => {
                // One that was lost and has come back may be older than what is known.
                if self.last_shown(&id.site).is_none_or(|known| known.id.number < id.number) {
                    self.shown.insert(id.site.clone(), shown.clone());
                }
                Item::Shown
            }
        };
        let high = self.streams.high(&id.site);
        if id.number > high {
            self.streams.push(&id.site, id.number, item);
            self.glance.changed();
            let before = digest(&self.id, &id.site, high);
            let after = digest(&self.id, &id.site, id.number);
            self.digest = self.digest.wrapping_sub(before).wrapping_add(after);
        } else {
            self.streams.fill(id, item);
            self.glance.all_changed();
        }
        if let Record::Operation(op) = record {
            self.digest = self.digest.wrapping_add(mark(op));
        }
    }

    /// Puts the records in an order again in which others can take them in, after gaps were filled.
    pub(super) fn order_streams(&mut self) {
        let mut streams = mem::take(&mut self.streams);
        streams.order(|site, number, item| self.depends(site, number, item));
        self.streams = streams;
    }

    /// The operations that a record depends on.
    fn depends(&self, site: &SiteId, number: u64, item: Item) -> Vec<OpId> {
        match self.record(site, number, item) {
            Some(Record::Operation(op)) => op.parents.to_vec(),
            Some(record) => Vec::from([record.about().clone()]),
            None => Vec::new(),
        }
    }

    fn take_operation(&mut self, op: &SharedOperation) -> Option<Ix> {
        let ix = self.log.insert(op.clone()).ok()?;
        self.replies.grow(self.log.len());
        let before = self.resolution.block().len();
        let changed = self.resolution.add(&self.log, ix);
        self.journal.changed(changed.from);
        self.news.of(ix);
        if changed.from < before {
            self.news.of_all();
        }
        self.glance.block_changed(changed);
        self.clear_failed = false;
        if let Some(key) = &op.key {
            let rare = self.rare.get_or_insert_default();
            let first = rare.keys.entry(key.clone()).or_insert(ix);
            if self.log.earlier(ix, *first) {
                *first = ix;
            }
        }
        if let Some(declared) = &op.declares {
            self.declare(op, declared);
        }
        Some(ix)
    }

    /// Takes in an operation that is forgotten elsewhere, with this site's reply to it: it is in the
    /// log, and in no stream.
    pub(super) fn put_first(&mut self, op: &SharedOperation, here: &SiteId, reply: Option<&Reply>) {
        if let Some(ix) = self.take_operation(op)
            && let Some(reply) = reply
        {
            debug_assert_eq!(reply.id.site, *here, "a site's own reply");
            self.replies.insert(ix, Arc::new(reply.clone()));
            self.glance.all_changed();
        }
    }

    fn declare(&mut self, op: &SharedOperation, declared: &Declaration) {
        join(&mut self.due, &declared.base);
        let sites = self.sites.union(&declared.sites);
        if sites != self.sites {
            self.sites = sites;
            self.glance.all_changed();
        }
        self.glance.changed();
        let by = (op.at, op.id.clone());
        self.divide(&by, &declared.config.parts);
        // Whoever gives no configuration does not take away one that another gave.
        if !declared.config.says_more_than_parts() {
            return;
        }
        if self.configured_by.as_ref().is_some_and(|last| *last > by) {
            return;
        }
        self.configured_by = Some(by);
        let same_rules = self.config().matrix == declared.config.matrix;
        let parts = &self.config().parts;
        self.config = Some(if *parts == declared.config.parts {
            declared.config.clone()
        } else {
            Arc::new(Config { parts: parts.clone(), ..(*declared.config).clone() })
        });
        if !same_rules {
            let rules = Rules::new(&self.config().matrix);
            let void = |ix| self.is_void(ix);
            self.resolution = Resolution::of(rules, &self.log, void);
            self.journal.changed(0);
            self.news.of_all();
            self.glance.all_changed();
        }
    }

    /// Takes in the parts that an operation names, and gives one to each site that has none.
    fn divide(&mut self, by: &(Timestamp, OpId), named: &[Sites]) {
        let last = self.rare.as_ref().and_then(|rare| rare.divided_by.as_ref());
        let later = last.is_none_or(|(last, _)| last < by);
        if !named.is_empty() && later {
            let rare = self.rare.get_or_insert_default();
            rare.divided_by = Some((by.clone(), named.len()));
            self.set_parts(named.to_vec());
        }
        let divided_by = self.rare.as_ref().and_then(|rare| rare.divided_by.as_ref());
        let Some(&(_, named)) = divided_by else { return };
        // From the start: sites become known in any order.
        let parts = &self.config().parts;
        let mut given = parts[..named.min(parts.len())].to_vec();
        let is_given = |given: &[Sites], site| given.iter().any(|part| part.contains(site));
        for site in self.sites.iter() {
            if !is_given(&given, site) {
                given.push(Sites::from(site.clone()));
            }
        }
        self.set_parts(given);
    }

    fn set_parts(&mut self, parts: Vec<Sites>) {
        if self.config().parts != parts {
            Arc::make_mut(self.config.get_or_insert_default()).parts = parts;
        }
    }

    fn take_reply(&mut self, reply: &Arc<Reply>) -> Option<Ix> {
        let ix = self.log.find(&reply.op)?;
        let stood = self.shared_reply(ix, &reply.id.site).cloned();
        let stands = self.stands(ix, reply);
        if let Some(stood) = &stood {
            let (first, other) = if stands { (reply, stood) } else { (stood, reply) };
            // A later number may be the last of its stream, which others have to reach.
            if other.id.number > first.id.number {
                let rare = self.rare.get_or_insert_default();
                rare.strays.insert(other.id.clone(), other.clone());
            }
        }
        if stands {
            self.replies.insert(ix, reply.clone());
            // One to an operation that is forgotten elsewhere counts for none.
            if !self.log.is_forgotten(&reply.op) {
                let gone = stood.as_deref().map_or(0, mark_reply);
                self.digest = self.digest.wrapping_sub(gone).wrapping_add(mark_reply(reply));
            }
            self.note_made(ix, reply, stood.as_deref());
            self.glance.replied(ix, reply, stood.as_deref());
        }
        self.news.of(ix);
        if self.is_void(ix) && self.fate(ix) != Fate::Void {
            let changed = self.resolution.void(&self.log, ix);
            self.journal.changed(changed.from);
            self.news.of_all();
            self.glance.block_changed(changed);
            self.clear_failed = false;
        }
        Some(ix)
    }

    /// Whether a reply is put in the place of the one that is known of its site, if there is one. It does
    /// not depend on which of them comes first.
    pub(super) fn stands(&self, ix: Ix, reply: &Reply) -> bool {
        // One that makes the operation void stands for good: a site that has lost it may run it again.
        let rank = |reply: &Reply| {
            (self.makes_void(ix, reply), reply.attempt, reply.outcome, reply.id.number)
        };
        self.reply_to(ix, &reply.id.site).is_none_or(|known| rank(known) < rank(reply))
    }

    /// An operation is void if it failed at the site that received it, or was denied there, when it was first run there:
    /// a later run is a replay, of one that had succeeded.
    pub(super) fn is_void(&self, ix: Ix) -> bool {
        let first = self.reply_to(ix, &self.log.op(ix).id.site);
        first.is_some_and(|reply| self.makes_void(ix, reply))
    }

    fn makes_void(&self, ix: Ix, reply: &Reply) -> bool {
        let op = self.log.op(ix);
        !op.keep_going
            && reply.id.site == op.id.site
            && reply.attempt == 1
            && reply.outcome.is_failure()
    }

    /// The record that a number of a stream stands for; nothing if a later one stands for it.
    pub(super) fn record(&self, site: &SiteId, number: u64, item: Item) -> Option<Record> {
        match item {
            Item::Operation(ix) => Some(Record::Operation(self.log.op(ix).clone())),
            Item::Reply(ix) => {
                let known = self.replies.get(ix, site).filter(|reply| reply.id.number == number);
                let reply = known.or_else(|| self.stray(site, number));
                reply.map(|reply| Record::Reply(reply.clone()))
            }
            Item::Stray => self.stray(site, number).map(|reply| Record::Reply(reply.clone())),
            Item::Shown => {
                let shown = self.shown.get(site).filter(|shown| shown.id.number == number);
                shown.map(|shown| Record::Shown(shown.clone()))
            }
        }
    }

    fn stray(&self, site: &SiteId, number: u64) -> Option<&Arc<Reply>> {
        let strays = &self.rare.as_ref()?.strays;
        strays.get(&OpId { site: site.clone(), number })
    }

    /// Whether a record is a first operation, which depends on nothing, and names a site.
    pub(super) fn invites(&self, site: &SiteId, item: Item) -> bool {
        let Item::Operation(ix) = item else { return false };
        let op = self.log.op(ix);
        let first = op.parents.iter().all(|parent| self.log.find(parent).is_none());
        first && op.declares.as_ref().is_some_and(|d| d.sites.contains(site))
    }

    /// Which operation an operation lost to, if it did.
    pub(super) fn lost_to(&self, op: Ix) -> Option<OpId> {
        let by = self.resolution.receipt(&self.log, op)?.by()?;
        Some(self.log.op(by).id.clone())
    }

    pub(super) fn fate(&self, op: Ix) -> Fate {
        self.resolution.fate(op)
    }
}
