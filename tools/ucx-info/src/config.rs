//! `-c`: all configuration variables. Lines without `#` can be read back by a shell.

use serde::Serialize;
use std::fmt::Write as _;
use tools_common::settings;
use ucs::config::{Effective, Origin, Source, effective};

#[derive(Serialize)]
pub struct Table {
    title: &'static str,
    keys: Vec<Effective>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Values, with everything else as comments.
    Full,
    Plain,
    /// As full, with default values as comments too.
    Commented,
}

/// All tables, with the variables whose name contains `filter`.
pub fn tables(source: &Source, filter: Option<&str>) -> Vec<Table> {
    let filter = filter.unwrap_or_default().to_ascii_uppercase();
    let table = |desc: &&ucs::config::TableDesc| {
        let mut keys = effective(desc, source);
        keys.retain(|key| key.name.contains(&filter));
        Table { title: desc.title.trim(), keys }
    };
    settings::tables().iter().map(table).filter(|table| !table.keys.is_empty()).collect()
}

pub fn text(tables: &[Table], style: Style) -> String {
    let mut out = String::new();
    for table in tables {
        if style != Style::Plain {
            let _ = writeln!(out, "#\n# {}\n#\n", table.title);
        }
        for key in &table.keys {
            // Writing to a string cannot fail.
            let _ = write_key(&mut out, key, style);
        }
    }
    out
}

fn write_key(out: &mut String, key: &Effective, style: Style) -> std::fmt::Result {
    if style != Style::Plain {
        writeln!(out, "#")?;
        for line in key.help.lines() {
            writeln!(out, "# {}", line.trim())?;
        }
        writeln!(out, "#")?;
        if !key.unit.is_empty() {
            writeln!(out, "# unit:      {}", key.unit)?;
        }
        if !key.limits.is_empty() {
            writeln!(out, "# allowed:   {}", key.limits)?;
        }
        writeln!(out, "# default:   {}", key.default)?;
        writeln!(out, "# set by:    {}", key.origin)?;
        writeln!(out, "#")?;
    }
    let comment = if style == Style::Commented && key.origin == Origin::Default { "# " } else { "" };
    writeln!(out, "{comment}{}={}", key.name, key.value)?;
    if style != Style::Plain { writeln!(out) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_shell_syntax() {
        let source = Source::empty().with("UCX_LOG_LEVEL", "info");
        let tables = tables(&source, None);
        for style in [Style::Full, Style::Plain] {
            let text = text(&tables, style);
            assert!(text.lines().any(|l| l == "UCX_LOG_LEVEL=info"), "{text}");
            let good = |l: &str| l.is_empty() || l.starts_with('#') || l.split_once('=').is_some();
            assert!(text.lines().all(good), "{text}");
        }
        let full = text(&tables, Style::Full);
        assert!(full.contains("# default:   warn\n# set by:    override\n"), "{full}");
        let commented = text(&tables, Style::Commented);
        assert!(commented.contains("\nUCX_LOG_LEVEL=info\n"), "{commented}");
        assert!(commented.contains("\n# UCX_POSIX_FIFO_SIZE="), "{commented}");
    }
}
