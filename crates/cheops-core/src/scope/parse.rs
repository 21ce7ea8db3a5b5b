//! From text to tree: a parser with one function for each line of the grammar that needs one.

use alloc::{borrow::ToOwned, boxed::Box, collections::BTreeMap, vec::Vec};
use core::str::FromStr;

use super::{Around, Node, Operator, Place, Problem, Scope, ScopeError, Span, Written};
use crate::{
    duration,
    id::{NameError, ServiceName, is_word_char},
};

/// The longest text that is read, in bytes: far more than a header holds.
pub const MAX_LENGTH: usize = 64 * 1024;

/// The most parentheses in each other.
pub const MAX_DEPTH: usize = 64;

/// Reads a scope: `compute: dc1, image: dc1 & dc2`.
pub fn parse(text: &str) -> Result<Scope, ScopeError> {
    let mut parser = Parser::new(text)?;
    let brace = parser.eat('{');
    let mut services = BTreeMap::new();
    loop {
        let (service, span) = parser.service()?;
        if services.contains_key(&service) {
            return Err(span.error(Problem::Twice(service)));
        }
        services.insert(service, parser.place(0)?);
        if parser.eat(',').is_none() {
            break;
        }
    }
    let closed = brace.is_none() || parser.eat('}').is_some();
    match (parser.peek(), brace) {
        (Some(found), _) => Err(parser.unexpected(found)),
        (None, Some(brace)) if !closed => Err(brace.error(Problem::Unclosed('{'))),
        (None, _) => Ok(Scope(services)),
    }
}

/// Reads a place alone: `dc1 & (dc2; dc3)`.
pub fn parse_place(text: &str) -> Result<Place, ScopeError> {
    let mut parser = Parser::new(text)?;
    let place = parser.place(0)?;
    match parser.peek() {
        None => Ok(place),
        Some(found) => Err(parser.unexpected(found)),
    }
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        parse(text)
    }
}

impl FromStr for Place {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        parse_place(text)
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    /// The last sign that was read: what an error stands "after".
    last: Option<char>,
    /// The word for the consistency of the place that is being read, if one was written.
    consistency: Option<&'static str>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, ScopeError> {
        if text.len() > MAX_LENGTH {
            let start = (0..=MAX_LENGTH).rfind(|&at| text.is_char_boundary(at)).unwrap_or(0);
            return Err(Span { start, end: text.len() }.error(Problem::TooLong));
        }
        Ok(Self { text, at: 0, last: None, consistency: None })
    }

    /// A service and its colon.
    fn service(&mut self) -> Result<(ServiceName, Span), ScopeError> {
        let Some((name, span)) = self.words() else {
            return Err(match self.peek() {
                None | Some(',' | ':' | '}' | '&' | '%' | '+' | ';' | ')') => {
                    self.here().error(Problem::NoService { after: self.last })
                }
                Some(found) => self.unexpected(found),
            });
        };
        if self.eat(':').is_none() {
            let after_comma = self.last == Some(',');
            // The colon belongs after the first word: with no colon, the rest is likely the place.
            let first_word = name.find(char::is_whitespace).unwrap_or(name.len());
            let end = span.start + first_word;
            let problem = Problem::NoColon { name: name.to_owned(), after_comma };
            return Err(match self.peek() {
                None | Some(',' | '}' | '&' | '%' | '+' | ';' | '*' | '(' | ')') => {
                    Span { start: end, end }.error(problem)
                }
                Some(found) => self.unexpected(found),
            });
        }
        Ok((named(name, span)?, span))
    }

    fn place(&mut self, depth: usize) -> Result<Place, ScopeError> {
        self.joined(Operator::First, depth)
    }

    /// One or more operands of an operator; each is a chain of the operator that binds tighter.
    fn joined(&mut self, operator: Operator, depth: usize) -> Result<Place, ScopeError> {
        let first = self.operand(operator, depth)?;
        let mut others = Vec::new();
        while self.eat_operator(operator) {
            others.push(self.operand(operator, depth)?);
        }
        Ok(first.join(operator, others))
    }

    fn operand(&mut self, operator: Operator, depth: usize) -> Result<Place, ScopeError> {
        match operator {
            Operator::First => self.joined(Operator::Across, depth),
            Operator::Across => self.joined(Operator::All, depth),
            Operator::All => self.one(depth),
        }
    }

    fn eat_operator(&mut self, operator: Operator) -> bool {
        self.eat(operator.sign()).is_some()
            || (operator == Operator::Across && self.eat('+').is_some())
    }

    fn one(&mut self, depth: usize) -> Result<Place, ScopeError> {
        if let Some(open) = self.eat('(') {
            return Ok(self.group(open, depth)?.0);
        }
        if let Some(star) = self.eat('*') {
            return Ok(Place::new(Node::Everywhere, star));
        }
        let (name, span) = self.site()?;
        // Only the parenthesis makes it a function: a site may be called `around`.
        if let word @ ("around" | "none" | "eventual") = name
            && let Some(open) = self.eat('(')
        {
            return match word {
                "around" => self.around(span, open),
                "none" => {
                    let (place, close) = self.consistent("none", span, open, depth)?;
                    let whole = Span { start: span.start, end: close.end };
                    Ok(Place::new(Node::Once(Box::new(place)), whole))
                }
                _ => Ok(self.consistent("eventual", span, open, depth)?.0),
            };
        }
        Ok(Place::new(Node::Site(named(name, span)?), span))
    }

    /// The rest of `(place)`, and where it is closed.
    fn group(&mut self, open: Span, depth: usize) -> Result<(Place, Span), ScopeError> {
        if depth == MAX_DEPTH {
            return Err(open.error(Problem::TooDeep));
        }
        let place = self.place(depth + 1)?;
        let close = self.close(open)?;
        Ok((place, close))
    }

    /// The rest of `none(place)` or `eventual(place)`: neither stands inside one of them.
    fn consistent(
        &mut self,
        word: &'static str,
        span: Span,
        open: Span,
        depth: usize,
    ) -> Result<(Place, Span), ScopeError> {
        if let Some(outer) = self.consistency {
            return Err(span.error(Problem::TwoConsistencies { outer, inner: word }));
        }
        self.consistency = Some(word);
        let group = self.group(open, depth)?;
        self.consistency = None;
        Ok(group)
    }

    /// The rest of `around(site, duration)`.
    fn around(&mut self, word: Span, open: Span) -> Result<Place, ScopeError> {
        let (name, span) = self.site()?;
        let centre = named(name, span)?;
        let missing = Span { start: word.start, end: self.at };
        if self.eat(',').is_none() {
            return Err(match self.peek() {
                None | Some(')') => missing.error(Problem::NoRadius),
                Some(found) => self.unexpected(found),
            });
        }
        let Some((text, at)) = self.words() else {
            return Err(match self.peek() {
                None | Some(')') => self.here().error(Problem::NoRadius),
                Some(found) => self.unexpected(found),
            });
        };
        let radius = duration::parse(text).map_err(|error| {
            let span = Span { start: at.start + error.at.start, end: at.start + error.at.end };
            span.error(Problem::Radius(error.problem))
        })?;
        let end = self.close(open)?.end;
        let around = Around { centre, radius, written: Written(span) };
        Ok(Place::new(Node::Around(around), Span { start: word.start, end }))
    }

    fn site(&mut self) -> Result<(&'a str, Span), ScopeError> {
        match self.words() {
            Some(name) => Ok(name),
            None => Err(match self.peek() {
                found @ (None | Some('&' | '%' | '+' | ';' | ',' | ':' | ')' | '}')) => {
                    self.here().error(Problem::NoPlace { after: self.last, found })
                }
                Some(found) => self.unexpected(found),
            }),
        }
    }

    fn close(&mut self, open: Span) -> Result<Span, ScopeError> {
        if let Some(close) = self.eat(')') {
            return Ok(close);
        }
        Err(match self.peek() {
            None | Some(',' | '}') => open.error(Problem::Unclosed('(')),
            Some(found) => self.unexpected(found),
        })
    }

    /// The next character that is not blank.
    fn peek(&mut self) -> Option<char> {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest.chars().next()
    }

    fn eat(&mut self, sign: char) -> Option<Span> {
        if self.peek() != Some(sign) {
            return None;
        }
        let span = Span { start: self.at, end: self.at + sign.len_utf8() };
        self.at = span.end;
        self.last = Some(sign);
        Some(span)
    }

    /// The words that stand here, with the blanks between them: a name or a duration.
    fn words(&mut self) -> Option<(&'a str, Span)> {
        self.peek();
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !is_word_char(c) && !c.is_whitespace()).unwrap_or(rest.len());
        let words = rest[..end].trim_end();
        if words.is_empty() {
            return None;
        }
        let span = Span { start: self.at, end: self.at + words.len() };
        self.at = span.end;
        Some((words, span))
    }

    /// The character that stands here, or the end of the text.
    fn here(&mut self) -> Span {
        let width = self.peek().map_or(0, char::len_utf8);
        Span { start: self.at, end: self.at + width }
    }

    /// The error for the character that stands here and cannot.
    fn unexpected(&mut self, found: char) -> ScopeError {
        self.here().error(match found {
            ')' | '}' => Problem::Unopened(found),
            _ => Problem::Unexpected(found),
        })
    }
}

fn named<N: FromStr<Err = NameError>>(name: &str, span: Span) -> Result<N, ScopeError> {
    name.parse().map_err(|error| span.error(Problem::Name(error)))
}

impl Span {
    pub(crate) fn error(self, problem: Problem) -> ScopeError {
        ScopeError { span: self, problem }
    }
}

#[cfg(test)]
mod tests {
    use alloc::{format, string::ToString};

    use super::*;

    #[test]
    fn precedence() {
        for (text, grouped) in [
            ("a & b % c", "(a & b) % c"),
            ("a % b & c", "a % (b & c)"),
            ("a; b & c", "a; (b & c)"),
            ("a & b; c % d", "(a & b); (c % d)"),
            ("a + b", "a % b"),
        ] {
            assert_eq!(parse_place(text), parse_place(grouped), "{text}");
        }
        assert_ne!(parse_place("a & (b; c)"), parse_place("a & b; c"));
    }

    #[test]
    fn spellings_of_one_scope() {
        let scope = parse("compute: dc1, image: dc1 & dc2").unwrap();
        for text in [
            "{compute: dc1, image: dc1 & dc2}",
            "image:dc1&dc2,compute:dc1",
            "  {\n  compute: (dc1),\n  image: ((dc1) & dc2)\n}\n",
        ] {
            assert_eq!(parse(text).as_ref(), Ok(&scope), "{text}");
        }
        assert_eq!("compute: dc1, image: dc1 & dc2".parse().as_ref(), Ok(&scope));
    }

    #[test]
    fn spans_are_those_of_the_text() {
        let text = "image: DC 1 & ( b ; around( c , 1ms) )";
        let scope = parse(text).unwrap();
        let place = scope.place(&"image".parse().unwrap()).unwrap();
        assert_eq!(&text[place.span().range()], "DC 1 & ( b ; around( c , 1ms)");
        let Node::Several(_, places) = place.node() else { panic!("{place}") };
        assert_eq!(&text[places[0].span().range()], "DC 1");
        assert_eq!(&text[places[1].span().range()], "b ; around( c , 1ms)");
        let text = "image: b ; none( c & d )";
        let scope = parse(text).unwrap();
        let place = scope.place(&"image".parse().unwrap()).unwrap();
        let Node::Several(_, places) = place.node() else { panic!("{place}") };
        assert_eq!(&text[places[1].span().range()], "none( c & d )");
        assert_eq!(&text[place.span().range()], "b ; none( c & d )");
    }

    #[test]
    fn errors_point_explain_and_help() {
        for (text, span, cause, hint) in [
            ("", 0..0, "no service is named", "a scope is written"),
            ("{}", 1..2, "no service is named after `{`", "a scope is written"),
            (": a", 0..1, "no service is named", "a scope is written"),
            ("image", 5..5, "there is no `:` after the service `image`", "a scope is written"),
            (
                "image dc1",
                5..5,
                "there is no `:` after the service `image dc1`",
                "did you mean `image: dc1`?",
            ),
            ("dc1 & dc2", 3..3, "there is no `:` after the service `dc1`", "a scope is written"),
            ("image: a, b", 11..11, "there is no `:` after the service `b`", "after a comma"),
            ("image: a,", 9..9, "no service is named after `,`", "remove the comma"),
            ("image:", 6..6, "no site is named after `:`", "a place is a site"),
            ("image: , b: c", 7..8, "no site is named after `:`", "a place is a site"),
            ("image: a &", 10..10, "no site is named after `&`", "name a site after the `&`"),
            ("image: a && b", 10..11, "no site is named after `&`", "write `&` once"),
            ("image: & b", 7..8, "no site is named after `:`", "a place is a site"),
            ("image: ()", 8..9, "no site is named after `(`", "a place is a site"),
            ("image: a, image: b", 10..15, "the service `image` is named twice", "name each"),
            ("image: (a; b", 7..8, "this `(` is never closed", "add a `)`"),
            ("image: (a, b: c", 7..8, "this `(` is never closed", "add a `)`"),
            ("image: a)", 8..9, "this `)` was never opened", "put a `(`"),
            ("{image: a", 0..1, "this `{` is never closed", "add a `}`"),
            ("image: a}", 8..9, "this `}` was never opened", "put a `{`"),
            ("{image: a} b", 11..12, "`b` cannot stand here", "names hold"),
            ("image: a (b)", 9..10, "`(` cannot stand here", "names hold"),
            ("image: a compute: b", 16..17, "`:` cannot stand here", "services are separated"),
            ("image: a | b", 9..10, "`|` cannot stand here", "\"otherwise\" is written `;`"),
            ("{\"image\": a}", 1..2, "`\"` cannot stand here", "names are written without"),
            ("image: é → b", 10..13, "`→` cannot stand here", "names hold"),
            ("image: a\tb", 7..10, "`a\tb` is not a site name", "several sites are joined"),
            ("image: around(a)", 7..15, "`around` has no radius", "it is written"),
            ("image: around(a 10ms)", 7..20, "`around` has no radius", "it is written"),
            ("image: around(a,)", 16..17, "`around` has no radius", "it is written"),
            ("image: around(, 1ms)", 14..15, "no site is named after `(`", "a place is a site"),
            ("image: around(a, 10mss)", 19..22, "unknown unit `mss`", "a duration is"),
            ("image: around(a, 10)", 17..19, "the number has no unit", "a duration is"),
            ("image: around(a, 1ms", 13..14, "this `(` is never closed", "add a `)`"),
            ("image: around(a, 1ms, b)", 13..14, "this `(` is never closed", "add a `)`"),
            ("image: none()", 12..13, "no site is named after `(`", "a place is a site"),
            ("image: none(a & b", 11..12, "this `(` is never closed", "add a `)`"),
            ("image: none(a, b: c", 11..12, "this `(` is never closed", "add a `)`"),
            (
                "image: none(a & eventual(b))",
                16..24,
                "`eventual` cannot stand inside `none`",
                "a place has one consistency",
            ),
            (
                "image: eventual(a; none(b & c))",
                19..23,
                "`none` cannot stand inside `eventual`",
                "a place has one consistency",
            ),
            ("image: none(none(a))", 12..16, "`none` cannot stand inside `none`", "write `none`"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.span.range(), span, "{text}");
            assert!(error.to_string().starts_with(cause), "{text}: {error}");
            assert!(error.hint().starts_with(hint), "{text}: {}", error.hint());
        }
        for (text, span, cause) in [
            ("image: a", 5..6, "`:` cannot stand here"),
            ("a, b", 1..2, "`,` cannot stand here"),
            ("& a", 0..1, "no site is named before `&`"),
            ("", 0..0, "no site is named"),
        ] {
            let error = parse_place(text).unwrap_err();
            assert_eq!((error.span.range(), error.to_string().as_str()), (span, cause), "{text}");
        }
    }

    #[test]
    fn depth_and_length_are_limited() {
        let nested = |n: usize| format!("{}a{}", "(".repeat(n), ")".repeat(n));
        assert!(parse_place(&nested(MAX_DEPTH)).is_ok());
        let once = |n: usize| format!("none({})", nested(n));
        assert!(parse_place(&once(MAX_DEPTH - 1)).is_ok());
        assert_eq!(parse_place(&once(MAX_DEPTH)).unwrap_err().problem, Problem::TooDeep);
        assert_eq!(parse_place(&nested(MAX_DEPTH + 1)).unwrap_err().problem, Problem::TooDeep);
        let endless = "(".repeat(MAX_LENGTH);
        assert_eq!(parse_place(&endless).unwrap_err().problem, Problem::TooDeep);
        let long = format!("a{}", "é".repeat(MAX_LENGTH / 2));
        let error = parse_place(&long).unwrap_err();
        assert_eq!(error.problem, Problem::TooLong);
        assert!(long.get(error.span.range()).is_some());
    }
}
