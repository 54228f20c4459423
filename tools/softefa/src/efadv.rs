//! The EFA extensions that rdma-core 44 has: device attributes, SRD queue pairs, completion queues with GIDs.
//! The caller says how long its structures are; an older or a newer one is served as far as it goes.

use crate::abi::{
    EfadvCq, EfadvCqInitAttr, EfadvDeviceAttr, EfadvQpInitAttr, IbvContext, IbvCqEx, IbvCqInitAttrEx, IbvPd,
    IbvQp, IbvQpInitAttr, IbvQpInitAttrEx,
};
use crate::cq::{self, CqObj};
use crate::qp::{self, Kind};
use crate::query::{RQ_SGE, max_rq_wr};
use crate::state::{Context, Errno, number, pointer};
use std::mem::offset_of;

/// `driver_qp_type` of scalable reliable datagrams.
const SRD: u32 = 0;
/// Queue pair flag: writes with immediate use up no receive.
const UNSOLICITED: u16 = 1;

/// Sends may carry hints how to treat them, which change nothing here.
const WITH_HINTS: u64 = 1;

const CAP_RDMA_READ: u32 = 1;
const CAP_RNR_RETRY: u32 = 2;
const CAP_CQ_WITH_SGID: u32 = 4;
const CAP_RDMA_WRITE: u32 = 8;
const CAP_UNSOLICITED: u32 = 16;

/// Whether a structure of `inlen` bytes has at least its first `len`.
pub fn covers(inlen: u32, len: usize) -> bool {
    inlen as usize >= len
}

/// Fills a caller's structure of `inlen` bytes with as much of `value` as it holds, and zeros.
///
/// # Safety
/// `to` is writable for `inlen` bytes.
pub unsafe fn copy_out<T: Copy>(to: *mut T, inlen: u32, value: T) {
    let len = inlen as usize;
    // SAFETY: writable for `inlen` bytes by contract.
    unsafe { std::ptr::write_bytes(to.cast::<u8>(), 0, len) };
    let n = len.min(size_of::<T>());
    // SAFETY: as above, and `n` bytes are inside `value`.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast::<u8>(), n) };
}

/// Reads a caller's structure of `inlen` bytes. What is beyond ours must be zero: it would ask for something unknown.
///
/// # Safety
/// `from` is readable for `inlen` bytes; `T` is a structure of integers.
unsafe fn copy_in<T: Copy + Default>(from: *const T, inlen: u32) -> Result<T, Errno> {
    let len = inlen as usize;
    let mut value = T::default();
    let n = len.min(size_of::<T>());
    // SAFETY: readable by contract, and `n` bytes fit `value`; any bytes are valid integers.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), n) };
    // SAFETY: the rest is readable by contract.
    let tail = unsafe { std::slice::from_raw_parts(from.cast::<u8>().wrapping_add(n), len - n) };
    if tail.iter().any(|b| *b != 0) { Err(libc::EINVAL) } else { Ok(value) }
}

/// # Safety
/// `ctx` is an open context, `attr` writable for `inlen` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_device(ctx: *mut IbvContext, attr: *mut EfadvDeviceAttr, inlen: u32) -> i32 {
    // SAFETY: by this function's contract.
    let dev = &unsafe { Context::of(ctx) }.attr;
    if !covers(inlen, offset_of!(EfadvDeviceAttr, inline_buf_size_ex)) {
        return number(Err(libc::EINVAL));
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

/// # Safety
/// `ctx` is an open context; the structures are valid, `efa` for `inlen` bytes.
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
        Err(e) => return pointer(Err(e)),
    };
    let known = efa.flags & !UNSOLICITED == 0 && efa.wr_flags & !WITH_HINTS == 0;
    if efa.comp_mask != 0 || !known || efa.reserved != 0 {
        return pointer(Err(libc::EINVAL));
    }
    let kind = match (attr.qp_type, efa.driver_qp_type) {
        (qp::TYPE_DRIVER, SRD) => Kind::Srd { unsolicited: efa.flags & UNSOLICITED != 0 },
        (qp::TYPE_UD, _) if efa.flags == 0 => Kind::Datagram,
        _ => return pointer(Err(libc::EOPNOTSUPP)),
    };
    // SAFETY: by this function's contract.
    pointer(unsafe { qp::create_ex(ctx, attr, kind) })
}

/// # Safety
/// `pd` and the queues in `attr` are valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_create_driver_qp(
    pd: *mut IbvPd,
    attr: *mut IbvQpInitAttr,
    driver_qp_type: u32,
) -> *mut IbvQp {
    // SAFETY: by this function's contract.
    let attr = unsafe { &mut *attr };
    if driver_qp_type != SRD || attr.qp_type != qp::TYPE_DRIVER {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: by this function's contract.
    pointer(unsafe { qp::create_plain(pd, attr, Kind::Srd { unsolicited: false }) })
}

/// # Safety
/// `ctx` is an open context; the structures are valid, `efa` for `inlen` bytes.
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
        Err(e) => return pointer(Err(e)),
    };
    if efa.comp_mask != 0 || efa.wc_flags & !(WITH_SGID | WITH_UNSOLICITED) != 0 {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: by this function's contract.
    unsafe { cq::create_ex(ctx, attr) }
}

/// # Safety
/// `cq` is one of ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(cq: *mut IbvCqEx) -> *mut EfadvCq {
    cq.cast::<u8>().wrapping_add(offset_of!(CqObj, efadv)).cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_out_fills_what_the_caller_has() {
        let mut room = [0xffu8; 24];
        let value = EfadvCqInitAttr { comp_mask: 1, wc_flags: 2 };
        // SAFETY: 24 bytes of room.
        unsafe { copy_out(room.as_mut_ptr().cast(), 24, value) };
        assert_eq!((room[0], room[8], &room[16..]), (1, 2, &[0; 8][..]));
        let mut room = [0xffu8; 12];
        // SAFETY: 12 bytes of room.
        unsafe { copy_out(room.as_mut_ptr().cast(), 10, value) };
        assert_eq!((room[8], room[9], room[10]), (2, 0, 0xff));
    }

    #[test]
    fn copy_in_rejects_a_nonzero_tail() {
        let mut given = [0u64; 4];
        given[1] = 7;
        // SAFETY: 32 bytes are there.
        let read = unsafe { copy_in::<EfadvCqInitAttr>(given.as_ptr().cast(), 32) };
        assert_eq!(read.map(|a| a.wc_flags), Ok(7));
        given[3] = 1;
        // SAFETY: as above.
        let read = unsafe { copy_in::<EfadvCqInitAttr>(given.as_ptr().cast(), 32) };
        assert_eq!(read.map(|a| a.wc_flags), Err(libc::EINVAL));
        // SAFETY: as above.
        let read = unsafe { copy_in::<EfadvCqInitAttr>(given.as_ptr().cast(), 8) };
        assert_eq!(read.map(|a| a.wc_flags), Ok(0), "a shorter structure has zeros where it ends");
    }
}
