//! What a server that speaks the protocol of CouchDB can do.
//!
//! The one switch for what `pouchdb-server` lacks, with which the tests run: see `docs/couchdb.md`. What must stay
//! true: nothing else asks which server it is.

use serde::Deserialize;
use serde_json::Value;

/// The oldest version of CouchDB that is used.
const OLDEST: u64 = 3;

/// Which server it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    CouchDb,
    PouchDb,
}

#[derive(Default, Deserialize)]
struct Welcome {
    couchdb: Option<String>,
    #[serde(rename = "express-pouchdb")]
    pouchdb: Option<String>,
    version: Option<String>,
}

impl Dialect {
    /// The one of a server that welcomes like this.
    pub(crate) fn of(welcome: Value) -> Result<Self, String> {
        let welcome: Welcome = serde_json::from_value(welcome).unwrap_or_default();
        let version = welcome.version.as_deref().unwrap_or("none");
        let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
        match (&welcome.couchdb, &welcome.pouchdb, major) {
            (Some(_), _, Some(major)) if major >= OLDEST => Ok(Self::CouchDb),
            (Some(_), _, _) => Err(format!(
                "CouchDB there has the version {version}: {OLDEST}.0 or later is needed"
            )),
            (None, Some(_), _) => Ok(Self::PouchDb),
            (None, None, _) => {
                Err("what answers there is no CouchDB: is `couchdb.url` right?".to_owned())
            }
        }
    }

    /// Whether documents can be removed without a trace (`_purge`).
    pub(crate) fn purges(self) -> bool {
        self == Self::CouchDb
    }

    /// Whether a job of replication can be told which documents to carry (`selector`).
    pub(crate) fn selects(self) -> bool {
        self == Self::CouchDb
    }

    /// Whether the server says how jobs of replication fare (`_scheduler`).
    pub(crate) fn schedules(self) -> bool {
        self == Self::CouchDb
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_is_recognised() {
        for (said, expected) in [
            (r#"{"couchdb":"Welcome","version":"3.3.3"}"#, Ok(Dialect::CouchDb)),
            (r#"{"couchdb":"Welcome","version":"4.0"}"#, Ok(Dialect::CouchDb)),
            (r#"{"couchdb":"Welcome","version":"2.3.1"}"#, Err("has the version 2.3.1: 3.0")),
            (r#"{"couchdb":"Welcome"}"#, Err("has the version none")),
            (r#"{"express-pouchdb":"Welcome!","version":"4.2.0"}"#, Ok(Dialect::PouchDb)),
            (r#"{"version":{}}"#, Err("is no CouchDB")),
            (r"{}", Err("is no CouchDB")),
            (r#""hello""#, Err("is no CouchDB")),
        ] {
            match (Dialect::of(serde_json::from_str(said).unwrap()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{said}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, _) => panic!("{said}: {found:?}"),
            }
        }
    }

    #[test]
    fn the_switch_is_only_for_the_other_one() {
        let can = |dialect: Dialect| [dialect.purges(), dialect.selects(), dialect.schedules()];
        assert_eq!((can(Dialect::CouchDb), can(Dialect::PouchDb)), ([true; 3], [false; 3]));
    }
}
