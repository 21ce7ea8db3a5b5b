//! Who asks: what is known of whoever sent a request, and by what it is known.
//!
//! Each request has a [`Who`] among its extensions when it reaches the API: from the door that it came
//! through (`door`), or from the link of another site, which says for whom it asks. What must stay true:
//! - a request without one is refused, so that no way in can be forgotten;
//! - an author is what the door found out. What a client says of itself stands behind a colon, and only where
//!   nobody has to prove anything;
//! - what another site says of whom it asks for is read from a link, and from nowhere else;
//! - nobody looks after this site by way of another: whoever asks over a link is an operator at most.

use axum::{
    extract::{FromRequestParts, Request},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, request::Parts},
};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use cheops_core::{
    id::{Author, Kind, ResourceId, SiteId},
    trust::people::{Asked, Digest, Reach, Role, may},
};
use serde::{Deserialize, Serialize};

use super::{
    error::{ApiError, ApiResult},
    pass::PASSED_BY,
};
use crate::{peers::Caller, trust::people::Rights};

/// For whom another site asks.
const ASKED_BY: HeaderName = HeaderName::from_static("x-cheops-asked-by");

/// Whoever sent a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// As what it stands in the log.
    pub author: Author,
    /// What it may do; nothing if it has not said who it is and would have to.
    pub role: Option<Role>,
    /// Where it came in.
    pub door: Door,
    /// By what it is known.
    pub proof: Proof,
}

/// Where a request came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// From this machine.
    Loopback,
    /// Over the Unix socket, from a user with this number.
    Socket {
        /// The user.
        uid: u32,
    },
    /// From anywhere.
    Wide {
        /// Over TLS.
        secure: bool,
    },
    /// Over the link of another site.
    Link(SiteId),
}

/// By what somebody is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// By nothing but the door.
    Door,
    /// By a token, which has this digest.
    Token(Digest),
    /// By a session, which was begun with a token.
    Session {
        /// The digest of the session's own secret.
        session: Digest,
        /// That of the token.
        token: Digest,
    },
    /// Another site says so.
    Site,
}

impl Who {
    /// Somebody who has not said who it is.
    pub fn nobody(door: Door) -> Self {
        Self { author: Author::anonymous(), role: None, door, proof: Proof::Door }
    }

    /// Somebody who is known by the door alone, and may do everything.
    pub fn at(door: Door, name: &str) -> Self {
        Self { author: author(name), role: Some(Role::Admin), door, proof: Proof::Door }
    }

    /// The token that it has shown, or has begun its session with.
    pub fn token(&self) -> Option<&Digest> {
        match &self.proof {
            Proof::Token(token) | Proof::Session { token, .. } => Some(token),
            Proof::Door | Proof::Site => None,
        }
    }

    /// The author of an operation that it asks for. Where nobody has to prove anything, it may say what it
    /// calls itself.
    pub(super) fn author_of(&self, claimed: Option<&str>) -> ApiResult<Author> {
        let claimed = claimed.map(str::parse::<Author>).transpose()?;
        Ok(match (&self.door, &self.proof, claimed) {
            // An agent that vouches for nobody passes on what it was told.
            (Door::Link(_), Proof::Door, Some(claimed)) => claimed,
            (Door::Loopback | Door::Wide { .. }, Proof::Door, Some(claimed)) => {
                format!("{}:{claimed}", self.author).parse()?
            }
            _ => self.author.clone(),
        })
    }

    /// The site that it came to at first: this one, or the one that passes on what it asks for.
    pub(super) fn received_at<'a>(&'a self, here: &'a SiteId) -> &'a SiteId {
        match &self.door {
            Door::Link(site) => site,
            Door::Loopback | Door::Socket { .. } | Door::Wide { .. } => here,
        }
    }

    /// Whether it may do something; if not, why not.
    pub(super) fn may(&self, asked: &Asked<'_>) -> ApiResult<()> {
        let role = self.role.as_ref().ok_or_else(token_required)?;
        may(role, asked).map_err(|refused| {
            let (author, role) = (&self.author, role.as_str());
            ApiError::new(
                StatusCode::FORBIDDEN,
                "not-allowed",
                format!("`{author}` has the role {role}: {refused}"),
                "ask an admin for a token that allows it: `cheops access create`",
            )
        })
    }

    /// Whether it may ask for an operation of a resource at these sites.
    pub(super) fn may_operate(
        &self,
        resource: &ResourceId,
        kind: &Kind,
        sites: &[SiteId],
    ) -> ApiResult<()> {
        self.may(&Asked::Operation { resource, kind, sites })
    }

    /// Whether what it may do depends on the kinds.
    pub(super) fn is_held_to_kinds(&self) -> bool {
        matches!(&self.role, Some(Role::Operator(reach)) if reach.is_held_to_kinds())
    }

    /// Whether what it may do depends on the sites.
    pub(super) fn is_held_to_sites(&self) -> bool {
        matches!(&self.role, Some(Role::Operator(reach)) if !reach.sites.is_empty())
    }

    /// As what another site is told for whom this one asks.
    pub(super) fn vouched(&self) -> Option<HeaderValue> {
        let rights = Rights::of(self.role.as_ref()?);
        let told = Vouched { author: self.author.to_string(), rights };
        let told = serde_json::to_vec(&told).ok()?;
        HeaderValue::from_str(&BASE64_STANDARD.encode(told)).ok()
    }

    /// For whom another site asks.
    fn of_link(site: SiteId, headers: &HeaderMap) -> ApiResult<Self> {
        let (door, most) = (Door::Link(site), Role::Operator(Reach::default()));
        let Some(told) = headers.get(ASKED_BY) else {
            return Ok(Self { role: Some(most), ..Self::at(door, "site") });
        };
        let read = || {
            let told = BASE64_STANDARD.decode(told).ok()?;
            let Vouched { author, rights } = serde_json::from_slice(&told).ok()?;
            Some((author.parse().ok()?, rights.role().ok()?))
        };
        let (author, role) = read().ok_or_else(|| {
            let detail = "for whom the other site asks can't be read";
            ApiError::bad("bad-asker", detail, "are both agents of the same version?")
        })?;
        let role = if role == Role::Admin { most } else { role };
        Ok(Self { author, role: Some(role), door, proof: Proof::Site })
    }
}

/// What one site says to another of whom it asks for.
#[derive(Serialize, Deserialize)]
struct Vouched {
    author: String,
    #[serde(flatten)]
    rights: Rights,
}

/// A name of an author that is one of ours, and so well formed.
fn author(name: &str) -> Author {
    name.parse().unwrap_or_else(|_| Author::anonymous())
}

/// Whoever asks has to say who it is.
pub(super) fn token_required() -> ApiError {
    ApiError::new(
        StatusCode::UNAUTHORIZED,
        "token-required",
        "this needs a token, and there is none",
        "send `Authorization: Bearer TOKEN`, or log in at /login; `cheops access create` makes tokens, and needs none at the agent's Unix socket (--agent unix:DATA/api.sock)",
    )
}

/// Says of a request who sent it. What it says itself of that is taken off, and of having been passed on, if
/// it does not come from another site.
pub(super) fn tell(request: &mut Request, who: Who) {
    request.headers_mut().remove(ASKED_BY);
    if !matches!(who.door, Door::Link(_)) {
        request.headers_mut().remove(PASSED_BY);
    }
    request.extensions_mut().insert(who);
}

/// Says of a request that came over a link who sent it.
pub(crate) fn over_link(mut request: Request) -> ApiResult<Request> {
    let caller = request.extensions().get::<Caller>().cloned();
    let Caller(site) = caller.ok_or_else(token_required)?;
    let who = Who::of_link(site, request.headers())?;
    tell(&mut request, who);
    Ok(request)
}

/// Puts onto a request to another site for whom this one asks.
pub(super) fn vouch(headers: &mut HeaderMap, who: Option<&Who>) {
    if let Some(told) = who.and_then(Who::vouched) {
        headers.insert(ASKED_BY, told);
    }
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(token_required)
    }
}

#[cfg(test)]
mod tests {
    use cheops_core::pattern::Pattern;

    use super::*;

    fn known_by(door: Door, proof: Proof) -> Who {
        Who { author: author("ada"), role: Some(Role::Viewer), door, proof }
    }

    #[test]
    fn an_author_is_what_the_door_found_out() {
        let link = || Door::Link("site2".parse().unwrap());
        for (who, claimed, expected) in [
            (Who::at(Door::Loopback, "local"), None, "local"),
            (Who::at(Door::Loopback, "local"), Some("eve"), "local:eve"),
            (Who::at(Door::Wide { secure: false }, "anyone"), Some("eve"), "anyone:eve"),
            (Who::at(Door::Socket { uid: 0 }, "unix:root"), Some("eve"), "unix:root"),
            (known_by(Door::Loopback, Proof::Token([1; 32])), Some("eve"), "ada"),
            (
                known_by(Door::Loopback, Proof::Session { session: [1; 32], token: [2; 32] }),
                Some("eve"),
                "ada",
            ),
            (known_by(link(), Proof::Site), Some("eve"), "ada"),
            (Who::at(link(), "site"), Some("eve"), "eve"),
        ] {
            assert_eq!(who.author_of(claimed).unwrap().as_str(), expected, "{who:?}");
        }
        assert!(Who::at(Door::Loopback, "local").author_of(Some("\n")).is_err());
    }

    #[test]
    fn who_asked_is_the_same_at_the_site_that_it_is_passed_on_to() {
        let reach = Reach { resources: vec![Pattern::new("web-*")], ..Reach::default() };
        for role in [Role::Viewer, Role::Operator(reach)] {
            let first = Who { role: Some(role), ..known_by(Door::Loopback, Proof::Token([1; 32])) };
            let mut headers = HeaderMap::new();
            vouch(&mut headers, Some(&first));
            let there = Who::of_link("site1".parse().unwrap(), &headers).unwrap();
            assert_eq!((there.author, there.role), (first.author, first.role));
            assert_eq!(there.proof, Proof::Site);
        }
    }

    #[test]
    fn nobody_looks_after_a_site_by_way_of_another() {
        let admin = Who::at(Door::Loopback, "local");
        for asks_for in [None, Some(&admin)] {
            let mut headers = HeaderMap::new();
            vouch(&mut headers, asks_for);
            let there = Who::of_link("site1".parse().unwrap(), &headers).unwrap();
            assert!(there.may(&Asked::Manage).is_err(), "{asks_for:?}");
            assert!(there.may(&Asked::Prepare).is_ok(), "{asks_for:?}");
        }
    }

    #[test]
    fn what_a_site_says_of_an_asker_and_makes_no_sense_is_refused() {
        for told in ["", "e30=", "!", "bm90IGpzb24="] {
            let mut headers = HeaderMap::new();
            headers.insert(ASKED_BY, told.parse().unwrap());
            assert!(Who::of_link("site1".parse().unwrap(), &headers).is_err(), "{told}");
        }
    }

    #[test]
    fn only_another_site_passes_requests_on() {
        let link = Door::Link("site2".parse().unwrap());
        for (door, believed) in [
            (Door::Loopback, false),
            (Door::Socket { uid: 0 }, false),
            (Door::Wide { secure: true }, false),
            (link, true),
        ] {
            let mut request = Request::new(axum::body::Body::empty());
            request.headers_mut().insert(PASSED_BY, HeaderValue::from_static("site2"));
            tell(&mut request, Who::at(door.clone(), "ada"));
            let passed = crate::api::pass::was_passed(request.headers());
            assert_eq!(passed, believed, "{door:?}");
        }
    }

    #[test]
    fn what_a_client_says_of_whom_it_asks_for_does_not_count() {
        let mut request = Request::new(axum::body::Body::empty());
        vouch(request.headers_mut(), Some(&Who::at(Door::Loopback, "root")));
        tell(&mut request, Who::nobody(Door::Loopback));
        assert!(request.headers().is_empty());
        // Without a link there is nobody who could vouch.
        assert!(over_link(request).is_err());
    }
}
