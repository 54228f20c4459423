//! Batches of work requests (`ibv_wr_*`): posted together or not at all; errors are reported at completion.

use crate::abi::{EfadvQp, IbvAh, IbvDataBuf, IbvQp, IbvQpEx, IbvSge};
use crate::errno::Errno;
use crate::qp_obj::QpObj;
use crate::send_wr::{INLINE, SIGNALED, SendWr, WrBatch, WrOpcode};
use std::ffi::{c_int, c_void};
use uct::efa::dev::DevQp;

pub fn table(base: IbvQp) -> IbvQpEx {
    IbvQpEx {
        base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw,
        wr_local_inv: wr_unsupported,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv: wr_unsupported,
        wr_send_tso,
        wr_set_ud_addr,
        wr_set_xrc_srqn: wr_unsupported,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
        wr_atomic_write,
        wr_flush,
    }
}

pub fn efadv_table() -> EfadvQp {
    EfadvQp { comp_mask: 0, wr_set_processing_hints }
}

/// The batch of a queue pair. Unsafe: the caller has locked it, and drops the reference before the next call.
#[inline]
unsafe fn batch<'a>(qp: *mut IbvQpEx) -> &'a mut WrBatch {
    // SAFETY: by this function's contract.
    let obj = unsafe { QpObj::of(qp) };
    // SAFETY: as above.
    unsafe { obj.batch.value() }
}

/// Begins a work request. Unsafe: as for [`batch`].
// HOT
unsafe fn begin(qp: *mut IbvQpEx, opcode: WrOpcode, imm: Option<u32>, (raddr, rkey): (u64, u32)) {
    // SAFETY: by this function's contract.
    let obj = unsafe { QpObj::of(qp) };
    // SAFETY: by this function's contract.
    let s = unsafe { batch(qp) };
    let ex = obj.ex.get();
    // SAFETY: the program writes this field before the call, in the same thread.
    let wr_id = unsafe { (*ex).wr_id };
    // SAFETY: as above.
    let flags = unsafe { (*ex).wr_flags };
    let signaled = flags & SIGNALED != 0 || obj.signals_all();
    if flags & !(SIGNALED | INLINE) != 0 || !signaled || !obj.may_send() {
        s.failed.get_or_insert(libc::EINVAL);
    }
    s.list.push(SendWr { raddr, rkey, ..SendWr::new(opcode, wr_id, imm) });
}

/// Edits the work request begun last. Unsafe: as [`batch`].
#[inline]
unsafe fn edit_last(qp: *mut IbvQpEx, f: impl FnOnce(&mut SendWr) -> Result<(), Errno>) {
    // SAFETY: by this function's contract.
    let s = unsafe { batch(qp) };
    let done = s.list.last_mut().ok_or(libc::EINVAL).and_then(f);
    if let Err(e) = done {
        s.failed.get_or_insert(e);
    }
}

/// Notes an unsupported request. Unsafe: as [`batch`].
unsafe fn set_unsupported(qp: *mut IbvQpEx) {
    // SAFETY: by this function's contract.
    unsafe { batch(qp) }.failed.get_or_insert(libc::EOPNOTSUPP);
}

unsafe extern "C" fn wr_start(qp: *mut IbvQpEx) {
    // SAFETY: the program passes a queue pair of ours.
    unsafe { QpObj::of(qp) }.batch.lock();
    // SAFETY: held since the line above.
    let s = unsafe { batch(qp) };
    s.list.clear();
    s.failed = None;
}

// HOT
unsafe extern "C" fn wr_complete(qp: *mut IbvQpEx) -> c_int {
    // SAFETY: the program passes a queue pair of ours whose session it has started.
    let obj = unsafe { QpObj::of(qp) };
    // SAFETY: as above.
    let done = post_all(obj, unsafe { batch(qp) });
    obj.batch.unlock();
    match done {
        Ok(()) => 0,
        Err(e) => e,
    }
}

// HOT
fn post_all(obj: &QpObj, s: &WrBatch) -> Result<(), Errno> {
    if let Some(e) = s.failed {
        return Err(e);
    }
    let context = obj.context();
    let state = &mut *context.lock();
    let qp_state = state.qps.get(obj.id).ok_or(libc::EINVAL)?;
    s.list.iter().try_for_each(|request| request.check(qp_state))?;
    if ((qp_state.qp.send_depth() - qp_state.qp.in_flight()) as usize) < s.list.len() {
        return Err(libc::ENOMEM);
    }
    let done = s.list.iter().try_for_each(|request| request.post(qp_state));
    context.wake_if_deferred(state, obj.id);
    done
}

unsafe extern "C" fn wr_abort(qp: *mut IbvQpEx) {
    // SAFETY: the program passes a queue pair of ours whose session it has started.
    unsafe { QpObj::of(qp) }.batch.unlock();
}

unsafe extern "C" fn wr_send(qp: *mut IbvQpEx) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { begin(qp, WrOpcode::Send, None, (0, 0)) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut IbvQpEx, imm: u32) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { begin(qp, WrOpcode::Send, Some(imm), (0, 0)) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut IbvQpEx, rkey: u32, raddr: u64) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { begin(qp, WrOpcode::Read, None, (raddr, rkey)) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut IbvQpEx, rkey: u32, raddr: u64) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { begin(qp, WrOpcode::Write, None, (raddr, rkey)) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut IbvQpEx, rkey: u32, raddr: u64, imm: u32) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { begin(qp, WrOpcode::Write, Some(imm), (raddr, rkey)) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut IbvQpEx, ah: *mut IbvAh, qpn: u32, qkey: u32) {
    // SAFETY: called inside a session, with an address handle of ours.
    let set = |r: &mut SendWr| unsafe { r.set_dest(ah, qpn, qkey) };
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { edit_last(qp, set) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut IbvQpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { edit_last(qp, |r| r.add_sge(&IbvSge { addr, length, lkey })) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut IbvQpEx, n: usize, list: *const IbvSge) {
    let list = match n {
        0 => &[][..],
        // SAFETY: the program passes a list of `n` pieces.
        n => unsafe { std::slice::from_raw_parts(list, n) },
    };
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { edit_last(qp, |r| list.iter().try_for_each(|sge| r.add_sge(sge))) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut IbvQpEx, addr: *mut c_void, len: usize) {
    // SAFETY: the program passes `len` readable bytes.
    let set = |r: &mut SendWr| unsafe { r.copy_inline(addr.cast(), len) };
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { edit_last(qp, set) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut IbvQpEx, n: usize, list: *const IbvDataBuf) {
    let list = match n {
        0 => &[][..],
        // SAFETY: the program passes a list of `n` buffers.
        n => unsafe { std::slice::from_raw_parts(list, n) },
    };
    let set = |r: &mut SendWr| {
        r.inline.get_or_insert(0);
        // SAFETY: the program passes readable buffers.
        list.iter().try_for_each(|b| unsafe { r.copy_inline(b.addr.cast(), b.length) })
    };
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { edit_last(qp, set) };
}

unsafe extern "C" fn wr_unsupported(qp: *mut IbvQpEx, _x: u32) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { set_unsupported(qp) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut IbvQpEx, _k: u32, _a: u64, _c: u64, _s: u64) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { set_unsupported(qp) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut IbvQpEx, _k: u32, _a: u64, _v: u64) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { set_unsupported(qp) };
}

unsafe extern "C" fn wr_bind_mw(qp: *mut IbvQpEx, _mw: *mut c_void, _k: u32, _b: *const c_void) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { set_unsupported(qp) };
}

unsafe extern "C" fn wr_send_tso(qp: *mut IbvQpEx, _hdr: *mut c_void, _len: u16, _mss: u16) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { set_unsupported(qp) };
}

unsafe extern "C" fn wr_atomic_write(qp: *mut IbvQpEx, _k: u32, _a: u64, _v: *const c_void) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { set_unsupported(qp) };
}

unsafe extern "C" fn wr_flush(qp: *mut IbvQpEx, _k: u32, _a: u64, _n: usize, _t: u8, _l: u8) {
    // SAFETY: called inside a session, on a queue pair of ours.
    unsafe { set_unsupported(qp) };
}

unsafe extern "C" fn wr_set_processing_hints(_qp: *mut EfadvQp, _hints: u32) {}
