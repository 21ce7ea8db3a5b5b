//! Names, each of them once in memory.
//!
//! A million operations of a resource name a few sites, kinds and authors and one resource. The
//! core shares the text of a name between clones; here it is made sure that what comes in as bytes
//! becomes clones, and not a million texts. What must stay true:
//!
//! - a name comes through its own door, once for as long as it is remembered;
//! - what is remembered is bounded, whatever names a peer makes up. Only sharing is lost with it.

use core::{
    borrow::Borrow,
    hash::{Hash, Hasher},
    marker::PhantomData,
    mem,
    str::FromStr,
};
use std::collections::HashSet;

use cheops_core::id::{Author, Key, Kind, NameError, ResourceId, ServiceName, SiteId};
use serde::{Deserialize, Serialize};

use super::{Twin, WireError};

/// The names that were seen lately. Keep one for as long as what is decoded with it should share
/// its names.
#[derive(Debug, Default)]
pub struct Names {
    sites: Shelf<SiteId>,
    services: Shelf<ServiceName>,
    resources: Shelf<ResourceId>,
    kinds: Shelf<Kind>,
    authors: Shelf<Author>,
    keys: Shelf<Key>,
}

/// How many names of a sort are new before those that were not asked for since are forgotten.
const NEW: usize = 1 << 16;

/// The names of one sort. When too many are new they become the old ones, and the old ones that
/// nobody asked for meanwhile are gone.
#[derive(Debug)]
pub(super) struct Shelf<T> {
    /// The last one that was asked for: most records name the sites, kinds and authors that the one before named.
    last: Option<T>,
    new: HashSet<ByText<T>>,
    old: HashSet<ByText<T>>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { last: None, new: HashSet::new(), old: HashSet::new() }
    }
}

impl<T: Name> Shelf<T> {
    fn get(&mut self, text: &str) -> Result<T, NameError> {
        if let Some(name) = self.last.as_ref().filter(|last| last.text() == text) {
            return Ok(name.clone());
        }
        let name = self.find(text)?;
        self.last = Some(name.clone());
        Ok(name)
    }

    fn find(&mut self, text: &str) -> Result<T, NameError> {
        if let Some(ByText(name)) = self.new.get(text) {
            return Ok(name.clone());
        }
        let name = match self.old.take(text) {
            Some(ByText(name)) => name,
            None => text.parse()?,
        };
        if self.new.len() >= NEW {
            self.old = mem::take(&mut self.new);
        }
        self.new.insert(ByText(name.clone()));
        Ok(name)
    }
}

/// A name that is looked up by its text.
#[derive(Debug)]
struct ByText<T>(T);

impl<T: Name> Borrow<str> for ByText<T> {
    fn borrow(&self) -> &str {
        self.0.text()
    }
}

impl<T: Name> Hash for ByText<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text().hash(state);
    }
}

impl<T: Name> PartialEq for ByText<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.text() == other.0.text()
    }
}

impl<T: Name> Eq for ByText<T> {}

/// A name of the core.
pub(super) trait Name: Clone + FromStr<Err = NameError> {
    fn text(&self) -> &str;
    /// Where names of its sort are kept.
    fn shelf(names: &mut Names) -> &mut Shelf<Self>;
}

macro_rules! name {
    ($name:ident, $shelf:ident) => {
        impl Name for $name {
            fn text(&self) -> &str {
                self.as_str()
            }

            fn shelf(names: &mut Names) -> &mut Shelf<Self> {
                &mut names.$shelf
            }
        }
    };
}

name!(SiteId, sites);
name!(ServiceName, services);
name!(ResourceId, resources);
name!(Kind, kinds);
name!(Author, authors);
name!(Key, keys);

/// The twin of a name: its text.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a, T> {
    text: &'a str,
    #[serde(skip)]
    of: PhantomData<T>,
}

impl<'a, T: Name> Twin<'a> for Text<'a, T> {
    type Value = T;

    fn of(value: &'a T) -> Result<Self, WireError> {
        Ok(Self { text: value.text(), of: PhantomData })
    }

    fn read(self, names: &mut Names) -> Result<T, WireError> {
        Ok(T::shelf(names).get(self.text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_share_their_text() {
        let mut names = Names::default();
        let mut site = |text| names.sites.get(text).unwrap();
        let (a, b, again) = (site("a"), site("b"), site("a"));
        assert_eq!(a.as_str().as_ptr(), again.as_str().as_ptr());
        assert_ne!(a, b);
        assert!(names.sites.get("a&b").is_err());
    }

    #[test]
    fn names_in_use_outlive_any_number_of_others() {
        let mut names = Names::default();
        let first = names.sites.get("first").unwrap();
        for n in 0..3 * NEW {
            names.sites.get(&format!("site{n}")).unwrap();
            if n % 1000 == 0 {
                let again = names.sites.get("first").unwrap();
                assert_eq!(first.as_str().as_ptr(), again.as_str().as_ptr());
            }
        }
        assert!(names.sites.new.len() + names.sites.old.len() <= 2 * NEW);
    }
}
