//! A text with stars in it, which stands for many.
//!
//! What must stay true: a pattern costs time in proportion to the product of its length and that of the
//! text, whatever it holds.

use alloc::{string::String, vec::Vec};

/// A text in which `*` stands for any number of characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern. Every text is one.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether all of a text matches.
    pub fn matches(&self, text: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else { return self.0 == text };
        let Some(mut text) = text.strip_prefix(head) else { return false };
        let mut pieces: Vec<&str> = rest.split('*').collect();
        let tail = pieces.pop().unwrap_or_default();
        for piece in pieces {
            let Some(at) = text.find(piece) else { return false };
            text = &text[at + piece.len()..];
        }
        text.ends_with(tail)
    }
}
