//! Things that an agent tells of.

use cheops_agent::api::model::{
    Fate, Operation, Queue, Receipt, Resource, ResourceAtSite, ResourceSummary, Run, RunStatus,
    Site, SiteState, Sites, State,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

/// A moment so long ago, as the API writes it.
pub(crate) fn ago(seconds: i64) -> String {
    (Timestamp::now() - SignedDuration::from_secs(seconds)).to_string()
}

pub(crate) fn run(site: &str, status: RunStatus, output: &str) -> Run {
    let output = (!output.is_empty()).then(|| output.to_owned());
    Run { site: site.into(), status, attempt: Some(1), took_ms: Some(12), output }
}

pub(crate) fn operation(id: &str, kind: &str, command: &str, parents: &[&str]) -> Operation {
    Operation {
        id: id.into(),
        kind: kind.into(),
        author: "ada".into(),
        at: ago(180),
        parents: parents.iter().map(|&parent| parent.to_owned()).collect(),
        command: command.into(),
        request: false,
        files: Vec::new(),
        reset: false,
        keep_going: false,
        key: None,
        fate: Fate::Kept,
        place: Some(1),
        receipt: None,
        runs: ["site1", "site2"].map(|site| run(site, RunStatus::Ok, "")).to_vec(),
    }
}

/// A counter that two sites know alike: `set 29` won over `inc 13`.
pub(crate) fn counter() -> Resource {
    let mut start = operation("site1:1", "set", "echo 10 > {id}", &[]);
    start.at = ago(300);
    let mut set = operation("site1:4", "set", "echo 29 > {id}", &["site1:1"]);
    set.at = ago(180);
    set.place = Some(2);
    let mut inc = operation("site2:3", "inc", "inc 13", &["site1:1"]);
    inc.at = ago(200);
    inc.fate = Fate::Fallen;
    inc.place = None;
    inc.receipt =
        Some(Receipt { by: Some("site1:4".into()), why: "set over inc (matrix row 2)".into() });
    inc.runs[0].status = RunStatus::Dropped;
    Resource {
        summary: summary("counter", State::Settled),
        seen_by: "site1".into(),
        config: json!({
            "ResolutionMatrix": [{"Before": "inc", "After": "set", "Result": "take-both-reverse-order"}],
            "Show": "cat {id}",
        }),
        block_ids: vec!["site1:1".into(), "site1:4".into()],
        operations: vec![start, inc, set],
        version: [("site1".to_owned(), 4), ("site2".to_owned(), 3)].into(),
        by_site: ["site1", "site2"]
            .map(|site| ResourceAtSite {
                site: site.into(),
                ok: 2,
                ko: 0,
                denied: 0,
                unknown: 0,
                waiting: 0,
                shown: Some("5f".repeat(16)),
                part: None,
            })
            .to_vec(),
    }
}

pub(crate) fn summary(id: &str, state: State) -> ResourceSummary {
    ResourceSummary {
        id: id.into(),
        state,
        deleting: false,
        sites: ["site1", "site2"].map(str::to_owned).to_vec(),
        removed: Vec::new(),
        parts: Vec::new(),
        operation_count: 3,
        block_length: 2,
        updated: Some(ago(180)),
    }
}

pub(crate) fn site(name: &str, state: SiteState) -> Site {
    let is_here = state == SiteState::Here;
    Site {
        clock_offset_ms: None,
        key_since: None,
        certificate_expires: None,
        api_certificate_expires: None,
        paused_until: None,
        name: name.into(),
        state,
        address: (!is_here).then(|| format!("{name}.example.org:8078")),
        key: String::new(),
        round_trip_ms: (state == SiteState::Reachable).then_some(8.25),
        last_seen: (!is_here).then(|| ago(5 * 60)),
        lag_ms: (!is_here).then_some(1500),
        queue: Queue { messages: 2, bytes: 4096 },
        resources: 3,
        unanswered: 1,
        error: (state == SiteState::Unreachable).then(|| "connection refused".to_owned()),
    }
}

pub(crate) fn sites() -> Sites {
    Sites {
        here: "site1".into(),
        sites: vec![
            site("site1", SiteState::Here),
            site("site2", SiteState::Reachable),
            site("DC 3", SiteState::Unreachable),
        ],
    }
}
