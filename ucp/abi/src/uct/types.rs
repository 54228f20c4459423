//! Structures and values of UCX's `uct.h` and `tl.h`, as of release 1.13. Later ones have the same layouts,
//! as far as they are used here.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::ep::Ep;
use super::iface::Iface;
use super::md::{Md, MemHandle};
use crate::entry::CStatus;

/// `UCT_COMPONENT_NAME_MAX` and `UCT_MD_NAME_MAX`.
pub(crate) const NAME_MAX: usize = 16;
/// `UCT_TL_NAME_MAX`.
pub(crate) const TL_NAME_MAX: usize = 10;
/// `UCT_DEVICE_NAME_MAX`.
pub(crate) const DEVICE_NAME_MAX: usize = 32;
/// `UCT_AM_ID_MAX`.
pub(crate) const AM_IDS: usize = 32;
/// `UCT_INVALID_RKEY`.
pub(crate) const INVALID_RKEY: usize = usize::MAX;

/// `ucs_callbackq_elem_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct QueueElement {
    pub cb: Option<unsafe extern "C" fn(arg: *mut c_void) -> c_uint>,
    pub arg: *mut c_void,
    pub flags: c_uint,
    pub id: c_int,
}

/// `ucs_callbackq_t`: an inline function of programs calls its elements up to the first without a callback.
#[repr(C)]
pub(crate) struct CallbackQueue {
    pub fast_elems: [QueueElement; 8],
    pub private: [u8; 72],
}

/// `uct_md_resource_desc_t`.
#[repr(C)]
pub(crate) struct MdResource {
    pub md_name: [c_char; NAME_MAX],
}

/// `uct_component_attr_t`.
#[repr(C)]
pub(crate) struct ComponentAttr {
    pub field_mask: u64,
    pub name: [c_char; NAME_MAX],
    pub md_resource_count: c_uint,
    pub md_resources: *mut MdResource,
    pub flags: u64,
}

/// Bits of [`ComponentAttr::field_mask`].
pub(crate) mod component_attr {
    pub(crate) const NAME: u64 = 1 << 0;
    pub(crate) const MD_RESOURCE_COUNT: u64 = 1 << 1;
    pub(crate) const MD_RESOURCES: u64 = 1 << 2;
    pub(crate) const FLAGS: u64 = 1 << 3;
}

/// `uct_tl_resource_desc_t`.
#[repr(C)]
pub(crate) struct TlResource {
    pub tl_name: [c_char; TL_NAME_MAX],
    pub dev_name: [c_char; DEVICE_NAME_MAX],
    pub dev_type: c_int,
    pub sys_device: u8,
}

/// `uct_device_type_t`.
pub(crate) mod device_type {
    use std::ffi::c_int;
    pub(crate) const NET: c_int = 0;
    pub(crate) const SHM: c_int = 1;
    pub(crate) const ACC: c_int = 2;
    pub(crate) const SELF: c_int = 3;
}

/// Limits of put or get in `uct_iface_attr_t`.
#[repr(C)]
pub(crate) struct RmaCap {
    pub max_short: usize,
    pub max_bcopy: usize,
    pub min_zcopy: usize,
    pub max_zcopy: usize,
    pub opt_zcopy_align: usize,
    pub align_mtu: usize,
    pub max_iov: usize,
}

/// Limits of active messages in `uct_iface_attr_t`.
#[repr(C)]
pub(crate) struct AmCap {
    pub max_short: usize,
    pub max_bcopy: usize,
    pub min_zcopy: usize,
    pub max_zcopy: usize,
    pub opt_zcopy_align: usize,
    pub align_mtu: usize,
    pub max_hdr: usize,
    pub max_iov: usize,
}

/// Atomics in `uct_iface_attr_t`: bits of `uct_atomic_op_t`.
#[repr(C)]
pub(crate) struct AtomicCap {
    pub op_flags: u64,
    pub fop_flags: u64,
}

/// Field `cap` of `uct_iface_attr_t`.
#[repr(C)]
pub(crate) struct IfaceCap {
    pub put: RmaCap,
    pub get: RmaCap,
    pub am: AmCap,
    /// Tag matching by a device: none has it.
    pub tag: [usize; 11],
    pub atomic32: AtomicCap,
    pub atomic64: AtomicCap,
    pub flags: u64,
    pub event_flags: u64,
}

/// `ucs_linear_func_t`.
#[repr(C)]
pub(crate) struct Linear {
    pub c: f64,
    pub m: f64,
}

/// `uct_ppn_bandwidth_t`.
#[repr(C)]
pub(crate) struct Bandwidth {
    pub dedicated: f64,
    pub shared: f64,
}

/// `uct_iface_attr_t`.
#[repr(C)]
pub(crate) struct IfaceAttr {
    pub cap: IfaceCap,
    pub device_addr_len: usize,
    pub iface_addr_len: usize,
    pub ep_addr_len: usize,
    pub max_conn_priv: usize,
    pub listen_sockaddr: libc::sockaddr_storage,
    pub overhead: f64,
    pub bandwidth: Bandwidth,
    pub latency: Linear,
    pub priority: u8,
    pub max_num_eps: usize,
    pub dev_num_paths: c_uint,
    /// In what is padding in UCX 1.13.
    pub ctl_device: u8,
}

/// Bits of [`IfaceCap::flags`].
pub(crate) mod iface_flag {
    pub(crate) const AM_SHORT: u64 = 1 << 0;
    pub(crate) const AM_BCOPY: u64 = 1 << 1;
    pub(crate) const AM_ZCOPY: u64 = 1 << 2;
    pub(crate) const PENDING: u64 = 1 << 3;
    pub(crate) const PUT_SHORT: u64 = 1 << 4;
    pub(crate) const PUT_BCOPY: u64 = 1 << 5;
    pub(crate) const PUT_ZCOPY: u64 = 1 << 6;
    pub(crate) const GET_SHORT: u64 = 1 << 8;
    pub(crate) const GET_BCOPY: u64 = 1 << 9;
    pub(crate) const GET_ZCOPY: u64 = 1 << 10;
    pub(crate) const ATOMIC_CPU: u64 = 1 << 30;
    pub(crate) const ERRHANDLE_PEER_FAILURE: u64 = 1 << 38;
    pub(crate) const EP_CHECK: u64 = 1 << 39;
    pub(crate) const CONNECT_TO_IFACE: u64 = 1 << 40;
    pub(crate) const CONNECT_TO_EP: u64 = 1 << 41;
    pub(crate) const CB_SYNC: u64 = 1 << 44;
    pub(crate) const INTER_NODE: u64 = 1 << 54;
}

/// Bits of [`IfaceCap::event_flags`]; the first two are events to arm for, too.
pub(crate) mod event_flag {
    pub(crate) const SEND_COMP: u64 = 1 << 0;
    pub(crate) const RECV: u64 = 1 << 1;
    pub(crate) const RECV_SIG: u64 = 1 << 2;
    pub(crate) const FD: u64 = 1 << 3;
}

/// `uct_iface_params_t`, as far as it is read.
#[repr(C)]
pub(crate) struct IfaceParams {
    pub field_mask: u64,
    pub cpu_mask: [usize; 16],
    pub open_mode: u64,
    pub tl_name: *const c_char,
    pub dev_name: *const c_char,
    /// The rest of the union, whose longest member is the one of socket addresses.
    pub mode: [u64; 3],
    pub stats_root: *mut c_void,
    pub rx_headroom: usize,
    pub err_handler_arg: *mut c_void,
    pub err_handler: Option<ErrorHandler>,
    pub err_handler_flags: u32,
}

/// `uct_error_handler_t`.
pub(crate) type ErrorHandler =
    unsafe extern "C" fn(arg: *mut c_void, ep: *mut Ep, status: CStatus) -> CStatus;

/// Bits of [`IfaceParams::field_mask`].
pub(crate) mod iface_param {
    pub(crate) const OPEN_MODE: u64 = 1 << 1;
    pub(crate) const ERR_HANDLER_ARG: u64 = 1 << 6;
    pub(crate) const ERR_HANDLER: u64 = 1 << 7;
}

/// `UCT_IFACE_OPEN_MODE_DEVICE`.
pub(crate) const OPEN_MODE_DEVICE: u64 = 1 << 0;

/// `uct_ep_params_t`, as far as it is read.
#[repr(C)]
pub(crate) struct EpParams {
    pub field_mask: u64,
    pub iface: *mut Iface,
    pub user_data: *mut c_void,
    pub dev_addr: *const c_void,
    pub iface_addr: *const c_void,
}

/// Bits of [`EpParams::field_mask`].
pub(crate) mod ep_param {
    pub(crate) const IFACE: u64 = 1 << 0;
    pub(crate) const DEV_ADDR: u64 = 1 << 2;
    pub(crate) const IFACE_ADDR: u64 = 1 << 3;
}

/// `uct_md_attr_t`.
#[repr(C)]
pub(crate) struct MdAttr {
    pub max_alloc: u64,
    pub max_reg: usize,
    pub flags: u64,
    pub reg_mem_types: u64,
    pub detect_mem_types: u64,
    pub alloc_mem_types: u64,
    pub access_mem_types: u64,
    pub reg_cost: Linear,
    pub component_name: [c_char; NAME_MAX],
    pub rkey_packed_size: usize,
    pub local_cpus: [usize; 16],
}

/// Bits of [`MdAttr::flags`].
pub(crate) mod md_flag {
    pub(crate) const ALLOC: u64 = 1 << 0;
    pub(crate) const REG: u64 = 1 << 1;
    pub(crate) const NEED_MEMH: u64 = 1 << 2;
    pub(crate) const NEED_RKEY: u64 = 1 << 3;
    pub(crate) const ADVISE: u64 = 1 << 4;
    pub(crate) const FIXED: u64 = 1 << 5;
    pub(crate) const RKEY_PTR: u64 = 1 << 6;
    /// The old bit, and its two kinds of operations in UCX 1.23.
    pub(crate) const INVALIDATE: u64 = 1 << 8 | 1 << 11 | 1 << 12;
}

/// `uct_md_mem_flags`.
pub(crate) mod mem_flag {
    pub(crate) const NONBLOCK: u32 = 1 << 0;
    pub(crate) const FIXED: u32 = 1 << 1;
    pub(crate) const HIDE_ERRORS: u32 = 1 << 3;
    pub(crate) const REMOTE_PUT: u32 = 1 << 5;
    pub(crate) const REMOTE_GET: u32 = 1 << 6;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 7;
    pub(crate) const LOCAL_READ: u32 = 1 << 8;
    pub(crate) const LOCAL_WRITE: u32 = 1 << 9;
}

/// `uct_md_mem_attr_v2_t`, with which `uct_md_mem_attr_t` begins.
#[repr(C)]
pub(crate) struct MdMemAttr {
    pub field_mask: u64,
    pub mem_type: c_int,
    pub sys_dev: u8,
    pub base_address: *mut c_void,
    pub alloc_length: usize,
    pub dmabuf_fd: c_int,
    pub dmabuf_offset: usize,
    pub mem_flags: u8,
}

/// `uct_allocated_memory_t` of 1.13: a later one is longer and has no mask, so nothing behind is written.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocatedMemory {
    pub address: *mut c_void,
    pub length: usize,
    pub method: c_int,
    pub mem_type: c_int,
    pub md: *mut Md,
    pub memh: *mut MemHandle,
}

/// `uct_alloc_method_t`.
pub(crate) mod alloc_method {
    use std::ffi::c_int;
    pub(crate) const THP: c_int = 0;
    pub(crate) const MD: c_int = 1;
    pub(crate) const HEAP: c_int = 2;
    pub(crate) const MMAP: c_int = 3;
    pub(crate) const HUGE: c_int = 4;
}

/// `uct_mem_alloc_params_t`.
#[repr(C)]
pub(crate) struct MemAllocParams {
    pub field_mask: u64,
    pub flags: c_uint,
    pub address: *mut c_void,
    pub mem_type: c_int,
    pub mds: *const *mut Md,
    pub mds_count: c_uint,
    pub name: *const c_char,
}

/// Bits of [`MemAllocParams::field_mask`].
pub(crate) mod mem_alloc_param {
    pub(crate) const FLAGS: u64 = 1 << 0;
    pub(crate) const ADDRESS: u64 = 1 << 1;
    pub(crate) const MEM_TYPE: u64 = 1 << 2;
    pub(crate) const MDS: u64 = 1 << 3;
}

/// `uct_rkey_bundle_t`.
#[repr(C)]
pub(crate) struct RkeyBundle {
    pub rkey: usize,
    pub handle: *mut c_void,
    pub kind: *mut c_void,
}

/// `uct_iov_t`.
#[repr(C)]
pub(crate) struct Iov {
    pub buffer: *mut c_void,
    pub length: usize,
    pub memh: *const MemHandle,
    pub stride: usize,
    pub count: c_uint,
}

/// `uct_completion_t`.
#[repr(C)]
pub(crate) struct Completion {
    pub func: Option<unsafe extern "C" fn(completion: *mut Completion)>,
    pub count: c_int,
    pub status: CStatus,
}

/// `uct_pending_req_t`; the memory behind the function is not used here.
#[repr(C)]
pub(crate) struct PendingReq {
    pub func: Option<unsafe extern "C" fn(request: *mut PendingReq) -> CStatus>,
    pub private: [u8; 40],
}

/// `uct_am_callback_t`.
pub(crate) type AmCallback =
    unsafe extern "C" fn(arg: *mut c_void, data: *mut c_void, length: usize, flags: c_uint) -> CStatus;
/// `uct_pack_callback_t`.
pub(crate) type PackCallback = unsafe extern "C" fn(to: *mut c_void, arg: *mut c_void) -> usize;
/// `uct_unpack_callback_t`.
pub(crate) type UnpackCallback = unsafe extern "C" fn(arg: *mut c_void, data: *const c_void, length: usize);
/// `uct_pending_purge_callback_t`.
pub(crate) type PurgeCallback = unsafe extern "C" fn(request: *mut PendingReq, arg: *mut c_void);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uct::ops::Ops;

    macro_rules! offsets {
        ($($c:literal = $Rust:ty: $($field:ident)+;)+) => {
            &[$($(($c, stringify!($field), std::mem::offset_of!($Rust, $field)),)+)+]
        };
    }

    const OFFSETS: &[(&str, &str, usize)] = offsets! {
        "ucs_callbackq_elem_t" = QueueElement: cb arg flags id;
        "ucs_callbackq_t" = CallbackQueue: fast_elems;
        "uct_component_attr_t" = ComponentAttr: field_mask name md_resource_count md_resources flags;
        "uct_tl_resource_desc_t" = TlResource: tl_name dev_name dev_type sys_device;
        "uct_iface_attr_t" = IfaceAttr: cap device_addr_len iface_addr_len ep_addr_len max_conn_priv
            listen_sockaddr overhead bandwidth latency priority max_num_eps dev_num_paths;
        "uct_iface_params_t" = IfaceParams: field_mask cpu_mask open_mode stats_root rx_headroom err_handler_arg
            err_handler err_handler_flags;
        "uct_ep_params_t" = EpParams: field_mask iface user_data dev_addr iface_addr;
        "uct_md_attr_t" = MdAttr: reg_cost component_name rkey_packed_size local_cpus;
        "uct_md_mem_attr_t" = MdMemAttr: field_mask mem_type sys_dev base_address alloc_length;
        "uct_allocated_memory_t" = AllocatedMemory: address length method mem_type md memh;
        "uct_mem_alloc_params_t" = MemAllocParams: field_mask flags address mem_type mds name;
        "uct_rkey_bundle_t" = RkeyBundle: rkey handle;
        "uct_iov_t" = Iov: buffer length memh stride count;
        "uct_completion_t" = Completion: func count status;
        "uct_pending_req_t" = PendingReq: func;
    };

    const NESTED: &[(&str, &str, usize)] = &[
        ("uct_iface_attr_t", "cap.put.max_iov", std::mem::offset_of!(IfaceAttr, cap.put.max_iov)),
        ("uct_iface_attr_t", "cap.get.max_short", std::mem::offset_of!(IfaceAttr, cap.get.max_short)),
        ("uct_iface_attr_t", "cap.am.max_short", std::mem::offset_of!(IfaceAttr, cap.am.max_short)),
        ("uct_iface_attr_t", "cap.am.max_hdr", std::mem::offset_of!(IfaceAttr, cap.am.max_hdr)),
        ("uct_iface_attr_t", "cap.tag", std::mem::offset_of!(IfaceAttr, cap.tag)),
        (
            "uct_iface_attr_t",
            "cap.atomic64.fop_flags",
            std::mem::offset_of!(IfaceAttr, cap.atomic64.fop_flags),
        ),
        ("uct_iface_attr_t", "cap.flags", std::mem::offset_of!(IfaceAttr, cap.flags)),
        ("uct_iface_attr_t", "cap.event_flags", std::mem::offset_of!(IfaceAttr, cap.event_flags)),
        ("uct_iface_params_t", "mode.device.tl_name", std::mem::offset_of!(IfaceParams, tl_name)),
        ("uct_iface_params_t", "mode.device.dev_name", std::mem::offset_of!(IfaceParams, dev_name)),
        ("uct_md_attr_t", "cap.flags", std::mem::offset_of!(MdAttr, flags)),
        ("uct_md_attr_t", "cap.access_mem_types", std::mem::offset_of!(MdAttr, access_mem_types)),
        ("uct_mem_alloc_params_t", "mds.count", std::mem::offset_of!(MemAllocParams, mds_count)),
    ];

    const SIZES: &[(&str, usize)] = &[
        ("uct_iface_ops_t", size_of::<Ops>()),
        ("uct_iface_attr_t", size_of::<IfaceAttr>()),
        ("uct_md_attr_t", size_of::<MdAttr>()),
        ("uct_worker_t", size_of::<CallbackQueue>()),
        ("uct_tl_resource_desc_t", size_of::<TlResource>()),
        ("uct_md_resource_desc_t", size_of::<MdResource>()),
        ("uct_component_attr_t", size_of::<ComponentAttr>()),
        ("uct_allocated_memory_t", size_of::<AllocatedMemory>()),
        ("uct_rkey_bundle_t", size_of::<RkeyBundle>()),
        ("uct_iov_t", size_of::<Iov>()),
        ("uct_completion_t", size_of::<Completion>()),
        ("uct_pending_req_t", size_of::<PendingReq>()),
    ];

    const VALUES: &[(&str, u64)] = &[
        ("UCT_IFACE_FLAG_PENDING", iface_flag::PENDING),
        ("UCT_IFACE_FLAG_GET_ZCOPY", iface_flag::GET_ZCOPY),
        ("UCT_IFACE_FLAG_ATOMIC_CPU", iface_flag::ATOMIC_CPU),
        ("UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE", iface_flag::ERRHANDLE_PEER_FAILURE),
        ("UCT_IFACE_FLAG_EP_CHECK", iface_flag::EP_CHECK),
        ("UCT_IFACE_FLAG_CONNECT_TO_IFACE", iface_flag::CONNECT_TO_IFACE),
        ("UCT_IFACE_FLAG_CONNECT_TO_EP", iface_flag::CONNECT_TO_EP),
        ("UCT_IFACE_FLAG_CB_SYNC", iface_flag::CB_SYNC),
        ("UCT_IFACE_FLAG_EVENT_FD", event_flag::FD),
        ("UCT_EVENT_RECV_SIG", event_flag::RECV_SIG),
        ("UCT_MD_FLAG_RKEY_PTR", md_flag::RKEY_PTR),
        ("UCT_MD_MEM_ACCESS_LOCAL_WRITE", mem_flag::LOCAL_WRITE as u64),
        ("UCT_MD_MEM_ACCESS_REMOTE_PUT", mem_flag::REMOTE_PUT as u64),
        ("UCT_MD_MEM_FLAG_HIDE_ERRORS", mem_flag::HIDE_ERRORS as u64),
        ("UCT_IFACE_PARAM_FIELD_ERR_HANDLER", iface_param::ERR_HANDLER),
        ("UCT_EP_PARAM_FIELD_IFACE_ADDR", ep_param::IFACE_ADDR),
        ("UCT_ALLOC_METHOD_HUGE", alloc_method::HUGE as u64),
        ("UCT_DEVICE_TYPE_SELF", device_type::SELF as u64),
        ("UCT_AM_ID_MAX", AM_IDS as u64),
        ("UCT_MEM_ALLOC_PARAM_FIELD_MDS", mem_alloc_param::MDS),
        ("UCT_COMPONENT_ATTR_FIELD_FLAGS", component_attr::FLAGS),
        ("UCT_TL_NAME_MAX", TL_NAME_MAX as u64),
        ("UCT_DEVICE_NAME_MAX", DEVICE_NAME_MAX as u64),
        ("UCT_INVALID_RKEY", INVALID_RKEY as u64),
    ];

    #[test]
    fn a_compiler_finds_the_same_layouts() {
        let mut source = String::from("#include <stddef.h>\n#include <uct/api/uct.h>\n");
        for (of, field, offset) in OFFSETS.iter().chain(NESTED) {
            source += &format!("_Static_assert(offsetof({of}, {field}) == {offset}, \"{of}.{field}\");\n");
        }
        for (of, size) in SIZES {
            source += &format!("_Static_assert(sizeof({of}) == {size}, \"{of}\");\n");
        }
        for (name, value) in VALUES {
            source += &format!("_Static_assert({name} == {value}UL, \"{name}\");\n");
        }
        for (field, offset) in Ops::OFFSETS {
            source +=
                &format!("_Static_assert(offsetof(uct_iface_ops_t, {field}) == {offset}, \"{field}\");\n");
        }
        crate::layout::assert_compiles("/usr/include/uct/api/uct.h", &source);
        crate::layout::assert_compiles_with_ours(&source);
    }

    #[test]
    fn sizes_are_those_of_ucx() {
        assert_eq!((size_of::<Ops>(), size_of::<IfaceAttr>(), size_of::<MdAttr>()), (400, 536, 224));
        assert_eq!((size_of::<CallbackQueue>(), size_of::<AllocatedMemory>()), (264, 40));
    }
}
