//! How the core's values are written, between sites and on disk.
//!
//! Wire types are not domain types. For each type of the core that travels there is a twin here
//! that says which bytes stand for it: a [`Message`] for what sites tell each other, a [`Durable`]
//! for what a site writes down. The core can change without the format, and the format without the
//! core.
//!
//! An encoding is one byte, [`VERSION`], and then the twin in [postcard](https://postcard.jamesmunns.com):
//! numbers in as few bytes as they need, texts and lists after their lengths, nothing by name.
//!
//! What must stay true:
//! - What encodes decodes to the same value. The limits of reading hold for writing too, so that a
//!   site notices before its peers do.
//! - No bytes, however odd, lead to a panic, to a deep recursion, or to an allocation that is not
//!   in proportion to their number.
//! - Values of the core are made through its own doors only: a peer can't bring in a name that is
//!   none, an empty set of sites, or an operation without a number.
//! - A record that was ever written is written in the same bytes for ever: seals are over them. What is
//!   added to records leaves the bytes of those without it as they were.
//! - An encoding has one end: bytes that are left over are an error.
//! - Equal names of what was decoded with one [`Names`] share their text in memory.

mod action;
mod config;
mod durable;
mod error;
pub mod frame;
mod list;
mod message;
mod names;
mod record;
mod twin;

use cheops_core::{replica, trust::Seal};
use serde::{Deserialize, Serialize};

pub use self::{
    action::MAX_DEPTH,
    durable::Durable,
    error::{Problem, WireError},
    list::MAX_ITEMS,
    message::Message,
    names::Names,
    record::{LAST_ATTEMPT, LAST_NUMBER},
    twin::Twin,
};

/// The format that is written, and the only one that is read.
pub const VERSION: u8 = 1;

/// The longest encoding that is written or read, in bytes. The core ends a message long before
/// that, but never in the middle of a record.
pub const MAX_LENGTH: usize = 16 << 20;

/// The bytes for a message to another site.
pub fn encode_message(message: &replica::Message) -> Result<Vec<u8>, WireError> {
    encode(&Message::of(message)?)
}

/// The message that the bytes stand for.
pub fn decode_message(bytes: &[u8], names: &mut Names) -> Result<replica::Message, WireError> {
    decode::<Message<'_>>(bytes)?.read(names)
}

/// The bytes for something that a site writes down.
pub fn encode_durable(durable: &replica::Durable) -> Result<Vec<u8>, WireError> {
    encode(&Durable::of(durable)?)
}

/// What the bytes on disk stand for.
pub fn decode_durable(bytes: &[u8], names: &mut Names) -> Result<replica::Durable, WireError> {
    decode::<Durable<'_>>(bytes)?.read(names)
}

/// The seal of a record, from what a site has written down; none if it has none. Costs less than to
/// decode all of it.
pub fn decode_seal(bytes: &[u8], names: &mut Names) -> Result<Option<Seal>, WireError> {
    decode::<Durable<'_>>(bytes)?.seal(names)
}

/// The bytes for a record alone: what its site seals.
pub fn encode_record(record: &replica::Record) -> Result<Vec<u8>, WireError> {
    encode(&record::Record::of(record)?)
}

/// The record that such bytes stand for.
pub fn decode_record(bytes: &[u8], names: &mut Names) -> Result<replica::Record, WireError> {
    decode::<record::Record<'_>>(bytes)?.read(names)
}

fn encode(twin: &impl Serialize) -> Result<Vec<u8>, WireError> {
    let malformed = |error| WireError::at_byte(0, Problem::malformed(&error));
    let bytes = postcard::to_allocvec(&(VERSION, twin)).map_err(malformed)?;
    within_length(&bytes)?;
    Ok(bytes)
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    within_length(bytes)?;
    let rest = match bytes {
        [] => return Err(WireError::at_byte(0, Problem::Empty)),
        [VERSION, rest @ ..] => rest,
        [version, ..] => return Err(WireError::at_byte(0, Problem::Version(*version))),
    };
    let mut reader = postcard::Deserializer::from_bytes(rest);
    let twin = T::deserialize(&mut reader);
    // What a reader of bytes has left to give back is always there.
    let left = reader.finalize().map_or(0, <[u8]>::len);
    let here = bytes.len() - left;
    match twin {
        Err(error) => Err(WireError::at_byte(here, Problem::malformed(&error))),
        Ok(_) if left > 0 => Err(WireError::at_byte(here, Problem::Trailing(left))),
        Ok(twin) => Ok(twin),
    }
}

fn within_length(bytes: &[u8]) -> Result<(), WireError> {
    let length = bytes.len();
    if length > MAX_LENGTH {
        return Err(WireError::at_byte(MAX_LENGTH, Problem::TooLong(length)));
    }
    Ok(())
}
