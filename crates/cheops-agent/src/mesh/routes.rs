//! Where requests with a scope go, remembered for as long as what is known of the sites stays the same.
//!
//! Clients repeat themselves, and to look up what was decided is quicker than to decide it again. What
//! must stay true: a route is that of the catalogue of the moment; no more are kept than the limit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use cheops_core::{
    id::{ServiceName, SiteId},
    route::{Access, Route, decide},
    scope::{Catalogue, ScopeError},
};

use super::read::Named;

/// How many routes are kept.
const KEPT: usize = 1_024;

/// A scope, by the one copy of it that its reader keeps, the service, and whether something is written.
type Key = (usize, ServiceName, bool);

#[derive(Default)]
pub(super) struct Routes(Mutex<Known>);

#[derive(Default)]
struct Known {
    of: Option<Arc<Catalogue>>,
    /// With each its scope, so that no other can come to be where it was.
    routes: HashMap<Key, (Arc<Named>, Arc<Route>)>,
}

impl Routes {
    /// What to try for a request.
    pub(super) fn find(
        &self,
        named: &Arc<Named>,
        service: &ServiceName,
        access: Access,
        here: &SiteId,
        catalogue: &Arc<Catalogue>,
    ) -> Result<Arc<Route>, ScopeError> {
        let key = (Arc::as_ptr(named).addr(), service.clone(), access == Access::Write);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, catalogue)) {
            // It is made anew now and then, and mostly says the same.
            if known.of.as_deref() != Some(&**catalogue) {
                known.routes.clear();
            }
            known.of = Some(catalogue.clone());
        }
        if let Some((_, route)) = known.routes.get(&key) {
            return Ok(route.clone());
        }
        let route = Arc::new(decide(&named.scope, service, access, here, catalogue)?);
        if known.routes.len() >= KEPT {
            known.routes.clear();
        }
        known.routes.insert(key, (named.clone(), route.clone()));
        Ok(route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Arc<Named> {
        let scope = cheops_core::scope::parse(text).unwrap();
        Arc::new(Named { scope, text: text.into() })
    }

    #[test]
    fn a_route_is_that_of_what_is_known_now() {
        let site = |name: &str| name.parse::<SiteId>().unwrap();
        let (here, service) = (site("a"), "image".parse().unwrap());
        let all = Arc::new(Catalogue::new(["a", "b", "c"].map(site)));
        let mut cut = Catalogue::clone(&all);
        cut.set_reachable(site("b"), false);
        let (routes, scope) = (Routes::default(), named("image: b; c"));
        let legs = |catalogue: &Arc<Catalogue>, scope: &Arc<Named>, access| {
            let route = routes.find(scope, &service, access, &here, catalogue).unwrap();
            route.attempts().len()
        };
        assert_eq!(legs(&all, &scope, Access::Read), 2);
        assert_eq!(legs(&all, &scope, Access::Read), 2);
        assert_eq!(legs(&Arc::new(cut), &scope, Access::Read), 1);
        let both = named("image: b & c");
        assert_eq!(legs(&all, &both, Access::Write), 1);
        assert_eq!(legs(&all, &both, Access::Read), 2);
        for n in 0..3_000 {
            legs(&all, &named(&format!("image: b, x{n}: c")), Access::Read);
        }
        assert!(routes.0.lock().unwrap().routes.len() <= KEPT);
        assert!(routes.find(&named("image: d"), &service, Access::Read, &here, &all).is_err());
    }
}
