//! Operations of more work requests than the send queue is deep: what there is room for is posted by the call, the rest
//! as its requests come back. One completion tells the end of all, as for any operation of several requests.
//! Begun by `rdma`, gone on with by `cq`. Where no such operation is under way, nobody pays for it.
//!
//! An operation takes at most half of the rows, several of them together, so that others get on beside it. It always has a
//! request on its way, and takes its row again when it comes back, before anybody else can: so it gets on too, whoever
//! waits for room, and needs no turn. Flushes and fences see it as one operation, on its way from the call to the end.

use super::dev::{Dest, Dev, DevQp, PostError, Sge};
use super::ep::{Ep, post_error};
use super::iface::Inner;
use super::md::{Mem, Rkey};
use super::rdma::RmaDir;
use super::tx::{EpIdx, Tx};
use super::wr_group::WrGroupId;
use crate::api::{Comp, Error, Iov, Outcome, Refused, RemoteIov, Sent};
use crate::base::iov::Walk;

/// An operation that is not posted in full, or has requests on their way after it was.
pub(super) struct MultiWrOp<D: Dev> {
    group: WrGroupId,
    dir: RmaDir,
    to: Dest<D::Ah>,
    ep: EpIdx,
    /// What flushes and fences wait for: its epochs of the endpoint and of the interface.
    epochs: (u32, u32),
    /// Both lists, without the registrations and keys that were checked; those are by number of the piece.
    local: Vec<Iov<'static, ()>>,
    lkeys: Vec<u32>,
    remote: Vec<RemoteIov<'static, ()>>,
    rkeys: Vec<u32>,
    /// How far they are posted.
    walk: Walk,
    /// Requests that are not posted yet.
    unposted: u32,
    /// Requests on their way.
    in_flight: u32,
}

impl<D: Dev> Ep<D> {
    /// Begins an operation of `requests` requests, all of which were checked.
    ///
    /// # Safety
    /// As for [`crate::api::Ep::put_sgl`] or [`crate::api::Ep::get_sgl`].
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
            walk: Walk::default(),
            unposted: requests,
            in_flight: 0,
        };
        let mut multi_wr_ops = iface.multi_wr_ops.borrow_mut();
        // A refusal after some were taken is met again when the first of them comes back.
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
    /// How many rows each of `multi_wr_ops` such operations may have.
    fn max_slots_each(&self, multi_wr_ops: usize) -> u32 {
        (self.tx.borrow().depth() / 2 / multi_wr_ops as u32).max(1)
    }

    /// Posts requests of `long` until it has `max` on their way or there is no row.
    fn post_requests(&self, op: &mut MultiWrOp<D>, max: u32) -> Result<(), PostError> {
        while op.unposted > 0 && op.in_flight < max {
            let Some(claim) = Tx::claim_in_group(&self.tx, op.ep, op.group) else { break };
            // A request that is not taken is tried again: what moves on is a copy.
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

    /// A request of `group` is over. Whom to tell what, if it was the last; before, whatever is not posted of it goes on, or
    /// after a failure counts as failed.
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
