//! Who is let in, and what those who are not are told.

use std::time::{Duration, Instant};

use cheops_agent::{peers::State, trust::Ledger, wire::frame::Frame};
use cheops_core::{time::Millis, trust::Claim};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{
    fake::{Fake, connect, hello, wall},
    site::{Plan, identity, linked, name, pair, until},
};

/// Waits until a site shows why it has no link with another.
pub(crate) async fn shows(site: &super::site::Site, other: &str, reason: &str) {
    let start = Instant::now();
    loop {
        let peer = site.peer(other);
        assert_ne!(peer.state, State::Reachable);
        match peer.error {
            Some(error) if error.contains(reason) => return,
            error if start.elapsed() > Duration::from_secs(30) => {
                panic!("{error:?} instead of {reason:?}")
            }
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_is_not_known_is_told_to_be_added() {
    let one = Plan::new("site1").start().await;
    let mut four = Plan::new("site4");
    four.knows(&name("site1"), one.peers.address());
    let four = four.start().await;
    let reason = format!(
        "`site1` does not know the key of `site4`: let it join, or put it into the configuration of `site1`, key = \"{}\"",
        identity("site4").public()
    );
    shows(&four, "site1", &reason).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_has_joined_is_told_to_join_again_where_its_key_is_not_known() {
    let one = Plan::new("site1").start().await;
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(data.path()).unwrap();
    let first = identity("site1");
    ledger.found(&first, &name("site1"), &one.peers.address().to_string()).unwrap();
    ledger.say(&first, Millis(1), admits("site4", "127.0.0.1:1")).unwrap();
    let mut four = Plan::new("site4");
    four.config.data = data.path().to_owned();
    let four = four.start().await;
    shows(&four, "site1", "or `site4` was removed from the federation").await;
    let error = four.peer("site1").error.unwrap();
    assert!(error.contains("`cheops join TOKEN` at `site4`"), "{error}");
    assert!(!error.contains("configuration"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_has_just_joined_may_hear_of_it_before_it_is_dialled() {
    let data = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(data.path()).unwrap();
    let first = identity("site1");
    ledger.found(&first, &name("site1"), "127.0.0.1:1").unwrap();
    let mut one = Plan::new("site1");
    one.config.data = data.path().to_owned();
    let one = one.start().await;
    let newcomer = TcpListener::bind(super::site::address()).await.unwrap();
    let address = newcomer.local_addr().unwrap().to_string();
    let told = Instant::now();
    one.peers.members().ledger().say(&first, Millis(1), admits("site2", &address)).unwrap();
    newcomer.accept().await.unwrap();
    assert!(told.elapsed() >= Duration::from_millis(50), "{:?}", told.elapsed());
}

fn admits(site: &str, address: &str) -> Claim {
    Claim::Admit { site: name(site), key: identity(site).public(), address: address.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_belongs_to_another_site_is_named() {
    let [one, two] = pair();
    let two = two.start().await;
    let mut one = one;
    // The address of site2, under another name as well.
    one.knows(&name("site9"), two.peers.address());
    let one = one.start().await;
    shows(&one, "site9", "`site1` looked for `site9` at 127.").await;
    shows(&one, "site9", "found `site2`: correct the address in the configuration of `site1`")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_with_another_key_is_not_the_one_that_was_meant() {
    let [mut one, two] = pair();
    let two = two.start().await;
    one.config.sites.clear();
    one.knows(&name("site9"), two.peers.address());
    let one = one.start().await;
    let keys = ["site9", "site2"].map(|site| identity(site).public());
    let reason = format!("has not the key of `site9`, {}, but {}", keys[0], keys[1]);
    shows(&one, "site9", &reason).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_in_under_the_name_of_another() {
    for other in ["site1", "site3", "site4"] {
        let mut one = Plan::new("site1");
        for known in ["site2", "site3"] {
            one.knows(&name(known), super::site::address());
        }
        let one = one.start().await;
        let mut fake = Fake::dial(&one, "site2").await;
        fake.control.send(&hello(other, wall()));
        let reason = fake.control.reason().await;
        let expected = format!("knows as `site2` by its key calls itself `{other}`");
        assert!(reason.contains(&expected), "{reason}");
        assert!(!one.reaches("site2") && !one.reaches("site3"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_no_key_that_is_known_is_not_heard() {
    let mut one = Plan::new("site1");
    one.knows(&name("site2"), super::site::address());
    let one = one.start().await;
    // The other end of TLS 1.3 is done before it hears what became of its key.
    let mut stranger = connect(&one, "stranger").await;
    let mut said = Vec::new();
    let refusal = stranger.read_to_end(&mut said).await.unwrap_err().to_string();
    assert!(refusal.contains("CertificateUnknown"), "{refusal}");
    assert_eq!(said, b"", "nothing is said to strangers");
    let mut plain = TcpStream::connect(one.peers.address()).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let _ = plain.read_to_end(&mut said).await;
    assert!(!said.windows(4).any(|said| said == b"HTTP"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_leads_back_is_noticed() {
    let mut one = Plan::new("site1");
    let own = one.config.peers;
    one.knows(&name("site2"), own);
    let one = one.start().await;
    shows(&one, "site2", "leads back to `site1` itself").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_is_refused_in_words() {
    let mut one = Plan::new("site1");
    one.knows(&name("site2"), super::site::address());
    let one = one.start().await;
    let mut fake = Fake::dial(&one, "site2").await;
    fake.control.send_bytes(&[0, 0, 0, 4, 1, 9, 255, 255][..]);
    let reason = fake.control.reason().await;
    assert_eq!(
        reason,
        "an agent that speaks version 9 of the protocol for links met `site1`, which speaks version 2: update the older one"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_says_nothing_is_sent_away() {
    let mut one = Plan::new("site1");
    one.config.links.silence = Duration::from_millis(300);
    one.knows(&name("site2"), super::site::address());
    let one = one.start().await;
    let mut fake = Fake::dial(&one, "site2").await;
    assert!(fake.control.reason().await.contains("`site1` waited for a greeting in vain"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_off_is_noticed_and_nothing_breaks() {
    let mut site = Plan::new("site1");
    site.knows(&name("a"), super::site::address());
    let site = site.start().await;
    let (mut fake, _records) = Fake::link(&site, "a").await;
    for hour in [3_600_000, 0] {
        let Some(Frame::Ping { nonce, .. }) = fake.control.next().await else { panic!("a ping") };
        fake.control.send(&Frame::Pong { nonce, wall: wall() + hour });
        until("the clocks were compared", || async {
            site.peer("a").clock_offset.is_some() && site.peer("a").clock_is_off() == (hour > 0)
        })
        .await;
        assert!(site.reaches("a"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_decides_keeps_a_link_that_holds_and_takes_one_of_a_new_life() {
    let mut site = Plan::new("site1");
    site.knows(&name("site2"), super::site::address());
    let site = site.start().await;
    let first = hello("site2", wall());
    let mut one = Fake::dial(&site, "site2").await;
    one.control.send(&first);
    assert!(matches!(one.control.next().await, Some(Frame::Hello(_))));
    one.control.send(&Frame::Ready);
    assert_eq!(one.control.next().await, Some(Frame::Up));
    // The same process once more: both dialled.
    let mut two = Fake::dial(&site, "site2").await;
    two.control.send(&first);
    two.control.send(&Frame::Ready);
    assert!(two.control.reason().await.contains("have a link already"));
    // A new process: the old link can't be alive.
    let mut three = Fake::dial(&site, "site2").await;
    three.control.send(&hello("site2", wall()));
    assert!(matches!(three.control.next().await, Some(Frame::Hello(_))));
    assert!(site.reaches("site2"));
    three.control.send(&Frame::Ready);
    assert_eq!(three.control.next().await, Some(Frame::Up));
    assert!(one.control.reason().await.contains("another connection took its place"));
    assert!(site.reaches("site2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_needs_only_one_that_can_dial() {
    let [mut one, two] = pair();
    // A port that nobody listens on: site2 is out of reach for whoever dials it.
    let closed = super::site::address();
    one.finds("site2", closed);
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
}
