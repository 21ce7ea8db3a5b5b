//! Who was given a role: tokens, and the list that they are held against.
//!
//! A token is shown once, to whom it is made for. What is kept is its digest. What must stay true:
//! - a token is made of 256 bits that nobody can guess, and says by itself whether it is whole;
//! - what was granted or revoked is durable before anyone is told so;
//! - a list that can't be read is an error, never an empty list: a revocation might be lost.

use std::{fmt, str::FromStr, time::SystemTime};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use cheops_core::{
    pattern::Pattern,
    time::Millis,
    trust::people::{Digest, Grant, Invalid, Reach, Role},
};
use futures_util::future::BoxFuture;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What every token begins with, so that people and scanners of secrets know one when they see it.
const PREFIX: &str = "cheops_";
/// How many bytes are secret, and how many say whether they are whole.
const SECRET: usize = 32;
const CHECK: usize = 4;
/// What a digest of a token is made for, and that of a session, so that neither is ever the other.
const TOKEN: &str = "cheops 2026 token of a person or a program";
const SESSION: &str = "cheops 2026 session of a browser";

/// A secret that somebody has, and is known by.
#[derive(Clone, PartialEq, Eq)]
pub struct Token([u8; SECRET]);

/// A text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not look like one.
    #[error("this is not a token: one begins with `{PREFIX}`")]
    Other,
    /// It is one, but some of it is missing or changed.
    #[error("the token is not whole: it was cut or changed on its way")]
    Broken,
}

/// The system gives no random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random numbers, so no secret can be made")]
pub struct NoRandomness;

impl Token {
    /// A new one.
    pub fn make() -> Result<Self, NoRandomness> {
        let mut secret = [0; SECRET];
        SystemRandom::new().fill(&mut secret).map_err(|_| NoRandomness)?;
        Ok(Self(secret))
    }

    /// What it is known by.
    pub fn digest(&self) -> Digest {
        blake3::derive_key(TOKEN, &self.0)
    }

    /// What it is known by as the secret of a session.
    pub fn session(&self) -> Digest {
        blake3::derive_key(SESSION, &self.0)
    }

    fn check(&self) -> [u8; CHECK] {
        crc32fast::hash(&self.0).to_be_bytes()
    }

    /// The token itself, for whom it is made.
    pub fn reveal(&self) -> String {
        let whole = [&self.0[..], &self.check()].concat();
        format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(whole))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(TokenError::Other)?;
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(rest).map_err(|_| TokenError::Broken)?;
        let (secret, check) = bytes.split_at_checked(SECRET).ok_or(TokenError::Broken)?;
        let token = Self(secret.try_into().map_err(|_| TokenError::Broken)?);
        if check == token.check() { Ok(token) } else { Err(TokenError::Broken) }
    }
}

/// A token is not for logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The list of those who were given a role. All sites have the same one, as soon as they have heard of it.
pub trait Grants: Send + Sync + 'static {
    /// The grant of a token that counts at this time.
    fn find(&self, digest: &Digest, now: Millis) -> Result<Grant, Invalid>;

    /// All grants, and when each was revoked.
    fn all(&self) -> Vec<(Grant, Option<Millis>)>;

    /// Gives somebody a role. When it is done, it is durable.
    fn grant(&self, grant: Grant) -> BoxFuture<'_, Result<(), GrantsError>>;

    /// Takes a role back, for good. When it is done, it is durable.
    fn revoke(&self, digest: Digest, at: Millis) -> BoxFuture<'_, Result<(), GrantsError>>;
}

/// Why the list could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum GrantsError {
    /// There are too many.
    #[error("there are {0} tokens, which is the most there may be")]
    Full(usize),
    /// The disk does not take it.
    #[error("it can't be written down: {0}")]
    Disk(#[from] std::io::Error),
}

/// The time by which tokens expire.
pub fn now() -> Millis {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A role as it is written: in requests, in files, and from site to site.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Rights {
    /// `viewer`, `operator` or `admin`.
    pub role: String,
    /// An operator's resources: patterns in which `*` stands for any text. All, if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    /// The kinds of an operator's operations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// An operator's sites: all sites of a resource have to be among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<String>,
}

/// The most patterns of a sort, and the longest.
const MOST_PATTERNS: usize = 100;
const LONGEST_PATTERN: usize = 255;

impl Rights {
    /// A role in words.
    pub fn of(role: &Role) -> Self {
        let texts = |patterns: &[Pattern]| patterns.iter().map(|p| p.as_str().to_owned()).collect();
        let reach = match role {
            Role::Operator(reach) => reach,
            Role::Viewer | Role::Admin => &Reach::default(),
        };
        Self {
            role: role.as_str().to_owned(),
            resources: texts(&reach.resources),
            kinds: texts(&reach.kinds),
            sites: texts(&reach.sites),
        }
    }

    /// The role that the words mean.
    pub fn role(&self) -> Result<Role, String> {
        let lists = [&self.resources, &self.kinds, &self.sites];
        let role = match self.role.as_str() {
            "viewer" => Role::Viewer,
            "admin" => Role::Admin,
            "operator" => {
                if lists.iter().any(|list| list.len() > MOST_PATTERNS) {
                    return Err(format!("there are more than {MOST_PATTERNS} patterns of a sort"));
                }
                let wrong = |text: &&String| text.is_empty() || text.len() > LONGEST_PATTERN;
                if let Some(text) = lists.into_iter().flatten().find(wrong) {
                    return Err(format!(
                        "`{}` is not a pattern: it has 1 to {LONGEST_PATTERN} bytes",
                        text.chars().take(40).collect::<String>()
                    ));
                }
                let patterns = |texts: &[String]| {
                    texts.iter().map(|text| Pattern::new(text.as_str())).collect()
                };
                return Ok(Role::Operator(Reach {
                    resources: patterns(&self.resources),
                    kinds: patterns(&self.kinds),
                    sites: patterns(&self.sites),
                }));
            }
            other => return Err(format!("`{other}` is not a role: viewer, operator or admin")),
        };
        if lists.iter().any(|list| !list.is_empty()) {
            return Err(format!("resources, kinds and sites are for an operator, not for {role}"));
        }
        Ok(role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_as_it_was_made_and_one_that_is_cut_is_told_apart() {
        let token = Token::make().unwrap();
        let text = token.reveal();
        assert_eq!(text.len(), PREFIX.len() + 48);
        assert_eq!(text.parse::<Token>().unwrap(), token);
        assert_eq!(format!(" {text}\n").parse::<Token>().unwrap(), token);
        for cut in 0..PREFIX.len() {
            assert_eq!(text[..cut].parse::<Token>(), Err(TokenError::Other), "{cut}");
        }
        for cut in PREFIX.len()..text.len() {
            assert_eq!(text[..cut].parse::<Token>(), Err(TokenError::Broken), "{cut}");
        }
        for at in PREFIX.len()..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert_eq!(other.parse::<Token>(), Err(TokenError::Broken), "{at}");
        }
        assert_eq!((text.clone() + "AAAA").parse::<Token>(), Err(TokenError::Broken));
        assert!(!format!("{token:?}").contains(&text[10..20]));
        assert_ne!(token.digest(), token.session());
    }

    #[test]
    fn rights_are_read_as_they_are_written() {
        let words = |role: &str, resources: &[&str]| Rights {
            role: role.into(),
            resources: resources.iter().map(|text| (*text).to_owned()).collect(),
            ..Rights::default()
        };
        for rights in [words("viewer", &[]), words("admin", &[]), words("operator", &["web-*"])] {
            assert_eq!(Rights::of(&rights.role().unwrap()), rights);
        }
        for (rights, expected) in [
            (words("root", &[]), "is not a role"),
            (words("viewer", &["a"]), "for an operator"),
            (words("operator", &[""]), "is not a pattern"),
            (words("operator", &["a"; MOST_PATTERNS + 1]), "more than"),
        ] {
            let error = rights.role().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
