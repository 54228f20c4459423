//! Message buffers with one operation each: a window of sends or receives. The engine gets buffers by
//! pointer, so this file ensures that none is read, reused or freed while an operation has it.
//!
//! Runs that check no bytes share one buffer for the window, as `ucx_perftest` does: they measure the path,
//! not memory.

use std::borrow::Cow;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use ucp::rdm::RecvStatus;
use ucp::{
    Access, AtomicParams, Ep, Iov, Match, Mem, OpParams, OpStatus, RemoteIov, Rkey, RmaParams, SendParams,
    StreamRecvMode, Worker,
};

use super::single_buffer::SingleBuffer;
use super::slot::Slot;
use super::test_worker::TestWorker;
use super::waiter::{Waiter, op_failed};
use crate::fail::Failure;
use crate::page_buffer::PageBuffer;
use crate::payload;
use crate::spec::{Layout, Memory, Pages, Spec};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    PerSlot,
    /// For runs that do not read it.
    Shared,
}

pub struct WindowBuffers {
    worker: TestWorker,
    /// Memory of the buffers, registered or of the program; `None` once it has been leaked.
    memory: Option<Result<Mem, PageBuffer>>,
    memory_range: NonNull<[u8]>,
    size: usize,
    /// Distance of buffers, bytes: `size`, or 0 if they are shared.
    stride: usize,
    slots: Vec<Slot>,
    /// Status of receives that ended in the call that began them.
    statuses: Vec<Option<RecvStatus>>,
    /// Lengths of pieces in puts and gets, if there are several.
    pieces: ArrayVec<usize, 4>,
    /// Offset and length of each piece of a message in its buffer, if there are several.
    ranges: Vec<(usize, usize)>,
    list: Vec<Iov>,
}

pub enum Message<'a> {
    One(*const u8, usize),
    Pieces(&'a [Iov]),
}

impl WindowBuffers {
    pub fn new(
        worker: &TestWorker,
        slots: usize,
        size: usize,
        sharing: Sharing,
        memory: Memory,
    ) -> Result<WindowBuffers, Failure> {
        let (all, stride) = match sharing {
            Sharing::PerSlot => (slots.saturating_mul(size), size),
            Sharing::Shared => (if slots == 0 { 0 } else { size }, 0),
        };
        let cannot = || format!("cannot get {all} bytes for {slots} messages (see -s, -O)");
        let mem = match memory {
            Memory::Plain => None,
            _ if all == 0 => None,
            Memory::Allocated => worker.mem_alloc(all, Access::all()).ok(),
            Memory::Registered => Some(
                worker
                    .mem_alloc(all, Access::all())
                    .map_err(|e| Failure::Unsupported(format!("-z: {}: {e}", cannot())))?,
            ),
        };
        let memory = match mem {
            Some(mem) => Ok(mem),
            None => Err(PageBuffer::new(all, Pages::Now).ok_or_else(|| Failure::Unsupported(cannot()))?),
        };
        let start = match &memory {
            Ok(mem) => NonNull::new(mem.as_ptr()).ok_or_else(|| Failure::Unsupported(cannot()))?,
            Err(heap) => heap.start(),
        };
        let (memory_range, memory) = (NonNull::slice_from_raw_parts(start, all), Some(memory));
        let (slots, statuses) = (vec![Slot::Idle; slots], vec![None; slots]);
        let (worker, pieces, ranges, list) = (worker.clone(), ArrayVec::new(), Vec::new(), Vec::new());
        Ok(WindowBuffers {
            worker,
            memory,
            memory_range,
            size,
            stride,
            slots,
            statuses,
            pieces,
            ranges,
            list,
        })
    }

    pub fn of_sender(
        spec: &Spec,
        worker: &TestWorker,
        slots: usize,
        sharing: Sharing,
    ) -> Result<WindowBuffers, Failure> {
        let is_iov = spec.layout == Some(Layout::Iov);
        let size = if is_iov { spec.span() } else { spec.size() };
        let mut buffers = WindowBuffers::new(worker, slots, size, sharing, spec.memory)?;
        if is_iov {
            buffers.ranges = spec.piece_ranges().collect();
        }
        Ok(buffers)
    }

    pub fn of_receiver(
        spec: &Spec,
        worker: &TestWorker,
        slots: usize,
        sharing: Sharing,
    ) -> Result<WindowBuffers, Failure> {
        let is_iov = spec.recv_layout == Some(Layout::Iov);
        let size = if is_iov { spec.span() } else { spec.size() };
        let mut buffers = WindowBuffers::new(worker, slots, size, sharing, spec.memory)?;
        if is_iov {
            buffers.ranges = spec.piece_ranges().collect();
        }
        Ok(buffers)
    }

    pub fn received(&mut self, slot: usize) -> Cow<'_, [u8]> {
        if self.ranges.is_empty() {
            return Cow::Borrowed(self.bytes(slot));
        }
        let ranges = std::mem::take(&mut self.ranges);
        let bytes = self.bytes(slot);
        let whole: Vec<u8> = ranges.iter().flat_map(|&(at, len)| &bytes[at..at + len]).copied().collect();
        self.ranges = ranges;
        Cow::Owned(whole)
    }

    /// Writes message number `seq` into an idle buffer.
    pub fn number(&mut self, slot: usize, seq: u64) {
        if self.ranges.is_empty() {
            return payload::fill(self.bytes(slot), seq);
        }
        let ranges = std::mem::take(&mut self.ranges);
        let mut whole = vec![0; ranges.iter().map(|(_, len)| len).sum()];
        payload::fill(&mut whole, seq);
        let (bytes, mut at) = (self.bytes(slot), 0);
        for &(to, len) in &ranges {
            bytes[to..to + len].copy_from_slice(&whole[at..at + len]);
            at += len;
        }
        self.ranges = ranges;
    }

    pub fn worker(&self) -> &TestWorker {
        &self.worker
    }

    /// The worker, and the message in a buffer.
    // HOT
    #[inline(always)]
    fn message(&mut self, slot: usize) -> (&TestWorker, Message<'_>) {
        let at = self.slot_ptr(slot);
        if self.ranges.is_empty() {
            return (&self.worker, Message::One(at, self.size));
        }
        self.list.clear();
        // Pieces lie within the buffer: it is as long as they span.
        let piece = |&(offset, len): &(usize, usize)| Iov { addr: at.wrapping_add(offset), len };
        self.list.extend(self.ranges.iter().map(piece));
        (&self.worker, Message::Pieces(&self.list))
    }

    /// Makes puts and gets pass their buffer in adjacent pieces of these lengths.
    pub fn split_into(&mut self, pieces: &[usize]) {
        debug_assert!(pieces.iter().sum::<usize>() == self.size);
        self.pieces = pieces.iter().copied().take(4).collect();
    }

    fn split(&self, slot: usize) -> ArrayVec<Iov, 4> {
        let mut addr = self.slot_ptr(slot);
        let cut = |len: &usize| {
            let piece = Iov { addr, len: *len };
            addr = addr.wrapping_add(*len);
            piece
        };
        self.pieces.iter().map(cut).collect()
    }

    /// The shared contiguous buffer and all slots, if this is one.
    pub fn single_buffer(&mut self) -> Option<(SingleBuffer<'_>, &mut [Slot])> {
        if !self.ranges.is_empty() || !self.pieces.is_empty() || self.stride > 0 && self.slots.len() > 1 {
            return None;
        }
        // SAFETY: `size` bytes start there and live as long as a slot is `Running`: see `drop`. Readers need
        // the window, which is borrowed.
        let single = unsafe { SingleBuffer::new(&self.worker, self.memory_range.as_ptr().cast(), self.size) };
        Some((single, &mut self.slots))
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline(always)]
    fn slot_ptr(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.slots.len());
        self.memory_range.as_ptr().cast::<u8>().wrapping_add(slot * self.stride)
    }

    pub fn bytes(&mut self, slot: usize) -> &mut [u8] {
        let same_memory = if self.stride == 0 { &self.slots[..] } else { &self.slots[slot..=slot] };
        assert!(same_memory.iter().all(|s| !matches!(s, Slot::Running(_))), "an operation has the buffer");
        let at = self.slot_ptr(slot);
        // SAFETY: `at` starts `size` bytes of the window's memory, whose key no peer has. This is the only
        // reference to them: no operation has them, and the result borrows `self`.
        unsafe { std::slice::from_raw_parts_mut(at, self.size) }
    }

    /// Sends an idle buffer.
    // HOT
    #[inline(always)]
    pub fn send(&mut self, slot: usize, ep: &Ep, params: &SendParams) -> Result<(), Failure> {
        debug_assert!(matches!(self.slots[slot], Slot::Idle));
        let (worker, message) = self.message(slot);
        let started = worker.call(|_| match message {
            // SAFETY: the buffer does not change while its slot is `Running` (sends that share it only read),
            // and lives until then: see `drop`.
            Message::One(at, len) => unsafe { ep.send_raw(at, len, params) },
            // SAFETY: as above.
            Message::Pieces(pieces) => unsafe { ep.send_layout_raw(pieces, params) },
        });
        self.slots[slot] = Slot::of(started)?;
        Ok(())
    }

    /// Sends an idle buffer by `begin`.
    /// # Safety
    /// `begin` starts an operation of the window's worker that reads these bytes, and passes them to nothing
    /// else.
    // HOT
    #[inline(always)]
    pub unsafe fn send_by(
        &mut self,
        slot: usize,
        begin: impl FnOnce(Message<'_>) -> Result<OpStatus<()>, ucp::Error>,
    ) -> Result<(), Failure> {
        debug_assert!(matches!(self.slots[slot], Slot::Idle));
        let (worker, message) = self.message(slot);
        let started = worker.call(|_| begin(message));
        self.slots[slot] = Slot::of(started)?;
        Ok(())
    }

    /// Receives into an idle buffer from a stream until it is full.
    // HOT
    #[inline(always)]
    pub fn stream_recv(&mut self, slot: usize, ep: &Ep) -> Result<(), Failure> {
        debug_assert!(matches!(self.slots[slot], Slot::Idle));
        let (worker, message) = self.message(slot);
        let started = worker.call(|_| match message {
            // SAFETY: as in `recv`.
            Message::One(at, len) => unsafe {
                ep.stream_recv_raw(at.cast_mut(), len, StreamRecvMode::WaitAll, &OpParams::default())
            },
            // SAFETY: as in `recv`.
            Message::Pieces(pieces) => unsafe {
                ep.stream_recv_layout_raw(pieces, StreamRecvMode::WaitAll, &OpParams::default())
            },
        });
        self.slots[slot] = Slot::Running(started.map_err(op_failed)?);
        Ok(())
    }

    /// Receives into an idle buffer.
    // HOT
    #[inline(always)]
    pub fn recv(&mut self, slot: usize, matching: Match) -> Result<(), Failure> {
        debug_assert!(matches!(self.slots[slot], Slot::Idle));
        if !self.ranges.is_empty() {
            return self.recv_pieces(slot, matching);
        }
        let (at, size) = (self.slot_ptr(slot), self.size);
        // SAFETY: as in `send`; only receives of this worker share the buffer.
        let recv = |worker: &Worker| unsafe { worker.recv_raw(at, size, matching, &OpParams::default()) };
        let started = self.worker.call(recv);
        self.set_started(slot, started)
    }

    fn recv_pieces(&mut self, slot: usize, matching: Match) -> Result<(), Failure> {
        let (worker, Message::Pieces(pieces)) = self.message(slot) else { return Ok(()) };
        // SAFETY: as in `recv`.
        let recv =
            |worker: &Worker| unsafe { worker.recv_layout_raw(pieces, matching, &OpParams::default()) };
        let started = worker.call(recv);
        self.set_started(slot, started)
    }

    /// Waits until a matching unexpected message is there, then receives it into an idle buffer.
    pub fn probe_and_recv(
        &mut self,
        slot: usize,
        matching: Match,
        wait: &mut Waiter<'_>,
    ) -> Result<(), Failure> {
        debug_assert!(matches!(self.slots[slot], Slot::Idle));
        let mut found = loop {
            match self.worker.call(|worker| worker.mprobe(matching)) {
                Some(found) => break found,
                None => _ = wait.progress(&self.worker)?,
            }
        };
        let (worker, message) = self.message(slot);
        let started = worker.call(|_| match message {
            // SAFETY: as in `recv`.
            Message::One(at, len) => unsafe { found.recv_raw(at.cast_mut(), len, &OpParams::default()) },
            // SAFETY: as in `recv`.
            Message::Pieces(pieces) => unsafe { found.recv_layout_raw(pieces, &OpParams::default()) },
        });
        self.set_started(slot, started)
    }

    /// Puts an idle buffer to a peer's memory.
    // HOT
    #[inline(always)]
    pub fn put(&mut self, slot: usize, ep: &Ep, remote: u64, rkey: &Rkey) -> Result<(), Failure> {
        debug_assert!(matches!(self.slots[slot], Slot::Idle));
        let at = self.slot_ptr(slot);
        if !self.pieces.is_empty() {
            let there = [RemoteIov { addr: remote, len: self.size, rkey }];
            // SAFETY: as in `send`; the pieces are the buffer.
            let started = self
                .worker
                .call(|_| unsafe { ep.put_iov_raw(&self.split(slot), &there, &RmaParams::default()) });
            self.slots[slot] = Slot::of(started)?;
            return Ok(());
        }
        // SAFETY: as in `send`.
        let started =
            self.worker.call(|_| unsafe { ep.put_raw(at, self.size, remote, rkey, &RmaParams::default()) });
        self.slots[slot] = Slot::of(started)?;
        Ok(())
    }

    /// Gets a peer's memory into an idle buffer.
    // HOT
    #[inline(always)]
    pub fn get(&mut self, slot: usize, ep: &Ep, remote: u64, rkey: &Rkey) -> Result<(), Failure> {
        debug_assert!(matches!(self.slots[slot], Slot::Idle));
        let at = self.slot_ptr(slot);
        if !self.pieces.is_empty() {
            let there = [RemoteIov { addr: remote, len: self.size, rkey }];
            // SAFETY: as in `recv`; the pieces are the buffer.
            let started = self
                .worker
                .call(|_| unsafe { ep.get_iov_raw(&self.split(slot), &there, &RmaParams::default()) });
            return self.set_started(slot, started);
        }
        // SAFETY: as in `recv`.
        let started =
            self.worker.call(|_| unsafe { ep.get_raw(at, self.size, remote, rkey, &RmaParams::default()) });
        self.set_started(slot, started)
    }

    /// Starts an atomic on one element. Operands are copied in the call; a fetched value goes to an idle
    /// buffer.
    // HOT
    #[inline(always)]
    pub fn atomic(
        &mut self,
        slot: usize,
        ep: &Ep,
        remote: u64,
        rkey: &Rkey,
        params: AtomicParams<'_>,
        fetches: bool,
    ) -> Result<(), Failure> {
        debug_assert!(matches!(self.slots[slot], Slot::Idle));
        assert!(params.count == 1 && params.ty.size() == self.size);
        let result = if fetches { self.slot_ptr(slot) } else { std::ptr::null_mut() };
        let params = AtomicParams { result, ..params };
        // SAFETY: operands live until the call ends; the buffer has room for the element and is not touched
        // while its slot is `Running`.
        let started = self.worker.call(|_| unsafe { ep.atomic_raw(remote, rkey, &params) });
        self.set_started(slot, started)
    }

    #[inline(always)]
    fn set_started(
        &mut self,
        slot: usize,
        started: Result<OpStatus<RecvStatus>, ucp::Error>,
    ) -> Result<(), Failure> {
        self.slots[slot] = match started.map_err(op_failed)? {
            OpStatus::InProgress(id) => Slot::Running(id),
            OpStatus::Done(status) => {
                self.statuses[slot] = Some(status);
                Slot::Ended
            }
        };
        Ok(())
    }

    /// Waits until a buffer is idle; returns the status of a receive.
    // HOT
    #[inline(always)]
    pub fn wait(&mut self, slot: usize, wait: &mut Waiter<'_>) -> Result<Option<RecvStatus>, Failure> {
        let state = &mut self.slots[slot];
        let status = match *state {
            Slot::Idle => return Ok(None),
            Slot::Ended => self.statuses[slot].take(),
            Slot::Running(id) => {
                let ended = loop {
                    match self.worker.call(|worker| worker.test(id)) {
                        Some(ended) => break ended,
                        // Only an event can end it: test again after one.
                        None => while !wait.progress(&self.worker)? {},
                    }
                };
                *state = Slot::Idle;
                return Ok(Some(ended.map_err(op_failed)?));
            }
        };
        *state = Slot::Idle;
        Ok(status)
    }

    /// Whether the operation of a buffer, if any, has ended. Makes no progress.
    // HOT
    #[inline(always)]
    pub fn is_idle(&mut self, slot: usize) -> Result<bool, Failure> {
        if let Slot::Idle = self.slots[slot] {
            return Ok(true);
        }
        Ok(self.poll_slot(slot)?.is_some())
    }

    /// Status of a receive, once, when it has ended. Makes no progress.
    // HOT
    #[inline(always)]
    pub fn poll(&mut self, slot: usize) -> Result<Option<RecvStatus>, Failure> {
        Ok(self.poll_slot(slot)?.flatten())
    }

    #[inline(always)]
    fn poll_slot(&mut self, slot: usize) -> Result<Option<Option<RecvStatus>>, Failure> {
        let state = &mut self.slots[slot];
        let status = match *state {
            Slot::Idle => return Ok(None),
            Slot::Ended => Ok(self.statuses[slot].take()),
            Slot::Running(id) => match self.worker.call(|worker| worker.test(id)) {
                None => return Ok(None),
                Some(ended) => ended.map(Some).map_err(op_failed),
            },
        };
        *state = Slot::Idle;
        status.map(Some)
    }

    pub fn drain(&mut self, wait: &mut Waiter<'_>) -> Result<(), Failure> {
        (0..self.len()).try_for_each(|slot| self.wait(slot, wait).map(drop))
    }
}

impl Drop for WindowBuffers {
    fn drop(&mut self) {
        // After a failure operations may still use the buffers: leak them.
        if self.slots.iter().any(|s| matches!(s, Slot::Running(_))) {
            std::mem::forget(self.memory.take());
        }
    }
}
