//! Who tells of an operation for all sites together, when nothing more will come of it.
//!
//! The site that received it does. If that is gone for a while, the next site of the resource does, in
//! the order of names; and so on. Nobody asks anybody: each site decides by what it sees. So two that
//! don't see each other may both tell; what they tell has the same id.
//!
//! What must stay true: if the sites that are left can see each other, one of them tells; and the site
//! that received the operation always does, sooner or later.

use cheops_core::id::SiteId;

/// What a site does about an operation of which nothing more will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It tells.
    Tell,
    /// It looks again at this time.
    Wait(u64),
    /// Another tells.
    Leave,
}

/// What is known when a site decides. Times are in milliseconds, of one clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The site that decides.
    pub(crate) here: &'a SiteId,
    /// The site that received the operation.
    pub(crate) origin: &'a SiteId,
    /// The sites of the resource.
    pub(crate) sites: &'a [SiteId],
    /// When this site learnt that nothing more will come.
    pub(crate) since: u64,
    /// The time.
    pub(crate) now: u64,
    /// How long each site waits for those before it.
    pub(crate) patience: u64,
}

/// Whose turn it is, as seen at one site.
pub(crate) fn turn(view: &View<'_>, is_reachable: impl Fn(&SiteId) -> bool) -> Turn {
    let View { here, origin, sites, since, now, patience } = *view;
    if here == origin {
        return Turn::Tell;
    }
    let mut others: Vec<&SiteId> = sites.iter().filter(|site| *site != origin).collect();
    others.sort();
    let before = others.iter().take_while(|site| **site != here).copied();
    let line: Vec<&SiteId> = [origin].into_iter().chain(before).collect();
    let until = since.saturating_add(patience.saturating_mul(line.len() as u64));
    if now < until {
        Turn::Wait(until)
    } else if line.into_iter().any(is_reachable) {
        Turn::Leave
    } else {
        Turn::Tell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(n: u8) -> SiteId {
        format!("site{n}").parse().unwrap()
    }

    #[test]
    fn the_origin_tells_and_others_take_over_one_after_the_other() {
        let sites = [site(1), site(2), site(3)];
        for (here, origin, now, up, expected) in [
            (2, 2, 0, &[][..], Turn::Tell),
            (1, 2, 0, &[2, 3], Turn::Wait(60)),
            (1, 2, 59, &[], Turn::Wait(60)),
            (1, 2, 60, &[3], Turn::Tell),
            (1, 2, 60, &[2], Turn::Leave),
            (3, 2, 60, &[], Turn::Wait(120)),
            (3, 2, 120, &[1], Turn::Leave),
            (3, 2, 120, &[2], Turn::Leave),
            (3, 2, 120, &[], Turn::Tell),
            (3, 1, 500, &[], Turn::Tell),
        ] {
            let (here, origin) = (site(here), site(origin));
            let view =
                View { here: &here, origin: &origin, sites: &sites, since: 0, now, patience: 60 };
            let up: Vec<SiteId> = up.iter().copied().map(site).collect();
            let found = turn(&view, |site| up.contains(site));
            assert_eq!(found, expected, "{here} of {origin} at {now} with {up:?}");
        }
    }

    /// Of sites that all see each other, and know of the end at the same time, exactly one tells.
    #[test]
    fn of_those_that_are_left_one_tells() {
        let sites: Vec<SiteId> = (1..=4).map(site).collect();
        for origin in 1..=4 {
            for gone in 0..16_u8 {
                let is_up = |n: u8| gone & (1 << (n - 1)) == 0;
                let tells = |n: &u8| {
                    let (here, origin) = (site(*n), site(origin));
                    let view = View {
                        here: &here,
                        origin: &origin,
                        sites: &sites,
                        since: 0,
                        now: 1_000,
                        patience: 10,
                    };
                    let up = |other: &SiteId| (1..=4).any(|m| is_up(m) && site(m) == *other);
                    turn(&view, up) == Turn::Tell
                };
                let told = (1..=4).filter(|n| is_up(*n)).filter(tells).count();
                assert_eq!(told, usize::from(gone != 15), "{origin} {gone:04b}");
            }
        }
    }
}
