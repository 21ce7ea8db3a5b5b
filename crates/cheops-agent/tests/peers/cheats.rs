//! Sites that lie: about what others have recorded, about what they have, about when.

use std::sync::Arc;

use bytes::BytesMut;
use cheops_agent::{
    trust::Sealer,
    wire::{
        encode_message,
        frame::{Frame, write_message},
    },
};
use cheops_core::{
    id::{OpId, Sites},
    matrix::Config,
    operation::{Action, Declaration, Operation},
    plan::Outcome,
    replica::{Durable, Message, Record, Reply, Sent, Version},
    time::{Millis, Timestamp},
    trust::Seal,
};

use super::{
    disk::Disk,
    fake::{Fake, Stream, wall},
    site::{Plan, RESOURCE, Site, address, identity, linked, name, plans, until},
};

const YEAR: u64 = 365 * 24 * 60 * 60 * 1_000;
/// The sites that share the resource: `a` cheats, `c` is away, `site1` and `site2` are real.
const ALL: [&str; 4] = ["a", "c", "site1", "site2"];

/// The first operation of the resource, as `c` has made it.
fn first() -> Operation {
    Operation {
        id: "c:1".parse().unwrap(),
        resource: RESOURCE.parse().unwrap(),
        kind: "inc".parse().unwrap(),
        author: "ana".parse().unwrap(),
        at: Timestamp::at(Millis(wall())),
        parents: Box::default(),
        action: Action::command("true"),
        reset: false,
        keep_going: false,
        key: None,
        declares: Some(Box::new(Declaration {
            sites: Sites::new(ALL.map(name)).unwrap(),
            config: Config::default().into(),
            base: Version::new(),
        })),
    }
}

fn record(op: Operation) -> Record {
    Record::Operation(Arc::new(op))
}

fn reply(id: &str, output: &str) -> Record {
    Record::Reply(Arc::new(Reply {
        id: id.parse().unwrap(),
        resource: RESOURCE.parse().unwrap(),
        op: "c:1".parse().unwrap(),
        attempt: 1,
        outcome: Outcome::Ok,
        era: 1,
        took: Millis(1),
        output: output.into(),
        made: None,
    }))
}

/// The seal that whoever has a site's key puts on a record of the site that the record names.
fn seal(key_of: &str, record: &Record) -> Seal {
    let mut batch = [Durable::Record(record.clone(), None)];
    Sealer::new(Arc::new(identity(key_of)), record.id().site.clone()).seal(&mut batch);
    let [Durable::Record(_, Some(seal))] = batch else { panic!("not sealed") };
    seal
}

/// A record as its site would send it.
fn honest(record: Record) -> Sent {
    let seal = seal(record.id().site.as_str(), &record);
    Sent { after: record.id().number - 1, record, seal: Some(seal) }
}

fn send(records: &Stream, sent: Sent) {
    let resource = RESOURCE.parse().unwrap();
    let message = Message::Records { resource, records: vec![sent], more: false };
    send_encoded(records, &encode_message(&message).unwrap());
}

fn send_encoded(records: &Stream, message: &[u8]) {
    let mut bytes = BytesMut::new();
    write_message(message, &mut bytes);
    records.send_bytes(bytes.freeze());
}

/// site1 and site2, linked, and `a` linked with site1; both know the key of `c`.
async fn world() -> (Site, Site, Fake, Stream) {
    let mut sites = Vec::new();
    for mut plan in plans(2) {
        for other in ["a", "c"] {
            plan.knows(&name(other), address());
        }
        sites.push(plan.start().await);
    }
    let [one, two] = sites.try_into().map_err(|_| "two").unwrap();
    until("the two are linked", || async { one.reaches("site2") && two.reaches("site1") }).await;
    let (fake, records) = Fake::link(&one, "a").await;
    until("the link is up", || async { one.reaches("a") }).await;
    (one, two, fake, records)
}

/// Waits until so much of `a` was refused, and finds a problem that says all of this.
async fn refused(site: &Site, count: u64, words: &[&str]) {
    until("it is refused", || async { site.peer("a").refused >= count }).await;
    assert_eq!(site.peer("a").refused, count, "{words:?}");
    let troubles = site.noted.troubles(site.name());
    let found = troubles.iter().any(|trouble| {
        let said = format!("{} / {}", trouble.text, trouble.next);
        trouble.what == "refused" && words.iter().all(|word| said.contains(word))
    });
    assert!(found, "{words:?}: {troubles:#?}");
}

/// site1 goes on with others.
async fn serves(one: &Site, two: &Site, resource: &str) {
    let before = two.operations().await;
    one.submit(resource, &["site1", "site2"], 10).await;
    until("others are served", || async { two.operations().await > before }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_forges_or_alters_is_refused_each_time_and_others_are_served() {
    let (one, two, fake, records) = world().await;
    fake.answer_pings();
    let good = honest(record(first()));
    let with_seal = |record: Record, seal: Option<Seal>| Sent { after: 0, record, seal };
    let altered = |change: &dyn Fn(&mut Operation)| {
        let mut op = first();
        let seal = seal("c", &record(op.clone()));
        change(&mut op);
        with_seal(record(op), Some(seal))
    };
    let own = Operation { id: "a:1".parse().unwrap(), ..first() };
    let renamed = Operation { id: "c:1".parse().unwrap(), ..own.clone() };
    let stranger = record(Operation { id: "x:1".parse().unwrap(), ..first() });
    let ours = record(Operation { id: "site1:1".parse().unwrap(), ..first() });
    let not_signed =
        "a record of `c` that `c` has not signed: it was made up, or altered on the way";
    let cases = [
        ("no seal", with_seal(record(first()), None), "a record of `c` without its signature"),
        ("no seal at all", with_seal(record(first()), Seal::new(&[7; 65])), not_signed),
        (
            "signed by the relay",
            with_seal(record(first()), Some(seal("a", &record(first())))),
            not_signed,
        ),
        (
            "its own, under another's name",
            with_seal(record(renamed), Some(seal("a", &record(own)))),
            not_signed,
        ),
        ("another command", altered(&|op| op.action = Action::command("rm -rf /")), not_signed),
        ("another author", altered(&|op| op.author = "mallory".parse().unwrap()), not_signed),
        (
            "backdated on the way",
            altered(&|op| op.at = Timestamp::at(Millis(wall() - YEAR))),
            not_signed,
        ),
        (
            "for other sites",
            altered(&|op| {
                op.declares.as_mut().unwrap().sites = Sites::new(["a", "site1"].map(name)).unwrap();
            }),
            not_signed,
        ),
        (
            "the seal of another record",
            with_seal(record(first()), Some(seal("c", &reply("c:2", "")))),
            not_signed,
        ),
        (
            "in the name of who receives it",
            with_seal(ours.clone(), Some(seal("a", &ours))),
            "a record of `site1` that `site1` has not signed",
        ),
        ("of nobody", honest(stranger), "a record of `x`, whose key is not known here"),
    ];
    for (n, (story, sent, why)) in (1..).zip(cases) {
        send(&records, sent);
        refused(&one, n, &["what `a` said of `thing` was not taken in", why]).await;
        assert_eq!(one.node.read(|replica| replica.resources().count()).await, Ok(0), "{story}");
    }
    assert!(one.reaches("a"));
    serves(&one, &two, "other").await;
    // The same relay is heard as soon as it says what is so.
    send(&records, good);
    until("the truth arrives", || async { one.operations().await == 2 }).await;
    until("and is passed on", || async { two.operations().await == 2 }).await;
    assert_eq!((one.peer("a").refused, two.peer("site1").refused), (11, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_replayed_changes_nothing_and_what_contradicts_it_is_refused() {
    let (one, two, fake, records) = world().await;
    fake.answer_pings();
    let op = first();
    let genuine = [honest(record(op.clone())), honest(reply("c:2", "done"))];
    for sent in genuine.clone() {
        send(&records, sent);
    }
    let look = |replica: &cheops_core::replica::Replica| {
        let resource = replica.resource(&RESOURCE.parse().unwrap())?;
        let own = resource.reply(&"c:1".parse().unwrap(), replica.here())?;
        Some((resource.version(), own.attempt))
    };
    until("it was run here", || async { one.node.read(look).await.unwrap().is_some() }).await;
    let before = one.node.read(look).await.unwrap();
    for sent in (0..3).flat_map(|_| genuine.clone()) {
        send(&records, sent);
    }
    // Both are signed by `c`: it says one thing here and another there, or somebody has its key.
    let other = Operation { action: Action::command("false"), ..op.clone() };
    send(&records, honest(record(other)));
    refused(&one, 1, &["`a`", "`thing`", "its number stands for another operation"]).await;
    send(&records, Sent { after: 1, ..honest(reply("c:2", "not done")) });
    refused(&one, 2, &["`a`", "`thing`", "its number stands for another reply"]).await;
    // A record of one resource, told as one of another.
    let message = Message::Records {
        resource: "elsewhere".parse().unwrap(),
        records: vec![genuine[0].clone()],
        more: false,
    };
    send_encoded(&records, &encode_message(&message).unwrap());
    refused(&one, 3, &["`a`", "`elsewhere`", "a record of another resource"]).await;
    assert_eq!(one.node.read(look).await.unwrap(), before, "run once, and nothing is new");
    serves(&one, &two, "other").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_can_not_backdate_what_it_records() {
    let (one, two, fake, records) = world().await;
    fake.answer_pings();
    send(&records, honest(record(first())));
    until("the first arrives", || async { one.operations().await == 1 }).await;
    let a_year_ago = |parents: &[&str]| Operation {
        id: "c:2".parse().unwrap(),
        at: Timestamp::at(Millis(wall() - YEAR)),
        parents: parents.iter().map(|id| id.parse::<OpId>().unwrap()).collect(),
        ..first()
    };
    // As if it came after what is there, and as if it came before all that.
    let follows = Operation { declares: None, ..a_year_ago(&["c:1"]) };
    send(&records, honest(record(follows)));
    refused(&one, 1, &["an operation that is not later than what it follows"]).await;
    send(&records, honest(record(a_year_ago(&[]))));
    refused(&one, 2, &["dated long before an earlier one of its site"]).await;
    assert_eq!(one.operations().await, 1);
    serves(&one, &two, "other").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_with_a_million_parents_is_not_read() {
    const PARENTS: usize = 1_000_000;
    let (one, two, mut fake, records) = world().await;
    let parent = OpId { site: name("the-one-parent"), number: 1 };
    let op = Operation { parents: [parent].into(), ..first() };
    let message = Message::Records {
        resource: RESOURCE.parse().unwrap(),
        records: vec![honest(record(op))],
        more: false,
    };
    // No site of ours writes such a message: one parent is made into many in its bytes.
    let encoded = encode_message(&message).unwrap();
    let entry = [&[14][..], b"the-one-parent", &[1]].concat();
    let at = encoded.windows(entry.len()).position(|bytes| bytes == entry).unwrap();
    assert_eq!(encoded[at - 1], 1, "how many there are");
    let count = [0xc0, 0x84, 0x3d];
    let (head, rest) = (&encoded[..at - 1], &encoded[at + entry.len()..]);
    let bytes = [head, &count, &entry.repeat(PARENTS), rest].concat();
    assert!(bytes.len() < cheops_agent::wire::MAX_LENGTH, "{}", bytes.len());
    send_encoded(&records, &bytes);
    let reason = fake.control.reason().await;
    assert!(reason.contains("a list of 1000000 items is too long"), "{reason}");
    refused(&one, 1, &["what `a` said was not taken in", "parents", "too long", "versions"]).await;
    serves(&one, &two, "other").await;
    // It may come back, and say something else.
    let (fake, records) = Fake::link(&one, "a").await;
    fake.answer_pings();
    send(&records, honest(record(first())));
    until("it is heard again", || async { one.operations().await == 2 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_forgeries_costs_no_memory_and_hides_nobody() {
    let (one, two, fake, records) = world().await;
    fake.answer_pings();
    let (site2, thing) = (name("site2"), "thing".parse().unwrap());
    one.noted.refused(&site2, &thing, "something else");
    for n in 0..300 {
        let id = format!("nobody{n}:1").parse().unwrap();
        send(&records, honest(record(Operation { id, ..first() })));
    }
    until("all are refused", || async { one.peer("a").refused == 300 }).await;
    let troubles = one.noted.troubles(one.name());
    assert_eq!(troubles.len(), 100);
    assert!(troubles.iter().any(|trouble| trouble.text.contains("`site2`")), "{troubles:#?}");
    serves(&one, &two, "other").await;
}

/// Sites in a row: the first and the last have no link, and know each other's keys if they are told.
async fn row(strangers: bool) -> [Site; 3] {
    let mut plans = plans(3);
    plans[0].finds("site3", address());
    plans[2].finds("site1", address());
    if strangers {
        plans[2].config.sites.remove(&name("site1"));
    }
    let mut sites = Vec::new();
    for mut plan in plans {
        plan.settings.compare_every = Millis(200);
        sites.push(plan.start().await);
    }
    let sites: [Site; 3] = sites.try_into().map_err(|_| "three").unwrap();
    until("they are in a row", || async {
        sites[0].reaches("site2") && sites[1].reaches("site3") && sites[2].reaches("site2")
    })
    .await;
    sites
}

const THREE: &[&str] = &["site1", "site2", "site3"];

#[tokio::test(flavor = "multi_thread")]
async fn what_an_honest_relay_brings_is_checked_and_taken_in() {
    let sites = row(false).await;
    for _ in 0..100 {
        sites[0].submit(RESOURCE, THREE, 10).await;
    }
    sites[2].submit("back", THREE, 10).await;
    for site in [&sites[2], &sites[0]] {
        until("it arrives", || async { site.operations().await == 101 }).await;
    }
    let refused = sites.iter().flat_map(|site| site.peers.view()).map(|peer| peer.refused);
    assert_eq!(refused.sum::<u64>(), 0);
    assert!(!sites[0].reaches("site3"), "it came by way of site2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_whose_key_is_not_known_is_named_and_heard_once_it_is() {
    let [one, two, three] = row(true).await;
    one.submit(RESOURCE, THREE, 10).await;
    until("it is refused", || async { three.peer("site2").refused > 0 }).await;
    let troubles = three.noted.troubles(three.name());
    let trouble = troubles.iter().find(|trouble| trouble.text.contains("`site1`")).unwrap();
    assert!(trouble.text.contains("whose key is not known here"), "{trouble:?}");
    assert!(trouble.next.contains("let `site3` know its key"), "{trouble:?}");
    assert_eq!(three.operations().await, 0);
    let mut plan = three.stop().await;
    plan.knows(one.name(), address());
    let three = plan.start().await;
    until("it comes by itself", || async { three.operations().await == 1 }).await;
    assert_eq!((three.peer("site2").refused, two.operations().await), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_recorded_before_there_were_seals_is_sealed_when_it_is_sent() {
    let mut plans = plans(2);
    let two = plans.pop().unwrap();
    let one = plans.pop().unwrap().start().await;
    for _ in 0..70 {
        one.submit(RESOURCE, &["site1", "site2"], 10).await;
    }
    let mut one: Plan = one.stop().await;
    let old = one.disk.written().into_iter().map(|durable| match durable {
        Durable::Record(record, _) => Durable::Record(record, None),
        other => other,
    });
    one.disk = Disk::of(old.collect());
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    until("all of it arrives", || async { two.operations().await == 70 }).await;
    assert_eq!(two.peer("site1").refused, 0);
    let unsealed = |durable: &Durable| matches!(durable, Durable::Record(_, None));
    assert!(!two.plan.disk.written().iter().any(unsealed));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_down_and_sent_has_the_seal_of_its_site() {
    let (one, _two, fake, mut records) = world().await;
    fake.answer_pings();
    one.submit(RESOURCE, &ALL, 10).await;
    let mut names = cheops_agent::wire::Names::default();
    let sent = loop {
        let Some(Frame::Message(bytes)) = records.next().await else { panic!("no message") };
        let message = cheops_agent::wire::decode_message(&bytes, &mut names).unwrap();
        if let Message::Records { records, .. } = message {
            break records;
        }
    };
    let written = one.plan.disk.written();
    for sent in sent {
        assert!(sent.seal.is_some(), "{sent:?}");
        assert!(written.contains(&Durable::Record(sent.record, sent.seal)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_does_not_look_after_another() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("honest");
    std::fs::create_dir_all(&data).unwrap();
    let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let mut thief = Plan::new("thief");
    let mut config = cheops_agent::config::Config::new("honest".parse().unwrap(), &data);
    (config.api, config.peers) = (loopback, loopback);
    let at = thief.config.peers.to_string();
    config.add_site("thief".parse().unwrap(), at, identity("thief").public()).unwrap();
    let honest = cheops_agent::Agent::start(config).await.unwrap();
    let key = cheops_agent::trust::Identity::open(&data).unwrap().public();
    thief.config.add_site("honest".parse().unwrap(), honest.peers().to_string(), key).unwrap();
    let thief = thief.start().await;
    until("a link", || std::future::ready(thief.reaches("honest"))).await;
    // It says that an admin asks, or nothing.
    let admin = "eyJhdXRob3IiOiJhZGEiLCJyb2xlIjoiYWRtaW4ifQ==";
    for (method, path, body) in [
        ("POST", "/api/v1/access", r#"{"name": "mallory", "role": "admin"}"#),
        ("POST", "/api/v1/hooks", r#"{"name": "x", "url": "http://127.0.0.1:1/"}"#),
        ("POST", "/api/v1/federation/key", "{}"),
        ("POST", "/api/v1/federation/tokens", "{}"),
        ("POST", "/api/v1/sites/thief/pause", "{}"),
        ("DELETE", "/api/v1/sites/thief", ""),
        ("GET", "/api/v1/audit", ""),
    ] {
        for asked_by in [None, Some(admin)] {
            let request = hyper::Request::builder().method(method).uri(path);
            let request = request.header("content-type", "application/json");
            let request = asked_by
                .into_iter()
                .fold(request, |request, by| request.header("x-cheops-asked-by", by));
            let request = request.body(axum::body::Body::from(body)).unwrap();
            let answer = thief.peers.call(&"honest".parse().unwrap(), request).await.unwrap();
            assert_eq!(answer.status(), 403, "{method} {path} {asked_by:?}");
        }
    }
}
