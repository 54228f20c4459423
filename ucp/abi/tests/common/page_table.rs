//! Tables of `docs/abi.md` that tests write from the headers of this crate.

use std::path::PathBuf;

/// Folder of this crate.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: PathBuf) -> String {
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// Text of a header without its comments.
pub fn without_comments(text: &str) -> String {
    let mut parts = text.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once("*/").map_or("", |(_, behind)| behind))
}

/// Checks that `docs/abi.md` has this table between two marks.
pub fn page_has(begin: &str, end: &str, must: &str) {
    ::ucs::testing::page_has(&folder().join("../../docs/abi.md"), (begin, end), must);
}
