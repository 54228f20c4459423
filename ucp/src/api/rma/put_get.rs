//! Put and get on a peer's memory: by a copy within the call if it is mapped, else by the engine. A put
//! completes when its buffer may be reused, or with [`Sync::Yes`] when the target has the bytes.

#![allow(unsafe_code)]

use crate::api::core::requests::EMPTY_STATUS;
use crate::api::data::iov::Iov;
use crate::api::data::params::{check_mem, check_mem_of_pieces};
use crate::api::mem::memory::Mem;
use std::ptr::NonNull;
use std::rc::Weak;

use arrayvec::ArrayVec;
use uct::api::{Comp, Ep as _, Iov as UctIov, Refused, Sent};

use crate::api::core::ep_state::NO_PEER;
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus};
use crate::api::core::worker_core::WorkerCore;
use crate::api::ep::handle::Ep;
use crate::api::ep::protocols::EpProtocols;
use crate::api::request::buf::{IoBuf, IoBufMut, LentBuf};
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

/// Parameters of a `*_raw` put or get.
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaParams<'a> {
    /// When a put is complete.
    pub sync: Sync,
    /// 64 bits delivered to the target after the bytes of the put ([`Worker::take_remote_write`]).
    pub cq_data: Option<u64>,
    /// Called at completion, unless the operation completes in the call.
    pub done: Option<Callback>,
    /// Registered memory that holds the data, as in [`OpParams::mem`](crate::OpParams::mem).
    pub mem: Option<&'a Mem>,
}

impl RmaParams<'_> {
    /// Parameters of an operation that is deferred: its callback and memory are kept and checked apart.
    pub(crate) fn without_borrows(&self) -> RmaParams<'static> {
        RmaParams { sync: self.sync, cq_data: self.cq_data, done: None, mem: None }
    }
}

/// Piece of a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RemoteIov<'a> {
    /// First address, as in the owner's process.
    pub addr: u64,
    /// Length, bytes.
    pub len: usize,
    /// Remote key of the memory.
    pub rkey: &'a Rkey,
}

/// Method that carries out one-sided operations on a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaMethod {
    /// The local processor accesses memory that both processes have mapped.
    Mapped,
    /// The kernel copies, called by the local processor. Does not involve the peer's processor.
    Kernel,
    /// The device transfers. Does not involve the peer's processor.
    Rdma,
    /// The peer's processor executes the operation, requested by packets.
    Emulated,
}

impl RmaMethod {
    /// Whether the operation needs progress at the peer.
    pub fn is_emulated(self) -> bool {
        self == RmaMethod::Emulated
    }
}

impl EpProtocols<'_> {
    /// Best method for memory of `rkey`. Operations may still go by packets where that is cheaper: see
    /// [`Self::rma_method_for`].
    pub fn rma_method(&self, rkey: &Rkey) -> RmaMethod {
        let core = self.ep.worker().core();
        let rdma = core.engine.peers().rdma(self.ep.peer());
        if rkey.mapped().is_some() {
            RmaMethod::Mapped
        } else if rkey.rma_only.is_some() && self.ep.rma_only_ep(&core).is_some() {
            RmaMethod::Kernel
        } else if rkey.device().is_some() && rdma.read > 0 && rdma.write > 0 {
            RmaMethod::Rdma
        } else {
            RmaMethod::Emulated
        }
    }

    /// Method for a put or get of `len` bytes.
    pub fn rma_method_for(&self, rkey: &Rkey, op: RmaOp, len: usize) -> RmaMethod {
        let candidates = self.explain_rma(rkey, op, None, len);
        let taken = candidates.iter().find(|candidate| candidate.verdict == RmaVerdict::Taken);
        match taken.map(|candidate| candidate.choice) {
            Some(RmaChoice::Mapped) => RmaMethod::Mapped,
            Some(RmaChoice::Kernel) => RmaMethod::Kernel,
            Some(RmaChoice::Protocol(protocol)) if !protocol.is_emulated() => RmaMethod::Rdma,
            _ => RmaMethod::Emulated,
        }
    }

    /// Verdict on every method for a put or get of `len` bytes.
    pub fn explain_rma(&self, rkey: &Rkey, op: RmaOp, cq_data: Option<u64>, len: usize) -> RmaCandidates {
        self.explain_put(rkey, (op, Sync::No), cq_data, len)
    }

    fn explain_put(
        &self,
        rkey: &Rkey,
        (op, sync): (RmaOp, Sync),
        cq_data: Option<u64>,
        len: usize,
    ) -> RmaCandidates {
        let access = match self.rma_method(rkey) {
            RmaMethod::Mapped => RemoteAccess::Mapped,
            RmaMethod::Kernel => RemoteAccess::Kernel,
            _ if rkey.device().is_some() => RemoteAccess::Device(rkey.remote_mem()),
            _ => RemoteAccess::PacketsOnly,
        };
        self.explain_rma_access(access, (op, sync), cq_data, len)
    }

    /// Verdict on every method for memory with this `access`, without a remote key.
    pub fn explain_rma_access(
        &self,
        access: RemoteAccess,
        (op, sync): (RmaOp, Sync),
        cq_data: Option<u64>,
        len: usize,
    ) -> RmaCandidates {
        let core = self.ep.worker().core();
        let peer = core.engine.peers().info(self.ep.peer());
        let hdr = peer.map_or(ReqHdr::FIRST, |peer| peer.hdr);
        let features = peer.and_then(|peer| peer.features);
        let wire = core.rma_wire(self.ep.peer());
        let limits = *self.ep.worker().limits();
        let key = RmaKey { op, sync, access, cq_data, wire, limits, hdr, features };
        explain_rma(&key, self.ep.rma_tables(), len)
    }
}

impl Ep {
    /// Lane endpoint and key, if the lane completes the operation within the call. // HOT
    #[inline]
    pub(crate) fn mapped_ep<'a>(
        &self,
        core: &'a WorkerCore,
        rkey: &'a Rkey,
    ) -> Option<(&'a lane::Ep, &'a lane::Rkey)> {
        let key = rkey.mapped()?;
        if !core.engine.peers().may_bypass_queue(self.peer()) {
            return None;
        }
        Some((&core.peer_eps.get(self.peer())?.ep, key))
    }

    /// Kernel-copy endpoint and key, if that is the best method for this length. // HOT
    #[inline]
    fn kernel_copy_ep<'a>(
        &'a self,
        core: &WorkerCore,
        rkey: &'a Rkey,
        (op, sync, len): (RmaOp, Sync, usize),
    ) -> Option<(&'a lane::Ep, &'a lane::Rkey)> {
        let key = rkey.rma_only.as_ref()?;
        if self.rma_tables().backend(op, sync, len) == RmaBackend::Engine {
            return None;
        }
        let ep = self.rma_only_ep(core).filter(|_| core.engine.peers().may_bypass_queue(self.peer()))?;
        Some((ep, key))
    }

    /// Writes `len` bytes at `buf` to the peer's memory at `remote`. // HOT
    /// # Safety
    /// Unless the call returns *done* or an error, `buf..buf + len` stays valid and unchanged until
    /// completion, and `params.done` may be called with its argument.
    #[inline]
    pub unsafe fn put_raw(
        &self,
        buf: *const u8,
        len: usize,
        remote: u64,
        rkey: &Rkey,
        params: &RmaParams,
    ) -> Result<OpStatus<()>, Error> {
        check_mem(params.mem, buf, len)?;
        if let Err(refusal) = self.usable() {
            // SAFETY: this function's contract.
            return unsafe {
                self.defer_put(
                    refusal,
                    &[Iov::of(buf, len)],
                    &[RemoteIov { addr: remote, len, rkey }],
                    params,
                )
            };
        }
        if !rkey.covers(remote, len as u64, Access::WRITE) {
            return Err(Error::RemoteAccess(self.peer()));
        }
        let mut core = self.worker().core();
        if params.cq_data.is_none()
            && let Some((ep, key)) = self
                .mapped_ep(&core, rkey)
                .or_else(|| self.kernel_copy_ep(&core, rkey, (RmaOp::Put, params.sync, len)))
        {
            let iov = UctIov::new(buf, len, None);
            // SAFETY: the caller passes readable bytes.
            match unsafe { ep.put_zcopy(&[iov], remote, key, Comp::None) } {
                Ok(Sent::Done) => return Ok(OpStatus::Done(())),
                Err(Refused::Failed(uct::api::Error::RemoteAccess)) => {
                    return Err(Error::RemoteAccess(self.peer()));
                }
                _ => {}
            }
        }
        // SAFETY: the caller keeps the bytes valid until completion.
        let local = Gather::one(unsafe { SendBuf::new(buf, len) });
        let device = match rkey.device() {
            Some(_) => core.device_write(self, rkey.remote_mem(), len, params),
            None => DeviceRdma::No,
        };
        let protocol = self.rma_tables().put(device, params.sync, len);
        let key = rkey.device().filter(|_| protocol == RmaProtocol::DirectWrite).unwrap_or(rkey.key);
        let iov = Iovs::one(RmaIov { addr: remote, len: len as u64, key });
        let rails = (len as u64 >= rkey.min_striped_len).then_some(&rkey.rails);
        core.put(self, local, iov, (protocol, rails), params)
    }

    /// Writes local pieces to pieces of the peer's memory: up to four each, of equal total length.
    /// # Safety
    /// As for [`Ep::put_raw`], for every piece.
    pub unsafe fn put_iov_raw(
        &self,
        local: &[Iov],
        remote: &[RemoteIov<'_>],
        params: &RmaParams,
    ) -> Result<OpStatus<()>, Error> {
        check_mem_of_pieces(params.mem, local)?;
        if let Err(refusal) = self.usable() {
            // SAFETY: this function's contract.
            return unsafe { self.defer_put(refusal, local, remote, params) };
        }
        let mut gather = Gather::EMPTY;
        for piece in local {
            // SAFETY: the caller keeps the bytes valid until completion.
            let buf = unsafe { SendBuf::new(piece.addr, piece.len) };
            if !gather.push(buf) {
                return Err(Error::Invalid);
            }
        }
        let one = local.len() == 1 && remote.len() == 1 || params.cq_data.is_none();
        let remote_mem = remote.first().map_or(RemoteMem::Registered, |piece| piece.rkey.remote_mem());
        let device = self.worker().core().device_write(self, remote_mem, gather.len(), params);
        let protocol = self.rma_tables().put(device, params.sync, gather.len());
        let (remote, direct) =
            remote_iovs(self.peer(), remote, Access::WRITE, one && protocol == RmaProtocol::DirectWrite)?;
        let by_packets = self.rma_tables().put(DeviceRdma::No, params.sync, gather.len());
        let protocol = if direct { RmaProtocol::DirectWrite } else { by_packets };
        self.worker().core().put(self, gather, remote, (protocol, None), params)
    }

    /// Reads `len` bytes of the peer's memory at `remote` into `buf`. // HOT
    /// # Safety
    /// Unless the call returns *done* or an error, `buf..buf + len` stays valid for writes, accessed by
    /// nobody else, until completion, and `params.done` may be called with its argument.
    #[inline]
    pub unsafe fn get_raw(
        &self,
        buf: *mut u8,
        len: usize,
        remote: u64,
        rkey: &Rkey,
        params: &RmaParams,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        check_mem(params.mem, buf, len)?;
        if let Err(refusal) = self.usable() {
            // SAFETY: this function's contract.
            return unsafe {
                self.defer_get(
                    refusal,
                    &[Iov { addr: buf, len }],
                    &[RemoteIov { addr: remote, len, rkey }],
                    params,
                )
            };
        }
        if !rkey.covers(remote, len as u64, Access::READ) {
            return Err(Error::RemoteAccess(self.peer()));
        }
        let mut core = self.worker().core();
        let kernel_copy = || self.kernel_copy_ep(&core, rkey, (RmaOp::Get, Sync::No, len));
        if let Some((ep, key)) = self.mapped_ep(&core, rkey).or_else(kernel_copy) {
            let iov = UctIov::new(buf, len, None);
            // SAFETY: the caller passes writable bytes.
            match unsafe { ep.get_zcopy(&[iov], remote, key, Comp::None) } {
                Ok(Sent::Done) => return Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS })),
                Err(Refused::Failed(uct::api::Error::RemoteAccess)) => {
                    return Err(Error::RemoteAccess(self.peer()));
                }
                _ => {}
            }
        }
        // SAFETY: the caller keeps the buffer valid until completion.
        let local = Scatter::one(unsafe { RecvBuf::new(buf, len) });
        let device = rkey.device().map_or(DeviceRdma::No, |_| DeviceRdma::Also(rkey.remote_mem()));
        let protocol = self.rma_tables().get(device, len);
        let key = rkey.device().filter(|_| protocol == RmaProtocol::DirectRead).unwrap_or(rkey.key);
        let iov = Iovs::one(RmaIov { addr: remote, len: len as u64, key });
        let rails = (len as u64 >= rkey.min_striped_len).then_some(&rkey.rails);
        core.get(self, local, iov, (protocol, rails), params)
    }

    /// Reads pieces of the peer's memory into local pieces: up to four each, of equal total length.
    /// # Safety
    /// As for [`Ep::get_raw`], for every piece.
    pub unsafe fn get_iov_raw(
        &self,
        local: &[Iov],
        remote: &[RemoteIov<'_>],
        params: &RmaParams,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        check_mem_of_pieces(params.mem, local)?;
        if let Err(refusal) = self.usable() {
            // SAFETY: this function's contract.
            return unsafe { self.defer_get(refusal, local, remote, params) };
        }
        let mut scatter = Scatter::EMPTY;
        for piece in local {
            // SAFETY: the caller keeps the buffer valid until completion.
            let buf = unsafe { RecvBuf::new(piece.addr, piece.len) };
            if !scatter.push(buf) {
                return Err(Error::Invalid);
            }
        }
        let remote_mem = remote.first().map_or(RemoteMem::Registered, |piece| piece.rkey.remote_mem());
        let protocol = self.rma_tables().get(DeviceRdma::Also(remote_mem), scatter.len());
        let (remote, direct) =
            remote_iovs(self.peer(), remote, Access::READ, protocol == RmaProtocol::DirectRead)?;
        let protocol = if direct { RmaProtocol::DirectRead } else { RmaProtocol::ShortRead };
        self.worker().core().get(self, scatter, remote, (protocol, None), params)
    }

    /// Writes to the peer's memory. Completes when the buffer may be reused.
    pub fn put<B: IoBuf>(&self, buf: B, remote: u64, rkey: &Rkey) -> SendRequest<B> {
        self.put_with(buf, remote, rkey, &RmaParams::default())
    }

    /// Writes to the peer's memory as `params` specify. Ignores `params.done`.
    pub fn put_with<B: IoBuf>(&self, buf: B, remote: u64, rkey: &Rkey, params: &RmaParams) -> SendRequest<B> {
        let params = &RmaParams { done: None, ..*params };
        let lent = LentBuf::new(buf);
        let (at, len) = lent.bytes();
        // SAFETY: the request keeps the container until completion; `IoBuf` bytes do not move or change.
        match unsafe { self.put_raw(at, len, remote, rkey, params) } {
            Ok(OpStatus::Done(())) => SendRequest::ended(Ok(()), lent),
            Ok(OpStatus::InProgress(id)) => SendRequest::running(self.worker().clone(), id, lent),
            Err(e) => SendRequest::ended(Err(e), lent),
        }
    }

    /// Reads from the peer's memory as many bytes as the container has room for.
    pub fn get<B: IoBufMut>(&self, buf: B, remote: u64, rkey: &Rkey) -> RecvRequest<B> {
        let mut lent = LentBuf::new(buf);
        let (at, len) = lent.memory();
        // SAFETY: the request keeps the container until completion; `IoBufMut` room does not move meanwhile.
        match unsafe { self.get_raw(at, len, remote, rkey, &RmaParams::default()) } {
            Ok(OpStatus::Done(status)) => RecvRequest::ended(Ok(status), lent),
            Ok(OpStatus::InProgress(id)) => RecvRequest::running(self.worker().clone(), id, lent),
            Err(e) => RecvRequest::ended(Err(e), lent),
        }
    }

    /// Writes borrowed bytes and makes progress until they may be reused.
    pub fn put_blocking(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Result<(), Error> {
        let params = RmaParams::default();
        // SAFETY: `bytes` is borrowed until `wait_borrowed` returns or unwinds, both only after completion.
        match unsafe { self.put_raw(bytes.as_ptr(), bytes.len(), remote, rkey, &params) }? {
            OpStatus::Done(()) => Ok(()),
            OpStatus::InProgress(id) => self.worker().wait_borrowed(id).map(drop),
        }
    }

    /// Reads into borrowed memory and makes progress until the bytes have arrived.
    pub fn get_blocking(&self, out: &mut [u8], remote: u64, rkey: &Rkey) -> Result<(), Error> {
        let params = RmaParams::default();
        // SAFETY: as in `put_blocking`.
        match unsafe { self.get_raw(out.as_mut_ptr(), out.len(), remote, rkey, &params) }? {
            OpStatus::Done(_) => Ok(()),
            OpStatus::InProgress(id) => self.worker().wait_borrowed(id).map(drop),
        }
    }

    /// Writes without a request. A flush of the endpoint or worker completes the put.
    /// # Safety
    /// `buf..buf + len` stays valid and unchanged until that flush has ended.
    pub unsafe fn put_nbi(&self, buf: *const u8, len: usize, remote: u64, rkey: &Rkey) -> Result<(), Error> {
        // SAFETY: the caller's contract covers the time until completion.
        let started = unsafe { self.put_raw(buf, len, remote, rkey, &RmaParams::default()) }?;
        if let OpStatus::InProgress(id) = started {
            self.worker().free(id);
        }
        Ok(())
    }

    /// Reads without a request. A flush of the endpoint or worker completes the get.
    /// # Safety
    /// `buf..buf + len` stays valid for writes, accessed by nobody else, until that flush has ended.
    pub unsafe fn get_nbi(&self, buf: *mut u8, len: usize, remote: u64, rkey: &Rkey) -> Result<(), Error> {
        // SAFETY: the caller's contract covers the time until completion.
        let started = unsafe { self.get_raw(buf, len, remote, rkey, &RmaParams::default()) }?;
        if let OpStatus::InProgress(id) = started {
            self.worker().free(id);
        }
        Ok(())
    }

    /// Orders one-sided operations to this peer: later ones take effect after earlier ones.
    pub fn fence(&self) {
        if self.state().is_pending() {
            return self.defer_without_request(Box::new(|ep| {
                ep.fence();
                Ok(OpStatus::Done(EMPTY_STATUS))
            }));
        }
        self.worker().core().fence(self.peer());
    }
}

impl Worker {
    /// Orders one-sided operations to each peer: later ones take effect after earlier ones to the same peer.
    pub fn fence(&self) {
        let mut core = self.core();
        let eps: Vec<_> = core.eps.iter().filter_map(Weak::upgrade).collect();
        let mut peers: Vec<_> = eps.iter().map(|ep| ep.peer()).filter(|peer| *peer != NO_PEER).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            core.fence(peer);
        }
        drop(core);
        for ep in eps.into_iter().filter(|ep| ep.is_pending()) {
            Ep::from_state(self.clone(), ep).fence();
        }
    }
}

impl WorkerCore {
    // HOT
    #[inline]
    fn device_write(&self, ep: &Ep, remote_mem: RemoteMem, len: usize, p: &RmaParams) -> DeviceRdma {
        let (rdma, features) = (self.engine.peers().rdma(ep.peer()), self.engine.peers().features(ep.peer()));
        match direct_write(rdma, features, len as u64, p.cq_data) {
            Err(_) => DeviceRdma::No,
            Ok(()) if p.cq_data.is_some() || !acknowledges(features) => DeviceRdma::Only,
            Ok(()) => DeviceRdma::Also(remote_mem),
        }
    }

    fn put(
        &mut self,
        ep: &Ep,
        local: Gather,
        remote: Iovs,
        (protocol, rails): (RmaProtocol, Option<&RailKeys>),
        p: &RmaParams,
    ) -> Result<OpStatus<()>, Error> {
        let (engine, mut wire, reqs) = self.split();
        let user = reqs.next_token()?;
        let args = PutArgs { local, remote, sync: p.sync, cq_data: p.cq_data, protocol, user };
        let started = match rails {
            None => engine.put(&mut wire, ep.peer(), args),
            Some(keys) => engine.put_striped(&mut wire, ep.peer(), args, keys),
        };
        match started {
            EngineStarted::Done(()) => Ok(OpStatus::Done(())),
            EngineStarted::Pending(op) => {
                Ok(OpStatus::InProgress(reqs.start_rma(user, op, local.len(), p.done)))
            }
            EngineStarted::Failed(e) => Err(e.into()),
        }
    }

    fn get(
        &mut self,
        ep: &Ep,
        local: Scatter,
        remote: Iovs,
        (protocol, rails): (RmaProtocol, Option<&RailKeys>),
        p: &RmaParams,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let (engine, mut wire, reqs) = self.split();
        let user = reqs.next_token()?;
        let len = local.len();
        let args = GetArgs { local, remote, protocol, user };
        let started = match rails {
            None => engine.get(&mut wire, ep.peer(), args),
            Some(keys) => engine.get_striped(&mut wire, ep.peer(), args, keys),
        };
        match started {
            EngineStarted::Done(()) => Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS })),
            EngineStarted::Pending(op) => Ok(OpStatus::InProgress(reqs.start_rma(user, op, len, p.done))),
            EngineStarted::Failed(e) => Err(e.into()),
        }
    }

    /// Orders later operations to `peer`, by any method, after earlier ones by packets.
    fn fence(&mut self, peer: crate::rdm::io::PeerId) {
        if let Some(path) = self.peer_eps.get(peer) {
            let _ = path.ep.fence();
        }
        let (engine, mut wire, _) = self.split();
        engine.fence(&mut wire, peer, FenceScope::Memory);
    }
}

/// Remote pieces of one operation, with the device's keys if it knows all of them and `direct` is set.
pub(crate) fn remote_iovs(
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

pub(crate) const DANGLING: *mut u8 = NonNull::dangling().as_ptr();
