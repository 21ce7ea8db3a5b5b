//! What happened, a line for each thing: printed when one seed is played, or boiled down to a
//! number that tells two histories apart.

use std::{
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use cheops_core::{
    id::SiteId,
    operation::Action,
    replica::{Answer, Durable, Effect, Event, Input, Message, Print, Record, RunId, Submission},
};

use crate::support::world::Seen;

#[derive(Debug)]
pub enum Trace {
    None,
    Hash(Box<DefaultHasher>),
    Print,
}

impl Trace {
    pub fn none() -> Self {
        Self::None
    }

    pub fn hash() -> Self {
        Self::Hash(Box::default())
    }

    pub fn print() -> Self {
        Self::Print
    }

    pub fn digest(&self) -> u64 {
        match self {
            Self::Hash(hasher) => hasher.finish(),
            Self::None | Self::Print => 0,
        }
    }

    /// Something that the storm itself does.
    pub fn say(&mut self, now: u64, what: impl FnOnce() -> String) {
        if !matches!(self, Self::None) {
            self.line(now, "*", &what());
        }
    }

    pub fn see(&mut self, now: u64, site: &SiteId, seen: Seen<'_>) {
        if !matches!(self, Self::None) {
            self.line(now, site.as_str(), &words(seen));
        }
    }

    #[expect(clippy::print_stdout, reason = "a history is played to be read")]
    fn line(&mut self, now: u64, who: &str, what: &str) {
        match self {
            Self::None => {}
            Self::Hash(hasher) => (now, who, what).hash(hasher),
            Self::Print => println!("{:>4}.{:03} s  {who}  {what}", now / 1000, now % 1000),
        }
    }
}

fn words(seen: Seen<'_>) -> String {
    match seen {
        Seen::Given(input) => given(input),
        Seen::Done(effect) => format!("  {}", done(effect)),
        Seen::Lost => "    … which gets lost".to_owned(),
        Seen::Took { run, outcome } => format!("command of {} ends: {outcome:?}", name(run)),
        Seen::Emptied(resource) => format!("{resource} is emptied"),
        Seen::NotEmptied(resource) => format!("Reset of {resource} fails"),
        Seen::Crashed { power: false } => "the agent dies".to_owned(),
        Seen::Crashed { power: true } => "the power is cut".to_owned(),
        Seen::Withheld { resource, gone, floor } => {
            let gone: Vec<String> = gone.iter().map(written).collect();
            format!("loses of {resource}, with numbers up to {floor}: {}", gone.join("; "))
        }
        Seen::Started => "the agent is back".to_owned(),
    }
}

fn name(run: &RunId) -> String {
    format!("{} {} #{}", run.resource, run.op, run.attempt)
}

fn given(input: &Input) -> String {
    match input {
        Input::Started => "started".to_owned(),
        Input::Submit(submission) => asked(submission),
        Input::Received { from, message } => format!("from {from}: {}", said(message)),
        Input::Ran { run, report } => format!("{} ran: {:?}", name(run), report.outcome),
        Input::NotStarted(run) => format!("{} never started", name(run)),
        Input::Lost(run) => format!("{} is in doubt", name(run)),
        Input::Checked { run, happened } => format!("{} checked: {happened}", name(run)),
        Input::NotClearing(resource) => format!("no Reset of {resource} is under way"),
        Input::Cleared { resource, ok } => format!("Reset of {resource} ended: {ok}"),
        Input::NotShown { resource, .. } => format!("{resource} may not be shown"),
        Input::Shown { resource, print, .. } => format!("{resource} shows {}", printed(*print)),
        Input::Removed(sites) => format!("hears that {sites:?} are removed"),
        Input::Fenced { site, known } => format!("hears that {site} is back, after {known:?}"),
        Input::Decided { resource, op, adopted } => {
            format!("{resource} {op} is decided: {adopted:?}")
        }
        Input::PeerUp(site) => format!("sees {site}"),
        Input::PeerDown(site) => format!("loses {site}"),
        Input::Tick => "tick".to_owned(),
    }
}

fn asked(submission: &Submission) -> String {
    let Action::Command { line, .. } = &submission.action else { return String::new() };
    let mut text = format!(
        "request {}: {} {} `{line}`",
        submission.ticket.0, submission.resource, submission.kind
    );
    if let Some(sites) = &submission.sites {
        let _ = write!(text, " on {sites}");
    }
    for (is, word) in [
        (submission.config.is_some(), "config"),
        (submission.force, "force"),
        (submission.keep_going, "keep-going"),
    ] {
        if is {
            let _ = write!(text, " {word}");
        }
    }
    text
}

fn done(effect: &Effect) -> String {
    match effect {
        Effect::Persist(durable) => format!("writes {}", written(durable)),
        Effect::Send { to, message } => format!("to {to}: {}", said(message)),
        Effect::Run { run, op, .. } => format!("runs {} {}", name(run), op.kind),
        Effect::Recall(run) => format!("looks for the result of {}", name(run)),
        Effect::Check { run, .. } => format!("checks {}", name(run)),
        Effect::Clear { resource, .. } => format!("runs Reset of {resource}"),
        Effect::RecallClear(resource) => format!("looks for the Reset of {resource}"),
        Effect::Show { resource, block, .. } => format!("runs Show of {resource} at {block:016x}"),
        Effect::Answer { ticket, answer } => format!("answers {}: {}", ticket.0, answered(answer)),
        Effect::Tell(event) => format!("tells {}", told(event)),
    }
}

fn written(durable: &Durable) -> String {
    match durable {
        Durable::Record(record, _) => record_words(record),
        Durable::Intent { resource, op, attempt, fresh } => {
            format!("intent {resource} {op} #{attempt}{}", if *fresh { " fresh" } else { "" })
        }
        Durable::Clearing(resource) => format!("clearing {resource}"),
        Durable::Cleared(resource) => format!("cleared {resource}"),
        Durable::Forgotten { resource, version, by, .. } => {
            format!("forgotten {resource} by {by}: {version:?}")
        }
        Durable::Trimmed { resource, version } => format!("trimmed {resource}: {version:?}"),
        Durable::Withheld { resource, floor } => format!("withheld {resource} from {floor}"),
        Durable::Held { resource, site, known, floor, done } => {
            format!("held {resource} of {site} after {known}, numbers after {floor}: {done}")
        }
        Durable::Contradicted { resource, number } => {
            format!("contradicted {resource} {number}")
        }
        Durable::Leftover(resource) => format!("leftover {resource}"),
        Durable::Aside(record) => format!("aside {}", record_words(record)),
        Durable::Decided { resource, op, adopted } => {
            format!("decided {resource} {op}: {adopted:?}")
        }
    }
}

fn record_words(record: &Record) -> String {
    match record {
        Record::Operation(op) => {
            let reset = if op.reset { " reset" } else { "" };
            format!(
                "{} {} {}{reset} at {:?} after {:?}",
                op.resource, op.id, op.kind, op.at, op.parents
            )
        }
        Record::Reply(reply) => {
            let (op, attempt, outcome) = (&reply.op, reply.attempt, reply.outcome);
            format!("{} {} reply to {op} #{attempt}: {outcome:?}", reply.resource, reply.id)
        }
        Record::Shown(shown) => {
            let (id, op, print) = (&shown.id, &shown.op, printed(shown.print));
            format!("{} {id} shows {print} after {op}", shown.resource)
        }
    }
}

fn printed(print: Option<Print>) -> String {
    print.map_or_else(|| "nothing".to_owned(), |print| format!("{print:?}"))
}

fn said(message: &Message) -> String {
    match message {
        Message::Compare(stretches) => {
            let digests: Vec<String> =
                stretches.iter().map(|(_, digest)| format!("{:04x}", digest & 0xffff)).collect();
            format!("compare {}", digests.join(" "))
        }
        Message::Have(_, versions, _) => format!("have {versions:?}"),
        Message::Want(versions) => format!("want {versions:?}"),
        Message::Forgotten(versions) => format!("forgotten {versions:?}"),
        Message::Contradicted { resource, number } => format!("contradicted {resource} {number}"),
        Message::Records { resource, records, more } => {
            let records: Vec<String> = records
                .iter()
                .map(|sent| format!("{} (after {})", record_words(&sent.record), sent.after))
                .collect();
            let more = if *more { ", and more" } else { "" };
            format!("records of {resource}: {}{more}", records.join("; "))
        }
    }
}

fn answered(answer: &Answer) -> String {
    match answer {
        Answer::Reply(reply) => format!("{} says {:?}", reply.id.site, reply.outcome),
        Answer::Refused(refusal) => refusal.to_string(),
        Answer::Accepted(_, _) | Answer::Superseded { .. } | Answer::Silent(_) | Answer::Done => {
            format!("{answer:?}")
        }
    }
}

fn told(event: &Event) -> String {
    match event {
        Event::Recorded { resource, id } => format!("{resource} {id} is recorded"),
        Event::Forgotten(resource) => format!("{resource} is forgotten"),
        Event::NeedsDecision(resource) => format!("{resource} needs a decision"),
        Event::Unknown(run) => format!("{} is unknown", name(run)),
        Event::Refused { from, resource, why } => {
            format!("refused {resource} from {from}: {why}")
        }
    }
}
