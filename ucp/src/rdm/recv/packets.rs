//! First and further packets of messages, of whichever protocol: into the receive that matches, or held until
//! there is one.

use ucs::coll::slots::SlotId;

use crate::rdm::next::Next;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::rx::Envelope;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::{PartialMsg, PeerTable};
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, Protocol};
use crate::rdm::recv::Recvs;
use crate::rdm::trace::DropReason;
use crate::wire::rtm::Rtm;

/// Result of the first packet of a message.
pub(in crate::rdm) enum FirstPacket {
    /// It was the whole message, and a receive has ended.
    Ended(Next),
    /// This receive has begun.
    Begun(SlotId),
    /// No receive matches: it is held as this unexpected message.
    Held(SlotId),
    /// There was no room to hold it.
    Dropped,
}

impl Envelope {
    /// Returns the envelope that the first packet of a message states.
    #[inline]
    pub(in crate::rdm) fn of_rtm(a: &Arrival<'_>, rtm: &Rtm<'_>, protocol: Protocol, send_id: u32) -> Self {
        Envelope {
            len: rtm.msg_length(),
            tag: rtm.tag.unwrap_or(0),
            from: a.peer,
            msg_id: rtm.msg_id,
            protocol,
            cq_data: rtm.opts.cq_data,
            send_id,
        }
    }
}

impl Recvs {
    /// Takes in the first packet of a message, whose bytes begin at `at`. With `is_read`, the receive does
    /// not end by packets.
    // [M5.1]
    pub(in crate::rdm) fn on_first(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        a: &Arrival<'_>,
        rtm: &Rtm<'_>,
        envelope: Envelope,
        (at, is_read): (u64, bool),
    ) -> FirstPacket {
        let mut received = ReceivedRanges::new();
        received.add(at, rtm.payload.len() as u64);
        let Some(id) = self.take_expected(peers, pending, rtm, a.peer) else {
            return match self.hold_unexpected(peers, pending, a, rtm, envelope, (at, received)) {
                Some(id) => FirstPacket::Held(id),
                None => FirstPacket::Dropped,
            };
        };
        if let Some(op) = self.table.get_mut(id) {
            op.buf.put(at, rtm.payload);
        }
        if !is_read && received.bytes() == envelope.len {
            return FirstPacket::Ended(self.finish(peers, pending, id, &envelope));
        }
        self.begin(id, envelope, received);
        FirstPacket::Begun(id)
    }

    /// Takes in further bytes of a message that receive `id` has matched. Returns its envelope and how many
    /// bytes have come. An error if they are not of a message that `fits`, or overlap.
    pub(in crate::rdm) fn recv_further(
        &mut self,
        peers: &mut Peers,
        a: &Arrival<'_>,
        rtm: &Rtm<'_>,
        (id, at): (SlotId, u64),
        fits: impl FnOnce(&Envelope) -> bool,
    ) -> Result<(Envelope, u64), Next> {
        if let Some((op, rxe)) = self.rxe(id)
            && fits(&rxe.envelope)
            && rxe.received.add(at, rtm.payload.len() as u64)
        {
            op.buf.put(at, rtm.payload);
            return Ok((rxe.envelope, rxe.received.bytes()));
        }
        Err(peers.drop_packet(a, DropReason::BadSegment))
    }

    /// Holds further bytes of an unexpected message. Returns how many bytes have come. An error if they are
    /// not of a message that `fits`, or overlap, or there is no room.
    pub(in crate::rdm) fn hold_further(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        a: &Arrival<'_>,
        rtm: &Rtm<'_>,
        (id, at): (SlotId, u64),
        fits: impl FnOnce(&Envelope) -> bool,
    ) -> Result<u64, Next> {
        if !peers.reserve_unexpected(pending, a, rtm) {
            return Err(Next::Nothing);
        }
        if let Some(held) = self.unexpected.get_mut(id)
            && fits(&held.envelope)
            && held.received.add(at, rtm.payload.len() as u64)
        {
            held.segments.push(at, pending.held_packets.copy_unexpected(rtm.payload));
            return Ok(held.received.bytes());
        }
        Err(peers.drop_packet(a, DropReason::BadSegment))
    }
}

impl PeerTable {
    /// Returns where the further packets of a message go that has begun.
    pub(in crate::rdm) fn begun_msg(&self, a: &Arrival<'_>, rtm: &Rtm<'_>) -> Option<PartialMsg> {
        self[a.peer].queue.as_ref()?.partial_msgs.get(&rtm.msg_id).copied()
    }

    /// Notes where the further packets of a message go.
    pub(in crate::rdm) fn begin_msg(&mut self, a: &Arrival<'_>, rtm: &Rtm<'_>, to: PartialMsg) {
        self[a.peer].queue_mut().partial_msgs.insert(rtm.msg_id, to);
    }

    /// Forgets a message of which all packets have come.
    pub(in crate::rdm) fn end_msg(&mut self, a: &Arrival<'_>, rtm: &Rtm<'_>) {
        if let Some(queue) = &mut self[a.peer].queue {
            queue.partial_msgs.remove(&rtm.msg_id);
        }
    }
}
