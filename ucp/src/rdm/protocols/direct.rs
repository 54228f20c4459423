//! RDMA writes and reads: no packet, and no work at the target. Long ones take several device operations.
//! They need a key of the peer's device and a completed handshake, as a device answers only peers it has sent
//! to (RDM v4, wire facts 7.2).

use ucs::coll::slots::SlotId;

use crate::rdm::ids::{PeerId, TxToken};
use crate::rdm::io::{NotPosted, Posted, Reg, RegAccess, Remote, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::Piece;
use crate::rdm::op::rma_op::{Ack, Job, RmaOp, RmaState};
use crate::rdm::peers::Peers;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::SendProgress;
use crate::rdm::rails::rail_set::{self, Direction, PiecePost};
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::types::Emulation;
use crate::wire::{PktType, header_len};

pub(in crate::rdm) use crate::rdm::rma::args::MAX_COPY;

/// Reason why a piece was not posted.
enum PostError {
    Posted(NotPosted),
    Unregistered,
}

/// True if the device should write with immediate data: the data does not fit one packet (the target must
/// poll in either case) and is one operation (only one carries the immediate).
pub(in crate::rdm) fn can_carry_cq_data<W: Wire>(peers: &Peers, w: &W, rma: &RmaOp) -> bool {
    let Job::Put(local) = &rma.job else { return false };
    let opts = peers.wires.req_opts(&peers.table[rma.peer], rma.cq_data);
    let header = header_len(PktType::DC_EAGER_RTW, rma.remote.count(), &opts) as u64;
    let one_piece = |lens: &mut dyn Iterator<Item = u64>| lens.filter(|&len| len > 0).count() == 1;
    one_piece(&mut local.pieces().iter().map(|buf| buf.len() as u64))
        && one_piece(&mut rma.remote.as_slice().iter().map(|iov| iov.len))
        && header.saturating_add(rma.len) > w.mtu(rma.peer) as u64
}

/// Posts the next piece of the operation at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(rma) = rma_ops.table.get(id) else { return SendProgress::Done };
    let to = rma.peer;
    let wire = peers.table[to].wire;
    let rdma = peers.wires[wire].rdma;
    let max = if rma.protocol == RmaProtocol::DirectWrite { rdma.write } else { rdma.read };
    if max == 0 {
        return by_packets(rma_ops, peers, id);
    }
    if rma.failed.is_some() {
        if let Some(rma) = rma_ops.table.get_mut(id) {
            rma.state = RmaState::AllSent;
        }
        return SendProgress::Done;
    }
    if rma.state == RmaState::Moving && rma.wire != Some(wire) {
        // The key is of another device.
        return restart_by_packets(rma_ops, peers, w, id);
    }
    if rma.rail_plan.is_some() && rma.state == RmaState::Queued {
        return start_stripes(rma_ops, peers, w, id);
    }
    if rma.sent < rma.len {
        let posted = match post(rma_ops, peers, w, id, max) {
            Ok(posted) => posted,
            Err(PostError::Unregistered) => return restart_by_packets(rma_ops, peers, w, id),
            Err(PostError::Posted(NotPosted::Peer(fault))) if fault.is_of_operation() => {
                return refuse(rma_ops, id, fault.of_operation(to));
            }
            Err(PostError::Posted(refused)) => return refused.into(),
        };
        let Some(rma) = rma_ops.table.get_mut(id) else { return SendProgress::Done };
        (rma.state, rma.wire) = (RmaState::Moving, Some(wire));
        rma.sent += posted.1 as u64;
        rma.in_flight += u32::from(posted.0 == Posted::Pending);
        if rma.sent < rma.len {
            return SendProgress::Sent;
        }
    }
    let Some(rma) = rma_ops.table.get_mut(id) else { return SendProgress::Done };
    rma.state = RmaState::AllSent;
    let (protocol, len, done, peer) = (rma.protocol, rma.len, rma.in_flight == 0, rma.peer);
    peers.counters.count_initiated(peer, protocol, len);
    if done {
        rma_ops.finish(peers, pending, id, Ok(()));
        pending.release_regs(w);
    }
    SendProgress::Done
}

/// Ends an operation of which a piece was refused, once nothing of it is in flight.
#[cold]
fn refuse(rma_ops: &mut RmaOps, id: SlotId, error: OpError) -> SendProgress {
    let Some(rma) = rma_ops.table.get_mut(id).filter(|rma| rma.in_flight > 0) else {
        return SendProgress::Fail(error);
    };
    rma.failed.get_or_insert(error);
    rma.state = RmaState::AllSent;
    SendProgress::Done
}

/// Cuts the operation into pieces for several rails, which the grant queue posts in turn; or uses one wire.
fn start_stripes<W: Wire>(rma_ops: &mut RmaOps, peers: &mut Peers, w: &mut W, id: SlotId) -> SendProgress {
    let Some(rma) = rma_ops.table.get_mut(id) else { return SendProgress::Done };
    let (to, len, direction, local) = (rma.peer, rma.len, direction_of(rma), local_of(rma));
    let (Some(mut rail_plan), Some(local)) = (rma.rail_plan.take(), local) else { return SendProgress::Sent };
    rail_set::trigger_rails(peers, w, to);
    let cut = rail_plan.cut_pieces(peers, (0, len), direction, peers.cfg.rma_chunk);
    if !cut || rail_plan.register_stripes(peers, w, direction, local) < 2 {
        rail_plan.take_regs().for_each(|reg| w.release(reg));
        return SendProgress::Sent;
    }
    peers.counters.stats.rare.striped += 1;
    if let Some(rma) = rma_ops.table.get_mut(id) {
        rma.rail_plan = Some(rail_plan);
        rma.state = RmaState::Moving;
        rma.in_data_queue = true;
    }
    peers.table[to].queue_mut().grants.push_back(id);
    SendProgress::Done
}

fn direction_of(rma: &RmaOp) -> Direction {
    if rma.protocol == RmaProtocol::DirectWrite { Direction::Write } else { Direction::Read }
}

/// Returns the caller's memory, which is one piece.
fn local_of(rma: &RmaOp) -> Option<Piece> {
    let first = match &rma.job {
        Job::Put(local) => local.piece_at(0),
        Job::Get(local) => local.piece_at(0),
        _ => None,
    };
    first.map(|(_, piece, _)| piece)
}

/// Posts the next piece of an operation over several rails.
pub(in crate::rdm) fn push_stripes<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(rma) = rma_ops.table.get_mut(id) else { return SendProgress::Done };
    let (direction, remote) = (direction_of(rma), rma.remote.as_slice().first().map_or(0, |iov| iov.addr));
    if rma.failed.is_some() {
        rma.in_data_queue = false;
        return SendProgress::Done;
    }
    let (Some(local), Some(mut rail_plan)) = (local_of(rma), rma.rail_plan.take()) else {
        return SendProgress::Done;
    };
    let striped = rail_set::post_stripe(peers, w, &mut rail_plan, id, direction, (local, remote));
    let Some(rma) = rma_ops.table.get_mut(id) else { return SendProgress::Done };
    let done = rail_plan.all_posted();
    rma.rail_plan = Some(rail_plan);
    let push = match striped {
        PiecePost::Posted(how) => {
            rma.in_flight += u32::from(how == Posted::Pending);
            if done { SendProgress::Done } else { SendProgress::Sent }
        }
        PiecePost::Enough => SendProgress::Done,
        PiecePost::Full => SendProgress::Full,
        PiecePost::Lost(fault) => {
            rma.failed.get_or_insert(OpError::Peer(rma.peer, fault));
            SendProgress::Done
        }
        PiecePost::Failed(fault) if fault.is_of_operation() => {
            rma.failed.get_or_insert(fault.of_operation(rma.peer));
            SendProgress::Done
        }
        PiecePost::Failed(fault) => SendProgress::Fail(OpError::Peer(rma.peer, fault)),
    };
    if matches!(push, SendProgress::Sent | SendProgress::Full) {
        return push;
    }
    rma.in_data_queue = false;
    settle_stripes(rma_ops, peers, pending, id);
    pending.release_regs(w);
    push
}

/// Ends a striped operation if nothing is in flight and nothing is left to post.
fn settle_stripes(rma_ops: &mut RmaOps, peers: &mut Peers, pending: &mut Pending, id: SlotId) {
    let Some(rma) = rma_ops.table.get(id) else { return };
    let done = rma.rail_plan.as_ref().is_none_or(|rail_plan| rail_plan.all_posted());
    let (protocol, len, failed, peer) = (rma.protocol, rma.len, rma.failed, rma.peer);
    if rma.in_flight > 0 || !done && failed.is_none() {
        return;
    }
    if failed.is_none() {
        peers.counters.count_initiated(peer, protocol, len);
    }
    rma_ops.finish(peers, pending, id, failed.map_or(Ok(()), Err));
}

/// Handles the end of a piece: done, or posted over another rail. A refused key ends the operation.
fn on_stripe_end(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    id: SlotId,
    part: u32,
    result: Result<(), PeerError>,
) -> Option<(PeerId, Next)> {
    let rma = rma_ops.table.get_mut(id)?;
    let (peer, detached, Some(mut rail_plan)) = (rma.peer, rma.detached, rma.rail_plan.take()) else {
        return None;
    };
    match result {
        Err(fault) if fault.is_of_operation() => _ = rma.failed.get_or_insert(fault.of_operation(peer)),
        _ => {}
    }
    let lost = rail_set::end_stripe(peers, &mut rail_plan, part, result);
    let rma = rma_ops.table.get_mut(id)?;
    if let Some(fault) = lost {
        rma.failed.get_or_insert(OpError::Peer(peer, fault));
    }
    let more = !rail_plan.all_posted() && rma.failed.is_none();
    rma.rail_plan = Some(rail_plan);
    if more && !std::mem::replace(&mut rma.in_data_queue, true) {
        peers.table[peer].queue_mut().grants.push_back(id);
        return Some((peer, Next::Drive));
    }
    settle_stripes(rma_ops, peers, pending, id);
    lost.filter(|_| !detached).map(|fault| (peer, Next::Fail(fault)))
}

/// Starts over by packets when memory cannot be registered, once nothing is in flight. The device's part is
/// repeated with the same bytes.
fn restart_by_packets<W: Wire>(rma_ops: &mut RmaOps, peers: &Peers, w: &mut W, id: SlotId) -> SendProgress {
    let Some(rma) = rma_ops.table.get_mut(id) else { return SendProgress::Done };
    if rma.in_flight > 0 {
        return SendProgress::Full;
    }
    (rma.sent, rma.state) = (0, RmaState::Queued);
    rma.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
    by_packets(rma_ops, peers, id)
}

/// Continues by packets: the target accepts the device's key there too.
fn by_packets(rma_ops: &mut RmaOps, peers: &Peers, id: SlotId) -> SendProgress {
    if peers.cfg.emulation == Emulation::Refused {
        return SendProgress::Fail(OpError::Emulated);
    }
    if let Some(rma) = rma_ops.table.get_mut(id) {
        rma.go_by_packets();
    }
    SendProgress::Sent
}

/// Posts one piece that is contiguous at both ends, at most `max` bytes. Returns its length.
fn post<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &Peers,
    w: &mut W,
    id: SlotId,
    max: u64,
) -> Result<(Posted, usize), PostError> {
    let no_rdma = PostError::Posted(NotPosted::Peer(PeerError::NO_RDMA));
    let Some(rma) = rma_ops.table.get_mut(id) else { return Err(no_rdma) };
    let (to, token) = (rma.peer, TxToken::RmaOp { id, part: 0 });
    let (remote, contiguous) = remote_at(rma);
    let local = match &rma.job {
        Job::Put(local) => local.piece_at(rma.sent),
        Job::Get(local) => local.piece_at(rma.sent),
        _ => None,
    };
    let Some((n, piece, at)) = local else { return Err(no_rdma) };
    let chunk = piece.part(at, contiguous.min(usize::try_from(max).unwrap_or(usize::MAX)));
    if chunk.len() <= MAX_COPY && rma.regs[n].is_none() && rma.cq_data.is_none() {
        match post_copied(w, rma, to, chunk, remote, token) {
            Ok(posted) => return Ok((posted, chunk.len())),
            Err(NotPosted::Peer(PeerError::NO_RDMA)) => {}
            Err(refused) => return Err(PostError::Posted(refused)),
        }
    }
    if rma.regs[n].is_none() {
        let for_what =
            if matches!(rma.job, Job::Get(_)) { RegAccess::LOCAL_WRITE } else { RegAccess::empty() };
        let reg = w.register(peers.table[to].wire, piece, for_what).map_err(|_| PostError::Unregistered)?;
        rma.regs[n] = Some(reg);
    }
    let Some(reg) = &rma.regs[n] else { return Err(no_rdma) };
    let posted = post_registered(w, rma, to, chunk, reg, remote, token);
    posted.map(|posted| (posted, chunk.len())).map_err(PostError::Posted)
}

/// Copies through the wire's buffers; not for a write whose caller waits for the device's completion.
fn post_copied<W: Wire>(
    w: &mut W,
    rma: &RmaOp,
    to: PeerId,
    chunk: Piece,
    remote: Remote,
    token: TxToken,
) -> Result<Posted, NotPosted> {
    match &rma.job {
        Job::Put(local) if rma.ack != Ack::Wanted => {
            w.write_copy(to, chunk.len(), |slot| local.copy_to(rma.sent as usize, slot), remote)?;
            Ok(Posted::Done)
        }
        Job::Get(_) => w.read_copy(to, chunk, remote, token),
        _ => Err(NotPosted::Peer(PeerError::NO_RDMA)),
    }
}

fn post_registered<W: Wire>(
    w: &mut W,
    rma: &RmaOp,
    to: PeerId,
    chunk: Piece,
    reg: &Reg,
    remote: Remote,
    token: TxToken,
) -> Result<Posted, NotPosted> {
    match rma.job {
        // With a word for the target it is one stretch. [M8.10]
        Job::Put(_) => w.write(to.into(), chunk, reg, remote, rma.cq_data.map(|word| word as u32), token),
        _ => w.read(to.into(), chunk, reg, remote, token),
    }
}

/// Returns the target memory of the next byte, and the contiguous length.
fn remote_at(rma: &RmaOp) -> (Remote, usize) {
    let mut skip = rma.sent;
    for iov in rma.remote.as_slice() {
        if skip < iov.len {
            let contiguous = usize::try_from(iov.len - skip).unwrap_or(usize::MAX);
            return (Remote { addr: iov.addr.wrapping_add(skip), key: iov.key }, contiguous);
        }
        skip -= iov.len;
    }
    (Remote { addr: 0, key: 0 }, 0)
}

/// Repeats by packets a write whose immediate data found no receive at the target.
// [M8.10] [M10.5]
#[cold]
fn on_rnr<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> Option<(PeerId, Next)> {
    peers.counters.stats.rare.not_ready += 1;
    repeat(rma_ops, peers, pending, w, id)
}

/// Handles the end of an RDMA operation. The last one ends the request. The caller releases registrations of
/// ended operations.
pub(in crate::rdm) fn on_end<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
    part: u32,
    result: Result<(), PeerError>,
) -> Option<(PeerId, Next)> {
    let rma = rma_ops.table.get_mut(id)?;
    rma.in_flight = rma.in_flight.saturating_sub(1);
    if rma.rail_plan.is_some() {
        return on_stripe_end(rma_ops, peers, pending, id, part, result);
    }
    let (peer, all_sent) = (rma.peer, rma.state == RmaState::AllSent);
    if result == Err(PeerError::NOT_READY) && rma.cq_data.is_some() && !rma.detached {
        return match peers.cfg.emulation {
            Emulation::Allowed => on_rnr(rma_ops, peers, pending, w, id),
            Emulation::Refused => {
                rma_ops.finish(peers, pending, id, Err(OpError::Emulated));
                None
            }
        };
    }
    if let Err(fault) = result {
        rma.failed.get_or_insert(fault.of_operation(peer));
    }
    let (in_flight, failed, detached) = (rma.in_flight, rma.failed, rma.detached);
    let mut next = None;
    match failed {
        Some(OpError::Peer(_, fault)) if in_flight == 0 && may_repeat(rma_ops, peers, id, fault) => {
            next = repeat(rma_ops, peers, pending, w, id);
        }
        Some(OpError::Peer(peer, fault)) if in_flight == 0 && peers.survives(peer, fault) => {
            rma_ops.finish_uncertain(peers, pending, id, peer, fault);
        }
        // An id left in the queue becomes stale.
        Some(error) if in_flight == 0 => rma_ops.finish(peers, pending, id, Err(error)),
        None if in_flight == 0 && all_sent => rma_ops.finish(peers, pending, id, Ok(())),
        _ => {}
    }
    if let (Err(fault), false) = (result, detached)
        && !fault.is_of_operation()
        && !peers.survives(peer, fault)
    {
        next = Some((peer, Next::Fail(fault)));
    }
    next
}

/// True if a failed operation is repeated by packets: the peer fails over, and writing the same bytes twice
/// does no harm. Immediate data would arrive twice.
// [M11.10]
fn may_repeat(rma_ops: &RmaOps, peers: &Peers, id: SlotId, fault: PeerError) -> bool {
    let repeatable = |rma: &RmaOp| rma.cq_data.is_none() && !rma.detached;
    rma_ops.table.get(id).is_some_and(|rma| repeatable(rma) && peers.survives(rma.peer, fault))
        && peers.cfg.emulation == Emulation::Allowed
}

/// Repeats an operation by packets; nothing of it is in flight. It goes before all that is queued, as a fence
/// there waits for it.
#[cold]
fn repeat<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> Option<(PeerId, Next)> {
    let rma = rma_ops.table.get_mut(id)?;
    (rma.failed, rma.sent) = (None, 0);
    pending.unused_regs.extend(rma.regs.iter_mut().filter_map(Option::take));
    rma.go_by_packets();
    let (to, queued) = (rma.peer, rma.state != RmaState::AllSent);
    rma.state = RmaState::Queued;
    if !queued {
        let peer = &mut peers.table[to];
        peer.state.insert(PeerFlags::SENDS_QUEUED);
        peer.queue_mut().sends.push_front(id);
    }
    pending.release_regs(w);
    Some((to, Next::Drive))
}
