//! How states, times and amounts are written.

use cheops_agent::api::model::{SiteState, State, Urgency};
use maud::{Markup, html};

/// A moment, in the reader's own time; the browser puts it in, and keeps UTC for whoever points at it.
pub(crate) fn time(moment: Option<&str>) -> Markup {
    html! {
        @if let Some(moment) = moment {
            time datetime=(moment) title=(moment) { (moment) }
        } @else {
            span.none { "never" }
        }
    }
}

/// A span of milliseconds, for people.
pub(crate) fn span(millis: f64) -> String {
    match millis {
        m if m < 10.0 => format!("{m:.1} ms"),
        m if m < 1_000.0 => format!("{m:.0} ms"),
        m if m < 60_000.0 => format!("{:.1} s", m / 1e3),
        m if m < 3_600_000.0 => format!("{:.0} min", m / 6e4),
        m => format!("{:.0} h", m / 3.6e6),
    }
}

/// `1 site`, `2 sites`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// An amount of bytes, for people.
#[expect(clippy::cast_precision_loss, reason = "nobody reads more than three digits")]
pub(crate) fn bytes(bytes: usize) -> String {
    match bytes {
        b if b < 1_000 => format!("{b} B"),
        b if b < 1_000_000 => format!("{:.1} kB", b as f64 / 1e3),
        b if b < 1_000_000_000 => format!("{:.1} MB", b as f64 / 1e6),
        b => format!("{:.1} GB", b as f64 / 1e9),
    }
}

/// The word for a site's state, and the colour that it has everywhere.
pub(crate) fn site_state(state: SiteState) -> (&'static str, &'static str) {
    match state {
        SiteState::Here => ("here", "good"),
        SiteState::Reachable => ("reachable", "good"),
        SiteState::Unreachable => ("unreachable", "bad"),
        SiteState::Paused => ("paused", "warn"),
    }
}

/// The word for a resource's state, and its colour.
pub(crate) fn state(state: State) -> (&'static str, &'static str) {
    match state {
        State::Settled => ("settled", "good"),
        State::Pending => ("pending", "busy"),
        State::Failed => ("failed", "bad"),
        State::Denied => ("denied", "bad"),
        State::Diverged => ("diverged", "bad"),
        State::NeedsDecision => ("needs a decision", "bad"),
    }
}

/// The word for a resource that is being deleted, and its colour.
pub(crate) const DELETING: (&str, &str) = ("being deleted", "busy");

/// The word for how urgent something is, and its colour.
pub(crate) fn urgency(urgency: Urgency) -> (&'static str, &'static str) {
    match urgency {
        Urgency::High => ("high", "bad"),
        Urgency::Medium => ("medium", "warn"),
        Urgency::Low => ("low", "busy"),
    }
}

/// A word with its colour.
pub(crate) fn badge((word, colour): (&str, &str)) -> Markup {
    html! { span class={ "badge " (colour) } { (word) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_bytes_are_short() {
        for (millis, expected) in [
            (0.42, "0.4 ms"),
            (12.0, "12 ms"),
            (1_500.0, "1.5 s"),
            (90_000.0, "2 min"),
            (7_200_000.0, "2 h"),
        ] {
            assert_eq!(span(millis), expected);
        }
        for (count, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_500, "1.5 kB"),
            (2_000_000, "2.0 MB"),
            (3 << 30, "3.2 GB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }
}
