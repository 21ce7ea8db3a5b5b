//! What a site runs when the part of the block that its state depends on begins somewhere else than before.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

mod support;

use std::sync::Arc;

use cheops_core::{
    operation::Operation,
    plan::Outcome,
    replica::{Effect, Input, Message, Record, Replica, Reply, Report, Sent},
    time::Millis,
};
use support::pair::{now, operation, replica, resource, site};

const ALL: &[&str] = &["a", "b", "e", "f"];

/// Gives a site an input, and lets each command end, those of `fails` without success. What was run.
fn run(replica: &mut Replica, input: Input, fails: &str) -> Vec<String> {
    let (mut inputs, mut ran) = (vec![input], Vec::new());
    while let Some(input) = inputs.pop() {
        for effect in replica.handle(input, now(1)) {
            if let Effect::Run { run, .. } = effect {
                let op = run.op.to_string();
                let outcome = if op == fails { Outcome::Ko } else { Outcome::Ok };
                let report =
                    Report { outcome, took: Millis(1), output: Box::default(), made: None };
                inputs.push(Input::Ran { run, report });
                ran.push(op);
            }
        }
    }
    ran
}

/// `f:1` resets the state and fails, here and then where it was received. It is void after that, so that the
/// state depends again on what came before it: also on `e:1`, which was received apart and never run here.
#[test]
fn what_comes_before_a_reset_is_run_when_the_reset_is_void() {
    let mut b = replica("b");
    let received = |from: &str, sent: Vec<(u64, Record)>| {
        let sent = sent.into_iter().map(|(after, record)| Sent { after, record, seal: None });
        let records = sent.collect();
        let message = Message::Records { resource: resource("r"), records, more: false };
        Input::Received { from: site(from), message }
    };
    let record = |op: Operation| (op.id.number - 1, Record::Operation(Arc::new(op)));
    let first = operation("a:1", 5, &[], Some(ALL));
    let reset = Operation { reset: true, ..operation("f:1", 6, &["a:1"], None) };
    let both = received("f", vec![record(first), record(reset)]);
    assert_eq!(run(&mut b, both, "f:1"), ["f:1"]);
    let apart = received("e", vec![record(operation("e:1", 4, &[], Some(ALL)))]);
    assert!(run(&mut b, apart, "").is_empty());
    let reply = Reply {
        id: "f:2".parse().unwrap(),
        resource: resource("r"),
        op: "f:1".parse().unwrap(),
        attempt: 1,
        outcome: Outcome::Ko,
        era: 0,
        took: Millis(1),
        output: Box::default(),
        made: None,
    };
    let void = received("f", vec![(1, Record::Reply(Arc::new(reply)))]);
    let mut ran = run(&mut b, void, "");
    ran.sort();
    assert_eq!(ran, ["a:1", "e:1"]);
}
