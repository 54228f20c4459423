//! Functions that C calls, of the C interface and of the libfabric provider: each catches a panic, or is so
//! short that it cannot.

use super::methods::{self, Function};

/// Functions that catch no panic, and why none can begin there.
pub const PLAIN: &[(&str, &str)] = &[
    ("forward", "calls the C library"),
    ("table", "ends the process"),
    ("variadic", "calls a function that catches panics"),
    ("ucm_dlopen", "calls the C library"),
    ("ucm_vm_mmap", "does nothing"),
    ("ucm_vm_munmap", "does nothing"),
    ("ucp_get_version_string", "returns a constant"),
    ("ucp_request_check_status", "reads a word, or calls a function that catches panics"),
    ("ucp_request_free", "puts a request into a list, or calls a function that catches panics"),
    ("ucp_request_release", "puts a request into a list, or calls a function that catches panics"),
    ("ucp_tag_recv_nbx", "looks at the mode, and calls a function that catches panics"),
    ("ucp_tag_send_nbx", "looks at the mode, and calls a function that catches panics"),
    ("ucs_arch_get_cpu_model", "returns a constant"),
    ("ucs_arch_get_cpu_vendor", "asks the processor"),
    ("ucs_get_cpu_clocks_per_sec", "subtracts times by functions that saturate"),
    ("ucs_get_page_size", "returns a number that is known"),
    ("ucs_stats_get_root", "returns a constant"),
    ("ucs_status_string", "returns a constant by a number"),
    ("ucs_sys_get_num_cpus", "calls the C library"),
    ("ucs_sys_getaffinity", "calls the C library"),
    ("ucs_sys_setaffinity", "calls the C library"),
    ("ucs_topo_num_devices", "returns a constant"),
    ("ucs_topo_sys_device_get_name", "returns a constant"),
    ("ucs_x86_init_tsc_freq", "asks the processor, and stores a constant"),
    ("constant", "returns a constant"),
    ("ucs_log_flush", "does nothing"),
    ("ucs_log_get_buffer_size", "returns a constant"),
    ("ucs_mpool_get", "takes from a list, or calls a function that catches panics"),
    ("ucs_mpool_put", "puts into a list"),
    ("void_init", "returns a constant"),
    ("void_cleanup", "does nothing"),
    ("not_connected", "returns a constant"),
    ("nothing", "does nothing"),
    ("progress_of_freed", "ends the process"),
];

/// Safe functions that use a pointer of their caller in an unsafe block, and why they may.
pub const CHECKED: &[(&str, &str)] = &[
    ("ucp/abi/src/ep.rs: close", "looks the handle up in the table of live ones"),
    ("ucp/abi/src/flush.rs: flush_ep", "looks the handle up in the table of live ones"),
    ("ucp/abi/src/flush.rs: flush_worker", "looks the handle up in the table of live ones"),
    ("ucp/abi/src/handle.rs: checked", "looks the handle up in the table of live ones"),
    ("ucp/abi/src/handle.rs: found", "looks the handle up in the table of live ones"),
    ("ucp/abi/src/handle.rs: from_handle", "looks the handle up in the table of live ones"),
    ("ucp/abi/src/op/handle.rs: set_priv_unchecked", "stores the pointer"),
    ("ucp/abi/src/packed.rs: release", "looks the address up in the table of live ones"),
    ("ucp/abi/src/ucm.rs: module_of", "the C library takes any address"),
    ("ucp/ofi/src/info/tree.rs: build", "stores the pointer"),
    ("ucp/ofi/src/pep.rs: take_request", "looks the handle up in the list of requests"),
];

/// Macros that define functions of an interface, all of them unsafe.
const UNSAFE_MACROS: [&str; 3] = ["\nentry! {", "\noperation! {", "\ncalls! {"];

/// Safe functions of a file that use a pointer of their caller in an unsafe block: it is for the caller to
/// know whether that is permitted, so that the function has to be unsafe.
pub fn safe_with_pointers(text: &str) -> Vec<String> {
    let mut text = text.to_owned();
    for begin in UNSAFE_MACROS {
        while let Some(at) = text.find(begin) {
            let end = text[at + 1..].find("\n}").map_or(text.len(), |end| at + 1 + end + 2);
            text.replace_range(at..end, "");
        }
    }
    let is_relied_on = |function: &Function| {
        let pointers = pointers(&function.params);
        in_unsafe(&function.body).iter().any(|word| pointers.contains(word))
    };
    let found = methods::functions(&text).into_iter().filter(|function| !function.is_unsafe);
    found.filter(is_relied_on).map(|function| function.name).collect()
}

/// Names of parameters whose type is or has a pointer.
fn pointers(params: &[String]) -> Vec<&String> {
    let (mut names, mut in_type, mut found, mut depth) = (Vec::new(), false, Vec::new(), 0);
    for (at, word) in params.iter().enumerate() {
        match word.as_str() {
            "(" | "[" | "<" => depth += 1,
            ")" | "]" => depth -= 1,
            ">" if at > 0 && params[at - 1] != "-" => depth -= 1,
            ":" if depth == 0 => in_type = true,
            "," if depth == 0 => (names, in_type) = (Vec::new(), false),
            "const" | "mut" if in_type && params[at - 1] == "*" => found.append(&mut names),
            _ if !in_type && word.starts_with(|c: char| c.is_alphabetic()) => names.push(word),
            _ => {}
        }
    }
    found
}

/// Words of unsafe blocks.
fn in_unsafe(body: &[String]) -> Vec<&String> {
    let (mut found, mut depth) = (Vec::new(), 0);
    for (at, word) in body.iter().enumerate() {
        match word.as_str() {
            "{" if depth > 0 || at > 0 && body[at - 1] == "unsafe" => depth += 1,
            "}" if depth > 0 => depth -= 1,
            _ if depth > 0 => found.push(word),
            _ => {}
        }
    }
    found
}

/// A function that C calls, and its text. A function of a macro has the macro's name.
fn functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices("extern \"C\" fn ").filter_map(|(at, begin)| {
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let (whole, rest) = (&text[line..], &text[at + begin.len()..]);
        let indent = &whole[..whole.len() - whole.trim_start().len()];
        if whole[indent.len()..].starts_with("//") {
            return None;
        }
        let name = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())];
        let name = match rest.starts_with('$') {
            true => text[..at].rsplit_once("macro_rules! ")?.1.split_once(" {")?.0,
            false => name,
        };
        // A function of one line ends in it.
        let first = whole.lines().next().unwrap_or_default();
        let end = if first.ends_with('}') {
            first.len()
        } else {
            whole.find(&format!("\n{indent}}}")).unwrap_or(whole.len())
        };
        Some((name, &whole[..end]))
    })
}

/// Functions of a file that catch no panic. A function that only calls one which does, of the same file, is
/// none of them.
pub fn without_guard(text: &str) -> Vec<String> {
    let catches = |body: &str| body.contains("guard(") || body.contains("guard::<");
    let helpers: Vec<&str> = ["\nfn ", "\nunsafe fn "]
        .into_iter()
        .flat_map(|begin| text.split(begin).skip(1))
        .filter(|function| catches(&function[..function.find("\n}").unwrap_or(function.len())]))
        .map(|function| &function[..function.find(['(', '<']).unwrap_or(0)])
        .collect();
    let calls_helper = |body: &str| {
        helpers.iter().any(|name| body.contains(&format!("{name}::<")) || body.contains(&format!(" {name}(")))
    };
    functions(text)
        .filter(|(_, body)| !catches(body) && !calls_helper(body))
        .map(|(name, _)| name.to_owned())
        .collect()
}
