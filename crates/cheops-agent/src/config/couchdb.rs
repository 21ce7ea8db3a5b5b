//! Where a site keeps what it must not lose: `engine`, and `[couchdb]` for the one that is not on its disk.
//!
//! What must stay true: a password is in a file, and never in an address, where it would get into logs.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use hyper::Uri;
use serde::Deserialize;

use super::hook::Secret;
use crate::engine::Kind;

/// What keeps what a site must not lose.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Engine {
    /// A store in the data directory.
    #[default]
    Embedded,
    /// Two databases of a CouchDB server.
    CouchDb(Box<CouchDb>),
}

impl Engine {
    /// Which one it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Embedded => Kind::Embedded,
            Self::CouchDb(_) => Kind::CouchDb,
        }
    }
}

/// A CouchDB server, and the database of a site in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CouchDb {
    /// Where it is.
    pub url: Uri,
    /// Whom it knows the agent as.
    pub user: Option<String>,
    /// What proves that.
    pub password: Option<Secret>,
    /// The database of records. The one beside it, with `-local` at its end, is of this site alone.
    pub database: String,
    /// The certificates that the server's own is signed with, if it is not the system that trusts it.
    pub ca: Option<PathBuf>,
    /// Whether CouchDB's own replication carries records, too.
    pub replicate: bool,
    /// Where the agent listens for the server's replication. A port of its choice on loopback without this.
    pub relay: Option<SocketAddr>,
    /// The name that the server knows the agent by, which then has the certificate of its API there, too.
    pub relay_name: Option<String>,
    /// How many bytes of what is accepted while the server is away are kept in the data directory; none without it.
    pub local_journal: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CouchDbSection {
    url: Option<String>,
    user: Option<String>,
    password_file: Option<PathBuf>,
    database: Option<String>,
    ca: Option<PathBuf>,
    replicate: Option<bool>,
    relay: Option<String>,
    relay_name: Option<String>,
    local_journal: Option<u64>,
}

impl Engine {
    /// What `engine` names, by what stands in `[couchdb]`, if there is such a section. One that is not used
    /// is for `cheops engine copy`.
    pub(super) fn read(engine: Option<&str>, couchdb: Option<&CouchDb>) -> Result<Self, String> {
        match (engine, couchdb) {
            (None, Some(_)) => {
                Err("there is a section [couchdb], and no `engine`: write engine = 'couchdb' to use it, or engine = 'embedded' to keep records in the data directory".into())
            }
            (None | Some("embedded"), _) => Ok(Self::Embedded),
            (Some("couchdb"), Some(couchdb)) => Ok(Self::CouchDb(Box::new(couchdb.clone()))),
            (Some("couchdb"), None) => {
                Err("`engine` is couchdb, and there is no section [couchdb]: write where it is, like url = 'http://127.0.0.1:5984'".into())
            }
            (Some(other), _) => Err(format!("`engine` is `{other}`: write embedded or couchdb")),
        }
    }
}

impl CouchDb {
    pub(super) fn read(section: CouchDbSection, beside: &Path) -> Result<Self, String> {
        const URL: &str = "write it like http://127.0.0.1:5984";
        let CouchDbSection {
            url,
            user,
            password_file,
            database,
            ca,
            replicate,
            relay,
            relay_name,
            local_journal,
        } = section;
        let url = url.ok_or_else(|| format!("`[couchdb]` has no `couchdb.url`: {URL}"))?;
        if url.contains('@') {
            return Err(
                "`couchdb.url` holds a name or a password: write `couchdb.user` and `couchdb.password_file` instead".into(),
            );
        }
        let wrong = || format!("`couchdb.url` is `{url}`: {URL}");
        if !super::is_web_address(&url) || url.contains(['?', '#']) {
            return Err(wrong());
        }
        let url: Uri = url.parse().map_err(|_| wrong())?;
        if ca.is_some() && url.scheme_str() != Some("https") {
            return Err("`couchdb.ca` is for an address that begins with https".into());
        }
        if user.is_some() != password_file.is_some() {
            return Err("`couchdb.user` and `couchdb.password_file` go together".into());
        }
        let database = database.unwrap_or_else(|| "cheops".to_owned());
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        let begins = database.starts_with(|c: char| c.is_ascii_lowercase());
        if !begins || !database.chars().all(plain) || database.len() > 200 {
            return Err(format!(
                "`couchdb.database` is `{database}`: a name begins with a letter from a to z, and has only these, digits, `_` and `-`"
            ));
        }
        if database.ends_with("-local") {
            return Err(format!(
                "`couchdb.database` is `{database}`: names that end with -local are for what belongs to one site alone"
            ));
        }
        let relay = relay.map(|relay| {
            let wrong = || format!("`couchdb.relay` is `{relay}`: write it like 192.0.2.7:5990");
            relay.parse::<SocketAddr>().map_err(|_| wrong())
        });
        let relay = relay.transpose()?;
        if let Some(relay) = relay.filter(|relay| relay.ip().is_unspecified() || relay.port() == 0)
        {
            return Err(format!(
                "`couchdb.relay` is `{relay}`: write an address by which CouchDB reaches this machine, and a port"
            ));
        }
        if let Some(name) = &relay_name {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return Err(format!(
                    "`couchdb.relay_name` is `{name}`: write a name of this machine, like agent.site1.example"
                ));
            }
            if relay.is_none() {
                return Err("`couchdb.relay_name` goes with `couchdb.relay`: write on which address and port CouchDB finds it".into());
            }
        }
        let replicate = replicate.unwrap_or(true);
        let password = password_file.map(|path| Secret::File(beside.join(path)));
        if local_journal == Some(0) {
            return Err("`couchdb.local_journal` is 0 bytes: write how many it may have, like 67108864, or take it out".into());
        }
        let ca = ca.map(|path| beside.join(path));
        Ok(Self { url, user, password, database, ca, replicate, relay, relay_name, local_journal })
    }

    /// The host and the port of the server.
    pub fn place(&self) -> (&str, u16) {
        let port = if self.url.scheme_str() == Some("https") { 443 } else { 80 };
        let host = self.url.host().unwrap_or_default().trim_matches(['[', ']']);
        (host, self.url.port_u16().unwrap_or(port))
    }

    /// Whether the server is on this machine, as far as its address tells.
    pub fn is_near(&self) -> bool {
        let (host, _) = self.place();
        host == "localhost" || host.parse().is_ok_and(|host: IpAddr| host.is_loopback())
    }

    /// The database of what is of this site alone, and never replicated.
    pub fn local(&self) -> String {
        format!("{}-local", self.database)
    }
}
