//! The result tables: on the terminal and as Markdown for `docs/interop.md`. Called by the `interop` binary.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::matrix::{Atomic, Cell, Contact, CqData, Delivery, Kind, Length, Net, Protocol, What};
use super::process::Stack;
use super::release_table::{Column, merge};
use super::scenarios::{Scenario, ScenarioResult};
use super::verify::{Outcome, Via};

/// All results.
#[derive(Default)]
pub struct Report {
    cells: BTreeMap<Cell, Outcome>,
    scenarios: Vec<(&'static str, &'static str, Stack, ScenarioResult)>,
}

impl Report {
    /// Adds the result of a cell.
    pub fn cell(&mut self, cell: &Cell, outcome: &Outcome) {
        self.cells.insert(*cell, outcome.clone());
    }

    /// Adds the result of a scenario.
    pub fn scenario(&mut self, scenario: &Scenario, who: Stack, result: &ScenarioResult) {
        self.scenarios.push((scenario.name, scenario.about, who, result.clone()));
    }

    /// The failures, a line each.
    pub fn failures(&self) -> Vec<String> {
        let cells = self.cells.iter().filter_map(|(cell, o)| Some(format!("{cell}: {}", o.as_ref().err()?)));
        let scenarios = self.scenarios.iter().filter_map(|(name, _, who, result)| {
            Some(format!("{name}, {} receives: {}", who.name(), result.as_ref().err()?))
        });
        cells.chain(scenarios).collect()
    }

    /// Numbers of cells and scenarios played, and of messages received.
    pub fn counts(&self) -> (usize, usize) {
        let messages =
            self.cells.values().filter_map(|o| o.as_ref().ok()).map(|passed| passed.messages).sum();
        (self.cells.len() + self.scenarios.len(), messages)
    }

    /// The passed cells of each row, in words.
    fn words(&self) -> Vec<(String, String)> {
        let cells = self.cells.iter().map(|(cell, outcome)| (title(cell.what), outcome.is_ok()));
        let scenarios =
            self.scenarios.iter().map(|(name, _, _, result)| ((*name).to_owned(), result.is_ok()));
        let mut all: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (row, passed) in cells.chain(scenarios) {
            let counts = all.entry(row).or_default();
            counts.0 += usize::from(passed);
            counts.1 += 1;
        }
        all.into_iter().map(|(row, (passed, played))| (row, format!("{passed} of {played}"))).collect()
    }

    /// Both tables.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        if !self.cells.is_empty() {
            let _ = writeln!(text, "{}", self.matrix());
        }
        if !self.scenarios.is_empty() {
            let _ = write!(text, "{}", self.situations());
        }
        text
    }

    fn matrix(&self) -> String {
        let columns: Vec<(Stack, Contact)> = [Stack::Ours, Stack::Libfabric]
            .into_iter()
            .flat_map(|who| [Contact::First, Contact::After].map(|contact| (who, contact)))
            .collect();
        let mut text = String::from("| what |");
        for (who, contact) in &columns {
            let contact = if *contact == Contact::First { "first contact" } else { "after handshake" };
            let _ = write!(text, " {} begins, {contact} |", who.name());
        }
        let _ = write!(text, "\n|---|{}\n", "---|".repeat(columns.len()));
        for what in What::all() {
            if !self.cells.keys().any(|cell| cell.what == what) {
                continue;
            }
            let _ = write!(text, "| {} |", title(what));
            for (sender, contact) in &columns {
                let outcomes = Net::ALL.map(|net| {
                    let cell = Cell { what, sender: *sender, contact: *contact, net };
                    self.cells.get(&cell).map(|outcome| match outcome {
                        Ok(passed) if passed.by == Via::Baseline => format!("{}*", passed.messages),
                        Ok(passed) => passed.messages.to_string(),
                        Err(_) => "**FAILED**".into(),
                    })
                });
                let words = outcomes.map(|word| word.unwrap_or_default()).join(" · ");
                let _ = write!(text, " {} |", words.trim_matches([' ', '·']));
            }
            text.push('\n');
        }
        text
    }

    fn situations(&self) -> String {
        let mut text = String::from("| situation | what it shows | ours receives | libfabric receives |\n");
        text.push_str("|---|---|---|---|\n");
        for scenario in Scenario::all() {
            if !self.scenarios.iter().any(|(name, ..)| *name == scenario.name) {
                continue;
            }
            let _ = write!(text, "| {} | {} |", scenario.name, scenario.about);
            for who in [Stack::Ours, Stack::Libfabric] {
                let found =
                    self.scenarios.iter().find(|(name, _, of, _)| *name == scenario.name && *of == who);
                let word = match found {
                    Some((.., Ok(()))) => "passed",
                    Some((.., Err(_))) => "**FAILED**",
                    None => "",
                };
                let _ = write!(text, " {word} |");
            }
            text.push('\n');
        }
        text
    }
}

fn title(what: What) -> String {
    let confirmed = |delivery| if delivery == Delivery::Complete { ", delivery complete" } else { "" };
    match what {
        What::Message(protocol, delivery, kind) => {
            let protocol = match protocol {
                Protocol::Eager => "eager",
                Protocol::Medium => "medium",
                Protocol::LongCts => "long-CTS",
                Protocol::LongRead => "long-read",
                Protocol::RuntRead => "runting read",
            };
            let kind = if kind == Kind::Tagged { "tagged" } else { "untagged" };
            format!("{protocol}, {kind}{}", confirmed(delivery))
        }
        What::Write(Length::Short, delivery) => format!("write, eager{}", confirmed(delivery)),
        What::Write(Length::Long, delivery) => format!("write, long-CTS{}", confirmed(delivery)),
        What::LongReadWrite(delivery) => format!("write, long-read{}", confirmed(delivery)),
        What::Read(Length::Short) => "read, short".into(),
        What::Read(Length::Long) => "read, long-CTS".into(),
        What::DirectRead => "read, direct".into(),
        What::DirectWrite(CqData::No) => "write, direct".into(),
        What::DirectWrite(CqData::Yes) => "write, direct, with data".into(),
        What::Atomic(Atomic::Write) => "atomic".into(),
        What::Atomic(Atomic::ConfirmedWrite) => "atomic, delivery complete".into(),
        What::Atomic(Atomic::Fetch) => "fetching atomic".into(),
        What::Atomic(Atomic::Compare) => "comparing atomic".into(),
    }
}

/// The libfabric that was played.
pub enum Libfabric {
    /// The system's, which the page's tables are about.
    System(String),
    /// One built by hand, with a column in the table of releases.
    Other(String),
}

/// Lines around the tables, and around the table of releases, in the page.
const TABLES: [&str; 2] = ["<!-- tables: written by `interop --write` -->", "<!-- end of tables -->"];
const RELEASES: [&str; 2] =
    ["<!-- releases: a column is written by `interop --write` -->", "<!-- end of releases -->"];

/// Writes the results into a page.
pub fn write(page: &std::path::Path, whose: &Libfabric, report: &Report) -> Result<(), String> {
    let name = page.display();
    let mut text = std::fs::read_to_string(page).map_err(|e| format!("{name}: {e}"))?;
    let (played, messages) = report.counts();
    let failed = report.failures().len();
    if let Libfabric::System(version) = whose {
        let sums =
            format!("Against {version}: {played} played, {failed} failed, {messages} messages checked.");
        replace(&mut text, TABLES, |_| format!("{sums}\n\n{}", report.tables()))?;
    }
    let (Libfabric::System(head) | Libfabric::Other(head)) = whose;
    let mut rows: Vec<String> = What::all().into_iter().map(title).collect();
    rows.extend(Scenario::all().iter().map(|scenario| scenario.name.to_owned()));
    rows.push("messages".into());
    replace(&mut text, RELEASES, |table| {
        let mut words = report.words();
        words.push(("messages".into(), messages.to_string()));
        merge(table, &rows, Column { head: head.clone(), words })
    })?;
    std::fs::write(page, text).map_err(|e| format!("{name}: {e}"))
}

fn replace(text: &mut String, marks: [&str; 2], with: impl FnOnce(&str) -> String) -> Result<(), String> {
    let (head, rest) = text.split_once(marks[0]).ok_or_else(|| format!("no line {:?}", marks[0]))?;
    let (old, tail) = rest.split_once(marks[1]).ok_or_else(|| format!("no line {:?}", marks[1]))?;
    let new = with(old);
    *text = format!("{head}{}\n\n{}\n\n{}{tail}", marks[0], new.trim_end(), marks[1]);
    Ok(())
}
