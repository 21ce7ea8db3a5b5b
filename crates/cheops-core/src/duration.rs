//! Lengths of time as operators write them: `10ms`, `1.5s`, `1m30s`, `30d`.
//!
//! Both directions live here, and nowhere else. What must stay true: for every duration there is,
//! [`parse`] reads back what [`print`] wrote.

use alloc::{borrow::ToOwned, string::String};
use core::{fmt, ops::Range, time::Duration};

/// The units, largest first, with their length in nanoseconds. `µs` is `us` with another keyboard.
const UNITS: [(&str, u128); 9] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", NANOS_PER_SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ns", 1),
];

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// What is right, for every error of this module.
pub const HINT: &str =
    "a duration is a number and a unit (d, h, m, s, ms, us, ns): `10ms`, `1.5s`, `2m`, `1h30m`";

/// A text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct DurationError {
    /// The bytes of the text that are wrong.
    pub at: Range<usize>,
    /// What is wrong with them.
    pub problem: DurationProblem,
}

/// The ways in which a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationProblem {
    /// There is no number where one has to be.
    #[error("a duration starts with a number")]
    NoNumber,
    /// The digits and dots do not make a number.
    #[error("`{0}` is not a number")]
    BadNumber(String),
    /// A number stands alone.
    #[error("the number has no unit")]
    NoUnit,
    /// What follows the number is not a unit.
    #[error("unknown unit `{0}`")]
    UnknownUnit(String),
    /// The units do not descend.
    #[error("units go from the largest to the smallest, each at most once")]
    Order,
    /// More than the machine can count.
    #[error("the duration is too long")]
    TooLong,
}

/// Reads a duration. What is finer than a nanosecond is dropped.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let mut nanos = 0;
    let mut at = 0;
    let mut smallest = u128::MAX;
    loop {
        let rest = &text[at..];
        let number = leading(rest, is_numeric);
        let unit = leading(&rest[number.len()..], |c| !is_numeric(c));
        let unit_at = at + number.len();
        let end = unit_at + unit.len();
        let error = |at, problem| Err(DurationError { at, problem });

        if number.is_empty() {
            return error(at..end, DurationProblem::NoNumber);
        }
        if unit.trim().is_empty() {
            return error(at..end, DurationProblem::NoUnit);
        }
        let Some(&(_, size)) = UNITS.iter().find(|(name, _)| *name == unit.trim()) else {
            return error(unit_at..end, DurationProblem::UnknownUnit(unit.trim().to_owned()));
        };
        if size >= smallest {
            return error(unit_at..end, DurationProblem::Order);
        }
        smallest = size;
        match scale(number, size) {
            Ok(more) => nanos += more,
            Err(problem) => return error(at..unit_at, problem),
        }
        at = end;
        if at == text.len() {
            break;
        }
    }
    let too_long = |_| DurationError { at: 0..text.len(), problem: DurationProblem::TooLong };
    let seconds = u64::try_from(nanos / NANOS_PER_SECOND).map_err(too_long)?;
    let rest = u32::try_from(nanos % NANOS_PER_SECOND).map_err(too_long)?;
    Ok(Duration::new(seconds, rest))
}

/// The longest start of a text whose characters all pass.
fn leading(text: &str, pass: impl Fn(char) -> bool) -> &str {
    let end = text.find(|c| !pass(c)).unwrap_or(text.len());
    &text[..end]
}

fn is_numeric(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// A decimal number times a unit, in nanoseconds.
fn scale(number: &str, unit: u128) -> Result<u128, DurationProblem> {
    let (whole, fraction) = match number.split_once('.') {
        None => (number, "0"),
        Some(both) => both,
    };
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(DurationProblem::BadNumber(number.to_owned()));
    }
    let whole: u64 = whole.parse().map_err(|_| DurationProblem::TooLong)?;
    // Eighteen digits of a day are far below a nanosecond, and the product still fits.
    let (mut part, mut place) = (0, 1);
    for digit in fraction.bytes().take(18) {
        part = part * 10 + u128::from(digit - b'0');
        place *= 10;
    }
    Ok(u128::from(whole) * unit + part * unit / place)
}

/// Writes a duration in its canonical form: `1.5s`, `250us`, `1h30m`.
pub fn print(duration: Duration) -> impl fmt::Display {
    Printed(duration)
}

struct Printed(Duration);

impl fmt::Display for Printed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        match (seconds, nanos) {
            (0, 0) => f.write_str("0s"),
            (0, 1..1_000) => write!(f, "{nanos}ns"),
            (0, 1_000..1_000_000) => decimal(f, 0, nanos, 1_000, "us"),
            (0, _) => decimal(f, 0, nanos, 1_000_000, "ms"),
            (1..60, _) => decimal(f, seconds, nanos, 1_000_000_000, "s"),
            (60.., _) => {
                let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                if seconds > 0 || nanos > 0 {
                    decimal(f, seconds, nanos, 1_000_000_000, "s")?;
                }
                Ok(())
            }
        }
    }
}

/// `whole` and `nanos` in a unit of so many nanoseconds, without zeros at the end.
fn decimal(
    f: &mut fmt::Formatter<'_>,
    whole: u64,
    nanos: u32,
    unit: u32,
    name: &str,
) -> fmt::Result {
    let whole = whole + u64::from(nanos / unit);
    let (mut fraction, mut scale) = (nanos % unit, unit);
    if fraction == 0 {
        return write!(f, "{whole}{name}");
    }
    while fraction.is_multiple_of(10) {
        fraction /= 10;
        scale /= 10;
    }
    let width = scale.ilog10() as usize;
    write!(f, "{whole}.{fraction:0width$}{name}")
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn reads_and_writes() {
        for (text, canonical, nanos) in [
            ("10ms", "10ms", 10_000_000),
            ("30s", "30s", 30_000_000_000),
            ("2m", "2m", 120_000_000_000),
            ("1h", "1h", 3_600_000_000_000),
            ("1.5s", "1.5s", 1_500_000_000),
            ("1500ms", "1.5s", 1_500_000_000),
            ("250us", "250us", 250_000),
            ("250µs", "250us", 250_000),
            ("0.25ms", "250us", 250_000),
            ("7ns", "7ns", 7),
            ("1.25us", "1.25us", 1_250),
            ("8.123456ms", "8.123456ms", 8_123_456),
            ("0ms", "0s", 0),
            ("90s", "1m30s", 90_000_000_000),
            ("30d", "720h", 2_592_000_000_000_000),
            ("1d 12h", "36h", 129_600_000_000_000),
            ("1.5h", "1h30m", 5_400_000_000_000),
            ("1h 0.5s", "1h0.5s", 3_600_500_000_000),
            ("10 ms", "10ms", 10_000_000),
            ("0.0000000019s", "1ns", 1),
        ] {
            let read = parse(text).unwrap();
            assert_eq!(read.as_nanos(), nanos, "{text}");
            assert_eq!(print(read).to_string(), canonical, "{text}");
        }
        for extreme in [Duration::MAX, Duration::from_nanos(1), Duration::new(59, 999_999_999)] {
            assert_eq!(parse(&print(extreme).to_string()), Ok(extreme));
        }
    }

    #[test]
    fn says_what_is_wrong() {
        use DurationProblem as P;
        let unknown = |unit: &str| P::UnknownUnit(unit.to_owned());
        for (text, at, problem) in [
            ("", 0..0, P::NoNumber),
            ("ms", 0..2, P::NoNumber),
            ("-5ms", 0..1, P::NoNumber),
            ("10", 0..2, P::NoUnit),
            ("1m30", 2..4, P::NoUnit),
            ("10mss", 2..5, unknown("mss")),
            ("10 days", 2..7, unknown("days")),
            ("1.s", 0..2, P::BadNumber("1.".to_owned())),
            (".5s", 0..2, P::BadNumber(".5".to_owned())),
            ("1.2.3s", 0..5, P::BadNumber("1.2.3".to_owned())),
            ("1s1m", 3..4, P::Order),
            ("1s1s", 3..4, P::Order),
            ("99999999999999999999s", 0..20, P::TooLong),
            ("9999999999999999999h", 0..20, P::TooLong),
        ] {
            assert_eq!(parse(text), Err(DurationError { at, problem }), "{text:?}");
        }
    }
}
