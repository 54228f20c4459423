//! The initiator's side of emulated atomics: requests go out on a queue pair of the interface, to which the
//! responses come. Its completions are those of the interface's queue.

#![allow(unsafe_code)]

use super::domain::{AmoAddr, Shared, Watch};
use super::wire::{AmoKind, MAX_LEN, OpId, Request, Response};
use crate::api::{
    Access, AtomicOp, AtomicOps, Caps, Comp, Error, Op, OpenError, Outcome, Refused, Sent, Sink, Word,
};
use crate::base::check::postable;
use crate::efa::buffers::Buffers;
use crate::efa::dev::{Cqe, CqeOp, Dest, Dev, DevQp, DevStatus, QpInit, QpKind};
use crate::efa::ep::Ep;
use crate::efa::iface::{Inner, random_qkey};
use crate::efa::md::Rkey;
use crate::efa::tx::OpKind;
use crate::efa::user_recv_qp::USER_RECV_BIT;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(all(test, not(loom)))]
mod tests;

/// Retries by the device while the target's thread has no receive posted: for ever.
const RNR_RETRIES: u8 = 7;

/// The queue pair of an interface for atomics. Field order is drop order.
pub(in crate::efa) struct AmoClient<D: Dev> {
    qp: D::Qp,
    rx: Buffers<D::Mr>,
    addr: AmoAddr,
    ops: RefCell<Ops>,
    watch: Arc<Watch>,
    shared: Arc<Shared>,
}

struct Ops {
    generation: u32,
    /// By the slot that is held until the response.
    by_response: Box<[Option<AmoOp>]>,
    /// By the slot of a request under way: the operation that waits for its response.
    response_of: Box<[Option<OpId>]>,
}

#[derive(Clone, Copy)]
struct AmoOp {
    generation: u32,
    width: usize,
    /// Where the old value goes, if it is wanted.
    result: Option<NonNull<u8>>,
}

/// An operation as the caller wants it.
struct Wanted {
    kind: AmoKind,
    width: usize,
    value: u64,
    compare: u64,
    result: Option<NonNull<u8>>,
}

impl<D: Dev> AmoClient<D> {
    fn open(iface: &Inner<D>) -> Result<Self, Error> {
        let (dev, pd, slots) = (iface.md.dev(), iface.md.pd(), iface.tx.borrow().depth());
        let amo = iface.md.amo().ok_or(Error::Unsupported(Op::AtomicFetch))?;
        // It looks after operations without an answer.
        amo.start(dev, pd)?;
        let qkey = random_qkey();
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth: slots,
            recv_depth: slots,
            qkey,
            rnr_retry: RNR_RETRIES,
            unsolicited_write_recv: false,
        };
        let failed = |e| match e {
            OpenError::Op(e) => e,
            _ => Error::Exhausted("queue pairs"),
        };
        let qp = dev.create_qp(pd, &iface.cq, &iface.cq, &init).map_err(failed)?;
        let rx = Buffers::new(dev, pd, MAX_LEN, slots, Access::LOCAL_READ | Access::LOCAL_WRITE)?;
        let addr = AmoAddr { gid: dev.gid(), qpn: qp.qpn(), qkey };
        let ops = Ops {
            generation: 0,
            by_response: (0..slots).map(|_| None).collect(),
            response_of: vec![None; slots as usize].into(),
        };
        let watch = amo.shared().add_client(addr, slots);
        let client: AmoClient<D> =
            AmoClient { qp, rx, addr, ops: RefCell::new(ops), watch, shared: amo.shared().clone() };
        for slot in 0..slots {
            client.post_recv(slot)?;
        }
        client.qp.ring_doorbell();
        Ok(client)
    }

    fn post_recv(&self, slot: u32) -> Result<(), Error> {
        let posted = self.qp.recv(USER_RECV_BIT | u64::from(slot), self.rx.sge(slot, MAX_LEN));
        posted.map_err(|_| Error::Exhausted("receive queue entries"))
    }

    /// Whether a receive is of this queue pair.
    pub(in crate::efa) fn has_received(&self, cqe: &Cqe) -> bool {
        cqe.qpn == self.addr.qpn
    }

    /// Enters an operation of two claimed slots.
    fn begin(&self, request: u32, response: u32, wanted: &Wanted) -> OpId {
        let ops = &mut *self.ops.borrow_mut();
        ops.generation = ops.generation.wrapping_add(1);
        let (generation, width, result) = (ops.generation, wanted.width, wanted.result);
        ops.by_response[response as usize] = Some(AmoOp { generation, width, result });
        let id = OpId { slot: response, generation };
        ops.response_of[request as usize] = Some(id);
        id
    }

    /// Takes out the operation that waits in a slot, if it has this generation.
    fn take(&self, slot: u32, generation: Option<u32>) -> Option<AmoOp> {
        let mut ops = self.ops.borrow_mut();
        let entry = ops.by_response.get_mut(slot as usize)?;
        let op = entry.take_if(|op| generation.is_none_or(|wanted| wanted == op.generation))?;
        drop(ops);
        self.watch.end(slot);
        Some(op)
    }

    /// Ends a request under way; answers the operation that waits for its response, or has had it.
    fn end_request(&self, request: u32) -> Option<OpId> {
        self.ops.borrow_mut().response_of.get_mut(request as usize)?.take()
    }

    fn waiting(&self) -> Vec<u32> {
        let ops = self.ops.borrow();
        (0..).zip(&ops.by_response).filter(|(_, op)| op.is_some()).map(|(slot, _)| slot).collect()
    }
}

impl<D: Dev> Ep<D> {
    /// Carries out `atomic_post`: *done*, as the operand is copied. A failure is reported for the endpoint.
    pub(in crate::efa) fn amo_post<W: Word>(
        &self,
        op: AtomicOp,
        value: W,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome {
        self.check_amo::<W>(Op::AtomicPost)?;
        postable(op)?;
        let wanted = Wanted {
            kind: AmoKind::Op(op),
            width: W::BYTES,
            value: value.to_u64(),
            compare: 0,
            result: None,
        };
        self.start_amo(wanted, remote, rkey, Comp::None).map(|_| Sent::Done)
    }

    /// Carries out `atomic_fetch`. Unsafe: as that.
    pub(in crate::efa) unsafe fn amo_fetch<W: Word>(
        &self,
        op: AtomicOp,
        value: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        self.check_amo::<W>(Op::AtomicFetch)?;
        let (kind, width, value) = (AmoKind::Op(op), W::BYTES, value.to_u64());
        let wanted = Wanted { kind, width, value, compare: 0, result: Some(result.cast()) };
        self.start_amo(wanted, remote, rkey, comp)
    }

    /// Carries out `atomic_cswap`. Unsafe: as that.
    pub(in crate::efa) unsafe fn amo_cswap<W: Word>(
        &self,
        (compare, swap): (W, W),
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        self.check_amo::<W>(Op::AtomicCswap)?;
        let (kind, width, result) = (AmoKind::Cswap, W::BYTES, Some(result.cast()));
        let wanted = Wanted { kind, width, value: swap.to_u64(), compare: compare.to_u64(), result };
        self.start_amo(wanted, remote, rkey, comp)
    }

    fn check_amo<W: Word>(&self, op: Op) -> Result<(), Refused> {
        let attr = &self.iface.attr;
        if attr.has(Caps::ATOMIC) && attr.atomics.fetch(W::BYTES).contains(AtomicOps::ADD) {
            return Ok(());
        }
        Err(Error::Unsupported(op).into())
    }

    fn start_amo(&self, wanted: Wanted, remote: u64, rkey: &Rkey, comp: Comp) -> Outcome {
        let iface = &*self.iface;
        let (key, target) = rkey.amo_covering(remote, wanted.width)?;
        if !remote.is_multiple_of(wanted.width as u64) {
            return Err(Error::InvalidParam("atomic on an unaligned address").into());
        }
        let client = iface.amo_client()?;
        if !iface.tx.borrow_mut().try_reserve(self.idx, 2) {
            return Err(Refused::NoResource);
        }
        let request = self.claim(OpKind::GroupMember, Comp::None)?;
        let response = self.claim(OpKind::GroupMember, Comp::None)?;
        let (at, back) = (request.slot(), response.slot());
        let group = iface.tx.borrow_mut().groups.add(2, comp);
        iface.tx.borrow_mut().set_group(at, group);
        iface.tx.borrow_mut().set_group(back, group);
        let id = client.begin(at, back, &wanted);
        let Wanted { kind, width, value, compare, .. } = wanted;
        let packet = Request { kind, width, id, qkey: client.addr.qkey, key, remote, value, compare };
        // SAFETY: a claimed slot has its buffer to itself until its completion.
        let len = packet.write(unsafe { iface.bounce.bytes_mut(at, MAX_LEN) });
        client.shared.watch(&client.watch, id, target);
        let dest = Dest { ah: self.to.ah, qpn: target.qpn, qkey: target.qkey };
        match client.qp.send(&dest, u64::from(at), &[iface.bounce.sge(at, len)], None) {
            Ok(()) => {
                request.commit();
                response.commit();
                client.qp.ring_doorbell();
                Ok(Sent::InProgress)
            }
            Err(e) => {
                client.take(back, None);
                client.end_request(at);
                let unposted = iface.tx.borrow_mut().groups.complete(group, 2, Ok(()));
                // The completion inside may own an endpoint, whose drop borrows `tx`.
                drop(unposted);
                Err(crate::efa::ep::post_error(e))
            }
        }
    }
}

impl<D: Dev> Inner<D> {
    /// The queue pair for atomics; the first call opens it.
    fn amo_client(&self) -> Result<&AmoClient<D>, Error> {
        if let Some(client) = self.amo.get() {
            return Ok(client);
        }
        let client = AmoClient::open(self)?;
        Ok(self.amo.get_or_init(|| client))
    }

    /// Ends the request in `slot` if it is one of an atomic. One that failed has no response.
    #[cold]
    pub(in crate::efa) fn amo_request_done(&self, slot: u32, result: Result<(), Error>) {
        let Some(client) = self.amo.get() else { return };
        let Some(id) = client.end_request(slot) else { return };
        // With its generation: once the response has come, the slot may be another operation's.
        if result.is_ok() || client.take(id.slot, Some(id.generation)).is_none() {
            return;
        }
        let done = self.tx.borrow_mut().finish(id.slot);
        if let Some(group) = done.group {
            // The request is still to be counted, so the operation does not end here.
            let unended = self.tx.borrow_mut().groups.complete(group, 1, result);
            debug_assert!(unended.is_none());
        }
    }

    /// Takes in what arrived at the queue pair for atomics.
    #[cold]
    pub(in crate::efa) fn on_amo_recv<S: Sink>(&self, client: &AmoClient<D>, cqe: &Cqe, sink: &mut S) {
        let at = (cqe.wr_id & !USER_RECV_BIT) as u32;
        if cqe.status == DevStatus::Flushed {
            // The device has stopped the queue pair: no response comes any more.
            for slot in client.waiting() {
                if client.take(slot, None).is_some() {
                    self.end_amo(slot, Err(Error::Cancelled), sink);
                }
            }
            return;
        }
        let response = if cqe.op == CqeOp::Recv && cqe.status == DevStatus::Ok {
            // SAFETY: the receive has completed, and is posted again below.
            Response::read(unsafe { client.rx.bytes(at, (cqe.len as usize).min(MAX_LEN)) })
        } else {
            None
        };
        if client.post_recv(at).is_ok() {
            client.qp.ring_doorbell();
        }
        let Some(Response { id, result }) = response else { return };
        let Some(op) = client.take(id.slot, Some(id.generation)) else { return };
        if let (Ok(old), Some(into)) = (result, op.result) {
            match op.width {
                // SAFETY: whoever started the operation keeps the word valid until its completion, which is
                // below.
                4 => unsafe { into.cast::<u32>().write(old as u32) },
                // SAFETY: as above.
                _ => unsafe { into.cast::<u64>().write(old) },
            }
        }
        self.end_amo(id.slot, result.map(drop), sink);
    }

    /// Ends the half of an operation that waited for the response.
    fn end_amo<S: Sink>(&self, slot: u32, result: Result<(), Error>, sink: &mut S) {
        let done = self.tx.borrow_mut().finish(slot);
        self.end_slot(result, done, sink);
    }
}
