//! How often one who asks may do so, buckets that fill with time; and how much one may have at once, places
//! that are shared; and how often the same is said.
//!
//! Arithmetic alone: whoever calls says what time it is. What must stay true:
//! - in any stretch of time nobody gets more than the burst and the rate times its length; who stays below
//!   both is never refused; and however many ask, the table of buckets is bounded;
//! - there are never more places taken than there are, and nobody has more than a share; a place that is
//!   given back is free at once;
//! - what happens very often is said now and then, with how often.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How many buckets a table has at most.
const MOST: usize = 8_192;

/// What one who asks has taken.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bucket {
    /// The moment at which it is full again, if nothing more is taken.
    full_at: Duration,
}

impl Bucket {
    /// Takes one, or says how long it is until there is one.
    pub fn take(&mut self, rate: u32, burst: u32, now: Duration) -> Result<(), Duration> {
        let each = Duration::from_secs(1) / rate.max(1);
        let room = each * burst.max(1);
        let full_at = self.full_at.max(now) + each;
        let over = full_at.saturating_sub(now + room);
        if over.is_zero() {
            self.full_at = full_at;
            Ok(())
        } else {
            Err(over)
        }
    }
}

/// A bucket for each one who asks. The ones who have asked least recently are forgotten first, which
/// gives them a full bucket.
#[derive(Debug)]
pub struct Buckets {
    rate: u32,
    burst: u32,
    /// Those who asked since the table was last turned over, and those who did before that.
    young: HashMap<String, Bucket>,
    old: HashMap<String, Bucket>,
}

impl Buckets {
    /// A table without anyone in it.
    pub fn new(rate: u32, burst: u32) -> Self {
        Self { rate, burst, young: HashMap::new(), old: HashMap::new() }
    }

    /// Takes one from the bucket of somebody, or says how long it is until there is one.
    pub fn take(&mut self, who: &str, now: Duration) -> Result<(), Duration> {
        if let Some(bucket) = self.young.get_mut(who) {
            return bucket.take(self.rate, self.burst, now);
        }
        if self.young.len() >= MOST / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        let mut bucket = self.old.remove(who).unwrap_or_default();
        let taken = bucket.take(self.rate, self.burst, now);
        self.young.insert(who.to_owned(), bucket);
        taken
    }
}

/// What one machine can't have many of: whoever is told apart by an address is by this.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Who shares places with all others of its machine. Those of this machine are not told apart, and may have all.
pub fn sharer(address: IpAddr) -> Option<String> {
    let address = address.to_canonical();
    (!address.is_loopback()).then(|| network(address).to_string())
}

/// Places for those who stay for a while. Clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    most: usize,
    share: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// How many each has; whoever has none is not in it.
    each: HashMap<String, usize>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace {
    /// All are taken.
    All,
    /// Who asks has its share.
    Share,
}

impl Places {
    /// So many places, of which one may have a part: half of them for 2; but four where they are few.
    pub fn new(most: usize, part: usize) -> Self {
        let share = (most / part.max(1)).max(4).min(most);
        Self { most, share, taken: Arc::default() }
    }

    /// How many of them one may have.
    pub fn share(&self) -> usize {
        self.share
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for somebody, or for one who may have them all. Who has its share is told so, even if all are taken.
    pub fn take(&self, who: Option<String>) -> Result<Place, NoPlace> {
        let mut taken = self.lock();
        let has = who.as_ref().and_then(|who| taken.each.get(who)).copied().unwrap_or(0);
        if has >= self.share && who.is_some() {
            return Err(NoPlace::Share);
        }
        if taken.all >= self.most {
            return Err(NoPlace::All);
        }
        if let Some(who) = &who {
            taken.each.insert(who.clone(), has + 1);
        }
        taken.all += 1;
        Ok(Place { places: self.clone(), who })
    }
}

/// A place that somebody has. It is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    who: Option<String>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        let Some(who) = &self.who else { return };
        if let Some(has) = taken.each.get_mut(who) {
            *has -= 1;
            if *has == 0 {
                taken.each.remove(who);
            }
        }
    }
}

/// What happens again and again, and is said a few times a minute.
#[derive(Debug)]
pub struct Seldom {
    most: u32,
    state: Mutex<Minute>,
}

#[derive(Debug, Default)]
struct Minute {
    /// When the minute began, and how often it was said since.
    began: Option<Instant>,
    said: u32,
    /// How often it has happened since it was last said.
    unsaid: u64,
}

impl Seldom {
    /// What is said so many times a minute at most.
    pub fn new(most: u32) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// It has happened: how often before that nothing was said, if it is to be said now.
    pub fn again(&self, now: Instant) -> Option<u64> {
        const MINUTE: Duration = Duration::from_mins(1);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.began.is_none_or(|began| now.duration_since(began) >= MINUTE) {
            (state.began, state.said) = (Some(now), 0);
        }
        if state.said >= self.most {
            state.unsaid += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut bucket = Bucket::default();
        let mut take = |at| bucket.take(10, 3, ms(at));
        assert_eq!([take(0), take(0), take(0)], [Ok(()); 3]);
        assert_eq!(take(0), Err(ms(100)));
        assert_eq!(take(60), Err(ms(40)));
        assert_eq!(take(100), Ok(()));
        assert_eq!(take(100), Err(ms(100)));
        // However long it is quiet, there is never more than a burst.
        let later = 1_000_000;
        assert_eq!([take(later), take(later), take(later)], [Ok(()); 3]);
        assert_eq!(take(later), Err(ms(100)));
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_the_burst_and_the_rate(
            rate in 1_u32..50, burst in 1_u32..50, gaps in prop::collection::vec(0_u64..200, 1..300),
        ) {
            let (mut bucket, mut now, mut got) = (Bucket::default(), 0, Vec::new());
            for gap in gaps {
                now += gap;
                match bucket.take(rate, burst, ms(now)) {
                    Ok(()) => got.push(now),
                    // And whoever waits for as long as it is told gets one.
                    Err(wait) => {
                        let mut later = bucket;
                        prop_assert!(later.take(rate, burst, ms(now) + wait).is_ok());
                    }
                }
            }
            for (n, from) in got.iter().enumerate() {
                for (count, to) in got[n..].iter().enumerate() {
                    let allowed = u64::from(burst) * 1_000 + (to - from) * u64::from(rate);
                    prop_assert!((count as u64 + 1) * 1_000 <= allowed + 1_000, "{from} to {to}");
                }
            }
        }
    }

    #[test]
    fn nobody_pays_for_another_and_the_table_is_bounded() {
        let mut buckets = Buckets::new(1, 1);
        for n in 0..100_000 {
            assert_eq!(buckets.take(&n.to_string(), ms(0)), Ok(()), "{n}");
            assert!(buckets.young.len() + buckets.old.len() <= MOST);
        }
        // Who goes on asking is not forgotten.
        let mut buckets = Buckets::new(1, 1);
        assert_eq!(buckets.take("eve", ms(0)), Ok(()));
        for n in 0..20_000 {
            buckets.take(&n.to_string(), ms(0)).unwrap();
            if n % 1_000 == 0 {
                assert!(buckets.take("eve", ms(0)).is_err(), "after {n}");
            }
        }
    }

    #[test]
    fn one_machine_has_one_bucket() {
        for (a, b, same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            let [a, b] = [a, b].map(|ip| network(ip.parse().unwrap()));
            assert_eq!(a == b, same, "{a} {b}");
        }
    }

    #[test]
    fn places_are_shared_by_machine_and_those_of_this_one_are_not_told_apart() {
        let of = |text: &str| sharer(text.parse().unwrap());
        for here in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(of(here), None, "{here}");
        }
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
    }

    #[test]
    fn nobody_has_more_than_a_share_and_what_is_given_back_is_free() {
        let places = Places::new(32, 4);
        let take = |who: &str| places.take(Some(who.to_owned()));
        let mut eve: Vec<_> = (0..8).map(|_| take("eve").unwrap()).collect();
        assert_eq!(take("eve").unwrap_err(), NoPlace::Share);
        let ada: Vec<_> = (0..8).map(|_| take("ada").unwrap()).collect();
        eve.pop();
        eve.push(take("eve").unwrap());
        let here: Vec<_> = (0..16).map(|_| places.take(None).unwrap()).collect();
        assert_eq!(take("bob").unwrap_err(), NoPlace::All);
        assert_eq!(take("eve").unwrap_err(), NoPlace::Share);
        assert_eq!(places.take(None).unwrap_err(), NoPlace::All);
        drop((eve, ada, here));
        assert!(places.lock().each.is_empty() && places.lock().all == 0);
    }

    #[test]
    fn few_places_have_a_share_too() {
        for (most, share) in [(1, 1), (2, 2), (4, 4), (6, 4), (16, 4), (128, 32)] {
            assert_eq!(Places::new(most, 4).share(), share, "{most}");
        }
    }

    #[test]
    fn what_happens_very_often_is_said_a_few_times_a_minute_with_how_often() {
        let (seldom, start) = (Seldom::new(2), Instant::now());
        let again = |at| seldom.again(start + ms(at));
        assert_eq!([again(0), again(5)], [Some(0); 2]);
        for n in 0..1_000 {
            assert_eq!(again(6 + n), None);
        }
        assert_eq!(again(60_000), Some(1_000));
        assert_eq!([again(60_001), again(60_002)], [Some(0), None]);
    }
}
