//! Declarations of `infiniband/efadv.h` that rdma-sys lacks. Layouts are those of rdma-core 65, which start
//! with those of 44; a test compares them with the installed header.

#![allow(unsafe_code)]

use rdma_sys::{ibv_ah, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_gid, ibv_qp, ibv_qp_init_attr_ex};
use std::ffi::c_int;

pub const CAP_RDMA_READ: u32 = 1;
/// The number of RNR retries can be set.
pub const CAP_RNR_RETRY: u32 = 1 << 1;
/// Completions carry the GID of senders without an address handle here.
pub const CAP_CQ_WITH_SGID: u32 = 1 << 2;
pub const CAP_RDMA_WRITE: u32 = 1 << 3;
/// Writes with immediate may consume no receive.
pub const CAP_UNSOLICITED_WRITE_RECV: u32 = 1 << 4;

/// Requests [`Cq::wc_read_sgid`].
pub const WC_EX_WITH_SGID: u64 = 1;
/// Requests [`Cq::wc_is_unsolicited`].
pub const WC_EX_WITH_IS_UNSOLICITED: u64 = 1 << 1;

pub const QP_DRIVER_TYPE_SRD: u32 = 0;
/// Writes with immediate consume no receive.
pub const QP_FLAGS_UNSOLICITED_WRITE_RECV: u16 = 1;

/// `struct efadv_device_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DeviceAttr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    /// Longest inline send of wide WQEs; reserved and zero in older rdma-core.
    pub inline_buf_size_ex: u16,
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

/// `struct efadv_qp_init_attr`. rdma-core 44 reserves fields after `driver_qp_type`: zero there.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct QpInitAttr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: u8,
    pub wr_flags: u64,
}

/// Head of `struct efadv_cq_init_attr`; later fields place the queue in the caller's memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CqInitAttr {
    pub comp_mask: u64,
    pub wc_flags: u64,
}

/// `struct efadv_cq`.
#[repr(C)]
pub struct Cq {
    pub comp_mask: u64,
    /// Returns 0 and the sender's GID, or non-zero if an AHN (the slid) names it.
    pub wc_read_sgid: Option<unsafe extern "C" fn(*mut Cq, *mut ibv_gid) -> c_int>,
    /// Missing in rdma-core 44.
    pub wc_is_unsolicited: Option<unsafe extern "C" fn(*mut Cq) -> bool>,
}

/// `struct efadv_ah_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AhAttr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

const _: () = assert!(size_of::<DeviceAttr>() == 32 && size_of::<QpInitAttr>() == 24);
const _: () = assert!(size_of::<CqInitAttr>() == 16 && size_of::<Cq>() == 24 && size_of::<AhAttr>() == 16);

// The last argument is the length of the structure before it: older and newer libraries serve what they know.
#[link(name = "efa")]
unsafe extern "C" {
    pub fn efadv_query_device(ctx: *mut ibv_context, attr: *mut DeviceAttr, inlen: u32) -> c_int;
    pub fn efadv_create_qp_ex(
        ctx: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
        efa: *mut QpInitAttr,
        inlen: u32,
    ) -> *mut ibv_qp;
    pub fn efadv_create_cq(
        ctx: *mut ibv_context,
        attr: *mut ibv_cq_init_attr_ex,
        efa: *mut CqInitAttr,
        inlen: u32,
    ) -> *mut ibv_cq_ex;
    pub fn efadv_cq_from_ibv_cq_ex(cq: *mut ibv_cq_ex) -> *mut Cq;
    pub fn efadv_query_ah(ah: *mut ibv_ah, attr: *mut AhAttr, inlen: u32) -> c_int;
}
