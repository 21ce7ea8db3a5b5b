//! What one site would run: first alone, then with all that the others did.
//!
//! The story is the same for every site. While the links are down it receives its own operations,
//! each with the past that it names, and runs what the plan says after each. Then the links are
//! back: it hears of everything else at once, and again runs what the plan says.
//!
//! An operation that is void fails where it was received, and everyone else hears of the failure
//! together with the operation.

use alloc::vec::Vec;

use super::{History, view::View};
use crate::{
    id::SiteId,
    log::Ix,
    plan::{Act, Journal},
};

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
        self.journal.changed(self.view.resolution.void(&self.view.log, here).from);
    }

    /// Runs what the plan says, until it says no more.
    fn settle(&mut self) {
        let can_clear = self.history.config().reset.is_some();
        let (history, view) = (self.history, &mut self.view);
        let fails = |here: Ix| history.is_void(view.members[here.usize()]);
        let acts =
            self.journal.follow(&view.log, &mut view.resolution, can_clear, fails, usize::MAX);
        for act in acts {
            match act {
                Act::Run { op, again, fresh, failed } => {
                    let op = self.view.members[op.usize()];
                    self.acts.push(Act::Run { op, again, fresh, failed });
                }
                Act::Decide if self.acts.last() == Some(&Act::Decide) => {}
                Act::Clear | Act::Decide => self.acts.push(act),
            }
        }
    }
}
