//! Figures as `versus` saves them (a line of JSON each) and as tables of Markdown show them, and the places in documents
//! where such tables stand. Called by the binaries `versus` and `figures`. Measures nothing.
//!
//! A table stands between two comments of its document; the first says which figures it shows:
//!
//! ```text
//! <!-- figures: ucx; only: uct am_lat | ucp tag_lat 8 B -->
//! ...
//! <!-- /figures -->
//! ```
//!
//! `ucx` is the file `ucx.json` of a folder of saved figures; `only` lists what names of rows begin with, all if it is
//! missing. What has no file stays as it is.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// One line of a saved file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SavedLine {
    /// A comparison.
    Figure(Figure),
    /// How and where the figures of the file were taken.
    Note {
        /// A sentence.
        note: String,
    },
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    #[serde(rename = "row")]
    pub name: String,
    /// Of both figures.
    pub unit: String,
    /// What ours is put sibling_program, and its version.
    pub against: String,
    /// `lower` or `higher`.
    pub better: String,
    /// Of all runs.
    pub typical: Sides,
    /// Of those runs that had the processors near each other; none if these were too few.
    pub undisturbed: Option<Sides>,
}

/// Both sides of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sides {
    /// Median of our runs.
    pub ours: f64,
    /// Median of theirs.
    pub theirs: f64,
    /// Ours over theirs.
    pub ratio: f64,
    /// How many runs of each.
    pub runs: [usize; 2],
}

impl Figure {
    /// The figures to be believed: undisturbed if there are any.
    pub fn best(&self) -> &Sides {
        self.undisturbed.as_ref().unwrap_or(&self.typical)
    }

    /// What a cell of a table says: the undisturbed number, and in brackets the typical one unless it is of the same runs.
    fn cell(&self, number: impl Fn(&Sides) -> String) -> String {
        match &self.undisturbed {
            Some(sides) if *sides == self.typical => number(sides),
            Some(sides) => format!("{} ({})", number(sides), number(&self.typical)),
            None => format!("({})", number(&self.typical)),
        }
    }
}

/// What went wrong with a saved file or a document.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Its path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A line of a saved file is none.
    #[error("{path}, line {line}: not a figure: {source}")]
    BadLine {
        /// Its path.
        path: String,
        /// From 1.
        line: usize,
        /// Why.
        source: serde_json::Error,
    },
    /// A comment that begins a table and none that ends it.
    #[error("line {line}: '<!-- figures: {name} -->' has no '<!-- /figures -->'")]
    UnclosedTable {
        /// From 1.
        line: usize,
        /// Of the table.
        name: String,
    },
    /// A table whose `only` fits no row.
    #[error("figures '{name}': no row begins with '{only}'")]
    NoMatch {
        /// Of the table.
        name: String,
        /// What was looked for.
        only: String,
    },
}

fn file_error(path: &Path) -> impl Fn(std::io::Error) -> FigureError + '_ {
    |source| FigureError::File { path: path.display().to_string(), source }
}

/// Reads a saved file.
pub fn read(path: &Path) -> Result<Vec<SavedLine>, FigureError> {
    let text = std::fs::read_to_string(path).map_err(file_error(path))?;
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let parse = |(n, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| FigureError::BadLine {
            path: path.display().to_string(),
            line: n + 1,
            source,
        })
    };
    lines.map(parse).collect()
}

/// Three significant digits, as a person reads a table.
pub fn three_digits(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// A table of Markdown, and the notes below it.
pub fn table(lines: &[SavedLine]) -> String {
    let mut text = String::new();
    let mut against = None;
    for line in lines {
        let SavedLine::Figure(f) = line else { continue };
        if against != Some(&f.against) {
            let other = f.against.split(' ').next().unwrap_or_default();
            text += &format!(
                "| measurement | unit | ours | {} | ours ÷ {other} | better |\n|---|---|--:|--:|--:|---|\n",
                f.against
            );
            against = Some(&f.against);
        }
        text += &format!(
            "| {} | {} | {} | {} | {} | {} |\n",
            f.name,
            f.unit,
            f.cell(|sides| three_digits(sides.ours)),
            f.cell(|sides| three_digits(sides.theirs)),
            f.cell(|sides| format!("{:.2}", sides.ratio)),
            f.better
        );
    }
    for line in lines {
        if let SavedLine::Note { note } = line {
            text += &format!("\n{note}\n");
        }
    }
    text
}

/// Where a table begins.
struct Marker<'a> {
    name: &'a str,
    only: Vec<&'a str>,
}

impl<'a> Marker<'a> {
    fn parse(line: &'a str) -> Option<Marker<'a>> {
        let inner = line.trim().strip_prefix("<!-- figures:")?.strip_suffix("-->")?;
        let (name, only) = inner.split_once("; only:").unwrap_or((inner, ""));
        let only = only.split('|').map(str::trim).filter(|o| !o.is_empty()).collect();
        Some(Marker { name: name.trim(), only })
    }

    fn choose(&self, lines: Vec<SavedLine>) -> Result<Vec<SavedLine>, FigureError> {
        if self.only.is_empty() {
            return Ok(lines);
        }
        let named =
            |line: &SavedLine, only: &str| matches!(line, SavedLine::Figure(f) if f.name.starts_with(only));
        if let Some(only) = self.only.iter().find(|only| !lines.iter().any(|l| named(l, only))) {
            return Err(FigureError::NoMatch { name: self.name.into(), only: (*only).into() });
        }
        Ok(lines
            .into_iter()
            .filter(|l| matches!(l, SavedLine::Note { .. }) || self.only.iter().any(|only| named(l, only)))
            .collect())
    }
}

/// `document` with every table made anew of which `saved` answers the figures. Answers the names of the others too.
pub fn fill(
    document: &str,
    mut saved: impl FnMut(&str) -> Result<Option<Vec<SavedLine>>, FigureError>,
) -> Result<(String, Vec<String>), FigureError> {
    let (mut out, mut kept) = (String::new(), Vec::new());
    let mut lines = document.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        out.push_str(line);
        out.push('\n');
        let Some(marker) = Marker::parse(line) else { continue };
        let mut old = String::new();
        let end = loop {
            match lines.next() {
                Some((_, line)) if line.trim() == "<!-- /figures -->" => break line,
                Some((_, line)) if Marker::parse(line).is_none() => {
                    old.push_str(line);
                    old.push('\n');
                }
                _ => return Err(FigureError::UnclosedTable { line: n + 1, name: marker.name.into() }),
            }
        };
        match saved(marker.name)? {
            Some(new) => out.push_str(&table(&marker.choose(new)?)),
            None => {
                kept.push(marker.name.to_owned());
                out.push_str(&old);
            }
        }
        out.push_str(end);
        out.push('\n');
    }
    Ok((out, kept))
}

/// Fills a document in place from a folder of saved files. Answers the names of tables that stayed as they were.
pub fn fill_file(document: &Path, folder: &Path) -> Result<Vec<String>, FigureError> {
    let text = std::fs::read_to_string(document).map_err(file_error(document))?;
    let (new, kept) = fill(&text, |name| {
        let path = folder.join(format!("{name}.json"));
        path.exists().then(|| read(&path)).transpose()
    })?;
    if new != text {
        std::fs::write(document, new).map_err(file_error(document))?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides(ours: f64, theirs: f64, runs: usize) -> Sides {
        Sides { ours, theirs, ratio: ours / theirs, runs: [runs; 2] }
    }

    fn figure(name: &str, typical: Sides, undisturbed: Option<Sides>) -> SavedLine {
        let (unit, against, better) = ("µs".into(), "UCX 1.2".into(), "lower".into());
        SavedLine::Figure(Figure { name: name.into(), unit, against, better, typical, undisturbed })
    }

    /// Of which all runs are alike.
    fn plain(name: &str, ours: f64, theirs: f64) -> SavedLine {
        figure(name, sides(ours, theirs, 3), Some(sides(ours, theirs, 3)))
    }

    fn note(text: &str) -> SavedLine {
        SavedLine::Note { note: text.into() }
    }

    const DOC: &str = "# a\n<!-- figures: one; only: b -->\nold\n<!-- /figures -->\nmiddle\n<!-- figures: two -->\nstays\n\
                       <!-- /figures -->\nend\n";

    #[test]
    fn tables_are_made_anew_where_there_are_figures() {
        let lines = vec![plain("a 8 B", 1.0, 2.0), plain("b 8 B", 3.0, 2.0), note("How.")];
        let (text, kept) = fill(DOC, |name| Ok((name == "one").then(|| lines.clone()))).unwrap();
        assert_eq!(kept, ["two"]);
        let want = "# a\n<!-- figures: one; only: b -->\n\
            | measurement | unit | ours | UCX 1.2 | ours ÷ UCX | better |\n|---|---|--:|--:|--:|---|\n\
            | b 8 B | µs | 3.00 | 2.00 | 1.50 | lower |\n\nHow.\n<!-- /figures -->\nmiddle\n\
            <!-- figures: two -->\nstays\n<!-- /figures -->\nend\n";
        assert_eq!(text, want);
        // Again: the same.
        assert_eq!(fill(&text, |name| Ok((name == "one").then(|| lines.clone()))).unwrap().0, want);
    }

    #[test]
    fn what_all_runs_say_stands_in_brackets() {
        let typical = sides(3.0, 4.0, 9);
        let text = table(&[
            figure("a", typical.clone(), Some(sides(1.0, 2.0, 5))),
            figure("b", typical.clone(), None),
            figure("c", typical.clone(), Some(typical)),
        ]);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| a | µs | 1.00 (3.00) | 2.00 (4.00) | 0.50 (0.75) | lower |",
                "| b | µs | (3.00) | (4.00) | (0.75) | lower |",
                "| c | µs | 3.00 | 4.00 | 0.75 | lower |",
            ]
        );
    }

    #[test]
    fn a_broken_document_is_told() {
        let none = |_: &str| Ok(None);
        let error = |doc: &str| fill(doc, none).unwrap_err().to_string();
        assert_eq!(
            error("x\n<!-- figures: a -->\n"),
            "line 2: '<!-- figures: a -->' has no '<!-- /figures -->'"
        );
        assert!(
            error("<!-- figures: a -->\n<!-- figures: b -->\n<!-- /figures -->\n").starts_with("line 1: ")
        );
        let some = |_: &str| Ok(Some(vec![plain("a", 1.0, 1.0)]));
        assert_eq!(fill(DOC, some).unwrap_err().to_string(), "figures 'one': no row begins with 'b'");
    }

    #[test]
    fn saved_lines_come_back() {
        let lines = [plain("a", 1.5, 2.0), figure("b", sides(1.0, 2.0, 9), None), note("How.")];
        for line in lines {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<SavedLine>(&text).unwrap(), line);
        }
        assert!(serde_json::from_str::<SavedLine>("{\"row\":\"a\"}").is_err());
    }
}
