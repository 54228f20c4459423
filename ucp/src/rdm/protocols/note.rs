//! Notes: messages between two workers about one of several endpoints between them. A note is a
//! DC_EAGER_TAGRTM without data, of class [`MsgClass::AmData`], with its kind as data for a completion. It
//! has its place in the order of messages, and no receive gets it (RDM v4 chapter 11).

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::{OpId, PeerId};
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::rx::{Envelope, RxOp, RxState};
use crate::rdm::op::send_buf::SendBuf;
use crate::rdm::op::tx::TxState;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::{Ctl, Peer};
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, DeliveryComplete, HandlerKind, Kind, PacketHandler, Protocol};
use crate::rdm::recv::Recvs;
use crate::rdm::recv::sequence::MsgIdUse;
use crate::rdm::recv::streams::{StreamPiece, WORKER_STREAM};
use crate::rdm::rma::Reads;
use crate::rdm::send::Sends;
use crate::rdm::status::{ABORTED, OpError};
use crate::rdm::types::{EngineEvent, SendArgs, Started};
use crate::wire::rtm::Rtm;
use crate::wire::{MsgClass, Packet, PktType};

/// DC_EAGER_TAGRTM that is no note is handled as the others of its kind.
pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] =
    [PacketHandler { ty: PktType::DC_EAGER_TAGRTM, kind: HandlerKind::Note, id_use: Some(MsgIdUse::Single) }];

/// A message to another worker about an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// The endpoint at the other end of the receiver's connection with this number was closed by force.
    Closed {
        /// The receiver's number.
        connection: u32,
    },
    /// The data that an active message has announced with this number will not come.
    Withdrawn {
        /// Tag of the data.
        number: u64,
    },
    /// A piece of the stream of the two workers will not come.
    StreamBroken,
}

const CLOSED: u64 = 1;
const WITHDRAWN: u64 = 2;
const STREAM_BROKEN: u64 = 3;

impl Note {
    const fn encode(self) -> (u64, u64) {
        match self {
            Note::Closed { connection } => (CLOSED, connection as u64),
            Note::Withdrawn { number } => (WITHDRAWN, number),
            Note::StreamBroken => (STREAM_BROKEN, WORKER_STREAM),
        }
    }

    fn decode(kind: u64, tag: u64) -> Option<Note> {
        match kind {
            CLOSED => Some(Note::Closed { connection: u32::try_from(tag).ok()? }),
            WITHDRAWN => Some(Note::Withdrawn { number: tag }),
            STREAM_BROKEN => Some(Note::StreamBroken),
            _ => None,
        }
    }
}

/// Whether a packet is a note.
pub(in crate::rdm) fn is_note(packet: &Packet<'_>) -> bool {
    matches!(packet, Packet::Rtm(rtm) if rtm.opts.class == MsgClass::AmData && rtm.opts.cq_data.is_some())
}

/// Sends a note. It ends as a send with this user value, when the peer has it.
pub fn send_note<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId, note: Note, user: u64) -> Started<()> {
    let (kind, tag) = note.encode();
    let args = SendArgs {
        buf: SendBuf::EMPTY,
        tag: Some(tag),
        sync: DeliveryComplete::Yes,
        cq_data: Some(kind),
        protocol: Protocol::DcEager,
        user,
    };
    let started = e.send_class(w, to, MsgClass::AmData, args);
    if let (Note::StreamBroken, Started::Pending(OpId(id))) = (note, &started) {
        put_first(&e.ops.sends, &mut e.peers.table[to], *id);
    }
    started
}

/// Moves an unsent message before all others that are unsent. Pieces of the stream among them would follow
/// the gap.
fn put_first(sends: &Sends, to: &mut Peer, id: SlotId) {
    let Some(queue) = to.queue.as_mut().filter(|queue| queue.sends.back() == Some(&id)) else {
        return;
    };
    let is_unsent = |id: &SlotId| sends.table.get(*id).is_some_and(|op| op.state == TxState::Queued);
    let first = queue.sends.iter().position(is_unsent).unwrap_or(0);
    queue.sends.pop_back();
    queue.sends.insert(first, id);
}

/// Takes a note, and acknowledges it.
// [M11.21] [M11.23]
pub(in crate::rdm) fn on_recv<W: Wire>(
    recvs: &mut Recvs,
    reads: &mut Reads,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
) -> Next {
    let Packet::Rtm(rtm) = a.packet else { return Next::Nothing };
    match Note::decode(rtm.opts.cq_data.unwrap_or(0), rtm.tag.unwrap_or(0)) {
        Some(Note::Closed { connection }) => {
            pending.events.push_back(EngineEvent::ConnectionClosed { peer: a.peer, connection });
        }
        Some(Note::Withdrawn { number }) => recvs.withdraw(reads, peers, pending, w, a, (rtm, number)),
        Some(Note::StreamBroken) => {
            let piece = StreamPiece { tag: Some(WORKER_STREAM), msg_id: rtm.msg_id };
            recvs.end_stream_before(reads, peers, pending, w, a.peer, piece);
        }
        None => {}
    }
    match rtm.receipt {
        Some(send_id) => Next::Ctl(Ctl::Receipt { send_id, msg_id: rtm.msg_id }),
        None => Next::Nothing,
    }
}

impl Recvs {
    /// Ends the receive of data that will not come. If there is none yet, it fails once it starts.
    // [M11.22]
    fn withdraw<W: Wire>(
        &mut self,
        reads: &mut Reads,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        a: &Arrival<'_>,
        (rtm, number): (&Rtm<'_>, u64),
    ) {
        let error = OpError::Aborted(a.peer, ABORTED);
        let is_it = |of: &Envelope| (of.from, of.tag) == (a.peer, number);
        let held = self.unexpected.iter();
        let held = held.filter(|(_, held)| held.kind == Kind::AmData && is_it(&held.envelope));
        for id in held.map(|(id, _)| id).collect::<Vec<SlotId>>() {
            self.drop_unexpected(reads, peers, pending, w, id, error);
        }
        let is_matched = |op: &RxOp| {
            let RxState::Matched(rxe) = op.state else { return false };
            op.kind == Kind::AmData && self.entries.get(rxe).is_some_and(|rxe| is_it(&rxe.envelope))
        };
        let matched = self.table.iter().find(|(_, op)| is_matched(op)).map(|(id, _)| id);
        if let Some(id) = matched {
            return self.fail_matched(reads, peers, pending, w, id, error);
        }
        if let Some(id) = self.take_expected(peers, pending, rtm, a.peer) {
            return self.fail(pending, id, error);
        }
        let envelope = Envelope::of_rtm(a, rtm, Protocol::Eager, 0);
        self.hold_unexpected(peers, pending, a, rtm, envelope, (0, ReceivedRanges::new()));
    }
}

/// The error of a receive of data that was withdrawn before; `None`: it is there.
pub(in crate::rdm) fn withdrawn(kind: Kind, envelope: &Envelope) -> Option<OpError> {
    // A note of ours is kept as an eager message; peers send such data otherwise.
    let is_note = envelope.protocol == Protocol::Eager && envelope.cq_data.is_some();
    let is_withdrawn = kind == Kind::AmData && is_note;
    is_withdrawn.then_some(OpError::Aborted(envelope.from, ABORTED))
}
