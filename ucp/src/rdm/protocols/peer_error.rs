//! PEER_ERROR: an operation has ended at one end, and the other is told, if it knows the packet (bit 9). A receiver names
//! the sender's operation, a sender the receiver's, or before it knows that, its message. Without the packet the other
//! end would wait for ever (RDM v4, wire facts 9.3).

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::{ReqHdr, supports_peer_error};
use crate::rdm::io::{NotPosted, PeerError, PeerId, Wire};
use crate::rdm::op::OpId;
use crate::rdm::op::rma_op::{Job, OneState, is_one};
use crate::rdm::op::rx::Unexpected;
use crate::rdm::op::tx::TxState;
use crate::rdm::peers::peer::{Ctl, Part, Was};
use crate::rdm::protocol::{Arrival, HandlerKind, Kind, PacketHandler};
use crate::rdm::recv::reorder::{Turn, turn};
use crate::rdm::trace::DropReason;
use crate::rdm::types::OpError;
use crate::wire::ctl::{self, ErrorRef};
use crate::wire::rta::RtaKind;
use crate::wire::rtm::RtmBody;
use crate::wire::rtw::RtwBody;
use crate::wire::{Packet, PktType};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] =
    [PacketHandler { ty: PktType::PEER_ERROR, kind: HandlerKind::PeerError, order: None }];

/// libfabric's code for memory that a request may not reach.
const NO_ACCESS: u32 = 4111;
/// libfabric's code for an operation that its peer has given up.
pub(in crate::rdm) const GIVEN_UP: u32 = 4127;

/// libfabric's code for a message that its receiver has no entry for.
const NO_ROOM: u32 = 4108;

/// Most errors that are kept for a peer that has not introduced itself. It is asked for that by our own HANDSHAKE, so only who
/// means ill has more.
const UNTOLD: usize = 4096;

/// Sends one.
pub(in crate::rdm) fn push<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    to: PeerId,
    what: ErrorRef,
    code: u32,
) -> Result<(), NotPosted> {
    let hdr = ctl::PeerError { what, prov_errno: code, connid: Some(e.own(&e.peers[to]).connid) };
    e.post(w, to, PktType::PEER_ERROR, ctl::PeerError::LEN, |slot| hdr.write(slot))?;
    e.stats.rare.errors_sent += 1;
    Ok(())
}

/// A peer has ended its part of an operation, or does not send a message.
// [M10.4]
pub(in crate::rdm) fn on_recv<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) {
    let Packet::PeerError(hdr) = a.packet else { return };
    let error = match hdr.prov_errno {
        NO_ACCESS => OpError::Access(a.peer),
        code => OpError::Aborted(a.peer, code),
    };
    let known = match hdr.what {
        ErrorRef::Op(id) => e.end_named(w, a.peer, SlotId::from_raw(id), error),
        ErrorRef::Msg(id) | ErrorRef::Skip(id) => e.end_message(w, a.peer, id, error),
    };
    match known {
        true => e.stats.rare.errors_received += 1,
        false => e.drop_packet(a, DropReason::BadId),
    }
}

/// The requester's id of what a packet asks for, if it would hear of the end by it.
pub(in crate::rdm) fn asked_by(packet: &Packet<'_>) -> Option<u32> {
    match packet {
        Packet::Rtm(rtm) => match rtm.body {
            RtmBody::LongCts { send_id, .. }
            | RtmBody::LongRead { send_id, .. }
            | RtmBody::RuntRead { send_id, .. } => Some(send_id),
            RtmBody::Eager | RtmBody::Medium { .. } => rtm.receipt,
        },
        Packet::Rtw(rtw) => match rtw.body {
            RtwBody::Eager => rtw.receipt,
            RtwBody::LongCts { send_id, .. } | RtwBody::LongRead { send_id, .. } => Some(send_id),
        },
        Packet::Rtr(rtr) => Some(rtr.recv_id),
        Packet::Rta(rta, _) => match rta.kind {
            RtaKind::Write => None,
            RtaKind::DcWrite { send_id } => Some(send_id),
            RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => Some(recv_id),
        },
        _ => None,
    }
}

impl Engine {
    /// Tells a peer that something has ended here, if it understands that.
    // [M10.3]
    pub(in crate::rdm) fn tell_error<W: Wire>(
        &mut self,
        w: &mut W,
        to: PeerId,
        what: ErrorRef,
        why: OpError,
    ) {
        let code = if matches!(why, OpError::Access(_)) { NO_ACCESS } else { GIVEN_UP };
        let peer = &mut self.peers[to];
        if !peer.was.contains(Was::MET) {
            // A request may be faster than the HANDSHAKE of who asks.
            let waits = !peer.was.intersects(Was::FAILED | Was::REMOVED) && peer.work().untold.len() < UNTOLD;
            if waits {
                peer.work().untold.push((what, code));
            }
        } else if supports_peer_error(peer.features) {
            self.control(w, to, Ctl::Error { what, code });
        }
    }

    /// Tells a peer that has just introduced itself what has ended here before.
    // [M10.3]
    pub(in crate::rdm) fn tell_untold<W: Wire>(&mut self, w: &mut W, to: PeerId) {
        let Some(work) = &mut self.peers[to].work else { return };
        let untold = std::mem::take(&mut work.untold);
        if supports_peer_error(self.peers[to].features) {
            untold.into_iter().for_each(|(what, code)| self.control(w, to, Ctl::Error { what, code }));
        }
    }

    /// A packet of a peer that we have cut off. Who waits for an answer to it is told that there will be none; a peer that has
    /// not met us is sent our HANDSHAKE first, for which it waits.
    // [M10.7]
    #[cold]
    pub(in crate::rdm) fn turn_away(&mut self, a: &Arrival<'_>) {
        if let Packet::Handshake(shake) = a.packet {
            let peer = &mut self.peers[a.peer];
            peer.features = shake.features();
            peer.set_hdr(ReqHdr::after(shake.features()));
            peer.was |= Was::MET;
        } else {
            self.drop_packet(a, DropReason::PeerFailed);
            let flood = self.peers[a.peer].fault == Some(PeerError::Flood);
            self.note_refused(a, if flood { NO_ROOM } else { GIVEN_UP });
            let peer = &mut self.peers[a.peer];
            // Also who calls for it again.
            if !peer.was.contains(Was::MET) {
                peer.was |= Was::HEARD | Was::OWED;
            }
        }
        self.list(a.peer);
    }

    /// A packet for which there is no room: its sender is cut off now, and told so.
    #[cold]
    pub(in crate::rdm) fn refuse_flood(&mut self, a: &Arrival<'_>) {
        self.peers[a.peer].was |= Was::CUT_OFF;
        self.flooder = Some(a.peer);
        self.drop_packet(a, DropReason::NoRoom);
        self.note_refused(a, NO_ROOM);
    }

    fn note_refused(&mut self, a: &Arrival<'_>, code: u32) {
        let Some(id) = asked_by(a.packet).filter(|_| a.turn != Turn::Past) else { return };
        let untold = &mut self.peers[a.peer].work().untold;
        if untold.len() < UNTOLD {
            untold.push((ErrorRef::Op(id), code));
        }
    }

    /// The next that a peer is to hear of what it has been refused.
    pub(in crate::rdm) fn push_untold<W: Wire>(
        &mut self,
        w: &mut W,
        id: PeerId,
    ) -> Option<Result<(), NotPosted>> {
        let takes = supports_peer_error(self.peers[id].features);
        let untold = &mut self.peers[id].work.as_mut()?.untold;
        if !takes {
            untold.clear();
        }
        let (what, code) = *untold.last()?;
        let sent = push(self, w, id, what, code);
        if sent != Err(NotPosted::Full)
            && let Some(work) = &mut self.peers[id].work
        {
            work.untold.pop();
        }
        Some(sent)
    }

    fn may_tell(&self, to: PeerId) -> bool {
        let peer = &self.peers[to];
        peer.was.contains(Was::MET) && supports_peer_error(peer.features)
    }

    /// Does not do what a peer asks for: reported here, and to the peer if it understands that.
    // [M8.1]
    #[cold]
    pub(in crate::rdm) fn refuse_request<W: Wire>(&mut self, w: &mut W, a: &Arrival<'_>, why: DropReason) {
        self.drop_packet(a, why);
        let error = if why == DropReason::BadAccess { OpError::Access(a.peer) } else { OpError::NoResource };
        if let Some(id) = asked_by(a.packet) {
            self.tell_error(w, a.peer, ErrorRef::Op(id), error);
        }
    }

    /// Gives up a send, put or get of which something is out and something is not: the peer is told, its receive (if there
    /// is one) ends with [`OpError::Aborted`], ours with `Cancelled`. False, and nothing happens: nothing is out yet
    /// (cancel it), or all is, or the peer cannot be told.
    // [M10.3]
    pub fn abort<W: Wire>(&mut self, w: &mut W, op: OpId) -> bool {
        if is_one(op.0) { self.give_up_one(w, op.0) } else { self.give_up_send(w, op.0) }
    }

    /// Gives up everything of ours that is under way with a peer, as far as it can be told.
    pub fn abort_all<W: Wire>(&mut self, w: &mut W, peer: PeerId) {
        let sends = self.tx.iter().filter(|(_, op)| op.peer == peer).map(|(id, _)| id);
        let ones = self.one.iter().filter(|(_, one)| one.peer == peer).map(|(id, _)| id);
        for id in sends.chain(ones).collect::<Vec<_>>() {
            self.abort(w, OpId(id));
        }
    }

    fn give_up_send<W: Wire>(&mut self, w: &mut W, id: SlotId) -> bool {
        let Some(op) = self.tx.get(id) else { return false };
        let (to, msg_id) = (op.peer, op.msg_id);
        let what = match (op.state, op.recv_id) {
            (TxState::Queued | TxState::AllOut | TxState::Ended, _) => return false,
            (TxState::Granted, Some(recv_id)) => ErrorRef::Op(recv_id),
            (TxState::Granted, None) => ErrorRef::Skip(msg_id),
            (TxState::Sending | TxState::Exposed | TxState::Nacked, _) => ErrorRef::Msg(msg_id),
        };
        if !self.may_tell(to) {
            return false;
        }
        self.tell_error(w, to, what, OpError::Cancelled);
        self.finish_tx(w, id, Err(OpError::Cancelled));
        true
    }

    fn give_up_one<W: Wire>(&mut self, w: &mut W, id: SlotId) -> bool {
        let Some(one) = self.one.get(id) else { return false };
        let under_way = one.state == OneState::Moving && one.is_ours() && !one.told && one.flying == 0;
        let (Some(theirs), true) = (one.theirs, under_way) else { return false };
        let to = one.peer;
        if !self.may_tell(to) {
            return false;
        }
        self.tell_error(w, to, ErrorRef::Op(theirs), OpError::Cancelled);
        self.finish_one(id, Err(OpError::Cancelled));
        true
    }

    /// Ends what `id` names of ours, if the peer has a part in it and may know the id.
    fn end_named<W: Wire>(&mut self, w: &mut W, from: PeerId, id: SlotId, error: OpError) -> bool {
        if is_one(id) {
            return self.end_named_one(w, from, id, error);
        }
        if self.tx.get(id).is_some_and(|op| op.peer == from && op.state != TxState::Queued) {
            self.finish_tx(w, id, Err(error));
            return true;
        }
        let matched = self.inflow(id).is_some_and(|(_, inflow)| inflow.envelope.from == from);
        if matched {
            self.fail_matched(w, id, error);
        }
        matched
    }

    fn end_named_one<W: Wire>(&mut self, w: &mut W, from: PeerId, id: SlotId, error: OpError) -> bool {
        let Some(one) = self.one.get(id) else { return false };
        // What a device does by itself no peer can know of, nor what is not out, nor the number of an answer.
        let unknown = one.flying > 0 || one.orphan || one.state == OneState::Queued;
        if one.peer != from || unknown || matches!(one.job, Job::Answer(_)) {
            return false;
        }
        let reading = one.reading;
        if reading.is_some_and(|reading| !self.stop_reading(w, reading, error)) {
            if let Some(one) = self.one.get_mut(id) {
                one.orphan = true;
            }
            return true;
        }
        self.finish_one(id, Err(error));
        true
    }

    /// Ends the message with this id, wherever it has come; one that has not come is not waited for.
    fn end_message<W: Wire>(&mut self, w: &mut W, from: PeerId, msg_id: u32, error: OpError) -> bool {
        let turn = turn(self.peers[from].next_rx, msg_id);
        if turn != Turn::Past {
            self.end_stream_before(w, from, msg_id);
        }
        let peer = &mut self.peers[from];
        match turn {
            Turn::Now => {
                peer.next_rx = msg_id.wrapping_add(1);
                if peer.was.contains(Was::EARLY) {
                    self.release_early(w, from);
                }
                return true;
            }
            Turn::Early => {
                peer.was |= Was::EARLY;
                peer.work().early.skip(&mut self.hold, msg_id);
                return true;
            }
            Turn::Past => {}
        }
        match self.find_message(from, msg_id) {
            Some(Part::Rx(rx)) => self.fail_matched(w, rx, error),
            Some(Part::Held(held)) => {
                if self.unexpected.get(held).is_some_and(|held| held.kind == Kind::Stream) {
                    self.end_stream_before(w, from, msg_id);
                }
                self.drop_unexpected(w, held, error);
            }
            None => return false,
        }
        true
    }

    /// A message is given up that is, or may be, a piece of the peer's stream: that ends before it.
    // [M11.7]
    fn end_stream_before<W: Wire>(&mut self, w: &mut W, from: PeerId, msg_id: u32) {
        let mut behind = Vec::new();
        self.break_stream(from, vec![msg_id], &mut behind);
        behind.into_iter().for_each(|id| self.drop_unexpected(w, id, OpError::Aborted(from, GIVEN_UP)));
    }

    /// Nothing more is received of a peer's stream: what has come of it is dropped, and so is what comes.
    // [M11.7]
    pub fn end_stream<W: Wire>(&mut self, w: &mut W, from: PeerId) {
        self.drop_all_unexpected(w, from, Kind::Stream);
        if self.peers.get(from).is_some() {
            self.peers[from].was |= Was::GAP;
        }
    }

    /// Drops the messages of one kind that have come of a peer and that nobody has received.
    pub(in crate::rdm) fn drop_all_unexpected<W: Wire>(&mut self, w: &mut W, from: PeerId, kind: Kind) {
        let is_one = |held: &Unexpected| held.kind == kind && held.envelope.from == from;
        let all: Vec<_> = self.unexpected.iter().filter(|(_, held)| is_one(held)).map(|(id, _)| id).collect();
        all.into_iter().for_each(|id| self.drop_unexpected(w, id, OpError::Cancelled));
    }

    /// A message of this peer that has come, but not as a whole.
    fn find_message(&self, from: PeerId, msg_id: u32) -> Option<Part> {
        let parts = self.peers[from].work.as_ref().and_then(|work| work.parts.get(&msg_id).copied());
        let matched = || {
            let of = |id| self.inflows.get(id).map(|inflow| (inflow.envelope.from, inflow.envelope.msg_id));
            let mut all = self.rx.iter().filter(|(_, op)| op.inflow().and_then(of) == Some((from, msg_id)));
            all.next().map(|(id, _)| Part::Rx(id))
        };
        let held = || {
            let mut all = self.unexpected.iter().filter(|(_, held)| {
                let envelope = &held.envelope;
                let missing = held.cover.arrived() < envelope.len || held.reading.is_some();
                envelope.from == from && envelope.msg_id == msg_id && missing
            });
            all.next().map(|(id, _)| Part::Held(id))
        };
        parts.or_else(matched).or_else(held)
    }

    /// The rest of a message that a receive has matched does not come.
    fn fail_matched<W: Wire>(&mut self, w: &mut W, rx: SlotId, error: OpError) {
        let Some((_, inflow)) = self.inflow(rx) else { return };
        let (from, msg_id, reading) = (inflow.envelope.from, inflow.envelope.msg_id, inflow.reading);
        self.forget_part(from, msg_id, Part::Rx(rx));
        if reading.is_some_and(|reading| !self.stop_reading(w, reading, error)) {
            return;
        }
        self.fail_rx(rx, error);
    }

    /// The rest of a message that nobody has received does not come.
    fn drop_unexpected<W: Wire>(&mut self, w: &mut W, id: SlotId, error: OpError) {
        let Some(held) = self.unexpected.remove(id) else { return };
        let (from, msg_id) = (held.envelope.from, held.envelope.msg_id);
        if let Some(place) = held.queued {
            self.queues[held.kind as usize].arrived.remove(place);
        }
        held.parts.drain(|_, bytes| self.hold.release_part(bytes));
        if let Some(reading) = held.reading {
            self.stop_reading(w, reading, error);
        }
        self.forget_part(from, msg_id, Part::Held(id));
        self.forget_unexpected(from);
    }

    fn forget_part(&mut self, from: PeerId, msg_id: u32, part: Part) {
        if let Some(work) = &mut self.peers[from].work
            && work.parts.get(&msg_id) == Some(&part)
        {
            work.parts.remove(&msg_id);
        }
    }
}
