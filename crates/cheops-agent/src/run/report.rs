//! From how a run ended and what it printed to what the reply says.
//!
//! Pure. What must stay true: the outcome is OK only for exit code 0, and for an answer below 400 or
//! one that says that what was to be deleted is not there; the text is as long as the limit allows and
//! a few words more, and says what it leaves out.

use std::time::Duration;

use cheops_core::{duration, plan::Outcome, replica::Report, time::Millis};

use super::{
    answer,
    job::{End, Status},
    left_out::LeftOut,
};
use crate::policy::Denial;

/// What is known of a command that ended.
pub(super) struct Account<'a> {
    /// How it ended.
    pub(super) status: &'a Status,
    /// The beginning of what it printed.
    pub(super) printed: &'a [u8],
    /// How long it was allowed to take.
    pub(super) timeout: Duration,
    /// What its answer says that was made.
    pub(super) made: Option<Box<str>>,
}

/// The report of a command that ended; at most so many bytes of it are what was printed.
pub(super) fn report(account: Account<'_>, most: usize) -> Report {
    let Account { status, printed, timeout, made } = account;
    let (mut output, used) = text(printed, most);
    if let Some(left_out) = LeftOut::of(status.printed, status.kept, used as u64) {
        add(&mut output, &left_out.to_string());
    }
    match &status.end {
        End::Exit(0) | End::Http(..400) => {}
        End::Exit(code) => add(&mut output, &format!("exit code {code}")),
        End::Signal(signal) => add(&mut output, &format!("ended by signal {signal}")),
        End::TimedOut => {
            add(&mut output, &format!("timed out after {}", duration::print(timeout)));
        }
        End::Http(status) | End::Gone(status) => add(&mut output, &answer::words(*status)),
        End::Failed(why) => add(&mut output, why),
    }
    let outcome = if status.end.is_ok() { Outcome::Ok } else { Outcome::Ko };
    Report { outcome, took: millis(status.took), output: output.into(), made }
}

/// The report of a run that had nothing to do.
pub(super) fn needless(why: impl Into<Box<str>>) -> Report {
    Report { outcome: Outcome::Ok, took: Millis(0), output: why.into(), made: None }
}

/// What may not be run here.
pub(super) fn denied(denial: &Denial) -> Report {
    let output = denial.to_string().into();
    Report { outcome: Outcome::Denied, took: Millis(0), output, made: None }
}

/// A failure before anything was run.
pub(super) fn refused(why: impl Into<Box<str>>) -> Report {
    Report { outcome: Outcome::Ko, took: Millis(0), output: why.into(), made: None }
}

/// A length of time, as the core counts it.
pub(super) fn millis(span: Duration) -> Millis {
    Millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

/// A line of our own after what was printed.
fn add(output: &mut String, line: &str) {
    if !output.is_empty() && !output.ends_with('\n') {
        output.push('\n');
    }
    output.push_str(line);
}

/// The beginning of what was printed as text, and how many bytes it stands for. What is not UTF-8
/// is shown as `�`; a character that does not fit whole is left out.
fn text(printed: &[u8], most: usize) -> (String, usize) {
    let (mut text, mut used) = (String::new(), 0);
    for chunk in printed.utf8_chunks() {
        for c in chunk.valid().chars() {
            if text.len() + c.len_utf8() > most {
                return (text, used);
            }
            text.push(c);
            used += c.len_utf8();
        }
        let invalid = chunk.invalid().len();
        if invalid > 0 {
            if text.len() + '�'.len_utf8() > most {
                return (text, used);
            }
            text.push('�');
            used += invalid;
        }
    }
    (text, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(end: End, printed: &[u8], more: u64, kept: u64, most: usize) -> (Outcome, String) {
        let all = printed.len() as u64 + more;
        let status =
            Status { end, took: Duration::from_millis(5), printed: all, kept, answer: None };
        let timeout = Duration::from_secs(30);
        let account = Account { status: &status, printed, timeout, made: None };
        let report = report(account, most);
        assert_eq!(report.took, Millis(5));
        (report.outcome, report.output.into())
    }

    #[test]
    fn a_reply_says_how_it_ended() {
        for (end, printed, outcome, expected) in [
            (End::Exit(0), "", Outcome::Ok, ""),
            (End::Exit(0), "done\n", Outcome::Ok, "done\n"),
            (End::Exit(3), "", Outcome::Ko, "exit code 3"),
            (End::Exit(3), "no", Outcome::Ko, "no\nexit code 3"),
            (End::Exit(3), "no\n", Outcome::Ko, "no\nexit code 3"),
            (End::Signal(9), "a", Outcome::Ko, "a\nended by signal 9"),
            (End::TimedOut, "a\n", Outcome::Ko, "a\ntimed out after 30s"),
            (End::Failed("no shell".to_owned()), "", Outcome::Ko, "no shell"),
            (End::Http(204), "HTTP/1.1 204\n\n", Outcome::Ok, "HTTP/1.1 204\n\n"),
            (End::Http(399), "x", Outcome::Ok, "x"),
            (End::Http(404), "x", Outcome::Ko, "x\nanswered with 404 Not Found"),
            (End::Gone(410), "x", Outcome::Ok, "x\nanswered with 410 Gone"),
        ] {
            let expected = (outcome, expected.to_owned());
            assert_eq!(says(end, printed.as_bytes(), 0, printed.len() as u64, 100), expected);
        }
    }

    #[test]
    fn a_long_output_is_cut_at_a_character_and_says_so() {
        for (printed, more, kept, most, expected) in [
            (&b"abcdef"[..], 0, 6, 6, "abcdef"),
            (
                b"abcdef",
                0,
                6,
                4,
                "abcd\n[2 more bytes were printed; all of it is in a file at this site]",
            ),
            (b"abcd", 96, 4, 4, "abcd\n[96 more bytes were printed]"),
            (
                b"abcd",
                96,
                10,
                4,
                "abcd\n[96 more bytes were printed; the first 10 bytes are in a file at this site, and 90 were dropped]",
            ),
            (
                "aé".as_bytes(),
                0,
                3,
                2,
                "a\n[2 more bytes were printed; all of it is in a file at this site]",
            ),
            (b"a\xffb", 0, 3, 9, "a\u{fffd}b"),
            (
                b"\xff\xff",
                0,
                2,
                4,
                "\u{fffd}\n[1 more bytes were printed; all of it is in a file at this site]",
            ),
            (b"ab", 0, 2, 0, "[2 more bytes were printed; all of it is in a file at this site]"),
        ] {
            let (outcome, output) = says(End::Exit(0), printed, more, kept, most);
            assert_eq!((outcome, output.as_str()), (Outcome::Ok, expected));
        }
    }
}
