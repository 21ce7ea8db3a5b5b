//! A site's word that a key is its own, backed by its certificate.
//!
//! Records are signed with the key of a site, which it keeps for as long as it likes, and not with that of its
//! certificate, which is renewed every few weeks and may be of any sort. So the key of the certificate signs the key of
//! the site, and that key signs it, too: nobody can claim the key of another. Whoever knows the CA can check that, whoever
//! brings it. What must stay true: no bytes lead to a panic, or to more memory than they have.

use std::time::SystemTime;

use cheops_core::{id::SiteId, trust::PublicKey};
use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::{SignatureScheme, pki_types::CertificateDer, sign::CertifiedKey};
use serde::{Deserialize, Serialize};

use super::{
    Identity,
    authority::{Authority, Refusal, Use},
};

/// What is signed begins with this, so that it can be taken for nothing else.
const SIGNED: &[u8] = b"Cheops: the key of a site\0";
/// The most certificates between a site and its CA, and how long one may be.
const MOST: usize = 8;
const LONGEST: usize = 16 << 10;
/// What a certificate may sign with: what TLS 1.3 takes.
const SCHEMES: [SignatureScheme; 6] = [
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
];

/// What a site says of its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Voucher {
    site: String,
    key: [u8; 32],
    chain: Vec<Vec<u8>>,
    stamp: Stamp,
}

/// The signatures of a certificate's key, and of the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    scheme: u16,
    signature: Vec<u8>,
    by_key: Vec<u8>,
}

impl Stamp {
    /// Signs that a key is that of a site.
    pub(super) fn new(
        site: &SiteId,
        identity: &Identity,
        pair: &CertifiedKey,
    ) -> Result<Self, rustls::Error> {
        let none = || rustls::Error::General("the key can't sign as TLS 1.3 does".to_owned());
        let signer = pair.key.choose_scheme(&SCHEMES).ok_or_else(none)?;
        let message = message(site.as_str(), identity.public().as_bytes());
        let by_key = identity.sign(&message).to_vec();
        Ok(Self { scheme: signer.scheme().into(), signature: signer.sign(&message)?, by_key })
    }
}

impl Voucher {
    /// What a site has said that has shown these certificates.
    pub(super) fn new(
        site: &SiteId,
        key: &PublicKey,
        chain: &[CertificateDer<'_>],
        stamp: Stamp,
    ) -> Self {
        let chain = chain.iter().map(|der| der.to_vec()).collect();
        Self { site: site.to_string(), key: *key.as_bytes(), chain, stamp }
    }

    /// The site and its key, if that is so.
    pub(super) fn check(
        &self,
        authority: &Authority,
        now: SystemTime,
    ) -> Result<(SiteId, PublicKey), Refusal> {
        let (site, key) = self.claimed()?;
        if self.chain.len() > MOST || self.chain.iter().any(|der| der.len() > LONGEST) {
            return Err(Refusal::Malformed("it is too long".to_owned()));
        }
        let chain: Vec<CertificateDer<'_>> =
            self.chain.iter().map(|der| CertificateDer::from(&der[..])).collect();
        authority.judge(&chain, Use::Dialling, now)?.names(&site)?;
        let Stamp { scheme, signature, by_key } = &self.stamp;
        let message = message(&self.site, &self.key);
        let signed = chain
            .first()
            .is_some_and(|own| authority.has_signed(own, (*scheme).into(), &message, signature));
        let claimed = UnparsedPublicKey::new(&ED25519, &self.key).verify(&message, by_key);
        if signed && claimed.is_ok() {
            Ok((site, key))
        } else {
            Err(Refusal::Malformed("it has not signed the key of the site".to_owned()))
        }
    }

    /// Whether it says the same, by the same certificate: signatures differ each time.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        (&self.site, &self.key, &self.chain) == (&other.site, &other.key, &other.chain)
    }

    /// The site and its key, as it says: nothing to believe.
    pub(super) fn claimed(&self) -> Result<(SiteId, PublicKey), Refusal> {
        let site = self.site.parse();
        let site = site.map_err(|error| Refusal::Malformed(format!("{error}")))?;
        Ok((site, PublicKey::from_bytes(self.key)))
    }
}

fn message(site: &str, key: &[u8; 32]) -> Vec<u8> {
    [SIGNED, &key[..], site.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use rustls::crypto::ring;

    use super::*;
    use crate::trust::{authority::ca::Ca, certificate};

    #[test]
    fn a_voucher_counts_for_its_site_and_its_key_while_its_certificate_does() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let algorithms = ring::default_provider().signature_verification_algorithms;
        let authority = Authority::read(&ca.path("ca.pem"), None, algorithms).unwrap();
        let pairs = ["site1", "site2"].map(|site| {
            let (pem, key) = ca.site(site);
            certificate::read(&pem, &key).unwrap().certified
        });
        let (one, two) = ("site1".parse::<SiteId>().unwrap(), "site2".parse::<SiteId>().unwrap());
        let [first, second] = [1, 2].map(|seed| Identity::from_seed(&[seed; 32]).unwrap());
        let (key, other) = (first.public(), second.public());
        let stamp = Stamp::new(&one, &first, &pairs[0]).unwrap();
        let said = |site, key, pair: usize, stamp: &Stamp| {
            Voucher::new(site, key, &pairs[pair].cert, stamp.clone())
        };
        let now = SystemTime::now();
        let good = said(&one, &key, 0, &stamp);
        assert_eq!(good.check(&authority, now), Ok((one.clone(), key)));
        let bytes = postcard::to_allocvec(&good).unwrap();
        assert_eq!(postcard::from_bytes::<Voucher>(&bytes).as_ref(), Ok(&good));
        // Altered anywhere, it is refused.
        for at in (0..bytes.len()).step_by(5) {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            let read = postcard::from_bytes::<Voucher>(&altered);
            assert!(!read.is_ok_and(|voucher| voucher.check(&authority, now).is_ok()), "{at}");
        }
        let later = now + Duration::from_hours(24 * 100);
        assert!(matches!(good.check(&authority, later), Err(Refusal::Expired(_))));
        // A stamp of site2 on a key of site1, and what else does not belong together.
        let foreign = Stamp::new(&one, &first, &pairs[1]).unwrap();
        // A site that claims the key of another has not that key's signature.
        let own = Stamp::new(&two, &second, &pairs[1]).unwrap();
        let claims = Stamp { by_key: own.by_key, ..Stamp::new(&two, &first, &pairs[1]).unwrap() };
        for (n, forged) in [
            said(&one, &other, 0, &stamp),
            said(&two, &key, 0, &stamp),
            said(&two, &key, 1, &stamp),
            said(&one, &key, 1, &foreign),
            said(&one, &key, 0, &foreign),
            said(&two, &key, 1, &claims),
            Voucher { chain: Vec::new(), ..good.clone() },
            Voucher { chain: vec![vec![0; 20_000]], ..good.clone() },
            Voucher { chain: vec![vec![0x30; 9]; 3], ..good.clone() },
        ]
        .into_iter()
        .enumerate()
        {
            assert!(forged.check(&authority, now).is_err(), "{n}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = postcard::from_bytes::<Voucher>(&bytes).map(|voucher| voucher.claimed());
        }
    }
}
