//! What in a command line stands for something else: `{id}`, `__ID__`, `{split 10}`, and `{NAME}` of an
//! attached file.
//!
//! Pure. What must stay true: wherever a line is read, the same is a placeholder.

/// How a number to share begins.
pub(super) const SPLIT: &str = "{split ";

/// What a placeholder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placeholder<'a> {
    /// The id of the resource.
    Id,
    /// This site's share of a number.
    Split(u64),
    /// The path of the attached file with this name.
    File(&'a str),
}

/// The placeholder that a text begins with, and its length.
pub(crate) fn find<'a>(
    text: &str,
    files: impl Iterator<Item = &'a str>,
) -> Option<(usize, Placeholder<'a>)> {
    if !text.starts_with(['{', '_']) {
        return None;
    }
    for name in ["{id}", "__ID__"] {
        if text.starts_with(name) {
            return Some((name.len(), Placeholder::Id));
        }
    }
    if let Some((length, whole)) = split(text) {
        return Some((length, Placeholder::Split(whole)));
    }
    let inner = text.strip_prefix('{')?;
    let named = |name: &&str| inner.strip_prefix(*name).is_some_and(|end| end.starts_with('}'));
    // A name may itself hold a closing brace: the longest that fits is meant.
    let name = files.filter(named).max_by_key(|name| name.len())?;
    Some((name.len() + 2, Placeholder::File(name)))
}

/// The number to share that a text begins with, and the length of how it is written.
pub(super) fn split(text: &str) -> Option<(usize, u64)> {
    let inner = text.strip_prefix(SPLIT)?;
    let end = inner.find('}')?;
    let number = inner[..end].trim_matches(' ');
    // A sign would be read, too.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    Some((SPLIT.len() + end + 1, number.parse().ok().filter(|_| digits)?))
}
