//! Who this program is to an agent, and how it knows that the agent is the one that was meant.
//!
//! What must stay true: a token is never written anywhere, not even a part of it; an agent that can't prove who
//! it is gets none, unless it is on this machine; no token leaves this machine without TLS.

use std::{env, fs, io, path::PathBuf, sync::Arc};

use cheops_agent::trust::people::{Token, TokenError};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Io;
use crate::report::Failure;

/// The variables that hold a token, the file of one, and that of certificates.
const TOKEN: &str = "CHEOPS_TOKEN";
const TOKEN_FILE: &str = "CHEOPS_TOKEN_FILE";
const CACERT: &str = "CHEOPS_CACERT";

/// By what an agent knows whoever uses this program, and the other way round.
#[derive(Default, clap::Args)]
pub(crate) struct Access {
    /// The token to show to the agent. Other users of the machine see options: --token-file or
    /// `CHEOPS_TOKEN` are better
    #[arg(long, global = true, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// A file with the token to show to the agent; without it `CHEOPS_TOKEN`, or `CHEOPS_TOKEN_FILE`
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The certificates, in PEM, that the agent's own is signed with (or its own); without it
    /// `CHEOPS_CACERT`, or those that the system trusts
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<PathBuf>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Access(…)")
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

impl Access {
    /// With a token that is named outright.
    #[cfg(test)]
    pub(super) fn of(token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..Self::default() }
    }

    /// The token, if there is one.
    pub(super) fn token(&self) -> Result<Option<String>, Failure> {
        let file = self.token_file.clone();
        let (text, origin) = match (&self.token, file, variable(TOKEN), variable(TOKEN_FILE)) {
            (Some(token), ..) => (token.clone(), "`--token`".to_owned()),
            (None, Some(file), ..) => (read(&file)?, file.display().to_string()),
            (None, None, Some(token), _) => (token, TOKEN.to_owned()),
            (None, None, None, Some(file)) => (read(&file.clone().into())?, file),
            (None, None, None, None) => return Ok(None),
        };
        match text.parse::<Token>() {
            Ok(token) => Ok(Some(token.reveal())),
            Err(why) => Err(Failure::input(format!("invalid token in {origin}"))
                .caused_by(why)
                .hint(match why {
                    TokenError::Other => "`cheops access create` makes one",
                    TokenError::Broken => "copy all of it, from `cheops_` on",
                })),
        }
    }

    /// Whom to take for an agent.
    pub(super) fn trust(&self) -> Result<Arc<ClientConfig>, Failure> {
        let mut roots = RootCertStore::empty();
        match self.cacert.clone().or_else(|| variable(CACERT).map(Into::into)) {
            Some(file) => {
                let wrong = |why: &dyn std::fmt::Display| {
                    Failure::input(format!("cannot use the certificates in {}", file.display()))
                        .caused_by(why)
                        .hint("it holds certificates in PEM: -----BEGIN CERTIFICATE-----")
                };
                let certificates =
                    CertificateDer::pem_file_iter(&file).map_err(|error| wrong(&error))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| wrong(&error))?;
                    roots.add(certificate).map_err(|error| wrong(&error))?;
                }
                if roots.is_empty() {
                    return Err(wrong(&"there is none in it"));
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Failure::input("cannot speak TLS").caused_by(error))?;
        Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
    }
}

fn read(file: &PathBuf) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| {
        Failure::input(format!("cannot read the token in {}", file.display())).caused_by(error)
    })
}

/// Makes sure that the agent is the one that was meant.
pub(super) async fn dial(
    stream: TcpStream,
    host: &str,
    trust: Arc<ClientConfig>,
) -> io::Result<Box<dyn Io>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(trust).connect(name, stream).await?))
}
