//! The services of the application, as the agent is told of them: `[[service]]` and `[mesh]`.
//!
//! What must stay true: a service that is named here can be named in a scope and in the id of a
//! resource; what the file says about ids, division and conflicts is checked when the agent starts,
//! not when the first request comes.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use cheops_core::{id::ServiceName, json::Node, matrix};
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;

use super::{
    scopes::{FromSection, Scopes},
    set, span,
};

/// How the application's requests pass through the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mesh {
    /// The services, by name.
    pub services: BTreeMap<ServiceName, Service>,
    /// Where the agent listens for the calls that the application itself makes.
    pub outbound: Option<SocketAddr>,
    /// The headers by which such a call is linked to the request that it is made for, those that
    /// tell most exactly first.
    pub link_by: Vec<HeaderName>,
    /// For how long a request that was answered is remembered, and how many of them.
    pub linger: Duration,
    /// See `linger`.
    pub links: usize,
    /// How many bytes of a body are kept so that it can be sent elsewhere.
    pub buffer: usize,
    /// How many connections of clients one listener serves at the same time.
    pub connections: usize,
    /// How long the head of a request may take, from when its connection is free for one.
    pub head: Duration,
    /// Which clients may choose sites.
    pub scopes: Scopes,
}

/// A service of the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its name, in scopes.
    pub name: ServiceName,
    /// Where the agent listens for it.
    pub listen: SocketAddr,
    /// Where the agent listens for calls of the application to it, if they have a door of their own.
    pub outbound: Option<SocketAddr>,
    /// Its instance at this site, if there is one.
    pub address: Option<SocketAddr>,
    /// The instance speaks HTTP/2 without TLS.
    pub http2: bool,
    /// How long each stage of a request may take.
    pub limits: Limits,
    /// What it calls its resources.
    pub ids: Ids,
    /// Headers that replicated requests get at this site, in place of those that they came with.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How operations on its resources meet, if not as usual.
    pub matrix: Option<matrix::Matrix>,
    /// What of its resources can be divided.
    pub divide: Vec<Divide>,
    /// How answers of several sites become one.
    pub cross: Cross,
}

/// How long each stage of a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Until there is a connection.
    pub connect: Duration,
    /// Until the head of the answer is there, from when the request was sent.
    pub answer: Duration,
    /// How long nothing of a body may come, either way.
    pub idle: Duration,
}

/// What a service calls its resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// Where the answer to a creation says the id: JSON pointers, the first that finds something.
    pub pointers: Vec<String>,
    /// Whether the `Location` header says it, if no pointer finds anything.
    pub location: bool,
    /// What ids that Cheops makes look like.
    pub meta: Meta,
    /// Whether the ids of replicas are hidden behind those that Cheops made.
    pub hide: bool,
}

/// What ids that Cheops makes look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Meta {
    /// A UUID.
    Uuid,
    /// A number, for services whose clients expect one.
    Number,
}

/// A part of a resource that can be divided among sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divide {
    /// Where it is: a JSON pointer.
    pub pointer: String,
    /// How it is divided.
    pub split: Split,
    /// How the parts become the whole again.
    pub gather: Gather,
}

/// How something is divided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Split {
    /// A number as evenly as it goes, a list dealt out in turns.
    Even,
    /// A number or a list by weights, one for each part in the order of the scope; what has none
    /// weighs 1.
    Weights(Vec<u32>),
    /// Each part gets all of it.
    Each,
}

/// How parts become the whole again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gather {
    /// The sum.
    Sum,
    /// One list after the other.
    Concat,
    /// That of the first part that has it.
    First,
    /// That of all parts, which must be the same.
    Same,
}

/// How answers of several sites become one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cross {
    /// Numbers that are summed: JSON pointers.
    pub counters: Vec<String>,
    /// Where the link to the next page is: JSON pointers. It is followed, and left out of the answer.
    pub next: Vec<String>,
    /// The field that names the site of each item, if items are to have one.
    pub mark: Option<String>,
    /// What may exist only once among the sites, as a JSON pointer into what is to be created.
    pub unique: Option<String>,
    /// An answer that not all sites took part in is an error.
    pub strict: bool,
}

impl Default for Mesh {
    fn default() -> Self {
        let link_by = [
            "traceparent",
            "x-request-id",
            "x-openstack-request-id",
            "baggage",
            "tracestate",
            "x-auth-token",
            "authorization",
        ];
        Self {
            services: BTreeMap::new(),
            outbound: None,
            link_by: link_by.map(HeaderName::from_static).into(),
            linger: Duration::from_mins(5),
            links: 10_000,
            buffer: 64 << 10,
            connections: 1_024,
            head: Duration::from_mins(1),
            scopes: Scopes::default(),
        }
    }
}

impl Service {
    /// A service with nothing but defaults.
    pub fn new(name: ServiceName, listen: SocketAddr, address: Option<SocketAddr>) -> Self {
        Self {
            name,
            listen,
            outbound: None,
            address,
            http2: false,
            limits: Limits {
                connect: Duration::from_secs(2),
                answer: Duration::from_mins(1),
                idle: Duration::from_mins(5),
            },
            ids: Ids {
                pointers: ["/id", "/uuid", "/*/id", "/*/uuid", "/metadata/name"]
                    .map(str::to_owned)
                    .into(),
                location: true,
                meta: Meta::Uuid,
                hide: true,
            },
            headers: Vec::new(),
            matrix: None,
            divide: Vec::new(),
            cross: Cross {
                counters: Vec::new(),
                next: vec!["/next".to_owned()],
                mark: None,
                unique: None,
                strict: false,
            },
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct MeshSection {
    outbound: Option<SocketAddr>,
    link_by: Option<Vec<String>>,
    linger: Option<String>,
    links: Option<usize>,
    buffer: Option<usize>,
    connections: Option<usize>,
    head: Option<String>,
    scopes_from: Option<FromSection>,
    scopes_from_others: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceSection {
    name: String,
    listen: SocketAddr,
    outbound: Option<SocketAddr>,
    address: Option<SocketAddr>,
    #[serde(default)]
    http2: bool,
    connect: Option<String>,
    answer: Option<String>,
    idle: Option<String>,
    #[serde(default)]
    ids: IdsSection,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    matrix: Option<Vec<EntrySection>>,
    #[serde(default)]
    divide: Vec<DivideSection>,
    #[serde(default)]
    cross: CrossSection,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct IdsSection {
    pointers: Option<Vec<String>>,
    location: Option<bool>,
    meta: Option<Meta>,
    hide: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntrySection {
    before: String,
    after: String,
    result: String,
    concurrent: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DivideSection {
    pointer: String,
    split: Option<String>,
    weights: Option<Vec<u32>>,
    gather: Gather,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct CrossSection {
    counters: Option<Vec<String>>,
    next: Option<Vec<String>>,
    mark: Option<String>,
    unique: Option<String>,
    strict: Option<bool>,
}

impl Mesh {
    pub(super) fn read(
        section: MeshSection,
        services: Vec<ServiceSection>,
    ) -> Result<Self, String> {
        let mut mesh = Self { outbound: section.outbound, ..Self::default() };
        if let Some(names) = section.link_by {
            let name = |name: String| {
                name.parse().map_err(|_| format!("`mesh.link_by`: `{name}` is no name of a header"))
            };
            mesh.link_by = names.into_iter().map(name).collect::<Result<_, _>>()?;
        }
        set(&mut mesh.linger, span("mesh.linger", section.linger)?);
        set(&mut mesh.links, section.links);
        set(&mut mesh.buffer, section.buffer);
        set(&mut mesh.connections, section.connections);
        set(&mut mesh.head, span("mesh.head", section.head)?);
        if mesh.head.is_zero() {
            return Err("`mesh.head` must be longer than 0s".into());
        }
        if mesh.connections == 0 {
            return Err("`mesh.connections` must be at least 1".into());
        }
        mesh.scopes = Scopes::read(section.scopes_from, section.scopes_from_others.as_deref())?;
        for section in services {
            let service = Service::read(section)?;
            let name = service.name.clone();
            if mesh.services.insert(name.clone(), service).is_some() {
                return Err(format!("the service `{name}` is named twice"));
            }
        }
        mesh.check_circles()?;
        Ok(mesh)
    }

    /// Where the agent listens for the application.
    pub fn listeners(&self) -> impl Iterator<Item = SocketAddr> {
        let services = self.services.values().flat_map(|s| [Some(s.listen), s.outbound]);
        services.chain([self.outbound]).flatten()
    }

    /// An instance behind the address of a listener would be the agent itself.
    fn check_circles(&self) -> Result<(), String> {
        let listens: Vec<SocketAddr> = self.listeners().collect();
        for service in self.services.values() {
            let meets = |listen: &&SocketAddr| {
                let address = service.address;
                address.is_some_and(|address| {
                    let ip = listen.ip();
                    let everywhere = ip.is_unspecified() && address.ip().is_loopback();
                    listen.port() == address.port() && (ip == address.ip() || everywhere)
                })
            };
            if let Some(listen) = listens.iter().find(meets) {
                return Err(format!(
                    "`service.address` of `{}` is where the agent itself listens ({listen}): requests would go round in circles; name the address of the instance",
                    service.name
                ));
            }
        }
        Ok(())
    }
}

impl Service {
    fn read(section: ServiceSection) -> Result<Self, String> {
        let name: ServiceName =
            section.name.parse().map_err(|error| format!("`service.name`: {error}"))?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !name.as_str().chars().all(plain) || name.as_str().len() > 63 {
            return Err(format!(
                "`service.name`: `{name}` becomes part of resource ids and of host names: at most 63 of a to z, A to Z, digits, `-`, `_` and `.`"
            ));
        }
        let mut service = Self::new(name, section.listen, section.address);
        service.http2 = section.http2;
        service.outbound = section.outbound;
        let limits = &mut service.limits;
        set(&mut limits.connect, span("service.connect", section.connect)?);
        set(&mut limits.answer, span("service.answer", section.answer)?);
        set(&mut limits.idle, span("service.idle", section.idle)?);
        if limits.connect.is_zero() || limits.answer.is_zero() || limits.idle.is_zero() {
            return Err(
                "`service.connect`, `service.answer` and `service.idle` must be longer than 0s"
                    .into(),
            );
        }
        set(&mut service.ids.pointers, section.ids.pointers);
        set(&mut service.ids.location, section.ids.location);
        set(&mut service.ids.meta, section.ids.meta);
        set(&mut service.ids.hide, section.ids.hide);
        check_pointers("service.ids.pointers", &service.ids.pointers)?;
        for (name, value) in section.headers {
            let wrong = || format!("`service.headers`: `{name}` can't be sent as a header");
            let header = name.parse().map_err(|_| wrong())?;
            service.headers.push((header, value.parse().map_err(|_| wrong())?));
        }
        service.matrix = section.matrix.map(|entries| read_matrix(&entries)).transpose()?;
        service.divide = section.divide.into_iter().map(Divide::read).collect::<Result<_, _>>()?;
        set(&mut service.cross.counters, section.cross.counters);
        set(&mut service.cross.next, section.cross.next);
        check_pointers("service.cross.counters", &service.cross.counters)?;
        check_pointers("service.cross.next", &service.cross.next)?;
        service.cross.mark = section.cross.mark;
        check_pointers("service.cross.unique", section.cross.unique.as_slice())?;
        service.cross.unique = section.cross.unique;
        set(&mut service.cross.strict, section.cross.strict);
        Ok(service)
    }
}

impl Divide {
    fn read(section: DivideSection) -> Result<Self, String> {
        check_pointers("service.divide.pointer", std::slice::from_ref(&section.pointer))?;
        let split = match (section.split.as_deref().unwrap_or("even"), section.weights) {
            ("even", None) => Split::Even,
            ("each", None) => Split::Each,
            ("weights", Some(weights)) if weights.iter().any(|weight| *weight > 0) => {
                Split::Weights(weights)
            }
            ("weights", _) => {
                return Err("`service.divide.weights`: `split = \"weights\"` needs a list of numbers, not all 0".into());
            }
            ("even" | "each", Some(_)) => {
                return Err(
                    "`service.divide.weights`: weights go with `split = \"weights\"`".into()
                );
            }
            (other, _) => {
                return Err(format!(
                    "`service.divide.split`: `{other}` is not `even`, `weights` or `each`"
                ));
            }
        };
        Ok(Self { pointer: section.pointer, split, gather: section.gather })
    }
}

/// A matrix, as the configuration of a resource has it.
fn read_matrix(entries: &[EntrySection]) -> Result<matrix::Matrix, String> {
    let entry = |entry: &EntrySection| {
        let mut value = serde_json::json!({
            "Before": entry.before, "After": entry.after, "Result": entry.result,
        });
        if let Some(concurrent) = &entry.concurrent {
            value["Concurrent"] = concurrent.as_str().into();
        }
        value
    };
    let value: serde_json::Value = entries.iter().map(entry).collect();
    matrix::Matrix::read(&Node::root(&value)).map_err(|error| format!("`service.matrix`: {error}"))
}

fn check_pointers(setting: &str, pointers: &[String]) -> Result<(), String> {
    match pointers.iter().find(|pointer| !pointer.starts_with('/')) {
        None => Ok(()),
        Some(pointer) => Err(format!(
            "`{setting}`: `{pointer}` is no JSON pointer: it begins with `/`, like `/id`"
        )),
    }
}
