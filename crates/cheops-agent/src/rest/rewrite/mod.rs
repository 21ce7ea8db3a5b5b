//! One id in place of another: the meta id for a local one on the way to the client, and the other
//! way round on the way to the application.
//!
//! | module | question it answers |
//! |---|---|
//! | `pieces` | what in a path or URL can be an id, and when are two paths the same? |
//! | `target` | which ids does the target of a request hold? |
//! | `known` | which of what a text holds are ids, and what takes their place? |
//! | `body` | how are ids replaced in a body as it passes? |
//! | `json` | what of JSON must be understood for that? |
//!
//! What must stay true: every byte that is not a part of a replaced id stays as it is; an id that
//! could be something else is left alone.

mod body;
mod json;
mod known;
mod pieces;
mod target;

pub use self::target::{is_own, own_path, segments, target};
pub use self::{
    body::{Format, MAX_TOKEN, Rewriter},
    known::{Context, header},
    pieces::canonical,
};
pub(crate) use self::{
    known::edited,
    pieces::{Piece, Place, encoded, pieces, push_canonical},
};
