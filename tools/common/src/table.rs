//! Tables for people, drawn in characters that every terminal and log has.
//! Used by the sweep of `ucx-perftest` and by `ucx-info`. Never used for output that scripts read: that is JSON or CSV.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table as Grid, presets};

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table with a head and rows.
pub struct Table {
    grid: Grid,
    align: Vec<Align>,
}

impl Table {
    /// A table whose columns have these titles.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let mut grid = Grid::new();
        grid.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        let align: Vec<Align> = columns.iter().map(|c| c.1).collect();
        grid.set_header(cells(&align, columns.iter().map(|c| c.0.to_owned())));
        Table { grid, align }
    }

    /// Adds a row.
    pub fn row(&mut self, texts: impl IntoIterator<Item = String>) {
        self.grid.add_row(cells(&self.align, texts));
    }

    /// The rows so far.
    pub fn len(&self) -> usize {
        self.grid.row_count()
    }

    /// True when no row was added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn cells(align: &[Align], texts: impl IntoIterator<Item = String>) -> Vec<Cell> {
    align
        .iter()
        .zip(texts)
        .map(|(align, text)| match align {
            Align::Left => Cell::new(text),
            Align::Right => Cell::new(text).set_alignment(CellAlignment::Right),
        })
        .collect()
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.grid.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_right() {
        let mut table = Table::new(&[("test", Align::Left), ("usec", Align::Right)]);
        table.row(["am_lat".into(), "0.1".into()]);
        assert_eq!(table.to_string(), "| test   | usec |\n|--------|------|\n| am_lat |  0.1 |");
        assert_eq!(table.len(), 1);
    }
}
