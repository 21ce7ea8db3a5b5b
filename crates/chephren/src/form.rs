//! The form as it comes from the browser: its texts, and its files, which go on to the agent as they come.
//!
//! What must stay true: a text is bounded; a file is never held whole; and a file that broke off on its way
//! here is not taken in as if it were whole.

use axum::{
    body::Body,
    extract::{Multipart, multipart::Field},
    http::Method,
};
use bytes::Bytes;
use cheops_agent::api::model::{File, Problem, Stored, Submit};
use futures_util::stream;
use http_body_util::BodyExt as _;
use tokio::sync::mpsc;

use crate::api::{Answer, Api, Refusal};

/// The longest text, in bytes.
const TEXT: usize = 1 << 20;
/// The most files.
const FILES: usize = 32;

/// What was filled in.
#[derive(Debug, Default)]
pub(super) struct Filled {
    pub(super) id: String,
    pub(super) submit: Submit,
}

/// Reads a form, and gives its files to the agent.
pub(super) async fn read(api: &Api, mut form: Multipart) -> Answer<Filled> {
    let mut filled = Filled::default();
    while let Some(field) = form.next_field().await.map_err(|error| broken(&error))? {
        let name = field.name().unwrap_or_default().to_owned();
        if name == "files" {
            let file = field.file_name().unwrap_or_default().to_owned();
            if file.is_empty() {
                continue;
            }
            if filled.submit.files.len() == FILES {
                return Err(wrong(
                    "too many files",
                    &format!("there are more than {FILES}"),
                    "put them into one archive",
                ));
            }
            let stored = pass_on(api, field).await?;
            filled.submit.files.push(File {
                name: file,
                content: stored.content,
                length: stored.length,
            });
            continue;
        }
        let text = text(field).await?;
        filled.put(&name, &text)?;
    }
    if filled.id.is_empty() {
        return Err(wrong(
            "no name",
            "the resource has no name",
            "give it one: letters, digits, - . _ ~",
        ));
    }
    Ok(filled)
}

impl Filled {
    /// Takes in one text of the form. What is left empty is not asked for.
    fn put(&mut self, name: &str, text: &str) -> Answer<()> {
        let trimmed = text.trim();
        let given = (!trimmed.is_empty()).then(|| trimmed.to_owned());
        match name {
            "id" => trimmed.clone_into(&mut self.id),
            // A browser has lines end as the network does, and a shell does not.
            "command" => self.submit.command = text.replace("\r\n", "\n"),
            "kind" => self.submit.kind = given,
            "sites" => self.submit.sites = given,
            "config" => {
                let read = |text: String| {
                    cheops_core::json::parse(&text).map_err(|error| {
                        wrong("bad configuration", &error.to_string(), "see what is said below it")
                    })
                };
                self.submit.config = given.map(read).transpose()?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// A text, as long as it is not too long.
async fn text(mut field: Field<'_>) -> Answer<String> {
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
async fn pass_on(api: &Api, mut field: Field<'_>) -> Answer<Stored> {
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

fn wrong(title: &str, detail: &str, hint: &str) -> Refusal {
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
    fn what_is_typed_becomes_a_request() {
        let mut filled = Filled::default();
        for (name, text) in [
            ("id", " web "),
            ("sites", "a & b "),
            ("command", "cat <<X\r\nhi\r\nX"),
            ("kind", ""),
            ("config", " "),
            ("other", "x"),
        ] {
            filled.put(name, text).unwrap();
        }
        assert_eq!(filled.id, "web");
        let expected = Submit {
            command: "cat <<X\nhi\nX".to_owned(),
            sites: Some("a & b".to_owned()),
            ..Submit::default()
        };
        assert_eq!(filled.submit, expected);
        let refusal = filled.put("config", "{").unwrap_err();
        assert_eq!(refusal.0.title, "bad configuration");
    }
}
