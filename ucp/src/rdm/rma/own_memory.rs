//! Operations of a worker on memory of its own context, which it names as a peer would: done within the call,
//! without a packet. Only while no one-sided operation is under way, so that they keep their order with those
//! by packets.

#![allow(unsafe_code)]

use crate::rdm::Engine;
use crate::rdm::amo::{self, Form};
use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::protocols::atomic::Computation;
use crate::rdm::rma::mem::{Access, Span, Spans};
use crate::wire::{AtomicOp, Datatype, RmaIov};

/// Most bytes of elements of an atomic operation; longer ones go by packets.
const MAX_ATOMIC: usize = 64;

/// An atomic operation on one piece of own memory. The pointers are to as many bytes as the piece has.
pub struct OwnAtomic {
    /// Operation.
    pub op: AtomicOp,
    /// Type of the elements.
    pub ty: Datatype,
    /// Form of the operation.
    pub form: Form,
    /// Operands, not used by [`AtomicOp::Read`].
    pub operand: *const u8,
    /// Values that are compared, if the form has some.
    pub compare: *const u8,
    /// Memory for the old values; null: not wanted.
    pub result: *mut u8,
}

/// Memory of a worker's own context, as the worker reaches it.
pub struct OwnMemory<'a, W: Wire> {
    /// The worker's engine.
    pub engine: &'a mut Engine,
    /// The worker's lanes.
    pub wire: &'a mut W,
    /// The worker itself.
    pub peer: PeerId,
}

impl<W: Wire> OwnMemory<'_, W> {
    /// Writes the bytes at `from` to own memory. False: nothing has happened; packets do it, or tell the
    /// error.
    /// # Safety
    /// As many bytes as `iov` has can be read at `from`.
    // HOT
    #[inline]
    pub unsafe fn put(&mut self, iov: &RmaIov, from: *const u8) -> bool {
        self.with_piece(iov, Access::WRITE, |span| {
            // SAFETY: this function's contract.
            unsafe { span.store(from) };
            true
        })
    }

    /// Reads own memory into the bytes at `to`, as [`OwnMemory::put`].
    /// # Safety
    /// As many bytes as `iov` has can be written at `to`.
    // HOT
    #[inline]
    pub unsafe fn get(&mut self, iov: &RmaIov, to: *mut u8) -> bool {
        self.with_piece(iov, Access::READ, |span| {
            // SAFETY: this function's contract.
            unsafe { span.load(to) };
            true
        })
    }

    /// Runs `f` with the address of own memory for atomic operations, as [`OwnMemory::put`]: it has as many
    /// bytes as `iov` says, until `f` returns, which answers whether it has done anything.
    // HOT
    #[inline]
    pub fn with_word(&mut self, iov: &RmaIov, f: impl FnOnce(*mut u8) -> bool) -> bool {
        self.with_piece(iov, Access::ATOMIC, |span| f(span.ptr()))
    }

    /// Computes on own memory, as [`OwnMemory::put`].
    /// # Safety
    /// The pointers of `atomic` that the operation uses are to as many bytes as `iov` has.
    // HOT
    #[inline]
    pub unsafe fn atomic(&mut self, iov: &RmaIov, atomic: &OwnAtomic) -> bool {
        let OwnAtomic { op, ty, form, operand, compare, result } = *atomic;
        let Some(len) = usize::try_from(iov.len).ok().filter(|len| (1..=MAX_ATOMIC).contains(len)) else {
            return false;
        };
        if !amo::has_form(op, form) || !amo::has_type(op, ty) {
            return false;
        }
        let (mut payload, mut old) = ([0u8; 2 * MAX_ATOMIC], [0u8; MAX_ATOMIC]);
        let mut filled = 0;
        if op != AtomicOp::Read {
            // SAFETY: this function's contract; there is room for `len` bytes.
            unsafe { copy_short(operand, payload.as_mut_ptr(), len) };
            filled = len;
        }
        if form == Form::Compare {
            // SAFETY: as above, behind the operands.
            unsafe { copy_short(compare, payload.as_mut_ptr().wrapping_add(len), len) };
            filled = 2 * len;
        }
        let payload = &payload[..filled];
        self.with_piece(iov, Access::ATOMIC, |span| {
            let computation = Computation { op, ty, spans: &Spans::one(span.clone()), payload };
            if !computation.has_valid_lengths(form) {
                return false;
            }
            computation.compute(&mut old[..len]);
            if !result.is_null() {
                // SAFETY: this function's contract; `old` has as many bytes.
                unsafe { copy_short(old.as_ptr(), result, len) };
            }
            true
        })
    }

    /// Runs `f` with the piece that `iov` names, and answers what it does. False: the piece has to wait for
    /// operations under way, is counted, or is refused.
    // HOT
    #[inline(always)]
    fn with_piece(&mut self, iov: &RmaIov, need: Access, f: impl FnOnce(&Span) -> bool) -> bool {
        let engine = &mut *self.engine;
        if !engine.ops.rma_ops.table.is_empty() || !engine.peers.may_bypass_queue(self.peer) {
            return false;
        }
        let domain = engine.peers.domain_of(self.peer);
        let entered = engine.enter_memory(self.wire);
        let regions = &engine.ops.rma_ops.regions;
        let done = !regions.has_counts() && regions.span(domain, iov, need).is_some_and(|span| f(&span));
        if entered {
            engine.leave_memory();
        }
        done
    }
}

/// Copies bytes that the caller passes; eight of them by one load and store.
/// # Safety
/// As for `std::ptr::copy_nonoverlapping`.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    if len == 8 {
        // SAFETY: this function's contract.
        let word = unsafe { from.cast::<u64>().read_unaligned() };
        // SAFETY: as above.
        unsafe { to.cast::<u64>().write_unaligned(word) };
    } else {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
}
