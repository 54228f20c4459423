//! Layouts and values, compared with the system's headers by a C compiler (Debian: gcc, libfabric-dev).

use std::io::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

use super::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use super::ops::*;
use super::queue::{AvAttr, CntrAttr, CqAttr, CqErrEntry, CqTaggedEntry, EqAttr, EqErrEntry, WaitAttr};
use super::{
    AtomicAttr, AvSetAttr, CollectiveAddr, CollectiveAttr, Fid, Ioc, MrAttr, Msg, MsgAtomic, MsgRma,
    MsgTagged, Provider, RmaIov, TriggeredContext, flags,
};
use crate::errno::Errno;
use ucp::{AtomicOp, Datatype};

const HEADER: &str = "/usr/include/rdma/fabric.h";

/// Assertions of a structure: its size, and the offsets of its fields.
macro_rules! layout {
    ($out:ident, $c:literal = $T:ty { $($field:ident $(as $cname:ident)?),+ }) => {
        $out.push_str(&format!("_Static_assert(sizeof({}) == {}, \"{}\");\n", $c, size_of::<$T>(), $c));
        $(
            let name = [$(stringify!($cname),)? stringify!($field)][0];
            $out.push_str(&format!(
                "_Static_assert(offsetof({}, {name}) == {}, \"{}.{name}\");\n",
                $c, offset_of!($T, $field), $c
            ));
        )+
    };
}

/// Assertions of a table of functions: their names in order.
fn table(out: &mut String, c: &str, size: usize, names: &[&str]) {
    out.push_str(&format!("_Static_assert(sizeof(struct {c}) == {size}, \"{c}\");\n"));
    for (at, name) in names.iter().enumerate() {
        let offset = (at + 1) * size_of::<usize>();
        out.push_str(&format!("_Static_assert(offsetof(struct {c}, {name}) == {offset}, \"{c}.{name}\");\n"));
    }
}

fn compile(assertions: &str) {
    if !Path::new(HEADER).exists() {
        return ucs::testing::not_installed("layouts", format!("no {HEADER} (libfabric-dev)"));
    }
    let mut gcc = Command::new("gcc");
    gcc.args(["-fsyntax-only", "-Wno-deprecated-declarations", "-x", "c", "-"]).stdin(Stdio::piped());
    let Ok(mut gcc) = gcc.spawn() else { return ucs::testing::not_installed("layouts", "no gcc") };
    let includes = "#include <stddef.h>\n#include <string.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_domain.h>\n\
        #include <rdma/fi_endpoint.h>\n#include <rdma/fi_tagged.h>\n#include <rdma/fi_cm.h>\n#include <rdma/fi_rma.h>\n\
        #include <rdma/fi_atomic.h>\n#include <rdma/fi_trigger.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_collective.h>\n\
        #include <rdma/providers/fi_prov.h>\n";
    let source = format!("{includes}{assertions}");
    gcc.stdin.take().expect("piped").write_all(source.as_bytes()).expect("gcc reads");
    assert!(gcc.wait().expect("gcc ends").success());
}

#[test]
fn structures_are_those_of_the_headers() {
    let mut out = String::new();
    layout!(out, "struct fid" = Fid { fclass, context, ops });
    layout!(
        out,
        "struct fi_tx_attr" = TxAttr {
            caps,
            mode,
            op_flags,
            msg_order,
            comp_order,
            inject_size,
            size,
            iov_limit,
            rma_iov_limit,
            tclass
        }
    );
    layout!(
        out,
        "struct fi_rx_attr" =
            RxAttr { caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit }
    );
    layout!(out, "struct fi_ep_attr" = EpAttr {
        ep_type as type, protocol, protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size,
        max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt, auth_key_size, auth_key
    });
    layout!(
        out,
        "struct fi_domain_attr" = DomainAttr {
            domain,
            name,
            threading,
            control_progress,
            data_progress,
            resource_mgmt,
            av_type,
            mr_mode,
            mr_key_size,
            cq_data_size,
            cq_cnt,
            ep_cnt,
            tx_ctx_cnt,
            rx_ctx_cnt,
            max_ep_tx_ctx,
            max_ep_rx_ctx,
            max_ep_stx_ctx,
            max_ep_srx_ctx,
            cntr_cnt,
            mr_iov_limit,
            caps,
            mode,
            auth_key,
            auth_key_size,
            max_err_data,
            mr_cnt,
            tclass
        }
    );
    layout!(
        out,
        "struct fi_collective_attr" = CollectiveAttr { op, datatype, datatype_attr, max_members, mode }
    );
    layout!(out, "struct fi_collective_addr" = CollectiveAddr { set, coll_addr });
    layout!(
        out,
        "struct fi_av_set_attr" =
            AvSetAttr { count, start_addr, end_addr, stride, comm_key_size, comm_key, flags }
    );
    layout!(out, "struct fi_fabric_attr" = FabricAttr { fabric, name, prov_name, prov_version, api_version });
    layout!(
        out,
        "struct fi_info" = Info {
            next,
            caps,
            mode,
            addr_format,
            src_addrlen,
            dest_addrlen,
            src_addr,
            dest_addr,
            handle,
            tx_attr,
            rx_attr,
            ep_attr,
            domain_attr,
            fabric_attr,
            nic
        }
    );
    layout!(out, "struct fi_av_attr" = AvAttr {
        av_type as type, rx_ctx_bits, count, ep_per_node, name, map_addr, flags
    });
    layout!(out, "struct fi_wait_attr" = WaitAttr { wait_obj, flags });
    layout!(out, "struct fi_eq_attr" = EqAttr { size, flags, wait_obj, signaling_vector, wait_set });
    layout!(
        out,
        "struct fi_eq_err_entry" =
            EqErrEntry { fid, context, data, err, prov_errno, err_data, err_data_size }
    );
    layout!(
        out,
        "struct fi_cq_attr" = CqAttr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set }
    );
    layout!(out, "struct fi_cq_tagged_entry" = CqTaggedEntry { op_context, flags, len, buf, data, tag });
    layout!(
        out,
        "struct fi_cq_err_entry" = CqErrEntry {
            op_context,
            flags,
            len,
            buf,
            data,
            tag,
            olen,
            err,
            prov_errno,
            err_data,
            err_data_size
        }
    );
    layout!(out, "struct fi_cntr_attr" = CntrAttr { events, wait_obj, wait_set, flags });
    for c in ["fi_triggered_context", "fi_triggered_context2"] {
        let offsets = [
            ("event_type", offset_of!(TriggeredContext, event_type)),
            ("trigger.threshold.cntr", offset_of!(TriggeredContext, cntr)),
            ("trigger.threshold.threshold", offset_of!(TriggeredContext, threshold)),
        ];
        for (name, offset) in offsets {
            out.push_str(&format!(
                "_Static_assert(offsetof(struct {c}, {name}) == {offset}, \"{c}.{name}\");\n"
            ));
        }
    }
    layout!(out, "struct fi_msg" = Msg { msg_iov, desc, iov_count, addr, context, data });
    layout!(
        out,
        "struct fi_msg_tagged" = MsgTagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data }
    );
    layout!(out, "struct fi_rma_iov" = RmaIov { addr, len, key });
    layout!(out, "struct fi_rma_ioc" = RmaIov { addr, len as count, key });
    layout!(out, "struct fi_ioc" = Ioc { addr, count });
    layout!(out, "struct fi_atomic_attr" = AtomicAttr { count, size });
    layout!(
        out,
        "struct fi_msg_rma" =
            MsgRma { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data }
    );
    layout!(
        out,
        "struct fi_msg_atomic" =
            MsgAtomic { msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op, context, data }
    );
    layout!(
        out,
        "struct fi_mr_attr" = MrAttr {
            mr_iov,
            iov_count,
            access,
            offset,
            requested_key,
            context,
            auth_key_size,
            auth_key,
            iface,
            device
        }
    );
    layout!(
        out,
        "struct fi_provider" = Provider { version, fi_version, context, name, getinfo, fabric, cleanup }
    );
    for (format, size) in [("", 8), ("msg_", 24), ("data_", 40)] {
        out.push_str(&format!("_Static_assert(sizeof(struct fi_cq_{format}entry) == {size}, \"entry\");\n"));
    }
    compile(&out);
}

#[test]
fn tables_are_those_of_the_headers() {
    let mut out = String::new();
    let tables: [(&str, usize, &[&str]); 18] = [
        ("fi_ops", size_of::<FidOps>(), FidOps::NAMES),
        ("fi_ops_fabric", size_of::<FabricOps>(), FabricOps::NAMES),
        ("fi_ops_domain", size_of::<DomainOps>(), DomainOps::NAMES),
        ("fi_ops_mr", size_of::<MrOps>(), MrOps::NAMES),
        ("fi_ops_av", size_of::<AvOps>(), AvOps::NAMES),
        ("fi_ops_eq", size_of::<EqOps>(), EqOps::NAMES),
        ("fi_ops_cq", size_of::<CqOps>(), CqOps::NAMES),
        ("fi_ops_cntr", size_of::<CntrOps>(), CntrOps::NAMES),
        ("fi_ops_ep", size_of::<EpOps>(), EpOps::NAMES),
        ("fi_ops_cm", size_of::<CmOps>(), CmOps::NAMES),
        ("fi_ops_msg", size_of::<MsgOps>(), MsgOps::NAMES),
        ("fi_ops_tagged", size_of::<TaggedOps>(), TaggedOps::NAMES),
        ("fi_ops_rma", size_of::<RmaOps>(), RmaOps::NAMES),
        ("fi_ops_atomic", size_of::<AtomicTable>(), AtomicTable::NAMES),
        ("fi_ops_collective", size_of::<CollectiveOps>(), CollectiveOps::NAMES),
        ("fi_ops_av_set", size_of::<AvSetOps>(), AvSetOps::NAMES),
        ("fi_ops_poll", size_of::<PollOps>(), PollOps::NAMES),
        ("fi_ops_wait", size_of::<WaitOps>(), WaitOps::NAMES),
    ];
    for (c, size, names) in tables {
        table(&mut out, c, size, names);
    }
    compile(&out);
}

#[test]
fn values_are_those_of_the_headers() {
    macro_rules! same {
        ($out:ident: $($name:ident = $value:expr),+ $(,)?) => {$(
            #[allow(clippy::unnecessary_cast)]
            $out.push_str(&format!(
                "_Static_assert((unsigned long long)({0}) == {1}ull, \"{0}\");\n",
                stringify!($name), $value as u64
            ));
        )+};
    }
    let mut out = String::new();
    same!(out:
        FI_MSG = flags::MSG,  FI_TAGGED = flags::TAGGED,
        FI_READ = flags::READ, FI_WRITE = flags::WRITE, FI_RECV = flags::RECV, FI_SEND = flags::SEND,
        FI_REMOTE_READ = flags::REMOTE_READ, FI_REMOTE_WRITE = flags::REMOTE_WRITE,
        FI_REMOTE_CQ_DATA = flags::REMOTE_CQ_DATA, FI_MORE = flags::MORE, FI_COMPLETION = flags::COMPLETION,
        FI_INJECT = flags::INJECT, FI_INJECT_COMPLETE = flags::INJECT_COMPLETE,
        FI_TRANSMIT_COMPLETE = flags::TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE = flags::DELIVERY_COMPLETE,
        FI_MATCH_COMPLETE = flags::MATCH_COMPLETE, FI_LOCAL_COMM = flags::LOCAL_COMM,
        FI_REMOTE_COMM = flags::REMOTE_COMM, FI_SOURCE = flags::SOURCE, FI_SOURCE_ERR = flags::SOURCE_ERR,
        FI_SHARED_AV = flags::SHARED_AV, FI_DIRECTED_RECV = flags::DIRECTED_RECV,
        FI_SELECTIVE_COMPLETION = flags::SELECTIVE_COMPLETION, FI_EVENT = flags::EVENT,
        FI_ORDER_SAS = flags::ORDER_SAS, FI_FORMAT_UNSPEC = flags::FORMAT_UNSPEC, FI_ADDR_EFA = flags::ADDR_EFA,
        FI_PROV_SPECIFIC = flags::PROV_SPECIFIC, FI_EP_RDM = flags::EP_RDM, FI_PROTO_EFA = flags::PROTO_EFA,
        FI_THREAD_SAFE = flags::THREAD_SAFE, FI_THREAD_DOMAIN = flags::THREAD_DOMAIN,
        FI_THREAD_ENDPOINT = flags::THREAD_ENDPOINT,
        FI_PROGRESS_AUTO = flags::PROGRESS_AUTO, FI_PROGRESS_MANUAL = flags::PROGRESS_MANUAL,
        FI_RM_ENABLED = flags::RM_ENABLED, FI_AV_MAP = flags::AV_MAP, FI_AV_TABLE = flags::AV_TABLE,
        FI_MR_BASIC = flags::MR_BASIC, FI_WAIT_NONE = flags::WAIT_NONE, FI_WAIT_UNSPEC = flags::WAIT_UNSPEC,
        FI_WAIT_FD = flags::WAIT_FD, FI_CQ_FORMAT_TAGGED = flags::CQ_FORMAT_TAGGED,
        FI_CLASS_FABRIC = flags::CLASS_FABRIC, FI_CLASS_DOMAIN = flags::CLASS_DOMAIN,
        FI_CLASS_SEP = flags::CLASS_SEP, FI_CLASS_TX_CTX = flags::CLASS_TX_CTX,
        FI_CLASS_RX_CTX = flags::CLASS_RX_CTX, FI_NAMED_RX_CTX = flags::NAMED_RX_CTX,
        FI_CLASS_EP = flags::CLASS_EP, FI_CLASS_AV = flags::CLASS_AV, FI_CLASS_MR = flags::CLASS_MR,
        FI_CLASS_EQ = flags::CLASS_EQ, FI_CLASS_MC = flags::CLASS_MC, FI_CLASS_AV_SET = flags::CLASS_AV_SET,
        FI_COLLECTIVE = flags::COLLECTIVE, FI_JOIN_COMPLETE = crate::eq::JOIN_COMPLETE, FI_CLASS_CQ = flags::CLASS_CQ, FI_CLASS_CNTR = flags::CLASS_CNTR,
        FI_GETOPSFLAG = flags::GETOPSFLAG, FI_SETOPSFLAG = flags::SETOPSFLAG, FI_GETWAIT = flags::GETWAIT,
        FI_ENABLE = flags::ENABLE, FI_GETWAITOBJ = flags::GETWAITOBJ, FI_OPT_ENDPOINT = flags::OPT_ENDPOINT,
        FI_OPT_MIN_MULTI_RECV = flags::OPT_MIN_MULTI_RECV, FI_OPT_CM_DATA_SIZE = flags::OPT_CM_DATA_SIZE,
        FI_OPT_TX_SIZE = flags::OPT_TX_SIZE, FI_OPT_RX_SIZE = flags::OPT_RX_SIZE,
        FI_PROV_ATTR_ONLY = flags::PROV_ATTR_ONLY, FI_ETOOSMALL = Errno::TOOSMALL.0,
        FI_EOPBADSTATE = Errno::OPBADSTATE.0, FI_EAVAIL = Errno::AVAIL.0, FI_EBADFLAGS = Errno::BADFLAGS.0,
        FI_ENOEQ = Errno::NOEQ.0, FI_ENOCQ = Errno::NOCQ.0, FI_ETRUNC = Errno::TRUNC.0,
        FI_ENOAV = Errno::NOAV.0, FI_AV_COMPLETE = crate::eq::AV_COMPLETE, FI_SYNC_ERR = crate::av::SYNC_ERR,
        FI_PEEK = flags::PEEK,
        FI_CLAIM = flags::CLAIM,
        FI_RMA = flags::RMA, FI_ATOMIC = flags::ATOMIC, FI_FENCE = flags::FENCE, FI_MULTI_RECV = flags::MULTI_RECV,
        FI_FETCH_ATOMIC = flags::FETCH_ATOMIC, FI_COMPARE_ATOMIC = flags::COMPARE_ATOMIC,
        FI_MR_VIRT_ADDR = flags::MR_VIRT_ADDR, FI_MR_ALLOCATED = flags::MR_ALLOCATED,
        FI_MR_PROV_KEY = flags::MR_PROV_KEY, FI_INT8 = Datatype::Int8, FI_UINT64 = Datatype::Uint64,
        FI_LONG_DOUBLE_COMPLEX = Datatype::LongDoubleComplex, FI_INT128 = Datatype::Int128,
        FI_UINT128 = Datatype::Uint128, FI_MIN = AtomicOp::Min, FI_SUM = AtomicOp::Sum, FI_BXOR = AtomicOp::BitXor,
        FI_ATOMIC_READ = AtomicOp::Read, FI_ATOMIC_WRITE = AtomicOp::Write, FI_CSWAP = AtomicOp::CompareSwap,
        FI_CSWAP_GT = AtomicOp::CompareSwapGt, FI_MSWAP = AtomicOp::MaskSwap,
        FI_DISCARD = flags::DISCARD,
        FI_SOCKADDR = flags::SOCKADDR, FI_SOCKADDR_IN = flags::SOCKADDR_IN, FI_SOCKADDR_IN6 = flags::SOCKADDR_IN6,
        FI_EP_MSG = flags::EP_MSG, FI_EP_DGRAM = flags::EP_DGRAM, FI_CLASS_PEP = flags::CLASS_PEP,
        FI_CLASS_CONNREQ = flags::CLASS_CONNREQ, FI_CONNREQ = flags::CONNREQ, FI_CONNECTED = flags::CONNECTED,
        FI_WAIT_SET = flags::WAIT_SET, FI_WAIT_YIELD = flags::WAIT_YIELD, FI_CLASS_WAIT = flags::CLASS_WAIT,
        FI_CLASS_POLL = flags::CLASS_POLL, FI_CQ_COND_THRESHOLD = flags::CQ_COND_THRESHOLD, FI_BACKLOG = flags::BACKLOG,
        FI_OPT_FI_HMEM_P2P = flags::OPT_FI_HMEM_P2P, FI_HMEM_P2P_REQUIRED = flags::HMEM_P2P_REQUIRED,
        FI_SHUTDOWN = flags::SHUTDOWN, FI_NUMERICHOST = flags::NUMERICHOST,
    );
    out.push_str(&format!(
        "_Static_assert((FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW) == {}ull, \"order\");\n",
        flags::ORDER_ATOMIC
    ));
    compile(&out);
}
