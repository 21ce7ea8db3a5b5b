//! The HTTP API of an agent: for people, programs and the other agents.
//!
//! What must stay true:
//! - a handler asks the node and the others and words what they say; it decides nothing about
//!   operations;
//! - a request that another site has to answer is passed on at most once, so that none can go round
//!   in circles;
//! - an endpoint rejects query parameters that its description does not have;
//! - every error is `application/problem+json`, with what to do.

mod access;
mod audit;
mod audited;
mod catalogue;
mod changes;
mod door;
mod enter;
mod error;
mod federation;
pub mod form;
mod grid;
mod health;
mod held;
mod hooks;
pub mod model;
mod original;
mod parameters;
mod pass;
mod policy;
mod problems;
mod reading;
mod rehearse;
mod replicants;
mod resources;
mod rights;
mod serve;
mod show;
mod sites;
mod submit;
mod upload;
pub(crate) mod view;
pub mod who;

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request},
    http::{StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use cheops_core::{
    id::{ResourceId, SiteId},
    scope::Catalogue,
};
use tokio::sync::{Semaphore, watch};
use utoipa::OpenApi;
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouterExt},
    routes,
};

use self::parameters::Parameters;
pub(crate) use self::{
    audited::attended,
    catalogue::{answer_offer, is_offer, learn},
    door::Place,
    policy::admit,
    serve::{Listener, serve},
};
pub use self::{enter::Access, error::ApiError};
use crate::{
    audit::Audit,
    config::Config,
    federation::Federation,
    files::Files,
    hooks::Hooks,
    limits::{Buckets, Places},
    metrics::Metrics,
    node,
    peers::{Peers, State},
    policy::Gate,
    problems::Noted,
    replicants::Replicants,
    replication::Replication,
    run::Runner,
    trust::certificate::Certificate,
};

/// The longest body that is not a file, in bytes.
pub const MAX_BODY: usize = 2 << 20;

/// Where the description of the API is.
const DOCUMENT: &str = "/openapi.json";

/// All that the handlers need.
pub struct Context {
    /// What the agent was told when it started.
    pub config: Config,
    /// The node.
    pub node: node::Handle,
    /// The links to the other sites.
    pub peers: Peers,
    /// Who belongs, and how that changes.
    pub federation: Federation,
    /// What runs commands.
    pub runner: Runner,
    /// What decides which of them run here.
    pub gate: Gate,
    /// The files that operations bring.
    pub files: Files,
    /// The REST resources that this site has a part in.
    pub replicants: Arc<Replicants>,
    /// How this site tells people what happened.
    pub hooks: Hooks,
    /// Who may do what.
    pub access: Arc<Access>,
    /// What the API proves with that it is this agent, where it listens for others than this machine.
    pub certificate: Option<Arc<Certificate>>,
    /// What CouchDB's own replication asks of this agent, if records are kept there.
    pub(crate) replication: Option<Replication>,
    /// What was noted for an operator.
    pub noted: Noted,
    /// What is counted.
    pub metrics: Metrics,
    /// Who asked for what.
    pub audit: Audit,
    /// How often each one who asks has done so.
    pub rates: Mutex<Buckets>,
    /// When the agent started.
    pub started: Instant,
    /// The places of those who follow the change feed.
    pub feeds: Places,
    /// Whether the API is to stop: whoever would follow for ever ends then.
    pub stopping: watch::Receiver<bool>,
    /// Whose turn it is to rehearse: one at a time, since each copies its resource.
    pub rehearsals: Arc<Semaphore>,
    /// There may have been resources here of which nothing is left: what others have of a resource
    /// has to be heard before it is created here, or numbers would be used twice.
    pub wary: bool,
}

/// The context, for everyone.
pub type Shared = Arc<Context>;

impl Context {
    /// The name of this site.
    pub fn here(&self) -> &SiteId {
        &self.config.site
    }

    /// What is known of the sites now.
    pub fn catalogue(&self) -> Catalogue {
        self.peers.catalogue()
    }

    /// Other sites in the order in which to ask them: those that can be reached, the nearest first.
    pub fn reachable<'a>(&self, among: impl IntoIterator<Item = &'a SiteId>) -> Vec<SiteId> {
        let peers = self.peers.view();
        let among: Vec<&SiteId> = among.into_iter().collect();
        let mut found: Vec<_> = peers
            .iter()
            .filter(|p| p.state == State::Reachable && among.contains(&&p.site))
            .collect();
        found.sort_by_key(|peer| peer.round_trip.unwrap_or(std::time::Duration::MAX));
        found.into_iter().map(|peer| peer.site.clone()).collect()
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Cheops",
        description = "Makes the sites of an unmodified application work together.",
    ),
    tags(
        (name = "operations", description = "Ask for changes of resources"),
        (name = "resources", description = "Look at resources"),
        (name = "sites", description = "The sites and the links between them"),
        (name = "agent", description = "How the agent is doing"),
        (name = "access", description = "Who may do what"),
        (name = "hooks", description = "How a site tells people what happened"),
        (name = "policy", description = "What may run at a site"),
        (name = "original", description = "As the original program has it"),
    )
)]
struct Document;

/// All routes, and their description.
fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sites::list))
        .routes(routes!(sites::ping))
        .routes(routes!(catalogue::get))
        .routes(routes!(sites::pause))
        .routes(routes!(sites::resume))
        .routes(routes!(federation::get))
        .routes(routes!(federation::token))
        .routes(routes!(federation::join))
        .routes(routes!(federation::renew))
        .routes(routes!(federation::remove))
        .routes(routes!(held::list))
        .routes(routes!(held::adopt))
        .routes(routes!(held::discard))
        .routes(routes!(resources::list))
        .routes(routes!(grid::get))
        .routes(routes!(resources::get, submit::delete))
        .routes(routes!(submit::submit))
        .routes(routes!(replicants::list))
        .routes(routes!(replicants::get))
        .routes(routes!(resources::operation))
        .routes(routes!(resources::output))
        .routes(routes!(show::show))
        .routes(routes!(problems::list))
        .routes(routes!(problems::count))
        .routes(routes!(hooks::list, hooks::add))
        .routes(routes!(hooks::remove))
        .routes(routes!(hooks::test))
        .routes(routes!(policy::test))
        .routes(routes!(access::list, access::create))
        .routes(routes!(access::revoke))
        .routes(routes!(access::whoami, access::login, access::logout))
        .routes(routes!(changes::follow).layer(middleware::from_fn(numbered)))
        .routes(routes!(audit::list))
        .routes(routes!(audit::verify))
        .routes(routes!(upload::store))
        .routes(routes!(upload::content))
        .routes(routes!(original::exec).layer(DefaultBodyLimit::disable()))
        .routes(routes!(original::show))
        .routes(routes!(original::show_local))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
}

/// The API, for the listeners of this site and for the calls of other agents.
pub fn router(context: Shared) -> Router {
    let (router, document) = routes().split_for_parts();
    let parameters = Arc::new(Parameters::of(&document, DOCUMENT));
    // Its text takes a small part of the room.
    let document = Bytes::from(serde_json::to_vec(&document).unwrap_or_default());
    router
        .route(
            DOCUMENT,
            axum::routing::get(move || {
                let answer = ([(header::CONTENT_TYPE, "application/json")], document.clone());
                async move { answer }
            }),
        )
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state((context.clone(), parameters), count))
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(broken))
        .with_state(context)
}

/// Lets through what whoever asks has a right to and what its endpoint understands, and counts requests and how long
/// they take.
async fn count(
    axum::extract::State((context, parameters)): axum::extract::State<(Shared, Arc<Parameters>)>,
    request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let checked = rights::judge(&request)
        .and_then(|()| parameters.check(&method, request.uri(), request.extensions()));
    let response = match checked {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    context.metrics.answered(&method, response.status(), start.elapsed());
    response
}

/// Refuses to resume after an event whose id is no number, and so none of the feed.
async fn numbered(request: Request, next: Next) -> Response {
    let id = request.headers().get("last-event-id").map(|id| id.to_str().unwrap_or("?"));
    match id {
        Some(id) if id.parse::<u64>().is_err() => ApiError::bad(
            "bad-parameter",
            format!("`Last-Event-ID` is `{id}`, which is not the number of a change"),
            "send the `id` of the last event, or ask with since=0 for all that there is",
        )
        .into_response(),
        _ => next.run(request).await,
    }
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::not_found(
        "unknown-path",
        format!("there is nothing at {}", uri.path()),
        "see /openapi.json for the paths",
    )
}

async fn wrong_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "wrong-method",
        "this path exists, but not with this method",
        "see /openapi.json for the methods of each path",
    )
}

fn broken(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "broken",
        "the agent met a case that it was not made for",
        "look into its log, and report it",
    )
    .into_response()
}

/// A resource's id, from a path.
fn resource_id(text: &str) -> Result<ResourceId, ApiError> {
    Ok(text.parse()?)
}

/// A site that is known here.
fn known_site(context: &Context, text: &str) -> Result<SiteId, ApiError> {
    let site: SiteId = text.parse()?;
    if site == *context.here() || context.peers.knows(&site) {
        return Ok(site);
    }
    let hint = context
        .catalogue()
        .suggest(text)
        .unwrap_or_else(|| "see /api/v1/sites for the sites that are known".to_owned());
    Err(ApiError::not_found("unknown-site", format!("no site `{site}` is known here"), hint))
}
