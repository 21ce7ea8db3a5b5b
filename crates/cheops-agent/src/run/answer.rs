//! The answer of the application to a request, as the text that a reply holds.
//!
//! Pure. It looks like what `curl -i` shows: the status line, the header fields, an empty line, the
//! body as it came. A reply is one text, also for other agents, so whoever wants the answer back reads
//! it from there. What must stay true: what is written is read back as the same; what we add to a text
//! after the answer is not taken for a part of it.

use hyper::{
    HeaderMap, StatusCode, Version,
    ext::ReasonPhrase,
    header::{CONTENT_LENGTH, HeaderName, HeaderValue},
    http::response::Parts,
};

use super::left_out::{Kept, LeftOut};

/// What the words begin with that say how a request ended.
const ENDED: &str = "answered with ";

/// An answer of the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Its status.
    pub status: u16,
    /// Its header fields.
    pub headers: HeaderMap,
    /// Its body, as far as it is there.
    pub body: &'a [u8],
    /// Whether all of the body is there.
    pub whole: bool,
    /// Whether there is more of it than its site has kept.
    pub lost: bool,
}

impl<'a> Answer<'a> {
    /// The answer that an output begins with.
    pub fn read(output: &'a [u8]) -> Option<Self> {
        let (status, mut rest) = line(output)?;
        let (version, status) = status.split_at_checked(status.iter().position(|b| *b == b' ')?)?;
        let status = std::str::from_utf8(status.get(1..4)?).ok()?.parse().ok()?;
        let mut headers = HeaderMap::new();
        loop {
            let (field, more) = line(rest)?;
            rest = more;
            if field.is_empty() {
                break;
            }
            let colon = field.iter().position(|b| *b == b':')?;
            let name = HeaderName::from_bytes(&field[..colon]).ok()?;
            let value = HeaderValue::from_bytes(field[colon + 1..].trim_ascii_start()).ok()?;
            headers.append(name, value);
        }
        let (whole, lost) = (true, false);
        version.starts_with(b"HTTP/").then_some(Self { status, headers, body: rest, whole, lost })
    }

    /// The answer that the output of a reply tells of, without what was added to it.
    pub fn of_reply(output: &'a str) -> Option<Self> {
        let (mut text, mut left_out, mut cut) = (output, None, false);
        if let Some((rest, words)) = last_line(text)
            && words.starts_with(ENDED)
        {
            (text, cut) = (rest, true);
        }
        if let Some((rest, words)) = last_line(text.strip_suffix('\n').unwrap_or(text))
            && let Some(said) = LeftOut::read(words)
        {
            (text, left_out, cut) = (rest, Some(said), true);
        }
        let mut answer = Self::read(text.as_bytes())?;
        let whole = left_out.is_none();
        answer.whole = whole;
        answer.lost = left_out.is_some_and(|left_out| left_out.kept != Kept::All);
        // What was added begins a line of its own, for which the body may have got an end of line.
        let length = answer.headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
        if cut && whole && length != Some(answer.body.len()) {
            answer.body = answer.body.strip_suffix(b"\n").unwrap_or(answer.body);
        }
        Some(answer)
    }
}

/// The words that say with what a request was answered, if that is not all that was hoped for.
pub(super) fn words(status: u16) -> String {
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    format!("{ENDED}{status} {}", reason.unwrap_or_default()).trim_end().to_owned()
}

/// An answer, up to its body.
pub(super) fn head(parts: &Parts) -> Vec<u8> {
    let version: &[u8] = match parts.version {
        Version::HTTP_2 => b"HTTP/2",
        Version::HTTP_10 => b"HTTP/1.0",
        _ => b"HTTP/1.1",
    };
    let reason = parts.extensions.get::<ReasonPhrase>().map(ReasonPhrase::as_bytes);
    let usual = parts.status.canonical_reason().unwrap_or_default().as_bytes();
    let mut head = Vec::with_capacity(512);
    for part in [version, b" ", parts.status.as_str().as_bytes(), b" ", reason.unwrap_or(usual)] {
        head.extend_from_slice(part);
    }
    head.push(b'\n');
    for (name, value) in &parts.headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\n"] {
            head.extend_from_slice(part);
        }
    }
    head.push(b'\n');
    head
}

/// The first line, and what follows it.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|b| *b == b'\n')?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), &bytes[end + 1..]))
}

/// The last line, and what is before it.
fn last_line(text: &str) -> Option<(&str, &str)> {
    let start = text.rfind('\n')? + 1;
    Some((&text[..start], &text[start..]))
}

#[cfg(test)]
mod tests {
    use hyper::Response;

    use super::*;

    fn written(body: &str) -> String {
        let response = Response::builder().status(201).header("location", "/v2/images/7");
        let response = response.header("x-twice", "a").header("x-twice", "b: c");
        let (parts, ()) = response.header("x-empty", "").body(()).unwrap().into_parts();
        String::from_utf8(head(&parts)).unwrap() + body
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let text = written("{\"id\": 7}\n\nmore");
        assert!(text.starts_with("HTTP/1.1 201 Created\nlocation: /v2/images/7\n"), "{text}");
        let answer = Answer::read(text.as_bytes()).unwrap();
        assert_eq!((answer.status, answer.headers.len(), answer.whole), (201, 4, true));
        let twice: Vec<_> = answer.headers.get_all("x-twice").iter().collect();
        assert_eq!(twice, ["a", "b: c"]);
        assert_eq!(answer.body, b"{\"id\": 7}\n\nmore");
        let other = "HTTP/2 404 \r\nx: y\r\n\r\n";
        assert_eq!(Answer::read(other.as_bytes()).unwrap().status, 404);
    }

    #[test]
    fn what_is_no_answer_is_not_taken_for_one() {
        for text in ["", "\n", "8\n", "HTTP/1.1 201 Created", "HTTP/1.1 2\n\n", "a b c\n\n"] {
            assert_eq!(Answer::read(text.as_bytes()), None, "{text}");
        }
        for text in ["HTTP/1.1 200 OK\nno field\n\n", "HTTP/1.1 200 OK\nx: y\n"] {
            assert_eq!(Answer::read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_was_added_to_a_reply_is_no_part_of_the_answer() {
        let left_out = "[2 more bytes were printed; all of it is in a file at this site]";
        let lost = "[9 more bytes were printed; the first 90 bytes are in a file at this site, and 2 were dropped]";
        for (body, added, whole, is_lost) in [
            ("", "", true, false),
            ("no\n", "", true, false),
            ("no", "\nanswered with 404 Not Found", true, false),
            ("", "answered with 404 Not Found", true, false),
            ("no", &format!("\n{left_out}"), false, false),
            ("no", &format!("\n{left_out}\nanswered with 404 Not Found"), false, false),
            ("no", &format!("\n{lost}"), false, true),
            ("no", "\n[2 more bytes were printed]", false, true),
        ] {
            let text = written(body) + added;
            let answer = Answer::of_reply(&text).unwrap();
            let expected = if whole { body.to_owned() } else { format!("{body}\n") };
            assert_eq!((answer.body, answer.whole), (expected.as_bytes(), whole), "{text}");
            assert_eq!(answer.lost, is_lost, "{text}");
        }
    }
}
