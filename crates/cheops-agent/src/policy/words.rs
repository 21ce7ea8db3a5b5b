//! A command line as a program and its arguments, without a shell.
//!
//! Words are split at blanks, and quotes and backslashes mean what they mean to a shell. What only a
//! shell can do is refused: nothing is expanded, nothing is left out. What must stay true: a line that
//! is split gives the program the same arguments as `sh -c` would, or it is refused; and what stands
//! for a placeholder is one piece of one word, whatever it holds.

use std::{fmt, path::Path};

use cheops_core::matrix::Share;

use crate::run::placeholder::{self, Placeholder};

/// What a word is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// As it stands.
    Text(String),
    /// The id of the resource.
    Id,
    /// This site's share of a number.
    Split(u64),
    /// The path of an attached file.
    File(Box<str>),
}

/// One argument.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Word(pub Vec<Piece>);

/// What stands for placeholders.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The id of the resource.
    pub id: &'a str,
    /// What of the resource is here; all of it, if it is not in parts.
    pub share: Option<Share>,
}

impl Known<'_> {
    pub(super) fn share(&self, whole: u64) -> u64 {
        self.share.map_or(whole, |share| share.of(whole))
    }
}

impl Word {
    /// The argument, if attached files are in this directory.
    pub fn filled(&self, known: Known<'_>, files: &Path) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Id => known.id.to_owned(),
            Piece::Split(whole) => known.share(*whole).to_string(),
            Piece::File(name) => files.join(&**name).to_string_lossy().into_owned(),
        };
        self.0.iter().map(piece).collect()
    }

    /// The word, if nothing in it is a placeholder.
    pub fn plain(&self) -> Option<&str> {
        match &self.0[..] {
            [] => Some(""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    fn push(&mut self, c: char) {
        match self.0.last_mut() {
            Some(Piece::Text(text)) => text.push(c),
            _ => self.0.push(Piece::Text(c.to_string())),
        }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(text),
            Piece::Id => f.write_str("{id}"),
            Piece::Split(whole) => write!(f, "{{split {whole}}}"),
            Piece::File(name) => write!(f, "{{{name}}}"),
        })
    }
}

/// Why a line can't be run without a shell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NeedsShell {
    /// It holds what only a shell understands.
    #[error("it needs a shell: `{sign}` at column {column}")]
    Sign {
        /// What.
        sign: String,
        /// Where, counted in characters from 1.
        column: usize,
    },
    /// A quote is never closed.
    #[error("the quote at column {column} is never closed")]
    Open {
        /// Where, counted in characters from 1.
        column: usize,
    },
    /// There is nothing to run.
    #[error("there is no program in it")]
    Empty,
}

/// How what follows is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    None,
    Single(usize),
    Double(usize),
}

/// The words of a line. `files` are the names of the attached files.
pub(super) fn split(line: &str, files: &[&str]) -> Result<Vec<Word>, NeedsShell> {
    let line = line.trim_matches([' ', '\t', '\n', '\r']);
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let (mut quote, mut column, mut before) = (Quote::None, 1, ' ');
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if before != '$'
            && let Some((length, found)) = placeholder::find(rest, files.iter().copied())
        {
            let piece = match found {
                Placeholder::Id => Piece::Id,
                Placeholder::Split(whole) => Piece::Split(whole),
                Placeholder::File(name) => Piece::File(name.into()),
            };
            word.get_or_insert_default().0.push(piece);
            column += rest[..length].chars().count();
            rest = &rest[length..];
            before = '}';
            continue;
        }
        rest = &rest[c.len_utf8()..];
        let needs = || Err(NeedsShell::Sign { sign: shown(c), column });
        match quote {
            Quote::Single(_) if c == '\'' => quote = Quote::None,
            Quote::Single(_) => word.get_or_insert_default().push(c),
            Quote::Double(_) => match c {
                '"' => quote = Quote::None,
                '$' | '`' => return needs(),
                '\\' => match rest.chars().next() {
                    Some('\n') => return needs(),
                    Some(next @ ('$' | '`' | '"' | '\\')) => {
                        word.get_or_insert_default().push(next);
                        rest = &rest[next.len_utf8()..];
                        column += 1;
                    }
                    _ => word.get_or_insert_default().push(c),
                },
                _ => word.get_or_insert_default().push(c),
            },
            Quote::None => match c {
                ' ' | '\t' => words.extend(word.take()),
                '\'' | '"' => {
                    word.get_or_insert_default();
                    quote = if c == '"' { Quote::Double(column) } else { Quote::Single(column) };
                }
                '\\' => {
                    let next = rest.chars().next().filter(|next| *next != '\n');
                    let Some(next) = next else { return needs() };
                    word.get_or_insert_default().push(next);
                    rest = &rest[next.len_utf8()..];
                    column += 1;
                }
                ';' | '|' | '&' | '$' | '`' | '(' | ')' | '<' | '>' | '*' | '?' | '[' => {
                    return needs();
                }
                '#' if word.is_none() => return needs(),
                '~' if word.is_none() || matches!(before, ':' | '=') => return needs(),
                // A variable that is set before the program, and nothing that a program could be.
                '=' if words.is_empty() => return needs(),
                _ if c.is_control() => return needs(),
                _ => word.get_or_insert_default().push(c),
            },
        }
        before = c;
        column += 1;
    }
    if let Quote::Single(column) | Quote::Double(column) = quote {
        return Err(NeedsShell::Open { column });
    }
    words.extend(word);
    if words.is_empty() { Err(NeedsShell::Empty) } else { Ok(words) }
}

fn shown(c: char) -> String {
    if c.is_control() { c.escape_default().to_string() } else { c.to_string() }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const KNOWN: Known<'_> = Known { id: "x; rm *", share: None };

    fn words(line: &str) -> Result<Vec<String>, NeedsShell> {
        let split = split(line, &["my file", "../x", "$(id)"])?;
        Ok(split.iter().map(|word| word.filled(KNOWN, Path::new("/f"))).collect())
    }

    #[test]
    fn words_are_those_of_a_shell() {
        for line in [
            "printf %s a b",
            "printf '%s|' a  b\t c",
            "printf '%s|' '' \"\" a''b",
            "printf '%s|' 'a;b|c&d$e`f(g)h<i>j*k?l~m#n[o]'",
            r#"printf '%s|' "a 'b' \"c\" \\d \e \$f""#,
            r"printf '%s|' a\ b \; \* \\ it\'s",
            "printf '%s|' --a=b c=d a#b a~b {} {a b,c} ! 100%",
            "printf '%s|' é 'ü\nö'",
            "  printf %s a \n",
        ] {
            let ours = words(line).unwrap();
            let theirs = Command::new("/bin/sh").arg("-c").arg(line).output().unwrap();
            let ran = Command::new(&ours[0]).args(&ours[1..]).output().unwrap();
            assert_eq!(ran.stdout, theirs.stdout, "{line}: {ours:?}");
        }
    }

    #[test]
    fn what_only_a_shell_can_do_is_refused_with_its_place() {
        for (line, sign, column) in [
            ("echo a; touch /tmp/x", ";", 7),
            ("echo a;touch /tmp/x", ";", 7),
            ("a | b", "|", 3),
            ("a && b", "&", 3),
            ("a &", "&", 3),
            ("echo $HOME", "$", 6),
            ("echo \"$HOME\"", "$", 7),
            ("echo ${id}", "$", 6),
            ("echo $(id)", "$", 6),
            ("echo `id`", "`", 6),
            ("echo \"`id`\"", "`", 7),
            ("(a)", "(", 1),
            ("a > b", ">", 3),
            ("a 2>b", ">", 4),
            ("a <b", "<", 3),
            ("ls *", "*", 4),
            ("ls a?", "?", 5),
            ("ls [ab]", "[", 4),
            ("ls ~", "~", 4),
            ("a x=~root", "~", 5),
            ("a # b", "#", 3),
            ("A=b c", "=", 2),
            ("a\nb", "\\n", 2),
            ("a \\\nb", "\\", 3),
            ("a\rb", "\\r", 2),
            ("'é' ;", ";", 5),
            ("{id}{my file}; b", ";", 14),
        ] {
            let expected = NeedsShell::Sign { sign: sign.to_owned(), column };
            assert_eq!(words(line), Err(expected), "{line}");
        }
        assert_eq!(words("echo 'a"), Err(NeedsShell::Open { column: 6 }));
        assert_eq!(words("echo \"a"), Err(NeedsShell::Open { column: 6 }));
        assert_eq!(words(" \t"), Err(NeedsShell::Empty));
    }

    #[test]
    fn a_placeholder_is_one_piece_whatever_it_holds() {
        for (line, expected) in [
            ("get {id} __ID__", &["get", "x; rm *", "x; rm *"][..]),
            ("get '{id}' \"{id}\"", &["get", "x; rm *", "x; rm *"]),
            ("get --key={id}s", &["get", "--key=x; rm *s"]),
            ("cat {my file} {$(id)}", &["cat", "/f/my file", "/f/$(id)"]),
            ("cat {../x}", &["cat", "/f/../x"]),
            ("scale {split 10} {unknown}", &["scale", "10", "{unknown}"]),
            ("echo '${id}'", &["echo", "${id}"]),
        ] {
            assert_eq!(words(line).unwrap(), expected, "{line}");
        }
    }
}
