//! The shape of the house, held by a test: who may name whom, how long a file may grow, where `unsafe` may live.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for e in entries.flatten() {
        let path = e.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                sources(&path, out);
            }
        } else if path.extension().is_some_and(|x| x == "rs") {
            out.push(path);
        }
    }
}

fn all(dir: &str) -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    sources(&root.join(dir), &mut files);
    assert!(!files.is_empty(), "no sources under {dir}: the test looks at the wrong place");
    files
        .into_iter()
        .map(|p| {
            let name = p.strip_prefix(&root).expect("below the root").display().to_string();
            (name, fs::read_to_string(&p).expect("readable source"))
        })
        .collect()
}

/// A file that holds tests, by its name or folder.
fn is_test(name: &str) -> bool {
    name.ends_with("/tests.rs")
        || name.ends_with("/testing.rs")
        || name.ends_with("/loom.rs")
        || name.contains("/tests/")
        || name.contains("/testing/")
}

/// Lines of code: neither comments nor the tests at a file's end.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(i, l)| (i + 1, l))
        .take_while(|(_, l)| !l.starts_with("mod tests") && !l.starts_with("#[cfg(test)]\nmod"))
        .filter(|(_, l)| !l.trim_start().starts_with("//"))
}

fn refuse(dir: &str, words: &[&str], why: &str) {
    let mut found = Vec::new();
    for (name, text) in all(dir) {
        if is_test(&name) {
            continue;
        }
        for (line, l) in code(&text) {
            if let Some(w) = words.iter().find(|w| l.contains(**w)) {
                found.push(format!("{name}:{line}: '{w}' ({why})"));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// The engine, the wire and selection do no I/O and know no clock: time, randomness and the network are inputs.
#[test]
fn the_engine_touches_nothing() {
    const WORLD: &[&str] = &[
        "std::net",
        "std::fs",
        "std::env",
        "std::thread",
        "std::process",
        "libc::",
        "rustix::",
        "Instant::now",
        "SystemTime",
        "uct::",
    ];
    for dir in ["ucp/src/wire", "ucp/src/rdm", "ucp/src/select"] {
        refuse(dir, WORLD, "the engine is sans-I/O");
    }
}

/// Protocols never import protocols: what two of them share lies beneath them.
#[test]
fn protocols_do_not_import_each_other() {
    for (name, text) in all("ucp/src/rdm/protocols") {
        if name.ends_with("/mod.rs") || is_test(&name) {
            continue;
        }
        for (line, l) in code(&text) {
            let sideways = l.contains("protocols::")
                || l.trim_start().starts_with("use super::{")
                    && ["eager", "medium", "longcts", "receipt", "handshake"]
                        .iter()
                        .any(|r| l.contains(&format!("{r}::")));
            assert!(!sideways, "{name}:{line}: a protocol imports another protocol: {l}");
        }
    }
}

/// What programs drop when they die or are measured is not source.
#[test]
fn nothing_dropped_is_kept() {
    let git = std::process::Command::new("git").current_dir(root()).args(["ls-files"]).output();
    let Some(out) = git.ok().filter(|out| out.status.success()) else {
        return println!("skipped: not a git work tree");
    };
    let listed = String::from_utf8_lossy(&out.stdout);
    assert!(listed.lines().any(|name| name == "tests/tests/arch.rs"), "{listed}");
    let dropped = |name: &&str| {
        let file = name.rsplit('/').next().unwrap_or(name);
        let ends = [".btr", ".profraw", ".pcapng", ".orig", ".rej"].iter().any(|end| file.ends_with(end));
        let numbered = |start| file.strip_prefix(start).is_some_and(|pid| pid.parse::<u32>().is_ok());
        ends || ["core.", "vgcore.", "callgrind.out."].into_iter().any(numbered)
    };
    let found: Vec<&str> = listed.lines().filter(dropped).collect();
    assert!(found.is_empty(), "dropped by a program, and committed: {found:?}");
}

/// Dependencies point down only: ucp -> uct -> ucs.
#[test]
fn dependencies_point_down() {
    refuse("ucs/src", &["uct::", "ucp::"], "ucs knows nothing of networks");
    refuse("uct/src", &["ucp::"], "uct knows nothing of protocols");
    refuse("uct/src/efa/dev", &["crate::posix", "crate::loopback"], "a device knows no other transport");
}

/// A file one cannot hold in the head is an attic.
/// The engine is built alone too: tests that use lanes have to say so.
#[test]
fn tests_of_lanes_need_lanes() {
    let manifest = fs::read_to_string(root().join("ucp/Cargo.toml")).unwrap();
    let (mut with, mut without) = (0, 0);
    for (name, text) in all("ucp/tests") {
        let Some(stem) = name.strip_prefix("ucp/tests/").and_then(|n| n.strip_suffix(".rs")) else {
            continue;
        };
        if stem.contains('/') {
            continue;
        }
        let uses = code(&text).any(|(_, line)| line.contains("uct::") || line.trim() == "mod common;");
        let says = manifest.contains(&format!("name = \"{stem}\"\nrequired-features = [\"lanes\"]"));
        assert!(says || !uses, "{name} uses lanes: ucp/Cargo.toml has to say that it requires them");
        if uses { with += 1 } else { without += 1 }
    }
    assert!(with > 5 && without > 1, "{with} {without}");
}

#[test]
fn no_file_is_an_attic() {
    const MOST: usize = 800;
    let mut long = Vec::new();
    for dir in ["ucs", "uct", "ucp", "tools", "tests", "perf"] {
        for (name, text) in all(dir) {
            let lines = text.lines().count();
            if lines > MOST && !is_test(&name) && !name.contains("/tests") {
                long.push(format!("{name}: {lines} lines, at most {MOST}"));
            }
        }
    }
    assert!(long.is_empty(), "\n{}", long.join("\n"));
}

/// Whoever reads a program's output may go away, as `head` does: `println!` would panic, `tools_common::out` ends the program.
#[test]
fn programs_print_through_one_door() {
    for dir in ["tools", "perf"] {
        refuse(dir, &[" println!(", " print!("], "tools_common::out::line");
    }
}

/// `unsafe` lives in the rooms that are listed here, and nowhere else.
#[test]
fn unsafe_is_fenced() {
    const FENCE: &[&str] = &[
        "ucs/src/mem/",
        "ucs/src/sys/",
        "ucs/src/sync/",
        "ucs/src/coll/",
        "ucs/src/time/",
        "uct/src/",
        "ucp/src/api/",
        "ucp/src/lane/",
        "ucp/src/rdm/op/",
        "ucp/src/rdm/rma/mem.rs",
        "tools/common/src/cycles.rs",
        "tools/common/src/pmix.rs",
        "tools/ucx-perftest/src/",
        "tools/softefa/src/",
    ];
    let mut found = Vec::new();
    for dir in ["ucs/src", "uct/src", "ucp/src", "tools"] {
        for (name, text) in all(dir) {
            if is_test(&name) || FENCE.iter().any(|f| name.starts_with(f)) {
                continue;
            }
            for (line, l) in code(&text) {
                if l.contains("unsafe ") && !l.contains("unsafe_") {
                    found.push(format!("{name}:{line}: {}", l.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "unsafe outside the fence:\n{}", found.join("\n"));
}

/// `tests/run loom` asks for models by name: each has `loom` in its own or its file's.
#[test]
fn every_model_is_asked_for() {
    let (mut models, mut missed) = (0, Vec::new());
    for dir in ["ucs/src", "uct/src"] {
        for (name, text) in all(dir) {
            for test in text.split("#[test]").skip(1) {
                let called = test.split("fn ").nth(1).and_then(|f| f.split('(').next()).unwrap_or_default();
                if test.contains(" model(") || test.contains("::model(") {
                    models += 1;
                    if !called.contains("loom") && !name.ends_with("/loom.rs") {
                        missed.push(format!("{name}: {called}"));
                    }
                }
            }
        }
    }
    assert!(
        missed.is_empty() && models > 15,
        "{models} models, and nobody runs these:\n{}",
        missed.join("\n")
    );
}

/// Every source file says what it is for before it does anything.
#[test]
fn every_file_introduces_itself() {
    let mut mute = Vec::new();
    for dir in ["ucs/src", "uct/src", "ucp/src", "tools"] {
        for (name, text) in all(dir) {
            if !is_test(&name) && !text.starts_with("//!") {
                mute.push(name);
            }
        }
    }
    assert!(mute.is_empty(), "files without an opening line:\n{}", mute.join("\n"));
}

/// What the README and the docs point at exists.
#[test]
fn links_lead_somewhere() {
    let root = root();
    let mut pages = vec![root.join("README.md"), root.join("tests/README.md"), root.join("perf/README.md")];
    let mut stack = vec![root.join("docs")];
    while let Some(dir) = stack.pop() {
        for e in fs::read_dir(&dir).expect("docs/ is there").flatten() {
            if e.path().is_dir() {
                stack.push(e.path());
            } else if e.path().extension().is_some_and(|x| x == "md") {
                pages.push(e.path());
            }
        }
    }
    let mut dead = Vec::new();
    for page in pages {
        let Ok(text) = fs::read_to_string(&page) else {
            dead.push(format!("{}: missing", page.display()));
            continue;
        };
        for piece in text.split("](").skip(1) {
            let Some(target) = piece.split(')').next() else { continue };
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !page.parent().expect("a page lies in a folder").join(target).exists() {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}
