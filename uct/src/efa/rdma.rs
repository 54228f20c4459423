//! Put and get: how reads and writes of the device make the operations of the contract.
//! `Ep`'s methods of the same names lead here. Short and bcopy go through the row's buffer; several pieces become
//! several work requests of one group. Never polls.

use super::dev::{Dev, DevQp, Sge};
use super::ep::Ep;
use super::md::{Mem, Rkey};
use super::parts::GroupId;
use super::tx::Kind;
use crate::api::{Comp, Error, Iov, Op, Outcome, Refused, RemoteIov, Sent};
use crate::base::check::fits;
use crate::base::iov::{Fragment, checked_len, checked_sgl_len, fragments};
use crate::base::thunk::Thunk;

/// Most pieces of a list, on either side.
pub(super) const MAX_PIECES: usize = 16;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Put,
    Get,
}

/// The stretch of local memory that `iov` is, if it is one.
fn one_piece<D: Dev>(iov: &[Iov<'_, Mem<D>>]) -> Result<Option<Sge>, Error> {
    let mut pieces = iov.iter().filter(|piece| piece.total() > 0);
    let (Some(piece), None) = (pieces.next(), pieces.next()) else { return Ok(None) };
    let Some((addr, len)) = piece.whole() else { return Ok(None) };
    piece.mem.ok_or(Error::BadLocalKey)?.sge(addr, len).map(Some)
}

impl<D: Dev> Ep<D> {
    /// Longest operation that goes the way `way`, or that there is none.
    fn rdma_max(&self, way: Way, op: Op) -> Result<usize, Error> {
        let limits = &self.iface.limits;
        let max = if way == Way::Put { limits.write } else { limits.read };
        max.ok_or(Error::Unsupported(op))
    }

    /// `put_bcopy`, and with a closure that copies, `put_short`. // HOT
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
        fits(max, self.rdma_max(Way::Put, op)?.min(iface.bounce.slot_len()))?;
        let key = rkey.covering(remote, max)?;
        let claim = self.claim(Kind::Data, Comp::None)?;
        let row = claim.row();
        // SAFETY: a claimed row has its buffer to itself until its completion.
        let len = pack(unsafe { iface.bounce.bytes_mut(row, max) });
        if len > max {
            return Err(Error::InvalidParam("pack wrote more than it was given").into());
        }
        if len > 0 {
            let sge = iface.bounce.sge(row, len);
            self.posted(claim, iface.qp.write(&self.to, u64::from(row), sge, remote, key, None))?;
        }
        Ok(len)
    }

    /// `get_bcopy`: into the row's buffer, from which `unpack` takes it when it is here.
    pub(super) fn get_unpacked(
        &self,
        len: usize,
        unpack: impl FnOnce(&[u8]) + 'static,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        fits(len, self.rdma_max(Way::Get, Op::GetBcopy)?.min(iface.bounce.slot_len()))?;
        let key = rkey.covering(remote, len)?;
        if len == 0 {
            unpack(&[]);
            return Ok(Sent::Done);
        }
        let claim = self.claim(Kind::Get, comp)?;
        let row = claim.row();
        let sge = iface.bounce.sge(row, len);
        iface.unpacks.borrow_mut()[row as usize] = Some((len, Thunk::new(unpack)));
        let posted = self.posted(claim, iface.qp.read(&self.to, u64::from(row), sge, remote, key));
        if posted.is_err() {
            let unused = iface.unpacks.borrow_mut()[row as usize].take();
            // It may own an endpoint: dropped outside the borrow.
            drop(unused);
        }
        posted.map(|()| Sent::InProgress)
    }

    /// `put_zcopy` and `get_zcopy`. // HOT
    ///
    /// # Safety
    /// As for [`crate::api::Ep::put_zcopy`] or [`crate::api::Ep::get_zcopy`].
    #[inline]
    pub(super) unsafe fn zcopy(
        &self,
        way: Way,
        iov: &[Iov<'_, Mem<D>>],
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        let op = if way == Way::Put { Op::PutZcopy } else { Op::GetZcopy };
        let len = checked_len(iov, MAX_PIECES, self.rdma_max(way, op)?)?;
        let key = rkey.covering(remote, len)?;
        if len == 0 {
            return Ok(Sent::Done);
        }
        let Some(sge) = one_piece(iov)? else {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.sgl(way, iov, &[RemoteIov::new(remote, len, rkey)], comp) };
        };
        let claim = self.claim(Kind::Data, comp)?;
        let wr_id = u64::from(claim.row());
        let posted = match way {
            Way::Put => iface.qp.write(&self.to, wr_id, sge, remote, key, None),
            Way::Get => iface.qp.read(&self.to, wr_id, sge, remote, key),
        };
        self.posted(claim, posted)?;
        Ok(Sent::InProgress)
    }

    /// `put_imm`.
    ///
    /// # Safety
    /// As for [`crate::api::Ep::put_imm`].
    pub(super) unsafe fn write_imm(
        &self,
        iov: &[Iov<'_, Mem<D>>],
        remote: u64,
        rkey: &Rkey,
        imm: u32,
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        let len = checked_len(iov, 1, self.rdma_max(Way::Put, Op::PutImm)?)?;
        let key = rkey.covering(remote, len)?;
        let piece = one_piece(iov)?;
        if piece.is_none() && len > 0 {
            return Err(Error::InvalidParam("a write with immediate takes contiguous local memory").into());
        }
        let claim = self.claim(Kind::Data, comp)?;
        let row = claim.row();
        let sge = piece.unwrap_or_else(|| iface.bounce.sge(row, 0));
        self.posted(claim, iface.qp.write(&self.to, u64::from(row), sge, remote, key, Some(imm)))?;
        Ok(Sent::InProgress)
    }

    /// `put_sgl` and `get_sgl`: one work request for each stretch that is contiguous on both sides. All are checked before
    /// the first is posted, and have room then unless they are more than there is room for at all.
    ///
    /// # Safety
    /// As for [`crate::api::Ep::put_sgl`] or [`crate::api::Ep::get_sgl`].
    pub(super) unsafe fn sgl(
        &self,
        way: Way,
        iov: &[Iov<'_, Mem<D>>],
        remote: &[RemoteIov<'_, Rkey>],
        comp: Comp,
    ) -> Outcome {
        let iface = &*self.iface;
        let op = if way == Way::Put { Op::PutSgl } else { Op::GetSgl };
        checked_sgl_len(iov, remote, MAX_PIECES, self.rdma_max(way, op)?)?;
        let part = |f: &Fragment<'_, Mem<D>, Rkey>| -> Result<(Sge, u32), Error> {
            let mem = f.mem.ok_or(Error::BadLocalKey)?;
            Ok((mem.sge(f.addr, f.len)?, f.rkey.covering(f.remote, f.len)?))
        };
        let mut parts = 0u32;
        for f in fragments(iov, remote) {
            part(&f)?;
            parts += 1;
        }
        if parts == 0 {
            return Ok(Sent::Done);
        }
        if parts > iface.tx.borrow().depth() {
            // SAFETY: the caller's promise is the same.
            return unsafe { self.begin_long(way, iov, remote, parts, comp) };
        }
        if !iface.tx.borrow_mut().admit(self.idx, parts) {
            return Err(Refused::NoResource);
        }
        let group = iface.tx.borrow_mut().groups.open(parts, comp);
        for (n, f) in fragments(iov, remote).enumerate() {
            let (sge, key) = part(&f)?;
            let claim = self.claim(Kind::Part, Comp::None)?;
            let row = claim.row();
            iface.tx.borrow_mut().join(row, group);
            let posted = match way {
                Way::Put => iface.qp.write(&self.to, u64::from(row), sge, f.remote, key, None),
                Way::Get => iface.qp.read(&self.to, u64::from(row), sge, f.remote, key),
            };
            if let Err(refused) = self.posted(claim, posted) {
                return self.cut_short(group, parts - n as u32, refused);
            }
        }
        Ok(Sent::InProgress)
    }

    /// The device refused a part after it took others, though there was room: it has fewer entries than it says. What
    /// was not posted counts as failed; nothing posted at all is a refusal like any other.
    #[cold]
    fn cut_short(&self, group: GroupId, unposted: u32, refused: Refused) -> Outcome {
        let why = match refused {
            Refused::NoResource => Error::Exhausted("send queue entries"),
            Refused::Failed(e) => e,
        };
        let over = self.iface.tx.borrow_mut().groups.end(group, unposted, Err(why));
        match over {
            Some(_) => Err(refused),
            None => Ok(Sent::InProgress),
        }
    }
}
