//! Which engine holds what a site has written: the file `engine` in its data directory.
//!
//! What must stay true: an agent does not start on another engine than that one. It would know nothing, or what
//! was true once, and give numbers to new operations that it has given before.

use std::{fmt, fs, io, path::Path};

use super::{
    EngineError,
    disk::{error, explain, replace},
    embedded,
};

/// The file that says so.
const FILE: &str = "engine";

/// An engine, by its name in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The store in the data directory.
    Embedded,
    /// Two databases of a CouchDB server.
    CouchDb,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::CouchDb => "couchdb",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Refuses an engine while another one holds what the site has written.
pub(crate) fn check(data: &Path, kind: Kind) -> Result<(), EngineError> {
    match chosen(data)? {
        Some(chosen) if chosen != kind => {
            let problem = format!(
                "the records of this site are in {chosen}, and `engine` is {kind}: write engine = \"{chosen}\" in its configuration, or take them along: cheops engine copy --config SITE.toml --from {chosen} --to {kind}"
            );
            Err(error(data, problem))
        }
        _ => Ok(()),
    }
}

/// The engine that holds what the site has written; none if it has written nothing, as far as that is known.
pub(crate) fn chosen(data: &Path) -> Result<Option<Kind>, EngineError> {
    let word = match fs::read_to_string(data.join(FILE)) {
        Ok(text) => text,
        Err(failure) if failure.kind() == io::ErrorKind::NotFound => String::new(),
        Err(failure) => return Err(error(data, explain(&failure))),
    };
    match word.trim() {
        "couchdb" => Ok(Some(Kind::CouchDb)),
        "" | "embedded" => {
            let used = embedded::is_used(&data.join("store"));
            Ok(used.then_some(Kind::Embedded))
        }
        other => {
            let problem = format!(
                "its file `{FILE}` says `{other}`: write the name of the engine there that holds the records of this site, embedded or couchdb"
            );
            Err(error(data, problem))
        }
    }
}

/// Takes note of the engine that holds what the site has written from here on.
pub(crate) fn note(data: &Path, kind: Kind) -> Result<(), EngineError> {
    let path = data.join(FILE);
    if fs::read_to_string(&path).is_ok_and(|there| there.trim() == kind.name()) {
        return Ok(());
    }
    replace(&path, kind.name()).map_err(|failure| error(data, explain(&failure)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_that_holds_the_records_is_the_one_that_is_started() {
        let data = tempfile::tempdir().unwrap();
        let refused = |kind| check(data.path(), kind).is_err();
        for kind in [Kind::Embedded, Kind::CouchDb] {
            assert!(!refused(kind), "nothing was written yet");
        }
        note(data.path(), Kind::Embedded).unwrap();
        assert!(!refused(Kind::CouchDb), "nothing was written to its store");
        note(data.path(), Kind::CouchDb).unwrap();
        assert!(!refused(Kind::CouchDb));
        let problem = check(data.path(), Kind::Embedded).unwrap_err().to_string();
        assert!(problem.contains("--from couchdb --to embedded"), "{problem}");
        fs::write(data.path().join(FILE), "redis").unwrap();
        let problem = check(data.path(), Kind::CouchDb).unwrap_err().to_string();
        assert!(problem.contains("says `redis`"), "{problem}");
    }

    #[test]
    fn a_store_that_was_written_to_is_not_left_behind() {
        let data = tempfile::tempdir().unwrap();
        let options = embedded::Options::of("here".parse().unwrap());
        let store = data.path().join("store");
        let mut engine = embedded::Embedded::open(&store, options).unwrap();
        assert!(check(data.path(), Kind::CouchDb).is_ok());
        let clearing = cheops_core::replica::Durable::Clearing("r".parse().unwrap());
        super::super::Engine::append(&mut engine, &[clearing]).unwrap();
        assert!(check(data.path(), Kind::CouchDb).is_err());
        assert!(check(data.path(), Kind::Embedded).is_ok());
    }
}
