//! How puts and gets start: by a copy of the kernel, or in the engine. Memory that is mapped here needs
//! neither.

#![allow(unsafe_code)]

use arrayvec::ArrayVec;
use uct::api::{Access as LaneAccess, Comp, Ep as _, Iov as UctIov, Outcome, Refused, Sent};

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::requests::{EMPTY_STATUS, OpStatus};
use crate::api::core::sink::CompletionSink;
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::iov::Iov;
use crate::api::ep::handle::Ep;
use crate::api::rma::deferred::{defer_get, defer_put};
use crate::api::rma::params::{RemoteIov, RmaParams};
use crate::api::rma::rkey::Rkey;

use crate::lane::{self, Bound, PeerEps};
use crate::rdm::features::direct_write;
use crate::rdm::io::PeerId;
use crate::rdm::{
    Access, Gather, GetArgs, OwnMemory, PutArgs, RailKeys, RecvBuf, RecvStatus, RmaProtocol, Scatter,
    SendBuf, Started as EngineStarted,
};
use crate::select::rma::acknowledges;
use crate::select::{DeliveryComplete, DeviceRdma, RemoteMem, RmaBackend, RmaOp};
use crate::wire::{Iovs, MAX_IOV, RmaIov};

/// Address here of `len` bytes of a peer's memory at `remote`, if this thread may access them now as `need`
/// says: they are mapped, the key permits it, the peer is not known to be gone, and nothing is queued for it.
/// Valid while the key lives.
// HOT
#[inline(always)]
pub(crate) fn mapped_now(ep: &Ep, (remote, len): (u64, usize), rkey: &Rkey, need: Access) -> Option<*mut u8> {
    let state = ep.state();
    if state.refusal.get().is_some() {
        return None;
    }
    // SAFETY: nothing borrows the core mutably while the reference lives: no code of the user runs here.
    let core = unsafe { ep.worker().inner.core.try_borrow_unguarded() }.ok()?;
    let peer = state.peer();
    if !core.engine.peers().may_bypass_queue(peer) || !lane_permits(&core.peer_eps, peer, rkey, need) {
        return None;
    }
    // Last, so that callers with many arguments have to keep fewer values.
    rkey.mapped_bytes(remote, len as u64, need)
}

/// Whether operations on the memory of `rkey` are this thread's own instructions once nothing is queued for
/// the peer.
pub(crate) fn may_access(ep: &Ep, rkey: &Rkey, need: Access) -> bool {
    let (core, (start, _)) = (ep.worker().core(), rkey.range());
    lane_permits(&core.peer_eps, ep.peer(), rkey, need) && rkey.mapped_bytes(start, 0, need).is_some()
}

/// Whether the lane of a peer lets this thread access what its key maps.
// HOT
#[inline(always)]
fn lane_permits(peers: &PeerEps, peer: PeerId, rkey: &Rkey, need: Access) -> bool {
    let (Some(to), Some(key)) = (peers.get(peer), rkey.of_lane()) else { return false };
    to.ep.may_access(key, lane_access(need))
}

/// Access to the memory of a peer, as lanes name it.
// HOT
#[inline(always)]
fn lane_access(need: Access) -> LaneAccess {
    let mut all = LaneAccess::empty();
    all.set(LaneAccess::REMOTE_READ, need.contains(Access::READ));
    all.set(LaneAccess::REMOTE_WRITE, need.contains(Access::WRITE));
    all.set(LaneAccess::REMOTE_ATOMIC, need.contains(Access::ATOMIC));
    all
}

/// Lane endpoint and key, if the lane completes the operation within the call.
fn mapped_ep<'a>(
    core: &'a WorkerCore,
    peer: PeerId,
    rkey: &'a Rkey,
) -> Option<(&'a lane::Ep, &'a lane::Rkey)> {
    let key = rkey.mapped()?;
    if !core.engine.peers().may_bypass_queue(peer) {
        return None;
    }
    Some((&core.peer_eps.get(peer)?.ep, key))
}

/// Kernel-copy endpoint and key, if that is the best method for this length.
fn kernel_copy_ep<'a>(
    core: &WorkerCore,
    ep: &'a EpState,
    rkey: &'a Rkey,
    (op, sync, len): (RmaOp, DeliveryComplete, usize),
) -> Option<(&'a lane::Ep, &'a lane::Rkey)> {
    let key = rkey.rma_only.as_ref()?;
    if ep.tables().rma.backend(op, sync, len) == RmaBackend::Engine {
        return None;
    }
    let lane = ep
        .kernel_copy_ep(core.rma_only.as_ref())
        .filter(|_| core.engine.peers().may_bypass_queue(ep.peer()))?;
    Some((lane, key))
}

/// Piece that only a number names, if a copy by the kernel is the best method for this length.
#[inline]
fn kernel_piece(
    core: &WorkerCore,
    ep: &EpState,
    (rkey, remote): (&Rkey, u64),
    (op, sync, len): (RmaOp, DeliveryComplete, usize),
) -> Option<RmaIov> {
    let bypass = rkey.is_key_only && len > 0 && core.engine.peers().may_bypass_queue(ep.peer());
    let by_kernel = bypass && ep.tables().rma.backend(op, sync, len) == RmaBackend::Kernel;
    by_kernel.then_some(RmaIov { addr: remote, len: len as u64, key: rkey.key })
}

/// Result of an operation on a lane that has ended within the call. `None`: it has not begun.
fn ended(sent: Outcome, peer: PeerId) -> Option<Result<(), Error>> {
    match sent {
        Ok(Sent::Done) => Some(Ok(())),
        Err(Refused::Failed(uct::api::Error::RemoteAccess)) => Some(Err(Error::RemoteAccess(peer))),
        _ => None,
    }
}

/// Runs `f` with memory of the worker's own context, if the peer is the worker itself. False: nothing has
/// happened.
// HOT
#[inline(always)]
pub(crate) fn with_own(
    ep: &Ep,
    f: impl FnOnce(&mut OwnMemory<'_, Bound<'_, CompletionSink<'_>>>) -> bool,
) -> bool {
    let state = ep.state();
    if !state.is_to_self() || state.refusal.get().is_some() {
        return false;
    }
    let mut core = ep.worker().core_keep_idle();
    let (engine, mut wire, _) = core.split();
    f(&mut OwnMemory { engine, wire: &mut wire, peer: state.peer() })
}

/// Writes `len` bytes at `buf` within the call, if the peer of the endpoint is the worker itself, and
/// `remote` is memory of its context. `key` is of packets, as for [`Rkey::from_key`]. False: nothing has
/// happened, and [`Ep::put_raw`] writes them, or tells the error.
/// # Safety
/// `buf..buf + len` can be read.
// HOT
#[inline]
pub unsafe fn put_self_raw(ep: &Ep, buf: *const u8, len: usize, remote: u64, key: u64) -> bool {
    let iov = RmaIov { addr: remote, len: len as u64, key };
    // SAFETY: this function's contract.
    with_own(ep, |own| unsafe { own.put(&iov, buf) })
}

/// Reads own memory as [`put_self_raw`] writes it.
/// # Safety
/// `buf..buf + len` can be written.
// HOT
#[inline]
pub unsafe fn get_self_raw(ep: &Ep, buf: *mut u8, len: usize, remote: u64, key: u64) -> bool {
    let iov = RmaIov { addr: remote, len: len as u64, key };
    // SAFETY: this function's contract.
    with_own(ep, |own| unsafe { own.get(&iov, buf) })
}

/// Writes to memory that [`mapped_now`] does not give: it is not mapped here, or its peer is not known yet,
/// has something queued, or is gone.
/// # Safety
/// As for [`Ep::put_raw`].
#[inline(never)]
pub(crate) unsafe fn put_general(
    ep: &Ep,
    (buf, len): (*const u8, usize),
    (remote, rkey): (u64, &Rkey),
    params: &RmaParams,
) -> Result<OpStatus<()>, Error> {
    let state = ep.state();
    if let Some(refusal) = state.refusal.get() {
        let remote = [RemoteIov { addr: remote, len, rkey }];
        // SAFETY: this function's contract.
        return unsafe { defer_put(ep, refusal, &[Iov::of(buf, len)], &remote, params) };
    }
    let peer = state.peer();
    if !rkey.covers(remote, len as u64, Access::WRITE) {
        return Err(Error::RemoteAccess(peer));
    }
    if rkey.is_key_only
        && params.cq_data.is_none()
        // SAFETY: this function's contract.
        && unsafe { put_self_raw(ep, buf, len, remote, rkey.key) }
    {
        return Ok(OpStatus::Done(()));
    }
    let mut core = ep.worker().core();
    if params.cq_data.is_none()
        && let Some((lane, key)) = mapped_ep(&core, peer, rkey)
    {
        let iov = UctIov::new(buf, len, None);
        // SAFETY: the caller passes readable bytes.
        let sent = unsafe { lane.put_zcopy(&[iov], remote, key, Comp::None) };
        if let Some(ended) = ended(sent, peer) {
            return ended.map(OpStatus::Done);
        }
    }
    if params.cq_data.is_none()
        && let Some((lane, key)) = kernel_copy_ep(&core, state, rkey, (RmaOp::Put, params.sync, len))
    {
        let iov = UctIov::new(buf, len, None);
        // SAFETY: the caller passes readable bytes.
        let sent = unsafe { lane.put_zcopy(&[iov], remote, key, Comp::None) };
        if let Some(ended) = ended(sent, peer) {
            return ended.map(OpStatus::Done);
        }
    }
    if params.cq_data.is_none()
        && let Some(piece) = kernel_piece(&core, state, (rkey, remote), (RmaOp::Put, params.sync, len))
        && let Some(peer_memory) = state.rma_only_ep()
        && let Some((lane, at, key)) = peer_memory.resolve(core.rma_only.as_ref(), &piece, Access::WRITE)
    {
        let iov = UctIov::new(buf, len, None);
        // SAFETY: the caller passes readable bytes.
        let sent = unsafe { lane.put_zcopy(&[iov], at, &key, Comp::None) };
        if let Some(ended) = ended(sent, peer) {
            return ended.map(OpStatus::Done);
        }
    }
    // SAFETY: the caller keeps the bytes valid until completion.
    let local = Gather::one(unsafe { SendBuf::new(buf, len) });
    let device = match rkey.device() {
        Some(_) => device_write(&core, peer, rkey.remote_mem(), len, params),
        None => DeviceRdma::No,
    };
    let protocol = state.tables().rma.put(device, params.sync, len);
    let key = rkey.device().filter(|_| protocol == RmaProtocol::DirectWrite).unwrap_or(rkey.key);
    let iov = Iovs::one(RmaIov { addr: remote, len: len as u64, key });
    let rails = (len as u64 >= rkey.min_striped_len).then_some(&rkey.rails);
    start_put(&mut core, state, (local, iov), (protocol, rails), params)
}

/// Reads memory that [`mapped_now`] does not give.
/// # Safety
/// As for [`Ep::get_raw`].
#[inline(never)]
pub(crate) unsafe fn get_general(
    ep: &Ep,
    (buf, len): (*mut u8, usize),
    (remote, rkey): (u64, &Rkey),
    params: &RmaParams,
) -> Result<OpStatus<RecvStatus>, Error> {
    let state = ep.state();
    if let Some(refusal) = state.refusal.get() {
        let remote = [RemoteIov { addr: remote, len, rkey }];
        // SAFETY: this function's contract.
        return unsafe { defer_get(ep, refusal, &[Iov { addr: buf, len }], &remote, params) };
    }
    let peer = state.peer();
    if !rkey.covers(remote, len as u64, Access::READ) {
        return Err(Error::RemoteAccess(peer));
    }
    // SAFETY: this function's contract.
    if rkey.is_key_only && unsafe { get_self_raw(ep, buf, len, remote, rkey.key) } {
        return Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS }));
    }
    let mut core = ep.worker().core();
    if let Some((lane, key)) = mapped_ep(&core, peer, rkey) {
        let iov = UctIov::new(buf, len, None);
        // SAFETY: the caller passes writable bytes.
        let sent = unsafe { lane.get_zcopy(&[iov], remote, key, Comp::None) };
        if let Some(ended) = ended(sent, peer) {
            return ended.map(|()| OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS }));
        }
    }
    if let Some((lane, key)) = kernel_copy_ep(&core, state, rkey, (RmaOp::Get, DeliveryComplete::No, len)) {
        let iov = UctIov::new(buf, len, None);
        // SAFETY: the caller passes writable bytes.
        let sent = unsafe { lane.get_zcopy(&[iov], remote, key, Comp::None) };
        if let Some(ended) = ended(sent, peer) {
            return ended.map(|()| OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS }));
        }
    }
    let piece = kernel_piece(&core, state, (rkey, remote), (RmaOp::Get, DeliveryComplete::No, len));
    if let Some(piece) = &piece
        && let Some(peer_memory) = state.rma_only_ep()
    {
        // SAFETY: the caller passes writable bytes.
        if unsafe { peer_memory.read(core.rma_only.as_ref(), piece, buf) } == Some(true) {
            return Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS }));
        }
    }
    if let Some(piece) = &piece
        && let Some(peer_memory) = state.rma_only_ep()
        && let Some((lane, at, key)) = peer_memory.resolve(core.rma_only.as_ref(), piece, Access::READ)
    {
        let iov = UctIov::new(buf, len, None);
        // SAFETY: the caller passes writable bytes.
        let sent = unsafe { lane.get_zcopy(&[iov], at, &key, Comp::None) };
        if let Some(ended) = ended(sent, peer) {
            return ended.map(|()| OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS }));
        }
    }
    // SAFETY: the caller keeps the buffer valid until completion.
    let local = Scatter::one(unsafe { RecvBuf::new(buf, len) });
    let device = rkey.device().map_or(DeviceRdma::No, |_| DeviceRdma::Also(rkey.remote_mem()));
    let protocol = state.tables().rma.get(device, len);
    let key = rkey.device().filter(|_| protocol == RmaProtocol::DirectRead).unwrap_or(rkey.key);
    let iov = Iovs::one(RmaIov { addr: remote, len: len as u64, key });
    let rails = (len as u64 >= rkey.min_striped_len).then_some(&rkey.rails);
    start_get(&mut core, state, (local, iov), (protocol, rails), params)
}

/// Whether the device may carry out a put.
#[inline]
pub(crate) fn device_write(
    core: &WorkerCore,
    peer: PeerId,
    remote_mem: RemoteMem,
    len: usize,
    params: &RmaParams,
) -> DeviceRdma {
    let (rdma, features) = (core.engine.peers().rdma(peer), core.engine.peers().features(peer));
    match direct_write(rdma, features, len as u64, params.cq_data) {
        Err(_) => DeviceRdma::No,
        Ok(()) if params.cq_data.is_some() || !acknowledges(features) => DeviceRdma::Only,
        Ok(()) => DeviceRdma::Also(remote_mem),
    }
}

/// Starts a put in the engine.
pub(crate) fn start_put(
    core: &mut WorkerCore,
    ep: &EpState,
    (local, remote): (Gather, Iovs),
    (protocol, rails): (RmaProtocol, Option<&RailKeys>),
    params: &RmaParams,
) -> Result<OpStatus<()>, Error> {
    let (engine, mut wire, reqs) = core.split();
    let user = reqs.next_token()?;
    let args = PutArgs { local, remote, sync: params.sync, cq_data: params.cq_data, protocol, user };
    let started = match rails {
        None => engine.put(&mut wire, ep.peer(), args),
        Some(keys) => engine.put_striped(&mut wire, ep.peer(), args, keys),
    };
    match started {
        EngineStarted::Done(()) => Ok(OpStatus::Done(())),
        EngineStarted::Pending(op) => {
            Ok(OpStatus::InProgress(reqs.start_rma(user, (op, ep.number()), local.len(), params.done)))
        }
        EngineStarted::Failed(e) => Err(e.into()),
    }
}

/// Starts a get in the engine.
pub(crate) fn start_get(
    core: &mut WorkerCore,
    ep: &EpState,
    (local, remote): (Scatter, Iovs),
    (protocol, rails): (RmaProtocol, Option<&RailKeys>),
    params: &RmaParams,
) -> Result<OpStatus<RecvStatus>, Error> {
    let (engine, mut wire, reqs) = core.split();
    let user = reqs.next_token()?;
    let len = local.len();
    let args = GetArgs { local, remote, protocol, user };
    let started = match rails {
        None => engine.get(&mut wire, ep.peer(), args),
        Some(keys) => engine.get_striped(&mut wire, ep.peer(), args, keys),
    };
    match started {
        EngineStarted::Done(()) => Ok(OpStatus::Done(RecvStatus { len, ..EMPTY_STATUS })),
        EngineStarted::Pending(op) => {
            Ok(OpStatus::InProgress(reqs.start_rma(user, (op, ep.number()), len, params.done)))
        }
        EngineStarted::Failed(e) => Err(e.into()),
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
        list.try_push(iov).map_err(|_| Error::TooManyPieces { max: MAX_IOV })?;
    }
    let iovs = Iovs::try_from(list.as_slice()).map_err(|_| Error::Invalid)?;
    Ok((iovs, direct))
}
