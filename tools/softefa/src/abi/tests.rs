//! Compares every structure with this machine's headers by a small C program. Passes with a note if there is
//! no compiler or header (Debian's libibverbs-dev).

use super::*;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

/// A size or an offset: the C expression, our value, and whether it may differ.
struct Number {
    c: String,
    ours: usize,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Same,
    /// Longer in later rdma-core, which passes the length, or returns the structure: never read beyond ours.
    Grows,
}

macro_rules! numbers {
    ($($kind:ident $t:ty = $c:literal: $($f:ident $(. $g:ident)* = $name:literal),* ;)*) => {{
        let mut all = Vec::new();
        $(
            let size = Number { c: format!("sizeof(struct {})", $c), ours: size_of::<$t>(), kind: Kind::$kind };
            all.push(size);
            $(all.push(Number {
                c: format!("offsetof(struct {}, {})", $c, $name),
                ours: offset_of!($t, $f $(. $g)*),
                kind: Kind::Same,
            });)*
        )*
        all
    }};
}

fn all() -> Vec<Number> {
    numbers! {
        Same IbvDevice = "ibv_device": node_type = "node_type", transport_type = "transport_type", name = "name",
            dev_name = "dev_name", dev_path = "dev_path", ibdev_path = "ibdev_path";
        Same IbvContext = "ibv_context": ops.poll_cq = "ops.poll_cq", ops.req_notify_cq = "ops.req_notify_cq",
            ops.post_send = "ops.post_send", ops.post_recv = "ops.post_recv", cmd_fd = "cmd_fd",
            async_fd = "async_fd", num_comp_vectors = "num_comp_vectors", mutex = "mutex", abi_compat = "abi_compat";
        Same IbvPd = "ibv_pd": context = "context", number = "handle";
        Same IbvMr = "ibv_mr": pd = "pd", addr = "addr", length = "length", lkey = "lkey", rkey = "rkey";
        Same IbvAh = "ibv_ah": context = "context", pd = "pd", number = "handle";
        Same IbvCompChannel = "ibv_comp_channel": fd = "fd", refcnt = "refcnt";
        Same IbvCq = "ibv_cq": channel = "channel", cq_context = "cq_context", number = "handle", cqe = "cqe",
            mutex = "mutex", cond = "cond", comp_events_completed = "comp_events_completed";
        Same IbvCqEx = "ibv_cq_ex": comp_mask = "comp_mask", status = "status", wr_id = "wr_id",
            start_poll = "start_poll", next_poll = "next_poll", end_poll = "end_poll",
            read_opcode = "read_opcode", read_vendor_err = "read_vendor_err", read_byte_len = "read_byte_len",
            read_imm_data = "read_imm_data", read_qp_num = "read_qp_num", read_src_qp = "read_src_qp",
            read_wc_flags = "read_wc_flags", read_slid = "read_slid", read_sl = "read_sl",
            read_dlid_path_bits = "read_dlid_path_bits", read_completion_ts = "read_completion_ts",
            read_cvlan = "read_cvlan", read_flow_tag = "read_flow_tag", read_tm = "read_tm_info",
            read_wallclock_ns = "read_completion_wallclock_ns";
        Same IbvPollCqAttr = "ibv_poll_cq_attr": comp_mask = "comp_mask";
        Same IbvQp = "ibv_qp": qp_context = "qp_context", pd = "pd", send_cq = "send_cq", recv_cq = "recv_cq",
            srq = "srq", number = "handle", qp_num = "qp_num", state = "state", qp_type = "qp_type",
            mutex = "mutex", cond = "cond", events_completed = "events_completed";
        Grows IbvQpEx = "ibv_qp_ex": comp_mask = "comp_mask", wr_id = "wr_id", wr_flags = "wr_flags",
            wr_atomic_cmp_swp = "wr_atomic_cmp_swp", wr_atomic_fetch_add = "wr_atomic_fetch_add",
            wr_bind_mw = "wr_bind_mw", wr_local_inv = "wr_local_inv", wr_rdma_read = "wr_rdma_read",
            wr_rdma_write = "wr_rdma_write", wr_rdma_write_imm = "wr_rdma_write_imm", wr_send = "wr_send",
            wr_send_imm = "wr_send_imm", wr_send_inv = "wr_send_inv", wr_send_tso = "wr_send_tso",
            wr_set_ud_addr = "wr_set_ud_addr", wr_set_xrc_srqn = "wr_set_xrc_srqn",
            wr_set_inline_data = "wr_set_inline_data", wr_set_inline_data_list = "wr_set_inline_data_list",
            wr_set_sge = "wr_set_sge", wr_set_sge_list = "wr_set_sge_list", wr_start = "wr_start",
            wr_complete = "wr_complete", wr_abort = "wr_abort", wr_atomic_write = "wr_atomic_write";
        Grows EfadvCq = "efadv_cq": comp_mask = "comp_mask", wc_read_sgid = "wc_read_sgid";
        Same IbvSge = "ibv_sge": addr = "addr", length = "length", lkey = "lkey";
        Same IbvDataBuf = "ibv_data_buf": addr = "addr", length = "length";
        Same IbvRecvWr = "ibv_recv_wr": next = "next", sg_list = "sg_list", num_sge = "num_sge";
        Same IbvSendWr = "ibv_send_wr": next = "next", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode",
            send_flags = "send_flags", imm_data = "imm_data", ud.ah = "wr.ud.ah",
            ud.remote_qpn = "wr.ud.remote_qpn", ud.remote_qkey = "wr.ud.remote_qkey";
        Same IbvWc = "ibv_wc": status = "status", opcode = "opcode", vendor_err = "vendor_err",
            byte_len = "byte_len", imm_data = "imm_data", qp_num = "qp_num", src_qp = "src_qp",
            wc_flags = "wc_flags", pkey_index = "pkey_index", slid = "slid", sl = "sl";
        Same IbvQpCap = "ibv_qp_cap": max_send_wr = "max_send_wr", max_recv_wr = "max_recv_wr",
            max_send_sge = "max_send_sge", max_recv_sge = "max_recv_sge", max_inline_data = "max_inline_data";
        Same IbvQpInitAttr = "ibv_qp_init_attr": send_cq = "send_cq", recv_cq = "recv_cq", srq = "srq", cap = "cap",
            qp_type = "qp_type", sq_sig_all = "sq_sig_all";
        Same IbvQpInitAttrEx = "ibv_qp_init_attr_ex": cap = "cap", qp_type = "qp_type", sq_sig_all = "sq_sig_all",
            comp_mask = "comp_mask", pd = "pd", send_ops_flags = "send_ops_flags";
        Grows EfadvQpInitAttr = "efadv_qp_init_attr": comp_mask = "comp_mask", driver_qp_type = "driver_qp_type";
        Same IbvAhAttr = "ibv_ah_attr": dgid = "grh.dgid", is_global = "is_global", port_num = "port_num";
        Same IbvQpAttr = "ibv_qp_attr": qp_state = "qp_state", cur_qp_state = "cur_qp_state", qkey = "qkey",
            cap = "cap", ah_attr = "ah_attr", pkey_index = "pkey_index", port_num = "port_num",
            rnr_retry = "rnr_retry", rate_limit = "rate_limit";
        Same IbvCqInitAttrEx = "ibv_cq_init_attr_ex": cqe = "cqe", cq_context = "cq_context", channel = "channel",
            comp_vector = "comp_vector", wc_flags = "wc_flags", comp_mask = "comp_mask", flags = "flags",
            parent_domain = "parent_domain";
        Grows EfadvCqInitAttr = "efadv_cq_init_attr": comp_mask = "comp_mask", wc_flags = "wc_flags";
        Same EfadvDeviceAttr = "efadv_device_attr": max_sq_wr = "max_sq_wr", max_rq_wr = "max_rq_wr",
            max_sq_sge = "max_sq_sge", max_rq_sge = "max_rq_sge", inline_buf_size = "inline_buf_size",
            device_caps = "device_caps", max_rdma_size = "max_rdma_size";
        Same EfadvAhAttr = "efadv_ah_attr": ahn = "ahn";
        Same IbvDeviceAttr = "ibv_device_attr": fw_ver = "fw_ver", node_guid = "node_guid",
            max_mr_size = "max_mr_size", page_size_cap = "page_size_cap", vendor_part_id = "vendor_part_id",
            hw_ver = "hw_ver", max_qp = "max_qp", max_qp_wr = "max_qp_wr", max_sge = "max_sge",
            max_sge_rd = "max_sge_rd", max_cq = "max_cq", max_cqe = "max_cqe", max_mr = "max_mr",
            max_pd = "max_pd", atomic_cap = "atomic_cap", max_mw = "max_mw", max_ah = "max_ah",
            max_pkeys = "max_pkeys", phys_port_cnt = "phys_port_cnt";
        Same IbvDeviceAttrEx = "ibv_device_attr_ex": comp_mask = "comp_mask", phys_port_cnt_ex = "phys_port_cnt_ex";
        Grows IbvPortAttr = "ibv_port_attr": state = "state", max_mtu = "max_mtu", active_mtu = "active_mtu",
            gid_tbl_len = "gid_tbl_len", max_msg_sz = "max_msg_sz", pkey_tbl_len = "pkey_tbl_len", lmc = "lmc",
            max_vl_num = "max_vl_num", active_width = "active_width", active_speed = "active_speed",
            phys_state = "phys_state", link_layer = "link_layer", flags = "flags";
        Same IbvGidEntry = "ibv_gid_entry": gid_index = "gid_index", port_num = "port_num", gid_type = "gid_type";
    }
}

/// Offsets of the context's functions from its end, by which inline functions find them.
fn context_offsets() -> Vec<Number> {
    let of = |name: &str, at: usize| Number {
        c: format!("sizeof(struct verbs_context) - offsetof(struct verbs_context, {name})"),
        ours: size_of::<VerbsContext>() - at,
        kind: Kind::Same,
    };
    vec![
        of("query_port", offset_of!(VerbsContext, query_port)),
        of("create_cq_ex", offset_of!(VerbsContext, create_cq_ex)),
        of("query_device_ex", offset_of!(VerbsContext, query_device_ex)),
        of("create_qp_ex", offset_of!(VerbsContext, create_qp_ex)),
        of("sz", offset_of!(VerbsContext, sz)),
        of("context", offset_of!(VerbsContext, context)),
    ]
}

/// Values of the C expressions; `None` without a compiler or headers.
fn measure_in_c(of: &[Number]) -> Option<Vec<usize>> {
    let dir = std::env::temp_dir().join(format!("softefa-layout-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, program) = (dir.join("layout.c"), dir.join("layout"));
    let mut text = "#include <infiniband/verbs.h>\n#include <infiniband/efadv.h>\n#include <stddef.h>\n\
        #include <stdio.h>\nint main(void) {\n"
        .to_owned();
    for number in of {
        writeln!(text, "printf(\"%zu\\n\", (size_t)({}));", number.c).unwrap();
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).unwrap();
    let include = std::env::var("SOFTEFA_TEST_INCLUDE").unwrap_or_else(|_| "/usr/include".into());
    let headers = std::path::Path::new(&include).join("infiniband/efadv.h").is_file();
    let built = headers.then(|| {
        let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
        cc.arg("-I").arg(&include).arg("-o").args([&program, &source]).stdin(Stdio::null()).output()
    });
    let out = match built {
        Some(Ok(built)) => {
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            Some(Command::new(&program).output().unwrap())
        }
        _ => None,
    };
    std::fs::remove_dir_all(&dir).unwrap();
    let lines = String::from_utf8(out?.stdout).unwrap();
    Some(lines.lines().map(|line| line.parse().unwrap()).collect())
}

#[test]
fn structures_match_the_headers() {
    let numbers: Vec<Number> = all().into_iter().chain(context_offsets()).collect();
    let Some(found) = measure_in_c(&numbers) else {
        return ucs::testing::not_installed(
            "layouts",
            "no C compiler, or no infiniband/efadv.h (libibverbs-dev)",
        );
    };
    assert_eq!(found.len(), numbers.len());
    let wrong: Vec<String> = (numbers.iter().zip(found))
        .filter(|(n, c)| n.ours != *c && n.kind == Kind::Same)
        .map(|(n, c)| format!("{}: {c} in C, {} here", n.c, n.ours))
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
}
