//! Structures of libibverbs and libefa, in the x86-64 layout of rdma-core 44, checked at compile time.

#![allow(dead_code, reason = "fields that only programs read, and reserved ones, keep their place and name")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// Table entry of an operation that the device lacks.
pub type NoOp = Option<unsafe extern "C" fn()>;

/// `pthread_mutex_t` and `pthread_cond_t`, which inline functions never use.
type Unused<const WORDS: usize> = [u64; WORDS];

/// `struct ibv_device`.
#[repr(C)]
pub struct IbvDevice {
    pub ops: [NoOp; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// `struct ibv_context_ops`: what the inline functions call.
#[repr(C)]
pub struct IbvContextOps {
    pub before_poll: [NoOp; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int>,
    pub after_notify: [NoOp; 7],
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut c_void, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int>,
    pub before_send: [NoOp; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int>,
    pub after_recv: [NoOp; 5],
}

/// `struct ibv_context`.
#[repr(C)]
pub struct IbvContext {
    pub device: *mut IbvDevice,
    pub ops: IbvContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: Unused<5>,
    /// All ones: the context is the tail of a [`VerbsContext`].
    pub abi_compat: *mut c_void,
}

/// `struct verbs_context`. Grows at its start; `sz` is its length.
#[repr(C)]
pub struct VerbsContext {
    pub query_port: Option<unsafe extern "C" fn(*mut IbvContext, u8, *mut IbvPortAttr, usize) -> c_int>,
    pub newer: [NoOp; 24],
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvCqInitAttrEx) -> *mut IbvCqEx>,
    pub private: *mut c_void,
    pub query_device_ex:
        Option<unsafe extern "C" fn(*mut IbvContext, *const c_void, *mut IbvDeviceAttrEx, usize) -> c_int>,
    pub flows: [NoOp; 5],
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut IbvContext, *mut IbvQpInitAttrEx) -> *mut IbvQp>,
    pub older: [NoOp; 4],
    pub placeholder: u64,
    pub sz: usize,
    pub context: IbvContext,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct IbvPd {
    pub context: *mut IbvContext,
    pub number: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct IbvMr {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub addr: *mut c_void,
    pub length: usize,
    pub number: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_ah`.
#[repr(C)]
pub struct IbvAh {
    pub context: *mut IbvContext,
    pub pd: *mut IbvPd,
    pub number: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct IbvCompChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_cq`: the head of [`IbvCqEx`].
#[repr(C)]
pub struct IbvCq {
    pub context: *mut IbvContext,
    pub channel: *mut IbvCompChannel,
    pub cq_context: *mut c_void,
    pub number: u32,
    pub cqe: c_int,
    pub mutex: Unused<5>,
    pub cond: Unused<6>,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_cq_ex`.
#[repr(C)]
pub struct IbvCqEx {
    pub base: IbvCq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub start_poll: unsafe extern "C" fn(*mut IbvCqEx, *mut IbvPollCqAttr) -> c_int,
    pub next_poll: unsafe extern "C" fn(*mut IbvCqEx) -> c_int,
    pub end_poll: unsafe extern "C" fn(*mut IbvCqEx),
    pub read_opcode: unsafe extern "C" fn(*mut IbvCqEx) -> c_int,
    pub read_vendor_err: unsafe extern "C" fn(*mut IbvCqEx) -> u32,
    pub read_byte_len: unsafe extern "C" fn(*mut IbvCqEx) -> u32,
    pub read_imm_data: unsafe extern "C" fn(*mut IbvCqEx) -> u32,
    pub read_qp_num: unsafe extern "C" fn(*mut IbvCqEx) -> u32,
    pub read_src_qp: unsafe extern "C" fn(*mut IbvCqEx) -> u32,
    pub read_wc_flags: unsafe extern "C" fn(*mut IbvCqEx) -> c_uint,
    pub read_slid: unsafe extern "C" fn(*mut IbvCqEx) -> u32,
    pub read_sl: unsafe extern "C" fn(*mut IbvCqEx) -> u8,
    pub read_dlid_path_bits: unsafe extern "C" fn(*mut IbvCqEx) -> u8,
    pub read_completion_ts: unsafe extern "C" fn(*mut IbvCqEx) -> u64,
    pub read_cvlan: unsafe extern "C" fn(*mut IbvCqEx) -> u16,
    pub read_flow_tag: unsafe extern "C" fn(*mut IbvCqEx) -> u32,
    pub read_tm: unsafe extern "C" fn(*mut IbvCqEx, *mut c_void),
    pub read_wallclock_ns: unsafe extern "C" fn(*mut IbvCqEx) -> u64,
}

/// `struct efadv_cq`; `is_unsolicited` is of later rdma-core.
#[repr(C)]
pub struct EfadvCq {
    pub comp_mask: u64,
    pub wc_read_sgid: unsafe extern "C" fn(*mut EfadvCq, *mut [u8; 16]) -> c_int,
    pub wc_is_unsolicited: unsafe extern "C" fn(*mut EfadvCq) -> bool,
}

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
pub struct IbvPollCqAttr {
    pub comp_mask: u32,
}

/// `struct ibv_qp`: the head of [`IbvQpEx`].
#[repr(C)]
pub struct IbvQp {
    pub context: *mut IbvContext,
    pub qp_context: *mut c_void,
    pub pd: *mut IbvPd,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut c_void,
    pub number: u32,
    pub qp_num: u32,
    pub state: c_int,
    pub qp_type: c_int,
    pub mutex: Unused<5>,
    pub cond: Unused<6>,
    pub events_completed: u32,
}

type Wr<A> = unsafe extern "C" fn(*mut IbvQpEx, A);

/// `struct ibv_qp_ex` of later rdma-core, which appends a function.
#[repr(C)]
pub struct IbvQpEx {
    pub base: IbvQp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64, u64),
    pub wr_atomic_fetch_add: unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u64),
    pub wr_bind_mw: unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, u32, *const c_void),
    pub wr_local_inv: Wr<u32>,
    pub wr_rdma_read: unsafe extern "C" fn(*mut IbvQpEx, u32, u64),
    pub wr_rdma_write: unsafe extern "C" fn(*mut IbvQpEx, u32, u64),
    pub wr_rdma_write_imm: unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32),
    pub wr_send: unsafe extern "C" fn(*mut IbvQpEx),
    pub wr_send_imm: Wr<u32>,
    pub wr_send_inv: Wr<u32>,
    pub wr_send_tso: unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, u16, u16),
    pub wr_set_ud_addr: unsafe extern "C" fn(*mut IbvQpEx, *mut IbvAh, u32, u32),
    pub wr_set_xrc_srqn: Wr<u32>,
    pub wr_set_inline_data: unsafe extern "C" fn(*mut IbvQpEx, *mut c_void, usize),
    pub wr_set_inline_data_list: unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvDataBuf),
    pub wr_set_sge: unsafe extern "C" fn(*mut IbvQpEx, u32, u64, u32),
    pub wr_set_sge_list: unsafe extern "C" fn(*mut IbvQpEx, usize, *const IbvSge),
    pub wr_start: unsafe extern "C" fn(*mut IbvQpEx),
    pub wr_complete: unsafe extern "C" fn(*mut IbvQpEx) -> c_int,
    pub wr_abort: unsafe extern "C" fn(*mut IbvQpEx),
    pub wr_atomic_write: unsafe extern "C" fn(*mut IbvQpEx, u32, u64, *const c_void),
    pub wr_flush: unsafe extern "C" fn(*mut IbvQpEx, u32, u64, usize, u8, u8),
}

/// `struct efadv_qp` of later rdma-core.
#[repr(C)]
pub struct EfadvQp {
    pub comp_mask: u64,
    pub wr_set_processing_hints: unsafe extern "C" fn(*mut EfadvQp, u32),
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvDataBuf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
}

/// Datagram part of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WrUd {
    pub ah: *mut IbvAh,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
pub struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub imm_data: u32,
    pub ud: WrUd,
    pub rest: [u64; 9],
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvWc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`: the head of [`IbvQpInitAttrEx`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut c_void,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_init_attr_ex`. `comp_mask` lies in the padding of the plain structure.
#[repr(C)]
pub struct IbvQpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut c_void,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut IbvPd,
    pub unused: [u64; 7],
    pub send_ops_flags: u64,
}

/// `struct efadv_qp_init_attr` of later rdma-core; older ones end before `wr_flags`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct EfadvQpInitAttr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: u8,
    pub wr_flags: u64,
}

/// `struct ibv_ah_attr`. Aligned as the GID union in C.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct IbvAhAttr {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvQpAttr {
    pub qp_state: c_int,
    pub cur_qp_state: c_int,
    pub path_mtu: c_int,
    pub path_mig_state: c_int,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: IbvQpCap,
    pub ah_attr: IbvAhAttr,
    pub alt_ah_attr: IbvAhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub struct IbvCqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut IbvCompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut c_void,
}

/// `struct efadv_cq_init_attr` as in rdma-core 44.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct EfadvCqInitAttr {
    pub comp_mask: u64,
    pub wc_flags: u64,
}

/// `struct efadv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct EfadvDeviceAttr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    pub inline_buf_size_ex: u16,
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

/// `struct efadv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct EfadvAhAttr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvDeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub rd_atomics: [c_int; 5],
    pub atomic_cap: c_int,
    pub ee: [c_int; 2],
    pub max_mw: c_int,
    pub raw: [c_int; 2],
    pub mcast: [c_int; 3],
    pub max_ah: c_int,
    pub fmr: [c_int; 2],
    pub srq: [c_int; 3],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `struct ibv_device_attr_ex`: of the extended attributes only the port count applies.
#[repr(C)]
pub struct IbvDeviceAttrEx {
    pub orig: IbvDeviceAttr,
    pub comp_mask: u32,
    pub unused: [u32; 40],
    pub phys_port_cnt_ex: u32,
}

/// `struct ibv_port_attr` of rdma-core 44; later ones append a field.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvPortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvGidEntry {
    pub gid: [u8; 16],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

macro_rules! layout {
    ($($t:ty: $size:literal $(, $($f:ident).+ @ $at:literal)*;)*) => {
        $(const _: () = {
            assert!(size_of::<$t>() == $size);
            $(assert!(offset_of!($t, $($f).+) == $at);)*
        };)*
    };
}

// Measured with a C program against the headers of rdma-core 44.
layout! {
    IbvDevice: 664, node_type @ 16, name @ 24, dev_name @ 88, dev_path @ 152, ibdev_path @ 408;
    IbvContext: 328, ops.poll_cq @ 96, ops.req_notify_cq @ 104, ops.post_send @ 208, ops.post_recv @ 216,
        cmd_fd @ 264, async_fd @ 268, num_comp_vectors @ 272, abi_compat @ 320;
    VerbsContext: 648, create_cq_ex @ 200, private @ 208, query_device_ex @ 216, create_qp_ex @ 264, sz @ 312,
        context @ 320;
    IbvPd: 16;
    IbvMr: 48;
    IbvAh: 24;
    IbvCompChannel: 16;
    IbvCq: 128, cqe @ 28;
    IbvCqEx: 288, comp_mask @ 128, status @ 132, wr_id @ 136, start_poll @ 144;
    EfadvCq: 24;
    IbvQp: 160, qp_num @ 52, state @ 56, qp_type @ 60;
    IbvQpEx: 360, comp_mask @ 160, wr_id @ 168, wr_flags @ 176, wr_atomic_cmp_swp @ 184, wr_start @ 320;
    IbvSge: 16;
    IbvRecvWr: 32;
    IbvSendWr: 128, imm_data @ 36, ud.ah @ 40, ud.remote_qpn @ 48;
    IbvWc: 48;
    IbvQpInitAttr: 64, cap @ 32, sq_sig_all @ 56;
    IbvQpInitAttrEx: 136, comp_mask @ 60, pd @ 64, send_ops_flags @ 128;
    EfadvQpInitAttr: 24, flags @ 12, wr_flags @ 16;
    IbvAhAttr: 32;
    IbvQpAttr: 144, qkey @ 16, cap @ 36, ah_attr @ 56, pkey_index @ 120, port_num @ 129, rnr_retry @ 132;
    IbvCqInitAttrEx: 56, wc_flags @ 32;
    EfadvCqInitAttr: 16;
    EfadvDeviceAttr: 32, device_caps @ 24;
    EfadvAhAttr: 16;
    IbvDeviceAttr: 232, max_qp @ 108, max_mr @ 136, max_ah @ 200, phys_port_cnt @ 227;
    IbvDeviceAttrEx: 400, phys_port_cnt_ex @ 396;
    IbvPortAttr: 52;
    IbvGidEntry: 32;
}

#[cfg(test)]
mod tests;
