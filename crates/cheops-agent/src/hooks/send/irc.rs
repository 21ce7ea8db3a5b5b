//! A channel of IRC: one event, one line.
//!
//! A client of the least that it takes (RFC 2812): it gives its name, joins, speaks, and leaves; over TLS
//! from the beginning, if it is to be protected. IRC confirms nothing, so after each line the server is
//! asked for a sign: what came before it was taken.
//!
//! What must stay true: nothing that an event holds can be taken for a command; lines of the server are
//! bounded.

use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};

use super::{down, reveal, tls};
use crate::{api::model::HookEvent, config::Irc, hooks::retry::Failure};

/// The longest line of a server that is read, in bytes; the standard allows 512.
const LONGEST: u64 = 16 << 10;
/// How much of an event's text goes into a line, in bytes: all that the standard surely leaves room for.
const TEXT: usize = 380;
/// How often another name is tried.
const NAMES: usize = 5;

pub(super) async fn send(irc: &Irc, events: &[HookEvent], said: &mut usize) -> Result<(), Failure> {
    let stream = tls::connect(&irc.server).await?;
    let stream: Box<dyn Stream> = match &irc.tls {
        Some(trust) => Box::new(tls::protect(stream, &irc.server, trust.ca.as_deref()).await?),
        None => Box::new(stream),
    };
    let mut talk = Talk::begin(irc, stream).await?;
    for event in events {
        talk.say(irc, event).await?;
        *said += 1;
    }
    // Whoever does not hear it notices soon enough.
    let _ = talk.tell("QUIT :told").await;
    Ok(())
}

/// A connection, protected or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

struct Talk(BufReader<Box<dyn Stream>>);

impl Talk {
    async fn begin(irc: &Irc, stream: Box<dyn Stream>) -> Result<Self, Failure> {
        let mut talk = Self(BufReader::new(stream));
        if let Some(password) = reveal(irc.password.as_ref()).await? {
            talk.tell(&format!("PASS {}", one_line(&password))).await?;
        }
        let mut nick = irc.nick.clone();
        talk.tell(&format!("NICK {nick}")).await?;
        talk.tell(&format!("USER {} 0 * :Cheops", irc.nick)).await?;
        for _ in 0..NAMES {
            match talk.answer(|code| matches!(code, "001" | "433" | "432" | "464")).await?.as_str()
            {
                "001" => {
                    talk.tell(&format!("JOIN {}", irc.channel)).await?;
                    // The list of who is there ends the joining.
                    talk.answer(|code| code == "366").await?;
                    return Ok(talk);
                }
                "433" => {
                    nick.push('_');
                    talk.tell(&format!("NICK {nick}")).await?;
                }
                "464" => return Err(Failure::Unavailable("the password is wrong".into())),
                _ => {
                    return Err(Failure::Unavailable(format!(
                        "it does not take the name `{nick}`"
                    )));
                }
            }
        }
        Err(Failure::Unavailable(format!("all names like `{}` are taken", irc.nick)))
    }

    async fn say(&mut self, irc: &Irc, event: &HookEvent) -> Result<(), Failure> {
        self.tell(&format!("PRIVMSG {} :{}", irc.channel, line(event))).await?;
        self.tell(&format!("PING :{}", event.id)).await?;
        self.answer(|code| code == "PONG").await.map(drop)
    }

    async fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let line = format!("{line}\r\n");
        self.0.write_all(line.as_bytes()).await.map_err(down("it broke off"))?;
        self.0.flush().await.map_err(down("it broke off"))
    }

    /// Waits for one of some answers. Any other error ends it.
    async fn answer(&mut self, wanted: impl Fn(&str) -> bool) -> Result<String, Failure> {
        loop {
            let mut bytes = Vec::new();
            let mut limited = (&mut self.0).take(LONGEST);
            let count =
                limited.read_until(b'\n', &mut bytes).await.map_err(down("it broke off"))?;
            if count == 0 || !bytes.ends_with(b"\n") {
                return Err(Failure::Unavailable("it broke off".into()));
            }
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim_end();
            let Line { code, rest } = read(text);
            if wanted(code) {
                return Ok(code.to_owned());
            }
            if code == "PING" {
                self.tell(&format!("PONG {rest}")).await?;
            } else if code == "ERROR" || is_error(code) {
                let words = rest.rsplit_once(" :").map_or(rest, |(_, words)| words);
                let words: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
                return Err(Failure::Unavailable(format!("it answered {code}: {words}")));
            }
        }
    }
}

/// A line of the server.
struct Line<'a> {
    code: &'a str,
    rest: &'a str,
}

fn read(text: &str) -> Line<'_> {
    let mut text = text;
    for prefix in ['@', ':'] {
        if text.starts_with(prefix) {
            text = text.split_once(' ').map_or("", |(_, rest)| rest.trim_start());
        }
    }
    let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
    Line { code, rest }
}

/// Whether a code is an error. That there is no message of the day is none.
fn is_error(code: &str) -> bool {
    code.len() == 3 && code.starts_with(['4', '5']) && code != "422"
}

/// An event as one line.
fn line(event: &HookEvent) -> String {
    let mut text = one_line(&event.text);
    if text.len() > TEXT {
        let end = (0..=TEXT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    format!("[{}] {text} ({})", event.event, &event.id.chars().take(8).collect::<String>())
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::tests::sample;

    #[test]
    fn lines_of_servers() {
        for (text, code, rest) in [
            (":irc.example 001 cheops :Welcome", "001", "cheops :Welcome"),
            ("PING :abc", "PING", ":abc"),
            ("@time=1 :s PONG s :x", "PONG", "s :x"),
            ("ERROR", "ERROR", ""),
            ("", "", ""),
        ] {
            let line = read(text);
            assert_eq!((line.code, line.rest), (code, rest), "{text}");
        }
        for (code, expected) in
            [("404", true), ("433", true), ("422", false), ("366", false), ("PONG", false)]
        {
            assert_eq!(is_error(code), expected, "{code}");
        }
    }

    #[test]
    fn an_event_is_one_short_line_and_no_command() {
        let mut event = sample("0123456789");
        event.text = "a\r\nQUIT :b\u{1}".into();
        assert_eq!(line(&event), "[operation.ran] a  QUIT :b  (01234567)");
        event.text = "é".repeat(1_000);
        assert!(line(&event).len() < 450);
    }
}
