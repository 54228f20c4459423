//! Checks that each rule of docs/spec/rdm-v4.md is named by a source and by a test, and that no other rule is
//! named.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Places = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder of the workspace").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|x| x == "rs") {
            out.push(path);
        }
    }
}

/// Rules named in a text as `open` number `close`, with a number like M3.2.
fn named<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| {
        let rule = rest.split(close).next()?;
        let (chapter, number) = rule.strip_prefix('M')?.split_once('.')?;
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        (digits(chapter) && digits(number)).then_some(rule)
    })
}

/// The rules that sources below `dir` name: in code, in tests.
fn places(dir: &str) -> (Places, Places) {
    let root = root();
    let (mut code, mut tests) = (Places::new(), Places::new());
    let mut files = Vec::new();
    sources(&root.join(dir), &mut files);
    for file in files {
        let name = file.strip_prefix(&root).expect("below the root").display().to_string();
        let text = fs::read_to_string(&file).expect("a source");
        let all_tests = name.contains("/tests") || name.starts_with("tests/") || name.ends_with("testing.rs");
        let (body, tail) = match text.find("#[cfg(test)]\nmod tests {") {
            _ if all_tests => ("", text.as_str()),
            Some(at) => text.split_at(at),
            None => (text.as_str(), ""),
        };
        for (part, places) in [(body, &mut code), (tail, &mut tests)] {
            for rule in named(part, "[", "]") {
                places.entry(rule.to_owned()).or_default().insert(name.clone());
            }
        }
    }
    (code, tests)
}

#[test]
fn every_rule_is_implemented_and_tested() {
    let page = fs::read_to_string(root().join("docs/spec/rdm-v4.md")).expect("the rules");
    let rules: Vec<&str> = named(&page, "* **", "**").collect();
    let set: BTreeSet<&str> = rules.iter().copied().collect();
    assert!(set.len() > 50, "the rules are not found in their page");
    assert_eq!(set.len(), rules.len(), "a number is given twice");

    let (mut code, mut tests) = places("ucp");
    for dir in ["tests/src", "tests/tests"] {
        let (more_code, more_tests) = places(dir);
        code.extend(more_code);
        for (rule, files) in more_tests {
            tests.entry(rule).or_default().extend(files);
        }
    }
    let mut wrong = Vec::new();
    let open = page.split("## Not kept yet").nth(1).unwrap_or_default();
    let open: BTreeSet<&str> = open.split_whitespace().filter(|word| set.contains(word)).collect();
    for rule in &open {
        if code.contains_key(*rule) && tests.contains_key(*rule) {
            wrong.push(format!("{rule} is kept and tested, but stands among those that are not kept yet"));
        }
    }
    for rule in set.difference(&open) {
        for (places, what) in [(&code, "kept by no source"), (&tests, "seen by no test")] {
            if !places.contains_key(*rule) {
                wrong.push(format!("{rule} is {what}"));
            }
        }
    }
    for (rule, files) in code.iter().chain(&tests) {
        if !set.contains(rule.as_str()) {
            wrong.push(format!("{rule} is no rule: {files:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
