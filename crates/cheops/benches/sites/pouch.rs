//! `pouchdb-server`, a server that speaks the protocol of `CouchDB`, as a peer to compare with.

use std::{net::SocketAddr, process::Command};

use super::{field::couch, load};

pub(crate) struct Pouch(couch::Pouch);

impl Pouch {
    /// Starts one with an empty database, if the program is there.
    pub(crate) fn start() -> Option<Self> {
        std::env::var_os("CHEOPS_POUCHDB")?;
        let server = couch::Pouch::start();
        let database = format!("http://{}/operations", server.address);
        let created =
            Command::new("curl").args(["-sS", "-o", "/dev/null", "-X", "PUT", &database]).status();
        assert!(created.unwrap().success());
        Some(Self(server))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// A document of the size of an operation.
    pub(crate) fn request(_: usize) -> String {
        let padding = "x".repeat(300);
        load::request("/operations", &format!(r#"{{"command":"true {padding}","kind":"inc"}}"#))
    }
}
