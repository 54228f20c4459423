//! A send work request, and a batch of them. Checks what the driver checks; the device checks keys and peers.

use crate::abi::{IbvAh, IbvSge};
use crate::ah::AhObj;
use crate::errno::Errno;
use crate::state::QpState;
use std::ffi::c_uint;
use uct::efa::dev::soft::Ah;
use uct::efa::dev::{Dest, DevQp, PostError, Sge};

/// Asks for a completion, which every request has.
pub const SIGNALED: c_uint = 2;

pub const INLINE: c_uint = 8;

/// Widest inline send of any generation.
pub const INLINE_ROOM: usize = 80;

const MAX_SGE: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WrOpcode {
    Send,
    Read,
    Write,
}

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
    /// Length of the inline data, if inline.
    pub inline: Option<usize>,
    pub bytes: [u8; INLINE_ROOM],
}

pub const NO_SGE: Sge = Sge { addr: std::ptr::null_mut(), len: 0, lkey: 0 };

impl SendWr {
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

    /// Sets the destination. Unsafe: `ah` is null or an address handle of ours.
    #[inline]
    pub unsafe fn set_dest(&mut self, ah: *mut IbvAh, qpn: u32, qkey: u32) -> Result<(), Errno> {
        // SAFETY: by this function's contract.
        let ah = unsafe { ah.cast::<AhObj>().as_ref() }.ok_or(libc::EINVAL)?.ah;
        let qpn = u16::try_from(qpn).map_err(|_| libc::EINVAL)?;
        self.to = Some(Dest { ah, qpn, qkey });
        Ok(())
    }

    #[inline]
    pub fn add_sge(&mut self, sge: &IbvSge) -> Result<(), Errno> {
        let room = self.sge.get_mut(self.num_sge).ok_or(libc::EINVAL)?;
        *room = Sge { addr: sge.addr as *mut u8, len: sge.length, lkey: sge.lkey };
        self.num_sge += 1;
        Ok(())
    }

    /// Appends inline data. Unsafe: `from` is readable for `len` bytes.
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

    /// Checks as the driver does; a batch is posted whole or not at all.
    // HOT
    #[inline]
    pub fn check(&self, qp_state: &QpState) -> Result<(), Errno> {
        let cap = &qp_state.cap;
        let fits = match (self.opcode, self.inline) {
            (WrOpcode::Send, Some(len)) => len <= cap.max_inline_data as usize,
            (WrOpcode::Send, None) => self.num_sge <= cap.max_send_sge as usize,
            (WrOpcode::Read | WrOpcode::Write, inline) => {
                !qp_state.datagram && inline.is_none() && self.num_sge <= 1
            }
        };
        if fits && self.to.is_some() { Ok(()) } else { Err(libc::EINVAL) }
    }

    /// Posts it to the device. RDMA was [checked](Self::check).
    // HOT
    #[inline]
    pub fn post(&self, qp_state: &QpState) -> Result<(), Errno> {
        let to = self.to.as_ref().ok_or(libc::EINVAL)?;
        let qp = &qp_state.qp;
        let done = match (self.opcode, self.inline) {
            (WrOpcode::Send, Some(len)) => qp.send_inline(to, self.wr_id, &self.bytes[..len], self.imm),
            (WrOpcode::Send, None) => qp.send(to, self.wr_id, &self.sge[..self.num_sge], self.imm),
            (WrOpcode::Read, _) => qp.read(to, self.wr_id, self.sge[0], self.raddr, self.rkey),
            (WrOpcode::Write, _) => qp.write(to, self.wr_id, self.sge[0], self.raddr, self.rkey, self.imm),
        };
        done.map_err(post_errno)
    }
}

pub fn post_errno(e: PostError) -> Errno {
    match e {
        PostError::Full => libc::ENOMEM,
        PostError::Invalid(_) => libc::EINVAL,
    }
}

#[derive(Default)]
pub struct WrBatch {
    pub list: Vec<SendWr>,
    pub failed: Option<Errno>,
}

// SAFETY: the addresses in requests are the program's; the thread that holds the batch only passes them on.
unsafe impl Send for WrBatch {}
