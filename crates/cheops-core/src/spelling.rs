//! What a mistyped word was probably meant to be.

use alloc::vec::Vec;

/// How many characters of a typed text are looked at: more is no typing error.
const LONGEST: usize = 300;

/// The word that takes the fewest letters to add, drop or change, if they are few: one, and one
/// more for each three letters of the shorter word. The first of several that are as near.
pub(crate) fn nearest<W: AsRef<str>>(typed: &str, words: impl IntoIterator<Item = W>) -> Option<W> {
    let typed: Vec<char> = typed.chars().take(LONGEST).flat_map(char::to_lowercase).collect();
    words
        .into_iter()
        .filter_map(|word| {
            let letters: Vec<char> = word.as_ref().chars().flat_map(char::to_lowercase).collect();
            let few = 1 + letters.len().min(typed.len()) / 3;
            // The difference in length is a lower bound, and far cheaper than the distance.
            let possible = letters.len().abs_diff(typed.len()) <= few;
            let distance = possible.then(|| distance(&typed, &letters))?;
            (distance <= few).then_some((distance, word))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// How many letters must be added, dropped or changed to get from one word to the other: one row
/// of the table of all their beginnings at a time.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=a.len()).collect();
    for (n, letter) in b.iter().enumerate() {
        let mut corner = core::mem::replace(&mut row[0], n + 1);
        for (m, other) in a.iter().enumerate() {
            let changed = corner + usize::from(other != letter);
            corner = row[m + 1];
            row[m + 1] = changed.min(corner + 1).min(row[m] + 1);
        }
    }
    row[a.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("", "abc", 3),
            ("site1", "site2", 1),
            ("kitten", "sitting", 3),
        ] {
            let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            assert_eq!((distance(&a, &b), distance(&b, &a)), (expected, expected));
        }
    }

    #[test]
    fn a_word_is_found_if_few_letters_are_wrong() {
        let words = ["take-one", "take-both", "site2"];
        for (typed, expected) in [
            ("take-on", Some("take-one")),
            ("TAKE-BOTH", Some("take-both")),
            ("sitee2", Some("site2")),
            ("elephant", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, words), expected, "{typed}");
        }
    }
}
