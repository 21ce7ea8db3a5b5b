//! A drawing of which operation knew of which: forks where sites did not know of each other, joins where
//! they met.
//!
//! Time goes to the right: each operation has a column of its own. Each site has a lane, and further ones
//! if it received operations that did not know of each other. A line leads from an operation to those that
//! directly follow it. Pure. What must stay true: a line touches no operation but those that it joins, two
//! lines between other operations do not lie on each other unless there are very many, and one history has
//! one drawing.

use std::collections::{BTreeMap, BTreeSet};

use cheops_agent::api::model::{Fate, Operation};
use maud::{Markup, html};

/// The width of a column.
const COLUMN: usize = 56;
/// The height of a lane.
const LANE: usize = 56;
/// The radius of an operation.
const RADIUS: usize = 13;
/// How many lines may run beside each other between two lanes.
const TRACKS: usize = 5;
/// The room between two such lines.
const TRACK: usize = 4;
/// How wide a letter of a name is, at most.
const LETTER: usize = 9;

/// Where everything stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The lane of each operation, in their order; its column is its place in that.
    pub(crate) lane_of: Vec<usize>,
    /// The site of each lane.
    pub(crate) sites: Vec<String>,
    pub(crate) lines: Vec<Line>,
    /// The operations that follow one that is not drawn.
    pub(crate) older: Vec<usize>,
}

/// A line from an operation to one that directly follows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Where it runs, if the two are not neighbours.
    pub(crate) track: Option<Track>,
}

/// A way between two lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Track {
    /// Above this lane, which is never the first.
    pub(crate) lane: usize,
    /// Which of those that are there.
    pub(crate) number: usize,
}

/// Places operations, oldest first: the id, the site and the parents of each.
pub(crate) fn layout(operations: &[(&str, &str, &[String])]) -> Layout {
    let column: BTreeMap<&str, usize> =
        operations.iter().enumerate().map(|(n, (id, ..))| (*id, n)).collect();
    let mut known: Vec<BTreeSet<usize>> = Vec::new();
    let mut parents: Vec<Vec<usize>> = Vec::new();
    let mut older = Vec::new();
    for (n, (_, _, names)) in operations.iter().enumerate() {
        // What is listed after its follower, which no clock allows, is not drawn as its parent.
        let drawn: Vec<usize> = names
            .iter()
            .filter_map(|id| column.get(id.as_str()).copied())
            .filter(|p| *p < n)
            .collect();
        if drawn.len() < names.len() {
            older.push(n);
        }
        let through: BTreeSet<usize> =
            drawn.iter().flat_map(|p| known[*p].iter().copied()).collect();
        let direct: BTreeSet<usize> =
            drawn.iter().copied().filter(|p| !through.contains(p)).collect();
        known.push(through.into_iter().chain(drawn).collect());
        parents.push(direct.into_iter().collect());
    }
    let (lane_of, sites) = lanes(operations, &known);
    let lines = lines(&lane_of, &parents);
    Layout { lane_of, sites, lines, older }
}

/// The lane of each operation, and the site of each lane.
fn lanes(
    operations: &[(&str, &str, &[String])],
    known: &[BTreeSet<usize>],
) -> (Vec<usize>, Vec<String>) {
    // By site, chains of operations each of which knows the one before.
    let mut chains: BTreeMap<&str, Vec<Vec<usize>>> = BTreeMap::new();
    for (n, (_, site, _)) in operations.iter().enumerate() {
        let chains = chains.entry(site).or_default();
        let goes_on =
            |chain: &&mut Vec<usize>| chain.last().is_some_and(|last| known[n].contains(last));
        match chains.iter_mut().find(goes_on) {
            Some(chain) => chain.push(n),
            None => chains.push(vec![n]),
        }
    }
    let mut lane_of = vec![0; operations.len()];
    let mut sites = Vec::new();
    for (site, chains) in chains {
        for chain in chains {
            for n in chain {
                lane_of[n] = sites.len();
            }
            sites.push(site.to_owned());
        }
    }
    (lane_of, sites)
}

/// The lines, each with a way that others don't use at the same time.
fn lines(lane_of: &[usize], parents: &[Vec<usize>]) -> Vec<Line> {
    // For each gap between lanes and each of its tracks, the column up to which it is taken.
    let mut taken: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut lines: Vec<Line> = parents
        .iter()
        .enumerate()
        .flat_map(|(to, parents)| parents.iter().map(move |&from| Line { from, to, track: None }))
        .collect();
    lines.sort_unstable_by_key(|line| (line.from, line.to));
    for line in &mut lines {
        let (from, to) = (lane_of[line.from], lane_of[line.to]);
        let between = |n: usize| lane_of[n] == from;
        let is_free = from == to && !(line.from + 1..line.to).any(between);
        if line.to == line.from + 1 || is_free {
            continue;
        }
        // Beside the lane that it leads to, on the side that it comes from.
        let lane = if from < to { to } else { to + 1 };
        let tracks = taken.entry(lane).or_default();
        let number = match tracks.iter().position(|until| *until <= line.from) {
            Some(free) => free,
            None if tracks.len() < TRACKS => {
                tracks.push(0);
                tracks.len() - 1
            }
            // Too many to tell them apart anyhow.
            None => line.to % TRACKS,
        };
        tracks[number] = line.to;
        line.track = Some(Track { lane, number });
    }
    lines
}

/// Draws operations, oldest first.
pub(crate) fn draw(operations: &[&Operation]) -> Markup {
    let shape: Vec<(&str, &str, &[String])> = operations
        .iter()
        .map(|op| (op.id.as_str(), crate::resource::site_of(&op.id), op.parents.as_slice()))
        .collect();
    let layout = layout(&shape);
    let longest = layout.sites.iter().map(|site| site.chars().count()).max().unwrap_or_default();
    let frame = Frame { left: longest.min(20) * LETTER + COLUMN };
    let (width, height) = (frame.left + operations.len() * COLUMN, layout.sites.len() * LANE + 16);
    let label = format!(
        "{} operations and {} lines between them; the table says the same under “knew of”",
        operations.len(),
        layout.lines.len(),
    );
    html! {
        svg.graph width=(width) height=(height) viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(label) {
            @for (n, site) in layout.sites.iter().enumerate() {
                @let y = Frame::y(n);
                line.lane x1="0" x2=(width) y1=(y) y2=(y) {}
                @if n == 0 || layout.sites[n - 1] != *site { text.site x="4" y=(y - 6) { (site) } }
            }
            @for &n in &layout.older {
                @let (x, y) = (frame.x(n), Frame::y(layout.lane_of[n]));
                line.older x1=(x - COLUMN / 2) x2=(x - RADIUS) y1=(y) y2=(y) { title { "follows older ones" } }
            }
            @for line in &layout.lines { path.knew d=(frame.path(&layout, line)) {} }
            @for (n, operation) in operations.iter().enumerate() {
                (mark(operation, frame.x(n), Frame::y(layout.lane_of[n])))
            }
        }
    }
}

/// An operation: its place in the block, or how it left.
fn mark(operation: &Operation, x: usize, y: usize) -> Markup {
    let (class, sign) = match operation.fate {
        Fate::Kept => ("kept", operation.place.map(|place| place.to_string()).unwrap_or_default()),
        Fate::Over => ("over", "–".to_owned()),
        Fate::Fallen => ("fallen", "↓".to_owned()),
        Fate::Void => ("void", "×".to_owned()),
    };
    html! {
        g class={ "op " (class) } {
            title { (operation.id) " · " (operation.kind) " · " (crate::resource::first(&operation.command)) }
            circle cx=(x) cy=(y) r=(RADIUS) {}
            text x=(x) y=(y + 5) text-anchor="middle" { (sign) }
        }
    }
}

/// From places to points.
struct Frame {
    left: usize,
}

impl Frame {
    fn x(&self, column: usize) -> usize {
        self.left + column * COLUMN
    }

    fn y(lane: usize) -> usize {
        lane * LANE + LANE / 2 + 4
    }

    fn path(&self, layout: &Layout, line: &Line) -> String {
        let (x1, y1) = (self.x(line.from), Self::y(layout.lane_of[line.from]));
        let (x2, y2) = (self.x(line.to), Self::y(layout.lane_of[line.to]));
        let half = COLUMN / 2;
        match line.track {
            None if y1 == y2 => format!("M{x1} {y1}H{x2}"),
            None => format!("M{x1} {y1}C{} {y1} {} {y2} {x2} {y2}", x1 + half, x2 - half),
            Some(track) => {
                // Around the middle of the gap.
                let y = track.lane * LANE + 4 + track.number * TRACK - TRACKS / 2 * TRACK;
                let (a, b) = (x1 + half, x2 - half);
                format!("M{x1} {y1}C{a} {y1} {x1} {y} {a} {y}H{b}C{x2} {y} {b} {y2} {x2} {y2}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Layout {
        // `a1 b1<a1` is a1, and b1 that knows of it; the first letter is the site.
        let operations: Vec<(&str, Vec<String>)> = text
            .split_whitespace()
            .map(|word| {
                let (id, parents) = word.split_once('<').unwrap_or((word, ""));
                (id, parents.split(',').filter(|p| !p.is_empty()).map(str::to_owned).collect())
            })
            .collect();
        let shape: Vec<(&str, &str, &[String])> =
            operations.iter().map(|(id, parents)| (*id, &id[..1], parents.as_slice())).collect();
        layout(&shape)
    }

    fn pairs(layout: &Layout) -> Vec<(usize, usize)> {
        layout.lines.iter().map(|line| (line.from, line.to)).collect()
    }

    #[test]
    fn lines_join_what_directly_follows() {
        for (text, places, lines) in [
            ("", vec![], vec![]),
            ("a1", vec![0], vec![]),
            ("a1 a2<a1 a3<a2", vec![0, 0, 0], vec![(0, 1), (1, 2)]),
            // A fork and a join.
            ("a1 a2<a1 b1<a1 a3<a2,b1", vec![0, 0, 1, 0], vec![(0, 1), (0, 2), (1, 3), (2, 3)]),
            // What is known through another parent needs no line.
            ("a1 b1<a1 a2<a1,b1", vec![0, 1, 0], vec![(0, 1), (1, 2)]),
            // Operations of one site that did not know of each other.
            ("a1 a2 a3<a2", vec![0, 1, 1], vec![(1, 2)]),
            // A parent that is listed later is no parent.
            ("a1<b1 b1", vec![0, 1], vec![]),
        ] {
            let layout = place(text);
            assert_eq!((&layout.lane_of, pairs(&layout)), (&places, lines), "{text}");
        }
    }

    #[test]
    fn what_follows_older_operations_is_told() {
        assert_eq!(place("a2<a1 a3<a2,b7").older, [0, 1]);
        assert_eq!(place("a1 a2<a1").older, [0; 0]);
    }

    #[test]
    fn a_line_goes_around_operations_between_its_ends() {
        // b1 lies on the lane between a1 and c1 in time; a1 to c1 has to keep off the lanes.
        let layout = place("a1 b1 c1<a1 c2<b1,c1");
        let track = |from, to| {
            layout.lines.iter().find(|line| (line.from, line.to) == (from, to)).unwrap().track
        };
        assert_eq!(track(0, 2), Some(Track { lane: 2, number: 0 }));
        assert_eq!(track(1, 3), Some(Track { lane: 2, number: 1 }));
        // Neighbours, and those on one free lane, need no way around.
        assert_eq!(track(2, 3), None);
        assert_eq!(place("a1 b1 a2<a1").lines[0].track, None);
    }

    #[test]
    fn lines_at_the_same_time_have_ways_of_their_own() {
        let many: String =
            (0..4).map(|n| format!("a{n} ")).chain((0..4).map(|n| format!("b{n}<a{n} "))).collect();
        let layout = place(&many);
        for (n, line) in layout.lines.iter().enumerate() {
            for other in &layout.lines[..n] {
                let meet = line.from < other.to && other.from < line.to;
                assert!(
                    !meet || line.track != other.track || line.track.is_none(),
                    "{line:?} {other:?}"
                );
            }
        }
    }
}
