//! Tables for people, in characters that every terminal and log has. Programs get JSON or CSV instead.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table as Grid, presets};

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A table with titles and rows.
pub struct Table {
    grid: Grid,
    align: Vec<Align>,
}

impl Table {
    /// A table with these column titles.
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

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.grid.row_count()
    }

    /// Whether there are no rows.
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
    fn numbers_are_right_aligned() {
        let mut table = Table::new(&[("test", Align::Left), ("usec", Align::Right)]);
        table.row(["am_lat".into(), "0.1".into()]);
        assert_eq!(table.to_string(), "| test   | usec |\n|--------|------|\n| am_lat |  0.1 |");
        assert_eq!(table.len(), 1);
    }
}
