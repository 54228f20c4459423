//! Reading a sender's memory in place: registers what is read to, posts reads within bounds, ends in EOR, in READ_NACK
//! or in an error. Called by the rooms of read messages and writes, by what matches receives, and by `outgoing` when
//! there is room. A receive never ends while the device may still write to it; memory that is taken back is not waited
//! for, as the device loses its right to it at once.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::supports_rails;
use crate::rdm::io::{NotPosted, PeerError, PeerId, Posted, RegAccess, TxToken, Wire};
use crate::rdm::op::Piece;
use crate::rdm::op::rma_op::{Job, is_one};
use crate::rdm::op::rma_read::{Reading, Stop};
use crate::rdm::peers::peer::{Ctl, Part, Was};
use crate::rdm::protocol::{Protocol, SendProgress};
use crate::rdm::protocols::direct;
use crate::rdm::rails::rail_set::{Striped, Way};
use crate::rdm::types::OpError;
use crate::wire::ctl::ErrorRef;
use crate::wire::{Features, MAX_IOV};

/// Reads of one message, or write, under way at a time.
const IN_FLIGHT: u32 = 4;

impl Engine {
    /// The message of `reading` has been matched by receive `rx`, which follows it.
    pub(in crate::rdm) fn start_reading<W: Wire>(&mut self, w: &mut W, id: SlotId, rx: SlotId) {
        let Some((op, inflow)) = self.inflow(rx) else { return };
        inflow.reading = Some(id);
        let total = inflow.envelope.len;
        let end = total.min(op.buf.len() as u64);
        let whole = op.buf.piece().is_some();
        let Some(reading) = self.readings.get_mut(id) else { return };
        reading.to = Some(rx);
        // [M7.4]
        reading.end = end.max(reading.from);
        let (peer, iov, from, end) = (reading.peer, reading.iov, reading.from, reading.end);
        if self.wants_packets(w, id, total) {
            if let Some(reading) = self.readings.get_mut(id) {
                reading.stop = Some(Stop::Declined);
            }
        } else if whole
            && let Some((mut stripes, at)) = self.named_rails(peer, &iov)
            && self.cut_stripes(&mut stripes, (from, end), Way::Read, self.cfg.rndv_chunk)
            && let Some(reading) = self.readings.get_mut(id)
        {
            self.stats.rare.striped += 1;
            reading.stripes = Some(Box::new((stripes, at)));
        }
        self.queue_reading(id);
        self.drive(w, peer);
    }

    /// A peer's write `one` to our memory is to be read.
    // [M8.8]
    pub(in crate::rdm) fn start_reading_write<W: Wire>(&mut self, w: &mut W, id: SlotId, one: SlotId) {
        let (Some(write), Some(reading)) = (self.one.get_mut(one), self.readings.get_mut(id)) else { return };
        write.reading = Some(id);
        reading.to = Some(one);
        reading.end = write.len;
        let peer = reading.peer;
        self.queue_reading(id);
        self.drive(w, peer);
    }

    /// Whether the wire would rather have a message in packets than read it by the way beside it, and the sender can be told.
    // [M11.14]
    fn wants_packets<W: Wire>(&mut self, w: &mut W, id: SlotId, len: u64) -> bool {
        let Some(reading) = self.readings.get(id).filter(|reading| reading.from == 0) else { return false };
        let Some(way) = reading.rma_address() else { return false };
        let peer = &self.peers[reading.peer];
        let heeds = peer.was.contains(Was::MET) && peer.features.contains(Features::READ_NACK);
        heeds && w.prefers_packets(reading.peer, len as usize, &way)
    }

    fn queue_reading(&mut self, id: SlotId) {
        let Some(reading) = self.readings.get_mut(id) else { return };
        if !std::mem::replace(&mut reading.queued, true) {
            let peer = reading.peer;
            self.peers[peer].work().reads.push_back(id);
        }
    }

    /// Posts the next read of the reading at the head of a peer's queue, or does what ends it.
    // [M7.1]
    pub(in crate::rdm) fn push_reading<W: Wire>(
        &mut self,
        w: &mut W,
        to: PeerId,
        id: SlotId,
    ) -> SendProgress {
        let Some(reading) = self.readings.get(id) else { return SendProgress::Done };
        if reading.stop.is_some() || reading.all_posted() {
            return self.settle_reading(w, id);
        }
        if reading.stripes.is_some() {
            return self.push_striped(w, id);
        }
        if let Some(push) = self.push_beside(w, to, id) {
            return push;
        }
        let Some(reading) = self.readings.get(id) else { return SendProgress::Done };
        if reading.in_flight == IN_FLIGHT {
            // The end of one of them queues it again.
            return SendProgress::Done;
        }
        let wire = self.peers[to].wire;
        let max = self.wires[usize::from(wire.0)].rdma.read.min(self.cfg.read_segment.max(1));
        let Some((n, piece, into)) = self.read_to(reading) else { return self.settle_reading(w, id) };
        let Some(reading) = self.readings.get_mut(id) else { return SendProgress::Done };
        if let Some(place @ None) = reading.regs.get_mut(n)
            && max > 0
        {
            let of_peer = reading.to.is_some_and(is_one);
            // Memory that the program may take back while it is read to.
            let alone = if of_peer { RegAccess::EXCLUSIVE } else { RegAccess::empty() };
            *place = w.register(wire, piece, RegAccess::LOCAL_WRITE | alone).ok();
        }
        let reg = reading.regs.get(n).and_then(Option::as_ref);
        let peer = &self.peers[to];
        let met = peer.was.contains(Was::MET);
        // It can only wait until its memory has been read (libfabric before 1.20).
        let must = met && !peer.features.contains(Features::READ_NACK);
        let next = match reading.next() {
            // Its HANDSHAKE says whether it can be asked to send.
            Some(_) if reg.is_none() && !met && max > 0 => return SendProgress::AwaitHandshake,
            next => next.filter(|_| reg.is_some() || must && max > 0),
        };
        let Some((remote, contiguous)) = next else {
            reading.stop = Some(Stop::Nack);
            return self.settle_reading(w, id);
        };
        let here = (piece.len() - into) as u64;
        let mut len = contiguous.min(max).min(reading.end - reading.at).min(here);
        let token = TxToken::of(id.raw());
        let posted = match reg {
            Some(reg) => w.read(to, piece.part(into, len as usize), reg, remote, token),
            None => {
                // One byte that the wire does not copy is its answer too.
                let most = direct::COPY.min(w.mtu(to)).min(w.read_copy_max(to));
                len = len.min(most.max(1) as u64);
                w.read_copy(to, piece.part(into, len as usize), remote, token)
            }
        };
        match posted {
            Ok(how) => {
                reading.at += len;
                reading.in_flight += u32::from(how == Posted::Pending);
                self.stats.rare.reads += 1;
                match reading.at == reading.end {
                    true => self.settle_reading(w, id),
                    false => SendProgress::Sent,
                }
            }
            Err(NotPosted::Full) => {
                self.stats.rare.full += 1;
                SendProgress::Full
            }
            Err(NotPosted::Peer(fault)) => {
                let stop = self.stop_for(to, fault);
                let Some(reading) = self.readings.get_mut(id) else { return SendProgress::Done };
                reading.stop = Some(stop);
                self.settle_reading(w, id)
            }
        }
    }

    /// Reads the next stretch by the way beside the wire that its owner has named, if it has.
    // [M11.13]
    fn push_beside<W: Wire>(&mut self, w: &mut W, to: PeerId, id: SlotId) -> Option<SendProgress> {
        let reading = self.readings.get(id)?;
        let way = reading.rma_address()?;
        let (Some((_, piece, into)), Some((remote, contiguous))) = (self.read_to(reading), reading.next())
        else {
            return Some(self.settle_reading(w, id));
        };
        let here = (piece.len() - into) as u64;
        let most = contiguous.min(self.cfg.read_segment.max(1));
        let len = most.min(reading.end - reading.at).min(here);
        let read = w.read_rma_lane(to, piece.part(into, len as usize), remote, &way)?;
        let stop = match read {
            Ok(()) => None,
            Err(NotPosted::Full) => {
                self.stats.rare.full += 1;
                return Some(SendProgress::Full);
            }
            Err(NotPosted::Peer(fault)) => Some(self.stop_for(to, fault)),
        };
        let reading = self.readings.get_mut(id)?;
        match stop {
            None => reading.at += len,
            stop => reading.stop = stop,
        }
        let over = reading.stop.is_some() || reading.at == reading.end;
        self.stats.rare.reads += u64::from(stop.is_none());
        Some(if over { self.settle_reading(w, id) } else { SendProgress::Sent })
    }

    /// The memory that the next byte of a reading goes to: which piece to register, its number, and how far into it. Of a list
    /// of more pieces than are registered, none is: its number is [`MAX_IOV`].
    fn read_to(&self, reading: &Reading) -> Option<(usize, Piece, usize)> {
        let to = reading.to?;
        if is_one(to) {
            return match &self.one.get(to)?.job {
                Job::Store(spans) => spans.piece_at(reading.at),
                _ => None,
            };
        }
        let buf = &self.rx.get(to)?.buf;
        if let Some(list) = buf.list() {
            let few = list.pieces().len() <= MAX_IOV;
            let (n, piece, into) = list.piece_at(reading.at)?;
            return Some((if few { n } else { MAX_IOV }, piece, into));
        }
        let room = buf.piece()?;
        let from = reading.from as usize;
        let room = room.part(from, (reading.end - reading.from) as usize);
        Some((0, room, reading.at as usize - from))
    }

    /// Posts the next piece of a reading over several rails.
    fn push_striped<W: Wire>(&mut self, w: &mut W, id: SlotId) -> SendProgress {
        let Some(reading) = self.readings.get_mut(id) else { return SendProgress::Done };
        let (Some(rx), Some(mut stripes)) = (reading.to, reading.stripes.take()) else {
            return SendProgress::Done;
        };
        let striped = match self.rx.get(rx).and_then(|op| op.buf.piece()) {
            Some(piece) => self.post_stripe(w, &mut stripes.0, id, Way::Read, (piece, stripes.1)),
            None => Striped::Lost(PeerError::NO_RDMA),
        };
        let Some(reading) = self.readings.get_mut(id) else { return SendProgress::Done };
        let over = stripes.0.all_posted();
        reading.stripes = Some(stripes);
        match striped {
            Striped::Posted(how) => {
                reading.in_flight += u32::from(how == Posted::Pending);
                self.stats.rare.reads += 1;
                match over {
                    true => self.settle_reading(w, id),
                    false => SendProgress::Sent,
                }
            }
            Striped::Enough => SendProgress::Done,
            Striped::Full => {
                self.stats.rare.full += 1;
                SendProgress::Full
            }
            Striped::Lost(_) => {
                reading.stop = Some(Stop::Nack);
                self.settle_reading(w, id)
            }
            Striped::Failed(fault) => {
                reading.stop = Some(Stop::PeerError(fault));
                self.settle_reading(w, id)
            }
        }
    }

    /// The wire has ended a read. What failed on one rail is read over another.
    pub(in crate::rdm) fn on_read<W: Wire>(
        &mut self,
        w: &mut W,
        id: SlotId,
        part: u32,
        result: Result<(), PeerError>,
    ) {
        let Some(reading) = self.readings.get_mut(id) else { return };
        reading.in_flight = reading.in_flight.saturating_sub(1);
        let peer = reading.peer;
        self.stats.rare.read_errors += u64::from(result.is_err());
        let stop = match reading.stripes.take() {
            None => result.err().map(|fault| self.stop_for(peer, fault)),
            Some(mut stripes) => {
                let failed = self.end_stripe(w, &mut stripes.0, part, result);
                if let Some(reading) = self.readings.get_mut(id) {
                    reading.stripes = Some(stripes);
                }
                failed.map(Stop::PeerError)
            }
        };
        let Some(reading) = self.readings.get_mut(id) else { return };
        reading.stop = reading.stop.or(stop);
        if reading.stop.is_some() || reading.all_posted() {
            match self.settle_reading(w, id) {
                // What waits for the peer's HANDSHAKE stays queued.
                SendProgress::AwaitHandshake => self.queue_reading(id),
                SendProgress::Sent => {
                    self.queue_reading(id);
                    self.drive(w, peer);
                }
                _ => {}
            }
        } else {
            self.queue_reading(id);
            self.drive(w, peer);
        }
    }

    /// Ends a reading of which nothing more is to be posted, once nothing is under way.
    fn settle_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) -> SendProgress {
        let Some(reading) = self.readings.get(id) else { return SendProgress::Done };
        if reading.in_flight > 0 {
            return SendProgress::Done;
        }
        let (peer, stop) = (reading.peer, reading.stop);
        match stop {
            None => self.end_reading(w, id),
            // Ends the receive too.
            Some(Stop::PeerError(fault)) => self.fail_peer(w, peer, fault),
            Some(Stop::Fail(error)) => self.fail_reading(w, id, error),
            Some(Stop::Declined) => self.nack_reading(w, id, true),
            Some(Stop::Nack) if self.read_elsewhere(id) => return SendProgress::Sent,
            Some(Stop::Nack) => {
                let peer = &self.peers[peer];
                if !peer.was.contains(Was::MET) {
                    return SendProgress::AwaitHandshake;
                }
                // [M7.5]
                if !peer.features.contains(Features::READ_NACK) {
                    self.refuse_reading(w, id);
                } else {
                    self.nack_reading(w, id, false);
                }
            }
        }
        SendProgress::Done
    }

    /// What could not be read over the peer's own lane is read once more over all that its request names. False: it names none,
    /// or they have been tried.
    // [M11.6]
    fn read_elsewhere(&mut self, id: SlotId) -> bool {
        let Some(reading) = self.readings.get(id) else { return false };
        let range = (reading.from, reading.end);
        // A receive into several pieces is read over one lane.
        let whole = reading.to.and_then(|rx| self.rx.get(rx)).is_some_and(|op| op.buf.piece().is_some());
        if reading.stripes.is_some() || reading.to.is_none_or(is_one) || !whole {
            return false;
        }
        let Some((mut stripes, at)) = self.named_rails(reading.peer, &reading.iov) else { return false };
        if !self.cut_stripes_again(&mut stripes, range) {
            return false;
        }
        let Some(reading) = self.readings.get_mut(id) else { return false };
        (reading.stripes, reading.stop) = (Some(Box::new((stripes, at))), None);
        self.stats.rare.rails_lost += 1;
        true
    }

    /// All of it is read: EOR. The message is whole unless packets of it are missing.
    // [M7.2]
    fn end_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let Some((reading, rx)) = self.take_reading(w, id) else { return };
        if is_one(rx) {
            return self.end_read_write(w, rx);
        }
        let Some((_, inflow)) = self.inflow(rx) else { return };
        inflow.reading = None;
        let envelope = inflow.envelope;
        let rest = envelope.len - reading.from;
        let whole = inflow.cover.add(reading.from, rest) && inflow.cover.arrived() == envelope.len;
        self.control(w, reading.peer, Ctl::Eor { send_id: envelope.send_id, recv_id: rx.raw() });
        if whole {
            self.finish_rx(w, rx, &envelope);
        }
    }

    /// All of a peer's write is in our memory: EOR.
    // [M8.8]
    fn end_read_write<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let Some(one) = self.one.remove(id) else { return };
        let send_id = one.theirs.unwrap_or(0);
        self.control(w, one.peer, Ctl::Eor { send_id, recv_id: id.raw() });
        self.written(w, one.peer, one.protocol, one.len, one.cq_data, None);
    }

    /// The sender shall send: at once, or when the bytes in packets have come.
    // [M7.5] [M7.6]
    fn nack_reading<W: Wire>(&mut self, w: &mut W, id: SlotId, not_now: bool) {
        let Some((reading, rx)) = self.take_reading(w, id) else { return };
        if is_one(rx) {
            // What comes instead is a write of its own. [M7.7]
            let send_id = self.one.remove(rx).and_then(|one| one.theirs).unwrap_or(0);
            let nack = Ctl::ReadNack { send_id, recv_id: rx.raw(), not_now };
            return self.control(w, reading.peer, nack);
        }
        let Some((_, inflow)) = self.inflow(rx) else { return };
        inflow.reading = None;
        inflow.nack = true;
        let (msg_id, send_id) = (inflow.envelope.msg_id, inflow.envelope.send_id);
        let complete = inflow.cover.arrived() == reading.from;
        self.peers[reading.peer].work().parts.insert(msg_id, Part::Rx(rx));
        if complete {
            let nack = Ctl::ReadNack { send_id, recv_id: rx.raw(), not_now };
            self.control(w, reading.peer, nack);
        }
    }

    /// The sender cannot be asked to send: both ends give up, if the sender can be told.
    fn refuse_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let (peer, to) = match self.readings.get(id) {
            Some(reading) => (reading.peer, reading.to.unwrap_or(SlotId::NONE)),
            None => return,
        };
        let send_id = match is_one(to) {
            true => self.one.get(to).and_then(|one| one.theirs),
            false => self.inflow(to).map(|(_, inflow)| inflow.envelope.send_id),
        };
        self.fail_reading(w, id, OpError::Unsupported);
        if let Some(send_id) = send_id {
            self.tell_error(w, peer, ErrorRef::Op(send_id), OpError::Unsupported);
        }
    }

    fn fail_reading<W: Wire>(&mut self, w: &mut W, id: SlotId, error: OpError) {
        let Some((reading, rx)) = self.take_reading(w, id) else { return };
        if is_one(rx) {
            self.one.remove(rx);
            return;
        }
        if let Some((_, inflow)) = self.inflow(rx) {
            inflow.reading = None;
            let msg_id = inflow.envelope.msg_id;
            if let Some(work) = &mut self.peers[reading.peer].work
                && work.parts.get(&msg_id) == Some(&Part::Rx(rx))
            {
                work.parts.remove(&msg_id);
            }
        }
        self.fail_rx(rx, error);
    }

    /// Takes a reading out, its registrations released first. Answers what it was for.
    fn take_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) -> Option<(Reading, SlotId)> {
        let mut reading = self.readings.remove(id)?;
        reading.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
        let striped = reading.stripes.as_mut().map(|stripes| stripes.0.take_regs());
        striped.into_iter().flatten().for_each(|reg| w.release(reg));
        let to = reading.to?;
        Some((reading, to))
    }

    /// A message that nobody will receive, or whose receive ends now. False: the device still writes, and the receive
    /// ends with `error` when it no longer does.
    pub(in crate::rdm) fn stop_reading<W: Wire>(&mut self, w: &mut W, id: SlotId, error: OpError) -> bool {
        match self.readings.get_mut(id) {
            Some(reading) if reading.in_flight > 0 => {
                reading.stop = Some(Stop::Fail(error));
                false
            }
            _ => {
                self.take_reading(w, id);
                true
            }
        }
    }

    /// What follows from a read's fault: the peer is gone, or this memory cannot be read, perhaps as a NIC is lost.
    fn stop_for(&self, peer: PeerId, fault: PeerError) -> Stop {
        if fault.of_peer() && !self.outlives(peer, fault) { Stop::PeerError(fault) } else { Stop::Nack }
    }

    /// The memory that a write is read to is taken back: the device loses its right to it now, whatever is under way.
    pub(in crate::rdm) fn drop_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let Some(reading) = self.readings.get_mut(id) else { return };
        reading.to = None;
        reading.stop = Some(Stop::Fail(OpError::Access(reading.peer)));
        if reading.in_flight == 0 {
            self.take_reading(w, id);
        } else {
            reading.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
        }
    }

    /// Whether a peer has never been kept out of our memory by the way beside its wire.
    pub fn can_read_us(&self, to: PeerId) -> bool {
        self.peers.get(to).is_some_and(|peer| !peer.was.contains(Was::KEPT_OUT))
    }

    /// Whether messages of this protocol, or writes to be read, may be announced to `to`: both ends read (RDM v4 3.4), and it can
    /// tell us that it cannot, if it may leave the lane that our keys are of.
    // [M3.7]
    pub(in crate::rdm) fn may_be_read(&self, to: PeerId, protocol: Protocol) -> bool {
        let peer = &self.peers[to];
        let needs = match protocol {
            Protocol::RuntRead => Features::RDMA_READ.union(Features::RUNT_READ),
            _ => Features::RDMA_READ,
        };
        let wire = &self.wires[usize::from(peer.wire.0)];
        let stays = wire.mates.is_empty() || !supports_rails(peer.features);
        let heeded = stays || !self.cfg.withhold.contains(Features::READ_NACK);
        wire.rdma.read > 0 && heeded && peer.was.contains(Was::MET) && peer.features.contains(needs)
    }
}
