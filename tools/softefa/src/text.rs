//! Names of numbers, as the library's printing functions give them.

use std::ffi::{CStr, c_char, c_int};

fn pick(table: &[&'static CStr], n: c_int) -> *const c_char {
    let found = usize::try_from(n).ok().and_then(|n| table.get(n));
    found.copied().unwrap_or(c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    pick(NAMES, status)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
    ];
    if kind == 7 { c"unspecified".as_ptr() } else { pick(NAMES, kind) }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: &[&CStr] =
        &[c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    pick(NAMES, state)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(_event: c_int) -> *const c_char {
    c"unknown".as_ptr()
}
