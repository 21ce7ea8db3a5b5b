//! Replicants: REST resources with a copy, or a part, at several sites.
//!
//! A replicant is a view over the replies of its resource: each site's reply to the creation says what
//! the site calls its own. [`Replicants`] finds the one that a request names, by the id that Cheops made,
//! by the id of any site, or by a path that is the same everywhere.
//!
//! What must stay true:
//! - what is found is durable at this site;
//! - an id that could mean something else is not taken for one that is known: a short one (`42`) counts
//!   only within its own collection, and only if it is this site's.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use cheops_core::{
    id::{ResourceId, ServiceName, SiteId, Sites},
    operation::{Action, HttpRequest},
    replica::{Durable, Event, Replica, Resource},
};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::{
    node::{self, Stopping, Told},
    rest::{
        ids::{is_distinctive, parse_natural, parse_resource},
        rewrite::segments,
    },
};

/// A REST resource at several sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicant {
    /// The resource that its operations act on.
    pub resource: ResourceId,
    /// The service that it belongs to.
    pub service: ServiceName,
    /// What it is called.
    pub name: Name,
    /// Where it is.
    pub sites: Sites,
    /// How it is divided; empty if each site has all of it.
    pub parts: Vec<Sites>,
    /// What each site calls its own, as far as is known here.
    pub locals: BTreeMap<SiteId, Box<str>>,
    /// It is being deleted.
    pub deleting: bool,
    /// The sites that have carried out its creation, whether or not they have something of their own.
    pub replied: BTreeSet<SiteId>,
}

/// What a replicant is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// By an id that Cheops made, below a path; each site has another.
    Meta {
        /// The id.
        id: Box<str>,
        /// The path of the collection.
        collection: Box<str>,
    },
    /// By a path, the same at all sites.
    Path(Box<str>),
}

impl Replicant {
    /// The replicant that a resource is, if it is one.
    pub fn of(resource: &Resource) -> Option<Self> {
        let (_, first) = resource.log().iter().next()?;
        let request = request(&first.action)?;
        let name = if let Some((service, id)) = parse_resource(resource.id()) {
            (service == request.service)
                .then(|| Name::Meta { id: id.into(), collection: path(&request.target).into() })?
        } else if parse_natural(resource.id())? == request.service {
            Name::Path(path(&request.target).into())
        } else {
            return None;
        };
        let replied = |site: &&SiteId| resource.reply(&first.id, site).is_some();
        Some(Self {
            deleting: resource.is_deleting(),
            replied: resource.sites().iter().filter(replied).cloned().collect(),
            resource: resource.id().clone(),
            service: request.service.clone(),
            name,
            sites: resource.sites().clone(),
            parts: resource.config().parts.clone(),
            locals: resource.mades().map(|(site, id)| (site.clone(), id.into())).collect(),
        })
    }

    /// The id that stands for it in requests and answers, if Cheops made it one.
    pub fn meta(&self) -> Option<&str> {
        match &self.name {
            Name::Meta { id, .. } => Some(id),
            Name::Path(_) => None,
        }
    }

    /// Whether a text is one of its names: its id, that of a site, its path or its resource.
    pub fn is_called(&self, name: &str) -> bool {
        let own = match &self.name {
            Name::Meta { id, .. } => id,
            Name::Path(path) => path,
        };
        **own == *name
            || self.resource.as_str() == name
            || self.locals.values().any(|local| **local == *name)
    }

    /// Whether a site has something to show of it.
    pub fn is_at(&self, site: &SiteId) -> bool {
        self.sites.contains(site) && (self.meta().is_none() || self.locals.contains_key(site))
    }

    /// The ids under which it is found, and where each of them counts.
    fn keys(&self, here: &SiteId) -> Vec<Key> {
        match &self.name {
            Name::Path(path) => vec![Key::Path(path.clone())],
            Name::Meta { id, collection } => {
                let local = |(site, local): (&SiteId, &str)| {
                    if is_distinctive(local) {
                        Some(Key::Id(local.into()))
                    } else {
                        (site == here).then(|| Key::Path(below(collection, local)))
                    }
                };
                let locals = self.locals.iter().map(|(site, local)| (site, &**local));
                let locals = locals.filter_map(local);
                [Key::Id(id.clone())].into_iter().chain(locals).collect()
            }
        }
    }
}

fn request(action: &Action) -> Option<&HttpRequest> {
    match action {
        Action::Http(request) => Some(request),
        Action::Command { .. } | Action::Steps(_) => None,
    }
}

/// The path of a target.
pub fn path(target: &str) -> &str {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path }
}

fn below(collection: &str, id: &str) -> Box<str> {
    format!("{}/{id}", collection.trim_end_matches('/')).into()
}

/// Under what a replicant is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// An id, wherever it stands.
    Id(Box<str>),
    /// A path, and all below it.
    Path(Box<str>),
}

/// All replicants that this site has a part in.
#[derive(Debug)]
pub struct Replicants {
    here: SiteId,
    index: RwLock<Index>,
}

#[derive(Debug, Default)]
struct Index {
    all: BTreeMap<ResourceId, Arc<Replicant>>,
    services: HashMap<ServiceName, HashMap<Key, Arc<Replicant>>>,
}

/// A replicant that a request names, and the id or the path by which it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The replicant.
    pub replicant: Arc<Replicant>,
    /// The id as it stands in the request; none if it is found by its path.
    pub id: Option<String>,
}

impl Replicants {
    /// None yet.
    pub fn new(here: SiteId) -> Self {
        Self { here, index: RwLock::default() }
    }

    /// The replicant that the target of a request names. If it names several, the last one: what comes
    /// later in a path belongs to what comes before.
    pub fn find(&self, service: &ServiceName, target: &str) -> Option<Found> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let known = index.services.get(service)?;
        let by_id = segments(target).filter_map(|id| {
            let replicant = known.get(&Key::Id(id.as_ref().into()))?.clone();
            Some(Found { replicant, id: Some(id.into_owned()) })
        });
        by_id.last().or_else(|| {
            let path = path(target);
            let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
            let by_path = ends.filter_map(|end| {
                let replicant = known.get(&Key::Path(path[..end].into()))?.clone();
                let id = replicant.locals.get(&self.here).map(ToString::to_string);
                Some(Found { replicant, id })
            });
            by_path.last()
        })
    }

    /// The id that Cheops made for what this site calls by another, in an answer about a path.
    pub fn meta_of(&self, service: &ServiceName, path: &str, local: &str) -> Option<Arc<str>> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let known = index.services.get(service)?;
        let found = if is_distinctive(local) {
            known.get(&Key::Id(local.into()))
        } else {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let mut collections = [path, parent].into_iter();
            collections.find_map(|collection| known.get(&Key::Path(below(collection, local))))
        };
        let replicant = found?;
        // Only its own ids are hidden: those of other sites do not come from here.
        let is_ours = replicant.locals.get(&self.here).is_some_and(|own| **own == *local);
        replicant.meta().filter(|_| is_ours).map(Arc::from)
    }

    /// Whether there are any of a service.
    pub fn has(&self, service: &ServiceName) -> bool {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.services.get(service).is_some_and(|known| !known.is_empty())
    }

    /// All of them, in the order of their resources.
    pub fn all(&self) -> Vec<Arc<Replicant>> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.all.values().cloned().collect()
    }

    /// Takes note of what a resource is now.
    pub fn learn(&self, replicant: Replicant) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.forget(&replicant.resource, &self.here);
        index.add(Arc::new(replicant), &self.here);
    }

    /// Looks at a resource, and takes note of what it is.
    pub async fn look(&self, node: &node::Handle, id: &ResourceId) -> Result<(), Stopping> {
        self.refresh(node, BTreeSet::from([id.clone()])).await
    }

    /// Follows what is written at this site, for ever.
    pub async fn follow(self: Arc<Self>, node: node::Handle) {
        let mut feed = node.feed().follow();
        // What is told from here on may be seen twice, and nothing is missed.
        while self.read_all(&node).await.is_ok() {
            if self.keep_up(&node, &mut feed).await.is_err() {
                return;
            }
        }
    }

    /// Takes note of what is told until too much was missed.
    async fn keep_up(
        &self,
        node: &node::Handle,
        feed: &mut Receiver<Told>,
    ) -> Result<(), Stopping> {
        loop {
            let mut touched = BTreeSet::new();
            match feed.recv().await {
                Ok(told) => touched.extend(touches(&told)),
                Err(RecvError::Lagged(_)) => return Ok(()),
                Err(RecvError::Closed) => return Err(Stopping),
            }
            while let Ok(told) = feed.try_recv() {
                touched.extend(touches(&told));
            }
            if !touched.is_empty() {
                self.refresh(node, touched).await?;
            }
        }
    }

    async fn refresh(
        &self,
        node: &node::Handle,
        touched: BTreeSet<ResourceId>,
    ) -> Result<(), Stopping> {
        let look = move |replica: &Replica| {
            let found = |id| {
                let replicant = replica.resource(&id).and_then(Replicant::of);
                (id, replicant)
            };
            touched.into_iter().map(found).collect::<Vec<_>>()
        };
        for (id, replicant) in node.read(look).await? {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            index.forget(&id, &self.here);
            if let Some(replicant) = replicant {
                index.add(Arc::new(replicant), &self.here);
            }
        }
        Ok(())
    }

    async fn read_all(&self, node: &node::Handle) -> Result<(), Stopping> {
        let look = |_: &Replica, resource: &Resource, all: &mut Vec<Replicant>| {
            all.extend(Replicant::of(resource));
            true
        };
        let all = node.walk(Vec::new(), look).await?;
        let mut fresh = Index::default();
        for replicant in all {
            fresh.add(Arc::new(replicant), &self.here);
        }
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }
}

/// The resource that something is about, if it can be a replicant.
fn touches(told: &Told) -> Option<ResourceId> {
    let resource = match told {
        Told::Wrote(_, Durable::Record(record)) => record.resource(),
        Told::Wrote(_, Durable::Forgotten { resource, .. } | Durable::Trimmed { resource, .. })
        | Told::Event(Event::Forgotten(resource)) => resource,
        Told::Wrote(..) | Told::Event(_) | Told::Link { .. } => return None,
    };
    resource.as_str().contains('~').then(|| resource.clone())
}

impl Index {
    fn add(&mut self, replicant: Arc<Replicant>, here: &SiteId) {
        let known = self.services.entry(replicant.service.clone()).or_default();
        for key in replicant.keys(here) {
            known.insert(key, replicant.clone());
        }
        self.all.insert(replicant.resource.clone(), replicant);
    }

    fn forget(&mut self, resource: &ResourceId, here: &SiteId) {
        let Some(replicant) = self.all.remove(resource) else { return };
        let Some(known) = self.services.get_mut(&replicant.service) else { return };
        for key in replicant.keys(here) {
            if known.get(&key).is_some_and(|found| found.resource == *resource) {
                known.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = "0a1b2c3d-ce05-8123-9abc-0123456789ab";

    fn replicant(id: &str, collection: &str, locals: &[(&str, &str)]) -> Replicant {
        let local = |(site, id): &(&str, &str)| (site.parse().unwrap(), (*id).into());
        Replicant {
            resource: format!("image~{id}").parse().unwrap(),
            service: "image".parse().unwrap(),
            name: Name::Meta { id: id.into(), collection: collection.into() },
            sites: Sites::new(["a", "b"].map(|name| name.parse().unwrap())).unwrap(),
            parts: Vec::new(),
            locals: locals.iter().map(local).collect(),
            deleting: false,
            replied: BTreeSet::new(),
        }
    }

    fn known(all: impl IntoIterator<Item = Replicant>) -> Replicants {
        let replicants = Replicants::new("a".parse().unwrap());
        for replicant in all {
            replicants.learn(replicant);
        }
        replicants
    }

    #[test]
    fn a_replicant_is_found_by_any_of_its_names_and_by_nothing_else() {
        let uuid = "7f9c2ba4-e88f-427d-9623-2d7a1f0c8a11";
        let foreign = "11111111-e88f-427d-9623-2d7a1f0c8a11";
        let path = Replicant {
            resource: "image~foo~0123456789ab".parse().unwrap(),
            name: Name::Path("/kv/foo".into()),
            ..replicant("9007199254740991", "/kv", &[])
        };
        let all = known([
            replicant(META, "/v2/images", &[("a", uuid), ("b", foreign)]),
            replicant("4503599627370497", "/v2/groups", &[("a", "42"), ("b", "6")]),
            path,
        ]);
        let service = "image".parse().unwrap();
        for (target, expected) in [
            (format!("/v2/images/{META}"), Some((META, META))),
            (format!("/v2/images/{uuid}/file?x=1"), Some((META, uuid))),
            (format!("/v2/images/{foreign}"), Some((META, foreign))),
            (format!("/v2/tasks?image={uuid}"), Some((META, uuid))),
            ("/v2/groups/42".to_owned(), Some(("4503599627370497", "42"))),
            ("/v2/groups/42/members".to_owned(), Some(("4503599627370497", "42"))),
            ("/v2/groups/6".to_owned(), None),
            ("/v2/images/42".to_owned(), None),
            ("/v2/groups?limit=42".to_owned(), None),
            ("/kv/foo".to_owned(), Some(("", ""))),
            ("/kv/foo/bar?x".to_owned(), Some(("", ""))),
            ("/kv/food".to_owned(), None),
            ("/".to_owned(), None),
        ] {
            let found = all.find(&service, &target);
            let seen = found.as_ref().map(|found| {
                (found.replicant.meta().unwrap_or(""), found.id.as_deref().unwrap_or(""))
            });
            assert_eq!(seen, expected, "{target}");
        }
        assert_eq!(all.find(&"compute".parse().unwrap(), &format!("/{META}")), None);
    }

    #[test]
    fn only_ids_of_this_site_are_hidden_and_short_ones_only_where_they_belong() {
        let all = known([
            replicant(META, "/v2/images", &[("b", "7f9c2ba4-e88f-427d-9623-2d7a1f0c8a11")]),
            replicant("4503599627370497", "/v2/groups", &[("a", "42")]),
        ]);
        let service = "image".parse().unwrap();
        let meta = |path, local| all.meta_of(&service, path, local).map(|meta| meta.to_string());
        assert_eq!(meta("/v2/images", "7f9c2ba4-e88f-427d-9623-2d7a1f0c8a11"), None);
        assert_eq!(meta("/v2/groups", "42").as_deref(), Some("4503599627370497"));
        assert_eq!(meta("/v2/groups/42", "42").as_deref(), Some("4503599627370497"));
        assert_eq!(meta("/v2/images", "42"), None);
    }

    #[test]
    fn what_is_forgotten_is_not_found() {
        let all = known([replicant(META, "/v2/images", &[("a", "42")])]);
        let service = "image".parse().unwrap();
        assert!(all.has(&service));
        let resource = all.all().remove(0).resource.clone();
        all.index.write().unwrap().forget(&resource, &"a".parse().unwrap());
        assert!(!all.has(&service) && all.all().is_empty());
    }
}
