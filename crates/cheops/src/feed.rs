//! The change feed of an agent, followed for as long as there is one.
//!
//! What must stay true: a feed that broke off is taken up again after the last change that was
//! told, or after the number at which it began, so none is told twice or left out; whoever reads along
//! is told why it pauses and when it goes on; an agent that stays away is a failure, not silence, and so
//! is a connection that nothing comes from any more.

use std::{
    thread,
    time::{Duration, Instant},
};

use cheops_agent::api::model::{Change, Happened};

use crate::{
    client::{Ask, Client, Lines, Next, Path},
    report::{Exit, Failure},
    screen,
};

/// How long an agent may be away before that is a failure.
const AWAY: Duration = Duration::from_secs(30);

/// How long a connection may be without a byte before it counts as broken. An agent that has nothing
/// to tell sends an empty line every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

/// The pause between two attempts to reach it, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// What changes at a site.
pub(crate) struct Feed<'a> {
    client: &'a Client,
    resource: Option<String>,
    since: Option<u64>,
    lines: Lines<'a, Change>,
    /// How long the agent may send nothing.
    silence: Duration,
}

impl<'a> Feed<'a> {
    /// Follows one resource or all, after a number or from now on.
    pub(crate) fn open(
        client: &'a Client,
        resource: Option<&str>,
        since: Option<u64>,
    ) -> Result<Self, Failure> {
        let lines = ask(client, resource, since)?;
        Ok(Self { client, resource: resource.map(str::to_owned), since, lines, silence: SILENCE })
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
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let bearable = self.silence.saturating_sub(self.lines.silence());
            match self.lines.next_within(left.min(bearable)) {
                Ok(Next::Line(change)) => {
                    self.since = change.seq.or(self.since);
                    if change.what != Happened::Following {
                        return Ok(Some(change));
                    }
                }
                Ok(Next::Nothing) if self.lines.silence() >= self.silence => {
                    let why = format!("nothing came for {}s", self.silence.as_secs());
                    self.lines = self.again(&why)?;
                }
                Ok(Next::Nothing) if Instant::now() >= deadline => return Ok(None),
                Ok(Next::Nothing) => {}
                Ok(Next::End) => self.lines = self.again("the agent ended it")?,
                Err(failure) if failure.exit() == Exit::Unreachable => {
                    self.lines = self.again(&failure.line())?;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Takes the feed up again, and says so.
    fn again(&self, why: &str) -> Result<Lines<'a, Change>, Failure> {
        let (mut pause, longest) = PAUSE;
        let deadline = Instant::now() + AWAY;
        screen::note(&format!("the feed broke off: {why}; it is taken up again"));
        loop {
            thread::sleep(pause);
            match ask(self.client, self.resource.as_deref(), self.since) {
                Err(failure)
                    if matches!(failure.exit(), Exit::Unreachable | Exit::Silent)
                        && Instant::now() + pause < deadline =>
                {
                    pause = (pause * 2).min(longest);
                }
                result => {
                    if result.is_ok() {
                        let after = self.since.map(|seq| format!(" after {seq}"));
                        screen::note(&format!("the feed goes on{}", after.unwrap_or_default()));
                    }
                    return result;
                }
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
    client.lines(Ask::get(&path).within(AWAY))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by it")]

    use std::{
        io::{BufRead, BufReader, Write},
        net::{TcpListener, TcpStream},
        sync::mpsc,
    };

    use super::*;
    use crate::client::Address;

    /// Reads a request, and gives its first line.
    fn asked(stream: &TcpStream) -> String {
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        let first = lines.next().unwrap();
        lines.find(String::is_empty).unwrap();
        first
    }

    fn send(mut stream: &TcpStream, text: &str) {
        write!(stream, "{:x}\r\n{text}\r\n", text.len()).unwrap();
    }

    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn a_feed_that_falls_silent_is_taken_up_after_the_number_at_which_it_began() {
        const QUIET: Duration = Duration::from_millis(100);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (say, said) = mpsc::channel();
        thread::spawn(move || {
            let (mut first, _) = listener.accept().unwrap();
            say.send(asked(&first)).unwrap();
            first.write_all(HEAD.as_bytes()).unwrap();
            send(&first, "{\"seq\": 7, \"site\": \"site1\", \"type\": \"following\"}\n");
            // Empty lines keep it up for longer than it may be silent; then nothing more comes.
            for _ in 0..10 {
                thread::sleep(QUIET);
                send(&first, "\n");
            }
            say.send("silent".into()).unwrap();
            let (mut second, _) = listener.accept().unwrap();
            say.send(asked(&second)).unwrap();
            second.write_all(HEAD.as_bytes()).unwrap();
            send(&second, "{\"seq\": 7, \"site\": \"site1\", \"type\": \"following\"}\n");
            send(&second, "{\"seq\": 8, \"site\": \"site1\", \"type\": \"deleted\"}\n");
            // Both stay open until the feed is dropped.
            let _ = listener.accept();
        });
        let client = Client::at(Address::parse(&address).unwrap()).unwrap();
        let mut feed = Feed::open(&client, None, None).unwrap();
        feed.silence = QUIET * 6;
        let change = feed.next_within(Duration::from_mins(1)).unwrap().unwrap();
        assert_eq!((change.seq, change.what), (Some(8), Happened::Deleted));
        let said: Vec<String> = said.try_iter().collect();
        let expected =
            ["GET /api/v1/changes HTTP/1.1", "silent", "GET /api/v1/changes?since=7 HTTP/1.1"];
        assert_eq!(said, expected);
    }
}
