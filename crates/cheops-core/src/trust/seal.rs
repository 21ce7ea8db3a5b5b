//! Evidence that a record is its site's own.

use alloc::sync::Arc;

/// What goes with a record from the site that made it to wherever the record goes: proof that it is that
/// site's, and as it was made. The core passes it on and never looks at it; who makes and checks it is the
/// shell around.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seal(Arc<[u8]>);

impl Seal {
    /// The most bytes that a seal has.
    pub const LONGEST: usize = 512;

    /// A seal, as its site has written it; none if that is too long for one.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= Self::LONGEST).then(|| Self(bytes.into()))
    }

    /// How it is written.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
