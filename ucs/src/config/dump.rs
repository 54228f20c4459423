//! Prints tables with the values in force, from descriptions only. Used by `ucx-info -c`.

use std::fmt;

use super::decl::{KeyDesc, TableDesc};
use super::source::{Origin, Source};

/// A key and the text in force for it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Effective {
    /// Detail name.
    pub name: &'static str,
    /// Text in force (not necessarily valid: see [`TableDesc::check`]).
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
    /// Declared default.
    pub default: &'static str,
    /// Unit or empty.
    pub unit: &'static str,
    /// Range and condition in condition, or empty.
    pub limits: String,
    /// Help text.
    pub help: &'static str,
}

/// All keys of a table with the values in force.
pub fn effective(table: &TableDesc, source: &Source) -> Vec<Effective> {
    table.keys.iter().map(|key| one(key, source)).collect()
}

fn one(key: &KeyDesc, source: &Source) -> Effective {
    let (value, origin) = source.lookup(key.name).unwrap_or((key.default, Origin::Default));
    Effective {
        name: key.name,
        value: value.to_owned(),
        origin,
        default: key.default,
        unit: key.unit,
        limits: key.limits(),
        help: key.help.trim(),
    }
}

/// How much to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// `NAME=value` lines that a shell or a file accepts.
    Values,
    /// With help, unit, range, default and origin as comments.
    Help,
}

/// Prints a table as lines a shell can read back.
pub fn print(out: &mut impl fmt::Write, table: &TableDesc, source: &Source, how: Detail) -> fmt::Result {
    if how == Detail::Help {
        writeln!(out, "#\n# {}\n#", table.title.trim())?;
    }
    for key in effective(table, source) {
        if how == Detail::Help {
            writeln!(out, "\n# {}", key.help)?;
            let mut facts = Vec::new();
            if !key.unit.is_empty() {
                facts.push(format!("unit: {}", key.unit));
            }
            if !key.limits.is_empty() {
                facts.push(key.limits);
            }
            if key.origin != Origin::Default {
                facts.push(format!("default: {}", key.default));
                facts.push(format!("set by: {}", key.origin));
            }
            if !facts.is_empty() {
                writeln!(out, "# ({})", facts.join("; "))?;
            }
        }
        writeln!(out, "{}={}", key.name, key.value)?;
    }
    Ok(())
}
