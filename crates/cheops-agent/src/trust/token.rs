//! Tokens by which a site is let into a federation: one site each, once, and not for long.
//!
//! A token says where to ask and whom: the keys in it are what makes the answer believable. The site
//! that has made it keeps a hash of its secret, when it ends, and who has used it, in the file `tokens`
//! of its data directory. What must stay true:
//! - the secret is in the token and nowhere else;
//! - a token that was taken once is taken from no other site, whatever happens in between;
//! - what is kept is bounded: what ended long ago is forgotten, and is no token of this site then.

use std::{
    fmt, fs, io,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Mutex, PoisonError},
};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use cheops_core::{time::Millis, trust::PublicKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};

/// The name of the file in the data directory.
pub const FILE: &str = "tokens";
/// What a token begins with.
const PREFIX: &str = "cheops-join-";
/// The longest token that is read.
const LONGEST: usize = 1_024;
/// How many bytes of hash a token ends with.
const CHECK: usize = 4;
/// How many tokens are kept, and for how long after their end: so long a site says what became of one.
const MOST: usize = 256;
const KEPT: Millis = Millis(7 * 24 * 3_600_000);

/// What a site needs to join.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The federation.
    root: [u8; 32],
    /// The site that lets it in.
    host: [u8; 32],
    /// Where that listens.
    pub address: String,
    /// When it ends, by the clock of that site, in milliseconds since 1970.
    pub expires: u64,
    id: [u8; 8],
    secret: [u8; 16],
}

/// Why a text is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not begin like one.
    #[error(
        "it does not begin with `{PREFIX}`: is it a token, as `cheops token create` prints it?"
    )]
    Foreign,
    /// It is not whole.
    #[error("it is damaged: copy it again, from its first letter to its last")]
    Damaged,
}

/// Why a token lets nobody in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Spent {
    /// Another site has used it.
    #[error("the token was used already, by the site with the key {0}: make another")]
    Used(String),
    /// It is too late.
    #[error("the token has expired: make another")]
    Expired,
    /// It was not made here, or too long ago.
    #[error("the token is none of this site: join at the site that has made it, or make another")]
    Foreign,
}

impl Token {
    /// The federation that it is for.
    pub fn root(&self) -> PublicKey {
        PublicKey::from_bytes(self.root)
    }

    /// The key of the site that has made it.
    pub fn host(&self) -> PublicKey {
        PublicKey::from_bytes(self.host)
    }

    /// What shows to the site that has made it that one has it.
    pub fn proof(&self) -> Proof {
        Proof { id: self.id, secret: self.secret }
    }
}

/// It is not shown: who reads it may use it.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("address", &self.address).finish_non_exhaustive()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What has no floats and no maps can always be written.
        let mut bytes = postcard::to_allocvec(self).map_err(|_| fmt::Error)?;
        bytes.extend(check(&bytes));
        write!(f, "{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let body = text.trim().strip_prefix(PREFIX).ok_or(TokenError::Foreign)?;
        if body.len() > LONGEST {
            return Err(TokenError::Damaged);
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(body).map_err(|_| TokenError::Damaged)?;
        let (bytes, end) = bytes.split_last_chunk::<CHECK>().ok_or(TokenError::Damaged)?;
        if *end != check(bytes) {
            return Err(TokenError::Damaged);
        }
        postcard::from_bytes(bytes).map_err(|_| TokenError::Damaged)
    }
}

fn check(bytes: &[u8]) -> [u8; CHECK] {
    let hash = blake3::derive_key("Cheops: the end of a token", bytes);
    [hash[0], hash[1], hash[2], hash[3]]
}

/// That somebody has a token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    id: [u8; 8],
    secret: [u8; 16],
}

/// The tokens that this site has made.
pub struct Tokens {
    path: PathBuf,
    made: Mutex<Vec<Made>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    id: [u8; 8],
    hash: [u8; 32],
    expires: u64,
    used_by: Option<String>,
}

impl Tokens {
    /// Those that are in a data directory.
    pub fn open(data: &Path) -> io::Result<Self> {
        let path = data.join(FILE);
        let made = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| {
                let why = format!("{} can't be read: {error}; move it away", path.display());
                io::Error::new(io::ErrorKind::InvalidData, why)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { path, made: Mutex::new(made) })
    }

    /// Makes one that ends at a time.
    pub fn make(
        &self,
        root: PublicKey,
        host: PublicKey,
        address: String,
        now: Millis,
        expires: Millis,
    ) -> io::Result<Token> {
        let (mut id, mut secret) = ([0; 8], [0; 16]);
        let random = SystemRandom::new();
        let filled = random.fill(&mut id).and_then(|()| random.fill(&mut secret));
        filled.map_err(|_| io::Error::other("the system gives no random numbers"))?;
        let token = Token {
            root: *root.as_bytes(),
            host: *host.as_bytes(),
            address,
            expires: expires.0,
            id,
            secret,
        };
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after = made.clone();
        after.retain(|made| Millis(made.expires).plus(KEPT) > now);
        if after.len() >= MOST {
            let open = |made: &Made| made.used_by.is_none() && made.expires > now.0;
            let Some(old) = after.iter().position(|made| !open(made)) else {
                return Err(io::Error::other(format!(
                    "{MOST} tokens that nobody has used are there: wait until one has expired"
                )));
            };
            after.remove(old);
        }
        after.push(Made { id, hash: hash(&secret), expires: expires.0, used_by: None });
        self.write(&after)?;
        *made = after;
        Ok(token)
    }

    /// Whether the site with a key could use a token.
    pub fn look(&self, proof: &Proof, key: &PublicKey, now: Millis) -> Result<(), Spent> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        find(&made, proof, key, now).map(|_| ())
    }

    /// Lets the site with a key use a token. The same site may do so again: it may not have heard the
    /// answer.
    pub fn take(
        &self,
        proof: &Proof,
        key: &PublicKey,
        now: Millis,
    ) -> Result<io::Result<()>, Spent> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let at = find(&made, proof, key, now)?;
        if made[at].used_by.is_some() {
            return Ok(Ok(()));
        }
        let mut after = made.clone();
        after[at].used_by = Some(key.to_string());
        let written = self.write(&after);
        if written.is_ok() {
            *made = after;
        }
        Ok(written)
    }

    fn write(&self, made: &[Made]) -> io::Result<()> {
        let draft = self.path.with_extension("new");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&serde_json::to_vec(made)?)?;
        file.sync_all()?;
        fs::rename(&draft, &self.path)?;
        fs::File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// The place of a token that the site with a key may use, or has used.
fn find(made: &[Made], proof: &Proof, key: &PublicKey, now: Millis) -> Result<usize, Spent> {
    let found = made.iter().position(|made| made.id == proof.id);
    let hashed = hash(&proof.secret);
    let at = found.filter(|&at| same(&made[at].hash, &hashed)).ok_or(Spent::Foreign)?;
    match &made[at].used_by {
        Some(by) if *by != key.to_string() => Err(Spent::Used(by.clone())),
        None if made[at].expires <= now.0 => Err(Spent::Expired),
        Some(_) | None => Ok(at),
    }
}

fn hash(secret: &[u8; 16]) -> [u8; 32] {
    blake3::derive_key("Cheops: the secret of a token", secret)
}

/// Whether two hashes are equal, in a time that does not tell where they differ.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_000_000_000_000);
    const MINUTE: Millis = Millis(60_000);

    fn key(byte: u8) -> PublicKey {
        PublicKey::from_bytes([byte; 32])
    }

    fn tokens() -> (tempfile::TempDir, Tokens) {
        let data = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(data.path()).unwrap();
        (data, tokens)
    }

    fn make(tokens: &Tokens) -> Token {
        tokens.make(key(1), key(2), "h:8078".into(), NOW, NOW.plus(MINUTE)).unwrap()
    }

    #[test]
    fn a_token_is_read_as_it_was_printed_and_any_damage_is_noticed() {
        let (_data, tokens) = tokens();
        let token = make(&tokens);
        let text = token.to_string();
        assert_eq!(text.parse::<Token>().unwrap(), token);
        assert_eq!(format!(" {text}\n").parse::<Token>().unwrap(), token);
        assert_eq!("hello".parse::<Token>(), Err(TokenError::Foreign));
        for end in PREFIX.len()..text.len() {
            assert_eq!(text[..end].parse::<Token>(), Err(TokenError::Damaged), "{end}");
        }
        for at in PREFIX.len()..text.len() {
            let mut other = text.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert_ne!(other.parse::<Token>(), Ok(token.clone()), "{at}");
        }
    }

    #[test]
    fn a_token_lets_one_site_in_once_and_says_what_became_of_it() {
        let (data, tokens) = tokens();
        let token = make(&tokens);
        let take = |tokens: &Tokens, by, at| {
            tokens.take(&token.proof(), &key(by), at).map(|written| written.unwrap())
        };
        assert_eq!(take(&tokens, 3, NOW.plus(MINUTE)), Err(Spent::Expired));
        assert_eq!(tokens.look(&token.proof(), &key(4), NOW), Ok(()), "looking spends nothing");
        assert_eq!(take(&tokens, 3, NOW), Ok(()));
        assert_eq!(take(&tokens, 3, NOW), Ok(()), "it may not have heard the answer");
        assert_eq!(take(&tokens, 4, NOW), Err(Spent::Used(key(3).to_string())));
        let again = Tokens::open(data.path()).unwrap();
        assert_eq!(take(&again, 4, NOW), Err(Spent::Used(key(3).to_string())));
        let wrong = Proof { secret: [0; 16], ..token.proof() };
        assert_eq!(tokens.take(&wrong, &key(3), NOW).unwrap_err(), Spent::Foreign);
        let file = fs::read_to_string(data.path().join(FILE)).unwrap();
        assert!(!file.contains(&format!("{:?}", token.secret).replace(' ', "")));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (data, tokens) = tokens();
        for n in 0..MOST {
            let token = make(&tokens);
            if n == 0 {
                tokens.take(&token.proof(), &key(3), NOW).unwrap().unwrap();
            }
        }
        make(&tokens);
        let refused = tokens.make(key(1), key(2), "h:1".into(), NOW, NOW.plus(MINUTE)).unwrap_err();
        assert!(refused.to_string().contains("wait until one has expired"), "{refused}");
        let later = NOW.plus(KEPT).plus(MINUTE);
        tokens.make(key(1), key(2), "h:1".into(), later, later.plus(MINUTE)).unwrap();
        let kept = Tokens::open(data.path()).unwrap().made.into_inner().unwrap();
        assert_eq!(kept.len(), 1);
    }
}
