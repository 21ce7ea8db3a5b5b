//! Tests of what a call belongs to: the decision by itself, and with what is remembered.

use super::*;

const LINGERS: Duration = Duration::from_mins(5);

fn correlation(most: usize) -> Correlation {
    let by = [
        "traceparent",
        "x-request-id",
        "x-openstack-request-id",
        "baggage",
        "tracestate",
        "x-auth-token",
    ];
    let by = by.map(HeaderName::from_static).into();
    Correlation::new(by, RequestIds::new([3; 32]), LINGERS, most, [7; 32])
}

fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), value.parse().unwrap())
    };
    of.iter().map(header).collect()
}

fn scope(text: &str) -> Arc<Named> {
    let scope = cheops_core::scope::parse(text).unwrap();
    Arc::new(Named { scope, text: text.into() })
}

fn trace(span: u8) -> String {
    format!("00-0af7651916cd43dd8448eb211c80319c-{span:016x}-01")
}

/// What a call with these headers belongs to, and the scopes by which a case of the table names them.
fn decided(clues: &str, passes_ids: bool) -> String {
    let clue = |text: &str| {
        let (header, requests) = text.split_once('=').unwrap();
        let request = |name: char| (name != '-').then(|| scope(&format!("image: {name}")));
        Clue {
            header: header.parse().unwrap(),
            id: !SHARED.contains(&header),
            requests: requests.chars().map(request).collect(),
        }
    };
    let clues: Vec<Clue> = clues.split_whitespace().map(clue).collect();
    match attribute(&clues, passes_ids) {
        Found::Scope(named) => named.scope.to_string().replace("image: ", ""),
        Found::Nothing => "unscoped".to_owned(),
        Found::Several(header) => format!("409 {header}"),
    }
}

/// Each case: what the headers of a call say in their order, and what it belongs to if the application has
/// never passed on an id, and if it has. `a` and `b` are requests with different scopes, and `-` is a
/// request without one.
#[test]
fn a_call_belongs_to_the_request_that_its_headers_name() {
    for (clues, never, before) in [
        // Nothing is known of it.
        ("", "unscoped", "unscoped"),
        ("x-request-id= x-auth-token=", "unscoped", "unscoped"),
        // An id decides, whatever a token says.
        ("x-request-id=a", "a", "a"),
        ("x-request-id=-", "unscoped", "unscoped"),
        ("x-request-id=a x-auth-token=b", "a", "a"),
        ("x-request-id=- x-auth-token=a", "unscoped", "unscoped"),
        ("x-request-id=a x-auth-token=ab-", "a", "a"),
        // The first id that stands for one request decides; the others choose among several.
        ("traceparent=a x-request-id=b", "a", "a"),
        ("traceparent= x-request-id=b", "b", "b"),
        ("traceparent=ab x-request-id=b", "b", "b"),
        ("traceparent=a- x-request-id=a", "a", "a"),
        ("traceparent=a- x-request-id=-", "unscoped", "unscoped"),
        // An id that several requests share is left to no token, and nobody guesses.
        ("traceparent=ab", "409 traceparent", "409 traceparent"),
        ("traceparent=a-", "409 traceparent", "409 traceparent"),
        ("traceparent=ab x-auth-token=a", "409 traceparent", "409 traceparent"),
        ("traceparent=ab x-request-id=c", "409 traceparent", "409 traceparent"),
        // A token counts only if no id was ever passed on.
        ("x-auth-token=a", "a", "unscoped"),
        ("x-request-id= x-auth-token=a", "a", "unscoped"),
        ("x-auth-token=ab", "409 x-auth-token", "unscoped"),
        // And never if a request without a scope may have made the call.
        ("x-auth-token=-", "unscoped", "unscoped"),
        ("x-auth-token=a-", "unscoped", "unscoped"),
        ("x-auth-token=ab-", "unscoped", "unscoped"),
        // One token may choose among the requests that another names.
        ("tracestate=ab x-auth-token=b", "b", "unscoped"),
        ("tracestate=a- x-auth-token=a", "a", "unscoped"),
        ("tracestate=a- x-auth-token=ab-", "unscoped", "unscoped"),
        ("tracestate=ab x-auth-token=c", "409 tracestate", "unscoped"),
        ("tracestate=ab x-auth-token=-", "unscoped", "unscoped"),
    ] {
        assert_eq!(decided(clues, false), never, "{clues}");
        assert_eq!(decided(clues, true), before, "{clues}, and it passes ids on");
    }
}

#[test]
fn an_id_counts_during_and_after_its_request() {
    let (linked, now) = (correlation(10), Instant::now());
    let (one, two) = (scope("image: site1"), scope("image: site2"));
    let a = headers(&[("x-request-id", "a"), ("x-auth-token", "secret")]);
    let b = headers(&[("traceparent", &trace(1)), ("x-auth-token", "secret")]);
    let first = linked.begin(&a, Some(&one), None, now).unwrap();
    let second = linked.begin(&b, Some(&two), None, now).unwrap();
    let other_span = headers(&[("traceparent", &trace(2)), ("x-auth-token", "secret")]);
    for now in [now, now + LINGERS / 2] {
        assert_eq!(linked.find(&a, now), Found::Scope(one.clone()));
        assert_eq!(linked.find(&other_span, now), Found::Scope(two.clone()));
    }
    linked.end(first, now);
    linked.end(second, now);
    let later = now + LINGERS / 2;
    assert_eq!(linked.find(&a, later), Found::Scope(one));
    assert_eq!(linked.find(&other_span, later), Found::Scope(two));
    assert_eq!(linked.find(&a, now + LINGERS), Found::Nothing);
    assert_eq!(linked.find(&other_span, now + LINGERS), Found::Nothing);
    assert_eq!(remembered(&linked, now + LINGERS), 0);
}

/// How many values are remembered.
fn remembered(linked: &Correlation, now: Instant) -> usize {
    let count = |shard: &Mutex<Shard>| {
        let mut shard = shard.lock().unwrap();
        shard.forget(now);
        shard.known.len()
    };
    linked.shards.iter().map(count).sum()
}

#[test]
fn a_request_without_a_scope_is_recognised_by_the_id_that_it_was_given_without_being_remembered() {
    let (linked, now) = (correlation(10), Instant::now());
    let one = scope("image: site1");
    let mut scoped = headers(&[("x-auth-token", "t")]);
    linked.give_id(&mut scoped, true);
    let first = linked.begin(&scoped, Some(&one), None, now).unwrap();
    // The application has passed on an id, so that tokens need not be remembered any more.
    assert_eq!(linked.find(&scoped, now), Found::Scope(one.clone()));
    let before = remembered(&linked, now);
    let mut vanilla = headers(&[("x-auth-token", "t")]);
    let given = linked.give_id(&mut vanilla, false);
    assert!(linked.begin(&vanilla, None, Some(given), now).is_none());
    assert!(linked.begin(&vanilla, None, None, now).is_none(), "a call of it, on its way on");
    assert_eq!(remembered(&linked, now), before);
    let id = vanilla["x-openstack-request-id"].to_str().unwrap();
    for passed_on in [
        headers(&[("x-openstack-request-id", id), ("x-auth-token", "t")]),
        headers(&[("x-request-id", &id[4..]), ("x-auth-token", "t")]),
        headers(&[("baggage", &format!("user=7,cheops={id}")), ("x-auth-token", "t")]),
    ] {
        for now in [now, now + LINGERS * 10] {
            assert_eq!(linked.find(&passed_on, now), Found::Nothing, "{passed_on:?}");
        }
    }
    assert_eq!(linked.find(&headers(&[("x-auth-token", "t")]), now), Found::Nothing);
    // A call of it that names a scope of its own is a request with that scope.
    let second = linked.begin(&vanilla, Some(&one), None, now).unwrap();
    let by_id = Found::Several(HeaderName::from_static("x-request-id"));
    assert_eq!(linked.find(&vanilla, now), by_id);
    linked.end(second, now);
    linked.end(first, now);
}

/// An agent that was restarted has forgotten the requests, but recognises the ids that it gave them.
#[test]
fn an_id_given_before_a_restart_proves_that_the_application_passes_ids_on() {
    let now = Instant::now();
    let token = ("x-auth-token", "t");
    for scoped in [true, false] {
        let mut before = headers(&[]);
        correlation(10).give_id(&mut before, scoped);
        let id = before["x-request-id"].to_str().unwrap();
        let from_another_site =
            format!("user=7,cheops=req-{}", "3dccb8c4-08fe-4706-a91d-e843b8fe9ed2");
        for passed_on in [
            headers(&[("x-request-id", id), token]),
            headers(&[("x-openstack-request-id", &format!("req-{id}")), token]),
            headers(&[("baggage", &format!("cheops=req-{id}")), token]),
            headers(&[("baggage", &from_another_site), token]),
        ] {
            let restarted = correlation(10);
            let one = scope("image: site1");
            let serving = restarted.begin(&headers(&[token]), Some(&one), None, now).unwrap();
            assert_eq!(restarted.find(&passed_on, now), Found::Nothing, "{passed_on:?}");
            assert_eq!(
                restarted.find(&headers(&[token]), now),
                Found::Nothing,
                "a call with a token only, after {passed_on:?}"
            );
            restarted.end(serving, now);
        }
        // An id that the agent has not given proves nothing.
        let restarted = correlation(10);
        let one = scope("image: site1");
        let serving = restarted.begin(&headers(&[token]), Some(&one), None, now).unwrap();
        let unknown = headers(&[("x-request-id", "3dccb8c4-08fe-4706-a91d-e843b8fe9ed2"), token]);
        assert_eq!(restarted.find(&unknown, now), Found::Scope(one));
        restarted.end(serving, now);
    }
}

#[test]
fn an_id_of_the_client_is_remembered_for_requests_without_a_scope_too() {
    let (linked, now) = (correlation(10), Instant::now());
    let one = scope("image: site1");
    let shared = headers(&[("traceparent", &trace(1))]);
    let first = linked.begin(&shared, None, None, now).unwrap();
    linked.end(first, now);
    assert_eq!(linked.find(&shared, now), Found::Nothing);
    let second = linked.begin(&shared, Some(&one), None, now).unwrap();
    let by_trace = Found::Several(HeaderName::from_static("traceparent"));
    assert_eq!(linked.find(&shared, now), by_trace, "the first may have made the call");
    assert_eq!(linked.find(&shared, now + LINGERS), Found::Scope(one));
    linked.end(second, now + LINGERS);
}

#[test]
fn a_token_counts_for_a_scope_while_it_is_served_and_for_none_also_after_that() {
    let (linked, now) = (correlation(10), Instant::now());
    let (one, two) = (scope("image: site1"), scope("image: site2"));
    let token = headers(&[("x-auth-token", "t")]);
    let first = linked.begin(&token, Some(&one), None, now).unwrap();
    let again = linked.begin(&token, Some(&scope("{image:site1}")), None, now).unwrap();
    linked.end(first, now);
    assert_eq!(
        linked.find(&token, now),
        Found::Scope(one.clone()),
        "the same scope, in other words"
    );
    let other = linked.begin(&token, Some(&two), None, now).unwrap();
    let by_token = Found::Several(HeaderName::from_static("x-auth-token"));
    assert_eq!(linked.find(&token, now), by_token);
    linked.end(other, now);
    assert_eq!(linked.find(&token, now), Found::Scope(one.clone()));
    let vanilla = linked.begin(&token, None, None, now).unwrap();
    assert_eq!(linked.find(&token, now), Found::Nothing);
    linked.end(vanilla, now);
    assert_eq!(linked.find(&token, now + LINGERS / 2), Found::Nothing, "its work may go on");
    assert_eq!(linked.find(&token, now + LINGERS), Found::Scope(one));
    linked.end(again, now + LINGERS);
    assert_eq!(linked.find(&token, now + LINGERS), Found::Nothing);
    assert_eq!(remembered(&linked, now + LINGERS), 0);
}

#[test]
fn what_was_served_is_bounded_and_what_is_being_served_stays() {
    let (linked, now) = (correlation(10), Instant::now());
    let one = scope("image: site1");
    let id = |n: usize| headers(&[("x-request-id", &n.to_string())]);
    let stays = linked.begin(&id(1_000), Some(&one), None, now).unwrap();
    for n in 0..100 {
        let served = linked.begin(&id(n), Some(&one), None, now).unwrap();
        linked.end(served, now);
        assert!(remembered(&linked, now) <= 11);
    }
    // However many there are without a scope, those with one stay.
    for n in 100..200 {
        let served = linked.begin(&id(n), None, None, now).unwrap();
        linked.end(served, now);
        assert!(remembered(&linked, now) <= 21);
    }
    for (n, expected) in [(1_000, true), (99, true), (90, true), (89, false), (5, false)] {
        let expected = if expected { Found::Scope(one.clone()) } else { Found::Nothing };
        assert_eq!(linked.find(&id(n), now), expected, "{n}");
    }
    linked.end(stays, now);
    assert_eq!(remembered(&linked, now + LINGERS), 0);
}

/// A value that is used again and again takes one place, and stays for as long as the last use of it.
#[test]
fn a_value_that_many_requests_have_takes_one_place() {
    let (linked, now) = (correlation(10), Instant::now());
    let rare = headers(&[("x-request-id", "rare")]);
    let served = linked.begin(&rare, Some(&scope("image: site1")), None, now).unwrap();
    linked.end(served, now);
    let often = headers(&[("traceparent", &trace(1))]);
    let later = now + LINGERS / 2;
    for _ in 0..100 {
        for now in [now, later] {
            let served = linked.begin(&often, Some(&scope("image: site2")), None, now).unwrap();
            linked.end(served, now);
        }
    }
    assert_eq!(linked.find(&rare, later), Found::Scope(scope("image: site1")));
    assert_eq!(linked.find(&often, now + LINGERS), Found::Scope(scope("image: site2")));
    assert_eq!(linked.find(&rare, now + LINGERS), Found::Nothing);
    assert_eq!(linked.find(&often, later + LINGERS), Found::Nothing);
}

/// A client that sends one id with ever new scopes fills no memory.
#[test]
fn the_scopes_of_one_value_are_bounded() {
    let (linked, now) = (correlation(10), Instant::now());
    let id = headers(&[("x-request-id", "one")]);
    let one = scope("image: site0");
    let serving = linked.begin(&id, Some(&one), None, now).unwrap();
    for n in 1..1_000 {
        let other = scope(&format!("image: site{n}"));
        let served = linked.begin(&id, Some(&other), None, now).unwrap();
        linked.end(served, now);
    }
    let scopes = |shard: &Mutex<Shard>| -> usize {
        shard.lock().unwrap().known.values().map(|known| known.requests.len()).sum()
    };
    assert_eq!(linked.shards.iter().map(scopes).sum::<usize>(), MOST_SCOPES);
    assert!(matches!(linked.find(&id, now), Found::Several(_)));
    // What is being served is never forgotten.
    assert_eq!(linked.find(&id, now + LINGERS), Found::Scope(one));
    linked.end(serving, now);
}

/// One that makes room for the scopes of others has not been forgotten by its calls.
#[test]
fn a_token_of_an_unscoped_request_counts_though_many_scopes_have_it() {
    let (linked, now) = (correlation(10), Instant::now());
    let token = headers(&[("x-auth-token", "t")]);
    let vanilla = linked.begin(&token, None, None, now).unwrap();
    linked.end(vanilla, now);
    let scopes: Vec<_> = (0..=MOST_SCOPES).map(|n| scope(&format!("image: site{n}"))).collect();
    let mut serving: Vec<_> =
        scopes.iter().map(|scope| linked.begin(&token, Some(scope), None, now).unwrap()).collect();
    serving.drain(1..).for_each(|one| linked.end(one, now));
    assert_eq!(linked.find(&token, now), Found::Nothing, "the unscoped one may have made it");
    assert_eq!(linked.find(&token, now + LINGERS), Found::Scope(scopes[0].clone()));
    serving.drain(..).for_each(|one| linked.end(one, now));
}

/// Tokens of requests without a scope that had to be forgotten too early count as used by one of them.
#[test]
fn a_token_that_may_have_been_forgotten_is_not_matched() {
    let (linked, now) = (correlation(10), Instant::now());
    let token = |n: usize| headers(&[("x-auth-token", &n.to_string())]);
    for n in 0..11 {
        let served = linked.begin(&token(n), None, None, now).unwrap();
        linked.end(served, now);
    }
    let one = scope("image: site1");
    let serving = linked.begin(&token(0), Some(&one), None, now).unwrap();
    assert_eq!(linked.find(&token(0), now), Found::Nothing);
    assert_eq!(linked.find(&token(0), now + LINGERS), Found::Scope(one));
    linked.end(serving, now + LINGERS);
}

/// What ids cost a request, and a call: `cargo test --release -p cheops-agent --lib cost_of_ids -- --ignored
/// --nocapture`. The limit is far above what is measured, and far below what a request costs otherwise.
#[test]
#[ignore = "it measures: run it in a release build"]
fn cost_of_ids() {
    const ROUNDS: u32 = 200_000;
    let linked = correlation(10_000);
    let one = scope("image: site1");
    let sent = headers(&[("host", "image"), ("accept", "*/*"), ("x-auth-token", "t")]);
    let row = |what: &str, round: &mut dyn FnMut(HeaderMap)| {
        let started = Instant::now();
        for _ in 0..ROUNDS {
            round(sent.clone());
        }
        let each = started.elapsed() / ROUNDS;
        println!("{what:<60} {each:?}");
        assert!(each < Duration::from_micros(50), "{what}: {each:?}");
    };
    row("headers are copied, and nothing else", &mut |headers| drop(std::hint::black_box(headers)));
    let serve = |scope: Option<&Arc<Named>>, mut headers: HeaderMap| {
        let given = linked.give_id(&mut headers, scope.is_some());
        let serving = linked.begin(&headers, scope, Some(given), Instant::now());
        if let Some(serving) = serving {
            linked.end(serving, Instant::now());
        }
        headers
    };
    row("a request without a scope; ids were never passed on", &mut |headers| {
        serve(None, headers);
    });
    let call = serve(Some(&one), sent.clone());
    assert_eq!(linked.find(&call, Instant::now()), Found::Scope(one.clone()));
    row("a request without a scope; ids are passed on", &mut |headers| {
        serve(None, headers);
    });
    row("a request with a scope", &mut |headers| {
        serve(Some(&one), headers);
    });
    let unscoped = serve(None, sent.clone());
    row("a call of a request without a scope", &mut |_| {
        std::hint::black_box(linked.find(&unscoped, Instant::now()));
    });
    row("a call of a request with a scope", &mut |_| {
        std::hint::black_box(linked.find(&call, Instant::now()));
    });
}
