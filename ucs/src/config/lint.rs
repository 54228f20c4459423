//! Checks of declarations, run by a test over all tables of a program.

use std::collections::BTreeSet;

use super::decl::TableDesc;

/// Lists faults of declarations: duplicate keys, refused defaults, bad names, missing help.
pub fn lint(tables: &[&TableDesc]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for key in tables.iter().flat_map(|t| t.keys) {
        if !seen.insert(key.name) {
            wrong.push(format!("{}: declared twice", key.name));
        }
        if let Err(expected) = (key.validate)(key.default) {
            wrong.push(format!("{}: default {:?} is refused: expected {expected}", key.name, key.default));
        }
        if !key.name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_') {
            wrong.push(format!("{}: names consist of A-Z, 0-9 and _", key.name));
        }
        if key.help.trim().is_empty() {
            wrong.push(format!("{}: no help text", key.name));
        }
    }
    wrong
}
