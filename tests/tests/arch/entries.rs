//! Functions that C calls, of the C interface and of the libfabric provider: each catches a panic, or is so
//! short that it cannot.

/// Functions that catch no panic, and why none can begin there.
pub const PLAIN: &[(&str, &str)] = &[
    ("forward", "calls the C library"),
    ("table", "ends the process"),
    ("variadic", "calls a function that catches panics"),
    ("ucm_dlopen", "calls the C library"),
    ("ucm_vm_mmap", "does nothing"),
    ("ucm_vm_munmap", "does nothing"),
    ("ucp_get_version_string", "returns a constant"),
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
