//! Frames: what goes over a link between two agents.
//!
//! A frame is its length in four bytes, most significant first, then one byte for its sort, then
//! what it says. The length counts all that follows it. What must stay true:
//! - the length, the sort, [`Frame::Close`] and the version at the head of a [`Hello`] never change,
//!   so that agents of any two versions can tell each other why they don't get along;
//! - a length that is too long is refused before anything is kept for it: memory grows with the
//!   bytes that came, not with those that were announced.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use cheops_core::id::{NameError, SiteId};
use serde::{Deserialize, Serialize};

use super::MAX_LENGTH;

/// The version of what agents say to each other over a link.
pub const LINK_VERSION: u16 = 2;
/// The longest frame that is not a message. A site name and a sentence fit.
const MAX_CONTROL: usize = 2 << 10;
/// How many bytes of a text from another agent are kept.
const MAX_TEXT: usize = 1 << 10;
const LENGTH: usize = 4;

/// What one agent says to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Who is there: the first frame each way.
    Hello(Hello),
    /// The other's greeting was heard. Whoever dialled says so, unless it is the one to decide.
    Ready,
    /// This connection is the link. Only the site with the smaller name says so.
    Up,
    /// Are you there?
    Ping {
        /// What the answer repeats.
        nonce: u64,
        /// The digest of all that the two sites share, as the sender knows it.
        digest: Option<u64>,
    },
    /// Yes.
    Pong {
        /// Of the ping.
        nonce: u64,
        /// The wall clock of the sender, in milliseconds since 1970.
        wall: u64,
    },
    /// The last frame: the link ends, and why.
    Close {
        /// For programs.
        code: Code,
        /// For people.
        text: String,
    },
    /// A message of the replica, encoded.
    Message(Bytes),
}

/// Who is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The site.
    pub site: SiteId,
    /// A random number that this process of the agent has drawn when it started.
    pub life: u64,
    /// Its wall clock, in milliseconds since 1970.
    pub wall: u64,
}

/// Why a link ends, as far as the other end acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// There is a link between the two already.
    Already,
    /// Someone has paused the link.
    Paused,
    /// The agent stops.
    Stopping,
    /// Something must be changed before there can be a link.
    Refused,
    /// What came could not be read, or came not at all.
    Fault,
}

/// Bytes that are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It can't have a sort.
    #[error("a frame has no content")]
    Empty,
    /// It is longer than one of its place may be.
    #[error("a frame of {length} bytes is too long; the limit is {limit}")]
    TooLong {
        /// How long it claims to be.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// Nobody here knows what it is.
    #[error("a frame of sort {0} is unknown")]
    Sort(u8),
    /// The other agent speaks another version.
    #[error("it speaks version {0} of the protocol for links, and not {LINK_VERSION}")]
    Version(u16),
    /// What it says is not what one of its sort says.
    #[error("a frame of sort {0} is malformed")]
    Malformed(u8),
    /// The name of a site is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The bytes end in the middle.
    #[error("the bytes end within a frame")]
    Cut,
}

const HELLO: u8 = 1;
const READY: u8 = 2;
const UP: u8 = 3;
const PING: u8 = 4;
const PONG: u8 = 5;
const CLOSE: u8 = 6;
const MESSAGE: u8 = 7;

#[derive(Serialize, Deserialize)]
struct HelloTwin<'a> {
    site: &'a str,
    life: u64,
    wall: u64,
}

#[derive(Serialize, Deserialize)]
struct PingTwin {
    nonce: u64,
    digest: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct PongTwin {
    nonce: u64,
    wall: u64,
}

impl Code {
    const ALL: [(Self, u8); 5] = [
        (Self::Already, 0),
        (Self::Paused, 1),
        (Self::Stopping, 2),
        (Self::Refused, 3),
        (Self::Fault, 4),
    ];

    fn byte(self) -> u8 {
        Self::ALL.iter().find(|(code, _)| *code == self).map_or(0, |(_, byte)| *byte)
    }

    /// A code that is not known here comes from a later version, and is no less an end.
    fn of(byte: u8) -> Self {
        Self::ALL.iter().find(|(_, b)| *b == byte).map_or(Self::Refused, |(code, _)| *code)
    }
}

impl Frame {
    /// Appends the frame to bytes.
    pub fn write(&self, to: &mut BytesMut) {
        let start = to.len();
        to.put_u32(0);
        match self {
            Self::Hello(Hello { site, life, wall }) => {
                to.put_u8(HELLO);
                put(
                    to,
                    &(LINK_VERSION, HelloTwin { site: site.as_str(), life: *life, wall: *wall }),
                );
            }
            Self::Ready => to.put_u8(READY),
            Self::Up => to.put_u8(UP),
            &Self::Ping { nonce, digest } => {
                to.put_u8(PING);
                put(to, &PingTwin { nonce, digest });
            }
            &Self::Pong { nonce, wall } => {
                to.put_u8(PONG);
                put(to, &PongTwin { nonce, wall });
            }
            Self::Close { code, text } => {
                to.put_u8(CLOSE);
                to.put_u8(code.byte());
                to.put_slice(&text.as_bytes()[..text.floor_char_boundary(MAX_TEXT)]);
            }
            Self::Message(bytes) => {
                to.put_u8(MESSAGE);
                to.put_slice(bytes);
            }
        }
        let length = u32::try_from(to.len() - start - LENGTH).unwrap_or(u32::MAX);
        to[start..start + LENGTH].copy_from_slice(&length.to_be_bytes());
    }

    fn read(sort: u8, content: Bytes) -> Result<Self, FrameError> {
        let malformed = |_| FrameError::Malformed(sort);
        match sort {
            HELLO => {
                let (version, rest) = postcard::take_from_bytes(&content).map_err(malformed)?;
                if version != LINK_VERSION {
                    return Err(FrameError::Version(version));
                }
                let HelloTwin { site, life, wall } =
                    postcard::from_bytes(rest).map_err(malformed)?;
                Ok(Self::Hello(Hello { site: site.parse()?, life, wall }))
            }
            READY => Ok(Self::Ready),
            UP => Ok(Self::Up),
            PING => {
                let PingTwin { nonce, digest } =
                    postcard::from_bytes(&content).map_err(malformed)?;
                Ok(Self::Ping { nonce, digest })
            }
            PONG => {
                let PongTwin { nonce, wall } = postcard::from_bytes(&content).map_err(malformed)?;
                Ok(Self::Pong { nonce, wall })
            }
            CLOSE => {
                let (code, text) = content.split_first().ok_or(FrameError::Malformed(sort))?;
                let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]);
                let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
                // What is no text takes more room in its place than it had.
                text.truncate(text.floor_char_boundary(MAX_TEXT));
                Ok(Self::Close { code: Code::of(*code), text })
            }
            MESSAGE => Ok(Self::Message(content)),
            other => Err(FrameError::Sort(other)),
        }
    }
}

fn put(to: &mut BytesMut, twin: &impl Serialize) {
    // Writing numbers and a short text to memory can't fail; a frame that is cut short would be
    // refused as such by the other end.
    if let Ok(bytes) = postcard::to_allocvec(twin) {
        to.put_slice(&bytes);
    }
}

/// Appends a frame with a message that was encoded already.
pub fn write_message(encoded: &[u8], to: &mut BytesMut) {
    to.put_u32(u32::try_from(encoded.len() + 1).unwrap_or(u32::MAX));
    to.put_u8(MESSAGE);
    to.put_slice(encoded);
}

/// Makes frames of bytes, which may come in any pieces.
#[derive(Debug)]
pub struct Frames {
    bytes: BytesMut,
    limit: usize,
}

impl Frames {
    /// For a stream of messages.
    pub fn of_messages() -> Self {
        Self { bytes: BytesMut::new(), limit: MAX_LENGTH + 1 }
    }

    /// For a stream of all the others.
    pub fn of_control() -> Self {
        Self { bytes: BytesMut::new(), limit: MAX_CONTROL }
    }

    /// Takes bytes that came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if all of it is there.
    pub fn take(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(length) = self.bytes.first_chunk::<LENGTH>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > self.limit {
            return Err(FrameError::TooLong { length, limit: self.limit });
        }
        if length == 0 {
            return Err(FrameError::Empty);
        }
        if self.bytes.len() < LENGTH + length {
            return Ok(None);
        }
        self.bytes.advance(LENGTH);
        let mut content = self.bytes.split_to(length).freeze();
        let sort = content.get_u8();
        Frame::read(sort, content).map(Some)
    }

    /// Whether the bytes may end here.
    pub fn end(&self) -> Result<(), FrameError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(FrameError::Cut) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = Frame> {
        prop_oneof![
            ("[a-zé0-9]{1,40}", any::<u64>(), any::<u64>()).prop_map(|(site, life, wall)| {
                Frame::Hello(Hello { site: site.parse().unwrap(), life, wall })
            }),
            Just(Frame::Ready),
            Just(Frame::Up),
            any::<(u64, Option<u64>)>().prop_map(|(nonce, digest)| Frame::Ping { nonce, digest }),
            any::<(u64, u64)>().prop_map(|(nonce, wall)| Frame::Pong { nonce, wall }),
            (0..Code::ALL.len(), "\\PC{0,100}")
                .prop_map(|(n, text)| Frame::Close { code: Code::ALL[n].0, text }),
            proptest::collection::vec(any::<u8>(), 0..100)
                .prop_map(|bytes| Frame::Message(bytes.into())),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_whatever_the_pieces(
            frames in proptest::collection::vec(frame(), 0..10),
            piece in 1..50_usize,
        ) {
            let mut bytes = BytesMut::new();
            for frame in &frames {
                frame.write(&mut bytes);
            }
            let (mut reader, mut read) = (Frames::of_control(), Vec::new());
            for piece in bytes.chunks(piece) {
                reader.push(piece);
                while let Some(frame) = reader.take().unwrap() {
                    read.push(frame);
                }
            }
            prop_assert_eq!(read, frames);
            prop_assert_eq!(reader.end(), Ok(()));
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(
            bytes in proptest::collection::vec(prop_oneof![3 => Just(0_u8), 1 => any::<u8>()], 0..200),
        ) {
            let mut reader = Frames::of_control();
            reader.push(&bytes);
            while let Ok(Some(_)) = reader.take() {}
        }
    }

    #[test]
    fn a_frame_that_claims_to_be_too_long_is_refused_before_its_bytes_come() {
        let mut reader = Frames::of_messages();
        reader.push(&u32::MAX.to_be_bytes());
        assert!(matches!(reader.take(), Err(FrameError::TooLong { .. })));
        let mut reader = Frames::of_control();
        reader.push(&[0, 0, 8, 1]);
        assert_eq!(reader.take(), Err(FrameError::TooLong { length: 2_049, limit: 2_048 }));
    }

    #[test]
    fn another_version_is_recognised_whatever_follows_it() {
        let mut reader = Frames::of_control();
        reader.push(&[0, 0, 0, 4, HELLO, 9, 255, 255]);
        assert_eq!(reader.take(), Err(FrameError::Version(9)));
    }

    #[test]
    fn a_reason_comes_without_control_characters_and_not_too_long() {
        let mut bytes = BytesMut::new();
        let text = format!("\u{1b}[31m{}", "é".repeat(MAX_TEXT));
        Frame::Close { code: Code::Refused, text }.write(&mut bytes);
        let mut reader = Frames::of_control();
        reader.push(&bytes);
        let Ok(Some(Frame::Close { text, .. })) = reader.take() else { panic!("no reason") };
        assert!(text.starts_with("[31mé") && text.len() <= MAX_TEXT);
    }

    #[test]
    fn what_ends_within_a_frame_is_an_error() {
        let mut reader = Frames::of_messages();
        reader.push(&[0, 0]);
        assert_eq!((reader.take(), reader.end()), (Ok(None), Err(FrameError::Cut)));
    }
}
