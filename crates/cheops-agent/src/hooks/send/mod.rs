//! The ways to tell: each takes events, and says how many of them arrived.
//!
//! What must stay true: an event counts as delivered only when the other end has said so; whatever the
//! other end does, a delivery ends within its time; nothing that is secret gets into an error, nor into
//! what is said of a hook; what reads files is done where it holds up nobody.

mod command;
mod irc;
mod mail;
mod tls;
mod web;

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

use tokio::{task::spawn_blocking, time};

use super::retry::Failure;
use crate::{
    api::model::HookEvent,
    config::{Hook, Secret, Way},
};

/// How many events go through one connection, where connecting is the most of the work.
const BATCH: usize = 10;

/// Where commands run, and with what.
#[derive(Debug, Clone)]
pub(crate) struct Shell {
    pub(crate) program: PathBuf,
    pub(crate) work: PathBuf,
    /// The variables that commands get, besides those about the event.
    pub(crate) variables: BTreeMap<OsString, OsString>,
}

/// How many events can be given at once.
pub(crate) fn batch(way: &Way) -> usize {
    match way {
        Way::Irc(_) => BATCH,
        Way::Web(_) | Way::Command(_) | Way::Mail(_) => 1,
    }
}

/// What a hook says of where it tells, without anything secret.
pub(crate) fn to(way: &Way) -> (&'static str, String) {
    match way {
        // What comes after the host, or after the name of a program, often holds a token.
        Way::Web(web) => {
            let host = web.url.authority().map_or("", |authority| authority.as_str());
            ("web", format!("{}://{host}/…", web.url.scheme_str().unwrap_or("http")))
        }
        Way::Command(line) => ("command", program(line)),
        Way::Mail(mail) => ("mail", format!("{} by {}", mail.to.join(", "), mail.server)),
        Way::Irc(irc) => ("irc", format!("{} at {}", irc.channel, irc.server)),
    }
}

/// The program that a line of the shell begins with, if that is all that it begins with.
fn program(line: &str) -> String {
    match line.trim().split_once(char::is_whitespace) {
        None if !line.contains('=') => line.trim().to_owned(),
        Some((first, _)) if !first.contains('=') => format!("{first} …"),
        _ => "…".to_owned(),
    }
}

/// Delivers events in order, and says how many arrived, and why not all.
pub(crate) async fn send(
    hook: &Hook,
    shell: &Shell,
    events: &[HookEvent],
) -> (usize, Result<(), Failure>) {
    let Some(first) = events.first() else { return (0, Ok(())) };
    let limit = hook.timeout;
    let one = |sent: Result<(), Failure>| (usize::from(sent.is_ok()), sent);
    match &hook.way {
        Way::Web(web) => one(within(limit, web::send(web, first)).await),
        // It ends the command by itself.
        Way::Command(line) => one(command::send(line, shell, first, limit).await),
        Way::Mail(mail) => one(within(limit, mail::send(mail, first)).await),
        Way::Irc(irc) => {
            let mut said = 0;
            let sent = within(limit, irc::send(irc, events, &mut said)).await;
            (said, sent)
        }
    }
}

async fn within(
    limit: Duration,
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let late = |_| {
        let limit = cheops_core::duration::print(limit);
        Failure::Unavailable(format!("there was no answer within {limit}"))
    };
    time::timeout(limit, work).await.map_err(late)?
}

/// Does what waits for the disk.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Failure> {
    let done = spawn_blocking(work).await.map_err(|error| Failure::Unavailable(error.to_string()));
    done?.map_err(Failure::Unavailable)
}

/// Reads a secret, if there is one.
async fn reveal(secret: Option<&Secret>) -> Result<Option<String>, Failure> {
    let Some(secret) = secret.cloned() else { return Ok(None) };
    aside(move || secret.read()).await.map(Some)
}

/// That something could not be done now.
fn down(what: &str) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| Failure::Unavailable(format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_command_only_the_program_is_shown() {
        for (line, expected) in [
            ("logger -t cheops \"$CHEOPS_EVENT_TEXT\"", "logger …"),
            ("  /usr/bin/page-me\n", "/usr/bin/page-me"),
            ("TOKEN=hush page-me", "…"),
            ("TOKEN=hush", "…"),
        ] {
            assert_eq!(to(&Way::Command(line.into())), ("command", expected.into()), "{line}");
        }
    }
}
