//! Attributes and entries of queues, counters and address vectors.

use std::ffi::{c_char, c_int, c_void};

use super::Fid;

/// `struct fi_av_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AvAttr {
    pub av_type: u32,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// `struct fi_eq_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_set: *mut Fid,
}

/// `struct fi_eq_err_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EqErrEntry {
    pub fid: *mut Fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// `struct fi_cq_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: c_int,
    pub wait_cond: u32,
    pub wait_set: *mut Fid,
}

/// `struct fi_cq_tagged_entry`; those of the other formats are beginnings of it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CqTaggedEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

/// `struct fi_cq_err_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CqErrEntry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// `struct fi_cntr_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CntrAttr {
    pub events: u32,
    pub wait_obj: u32,
    pub wait_set: *mut Fid,
    pub flags: u64,
}

/// `struct fi_wait_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WaitAttr {
    pub wait_obj: u32,
    pub flags: u64,
}
