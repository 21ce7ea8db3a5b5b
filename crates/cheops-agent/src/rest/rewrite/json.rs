//! JSON, as far as it must be understood to find ids in it: which text is a key and which a value,
//! and what a text says.
//!
//! It is read byte by byte and never as a whole, and nothing is an error: what is not JSON is read
//! as something, and passes.

/// Deeper than this nothing is understood.
const MAX_DEPTH: usize = 1024;

/// Where in a document the reader is.
#[derive(Debug, Default)]
pub(super) struct Structure {
    /// How many objects and lists are open.
    depth: usize,
    /// A bit for each of them, set for an object.
    objects: Vec<u64>,
    /// A text that comes now is a key.
    key: bool,
    /// A value that comes now is that of a field.
    field: bool,
}

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The name of a member.
    Key,
    /// A value; `announced` if it is that of a field.
    Value { announced: bool },
    /// Something that is left alone.
    Unknown,
}

impl Structure {
    /// Takes in a byte that is not a part of a token.
    pub(super) fn sign(&mut self, byte: u8) {
        match byte {
            b'{' => self.open(true),
            b'[' => self.open(false),
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.expect(false);
            }
            b',' => self.expect(self.in_object()),
            b':' => self.key = false,
            _ => {}
        }
    }

    /// What a token that comes now is.
    pub(super) fn role(&self) -> Role {
        if self.depth > MAX_DEPTH {
            Role::Unknown
        } else if self.key {
            Role::Key
        } else {
            Role::Value { announced: self.field }
        }
    }

    /// Takes in a token; of a key, whether it is that of a field.
    pub(super) fn token(&mut self, field: bool) {
        self.field = field && self.key;
        self.key = false;
    }

    fn expect(&mut self, key: bool) {
        self.key = key;
        self.field = false;
    }

    fn open(&mut self, object: bool) {
        if self.depth < MAX_DEPTH {
            let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
            if word == self.objects.len() {
                self.objects.push(0);
            }
            if object { self.objects[word] |= bit } else { self.objects[word] &= !bit }
        }
        self.depth += 1;
        self.expect(object);
    }

    fn in_object(&self) -> bool {
        let Some(top) = self.depth.checked_sub(1) else { return false };
        self.objects.get(top / 64).is_some_and(|word| word & 1 << (top % 64) != 0)
    }
}

/// Whether a byte can begin a word outside of texts: a number, `true`, or nonsense.
pub(super) fn is_word(byte: u8) -> bool {
    !matches!(byte, b'{' | b'}' | b'[' | b']' | b',' | b':' | b'"' | b' ' | b'\t' | b'\r' | b'\n')
}

/// What the inside of a text with escapes says, and where each byte of that comes from, with the end
/// as the last; nothing if an escape is none.
pub(super) fn unescaped(raw: &str) -> Option<(String, Vec<usize>)> {
    let mut text = String::with_capacity(raw.len());
    let mut origin = Vec::with_capacity(raw.len() + 1);
    let mut at = 0;
    while let Some(next) = raw[at..].chars().next() {
        let (said, length) =
            if next == '\\' { escape(&raw[at..])? } else { (next, next.len_utf8()) };
        text.push(said);
        origin.resize(text.len(), at);
        at += length;
    }
    origin.push(at);
    Some((text, origin))
}

/// What an escape says, and how long it is.
fn escape(raw: &str) -> Option<(char, usize)> {
    let short = match raw.as_bytes().get(1)? {
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'u' => {
            let first = unit(raw, 2)?;
            // The two halves of a character that does not fit into four digits.
            if let 0xd800..0xdc00 = first {
                let second = unit(raw.strip_prefix(&raw[..6])?.strip_prefix("\\u")?, 0)?;
                let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                return Some((char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + low)?, 12));
            }
            return Some((char::from_u32(first)?, 6));
        }
        other @ (b'"' | b'\\' | b'/') => char::from(*other),
        _ => return None,
    };
    Some((short, 2))
}

fn unit(raw: &str, at: usize) -> Option<u32> {
    let digits = raw.get(at..at + 4)?;
    let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| hex)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_say_what_they_say_in_json() {
        let table = [
            r"plain",
            r"a\/b\\c\nd\te\rf\bg\fh",
            r#"\"\u0041\u00e9é\u20ac"#,
            r"\ud83d\ude00x",
            r"",
        ];
        for raw in table {
            let expected: String = serde_json::from_str(&format!("\"{raw}\"")).unwrap();
            let (text, origin) = unescaped(raw).unwrap();
            assert_eq!(text, expected, "{raw}");
            assert_eq!(origin.len(), text.len() + 1);
            assert_eq!(origin.last(), Some(&raw.len()));
        }
        for wrong in
            [r"\", r"\x", r"\u12", r"\u+123", r"\ud800", r"\ud800\u0041", r"\udc00", r"\ué12"]
        {
            assert_eq!(unescaped(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_as_serde_reads_it(text in "\\PC{0,30}|[\\\\\"/\u{0}-\u{1f}\u{10000}]{0,9}") {
            let json = serde_json::to_string(&text).unwrap();
            let (said, origin) = unescaped(&json[1..json.len() - 1]).unwrap();
            prop_assert_eq!(said, text);
            prop_assert!(origin.is_sorted());
        }
    }

    #[test]
    fn keys_are_told_from_values() {
        // k: a key, v: a value, f: the value of a field; the field is called F.
        let table = [
            (r#"{"a":"b","F":"c","d":["e",{"F":["g"]}],"F":"h"}"#, "kvkfkvkvkf"),
            (r#"["a",["b"],{"c":"d"},"e"]"#, "vvkvv"),
            (r#""a" "b""#, "vv"),
            (r#"}}]"a",{"b":"c"}"#, "vkv"),
            (r#"{"F":{"a":"b"},"c":"d"}"#, "kkvkv"),
        ];
        for (text, expected) in table {
            let mut structure = Structure::default();
            let mut found = String::new();
            for (n, part) in text.split('"').enumerate() {
                if n % 2 == 0 {
                    part.bytes().for_each(|byte| structure.sign(byte));
                    continue;
                }
                found.push(match structure.role() {
                    Role::Key => 'k',
                    Role::Value { announced: true } => 'f',
                    Role::Value { announced: false } => 'v',
                    Role::Unknown => '?',
                });
                structure.token(part == "F");
            }
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn what_lies_too_deep_is_left_alone_and_what_follows_it_is_not() {
        let mut structure = Structure::default();
        structure.sign(b'{');
        (0..MAX_DEPTH).for_each(|_| structure.sign(b'['));
        assert_eq!(structure.role(), Role::Unknown);
        (0..MAX_DEPTH).for_each(|_| structure.sign(b']'));
        structure.sign(b',');
        assert_eq!(structure.role(), Role::Key);
    }
}
