//! A place as a tree, as it was read.

use cheops_core::{
    duration,
    scope::{Catalogue, Node, Operator, Place},
};
use maud::{Markup, html};

use crate::words::span;

/// How many sites of `*` and `around` are drawn.
const DRAWN: usize = 20;

/// The tree of a place.
pub(super) fn draw(place: &Place, catalogue: &Catalogue) -> Markup {
    html! { ul { (branch(place, catalogue)) } }
}

fn branch(place: &Place, catalogue: &Catalogue) -> Markup {
    let below =
        |places: &[Place]| html! { ul { @for place in places { (branch(place, catalogue)) } } };
    html! {
        li {
            @match place.node() {
                Node::Site(site) => { code { (site) } }
                Node::Around(around) => {
                    code { "around(" (around.centre()) ", " (duration::print(around.radius())) ")" }
                    span.why { " the nearest that works; now:" }
                    (near(&catalogue.around(around.centre(), around.radius()).into_iter().map(|(trip, site)| {
                        format!("{site}, {}", span(trip.as_secs_f64() * 1_000.0))
                    }).collect::<Vec<_>>()))
                }
                Node::Everywhere => {
                    code { "*" } span.why { " every known site; now:" }
                    (near(&catalogue.sites().map(ToString::to_string).collect::<Vec<_>>()))
                }
                Node::Once(inner) => {
                    code { "none" } span.why { " sent once, not recorded" }
                    ul { (branch(inner, catalogue)) }
                }
                Node::Several(operator, places) => {
                    code { (operator.sign()) } " "
                    span.why { (match operator {
                        Operator::All => "a copy on each",
                        Operator::Across => "a part on each",
                        Operator::First => "the first that works",
                    }) }
                    (below(places))
                }
            }
        }
    }
}

fn near(labels: &[String]) -> Markup {
    html! {
        ul {
            @for label in labels.iter().take(DRAWN) { li { (label) } }
            @if labels.len() > DRAWN { li { "and " (labels.len() - DRAWN) " more" } }
        }
    }
}
