//! A drawing of which operation knew of which, from the oldest to the newest.
//!
//! ```text
//! ●     a  site1
//! ├──╮
//! │  ●  b  site2
//! ●  │  c  site1
//! ├──╯
//! ●     d  site1
//! ```
//!
//! Each site has a column, and further ones if it received operations that did not know of each
//! other. A line leads down from an operation to those that directly follow it. Where the column
//! goes on while others still wait for an operation, its line moves aside to a column on the right.
//! What must stay true: a line that only crosses another has no corner there, so every line can be
//! followed; and one history has one drawing.

use std::collections::BTreeMap;

use cheops_core::{history::History, id::SiteId, log::Ix};

/// A line of a drawing.
pub(in crate::command) struct Line {
    pub(in crate::command) drawn: String,
    /// The operation that stands in this line; none where lines fork and join.
    pub(in crate::command) op: Option<Ix>,
}

/// Draws a history, each operation as the sign that stands for it.
pub(in crate::command) fn draw(history: &History, sign: impl Fn(Ix) -> char) -> Vec<Line> {
    let (width, lane_of) = lanes(history);
    let mut canvas = Canvas { columns: vec![None; width], lanes: width, waiting: BTreeMap::new() };
    let parents: BTreeMap<Ix, Vec<Ix>> =
        lane_of.keys().map(|&op| (op, direct_parents(history, op))).collect();
    for &parent in parents.values().flatten() {
        *canvas.waiting.entry(parent).or_default() += 1;
    }
    let mut lines = Vec::new();
    for (&op, &lane) in &lane_of {
        let parents = &parents[&op];
        let aside = canvas.move_aside(lane, parents);
        let joined = canvas.join(lane, parents);
        let forks = [aside, joined].into_iter().flatten();
        lines.extend(forks.map(|drawn| Line { drawn, op: None }));
        lines.push(Line { drawn: canvas.stand(lane, op, sign(op)), op: Some(op) });
    }
    lines
}

/// The parents of an operation, without those that it knows through another parent.
fn direct_parents(history: &History, op: Ix) -> Vec<Ix> {
    let (log, parents) = (history.log(), history.parents(op));
    let known = |&parent: &Ix| parents.iter().any(|&other| log.precedes(parent, other));
    parents.iter().copied().filter(|parent| !known(parent)).collect()
}

/// How many columns sites need, and the column of each operation.
fn lanes(history: &History) -> (usize, BTreeMap<Ix, usize>) {
    let log = history.log();
    let mut chains: BTreeMap<&SiteId, Vec<Vec<Ix>>> = BTreeMap::new();
    for (op, operation) in log.iter() {
        let chains = chains.entry(&operation.id.site).or_default();
        let goes_on =
            |chain: &&mut Vec<Ix>| chain.last().is_some_and(|&last| log.precedes(last, op));
        match chains.iter_mut().find(goes_on) {
            Some(chain) => chain.push(op),
            None => chains.push(vec![op]),
        }
    }
    let chains: Vec<Vec<Ix>> = chains.into_values().flatten().collect();
    let numbered = chains.iter().enumerate();
    let lane_of = numbered.flat_map(|(lane, chain)| chain.iter().map(move |&op| (op, lane)));
    (chains.len(), lane_of.collect())
}

/// What is being drawn, at the current line.
struct Canvas {
    /// For each column, the operation whose line comes down there.
    columns: Vec<Option<Ix>>,
    /// How many columns belong to sites; those to the right of them are for lines that moved aside.
    lanes: usize,
    /// For each operation, how many that directly follow it are still to be drawn.
    waiting: BTreeMap<Ix, usize>,
}

/// In which directions lines leave one place of the drawing.
#[derive(Default, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "a place has four sides")]
struct Cell {
    up: bool,
    down: bool,
    left: bool,
    right: bool,
    /// Lines meet here; without it, they only cross.
    joint: bool,
}

impl Canvas {
    /// Makes room in a lane for an operation with these parents, if others still wait for the one
    /// that stands there.
    fn move_aside(&mut self, lane: usize, parents: &[Ix]) -> Option<String> {
        let last = self.columns[lane]?;
        let goes_on = parents.contains(&last);
        if self.waiting(last) <= usize::from(goes_on) {
            return None;
        }
        let free = (self.lanes..self.columns.len()).find(|&column| self.columns[column].is_none());
        let aside = free.unwrap_or(self.columns.len());
        let mut cells = self.cells();
        if aside == self.columns.len() {
            self.columns.push(None);
            cells.push(Cell::default());
        }
        cells[lane].down = goes_on;
        cells[aside].down = true;
        connect(&mut cells, lane, &[aside]);
        self.columns[aside] = Some(last);
        if !goes_on {
            self.columns[lane] = None;
        }
        Some(line(&cells))
    }

    /// Leads the lines of the parents to a lane, where they don't come down there anyway. Those
    /// that nobody else waits for end.
    fn join(&mut self, lane: usize, parents: &[Ix]) -> Option<String> {
        let mut cells = self.cells();
        let above = self.columns[lane].take().filter(|last| parents.contains(last));
        for parent in parents {
            if let Some(waiting) = self.waiting.get_mut(parent) {
                *waiting -= 1;
            }
        }
        let mut sources = Vec::new();
        let columns: Vec<(usize, Ix)> =
            self.columns.iter().enumerate().filter_map(|(n, op)| Some((n, (*op)?))).collect();
        for (column, op) in columns {
            if parents.contains(&op) && above != Some(op) {
                sources.push(column);
            }
            if self.waiting(op) == 0 {
                self.columns[column] = None;
                cells[column].down = false;
            }
        }
        cells[lane].up = above.is_some();
        cells[lane].down = true;
        connect(&mut cells, lane, &sources);
        (!sources.is_empty()).then(|| line(&cells))
    }

    /// Places an operation in its lane.
    fn stand(&mut self, lane: usize, op: Ix, sign: char) -> String {
        let mut signs: Vec<char> = self.cells().into_iter().map(Cell::sign).collect();
        signs[lane] = sign;
        self.columns[lane] = (self.waiting(op) > 0).then_some(op);
        let text: String = signs.into_iter().flat_map(|sign| [sign, ' ', ' ']).collect();
        text.trim_end().to_owned()
    }

    fn waiting(&self, op: Ix) -> usize {
        self.waiting.get(&op).copied().unwrap_or(0)
    }

    /// A line in which all lines simply go down.
    fn cells(&self) -> Vec<Cell> {
        let cell = |column: &Option<Ix>| {
            let goes_down = column.is_some();
            Cell { up: goes_down, down: goes_down, ..Cell::default() }
        };
        self.columns.iter().map(cell).collect()
    }
}

/// Draws a level line that joins a column with others.
fn connect(cells: &mut [Cell], to: usize, from: &[usize]) {
    let ends = || from.iter().copied().chain([to]);
    let (Some(first), Some(last)) = (ends().min(), ends().max()) else { return };
    for (column, cell) in cells.iter_mut().enumerate() {
        cell.left |= (first + 1..=last).contains(&column);
        cell.right |= (first..last).contains(&column);
    }
    for column in ends() {
        cells[column].joint = true;
    }
}

fn line(cells: &[Cell]) -> String {
    let mut text = String::new();
    for cell in cells {
        text.push(cell.sign());
        text.push_str(if cell.right { "──" } else { "  " });
    }
    text.truncate(text.trim_end().len());
    text
}

impl Cell {
    fn sign(self) -> char {
        match (self.up, self.down, self.left, self.right) {
            (true, true, true, true) if self.joint => '┼',
            (true, true, true, true) | (_, _, false, false) if self.up || self.down => '│',
            (false, false, true, true) => '─',
            (true, true, false, true) => '├',
            (true, true, true, false) => '┤',
            (false, true, true, true) => '┬',
            (true, false, true, true) => '┴',
            (false, true, true, false) => '╮',
            (false, true, false, true) => '╭',
            (true, false, true, false) => '╯',
            (true, false, false, true) => '╰',
            _ => ' ',
        }
    }
}
