//! Parts: one resource over several sites, each of which does its share of every operation.
//!
//! What must stay true: a list of parts is empty or has at least two, and a site is in one of them at
//! most, so that it has one share; the shares of a number add up to it.

use alloc::collections::BTreeSet;

use super::Config;
use crate::id::{SiteId, Sites};

/// What of a resource is at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// Which part, counted from 0: that is the prime one.
    pub part: usize,
    /// How many parts there are.
    pub parts: usize,
}

/// Sets of sites that can't be the parts of one resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    /// There is one part, which is the whole.
    #[error("a resource in parts has at least two")]
    Alone,
    /// A site has two parts.
    #[error("`{0}` has two parts")]
    Twice(SiteId),
}

impl Share {
    /// This part's share of a number: all parts have the same, and the first ones one more if it does
    /// not come out even. 10 in three parts is 4, 3 and 3.
    pub fn of(self, whole: u64) -> u64 {
        let (Ok(part), Ok(parts)) = (u64::try_from(self.part), u64::try_from(self.parts)) else {
            return 0;
        };
        match (whole.checked_div(parts), whole.checked_rem(parts)) {
            (Some(each), Some(left)) => each + u64::from(part < left),
            _ => 0,
        }
    }
}

/// Whether these can be the parts of a resource. None at all means that it has none.
pub fn check_parts(parts: &[Sites]) -> Result<(), PartsError> {
    if parts.len() == 1 {
        return Err(PartsError::Alone);
    }
    let mut seen = BTreeSet::new();
    match parts.iter().flat_map(Sites::iter).find(|site| !seen.insert(*site)) {
        Some(site) => Err(PartsError::Twice(site.clone())),
        None => Ok(()),
    }
}

impl Config {
    /// What of the resource is at a site; nothing if it is not in parts, or none of them is there.
    pub fn share(&self, site: &SiteId) -> Option<Share> {
        let part = self.parts.iter().position(|sites| sites.contains(site))?;
        Some(Share { part, parts: self.parts.len() })
    }

    /// Whether it says anything besides which parts there are.
    pub fn says_more_than_parts(&self) -> bool {
        let Self { matrix, show, reset, check, timeout, parts: _ } = self;
        !matrix.entries().is_empty()
            || [show, reset, check].into_iter().any(Option::is_some)
            || timeout.is_some()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_shares_of_a_number_add_up_to_it() {
        for (whole, parts, expected) in [
            (10, 3, &[4, 3, 3][..]),
            (9, 3, &[3, 3, 3]),
            (2, 3, &[1, 1, 0]),
            (0, 2, &[0, 0]),
            (7, 1, &[7]),
            (u64::MAX, 2, &[u64::MAX / 2 + 1, u64::MAX / 2]),
        ] {
            let shares: Vec<u64> = (0..parts).map(|part| Share { part, parts }.of(whole)).collect();
            assert_eq!(shares, expected, "{whole} in {parts}");
        }
        assert_eq!(Share { part: 0, parts: 0 }.of(7), 0);
    }

    #[test]
    fn a_site_has_one_part() {
        let sites =
            |names: &[&str]| Sites::new(names.iter().map(|name| name.parse().unwrap())).unwrap();
        let config =
            Config { parts: [sites(&["b"]), sites(&["a", "c"])].into(), ..Config::default() };
        let share = |name: &str| config.share(&name.parse().unwrap());
        assert_eq!(share("b"), Some(Share { part: 0, parts: 2 }));
        assert_eq!(share("a"), Some(Share { part: 1, parts: 2 }));
        assert_eq!(share("c"), Some(Share { part: 1, parts: 2 }));
        assert_eq!(share("d"), None);
        assert_eq!(check_parts(&config.parts), Ok(()));
        assert_eq!(check_parts(&[]), Ok(()));
        assert_eq!(check_parts(&[sites(&["a"])]), Err(PartsError::Alone));
        let twice = check_parts(&[sites(&["a", "b"]), sites(&["c", "b"])]);
        assert_eq!(twice, Err(PartsError::Twice("b".parse().unwrap())));
    }
}
