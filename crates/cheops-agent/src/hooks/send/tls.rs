//! Connections to servers, and protected ones.

use std::path::Path;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{aside, down};
use crate::{config::Server, hooks::retry::Failure, trust::roots};

/// Protects a connection to a server, which has to prove that it is who it should be.
pub(super) async fn protect(
    stream: TcpStream,
    server: &Server,
    ca: Option<&Path>,
) -> Result<TlsStream<TcpStream>, Failure> {
    let ca = ca.map(Path::to_owned);
    let config = aside(move || roots::client(ca.as_deref())).await?;
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
