//! What this site answers to those who want to join, and to those who bring news.
//!
//! What must stay true: a guest learns anything about who belongs only if it has a token, and all of it
//! only if it is let in; what is refused says why, and does not spend a token.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, to_bytes},
    http::{Request, Response, StatusCode, header},
    response::IntoResponse as _,
};
use cheops_core::{
    id::SiteId,
    trust::{Claim, Roster, Standing},
};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{Federation, JOIN, STATEMENTS, Shared, address_of, introduce::INTRODUCTIONS};
use crate::{
    api::ApiError,
    audit::Event,
    config,
    node::Stopping,
    peers::{Caller, Guest},
    trust::{ledger::Heard, token::Spent, word::Signed},
};

/// What a site is told whose key was removed.
pub(super) const REMOVED: &str = "removed-key";
/// What one is told whose name is that of another, or that has another key there.
pub(super) const TAKEN: &str = "name-taken";
/// What one is told that has not the key by which its token was used.
pub(super) const USED: &str = "token-used";

/// How long to wait for sites that have yet to say how far they knew one that was removed.
const VOUCHING: Duration = Duration::from_secs(5);

/// The longest question of a guest that wants to join, of a site with news, and of a guest with news.
const LONGEST_JOIN: usize = 4 << 10;
const LONGEST_NEWS: usize = 16 << 20;
pub(super) const LONGEST_OF_GUESTS: usize = 256 << 10;

/// What two sites tell each other: how far each has heard whom, and what the other lacks.
#[derive(Serialize, Deserialize)]
pub(super) struct News {
    pub(super) root: [u8; 32],
    pub(super) heard: Vec<([u8; 32], u64)>,
    pub(super) words: Vec<Signed>,
}

impl News {
    pub(super) fn heard(&self) -> Heard {
        let key = |bytes: &[u8; 32]| cheops_core::trust::PublicKey::from_bytes(*bytes);
        self.heard.iter().map(|(bytes, number)| (key(bytes), *number)).collect()
    }
}

impl Federation {
    /// Whether a request of another agent is about who belongs.
    pub fn is_for<T>(request: &Request<T>) -> bool {
        [JOIN, STATEMENTS, INTRODUCTIONS].contains(&request.uri().path())
    }

    /// Answers such a request: of a site, or of a guest.
    pub async fn answer(self, request: Request<Body>) -> Response<Body> {
        let site = request.extensions().get::<Caller>().map(|Caller(site)| site.clone());
        let guest = request.extensions().get::<Guest>().cloned();
        let answered = match (request.uri().path(), guest) {
            (JOIN, Some(guest)) => return self.join_in(request.into_body(), guest).await,
            (STATEMENTS, guest) => self.exchange(request.into_body(), site, guest).await,
            (INTRODUCTIONS, None) => self.introductions(request.into_body()).await,
            _ => Err(ApiError::not_found("unknown-path", "there is nothing here", "join first")),
        };
        respond(answered)
    }

    /// Lets a guest in that wants to join, or not. The answer has what the audit is to say of it.
    async fn join_in(&self, body: Body, guest: Guest) -> Response<Body> {
        let request = asked(body).await;
        let site = request.as_ref().map_or("?", |request| &request.site).to_owned();
        let (from, subject) = (guest.from.to_string(), format!("{site} {}", guest.key));
        let admitted = match request {
            Ok(request) => self.consider(request, guest).await,
            Err(error) => Err(error),
        };
        let refused = admitted.as_ref().err().map(|error| (error.0.status, error.0.kind.clone()));
        let event = Event::join(from, subject, refused);
        let mut response = respond(admitted);
        response.extensions_mut().insert(event);
        response
    }

    /// Lets a guest in that has a token, when it can be.
    async fn consider(&self, request: super::Request, guest: Guest) -> Result<Vec<u8>, ApiError> {
        // Before anything else is told, or waited for.
        let (tokens, here) = (&self.shared.tokens, self.shared.members.here());
        let looked = tokens.look(&request.proof, &guest.key, self.now());
        looked.map_err(|why| spent(&why, here))?;
        let is_new = |roster: &Roster| !roster.members().contains_key(&guest.key);
        if self.ledger().read(is_new).unwrap_or(false) {
            self.all_have_vouched(&request).await?;
        }
        // To its end, even if the guest is gone by then: it waits for the disk.
        let this = self.clone();
        let admitted = tokio::task::spawn_blocking(move || this.admit(&request, &guest));
        admitted.await.map_err(|_| Stopping)?
    }

    /// Waits for a while until all sites have said how far they knew one that was removed and wants to come
    /// back: then the line can be drawn.
    async fn all_have_vouched(&self, request: &super::Request) -> Result<(), ApiError> {
        let site: SiteId = request.site.parse()?;
        self.vouch().await.map_err(unwritten)?;
        let end = Instant::now() + VOUCHING;
        loop {
            let awaited = self.ledger().read(|roster| roster.awaited_about(&site));
            let awaited = awaited.unwrap_or_default();
            if awaited.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                let names: Vec<String> = awaited.iter().map(|site| format!("`{site}`")).collect();
                let names = names.join(", ");
                return Err(ApiError::new(
                    StatusCode::CONFLICT,
                    "not-heard-yet",
                    format!(
                        "`{site}` was removed, and it is not known yet what {names} had of it: nobody can say which of its operations count"
                    ),
                    format!(
                        "join again when {names} can be reached; or remove what will not come back"
                    ),
                ));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Lets a guest in, if it has a token that is good.
    fn admit(&self, request: &super::Request, guest: &Guest) -> Result<Vec<u8>, ApiError> {
        let site: SiteId = request.site.parse()?;
        if let Some(certified) = guest.site.as_ref().filter(|certified| **certified != site) {
            return Err(unreadable(format!(
                "its certificate is that of `{certified}`, not of `{site}`"
            )));
        }
        if request.address.as_ref().is_some_and(|address| !config::is_address(address)) {
            return Err(unreadable("its address is not HOST:PORT"));
        }
        let Shared { members, tokens, admitting, .. } = &*self.shared;
        // Of two that come at the same time under one name, the second is told.
        let _turn = admitting.lock().unwrap_or_else(PoisonError::into_inner);
        let (ledger, now) = (self.ledger(), self.now());
        let no_good = |why: Spent| spent(&why, members.here());
        // Before anything else is told.
        tokens.look(&request.proof, &guest.key, now).map_err(no_good)?;
        let alone = || no_good(Spent::Foreign);
        let standing = ledger.read(|roster| standing(roster, &site, guest)).ok_or_else(alone)?;
        match standing {
            Some(At::Removed) => {
                return Err(ApiError::new(
                    StatusCode::FORBIDDEN,
                    REMOVED,
                    format!("the key of `{site}` was removed from this federation, for ever"),
                    "update its agent: it joins with a new key by itself",
                ));
            }
            Some(At::Another) => return Err(taken(&site)),
            Some(At::Belongs) | None => {}
        }
        let named = members
            .others()
            .get(&site)
            .is_some_and(|peer| peer.key.is_some_and(|key| key != guest.key));
        if standing.is_none() && (site == *members.here() || named) {
            return Err(taken(&site));
        }
        tokens.take(&request.proof, &guest.key, now).map_err(no_good)?.map_err(unwritten)?;
        if standing.is_none() {
            for (key, fence) in ledger.read(|r| r.open_fences(&site)).unwrap_or_default() {
                let claim = Claim::Close { key, fence };
                ledger.say(&members.identity(), now, claim).map_err(unwritten)?;
            }
            let address = address_of(request, guest.from.ip()).into();
            let claim = Claim::Admit { site: site.clone(), key: guest.key, address };
            ledger.say(&members.identity(), now, claim).map_err(unwritten)?;
            tracing::info!(%site, key = %guest.key, "a site has joined the federation here");
        }
        postcard::to_allocvec(&ledger.all()).map_err(unwritten)
    }

    /// Hears news, and tells a site what it lacks.
    async fn exchange(
        &self,
        body: Body,
        site: Option<SiteId>,
        guest: Option<Guest>,
    ) -> Result<Vec<u8>, ApiError> {
        let longest = if guest.is_some() { LONGEST_OF_GUESTS } else { LONGEST_NEWS };
        let body = to_bytes(body, longest).await.map_err(unreadable)?;
        let mut news: News = postcard::from_bytes(&body).map_err(unreadable)?;
        let here = self.shared.members.here();
        let ledger = self.ledger();
        let Some(root) = ledger.root().filter(|root| *root.as_bytes() == news.root) else {
            return Err(ApiError::new(
                StatusCode::CONFLICT,
                "another-federation",
                format!("`{here}` does not belong to that federation"),
                "let it join, or take it out of the configuration",
            ));
        };
        // What somebody brings is believed for its signatures, not for who brings it.
        self.hear(std::mem::take(&mut news.words)).await.map_err(|error| {
            let from = site.as_ref().map_or("a guest", |site| site.as_str());
            if let Some(unsaid) = self.shared.doubts.again(Instant::now()) {
                tracing::warn!(unsaid, "what {from} says about who belongs is refused: {error}");
            }
            unreadable(error)
        })?;
        if let Some(guest) = guest {
            let gone = |roster: &Roster| roster.removed_with(&guest.key).is_some();
            if ledger.read(gone).unwrap_or(false) {
                return Err(ApiError::new(
                    StatusCode::FORBIDDEN,
                    REMOVED,
                    "this site was removed from the federation",
                    "if it should come back: make a token at one of its sites, and join with it",
                ));
            }
        }
        let told = site.is_some();
        let reply = News {
            root: *root.as_bytes(),
            heard: if told { listed(&ledger.heard()) } else { Vec::new() },
            words: if told { ledger.beyond(&news.heard()) } else { Vec::new() },
        };
        postcard::to_allocvec(&reply).map_err(unwritten)
    }
}

/// What a guest says that wants to join.
async fn asked(body: Body) -> Result<super::Request, ApiError> {
    let body = to_bytes(body, LONGEST_JOIN).await.map_err(unreadable)?;
    postcard::from_bytes(&body).map_err(unreadable)
}

fn respond(answered: Result<Vec<u8>, ApiError>) -> Response<Body> {
    match answered {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response(),
        Err(error) => error.into_response(),
    }
}

/// How far whom, as it travels.
pub(super) fn listed(heard: &Heard) -> Vec<([u8; 32], u64)> {
    heard.iter().map(|(key, number)| (*key.as_bytes(), *number)).collect()
}

/// What a guest is already.
enum At {
    /// It belongs, under the name that it says.
    Belongs,
    /// It was removed.
    Removed,
    /// There is another site with its name, or it belongs under another.
    Another,
}

fn standing(roster: &Roster, site: &SiteId, guest: &Guest) -> Option<At> {
    if let Some(member) = roster.members().get(&guest.key) {
        return Some(match member.standing {
            Standing::Belongs if member.site == *site => At::Belongs,
            Standing::Belongs => At::Another,
            Standing::Renewed { .. } | Standing::Removed { .. } => At::Removed,
        });
    }
    if roster.removed_with(&guest.key).is_some() {
        return Some(At::Removed);
    }
    roster.sites().any(|(_, member)| member.site == *site).then_some(At::Another)
}

fn taken(site: &SiteId) -> ApiError {
    ApiError::new(
        StatusCode::CONFLICT,
        TAKEN,
        format!(
            "another site of the federation is called `{site}`, or this one has another name there"
        ),
        format!("give this site another name, or, if the other is gone: cheops site remove {site}"),
    )
}

fn spent(why: &Spent, here: &SiteId) -> ApiError {
    let kind = match why {
        Spent::Used(_) => USED,
        Spent::Expired => "token-expired",
        Spent::Foreign => "token-foreign",
    };
    let hint = format!("run `cheops token create` at `{here}`, and join with what it prints");
    ApiError::new(StatusCode::FORBIDDEN, kind, why.to_string(), hint)
}

pub(super) fn unreadable(error: impl std::fmt::Display) -> ApiError {
    ApiError::bad(
        "unreadable",
        format!("what was sent can't be read: {error}"),
        "use agents of the same version",
    )
}

fn unwritten(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(
        StatusCode::INSUFFICIENT_STORAGE,
        "not-written",
        error.to_string(),
        "make room on the disk of that site, and try again",
    )
}
