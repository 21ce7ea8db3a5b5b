//! Which events have a line of their own: of very many refusals, and of what only looks, not each.
//!
//! Arithmetic alone: whoever calls says what time it is. What must stay true:
//! - what names an operation has a line, and so has a request of one who may ask and that failed here: it may
//!   have been carried out;
//! - whoever is refused pays for itself: nobody leaves others without their lines, but strangers each other;
//! - however many strangers there are, and whatever they are called, their lines are within one limit.

use std::{net::SocketAddr, time::Duration};

use cheops_core::id::Author;

use super::entry::{Event, What};
use crate::limits::{Bucket, Buckets, network};

/// How many refusals of one who is known have a line: so many a second in the long run, so many at once.
const REFUSALS: (u32, u32) = (10, 1_000);
/// The same of one stranger, and of all of them together.
const STRANGER: (u32, u32) = (1, 100);
const STRANGERS: (u32, u32) = (10, 1_000);
/// The same of each, of what whoever looks may do.
const LOOKS: (u32, u32) = (1, 1_000);

/// How many may still have a line of their own.
pub(super) struct Admission {
    refusals: Buckets,
    stranger: Buckets,
    strangers: Bucket,
    looks: Buckets,
    /// Those that had none since the last that had.
    unwritten: u64,
}

/// From where an event comes.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    /// A site, or an author that was found out.
    Known(String),
    /// An address, or a user of this machine.
    Stranger(String),
}

/// Why an event may have no line.
#[derive(Debug, PartialEq, Eq)]
enum Sort {
    /// Somebody was refused, or nobody knows who it was.
    Refusal,
    /// Whoever may look may do it again and again.
    Look,
}

impl Admission {
    pub(super) fn new() -> Self {
        let table = |(rate, burst)| Buckets::new(rate, burst);
        Self {
            refusals: table(REFUSALS),
            stranger: table(STRANGER),
            strangers: Bucket::default(),
            looks: table(LOOKS),
            unwritten: 0,
        }
    }

    /// Whether an event has a line without being looked at here.
    pub(super) fn is_free(event: &Event) -> bool {
        sort(event).is_none()
    }

    /// The event, if it is to have a line, with how many had none.
    pub(super) fn admit(&mut self, mut event: Event, now: Duration) -> Option<Event> {
        let Some(sort) = sort(&event) else { return Some(event) };
        let taken = match (sort, source(&event)) {
            (Sort::Look, Source::Known(who) | Source::Stranger(who)) => self.looks.take(&who, now),
            (Sort::Refusal, Source::Known(who)) => self.refusals.take(&who, now),
            (Sort::Refusal, Source::Stranger(who)) => {
                let (rate, burst) = STRANGERS;
                let own = self.stranger.take(&who, now);
                own.and_then(|()| self.strangers.take(rate, burst, now))
            }
        };
        if taken.is_err() {
            self.unwritten += 1;
            return None;
        }
        event.more = Some(std::mem::take(&mut self.unwritten)).filter(|more| *more > 0);
        Some(event)
    }
}

fn sort(event: &Event) -> Option<Sort> {
    let refused = match (event.what, event.status) {
        (What::Request, Some(status)) if status < 500 => status >= 400,
        // Whoever is gone, or was not served, before it was known who that is.
        (What::Request, _) => event.role.is_none() && matches!(source(event), Source::Stranger(_)),
        _ => event.is_refusal(),
    };
    match event.operation {
        Some(_) => None,
        None if refused => Some(Sort::Refusal),
        None => event.looks.then_some(Sort::Look),
    }
}

fn source(event: &Event) -> Source {
    let from = event.from.as_deref().unwrap_or_default();
    // Of what comes over a link, the other site says whose it is: it has one bucket, whatever it says.
    if event.what == What::Record || event.door.as_deref() == Some("link") {
        return Source::Known(format!("site {from}"));
    }
    match event.author.as_deref().filter(|author| *author != Author::anonymous().as_str()) {
        Some(author) => Source::Known(format!("author {author}")),
        None => Source::Stranger(match from.parse::<SocketAddr>() {
            Ok(address) => network(address.ip()).to_string(),
            Err(_) => from.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn refused(author: Option<&str>, from: &str) -> Event {
        Event {
            author: author.map(str::to_owned),
            from: Some(from.to_owned()),
            status: Some(403),
            ..Event::of(What::Request)
        }
    }

    /// How many of so many events have a line.
    fn admitted(
        admission: &mut Admission,
        count: u32,
        event: impl Fn(u32) -> Event,
    ) -> (usize, u64) {
        let lines: Vec<_> = (0..count).filter_map(|n| admission.admit(event(n), NOW)).collect();
        (lines.len(), lines.iter().filter_map(|line| line.more).sum())
    }

    #[test]
    fn nobody_leaves_others_without_their_lines() {
        let mut admission = Admission::new();
        let one = |port| refused(None, &format!("10.0.0.9:{port}"));
        assert_eq!(admitted(&mut admission, 5_000, one), (100, 0));
        // The next that has a line tells how many had none.
        assert_eq!(admitted(&mut admission, 1, |_| refused(None, "10.0.0.8:1")), (1, 4_900));
        let many = |n| refused(None, &format!("10.{}.{}.1:80", n / 250, n % 250));
        let (count, _) = admitted(&mut admission, 20_000, many);
        assert_eq!(count, 1_000 - 101, "all strangers together have a limit");
        let v6 = |n| refused(None, &format!("[2001:db8:{n:x}::1]:80"));
        assert_eq!(admitted(&mut admission, 20_000, v6), (0, 0));
        // Those who are known have theirs, each.
        for author in ["ada", "eve"] {
            let (count, _) = admitted(&mut admission, 3_000, |_| refused(Some(author), "10.0.0.9"));
            assert_eq!(count, 1_000, "{author}");
        }
        for site in ["site2", "site3"] {
            let record = |_| Event::record(site, "web", "its signature is not that of its site");
            assert_eq!(admitted(&mut admission, 1_500, record).0, 1_000, "{site}");
        }
    }

    #[test]
    fn what_names_an_operation_or_failed_here_always_has_a_line() {
        let mut admission = Admission::new();
        for event in [
            Event { operation: Some("site1:7".into()), ..refused(Some("ada"), "10.0.0.9:1") },
            Event { operation: Some("site1:7".into()), looks: true, ..refused(None, "10.0.0.9:1") },
            Event { status: Some(507), ..refused(Some("ada"), "10.0.0.9:1") },
            Event { status: Some(200), ..refused(Some("ada"), "10.0.0.9:1") },
            Event { status: None, ..refused(Some("ada"), "10.0.0.9:1") },
            Event { status: None, role: Some("admin".into()), ..refused(Some("anonymous"), "") },
            Event::denied("ada", "web", "site1:7", "no-shell"),
        ] {
            assert!(Admission::is_free(&event), "{event:?}");
            assert_eq!(admitted(&mut admission, 5_000, |_| event.clone()).0, 5_000, "{event:?}");
        }
        // But not what strangers could send without end.
        for (author, status) in [(None, None), (Some("anonymous"), None), (None, Some(503))] {
            let event = Event { status, ..refused(author, "10.0.0.9:1") };
            assert!(!Admission::is_free(&event), "{event:?}");
        }
    }

    #[test]
    fn a_source_is_who_it_is_or_a_machine() {
        let known = |who: &str| Source::Known(who.to_owned());
        let stranger = |who: &str| Source::Stranger(who.to_owned());
        let over_link = Event { door: Some("link".into()), ..refused(Some("made up 17"), "site2") };
        for (event, expected) in [
            (refused(Some("ada"), "10.0.0.9:1"), known("author ada")),
            (refused(Some("anonymous"), "10.0.0.9:1"), stranger("10.0.0.9")),
            (refused(None, "10.0.0.9:1"), stranger("10.0.0.9")),
            (refused(None, "[2001:db8::7]:1"), stranger("2001:db8::")),
            (refused(None, "user 1000"), stranger("user 1000")),
            (over_link, known("site site2")),
            (Event::link("10.0.0.9:1", "an unknown key"), stranger("10.0.0.9")),
            (Event::join("10.0.0.9:1", "site2", None), stranger("10.0.0.9")),
            (Event::record("site2", "web", "no"), known("site site2")),
        ] {
            assert_eq!(source(&event), expected, "{event:?}");
        }
    }
}
