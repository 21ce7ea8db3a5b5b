//! The scope language: where each service of a request runs.
//!
//! ```text
//! scope   = entry *("," entry)                    optional { } around it
//! entry   = service ":" place
//! place   = spread *(";" spread)                  otherwise: the first that works
//! spread  = several *("%" several)                one resource over several sites ("+" is the same)
//! several = one *("&" one)                        replication
//! one     = site | "(" place ")" | "around" "(" site "," duration ")" | "*"
//!         | "none" "(" place ")" | "eventual" "(" place ")"
//! ```
//!
//! [`parse()`] reads a text, `Display` writes the canonical one, [`evaluate()`] says which sites are
//! meant. What a request then does is the question of [`crate::route`].
//!
//! What must stay true:
//! - An operator has at least two operands, and none of them is the same operator: `a & (b & c)` and
//!   `a & b & c` are one tree. The constructors of [`Place`] see to it, and there is no other door.
//! - What is sent once holds nothing that is: a place has one consistency. `eventual(…)` is the one
//!   that every other place has, so it leaves no trace in a tree.
//! - Reading what was printed gives the same tree, for every tree no deeper than [`MAX_DEPTH`] whose
//!   text is no longer than [`MAX_LENGTH`]. Where a thing was written takes no part in equality.
//! - No text overflows the stack: depth and length are limited before anything recurses.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::time::Duration;

pub use self::{
    catalogue::Catalogue,
    error::{Problem, ScopeError, Span},
    evaluate::{MAX_GROUPS, Target, check, evaluate},
    parse::{MAX_DEPTH, MAX_LENGTH, parse, parse_place},
};
use crate::id::{ServiceName, SiteId};

mod catalogue;
mod error;
mod evaluate;
mod parse;
mod print;

/// Where each named service runs. At least one service is named, and each of them once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope(BTreeMap<ServiceName, Place>);

impl Scope {
    /// The scope with these services; none if there is no service.
    pub fn new(services: BTreeMap<ServiceName, Place>) -> Option<Self> {
        (!services.is_empty()).then_some(Self(services))
    }

    /// Where a service runs; none if the scope does not name it.
    pub fn place(&self, service: &ServiceName) -> Option<&Place> {
        self.0.get(service)
    }

    /// The services and their places, in the order of the services' names.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceName, &Place)> {
        self.0.iter()
    }
}

/// Sites and how they work together: what stands after the colon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    node: Node,
    written: Written,
}

/// What a place is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// One site.
    Site(SiteId),
    /// Every site near another one, nearest first: the first that works.
    Around(Around),
    /// `*`: every known site, replicated.
    Everywhere,
    /// `none(…)`: what is written is sent to each site once, and nobody remembers it.
    Once(Box<Place>),
    /// Places joined by an operator: two or more, none of them joined by the same one.
    Several(Operator, Vec<Place>),
}

/// The sites whose measured round trip from the centre is within the radius.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Around {
    centre: SiteId,
    radius: Duration,
    written: Written,
}

impl Around {
    /// The site in the middle.
    pub fn centre(&self) -> &SiteId {
        &self.centre
    }

    /// The longest round trip that counts.
    pub fn radius(&self) -> Duration {
        self.radius
    }

    /// Where the centre was written.
    pub(crate) fn centre_span(&self) -> Span {
        self.written.0
    }
}

/// How places are joined. The loosest operator comes first, so `<` means "binds less tightly".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// `;` otherwise: the first that works.
    First,
    /// `%` cross: one resource, a part on each.
    Across,
    /// `&` replication: a copy on each.
    All,
}

impl Operator {
    /// The operator as it is printed.
    pub fn sign(self) -> char {
        match self {
            Self::First => ';',
            Self::Across => '%',
            Self::All => '&',
        }
    }
}

impl Place {
    /// One site.
    pub fn site(site: SiteId) -> Self {
        Self::new(Node::Site(site), Span::default())
    }

    /// The sites within `radius` of `centre`.
    pub fn around(centre: SiteId, radius: Duration) -> Self {
        let around = Around { centre, radius, written: Written::default() };
        Self::new(Node::Around(around), Span::default())
    }

    /// Every known site.
    pub fn everywhere() -> Self {
        Self::new(Node::Everywhere, Span::default())
    }

    /// A place whose sites are written to once, without a record. What is such a place inside it is
    /// part of the whole.
    #[must_use]
    pub fn once(self) -> Self {
        let span = self.span();
        Self::new(Node::Once(Box::new(self.recorded())), span)
    }

    /// The same place without any `none(…)`.
    fn recorded(self) -> Self {
        match self.node {
            Node::Once(inner) => inner.recorded(),
            Node::Several(operator, places) => {
                let mut places = places.into_iter().map(Self::recorded);
                match places.next() {
                    Some(first) => first.join(operator, places),
                    None => Self::new(Node::Several(operator, Vec::new()), self.written.0),
                }
            }
            node => Self { node, written: self.written },
        }
    }

    /// What in this place is sent once, if anything: where it stands.
    pub(crate) fn sent_once(&self) -> Option<Span> {
        match &self.node {
            Node::Site(_) | Node::Around(_) | Node::Everywhere => None,
            Node::Once(_) => Some(self.span()),
            Node::Several(_, places) => places.iter().find_map(Self::sent_once),
        }
    }

    /// Places joined by an operator; what is joined by the same one becomes part of the whole.
    #[must_use]
    pub fn join(self, operator: Operator, others: impl IntoIterator<Item = Self>) -> Self {
        let mut others = others.into_iter();
        let Some(second) = others.next() else { return self };
        let mut span = self.span();
        let mut places = Vec::new();
        for place in [self, second].into_iter().chain(others) {
            span.end = place.span().end;
            match place.node {
                Node::Several(same, inner) if same == operator => places.extend(inner),
                node => places.push(Self { node, written: place.written }),
            }
        }
        Self::new(Node::Several(operator, places), span)
    }

    /// What the place is made of.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Where the place stands in the text that it was read from; 0 to 0 if it was not read.
    pub fn span(&self) -> Span {
        self.written.0
    }

    fn new(node: Node, span: Span) -> Self {
        Self { node, written: Written(span) }
    }
}

/// Where something was written. A place is the same wherever it stands, so all of these are equal.
#[derive(Debug, Clone, Copy, Default)]
struct Written(Span);

impl PartialEq for Written {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Written {}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> Place {
        Place::site(name.parse().unwrap())
    }

    #[test]
    fn the_same_operator_is_never_nested() {
        for operator in [Operator::All, Operator::Across, Operator::First] {
            let left = site("a").join(operator, [site("b")]).join(operator, [site("c")]);
            let right = site("a").join(operator, [site("b").join(operator, [site("c")])]);
            let flat = site("a").join(operator, [site("b"), site("c")]);
            assert_eq!(left, flat);
            assert_eq!(right, flat);
        }
    }

    #[test]
    fn one_operand_is_itself() {
        assert_eq!(site("a").join(Operator::All, []), site("a"));
    }

    #[test]
    fn what_is_sent_once_is_so_as_a_whole() {
        let inner = site("b").join(Operator::All, [site("c")]).once();
        let whole = site("a").join(Operator::All, [inner.clone()]).once();
        let flat = site("a").join(Operator::All, [site("b"), site("c")]).once();
        assert_eq!(whole, flat);
        assert_eq!(inner.clone().once(), inner);
    }

    #[test]
    fn a_scope_names_a_service() {
        assert_eq!(Scope::new(BTreeMap::new()), None);
    }
}
