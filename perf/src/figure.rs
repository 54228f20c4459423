//! Figures: saved by `versus` as lines of JSON, and written into the tables of documents by `figures`.
//!
//! A table stands between two comments; the first names the file (`ucx.json`) and the beginnings of rows to
//! show:
//! ```text
//! <!-- figures: ucx; only: uct am_lat | ucp tag_lat 8 B -->
//! ...
//! <!-- /figures -->
//! ```
//!
//! All rows are shown without `only`. A table without a file stays as it is.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// A line of a saved file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SavedLine {
    /// A comparison.
    Figure(Figure),
    /// How and where the figures were taken.
    Note {
        /// A sentence.
        note: String,
    },
}

/// A comparison of this library with another program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the case.
    #[serde(rename = "row")]
    pub name: String,
    /// Unit of both figures.
    pub unit: String,
    /// Name and version of the other program.
    pub against: String,
    /// `lower` or `higher`.
    pub better: String,
    /// Medians of all runs.
    pub typical: Sides,
    /// Medians of runs with low core-to-core latency; `None` if there are too few.
    pub undisturbed: Option<Sides>,
}

/// Medians of both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sides {
    /// Median of this library.
    pub ours: f64,
    /// Median of the other program.
    pub theirs: f64,
    /// Ours over theirs.
    pub ratio: f64,
    /// Number of runs of each.
    pub runs: [usize; 2],
}

impl Figure {
    /// The undisturbed medians, or the typical ones.
    pub fn best(&self) -> &Sides {
        self.undisturbed.as_ref().unwrap_or(&self.typical)
    }

    /// Text of a cell: the undisturbed number, then the typical one in brackets unless it has the same runs.
    fn cell(&self, number: impl Fn(&Sides) -> String) -> String {
        match &self.undisturbed {
            Some(sides) if *sides == self.typical => number(sides),
            Some(sides) => format!("{} ({})", number(sides), number(&self.typical)),
            None => format!("({})", number(&self.typical)),
        }
    }
}

/// Errors of saved files and documents.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
    /// A line of a saved file does not parse.
    #[error("{path}, line {line}: not a figure: {source}")]
    BadLine {
        /// Path of the file.
        path: String,
        /// Line, from 1.
        line: usize,
        /// Cause.
        source: serde_json::Error,
    },
    /// A table has no closing comment.
    #[error("line {line}: '<!-- figures: {name} -->' has no '<!-- /figures -->'")]
    UnclosedTable {
        /// Line, from 1.
        line: usize,
        /// Name of the table.
        name: String,
    },
    /// No row begins with an `only` of a table.
    #[error("figures '{name}': no row begins with '{only}'")]
    NoMatch {
        /// Name of the table.
        name: String,
        /// Beginning that was looked for.
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

/// Formats three significant digits.
pub fn three_digits(v: f64) -> String {
    match v {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// A Markdown table, followed by notes.
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

/// Rewrites each table of `document` for which `saved` has figures. Returns the text and the names of the
/// other tables.
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

/// Rewrites a document in place from a folder of saved files. Returns the names of tables without a file.
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

    fn plain(name: &str, ours: f64, theirs: f64) -> SavedLine {
        figure(name, sides(ours, theirs, 3), Some(sides(ours, theirs, 3)))
    }

    fn note(text: &str) -> SavedLine {
        SavedLine::Note { note: text.into() }
    }

    const DOC: &str = "# a\n<!-- figures: one; only: b -->\nold\n<!-- /figures -->\nmiddle\n<!-- figures: two -->\nstays\n\
                       <!-- /figures -->\nend\n";

    #[test]
    fn tables_with_figures_are_rewritten() {
        let lines = vec![plain("a 8 B", 1.0, 2.0), plain("b 8 B", 3.0, 2.0), note("How.")];
        let (text, kept) = fill(DOC, |name| Ok((name == "one").then(|| lines.clone()))).unwrap();
        assert_eq!(kept, ["two"]);
        let want = "# a\n<!-- figures: one; only: b -->\n\
            | measurement | unit | ours | UCX 1.2 | ours ÷ UCX | better |\n|---|---|--:|--:|--:|---|\n\
            | b 8 B | µs | 3.00 | 2.00 | 1.50 | lower |\n\nHow.\n<!-- /figures -->\nmiddle\n\
            <!-- figures: two -->\nstays\n<!-- /figures -->\nend\n";
        assert_eq!(text, want);
        assert_eq!(fill(&text, |name| Ok((name == "one").then(|| lines.clone()))).unwrap().0, want);
    }

    #[test]
    fn typical_figures_are_in_brackets() {
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
    fn broken_document_is_an_error() {
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
    fn saved_lines_round_trip() {
        let lines = [plain("a", 1.5, 2.0), figure("b", sides(1.0, 2.0, 9), None), note("How.")];
        for line in lines {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<SavedLine>(&text).unwrap(), line);
        }
        assert!(serde_json::from_str::<SavedLine>("{\"row\":\"a\"}").is_err());
    }
}
