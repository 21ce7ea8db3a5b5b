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

/// What has its own place on the page, beside the list.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// It is always sent.
    pub(crate) always: Option<Markup>,
    /// It is sent if the list has changed.
    pub(crate) changed: Option<Markup>,
}

/// A part of a page; the one that a page is about has the id `list`.
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
        self.render_as("list")
    }

    /// As another part of a page.
    pub(crate) fn render_as(&self, id: &str) -> Markup {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        let path = format!("{}{separator}seen={}", self.path, self.print());
        html! {
            div id=(id) hx-get=(path) hx-swap="outerHTML" hx-trigger=(self.trigger) { (self.content) }
        }
    }

    /// For a browser that has it already, maybe in this state: with what has its own place on the page and
    /// is never the same for long, and with what changes only if the list does.
    pub(crate) fn again(&self, before: &Before, beside: &Beside) -> Response {
        match (self.is_as(before), &beside.always) {
            (true, None) => StatusCode::NO_CONTENT.into_response(),
            (true, Some(always)) => ([("hx-reswap", "none")], always.clone()).into_response(),
            (false, always) => html! {
                (self.render())
                @for part in [always, &beside.changed].into_iter().flatten() { (part) }
            }
            .into_response(),
        }
    }

    /// Whether it is what a browser has.
    pub(crate) fn is_as(&self, before: &Before) -> bool {
        before.seen == self.print()
    }

    fn print(&self) -> String {
        format!("{:016x}", xxh3_64(self.content.0.as_bytes()))
    }
}

/// The way to another page of a list: it takes the place of this one, with the command that shows the same.
pub(crate) fn page(to: &str, text: &str) -> Markup {
    html! {
        a href=(to) hx-get=(to) hx-select="#list" hx-target="#list" hx-swap="outerHTML show:#list:top" hx-select-oob="#command"
            hx-push-url="true" { (text) }
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
        assert_eq!(list("one").again(&before, &Beside::default()).status(), StatusCode::NO_CONTENT);
        assert_eq!(list("two").again(&before, &Beside::default()).status(), StatusCode::OK);
        assert_eq!(
            list("one").again(&Before::default(), &Beside::default()).status(),
            StatusCode::OK
        );
        let beside = Beside { always: Some(html! { "now" }), changed: None };
        let answer = list("one").again(&before, &beside);
        assert_eq!(answer.headers().get("hx-reswap").unwrap(), "none");
    }
}
