//! EFA extensions of rdma-core 44: device attributes, SRD queue pairs, completion queues with GIDs.

use crate::abi::{
    EfadvCq, EfadvCqInitAttr, EfadvDeviceAttr, EfadvQpInitAttr, IbvContext, IbvCqEx, IbvCqInitAttrEx, IbvPd,
    IbvQp, IbvQpInitAttr, IbvQpInitAttrEx,
};
use crate::context::Context;
use crate::cq;
use crate::cq_obj::CqObj;
use crate::errno::{ret_int, ret_ptr};
use crate::qp;
use crate::qp_obj::Kind;
use crate::query::{RQ_SGE, max_rq_wr};
use crate::sized::{copy_in, copy_out, covers};
use std::mem::offset_of;

const SRD: u32 = 0;
/// Writes with immediate consume no receive.
const UNSOLICITED: u16 = 1;

/// Sends may carry processing hints, which are ignored.
const WITH_HINTS: u64 = 1;

const CAP_RDMA_READ: u32 = 1;
const CAP_RNR_RETRY: u32 = 2;
const CAP_CQ_WITH_SGID: u32 = 4;
const CAP_RDMA_WRITE: u32 = 8;
const CAP_UNSOLICITED: u32 = 16;

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_device(ctx: *mut IbvContext, attr: *mut EfadvDeviceAttr, inlen: u32) -> i32 {
    // SAFETY: by this function's contract.
    let dev = &unsafe { Context::of(ctx) }.attr;
    if !covers(inlen, offset_of!(EfadvDeviceAttr, inline_buf_size_ex)) {
        return ret_int(Err(libc::EINVAL));
    }
    let cap = |has: bool, bit: u32| if has { bit } else { 0 };
    let value = EfadvDeviceAttr {
        comp_mask: 0,
        max_sq_wr: dev.max_send_depth,
        max_rq_wr: max_rq_wr(dev),
        max_sq_sge: dev.max_send_sge as u16,
        max_rq_sge: RQ_SGE,
        inline_buf_size: dev.max_inline as u16,
        inline_buf_size_ex: dev.max_inline as u16,
        device_caps: CAP_CQ_WITH_SGID
            | cap(dev.rdma_read, CAP_RDMA_READ)
            | cap(dev.rnr_retry, CAP_RNR_RETRY)
            | cap(dev.rdma_write, CAP_RDMA_WRITE)
            | cap(dev.unsolicited_write_recv, CAP_UNSOLICITED),
        max_rdma_size: dev.max_rdma,
    };
    // SAFETY: by this function's contract.
    unsafe { copy_out(attr, inlen, value) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_qp_ex(
    ctx: *mut IbvContext,
    attr: *mut IbvQpInitAttrEx,
    efa: *const EfadvQpInitAttr,
    inlen: u32,
) -> *mut IbvQp {
    // SAFETY: by this function's contract.
    let attr = unsafe { &mut *attr };
    // SAFETY: as above.
    let efa = match unsafe { copy_in(efa, inlen) } {
        Ok(efa) => efa,
        Err(e) => return ret_ptr(Err(e)),
    };
    if attr.qp_type != qp::TYPE_DRIVER || efa.comp_mask != 0 || efa.reserved != 0 {
        return ret_ptr(Err(libc::EINVAL));
    }
    // SAFETY: by this function's contract.
    let dev = &unsafe { Context::of(ctx) }.attr;
    let known = if dev.unsolicited_write_recv { UNSOLICITED } else { 0 };
    if efa.driver_qp_type != SRD || efa.flags & !known != 0 || efa.wr_flags & !WITH_HINTS != 0 {
        return ret_ptr(Err(libc::EOPNOTSUPP));
    }
    let kind = Kind::Srd { unsolicited: efa.flags & UNSOLICITED != 0 };
    // SAFETY: by this function's contract.
    ret_ptr(unsafe { qp::create_ex(ctx, attr, kind) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_driver_qp(
    pd: *mut IbvPd,
    attr: *mut IbvQpInitAttr,
    driver_qp_type: u32,
) -> *mut IbvQp {
    // SAFETY: by this function's contract.
    let attr = unsafe { &mut *attr };
    if attr.qp_type != qp::TYPE_DRIVER {
        return ret_ptr(Err(libc::EINVAL));
    }
    if driver_qp_type != SRD {
        return ret_ptr(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: by this function's contract.
    ret_ptr(unsafe { qp::create_plain(pd, attr, Kind::Srd { unsolicited: false }) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_cq(
    ctx: *mut IbvContext,
    attr: *mut IbvCqInitAttrEx,
    efa: *const EfadvCqInitAttr,
    inlen: u32,
) -> *mut IbvCqEx {
    const WITH_SGID: u64 = 1;
    const WITH_UNSOLICITED: u64 = 2;
    // SAFETY: by this function's contract.
    let efa = match unsafe { copy_in(efa, inlen) } {
        Ok(efa) => efa,
        Err(e) => return ret_ptr(Err(e)),
    };
    if efa.comp_mask != 0 {
        return ret_ptr(Err(libc::EINVAL));
    }
    // SAFETY: by this function's contract.
    let has_unsolicited = unsafe { Context::of(ctx) }.attr.unsolicited_write_recv;
    let known = WITH_SGID | if has_unsolicited { WITH_UNSOLICITED } else { 0 };
    if efa.wc_flags & !known != 0 {
        return ret_ptr(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: by this function's contract.
    unsafe { cq::create_ex(ctx, attr) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(cq: *mut IbvCqEx) -> *mut EfadvCq {
    cq.cast::<u8>().wrapping_add(offset_of!(CqObj, efadv)).cast()
}
