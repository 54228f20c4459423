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

/// Checks that the page has this table between two marks; with `PAGE=write` it has it then.
pub fn page_has(begin: &str, end: &str, must: &str) {
    let page_path = folder().join("../../docs/abi.md");
    let page = read(page_path.clone());
    let (head, rest) = page.split_once(begin).expect("the page has a place for the table");
    let (is, tail) = rest.split_once(end).expect("the table has an end");
    if std::env::var("PAGE").is_ok_and(|mode| mode == "write") {
        return std::fs::write(page_path, format!("{head}{begin}{must}{end}{tail}"))
            .expect("the page is written");
    }
    for (is, must) in is.lines().zip(must.lines()) {
        assert_eq!(is, must, "docs/abi.md says the first, the headers the second (PAGE=write writes it)");
    }
    assert!(is == must, "docs/abi.md is stale: PAGE=write writes it");
}
