//! Every requester hears at once whether the operation was accepted, hears of each site at most
//! once, and gets a last word, after which nothing comes; unless the site that was asked dies.

use std::collections::{BTreeMap, BTreeSet};

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::{Answer, Effect, Input, Ticket},
};

use crate::support::world::Seen;

struct Request {
    site: SiteId,
    resource: ResourceId,
    op: Option<OpId>,
    heard: BTreeSet<SiteId>,
    over: bool,
    /// The site that was asked has died, and the request with it.
    dead: bool,
}

#[derive(Default)]
pub struct Answered {
    requests: BTreeMap<Ticket, Request>,
}

impl Answered {
    pub fn see(&mut self, site: &SiteId, seen: Seen<'_>) {
        match seen {
            Seen::Given(Input::Submit(submission)) => {
                let request = Request {
                    site: site.clone(),
                    resource: submission.resource.clone(),
                    op: None,
                    heard: BTreeSet::new(),
                    over: false,
                    dead: false,
                };
                self.requests.insert(submission.ticket, request);
            }
            Seen::Done(Effect::Answer { ticket, answer }) => {
                let request = self.requests.get_mut(ticket).unwrap();
                assert_eq!(*site, request.site, "{ticket:?} is answered by another site");
                request.hear(*ticket, answer);
            }
            Seen::Crashed { .. } => {
                let here = self.requests.values_mut().filter(|request| request.site == *site);
                here.for_each(|request| request.dead = true);
            }
            _ => {}
        }
    }

    /// The operations that somebody was promised.
    pub fn accepted(&self) -> impl Iterator<Item = (&ResourceId, &OpId)> {
        self.requests.values().filter_map(|request| Some((&request.resource, request.op.as_ref()?)))
    }

    /// All requests must be over by now.
    pub fn check(&self) {
        for (ticket, request) in &self.requests {
            assert!(request.over || request.dead, "{ticket:?} never gets a last word");
        }
    }
}

impl Request {
    fn hear(&mut self, ticket: Ticket, answer: &Answer) {
        assert!(!self.over, "{ticket:?} hears {answer:?} after the last word");
        assert!(!self.dead, "{ticket:?} hears {answer:?} from an agent that died");
        match answer {
            Answer::Accepted(op, sites) => {
                let at_home = sites.contains(&self.site) && sites.contains(&op.site);
                assert!(at_home, "{ticket:?} is accepted for {sites}");
                assert_eq!(self.op, None, "{ticket:?} is accepted twice");
                self.op = Some(op.clone());
                return;
            }
            Answer::Refused(_) => {
                assert_eq!(self.op, None, "{ticket:?} is accepted and then refused");
                self.over = true;
                return;
            }
            Answer::Reply(reply) => {
                assert_eq!(Some(&reply.op), self.op.as_ref(), "{ticket:?} hears of another");
                let first = self.heard.insert(reply.id.site.clone());
                assert!(first, "{ticket:?} hears of {} twice", reply.id.site);
            }
            Answer::Superseded { .. } | Answer::Silent(_) => {}
            Answer::Done => self.over = true,
        }
        assert!(self.op.is_some(), "{ticket:?} hears {answer:?} before it is accepted");
    }
}
