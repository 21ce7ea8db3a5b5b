//! Replicas without a world around them: each message is written by hand, or carried between two of them.

use std::{collections::VecDeque, sync::Arc};

use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    operation::{Action, Declaration, Operation},
    plan::Outcome,
    replica::{
        Durable, Effect, Event, Input, Message, Record, Replica, Reply, Report, Sent, Settings,
        Submission, Ticket, Version,
    },
    time::{Millis, Now, Timestamp},
};

pub fn site(name: &str) -> SiteId {
    name.parse().unwrap()
}

pub fn sites(names: &[&str]) -> Sites {
    Sites::new(names.iter().map(|name| site(name))).unwrap()
}

pub fn resource(id: &str) -> ResourceId {
    id.parse().unwrap()
}

pub fn replica(name: &str) -> Replica {
    Replica::new(site(name), Settings::default())
}

pub fn now(seconds: u64) -> Now {
    let millis = Millis(seconds * 1000);
    Now { wall: millis, steady: millis }
}

/// An operation on resource `r`; on `declares` it is the first of the resource.
pub fn operation(id: &str, at: u64, parents: &[&str], declares: Option<&[&str]>) -> Operation {
    Operation {
        id: id.parse().unwrap(),
        resource: resource("r"),
        kind: "inc".parse().unwrap(),
        author: "someone".parse().unwrap(),
        at: Timestamp::from_bits(at),
        parents: parents.iter().map(|id| id.parse().unwrap()).collect(),
        action: Action::command("inc 1"),
        reset: false,
        keep_going: false,
        key: None,
        declares: declares.map(|names| {
            Box::new(Declaration {
                sites: sites(names),
                config: Arc::default(),
                base: Version::new(),
            })
        }),
    }
}

pub fn records(from: &str, after: u64, op: Operation) -> Input {
    let records = vec![Sent { after, record: Record::Operation(Arc::new(op)), seal: None }];
    let message = Message::Records { resource: resource("r"), records, more: false };
    Input::Received { from: site(from), message }
}

/// A reply of site `b` to the operation `b:1` of resource `r`.
pub fn reply(id: &str, output: &str) -> Input {
    let reply = Reply {
        id: id.parse().unwrap(),
        resource: resource("r"),
        op: "b:1".parse().unwrap(),
        attempt: 1,
        outcome: Outcome::Ok,
        era: 1,
        took: Millis(1),
        output: output.into(),
        made: None,
    };
    let after = reply.id.number - 1;
    let records = vec![Sent { after, record: Record::Reply(Arc::new(reply)), seal: None }];
    let message = Message::Records { resource: resource("r"), records, more: false };
    Input::Received { from: site("b"), message }
}

pub fn submission(id: &str, names: &[&str]) -> Input {
    Input::Submit(Box::new(Submission {
        ticket: Ticket(1),
        resource: resource(id),
        sites: Some(sites(names)),
        config: None,
        kind: "inc".parse().unwrap(),
        author: "someone".parse().unwrap(),
        action: Action::command("inc 1"),
        force: false,
        keep_going: false,
        key: None,
        wait: Millis(10),
    }))
}

pub fn refusals(effects: &[Effect]) -> Vec<&'static str> {
    let refused = effects.iter().filter_map(|effect| match effect {
        Effect::Tell(Event::Refused { why, .. }) => Some(*why),
        _ => None,
    });
    refused.collect()
}

pub fn known(replica: &Replica) -> usize {
    replica.resource(&resource("r")).map_or(0, |found| found.log().len())
}

/// Gives a site an input and lets what it runs succeed. What it wrote down, and what it sent.
pub fn serve(
    replica: &mut Replica,
    input: Input,
    at: Now,
) -> (Vec<Durable>, Vec<(SiteId, Message)>) {
    let (mut written, mut sent) = (Vec::new(), Vec::new());
    let mut inputs = VecDeque::from([input]);
    while let Some(input) = inputs.pop_front() {
        for effect in replica.handle(input, at) {
            match effect {
                Effect::Persist(durable) => written.push(durable),
                Effect::Send { to, message } => sent.push((to, message)),
                Effect::Run { run, .. } => {
                    let report = Report {
                        outcome: Outcome::Ok,
                        took: Millis(1),
                        output: Box::default(),
                        made: None,
                    };
                    inputs.push_back(Input::Ran { run, report });
                }
                _ => {}
            }
        }
    }
    (written, sent)
}

/// Connects two sites and lets them talk until both are silent. All that was refused.
pub fn talk(a: &mut Replica, b: &mut Replica) -> Vec<&'static str> {
    let ups = [Input::PeerUp(b.here().clone()), Input::PeerUp(a.here().clone())];
    carry(a, b, ups, now(100))
}

/// The same, and lets them ask again after a while for what is still missing.
pub fn talk_on(a: &mut Replica, b: &mut Replica) -> Vec<&'static str> {
    let mut refused = talk(a, b);
    for later in [200, 300] {
        refused.extend(carry(a, b, [Input::Tick, Input::Tick], now(later)));
    }
    refused
}

/// Gives an input to each of two sites, and carries their messages until both are silent.
fn carry(a: &mut Replica, b: &mut Replica, first: [Input; 2], at: Now) -> Vec<&'static str> {
    let names = [a.here().clone(), b.here().clone()];
    let mut queue: VecDeque<(usize, Input)> = first.into_iter().enumerate().collect();
    let mut refused = Vec::new();
    let mut carried = 0;
    while let Some((n, input)) = queue.pop_front() {
        carried += 1;
        assert!(carried < 2_000, "they never stop");
        let replica = if n == 0 { &mut *a } else { &mut *b };
        let effects = replica.handle(input, at);
        refused.extend(refusals(&effects));
        for effect in effects {
            if let Effect::Send { to, message } = effect
                && to == names[1 - n]
            {
                queue.push_back((1 - n, Input::Received { from: names[n].clone(), message }));
            }
        }
    }
    refused
}
