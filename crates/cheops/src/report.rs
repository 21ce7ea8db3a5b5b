//! How a failure is shown, for every verb:
//!
//! ```text
//! error: Invalid scope
//!   image: site1 & sitee2
//!                  ^^^^^^
//!   Caused by: Unknown site `sitee2`
//!
//! hint: Did you mean `site2`?
//! ```
//!
//! What must stay true: nothing that came in is written as it is. A text from outside may hold
//! control characters, which would act on the operator's terminal, and may be long. What a verb
//! writes for people goes through the same [`clean`].

use std::{fmt::Display, io::Write, ops::Range, process::ExitCode};

use anstyle::{AnsiColor, Style};
use cheops_core::{
    json::{JsonError, Spot},
    scope::ScopeError,
};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();
const MARK: Style = AnsiColor::Red.on_default();

/// How a verb ends, for whoever only looks at the exit status. The numbers don't change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All went as it was asked for.
    Fine = 0,
    /// Something is wrong: a site said KO, sites differ, there are problems, the result can't be
    /// written.
    Wrong = 1,
    /// The input can't be used, or the agent refused it or could not pass it on. Nothing was done.
    Refused = 2,
    /// There was no answer in time, or nobody can say whether it was accepted. What was goes on.
    Silent = 3,
    /// No agent can be reached.
    Unreachable = 4,
    /// Someone did not want to wait any longer; as shells have it for Ctrl-C.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a verb did not do what it was asked to.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    source: Option<(String, Range<usize>)>,
    cause: Option<String>,
    hint: Option<String>,
    /// An agent answered that there is no such resource, where it was asked for.
    is_unknown_resource: bool,
    exit: Exit,
}

impl Failure {
    /// Bad input, in a few words: `invalid scope`.
    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    /// Something that went wrong, in a few words, with the exit status that says so.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
            cause: None,
            hint: None,
            is_unknown_resource: false,
            exit,
        }
    }

    /// A scope, or a place, that is wrong.
    pub(crate) fn scope(text: &str, error: &ScopeError) -> Self {
        Self::input("invalid scope")
            .at(text, error.span.range())
            .caused_by(error)
            .hint(error.hint())
    }

    /// A JSON document that is wrong, and its text.
    pub(crate) fn json(message: impl Into<String>, text: &str, error: JsonError) -> Self {
        let failure = Self::input(message).caused_by(&error);
        let source = error.spot.map(|spot| (text.to_owned(), byte_at(text, spot)));
        Self { hint: error.hint, source, ..failure }
    }

    /// Shows the text with a caret under these bytes.
    pub(crate) fn at(self, text: &str, span: Range<usize>) -> Self {
        Self { source: Some((text.to_owned(), span)), ..self }
    }

    /// Why it is wrong.
    pub(crate) fn caused_by(self, cause: impl Display) -> Self {
        Self { cause: Some(cause.to_string()), ..self }
    }

    /// What would be right.
    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// With whether an agent answered that there is no such resource.
    pub(crate) fn unknown_resource(self, is_unknown_resource: bool) -> Self {
        Self { is_unknown_resource, ..self }
    }

    /// An agent answered that there is no such resource, where it was asked for.
    pub(crate) fn is_unknown_resource(&self) -> bool {
        self.is_unknown_resource
    }

    /// The exit status.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// On one line, for a table: what is wrong, and why.
    pub(crate) fn line(&self) -> String {
        match &self.cause {
            Some(cause) => clean(&format!("{}: {cause}", self.message)),
            None => clean(&self.message),
        }
    }

    /// Writes the failure to standard error and gives its exit status.
    pub(crate) fn show(&self) -> Exit {
        // With standard error closed there is nobody left to tell.
        let _ = anstream::stderr().write_all(self.render().as_bytes());
        self.exit
    }

    fn render(&self) -> String {
        let source = self.source.as_ref();
        let cause = self.cause.as_deref().map(sentences);
        let hint = self.hint.as_deref().map(sentences);
        [
            format!("{ERROR}error:{ERROR:#} {}\n", sentence(&self.message)),
            source.and_then(|(text, span)| excerpt(text, span.clone())).unwrap_or_default(),
            cause.map(|cause| format!("  Caused by: {cause}\n")).unwrap_or_default(),
            hint.map(|hint| format!("\n{HINT}hint:{HINT:#} {hint}\n")).unwrap_or_default(),
        ]
        .concat()
    }
}

/// The line where the span starts, and a line of carets below; none if it is not in the text.
fn excerpt(text: &str, span: Range<usize>) -> Option<String> {
    let (before, rest) = text.split_at_checked(span.start)?;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let before = clean(before.get(line_start..)?);
    let line_rest = rest.split('\n').next().unwrap_or_default().trim_end_matches('\r');
    let (marked, after) =
        line_rest.split_at_checked(span.len().min(line_rest.len())).unwrap_or((line_rest, ""));
    let (marked, after) = (clean(marked), clean(after));

    let gutter = if text.trim_end().contains('\n') {
        let number = text.get(..line_start)?.matches('\n').count() + 1;
        format!("  {number} | ")
    } else {
        "  ".to_owned()
    };
    let (before, marked, after) = (last(&before, 60), first(&marked, 60), first(&after, 40));
    let pad = " ".repeat(gutter.len() + before.width());
    let carets = "^".repeat(marked.width().max(1));
    Some(format!("{gutter}{before}{marked}{after}\n{pad}{MARK}{carets}{MARK:#}\n"))
}

/// The byte at a place in a text; the nearest before it where a character starts.
fn byte_at(text: &str, Spot { line, column }: Spot) -> Range<usize> {
    let lines_before = text.split_inclusive('\n').take(line.saturating_sub(1));
    let line_start: usize = lines_before.map(str::len).sum();
    let at = text.floor_char_boundary(line_start + column.saturating_sub(1));
    let width = text.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
    at..at + width
}

/// A text with everything replaced that does not take up room on the screen by itself.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' | '\n' => ' ',
            c if c.width().unwrap_or(0) == 0 => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect()
}

/// A text of several lines, each of them [`clean`].
pub(crate) fn clean_lines(text: &str) -> impl Iterator<Item = String> {
    text.lines().map(clean)
}

/// At most so many characters from the start.
pub(crate) fn first(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// At most so many characters from the end.
fn last(text: &str, most: usize) -> String {
    match text.char_indices().nth_back(most) {
        None => text.to_owned(),
        Some((cut, c)) => format!("…{}", &text[cut + c.len_utf8()..]),
    }
}

/// A message from the core, which has no capital, as it is shown. An id that it begins with stays as it is.
fn sentence(message: &str) -> String {
    let first_word = message.split(' ').next().unwrap_or_default();
    if first_word.contains(':') && !first_word.ends_with(':') {
        return clean(message);
    }
    let mut characters = message.chars();
    let initial = characters.next().map(|c| c.to_ascii_uppercase());
    clean(&initial.into_iter().chain(characters).collect::<String>())
}

/// The same of a message with several lines: those after the first stand further to the right, so that none
/// looks like one of this program's own.
fn sentences(message: &str) -> String {
    let mut lines = message.lines();
    let first = sentence(lines.next().unwrap_or_default());
    lines.fold(first, |text, line| match clean(line) {
        line if line.is_empty() => text + "\n",
        line => text + "\n    " + &line,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(failure: &Failure) -> String {
        anstream::adapter::strip_str(&failure.render()).to_string()
    }

    #[test]
    fn a_failure_in_full() {
        let text = "image: site1 & sitee2";
        let failure = Failure::input("invalid scope")
            .at(text, 15..21)
            .caused_by("unknown site `sitee2`")
            .hint("did you mean `site2`?");
        assert_eq!(
            plain(&failure),
            "error: Invalid scope
  image: site1 & sitee2
                 ^^^^^^
  Caused by: Unknown site `sitee2`

hint: Did you mean `site2`?
"
        );
    }

    #[test]
    fn lines_of_a_cause_stay_lines_and_look_like_nothing_else() {
        let failure = Failure::input("the agent can't start")
            .caused_by("write this:\n\n[api]\nkey = \"a\"\u{1b}[2J\nhint: run rm")
            .hint("one\ntwo\n");
        assert_eq!(
            plain(&failure),
            "error: The agent can't start
  Caused by: Write this:

    [api]
    key = \"a\"\u{fffd}[2J
    hint: run rm

hint: One
    two
"
        );
    }

    #[test]
    fn excerpts() {
        for (text, span, expected) in [
            ("abc", 3..3, "  abc\n     ^\n"),
            ("", 0..0, "  \n  ^\n"),
            ("a\nbc d\n", 5..6, "  2 | bc d\n         ^\n"),
            ("a\r\nb\r\n", 0..1, "  1 | a\n      ^\n"),
            ("ab\ncd\n", 1..5, "  1 | ab\n       ^\n"),
            ("日本 x", 7..8, "  日本 x\n       ^\n"),
            ("\u{1b}[31m\tx", 6..7, "  \u{fffd}[31m x\n        ^\n"),
        ] {
            let drawn = excerpt(text, span).unwrap();
            assert_eq!(anstream::adapter::strip_str(&drawn).to_string(), expected, "{text:?}");
        }
        assert_eq!(excerpt("é", 1..2), None);
        assert_eq!(excerpt("abc", 7..9), None);
    }

    #[test]
    fn places_in_a_text() {
        for (text, line, column, expected) in [
            ("abc", 1, 2, 1..2),
            ("ab\ncd\n", 2, 1, 3..4),
            ("ab\ncd\n", 3, 0, 6..6),
            ("", 1, 0, 0..0),
            ("日本", 1, 5, 3..6),
            ("a", 9, 9, 1..1),
        ] {
            assert_eq!(byte_at(text, Spot { line, column }), expected, "{text:?}");
        }
    }

    #[test]
    fn a_long_line_is_cut_around_the_mark() {
        let text = format!("{}X{}", "a".repeat(5000), "b".repeat(5000));
        let drawn = excerpt(&text, 5000..5001).unwrap();
        let drawn = anstream::adapter::strip_str(&drawn).to_string();
        let (line, carets) = drawn.split_once('\n').unwrap();
        assert_eq!(line, format!("  …{}X{}…", "a".repeat(60), "b".repeat(40)));
        assert_eq!(line.chars().position(|c| c == 'X'), carets.find('^'));
    }
}
