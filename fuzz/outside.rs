//! Readers of what comes from other agents, from people, and from files that others can write: keys,
//! seals, frames, bodies, forms, configurations, the audit. Each takes bytes, and must not panic.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, sync::LazyLock};

use axum::{
    body::Body,
    extract::{FromRequest as _, Request},
};
use bytes::BytesMut;
use cheops_agent::{
    api::{
        form::Parts,
        model::{Answer, Problem, Show, Submit},
    },
    audit::{
        Entry, Event, What,
        chain::{self, Head, Last},
    },
    config::Config,
    mesh::read::Reader,
    run::answer,
    trust::{
        Identity, Ledger, ledger,
        people::Token,
        seal::{self, Checker, Proof},
        token,
    },
    wire::frame::{Code, Frame, Frames, Hello},
};
use cheops_core::{
    duration,
    pattern::Pattern,
    time::Millis,
    trust::{Claim, PublicKey, Seal},
};
use hyper::header::{HeaderName, HeaderValue};

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| Identity::from_seed(&[7; 32]).unwrap());

/// A key that can be read is written as the same.
pub(crate) fn key_reads(text: &str) {
    match text.parse::<PublicKey>() {
        Ok(key) => assert_eq!(key.to_string().parse(), Ok(key)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn keys() -> [String; 2] {
    [[0; 32], [255; 32]].map(|bytes| PublicKey::from_bytes(bytes).to_string())
}

/// What is read as a seal has no other form, and is good only for what was sealed.
pub(crate) fn seal_reads(bytes: &[u8]) {
    let Some(seal) = Seal::new(bytes).and_then(|seal| Proof::decode(&seal)) else { return };
    assert_eq!(seal.encode().unwrap().as_bytes(), bytes);
    let (site, mut checker) = ("site1".parse().unwrap(), Checker::default());
    assert!(!checker.check(&IDENTITY.public(), &site, b"another record", &seal));
}

pub(crate) fn seals() -> Vec<Vec<u8>> {
    let site = "site1".parse().unwrap();
    let records: Vec<[u8; 1]> = (0..64).map(|n| [n]).collect();
    let one = seal::seal(&IDENTITY, &site, &records[..1]);
    let many = seal::seal(&IDENTITY, &site, &records);
    let bytes = |seal: Proof| seal.encode().unwrap().as_bytes().to_vec();
    one.into_iter().chain(many).map(bytes).collect()
}

/// What is read as a token by which a site joins is printed as it was read.
pub(crate) fn join_token_reads(text: &str) {
    match text.parse::<token::Token>() {
        Ok(token) => assert_eq!(token.to_string(), text.trim()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn join_tokens() -> [String; 1] {
    let (data, now) = (tempfile::tempdir().unwrap(), Millis(1_700_000_000_000));
    let (tokens, key) = (token::Tokens::open(data.path()).unwrap(), IDENTITY.public());
    [tokens.make(key, key, "site1:8078".into(), now, now).unwrap().to_string()]
}

/// A list of who belongs can be read, and then says something that was signed, or it is said what is wrong.
pub(crate) fn federation_reads(text: &str) {
    thread_local! {
        static DATA: tempfile::TempDir = tempfile::tempdir().unwrap();
    }
    DATA.with(|data| {
        fs::write(data.path().join(ledger::FILE), text).unwrap();
        match Ledger::open(data.path()) {
            Ok(ledger) => assert_eq!(ledger.root().is_some(), !ledger.all().is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

pub(crate) fn federations() -> [String; 1] {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(data.path()).unwrap();
    ledger.found(&IDENTITY, &"site1".parse().unwrap(), "site1:8078").unwrap();
    let (site, key) = ("site2".parse().unwrap(), PublicKey::from_bytes([2; 32]));
    let admit = Claim::Admit { site, key, address: "site2:8078".into() };
    ledger.say(&IDENTITY, Millis(1), admit).unwrap();
    [fs::read_to_string(data.path().join(ledger::FILE)).unwrap()]
}

/// What is in the file of a site's key is a key, or it is said what is wrong.
pub(crate) fn private_key_reads(bytes: &[u8]) {
    thread_local! {
        static DATA: tempfile::TempDir = tempfile::tempdir().unwrap();
    }
    DATA.with(|data| {
        let file = data.path().join("site.key");
        fs::write(&file, bytes).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        match Identity::open(data.path()) {
            Ok(identity) => drop(identity.sign(b"anything")),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

pub(crate) fn private_keys() -> [Vec<u8>; 1] {
    let data = tempfile::tempdir().unwrap();
    Identity::open(data.path()).unwrap();
    [fs::read(data.path().join("site.key")).unwrap()]
}

/// However frames are cut up, the same come out, and each is written as it was read.
pub(crate) fn frames_read(bytes: &[u8]) {
    for make in [Frames::of_messages, Frames::of_control] {
        let read = |size: usize| {
            let (mut frames, mut found) = (make(), Vec::new());
            for piece in bytes.chunks(size) {
                frames.push(piece);
                loop {
                    match frames.take() {
                        Ok(Some(frame)) => found.push(frame),
                        Ok(None) => break,
                        Err(error) => return (found, Some(error.to_string())),
                    }
                }
            }
            (found, frames.end().err().map(|error| error.to_string()))
        };
        let whole = read(bytes.len().max(1));
        assert_eq!(read(1 + bytes.len() % 13), whole);
        for frame in whole.0 {
            let (mut written, mut frames) = (BytesMut::new(), make());
            frame.write(&mut written);
            frames.push(&written);
            assert_eq!(frames.take().ok().flatten(), Some(frame));
        }
    }
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let hello = Hello { site: "site1".parse().unwrap(), life: 7, wall: 1_700_000_000_000 };
    let frames = [
        Frame::Hello(hello),
        Frame::Ready,
        Frame::Up,
        Frame::Ping { nonce: 1, digest: Some(2) },
        Frame::Pong { nonce: 1, wall: 3 },
        Frame::Close { code: Code::Stopping, text: "it is stopping".into() },
        Frame::Message(b"anything"[..].into()),
    ];
    let written = frames.map(|frame| {
        let mut written = BytesMut::new();
        frame.write(&mut written);
        written.to_vec()
    });
    [written.concat()].into_iter().chain(written).collect()
}

/// What asks for something, and what another agent answers, is read as what it is written as.
pub(crate) fn request_reads(text: &str) {
    if let Ok(submit) = serde_json::from_str::<Submit>(text) {
        let again = serde_json::to_string(&submit).unwrap();
        assert_eq!(serde_json::from_str::<Submit>(&again).unwrap(), submit);
    }
    if let Ok(answer) = serde_json::from_str::<Answer>(text) {
        let again = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&again).unwrap(), answer);
    }
    let _ = serde_json::from_str::<Show>(text);
    let _ = serde_json::from_str::<Problem>(text);
}

pub(crate) const REQUESTS: [&str; 4] = [
    r#"{"command": "echo {id}", "sites": "site1 & site2", "type": "set", "wait": 3, "force": true}"#,
    r#"{"command": "cat {f}", "files": [{"name": "f", "content": "00ff", "length": 2}], "config": {"ResolutionMatrix": []}, "author": "ada", "key": "k"}"#,
    r#"{"event": "accepted", "operation": "site1:7", "sites": ["site1"]}"#,
    r#"{"event": "reply", "site": "site1", "status": "OK", "took_ms": 7, "output": "hi"}"#,
];

/// However a form is cut up, the same parts come out.
pub(crate) fn form_reads(bytes: &[u8]) {
    let whole = parts(bytes, bytes.len().max(1));
    let cut = parts(bytes, 1 + bytes.len() % 31);
    if let (Some(whole), Some(cut)) = (whole, cut) {
        assert_eq!(whole, cut);
    }
}

/// The names of the parts, the names of the files, and what is in them; none if it breaks off.
fn parts(bytes: &[u8], size: usize) -> Option<Vec<(String, String, Vec<u8>)>> {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().build().unwrap();
    }
    let pieces: Vec<_> =
        bytes.chunks(size).map(|piece| Ok::<_, std::convert::Infallible>(piece.to_vec())).collect();
    let body = Body::from_stream(futures_util::stream::iter(pieces));
    let request = Request::post("/").header("content-type", "multipart/form-data; boundary=X");
    let request = request.body(body).unwrap();
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let mut parts = Parts::from_request(request, &()).await.ok()?;
            let mut found = Vec::new();
            while let Some(mut part) = parts.next().await.ok()? {
                let (name, file) = (part.name().to_owned(), part.file_name().to_owned());
                let mut content = Vec::new();
                while let Some(piece) = part.chunk().await.ok()? {
                    content.extend_from_slice(&piece);
                }
                found.push((name, file, content));
            }
            Some(found)
        })
    })
}

pub(crate) const FORMS: [&str; 2] = [
    "--X\r\nContent-Disposition: form-data; name=\"command\"\r\n\r\necho {id}\r\n--X\r\nContent-Disposition: form-data; name=\"sites\"\r\n\r\nsite1\r\n--X--\r\n",
    "--X\r\nContent-Disposition: form-data; name=\"f\"; filename=\"../f\"\r\nContent-Type: text/plain\r\n\r\na\r\n--b\r\n\r\n--X--\r\n",
];

/// A configuration makes sense, or it is said what is wrong.
pub(crate) fn settings_read(text: &str) {
    match Config::from_toml(text, Path::new("/is/not/there")) {
        Ok(config) => assert_eq!(config.check(), Ok(())),
        Err(problem) => assert!(!problem.is_empty()),
    }
}

pub(crate) const SETTINGS: [&str; 3] = [
    "site = 'site1'\ndata = 'd'\n[listen]\napi = '127.0.0.1:8079'\n[api]\nheaders = '1s'\nheader_bytes = 10000\n[runs]\nparallel = 3\ntimeout = '1m30s'\n[audit]\nreads = true\nbytes = 100000\nage = '24h'\nkeep = 3\n[limits]\nrate = 10\nburst = 20\n",
    "site = 'site1'\n[[service]]\nname = 'image'\nlisten = '0.0.0.0:9292'\naddress = '127.0.0.1:1'\nheaders = { x-auth-token = 'x' }\n[service.ids]\npointers = ['/id']\n[mesh]\nlinger = '1m'\n",
    "site = 'site1'\n[[hook]]\nname = 'web'\nurl = 'http://h/x'\nsecret = 's'\n[[hook]]\nname = 'm'\n[hook.mail]\nserver = 'h:25'\nfrom = 'a@b.c'\nto = ['d@e.f']\n[hooks]\ntakeover = '1m'\n",
];

/// Lines that are none break the chain; and whatever an event says, its line can be read and goes on
/// with the chain.
pub(crate) fn audit_reads(bytes: &[u8]) {
    let _ = chain::check(bytes.split(|byte| *byte == b'\n'));
    if let Ok(entry) = serde_json::from_slice::<Entry>(bytes) {
        let again = serde_json::to_vec(&entry).unwrap();
        assert_eq!(serde_json::from_slice::<Entry>(&again).unwrap(), entry);
    }
    if let Ok(head) = serde_json::from_slice::<Head>(bytes) {
        assert_eq!(head.last(&IDENTITY.public()), None, "nobody has signed it");
    }
    let text = String::from_utf8_lossy(bytes).into_owned();
    let event = Event { author: Some(text.clone()), path: Some(text), ..Event::of(What::Request) };
    let mut last = Last::default();
    let lines = [event.clone(), event].map(|event| last.follow("now".to_owned(), event));
    let lines: Vec<&[u8]> = lines.iter().map(|line| &line[..line.len() - 1]).collect();
    assert!(lines.iter().all(|line| line.len() < chain::LONGEST && !line.contains(&b'\n')));
    assert_eq!(chain::check(lines), Ok(Some(last)));
}

pub(crate) fn audit_lines() -> Vec<Vec<u8>> {
    let mut last = Last::default();
    let asked = Event {
        author: Some("ada".into()),
        status: Some(200),
        more: Some(3),
        ..Event::of(What::Request)
    };
    let events =
        [Event::of(What::Started), asked, Event::link("10.0.0.1:1", "its key is not known")];
    let lines = events.map(|event| last.follow("2026-01-31T12:00:00Z".to_owned(), event));
    let other = Identity::from_seed(&[8; 32]).unwrap();
    let head = Head::sign(1, last, &other.public(), |bytes| other.sign(bytes));
    let whole = lines.concat();
    [whole, serde_json::to_vec(&head).unwrap()].into_iter().chain(lines).collect()
}

/// A scope that comes with a request: by its path on the first line, and by headers on the others.
pub(crate) fn scoped_request_reads(text: &str) {
    let mut lines = text.lines();
    let target = lines.next().unwrap_or_default();
    let Ok(request) = hyper::Request::get(target).body(()) else { return };
    let (mut parts, ()) = request.into_parts();
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        let name = HeaderName::from_bytes(name.as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) else { continue };
        parts.headers.append(name, value);
    }
    match Reader::default().take(&mut parts) {
        Ok(_) => assert!(!parts.headers.contains_key("x-scope"), "it is taken off"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) const SCOPED: [&str; 4] = [
    "/v2/images?x=1\nx-scope: image: site1 & site2",
    "/~image:site1&site2/v2/images",
    "/\nbaggage: a=b, scope=image%3Asite1;p=q\nx-scope: {\"image\": \"site1\"}",
    "/%7Eimage%3Asite1/\nx-scope: image: site1\nx-scope: image: site2",
];

/// What a reply says that an application has answered.
pub(crate) fn reply_reads(text: &str) {
    if let Some(answer) = answer::Answer::of_reply(text) {
        assert!(answer.body.len() <= text.len());
    }
    let _ = answer::Answer::read(text.as_bytes());
}

pub(crate) const REPLIES: [&str; 2] = [
    "HTTP/1.1 201 Created\nlocation: /v2/images/7\ncontent-length: 2\n\n{}",
    "HTTP/2 500 \n\nbody\n",
];

/// A token that can be read is written as the same.
pub(crate) fn token_reads(text: &str) {
    match text.parse::<Token>() {
        Ok(token) => assert_eq!(token.reveal(), text.trim()),
        Err(error) => assert!(!error.to_string().contains(text) || text.len() < 20),
    }
}

pub(crate) fn tokens() -> [String; 1] {
    [Token::make().unwrap().reveal()]
}

/// A pattern on the first line, and a text on the second: what is literally the same always matches.
pub(crate) fn pattern_matches(text: &str) {
    let (pattern, text) = text.split_once('\n').unwrap_or((text, text));
    Pattern::new(pattern).matches(text);
    assert!(Pattern::new("*").matches(text));
    assert!(text.contains('*') || Pattern::new(text).matches(text));
}

/// A length of time is written as it was read.
pub(crate) fn duration_reads(text: &str) {
    match duration::parse(text) {
        Ok(read) => assert_eq!(duration::parse(&duration::print(read).to_string()), Ok(read)),
        Err(error) => assert!(text.get(error.at.clone()).is_some(), "{error}"),
    }
}
