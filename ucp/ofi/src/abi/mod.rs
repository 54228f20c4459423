//! Structures and values of libfabric's public headers, release 1.17. A test compares them with the system's.

#[cfg(test)]
mod tests;

pub(crate) mod flags;
pub(crate) mod info;
pub(crate) mod ops;
pub(crate) mod queue;

use std::ffi::{c_int, c_void};

/// `fi_addr_t`.
pub(crate) type FiAddr = u64;
/// `FI_ADDR_UNSPEC`, which is also `FI_ADDR_NOTAVAIL`.
pub(crate) const ADDR_UNSPEC: FiAddr = u64::MAX;

/// `FI_VERSION(major, minor)`.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// `struct fid`: every object begins with it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const ops::FidOps,
}

/// `struct iovec`.
pub(crate) type IoVec = libc::iovec;

/// `struct fi_msg`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Msg {
    pub msg_iov: *const IoVec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub context: *mut c_void,
    pub data: u64,
}

/// `struct fi_msg_tagged`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MsgTagged {
    pub msg_iov: *const IoVec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

/// `struct fi_rma_iov`, and `struct fi_rma_ioc`, which counts elements.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// `struct fi_ioc`: elements of an atomic operation.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ioc {
    pub addr: *mut c_void,
    pub count: usize,
}

/// `struct fi_msg_rma`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MsgRma {
    pub msg_iov: *const IoVec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

/// `struct fi_msg_atomic`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MsgAtomic {
    pub msg_iov: *const Ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: FiAddr,
    pub rma_iov: *const RmaIov,
    pub rma_iov_count: usize,
    pub datatype: u32,
    pub op: u32,
    pub context: *mut c_void,
    pub data: u64,
}

/// `struct fi_atomic_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}

/// `struct fi_collective_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CollectiveAttr {
    pub op: u32,
    pub datatype: u32,
    pub datatype_attr: AtomicAttr,
    pub max_members: usize,
    pub mode: u64,
}

/// `struct fi_collective_addr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CollectiveAddr {
    pub set: *const Fid,
    pub coll_addr: FiAddr,
}

/// `struct fi_av_set_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AvSetAttr {
    pub count: usize,
    pub start_addr: FiAddr,
    pub end_addr: FiAddr,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}

/// `struct fi_mr_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MrAttr {
    pub mr_iov: *const IoVec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: c_int,
    pub device: u64,
}

/// `struct fi_triggered_context` and `struct fi_triggered_context2` of event [`flags::TRIGGER_THRESHOLD`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct TriggeredContext {
    pub event_type: c_int,
    pub cntr: *mut Fid,
    pub threshold: usize,
}

/// `struct fi_alias`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Alias {
    pub fid: *mut *mut Fid,
    pub flags: u64,
}

/// `struct fi_provider`.
#[repr(C)]
pub(crate) struct Provider {
    pub version: u32,
    pub fi_version: u32,
    /// `struct fi_context`: libfabric's own.
    pub context: [*mut c_void; 4],
    pub name: *const std::ffi::c_char,
    pub getinfo: ops::GetInfo,
    pub fabric: ops::OpenFabric,
    pub cleanup: unsafe extern "C" fn(),
}
