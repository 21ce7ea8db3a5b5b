//! Which request a call belongs to that the application makes while it serves one.
//!
//! An application passes some headers of a request on to the calls that it makes for it: the trace, a
//! request id, a token. While a request is served here, the values of those headers stand for its scope,
//! each under the header's name, also where that is none. A call that carries one of them has that scope.
//!
//! Ids belong to one request, so they stand for its scope for a while after it was answered: an
//! application that says 202 goes on with its work. A token belongs to many, and stands for a scope
//! only while a request with it is being served. A request with a scope gets ids of ours if it has
//! none, so that nothing depends on tokens where the application passes ids on.
//!
//! A value may stand for several scopes: the same token, or one trace for all that a script does. Then
//! the call belongs to one of them, and only what tells as exactly may say to which: another id, if the
//! value is an id; anything, if it is a token. That a request was answered while another is still being
//! served says nothing: a call of the first may come as late as one of the second.
//!
//! What must stay true:
//! - headers are asked in the configured order, and the first one that knows decides;
//! - a value that stands for several scopes is never left for one that tells less exactly, and those
//!   that are asked after it only choose among them: nobody guesses;
//! - there are never more entries than requests being served and a fixed number more.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};

use super::read::Named;
use crate::rest::ids::uuid;

/// Headers that many requests have in common.
const SHARED: [&str; 5] = ["authorization", "baggage", "cookie", "tracestate", "x-auth-token"];
/// The member of `baggage` that is ours.
const MEMBER: &str = "cheops=";

/// What a call was found to belong to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    /// To a request with this scope.
    Scope(Arc<Named>),
    /// To a request without one, or to nothing that is known: it has no scope.
    Nothing,
    /// To several requests with different scopes, by this header.
    Several(HeaderName),
}

/// The place of a header in the list, and a value of it as a digest: tokens are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    place: usize,
    digest: u128,
    /// Only one request has it.
    exact: bool,
}

struct Entry {
    scope: Option<Arc<Named>>,
    /// How many requests with that scope are being served.
    serving: usize,
    /// Until when it counts after that.
    until: Instant,
}

/// The requests that are being served, by the headers that the application passes on.
pub(super) struct Linked {
    by: Vec<HeaderName>,
    lingers: Duration,
    most: usize,
    entries: HashMap<Key, Vec<Entry>>,
    /// What was served, by when it is over.
    served: VecDeque<(Instant, Key)>,
    secret: [u8; 32],
}

/// A request that is being served.
#[derive(Debug)]
#[must_use]
pub(super) struct Serving {
    scope: Option<Arc<Named>>,
    keys: Vec<Key>,
}

impl Linked {
    /// `by`: the headers, those that tell most exactly first. `lingers`: how long ids count after a
    /// request was served; of at most so many.
    pub(super) fn new(
        by: Vec<HeaderName>,
        lingers: Duration,
        most: usize,
        secret: [u8; 32],
    ) -> Self {
        Self { by, lingers, most, entries: HashMap::new(), served: VecDeque::new(), secret }
    }

    fn keys(&self, headers: &HeaderMap) -> Vec<Key> {
        let key = |(place, name): (usize, &HeaderName)| {
            let (value, exact) = significant(name, headers)?;
            let digest = blake3::keyed_hash(&self.secret, value);
            let (short, _) = digest.as_bytes().split_first_chunk()?;
            Some(Key { place, digest: u128::from_le_bytes(*short), exact })
        };
        self.by.iter().enumerate().filter_map(key).collect()
    }

    /// Takes note of a request that is about to be served; not of one that no call could be linked to.
    pub(super) fn begin(
        &mut self,
        headers: &HeaderMap,
        scope: Option<&Arc<Named>>,
        now: Instant,
    ) -> Option<Serving> {
        self.forget(now);
        let keys = self.keys(headers);
        for key in &keys {
            let entries = self.entries.entry(*key).or_default();
            match entries.iter_mut().find(|entry| same(entry.scope.as_ref(), scope)) {
                Some(entry) => entry.serving += 1,
                None => entries.push(Entry { scope: scope.cloned(), serving: 1, until: now }),
            }
        }
        (!keys.is_empty()).then(|| Serving { scope: scope.cloned(), keys })
    }

    /// Takes note that it was served.
    pub(super) fn end(&mut self, serving: Serving, now: Instant) {
        let scope = serving.scope.as_ref();
        for key in serving.keys {
            // A call that is linked to nothing has no scope either.
            let lingers = key.exact && scope.is_some();
            let until = if lingers { now + self.lingers } else { now };
            let Some(entries) = self.entries.get_mut(&key) else { continue };
            if let Some(entry) = entries.iter_mut().find(|entry| same(entry.scope.as_ref(), scope))
            {
                entry.serving = entry.serving.saturating_sub(1);
                entry.until = until;
            }
            if until > now {
                self.served.push_back((until, key));
            } else {
                self.tidy(key, now);
            }
        }
        while self.served.len() > self.most {
            self.forget_oldest();
        }
    }

    /// What a call belongs to.
    pub(super) fn find(&mut self, headers: &HeaderMap, now: Instant) -> Found {
        self.forget(now);
        // The scopes that it may have, by the first header that knows several.
        let mut several: Option<(Key, Vec<&Entry>)> = None;
        for key in self.keys(headers) {
            let Some(entries) = self.entries.get(&key) else { continue };
            match &mut several {
                None => several = Some((key, entries.iter().collect())),
                Some((first, _)) if first.exact && !key.exact => continue,
                Some((_, left)) => left.retain(|one| {
                    entries.iter().any(|entry| same(entry.scope.as_ref(), one.scope.as_ref()))
                }),
            }
            match several.as_ref().map(|(_, left)| left.as_slice()) {
                Some([Entry { scope: Some(scope), .. }]) => return Found::Scope(scope.clone()),
                Some([Entry { scope: None, .. }]) => return Found::Nothing,
                // They contradict each other.
                Some([]) => break,
                _ => {}
            }
        }
        let header = several.and_then(|(key, _)| self.by.get(key.place).cloned());
        header.map_or(Found::Nothing, Found::Several)
    }

    fn forget(&mut self, now: Instant) {
        while self.served.front().is_some_and(|(until, _)| *until <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((until, key)) = self.served.pop_front() {
            self.tidy(key, until);
        }
    }

    /// Drops the entries under a key that are over by then.
    fn tidy(&mut self, key: Key, by: Instant) {
        let Some(entries) = self.entries.get_mut(&key) else { return };
        entries.retain(|entry| entry.serving > 0 || entry.until > by);
        if entries.is_empty() {
            self.entries.remove(&key);
        }
    }
}

/// Gives a request ids of ours where it has none, so that calls can be told from those of others: each
/// in the form in which applications pass it on.
pub(super) fn give_ids(by: &[HeaderName], headers: &mut HeaderMap, random: u128) {
    let uuid = uuid(4, random);
    for name in by {
        let ours = match name.as_str() {
            "x-request-id" => uuid.clone(),
            "x-openstack-request-id" => format!("req-{uuid}"),
            // Tracers pass all of it on; a trace of ours would tell them what to sample.
            "baggage" => format!("{MEMBER}{random:032x}"),
            _ => continue,
        };
        let Ok(ours) = HeaderValue::from_str(&ours) else { continue };
        if name == "baggage" {
            join(headers, name, &ours);
        } else {
            headers.entry(name).or_insert(ours);
        }
    }
}

fn same(one: Option<&Arc<Named>>, other: Option<&Arc<Named>>) -> bool {
    one.map(|named| &named.scope) == other.map(|named| &named.scope)
}

/// The part of a value that stays the same when it is passed on, and whether only one request has it.
/// Of a `traceparent` that is the trace, since each service has a span of its own; of `baggage`, our
/// own member.
fn significant<'a>(name: &HeaderName, headers: &'a HeaderMap) -> Option<(&'a [u8], bool)> {
    let first = headers.get(name)?.as_bytes();
    if name == "traceparent" {
        return Some((first.get(3..35).unwrap_or(first), true));
    }
    if name == "baggage" {
        let texts = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        let mut members = texts.flat_map(|text| text.split(','));
        if let Some(ours) = members.find_map(|member| member.trim().strip_prefix(MEMBER)) {
            return Some((ours.as_bytes(), true));
        }
    }
    Some((first, !SHARED.contains(&name.as_str())))
}

/// Adds a member to a list. It stands in the same line: many who read a list look at one line only.
fn join(headers: &mut HeaderMap, name: &HeaderName, member: &HeaderValue) {
    let mut lines: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    lines.push(member.clone());
    let joined = lines.iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b","[..]);
    // Its parts are sound, so that it is.
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(name, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGERS: Duration = Duration::from_mins(5);

    fn linked(most: usize) -> Linked {
        let by = ["traceparent", "x-request-id", "x-auth-token"];
        Linked::new(by.map(HeaderName::from_static).into(), LINGERS, most, [7; 32])
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

    #[test]
    fn a_call_has_the_scope_of_the_request_that_it_is_made_for() {
        let (mut linked, now) = (linked(10), Instant::now());
        let (one, two) = (scope("image: site1"), scope("image: site2"));
        let a = headers(&[("x-request-id", "a"), ("x-auth-token", "secret")]);
        let b = headers(&[("traceparent", &trace(1)), ("x-auth-token", "secret")]);
        let first = linked.begin(&a, Some(&one), now).unwrap();
        assert_eq!(linked.find(&headers(&[("x-request-id", "a")]), now), Found::Scope(one.clone()));
        assert_eq!(linked.find(&headers(&[("x-request-id", "b")]), now), Found::Nothing);
        assert_eq!(linked.find(&headers(&[("x-auth-token", "a")]), now), Found::Nothing);
        let token = headers(&[("x-auth-token", "secret")]);
        assert_eq!(linked.find(&token, now), Found::Scope(one.clone()));

        let second = linked.begin(&b, Some(&two), now).unwrap();
        assert_eq!(
            linked.find(&token, now),
            Found::Several(HeaderName::from_static("x-auth-token"))
        );
        // What tells more exactly decides.
        assert_eq!(linked.find(&a, now), Found::Scope(one.clone()));
        let other_span = headers(&[("traceparent", &trace(2)), ("x-auth-token", "secret")]);
        assert_eq!(linked.find(&other_span, now), Found::Scope(two.clone()));

        linked.end(first, now);
        assert_eq!(linked.find(&token, now), Found::Scope(two));
        assert_eq!(linked.find(&headers(&[("x-request-id", "a")]), now), Found::Scope(one));
        linked.end(second, now);
        assert_eq!(linked.find(&token, now), Found::Nothing);
        assert_eq!(linked.find(&a, now + LINGERS), Found::Nothing);
        assert!(linked.entries.is_empty() && linked.served.is_empty());
    }

    #[test]
    fn what_is_ambiguous_is_decided_only_by_what_tells_as_exactly() {
        let by = ["traceparent", "x-request-id", "tracestate", "x-auth-token"];
        let mut linked = Linked::new(by.map(HeaderName::from_static).into(), LINGERS, 10, [7; 32]);
        let now = Instant::now();
        let (two, three) = (scope("image: site2"), scope("image: site3"));
        let trace = trace(1);
        let request = |id: &'static str, state: &str, token: &str| {
            headers(&[
                ("traceparent", trace.as_str()),
                ("x-request-id", id),
                ("tracestate", state),
                ("x-auth-token", token),
            ])
        };
        // The first is answered, and its work may go on; the second is being served.
        let first = linked.begin(&request("a", "s", "t"), Some(&two), now).unwrap();
        linked.end(first, now);
        let second = linked.begin(&request("b", "s", "t"), Some(&three), now).unwrap();
        let by_trace = Found::Several(HeaderName::from_static("traceparent"));
        for (call, expected) in [
            (headers(&[("traceparent", &trace)]), by_trace.clone()),
            (headers(&[("traceparent", &trace), ("x-auth-token", "t")]), by_trace.clone()),
            (request("a", "s", "t"), Found::Scope(two.clone())),
            (request("b", "s", "t"), Found::Scope(three.clone())),
            (request("c", "s", "t"), by_trace.clone()),
        ] {
            assert_eq!(linked.find(&call, now), expected, "{call:?}");
        }
        // Of those that are shared, one may help out another.
        let third = headers(&[("tracestate", "s"), ("x-auth-token", "u")]);
        let third = linked.begin(&third, Some(&two), now).unwrap();
        for (token, expected) in [("t", &three), ("u", &two)] {
            let call = headers(&[("tracestate", "s"), ("x-auth-token", token)]);
            assert_eq!(linked.find(&call, now), Found::Scope(expected.clone()), "{token}");
        }
        let other = headers(&[("x-request-id", "d")]);
        let other = linked.begin(&other, Some(&scope("image: site4")), now).unwrap();
        assert_eq!(
            linked.find(&request("d", "s", "t"), now),
            by_trace,
            "they contradict each other"
        );
        for serving in [second, third, other] {
            linked.end(serving, now);
        }
    }

    #[test]
    fn requests_with_the_same_scope_do_not_get_in_each_others_way() {
        let (mut linked, now) = (linked(10), Instant::now());
        let headers = headers(&[("x-auth-token", "t")]);
        let (one, again) = (scope("image: site1"), scope("{image:site1}"));
        let first = linked.begin(&headers, Some(&one), now).unwrap();
        let second = linked.begin(&headers, Some(&again), now).unwrap();
        linked.end(first, now);
        assert_eq!(linked.find(&headers, now), Found::Scope(one));
        linked.end(second, now);
        assert_eq!(linked.find(&headers, now), Found::Nothing);
    }

    #[test]
    fn what_was_served_is_bounded_and_what_is_being_served_stays() {
        let (mut linked, now) = (linked(10), Instant::now());
        let one = scope("image: site1");
        let stays = headers(&[("x-request-id", "stays")]);
        let serving = linked.begin(&stays, Some(&one), now).unwrap();
        for n in 0..100 {
            let id = n.to_string();
            let id = headers(&[("x-request-id", &id)]);
            let served = linked.begin(&id, Some(&one), now).unwrap();
            linked.end(served, now);
            assert!(linked.entries.len() <= 11 && linked.served.len() <= 10);
        }
        assert_eq!(linked.find(&stays, now), Found::Scope(one.clone()));
        assert_eq!(linked.find(&headers(&[("x-request-id", "99")]), now), Found::Scope(one));
        assert_eq!(linked.find(&headers(&[("x-request-id", "5")]), now), Found::Nothing);
        linked.end(serving, now);
    }

    #[test]
    fn a_request_without_a_scope_is_not_taken_for_another() {
        let (mut linked, now) = (linked(10), Instant::now());
        let one = scope("image: site1");
        let vanilla = headers(&[("x-request-id", "v"), ("x-auth-token", "t")]);
        let scoped = headers(&[("x-request-id", "s"), ("x-auth-token", "t")]);
        let token = headers(&[("x-auth-token", "t")]);
        let first = linked.begin(&scoped, Some(&one), now).unwrap();
        assert_eq!(linked.find(&token, now), Found::Scope(one.clone()));
        let second = linked.begin(&vanilla, None, now).unwrap();
        assert_eq!(linked.find(&vanilla, now), Found::Nothing);
        assert_eq!(linked.find(&scoped, now), Found::Scope(one));
        assert_eq!(
            linked.find(&token, now),
            Found::Several(HeaderName::from_static("x-auth-token"))
        );
        linked.end(second, now);
        linked.end(first, now + LINGERS);
        assert!(linked.begin(&headers(&[]), None, now).is_none());
    }

    #[test]
    fn ids_of_ours_are_given_where_there_are_none_and_are_recognised() {
        let by = ["x-request-id", "x-openstack-request-id", "baggage"];
        let mut linked = Linked::new(by.map(HeaderName::from_static).into(), LINGERS, 10, [7; 32]);
        let now = Instant::now();
        let mut request = headers(&[("x-request-id", "mine"), ("baggage", "user=7")]);
        give_ids(&linked.by, &mut request, u128::MAX);
        assert_eq!(request["x-request-id"], "mine");
        let ours = "user=7,cheops=ffffffffffffffffffffffffffffffff";
        assert_eq!(request.get_all("baggage").iter().collect::<Vec<_>>(), [ours]);
        let id = "req-ffffffff-ffff-4fff-bfff-ffffffffffff";
        assert_eq!(request["x-openstack-request-id"], id);
        let one = scope("image: site1");
        let serving = linked.begin(&request, Some(&one), now).unwrap();
        for passed_on in [
            &[("x-openstack-request-id", id)][..],
            &[("baggage", "user=7,cheops=ffffffffffffffffffffffffffffffff")],
            &[("x-request-id", "mine")],
        ] {
            assert_eq!(linked.find(&headers(passed_on), now), Found::Scope(one.clone()));
        }
        assert_eq!(linked.find(&headers(&[("baggage", "user=8")]), now), Found::Nothing);
        linked.end(serving, now);
    }
}
