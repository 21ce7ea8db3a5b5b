//! What a link costs: messages of one 500-byte record each from one agent to another, against a
//! plain TCP stream of the same bytes; and how long one message takes there and back.
//!
//! Both agents and both ends of the plain stream are in this process, on the loopback interface.
//! Rounds are interleaved and the median is taken, since machines are noisy. The time of the link
//! includes all that it does: encoding, framing, HTTP/2, decoding, and handing over to the node.
//! `idle N`: what an agent uses that has nothing to do but to be linked to N others. `cargo bench -p cheops-agent --bench peers [-- idle 100]`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench prints, and fails by panic"
)]
#![allow(clippy::cast_precision_loss, reason = "these are measurements")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::Router;
use bytes::BytesMut;
use cheops_agent::{
    config::Config,
    engine::{Engine, EngineError, Reader, Seq},
    node::{self, Clock, Hands},
    peers::{Peers, State},
    problems::Noted,
    trust::{Identity, Ledger, Members, Sealer},
    wire::{self, Names, frame::Frames},
};
use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    operation::{Action, Operation},
    replica::{Durable, Effect, Event, Message, Record, Replica, Sent, Settings, Stretch},
    time::{Millis, Timestamp},
    trust::Seal,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const WEIGHT: usize = 500;
const MESSAGES: usize = 100_000;
const ROUNDS: usize = 7;
const CHUNK: usize = 32 << 10;

/// A disk that keeps nothing: what is measured is the link.
#[derive(Clone)]
struct NoDisk;

impl Engine for NoDisk {
    fn append(&mut self, _: &[Durable]) -> Result<Seq, EngineError> {
        Ok(1)
    }

    fn recover(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(NoDisk)
    }
}

impl Reader for NoDisk {
    fn after(&self, _: Seq, _: usize) -> Result<Vec<(Seq, Durable)>, EngineError> {
        Ok(Vec::new())
    }

    fn seals(
        &self,
        _: &ResourceId,
        _: &BTreeSet<OpId>,
    ) -> Result<BTreeMap<OpId, Seal>, EngineError> {
        Ok(BTreeMap::new())
    }

    fn last(&self) -> Seq {
        0
    }

    fn free(&self) -> std::io::Result<u64> {
        Ok(u64::MAX)
    }
}

struct Sender(Peers);

impl Hands for Sender {
    fn send(&mut self, to: &SiteId, message: Message) {
        self.0.send(to, message);
    }

    fn run(&mut self, _: Effect) {}

    fn tell(&mut self, _: &Event) {}
}

fn name(n: usize) -> SiteId {
    format!("site{n:04}").parse().unwrap()
}

fn identity(n: usize) -> Identity {
    Identity::from_seed(blake3::hash(&n.to_be_bytes()).as_bytes()).unwrap()
}

fn address(n: usize) -> SocketAddr {
    let n = u16::try_from(n).unwrap();
    // The process that measures, also for the one that it has started.
    let process = std::env::args().nth(3).and_then(|id| id.parse().ok());
    let [_, _, _, low] = process.unwrap_or_else(std::process::id).to_be_bytes();
    SocketAddr::from(([127, 77, low.max(1), 1], 21_000 + n))
}

async fn start(n: usize, others: impl Iterator<Item = usize>) -> Peers {
    let mut config = Config::new(name(n), "/nowhere");
    config.peers = address(n);
    config.links.queue = 256 << 20;
    for other in others {
        let key = identity(other).public();
        config.add_site(name(other), address(other).to_string(), key).unwrap();
    }
    let (handle, inbox) = node::channel(Clock::default());
    let ledger = Ledger::open(&config.data).unwrap();
    let members = Members::new(&config, identity(n), ledger);
    let peers =
        Peers::bind(&config, members.clone(), None, Noted::default(), handle).await.unwrap();
    let replica = Replica::new(name(n), Settings::default());
    let hands = Sender(peers.clone());
    let sealer = Sealer::of(&members);
    let node = node::start(inbox, replica, Box::new(NoDisk), Box::new(hands), sealer, 0);
    std::mem::forget(node.unwrap());
    peers.serve(Router::new());
    peers
}

async fn linked(peers: &Peers) {
    while !peers.view().iter().all(|peer| peer.state == State::Reachable) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["idle", count, ..] => runtime.block_on(idle(count.parse().unwrap())),
        ["others", count, ..] => runtime.block_on(others(count.parse().unwrap())),
        _ => runtime.block_on(compare()),
    }
}

async fn compare() {
    let (one, two) = (start(1, 2..3).await, start(2, 1..2).await);
    linked(&one).await;
    linked(&two).await;
    let message = message();
    let mut bytes = BytesMut::new();
    wire::frame::write_message(&wire::encode_message(&message).unwrap(), &mut bytes);

    let (mut link, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        link.push(over_link(&one, &two, &message).await);
        plain.push(over_tcp(&bytes).await);
    }
    let (link, plain) = (median(link), median(plain));
    println!("{:<40} {:>12} {:>10}", "messages of 500 bytes, gathered", "messages/s", "MB/s");
    for (what, rate) in [("over a link", link), ("over plain TCP, decoded", plain)] {
        println!("{what:<40} {rate:>12.0} {:>10.0}", rate * bytes.len() as f64 / 1e6);
    }
    println!("a link is x{:.2} as fast", link / plain);

    let (mut pings, mut plain) = (Vec::new(), Vec::new());
    let mut echo = Echo::new().await;
    for _ in 0..2_000 {
        pings.push(one.ping(&name(2)).await.unwrap().as_secs_f64() * 1e6);
        plain.push(echo.once().await);
    }
    let (pings, plain) = (median(pings), median(plain));
    let mut answers = Vec::new();
    for _ in 0..2_000 {
        answers.push(message_and_answer(&one).await);
    }
    println!("a ping and its answer: {pings:.0} us; 20 bytes over plain TCP: {plain:.0} us");
    println!("a message and its answer, through both nodes: {:.0} us", median(answers));
}

/// A digest that is not the other's, until its answer is here.
async fn message_and_answer(one: &Peers) -> f64 {
    let received = || one.view()[0].received.messages;
    let before = received();
    let start = Instant::now();
    one.send(&name(2), Message::Compare(vec![(Stretch::default(), 1)]));
    while received() == before {
        tokio::task::yield_now().await;
    }
    start.elapsed().as_secs_f64() * 1e6
}

/// Messages a second from one agent to another. They are about a resource that the other does not
/// know and are dropped there by the replica, after the link has done all of its work.
async fn over_link(one: &Peers, two: &Peers, message: &Message) -> f64 {
    let received = || two.view()[0].received.messages;
    let goal = received() + MESSAGES as u64;
    let start = Instant::now();
    let (sender, message) = (one.clone(), message.clone());
    let sending = std::thread::spawn(move || {
        let to = name(2);
        for _ in 0..MESSAGES {
            sender.send(&to, message.clone());
        }
    });
    while received() < goal {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    let rate = MESSAGES as f64 / start.elapsed().as_secs_f64();
    sending.join().unwrap();
    rate
}

/// The same bytes over TCP, in chunks of the same size, and decoded.
async fn over_tcp(frame: &[u8]) -> f64 {
    let (mut out, mut back) = connection().await;
    let frame = frame.to_vec();
    let start = Instant::now();
    let writing = tokio::spawn(async move {
        let chunk = frame.repeat(CHUNK / frame.len());
        let mut left = MESSAGES * frame.len();
        while left > 0 {
            let count = chunk.len().min(left);
            out.write_all(&chunk[..count]).await.unwrap();
            left -= count;
        }
        out
    });
    let mut frames = Frames::of_messages();
    let (mut names, mut buffer) = (Names::default(), vec![0; CHUNK]);
    let mut read = 0;
    while read < MESSAGES {
        let count = back.read(&mut buffer).await.unwrap();
        frames.push(&buffer[..count]);
        while let Some(frame) = frames.take().unwrap() {
            let wire::frame::Frame::Message(bytes) = frame else { unreachable!() };
            wire::decode_message(&bytes, &mut names).unwrap();
            read += 1;
        }
    }
    let rate = MESSAGES as f64 / start.elapsed().as_secs_f64();
    drop(writing.await.unwrap());
    rate
}

async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    dialled.set_nodelay(true).unwrap();
    accepted.set_nodelay(true).unwrap();
    (dialled, accepted)
}

/// A plain stream that sends back what it gets.
struct Echo(TcpStream);

impl Echo {
    async fn new() -> Self {
        let (near, mut far) = connection().await;
        tokio::spawn(async move {
            let mut bytes = [0; 20];
            while far.read_exact(&mut bytes).await.is_ok() {
                far.write_all(&bytes).await.unwrap();
            }
        });
        Self(near)
    }

    async fn once(&mut self) -> f64 {
        let start = Instant::now();
        let mut bytes = [0; 20];
        self.0.write_all(&bytes).await.unwrap();
        self.0.read_exact(&mut bytes).await.unwrap();
        start.elapsed().as_secs_f64() * 1e6
    }
}

/// One agent in the middle of many, which are in a process of their own.
async fn idle(others: usize) {
    let middle = start(0, 1..=others).await;
    let mut rest = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["others", &others.to_string(), &std::process::id().to_string()])
        .spawn()
        .unwrap();
    linked(&middle).await;
    // Whatever came of starting is over.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let received = || middle.view().iter().map(|peer| peer.received.bytes).sum::<u64>();
    let (start, before, received_before) = (Instant::now(), used(), received());
    tokio::time::sleep(Duration::from_secs(30)).await;
    let seconds = start.elapsed().as_secs_f64();
    let share = used().saturating_sub(before).as_secs_f64() / seconds;
    let rate = (received() - received_before) as f64 / seconds;
    println!("{others} links without traffic: {:.2} % of a core", share * 100.0);
    println!("received: {rate:.0} bytes/s");
    rest.kill().unwrap();
    rest.wait().unwrap();
}

/// The many.
async fn others(count: usize) {
    let mut all = Vec::new();
    for n in 1..=count {
        all.push(start(n, 0..1).await);
    }
    std::future::pending::<()>().await;
}

/// The processor time that this process has used.
fn used() -> Duration {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// A message with one record of 500 bytes.
fn message() -> Message {
    let resource: ResourceId = "counter-of-visitors".parse().unwrap();
    let id = |number| OpId { site: name(1), number };
    let operation = |line: &str| Operation {
        id: id(10_000),
        resource: resource.clone(),
        kind: "inc".parse().unwrap(),
        author: "operator".parse().unwrap(),
        at: Timestamp::at(Millis(1_800_000_000_000)),
        parents: [id(9_999)].into(),
        action: Action::command(line),
        reset: false,
        keep_going: false,
        key: None,
        declares: None,
    };
    let line = "x".repeat(WEIGHT - operation("").weight());
    let mut sealed = [Durable::Record(Record::Operation(Arc::new(operation(&line))), None)];
    Sealer::new(Arc::new(identity(1)), name(1)).seal(&mut sealed);
    let [Durable::Record(record, seal)] = sealed else { panic!("not a record") };
    Message::Records {
        resource: resource.clone(),
        records: vec![Sent { after: 9_999, record, seal }],
        more: false,
    }
}
