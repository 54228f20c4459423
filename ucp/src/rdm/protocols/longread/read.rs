//! Reads a peer's memory, of a message or of a write to us: registers the destination and posts the reads.

use ucs::coll::slots::SlotId;

use super::finish::{finish_if_idle, stop_for};
use crate::rdm::Engine;
use crate::rdm::ids::{PeerId, TxToken, WireId, is_rma_id};
use crate::rdm::io::{NotPosted, Posted, RegAccess, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::Piece;
use crate::rdm::op::rma_read::{RmaRead, Stop};
use crate::rdm::peers::Peers;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::protocol::SendProgress;
use crate::rdm::rails::rail_set::{self, Direction, PiecePost};
use crate::rdm::recv::Recvs;
use crate::rdm::rma::Reads;
use crate::rdm::rma::args::MAX_COPY;
use crate::rdm::status::PeerError;
use crate::wire::Features;

/// Reads in flight of one message or write.
const IN_FLIGHT: u32 = 4;

impl Reads {
    /// True if the wire prefers packets to reading this message over the RMA-only lane, and the sender
    /// supports READ_NACK.
    // [M11.14]
    pub(in crate::rdm) fn prefers_packets<W: Wire>(
        &mut self,
        peers: &Peers,
        w: &mut W,
        id: SlotId,
        len: u64,
    ) -> bool {
        let Some(rma_read) = self.table.get(id).filter(|rma_read| rma_read.from == 0) else {
            return false;
        };
        let Some(address) = rma_read.rma_address() else { return false };
        let peer = &peers.table[rma_read.peer];
        let has_nack =
            peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) && peer.features.contains(Features::READ_NACK);
        has_nack && w.prefers_packets(rma_read.peer, len as usize, &address)
    }

    /// Has a message sent in packets, since callbacks unpack it.
    fn decline(&mut self, peers: &Peers, id: SlotId) {
        let Some(rma_read) = self.table.get_mut(id) else { return };
        let peer = &peers.table[rma_read.peer];
        let has_nack =
            peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) && peer.features.contains(Features::READ_NACK);
        // Only a sender that names an RMA-only lane would take the plain form for good.
        let declined = has_nack && rma_read.rma_address().is_some();
        rma_read.stop = Some(if declined { Stop::Declined } else { Stop::Nack });
    }

    /// Starts the RMA read of a message that receive `rx` has matched.
    pub(in crate::rdm) fn start<W: Wire>(
        &mut self,
        recvs: &mut Recvs,
        peers: &mut Peers,
        w: &mut W,
        id: SlotId,
        rx: SlotId,
    ) -> Next {
        let Some((op, rxe)) = recvs.rxe(rx) else { return Next::Nothing };
        rxe.rma_read = Some(id);
        let total = rxe.envelope.len;
        let end = total.min(op.buf.len() as u64);
        let (whole, is_generic) = (op.buf.piece().is_some(), op.buf.is_generic());
        let Some(rma_read) = self.table.get_mut(id) else { return Next::Nothing };
        rma_read.to = Some(rx);
        // [M7.4]
        rma_read.end = end.max(rma_read.from);
        let (peer, iov, from, end) = (rma_read.peer, rma_read.iov, rma_read.from, rma_read.end);
        if is_generic && end > from {
            self.decline(peers, id);
        } else if self.prefers_packets(peers, w, id, total) {
            if let Some(rma_read) = self.table.get_mut(id) {
                rma_read.stop = Some(Stop::Declined);
            }
        } else if whole
            && let Some((mut rail_plan, at)) = peers.named_rails(peer, &iov)
            && rail_plan.cut_pieces(peers, (from, end), Direction::Read, peers.cfg.rndv_chunk)
            && let Some(rma_read) = self.table.get_mut(id)
        {
            peers.counters.stats.rare.striped += 1;
            rma_read.rail_plan = Some(Box::new((rail_plan, at)));
        }
        self.queue(peers, id);
        Next::Drive
    }
}

/// Posts the next read at the head of a peer's queue, or finishes it.
// [M7.1]
pub(in crate::rdm) fn push_rma_read<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    to: PeerId,
    id: SlotId,
) -> SendProgress {
    let Some(rma_read) = e.ops.reads.table.get(id) else { return SendProgress::Done };
    if rma_read.stop.is_some() || rma_read.all_posted() {
        return finish_if_idle(e, w, id);
    }
    if rma_read.rail_plan.is_some() {
        return push_striped(e, w, id);
    }
    if let Some(push) = push_rma_lane(e, w, to, id) {
        return push;
    }
    let Some(rma_read) = e.ops.reads.table.get(id) else { return SendProgress::Done };
    if rma_read.in_flight == IN_FLIGHT {
        // The end of one of them queues it again.
        return SendProgress::Done;
    }
    let wire = e.peers.table[to].wire;
    let max = e.peers.wires[wire].rdma.read.min(e.peers.cfg.read_segment.max(1));
    let Some((n, piece, into)) = e.ops.reads.read_to(&e.ops.recvs, &e.ops.rma_ops, rma_read) else {
        return finish_if_idle(e, w, id);
    };
    let Some(rma_read) = e.ops.reads.table.get_mut(id) else { return SendProgress::Done };
    if max > 0 {
        register_target(w, rma_read, (wire, n, piece));
    }
    let reg = rma_read.regs.get(n).and_then(Option::as_ref);
    let peer = &e.peers.table[to];
    let met = peer.state.has(PeerFlags::HANDSHAKE_RECEIVED);
    // Such a sender waits until its memory is read (libfabric before 1.20).
    let must = met && !peer.features.contains(Features::READ_NACK);
    let next = match rma_read.next() {
        // The HANDSHAKE tells whether the sender supports READ_NACK.
        Some(_) if reg.is_none() && !met && max > 0 => return SendProgress::AwaitHandshake,
        next => next.filter(|_| reg.is_some() || must && max > 0),
    };
    let Some((remote, contiguous)) = next else {
        rma_read.stop = Some(Stop::Nack);
        return finish_if_idle(e, w, id);
    };
    let dest_left = (piece.len() - into) as u64;
    let mut len = contiguous.min(max).min(rma_read.end - rma_read.at).min(dest_left);
    let token = TxToken::RmaRead { id, part: 0 };
    let posted = match reg {
        Some(reg) => w.read(to.into(), piece.part(into, len as usize), reg, remote, token),
        None => {
            // If the wire does not copy even one byte, its error ends the read.
            let most = MAX_COPY.min(w.mtu(to)).min(w.read_copy_max(to));
            len = len.min(most.max(1) as u64);
            w.read_copy(to, piece.part(into, len as usize), remote, token)
        }
    };
    match posted {
        Ok(how) => {
            rma_read.at += len;
            rma_read.in_flight += u32::from(how == Posted::Pending);
            e.peers.counters.stats.rare.reads += 1;
            match rma_read.at == rma_read.end {
                true => finish_if_idle(e, w, id),
                false => SendProgress::Sent,
            }
        }
        Err(NotPosted::Full) => {
            e.peers.counters.stats.rare.full += 1;
            SendProgress::Full
        }
        Err(NotPosted::Peer(fault)) => {
            let stop = stop_for(&e.peers, to, fault);
            let Some(rma_read) = e.ops.reads.table.get_mut(id) else { return SendProgress::Done };
            rma_read.stop = Some(stop);
            finish_if_idle(e, w, id)
        }
    }
}

/// Registers piece `n` of the memory that a read fills, if it is not registered and can be.
fn register_target<W: Wire>(w: &mut W, rma_read: &mut RmaRead, (wire, n, piece): (WireId, usize, Piece)) {
    if let Some(place @ None) = rma_read.regs.get_mut(n) {
        let is_write = rma_read.to.is_some_and(is_rma_id);
        // The program may withdraw this memory during the read, and ours is freed after it.
        let exclusive =
            if is_write || rma_read.staged.is_some() { RegAccess::EXCLUSIVE } else { RegAccess::empty() };
        *place = w.register(wire, piece, RegAccess::LOCAL_WRITE | exclusive).ok();
    }
}

/// Reads the next piece over the RMA-only lane that its owner named, if there is one.
// [M11.13]
fn push_rma_lane<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId, id: SlotId) -> Option<SendProgress> {
    let rma_read = e.ops.reads.table.get(id)?;
    let address = rma_read.rma_address()?;
    let (Some((_, piece, into)), Some((remote, contiguous))) =
        (e.ops.reads.read_to(&e.ops.recvs, &e.ops.rma_ops, rma_read), rma_read.next())
    else {
        return Some(finish_if_idle(e, w, id));
    };
    let dest_left = (piece.len() - into) as u64;
    let most = contiguous.min(e.peers.cfg.read_segment.max(1));
    let len = most.min(rma_read.end - rma_read.at).min(dest_left);
    let read = w.read_rma_lane(to, piece.part(into, len as usize), remote, &address)?;
    e.ops.reads.table.get_mut(id)?.lane_waits = read == Err(NotPosted::Full);
    let stop = match read {
        Ok(()) => None,
        Err(NotPosted::Full) => {
            e.peers.counters.stats.rare.full += 1;
            return Some(SendProgress::Full);
        }
        Err(NotPosted::Peer(fault)) => Some(stop_for(&e.peers, to, fault)),
    };
    let rma_read = e.ops.reads.table.get_mut(id)?;
    match stop {
        None => rma_read.at += len,
        stop => rma_read.stop = stop,
    }
    let done = rma_read.stop.is_some() || rma_read.at == rma_read.end;
    e.peers.counters.stats.rare.reads += u64::from(stop.is_none());
    Some(if done { finish_if_idle(e, w, id) } else { SendProgress::Sent })
}

/// Posts the next piece of a read over several rails.
fn push_striped<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(rma_read) = e.ops.reads.table.get_mut(id) else { return SendProgress::Done };
    let (Some(rx), Some(mut rail_plan)) = (rma_read.to, rma_read.rail_plan.take()) else {
        return SendProgress::Done;
    };
    let striped = match e.ops.recvs.table.get(rx).and_then(|op| op.buf.piece()) {
        Some(piece) => rail_set::post_stripe(
            &mut e.peers,
            w,
            &mut rail_plan.0,
            id,
            Direction::Read,
            (piece, rail_plan.1),
        ),
        None => PiecePost::Lost(PeerError::NO_RDMA),
    };
    let Some(rma_read) = e.ops.reads.table.get_mut(id) else { return SendProgress::Done };
    let done = rail_plan.0.all_posted();
    rma_read.rail_plan = Some(rail_plan);
    match striped {
        PiecePost::Posted(how) => {
            rma_read.in_flight += u32::from(how == Posted::Pending);
            e.peers.counters.stats.rare.reads += 1;
            match done {
                true => finish_if_idle(e, w, id),
                false => SendProgress::Sent,
            }
        }
        PiecePost::Enough => SendProgress::Done,
        PiecePost::Full => {
            e.peers.counters.stats.rare.full += 1;
            SendProgress::Full
        }
        PiecePost::Lost(_) => {
            rma_read.stop = Some(Stop::Nack);
            finish_if_idle(e, w, id)
        }
        PiecePost::Failed(fault) => {
            rma_read.stop = Some(Stop::PeerError(fault));
            finish_if_idle(e, w, id)
        }
    }
}
