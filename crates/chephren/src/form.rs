//! A form as it comes from the browser: its texts, and its files, which go on to the agent as they come.
//!
//! What must stay true: texts are bounded, each and in their number; a file is never held whole; and a file
//! that broke off on its way here is not taken in as if it were whole.

use std::collections::BTreeMap;

use axum::{body::Body, http::Method};
use bytes::Bytes;
use cheops_agent::{
    api::{
        form::{Part, Parts},
        model::{File, Problem, Stored, Submit},
    },
    shell,
};
use futures_util::stream;
use http_body_util::BodyExt as _;
use maud::{Markup, html};
use tokio::sync::mpsc;

use crate::api::{Answer, Api, Refusal};

/// The longest text, in bytes.
const TEXT: usize = 1 << 20;
/// The most texts.
const TEXTS: usize = 32;
/// The most files.
const FILES: usize = 32;

/// What was filled in.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    /// By the names of their fields.
    texts: BTreeMap<String, String>,
    /// Those that the agent has by now.
    pub(crate) files: Vec<File>,
}

/// A field for files. `name` tells forms apart.
pub(crate) fn files(name: &str) -> Markup {
    html! {
        label for={ (name) "-files" } { "Files" }
        input id={ (name) "-files" } type="file" name="files" multiple aria-describedby={ (name) "-files-help" };
        small id={ (name) "-files-help" } { "The command uses each by its own name in braces: " code { "{index.html}" } }
    }
}

/// The command that asks for the same as a form.
pub(crate) fn line(id: &str, submit: &Submit) -> String {
    let given = [
        Some(shell::option("--id", id)),
        submit.sites.as_deref().map(|sites| shell::option("--sites", sites)),
        submit.kind.as_deref().map(|kind| shell::option("--type", kind)),
        submit.config.as_ref().map(|config| shell::option("--config", &config.to_string())),
        Some(shell::option("--command", &submit.command)),
        submit.force.then(|| "--force".to_owned()),
        submit.keep_going.then(|| "--keep-going".to_owned()),
        submit.dry_run.then(|| "--dry-run".to_owned()),
    ];
    let files = submit.files.iter().map(|file| shell::option("--file", &file.name));
    let words = ["cheops exec".to_owned()].into_iter().chain(given.into_iter().flatten());
    words.chain(files).collect::<Vec<_>>().join(" ")
}

/// Reads a form, and gives its files to the agent.
pub(crate) async fn read(api: &Api, mut form: Parts) -> Answer<Filled> {
    let mut filled = Filled::default();
    while let Some(field) = form.next().await.map_err(|error| broken(&error))? {
        let name = field.name().to_owned();
        if name != "files" {
            let text = text(field).await?;
            filled.put(name, text)?;
            continue;
        }
        let name = field.file_name().to_owned();
        // A field for files that is left empty comes as a file without a name.
        if name.is_empty() {
            continue;
        }
        if filled.files.len() == FILES {
            return Err(wrong(
                "too many files",
                &format!("there are more than {FILES}"),
                "put them into one archive",
            ));
        }
        let Stored { content, length } = pass_on(api, field).await?;
        filled.files.push(File { name, content, length });
    }
    Ok(filled)
}

impl Filled {
    fn put(&mut self, name: String, text: String) -> Answer<()> {
        if self.texts.len() == TEXTS && !self.texts.contains_key(&name) {
            let many = format!("there are more than {TEXTS} fields");
            return Err(wrong("too many fields", &many, "load the page again, and send its form"));
        }
        self.texts.insert(name, text);
        Ok(())
    }

    /// A text of one line; nothing if it is left empty.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let text = self.texts.get(name).map(|text| text.trim());
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// A text of several lines, as it was typed.
    pub(crate) fn lines(&self, name: &str) -> String {
        // A browser has lines end as the network does, and a shell does not.
        self.texts.get(name).map(|text| text.replace("\r\n", "\n")).unwrap_or_default()
    }

    /// Whether a box is ticked.
    pub(crate) fn is_ticked(&self, name: &str) -> bool {
        self.texts.contains_key(name)
    }
}

/// A text, as long as it is not too long.
async fn text(mut field: Part<'_>) -> Answer<String> {
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(|error| broken(&error))? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > TEXT {
            return Err(wrong("too long", "a text is longer than 1 MB", "add it as a file"));
        }
    }
    String::from_utf8(bytes).map_err(|error| broken(&error))
}

/// Gives a file to the agent, piece by piece.
async fn pass_on(api: &Api, mut field: Part<'_>) -> Answer<Stored> {
    let (sender, receiver) = mpsc::channel::<Result<Bytes, axum::Error>>(4);
    let pieces = stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let send = async move {
        loop {
            let piece = match field.chunk().await {
                Ok(Some(piece)) => Ok(piece),
                Ok(None) => return,
                Err(error) => Err(axum::Error::new(error)),
            };
            let ends = piece.is_err();
            if sender.send(piece).await.is_err() || ends {
                return;
            }
        }
    };
    let store = api.call(Method::POST, "/api/v1/files", Body::from_stream(pieces));
    let (answer, ()) = tokio::join!(store, send);
    let body = answer?.into_body().collect().await.map_err(|error| broken(&error))?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| broken(&error))
}

fn broken(error: &dyn std::fmt::Display) -> Refusal {
    wrong("the form broke off", &error.to_string(), "send it again")
}

pub(crate) fn wrong(title: &str, detail: &str, hint: &str) -> Refusal {
    Refusal(Problem {
        kind: "bad-form".to_owned(),
        title: title.to_owned(),
        status: 400,
        detail: detail.to_owned(),
        hint: hint.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_copy_asks_for_the_same() {
        let submit = Submit {
            command: "echo 'a b' > {id}".to_owned(),
            kind: Some("set".to_owned()),
            force: true,
            files: vec![File { name: "a b".to_owned(), content: String::new(), length: 0 }],
            ..Submit::default()
        };
        assert_eq!(
            line("web", &submit),
            r"cheops exec --id web --type set --command 'echo '\''a b'\'' > {id}' --force --file 'a b'"
        );
        let submit = Submit {
            command: "-x".to_owned(),
            sites: Some("a & b".to_owned()),
            dry_run: true,
            ..Submit::default()
        };
        assert_eq!(
            line("-w", &submit),
            "cheops exec --id=-w --sites 'a & b' --command=-x --dry-run"
        );
    }

    impl Filled {
        /// As if a browser had sent it.
        pub(crate) fn with(texts: &[(&str, &str)]) -> Self {
            let mut filled = Self::default();
            for (name, text) in texts {
                filled.put((*name).to_owned(), (*text).to_owned()).unwrap();
            }
            filled
        }
    }

    #[test]
    fn what_is_left_empty_is_not_there() {
        let filled = Filled::with(&[("kind", "  "), ("id", " web "), ("force", "on")]);
        assert_eq!((filled.text("kind"), filled.text("other")), (None, None));
        assert_eq!(filled.text("id").as_deref(), Some("web"));
        assert!(filled.is_ticked("force") && !filled.is_ticked("sure"));
    }

    #[test]
    fn lines_end_as_the_shell_has_them() {
        let filled = Filled::with(&[("command", "cat <<X\r\nhi\r\nX")]);
        assert_eq!(filled.lines("command"), "cat <<X\nhi\nX");
        assert_eq!(filled.lines("other"), "");
    }

    #[test]
    fn there_is_an_end_to_fields() {
        let mut filled = Filled::default();
        for n in 0..TEXTS {
            filled.put(n.to_string(), String::new()).unwrap();
        }
        assert!(filled.put("0".to_owned(), "again".to_owned()).is_ok());
        assert_eq!(filled.put("one more".to_owned(), String::new()).unwrap_err().0.status, 400);
    }
}
