//! Posting: the driver's checks, and the fast path of requests that need not be deferred.

#![allow(unsafe_code)]

use super::super::ah::Ah;
use super::super::link::{Link, Msg, PostedRecv, RecvQueue, RemoteQp, SendBuf, TryOutcome};
use super::datagram::GRH_LEN;
use super::deferred::{Body, Wr};
use super::{Qp, QpCore, State};
use crate::api::Access;
use crate::efa::dev::{CqeOp, Dest, DevQp, DevStatus, PostError, QpKind, Sge};

/// Longest receive: a receive WQE has 16 bits for the length.
const MAX_RECV: u32 = 65535;
const KEY_BITS: u32 = 24;

pub(super) const NO_SGE: Sge = Sge { addr: std::ptr::null_mut(), len: 0, lkey: 0 };

impl<L: Link> QpCore<L> {
    /// Takes an entry of the send queue.
    // HOT
    #[inline]
    fn take_send_slot(&self) -> Result<(), PostError> {
        let n = self.in_flight.get();
        if n >= self.send_depth {
            return Err(PostError::Full);
        }
        self.in_flight.set(n + 1);
        Ok(())
    }

    /// Whether requests take the fast path: no faults, no capture, not in error, device not down.
    // HOT
    #[inline]
    fn takes_fast_path(&self) -> bool {
        self.fast.get() && !self.dev.link.is_down()
    }

    /// Defers or completes a request. `first` is the outcome of an attempt, if any.
    #[cold]
    fn post_slow_path(&self, wr: Wr, first: Option<TryOutcome>) {
        if self.dev.link.is_down() {
            // Another thread may have found it.
            self.fail();
        }
        if self.state.get() == State::Error {
            return self.complete(wr.wr_id, wr.op(), DevStatus::Flushed);
        }
        match first {
            Some(outcome) => self.complete_or_defer(wr, outcome),
            None if self.dev.count_op() => self.complete(wr.wr_id, wr.op(), DevStatus::Flushed),
            None => {
                let draw = self.model.borrow_mut().draw();
                self.start_with_faults(wr, draw);
            }
        }
    }

    fn make_wr(&self, to: &Dest<Ah>, iid: Option<u64>, wr_id: u64, imm: Option<u32>, body: Body) -> Wr {
        Wr { wr_id, iid: iid.unwrap_or(0), qpn: to.qpn, qkey: to.qkey, imm, body }
    }

    #[inline]
    fn iid(&self, ah: Ah) -> Option<u64> {
        self.dev.ahs.iid(self.pd, ah)
    }

    /// Whether the local key covers an SGE.
    #[inline]
    pub(super) fn lkey_allows(&self, sge: &Sge, need: Access) -> bool {
        self.dev.link.regions().allows(sge.lkey, self.pd, sge.addr as u64, u64::from(sge.len), need)
    }

    /// Attempts to send SGEs, checking their keys.
    // HOT
    #[inline]
    pub(super) fn try_send(
        &self,
        iid: u64,
        qpn: u16,
        qkey: u32,
        sge: &[Sge; 2],
        imm: Option<u32>,
    ) -> TryOutcome {
        if !sge.iter().all(|s| self.lkey_allows(s, Access::LOCAL_READ)) {
            return TryOutcome::Done(DevStatus::InvalidLkey);
        }
        let buf = |s: &Sge| match s.len {
            0 => SendBuf::EMPTY,
            // SAFETY: the range lies in a live registration (checked above), which stays readable until
            // dropped; nothing drops it during this call.
            len => unsafe { SendBuf::raw(s.addr, len) },
        };
        let msg = Msg { bufs: [buf(&sge[0]), buf(&sge[1])], imm };
        self.with_peer(iid, qpn, qkey, |peer| peer.send(self.sender(), &msg))
    }

    /// Attempts to send inline data.
    // HOT
    #[inline]
    pub(super) fn try_inline(
        &self,
        (iid, qpn, qkey): (u64, u16, u32),
        bytes: &[u8],
        imm: Option<u32>,
    ) -> TryOutcome {
        let msg = Msg { bufs: [SendBuf::of(bytes), SendBuf::EMPTY], imm };
        self.with_peer(iid, qpn, qkey, |peer| peer.send(self.sender(), &msg))
    }

    fn post_rdma(&self, to: &Dest<Ah>, wr_id: u64, imm: Option<u32>, body: Body) -> Result<(), PostError> {
        self.take_send_slot()?;
        let iid = self.iid(to.ah);
        let wr = self.make_wr(to, iid, wr_id, imm, body);
        let attr = &self.dev.attr;
        let (able, sge) = match &wr.body {
            Body::Read { sge, .. } => (attr.rdma_read, sge),
            Body::Write { sge, .. } => (attr.rdma_write, sge),
            Body::Send { .. } | Body::Inline { .. } => (true, &NO_SGE),
        };
        let able = able && self.kind == QpKind::Srd;
        let refused = match (able, iid, sge.len <= attr.max_rdma) {
            (false, ..) => Some(DevStatus::UnsupportedOp),
            (_, None, _) => Some(DevStatus::InvalidAh),
            (.., false) => Some(DevStatus::BadLength),
            _ => None,
        };
        match refused {
            Some(status) => self.complete_or_defer(wr, TryOutcome::Done(status)),
            None if self.takes_fast_path() => {
                let outcome = self.attempt(&wr);
                self.complete_or_defer(wr, outcome);
            }
            None => self.post_slow_path(wr, None),
        }
        Ok(())
    }
}

impl<L: Link> DevQp for Qp<L> {
    type Ah = Ah;

    fn qpn(&self) -> u16 {
        self.0.rx.qpn()
    }

    fn send_depth(&self) -> u32 {
        self.0.send_depth
    }

    fn recv_depth(&self) -> u32 {
        self.0.recv_depth
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
        let qp = &*self.0;
        if bytes.len() > qp.dev.attr.max_inline as usize {
            return Err(PostError::Invalid("longer than the inline limit"));
        }
        qp.take_send_slot()?;
        let iid = qp.iid(to.ah);
        let first = match iid {
            None => Some(TryOutcome::Done(DevStatus::InvalidAh)),
            Some(iid) if qp.takes_fast_path() => Some(qp.try_inline((iid, to.qpn, to.qkey), bytes, imm)),
            Some(_) => None,
        };
        if let Some(TryOutcome::Done(status)) = first {
            qp.complete(wr_id, CqeOp::Send, status);
        } else {
            let body = Body::inline(bytes);
            qp.post_slow_path(qp.make_wr(to, iid, wr_id, imm, body), first);
        }
        Ok(())
    }

    // HOT
    #[inline]
    fn send(&self, to: &Dest<Ah>, wr_id: u64, sge: &[Sge], imm: Option<u32>) -> Result<(), PostError> {
        let qp = &*self.0;
        let sge = match *sge {
            [] => [NO_SGE; 2],
            [a] => [a, NO_SGE],
            [a, b] if qp.dev.attr.max_send_sge >= 2 => [a, b],
            _ => return Err(PostError::Invalid("more SGEs than the device gathers")),
        };
        qp.take_send_slot()?;
        let iid = qp.iid(to.ah);
        let len = u64::from(sge[0].len) + u64::from(sge[1].len);
        let first = match iid {
            None => Some(TryOutcome::Done(DevStatus::InvalidAh)),
            _ if len > u64::from(qp.dev.attr.mtu) => Some(TryOutcome::Done(DevStatus::BadLength)),
            Some(iid) if qp.takes_fast_path() => Some(qp.try_send(iid, to.qpn, to.qkey, &sge, imm)),
            Some(_) => None,
        };
        if let Some(TryOutcome::Done(status)) = first {
            qp.complete(wr_id, CqeOp::Send, status);
        } else {
            qp.post_slow_path(qp.make_wr(to, iid, wr_id, imm, Body::Send { sge }), first);
        }
        Ok(())
    }

    // HOT
    #[inline]
    fn recv(&self, wr_id: u64, sge: Sge) -> Result<(), PostError> {
        let qp = &*self.0;
        if sge.lkey >> KEY_BITS != 0 {
            return Err(PostError::Invalid("a local key has 24 bits"));
        }
        if qp.rx.outstanding() >= qp.recv_depth {
            return Err(PostError::Full);
        }
        let cap = sge.len.min(MAX_RECV);
        let head = if qp.kind == QpKind::Ud { GRH_LEN } else { 0 };
        if cap < head {
            return Err(PostError::Invalid("a datagram's receive has room for its header"));
        }
        let (addr, lkey) = (sge.addr, sge.lkey);
        let regions = qp.dev.link.regions();
        match regions.backing(lkey, qp.pd, addr as u64, cap.into(), Access::LOCAL_WRITE) {
            Some(backing) if qp.state.get() != State::Error => {
                let addr = addr.wrapping_add(head as usize);
                qp.rx.post(PostedRecv { wr_id, addr, cap: cap - head, lkey, backing });
            }
            _ => qp.reject_recv(wr_id),
        }
        Ok(())
    }

    fn read(&self, to: &Dest<Ah>, wr_id: u64, sge: Sge, raddr: u64, rkey: u32) -> Result<(), PostError> {
        self.0.post_rdma(to, wr_id, None, Body::Read { sge, raddr, rkey, total: sge.len })
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
        self.0.post_rdma(to, wr_id, imm, Body::Write { sge, raddr, rkey, total: sge.len })
    }

    fn forget(&self, ah: Ah, qpn: u16) {
        if let Some(iid) = self.0.iid(ah) {
            self.0.evict_peer(iid, qpn);
        }
    }

    /// Does nothing: the software device starts at the post.
    #[inline]
    fn ring_doorbell(&self) {}
}
