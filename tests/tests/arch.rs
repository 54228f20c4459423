//! Tests of the architecture: imports between modules, retired names, length of files, places of `unsafe`.
//! `arch/imports.rs` reads imports, `arch/methods.rs` methods, `arch/retired.rs` retired names,
//! `arch/entries.rs` functions that C calls.

#[path = "arch/entries.rs"]
mod entries;
#[path = "arch/imports.rs"]
mod imports;
#[path = "arch/methods.rs"]
mod methods;
#[path = "arch/retired.rs"]
mod retired;

use imports::{Graph, Import, Source, module_of};
use std::collections::BTreeMap;
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

fn is_test(name: &str) -> bool {
    name.ends_with("/tests.rs")
        || name.ends_with("/testing.rs")
        || name.ends_with("/loom.rs")
        || name.contains("/tests/")
        || name.contains("/testing/")
}

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

#[test]
fn engine_does_no_io() {
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
    for dir in ["ucp/src/wire", "ucp/src/rdm", "ucp/src/select", "uct/usnic/src"] {
        refuse(dir, WORLD, "the engine is sans-I/O");
    }
}

fn product(dir: &str) -> Vec<Source> {
    all(dir).into_iter().filter(|(name, _)| !is_test(name)).collect()
}

fn refuse_imports(sources: &[Source], why: &str, forbidden: impl Fn(&[String], &[&str]) -> bool) {
    let mut found = Vec::new();
    for (name, text) in sources {
        let module = module_of(name);
        for Import { line, path } in imports::imports(&module, text) {
            let words: Vec<&str> = path.iter().map(String::as_str).collect();
            if forbidden(&module, &words) {
                found.push(format!("{name}:{line}: imports {} ({why})", path.join("::")));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Whether a path leaves `below`; what the root of `ucp` re-exports is of `api`.
fn leaves(path: &[&str], below: &[&str]) -> bool {
    matches!(path, ["crate", first, ..] if !below.contains(first)) || matches!(path, ["ucp", ..])
}

/// Modules and root re-exports that the engine may import.
const ENGINE: [&str; 6] = ["wire", "rdm", "select", "Access", "AtomicOp", "Datatype"];

#[test]
fn imports_point_down() {
    refuse_imports(&product("ucs/src"), "ucs is below uct and ucp", |_, path| {
        matches!(path, ["uct" | "ucp", ..])
    });
    refuse_imports(&product("uct/src"), "uct is below ucp", |_, path| matches!(path, ["ucp", ..]));
    for dir in ["ucp/src/wire", "ucp/src/rdm", "ucp/src/select"] {
        let why = "the engine is below lane, api and uct";
        refuse_imports(&product(dir), why, |_, path| leaves(path, &ENGINE) || matches!(path, ["uct", ..]));
    }
    let below_lane = [&ENGINE[..], &["lane", "address", "token", "cm"]].concat();
    refuse_imports(&product("ucp/src/lane"), "lane is below api", |_, path| leaves(path, &below_lane));
    let why = "the exchange of addresses knows no lane";
    refuse_imports(&product("ucp/src/cm"), why, |_, path| {
        leaves(path, &["cm", "address"]) || matches!(path, ["uct", ..])
    });
}

#[test]
fn transports_do_not_import_each_other() {
    const TRANSPORTS: [&str; 4] = ["posix", "cma", "efa", "loopback"];
    for dir in TRANSPORTS.into_iter().chain(["host", "base", "api"]) {
        let why = "what transports share lies below them";
        refuse_imports(
            &product(&format!("uct/src/{dir}")),
            why,
            |_, path| matches!(path, ["crate", other, ..] if *other != dir && TRANSPORTS.contains(other)),
        );
    }
}

#[test]
fn comments_keep_the_rules() {
    let prose = std::process::Command::new("tests/prose").current_dir(root()).arg("--check").output();
    let prose = prose.expect("tests/prose runs");
    assert!(prose.status.success(), "\n{}", String::from_utf8_lossy(&prose.stdout));
}

#[test]
fn protocols_do_not_import_each_other() {
    let sources = product("ucp/src/rdm/protocols");
    let files: Vec<String> = sources.iter().filter_map(|(name, _)| module_of(name).get(2).cloned()).collect();
    assert!(files.len() > 5, "{files:?}");
    let files_only: Vec<Source> = sources.into_iter().filter(|(name, _)| module_of(name).len() > 2).collect();
    refuse_imports(&files_only, "a protocol imports another protocol", |module, path| {
        matches!(path, ["crate", "rdm", "protocols", other, ..]
            if files.iter().any(|file| file == other) && *other != module[2])
    });
}

fn refuse_circles(dirs: &[&str]) {
    let mut found = Vec::new();
    for dir in dirs {
        let sources = product(dir);
        let graph = Graph::new(&sources);
        if let Some(circle) = graph.circle() {
            let knots: Vec<String> = graph
                .knots()
                .iter()
                .map(|knot| format!("{} files: {}", knot.len(), knot.join(" ")))
                .collect();
            found.push(format!(
                "{dir}: a circle of imports:\n  {}\nin {}",
                circle.join("\n  "),
                knots.join("\nand ")
            ));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn folders_have_no_import_circles() {
    refuse_circles(&[
        "ucp/src/wire",
        "ucp/src/select",
        "ucp/src/rdm",
        "ucp/src/api",
        "ucp/src/lane",
        "ucp/src/cm",
        "uct/src/posix",
        "uct/src/base",
    ]);
}

/// The folder of a crate that a source is in. Types of several folders may have one name, as transports do.
fn folder_of(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').collect();
    parts[..parts.len().saturating_sub(1).min(3)].join("/")
}

#[test]
fn no_type_has_too_many_methods() {
    const MOST: usize = 60;
    let mut folders = BTreeMap::<String, Vec<Source>>::new();
    for source in ["ucs/src", "uct/src", "uct/usnic/src", "ucp/src"].into_iter().flat_map(product) {
        folders.entry(folder_of(&source.0)).or_default().push(source);
    }
    let mut found = Vec::new();
    for (folder, sources) in folders {
        for (owner, count) in methods::methods(&sources) {
            if count > MOST {
                found.push(format!("{folder}: {owner} has {count} methods, at most {MOST}"));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Public safe methods in the `impl` blocks of a type.
fn public_methods(sources: &[Source], of: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (_, text) in sources {
        let mut inside = false;
        for (_, line) in code(text) {
            match line.strip_prefix("    pub fn ") {
                _ if !line.starts_with([' ', '}']) && !line.is_empty() => {
                    inside = line == format!("impl {of} {{");
                }
                Some(rest) if inside => {
                    found.extend(rest.split(['(', '<']).next().map(str::to_owned));
                }
                _ => {}
            }
        }
    }
    found
}

/// A table in `mt/mod.rs` names the safe methods of plain workers and endpoints that shared ones lack.
#[test]
fn shared_workers_have_the_methods_of_plain_ones() {
    let (plain, shared) = (product("ucp/src/api"), product("ucp/src/mt"));
    let table = &shared.iter().find(|(name, _)| name.ends_with("mt/mod.rs")).expect("the table").1;
    // As a method, or in a macro that defines it: `name(`, `name<`, `name [`.
    let defines = |line: &str, name: &str| {
        let rest = line.trim_start().trim_start_matches("pub fn ").strip_prefix(name);
        rest.is_some_and(|rest| rest.trim_start().starts_with(['(', '<', '[']))
    };
    for of in ["Worker", "Ep"] {
        let methods = public_methods(&plain, of);
        assert!(methods.len() > 20, "{of}: only {methods:?} found");
        for name in methods {
            let is_there = shared.iter().any(|(_, text)| code(text).any(|(_, line)| defines(line, &name)));
            assert!(
                is_there || table.contains(&format!("`{name}`")),
                "{of}::{name} has no counterpart in ucp/src/mt, and its table does not say why"
            );
        }
    }
}

/// Functions that take the whole engine send control packets, drive or fail peers. Others take its parts.
/// The numbers may only shrink.
#[test]
fn few_functions_take_the_whole_engine() {
    const MOST: &[(&str, usize)] = &[
        ("flow/backoff.rs", 2),
        ("dispatch.rs", 3),
        ("mod.rs", 6),
        ("peers/conversation.rs", 4),
        ("peers/end_ops_where.rs", 1),
        ("peers/identify.rs", 2),
        ("peers/lifecycle.rs", 1),
        ("peers/unknown_peers.rs", 1),
        ("protocols/atomic.rs", 1),
        ("protocols/handshake.rs", 1),
        ("protocols/longread/finish.rs", 6),
        ("protocols/longread/read.rs", 3),
        ("protocols/note.rs", 1),
        ("protocols/peer_error.rs", 1),
        ("protocols/user_qp_send.rs", 2),
        ("protocols/write.rs", 1),
        ("protocols/zcopy_recv.rs", 4),
        ("rails/announce.rs", 1),
        ("rails/failover.rs", 2),
        ("recv/discards.rs", 3),
        ("recv/external_bytes.rs", 1),
        ("recv/receives.rs", 1),
        ("rma/fast_path.rs", 1),
        ("rma/ops.rs", 4),
        ("rma/progress.rs", 2),
        ("send/cancel.rs", 4),
        ("send/drive.rs", 10),
        ("send/sends.rs", 1),
    ];
    let mut found = Vec::new();
    for (name, text) in product("ucp/src/rdm") {
        let functions = methods::functions(&text);
        let taking =
            functions.iter().filter(|f| f.owner.is_none() && f.params.iter().any(|word| word == "Engine"));
        let taking: Vec<&str> = taking.map(|f| f.name.as_str()).collect();
        let most =
            MOST.iter().find(|(file, _)| name == format!("ucp/src/rdm/{file}")).map_or(0, |(_, most)| *most);
        if taking.len() > most {
            found.push(format!(
                "{name}: {} functions take the engine, at most {most}: {taking:?}",
                taking.len()
            ));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// True if a function takes no engine, or needs all of it: it hands the engine on, calls a method of it, or
/// uses each of its owners.
fn needs_the_whole(function: &methods::Function) -> bool {
    const OWNERS: [&str; 4] = ["pending", "zcopy_recv", "peers", "ops"];
    let Some(at) = function.params.iter().position(|word| word == "Engine") else { return true };
    let Some(colon) = function.params[..at].iter().rposition(|word| word == ":") else { return true };
    let engine = &function.params[colon - 1];
    let body = &function.body;
    let word = |at: usize| body.get(at).map_or("", String::as_str);
    let uses: Vec<usize> = (0..body.len()).filter(|&at| body[at] == *engine && word(at - 1) != ".").collect();
    let is_whole = |&at: &usize| word(at + 1) != "." || matches!(word(at + 3), "(" | ":");
    uses.iter().any(is_whole)
        || OWNERS.iter().all(|owner| uses.iter().any(|&at| word(at + 1) == "." && word(at + 2) == *owner))
}

#[test]
fn functions_that_take_the_engine_need_all_of_it() {
    let mut found = Vec::new();
    for (name, text) in product("ucp/src") {
        for function in methods::functions(&text).iter().filter(|function| !needs_the_whole(function)) {
            found.push(format!(
                "{name}:{}: {} takes the engine and needs a part",
                function.line, function.name
            ));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn planted_functions_that_need_a_part_are_found() {
    let text = "fn part(x: u8, e: &mut Engine) { e.peers.add(x); e.pending.take(e.ops.sends.len()) }\n\
        fn all(e: &mut Engine) { (e.peers, e.pending, e.ops, e.zcopy_recv) }\n\
        fn handed(e: &mut Engine) { e.peers.add(1); all(e) }\n\
        fn method(e: &mut Engine) { e.fail_peer(1) }\n";
    let found = methods::functions(text);
    let found: Vec<&str> =
        found.iter().filter(|function| !needs_the_whole(function)).map(|function| &*function.name).collect();
    assert_eq!(found, ["part"]);
}

#[test]
fn planted_methods_are_counted() {
    let text = "impl<T: Fn() -> u8> A<T> { fn a(&self) {} pub(crate) const fn b<F: Fn(u8) -> u8>(f: F) {} }\n\
        impl fmt::Display for A<u8> { fn fmt(&self) -> [u8; 4] { fn inner() {} [0; 4] } }\n\
        fn free(e: &mut Engine, x: impl Fn(u8)) -> impl Iterator<Item = [u8; 2]> { impl B { fn no() {} } }\n\
        #[cfg(test)]\nimpl A<u8> { fn test(&self) {} }\nimpl crate::B { fn c(); }\n";
    let counts = methods::methods(&[("ucp/src/planted.rs".to_owned(), text.to_owned())]);
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), [("A".to_owned(), 3), ("B".to_owned(), 1)]);
    let functions = methods::functions(text);
    let free = functions.iter().find(|function| function.owner.is_none()).expect("planted");
    assert_eq!(
        (free.name.as_str(), &free.params[..4]),
        ("free", &["e", ":", "&", "mut"].map(str::to_owned)[..])
    );
}

#[test]
fn planted_imports_are_found() {
    let module = ["rdm", "send"].map(String::from);
    let text = "use super::{flow::{self, Window}, Peer as P};\nuse crate::wire::*; // use crate::api::No;\n\
        pub(crate) use self::queue::Queue;\n#[cfg(test)]\nuse crate::api::Test;\n\
        fn f(x: &'static str) { let s = \"crate::api::Text\"; super::super::lane::g::<u8>('{'); uct::h() }\n\
        mod inner { use super::Outer; }\n#[cfg(test)]\nmod tests { use crate::api::Test; }\n";
    let mut found: Vec<String> =
        imports::imports(&module, text).into_iter().map(|i| i.path.join("::")).collect();
    found.sort();
    let want = [
        "crate::lane::g",
        "crate::rdm::Peer",
        "crate::rdm::flow",
        "crate::rdm::flow::Window",
        "crate::rdm::send::Outer",
        "crate::rdm::send::queue::Queue",
        "crate::wire::*",
        "uct::h",
    ];
    assert_eq!(found, want);
}

#[test]
fn planted_circle_is_found() {
    let source = |name: &str, text: &str| (format!("ucp/src/rdm/{name}"), text.to_owned());
    let mut sources = vec![
        source("mod.rs", "mod a; mod b; mod c; pub use c::C;"),
        source("a.rs", "use super::b::B; use super::C;"),
        source("b.rs", "fn f() { super::c::g() }"),
        source("c.rs", "use crate::wire::W;"),
    ];
    assert_eq!(Graph::new(&sources).circle(), None);
    sources[3].1.push_str("\nuse crate::{rdm::{a::{self, A}}, wire::V};");
    let circle = Graph::new(&sources).circle().expect("a circle was planted");
    let want = [
        "ucp/src/rdm/a.rs:1: imports crate::rdm::b::B",
        "ucp/src/rdm/b.rs:1: imports crate::rdm::c::g",
        "ucp/src/rdm/c.rs:2: imports crate::rdm::a::A",
    ];
    assert_eq!(circle, want);
}

#[test]
#[should_panic(expected = "ucp/src/lane/rx.rs:1: imports crate::Ep")]
fn planted_upward_import_is_refused() {
    let planted = [("ucp/src/lane/rx.rs".to_owned(), "use crate::{Ep, wire::Hdr};".to_owned())];
    refuse_imports(&planted, "planted", |_, path| leaves(path, &ENGINE));
}

/// Sources, scripts and documents, but decisions, the change log and the list itself.
const NO_GIT: &str = "not a git work tree";

fn texts() -> Option<Vec<Source>> {
    let git = std::process::Command::new("git").current_dir(root()).args(["ls-files"]).output();
    let listed = git.ok().filter(|out| out.status.success())?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let is_kept = |name: &&str| {
        let exempt = ["docs/decisions/", "CHANGELOG", "tests/tests/retired_names.txt", "tests/tests/arch.rs"];
        !exempt.iter().any(|start| name.starts_with(start))
    };
    let read = |name: &str| {
        let known =
            [".rs", ".md", ".sh", ".py", ".c", ".h", ".toml", ".yml"].iter().any(|end| name.ends_with(end));
        let text = fs::read_to_string(root().join(name)).ok()?;
        (known || text.starts_with("#!")).then(|| (name.to_owned(), text))
    };
    Some(listed.lines().filter(is_kept).filter_map(read).collect())
}

#[test]
fn retired_names_are_gone() {
    let list = fs::read_to_string(root().join("tests/tests/retired_names.txt")).expect("the list");
    let retired = retired::parse(&list).expect("a list of retired names");
    assert!(retired.len() > 20, "the list is not read");
    let Some(texts) = texts() else { return ucs::testing::skipped("retired names", NO_GIT) };
    assert!(texts.iter().any(|(name, _)| name == "tests/run"), "scripts are not found");
    let found: Vec<String> =
        texts.iter().flat_map(|(name, text)| retired::find(&retired, name, text)).collect();
    assert!(found.is_empty(), "retired names:\n{}", found.join("\n"));
}

#[test]
fn planted_retired_names_are_found() {
    let retired = retired::parse("# a note\nPlanted -> Kept\npath: attic -> archive\n").expect("a list");
    let find = |file: &str, text: &str| retired::find(&retired, file, text);
    assert_eq!(
        find("a/b.rs", "let x: Planted;\nReplanted Planted_2 planted attic"),
        ["a/b.rs:1: Planted (now Kept)"]
    );
    assert_eq!(find("a/attic/b.rs", "Kept"), ["a/attic/b.rs: attic (now archive)"]);
    assert_eq!(find("a/attic.rs", "").len(), 1);
    assert!(retired::parse("Planted").is_err() && retired::parse("two words -> x").is_err());
}

#[test]
fn build_outputs_are_not_committed() {
    let git = std::process::Command::new("git").current_dir(root()).args(["ls-files"]).output();
    let Some(out) = git.ok().filter(|out| out.status.success()) else {
        return ucs::testing::skipped("build outputs", NO_GIT);
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

#[test]
fn tests_with_lanes_require_the_feature() {
    let manifest = fs::read_to_string(root().join("ucp/Cargo.toml")).unwrap();
    let (mut with, mut without) = (0, 0);
    for (name, text) in all("ucp/tests") {
        let file = name.strip_prefix("ucp/tests/").and_then(|n| n.strip_suffix(".rs")).unwrap();
        // A binary is a file, or `main.rs` in a folder.
        let stem = file.strip_suffix("/main").unwrap_or(file);
        if stem.contains('/') {
            continue;
        }
        let text =
            text.replace("#[cfg(feature = \"lanes\")]\n#[path = \"../common/mod.rs\"]\nmod common;", "");
        let uses = code(&text).any(|(_, line)| line.contains("uct::") || line.trim() == "mod common;");
        let says = manifest.contains(&format!("name = \"{stem}\"\nrequired-features = [\"lanes\"]"));
        assert!(says || !uses, "{name} uses lanes: ucp/Cargo.toml has to say that it requires them");
        if uses { with += 1 } else { without += 1 }
    }
    assert!(with > 4 && without > 0, "{with} {without}");
}

#[test]
fn files_stay_short() {
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

#[test]
fn programs_print_through_tools_common() {
    for dir in ["tools", "perf"] {
        refuse(dir, &[" println!(", " print!("], "tools_common::out::line");
    }
}

/// `eprintln!` and `eprint!` panic where standard error cannot be written: a full disk, a closed pipe.
#[test]
fn a_line_that_cannot_be_written_ends_nothing() {
    for dir in ["ucs", "uct", "ucp", "tools", "perf"] {
        let is_example = |name: &str| name.contains("/examples/");
        let mut found = Vec::new();
        for (name, text) in all(dir).into_iter().filter(|(name, _)| !is_test(name) && !is_example(name)) {
            let prints =
                |line: &str| ["eprintln!(", "eprint!(", "dbg!("].iter().any(|word| line.contains(word));
            found.extend(code(&text).filter(|(_, line)| prints(line)).map(|(n, _)| format!("{name}:{n}")));
        }
        assert!(found.is_empty(), "ucs::stderr_line! drops such a line:\n{}", found.join("\n"));
    }
}

/// A test that skips what this machine cannot do says so where `SKIPS=fail` sees it.
#[test]
fn tests_skip_by_one_function() {
    let mut found = Vec::new();
    for dir in ["ucs", "uct", "ucp", "tools", "perf", "tests"] {
        for (name, text) in all(dir) {
            if name == "ucs/src/testing.rs" || name == "tests/tests/arch.rs" {
                continue;
            }
            let prints = |line: &str| {
                let quotes = line.split_once("skipped: ").is_some_and(|(before, _)| before.contains('"'));
                quotes && !line.trim_start().starts_with("//")
            };
            let lines = text.lines().enumerate().filter(|(_, line)| prints(line));
            found.extend(lines.map(|(n, _)| format!("{name}:{}", n + 1)));
        }
    }
    assert!(found.is_empty(), "use ucs::testing::skipped or not_installed:\n{}", found.join("\n"));
}

#[test]
fn unsafe_is_fenced() {
    const FENCE: &[&str] = &[
        "ucs/src/mem/",
        "ucs/src/sync/",
        "ucs/src/sys/fork.rs",
        "ucs/src/sys/pmix.rs",
        "ucs/src/sys/proc.rs",
        "ucs/src/sys/thread.rs",
        "ucs/src/time/ticks.rs",
        "uct/src/any/",
        "uct/src/api/am.rs",
        "uct/src/api/ep.rs",
        "uct/src/api/iface.rs",
        "uct/src/api/md.rs",
        "uct/src/base/",
        "uct/src/cma/",
        "uct/src/efa/",
        "uct/src/host/md.rs",
        "uct/src/host/remote_segment.rs",
        "uct/src/loopback/",
        "uct/src/mt/",
        "uct/src/posix/ep.rs",
        "uct/src/posix/link.rs",
        "uct/src/posix/rx.rs",
        "uct/src/posix/seg.rs",
        "uct/src/wrap/",
        "ucp/src/api/am/",
        "ucp/src/api/context/calibrate/measure.rs",
        "ucp/src/api/core/requests/",
        "ucp/src/api/data/",
        "ucp/src/api/core/staging.rs",
        "ucp/src/api/ep/send.rs",
        "ucp/src/api/mem/memory.rs",
        "ucp/src/api/queue/",
        "ucp/src/api/raw.rs",
        "ucp/src/api/request/",
        "ucp/src/api/worker/forks.rs",
        "ucp/src/api/rma/",
        "ucp/src/api/stream/",
        "ucp/src/api/tag/",
        "ucp/src/lane/rma_only.rs",
        "ucp/src/lane/bind.rs",
        "ucp/src/lane/domains.rs",
        "ucp/src/lane/regs.rs",
        "ucp/src/mt/",
        "ucp/src/rdm/op/",
        "ucp/src/rdm/rma/mem.rs",
        "ucp/src/rdm/rma/own_memory.rs",
        "tools/common/src/cycles.rs",
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

#[test]
fn every_loom_model_is_run() {
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

#[test]
fn every_file_has_a_header() {
    let mut mute = Vec::new();
    for dir in ["ucs/src", "uct/src", "uct/usnic/src", "ucp/src", "tools"] {
        for (name, text) in all(dir) {
            if !is_test(&name) && !text.starts_with("//!") {
                mute.push(name);
            }
        }
    }
    assert!(mute.is_empty(), "files without an opening line:\n{}", mute.join("\n"));
}

#[test]
fn links_resolve() {
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

/// Each row of the tables of `docs/security.md` names tests that are there, and there is nothing outside the
/// tables that a test can show.
#[test]
fn the_security_page_names_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/security.md")).expect("the page");
    let sources: Vec<_> = ["ucs", "uct", "ucp", "tools", "tests"].into_iter().flat_map(all).collect();
    let is_there = |test: &str| sources.iter().any(|(_, text)| text.contains(&format!("fn {test}(")));
    let (mut in_table, mut rows, mut missing) = (false, 0, Vec::new());
    for line in page.lines() {
        let last = line.strip_prefix('|').and_then(|row| row.trim_end_matches('|').rsplit('|').next());
        let Some(cell) = last.map(str::trim) else {
            in_table = false;
            continue;
        };
        if !in_table {
            in_table = cell == "test";
            continue;
        }
        if cell.starts_with("---") {
            continue;
        }
        rows += 1;
        let named: Vec<&str> =
            cell.split('`').skip(1).step_by(2).filter(|name| *name != "attackers").collect();
        if named.is_empty() || !named.iter().all(|test| is_there(test)) {
            missing.push(line);
        }
    }
    assert!(rows > 50, "the tables are not found");
    assert!(missing.is_empty(), "rows without a test:\n{}", missing.join("\n"));
}

/// A panic does not cross into C, where it would end the program.
#[test]
fn functions_that_c_calls_catch_panics() {
    let mut found = Vec::new();
    for (name, text) in ["ucp/abi/src", "ucp/ofi/src"].into_iter().flat_map(all) {
        // Tests call functions of their own.
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        if !is_test(&name) {
            found.extend(entries::without_guard(text));
        }
    }
    found.sort();
    found.dedup();
    let mut plain: Vec<_> = entries::PLAIN.iter().map(|(name, _)| (*name).to_owned()).collect();
    plain.sort();
    assert_eq!(found, plain, "functions that catch no panic, and those of which it is known why");
}

#[test]
fn planted_functions_without_a_guard_are_found() {
    let planted = "extern \"C\" fn bare() {\n    1;\n}\nunsafe extern \"C\" fn good() {\n    guard(\"good\", || 1);\n}\n\
                   fn helper() {\n    guard(\"\", || 1)\n}\npub(crate) extern \"C\" fn by_helper() {\n    helper()\n}\n\
                   // extern \"C\" fn none() {\ntype T = extern \"C\" fn();\n\
                   macro_rules! entry {\n    x => {\n        extern \"C\" fn $name() {\n            1\n        }\n    }\n}\n\
                   mod m {\n    extern \"C\" fn inner() {\n        1\n    }\n}\n";
    assert_eq!(entries::without_guard(planted), ["bare", "entry", "inner"]);
}

/// A safe function that relies on its caller for a pointer lets safe code do what is undefined.
#[test]
fn functions_that_rely_on_pointers_are_unsafe() {
    let mut found = Vec::new();
    for (name, text) in ["ucp/abi/src", "ucp/ofi/src"].into_iter().flat_map(all) {
        if !is_test(&name) {
            found.extend(
                entries::safe_with_pointers(&text).iter().map(|function| format!("{name}: {function}")),
            );
        }
    }
    found.sort();
    found.dedup();
    let mut checked: Vec<_> = entries::CHECKED.iter().map(|(name, _)| (*name).to_owned()).collect();
    checked.sort();
    assert_eq!(found, checked, "safe functions that use a pointer, and those of which it is known why");
}

#[test]
fn planted_safe_functions_with_pointers_are_found() {
    let planted = "fn bad(at: *const u8) -> u8 {\n    unsafe { at.read() }\n}\n\
                   unsafe fn good(at: *const u8) -> u8 {\n    unsafe { at.read() }\n}\n\
                   fn pair((at, len): (*mut u8, usize), other: u8) {\n    unsafe { f(len) };\n    at;\n}\n\
                   fn compares(at: *const u8, x: &u8) -> bool {\n    unsafe { g(x) };\n    at.is_null()\n}\n\
                   unsafe extern \"C\" fn c(at: *const u8) {\n    unsafe { at.read() };\n}\n\
                   impl A {\n    fn method(&self, at: Vec<*mut u8>) {\n        unsafe { at[0].read() };\n    }\n}\n\
                   entry! {\n    fn exported(at: *const u8) {\n        unsafe { at.read() };\n    }\n}\n";
    assert_eq!(entries::safe_with_pointers(planted), ["bad", "pair", "method"]);
}

/// Packets lie in memory that their sender may be writing. Code that reads a header in place reads it twice
/// some day, once to check and once to use: the parsers copy each field once.
#[test]
fn received_packets_are_read_by_copies() {
    const PLAIN: [&str; 6] = [
        "packet[0]",
        "packet.first()",
        "packet.first_chunk()",
        "packet.split_first()",
        "from_bytes(packet)",
        "from_prefix(packet)",
    ];
    const DIRS: [&str; 11] = [
        "ucp/src/wire",
        "ucp/src/rdm",
        "ucp/src/lane",
        "ucp/src/api/am",
        "uct/src/api",
        "uct/src/base",
        "uct/src/efa",
        "uct/src/mt",
        "uct/src/posix",
        "uct/src/wrap",
        "uct/src/any",
    ];
    let mut found = Vec::new();
    for (name, text) in DIRS.into_iter().flat_map(product) {
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (n, line) in code.lines().enumerate() {
            // A sender writes its own packet.
            let is_write = line.contains("packet[0] = ");
            if !is_write && PLAIN.iter().any(|plain| line.contains(plain)) {
                found.push(format!("{name}:{}: {}", n + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "packets read in place:\n{}", found.join("\n"));
}
