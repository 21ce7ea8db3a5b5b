//! How sites recognise each other, where an operator has a PKI: `[trust]`.
//!
//! What must stay true: either all of it is there or nothing; without it sites are known by their keys alone.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The files of an operator's PKI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pki {
    /// The CA whose certificates count.
    pub ca: PathBuf,
    /// The certificate of this site, with those between it and the CA.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The list of certificates that the CA has revoked.
    pub revoked: Option<PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct TrustSection {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    revoked: Option<PathBuf>,
}

impl Pki {
    pub(super) fn read(section: TrustSection, beside: &Path) -> Result<Option<Self>, String> {
        let TrustSection { ca, certificate, key, revoked } = section;
        match (ca, certificate, key) {
            (Some(ca), Some(certificate), Some(key)) => Ok(Some(Self {
                ca: beside.join(ca),
                certificate: beside.join(certificate),
                key: beside.join(key),
                revoked: revoked.map(|path| beside.join(path)),
            })),
            (None, None, None) if revoked.is_none() => Ok(None),
            (ca, certificate, _) => {
                let missing = match (ca, certificate) {
                    (None, _) => "ca",
                    (_, None) => "certificate",
                    _ => "key",
                };
                Err(format!(
                    "`[trust]` has no `trust.{missing}`: sites that recognise each other by certificates need `ca`, `certificate` and `key`"
                ))
            }
        }
    }
}
