//! A part of a page that fetches itself again, and is only replaced if it is different.
//!
//! What must stay true: whoever reads, points at or has selected something in a list is not disturbed by a
//! list that is the same.

use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use maud::{Markup, html};
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

/// What the browser has.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Before {
    seen: String,
}

/// The part of a page with the id `list`.
pub(crate) struct List {
    /// Where it comes from.
    pub(crate) path: String,
    /// When it is fetched again.
    pub(crate) trigger: String,
    pub(crate) content: Markup,
}

impl List {
    /// As part of a page.
    pub(crate) fn render(&self) -> Markup {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        let path = format!("{}{separator}seen={}", self.path, self.print());
        html! {
            div #list hx-get=(path) hx-swap="outerHTML" hx-trigger=(self.trigger) { (self.content) }
        }
    }

    /// For a browser that has it already, maybe in this state, with what has its own place on the page.
    pub(crate) fn again(&self, before: &Before, beside: Option<&Markup>) -> Response {
        match (before.seen == self.print(), beside) {
            (true, None) => StatusCode::NO_CONTENT.into_response(),
            (true, Some(beside)) => ([("hx-reswap", "none")], beside.clone()).into_response(),
            (false, beside) => {
                html! { (self.render()) @if let Some(beside) = beside { (beside) } }.into_response()
            }
        }
    }

    fn print(&self) -> String {
        format!("{:016x}", xxh3_64(self.content.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_is_not_sent() {
        let list = |text: &str| List {
            path: "/part/x".to_owned(),
            trigger: "every 5s".to_owned(),
            content: html! { (text) },
        };
        let page = list("one").render().into_string();
        let seen = page.split("seen=").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let before = Before { seen: seen.to_owned() };
        assert_eq!(list("one").again(&before, None).status(), StatusCode::NO_CONTENT);
        assert_eq!(list("two").again(&before, None).status(), StatusCode::OK);
        assert_eq!(list("one").again(&Before::default(), None).status(), StatusCode::OK);
    }
}
