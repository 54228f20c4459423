//! Posting sends and receives the plain way, and carrying out one request, which sessions share.
//! Called through the context's table. Checks what the driver checks; the device checks keys and peers.

use crate::abi::{IbvAh, IbvQp, IbvRecvWr, IbvSendWr, IbvSge};
use crate::ah::AhObj;
use crate::qp::QpObj;
use crate::state::{Errno, QpState};
use std::ffi::{c_int, c_uint};
use uct::efa::dev::soft::{Ah, MAX_RECV_SGE};
use uct::efa::dev::{Dest, DevAttr, DevQp, PostError, Sge};

/// Ask for a completion: every request has one, and must say so.
pub const SIGNALED: c_uint = 2;
/// Take the bytes, not their address.
pub const INLINE: c_uint = 8;
/// Room for the widest inline send of any generation.
pub const INLINE_ROOM: usize = 80;
/// Pieces of a send.
const MAX_SGE: usize = 2;

const WR_WRITE: c_int = 0;
const WR_WRITE_IMM: c_int = 1;
const WR_SEND: c_int = 2;
const WR_SEND_IMM: c_int = 3;
const WR_READ: c_int = 4;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WrOpcode {
    Send,
    Read,
    Write,
}

/// One request, whoever built it.
#[derive(Clone, Copy)]
pub struct SendWr {
    pub opcode: WrOpcode,
    pub wr_id: u64,
    pub imm: Option<u32>,
    pub raddr: u64,
    pub rkey: u32,
    pub to: Option<Dest<Ah>>,
    pub sge: [Sge; MAX_SGE],
    pub num_sge: usize,
    /// Length of the bytes taken, if they were.
    pub inline: Option<usize>,
    pub bytes: [u8; INLINE_ROOM],
}

const NO_SGE: Sge = Sge { addr: std::ptr::null_mut(), len: 0, lkey: 0 };

impl SendWr {
    /// A request without data and destination.
    #[inline]
    pub fn new(opcode: WrOpcode, wr_id: u64, imm: Option<u32>) -> SendWr {
        SendWr {
            opcode,
            wr_id,
            imm,
            raddr: 0,
            rkey: 0,
            to: None,
            sge: [NO_SGE; MAX_SGE],
            num_sge: 0,
            inline: None,
            bytes: [0; INLINE_ROOM],
        }
    }

    /// Names the peer.
    ///
    /// # Safety
    /// `ah` is null or an address handle of ours.
    #[inline]
    pub unsafe fn set_dest(&mut self, ah: *mut IbvAh, qpn: u32, qkey: u32) -> Result<(), Errno> {
        // SAFETY: by this function's contract.
        let ah = unsafe { ah.cast::<AhObj>().as_ref() }.ok_or(libc::EINVAL)?.ah;
        let qpn = u16::try_from(qpn).map_err(|_| libc::EINVAL)?;
        self.to = Some(Dest { ah, qpn, qkey });
        Ok(())
    }

    /// Adds registered memory.
    #[inline]
    pub fn add_sge(&mut self, sge: &IbvSge) -> Result<(), Errno> {
        let room = self.sge.get_mut(self.num_sge).ok_or(libc::EINVAL)?;
        *room = Sge { addr: sge.addr as *mut u8, len: sge.length, lkey: sge.lkey };
        self.num_sge += 1;
        Ok(())
    }

    /// Takes bytes, behind those taken before.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline]
    pub unsafe fn copy_inline(&mut self, from: *const u8, len: usize) -> Result<(), Errno> {
        let at = self.inline.unwrap_or(0);
        let end = at.checked_add(len).ok_or(libc::EINVAL)?;
        let room = self.bytes.get_mut(at..end).ok_or(libc::EINVAL)?;
        if len > 0 {
            // SAFETY: readable by contract; `room` has `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, room.as_mut_ptr(), len) };
        }
        self.inline = Some(end);
        Ok(())
    }

    /// Whether the driver would take it: a session is posted whole or not at all. // HOT
    #[inline]
    pub fn check(&self, row: &QpState, dev: &DevAttr) -> Result<(), Errno> {
        let fits = match (self.opcode, self.inline) {
            (WrOpcode::Send, Some(len)) => len <= dev.max_inline as usize,
            (WrOpcode::Send, None) => self.num_sge <= dev.max_send_sge as usize,
            (WrOpcode::Read | WrOpcode::Write, inline) => {
                !row.datagram && inline.is_none() && self.num_sge <= 1
            }
        };
        if fits && self.to.is_some() { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// Gives it to the device. RDMA has been [checked](Self::check). // HOT
    #[inline]
    pub fn post(&self, row: &QpState) -> Result<(), Errno> {
        let to = self.to.as_ref().ok_or(libc::EINVAL)?;
        let qp = &row.qp;
        let done = match (self.opcode, self.inline) {
            (WrOpcode::Send, Some(len)) => qp.send_inline(to, self.wr_id, &self.bytes[..len], self.imm),
            (WrOpcode::Send, None) => qp.send(to, self.wr_id, &self.sge[..self.num_sge], self.imm),
            (WrOpcode::Read, _) => qp.read(to, self.wr_id, self.sge[0], self.raddr, self.rkey),
            (WrOpcode::Write, _) => qp.write(to, self.wr_id, self.sge[0], self.raddr, self.rkey, self.imm),
        };
        done.map_err(post_errno)
    }
}

fn post_errno(e: PostError) -> Errno {
    match e {
        PostError::Full => libc::ENOMEM,
        PostError::Invalid(_) => libc::EINVAL,
    }
}

/// The pieces of a list.
///
/// # Safety
/// `list` has `n` entries, or `n` is not positive.
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

/// What a plain send work request asks for. // HOT
///
/// # Safety
/// `wr`'s pointers are valid as verbs require.
#[inline]
unsafe fn request(obj: &QpObj, wr: &IbvSendWr) -> Result<SendWr, Errno> {
    let flags = wr.send_flags;
    if flags & !(SIGNALED | INLINE) != 0 || (flags & SIGNALED == 0 && !obj.signals_all()) {
        return Err(libc::EINVAL);
    }
    let (opcode, imm) = match wr.opcode {
        WR_SEND => (WrOpcode::Send, None),
        WR_SEND_IMM => (WrOpcode::Send, Some(wr.imm_data)),
        // Plain posts of RDMA have no room for a destination: the extended functions are for these.
        WR_WRITE | WR_WRITE_IMM | WR_READ => return Err(libc::EINVAL),
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

/// Posts a list of sends. // HOT
///
/// # Safety
/// `qp` is one of ours; the list is valid; `bad` is writable.
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
        let row = state.qps.get(obj.id).filter(|_| obj.may_send()).ok_or(libc::EINVAL);
        // SAFETY: as above.
        let done = row.and_then(|row| unsafe { request(obj, one) }?.post(row));
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

/// Posts one receive. // HOT
///
/// # Safety
/// `wr`'s list is valid.
#[inline]
unsafe fn receive(row: &QpState, wr: &IbvRecvWr) -> Result<(), Errno> {
    // SAFETY: by this function's contract.
    let given = unsafe { sge_list(wr.sg_list, wr.num_sge) }?;
    let mut list = [NO_SGE; MAX_RECV_SGE];
    let list = list.get_mut(..given.len()).ok_or(libc::EINVAL)?;
    for (to, sge) in list.iter_mut().zip(given) {
        *to = Sge { addr: sge.addr as *mut u8, len: sge.length, lkey: sge.lkey };
    }
    let done = match list {
        [one] => row.qp.recv(wr.wr_id, *one),
        list => row.qp.recv_sge_list(wr.wr_id, list),
    };
    done.map_err(post_errno)
}

/// Posts a list of receives. // HOT
///
/// # Safety
/// `qp` is one of ours; the list is valid; `bad` is writable.
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
        let row = state.qps.get(obj.id).filter(|_| obj.may_recv()).ok_or(libc::EINVAL);
        // SAFETY: as above.
        let done = row.and_then(|row| unsafe { receive(row, one) });
        if let Err(e) = done {
            // SAFETY: by this function's contract.
            unsafe { bad.write(wr) };
            return e;
        }
        wr = one.next;
    }
    0
}
