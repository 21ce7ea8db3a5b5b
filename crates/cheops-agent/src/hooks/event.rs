//! The events that hooks tell of: their names, their ids, their words.
//!
//! What must stay true: an id is made of what happened and of nothing else, neither of when it was
//! noticed nor (where all sites see the same thing) of who noticed it. So the same event has the same
//! id when it is found again after a crash, and wherever it is sent from.

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    plan::Outcome,
    replica::Reply,
};

use super::seen::{Asked, End, SeenOp};
use crate::api::{
    model::{HookEvent, Run, RunStatus},
    view,
};

/// How much of a command and of an output is told, in characters.
const LONGEST: usize = 2_000;
/// How much of each output is told where there is one for each site.
const BRIEF: usize = 200;
/// The name of a sample.
pub(crate) const TEST: &str = "test";

/// What an event is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// An operation is durable at the site that received it.
    Accepted,
    /// It went well at a site.
    Ran,
    /// It failed at a site, or nobody knows how it went there. Of all sites together: at some.
    Failed,
    /// The policy of a site did not let it run there.
    Denied,
    /// Another operation won over it before all sites had run it.
    Superseded,
    /// It went well at all sites.
    OperationSettled,
    /// The sites of a resource differ.
    Diverged,
    /// All sites have run all operations of a resource.
    ResourceSettled,
    /// A resource is gone from all of its sites.
    Deleted,
    /// A site can't be reached any more.
    Lost,
    /// A site is back.
    Returned,
    /// A person must decide.
    NeedsDecision,
}

/// What a summary can be.
pub(crate) const SUMMARISED: &[Name] = &[Name::OperationSettled, Name::Failed, Name::Superseded];

impl Name {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Accepted,
        Self::Ran,
        Self::Failed,
        Self::Denied,
        Self::Superseded,
        Self::OperationSettled,
        Self::Diverged,
        Self::ResourceSettled,
        Self::Deleted,
        Self::Lost,
        Self::Returned,
        Self::NeedsDecision,
    ];

    /// As configurations and receivers know it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "operation.accepted",
            Self::Ran => "operation.ran",
            Self::Failed => "operation.failed",
            Self::Denied => "operation.denied",
            Self::Superseded => "operation.superseded",
            Self::OperationSettled => "operation.settled",
            Self::Diverged => "resource.diverged",
            Self::ResourceSettled => "resource.settled",
            Self::Deleted => "resource.deleted",
            Self::Lost => "site.lost",
            Self::Returned => "site.returned",
            Self::NeedsDecision => "needs.decision",
        }
    }
}

/// An id, of all that makes an event what it is.
pub(crate) fn id(parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut hex = hasher.finalize().to_hex().to_string();
    hex.truncate(32);
    hex
}

/// Who tells, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Teller<'a> {
    pub(crate) here: &'a SiteId,
    /// The time of day, as it is written.
    pub(crate) at: &'a str,
}

impl Teller<'_> {
    fn event(self, name: Name, site: &SiteId, id: String, text: String) -> HookEvent {
        HookEvent {
            id,
            event: name.as_str().to_owned(),
            at: self.at.to_owned(),
            site: site.to_string(),
            told_by: self.here.to_string(),
            text,
            summary: false,
            resource: None,
            operation: None,
            kind: None,
            author: None,
            command: None,
            runs: Vec::new(),
            by: None,
            peer: None,
            next: None,
        }
    }

    /// An event about an operation. What is known of it may be little, if its resource is gone.
    fn of_operation(
        self,
        name: Name,
        site: &SiteId,
        id: String,
        text: &str,
        (resource, op): (&ResourceId, &OpId),
        asked: Option<&Asked>,
    ) -> HookEvent {
        let who = asked.map(|op| format!(" ({} by {})", op.kind, op.author)).unwrap_or_default();
        let text = format!("{resource}: operation {op}{who} {text}");
        HookEvent {
            resource: Some(resource.to_string()),
            operation: Some(op.to_string()),
            kind: asked.map(|op| op.kind.to_string()),
            author: asked.map(|op| op.author.to_string()),
            command: asked.map(|op| op.command.clone()),
            ..self.event(name, site, id, text)
        }
    }

    /// An operation was received.
    pub(crate) fn accepted(self, resource: &ResourceId, op: &OpId, asked: &Asked) -> HookEvent {
        let id = id(&["accepted", resource.as_str(), &op.to_string()]);
        let text = format!("was accepted at {}", op.site);
        self.of_operation(Name::Accepted, &op.site, id, &text, (resource, op), Some(asked))
    }

    /// A site has run an operation.
    pub(crate) fn ran(self, reply: &Reply, seen: Option<&SeenOp>) -> HookEvent {
        let (resource, op, site) = (&reply.resource, &reply.op, &reply.id.site);
        let number = reply.id.number.to_string();
        let id = id(&["ran", resource.as_str(), &op.to_string(), site.as_str(), &number]);
        let (name, words) = match reply.outcome {
            Outcome::Ok => (Name::Ran, "ran"),
            Outcome::Ko => (Name::Failed, "failed"),
            Outcome::Denied => (Name::Denied, "was denied"),
            Outcome::Unknown => (Name::Failed, "may or may not have taken effect"),
        };
        let mut text = format!("{words} at {site}");
        let said = last_words(&reply.output);
        if reply.outcome.is_failure() && !said.is_empty() {
            text = format!("{text}: {said}");
        }
        HookEvent {
            runs: vec![run(reply)],
            ..self.of_operation(name, site, id, &text, (resource, op), seen.map(|seen| &seen.asked))
        }
    }

    /// Nothing more will come of an operation. `summary`: as one message for all sites.
    pub(crate) fn ended(
        self,
        (resource, op): (&ResourceId, &OpId),
        seen: Option<&SeenOp>,
        end: &End,
        summary: bool,
    ) -> HookEvent {
        let runs = seen.map(|op| op.runs.as_slice()).unwrap_or_default();
        let failed: Vec<&str> =
            runs.iter().filter(|r| !is_ok(r)).map(|run| run.site.as_str()).collect();
        let (name, text, by) = match end {
            End::Settled => (Name::OperationSettled, "went well at all sites".to_owned(), None),
            End::Failed => {
                let text = format!("has failed at {} of {} sites", failed.len(), runs.len());
                (Name::Failed, format!("{text}: {}", failed.join(", ")), None)
            }
            End::Void => {
                let text = format!("has failed at {}, which received it, and is void", op.site);
                (Name::Failed, text, None)
            }
            End::Superseded { by, because } => {
                (Name::Superseded, format!("lost to {by}: {because}"), Some(by.clone()))
            }
        };
        let what = if summary { "summary" } else { name.as_str() };
        let id = id(&[what, resource.as_str(), &op.to_string()]);
        let asked = seen.map(|seen| &seen.asked);
        let event = self.of_operation(name, &op.site, id, &text, (resource, op), asked);
        let runs = runs.iter().map(brief).collect();
        HookEvent { summary, runs, by, ..event }
    }

    /// What became of a resource, as this site sees it. `facts` are what makes it this time and no other.
    pub(crate) fn resource(
        self,
        name: Name,
        resource: &ResourceId,
        facts: &[&str],
        (text, next): (String, Option<String>),
    ) -> HookEvent {
        let parts: Vec<&str> =
            [name.as_str(), resource.as_str()].into_iter().chain(facts.iter().copied()).collect();
        HookEvent {
            resource: Some(resource.to_string()),
            next,
            ..self.event(name, self.here, id(&parts), text)
        }
    }

    /// A site was lost, or is back, from here. The change before it, if one is remembered, makes it this
    /// time and no other: when it was noticed would be another time after a crash.
    pub(crate) fn link(self, peer: &SiteId, up: bool, before: Option<u64>) -> HookEvent {
        let here = self.here;
        let (name, text, next) = if up {
            (Name::Returned, format!("{peer} can be reached from {here} again"), None)
        } else {
            let next = "what it misses is sent when it is back; if it stays away, look at its agent and at the network";
            (Name::Lost, format!("{peer} can't be reached from {here} any more"), Some(next.into()))
        };
        let before = before.map_or_else(|| self.at.to_owned(), |millis| millis.to_string());
        let id = id(&[name.as_str(), here.as_str(), peer.as_str(), &before]);
        HookEvent { peer: Some(peer.to_string()), next, ..self.event(name, here, id, text) }
    }

    /// A sample.
    pub(crate) fn sample(self, hook: &str) -> HookEvent {
        let here = self.here;
        let text = format!("this is a test of the hook {hook} at {here}: it works");
        let id = id(&[TEST, here.as_str(), hook, self.at]);
        HookEvent { event: TEST.to_owned(), ..self.event(Name::Accepted, here, id, text) }
    }
}

fn is_ok(run: &Run) -> bool {
    run.status == RunStatus::Ok
}

/// A run among those of all sites, of which there may be many.
fn brief(run: &Run) -> Run {
    let output = run.output.as_ref().map(|output| output.chars().take(BRIEF).collect());
    Run { output, ..run.clone() }
}

/// A reply, with an output that fits into a message.
pub(crate) fn run(reply: &Reply) -> Run {
    let mut run = view::run(reply);
    run.output = run.output.map(|output| cut(&output));
    run
}

/// The beginning of a text.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// The end of an output, for a sentence: its last line is often only the exit code.
fn last_words(output: &str) -> String {
    let lines = output.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let mut lines: Vec<String> = lines
        .take(2)
        .map(|line| line.chars().filter(|c| !c.is_control()).take(200).collect())
        .collect();
    lines.reverse();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_depends_on_every_part_and_on_where_parts_end() {
        let ids =
            [id(&["a", "b"]), id(&["ab", ""]), id(&["a", "b", ""]), id(&["b", "a"]), id(&["ab"])];
        for (n, one) in ids.iter().enumerate() {
            assert_eq!(one.len(), 32);
            assert!(ids.iter().skip(n + 1).all(|other| other != one), "{n}");
        }
        assert_eq!(ids[0], id(&["a", "b"]));
    }

    #[test]
    fn the_id_of_what_all_sites_see_is_the_same_at_all_sites_and_at_any_time() {
        let (one, two): (SiteId, SiteId) = ("site1".parse().unwrap(), "site2".parse().unwrap());
        let here = Teller { here: &one, at: "2026-01-01T00:00:00Z" };
        let there = Teller { here: &two, at: "2026-01-01T00:09:00Z" };
        let (resource, op) = ("web".parse().unwrap(), OpId { site: one.clone(), number: 7 });
        let of = |teller: Teller<'_>, summary| {
            teller.ended((&resource, &op), None, &End::Settled, summary).id
        };
        assert_eq!(of(here, true), of(there, true));
        assert_eq!(of(here, false), of(there, false));
        assert_ne!(of(here, false), of(here, true));
        let later = Teller { at: "2026-01-01T00:00:07Z", ..here };
        let lost = here.link(&two, false, Some(7)).id;
        assert_eq!(lost, later.link(&two, false, Some(7)).id, "after a crash");
        for other in [
            there.link(&two, false, Some(7)).id,
            here.link(&two, true, Some(7)).id,
            here.link(&two, false, Some(8)).id,
            here.link(&two, false, None).id,
        ] {
            assert_ne!(other, lost);
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(LONGEST + 1);
        assert_eq!(cut(&long), "é".repeat(LONGEST) + "…");
        assert_eq!(cut("short"), "short");
    }
}
