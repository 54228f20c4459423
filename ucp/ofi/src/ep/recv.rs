//! Receives of messages.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

use ucp::{Error, Layout, Match, OpParams, OpStatus, RecvStatus, post_recv_raw};

use super::Ep;
use super::complete::Op;
use super::owned_op::OwnedOp;
use super::send::Memory;
use crate::abi::{ADDR_UNSPEC, FiAddr, flags};
use crate::errno::Errno;

/// Flags that a receive may have.
const KNOWN: u64 = flags::COMPLETION | flags::MORE | flags::MULTI_RECV | LOOKS;
/// Flags of calls that look at messages.
const LOOKS: u64 = flags::PEEK | flags::CLAIM | flags::DISCARD;

/// Flags of receives that may be posted within their call. `fi_trecv` does not look at `FI_MULTI_RECV`.
const SHORT: u64 = flags::COMPLETION | flags::MORE | flags::MULTI_RECV;

/// Flags of the completion of a receive.
const fn shown_flags(is_tagged: bool) -> u64 {
    flags::RECV | if is_tagged { flags::TAGGED } else { flags::MSG }
}

/// The status of a receive that has received nothing.
const NOTHING: RecvStatus = RecvStatus::EMPTY;

/// A receive, as a call describes it.
pub(super) struct Recv<'a> {
    pub memory: Memory<'a>,
    pub from: FiAddr,
    /// Tag and the bits that are compared; `None`: untagged.
    pub tag: Option<(u64, u64)>,
    pub flags: u64,
    pub context: *mut c_void,
}

impl Ep {
    /// Posts a tagged receive of a message that has not come. Returns false if nothing was done.
    /// # Safety
    /// As for [`Memory::bytes`].
    // HOT
    #[inline(always)]
    pub(super) unsafe fn post_short(
        &self,
        (buf, len): (*mut c_void, usize),
        from: FiAddr,
        (tag, mask): (u64, u64),
        op_flags: u64,
        context: *mut c_void,
    ) -> bool {
        let is_usual = !buf.is_null()
            && op_flags & !SHORT == 0
            && (from == ADDR_UNSPEC || self.caps & flags::DIRECTED_RECV == 0);
        if !is_usual {
            return false;
        }
        let Some(plain) = self.plain() else {
            // SAFETY: this function's contract.
            return unsafe { self.post_locked((buf, len), (tag, mask), op_flags, context) };
        };
        // SAFETY: as above.
        let is_posted = unsafe { self.post_inside(plain, (buf, len), (tag, mask), op_flags, context) };
        self.shared.wake_sleepers();
        is_posted
    }

    /// [`Ep::post_short`] where there is a lock.
    /// # Safety
    /// As for [`Memory::bytes`].
    // HOT
    #[inline(never)]
    unsafe fn post_locked(
        &self,
        bytes: (*mut c_void, usize),
        matching: (u64, u64),
        op_flags: u64,
        context: *mut c_void,
    ) -> bool {
        let inside = self.enter();
        // SAFETY: this function's contract.
        unsafe { self.post_inside(&inside, bytes, matching, op_flags, context) }
    }

    /// [`Ep::post_short`] inside the lock.
    /// # Safety
    /// As for [`Memory::bytes`].
    // HOT
    #[inline(always)]
    unsafe fn post_inside(
        &self,
        plain: &ucp::Worker,
        (buf, len): (*mut c_void, usize),
        (tag, mask): (u64, u64),
        op_flags: u64,
        context: *mut c_void,
    ) -> bool {
        if !self.can_recv.load(Ordering::Relaxed) || !self.rx.has_room() {
            return false;
        }
        let (matching, done) = (Match::tagged(tag, mask), Some(self.on_received()));
        // SAFETY: the caller keeps the memory until the completion. The endpoint outlives its worker's
        // operations.
        let posted = unsafe { post_recv_raw(plain, buf.cast(), len, matching, done) };
        let Some(id) = posted else { return false };
        let is_reported = !self.rx.is_selective.get() || op_flags & flags::COMPLETION != 0;
        let op = Op::new(context, shown_flags(true), is_reported, std::ptr::null());
        self.keep_recv(id, Op { room: len, buf, ..op });
        true
    }

    /// Starts a receive.
    #[inline(never)]
    pub(super) fn recv(&self, recv: &Recv<'_>) -> Result<isize, Errno> {
        if recv.flags & !KNOWN != 0 {
            return match recv.flags & !(KNOWN & !LOOKS & !flags::MULTI_RECV) {
                flags::TRIGGER => self.trigger(OwnedOp::of_recv(recv)),
                _ => Err(refuse_flags(recv.flags)),
            };
        }
        let inside = self.enter();
        if !self.can_recv.load(Ordering::Relaxed) {
            return Err(refuse_recv(self.is_enabled.load(Ordering::Relaxed)));
        }
        if !self.rx.has_room() {
            self.progress();
            return Err(Errno::AGAIN);
        }
        let mut matching = match recv.tag {
            Some((tag, mask)) => Match::tagged(tag, mask),
            None => Match::untagged(),
        };
        if recv.from != ADDR_UNSPEC && self.caps & flags::DIRECTED_RECV != 0 {
            matching = self.with_peer(&inside, recv.from, |ep| Ok(matching.from(ep)))?;
        }
        if recv.flags & (LOOKS | flags::MULTI_RECV) != 0 {
            if !self.deferred.get().is_null() {
                return Err(refuse_flags(recv.flags));
            }
            return match recv.flags & LOOKS {
                0 => self.recv_multi(&inside, recv, matching),
                _ => self.peek(&inside, recv, matching),
            };
        }
        self.start_recv(&inside, recv, matching)
    }

    /// Record of a receive.
    pub(super) fn new_recv(&self, recv: &Recv<'_>) -> Op {
        let cntr = self.deferred.get();
        let reports_all = !self.rx.is_selective.get() && cntr.is_null();
        let is_reported = reports_all || recv.flags & flags::COMPLETION != 0;
        Op::new(recv.context, shown_flags(recv.tag.is_some()), is_reported, cntr)
    }

    fn start_recv(&self, plain: &ucp::Worker, recv: &Recv<'_>, matching: Match) -> Result<isize, Errno> {
        let op = self.new_recv(recv);
        if let Memory::Bytes(at, len) = recv.memory {
            let done = Some(self.on_received());
            // SAFETY: the caller keeps the memory until the completion. The endpoint outlives its worker's
            // operations.
            let posted = unsafe { post_recv_raw(plain, at, len, matching, done) };
            if let Some(id) = posted {
                self.keep_recv(id, Op { room: len, buf: at.cast(), ..op });
                return Ok(0);
            }
        }
        self.recv_arrived(plain, recv, matching, op)
    }

    /// Starts a receive of a message that is there, or into several pieces.
    #[inline(never)]
    fn recv_arrived(
        &self,
        plain: &ucp::Worker,
        recv: &Recv<'_>,
        matching: Match,
        op: Op,
    ) -> Result<isize, Errno> {
        // SAFETY: the caller keeps the memory until the completion. The endpoint outlives its worker's
        // operations.
        self.receive_into(&recv.memory, op, |memory, params| unsafe {
            match *memory {
                Memory::Bytes(at, len) => plain.recv_raw(at, len, matching, params),
                Memory::Pieces(pieces) => plain.recv_layout_raw(Layout::Iov(pieces), matching, params),
            }
        })
    }

    /// Starts a receive into memory by `start`, and makes that the result of its call.
    pub(super) fn receive_into(
        &self,
        memory: &Memory<'_>,
        mut op: Op,
        start: impl FnOnce(&Memory<'_>, &OpParams<'_>) -> Result<OpStatus<RecvStatus>, Error>,
    ) -> Result<isize, Errno> {
        op.room = memory.len();
        op.buf = match memory {
            Memory::Bytes(at, _) => at.cast(),
            Memory::Pieces(pieces) => pieces.first().map_or(std::ptr::null_mut(), |piece| piece.addr.cast()),
        };
        let truncated = Cell::new(NOTHING);
        let params = OpParams { done: Some(self.on_received()), mem: None, truncated: Some(&truncated) };
        match start(memory, &params) {
            Ok(OpStatus::InProgress(id)) => self.keep_recv(id, op),
            Ok(OpStatus::Done(message)) => self.end_recv(&op, Ok(message), None),
            Err(error @ Error::Truncated { .. }) => self.end_recv(&op, Err(error), Some(truncated.get())),
            Err(error) => return Err(error.into()),
        }
        Ok(0)
    }
}

#[cold]
fn refuse_recv(is_enabled: bool) -> Errno {
    if is_enabled {
        tracing::debug!("receives of the endpoint are posted at its shared context");
    }
    Errno::OPBADSTATE
}

#[cold]
fn refuse_flags(flags: u64) -> Errno {
    tracing::debug!("a receive with flags {:#x}, which are not supported", flags & !KNOWN);
    Errno::OPNOTSUPP
}
