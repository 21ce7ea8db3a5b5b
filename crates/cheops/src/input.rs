//! Reads what a verb is given: a file, or standard input where the path is `-`.
//!
//! What must stay true: a text that can't be read is told with what the operator can do about it,
//! alike for every verb; and a mark at the start of the text that only names its encoding is gone.

use std::{
    fs,
    io::{self, ErrorKind, Read},
    path::Path,
};

use crate::report::Failure;

/// The text of a file, or of standard input; `what` it should be is for the message.
pub(crate) fn read(path: &Path, what: &str) -> Result<String, Failure> {
    let from_stdin = path.as_os_str() == "-";
    let text = if from_stdin {
        let mut text = String::new();
        io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    let text = text.map_err(|error| {
        let failure = Failure::input(format!("cannot read the {what} `{}`", path.display()))
            .caused_by(&error);
        match next_step(error.kind()) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn next_step(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::NotFound => "check the path; `-` reads standard input",
        ErrorKind::IsADirectory => "give a file in that directory",
        ErrorKind::PermissionDenied => "make the file readable for you, or run as a user who can",
        ErrorKind::InvalidData => {
            "save the file as UTF-8, or convert it: iconv -f LATIN1 -t UTF-8 OLD > NEW"
        }
        _ => return None,
    })
}

/// The text of a document that can't be empty; `shortest` is the shortest that there is.
pub(crate) fn document(path: &Path, what: &str, shortest: &str) -> Result<String, Failure> {
    let text = read(path, what)?;
    if text.trim().is_empty() {
        return Err(Failure::input(format!("invalid {what} `{}`", path.display()))
            .caused_by("the text is empty")
            .hint(format!("the shortest {what} is `{shortest}`; is this the right file?")));
    }
    Ok(text)
}
