//! What an agent has accepted, for whoever asked for it: known also when following it has failed.
//!
//! Pure. What must stay true: nobody is left to think that an operation has changed where its
//! resource exists, or that it was not accepted when it was.

use std::collections::BTreeSet;

use cheops_core::{
    id::ResourceId,
    scope::{self, Node, Operator, Place},
};

use crate::{report::Failure, shell, words};

/// An operation that was accepted, and the sites of its resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) operation: String,
    pub(crate) sites: Vec<String>,
}

impl Accepted {
    /// What to say if the resource exists on other sites than were asked for. Of a place that is not
    /// a plain list of sites only the agent knows what it stands for, so nothing is said.
    pub(crate) fn note(&self, id: &ResourceId, place: &str) -> Option<String> {
        let asked = plain_sites(&scope::parse_place(place).ok()?)?;
        let there: BTreeSet<&str> = self.sites.iter().map(String::as_str).collect();
        let is_other = asked.iter().map(String::as_str).ne(there.iter().copied());
        let there: Vec<&str> = there.into_iter().collect();
        is_other.then(|| {
            format!("{id} exists on {}; --sites does not change that", words::listed(&there))
        })
    }

    /// A failure to follow the operation, with how to look at it.
    pub(crate) fn goes_on(&self, failure: Failure, id: &ResourceId) -> Failure {
        let (operation, id) = (&self.operation, shell::last(id.as_str()));
        failure.hint(format!("it was accepted as {operation} and goes on: cheops describe {id}"))
    }
}

/// The sites of a place that only names them: `site1 & site2`, `site1 % site2`.
fn plain_sites(place: &Place) -> Option<BTreeSet<String>> {
    match place.node() {
        Node::Site(site) => Some([site.to_string()].into()),
        Node::Several(Operator::All | Operator::Across, places) => {
            let sites: Option<Vec<_>> = places.iter().map(plain_sites).collect();
            Some(sites?.into_iter().flatten().collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_that_stay_as_they_are_are_told() {
        let id = "web".parse().unwrap();
        let sites = ["site2", "site1"].map(str::to_owned).to_vec();
        let accepted = Accepted { operation: "site1:7".into(), sites };
        for (place, is_told) in [
            ("site1 & site2", false),
            ("site2 & site1 & site2", false),
            ("site1", true),
            ("site3", true),
            ("site1 & site2 & site3", true),
            ("site2 % site1", false),
            ("site1 % site2 & site3", true),
            ("*", false),
            ("around(site1, 9ms)", false),
            ("site1 & around(site1, 9ms)", false),
            ("site3; site4", false),
        ] {
            let expected = "web exists on site1 and site2; --sites does not change that";
            let expected = is_told.then(|| expected.to_owned());
            assert_eq!(accepted.note(&id, place), expected, "{place}");
        }
    }
}
