//! The sites and their links, as a drawing.
//!
//! Few sites stand on an ellipse, each with its name, and all links that are known are lines between them. Of
//! many, this one stands in the middle and the others around it; those out of reach are named, and any other
//! that one points at. What must stay true: nothing is told by colour alone; what was known once is not drawn
//! as what is so now; and how much is drawn grows with the number of sites and not with that of their links.

use std::{
    collections::{BTreeMap, BTreeSet},
    f64::consts::TAU,
};

use cheops_agent::api::model::{Site, SiteState};
use maud::{Markup, html};

use crate::{
    sites::Seen,
    words::{site_state, span},
};

/// The most sites whose links are all drawn: more would be a tangle.
const FEW: usize = 12;
/// So many have room in a small drawing.
const VERY_FEW: usize = 8;
/// How much of a name there is room for.
const NAME: usize = 16;
/// How many of those out of reach are named beside the ring; with more, the table below is easier to read.
const NAMED: usize = 24;

pub(crate) fn drawing(seen: &Seen) -> Markup {
    match seen.sites.sites.len() {
        0 | 1 => html! {},
        count if count <= FEW => ellipse(seen),
        _ => ring(seen),
    }
}

/// The sites on an ellipse, with the links that are known between them.
fn ellipse(seen: &Seen) -> Markup {
    let names: Vec<&str> = seen.sites.sites.iter().map(|site| site.name.as_str()).collect();
    let places = places(names.len(), (240.0, 115.0), (300.0, 150.0));
    let links = links(seen, &names);
    let label = format!("{} sites, {} links", names.len(), links.len());
    html! {
        svg.drawing.few[names.len() <= VERY_FEW] viewBox="0 0 600 320" role="img" aria-label=(label) {
            @for link in &links {
                @let ((x1, y1), (x2, y2)) = (places[link.from], places[link.to]);
                line class=(link.colour) x1=(x1) y1=(y1) x2=(x2) y2=(y2) stroke-dasharray=[link.dashes] {
                    title { (names[link.from]) " – " (names[link.to]) ": " (link.text) }
                }
            }
            @for (site, (x, y)) in seen.sites.sites.iter().zip(&places) {
                circle class=(site_state(site.state).1) cx=(x) cy=(y) r="11" {}
                text x=(x) y=(y + 28.0) text-anchor="middle" { title { (site.name) } (short(&site.name)) }
            }
        }
    }
}

/// This site in the middle, and all others around it.
fn ring(seen: &Seen) -> Markup {
    const MIDDLE: (f64, f64) = (450.0, 230.0);
    let others: Vec<&Site> =
        seen.sites.sites.iter().filter(|site| site.state != SiteState::Here).collect();
    let lost = others.iter().filter(|site| site.state != SiteState::Reachable).count();
    let troubled = others.iter().filter(|site| seen.problems(&site.name) > 0).count();
    let label = format!(
        "{} and {} other sites around it: {lost} are out of reach, {troubled} have problems",
        seen.sites.here,
        others.len()
    );
    let places = places(others.len(), (220.0, 190.0), MIDDLE);
    html! {
        svg.drawing.ring viewBox="0 0 900 460" role="img" aria-label=(label) {
            @for (site, (x, y)) in others.iter().zip(&places) {
                @let colour = site_state(site.state).1;
                line class=(colour) x1=(MIDDLE.0) y1=(MIDDLE.1) x2=(x) y2=(y) {}
                g {
                    circle class=(colour) cx=(x) cy=(y) r="6" {}
                    // What can't be reached is hollow, what has problems has a rim.
                    @if site.state != SiteState::Reachable { circle.hollow cx=(x) cy=(y) r="3" {} }
                    @if seen.problems(&site.name) > 0 { circle.rim cx=(x) cy=(y) r="9" {} }
                    title {
                        (site.name) ": " (own(site))
                        @if seen.problems(&site.name) > 0 { ", " (seen.problems(&site.name)) " problems" }
                    }
                }
                @if lost <= NAMED && site.state != SiteState::Reachable { (name(site, (*x, *y), MIDDLE)) }
            }
            circle.good cx=(MIDDLE.0) cy=(MIDDLE.1) r="11" {}
            text x=(MIDDLE.0) y=(MIDDLE.1 + 28.0) text-anchor="middle" { title { (seen.sites.here) } (short(&seen.sites.here)) }
        }
    }
}

/// A name outside of the ring, beside its place.
fn name(site: &Site, (x, y): (f64, f64), middle: (f64, f64)) -> Markup {
    let (right, down) = (x - middle.0, y - middle.1);
    let anchor = match right {
        right if right.abs() < 40.0 => "middle",
        right if right < 0.0 => "end",
        _ => "start",
    };
    html! { text x=(x + 0.07 * right) y=(y + 0.09 * down + 5.0) text-anchor=(anchor) { title { (site.name) } (short(&site.name)) } }
}

/// A name as far as there is room for it; the table has all of it.
fn short(name: &str) -> String {
    let mut short: String = name.chars().take(NAME).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

struct Link {
    from: usize,
    to: usize,
    colour: &'static str,
    /// Those that the colour does not bring.
    dashes: Option<&'static str>,
    text: String,
}

/// The link from here to a site: how it is, and how long a round trip takes or took.
fn own(site: &Site) -> String {
    let word = site_state(site.state).0;
    match (site.state, site.round_trip_ms) {
        (SiteState::Here | SiteState::Reachable, Some(millis)) => span(millis),
        (_, Some(millis)) => format!("{word}, {} before", span(millis)),
        (_, None) => word.to_owned(),
    }
}

/// What one of two other sites says of the link between them.
struct Word<'a> {
    by: &'a Site,
    cut: bool,
    millis: Option<f64>,
}

/// A link between two other sites, by what one or both say of it. Who can be reached tells how it is now; of two
/// such words that differ, the one that it is cut is the newer or soon true of both.
fn between(from: usize, to: usize, words: &[Word<'_>]) -> Link {
    let now = words.iter().filter(|word| word.by.state == SiteState::Reachable);
    let word = now.max_by_key(|word| word.cut);
    let millis = |word: &Word<'_>| word.millis.map(span);
    let (colour, dashes, text) = match (word, words.first()) {
        (Some(word), _) if word.cut => {
            let before = millis(word).map(|span| format!(", {span} before")).unwrap_or_default();
            ("bad", None, format!("no link, says {}{before}", word.by.name))
        }
        (Some(word), _) => ("good", None, millis(word).unwrap_or_else(|| "reachable".to_owned())),
        (None, Some(word)) => {
            let said = if word.cut { Some("no link".to_owned()) } else { millis(word) };
            let said = said.unwrap_or_else(|| "reachable".to_owned());
            ("quiet", Some("4 8"), format!("not known now; {said}, as {} said last", word.by.name))
        }
        (None, None) => ("quiet", Some("4 8"), "not known".to_owned()),
    };
    Link { from, to, colour, dashes, text }
}

/// The links: those of this site as they are, and those between others as these have told.
fn links(seen: &Seen, names: &[&str]) -> Vec<Link> {
    let place = |name: &str| names.iter().position(|other| *other == name);
    let mut links = Vec::new();
    let Some(here) = place(&seen.sites.here) else { return links };
    for (n, site) in seen.sites.sites.iter().enumerate().filter(|(n, _)| *n != here) {
        let colour = site_state(site.state).1;
        links.push(Link { from: here, to: n, colour, dashes: None, text: own(site) });
    }
    let mut told: BTreeMap<(usize, usize), Vec<Word<'_>>> = BTreeMap::new();
    for offer in &seen.catalogue.sites {
        let Some(from) = place(&offer.site).filter(|from| *from != here) else { continue };
        let others: BTreeSet<&String> = offer.round_trips_ms.keys().chain(&offer.cut).collect();
        for other in others {
            let Some(to) = place(other).filter(|to| ![here, from].contains(to)) else { continue };
            let (by, cut) = (&seen.sites.sites[from], offer.cut.contains(other));
            let millis = offer.round_trips_ms.get(other).copied();
            told.entry((from.min(to), from.max(to))).or_default().push(Word { by, cut, millis });
        }
    }
    links.extend(told.iter().map(|((from, to), words)| between(*from, *to, words)));
    links
}

/// Places on an ellipse around a middle, the first at its top.
#[expect(clippy::cast_precision_loss, reason = "there are few")]
fn places(count: usize, (width, height): (f64, f64), (x, y): (f64, f64)) -> Vec<(f64, f64)> {
    let round = |n: f64| (n * 10.0).round() / 10.0;
    // Two stand beside each other.
    let first = if count == 2 { TAU / 2.0 } else { -TAU / 4.0 };
    let angle = |n: usize| TAU * n as f64 / count as f64 + first;
    (0..count)
        .map(|n| (round(x + width * angle(n).cos()), round(y + height * angle(n).sin())))
        .collect()
}

#[cfg(test)]
mod tests {
    use cheops_agent::api::model::{Catalogue, Offer, Queue, Sites, TroubleCount};

    use super::*;

    fn seen(count: usize, lost: usize) -> Seen {
        let site = |n: usize| Site {
            name: format!("site-{n:03}"),
            state: match n {
                0 => SiteState::Here,
                n if n <= lost => SiteState::Unreachable,
                _ => SiteState::Reachable,
            },
            paused_until: None,
            address: None,
            key: String::new(),
            round_trip_ms: None,
            last_seen: None,
            lag_ms: None,
            queue: Queue::default(),
            resources: 0,
            unanswered: 0,
            clock_offset_ms: None,
            key_since: None,
            certificate_expires: None,
            api_certificate_expires: None,
            error: None,
        };
        let here = "site-000".to_owned();
        Seen::new(
            Sites { here: here.clone(), sites: (0..count).map(site).collect() },
            Catalogue { here, sites: Vec::new() },
            TroubleCount::default(),
        )
    }

    #[test]
    fn a_link_is_drawn_as_it_is_now_if_that_is_known() {
        // Each: who of b and c is out of reach, what b and what c says of the other, how the line looks,
        // and what stands beside it.
        let (says, cuts) = (Some(false), Some(true));
        for (lost, b, c, looks, text) in [
            ("", says, says, r#"class="good""#, "b – c: 3.0 ms"),
            ("", None, says, r#"class="good""#, "b – c: 3.0 ms"),
            ("", cuts, cuts, r#"class="bad""#, "b – c: no link, says c, 3.0 ms before"),
            ("", cuts, says, r#"class="bad""#, "b – c: no link, says b, 3.0 ms before"),
            ("", says, cuts, r#"class="bad""#, "b – c: no link, says c, 3.0 ms before"),
            ("c", cuts, says, r#"class="bad""#, "b – c: no link, says b, 3.0 ms before"),
            ("c", says, cuts, r#"class="good""#, "b – c: 3.0 ms"),
            ("c", None, says, "stroke-dasharray", "b – c: not known now; 3.0 ms, as c said last"),
            ("bc", says, None, "stroke-dasharray", "b – c: not known now; 3.0 ms, as b said last"),
            ("bc", cuts, None, "stroke-dasharray", "b – c: not known now; no link, as b said last"),
        ] {
            let mut seen = seen(3, 0);
            for (site, name) in seen.sites.sites.iter_mut().zip(["a", "b", "c"]) {
                name.clone_into(&mut site.name);
                if lost.contains(name) {
                    site.state = SiteState::Unreachable;
                }
            }
            "a".clone_into(&mut seen.sites.here);
            for (site, other, said) in [("b", "c", b), ("c", "b", c)] {
                let Some(cut) = said else { continue };
                seen.catalogue.sites.push(Offer {
                    site: site.to_owned(),
                    services: Vec::new(),
                    round_trips_ms: [(other.to_owned(), 3.0), ("a".to_owned(), 1.0)].into(),
                    cut: cut.then(|| other.to_owned()).into_iter().collect(),
                    page: None,
                    replicates: false,
                });
            }
            let drawn = drawing(&seen).into_string();
            let lines: Vec<&str> =
                drawn.split("<line").filter(|line| line.contains("b – c: ")).collect();
            assert_eq!(lines.len(), 1, "{drawn}");
            let line = lines[0].split("</line>").next().unwrap();
            assert!(line.contains(looks), "{lost} {b:?} {c:?}: {line}");
            assert!(line.ends_with(&format!("{text}</title>")), "{lost} {b:?} {c:?}: {line}");
        }
    }

    #[test]
    fn how_a_link_is_comes_before_how_fast_it_was() {
        for (count, state, text) in [
            (2, SiteState::Reachable, "3.0 ms"),
            (2, SiteState::Paused, "paused, 3.0 ms before"),
            (2, SiteState::Unreachable, "unreachable, 3.0 ms before"),
            (FEW + 1, SiteState::Unreachable, "unreachable, 3.0 ms before"),
        ] {
            let mut seen = seen(count, 0);
            (seen.sites.sites[1].state, seen.sites.sites[1].round_trip_ms) = (state, Some(3.0));
            let drawn = drawing(&seen).into_string();
            assert!(drawn.contains(&format!("site-001: {text}</title>")), "{drawn}");
        }
    }

    #[test]
    fn of_many_sites_those_out_of_reach_are_named() {
        for (count, lost, named) in
            [(2, 0, 2), (FEW, 3, FEW), (FEW + 1, 3, 4), (100, 5, 6), (100, NAMED + 1, 1)]
        {
            let drawn = drawing(&seen(count, lost)).into_string();
            assert_eq!(drawn.matches("<text").count(), named, "{count} {lost}: {drawn}");
            assert!(drawn.contains("site-001"), "{count} {lost}");
            assert!(drawn.len() < 400 * count + 1_000, "{count}: {} bytes", drawn.len());
        }
        assert_eq!(drawing(&seen(1, 0)).into_string(), "");
    }
}
