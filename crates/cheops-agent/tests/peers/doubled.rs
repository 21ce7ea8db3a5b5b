//! Two agents with the key of one site, as when one is started from a copy of the other's data.

use std::time::Duration;

use cheops_core::replica::State;

use super::site::{Plan, RESOURCE, Site, linked, name, plans, until};

/// The state of the resource at a site.
async fn state(site: &Site) -> Option<State> {
    let look = |replica: &cheops_core::replica::Replica| {
        replica.resource(&RESOURCE.parse().ok()?).map(cheops_core::replica::Resource::state)
    };
    site.node.read(look).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_with_one_key_are_noticed_by_all_whose_link_switches_between_them() {
    // One of these decides which connection is the link, and the other does not.
    let [one, two, three]: [Plan; 3] = plans(3).try_into().map_err(|_| "three").unwrap();
    let mut copy = Plan::new("site2");
    for site in [&one, &three] {
        copy.knows(&site.config.site, site.config.peers);
    }
    let (one, two, three) = (one.start().await, two.start().await, three.start().await);
    linked(&[&one, &two, &three]).await;
    assert!(!one.peer("site2").is_doubled);
    let all = ["site1", "site2", "site3"];
    two.submit(RESOURCE, &all, 10).await;
    until("it is settled", || async {
        state(&one).await == Some(State::Settled) && state(&three).await == Some(State::Settled)
    })
    .await;

    let copy = copy.start().await;
    // Its first record has the number of the other one's first.
    copy.submit(RESOURCE, &all, 20).await;
    for site in [&one, &three] {
        until("both are noticed", || async { site.peer("site2").is_doubled }).await;
        until("it is not settled", || async { state(site).await == Some(State::Diverged) }).await;
    }
    assert!(!one.peer("site3").is_doubled && !three.peer("site1").is_doubled);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_started_again_or_cut_off_is_one() {
    let [one, mut two]: [Plan; 2] = plans(2).try_into().map_err(|_| "two").unwrap();
    let one = one.start().await;
    for _ in 0..4 {
        let running = two.start().await;
        linked(&[&one, &running]).await;
        let site = name("site2");
        one.peers.pause(Some(&site), None).unwrap();
        until("it is cut off", || async { !running.reaches("site1") }).await;
        one.peers.resume(Some(&site)).unwrap();
        linked(&[&one, &running]).await;
        two = running.stop().await;
        until("it is gone", || async { !one.reaches("site2") }).await;
    }
    assert!(!one.peer("site2").is_doubled);
    tokio::time::timeout(Duration::from_secs(30), one.stop()).await.unwrap();
}
