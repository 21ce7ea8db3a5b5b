//! From the command line that an operator wrote to the one that the shell gets.
//!
//! Pure. What must stay true: only `{id}`, `__ID__` and `{NAME}` of an attached file are replaced,
//! in one pass, so that what was filled in is not looked at again; all other braces, those of the
//! shell (`${x}`) among them, stay as they are. What is filled in means the same within quotes of
//! either sort and without, as long as the path of the directory is [plain](is_plain).

use std::{collections::BTreeMap, path::PathBuf};

use cheops_core::id::ResourceId;

/// What the shell gets. Files are known by their name and have a path.
pub(super) fn fill(line: &str, id: &ResourceId, files: &BTreeMap<&str, PathBuf>) -> String {
    let mut filled = String::with_capacity(line.len() + 64);
    let mut rest = line;
    let mut last = None;
    while let Some(c) = rest.chars().next() {
        if last != Some('$')
            && let Some((length, text)) = placeholder(rest, id, files)
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
fn placeholder(
    text: &str,
    id: &ResourceId,
    files: &BTreeMap<&str, PathBuf>,
) -> Option<(usize, String)> {
    for name in ["{id}", "__ID__"] {
        if text.starts_with(name) {
            return Some((name.len(), id.to_string()));
        }
    }
    let inner = text.strip_prefix('{')?;
    let named = |name: &&&str| inner.strip_prefix(**name).is_some_and(|end| end.starts_with('}'));
    // A name may itself hold a closing brace: the longest that fits is meant.
    let name = files.keys().filter(named).max_by_key(|name| name.len())?;
    Some((name.len() + 2, quote(&files[name].to_string_lossy())))
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
            assert_eq!(fill(line, &id, &files), expected, "{line}");
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
