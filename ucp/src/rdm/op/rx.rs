//! Incomplete receives, and messages that no receive has matched. Owned by the engine's tables.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::PeerId;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::recv_buf::{RecvBuf, RecvList};
use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol};
use crate::rdm::recv::held_bytes::HeldBytes;
use crate::rdm::recv::matching::{MatchEntry, Pattern};
use crate::rdm::status::{OpError, RecvStatus};

/// The header of a message, from its first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    pub len: u64,
    /// The tag; 0 for untagged messages.
    pub tag: u64,
    pub from: PeerId,
    /// Position in the sender's order.
    pub msg_id: u32,
    pub protocol: Protocol,
    pub cq_data: Option<u64>,
    /// The sender's id (LONGCTS, and every protocol that wants a RECEIPT).
    pub send_id: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RxState {
    /// Not matched: in the queue of expected messages.
    Posted,
    /// Matched by a message in several packets, which this [`RxEntry`] tracks.
    Matched(SlotId),
    /// Posted to the device by this registration; the device chooses the message.
    OnDevice(SlotId),
}

/// Relation of a receive to a multi-message receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvRole {
    Single,
    /// Stands for this multi-message receive, and receives nothing itself.
    Multi(SlotId),
    /// Receives one message of that receive, at this offset of its buffer.
    Part(SlotId, usize),
    /// Takes a message that nobody wants. Its end is not reported.
    Discarded,
}

/// A receive. Small, since most see one packet only.
#[derive(Debug)]
pub struct RxOp {
    pub buf: RecvBuf,
    pub user: u64,
    /// The messages that match, and the position in the queue while none has.
    pub entry: MatchEntry,
    pub state: RxState,
    pub kind: Kind,
    pub role: RecvRole,
}

/// A matched message whose bytes come in several packets.
#[derive(Debug)]
pub struct RxEntry {
    pub envelope: Envelope,
    pub received: ReceivedRanges,
    /// LONGCTS: bytes granted and not yet received.
    pub window: u64,
    pub rma_read: Option<SlotId>,
    /// Cannot be read: the sender was asked, or will be, to send it.
    pub nack: bool,
}

impl RxEntry {
    /// Whether the sender needs nothing more from us: the missing bytes are sent, or will be.
    pub fn is_all_sent(&self) -> bool {
        match self.envelope.protocol.plain() {
            Protocol::Medium => true,
            Protocol::LongCts => self.envelope.len - self.received.bytes() <= self.window,
            Protocol::RuntRead => self.rma_read.is_none() && !self.nack,
            _ => false,
        }
    }
}

/// A message that no receive has matched yet.
#[derive(Debug)]
pub struct Unexpected {
    pub envelope: Envelope,
    pub kind: Kind,
    /// Position in the queue of unexpected messages; `None` once a probe has removed it.
    pub queued: Option<u32>,
    pub segments: Segments,
    pub received: ReceivedRanges,
    pub rma_read: Option<SlotId>,
}

impl Unexpected {
    /// Whether all of it has arrived.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.received.bytes() == self.envelope.len && self.rma_read.is_none()
    }

    /// The sender's id of a send that waits for an answer.
    pub fn waiting_send(&self) -> Option<u32> {
        let waits = match self.envelope.protocol.plain() {
            Protocol::LongCts => !self.is_whole(),
            Protocol::LongRead | Protocol::RuntRead => self.rma_read.is_some(),
            _ => false,
        };
        (waits || self.envelope.protocol.sync() == DeliveryComplete::Yes).then_some(self.envelope.send_id)
    }
}

/// Held pieces of a message. One piece, the common case, needs no list.
#[derive(Debug)]
pub enum Segments {
    /// The only packet, or the first.
    One(u64, HeldBytes),
    /// Several packets of a MEDIUM message.
    Many(Vec<(u64, HeldBytes)>),
}

impl Segments {
    pub fn push(&mut self, at: u64, held: HeldBytes) {
        match self {
            Segments::Many(list) => list.push((at, held)),
            Segments::One(..) => {
                let first = std::mem::replace(self, Segments::Many(Vec::with_capacity(8)));
                let (Segments::One(first_at, first_held), Segments::Many(list)) = (first, &mut *self) else {
                    return;
                };
                list.push((first_at, first_held));
                list.push((at, held));
            }
        }
    }

    pub fn drain(self, mut each: impl FnMut(u64, HeldBytes)) {
        match self {
            Segments::One(at, held) => each(at, held),
            Segments::Many(list) => list.into_iter().for_each(|(at, held)| each(at, held)),
        }
    }
}

impl RxOp {
    #[inline(always)]
    pub fn posted(buf: RecvBuf, user: u64, entry: MatchEntry, kind: Kind) -> RxOp {
        RxOp { buf, user, entry, state: RxState::Posted, kind, role: RecvRole::Single }
    }

    /// Creates a receive of a message that has arrived or begun to, so that no other can match.
    pub fn begun(buf: RecvBuf, user: u64, kind: Kind) -> RxOp {
        RxOp::posted(buf, user, MatchEntry::new(Pattern::ANY), kind)
    }

    /// Returns the id of the [`RxEntry`] of a matched receive.
    #[inline]
    pub fn rxe(&self) -> Option<SlotId> {
        match self.state {
            RxState::Matched(rxe) => Some(rxe),
            RxState::Posted | RxState::OnDevice(_) => None,
        }
    }
}

impl Envelope {
    /// Returns the result for the user of a receive of `room` bytes.
    #[inline]
    pub fn status(&self, room: usize) -> Result<RecvStatus, OpError> {
        if self.len > room as u64 {
            return Err(OpError::Truncated { len: self.len, room, tag: self.tag, from: self.from });
        }
        Ok(RecvStatus { len: self.len as usize, tag: self.tag, from: self.from, cq_data: self.cq_data })
    }

    /// Returns the result for the user of a receive into `buf`.
    #[inline]
    pub fn result(&self, buf: &RecvBuf) -> Result<RecvStatus, OpError> {
        match buf.list() {
            None => self.status(buf.len()),
            Some(list) => self.list_result(list),
        }
    }

    #[cold]
    fn list_result(&self, list: &RecvList) -> Result<RecvStatus, OpError> {
        let status = self.status(list.len())?;
        list.error().map_or(Ok(status), |error| Err(OpError::Datatype(error)))
    }
}
