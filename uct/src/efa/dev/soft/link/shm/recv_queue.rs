//! Receive side: posts receive WQEs, takes published descriptors in claim order, skips dead senders.

#![allow(unsafe_code)]

use super::super::{PostedRecv, RecvQueue};
use super::ShmDevice;
use super::lookup::QpName;
use super::ring;
use super::seg::{
    Credit, Desc, FLAG_ABORT, FLAG_COLD, FLAG_HOT, FLAG_IMM, FLAG_INLINE, FLAG_TOO_LONG, FLAG_VOID,
    FLAG_WRITE, Head, INLINE, QpSeg, SHORT,
};
use crate::api::Access;
use crate::base::hold_time::HoldTime;
use crate::efa::dev::soft::mr::Backing;
use crate::efa::dev::{Cqe, CqeOp, DevStatus, Gid};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ucs::mem::guard;
use ucs::sync::Ordering::{Acquire, Relaxed};
use ucs::sys::proc::WatchError;
use ucs::sys::{PidFd, ProcId, proc};

/// Upkeep rounds between two accept calls, which cost microseconds and would show in tail latency.
const DRAIN_EVERY: u32 = 256;

/// Fields that decide about an arrival, read once: the sender could change them between check and use.
#[derive(Clone, Copy)]
struct DescFields {
    src: u32,
    len: u32,
}

impl DescFields {
    #[inline]
    fn read(desc: &Desc) -> DescFields {
        DescFields { src: desc.src.load(Relaxed), len: desc.len.load(Relaxed) }
    }
}

/// A claim that is not published: its index, and for how long.
type Stuck = (u32, HoldTime);

/// Time for which a live process that runs may hold a claim without publishing it: a copy takes microseconds.
const MAX_HOLD: Duration = Duration::from_secs(4);

/// Receive queue of a queue pair, in memory that senders write.
pub struct ShmRecvQueue {
    dev: Arc<ShmDevice>,
    name: QpName,
    seg: QpSeg,
    qpn: u16,
    pd: u32,
    /// Posted receives by ring slot; private, so peers cannot change them.
    posted_recvs: Box<[Cell<Option<PostedRecv>>]>,
    posted: Cell<u32>,
    tail: Cell<u32>,
    min_recv_len: Cell<u32>,
    direct: Cell<bool>,
    unsol_tail: Cell<u32>,
    /// Tails at the last upkeep, if claimed and unpublished then, and for how long.
    stuck: Cell<Option<Stuck>>,
    unsol_stuck: Cell<Option<Stuck>>,
    closed: Cell<bool>,
    upkeep_rounds: Cell<u32>,
    warned_too_long: Cell<bool>,
}

impl ShmRecvQueue {
    pub(super) fn new(dev: Arc<ShmDevice>, name: QpName, seg: QpSeg, qpn: u16, pd: u32) -> ShmRecvQueue {
        let layout = seg.layout();
        ring::grant(&seg.hdr().unsol_credit.posted, layout.unsol);
        ShmRecvQueue {
            dev,
            name,
            qpn,
            pd,
            posted_recvs: (0..layout.ring).map(|_| Cell::new(None)).collect(),
            posted: Cell::new(0),
            tail: Cell::new(0),
            min_recv_len: Cell::new(u32::MAX),
            direct: Cell::new(false),
            unsol_tail: Cell::new(0),
            stuck: Cell::new(None),
            unsol_stuck: Cell::new(None),
            closed: Cell::new(false),
            upkeep_rounds: Cell::new(0),
            warned_too_long: Cell::new(false),
            seg,
        }
    }

    #[inline]
    fn ring_slot(&self, index: u32) -> usize {
        (index & (self.seg.layout().ring - 1)) as usize
    }

    /// Rechecks the receive's key and moves the message of claim `index` to its buffer.
    // HOT
    #[inline]
    fn finish(&self, desc: &Desc, index: u32, fields: DescFields, posted: &PostedRecv) -> DevStatus {
        let DescFields { src: flags, len } = fields;
        if flags & (FLAG_TOO_LONG | FLAG_ABORT) != 0 || len > posted.cap {
            return self.no_message(flags, len, posted);
        }
        if len == 0 || flags & (FLAG_INLINE | FLAG_HOT | FLAG_COLD) == 0 {
            return DevStatus::Ok;
        }
        let addr = posted.addr as u64;
        if !self.dev.table.allows(posted.lkey, self.pd, addr, len.into(), Access::LOCAL_WRITE) {
            return DevStatus::InvalidLkey;
        }
        if flags & FLAG_INLINE != 0 {
            if len as usize > SHORT {
                return DevStatus::BadStatus;
            }
            // SAFETY: `len` is at most SHORT; the buffer is a live registration of that length.
            let copied = unsafe { self.copy_short(desc, index, len as usize, posted.addr) };
            return if copied { DevStatus::Ok } else { DevStatus::InvalidLkey };
        }
        let hot = flags & FLAG_HOT != 0;
        let slot = if hot { self.seg.hot_slot(index) } else { self.seg.cold_slot(index) };
        let Some(from) = self.seg.payload(slot, len) else { return DevStatus::BadStatus };
        if guard::is_on() {
            // SAFETY: `from` has `len` bytes in our own segment, not registered; the buffer as above.
            let copied = unsafe { guard::copy(from, posted.addr, len as usize) };
            return if copied { DevStatus::Ok } else { DevStatus::InvalidLkey };
        }
        // SAFETY: as above.
        unsafe { ucs::mem::copy_bytes(from, posted.addr, len as usize) };
        DevStatus::Ok
    }

    /// Copies a short message out. False: the program has unmapped the buffer. Unsafe: `len` is at most
    /// SHORT, and `to` writable for that many bytes.
    // HOT
    #[inline]
    unsafe fn copy_short(&self, desc: &Desc, index: u32, len: usize, to: *mut u8) -> bool {
        let body: [u64; INLINE / 8] = std::array::from_fn(|i| desc.body[i].load(Relaxed));
        if len <= INLINE {
            // SAFETY: `body` has so many bytes, and `to` room for them by this function's contract.
            return unsafe { guard::copy(body.as_ptr().cast(), to, len) };
        }
        // SAFETY: the message, and with it the room at `to`, is longer than `body`.
        if !unsafe { guard::copy(body.as_ptr().cast(), to, INLINE) } {
            return false;
        }
        let desc_ext = self.seg.desc_ext(index);
        let rest: [u64; (SHORT - INLINE) / 8] = std::array::from_fn(|i| desc_ext.0[i].load(Relaxed));
        // SAFETY: inside the room at `to`, which is longer.
        let to = unsafe { to.add(INLINE) };
        // SAFETY: `rest` has the bytes of the longest message behind `body`, and `to` room for this one's.
        unsafe { guard::copy(rest.as_ptr().cast(), to, len - INLINE) }
    }

    /// Status of a claim whose message did not come.
    #[cold]
    fn no_message(&self, flags: u32, len: u32, posted: &PostedRecv) -> DevStatus {
        if flags & FLAG_TOO_LONG != 0 {
            return self.too_long(len, posted);
        }
        if len > posted.cap {
            // Only a faulty sender does this.
            return DevStatus::BadStatus;
        }
        if self.closed.get() { DevStatus::Flushed } else { DevStatus::InvalidLkey }
    }

    fn too_long(&self, len: u32, posted: &PostedRecv) -> DevStatus {
        if !self.warned_too_long.replace(true) {
            let (qpn, cap, mtu) = (self.qpn, posted.cap, self.dev.mtu);
            tracing::error!(
                "queue pair {qpn}: a message of {len} bytes came for a receive of {cap} bytes on a device with an MTU of \
                 {mtu}: its sender's device may have a longer one (SOFTEFA_MTU)"
            );
        }
        DevStatus::BadLength
    }

    // HOT
    #[inline]
    fn finish_claim(&self, tail: u32) {
        self.tail.set(tail.wrapping_add(1));
        ring::set_taken(&self.seg.hdr().credit.taken, tail);
    }

    #[inline]
    fn cqe(&self, desc: &Desc, DescFields { src, len }: DescFields, wr_id: u64, status: DevStatus) -> Cqe {
        Cqe {
            wr_id,
            status,
            op: if src & FLAG_WRITE != 0 { CqeOp::RecvWriteImm } else { CqeOp::Recv },
            qpn: self.qpn,
            src_qpn: src as u16,
            len,
            src_gid: Gid::link_local(desc.src_iid.load(Relaxed)),
            imm: (src & FLAG_IMM != 0).then(|| desc.imm.load(Relaxed)),
        }
    }

    /// Whether an arrival is there that consumed a receive.
    // HOT
    #[inline]
    fn has_arrival(&self) -> bool {
        let tail = self.tail.get();
        ring::is_published(&self.seg.desc(tail).seq, tail)
    }

    /// Completes the arrival that is there into `out`, and has it inspected. False: none to report.
    // HOT
    #[inline]
    fn next(&self, out: &mut Cqe, inspect: &mut impl FnMut(&mut Cqe, Option<&PostedRecv>)) -> bool {
        let tail = self.tail.get();
        let desc = self.seg.desc(tail);
        // Published without a posted receive: only a faulty sender does this.
        let Some(posted) = self.posted_recvs[self.ring_slot(tail)].take() else { return false };
        let fields = DescFields::read(desc);
        let status = match fields.src & (FLAG_WRITE | FLAG_VOID) {
            0 => self.finish(desc, tail, fields, &posted),
            FLAG_WRITE => DevStatus::Ok,
            _ if self.closed.get() => DevStatus::Flushed,
            _ => {
                self.skip_void(tail, posted);
                return false;
            }
        };
        self.finish_claim(tail);
        *out = self.cqe(desc, fields, posted.wr_id, status);
        inspect(out, Some(&posted));
        true
    }

    /// Passes over a claim without a message. Polls find what is behind it next time.
    #[cold]
    fn skip_void(&self, tail: u32, posted: PostedRecv) {
        self.finish_claim(tail);
        self.post(posted);
    }

    fn next_unsol(&self) -> Option<Cqe> {
        let tail = self.unsol_tail.get();
        let desc = self.seg.unsol_desc(tail);
        if !ring::is_published(&desc.seq, tail) {
            return None;
        }
        let DescFields { src, len } = DescFields::read(desc);
        // Nothing else arrives in this ring, whatever the flags say.
        let cqe = self.cqe(desc, DescFields { src: src | FLAG_WRITE, len }, 0, DevStatus::Ok);
        self.unsol_tail.set(tail.wrapping_add(1));
        self.grant_unsol(tail);
        Some(cqe)
    }

    fn grant_unsol(&self, tail: u32) {
        let credit = &self.seg.hdr().unsol_credit;
        ring::grant(&credit.posted, tail.wrapping_add(1).wrapping_add(self.seg.layout().unsol));
    }

    /// Waits for copies that peers make through the queue pair, which is closed.
    fn await_copies(&self) {
        if self.dev.is_owner_process() {
            self.dev.seg.marks().await_qp(self.qpn);
        }
    }

    /// Whether a claim was made by a process that is gone, and never published. It is gone as well if another
    /// one has its number, or it is another program: who holds a claim for too long maps the segment.
    fn is_abandoned(&self, held: Option<Stuck>, head: &Head, ring: u32, this: &Desc, after: &Desc) -> bool {
        let Some((index, hold)) = held else { return false };
        if head.word.load(Acquire) as u32 == index || ring::is_published(&this.seq, index) {
            return false;
        }
        let claimer = ring::claimer(&head.word, index, ring, &this.claimer, &after.before);
        // It may have published between that and its death.
        let is_gone =
            |pid| is_dead_pid(pid) || hold.held() > MAX_HOLD && self.seg.is_mapped_by(pid) == Some(false);
        claimer.is_some_and(is_gone) && !ring::is_published(&this.seq, index)
    }

    /// Which word of the segment is not as the owner, which writes it, or any sender leaves it.
    fn impossible_word(&self) -> Option<&'static str> {
        let (h, tail, layout) = (self.seg.hdr(), self.tail.get(), self.seg.layout());
        let word = h.head.word.load(Acquire);
        // Claims without a receive are ignored, as far as the ring reaches.
        if word & ring::CLOSED != 0 || (word as u32).wrapping_sub(tail) > layout.ring {
            return Some("the head of the receive ring");
        }
        let (credit, min_recv_len) = (&h.credit, self.min_recv_len.get());
        let is_min_written = min_recv_len != u32::MAX;
        if credit.posted.load(Relaxed) != self.posted.get()
            || credit.taken.load(Relaxed) != tail
            || is_min_written && credit.min_recv_len.load(Relaxed) != min_recv_len
            || credit.direct.load(Relaxed) != u32::from(self.direct.get())
        {
            return Some("the credit of the receive ring");
        }
        if layout.unsol == 0 {
            return None;
        }
        let (word, tail) = (h.unsol_head.word.load(Acquire), self.unsol_tail.get());
        if word & ring::CLOSED != 0 || (word as u32).wrapping_sub(tail) > layout.unsol {
            return Some("the head of the ring of unsolicited arrivals");
        }
        let is_granted = h.unsol_credit.posted.load(Relaxed) == tail.wrapping_add(layout.unsol);
        (!is_granted).then_some("the credit of the ring of unsolicited arrivals")
    }

    /// Whether a claim has been held for long by no process that may be halted or has died.
    fn is_overdue(&self, held: Option<Stuck>, head: &Head, ring: u32, this: &Desc, after: &Desc) -> bool {
        let Some((index, hold)) = held else { return false };
        if hold.held() <= MAX_HOLD || ring::is_published(&this.seq, index) {
            return false;
        }
        let holder = ring::claimer(&head.word, index, ring, &this.claimer, &after.before);
        holder.is_none_or(|pid| !proc::may_be_halted(pid))
    }

    /// Finds a claim that will never be published.
    fn overdue_claim(&self) -> Option<&'static str> {
        let (h, layout) = (self.seg.hdr(), self.seg.layout());
        let (tail, unsol) = (self.tail.get(), self.unsol_tail.get());
        let (this, after) = (self.seg.desc(tail), self.seg.desc(tail.wrapping_add(1)));
        if self.is_overdue(self.stuck.get(), &h.head, layout.ring, this, after) {
            return Some("a descriptor of the receive ring");
        }
        if layout.unsol == 0 {
            return None;
        }
        let (this, after) = (self.seg.unsol_desc(unsol), self.seg.unsol_desc(unsol.wrapping_add(1)));
        let is_overdue = self.is_overdue(self.unsol_stuck.get(), &h.unsol_head, layout.unsol, this, after);
        is_overdue.then_some("a descriptor of the ring of unsolicited arrivals")
    }

    /// Notes a claim that is not published, or that there is none. Whether it was noted before.
    fn note_stuck(noted: &Cell<Option<Stuck>>, stuck: Option<u32>) -> bool {
        let before = noted.get().filter(|(index, _)| stuck == Some(*index));
        noted.set(match before {
            Some((index, mut hold)) => {
                hold.look(Instant::now());
                Some((index, hold))
            }
            None => stuck.map(|index| (index, HoldTime::new(Instant::now()))),
        });
        before.is_some()
    }

    /// Skips a claim abandoned by a dead sender, if seen at two upkeeps, so that the system calls are rare.
    fn skip_abandoned(&self) {
        let tail = self.tail.get();
        let word = self.seg.hdr().head.word.load(Relaxed);
        // A claim without a receive is invalid: skipping it would move the tail beyond what was posted.
        let is_stuck = self.outstanding() != 0
            && word as u32 != tail
            && !ring::is_published(&self.seg.desc(tail).seq, tail);
        if !Self::note_stuck(&self.stuck, is_stuck.then_some(tail)) {
            return;
        }
        let (desc, after) = (self.seg.desc(tail), self.seg.desc(tail.wrapping_add(1)));
        if self.is_abandoned(self.stuck.get(), &self.seg.hdr().head, self.seg.layout().ring, desc, after) {
            tracing::debug!("queue pair {}: a sender died in the middle of a message", self.qpn);
            self.stuck.set(None);
            if self.closed.get() {
                desc.len.store(0, Relaxed);
                desc.src.store(FLAG_ABORT, Relaxed);
                return ring::publish(&desc.seq, tail);
            }
            let taken = self.posted_recvs[self.ring_slot(tail)].take();
            self.finish_claim(tail);
            if let Some(posted) = taken {
                self.post(posted);
            }
        }
    }

    fn skip_abandoned_unsol(&self) {
        let tail = self.unsol_tail.get();
        let (desc, after) = (self.seg.unsol_desc(tail), self.seg.unsol_desc(tail.wrapping_add(1)));
        let is_stuck = ring::has_unpublished(&self.seg.hdr().unsol_head.word, tail)
            && !ring::is_published(&desc.seq, tail);
        Self::note_stuck(&self.unsol_stuck, is_stuck.then_some(tail));
        let (head, held) = (&self.seg.hdr().unsol_head, self.unsol_stuck.get());
        if self.is_abandoned(held, head, self.seg.layout().unsol, desc, after) {
            self.unsol_stuck.set(None);
            self.unsol_tail.set(tail.wrapping_add(1));
            self.grant_unsol(tail);
        }
    }
}

fn is_dead_pid(pid: u32) -> bool {
    let start = match proc::start_time(pid) {
        Ok(Some(start)) => start,
        Ok(None) => return true,
        // Unknown. A wrong `true` would drop the message of a slow sender.
        Err(_) => return false,
    };
    match PidFd::open(ProcId { pid, start }) {
        Ok(pidfd) => pidfd.is_dead(),
        Err(WatchError::Gone { .. }) => true,
        Err(WatchError::Os { .. }) => false,
    }
}

impl RecvQueue for ShmRecvQueue {
    #[inline]
    fn qpn(&self) -> u16 {
        self.qpn
    }

    fn set_qkey(&self, qkey: u32) {
        self.seg.set_qkey(qkey);
    }

    // HOT
    #[inline]
    fn post(&self, posted: PostedRecv) {
        let index = self.posted.get();
        let direct = posted.backing == Backing::File;
        let cap = if direct { posted.cap } else { posted.cap.min(self.seg.layout().slot_len) };
        let lkey = if direct { posted.lkey } else { 0 };
        self.posted_recvs[self.ring_slot(index)].set(Some(posted));
        let wqe = self.seg.recv_wqe(index);
        wqe.addr.store(posted.addr as u64, Relaxed);
        wqe.len_lkey.store(u64::from(lkey) << 32 | u64::from(cap), Relaxed);
        let credit: &Credit = &self.seg.hdr().credit;
        if cap < self.min_recv_len.get() {
            self.min_recv_len.set(cap);
            credit.min_recv_len.store(cap, Relaxed);
        }
        if direct && !self.direct.replace(true) {
            credit.direct.store(1, Relaxed);
        }
        self.posted.set(index.wrapping_add(1));
        ring::grant(&credit.posted, index.wrapping_add(1));
    }

    #[inline]
    fn outstanding(&self) -> u32 {
        self.posted.get().wrapping_sub(self.tail.get())
    }

    // HOT
    #[inline]
    fn poll(&self, out: &mut [Cqe], inspect: &mut impl FnMut(&mut Cqe, Option<&PostedRecv>)) -> usize {
        let mut n = 0;
        while n < out.len() && self.has_arrival() && self.next(&mut out[n], inspect) {
            n += 1;
        }
        if self.seg.layout().unsol > 0 {
            while n < out.len() {
                let Some(mut cqe) = self.next_unsol() else { break };
                inspect(&mut cqe, None);
                out[n] = cqe;
                n += 1;
            }
        }
        n
    }

    // HOT
    #[inline]
    fn ready(&self) -> bool {
        let there = |tail: u32, desc: &Desc| ring::is_published(&desc.seq, tail);
        let (tail, unsol) = (self.tail.get(), self.unsol_tail.get());
        // A publication without a posted receive is invalid and cannot be polled.
        (there(tail, self.seg.desc(tail)) && self.outstanding() != 0)
            || (self.seg.layout().unsol > 0 && there(unsol, self.seg.unsol_desc(unsol)))
    }

    fn has_unpublished(&self) -> bool {
        let h = self.seg.hdr();
        ring::has_unpublished(&h.head.word, self.tail.get())
            || (self.seg.layout().unsol > 0
                && ring::has_unpublished(&h.unsol_head.word, self.unsol_tail.get()))
    }

    fn arm(&self, armed: bool) {
        ring::arm(&self.seg.hdr().armed.flag, armed);
    }

    fn close(&self, each: &mut dyn FnMut(PostedRecv)) {
        if !self.dev.is_owner_process() {
            return;
        }
        self.closed.set(true);
        let h = self.seg.hdr();
        let word = ring::close(&h.head.word);
        ring::close(&h.unsol_head.word);
        // Earlier claims are messages in flight that may still be polled. Impossible claims are ignored.
        let outstanding = self.outstanding();
        let claimed =
            Some((word as u32).wrapping_sub(self.tail.get())).filter(|n| *n <= outstanding).unwrap_or(0);
        let first = self.tail.get().wrapping_add(claimed);
        for n in 0..outstanding - claimed {
            if let Some(posted) = self.posted_recvs[self.ring_slot(first.wrapping_add(n))].take() {
                each(posted);
            }
        }
        self.posted.set(first);
    }

    fn give_up(&self, each: &mut dyn FnMut(PostedRecv)) {
        self.close(each);
        self.await_copies();
        // Those that senders have claimed, too.
        let (tail, end) = (self.tail.get(), self.posted.get());
        for n in 0..end.wrapping_sub(tail) {
            let taken = self.posted_recvs[self.ring_slot(tail.wrapping_add(n))].take();
            taken.into_iter().for_each(&mut *each);
        }
        self.tail.set(end);
    }

    #[cold]
    fn upkeep(&self) -> Result<(), &'static str> {
        let upkeep_rounds = self.upkeep_rounds.get().wrapping_add(1);
        self.upkeep_rounds.set(upkeep_rounds);
        if upkeep_rounds.is_multiple_of(DRAIN_EVERY) {
            self.name.accept_all();
        }
        self.skip_abandoned();
        if self.seg.layout().unsol > 0 {
            self.skip_abandoned_unsol();
        }
        self.dev.free_abandoned_copies();
        if self.closed.get() || !self.dev.is_owner_process() {
            return Ok(());
        }
        self.impossible_word().or_else(|| self.overdue_claim()).map_or(Ok(()), Err)
    }
}

impl Drop for ShmRecvQueue {
    fn drop(&mut self) {
        self.close(&mut |_| {});
        self.await_copies();
    }
}
