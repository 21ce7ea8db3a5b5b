//! What a command printed, taken apart: a reply is one text, in which the agent's own words about
//! how the command ended and what was left out follow what was printed.
//!
//! Pure. What must stay true: words that are not known stay part of the text, so that nothing a site
//! said is lost.

use cheops_agent::{
    api::model::{Run, RunStatus},
    run::left_out::{Kept, LeftOut},
};

use crate::{shell, words};

/// An output in its parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Printed<'a> {
    /// What was printed, as far as it is here.
    pub(crate) text: &'a str,
    /// What is not here.
    left_out: Option<LeftOut>,
    /// How a command that failed ended: `exit 2`.
    end: Option<String>,
}

impl<'a> Printed<'a> {
    /// The output of a run.
    pub(crate) fn by(run: &'a Run) -> Self {
        Self::new(run.output.as_deref().unwrap_or_default(), run.status == RunStatus::Ko)
    }

    /// An output of a command that failed or did not.
    pub(crate) fn new(output: &'a str, has_failed: bool) -> Self {
        let end = has_failed.then(|| end(last_line(output))).flatten();
        let text = if end.is_some() { without_last_line(output) } else { output };
        // The words about what is left out stand before those about the end.
        let said = if end.is_some() { text.strip_suffix('\n').unwrap_or(text) } else { text };
        let left_out = LeftOut::read(last_line(said));
        let text = if left_out.is_some() { without_last_line(said) } else { text };
        Self { text, left_out, end }
    }

    /// A status, and how the command ended: `KO (exit 2)`.
    pub(crate) fn status(&self, status: &str) -> String {
        match &self.end {
            Some(end) => format!("{status} ({end})"),
            None => status.to_owned(),
        }
    }

    /// How a command that failed ended.
    pub(crate) fn end(&self) -> Option<&str> {
        self.end.as_deref()
    }

    /// On one line: the first of what was printed, and how much follows. `fetch` is the command that
    /// fetches all that is kept, if there is one.
    pub(crate) fn line(&self, fetch: Option<&str>) -> String {
        match self.rest(fetch) {
            None => words::first_line(self.text),
            Some(rest) => {
                let first = self.text.lines().next().unwrap_or_default();
                format!("{first} {rest}").trim_start().to_owned()
            }
        }
    }

    /// What is not here, in words: `… 12MiB more: cheops output …`.
    pub(crate) fn rest(&self, fetch: Option<&str>) -> Option<String> {
        let LeftOut { more, kept } = self.left_out?;
        let more = words::size(more);
        Some(match (kept, fetch) {
            (Kept::All, Some(fetch)) => format!("… {more} more: {fetch}"),
            (Kept::First { kept, .. }, Some(fetch)) => {
                format!("… {more} more, the first {} kept: {fetch}", words::size(kept))
            }
            (Kept::NoMore, _) | (_, None) => format!("… {more} more, not kept"),
        })
    }

    /// How much was printed and how much of that is kept, if that is not all.
    pub(crate) fn cut(&self) -> Option<(u64, u64)> {
        let LeftOut { more, kept } = self.left_out?;
        let here = self.text.len() as u64;
        match kept {
            Kept::All => None,
            Kept::First { kept, dropped } => Some((kept.saturating_add(dropped), kept)),
            Kept::NoMore => Some((here.saturating_add(more), here)),
        }
    }
}

/// The command that fetches all that an operation printed at a site.
pub(crate) fn fetch(id: &str, operation: &str, site: &str) -> String {
    let site = shell::option("--site", site);
    format!("cheops output {site} {} {}", shell::last(id), shell::word(operation))
}

fn last_line(text: &str) -> &str {
    text.rsplit('\n').next().unwrap_or_default()
}

fn without_last_line(text: &str) -> &str {
    &text[..text.len() - last_line(text).len()]
}

/// How a command ended, if a line says so.
fn end(line: &str) -> Option<String> {
    let is_number = |text: &&str| text.parse::<i64>().is_ok();
    if let Some(code) = line.strip_prefix("exit code ").filter(is_number) {
        return Some(format!("exit {code}"));
    }
    if let Some(signal) = line.strip_prefix("ended by signal ").filter(is_number) {
        return Some(format!("signal {signal}"));
    }
    line.starts_with("timed out after ").then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_words_are_told_from_what_was_printed() {
        let left_out = |kept| LeftOut { more: 96, kept }.to_string();
        let part = format!("ab\n{}", left_out(Kept::First { kept: 90, dropped: 8 }));
        let failed = format!("ab\n{}\nexit code 2", left_out(Kept::All));
        for (output, has_failed, text, end) in [
            ("", true, "", None),
            ("exit code 2", true, "", Some("exit 2")),
            ("no\nexit code 2", true, "no\n", Some("exit 2")),
            ("no\nended by signal 9", true, "no\n", Some("signal 9")),
            ("timed out after 30s", true, "", Some("timed out after 30s")),
            ("exit code 2", false, "exit code 2", None),
            ("exit code two", true, "exit code two", None),
            ("no shell", true, "no shell", None),
            (&part, false, "ab\n", None),
            (&failed, true, "ab\n", Some("exit 2")),
            ("[96 more bytes were eaten]", false, "[96 more bytes were eaten]", None),
        ] {
            let printed = Printed::new(output, has_failed);
            assert_eq!((printed.text, printed.end()), (text, end), "{output}");
        }
        assert_eq!(Printed::new("exit code 2", true).status("KO"), "KO (exit 2)");
        assert_eq!(Printed::new("", false).status("OK"), "OK");
    }

    #[test]
    fn what_is_left_out_is_told() {
        let fetch = fetch("web", "DC 2:7", "DC 2");
        assert_eq!(fetch, "cheops output --site 'DC 2' web 'DC 2:7'");
        let said = |text: &str, more, kept| format!("{text}{}", LeftOut { more, kept });
        let part = Kept::First { kept: 64 << 20, dropped: (2 << 30) + 5 - (64 << 20) };
        for (output, line, cut) in [
            ("ab\nc\n".to_owned(), "ab … 1 line more", None),
            (said("ab\nc\n", 12 << 20, Kept::All), "ab … 12MiB more: FETCH", None),
            (
                said("ab\nc\n", 2 << 30, part),
                "ab … 2GiB more, the first 64MiB kept: FETCH",
                Some(((2 << 30) + 5, 64 << 20)),
            ),
            (said("ab\n", 9, Kept::NoMore), "ab … 9B more, not kept", Some((12, 3))),
            (said("", 9, Kept::NoMore) + "\nexit code 1", "… 9B more, not kept", Some((9, 0))),
        ] {
            let printed = Printed::new(&output, output.ends_with("exit code 1"));
            assert_eq!(printed.line(Some("FETCH")), line);
            assert_eq!(printed.cut(), cut, "{output}");
        }
        let output = said("ab\nc\n", 9, Kept::All);
        assert_eq!(Printed::new(&output, false).line(None), "ab … 9B more, not kept");
    }
}
