//! An answer that comes line by line, each line a JSON document.
//!
//! What must stay true: a line is told as soon as it is whole; an empty one only says that the
//! agent is still there; no line grows without bound.

use std::{
    convert::Infallible,
    future,
    marker::PhantomData,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use futures_util::future::Either;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{Client, PATIENCE};
use crate::report::{Exit, Failure};

/// The longest line that is taken in.
const LONGEST: usize = 64 << 20;

/// The lines of an answer.
#[derive(Debug)]
pub(crate) struct Lines<'a, T> {
    client: &'a Client,
    body: Option<Incoming>,
    buffer: BytesMut,
    /// How much of the buffer was searched for the end of a line.
    searched: usize,
    /// Since when it is waited for bytes.
    since: Instant,
    /// How long it was waited for them before that.
    waited: Duration,
    what: PhantomData<T>,
}

/// What became of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    /// It is there.
    Line(T),
    /// There is none yet.
    Nothing,
    /// There will be no more.
    End,
}

impl<'a, T: DeserializeOwned> Lines<'a, T> {
    pub(super) fn new(client: &'a Client, body: Incoming) -> Self {
        Self {
            client,
            body: Some(body),
            buffer: BytesMut::new(),
            searched: 0,
            since: Instant::now(),
            waited: Duration::ZERO,
            what: PhantomData,
        }
    }

    /// Waits for the next line of an answer that does not pause; nothing at the end.
    pub(crate) fn next(&mut self) -> Result<Option<T>, Failure> {
        loop {
            match self.next_within(PATIENCE)? {
                Next::Line(line) => return Ok(Some(line)),
                Next::End => return Ok(None),
                Next::Nothing if self.silence() < PATIENCE => {}
                Next::Nothing => return Err(self.client.silent(PATIENCE)),
            }
        }
    }

    /// For how long the agent has sent nothing, not even an empty line, while it was waited for.
    /// What comes while nobody waits is not noticed before somebody does.
    pub(crate) fn silence(&self) -> Duration {
        self.waited
    }

    /// Waits for the next line, for some time.
    pub(crate) fn next_within(&mut self, patience: Duration) -> Result<Next<T>, Failure> {
        match self.next_or(patience, &mut future::pending::<Infallible>())? {
            Either::Left(next) => Ok(next),
            Either::Right(never) => match never {},
        }
    }

    /// Waits for the next line, for some time, or for something else, which goes on meanwhile and can
    /// be waited for again.
    pub(crate) fn next_or<F: Future + Unpin>(
        &mut self,
        patience: Duration,
        other: &mut F,
    ) -> Result<Either<Next<T>, F::Output>, Failure> {
        let client = self.client;
        self.since = Instant::now();
        let next = client.wait(client.unless_interrupted(async {
            tokio::select! {
                biased;
                line = timeout(patience, self.line()) => match line {
                    Err(_) => Ok(Next::Nothing),
                    Ok(Ok(None)) => Ok(Next::End),
                    Ok(Ok(Some(line))) => client.read(&line).map(Next::Line),
                    Ok(Err(failure)) => Err(failure),
                }
                .map(Either::Left),
                other = other => Ok(Either::Right(other)),
            }
        }));
        self.waited += self.since.elapsed();
        next
    }

    /// The next line that is not empty. What was read is kept if this is given up.
    async fn line(&mut self) -> Result<Option<BytesMut>, Failure> {
        loop {
            while let Some(end) = self.buffer[self.searched..].iter().position(|&b| b == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1);
                self.searched = 0;
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(line));
                }
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > LONGEST {
                return Err(Failure::new(
                    Exit::Wrong,
                    "the agent's answer has a line without an end",
                )
                .hint("is it a Cheops agent, of the same version as this program?"));
            }
            let Some(body) = &mut self.body else { return Ok(None) };
            match body.frame().await {
                Some(Ok(frame)) => {
                    (self.since, self.waited) = (Instant::now(), Duration::ZERO);
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => {
                    self.body = None;
                    return Err(self.client.broken(&error));
                }
                None => {
                    self.body = None;
                    let rest = std::mem::take(&mut self.buffer);
                    self.searched = 0;
                    if !rest.trim_ascii().is_empty() {
                        return Ok(Some(rest));
                    }
                }
            }
        }
    }
}
