//! Operations of more work requests than the send queue is deep. The call posts what fits; the rest is posted
//! as requests complete. One completion reports the whole operation. Started by `rdma`, continued by `cq`.
//!
//! Together such operations take at most half of the slots. Each keeps a request in flight and reclaims its
//! slot before anyone else, so it always progresses and needs no pending entry. Flushes and fences see it as
//! one operation.

#![allow(unsafe_code)]

use super::dev::{Dest, Dev, DevQp, PostError, Sge};
use super::ep::{Ep, post_error};
use super::iface::Inner;
use super::md::{Mem, Rkey};
use super::rdma::RmaDir;
use super::tx::{EpIdx, Tx};
use super::wr_group::WrGroupId;
use crate::api::{Comp, Error, Iov, Outcome, Refused, RemoteIov, Sent};
use crate::base::iov::FragmentCursor;

/// An operation that is not fully posted, or has requests in flight.
pub(super) struct MultiWrOp<D: Dev> {
    group: WrGroupId,
    dir: RmaDir,
    to: Dest<D::Ah>,
    ep: EpIdx,
    epochs: (u32, u32),
    /// Both lists without their checked registrations and keys, which follow by index.
    local: Vec<Iov<'static, ()>>,
    lkeys: Vec<u32>,
    remote: Vec<RemoteIov<'static, ()>>,
    rkeys: Vec<u32>,
    walk: FragmentCursor,
    unposted: u32,
    in_flight: u32,
}

impl<D: Dev> Ep<D> {
    /// Starts an operation of `requests` checked requests. Unsafe: as `put_sgl` or `get_sgl`.
    #[cold]
    pub(super) unsafe fn start_multi_wr(
        &self,
        dir: RmaDir,
        iov: &[Iov<'_, Mem<D>>],
        remote: &[RemoteIov<'_, Rkey>],
        requests: u32,
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        if !iface.tx.borrow_mut().try_reserve(self.idx, 1) {
            return Err(Refused::NoResource);
        }
        let group = iface.tx.borrow_mut().groups.add(requests, comp);
        let epochs = iface.tx.borrow_mut().start_op(self.idx);
        let mut op = MultiWrOp {
            group,
            dir,
            to: self.to,
            ep: self.idx,
            epochs,
            local: iov.iter().map(without_mem).collect(),
            lkeys: iov.iter().map(|p| p.mem.map_or(0, Mem::lkey)).collect(),
            remote: remote.iter().map(without_rkey).collect(),
            rkeys: remote.iter().map(|r| r.rkey.word()).collect(),
            walk: FragmentCursor::default(),
            unposted: requests,
            in_flight: 0,
        };
        let mut multi_wr_ops = iface.multi_wr_ops.borrow_mut();
        // A refusal after the first request is handled when that one completes.
        let posted = iface.post_requests(&mut op, iface.max_slots_each(multi_wr_ops.len() + 1));
        if op.in_flight > 0 {
            multi_wr_ops.push(op);
            return Ok(Sent::InProgress);
        }
        let mut tx = iface.tx.borrow_mut();
        let unposted = tx.groups.complete(op.group, requests, Ok(()));
        tx.finish_op(op.ep, op.epochs);
        // The completion inside may own an endpoint, whose drop borrows `tx`.
        drop((tx, multi_wr_ops));
        drop(unposted);
        Err(posted.err().map_or(Refused::NoResource, post_error))
    }
}

fn without_mem<M>(p: &Iov<'_, M>) -> Iov<'static, ()> {
    Iov { addr: p.addr, len: p.len, stride: p.stride, count: p.count, mem: None }
}

fn without_rkey<K>(r: &RemoteIov<'_, K>) -> RemoteIov<'static, ()> {
    RemoteIov { addr: r.addr, len: r.len, stride: r.stride, count: r.count, rkey: &() }
}

impl<D: Dev> Inner<D> {
    /// Slots that each of `multi_wr_ops` operations may hold.
    fn max_slots_each(&self, multi_wr_ops: usize) -> u32 {
        (self.tx.borrow().depth() / 2 / multi_wr_ops as u32).max(1)
    }

    /// Posts requests of `op` until `max` are in flight or no slot is free.
    fn post_requests(&self, op: &mut MultiWrOp<D>, max: u32) -> Result<(), PostError> {
        while op.unposted > 0 && op.in_flight < max {
            let Some(claim) = Tx::claim_in_group(&self.tx, op.ep, op.group) else { break };
            // A refused request is tried again: only a copy advances.
            let mut walk = op.walk;
            let Some(cut) = walk.next(&op.local, &op.remote) else { break };
            let sge = Sge { addr: cut.addr, len: cut.len as u32, lkey: op.lkeys[cut.here] };
            let (wr_id, key) = (u64::from(claim.slot()), op.rkeys[cut.there]);
            match op.dir {
                RmaDir::Put => self.qp.write(&op.to, wr_id, sge, cut.remote, key, None)?,
                RmaDir::Get => self.qp.read(&op.to, wr_id, sge, cut.remote, key)?,
            }
            claim.commit();
            self.qp.ring_doorbell();
            (op.walk, op.unposted, op.in_flight) = (walk, op.unposted - 1, op.in_flight + 1);
        }
        Ok(())
    }

    /// Completes a request of `group`; posts more, unless one failed. Returns the last one's result.
    #[cold]
    pub(super) fn group_member_done(
        &self,
        group: WrGroupId,
        result: Result<(), Error>,
    ) -> Option<(Comp, Result<(), Error>)> {
        let mut multi_wr_ops = self.multi_wr_ops.borrow_mut();
        let Some(at) = multi_wr_ops.iter().position(|op| op.group == group) else {
            return self.tx.borrow_mut().groups.complete(group, 1, result);
        };
        let max = self.max_slots_each(multi_wr_ops.len());
        let op = &mut multi_wr_ops[at];
        op.in_flight -= 1;
        let result = result.and_then(|()| match self.post_requests(op, max) {
            Err(PostError::Full) if op.in_flight > 0 => Ok(()),
            Err(PostError::Full) => Err(Error::Exhausted("send queue entries")),
            Err(PostError::Invalid(why)) => Err(Error::InvalidParam(why)),
            Ok(()) => Ok(()),
        });
        let abandoned = if result.is_err() { std::mem::take(&mut op.unposted) } else { 0 };
        let ended = self.tx.borrow_mut().groups.complete(group, 1 + abandoned, result)?;
        let op = multi_wr_ops.swap_remove(at);
        let ep_dropped = self.tx.borrow_mut().finish_op(op.ep, op.epochs);
        if ep_dropped {
            self.retire(op.ep);
        }
        Some(ended)
    }
}
