//! From the command line that an operator wrote to the one that the shell gets.
//!
//! Pure. What must stay true: only `{id}`, `__ID__`, `{split 10}` and `{NAME}` of an attached file are
//! replaced, in one pass, so that what was filled in is not looked at again; all other braces, those of the
//! shell (`${x}`) among them, stay as they are. What is filled in means the same within quotes of
//! either sort and without, as long as the path of the directory is [plain](is_plain).

use std::{collections::BTreeMap, path::PathBuf};

use cheops_core::{id::ResourceId, matrix::Share};

use super::placeholder::{self, Placeholder, SPLIT, split};

/// What stands for the placeholders of a command line.
pub(super) struct Known<'a> {
    pub(super) id: &'a ResourceId,
    /// Files are known by their name and have a path.
    pub(super) files: &'a BTreeMap<&'a str, PathBuf>,
    /// What of the resource is here; all of it, if it is not in parts.
    pub(super) share: Option<Share>,
}

/// Something in a command line that looks like a number to share, and is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{written}` has no whole number to share: it is written {{split 10}}; with a blank after the \
     brace it is left to the shell"
)]
pub(crate) struct BadSplit {
    written: String,
}

/// How much of one that can't be read is shown.
const SHOWN: usize = 30;

/// Whether each number to share in a command line is one.
pub(crate) fn check_splits(line: &str) -> Result<(), BadSplit> {
    for (at, _) in line.match_indices(SPLIT) {
        let text = &line[at..];
        if !line[..at].ends_with('$') && split(text).is_none() {
            let end = text.find('}').map_or(text.len(), |end| end + 1);
            let shown: String = text[..end].chars().take(SHOWN).collect();
            let more = if shown.len() < end { "…" } else { "" };
            return Err(BadSplit { written: shown + more });
        }
    }
    Ok(())
}

/// What the shell gets.
pub(super) fn fill(line: &str, known: &Known<'_>) -> String {
    let mut filled = String::with_capacity(line.len() + 64);
    let mut rest = line;
    let mut last = None;
    while let Some(c) = rest.chars().next() {
        if last != Some('$')
            && let Some((length, text)) = placeholder(rest, known)
        {
            filled.push_str(&text);
            rest = &rest[length..];
            last = None;
        } else {
            filled.push(c);
            rest = &rest[c.len_utf8()..];
            last = Some(c);
        }
    }
    filled
}

/// The placeholder that a text begins with: its length, and what stands for it.
fn placeholder(text: &str, known: &Known<'_>) -> Option<(usize, String)> {
    let (length, found) = placeholder::find(text, known.files.keys().copied())?;
    let stands = match found {
        Placeholder::Id => known.id.to_string(),
        Placeholder::Split(whole) => known.share.map_or(whole, |s| s.of(whole)).to_string(),
        Placeholder::File(name) => quote(&known.files[name].to_string_lossy()),
    };
    Some((length, stands))
}

/// Whether a character means itself to the shell, wherever in a path it stands. `~` does not: after
/// the `:` of `X=/a:~root` it stands for a home directory.
pub(super) fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c)
}

/// A word for the shell, in quotes if it needs them.
fn quote(word: &str) -> String {
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_filled_in() {
        let id = "counter~1".parse().unwrap();
        let files = BTreeMap::from([
            ("pod.yaml", PathBuf::from("/d/files/pod.yaml")),
            ("my file", PathBuf::from("/d/it's here/my file")),
            ("id", PathBuf::from("/d/files/id")),
            ("a", PathBuf::from("/d/files/a")),
            ("a}b", PathBuf::from("/d/files/a}b")),
            ("x{id}", PathBuf::from("/d/files/x{id}")),
            ("a:~root", PathBuf::from("/d/files/a:~root")),
        ]);
        for (line, expected) in [
            ("", ""),
            ("true", "true"),
            ("redis-cli incr {id}", "redis-cli incr counter~1"),
            ("redis-cli incr __ID__", "redis-cli incr counter~1"),
            ("{id}{id}__ID__", "counter~1counter~1counter~1"),
            ("__ID_ _ID__ {ID} { id}", "__ID_ _ID__ {ID} { id}"),
            ("kubectl apply -f {pod.yaml}", "kubectl apply -f /d/files/pod.yaml"),
            ("cat {my file}", r"cat '/d/it'\''s here/my file'"),
            ("cat {a} {a}b} {a}b", "cat /d/files/a '/d/files/a}b' /d/files/ab"),
            ("cat {x{id}}", "cat '/d/files/x{id}'"),
            ("X={a:~root}", "X='/d/files/a:~root'"),
            ("cat {unknown} {x}", "cat {unknown} {x}"),
            ("echo ${id} ${a} $x{id}", "echo ${id} ${a} $xcounter~1"),
            ("find . -exec cat {} \\;", "find . -exec cat {} \\;"),
            ("awk '{ print $1 }' | { cat; }", "awk '{ print $1 }' | { cat; }"),
            ("echo {1..3} {a,b} {", "echo {1..3} {a,b} {"),
            ("é{id}é", "écounter~1é"),
        ] {
            let known = Known { id: &id, files: &files, share: None };
            assert_eq!(fill(line, &known), expected, "{line}");
        }
    }

    #[test]
    fn a_number_to_share_is_filled_in_or_refused() {
        let (id, files) = ("x".parse().unwrap(), BTreeMap::new());
        let known = Known { id: &id, files: &files, share: Some(Share { part: 1, parts: 3 }) };
        for (line, expected) in [
            ("set {split 10}", "set 3"),
            ("{split 11}{split  2 }{split 1}", "410"),
            ("echo ${split 10} ${split x}", "echo ${split 10} ${split x}"),
            ("awk '{split($0, a)}'", "awk '{split($0, a)}'"),
            ("awk '{ split ($0, a) }'", "awk '{ split ($0, a) }'"),
            ("{split}{splits 3}", "{split}{splits 3}"),
        ] {
            assert_eq!(check_splits(line), Ok(()), "{line}");
            assert_eq!(fill(line, &known), expected, "{line}");
        }
        let long = format!("{{split {}}}", "é".repeat(40));
        for (line, written) in [
            ("set {split x}", "`{split x}`"),
            ("set {split -1}", "`{split -1}`"),
            ("set {split +1}", "`{split +1}`"),
            ("set {split 1.5}", "`{split 1.5}`"),
            ("set {split }", "`{split }`"),
            ("set {split 1", "`{split 1`"),
            ("set {split 10 1:2}", "`{split 10 1:2}`"),
            ("set {split 1} {split 99999999999999999999}", "`{split 99999999999999999999}`"),
            (&long, &format!("`{{split {}…`", "é".repeat(23))),
        ] {
            let error = check_splits(line).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{written} has no whole number")), "{error}");
        }
    }

    #[test]
    fn a_quoted_word_is_one_word_for_the_shell() {
        for word in ["plain", "two words", "it's", "$HOME `x` \"y\"", "a\nb", "*?[", "\\", ""] {
            let line = format!("printf %s {}", quote(word));
            let output = std::process::Command::new("/bin/sh").arg("-c").arg(line).output();
            assert_eq!(output.unwrap().stdout, word.as_bytes(), "{word:?}");
        }
    }

    #[test]
    fn what_is_plain_means_itself_to_the_shell_wherever_it_stands() {
        let plain: String = (' '..='~').filter(|c| is_plain(*c)).collect();
        for c in plain.chars() {
            // At the start, after each sign that the shell may look behind, and in a row.
            let words = [format!("{c}root"), format!("a:{c}root"), format!("{plain}{c}{c}")];
            for word in words {
                let line = format!("X={word}; printf %s \"$X\"; printf %s /{word}");
                let output = std::process::Command::new("/bin/sh").arg("-c").arg(&line).output();
                let expected = format!("{word}/{word}");
                assert_eq!(String::from_utf8(output.unwrap().stdout), Ok(expected), "{line}");
            }
        }
    }
}
