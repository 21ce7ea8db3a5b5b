//! Addresses with parameters: text from outside put where it can't become more.

use crate::api::segment;

/// A path with those of the parameters that have a value.
pub(crate) fn address(path: &str, parameters: &[(&str, &str)]) -> String {
    let given = parameters.iter().filter(|(_, value)| !value.is_empty());
    let given: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", segment(value))).collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
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
    }
}
