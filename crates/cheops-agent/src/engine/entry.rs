//! What stands in the index and among the gone: which resource something is about, and what became
//! of numbers that are missing.

use std::fmt;

use cheops_core::{
    id::{OpId, ResourceId, SiteId},
    replica::{Durable, Record},
};

use crate::engine::Seq;

/// What the index says of something in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) resource: ResourceId,
    what: What,
    /// The record that it is or is about.
    id: Option<OpId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Operation = 1,
    Reply = 2,
    Intent = 3,
    Clearing = 4,
    Cleared = 5,
    Forgotten = 6,
    Trimmed = 7,
    Withheld = 8,
    Shown = 9,
    Held = 10,
    Aside = 11,
    Decided = 12,
    Contradicted = 13,
    Leftover = 14,
}

impl Entry {
    pub(super) fn of(durable: &Durable) -> Self {
        let (what, id) = match durable {
            Durable::Record(Record::Operation(op), _) => (What::Operation, Some(&op.id)),
            Durable::Record(Record::Reply(reply), _) => (What::Reply, Some(&reply.id)),
            Durable::Record(Record::Shown(shown), _) => (What::Shown, Some(&shown.id)),
            Durable::Intent { op, .. } => (What::Intent, Some(op)),
            Durable::Clearing(_) => (What::Clearing, None),
            Durable::Cleared(_) => (What::Cleared, None),
            Durable::Forgotten { .. } => (What::Forgotten, None),
            Durable::Trimmed { .. } => (What::Trimmed, None),
            Durable::Withheld { .. } => (What::Withheld, None),
            Durable::Held { .. } => (What::Held, None),
            Durable::Aside(record) => (What::Aside, Some(record.id())),
            Durable::Decided { op, .. } => (What::Decided, Some(op)),
            Durable::Contradicted { .. } => (What::Contradicted, None),
            Durable::Leftover(_) => (What::Leftover, None),
        };
        Self { resource: durable.resource().clone(), what, id: id.cloned() }
    }

    /// The id of the record that it is, if it is one.
    pub(super) fn record(&self) -> Option<&OpId> {
        let record = matches!(self.what, What::Operation | What::Reply | What::Shown);
        self.id.as_ref().filter(|_| record)
    }

    /// The number that it has in the stream of a site, if it is a record of that site.
    pub(super) fn number(&self, site: &SiteId) -> Option<u64> {
        self.record().filter(|id| id.site == *site).map(|id| id.number)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.what as u8];
        put_text(&mut bytes, self.resource.as_str());
        if let Some(id) = &self.id {
            put_text(&mut bytes, id.site.as_str());
            bytes.extend_from_slice(&id.number.to_be_bytes());
        }
        bytes
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let what = match take(&mut bytes, 1)?[0] {
            1 => What::Operation,
            2 => What::Reply,
            3 => What::Intent,
            4 => What::Clearing,
            5 => What::Cleared,
            6 => What::Forgotten,
            7 => What::Trimmed,
            8 => What::Withheld,
            9 => What::Shown,
            10 => What::Held,
            11 => What::Aside,
            12 => What::Decided,
            13 => What::Contradicted,
            14 => What::Leftover,
            _ => return None,
        };
        let resource = take_text(&mut bytes)?.parse().ok()?;
        let id = match what {
            What::Clearing
            | What::Cleared
            | What::Forgotten
            | What::Trimmed
            | What::Withheld
            | What::Contradicted
            | What::Leftover
            | What::Held => None,
            What::Operation
            | What::Reply
            | What::Shown
            | What::Intent
            | What::Aside
            | What::Decided => Some(OpId {
                site: take_text(&mut bytes)?.parse().ok()?,
                number: take_number(&mut bytes)?,
            }),
        };
        bytes.is_empty().then_some(Self { resource, what, id })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.what {
            What::Operation => "operation",
            What::Reply => "reply",
            What::Shown => "what was shown,",
            What::Intent => "the start of a run of",
            What::Clearing => "the start of a reset",
            What::Forgotten => "that it was forgotten",
            What::Trimmed => "up to where it was forgotten",
            What::Withheld => "that something of it was lost",
            What::Held => "up to where a site counts that came back",
            What::Aside => "what is held,",
            What::Decided => "what was decided about",
            What::Cleared => "the end of a reset",
            What::Contradicted => "that a number of it was used twice",
            What::Leftover => "that the application may have something of it",
        };
        match &self.id {
            Some(id) => write!(f, "{word} {id}"),
            None => f.write_str(word),
        }
    }
}

/// Why numbers are missing in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gone {
    pub(super) first: Seq,
    pub(super) last: Seq,
    pub(super) why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// Their resource was forgotten.
    Forgotten,
    /// They could not be read.
    Lost(Loss),
}

/// What is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) resource: Option<ResourceId>,
    /// It was reported, and nothing else is to be done about it.
    pub(super) told: bool,
    /// When that was found: milliseconds since 1970.
    pub(super) found: u64,
    pub(super) what: String,
    pub(super) why: String,
}

impl Gone {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.last.to_be_bytes().to_vec();
        if let Why::Lost(loss) = &self.why {
            bytes.push(if loss.told { 2 } else { 1 });
            bytes.extend_from_slice(&loss.found.to_be_bytes());
            put_text(&mut bytes, loss.resource.as_ref().map_or("", ResourceId::as_str));
            put_text(&mut bytes, &loss.what);
            put_text(&mut bytes, &loss.why);
        }
        bytes
    }

    pub(super) fn decode(first: Seq, mut bytes: &[u8]) -> Option<Self> {
        let last = take_number(&mut bytes)?;
        if bytes.is_empty() {
            return Some(Self { first, last, why: Why::Forgotten });
        }
        let told = take(&mut bytes, 1)?[0] == 2;
        let found = take_number(&mut bytes)?;
        let resource = match take_text(&mut bytes)? {
            "" => None,
            name => Some(name.parse().ok()?),
        };
        let what = take_text(&mut bytes)?.to_owned();
        let why = take_text(&mut bytes)?.to_owned();
        let why = Why::Lost(Loss { resource, told, found, what, why });
        bytes.is_empty().then_some(Self { first, last, why })
    }
}

/// Texts are names and short sentences; one that is longer than 64 KB is cut at a character.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(usize::from(u16::MAX))];
    bytes.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(take(bytes, 8)?.try_into().ok()?))
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let length = u16::from_be_bytes(take(bytes, 2)?.try_into().ok()?);
    std::str::from_utf8(take(bytes, length.into())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_gone_numbers_come_back_as_they_were_written() {
        let resource: ResourceId = "counter".parse().unwrap();
        let op = OpId { site: "site1".parse().unwrap(), number: 7 };
        let intent = Durable::Intent { resource: resource.clone(), op, attempt: 1, fresh: false };
        let op = OpId { site: "site1".parse().unwrap(), number: 9 };
        let decided = Durable::Decided { resource: resource.clone(), op, adopted: None };
        let site = "site3".parse().unwrap();
        let held =
            Durable::Held { resource: resource.clone(), site, known: 4, floor: 9, done: true };
        let clearing = Durable::Clearing(resource.clone());
        for durable in [intent, decided, held, clearing, Durable::Cleared(resource)] {
            let entry = Entry::of(&durable);
            let mut bytes = entry.encode();
            assert_eq!(Entry::decode(&bytes), Some(entry));
            bytes.push(0);
            assert_eq!(Entry::decode(&bytes), None);
            assert_eq!(Entry::decode(&bytes[..3]), None);
        }
        let loss = |resource: Option<&str>, told| {
            let resource = resource.map(|name| name.parse().unwrap());
            Why::Lost(Loss { resource, told, found: 5, what: "x".repeat(70_000), why: "y".into() })
        };
        for why in [Why::Forgotten, loss(None, true), loss(Some("counter"), false)] {
            let gone = Gone { first: 3, last: 9, why };
            let read = Gone::decode(3, &gone.encode()).unwrap();
            match (&read.why, &gone.why) {
                (Why::Lost(read), Why::Lost(written)) => {
                    assert_eq!(read.what.len(), 65_535);
                    assert_eq!((&read.resource, read.told), (&written.resource, written.told));
                    assert_eq!(read.found, 5);
                }
                (read, written) => assert_eq!(read, written),
            }
            assert_eq!((read.first, read.last), (3, 9));
        }
    }

    #[test]
    fn only_records_of_a_site_have_a_number_in_its_stream() {
        let site: SiteId = "site1".parse().unwrap();
        let op = OpId { site: site.clone(), number: 7 };
        let entry = |what| Entry { resource: "r".parse().unwrap(), what, id: Some(op.clone()) };
        assert_eq!(entry(What::Operation).number(&site), Some(7));
        assert_eq!(entry(What::Reply).number(&site), Some(7));
        assert_eq!(entry(What::Shown).number(&site), Some(7));
        assert_eq!(entry(What::Intent).number(&site), None);
        assert_eq!(entry(What::Reply).number(&"site2".parse().unwrap()), None);
        assert_eq!(entry(What::Operation).to_string(), "operation site1:7");
    }
}
