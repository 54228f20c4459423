//! Reads of a peer's memory, of messages and of writes to us: registers the destination, posts reads, and
//! ends in EOR, READ_NACK or an error. A receive never ends while the device may still write to it. Withdrawn
//! memory is not waited for, as its registration ends at once.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::supports_rails;
use crate::rdm::ids::{PeerId, TxToken, is_rma_id};
use crate::rdm::io::{NotPosted, Posted, RegAccess, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::Piece;
use crate::rdm::op::rma_op::Job;
use crate::rdm::op::rma_read::{RmaRead, Stop};
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::{Ctl, PartialMsg};
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Protocol, SendProgress};
use crate::rdm::protocols::direct;
use crate::rdm::rails::rail_set::{self, Direction, PiecePost};
use crate::rdm::recv::Recvs;
use crate::rdm::rma::Reads;
use crate::rdm::rma::RmaOps;
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::wire::ctl::ErrorRef;
use crate::wire::{Features, MAX_IOV};

/// Reads in flight of one message or write.
const IN_FLIGHT: u32 = 4;

/// Asks the sender for packets: at once, or when the bytes sent as packets have arrived.
// [M7.5] [M7.6]
fn nack_rma_read<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId, not_now: bool) {
    let Some((rma_read, rx)) = e.reads.take(w, id) else { return };
    if is_rma_id(rx) {
        // What comes instead is a write of its own. [M7.7]
        let send_id = e.rma_ops.table.remove(rx).and_then(|rma| rma.remote_id).unwrap_or(0);
        let nack = Ctl::ReadNack { send_id, recv_id: rx.raw(), not_now };
        return e.send_ctl(w, rma_read.peer, nack);
    }
    let Some((_, rxe)) = e.recvs.rxe(rx) else { return };
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

/// Sends EOR after a peer's write was read as a whole.
// [M8.8]
fn end_read_of_write<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) {
    let Some(rma) = e.rma_ops.table.remove(id) else { return };
    let send_id = rma.remote_id.unwrap_or(0);
    e.send_ctl(w, rma.peer, Ctl::Eor { send_id, recv_id: id.raw() });
    let next = e.rma_ops.finish_served_write(
        &mut e.peers,
        &mut e.pending,
        rma.peer,
        rma.protocol,
        rma.len,
        (rma.cq_data, None),
    );
    e.follow(w, rma.peer, next);
}

/// Sends EOR after a complete read. The message is whole unless packets of it are missing.
// [M7.2]
fn end_rma_read<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) {
    let Some((rma_read, rx)) = e.reads.take(w, id) else { return };
    if is_rma_id(rx) {
        return end_read_of_write(e, w, rx);
    }
    let Some((_, rxe)) = e.recvs.rxe(rx) else { return };
    rxe.rma_read = None;
    let envelope = rxe.envelope;
    let rest = envelope.len - rma_read.from;
    let whole = rxe.received.add(rma_read.from, rest) && rxe.received.bytes() == envelope.len;
    e.send_ctl(w, rma_read.peer, Ctl::Eor { send_id: envelope.send_id, recv_id: rx.raw() });
    if whole {
        let next = e.recvs.finish(&mut e.peers, &mut e.pending, rx, &envelope);
        e.follow(w, envelope.from, next);
    }
}

/// Finishes a read of which nothing more is to be posted, once nothing is in flight.
fn finish_if_idle<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(rma_read) = e.reads.table.get(id) else { return SendProgress::Done };
    if rma_read.in_flight > 0 {
        return SendProgress::Done;
    }
    let (peer, stop) = (rma_read.peer, rma_read.stop);
    match stop {
        None => end_rma_read(e, w, id),
        Some(Stop::PeerError(fault)) => e.fail_peer(w, peer, fault),
        Some(Stop::Fail(error)) => {
            e.reads.fail(&mut e.recvs, &mut e.rma_ops, &mut e.peers, &mut e.pending, w, (id, error))
        }
        Some(Stop::Declined) => nack_rma_read(e, w, id, true),
        Some(Stop::Nack) if e.reads.retry_over_rails(&e.recvs, &mut e.peers, id) => {
            return SendProgress::Sent;
        }
        Some(Stop::Nack) => {
            let peer = &e.peers.table[peer];
            if !peer.state.has(PeerFlags::MET) {
                return SendProgress::AwaitHandshake;
            }
            // [M7.5]
            if !peer.features.contains(Features::READ_NACK) {
                refuse_rma_read(e, w, id);
            } else {
                nack_rma_read(e, w, id, false);
            }
        }
    }
    SendProgress::Done
}

/// Handles the end of a read. What failed on one rail is read over another.
pub(in crate::rdm) fn on_read<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    id: SlotId,
    part: u32,
    result: Result<(), PeerError>,
) {
    let Some(rma_read) = e.reads.table.get_mut(id) else { return };
    rma_read.in_flight = rma_read.in_flight.saturating_sub(1);
    let peer = rma_read.peer;
    e.peers.counters.stats.rare.read_errors += u64::from(result.is_err());
    let stop = match rma_read.rail_plan.take() {
        None => result.err().map(|fault| stop_for(&e.peers, peer, fault)),
        Some(mut rail_plan) => {
            let failed = rail_set::end_stripe(&mut e.peers, &mut rail_plan.0, part, result);
            e.fail_lost_lanes(w);
            if let Some(rma_read) = e.reads.table.get_mut(id) {
                rma_read.rail_plan = Some(rail_plan);
            }
            failed.map(Stop::PeerError)
        }
    };
    let Some(rma_read) = e.reads.table.get_mut(id) else { return };
    rma_read.stop = rma_read.stop.or(stop);
    if rma_read.stop.is_some() || rma_read.all_posted() {
        match finish_if_idle(e, w, id) {
            // It waits for the peer's HANDSHAKE.
            SendProgress::AwaitHandshake => e.reads.queue(&mut e.peers, id),
            SendProgress::Sent => {
                e.reads.queue(&mut e.peers, id);
                e.drive(w, peer);
            }
            _ => {}
        }
    } else {
        e.reads.queue(&mut e.peers, id);
        e.drive(w, peer);
    }
}

/// Posts the next piece of a read over several rails.
fn push_striped<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> SendProgress {
    let Some(rma_read) = e.reads.table.get_mut(id) else { return SendProgress::Done };
    let (Some(rx), Some(mut rail_plan)) = (rma_read.to, rma_read.rail_plan.take()) else {
        return SendProgress::Done;
    };
    let striped = match e.recvs.table.get(rx).and_then(|op| op.buf.piece()) {
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
    let Some(rma_read) = e.reads.table.get_mut(id) else { return SendProgress::Done };
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

/// Reads the next piece over the RMA-only lane that its owner named, if there is one.
// [M11.13]
fn push_rma_lane<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId, id: SlotId) -> Option<SendProgress> {
    let rma_read = e.reads.table.get(id)?;
    let address = rma_read.rma_address()?;
    let (Some((_, piece, into)), Some((remote, contiguous))) =
        (e.reads.read_to(&e.recvs, &e.rma_ops, rma_read), rma_read.next())
    else {
        return Some(finish_if_idle(e, w, id));
    };
    let dest_left = (piece.len() - into) as u64;
    let most = contiguous.min(e.peers.cfg.read_segment.max(1));
    let len = most.min(rma_read.end - rma_read.at).min(dest_left);
    let read = w.read_rma_lane(to, piece.part(into, len as usize), remote, &address)?;
    let stop = match read {
        Ok(()) => None,
        Err(NotPosted::Full) => {
            e.peers.counters.stats.rare.full += 1;
            return Some(SendProgress::Full);
        }
        Err(NotPosted::Peer(fault)) => Some(stop_for(&e.peers, to, fault)),
    };
    let rma_read = e.reads.table.get_mut(id)?;
    match stop {
        None => rma_read.at += len,
        stop => rma_read.stop = stop,
    }
    let done = rma_read.stop.is_some() || rma_read.at == rma_read.end;
    e.peers.counters.stats.rare.reads += u64::from(stop.is_none());
    Some(if done { finish_if_idle(e, w, id) } else { SendProgress::Sent })
}

/// Posts the next read at the head of a peer's queue, or finishes it.
// [M7.1]
pub(in crate::rdm) fn push_rma_read<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    to: PeerId,
    id: SlotId,
) -> SendProgress {
    let Some(rma_read) = e.reads.table.get(id) else { return SendProgress::Done };
    if rma_read.stop.is_some() || rma_read.all_posted() {
        return finish_if_idle(e, w, id);
    }
    if rma_read.rail_plan.is_some() {
        return push_striped(e, w, id);
    }
    if let Some(push) = push_rma_lane(e, w, to, id) {
        return push;
    }
    let Some(rma_read) = e.reads.table.get(id) else { return SendProgress::Done };
    if rma_read.in_flight == IN_FLIGHT {
        // The end of one of them queues it again.
        return SendProgress::Done;
    }
    let wire = e.peers.table[to].wire;
    let max = e.peers.wires[wire].rdma.read.min(e.peers.cfg.read_segment.max(1));
    let Some((n, piece, into)) = e.reads.read_to(&e.recvs, &e.rma_ops, rma_read) else {
        return finish_if_idle(e, w, id);
    };
    let Some(rma_read) = e.reads.table.get_mut(id) else { return SendProgress::Done };
    if let Some(place @ None) = rma_read.regs.get_mut(n)
        && max > 0
    {
        let is_write = rma_read.to.is_some_and(is_rma_id);
        // The program may withdraw this memory during the read.
        let exclusive = if is_write { RegAccess::EXCLUSIVE } else { RegAccess::empty() };
        *place = w.register(wire, piece, RegAccess::LOCAL_WRITE | exclusive).ok();
    }
    let reg = rma_read.regs.get(n).and_then(Option::as_ref);
    let peer = &e.peers.table[to];
    let met = peer.state.has(PeerFlags::MET);
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
        Some(reg) => w.read(to, piece.part(into, len as usize), reg, remote, token),
        None => {
            // If the wire does not copy even one byte, its error ends the read.
            let most = direct::MAX_COPY.min(w.mtu(to)).min(w.read_copy_max(to));
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
            let Some(rma_read) = e.reads.table.get_mut(id) else { return SendProgress::Done };
            rma_read.stop = Some(stop);
            finish_if_idle(e, w, id)
        }
    }
}

impl Reads {
    /// Removes a read and releases its registrations. Returns what it was for.
    pub(in crate::rdm) fn take<W: Wire>(&mut self, w: &mut W, id: SlotId) -> Option<(RmaRead, SlotId)> {
        let mut rma_read = self.table.remove(id)?;
        rma_read.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
        let striped = rma_read.rail_plan.as_mut().map(|rail_plan| rail_plan.0.take_regs());
        striped.into_iter().flatten().for_each(|reg| w.release(reg));
        let to = rma_read.to?;
        Some((rma_read, to))
    }

    /// Stops a read. False: the device still writes, and the receive ends with `error` once it no longer
    /// does.
    pub(in crate::rdm) fn stop<W: Wire>(&mut self, w: &mut W, id: SlotId, error: OpError) -> bool {
        match self.table.get_mut(id) {
            Some(rma_read) if rma_read.in_flight > 0 => {
                rma_read.stop = Some(Stop::Fail(error));
                false
            }
            _ => {
                self.take(w, id);
                true
            }
        }
    }

    /// Drops the read of a write whose memory is withdrawn: its registrations end at once.
    pub(in crate::rdm) fn withdraw<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let Some(rma_read) = self.table.get_mut(id) else { return };
        rma_read.to = None;
        rma_read.stop = Some(Stop::Fail(OpError::Access(rma_read.peer)));
        if rma_read.in_flight == 0 {
            self.take(w, id);
        } else {
            rma_read.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
        }
    }

    pub(in crate::rdm) fn queue(&mut self, peers: &mut Peers, id: SlotId) {
        let Some(rma_read) = self.table.get_mut(id) else { return };
        if !std::mem::replace(&mut rma_read.queued, true) {
            let peer = rma_read.peer;
            peers.table[peer].queue_mut().reads.push_back(id);
        }
    }

    pub(in crate::rdm) fn fail<W: Wire>(
        &mut self,
        recvs: &mut Recvs,
        rma_ops: &mut RmaOps,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        (id, error): (SlotId, OpError),
    ) {
        let Some((rma_read, rx)) = self.take(w, id) else { return };
        if is_rma_id(rx) {
            rma_ops.table.remove(rx);
            return;
        }
        if let Some((_, rxe)) = recvs.rxe(rx) {
            rxe.rma_read = None;
            let msg_id = rxe.envelope.msg_id;
            if let Some(queue) = &mut peers.table[rma_read.peer].queue
                && queue.partial_msgs.get(&msg_id) == Some(&PartialMsg::Rx(rx))
            {
                queue.partial_msgs.remove(&msg_id);
            }
        }
        recvs.fail(pending, rx, error);
    }

    /// Returns the destination of the next byte: the number of the piece to register, the piece, and the
    /// offset in it. Lists with too many pieces are not registered: the number is [`MAX_IOV`].
    pub(in crate::rdm) fn read_to(
        &self,
        recvs: &Recvs,
        rma_ops: &RmaOps,
        rma_read: &RmaRead,
    ) -> Option<(usize, Piece, usize)> {
        let to = rma_read.to?;
        if is_rma_id(to) {
            return match &rma_ops.table.get(to)?.job {
                Job::Store(spans) => spans.piece_at(rma_read.at),
                _ => None,
            };
        }
        let buf = &recvs.table.get(to)?.buf;
        if let Some(list) = buf.list() {
            let few = list.pieces().len() <= MAX_IOV;
            let (n, piece, into) = list.piece_at(rma_read.at)?;
            return Some((if few { n } else { MAX_IOV }, piece, into));
        }
        let dest = buf.piece()?;
        let from = rma_read.from as usize;
        let dest = dest.part(from, (rma_read.end - rma_read.from) as usize);
        Some((0, dest, rma_read.at as usize - from))
    }

    /// Repeats a read that failed on the peer's own lane over all rails that the request names. False: it
    /// names none, or they were tried.
    // [M11.6]
    pub(in crate::rdm) fn retry_over_rails(&mut self, recvs: &Recvs, peers: &mut Peers, id: SlotId) -> bool {
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
        let has_nack = peer.state.has(PeerFlags::MET) && peer.features.contains(Features::READ_NACK);
        has_nack && w.prefers_packets(rma_read.peer, len as usize, &address)
    }

    /// Has a message sent in packets, since callbacks unpack it.
    fn decline(&mut self, peers: &Peers, id: SlotId) {
        let Some(rma_read) = self.table.get_mut(id) else { return };
        let peer = &peers.table[rma_read.peer];
        let has_nack = peer.state.has(PeerFlags::MET) && peer.features.contains(Features::READ_NACK);
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

    /// Starts the RMA read of a peer's write to our memory.
    // [M8.8]
    pub(in crate::rdm) fn start_of_write(
        &mut self,
        rma_ops: &mut RmaOps,
        peers: &mut Peers,
        id: SlotId,
        rma: SlotId,
    ) -> Next {
        let (Some(write), Some(rma_read)) = (rma_ops.table.get_mut(rma), self.table.get_mut(id)) else {
            return Next::Nothing;
        };
        write.rma_read = Some(id);
        rma_read.to = Some(rma);
        rma_read.end = write.len;
        self.queue(peers, id);
        Next::Drive
    }
}

impl Peers {
    /// True if a peer has never been denied a read over the RMA-only lane.
    pub fn can_read_us(&self, to: PeerId) -> bool {
        self.table.get(to).is_some_and(|peer| !peer.state.has(PeerFlags::READ_DENIED))
    }

    /// True if messages of this protocol, or writes to be read, may be announced to `to`: both ends read (RDM
    /// v4 3.4), and READ_NACK is possible if the peer may fail over.
    // [M3.7]
    pub(in crate::rdm) fn may_be_read(&self, to: PeerId, protocol: Protocol) -> bool {
        let peer = &self.table[to];
        let needs = match protocol {
            Protocol::RuntRead => Features::RDMA_READ.union(Features::RUNT_READ),
            _ => Features::RDMA_READ,
        };
        let wire = &self.wires[peer.wire];
        let never_moves = wire.rail_wires.is_empty() || !supports_rails(peer.features);
        let has_nack = never_moves || !self.cfg.withhold.contains(Features::READ_NACK);
        wire.rdma.read > 0 && has_nack && peer.state.has(PeerFlags::MET) && peer.features.contains(needs)
    }
}

/// Decides what an error of a read means: the peer failed, or its memory cannot be read.
pub(in crate::rdm) fn stop_for(peers: &Peers, peer: PeerId, fault: PeerError) -> Stop {
    if fault.is_peer_failure() && !peers.survives(peer, fault) { Stop::PeerError(fault) } else { Stop::Nack }
}

/// Ends a read whose sender does not support READ_NACK; the sender gets an error if it supports
/// PEER_ERROR.
fn refuse_rma_read<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) {
    let (peer, to) = match e.reads.table.get(id) {
        Some(rma_read) => (rma_read.peer, rma_read.to.unwrap_or(SlotId::NONE)),
        None => return,
    };
    let send_id = match is_rma_id(to) {
        true => e.rma_ops.table.get(to).and_then(|rma| rma.remote_id),
        false => e.recvs.rxe(to).map(|(_, rxe)| rxe.envelope.send_id),
    };
    e.reads.fail(&mut e.recvs, &mut e.rma_ops, &mut e.peers, &mut e.pending, w, (id, OpError::Unsupported));
    if let Some(send_id) = send_id {
        let next = e.peers.error_to(peer, ErrorRef::Op(send_id), OpError::Unsupported);
        e.follow(w, peer, next);
    }
}
