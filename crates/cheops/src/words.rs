//! How values are put for people: times, lengths of time, states with their colours.
//!
//! What must stay true: nothing here is for programs; those get RFC 3339 and milliseconds.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use cheops_agent::api::model::{
    Fate, Receipt, ResourceSummary, RunStatus, SiteState, State, Urgency,
};
use jiff::Timestamp;

use crate::table::Cell;

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const OPEN: Style = AnsiColor::Yellow.on_default();
pub(crate) const BOLD: Style = Style::new().bold();

/// What stands where nothing is known.
pub(crate) const NONE: &str = "-";

/// Where a resource is: `site1, site2`, or in parts `site1 % site2 & site3`.
pub(crate) fn place(resource: &ResourceSummary) -> String {
    if resource.parts.is_empty() {
        return resource.sites.join(", ");
    }
    let parts = resource.parts.iter().map(|sites| sites.join(" & "));
    parts.collect::<Vec<_>>().join(" % ")
}

/// How long ago a moment was: `3m ago`. A text that is no time stays as it is.
pub(crate) fn ago(moment: &str) -> String {
    match moment.parse::<Timestamp>() {
        Ok(moment) => since(moment, Timestamp::now()),
        Err(_) => moment.to_owned(),
    }
}

/// [`ago`], for what may not be known.
pub(crate) fn ago_or_none(moment: Option<&str>) -> String {
    moment.map_or_else(|| NONE.to_owned(), ago)
}

fn since(moment: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(moment.as_second());
    match seconds {
        // Clocks of two sites differ a little.
        -10..=0 => "now".to_owned(),
        ..-10 => format!("in {}", rough(seconds.unsigned_abs())),
        _ => format!("{} ago", rough(seconds.unsigned_abs())),
    }
}

/// A length of time with one unit, as a table has it.
fn rough(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// The time of day of a moment, for a feed that is read as it comes.
pub(crate) fn clock(moment: Timestamp) -> String {
    let zoned = moment.to_zoned(jiff::tz::TimeZone::system());
    zoned.strftime("%H:%M:%S").to_string()
}

/// How long something took: `12ms`, `1.3s`, `2m05s`.
pub(crate) fn took(millis: u64) -> String {
    match millis {
        0..1000 => format!("{millis}ms"),
        1000..60_000 => format!("{}.{}s", millis / 1000, millis % 1000 / 100),
        _ => format!("{}m{:02}s", millis / 60_000, millis / 1000 % 60),
    }
}

/// [`took`], for a duration.
pub(crate) fn took_for(duration: Duration) -> String {
    took(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// A round trip: fractions matter below ten milliseconds.
pub(crate) fn round_trip(millis: f64) -> String {
    if millis < 10.0 { format!("{millis:.1}ms") } else { format!("{millis:.0}ms") }
}

/// A digest of what was shown, as much of it as tells two apart at a glance.
pub(crate) fn print(digest: &str) -> &str {
    digest.get(..8).unwrap_or(digest)
}

/// A number of bytes.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => format!("{}KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{}MiB", bytes >> 20),
        _ => format!("{}GiB", bytes >> 30),
    }
}

/// The id of a resource for a table: of a long one the start and the end, unless all is wanted.
/// Ids that are alike at the start tend to differ at the end.
pub(crate) fn id(id: &str, wide: bool) -> String {
    const MOST: usize = 40;
    const END: usize = 15;
    let count = id.chars().count();
    if wide || count <= MOST {
        return id.to_owned();
    }
    let start = id.chars().take(MOST - END - 1);
    start.chain(['…']).chain(id.chars().skip(count - END)).collect()
}

/// `1 site`, `2 sites`.
pub(crate) fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `site1`, `site1 and site2`, `site1, site2 and site3`.
pub(crate) fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        [name] => (*name).to_owned(),
        [names @ .., last] => format!("{} and {last}", names.join(", ")),
    }
}

/// All of some sites: by name if they are few.
pub(crate) fn everyone(sites: &[&str]) -> String {
    if sites.len() <= 5 { listed(sites) } else { format!("all {} sites", sites.len()) }
}

/// The items of a list as they are shown; of a long one the start and the end.
pub(crate) fn shown<T, R>(
    items: Vec<T>,
    (head, tail): (usize, usize),
    row: impl Fn(T) -> R,
    skipped: impl Fn(usize) -> R,
) -> Vec<R> {
    let count = items.len();
    // To skip a single item saves no room.
    if count <= head + tail + 1 {
        return items.into_iter().map(row).collect();
    }
    let mut rows = Vec::new();
    for (n, item) in items.into_iter().enumerate() {
        if n == head {
            rows.push(skipped(count - head - tail));
        }
        if n < head || n >= count - tail {
            rows.push(row(item));
        }
    }
    rows
}

/// The first line of a text, and how many follow.
pub(crate) fn first_line(text: &str) -> String {
    let mut lines = text.trim_end().lines();
    let first = lines.next().unwrap_or_default().to_owned();
    match lines.count() {
        0 => first,
        more => format!("{first} … {} more", count(more, "line")),
    }
}

/// A word that programs know, as the API writes it.
pub(crate) fn word<T: serde::Serialize>(value: T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

pub(crate) fn state(state: State) -> Cell {
    let style = match state {
        State::Settled => GOOD,
        State::Pending => OPEN,
        State::Failed | State::Denied | State::Diverged | State::NeedsDecision => BAD,
    };
    Cell::styled(word(state), style)
}

pub(crate) fn site_state(state: SiteState) -> Cell {
    let style = match state {
        SiteState::Here | SiteState::Reachable => GOOD,
        SiteState::Paused => OPEN,
        SiteState::Unreachable => BAD,
    };
    Cell::styled(word(state), style)
}

pub(crate) fn run_style(status: RunStatus) -> Style {
    match status {
        RunStatus::Ok => GOOD,
        RunStatus::Ko | RunStatus::Denied | RunStatus::Unknown => BAD,
        RunStatus::Running | RunStatus::Waiting | RunStatus::Dropped | RunStatus::Timeout => OPEN,
    }
}

pub(crate) fn fate(fate: Fate) -> Cell {
    let style = match fate {
        Fate::Kept => GOOD,
        Fate::Over | Fate::Fallen => OPEN,
        Fate::Void => BAD,
    };
    Cell::styled(word(fate), style)
}

/// Why an operation has its fate, beside the word for that fate, which a receipt may begin with.
pub(crate) fn why(fate: Fate, receipt: &Receipt) -> &str {
    let rest = receipt.why.strip_prefix(&word(fate)).and_then(|rest| rest.strip_prefix(": "));
    rest.unwrap_or(&receipt.why)
}

pub(crate) fn urgency(urgency: Urgency) -> Cell {
    let style = match urgency {
        Urgency::High => BAD,
        Urgency::Medium => OPEN,
        Urgency::Low => Style::new(),
    };
    Cell::styled(word(urgency), style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_id_is_shortened_unless_all_is_wanted() {
        let (fits, long) = ("a".repeat(40), format!("{}-{}", "é".repeat(60), "0123456789abcd"));
        assert_eq!(id(&fits, false), fits);
        assert_eq!(id(&long, false), format!("{}…-0123456789abcd", "é".repeat(24)));
        assert_eq!(id(&long, false).chars().count(), 40);
        assert_eq!(id(&long, true), long);
    }

    #[test]
    fn how_long_ago() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (before, expected) in [
            (0, "now"),
            (-5, "now"),
            (-60, "in 60s"),
            (1, "1s ago"),
            (119, "119s ago"),
            (120, "2m ago"),
            (7199, "119m ago"),
            (7200, "2h ago"),
            (172_800, "2d ago"),
        ] {
            let moment = Timestamp::from_second(1_000_000 - before).unwrap();
            assert_eq!(since(moment, now), expected);
        }
        assert_eq!(ago("yesterday"), "yesterday");
    }

    #[test]
    fn lengths_and_sizes() {
        for (millis, expected) in
            [(0, "0ms"), (999, "999ms"), (1000, "1.0s"), (59_999, "59.9s"), (65_000, "1m05s")]
        {
            assert_eq!(took(millis), expected);
        }
        assert_eq!(round_trip(0.34), "0.3ms");
        assert_eq!(round_trip(12.4), "12ms");
        assert_eq!(
            [size(9), size(2048), size(3 << 20), size(4 << 30)],
            ["9B", "2KiB", "3MiB", "4GiB"]
        );
    }

    #[test]
    fn names_in_a_sentence() {
        assert_eq!(listed::<&str>(&[]), "none");
        assert_eq!(listed(&["a"]), "a");
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
        assert_eq!([count(1, "site"), count(2, "site")], ["1 site", "2 sites"]);
    }

    #[test]
    fn of_a_text_the_first_line_and_how_many_follow() {
        assert_eq!(first_line(""), "");
        assert_eq!(first_line("a\n"), "a");
        assert_eq!(first_line("a\nb\nc\n"), "a … 2 lines more");
    }

    #[test]
    fn the_word_for_a_fate_is_not_said_twice() {
        for (fate, told, expected) in [
            (Fate::Void, "void: failed at site1", "failed at site1"),
            (Fate::Fallen, "set over inc (matrix row 2)", "set over inc (matrix row 2)"),
            (Fate::Over, "void: x", "void: x"),
        ] {
            assert_eq!(why(fate, &Receipt { by: None, why: told.into() }), expected);
        }
    }

    #[test]
    fn words_are_those_of_the_api() {
        assert_eq!(word(State::NeedsDecision), "needs-decision");
        assert_eq!(word(RunStatus::Ok), "OK");
    }
}
