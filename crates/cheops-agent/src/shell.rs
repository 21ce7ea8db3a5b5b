//! Commands that a person copies: each word as the shell has to read it.
//!
//! What must stay true: what is printed as a command can be pasted into a shell, and every name in
//! it arrives as it is.

/// A word, in quotes if the shell needs them.
pub fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// An argument that is no option, at the end of a command. One that looks like an option stands
/// behind `--`.
pub fn last(text: &str) -> String {
    let dashes = if text.starts_with('-') { "-- " } else { "" };
    format!("{dashes}{}", word(text))
}

/// An option and its value.
pub fn option(name: &str, value: &str) -> String {
    let between = if value.starts_with('-') { "=" } else { " " };
    format!("{name}{between}{}", word(value))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn words_are_quoted_where_the_shell_needs_it() {
        for (text, expected) in [
            ("site1:7", "site1:7"),
            ("a-b_c.d", "a-b_c.d"),
            ("DC 2", "'DC 2'"),
            ("~root", "'~root'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("Zürich", "'Zürich'"),
        ] {
            assert_eq!(word(text), expected);
        }
        assert_eq!([last("web"), last("-web")], ["web", "-- -web"]);
        assert_eq!([option("--id", "web"), option("--id", "-w")], ["--id web", "--id=-w"]);
    }

    #[test]
    fn the_shell_reads_what_was_meant() {
        for text in ["~", "$(id)", "a;b", "a  b", "'\"\\", "*", "#", "!x", "{a,b}", "a=b", "\u{e9}"]
        {
            let line = format!("printf %s {}", word(text));
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }
}
