//! The table of releases in `docs/interop.md`: a column for each libfabric that was played, written one at a
//! time. Used by `report`.

use std::fmt::Write as _;

/// A column: its head, and a word for each row.
pub struct Column {
    pub head: String,
    pub words: Vec<(String, String)>,
}

/// Puts a column into the table, in place of one with the same head; drops rows not in `rows`.
pub fn merge(table: &str, rows: &[String], column: Column) -> String {
    let mut columns = read(table);
    match columns.iter_mut().find(|old| old.head == column.head) {
        Some(old) => *old = column,
        None => columns.push(column),
    }
    let mut text = String::from("| what |");
    for column in &columns {
        let _ = write!(text, " {} |", column.head);
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(columns.len()));
    for row in rows {
        let words: Vec<&str> = columns.iter().map(|column| column.word(row)).collect();
        if words.iter().any(|word| !word.is_empty()) {
            let _ = writeln!(text, "| {row} | {} |", words.join(" | "));
        }
    }
    text
}

impl Column {
    fn word(&self, row: &str) -> &str {
        self.words.iter().find(|(name, _)| name == row).map_or("", |(_, word)| word)
    }
}

fn read(table: &str) -> Vec<Column> {
    let mut lines = table.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let heads = lines.next().map(cells).unwrap_or_default();
    let mut columns: Vec<Column> =
        heads.into_iter().skip(1).map(|head| Column { head, words: Vec::new() }).collect();
    for row in lines.skip(1).map(cells) {
        for (column, word) in columns.iter_mut().zip(row.iter().skip(1)) {
            column.words.push((row[0].clone(), word.clone()));
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(head: &str, words: &[(&str, &str)]) -> Column {
        let words = words.iter().map(|(row, word)| ((*row).into(), (*word).into())).collect();
        Column { head: head.into(), words }
    }

    #[test]
    fn column_update_keeps_other_columns() {
        let rows = ["a", "b", "c"].map(String::from);
        let one = merge("", &rows, column("1.17", &[("a", "4 of 4"), ("c", "1 of 2")]));
        assert_eq!(one, "| what | 1.17 |\n|---|---|\n| a | 4 of 4 |\n| c | 1 of 2 |\n");
        let two = merge(&one, &rows, column("2.6", &[("b", "3 of 3")]));
        assert_eq!(
            two,
            "| what | 1.17 | 2.6 |\n|---|---|---|\n| a | 4 of 4 |  |\n| b |  | 3 of 3 |\n| c | 1 of 2 |  |\n"
        );
        let again = merge(&two, &rows[..2], column("1.17", &[("a", "5 of 5")]));
        assert_eq!(again, "| what | 1.17 | 2.6 |\n|---|---|---|\n| a | 5 of 5 |  |\n| b |  | 3 of 3 |\n");
    }
}
