//! Operations that are requests to the application: what each site made, as all sites know it, and
//! what is not sent twice.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

use std::collections::VecDeque;

use cheops_core::{
    id::{ResourceId, SiteId, Sites},
    matrix::Config,
    operation::{Action, HttpBody, HttpRequest, Names, Operation},
    plan::Outcome,
    replica::{
        Durable, Effect, Event, Input, Message, Replica, Report, Resource, RunId, Settings,
        Submission, Ticket,
    },
    time::{Millis, Now},
};

const MATRIX: &str = r#"{"ResolutionMatrix": [
    {"Before": "create", "After": "create", "Result": "take-one"},
    {"Before": "create", "After": "act", "Result": "take-both-keep-order"},
    {"Before": "act", "After": "act", "Result": "take-both-agreed-order"}]}"#;

const NAMES: [&str; 2] = ["a", "b"];

fn site(n: usize) -> SiteId {
    NAMES[n].parse().unwrap()
}

fn resource() -> ResourceId {
    "image~m".parse().unwrap()
}

fn http(method: &str, target: &str, names: Names) -> Action {
    Action::Http(Box::new(HttpRequest {
        service: "image".parse().unwrap(),
        method: method.into(),
        target: target.into(),
        headers: Box::default(),
        body: HttpBody::None,
        names,
    }))
}

fn submission(kind: &str, action: Action) -> Submission {
    Submission {
        ticket: Ticket(1),
        resource: resource(),
        sites: Some(Sites::new([site(0), site(1)]).unwrap()),
        config: (kind == "create").then(|| Config::from_json(MATRIX).unwrap()),
        kind: kind.parse().unwrap(),
        author: "someone".parse().unwrap(),
        action,
        force: false,
        keep_going: true,
        key: None,
        wait: Millis(60_000),
    }
}

fn create() -> Submission {
    submission("create", http("POST", "/images", Names::Makes("m".into())))
}

fn act(what: &str) -> Submission {
    let target = format!("/images/m/actions/{what}");
    submission("act", http("PUT", &target, Names::Uses("m".into())))
}

/// The same with a command before it: what is not made of requests alone is replayed from its start.
fn act_after_command(what: &str) -> Submission {
    let Submission { action, .. } = act(what);
    submission("act", Action::Steps([Action::command("true"), action].into()))
}

fn delete() -> Submission {
    submission("delete", http("DELETE", "/images/m", Names::Uses("m".into())))
}

/// A site with its application, which gives out numbers.
struct Place {
    replica: Replica,
    disk: Vec<Durable>,
    sent: VecDeque<Message>,
    /// What the application got.
    requests: Vec<String>,
    made: usize,
    /// Runs are not answered.
    held: bool,
    runs: Vec<RunId>,
    events: Vec<Event>,
}

impl Place {
    fn run(&mut self, op: &Operation, before: Option<&Report>) -> Report {
        let request = match &op.action {
            Action::Http(request) => request,
            Action::Steps(steps) => match &**steps {
                [Action::Command { .. }, Action::Http(request)] => request,
                other => panic!("{other:?}"),
            },
            Action::Command { .. } => panic!("a request"),
        };
        let stands = before.filter(|before| before.outcome != Outcome::Ko);
        if let Some(report) = stands.filter(|_| !op.action.is_repeatable()) {
            return report.clone();
        }
        self.requests.push(format!("{} {}", request.method, request.target));
        let made = matches!(request.names, Names::Makes(_)).then(|| {
            self.made += 1;
            format!("{}{}", self.replica.here(), self.made).into()
        });
        Report { outcome: Outcome::Ok, took: Millis(1), output: "HTTP/1.1 200 OK".into(), made }
    }
}

struct Two {
    places: [Place; 2],
    seconds: u64,
}

impl Two {
    fn new() -> Self {
        let place = |n| Place {
            replica: Replica::new(site(n), Settings::default()),
            disk: Vec::new(),
            sent: VecDeque::new(),
            requests: Vec::new(),
            made: 0,
            held: false,
            runs: Vec::new(),
            events: Vec::new(),
        };
        let mut two = Self { places: [place(0), place(1)], seconds: 0 };
        two.connect();
        two
    }

    fn connect(&mut self) {
        self.input(0, Input::PeerUp(site(1)));
        self.input(1, Input::PeerUp(site(0)));
        self.talk();
    }

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
                    Effect::Run { run, .. } if place.held => place.runs.push(run),
                    Effect::Run { run, op, before, .. } => {
                        let before = before.map(|reply| reply.report());
                        let report = place.run(&op, before.as_ref());
                        inputs.push_back(Input::Ran { run, report });
                    }
                    Effect::Recall(run) => place.runs.push(run),
                    Effect::Tell(event) => place.events.push(event),
                    Effect::Answer { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn submit(&mut self, n: usize, submission: Submission) {
        self.seconds += 1;
        self.input(n, Input::Submit(Box::new(submission)));
    }

    fn talk(&mut self) {
        while let Some(from) = (0..2).find(|&n| !self.places[n].sent.is_empty()) {
            let message = self.places[from].sent.pop_front().unwrap();
            self.input(1 - from, Input::Received { from: site(from), message });
        }
    }

    /// Loses all that is on its way.
    fn cut(&mut self) {
        for n in 0..2 {
            self.places[n].sent.clear();
            self.input(n, Input::PeerDown(site(1 - n)));
        }
    }

    fn at(&self, n: usize) -> &Resource {
        self.places[n].replica.resource(&resource()).unwrap()
    }

    /// What each site made, as a site knows it, now and when it starts again.
    fn made(&self, n: usize) -> [Option<&str>; 2] {
        let here = self.at(n);
        let mades: Vec<(&SiteId, &str)> = here.mades().collect();
        let made = [0, 1].map(|of| here.made(&site(of)));
        let expected =
            made.iter().zip([site(0), site(1)]).filter_map(|(id, of)| Some((of, (*id)?)));
        assert_eq!(
            mades,
            expected.collect::<Vec<_>>().iter().map(|(s, i)| (s, *i)).collect::<Vec<_>>()
        );
        let disk = self.places[n].disk.iter().cloned();
        let again = Replica::restore(site(n), Settings::default(), disk);
        let again = again.resource(&resource()).unwrap();
        assert_eq!([0, 1].map(|of| again.made(&site(of))), made);
        made
    }
}

#[test]
fn what_each_site_made_is_known_at_all_sites() {
    let mut two = Two::new();
    two.submit(0, create());
    assert_eq!(two.made(0), [Some("a1"), None]);
    two.talk();
    for n in 0..2 {
        assert_eq!(two.made(n), [Some("a1"), Some("b1")]);
    }
    two.submit(1, act("x"));
    two.talk();
    for n in 0..2 {
        assert_eq!(two.made(n), [Some("a1"), Some("b1")], "a reply that names nothing");
    }
}

#[test]
fn an_id_ends_with_the_delete_at_its_site() {
    let mut two = Two::new();
    two.submit(0, create());
    two.talk();
    two.cut();
    two.submit(0, delete());
    assert_eq!(two.made(0), [None, Some("b1")]);
    assert_eq!(two.made(1), [Some("a1"), Some("b1")]);
    // It is created again before the other site has heard of the delete.
    two.submit(0, create());
    assert_eq!(two.made(0), [Some("a2"), Some("b1")]);
    two.connect();
    for n in 0..2 {
        assert_eq!(two.made(n), [Some("a2"), Some("b2")]);
    }
}

#[test]
fn what_is_created_again_after_it_was_forgotten_has_new_ids() {
    let mut two = Two::new();
    two.submit(0, create());
    two.talk();
    two.submit(1, delete());
    two.talk();
    assert!(two.places.iter().all(|place| place.replica.resource(&resource()).is_none()));
    two.places[1].held = true;
    two.submit(0, create());
    two.talk();
    for n in 0..2 {
        assert_eq!(two.made(n), [Some("a2"), None], "b has yet to make it again");
    }
}

#[test]
fn requests_that_are_out_of_order_are_sent_again_and_no_others() {
    let mut two = Two::new();
    two.submit(0, create());
    two.submit(0, act("agreed"));
    two.talk();
    two.cut();
    two.submit(1, act("x"));
    two.submit(0, act("y"));
    two.connect();
    let put = |what: &str| format!("PUT /images/m/actions/{what}");
    let all = [two.places[0].requests.clone(), two.places[1].requests.clone()];
    assert_eq!(all.iter().map(Vec::len).max(), Some(5), "{all:?}");
    for requests in &all {
        let of = |line: &str| requests.iter().filter(|request| *request == line).count();
        assert_eq!((of("POST /images"), of(&put("agreed")), of(&put("x"))), (1, 1, 1));
        assert_eq!(requests.last(), Some(&put("y")), "{requests:?}");
    }
}

#[test]
fn a_replay_is_told_what_was_answered_before() {
    let mut two = Two::new();
    two.submit(0, create());
    two.talk();
    two.cut();
    two.submit(1, act_after_command("x"));
    two.submit(0, act_after_command("y"));
    two.connect();
    // The one that came second in time was run first at its site, which starts again from the create.
    let all = [two.places[0].requests.clone(), two.places[1].requests.clone()];
    assert_eq!(all.iter().map(Vec::len).max(), Some(4), "{all:?}");
    for (n, requests) in all.iter().enumerate() {
        let posts = requests.iter().filter(|request| request.starts_with("POST"));
        assert_eq!(posts.count(), 1, "{requests:?}");
        assert!(requests.ends_with(&["x", "y"].map(|x| format!("PUT /images/m/actions/{x}"))));
        assert_eq!(two.made(n), [Some("a1"), Some("b1")]);
    }
    let create = two.at(0).block().next().unwrap().id.clone();
    let attempts = [0, 1].map(|n| two.at(0).reply(&create, &site(n)).unwrap().attempt);
    assert_eq!(attempts.iter().max(), Some(&2), "{attempts:?}");
}

/// Starts a site again, and says that nobody knows what became of the run under way.
fn power_cut(two: &mut Two, n: usize) {
    let place = &mut two.places[n];
    place.replica = Replica::restore(site(n), Settings::default(), place.disk.iter().cloned());
    place.runs.clear();
    two.input(n, Input::Started);
    let [run] = &two.places[n].runs[..] else { panic!("one run is under way") };
    let run = run.clone();
    two.input(n, Input::Lost(run));
}

#[test]
fn a_post_in_doubt_is_unknown_and_a_put_runs_again() {
    for (method, requests, outcome) in
        [("POST", 0, Some(Outcome::Unknown)), ("PUT", 1, Some(Outcome::Ok))]
    {
        let mut two = Two::new();
        two.places[0].held = true;
        let action = http(method, "/images", Names::Makes("m".into()));
        two.submit(0, submission("create", action));
        two.places[0].held = false;
        power_cut(&mut two, 0);
        assert_eq!(two.places[0].requests.len(), requests, "{method}");
        let op = two.at(0).block().next().unwrap().id.clone();
        assert_eq!(two.at(0).reply(&op, &site(0)).map(|reply| reply.outcome), outcome, "{method}");
        let events: Vec<&Event> = two.places[0].events.iter().collect();
        let told = |wanted: fn(&Event) -> bool| events.iter().any(|event| wanted(event));
        assert_eq!(told(|event| matches!(event, Event::Unknown(_))), method == "POST");
        assert_eq!(told(|event| matches!(event, Event::NeedsDecision(_))), method == "POST");
        // A delete puts an end to the doubt.
        two.connect();
        two.submit(0, delete());
        two.talk();
        assert!(two.places[0].replica.resource(&resource()).is_none(), "{method}");
    }
}

#[test]
fn a_post_that_was_not_to_be_sent_again_is_in_no_doubt() {
    let mut two = Two::new();
    two.submit(0, create());
    two.talk();
    two.cut();
    two.submit(1, act_after_command("x"));
    two.submit(0, act_after_command("y"));
    // The site that has to replay is stopped in it.
    two.places[0].held = true;
    two.connect();
    let running = two.at(0).running().map(|(_, attempt)| attempt);
    assert_eq!(running, Some(2), "it replays from the create");
    two.places[0].held = false;
    power_cut(&mut two, 0);
    two.connect();
    for n in 0..2 {
        assert_eq!(two.made(n), [Some("a1"), Some("b1")]);
        assert_eq!(two.at(n).in_doubt(), None);
    }
    let requests = &two.places[0].requests;
    assert_eq!(requests.iter().filter(|request| request.starts_with("POST")).count(), 1);
}

#[test]
fn a_delete_of_what_nobody_has_told_of_is_sent_to_each_site_and_forgotten() {
    let natural = |kind: &str, method: &str| Submission {
        resource: resource(),
        ..submission(kind, http(method, "/kv/x", Names::Nothing))
    };
    let mut two = Two::new();
    two.submit(0, natural("delete", "DELETE"));
    two.talk();
    for place in &two.places {
        assert_eq!(place.requests, ["DELETE /kv/x"]);
        assert!(place.replica.resource(&resource()).is_none(), "it is forgotten");
    }
    // What comes later works on it.
    two.submit(1, natural("replace", "PUT"));
    two.talk();
    for place in &two.places {
        assert_eq!(place.requests, ["DELETE /kv/x", "PUT /kv/x"]);
        assert!(place.replica.resource(&resource()).is_some());
    }
    // A command deletes what is known, and nothing else.
    let mut two = Two::new();
    two.submit(0, submission("delete", Action::command("true")));
    assert!(two.places[0].replica.resource(&resource()).is_none());
    assert!(two.places[0].disk.is_empty(), "it was not taken down");
}
