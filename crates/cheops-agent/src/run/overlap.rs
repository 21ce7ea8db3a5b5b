//! Waiting for commands that outlived the agent that started them.
//!
//! What must stay true: two commands of one resource never overlap at a site. A supervisor goes on
//! when its agent is killed, so the next agent waits for it before it starts anything of the same
//! resource, whatever the next agent's node knows of it.

use std::{io, sync::Arc};

use cheops_core::{id::ResourceId, replica::Input};

use super::{
    Inner,
    flow::{Stuck, blocking},
    place::{Lock, Place},
    recall::Found,
};

impl Inner {
    /// Waits for a `Reset` command that outlived the agent that started it. One that ended before
    /// that may be an earlier one, of which the node was told: its status says nothing.
    pub(super) async fn recall_clear(self: Arc<Self>, resource: ResourceId) {
        let place = self.runs.clear(&resource);
        let was_under_way = self.is_under_way(&place).await;
        let input = match self.outcome(&place).await {
            Found::Ended(status) if was_under_way => {
                Input::Cleared { resource, ok: status.end.is_ok() }
            }
            _ => Input::NotClearing(resource),
        };
        self.tell(input).await;
    }

    /// Whether a supervisor is at work in a place.
    async fn is_under_way(self: &Arc<Self>, place: &Place) -> bool {
        let mut stuck = Stuck::new(self);
        loop {
            let place = place.clone();
            match blocking(move || place.lock()).await {
                Ok(lock) => return matches!(lock, Some(Lock::Taken)),
                Err(error) => stuck.wait(&error).await,
            }
        }
    }

    /// Waits until no earlier command of a resource is at work. The node asks for one thing at a
    /// time, but it may have lost what it knew of an earlier one, and that one may have outlived the
    /// agent.
    pub(super) async fn wait_for_others(self: &Arc<Self>, resource: &ResourceId, except: &Place) {
        let mut stuck = Stuck::new(self);
        let places = loop {
            let (inner, of, except) = (self.clone(), resource.clone(), except.clone());
            match blocking(move || inner.at_work(&of, &except)).await {
                Ok(places) => break places,
                Err(error) => stuck.wait(&error).await,
            }
        };
        for place in places {
            self.outcome(&place).await;
        }
    }

    /// The places of a resource, but for one, in which a command may be at work: the supervisor is
    /// there, or it was killed and left no status.
    fn at_work(&self, resource: &ResourceId, except: &Place) -> io::Result<Vec<Place>> {
        let mut places = Vec::new();
        for place in self.runs.places(resource)? {
            if place != *except
                && (matches!(place.lock()?, Some(Lock::Taken)) || place.read_status()?.is_none())
            {
                places.push(place);
            }
        }
        Ok(places)
    }
}
