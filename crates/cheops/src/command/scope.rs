//! `cheops scope`: what a scope says, as a tree and in plain words.

use std::path::PathBuf;

use cheops_core::{
    id::{ServiceName, SiteId, Sites},
    route::{Access, Leg, Route, decide},
    scope::{self, Catalogue, Node, Place, Scope, check, evaluate},
};
use serde_json::{Value, json};

use self::words::Words;
use super::{Outcome, Output};
use crate::{report::Failure, sites};

mod tree;
mod words;

/// Explain a scope: where each service of a request runs
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The scope, for example 'image: site1 & (site2; site3)'
    scope: String,
    /// A list of the known sites and their round trips, in plain text or JSON; `-` reads it from
    /// standard input
    #[arg(long, value_name = "FILE")]
    sites: Option<PathBuf>,
    /// Show what a request does that arrives at this site
    #[arg(long, value_name = "SITE")]
    here: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, output: Output) -> Result<Outcome, Failure> {
    let text = &arguments.scope;
    let scope = scope::parse(text).map_err(|error| Failure::scope(text, &error))?;
    let catalogue = arguments.sites.as_deref().map(sites::read).transpose()?;
    for (_, place) in scope.services() {
        let checked = match &catalogue {
            Some(catalogue) => evaluate(place, catalogue).map(|_| ()),
            None => check(place),
        };
        checked.map_err(|error| Failure::scope(text, &error))?;
    }
    let here = arguments.here.as_deref().map(|name| site(name, catalogue.as_ref())).transpose()?;
    let explained = Explained { scope: &scope, catalogue: catalogue.as_ref(), here };
    let text = output.local(|| explained.text(), || format!("{:#}\n", explained.json()))?;
    Ok(Outcome::success(text))
}

/// The site of `--here`.
fn site(name: &str, catalogue: Option<&Catalogue>) -> Result<SiteId, Failure> {
    let invalid = || Failure::input("invalid site for `--here`").at(name, 0..name.len());
    let site: SiteId = name.parse().map_err(|error| invalid().caused_by(error))?;
    match catalogue {
        Some(catalogue) if !catalogue.knows(&site) => {
            let failure = invalid().caused_by(format!("unknown site `{site}`"));
            Err(match catalogue.suggest(name) {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
        _ => Ok(site),
    }
}

/// A scope that was found to be good, and what is known about it.
struct Explained<'a> {
    scope: &'a Scope,
    catalogue: Option<&'a Catalogue>,
    here: Option<SiteId>,
}

impl Explained<'_> {
    fn text(&self) -> String {
        let services: Vec<_> = self.scope.services().collect();
        let trees =
            services.iter().map(|(service, place)| tree::draw(service, place, self.catalogue));
        let sentences = services.iter().map(|(service, place)| {
            let words = self.words().service(place);
            format!("{service}: {words}\n{}", self.requests(service, place))
        });
        format!(
            "{}\n\n{}\n{}Every other service runs where the request is.\n",
            self.scope,
            trees.collect::<Vec<_>>().join("\n"),
            sentences.collect::<Vec<_>>().concat()
        )
    }

    /// What requests do that arrive at the site of `--here`, if there is one.
    fn requests(&self, service: &ServiceName, place: &Place) -> String {
        let Some(here) = &self.here else { return String::new() };
        let line = |(what, access)| {
            let words = match self.route(service, place, access, here) {
                Some(route) => words::route(&route),
                None => "depends on the list of sites; give it with --sites".to_owned(),
            };
            format!("  a {what} at {here}: {words}\n")
        };
        [("read", Access::Read), ("write", Access::Write)].map(line).concat()
    }

    fn json(&self) -> Value {
        let services: Vec<Value> = self
            .scope
            .services()
            .map(|(service, place)| {
                let mut explained = json!({
                    "Service": service.as_str(),
                    "Place": place.to_string(),
                    "Tree": tree::json(place, self.catalogue),
                    "Words": self.words().service(place),
                });
                if let Some(here) = &self.here {
                    let route =
                        |access| self.route(service, place, access, here).map(|route| legs(&route));
                    explained["Here"] = json!(here.as_str());
                    explained["Read"] = json!(route(Access::Read));
                    explained["Write"] = json!(route(Access::Write));
                }
                explained
            })
            .collect();
        json!({ "Scope": self.scope.to_string(), "Services": services })
    }

    fn words(&self) -> Words<'_> {
        Words { catalogue: self.catalogue }
    }

    /// What a request does; none if that depends on sites that nobody has listed.
    fn route(
        &self,
        service: &ServiceName,
        place: &Place,
        access: Access,
        here: &SiteId,
    ) -> Option<Route> {
        let named = match self.catalogue {
            Some(_) => Vec::new(),
            None => sites_named(place)?,
        };
        let named = Catalogue::new(named);
        decide(self.scope, service, access, here, self.catalogue.unwrap_or(&named)).ok()
    }
}

/// The sites that a place names; none if it means others too.
fn sites_named(place: &Place) -> Option<Vec<SiteId>> {
    match place.node() {
        Node::Site(site) => Some(vec![site.clone()]),
        Node::Around(_) | Node::Everywhere => None,
        Node::Once(place) => sites_named(place),
        Node::Several(_, places) => {
            let named: Option<Vec<_>> = places.iter().map(sites_named).collect();
            named.map(|named| named.concat())
        }
    }
}

fn legs(route: &Route) -> Vec<Value> {
    let names = |sites: &Sites| -> Vec<String> { sites.iter().map(ToString::to_string).collect() };
    let leg = |leg: &Leg| match leg {
        Leg::Local => json!("Local"),
        Leg::Forward(site) => json!({ "Forward": site.as_str() }),
        Leg::Replicate(sites) => json!({ "Replicate": names(sites) }),
        Leg::Once(sites) => json!({ "Once": names(sites) }),
        Leg::Across(parts) => json!({ "Across": parts.iter().map(names).collect::<Vec<_>>() }),
    };
    route.attempts().iter().map(leg).collect()
}
