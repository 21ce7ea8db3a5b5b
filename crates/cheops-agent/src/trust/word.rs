//! What sites say about who belongs, as it travels and is kept: words, each signed by its speaker.
//!
//! A word is kept as the bytes that were signed, and passed on as they are: nobody has to write them
//! again the same way. What must stay true:
//! - a [`Word`] was signed with the key that it is by, and for the federation that it is about: one of
//!   another federation is worth nothing here;
//! - no bytes lead to a panic, or to memory that is not in proportion to their number.

use std::collections::BTreeMap;

use cheops_core::{
    id::{ResourceId, SiteId},
    time::{Millis, Timestamp},
    trust::{Claim, Fence, PublicKey, Statement, people::Grant},
};
use ring::signature::{ED25519, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use super::{Identity, people::Rights};

/// The longest word, in bytes: one that removes a site names all resources that it had a part in.
pub const LONGEST: usize = 8 << 20;
/// The longest address.
const ADDRESS: usize = 262;
/// What is signed begins with this, so that it can be taken for nothing else.
const SIGNED: &[u8] = b"Cheops: who belongs to a federation\0";

/// A word, as it was signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    bytes: Vec<u8>,
    signature: Vec<u8>,
}

/// What a site has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// The federation begins, with this site and its key, which the federation is known by.
    Founded {
        /// The key.
        root: PublicKey,
        /// The site.
        site: SiteId,
        /// Where its agent listens for others.
        address: Box<str>,
    },
    /// Somebody comes or goes.
    Stated(Statement),
}

/// Why bytes are no word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// They can't be read.
    #[error("a statement can't be read: {0}")]
    Malformed(String),
    /// The signature does not fit.
    #[error("a statement is not signed by {0}, who it says it is from")]
    Forged(PublicKey),
}

impl Signed {
    /// Signs a word for the federation with this root.
    pub fn new(identity: &Identity, root: &PublicKey, word: &Word) -> Result<Self, WordError> {
        let bytes = postcard::to_allocvec(&Twin::of(word)).map_err(malformed)?;
        if bytes.len() > LONGEST {
            return Err(WordError::Malformed(format!("it is longer than {LONGEST} bytes")));
        }
        let signature = identity.sign(&signed(root, &bytes)).to_vec();
        Ok(Self { bytes, signature })
    }

    /// What was said, if it was said so in the federation with this root.
    pub fn read(&self, root: &PublicKey) -> Result<Word, WordError> {
        let word = self.claimed()?;
        self.check(root, &word)?;
        Ok(word)
    }

    /// What it says, whoever has said it: nothing to believe.
    pub fn claimed(&self) -> Result<Word, WordError> {
        if self.bytes.len() > LONGEST {
            return Err(WordError::Malformed(format!("it is longer than {LONGEST} bytes")));
        }
        let (twin, left) = postcard::take_from_bytes::<Twin<'_>>(&self.bytes).map_err(malformed)?;
        if !left.is_empty() {
            return Err(WordError::Malformed("there is more after its end".to_owned()));
        }
        twin.read()
    }

    /// Whether it was said by whom it claims.
    pub fn check(&self, root: &PublicKey, word: &Word) -> Result<(), WordError> {
        let by = word.by();
        UnparsedPublicKey::new(&ED25519, by.as_bytes())
            .verify(&signed(root, &self.bytes), &self.signature)
            .map_err(|_| WordError::Forged(by))
    }

    /// How many bytes it takes.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.signature.len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Word {
    /// Who says it.
    pub fn by(&self) -> PublicKey {
        match self {
            Self::Founded { root, .. } => *root,
            Self::Stated(statement) => statement.by,
        }
    }
}

fn signed(root: &PublicKey, bytes: &[u8]) -> Vec<u8> {
    [SIGNED, root.as_bytes(), bytes].concat()
}

fn malformed(error: impl std::fmt::Display) -> WordError {
    WordError::Malformed(error.to_string())
}

type Bytes = [u8; 32];

#[derive(Serialize, Deserialize)]
enum Twin<'a> {
    Founded {
        root: Bytes,
        site: &'a str,
        address: &'a str,
    },
    Stated {
        by: Bytes,
        number: u64,
        at: u64,
        #[serde(borrow)]
        claim: Said<'a>,
    },
}

#[derive(Serialize, Deserialize)]
enum Said<'a> {
    Admit {
        site: &'a str,
        key: Bytes,
        address: &'a str,
    },
    Renew {
        key: Bytes,
    },
    Move {
        address: &'a str,
    },
    Remove {
        key: Bytes,
        #[serde(borrow)]
        fence: Known<'a>,
    },
    Vouch {
        key: Bytes,
        #[serde(borrow)]
        fence: Known<'a>,
    },
    Grant {
        name: &'a str,
        digest: Bytes,
        role: String,
        resources: Vec<String>,
        kinds: Vec<String>,
        sites: Vec<String>,
        issued: u64,
        expires: u64,
    },
    Revoke {
        digest: Bytes,
        at: u64,
    },
    Close {
        key: Bytes,
        #[serde(borrow)]
        fence: Known<'a>,
    },
}

#[derive(Serialize, Deserialize)]
struct Known<'a> {
    statements: u64,
    #[serde(borrow)]
    records: Vec<(&'a str, u64)>,
}

impl<'a> Twin<'a> {
    fn of(word: &'a Word) -> Self {
        match word {
            Word::Founded { root, site, address } => {
                Self::Founded { root: *root.as_bytes(), site: site.as_str(), address }
            }
            Word::Stated(Statement { by, number, at, claim }) => Self::Stated {
                by: *by.as_bytes(),
                number: *number,
                at: at.to_bits(),
                claim: Said::of(claim),
            },
        }
    }

    fn read(self) -> Result<Word, WordError> {
        Ok(match self {
            Self::Founded { root, site, address } => Word::Founded {
                root: PublicKey::from_bytes(root),
                site: site.parse().map_err(malformed)?,
                address: checked(address)?,
            },
            Self::Stated { number: 0, .. } => {
                return Err(WordError::Malformed("it has no number".to_owned()));
            }
            Self::Stated { by, number, at, claim } => Word::Stated(Statement {
                by: PublicKey::from_bytes(by),
                number,
                at: Timestamp::from_bits(at),
                claim: claim.read()?,
            }),
        })
    }
}

impl<'a> Said<'a> {
    fn of(claim: &'a Claim) -> Self {
        match claim {
            Claim::Admit { site, key, address } => {
                Self::Admit { site: site.as_str(), key: *key.as_bytes(), address }
            }
            Claim::Renew { key } => Self::Renew { key: *key.as_bytes() },
            Claim::Move { address } => Self::Move { address },
            Claim::Remove { key, fence } => {
                Self::Remove { key: *key.as_bytes(), fence: Known::of(fence) }
            }
            Claim::Vouch { key, fence } => {
                Self::Vouch { key: *key.as_bytes(), fence: Known::of(fence) }
            }
            Claim::Close { key, fence } => {
                Self::Close { key: *key.as_bytes(), fence: Known::of(fence) }
            }
            Claim::Grant(grant) => {
                let Rights { role, resources, kinds, sites } = Rights::of(&grant.role);
                Self::Grant {
                    name: grant.name.as_str(),
                    digest: grant.digest,
                    role,
                    resources,
                    kinds,
                    sites,
                    issued: grant.issued.0,
                    expires: grant.expires.0,
                }
            }
            Claim::Revoke { digest, at } => Self::Revoke { digest: *digest, at: at.0 },
        }
    }

    fn read(self) -> Result<Claim, WordError> {
        Ok(match self {
            Self::Admit { site, key, address } => Claim::Admit {
                site: site.parse().map_err(malformed)?,
                key: PublicKey::from_bytes(key),
                address: checked(address)?,
            },
            Self::Renew { key } => Claim::Renew { key: PublicKey::from_bytes(key) },
            Self::Move { address } => Claim::Move { address: checked(address)? },
            Self::Remove { key, fence } => {
                Claim::Remove { key: PublicKey::from_bytes(key), fence: fence.read()? }
            }
            Self::Vouch { key, fence } => {
                Claim::Vouch { key: PublicKey::from_bytes(key), fence: fence.read()? }
            }
            Self::Close { key, fence } => {
                Claim::Close { key: PublicKey::from_bytes(key), fence: fence.read()? }
            }
            Self::Grant { name, digest, role, resources, kinds, sites, issued, expires } => {
                let rights = Rights { role, resources, kinds, sites };
                Claim::Grant(Box::new(Grant {
                    name: name.parse().map_err(malformed)?,
                    digest,
                    role: rights.role().map_err(malformed)?,
                    issued: Millis(issued),
                    expires: Millis(expires),
                }))
            }
            Self::Revoke { digest, at } => Claim::Revoke { digest, at: Millis(at) },
        })
    }
}

impl<'a> Known<'a> {
    fn of(fence: &'a Fence) -> Self {
        let records = fence.records.iter().map(|(id, &number)| (id.as_str(), number)).collect();
        Self { statements: fence.statements, records }
    }

    fn read(self) -> Result<Fence, WordError> {
        let mut records = BTreeMap::new();
        for (id, number) in self.records {
            let id: ResourceId = id.parse().map_err(malformed)?;
            records.insert(id, number);
        }
        Ok(Fence { statements: self.statements, records })
    }
}

fn checked(address: &str) -> Result<Box<str>, WordError> {
    if address.len() > ADDRESS || address.chars().any(char::is_control) {
        return Err(WordError::Malformed("its address is none".to_owned()));
    }
    Ok(address.into())
}

#[cfg(test)]
mod tests {
    use cheops_core::{
        pattern::Pattern,
        trust::people::{Reach, Role},
    };
    use proptest::prelude::*;

    use super::*;

    fn identity(seed: u8) -> Identity {
        Identity::from_seed(&[seed; 32]).unwrap()
    }

    fn words() -> Vec<Word> {
        let (one, two) = (identity(1).public(), identity(2).public());
        let fence = Fence { statements: 3, records: [("web".parse().unwrap(), 7)].into() };
        let claims = [
            Claim::Admit { site: "site2".parse().unwrap(), key: two, address: "h:1".into() },
            Claim::Renew { key: two },
            Claim::Move { address: "elsewhere:8078".into() },
            Claim::Remove { key: two, fence: fence.clone() },
            Claim::Vouch { key: two, fence: fence.clone() },
            Claim::Close { key: two, fence },
            Claim::Grant(Box::new(Grant {
                name: "vera".parse().unwrap(),
                digest: [7; 32],
                role: Role::Operator(Reach {
                    resources: vec![Pattern::new("web-*")],
                    ..Reach::default()
                }),
                issued: Millis(1),
                expires: Millis(9),
            })),
            Claim::Revoke { digest: [7; 32], at: Millis(3) },
        ];
        let stated = |claim| {
            Word::Stated(Statement { by: one, number: 1, at: Timestamp::at(Millis(5)), claim })
        };
        let founded =
            Word::Founded { root: one, site: "site1".parse().unwrap(), address: "h:2".into() };
        claims.into_iter().map(stated).chain([founded]).collect()
    }

    #[test]
    fn what_is_said_is_read_as_it_was_said() {
        let one = identity(1);
        for word in words() {
            let signed = Signed::new(&one, &one.public(), &word).unwrap();
            assert_eq!(signed.read(&one.public()).unwrap(), word);
        }
    }

    #[test]
    fn a_word_counts_only_in_its_federation_and_from_its_speaker() {
        let (one, two) = (identity(1), identity(2));
        for word in words() {
            let elsewhere = Signed::new(&one, &two.public(), &word).unwrap();
            assert_eq!(elsewhere.read(&one.public()), Err(WordError::Forged(one.public())));
            let forged = Signed::new(&two, &one.public(), &word).unwrap();
            assert_eq!(forged.read(&one.public()), Err(WordError::Forged(one.public())));
        }
    }

    #[test]
    fn a_word_that_was_altered_anywhere_is_refused() {
        let one = identity(1);
        for word in words() {
            let signed = Signed::new(&one, &one.public(), &word).unwrap();
            for at in 0..signed.bytes.len() {
                let mut altered = signed.clone();
                altered.bytes[at] ^= 1;
                assert!(altered.read(&one.public()).is_err(), "{word:?} at {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, signature: Vec<u8>) {
            let _ = Signed { bytes, signature }.read(&identity(1).public());
        }
    }
}
