//! Checks that each function that docs/journey.md names exists in the file that the page gives for it. A
//! table with the columns File and Function names the functions of a row's files, which an empty cell takes
//! over from the row above. Elsewhere a function is the text of a link to its file. `journey/usnic.rs` checks
//! docs/usnic.md.

#[path = "arch/imports.rs"]
#[allow(dead_code)]
mod imports;
#[path = "arch/methods.rs"]
#[allow(dead_code)]
mod methods;
#[path = "journey/usnic.rs"]
mod usnic;

use methods::{Function, functions};
use std::fs;
use std::path::Path;

/// A page, and the functions of the files it links to.
struct Page<'a> {
    text: &'a str,
    functions_of: &'a dyn Fn(&str) -> Option<Vec<Function>>,
}

/// The columns of a table that matter.
#[derive(Default)]
struct Table<'a> {
    file: Option<usize>,
    function: Option<usize>,
    files: Vec<&'a str>,
}

impl Page<'_> {
    /// Returns a line for each function that is not where the page says, or that it gives no file for.
    fn wrong_names(&self) -> Vec<String> {
        let (mut wrong, mut table) = (Vec::new(), None::<Table>);
        let mut in_code = false;
        for (number, line) in (1..).zip(self.text.lines()) {
            in_code ^= line.starts_with("```");
            let cells = line.strip_prefix('|').map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
            let found = match (cells, &mut table) {
                _ if in_code => Vec::new(),
                (Some(header), None) => {
                    let column = |name: &str| header.iter().position(|cell| *cell == name);
                    let (file, function) = (column("File"), column("Function"));
                    table = Some(Table { file, function, files: Vec::new() });
                    Vec::new()
                }
                (Some(row), Some(table)) => self.wrong_in_row(&row, table),
                (None, _) => {
                    table = None;
                    self.wrong_in_prose(line)
                }
            };
            wrong.extend(found.into_iter().map(|what| format!("{number}: {what}")));
        }
        wrong
    }

    fn wrong_in_row<'t>(&self, row: &[&'t str], table: &mut Table<'t>) -> Vec<String> {
        let links = table.file.and_then(|at| row.get(at)).map_or(Vec::new(), |cell| links(cell));
        if !links.is_empty() {
            table.files = links.iter().map(|(_, target)| *target).collect();
        }
        let prose = row.iter().enumerate().filter(|(at, _)| Some(*at) != table.function);
        let mut wrong: Vec<String> = prose.flat_map(|(_, cell)| self.wrong_in_prose(cell)).collect();
        let named = table.function.and_then(|at| row.get(at)).map_or("", |cell| cell);
        for name in code_spans(named) {
            if !table.files.iter().any(|file| self.has(file, name)) {
                wrong.push(format!("`{name}` is not in {}", table.files.join(" or ")));
            }
        }
        wrong
    }

    fn wrong_in_prose(&self, text: &str) -> Vec<String> {
        let links = links(text);
        let name = |label: &'_ str| -> Option<String> {
            Some(label.strip_prefix('`')?.strip_suffix('`')?.to_owned())
        };
        let named = links.iter().filter_map(|(label, target)| Some((name(label)?, *target)));
        let mut wrong: Vec<String> = named
            .filter(|(name, file)| !self.has(file, name))
            .map(|(name, file)| format!("`{name}` is not in {file}"))
            .collect();
        let linked = |span: &str| links.iter().any(|(label, _)| label.contains(&format!("`{span}`")));
        let loose = code_spans(text).into_iter().filter(|span| is_function_name(span) && !linked(span));
        wrong.extend(loose.map(|span| format!("`{span}` without its file")));
        wrong
    }

    fn has(&self, file: &str, name: &str) -> bool {
        let (owner, name) = name.rsplit_once("::").map_or((None, name), |(owner, name)| (Some(owner), name));
        let is_it = |function: &Function| {
            function.name == name && owner.is_none_or(|owner| function.owner.as_deref() == Some(owner))
        };
        (self.functions_of)(file).is_some_and(|all| all.iter().any(is_it))
    }
}

/// The links of a text: label and target.
fn links(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("](") {
        let label = text[..at].rfind('[').map(|open| &text[open + 1..at]);
        let target = text[at + 2..].find(')').map(|end| &text[at + 2..at + 2 + end]);
        found.extend(label.zip(target));
    }
    found
}

fn code_spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Whether a code span can only be a function: in snake case, or of a type.
fn is_function_name(span: &str) -> bool {
    let (owner, name) = span.rsplit_once("::").map_or(("", span), |(owner, name)| (owner, name));
    let is_ident = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_type = owner.starts_with(|c: char| c.is_ascii_uppercase()) && is_ident(owner);
    let is_lower = name.starts_with(|c: char| c.is_ascii_lowercase()) && is_ident(name);
    is_lower
        && !name.contains(|c: char| c.is_ascii_uppercase())
        && (is_type || name.contains('_') && owner.is_empty())
}

#[test]
fn functions_of_the_journey_exist() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in the workspace").join("docs");
    let text = fs::read_to_string(docs.join("journey.md")).expect("the page");
    let functions_of = |link: &str| Some(functions(&fs::read_to_string(docs.join(link)).ok()?));
    let page = Page { text: &text, functions_of: &functions_of };
    let names = text.lines().flat_map(code_spans).filter(|span| is_function_name(span)).count();
    assert!(names > 40, "only {names} functions: the test reads the page wrongly");
    let wrong = page.wrong_names();
    assert!(wrong.is_empty(), "docs/journey.md:\n{}", wrong.join("\n"));
}

#[test]
fn planted_wrong_names_are_found() {
    let sources = [
        ("a.rs", "impl<T> A<T> { pub fn step_one(&self) {} }\nfn free_one() { fn nested() {} }"),
        ("b.rs", "trait B { fn step_two(&self); }"),
    ];
    let functions_of = |link: &str| {
        let (_, text) = sources.iter().find(|(name, _)| *name == link)?;
        Some(functions(text))
    };
    let check = |text: &str| Page { text, functions_of: &functions_of }.wrong_names();
    let table = "| # | File | Function | What |\n|---|---|---|---|\n";
    let right = [
        format!(
            "{table}| 1 | [a](a.rs) | `A::step_one`, `free_one` | Sees `posix` and calls |\n| 2 | | `free_one` | x |"
        ),
        format!("{table}| 1 | [a](a.rs), [b](b.rs) | `step_one`, `step_two` | |"),
        "Then [`step_two`](b.rs) by `UCX_TLS`, `ep.tag_send(7, buf)` and `ucp`.\n```sh\n`no_such_thing`\n```"
            .to_owned(),
    ];
    for page in right {
        assert_eq!(check(&page), [""; 0], "{page}");
    }
    let wrong = [
        (format!("{table}| 1 | [a](a.rs) | `step_two` | |"), "3: `step_two` is not in a.rs"),
        (format!("{table}| 1 | [a](a.rs) | `B::step_one` | |"), "3: `B::step_one` is not in a.rs"),
        (format!("{table}| 1 | [a](a.rs) | `nested` | |"), "3: `nested` is not in a.rs"),
        (format!("{table}| 1 | [b](b.rs) | | |\n| 2 | | `free_one` | |"), "4: `free_one` is not in b.rs"),
        (
            format!("{table}| 1 | [a](a.rs) | `free_one` | Calls `step_two` |"),
            "3: `step_two` without its file",
        ),
        ("By [`step_two`](a.rs) it\ngoes".to_owned(), "1: `step_two` is not in a.rs"),
        ("By [`step_two`](gone.rs) it goes".to_owned(), "1: `step_two` is not in gone.rs"),
        ("It goes on\nin `free_one`".to_owned(), "2: `free_one` without its file"),
        ("It goes on in `A::x`".to_owned(), "1: `A::x` without its file"),
    ];
    for (page, why) in wrong {
        assert_eq!(check(&page), [why], "{page}");
    }
}
