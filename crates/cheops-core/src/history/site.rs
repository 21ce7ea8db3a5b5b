//! What one site would run: first alone, then with all that the others did.
//!
//! The story is the same for every site. While the links are down it receives its own operations,
//! each with the past that it names, and runs what the plan says after each. Then the links are
//! back: it hears of everything else at once, and again runs what the plan says.
//!
//! An operation that is void fails where it was received, and everyone else hears of the failure
//! together with the operation.

use alloc::{vec, vec::Vec};

use super::{History, view::View};
use crate::{
    id::SiteId,
    log::Ix,
    plan::{Journal, Outcome, Step},
};

/// One thing that a site does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// It runs an operation.
    Run {
        /// Which one.
        op: Ix,
        /// It ran this one before.
        again: bool,
        /// The operation replaces the state: what was run before it counts no more.
        fresh: bool,
        /// The command fails.
        failed: bool,
    },
    /// It runs the resource's `Reset` command.
    Clear,
    /// It can't go on: something that was run has left the block, and a person must decide.
    Decide,
}

/// What a site does, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Story {
    /// While it is alone.
    pub apart: Vec<Act>,
    /// After the links are back.
    pub after: Vec<Act>,
}

impl History {
    /// What a site would do.
    pub fn story(&self, site: &SiteId) -> Story {
        let mut teller = Teller {
            history: self,
            view: View::new(self.resolution.rules().clone(), &self.graph),
            journal: Journal::default(),
            ran: vec![false; self.ids.len()],
            acts: Vec::new(),
        };
        for (own, _) in self.log().iter().filter(|(_, op)| op.id.site == *site) {
            teller.hear(self.parents(own));
            teller.receive(own);
        }
        let apart = core::mem::take(&mut teller.acts);
        let all: Vec<Ix> = self.log().iter().map(|(ix, _)| ix).collect();
        teller.hear(&all);
        // Who heard nothing new may still need a decision; that is part of both phases.
        teller.settle();
        Story { apart, after: teller.acts }
    }
}

struct Teller<'h> {
    history: &'h History,
    view: View,
    journal: Journal,
    ran: Vec<bool>,
    acts: Vec<Act>,
}

impl Teller<'_> {
    /// Hears of what others received, and how it went there.
    fn hear(&mut self, ops: &[Ix]) {
        let batch = self.view.lacks(&self.history.graph, ops);
        if !batch.is_empty() {
            self.take(&batch, None);
        }
    }

    /// Receives an operation of its own.
    fn receive(&mut self, op: Ix) {
        let batch = self.view.lacks(&self.history.graph, &[op]);
        self.take(&batch, Some(op));
        // One that the plan had no use for failed all the same; the history says so.
        if self.history.is_void(op)
            && let Some(here) = self.view.log.find(&self.history.log().op(op).id)
        {
            self.fail(here);
            self.settle();
        }
    }

    /// Takes in operations, of which one may have to be tried to know that it fails.
    fn take(&mut self, batch: &[Ix], untried: Option<Ix>) {
        let history = self.history;
        let from = self.view.take(
            batch,
            |ix| history.log().op(ix).clone(),
            |ix| history.is_void(ix) && Some(ix) != untried,
        );
        self.journal.changed(from);
        self.settle();
    }

    fn fail(&mut self, here: Ix) {
        self.journal.changed(self.view.resolution.void(&self.view.log, here));
    }

    /// Runs what the plan says, until it says no more.
    fn settle(&mut self) {
        let can_clear = self.history.config().reset.is_some();
        loop {
            match self.journal.next(&self.view.log, &self.view.resolution, can_clear) {
                Step::Rest => return,
                Step::Decide => {
                    if self.acts.last() != Some(&Act::Decide) {
                        self.acts.push(Act::Decide);
                    }
                    return;
                }
                Step::Clear => {
                    self.journal.cleared();
                    self.acts.push(Act::Clear);
                }
                Step::Run { op: here, fresh } => self.run(here, fresh),
            }
        }
    }

    fn run(&mut self, here: Ix, fresh: bool) {
        let op = self.view.members[here.usize()];
        let failed = self.history.is_void(op);
        let again = core::mem::replace(&mut self.ran[op.usize()], true);
        self.acts.push(Act::Run { op, again, fresh, failed });
        self.journal.ran(here, fresh, if failed { Outcome::Ko } else { Outcome::Ok });
        if failed {
            self.fail(here);
        }
    }
}
