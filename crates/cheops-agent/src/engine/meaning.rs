//! What the variants of [`Durable`] mean to a store, whichever it is.

use cheops_core::{id::ResourceId, replica::Durable};

/// The resource of which all that was written before is forgotten, if it says so. Then nothing of
/// it stays but this.
pub(crate) fn forgets(durable: &Durable) -> Option<&ResourceId> {
    match durable {
        Durable::Forgotten { resource, .. } => Some(resource),
        Durable::Record(..)
        | Durable::Intent { .. }
        | Durable::Clearing(_)
        | Durable::Cleared(_)
        | Durable::Trimmed { .. }
        | Durable::Withheld { .. }
        | Durable::Held { .. }
        | Durable::Contradicted { .. }
        | Durable::Aside(_)
        | Durable::Leftover(_)
        | Durable::Decided { .. } => None,
    }
}

/// The resource that is handed out again from here on, after something of it was lost, if it says
/// so.
pub(crate) fn resumes(durable: &Durable) -> Option<&ResourceId> {
    match durable {
        Durable::Withheld { resource, .. } => Some(resource),
        Durable::Record(..)
        | Durable::Intent { .. }
        | Durable::Clearing(_)
        | Durable::Cleared(_)
        | Durable::Forgotten { .. }
        | Durable::Trimmed { .. }
        | Durable::Held { .. }
        | Durable::Contradicted { .. }
        | Durable::Aside(_)
        | Durable::Leftover(_)
        | Durable::Decided { .. } => None,
    }
}
