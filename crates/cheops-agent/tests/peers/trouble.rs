//! Lines that are cut, and peers that say nonsense, say nothing, or don't listen.

use std::{
    fmt::{self, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use cheops_agent::{
    peers::State,
    wire::{
        MAX_LENGTH,
        frame::{Frame, write_message},
    },
};
use cheops_core::replica::{Message, Stretch};
use tokio::{io::AsyncWriteExt as _, net::TcpListener};

use super::{
    fake::{Fake, Stream},
    proxy::Line,
    site::{Plan, RESOURCE, Site, address, hold, linked, name, pair, until},
};

const TWO: &[&str] = &["site1", "site2"];

/// A site that knows `a`, and `a` as we play it.
async fn with_fake(plan: impl FnOnce(&mut Plan)) -> (Site, Fake, Stream) {
    let mut site = Plan::new("site1");
    site.knows(&name("a"), address());
    plan(&mut site);
    let site = site.start().await;
    let (fake, records) = Fake::link(&site, "a").await;
    until("the link is up", || async { site.reaches("a") }).await;
    (site, fake, records)
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_ends_the_link_with_a_reason_and_harms_nobody() {
    let frame = |encoded: &[u8]| {
        let mut bytes = BytesMut::new();
        write_message(encoded, &mut bytes);
        bytes.to_vec()
    };
    let too_long = u32::try_from(MAX_LENGTH + 2).unwrap().to_be_bytes().to_vec();
    let table: [(bool, Vec<u8>, &str); 8] = [
        (false, too_long, "is too long; the limit is"),
        (false, u32::MAX.to_be_bytes().to_vec(), "is too long; the limit is"),
        (false, vec![0, 0, 0, 0], "a frame has no content"),
        (false, vec![0, 0, 0, 1, 99], "a frame of sort 99 is unknown"),
        (false, frame(&[1, 77, 3]), "at byte"),
        (false, frame(&[9, 0]), "format 9 is unknown"),
        (true, vec![0, 0, 0, 1, 3], "a link that was up already"),
        (true, vec![0, 1, 0, 0], "is too long; the limit is 2048"),
    ];
    for (n, (on_control, bytes, reason)) in table.into_iter().enumerate() {
        let (site, mut fake, records) = with_fake(|_| {}).await;
        if on_control {
            fake.control.send_bytes(bytes);
        } else {
            records.send_bytes(bytes);
        }
        let said = fake.control.reason().await;
        assert!(said.contains(reason), "{n}: {said}");
        until("it is noticed", || async { site.peer("a").state == State::Unreachable }).await;
        assert_eq!(site.peer("a").faults, 1);
        // It goes on as if nothing had been.
        let (fake, _records) = Fake::link(&site, "a").await;
        until("the link is up again", || async { site.reaches("a") }).await;
        drop(fake);
    }
}

/// The reader of the stream that carries the reason is the one that fails: it must not take the
/// connection down before the reason is out. Whether it does is a matter of luck, so often.
#[tokio::test(flavor = "multi_thread")]
async fn nonsense_where_the_reason_is_told_does_not_swallow_the_reason() {
    let mut site = Plan::new("site1");
    site.knows(&name("a"), address());
    let site = site.start().await;
    for n in 0..50 {
        let (mut fake, _records) = Fake::link(&site, "a").await;
        fake.control.send_bytes(vec![0, 1, 0, 0]);
        let said = fake.control.reason().await;
        assert!(said.contains("is too long; the limit is 2048"), "{n}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_answers_with_nonsense_is_tried_less_and_less_often() {
    let listener = TcpListener::bind(address()).await.unwrap();
    let mut site = Plan::new("site1");
    site.knows(&name("site2"), listener.local_addr().unwrap());
    let site = site.start().await;
    let mut tries = Vec::new();
    for _ in 0..5 {
        let (mut tcp, _) = listener.accept().await.unwrap();
        tries.push(Instant::now());
        let _ = tcp.write_all(b"220 mail.example.org ESMTP\r\n").await;
    }
    // At least half of 100, 200, 400, 400 ms.
    assert!(tries[4] - tries[0] >= Duration::from_millis(550), "{tries:?}");
    let error = site.peer("site2").error.unwrap();
    assert!(error.contains("does not answer as an agent does"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_takes_a_connection_and_says_nothing_is_given_up_and_delays_nobody() {
    let listener = TcpListener::bind(address()).await.unwrap();
    let [mut one, two] = pair();
    one.config.links.silence = Duration::from_millis(500);
    one.knows(&name("mute"), listener.local_addr().unwrap());
    let (one, two) = (one.start().await, two.start().await);
    until("the others are linked", || async { one.reaches("site2") && two.reaches("site1") }).await;
    one.submit(RESOURCE, TWO, 10).await;
    until("the operation arrives", || async { two.operations().await == 1 }).await;
    until("the reason shows", || async {
        let error = one.peer("mute").error;
        error.is_some_and(|error| error.contains("did not answer within 500ms"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_stops_speaking_is_gone_after_the_silence() {
    let (site, mut fake, _records) =
        with_fake(|plan| plan.config.links.silence = Duration::from_millis(700)).await;
    let start = Instant::now();
    let reason = fake.control.reason().await;
    assert!(reason.contains("`site1` heard nothing for 700ms"), "{reason}");
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    until("it is gone", || async { !site.reaches("a") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_and_never_reads_the_answers_is_cut_off() {
    let (site, fake, _records) =
        with_fake(|plan| plan.config.links.silence = Duration::from_secs(1)).await;
    // More than the windows hold, there and back.
    let mut bytes = BytesMut::new();
    for _ in 0..1_000_000 {
        Frame::Ping { nonce: 1, digest: None }.write(&mut bytes);
    }
    fake.control.send_bytes(bytes.freeze());
    until("it is cut off", || async { !site.reaches("a") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_speaks_and_never_answers_is_cut_off() {
    let (site, mut fake, _records) =
        with_fake(|plan| plan.config.links.silence = Duration::from_millis(300)).await;
    let reason = async {
        loop {
            fake.control.send(&Frame::Ping { nonce: 1, digest: None });
            match fake.control.next().await {
                Some(Frame::Close { text, .. }) => break text,
                Some(_) => {}
                None => panic!("closed without a reason"),
            }
        }
    };
    let reason = tokio::time::timeout(Duration::from_secs(30), reason).await.unwrap();
    assert!(reason.contains("`site1` got no answer for 1s"), "{reason}");
    until("it is gone", || async { !site.reaches("a") }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_of_one_direction_is_a_cut_for_both() {
    for there in [true, false] {
        let [mut one, mut two] = pair();
        // Each dials the other over the same line: what is lost, is lost for both connections.
        let (to_two, to_one) = (Line::to(two.config.peers).await, Line::to(one.config.peers).await);
        one.finds("site2", to_two.address);
        two.finds("site1", to_one.address);
        let silence = Duration::from_secs(1);
        (one.config.links.silence, two.config.links.silence) = (silence, silence);
        let (one, two) = (one.start().await, two.start().await);
        linked(&[&one, &two]).await;

        let start = Instant::now();
        let ways =
            if there { [&to_two.there, &to_one.back] } else { [&to_two.back, &to_one.there] };
        for way in ways {
            way.lose();
        }
        until("both notice", || async { !one.reaches("site2") && !two.reaches("site1") }).await;
        assert!(start.elapsed() < silence * 3, "{:?}", start.elapsed());
        one.submit(RESOURCE, TWO, 10).await;
        // It stays so, whoever dials.
        let deadline = Instant::now() + silence * 2;
        while Instant::now() < deadline {
            assert!(!one.reaches("site2") && !two.reaches("site1"));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for way in ways {
            way.flow();
        }
        until("it heals", || async { two.operations().await == 1 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_costs_no_more_than_its_queue_and_is_healed() {
    const QUEUE: usize = 1 << 20;
    let mut plans = super::site::plans(3);
    let line = Line::to(plans[1].config.peers).await;
    // Only site1 dials site2, so that all goes over the line.
    plans[0].finds("site2", line.address);
    plans[1].finds("site1", address());
    for plan in &mut plans {
        plan.config.links.queue = QUEUE;
        plan.config.links.silence = Duration::from_mins(1);
    }
    let mut sites = Vec::new();
    for plan in plans {
        sites.push(plan.start().await);
    }
    linked(&sites.iter().collect::<Vec<_>>()).await;
    let all = &["site1", "site2", "site3"];
    sites[0].submit(RESOURCE, all, 10).await;
    until("all are there", || async { sites[1].operations().await == 1 }).await;

    line.there.hold();
    let mut most = 0;
    for n in 1..=400 {
        sites[0].submit(RESOURCE, all, 50_000).await;
        most = most.max(sites[0].peer("site2").queue.bytes);
        if n % 100 == 0 {
            let known = async || sites[2].operations().await > n;
            until("the third is not delayed", known).await;
        }
    }
    let peer = sites[0].peer("site2");
    assert!(peer.state == State::Reachable && peer.dropped > 0, "{peer:?}");
    assert!(most <= QUEUE, "{most} bytes waited");

    line.there.flow();
    until("it gets all that it missed", || async { sites[1].operations().await == 401 }).await;
    assert_eq!(sites[0].peer("site2").faults, 0, "without a new link");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_messages_were_dropped_the_node_compares_as_if_the_site_came_up() {
    let (site, fake, mut records) = with_fake(|plan| {
        plan.config.links.queue = 1_000;
        plan.settings.ask_after = plan.settings.compare_every;
    })
    .await;
    fake.answer_pings();
    site.submit(RESOURCE, &["a", "site1"], 10).await;
    // Until the windows of HTTP/2 and of TCP are full, and all that comes is dropped.
    let mut before = None;
    while before != Some(site.came_up("a")) {
        before = Some(site.came_up("a"));
        for _ in 0..200 {
            site.submit(RESOURCE, &["a", "site1"], 20_000).await;
        }
    }
    assert!(site.peer("a").dropped > 0);
    let mut names = cheops_agent::wire::Names::default();
    loop {
        let Some(Frame::Message(bytes)) = records.next().await else { panic!("no message") };
        let message = cheops_agent::wire::decode_message(&bytes, &mut names).unwrap();
        let compares = matches!(&message, Message::Compare(all) if all[0].0 == Stretch::default());
        if compares && Some(site.came_up("a")) > before {
            break;
        }
    }
    assert!(site.reaches("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_busy_holds_messages_back_and_keeps_its_links() {
    let [mut one, mut two] = pair();
    let silence = Duration::from_secs(1);
    (one.config.links.silence, two.config.links.silence) = (silence, silence);
    (one.config.links.queue, two.config.links.queue) = (64 << 20, 64 << 20);
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    one.submit(RESOURCE, TWO, 10).await;
    until("it arrives", || async { two.operations().await == 1 }).await;
    let held = hold(&two.plan.disk);
    // More than the node takes in at a time, and more than the windows hold.
    for _ in 0..8_000 {
        one.submit(RESOURCE, TWO, 2_000).await;
    }
    let deadline = Instant::now() + silence * 3;
    while Instant::now() < deadline {
        assert!(one.reaches("site2") && two.reaches("site1"));
        one.peers.ping(two.name()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(one.peer("site2").queue.messages > 0, "nothing was held back");
    drop(held);
    until("all arrives", || async { two.operations().await == 8_001 }).await;
    assert_eq!(one.peer("site2").faults, 0);
}

/// A log that panics once, when it is told that `trapped` is linked.
struct Trap(AtomicBool);

/// The fields of an event, one after the other.
#[derive(Default)]
struct Words(String);

impl tracing::field::Visit for Words {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Trap {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        let words = words.0;
        let is_it = words.contains("message=linked") && words.contains("site=trapped");
        assert!(!is_it || self.0.swap(true, Ordering::Relaxed), "it is to panic");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_whose_task_panics_ends_and_comes_back() {
    tracing::subscriber::set_global_default(Trap(AtomicBool::new(false))).unwrap();
    let (mut one, mut two) = (Plan::new("site1"), Plan::new("trapped"));
    one.knows(&name("trapped"), two.config.peers);
    two.knows(&name("site1"), one.config.peers);
    let (one, two) = (one.start().await, two.start().await);
    until("the link has ended", || async { one.peer("trapped").faults == 1 }).await;
    linked(&[&one, &two]).await;
    one.submit(RESOURCE, &["site1", "trapped"], 10).await;
    until("it carries messages again", || async { two.operations().await == 1 }).await;
    assert_eq!(one.peer("trapped").faults, 1);
}
