//! The chain of lines: each has the hash of the one before.
//!
//! All of it is arithmetic on bytes. What must stay true:
//! - whoever changes, removes or moves a line, or puts one in, and does not write all that follows
//!   anew, is found, and the place with it;
//! - what follows written anew does not end in the hash that the head has;
//! - a head is good only if the key of the site has signed it.

use std::fmt::Write as _;

use blake3::Hash;
use cheops_core::trust::PublicKey;
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Event};

/// The longest line, in bytes.
pub const LONGEST: usize = 64 << 10;

/// What the hash of a line is made for, and what is signed.
const LINE: &str = "Cheops: a line of the audit";
const HEAD: &[u8] = b"Cheops: the head of the audit\0";

/// What stands before the first line.
const NOTHING: Hash = Hash::from_bytes([0; 32]);

/// The hash of a line, without its end.
pub fn hash(line: &[u8]) -> Hash {
    Hash::from_bytes(blake3::derive_key(LINE, line))
}

/// The last line of a record: where it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Last {
    /// Its number.
    pub n: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Default for Last {
    fn default() -> Self {
        Self { n: 0, hash: NOTHING }
    }
}

impl Last {
    /// What a line is the last one of, if it is a line.
    pub fn of(line: &[u8]) -> Option<Self> {
        let Numbered { n, .. } = serde_json::from_slice(line).ok()?;
        Some(Self { n, hash: hash(line) })
    }

    /// The next line, with its end, which then is the last.
    pub fn follow(&mut self, at: String, event: Event) -> Vec<u8> {
        let n = self.n + 1;
        let before = self.hash.to_hex().to_string();
        let entry = Entry { n, at, event: event.shortened(), before };
        // Nothing in it can fail to be written as JSON.
        let mut line = serde_json::to_vec(&entry).unwrap_or_default();
        *self = Self { n, hash: hash(&line) };
        line.push(b'\n');
        line
    }
}

/// All of a line that its place depends on: later versions may say more.
#[derive(Deserialize)]
struct Numbered {
    n: u64,
    before: String,
}

/// How a chain is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A line is none.
    #[error("what follows line {after} is not a line of the audit")]
    Unreadable {
        /// The number of the line before.
        after: u64,
    },
    /// Lines are not there.
    #[error("{} missing: removed, or moved", Lines(*from, *to))]
    Missing {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// A line stands where it does not belong.
    #[error("line {n} stands after line {after}: it was moved, or put in")]
    Moved {
        /// Its number.
        n: u64,
        /// The number of the line before.
        after: u64,
    },
    /// A line is not the one that the next was written after.
    #[error("line {n} was changed after it was written")]
    Altered {
        /// Its number.
        n: u64,
    },
    /// The end is not there.
    #[error("the end was cut off: {} missing", Lines(*from, *to))]
    Cut {
        /// The first of the lines that are missing.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// The head is signed with another key, or not for this.
    #[error("the head is not signed by this site: it was changed, or belongs to another")]
    Head,
}

/// Some lines, in words.
struct Lines(u64, u64);

impl std::fmt::Display for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self(from, to) if from == to => write!(f, "line {from} is"),
            Self(from, to) => write!(f, "lines {from} to {to} are"),
        }
    }
}

/// Checks one line after the other.
#[derive(Debug, Clone, Default)]
pub struct Chain {
    last: Option<Last>,
}

impl Chain {
    /// Takes the next line, without its end. After an error, nothing more can be said.
    pub fn push(&mut self, line: &[u8]) -> Result<Last, Broken> {
        let unreadable = Broken::Unreadable { after: self.last.map_or(0, |last| last.n) };
        let Ok(Numbered { n, before }) = serde_json::from_slice(line) else {
            return Err(unreadable);
        };
        let Ok(before) = Hash::from_hex(before.as_bytes()) else { return Err(unreadable) };
        match self.last {
            // Those before the first that is kept may be gone; before line 1 there was none.
            None if n == 1 && before != NOTHING => return Err(Broken::Altered { n: 1 }),
            Some(last) if n > last.n.saturating_add(1) => {
                return Err(Broken::Missing { from: last.n + 1, to: n - 1 });
            }
            Some(last) if n <= last.n => return Err(Broken::Moved { n, after: last.n }),
            Some(last) if before != last.hash => return Err(Broken::Altered { n: last.n }),
            _ => {}
        }
        let last = Last { n, hash: hash(line) };
        self.last = Some(last);
        Ok(last)
    }

    /// The last line that was taken.
    pub fn last(&self) -> Option<Last> {
        self.last
    }
}

/// Checks lines, and says which is the last.
pub fn check<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Result<Option<Last>, Broken> {
    let mut chain = Chain::default();
    for line in lines {
        chain.push(line)?;
    }
    Ok(chain.last())
}

/// Where a record begins and ends, signed by the site: kept beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The number of the first line that is kept.
    pub first: u64,
    /// The number of the last line.
    pub n: u64,
    /// Its hash.
    pub hash: String,
    /// The key of the site.
    pub key: String,
    signature: String,
}

impl Head {
    /// The head of a record, signed.
    pub fn sign(first: u64, last: Last, key: &PublicKey, sign: impl Fn(&[u8]) -> [u8; 64]) -> Self {
        let signature = sign(&statement(first, last));
        let (hash, key) = (last.hash.to_hex().to_string(), key.to_string());
        Self { first, n: last.n, hash, key, signature: hex(&signature) }
    }

    /// The last line, if the site with this key has signed it.
    pub fn last(&self, key: &PublicKey) -> Option<Last> {
        let last = Last { n: self.n, hash: Hash::from_hex(self.hash.as_bytes()).ok()? };
        let signature = from_hex(&self.signature)?;
        let signed = UnparsedPublicKey::new(&ED25519, key.as_bytes());
        signed.verify(&statement(self.first, last), &signature).ok()?;
        Some(last)
    }
}

fn statement(first: u64, last: Last) -> Vec<u8> {
    [HEAD, &first.to_be_bytes(), &last.n.to_be_bytes(), last.hash.as_bytes()].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{audit::entry::What, trust::Identity};

    fn record(count: u64) -> Vec<Vec<u8>> {
        let mut last = Last::default();
        let line = |n: u64| {
            let event = Event { author: Some(format!("ada{n}")), ..Event::of(What::Request) };
            let mut line = last.follow(format!("2026-01-01T00:00:{n:02}Z"), event);
            assert_eq!(line.pop(), Some(b'\n'));
            line
        };
        (1..=count).map(line).collect()
    }

    fn checked(lines: &[Vec<u8>]) -> Result<Option<u64>, Broken> {
        check(lines.iter().map(Vec::as_slice)).map(|last| last.map(|last| last.n))
    }

    #[test]
    fn a_record_that_nobody_has_touched_is_whole() {
        assert_eq!(checked(&[]), Ok(None));
        assert_eq!(checked(&record(1)), Ok(Some(1)));
        assert_eq!(checked(&record(9)), Ok(Some(9)));
        // The first files may have been put away.
        assert_eq!(checked(&record(9)[4..]), Ok(Some(9)));
    }

    #[test]
    fn the_place_is_found_where_a_record_was_touched() {
        let good = record(9);
        let with = |change: fn(&mut Vec<Vec<u8>>)| {
            let mut lines = good.clone();
            change(&mut lines);
            checked(&lines).unwrap_err()
        };
        for (found, expected) in [
            (
                with(|lines| {
                    let text = String::from_utf8(lines[3].clone()).unwrap();
                    lines[3] = text.replace("ada4", "eve4").into_bytes();
                }),
                Broken::Altered { n: 4 },
            ),
            (with(|lines| drop(lines.remove(3))), Broken::Missing { from: 4, to: 4 }),
            (with(|lines| drop(lines.drain(3..6))), Broken::Missing { from: 4, to: 6 }),
            (with(|lines| lines.swap(3, 4)), Broken::Missing { from: 4, to: 4 }),
            (with(|lines| lines.insert(4, lines[1].clone())), Broken::Moved { n: 2, after: 4 }),
            (with(|lines| lines.insert(4, lines[3].clone())), Broken::Moved { n: 4, after: 4 }),
            (with(|lines| lines[3].truncate(20)), Broken::Unreadable { after: 3 }),
            (with(|lines| lines[3].clear()), Broken::Unreadable { after: 3 }),
        ] {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn no_bit_of_a_record_can_be_turned() {
        let good = record(3);
        let end = check(good.iter().map(Vec::as_slice)).unwrap();
        for bit in 0..good[1].len() * 8 {
            let mut lines = good.clone();
            lines[1][bit / 8] ^= 1 << (bit % 8);
            let found = check(lines.iter().map(Vec::as_slice));
            assert!(found.is_err(), "bit {bit}");
        }
        // Of the last line, it is the head that tells.
        for bit in 0..good[2].len() * 8 {
            let mut lines = good.clone();
            lines[2][bit / 8] ^= 1 << (bit % 8);
            assert_ne!(check(lines.iter().map(Vec::as_slice)), Ok(end), "bit {bit}");
        }
    }

    #[test]
    fn a_head_is_that_of_one_record_and_of_one_site() {
        let [here, other] = [[1; 32], [2; 32]].map(|seed| Identity::from_seed(&seed).unwrap());
        let last = Last::of(&record(4)[3]).unwrap();
        let head = Head::sign(2, last, &here.public(), |bytes| here.sign(bytes));
        let again: Head = serde_json::from_slice(&serde_json::to_vec(&head).unwrap()).unwrap();
        assert_eq!(again.last(&here.public()), Some(last));
        assert_eq!(head.last(&other.public()), None);
        for changed in [
            Head { first: 1, ..head.clone() },
            Head { n: 3, ..head.clone() },
            Head { hash: NOTHING.to_hex().to_string(), ..head.clone() },
            Head { hash: "no".into(), ..head.clone() },
            Head { signature: "0g".into(), ..head.clone() },
            Head { signature: String::new(), ..head.clone() },
        ] {
            assert_eq!(changed.last(&here.public()), None, "{changed:?}");
        }
    }
}
