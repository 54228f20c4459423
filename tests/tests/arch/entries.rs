//! Functions of the C interface that C calls: each catches a panic, or is so short that it cannot.

/// Functions that catch no panic, and why none can begin there.
pub const PLAIN: &[(&str, &str)] = &[
    ("ucm_dlopen", "calls the C library"),
    ("ucm_vm_mmap", "does nothing"),
    ("ucm_vm_munmap", "does nothing"),
    ("ucp_get_version_string", "returns a constant"),
    ("ucs_arch_get_cpu_model", "returns a constant"),
    ("ucs_arch_get_cpu_vendor", "asks the processor"),
    ("ucs_empty_function", "does nothing"),
    ("ucs_empty_function_return_success", "returns a constant"),
    ("ucs_empty_function_return_unsupported", "returns a constant"),
    ("ucs_empty_function_return_zero", "returns a constant"),
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
    ("not_connected", "returns a constant"),
    ("progress_of_freed", "ends the process"),
];

/// Macros that define such functions, each with a call of `guard`.
const GUARDED: [&str; 2] = ["macro_rules! entry {", "macro_rules! operation {"];

/// A function that C calls, at the begin of a line, and its text.
fn functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_one = |line: &str| {
        let rest = line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        rest.trim_start_matches("unsafe ").starts_with("extern \"C\" fn ")
    };
    let starts = text.match_indices('\n').map(|(at, _)| at + 1);
    starts.filter(move |at| is_one(text[*at..].lines().next().unwrap_or_default())).map(|at| {
        let rest = &text[at..];
        let name = rest.split_once("fn ").map_or("", |(_, behind)| behind);
        let name = &name[..name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len())];
        // A function of one line ends in it.
        let first = rest.lines().next().unwrap_or_default();
        let end = if first.ends_with("{}") { first.len() } else { rest.find("\n}").unwrap_or(rest.len()) };
        (name, &rest[..end])
    })
}

/// Functions of a file that catch no panic. A function that only calls one which does, of the same file, is
/// none of them.
pub fn without_guard(text: &str) -> Vec<String> {
    let catches = |body: &str| body.contains("guard(") || body.contains("guard::<");
    let helpers: Vec<&str> = text
        .split("\nfn ")
        .skip(1)
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

/// Whether each macro of this file that defines such functions catches panics.
pub fn macros_guard(text: &str) -> bool {
    GUARDED.iter().all(|begin| {
        text.split_once(begin)
            .is_none_or(|(_, rest)| rest[..rest.find("\n}").unwrap_or(rest.len())].contains("guard("))
    })
}
