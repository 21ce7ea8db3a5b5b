//! What a reply leaves out of what a command printed, in the words that stand in the reply.
//!
//! Pure. A reply is one text, also for the other agents, so these words are all that whoever reads it
//! has: they are written here and read here. What must stay true: what is written is read back as the
//! same; nothing else is taken for it.

use std::fmt;

/// What a reply leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// How many bytes more were printed.
    pub more: u64,
    /// What the site that ran the command has in a file.
    pub kept: Kept,
}

/// How much of what was printed is in a file at the site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// No more than the reply holds.
    NoMore,
    /// All of it.
    All,
    /// Its beginning.
    First {
        /// How many bytes.
        kept: u64,
        /// How many bytes after them are lost.
        dropped: u64,
    },
}

/// How the words go on after the number.
const MORE: &str = " more bytes were printed";
const ALL: &str = "; all of it is in a file at this site";
const FIRST: (&str, &str, &str) =
    ("; the first ", " bytes are in a file at this site, and ", " were dropped");

impl LeftOut {
    /// What is left out of an output of which so many bytes were printed, so many are kept in a file
    /// and so many are in the reply; nothing if that is all of them.
    pub fn of(printed: u64, kept: u64, used: u64) -> Option<Self> {
        let more = printed.checked_sub(used).filter(|more| *more > 0)?;
        let kept = match printed.saturating_sub(kept) {
            _ if kept <= used => Kept::NoMore,
            0 => Kept::All,
            dropped => Kept::First { kept, dropped },
        };
        Some(Self { more, kept })
    }

    /// What a line of a reply says, if it is one about this.
    pub fn read(line: &str) -> Option<Self> {
        let (more, rest) = line.strip_prefix('[')?.strip_suffix(']')?.split_once(MORE)?;
        let kept = match rest {
            "" => Kept::NoMore,
            ALL => Kept::All,
            _ => {
                let (kept, dropped) = rest.strip_prefix(FIRST.0)?.split_once(FIRST.1)?;
                let dropped = dropped.strip_suffix(FIRST.2)?.parse().ok()?;
                Kept::First { kept: kept.parse().ok()?, dropped }
            }
        };
        let said = Self { more: more.parse().ok()?, kept };
        // A number can be written in other ways, which are not ours.
        (said.to_string() == line).then_some(said)
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}{MORE}", self.more)?;
        match self.kept {
            Kept::NoMore => {}
            Kept::All => f.write_str(ALL)?,
            Kept::First { kept, dropped } => {
                write!(f, "{}{kept}{}{dropped}{}", FIRST.0, FIRST.1, FIRST.2)?;
            }
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_words_are_those_of_a_reply() {
        for (printed, kept, used, expected) in [
            (4, 4, 4, None),
            (4, 9, 9, None),
            (100, 4, 4, Some("[96 more bytes were printed]")),
            (100, 0, 4, Some("[96 more bytes were printed]")),
            (6, 6, 4, Some("[2 more bytes were printed; all of it is in a file at this site]")),
            (
                100,
                10,
                4,
                Some(
                    "[96 more bytes were printed; the first 10 bytes are in a file at this site, and 90 were dropped]",
                ),
            ),
        ] {
            let said = LeftOut::of(printed, kept, used).map(|left_out| left_out.to_string());
            assert_eq!(said.as_deref(), expected, "{printed} {kept} {used}");
        }
    }

    #[test]
    fn other_words_are_not_taken_for_these() {
        for line in [
            "",
            "[]",
            "9 more bytes were printed",
            "[9 more bytes were eaten]",
            "[+9 more bytes were printed]",
            "[09 more bytes were printed]",
            "[ more bytes were printed]",
            "[9 more bytes were printed; some of it is in a file at this site]",
            "[9 more bytes were printed; the first 5 bytes are in a file at this site]",
            "[9 more bytes were printed] ",
            "[99999999999999999999 more bytes were printed]",
        ] {
            assert_eq!(LeftOut::read(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(more: u64, kept in kept()) {
            let left_out = LeftOut { more, kept };
            prop_assert_eq!(LeftOut::read(&left_out.to_string()), Some(left_out));
        }
    }

    fn kept() -> impl Strategy<Value = Kept> {
        prop_oneof![
            Just(Kept::NoMore),
            Just(Kept::All),
            (any::<u64>(), any::<u64>()).prop_map(|(kept, dropped)| Kept::First { kept, dropped }),
        ]
    }
}
