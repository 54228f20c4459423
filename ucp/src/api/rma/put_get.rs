//! Put and get on a peer's memory: by a copy within the call if it is mapped, else by the engine. A put
//! completes when its buffer may be reused, or with `DeliveryComplete::Yes` when the target has the bytes.

#![allow(unsafe_code)]

use std::rc::Weak;

use uct::api::Ep as _;

use crate::api::core::error::Error;
use crate::api::core::requests::{EMPTY_STATUS, OpStatus};
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::iov::Iov;
use crate::api::data::params::{check_mem, check_mem_of_pieces};
use crate::api::ep::deferred::defer_without_request;
use crate::api::ep::handle::Ep;
use crate::api::request::buf::{InFlightBuf, IoBuf, IoBufMut};
use crate::api::request::handles::{RecvRequest, SendRequest};
use crate::api::rma::deferred::{defer_get, defer_put};
use crate::api::rma::many::{running, start_many, total};
use crate::api::rma::now::{along, get_list_now_raw, get_now_raw, put_list_now_raw, put_now_raw};
use crate::api::rma::params::{RemoteIov, RmaParams};
use crate::api::rma::pieces::{with_gather, with_scatter};
use crate::api::rma::rkey::Rkey;
use crate::api::rma::start::{device_write, get_general, put_general, remote_iovs, start_get, start_put};
use crate::api::worker::handle::Worker;

use crate::rdm::io::PeerId;
use crate::rdm::rma::FenceScope;
use crate::rdm::{Access, Gather, RecvStatus, RmaProtocol, Scatter};
use crate::select::{DeviceRdma, RemoteMem};
use crate::wire::MAX_IOV;

impl Ep {
    /// Writes `len` bytes at `buf` to the peer's memory at `remote`.
    /// # Safety
    /// Unless the call returns *done* or an error, `buf..buf + len` stays valid and unchanged until
    /// completion, and `params.done` may be called with its argument.
    // HOT
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
        // SAFETY: the caller passes readable bytes.
        if params.cq_data.is_none() && unsafe { put_now_raw(self, buf, len, remote, rkey) } {
            return Ok(OpStatus::Done(()));
        }
        // SAFETY: this function's contract.
        unsafe { put_general(self, (buf, len), (remote, rkey), params) }
    }

    /// Writes local pieces to up to four pieces of the peer's memory, of equal total length. More than four
    /// local pieces go by packets, unless they go to one piece without `cq_data`.
    /// # Safety
    /// As for [`Ep::put_raw`], for every piece.
    pub unsafe fn put_iov_raw(
        &self,
        local: &[Iov],
        remote: &[RemoteIov<'_>],
        params: &RmaParams,
    ) -> Result<OpStatus<()>, Error> {
        check_mem_of_pieces(params.mem, local)?;
        if let ([one], None) = (remote, params.cq_data)
            && !local.is_empty()
            && total(local) == Some(one.len)
            // SAFETY: the caller passes readable bytes.
            && unsafe { put_list_now_raw(self, along(local, one)) }
        {
            return Ok(OpStatus::Done(()));
        }
        if let ([one], true, None) = (remote, local.len() > MAX_IOV, params.cq_data) {
            // SAFETY: this function's contract.
            let start = |part: &[Iov], at: &RemoteIov<'_>, params: &RmaParams<'_>| unsafe {
                self.put_iov_raw(part, &[*at], params).map(running)
            };
            // SAFETY: this function's contract.
            return match unsafe { start_many(self, local, one, params, start) }? {
                OpStatus::Done(_) => Ok(OpStatus::Done(())),
                OpStatus::InProgress(id) => Ok(OpStatus::InProgress(id)),
            };
        }
        let (state, peer) = (self.state(), self.peer());
        if let Some(refusal) = state.refusal.get() {
            // SAFETY: this function's contract.
            return unsafe { defer_put(self, refusal, local, remote, params) };
        }
        let start = |gather: Gather| {
            let one = local.len() == 1 && remote.len() == 1 || params.cq_data.is_none();
            let remote_mem = remote.first().map_or(RemoteMem::Registered, |piece| piece.rkey.remote_mem());
            let mut core = self.worker().core();
            let device = device_write(&core, peer, remote_mem, gather.len(), params);
            let protocol = state.tables().rma.put(device, params.sync, gather.len());
            let direct = one && local.len() <= MAX_IOV && protocol == RmaProtocol::DirectWrite;
            let (remote, direct) = remote_iovs(peer, remote, Access::WRITE, direct)?;
            let by_packets = state.tables().rma.put(DeviceRdma::No, params.sync, gather.len());
            let protocol = if direct { RmaProtocol::DirectWrite } else { by_packets };
            start_put(&mut core, state, (gather, remote), (protocol, None), params)
        };
        // SAFETY: the caller keeps the bytes valid until completion.
        unsafe { with_gather(self.worker(), local, start) }
    }

    /// Reads `len` bytes of the peer's memory at `remote` into `buf`.
    /// # Safety
    /// Unless the call returns *done* or an error, `buf..buf + len` stays valid for writes, accessed by
    /// nobody else, until completion, and `params.done` may be called with its argument.
    // HOT
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
        // SAFETY: the caller passes writable bytes.
        if unsafe { get_now_raw(self, buf, len, remote, rkey) } {
            return Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS }));
        }
        // SAFETY: this function's contract.
        unsafe { get_general(self, (buf, len), (remote, rkey), params) }
    }

    /// Reads up to four pieces of the peer's memory into local pieces, of equal total length. More than four
    /// local pieces come by packets, unless they come from one piece.
    /// # Safety
    /// As for [`Ep::get_raw`], for every piece.
    pub unsafe fn get_iov_raw(
        &self,
        local: &[Iov],
        remote: &[RemoteIov<'_>],
        params: &RmaParams,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        check_mem_of_pieces(params.mem, local)?;
        if let [one] = remote
            && !local.is_empty()
            && total(local) == Some(one.len)
            // SAFETY: the caller passes writable bytes.
            && unsafe { get_list_now_raw(self, along(local, one)) }
        {
            return Ok(OpStatus::Done(RecvStatus { len: one.len, ..EMPTY_STATUS }));
        }
        if let ([one], true) = (remote, local.len() > MAX_IOV) {
            // SAFETY: this function's contract.
            let start = |part: &[Iov], at: &RemoteIov<'_>, params: &RmaParams<'_>| unsafe {
                self.get_iov_raw(part, &[*at], params).map(running)
            };
            // SAFETY: this function's contract.
            return unsafe { start_many(self, local, one, params, start) };
        }
        let (state, peer) = (self.state(), self.peer());
        if let Some(refusal) = state.refusal.get() {
            // SAFETY: this function's contract.
            return unsafe { defer_get(self, refusal, local, remote, params) };
        }
        let start = |scatter: Scatter| {
            let remote_mem = remote.first().map_or(RemoteMem::Registered, |piece| piece.rkey.remote_mem());
            let protocol = state.tables().rma.get(DeviceRdma::Also(remote_mem), scatter.len());
            let direct = local.len() <= MAX_IOV && protocol == RmaProtocol::DirectRead;
            let (remote, direct) = remote_iovs(peer, remote, Access::READ, direct)?;
            let protocol = if direct { RmaProtocol::DirectRead } else { RmaProtocol::ShortRead };
            start_get(&mut self.worker().core(), state, (scatter, remote), (protocol, None), params)
        };
        // SAFETY: the caller keeps the buffers valid until completion.
        unsafe { with_scatter(self.worker(), local, start) }
    }

    /// Writes to the peer's memory. Completes when the buffer may be reused. The bytes are in the target's
    /// memory after a flush of the endpoint or worker, or at completion with `DeliveryComplete::Yes` in
    /// [`Ep::put_with`]. Puts and gets are not ordered with other operations unless [`Ep::fence`] is between
    /// them.
    /// # Errors
    /// [`Error::RemoteAccess`]: the key does not permit the access or the range; errors of the peer, as
    /// [`Error::PeerGone`].
    pub fn put<B: IoBuf>(&self, buf: B, remote: u64, rkey: &Rkey) -> SendRequest<B> {
        self.put_with(buf, remote, rkey, &RmaParams::default())
    }

    /// Writes to the peer's memory as `params` specify. Ignores `params.done`.
    pub fn put_with<B: IoBuf>(&self, buf: B, remote: u64, rkey: &Rkey, params: &RmaParams) -> SendRequest<B> {
        let params = &RmaParams { done: None, ..*params };
        let in_flight = InFlightBuf::new(buf);
        let (at, len) = in_flight.bytes();
        // SAFETY: the request keeps the container until completion; `IoBuf` bytes do not move or change.
        let started = unsafe { self.put_raw(at, len, remote, rkey, params) };
        SendRequest::new(self.worker(), started, in_flight)
    }

    /// Reads from the peer's memory as many bytes as the container has room for. Order and errors are those
    /// of [`Ep::put`].
    pub fn get<B: IoBufMut>(&self, buf: B, remote: u64, rkey: &Rkey) -> RecvRequest<B> {
        let mut in_flight = InFlightBuf::new(buf);
        let (at, len) = in_flight.memory();
        // SAFETY: the request keeps the container until completion; `IoBufMut` room does not move meanwhile.
        let started = unsafe { self.get_raw(at, len, remote, rkey, &RmaParams::default()) };
        RecvRequest::new(self.worker(), started, in_flight)
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

    /// Writes without a request. A flush of the endpoint or worker completes the put, and reports its
    /// failure.
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

    /// Reads without a request. A flush of the endpoint or worker completes the get, and reports its failure.
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

    /// Orders one-sided operations to this peer: later ones take effect after earlier ones. It does not order
    /// messages, and waits for nothing.
    pub fn fence(&self) {
        if self.state().is_pending() {
            return defer_without_request(
                self,
                Box::new(|ep| {
                    ep.fence();
                    Ok(OpStatus::Done(EMPTY_STATUS))
                }),
            );
        }
        fence(&mut self.worker().core(), self.peer());
    }
}

impl Worker {
    /// Orders one-sided operations to each peer: later ones take effect after earlier ones to the same peer.
    pub fn fence(&self) {
        let mut core = self.core();
        let eps: Vec<_> = core.eps.iter().filter_map(Weak::upgrade).collect();
        let mut peers: Vec<_> = eps.iter().map(|ep| ep.peer()).filter(|peer| *peer != PeerId::NONE).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers {
            fence(&mut core, peer);
        }
        drop(core);
        for ep in eps.into_iter().filter(|ep| ep.is_pending()) {
            Ep::from_state(self.clone(), ep).fence();
        }
    }
}

/// Orders later operations to `peer`, by any method, after earlier ones by packets.
fn fence(core: &mut WorkerCore, peer: PeerId) {
    if let Some(path) = core.peer_eps.get(peer) {
        let _ = path.ep.fence();
    }
    let (engine, mut wire, _) = core.split();
    engine.fence(&mut wire, peer, FenceScope::Memory);
}
