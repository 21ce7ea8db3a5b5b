//! What is counted and measured, in the text form of Prometheus.
//!
//! What must stay true: labels come from the configuration and from fixed lists, never from a
//! request, so that nobody can make the number of series grow.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::{Method, StatusCode};
use cheops_core::id::ServiceName;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::{
    api::{Context, model},
    expiry::seconds_until,
    node::Health,
    peers::{Peer, State},
    trust::{Identity, people},
};

/// The boundaries of durations, in seconds.
const SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

/// All that is counted. A handle; clones share it.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    requests: Family<Answered, Counter>,
    durations: Histogram,
    passed: Family<Passed, Counter>,
    refused: Family<Refused, Counter>,
    /// There are none where CouchDB does not replicate.
    replicated: Family<Replicated, Gauge>,
    asleep: Family<Vec<(String, String)>, Gauge>,
    audit: AuditGauges,
    gauges: Gauges,
    links: Links,
    hooks: HookGauges,
    /// There is none where the API has no certificate.
    certificate: Family<Vec<(String, String)>, Gauge>,
    ends: Ends,
}

/// Of what ends by itself, and of what does not.
#[derive(Debug, Default)]
struct Ends {
    certificates: Family<Which, Gauge>,
    of_sites: Family<Site, Gauge>,
    key_age: Family<Vec<(String, String)>, Gauge>,
    tokens: Gauge,
    next_token: Family<Vec<(String, String)>, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Which {
    certificate: &'static str,
}

/// Of the audit.
#[derive(Debug, Default)]
struct AuditGauges {
    written: Gauge,
    lost: Gauge,
    unwritten: Gauge,
    failing: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    limit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Replicated {
    documents: &'static str,
}

/// Of each hook.
#[derive(Debug, Default)]
struct HookGauges {
    waiting: Family<Hook, Gauge>,
    delivered: Family<Hook, Gauge>,
    dropped: Family<Hook, Gauge>,
    failing: Family<Hook, Gauge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Hook {
    hook: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Passed {
    service: String,
    status: &'static str,
}

/// What is counted of the requests to one service.
#[derive(Debug, Clone)]
pub struct Service([Counter; 5]);

impl Service {
    /// A request was answered.
    pub fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).saturating_sub(1);
        if let Some(counter) = self.0.get(class) {
            counter.inc();
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Site {
    site: String,
}

/// Of the whole site.
#[derive(Debug, Default)]
struct Gauges {
    resources: Gauge,
    operations: Gauge,
    written: Gauge,
    can_write: Gauge,
    sheltered: Gauge,
    running: Gauge,
    waiting: Gauge,
    stuck: Gauge,
}

/// Of each link.
#[derive(Debug, Default)]
struct Links {
    reachable: Family<Site, Gauge>,
    round_trip: Family<Site, Gauge<f64, std::sync::atomic::AtomicU64>>,
    lag: Family<Site, Gauge<f64, std::sync::atomic::AtomicU64>>,
    clock_offset: Family<Site, Gauge<f64, std::sync::atomic::AtomicU64>>,
    queue_bytes: Family<Site, Gauge>,
    dropped: Family<Site, Gauge>,
    refused: Family<Site, Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("cheops");
        let requests = Family::<Answered, Counter>::default();
        registry.register("requests", "Requests to the API", requests.clone());
        let durations = Histogram::new(SECONDS);
        registry.register("request_seconds", "How long requests took", durations.clone());
        let passed = Family::<Passed, Counter>::default();
        let help = "Requests of the application, by service and sort of answer";
        registry.register("mesh_requests", help, passed.clone());
        let refused = Family::<Refused, Counter>::default();
        registry.register("refused", "Requests over a limit, by limit", refused.clone());
        let replicated = Family::<Replicated, Gauge>::default();
        let help = "Documents that the CouchDB of other sites brought, by what became of them";
        registry.register("replicated", help, replicated.clone());
        let asleep = Family::<Vec<(String, String)>, Gauge>::default();
        let help = "Jobs of CouchDB's replication that have failed, and are woken when that helps";
        registry.register("replication_failing", help, asleep.clone());
        let audit = AuditGauges::default();
        for (name, help, gauge) in [
            ("audit_written", "Lines of the audit that were written", &audit.written),
            ("audit_lost", "Events that no line of the audit tells of", &audit.lost),
            ("audit_unwritten", "Refusals without a line of their own", &audit.unwritten),
            ("audit_failing", "1 if the audit can't be written", &audit.failing),
        ] {
            registry.register(name, help, gauge.clone());
        }
        let (gauges, links) = (Gauges::default(), Links::default());
        for (name, help, gauge) in [
            ("resources", "Resources at this site", &gauges.resources),
            ("operations", "Operations known at this site", &gauges.operations),
            ("written", "The number of the last record that is durable", &gauges.written),
            ("can_write", "1 if operations are accepted", &gauges.can_write),
            (
                "local_journal_bytes",
                "Bytes of what is accepted and waits for CouchDB",
                &gauges.sheltered,
            ),
            ("runs_running", "Commands that run now", &gauges.running),
            ("runs_waiting", "Commands that wait for a place to run", &gauges.waiting),
            ("runs_stuck", "Commands that can't be started, and are tried again", &gauges.stuck),
        ] {
            registry.register(name, help, gauge.clone());
        }
        registry.register("site_reachable", "1 if there is a link", links.reachable.clone());
        registry.register("site_round_trip_seconds", "The round trip", links.round_trip.clone());
        let lag = "For how long the two have not been known to agree";
        registry.register("site_lag_seconds", lag, links.lag.clone());
        let offset = "By how much the clock of the site is ahead";
        registry.register("site_clock_offset_seconds", offset, links.clock_offset.clone());
        registry.register("site_queue_bytes", "What waits to be sent", links.queue_bytes.clone());
        let dropped = "Messages that were dropped because the queue was full";
        registry.register("site_dropped", dropped, links.dropped.clone());
        let doubted = "What the site sent and was refused: forged, altered, or not to be read";
        registry.register("site_refused", doubted, links.refused.clone());
        let hooks = HookGauges::default();
        for (name, help, family) in [
            ("hook_waiting", "Events that wait to be told", &hooks.waiting),
            ("hook_delivered", "Events that were delivered", &hooks.delivered),
            ("hook_dropped", "Events that were given up", &hooks.dropped),
            ("hook_failing", "1 if the last attempt to tell failed", &hooks.failing),
        ] {
            registry.register(name, help, family.clone());
        }
        let certificate = Family::<Vec<(String, String)>, Gauge>::default();
        let help = "When the certificate of the API ends, in seconds since 1970";
        registry.register("api_certificate_expiry_timestamp_seconds", help, certificate.clone());
        let ends = Ends::default();
        let help = "In how many seconds a certificate of this site ends; below 0 if it has";
        registry.register("certificate_remaining_seconds", help, ends.certificates.clone());
        let help = "In how many seconds the certificate ends that a site has shown on its link";
        registry.register("site_certificate_remaining_seconds", help, ends.of_sites.clone());
        let help = "For how long this site has had its key, which does not end";
        registry.register("key_age_seconds", help, ends.key_age.clone());
        registry.register("access_tokens", "Tokens of people that count", ends.tokens.clone());
        let help = "In how many seconds the first of them ends";
        registry.register("access_token_remaining_seconds", help, ends.next_token.clone());
        Self(Arc::new(Inner {
            registry,
            requests,
            durations,
            passed,
            refused,
            replicated,
            asleep,
            audit,
            gauges,
            links,
            hooks,
            certificate,
            ends,
        }))
    }
}

impl Metrics {
    /// A request was answered.
    pub fn answered(&self, method: &Method, status: StatusCode, took: Duration) {
        let method = match *method {
            Method::GET | Method::POST | Method::DELETE | Method::HEAD => method.to_string(),
            _ => "other".to_owned(),
        };
        let labels = Answered { method, status: status.as_u16() };
        self.0.requests.get_or_create(&labels).inc();
        self.0.durations.observe(took.as_secs_f64());
    }

    /// A request was over a limit.
    pub fn refused(&self, limit: &'static str) {
        self.0.refused.get_or_create(&Refused { limit }).inc();
    }

    /// The counters of a service.
    pub fn service(&self, name: &ServiceName) -> Service {
        let counter = |status| {
            let labels = Passed { service: name.to_string(), status };
            self.0.passed.get_or_create(&labels).clone()
        };
        Service(["1xx", "2xx", "3xx", "4xx", "5xx"].map(counter))
    }

    /// Everything, as it is now.
    pub fn text(&self, context: &Context, resources: usize, operations: usize) -> String {
        let Gauges {
            resources: n,
            operations: ops,
            written,
            can_write,
            sheltered,
            running,
            waiting,
            stuck,
        } = &self.0.gauges;
        n.set(signed(resources));
        ops.set(signed(operations));
        written.set(i64::try_from(context.node.feed().last()).unwrap_or(i64::MAX));
        can_write.set((context.node.health() == Health::Well).into());
        let waits = context.node.feed().waiting().map_or(0, |waiting| waiting.bytes);
        sheltered.set(i64::try_from(waits).unwrap_or(i64::MAX));
        let workload = context.runner.workload();
        running.set(signed(workload.running));
        waiting.set(signed(workload.waiting));
        stuck.set(signed(workload.stuck));
        let (how, gauges) = (context.audit.how(), &self.0.audit);
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        gauges.written.set(count(how.written));
        gauges.lost.set(count(how.lost));
        gauges.unwritten.set(count(how.unwritten));
        gauges.failing.set((how.failing.is_some() || how.unsigned.is_some()).into());
        if let Some(replication) = &context.replication {
            for (documents, brought) in replication.brought() {
                self.0.replicated.get_or_create(&Replicated { documents }).set(count(brought));
            }
            self.0.asleep.get_or_create(&Vec::new()).set(signed(replication.asleep()));
        }
        for peer in context.peers.view() {
            self.link(&peer);
        }
        self.hooks(&context.hooks.list());
        if let Some(certificate) = &context.certificate {
            let ends = certificate.expires().duration_since(UNIX_EPOCH).unwrap_or_default();
            let ends = i64::try_from(ends.as_secs()).unwrap_or(i64::MAX);
            self.0.certificate.get_or_create(&Vec::new()).set(ends);
        }
        self.ends(context);
        let mut text = String::new();
        match encode(&mut text, &self.0.registry) {
            Ok(()) => text,
            Err(error) => format!("# {error}\n# EOF\n"),
        }
    }

    /// What is not there any more leaves nothing.
    fn ends(&self, context: &Context) {
        let Ends { certificates, of_sites, key_age, tokens, next_token } = &self.0.ends;
        let now = SystemTime::now();
        let set = |certificate, end| {
            let gauge = certificates.get_or_create(&Which { certificate });
            gauge.set(seconds_until(end, now));
        };
        if let Some(certificate) = &context.certificate {
            set("api", certificate.expires());
        }
        if let Some(pki) = context.peers.pki() {
            set("links", pki.valid().until);
        }
        of_sites.clear();
        for peer in context.peers.view() {
            if let Some(end) = peer.certificate {
                let site = Site { site: peer.site.to_string() };
                of_sites.get_or_create(&site).set(seconds_until(end, now));
            }
        }
        if let Some(made) = Identity::made(&context.config.data) {
            key_age.get_or_create(&Vec::new()).set(-seconds_until(made, now));
        }
        let (all, now) = (context.access.grants.all(), people::now());
        let counts = all.iter().filter(|(grant, revoked)| revoked.is_none() && grant.holds_at(now));
        let ends: Vec<u64> = counts.map(|(grant, _)| grant.expires.0 - now.0).collect();
        tokens.set(signed(ends.len()));
        next_token.clear();
        if let Some(first) = ends.iter().min() {
            let first = i64::try_from(first / 1_000).unwrap_or(i64::MAX);
            next_token.get_or_create(&Vec::new()).set(first);
        }
    }

    /// A hook that is gone leaves nothing, so that there are never more series than hooks.
    fn hooks(&self, hooks: &[model::Hook]) {
        let HookGauges { waiting, delivered, dropped, failing } = &self.0.hooks;
        for family in [waiting, delivered, dropped, failing] {
            family.clear();
        }
        for hook in hooks {
            let label = Hook { hook: hook.name.clone() };
            let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            waiting.get_or_create(&label).set(signed(hook.waiting));
            delivered.get_or_create(&label).set(count(hook.delivered));
            dropped.get_or_create(&label).set(count(hook.dropped));
            failing.get_or_create(&label).set(hook.failing_since.is_some().into());
        }
    }

    fn link(&self, peer: &Peer) {
        let links = &self.0.links;
        let site = Site { site: peer.site.to_string() };
        links.reachable.get_or_create(&site).set((peer.state == State::Reachable).into());
        if let Some(round_trip) = peer.round_trip {
            links.round_trip.get_or_create(&site).set(round_trip.as_secs_f64());
        }
        if let Some(lag) = peer.lag {
            links.lag.get_or_create(&site).set(lag.as_secs_f64());
        }
        if let Some(offset) = peer.clock_offset {
            let offset = Duration::from_millis(offset.unsigned_abs()).as_secs_f64()
                * if offset < 0 { -1.0 } else { 1.0 };
            links.clock_offset.get_or_create(&site).set(offset);
        }
        links.queue_bytes.get_or_create(&site).set(signed(peer.queue.bytes));
        links.dropped.get_or_create(&site).set(i64::try_from(peer.dropped).unwrap_or(i64::MAX));
        links.refused.get_or_create(&site).set(i64::try_from(peer.refused).unwrap_or(i64::MAX));
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
