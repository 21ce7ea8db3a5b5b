//! The jobs of replication at this site's server: one for each site that it shares a resource with.
//!
//! A job that fails is put to sleep by CouchDB, for hours in the end. What must stay true:
//! - the jobs that are there are those that are wanted, and no other of this site's;
//! - a job that failed is made anew when its site can be reached, at once the first time and then less and less often;
//! - a site of which it is not known yet whether it takes part keeps the job that it has;
//! - no password is in an address.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cheops_core::{id::SiteId, replica::Replica};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{select, time::sleep};

use super::Shared;
use crate::engine::couchdb::{Trouble, encoded, refused};

/// How often it is looked who shares something, and how often what jobs there are.
const LOOK: Duration = Duration::from_secs(2);
const CHECK: Duration = Duration::from_secs(30);
/// How long to wait before a job is made anew that fails again, at first and at most.
const FIRST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_mins(1);
/// Where the server has its jobs.
const JOBS: &str = "/_replicator";
/// How a job is that CouchDB does not try now, or no more.
const ASLEEP: [&str; 3] = ["crashing", "error", "failed"];

/// A job that fails, and how often it did since it last went well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Failing {
    times: u32,
    /// When it was last made anew.
    woken: Option<Instant>,
    /// Whether it has failed since.
    asleep: bool,
}

impl Failing {
    pub(super) fn failed(&mut self, now: Instant) {
        // Requests that were under way when the job was made anew fail once more.
        if !self.asleep && self.woken.is_none_or(|woken| now >= woken) {
            self.asleep = true;
            self.times += 1;
        }
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Whether it is to be made anew now.
    fn is_due(&self, now: Instant) -> bool {
        let pause = FIRST.saturating_mul(1 << self.times.saturating_sub(1).min(10)).min(LONGEST);
        self.asleep && self.woken.is_none_or(|woken| now.duration_since(woken) >= pause)
    }

    fn woke(&mut self, now: Instant) {
        (self.woken, self.asleep) = (Some(now), false);
    }

    /// Whether it goes well by now.
    fn is_over(&self, now: Instant) -> bool {
        !self.asleep && self.woken.is_none_or(|woken| now.duration_since(woken) > 2 * LONGEST)
    }
}

/// What is there of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
struct There {
    id: String,
    revision: String,
    /// The site that it is for, if its id names one.
    site: Option<SiteId>,
    fields: Map<String, Value>,
}

/// What is done: jobs that are removed, by their ids and revisions, and then jobs that are made.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    remove: Vec<(String, String)>,
    make: Vec<SiteId>,
}

/// What makes the jobs that are there those that are wanted. Two jobs never have the same id or are the same
/// otherwise: a server may take the second for the first, which it has ended.
fn steps(
    wanted: &BTreeMap<SiteId, Value>,
    there: &[There],
    asleep: &BTreeSet<SiteId>,
    unknown: &BTreeSet<SiteId>,
) -> Steps {
    let (mut steps, mut good) = (Steps::default(), BTreeSet::new());
    for found in there {
        let stays = found.site.as_ref().is_some_and(|site| {
            let right = wanted.get(site).is_some_and(|job| found.is(job));
            let awake = right && !asleep.contains(site) && good.insert(site.clone());
            awake || unknown.contains(site)
        });
        if !stays {
            steps.remove.push((found.id.clone(), found.revision.clone()));
        }
    }
    steps.make = wanted.keys().filter(|site| !good.contains(*site)).cloned().collect();
    steps
}

impl There {
    /// A document of the database of jobs, whose id begins like those of this site's.
    fn read(fields: Map<String, Value>, prefix: &str) -> Option<Self> {
        let text = |name: &str| fields.get(name)?.as_str().map(ToOwned::to_owned);
        let (id, revision) = (text("_id")?, text("_rev")?);
        let named = id.strip_prefix(prefix).and_then(|rest| rest.rsplit_once(':'));
        let site = named.and_then(|(site, _)| site.parse().ok());
        Some(Self { id, revision, site, fields })
    }

    /// Whether it says the same as a job. The server adds fields of its own.
    fn is(&self, job: &Value) -> bool {
        let same = |(name, value): (&String, &Value)| self.fields.get(name) == Some(value);
        job.as_object().is_some_and(|job| job.iter().all(same))
            && self.fields.contains_key("selector") == job.get("selector").is_some()
    }

    /// Whether the server has written that it does not go on with it: it is meant to go on for ever.
    fn is_over(&self) -> bool {
        let state = self.fields.get("_replication_state").and_then(Value::as_str);
        state.is_some_and(|state| state == "completed" || ASLEEP.contains(&state))
    }
}

/// Keeps the jobs right, for ever.
pub(super) async fn keep(shared: Arc<Shared>) {
    let (mut last, mut checked, mut silent) = (BTreeSet::new(), None::<Instant>, false);
    let mut links = shared.peers.links();
    loop {
        let Ok(sharing) = shared.node.read(sharing).await else { return };
        let now = Instant::now();
        let linked: BTreeSet<SiteId> = shared.peers.reachable().into_iter().collect();
        let wanted = Wanted::of(&shared, &sharing);
        let due: BTreeSet<SiteId> = {
            let mut failing = shared.failing();
            failing.retain(|_, failing| !failing.is_over(now));
            let due = failing.iter().filter(|(site, f)| linked.contains(*site) && f.is_due(now));
            due.map(|(site, _)| site.clone()).collect()
        };
        let late = checked.is_none_or(|at| now.duration_since(at) >= CHECK);
        if late || !due.is_empty() || wanted.yes != last {
            // A task of its own, so that none is made behind the back of an agent that stops in the middle of this.
            let (wanted_now, reconciling) = (wanted.yes.clone(), shared.clone());
            let reconciled =
                tokio::spawn(async move { reconciling.reconcile(&wanted, &due).await });
            let Ok(reconciled) = reconciled.await else { return };
            match reconciled {
                Ok(()) => (last, checked, silent) = (wanted_now, Some(now), false),
                Err(trouble) => {
                    if !silent {
                        tracing::warn!(
                            "jobs of CouchDB's replication can't be kept right: {trouble}; the links carry all records meanwhile"
                        );
                    }
                    (silent, checked) = (true, Some(now));
                }
            }
        }
        select! {
            () = sleep(LOOK) => {}
            _ = links.changed() => {}
        }
    }
}

/// The sites that this one shares something with.
fn sharing(replica: &Replica) -> BTreeSet<SiteId> {
    replica.sharing().cloned().collect()
}

/// Which sites are to have a job.
struct Wanted {
    yes: BTreeSet<SiteId>,
    /// Those that may turn out to be.
    unknown: BTreeSet<SiteId>,
}

impl Wanted {
    fn of(shared: &Shared, sharing: &BTreeSet<SiteId>) -> Self {
        let learned = shared.peers.learned();
        let of = |known: Option<bool>| {
            let sites = shared.peers.sites().into_iter().filter(|site| sharing.contains(site));
            let said = |site: &SiteId| learned.get(site).map(|learned| learned.replicates);
            sites.filter(|site| said(site) == known).collect()
        };
        Self { yes: of(Some(true)), unknown: of(None) }
    }
}

impl Shared {
    /// Makes, wakes and removes jobs as is due.
    async fn reconcile(&self, wanted: &Wanted, due: &BTreeSet<SiteId>) -> Result<(), Trouble> {
        let stopped = self.stopped.lock().await;
        if *stopped {
            return Ok(());
        }
        let there = self.there().await?;
        let mut asleep = due.clone();
        let mut over: BTreeSet<&str> = BTreeSet::new();
        let listed = if self.dialect.schedules() { self.asleep().await? } else { BTreeSet::new() };
        over.extend(there.iter().filter(|found| found.is_over()).map(|found| found.id.as_str()));
        over.extend(listed.iter().map(String::as_str));
        {
            let (mut failing, now) = (self.failing(), Instant::now());
            let found = there.iter().filter(|found| over.contains(found.id.as_str()));
            for site in found.filter_map(|found| found.site.as_ref()) {
                let failing = failing.entry(site.clone()).or_default();
                failing.failed(now);
                if failing.is_due(now) && self.peers.linked(site).is_ok() {
                    asleep.insert(site.clone());
                }
            }
        }
        let jobs: BTreeMap<SiteId, Value> =
            wanted.yes.iter().map(|site| (site.clone(), self.job(site))).collect();
        let Steps { remove, make } = steps(&jobs, &there, &asleep, &wanted.unknown);
        for (id, revision) in remove {
            self.remove(&id, &revision).await?;
        }
        for site in make {
            let number = format!("{:08x}", fastrand::u32(..));
            let id = format!("{}{site}:{number}", self.prefix());
            let path = format!("{JOBS}/{}", encoded(&id));
            let mut job = jobs[&site].clone();
            job["cheops_number"] = number.into();
            self.server.ask::<Value>(&Method::PUT, &path, job.to_string()).await?;
            tracing::debug!("the job `{id}` is made");
            if let Some(failing) = self.failing().get_mut(&site) {
                failing.woke(Instant::now());
            }
        }
        Ok(())
    }

    async fn remove(&self, id: &str, revision: &str) -> Result<(), Trouble> {
        let path = format!("{JOBS}/{}?rev={}", encoded(id), encoded(revision));
        self.server.ask::<Value>(&Method::DELETE, &path, Bytes::new()).await.map(drop)
    }

    /// Removes all jobs of this site. The server writes to them as well, so that a revision may be old by the time
    /// that it is named: such a job is looked up again.
    pub(super) async fn end_jobs(&self) -> Result<(), Trouble> {
        loop {
            let mut is_done = true;
            for There { id, revision, .. } in self.there().await? {
                match self.remove(&id, &revision).await {
                    Err(Trouble::Refused { status: StatusCode::CONFLICT, .. }) => is_done = false,
                    removed => removed?,
                }
            }
            if is_done {
                return Ok(());
            }
        }
    }

    /// Says what it means that jobs could not be removed.
    pub(super) fn jobs_stay(&self, why: &str) {
        let relay = self.relay;
        tracing::warn!(
            "failed to remove the jobs of CouchDB's replication ({why}): if there are any, whoever listens on {relay} until this agent is back is sent records"
        );
    }

    /// What the ids of this site's jobs begin with: several sites may have databases at one server.
    fn prefix(&self) -> String {
        format!("cheops:{}:", self.config.database)
    }

    /// The job that carries documents to a site.
    fn job(&self, site: &SiteId) -> Value {
        let url = self.config.url.to_string();
        let source = format!("{}/{}", url.trim_end_matches('/'), self.config.database);
        let mut headers = json!({});
        if let Some(authorization) = self.server.authorization() {
            headers["Authorization"] = authorization.into();
        }
        let relay = match &self.config.relay_name {
            Some(name) => format!("https://{name}:{}", self.relay.port()),
            None => format!("http://{}", self.relay),
        };
        let target = format!("{relay}/{}", encoded(site.as_str()));
        let mut job = json!({
            "source": {"url": source, "headers": headers},
            "target": {"url": target, "headers": {"Authorization": self.entry}},
            "continuous": true,
            "create_target": false,
        });
        if self.dialect.selects() {
            job["selector"] = json!({"Locations": {"$elemMatch": {"$eq": site.as_str()}}});
        }
        job
    }

    /// The jobs of this site that are there.
    async fn there(&self) -> Result<Vec<There>, Trouble> {
        #[derive(Deserialize)]
        struct Rows {
            rows: Vec<Row>,
        }
        #[derive(Deserialize)]
        struct Row {
            doc: Option<Map<String, Value>>,
        }
        let (from, to) = (self.prefix(), format!("{}\u{fff0}", self.prefix()));
        let path = format!(
            "{JOBS}/_all_docs?include_docs=true&startkey={}&endkey={}",
            encoded(&json!(from).to_string()),
            encoded(&json!(to).to_string()),
        );
        let found = match self.server.ask::<Rows>(&Method::GET, &path, Bytes::new()).await {
            Err(Trouble::Refused { status: StatusCode::NOT_FOUND, .. }) => {
                self.make_database().await?;
                return Ok(Vec::new());
            }
            found => found?,
        };
        let there = found.rows.into_iter().filter_map(|row| There::read(row.doc?, &from));
        Ok(there.collect())
    }

    async fn make_database(&self) -> Result<(), Trouble> {
        match self.server.answer(&Method::PUT, JOBS, Bytes::new()).await? {
            (status, _) if status.is_success() => Ok(()),
            // Somebody else was faster.
            (StatusCode::PRECONDITION_FAILED, _) => Ok(()),
            (status, bytes) => Err(refused(status, &bytes)),
        }
    }

    /// The jobs that CouchDB does not try now, or no more.
    async fn asleep(&self) -> Result<BTreeSet<String>, Trouble> {
        #[derive(Deserialize)]
        struct Listed {
            docs: Vec<Job>,
        }
        #[derive(Deserialize)]
        struct Job {
            doc_id: String,
            state: Option<String>,
        }
        let path = format!("/_scheduler/docs{JOBS}?limit=100000");
        let listed: Listed = self.server.ask(&Method::GET, &path, Bytes::new()).await?;
        let asleep = |job: &Job| job.state.as_deref().is_some_and(|s| ASLEEP.contains(&s));
        Ok(listed.docs.into_iter().filter(asleep).map(|job| job.doc_id).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_made_woken_and_removed_as_is_due() {
        let site = |name: &str| name.parse::<SiteId>().unwrap();
        let job = |target: &str| json!({"target": target, "continuous": true});
        let wanted = ["new", "same", "moved", "asleep", "selects", "twice"];
        let wanted: BTreeMap<SiteId, Value> =
            wanted.map(|name| (site(name), job(name))).into_iter().collect();
        let there = [
            ("jobs:same:1", json!({"target": "same", "_replication_state": "triggered"})),
            ("jobs:moved:1", json!({"target": "elsewhere"})),
            ("jobs:asleep:1", json!({"target": "asleep"})),
            ("jobs:selects:1", json!({"target": "selects", "selector": {}})),
            ("jobs:twice:1", json!({"target": "twice"})),
            ("jobs:twice:2", json!({"target": "twice"})),
            ("jobs:gone:1", json!({"target": "gone"})),
            ("jobs:unknown:1", json!({"target": "unknown"})),
            ("jobs:strange", json!({"target": "strange"})),
        ];
        let there = there.map(|(id, mut fields)| {
            fields["_id"] = id.into();
            fields["_rev"] = "1-a".into();
            fields["continuous"] = true.into();
            let Value::Object(fields) = fields else { panic!("no fields") };
            There::read(fields, "jobs:").unwrap()
        });
        let names = |name: &str| [site(name)].into();
        let found = steps(&wanted, &there, &names("asleep"), &names("unknown"));
        let removed = ["moved:1", "asleep:1", "selects:1", "twice:2", "gone:1", "strange"];
        let removed = removed.map(|id| (format!("jobs:{id}"), "1-a".to_owned()));
        let make = ["asleep", "moved", "new", "selects"].map(site);
        assert_eq!(found, Steps { remove: removed.into(), make: make.into() });
    }

    #[test]
    fn a_job_that_has_an_end_is_over() {
        for (state, expected) in [
            (json!("triggered"), false),
            (json!("completed"), true),
            (json!("error"), true),
            (json!("failed"), true),
            (Value::Null, false),
        ] {
            let fields = json!({"_id": "jobs:a:1", "_rev": "1-a", "_replication_state": state});
            let Value::Object(fields) = fields else { panic!("no fields") };
            assert_eq!(There::read(fields, "jobs:").unwrap().is_over(), expected, "{state}");
        }
    }

    #[test]
    fn a_job_that_fails_again_is_left_alone_for_longer() {
        let start = Instant::now();
        let mut failing = Failing::default();
        assert!(!failing.is_due(start));
        failing.failed(start);
        assert!(failing.is_due(start), "the first time at once");
        failing.woke(start);
        let (mut now, mut pauses) = (start, Vec::new());
        for _ in 0..8 {
            failing.failed(now);
            failing.failed(now);
            let since = now;
            while !failing.is_due(now) {
                now += Duration::from_secs(1);
            }
            pauses.push(now.duration_since(since).as_secs());
            failing.woke(now);
        }
        assert_eq!(pauses, [4, 8, 16, 32, 60, 60, 60, 60]);
        assert!(!failing.is_over(now) && failing.is_over(now + 3 * LONGEST));
    }
}
