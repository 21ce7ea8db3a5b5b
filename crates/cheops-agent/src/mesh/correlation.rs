//! Which request a call belongs to that the application makes while it serves one, or after that.
//!
//! An application passes some headers of a request on to the calls that it makes for it: the trace, a
//! request id, a token. The values of those headers stand for the request's scope, each under the
//! header's name, also where the request has none. A call that carries one of them has that scope.
//!
//! - An *id* belongs to one request, or to few. It counts for a while after the request was answered:
//!   an application that says 202 goes on with its work. Every request has one, since the agent gives
//!   it one (see `request_id`).
//! - A *token* belongs to many requests. It counts only as long as the application has never passed on
//!   an id: after that, a call without a known id belongs to no request. An id that an agent has given
//!   shows that it does, also if the request is forgotten, for example because the agent was restarted.
//!   The application is all services of this site together: which of them makes a call is not known, and
//!   a call without an id must not get the scope of a request to a service that makes no calls.
//!   A token counts for a scope only while a request with that scope is being served. It counts for
//!   requests without a scope for as long as ids do, because one of them may still make the call.
//!
//! [`attribute`] decides, and does nothing else. The rest of this file remembers.
//!
//! What must stay true:
//! - a call that an unscoped request may have made never gets a scope by a token;
//! - a call that could belong to several requests by its ids, or to several scoped requests by its
//!   tokens, gets none of their scopes: nobody guesses;
//! - a request without a scope that brings no id takes no lock once the application has passed on an id;
//! - no more is remembered than requests being served and a fixed number more, and scoped requests are
//!   never forgotten because of unscoped ones.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::{HeaderMap, header::HeaderName};

use super::{
    read::Named,
    request_id::{MEMBER, Mark, RequestIds, give, number},
};

/// Headers that many requests have in common.
const SHARED: [&str; 5] = ["authorization", "baggage", "cookie", "tracestate", "x-auth-token"];
/// The most parts that what is remembered is divided into, so that requests don't wait for each other,
/// and the fewest values that a part holds.
const MOST_SHARDS: usize = 16;
const SHARD: usize = 256;
/// The most scopes that are remembered for one value. With more than one, a call with that value is
/// rejected anyhow; a client must not fill the memory with them.
const MOST_SCOPES: usize = 16;

/// A scope, or that there is none.
type Scope = Option<Arc<Named>>;

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

/// What one header of a call says.
#[derive(Debug, Clone)]
struct Clue {
    header: HeaderName,
    /// It is an id, and not a token.
    id: bool,
    /// The scopes of the requests that have this value, each once.
    requests: Vec<Scope>,
}

/// Decides what a call belongs to, by its headers in the order in which they are to be asked.
/// `passes_ids`: the application has passed on an id before.
fn attribute(clues: &[Clue], passes_ids: bool) -> Found {
    let (ids, tokens): (Vec<&Clue>, Vec<&Clue>) =
        clues.iter().filter(|clue| !clue.requests.is_empty()).partition(|clue| clue.id);
    let by_tokens = ids.is_empty();
    if by_tokens && passes_ids {
        return Found::Nothing;
    }
    let known = if by_tokens { tokens } else { ids };
    let Some((first, others)) = known.split_first() else { return Found::Nothing };
    // Where a value stands for several, the next ones choose among them.
    let mut left: Vec<&Scope> = first.requests.iter().collect();
    for clue in others {
        if left.len() > 1 {
            left.retain(|one| clue.requests.iter().any(|other| same(one.as_ref(), other.as_ref())));
        }
    }
    let unscoped = if left.is_empty() {
        // They contradict each other.
        known.iter().flat_map(|clue| &clue.requests).any(Option::is_none)
    } else {
        left.iter().any(|scope| scope.is_none())
    };
    match left[..] {
        [Some(scope)] => Found::Scope(scope.clone()),
        [None] => Found::Nothing,
        _ if by_tokens && unscoped => Found::Nothing,
        _ => Found::Several(first.header.clone()),
    }
}

fn same(one: Option<&Arc<Named>>, other: Option<&Arc<Named>>) -> bool {
    one.map(|named| &named.scope) == other.map(|named| &named.scope)
}

/// A value of a header: a digest of it, since tokens are not kept, or the number that an id is. That is
/// the same whichever header has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Id { place: usize, digest: u128 },
    Uuid(u128),
    Token { place: usize, digest: u128 },
}

impl Key {
    fn is_token(self) -> bool {
        matches!(self, Self::Token { .. })
    }
}

/// A request that is being served.
#[derive(Debug)]
#[must_use]
pub(super) struct Serving {
    scope: Scope,
    keys: Vec<Key>,
}

/// The requests that are being served, and were, by the headers that the application passes on.
pub(super) struct Correlation {
    by: Vec<HeaderName>,
    ids: RequestIds,
    lingers: Duration,
    secret: [u8; 32],
    /// The application has passed on an id.
    passes_ids: AtomicBool,
    shards: Box<[Mutex<Shard>]>,
}

impl Correlation {
    /// `by`: the headers, those that tell most exactly first. `lingers`: how long ids count after a
    /// request was served; of at most so many with a scope, and as many without.
    pub(super) fn new(
        by: Vec<HeaderName>,
        ids: RequestIds,
        lingers: Duration,
        most: usize,
        secret: [u8; 32],
    ) -> Self {
        let count = (most / SHARD).clamp(1, MOST_SHARDS);
        let shard = |_| Mutex::new(Shard::new(most / count));
        let shards = (0..count).map(shard).collect();
        Self { by, ids, lingers, secret, passes_ids: AtomicBool::new(false), shards }
    }

    /// Gives a request an id where it has none, and says which.
    pub(super) fn give_id(&self, headers: &mut HeaderMap, scoped: bool) -> u128 {
        let id = self.ids.marked(if scoped { Mark::Scoped } else { Mark::Unscoped });
        give(&self.by, headers, id);
        id
    }

    /// Takes note of a request that is about to be served; not of one that there is nothing to remember of.
    /// `given`: the id that it was given just now, if it was.
    pub(super) fn begin(
        &self,
        headers: &HeaderMap,
        scope: Option<&Arc<Named>>,
        given: Option<u128>,
        now: Instant,
    ) -> Option<Serving> {
        let mut keys: Vec<Key> = Vec::new();
        for (_, key) in self.keys(headers) {
            // The id of a request without a scope says so by itself.
            let says_so =
                || given.map(Key::Uuid) == Some(key) || self.recognise(key) == Some(Mark::Unscoped);
            if keys.contains(&key) || scope.is_none() && says_so() {
                continue;
            }
            self.shard(key).begin(key, scope, now);
            keys.push(key);
        }
        (!keys.is_empty()).then(|| Serving { scope: scope.cloned(), keys })
    }

    /// Takes note that it was served.
    pub(super) fn end(&self, serving: Serving, now: Instant) {
        for key in serving.keys {
            let lingers = serving.scope.is_none() || !key.is_token();
            let until = if lingers { now + self.lingers } else { now };
            self.shard(key).end(key, serving.scope.as_ref(), until, now);
        }
    }

    /// What a call belongs to.
    pub(super) fn find(&self, headers: &HeaderMap, now: Instant) -> Found {
        let mut passed_on = false;
        let clue = |(place, key): (usize, Key)| {
            let mut requests = self.shard(key).requests(key, now);
            let header = self.by.get(place)?.clone();
            let id = !key.is_token();
            let mark = self.recognise(key);
            // Agents alone write the member of `baggage` that counts as an id.
            let given = mark.is_some() || id && header == "baggage";
            passed_on |= given || id && !requests.is_empty();
            if mark == Some(Mark::Unscoped) && !requests.contains(&None) {
                requests.push(None);
            }
            Some(Clue { header, id, requests })
        };
        let clues: Vec<Clue> = self.keys(headers).filter_map(clue).collect();
        if passed_on {
            self.passes_ids.store(true, Ordering::Relaxed);
        }
        attribute(&clues, self.passes_ids.load(Ordering::Relaxed))
    }

    /// What an id says by itself, if this agent has given it.
    fn recognise(&self, key: Key) -> Option<Mark> {
        match key {
            Key::Uuid(id) => self.ids.recognise(id),
            Key::Id { .. } | Key::Token { .. } => None,
        }
    }

    /// The values of headers that count, and the places of the headers.
    fn keys<'a>(&'a self, headers: &'a HeaderMap) -> impl Iterator<Item = (usize, Key)> + 'a {
        let passes_ids = self.passes_ids.load(Ordering::Relaxed);
        self.by.iter().enumerate().filter_map(move |(place, name)| {
            let (value, id) = significant(name, headers)?;
            if !id && passes_ids {
                return None;
            }
            if let Some(id) = number(value).filter(|_| id) {
                return Some((place, Key::Uuid(id)));
            }
            let digest = blake3::keyed_hash(&self.secret, value);
            let (short, _) = digest.as_bytes().split_first_chunk()?;
            let digest = u128::from_le_bytes(*short);
            let key = if id { Key::Id { place, digest } } else { Key::Token { place, digest } };
            Some((place, key))
        })
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        let (Key::Id { digest, .. } | Key::Uuid(digest) | Key::Token { digest, .. }) = key;
        // The lowest bits are random, in a UUID as well, and there is one shard at least.
        let [lowest, ..] = digest.to_le_bytes();
        let shard = &self.shards[usize::from(lowest) % self.shards.len()];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of a value that stays the same when it is passed on, and whether it is an id. Of a
/// `traceparent` that is the trace, since each service has a span of its own; of `baggage`, our own member.
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

/// A part of what is remembered.
struct Shard {
    most: usize,
    known: HashMap<Key, Known>,
    /// The values that requests had which were answered, by when they are over: of those with a scope, and
    /// of those without.
    answered: [VecDeque<(Instant, Key)>; 2],
    /// Until then, a request without a scope that was forgotten too early may have any token.
    unsure: Option<Instant>,
}

/// The requests that have one value.
#[derive(Default)]
struct Known {
    requests: Vec<Request>,
    /// Whether it is among the answered.
    queued: [bool; 2],
}

impl Known {
    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.queued == [false, false]
    }

    /// When the last of those in a class is over that were answered.
    fn last(&self, class: usize) -> Option<Instant> {
        let answered =
            |one: &&Request| self::class(one.scope.as_ref()) == class && one.serving == 0;
        self.requests.iter().filter(answered).map(|one| one.until).max()
    }
}

/// Requests that have one value and one scope.
struct Request {
    scope: Scope,
    /// How many of them are being served.
    serving: usize,
    /// Until when they count after that.
    until: Instant,
}

impl Request {
    fn counts(&self, now: Instant) -> bool {
        self.serving > 0 || self.until > now
    }
}

/// The place of those with a scope and of those without.
fn class(scope: Option<&Arc<Named>>) -> usize {
    usize::from(scope.is_none())
}

impl Shard {
    fn new(most: usize) -> Self {
        Self { most, known: HashMap::new(), answered: Default::default(), unsure: None }
    }

    fn begin(&mut self, key: Key, scope: Option<&Arc<Named>>, now: Instant) {
        self.forget(now);
        let requests = &mut self.known.entry(key).or_default().requests;
        if let Some(request) = requests.iter_mut().find(|one| same(one.scope.as_ref(), scope)) {
            request.serving += 1;
            return;
        }
        let answered = requests.iter().enumerate().filter(|(_, one)| one.serving == 0);
        let oldest = answered.min_by_key(|(_, one)| one.until).map(|(place, _)| place);
        if let Some(oldest) = oldest.filter(|_| requests.len() >= MOST_SCOPES) {
            let forgotten = requests.swap_remove(oldest);
            if key.is_token() && forgotten.scope.is_none() {
                self.unsure = self.unsure.max(Some(forgotten.until));
            }
        }
        requests.push(Request { scope: scope.cloned(), serving: 1, until: now });
    }

    fn end(&mut self, key: Key, scope: Option<&Arc<Named>>, until: Instant, now: Instant) {
        let class = class(scope);
        let Some(known) = self.known.get_mut(&key) else { return };
        if let Some(request) = known.requests.iter_mut().find(|one| same(one.scope.as_ref(), scope))
        {
            request.serving = request.serving.saturating_sub(1);
            request.until = until;
        }
        if until <= now {
            self.tidy(key, now);
        } else if !std::mem::replace(&mut known.queued[class], true) {
            self.answered[class].push_back((until, key));
        }
        while self.answered[class].len() > self.most {
            self.evict_oldest(class);
        }
    }

    fn requests(&mut self, key: Key, now: Instant) -> Vec<Scope> {
        self.forget(now);
        let known = self.known.get(&key).into_iter().flat_map(|known| &known.requests);
        let mut scopes: Vec<Scope> =
            known.filter(|one| one.counts(now)).map(|one| one.scope.clone()).collect();
        let unsure = key.is_token() && self.unsure.is_some_and(|until| until > now);
        // A token that no scoped request has stands for nothing anyhow.
        if unsure && !scopes.is_empty() && !scopes.contains(&None) {
            scopes.push(None);
        }
        scopes
    }

    /// Forgets all that is over by now.
    fn forget(&mut self, now: Instant) {
        for class in 0..self.answered.len() {
            while self.answered[class].front().is_some_and(|(until, _)| *until <= now) {
                self.expire_oldest(class, now);
            }
        }
    }

    /// Forgets the oldest value of a class, unless a later request has it.
    fn expire_oldest(&mut self, class: usize, now: Instant) {
        let Some((_, key)) = self.answered[class].pop_front() else { return };
        let Some(known) = self.known.get_mut(&key) else { return };
        let last = known.last(class).filter(|last| *last > now);
        known.queued[class] = last.is_some();
        self.answered[class].extend(last.map(|last| (last, key)));
        self.tidy(key, now);
    }

    /// Forgets the oldest value of a class, whether or not it is over.
    fn evict_oldest(&mut self, class: usize) {
        let Some((_, key)) = self.answered[class].pop_front() else { return };
        let Some(known) = self.known.get_mut(&key) else { return };
        if key.is_token() {
            self.unsure = self.unsure.max(known.last(class));
        }
        known.queued[class] = false;
        known.requests.retain(|one| self::class(one.scope.as_ref()) != class || one.serving > 0);
        if known.is_empty() {
            self.known.remove(&key);
        }
    }

    /// Drops the requests under a key that are over by then.
    fn tidy(&mut self, key: Key, by: Instant) {
        let Some(known) = self.known.get_mut(&key) else { return };
        known.requests.retain(|request| request.counts(by));
        if known.is_empty() {
            self.known.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
