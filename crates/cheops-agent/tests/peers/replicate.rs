//! What one site records, the others come to know.

use std::time::Duration;

use cheops_agent::peers::{CallError, State};

use super::site::{RESOURCE, Site, linked, name, pair, plans, until};

const MULTI: &[&str] = &["site1", "site2", "site3"];
const TWO: &[&str] = &["site1", "site2"];

async fn knows(site: &Site, operations: usize) {
    until("all operations arrive", || async { site.operations().await >= operations }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sites_share_what_they_record() {
    let [one, two] = pair();
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    one.submit(RESOURCE, TWO, 10).await;
    knows(&two, 1).await;
    two.submit(RESOURCE, TWO, 10).await;
    knows(&one, 2).await;
    until("the two agree", || async { one.digest("site2").await == two.digest("site1").await })
        .await;
    for (site, other) in [(&one, "site2"), (&two, "site1")] {
        until("a round trip and no lag", || async {
            let peer = site.peer(other);
            peer.round_trip.is_some() && peer.lag == Some(Duration::ZERO)
        })
        .await;
        let peer = site.peer(other);
        assert!(peer.last_seen.unwrap().elapsed().unwrap() < Duration::from_secs(4));
        assert!(peer.sent.messages > 0 && peer.received.messages > 0, "{peer:?}");
        assert!(peer.sent.bytes > 0 && peer.received.bytes > 0, "{peer:?}");
        assert_eq!((peer.error, peer.dropped, peer.faults), (None, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_sites_share_what_they_record() {
    let mut sites = Vec::new();
    for plan in plans(3) {
        sites.push(plan.start().await);
    }
    linked(&sites.iter().collect::<Vec<_>>()).await;
    for n in 0..30 {
        sites[n % 3].submit(&format!("thing{}", n % 5), MULTI, 100).await;
    }
    for site in &sites {
        knows(site, 30).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_that_starts_again_is_found_and_gets_what_it_missed() {
    let [one, two] = pair();
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    one.submit(RESOURCE, TWO, 10).await;
    knows(&two, 1).await;

    let two = two.stop().await;
    until("its end is noticed", || async { !one.reaches("site2") }).await;
    for _ in 0..10 {
        one.submit(RESOURCE, TWO, 10).await;
    }
    until("the reason shows", || async {
        one.peer("site2").error.is_some_and(|error| error.contains("can't be reached at 127."))
    })
    .await;

    let two = two.start().await;
    linked(&[&one, &two]).await;
    knows(&two, 11).await;
    assert_eq!(one.peer("site2").error, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_link_is_a_cut_that_heals_when_it_is_resumed() {
    let [one, two] = pair();
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    one.submit(RESOURCE, TWO, 10).await;
    knows(&two, 1).await;
    // Either end may pause.
    for (paused, other) in [(&one, &two), (&two, &one)] {
        paused.peers.pause(Some(other.name()), None).unwrap();
        assert_eq!(paused.peer(other.name().as_str()).state, State::Paused);
        assert_eq!(
            paused.peers.ping(other.name()).await,
            Err(CallError::Paused(other.name().clone()))
        );
        let reason = format!("`{}` has paused its link with `{}`", paused.name(), other.name());
        until("the other end knows why", || async {
            let peer = other.peer(paused.name().as_str());
            peer.state == State::Unreachable
                && peer.error.is_some_and(|error| error.contains(&reason))
        })
        .await;
        let known = other.operations().await;
        paused.submit(RESOURCE, TWO, 10).await;
        other.submit(RESOURCE, TWO, 10).await;
        // Several attempts to dial are refused meanwhile, and none looks like a link.
        let came_up = other.came_up(paused.name().as_str());
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(other.came_up(paused.name().as_str()), came_up);
        assert_eq!(other.operations().await, known + 1);
        assert_eq!(paused.peer(other.name().as_str()).state, State::Paused);
        paused.peers.resume(None).unwrap();
        linked(&[paused, other]).await;
        knows(paused, known + 2).await;
        knows(other, known + 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_ends_by_itself_and_not_before_its_time() {
    let [one, two] = pair();
    let (one, two) = (one.start().await, two.start().await);
    linked(&[&one, &two]).await;
    let (first, second) = (Duration::from_millis(300), Duration::from_millis(900));
    let start = std::time::Instant::now();
    one.peers.pause(None, Some(first)).unwrap();
    // A second pause counts from now; the end of the first does not end it.
    one.peers.pause(None, Some(second)).unwrap();
    linked(&[&one, &two]).await;
    assert!(start.elapsed() >= second, "{:?}", start.elapsed());
    let nobody = name("nobody");
    assert_eq!(one.peers.pause(Some(&nobody), None), Err(CallError::Unknown(nobody)));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_dial_at_the_same_time_keep_one_link() {
    for round in 0..40 {
        let [mut one, mut two] = pair();
        // Nothing but a link that comes up makes the two compare.
        for plan in [&mut one, &mut two] {
            plan.settings.ask_after = plan.settings.compare_every;
        }
        if round > 0 {
            // They have something in common from the start, so that each time that one sees the
            // other come up leaves a trace.
            let seed = one.clone().start().await;
            seed.submit(RESOURCE, TWO, 1).await;
            let written = seed.stop().await.disk;
            one.disk = written.clone();
            two.disk = written.copy();
        }
        let (one, two) = tokio::join!(one.start(), two.start());
        linked(&[&one, &two]).await;
        for _ in 0..3 {
            tokio::try_join!(one.peers.ping(two.name()), two.peers.ping(one.name())).unwrap();
        }
        // Whatever attempt was still under way is over by now.
        tokio::time::sleep(Duration::from_millis(30)).await;
        for (site, other) in [(&one, "site2"), (&two, "site1")] {
            let peer = site.peer(other);
            assert_eq!((peer.state, peer.faults), (State::Reachable, 0), "{round}: {peer:?}");
            if round > 0 {
                until("it compared", || async { site.came_up(other) > 0 }).await;
                assert_eq!(site.came_up(other), 1, "round {round}");
            }
        }
        tokio::join!(one.stop(), two.stop());
    }
}
