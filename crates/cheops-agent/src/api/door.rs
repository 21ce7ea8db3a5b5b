//! Who may come in by the port for people and programs: not a web page of somebody else.
//!
//! A browser on the operator's machine reaches the loopback interface, where nobody has to say who it is, and
//! one with a session brings its cookie by itself. What must stay true: a page that did not come from this agent can't make the browser
//! ask for anything here, neither by its own name nor by one that was made to stand for a local
//! address; but a link to one of this agent's pages can be followed from anywhere, since a page that is
//! only looked at changes nothing, and whoever led there sees nothing of it. Programs, which send none of a
//! browser's headers, notice nothing. Other agents come over
//! their links and don't pass here.
//!
//! Whoever comes in is known from then on (`enter`), and what flows to it ends when its token or its session does.
//! Whoever is not let in is counted by where it comes from, so that nobody can try for ever.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, HttpBody as _},
    extract::Request,
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header,
        uri::{Authority, Scheme},
    },
    response::{IntoResponse as _, Response},
};
use futures_util::StreamExt as _;
use tokio::time::sleep;

use super::{
    Context,
    audited::{address, not_let_in},
    enter::{Access, user_name},
    error::{ApiError, ApiResult},
    serve::Connected,
    who::{Door, Proof, Who, tell},
};
use crate::trust::people::now;

/// Where the system keeps the names of its users.
const USERS: &str = "/etc/passwd";
/// How often it is looked whether what flows to somebody may still.
const LOOK: Duration = Duration::from_millis(500);

/// Where a listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this machine only.
    Loopback,
    /// A Unix socket.
    Socket,
    /// Where others can reach it.
    Wide {
        /// Over TLS.
        secure: bool,
    },
}

/// What a browser says of the page that a request comes from.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
/// What it wants to do with the answer: show it as a page of its own, if these are `navigate` and
/// `document`.
const SEC_FETCH_MODE: &str = "sec-fetch-mode";
const SEC_FETCH_DEST: &str = "sec-fetch-dest";

/// What paths begin with that are not for people: some of these do something when they are only read.
const OF_PROGRAMS: [&str; 3] = ["/api/", "/exec", "/show"];

/// Lets a request in that comes to a listener: from then on it says who sends it, and the proof of that is
/// returned. If it may not come in, the answer is.
pub(super) async fn enter(
    context: &Context,
    place: Place,
    request: &mut Request,
) -> Result<Proof, Response> {
    let users = match place {
        Place::Socket => tokio::fs::read_to_string(USERS).await.unwrap_or_default(),
        Place::Loopback | Place::Wide { .. } => String::new(),
    };
    let door = door(place, request).map_err(ApiError::into_response)?;
    let who = match identify(&context.access, &door, &users, request) {
        Ok(who) => who,
        Err(refusal) => return Err(not_let_in(context, door, address(request), refusal)),
    };
    let proof = who.proof.clone();
    tell(request, who);
    Ok(proof)
}

/// The door by which a request comes.
fn door(place: Place, request: &Request) -> ApiResult<Door> {
    Ok(match place {
        Place::Loopback => Door::Loopback,
        Place::Wide { secure } => Door::Wide { secure },
        Place::Socket => {
            let connected = request.extensions().get::<Connected>();
            let Connected { uid } = *connected.ok_or_else(unknown_user)?;
            Door::Socket { uid }
        }
    })
}

/// Who sends a request, if it may come in. `users` are those that the system knows.
fn identify(access: &Access, door: &Door, users: &str, request: &Request) -> ApiResult<Who> {
    let (method, headers) = (request.method(), request.headers());
    without_credentials(request.uri(), headers)?;
    let name = match door {
        // No browser speaks over a Unix socket, and its host has no name.
        Door::Socket { uid } => user_name(users, *uid),
        Door::Loopback | Door::Wide { .. } | Door::Link(_) => {
            judge(method, request.uri(), headers, *door == Door::Loopback, access.secure)?;
            None
        }
    };
    access.identify(door.clone(), name, method, headers, says_same_origin(headers))
}

fn unknown_user() -> ApiError {
    ApiError::new(
        StatusCode::FORBIDDEN,
        "unknown-user",
        "the system does not say which user is at the other end of the socket",
        "use the address of the API instead",
    )
}

/// Whether a browser says that a request comes from a page of this agent. That it does not come from another
/// has been seen already; this tells a page from what says nothing.
fn says_same_origin(headers: &HeaderMap) -> bool {
    let site = headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes);
    site == Some(b"same-origin") || headers.contains_key(header::ORIGIN)
}

/// An answer that goes on and on ends with the token that it was asked for with, and with the session.
pub(super) fn while_counts(answer: Response, access: &Arc<Access>, proof: Proof) -> Response {
    if matches!(proof, Proof::Door | Proof::Site) {
        return answer;
    }
    answer.map(|body| {
        if body.size_hint().exact().is_some() {
            return body;
        }
        let access = access.clone();
        let over = async move {
            while counts(&access, &proof) {
                sleep(LOOK).await;
            }
        };
        Body::from_stream(body.into_data_stream().take_until(Box::pin(over)))
    })
}

/// Whether what somebody came in with still counts.
fn counts(access: &Access, proof: &Proof) -> bool {
    let granted = |token| access.grants.find(token, now()).is_ok();
    match proof {
        Proof::Door | Proof::Site => true,
        Proof::Token(token) => granted(token),
        Proof::Session { session, token } => {
            granted(token) && access.sessions.goes_on(session, Instant::now())
        }
    }
}

/// Refuses a target or a `Host` with a user name in it (RFC 9110, 4.2.4). What stands there is not repeated: it may be a
/// password.
fn without_credentials(uri: &Uri, headers: &HeaderMap) -> ApiResult<()> {
    let in_target = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    let in_host = |host: &HeaderValue| host.as_bytes().contains(&b'@');
    if in_target || headers.get_all(header::HOST).iter().any(in_host) {
        return Err(ApiError::bad(
            "bad-request",
            "there is a user name before the host, in the target of the request or in its Host",
            "leave it out, and send a token as Authorization: Bearer …",
        ));
    }
    Ok(())
}

/// Whether a request may come in. `secure`: over TLS, with which no page comes that has none.
fn judge(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    loopback: bool,
    secure: bool,
) -> ApiResult<()> {
    let several = |name: &HeaderName| headers.get_all(name).iter().nth(1).is_some();
    if several(&header::HOST) {
        return Err(foreign_host("two hosts at once"));
    }
    if several(&header::ORIGIN) {
        return Err(foreign_origin("from pages of two origins at once"));
    }
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let visits = *method == Method::GET
        && text(SEC_FETCH_MODE) == Some("navigate")
        && text(SEC_FETCH_DEST) == Some("document")
        && !OF_PROGRAMS.iter().any(|of_programs| uri.path().starts_with(of_programs));
    // HTTP/2 has it in the target.
    let named = uri.authority().map(Authority::as_str).or_else(|| text(header::HOST.as_str()));
    let host = named.and_then(|host| host.parse::<Authority>().ok());
    if let Some(named) = named.filter(|_| loopback)
        && !host.as_ref().is_some_and(is_local)
    {
        return Err(foreign_host(named));
    }
    if let Some(from @ ("cross-site" | "same-site")) = text(SEC_FETCH_SITE).filter(|_| !visits) {
        return Err(foreign_origin(&format!("from a page of another origin ({from})")));
    }
    match text(header::ORIGIN.as_str()) {
        Some(origin) if !host.is_some_and(|host| is_own(origin, &host, secure)) => {
            Err(foreign_origin(&format!("from a page of `{origin}`")))
        }
        _ => Ok(()),
    }
}

/// Whether this name can't have been made to stand for another address.
fn is_local(host: &Authority) -> bool {
    let host = host.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// Whether an origin is the host and port that were asked. A proxy may speak TLS before an agent that does not.
fn is_own(origin: &str, host: &Authority, secure: bool) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    let default = match origin.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP && !secure => 80,
        Some(scheme) if *scheme == Scheme::HTTPS => 443,
        _ => return false,
    };
    origin.authority().is_some_and(|origin| {
        origin.host().eq_ignore_ascii_case(host.host())
            && origin.port_u16().unwrap_or(default) == host.port_u16().unwrap_or(default)
    })
}

fn foreign_origin(whence: &str) -> ApiError {
    ApiError::new(
        StatusCode::FORBIDDEN,
        "foreign-origin",
        format!("the request comes {whence}, and this API serves no pages but its own"),
        "use the command line or curl, or open the address of the agent in the browser yourself",
    )
}

fn foreign_host(host: &str) -> ApiError {
    ApiError::new(
        StatusCode::FORBIDDEN,
        "foreign-host",
        format!(
            "the request is for `{host}`, and this API listens on loopback, which has no such name"
        ),
        "use http://127.0.0.1:8079, or localhost",
    )
}

#[cfg(test)]
mod tests {
    use cheops_core::{
        time::Millis,
        trust::people::{Grant, Role},
    };

    use super::*;
    use crate::{
        config::Entry,
        trust::{
            kept::Kept,
            people::{Grants as _, Token},
        },
    };

    const SITE: &str = "sec-fetch-site";

    #[test]
    fn credentials_in_a_target_or_a_host_are_refused() {
        for (target, host, fine) in [
            ("/a@b?c@d", "localhost", true),
            ("http://localhost/a@b", "localhost", true),
            ("http://ada:secret@localhost/", "localhost", false),
            ("http://@localhost/", "localhost", false),
            ("/", "ada@localhost", false),
        ] {
            let headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
            let judged = without_credentials(&target.parse().unwrap(), &headers);
            assert_eq!(judged.is_ok(), fine, "{target} {host}");
            if let Err(refused) = judged {
                assert!(!format!("{refused:?}").contains("secret"), "{target}");
            }
        }
    }

    #[test]
    fn only_pages_of_this_agent_and_programs_come_in() {
        for (loopback, host, more, expected) in [
            (true, "127.0.0.1:8079", &[][..], None),
            (true, "127.0.3.1:8079", &[], None),
            (true, "localhost:9000", &[], None),
            (true, "LocalHost", &[], None),
            (true, "[::1]:8079", &[], None),
            (true, "192.168.1.7:8079", &[], None),
            (true, "evil.example:8079", &[], Some("foreign-host")),
            (true, "localhost.evil.example", &[], Some("foreign-host")),
            (true, "127.0.0.1.evil.example", &[], Some("foreign-host")),
            (true, "", &[], Some("foreign-host")),
            (true, "a b", &[], Some("foreign-host")),
            (false, "site1.example:8079", &[], None),
            (true, "localhost:8079", &[(SITE, "none")], None),
            (true, "localhost:8079", &[(SITE, "same-origin")], None),
            (true, "localhost:8079", &[(SITE, "same-site")], Some("foreign-origin")),
            (true, "localhost:8079", &[(SITE, "cross-site")], Some("foreign-origin")),
            (false, "site1.example", &[(SITE, "cross-site")], Some("foreign-origin")),
            (true, "localhost:8079", &[("origin", "http://localhost:8079")], None),
            (true, "[::1]:8079", &[("origin", "http://[::1]:8079")], None),
            (false, "site1.example", &[("origin", "https://site1.example")], None),
            (false, "site1.example:443", &[("origin", "https://Site1.example")], None),
            (false, "site1.example", &[("origin", "http://site1.example:80")], None),
            (true, "localhost:8079", &[("origin", "http://localhost:80")], Some("foreign-origin")),
            (
                true,
                "localhost:8079",
                &[("origin", "http://127.0.0.1:8079")],
                Some("foreign-origin"),
            ),
            (true, "localhost:8079", &[("origin", "https://evil.example")], Some("foreign-origin")),
            (true, "localhost:8079", &[("origin", "null")], Some("foreign-origin")),
            (true, "localhost:8079", &[("origin", "file://")], Some("foreign-origin")),
            (true, "localhost:8079", &[("origin", "localhost:8079")], Some("foreign-origin")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            for (name, value) in more {
                headers.insert(*name, value.parse().unwrap());
            }
            let exec = Uri::from_static("/exec/x");
            let refused = judge(&Method::POST, &exec, &headers, loopback, false).err();
            let refused = refused.as_ref().map(|error| (error.0.status, error.0.kind.as_str()));
            assert_eq!(refused, expected.map(|kind| (403, kind)), "{loopback} {host} {more:?}");
        }
    }

    #[test]
    fn over_tls_no_page_comes_that_has_none_and_nobody_says_two_things() {
        for (secure, fields, expected) in [
            (true, &[("host", "a:8079"), ("origin", "https://a:8079")][..], true),
            (true, &[("host", "a:8079"), ("origin", "http://a:8079")], false),
            (false, &[("host", "a:8079"), ("origin", "http://a:8079")], true),
            (false, &[("host", "a:443"), ("origin", "https://a")], true),
            (false, &[("host", "a"), ("host", "b")], false),
            (false, &[("host", "a"), ("origin", "http://a"), ("origin", "http://b")], false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, value.parse().unwrap());
            }
            let exec = Uri::from_static("/exec/x");
            let judged = judge(&Method::POST, &exec, &headers, false, secure);
            assert_eq!(judged.is_ok(), expected, "{secure} {fields:?}");
        }
    }

    #[test]
    fn the_target_names_the_host_where_there_is_no_header() {
        for (target, expected) in [
            ("http://127.0.0.1:8079/x", true),
            ("http://evil.example/x", false),
            // HTTP/1.0, which no browser speaks.
            ("/x", true),
        ] {
            let judged =
                judge(&Method::GET, &target.parse().unwrap(), &HeaderMap::new(), true, false);
            assert_eq!(judged.is_ok(), expected, "{target}");
        }
    }

    #[test]
    fn links_to_pages_can_be_followed_from_anywhere() {
        for (method, path, mode, dest, expected) in [
            (Method::GET, "/", "navigate", "document", true),
            (Method::GET, "/resources/x", "navigate", "document", true),
            (Method::POST, "/", "navigate", "document", false),
            (Method::GET, "/", "navigate", "iframe", false),
            (Method::GET, "/", "no-cors", "image", false),
            (Method::GET, "/show/x", "navigate", "document", false),
            (Method::GET, "/api/v1/sites", "navigate", "document", false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("host", "localhost:8079"),
                (SITE, "cross-site"),
                (SEC_FETCH_MODE, mode),
                (SEC_FETCH_DEST, dest),
            ] {
                headers.insert(name, value.parse().unwrap());
            }
            let judged = judge(&method, &path.parse().unwrap(), &headers, true, false);
            assert_eq!(judged.is_ok(), expected, "{method} {path} {mode} {dest}");
        }
    }

    #[tokio::test]
    async fn what_flows_to_somebody_ends_with_the_token_and_with_the_session() {
        let data = tempfile::tempdir().unwrap();
        let grants = Arc::new(Kept::open(data.path(), now()).unwrap());
        let access = Arc::new(Access::new(
            &"site1".parse().unwrap(),
            data.path(),
            grants.clone(),
            &Entry::default(),
        ));
        let token = Token::make().unwrap().digest();
        let grant = Grant {
            name: "ada".parse().unwrap(),
            digest: token,
            role: Role::Viewer,
            issued: now(),
            expires: Millis(u64::MAX),
        };
        grants.grant(grant).await.unwrap();
        let begin = || access.sessions.begin(token, Instant::now()).unwrap().session();
        let (one, other) = (begin(), begin());
        let flow = |proof| {
            let endless = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
            while_counts(Response::new(Body::from_stream(endless)), &access, proof)
        };
        let ends = async |flow: Response| {
            tokio::time::timeout(4 * LOOK, flow.into_body().into_data_stream().next()).await.is_ok()
        };
        let of = |session| Proof::Session { session, token };
        let [first, second, by_token] = [of(one), of(other), Proof::Token(token)].map(&flow);
        access.sessions.end(&one);
        assert!(ends(first).await);
        assert!(!ends(flow(of(other))).await && !ends(flow(Proof::Token(token))).await);
        grants.revoke(token, now()).await.unwrap();
        assert!(ends(second).await && ends(by_token).await);
        assert!(!ends(flow(Proof::Door)).await);
    }
}
