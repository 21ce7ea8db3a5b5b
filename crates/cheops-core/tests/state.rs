//! The state of a resource: what failed in the past, and what makes it good.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::collections::VecDeque;

use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix::Config,
    operation::{Action, HttpBody, HttpRequest, Names},
    plan::Outcome,
    replica::{
        Effect, Input, Message, Replica, Report, Resource, Settings, State, Submission, Ticket,
    },
    time::{Millis, Now},
};

/// Requests to a resource that a `POST` has made: only the creation replaces.
const MADE: &str = r#"{"ResolutionMatrix": [
    {"Before": "create", "After": "create", "Result": "take-one"},
    {"Before": "create", "After": "write", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "write", "After": "create", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "write", "After": "write", "Result": "take-both-agreed-order"}]}"#;

/// Requests to a path that a client chose, or commands: `replace` replaces.
const NATURAL: &str = r#"{"ResolutionMatrix": [
    {"Before": "replace", "After": "replace", "Result": "take-one"},
    {"Before": "replace", "After": "write", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "write", "After": "replace", "Result": "take-both-reverse-order", "Concurrent": "take-both"},
    {"Before": "write", "After": "write", "Result": "take-both-agreed-order"}]}"#;

fn site(n: usize) -> SiteId {
    ["a", "b"][n].parse().unwrap()
}

fn resource() -> ResourceId {
    "image~m".parse().unwrap()
}

/// `PATCH /m write`: a request, or `do write`: a command; and its kind.
fn submission(what: &str, matrix: &str) -> Submission {
    let (action, kind) = match what.split(' ').collect::<Vec<_>>()[..] {
        ["do", kind] => (Action::command("do"), kind),
        [method, target, kind] => {
            let request = HttpRequest {
                service: "image".parse().unwrap(),
                method: method.into(),
                target: target.into(),
                headers: Box::default(),
                body: HttpBody::None,
                names: Names::Nothing,
            };
            (Action::Http(Box::new(request)), kind)
        }
        _ => panic!("{what}"),
    };
    Submission {
        ticket: Ticket(1),
        resource: resource(),
        sites: Some(Sites::new([site(0), site(1)]).unwrap()),
        config: Some(Config::from_json(matrix).unwrap()),
        kind: kind.parse().unwrap(),
        author: "someone".parse().unwrap(),
        keep_going: action.is_request(),
        action,
        force: false,
        key: None,
        wait: Millis(0),
    }
}

/// Two sites, and how what is run goes at each.
struct Two {
    sites: [(Replica, VecDeque<Message>); 2],
    goes: [Outcome; 2],
    seconds: u64,
}

impl Two {
    fn new() -> Self {
        let new = |n| (Replica::new(site(n), Settings::default()), VecDeque::new());
        let mut two = Self { sites: [new(0), new(1)], goes: [Outcome::Ok; 2], seconds: 0 };
        two.link();
        two
    }

    fn link(&mut self) {
        for n in 0..2 {
            self.input(n, Input::PeerUp(site(1 - n)));
        }
        self.talk();
    }

    fn cut(&mut self) {
        for n in 0..2 {
            self.sites[n].1.clear();
            self.input(n, Input::PeerDown(site(1 - n)));
        }
    }

    fn input(&mut self, n: usize, input: Input) {
        let millis = Millis(1_000_000 + self.seconds * 1_000);
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let (replica, sent) = &mut self.sites[n];
            for effect in replica.handle(input, Now { wall: millis, steady: millis }) {
                match effect {
                    Effect::Send { message, .. } => sent.push_back(message),
                    Effect::Run { run, .. } => {
                        let output = "".into();
                        let report =
                            Report { outcome: self.goes[n], took: Millis(1), output, made: None };
                        inputs.push_back(Input::Ran { run, report });
                    }
                    _ => {}
                }
            }
        }
    }

    fn talk(&mut self) {
        while let Some(from) = (0..2).find(|&n| !self.sites[n].1.is_empty()) {
            let message = self.sites[from].1.pop_front().unwrap();
            self.input(1 - from, Input::Received { from: site(from), message });
        }
    }

    fn submit(&mut self, n: usize, what: &str, matrix: &str, goes: [Outcome; 2]) {
        self.seconds += 1;
        self.goes = goes;
        self.input(n, Input::Submit(Box::new(submission(what, matrix))));
        self.talk();
    }

    fn at(&self, n: usize) -> &Resource {
        self.sites[n].0.resource(&resource()).unwrap()
    }

    fn state(&self) -> State {
        let [here, there] = [0, 1].map(|n| self.at(n).state());
        assert_eq!(here, there, "both know the same");
        here
    }
}

const BOTH: [Outcome; 2] = [Outcome::Ok, Outcome::Ok];
const NONE: [Outcome; 2] = [Outcome::Ko, Outcome::Ko];
const ONE: [Outcome; 2] = [Outcome::Ok, Outcome::Ko];
const OTHER: [Outcome; 2] = [Outcome::Ko, Outcome::Ok];
const DENIED: [Outcome; 2] = [Outcome::Ok, Outcome::Denied];
const FORBIDDEN: [Outcome; 2] = [Outcome::Denied, Outcome::Denied];
const MIXED: [Outcome; 2] = [Outcome::Denied, Outcome::Ko];
const DOUBT: [Outcome; 2] = [Outcome::Ok, Outcome::Unknown];

#[test]
fn the_state_is_about_now_and_not_about_the_past() {
    use State::{Diverged, Failed, Pending, Settled};
    type Story<'a> = &'a [(&'a str, [Outcome; 2], State)];
    let made: [Story<'_>; 6] = [
        // What failed everywhere has changed nothing.
        &[
            ("POST / create", BOTH, Settled),
            ("PATCH /m write", NONE, Failed),
            ("PATCH /m write", BOTH, Settled),
            ("FOO /m write", NONE, Failed),
            ("PUT /m/file write", BOTH, Settled),
        ],
        // What failed at one site is made good by a PUT of the same, which goes well at both.
        &[
            ("POST / create", BOTH, Settled),
            ("PATCH /m write", ONE, Diverged),
            ("PATCH /m write", BOTH, Diverged),
            ("PUT /m/file write", BOTH, Diverged),
            ("PUT /m write", NONE, Diverged),
            ("PUT /m write", ONE, Diverged),
            ("PUT /m write", BOTH, Settled),
            ("PATCH /m write", OTHER, Diverged),
            ("PUT /m write", BOTH, Settled),
        ],
        // What lies below is another matter, and a POST may have done anything.
        &[
            ("POST / create", BOTH, Settled),
            ("PUT /m/file write", OTHER, Diverged),
            ("PUT /m write", BOTH, Diverged),
            ("PUT /m/file write", BOTH, Settled),
            ("DELETE /m/tag write", ONE, Diverged),
            ("DELETE /m/tag write", OTHER, Diverged),
            ("DELETE /m/tag write", BOTH, Settled),
            ("POST /m write", ONE, Diverged),
            ("PUT /m write", BOTH, Diverged),
        ],
        // A site has no copy: nothing that is sent to it makes up for that.
        &[("POST / create", ONE, Diverged), ("PUT /m write", BOTH, Diverged)],
        &[("POST / create", NONE, Failed)],
        // What nobody knows is made good, too.
        &[
            ("POST / create", BOTH, Settled),
            ("PATCH /m write", DOUBT, Pending),
            ("PUT /m write", BOTH, Settled),
        ],
    ];
    let natural: [Story<'_>; 5] = [
        &[
            ("PUT /m replace", ONE, Diverged),
            ("PUT /m replace", BOTH, Settled),
            ("PATCH /m write", OTHER, Diverged),
            ("PUT /m replace", BOTH, Settled),
            ("PATCH /m write", NONE, Failed),
            ("PATCH /m write", BOTH, Settled),
        ],
        // One that replaces, and failed, has replaced nothing.
        &[
            ("PUT /m replace", BOTH, Settled),
            ("PUT /m replace", NONE, Failed),
            ("PATCH /m write", BOTH, Settled),
        ],
        &[
            ("PUT /m replace", ONE, Diverged),
            ("PUT /m replace", NONE, Diverged),
            ("PATCH /m write", BOTH, Diverged),
            ("PUT /m replace", BOTH, Settled),
        ],
        &[
            ("PUT /m replace", BOTH, Settled),
            ("DELETE /m delete", NONE, Failed),
            ("PATCH /m write", BOTH, Settled),
        ],
        // Commands: one that failed where it was received is void.
        &[
            ("do replace", BOTH, Settled),
            ("do write", NONE, Settled),
            ("do write", ONE, Diverged),
            ("do write", BOTH, Diverged),
            ("do replace", NONE, Diverged),
            ("do replace", BOTH, Settled),
        ],
    ];
    let stories = made.map(|story| (MADE, story)).into_iter();
    for (matrix, story) in stories.chain(natural.map(|story| (NATURAL, story))) {
        let mut two = Two::new();
        for (n, &(what, goes, expected)) in story.iter().enumerate() {
            two.submit(0, what, matrix, goes);
            assert_eq!(two.state(), expected, "{what}, after {:?}", &story[..n]);
            let doubt = two.at(1).in_doubt().is_some();
            assert_eq!(doubt, expected == Pending, "{what}");
            assert!(expected == Diverged || two.at(1).apart().is_none(), "{what}");
        }
    }
}

#[test]
fn what_a_site_denies_is_neither_run_again_nor_a_divergence() {
    use State::{Denied, Diverged, Settled};
    type Story<'a> = &'a [(&'a str, [Outcome; 2], State)];
    let made: [Story<'_>; 3] = [
        // It stays until something says all about what it wrote to, and is run at all sites.
        &[
            ("POST / create", BOTH, Settled),
            ("PATCH /m write", DENIED, Denied),
            ("PATCH /m write", BOTH, Denied),
            ("PUT /m write", DENIED, Denied),
            ("PUT /m write", BOTH, Settled),
        ],
        // What was denied everywhere has changed nothing.
        &[
            ("POST / create", BOTH, Settled),
            ("PATCH /m write", FORBIDDEN, Denied),
            ("PATCH /m write", MIXED, Denied),
            ("PATCH /m write", BOTH, Settled),
        ],
        // A failure counts more.
        &[
            ("POST / create", BOTH, Settled),
            ("PATCH /m write", DENIED, Denied),
            ("PATCH /m write", ONE, Diverged),
            ("PUT /m write", BOTH, Settled),
        ],
    ];
    let natural: [Story<'_>; 2] = [
        &[
            ("PUT /m replace", DENIED, Denied),
            ("PATCH /m write", BOTH, Denied),
            ("PUT /m replace", BOTH, Settled),
        ],
        // Commands: one that is denied where it was received is void.
        &[
            ("do replace", BOTH, Settled),
            ("do write", FORBIDDEN, Settled),
            ("do write", DENIED, Denied),
            ("do replace", BOTH, Settled),
        ],
    ];
    let stories = made.map(|story| (MADE, story)).into_iter();
    for (matrix, story) in stories.chain(natural.map(|story| (NATURAL, story))) {
        let mut two = Two::new();
        for (n, &(what, goes, expected)) in story.iter().enumerate() {
            two.submit(0, what, matrix, goes);
            let after = format!("{what}, after {:?}", &story[..n]);
            assert_eq!(two.state(), expected, "{after}");
            assert!(!two.at(1).is_stuck(), "{after}");
            let denied = two.at(0).denied();
            assert!(denied.is_some() || expected != Denied, "{after}");
            assert!(denied.is_none() || expected != Settled, "{after}");
            if goes == DENIED {
                let op = two.at(0).block().last().unwrap().id.clone();
                let attempts = |n| two.at(n).reply(&op, &site(1)).unwrap().attempt;
                assert_eq!([attempts(0), attempts(1)], [1, 1], "{after}");
            }
        }
    }
}

#[test]
fn what_may_not_be_shown_is_no_difference_and_is_asked_for_again_after_a_change() {
    let sites = [site(0), site(1)];
    let mut replica = Replica::new(sites[0].clone(), Settings::default());
    let mut seconds = 0;
    let mut handle = |replica: &mut Replica, input| {
        seconds += 10;
        let now = Millis(1_000_000 + seconds * 1_000);
        let mut inputs = VecDeque::from([input]);
        let mut shows = 0;
        while let Some(input) = inputs.pop_front() {
            for effect in replica.handle(input, Now { wall: now, steady: now }) {
                match effect {
                    Effect::Run { run, .. } => {
                        let output = "".into();
                        let outcome = Outcome::Ok;
                        let report = Report { outcome, took: Millis(1), output, made: None };
                        inputs.push_back(Input::Ran { run, report });
                    }
                    Effect::Show { resource, block, .. } => {
                        shows += 1;
                        inputs.push_back(Input::NotShown { resource, block });
                    }
                    _ => {}
                }
            }
        }
        shows
    };
    let config = r#"{"Show": "cat x"}"#;
    for round in 0..2 {
        let asked = Input::Submit(Box::new(submission("do write", config)));
        assert_eq!(handle(&mut replica, asked), 0);
        let shows: Vec<usize> = (0..4).map(|_| handle(&mut replica, Input::Tick)).collect();
        assert_eq!(shows, [1, 0, 0, 0], "round {round}");
        let resource = replica.resource(&resource()).unwrap();
        assert!(resource.shown(&sites[0]).is_none() && !resource.shows_differ());
    }
}

#[test]
fn what_one_site_alone_has_run_is_not_settled_by_what_failed_at_all() {
    let mut two = Two::new();
    two.submit(0, "PUT /m replace", NATURAL, BOTH);
    two.cut();
    two.submit(0, "PUT /m replace", NATURAL, BOTH);
    two.submit(0, "PUT /m replace", NATURAL, NONE);
    two.link();
    // The other site began with the last one, which failed there as well.
    assert_eq!(two.state(), State::Diverged);
    two.submit(1, "PATCH /m write", NATURAL, BOTH);
    assert_eq!(two.state(), State::Diverged);
    two.submit(1, "PUT /m replace", NATURAL, BOTH);
    assert_eq!(two.state(), State::Settled);
}

#[test]
fn a_put_makes_good_only_what_it_knew_of() {
    let mut two = Two::new();
    two.submit(0, "POST / create", MADE, BOTH);
    two.cut();
    two.submit(1, "PATCH /m write", MADE, ONE);
    two.submit(0, "PUT /m write", MADE, BOTH);
    two.link();
    let patch = two.at(0).block().nth(1).unwrap();
    assert_eq!((patch.id.site.clone(), two.at(0).block().count()), (site(1), 3));
    assert_eq!(two.state(), State::Diverged);
    let (op, failed) = two.at(0).apart().unwrap();
    assert_eq!((&op.id, failed), (&patch.id, &site(1)));
}
