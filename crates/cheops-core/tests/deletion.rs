//! Deletion between sites, of which one has forgotten and the other has not; stories of whole
//! deletions are in `fixtures`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::{collections::VecDeque, sync::Arc};

use cheops_core::{
    id::{OpId, ResourceId, SiteId, Sites},
    operation::{Action, Declaration, Operation},
    plan::Outcome,
    replica::{
        Answer, Durable, Effect, Event, Input, Message, Record, Replica, Reply, Report, Resource,
        Sent, Settings, Stretch, Submission, Ticket, Version,
    },
    time::{Millis, Now, Timestamp},
};

/// A site and all that it did.
struct Place {
    replica: Replica,
    disk: Vec<Durable>,
    ran: Vec<String>,
    answers: Vec<Answer>,
    events: Vec<Event>,
    sent: VecDeque<Message>,
}

/// Two sites, `a` and `b`, and the messages between them.
struct Two {
    places: [Place; 2],
    seconds: u64,
}

const NAMES: [&str; 2] = ["a", "b"];

fn site(n: usize) -> SiteId {
    NAMES[n].parse().unwrap()
}

fn resource() -> ResourceId {
    "r".parse().unwrap()
}

fn request(line: &str) -> Submission {
    Submission {
        ticket: Ticket(1),
        resource: resource(),
        sites: Some(Sites::new([site(0), site(1)]).unwrap()),
        config: None,
        kind: line.split(' ').next().unwrap().parse().unwrap(),
        author: "someone".parse().unwrap(),
        action: Action::command(line),
        force: false,
        keep_going: false,
        key: None,
        wait: Millis(60_000),
    }
}

impl Two {
    /// Two sites that have run `set 1`.
    fn new() -> Self {
        let place = |n| Place {
            replica: Replica::new(site(n), Settings::default()),
            disk: Vec::new(),
            ran: Vec::new(),
            answers: Vec::new(),
            events: Vec::new(),
            sent: VecDeque::new(),
        };
        let mut two = Self { places: [place(0), place(1)], seconds: 0 };
        two.connect();
        two.submit(0, "set 1");
        two.talk();
        two
    }

    fn connect(&mut self) {
        self.input(0, Input::PeerUp(site(1)));
        self.input(1, Input::PeerUp(site(0)));
        self.talk();
    }

    /// Gives a site an input, and lets what it runs succeed.
    fn input(&mut self, n: usize, input: Input) {
        let millis = Millis(1_000_000 + self.seconds * 1_000);
        let now = Now { wall: millis, steady: millis };
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let place = &mut self.places[n];
            for effect in place.replica.handle(input, now) {
                match effect {
                    Effect::Persist(durable) => place.disk.push(durable),
                    Effect::Send { message, .. } => place.sent.push_back(message),
                    Effect::Run { run, op, .. } => {
                        let Action::Command { line, .. } = &op.action else { panic!("a command") };
                        place.ran.push(line.to_string());
                        let outcome = Outcome::Ok;
                        let report =
                            Report { outcome, took: Millis(1), output: Box::default(), made: None };
                        inputs.push_back(Input::Ran { run, report });
                    }
                    Effect::Answer { answer, .. } => place.answers.push(answer),
                    Effect::Tell(event) => place.events.push(event),
                    Effect::Recall(_)
                    | Effect::Check { .. }
                    | Effect::Clear { .. }
                    | Effect::RecallClear(_)
                    | Effect::Show { .. } => {
                        panic!("nothing is in doubt")
                    }
                }
            }
        }
    }

    fn submit(&mut self, n: usize, line: &str) {
        self.seconds += 1;
        self.input(n, Input::Submit(Box::new(request(line))));
    }

    /// Asks for an operation that resets.
    fn force(&mut self, n: usize, line: &str) {
        self.seconds += 1;
        self.input(n, Input::Submit(Box::new(Submission { force: true, ..request(line) })));
    }

    /// Delivers one message that a site has sent.
    fn deliver(&mut self, from: usize) {
        let message = self.places[from].sent.pop_front().unwrap();
        self.input(1 - from, Input::Received { from: site(from), message });
    }

    /// Delivers all messages, and those that they lead to.
    fn talk(&mut self) {
        let mut count = 0;
        while let Some(from) = (0..2).find(|&n| !self.places[n].sent.is_empty()) {
            self.deliver(from);
            count += 1;
            assert!(count < 100, "they never stop");
        }
    }

    /// A delete that both have run, and that only `a` knows both to have run.
    fn half_forgotten() -> Self {
        let mut two = Self::new();
        two.submit(1, "delete x");
        while two.exists(0) {
            two.deliver(1);
        }
        // The reply of `a` is lost.
        two.places[0].sent.clear();
        two.places[1].sent.clear();
        assert!(two.exists(1), "b lacks a reply");
        two
    }

    fn exists(&self, n: usize) -> bool {
        self.places[n].replica.resource(&resource()).is_some()
    }

    fn block(&self, n: usize) -> Vec<String> {
        let found = self.places[n].replica.resource(&resource());
        let line = |action: &Action| match action {
            Action::Command { line, .. } => line.to_string(),
            other => panic!("{other:?}"),
        };
        found.into_iter().flat_map(Resource::block).map(|op| line(&op.action)).collect()
    }

    /// That both sites know the same and agree that these commands are the block.
    fn agree(&self, block: &[&str]) {
        for (n, name) in NAMES.iter().enumerate() {
            assert_eq!(self.block(n), block, "at {name}");
        }
        let version =
            |n: usize| self.places[n].replica.resource(&resource()).map(Resource::version);
        assert_eq!(version(0), version(1));
        // What is on disk leads to the same, with and without what was forgotten.
        for place in &self.places {
            let last = place.disk.iter().rposition(|d| matches!(d, Durable::Forgotten { .. }));
            for from in [0, last.unwrap_or(0)] {
                let disk = place.disk[from..].iter().cloned();
                let here = place.replica.here().clone();
                let again = Replica::restore(here, Settings::default(), disk);
                let (now, then) =
                    (place.replica.resource(&resource()), again.resource(&resource()));
                assert_eq!(now.map(Resource::version), then.map(Resource::version));
                let ids = |r: &Resource| r.block().map(|op| op.id.clone()).collect::<Vec<OpId>>();
                assert_eq!(now.map(ids), then.map(ids));
                assert_eq!(place.replica.forgotten(&resource()), again.forgotten(&resource()));
            }
        }
        let own = |n: usize| {
            let record = move |durable: &Durable| match durable {
                Durable::Record(record, _) if record.id().site == site(n) => {
                    Some(record.id().number)
                }
                _ => None,
            };
            self.places[n].disk.iter().filter_map(record).collect::<Vec<u64>>()
        };
        for n in 0..2 {
            assert!(own(n).is_sorted_by(|x, y| x < y), "no number is used twice: {:?}", own(n));
        }
    }
}

#[test]
fn a_site_that_lacks_a_reply_is_told() {
    let mut two = Two::half_forgotten();
    two.connect();
    assert!(!two.exists(0) && !two.exists(1));
    assert!(two.places[1].events.contains(&Event::Forgotten(resource())));
    assert_eq!(two.places[1].answers.last(), Some(&Answer::Done));
    two.agree(&[]);
    two.connect();
    assert_eq!(two.places[1].ran, ["set 1", "delete x"]);
}

#[test]
fn created_again_where_it_is_forgotten_it_reaches_who_has_not() {
    for lost in [false, true] {
        let mut two = Two::half_forgotten();
        two.submit(0, "inc 5");
        if lost {
            two.places[0].sent.clear();
        }
        two.connect();
        two.agree(&["inc 5"]);
        assert_eq!(two.places[1].ran, ["set 1", "delete x", "inc 5"]);
    }
}

#[test]
fn what_follows_the_delete_begins_a_new_life_where_it_is_forgotten() {
    for lost in [false, true] {
        let mut two = Two::half_forgotten();
        two.submit(1, "inc 5");
        if lost {
            two.places[1].sent.clear();
            two.submit(1, "inc 6");
        }
        two.connect();
        two.talk();
        two.agree(if lost { &["inc 5", "inc 6"] } else { &["inc 5"] });
        assert_eq!(two.places[0].ran[..3], ["set 1", "delete x", "inc 5"]);
        assert_eq!(two.places[0].ran[1..], two.places[1].ran[1..]);
    }
}

#[test]
fn created_again_at_both_sites_both_operations_stay() {
    let mut two = Two::half_forgotten();
    two.submit(0, "inc 5");
    two.places[0].sent.clear();
    two.submit(1, "inc 6");
    two.places[1].sent.clear();
    two.connect();
    two.agree(&["inc 5", "inc 6"]);
    for place in &two.places {
        assert_eq!(place.ran.iter().filter(|line| line.starts_with("inc")).count(), 2);
    }
}

/// Each site knows of the other's delete, and not of what follows it there. If each forgot by the
/// other's, each would forget what it received itself.
#[test]
fn deleted_and_created_again_at_both_sites_apart_nothing_is_lost() {
    let mut two = Two::new();
    for (n, lines) in [(0, ["delete x", "set 5"]), (1, ["delete y", "set 6"])] {
        two.submit(n, lines[0]);
        let deleted = two.places[n].sent.len();
        two.force(n, lines[1]);
        two.places[n].sent.truncate(deleted);
    }
    for from in [0, 1] {
        while !two.places[from].sent.is_empty() {
            two.deliver(from);
            two.places[1 - from].sent.retain(|message| !matches!(message, Message::Forgotten(_)));
        }
    }
    assert!(two.exists(0) && two.exists(1));
    two.connect();
    two.agree(&["set 5", "set 6"]);
    two.submit(0, "delete z");
    two.talk();
    two.agree(&[]);
    assert!(!two.exists(0) && !two.exists(1), "what follows both ends both");
}

/// `b` has run something after the delete that is over where it is forgotten, and runs the delete
/// again to be rid of it. When it starts again it is still rid of it.
#[test]
fn what_was_dropped_stays_dropped_after_a_restart() {
    let mut two = Two::new();
    two.submit(1, "delete x");
    let deleted = two.places[1].sent.len();
    two.force(1, "set 7");
    two.places[1].sent.truncate(deleted);
    two.submit(0, "inc 2");
    let late: Vec<Message> = two.places[0].sent.drain(..).collect();
    while two.exists(0) {
        two.deliver(1);
    }
    two.places[0].sent.clear();
    for message in late {
        two.input(1, Input::Received { from: site(0), message });
    }
    assert_eq!(two.block(1), ["set 7", "inc 2"], "what fell to the delete is back");
    two.connect();
    let runs = &two.places[1].ran;
    assert_eq!(runs.iter().filter(|line| *line == "delete x").count(), 2, "{runs:?}");
    two.agree(&["set 7"]);
}

#[test]
fn deleted_and_created_many_times_numbers_go_on() {
    let mut two = Two::new();
    for n in 0..5 {
        two.submit(n % 2, "delete x");
        two.talk();
        two.agree(&[]);
        two.submit((n + 1) % 2, "inc 1");
        two.talk();
        two.agree(&["inc 1"]);
    }
}

/// What is left over from an earlier life, and comes late, brings nothing back.
#[test]
fn old_messages_bring_nothing_back() {
    let mut two = Two::new();
    let mut old: Vec<Message> = Vec::new();
    two.submit(0, "inc 2");
    old.extend(two.places[0].sent.iter().cloned());
    two.talk();
    two.submit(0, "delete x");
    old.extend(two.places[0].sent.iter().cloned());
    two.talk();
    two.agree(&[]);
    for message in old {
        two.input(1, Input::Received { from: site(0), message });
        two.talk();
        two.agree(&[]);
    }
    assert_eq!(two.places[1].ran, ["set 1", "inc 2", "delete x"]);
}

#[test]
fn who_is_not_a_site_of_the_resource_makes_nobody_forget() {
    let mut two = Two::half_forgotten();
    let version: Version = two.places[0].replica.forgotten(&resource()).unwrap().clone();
    let lie = |from: &str, version: Version| Input::Received {
        from: from.parse().unwrap(),
        message: Message::Forgotten(vec![(resource(), version)]),
    };
    two.input(1, lie("z", version.clone()));
    assert!(two.exists(1));
    let endless = version.keys().map(|site| (site.clone(), u64::MAX)).collect();
    two.input(1, lie("a", endless));
    assert!(two.exists(1));
    let refused = |event: &&Event| matches!(event, Event::Refused { .. });
    assert_eq!(two.places[1].events.iter().filter(refused).count(), 2);
    two.input(1, lie("a", version));
    assert!(!two.exists(1));
}

/// A resource that was not deleted is not forgotten, whatever a peer says.
#[test]
fn what_was_not_deleted_stays() {
    let mut two = Two::new();
    let version = two.places[0].replica.resource(&resource()).unwrap().version();
    let message = Message::Forgotten(vec![(resource(), version)]);
    two.input(1, Input::Received { from: site(0), message });
    two.talk();
    two.agree(&["set 1"]);
}

/// A site may forget before the last reply of another reaches it. What it hears later raises its
/// tombstone, durably, so that a new life that follows that reply is taken in.
#[test]
fn a_tombstone_rises_to_the_line_of_another_site() {
    let mut two = Two::half_forgotten();
    let known = two.places[0].replica.forgotten(&resource()).unwrap().clone();
    let raised = |by: u64| -> Version {
        known.iter().map(|(site, number)| (site.clone(), number + by)).collect()
    };
    // What it has recorded itself, nobody else knows better.
    let mut line = raised(2);
    line.insert(site(0), known[&site(0)]);
    let tells = |from: &str, version: Version| Input::Received {
        from: from.parse().unwrap(),
        message: Message::Forgotten(vec![(resource(), version)]),
    };
    let endless = known.keys().map(|site| (site.clone(), u64::MAX)).collect();
    for (from, version, expected) in [
        ("z", raised(2), &known),
        ("b", endless, &known),
        ("b", raised(2), &line),
        ("b", known.clone(), &line),
    ] {
        two.input(0, tells(from, version));
        let forgotten = |replica: &Replica| replica.forgotten(&resource()).cloned();
        assert_eq!(forgotten(&two.places[0].replica).as_ref(), Some(expected), "{from}");
        let disk = two.places[0].disk.clone();
        let restored = Replica::restore(site(0), Settings::default(), disk);
        assert_eq!(forgotten(&restored).as_ref(), Some(expected), "{from}, after a restart");
    }
}

/// One site has forgotten a resource and the other has not: that explains why they know different
/// things, and says nothing against what else they share.
#[test]
fn a_tombstone_at_one_site_alone_is_no_contradiction() {
    let mut two = Two::half_forgotten();
    let other = Submission { resource: "s".parse().unwrap(), ..request("set 1") };
    two.input(0, Input::Submit(Box::new(other)));
    two.talk();
    let alarms = |two: &Two| -> Vec<Event> {
        let events = two.places.iter().flat_map(|place| &place.events);
        events.filter(|event| matches!(event, Event::Refused { .. })).cloned().collect()
    };
    // `b` shows what it has, and knows less of `r` than `a` has forgotten.
    let shown = |two: &Two| {
        let versions = two.places[1].replica.resources().map(|r| (r.id().clone(), r.version()));
        let digest = two.places[1].replica.shared_digest(&site(0));
        Message::Have(Stretch::default(), versions.collect(), digest)
    };
    assert!(two.exists(1) && !two.exists(0));
    let message = shown(&two);
    two.input(0, Input::Received { from: site(1), message });
    assert_eq!(alarms(&two), []);
    two.talk();
    assert_eq!(alarms(&two), []);
    assert!(!two.exists(1), "it was told");
}

/// A site goes on to reply to what others have forgotten, and then begins a new life of the resource: what
/// follows those replies is not held up by them.
#[test]
fn a_new_life_follows_replies_that_came_too_late() {
    let mut two = Two::new();
    two.submit(0, "delete 0");
    for _ in 0..3 {
        two.talk();
    }
    let known = two.places[0].replica.forgotten(&resource()).unwrap().clone();
    let last = known[&site(1)];
    let id = |number| OpId { site: site(1), number };
    let forgotten = OpId { site: site(0), number: 1 };
    let late = Reply {
        id: id(last + 1),
        resource: resource(),
        op: forgotten.clone(),
        attempt: 2,
        outcome: Outcome::Ok,
        era: 2,
        took: Millis(1),
        output: Box::default(),
        made: None,
    };
    let begins = Operation {
        id: id(last + 2),
        resource: resource(),
        kind: "set".parse().unwrap(),
        author: "someone".parse().unwrap(),
        at: Timestamp::at(Millis(2_000_000)),
        parents: vec![forgotten].into(),
        action: Action::command("set 7"),
        reset: true,
        keep_going: false,
        key: None,
        declares: Some(Box::new(Declaration {
            sites: Sites::new([site(0), site(1)]).unwrap(),
            config: Arc::default(),
            base: Version::new(),
        })),
    };
    let sent = |after, record| Sent { after, record, seal: None };
    let records = vec![
        sent(last, Record::Reply(Arc::new(late))),
        sent(last + 1, Record::Operation(Arc::new(begins))),
    ];
    let message = Message::Records { resource: resource(), records, more: false };
    two.input(0, Input::Received { from: site(1), message });
    let lives = |replica: &Replica| replica.resource(&resource()).map(|found| found.log().len());
    assert_eq!(lives(&two.places[0].replica), Some(1));
    let disk = two.places[0].disk.clone();
    let restored = Replica::restore(site(0), Settings::default(), disk);
    assert_eq!(lives(&restored), Some(1), "after a restart");
}
