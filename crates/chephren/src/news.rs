//! What happened and is not yet told to a page: collected for a short while, so that a page is told
//! often enough for people and never faster than it can ask.
//!
//! Each sort of event has its own pace: the first is told at once, what follows within the pace is told
//! together at its end. What must stay true:
//! - whatever happened is told, at the latest one pace after it happened;
//! - what waits is bounded: if too many resources have changed, the page is told to ask for everything.

use std::{
    collections::BTreeSet,
    mem,
    time::{Duration, Instant},
};

use cheops_agent::api::model::{Change, Happened};

use crate::live::{CONNECTED, LISTED, LISTS, RESOURCES, SITES, resource};

/// The pace of whatever concerns what is on the screen: more often is of no use to people.
const QUICK: Duration = Duration::from_millis(80);
/// The pace of resources that come and go: a list of them is made anew.
const COMING: Duration = Duration::from_millis(500);
/// The pace of whatever may concern any list of resources: several sites are asked to make one.
const CALM: Duration = Duration::from_secs(2);
/// How many resources are told of by name.
const MOST: usize = 500;

/// Something that is told at most once in a while.
#[derive(Debug)]
struct Pace {
    every: Duration,
    /// When it may be told again.
    free: Instant,
    /// There is something to tell.
    waits: bool,
}

impl Pace {
    fn new(every: Duration, now: Instant) -> Self {
        Self { every, free: now, waits: false }
    }

    /// Whether it is to be told now; then not again for a while.
    fn goes(&mut self, now: Instant) -> bool {
        let goes = self.waits && self.free <= now;
        if goes {
            (self.free, self.waits) = (now + self.every, false);
        }
        goes
    }
}

/// What waits to be told to one page.
#[derive(Debug)]
pub(crate) struct News {
    /// What is on the screen has changed: all of it, the sites, or some resources.
    quick: Pace,
    connected: bool,
    sites: bool,
    changed: BTreeSet<String>,
    coming: Pace,
    calm: Pace,
}

impl News {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            quick: Pace::new(QUICK, now),
            connected: false,
            sites: false,
            changed: BTreeSet::new(),
            coming: Pace::new(COMING, now),
            calm: Pace::new(CALM, now),
        }
    }

    /// Something has happened.
    pub(crate) fn add(&mut self, change: &Change) {
        match &change.what {
            Happened::Broken { .. } => return,
            Happened::Following => self.connected = true,
            Happened::SiteReturned { .. }
            | Happened::SiteLost { .. }
            | Happened::Refused { .. } => self.sites = true,
            what => {
                self.calm.waits = true;
                self.coming.waits |= comes_or_goes(what);
                if self.changed.len() < MOST {
                    self.changed.extend(change.resource.clone());
                } else {
                    self.connected = true;
                }
            }
        }
        self.quick.waits = true;
    }

    /// When something has to be told, if nothing else happens.
    pub(crate) fn next(&self) -> Option<Instant> {
        let paces = [&self.quick, &self.coming, &self.calm];
        paces.into_iter().filter(|pace| pace.waits).map(|pace| pace.free).min()
    }

    /// What is to be told now, as a browser reads it.
    pub(crate) fn due(&mut self, now: Instant) -> String {
        let mut told = String::new();
        let mut tell = |event: &str, data: &str| {
            told.extend(["event: ", event, "\ndata: ", data, "\n\n"]);
        };
        if self.quick.goes(now) {
            if mem::take(&mut self.connected) {
                tell(CONNECTED, "");
            }
            if mem::take(&mut self.sites) {
                tell(SITES, "");
            }
            let changed: Vec<String> = mem::take(&mut self.changed).into_iter().collect();
            if !changed.is_empty() {
                tell(RESOURCES, &changed.join(" "));
            }
            // For the page of each.
            for id in changed {
                tell(&resource(&id), "");
            }
        }
        if self.coming.goes(now) {
            tell(LISTED, "");
        }
        if self.calm.goes(now) {
            tell(LISTS, "");
        }
        told
    }
}

/// Whether a resource is there that was not, or no more. The first record of a site has the number 1; if
/// the resource has lived before, numbers go on, and lists follow at their own pace.
fn comes_or_goes(what: &Happened) -> bool {
    match what {
        Happened::Deleted => true,
        Happened::Operation { id, .. } => id.ends_with(":1"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(line: &str) -> Change {
        serde_json::from_str(line).unwrap()
    }

    fn reply(id: &str) -> Change {
        change(&format!(
            r#"{{"seq": 4, "site": "a", "resource": "{id}", "type": "shown", "peer": "a",
                "operation": "a:2", "print": null}}"#
        ))
    }

    /// The events of a text, each with its data.
    fn events(text: &str) -> Vec<(String, String)> {
        let event = |text: &str| {
            let (event, data) = text.split_once("\ndata: ").unwrap();
            (event.trim_start_matches("event: ").to_owned(), data.to_owned())
        };
        text.split_terminator("\n\n").map(event).collect()
    }

    #[test]
    fn a_change_is_told_to_those_whom_it_concerns() {
        let web = resource("web");
        for (line, expected) in [
            (r#"{"seq": 3, "site": "a", "type": "following"}"#, vec![("connected", "")]),
            (r#"{"site": "a", "type": "site-lost", "peer": "b"}"#, vec![("sites", "")]),
            (
                r#"{"seq": 4, "site": "a", "resource": "web", "type": "deleted"}"#,
                vec![("resources", "web"), (&*web, ""), ("listed", ""), ("lists", "")],
            ),
            (
                r#"{"seq": 4, "site": "a", "resource": "web", "type": "needs-decision"}"#,
                vec![("resources", "web"), (&*web, ""), ("lists", "")],
            ),
            (r#"{"site": "a", "type": "broken", "why": "x"}"#, vec![]),
        ] {
            let now = Instant::now();
            let mut news = News::new(now);
            news.add(&change(line));
            let told = events(&news.due(now));
            let told: Vec<(&str, &str)> = told.iter().map(|(e, d)| (&**e, &**d)).collect();
            assert_eq!(told, expected, "{line}");
            assert_eq!(news.next(), None, "{line}");
        }
    }

    #[test]
    fn the_first_is_told_at_once_and_what_follows_together() {
        let start = Instant::now();
        let mut news = News::new(start);
        news.add(&reply("a"));
        assert!(news.due(start).contains("data: a\n"));
        for id in ["c", "b", "c"] {
            news.add(&reply(id));
            assert_eq!(news.due(start + QUICK / 2), "");
        }
        assert_eq!(news.next(), Some(start + QUICK));
        let told = events(&news.due(start + QUICK));
        let (all, each) = told.split_first().unwrap();
        assert_eq!(*all, ("resources".to_owned(), "b c".to_owned()));
        assert_eq!(each, ["b", "c"].map(|id| (resource(id), String::new())));
        assert_eq!(news.next(), Some(start + CALM));
        assert_eq!(events(&news.due(start + CALM)), [("lists".to_owned(), String::new())]);
        assert_eq!(news.next(), None);
    }

    #[test]
    fn a_flood_stays_bounded_and_is_told() {
        let start = Instant::now();
        let mut news = News::new(start);
        let _ = news.due(start);
        (0..10 * MOST).for_each(|n| news.add(&reply(&format!("r{n}"))));
        assert!(news.changed.len() <= MOST);
        assert!(events(&news.due(start)).iter().any(|(event, _)| event == CONNECTED));
    }
}
