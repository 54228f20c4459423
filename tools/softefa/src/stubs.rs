//! Verbs that this device lacks, exported because a missing name would reach the real library.

use crate::abi::{IbvAhAttr, IbvContext};
use crate::errno::{ret_int, ret_ptr, set_errno};
use std::ffi::{c_int, c_void};

macro_rules! refuse {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            ret_int(Err(libc::EOPNOTSUPP))
        })*
    };
}

macro_rules! refuse_pointer {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> *mut c_void {
            ret_ptr(Err(libc::EOPNOTSUPP))
        })*
    };
}

// Arguments are in caller-saved registers: functions without parameters serve every signature.
refuse! {
    ibv_destroy_srq ibv_modify_srq ibv_query_srq ibv_attach_mcast ibv_detach_mcast ibv_rereg_mr ibv_set_ece
    ibv_query_ece ibv_init_ah_from_wc ibv_resolve_eth_l2_from_gid _ibv_query_comp_cntr_caps ibv_destroy_comp_cntr
    ibv_set_comp_cntr ibv_inc_comp_cntr ibv_read_comp_cntr ibv_set_err_comp_cntr ibv_inc_err_comp_cntr
    ibv_read_err_comp_cntr ibv_qp_attach_comp_cntr ibv_dealloc_dmah
}

refuse_pointer! {
    ibv_create_srq ibv_create_ah_from_wc ibv_import_device ibv_import_pd ibv_import_mr ibv_import_dm
    ibv_create_comp_cntr ibv_alloc_dmah ibv_alloc_buf ibv_reg_buf_mr
}

/// There is no memory of the device, so none to export.
#[unsafe(no_mangle)]
extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut c_void) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut c_void) -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_free_buf(_buf: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_mr: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

/// Data arrive in any order.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut c_void, _op: c_int, _flags: u32) -> c_int {
    0
}

/// There is no DMA to protect from fork.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _len: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _len: usize) -> c_int {
    0
}

/// There are no asynchronous events: blocks, or fails with EAGAIN.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(ctx: *mut IbvContext, _event: *mut c_void) -> c_int {
    let mut nothing = 0u64;
    // SAFETY: by this function's contract.
    let fd = unsafe { (*ctx).async_fd };
    // SAFETY: eight bytes of room.
    let read = unsafe { libc::read(fd, (&raw mut nothing).cast(), size_of::<u64>()) };
    if read >= 0 {
        set_errno(libc::EAGAIN);
    }
    -1
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_async_event(_event: *mut c_void) {}

/// Clears a structure for librdmacm, which never meets our devices.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut IbvAhAttr, _from: *const c_void) {
    // SAFETY: by this function's contract.
    unsafe { to.write(IbvAhAttr::default()) };
}

#[unsafe(no_mangle)]
extern "C" fn ibv_copy_path_rec_from_kern(_to: *mut c_void, _from: *const c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_copy_path_rec_to_kern(_to: *mut c_void, _from: *const c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_copy_qp_attr_from_kern(_to: *mut c_void, _from: *const c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_static_providers(_unused: *mut c_void) {}
