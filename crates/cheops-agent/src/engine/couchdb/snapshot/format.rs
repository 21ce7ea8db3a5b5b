//! The bytes of a snapshot: frames, each with its length and a checksum.
//!
//! What must stay true:
//! - the checksum of a frame covers all frames before it, so that one that is missing, changed or moved is found;
//! - only what stands before the last [`Frame::Trailer`] counts: what comes after it was being written;
//! - no bytes, however odd, lead to a panic or to an allocation that is not in proportion to their number.

use serde::{Deserialize, Serialize};

use crate::engine::Seq;

/// How snapshots are written. One with another number is not read.
pub(super) const FORMAT: u32 = 2;
/// The length and the checksum.
pub(super) const HEAD: usize = 8;
/// The longest frame that is read, in bytes. A value has 16 MiB at most.
const LONGEST: usize = 64 << 20;

/// One piece of a snapshot.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) enum Frame<'a> {
    /// What it is a copy of; the first of all.
    Head {
        format: u32,
        /// The name of the databases.
        databases: &'a str,
        /// The mark that both databases have for as long as this copy goes with them.
        mark: &'a str,
    },
    /// Some of the journal, in its order.
    #[serde(borrow)]
    Part(Vec<Run<'a>>),
    /// What was forgotten of a resource before a number is removed from the databases.
    Scrubbed { resource: &'a str, forgotten: Seq },
    /// All before it belongs together, and was compared with the databases.
    Trailer(Trailer),
}

/// Up to where a snapshot goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Trailer {
    /// The last number that it holds.
    pub(in super::super) covered: Seq,
    /// The number that the last page begins with.
    pub(in super::super) last_page: Seq,
    /// Up to where the changes of both databases were compared with it: of the journal, and of records. As JSON.
    pub(in super::super) local: String,
    pub(in super::super) records: String,
}

/// Entries of one page that follow each other.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Run<'a> {
    /// The number that the page begins with.
    pub(in super::super) page: Seq,
    /// The page stands for lost ones up to this number, which was found at this time.
    pub(in super::super) lost: Option<(Seq, u64)>,
    /// The number of the first entry here.
    pub(in super::super) from: Seq,
    #[serde(borrow)]
    pub(in super::super) items: Vec<Item<'a>>,
}

/// One entry of the journal.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) enum Item<'a> {
    /// It is forgotten.
    Gone,
    /// A record, with the parts of the id of its document.
    Record {
        resource: &'a str,
        site: &'a str,
        number: u64,
        hash: u128,
        /// Whether the page holds a copy of it.
        copied: bool,
        value: &'a [u8],
    },
    /// Something of this site alone.
    Local { resource: &'a str, value: &'a [u8] },
    /// That a resource is forgotten.
    Forgets { resource: &'a str, value: &'a [u8] },
    /// Something that could not be read when the copy was made.
    Lost { resource: Option<&'a str>, document: Option<&'a str>, what: &'a str, why: &'a str },
    /// It is forgotten, and was not purged yet when the copy was made.
    Unpurged { resource: &'a str },
}

/// The bytes of a frame that follows frames with this checksum, and the new one.
pub(super) fn encode(frame: &Frame<'_>, before: u32) -> Option<(Vec<u8>, u32)> {
    let body = postcard::to_allocvec(frame).ok()?;
    let sum = checksum(before, &body);
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= LONGEST)?;
    Some(([&length.to_le_bytes()[..], &sum.to_le_bytes(), &body].concat(), sum))
}

/// How long a frame is and which checksum it has, by its head.
pub(super) fn head(bytes: [u8; HEAD]) -> Option<(usize, u32)> {
    let [a, b, c, d, sum @ ..] = bytes;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?;
    (length <= LONGEST).then_some((length, u32::from_le_bytes(sum)))
}

/// The frame that bytes stand for.
pub(in super::super) fn decode(bytes: &[u8]) -> Option<Frame<'_>> {
    postcard::from_bytes(bytes).ok()
}

/// Whether bytes stand for a part, or for what was scrubbed, by what they begin with: the number of the variant.
pub(super) fn is_content(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(1 | 2))
}

pub(super) fn checksum(before: u32, body: &[u8]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&before.to_le_bytes());
    hash.update(&u64::try_from(body.len()).unwrap_or(u64::MAX).to_le_bytes());
    hash.update(body);
    hash.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_known_by_its_first_byte() {
        let [local, records] = [(); 2].map(|()| "7".to_owned());
        for (frame, expected) in [
            (Frame::Head { format: FORMAT, databases: "d", mark: "m" }, false),
            (Frame::Part(Vec::new()), true),
            (Frame::Scrubbed { resource: "r", forgotten: 3 }, true),
            (Frame::Trailer(Trailer { covered: 1, last_page: 1, local, records }), false),
        ] {
            let (bytes, _) = encode(&frame, 0).unwrap();
            assert_eq!(is_content(&bytes[HEAD..]), expected, "{frame:?}");
        }
        assert!(!is_content(&[]));
    }
}
