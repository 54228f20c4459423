//! Attributes of interfaces, as UCX has them.

use ::uct::api::{self, Caps, DevKind, RmaLimits};

use super::types::{
    AmCap, AtomicCap, Bandwidth, IfaceAttr, IfaceCap, Linear, RmaCap, event_flag, iface_flag,
};

/// Most pieces of local memory in one operation: more would take room on the stack of every call.
pub(crate) const MAX_IOV: usize = 16;

/// Longest message that a callback packs. It does not tell its length before: there is room for this.
pub(crate) const MAX_BCOPY: usize = 64 << 10;

/// Capabilities of the crate, and their flags in UCX.
const FLAGS: &[(Caps, u64)] = &[
    (Caps::AM_SHORT, iface_flag::AM_SHORT),
    (Caps::AM_BCOPY, iface_flag::AM_BCOPY),
    (Caps::AM_ZCOPY, iface_flag::AM_ZCOPY),
    (Caps::PENDING, iface_flag::PENDING),
    (Caps::PUT_SHORT, iface_flag::PUT_SHORT),
    (Caps::PUT_BCOPY, iface_flag::PUT_BCOPY),
    (Caps::PUT_ZCOPY, iface_flag::PUT_ZCOPY),
    (Caps::GET_SHORT, iface_flag::GET_SHORT),
    (Caps::GET_BCOPY, iface_flag::GET_BCOPY),
    (Caps::GET_ZCOPY, iface_flag::GET_ZCOPY),
    // Those of a device are carried out by a thread with the CPU's.
    (Caps::ATOMIC, iface_flag::ATOMIC_CPU),
    (Caps::PEER_FAILURE, iface_flag::ERRHANDLE_PEER_FAILURE),
    (Caps::EP_CHECK, iface_flag::EP_CHECK),
    // An endpoint's messages arrive at its interface, so that the address of that serves for both.
    (Caps::CONNECT_TO_IFACE, iface_flag::CONNECT_TO_IFACE | iface_flag::CONNECT_TO_EP),
];

const EVENT_FLAGS: &[(Caps, u64)] = &[
    (Caps::EVENT_RECV, event_flag::RECV | event_flag::FD),
    (Caps::EVENT_SEND, event_flag::SEND_COMP | event_flag::FD),
];

/// Flags of the capabilities that an interface has.
fn flags_of(attr: &api::IfaceAttr, table: &[(Caps, u64)]) -> u64 {
    table.iter().filter(|(cap, _)| attr.has(*cap)).fold(0, |all, (_, flag)| all | flag)
}

fn rma_of(limits: &RmaLimits) -> RmaCap {
    RmaCap {
        max_short: limits.max_short,
        max_bcopy: limits.max_bcopy.min(MAX_BCOPY),
        min_zcopy: limits.min_zcopy,
        max_zcopy: limits.max_zcopy,
        opt_zcopy_align: 1,
        align_mtu: 1,
        max_iov: limits.max_iov.min(MAX_IOV),
    }
}

fn atomics_of(attr: &api::IfaceAttr, bytes: usize) -> AtomicCap {
    // The crate's bits are those of UCX's numbers of operations.
    AtomicCap {
        op_flags: attr.atomics.post(bytes).bits().into(),
        fop_flags: attr.atomics.fetch(bytes).bits().into(),
    }
}

/// Seconds, of nanoseconds.
fn seconds(ns: f64) -> f64 {
    ns * 1e-9
}

/// All attributes of an interface.
pub(crate) fn attr_of(attr: &api::IfaceAttr) -> IfaceAttr {
    let (dedicated, shared, reach) = if attr.kind == DevKind::Net {
        (0.0, attr.bandwidth, iface_flag::INTER_NODE)
    } else {
        (attr.bandwidth, 0.0, 0)
    };
    IfaceAttr {
        cap: IfaceCap {
            put: rma_of(&attr.put),
            get: rma_of(&attr.get),
            am: AmCap {
                max_short: attr.am.max_short,
                max_bcopy: attr.am.max_bcopy.min(MAX_BCOPY),
                min_zcopy: 0,
                max_zcopy: attr.am.max_zcopy,
                opt_zcopy_align: 1,
                align_mtu: 1,
                max_hdr: attr.am.max_hdr,
                max_iov: attr.am.max_iov.min(MAX_IOV),
            },
            tag: [0; 11],
            atomic32: atomics_of(attr, 4),
            atomic64: atomics_of(attr, 8),
            flags: iface_flag::CB_SYNC | reach | flags_of(attr, FLAGS),
            event_flags: flags_of(attr, EVENT_FLAGS),
        },
        device_addr_len: attr.device_addr_len,
        iface_addr_len: attr.iface_addr_len,
        ep_addr_len: attr.iface_addr_len,
        max_conn_priv: 0,
        // SAFETY: all zeros are a value of the type: no address.
        listen_sockaddr: unsafe { std::mem::zeroed() },
        overhead: seconds(attr.overhead),
        bandwidth: Bandwidth { dedicated, shared },
        latency: Linear { c: seconds(attr.latency.fixed), m: seconds(attr.latency.per_ep) },
        priority: 0,
        max_num_eps: usize::MAX,
        dev_num_paths: 1,
        ctl_device: u8::MAX,
    }
}
