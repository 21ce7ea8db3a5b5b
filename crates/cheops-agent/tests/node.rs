//! The node: nothing is seen before it is durable, and a disk that fails loses nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

#[path = "support/disk.rs"]
mod disk;

use std::{sync::Arc, time::Duration};

use cheops_agent::{
    engine::Seq,
    node::{self, Busy, Clock, Handle, Hands, Health, Running, Told},
    trust::{Identity, Sealer},
};
use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    operation::Action,
    replica::{
        Answer, Durable, Effect, Event, Input, Message, Record, Replica, Report, Settings,
        Submission, Ticket,
    },
    time::Millis,
};
use disk::{Disk, hold};
use tokio::{sync::mpsc, time};

const SOON: Duration = Duration::from_secs(10);

/// What was done, and how much was durable by then.
#[derive(Clone)]
struct Seen {
    disk: Disk,
    done: mpsc::UnboundedSender<(Effect, usize)>,
}

impl Seen {
    fn note(&self, effect: Effect) {
        let durable = self.disk.written().len();
        let _ = self.done.send((effect, durable));
    }
}

impl Hands for Seen {
    fn send(&mut self, to: &SiteId, message: Message) {
        self.note(Effect::Send { to: to.clone(), message });
    }

    fn run(&mut self, effect: Effect) {
        self.note(effect);
    }

    fn tell(&mut self, _: &Event) {}
}

struct World {
    disk: Disk,
    handle: Handle,
    running: Running,
    done: mpsc::UnboundedReceiver<(Effect, usize)>,
}

const RESERVE: u64 = 100;

fn site(n: usize) -> SiteId {
    format!("site{n}").parse().unwrap()
}

fn world() -> World {
    let disk = Disk::default();
    disk.set_free(1_000);
    let (handle, inbox) = node::channel(Clock::default());
    let (to_done, done) = mpsc::unbounded_channel();
    let hands = Seen { disk: disk.clone(), done: to_done };
    let replica = Replica::new(site(1), Settings::default());
    let sealer = Sealer::new(Arc::new(Identity::from_seed(&[1; 32]).unwrap()), site(1));
    let (engine, hands) = (Box::new(disk.clone()), Box::new(hands));
    let running = node::start(inbox, replica, engine, hands, sealer, RESERVE).unwrap();
    World { disk, handle, running, done }
}

fn submission(id: &str) -> Submission {
    Submission {
        ticket: Ticket(0),
        resource: id.parse().unwrap(),
        sites: Some(Sites::new([site(1), site(2)]).unwrap()),
        config: None,
        kind: "set".parse().unwrap(),
        author: "test".parse().unwrap(),
        action: Action::command("true"),
        force: false,
        keep_going: false,
        wait: Millis(60_000),
        key: None,
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    time::timeout(SOON, future).await.unwrap()
}

#[tokio::test]
async fn an_operation_is_durable_before_it_is_sent_run_or_accepted() {
    let mut world = world();
    // Inputs and requests come by different ways: the feed tells when the first has arrived.
    let mut feed = world.handle.feed().follow();
    world.handle.tell(Input::PeerUp(site(2))).await.unwrap();
    soon(feed.recv()).await.unwrap();
    let mut answers = world.handle.submit(submission("x")).await.unwrap();
    let Some(Answer::Accepted(op, _)) = soon(answers.recv()).await else { panic!("not accepted") };
    assert_eq!(world.disk.written().len(), 2, "the operation and the intent");
    let (sent, durable) = soon(world.done.recv()).await.unwrap();
    assert!(matches!(sent, Effect::Send { .. }) && durable == 2, "{sent:?}");
    let (run, durable) = soon(world.done.recv()).await.unwrap();
    let Effect::Run { run, .. } = run else { panic!("{run:?}") };
    assert_eq!((&run.op, durable), (&op, 2));

    let report = Report {
        outcome: cheops_core::plan::Outcome::Ok,
        took: Millis(1),
        output: "".into(),
        made: None,
    };
    world.handle.tell(Input::Ran { run, report }).await.unwrap();
    assert!(matches!(soon(answers.recv()).await, Some(Answer::Reply(_))));
    let written = world.disk.written();
    assert!(matches!(written[2], Durable::Record(Record::Reply(_), _)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_waits_for_the_disk_that_it_rests_on() {
    let world = world();
    let slow = hold(&world.disk);
    let mut answers = world.handle.submit(submission("x")).await.unwrap();
    let handle = world.handle.clone();
    let read = tokio::spawn(async move { handle.read(|r| r.resources().count()).await.unwrap() });
    time::sleep(Duration::from_millis(50)).await;
    assert!(!read.is_finished() && answers.try_recv().is_err(), "nothing is seen yet");
    drop(slow);
    assert_eq!(soon(read).await.unwrap(), 1);
    assert!(matches!(soon(answers.recv()).await, Some(Answer::Accepted(_, _))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_while_the_disk_works_is_written_together() {
    let world = world();
    let slow = hold(&world.disk);
    let mut all = Vec::new();
    for n in 0..100 {
        all.push(world.handle.submit(submission(&format!("r{n}"))).await.unwrap());
    }
    drop(slow);
    for mut answers in all {
        assert!(matches!(soon(answers.recv()).await, Some(Answer::Accepted(_, _))));
    }
    assert_eq!(world.disk.written().len(), 200);
    let appends = world.disk.appends();
    assert!(appends <= 10, "{appends} appends for 100 operations");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_refuses_requests_serves_reads_and_loses_nothing() {
    let world = world();
    let mut first = world.handle.submit(submission("before")).await.unwrap();
    assert!(matches!(soon(first.recv()).await, Some(Answer::Accepted(_, _))));
    world.disk.set_broken(true);
    let mut in_flight = world.handle.submit(submission("in-flight")).await.unwrap();
    soon(async {
        while world.handle.health() == Health::Well {
            time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let refused = world.handle.submit(submission("refused")).await;
    assert!(matches!(refused, Err(Busy::Stalled(why)) if why.contains("it is broken")));
    let id: ResourceId = "before".parse().unwrap();
    assert!(soon(world.handle.read(move |r| r.resource(&id).is_some())).await.unwrap());
    assert!(in_flight.try_recv().is_err(), "it is not accepted");
    world.disk.set_broken(false);
    assert!(matches!(soon(in_flight.recv()).await, Some(Answer::Accepted(_, _))));
    let mut after = world.handle.submit(submission("after")).await.unwrap();
    assert!(matches!(soon(after.recv()).await, Some(Answer::Accepted(_, _))));
    let resources = soon(world.handle.read(|r| r.resources().count())).await.unwrap();
    assert_eq!(resources, 3, "what was refused left nothing behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_without_room_takes_no_operation_and_goes_on_when_there_is_some() {
    let world = world();
    world.disk.set_free(RESERVE - 1);
    soon(async {
        while world.handle.health() == Health::Well {
            time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let refused = world.handle.submit(submission("x")).await;
    assert_eq!(refused.err(), Some(Busy::Full(RESERVE - 1)));
    world.disk.set_free(RESERVE);
    soon(async {
        while world.handle.health() != Health::Well {
            time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let mut answers = world.handle.submit(submission("x")).await.unwrap();
    assert!(matches!(soon(answers.recv()).await, Some(Answer::Accepted(_, _))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_has_written_all_that_it_was_told() {
    let world = world();
    let mut all = Vec::new();
    for n in 0..20 {
        all.push(world.handle.submit(submission(&format!("r{n}"))).await.unwrap());
    }
    // Requests and inputs come by different ways: only what was answered came before the stop.
    for answers in &mut all {
        assert!(matches!(soon(answers.recv()).await, Some(Answer::Accepted(_, _))));
    }
    world.handle.stop();
    soon(world.running.stopped()).await;
    assert_eq!(world.disk.written().len(), 40);
    assert!(world.handle.read(|_| ()).await.is_err());
    assert!(matches!(world.handle.submit(submission("late")).await, Err(Busy::Stopping)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_feed_tells_what_is_durable_in_order() {
    let world = world();
    let mut feed = world.handle.feed().follow();
    for id in ["a", "b", "c"] {
        let mut answers = world.handle.submit(submission(id)).await.unwrap();
        soon(answers.recv()).await;
    }
    let mut told = Vec::new();
    for _ in 0..6 {
        if let Told::Wrote(seq, Durable::Record(record, _)) = soon(feed.recv()).await.unwrap() {
            told.push((record.resource().to_string(), seq));
        }
    }
    assert_eq!(told, [("a".into(), 1), ("b".into(), 3), ("c".into(), 5)]);
    let written = world.handle.feed().after(1, 10).unwrap();
    let numbers: Vec<Seq> = written.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers, [2, 3, 4, 5, 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stops_even_if_the_disk_fails() {
    let world = world();
    world.disk.set_broken(true);
    let mut in_flight = world.handle.submit(submission("x")).await.unwrap();
    soon(async {
        while world.handle.health() == Health::Well {
            time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    world.handle.stop();
    soon(world.running.stopped()).await;
    assert!(in_flight.recv().await.is_none(), "it was never accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_is_broken_for_good_ends_by_itself() {
    let mut world = world();
    world.disk.break_for_good();
    let mut in_flight = world.handle.submit(submission("x")).await.unwrap();
    soon(world.running.ended()).await;
    assert!(in_flight.recv().await.is_none(), "it was never accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_wait_for_a_disk_that_fails_are_let_go() {
    let world = world();
    let slow = hold(&world.disk);
    // One batch is under way, the next lies in the tray, and one more is being filled.
    let mut reads = Vec::new();
    for n in 0..3 {
        let _answers = world.handle.submit(submission(&format!("r{n}"))).await.unwrap();
        let handle = world.handle.clone();
        reads.push(tokio::spawn(async move { handle.read(|r| r.resources().count()).await }));
        time::sleep(Duration::from_millis(20)).await;
    }
    world.disk.set_broken(true);
    drop(slow);
    for read in reads {
        assert!(soon(read).await.unwrap().is_ok());
    }
    assert!(soon(world.handle.read(|_| ())).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_that_breaks_hurts_nobody_else() {
    let world = world();
    let broken = world.handle.read(|_| -> usize { panic!("as a test") });
    assert!(soon(broken).await.is_err());
    assert_eq!(soon(world.handle.read(|r| r.resources().count())).await, Ok(0));
}
