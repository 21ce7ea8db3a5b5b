//! The original program's spelling: `cheops --id … --sites … --command …` is `cheops exec …`.
//!
//! What must stay true: only options of `exec` in the place of a verb make it one, so that no other
//! command line changes its meaning.

use std::ffi::OsString;

use clap::CommandFactory;

use crate::Arguments;

/// The command line, with the verb that it leaves out.
pub(crate) fn with_verb(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if let Some(place) = place(&arguments) {
        arguments.insert(place, "exec".into());
    }
    arguments
}

/// Where `exec` belongs, if there is no verb.
fn place(arguments: &[OsString]) -> Option<usize> {
    let program = Arguments::command();
    let mut at = 1;
    loop {
        let argument = arguments.get(at)?.to_str()?;
        let (name, has_value) = match argument.split_once('=') {
            Some((name, _)) => (name, true),
            None => (argument, false),
        };
        match name {
            "-o" | "--output" | "--agent" | "--token" | "--token-file" | "--cacert" => {
                at += if has_value { 1 } else { 2 }
            }
            _ if name.starts_with("-o") => at += 1,
            _ => {
                let long = name.strip_prefix("--")?;
                let exec = program.find_subcommand("exec")?;
                let mut options = exec.get_arguments().filter(|option| !option.is_positional());
                return options
                    .any(|option| {
                        let aliases = option.get_all_aliases().unwrap_or_default();
                        option.get_long() == Some(long) || aliases.contains(&long)
                    })
                    .then_some(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_is_put_in_where_it_is_missing() {
        for (line, expected) in [
            ("cheops --id a --command b", "cheops exec --id a --command b"),
            ("cheops --command=b --id=a", "cheops exec --command=b --id=a"),
            ("cheops -o json --type set --id a", "cheops -o json exec --type set --id a"),
            ("cheops --agent=x -ojson --kind set", "cheops --agent=x -ojson exec --kind set"),
            ("cheops exec --id a", "cheops exec --id a"),
            ("cheops show --id a", "cheops show --id a"),
            ("cheops --help", "cheops --help"),
            ("cheops --version", "cheops --version"),
            ("cheops --unknown", "cheops --unknown"),
            ("cheops -o", "cheops -o"),
            ("cheops", "cheops"),
        ] {
            let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(with_verb(words(line)), words(expected));
        }
    }
}
