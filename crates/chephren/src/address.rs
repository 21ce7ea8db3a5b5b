//! Addresses with parameters, and lines for the shell: text from outside put where it can't become more.

use crate::api::segment;

/// A path with those of the parameters that have a value.
pub(crate) fn address(path: &str, parameters: &[(&str, &str)]) -> String {
    let given = parameters.iter().filter(|(_, value)| !value.is_empty());
    let given: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", segment(value))).collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
}

/// A text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '~');
    if !text.is_empty() && !text.starts_with('~') && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_is_left_out_and_what_is_odd_is_kept() {
        assert_eq!(address("/x", &[("a", "")]), "/x");
        assert_eq!(
            address("/x", &[("a", "1&b=2"), ("b", ""), ("c", "é")]),
            "/x?a=1%26b%3D2&c=%C3%A9"
        );
        for (text, expected) in [
            ("site1", "site1"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("~x", "'~x'"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
