//! The C headers of this crate against the list of names of UCX 1.23's public headers (`ucx-1.23.txt`): each
//! name is there, with the same value, size and place, and each function is exported, or a reason is given.
//! A release after 1.23 has a list of its own.
//!
//! Skipped where there is no C compiler.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LIST: &str = include_str!("ucx-1.23.txt");

/// Headers of UCX of whose names none is needed, and why. `uct.h` includes them.
const ABSENT_HEADERS: &[(&str, &str)] = &[("ucs/memory/numa.h", "UCX's own view of NUMA nodes")];

/// Names that are absent, by their beginning, and why.
const ABSENT: &[(&str, &str)] = &[
    ("ucm_global_opts", "options of UCX's hooks: each release has another layout, and there are no hooks"),
    ("ucs_callbackq_", "UCX's implementation of a queue; programs use uct_worker_progress_register_safe"),
    ("ucs_event_set_", "UCX's wrapper of epoll"),
    ("ucs_sys_event_set", "UCX's wrapper of epoll"),
    ("UCS_LIST_CHECK_ELEM_IS_VALID", "a check of UCX's build with assertions"),
    ("ucs_topo_", "UCX's view of the PCI bus; ucx_info's part of it is exported for the binary"),
    ("UCS_TOPO_", "as ucs_topo_*"),
    ("ucs_sys_bus_id", "as ucs_topo_*"),
    ("ucs_bus_id_bit_rep_t", "as ucs_topo_*"),
    ("ucs_sys_dev_distance", "as ucs_topo_*"),
    ("ucs_sys_topo_", "as ucs_topo_*"),
    ("ucs_global_state", "as ucs_topo_*"),
    ("UCS_SYS_DEVICE_ORDINAL_INVALID", "as ucs_topo_*"),
    ("UCS_SYS_DEVICE_USER_VALUE_EMPTY", "as ucs_topo_*"),
    ("UCT_SCM_", "the commit of UCX's build"),
    ("UCS_ASAN_", "checks of UCX's build with AddressSanitizer"),
    ("ucs_debug_asan_", "as UCS_ASAN_"),
];

/// Lines of the list that do not hold here, and why.
const DIFFERENT: &[(&str, &str)] = &[
    ("field uct_allocated_memory_t sys_device", "no mask says that the caller has room for it"),
    ("size uct_allocated_memory_t", "as its field"),
    ("field struct:ucs_callbackq ", "UCX's implementation"),
    ("size struct:ucs_callbackq", "UCX's implementation; programs hold pointers to workers only"),
    ("field uct_worker_t ", "as ucs_callbackq"),
    ("size uct_worker_t", "as ucs_callbackq"),
];

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Runs the compiler on C text. Returns what it says, if it fails.
fn gcc(arguments: &[&str], source: &str) -> Result<(), String> {
    let mut gcc = Command::new("gcc");
    gcc.arg(format!("-I{}", include().display())).args(["-Wno-deprecated-declarations", "-x", "c", "-"]);
    gcc.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut gcc = gcc.spawn().expect("gcc starts");
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    let output = gcc.wait_with_output().expect("gcc ends");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

const INCLUDES: &str = "#include <stddef.h>\n#include <ucp/api/ucp.h>\n#include <ucp/api/ucp_compat.h>\n\
    #include <ucp/api/device/ucp_host.h>\n#include <uct/api/uct.h>\n#include <uct/api/v2/uct_v2.h>\n\
    #include <ucm/api/ucm.h>\n";

/// Whether a line of the list is to hold.
fn holds(line: &str) -> bool {
    let name = line.split(' ').nth(1).unwrap_or_default();
    let name = name.trim_start_matches("struct:").trim_start_matches("union:");
    let is_absent = ABSENT.iter().any(|(beginning, _)| name.starts_with(beginning));
    // Types that our headers define, and functions and fields of them.
    let is_present = ["ucs_callbackq_t", "ucs_callbackq_elem_t", "ucs_callbackq_flags"].contains(&name)
        || name == "ucs_event_set_types_t";
    (!is_absent || is_present) && !DIFFERENT.iter().any(|(beginning, _)| line.starts_with(beginning))
}

/// Lines of the list that are to hold, in words, without guards of headers.
fn lines() -> Vec<Vec<&'static str>> {
    let mut is_wanted = true;
    let mut found = Vec::new();
    for line in LIST.lines().filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix("header ") {
            is_wanted = !ABSENT_HEADERS.iter().any(|(absent, _)| *absent == header);
        } else if is_wanted && holds(line) {
            found.push(line.split(' ').collect());
        }
    }
    found
}

/// The type of a line: `struct:NAME` is one without a name of its own.
fn type_of(name: &str) -> String {
    name.replace(':', " ")
}

#[test]
fn names_values_and_layouts_are_those_of_ucx_1_23() {
    if !common::has_compiler() {
        return;
    }
    let mut source = String::from(INCLUDES);
    let mut functions = BTreeSet::new();
    for words in lines() {
        source += &match words[..] {
            ["value", name, value] => {
                format!("_Static_assert((long long)({name}) == (long long){value}ull, \"{name}\");\n")
            }
            ["macro", name] => format!("#ifndef {name}\n#error {name}\n#endif\n"),
            ["type", name] => format!("typedef {name} *is_there_{name};\n"),
            ["tag", _] => String::new(),
            ["function" | "data", name] => {
                functions.insert(name);
                String::new()
            }
            ["size", name, size] => {
                format!("_Static_assert(sizeof({}) == {size}, \"{name}\");\n", type_of(name))
            }
            ["field", of, field, offset, size] => {
                let of = type_of(of);
                format!(
                    "_Static_assert(offsetof({of}, {field}) == {offset} && \
                     sizeof((({of}*)0)->{field}) == {size}, \"{of}.{field}\");\n"
                )
            }
            _ => panic!("a line of the list: {words:?}"),
        };
    }
    if let Err(said) = gcc(&["-fsyntax-only"], &source) {
        panic!("{said}");
    }
    assert!(functions.len() > 240, "{} functions", functions.len());
    // All are declared, and exported: the linker finds them.
    let mut source = String::from(INCLUDES);
    source += "const void *all[] = {\n";
    for name in functions {
        source += &format!("    (const void*)&{name},\n");
    }
    source += "};\nint main(void) { return all[0] == 0; }\n";
    let folder = common::library_folder();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("all_functions");
    let (library, program) = (format!("-L{}", folder.display()), program.display().to_string());
    // `-x none` ends the language that standard input has.
    if let Err(said) = gcc(&["-x", "none", "-o", &program, &library, "-l:libucp.so.0"], &source) {
        panic!("{said}");
    }
}

/// Each reason is still of use: what it is about is in the list, and not in our headers.
#[test]
fn reasons_are_of_use() {
    let list: Vec<&str> = LIST.lines().collect();
    for (header, _) in ABSENT_HEADERS {
        assert!(list.contains(&&*format!("header {header}")), "{header}");
    }
    for (beginning, _) in ABSENT {
        assert!(list.iter().any(|line| line.contains(&format!(" {beginning}"))), "{beginning}");
    }
    for (beginning, _) in DIFFERENT {
        assert!(list.iter().any(|line| line.starts_with(beginning)), "{beginning}");
    }
}
