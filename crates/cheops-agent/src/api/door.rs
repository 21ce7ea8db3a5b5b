//! Who may come in by the port for people and programs: not a web page of somebody else.
//!
//! There are no passwords yet, and a browser on the operator's machine reaches the loopback
//! interface. What must stay true: a page that did not come from this agent can't make the browser
//! ask for anything here, neither by its own name nor by one that was made to stand for a local
//! address; but a link to one of this agent's pages can be followed from anywhere, since a page that is
//! only looked at changes nothing, and whoever led there sees nothing of it. Programs, which send none of a
//! browser's headers, notice nothing. Other agents come over
//! their links and don't pass here.

use std::net::IpAddr;

use axum::{
    Router,
    extract::Request,
    http::{
        HeaderMap, Method, StatusCode, Uri, header,
        uri::{Authority, Scheme},
    },
    middleware::{self, Next},
    response::IntoResponse as _,
};

use super::error::{ApiError, ApiResult};

/// What a browser says of the page that a request comes from.
const SEC_FETCH_SITE: &str = "sec-fetch-site";
/// What it wants to do with the answer: show it as a page of its own, if these are `navigate` and
/// `document`.
const SEC_FETCH_MODE: &str = "sec-fetch-mode";
const SEC_FETCH_DEST: &str = "sec-fetch-dest";

/// What paths begin with that are not for people: some of these do something when they are only read.
const OF_PROGRAMS: [&str; 3] = ["/api/", "/exec", "/show"];

/// The API for whoever connects to this address.
pub(crate) fn guard(router: Router, address: IpAddr) -> Router {
    let loopback = address.is_loopback();
    let guard = move |request: Request, next: Next| async move {
        match judge(request.method(), request.uri(), request.headers(), loopback) {
            Ok(()) => next.run(request).await,
            Err(refusal) => refusal.into_response(),
        }
    };
    router.layer(middleware::from_fn(guard))
}

/// Whether a request may come in.
fn judge(method: &Method, uri: &Uri, headers: &HeaderMap, loopback: bool) -> ApiResult<()> {
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
        Some(origin) if !host.is_some_and(|host| is_own(origin, &host)) => {
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

/// Whether an origin is the host and port that were asked.
fn is_own(origin: &str, host: &Authority) -> bool {
    let Ok(origin) = origin.parse::<Uri>() else { return false };
    let default = match origin.scheme() {
        Some(scheme) if *scheme == Scheme::HTTP => 80,
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
    use super::*;

    const SITE: &str = "sec-fetch-site";

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
            let refused = judge(&Method::POST, &exec, &headers, loopback).err();
            let refused = refused.as_ref().map(|error| (error.0.status, error.0.kind.as_str()));
            assert_eq!(refused, expected.map(|kind| (403, kind)), "{loopback} {host} {more:?}");
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
            let judged = judge(&Method::GET, &target.parse().unwrap(), &HeaderMap::new(), true);
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
            let judged = judge(&method, &path.parse().unwrap(), &headers, true);
            assert_eq!(judged.is_ok(), expected, "{method} {path} {mode} {dest}");
        }
    }
}
