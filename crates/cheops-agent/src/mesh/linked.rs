//! Which request a call belongs to that the application makes while it serves one.
//!
//! An application passes some headers of a request on to the calls that it makes for it: the trace, a
//! request id, a token. While a request with a scope is served here, the values of those headers stand
//! for its scope, each under the header's name. A call that carries one of them has that scope.
//!
//! Ids belong to one request, so they stand for its scope for a while after it was answered: an
//! application that says 202 goes on with its work. A token belongs to many, and stands for a scope
//! only while a request with it is being served.
//!
//! What must stay true:
//! - a value that stands for two different scopes at a time stands for none: nobody guesses;
//! - headers are asked in the configured order, and the first one that knows decides;
//! - there are never more entries than requests being served and a fixed number more.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::{HeaderMap, header::HeaderName};

use super::read::Named;

/// Headers that many requests have in common.
const TOKENS: [&str; 3] = ["authorization", "cookie", "x-auth-token"];

/// What a call was found to belong to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    /// To a request with this scope.
    Scope(Arc<Named>),
    /// To nothing that is known: it has no scope.
    Nothing,
    /// To several requests with different scopes, by this header.
    Several(HeaderName),
}

/// The place of a header in the list, and a value of it as a digest: tokens are not kept.
type Key = (usize, u128);

struct Entry {
    scope: Arc<Named>,
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
    scope: Arc<Named>,
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
            let value = significant(name, headers.get(name)?.as_bytes());
            let digest = blake3::keyed_hash(&self.secret, value);
            let (short, _) = digest.as_bytes().split_first_chunk()?;
            Some((place, u128::from_le_bytes(*short)))
        };
        self.by.iter().enumerate().filter_map(key).collect()
    }

    fn is_token(&self, key: Key) -> bool {
        self.by.get(key.0).is_some_and(|name| TOKENS.contains(&name.as_str()))
    }

    /// Takes note of a request with a scope that is about to be served.
    pub(super) fn begin(
        &mut self,
        headers: &HeaderMap,
        scope: &Arc<Named>,
        now: Instant,
    ) -> Serving {
        self.forget(now);
        let keys = self.keys(headers);
        for key in &keys {
            let entries = self.entries.entry(*key).or_default();
            match entries.iter_mut().find(|entry| entry.scope.scope == scope.scope) {
                Some(entry) => entry.serving += 1,
                None => entries.push(Entry { scope: scope.clone(), serving: 1, until: now }),
            }
        }
        Serving { scope: scope.clone(), keys }
    }

    /// Takes note that it was served.
    pub(super) fn end(&mut self, serving: Serving, now: Instant) {
        for key in serving.keys {
            let until = if self.is_token(key) { now } else { now + self.lingers };
            let Some(entries) = self.entries.get_mut(&key) else { continue };
            let entry = entries.iter_mut().find(|entry| entry.scope.scope == serving.scope.scope);
            if let Some(entry) = entry {
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
        let mut several = None;
        for key in self.keys(headers) {
            match self.entries.get(&key).map(Vec::as_slice) {
                None | Some([]) => {}
                Some([entry]) => return Found::Scope(entry.scope.clone()),
                Some(_) => several = several.or_else(|| self.by.get(key.0).cloned()),
            }
        }
        several.map_or(Found::Nothing, Found::Several)
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

/// The part of a value that stays the same when it is passed on: of a `traceparent`, the trace. Each
/// service has a span of its own.
fn significant<'a>(name: &HeaderName, value: &'a [u8]) -> &'a [u8] {
    let trace = (name == "traceparent").then(|| value.get(3..35)).flatten();
    trace.unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGERS: Duration = Duration::from_secs(300);

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
        let first = linked.begin(&a, &one, now);
        assert_eq!(linked.find(&headers(&[("x-request-id", "a")]), now), Found::Scope(one.clone()));
        assert_eq!(linked.find(&headers(&[("x-request-id", "b")]), now), Found::Nothing);
        assert_eq!(linked.find(&headers(&[("x-auth-token", "a")]), now), Found::Nothing);
        let token = headers(&[("x-auth-token", "secret")]);
        assert_eq!(linked.find(&token, now), Found::Scope(one.clone()));

        let second = linked.begin(&b, &two, now);
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
    fn requests_with_the_same_scope_do_not_get_in_each_others_way() {
        let (mut linked, now) = (linked(10), Instant::now());
        let headers = headers(&[("x-auth-token", "t")]);
        let (one, again) = (scope("image: site1"), scope("{image:site1}"));
        let first = linked.begin(&headers, &one, now);
        let second = linked.begin(&headers, &again, now);
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
        let serving = linked.begin(&stays, &one, now);
        for n in 0..100 {
            let id = n.to_string();
            let served = linked.begin(&headers(&[("x-request-id", &id)]), &one, now);
            linked.end(served, now);
            assert!(linked.entries.len() <= 11 && linked.served.len() <= 10);
        }
        assert_eq!(linked.find(&stays, now), Found::Scope(one.clone()));
        assert_eq!(linked.find(&headers(&[("x-request-id", "99")]), now), Found::Scope(one));
        assert_eq!(linked.find(&headers(&[("x-request-id", "5")]), now), Found::Nothing);
        linked.end(serving, now);
    }
}
