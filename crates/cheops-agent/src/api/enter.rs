//! Authenticates API requests: finds out which principal sends a request, and with which role.
//!
//! Invariants:
//! - an invalid token is rejected, also where no token is required: a client that sends one expects its role;
//! - a session is valid as long as its token is, and a request of a session that changes something must come
//!   from a page of this agent;
//! - on the Unix socket, the operating system names the user. The agent's own user and root never need a
//!   token: they can read and change the agent's files anyway.

use std::{path::Path, sync::Arc, time::Instant};

use axum::http::{HeaderMap, Method, StatusCode, header};
use cheops_core::{
    id::SiteId,
    trust::people::{Digest, Grant, Invalid},
};

use super::{
    error::{ApiError, ApiResult},
    who::{Door, Proof, Who},
};
use crate::{
    config::Entry,
    trust::{
        people::{Grants, Token, TokenError, now},
        sessions::Sessions,
    },
};

/// What authentication at this site depends on.
pub struct Access {
    /// The tokens, and the role of each.
    pub grants: Arc<dyn Grants>,
    /// The sessions of browsers.
    pub sessions: Sessions,
    /// The name of the session cookie. Browsers send a cookie to all ports of a host, and a machine may have
    /// several agents.
    pub cookie: String,
    /// Whether clients on this machine need a token, too.
    pub required: bool,
    /// Whether clients on other machines need no token.
    pub insecure: bool,
    /// Whether the API uses TLS. Cookies are then sent over TLS only.
    pub secure: bool,
    /// The user that the agent runs as.
    pub user: u32,
}

impl Access {
    /// For the site with this name and data directory.
    pub fn new(site: &SiteId, data: &Path, grants: Arc<dyn Grants>, entry: &Entry) -> Self {
        // Two agents of one site have different data directories.
        let data = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
        let named = format!("{site}\n{}", data.display());
        let hash = blake3::hash(named.as_bytes()).to_hex();
        Self {
            grants,
            sessions: Sessions::default(),
            cookie: format!("cheops_{}", &hash[..8]),
            required: entry.tokens_required,
            insecure: entry.insecure,
            secure: entry.certificate.is_some(),
            user: rustix::process::getuid().as_raw(),
        }
    }

    /// The grant of the token with this digest.
    pub(super) fn grant_of(&self, digest: &Digest) -> ApiResult<Grant> {
        self.grants.find(digest, now()).map_err(|invalid| {
            let (kind, detail) = match invalid {
                Invalid::Unknown => ("unknown-token", "this site knows no such token"),
                Invalid::Revoked => ("revoked-token", "the token was revoked"),
                Invalid::Expired => ("expired-token", "the token has expired"),
            };
            let hint = "ask an admin for another: `cheops access create`";
            ApiError::new(StatusCode::UNAUTHORIZED, kind, detail, hint)
        })
    }

    /// The grant of a token, from its text.
    pub(crate) fn grant_of_text(&self, text: &str) -> ApiResult<Grant> {
        let token: Token = text.parse().map_err(token_error)?;
        self.grant_of(&token.digest())
    }

    /// Finds out which principal sends a request. `name` is the user name of a client on the Unix socket.
    pub(super) fn identify(
        &self,
        door: Door,
        name: Option<&str>,
        method: &Method,
        headers: &HeaderMap,
        same_origin: bool,
    ) -> ApiResult<Who> {
        if let Some(given) = headers.get(header::AUTHORIZATION) {
            let given = given.to_str().ok().and_then(|text| text.split_once(' '));
            let bearer = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let (_, text) = bearer.ok_or_else(|| token_error(TokenError::Other))?;
            let token: Token = text.parse().map_err(token_error)?;
            let digest = token.digest();
            return Ok(Self::known(door, self.grant_of(&digest)?, Proof::Token(digest)));
        }
        if let Some((session, token)) = self.session(headers)
            && let Ok(grant) = self.grant_of(&token)
        {
            let reads = matches!(*method, Method::GET | Method::HEAD);
            if !reads && !same_origin {
                return Err(forged());
            }
            return Ok(Self::known(door, grant, Proof::Session { session, token }));
        }
        Ok(self.unproved(door, name))
    }

    fn known(door: Door, grant: Grant, proof: Proof) -> Who {
        Who { author: grant.name.author().clone(), role: Some(grant.role), door, proof }
    }

    /// The session that a request belongs to, and the token that it was begun with.
    fn session(&self, headers: &HeaderMap) -> Option<(Digest, Digest)> {
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookies = cookies.flat_map(|text| text.split(';'));
        let mut ours = cookies.filter_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == self.cookie).then(|| value.parse::<Token>().ok())?
        });
        ours.find_map(|id| Some((id.session(), self.sessions.find(&id, Instant::now())?)))
    }

    /// The principal of a request without a token and without a session.
    fn unproved(&self, door: Door, name: Option<&str>) -> Who {
        match door {
            Door::Loopback if !self.required => Who::at(door, "local"),
            Door::Socket { uid } if !self.required || uid == self.user || uid == 0 => {
                let name = name.map_or_else(|| uid.to_string(), str::to_owned);
                Who::at(door, &format!("unix:{name}"))
            }
            Door::Wide { .. } if self.insecure && !self.required => Who::at(door, "anyone"),
            door => Who::nobody(door),
        }
    }
}

/// The error for a text that is not a token.
pub(super) fn token_error(error: TokenError) -> ApiError {
    let hint = match error {
        TokenError::Other => "send `Authorization: Bearer TOKEN`; `cheops access create` makes one",
        TokenError::Broken => "copy all of it: 55 letters, from `cheops_` on",
    };
    ApiError::new(StatusCode::UNAUTHORIZED, "bad-token", error.to_string(), hint)
}

fn forged() -> ApiError {
    ApiError::new(
        StatusCode::FORBIDDEN,
        "foreign-origin",
        "the request has the cookie of a session, and does not say that it comes from a page of this agent",
        "programs send `Authorization: Bearer TOKEN` instead of a cookie",
    )
}

/// The name of a user, from the content of `/etc/passwd`.
pub(super) fn user_name(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use cheops_core::{
        time::Millis,
        trust::people::{People, Role},
    };
    use futures_util::future::BoxFuture;

    use super::*;
    use crate::trust::people::GrantsError;

    /// A list in memory.
    struct InMemory(Mutex<People>);

    impl Grants for InMemory {
        fn find(&self, digest: &Digest, now: Millis) -> Result<Grant, Invalid> {
            self.0.lock().unwrap().find(digest, now).cloned()
        }

        fn all(&self) -> Vec<(Grant, Option<Millis>)> {
            Vec::new()
        }

        fn grant(&self, grant: Grant) -> BoxFuture<'_, Result<(), GrantsError>> {
            self.0.lock().unwrap().grant(grant);
            Box::pin(async { Ok(()) })
        }

        fn revoke(&self, digest: Digest, at: Millis) -> BoxFuture<'_, Result<(), GrantsError>> {
            self.0.lock().unwrap().revoke(digest, at);
            Box::pin(async { Ok(()) })
        }
    }

    const MINE: u32 = 1_000;

    fn access(required: bool, insecure: bool) -> Access {
        let grants = Arc::new(InMemory(Mutex::default()));
        let entry = Entry { tokens_required: required, insecure, certificate: None };
        Access {
            user: MINE,
            ..Access::new(&"site1".parse().unwrap(), Path::new("/data"), grants, &entry)
        }
    }

    async fn given(access: &Access, name: &str, expires: Millis) -> Token {
        let token = Token::make().unwrap();
        let grant = Grant {
            name: name.parse().unwrap(),
            digest: token.digest(),
            role: Role::Viewer,
            issued: Millis(0),
            expires,
        };
        access.grants.grant(grant).await.unwrap();
        token
    }

    fn ask(access: &Access, door: Door, headers: &[(&str, &str)]) -> Result<Who, String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(axum::http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let who = access.identify(door, Some("ada"), &Method::POST, &map, true);
        who.map_err(|error| error.0.kind)
    }

    #[test]
    fn a_request_without_a_token_is_authenticated_by_its_entrance() {
        let (secure, insecure) = (Door::Wide { secure: true }, Door::Wide { secure: false });
        let socket = |uid| Door::Socket { uid };
        for (required, anyone, door, expected) in [
            (false, false, Door::Loopback, Some("local")),
            (true, false, Door::Loopback, None),
            (false, false, socket(7), Some("unix:ada")),
            (true, false, socket(7), None),
            (true, false, socket(MINE), Some("unix:ada")),
            (true, false, socket(0), Some("unix:ada")),
            (false, false, secure, None),
            (false, false, insecure.clone(), None),
            (true, true, insecure.clone(), None),
            (false, true, insecure, Some("anyone")),
        ] {
            let who = ask(&access(required, anyone), door.clone(), &[]).unwrap();
            let name = who.role.as_ref().map(|_| who.author.as_str());
            assert_eq!(name, expected, "{required} {door:?}");
        }
    }

    #[tokio::test]
    async fn an_invalid_token_is_rejected_even_where_none_is_required() {
        let access = access(false, false);
        let good = given(&access, "ada", Millis(u64::MAX)).await.reveal();
        let revoked = given(&access, "bob", Millis(u64::MAX)).await;
        access.grants.revoke(revoked.digest(), Millis(1)).await.unwrap();
        let expired = given(&access, "eve", Millis(1)).await.reveal();
        let unknown = Token::make().unwrap().reveal();
        let cut = &good[..good.len() - 3];
        for (sent, expected) in [
            (format!("Bearer {good}"), Ok("ada")),
            (format!("bearer {good}"), Ok("ada")),
            (format!("Bearer {}", revoked.reveal()), Err("revoked-token")),
            (format!("Bearer {expired}"), Err("expired-token")),
            (format!("Bearer {unknown}"), Err("unknown-token")),
            (format!("Bearer {cut}"), Err("bad-token")),
            (format!("Basic {good}"), Err("bad-token")),
            (good.clone(), Err("bad-token")),
            (String::new(), Err("bad-token")),
        ] {
            let who = ask(&access, Door::Loopback, &[("authorization", &sent)]);
            let who = who.as_ref().map(|who| who.author.as_str()).map_err(String::as_str);
            assert_eq!(who, expected, "{sent}");
        }
    }

    #[tokio::test]
    async fn a_session_is_its_token_and_no_longer() {
        let access = access(true, false);
        let token = given(&access, "ada", Millis(u64::MAX)).await;
        let id = access.sessions.begin(token.digest(), Instant::now()).unwrap().reveal();
        let cookie = format!("a=b; {}={id}", access.cookie);
        let ours = [("cookie", cookie.as_str())];
        let who = ask(&access, Door::Loopback, &ours).unwrap();
        assert_eq!(who.author.as_str(), "ada");
        // A token in the place of the session's id is none.
        let other = format!("{}={}", access.cookie, token.reveal());
        assert_eq!(ask(&access, Door::Loopback, &[("cookie", &other)]).unwrap().role, None);
        let foreign = format!("other={id}");
        assert_eq!(ask(&access, Door::Loopback, &[("cookie", &foreign)]).unwrap().role, None);
        // And the id of a session is no token.
        let bearer = format!("Bearer {id}");
        let refused = ask(&access, Door::Loopback, &[("authorization", &bearer)]);
        assert_eq!(refused.unwrap_err(), "unknown-token");
        access.grants.revoke(token.digest(), Millis(1)).await.unwrap();
        assert_eq!(ask(&access, Door::Loopback, &ours).unwrap().role, None);
    }

    #[tokio::test]
    async fn a_session_changes_nothing_from_a_page_of_somebody_else() {
        let access = access(true, false);
        let token = given(&access, "ada", Millis(u64::MAX)).await;
        let id = access.sessions.begin(token.digest(), Instant::now()).unwrap().reveal();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, format!("{}={id}", access.cookie).parse().unwrap());
        for (method, same_origin, ok) in [
            (Method::GET, false, true),
            (Method::POST, true, true),
            (Method::POST, false, false),
            (Method::DELETE, false, false),
        ] {
            let who = access.identify(Door::Loopback, None, &method, &headers, same_origin);
            assert_eq!(who.is_ok(), ok, "{method} {same_origin}");
        }
    }

    #[test]
    fn agents_of_one_machine_have_a_cookie_each() {
        let cookie = |site: &str, data: &str| {
            let grants = Arc::new(InMemory(Mutex::default()));
            let site = site.parse().unwrap();
            Access::new(&site, Path::new(data), grants, &Entry::default()).cookie
        };
        assert_eq!(cookie("site1", "/a"), cookie("site1", "/a"));
        assert_ne!(cookie("site1", "/a"), cookie("site1", "/b"));
        assert_ne!(cookie("site1", "/a"), cookie("site2", "/a"));
    }

    #[test]
    fn users_have_names() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\n:x:5:\nbad\nada:x:1000:1000::/home/ada:/bin/sh\n";
        for (uid, expected) in [(0, Some("root")), (1_000, Some("ada")), (5, None), (7, None)] {
            assert_eq!(user_name(users, uid), expected, "{uid}");
        }
    }
}
