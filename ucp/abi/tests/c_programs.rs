//! C programs, compiled against the system's UCX headers, on this library: every function that they call has
//! UCX's prototype. Layouts of structures are compared by the compiler.
//!
//! Skipped where there is no C compiler or no header (Debian: gcc, libucx-dev).

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{library_folder, output_within};

const HEADER: &str = "/usr/include/ucp/api/ucp.h";

fn compile(name: &str, folder: &Path, arguments: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.trim_end_matches(".c"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-Wno-unused-function"])
        .args(arguments)
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg(format!("-L{}", folder.display()))
        .arg("-l:libucp.so.0");
    let output = gcc.output().expect("gcc runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

fn run(name: &str, tls: &[&str]) {
    if !Path::new(HEADER).exists() || Command::new("gcc").arg("--version").output().is_err() {
        eprintln!("skipped: no gcc or no {HEADER} (libucx-dev)");
        return;
    }
    let folder = library_folder();
    // Some functions are newer than Debian's headers.
    let ours = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let arguments: &[&str] = if name == "rest.c" { &[ours] } else { &[] };
    let program = compile(name, &folder, arguments);
    let module = if name == "pitfalls.c" {
        compile("module.c", &folder, &["-shared", "-fPIC"])
    } else {
        PathBuf::new()
    };
    for tls in tls {
        let mut command = Command::new(&program);
        // The prefix of the configuration wins.
        command.env("LD_LIBRARY_PATH", &folder).env("UCX_TLS", tls).env("UCX_TEST_LOG_LEVEL", "fatal");
        if name == "fuzz.c" {
            command.env("UCX_LOG_LEVEL", "fatal");
        }
        command.env("MODULE", module.as_os_str());
        let output = output_within(command, 120);
        assert!(output.stdout.is_empty(), "{name} on {tls} prints to standard output");
        assert!(
            output.status.success(),
            "{name} on {tls}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn tagged_messages() {
    run("tagged.c", &["posix", "efa", "posix,cma"]);
}

#[test]
fn memory_and_one_sided_operations() {
    run("one_sided.c", &["posix", "efa", "posix,cma"]);
}

#[test]
fn active_messages_streams_and_connections() {
    run("messages.c", &["posix", "efa"]);
}

#[test]
fn other_forms_of_operations() {
    run("rest.c", &["posix", "efa"]);
}

#[test]
fn what_programs_rely_on() {
    run("pitfalls.c", &["posix", "efa", "posix,cma"]);
}

#[test]
fn bad_input_answers_a_status() {
    run("bad_input.c", &["posix"]);
    run("fuzz.c", &["posix", "efa"]);
}

/// Names of the functions that a header declares.
fn declared(header: &str) -> Vec<String> {
    let text = std::fs::read_to_string(header).expect("the header is there");
    let mut code = String::new();
    for (at, part) in text.split("/*").enumerate() {
        code += if at == 0 { part } else { part.split_once("*/").map_or("", |(_, behind)| behind) };
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names: Vec<_> = code
        .split('(')
        .filter_map(|before| {
            let before = before.trim_end();
            let at = before.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
            Some(before[at..].to_owned()).filter(|name| name.starts_with("ucp_"))
        })
        .collect();
    // Made of others by the header.
    names.retain(|name| name != "ucp_init" && !name.starts_with("ucp_dt_make_"));
    names.sort();
    names.dedup();
    names
}

#[test]
fn every_public_function_is_exported() {
    if !Path::new(HEADER).exists() || Command::new("gcc").arg("--version").output().is_err() {
        return eprintln!("skipped: no gcc or no {HEADER} (libucx-dev)");
    }
    let mut names = declared(HEADER);
    names.extend(declared("/usr/include/ucp/api/ucp_compat.h"));
    // Of later releases.
    names.extend(
        ["dt_query", "memh_pack", "memh_buffer_release", "rkey_compare"].map(|name| format!("ucp_{name}")),
    );
    assert!(names.len() >= 110, "{names:?}");
    let folder = library_folder();
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("all_functions.c");
    let declarations: String = names.iter().map(|name| format!("void {name}(void);\n")).collect();
    let uses: String = names.iter().map(|name| format!("(void*){name}, ")).collect();
    let text = format!("{declarations}void *all[] = {{{uses}}};\nint main(void) {{ return all[0] == 0; }}\n");
    std::fs::write(&source, text).expect("the source is written");
    let gcc = Command::new("gcc")
        .arg("-o")
        .arg(source.with_extension(""))
        .arg(&source)
        .arg(format!("-L{}", folder.display()))
        .args(["-l:libucp.so.0", "-Wl,--no-undefined"])
        .output()
        .expect("gcc runs");
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
}
