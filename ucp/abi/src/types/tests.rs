//! Layouts of the structures, compared with those of a C compiler.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;

/// Sizes of UCX 1.23 on 64-bit systems.
#[test]
fn sizes_are_those_of_ucx() {
    assert_eq!(size_of::<Params>(), 88);
    assert_eq!(size_of::<ContextAttr>(), 72);
    assert_eq!(size_of::<WorkerParams>(), 200);
    assert_eq!(size_of::<WorkerAttr>(), 80);
    assert_eq!(size_of::<EpParams>(), 104);
    assert_eq!(size_of::<EpAttr>(), 328);
    assert_eq!(size_of::<MemMapParams>(), 48);
    assert_eq!(size_of::<MemAttr>(), 32);
    assert_eq!(size_of::<MemAdviseParams>(), 32);
    assert_eq!(size_of::<RequestParam>(), 96);
    assert_eq!(size_of::<RequestAttr>(), 32);
    assert_eq!(size_of::<TagInfo>(), 16);
    assert_eq!(size_of::<GenericDtOps>(), 48);
    assert_eq!(size_of::<AmHandlerParam>(), 32);
    assert_eq!(size_of::<AmRecvParam>(), 16);
    assert_eq!(size_of::<ListenerParams>(), 56);
    assert_eq!(size_of::<ListenerAttr>(), 136);
    assert_eq!(size_of::<ConnRequestAttr>(), 144);
    assert_eq!(size_of::<StreamPollEp>(), 40);
    assert_eq!(size_of::<ucp::Iov>(), 16);
}

macro_rules! offsets {
    ($($c:literal = $Rust:ty: $($field:ident)+;)+) => {
        &[$($(($c, stringify!($field), std::mem::offset_of!($Rust, $field)),)+)+]
    };
}

/// Places of the fields that releases since 1.13 have, under UCX's names.
const OFFSETS: &[(&str, &str, usize)] = offsets! {
    "ucp_params_t" = Params: field_mask features request_size request_init request_cleanup
        tag_sender_mask mt_workers_shared estimated_num_eps estimated_num_ppn name;
    "ucp_context_attr_t" = ContextAttr: field_mask request_size thread_mode memory_types name;
    "ucp_lib_attr_t" = LibAttr: field_mask max_thread_level;
    "ucp_worker_params_t" = WorkerParams: field_mask thread_mode cpu_mask events user_data event_fd flags
        name am_alignment client_id;
    "ucp_worker_attr_t" = WorkerAttr: field_mask thread_mode address_flags address address_length
        max_am_header name max_debug_string;
    "ucp_worker_address_attr_t" = AddressAttr: field_mask worker_uid;
    "ucp_ep_params_t" = EpParams: field_mask address err_mode err_handler user_data flags sockaddr
        conn_request name local_sockaddr;
    "ucp_ep_attr_t" = EpAttr: field_mask name local_sockaddr remote_sockaddr;
    "ucp_tag_recv_info_t" = TagInfo: sender_tag length;
    "ucp_request_param_t" = RequestParam: op_attr_mask flags request cb datatype user_data reply_buffer
        memory_type recv_info memh;
    "ucp_request_attr_t" = RequestAttr: field_mask debug_string debug_string_size status mem_type;
    "ucp_mem_map_params_t" = MemMapParams: field_mask address length flags prot memory_type;
    "ucp_mem_attr_t" = MemAttr: field_mask address length mem_type;
    "ucp_mem_advise_params_t" = MemAdviseParams: field_mask address length advice;
    "ucp_generic_dt_ops_t" = GenericDtOps: start_pack start_unpack packed_size pack unpack finish;
    "ucp_am_handler_param_t" = AmHandlerParam: field_mask id flags cb arg;
    "ucp_am_recv_param_t" = AmRecvParam: recv_attr reply_ep;
    "ucp_listener_params_t" = ListenerParams: field_mask sockaddr accept_handler conn_handler;
    "ucp_listener_attr_t" = ListenerAttr: field_mask sockaddr;
    "ucp_conn_request_attr_t" = ConnRequestAttr: field_mask client_address client_id;
    "ucp_stream_poll_ep_t" = StreamPollEp: ep user_data flags;
};

/// Names of values of the header, and what they are here.
const VALUES: &[(&str, u64)] = &[
    ("UCP_PARAM_FIELD_NAME", params::NAME),
    ("UCP_ATTR_FIELD_NAME", context_attr::NAME),
    ("UCP_WORKER_PARAM_FIELD_EVENT_FD", worker_params::EVENT_FD),
    ("UCP_WORKER_PARAM_FIELD_CLIENT_ID", worker_params::CLIENT_ID),
    ("UCP_WORKER_ATTR_FIELD_MAX_INFO_STRING", worker_attr::MAX_INFO_STRING),
    ("UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR", ep_params::LOCAL_SOCK_ADDR),
    ("UCP_EP_PARAM_FIELD_CONN_REQUEST", ep_params::CONN_REQUEST),
    ("UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR", ep_attr::REMOTE_SOCKADDR),
    ("UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE", mem_map::MEMORY_TYPE),
    ("UCP_MEM_MAP_FIXED", mem_map::FIXED as u64),
    ("UCP_MEM_MAP_PROT_REMOTE_WRITE", mem_map::REMOTE_WRITE as u64),
    ("UCP_OP_ATTR_FIELD_RECV_INFO", op_attr::RECV_INFO as u64),
    ("UCP_OP_ATTR_FIELD_MEMH", op_attr::MEMH as u64),
    ("UCP_OP_ATTR_FLAG_NO_IMM_CMPL", op_attr::NO_IMM_CMPL as u64),
    ("UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL", op_attr::FORCE_IMM_CMPL as u64),
    ("UCP_ENTITY_NAME_MAX", NAME_MAX as u64),
    ("UCS_THREAD_MODE_MULTI", thread_mode::MULTI as u64),
];

/// The compiler compares with our headers, and with the system's, where they are installed (Debian:
/// libucx-dev).
#[test]
fn a_compiler_finds_the_same_layouts() {
    compare_layouts(&["-I", concat!(env!("CARGO_MANIFEST_DIR"), "/include")]);
    if !std::path::Path::new("/usr/include/ucp/api/ucp.h").exists() {
        return ::ucs::testing::not_installed("layouts", "no UCX headers (libucx-dev)");
    }
    compare_layouts(&[]);
}

fn compare_layouts(arguments: &[&str]) {
    let mut source = String::from("#include <stddef.h>\n#include <ucp/api/ucp.h>\n");
    for (of, field, offset) in OFFSETS {
        source += &format!("_Static_assert(offsetof({of}, {field}) == {offset}, \"{of}.{field}\");\n");
    }
    for (name, value) in VALUES {
        source += &format!("_Static_assert({name} == {value}, \"{name}\");\n");
    }
    source += "_Static_assert(sizeof(ucs_status_t) == 1, \"ucs_status_t\");\n";
    let mut gcc = Command::new("gcc");
    let gcc = gcc.args(arguments).args(["-fsyntax-only", "-x", "c", "-"]).stdin(Stdio::piped()).spawn();
    let Ok(mut gcc) = gcc else { return ::ucs::testing::not_installed("layouts", "no gcc") };
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    assert!(gcc.wait().expect("gcc ends").success());
}
