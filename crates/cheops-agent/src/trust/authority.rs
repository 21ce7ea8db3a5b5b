//! Whose certificates count: those of the operator's own CA.
//!
//! What must stay true: a certificate counts if it leads to the CA, now, for this use, and is not on the list of
//! revoked ones; it counts for the sites that it names, and for no other, whatever else is in it.

use std::{
    fmt,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use cheops_core::id::SiteId;
use percent_encoding::percent_decode_str;
use rustls::{
    CertificateError as TlsError, SignatureScheme,
    crypto::WebPkiSupportedAlgorithms,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, TrustAnchor, UnixTime, pem::PemObject as _,
    },
};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy, anchor_from_trusted_cert,
};

use super::certificate::{self, CertificateError, Validity};

/// What stands before the name of a site in a URI.
const URI: &str = "cheops://site/";

/// A CA, and what it has taken back.
pub struct Authority {
    anchors: Vec<TrustAnchor<'static>>,
    revoked: Vec<CertRevocationList<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// What a certificate is shown for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// By one who dials.
    Dialling,
    /// By one who is dialled.
    Answering,
}

/// What a certificate that counts says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    names: Vec<String>,
}

/// Why a certificate does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is none.
    Missing,
    /// Its time is over.
    Expired(SystemTime),
    /// Its time has not come.
    NotYet(SystemTime),
    /// The CA has taken it back.
    Revoked,
    /// It is not of this CA.
    Stranger,
    /// It is for other uses.
    Use(Use),
    /// It is of another site.
    Name {
        /// The site.
        site: SiteId,
        /// Those that it names.
        found: Vec<String>,
    },
    /// The list of revoked ones should have been renewed.
    Stale(SystemTime),
    /// Anything else.
    Malformed(String),
}

impl Authority {
    /// Reads the certificates of a CA, and the list of those that it has revoked.
    pub(super) fn read(
        ca: &Path,
        revoked: Option<&Path>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Result<Self, CertificateError> {
        let wrong = |path: &Path, what, why: &dyn fmt::Display| {
            certificate::malformed(path, what, why.to_string())
        };
        let mut anchors = Vec::new();
        for der in &certificate::certificates(ca)? {
            let anchor = anchor_from_trusted_cert(der);
            anchors.push(anchor.map_err(|error| wrong(ca, "that of a CA", &error))?.to_owned());
        }
        if anchors.is_empty() {
            return Err(wrong(ca, "the certificate of a CA", &"there is none in it"));
        }
        let mut lists = Vec::new();
        if let Some(path) = revoked {
            let what = "a list of revoked certificates";
            let text = certificate::bytes(path)?;
            for der in CertificateRevocationListDer::pem_slice_iter(&text) {
                let der = der.map_err(|error| wrong(path, what, &error))?;
                let list = OwnedCertRevocationList::from_der(&der);
                lists.push(list.map_err(|error| wrong(path, what, &error))?.into());
            }
            if lists.is_empty() {
                return Err(wrong(path, what, &"there is none in it"));
            }
        }
        Ok(Self { anchors, revoked: lists, algorithms })
    }

    /// Whether a certificate counts, with those between it and the CA.
    pub fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        shown: Use,
        now: SystemTime,
    ) -> Result<Certified, Refusal> {
        self.look(chain, shown, now, ExpirationPolicy::Ignore)
    }

    /// When the list of revoked certificates should have been renewed, if it should, as far as it is about this one.
    pub fn stale(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> Option<SystemTime> {
        match self.look(chain, Use::Answering, now, ExpirationPolicy::Enforce) {
            Err(Refusal::Stale(since)) => Some(since),
            _ => None,
        }
    }

    fn look(
        &self,
        chain: &[CertificateDer<'_>],
        shown: Use,
        now: SystemTime,
        lists: ExpirationPolicy,
    ) -> Result<Certified, Refusal> {
        let (first, between) = chain.split_first().ok_or(Refusal::Missing)?;
        let certificate = EndEntityCert::try_from(first).map_err(|error| refusal(&error, shown))?;
        let revoked: Vec<&CertRevocationList<'_>> = self.revoked.iter().collect();
        // A CA between that has no list is no reason to refuse: what is listed is.
        let revocation = RevocationOptionsBuilder::new(&revoked).ok().map(|options| {
            options
                .with_depth(RevocationCheckDepth::Chain)
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(lists)
                .build()
        });
        let usage = match shown {
            Use::Dialling => KeyUsage::client_auth(),
            Use::Answering => KeyUsage::server_auth(),
        };
        let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        let (algorithms, anchors) = (self.algorithms.all, &self.anchors);
        certificate
            .verify_for_usage(algorithms, anchors, between, now, usage, revocation, None)
            .map_err(|error| refusal(&error, shown))?;
        let by_uri = |uri: &str| {
            let name = percent_decode_str(uri.strip_prefix(URI)?).decode_utf8().ok()?;
            Some(name.into_owned())
        };
        let names = certificate.valid_uri_names().filter_map(by_uri);
        let names = names.chain(certificate.valid_dns_names().map(str::to_owned)).collect();
        Ok(Certified { names })
    }

    /// Whether the key of a certificate has signed a message.
    pub(super) fn has_signed(
        &self,
        certificate: &CertificateDer<'_>,
        scheme: SignatureScheme,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else { return false };
        let fits = self.algorithms.mapping.iter().filter(|(known, _)| *known == scheme);
        let mut algorithms = fits.flat_map(|(_, algorithms)| algorithms.iter());
        algorithms
            .any(|algorithm| certificate.verify_signature(*algorithm, message, signature).is_ok())
    }
}

impl Certified {
    /// Whether it is the certificate of a site.
    pub fn names(&self, site: &SiteId) -> Result<(), Refusal> {
        if self.names.iter().any(|name| name == site.as_str()) {
            return Ok(());
        }
        Err(Refusal::Name { site: site.clone(), found: self.names.clone() })
    }

    /// The site that it names, if it is one.
    pub fn site(&self) -> Option<SiteId> {
        self.names.iter().find_map(|name| name.parse().ok())
    }
}

fn refusal(error: &webpki::Error, shown: Use) -> Refusal {
    use webpki::Error;
    let time = |time: &UnixTime| UNIX_EPOCH + std::time::Duration::from_secs(time.as_secs());
    match error {
        Error::CertExpired { not_after, .. } => Refusal::Expired(time(not_after)),
        Error::CertNotValidYet { not_before, .. } => Refusal::NotYet(time(not_before)),
        Error::CrlExpired { next_update, .. } => Refusal::Stale(time(next_update)),
        Error::CertRevoked => Refusal::Revoked,
        // A CA of the same name that is another one has another key.
        Error::UnknownIssuer | Error::InvalidSignatureForPublicKey => Refusal::Stranger,
        Error::RequiredEkuNotFoundContext(_) => Refusal::Use(shown),
        error => Refusal::Malformed(error.to_string()),
    }
}

impl Refusal {
    /// The same, in the words of TLS, which the other end is told.
    pub(super) fn in_tls(&self) -> TlsError {
        match self {
            Self::Expired(_) => TlsError::Expired,
            Self::NotYet(_) => TlsError::NotValidYet,
            Self::Revoked => TlsError::Revoked,
            Self::Stranger | Self::Stale(_) => TlsError::UnknownIssuer,
            Self::Use(_) => TlsError::InvalidPurpose,
            Self::Name { .. } => TlsError::NotValidForName,
            Self::Missing | Self::Malformed(_) => TlsError::BadEncoding,
        }
    }

    /// What is wrong with the certificate of somebody, and what to do.
    pub fn says(&self, whose: &str) -> String {
        let of = format!("the certificate of {whose}");
        match self {
            Self::Missing => {
                format!("{whose} has shown no certificate: set `trust.certificate` there")
            }
            Self::Expired(at) => format!("{of} expired at {}; renew it", moment(*at)),
            Self::NotYet(from) => {
                format!("{of} is valid from {} only; look at the clocks, or wait", moment(*from))
            }
            Self::Revoked => format!("{of} was revoked: give it another one, or remove the site"),
            Self::Stranger => {
                format!("{of} is not of the CA in `trust.ca`: use one CA at all sites")
            }
            Self::Use(Use::Dialling) => format!(
                "{of} is not for clients: it needs clientAuth and serverAuth among its extended key usages, or none at all"
            ),
            Self::Use(Use::Answering) => format!(
                "{of} is not for servers: it needs clientAuth and serverAuth among its extended key usages, or none at all"
            ),
            Self::Name { site, found } => {
                let found = match &found[..] {
                    [] => "nobody".to_owned(),
                    found => format!("`{}`", found.join("`, `")),
                };
                format!(
                    "{of} names {found}, and not `{site}`: it needs the subject alternative name DNS:{site} or URI:{URI}{site}"
                )
            }
            Self::Stale(at) => {
                format!(
                    "the list of revoked certificates should have been renewed at {}",
                    moment(*at)
                )
            }
            Self::Malformed(why) => format!("{of} can't be used: {why}"),
        }
    }
}

/// A time, as people and programs read it.
pub(crate) fn moment(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at)
        .map_or_else(|_| "an unknown time".to_owned(), |at| format!("{at:.0}"))
}

impl Validity {
    /// The time in it that is nearest to another.
    pub(super) fn nearest(&self, now: SystemTime) -> SystemTime {
        now.max(self.from).min(self.until.max(self.from))
    }
}

#[cfg(test)]
#[path = "../../tests/support/ca.rs"]
pub(super) mod ca;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::crypto::ring;

    use super::{
        Use::{Answering, Dialling},
        ca::{BOTH, Ca, Wanted},
        *,
    };

    const DAY: Duration = Duration::from_hours(24);

    fn authority(ca: &Ca, revoked: bool) -> Authority {
        let list = ca.path("revoked.pem");
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Authority::read(&ca.path("ca.pem"), revoked.then_some(&*list), algorithms).unwrap()
    }

    fn chain(path: &Path) -> Vec<CertificateDer<'static>> {
        certificate::certificates(path).unwrap()
    }

    #[test]
    fn a_certificate_counts_for_the_site_that_it_names_and_while_it_is_valid() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(&directory.path().join("ca"));
        let other = Ca::new(&directory.path().join("other"));
        let one = Wanted::of("site1", "DNS:site1.example, DNS:site1, DNS:*.sites.example");
        let (good, _) = ca.issue("good", &one);
        let (by_uri, _) = ca.issue("uri", &Wanted::of("x", "URI:cheops://site/DC%201"));
        let (server, _) =
            ca.issue("server", &Wanted { usage: "extendedKeyUsage = serverAuth", ..one });
        let (client, _) =
            ca.issue("client", &Wanted { usage: "extendedKeyUsage = clientAuth", ..one });
        let any = Wanted { usage: "keyUsage = digitalSignature", ..one };
        let (any, _) = ca.issue("any", &any);
        let (foreign, _) = other.issue("foreign", &Wanted { usage: BOTH, ..one });
        let (gone, _) = ca.issue("gone", &one);
        ca.revoke("gone");
        let authority = authority(&ca, true);
        let now = SystemTime::now();
        let valid = Validity::of(&chain(&good)[0]).unwrap();
        let site = |name: &str| name.parse::<SiteId>().unwrap();
        let wrong = |name: &str| {
            let found = ["site1.example", "site1", "*.sites.example"].map(str::to_owned).to_vec();
            Err(Refusal::Name { site: site(name), found })
        };
        for (file, name, shown, at, expected) in [
            (&good, "site1", Dialling, now, Ok(())),
            (&good, "site1", Answering, now, Ok(())),
            (&good, "site1.example", Answering, now, Ok(())),
            (&by_uri, "DC 1", Answering, now, Ok(())),
            (&any, "site1", Dialling, now, Ok(())),
            (&good, "site2", Dialling, now, wrong("site2")),
            // A name with a star is no name of a site, and none is covered by it.
            (&good, "b.sites.example", Dialling, now, wrong("b.sites.example")),
            (&good, "Site1", Dialling, now, wrong("Site1")),
            (&good, "site1", Dialling, now + 91 * DAY, Err(Refusal::Expired(valid.until))),
            (&good, "site1", Dialling, now - DAY, Err(Refusal::NotYet(valid.from))),
            (&server, "site1", Answering, now, Ok(())),
            (&server, "site1", Dialling, now, Err(Refusal::Use(Dialling))),
            (&client, "site1", Answering, now, Err(Refusal::Use(Answering))),
            (&foreign, "site1", Dialling, now, Err(Refusal::Stranger)),
            (&gone, "site1", Dialling, now, Err(Refusal::Revoked)),
        ] {
            let judged = authority.judge(&chain(file), shown, at);
            let judged = judged.and_then(|certified| certified.names(&site(name)));
            assert_eq!(judged, expected, "{} as {name}", file.display());
        }
        assert_eq!(authority.judge(&[], Dialling, now), Err(Refusal::Missing));
        // A list that is old still says what it says.
        let later = now + 40 * DAY;
        assert!(authority.stale(&chain(&good), now).is_none());
        assert!(authority.stale(&chain(&good), later).is_some_and(|since| since < later));
        assert!(authority.judge(&chain(&good), Dialling, later).is_ok());
        assert_eq!(authority.judge(&chain(&gone), Dialling, later), Err(Refusal::Revoked));
    }

    #[test]
    fn certificates_between_a_site_and_its_ca_are_followed() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(&directory.path().join("ca"));
        let between = Ca::new(&directory.path().join("between"));
        ca.sign(&between);
        let (own, _) = between.site("site1");
        let alone = chain(&own);
        let whole = [alone.clone(), chain(&between.path("ca.pem"))].concat();
        let (authority, now) = (authority(&ca, true), SystemTime::now());
        assert_eq!(authority.judge(&alone, Dialling, now), Err(Refusal::Stranger));
        assert!(authority.judge(&whole, Dialling, now).is_ok());
    }

    #[test]
    fn what_is_wrong_says_what_to_do() {
        let at = UNIX_EPOCH + Duration::from_hours(500_000);
        let expired = Refusal::Expired(at).says("`site2`");
        assert_eq!(expired, "the certificate of `site2` expired at 2027-01-15T08:00:00Z; renew it");
        let found = vec!["x".to_owned()];
        let name = Refusal::Name { site: "site2".parse().unwrap(), found }.says("`site2`");
        assert!(
            name.contains("names `x`, and not `site2`: it needs") && name.contains("DNS:site2")
        );
    }

    #[test]
    fn files_that_are_none_of_a_ca_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let ca = Ca::new(directory.path());
        let algorithms = ring::default_provider().signature_verification_algorithms;
        let (pem, crl, text) = (ca.path("ca.pem"), ca.path("revoked.pem"), ca.path("index.txt"));
        for (ca, list, expected) in [
            (&text, None, "index.txt is not the certificate of a CA in PEM: there is none in it"),
            (&crl, None, "revoked.pem is not the certificate of a CA"),
            (&pem, Some(&pem), "ca.pem is not a list of revoked certificates"),
            (&pem, Some(&text), "index.txt is not a list of revoked certificates"),
        ] {
            let read = Authority::read(ca, list.map(|path| &**path), algorithms);
            let error = read.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
