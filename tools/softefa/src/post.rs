//! The plain posts of sends and receives. Checks what the driver checks; the device checks keys and peers.

use crate::abi::{IbvQp, IbvRecvWr, IbvSendWr, IbvSge};
use crate::errno::Errno;
use crate::qp_obj::QpObj;
use crate::send_wr::{INLINE, NO_SGE, SIGNALED, SendWr, WrOpcode, post_errno};
use crate::state::QpState;
use std::ffi::c_int;
use uct::efa::dev::soft::MAX_RECV_SGE;
use uct::efa::dev::{DevQp, Sge};

const WR_SEND: c_int = 2;
const WR_SEND_IMM: c_int = 3;

/// The SGEs of a list. Unsafe: `list` has `n` entries, or `n` is not positive.
#[inline]
unsafe fn sge_list<'a>(list: *const IbvSge, n: c_int) -> Result<&'a [IbvSge], Errno> {
    match usize::try_from(n) {
        Err(_) => Err(libc::EINVAL),
        Ok(0) => Ok(&[]),
        Ok(_) if list.is_null() => Err(libc::EINVAL),
        // SAFETY: by this function's contract.
        Ok(n) => Ok(unsafe { std::slice::from_raw_parts(list, n) }),
    }
}

/// Converts a plain send work request. Unsafe: `wr`'s pointers are valid.
// HOT
#[inline]
unsafe fn request(obj: &QpObj, wr: &IbvSendWr) -> Result<SendWr, Errno> {
    let flags = wr.send_flags;
    if flags & !(SIGNALED | INLINE) != 0 || (flags & SIGNALED == 0 && !obj.signals_all()) {
        return Err(libc::EINVAL);
    }
    let (opcode, imm) = match wr.opcode {
        WR_SEND => (WrOpcode::Send, None),
        WR_SEND_IMM => (WrOpcode::Send, Some(wr.imm_data)),
        // RDMA too: plain posts have no room for its destination, the extended functions do.
        _ => return Err(libc::EINVAL),
    };
    let mut r = SendWr::new(opcode, wr.wr_id, imm);
    // SAFETY: by this function's contract.
    unsafe { r.set_dest(wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey) }?;
    // SAFETY: by this function's contract.
    let list = unsafe { sge_list(wr.sg_list, wr.num_sge) }?;
    for sge in list {
        if flags & INLINE != 0 {
            // SAFETY: the bytes of an inline send are readable (contract).
            unsafe { r.copy_inline(sge.addr as *const u8, sge.length as usize) }?;
        } else {
            r.add_sge(sge)?;
        }
    }
    if flags & INLINE != 0 {
        r.inline.get_or_insert(0);
    }
    Ok(r)
}

/// Posts a list of sends.
// HOT
pub unsafe extern "C" fn post_send(
    qp: *mut IbvQp,
    mut wr: *mut IbvSendWr,
    bad: *mut *mut IbvSendWr,
) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { QpObj::of(qp) };
    let state = &mut *obj.context().lock();
    let mut failed = 0;
    // SAFETY: by this function's contract the list is valid.
    while let Some(one) = unsafe { wr.as_ref() } {
        let qp_state = state.qps.get(obj.id).filter(|_| obj.may_send()).ok_or(libc::EINVAL);
        // SAFETY: as above.
        let request = qp_state.and_then(|qp_state| Ok((qp_state, unsafe { request(obj, one) }?)));
        let done = request.and_then(|(qp_state, request)| {
            request.check(qp_state)?;
            request.post(qp_state)
        });
        if let Err(e) = done {
            // SAFETY: by this function's contract.
            unsafe { bad.write(wr) };
            failed = e;
            break;
        }
        wr = one.next;
    }
    obj.context().wake_if_deferred(state, obj.id);
    failed
}

/// Posts one receive. Unsafe: `wr`'s list is valid.
// HOT
#[inline]
unsafe fn receive(qp_state: &QpState, wr: &IbvRecvWr) -> Result<(), Errno> {
    // SAFETY: by this function's contract.
    let given = unsafe { sge_list(wr.sg_list, wr.num_sge) }?;
    if given.len() > qp_state.cap.max_recv_sge as usize {
        return Err(libc::EINVAL);
    }
    let mut list = [NO_SGE; MAX_RECV_SGE];
    let list = list.get_mut(..given.len()).ok_or(libc::EINVAL)?;
    for (to, sge) in list.iter_mut().zip(given) {
        *to = Sge { addr: sge.addr as *mut u8, len: sge.length, lkey: sge.lkey };
    }
    let done = match list {
        [one] => qp_state.qp.recv(wr.wr_id, *one),
        list => qp_state.qp.recv_sge_list(wr.wr_id, list),
    };
    done.map_err(post_errno)
}

/// Posts a list of receives.
// HOT
pub unsafe extern "C" fn post_recv(
    qp: *mut IbvQp,
    mut wr: *mut IbvRecvWr,
    bad: *mut *mut IbvRecvWr,
) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { QpObj::of(qp) };
    let state = obj.context().lock();
    // SAFETY: by this function's contract the list is valid.
    while let Some(one) = unsafe { wr.as_ref() } {
        let qp_state = state.qps.get(obj.id).filter(|_| obj.may_recv()).ok_or(libc::EINVAL);
        // SAFETY: as above.
        let done = qp_state.and_then(|qp_state| unsafe { receive(qp_state, one) });
        if let Err(e) = done {
            // SAFETY: by this function's contract.
            unsafe { bad.write(wr) };
            return e;
        }
        wr = one.next;
    }
    0
}
