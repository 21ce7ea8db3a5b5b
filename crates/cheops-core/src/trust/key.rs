//! Public keys, and how people write them.
//!
//! A key is written as seven groups of eight letters and digits, which say the key and end with a check
//! of it: whoever types it wrong is told so, instead of waiting for a site that is never recognised.

use alloc::{string::String, vec::Vec};
use core::{fmt, hash::Hasher as _, str::FromStr};

/// How many bytes a key has.
const LENGTH: usize = 32;
/// How many bytes of its check are written with it.
const CHECK: usize = 3;
/// How many letters there are between two hyphens, and in all.
const GROUP: usize = 8;
const WRITTEN: usize = 56;
/// The letters, without the digits that look like some of them; each stands for five bits.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The public key of a site (Ed25519).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; LENGTH]);

/// A text that is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Too few or too many letters.
    #[error("a key has {WRITTEN} letters and digits, and this has {0}: was it cut off?")]
    Length(usize),
    /// Something that is not in any key.
    #[error("a key has the letters a to z and the digits 2 to 7, and not `{0}`")]
    Letter(char),
    /// The check at its end does not fit.
    #[error("the key has a typing error: its end does not fit the rest")]
    Check,
}

impl PublicKey {
    /// The key with these bytes.
    pub const fn from_bytes(bytes: [u8; LENGTH]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; LENGTH] {
        &self.0
    }

    /// Its first group: enough to tell the keys of a few sites apart.
    pub fn short(&self) -> String {
        letters(&self.0).take(GROUP).collect()
    }

    fn check(&self) -> [u8; CHECK] {
        let mut hasher = siphasher::sip::SipHasher13::new();
        hasher.write(&self.0);
        let [a, b, c, ..] = hasher.finish().to_le_bytes();
        [a, b, c]
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: Vec<u8> = self.0.into_iter().chain(self.check()).collect();
        for (n, letter) in letters(&bytes).enumerate() {
            if n > 0 && n % GROUP == 0 {
                f.write_str("-")?;
            }
            write!(f, "{letter}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let letters = text.chars().filter(|letter| *letter != '-' && !letter.is_whitespace());
        let values = letters.map(value).collect::<Result<Vec<u8>, KeyError>>()?;
        let bytes = packed(&values);
        match bytes.split_first_chunk() {
            Some((key, check)) if values.len() == WRITTEN => {
                let key = Self(*key);
                if key.check() == check { Ok(key) } else { Err(KeyError::Check) }
            }
            _ => Err(KeyError::Length(values.len())),
        }
    }
}

/// Bytes as letters of five bits each, the first bits first.
fn letters(bytes: &[u8]) -> impl Iterator<Item = char> + '_ {
    let bit = |n: usize| bytes.get(n / 8).is_some_and(|byte| byte >> (7 - n % 8) & 1 == 1);
    (0..(bytes.len() * 8).div_ceil(5)).map(move |letter| {
        let value = (0..5).fold(0, |value, n| value << 1 | usize::from(bit(letter * 5 + n)));
        char::from(LETTERS[value])
    })
}

/// What a letter stands for.
fn value(letter: char) -> Result<u8, KeyError> {
    match letter.to_ascii_lowercase() {
        letter @ 'a'..='z' => Ok(letter as u8 - b'a'),
        digit @ '2'..='7' => Ok(digit as u8 - b'2' + 26),
        _ => Err(KeyError::Letter(letter)),
    }
}

/// Values of five bits each as bytes; bits that make no whole byte are left out.
fn packed(values: &[u8]) -> Vec<u8> {
    let bit = |n: usize| values[n / 5] >> (4 - n % 5) & 1;
    (0..values.len() * 5 / 8)
        .map(|byte| (0..8).fold(0, |value, n| value << 1 | bit(byte * 8 + n)))
        .collect()
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::ToString as _};

    use proptest::{prelude::*, test_runner::TestCaseError};

    use super::*;

    proptest! {
        #[test]
        fn a_key_is_read_as_it_was_written(bytes: [u8; LENGTH]) {
            let key = PublicKey::from_bytes(bytes);
            let text = key.to_string();
            prop_assert_eq!(text.len(), 7 * 8 + 6);
            prop_assert_eq!(text.parse(), Ok(key));
            let spoken = format!(" {} ", text.to_uppercase().replace('-', " "));
            prop_assert_eq!(spoken.parse(), Ok(key));
            prop_assert!(text.starts_with(&key.short()));
        }

        #[test]
        fn one_wrong_letter_is_noticed(bytes: [u8; LENGTH], place in 0..56_usize, by in 1..32_u8) {
            let text = PublicKey::from_bytes(bytes).to_string().replace('-', "");
            let mut letters: Vec<u8> = text.into_bytes();
            let old = value(char::from(letters[place])).map_err(|e| TestCaseError::fail(e.to_string()))?;
            letters[place] = LETTERS[usize::from((old + by) % 32)];
            let wrong = String::from_utf8(letters).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(wrong.parse::<PublicKey>(), Err(KeyError::Check));
        }
    }

    #[test]
    fn what_is_not_a_key_says_why() {
        let key = PublicKey::from_bytes([7; LENGTH]).to_string();
        for (text, why) in [
            ("", KeyError::Length(0)),
            (&key[..20], KeyError::Length(18)),
            (&format!("{key}a"), KeyError::Length(57)),
            (&format!("{}!", &key[..61]), KeyError::Letter('!')),
            (&format!("{}1", &key[..61]), KeyError::Letter('1')),
        ] {
            assert_eq!(text.parse::<PublicKey>(), Err(why), "{text}");
        }
    }
}
