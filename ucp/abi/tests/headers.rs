//! The C headers of this crate (`include`): every test program in C compiles with them. Types of functions
//! and values are those of the system's UCX headers, where these are installed (Debian: libucx-dev).
//!
//! Skipped where there is no C compiler.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ucs::testing::not_installed;

const SYSTEM: &str = "/usr/include/ucp/api";

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(include().join(name)).expect("the header is there")
}

/// Checks C text with the compiler.
fn check(what: &str, arguments: &[&str], source: &str) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-fsyntax-only", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-Wno-unused-function"]);
    gcc.args(arguments).arg("-").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut gcc = gcc.spawn().expect("gcc starts");
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    let output = gcc.wait_with_output().expect("gcc ends");
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

fn has_compiler() -> bool {
    let found = Command::new("gcc").arg("--version").output().is_ok();
    if !found {
        not_installed("headers", "no gcc");
    }
    found
}

#[test]
fn programs_compile_with_our_headers() {
    if !has_compiler() {
        return;
    }
    let flag = format!("-I{}", include().display());
    for program in ["tagged.c", "messages.c", "one_sided.c", "bad_input.c"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
        let source = format!("#include \"{}\"\n", folder.join(program).display());
        check(program, &[&flag, "-x", "c"], &source);
    }
    // Each header alone, and in C++.
    let headers = [
        "ucp/api/ucp.h",
        "ucp/api/ucp_def.h",
        "ucp/api/ucp_compat.h",
        "ucs/type/status.h",
        "ucs/sys/sock.h",
        "ucs/datastruct/list.h",
        "ucs/datastruct/mpool.h",
        "ucs/datastruct/string_buffer.h",
        "ucs/config/parser.h",
        "ucs/sys/string.h",
        "ucs/sys/stubs.h",
        "ucs/sys/uid.h",
        "ucs/type/spinlock.h",
    ];
    for header in headers {
        check(header, &[&flag, "-x", "c++"], &format!("#include <{header}>\n"));
    }
}

/// Names of the macros that a program has after including a header, but for guards and what names a build.
fn macros(header: &str, arguments: &[&str]) -> BTreeSet<String> {
    let mut gcc = Command::new("gcc");
    gcc.args(arguments).args(["-dM", "-E", "-x", "c", "-include", header, "/dev/null"]);
    let output = gcc.output().expect("gcc starts");
    assert!(output.status.success(), "{header}: {}", String::from_utf8_lossy(&output.stderr));
    let is_ours = |name: &&str| {
        let is_of_ucx = ["ucp_", "uct_", "ucs_"].iter().any(|prefix| name.to_lowercase().starts_with(prefix));
        is_of_ucx && !name.trim_end_matches('_').ends_with("_H")
    };
    let text = String::from_utf8(output.stdout).expect("text");
    let names = text.lines().filter_map(|line| line.strip_prefix("#define ")?.split([' ', '(']).next());
    names.filter(is_ours).map(str::to_owned).collect()
}

#[test]
fn macros_of_ucx_exist_and_mean_the_same() {
    if !has_compiler() {
        return;
    }
    if !Path::new(SYSTEM).exists() {
        return not_installed("headers", format!("no {SYSTEM} (libucx-dev)"));
    }
    let flag = format!("-I{}", include().display());
    // Where a build comes from; a header that includes another one.
    let other = ["UCT_SCM_BRANCH", "UCT_SCM_VERSION", "UCS_STATS_FD_H"];
    for header in ["ucp/api/ucp.h", "uct/api/uct.h"] {
        let (ours, ucx) = (macros(header, &[&flag]), macros(header, &[]));
        assert!(ucx.len() > 60, "{header}: {}", ucx.len());
        let missing: Vec<_> = ucx.difference(&ours).filter(|name| !other.contains(&name.as_str())).collect();
        assert!(missing.is_empty(), "{header} of ours lacks {missing:?}");
    }
    let run = |name: &str, arguments: &[&str]| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = folder.join(format!("macros.{name}.{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/macros.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-Wall", "-Wextra", "-Werror"]).args(arguments).arg(source).arg("-o").arg(&program);
        let output = gcc.output().expect("gcc starts");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let output = Command::new(&program).output().expect("it starts");
        std::fs::remove_file(&program).expect("it is there");
        assert!(output.status.success(), "{name}");
        String::from_utf8(output.stdout).expect("text")
    };
    let ours = run("ours", &[&flag]);
    assert!(ours.lines().count() > 10);
    assert_eq!(ours, run("ours-optimised", &[&flag, "-O2"]));
    assert_eq!(ours, run("ucx", &["-Wno-implicit-fallthrough", "-include", "ucs/sys/preprocessor.h"]));
}

/// Declarations of functions: the result with the name, and the arguments.
fn functions(header: &str) -> Vec<(String, String, String)> {
    let code = header.split_once("static inline").map_or(header, |(before, _)| before);
    let mut found = Vec::new();
    for declaration in code.split(';') {
        let declaration = declaration.split_once("*/").map_or(declaration, |(_, behind)| behind);
        let Some((head, arguments)) = declaration.split_once('(') else { continue };
        let head: Vec<&str> = head.split_whitespace().collect();
        let Some((name, result)) = head.split_last() else { continue };
        let stars = name.len() - name.trim_start_matches('*').len();
        let name = &name[stars..];
        if !name.starts_with("ucp_") || result.contains(&"typedef") || head.contains(&"#define") {
            continue;
        }
        let result = format!("{} {}", result.join(" "), "*".repeat(stars));
        found.push((name.to_owned(), result, arguments.trim_end().trim_end_matches(')').to_owned()));
    }
    found
}

/// Names of the values that a header enumerates.
fn values(header: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = header.split(|c| !is_name(c));
    words.filter(|word| word.starts_with("UCP_") || word.starts_with("UCS_")).collect()
}

#[test]
fn types_and_values_are_those_of_ucx() {
    if !has_compiler() {
        return;
    }
    if !Path::new(SYSTEM).exists() {
        return not_installed("headers", format!("no {SYSTEM} (libucx-dev)"));
    }
    let system =
        ["ucp.h", "ucp_def.h", "ucp_compat.h", "../../ucs/type/status.h", "../../ucs/type/thread_mode.h"]
            .map(|name| std::fs::read_to_string(Path::new(SYSTEM).join(name)).expect("a header of UCX"))
            .join("\n");
    let of_system = |name: &str| {
        let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
        system.match_indices(name).any(|(at, _)| {
            !is_part(system[..at].chars().last()) && !is_part(system[at + name.len()..].chars().next())
        })
    };
    let mut source = String::from("#include <ucp/api/ucp.h>\n");
    let mut compared = 0;
    for (name, result, arguments) in functions(&text("ucp/api/ucp.h")) {
        if of_system(&name) {
            source += &format!(
                "_Static_assert(__builtin_types_compatible_p(__typeof__({name}), __typeof__({result}({arguments}))), \
                 \"{name}\");\n"
            );
            compared += 1;
        }
    }
    assert!(compared >= 105, "{compared} functions");
    // The values of our headers, as the compiler sees them, in a program of the system's headers.
    let headers =
        [text("ucp/api/ucp_def.h"), text("ucs/type/status.h"), text("ucs/type/thread_mode.h")].join("\n");
    let mut names = values(&headers);
    names.sort_unstable();
    names.dedup();
    let is_value = |name: &&str| {
        headers.contains(&format!("    {name} = "))
            || headers.contains(&format!("    {name},"))
            || headers.contains(&format!("    {name}\n"))
    };
    let ours: Vec<(&str, i64)> = evaluate(names.into_iter().filter(is_value).collect());
    let mut count = 0;
    for (name, value) in ours {
        if of_system(name) {
            source += &format!("_Static_assert((long long){name} == {value}LL, \"{name}\");\n");
            count += 1;
        }
    }
    assert!(count >= 140, "{count} values");
    check("the system's headers", &["-x", "c"], &source);
}

/// Values of names of our headers, printed by a program.
fn evaluate(names: Vec<&str>) -> Vec<(&str, i64)> {
    let mut source = String::from("#include <stdio.h>\n#include <ucp/api/ucp.h>\nint main(void) {\n");
    for name in &names {
        source += &format!("printf(\"%lld\\n\", (long long){name});\n");
    }
    source += "return 0; }\n";
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("values.{}", std::process::id()));
    let mut gcc = Command::new("gcc");
    gcc.arg(format!("-I{}", include().display()))
        .args(["-x", "c", "-", "-o"])
        .arg(&program)
        .stdin(Stdio::piped());
    let mut gcc = gcc.spawn().expect("gcc starts");
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    assert!(gcc.wait().expect("gcc ends").success());
    let printed = Command::new(&program).output().expect("the program runs").stdout;
    _ = std::fs::remove_file(&program);
    let printed = String::from_utf8(printed).expect("numbers");
    names.into_iter().zip(printed.lines().map(|line| line.parse().expect("a number"))).collect()
}
