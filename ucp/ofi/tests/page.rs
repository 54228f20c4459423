//! `docs/ofi.md` has a row for each function, capability, mode bit and flag of libfabric's installed headers,
//! and a program of the tests calls each function that is there.

use std::collections::BTreeSet;
use std::path::Path;

const HEADERS: &str = "/usr/include/rdma";

const FUNCTIONS_OF: &[&str] = &[
    "fabric.h",
    "fi_atomic.h",
    "fi_cm.h",
    "fi_collective.h",
    "fi_domain.h",
    "fi_endpoint.h",
    "fi_eq.h",
    "fi_errno.h",
    "fi_ext.h",
    "fi_rma.h",
    "fi_tagged.h",
    "fi_trigger.h",
];

/// Functions that ask no provider, and forms of others: no program has to call them.
const UNTESTED: &[&str] = &[
    "fi_dupinfo",
    "fi_freeparams",
    "fi_getparams",
    "fi_import",
    "fi_import_fid",
    "fi_import_log",
    "fi_join",
    "fi_open",
    "fi_tc_dscp_get",
    "fi_tc_dscp_set",
    "fi_tostr",
    "fi_tostr_r",
    "fi_version",
];

/// Not of programs: values of the log, and where numbers of providers begin.
const NOT_OF_PROGRAMS: &[&str] =
    &["FI_LOG_PROV_FILTERED", "FI_PROV_SPECIFIC", "FI_PROV_SPECIFIC_EFA", "FI_PROV_SPECIFIC_TCP"];

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path.as_ref()).unwrap_or_else(|why| panic!("{}: {why}", path.as_ref().display()))
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Text without comments in `/* */`.
fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.split_once("*/").map_or("", |(_, behind)| behind));
    }
    kept
}

/// Names in a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Functions that lines at the left margin declare or define.
fn functions(header: &str) -> BTreeSet<String> {
    let lines = header.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()));
    let name = |line: &str| {
        let before = line.split_once('(')?.0;
        words(before)
            .last()
            .filter(|name| name.starts_with("fi_") && before.ends_with(name))
            .map(str::to_owned)
    };
    lines.filter_map(name).collect()
}

/// Macros of one bit, and kinds of wait objects.
fn values(header: &str) -> BTreeSet<String> {
    let bit = |line: &str| {
        let define = line.strip_prefix("#define")?;
        let name = words(define).next()?;
        (name.starts_with("FI_") && define.contains("<<") && !define.contains(&format!("{name}(")))
            .then(|| name.to_owned())
    };
    let waits = words(header).filter(|word| word.starts_with("FI_WAIT_")).map(str::to_owned);
    header.lines().filter_map(bit).chain(waits).collect()
}

fn headers() -> Option<String> {
    if !Path::new(HEADERS).join("fabric.h").exists() {
        ucs::testing::not_installed("libfabric's page", format!("no {HEADERS}/fabric.h (libfabric-dev)"));
        return None;
    }
    Some(FUNCTIONS_OF.iter().map(|name| without_comments(&read(Path::new(HEADERS).join(name)))).collect())
}

#[test]
fn every_name_of_the_headers_is_on_the_page() {
    let Some(headers) = headers() else { return };
    let page = read(here().join("../../docs/ofi.md"));
    // Names in code of tables, which say what becomes of them.
    let rows = page.lines().filter(|line| line.starts_with('|'));
    let code = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).flat_map(words);
    let known: BTreeSet<&str> = code.collect();
    let names: BTreeSet<String> = functions(&headers).into_iter().chain(values(&headers)).collect();
    assert!(names.len() > 250, "{names:?}");
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !known.contains(name.as_str()) && !NOT_OF_PROGRAMS.contains(&name.as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/ofi.md has no row with {missing:?}");
}

#[test]
fn a_program_calls_every_function_that_is_there() {
    let Some(headers) = headers() else { return };
    let folders = ["tests/c", "examples"].map(|folder| here().join(folder).read_dir().expect("a folder"));
    let sources =
        folders.into_iter().flatten().map(|entry| without_comments(&read(entry.expect("a file").path())));
    let sources: String = sources.collect();
    let called: BTreeSet<&str> = sources.split('(').filter_map(|before| words(before).last()).collect();
    let uncalled: Vec<_> = functions(&headers)
        .into_iter()
        .filter(|name| !called.contains(name.as_str()) && !UNTESTED.contains(&name.as_str()))
        .collect();
    assert!(uncalled.is_empty(), "no program calls {uncalled:?}");
}
