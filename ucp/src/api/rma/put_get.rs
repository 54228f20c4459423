//! Put and get: reading and writing a peer's memory, in the forms that messages have: owned buffers, borrowed slices,
//! pointers with a callback, and without any request at all until a flush.
//!
//! Memory that this process has mapped is copied to and from at once; all else goes through the engine, which has the
//! device do it where the device knows the key, and else asks the target by packets. A put ends when
//! its bytes may be reused; it is in the target's memory at the end of a flush, or at its own end with [`Sync::Yes`].

use crate::api::core::requests::NO_MESSAGE;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use uct::api::{Comp, Ep as _, Iov as UctIov, Refused, Sent};

use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus, RequestId, Role};
use crate::api::core::worker_core::Core;
use crate::api::ep::handle::Ep;
use crate::api::ep::protocols::EpProtocols;
use crate::api::request::buf::{Held, IoBuf, IoBufMut};
use crate::api::request::handles::{RecvRequest, SendRequest};
use crate::api::rma::rkey::Rkey;
use crate::api::worker::handle::Worker;

use crate::lane;
use crate::rdm::features::direct_write;
use crate::rdm::io::PeerId;
use crate::rdm::rma::FenceScope;
use crate::rdm::{
    Access, Gather, GetArgs, PutArgs, RailKeys, RecvBuf, RecvStatus, RmaProtocol, Scatter, SendBuf,
    Started as EngineStarted,
};
use crate::select::rma::acknowledges;
use crate::select::{
    DeviceRdma, RemoteAccess, RemoteMem, ReqHdr, RmaBackend, RmaCandidates, RmaChoice, RmaKey, RmaOp,
    RmaVerdict, Sync, explain_rma,
};
use crate::wire::{Iovs, MAX_IOV, RmaIov};

/// How a put or get of the `*_raw` kind is done.
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaParams {
    /// When a put is complete.
    pub sync: Sync,
    /// 64 bits for the target, which hears of the put when all bytes are in place ([`Worker::take_remote_write`]).
    pub cq_data: Option<u64>,
    /// Called at the end, if it does not end in the call.
    pub done: Option<Callback>,
}

/// A piece of this process' memory.
#[derive(Clone, Copy, Debug)]
pub struct Iov {
    /// First byte.
    pub addr: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// A piece of a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RemoteIov<'a> {
    /// First address, in its owner's terms.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
    /// Its key.
    pub rkey: &'a Rkey,
}

/// How operations on a piece of memory are carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaMethod {
    /// This processor does it, in memory that both processes have mapped.
    Mapped,
    /// The kernel does it, called by this processor; the peer's processor is not asked.
    Copied,
    /// The device does it; the peer's processor is not asked.
    Rdma,
    /// The peer's processor does it, asked by packets.
    Emulated,
}

impl RmaMethod {
    /// Whether the peer must make progress for it.
    pub fn is_emulated(self) -> bool {
        self == RmaMethod::Emulated
    }
}

impl EpProtocols<'_> {
    /// Who can carry out puts and gets on memory of this key at best. Where that is the device or the kernel, those that are
    /// cheaper by packets are asked of the peer's processor all the same, unless `UCX_EMULATION=n` or `UCX_MIN_RDMA_PUT` and
    /// `UCX_MIN_RDMA_GET` keep them from it: [`Ep::means_of`].
    pub fn rma_method(&self, rkey: &Rkey) -> RmaMethod {
        let core = self.ep.worker().core();
        let rdma = core.engine.rdma(self.ep.peer());
        if rkey.mapped().is_some() {
            RmaMethod::Mapped
        } else if rkey.beside.is_some() && self.ep.reach(&core).is_some() {
            RmaMethod::Copied
        } else if rkey.device().is_some() && rdma.read > 0 && rdma.write > 0 {
            RmaMethod::Rdma
        } else {
            RmaMethod::Emulated
        }
    }

    /// How a put or get of `len` bytes is carried out.
    pub fn rma_method_for(&self, rkey: &Rkey, op: RmaOp, len: usize) -> RmaMethod {
        let ways = self.explain_rma(rkey, op, None, len);
        let taken = ways.iter().find(|candidate| candidate.verdict == RmaVerdict::Taken);
        match taken.map(|candidate| candidate.choice) {
            Some(RmaChoice::Mapped) => RmaMethod::Mapped,
            Some(RmaChoice::Kernel) => RmaMethod::Copied,
            Some(RmaChoice::Protocol(row)) if !row.is_emulated() => RmaMethod::Rdma,
            _ => RmaMethod::Emulated,
        }
    }

    /// How a put or get of `len` bytes would go, and why each other way is not taken.
    pub fn explain_rma(&self, rkey: &Rkey, op: RmaOp, cq_data: Option<u64>, len: usize) -> RmaCandidates {
        self.explain_put(rkey, (op, Sync::No), cq_data, len)
    }

    /// The same of a put that is complete when `sync` says, or of a get.
    fn explain_put(
        &self,
        rkey: &Rkey,
        (op, sync): (RmaOp, Sync),
        cq_data: Option<u64>,
        len: usize,
    ) -> RmaCandidates {
        let known = match self.rma_method(rkey) {
            RmaMethod::Mapped => RemoteAccess::Mapped,
            RmaMethod::Copied => RemoteAccess::Kernel,
            _ if rkey.device().is_some() => RemoteAccess::Device(rkey.place()),
            _ => RemoteAccess::PacketsOnly,
        };
        self.explain_known(known, (op, sync), cq_data, len)
    }

    /// The same of memory that would be known as `known` says, without a key.
    pub fn explain_known(
        &self,
        known: RemoteAccess,
        (op, sync): (RmaOp, Sync),
        cq_data: Option<u64>,
        len: usize,
    ) -> RmaCandidates {
        let core = self.ep.worker().core();
        let peer = core.engine.peer_info(self.ep.peer());
        let hdr = peer.map_or(ReqHdr::FIRST, |peer| peer.hdr);
        let features = peer.and_then(|peer| peer.features);
        let wire = core.rma_wire(self.ep.peer());
        let limits = *self.ep.worker().limits();
        let key = RmaKey { op, sync, access: known, cq_data, wire, limits, hdr, features };
        explain_rma(&key, self.ep.rma_tables(), len)
    }
}

impl Ep {
    /// The lane's endpoint and key, for an operation that the lane does within the call and that nothing holds back. // HOT
    #[inline]
    pub(crate) fn at_once<'a>(
        &self,
        core: &'a Core,
        rkey: &'a Rkey,
    ) -> Option<(&'a lane::Ep, &'a lane::Rkey)> {
        let key = rkey.mapped()?;
        if !core.engine.may_bypass_queue(self.peer()) {
            return None;
        }
        Some((&core.paths.get(self.peer())?.ep, key))
    }

    /// The same for what the kernel copies within the call, if that is the better way for this length. // HOT
    #[inline]
    fn by_call<'a>(
        &'a self,
        core: &Core,
        rkey: &'a Rkey,
        (op, sync, len): (RmaOp, Sync, usize),
    ) -> Option<(&'a lane::Ep, &'a lane::Rkey)> {
        let key = rkey.beside.as_ref()?;
        if self.rma_tables().backend(op, sync, len) == RmaBackend::Engine {
            return None;
        }
        let (ep, _) = self.reach(core).filter(|_| core.engine.may_bypass_queue(self.peer()))?;
        Some((ep, key))
    }

    /// Writes `len` bytes at `buf` to the peer's memory at `remote`. // HOT
    ///
    /// # Safety
    /// Unless the call answers *done* or an error, `buf..buf + len` stays valid and unchanged until the operation's
    /// end, and `params.done` may be called with its argument.
    #[inline]
    pub unsafe fn put_raw(
        &self,
        buf: *const u8,
        len: usize,
        remote: u64,
        rkey: &Rkey,
        params: &RmaParams,
    ) -> Result<OpStatus<()>, Error> {
        self.usable()?;
        if !rkey.covers(remote, len as u64, Access::WRITE) {
            return Err(Error::RemoteAccess(self.peer()));
        }
        let mut core = self.worker().core();
        if params.cq_data.is_none()
            && let Some((ep, key)) = self
                .at_once(&core, rkey)
                .or_else(|| self.by_call(&core, rkey, (RmaOp::Put, params.sync, len)))
        {
            let iov = UctIov::new(buf, len, None);
            // SAFETY: the caller vouches for the bytes.
            match unsafe { ep.put_zcopy(&[iov], remote, key, Comp::None) } {
                Ok(Sent::Done) => return Ok(OpStatus::Done(())),
                Err(Refused::Failed(uct::api::Error::RemoteAccess)) => {
                    return Err(Error::RemoteAccess(self.peer()));
                }
                // By packets, then.
                _ => {}
            }
        }
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let local = Gather::one(unsafe { SendBuf::new(buf, len) });
        let device = match rkey.device() {
            Some(_) => core.may_write(self, rkey.place(), len, params),
            None => DeviceRdma::No,
        };
        let row = self.rma_tables().put(device, params.sync, len);
        let key = rkey.device().filter(|_| row == RmaProtocol::DirectWrite).unwrap_or(rkey.key);
        let iov = Iovs::one(RmaIov { addr: remote, len: len as u64, key });
        let rails = (len as u64 >= rkey.rail_from).then_some(&rkey.rails);
        core.put(self, local, iov, (row, rails), params)
    }

    /// Writes pieces of memory, as one run of bytes, to pieces of the peer's memory: up to four on either side, of the same
    /// total length.
    ///
    /// # Safety
    /// As for [`Ep::put_raw`], for every piece.
    pub unsafe fn put_iov_raw(
        &self,
        local: &[Iov],
        remote: &[RemoteIov<'_>],
        params: &RmaParams,
    ) -> Result<OpStatus<()>, Error> {
        self.usable()?;
        let mut gather = Gather::EMPTY;
        for piece in local {
            // SAFETY: the caller vouches for the bytes until the operation's end.
            let buf = unsafe { SendBuf::new(piece.addr, piece.len) };
            if !gather.push(buf) {
                return Err(Error::Invalid);
            }
        }
        let one = local.len() == 1 && remote.len() == 1 || params.cq_data.is_none();
        let place = remote.first().map_or(RemoteMem::Registered, |piece| piece.rkey.place());
        let device = self.worker().core().may_write(self, place, gather.len(), params);
        let row = self.rma_tables().put(device, params.sync, gather.len());
        let (remote, direct) =
            pieces(self.peer(), remote, Access::WRITE, one && row == RmaProtocol::DirectWrite)?;
        let by_packets = self.rma_tables().put(DeviceRdma::No, params.sync, gather.len());
        let row = if direct { RmaProtocol::DirectWrite } else { by_packets };
        self.worker().core().put(self, gather, remote, (row, None), params)
    }

    /// Reads `len` bytes of the peer's memory at `remote` into `buf`. // HOT
    ///
    /// # Safety
    /// Unless the call answers *done* or an error, `buf..buf + len` stays valid for writes, and is touched by nobody
    /// else, until the operation's end, and `params.done` may be called with its argument.
    #[inline]
    pub unsafe fn get_raw(
        &self,
        buf: *mut u8,
        len: usize,
        remote: u64,
        rkey: &Rkey,
        params: &RmaParams,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        self.usable()?;
        if !rkey.covers(remote, len as u64, Access::READ) {
            return Err(Error::RemoteAccess(self.peer()));
        }
        let mut core = self.worker().core();
        let by_call = || self.by_call(&core, rkey, (RmaOp::Get, Sync::No, len));
        if let Some((ep, key)) = self.at_once(&core, rkey).or_else(by_call) {
            let iov = UctIov::new(buf, len, None);
            // SAFETY: the caller vouches for the bytes.
            match unsafe { ep.get_zcopy(&[iov], remote, key, Comp::None) } {
                Ok(Sent::Done) => return Ok(OpStatus::Done(RecvStatus { len, ..NO_MESSAGE })),
                Err(Refused::Failed(uct::api::Error::RemoteAccess)) => {
                    return Err(Error::RemoteAccess(self.peer()));
                }
                _ => {}
            }
        }
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let local = Scatter::one(unsafe { RecvBuf::new(buf, len) });
        let device = rkey.device().map_or(DeviceRdma::No, |_| DeviceRdma::Also(rkey.place()));
        let row = self.rma_tables().get(device, len);
        let key = rkey.device().filter(|_| row == RmaProtocol::DirectRead).unwrap_or(rkey.key);
        let iov = Iovs::one(RmaIov { addr: remote, len: len as u64, key });
        let rails = (len as u64 >= rkey.rail_from).then_some(&rkey.rails);
        core.get(self, local, iov, (row, rails), params)
    }

    /// Reads pieces of the peer's memory, as one run of bytes, into pieces of memory: up to four on either side, of the same
    /// total length.
    ///
    /// # Safety
    /// As for [`Ep::get_raw`], for every piece.
    pub unsafe fn get_iov_raw(
        &self,
        local: &[Iov],
        remote: &[RemoteIov<'_>],
        params: &RmaParams,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        self.usable()?;
        let mut scatter = Scatter::EMPTY;
        for piece in local {
            // SAFETY: the caller vouches for the bytes until the operation's end.
            let buf = unsafe { RecvBuf::new(piece.addr, piece.len) };
            if !scatter.push(buf) {
                return Err(Error::Invalid);
            }
        }
        let place = remote.first().map_or(RemoteMem::Registered, |piece| piece.rkey.place());
        let row = self.rma_tables().get(DeviceRdma::Also(place), scatter.len());
        let (remote, direct) = pieces(self.peer(), remote, Access::READ, row == RmaProtocol::DirectRead)?;
        let row = if direct { RmaProtocol::DirectRead } else { RmaProtocol::ShortRead };
        self.worker().core().get(self, scatter, remote, (row, None), params)
    }

    /// Writes to the peer's memory. Ends when the buffer may be reused.
    pub fn put<B: IoBuf>(&self, buf: B, remote: u64, rkey: &Rkey) -> SendRequest<B> {
        self.put_with(buf, remote, rkey, &RmaParams::default())
    }

    /// Writes to the peer's memory as `params` say, but for `params.done`: who made the request is told of its end.
    pub fn put_with<B: IoBuf>(&self, buf: B, remote: u64, rkey: &Rkey, params: &RmaParams) -> SendRequest<B> {
        let params = &RmaParams { done: None, ..*params };
        let held = Held::new(buf);
        let (at, len) = held.bytes();
        // SAFETY: the request keeps the container until the operation's end, and `IoBuf` promises that its bytes
        // neither move nor change meanwhile.
        match unsafe { self.put_raw(at, len, remote, rkey, params) } {
            Ok(OpStatus::Done(())) => SendRequest::ended(Ok(()), held),
            Ok(OpStatus::InProgress(id)) => SendRequest::running(self.worker().clone(), id.0, held),
            Err(e) => SendRequest::ended(Err(e), held),
        }
    }

    /// Reads from the peer's memory, as many bytes as the container has room for.
    pub fn get<B: IoBufMut>(&self, buf: B, remote: u64, rkey: &Rkey) -> RecvRequest<B> {
        let mut held = Held::new(buf);
        let (at, len) = held.room();
        // SAFETY: the request keeps the container until the operation's end, and `IoBufMut` promises that its room
        // stays where it is meanwhile.
        match unsafe { self.get_raw(at, len, remote, rkey, &RmaParams::default()) } {
            Ok(OpStatus::Done(status)) => RecvRequest::ended(Ok(status), held),
            Ok(OpStatus::InProgress(id)) => RecvRequest::running(self.worker().clone(), id.0, held),
            Err(e) => RecvRequest::ended(Err(e), held),
        }
    }

    /// Writes borrowed bytes and makes progress until they may be reused.
    pub fn put_blocking(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Result<(), Error> {
        let params = RmaParams::default();
        // SAFETY: `bytes` is borrowed until `wait_borrowed` has seen the operation's end, which it does even when a
        // callback panics.
        match unsafe { self.put_raw(bytes.as_ptr(), bytes.len(), remote, rkey, &params) }? {
            OpStatus::Done(()) => Ok(()),
            OpStatus::InProgress(id) => self.worker().wait_borrowed(id.0).map(drop),
        }
    }

    /// Reads into borrowed memory, making progress until the bytes are there.
    pub fn get_blocking(&self, out: &mut [u8], remote: u64, rkey: &Rkey) -> Result<(), Error> {
        let params = RmaParams::default();
        // SAFETY: as in `put_blocking`.
        match unsafe { self.get_raw(out.as_mut_ptr(), out.len(), remote, rkey, &params) }? {
            OpStatus::Done(_) => Ok(()),
            OpStatus::InProgress(id) => self.worker().wait_borrowed(id.0).map(drop),
        }
    }

    /// Writes without a request: a flush of this endpoint or of the worker tells that it is done.
    ///
    /// # Safety
    /// `buf..buf + len` stays valid and unchanged until such a flush has ended.
    pub unsafe fn put_nbi(&self, buf: *const u8, len: usize, remote: u64, rkey: &Rkey) -> Result<(), Error> {
        // SAFETY: the caller's promise reaches further than this call's.
        let started = unsafe { self.put_raw(buf, len, remote, rkey, &RmaParams::default()) }?;
        if let OpStatus::InProgress(id) = started {
            self.worker().free(id);
        }
        Ok(())
    }

    /// Reads without a request: a flush of this endpoint or of the worker tells that the bytes are there.
    ///
    /// # Safety
    /// `buf..buf + len` stays valid for writes, and is touched by nobody else, until such a flush has ended.
    pub unsafe fn get_nbi(&self, buf: *mut u8, len: usize, remote: u64, rkey: &Rkey) -> Result<(), Error> {
        // SAFETY: the caller's promise reaches further than this call's.
        let started = unsafe { self.get_raw(buf, len, remote, rkey, &RmaParams::default()) }?;
        if let OpStatus::InProgress(id) = started {
            self.worker().free(id);
        }
        Ok(())
    }

    /// One-sided operations to this peer that are started from now on take effect after those started before.
    pub fn fence(&self) {
        self.worker().core().fence(self.peer());
    }
}

impl Worker {
    /// One-sided operations to any peer that are started from now on take effect after those to the same peer that were
    /// started before.
    pub fn fence(&self) {
        let mut core = self.core();
        for peer in core.peers() {
            core.fence(peer);
        }
    }
}

impl Core {
    /// Whether the device may carry a put to memory that it knows, and whether packets may as well. // HOT
    #[inline]
    fn may_write(&self, ep: &Ep, place: RemoteMem, len: usize, p: &RmaParams) -> DeviceRdma {
        let (rdma, features) = (self.engine.rdma(ep.peer()), self.engine.features(ep.peer()));
        match direct_write(rdma, features, len as u64, p.cq_data) {
            Err(_) => DeviceRdma::No,
            Ok(()) if p.cq_data.is_some() || !acknowledges(features) => DeviceRdma::Only,
            Ok(()) => DeviceRdma::Also(place),
        }
    }

    fn put(
        &mut self,
        ep: &Ep,
        local: Gather,
        remote: Iovs,
        (row, rails): (RmaProtocol, Option<&RailKeys>),
        p: &RmaParams,
    ) -> Result<OpStatus<()>, Error> {
        let (engine, mut wire, reqs) = self.split();
        let user = u64::from(reqs.next_id()?.raw());
        let args = PutArgs { local, remote, sync: p.sync, cq_data: p.cq_data, protocol: row, user };
        let started = match rails {
            None => engine.put(&mut wire, ep.peer(), args),
            Some(keys) => engine.put_striped(&mut wire, ep.peer(), args, keys),
        };
        match started {
            EngineStarted::Done(()) => Ok(OpStatus::Done(())),
            EngineStarted::Pending(op) => {
                Ok(OpStatus::InProgress(RequestId(reqs.start(Role::One(op, local.len()), p.done))))
            }
            EngineStarted::Failed(e) => Err(e.into()),
        }
    }

    fn get(
        &mut self,
        ep: &Ep,
        local: Scatter,
        remote: Iovs,
        (row, rails): (RmaProtocol, Option<&RailKeys>),
        p: &RmaParams,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let (engine, mut wire, reqs) = self.split();
        let user = u64::from(reqs.next_id()?.raw());
        let len = local.len();
        let args = GetArgs { local, remote, protocol: row, user };
        let started = match rails {
            None => engine.get(&mut wire, ep.peer(), args),
            Some(keys) => engine.get_striped(&mut wire, ep.peer(), args, keys),
        };
        match started {
            EngineStarted::Done(()) => Ok(OpStatus::Done(RecvStatus { len, ..NO_MESSAGE })),
            EngineStarted::Pending(op) => {
                Ok(OpStatus::InProgress(RequestId(reqs.start(Role::One(op, len), p.done))))
            }
            EngineStarted::Failed(e) => Err(e.into()),
        }
    }

    /// FenceScope what was started to `peer` by packets comes what is started by any way.
    fn fence(&mut self, peer: crate::rdm::io::PeerId) {
        if let Some(path) = self.paths.get(peer) {
            // It only orders stores, or the lane has nothing to order.
            let _ = path.ep.fence();
        }
        let (engine, mut wire, _) = self.split();
        engine.fence(&mut wire, peer, FenceScope::Memory);
    }

    fn peers(&self) -> Vec<PeerId> {
        let mut peers: Vec<_> = self.eps.iter().filter_map(|ep| ep.upgrade()).map(|ep| ep.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

/// Pieces of a peer's memory for one operation, with the device's keys if it knows all of them and `direct` is wanted.
pub(crate) fn pieces(
    peer: PeerId,
    remote: &[RemoteIov<'_>],
    need: Access,
    direct: bool,
) -> Result<(Iovs, bool), Error> {
    let direct = direct && remote.iter().all(|piece| piece.rkey.device().is_some());
    let mut list = ArrayVec::<RmaIov, MAX_IOV>::new();
    for piece in remote {
        if !piece.rkey.covers(piece.addr, piece.len as u64, need) {
            return Err(Error::RemoteAccess(peer));
        }
        let key = piece.rkey.device().filter(|_| direct).unwrap_or(piece.rkey.key);
        let iov = RmaIov { addr: piece.addr, len: piece.len as u64, key };
        list.try_push(iov).map_err(|_| Error::Invalid)?;
    }
    let iovs = Iovs::try_from(list.as_slice()).map_err(|_| Error::Invalid)?;
    Ok((iovs, direct))
}

/// Where nothing goes.
pub(crate) const NOWHERE: *mut u8 = NonNull::dangling().as_ptr();
