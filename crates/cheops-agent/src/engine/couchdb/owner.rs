//! Whose the databases are: what they say of themselves, held against what a data directory says of them.
//!
//! What must stay true: an agent goes on only with databases of its site, in a form that it reads, that are those that
//! it has written to.

use std::path::Path;

use cheops_core::id::SiteId;
use serde::{Deserialize, Serialize};

use super::{chance, notes::Notes};

/// How the databases are written.
const FORMAT: u32 = 1;

/// A document of the journal's database that says whose it is.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct About {
    #[serde(rename = "_rev", default, skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    format: u32,
    site: String,
    /// What tells these databases from all others, made by chance.
    pub(super) name: String,
}

/// Who opens the databases.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    pub(super) site: SiteId,
    /// What its data directory says of databases, if that is to count.
    notes: Option<Notes>,
}

impl Owner {
    /// The site of a data directory, which goes on with the databases that it has written to.
    pub(crate) fn with(site: SiteId, data: &Path) -> Self {
        Self { site, notes: Some(Notes::of(data)) }
    }

    /// A site that takes whichever databases of its own.
    pub(crate) fn any(site: SiteId) -> Self {
        Self { site, notes: None }
    }

    /// What new databases say of themselves.
    pub(super) fn about(&self) -> About {
        About { revision: None, format: FORMAT, site: self.site.to_string(), name: chance() }
    }

    /// Why it may not go on with databases that say this of themselves, or where there are none.
    pub(super) fn objection(&self, found: Option<&About>) -> Option<String> {
        let Some(About { site, name, format, .. }) = found else { return self.absence() };
        if *site != self.site.as_str() {
            let here = &self.site;
            return Some(format!(
                "it belongs to site `{site}`, and this agent is `{here}`: name another `couchdb.database`"
            ));
        }
        if *format != FORMAT {
            let newer = *format > FORMAT;
            let advice =
                if newer { "upgrade the program" } else { "use the program that wrote it" };
            return Some(format!(
                "it is written with format {format}; this program reads {FORMAT}: {advice}"
            ));
        }
        let notes = self.notes.as_ref()?;
        if notes.left().as_ref() == Some(name) {
            return Some("this site has left these databases for the embedded store, and what they hold is old: name others in `couchdb.database`".to_owned());
        }
        let other = notes.written().filter(|known| known != name)?;
        Some(format!(
            "these are not the databases that this agent has written to: they are named {name}, those {other}, and numbers would be given twice. Name those in `couchdb.url` and `couchdb.database`"
        ))
    }

    fn absence(&self) -> Option<String> {
        let notes = self.notes.as_ref()?;
        let name = notes.written()?;
        let given_up = notes.how_to_give_up();
        Some(format!(
            "the databases that this agent has written to, which are named {name}, are not there: name them in `couchdb.url` and `couchdb.database`, or put them back from a backup. If they are gone for good, and this site is to go on with what others know: {given_up}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(site: &str, format: u32, name: &str) -> About {
        About { revision: None, format, site: site.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn an_agent_goes_on_with_its_own_databases_alone() {
        let [fresh, old, moved] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        Notes::of(old.path()).write("one").unwrap();
        Notes::of(moved.path()).write("one").unwrap();
        Notes::of(moved.path()).leave().unwrap();
        let with = |data: &tempfile::TempDir| Owner::with("a".parse().unwrap(), data.path());
        let any = Owner::any("a".parse().unwrap());
        for (owner, found, expected) in [
            (&with(&fresh), None, None),
            (&with(&fresh), Some(about("a", FORMAT, "one")), None),
            (&with(&fresh), Some(about("b", FORMAT, "one")), Some("it belongs to site `b`")),
            (&with(&fresh), Some(about("a", FORMAT + 1, "one")), Some("upgrade the program")),
            (&with(&fresh), Some(about("a", 0, "one")), Some("use the program that wrote it")),
            (&with(&old), None, Some("are not there")),
            (&with(&old), Some(about("a", FORMAT, "one")), None),
            (&with(&old), Some(about("a", FORMAT, "two")), Some("these are not the databases")),
            (&with(&moved), None, None),
            (&with(&moved), Some(about("a", FORMAT, "one")), Some("has left these databases")),
            (&with(&moved), Some(about("a", FORMAT, "two")), None),
            (&any, None, None),
            (&any, Some(about("a", FORMAT, "two")), None),
            (&any, Some(about("b", FORMAT, "two")), Some("it belongs to site `b`")),
        ] {
            let said = owner.objection(found.as_ref());
            match (&said, expected) {
                (None, None) => {}
                (Some(said), Some(expected)) => assert!(said.contains(expected), "{said}"),
                _ => panic!("{said:?} instead of {expected:?}"),
            }
        }
    }
}
