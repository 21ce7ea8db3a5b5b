//! Sessions of browsers: a token is typed once, and then a cookie says who it is.
//!
//! What must stay true:
//! - a session has an id that was made here when it began; one that a browser brings is never taken over;
//! - a session is no longer than its token: whoever asks is held against the list of tokens each time;
//! - it ends when nobody uses it, and after a day's work in any case; there are never more than so many;
//! - whoever logs in again and again ends sessions of its own token, and nobody else's;
//! - what is kept of an id is its digest.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use cheops_core::trust::people::Digest;

use super::people::{NoRandomness, Token};

/// After how long without a request a session ends.
pub const IDLE: Duration = Duration::from_hours(1);
/// After how long it ends in any case.
pub const LONGEST: Duration = Duration::from_hours(12);
/// How many there may be with one token. One more ends the one of these that was not used for longest.
pub const EACH: usize = 32;
/// How many there may be in all. One more ends one of the token that has most.
pub const MOST: usize = 1_000;

/// All sessions.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<BTreeMap<Digest, Session>>);

#[derive(Debug, Clone, Copy)]
struct Session {
    token: Digest,
    begun: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.used) >= IDLE || now.duration_since(self.begun) >= LONGEST
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Digest, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session for whoever has this token: its id, which nobody has had before.
    pub fn begin(&self, token: Digest, now: Instant) -> Result<Token, NoRandomness> {
        let id = Token::make()?;
        let mut sessions = self.lock();
        sessions.retain(|_, session| !session.is_over(now));
        if let Some(over) = one_too_many(&sessions, &token) {
            sessions.remove(&over);
        }
        sessions.insert(id.session(), Session { token, begun: now, used: now });
        Ok(id)
    }

    /// The token of the session with this id, if it still goes on. It was used now.
    pub fn find(&self, id: &Token, now: Instant) -> Option<Digest> {
        let mut sessions = self.lock();
        let key = id.session();
        let session = sessions.get_mut(&key)?;
        if session.is_over(now) {
            sessions.remove(&key);
            return None;
        }
        session.used = now;
        Some(session.token)
    }

    /// Whether a session goes on. It is not used by that.
    pub fn goes_on(&self, session: &Digest, now: Instant) -> bool {
        self.lock().get(session).is_some_and(|session| !session.is_over(now))
    }

    /// Ends a session.
    pub fn end(&self, session: &Digest) {
        self.lock().remove(session);
    }

    /// Ends all sessions that were begun with a token.
    pub fn end_all(&self, token: &Digest) {
        self.lock().retain(|_, session| session.token != *token);
    }
}

/// The session that has to end before one more can begin with a token.
fn one_too_many(sessions: &BTreeMap<Digest, Session>, token: &Digest) -> Option<Digest> {
    let mut counts: BTreeMap<Digest, usize> = BTreeMap::new();
    for session in sessions.values() {
        *counts.entry(session.token).or_default() += 1;
    }
    let whose = if counts.get(token).is_some_and(|count| *count >= EACH) {
        *token
    } else if sessions.len() >= MOST {
        *counts.iter().max_by_key(|(_, count)| **count)?.0
    } else {
        return None;
    };
    let theirs = sessions.iter().filter(|(_, session)| session.token == whose);
    theirs.min_by_key(|(_, session)| session.used).map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_when_it_is_idle_or_old_or_ended() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let minutes = |count: u64| start + Duration::from_mins(count);
        let id = sessions.begin([1; 32], start).unwrap();
        let mut now = 0;
        while now < 12 * 60 - 59 {
            now += 59;
            assert_eq!(sessions.find(&id, minutes(now)), Some([1; 32]), "{now}");
        }
        assert_eq!(sessions.find(&id, minutes(12 * 60)), None);
        let idle = sessions.begin([1; 32], start).unwrap();
        assert_eq!(sessions.find(&idle, minutes(60)), None);
        let (one, other) =
            (sessions.begin([1; 32], start).unwrap(), sessions.begin([2; 32], start).unwrap());
        sessions.end_all(&[1; 32]);
        assert_eq!(sessions.find(&one, start), None);
        assert_eq!(sessions.find(&other, start), Some([2; 32]));
        sessions.end(&other.session());
        assert_eq!(sessions.find(&other, start), None);
    }

    #[test]
    fn an_id_that_somebody_brings_begins_nothing() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let brought = Token::make().unwrap();
        let made = sessions.begin([1; 32], now).unwrap();
        assert_ne!(made, brought);
        assert_eq!(sessions.find(&brought, now), None);
    }

    #[test]
    fn one_too_many_with_a_token_ends_the_one_of_it_that_was_not_used_for_longest() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let other = sessions.begin([9; 32], start).unwrap();
        let first = sessions.begin([1; 32], at(1)).unwrap();
        let second = sessions.begin([1; 32], at(2)).unwrap();
        for _ in 2..EACH {
            sessions.begin([1; 32], at(3)).unwrap();
        }
        assert!(sessions.find(&first, at(4)).is_some());
        sessions.begin([1; 32], at(5)).unwrap();
        assert!(sessions.find(&second, at(6)).is_none());
        for _ in 0..2 * MOST {
            sessions.begin([1; 32], at(7)).unwrap();
        }
        assert_eq!(sessions.lock().len(), EACH + 1);
        assert!(sessions.find(&other, at(8)).is_some());
    }

    #[test]
    fn one_too_many_in_all_ends_one_of_the_token_that_has_most() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let alone = sessions.begin([255; 32], now).unwrap();
        for n in 1..MOST {
            let token = u8::try_from((n - 1) / EACH).unwrap();
            sessions.begin([token; 32], now + Duration::from_secs(1)).unwrap();
        }
        for token in 100..120 {
            sessions.begin([token; 32], now + Duration::from_secs(2)).unwrap();
            assert_eq!(sessions.lock().len(), MOST);
        }
        assert!(sessions.find(&alone, now + Duration::from_secs(3)).is_some());
    }

    #[test]
    fn looking_whether_a_session_goes_on_does_not_prolong_it() {
        let (sessions, start) = (Sessions::default(), Instant::now());
        let id = sessions.begin([1; 32], start).unwrap().session();
        assert!(sessions.goes_on(&id, start + Duration::from_mins(59)));
        assert!(!sessions.goes_on(&id, start + IDLE));
        assert!(sessions.goes_on(&id, start));
        sessions.end(&id);
        assert!(!sessions.goes_on(&id, start));
    }
}
