//! Operations that run, and how they end: records in the requests of the engine, entries for queues.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use ucp::mt::ThreadMode;
use ucp::{CallAt, Callback, Error, OpStatus, RecvStatus, RequestId};

use super::flush_thread::FlushThread;
use super::{Direction, Ep};
use crate::abi::flags;
use crate::abi::queue::CqTaggedEntry;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::info::{EpKind, INJECT_SIZE, MAX_DATAGRAM};
use crate::ring::{Cause, Entry, Failure, NO_SOURCE, Ring};

/// Memory for a copy of a message that an inject call could not send at once, or of a datagram.
pub(crate) struct InjectBuf(Box<[u8]>);

impl InjectBuf {
    /// Address of the bytes. It is valid as long as the copy, wherever the box of the copy is.
    pub(super) fn address(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Flags of the record of a datagram that has been reported before it has left. No completion has none.
const REPORTED: u64 = 0;

/// An operation, as its end needs it. Lies in the user memory of its request while it runs.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Op {
    pub context: *mut c_void,
    /// Flags of its completion.
    pub flags: u64,
    pub buf: *mut c_void,
    /// Room of a receive, bytes.
    pub room: usize,
    /// Whether the completion is reported if it ends well.
    pub is_reported: bool,
    /// Copy of the data, of which the operation is the owner ([`Box::into_raw`]); null: none.
    pub copy: *mut InjectBuf,
    /// Null; of deferred work the counter of its end, or [`NO_CNTR`]; or [`DETACHED`].
    pub cntr: *const Cntr,
    /// Neighbours in the list of operations that run.
    pub next: *mut Op,
    pub previous: *mut Op,
}

/// Bytes of an [`Op`].
pub(crate) const OP_SIZE: usize = size_of::<Op>();

/// Stands for the counter of deferred work that has none.
pub(super) const NO_CNTR: *const Cntr = std::ptr::without_provenance(1);
/// Stands for the counter of an operation of whose end nobody hears.
pub(super) const DETACHED: *const Cntr = std::ptr::without_provenance(2);

impl Op {
    // HOT
    #[inline(always)]
    pub(crate) fn new(context: *mut c_void, flags: u64, is_reported: bool, cntr: *const Cntr) -> Op {
        Op {
            context,
            flags,
            buf: std::ptr::null_mut(),
            room: 0,
            is_reported,
            copy: std::ptr::null_mut(),
            cntr,
            next: std::ptr::null_mut(),
            previous: std::ptr::null_mut(),
        }
    }
}

/// Operations of one direction that run: a list through their records.
#[derive(Default)]
pub(crate) struct Running(Cell<*mut Op>);

impl Running {
    /// Adds a record.
    /// # Safety
    /// The record is one of an operation that runs, and is not in a list.
    // HOT
    #[inline]
    unsafe fn add(&self, op: NonNull<Op>) {
        let first = self.0.get();
        // SAFETY: this function's contract; records in the list are those of requests that run.
        unsafe {
            (*op.as_ptr()).next = first;
            if let Some(first) = first.as_mut() {
                first.previous = op.as_ptr();
            }
        }
        self.0.set(op.as_ptr());
    }

    /// Removes a record.
    /// # Safety
    /// The record is in this list.
    // HOT
    #[inline]
    unsafe fn remove(&self, op: &Op) {
        // SAFETY: neighbours are records of requests that run.
        unsafe {
            match op.previous.as_mut() {
                Some(previous) => previous.next = op.next,
                None => self.0.set(op.next),
            }
            if let Some(next) = op.next.as_mut() {
                next.previous = op.previous;
            }
        }
    }

    /// All records.
    pub(crate) fn all(&self) -> Vec<NonNull<Op>> {
        // SAFETY: as above.
        let next = |op: &NonNull<Op>| NonNull::new(unsafe { op.as_ref() }.next);
        std::iter::successors(NonNull::new(self.0.get()), next).collect()
    }

    /// Records with this context, the oldest first, but for injected operations, which nobody may cancel.
    pub(crate) fn with(&self, context: *mut c_void) -> Vec<NonNull<Op>> {
        let mut found = self.all();
        // SAFETY: as above.
        found.retain(|op| unsafe { op.as_ref() }.context == context && unsafe { op.as_ref() }.copy.is_null());
        found.reverse();
        found
    }
}

impl Direction {
    /// Entries that a queue reads, if there are some.
    // HOT
    #[inline(always)]
    pub(crate) fn ring_of(&self, cq: &Cq) -> Option<&Ring> {
        (!self.ring.is_empty() && std::ptr::eq(self.cq.get(), cq)).then_some(&self.ring)
    }

    /// Reports an end to counter and queue; `failure` if the operation has failed.
    /// # Safety
    /// `cntr` is null or a counter that is open, as the queue of this direction is, if it has one.
    // HOT
    #[inline(always)]
    pub(super) unsafe fn report(
        &self,
        cntr: *const Cntr,
        is_reported: bool,
        entry: Entry,
        failure: Option<Failure>,
    ) {
        // SAFETY: this function's contract.
        if let Some(cntr) = unsafe { cntr.as_ref() } {
            cntr.count(failure.is_some());
            cntr.members.wake();
        }
        // SAFETY: as above.
        let Some(cq) = (unsafe { self.cq.get().as_ref() }) else { return };
        match failure {
            None if !is_reported => return,
            None => self.ring.push(entry),
            Some(failure) => self.ring.push_error(entry, failure),
        }
        cq.members.wake();
    }

    /// Whether an operation more may start.
    // HOT
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.running.get() + self.ring.len() < self.size
    }

    /// Whether all room is that of operations that have ended and are not read.
    pub(crate) fn is_full_of_entries(&self) -> bool {
        self.ring.len() >= self.size
    }

    /// Number of operations that may start.
    pub(super) fn room(&self) -> usize {
        self.size.saturating_sub(self.running.get() + self.ring.len())
    }
}

/// Called by the engine as soon as a send has ended.
// HOT
unsafe fn on_sent(arg: *mut (), id: RequestId, ended: Result<RecvStatus, Error>) {
    // SAFETY: an endpoint lives as long as its worker.
    let ep = unsafe { &*arg.cast::<Ep>() };
    // SAFETY: the record was written when the operation was started, and is there until this returns.
    let op = unsafe { id.user_memory().cast::<Op>().as_ref() };
    // SAFETY: the record was added when the operation was started.
    unsafe { ep.running_tx.remove(op) };
    ep.tx.running.set(ep.tx.running.get() - 1);
    if op.flags == REPORTED {
        if let Some(thread) = &*ep.flush_thread.borrow() {
            thread.remove();
        }
        // SAFETY: the operation has ended; its record had the copy.
        return unsafe { ep.return_copy(op.copy) };
    }
    ep.end_send(op, ended.map(drop));
}

/// Called by the engine as soon as a receive has ended.
// HOT
unsafe fn on_received(arg: *mut (), id: RequestId, ended: Result<RecvStatus, Error>) {
    // SAFETY: an endpoint lives as long as its worker.
    let ep = unsafe { &*arg.cast::<Ep>() };
    // SAFETY: the record was written when the operation was started, and is there until this returns.
    let op = unsafe { id.user_memory().cast::<Op>().as_ref() };
    // SAFETY: the record was added when the operation was started.
    unsafe { ep.running.remove(op) };
    ep.rx.running.set(ep.rx.running.get() - 1);
    match ended {
        Ok(ref message) if ep.queues_alone(op, message) => ep.queue_message(op, message),
        Ok(message) => ep.end_recv(op, Ok(message), None),
        Err(error) => ep.end_recv(op, Err(error), id.info()),
    }
}

impl Ep {
    pub(super) fn on_sent(&self) -> Callback {
        Callback { fun: on_sent, arg: std::ptr::from_ref(self).cast_mut().cast(), at: CallAt::End }
    }

    pub(super) fn on_received(&self) -> Callback {
        Callback { fun: on_received, arg: std::ptr::from_ref(self).cast_mut().cast(), at: CallAt::End }
    }

    /// Writes the record of a send that runs.
    pub(super) fn keep_send(&self, id: RequestId, op: Op) {
        let record = id.user_memory().cast::<Op>();
        // SAFETY: the request has `OP_SIZE` bytes of this crate.
        unsafe { record.write(op) };
        // SAFETY: it has just begun to run.
        unsafe { self.running_tx.add(record) };
        self.tx.running.set(self.tx.running.get() + 1);
    }

    /// Writes the record of a receive that runs.
    // HOT
    #[inline(always)]
    pub(super) fn keep_recv(&self, id: RequestId, op: Op) {
        let record = id.user_memory().cast::<Op>();
        // SAFETY: as above.
        unsafe { record.write(op) };
        // SAFETY: as above.
        unsafe { self.running.add(record) };
        self.rx.running.set(self.rx.running.get() + 1);
    }

    /// Makes the start of a send or of an operation on a peer's memory the result of its call.
    // HOT
    #[inline(always)]
    pub(super) fn finish_send<T>(&self, started: Result<OpStatus<T>, Error>, op: Op) -> Result<isize, Errno> {
        match started {
            Ok(OpStatus::Done(_)) => self.end_send(&op, Ok(())),
            Ok(OpStatus::InProgress(id)) => self.keep_send(id, op),
            Err(error) => {
                // SAFETY: there is no operation, and no record but this.
                unsafe { self.return_copy(op.copy) };
                return Err(error.into());
            }
        }
        Ok(0)
    }

    /// Makes the start of a datagram, whose bytes were copied, the result of its call. It is complete: a
    /// sender of datagrams does not wait until the receiver has room.
    pub(super) fn finish_datagram<T>(
        &self,
        started: Result<OpStatus<T>, Error>,
        op: Op,
    ) -> Result<isize, Errno> {
        let Ok(OpStatus::InProgress(id)) = started else { return self.finish_send(started, op) };
        self.keep_send(id, Op { flags: REPORTED, ..op });
        self.flush_later();
        self.end_send(&Op { copy: std::ptr::null_mut(), ..op }, Ok(()));
        Ok(0)
    }

    /// Lets a datagram leave though the program makes no calls. A domain that is used without locks has no
    /// such thread, one with a progress thread needs none.
    fn flush_later(&self) {
        if self.shared.mode() != ThreadMode::Multi || self.domain().has_progress_thread {
            return;
        }
        let mut thread = self.flush_thread.borrow_mut();
        if thread.is_none() {
            match FlushThread::spawn(self.shared.clone()) {
                Ok(started) => *thread = Some(started),
                Err(error) => tracing::warn!(
                    "cannot start the thread that sends queued datagrams, calls send them: {error}"
                ),
            }
        }
        if let Some(thread) = &*thread {
            thread.add();
        }
    }

    /// Reports the end of a send.
    // HOT
    #[inline(always)]
    pub(super) fn end_send(&self, op: &Op, ended: Result<(), Error>) {
        // SAFETY: the operation has ended, and each end is reported once.
        unsafe { self.return_copy(op.copy) };
        let cntr = match op.flags & (flags::READ | flags::WRITE) {
            0 => &self.tx.cntr,
            flags::READ => &self.reads,
            _ => &self.writes,
        };
        let failure = ended.err().map(Failure::of);
        let cntr = if op.cntr.is_null() {
            cntr.get()
        } else if op.cntr == DETACHED {
            return;
        } else {
            self.end_deferred(op, cntr.get(), failure.is_some())
        };
        let entry = Entry::without_data(op.context, op.flags);
        // SAFETY: queues and counters are not closed before the endpoints that use them.
        unsafe { self.tx.report(cntr, op.is_reported, entry, failure) };
    }

    /// Whether all of the report of a receive is an entry, for which there is room, without data of the
    /// sender.
    // HOT
    #[inline(always)]
    fn queues_alone(&self, op: &Op, message: &RecvStatus) -> bool {
        op.is_reported
            && op.cntr.is_null()
            && self.rx.cntr.get().is_null()
            && message.cq_data.is_none()
            && !self.rx.ring.is_full()
    }

    /// Reports a message where [`Ep::queues_alone`].
    // HOT
    #[inline(always)]
    fn queue_message(&self, op: &Op, message: &RecvStatus) {
        // SAFETY: a queue is not closed before the endpoints that use it.
        let Some(cq) = (unsafe { self.rx.cq.get().as_ref() }) else { return };
        let shown = CqTaggedEntry {
            op_context: op.context,
            flags: op.flags,
            len: message.len,
            buf: op.buf,
            data: 0,
            tag: message.tag,
        };
        self.rx.ring.push(Entry { shown, from: message.from, is_error: false });
        cq.members.wake();
    }

    /// Reports the end of a receive. `cut_message` is the message of one that was too short.
    #[inline(never)]
    pub(super) fn end_recv(
        &self,
        op: &Op,
        ended: Result<RecvStatus, Error>,
        cut_message: Option<RecvStatus>,
    ) {
        let (message, error) = match ended {
            Ok(message) => (Some(message), None),
            Err(error) => (cut_message, Some(error)),
        };
        let mut shown =
            CqTaggedEntry { op_context: op.context, flags: op.flags, len: 0, buf: op.buf, data: 0, tag: 0 };
        let (mut cut, mut from) = (0, NO_SOURCE);
        if let Some(message) = message {
            shown.len = message.len.min(op.room);
            shown.tag = message.tag;
            if let Some(data) = message.cq_data {
                shown.data = data;
                shown.flags |= flags::REMOTE_CQ_DATA;
            }
            (cut, from) = (message.len - shown.len, message.from);
        }
        let failure = error.map(|error| Failure { cause: Cause::Failed(error), cut });
        let cntr = self.rx.cntr.get();
        let cntr = if op.cntr.is_null() {
            cntr
        } else if op.cntr == DETACHED {
            return;
        } else {
            self.end_deferred(op, cntr, failure.is_some())
        };
        let entry = Entry { shown, from, is_error: false };
        // SAFETY: as in `end_send`.
        unsafe { self.rx.report(cntr, op.is_reported, entry, failure) };
    }

    /// Cancels operations, and lets nobody hear of the end of those that go on: only the completion counter
    /// of deferred work hears at once of an error. Inside the lock.
    pub(super) fn detach(&self, plain: &ucp::Worker, running: &Running) {
        for record in running.all() {
            // SAFETY: the record lies in the request of an operation that runs. Nobody else uses it, inside
            // the lock.
            let op = unsafe { &mut *record.as_ptr() };
            if ![std::ptr::null(), DETACHED].contains(&op.cntr) {
                self.end_deferred(op, std::ptr::null(), true);
            }
            op.cntr = DETACHED;
            // SAFETY: as above.
            plain.cancel(unsafe { ucp::RequestId::from_user_memory(record.cast()) });
        }
    }

    /// Most bytes of a message that is copied.
    pub(super) fn most_copied(&self) -> usize {
        match self.kind {
            EpKind::Dgram => MAX_DATAGRAM,
            EpKind::Rdm | EpKind::Msg => INJECT_SIZE,
        }
    }

    /// Memory for a copy of a message.
    pub(super) fn take_copy(&self) -> Box<InjectBuf> {
        let known = self.inject_bufs.borrow_mut().pop();
        known.unwrap_or_else(|| Box::new(InjectBuf(vec![0; self.most_copied()].into())))
    }

    /// Keeps memory of a copy for the next one.
    /// # Safety
    /// `copy` is [`Op::copy`] of an operation that has ended or not begun, and is not used again.
    // HOT
    #[inline(always)]
    unsafe fn return_copy(&self, copy: *mut InjectBuf) {
        if !copy.is_null() {
            // SAFETY: the operation was its owner.
            self.keep_copy(unsafe { Box::from_raw(copy) });
        }
    }

    #[inline(never)]
    fn keep_copy(&self, copy: Box<InjectBuf>) {
        self.inject_bufs.borrow_mut().push(copy);
    }
}
