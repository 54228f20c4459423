//! The C header of the lower interface (`include/uct`): the test programs compile with it. Types of functions
//! and values are those of the system's header, where it is installed (Debian: libucx-dev).
//!
//! Skipped where there is no C compiler.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SYSTEM: &str = "/usr/include/uct/api/uct.h";

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(include().join("uct/api").join(name)).expect("the header is there")
}

fn has_compiler() -> bool {
    let found = Command::new("gcc").arg("--version").output().is_ok();
    if !found {
        ::ucs::testing::not_installed("header of the lower interface", "no gcc");
    }
    found
}

/// Compiles C text; arguments say what becomes of it.
fn compile(what: &str, arguments: &[&str], source: &str) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Werror", "-Wno-unused-function"]).args(arguments).arg("-");
    let mut gcc = gcc.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("gcc starts");
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    let output = gcc.wait_with_output().expect("gcc ends");
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn programs_compile_with_our_header() {
    if !has_compiler() {
        return;
    }
    let flag = format!("-I{}", include().display());
    for program in ["uct.c", "uct_peer.c"] {
        let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(program);
        let source = format!("#include \"{}\"\n", at.display());
        compile(program, &[&flag, "-fsyntax-only", "-x", "c"], &source);
    }
    for header in ["uct/api/uct.h", "uct/api/tl.h", "ucs/async/async_fwd.h", "ucs/datastruct/callbackq.h"] {
        compile(header, &[&flag, "-fsyntax-only", "-x", "c++"], &format!("#include <{header}>\n"));
    }
}

/// Declarations of functions: name, result and arguments.
fn functions() -> Vec<(String, String, String)> {
    let header = text("uct.h");
    let code = header.split_once("/* Calls through").map_or(&*header, |(before, _)| before);
    let mut found = Vec::new();
    for declaration in code.split(';') {
        let line_of = |text: &str| text.rsplit('\n').find(|line| line.contains(" uct_")).map(str::to_owned);
        let Some((head, arguments)) = declaration.split_once('(') else { continue };
        let Some(head) = line_of(head) else { continue };
        let Some((result, name)) = head.rsplit_once(' ') else { continue };
        found.push((name.to_owned(), result.to_owned(), arguments.trim_end_matches(')').to_owned()));
    }
    found
}

/// Names of values: members of enumerations, and macros that are numbers.
fn values() -> Vec<String> {
    let all = text("uct_def.h");
    let mut names = Vec::new();
    for line in all.lines() {
        let member = line.strip_prefix("    UCT_");
        let number = line.strip_prefix("#define UCT_").filter(|rest| {
            rest.contains(' ')
                && !rest.contains('"')
                && !rest.contains("_resource")
                && !rest.contains("static")
        });
        let Some(rest) = member.or(number) else { continue };
        let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        names.push(format!("UCT_{name}"));
    }
    names
}

#[test]
fn types_and_values_are_those_of_ucx() {
    if !has_compiler() {
        return;
    }
    if !Path::new(SYSTEM).exists() {
        return ::ucs::testing::not_installed(
            "header of the lower interface",
            format!("no {SYSTEM} (libucx-dev)"),
        );
    }
    // Our values, as the compiler sees them, become numbers in a program of the system's header.
    let mut program = String::from("#include <stdio.h>\n#include <uct/api/uct.h>\nint main(void)\n{\n");
    let names = values();
    for name in &names {
        program += &format!("    printf(\"{name} %lld\\n\", (long long){name});\n");
    }
    program += "    return 0;\n}\n";
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("uct_values");
    let flag = format!("-I{}", include().display());
    compile("values", &[&flag, "-x", "c", "-o", &binary.display().to_string()], &program);
    let printed = Command::new(&binary).output().expect("the program runs");
    let mut source = String::from("#include <uct/api/uct.h>\n");
    let system = ["uct.h", "uct_def.h"]
        .map(|name| std::fs::read_to_string(Path::new(SYSTEM).with_file_name(name)).expect("a header of UCX"))
        .join("\n");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let of_system: std::collections::BTreeSet<&str> = system.split(|c| !is_name(c)).collect();
    let (mut count, mut compared) = (0, 0);
    for line in String::from_utf8_lossy(&printed.stdout).lines() {
        let (name, value) = line.split_once(' ').expect("a name and a value");
        count += 1;
        // The end of a list moves from release to release.
        if !of_system.contains(name) || name.ends_with("_LAST") {
            continue;
        }
        compared += 1;
        source += &format!("_Static_assert((long long){name} == {value}LL, \"{name}\");\n");
    }
    assert!(compared >= 120 && count == names.len(), "{count} of {} values", names.len());
    let functions = functions();
    assert!(functions.len() >= 44, "{} functions", functions.len());
    for (name, result, arguments) in functions {
        source += &format!(
            "_Static_assert(__builtin_types_compatible_p(__typeof__({name}), __typeof__({result}({arguments}))), \
             \"{name}\");\n"
        );
    }
    compile("the system's header", &["-fsyntax-only", "-x", "c"], &source);
}

/// Functions of the headers that no program calls: tag matching by devices, descriptors of messages and
/// connection managers, which there are none of.
const NOT_CALLED: [&str; 8] = [
    "uct_cm_close",
    "uct_iface_release_desc",
    "uct_recv_desc",
    "uct_ep_tag_eager_zcopy",
    "uct_ep_tag_rndv_cancel",
    "uct_ep_tag_rndv_request",
    "uct_iface_tag_recv_zcopy",
    "uct_iface_tag_recv_cancel",
];

#[test]
fn programs_call_every_function() {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let programs = ["uct.c", "uct_peer.c", "uct_forms.h"]
        .map(|name| std::fs::read_to_string(folder.join(name)).expect("a program"))
        .join("\n");
    let called: std::collections::BTreeSet<&str> = programs.split(|c| !is_name(c)).collect();
    let mut count = 0;
    for header in ["uct.h", "v2/uct_v2.h"] {
        let mut header = text(header);
        while let Some((before, behind)) = header.split_once("/*") {
            header = format!("{before}{}", behind.split_once("*/").expect("a comment ends").1);
        }
        for before in header.split('(') {
            let name = before.rsplit(|c| !is_name(c)).next().unwrap_or_default();
            if name.starts_with("uct_") && !name.ends_with("_t") {
                count += 1;
                assert!(called.contains(name) || NOT_CALLED.contains(&name), "{name}: no program calls it");
            }
        }
    }
    assert!(count > 80, "{count} functions");
}
