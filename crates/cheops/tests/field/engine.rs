//! In what the agents of a field keep their records.
//!
//! A site on CouchDB has a server of its own at its host: a cut between sites never cuts an agent off its
//! database. Where `CHEOPS_TEST_COUCHDB` names servers, each site has databases of its own there, and a way to
//! them that no cut touches.

use std::{path::Path, sync::Arc};

use super::{
    couch::{Couch, Pouch, Relay},
    net::Network,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Embedded,
    CouchDb,
}

/// A test for each engine, of functions that take one.
#[allow(unused_macros, reason = "not every test takes both")]
macro_rules! on_both_engines {
    ($($test:ident),+ $(,)?) => {
        mod embedded {
            $(#[test] fn $test() { super::$test(crate::field::engine::Engine::Embedded); })+
        }
        mod couchdb {
            $(#[test] fn $test() { super::$test(crate::field::engine::Engine::CouchDb); })+
        }
    };
}
#[allow(unused_imports, reason = "not every test takes both")]
pub(crate) use on_both_engines;

/// The port of CouchDB, at every host.
const PORT: u16 = 5984;

/// The databases of all sites.
pub(crate) struct Databases(Vec<Database>);

struct Database {
    couch: Couch,
    /// Where its site finds it.
    address: String,
    /// The process of the server, if it is at the site's host.
    process: Option<u32>,
}

impl Databases {
    pub(crate) fn start(net: &Network, count: usize) -> Self {
        let named: Option<Vec<Couch>> = (0..count).map(Couch::named).collect();
        if let Some(couches) = named {
            return Self(couches.into_iter().map(|couch| Database::beyond(net, couch)).collect());
        }
        let servers: Vec<Pouch> = (0..count).map(|n| server(net, n)).collect();
        Self(servers.into_iter().map(Database::at_host).collect())
    }

    /// What the configuration of a site says of its database.
    pub(crate) fn settings(&self, n: usize, directory: &Path) -> String {
        self.0[n].couch.settings_at(&self.0[n].address, directory)
    }

    pub(crate) fn of(&self, n: usize) -> &Couch {
        &self.0[n].couch
    }

    /// The process of the server at a site's host, if there is one.
    pub(crate) fn process(&self, n: usize) -> Option<u32> {
        self.0[n].process
    }
}

impl Database {
    fn at_host(server: Pouch) -> Self {
        server.wait_until_it_answers();
        let (address, process) = (server.address.to_string(), Some(server.pid()));
        Self { couch: Couch::of(Arc::new(server)), address, process }
    }

    /// At a server that hosts can't see by themselves.
    fn beyond(net: &Network, couch: Couch) -> Self {
        let gateway = net.gateway();
        let relay = Relay::at(&gateway, couch.config.place());
        Self { couch, address: format!("{gateway}:{}", relay.port), process: None }
    }
}

fn server(net: &Network, n: usize) -> Pouch {
    let address = format!("{}:{PORT}", net.ip(n)).parse().unwrap();
    Pouch::begin(address, |program| net.command(n, program))
}
