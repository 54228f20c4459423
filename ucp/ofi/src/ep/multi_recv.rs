//! Receives of many messages into one buffer: `FI_MULTI_RECV`.

use std::sync::atomic::Ordering;

use ucp::{Error, IoBufMut, Match, MultiRecvMessage, RecvStatus};

use super::Ep;
use super::complete::Op;
use super::recv::Recv;
use super::send::Memory;
use crate::abi::flags;
use crate::abi::queue::CqTaggedEntry;
use crate::errno::Errno;
use crate::ring::{Entry, Failure, NO_SOURCE};

/// Memory of the program, which it keeps until the receive has ended.
struct UserMemory(*mut u8, usize);

// SAFETY: the program keeps the memory in its place, and does not write it, until the receive has ended.
unsafe impl IoBufMut for UserMemory {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.0, self.1)
    }

    unsafe fn set_filled(&mut self, _len: usize) {}
}

/// A receive of many messages that runs.
pub(super) struct Multi {
    recv: ucp::MultiRecv<UserMemory>,
    op: Op,
}

impl Ep {
    /// Starts a receive of many messages. Inside the lock.
    #[cold]
    pub(super) fn recv_multi(
        &self,
        plain: &ucp::Worker,
        recv: &Recv<'_>,
        matching: Match,
    ) -> Result<isize, Errno> {
        if self.caps & flags::MULTI_RECV == 0 {
            tracing::debug!("FI_MULTI_RECV: the endpoint was opened without this capability");
            return Err(Errno::OPNOTSUPP);
        }
        let Memory::Bytes(at, len) = recv.memory else {
            tracing::error!("FI_MULTI_RECV: the buffer has one piece");
            return Err(Errno::INVAL);
        };
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let op = Op { buf: at.cast(), room: len, ..self.new_recv(recv) };
        let started =
            plain.recv_multi(matching, UserMemory(at, len), self.min_multi_recv.load(Ordering::Relaxed));
        let recv = started.map_err(|(error, _)| Errno::from(error))?;
        self.multi_recvs.borrow_mut().push(Multi { recv, op });
        self.rx.running.set(self.rx.running.get() + 1);
        Ok(0)
    }

    /// Reports messages that have arrived in such receives, and receives that take no more. Inside the lock.
    pub(super) fn collect_multi_recvs(&self) {
        let mut running = self.multi_recvs.borrow_mut();
        let mut at = 0;
        while let Some(multi) = running.get_mut(at) {
            if self.rx.ring.len() >= self.rx.size {
                break;
            }
            if let Some(message) = multi.recv.try_next() {
                self.end_multi_message(&multi.op, &message);
            } else if multi.recv.is_done() {
                let Multi { recv, op } = running.remove(at);
                self.rx.running.set(self.rx.running.get() - 1);
                let (result, _) = recv.finish();
                self.end_multi(&op, result.err());
            } else {
                at += 1;
            }
        }
    }

    /// Reports a message.
    fn end_multi_message(&self, op: &Op, message: &MultiRecvMessage) {
        let offset = message.offset();
        let buf = op.buf.wrapping_byte_add(offset);
        let (room, cut_message) = match message.status() {
            Err(Error::Truncated { len, room }) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                (room, Some(RecvStatus { len, ..RecvStatus::EMPTY }))
            }
            _ => (op.room - offset, None),
        };
        self.end_recv(&Op { buf, room, ..*op }, message.status(), cut_message);
    }

    /// Gives the buffer back: an entry that has only the flag `FI_MULTI_RECV`, or an error.
    fn end_multi(&self, op: &Op, error: Option<Error>) {
        let shown_flags = if error.is_some() { op.flags } else { flags::MULTI_RECV };
        let shown = CqTaggedEntry {
            op_context: op.context,
            flags: shown_flags,
            len: 0,
            buf: op.buf,
            data: 0,
            tag: 0,
        };
        let entry = Entry { shown, from: NO_SOURCE, is_error: false };
        // It is no message: the counter counts it only if it is an error.
        let cntr = if error.is_some() { self.rx.cntr.get() } else { std::ptr::null() };
        let failure = error.map(Failure::of);
        // SAFETY: queues and counters are not closed before the endpoints that use them.
        unsafe { self.rx.report(cntr, op.is_reported, entry, failure) };
    }

    /// Cancels the receive of many messages with this context. False: there is none. Inside the lock.
    pub(super) fn cancel_multi(&self, context: *mut std::ffi::c_void) -> bool {
        let mut running = self.multi_recvs.borrow_mut();
        running.iter_mut().find(|multi| multi.op.context == context).is_some_and(|multi| multi.recv.cancel())
    }
}
