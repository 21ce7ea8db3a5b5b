//! Tables as kubectl writes them: a line of titles, no borders, columns three spaces apart.
//!
//! What must stay true: every cell is clean, so a row is one line; colours are put on after the
//! columns have their widths, so that they don't count.

use std::fmt::Write;

use anstyle::Style;
use comfy_table::{ContentArrangement, presets};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::report::clean;

/// How far columns stand apart.
const GAP: u16 = 3;

/// A cell, and how it looks on a terminal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell in a colour of its own.
    pub(crate) fn styled(text: impl AsRef<str>, style: Style) -> Self {
        Self { text: clean(text.as_ref()), style }
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::styled(text, Style::new())
    }
}

/// A table that is being filled.
#[derive(Debug, Default)]
pub(crate) struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

impl Table {
    /// A table with these titles.
    pub(crate) fn new<const N: usize>(titles: [&str; N]) -> Self {
        Self { titles: titles.map(str::to_owned).to_vec(), ..Self::default() }
    }

    /// A table without titles.
    pub(crate) fn untitled() -> Self {
        Self::default()
    }

    /// So many spaces in front of each line.
    pub(crate) fn indented(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// More columns on the right.
    pub(crate) fn titles<'a>(&mut self, titles: impl IntoIterator<Item = &'a str>) {
        self.titles.extend(titles.into_iter().map(clean));
    }

    /// Adds a row. What has no title can't stand in it.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Adds rows.
    pub(crate) fn rows(&mut self, rows: Vec<Vec<Cell>>) {
        self.rows.extend(rows);
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, each line ended.
    pub(crate) fn render(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        let titles = usize::from(!self.titles.is_empty());
        if titles > 0 {
            table.set_header(self.titles.clone());
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| &cell.text));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, GAP));
        }
        let widths: Vec<usize> = table
            .column_max_content_widths()
            .into_iter()
            .map(|width| usize::from(width + GAP))
            .collect();
        let indent = " ".repeat(self.indent);
        let mut text = String::new();
        for (n, line) in table.lines().enumerate() {
            let line = match n.checked_sub(titles).and_then(|n| self.rows.get(n)) {
                Some(row) => coloured(&line, row, &widths),
                None => line,
            };
            text += &indent;
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// A line of a table with the colours of its cells.
fn coloured(line: &str, row: &[Cell], widths: &[usize]) -> String {
    let mut rest = line;
    let mut text = String::new();
    for (cell, width) in row.iter().zip(widths) {
        let (part, after) = rest.split_at(bytes_of(rest, *width));
        let pad = &part[cell.text.len().min(part.len())..];
        let style = cell.style;
        if style.is_plain() || cell.text.is_empty() {
            text += part;
        } else {
            let (begin, end) = (style.render(), style.render_reset());
            // Writing to a string can't fail.
            let _ = write!(text, "{begin}{}{end}{pad}", cell.text);
        }
        rest = after;
    }
    text + rest
}

/// How many bytes take up so many columns of a screen.
fn bytes_of(text: &str, width: usize) -> usize {
    let mut column = 0;
    for (at, c) in text.char_indices() {
        if column >= width {
            return at;
        }
        column += c.width().unwrap_or(0);
    }
    text.len()
}

/// How wide the widest of some names is on a screen.
pub(crate) fn widest<'a>(names: impl IntoIterator<Item = &'a str>) -> usize {
    names.into_iter().map(|name| clean(name).width()).max().unwrap_or(0)
}

/// A name, clean, with spaces up to a width.
pub(crate) fn padded(name: &str, width: usize) -> String {
    let name = clean(name);
    let pad = width.saturating_sub(name.width());
    name + &" ".repeat(pad)
}

#[cfg(test)]
mod tests {
    use anstyle::AnsiColor;

    use super::*;

    #[test]
    fn a_table_has_no_borders_and_no_trailing_spaces() {
        let mut table = Table::new(["NAME", "STATE"]);
        table.row(["日本".into(), "ok".into()]);
        table.row(["a\nb".into(), Cell::from("")]);
        assert_eq!(table.render(), "NAME   STATE\n日本   ok\na b\n");
        assert_eq!(table.indented(2).render(), "  NAME   STATE\n  日本   ok\n  a b\n");
    }

    #[test]
    fn colours_take_no_room() {
        let red = AnsiColor::Red.on_default();
        let mut table = Table::untitled();
        table.row(["日本".into(), Cell::styled("KO", red), "x".into()]);
        table.row(["a".into(), "longer".into(), "y".into()]);
        let text = table.render();
        assert!(text.contains(&format!("{red}KO{red:#}")), "{text:?}");
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "日本   KO       x\na      longer   y\n"
        );
    }

    #[test]
    fn what_came_in_does_not_act_on_the_terminal() {
        let mut table = Table::untitled();
        table.row(["\u{1b}[31mred".into()]);
        assert_eq!(table.render(), "\u{fffd}[31mred\n");
    }
}
