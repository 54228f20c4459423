//! The common part of sends and operations on memory of peers: how they start, and their records.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use super::Ep;
use super::complete::{InjectBuf, Op};
use super::send::Memory;
use crate::abi::{FiAddr, flags};
use crate::errno::Errno;

/// Flags that an operation may have.
const KNOWN: u64 = flags::COMPLETION
    | flags::INJECT
    | flags::INJECT_COMPLETE
    | flags::TRANSMIT_COMPLETE
    | flags::DELIVERY_COMPLETE
    | flags::MATCH_COMPLETE
    | flags::REMOTE_CQ_DATA
    | flags::FENCE
    | flags::MORE;

impl Ep {
    /// Starts an operation to a peer by `start`, inside the lock, or makes it wait by `trigger`.
    // HOT
    #[inline(always)]
    pub(super) fn transmit(
        &self,
        (peer, op_flags): (FiAddr, u64),
        start: impl FnOnce(&ucp::Ep) -> Result<isize, Errno>,
        trigger: impl FnOnce() -> Result<isize, Errno>,
    ) -> Result<isize, Errno> {
        if op_flags & !KNOWN != 0 {
            return if op_flags & !KNOWN == flags::TRIGGER { trigger() } else { Err(Errno::BADFLAGS) };
        }
        let inside = self.enter();
        if !self.can_send.load(Ordering::Relaxed) {
            return Err(self.refusal());
        }
        if !self.tx.has_room() {
            self.progress();
            return Err(Errno::AGAIN);
        }
        self.with_peer(&inside, peer, |ep| {
            if op_flags & flags::FENCE != 0 {
                ep.fence();
            }
            start(ep)
        })
    }

    /// Record of an operation whose completion has flags `shown`.
    // HOT
    #[inline(always)]
    pub(super) fn new_transmit(
        &self,
        shown: u64,
        op_flags: u64,
        context: *mut c_void,
        is_silent: bool,
    ) -> Op {
        let cntr = self.deferred.get();
        let reports_all = !self.tx.is_selective.get() && cntr.is_null();
        let is_selected = reports_all || op_flags & flags::COMPLETION != 0;
        Op::new(context, shown, is_selected && !is_silent, cntr)
    }

    /// Copies what the caller may change after the call.
    pub(super) fn copied(&self, memory: &Memory<'_>) -> Result<Box<InjectBuf>, Errno> {
        if memory.len() > self.most_copied() {
            return Err(Errno::MSGSIZE);
        }
        let mut copy = self.take_copy();
        memory.copy_to(copy.bytes());
        Ok(copy)
    }
}
