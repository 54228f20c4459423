//! EFA extensions newer than rdma-core 44, exported so that they never reach a real library.

use crate::abi::{EfadvQp, IbvContext, IbvCq, IbvMr, IbvQp};
use crate::context::Context;
use crate::errno::{ret_int, ret_ptr};
use crate::qp_obj::QpObj;
use crate::query::{RQ_SGE, max_rq_wr, max_sq_wr};
use crate::sized::{copy_in, copy_out, covers};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

#[unsafe(no_mangle)]
extern "C" fn efadv_query_cq(_cq: *mut IbvCq, _attr: *mut c_void, _inlen: u32) -> c_int {
    ret_int(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn efadv_query_qp_wqs(_qp: *mut IbvQp, _sq: *mut c_void, _rq: *mut c_void, _inlen: u32) -> c_int {
    ret_int(Err(libc::EOPNOTSUPP))
}

/// Regions have no interconnect ids: clears all validity bits.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_mr(_mr: *mut IbvMr, attr: *mut u8, inlen: u32) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { copy_out(attr, inlen, 0u8) };
    0
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct EfadvSqDepthAttr {
    comp_mask: u64,
    flags: u32,
    max_send_sge: u32,
    max_rdma_sge: u32,
    max_inline_data: u32,
}

/// Most sends of a queue pair with such capacities; or an error number, negative.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_get_max_sq_depth(
    ctx: *mut IbvContext,
    attr: *const EfadvSqDepthAttr,
    inlen: u32,
) -> c_int {
    if !covers(inlen, size_of::<EfadvSqDepthAttr>()) {
        return -libc::EINVAL;
    }
    // SAFETY: by this function's contract.
    let Ok(attr) = (unsafe { copy_in(attr, inlen) }) else { return -libc::EINVAL };
    // SAFETY: by this function's contract.
    let dev = &unsafe { Context::of(ctx) }.attr;
    let fits = attr.max_send_sge <= dev.max_send_sge
        && attr.max_rdma_sge <= u32::from(dev.rdma_read)
        && attr.max_inline_data <= dev.max_inline;
    if attr.comp_mask != 0 || !fits {
        return -libc::EINVAL;
    }
    max_sq_wr(dev, attr.max_inline_data) as c_int
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct EfadvRqDepthAttr {
    comp_mask: u64,
    max_recv_sge: u32,
}

/// Most receives of a queue pair whose receives have so many pieces; or an error number, negative.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_get_max_rq_depth(
    ctx: *mut IbvContext,
    attr: *const EfadvRqDepthAttr,
    inlen: u32,
) -> c_int {
    if !covers(inlen, offset_of!(EfadvRqDepthAttr, max_recv_sge) + size_of::<u32>()) {
        return -libc::EINVAL;
    }
    // SAFETY: by this function's contract.
    let Ok(attr) = (unsafe { copy_in(attr, inlen) }) else { return -libc::EINVAL };
    if attr.comp_mask != 0 || attr.max_recv_sge > u32::from(RQ_SGE) {
        return -libc::EINVAL;
    }
    // SAFETY: by this function's contract.
    let dev = &unsafe { Context::of(ctx) }.attr;
    (max_rq_wr(dev) / attr.max_recv_sge.max(1)) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn efadv_qp_from_ibv_qp_ex(qp: *mut c_void) -> *mut EfadvQp {
    qp.cast::<u8>().wrapping_add(offset_of!(QpObj, efadv)).cast()
}

#[unsafe(no_mangle)]
extern "C" fn efadv_create_comp_cntr(
    _ctx: *mut IbvContext,
    _attr: *mut c_void,
    _efa: *mut c_void,
    _inlen: u32,
) -> *mut c_void {
    ret_ptr(Err(libc::EOPNOTSUPP))
}
