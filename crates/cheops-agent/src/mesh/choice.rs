//! Which clients may choose sites: `mesh.scopes_from` (see `config::scopes`).
//!
//! Asked of every scope that a client sends, whatever way it sends it, at the first agent that the request
//! reaches. Not asked of requests that another agent forwards, whose first agent has asked, nor of calls that
//! the application makes for a request whose scope was accepted.
//!
//! Invariants:
//! - the application, and other sites, never see the token of a client;
//! - who may not choose sites learns why not, and nothing about who may.

use std::net::IpAddr;

use cheops_core::{
    id::SiteId,
    pattern::Pattern,
    route::Access,
    scope::{Catalogue, Node, Place, Scope},
    trust::people::{Grant, Role},
};
use hyper::{
    Method, StatusCode,
    header::{HeaderName, UPGRADE},
    http::request::Parts,
};

use super::answer::Problem;
use crate::config::ScopesFrom;

/// The header in which a client sends its token. It begins like what agents say to each other, so that it is
/// taken off with that.
pub(super) const TOKEN: HeaderName = HeaderName::from_static("x-cheops-token");

/// What is known of a client that sends a scope.
pub(super) struct Chooser {
    pub(super) address: IpAddr,
    pub(super) access: Access,
    /// What its token was given, or why that does not count; nothing if it has sent none.
    pub(super) token: Option<Result<Grant, String>>,
}

/// What a request may do with the sites that it chooses. What goes over a connection that changes its
/// protocol is not seen here: it may write, whatever the method is.
pub(super) fn access(request: &Parts) -> Access {
    let tunnels = request.method == Method::CONNECT || request.headers.contains_key(UPGRADE);
    if request.method.is_safe() && !tunnels { Access::Read } else { Access::Write }
}

/// Why a client may not choose sites.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAllowed {
    #[error("clients at {0} may not choose sites")]
    Address(IpAddr),
    #[error("it has no token, and only clients with one may choose sites")]
    NoToken,
    #[error("its token does not count: {0}")]
    BadToken(String),
    #[error("`{0}` has the role viewer, which may choose sites for reads only")]
    OnlyViews(String),
    #[error("`{name}` may choose the sites {allowed} only, and the scope can mean `{site}`")]
    OtherSite { name: String, allowed: String, site: SiteId },
}

impl NotAllowed {
    fn hint(&self) -> &'static str {
        match self {
            Self::Address(_) => {
                "send the request without a scope, or from a network that `mesh.scopes_from` of this agent names"
            }
            Self::NoToken | Self::BadToken(_) => {
                "send the request without a scope, or with a token in the header X-Cheops-Token: `cheops access create` makes one"
            }
            Self::OnlyViews(_) | Self::OtherSite { .. } => {
                "send the request without a scope, or ask an admin for a token that allows it: `cheops access create`"
            }
        }
    }

    /// What the client is told.
    pub(super) fn problem(&self, here: &SiteId) -> Box<Problem> {
        let detail = format!("`{here}` does not take the scope of this request: {self}");
        Problem::new(StatusCode::FORBIDDEN, "scope-not-allowed", detail, self.hint())
    }
}

/// Whether a client may choose the sites of a scope.
pub(super) fn may_choose(
    from: &ScopesFrom,
    chooser: &Chooser,
    scope: &Scope,
    catalogue: &Catalogue,
) -> Result<(), NotAllowed> {
    match from {
        ScopesFrom::Everyone => Ok(()),
        ScopesFrom::Networks(networks) => {
            let known = networks.iter().any(|network| network.contains(chooser.address));
            if known { Ok(()) } else { Err(NotAllowed::Address(chooser.address.to_canonical())) }
        }
        ScopesFrom::Token => match &chooser.token {
            None => Err(NotAllowed::NoToken),
            Some(Err(why)) => Err(NotAllowed::BadToken(why.clone())),
            Some(Ok(grant)) => granted(grant, chooser.access, scope, catalogue),
        },
    }
}

/// Whether a token is good for a scope. The patterns of an operator's sites count; those of its resources and
/// kinds are about operations, which have names that requests of the application do not have.
fn granted(
    grant: &Grant,
    access: Access,
    scope: &Scope,
    catalogue: &Catalogue,
) -> Result<(), NotAllowed> {
    let name = || grant.name.as_str().to_owned();
    let reach = match &grant.role {
        Role::Admin => return Ok(()),
        Role::Viewer if access == Access::Read => return Ok(()),
        Role::Viewer => return Err(NotAllowed::OnlyViews(name())),
        Role::Operator(reach) => reach,
    };
    if reach.sites.is_empty() {
        return Ok(());
    }
    let mut sites = Vec::new();
    for (_, place) in scope.services() {
        meant(place, catalogue, &mut sites);
    }
    let allowed = |site: &SiteId| reach.sites.iter().any(|pattern| pattern.matches(site.as_str()));
    match sites.into_iter().find(|site| !allowed(site)) {
        None => Ok(()),
        Some(site) => {
            let allowed: Vec<&str> = reach.sites.iter().map(Pattern::as_str).collect();
            Err(NotAllowed::OtherSite { name: name(), allowed: allowed.join(", "), site })
        }
    }
}

/// All sites that a place can mean. What depends on round trips can mean any site.
fn meant(place: &Place, catalogue: &Catalogue, sites: &mut Vec<SiteId>) {
    match place.node() {
        Node::Site(site) => sites.push(site.clone()),
        Node::Around(_) | Node::Everywhere => sites.extend(catalogue.sites().cloned()),
        Node::Once(place) => meant(place, catalogue, sites),
        Node::Several(_, places) => {
            for place in places {
                meant(place, catalogue, sites);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cheops_core::{scope::parse, time::Millis, trust::people::Reach};

    use super::*;

    fn grant(role: Role) -> Grant {
        let name = "ada".parse().unwrap();
        let (issued, expires) = (Millis(0), Millis(1));
        Grant { name, digest: [1; 32], role, issued, expires }
    }

    fn operator(sites: &[&str]) -> Grant {
        let sites = sites.iter().map(|site| Pattern::new(*site)).collect();
        let kinds = vec![Pattern::new("set")];
        grant(Role::Operator(Reach { sites, kinds, ..Reach::default() }))
    }

    #[test]
    fn a_request_that_changes_the_protocol_counts_as_a_write() {
        for (method, upgrade, expected) in [
            (Method::GET, None, Access::Read),
            (Method::HEAD, None, Access::Read),
            (Method::POST, None, Access::Write),
            (Method::GET, Some("websocket"), Access::Write),
            (Method::OPTIONS, Some("h2c"), Access::Write),
            (Method::CONNECT, None, Access::Write),
        ] {
            let mut request = hyper::Request::builder().method(&method);
            if let Some(upgrade) = upgrade {
                request = request.header(UPGRADE, upgrade);
            }
            let (request, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(access(&request), expected, "{method} {upgrade:?}");
        }
    }

    #[test]
    fn who_may_choose_sites() {
        let networks = || {
            let texts = ["10.0.0.0/8", "127.0.0.1"];
            ScopesFrom::Networks(texts.map(|text| text.parse().unwrap()).into())
        };
        let (read, write) = (Access::Read, Access::Write);
        let catalogue = Catalogue::new(["a", "b", "c"].map(|site| site.parse().unwrap()));
        let bad = || Some(Err("it has expired".to_owned()));
        for (from, address, access, token, scope, refused) in [
            (ScopesFrom::Everyone, "192.0.2.1", write, None, "x: a & b", None),
            (networks(), "10.1.2.3", write, None, "x: a & b", None),
            (networks(), "::ffff:10.1.2.3", write, None, "x: a & b", None),
            (networks(), "127.0.0.2", read, None, "x: a", Some("clients at 127.0.0.2")),
            // A token does not help where networks are named.
            (
                networks(),
                "192.0.2.1",
                read,
                Some(Ok(grant(Role::Admin))),
                "x: a",
                Some("192.0.2.1"),
            ),
            (ScopesFrom::Token, "127.0.0.1", read, None, "x: a", Some("it has no token")),
            (ScopesFrom::Token, "127.0.0.1", read, bad(), "x: a", Some("it has expired")),
            (ScopesFrom::Token, "192.0.2.1", write, Some(Ok(grant(Role::Admin))), "x: a & b", None),
            (ScopesFrom::Token, "192.0.2.1", read, Some(Ok(grant(Role::Viewer))), "x: a % b", None),
            (
                ScopesFrom::Token,
                "192.0.2.1",
                write,
                Some(Ok(grant(Role::Viewer))),
                "x: a",
                Some("the role viewer"),
            ),
            (ScopesFrom::Token, "192.0.2.1", write, Some(Ok(operator(&[]))), "x: *", None),
            (
                ScopesFrom::Token,
                "192.0.2.1",
                write,
                Some(Ok(operator(&["a", "b"]))),
                "x: a & b, y: a",
                None,
            ),
            (
                ScopesFrom::Token,
                "192.0.2.1",
                write,
                Some(Ok(operator(&["a"]))),
                "x: a, y: a ; b",
                Some("`b`"),
            ),
            (
                ScopesFrom::Token,
                "192.0.2.1",
                write,
                Some(Ok(operator(&["a"]))),
                "x: none(b)",
                Some("`b`"),
            ),
            (
                ScopesFrom::Token,
                "192.0.2.1",
                write,
                Some(Ok(operator(&["a", "b"]))),
                "x: *",
                Some("`c`"),
            ),
            (
                ScopesFrom::Token,
                "192.0.2.1",
                write,
                Some(Ok(operator(&["a"]))),
                "x: around(a, 1ms)",
                Some("`b`"),
            ),
        ] {
            let chooser = Chooser { address: address.parse().unwrap(), access, token };
            let decided = may_choose(&from, &chooser, &parse(scope).unwrap(), &catalogue);
            match (decided, refused) {
                (Ok(()), None) => {}
                (Err(why), Some(expected)) => {
                    assert!(why.to_string().contains(expected), "{scope}: {why}");
                }
                (decided, _) => panic!("{from:?} {address} {scope}: {decided:?}"),
            }
        }
    }
}
