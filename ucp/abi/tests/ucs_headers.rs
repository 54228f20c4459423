//! The headers of `ucs` that programs include beside those of communication: each compiles alone, has the
//! macros of UCX's header of the same name, and declares the same functions, values and layouts.
//!
//! Skipped where there is no C compiler, or no header of UCX (Debian: libucx-dev).

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ucs::testing::not_installed;

const SYSTEM: &str = "/usr/include";

/// Headers of UCX 1.13 that are absent, and why. `docs/abi.md` lists them.
const ABSENT_HEADERS: &[(&str, &str)] = &[
    ("ucs/algorithm/crc.h", "no program uses it"),
    ("ucs/algorithm/qsort_r.h", "no program uses it"),
    ("ucs/arch/aarch64/global_opts.h", "its options are those of x86_64 here"),
    ("ucs/arch/ppc64/", "this library is not built for it"),
    ("ucs/config/ini.h", "a reader of files from elsewhere"),
    ("ucs/datastruct/mpool_set.h", "no program uses it"),
    ("ucs/memory/memtype_cache.h", "there is no memory of devices"),
    ("ucs/memory/rcache.h", "it needs hooks of memory, which are refused"),
    ("ucs/stats/libstats.h", "there are no statistics"),
    ("ucs/vfs/", "there is no file system of the library's objects"),
];

/// Macros of headers of UCX 1.13 that are absent, by their beginning, and why.
const ABSENT_MACROS: &[(&str, &str)] = &[
    ("UCS_ARRAY_", "arrays have the form of UCX 1.23"),
    ("ucs_array_t", "as UCS_ARRAY_"),
    ("ucs_array_init_fixed_capacity", "as UCS_ARRAY_"),
    ("UCS_DEFINE_ATOMIC_", "what defines UCX's functions"),
    ("UCS_PROFILE_FILE_VERSION", "profiles are not recorded"),
    ("ucs_bitmap2idx", "it is a function, as in UCX 1.23"),
];

/// Headers whose macros are compared.
const COMPARED: [&str; 19] = [
    "ucs/arch/atomic.h",
    "ucs/arch/bitops.h",
    "ucs/arch/global_opts.h",
    "ucs/config/global_opts.h",
    "ucs/datastruct/array.h",
    "ucs/datastruct/hlist.h",
    "ucs/datastruct/khash.h",
    "ucs/datastruct/pgtable.h",
    "ucs/datastruct/queue_types.h",
    "ucs/datastruct/strided_alloc.h",
    "ucs/debug/log_def.h",
    "ucs/debug/memtrack.h",
    "ucs/profile/profile_on.h",
    "ucs/stats/stats_fwd.h",
    "ucs/sys/math.h",
    "ucs/sys/preprocessor.h",
    "ucs/type/class.h",
    "ucs/type/init_once.h",
    "ucs/type/param.h",
];

/// Headers whose functions and data are compared.
const WITH_FUNCTIONS: [&str; 8] = [
    "ucs/config/global_opts.h",
    "ucs/datastruct/pgtable.h",
    "ucs/debug/debug.h",
    "ucs/debug/log_def.h",
    "ucs/debug/memtrack.h",
    "ucs/profile/profile_defs.h",
    "ucs/stats/stats_fwd.h",
    "ucs/type/class.h",
];

/// Numbers that are the same in both: values, sizes of types, places of fields.
const NUMBERS: &[&str] = &[
    "UCS_PGT_ADDR_ALIGN",
    "UCS_PGT_ADDR_MAX",
    "UCS_PGT_ADDR_ORDER",
    "UCS_PGT_ENTRIES_PER_DIR",
    "UCS_PGT_ENTRY_MASK",
    "UCS_PGT_ENTRY_PTR_MASK",
    "UCS_PGT_ENTRY_MIN_ALIGN",
    "UCS_KH_PUT_FAILED",
    "UCS_KH_PUT_KEY_PRESENT",
    "UCS_KH_PUT_BUCKET_EMPTY",
    "UCS_KH_PUT_BUCKET_CLEAR",
    "UCS_STRIDED_ALLOC_STRIDE",
    "UCS_PROFILE_MODE_LAST",
    "UCS_PROFILE_TYPE_SCOPE_BEGIN",
    "UCS_PROFILE_TYPE_SCOPE_END",
    "UCS_PROFILE_TYPE_REQUEST_NEW",
    "UCS_PROFILE_TYPE_REQUEST_EVENT",
    "UCS_PROFILE_TYPE_REQUEST_FREE",
    "UCS_PROFILE_TYPE_LAST",
    "UCS_PROFILE_STACK_MAX",
    "UCS_STATS_FULL_AGG",
    "UCS_STATS_SUMMARY",
    "UCS_STATS_LAST",
    "UCS_MAX_LOG_LEVEL",
    "UCS_KBYTE",
    "UCS_MBYTE",
    "UCS_GBYTE",
    "UCS_TBYTE",
    "UCS_PBYTE",
    "ucs_ilog2(12345)",
    "sizeof(ucs_class_t)",
    "offsetof(ucs_class_t, superclass)",
    "offsetof(ucs_class_t, cleanup)",
    "sizeof(ucs_init_once_t)",
    "offsetof(ucs_init_once_t, initialized)",
    "sizeof(ucs_queue_elem_t)",
    "sizeof(ucs_queue_head_t)",
    "offsetof(ucs_queue_head_t, ptail)",
    "sizeof(ucs_hlist_link_t)",
    "sizeof(ucs_hlist_head_t)",
    "sizeof(ucs_pgtable_t)",
    "sizeof(ucs_pgt_dir_t)",
    "sizeof(ucs_pgt_region_t)",
    "_Alignof(ucs_pgt_region_t)",
    "offsetof(ucs_pgtable_t, num_regions)",
    "offsetof(ucs_pgtable_t, pgd_release_cb)",
    "sizeof(ucs_strided_alloc_t)",
    "offsetof(ucs_strided_alloc_t, inuse_count)",
    "sizeof(ucs_string_set_t)",
    "offsetof(ucs_string_set_t, flags)",
    "offsetof(ucs_string_set_t, vals)",
    "sizeof(khint_t)",
    "sizeof(khint64_t)",
    "sizeof(ucs_arch_global_opts_t)",
    "sizeof(ucs_global_opts_t)",
    "offsetof(ucs_global_opts_t, log_print_enable)",
    "offsetof(ucs_global_opts_t, error_signals)",
    "offsetof(ucs_global_opts_t, log_level_trigger)",
    "offsetof(ucs_global_opts_t, enable_memtype_cache)",
    "offsetof(ucs_global_opts_t, memtrack_dest)",
    "offsetof(ucs_global_opts_t, stats_format)",
    "offsetof(ucs_global_opts_t, modules)",
    "offsetof(ucs_global_opts_t, arch)",
    "offsetof(ucs_global_opts_t, rcache_stat_max)",
];

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Runs the compiler on a text. Returns what it says, if it fails.
fn gcc(language: &str, arguments: &[&str], source: &str) -> Result<(), String> {
    let mut gcc = Command::new("gcc");
    gcc.args(["-fsyntax-only", "-x", language]).args(arguments).arg("-");
    let mut gcc = gcc.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("gcc starts");
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    let output = gcc.wait_with_output().expect("gcc ends");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Paths of all headers in a folder, from `root` on.
fn headers(root: &Path, folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root.join(folder)).expect("the folder is there") {
        let entry = entry.expect("an entry");
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            found.extend(headers(root, &name));
        } else if name.ends_with(".h") {
            found.insert(name);
        }
    }
    found
}

#[test]
fn each_header_compiles_alone() {
    if !common::has_compiler() {
        return;
    }
    let ours = format!("-I{}", include().display());
    let all: Vec<String> =
        ["ucm", "ucp", "ucs", "uct"].iter().flat_map(|folder| headers(&include(), folder)).collect();
    assert!(all.len() >= 60, "{} headers", all.len());
    let warnings = [
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-Wsign-conversion",
        "-Werror",
        "-pedantic",
        "-Wno-unused-function",
        "-Wno-deprecated-declarations",
    ];
    for (language, standard) in [("c", "-std=gnu11"), ("c++", "-std=gnu++11"), ("c++", "-std=gnu++17")] {
        let arguments: Vec<&str> = warnings.iter().copied().chain([standard, ours.as_str()]).collect();
        for header in &all {
            // A file without a declaration is no C.
            let source = format!("#include <{header}>\n#include <{header}>\nint one;\n");
            if let Err(said) = gcc(language, &arguments, &source) {
                panic!("{header} {standard}: {said}");
            }
        }
    }
}

/// `helpers.rs` runs these programs as C. Their macros and inline functions are C++, too.
#[test]
fn macros_and_inline_functions_are_c_and_cpp() {
    if !common::has_compiler() {
        return;
    }
    let ours = format!("-I{}", include().display());
    for program in ["structures.c", "classes.c", "arrays.c"] {
        let at = include().join("../tests/c").join(program);
        for (language, standard) in [("c", "-std=gnu99"), ("c", "-std=gnu17"), ("c++", "-std=gnu++17")] {
            let arguments = [standard, "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror", &ours];
            if let Err(said) = gcc(language, &arguments, &format!("#include \"{}\"\n", at.display())) {
                panic!("{program} {standard}: {said}");
            }
        }
    }
}

/// Programs use what headers of UCX declare by the headers that they include.
#[test]
fn headers_declare_what_those_of_ucx_do() {
    if !common::has_compiler() {
        return;
    }
    let ours = format!("-I{}", include().display());
    for (header, what) in [
        ("ucs/sys/event_set.h", "UCS_OK"),
        ("ucs/sys/sock.h", "UCS_OK"),
        ("ucs/datastruct/callbackq.h", "UCS_OK"),
        ("ucs/sys/topo/base/topo.h", "UCS_OK"),
        ("ucs/datastruct/string_buffer.h", "UCS_OK + (int)sizeof(FILE*) + (int)sizeof(va_list)"),
        ("ucs/type/cpu_set.h", "UINT8_MAX"),
    ] {
        for language in ["c", "c++"] {
            let source = format!("#include <{header}>\nint used(void) {{ return {what}; }}\n");
            if let Err(said) = gcc(language, &["-Wall", "-Werror", &ours], &source) {
                panic!("{header}: {said}");
            }
        }
    }
}

/// Types of C++ have members in parts of them that C does not know.
#[test]
fn members_of_types_of_cpp_are_found() {
    if !common::has_compiler() {
        return;
    }
    let ours = format!("-I{}", include().display());
    let source = "#include <ucs/sys/compiler_def.h>
        struct base { virtual ~base() {} int one; };
        struct derived : base { int two; };
        derived *of(int *at) { return ucs_container_of(at, derived, two); }
        size_t place() { return ucs_offsetof(derived, two); }\n";
    if let Err(said) = gcc("c++", &["-Wall", "-Wextra", "-Werror", &ours], source) {
        panic!("{said}");
    }
}

/// A program may have klib's header, or that of UCX, before or behind this project's.
#[test]
fn one_file_has_two_headers_of_hash_tables() {
    if !has_system() {
        return;
    }
    let ours = format!("-I{}", include().display());
    let theirs = format!("#include \"{SYSTEM}/ucs/datastruct/khash.h\"\n");
    let own = "#include <ucs/datastruct/khash.h>\n#include <ucs/datastruct/string_set.h>\n";
    let rest =
        "KHASH_MAP_INIT_INT64(longs, int)\nint size(khash_t(longs) *table) { return (int)kh_size(table); }\n";
    for source in [[own, &theirs, rest], [&theirs, own, rest]] {
        for language in ["c", "c++"] {
            let arguments = ["-Wall", "-Wno-unused-function", "-Werror", &ours];
            if let Err(said) = gcc(language, &arguments, &source.concat()) {
                panic!("{language} {source:?}: {said}");
            }
        }
    }
}

/// Whether there are headers of UCX to compare with.
fn has_system() -> bool {
    let found = Path::new(SYSTEM).join("ucs/type/class.h").exists();
    if !found {
        not_installed("headers of ucs", "no libucx-dev");
    }
    found && common::has_compiler()
}

#[test]
fn headers_of_ucx_exist_or_have_a_reason() {
    if !has_system() {
        return;
    }
    let theirs = headers(Path::new(SYSTEM), "ucs");
    let ours = headers(&include(), "ucs");
    let absent: Vec<_> = theirs.difference(&ours).collect();
    for header in &absent {
        let reason = ABSENT_HEADERS.iter().find(|(name, _)| header.starts_with(name));
        assert!(reason.is_some(), "{header} is absent, without a reason");
    }
    let page = include().join("../../../docs/abi.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    for (name, _) in ABSENT_HEADERS {
        assert!(absent.iter().any(|header| header.starts_with(name)), "{name} is there");
        assert!(page.contains(&format!("`{name}`")), "docs/abi.md does not name {name}");
    }
}

/// Names of the public macros after a header. Guards are not among them.
fn macros(header: &str, arguments: &[&str]) -> BTreeSet<String> {
    let mut gcc = Command::new("gcc");
    gcc.args(arguments).args(["-dM", "-E", "-x", "c", "-include", header, "/dev/null"]);
    let output = gcc.output().expect("gcc starts");
    assert!(output.status.success(), "{header}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let names = text.lines().filter_map(|line| line.strip_prefix("#define ")?.split([' ', '(']).next());
    let is_public =
        |name: &&str| ["ucs_", "UCS_", "kh_", "KHASH_", "khash_"].iter().any(|part| name.starts_with(part));
    names
        .filter(is_public)
        .filter(|name| !name.trim_end_matches('_').ends_with("_H"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn macros_of_ucx_exist_or_have_a_reason() {
    if !has_system() {
        return;
    }
    let flag = format!("-I{}", include().display());
    let mut missing_with_reason = BTreeSet::new();
    let mut compared = 0;
    for header in COMPARED {
        let (ours, theirs) = (macros(header, &[&flag]), macros(header, &[]));
        compared += theirs.len();
        for name in theirs.difference(&ours) {
            let reason = ABSENT_MACROS.iter().find(|(beginning, _)| name.starts_with(beginning));
            let Some((beginning, _)) = reason else { panic!("{header} of ours lacks {name}") };
            missing_with_reason.insert(*beginning);
        }
    }
    assert!(compared > 500, "{compared} macros");
    for (beginning, _) in ABSENT_MACROS {
        assert!(missing_with_reason.contains(beginning), "{beginning} is there");
    }
}

/// Functions and data that a header of ours declares as C.
fn declarations(header: &str) -> String {
    let text = std::fs::read_to_string(include().join(header)).expect("the header is there");
    let (_, behind) = text.split_once("extern \"C\" {\n#endif\n").expect("declarations");
    behind.split_once("#ifdef __cplusplus\n}").expect("their end").0.to_owned()
}

#[test]
fn functions_values_and_layouts_are_those_of_ucx() {
    if !has_system() {
        return;
    }
    let mut source = String::from("#include <stddef.h>\n#include <ucs/datastruct/string_set.h>\n");
    for header in COMPARED.iter().chain(&WITH_FUNCTIONS) {
        source += &format!("#include <{header}>\n");
    }
    // The compiler refuses a declaration that differs from one before. Places have an `int` in UCX 1.13.
    let mut both = format!("{source}typedef int ucs_profile_loc_id_t;\n");
    for header in WITH_FUNCTIONS {
        let ours = declarations(header);
        assert!(ours.contains(';'), "{header} declares nothing");
        both += &ours;
    }
    if let Err(said) = gcc("c", &[], &both) {
        panic!("{said}");
    }
    let printing: String = NUMBERS.iter().map(|of| format!("    SHOW({of});\n")).collect();
    source += &format!(
        "#include <stdio.h>\n#define SHOW(_of) printf(\"%s %lld\\n\", #_of, (long long)(_of))\n\
         int main(void)\n{{\n{printing}    return 0;\n}}\n"
    );
    let shown = |kind: &str, arguments: &[&str]| {
        let program =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("numbers.{kind}.{}", std::process::id()));
        let at = program.with_extension("c");
        std::fs::write(&at, &source).expect("room for a program");
        // Functions that the program's headers use are those of this library, which no number needs.
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1"]).args(arguments).arg(&at).arg("-o").arg(&program);
        gcc.arg(format!("-L{}", common::library_folder().display())).args(["-l:libucp.so.0", "-lm"]);
        let output = gcc.output().expect("gcc starts");
        assert!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stderr));
        let output = Command::new(&program).env("LD_LIBRARY_PATH", common::library_folder()).output();
        for file in [&program, &at] {
            _ = std::fs::remove_file(file);
        }
        String::from_utf8(output.expect("it starts").stdout).expect("text")
    };
    let flag = format!("-I{}", include().display());
    let ours = shown("ours", &[&flag]);
    assert_eq!(ours.lines().count(), NUMBERS.len());
    assert_eq!(ours, shown("ucx", &[]));
}
