//! Looks at each record that another agent sends, before anybody counts on it.
//!
//! Who brings a record is not who made it: any site of a resource passes on what others have recorded. So
//! each record is held against the keys of the site that it says it is of.
//!
//! What must stay true: no record gets past that its site has not sealed; what is refused changes nothing
//! but a count.

use std::sync::Arc;

use cheops_core::{
    id::SiteId,
    replica::{Record, Sent},
    trust::PublicKey,
};

use super::{
    Signers,
    seal::{Checker, Proof},
};
use crate::wire;

/// Why a record was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doubt {
    /// It came without a seal.
    Unsealed,
    /// The key of its site is not known here.
    UnknownSite,
    /// Its seal is not one that its site has made for it.
    Forged,
    /// Its site has sealed it with a key that does not count, or no longer.
    Fenced,
}

impl Doubt {
    /// What is wrong, of a record of a site.
    pub fn says(self, origin: &SiteId) -> String {
        match self {
            Self::Unsealed => format!("a record of `{origin}` without its signature"),
            Self::UnknownSite => {
                format!("a record of `{origin}`, whose key is not known here")
            }
            Self::Forged => format!(
                "a record of `{origin}` that `{origin}` has not signed: it was made up, or altered on the way"
            ),
            Self::Fenced => {
                format!("a record of `{origin}`, signed with a key that does not count for it")
            }
        }
    }

    /// The same, for programs and short lines.
    pub fn word(self) -> &'static str {
        match self {
            Self::Unsealed => "a record without the signature of its site",
            Self::UnknownSite => "a record of a site whose key is not known here",
            Self::Forged => "a record that its site has not signed: made up, or altered on the way",
            Self::Fenced => "a record that was signed with a key that does not count",
        }
    }

    /// What to do about it, at a site that got it from another.
    pub fn next(self, here: &SiteId, from: &SiteId, origin: &SiteId) -> String {
        match self {
            Self::Unsealed => format!(
                "update the agent of `{from}`, or of `{origin}` if that is older; if both are new, treat `{from}` as taken over"
            ),
            Self::UnknownSite => format!(
                "if `{origin}` is one of yours, let `{here}` know its key (a [[peer]] in its configuration): what was refused comes again by itself"
            ),
            Self::Forged => format!(
                "compare `cheops site key` at `{origin}` with the key that `{here}` knows; if they are the same, treat `{from}` as taken over: pause the link with it and look at its machine"
            ),
            Self::Fenced => format!(
                "`{origin}` was removed, or its key was: nothing, if that is meant; otherwise let it join again"
            ),
        }
    }
}

/// Looks at what comes over one link.
pub struct Inspector {
    signers: Arc<dyn Signers>,
    checker: Checker,
}

impl Inspector {
    /// One that takes the word of these.
    pub fn new(signers: Arc<dyn Signers>) -> Self {
        Self { signers, checker: Checker::default() }
    }

    /// Whether a record is what its site has sealed.
    pub fn inspect(&mut self, sent: &Sent) -> Result<(), Doubt> {
        let seal = sent.seal.as_ref().ok_or(Doubt::Unsealed)?;
        self.check(&sent.record, Proof::decode(seal).as_ref())
    }

    fn check(&mut self, record: &Record, proof: Option<&Proof>) -> Result<(), Doubt> {
        let id = record.id();
        let keys = self.signers.keys(&id.site);
        if keys.is_empty() {
            return Err(Doubt::UnknownSite);
        }
        let proof = proof.ok_or(Doubt::Forged)?;
        let bytes = wire::encode_record(record).map_err(|_| Doubt::Forged)?;
        let signed = |key: &PublicKey| self.checker.check(key, &id.site, &bytes, proof);
        let key = keys.iter().copied().find(signed).ok_or(Doubt::Forged)?;
        if self.signers.counts(&key, &id.site, record.resource(), id.number) {
            Ok(())
        } else {
            Err(Doubt::Fenced)
        }
    }
}
