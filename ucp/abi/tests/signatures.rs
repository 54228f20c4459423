//! The functions of this crate take and return what its C headers declare. Each has as many arguments on both
//! sides, and each argument and result is a pointer, or a number of the same size. The headers are written by
//! hand, so nothing else would find an argument that is missing or swapped with one of another size.
//!
//! Skipped where there is no C++ compiler.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use ucs::testing::not_installed;

const HEADERS: [&str; 21] = [
    "ucx4efa.h",
    "ucp/api/device/ucp_host.h",
    "ucp/api/ucp.h",
    "uct/api/uct.h",
    "uct/api/v2/uct_v2.h",
    "ucm/api/ucm.h",
    "ucs/sys/topo/base/topo.h",
    "ucs/config/types.h",
    "ucs/config/parser.h",
    "ucs/datastruct/mpool.h",
    "ucs/sys/string.h",
    "ucs/sys/stubs.h",
    "ucs/sys/uid.h",
    "ucs/type/spinlock.h",
    "ucs/config/global_opts.h",
    "ucs/datastruct/pgtable.h",
    "ucs/debug/debug.h",
    "ucs/debug/log_def.h",
    "ucs/debug/memtrack.h",
    "ucs/profile/profile_defs.h",
    "ucs/type/class.h",
];

/// Functions that later releases of UCX call with more arguments than the headers say, which say so many.
const HAVE_LATER_FORMS: [(&str, usize); 3] = [
    ("ucs_config_parser_set_value", 4),
    ("ucs_config_parser_print_opts", 7),
    ("ucs_config_parser_print_all_opts", 4),
];

/// Tells the compiler's kind of each argument and result of a function.
const CHECKER: &str = r"
#include <stddef.h>
#include <type_traits>
// P: a pointer. Else the size of a number; 100 and its size: a number with a point; 0: nothing.
enum { P = 64 };
template<class T> constexpr int kind() {
    if constexpr (std::is_void<T>::value) return 0;
    else if constexpr (std::is_pointer<T>::value) return P;
    else if constexpr (std::is_floating_point<T>::value) return 100 + sizeof(T);
    else return sizeof(T);
}
template<class F> struct of;
template<class R, class... A> struct of<R(A...)> {
    template<int r, int... a> static constexpr bool is() {
        if constexpr (sizeof...(A) != sizeof...(a)) return false;
        else return kind<R>() == r && (true && ... && (kind<A>() == a));
    }
};
";

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(std::fs::read_to_string(path).expect("a source"));
        }
    }
}

/// Text up to the bracket that closes the one before it, and what follows.
fn up_to_close(text: &str) -> Option<(&str, &str)> {
    let mut depth = 1;
    let at = text.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    })?;
    Some((&text[..at], &text[at + 1..]))
}

/// Types of arguments, which have names and perhaps brackets of their own.
fn types(arguments: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut parts = vec![];
    let mut begin = 0;
    for (at, c) in arguments.char_indices() {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if !arguments[..at].ends_with('-') => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&arguments[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&arguments[begin..]);
    parts.into_iter().filter_map(|part| Some(part.split_once(':')?.1.trim())).collect()
}

/// The kind of a type of Rust, as the checker names it.
fn kind(of: &str) -> Option<&'static str> {
    let name = of.rsplit("::").next().unwrap_or(of);
    Some(match name {
        _ if of.starts_with('*') || of.starts_with("Option<") || of.starts_with('&') => "P",
        "" | "()" => "0",
        "StatusPtr" | "StrPtr" | "ValuePtr" | "PlacePtr" | "TextPtr" | "Callback" | "Search" => "P",
        _ if ["ParamsPtr<", "AttrPtr<", "OutPtr<"].iter().any(|start| of.starts_with(start)) => "P",
        "usize" | "isize" | "u64" | "i64" => "8",
        "c_ulong" => "8",
        "u32" | "i32" | "c_uint" | "c_int" | "socklen_t" => "4",
        "u16" => "2",
        "u8" | "i8" | "c_char" | "bool" | "CStatus" => "1",
        "f64" => "108",
        _ => return None,
    })
}

/// Functions of the sources: the types of their result and arguments.
fn functions(sources: &[String]) -> BTreeMap<&str, (&str, Vec<&str>)> {
    let mut found = BTreeMap::new();
    for source in sources {
        for (at, _) in source.match_indices("fn uc") {
            let Some((name, rest)) = source[at + 3..].split_once('(') else { continue };
            let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let Some((arguments, rest)) = up_to_close(rest).filter(|_| is_name) else { continue };
            let result = rest.split_once('{').map_or("", |(before, _)| before.trim());
            found.insert(name, (result.trim_start_matches("->").trim(), types(arguments)));
        }
    }
    found
}

#[test]
fn functions_take_what_the_headers_say() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut headers = vec![];
    sources(&include, &mut headers);
    let is_declared = |name: &str| headers.iter().any(|text| text.contains(&format!("{name}(")));
    let mut code = vec![];
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut code);
    let all = functions(&code);
    let declared: Vec<_> = all.iter().filter(|(name, _)| is_declared(name)).collect();
    assert!(all.len() > 200 && declared.len() > 180, "{} of {}", declared.len(), all.len());
    let mut source = String::from(CHECKER);
    for header in HEADERS {
        source += &format!("#include <{header}>\n");
    }
    for (name, (result, arguments)) in declared {
        let kind = |of: &&str| kind(of).unwrap_or_else(|| panic!("{name}: the type {of} is not known here"));
        let later = HAVE_LATER_FORMS.iter().find(|(known, _)| known == name);
        let count = later.map_or(arguments.len(), |(_, count)| *count);
        let kinds: Vec<_> = std::iter::once(result).chain(arguments.iter().take(count)).map(kind).collect();
        let kinds = kinds.join(", ");
        source += &format!("static_assert(of<decltype({name})>::is<{kinds}>(), \"{name}: {kinds}\");\n");
    }
    let mut gcc = Command::new("g++");
    gcc.args(["-std=c++17", "-fsyntax-only", "-Wno-deprecated-declarations"]);
    gcc.arg(format!("-I{}", include.display())).args(["-x", "c++", "-"]).stdin(Stdio::piped());
    let Ok(mut gcc) = gcc.stderr(Stdio::piped()).spawn() else {
        return not_installed("signatures", "no g++");
    };
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("g++ reads");
    let output = gcc.wait_with_output().expect("g++ ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
