//! Running: from the plan's next step to a reply, and what to do about a run in doubt.
//!
//! What must stay true: a run starts only after its intent was written down, one at a time for a
//! resource, and ends with a reply that is recorded like any other. An intent without a reply,
//! found when the site starts again, is settled before anything else of that resource is run. The
//! same holds for the `Reset` command, which has no reply: its process is waited for.

use alloc::{string::ToString, sync::Arc};

use super::{
    Outbox, Replica,
    effect::{Effect, Event, Report, RunId},
    message::{Durable, Record, Reply},
    resource::Resource,
    withhold::Gate,
};
use crate::{
    id::{OpId, ResourceId, SiteId},
    log::Ix,
    plan::{Outcome, Step},
    resolve::Fate,
    time::{Millis, Now},
};

/// What is under way for a resource at this site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Work {
    /// Nothing.
    Idle,
    /// A person must decide. As soon as the block changes, the plan is asked again.
    Stuck,
    /// An operation runs, or its result is looked for.
    Running(Pending),
    /// The `Check` command is asked whether a run took effect.
    Checking(Pending),
    /// The `Reset` command runs, or its end is waited for.
    Clearing,
}

/// A run whose end is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    op: Ix,
    attempt: u32,
    fresh: bool,
}

impl Resource {
    fn run_id(&self, pending: Pending) -> RunId {
        RunId {
            resource: self.id().clone(),
            op: self.log.op(pending.op).id.clone(),
            attempt: pending.attempt,
        }
    }

    fn intent(&self, pending: Pending) -> Durable {
        let RunId { resource, op, attempt } = self.run_id(pending);
        Durable::Intent { resource, op, attempt, fresh: pending.fresh }
    }

    /// The run that this id names, if it is the one under way.
    fn pending(&self, run: &RunId) -> Option<Pending> {
        match self.work {
            Work::Running(pending) | Work::Checking(pending) if self.run_id(pending) == *run => {
                Some(pending)
            }
            _ => None,
        }
    }

    /// The operation under way at this site, and which attempt at it this is.
    pub fn running(&self) -> Option<(&OpId, u32)> {
        match self.work {
            Work::Running(pending) | Work::Checking(pending) => {
                Some((&self.log.op(pending.op).id, pending.attempt))
            }
            Work::Idle | Work::Stuck | Work::Clearing => None,
        }
    }

    fn start(&self, here: &SiteId, pending: Pending) -> Effect {
        Effect::Run {
            run: self.run_id(pending),
            op: self.log.op(pending.op).clone(),
            timeout: self.timeout(),
            before: self.before(pending.op, here).cloned(),
            share: self.config().share(here),
        }
    }

    /// How long a command may take.
    pub(super) fn timeout(&self) -> Option<Millis> {
        self.config().timeout.map(Millis::from)
    }

    /// Starts the next step of the plan, if nothing is under way and it may.
    pub(super) fn advance(&mut self, here: &SiteId, gate: Gate, out: &mut Outbox) {
        if !self.is_idle() {
            return;
        }
        if gate == Gate::Shut || gate == Gate::Anew && !self.is_reset() {
            self.work = Work::Stuck;
            return;
        }
        let can_clear = self.config().reset.is_some() && !self.clear_failed;
        match self.journal.next(&self.log, &self.resolution, can_clear) {
            // It would be answered as before, for ever.
            Step::Run { op, fresh: true } if self.is_unknown_for_good(op, here) => self.decide(out),
            Step::Rest => self.work = Work::Idle,
            Step::Run { op, fresh } => {
                let known = self.reply_to(op, here).map_or(0, |reply| reply.attempt);
                let attempt = known.max(self.spent(op, here)) + 1;
                let pending = Pending { op, attempt, fresh };
                out.persist(self.intent(pending));
                out.run(self.start(here, pending));
                self.work = Work::Running(pending);
            }
            Step::Clear => {
                out.persist(Durable::Clearing(self.id().clone()));
                self.journal.doubt();
                self.clear(out);
            }
            Step::Decide => self.decide(out),
        }
    }

    fn decide(&mut self, out: &mut Outbox) {
        if self.work != Work::Stuck {
            out.tell(Event::NeedsDecision(self.id().clone()));
        }
        self.work = Work::Stuck;
    }

    /// Whether nobody knows if an operation took effect here, and it can't be run again to make sure.
    fn is_unknown_for_good(&self, op: Ix, here: &SiteId) -> bool {
        let unknown = |reply: &Arc<Reply>| reply.outcome == Outcome::Unknown;
        !self.log.op(op).action.is_repeatable() && self.before(op, here).is_some_and(unknown)
    }

    fn clear(&mut self, out: &mut Outbox) {
        if let Some(command) = self.config().reset.clone() {
            let (resource, timeout) = (self.id().clone(), self.timeout());
            out.run(Effect::Clear { resource, command, timeout });
            self.work = Work::Clearing;
        }
    }

    /// Ends a run: the reply, as the next record of this site's stream.
    fn finish(&mut self, id: OpId, pending: Pending, report: Report) -> Record {
        self.work = Work::Idle;
        self.journal.ran(pending.op, pending.fresh, report.outcome);
        let reply = Record::Reply(Arc::new(Reply {
            id,
            resource: self.id().clone(),
            op: self.log.op(pending.op).id.clone(),
            attempt: pending.attempt,
            outcome: report.outcome,
            era: self.journal.era(),
            took: report.took,
            output: report.output,
            made: report.made,
        }));
        self.take(&reply);
        reply
    }

    /// Goes on with what was under way when the site stopped.
    pub(super) fn resume(&mut self, here: &SiteId, gate: Gate, out: &mut Outbox) {
        match self.work {
            Work::Running(pending) | Work::Checking(pending) => {
                self.work = Work::Running(pending);
                out.run(Effect::Recall(self.run_id(pending)));
            }
            // Whatever the configuration says by now: the process may have outlived the agent.
            Work::Clearing => out.run(Effect::RecallClear(self.id().clone())),
            Work::Idle | Work::Stuck => {
                self.work = Work::Idle;
                self.advance(here, gate, out);
            }
        }
    }

    /// Takes in what was written down about this site's own runs.
    pub(super) fn restore(&mut self, here: &SiteId, durable: &Durable) {
        match durable {
            Durable::Intent { op, attempt, fresh, .. } => {
                if let Some(op) = self.log.find(op) {
                    let pending = Pending { op, attempt: *attempt, fresh: *fresh };
                    if self.work == Work::Running(pending) {
                        self.journal.doubt();
                    }
                    self.work = Work::Running(pending);
                }
            }
            Durable::Clearing(_) => {
                self.work = Work::Clearing;
                self.journal.doubt();
            }
            Durable::Cleared(_) => {
                self.work = Work::Idle;
                self.journal.cleared();
            }
            Durable::Record(Record::Reply(reply), _) if reply.id.site == *here => {
                if let Work::Running(pending) = self.work
                    && self.log.op(pending.op).id == reply.op
                    && pending.attempt == reply.attempt
                {
                    self.work = Work::Idle;
                    self.journal.ran(pending.op, pending.fresh, reply.outcome);
                } else {
                    self.journal.reach(reply.era);
                }
            }
            Durable::Trimmed { version, .. } => {
                self.trim_again(version);
                self.forget_contradictions(version);
            }
            Durable::Contradicted { number, .. } => {
                self.add_contradiction(number);
            }
            Durable::Record(..)
            | Durable::Forgotten { .. }
            | Durable::Withheld { .. }
            | Durable::Held { .. }
            | Durable::Aside(_)
            | Durable::Leftover(_)
            | Durable::Decided { .. } => {}
        }
    }
}

impl Replica {
    pub(super) fn ran(&mut self, run: &RunId, report: Report, now: Now, out: &mut Outbox) {
        let after = self.last_number(&run.resource);
        let id = OpId { site: self.here.clone(), number: self.next_number(&run.resource) };
        let Some(resource) = self.resources.get_mut(&run.resource) else { return };
        let Some(pending) = resource.pending(run) else { return };
        let before = resource.digest();
        let reply = resource.finish(id, pending, report);
        self.digest_changed(&run.resource, before);
        Self::recorded(&reply, None, out);
        self.publish(&reply, after, out);
        self.proceed(&run.resource, now, out);
    }

    /// There is no result of a run. An operation that replaces can run again, if it is repeatable; one
    /// that is not, and has an answer from before, was not to be sent again; a `Check` command can
    /// tell; otherwise nobody knows, and that is what is said.
    pub(super) fn lost(&mut self, run: &RunId, now: Now, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(&run.resource) else { return };
        let Some(pending) = resource.pending(run) else { return };
        let wanted = resource.fate(pending.op) == Fate::Kept;
        let repeatable = resource.log.op(pending.op).action.is_repeatable();
        let stands = resource.before(pending.op, &self.here).filter(|_| !repeatable);
        let stands = stands.filter(|before| !before.outcome.is_failure());
        if let Some(report) = stands.map(|before| before.report()) {
            self.ran(run, report, now, out);
        } else if wanted && pending.fresh && repeatable {
            // Until it has succeeded, the state may be the old one or the new one. The same intent
            // for the second time says so to a site that starts again meanwhile.
            resource.journal.doubt();
            out.persist(resource.intent(pending));
            out.run(resource.start(&self.here, pending));
        } else if let Some(command) = resource.config().check.clone() {
            resource.work = Work::Checking(pending);
            out.run(Effect::Check { run: run.clone(), command, timeout: resource.timeout() });
        } else {
            out.tell(Event::Unknown(run.clone()));
            let output = "the end of the run is not known: its supervisor is gone (a power cut, a \
                          reboot, or killed); nobody knows if it took effect";
            let report = Report {
                outcome: Outcome::Unknown,
                took: Millis(0),
                output: output.to_string().into(),
                made: None,
            };
            self.ran(run, report, now, out);
        }
    }

    /// The `Check` command found that a run had taken effect.
    pub(super) fn happened(&mut self, run: &RunId, now: Now, out: &mut Outbox) {
        let output = "the Check command found that it took effect".to_string().into();
        let report = Report { outcome: Outcome::Ok, took: Millis(0), output, made: None };
        self.ran(run, report, now, out);
    }

    /// A run that was intended did not happen: it is started now, if it is still wanted.
    pub(super) fn run_again(&mut self, run: &RunId, now: Now, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(&run.resource) else { return };
        let Some(pending) = resource.pending(run) else { return };
        if resource.fate(pending.op) == Fate::Kept && resource.fenced.is_empty() {
            resource.work = Work::Running(pending);
            out.run(resource.start(&self.here, pending));
        } else {
            resource.work = Work::Idle;
            self.proceed(&run.resource, now, out);
        }
    }

    /// No `Reset` command is under way any more, and nobody knows whether it took effect: the plan
    /// makes the state anew.
    pub(super) fn not_clearing(&mut self, id: &ResourceId, now: Now, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(id) else { return };
        if resource.work == Work::Clearing {
            resource.work = Work::Idle;
            self.proceed(id, now, out);
        }
    }

    pub(super) fn cleared(&mut self, id: &ResourceId, ok: bool, now: Now, out: &mut Outbox) {
        let Some(resource) = self.resources.get_mut(id) else { return };
        if resource.work != Work::Clearing {
            return;
        }
        resource.work = Work::Idle;
        resource.clear_failed = !ok;
        if ok {
            out.persist(Durable::Cleared(id.clone()));
            resource.journal.cleared();
        }
        self.proceed(id, now, out);
    }
}
