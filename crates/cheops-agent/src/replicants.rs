//! Replicants: REST resources with a copy, or a part, at several sites.
//!
//! A replicant is a view over the replies of its resource: each site's reply to the creation says what
//! the site calls its own. [`Replicants`] finds the one that a request names, by the id that Cheops made,
//! by the id of any site, or by a path that is the same everywhere.
//!
//! What must stay true:
//! - what is found is durable at this site, and never replaced by what was read before it;
//! - the resource that a request is about stands in its path; what its query names is only mentioned;
//! - an id that could mean something else is not taken for one that is known: a short one (`42`) counts
//!   only within its own collection, and only if it is this site's.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    ops::Bound,
    sync::{Arc, PoisonError, RwLock},
};

use cheops_core::{
    id::{ResourceId, ServiceName, SiteId, Sites},
    operation::{Action, HttpRequest},
    replica::{Durable, Event, Replica, Resource},
};
use tokio::sync::{
    Mutex,
    broadcast::{Receiver, error::RecvError},
};

use crate::{
    node::{self, Stopping, Told},
    rest::{
        ids::{is_distinctive, parse_natural, parse_resource},
        rewrite::{Piece, Place, canonical, edited, encoded, pieces, push_canonical},
    },
};

/// How many resources are looked at before others get a turn at the replica.
const ROUND: usize = 500;

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
        /// The path of the collection, in its [`canonical`] form.
        collection: Box<str>,
    },
    /// By a path, the same at all sites, in its canonical form.
    Path(Box<str>),
}

impl Replicant {
    /// The replicant that a resource is, if it is one.
    pub fn of(resource: &Resource) -> Option<Self> {
        let (_, first) = resource.log().iter().next()?;
        let request = request(&first.action)?;
        let name = if let Some((service, id)) = parse_resource(resource.id()) {
            (service == request.service).then(|| Name::Meta {
                id: id.into(),
                collection: canonical(&request.target).into(),
            })?
        } else if parse_natural(resource.id())? == request.service {
            Name::Path(canonical(&request.target).into())
        } else {
            return None;
        };
        let replied = |site: &&SiteId| resource.reply(&first.id, site).is_some();
        Some(Self {
            deleting: resource.is_deleting(),
            replied: resource.present().filter(replied).cloned().collect(),
            resource: resource.id().clone(),
            service: request.service.clone(),
            name,
            sites: resource.present_sites(),
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

    /// Its path, as clients know it.
    pub fn path(&self) -> Box<str> {
        match &self.name {
            Name::Meta { id, collection } => below(collection, id),
            Name::Path(path) => path.clone(),
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

fn below(collection: &str, id: &str) -> Box<str> {
    format!("{}/{}", collection.trim_end_matches('/'), encoded(id)).into()
}

/// Under what a replicant is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// An id, wherever it stands.
    Id(Box<str>),
    /// A path in its canonical form, and all below it.
    Path(Box<str>),
}

/// All replicants that this site has a part in.
#[derive(Debug)]
pub struct Replicants {
    here: SiteId,
    index: RwLock<Index>,
    /// Whoever reads the replica to write the index has this meanwhile: what is read later is written
    /// later.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Index {
    all: BTreeMap<ResourceId, Arc<Replicant>>,
    services: HashMap<ServiceName, Known>,
}

/// The replicants of a service, by their ids and by their paths.
#[derive(Debug, Default)]
struct Known {
    ids: HashMap<Box<str>, Arc<Replicant>>,
    paths: HashMap<Box<str>, Arc<Replicant>>,
}

/// What resources are, as they were read together.
struct Read {
    /// All that were looked at.
    range: (Bound<ResourceId>, Bound<ResourceId>),
    replicants: Vec<Replicant>,
}

impl Replicants {
    /// None yet.
    pub fn new(here: SiteId) -> Self {
        Self { here, index: RwLock::default(), turn: Mutex::default() }
    }

    /// The replicant that the path of a target names. If it names several, the last one: what comes
    /// later in a path belongs to what comes before.
    pub fn in_path(&self, service: &ServiceName, target: &str) -> Option<Arc<Replicant>> {
        self.last(service, target, |place| matches!(place, Place::Segment { .. }))
    }

    /// The same of the query.
    pub fn in_query(&self, service: &ServiceName, target: &str) -> Option<Arc<Replicant>> {
        self.last(service, target, |place| matches!(place, Place::Value { .. }))
    }

    fn last(
        &self,
        service: &ServiceName,
        target: &str,
        is_at: impl Fn(&Place<'_>) -> bool,
    ) -> Option<Arc<Replicant>> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let mut named = index.services.get(service)?.named(target);
        named.retain(|(piece, _)| is_at(&piece.place));
        named.pop().map(|(_, replicant)| replicant.clone())
    }

    /// The target with this site's own id in place of each that is known, if that changes it.
    pub fn own(&self, service: &ServiceName, target: &str) -> Option<String> {
        self.renamed(service, target, |replicant| {
            replicant.locals.get(&self.here).map(|local| &**local)
        })
    }

    /// The target with the id that Cheops made in place of each that is known, if that changes it.
    pub fn common(&self, service: &ServiceName, target: &str) -> Option<String> {
        self.renamed(service, target, Replicant::meta)
    }

    fn renamed(
        &self,
        service: &ServiceName,
        target: &str,
        name: impl Fn(&Replicant) -> Option<&str>,
    ) -> Option<String> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let named = index.services.get(service)?.named(target);
        let edit = |(piece, replicant): &(Piece<'_>, &Arc<Replicant>)| {
            // A path that is the same everywhere has no other name.
            replicant.meta()?;
            let name = encoded(name(replicant)?).to_string();
            (name != piece.raw).then(|| (piece.at..piece.end(), name))
        };
        let edits: Vec<_> = named.iter().filter_map(edit).collect();
        (!edits.is_empty()).then(|| edited(target, &edits))
    }

    /// What a resource is.
    pub fn get(&self, resource: &ResourceId) -> Option<Arc<Replicant>> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.all.get(resource).cloned()
    }

    /// The id that Cheops made for what this site calls by another, in an answer about a path.
    pub fn meta_of(&self, service: &ServiceName, path: &str, local: &str) -> Option<Arc<str>> {
        self.meta_at(service, &self.here, path, local)
    }

    /// The same for an answer of any site. A short id of another site counts nowhere.
    pub fn meta_at(
        &self,
        service: &ServiceName,
        site: &SiteId,
        path: &str,
        local: &str,
    ) -> Option<Arc<str>> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let known = index.services.get(service)?;
        let found = if is_distinctive(local) {
            known.ids.get(local)
        } else {
            let path = canonical(path);
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let mut collections = [path.as_str(), parent].into_iter();
            collections.find_map(|collection| known.paths.get(&below(collection, local)))
        };
        let replicant = found?;
        // Only its own ids are hidden: those of other sites do not come from there.
        let is_its_own = replicant.locals.get(site).is_some_and(|own| **own == *local);
        replicant.meta().filter(|_| is_its_own).map(Arc::from)
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

    /// Looks at a resource, and takes note of what it is.
    pub async fn look(&self, node: &node::Handle, id: &ResourceId) -> Result<(), Stopping> {
        self.refresh(node, BTreeSet::from([id.clone()])).await
    }

    /// Takes note of all resources. Gives what is told from then on, to [follow](Self::follow): some of
    /// it may be seen twice, and nothing is missed.
    pub async fn start(&self, node: &node::Handle) -> Receiver<Told> {
        let feed = node.feed().follow();
        // A node that stops has nothing to tell any more.
        let _ = self.read_all(node).await;
        feed
    }

    /// Follows what is written at this site, for ever.
    pub async fn follow(self: Arc<Self>, node: node::Handle, mut feed: Receiver<Told>) {
        while self.keep_up(&node, &mut feed).await.is_ok() {
            if self.read_all(&node).await.is_err() {
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
            let read = |id: ResourceId| Read {
                replicants: replica.resource(&id).and_then(Replicant::of).into_iter().collect(),
                range: (Bound::Included(id.clone()), Bound::Included(id)),
            };
            touched.into_iter().map(read).collect::<Vec<_>>()
        };
        self.update(async { node.read(look).await }).await.map(drop)
    }

    async fn read_all(&self, node: &node::Handle) -> Result<(), Stopping> {
        let mut from = Bound::Unbounded;
        loop {
            let look = move |replica: &Replica| vec![round(replica, from)];
            let read = self.update(async { node.read(look).await }).await?;
            match read.last() {
                Some((_, Bound::Included(last))) => from = Bound::Excluded(last.clone()),
                _ => return Ok(()),
            }
        }
    }

    /// Writes what is read, when it is its turn. Gives what was looked at.
    async fn update(
        &self,
        read: impl Future<Output = Result<Vec<Read>, Stopping>>,
    ) -> Result<Vec<(Bound<ResourceId>, Bound<ResourceId>)>, Stopping> {
        let _turn = self.turn.lock().await;
        let read = read.await?;
        let mut ranges = Vec::new();
        for Read { range, replicants } in read {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            index.replace(&range, replicants, &self.here);
            ranges.push(range);
        }
        Ok(ranges)
    }
}

/// Some of the resources, from one on.
fn round(replica: &Replica, from: Bound<ResourceId>) -> Read {
    let mut replicants = Vec::new();
    let resources = replica.resources_from((from.clone(), Bound::Unbounded));
    for (looked, resource) in resources.enumerate() {
        replicants.extend(Replicant::of(resource));
        if looked + 1 == ROUND {
            let to = Bound::Included(resource.id().clone());
            return Read { range: (from, to), replicants };
        }
    }
    Read { range: (from, Bound::Unbounded), replicants }
}

/// The resource that something is about, if it can be a replicant.
fn touches(told: &Told) -> Option<ResourceId> {
    let resource = match told {
        Told::Wrote(_, Durable::Record(record, _)) => record.resource(),
        Told::Wrote(_, Durable::Forgotten { resource, .. } | Durable::Trimmed { resource, .. })
        | Told::Event(Event::Forgotten(resource)) => resource,
        Told::Wrote(..) | Told::Event(_) | Told::Link { .. } => return None,
    };
    resource.as_str().contains('~').then(|| resource.clone())
}

impl Index {
    /// Takes note of what resources are now, of all that are in a range.
    fn replace(
        &mut self,
        range: &(Bound<ResourceId>, Bound<ResourceId>),
        replicants: Vec<Replicant>,
        here: &SiteId,
    ) {
        let range = (range.0.as_ref(), range.1.as_ref());
        let before: Vec<ResourceId> =
            self.all.range::<ResourceId, _>(range).map(|(id, _)| id.clone()).collect();
        for id in before {
            self.forget(&id, here);
        }
        for replicant in replicants {
            self.add(Arc::new(replicant), here);
        }
    }

    fn add(&mut self, replicant: Arc<Replicant>, here: &SiteId) {
        let known = self.services.entry(replicant.service.clone()).or_default();
        for key in replicant.keys(here) {
            match key {
                Key::Id(id) => known.ids.insert(id, replicant.clone()),
                Key::Path(path) => known.paths.insert(path, replicant.clone()),
            };
        }
        self.all.insert(replicant.resource.clone(), replicant);
    }

    fn forget(&mut self, resource: &ResourceId, here: &SiteId) {
        let Some(replicant) = self.all.remove(resource) else { return };
        let Some(known) = self.services.get_mut(&replicant.service) else { return };
        for key in replicant.keys(here) {
            let (map, key) = match key {
                Key::Id(id) => (&mut known.ids, id),
                Key::Path(path) => (&mut known.paths, path),
            };
            if map.get(&key).is_some_and(|found| found.resource == *resource) {
                map.remove(&key);
            }
        }
    }
}

impl Known {
    fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.paths.is_empty()
    }

    /// All in a target that names a replicant, in order: segments of the path by their id or by the path
    /// that ends with them, values of the query and the items of lists there by their id. A short id
    /// counts in the query if the path has it as well, and the name of the value speaks of an id.
    fn named<'t>(&self, target: &'t str) -> Vec<(Piece<'t>, &Arc<Replicant>)> {
        let mut named: Vec<(Piece<'t>, &Arc<Replicant>)> = Vec::new();
        let mut path = String::with_capacity(target.len());
        for piece in pieces(target) {
            let by_id = |piece: &Piece<'_>| piece.decoded().and_then(|id| self.ids.get(&*id));
            match piece.place {
                Place::Segment { .. } => {
                    if piece.at > 0 {
                        path.push('/');
                    }
                    let start = path.len();
                    push_canonical(&mut path, piece.raw);
                    let found = by_id(&piece).or_else(|| {
                        self.paths.get(path.as_str()).filter(|_| !piece.raw.is_empty())
                    });
                    // The paths of what lies below hold the ids that all sites know.
                    if let Some(meta) = found.and_then(|replicant| replicant.meta()) {
                        path.truncate(start);
                        path.extend([encoded(meta).to_string()]);
                    }
                    named.extend(found.map(|replicant| (piece, replicant)));
                }
                Place::Value { .. } => {
                    let in_path = |text: &str| {
                        let same = named.iter().find(|(piece, replicant)| {
                            replicant.meta().is_some()
                                && piece.decoded().is_some_and(|id| id == text)
                        });
                        same.map(|(_, replicant)| *replicant)
                    };
                    let found = piece.find(|piece| {
                        let short = || in_path(&piece.decoded().filter(|_| piece.is_called_id())?);
                        by_id(piece).or_else(short)
                    });
                    named.extend(found);
                }
            }
        }
        named
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
        let all = all.into_iter().collect();
        let everything = (Bound::Unbounded, Bound::Unbounded);
        replicants.index.write().unwrap().replace(&everything, all, &replicants.here);
        replicants
    }

    fn path(path: &str) -> Replicant {
        Replicant {
            resource: "image~foo~0123456789ab".parse().unwrap(),
            name: Name::Path(path.into()),
            ..replicant("9007199254740991", "/kv", &[])
        }
    }

    const OTHER: &str = "1111aaaa-ce05-8123-9abc-0123456789ab";
    const UUID: &str = "7f9c2ba4-e88f-427d-9623-2d7a1f0c8a11";
    const FOREIGN: &str = "11111111-e88f-427d-9623-2d7a1f0c8a11";
    const NUMBER: &str = "4503599627370497";

    fn some() -> Replicants {
        known([
            replicant(META, "/v2/images", &[("a", UUID), ("b", FOREIGN)]),
            replicant(OTHER, "/v2/images", &[("a", "an-id-of-16-bytes"), ("b", "x")]),
            replicant(NUMBER, "/v2/groups", &[("a", "42"), ("b", "6")]),
            replicant("4503599627370498", "/v2/groups", &[("a", "a b:c")]),
            path("/kv/a-b"),
        ])
    }

    #[test]
    fn a_replicant_is_found_by_any_of_its_names_and_by_nothing_else() {
        let all = some();
        let service = "image".parse().unwrap();
        // The target; what its path names, and what its query does. `-`: a path.
        for (target, in_path, in_query) in [
            (format!("/v2/images/{META}"), Some(META), None),
            (format!("/v2/images/{UUID}/file?x=1"), Some(META), None),
            (format!("/v2/images/{FOREIGN}"), Some(META), None),
            (format!("/v2/tasks?image={UUID}"), None, Some(META)),
            (format!("/v2/images/PLAIN?x={META}"), None, Some(META)),
            (format!("/v2/images/{META}?x={OTHER}&y=z"), Some(META), Some(OTHER)),
            (format!("/v2/images/{META}/copies/{OTHER}"), Some(OTHER), None),
            ("/v2/groups/42".to_owned(), Some(NUMBER), None),
            ("/v2/groups/%34%32/members?a=b".to_owned(), Some(NUMBER), None),
            ("/v2/groups/a%20b%3ac".to_owned(), Some("4503599627370498"), None),
            ("/v2/groups/a%20b:c/".to_owned(), Some("4503599627370498"), None),
            ("/v2/groups/6".to_owned(), None, None),
            ("/v2/images/42".to_owned(), None, None),
            ("/v2/groups?limit=42".to_owned(), None, None),
            ("/v2/groups?id=42".to_owned(), None, None),
            ("/kv/a-b".to_owned(), Some("-"), None),
            ("/kv/a%2Db".to_owned(), Some("-"), None),
            ("/%6bv/a-b/?x".to_owned(), Some("-"), None),
            ("/kv/a-b/bar?x".to_owned(), Some("-"), None),
            ("/kv/a-bd".to_owned(), None, None),
            ("/".to_owned(), None, None),
        ] {
            let name = |found: Option<Arc<Replicant>>| {
                found.map(|replicant| replicant.meta().unwrap_or("-").to_owned())
            };
            let found = all.in_path(&service, &target);
            assert_eq!(name(found).as_deref(), in_path, "{target}");
            let found = all.in_query(&service, &target);
            assert_eq!(name(found).as_deref(), in_query, "{target}");
        }
        assert_eq!(all.in_path(&"compute".parse().unwrap(), &format!("/{META}")), None);
    }

    #[test]
    fn all_ids_of_a_target_are_replaced_by_those_of_the_site_or_by_ours() {
        let all = some();
        let service = "image".parse().unwrap();
        // As it came, as all sites know it, as this site does.
        for (target, common, own) in [
            ("/i/META?marker=OTHER&x=1", "/i/META?marker=OTHER&x=1", "/i/UUID?marker=ID16&x=1"),
            ("/i/UUID/c/FOREIGN?m=ID16", "/i/META/c/META?m=OTHER", "/i/UUID/c/UUID?m=ID16"),
            ("/i/PLAIN?x=FOREIGN", "/i/PLAIN?x=META", "/i/PLAIN?x=UUID"),
            ("/v2/groups/42?limit=42&id=42", "/v2/groups/NUM?limit=42&id=NUM", "="),
            ("/v2/groups/NUM/42", "=", "/v2/groups/42/42"),
            ("/v2/groups/a%20b:c", "/v2/groups/4503599627370498", "/v2/groups/a%20b%3Ac"),
            ("/kv/a%2Db?x=META", "=", "/kv/a%2Db?x=UUID"),
            ("/kv/x?y=a%20b+c", "=", "="),
            ("/i?ids=UUID,x,OTHER", "/i?ids=META,x,OTHER", "/i?ids=UUID,x,ID16"),
            ("/i?id=in%3AMETA%2COTHER", "=", "/i?id=in%3AUUID%2CID16"),
        ] {
            let spelled = |text: &str| {
                [("META", META), ("OTHER", OTHER), ("UUID", UUID), ("FOREIGN", FOREIGN)]
                    .into_iter()
                    .chain([("NUM", NUMBER), ("ID16", "an-id-of-16-bytes")])
                    .fold(text.to_owned(), |text, (word, id)| text.replace(word, id))
            };
            let expected = |text: &str| spelled(if text == "=" { target } else { text });
            let target = spelled(target);
            let or_same = |renamed: Option<String>| renamed.unwrap_or_else(|| target.clone());
            assert_eq!(or_same(all.common(&service, &target)), expected(common), "{target}");
            assert_eq!(or_same(all.own(&service, &target)), expected(own), "{target}");
        }
    }

    #[test]
    fn only_ids_of_this_site_are_hidden_and_short_ones_only_where_they_belong() {
        let all = known([
            replicant(META, "/v2/images", &[("b", UUID)]),
            replicant(NUMBER, "/v2/groups", &[("a", "42")]),
        ]);
        let service = "image".parse().unwrap();
        let meta = |path, local| all.meta_of(&service, path, local).map(|meta| meta.to_string());
        assert_eq!(meta("/v2/images", UUID), None);
        assert_eq!(meta("/v2/groups", "42").as_deref(), Some(NUMBER));
        assert_eq!(meta("/v2/groups/?x=y", "42").as_deref(), Some(NUMBER));
        assert_eq!(meta("/v2/groups/42", "42").as_deref(), Some(NUMBER));
        assert_eq!(meta("/v2/images", "42"), None);
        // The same of what another site has answered.
        let other = "b".parse().unwrap();
        let meta = |path, local| all.meta_at(&service, &other, path, local);
        assert_eq!(meta("/v2/groups", UUID).as_deref(), Some(META));
        assert_eq!(meta("/v2/groups", "42"), None);
    }

    /// What was read of some resources.
    fn read(range: (Bound<&str>, Bound<&str>), replicants: Vec<Replicant>) -> Read {
        let id = |meta: &str| format!("image~{meta}").parse().unwrap();
        Read { range: (range.0.map(id), range.1.map(id)), replicants }
    }

    #[test]
    fn what_is_forgotten_is_not_found() {
        let all = some();
        let service = "image".parse().unwrap();
        let one = || (Bound::Included(META), Bound::Included(META));
        let forget = |read: Read| {
            all.index.write().unwrap().replace(&read.range, read.replicants, &all.here);
        };
        forget(read(one(), Vec::new()));
        assert_eq!(all.in_path(&service, &format!("/x/{META}")), None);
        assert!(all.in_path(&service, &format!("/x/{OTHER}")).is_some());
        forget(read((Bound::Unbounded, Bound::Unbounded), Vec::new()));
        assert!(!all.has(&service) && all.all().is_empty());
    }

    #[tokio::test]
    async fn what_was_read_before_does_not_replace_what_was_read_after() {
        let all = some();
        let service = "image".parse().unwrap();
        let one = || (Bound::Included(META), Bound::Included(META));
        let (go_on, wait) = tokio::sync::oneshot::channel();
        let old = all.update(async {
            wait.await.unwrap();
            Ok(vec![read(one(), Vec::new())])
        });
        let new = async {
            let read = async {
                Ok(vec![read(one(), vec![replicant(META, "/v2/images", &[("a", "new")])])])
            };
            let updated = all.update(read);
            tokio::pin!(updated);
            // If it had its turn already, it would be over.
            let early = futures_util::poll!(&mut updated);
            go_on.send(()).unwrap();
            match early {
                std::task::Poll::Ready(updated) => updated,
                std::task::Poll::Pending => updated.await,
            }
        };
        let (old, new) = tokio::join!(old, new);
        assert!(old.is_ok() && new.is_ok());
        let found = all.in_path(&service, &format!("/v2/images/{META}")).unwrap();
        assert_eq!(found.locals.values().map(|id| &**id).collect::<Vec<_>>(), ["new"]);
    }
}
