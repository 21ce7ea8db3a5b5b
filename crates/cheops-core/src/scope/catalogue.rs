//! What a site knows of the others: their names, how far they are, and which cannot be reached.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::time::Duration;

use crate::{id::SiteId, spelling::nearest};

/// How many sites a hint names before it breaks off.
const SHOWN: usize = 8;

/// The known sites, the measured round trips between them, and those known to be out of reach.
///
/// It is what is known now and may be stale; it decides what is tried first, and never that
/// something is not tried at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalogue {
    sites: BTreeSet<SiteId>,
    round_trips: BTreeMap<SiteId, BTreeMap<SiteId, Duration>>,
    unreachable: BTreeSet<SiteId>,
}

impl Catalogue {
    /// A catalogue of these sites, of which nothing else is known.
    pub fn new(sites: impl IntoIterator<Item = SiteId>) -> Self {
        Self { sites: sites.into_iter().collect(), ..Self::default() }
    }

    /// Notes a measured round trip. It counts in both directions, unless the other was measured too.
    pub fn measure(&mut self, from: SiteId, to: SiteId, round_trip: Duration) {
        self.round_trips.entry(from).or_default().insert(to, round_trip);
    }

    /// Notes whether a site can be reached. Until told otherwise, it can.
    pub fn set_reachable(&mut self, site: SiteId, reachable: bool) {
        if reachable {
            self.unreachable.remove(&site);
        } else {
            self.unreachable.insert(site);
        }
    }

    /// The known sites, in the order of their names.
    pub fn sites(&self) -> impl Iterator<Item = &SiteId> {
        self.sites.iter()
    }

    /// Whether the site is known.
    pub fn knows(&self, site: &SiteId) -> bool {
        self.sites.contains(site)
    }

    /// Whether nothing is known that speaks against reaching the site.
    pub fn is_reachable(&self, site: &SiteId) -> bool {
        !self.unreachable.contains(site)
    }

    /// The round trip between two sites; none if it was never measured.
    pub fn round_trip(&self, from: &SiteId, to: &SiteId) -> Option<Duration> {
        if from == to {
            return Some(Duration::ZERO);
        }
        let measured = |from, to| self.round_trips.get(from)?.get(to).copied();
        measured(from, to).or_else(|| measured(to, from))
    }

    /// The known sites within a radius of another, nearest first; itself too, at no distance.
    pub fn around(&self, centre: &SiteId, radius: Duration) -> Vec<(Duration, &SiteId)> {
        let mut near: Vec<_> = self
            .sites()
            .filter_map(|site| Some((self.round_trip(centre, site)?, site)))
            .filter(|(round_trip, _)| *round_trip <= radius)
            .collect();
        near.sort();
        near
    }

    /// What a text that names no known site was probably meant to be, as a hint.
    pub fn suggest(&self, text: &str) -> Option<String> {
        if let Some(joined) = self.split(text) {
            return Some(format!("did you mean `{joined}`?"));
        }
        if let Some(nearest) = nearest(text, self.sites().map(SiteId::as_str)) {
            return Some(format!("did you mean `{nearest}`?"));
        }
        let names: Vec<_> = self.sites().take(SHOWN).map(|site| format!("`{site}`")).collect();
        let more = if self.sites.len() > SHOWN { ", …" } else { "" };
        (!names.is_empty()).then(|| format!("the known sites are {}{more}", names.join(", ")))
    }

    /// `site1 site2` as `site1 & site2`: a forgotten operator reads as one name with a space in it.
    fn split(&self, text: &str) -> Option<String> {
        text.match_indices(' ').find_map(|(at, _)| {
            let (left, right) = (text[..at].parse().ok()?, text[at + 1..].parse().ok()?);
            (self.knows(&left) && self.knows(&right)).then(|| format!("{left} & {right}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> SiteId {
        name.parse().unwrap()
    }

    #[test]
    fn suggestions() {
        let catalogue = Catalogue::new(["site1", "site2", "Évry", "DC 1"].map(site));
        for (text, hint) in [
            ("sitee2", "did you mean `site2`?"),
            ("SITE1", "did you mean `site1`?"),
            ("évri", "did you mean `Évry`?"),
            ("site1 site2", "did you mean `site1 & site2`?"),
            ("site1 DC 1", "did you mean `site1 & DC 1`?"),
            ("paris", "the known sites are `DC 1`, `site1`, `site2`, `Évry`"),
        ] {
            assert_eq!(catalogue.suggest(text).as_deref(), Some(hint), "{text}");
        }
        assert_eq!(Catalogue::default().suggest("a"), None);
    }

    #[test]
    fn near_sites_come_nearest_first() {
        let mut catalogue = Catalogue::new(["a", "b", "c", "d", "e"].map(site));
        let ms = Duration::from_millis;
        catalogue.measure(site("a"), site("b"), ms(9));
        catalogue.measure(site("c"), site("a"), ms(5));
        catalogue.measure(site("a"), site("d"), ms(11));
        catalogue.measure(site("a"), site("stranger"), ms(1));
        let near = |radius| -> Vec<String> {
            catalogue.around(&site("a"), ms(radius)).iter().map(|(_, s)| format!("{s}")).collect()
        };
        assert_eq!(near(10), ["a", "c", "b"]);
        assert_eq!(near(11), ["a", "c", "b", "d"]);
        assert_eq!(near(0), ["a"]);
    }
}
