//! Addresses with parameters, and names of parts of a page: text from outside put where it can't become
//! more.

use xxhash_rust::xxh3::xxh3_64;

use crate::api::segment;

/// A name for a part of a page that is the same as long as it is about the same. It can be looked for
/// whatever is in it: the names of sites may have spaces and dots.
pub(crate) fn anchor(what: &str, about: &[&str]) -> String {
    format!("{what}-{:016x}", xxh3_64(about.join("\0").as_bytes()))
}

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
    fn parts_of_a_page_are_told_apart() {
        assert_ne!(anchor("op", &["a", "b"]), anchor("op", &["ab"]));
        assert_ne!(anchor("op", &["a"]), anchor("output", &["a"]));
        assert!(anchor("do", &["DC 1.é"]).chars().all(|c| c.is_ascii_alphanumeric() || c == '-'));
    }

    #[test]
    fn what_is_empty_is_left_out_and_what_is_odd_is_kept() {
        assert_eq!(address("/x", &[("a", "")]), "/x");
        assert_eq!(
            address("/x", &[("a", "1&b=2"), ("b", ""), ("c", "é")]),
            "/x?a=1%26b%3D2&c=%C3%A9"
        );
    }
}
