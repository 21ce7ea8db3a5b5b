//! What is written is read as the same; what was not written by us does no harm.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a test fails by it, or tells what it measured"
)]

mod golden;
mod support;

use std::{fmt::Write as _, sync::Arc, time::Duration};

use cheops_agent::wire::{
    self, LAST_NUMBER, MAX_DEPTH, MAX_ITEMS, MAX_LENGTH, Names, Problem, VERSION, decode_durable,
    decode_message, encode_durable, encode_message,
};
use cheops_core::{
    id::{OpId, SiteId, Sites},
    matrix::{Config, Entry, Matrix, Take},
    operation::{self, Action, Attachment, Declaration, HttpBody, HttpRequest, Operation},
    plan::Outcome,
    replica::{Durable, Message, Record, Reply, Sent, Shown, Stretch, Version},
    time::{Millis, Timestamp},
    trust::Seal,
};
use proptest::{collection, prelude::*, sample::Index};

/// A small operation, to be varied.
fn operation(action: Action) -> Operation {
    Operation {
        id: "site2:7".parse().unwrap(),
        resource: "counter".parse().unwrap(),
        kind: "inc".parse().unwrap(),
        author: "ana".parse().unwrap(),
        at: Timestamp::at(Millis(1_800_000_000_000)),
        parents: ["site1:3".parse().unwrap(), "site2:6".parse().unwrap()].into(),
        action,
        reset: false,
        keep_going: true,
        key: None,
        declares: None,
    }
}

fn declaration() -> Declaration {
    let (set, inc) = ("set".parse().unwrap(), "inc".parse().unwrap());
    let entries = [Entry::new(&set, &inc, Take::BothKeepOrder), Entry::new(&inc, &inc, Take::Both)];
    Declaration {
        sites: Sites::new(["site1", "site2"].map(|site| site.parse().unwrap())).unwrap(),
        config: Config {
            matrix: Matrix::new(entries.into()).unwrap(),
            show: Some("redis-cli get x".into()),
            timeout: Some(Duration::from_millis(1500)),
            parts: ["site2", "site1"]
                .map(|site| Sites::from(site.parse::<SiteId>().unwrap()))
                .into(),
            ..Config::default()
        }
        .into(),
        base: Version::from([("site1".parse().unwrap(), 12)]),
    }
}

fn attachment() -> Attachment {
    Attachment { name: "a.yaml".into(), content: [0xab; 32], length: 300 }
}

fn stored(op: Operation) -> Durable {
    Durable::Record(Record::Operation(Arc::new(op)), None)
}

fn http() -> Action {
    Action::Http(Box::new(HttpRequest {
        service: "image".parse().unwrap(),
        method: "PUT".into(),
        target: "/v2/images?x=1".into(),
        headers: [("Accept".into(), "*/*".into())].into(),
        body: HttpBody::File(attachment()),
        names: operation::Names::Nothing,
    }))
}

fn requests() -> Action {
    let request = |method: &str, target: &str, body, names| {
        Action::Http(Box::new(HttpRequest {
            service: "image".parse().unwrap(),
            method: method.into(),
            target: target.into(),
            headers: [("Accept".into(), "*/*".into())].into(),
            body,
            names,
        }))
    };
    let json = HttpBody::Inline(br#"{"name":"x"}"#.as_slice().into());
    let steps = [
        request("POST", "/v2/images", json, operation::Names::Makes("m1".into())),
        request(
            "PUT",
            "/v2/images/m1/file",
            HttpBody::File(attachment()),
            operation::Names::Uses("m1".into()),
        ),
        request("DELETE", "/v2/images/x", HttpBody::None, operation::Names::Nothing),
    ];
    Action::Steps(steps.into())
}

fn reply() -> Reply {
    Reply {
        id: "site3:1".parse().unwrap(),
        resource: "counter".parse().unwrap(),
        op: "site2:7".parse().unwrap(),
        attempt: 1,
        outcome: Outcome::Ok,
        era: 1,
        took: Millis(250),
        output: "8".into(),
        made: None,
    }
}

fn shown() -> Record {
    Record::Shown(Arc::new(Shown {
        id: "site3:2".parse().unwrap(),
        resource: "counter".parse().unwrap(),
        op: "site2:7".parse().unwrap(),
        block: 0x0123_4567_89ab_cdef,
        print: Some([7; 16]),
    }))
}

fn seal() -> Seal {
    Seal::new(&[0x5e; 97]).unwrap()
}

fn messages() -> [(&'static str, Message); 9] {
    let counter = || "counter".parse().unwrap();
    let version =
        || Version::from([("site1".parse().unwrap(), 3), ("site2".parse().unwrap(), 300)]);
    let stretch = Stretch { from: Some(counter()), to: None };
    let op = Record::Operation(Arc::new(operation(Action::command("incr x"))));
    let records = vec![
        Sent { after: 6, record: op, seal: None },
        Sent { after: 0, record: Record::Reply(Arc::new(reply())), seal: None },
    ];
    let shown = vec![Sent { after: 1, record: shown(), seal: None }];
    let sealed = vec![
        Sent { after: 0, record: Record::Reply(Arc::new(reply())), seal: Some(seal()) },
        Sent { after: 1, record: self::shown(), seal: None },
    ];
    let contradicted =
        Message::Contradicted { resource: counter(), number: "site3:7".parse().unwrap() };
    let made = Reply { made: Some("8c2f".into()), ..reply() };
    let made = vec![Sent { after: 0, record: Record::Reply(Arc::new(made)), seal: None }];
    [
        ("compare", Message::Compare(vec![(stretch.clone(), 0x0123_4567_89ab_cdef)])),
        ("have", Message::Have(stretch, vec![(counter(), version())], 0x0123_4567_89ab_cdef)),
        ("want", Message::Want(vec![(counter(), Version::new())])),
        ("records", Message::Records { resource: counter(), records, more: true }),
        ("forgotten", Message::Forgotten(vec![(counter(), version())])),
        ("shown", Message::Records { resource: counter(), records: shown, more: false }),
        ("made", Message::Records { resource: counter(), records: made, more: false }),
        ("contradicted", contradicted),
        ("sealed", Message::Records { resource: counter(), records: sealed, more: true }),
    ]
}

fn durables() -> [(&'static str, Durable); 17] {
    let steps = Action::Steps([Action::command("incr x"), http()].into());
    let first = Operation {
        parents: Box::default(),
        key: Some("order 66".parse().unwrap()),
        declares: Some(Box::new(declaration())),
        ..operation(Action::Command { line: "apply".into(), files: [attachment()].into() })
    };
    let intent = Durable::Intent {
        resource: "counter".parse().unwrap(),
        op: "site2:7".parse().unwrap(),
        attempt: 2,
        fresh: true,
    };
    let version = || Version::from([("site1".parse().unwrap(), 3)]);
    let forgotten = Durable::Forgotten {
        resource: "counter".parse().unwrap(),
        version: version(),
        by: "site1:2".parse().unwrap(),
        at: Timestamp::at(Millis(1_800_000_000_000)),
    };
    let denied = Reply { outcome: Outcome::Denied, ..reply() };
    let held = Durable::Held {
        resource: "counter".parse().unwrap(),
        site: "site3".parse().unwrap(),
        known: 4,
        floor: 9,
        done: true,
    };
    let decided = Durable::Decided {
        resource: "counter".parse().unwrap(),
        op: "site3:7".parse().unwrap(),
        adopted: Some("site3:10".parse().unwrap()),
    };
    let contradicted = Durable::Contradicted {
        resource: "counter".parse().unwrap(),
        number: "site3:7".parse().unwrap(),
    };
    let trimmed = Durable::Trimmed { resource: "counter".parse().unwrap(), version: version() };
    [
        ("steps", stored(operation(steps))),
        ("requests", stored(operation(requests()))),
        ("first", stored(first)),
        ("intent", intent),
        ("clearing", Durable::Clearing("counter".parse().unwrap())),
        ("cleared", Durable::Cleared("counter".parse().unwrap())),
        ("forgotten", forgotten),
        ("trimmed", trimmed),
        ("withheld", Durable::Withheld { resource: "counter".parse().unwrap(), floor: 9 }),
        ("shown", Durable::Record(shown(), None)),
        ("denied", Durable::Record(Record::Reply(Arc::new(denied)), None)),
        ("sealed", Durable::Record(shown(), Some(seal()))),
        ("held", held),
        ("aside", Durable::Aside(shown())),
        ("decided", decided),
        ("contradicted", contradicted),
        ("leftover", Durable::Leftover("counter".parse().unwrap())),
    ]
}

/// If this test fails the format has changed: sites of another release would misread what this one
/// writes, and disks hold what it can't read. If that is wanted, raise [`VERSION`], go on reading
/// the version before, and put the new bytes into `golden`. If it is not, undo the change: a twin
/// keeps the order of its fields and of its variants for good. `UPDATE=1` writes the new bytes.
#[test]
fn the_format_has_not_changed() {
    let mut names = Names::default();
    for (name, message) in messages() {
        let bytes = encode_message(&message).unwrap();
        let golden = golden(&format!("message-{name}"), &bytes);
        assert_eq!(hex(&bytes), hex(&golden), "{name}");
        assert_eq!(decode_message(&golden, &mut names), Ok(message));
    }
    for (name, durable) in durables() {
        let bytes = encode_durable(&durable).unwrap();
        let golden = golden(&format!("durable-{name}"), &bytes);
        assert_eq!(hex(&bytes), hex(&golden), "{name}");
        assert_eq!(decode_durable(&golden, &mut names), Ok(durable));
    }
}

/// The bytes of a file in `golden`; those that are found there now, if it is to be rewritten.
fn golden(name: &str, found: &[u8]) -> Vec<u8> {
    let path = format!("{}/tests/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    if std::env::var("UPDATE").is_ok_and(|value| value == "1") {
        std::fs::write(&path, hex(found)).unwrap();
    }
    golden::bytes(&std::fs::read_to_string(path).unwrap())
}

/// Bytes as the files in `golden` hold them.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(32) {
        for byte in line {
            write!(text, "{byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn names_are_shared() {
    let mut names = Names::default();
    let bytes = encode_durable(&stored(operation(Action::command("x")))).unwrap();
    let mut decode = || match decode_durable(&bytes, &mut names).unwrap() {
        Durable::Record(Record::Operation(op), _) => op,
        other => panic!("{other:?}"),
    };
    let (one, two) = (decode(), decode());
    for text in [
        |op: &Operation| op.id.site.as_str().as_ptr(),
        |op: &Operation| op.resource.as_str().as_ptr(),
        |op: &Operation| op.kind.as_str().as_ptr(),
        |op: &Operation| op.author.as_str().as_ptr(),
        |op: &Operation| op.parents[0].site.as_str().as_ptr(),
    ] {
        assert_eq!(text(&one), text(&two));
    }
    assert_eq!(one.id.site.as_str().as_ptr(), one.parents[1].site.as_str().as_ptr());
}

/// The error of decoding what an encoding becomes when some bytes of it are replaced.
fn tampered(durable: &Durable, find: &[u8], put: &[u8]) -> String {
    let bytes = encode_durable(durable).unwrap();
    let at = bytes.windows(find.len()).position(|window| window == find).unwrap();
    let bytes = [&bytes[..at], put, &bytes[at + find.len()..]].concat();
    decode_durable(&bytes, &mut Names::default()).unwrap_err().to_string()
}

#[test]
fn errors_say_what_and_where() {
    let op = stored(operation(Action::command("incr x")));
    let first = Operation { declares: Some(declaration().into()), ..operation(http()) };
    let first = stored(first);
    for (durable, find, put, error) in [
        (
            &op,
            &b"\x05site1"[..],
            &b"\x05site&"[..],
            "at record.parents[0].site: `site&` is not a site name: only letters, digits, `.`, `-`, \
             `_` and single inner spaces are allowed",
        ),
        (
            &op,
            b"\x05site1\x03",
            b"\x05site1\x00",
            "at record.parents[0].number: 0 is not the number of a record: they go from 1 to \
             9223372036854775807",
        ),
        (&op, b"\x06incr x", b"\x07incr x", "at byte 64: the end comes too early"),
        (&op, b"\x06incr x", b"\x06incr \xff", "at byte 59: a text is not UTF-8"),
        (&op, b"\x01\x00\x06incr x\x00", b"\x00", "at record.action: a step is missing"),
        (
            &first,
            b"\x02\x05site1\x05site2",
            b"\x00",
            "at record.declares.sites: no site is named; a resource has at least one",
        ),
        (
            &first,
            b"\x05site1\x05site2",
            b"\x05site2\x05site2",
            "at record.declares.sites[1]: it does not come after the one before it",
        ),
        (&first, b"\x0fredis-cli get x", b"\x01 ", "at record.declares.show: the command is empty"),
        (
            &first,
            b"\x01\x80\xca\xb5\xee\x01",
            b"\x00\x00",
            "at record.declares.timeout: it is not a time limit",
        ),
        (
            &first,
            b"\x80\xca\xb5\xee\x01",
            b"\xff\xff\xff\xff\x0f",
            "at record.declares.timeout: it is not a time limit",
        ),
    ] {
        assert_eq!(tampered(durable, find, put), error);
    }
}

#[test]
fn the_frame_is_exact() {
    let mut names = Names::default();
    let bytes = encode_message(&Message::Want(Vec::new())).unwrap();
    let mut read = |bytes: &[u8]| decode_message(bytes, &mut names).map_err(|e| e.to_string());
    assert_eq!(read(&bytes), Ok(Message::Want(Vec::new())));
    let other = [&[VERSION + 1], &bytes[1..]].concat();
    let longer = [&bytes[..], &[0, 0]].concat();
    for (bytes, error) in [
        (&[][..], "at byte 0: there is nothing, not even a version"),
        (&other, "at byte 0: format 2 is unknown; this program reads format 1"),
        (&longer, "at byte 3: the end, but 2 more bytes follow"),
        (&bytes[..2], "at byte 2: the end comes too early"),
        (&[VERSION, 77], "at byte 2: none of the variants that are known here"),
        // A list that claims to hold a great many items, of which none follows.
        (&[VERSION, 2, 0xff, 0xff, 0xff, 0xff, 0x7f], "at byte 7: the end comes too early"),
        (
            &vec![VERSION; MAX_LENGTH + 1],
            "at byte 16777216: 16777217 bytes are too many; the limit is 16777216",
        ),
    ] {
        assert_eq!(read(bytes), Err(error.into()));
    }
}

/// What can't be read can't be written either, and the other way round.
#[test]
fn limits_hold_both_ways() {
    let nested = |depth| (0..depth).fold(Action::command("x"), |a, _| Action::Steps([a].into()));
    let encoded = |op| encode_durable(&stored(op)).map_err(|error| error.to_string());
    assert!(encoded(operation(nested(MAX_DEPTH))).is_ok());
    assert_eq!(
        encoded(operation(nested(MAX_DEPTH + 1))),
        Err("at record.action[8]: steps stand in each other more than 8 deep".into())
    );
    // One more of the bytes that say "one step".
    let deepest = stored(operation(nested(MAX_DEPTH)));
    assert_eq!(
        tampered(&deepest, b"\x09\x02\x01\x02\x01", b"\x0a\x02\x01\x02\x01\x02\x01"),
        "at record.action[8]: steps stand in each other more than 8 deep"
    );

    let parents = |count| Operation {
        parents: vec!["site1:1".parse().unwrap(); count].into(),
        ..operation(Action::command("x"))
    };
    assert!(encoded(parents(MAX_ITEMS)).is_ok());
    assert_eq!(
        encoded(parents(MAX_ITEMS + 1)),
        Err("at record.parents: a list of 65537 items is too long; the limit is 65536".into())
    );
    let claimed = tampered(&stored(parents(MAX_ITEMS)), b"\x80\x80\x04", b"\x81\x80\x04");
    assert!(claimed.starts_with("at byte"), "{claimed}");

    let number = |number| Operation {
        id: OpId { number, ..operation(Action::command("x")).id },
        ..operation(Action::command("x"))
    };
    assert!(encoded(number(LAST_NUMBER)).is_ok());
    assert!(encoded(number(0)).is_err());
    assert!(encoded(number(LAST_NUMBER + 1)).is_err());

    let long = operation(Action::command("x".repeat(MAX_LENGTH)));
    let error = encode_durable(&stored(long)).unwrap_err();
    assert!(matches!(error.problem, Problem::TooLong(_)), "{error}");
}

#[test]
fn a_site_has_one_part() {
    let encoded = |parts: &[&str]| {
        let sites = |part: &&str| Sites::new(part.split('+').map(|site| site.parse().unwrap()));
        let parts = parts.iter().map(|part| sites(part).unwrap()).collect();
        let config = Config { parts, ..Config::default() };
        let declares = Some(Declaration { config: config.into(), ..declaration() }.into());
        let op = Operation { declares, ..operation(Action::command("x")) };
        encode_durable(&stored(op)).map_err(|error| error.to_string())
    };
    for (parts, error) in
        [(&["a"][..], "a resource in parts has at least two"), (&["a", "b+a"], "`a` has two parts")]
    {
        assert_eq!(encoded(parts), Err(format!("at record.declares.parts: {error}")));
    }
    let mut bytes = encoded(&["a", "b", "c+d"]).unwrap();
    let parts = b"\x03\x01\x01a\x01\x01b\x02\x01c\x01d";
    assert!(bytes.ends_with(parts), "{bytes:x?}");
    let last = bytes.len() - 1;
    let read = |bytes: &[u8]| decode_durable(bytes, &mut Names::default());
    assert!(read(&bytes).is_ok());
    bytes[last] = b'c';
    let error = read(&bytes).unwrap_err().to_string();
    assert_eq!(error, "at record.declares.parts[2][1]: it does not come after the one before it");
    bytes[last - 2] = b'a';
    let error = read(&bytes).unwrap_err().to_string();
    assert_eq!(error, "at record.declares.parts: `a` has two parts");
}

#[test]
fn a_matrix_names_at_most_255_kinds() {
    // Two messages' worth of kinds in one: each matrix is fine, and both together are not.
    let entries = |from: usize| -> Vec<Entry> {
        let kind = |n: usize| format!("k{n:03}").parse().unwrap();
        (from..from + 128).map(|n| Entry::new(&kind(n), &kind(n), Take::One)).collect()
    };
    let bytes = |entries: Vec<Entry>| {
        let mut declared = declaration();
        let matrix = Matrix::new(entries).unwrap();
        declared.config = Config { matrix, ..Config::default() }.into();
        let op = Operation { declares: Some(declared.into()), ..operation(Action::command("")) };
        encode_durable(&stored(op)).unwrap()
    };
    let (one, two) = (bytes(entries(0)), bytes(entries(128)));
    let row = b"\x04k000\x04k000\x00\x00";
    let start = one.windows(row.len()).position(|window| window == row).unwrap();
    let end = start + 128 * row.len();
    // The length of 128 before the entries becomes 256.
    let both = [&one[..start - 2], b"\x80\x02", &one[start..end], &two[start..]].concat();
    assert_eq!(
        decode_durable(&both, &mut Names::default()).unwrap_err().to_string(),
        "at record.declares.matrix: a matrix has at most 255 kinds, and this one has 256"
    );
}

/// The core counts messages in its own estimate of their size. It holds for what sites send.
#[test]
fn the_core_knows_about_how_long_an_encoding_is() {
    let of = |length: usize| {
        let lacks = length - operation(Action::command("")).weight();
        operation(Action::command("x".repeat(lacks)))
    };
    let declares = |length| Operation { declares: Some(declaration().into()), ..of(length) };
    let files =
        Action::Command { line: "x".repeat(150).into(), files: vec![attachment(); 4].into() };
    let headers = vec![("Content-Type".into(), "application/json".into()); 8].into();
    let web = Action::Http(Box::new(HttpRequest {
        service: "image".parse().unwrap(),
        method: "POST".into(),
        target: "/v2/images".into(),
        headers,
        body: HttpBody::File(attachment()),
        names: operation::Names::Nothing,
    }));
    let web = |body, names| match &web {
        Action::Http(request) => {
            Action::Http(Box::new(HttpRequest { body, names, ..(**request).clone() }))
        }
        other => panic!("{other:?}"),
    };
    let inline = HttpBody::Inline([b'x'; 1_000].into());
    let many_parents = Operation {
        parents: (1..=20).map(|n| format!("site{n}:{}", 1000 * n).parse().unwrap()).collect(),
        ..of(300)
    };
    let typical = [
        ("300 bytes", of(300)),
        ("1 KB", of(1_000)),
        ("10 KB", of(10_000)),
        ("300 bytes and a declaration", declares(300)),
        ("4 files", operation(files)),
        ("a request", operation(web(HttpBody::File(attachment()), operation::Names::Nothing))),
        (
            "a request that makes",
            operation(web(inline, operation::Names::Makes("m".repeat(36).into()))),
        ),
        (
            "a request that uses",
            operation(web(HttpBody::None, operation::Names::Uses("m".repeat(36).into()))),
        ),
        ("20 parents", many_parents),
    ];
    let resource = || "counter".parse().unwrap();
    for (what, op) in typical {
        let record = Record::Operation(Arc::new(op));
        let one = Message::Records {
            resource: resource(),
            records: vec![Sent { after: 6, record: record.clone(), seal: None }],
            more: false,
        };
        let many = Message::Records {
            resource: resource(),
            records: vec![Sent { after: 6, record: record.clone(), seal: None }; 100],
            more: false,
        };
        let stored = encode_durable(&Durable::Record(record.clone(), None)).unwrap();
        assert!(record.weight() >= 200, "{what}");
        near(&format!("{what}, stored"), record.weight(), stored.len());
        near(&format!("{what}, sent"), one.weight(), encode_message(&one).unwrap().len());
        near(&format!("{what}, 100 sent"), many.weight(), encode_message(&many).unwrap().len());
    }
    let version: Version = (1..8).map(|n| (format!("site{n}").parse().unwrap(), 100 * n)).collect();
    let versions = vec![(resource(), version); 16];
    let have = Message::Have(Stretch::default(), versions, 1);
    near("16 versions", have.weight(), encode_message(&have).unwrap().len());
    let stretch = Stretch { from: Some(resource()), to: Some(resource()) };
    let compare = Message::Compare(vec![(stretch, u64::MAX); 16]);
    near("16 digests", compare.weight(), encode_message(&compare).unwrap().len());
}

fn near(what: &str, estimate: usize, real: usize) {
    let ratio = estimate as f64 / real as f64;
    println!("{what}: estimate {estimate}, encoded {real}, x{ratio:.2}");
    assert!((0.5..=2.0).contains(&ratio), "{what}: {estimate} for {real}");
}

/// Damage: flips, cuts and insertions at some places.
fn damage() -> impl Strategy<Value = Vec<(Index, u8, u8)>> {
    collection::vec((any::<Index>(), 0..4_u8, any::<u8>()), 1..6)
}

fn damaged(mut bytes: Vec<u8>, damage: &[(Index, u8, u8)]) -> Vec<u8> {
    for &(place, how, byte) in damage {
        if bytes.is_empty() {
            break;
        }
        let at = place.index(bytes.len());
        match how {
            0 => bytes[at] ^= 1 << (byte % 8),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, byte),
            _ => bytes[at] = byte,
        }
    }
    bytes
}

/// Whatever can be read can be written, and is read as the same again.
fn harmless(bytes: &[u8]) {
    let mut names = Names::default();
    if let Ok(message) = decode_message(bytes, &mut names) {
        let again = encode_message(&message).unwrap();
        assert_eq!(decode_message(&again, &mut names), Ok(message));
    }
    if let Ok(durable) = decode_durable(bytes, &mut names) {
        let again = encode_durable(&durable).unwrap();
        assert_eq!(decode_durable(&again, &mut names), Ok(durable));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn messages_read_back(message in support::message()) {
        let bytes = encode_message(&message).unwrap();
        prop_assert_eq!(decode_message(&bytes, &mut Names::default()), Ok(message));
    }

    #[test]
    fn durables_read_back(durable in support::durable()) {
        let bytes = encode_durable(&durable).unwrap();
        prop_assert_eq!(decode_durable(&bytes, &mut Names::default()), Ok(durable));
    }

    #[test]
    fn garbage_does_no_harm(mut bytes in collection::vec(any::<u8>(), 0..300), ours in any::<bool>()) {
        if let (Some(version), true) = (bytes.first_mut(), ours) {
            *version = VERSION;
        }
        harmless(&bytes);
    }

    #[test]
    fn damage_does_no_harm(message in support::message(), damage in damage()) {
        harmless(&damaged(encode_message(&message).unwrap(), &damage));
    }

    #[test]
    fn damage_on_disk_does_no_harm(durable in support::durable(), damage in damage()) {
        harmless(&damaged(encode_durable(&durable).unwrap(), &damage));
    }

    #[test]
    fn what_was_cut_off_is_missed(message in support::message(), place in any::<Index>()) {
        let bytes = encode_message(&message).unwrap();
        let cut = &bytes[..place.index(bytes.len())];
        prop_assert!(wire::decode_message(cut, &mut Names::default()).is_err());
    }
}
