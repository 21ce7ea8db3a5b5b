//! Passing a request on to a site that can answer it.
//!
//! What must stay true: what was passed on carries a mark, and is not passed on again; nobody waits
//! for a site for ever, even if its link holds.

use std::{pin::pin, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header},
    response::Response,
};
use cheops_core::{
    duration,
    id::{ResourceId, SiteId},
};
use futures_util::{
    future::join_all,
    stream::{self, StreamExt as _},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::{
    Context,
    error::{ApiError, ApiResult},
    model::{ResourceQuery, Resources, ResourcesQuery},
    submit::expect_ok,
    who::{Who, vouch},
};

/// The site that passed a request on.
pub(super) const PASSED_BY: HeaderName = HeaderName::from_static("x-cheops-passed-by");

/// How long a site may take to answer what it knows by heart.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How long a site may take until its answer begins, if it has to wait for nobody.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// The fewest bytes of a file that have to reach a site in a second.
const SLOWEST: u64 = 64 << 10;
/// How many sites are asked the same at the same time. Enough that those that are far away cost one round
/// trip after the other only where there are very many; few enough that other questions find their way.
const AT_ONCE: usize = 24;
/// The longest answer that is read whole, in bytes.
const MAX_ANSWER: usize = 32 << 20;

/// What may stand in a path as it is.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Whether a request was passed on already. Only another site says so (`who::tell`).
pub(super) fn was_passed(headers: &HeaderMap) -> bool {
    headers.contains_key(PASSED_BY)
}

/// A text as part of a path.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, PATH).to_string()
}

/// A request to another agent.
fn request(context: &Context, method: Method, path: &str) -> ApiResult<Request<Body>> {
    let by = encode(context.here().as_str());
    let by = HeaderValue::from_str(&by).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
    Request::builder()
        .method(method)
        .uri(path)
        .header(PASSED_BY, by)
        .body(Body::empty())
        .map_err(|error| ApiError::bad("bad-path", error.to_string(), "use a shorter one"))
}

/// Asks a site, and gives its answer as it is.
pub(super) async fn get(context: &Context, site: &SiteId, path: &str) -> ApiResult<Response> {
    call(context, site, request(context, Method::GET, path)?, ANSWER).await
}

/// Sends a request to a site, whose answer has to begin in time.
async fn call(
    context: &Context,
    site: &SiteId,
    request: Request<Body>,
    limit: Duration,
) -> ApiResult<Response> {
    let answered = timeout(limit, context.peers.call(site, request)).await;
    Ok(answered.map_err(|_| late(site, limit))??)
}

/// A site that was asked, and did not answer in time.
pub(super) fn late(site: &SiteId, limit: Duration) -> ApiError {
    let limit = duration::print(limit);
    ApiError::late(format!(
        "`{site}`, which the request was passed on to, has a link to this site but did not answer within {limit}"
    ))
}

/// Asks a site something that it can answer at once, and reads the answer.
pub(super) async fn ask<T: DeserializeOwned>(
    context: &Context,
    site: &SiteId,
    path: &str,
) -> ApiResult<T> {
    read(site, get(context, site, path)).await
}

/// Tells a site something that it can answer at once with something of the same kind.
pub(super) async fn exchange<T: Serialize + DeserializeOwned>(
    context: &Context,
    site: &SiteId,
    path: &str,
    told: &T,
) -> ApiResult<T> {
    read(site, post(context, None, site, path, "application/json", told, ANSWER)).await
}

/// Reads the answer of a site, which is to be there soon.
async fn read<T: DeserializeOwned>(
    site: &SiteId,
    answer: impl Future<Output = ApiResult<Response>>,
) -> ApiResult<T> {
    let asked = async {
        let response = expect_ok(answer.await?).await?;
        let body = to_bytes(response.into_body(), MAX_ANSWER).await.ok();
        body.and_then(|body| serde_json::from_slice(&body).ok()).ok_or_else(|| {
            ApiError::unreachable(format!("`{site}` gave no answer that makes sense"))
        })
    };
    let silent = |_| ApiError::unreachable(format!("`{site}` did not answer in time"));
    timeout(PATIENCE, asked).await.map_err(silent)?
}

/// Asks sites the same, each for as long as it may take, and all of them for so long at most; the answers are
/// in the order of the sites.
pub(super) async fn ask_all<T: DeserializeOwned>(
    context: &Context,
    sites: &[(SiteId, Duration)],
    path: &str,
    limit: Duration,
) -> Vec<ApiResult<T>> {
    let late = |site: &SiteId| ApiError::unreachable(format!("`{site}` did not answer in time"));
    let mut answers: Vec<ApiResult<T>> = sites.iter().map(|(site, _)| Err(late(site))).collect();
    // All of them now: a closure that makes futures as they are taken can't be sent between threads.
    let asked: Vec<_> = (sites.iter().enumerate())
        .map(|(n, (site, patience))| async move {
            (n, timeout(*patience, ask::<T>(context, site, path)).await)
        })
        .collect();
    let mut asked = pin!(stream::iter(asked).buffer_unordered(AT_ONCE));
    let all = async {
        while let Some((n, answer)) = asked.next().await {
            if let Ok(answer) = answer {
                answers[n] = answer;
            }
        }
    };
    // Whoever has not answered by then is late.
    let _ = timeout(limit, all).await;
    answers
}

/// Sends JSON to a site, and gives its answer as it is, if it begins in time. It is asked for somebody, whom
/// this site vouches for, or for this site itself.
pub(super) async fn post(
    context: &Context,
    who: Option<&Who>,
    site: &SiteId,
    path: &str,
    accept: &'static str,
    body: &impl Serialize,
    limit: Duration,
) -> ApiResult<Response> {
    let mut request = request(context, Method::POST, path)?;
    let json = HeaderValue::from_static("application/json");
    vouch(request.headers_mut(), who);
    request.headers_mut().insert(header::CONTENT_TYPE, json);
    request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(accept));
    *request.body_mut() = Body::from(serde_json::to_vec(body).unwrap_or_default());
    call(context, site, request, limit).await
}

/// Sends a body of so many bytes as it is to a site.
pub(super) async fn send(
    context: &Context,
    site: &SiteId,
    path: &str,
    body: Body,
    length: u64,
) -> ApiResult<Response> {
    let mut request = request(context, Method::POST, path)?;
    *request.body_mut() = body;
    call(context, site, request, ANSWER + Duration::from_secs(length / SLOWEST)).await
}

/// What the other sites say of a resource.
pub(super) struct Told {
    /// Those that know it, the nearest first.
    pub(super) knowing: Vec<SiteId>,
    /// Those that could not be asked, or did not answer in time.
    pub(super) silent: Vec<SiteId>,
}

/// Asks all other sites at once whether they know a resource.
pub(super) async fn who_knows(context: &Context, id: &ResourceId, patience: Duration) -> Told {
    let peers = context.peers.sites();
    let reachable = context.reachable(&peers);
    let path = format!("/api/v1/resources?prefix={id}&limit=1");
    let asked = reachable.iter().map(async |site| {
        let answer = timeout(patience, ask::<Resources>(context, site, &path)).await;
        answer.ok().and_then(Result::ok)
    });
    let answers = join_all(asked).await;
    let knows = |answer: &Resources| {
        answer.resources.first().is_some_and(|resource| resource.id == id.as_str())
    };
    let mut told = Told { knowing: Vec::new(), silent: Vec::new() };
    told.silent.extend(peers.into_iter().filter(|site| !reachable.contains(site)));
    for (site, answer) in reachable.into_iter().zip(answers) {
        match answer {
            Some(answer) if knows(&answer) => told.knowing.push(site),
            Some(_) => {}
            None => told.silent.push(site),
        }
    }
    told
}

/// A site that knows a resource: the nearest that says so.
pub(super) async fn find(context: &Context, id: &ResourceId) -> ApiResult<SiteId> {
    let Told { knowing, silent } = who_knows(context, id, PATIENCE).await;
    let not_asked: Vec<String> = silent.iter().map(ToString::to_string).collect();
    knowing.into_iter().next().ok_or_else(|| ApiError::no_resource(id.as_str(), &not_asked))
}

impl ResourceQuery {
    /// The same question, for the site that is to answer it itself.
    pub(super) fn without_at(&self, path: &str) -> String {
        let before = self.before.as_deref().map(|op| format!("&before={}", encode(op)));
        let limit = self.limit.map(|limit| format!("&limit={limit}"));
        let printed = self.printed.map(|printed| format!("&printed={printed}"));
        let rest: String = [limit, before, printed].into_iter().flatten().collect();
        format!("{path}?local=true{rest}")
    }
}

impl ResourcesQuery {
    /// The same question, for the site that is to answer it itself.
    pub(super) fn without_at(&self, path: &str) -> String {
        let state = self.state.map(super::view::word);
        let limit = self.limit.map(|limit| limit.to_string());
        let asked = [
            ("limit", limit.as_deref()),
            ("after", self.after.as_deref()),
            ("prefix", self.prefix.as_deref()),
            ("contains", self.contains.as_deref()),
            ("state", state.as_deref()),
            ("site", self.site.as_deref()),
        ];
        query(path, asked)
    }
}

/// A path with those of the parameters that there are.
pub(super) fn query<'a>(
    path: &str,
    parameters: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> String {
    let given = parameters.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let given: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", encode(value))).collect();
    format!("{path}?{}", given.join("&"))
}
