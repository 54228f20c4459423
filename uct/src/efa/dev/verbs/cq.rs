//! Completion queues: the extended poll, source GIDs, and the event channel. Drops completions of destroyed
//! queue pairs.

#![allow(unsafe_code)]

use super::context::Context;
use super::efadv;
use super::qp::QpCore;
use super::status::{dev_status, last_error};
use crate::api::Error;
use crate::efa::dev::{Channel, Cqe, CqeOp, DevCq, DevStatus, Gid};
use rdma_sys::*;
use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

/// A completion queue.
pub struct Cq(pub(super) Rc<CqCore>);

pub(super) struct CqCore {
    senders: RefCell<Vec<Rc<QpCore>>>,
    receivers: RefCell<Vec<Rc<QpCore>>>,
    /// Completion that [`DevCq::arm`] found.
    peeked: Cell<Option<Cqe>>,
    cq: RawCq,
    channel: Option<EventChannel>,
}

/// The library's queue, destroyed on drop.
struct RawCq {
    ex: NonNull<ibv_cq_ex>,
    efa: NonNull<efadv::Cq>,
    /// Whether the library reports arrivals that consumed no receive.
    reports_unsolicited: bool,
    ctx: Arc<Context>,
}

struct EventChannel {
    ptr: NonNull<ibv_comp_channel>,
    _ctx: Arc<Context>,
}

/// Fields requested with each completion.
const WC_FLAGS: u32 = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN.0
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM.0
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM.0
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SRC_QP.0
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SLID.0;

impl RawCq {
    fn new(ctx: &Arc<Context>, depth: u32, channel: *mut ibv_comp_channel) -> Result<RawCq, Error> {
        // An interface is used by one thread; a library that cannot omit its locks fails.
        let made = RawCq::make(ctx, depth, channel, true);
        made.or_else(|_| RawCq::make(ctx, depth, channel, false))
    }

    fn make(
        ctx: &Arc<Context>,
        depth: u32,
        channel: *mut ibv_comp_channel,
        single_threaded: bool,
    ) -> Result<RawCq, Error> {
        // SAFETY: integers and pointers that may be null.
        let mut attr: ibv_cq_init_attr_ex = unsafe { std::mem::zeroed() };
        attr.cqe = depth;
        attr.channel = channel;
        attr.wc_flags = WC_FLAGS.into();
        if single_threaded {
            attr.comp_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
            attr.flags = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
        }
        let reports_unsolicited = ctx.attr.unsolicited_write_recv;
        let mut efa = efadv::CqInitAttr { wc_flags: efadv::WC_EX_WITH_SGID, ..Default::default() };
        if reports_unsolicited {
            efa.wc_flags |= efadv::WC_EX_WITH_IS_UNSOLICITED;
        }
        let len = size_of_val(&efa) as u32;
        // SAFETY: an open device and whole attributes; the channel is null or alive, and outlives the queue.
        let ex = unsafe { efadv::efadv_create_cq(ctx.as_ptr(), &mut attr, &mut efa, len) };
        let ex = NonNull::new(ex).ok_or_else(|| last_error("efadv_create_cq"))?;
        // SAFETY: made by efadv_create_cq.
        let efa = unsafe { efadv::efadv_cq_from_ibv_cq_ex(ex.as_ptr()) };
        let Some(efa) = NonNull::new(efa) else {
            // SAFETY: made above, known to nobody.
            unsafe { ibv_destroy_cq(ex.as_ptr().cast()) };
            return Err(last_error("efadv_cq_from_ibv_cq_ex"));
        };
        Ok(RawCq { ex, efa, reports_unsolicited, ctx: ctx.clone() })
    }

    fn as_ibv_cq(&self) -> *mut ibv_cq {
        self.ex.as_ptr().cast()
    }

    // HOT
    #[inline]
    fn start(&self) -> Option<Entry<'_>> {
        /// Completions of destroyed queue pairs skipped per poll.
        const SKIP: u32 = 64;
        for _ in 0..SKIP {
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            // SAFETY: a live queue that is not being polled: there is only one `Entry` at a time.
            match unsafe { ibv_start_poll(self.ex.as_ptr(), &mut attr) } {
                0 => return Some(Entry(self)),
                libc::EINVAL => continue,
                _ => return None,
            }
        }
        None
    }
}

impl Drop for RawCq {
    fn drop(&mut self) {
        // SAFETY: queue pairs share the queue's owner and are gone; events are acknowledged when taken.
        unsafe { ibv_destroy_cq(self.as_ibv_cq()) };
    }
}

/// Current entry of a poll, which ends on drop.
struct Entry<'a>(&'a RawCq);

impl Entry<'_> {
    #[inline(always)]
    fn ex(&self) -> *mut ibv_cq_ex {
        self.0.ex.as_ptr()
    }

    /// Moves to the next entry; after `false` the readers must not be called.
    // HOT
    #[inline]
    fn next(&mut self) -> bool {
        // SAFETY: a live queue in a poll.
        unsafe { ibv_next_poll(self.ex()) == 0 }
    }

    /// Reads the completion; `None` if its queue pair is not one of `cq`'s.
    // HOT
    #[inline]
    fn read(&self, cq: &CqCore) -> Option<Cqe> {
        // SAFETY: a live queue in a poll, at an entry; so for all readers below.
        let qpn = unsafe { ibv_wc_read_qp_num(self.ex()) } as u16;
        // SAFETY: as above.
        let wr_id = unsafe { (*self.ex()).wr_id };
        // SAFETY: as above.
        let verbs_status = unsafe { (*self.ex()).status };
        // SAFETY: as above.
        let vendor_err = || unsafe { ibv_wc_read_vendor_err(self.ex()) };
        let status = dev_status(verbs_status, vendor_err);
        // SAFETY: as above.
        let op = match unsafe { ibv_wc_read_opcode(self.ex()) } {
            ibv_wc_opcode::IBV_WC_RECV => CqeOp::Recv,
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => CqeOp::RecvWriteImm,
            _ => {
                let senders = cq.senders.borrow();
                let sent = senders.iter().find(|qp| qp.qpn == qpn)?.sent(wr_id)?;
                return Some(Cqe { wr_id: sent.wr_id, status, op: sent.op, qpn, ..Cqe::EMPTY });
            }
        };
        let receivers = cq.receivers.borrow();
        let qp = receivers.iter().find(|qp| qp.qpn == qpn)?;
        let solicited = op == CqeOp::Recv || !self.is_unsolicited();
        if solicited {
            qp.received();
        }
        let mut cqe = Cqe { wr_id: if solicited { wr_id } else { 0 }, status, op, qpn, ..Cqe::EMPTY };
        if status == DevStatus::Ok {
            // SAFETY: as above.
            cqe.src_qpn = unsafe { ibv_wc_read_src_qp(self.ex()) } as u16;
            // SAFETY: as above.
            cqe.len = unsafe { ibv_wc_read_byte_len(self.ex()) };
            cqe.src_gid = self.source(qp);
            // SAFETY: as above.
            let flags = unsafe { ibv_wc_read_wc_flags(self.ex()) };
            if flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0 {
                // SAFETY: as above.
                cqe.imm = Some(unsafe { ibv_wc_read_imm_data(self.ex()) });
            }
        }
        Some(cqe)
    }

    /// GID of the sender: by the AHN, or in full if the receiver has no address handle of it.
    // HOT
    #[inline]
    fn source(&self, qp: &QpCore) -> Gid {
        // SAFETY: a live queue in a poll, at an entry.
        let number = unsafe { ibv_wc_read_slid(self.ex()) };
        qp.pd.gid_of(number).unwrap_or_else(|| self.read_sgid())
    }

    fn read_sgid(&self) -> Gid {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: EFA's part of a live queue.
        let read = unsafe { self.0.efa.as_ref() }.wc_read_sgid;
        if let Some(read) = read {
            // SAFETY: in a poll, at an arrival. What it does not fill in stays zero: nobody's GID.
            unsafe { read(self.0.efa.as_ptr(), &mut gid) };
        }
        // SAFETY: any 16 bytes are a GID.
        Gid(unsafe { gid.raw })
    }

    #[cold]
    fn is_unsolicited(&self) -> bool {
        if !self.0.reports_unsolicited {
            return false;
        }
        // SAFETY: EFA's part of a live queue; the field is there, as the queue was made with the flag.
        let ask = unsafe { self.0.efa.as_ref() }.wc_is_unsolicited;
        // SAFETY: in a poll, at an arrival.
        ask.is_some_and(|ask| unsafe { ask(self.0.efa.as_ptr()) })
    }
}

impl Drop for Entry<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the poll was started and is ended once.
        unsafe { ibv_end_poll(self.ex()) };
    }
}

impl EventChannel {
    fn new(ctx: &Arc<Context>) -> Result<Self, Error> {
        // SAFETY: an open device.
        let ptr = unsafe { ibv_create_comp_channel(ctx.as_ptr()) };
        let ptr = NonNull::new(ptr).ok_or_else(|| last_error("ibv_create_comp_channel"))?;
        let channel = EventChannel { ptr, _ctx: ctx.clone() };
        // Taking an event must not block.
        let flags = rustix::fs::fcntl_getfl(channel.fd()).map_err(|e| nonblock(e.into()))?;
        rustix::fs::fcntl_setfl(channel.fd(), flags | rustix::fs::OFlags::NONBLOCK)
            .map_err(|e| nonblock(e.into()))?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a live channel; nobody writes to it.
        let fd = unsafe { self.ptr.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn drain(&self) {
        let (mut cq, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live channel, both places writable; it does not block.
        while unsafe { ibv_get_cq_event(self.ptr.as_ptr(), &mut cq, &mut user) } == 0 {
            // SAFETY: the queue of this channel, which is alive: it has taken an event of it.
            unsafe { ibv_ack_cq_events(cq, 1) };
        }
    }
}

fn nonblock(errno: ucs::Errno) -> Error {
    Error::Sys { call: "fcntl", errno }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: its queue is destroyed before it (field order of `CqCore`).
        unsafe { ibv_destroy_comp_channel(self.ptr.as_ptr()) };
    }
}

impl CqCore {
    pub(super) fn new(ctx: &Arc<Context>, depth: u32, events: Channel) -> Result<Self, Error> {
        let channel = match events {
            Channel::With => Some(EventChannel::new(ctx)?),
            Channel::Without => None,
        };
        let raw = channel.as_ref().map_or(std::ptr::null_mut(), |c| c.ptr.as_ptr());
        let cq = RawCq::new(ctx, depth, raw)?;
        Ok(CqCore {
            senders: RefCell::default(),
            receivers: RefCell::default(),
            peeked: Cell::new(None),
            cq,
            channel,
        })
    }

    pub(super) fn as_ibv_cq(&self) -> *mut ibv_cq {
        self.cq.as_ibv_cq()
    }

    pub(super) fn belongs_to(&self, ctx: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.cq.ctx, ctx)
    }

    pub(super) fn attach_sender(&self, qp: &Rc<QpCore>) {
        self.senders.borrow_mut().push(qp.clone());
    }

    pub(super) fn attach_receiver(&self, qp: &Rc<QpCore>) {
        self.receivers.borrow_mut().push(qp.clone());
    }

    /// Detaches a queue pair: its completions never surface.
    pub(super) fn detach(&self, qp: &Rc<QpCore>) {
        self.senders.borrow_mut().retain(|q| !Rc::ptr_eq(q, qp));
        self.receivers.borrow_mut().retain(|q| !Rc::ptr_eq(q, qp));
        if self.peeked.get().is_some_and(|cqe| cqe.qpn == qp.qpn) {
            self.peeked.set(None);
        }
    }

    /// Flushes unposted requests and takes completions of those that failed before the device.
    // HOT
    #[inline]
    fn take_local(&self, out: &mut [Cqe]) -> usize {
        let mut n = 0;
        if n < out.len()
            && let Some(cqe) = self.peeked.take()
        {
            out[n] = cqe;
            n += 1;
        }
        for qp in self.senders.borrow().iter() {
            if qp.has_pending_sends() {
                n += qp.flush_sends(&mut out[n..]);
            }
        }
        for qp in self.receivers.borrow().iter() {
            if qp.has_pending_recvs() {
                n += qp.flush_recvs(&mut out[n..]);
            }
        }
        n
    }

    /// Polls the device.
    // HOT
    #[inline]
    fn take(&self, out: &mut [Cqe]) -> usize {
        let Some(mut entry) = self.cq.start() else { return 0 };
        let mut n = 0;
        loop {
            if let Some(cqe) = entry.read(self) {
                out[n] = cqe;
                n += 1;
            }
            if n == out.len() || !entry.next() {
                return n;
            }
        }
    }
}

impl DevCq for Cq {
    // HOT
    #[inline]
    fn poll(&self, out: &mut [Cqe]) -> usize {
        let n = self.0.take_local(out);
        if n == out.len() { n } else { n + self.0.take(&mut out[n..]) }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.channel.as_ref().map(EventChannel::fd)
    }

    fn arm(&self) -> bool {
        let cq = &*self.0;
        let Some(channel) = &cq.channel else { return false };
        channel.drain();
        // SAFETY: a live queue with a channel.
        if unsafe { ibv_req_notify_cq(cq.as_ibv_cq(), 0) } != 0 {
            return false;
        }
        // The device may not signal for an earlier completion: poll.
        if cq.peeked.get().is_none() {
            let mut one = [Cqe::EMPTY];
            if self.poll(&mut one) == 0 {
                return true;
            }
            cq.peeked.set(Some(one[0]));
        }
        false
    }
}
