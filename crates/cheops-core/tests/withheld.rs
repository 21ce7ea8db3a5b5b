//! A site that has lost something of what it wrote about a resource: which numbers it uses from then
//! on, what it runs, and when all is as before. Storms with losses are in `sim`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::collections::{BTreeMap, VecDeque};

use cheops_core::{
    id::{OpId, ResourceId, SiteId, Sites},
    operation::{Action, Operation},
    plan::Outcome,
    replica::{
        Answer, Durable, Effect, Input, Lost, Message, Record, Refusal, Replica, Report, RunId,
        Sent, Settings, Stretch, Submission, Ticket,
    },
    time::{Millis, Now},
};

const NAMES: [&str; 2] = ["a", "b"];

fn site(n: usize) -> SiteId {
    NAMES[n].parse().unwrap()
}

fn resource() -> ResourceId {
    "r".parse().unwrap()
}

struct Place {
    replica: Replica,
    disk: Vec<Durable>,
    /// All that it ever wrote about the resource under numbers of its own.
    used: BTreeMap<u64, Record>,
    ran: Vec<String>,
    recalled: Vec<RunId>,
    answers: Vec<Answer>,
    sent: VecDeque<Message>,
}

/// Two sites, `a` and `b`, and the messages between them. Commands named `fail` fail; one named
/// `long` does not end by itself.
struct Two {
    places: [Place; 2],
    linked: bool,
    seconds: u64,
}

impl Two {
    /// Both have run `set 1`, `inc 2` of `a` and `inc 3` of `b`.
    fn new() -> Self {
        let mut two = Self::apart();
        two.link();
        two.submit(0, "set 1", false);
        two.submit(0, "inc 2", false);
        two.submit(1, "inc 3", false);
        two
    }

    /// Both know nothing, and there is no link.
    fn apart() -> Self {
        let place = |n| Place {
            replica: Replica::new(site(n), Settings::default()),
            disk: Vec::new(),
            used: BTreeMap::new(),
            ran: Vec::new(),
            recalled: Vec::new(),
            answers: Vec::new(),
            sent: VecDeque::new(),
        };
        Self { places: [place(0), place(1)], linked: false, seconds: 0 }
    }

    fn link(&mut self) {
        self.linked = true;
        self.input(0, Input::PeerUp(site(1)));
        self.input(1, Input::PeerUp(site(0)));
        self.talk();
    }

    fn unlink(&mut self) {
        self.linked = false;
        self.input(0, Input::PeerDown(site(1)));
        self.input(1, Input::PeerDown(site(0)));
    }

    fn input(&mut self, n: usize, input: Input) {
        let millis = Millis(1_000_000 + self.seconds * 1_000);
        let now = Now { wall: millis, steady: millis };
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let place = &mut self.places[n];
            for effect in place.replica.handle(input, now) {
                match effect {
                    Effect::Persist(durable) => place.write(n, durable),
                    Effect::Send { message, .. } => place.sent.push_back(message),
                    Effect::Run { run, op, .. } => {
                        let Action::Command { line, .. } = &op.action else { panic!("a command") };
                        place.ran.push(line.to_string());
                        match line.split(' ').next().unwrap() {
                            "long" => {}
                            "fail" => inputs.push_back(ended(run, Outcome::Ko)),
                            _ => inputs.push_back(ended(run, Outcome::Ok)),
                        }
                    }
                    Effect::Recall(run) => place.recalled.push(run),
                    Effect::Answer { answer, .. } => place.answers.push(answer),
                    Effect::Tell(_) => {}
                    Effect::Check { .. }
                    | Effect::Clear { .. }
                    | Effect::RecallClear(_)
                    | Effect::Show { .. } => panic!("there is no such"),
                }
            }
        }
    }

    /// Asks a site for an operation; the first answer.
    fn submit(&mut self, n: usize, line: &str, force: bool) -> Answer {
        self.submit_for(n, resource(), line, force)
    }

    fn submit_for(&mut self, n: usize, resource: ResourceId, line: &str, force: bool) -> Answer {
        self.seconds += 1;
        let submission = Submission {
            ticket: Ticket(self.seconds),
            resource,
            sites: Some(Sites::new([site(0), site(1)]).unwrap()),
            config: None,
            kind: line.split(' ').next().unwrap().parse().unwrap(),
            author: "someone".parse().unwrap(),
            action: Action::command(line),
            force,
            keep_going: false,
            key: None,
            wait: Millis(60_000),
        };
        self.places[n].answers.clear();
        self.input(n, Input::Submit(Box::new(submission)));
        let answer = self.places[n].answers[0].clone();
        self.talk();
        answer
    }

    /// Delivers all messages, and those that they lead to; nothing if the two are apart.
    fn talk(&mut self) {
        self.talk_within(200);
    }

    /// How many messages that took, of at most so many.
    fn talk_within(&mut self, most: usize) -> usize {
        for count in 0..most {
            let Some(from) = (0..2).find(|&n| !self.places[n].sent.is_empty()) else {
                return count;
            };
            let message = self.places[from].sent.pop_front().unwrap();
            if self.linked {
                self.input(1 - from, Input::Received { from: site(from), message });
            }
        }
        panic!("they never stop");
    }

    /// The site starts again from its disk, with its links.
    fn restart(&mut self, n: usize) {
        let linked = self.linked;
        self.unlink();
        let place = &mut self.places[n];
        place.sent.clear();
        place.recalled.clear();
        let disk = place.disk.clone();
        place.replica = Replica::restore(site(n), Settings::default(), disk);
        self.input(n, Input::Started);
        if linked {
            self.link();
        }
    }

    /// `a` loses all but the first so many things that it wrote, and starts again without links.
    fn lose(&mut self, kept: usize) -> u64 {
        self.unlink();
        let place = &mut self.places[0];
        let floor = place.used.keys().max().copied().unwrap_or(0);
        place.disk.truncate(kept);
        place.disk.push(Durable::Withheld { resource: resource(), floor });
        self.restart(0);
        floor
    }

    /// `a` loses all that it wrote, cannot tell of which resources, and starts again without links.
    fn lose_all(&mut self) {
        self.unlink();
        let place = &mut self.places[0];
        let lost = place.disk.len() as u64;
        place.disk.clear();
        place.replica = Replica::new(site(0), Settings::default());
        place.sent.clear();
        place.replica.lose_unknown(Millis(1_000_000 + self.seconds * 1_000), lost);
        self.input(0, Input::Started);
    }

    fn is_withheld(&self) -> bool {
        self.places[0].replica.is_withheld(&resource())
    }

    /// What `b` would send as the record with this id of the resource, if it were of another one.
    fn foreign(&self, id: &OpId) -> Message {
        let known = self.places[1].replica.resource(&resource()).unwrap();
        let op = known.log().op(known.log().find(id).unwrap());
        let op = Operation { resource: "s".parse().unwrap(), ..(**op).clone() };
        let record = Record::Operation(op.into());
        let records = vec![Sent { after: id.number - 1, record, seal: None }];
        Message::Records { resource: resource(), records, more: false }
    }

    /// Asks `a` for a forced operation, again if it has to hear of `b` first.
    fn force(&mut self, line: &str) -> OpId {
        let mut answer = self.submit(0, line, true);
        if matches!(answer, Answer::Refused(_)) {
            answer = self.submit(0, line, true);
        }
        let Answer::Accepted(op, sites) = answer else { panic!("{answer:?}") };
        assert_eq!(sites, Sites::new([site(0), site(1)]).unwrap());
        op
    }

    /// The two know the same, and `a` has not used a number twice.
    fn agree(&self, what: &str) {
        let [a, b] = &self.places;
        let [a, b] = [a, b].map(|place| place.replica.resource(&resource()).unwrap());
        assert_eq!(a.version(), b.version(), "{what}");
        let ids = |r: &cheops_core::replica::Resource| -> Vec<OpId> {
            r.block().map(|op| op.id.clone()).collect()
        };
        assert_eq!(ids(a), ids(b), "{what}");
        assert_eq!(a.log().len(), b.log().len(), "{what}");
    }
}

fn ended(run: RunId, outcome: Outcome) -> Input {
    Input::Ran {
        run,
        report: Report { outcome, took: Millis(1), output: Box::default(), made: None },
    }
}

impl Place {
    fn write(&mut self, n: usize, durable: Durable) {
        if let Durable::Record(record, _) = &durable
            && record.id().site == site(n)
            && *record.resource() == resource()
        {
            let first = self.used.entry(record.id().number).or_insert_with(|| record.clone());
            assert_eq!(first, record, "a number is used twice");
        }
        self.disk.push(durable);
    }
}

/// How much `a` may have kept: all numbers from nothing to everything.
fn prefixes() -> impl Iterator<Item = usize> {
    0..=Two::new().places[0].disk.len()
}

#[test]
fn no_number_up_to_the_floor_is_used_again_ever() {
    for kept in prefixes() {
        for restarts in [false, true] {
            let what = format!("kept {kept}, restarts {restarts}");
            let mut two = Two::new();
            let floor = two.lose(kept);
            two.link();
            let before = two.places[0].used.len();
            two.force("set 5");
            let again = |two: &mut Two| {
                if restarts {
                    two.restart(0);
                }
            };
            again(&mut two);
            assert!(!two.is_withheld(), "{what}");
            for line in ["inc 6", "inc 7"] {
                two.submit(1, line, false);
                two.submit(0, line, false);
                again(&mut two);
            }
            let used = &two.places[0].used;
            assert!(used.range(floor + 1..).count() >= 8, "{what}: {:?}", used.keys());
            assert_eq!(used.range(..=floor).count(), before, "{what}");
            two.agree(&what);
        }
    }
}

#[test]
fn what_comes_after_a_gap_in_the_numbers_is_taken_in_at_once() {
    for kept in prefixes() {
        let mut two = Two::new();
        two.lose(kept);
        two.link();
        two.force("set 5");
        let b = two.places[1].replica.resource(&resource()).unwrap();
        assert_eq!(b.waiting(), 0, "kept {kept}");
        assert_eq!(two.places[1].ran.last().unwrap(), "set 5", "kept {kept}");
    }
}

#[test]
fn nothing_is_declared_before_the_other_sites_are_heard() {
    for kept in prefixes() {
        let mut two = Two::new();
        two.lose(kept);
        let answer = two.submit(0, "set 5", true);
        let lost = Lost { resource: resource(), unheard: vec![site(1)] };
        assert_eq!(answer, Answer::Refused(Refusal::Withheld(lost)), "kept {kept}");
        let answer = two.submit(0, "set 5", false);
        let lost = Lost { resource: resource(), unheard: Vec::new() };
        assert_eq!(answer, Answer::Refused(Refusal::Withheld(lost)), "kept {kept}");
    }
}

#[test]
fn a_resource_that_may_have_been_lost_whole_is_withheld_when_it_is_heard_of_again() {
    let mut two = Two::new();
    let ran = two.places[0].ran.len();
    two.lose_all();
    two.link();
    two.talk();
    assert!(two.is_withheld());
    two.submit(1, "inc 6", false);
    assert_eq!(two.places[0].ran.len(), ran, "it runs again what it may have run");
    assert!(matches!(two.places[0].disk[0], Durable::Withheld { .. }), "before its first record");
    let answer = two.submit(0, "inc 7", false);
    assert!(matches!(answer, Answer::Refused(Refusal::Withheld(_))), "{answer:?}");
    two.restart(0);
    two.force("set 5");
    two.submit(1, "inc 8", false);
    assert_eq!(two.places[0].ran[ran..], ["set 5", "inc 8"]);
    two.agree("after the state was declared");

    // What was created since can't have been here before.
    two.seconds += 120;
    let newer: ResourceId = "newer".parse().unwrap();
    two.submit_for(1, newer.clone(), "set 9", false);
    assert_eq!(two.places[0].ran.last().unwrap(), "set 9");
}

/// What happens after the loss, and what becomes of it: the lines that `a` runs from then on, and
/// whether the resource is withheld.
#[test]
fn a_resource_is_withheld_until_its_state_was_made_anew_here() {
    type Does = fn(&mut Two);
    let table: [(&str, Does, &[&str], bool); 8] = [
        ("nothing", |_| {}, &[], true),
        ("an operation elsewhere", |two| drop(two.submit(1, "inc 6", false)), &[], true),
        ("a forced one here", |two| drop(two.force("set 5")), &["set 5"], false),
        ("a forced one elsewhere", |two| drop(two.submit(1, "set 5", true)), &["set 5"], false),
        (
            "a forced one that fails here",
            |two| {
                two.force("fail 5");
                two.submit(1, "inc 6", false);
            },
            &["fail 5"],
            true,
        ),
        (
            "a forced one that fails where it was received",
            |two| {
                two.unlink();
                two.submit(1, "fail 5", true);
                two.link();
                two.submit(1, "inc 6", false);
            },
            &[],
            true,
        ),
        (
            "one that fails, and one that does not",
            |two| {
                two.force("fail 5");
                two.submit(1, "set 6", true);
                two.submit(1, "inc 7", false);
            },
            &["fail 5", "set 6", "inc 7"],
            false,
        ),
        ("one that has not ended", |two| drop(two.submit(1, "long 5", true)), &["long 5"], true),
    ];
    for (what, does, runs, withheld) in table {
        for restarts in [false, true] {
            for kept in prefixes() {
                let what = format!("{what}; kept {kept}, restarts {restarts}");
                let mut two = Two::new();
                two.lose(kept);
                two.link();
                two.places[0].ran.clear();
                does(&mut two);
                if restarts {
                    two.restart(0);
                    two.restart(1);
                }
                assert_eq!(two.places[0].ran, runs, "{what}");
                assert_eq!(two.is_withheld(), withheld, "{what}");
                two.agree(&what);
            }
        }
    }
}

#[test]
fn a_run_that_makes_the_state_anew_goes_on_after_a_restart() {
    for (outcome, withheld) in [(Outcome::Ok, false), (Outcome::Ko, true)] {
        let mut two = Two::new();
        two.lose(3);
        two.link();
        two.submit(1, "long 5", true);
        two.restart(0);
        let run = two.places[0].recalled.pop().unwrap();
        two.input(0, ended(run, outcome));
        two.talk();
        assert_eq!(two.is_withheld(), withheld, "{outcome:?}");
        two.restart(0);
        assert_eq!(two.is_withheld(), withheld, "{outcome:?}, after a restart");
        two.agree("after the run");
    }
}

/// `b` has got the second of two records of `a`, and waits for the first. Then `a` loses the second,
/// hears that `b` has none, and goes on before `b` has got the first.
#[test]
fn what_waits_elsewhere_does_not_come_in_after_the_site_that_lost_it_goes_on() {
    let mut two = Two::new();
    two.linked = false;
    two.submit(0, "inc 4", false);
    let kept = two.places[0].disk.len();
    two.linked = true;
    two.submit(0, "inc 5", false);
    let b = two.places[1].replica.resource(&resource()).unwrap();
    assert!(b.waiting() > 0, "inc 4 is missing there");
    two.lose(kept);
    two.linked = true;
    two.input(0, Input::PeerUp(site(1)));
    for from in [0, 1] {
        let message = two.places[from].sent.pop_front().unwrap();
        two.input(1 - from, Input::Received { from: site(from), message });
    }
    let answer = two.submit(0, "set 6", true);
    assert!(matches!(answer, Answer::Accepted(..)), "{answer:?}");
    two.link();
    two.agree("after what was lost");
    let ran = &two.places[1].ran;
    assert!(ran.iter().all(|line| line != "inc 5"), "{ran:?}");
}

/// Digests leave out what waits.
#[test]
fn a_site_with_an_equal_digest_is_asked_to_show_what_it_has() {
    let mut two = Two::new();
    two.lose(two.places[0].disk.len());
    let equal = two.places[1].replica.shared_digest(&site(0));
    assert_eq!(two.places[0].replica.shared_digest(&site(1)), equal);
    let message = Message::Compare(vec![(Stretch::default(), equal)]);
    two.input(0, Input::Received { from: site(1), message });
    assert_eq!(two.places[0].replica.unheard(&resource()), [site(1)]);
    let asked = |message: &Message| matches!(message, Message::Compare(_));
    assert!(two.places[0].sent.iter().any(asked), "{:?}", two.places[0].sent);
    two.link();
    assert!(two.places[0].replica.unheard(&resource()).is_empty());
}

#[test]
fn sites_that_were_heard_before_the_resource_is_there_again_count() {
    let mut two = Two::apart();
    two.submit(0, "set 1", false);
    two.lose(0);
    let nothing = Message::Have(Stretch::default(), Vec::new(), 0);
    two.input(0, Input::Received { from: site(1), message: nothing });
    two.link();
    two.submit(1, "set 2", false);
    two.places[0].ran.clear();
    two.submit(1, "set 3", true);
    assert_eq!(two.places[0].ran, ["set 3"]);
    assert!(!two.is_withheld());
    two.agree("after the reset");
}

/// So many that they are compared by the digests of stretches.
#[test]
fn a_site_is_asked_to_show_one_resource_among_many() {
    let mut two = Two::new();
    for n in 0..400 {
        let id = format!("{}{n}", if n % 2 == 0 { "a" } else { "z" }).parse().unwrap();
        two.submit_for(n % 2, id, "set 1", false);
    }
    two.lose(two.places[0].disk.len());
    assert_eq!(two.places[0].replica.unheard(&resource()), [site(1)]);
    two.link();
    assert!(two.places[0].replica.unheard(&resource()).is_empty());
    two.force("set 5");
    two.agree("after the reset");
}

#[test]
fn what_comes_back_costs_a_few_messages_a_resource() {
    const COUNT: usize = 300;
    let mut two = Two::new();
    for n in 0..COUNT {
        two.submit_for(n % 2, format!("r{n}").parse().unwrap(), "set 1", false);
    }
    two.lose_all();
    two.linked = true;
    two.input(0, Input::PeerUp(site(1)));
    two.input(1, Input::PeerUp(site(0)));
    let messages = two.talk_within(COUNT * 100);
    assert!(messages < COUNT * 10, "{messages} messages for {COUNT} resources");
    let a = &two.places[0].replica;
    assert_eq!(a.withheld().count(), COUNT + 1);
    assert!(a.withheld().all(|id| a.unheard(id).is_empty()));
}

#[test]
fn what_was_deleted_before_the_loss_can_be_created_again_under_new_numbers() {
    let mut two = Two::new();
    two.submit(0, "delete", false);
    assert!(two.places.iter().all(|place| place.replica.resource(&resource()).is_none()));
    two.lose_all();
    two.link();
    for line in ["set 9", "inc 1", "inc 2"] {
        assert!(matches!(two.submit(0, line, false), Answer::Accepted(..)));
    }
    for place in &two.places {
        let ran = &place.ran[place.ran.len() - 3..];
        assert_eq!(ran, ["set 9", "inc 1", "inc 2"]);
    }
    // What `b` has forgotten is asked for after a while.
    two.seconds += 20;
    for n in [0, 1] {
        two.input(n, Input::Tick);
        two.talk();
    }
    two.agree("after it was created again");
}

/// `a` has run it before the loss, and goes on before it comes back: nothing that is left of the first
/// run must be taken for the second.
#[test]
fn an_attempt_that_may_have_been_is_not_made_again_however_late_the_operation_comes_back() {
    let mut two = Two::new();
    let kept = two.places[0].disk.len();
    let before = two.places[0].replica.resource(&resource()).unwrap().version();
    two.seconds += 100;
    let Answer::Accepted(late, _) = two.submit(1, "inc 7", false) else { panic!("accepted") };
    two.lose(kept);
    two.seconds -= 100;
    // What `b` has is not shown; so it is if `b`, too, has lost it, and a third gives it back.
    let digest = two.places[0].replica.shared_digest(&site(1));
    let message = Message::Have(Stretch::default(), vec![(resource(), before)], digest);
    two.input(0, Input::Received { from: site(1), message });
    two.force("set 5");
    two.places[0].ran.clear();
    two.link();
    assert_eq!(two.places[0].ran, ["inc 7"]);
    let attempts = two.places[0].disk.iter().filter_map(|durable| match durable {
        Durable::Intent { op, attempt, .. } if *op == late => Some(*attempt),
        _ => None,
    });
    assert!(attempts.min() > Some(1), "the first was before the loss");
    two.agree("after it came back");
}

/// `a` has lost an operation of its own, and goes on without `b`, the only site that has it. When
/// `b` is back, what follows that operation waits at `a`, which has later numbers by then. It asks for
/// the lost one, and takes it in.
#[test]
fn a_lost_record_of_its_own_that_comes_to_light_later_is_asked_for() {
    let days = 3 * 24 * 60 * 60;
    for (restarts, pause) in [(false, 0), (true, 0), (false, days)] {
        let mut two = Two::new();
        let kept = two.places[0].disk.len();
        two.submit(0, "inc 6", false);
        let lost = two.places[1].replica.resource(&resource()).unwrap().log().heads()[0].clone();
        assert_eq!(lost.site, site(0));
        two.lose(kept);
        two.submit(1, "inc 7", false);
        // Nobody waits for `b` any more.
        two.input(0, Input::Removed([site(1)].into()));
        two.seconds += pause;
        let answer = two.submit(0, "set 5", true);
        let Answer::Accepted(own, _) = answer else { panic!("{answer:?}") };
        assert!(own.number > lost.number);
        assert!(two.places[0].replica.resource(&resource()).unwrap().log().find(&lost).is_none());
        two.input(0, Input::Removed([].into()));
        // The lost number of another resource is not the lost record.
        let foreign = two.foreign(&lost);
        two.input(0, Input::Received { from: site(1), message: foreign });
        assert!(two.places[0].replica.resource(&resource()).unwrap().log().find(&lost).is_none());
        two.link();
        two.seconds += 60;
        two.input(0, Input::Tick);
        two.talk();
        if restarts {
            two.restart(0);
        }
        let found = two.places[0].replica.resource(&resource()).unwrap().log().find(&lost);
        assert!(found.is_some(), "restarts {restarts}: {lost} is still lost");
        two.agree("the lost operation is back");
    }
}

/// A site that has lost all of a resource hears the sites that a request names, twice each, before it creates
/// the resource anew: a record may be on its way from one of them to the other.
#[test]
fn each_site_that_a_request_names_is_heard_twice_before_the_resource_begins_anew() {
    let names = ["a", "b", "c"].map(|name| name.parse::<SiteId>().unwrap());
    let lost = Durable::Withheld { resource: resource(), floor: 5 };
    let mut a = Replica::restore(names[0].clone(), Settings::default(), [lost]);
    let now = Now { wall: Millis(1_000_000), steady: Millis(1_000) };
    for other in &names[1..] {
        a.handle(Input::PeerUp(other.clone()), now);
    }
    let submit = |a: &mut Replica| {
        let submission = Submission {
            ticket: Ticket(1),
            resource: resource(),
            sites: Some(Sites::new(names.clone()).unwrap()),
            config: None,
            kind: "set".parse().unwrap(),
            author: "someone".parse().unwrap(),
            action: Action::command("set 1"),
            force: true,
            keep_going: false,
            key: None,
            wait: Millis(1_000),
        };
        let effects = a.handle(Input::Submit(Box::new(submission)), now);
        let answer = effects.into_iter().find_map(|effect| match effect {
            Effect::Answer { answer, .. } => Some(answer),
            _ => None,
        });
        answer.unwrap()
    };
    let refused = |unheard: &[SiteId]| {
        Answer::Refused(Refusal::Withheld(Lost { resource: resource(), unheard: unheard.to_vec() }))
    };
    let has_nothing = |a: &mut Replica, from: &SiteId| {
        let message = Message::Have(Stretch::of(&resource()), Vec::new(), 0);
        a.handle(Input::Received { from: from.clone(), message }, now)
    };
    assert_eq!(submit(&mut a), refused(&names[1..]));
    has_nothing(&mut a, &names[1]);
    let asks = has_nothing(&mut a, &names[2]);
    let asked = asks.iter().filter_map(|effect| match effect {
        Effect::Send { to, message: Message::Compare(_) } => Some(to.clone()),
        _ => None,
    });
    assert_eq!(asked.collect::<Vec<_>>(), names[1..], "the second round begins");
    assert_eq!(submit(&mut a), refused(&names[1..]));
    has_nothing(&mut a, &names[1]);
    assert_eq!(submit(&mut a), refused(&names[2..]));
    has_nothing(&mut a, &names[2]);
    let answer = submit(&mut a);
    let Answer::Accepted(op, _) = answer else { panic!("{answer:?}") };
    assert_eq!(op.number, 6);
}
