//! Writes and reads that the device does by itself: RDMA, no packet at all, nobody asked at the target. What
//! is too long for one operation of the device is done in several. Needs a key that the peer's device knows,
//! and that the two have met: a device does not answer to one it has never sent to (RDM v4, wire facts 7.2).

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::{PeerId, TxToken};
use crate::rdm::io::{NotPosted, Posted, Reg, RegAccess, Remote, Wire};
use crate::rdm::op::Piece;
use crate::rdm::op::rma_op::{Ack, Job, RmaOp, RmaState};
use crate::rdm::peers::peer::PeerFlags;
use crate::rdm::protocol::SendProgress;
use crate::rdm::rails::rail_set::{Direction, PiecePost};
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::types::Emulation;
use crate::wire::{PktType, header_len};

pub(in crate::rdm) use crate::rdm::rma::args::MAX_COPY as COPY;

/// Why a stretch was not posted.
enum Not {
    Posted(NotPosted),
    Unregistered,
}

/// Whether a write with data for its target is the device's: one that fits a packet is not, as the target has
/// to look anyway; nor is one in pieces, as only one operation can bring the data.
pub(in crate::rdm) fn takes_data<W: Wire>(e: &Engine, w: &W, one: &RmaOp) -> bool {
    let Job::Put(local) = &one.job else { return false };
    let opts = e.opts(&e.peers[one.peer], one.cq_data);
    let header = header_len(PktType::DC_EAGER_RTW, one.remote.count(), &opts) as u64;
    let one_piece = |lens: &mut dyn Iterator<Item = u64>| lens.filter(|&len| len > 0).count() == 1;
    one_piece(&mut local.pieces().iter().map(|buf| buf.len() as u64))
        && one_piece(&mut one.remote.as_slice().iter().map(|iov| iov.len))
        && header.saturating_add(one.len) > w.mtu(one.peer) as u64
}

/// Posts the next stretch of the operation at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(one) = e.rma_ops.get(id) else { return SendProgress::Done };
    let to = one.peer;
    let wire = e.peers[to].wire;
    let rdma = e.wires[usize::from(wire.0)].rdma;
    let max = if one.protocol == RmaProtocol::DirectWrite { rdma.write } else { rdma.read };
    if one.len > 0 && max == 0 {
        return by_packets(e, id);
    }
    if one.failed.is_some() {
        if let Some(one) = e.rma_ops.get_mut(id) {
            one.state = RmaState::AllOut;
        }
        return SendProgress::Done;
    }
    if one.state == RmaState::Moving && one.wire != Some(wire) {
        // The key is another device's.
        return start_over(e, w, id);
    }
    if one.rail_plan.is_some() && one.state == RmaState::Queued {
        return start_stripes(e, w, id);
    }
    if one.sent < one.len {
        let posted = match post(e, w, id, max) {
            Ok(posted) => posted,
            Err(Not::Unregistered) => return start_over(e, w, id),
            Err(Not::Posted(NotPosted::Peer(PeerError::ACCESS))) => {
                return SendProgress::Fail(OpError::Access(to));
            }
            Err(Not::Posted(refused)) => return refused.into(),
        };
        let Some(one) = e.rma_ops.get_mut(id) else { return SendProgress::Done };
        (one.state, one.wire) = (RmaState::Moving, Some(wire));
        one.sent += posted.1 as u64;
        one.in_flight += u32::from(posted.0 == Posted::Pending);
        if one.sent < one.len {
            return SendProgress::Sent;
        }
    }
    let Some(one) = e.rma_ops.get_mut(id) else { return SendProgress::Done };
    one.state = RmaState::AllOut;
    let (protocol, len, over, peer) = (one.protocol, one.len, one.in_flight == 0, one.peer);
    e.stats.count_rma(protocol, len);
    e.by_peer.asked(peer, protocol, len);
    if over {
        e.finish_rma(id, Ok(()));
        e.release_regs(w);
    }
    SendProgress::Done
}

/// Cuts the operation into pieces for several rails, which are posted from the queue of what goes on by
/// turns; or it goes over one wire.
fn start_stripes<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(one) = e.rma_ops.get_mut(id) else { return SendProgress::Done };
    let (to, len, way, local) = (one.peer, one.len, way_of(one), local_of(one));
    let (Some(mut rail_plan), Some(local)) = (one.rail_plan.take(), local) else { return SendProgress::Sent };
    e.trigger_rails(w, to);
    let cut = e.cut_pieces(&mut rail_plan, (0, len), way, e.cfg.rma_chunk);
    if !cut || e.register_stripes(w, &mut rail_plan, way, local) < 2 {
        rail_plan.take_regs().for_each(|reg| w.release(reg));
        return SendProgress::Sent;
    }
    e.stats.rare.striped += 1;
    if let Some(one) = e.rma_ops.get_mut(id) {
        one.rail_plan = Some(rail_plan);
        one.state = RmaState::Moving;
        one.in_data_queue = true;
    }
    e.peers[to].queue_mut().grants.push_back(id);
    SendProgress::Done
}

fn way_of(one: &RmaOp) -> Direction {
    if one.protocol == RmaProtocol::DirectWrite { Direction::Write } else { Direction::Read }
}

/// The caller's memory, of which there is one piece.
fn local_of(one: &RmaOp) -> Option<Piece> {
    let first = match &one.job {
        Job::Put(local) => local.piece_at(0),
        Job::Get(local) => local.piece_at(0),
        _ => None,
    };
    first.map(|(_, piece, _)| piece)
}

/// Posts the next piece of an operation over several rails.
pub(in crate::rdm) fn push_stripes<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(one) = e.rma_ops.get_mut(id) else { return SendProgress::Done };
    let (way, remote) = (way_of(one), one.remote.as_slice().first().map_or(0, |iov| iov.addr));
    if one.failed.is_some() {
        one.in_data_queue = false;
        return SendProgress::Done;
    }
    let (Some(local), Some(mut rail_plan)) = (local_of(one), one.rail_plan.take()) else {
        return SendProgress::Done;
    };
    let striped = e.post_stripe(w, &mut rail_plan, id, way, (local, remote));
    let Some(one) = e.rma_ops.get_mut(id) else { return SendProgress::Done };
    let over = rail_plan.all_posted();
    one.rail_plan = Some(rail_plan);
    let push = match striped {
        PiecePost::Posted(how) => {
            one.in_flight += u32::from(how == Posted::Pending);
            if over { SendProgress::Done } else { SendProgress::Sent }
        }
        PiecePost::Enough => SendProgress::Done,
        PiecePost::Full => SendProgress::Full,
        PiecePost::Lost(fault) => {
            one.failed.get_or_insert(OpError::Peer(one.peer, fault));
            SendProgress::Done
        }
        PiecePost::Failed(fault) => SendProgress::Fail(OpError::Peer(one.peer, fault)),
    };
    if matches!(push, SendProgress::Sent | SendProgress::Full) {
        return push;
    }
    one.in_data_queue = false;
    settle_stripes(e, id);
    e.release_regs(w);
    push
}

/// Ends an operation over several rails if nothing of it flies and nothing is left to post, or will be.
fn settle_stripes(e: &mut Engine, id: SlotId) {
    let Some(one) = e.rma_ops.get(id) else { return };
    let over = one.rail_plan.as_ref().is_none_or(|rail_plan| rail_plan.all_posted());
    let (protocol, len, failed, peer) = (one.protocol, one.len, one.failed, one.peer);
    if one.in_flight > 0 || !over && failed.is_none() {
        return;
    }
    if failed.is_none() {
        e.stats.count_rma(protocol, len);
        e.by_peer.asked(peer, protocol, len);
    }
    e.finish_rma(id, failed.map_or(Ok(()), Err));
}

/// The device has ended a piece of operation `id`: it is done, or goes over another rail. A key that the
/// target's device refuses ends the operation.
fn on_piece<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId, part: u32, result: Result<(), PeerError>) {
    let Some(one) = e.rma_ops.get_mut(id) else { return };
    let (peer, detached, Some(mut rail_plan)) = (one.peer, one.detached, one.rail_plan.take()) else {
        return;
    };
    if result == Err(PeerError::ACCESS) {
        one.failed.get_or_insert(OpError::Access(peer));
    }
    let lost = e.end_stripe(w, &mut rail_plan, part, result);
    let Some(one) = e.rma_ops.get_mut(id) else { return };
    if let Some(fault) = lost {
        one.failed.get_or_insert(OpError::Peer(peer, fault));
    }
    let more = !rail_plan.all_posted() && one.failed.is_none();
    one.rail_plan = Some(rail_plan);
    if more && !std::mem::replace(&mut one.in_data_queue, true) {
        e.peers[peer].queue_mut().grants.push_back(id);
        e.drive(w, peer);
    }
    settle_stripes(e, id);
    if let (Some(fault), false) = (lost, detached) {
        e.fail_peer(w, peer, fault);
    }
    e.release_regs(w);
}

/// Memory cannot be registered, now or ever: all of it goes by packets, once no part is under way. What the
/// device has done already is done once more, with the same bytes.
fn start_over<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(one) = e.rma_ops.get_mut(id) else { return SendProgress::Done };
    if one.in_flight > 0 {
        return SendProgress::Full;
    }
    (one.sent, one.state) = (0, RmaState::Queued);
    one.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
    by_packets(e, id)
}

/// Goes on by packets: the target knows the device's key there too.
fn by_packets(e: &mut Engine, id: SlotId) -> SendProgress {
    if e.cfg.emulation == Emulation::Refused {
        return SendProgress::Fail(OpError::Emulated);
    }
    if let Some(one) = e.rma_ops.get_mut(id) {
        one.go_by_packets();
    }
    SendProgress::Sent
}

/// Hands one stretch to the device: what is contiguous at both ends, and at most `max` bytes. Answers how
/// many.
fn post<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId, max: u64) -> Result<(Posted, usize), Not> {
    let gone = Not::Posted(NotPosted::Peer(PeerError::NO_RDMA));
    let Some(one) = e.rma_ops.get_mut(id) else { return Err(gone) };
    let (to, token) = (one.peer, TxToken::of(id.raw()));
    let (far, room) = far_at(one);
    let local = match &one.job {
        Job::Put(local) => local.piece_at(one.sent),
        Job::Get(local) => local.piece_at(one.sent),
        _ => None,
    };
    let Some((n, piece, at)) = local else { return Err(gone) };
    let stretch = piece.part(at, room.min(usize::try_from(max).unwrap_or(usize::MAX)));
    if stretch.len() <= COPY && one.regs[n].is_none() && one.cq_data.is_none() {
        match copied(w, one, to, stretch, far, token) {
            Ok(posted) => return Ok((posted, stretch.len())),
            Err(NotPosted::Peer(PeerError::NO_RDMA)) => {}
            Err(refused) => return Err(Not::Posted(refused)),
        }
    }
    if one.regs[n].is_none() {
        let for_what =
            if matches!(one.job, Job::Get(_)) { RegAccess::LOCAL_WRITE } else { RegAccess::empty() };
        let reg = w.register(e.peers[to].wire, piece, for_what).map_err(|_| Not::Unregistered)?;
        one.regs[n] = Some(reg);
    }
    let Some(reg) = &one.regs[n] else { return Err(gone) };
    let posted = in_place(w, one, to, stretch, reg, far, token);
    posted.map(|posted| (posted, stretch.len())).map_err(Not::Posted)
}

/// By the wire's buffers. A write that the caller wants to see ended by the device has no such end.
fn copied<W: Wire>(
    w: &mut W,
    one: &RmaOp,
    to: PeerId,
    stretch: Piece,
    far: Remote,
    token: TxToken,
) -> Result<Posted, NotPosted> {
    match &one.job {
        Job::Put(local) if one.ack != Ack::Wanted => {
            w.write_copy(to, stretch.len(), |slot| local.copy_to(one.sent as usize, slot), far)?;
            Ok(Posted::Done)
        }
        Job::Get(_) => w.read_copy(to, stretch, far, token),
        _ => Err(NotPosted::Peer(PeerError::NO_RDMA)),
    }
}

fn in_place<W: Wire>(
    w: &mut W,
    one: &RmaOp,
    to: PeerId,
    stretch: Piece,
    reg: &Reg,
    far: Remote,
    token: TxToken,
) -> Result<Posted, NotPosted> {
    match one.job {
        // With a word for the target it is one stretch. [M8.10]
        Job::Put(_) => w.write(to, stretch, reg, far, one.cq_data.map(|word| word as u32), token),
        _ => w.read(to, stretch, reg, far, token),
    }
}

/// The target's memory that the next byte goes to or comes from, and how much of it is in one piece.
fn far_at(one: &RmaOp) -> (Remote, usize) {
    let mut skip = one.sent;
    for iov in one.remote.as_slice() {
        if skip < iov.len {
            let room = usize::try_from(iov.len - skip).unwrap_or(usize::MAX);
            return (Remote { addr: iov.addr.wrapping_add(skip), key: iov.key }, room);
        }
        skip -= iov.len;
    }
    (Remote { addr: 0, key: 0 }, 0)
}

/// A word for the target found no receive there: the write goes by packets, which wait for the peer as all
/// packets do, and bring the word themselves. The device may have written the bytes; they are written once
/// more. It goes before all that is queued: a fence there waits for it.
// [M8.10] [M10.5]
#[cold]
fn not_ready<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) {
    let Some(one) = e.rma_ops.get_mut(id) else { return };
    let to = one.peer;
    (one.sent, one.state) = (0, RmaState::Queued);
    e.unused_regs.extend(one.regs.iter_mut().filter_map(Option::take));
    one.go_by_packets();
    e.stats.rare.not_ready += 1;
    e.release_regs(w);
    let peer = &mut e.peers[to];
    peer.flags |= PeerFlags::SENDS_QUEUED;
    peer.queue_mut().sends.push_front(id);
    e.drive(w, to);
}

/// The device has ended a part of operation `id`. When the last part has ended, so has the operation.
pub(in crate::rdm) fn on_end<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    id: SlotId,
    part: u32,
    result: Result<(), PeerError>,
) {
    let Some(one) = e.rma_ops.get_mut(id) else { return };
    one.in_flight = one.in_flight.saturating_sub(1);
    if one.rail_plan.is_some() {
        return on_piece(e, w, id, part, result);
    }
    let (peer, all_sent) = (one.peer, one.state == RmaState::AllOut);
    if result == Err(PeerError::NOT_READY) && one.cq_data.is_some() && !one.detached {
        return match e.cfg.emulation {
            Emulation::Allowed => not_ready(e, w, id),
            Emulation::Refused => {
                e.finish_rma(id, Err(OpError::Emulated));
                e.release_regs(w);
            }
        };
    }
    if let Err(fault) = result {
        let why = if fault == PeerError::ACCESS { OpError::Access(peer) } else { OpError::Peer(peer, fault) };
        one.failed.get_or_insert(why);
    }
    let (in_flight, failed, detached) = (one.in_flight, one.failed, one.detached);
    match failed {
        Some(OpError::Peer(_, fault)) if in_flight == 0 && may_repeat(e, id, fault) => repeat(e, w, id),
        Some(OpError::Peer(peer, fault)) if in_flight == 0 && e.survives(peer, fault) => {
            e.finish_uncertain(id, peer, fault);
        }
        // What is not posted yet need not be any more: its id in the queue is stale then.
        Some(error) if in_flight == 0 => e.finish_rma(id, Err(error)),
        None if in_flight == 0 && all_sent => e.finish_rma(id, Ok(())),
        _ => {}
    }
    if let (Err(fault), false) = (result, detached)
        && fault != PeerError::ACCESS
        && !e.survives(peer, fault)
    {
        e.fail_peer(w, peer, fault);
    }
    e.release_regs(w);
}

/// Whether an operation that the device has failed is done once more, by packets: a NIC on its way is lost,
/// the peer goes on over another, and the same bytes twice do no harm. A word for the target would come
/// twice.
// [M11.10]
fn may_repeat(e: &Engine, id: SlotId, fault: PeerError) -> bool {
    let once = |one: &RmaOp| one.cq_data.is_none() && !one.detached;
    e.rma_ops.get(id).is_some_and(|one| once(one) && e.survives(one.peer, fault))
        && e.cfg.emulation == Emulation::Allowed
}

/// Does an operation once more, by packets; nothing of it is under way.
#[cold]
fn repeat<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) {
    let Some(one) = e.rma_ops.get_mut(id) else { return };
    (one.failed, one.sent) = (None, 0);
    e.unused_regs.extend(one.regs.iter_mut().filter_map(Option::take));
    one.go_by_packets();
    let (to, queued) = (one.peer, one.state != RmaState::AllOut);
    one.state = RmaState::Queued;
    if !queued {
        let peer = &mut e.peers[to];
        peer.flags |= PeerFlags::SENDS_QUEUED;
        peer.queue_mut().sends.push_front(id);
    }
    e.release_regs(w);
    e.drive(w, to);
}
