//! The table of functions, masks and flags in `docs/abi.md`, written from the headers of this crate. A
//! function counts as tested if a C program of the tests calls it. `PAGE=write` writes the table. The test
//! fails if it is stale, if no program calls a function, or if UCX's own headers, where they are installed,
//! have a name that ours lack.

#[path = "common/page_table.rs"]
mod page_table;

use std::collections::BTreeMap;
use std::path::Path;

use page_table::{folder, page_has, read, without_comments, words};

const BEGIN: &str = "<!-- functions -->\n";
const END: &str = "<!-- /functions -->\n";

const UNSUPPORTED: &str = "`UCS_ERR_UNSUPPORTED`";

/// Of what only two functions take.
const ON_LISTS: &str = "by `ucp_put_nbx` and `ucp_get_nbx`; other operations return `UCS_ERR_UNSUPPORTED`";

/// Calls that a working function refuses with `UCS_ERR_UNSUPPORTED`. The first row whose name fits holds.
const REFUSES: &[(&str, &str)] = &[
    ("ucp_memh_pack", "the export of memory that `ucp_mem_map` has not allocated, or without `posix`"),
    ("ucp_mem_map", "the memory type of a device"),
    ("ucp_worker_get_efd", "a worker with `UCP_WORKER_PARAM_FIELD_EVENT_FD`"),
    (
        "ucp_put_nbx",
        "counts and strides of lists, the memory type of a device, and datatypes of callbacks or strided",
    ),
    (
        "ucp_get_nbx",
        "counts and strides of lists, the memory type of a device, and datatypes of callbacks or strided",
    ),
    ("ucp_atomic_op_nbx", "remote lists, and the memory type of a device"),
    ("ucp_ep_flush_nbx", "remote lists, and the memory type of a device"),
    ("ucp_worker_flush_nbx", "remote lists, and the memory type of a device"),
    (
        "ucp_tag_send_nb",
        "datatypes strided or SGL; by `_nbx` remote lists and the memory type of a device, too",
    ),
    ("ucp_tag_send_sync_nb", "as `ucp_tag_send_nb`"),
    ("ucp_tag_recv_nb", "as `ucp_tag_send_nb`"),
    ("ucp_am_send_nb", "as `ucp_tag_send_nb`"),
    ("ucp_stream_send_nb", "as `ucp_tag_send_nb`"),
    ("ucp_stream_recv_nb", "as `ucp_tag_send_nb`"),
];

/// Functions without a status that are refused: they do nothing, or return 0.
const REFUSED_WITHOUT_STATUS: [&str; 3] =
    ["ucp_device_get_mem_list_length", "ucp_device_mem_list_release", "ucp_device_counter_read"];

/// Values that are taken and change nothing, or are refused. All others do what UCX says.
const VALUES: &[(&str, State, &str)] = &[
    ("UCP_PARAM_FIELD_TAG_SENDER_MASK", State::NoEffect, "a hint"),
    ("UCP_PARAM_FIELD_ESTIMATED_NUM_EPS", State::NoEffect, "a hint"),
    ("UCP_PARAM_FIELD_ESTIMATED_NUM_PPN", State::NoEffect, "a hint"),
    ("UCP_PARAM_FIELD_NODE_LOCAL_ID", State::NoEffect, "a hint"),
    ("UCP_FEATURE_DEVICE", State::NoEffect, "communication that a GPU starts is refused by its functions"),
    ("UCP_FEATURE_", State::NoEffect, "every feature is there in every context"),
    ("UCP_WORKER_PARAM_FIELD_CPU_MASK", State::NoEffect, "a hint"),
    (
        "UCP_WORKER_PARAM_FIELD_FLAGS",
        State::NoEffect,
        "unknown flags are ignored, and requests are not reported as leaks",
    ),
    ("UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK", State::NoEffect, "leaks are not reported"),
    ("UCP_WAKEUP_EDGE", State::Works, "with `UCP_WORKER_PARAM_FIELD_EVENT_FD`"),
    ("UCP_WAKEUP_", State::NoEffect, "every event wakes"),
    (
        "UCP_ERR_HANDLING_MODE_NONE",
        State::Works,
        "and failures are found, and operations end, as in the other modes",
    ),
    (
        "UCP_ERR_HANDLING_MODE_",
        State::Works,
        "and `ucp_ep_create` returns `UCS_ERR_UNREACHABLE` for a worker of this host that is gone",
    ),
    ("UCP_EP_PARAMS_FLAGS_NO_LOOPBACK", State::NoEffect, "an endpoint to its own worker works"),
    ("UCP_MEM_MAP_PROT_LOCAL_", State::NoEffect, "local access is not restricted"),
    ("UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER", State::Works, "on this host"),
    (
        "UCP_MEMH_PACK_FLAG_EXPORT",
        State::Works,
        "for memory that `ucp_mem_map` has allocated, with `posix`; other memory returns `UCS_ERR_UNSUPPORTED`",
    ),
    ("UCP_MEM_MAP_SYMMETRIC_RKEY", State::NoEffect, "a hint"),
    ("UCP_MEM_MAP_LOCK", State::NoEffect, "a hint"),
    ("UCP_DATATYPE_STRIDED", State::Refused, UNSUPPORTED),
    ("UCP_DATATYPE_SGL", State::Works, ON_LISTS),
    ("UCP_DT_LOCAL_SGL_FIELD_COUNTS", State::Refused, UNSUPPORTED),
    ("UCP_DT_LOCAL_SGL_FIELD_STRIDES", State::Refused, UNSUPPORTED),
    ("UCP_OP_ATTR_FIELD_REMOTE", State::Works, ON_LISTS),
    ("UCP_OP_ATTR_FIELD_REMOTE_", State::Works, ON_LISTS),
    ("UCP_DEVICE_", State::Refused, UNSUPPORTED),
    ("UCP_AM_FLAG_", State::NoEffect, "messages are always whole, and their data can always be kept"),
    ("UCP_AM_SEND_FLAG_EAGER", State::Works, "up to 4 GiB with the header"),
    ("UCP_AM_SEND_FLAG_COPY_HEADER", State::NoEffect, "headers are always copied"),
    ("UCP_AM_HANDLER_PARAM_FIELD_FLAGS", State::NoEffect, "as its flags"),
    (
        "UCP_OP_ATTR_FIELD_MEMORY_TYPE",
        State::Works,
        "for memory of the host; the type of a device returns `UCS_ERR_UNSUPPORTED`",
    ),
    ("UCP_OP_ATTR_FLAG_FAST_CMPL", State::NoEffect, "a hint"),
    ("UCP_OP_ATTR_FLAG_MULTI_SEND", State::NoEffect, "a hint"),
    (
        "UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL",
        State::Works,
        "for sends of short tagged and active messages, for receives of tagged messages that have come as a \
         whole, and for puts, gets and atomics on memory that is mapped here; all else \
         returns `UCS_ERR_NO_RESOURCE`",
    ),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Works,
    NoEffect,
    Refused,
}

/// Names of functions that a header declares, in their order.
fn functions(header: &str) -> Vec<String> {
    let code = without_comments(header);
    let mut names = Vec::new();
    for before in code.split('(') {
        let name = words(before.trim_end()).last().unwrap_or_default();
        let is_new = !names.iter().any(|known| known == name);
        if name.starts_with("ucp_") && name != "ucp_init" && !name.starts_with("ucp_dt_make_") && is_new {
            names.push(name.to_owned());
        }
    }
    names
}

/// Names of values that a header enumerates, in their order.
fn values(header: &str) -> Vec<String> {
    let code = without_comments(header);
    let bodies = code.split("enum").skip(1).filter_map(|behind| {
        let (head, body) = behind.split_once('{')?;
        (!head.contains([';', '(', '*']))
            .then(|| body.split_once('}').map_or("", |(body, _)| body).to_owned())
    });
    let mut names = Vec::new();
    for body in bodies {
        for line in body.split(",\n").flat_map(|line| line.split('\n')) {
            let name = words(line.trim()).next().unwrap_or_default();
            if name.starts_with("UCP_")
                && !name.ends_with("_LAST")
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// C programs of the tests, by name.
fn programs() -> BTreeMap<String, String> {
    let files = std::fs::read_dir(folder().join("tests/c")).expect("the programs are there");
    let mut all = BTreeMap::new();
    for file in files {
        let path = file.expect("a file").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name.ends_with(".c") || name == "check.h" {
            all.insert(name, read(path));
        }
    }
    all
}

/// Headers that enumerate values of `ucp`.
fn headers_of_values() -> String {
    ["ucp_def.h", "device/ucp_host.h"]
        .map(|name| read(folder().join("include/ucp/api").join(name)))
        .join("\n")
}

/// Headers that declare functions of `ucp`.
fn headers_of_functions() -> String {
    ["ucp.h", "device/ucp_host.h"].map(|name| read(folder().join("include/ucp/api").join(name))).join("\n")
}

fn state_of(name: &str) -> Option<&'static (&'static str, State, &'static str)> {
    VALUES.iter().find(|(known, ..)| *known == name || known.ends_with('_') && name.starts_with(known))
}

/// Functions of which `refused.c` checks that a call is refused.
fn refused_calls(program: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for start in ["REFUSED(", "REFUSED_PTR("] {
        for call in program.split(start).skip(1).filter(|call| call.starts_with("uc")) {
            names.extend(words(call).next());
        }
    }
    names
}

/// State of a function, as the calls of `refused.c` show it: they and no others, they too, or others only.
fn state_of_function(name: &str, refused: &[&str], is_refused: bool) -> String {
    let refuses = REFUSES.iter().find(|(known, _)| *known == name || format!("{known}x") == name);
    let is_probed = refused.contains(&name);
    if REFUSED_WITHOUT_STATUS.contains(&name) {
        return "refused".into();
    }
    if !is_probed {
        assert!(refuses.is_none() || name.ends_with("_nb"), "{name}: refused.c has no refused call of it");
        return match refuses {
            Some((_, what)) => format!("works; refuses {what}"),
            None => "works".into(),
        };
    }
    match refuses {
        None if is_refused => "refused: `UCS_ERR_UNSUPPORTED`".into(),
        Some((_, what)) if !is_refused => format!("works; refuses {what}"),
        _ => panic!("{name}: refused.c has a refused call of it, and `REFUSES` does not say which"),
    }
}

fn table() -> String {
    let programs = programs();
    let mut table = String::from("| function | state | called by the test program |\n|---|---|---|\n");
    let header = headers_of_functions();
    let names = functions(&header);
    let refused = refused_calls(&programs["refused.c"]);
    assert!(names.len() >= 119, "{} functions", names.len());
    for name in names {
        // These call with what is not valid.
        let users: Vec<_> =
            programs.iter().filter(|(_, text)| words(text).any(|word| word == name)).collect();
        let users = users
            .iter()
            .map(|(file, _)| file.trim_end_matches(".c"))
            .filter(|file| !["fuzz", "bad_input", "wrong_kind", "check_rules"].contains(file));
        let users = users.collect::<Vec<_>>().join(", ");
        assert!(!users.is_empty(), "{name}: no C program of the tests calls it");
        let state = state_of_function(&name, &refused, users == "refused");
        table += &format!("| `{name}` | {state} | {users} |\n");
    }
    table += "\n| mask, flag or value | state |\n|---|---|\n";
    for name in values(&headers_of_values()) {
        let state = match state_of(&name) {
            None => "works".to_owned(),
            Some((_, State::Works, how)) => format!("works, {how}"),
            Some((_, State::NoEffect, why)) => format!("taken, changes nothing: {why}"),
            Some((_, State::Refused, how)) => format!("refused: {how}"),
        };
        table += &format!("| `{name}` | {state} |\n");
    }
    table
}

#[test]
fn the_page_lists_every_function_and_value() {
    page_has(BEGIN, END, &table());
}

/// Each value of which the page says that it works is used by a C program, with results checked.
#[test]
fn every_value_that_works_is_used_by_a_program() {
    let programs = programs();
    let others = ["fuzz.c", "bad_input.c", "wrong_kind.c", "check_rules.c"];
    let valid = programs.iter().filter(|(file, _)| !others.contains(&file.as_str()));
    let used: std::collections::BTreeSet<&str> = valid.flat_map(|(_, text)| words(text)).collect();
    let mut unused = Vec::new();
    for name in values(&headers_of_values()) {
        let works = state_of(&name).is_none_or(|(_, state, _)| *state == State::Works);
        if works && !used.contains(name.as_str()) {
            unused.push(name);
        }
    }
    assert!(unused.is_empty(), "no C program uses {unused:?}");
}

/// Functions with handles that test these for null only, because they carry data: whole words of their names.
const CARRY_DATA: [&str; 11] =
    ["send", "recv", "put", "get", "atomic", "probe", "progress", "request", "test", "status", "completed"];

/// `wrong_kind.c` passes what is no handle to every function that has one and carries no data.
#[test]
fn every_function_without_data_checks_the_kind_of_its_handles() {
    let header = without_comments(&read(folder().join("include/ucp/api/ucp.h")));
    let program = read(folder().join("tests/c/wrong_kind.c"));
    let mut found = 0;
    for name in functions(&header) {
        let call = header.split_once(&format!("{name}(")).expect("it is declared").1;
        let arguments = call.split_once(')').expect("it has arguments").0;
        let has_handle = words(arguments).any(|word| word.starts_with("ucp_") && word.ends_with("_h"));
        let carries = name.split('_').any(|word| CARRY_DATA.contains(&word)) && !IS_SLOW.contains(&&*name);
        if has_handle && !carries {
            found += 1;
            // `ucp_init` of the header calls `ucp_init_version`.
            let called = name.trim_end_matches("_version");
            assert!(words(&program).any(|word| word == called), "{name}: wrong_kind.c does not call it");
        }
    }
    assert!(found > 40, "{found} functions");
}

/// Every function is called with what is not valid.
#[test]
fn every_function_gets_bad_input() {
    let header = read(folder().join("include/ucp/api/ucp.h"));
    let programs = ["fuzz.c", "bad_input.c"].map(|name| read(folder().join("tests/c").join(name))).join("\n");
    for name in functions(&header) {
        assert!(words(&programs).any(|word| word == name), "{name}: neither fuzz.c nor bad_input.c calls it");
    }
}

/// Functions without data in spite of such a word in their names.
const IS_SLOW: [&str; 8] = [
    "ucp_worker_get_address",
    "ucp_worker_get_efd",
    "ucp_worker_set_am_recv_handler",
    "ucp_worker_set_am_handler",
    "ucp_request_alloc",
    "ucp_request_cancel",
    "ucp_conn_request_query",
    "ucp_listener_reject",
];

#[test]
fn nothing_of_the_public_headers_is_missing() {
    let system = Path::new("/usr/include/ucp/api");
    if !system.exists() {
        return ucs::testing::not_installed("public headers", "none (libucx-dev)");
    }
    let ours = headers_of_functions() + &headers_of_values();
    let theirs = ["ucp.h", "ucp_def.h", "ucp_compat.h"].map(|name| read(system.join(name))).join("\n");
    for name in functions(&theirs).into_iter().chain(values(&theirs)) {
        assert!(words(&ours).any(|word| word == name), "{name} is not in our headers");
    }
    for (name, ..) in VALUES {
        assert!(words(&ours).any(|word| word.starts_with(name)), "{name} is no value");
    }
}

/// Each rule that programs rely on is checked by functions that are there.
#[test]
fn every_rule_that_programs_rely_on_has_a_test() {
    let page = read(folder().join("../../docs/abi.md"));
    let table = page.split_once("<!-- pitfalls -->\n").expect("a table").1;
    let table = table.split_once("<!-- /pitfalls -->").expect("its end").0;
    let rows: Vec<&str> = table.lines().skip(2).collect();
    assert_eq!(rows.len(), 28);
    for (at, row) in rows.iter().enumerate() {
        assert!(row.starts_with(&format!("| {}. ", at + 1)), "{row}");
        let tests = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let mut text = String::new();
        let mut functions = 0;
        for name in tests.split('`').skip(1).step_by(2) {
            if name.contains('.') {
                let is_of_rust = name.ends_with(".rs");
                text = read(folder().join(if is_of_rust { "../.." } else { "tests/c" }).join(name));
            } else {
                functions += 1;
                assert!(text.contains(&format!(" {name}(")), "{row}: there is no function {name}");
            }
        }
        assert!(functions > 0, "{row}: no function");
    }
}
