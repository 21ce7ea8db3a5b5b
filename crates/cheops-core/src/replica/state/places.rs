//! A set of places in a block, in which the first and the last are found without a walk.
//!
//! What must stay true: a bit of `words` is set exactly where a word of `bits` is not zero.

use alloc::vec::Vec;

const BITS: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    bits: Vec<u64>,
    words: Vec<u64>,
}

impl Places {
    pub(super) fn set(&mut self, place: usize, is_in: bool) {
        if is_in {
            self.insert(place);
        } else {
            self.remove(place);
        }
    }

    fn insert(&mut self, place: usize) {
        let (word, bit) = (place / BITS, place % BITS);
        if self.bits.len() <= word {
            self.bits.resize(word + 1, 0);
            self.words.resize(word / BITS + 1, 0);
        }
        self.bits[word] |= 1 << bit;
        self.words[word / BITS] |= 1 << (word % BITS);
    }

    fn remove(&mut self, place: usize) {
        let (word, bit) = (place / BITS, place % BITS);
        if let Some(bits) = self.bits.get_mut(word) {
            *bits &= !(1 << bit);
            if *bits == 0 {
                self.words[word / BITS] &= !(1 << (word % BITS));
            }
        }
    }

    /// Removes all from a place on.
    pub(super) fn truncate(&mut self, from: usize) {
        let (word, bit) = (from / BITS, from % BITS);
        if self.bits.len() <= word {
            return;
        }
        let left = self.bits[word] & ((1 << bit) - 1);
        self.bits.truncate(word);
        self.words.truncate(word.div_ceil(BITS));
        if !word.is_multiple_of(BITS) {
            self.words[word / BITS] &= (1 << (word % BITS)) - 1;
        }
        if left != 0 {
            self.bits.push(left);
            self.words.resize(word / BITS + 1, 0);
            self.words[word / BITS] |= 1 << (word % BITS);
        }
    }

    /// The first place at or after one.
    pub(super) fn first_from(&self, from: usize) -> Option<usize> {
        let (word, bit) = (from / BITS, from % BITS);
        let here = self.bits.get(word)? & (u64::MAX << bit);
        if here != 0 {
            return Some(word * BITS + here.trailing_zeros() as usize);
        }
        let word = first(&self.words, word + 1)?;
        Some(word * BITS + self.bits[word].trailing_zeros() as usize)
    }

    /// The last place.
    pub(super) fn last(&self) -> Option<usize> {
        let group = self.words.iter().rposition(|&words| words != 0)?;
        let word = group * BITS + top(self.words[group]);
        Some(word * BITS + top(self.bits[word]))
    }
}

/// The first bit that is set at or after one.
fn first(words: &[u64], from: usize) -> Option<usize> {
    let (word, bit) = (from / BITS, from % BITS);
    let here = words.get(word)? & (u64::MAX << bit);
    if here != 0 {
        return Some(word * BITS + here.trailing_zeros() as usize);
    }
    let after = words[word + 1..].iter().position(|&bits| bits != 0)?;
    let word = word + 1 + after;
    Some(word * BITS + words[word].trailing_zeros() as usize)
}

fn top(bits: u64) -> usize {
    BITS - 1 - bits.leading_zeros() as usize
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn it_is_a_set() {
        let mut rng = fastrand::Rng::with_seed(7);
        for most in [1, 63, 64, 65, 4_096, 4_097, 20_000] {
            let (mut places, mut set) = (Places::default(), BTreeSet::new());
            for _ in 0..2_000 {
                let place = rng.usize(..most);
                match rng.u8(..20) {
                    0 => {
                        places.truncate(place);
                        set.split_off(&place);
                    }
                    1..8 => {
                        places.set(place, false);
                        set.remove(&place);
                    }
                    _ => {
                        places.set(place, true);
                        set.insert(place);
                    }
                }
                assert_eq!(places.last(), set.last().copied());
                let from = rng.usize(..most + 100);
                assert_eq!(places.first_from(from), set.range(from..).next().copied());
            }
        }
    }
}
