//! Put and get on RDMA; an I/O vector of several blocks becomes a work-request group.

#![allow(unsafe_code)]

use super::dev::{Dev, DevQp, Sge};
use super::ep::Ep;
use super::md::{Mem, Rkey};
use super::tx::OpKind;
use super::wr_group::WrGroupId;
use crate::api::{Comp, Error, Iov, Op, Outcome, Refused, RemoteIov, Sent};
use crate::base::check::fits;
use crate::base::inline_closure::InlineClosure;
use crate::base::iov::{Fragment, checked_len, checked_sgl_len, fragments};

pub(super) const MAX_IOV: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RmaDir {
    Put,
    Get,
}

/// The SGE of `iov`, if it is one contiguous block.
fn single_sge<D: Dev>(iov: &[Iov<'_, Mem<D>>]) -> Result<Option<Sge>, Error> {
    let mut iovs = iov.iter().filter(|iov| iov.total() > 0);
    let (Some(iov), None) = (iovs.next(), iovs.next()) else { return Ok(None) };
    let Some((addr, len)) = iov.contiguous() else { return Ok(None) };
    iov.mem.ok_or(Error::BadLocalKey)?.sge(addr, len).map(Some)
}

impl<D: Dev> Ep<D> {
    /// Longest RDMA operation in this direction; fails if the device has none.
    fn rdma_max(&self, dir: RmaDir, op: Op) -> Result<usize, Error> {
        let limits = &self.iface.limits;
        let max = if dir == RmaDir::Put { limits.write } else { limits.read };
        max.ok_or(Error::Unsupported(op))
    }

    /// Carries out `put_bcopy`, and `put_short` with a closure that copies.
    // HOT
    #[inline]
    pub(super) fn put_packed(
        &self,
        op: Op,
        max: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome<usize> {
        let iface = &*self.iface;
        fits(max, self.rdma_max(RmaDir::Put, op)?.min(iface.bounce.slot_len()))?;
        let key = rkey.covering(remote, max)?;
        let claim = self.claim(OpKind::Data, Comp::None)?;
        let slot = claim.slot();
        // SAFETY: a claimed slot has its buffer to itself until its completion.
        let len = pack(unsafe { iface.bounce.bytes_mut(slot, max) });
        if len > max {
            return Err(Error::InvalidParam("pack wrote more than it was given").into());
        }
        if len > 0 {
            let sge = iface.bounce.sge(slot, len);
            self.finish_post(claim, iface.qp.write(&self.to, u64::from(slot), sge, remote, key, None))?;
        }
        Ok(len)
    }

    /// Carries out `get_bcopy`: reads into the slot's buffer, from which `unpack` takes the bytes.
    pub(super) fn get_unpacked(
        &self,
        len: usize,
        unpack: impl FnOnce(&[u8]) + 'static,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        fits(len, self.rdma_max(RmaDir::Get, Op::GetBcopy)?.min(iface.bounce.slot_len()))?;
        let key = rkey.covering(remote, len)?;
        if len == 0 {
            unpack(&[]);
            return Ok(Sent::Done);
        }
        let claim = self.claim(OpKind::GetBcopy, comp)?;
        let slot = claim.slot();
        let sge = iface.bounce.sge(slot, len);
        iface.unpacks.borrow_mut()[slot as usize] = Some((len, InlineClosure::new(unpack)));
        let posted = self.finish_post(claim, iface.qp.read(&self.to, u64::from(slot), sge, remote, key));
        if posted.is_err() {
            let unused = iface.unpacks.borrow_mut()[slot as usize].take();
            // May own an endpoint: dropped outside the borrow.
            drop(unused);
        }
        posted.map(|()| Sent::InProgress)
    }

    /// Carries out `put_zcopy` and `get_zcopy`. Unsafe: as those.
    // HOT
    #[inline]
    pub(super) unsafe fn zcopy(
        &self,
        dir: RmaDir,
        iov: &[Iov<'_, Mem<D>>],
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        let op = if dir == RmaDir::Put { Op::PutZcopy } else { Op::GetZcopy };
        let len = checked_len(iov, MAX_IOV, self.rdma_max(dir, op)?)?;
        let key = rkey.covering(remote, len)?;
        if len == 0 {
            return Ok(Sent::Done);
        }
        let Some(sge) = single_sge(iov)? else {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.sgl(dir, iov, &[RemoteIov::new(remote, len, rkey)], comp) };
        };
        let claim = self.claim(OpKind::Data, comp)?;
        let wr_id = u64::from(claim.slot());
        let posted = match dir {
            RmaDir::Put => iface.qp.write(&self.to, wr_id, sge, remote, key, None),
            RmaDir::Get => iface.qp.read(&self.to, wr_id, sge, remote, key),
        };
        self.finish_post(claim, posted)?;
        Ok(Sent::InProgress)
    }

    /// Carries out `put_imm`. Unsafe: as that.
    pub(super) unsafe fn write_imm(
        &self,
        iov: &[Iov<'_, Mem<D>>],
        remote: u64,
        rkey: &Rkey,
        imm: u32,
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        let len = checked_len(iov, 1, self.rdma_max(RmaDir::Put, Op::PutImm)?)?;
        let key = rkey.covering(remote, len)?;
        let piece = single_sge(iov)?;
        if piece.is_none() && len > 0 {
            return Err(Error::InvalidParam("a write with immediate takes contiguous local memory").into());
        }
        let claim = self.claim(OpKind::Data, comp)?;
        let slot = claim.slot();
        let sge = piece.unwrap_or_else(|| iface.bounce.sge(slot, 0));
        self.finish_post(claim, iface.qp.write(&self.to, u64::from(slot), sge, remote, key, Some(imm)))?;
        Ok(Sent::InProgress)
    }

    /// Carries out `put_sgl` and `get_sgl`: one work request per block contiguous on both sides. Checks all,
    /// and reserves their slots, before the first post. Unsafe: as those.
    pub(super) unsafe fn sgl(
        &self,
        dir: RmaDir,
        iov: &[Iov<'_, Mem<D>>],
        remote: &[RemoteIov<'_, Rkey>],
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        let op = if dir == RmaDir::Put { Op::PutSgl } else { Op::GetSgl };
        checked_sgl_len(iov, remote, MAX_IOV, self.rdma_max(dir, op)?)?;
        let request = |f: &Fragment<'_, Mem<D>, Rkey>| -> Result<(Sge, u32), Error> {
            let mem = f.mem.ok_or(Error::BadLocalKey)?;
            Ok((mem.sge(f.addr, f.len)?, f.rkey.covering(f.remote, f.len)?))
        };
        let mut requests = 0u32;
        for f in fragments(iov, remote) {
            request(&f)?;
            requests += 1;
        }
        if requests == 0 {
            return Ok(Sent::Done);
        }
        if requests > iface.tx.borrow().depth() {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.start_multi_wr(dir, iov, remote, requests, comp) };
        }
        if !iface.tx.borrow_mut().try_reserve(self.idx, requests) {
            return Err(Refused::NoResource);
        }
        let group = iface.tx.borrow_mut().groups.add(requests, comp);
        for (n, f) in fragments(iov, remote).enumerate() {
            let (sge, key) = request(&f)?;
            let claim = self.claim(OpKind::GroupMember, Comp::None)?;
            let slot = claim.slot();
            iface.tx.borrow_mut().set_group(slot, group);
            let posted = match dir {
                RmaDir::Put => iface.qp.write(&self.to, u64::from(slot), sge, f.remote, key, None),
                RmaDir::Get => iface.qp.read(&self.to, u64::from(slot), sge, f.remote, key),
            };
            if let Err(refused) = self.finish_post(claim, posted) {
                return self.fail_unposted(group, requests - n as u32, refused);
            }
        }
        Ok(Sent::InProgress)
    }

    /// Fails the requests refused although a slot was free; if none was posted, refuses the operation.
    #[cold]
    fn fail_unposted(&self, group: WrGroupId, unposted: u32, refused: Refused) -> Outcome {
        let why = match refused {
            Refused::NoResource => Error::Exhausted("send queue entries"),
            Refused::Failed(e) => e,
        };
        let ended = self.iface.tx.borrow_mut().groups.complete(group, unposted, Err(why));
        match ended {
            Some(_) => Err(refused),
            None => Ok(Sent::InProgress),
        }
    }
}
