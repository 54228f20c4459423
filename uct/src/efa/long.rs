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
use super::parts::GroupId;
use super::rdma::Way;
use super::tx::{EpIdx, Tx};
use crate::api::{Comp, Error, Iov, Outcome, Refused, RemoteIov, Sent};
use crate::base::iov::Walk;

/// An operation that is not posted in full, or has requests on their way after it was.
pub(super) struct Long<D: Dev> {
    group: GroupId,
    way: Way,
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
    under_way: u32,
}

impl<D: Dev> Ep<D> {
    /// Begins an operation of `parts` requests, all of which were checked.
    ///
    /// # Safety
    /// As for [`crate::api::Ep::put_sgl`] or [`crate::api::Ep::get_sgl`].
    #[cold]
    pub(super) unsafe fn begin_long(
        &self,
        way: Way,
        iov: &[Iov<'_, Mem<D>>],
        remote: &[RemoteIov<'_, Rkey>],
        parts: u32,
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        if !iface.tx.borrow_mut().admit(self.idx, 1) {
            return Err(Refused::NoResource);
        }
        let group = iface.tx.borrow_mut().groups.open(parts, comp);
        let epochs = iface.tx.borrow_mut().start_whole(self.idx);
        let mut long = Long {
            group,
            way,
            to: self.to,
            ep: self.idx,
            epochs,
            local: iov.iter().map(unregistered).collect(),
            lkeys: iov.iter().map(|p| p.mem.map_or(0, Mem::lkey)).collect(),
            remote: remote.iter().map(unkeyed).collect(),
            rkeys: remote.iter().map(|r| r.rkey.word()).collect(),
            walk: Walk::default(),
            unposted: parts,
            under_way: 0,
        };
        let mut longs = iface.longs.borrow_mut();
        // A refusal after some were taken is met again when the first of them comes back.
        let begun = iface.post_some(&mut long, iface.share(longs.len() + 1));
        if long.under_way > 0 {
            longs.push(long);
            return Ok(Sent::InProgress);
        }
        let mut tx = iface.tx.borrow_mut();
        let undone = tx.groups.end(long.group, parts, Ok(()));
        tx.end_whole(long.ep, long.epochs);
        // The completion inside may own an endpoint, whose drop borrows `tx`.
        drop((tx, longs));
        drop(undone);
        Err(begun.err().map_or(Refused::NoResource, post_error))
    }
}

fn unregistered<M>(p: &Iov<'_, M>) -> Iov<'static, ()> {
    Iov { addr: p.addr, len: p.len, stride: p.stride, count: p.count, mem: None }
}

fn unkeyed<K>(r: &RemoteIov<'_, K>) -> RemoteIov<'static, ()> {
    RemoteIov { addr: r.addr, len: r.len, stride: r.stride, count: r.count, rkey: &() }
}

impl<D: Dev> Inner<D> {
    /// How many rows each of `longs` such operations may have.
    fn share(&self, longs: usize) -> u32 {
        (self.tx.borrow().depth() / 2 / longs as u32).max(1)
    }

    /// Posts requests of `long` until it has `most` on their way or there is no row.
    fn post_some(&self, long: &mut Long<D>, most: u32) -> Result<(), PostError> {
        while long.unposted > 0 && long.under_way < most {
            let Some(claim) = Tx::claim_part(&self.tx, long.ep, long.group) else { break };
            // A request that is not taken is tried again: what moves on is a copy.
            let mut walk = long.walk;
            let Some(cut) = walk.next(&long.local, &long.remote) else { break };
            let sge = Sge { addr: cut.addr, len: cut.len as u32, lkey: long.lkeys[cut.here] };
            let (wr_id, key) = (u64::from(claim.row()), long.rkeys[cut.there]);
            match long.way {
                Way::Put => self.qp.write(&long.to, wr_id, sge, cut.remote, key, None)?,
                Way::Get => self.qp.read(&long.to, wr_id, sge, cut.remote, key)?,
            }
            claim.commit();
            self.qp.ring_doorbell();
            (long.walk, long.unposted, long.under_way) = (walk, long.unposted - 1, long.under_way + 1);
        }
        Ok(())
    }

    /// A request of `group` is over. Whom to tell what, if it was the last; before, whatever is not posted of it goes on, or
    /// after a failure counts as failed.
    #[cold]
    pub(super) fn part_over(
        &self,
        group: GroupId,
        result: Result<(), Error>,
    ) -> Option<(Comp, Result<(), Error>)> {
        let mut longs = self.longs.borrow_mut();
        let Some(at) = longs.iter().position(|long| long.group == group) else {
            return self.tx.borrow_mut().groups.end(group, 1, result);
        };
        let most = self.share(longs.len());
        let long = &mut longs[at];
        long.under_way -= 1;
        let result = result.and_then(|()| match self.post_some(long, most) {
            Err(PostError::Full) if long.under_way > 0 => Ok(()),
            Err(PostError::Full) => Err(Error::Exhausted("send queue entries")),
            Err(PostError::Invalid(why)) => Err(Error::InvalidParam(why)),
            Ok(()) => Ok(()),
        });
        let given_up = if result.is_err() { std::mem::take(&mut long.unposted) } else { 0 };
        let over = self.tx.borrow_mut().groups.end(group, 1 + given_up, result)?;
        let long = longs.swap_remove(at);
        let orphan = self.tx.borrow_mut().end_whole(long.ep, long.epochs);
        if orphan {
            self.retire(long.ep);
        }
        Some(over)
    }
}
