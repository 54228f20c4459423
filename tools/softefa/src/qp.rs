//! Queue pairs: creation, state transitions, query, destruction. Posting is in `post` and `wr_batch`.

use crate::abi::{IbvContext, IbvPd, IbvQp, IbvQpAttr, IbvQpCap, IbvQpEx, IbvQpInitAttr, IbvQpInitAttrEx};
use crate::context::Context;
use crate::cq_obj::CqObj;
use crate::errno::{Errno, report, ret_int, ret_ptr};
use crate::pd::PdObj;
use crate::qp_obj::{ERR, INIT, Kind, QpObj, RESET, RTR, RTS, SQD};
use crate::query::{RQ_SGE, max_rq_wr, max_sq_wr};
use crate::send_wr::WrBatch;
use crate::split_lock::SplitLock;
use crate::state::{QpAttrs, QpState};
use crate::wr_batch;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use uct::efa::dev::{Dev, DevAttr, DevQp, QpInit, QpKind};

pub const TYPE_UD: c_int = 4;
pub const TYPE_DRIVER: c_int = 255;

const INIT_PD: u32 = 1;
const INIT_SEND_OPS: u32 = 1 << 6;

const OP_WRITE: u64 = 1;
const OP_WRITE_IMM: u64 = 2;
const OP_SEND: u64 = 4;
const OP_SEND_IMM: u64 = 8;
const OP_READ: u64 = 16;

const ATTR_STATE: c_uint = 1;
const ATTR_CUR_STATE: c_uint = 2;
/// Event when the queue is drained: permitted, never raised.
const ATTR_SQD_EVENT: c_uint = 1 << 2;
const ATTR_PKEY: c_uint = 1 << 4;
const ATTR_PORT: c_uint = 1 << 5;
const ATTR_QKEY: c_uint = 1 << 6;
const ATTR_RNR: c_uint = 1 << 11;
const ATTR_SQ_PSN: c_uint = 1 << 16;

const RNR_FOREVER: u8 = 7;

fn check_cap(cap: &IbvQpCap, dev: &DevAttr) -> Result<(), Errno> {
    let receives = u64::from(cap.max_recv_wr) * u64::from(cap.max_recv_sge.max(1));
    let ok = cap.max_send_wr <= max_sq_wr(dev, cap.max_inline_data)
        && receives <= u64::from(max_rq_wr(dev))
        && cap.max_send_sge <= dev.max_send_sge
        && cap.max_recv_sge <= u32::from(RQ_SGE)
        && cap.max_inline_data <= dev.max_inline;
    if ok { Ok(()) } else { Err(libc::EINVAL) }
}

fn check_ops(ops: u64, kind: Kind, dev: &DevAttr) -> Result<(), Errno> {
    let mut can = OP_SEND | OP_SEND_IMM;
    if kind != Kind::Datagram {
        can |= if dev.rdma_read { OP_READ } else { 0 };
        can |= if dev.rdma_write { OP_WRITE | OP_WRITE_IMM } else { 0 };
    }
    if ops & !can == 0 { Ok(()) } else { Err(libc::EOPNOTSUPP) }
}

/// Creates a queue pair; writes back capacities. Unsafe: `pd` and the queues are ours, of one context.
pub unsafe fn create_plain(
    pd: *mut IbvPd,
    attr: &mut IbvQpInitAttr,
    kind: Kind,
) -> Result<*mut IbvQp, Errno> {
    if pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() || !attr.srq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by this function's contract.
    let pd_obj = unsafe { PdObj::of(pd) };
    let context = pd_obj.context();
    check_cap(&attr.cap, &context.attr)?;
    // SAFETY: by this function's contract.
    let send_cq = unsafe { CqObj::of(attr.send_cq) }.id;
    // SAFETY: by this function's contract.
    let recv_cq = unsafe { CqObj::of(attr.recv_cq) }.id;
    let init = QpInit {
        kind: if kind == Kind::Datagram { QpKind::Ud } else { QpKind::Srd },
        send_depth: attr.cap.max_send_wr.max(1),
        recv_depth: attr.cap.max_recv_wr.max(1),
        qkey: 0,
        rnr_retry: RNR_FOREVER,
        unsolicited_write_recv: kind == Kind::Srd { unsolicited: true },
    };
    let state = &mut *context.lock();
    let (Some(s), Some(r)) = (state.cqs.get(send_cq), state.cqs.get(recv_cq)) else {
        return Err(libc::EINVAL);
    };
    let qp = state.dev.create_qp(&pd_obj.pd, &s.cq, &r.cq, &init).map_err(|e| report(&e))?;
    let qpn = qp.qpn();
    let cap = &mut attr.cap;
    cap.max_send_wr = qp.send_depth();
    cap.max_recv_wr = qp.recv_depth();
    let qp_state = QpState {
        qp,
        pd: pd_obj.pd,
        datagram: kind == Kind::Datagram,
        unsolicited: init.unsolicited_write_recv,
        send_cq,
        recv_cq,
        cap: *cap,
        attrs: QpAttrs { rnr_retry: init.rnr_retry, ..QpAttrs::default() },
    };
    let id = state.insert_qp(qp_state)?;
    for cq in [send_cq, recv_cq] {
        if let Some(cq_state) = state.cqs.get_mut(cq) {
            cq_state.users += 1;
        }
    }
    pd_obj.add_user();
    let base = IbvQp {
        context: pd_obj.abi.context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: std::ptr::null_mut::<c_void>(),
        number: id.raw(),
        qp_num: qpn.into(),
        state: RESET,
        qp_type: attr.qp_type,
        mutex: [0; 5],
        cond: [0; 6],
        events_completed: 0,
    };
    let obj = QpObj {
        ex: UnsafeCell::new(wr_batch::table(base)),
        efadv: wr_batch::efadv_table(),
        id,
        kind,
        cap: attr.cap,
        sig_all: attr.sq_sig_all != 0,
        state: AtomicU8::new(RESET as u8),
        batch: SplitLock::new(WrBatch::default()),
    };
    Ok(Box::into_raw(Box::new(obj)).cast())
}

/// Creates a queue pair from extended attributes. Unsafe: as [`create_plain`].
pub unsafe fn create_ex(
    ctx: *mut IbvContext,
    attr: &mut IbvQpInitAttrEx,
    kind: Kind,
) -> Result<*mut IbvQp, Errno> {
    // SAFETY: by this function's contract.
    let context = unsafe { Context::of(ctx) };
    if attr.comp_mask & INIT_PD == 0 {
        return Err(libc::EINVAL);
    }
    if attr.comp_mask & !(INIT_PD | INIT_SEND_OPS) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & INIT_SEND_OPS != 0 {
        check_ops(attr.send_ops_flags, kind, &context.attr)?;
    }
    let mut plain = IbvQpInitAttr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    // SAFETY: by this function's contract.
    let made = unsafe { create_plain(attr.pd, &mut plain, kind) }?;
    attr.cap = plain.cap;
    Ok(made)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut IbvPd, attr: *mut IbvQpInitAttr) -> *mut IbvQp {
    // SAFETY: by this function's contract.
    let attr = unsafe { &mut *attr };
    if attr.qp_type != TYPE_UD {
        return ret_ptr(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: by this function's contract.
    ret_ptr(unsafe { create_plain(pd, attr, Kind::Datagram) })
}

pub unsafe extern "C" fn create_qp_ex(ctx: *mut IbvContext, attr: *mut IbvQpInitAttrEx) -> *mut IbvQp {
    // SAFETY: by this function's contract.
    let attr = unsafe { &mut *attr };
    if attr.qp_type != TYPE_UD {
        return ret_ptr(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: by this function's contract.
    ret_ptr(unsafe { create_ex(ctx, attr, Kind::Datagram) })
}

/// Attributes that a state transition requires, and those it permits; `None` if there is no such transition.
fn transition(from: c_int, to: c_int) -> Option<(c_uint, c_uint)> {
    match (from, to) {
        (RESET, RESET) => Some((0, 0)),
        (RESET, INIT) => Some((ATTR_PKEY | ATTR_PORT | ATTR_QKEY, 0)),
        (INIT, INIT) => Some((0, ATTR_PKEY | ATTR_PORT | ATTR_QKEY)),
        (INIT, RTR) => Some((0, ATTR_PKEY | ATTR_QKEY)),
        (RTR, RTS) => Some((ATTR_SQ_PSN, ATTR_CUR_STATE | ATTR_QKEY | ATTR_RNR)),
        (RTS, RTS) | (SQD, RTS) => Some((0, ATTR_CUR_STATE | ATTR_QKEY)),
        (RTS, SQD) => Some((0, ATTR_SQD_EVENT)),
        (SQD, SQD) => Some((0, ATTR_PKEY | ATTR_QKEY)),
        (INIT | RTR | RTS | SQD | ERR, ERR) => Some((0, 0)),
        _ => None,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut IbvQp, attr: *mut IbvQpAttr, mask: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { QpObj::of(qp) };
    // SAFETY: as above.
    let attr = unsafe { &*attr };
    ret_int(modify(obj, attr, mask as c_uint))
}

fn modify(obj: &QpObj, attr: &IbvQpAttr, mask: c_uint) -> Result<(), Errno> {
    let context = obj.context();
    // Programs that end move their queue pairs to the error state first.
    let mut state = context.lock_to_free().ok_or(libc::EBUSY)?;
    let now = c_int::from(obj.state.load(Ordering::Relaxed));
    let to = if mask & ATTR_STATE != 0 { attr.qp_state } else { now };
    let (required, optional) = transition(now, to).ok_or(libc::EINVAL)?;
    let given = mask & !ATTR_STATE;
    let wrong = given & required != required || given & !(required | optional) != 0;
    let wrong = wrong || (given & ATTR_CUR_STATE != 0 && attr.cur_qp_state != now);
    let wrong = wrong || (given & ATTR_PORT != 0 && attr.port_num != 1);
    let wrong = wrong || (given & ATTR_PKEY != 0 && attr.pkey_index != 0);
    let wrong = wrong || (given & ATTR_RNR != 0 && attr.rnr_retry > RNR_FOREVER);
    if wrong {
        return Err(libc::EINVAL);
    }
    if given & ATTR_RNR != 0 && !context.attr.rnr_retry {
        return Err(libc::EOPNOTSUPP);
    }
    let qp_state = state.qps.get_mut(obj.id).ok_or(libc::EINVAL)?;
    if given & ATTR_QKEY != 0 {
        qp_state.qp.set_qkey(attr.qkey);
        qp_state.attrs.qkey = attr.qkey;
    }
    if given & ATTR_RNR != 0 {
        qp_state.qp.set_rnr_retry(attr.rnr_retry);
        qp_state.attrs.rnr_retry = attr.rnr_retry;
    }
    if given & ATTR_SQ_PSN != 0 {
        qp_state.attrs.sq_psn = attr.sq_psn;
    }
    if to == ERR {
        qp_state.qp.fail();
    }
    obj.set_state(to);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    _mask: c_int,
    init: *mut IbvQpInitAttr,
) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { QpObj::of(qp) };
    let state = obj.state.load(Ordering::Relaxed).into();
    let attrs = obj.context().lock().qps.get(obj.id).map(|qp_state| qp_state.attrs).unwrap_or_default();
    let value = IbvQpAttr {
        qp_state: state,
        cur_qp_state: state,
        qkey: attrs.qkey,
        sq_psn: attrs.sq_psn,
        cap: obj.cap,
        port_num: 1,
        rnr_retry: attrs.rnr_retry,
        ..Default::default()
    };
    // SAFETY: by this function's contract.
    unsafe { attr.write(value) };
    // SAFETY: the C part of a live queue pair; nobody writes these fields.
    let base = unsafe { &(*obj.ex.get()).base };
    let value = IbvQpInitAttr {
        qp_context: base.qp_context,
        send_cq: base.send_cq,
        recv_cq: base.recv_cq,
        srq: base.srq,
        cap: obj.cap,
        qp_type: base.qp_type,
        sq_sig_all: obj.sig_all.into(),
    };
    // SAFETY: by this function's contract.
    unsafe { init.write(value) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut IbvQp) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { QpObj::of(qp) };
    {
        let Some(mut state) = obj.context().lock_to_free() else { return 0 };
        let Some(qp_state) = state.remove_qp(obj.id) else { return ret_int(Err(libc::EINVAL)) };
        for cq in [qp_state.send_cq, qp_state.recv_cq] {
            if let Some(cq) = state.cqs.get_mut(cq) {
                cq.users -= 1;
                cq.discard_qp(qp_state.qp.qpn());
            }
        }
        // Dropped under the lock: device objects share unsynchronised counts.
        drop(qp_state);
    }
    // SAFETY: the field was written when the object was made.
    let pd = unsafe { (*obj.ex.get()).base.pd };
    // SAFETY: a domain outlives its queue pairs.
    unsafe { PdObj::of(pd) }.remove_user();
    // SAFETY: made by Box::into_raw in `create_plain`, given back once.
    drop(unsafe { Box::from_raw(qp.cast::<QpObj>()) });
    0
}

/// Every queue pair has the extended functions; `qp` may be null.
#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut IbvQp) -> *mut IbvQpEx {
    qp.cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_of_states_and_what_they_require() {
        assert!(transition(RESET, INIT).is_some());
        assert!(transition(RESET, RTS).is_none());
        assert!(transition(RTS, INIT).is_none());
        assert!(transition(RESET, ERR).is_none());
        // The kernel has these; see "What does not" in docs/softefa.md.
        assert!([INIT, RTR, RTS, SQD, ERR].iter().all(|from| transition(*from, RESET).is_none()));
        assert!(transition(ERR, ERR).is_some() && transition(ERR, RTS).is_none());
        assert_eq!(transition(RTS, SQD), Some((0, 1 << 2)));
        assert_eq!(transition(RTR, RTS).map(|s| s.0), Some(ATTR_SQ_PSN));
    }
}
