//! Joining a federation and leaving it: what a site does about what it hears, and what it asks others.
//!
//! Who belongs is decided by [`cheops_core::trust::Roster`] and kept by [`Ledger`]. This is the rest: letting
//! a site in that shows a token (`door`), telling the others (`spread`, and `introduce` where there are
//! certificates), who may do what (`people`), and what people ask for.
//!
//! What must stay true:
//! - a token is spent before the site is let in, so that it lets in no second one, whatever happens;
//! - what a person may do, or may no more, is the same at all sites that have heard of it;
//! - whoever hears that a site was removed says how far it knew it, so that all draw the same line;
//! - a site comes back with a key that nobody has seen: the one that it has may follow a removed one, which only
//!   it knows, and what it has signed with it could not be told from what it signs next.

mod door;
mod introduce;
mod people;
mod spread;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{body::Bytes, http::StatusCode};
use cheops_core::{
    id::{ResourceId, SiteId},
    replica::{Input, Replica, Resource, Version},
    time::Millis,
    trust::{Claim, Fence, PublicKey, Roster, Standing},
};
use serde::{Deserialize, Serialize};

use crate::{
    api::model,
    config::{self, Config},
    limits::Seldom,
    node::{self, Stopping},
    peers::{Peers, VisitError},
    trust::{
        Identity, IdentityError, Ledger, LedgerError, Members, Signers as _,
        ledger::Closed,
        people::{Grants, GrantsError, now},
        token::{Proof, Token, Tokens},
        word::Signed,
    },
};

/// Where a guest asks to be let in.
const JOIN: &str = "/peer/v1/join";
/// Where sites tell each other who belongs, and guests may.
const STATEMENTS: &str = "/peer/v1/statements";

/// How often in a minute a line of the log says that what others say is refused.
const SAID: u32 = 10;

/// How long a token is good for if nobody says otherwise.
pub const TTL: Duration = Duration::from_mins(10);
/// The longest.
pub const LONGEST_TTL: Duration = Duration::from_hours(24 * 7);

/// This site's part in its federation. All clones are the same.
#[derive(Clone)]
pub struct Federation {
    shared: Arc<Shared>,
}

struct Shared {
    members: Members,
    peers: Peers,
    node: node::Handle,
    grants: Arc<dyn Grants>,
    tokens: Tokens,
    /// One is let in at a time.
    admitting: Mutex<()>,
    /// And a key is renewed once at a time.
    renewing: Mutex<()>,
    /// News are heard one after the other.
    hearing: tokio::sync::Mutex<()>,
    /// Who says that this site was removed.
    told_out: Mutex<Option<SiteId>>,
    data: PathBuf,
    advertise: Option<String>,
    /// What others say and is refused.
    doubts: Seldom,
}

/// Why something about who belongs was not done.
#[derive(Debug, thiserror::Error)]
pub enum FederationError {
    /// The list of who belongs says no.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The key of this site can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A file can't be written.
    #[error("the file with the tokens can't be used: {0}")]
    Tokens(io::Error),
    /// Nobody could find this site.
    #[error("this site has no address that could be told to others")]
    NoAddress,
    /// A text is no address.
    #[error("`{0}` is not HOST:PORT")]
    Address(String),
    /// A token is good for too long, or not at all.
    #[error("a token is good for a second at least, and for a week at most")]
    Ttl,
    /// A token lets in others.
    #[error("`{0}` has made this token itself: it lets another site join")]
    OwnToken(SiteId),
    /// The other site can't be asked.
    #[error(transparent)]
    Visit(#[from] VisitError),
    /// The other site does not let this one in.
    #[error("{}", .0.detail)]
    Refused(Box<model::Problem>),
    /// What the other site says can't be read.
    #[error("what the other site answers can't be read: {0}; is it an agent of the same version?")]
    Garbled(String),
    /// There is no such site.
    #[error("no site `{0}` belongs to the federation")]
    Unknown(SiteId),
    /// A site can't remove itself.
    #[error("`{0}` is this site itself: remove it at another site")]
    Itself(SiteId),
    /// A site is in the configuration, and not in the federation.
    #[error(
        "`{0}` is known here by the configuration, and not by joining: take it out of the configuration of each site, and restart their agents"
    )]
    Named(SiteId),
    /// The agent is stopping.
    #[error(transparent)]
    Stopping(#[from] Stopping),
    /// The list of tokens can't be written.
    #[error(transparent)]
    Grants(#[from] GrantsError),
    /// TLS does not take the key.
    #[error("the new key can't be used: {0}")]
    Tls(io::Error),
}

/// What a guest says to be let in.
#[derive(Serialize, Deserialize)]
struct Request {
    proof: Proof,
    site: String,
    address: Option<String>,
    port: u16,
}

impl Federation {
    /// This site's part in what is in its data directory.
    pub fn open(
        members: Members,
        peers: Peers,
        node: node::Handle,
        grants: Arc<dyn Grants>,
        config: &Config,
    ) -> io::Result<Self> {
        let (data, advertise) = (config.data.clone(), config.advertise.clone());
        let tokens = Tokens::open(&data)?;
        let (admitting, renewing) = (Mutex::default(), Mutex::default());
        let (hearing, told_out) = (tokio::sync::Mutex::default(), Mutex::default());
        let doubts = Seldom::new(SAID);
        let shared = Shared {
            members,
            peers,
            node,
            grants,
            tokens,
            admitting,
            renewing,
            hearing,
            told_out,
            data,
            advertise,
            doubts,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Tells the others what is new, and hears what they say, for ever.
    pub async fn serve(self) {
        tokio::join!(spread::run(&self), introduce::run(&self));
    }

    /// What is known of who belongs.
    pub fn ledger(&self) -> &Ledger {
        self.shared.members.ledger()
    }

    /// Makes a token by which a site can join here. The first one begins a federation.
    pub fn token(&self, ttl: Duration, address: Option<String>) -> Result<Token, FederationError> {
        if ttl < Duration::from_secs(1) || ttl > LONGEST_TTL {
            return Err(FederationError::Ttl);
        }
        let Shared { members, tokens, .. } = &*self.shared;
        let address = checked(address)?.or_else(|| self.address());
        let address = address.ok_or(FederationError::NoAddress)?;
        let own = members.identity();
        members.ledger().found(&own, members.here(), &address)?;
        let root = members.ledger().root().ok_or(LedgerError::Alone)?;
        let now = self.now();
        let expires = now.plus(Millis::from(ttl));
        let made = tokens.make(root, own.public(), address, now, expires);
        made.map_err(FederationError::Tokens)
    }

    /// Joins the federation of the site that has made a token.
    pub async fn join(
        &self,
        token: &Token,
        address: Option<String>,
    ) -> Result<(), FederationError> {
        let Shared { members, peers, advertise, .. } = &*self.shared;
        if members.keys(members.here()).contains(&token.host()) {
            return Err(FederationError::OwnToken(members.here().clone()));
        }
        if let Some(root) = members.ledger().root().filter(|root| *root != token.root()) {
            return Err(LedgerError::Elsewhere(root).into());
        }
        let request = Request {
            proof: token.proof(),
            site: members.here().to_string(),
            address: checked(address)?.or_else(|| advertise.clone()),
            port: peers.address().port(),
        };
        let request = postcard::to_allocvec(&request).map_err(garbled)?;
        if members.ledger().root().is_some() {
            match self.come_back(token, request.clone()).await {
                // It belongs, as far as is known there, or has used the token itself: with the key that it has.
                Err(FederationError::Refused(problem))
                    if [door::TAKEN, door::USED].contains(&problem.kind.as_str()) => {}
                back => return back,
            }
        }
        let answer = peers.visit(&token.address, token.host(), JOIN, request.clone()).await?;
        let words = match read(answer) {
            Err(FederationError::Refused(problem)) if problem.kind == door::REMOVED => {
                return self.come_back(token, request).await;
            }
            words => words?,
        };
        self.draw_lines(members.ledger().closes_at_joining(token.root(), &words)?).await?;
        members.ledger().join(&members.identity(), token.root(), words)?;
        tracing::info!(federation = %token.root(), "this site has joined a federation");
        Ok(())
    }

    /// Joins again after this site was removed, with a new key. What it had recorded alone is held.
    async fn come_back(&self, token: &Token, request: Vec<u8>) -> Result<(), FederationError> {
        let Shared { members, peers, data, .. } = &*self.shared;
        let ask = async |next: &Arc<Identity>| {
            let (address, host, request) = (&token.address, token.host(), request.clone());
            read(peers.visit_as(next, address, host, JOIN, request).await?)
        };
        // It may have been let in already, and died over it; but a key that follows another was put out with it.
        let follows = |key: PublicKey| {
            let renewed = |roster: &Roster| {
                roster.heard().iter().any(|said| said.claim == Claim::Renew { key })
            };
            members.ledger().read(renewed).unwrap_or(false)
        };
        let drafted = Identity::drafted(data)?.filter(|drafted| !follows(drafted.public()));
        let mut next = Arc::new(match drafted {
            Some(drafted) => drafted,
            None => Identity::draft(data)?,
        });
        let words = match ask(&next).await {
            Err(FederationError::Refused(problem)) if problem.kind == door::REMOVED => {
                next = Arc::new(Identity::draft(data)?);
                ask(&next).await?
            }
            words => words?,
        };
        let before = members.identity();
        // What is told again of what was run has to be signed with the key that counts.
        members.renew(next.clone());
        if let Err(error) = self.take_up(token, &next, words).await {
            members.renew(before);
            return Err(error);
        }
        Identity::adopt(data)?;
        peers.renew(&next).map_err(FederationError::Tls)?;
        self.told_out(None);
        let (federation, key) = (token.root(), next.public());
        tracing::info!(%federation, %key, "this site is back in its federation, with a new key");
        Ok(())
    }

    /// Who says that this site was removed, if somebody does.
    pub fn removed_by(&self) -> Option<SiteId> {
        self.shared.told_out.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn told_out(&self, by: Option<SiteId>) {
        *self.shared.told_out.lock().unwrap_or_else(PoisonError::into_inner) = by;
    }

    /// Takes what the others say for what counts, from where they have drawn the line.
    async fn take_up(
        &self,
        token: &Token,
        next: &Identity,
        words: Vec<Signed>,
    ) -> Result<(), FederationError> {
        let ledger = self.ledger();
        self.draw_lines(ledger.closes_at_joining(token.root(), &words)?).await?;
        ledger.rejoin(next, token.root(), words)?;
        Ok(())
    }

    /// Takes out what lies beyond the fences of sites that come back, before anything that they say with
    /// their new keys can be heard. Ends when that is durable.
    async fn draw_lines(&self, closed: Vec<Closed>) -> Result<(), Stopping> {
        let Shared { node, .. } = &*self.shared;
        for (site, known) in closed {
            node.tell(Input::Fenced { site, known }).await?;
        }
        // What is told and what is asked come by two ways: the second must not overtake.
        let (reached, ends) = tokio::sync::oneshot::channel();
        node.tell_then(reached).await?;
        ends.await.map_err(|_| Stopping)
    }

    /// Tells the replica who was removed, if that is new.
    async fn tell_removed(&self, told: &mut Option<BTreeSet<SiteId>>) -> Result<(), Stopping> {
        let removed = self.shared.members.removed();
        if told.as_ref() != Some(&removed) {
            self.shared.node.tell(Input::Removed(removed.clone())).await?;
            *told = Some(removed);
        }
        Ok(())
    }

    /// Removes a site, whether it can be reached or not.
    pub async fn remove(&self, site: &SiteId) -> Result<(), FederationError> {
        let members = &self.shared.members;
        if site == members.here() {
            return Err(FederationError::Itself(site.clone()));
        }
        let key_of = |roster: &Roster| {
            roster.sites().find(|(_, member)| member.site == *site).map(|(key, _)| *key)
        };
        let Some(key) = self.ledger().read(key_of).flatten() else {
            let named = members.others().contains_key(site);
            let error = if named { FederationError::Named } else { FederationError::Unknown };
            return Err(error(site.clone()));
        };
        let fence = self.known_of(vec![(key, site.clone())]).await?.remove(&key);
        let claim = Claim::Remove { key, fence: fence.unwrap_or_default() };
        self.ledger().say(&members.identity(), self.now(), claim)?;
        tracing::info!(%site, %key, "the site was removed from the federation");
        Ok(())
    }

    /// Gives this site a new key. The others hear of it, and take it for the same site.
    pub fn renew(&self) -> Result<PublicKey, FederationError> {
        let Shared { members, peers, data, renewing, .. } = &*self.shared;
        // A key is renewed once: of two at a time, the second renews what the first has made.
        let _turn = renewing.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Identity::draft(data)?;
        let key = next.public();
        self.ledger().say(&members.identity(), self.now(), Claim::Renew { key })?;
        Identity::adopt(data)?;
        peers.renew(&next).map_err(FederationError::Tls)?;
        members.renew(Arc::new(next));
        tracing::info!(%key, "this site has a new key");
        Ok(key)
    }

    /// Tells the others who may do what and who may no more, and takes in what they have said about that.
    pub async fn share_people(&self) -> Result<(), FederationError> {
        let Some(said) = self.ledger().read(|roster| roster.people().clone()) else {
            return Ok(());
        };
        let Shared { members, grants, .. } = &*self.shared;
        let say = |claim| Ok(self.ledger().say(&members.identity(), self.now(), claim)?);
        people::share(&**grants, &said, now(), say).await
    }

    /// Hears what was said, beside everything else: it waits for the disk.
    async fn hear(&self, words: Vec<Signed>) -> Result<(), FederationError> {
        if words.is_empty() {
            return Ok(());
        }
        // One at a time: what is closed has to be taken out before it is heard.
        let _turn = self.shared.hearing.lock().await;
        let ledger = self.ledger().clone();
        let look = tokio::task::spawn_blocking(move || (ledger.closes(&words), words));
        let (closed, words) = look.await.map_err(|_| Stopping)?;
        let closed = closed?;
        if !closed.is_empty() {
            self.draw_lines(closed).await?;
        }
        let ledger = self.ledger().clone();
        let heard = tokio::task::spawn_blocking(move || ledger.hear(&words));
        heard.await.map_err(|_| Stopping)??;
        Ok(())
    }

    /// Where others reach this site: where it says, where it listens, or, if it listens everywhere, the
    /// address that it has towards the rest of the world.
    fn address(&self) -> Option<String> {
        let Shared { peers, advertise, .. } = &*self.shared;
        advertise.clone().or_else(|| {
            let mut address = peers.address();
            if address.ip().is_unspecified() {
                address.set_ip(outward()?);
            }
            Some(address.to_string())
        })
    }

    fn now(&self) -> Millis {
        self.shared.node.now().wall
    }

    /// How far this site knows what others have said and recorded.
    async fn known_of(
        &self,
        keys: Vec<(PublicKey, SiteId)>,
    ) -> Result<BTreeMap<PublicKey, Fence>, Stopping> {
        let heard = self.ledger().heard();
        let fence = |key: &PublicKey| Fence {
            statements: heard.get(key).copied().unwrap_or(0),
            ..Fence::default()
        };
        let none: Vec<(SiteId, PublicKey, Fence)> =
            keys.into_iter().map(|(key, site)| (site, key, fence(&key))).collect();
        let look =
            |_: &Replica, resource: &Resource, fences: &mut Vec<(SiteId, PublicKey, Fence)>| {
                let version = resource.version();
                for (site, _, fence) in fences {
                    if let Some(&number) = version.get(site).filter(|&&number| number > 0) {
                        let id: ResourceId = resource.id().clone();
                        fence.records.insert(id, number);
                    }
                }
                true
            };
        let mut fences = self.shared.node.walk(none, look).await?;
        let gone = |replica: &Replica| -> Vec<(ResourceId, Version)> {
            replica.tombs().map(|(id, version)| (id.clone(), version.clone())).collect()
        };
        for (id, version) in self.shared.node.read(gone).await? {
            for (site, _, fence) in &mut fences {
                if let Some(&number) = version.get(site).filter(|&&number| number > 0) {
                    let known = fence.records.entry(id.clone()).or_default();
                    *known = number.max(*known);
                }
            }
        }
        Ok(fences.into_iter().map(|(_, key, fence)| (key, fence)).collect())
    }

    /// Says how far this site knew those that were removed, where nobody has said so much.
    async fn vouch(&self) -> Result<(), FederationError> {
        let removed = self.ledger().read(|roster| {
            let removed =
                roster.members().iter().filter_map(|(key, member)| match &member.standing {
                    // Once it is said for good how far a key counts, its site may be back.
                    Standing::Removed { fence, closed: None, .. }
                        if member.site != *self.shared.members.here() =>
                    {
                        Some((*key, (member.site.clone(), fence.clone())))
                    }
                    _ => None,
                });
            removed.collect::<BTreeMap<_, _>>()
        });
        let removed = removed.unwrap_or_default();
        if removed.is_empty() {
            return Ok(());
        }
        let keys = removed.iter().map(|(key, (site, _))| (*key, site.clone())).collect();
        let here = self.shared.members.here();
        for (key, known) in self.known_of(keys).await? {
            let Some((site, fence)) = removed.get(&key) else { continue };
            // Each says it once, if only that it knew no more: the line is drawn when all have.
            let is_awaited = |roster: &Roster| roster.awaited_about(site).contains(here);
            let awaited = self.ledger().read(is_awaited).unwrap_or(false);
            if awaited || !fence.covers(&known) {
                let claim = Claim::Vouch { key, fence: known.beyond(fence) };
                self.ledger().say(&self.shared.members.identity(), self.now(), claim)?;
            }
        }
        Ok(())
    }
}

/// The address of this machine towards an address that is nowhere. Nothing is sent.
fn outward() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

fn checked(address: Option<String>) -> Result<Option<String>, FederationError> {
    match address {
        Some(address) if !config::is_address(&address) => Err(FederationError::Address(address)),
        address => Ok(address),
    }
}

/// What a site answers to one that wants to join.
fn read((status, body): (StatusCode, Bytes)) -> Result<Vec<Signed>, FederationError> {
    if status.is_success() {
        return postcard::from_bytes(&body).map_err(garbled);
    }
    let problem = serde_json::from_slice(&body);
    Err(FederationError::Refused(Box::new(problem.map_err(garbled)?)))
}

fn garbled(error: impl std::fmt::Display) -> FederationError {
    FederationError::Garbled(error.to_string())
}

/// Where a guest is reached: where it says, or where it comes from.
fn address_of(request: &Request, from: IpAddr) -> String {
    let seen = || SocketAddr::new(from, request.port).to_string();
    request.address.clone().unwrap_or_else(seen)
}
