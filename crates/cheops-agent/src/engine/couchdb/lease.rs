//! The lease: which of a site's agents is at work on its databases.
//!
//! A document in the site's own database names the agent that holds it, which writes it anew all the time. What must
//! stay true:
//! - an agent takes it from another only if that has given it up, if it is known to be gone by the lock of its data
//!   directory (`lock`), or if the document did not change for as long as [`TERM`] while it could be read;
//! - one that takes no turns has it for as long as it is there, and may have written what is nowhere else: it is
//!   taken only by who comes from the same data directory;
//! - who holds it counts on it for [`TRUST`] after it was last written, which is less: a clock that stands still, or an agent
//!   that was stopped and goes on, ends it;
//! - of two that write at the same time, one is told that it was too late.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{chance, databases::Databases, lock::Lock, owner::Owner, server::Trouble};
use crate::{config::CouchDb, engine::disk};

/// How often the lease is written anew.
pub(crate) const BEAT: Duration = Duration::from_secs(2);
/// How long it may stay as it is before another agent takes it.
const TERM: Duration = Duration::from_secs(6);
/// For how long its holder counts on it.
const TRUST: Duration = Duration::from_secs(5);
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// An agent, as the others of its site know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Holder {
    /// What tells it from all others.
    pub(crate) life: String,
    /// The key of the site, which all of its agents have.
    pub(crate) key: String,
    /// Its machine, since it was booted.
    boot: String,
    /// Its data directory, and the file there that it locks.
    directory: String,
    inode: String,
    /// It takes no turns: it has a journal of its own for when the server is away.
    pub(crate) alone: bool,
    /// Where it listens, and for what.
    pub(crate) doors: BTreeMap<String, SocketAddr>,
}

impl Holder {
    /// This process.
    fn this(alone: bool, doors: BTreeMap<String, SocketAddr>, lock: &Lock) -> Self {
        Self {
            life: chance(),
            key: String::new(),
            boot: fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned(),
            directory: lock.directory.clone(),
            inode: lock.inode.clone(),
            alone,
            doors,
        }
    }

    /// Whether another that had the lock of its data directory is gone if this one can have that of its own. Between
    /// machines that share a directory locks may count for nothing: there it is believed only of one that takes no
    /// turns, and has the directory for itself.
    fn proves_gone(&self, other: &Self) -> bool {
        let same_file = self.boot == other.boot && self.inode == other.inode;
        let other_boot = self.boot != other.boot && other.alone;
        self.directory == other.directory && (same_file || other_boot)
    }
}

/// The lease, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Written {
    #[serde(rename = "_rev", default, skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<String>,
    #[serde(rename = "Holder")]
    holder: Holder,
    /// It was given up.
    #[serde(rename = "Free")]
    free: bool,
    /// Its holder has the lock of its data directory: who can have it later comes after it.
    #[serde(rename = "Locked")]
    locked: bool,
    #[serde(rename = "Beat")]
    beat: u64,
}

impl Written {
    /// Whether another may take it: one that has seen it stay as it is for so long, and may try the lock of its own data
    /// directory.
    fn may_be_taken_by(&self, me: &Holder, still: Duration, lock: impl FnOnce() -> bool) -> bool {
        let stale = !self.holder.alone && still >= TERM;
        self.free || stale || (self.locked && me.proves_gone(&self.holder) && lock())
    }
}

/// What became of an attempt to take the lease.
pub(crate) enum Attempt {
    /// It is this agent's.
    Ours(Held),
    /// It is another's.
    Theirs(Lease, Holder),
    /// That can't be told.
    Failed(Lease, Trouble),
}

/// What takes the lease.
pub(crate) struct Lease {
    databases: Databases,
    me: Holder,
    lock: Lock,
    watch: Watch,
}

/// Sees whether a lease changes.
#[derive(Debug, Default)]
struct Watch(Option<(Option<String>, Duration)>);

impl Watch {
    /// For how long a lease is known to be as it is found.
    fn still(&mut self, found: &Written, now: Duration) -> Duration {
        let since = match &self.0 {
            Some((revision, since)) if *revision == found.revision => *since,
            _ => now,
        };
        self.0 = Some((found.revision.clone(), since));
        now.saturating_sub(since)
    }
}

impl Lease {
    /// The lease of the databases of a site, which are made if they are not there, for an agent with this data
    /// directory. Waits for the server.
    pub(crate) fn open(
        config: &CouchDb,
        owner: &Owner,
        data: &Path,
        alone: bool,
        doors: BTreeMap<String, SocketAddr>,
    ) -> Result<Self, String> {
        let databases = Databases::open(config)?;
        databases.claim(owner)?;
        let unusable = |failure| disk::error(data, disk::explain(&failure)).to_string();
        let mut lock = Lock::open(data).map_err(unusable)?;
        if alone {
            lock.hold().map_err(unusable)?.ok_or_else(|| {
                format!("another process is at work from {}: stop it first", data.display())
            })?;
        }
        let me = Holder::this(alone, doors, &lock);
        Ok(Self { databases, me, lock, watch: Watch::default() })
    }

    /// Takes the lease, if it may be taken, for an agent that has this key by now. Waits for the server.
    pub(crate) fn try_take(mut self, key: String) -> Attempt {
        let start = now();
        self.me.key = key;
        let attempt = self.attempt(start);
        // Whoever takes turns leaves it to the one at work.
        if !self.me.alone && !matches!(attempt, Ok(Ok(_))) {
            self.lock.give_up();
        }
        match attempt {
            Ok(Ok(written)) => {
                let fence = Fence::new(self.me.alone, start);
                let Self { databases, lock, .. } = self;
                Attempt::Ours(Held { databases, lock, written, fence })
            }
            Ok(Err(holder)) => Attempt::Theirs(self, holder),
            Err(trouble) => {
                self.watch = Watch::default();
                Attempt::Failed(self, trouble)
            }
        }
    }

    /// The lease as this agent has taken it, or who has it.
    fn attempt(&mut self, now: Duration) -> Result<Result<Written, Holder>, Trouble> {
        let found = self.databases.lease()?;
        if let Some(found) = &found {
            let still = self.watch.still(found, now);
            // From one that takes no turns, there is no second attempt.
            let alone = found.holder.alone;
            let lock = || {
                if alone { matches!(self.lock.hold(), Ok(Some(()))) } else { self.lock.try_hold() }
            };
            if !found.may_be_taken_by(&self.me, still, lock) {
                return Ok(Err(found.holder.clone()));
            }
        }
        let locked = self.lock.try_hold();
        let revision = found.and_then(|found| found.revision);
        let written = Written { revision, holder: self.me.clone(), free: false, locked, beat: 0 };
        match self.databases.put_lease(&written)? {
            Some(revision) => Ok(Ok(Written { revision: Some(revision), ..written })),
            // Another was faster, or this agent itself with a request that got no answer.
            None => match self.databases.lease()? {
                Some(found) if found.holder.life == self.me.life => self.confirm(found).map(Ok),
                Some(found) => Ok(Err(found.holder)),
                None => Err(Trouble::Odd("the lease is gone".to_owned())),
            },
        }
    }
}

impl Lease {
    /// Writes the lease again that this agent is found to hold: a write that reached too few nodes of a cluster is
    /// found, too, and does not count.
    fn confirm(&self, found: Written) -> Result<Written, Trouble> {
        let written = Written { beat: found.beat + 1, ..found };
        match self.databases.put_lease(&written)? {
            Some(revision) => Ok(Written { revision: Some(revision), ..written }),
            None => Err(Trouble::Odd("the lease changes at the same time".to_owned())),
        }
    }
}

/// The lease is held.
pub(crate) struct Held {
    databases: Databases,
    lock: Lock,
    written: Written,
    fence: Fence,
}

impl Held {
    pub(crate) fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Writes it anew; says whether it is still this agent's. Waits for the server.
    pub(crate) fn renew(&mut self) -> Result<bool, Trouble> {
        self.write(false)
    }

    /// Gives it up. Waits for the server.
    pub(crate) fn release(&mut self) -> Result<bool, Trouble> {
        let written = self.write(true);
        self.lock.give_up();
        written
    }

    fn write(&mut self, free: bool) -> Result<bool, Trouble> {
        let start = now();
        // One that was taken from an agent that hung is locked once that is gone.
        let locked = self.lock.try_hold();
        let beat = self.written.beat + 1;
        let mut next = Written { free, locked, beat, ..self.written.clone() };
        let mut written = self.databases.put_lease(&next)?;
        if written.is_none() {
            // Perhaps it was this agent, whose request was answered with nothing: it counts from when it is written now.
            next.revision = match self.databases.lease()? {
                Some(found) if found.holder.life == next.holder.life => found.revision,
                _ => return Ok(false),
            };
            written = self.databases.put_lease(&next)?;
        }
        let Some(revision) = written else { return Ok(false) };
        self.written = Written { revision: Some(revision), ..next };
        self.fence.renewed(start);
        Ok(true)
    }
}

/// Tells whether this agent may count on being the only one at work.
#[derive(Debug, Clone)]
pub struct Fence(
    /// Until when, in milliseconds since the machine was booted; for ever without it.
    Option<Arc<AtomicU64>>,
);

impl Fence {
    fn new(alone: bool, start: Duration) -> Self {
        if alone {
            return Self::open();
        }
        let fence = Self(Some(Arc::default()));
        fence.renewed(start);
        fence
    }

    /// One that keeps nobody out.
    pub fn open() -> Self {
        Self(None)
    }

    /// One that does not hold.
    #[cfg(test)]
    pub(crate) fn fallen() -> Self {
        Self(Some(Arc::default()))
    }

    fn renewed(&self, start: Duration) {
        if let Some(until) = &self.0 {
            until.store(millis(start + TRUST), Ordering::Release);
        }
    }

    /// Whether nobody else can have taken over yet.
    pub fn holds(&self) -> bool {
        self.holds_at(now())
    }

    fn holds_at(&self, now: Duration) -> bool {
        self.0.as_ref().is_none_or(|until| millis(now) < until.load(Ordering::Acquire))
    }
}

/// How long ago the machine was booted. This goes on while it sleeps, as it does for all others.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(boot: &str, directory: &str, inode: &str, alone: bool) -> Holder {
        let [boot, directory, inode] = [boot, directory, inode].map(ToOwned::to_owned);
        let (life, key) = ("x".to_owned(), "k".to_owned());
        Holder { life, key, boot, directory, inode, alone, doors: BTreeMap::new() }
    }

    fn written(holder: Holder, locked: bool, free: bool) -> Written {
        Written { revision: Some("1".to_owned()), holder, free, locked, beat: 0 }
    }

    #[test]
    fn a_lease_is_taken_only_from_one_that_is_gone() {
        let me = holder("boot", "here", "1", false);
        let (turns, alone, soon) = (false, true, Duration::from_secs(1));
        // Which machine, directory and file, whether it takes turns, whether it had the lock and gave up the lease; how
        // long it was still, and whether the lock can be had now.
        for (story, (boot, directory, file), alone, (locked, free), still, lock, expected) in [
            ("at work", ("boot", "here", "1"), turns, (true, false), soon, false, false),
            ("given up", ("boot", "here", "1"), turns, (true, true), soon, false, true),
            ("still for long", ("boot", "here", "1"), turns, (true, false), TERM, false, true),
            ("killed", ("boot", "here", "1"), turns, (true, false), soon, true, true),
            ("without the lock", ("boot", "here", "1"), turns, (false, false), soon, true, false),
            ("in a copy", ("boot", "here", "2"), turns, (true, false), soon, true, false),
            ("elsewhere", ("boot", "there", "1"), turns, (true, false), soon, true, false),
            ("another machine", ("other", "here", "1"), turns, (true, false), soon, true, false),
            ("alone", ("boot", "here", "1"), alone, (true, false), TERM, false, false),
            ("alone, killed", ("boot", "here", "1"), alone, (true, false), soon, true, true),
            ("alone, booted", ("other", "here", "7"), alone, (true, false), soon, true, true),
            ("alone, elsewhere", ("other", "there", "1"), alone, (true, false), TERM, true, false),
            ("alone, in a copy", ("boot", "here", "2"), alone, (true, false), TERM, true, false),
        ] {
            let found = written(holder(boot, directory, file, alone), locked, free);
            assert_eq!(found.may_be_taken_by(&me, still, || lock), expected, "{story}");
        }
    }

    #[test]
    fn a_lease_that_changes_is_not_still() {
        let (start, mut watch) = (Duration::from_hours(1), Watch::default());
        let mut still = |revision: &str, seconds| {
            let mut found = written(holder("boot", "here", "1", false), true, false);
            found.revision = Some(revision.to_owned());
            watch.still(&found, start + Duration::from_secs(seconds)).as_secs()
        };
        let seen = [("1", 0), ("1", 5), ("2", 6), ("2", 11)].map(|(rev, at)| still(rev, at));
        assert_eq!(seen, [0, 5, 0, 5]);
    }

    #[test]
    fn the_holder_stops_before_others_begin() {
        let start = Duration::from_hours(1);
        let fence = Fence::new(false, start);
        let instant = Duration::from_millis(1);
        assert!(TRUST < TERM && fence.holds_at(start) && !fence.holds_at(start + TRUST));
        fence.renewed(start + BEAT);
        assert!(fence.holds_at(start + TRUST + instant));
        assert!(!fence.holds_at(start + BEAT + TRUST));
        assert!(Fence::new(true, start).holds_at(start + 100 * TERM));
    }
}
