//! Ids in a body, as it passes.
//!
//! What is replaced in JSON:
//!
//! - a text that is a distinctive known id as a whole, or a segment of a path or URL in a text that is
//!   one, or a number that is one;
//! - an id that is not distinctive as the value, text or number, of a field, or as a segment below a
//!   collection ([`Context`]). So `"size": 42` stays, whoever is called 42.
//!
//! Keys stay. A number stays a number if the new id can be one. In other text (XML, HTML) distinctive
//! ids are replaced that stand between signs that can't be a part of one.
//!
//! What must stay true: how a body is cut into chunks does not change what comes out; no more than one
//! token of [`MAX_TOKEN`] bytes is held back, and a longer one passes as it is; what is malformed
//! passes; a chunk in which nothing is replaced is passed on and not copied.

use std::{mem, ops::Range, sync::Arc};

use bytes::Bytes;
use serde_json::Value;

use super::{
    json::{self, Role, Structure},
    known::{Context, Edit, Known},
};

/// The longest token in which ids are replaced, in bytes.
pub const MAX_TOKEN: usize = 4096;

/// How a body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As JSON: one document, or several one after the other.
    Json,
    /// As text of any sort.
    Text,
}

/// Replaces ids in a body, chunk by chunk. The body must not be compressed, and its length changes.
pub struct Rewriter<F> {
    known: Known<F>,
    format: Format,
    structure: Structure,
    token: Token,
    /// The beginning of the token, if it came with an earlier chunk.
    held: Vec<u8>,
}

/// What the reader is within.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    None,
    /// A text of JSON, and whether the next byte is escaped.
    Quoted {
        escaped: bool,
    },
    Word,
    /// As the others, with a beginning that is gone already.
    LongQuoted {
        escaped: bool,
    },
    LongWord,
}

/// What comes out for one chunk: parts of it, and what takes the place of others.
struct Output<'c> {
    chunk: &'c Bytes,
    /// How far the chunk is dealt with.
    copied: usize,
    /// Where what is held back begins.
    end: usize,
    bytes: Vec<u8>,
}

impl<F, T> Rewriter<F>
where
    F: Fn(&str) -> Option<T>,
    T: AsRef<str>,
{
    /// `lookup` says what stands in place of an id, if it is known.
    pub fn new(lookup: F, context: &Arc<Context>, format: Format) -> Self {
        Self {
            known: Known { lookup, context: context.clone() },
            format,
            structure: Structure::default(),
            token: Token::None,
            held: Vec::new(),
        }
    }

    /// What can be passed on, now that this chunk has come.
    pub fn push(&mut self, chunk: &Bytes) -> Bytes {
        let mut output = Output::new(chunk);
        let (mut start, mut at) = (0, 0);
        while at < chunk.len() {
            if self.token == Token::None {
                start = self.skip(chunk, at);
                // The quote itself is no end.
                at = start + usize::from(matches!(self.token, Token::Quoted { .. }));
                continue;
            }
            let Some(end) = self.end(chunk, at) else { break };
            self.complete(start..end, &mut output);
            at = end;
        }
        self.hold(start, &mut output);
        output.finish()
    }

    /// What was held back, when there is no more.
    pub fn finish(mut self) -> Bytes {
        // A text without its end is none; a word may end here.
        if self.token == Token::Word {
            let rest = Bytes::from(mem::take(&mut self.held));
            let mut output = Output::new(&rest);
            self.complete(0..rest.len(), &mut output);
            return output.finish();
        }
        self.held.into()
    }

    /// The place of the next token, from `at` on, or the end of the chunk.
    fn skip(&mut self, chunk: &[u8], at: usize) -> usize {
        for (n, &byte) in chunk.iter().enumerate().skip(at) {
            self.token = match self.format {
                Format::Json if byte == b'"' => Token::Quoted { escaped: false },
                Format::Json if json::is_word(byte) => Token::Word,
                Format::Text if is_text_word(byte) => Token::Word,
                Format::Json => {
                    self.structure.sign(byte);
                    continue;
                }
                Format::Text => continue,
            };
            return n;
        }
        chunk.len()
    }

    /// The end of the token, if it lies in the chunk; `at` is where to look from.
    fn end(&mut self, chunk: &[u8], mut at: usize) -> Option<usize> {
        let long = matches!(self.token, Token::LongQuoted { .. } | Token::LongWord);
        if let Token::Quoted { escaped } | Token::LongQuoted { escaped } = self.token {
            at += usize::from(escaped);
            loop {
                let sign = |byte: &u8| matches!(byte, b'"' | b'\\');
                match chunk.get(at..).and_then(|rest| rest.iter().position(sign)) {
                    Some(n) if chunk[at + n] == b'"' => return Some(at + n + 1),
                    Some(n) => at += n + 2,
                    None => break,
                }
            }
            let escaped = at > chunk.len();
            self.token =
                if long { Token::LongQuoted { escaped } } else { Token::Quoted { escaped } };
            return None;
        }
        let rest = &chunk[at..];
        let length = match self.format {
            Format::Json => rest.iter().position(|&byte| !json::is_word(byte)),
            Format::Text => rest.iter().position(|&byte| !is_text_word(byte)),
        };
        length.map(|n| at + n)
    }

    /// Passes a token on, which ends with this part of the chunk.
    fn complete(&mut self, part: Range<usize>, output: &mut Output<'_>) {
        let held = mem::take(&mut self.held);
        let token = mem::replace(&mut self.token, Token::None);
        let whole;
        let bytes = if held.is_empty() {
            &output.chunk[part.clone()]
        } else {
            whole = [&held, &output.chunk[part.clone()]].concat();
            &whole[..]
        };
        let short = bytes.len() <= MAX_TOKEN;
        let edits = match token {
            Token::Quoted { .. } if short => self.quoted(bytes),
            Token::Word if short => self.word(bytes),
            _ => {
                self.structure.token(false);
                Vec::new()
            }
        };
        if edits.is_empty() {
            output.bytes.extend_from_slice(&held);
            return;
        }
        let mut copied = 0;
        let mut new = Vec::with_capacity(bytes.len() + 40);
        for (at, id) in edits {
            new.extend_from_slice(&bytes[copied..at.start]);
            new.extend_from_slice(id.as_bytes());
            copied = at.end;
        }
        new.extend_from_slice(&bytes[copied..]);
        output.replace(part, &new);
    }

    /// Holds the beginning of a token back that goes on in the next chunk.
    fn hold(&mut self, start: usize, output: &mut Output<'_>) {
        let (held, rest) = (self.held.len(), &output.chunk[start..]);
        let long = match self.token {
            Token::Quoted { escaped } => Token::LongQuoted { escaped },
            Token::Word => Token::LongWord,
            Token::None | Token::LongQuoted { .. } | Token::LongWord => return,
        };
        if held + rest.len() > MAX_TOKEN {
            self.token = long;
            output.bytes.append(&mut self.held);
        } else {
            self.held.extend_from_slice(rest);
            output.end = start;
        }
    }

    /// The ids in a text of JSON, with its quotes.
    fn quoted(&mut self, bytes: &[u8]) -> Vec<Edit> {
        let role = self.structure.role();
        let raw = bytes.get(1..bytes.len() - 1).and_then(|raw| std::str::from_utf8(raw).ok());
        let fields = &self.known.context.fields;
        let field = match (role, raw) {
            (Role::Key, Some(raw)) if raw.contains('\\') => {
                json::unescaped(raw).is_some_and(|(key, _)| fields.contains(&key))
            }
            (Role::Key, Some(raw)) => fields.iter().any(|field| field == raw),
            _ => false,
        };
        self.structure.token(field);
        let (Role::Value { announced }, Some(raw)) = (role, raw) else { return Vec::new() };
        let mut edits = if raw.contains('\\') {
            let Some((text, origin)) = json::unescaped(raw) else { return Vec::new() };
            let mut edits = self.known.in_value(&text, announced);
            for (at, _) in &mut edits {
                *at = origin[at.start]..origin[at.end];
            }
            edits
        } else {
            self.known.in_value(raw, announced)
        };
        for (at, id) in &mut edits {
            *at = at.start + 1..at.end + 1;
            let json = Value::from(mem::take(id)).to_string();
            json[1..json.len() - 1].clone_into(id);
        }
        edits
    }

    /// The id that a number of JSON, or a word of text, is.
    fn word(&mut self, bytes: &[u8]) -> Vec<Edit> {
        let Ok(word) = std::str::from_utf8(bytes) else {
            self.structure.token(false);
            return Vec::new();
        };
        if self.format == Format::Text {
            // A full stop behind an id belongs to the sentence.
            let inner = word.trim_end_matches('.');
            let id = self.known.whole(word, false).map(|id| (word, id));
            let id = id.or_else(|| self.known.whole(inner, false).map(|id| (inner, id)));
            return id
                .map(|(word, id)| (0..word.len(), id.as_ref().to_owned()))
                .into_iter()
                .collect();
        }
        let role = self.structure.role();
        self.structure.token(false);
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let Role::Value { announced } = role else { return Vec::new() };
        if !digits(word.strip_prefix('-').unwrap_or(word)) {
            return Vec::new();
        }
        let Some(id) = self.known.whole(word, announced) else { return Vec::new() };
        let id = id.as_ref();
        let number = digits(id) && (id == "0" || !id.starts_with('0')) && !id.is_empty();
        let new = if number { id.to_owned() } else { Value::from(id).to_string() };
        vec![(0..word.len(), new)]
    }
}

impl<'c> Output<'c> {
    fn new(chunk: &'c Bytes) -> Self {
        Self { chunk, copied: 0, end: chunk.len(), bytes: Vec::new() }
    }

    fn replace(&mut self, part: Range<usize>, new: &[u8]) {
        self.bytes.extend_from_slice(&self.chunk[self.copied..part.start]);
        self.bytes.extend_from_slice(new);
        self.copied = part.end;
    }

    fn finish(mut self) -> Bytes {
        let rest = self.copied..self.end;
        if self.bytes.is_empty() {
            return self.chunk.slice(rest);
        }
        self.bytes.extend_from_slice(&self.chunk[rest]);
        self.bytes.into()
    }
}

fn is_text_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOCAL: &str = "0b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f";
    const META: &str = "5c1de9a0-ce05-8123-8abc-0123456789ab";

    fn lookup(id: &str) -> Option<&'static str> {
        Some(match id {
            LOCAL | "77" => META,
            "42" => "43",
            "78" => "007",
            "quote" => "a\"b\\c",
            "1234567890123456" => "4503599627370497",
            _ => return None,
        })
    }

    fn context() -> Arc<Context> {
        let strings = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Arc::new(Context { fields: strings(&["id", "uuid"]), collections: strings(&["images"]) })
    }

    fn run(format: Format, body: &[u8], sizes: &[usize]) -> Vec<u8> {
        let mut rewriter = Rewriter::new(lookup, &context(), format);
        let mut rest = Bytes::copy_from_slice(body);
        let mut result = Vec::new();
        let mut sizes = sizes.iter().cycle();
        while !rest.is_empty() {
            let size = sizes.next().map_or(rest.len(), |size| (*size).min(rest.len()));
            let chunk = rest.split_to(size);
            result.extend_from_slice(&rewriter.push(&chunk));
            assert!(rewriter.held.len() <= MAX_TOKEN);
        }
        result.extend_from_slice(&rewriter.finish());
        result
    }

    /// However it is cut.
    fn becomes(format: Format, before: &str, after: &str) {
        let before = before.replace("LOCAL", LOCAL);
        let after = after.replace("LOCAL", LOCAL).replace("META", META);
        for sizes in [&[][..], &[1], &[2], &[3, 1], &[7], &[30, 2]] {
            let found = run(format, before.as_bytes(), sizes);
            assert_eq!(String::from_utf8_lossy(&found), after, "{before} by {sizes:?}");
        }
    }

    #[test]
    fn distinctive_ids_are_replaced_in_values() {
        let table = [
            (r#"{"id": "LOCAL"}"#, r#"{"id": "META"}"#),
            (r#"{"x": ["LOCAL" , {"y":"LOCAL"}]}"#, r#"{"x": ["META" , {"y":"META"}]}"#),
            (r#""LOCAL""#, r#""META""#),
            (r#"{"LOCAL": "LOCAL"}"#, r#"{"LOCAL": "META"}"#),
            (r#"{"a": "xLOCAL", "b": "LOCAL "}"#, r#"{"a": "xLOCAL", "b": "LOCAL "}"#),
            (r#"{"self": "/v2/a/LOCAL/file"}"#, r#"{"self": "/v2/a/META/file"}"#),
            (
                r#"{"self": "http:\/\/h\/a\/LOCAL?b=LOCAL#c"}"#,
                r#"{"self": "http:\/\/h\/a\/META?b=META#c"}"#,
            ),
            (
                r#"["\u0030b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f\n"]"#,
                r#"["\u0030b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f\n"]"#,
            ),
            (r#"["\u0030b1e7a52-8c3d-4f7e-9d11-2a5b6c7d8e9f"]"#, r#"["META"]"#),
            (r#"["\"", "\\", "LOCAL"]"#, r#"["\"", "\\", "META"]"#),
            (r#"[{"a":{}},["LOCAL","LOCAL"]]"#, r#"[{"a":{}},["META","META"]]"#),
            (r#"["see /a/LOCAL"]"#, r#"["see /a/LOCAL"]"#),
            (r"[1234567890123456, 12345678901234567]", r"[4503599627370497, 12345678901234567]"),
            ("{\"id\":\"LOCAL\"}\n{\"id\":\"LOCAL\"}\n", "{\"id\":\"META\"}\n{\"id\":\"META\"}\n"),
        ];
        for (before, after) in table {
            becomes(Format::Json, before, after);
        }
    }

    #[test]
    fn other_ids_are_replaced_where_they_are_announced() {
        let table = [
            (r#"{"id": 42, "size": 42, "name": "42"}"#, r#"{"id": 43, "size": 42, "name": "42"}"#),
            (r#"{"id": "42", "a": {"uuid" : "42"}}"#, r#"{"id": "43", "a": {"uuid" : "43"}}"#),
            (r#"{"\u0069d": 42}"#, r#"{"\u0069d": 43}"#),
            (r#"{"id": 77}"#, r#"{"id": "META"}"#),
            (r#"{"id": 78}"#, r#"{"id": "007"}"#),
            (r#"{"id": "quote"}"#, r#"{"id": "a\"b\\c"}"#),
            (r#"{"id": [42], "x": 42}"#, r#"{"id": [42], "x": 42}"#),
            (r#"{"id": {"y": 42}, "z": 42}"#, r#"{"id": {"y": 42}, "z": 42}"#),
            (r#"{"id": 420, "uuid": 42.0}"#, r#"{"id": 420, "uuid": 42.0}"#),
            (r#"{"id": "42/42"}"#, r#"{"id": "42/42"}"#),
            (
                r#"["/images/42/42", "/sizes/42", "images/42"]"#,
                r#"["/images/43/42", "/sizes/42", "images/43"]"#,
            ),
            (r#"["/images/42?id=42"]"#, r#"["/images/43?id=42"]"#),
            ("42", "42"),
            (r#"{"id":42"#, r#"{"id":43"#),
        ];
        for (before, after) in table {
            becomes(Format::Json, before, after);
        }
    }

    #[test]
    fn what_is_malformed_passes() {
        for text in [
            r#"{"id": "LOCAL"#,
            r#"{"id": "\uZZZZ/LOCAL"}"#,
            r#"]]}}{{"id"#,
            "\\\"LOCAL\\\"",
            "idLOCAL",
            "\"",
            "\\",
            "\u{feff}",
        ] {
            becomes(Format::Json, text, text);
        }
        let bytes = b"{\"id\": \"42\xff\", \xff: 42, \"id\": \xff42}";
        for size in 1..5 {
            assert_eq!(run(Format::Json, bytes, &[size]), bytes);
        }
    }

    #[test]
    fn in_text_ids_stand_between_signs() {
        let table = [
            ("<a href='/v2/LOCAL'>LOCAL</a>", "<a href='/v2/META'>META</a>"),
            ("No image LOCAL. Is it LOCAL?", "No image META. Is it META?"),
            ("LOCAL", "META"),
            ("xLOCAL LOCALx LOCAL.iso é", "xLOCAL LOCALx LOCAL.iso é"),
            ("id=42 <id>42</id>", "id=42 <id>42</id>"),
        ];
        for (before, after) in table {
            becomes(Format::Text, before, after);
        }
    }

    #[test]
    fn a_token_that_is_too_long_passes() {
        for (length, replaced) in
            [(MAX_TOKEN - 2, true), (MAX_TOKEN - 1, false), (MAX_TOKEN + 50, false)]
        {
            let path = format!("/{}/{LOCAL}", "x".repeat(length - LOCAL.len() - 2));
            let body = format!("[\"{path}\",\"{LOCAL}\"]");
            for size in [1, 100, MAX_TOKEN - 1, MAX_TOKEN, MAX_TOKEN + 1, 10 * MAX_TOKEN] {
                let found = String::from_utf8(run(Format::Json, body.as_bytes(), &[size])).unwrap();
                let path = if replaced { path.replace(LOCAL, META) } else { path.clone() };
                assert_eq!(found, format!("[\"{path}\",\"{META}\"]"), "{length} by {size}");
            }
        }
    }

    #[test]
    fn a_chunk_without_ids_is_not_copied() {
        let chunk = Bytes::from_static(br#"{"id": "other", "list": [1, 2, 3]}"#);
        let mut rewriter = Rewriter::new(lookup, &context(), Format::Json);
        assert_eq!(rewriter.push(&chunk).as_ptr(), chunk.as_ptr());
        assert_eq!(rewriter.push(&chunk).as_ptr(), chunk.as_ptr());
    }

    /// JSON and what is nearly JSON, full of ids.
    fn bodies() -> impl Strategy<Value = Vec<u8>> {
        let words = [
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "\"id\"",
            "\"uuid\":",
            "\"x\":",
            " ",
            "\n",
            "42",
            "\"42\"",
            "77",
            "-",
            "1e9",
            "true",
            LOCAL,
            "\\",
            "\\\"",
            "\\u0041",
            "\\ud83d",
            "/",
            "\"/images/42\"",
            "\"http:\\/\\/h\\/images\\/42\"",
            "é",
            "1234567890123456",
            ".",
        ];
        let word = prop_oneof![
            8 => prop::sample::select(words.map(|word| word.as_bytes().to_vec()).to_vec()),
            2 => Just(format!("\"{LOCAL}\"").into_bytes()),
            1 => Just(vec![b'x'; MAX_TOKEN / 2]),
            2 => Just(br#","\"\\","#.to_vec()),
            1 => prop::collection::vec(any::<u8>(), 1..3),
        ];
        prop::collection::vec(word, 0..40).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn how_a_body_is_cut_changes_nothing(
            body in bodies(),
            sizes in prop::collection::vec(1..40_usize, 1..9),
            text: bool,
        ) {
            let format = if text { Format::Text } else { Format::Json };
            prop_assert_eq!(run(format, &body, &sizes), run(format, &body, &[]));
        }

        #[test]
        fn without_known_ids_all_stays(body in bodies(), size in 1..40_usize, text: bool) {
            let format = if text { Format::Text } else { Format::Json };
            let mut rewriter = Rewriter::new(|_: &str| None::<String>, &context(), format);
            let mut result = Vec::new();
            for chunk in body.chunks(size) {
                result.extend_from_slice(&rewriter.push(&Bytes::copy_from_slice(chunk)));
            }
            result.extend_from_slice(&rewriter.finish());
            prop_assert_eq!(result, body);
        }

        #[test]
        fn what_is_json_stays_json(ids in prop::collection::vec(any::<bool>(), 1..20), size in 1..40_usize) {
            let items: Vec<Value> = ids
                .iter()
                .map(|&long| if long { serde_json::json!({"id": LOCAL, "n": 42}) } else { serde_json::json!({"id": 42, "x": [LOCAL]}) })
                .collect();
            let found = run(Format::Json, Value::from(items.clone()).to_string().as_bytes(), &[size]);
            let expected = Value::from(items).to_string().replace(LOCAL, META).replace("\"id\":42", "\"id\":43");
            prop_assert_eq!(String::from_utf8(found).unwrap(), expected);
        }
    }
}
