//! Checks that docs/usnic.md names what there is: each name in the column beside the document's statements
//! is defined in a file that its row links to, or the row above where a row has no link; and each counter
//! and test of the table about who may talk is in the files of `auth`.

use super::{code_spans, links};
use std::fs;
use std::path::Path;

/// Headers of the columns that name code.
const COLUMNS: [&str; 2] = ["Here", "Where"];
/// Files of the table about who may talk.
const AUTH: [&str; 2] = ["../uct/usnic/src/auth/stats.rs", "../uct/usnic/src/auth/tests.rs"];

/// A name of code: the type that it belongs to, if it is given, and the name itself.
type Name<'a> = (Option<&'a str>, &'a str);

/// Crates, which are no names in a file.
const CRATES: [&str; 3] = ["ucp", "uct", "usnic"];

/// The names of a code span: `a`, `A::b`, `A::{b, C}`. Empty for settings, commands and the like.
fn names(span: &str) -> Vec<Name<'_>> {
    let (owner, last) = span.rsplit_once("::").map_or((None, span), |(owner, last)| (Some(owner), last));
    let owner = owner.map(|owner| owner.rsplit("::").next().unwrap_or(owner));
    let list = last.strip_prefix('{').and_then(|list| list.strip_suffix('}')).unwrap_or(last);
    let all: Vec<&str> = list.split(", ").collect();
    let is_other = CRATES.contains(&span)
        || owner.is_none() && ["UCX_", "SOFTEFA_", "FI_"].iter().any(|key| span.starts_with(key));
    match all.iter().copied().chain(owner).all(is_ident) && !is_other {
        true => all.into_iter().map(|name| (owner, name)).collect(),
        false => Vec::new(),
    }
}

fn is_ident(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a source defines a name, and has its type, if one is given.
fn defines(source: &str, (owner, name): Name<'_>) -> bool {
    let has_owner = |owner: &str| source.lines().any(|line| is_type(line, owner));
    owner.is_none_or(has_owner) && source.lines().any(|line| is_definition(line, name))
}

fn is_type(line: &str, name: &str) -> bool {
    let words = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let is_head =
        line.split(words).any(|word| matches!(word, "struct" | "enum" | "trait" | "type" | "mod" | "impl"));
    is_head && line.split(words).any(|word| word == name)
}

/// Whether a line begins a function, type, constant, field or variant of that name.
fn is_definition(line: &str, name: &str) -> bool {
    let mut rest = line.trim_start();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after
            .strip_prefix('(')
            .and_then(|after| after.split_once(')'))
            .map_or(after, |(_, after)| after)
            .trim_start();
    }
    for word in [
        "const ",
        "unsafe ",
        "extern \"C\" ",
        "fn ",
        "struct ",
        "enum ",
        "trait ",
        "type ",
        "static ",
        "mod ",
    ] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let Some(after) = rest.strip_prefix(name) else { return false };
    let is_item = rest.len() != line.trim_start().len();
    match after.chars().next() {
        None => true,
        Some(':') => !after.starts_with("::"),
        Some('(' | '<' | ' ' | ';') if is_item => true,
        // A counter, in the list of a macro.
        Some(',') if after == "," => true,
        Some(',' | '{' | '(' | ' ') => name.starts_with(|c: char| c.is_ascii_uppercase()),
        _ => false,
    }
}

/// Lines for names that are not where the page says; and how many names it has.
fn wrong_names(page: &str, read: impl Fn(&str) -> Option<String>) -> (usize, Vec<String>) {
    let (mut count, mut wrong, mut files) = (0, Vec::new(), Vec::new());
    let mut column = None;
    for (number, line) in (1..).zip(page.lines()) {
        let Some(row) = line.strip_prefix('|') else {
            column = None;
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let Some((at, of_auth)) = column else {
            let found = cells.iter().position(|cell| COLUMNS.contains(cell)).map(|at| (at, false));
            let auth = || cells.iter().position(|cell| *cell == "Counter, test").map(|at| (at, true));
            column = Some(found.or_else(auth).unwrap_or((usize::MAX, false)));
            files.clear();
            continue;
        };
        let Some(cell) = cells.get(at) else { continue };
        let of_row =
            links(cell).into_iter().map(|(_, target)| target).filter(|target| target.ends_with(".rs"));
        let linked: Vec<&str> = of_row.chain(AUTH.into_iter().filter(|_| of_auth)).collect();
        if !linked.is_empty() {
            files = linked.iter().map(|file| (*file).to_owned()).collect();
        }
        for (name, span) in code_spans(cell)
            .into_iter()
            .flat_map(|span| names(span).into_iter().map(move |name| (name, span)))
        {
            count += 1;
            if !files.iter().any(|file| read(file).is_some_and(|source| defines(&source, name))) {
                wrong.push(format!("{number}: `{span}` is not in {}", files.join(" or ")));
            }
        }
    }
    (count, wrong)
}

#[test]
fn names_of_the_usnic_page_exist() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in the workspace").join("docs");
    let page = fs::read_to_string(docs.join("usnic.md")).expect("the page");
    let (count, wrong) = wrong_names(&page, |file| fs::read_to_string(docs.join(file)).ok());
    assert!(count > 100, "only {count} names: the test reads the page wrongly");
    assert!(wrong.is_empty(), "docs/usnic.md:\n{}", wrong.join("\n"));
}

#[test]
fn planted_wrong_names_of_a_table_are_found() {
    let source = "pub struct A {\n    pub(super) b: u32,\n}\nenum E {\n    One,\n    Two(u8),\n}\nimpl A {\n    \
                  pub fn step(&self) { self.call_me(); }\n}\nconst LEN: usize = 1;\n";
    let read = |file: &str| (file == "a.rs").then(|| source.to_owned());
    let check =
        |cell: &str| wrong_names(&format!("| The document | Here |\n|---|---|\n| x | {cell} |\n"), read).1;
    for right in [
        "`A` in [a](a.rs): `A::b`, `E::{One, Two}`, `step`, `LEN`",
        "[a](a.rs) |\n| y | `A::step`, `UCX_TLS=efa`, `SOFTEFA_NET`",
    ] {
        assert_eq!(check(right), [""; 0], "{right}");
    }
    for (wrong, why) in [
        ("`gone` in [a](a.rs)", "3: `gone` is not in a.rs"),
        ("`call_me` in [a](a.rs)", "3: `call_me` is not in a.rs"),
        ("`E::{One, Three}` in [a](a.rs)", "3: `E::{One, Three}` is not in a.rs"),
        ("`B::b` in [a](a.rs)", "3: `B::b` is not in a.rs"),
        ("`A` in [a](gone.rs)", "3: `A` is not in gone.rs"),
        ("`A`", "3: `A` is not in "),
    ] {
        assert_eq!(check(wrong), [why], "{wrong}");
    }
}
