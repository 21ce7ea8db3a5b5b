//! The lease: which of a site's agents is at work on its databases.
//!
//! A document in the site's own database names the agent that holds it, which writes it anew all the time. What must
//! stay true:
//! - an agent takes it from another only if that has given it up, if its process is known to be gone, or if the
//!   document did not change for as long as [`TERM`] while it could be read;
//! - who holds it counts on it for [`TRUST`] after it was last written, which is less: a clock that stands still, or an agent
//!   that was stopped and goes on, ends it;
//! - of two that write at the same time, one is told that it was too late.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{databases::Databases, server::Trouble};
use crate::config::CouchDb;

/// How often the lease is written anew.
pub(crate) const BEAT: Duration = Duration::from_secs(2);
/// How long it may stay as it is before another agent takes it.
const TERM: Duration = Duration::from_secs(6);
/// For how long its holder counts on it.
const TRUST: Duration = Duration::from_secs(5);

/// An agent, as the others of its site know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Holder {
    /// What tells it from all others.
    pub(crate) life: String,
    /// The key of the site, which all of its agents have.
    pub(crate) key: String,
    /// Its machine, since it was booted, and its process there.
    pub(crate) boot: String,
    pub(crate) process: u32,
    /// It takes no turns: it has a journal of its own for when the server is away.
    pub(crate) alone: bool,
    /// Where it listens, and for what.
    pub(crate) doors: BTreeMap<String, SocketAddr>,
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
    #[serde(rename = "Beat")]
    beat: u64,
}

/// What became of an attempt to take the lease.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// It is this agent's.
    Ours(Held),
    /// It is another's.
    Theirs(Holder),
}

/// What takes the lease.
pub(crate) struct Lease {
    databases: Arc<Databases>,
    me: Holder,
    watch: Watch,
}

/// Sees whether a lease changes.
#[derive(Debug, Default)]
struct Watch(Option<(Option<String>, Instant)>);

impl Watch {
    /// Whether a lease may be taken that is found like this.
    fn may_take(&mut self, found: &Written, boot: &str, now: Instant) -> bool {
        let gone = found.holder.boot == boot && !is_there(found.holder.process);
        let since = match &self.0 {
            Some((revision, since)) if *revision == found.revision => *since,
            _ => now,
        };
        self.0 = Some((found.revision.clone(), since));
        let stale = !found.holder.alone && now.duration_since(since) >= TERM;
        found.free || gone || stale
    }
}

/// Whether there is a process on this machine.
fn is_there(process: u32) -> bool {
    process != std::process::id() && Path::new(&format!("/proc/{process}")).exists()
}

impl Lease {
    /// The lease of a site's databases, which are made if they are not there. Waits for the server.
    pub(crate) fn open(config: &CouchDb, me: Holder) -> Result<Self, String> {
        let databases = Arc::new(Databases::open(config)?);
        Ok(Self { databases, me, watch: Watch::default() })
    }

    /// Takes the lease, if it may be taken, for an agent that has this key by now. Waits for the server.
    pub(crate) fn try_take(&mut self, key: String) -> Result<Attempt, Trouble> {
        let start = Instant::now();
        self.me.key = key;
        let found = self.databases.lease().inspect_err(|_| self.watch = Watch::default())?;
        if let Some(found) = &found
            && !self.watch.may_take(found, &self.me.boot, start)
        {
            return Ok(Attempt::Theirs(found.holder.clone()));
        }
        let mut written = Written {
            revision: found.as_ref().and_then(|found| found.revision.clone()),
            holder: self.me.clone(),
            free: false,
            beat: 0,
        };
        match self.databases.put_lease(&written)? {
            Some(revision) => {
                written.revision = Some(revision);
                let fence = Fence::new(self.me.alone, start);
                Ok(Attempt::Ours(Held { databases: self.databases.clone(), written, fence }))
            }
            // Another was faster: the next look will tell who.
            None => match self.databases.lease()? {
                Some(found) => Ok(Attempt::Theirs(found.holder)),
                None => Err(Trouble::Odd("the lease is gone".to_owned())),
            },
        }
    }
}

/// The lease is held.
pub(crate) struct Held {
    databases: Arc<Databases>,
    written: Written,
    fence: Fence,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Held").field(&self.written).finish()
    }
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
        self.write(true)
    }

    fn write(&mut self, free: bool) -> Result<bool, Trouble> {
        let start = Instant::now();
        let next = Written { free, beat: self.written.beat + 1, ..self.written.clone() };
        let revision = match self.databases.put_lease(&next)? {
            Some(revision) => revision,
            // Perhaps it was this agent, whose request was answered with nothing.
            None => match self.databases.lease()? {
                Some(found) if found.holder.life == next.holder.life => {
                    found.revision.unwrap_or_default()
                }
                _ => return Ok(false),
            },
        };
        self.written = Written { revision: Some(revision), ..next };
        self.fence.renewed(start);
        Ok(true)
    }
}

/// Tells whether this agent may count on being the only one at work.
#[derive(Debug, Clone)]
pub struct Fence(Option<Arc<Until>>);

#[derive(Debug)]
struct Until {
    begin: Instant,
    /// In milliseconds after that.
    until: AtomicU64,
}

impl Fence {
    fn new(alone: bool, start: Instant) -> Self {
        let fence = Self::open();
        if alone {
            return fence;
        }
        let fence = Self(Some(Arc::new(Until { begin: start, until: AtomicU64::new(0) })));
        fence.renewed(start);
        fence
    }

    /// One that keeps nobody out.
    pub fn open() -> Self {
        Self(None)
    }

    fn renewed(&self, start: Instant) {
        if let Some(until) = &self.0 {
            let span = start.duration_since(until.begin) + TRUST;
            let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            until.until.store(millis, Ordering::Release);
        }
    }

    /// Whether nobody else can have taken over yet.
    pub fn holds(&self) -> bool {
        self.holds_at(Instant::now())
    }

    fn holds_at(&self, now: Instant) -> bool {
        self.0.as_ref().is_none_or(|until| {
            let millis = until.until.load(Ordering::Acquire);
            now.duration_since(until.begin) < Duration::from_millis(millis)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(revision: &str, process: u32, free: bool, alone: bool) -> Written {
        let holder = Holder {
            life: "x".into(),
            key: "k".into(),
            boot: "boot".into(),
            process,
            alone,
            doors: BTreeMap::new(),
        };
        Written { revision: Some(revision.to_owned()), holder, free, beat: 0 }
    }

    #[test]
    fn a_lease_is_taken_only_from_one_that_is_gone() {
        // The first process of a machine is always there.
        let (there, nobody) = (1, u32::MAX);
        let start = Instant::now();
        for (story, found, boot, expected) in [
            ("it is at work", written("1", there, false, false), "boot", false),
            ("it has given it up", written("1", there, true, false), "boot", true),
            ("its process is gone", written("1", nobody, false, false), "boot", true),
            ("on another machine", written("1", nobody, false, false), "other", false),
            (
                "this process, in an earlier life",
                written("1", std::process::id(), false, false),
                "boot",
                true,
            ),
        ] {
            assert_eq!(Watch::default().may_take(&found, boot, start), expected, "{story}");
        }
    }

    #[test]
    fn a_lease_that_does_not_change_ends() {
        let (start, mut watch) = (Instant::now(), Watch::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!watch.may_take(&written("1", 1, false, false), "boot", at(0)));
        assert!(!watch.may_take(&written("1", 1, false, false), "boot", at(5)));
        assert!(!watch.may_take(&written("2", 1, false, false), "boot", at(6)), "it has changed");
        assert!(!watch.may_take(&written("2", 1, false, false), "boot", at(11)));
        assert!(watch.may_take(&written("2", 1, false, false), "boot", at(12)));
        let mut watch = Watch::default();
        for seconds in [0, 100] {
            let alone = written("1", 1, false, true);
            assert!(!watch.may_take(&alone, "boot", at(seconds)), "it takes no turns");
        }
    }

    #[test]
    fn the_holder_stops_before_others_begin() {
        let start = Instant::now();
        let fence = Fence::new(false, start);
        let instant = Duration::from_millis(1);
        assert!(TRUST < TERM && fence.holds_at(start) && !fence.holds_at(start + TRUST));
        fence.renewed(start + BEAT);
        assert!(fence.holds_at(start + TRUST + instant));
        assert!(!fence.holds_at(start + BEAT + TRUST));
        assert!(Fence::new(true, start).holds_at(start + 100 * TERM));
    }
}
