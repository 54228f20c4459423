//! Sends of messages.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use ucp::select::Sync;
use ucp::{Iov, Layout, SendParams};

use super::Ep;
use super::complete::Op;
use crate::abi::{FiAddr, IoVec, flags};
use crate::errno::Errno;
use crate::info::{INJECT_SIZE, IOV_LIMIT};

/// Flags that a send may have.
const KNOWN: u64 = flags::COMPLETION
    | flags::INJECT
    | flags::INJECT_COMPLETE
    | flags::TRANSMIT_COMPLETE
    | flags::DELIVERY_COMPLETE
    | flags::MATCH_COMPLETE
    | flags::REMOTE_CQ_DATA
    | flags::FENCE
    | flags::MORE;

/// Memory of an operation.
#[derive(Clone, Copy)]
pub(super) enum Memory<'a> {
    Bytes(*mut u8, usize),
    Pieces(&'a [Iov]),
}

impl Memory<'_> {
    /// One range. Refuses null that is not empty. // HOT
    #[inline(always)]
    pub(super) fn bytes(buf: *const c_void, len: usize) -> Result<Memory<'static>, Errno> {
        if buf.is_null() {
            return match len {
                0 => Ok(Memory::Bytes(std::ptr::dangling_mut(), 0)),
                _ => Err(Errno::INVAL),
            };
        }
        Ok(Memory::Bytes(buf.cast_mut().cast(), len))
    }

    /// The pieces of a list.
    pub(super) fn pieces(iov: *const IoVec, count: usize) -> Result<Memory<'static>, Errno> {
        if count > IOV_LIMIT || (iov.is_null() && count > 0) {
            return Err(Errno::INVAL);
        }
        match count {
            0 => Ok(Memory::Bytes(std::ptr::dangling_mut(), 0)),
            1 => {
                // SAFETY: the caller passes one piece.
                let only = unsafe { iov.read() };
                Memory::bytes(only.iov_base, only.iov_len)
            }
            // SAFETY: the caller passes as many; both types are an address and a length.
            count => Ok(Memory::Pieces(unsafe { std::slice::from_raw_parts(iov.cast(), count) })),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Memory::Bytes(_, len) => *len,
            Memory::Pieces(pieces) => pieces.iter().map(|piece| piece.len).fold(0, usize::saturating_add),
        }
    }

    /// Copies the bytes, of which there are at most [`INJECT_SIZE`].
    pub(super) fn copy_to(&self, to: *mut u8) {
        let mut at = to;
        let mut copy = |from: *const u8, len: usize| {
            // SAFETY: the caller's memory, and room for all of it.
            unsafe {
                std::ptr::copy_nonoverlapping(from, at, len);
                at = at.add(len);
            }
        };
        match self {
            Memory::Bytes(from, len) => copy(*from, *len),
            Memory::Pieces(pieces) => pieces.iter().for_each(|piece| copy(piece.addr, piece.len)),
        }
    }
}

/// A send, as a call describes it.
pub(super) struct Send<'a> {
    pub memory: Memory<'a>,
    pub to: FiAddr,
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub flags: u64,
    pub context: *mut c_void,
    /// A call that reports nothing, whatever the flags say.
    pub is_silent: bool,
}

/// Flags of the completion of a send.
const fn shown_flags(tag: Option<u64>) -> u64 {
    flags::SEND | if tag.is_some() { flags::TAGGED } else { flags::MSG }
}

impl Ep {
    /// Flags of sends that have none of their own.
    pub(super) fn tx_flags(&self) -> u64 {
        self.tx.op_flags.get()
    }

    /// Starts a send. // HOT
    #[inline(always)]
    pub(super) fn send(&self, send: &Send<'_>) -> Result<isize, Errno> {
        if send.flags & !KNOWN != 0 {
            return Err(Errno::BADFLAGS);
        }
        self.inside(|plain| {
            if !self.can_send.load(Ordering::Relaxed) {
                return Err(self.refusal());
            }
            if !self.tx.has_room() {
                self.progress();
                return Err(Errno::AGAIN);
            }
            self.with_peer(plain, send.to, |ep| self.send_to(ep, send))
        })?
    }

    // HOT
    #[inline(always)]
    fn send_to(&self, ep: &ucp::Ep, send: &Send<'_>) -> Result<isize, Errno> {
        if send.flags & flags::FENCE != 0 {
            ep.fence();
        }
        let selected = !self.tx.is_selective.get() || send.flags & flags::COMPLETION != 0;
        let mut op = Op::new(send.context, shown_flags(send.tag), selected && !send.is_silent);
        let is_acknowledged = send.flags & (flags::DELIVERY_COMPLETE | flags::MATCH_COMPLETE) != 0;
        let sync = if is_acknowledged { Sync::Yes } else { Sync::No };
        let mut memory = send.memory;
        if send.flags & flags::INJECT != 0 {
            match self.inject(ep, send, sync)? {
                None => {
                    self.end_send(&op, Ok(()));
                    return Ok(0);
                }
                Some(copy) => {
                    memory = Memory::Bytes(copy.cast(), send.memory.len());
                    op.copy = copy;
                }
            }
        }
        let params =
            SendParams { tag: send.tag, sync, cq_data: send.data, done: Some(self.on_sent()), mem: None };
        // SAFETY: the caller keeps the memory until the completion; a copy is kept until then, too. The
        // endpoint outlives its worker's operations.
        let started = unsafe {
            match memory {
                Memory::Bytes(at, len) => ep.send_raw(at, len, &params),
                Memory::Pieces(pieces) => ep.send_layout_raw(Layout::Iov(pieces), &params),
            }
        };
        self.finish_send(started, op)
    }

    /// Sends a message at once, or copies it: `None` if it is sent.
    #[inline]
    fn inject(
        &self,
        ep: &ucp::Ep,
        send: &Send<'_>,
        sync: Sync,
    ) -> Result<Option<*mut super::InjectBuf>, Errno> {
        if send.memory.len() > INJECT_SIZE {
            return Err(Errno::MSGSIZE);
        }
        if let (Some(tag), None, Sync::No, Memory::Bytes(at, len)) = (send.tag, send.data, sync, send.memory)
        {
            // SAFETY: the caller's bytes are there during the call.
            if unsafe { ucp::send_now_raw(ep, tag, at, len) } {
                return Ok(None);
            }
        }
        let copy = self.take_copy();
        send.memory.copy_to(copy.cast());
        Ok(Some(copy))
    }
}
