//! The canonical text of a scope: one blank around an operator, parentheses only where the tree
//! would be another one without them.

use core::fmt;

use super::{Node, Operator, Place, Scope};
use crate::duration;

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (service, place)) in self.services().enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{service}: {place}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node() {
            Node::Site(site) => write!(f, "{site}"),
            Node::Everywhere => f.write_str("*"),
            Node::Around(around) => {
                write!(f, "around({}, {})", around.centre(), duration::print(around.radius()))
            }
            Node::Once(place) => write!(f, "none({place})"),
            Node::Several(operator, places) => {
                for (n, place) in places.iter().enumerate() {
                    if n > 0 {
                        f.write_str(operator.joint())?;
                    }
                    match place.node() {
                        Node::Several(inner, _) if inner < operator => write!(f, "({place})")?,
                        _ => write!(f, "{place}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl Operator {
    fn joint(self) -> &'static str {
        match self {
            Self::First => "; ",
            Self::Across => " % ",
            Self::All => " & ",
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use crate::scope::{parse, parse_place};

    #[test]
    fn places_have_one_text() {
        for (text, canonical) in [
            ("a", "a"),
            ("((a))", "a"),
            ("a&b&c", "a & b & c"),
            ("a & (b & c)", "a & b & c"),
            ("(a ;b);c", "a; b; c"),
            ("a + b % c", "a % b % c"),
            ("(a & b) % (c; d)", "a & b % (c; d)"),
            ("a & (b % c)", "a & (b % c)"),
            ("a; (b & c)", "a; b & c"),
            ("DC 1 & around ( DC 2 ,1500us )", "DC 1 & around(DC 2, 1.5ms)"),
            ("around", "around"),
            ("*&a", "* & a"),
            ("none ( (a&b) )", "none(a & b)"),
            ("none(a; b)", "none(a; b)"),
            ("(none(a & b)); c", "none(a & b); c"),
            ("none & eventual & around", "none & eventual & around"),
            ("none(none)", "none(none)"),
            ("eventual(a & b)", "a & b"),
            ("eventual(a; b) & c", "(a; b) & c"),
            ("eventual(a & b) & c", "a & b & c"),
        ] {
            let place = parse_place(text).unwrap();
            assert_eq!(place.to_string(), canonical, "{text}");
            assert_eq!(parse_place(canonical).unwrap(), place, "{text}");
        }
    }

    #[test]
    fn services_are_sorted() {
        let scope = parse("{ image: b , compute:a }").unwrap();
        assert_eq!(scope.to_string(), "compute: a, image: b");
    }
}
