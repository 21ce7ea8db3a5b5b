//! How operations, runs and receipts are written.

use cheops_agent::api::model::{Fate, Operation, Receipt, RunStatus};

/// The word for how a run went, and its colour.
pub(crate) fn run(status: RunStatus) -> (&'static str, &'static str) {
    match status {
        RunStatus::Ok => ("OK", "good"),
        RunStatus::Ko => ("KO", "bad"),
        RunStatus::Denied => ("denied", "bad"),
        RunStatus::Unknown => ("nobody knows", "bad"),
        RunStatus::Running => ("running", "busy"),
        RunStatus::Waiting => ("waiting", "busy"),
        RunStatus::Dropped => ("not run", "quiet"),
        RunStatus::Timeout => ("no word yet", "busy"),
    }
}

/// The word for what became of an operation, and its colour.
pub(super) fn fate(fate: Fate) -> (&'static str, &'static str) {
    match fate {
        Fate::Kept => ("in the block", "good"),
        Fate::Over => ("over", "quiet"),
        Fate::Fallen => ("fallen", "warn"),
        Fate::Void => ("void", "bad"),
    }
}

/// The site that received an operation.
pub(crate) fn site_of(operation: &str) -> &str {
    operation.rsplit_once(':').map_or(operation, |(site, _)| site)
}

/// The number of an operation at the site that received it.
pub(super) fn number_of(operation: &str) -> Option<u64> {
    operation.rsplit_once(':').and_then(|(_, number)| number.parse().ok())
}

/// Why an operation is not in the block: `lost to op 7 of site2: set over inc (matrix row 2)`.
pub(super) fn receipt(receipt: &Receipt) -> String {
    let Some(by) = &receipt.by else { return receipt.why.clone() };
    match number_of(by) {
        Some(number) => format!("lost to op {number} of {}: {}", site_of(by), receipt.why),
        None => format!("lost to {by}: {}", receipt.why),
    }
}

/// Why an operation is not in the block, in one sentence.
pub(super) fn why(operation: &Operation) -> String {
    operation.receipt.as_ref().map_or_else(|| fate(operation.fate).0.to_owned(), receipt)
}

/// The last line of what was printed: how a command that failed ended.
pub(super) fn end(output: &str) -> String {
    const MOST: usize = 120;
    let last = output.trim_end().rsplit('\n').next().unwrap_or_default();
    let mut short: String = last.chars().take(MOST).collect();
    if short.len() < last.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_says_who_won_and_why() {
        let why = "set over inc (matrix row 2)".to_owned();
        for (by, expected) in [
            (Some("site2:7"), "lost to op 7 of site2: set over inc (matrix row 2)"),
            (Some("odd"), "lost to odd: set over inc (matrix row 2)"),
            (None, "set over inc (matrix row 2)"),
        ] {
            let by = by.map(str::to_owned);
            assert_eq!(receipt(&Receipt { by, why: why.clone() }), expected);
        }
    }

    #[test]
    fn the_end_of_an_output_is_its_last_line() {
        let long = "é".repeat(200);
        for (output, expected) in [
            ("", String::new()),
            ("a\nexit code 2", "exit code 2".to_owned()),
            ("a\nb\n\n", "b".to_owned()),
            (&long, "é".repeat(120) + "…"),
        ] {
            assert_eq!(end(output), expected);
        }
    }
}
