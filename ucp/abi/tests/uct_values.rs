//! The table of the masks, flags and values of `uct` in `docs/abi.md`, written from this crate's headers.
//! `PAGE=write` writes the table. The tests fail if it is stale, if a value of the headers has no state, or
//! if no C program uses a value and checks what its state says.

#[path = "common/page_table.rs"]
mod page_table;

use std::collections::{BTreeMap, BTreeSet};

use page_table::{folder, page_has, read, without_comments, words};

const BEGIN: &str = "<!-- uct values -->\n";
const END: &str = "<!-- /uct values -->\n";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Does what UCX says.
    Works,
    /// Is taken, and changes nothing.
    NoEffect,
    /// A call with it returns an error.
    Refused,
    /// The library never reports or passes it.
    Never,
    /// Belongs to a structure of functions that are refused, or never called.
    Idle,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            State::Works => "works",
            State::NoEffect => "taken, changes nothing",
            State::Refused => "refused",
            State::Never => "never set",
            State::Idle => "of functions that are refused or never called",
        }
    }
}

use State::{Idle, Never, NoEffect, Refused, Works};

/// State, ends of names and reason. `*` stands for the names of the group that no other row has.
type Row = (State, &'static [&'static str], &'static str);

const UNSUPPORTED: &str = "`UCS_ERR_UNSUPPORTED`";
const NO_CM: &str = "there are no connection managers: `ucp` has listeners";
const NO_LISTS: &str = "no transport has operations on lists, or tokens";

/// Groups of values by the beginning of their names. The longest beginning that fits holds.
const GROUPS: &[(&str, &[Row])] = &[
    ("UCT_COMPONENT_ATTR_FIELD_", &[(Works, &["*"], "")]),
    ("UCT_COMPONENT_FLAG_", &[(Never, &["*"], "")]),
    (
        "UCT_DEVICE_TYPE_",
        &[(Works, &["NET", "SHM", "SELF"], ""), (Never, &["ACC"], "no device is an accelerator")],
    ),
    ("UCT_ATOMIC_OP_", &[(Works, &["*"], ""), (Works, &["CSWAP"], "by `uct_ep_atomic_cswap32` and `64`")]),
    (
        "UCT_IFACE_FLAG_",
        &[
            (
                Works,
                &[
                    "AM_SHORT",
                    "AM_BCOPY",
                    "AM_ZCOPY",
                    "PENDING",
                    "PUT_SHORT",
                    "PUT_BCOPY",
                    "PUT_ZCOPY",
                    "GET_SHORT",
                    "GET_BCOPY",
                    "GET_ZCOPY",
                    "ATOMIC_CPU",
                    "ERRHANDLE_PEER_FAILURE",
                    "EP_CHECK",
                    "CONNECT_TO_IFACE",
                    "CONNECT_TO_EP",
                    "CB_SYNC",
                    "INTER_NODE",
                ],
                "set where the transport has it",
            ),
            (Never, &["*"], ""),
        ],
    ),
    (
        "UCT_IFACE_FLAG_EVENT_",
        &[
            (Works, &["SEND_COMP", "RECV", "FD"], "set where the transport has it"),
            (Never, &["RECV_SIG", "ASYNC_CB"], ""),
        ],
    ),
    ("UCT_IFACE_FLAG_V2_", &[(Never, &["*"], NO_LISTS)]),
    (
        "UCT_ALLOC_METHOD_",
        &[(Works, &["*"], ""), (Refused, &["DEFAULT"], "`UCS_ERR_INVALID_PARAM`: it stands for no method")],
    ),
    (
        "UCT_EVENT_",
        &[
            (Works, &["SEND_COMP", "RECV"], ""),
            (Works, &["RECV_SIG"], "as `UCT_EVENT_RECV`"),
            (NoEffect, &["SPEED_CHANGE"], "the speed of a device does not change"),
        ],
    ),
    (
        "UCT_FLUSH_FLAG_",
        &[
            (Works, &["LOCAL"], ""),
            (Works, &["CANCEL"], "by `uct_ep_flush`; `uct_iface_flush` returns `UCS_ERR_UNSUPPORTED`"),
            (Refused, &["REMOTE"], UNSUPPORTED),
        ],
    ),
    (
        "UCT_PROGRESS_",
        &[
            (Works, &["SEND", "RECV"], ""),
            (NoEffect, &["THREAD_SAFE"], "the thread mode of the worker says it"),
        ],
    ),
    ("UCT_SEND_FLAG_", &[(NoEffect, &["*"], "hints")]),
    ("UCT_CB_FLAG_", &[(NoEffect, &["*"], "callbacks are called from progress")]),
    ("UCT_CB_PARAM_FLAG_", &[(Never, &["*"], "a message is valid during its handler")]),
    ("UCT_IFACE_OPEN_MODE_", &[(Works, &["DEVICE"], ""), (Refused, &["*"], UNSUPPORTED)]),
    (
        "UCT_IFACE_PARAM_FIELD_",
        &[
            (Works, &["OPEN_MODE", "ERR_HANDLER", "ERR_HANDLER_ARG"], ""),
            (Works, &["DEVICE"], "the names are read without it, too, as `ucx_perftest` asks"),
            (NoEffect, &["CPU_MASK", "FEATURES", "STATS_ROOT", "ERR_HANDLER_FLAGS"], "hints"),
            (NoEffect, &["RX_HEADROOM", "AM_ALIGNMENT", "AM_ALIGN_OFFSET"], "no message is kept"),
            (NoEffect, &["SOCKADDR"], "as its open modes are refused"),
            (NoEffect, &["*"], "no device matches tags, reports such events or keeps connections alive"),
        ],
    ),
    (
        "UCT_EP_PARAM_FIELD_",
        &[
            (Works, &["IFACE", "DEV_ADDR", "IFACE_ADDR"], "both addresses, or none"),
            (
                Refused,
                &["CM", "CONN_REQUEST", "SOCKADDR", "LOCAL_SOCKADDR"],
                "`UCS_ERR_UNSUPPORTED` without `UCT_EP_PARAM_FIELD_IFACE`; with it they change nothing",
            ),
            (
                NoEffect,
                &["USER_DATA", "PATH_INDEX"],
                "the data is for callbacks of connections, and an endpoint has one path",
            ),
            (
                NoEffect,
                &["DEV_ADDR_LENGTH", "IFACE_ADDR_LENGTH"],
                "addresses have the lengths of `uct_iface_query`",
            ),
            (NoEffect, &["*"], NO_CM),
        ],
    ),
    ("UCT_IFACE_FEATURE_", &[(NoEffect, &["*"], "hints")]),
    ("UCT_CM_", &[(Idle, &["*"], NO_CM)]),
    ("UCT_LISTENER_", &[(Idle, &["*"], NO_CM)]),
    ("UCT_EP_CONNECT_PARAM_", &[(Idle, &["*"], NO_CM)]),
    ("UCT_SOCKADDR_ACC_", &[(Refused, &["*"], "no memory domain reaches a socket address")]),
    ("UCT_TAG_RECV_CB_", &[(Idle, &["*"], "no device matches tags")]),
    (
        "UCT_MD_FLAG_",
        &[
            (
                Works,
                &["ALLOC", "REG", "NEED_MEMH", "NEED_RKEY", "ADVISE", "FIXED", "RKEY_PTR"],
                "set where the domain has it",
            ),
            (Works, &["INVALIDATE", "INVALIDATE_RMA", "INVALIDATE_AMO"], "set by `self` and `efa`"),
            (Never, &["*"], ""),
        ],
    ),
    (
        "UCT_MD_MEM_",
        &[
            (
                Works,
                &["FLAG_NONBLOCK", "FLAG_FIXED", "FLAG_HIDE_ERRORS"],
                "the first two in allocations: a registration has its pages and its place",
            ),
            (Works, &["ACCESS_*"], ""),
            (NoEffect, &["FLAG_LOCK", "SYMMETRIC_RKEY", "GVA"], "hints"),
        ],
    ),
    ("UCT_MADV_", &[(Works, &["*"], "")]),
    ("UCT_AM_TRACE_TYPE_", &[(Idle, &["*"], "a tracer is never called")]),
    (
        "UCT_MD_MEM_ATTR_FIELD_",
        &[(Works, &["*"], ""), (Works, &["DMABUF_FD", "DMABUF_OFFSET"], "the answer is that there is none")],
    ),
    (
        "UCT_MEM_ALLOC_PARAM_FIELD_",
        &[
            (Works, &["FLAGS", "ADDRESS", "MDS"], ""),
            (Works, &["MEM_TYPE"], "for memory of the host; another type returns `UCS_ERR_UNSUPPORTED`"),
            (NoEffect, &["NAME", "SYS_DEVICE"], "hints"),
        ],
    ),
    (
        "UCT_MD_MEM_REG_FIELD_",
        &[
            (Works, &["FLAGS"], ""),
            (Refused, &["DMABUF_FD"], "`UCS_ERR_UNSUPPORTED`, but for `UCT_DMABUF_FD_INVALID`"),
            (NoEffect, &["DMABUF_OFFSET", "MEM_TYPE"], "all memory is the host's"),
        ],
    ),
    ("UCT_MD_MEM_DEREG_FIELD_", &[(Works, &["*"], "")]),
    (
        "UCT_MD_MEM_DEREG_FLAG_",
        &[(Works, &["INVALIDATE"], "on `self` and `efa`; others return `UCS_ERR_UNSUPPORTED`")],
    ),
    ("UCT_MD_MKEY_PACK_FIELD_", &[(Works, &["*"], "")]),
    (
        "UCT_MD_MKEY_PACK_FLAG_",
        &[
            (
                Works,
                &["INVALIDATE_RMA", "INVALIDATE_AMO"],
                "on `self` and `efa`; others return `UCS_ERR_UNSUPPORTED`",
            ),
            (Refused, &["EXPORT"], "`UCS_ERR_UNSUPPORTED`: `ucp_memh_pack` exports memory"),
        ],
    ),
    ("UCT_IFACE_IS_REACHABLE_FIELD_", &[(Works, &["*"], "")]),
    ("UCT_IFACE_REACHABILITY_SCOPE_", &[(Works, &["*"], "")]),
    ("UCT_EP_IS_CONNECTED_FIELD_", &[(Works, &["*"], "")]),
    (
        "UCT_MD_ATTR_FIELD_",
        &[
            (Works, &["*"], ""),
            (
                Works,
                &[
                    "REG_NONBLOCK_MEM_TYPES",
                    "DETECT_MEM_TYPES",
                    "DMABUF_MEM_TYPES",
                    "GVA_MEM_TYPES",
                    "EXPORTED_MKEY_PACKED_SIZE",
                    "REQUIRED_MEM_FLAGS",
                ],
                "the answer is 0",
            ),
        ],
    ),
    ("UCT_EP_CONNECT_TO_EP_PARAM_FIELD_", &[(Works, &["*"], "")]),
    (
        "UCT_EP_ATTR_FIELD_",
        &[(Refused, &["*"], "`UCS_ERR_UNSUPPORTED`: endpoints have no socket addresses and tokens")],
    ),
    ("UCT_MD_MEM_ATTACH_", &[(Refused, &["*"], "`UCS_ERR_UNSUPPORTED`, whatever is set")]),
    (
        "UCT_EP_OP_",
        &[(NoEffect, &["*"], "every operation has the same cost; names are in `uct_ep_operation_names`")],
    ),
    (
        "UCT_PERF_ATTR_FIELD_",
        &[
            (
                NoEffect,
                &[
                    "OPERATION",
                    "LOCAL_MEMORY_TYPE",
                    "REMOTE_MEMORY_TYPE",
                    "LOCAL_SYS_DEVICE",
                    "REMOTE_SYS_DEVICE",
                ],
                "every operation has the same cost",
            ),
            (Works, &["*"], ""),
        ],
    ),
    ("UCT_PERF_ATTR_FLAGS_", &[(Never, &["*"], "")]),
    ("UCT_RKEY_UNPACK_FIELD_", &[(NoEffect, &["*"], "a hint")]),
    (
        "UCT_MD_MEM_ATTR_V2_FIELD_",
        &[
            (Works, &["*"], ""),
            (Works, &["DMABUF_FD", "DMABUF_OFFSET", "MEM_FLAGS"], "the answer is that there is none"),
        ],
    ),
    (
        "UCT_IFACE_ATTR_FIELD_",
        &[
            (Works, &["*"], "the answer is 0"),
            (Refused, &["TX_TOKEN", "RX_TOKEN"], "`UCS_ERR_UNSUPPORTED`: interfaces have no tokens"),
        ],
    ),
    ("UCT_EP_OP_INFO_", &[(Idle, &["*"], "of `uct_ep_outstanding_purge`")]),
    ("UCT_EP_OUTSTANDING_FIELD_", &[(Idle, &["*"], "of `uct_ep_outstanding_purge`")]),
];

/// Names that the headers enumerate or define as bits, in their order, without those that mark a place.
fn values() -> Vec<String> {
    let headers = ["uct_def.h", "v2/uct_v2.h"].map(|name| read(folder().join("include/uct/api").join(name)));
    let code = without_comments(&headers.join("\n"));
    let mut names = Vec::new();
    let mut add = |name: &str| {
        let is_place = name.ends_with("_LAST") || name == "UCT_MD_FLAG_V2_FIRST";
        if name.starts_with("UCT_") && !is_place && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    };
    for line in code.lines() {
        if let Some(define) = line.strip_prefix("#define ").filter(|define| define.contains("UCS_BIT(")) {
            add(words(define).next().unwrap_or_default());
        }
    }
    for behind in code.split("enum").skip(1) {
        let Some((head, body)) = behind.split_once('{') else { continue };
        if head.contains([';', '(', '*']) {
            continue;
        }
        for value in body.split_once('}').map_or("", |(body, _)| body).split(',') {
            add(words(value.trim()).next().unwrap_or_default());
        }
    }
    names
}

/// The group of a name, and the end of the name.
fn group_of(name: &str) -> Option<(&'static str, &'static [Row], &str)> {
    let fits = GROUPS.iter().filter(|(prefix, _)| name.starts_with(prefix));
    let (prefix, rows) = fits.max_by_key(|(prefix, _)| prefix.len())?;
    Some((prefix, rows, &name[prefix.len()..]))
}

/// The row of a name in its group.
fn row_of(name: &str) -> usize {
    let (_, rows, end) = group_of(name).unwrap_or_else(|| panic!("{name} has no group"));
    let fits =
        |pattern: &&str| pattern.strip_suffix('*').map_or(*pattern == end, |start| end.starts_with(start));
    let is_named = |names: &[&str]| names.iter().any(|pattern| *pattern != "*" && fits(pattern));
    let at = rows.iter().position(|(_, names, _)| is_named(names));
    at.or_else(|| rows.iter().position(|(_, names, _)| names.contains(&"*")))
        .unwrap_or_else(|| panic!("{name} has no state"))
}

fn state_of(name: &str) -> State {
    group_of(name).expect("a group").1[row_of(name)].0
}

fn table() -> String {
    let names = values();
    assert!(names.len() >= 280, "{} values", names.len());
    let mut table = String::from("| values | state | which |\n|---|---|---|\n");
    let mut groups: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for name in &names {
        let (prefix, ..) = group_of(name).unwrap_or_else(|| panic!("{name} has no group"));
        let at = GROUPS.iter().position(|(known, _)| *known == prefix).expect("its place");
        groups.entry(at).or_default().push(name);
    }
    assert_eq!(groups.len(), GROUPS.len(), "a group has no value");
    for (at, members) in groups {
        let (prefix, rows) = GROUPS[at];
        for (row, (state, _, why)) in rows.iter().enumerate() {
            let ends = members.iter().filter(|name| row_of(name) == row).map(|name| &name[prefix.len()..]);
            let ends: Vec<_> = ends.map(|end| format!("`{end}`")).collect();
            assert!(!ends.is_empty(), "{prefix}: row {row} has no value");
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            table += &format!("| `{prefix}` | {}{why} | {} |\n", state.text(), ends.join(" "));
        }
    }
    table
}

/// The C programs of the lower interface.
fn programs() -> String {
    ["uct.c", "uct_forms.h", "uct_values.h", "uct_peer.c"]
        .map(|name| read(folder().join("tests/c").join(name)))
        .join("\n")
}

#[test]
fn the_page_lists_every_value_of_uct() {
    page_has(BEGIN, END, &table());
}

/// Each value that a call can have or the library could report is in a C program, which checks its state.
#[test]
fn every_value_of_uct_is_used_by_a_program() {
    let programs = programs();
    let used: BTreeSet<&str> = words(&programs).collect();
    let unused: Vec<_> = values()
        .into_iter()
        .filter(|name| state_of(name) != State::Idle && !used.contains(name.as_str()))
        .collect();
    assert!(unused.is_empty(), "no C program uses {unused:?}");
}

/// Each name in [`GROUPS`] is one of the headers'.
#[test]
fn every_state_is_one_of_a_value() {
    let names = values();
    for (prefix, rows) in GROUPS {
        for end in rows.iter().flat_map(|(_, names, _)| names.iter()).filter(|end| !end.ends_with('*')) {
            assert!(names.iter().any(|name| *name == format!("{prefix}{end}")), "{prefix}{end} is no value");
        }
    }
}
