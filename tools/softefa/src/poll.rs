//! The extended poll: start, next, end, readers. The queue is locked throughout, the context per entry.

use crate::abi::{EfadvCq, IbvCq, IbvCqEx, IbvPollCqAttr};
use crate::ahn::NO_AH;
use crate::cq_obj::CqObj;
use crate::status::{Completion, next_completion};
use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

pub fn table(base: IbvCq) -> IbvCqEx {
    IbvCqEx {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp,
        read_wc_flags,
        read_slid,
        read_sl,
        read_dlid_path_bits,
        read_completion_ts: read_zero64,
        read_cvlan,
        read_flow_tag,
        read_tm,
        read_wallclock_ns: read_zero64,
    }
}

pub fn efadv_table() -> EfadvCq {
    EfadvCq { comp_mask: 0, wc_read_sgid: read_sgid, wc_is_unsolicited: is_unsolicited }
}

/// Moves to the next entry. The caller has locked the queue.
// HOT
fn advance(obj: &CqObj) -> c_int {
    let Some(done) = next_completion(&mut obj.context().lock(), obj.id) else { return libc::ENOENT };
    let ex = obj.ex.get();
    // SAFETY: the caller of the poll reads this field only after we return, in the same thread.
    unsafe { (*ex).status = done.wc.status };
    // SAFETY: as above.
    unsafe { (*ex).wr_id = done.wc.wr_id };
    // SAFETY: the queue is held (contract of this function).
    *unsafe { obj.current.value() } = done;
    0
}

// HOT
unsafe extern "C" fn start_poll(cq: *mut IbvCqEx, attr: *mut IbvPollCqAttr) -> c_int {
    // SAFETY: the caller passes null or a structure.
    if !unsafe { poll_attr_ok(attr) } {
        return libc::EINVAL;
    }
    // SAFETY: the caller passes a queue of ours.
    let obj = unsafe { CqObj::of(cq) };
    obj.current.lock();
    let found = advance(obj);
    if found != 0 {
        // No end follows a start that found nothing.
        obj.current.unlock();
    }
    found
}

// HOT
unsafe extern "C" fn next_poll(cq: *mut IbvCqEx) -> c_int {
    // SAFETY: the caller passes a queue of ours, whose poll it has started.
    advance(unsafe { CqObj::of(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut IbvCqEx) {
    // SAFETY: the caller passes a queue of ours, whose poll it has started.
    unsafe { CqObj::of(cq) }.current.unlock();
}

/// The current entry. Unsafe: the queue is locked, and the reference dropped before the poll goes on.
#[inline]
unsafe fn current<'a>(cq: *mut IbvCqEx) -> &'a Completion {
    // SAFETY: by this function's contract.
    let obj = unsafe { CqObj::of(cq) };
    // SAFETY: as above.
    unsafe { obj.current.value() }
}

macro_rules! readers {
    ($($name:ident -> $t:ty = |$done:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut IbvCqEx) -> $t {
            // SAFETY: readers are called between start and end of a poll, on a queue of ours.
            let $done = unsafe { current(cq) };
            $value
        })*
    };
}

readers! {
    read_opcode -> c_int = |d| d.wc.opcode;
    read_vendor_err -> u32 = |d| d.wc.vendor_err;
    read_byte_len -> u32 = |d| d.wc.byte_len;
    read_imm_data -> u32 = |d| d.wc.imm_data;
    read_qp_num -> u32 = |d| d.wc.qp_num;
    read_src_qp -> u32 = |d| d.wc.src_qp;
    read_wc_flags -> c_uint = |d| d.wc.wc_flags;
    read_slid -> u32 = |d| d.wc.slid.into();
    read_sl -> u8 = |d| d.wc.sl;
    read_dlid_path_bits -> u8 = |d| d.wc.dlid_path_bits;
}

unsafe extern "C" fn read_zero64(_cq: *mut IbvCqEx) -> u64 {
    0
}

unsafe extern "C" fn read_cvlan(_cq: *mut IbvCqEx) -> u16 {
    0
}

unsafe extern "C" fn read_flow_tag(_cq: *mut IbvCqEx) -> u32 {
    0
}

unsafe extern "C" fn read_tm(_cq: *mut IbvCqEx, _out: *mut c_void) {}

fn cq_of_efadv(cq: *mut EfadvCq) -> *mut IbvCqEx {
    cq.cast::<u8>().wrapping_sub(offset_of!(CqObj, efadv)).cast()
}

/// GID of a sender for which the receiver has no address handle.
unsafe extern "C" fn read_sgid(cq: *mut EfadvCq, gid: *mut [u8; 16]) -> c_int {
    // SAFETY: called between start and end of a poll, on the EFA part of a queue of ours.
    let done = unsafe { current(cq_of_efadv(cq)) };
    if done.wc.slid != NO_AH {
        return -libc::ENOENT;
    }
    // SAFETY: the caller passes room for a GID.
    unsafe { gid.write(done.sgid) };
    0
}

unsafe extern "C" fn is_unsolicited(cq: *mut EfadvCq) -> bool {
    // SAFETY: called between start and end of a poll, on the EFA part of a queue of ours.
    unsafe { current(cq_of_efadv(cq)) }.unsolicited
}

/// Rejects any attribute. Unsafe: `attr` is null or valid.
unsafe fn poll_attr_ok(attr: *mut IbvPollCqAttr) -> bool {
    // SAFETY: by this function's contract.
    unsafe { attr.as_ref() }.is_none_or(|attr| attr.comp_mask == 0)
}
