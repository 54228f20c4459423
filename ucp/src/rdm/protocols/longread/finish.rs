//! Ends a read: by EOR, by READ_NACK, over other rails, or with an error. A receive never ends while the
//! device may still write to it.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::{PeerId, is_rma_id};
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::op::rma_read::Stop;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::{Ctl, PartialMsg};
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::protocol::SendProgress;
use crate::rdm::rails::rail_set;
use crate::rdm::recv::Recvs;
use crate::rdm::rma::Reads;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::wire::ctl::{Eor, ErrorRef};
use crate::wire::{Features, PktType};

/// Handles the end of a read. What failed on one rail is read over another.
pub(in crate::rdm) fn on_read<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    id: SlotId,
    part: u32,
    result: Result<(), PeerError>,
) {
    let Some(rma_read) = e.ops.reads.table.get_mut(id) else { return };
    rma_read.in_flight = rma_read.in_flight.saturating_sub(1);
    let peer = rma_read.peer;
    e.peers.counters.stats.rare.read_errors += u64::from(result.is_err());
    let stop = match rma_read.rail_plan.take() {
        None => result.err().map(|fault| stop_for(&e.peers, peer, fault)),
        Some(mut rail_plan) => {
            let failed = rail_set::end_stripe(&mut e.peers, &mut rail_plan.0, part, result);
            e.fail_lost_lanes(w);
            if let Some(rma_read) = e.ops.reads.table.get_mut(id) {
                rma_read.rail_plan = Some(rail_plan);
            }
            failed.map(Stop::PeerError)
        }
    };
    let Some(rma_read) = e.ops.reads.table.get_mut(id) else { return };
    rma_read.stop = rma_read.stop.or(stop);
    if rma_read.stop.is_some() || rma_read.all_posted() {
        match finish_if_idle(e, w, id) {
            // It waits for the peer's HANDSHAKE.
            SendProgress::AwaitHandshake => e.ops.reads.queue(&mut e.peers, id),
            SendProgress::Sent => {
                e.ops.reads.queue(&mut e.peers, id);
                e.drive(w, peer);
            }
            _ => {}
        }
    } else {
        e.ops.reads.queue(&mut e.peers, id);
        e.drive(w, peer);
    }
}

/// Finishes a read of which nothing more is to be posted, once nothing is in flight.
pub(super) fn finish_if_idle<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(rma_read) = e.ops.reads.table.get(id) else { return SendProgress::Done };
    if rma_read.in_flight > 0 {
        return SendProgress::Done;
    }
    let (peer, stop) = (rma_read.peer, rma_read.stop);
    match stop {
        None => end_rma_read(e, w, id),
        Some(Stop::PeerError(fault)) => e.fail_peer(w, peer, fault),
        Some(Stop::Fail(error)) => e.ops.reads.fail(
            &mut e.ops.recvs,
            &mut e.ops.rma_ops,
            &mut e.peers,
            &mut e.pending,
            w,
            (id, error),
        ),
        Some(Stop::Declined) => nack_rma_read(e, w, id, true),
        Some(Stop::Nack) if e.ops.reads.retry_over_rails(&e.ops.recvs, &mut e.peers, id) => {
            return SendProgress::Sent;
        }
        Some(Stop::Nack) => {
            let peer = &e.peers.table[peer];
            if !peer.state.has(PeerFlags::HANDSHAKE_RECEIVED) {
                return SendProgress::AwaitHandshake;
            }
            // [M7.5]
            if !peer.features.contains(Features::READ_NACK) {
                if e.ops.reads.stage(&e.ops.recvs, id) {
                    return SendProgress::Sent;
                }
                refuse_rma_read(e, w, id);
            } else {
                nack_rma_read(e, w, id, false);
            }
        }
    }
    SendProgress::Done
}

/// Sends EOR after a complete read. The message is whole unless packets of it are missing.
// [M7.2]
fn end_rma_read<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) {
    let Some((rma_read, rx)) = e.ops.reads.take(w, id) else { return };
    if is_rma_id(rx) {
        return end_read_of_write(e, w, rx);
    }
    let Some((op, rxe)) = e.ops.recvs.rxe(rx) else { return };
    rxe.rma_read = None;
    if let Some(staged) = &rma_read.staged {
        op.buf.put(rma_read.from, staged.bytes());
    }
    let envelope = rxe.envelope;
    let rest = envelope.len - rma_read.from;
    let whole = rxe.received.add(rma_read.from, rest) && rxe.received.bytes() == envelope.len;
    e.send_ctl(w, rma_read.peer, Ctl::Eor { send_id: envelope.send_id, recv_id: rx.raw() });
    if whole {
        let next = e.ops.recvs.finish(&mut e.peers, &mut e.pending, rx, &envelope);
        e.follow(w, envelope.from, next);
    }
}

/// Sends EOR after a peer's write was read as a whole.
// [M8.8]
fn end_read_of_write<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) {
    let Some(rma) = e.ops.rma_ops.table.remove(id) else { return };
    let send_id = rma.remote_id.unwrap_or(0);
    e.send_ctl(w, rma.peer, Ctl::Eor { send_id, recv_id: id.raw() });
    e.ops.rma_ops.count_region(&rma);
    let next = e.ops.rma_ops.finish_served_write(
        &mut e.peers,
        &mut e.pending,
        rma.peer,
        rma.protocol,
        rma.len,
        (rma.cq_data, None),
    );
    e.follow(w, rma.peer, next);
}

/// Sends an EOR.
pub(in crate::rdm) fn push_eor<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    send_id: u32,
    recv_id: u32,
) -> Result<(), NotPosted> {
    let hdr = Eor { send_id, recv_id, connid: Some(peers.wires.own_addr(&peers.table[to]).connid) };
    peers.post(w, to, PktType::EOR, Eor::LEN, |slot| hdr.write(slot))
}

/// Asks the sender for packets: at once, or when the bytes sent as packets have arrived.
// [M7.5] [M7.6]
fn nack_rma_read<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId, not_now: bool) {
    let Some((rma_read, rx)) = e.ops.reads.take(w, id) else { return };
    if is_rma_id(rx) {
        // What comes instead is a write of its own. [M7.7]
        let send_id = e.ops.rma_ops.table.remove(rx).and_then(|rma| rma.remote_id).unwrap_or(0);
        let nack = Ctl::ReadNack { send_id, recv_id: rx.raw(), not_now };
        return e.send_ctl(w, rma_read.peer, nack);
    }
    let Some((_, rxe)) = e.ops.recvs.rxe(rx) else { return };
    rxe.rma_read = None;
    rxe.nack = true;
    let (msg_id, send_id) = (rxe.envelope.msg_id, rxe.envelope.send_id);
    let complete = rxe.received.bytes() == rma_read.from;
    e.peers.table[rma_read.peer].queue_mut().partial_msgs.insert(msg_id, PartialMsg::Rx(rx));
    if complete {
        let nack = Ctl::ReadNack { send_id, recv_id: rx.raw(), not_now };
        e.send_ctl(w, rma_read.peer, nack);
    }
}

/// Ends a read whose sender does not support READ_NACK; the sender gets an error if it supports
/// PEER_ERROR.
fn refuse_rma_read<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) {
    let (peer, to) = match e.ops.reads.table.get(id) {
        Some(rma_read) => (rma_read.peer, rma_read.to.unwrap_or(SlotId::NONE)),
        None => return,
    };
    let send_id = match is_rma_id(to) {
        true => e.ops.rma_ops.table.get(to).and_then(|rma| rma.remote_id),
        false => e.ops.recvs.rxe(to).map(|(_, rxe)| rxe.envelope.send_id),
    };
    e.ops.reads.fail(
        &mut e.ops.recvs,
        &mut e.ops.rma_ops,
        &mut e.peers,
        &mut e.pending,
        w,
        (id, OpError::Unsupported),
    );
    if let Some(send_id) = send_id {
        let next = e.peers.error_to(peer, ErrorRef::Op(send_id), OpError::Unsupported);
        e.follow(w, peer, next);
    }
}

/// Decides what an error of a read means: the peer failed, or its memory cannot be read.
pub(super) fn stop_for(peers: &Peers, peer: PeerId, fault: PeerError) -> Stop {
    if fault.is_peer_failure() && !peers.survives(peer, fault) { Stop::PeerError(fault) } else { Stop::Nack }
}

impl Reads {
    /// Repeats a read that failed on the peer's own lane over all rails that the request names. False: it
    /// names none, or they were tried.
    // [M11.6]
    fn retry_over_rails(&mut self, recvs: &Recvs, peers: &mut Peers, id: SlotId) -> bool {
        let Some(rma_read) = self.table.get(id) else { return false };
        let range = (rma_read.from, rma_read.end);
        // Receives in several pieces use one lane.
        let whole = rma_read.to.and_then(|rx| recvs.table.get(rx)).is_some_and(|op| op.buf.piece().is_some());
        if rma_read.rail_plan.is_some() || rma_read.to.is_none_or(is_rma_id) || !whole {
            return false;
        }
        let Some((mut rail_plan, at)) = peers.named_rails(rma_read.peer, &rma_read.iov) else { return false };
        if !rail_plan.cut_pieces_again(peers, range) {
            return false;
        }
        let Some(rma_read) = self.table.get_mut(id) else { return false };
        (rma_read.rail_plan, rma_read.stop) = (Some(Box::new((rail_plan, at))), None);
        peers.counters.stats.rare.rails_lost += 1;
        true
    }
}
