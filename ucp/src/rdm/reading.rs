//! Reading a sender's memory in place: registers the receive's, posts reads within bounds, ends in EOR, in READ_NACK
//! or in an error. Called by the room of read messages, by what matches receives, and by `outgoing` when there is
//! room. A receive never ends while the device may still write to it.

use ucs::coll::slots::SlotId;

use super::Engine;
use super::ask::OpError;
use super::io::{Fault, PeerId, Posted, Refused, TxToken, Use, Wire};
use super::op::reading::{Reading, Stop};
use super::peer::{Ctl, Part, Was};
use super::room::{Push, Row};
use crate::wire::Features;

/// Reads of one message under way at a time.
const IN_FLIGHT: u32 = 4;

impl Engine {
    /// The message of `reading` has been matched by receive `rx`, which follows it.
    pub(super) fn start_reading<W: Wire>(&mut self, w: &mut W, id: SlotId, rx: SlotId) {
        let Some((op, inflow)) = self.inflow(rx) else { return };
        inflow.reading = Some(id);
        let end = inflow.envelope.len.min(op.buf.len() as u64);
        let Some(reading) = self.readings.get_mut(id) else { return };
        reading.rx = Some(rx);
        // [M7.4]
        reading.end = end.max(reading.from);
        let peer = reading.peer;
        self.queue_reading(id);
        self.drive(w, peer);
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
    pub(super) fn push_reading<W: Wire>(&mut self, w: &mut W, to: PeerId, id: SlotId) -> Push {
        let Some(reading) = self.readings.get(id) else { return Push::Out };
        if reading.stop.is_some() || reading.at == reading.end {
            return self.settle_reading(w, id);
        }
        if reading.in_flight == IN_FLIGHT {
            // The end of one of them queues it again.
            return Push::Out;
        }
        let wire = self.peers[to].wire;
        let max = self.wires[usize::from(wire.0)].rdma.read.min(self.cfg.read_segment.max(1));
        let Some(piece) = reading.rx.and_then(|rx| self.rx.get(rx)).map(|op| op.buf.piece()) else {
            return self.settle_reading(w, id);
        };
        let Some(reading) = self.readings.get_mut(id) else { return Push::Out };
        let from = reading.from as usize;
        if reading.reg.is_none() {
            let room = piece.part(from, (reading.end - reading.from) as usize);
            reading.reg = if max == 0 { None } else { w.register(wire, room, Use::LOCAL_WRITE).ok() };
        }
        let (Some(reg), Some((remote, contiguous))) = (&reading.reg, reading.next()) else {
            reading.stop = Some(Stop::Nack);
            return self.settle_reading(w, id);
        };
        let len = contiguous.min(max).min(reading.end - reading.at);
        let into = piece.part(reading.at as usize, len as usize);
        let posted = w.read(to, into, reg, remote, TxToken::of(id.raw()));
        match posted {
            Ok(how) => {
                reading.at += len;
                reading.in_flight += u32::from(how == Posted::Pending);
                self.stats.rare.reads += 1;
                match reading.at == reading.end {
                    true => self.settle_reading(w, id),
                    false => Push::Sent,
                }
            }
            Err(Refused::Full) => {
                self.stats.rare.full += 1;
                Push::Full
            }
            Err(Refused::Fault(fault)) => {
                reading.stop = Some(stop_for(fault));
                self.settle_reading(w, id)
            }
        }
    }

    /// The wire has ended a read.
    pub(super) fn on_read<W: Wire>(&mut self, w: &mut W, id: SlotId, result: Result<(), Fault>) {
        let Some(reading) = self.readings.get_mut(id) else { return };
        reading.in_flight = reading.in_flight.saturating_sub(1);
        let peer = reading.peer;
        if let Err(fault) = result {
            self.stats.rare.read_errors += 1;
            reading.stop = reading.stop.or(Some(stop_for(fault)));
        }
        if reading.stop.is_some() || reading.at == reading.end {
            // What is queued is over; what waits for the peer's HANDSHAKE stays so.
            if let Push::Hold = self.settle_reading(w, id) {
                self.queue_reading(id);
            }
        } else {
            self.queue_reading(id);
            self.drive(w, peer);
        }
    }

    /// Ends a reading of which nothing more is to be posted, once nothing is under way.
    fn settle_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) -> Push {
        let Some(reading) = self.readings.get(id) else { return Push::Out };
        if reading.in_flight > 0 {
            return Push::Out;
        }
        let peer = reading.peer;
        match reading.stop {
            None => self.end_reading(w, id),
            // Ends the receive too.
            Some(Stop::Fault(fault)) => self.fail_peer(w, peer, fault),
            Some(Stop::Fail(error)) => self.fail_reading(w, id, error),
            Some(Stop::Nack) => {
                let peer = &self.peers[peer];
                if !peer.was.contains(Was::MET) {
                    return Push::Hold;
                }
                // [M7.5]
                if !peer.features.contains(Features::READ_NACK) {
                    self.fail_reading(w, id, OpError::Unsupported);
                } else {
                    self.nack_reading(w, id);
                }
            }
        }
        Push::Out
    }

    /// All of it is read: EOR. The message is whole unless packets of it are missing.
    // [M7.2]
    fn end_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let Some((reading, rx)) = self.take_reading(w, id) else { return };
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

    /// The sender shall send: at once, or when the bytes in packets have come.
    // [M7.5] [M7.6]
    fn nack_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let Some((reading, rx)) = self.take_reading(w, id) else { return };
        let Some((_, inflow)) = self.inflow(rx) else { return };
        inflow.reading = None;
        inflow.nack = true;
        let (msg_id, complete) = (inflow.envelope.msg_id, inflow.cover.arrived() == reading.from);
        self.peers[reading.peer].work().parts.insert(msg_id, Part::Rx(rx));
        if complete {
            self.control(w, reading.peer, Ctl::ReadNack(rx));
        }
    }

    fn fail_reading<W: Wire>(&mut self, w: &mut W, id: SlotId, error: OpError) {
        let Some((reading, rx)) = self.take_reading(w, id) else { return };
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

    /// Takes a reading out, its registration released first. Answers its receive.
    fn take_reading<W: Wire>(&mut self, w: &mut W, id: SlotId) -> Option<(Reading, SlotId)> {
        let mut reading = self.readings.remove(id)?;
        if let Some(reg) = reading.reg.take() {
            w.release(reg);
        }
        let rx = reading.rx?;
        Some((reading, rx))
    }

    /// A message that nobody will receive, or whose receive ends now. False: the device still writes, and the receive
    /// ends with `error` when it no longer does.
    pub(super) fn stop_reading<W: Wire>(&mut self, w: &mut W, id: SlotId, error: OpError) -> bool {
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

    /// Whether messages of this row may be announced to `to`: both ends read (RDM v4 3.4).
    // [M3.7]
    pub(super) fn may_be_read(&self, to: PeerId, row: Row) -> bool {
        let peer = &self.peers[to];
        let needs = match row {
            Row::RuntRead => Features::RDMA_READ.union(Features::RUNT_READ),
            _ => Features::RDMA_READ,
        };
        let ours = self.wires[usize::from(peer.wire.0)].rdma.read > 0;
        ours && peer.was.contains(Was::MET) && peer.features.contains(needs)
    }
}

/// What follows from a read's fault: the peer is gone, or this memory cannot be read.
fn stop_for(fault: Fault) -> Stop {
    if fault.of_peer() { Stop::Fault(fault) } else { Stop::Nack }
}
