//! A place as a tree: drawn with lines for people, nested for programs.

use cheops_core::{
    duration,
    id::ServiceName,
    scope::{Catalogue, Node, Operator, Place},
};
use serde_json::{Value, json};

/// How many sites of `*` are drawn; a drawing of a thousand lines explains nothing.
const DRAWN: usize = 20;

/// A line of the drawing and what hangs below it.
struct Branch {
    label: String,
    below: Vec<Branch>,
}

impl Branch {
    fn leaf(label: impl Into<String>) -> Self {
        Self { label: label.into(), below: Vec::new() }
    }

    fn of(place: &Place, catalogue: Option<&Catalogue>) -> Self {
        let below = meant(place, catalogue);
        match place.node() {
            Node::Site(site) => Self::leaf(site.as_str()),
            Node::Around(_) => Self { label: format!("{place}  the nearest that works"), below },
            Node::Everywhere => Self { label: "*  every known site".to_owned(), below },
            Node::Once(place) => Self {
                label: "none  sent once, not recorded".to_owned(),
                below: vec![Self::of(place, catalogue)],
            },
            Node::Several(operator, places) => Self {
                label: match operator {
                    Operator::All => "&  a copy on each",
                    Operator::Across => "%  a part on each",
                    Operator::First => ";  the first that works",
                }
                .to_owned(),
                below: places.iter().map(|place| Self::of(place, catalogue)).collect(),
            },
        }
    }

    fn draw(&self, indent: &str) -> String {
        let line = |(n, branch): (usize, &Self)| {
            let (corner, bar) =
                if n + 1 == self.below.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            format!("{indent}{corner}{}\n{}", branch.label, branch.draw(&format!("{indent}{bar}")))
        };
        self.below.iter().enumerate().map(line).collect()
    }
}

/// The sites that `around` and `*` stand for now.
fn meant(place: &Place, catalogue: Option<&Catalogue>) -> Vec<Branch> {
    match (place.node(), catalogue) {
        (Node::Around(around), Some(catalogue)) => cut(catalogue
            .around(around.centre(), around.radius())
            .into_iter()
            .map(|(trip, site)| format!("{site}  {}", duration::print(trip)))
            .collect()),
        (Node::Everywhere, Some(catalogue)) => {
            cut(catalogue.sites().map(ToString::to_string).collect())
        }
        _ => Vec::new(),
    }
}

fn cut(labels: Vec<String>) -> Vec<Branch> {
    let more = labels.len().saturating_sub(DRAWN);
    let mut below: Vec<_> = labels.into_iter().take(DRAWN).map(Branch::leaf).collect();
    if more > 0 {
        below.push(Branch::leaf(format!("… and {more} more")));
    }
    below
}

/// The drawing of a service and its place.
pub(super) fn draw(service: &ServiceName, place: &Place, catalogue: Option<&Catalogue>) -> String {
    let root = Branch { label: service.to_string(), below: vec![Branch::of(place, catalogue)] };
    format!("{}\n{}", root.label, root.draw(""))
}

/// The tree for programs. `Now` is there when it is known which sites are meant.
pub(super) fn json(place: &Place, catalogue: Option<&Catalogue>) -> Value {
    match place.node() {
        Node::Site(site) => json!({ "Site": site.as_str() }),
        Node::Around(around) => {
            let radius = duration::print(around.radius()).to_string();
            let mut value = json!({ "Site": around.centre().as_str(), "Within": radius });
            if let Some(catalogue) = catalogue {
                let near = catalogue.around(around.centre(), around.radius());
                let near = near.into_iter().map(|(trip, site)| {
                    json!({ "Site": site.as_str(), "RoundTrip": duration::print(trip).to_string() })
                });
                value["Now"] = near.collect();
            }
            json!({ "Around": value })
        }
        Node::Everywhere => {
            let mut value = json!({});
            if let Some(catalogue) = catalogue {
                value["Now"] =
                    catalogue.sites().map(|site| json!({ "Site": site.as_str() })).collect();
            }
            json!({ "Everywhere": value })
        }
        Node::Once(place) => json!({ "Once": json(place, catalogue) }),
        Node::Several(operator, places) => {
            let places: Value = places.iter().map(|place| json(place, catalogue)).collect();
            match operator {
                Operator::All => json!({ "All": places }),
                Operator::Across => json!({ "Across": places }),
                Operator::First => json!({ "First": places }),
            }
        }
    }
}
