//! All that an agent's API can say, in such words as we like.
//!
//! What must stay true: whatever is text is one of [`Words`]; whoever adds a field to the API adds it here.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, Query, Request},
    http::{Method, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use cheops_agent::api::model::{
    Catalogue, Dropped, Fate, File, Grid, GridCell, GridRow, GridSite, Hook, HookTested, Hooks,
    Offer, Operation, PlannedStep, Pong, Problem, Queue, Receipt, Rehearsal, Replica, Replicant,
    Resource, ResourceAtSite, ResourceSummary, Resources, Run, RunStatus, Shown, ShownAt, Site,
    SiteState, Sites, State, Stored, Submitted, Trouble, TroubleCount, Troubles, Urgency,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::fake::{Mood, Words};

/// Where the change feed is.
const FEED: &str = "/api/v1/changes";

/// What it says.
#[derive(Clone)]
pub(super) struct Says {
    words: Words,
    full: bool,
    /// How often it was asked, so that what is shown changes.
    asked: Arc<AtomicUsize>,
    /// Whether the link to the second site is paused.
    paused: Arc<AtomicBool>,
}

/// What is asked besides the path.
type Asked = Query<BTreeMap<String, String>>;

impl Says {
    /// Much, or nothing at all.
    pub(super) fn new(words: Words, full: bool) -> Self {
        Self { words, full, asked: Arc::default(), paused: Arc::default() }
    }

    pub(super) fn api(&self, mood: Arc<Mutex<Mood>>) -> Router {
        macro_rules! says {
            ($answer:ident) => {{
                let says = self.clone();
                move || async move { Json(says.$answer()) }
            }};
        }
        let says = self.clone();
        let refuse = move |request: Request, next: Next| {
            let answer = match *mood.lock().unwrap() {
                Mood::Refuses if request.method() != Method::GET => {
                    Some(says.problem("refused", 409))
                }
                Mood::Fails if request.uri().path() != FEED => Some(says.problem("broken", 503)),
                _ => None,
            };
            async move {
                match answer {
                    Some(problem) => problem,
                    None => next.run(request).await,
                }
            }
        };
        let pause = |pauses: bool| {
            let paused = self.paused.clone();
            move || async move {
                paused.store(pauses, Ordering::Relaxed);
                StatusCode::NO_CONTENT
            }
        };
        let (of, at, run, output, words) =
            (self.clone(), self.clone(), self.clone(), self.words.text("output"), self.words);
        Router::new()
            .route("/api/v1/sites", get(says!(sites)))
            .route("/api/v1/catalogue", get(says!(catalogue)))
            .route("/api/v1/problems", get(says!(problems)))
            .route("/api/v1/problems/count", get(says!(problem_count)))
            .route("/api/v1/hooks", get(says!(hooks)).post(says!(hooks)))
            .route("/api/v1/hooks/{name}", delete(|| async { StatusCode::NO_CONTENT }))
            .route("/api/v1/hooks/{name}/test", post(says!(tested)))
            .route("/api/v1/grid", get(says!(grid)))
            .route("/api/v1/resources", get(move |asked: Asked| async move { at.at(&asked) }))
            .route(
                "/api/v1/resources/{id}",
                get(move |Path(id): Path<String>, asked: Asked| async move { of.of(&id, &asked) })
                    .delete(says!(submitted)),
            )
            .route("/api/v1/replicants/{id}", get(says!(replicant)))
            .route(
                "/api/v1/resources/{id}/operations",
                post(move |body: Json<Value>| async move { run.run(&body) }),
            )
            .route("/api/v1/resources/{id}/operations/{op}", get(says!(lost)))
            .route(
                "/api/v1/resources/{id}/operations/{op}/output",
                get(move || async move { output.into_bytes() }),
            )
            .route("/api/v1/resources/{id}/show", post(says!(shown)))
            .route("/api/v1/sites/{name}/ping", post(says!(pong)))
            .route("/api/v1/sites/{name}/pause", post(pause(true)))
            .route("/api/v1/sites/{name}/resume", post(pause(false)))
            .route("/api/v1/files", post(says!(stored)))
            .route(FEED, get(move || async move { changes(words) }))
            .layer(middleware::from_fn(refuse))
    }

    fn text(&self, word: &str) -> String {
        self.words.text(word)
    }

    fn all<T>(&self, all: Vec<T>) -> Vec<T> {
        if self.full { all } else { Vec::new() }
    }

    fn problem(&self, kind: &str, status: u16) -> Response {
        let problem = Problem {
            kind: kind.to_owned(),
            title: self.text("title"),
            status,
            detail: self.text("detail"),
            hint: self.text("hint"),
        };
        (StatusCode::from_u16(status).unwrap(), Json(problem)).into_response()
    }

    fn sites(&self) -> Sites {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        let site = |name: String, state: SiteState| Site {
            name,
            state,
            paused_until: Some(self.words.time("until")),
            address: Some(self.text("address")),
            key: self.text("key"),
            #[allow(clippy::cast_precision_loss, reason = "it is small")]
            round_trip_ms: Some(asked as f64),
            last_seen: Some(self.words.time("seen")),
            lag_ms: Some(7),
            queue: Queue { messages: 3, bytes: 4_000 },
            resources: 12,
            unanswered: 3,
            clock_offset_ms: None,
            key_since: None,
            certificate_expires: None,
            api_certificate_expires: None,
            error: Some(self.text("error")),
        };
        let paused = self.paused.load(Ordering::Relaxed);
        let others = [
            (self.text("site2"), if paused { SiteState::Paused } else { SiteState::Reachable }),
            (self.text("site3"), SiteState::Unreachable),
            (self.text("site4"), SiteState::Paused),
        ];
        let others = self.all(others.into_iter().map(|(name, state)| site(name, state)).collect());
        let here = site("site1".to_owned(), SiteState::Here);
        Sites { here: "site1".to_owned(), sites: [vec![here], others].concat() }
    }

    fn catalogue(&self) -> Catalogue {
        // Where a page could be that no browser should be sent to, and one where it could.
        let pages = [
            "javascript:window.ran=1".to_owned(),
            "data:text/html,<script>window.ran=1</script>".to_owned(),
            "http://site4.example/\"onclick=window.ran=1".to_owned(),
        ];
        let sites = self.words.texts(&["site2", "site3", "site4"]);
        let round_trips_ms: BTreeMap<String, f64> =
            sites.iter().cloned().map(|site| (site, 3.0)).collect();
        let offer = |(site, page): (&String, String)| Offer {
            site: site.clone(),
            services: vec![self.text("service")],
            round_trips_ms: round_trips_ms.clone(),
            cut: [sites[1].clone()].into(),
            page: Some(page),
            replicates: false,
        };
        let offers = sites.iter().zip(pages).map(offer).collect();
        Catalogue { here: "site1".to_owned(), sites: self.all(offers) }
    }

    fn problems(&self) -> Troubles {
        let urgencies = [Urgency::High, Urgency::Medium, Urgency::Low];
        let trouble = |(urgency, word): (Urgency, &str)| Trouble {
            urgency,
            site: self.text("site2"),
            resource: Some(self.text(word)),
            what: self.text("what"),
            text: self.text("text"),
            next: self.text("next"),
        };
        let troubles = urgencies.into_iter().zip(["web~1", "mail", "dns"]).map(trouble).collect();
        Troubles { problems: self.all(troubles), not_asked: self.all(vec![self.text("site3")]) }
    }

    fn problem_count(&self) -> TroubleCount {
        let sites = self.all(vec![(self.text("site2"), 2)]);
        TroubleCount {
            sites: sites.into_iter().collect(),
            not_asked: self.all(vec![self.text("site3")]),
        }
    }

    fn hooks(&self) -> Hooks {
        let hook = |name: &str| Hook {
            name: self.text(name),
            on: vec![self.text("on")],
            mode: self.text("mode"),
            way: self.text("way"),
            to: self.text("to"),
            resources: vec![self.text("pattern")],
            kinds: vec![self.text("kind")],
            sites: vec![self.text("site2")],
            added: true,
            waiting: 3,
            delivered: 4,
            dropped: 1,
            last_delivery: Some(self.words.time("delivery")),
            failing_since: Some(self.words.time("since")),
            last_error: Some(self.text("last")),
        };
        Hooks { site: "site1".to_owned(), hooks: self.all(vec![hook("hook")]), unfollowed: 0 }
    }

    fn tested(&self) -> HookTested {
        let error = Some(self.text("untold"));
        HookTested { hook: self.text("hook"), delivered: false, took_ms: 7, error }
    }

    fn grid(&self) -> Grid {
        let sites = self.words.texts(&["site2", "site3", "site4"]);
        let site = |name: &String| GridSite {
            name: name.clone(),
            answered: *name == sites[0],
            last_seen: Some(self.words.time("seen")),
            why: Some(self.text("why")),
        };
        let states = [State::Settled, State::Diverged, State::NeedsDecision];
        let cell = |(name, state): (&String, State)| {
            (name.clone(), GridCell { state, told_by: Some(self.text("teller")) })
        };
        let row = |word: &str| GridRow {
            id: self.text(word),
            deleting: true,
            updated: Some(self.words.time("updated")),
            cells: sites.iter().zip(states).map(cell).collect(),
        };
        Grid {
            site: "site1".to_owned(),
            sites: self.all(sites.iter().map(site).collect()),
            rows: self.all(["web~1", "mail", "dns"].map(row).to_vec()),
            next: self.full.then(|| self.text("after")),
        }
    }

    fn summary(&self, id: String) -> ResourceSummary {
        let sites =
            [vec!["site1".to_owned()], self.words.texts(&["site2", "site3", "site4"])].concat();
        ResourceSummary {
            id,
            state: State::Diverged,
            deleting: true,
            removed: Vec::new(),
            parts: vec![sites[..2].to_vec(), sites[2..].to_vec()],
            sites,
            operation_count: if self.full { 9 } else { 0 },
            block_length: if self.full { 3 } else { 0 },
            updated: Some(self.words.time("updated")),
        }
    }

    /// The resources of a site. The third can't be asked.
    fn at(&self, asked: &Asked) -> Response {
        if asked.get("at").is_some_and(|at| at.starts_with("site3")) {
            return self.problem("unreachable", 503);
        }
        let resources = ["web~1", "mail", "dns"].map(|word| self.summary(self.text(word)));
        let next = self.full.then(|| self.text("after"));
        let resources = self.all(resources.to_vec());
        Json(Resources { site: self.text("site2"), resources, next }).into_response()
    }

    /// A resource as a site sees it: the second has another block, the third can't be asked, the fourth has
    /// not heard of it.
    fn of(&self, id: &str, asked: &Asked) -> Response {
        let at = asked.get("at").map_or("site1", String::as_str);
        match at.get(..5) {
            _ if id.starts_with("missing") => return self.problem("unknown-resource", 404),
            Some("site3") => return self.problem("unreachable", 503),
            Some("site4") => return self.problem("unknown-resource", 404),
            _ => {}
        }
        let mut operations = self.all(vec![
            self.operation("site1:1", Fate::Kept, Some(0)),
            self.operation("site2:2", Fate::Fallen, None),
            self.operation("site3:3", Fate::Over, None),
            self.operation("site4:4", Fate::Void, None),
        ]);
        if at != "site1" {
            operations.truncate(1);
        }
        let text = |word: &str| self.text(word);
        let config = json!({
            "Show": text("show"), "Reset": text("reset"), (text("setting")): text("value"),
            "ResolutionMatrix": [{ "Before": text("before"), "After": text("behind"), "Result": text("result") }],
        });
        let by_site = ResourceAtSite {
            site: self.text("site2"),
            ok: 1,
            ko: 1,
            denied: 0,
            unknown: 0,
            waiting: 0,
            shown: Some(self.text("print")),
            part: Some(1),
        };
        let resource = Resource {
            summary: self.summary(id.to_owned()),
            seen_by: at.to_owned(),
            config: if self.full { config } else { json!({}) },
            block_ids: operations.iter().map(|operation| operation.id.clone()).collect(),
            operations,
            version: BTreeMap::from([(self.text("site2"), 1)]),
            by_site: vec![by_site],
        };
        Json(resource).into_response()
    }

    fn operation(&self, id: &str, fate: Fate, place: Option<usize>) -> Operation {
        let statuses = [RunStatus::Ok, RunStatus::Ko, RunStatus::Ko, RunStatus::Unknown];
        let sites =
            [vec!["site1".to_owned()], self.words.texts(&["site2", "site3", "site4"])].concat();
        let run = |(site, status): (String, RunStatus)| self.ran(site, status);
        let file = File { name: self.text("file"), content: self.text("content"), length: 1 << 20 };
        Operation {
            id: self.text(id),
            kind: self.text("kind"),
            author: self.text("author"),
            at: self.words.time("at"),
            parents: vec![self.text("site1:1")],
            command: self.text("command"),
            request: false,
            files: vec![file],
            reset: true,
            keep_going: true,
            key: Some(self.text("key")),
            fate,
            place,
            receipt: Some(Receipt { by: Some(self.text("winner")), why: self.text("because") }),
            runs: sites.into_iter().zip(statuses).map(run).collect(),
        }
    }

    fn ran(&self, site: String, status: RunStatus) -> Run {
        let output = Some(self.text("printed"));
        Run { site, status, attempt: Some(2), took_ms: Some(12), output }
    }

    /// An operation that was dropped.
    fn lost(&self) -> Operation {
        self.operation("site2:2", Fate::Fallen, None)
    }

    fn replicant(&self) -> Replicant {
        let replica = |site: &str, failed: Option<String>| Replica {
            site: self.text(site),
            id: Some(self.text("local")),
            part: Some(1),
            created: true,
            failed,
            pending: 2,
        };
        Replicant {
            service: self.text("service"),
            id: Some(self.text("meta")),
            path: self.text("path"),
            resource: self.text("web~1"),
            state: State::Settled,
            deleting: false,
            replicas: vec![replica("site2", None), replica("site3", Some(self.text("failed")))],
        }
    }

    fn run(&self, body: &Value) -> Response {
        if body["dry_run"] == true {
            Json(self.rehearsal()).into_response()
        } else {
            Json(self.submitted()).into_response()
        }
    }

    fn submitted(&self) -> Submitted {
        Submitted {
            operation: self.text("submitted"),
            runs: vec![self.ran(self.text("site2"), RunStatus::Ko)],
            superseded_by: Some(self.text("superseded")),
        }
    }

    fn rehearsal(&self) -> Rehearsal {
        let step = PlannedStep::Run {
            operation: self.text("planned"),
            kind: self.text("kind"),
            replaces: true,
            again: true,
        };
        let receipt = Receipt { by: Some(self.text("winner")), why: self.text("because") };
        Rehearsal {
            known: None,
            operation: self.text("rehearsed"),
            reset: true,
            before: vec![self.text("before")],
            after: vec![self.text("behind")],
            dropped: vec![Dropped { operation: self.text("dropped"), receipt }],
            sites: BTreeMap::from([(self.text("site2"), vec![step, PlannedStep::Decide])]),
            parts: vec![vec![self.text("site2")]],
        }
    }

    fn shown(&self) -> Shown {
        let at = |status: &str, word: &str| ShownAt {
            status: status.to_owned(),
            output: self.text(word),
            part: None,
        };
        let sites = [
            ("site1", at("OK", "one")),
            ("site2", at("OK", "two")),
            ("site3", at("KO", "broken")),
            ("site4", at(&self.text("status"), "other")),
        ];
        let sites = sites.into_iter().map(|(word, at)| (self.text(word), at)).collect();
        Shown { command: self.text("show"), sites, agree: false }
    }

    fn pong(&self) -> Pong {
        Pong { site: self.text("site2"), round_trip_ms: 7.0 }
    }

    fn stored(&self) -> Stored {
        Stored { content: self.text("content"), length: 1 }
    }
}

/// The change feed: it has begun, something has happened, and then nothing more.
fn changes(words: Words) -> Response {
    let lines = [
        json!({ "seq": 1, "site": "site1", "type": "following" }),
        json!({ "site": words.text("site2"), "type": "site-lost", "peer": words.text("site3") }),
        json!({ "seq": 2, "site": "site1", "resource": words.text("web~1"), "type": "deleted" }),
    ];
    let lines = lines.map(|line| Ok::<_, axum::Error>(Bytes::from(format!("{line}\n"))));
    Body::from_stream(stream::iter(lines).chain(stream::pending())).into_response()
}
