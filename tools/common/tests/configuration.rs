//! `docs/configuration.md` lists every configuration key, written from the tables of all crates. `PAGE=write`
//! writes the page. The test fails if it is stale.

use std::fmt::Write as _;
use std::path::Path;

use ucs::config::{KeyDesc, TableDesc};

const HEAD: &str = "# Configuration

Every configuration key of this library, of the software EFA device and of the libfabric provider. Keys are environment
variables. `ucx-info -c` lists them with the values in force and where each value comes from; [ucs.md](ucs.md#configuration)
describes the forms of values, the configuration file, and what happens to bad values and unknown names. Names of UCX
that have no effect here are accepted ([abi.md](abi.md)).

This page is written by a test from the source: `PAGE=write cargo test -p tools-common --test configuration`.
";

fn row(out: &mut String, key: &KeyDesc) {
    // A line of a table is one line, and | separates its cells.
    let cell = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let default = if key.default.is_empty() { String::new() } else { format!("`{}`", cell(key.default)) };
    let values =
        [key.unit, &key.limits()].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
    let _ = writeln!(out, "| `{}` | {default} | {} | {} |", key.name, cell(&values), cell(key.help));
}

fn page(tables: &[&TableDesc]) -> String {
    let mut out = String::from(HEAD);
    for table in tables {
        let title = table.title.trim().trim_end_matches('.');
        let _ = write!(out, "\n## {title}\n\n| key | default | values | meaning |\n|---|---|---|---|\n");
        table.keys.iter().for_each(|key| row(&mut out, key));
    }
    out
}

#[test]
fn the_page_lists_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let must = page(&tools_common::settings::tables());
    if std::env::var("PAGE").is_ok_and(|mode| mode == "write") {
        return std::fs::write(path, must).expect("the page is written");
    }
    let is = std::fs::read_to_string(&path).unwrap_or_default();
    for (is, must) in is.lines().zip(must.lines()) {
        assert_eq!(
            is, must,
            "docs/configuration.md says the first, the tables the second (PAGE=write writes it)"
        );
    }
    assert!(is == must, "docs/configuration.md is stale: PAGE=write writes it");
}
