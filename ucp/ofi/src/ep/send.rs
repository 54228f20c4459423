//! Sends of messages.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use ucp::select::DeliveryComplete;
use ucp::{Iov, Layout, SendParams, send_now_raw};

use super::Ep;
use super::complete::Op;
use super::owned_op::OwnedOp;
use crate::abi::{FiAddr, IoVec, flags};
use crate::errno::Errno;
use crate::info::{EpKind, INJECT_SIZE, IOV_LIMIT};
use crate::ring::Entry;

/// Flags of sends that may go within their call.
const SHORT: u64 =
    flags::COMPLETION | flags::INJECT | flags::INJECT_COMPLETE | flags::TRANSMIT_COMPLETE | flags::MORE;

/// Memory of an operation, which the program keeps until the operation ends.
#[derive(Clone, Copy)]
pub(super) enum Memory<'a> {
    Bytes(*mut u8, usize),
    Pieces(&'a [Iov]),
}

impl Memory<'_> {
    /// One range. Refuses null that is not empty.
    /// # Safety
    /// `buf` is null or memory of `len` bytes, as long as the result is used and its operation runs.
    // HOT
    #[inline(always)]
    pub(super) unsafe fn bytes(buf: *const c_void, len: usize) -> Result<Memory<'static>, Errno> {
        if buf.is_null() {
            return match len {
                0 => Ok(Memory::Bytes(std::ptr::dangling_mut(), 0)),
                _ => Err(Errno::INVAL),
            };
        }
        Ok(Memory::Bytes(buf.cast_mut().cast(), len))
    }

    /// The pieces of a list.
    /// # Safety
    /// `iov` is null or has `count` pieces, as long as the result is used; each is as for [`Memory::bytes`].
    // HOT
    #[inline]
    pub(super) unsafe fn pieces(iov: *const IoVec, count: usize) -> Result<Memory<'static>, Errno> {
        check_count(count, IOV_LIMIT)?;
        if iov.is_null() && count > 0 {
            return Err(Errno::INVAL);
        }
        match count {
            0 => Ok(Memory::Bytes(std::ptr::dangling_mut(), 0)),
            1 => {
                // SAFETY: this function's contract.
                let only = unsafe { iov.read() };
                // SAFETY: as above.
                unsafe { Memory::bytes(only.iov_base, only.iov_len) }
            }
            // SAFETY: this function's contract; both types are an address and a length.
            count => Ok(Memory::Pieces(unsafe { std::slice::from_raw_parts(iov.cast(), count) })),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Memory::Bytes(_, len) => *len,
            Memory::Pieces(pieces) => pieces.iter().map(|piece| piece.len).fold(0, usize::saturating_add),
        }
    }

    /// Copies the bytes to the beginning of `to`, as many as it has room for.
    pub(super) fn copy_to(&self, to: &mut [u8]) {
        let mut rest = to;
        let mut copy = |from: *const u8, len: usize| {
            let room = len.min(rest.len());
            let (to, behind) = std::mem::take(&mut rest).split_at_mut(room);
            // SAFETY: memory that the program has passed to a call, which has not returned; `to` is not the
            // program's.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
            rest = behind;
        };
        match self {
            Memory::Bytes(from, len) => copy(*from, *len),
            Memory::Pieces(pieces) => pieces.iter().for_each(|piece| copy(piece.addr, piece.len)),
        }
    }
}

/// Refuses a list of more pieces than a limit of `fi_info`.
// HOT
#[inline(always)]
pub(super) fn check_count(count: usize, limit: usize) -> Result<(), Errno> {
    if count <= limit { Ok(()) } else { Err(refuse_count(count, limit)) }
}

#[cold]
#[inline(never)]
fn refuse_count(count: usize, limit: usize) -> Errno {
    tracing::debug!("{count} pieces of memory exceed {limit}");
    Errno::INVAL
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
pub(super) const fn shown_flags(tag: Option<u64>) -> u64 {
    flags::SEND | if tag.is_some() { flags::TAGGED } else { flags::MSG }
}

impl Ep {
    /// Sends a short tagged message to a known peer within the call. Returns false if nothing was sent.
    /// `is_silent`: nothing is reported.
    /// # Safety
    /// As for [`Memory::bytes`].
    // HOT
    #[inline(always)]
    pub(super) unsafe fn send_short(
        &self,
        (buf, len): (*const c_void, usize),
        to: FiAddr,
        tag: u64,
        how: (u64, bool),
        context: *mut c_void,
    ) -> bool {
        let (op_flags, _) = how;
        let is_usual =
            !buf.is_null() && op_flags & !SHORT == 0 && (op_flags & flags::INJECT == 0 || len <= INJECT_SIZE);
        if !is_usual {
            return false;
        }
        if self.plain().is_none() {
            // SAFETY: this function's contract.
            return unsafe { self.send_locked((buf, len), to, tag, how, context) };
        }
        // SAFETY: as above.
        let is_sent = unsafe { self.send_inside((buf, len), to, tag, how, context) };
        self.shared.wake_sleepers();
        is_sent
    }

    /// [`Ep::send_short`] where there is a lock.
    /// # Safety
    /// As for [`Memory::bytes`].
    // HOT
    #[inline(never)]
    unsafe fn send_locked(
        &self,
        bytes: (*const c_void, usize),
        to: FiAddr,
        tag: u64,
        how: (u64, bool),
        context: *mut c_void,
    ) -> bool {
        let _inside = self.enter();
        // SAFETY: this function's contract.
        unsafe { self.send_inside(bytes, to, tag, how, context) }
    }

    /// [`Ep::send_short`] inside the lock.
    /// # Safety
    /// As for [`Memory::bytes`].
    // HOT
    #[inline(always)]
    unsafe fn send_inside(
        &self,
        (buf, len): (*const c_void, usize),
        to: FiAddr,
        tag: u64,
        (op_flags, is_silent): (u64, bool),
        context: *mut c_void,
    ) -> bool {
        if !self.can_send.load(Ordering::Relaxed) || !self.tx.has_room() {
            return false;
        }
        let eps = self.peers.known();
        let Some(Some(ep)) = eps.get(self.place_of(to)) else { return false };
        // SAFETY: the caller's bytes are there during the call.
        if !unsafe { send_now_raw(ep, tag, buf.cast(), len) } {
            return false;
        }
        let is_reported = !self.tx.is_selective.get() || op_flags & flags::COMPLETION != 0;
        let entry = Entry::without_data(context, shown_flags(Some(tag)));
        // SAFETY: queues and counters are not closed before the endpoints that use them.
        unsafe { self.tx.report(self.tx.cntr.get(), is_reported && !is_silent, entry, None) };
        true
    }

    /// Starts a send.
    #[inline(never)]
    pub(super) fn send(&self, send: &Send<'_>) -> Result<isize, Errno> {
        self.transmit(
            (send.to, send.flags),
            |ep| self.send_to(ep, send),
            || self.trigger(OwnedOp::of_send(send)),
        )
    }

    fn send_to(&self, ep: &ucp::Ep, send: &Send<'_>) -> Result<isize, Errno> {
        let op = self.new_transmit(shown_flags(send.tag), send.flags, send.context, send.is_silent);
        if send.flags & flags::INJECT != 0 && send.memory.len() > INJECT_SIZE {
            return Err(Errno::MSGSIZE);
        }
        let is_acknowledged = send.flags & (flags::DELIVERY_COMPLETE | flags::MATCH_COMPLETE) != 0;
        if let (Some(tag), None, Memory::Bytes(at, len), false) =
            (send.tag, send.data, send.memory, is_acknowledged)
            // SAFETY: the caller's bytes are there during the call.
            && unsafe { send_now_raw(ep, tag, at, len) }
        {
            self.end_send(&op, Ok(()));
            return Ok(0);
        }
        let sync = if is_acknowledged { DeliveryComplete::Yes } else { DeliveryComplete::No };
        self.start_send(ep, send, sync, op)
    }

    /// Starts a send that has not gone at once.
    #[inline(never)]
    fn start_send(
        &self,
        ep: &ucp::Ep,
        send: &Send<'_>,
        sync: DeliveryComplete,
        mut op: Op,
    ) -> Result<isize, Errno> {
        let mut memory = send.memory;
        let is_datagram = self.kind == EpKind::Dgram && sync == DeliveryComplete::No;
        if send.flags & flags::INJECT != 0 || is_datagram {
            let mut copy = self.copied(&memory)?;
            memory = Memory::Bytes(copy.address(), memory.len());
            op.copy = Box::into_raw(copy);
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
        match is_datagram {
            true => self.finish_datagram(started, op),
            false => self.finish_send(started, op),
        }
    }
}
