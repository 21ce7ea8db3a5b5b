//! What is looked for among resources: the form above a list of them, and the pages below it.
//!
//! What must stay true: a filter is in the address of its page, so that it can be kept and sent; and a
//! list is fetched again with the filter that it was made with.

use cheops_agent::{
    api::model::{Site, State},
    shell,
};
use maud::{Markup, html};
use serde::Deserialize;

use crate::{address::address, fresh::page, live, words};

/// How many resources are on a page.
pub(crate) const PAGE: usize = 50;

/// All states, in the order of how well things are.
const STATES: [State; 6] = [
    State::Settled,
    State::Pending,
    State::Failed,
    State::Denied,
    State::Diverged,
    State::NeedsDecision,
];

/// What is looked for; what is empty is not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Sought {
    /// A part of the id.
    pub(crate) find: String,
    pub(crate) state: String,
    pub(crate) site: String,
    /// The page after this id.
    pub(crate) after: String,
}

impl Sought {
    /// The address of this page of a list.
    pub(crate) fn at(&self, path: &str) -> String {
        address(path, &self.parameters())
    }

    fn parameters(&self) -> [(&str, &str); 4] {
        [("find", &self.find), ("state", &self.state), ("site", &self.site), ("after", &self.after)]
    }

    /// The same question, for the API.
    pub(crate) fn ask(&self, path: &str, more: &[(&str, &str)]) -> String {
        let limit = PAGE.to_string();
        let mut all = vec![
            ("contains", self.find.trim()),
            ("state", &self.state),
            ("site", &self.site),
            ("after", &self.after),
            ("limit", &limit),
        ];
        all.extend(more);
        address(path, &all)
    }

    /// Whether everything is looked for.
    pub(crate) fn is_all(&self) -> bool {
        self.find.trim().is_empty() && self.state.is_empty() && self.site.is_empty()
    }

    /// The same question, as options of a command.
    pub(crate) fn options(&self) -> String {
        let options = [("--state", &self.state), ("--site", &self.site)];
        let given = options.iter().filter(|(_, value)| !value.is_empty());
        let given: Vec<String> =
            given.map(|(name, value)| format!(" {}", shell::option(name, value))).collect();
        given.concat()
    }

    /// The form; what it finds takes the place of the list, an element with the id `list`.
    pub(crate) fn form(&self, path: &str, sites: Option<&[Site]>) -> Markup {
        html! {
            form.find role="search" action=(path) method="get" hx-get=(path) hx-select="#list" hx-target="#list"
                hx-swap="outerHTML" hx-select-oob="#command" hx-replace-url="true" hx-sync="this:replace"
                hx-trigger="input changed delay:250ms from:find input, change from:#by-state, change from:#by-site, submit" {
                label { "Search " input type="search" name="find" value=(self.find) placeholder="a part of the name"; }
                label { "State "
                    select #by-state name="state" {
                        option value="" { "any" }
                        @for state in STATES {
                            option value=(word(state)) selected[word(state) == self.state] { (words::state(state).0) }
                        }
                    }
                }
                @if let Some(sites) = sites {
                    label { "Site "
                        select #by-site name="site" {
                            option value="" { "any" }
                            @for site in sites {
                                option value=(site.name) selected[site.name == self.site] { (site.name) }
                            }
                        }
                    }
                }
                noscript { button { "Find" } }
            }
        }
    }

    /// The way to the other pages.
    pub(crate) fn pages(&self, path: &str, next: Option<&str>) -> Markup {
        let to = |after: &str| Self { after: after.to_owned(), ..self.clone() }.at(path);
        html! {
            nav.pages aria-label="Pages of the list" {
                @if !self.after.is_empty() { (page(&to(""), "First page")) }
                @if let Some(next) = next { (page(&to(next), &format!("Next {PAGE}"))) }
            }
        }
    }
}

/// When a list of resources of one site is fetched again: when something happens, and now and then, since
/// not all that happens elsewhere is told here.
pub(crate) fn trigger() -> String {
    let (connected, sites, resources) = (live::CONNECTED, live::SITES, live::RESOURCES);
    format!("sse:{connected}, sse:{sites}, sse:{resources}, every 5s")
}

/// The word for a state that the API has.
pub(crate) fn word(state: State) -> &'static str {
    match state {
        State::Settled => "settled",
        State::Pending => "pending",
        State::Failed => "failed",
        State::Denied => "denied",
        State::Diverged => "diverged",
        State::NeedsDecision => "needs-decision",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_in_the_address() {
        let sought = |find: &str, state: &str, after: &str| Sought {
            find: find.to_owned(),
            state: state.to_owned(),
            after: after.to_owned(),
            ..Sought::default()
        };
        for (sought, address, asked, options) in [
            (sought("", "", ""), "/r", "/api?limit=50&at=a", ""),
            (
                sought(" web ", "failed", ""),
                "/r?find=%20web%20&state=failed",
                "/api?contains=web&state=failed&limit=50&at=a",
                " --state failed",
            ),
            (sought("", "", "x-1"), "/r?after=x%2D1", "/api?after=x%2D1&limit=50&at=a", ""),
        ] {
            assert_eq!(sought.at("/r"), address);
            assert_eq!(sought.ask("/api", &[("at", "a")]), asked);
            assert_eq!(sought.options(), options);
        }
    }

    #[test]
    fn the_words_are_those_of_the_api() {
        for state in STATES {
            assert_eq!(serde_json::to_value(state).unwrap(), word(state));
        }
    }
}
