//! `docs/configuration.md` lists every configuration key, written from the tables of all crates. `PAGE=write`
//! writes the tables. The test fails if they are stale.

use std::fmt::Write as _;
use std::path::Path;

use ucs::config::{KeyDesc, TableDesc};

fn row(out: &mut String, key: &KeyDesc) {
    // A line of a table is one line, and | separates its cells.
    let cell = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let default = if key.default.is_empty() { String::new() } else { format!("`{}`", cell(key.default)) };
    let values =
        [key.unit, &key.limits()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "| `{}` | {default} | {} | {} |", key.name, cell(&values), cell(key.help));
}

fn tables(all: &[&TableDesc]) -> String {
    let mut out = String::new();
    for table in all {
        let title = table.title.trim().trim_end_matches('.');
        let _ = write!(out, "\n## {title}\n\n| key | default | values | meaning |\n|---|---|---|---|\n");
        table.keys.iter().for_each(|key| row(&mut out, key));
    }
    out
}

#[test]
fn the_page_lists_every_key() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let tables = tables(&tools_common::settings::tables());
    ucs::testing::page_has(&page, ("<!-- keys -->\n", "<!-- /keys -->\n"), &tables);
}
