//! The change feed of an agent, followed for as long as there is one.
//!
//! What must stay true: a feed that broke off is taken up again after the last change that was
//! told, so none is told twice or left out; an agent that stays away is a failure, not silence.

use std::{
    thread,
    time::{Duration, Instant},
};

use cheops_agent::api::model::Change;

use crate::{
    client::{Ask, Client, Lines, Next, Path},
    report::{Exit, Failure},
};

/// How long an agent may be away before that is a failure.
const AWAY: Duration = Duration::from_secs(30);

/// The pause between two attempts to reach it, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// What changes at a site.
pub(crate) struct Feed<'a> {
    client: &'a Client,
    resource: Option<String>,
    since: Option<u64>,
    lines: Lines<'a, Change>,
}

impl<'a> Feed<'a> {
    /// Follows one resource or all, after a number or from now on.
    pub(crate) fn open(
        client: &'a Client,
        resource: Option<&str>,
        since: Option<u64>,
    ) -> Result<Self, Failure> {
        let lines = ask(client, resource, since)?;
        Ok(Self { client, resource: resource.map(str::to_owned), since, lines })
    }

    /// The next change, however long that takes.
    pub(crate) fn next(&mut self) -> Result<Change, Failure> {
        loop {
            if let Some(change) = self.next_within(Duration::from_hours(1))? {
                return Ok(change);
            }
        }
    }

    /// The next change, if there is one soon.
    pub(crate) fn next_within(&mut self, patience: Duration) -> Result<Option<Change>, Failure> {
        loop {
            match self.lines.next_within(patience) {
                Ok(Next::Line(change)) => {
                    self.since = change.seq.or(self.since);
                    return Ok(Some(change));
                }
                Ok(Next::Nothing) => return Ok(None),
                Ok(Next::End) => self.lines = self.again()?,
                Err(failure) if failure.exit() == Exit::Unreachable => self.lines = self.again()?,
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Takes the feed up again.
    fn again(&self) -> Result<Lines<'a, Change>, Failure> {
        let (mut pause, longest) = PAUSE;
        let deadline = Instant::now() + AWAY;
        loop {
            thread::sleep(pause);
            match ask(self.client, self.resource.as_deref(), self.since) {
                Err(failure)
                    if failure.exit() == Exit::Unreachable && Instant::now() + pause < deadline =>
                {
                    pause = (pause * 2).min(longest);
                }
                result => return result,
            }
        }
    }
}

fn ask<'a>(
    client: &'a Client,
    resource: Option<&str>,
    since: Option<u64>,
) -> Result<Lines<'a, Change>, Failure> {
    let path = Path::api("changes").query("since", since).query("resource", resource);
    client.lines(Ask::get(&path))
}
