//! From the core's values to what the API says. Pure functions; they run where the replica is, so
//! they look at no more than they are asked for.

use std::sync::Arc;

use cheops_core::{
    id::{OpId, SiteId, Sites},
    log::Ix,
    matrix::Share,
    operation::{self, SharedOperation},
    plan::Outcome,
    replica::{self, Durable, Event, Record},
    resolve::{self, Account},
    time::Millis,
};

use super::model::{
    Change, Fate, File, Happened, Operation, Receipt, Resource, ResourceAtSite, ResourceSummary,
    Run, RunStatus, State,
};
use crate::{engine::Seq, node::Told};

/// How many ids of a block are listed.
const MAX_BLOCK: usize = 1_000;

/// A resource at a glance.
pub(super) fn summary(resource: &replica::Resource) -> ResourceSummary {
    ResourceSummary {
        id: resource.id().to_string(),
        state: state(resource),
        deleting: resource.is_deleting(),
        sites: names(resource.present()),
        removed: names(resource.absent()),
        parts: parts(&resource.config().parts),
        operation_count: resource.log().len(),
        block_length: resource.resolution().block().len(),
        updated: updated(resource),
    }
}

/// When the newest operation of a resource was received.
pub(super) fn updated(resource: &replica::Resource) -> Option<String> {
    let log = resource.log();
    (!log.is_empty()).then(|| rfc3339(log.newest().wall()))
}

/// A resource's state, with what this site alone knows.
pub(super) fn state(resource: &replica::Resource) -> State {
    if resource.is_stuck() {
        return State::NeedsDecision;
    }
    match resource.state() {
        replica::State::Settled => State::Settled,
        replica::State::Pending => State::Pending,
        replica::State::Failed => State::Failed,
        replica::State::Diverged => State::Diverged,
        replica::State::Denied => State::Denied,
    }
}

/// The word for a state, as it is asked for.
pub(super) fn word(state: State) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// What is known here of a resource at a site that can't be asked: whether it has run what it should.
pub(super) fn hearsay(resource: &replica::Resource, site: &SiteId) -> State {
    if resource.unanswered(site) > 0 {
        return State::Pending;
    }
    let last = resource.resolution().block().last().map(|&ix| resource.log().op(ix));
    let last = last.and_then(|op| resource.reply(&op.id, site));
    match last.map(|reply| reply.outcome) {
        Some(Outcome::Ko) => State::Failed,
        Some(Outcome::Denied) => State::Denied,
        Some(Outcome::Unknown) => State::Diverged,
        Some(Outcome::Ok) | None => State::Settled,
    }
}

/// A resource in full, with at most so many of its operations, the newest, or those before one.
///
/// Others wait for the replica while it is looked at, so operations and replies are only taken by
/// reference; [`Snapshot::resource`] puts them in words somewhere else.
pub(super) struct Snapshot {
    summary: ResourceSummary,
    config: serde_json::Value,
    block: Vec<OpId>,
    operations: Vec<Snapped>,
    version: replica::Version,
    by_site: Vec<ResourceAtSite>,
}

impl Snapshot {
    /// Takes it.
    pub(super) fn of(
        here: &SiteId,
        resource: &replica::Resource,
        limit: usize,
        before: Option<&OpId>,
    ) -> Self {
        let shown = resource.log().latest(limit, before);
        let operations = shown.into_iter().map(|ix| Snapped::of(here, resource, ix));
        let skipped = resource.resolution().block().len().saturating_sub(MAX_BLOCK);
        Self {
            operations: operations.collect(),
            summary: summary(resource),
            config: resource.config().to_json(),
            block: resource.block().skip(skipped).map(|op| op.id.clone()).collect(),
            version: resource.version(),
            by_site: resource.present().map(|site| at_site(resource, site)).collect(),
        }
    }

    /// The resource in words.
    pub(super) fn resource(self, here: &SiteId) -> Resource {
        Resource {
            summary: self.summary,
            seen_by: here.to_string(),
            config: self.config,
            block_ids: self.block.iter().map(ToString::to_string).collect(),
            operations: self.operations.iter().map(Snapped::operation).collect(),
            version: self.version.into_iter().map(|(s, n)| (s.to_string(), n)).collect(),
            by_site: self.by_site,
        }
    }
}

/// An operation, and what became of it, by reference.
pub(super) struct Snapped {
    op: SharedOperation,
    /// Its place in the block, from 1.
    place: Option<usize>,
    account: Option<Account>,
    /// What each site says of it, and whether it runs there.
    runs: Vec<(SiteId, Option<Arc<replica::Reply>>, bool)>,
}

impl Snapped {
    /// Takes it.
    pub(super) fn of(here: &SiteId, resource: &replica::Resource, ix: Ix) -> Self {
        let op = resource.log().op(ix);
        let run = |site: &SiteId| {
            let reply = resource.shared_reply(ix, site).cloned();
            let running = site == here && resource.running().is_some_and(|(id, _)| *id == op.id);
            (site.clone(), reply, running)
        };
        // The sites that are waited for, and those that were removed after they had answered.
        let answered = |site: &&SiteId| resource.shared_reply(ix, site).is_some();
        let sites = resource.present().chain(resource.absent().filter(answered));
        Self {
            op: op.clone(),
            place: resource.resolution().place(ix).map(|place| place + 1),
            account: resource.dropped(ix),
            runs: sites.map(run).collect(),
        }
    }

    /// The operation in words.
    pub(super) fn operation(&self) -> Operation {
        let op = &self.op;
        let fate = self.account.as_ref().map_or(Fate::Kept, |account| fate(account.fate));
        let at = |(site, reply, running): &(SiteId, Option<Arc<replica::Reply>>, bool)| {
            reply.as_deref().map_or_else(|| not_run(site, *running, fate), run)
        };
        Operation {
            id: op.id.to_string(),
            kind: op.kind.to_string(),
            author: op.author.to_string(),
            at: rfc3339(op.at.wall()),
            parents: op.parents.iter().map(ToString::to_string).collect(),
            command: command(&op.action),
            request: !matches!(op.action, operation::Action::Command { .. }),
            files: files(&op.action),
            reset: op.reset,
            keep_going: op.keep_going,
            key: op.key.as_ref().map(ToString::to_string),
            fate,
            place: self.place,
            receipt: self.account.as_ref().map(receipt),
            runs: self.runs.iter().map(at).collect(),
        }
    }
}

fn not_run(site: &SiteId, running: bool, fate: Fate) -> Run {
    let status = match fate {
        _ if running => RunStatus::Running,
        Fate::Kept => RunStatus::Waiting,
        Fate::Over | Fate::Fallen | Fate::Void => RunStatus::Dropped,
    };
    Run { site: site.to_string(), status, attempt: None, took_ms: None, output: None }
}

/// Leaves the last bytes of what each run printed, whole characters of them.
pub(super) fn shorten(resource: &mut Resource, most: usize) {
    let runs = resource.operations.iter_mut().flat_map(|operation| &mut operation.runs);
    for output in runs.filter_map(|run| run.output.as_mut()) {
        let from = output.len().saturating_sub(most);
        let from = (from..=output.len()).find(|&place| output.is_char_boundary(place));
        output.drain(..from.unwrap_or_default());
    }
}

fn at_site(resource: &replica::Resource, site: &SiteId) -> ResourceAtSite {
    let replica::Tally { ok, ko, denied, unknown } = resource.tally(site);
    let waiting = resource.resolution().block().len() - (ok + ko + denied + unknown);
    let shown = resource.shown(site).and_then(|shown| shown.print.as_ref()).map(print);
    let part = resource.config().share(site).map(number);
    ResourceAtSite { site: site.to_string(), ok, ko, denied, unknown, waiting, shown, part }
}

/// Which part a share is, as people count.
pub(super) fn number(share: Share) -> usize {
    share.part + 1
}

/// The sites of each part, by name.
pub(super) fn parts(parts: &[Sites]) -> Vec<Vec<String>> {
    parts.iter().map(|sites| names(sites.iter())).collect()
}

/// A digest of what was shown.
fn print(print: &replica::Print) -> String {
    use std::fmt::Write as _;
    print.iter().fold(String::with_capacity(2 * print.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn fate(fate: resolve::Fate) -> Fate {
    match fate {
        resolve::Fate::Kept => Fate::Kept,
        resolve::Fate::Over => Fate::Over,
        resolve::Fate::Fallen => Fate::Fallen,
        resolve::Fate::Void => Fate::Void,
    }
}

/// Why an operation is not in the block.
pub(super) fn receipt(account: &Account) -> Receipt {
    Receipt { by: account.by.as_ref().map(ToString::to_string), why: account.because.clone() }
}

/// All files that an action brings.
pub(super) fn files(action: &operation::Action) -> Vec<File> {
    action.attachments().into_iter().map(file).collect()
}

fn file(attachment: &operation::Attachment) -> File {
    File {
        name: attachment.name.to_string(),
        content: blake3::Hash::from_bytes(attachment.content).to_hex().to_string(),
        length: attachment.length,
    }
}

/// Sites, by name.
pub(super) fn names<'a>(sites: impl IntoIterator<Item = &'a SiteId>) -> Vec<String> {
    sites.into_iter().map(ToString::to_string).collect()
}

/// A reply.
pub(crate) fn run(reply: &replica::Reply) -> Run {
    Run {
        site: reply.id.site.to_string(),
        status: match reply.outcome {
            Outcome::Ok => RunStatus::Ok,
            Outcome::Ko => RunStatus::Ko,
            Outcome::Denied => RunStatus::Denied,
            Outcome::Unknown => RunStatus::Unknown,
        },
        attempt: Some(reply.attempt),
        took_ms: Some(reply.took.0),
        output: Some(reply.output.to_string()),
    }
}

/// An action as text.
pub(crate) fn command(action: &operation::Action) -> String {
    match action {
        operation::Action::Command { line, .. } => line.to_string(),
        operation::Action::Http(request) => {
            format!("{} {} of {}", request.method, request.target, request.service)
        }
        operation::Action::Steps(steps) => steps.iter().map(command).collect::<Vec<_>>().join("; "),
    }
}

/// A time of day.
pub(crate) fn rfc3339(wall: Millis) -> String {
    let millis = i64::try_from(wall.0).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    format!("{time:.3}")
}

/// What something that happened means to a reader of the feed, if anything.
pub(super) fn told(here: &SiteId, told: Told) -> Option<Change> {
    let (resource, what) = match told {
        Told::Wrote(seq, durable) => return wrote(here, seq, &durable),
        Told::Event(event) => match event {
            Event::Recorded { .. } | Event::Forgotten(_) => return None,
            Event::NeedsDecision(resource) => (Some(resource), Happened::NeedsDecision),
            Event::Unknown(run) => {
                (Some(run.resource), Happened::Unknown { operation: run.op.to_string() })
            }
            Event::Refused { from, resource, why } => {
                (Some(resource), Happened::Refused { peer: from.to_string(), why: why.to_owned() })
            }
        },
        Told::Link { peer, up } => {
            let peer = peer.to_string();
            let (back, gone) =
                (Happened::SiteReturned { peer: peer.clone() }, Happened::SiteLost { peer });
            (None, if up { back } else { gone })
        }
    };
    let resource = resource.map(|id| id.to_string());
    Some(Change { seq: None, site: here.to_string(), resource, what })
}

/// What something that was written down means to a reader of the feed, if anything.
pub(super) fn wrote(here: &SiteId, seq: Seq, durable: &Durable) -> Option<Change> {
    let what = match durable {
        Durable::Record(Record::Operation(op), _) => Happened::Operation {
            id: op.id.to_string(),
            kind: op.kind.to_string(),
            author: op.author.to_string(),
            at: rfc3339(op.at.wall()),
            command: command(&op.action),
        },
        Durable::Record(Record::Reply(reply), _) => {
            Happened::Reply { operation: reply.op.to_string(), run: run(reply) }
        }
        Durable::Record(Record::Shown(shown), _) => Happened::Shown {
            operation: shown.op.to_string(),
            peer: shown.id.site.to_string(),
            print: shown.print.as_ref().map(print),
        },
        Durable::Forgotten { .. } => Happened::Deleted,
        Durable::Intent { .. }
        | Durable::Clearing(_)
        | Durable::Cleared(_)
        | Durable::Trimmed { .. }
        | Durable::Withheld { .. }
        | Durable::Held { .. }
        | Durable::Contradicted { .. }
        | Durable::Aside(_)
        | Durable::Leftover(_)
        | Durable::Decided { .. } => return None,
    };
    let resource = Some(durable.resource().to_string());
    Some(Change { seq: Some(seq), site: here.to_string(), resource, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_was_printed_whole_characters_at_the_end_are_left() {
        for (output, most, expected) in
            [("", 3, ""), ("abc", 3, "abc"), ("abcd", 3, "bcd"), ("aéé", 3, "é"), ("abc", 0, "")]
        {
            let mut resource: Resource = serde_json::from_value(serde_json::json!({
                "id": "web", "state": "settled", "sites": ["a"], "operation_count": 1, "block_length": 1,
                "updated": null, "seen_by": "a", "config": {}, "block_ids": ["a:1"], "version": {},
                "by_site": [], "operations": [{
                    "id": "a:1", "kind": "set", "author": "x", "at": "2026-01-01T00:00:00Z", "parents": [],
                    "command": "c", "fate": "kept",
                    "runs": [{ "site": "a", "status": "OK", "output": output }, { "site": "b", "status": "WAITING" }],
                }],
            }))
            .unwrap();
            shorten(&mut resource, most);
            let runs = &resource.operations[0].runs;
            assert_eq!(runs[0].output.as_deref(), Some(expected), "{output} {most}");
            assert_eq!(runs[1].output, None);
        }
    }
}
