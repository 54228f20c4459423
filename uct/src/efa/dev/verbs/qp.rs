//! Queue pairs. Sends of one doorbell form one batch of the library; receives form one list.

#![allow(unsafe_code)]

use super::ah::Ah;
use super::context::{Context, PORT};
use super::cq::CqCore;
use super::efadv;
use super::pd::{Pd, PdCore};
use super::status::{error, last_error};
use super::wr_builder::{MAX_SGE, WrBuilder, to_ibv_sge};
use crate::api::{Error, OpenError};
use crate::efa::dev::{Cqe, CqeOp, Dest, DevQp, DevStatus, PostError, QpInit, QpKind, Sge};
use arrayvec::ArrayVec;
use rdma_sys::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use ucs::Errno;
use ucs::mem::pool::FreeList;

/// Most requests per doorbell.
const BATCH: usize = 32;

/// A queue pair.
pub struct Qp {
    core: Rc<QpCore>,
    send_cq: Rc<CqCore>,
    recv_cq: Rc<CqCore>,
}

pub(super) struct QpCore {
    qp: NonNull<ibv_qp>,
    ex: NonNull<ibv_qp_ex>,
    pub(super) qpn: u16,
    send_depth: u32,
    recv_depth: u32,
    sends: RefCell<Sends>,
    /// Whether `sends` has something to post or to complete.
    sends_pending: Cell<bool>,
    recvs: RefCell<Recvs>,
    /// Whether `recvs` has something to post or to complete.
    recvs_pending: Cell<bool>,
    posted_recvs: Cell<u32>,
    pub(super) pd: Arc<PdCore>,
    ctx: Arc<Context>,
}

#[derive(Clone, Copy)]
pub(super) struct PostedSend {
    pub(super) wr_id: u64,
    pub(super) op: CqeOp,
}

/// Sends by slot, which is the library's wr_id: completions do not distinguish a read from a send.
struct Sends {
    slots: Box<[PostedSend]>,
    free: FreeList,
    /// Slots of the open batch.
    batch: ArrayVec<u32, BATCH>,
    /// Slots that failed before the device.
    failed: VecDeque<(u32, DevStatus)>,
}

struct Recvs {
    batch: ArrayVec<(u64, ibv_sge), BATCH>,
    /// Receives that the library refused.
    failed: VecDeque<u64>,
}

impl QpCore {
    pub(super) fn new(
        ctx: &Arc<Context>,
        pd: &Pd,
        send_cq: &CqCore,
        recv_cq: &CqCore,
        init: &QpInit,
    ) -> Result<Self, OpenError> {
        check(ctx, init)?;
        let a = &ctx.attr;
        // SAFETY: integers and pointers that may be null.
        let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        attr.send_cq = send_cq.as_ibv_cq();
        attr.recv_cq = recv_cq.as_ibv_cq();
        attr.cap = ibv_qp_cap {
            max_send_wr: init.send_depth,
            max_recv_wr: init.recv_depth,
            max_send_sge: a.max_send_sge,
            max_recv_sge: 1,
            max_inline_data: a.max_inline,
        };
        attr.qp_type = ibv_qp_type::IBV_QPT_DRIVER;
        attr.sq_sig_all = 1;
        attr.pd = pd.0.as_ptr();
        attr.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0
            | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        use ibv_qp_create_send_ops_flags as ops;
        let can = |has: bool, op: u32| if has { op } else { 0 };
        let send = ops::IBV_QP_EX_WITH_SEND.0 | ops::IBV_QP_EX_WITH_SEND_WITH_IMM.0;
        let read = can(a.rdma_read, ops::IBV_QP_EX_WITH_RDMA_READ.0);
        let write = ops::IBV_QP_EX_WITH_RDMA_WRITE.0 | ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0;
        attr.send_ops_flags = (send | read | can(a.rdma_write, write)).into();
        let flags = if init.unsolicited_write_recv { efadv::QP_FLAGS_UNSOLICITED_WRITE_RECV } else { 0 };
        let mut efa =
            efadv::QpInitAttr { driver_qp_type: efadv::QP_DRIVER_TYPE_SRD, flags, ..Default::default() };
        let len = size_of_val(&efa) as u32;
        // SAFETY: an open device, its queues and domain, whole attributes.
        let qp = unsafe { efadv::efadv_create_qp_ex(ctx.as_ptr(), &mut attr, &mut efa, len) };
        let qp = NonNull::new(qp).ok_or_else(|| match Errno::last_os().0 {
            libc::ENOMEM => Error::Exhausted("queue pairs"),
            e => error("efadv_create_qp_ex", Errno(e)),
        })?;
        // SAFETY: made by efadv_create_qp_ex with send operations.
        let ex = NonNull::new(unsafe { ibv_qp_to_qp_ex(qp.as_ptr()) });
        let Some(ex) = ex else {
            // SAFETY: made above, known to nobody.
            unsafe { ibv_destroy_qp(qp.as_ptr()) };
            return Err(last_error("ibv_qp_to_qp_ex").into());
        };
        // SAFETY: a queue pair just made; nobody writes to it.
        let qpn = unsafe { qp.as_ref() }.qp_num as u16;
        // Destroyed on drop from here on.
        let core = QpCore {
            qp,
            ex,
            qpn,
            send_depth: attr.cap.max_send_wr,
            recv_depth: attr.cap.max_recv_wr,
            sends: RefCell::new(Sends {
                slots: vec![PostedSend { wr_id: 0, op: CqeOp::Send }; attr.cap.max_send_wr as usize].into(),
                free: FreeList::new(attr.cap.max_send_wr),
                batch: ArrayVec::new(),
                failed: VecDeque::new(),
            }),
            sends_pending: Cell::new(false),
            recvs: RefCell::new(Recvs { batch: ArrayVec::new(), failed: VecDeque::new() }),
            recvs_pending: Cell::new(false),
            posted_recvs: Cell::new(0),
            pd: pd.0.clone(),
            ctx: ctx.clone(),
        };
        core.move_to_rts(init)?;
        Ok(core)
    }

    /// Moves the queue pair through INIT and RTR to RTS.
    fn move_to_rts(&self, init: &QpInit) -> Result<(), Error> {
        use ibv_qp_attr_mask as mask;
        // SAFETY: integers only.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = PORT;
        attr.qkey = init.qkey;
        let common = mask::IBV_QP_STATE.0;
        let first = common | mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_PORT.0 | mask::IBV_QP_QKEY.0;
        self.modify(&mut attr, first)?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        self.modify(&mut attr, common)?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.rnr_retry = init.rnr_retry;
        let rnr = if self.ctx.attr.rnr_retry { mask::IBV_QP_RNR_RETRY.0 } else { 0 };
        self.modify(&mut attr, common | mask::IBV_QP_SQ_PSN.0 | rnr)
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) -> Result<(), Error> {
        // SAFETY: a live queue pair, a whole attribute.
        match unsafe { ibv_modify_qp(self.qp.as_ptr(), attr, mask as i32) } {
            0 => Ok(()),
            e => Err(error("ibv_modify_qp", Errno(e))),
        }
    }

    /// Adds a work request to the batch; `fill` describes it.
    // HOT
    #[inline]
    fn post(&self, wr_id: u64, op: CqeOp, fill: impl FnOnce(&WrBuilder)) -> Result<(), PostError> {
        let s = &mut *self.sends.borrow_mut();
        let slot = s.free.take().ok_or(PostError::Full)?;
        s.slots[slot as usize] = PostedSend { wr_id, op };
        if s.batch.is_empty() {
            // SAFETY: a live queue pair without a session.
            unsafe { ibv_wr_start(self.ex.as_ptr()) };
            self.sends_pending.set(true);
        }
        fill(&WrBuilder::begin(self.ex, slot));
        s.batch.push(slot);
        if s.batch.is_full() {
            self.complete(s);
        }
        Ok(())
    }

    /// Accepts a request that fails without reaching the device, with `status`.
    #[cold]
    fn post_failed(&self, wr_id: u64, op: CqeOp, status: DevStatus) -> Result<(), PostError> {
        let s = &mut *self.sends.borrow_mut();
        let slot = s.free.take().ok_or(PostError::Full)?;
        s.slots[slot as usize] = PostedSend { wr_id, op };
        s.failed.push_back((slot, status));
        self.sends_pending.set(true);
        Ok(())
    }

    /// Posts the batch.
    // HOT
    #[inline]
    fn complete(&self, s: &mut Sends) {
        // SAFETY: a live queue pair with an open session.
        let refused = unsafe { ibv_wr_complete(self.ex.as_ptr()) };
        if refused != 0 {
            self.fail_batch(s, refused);
        }
        s.batch.clear();
        self.sends_pending.set(!s.failed.is_empty());
    }

    /// A batch is posted whole or not at all. Requests were checked, so the device has failed.
    #[cold]
    fn fail_batch(&self, s: &mut Sends, errno: i32) {
        tracing::debug!(qpn = self.qpn, errno = %Errno(errno), "sends refused");
        s.failed.extend(s.batch.iter().map(|slot| (*slot, DevStatus::QpInternal)));
    }

    /// Frees the slot of a completed send; `None` if the slot is unused.
    // HOT
    #[inline]
    pub(super) fn sent(&self, slot: u64) -> Option<PostedSend> {
        let s = &mut *self.sends.borrow_mut();
        let slot = u32::try_from(slot).ok().filter(|slot| s.free.is_used(*slot))?;
        s.free.give(slot);
        Some(s.slots[slot as usize])
    }

    // HOT
    #[inline]
    pub(super) fn received(&self) {
        self.posted_recvs.set(self.posted_recvs.get().saturating_sub(1));
    }

    #[inline(always)]
    pub(super) fn has_pending_sends(&self) -> bool {
        self.sends_pending.get()
    }

    #[inline(always)]
    pub(super) fn has_pending_recvs(&self) -> bool {
        self.recvs_pending.get()
    }

    /// Posts the open batch and takes completions of failed sends.
    #[cold]
    pub(super) fn flush_sends(&self, out: &mut [Cqe]) -> usize {
        let s = &mut *self.sends.borrow_mut();
        if !s.batch.is_empty() {
            self.complete(s);
        }
        let n = out.len().min(s.failed.len());
        for (entry, (slot, status)) in out.iter_mut().zip(s.failed.drain(..n)) {
            s.free.give(slot);
            let PostedSend { wr_id, op } = s.slots[slot as usize];
            *entry = self.failure(wr_id, op, status);
        }
        self.sends_pending.set(!s.failed.is_empty());
        n
    }

    /// Posts waiting receives and takes completions of refused ones.
    #[cold]
    pub(super) fn flush_recvs(&self, out: &mut [Cqe]) -> usize {
        let r = &mut *self.recvs.borrow_mut();
        self.post_recvs(r);
        let n = out.len().min(r.failed.len());
        for (entry, wr_id) in out.iter_mut().zip(r.failed.drain(..n)) {
            *entry = self.failure(wr_id, CqeOp::Recv, DevStatus::QpInternal);
            self.received();
        }
        self.recvs_pending.set(!r.failed.is_empty());
        n
    }

    fn failure(&self, wr_id: u64, op: CqeOp, status: DevStatus) -> Cqe {
        Cqe { wr_id, status, op, qpn: self.qpn, ..Cqe::EMPTY }
    }

    fn post_recvs(&self, r: &mut Recvs) {
        if r.batch.is_empty() {
            return;
        }
        let mut list: ArrayVec<ibv_recv_wr, BATCH> = r
            .batch
            .iter_mut()
            .map(|(wr_id, sge)| ibv_recv_wr {
                wr_id: *wr_id,
                next: std::ptr::null_mut(),
                sg_list: sge,
                num_sge: 1,
            })
            .collect();
        let first = list.as_mut_ptr();
        let count = list.len();
        for (at, wr) in list.iter_mut().enumerate().take(count - 1) {
            wr.next = first.wrapping_add(at + 1);
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; the list and its SGEs live through the call.
        let refused = unsafe { ibv_post_recv(self.qp.as_ptr(), first, &mut bad) };
        if refused != 0 {
            tracing::debug!(qpn = self.qpn, errno = %Errno(refused), "receives refused");
            // Those before the bad one are posted.
            let posted = (bad as usize).wrapping_sub(first as usize) / size_of::<ibv_recv_wr>();
            r.failed.extend(r.batch.iter().skip(posted.min(count)).map(|(wr_id, _)| *wr_id));
        }
        r.batch.clear();
        self.recvs_pending.set(!r.failed.is_empty());
    }
}

impl Drop for QpCore {
    fn drop(&mut self) {
        if !self.sends.get_mut().batch.is_empty() {
            // SAFETY: a live queue pair with an open session.
            unsafe { ibv_wr_abort(self.ex.as_ptr()) };
        }
        // SAFETY: made once, destroyed once; its completion queues outlive it.
        unsafe { ibv_destroy_qp(self.qp.as_ptr()) };
    }
}

/// Checks attributes, with the software device's error texts.
fn check(ctx: &Context, init: &QpInit) -> Result<(), OpenError> {
    let a = &ctx.attr;
    for (what, asked, max) in
        [("send", init.send_depth, a.max_send_depth), ("receive", init.recv_depth, a.max_recv_depth)]
    {
        if !(1..=max).contains(&asked) {
            let text = format!("{}: a {what} queue has 1 to {max} entries, not {asked}", a.name);
            return Err(OpenError::Config(text));
        }
    }
    let refuse = |text| Err(OpenError::Op(Error::InvalidParam(text)));
    if init.kind == QpKind::Ud {
        return refuse("the verbs backend has SRD queue pairs only");
    }
    if init.rnr_retry > 7 {
        return refuse("RNR retries are 0 to 6, or 7 for ever");
    }
    if init.unsolicited_write_recv && !a.unsolicited_write_recv {
        return refuse("the device has no unsolicited write receive");
    }
    Ok(())
}

impl Qp {
    pub(super) fn new(core: QpCore, send_cq: Rc<CqCore>, recv_cq: Rc<CqCore>) -> Qp {
        let core = Rc::new(core);
        send_cq.attach_sender(&core);
        recv_cq.attach_receiver(&core);
        Qp { core, send_cq, recv_cq }
    }

    /// Posts RDMA within the device's capabilities.
    #[inline]
    fn rdma(
        &self,
        to: &Dest<Ah>,
        (wr_id, op): (u64, CqeOp),
        able: bool,
        sge: &Sge,
        fill: impl FnOnce(&WrBuilder),
    ) -> Result<(), PostError> {
        let core = &*self.core;
        let refused = match (able, core.pd.ah(to.ah)) {
            (false, _) => DevStatus::UnsupportedOp,
            (_, None) => DevStatus::InvalidAh,
            _ if sge.len > core.ctx.attr.max_rdma => DevStatus::BadLength,
            (_, Some(ah)) => {
                return core.post(wr_id, op, |r| {
                    fill(r);
                    r.set_sge(sge);
                    r.set_ud_addr(ah, to);
                });
            }
        };
        core.post_failed(wr_id, op, refused)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // The queue pair must be destroyed before its queues.
        self.send_cq.detach(&self.core);
        self.recv_cq.detach(&self.core);
    }
}

impl DevQp for Qp {
    type Ah = Ah;

    fn qpn(&self) -> u16 {
        self.core.qpn
    }

    fn send_depth(&self) -> u32 {
        self.core.send_depth
    }

    fn recv_depth(&self) -> u32 {
        self.core.recv_depth
    }

    // HOT
    #[inline]
    fn send_inline(
        &self,
        to: &Dest<Ah>,
        wr_id: u64,
        bytes: &[u8],
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let core = &*self.core;
        if bytes.len() > core.ctx.attr.max_inline as usize {
            return Err(PostError::Invalid("longer than the inline limit"));
        }
        let Some(ah) = core.pd.ah(to.ah) else {
            return core.post_failed(wr_id, CqeOp::Send, DevStatus::InvalidAh);
        };
        core.post(wr_id, CqeOp::Send, |r| {
            r.send(imm);
            r.set_inline_data(bytes);
            r.set_ud_addr(ah, to);
        })
    }

    // HOT
    #[inline]
    fn send(&self, to: &Dest<Ah>, wr_id: u64, sge: &[Sge], imm: Option<u32>) -> Result<(), PostError> {
        let core = &*self.core;
        if sge.len() > (core.ctx.attr.max_send_sge as usize).min(MAX_SGE) {
            return Err(PostError::Invalid("more SGEs than the device gathers"));
        }
        let Some(ah) = core.pd.ah(to.ah) else {
            return core.post_failed(wr_id, CqeOp::Send, DevStatus::InvalidAh);
        };
        core.post(wr_id, CqeOp::Send, |r| {
            r.send(imm);
            r.set_sge_list(sge);
            r.set_ud_addr(ah, to);
        })
    }

    // HOT
    #[inline]
    fn recv(&self, wr_id: u64, sge: Sge) -> Result<(), PostError> {
        let core = &*self.core;
        let out = core.posted_recvs.get();
        if out >= core.recv_depth {
            return Err(PostError::Full);
        }
        let r = &mut *core.recvs.borrow_mut();
        r.batch.push((wr_id, to_ibv_sge(&sge)));
        core.posted_recvs.set(out + 1);
        core.recvs_pending.set(true);
        if r.batch.is_full() {
            core.post_recvs(r);
        }
        Ok(())
    }

    fn read(&self, to: &Dest<Ah>, wr_id: u64, sge: Sge, raddr: u64, rkey: u32) -> Result<(), PostError> {
        let able = self.core.ctx.attr.rdma_read;
        self.rdma(to, (wr_id, CqeOp::Read), able, &sge, |r| r.read(raddr, rkey))
    }

    fn write(
        &self,
        to: &Dest<Ah>,
        wr_id: u64,
        sge: Sge,
        raddr: u64,
        rkey: u32,
        imm: Option<u32>,
    ) -> Result<(), PostError> {
        let able = self.core.ctx.attr.rdma_write;
        self.rdma(to, (wr_id, CqeOp::Write), able, &sge, |r| r.write(raddr, rkey, imm))
    }

    // HOT
    #[inline]
    fn ring_doorbell(&self) {
        let core = &*self.core;
        if core.sends_pending.get() {
            let s = &mut *core.sends.borrow_mut();
            if !s.batch.is_empty() {
                core.complete(s);
            }
        }
        if core.recvs_pending.get() {
            core.post_recvs(&mut core.recvs.borrow_mut());
        }
    }
}
