//! Frames: how all that is ours stands in the files.
//!
//! Each value is a frame: a mark, a checksum, a number, a length and the content. What must stay
//! true: a frame says all about itself, so that it can be found in any file without knowing that
//! file's format, and taken over into a new store when the old one can't be opened any more. That
//! holds as long as nothing in the files is compressed.

use std::{fs::File, io, os::unix::fs::FileExt};

use crate::{engine::Seq, wire};

/// How many bytes stand before the content.
pub(super) const HEADER: usize = 28;
/// The longest content. What a site writes down is never longer, and the rest is far shorter.
const LONGEST: usize = wire::MAX_LENGTH;
/// What a frame begins with, before its kind.
const MARK: [u8; 3] = [0xc7, 0xe0, 0x95];
/// How much of a file is read at once to look for frames.
const WINDOW: usize = 1 << 20;
/// How much is left out where a file can't be read.
const SECTOR: u64 = 4_096;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Something that the site has written down.
    Log = b'L',
    /// What something in the log is about.
    Index = b'I',
    /// Why numbers are missing.
    Gone = b'G',
}

/// A frame whose checksum is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) kind: Kind,
    /// The number that it is about.
    pub(super) seq: Seq,
    /// The first and the last number of the batch that it was written in.
    pub(super) batch: (Seq, Seq),
    pub(super) body: &'a [u8],
}

impl Frame<'_> {
    /// The bytes for it.
    pub(super) fn seal(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend_from_slice(&MARK);
        bytes.push(self.kind as u8);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.seq.to_be_bytes());
        let (before, after) = (self.seq - self.batch.0, self.batch.1 - self.seq);
        for number in [self.body.len() as u64, before, after] {
            // What is too large for this never gets here; if it did, it would be refused by readers.
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(self.body);
        let sum = checksum(&bytes);
        bytes[4..8].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}

/// What the checksum covers: all but itself.
fn checksum(frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[..4]);
    hasher.update(&frame[8..]);
    hasher.finalize()
}

/// The frame that the bytes are, if they are one and nothing else.
pub(super) fn open(bytes: &[u8]) -> Option<Frame<'_>> {
    (length(bytes)? == bytes.len()).then(|| read(bytes)).flatten()
}

/// How long the frame is that seems to begin here.
fn length(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER)?;
    let body = u32::from_be_bytes(header[16..20].try_into().ok()?) as usize;
    (header.starts_with(&MARK) && body <= LONGEST).then_some(HEADER + body)
}

/// The frame that is exactly these bytes, if its checksum is right.
fn read(bytes: &[u8]) -> Option<Frame<'_>> {
    let kind = match bytes[3] {
        b'L' => Kind::Log,
        b'I' => Kind::Index,
        b'G' => Kind::Gone,
        _ => return None,
    };
    let number = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if number(4)? != checksum(bytes) {
        return None;
    }
    let seq = Seq::from_be_bytes(bytes[8..16].try_into().ok()?);
    let batch = (seq.checked_sub(number(20)?.into())?, seq.checked_add(number(24)?.into())?);
    Some(Frame { kind, seq, batch, body: &bytes[HEADER..] })
}

/// Finds every frame of a file from a place on, whatever else is in there. Places that can't be
/// read are left out.
pub(super) fn scan(file: &File, from: u64, mut found: impl FnMut(u64, Frame<'_>)) {
    let mut window = Window { file, start: from, bytes: Vec::new(), end: false };
    let mut at = 0;
    loop {
        let Some(skip) = window.bytes[at..].iter().position(|byte| *byte == MARK[0]) else {
            if window.end {
                return;
            }
            window.advance(window.bytes.len(), HEADER);
            at = 0;
            continue;
        };
        at += skip;
        if window.bytes.len() - at < HEADER && !window.end {
            window.advance(at, HEADER);
            at = 0;
        }
        if let Some(length) = length(&window.bytes[at..]) {
            if window.bytes.len() - at < length && !window.end {
                window.advance(at, length);
                at = 0;
            }
            if let Some(frame) = window.bytes.get(at..at + length).and_then(read) {
                found(window.start + at as u64, frame);
                at += length;
                continue;
            }
        }
        at = (at + 1).min(window.bytes.len());
    }
}

/// A part of a file that moves on.
struct Window<'a> {
    file: &'a File,
    start: u64,
    bytes: Vec<u8>,
    end: bool,
}

impl Window<'_> {
    /// Drops what has been looked at, and reads on until there are so many bytes at least or the
    /// file ends. Where it can't be read there are zeros.
    fn advance(&mut self, looked_at: usize, wanted: usize) {
        self.bytes.drain(..looked_at);
        self.start += looked_at as u64;
        let wanted = wanted.max(WINDOW);
        while self.bytes.len() < wanted && !self.end {
            let have = self.bytes.len();
            let place = self.start + have as u64;
            self.bytes.resize(wanted, 0);
            match self.file.read_at(&mut self.bytes[have..], place) {
                Ok(read) => {
                    self.bytes.truncate(have + read);
                    self.end = read == 0;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.bytes.truncate(have);
                }
                Err(_) => {
                    let skip = SECTOR - place % SECTOR;
                    let rest = self.file.metadata().map_or(0, |data| data.len());
                    self.end = place + skip >= rest;
                    self.bytes.truncate(have);
                    self.bytes.resize(have + usize::try_from(skip).unwrap_or(1), 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn sealed(seq: Seq, body: &[u8]) -> Vec<u8> {
        Frame { kind: Kind::Log, seq, batch: (seq - 1, seq + 2), body }.seal()
    }

    #[test]
    fn a_frame_opens_to_what_was_sealed_and_no_changed_bit_passes() {
        let mut bytes = sealed(7, b"content");
        let frame = open(&bytes).unwrap();
        assert_eq!((frame.seq, frame.batch, frame.body), (7, (6, 9), b"content".as_slice()));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(open(&bytes[..bytes.len() - 1]), None);
        assert_eq!(open(&[]), None);
    }

    #[test]
    fn frames_are_found_among_anything_else() {
        let mut file = tempfile::tempfile().unwrap();
        let large = vec![MARK[0]; 3 * WINDOW];
        let mut places = Vec::new();
        let mut length = 0;
        let mut put = |bytes: &[u8]| {
            file.write_all(bytes).unwrap();
            length += bytes.len() as u64;
            length
        };
        for (seq, body) in (1..).zip([b"".as_slice(), b"one", &large, b"two"]) {
            let at = put(&MARK[..usize::try_from(seq).unwrap() % 4]);
            places.push((at, seq, body.len()));
            let end = put(&sealed(seq, body));
            assert_eq!(end, at + (HEADER + body.len()) as u64);
            put(&vec![0; WINDOW - 5]);
        }
        let mut broken = sealed(9, b"broken");
        broken[HEADER] ^= 1;
        put(&broken);
        put(&sealed(10, b"cut")[..=HEADER]);
        let mut found = Vec::new();
        scan(&file, 0, |at, frame| found.push((at, frame.seq, frame.body.len())));
        assert_eq!(found, places);
    }
}
