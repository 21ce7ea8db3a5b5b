//! An operation: one change of one resource, received at one site.
//!
//! An operation is immutable once written. What happens to it later (it falls, it is over, it
//! fails) is never written into it, but derived from the log and the replies.

use alloc::{boxed::Box, collections::BTreeMap, sync::Arc, vec::Vec};
use core::mem::size_of;

use crate::{
    id::{Author, Key, Kind, OpId, ResourceId, ServiceName, SiteId, Sites},
    matrix::Config,
    time::Timestamp,
};

/// One change of one resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The site that received it, and its number there.
    pub id: OpId,
    /// What it acts on.
    pub resource: ResourceId,
    /// What it does, in the words of the matrix.
    pub kind: Kind,
    /// Who asked for it.
    pub author: Author,
    /// When it was received; later than each of its parents.
    pub at: Timestamp,
    /// The heads of the log when it was received, in order. Empty for the first of a resource; of one
    /// that is created again, the delete that ended its life before.
    pub parents: Box<[OpId]>,
    /// What to do.
    pub action: Action,
    /// All that it causally follows is over. Decided once, where it was received.
    pub reset: bool,
    /// It counts even if it fails at the site that received it.
    pub keep_going: bool,
    /// What its requester calls the request, if it may be repeated: the same request with the same
    /// key is this operation, and no second one.
    pub key: Option<Key>,
    /// What it says about the resource itself; always present in the first of a resource.
    pub declares: Option<Box<Declaration>>,
}

/// What an operation says about the resource itself.
///
/// The sites of a resource are the union of all that were declared; its configuration is the
/// latest one that says anything. Parts are a matter of their own: they are those that were named
/// last, so a later configuration without any leaves them as they are, and one that only names parts
/// leaves the rest. A site that is in none of them, because two sites created the resource apart, is a
/// part of its own after these.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Declaration {
    /// Where the resource is to exist.
    pub sites: Sites,
    /// How its operations meet. Many resources share one.
    pub config: Arc<Config>,
    /// What of the resource's earlier lives is forgotten: records up to these numbers, of each site.
    /// Empty, unless the resource is created again at a site that has forgotten it.
    pub base: BTreeMap<SiteId, u64>,
}

/// What an operation does at each site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// A command line, with the files that it names.
    Command {
        /// For the shell, as the operator wrote it.
        line: Box<str>,
        /// Attached files, by name.
        files: Box<[Attachment]>,
    },
    /// A request to the application's own API.
    Http(Box<HttpRequest>),
    /// Several in a row; the first that fails ends it.
    Steps(Box<[Action]>),
}

/// A file by its content, which travels and is stored apart from the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attachment {
    /// The name that the command uses.
    pub name: Box<str>,
    /// The hash of its content.
    pub content: [u8; 32],
    /// Its length in bytes.
    pub length: u64,
}

/// A request to the application, as it will be sent at each site.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HttpRequest {
    /// The service it is for.
    pub service: ServiceName,
    /// The method: `PUT`.
    pub method: Box<str>,
    /// Path and query.
    pub target: Box<str>,
    /// Header fields, in order.
    pub headers: Box<[(Box<str>, Box<str>)]>,
    /// The body.
    pub body: HttpBody,
    /// Which of the ids in it each site has one of its own for.
    pub names: Names,
}

/// The body of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HttpBody {
    /// There is none.
    None,
    /// A short one, which travels with the operation.
    Inline(Box<[u8]>),
    /// A long one, by its content.
    File(Attachment),
}

/// What an application calls the same thing differs from site to site. A *meta id* is the one name
/// that all sites know it by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Names {
    /// The request names nothing that has another name elsewhere: it is the same everywhere.
    Nothing,
    /// It makes what is known by this meta id. The answer says what the site calls it.
    Makes(Box<str>),
    /// This meta id stands in the target where each site puts its own id.
    Uses(Box<str>),
}

impl Operation {
    /// Its place in the order that ties are broken by: timestamp, site, number.
    pub fn key(&self) -> (Timestamp, &SiteId, u64) {
        (self.at, &self.id.site, self.id.number)
    }

    /// Whether this is what a request asks for: one that is repeated is no second operation. Whether
    /// it reset what it found is no part of the request.
    pub fn is_request(&self, kind: &Kind, action: &Action, keep_going: bool) -> bool {
        self.kind == *kind && self.action.asks_for(action) && self.keep_going == keep_going
    }

    /// About how many bytes it takes on the wire: what batches and budgets are counted in.
    pub fn weight(&self) -> usize {
        const FIXED: usize = 24;
        let ids: usize = self.parents.iter().map(|id| id.site.as_str().len() + 9).sum();
        let key = self.key.as_ref().map_or(0, |key| key.as_str().len() + 1);
        let declared = self.declares.as_ref().map_or(0, |declared| declared.weight());
        FIXED
            + self.id.site.as_str().len()
            + self.resource.as_str().len()
            + self.kind.as_str().len()
            + self.author.as_str().len()
            + ids
            + key
            + self.action.weight()
            + declared
    }
}

impl Declaration {
    fn weight(&self) -> usize {
        let sites: usize = self.sites.iter().map(|site| site.as_str().len() + 1).sum();
        let entries: usize = self
            .config
            .matrix
            .entries()
            .iter()
            .map(|entry| entry.before.as_str().len() + entry.after.as_str().len() + 4)
            .sum();
        let commands: usize = [&self.config.show, &self.config.reset, &self.config.check]
            .into_iter()
            .flatten()
            .map(|command| command.len() + 1)
            .sum();
        let parts = self.config.parts.iter().flat_map(Sites::iter);
        let parts: usize = parts.map(|site| site.as_str().len() + 2).sum();
        let base: usize = self.base.keys().map(|site| site.as_str().len() + 4).sum();
        sites + entries + commands + parts + base
    }
}

impl Action {
    /// A command line without files.
    pub fn command(line: impl Into<Box<str>>) -> Self {
        Self::Command { line: line.into(), files: Box::default() }
    }

    /// All files that it brings: those of a command, the body of a request.
    pub fn attachments(&self) -> Vec<&Attachment> {
        match self {
            Self::Command { files, .. } => files.iter().collect(),
            Self::Http(request) => match &request.body {
                HttpBody::File(file) => [file].into(),
                HttpBody::None | HttpBody::Inline(_) => Vec::new(),
            },
            Self::Steps(steps) => steps.iter().flat_map(Self::attachments).collect(),
        }
    }

    /// Whether both ask for the same. The header fields of a request take no part: some of them differ
    /// each time that a client sends it.
    fn asks_for(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Http(one), Self::Http(other)) => {
                let HttpRequest { service, method, target, headers: _, body, names } = &**one;
                *service == other.service
                    && *method == other.method
                    && *target == other.target
                    && *body == other.body
                    && *names == other.names
            }
            (Self::Steps(one), Self::Steps(other)) => {
                one.len() == other.len()
                    && one.iter().zip(other).all(|(one, other)| one.asks_for(other))
            }
            _ => self == other,
        }
    }

    /// Whether it asks the application's own API, and nothing else.
    pub fn is_request(&self) -> bool {
        match self {
            Self::Command { .. } => false,
            Self::Http(_) => true,
            Self::Steps(steps) => steps.iter().all(Self::is_request),
        }
    }

    /// Whether what was run once can be run again without harm, as far as we can tell: it sends no
    /// `POST`, with which an application makes one more of something each time.
    pub fn is_repeatable(&self) -> bool {
        match self {
            Self::Command { .. } => true,
            Self::Http(request) => !request.method.eq_ignore_ascii_case("POST"),
            Self::Steps(steps) => steps.iter().all(Self::is_repeatable),
        }
    }

    /// Whether it says all about what an earlier one wrote to: a `PUT` or a `DELETE` of the same
    /// target. An earlier `POST` may have done anything, anywhere.
    pub fn stands_for(&self, earlier: &Self) -> bool {
        let (Self::Http(later), Self::Http(request)) = (self, earlier) else { return false };
        let is_whole = |method: &str| later.method.eq_ignore_ascii_case(method);
        (is_whole("PUT") || is_whole("DELETE"))
            && later.service == request.service
            && later.target == request.target
            && earlier.is_repeatable()
    }

    fn weight(&self) -> usize {
        match self {
            Self::Command { line, files } => {
                line.len() + files.iter().map(Attachment::weight).sum::<usize>() + 4
            }
            Self::Http(request) => {
                let headers: usize =
                    request.headers.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
                request.service.as_str().len()
                    + request.method.len()
                    + request.target.len()
                    + headers
                    + request.body.weight()
                    + request.names.weight()
                    + 8
            }
            Self::Steps(steps) => steps.iter().map(Self::weight).sum::<usize>() + 4,
        }
    }
}

impl HttpBody {
    fn weight(&self) -> usize {
        match self {
            Self::None => 1,
            Self::Inline(bytes) => bytes.len() + 3,
            Self::File(file) => file.weight(),
        }
    }
}

impl Names {
    fn weight(&self) -> usize {
        match self {
            Self::Nothing => 1,
            Self::Makes(meta) | Self::Uses(meta) => meta.len() + 2,
        }
    }
}

impl Attachment {
    fn weight(&self) -> usize {
        self.name.len() + size_of::<Self>()
    }
}

/// Operations are shared between the log, the messages and the effects.
pub type SharedOperation = Arc<Operation>;
