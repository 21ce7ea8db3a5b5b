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

#[cfg(test)]
mod tests {
    use cheops_core::{
        id::ResourceId,
        replica::{Durable, Shown},
        trust::Seal,
    };

    use super::*;
    use crate::trust::{Identity, Sealer};

    /// A site that has had two keys, of which the first counts for its first records alone.
    struct Renewed([PublicKey; 2]);

    impl Signers for Renewed {
        fn counts(&self, key: &PublicKey, site: &SiteId, _: &ResourceId, number: u64) -> bool {
            site.as_str() == "renewed" && (*key == self.0[1] || number <= 2)
        }

        fn keys(&self, site: &SiteId) -> Vec<PublicKey> {
            if site.as_str() == "renewed" { self.0.into() } else { Vec::new() }
        }
    }

    fn identity(seed: u8) -> Identity {
        Identity::from_seed(&[seed; 32]).unwrap()
    }

    fn sent(seed: u8, site: &str, number: u64) -> Sent {
        let record = Record::Shown(Arc::new(Shown {
            id: format!("{site}:{number}").parse().unwrap(),
            resource: "web".parse().unwrap(),
            op: "other:1".parse().unwrap(),
            block: 7,
            print: None,
        }));
        let mut batch = [Durable::Record(record.clone(), None)];
        Sealer::new(Arc::new(identity(seed)), site.parse().unwrap()).seal(&mut batch);
        let [Durable::Record(_, seal)] = batch else { panic!("not a record") };
        Sent { after: number - 1, record, seal }
    }

    #[test]
    fn a_key_counts_for_its_own_site_and_as_far_as_it_counts() {
        let keys = [identity(1).public(), identity(2).public()];
        let mut inspector = Inspector::new(Arc::new(Renewed(keys)));
        for (story, sent, expected) in [
            ("the old key, before", sent(1, "renewed", 2), Ok(())),
            ("the old key, after", sent(1, "renewed", 3), Err(Doubt::Fenced)),
            ("the new key", sent(2, "renewed", 3), Ok(())),
            ("a third key", sent(3, "renewed", 1), Err(Doubt::Forged)),
            ("another site", sent(1, "other", 1), Err(Doubt::UnknownSite)),
            ("no seal", Sent { seal: None, ..sent(1, "renewed", 1) }, Err(Doubt::Unsealed)),
            (
                "not a seal",
                Sent { seal: Seal::new(b"anything"), ..sent(1, "renewed", 1) },
                Err(Doubt::Forged),
            ),
        ] {
            // What was found is remembered, and found again.
            for _ in 0..2 {
                assert_eq!(inspector.inspect(&sent), expected, "{story}");
            }
        }
    }

    #[test]
    fn each_doubt_names_the_site_and_says_what_to_do() {
        let [here, from, origin]: [SiteId; 3] = ["h", "f", "o"].map(|name| name.parse().unwrap());
        for doubt in [Doubt::Unsealed, Doubt::UnknownSite, Doubt::Forged, Doubt::Fenced] {
            assert!(doubt.says(&origin).contains("`o`"), "{doubt:?}");
            assert!(doubt.next(&here, &from, &origin).contains("`o`"), "{doubt:?}");
            assert!(doubt.word().starts_with("a record"), "{doubt:?}");
        }
    }
}
