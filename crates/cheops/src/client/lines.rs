//! An answer that comes line by line, each line a JSON document.
//!
//! What must stay true: a line is told as soon as it is whole; an empty one only says that the
//! agent is still there; no line grows without bound.

use std::{marker::PhantomData, time::Duration};

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Client;
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
        Self { client, body: Some(body), buffer: BytesMut::new(), searched: 0, what: PhantomData }
    }

    /// Waits for the next line, however long that takes; nothing at the end.
    pub(crate) fn next(&mut self) -> Result<Option<T>, Failure> {
        loop {
            match self.next_within(Duration::from_hours(1))? {
                Next::Line(line) => return Ok(Some(line)),
                Next::End => return Ok(None),
                Next::Nothing => {}
            }
        }
    }

    /// Waits for the next line, for some time.
    pub(crate) fn next_within(&mut self, patience: Duration) -> Result<Next<T>, Failure> {
        let client = self.client;
        client.wait(async {
            match timeout(patience, self.line()).await {
                Err(_) => Ok(Next::Nothing),
                Ok(Ok(None)) => Ok(Next::End),
                Ok(Ok(Some(line))) => client.read(&line).map(Next::Line),
                Ok(Err(failure)) => Err(failure),
            }
        })
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
