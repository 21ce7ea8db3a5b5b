//! Connections that are protected, and whom to trust then.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{aside, down};
use crate::{config::Server, hooks::retry::Failure};

/// Protects a connection to a server, which has to prove that it is who it should be.
pub(super) async fn protect(
    stream: TcpStream,
    server: &Server,
    ca: Option<&Path>,
) -> Result<TlsStream<TcpStream>, Failure> {
    let ca = ca.map(Path::to_owned);
    let config = aside(move || client(ca.as_deref())).await?;
    let host = &server.host;
    let name = ServerName::try_from(host.clone())
        .map_err(|_| Failure::Unavailable(format!("`{host}` is no name of a host")))?;
    let why = format!("{server} is not who it should be, or speaks no TLS");
    TlsConnector::from(config).connect(name, stream).await.map_err(down(&why))
}

/// Opens a connection to a server.
pub(super) async fn connect(server: &Server) -> Result<TcpStream, Failure> {
    let address = (server.host.as_str(), server.port);
    TcpStream::connect(address).await.map_err(down(&format!("{server} can't be reached")))
}

/// A client that trusts those in a file, or those whom the system trusts.
fn client(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| format!("{} can't be used: {error}", path.display()))?;
            roots.add_parsable_certificates(certificates);
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(
            "there are no certificates to trust: install `ca-certificates`, or name a file in `ca`"
                .into(),
        );
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
