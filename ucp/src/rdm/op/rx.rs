//! A receive that is not complete, and a message that no receive has matched. Both hold the state of the protocol
//! that brings the bytes; owned by the engine's tables.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::PeerId;
use crate::rdm::op::buf::RecvBuf;
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::protocol::{Kind, Protocol};
use crate::rdm::recv::held_bytes::HeldBytes;
use crate::rdm::recv::matching::{MatchEntry, Pattern};
use crate::rdm::status::{OpError, RecvStatus};

/// What a message says about itself in its first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Bytes of the whole message.
    pub len: u64,
    /// Its tag; 0 for untagged messages.
    pub tag: u64,
    /// Who sent it.
    pub from: PeerId,
    /// Its place in the sender's order.
    pub msg_id: u32,
    /// How it travels.
    pub protocol: Protocol,
    /// Data for the completion.
    pub cq_data: Option<u64>,
    /// The sender's id (LONGCTS, and every protocol that wants a RECEIPT).
    pub send_id: u32,
}

/// How far a receive has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RxState {
    /// Not matched: in the queue of expected messages.
    Posted,
    /// Matched by a message in several packets, which this [`RxEntry`] follows.
    Matched(SlotId),
    /// Given to the device, which fills it with a message of its own choice: by this registration.
    OnDevice(SlotId),
}

/// What a receive is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Nothing: it receives one message.
    Single,
    /// It stands for this receive of many messages, and receives none itself.
    Multi(SlotId),
    /// It receives one of the messages of that receive, at this offset of its buffer.
    Part(SlotId, usize),
}

/// One receive. Small: most never see more than one packet.
#[derive(Debug)]
pub struct RxOp {
    /// Where the bytes go.
    pub buf: RecvBuf,
    /// Returned with the completion.
    pub user: u64,
    /// Which messages match, and its place in the queue while none has.
    pub want: MatchEntry,
    /// How far it is.
    pub state: RxState,
    /// Tagged or not.
    pub kind: Kind,
    /// Alone, or of a receive of many messages.
    pub role: Role,
}

/// A matched message whose bytes are coming in several packets.
#[derive(Debug)]
pub struct RxEntry {
    /// The message.
    pub envelope: Envelope,
    /// Which bytes have arrived.
    pub received: ReceivedRanges,
    /// LONGCTS: bytes granted and not yet arrived.
    pub window: u64,
    /// What is read of it.
    pub rma_read: Option<SlotId>,
    /// It cannot be read: the sender was asked, or will be, to send it.
    pub nack: bool,
}

impl RxEntry {
    /// Whether the sender waits for nothing: what is missing has been sent, or will be, unless it ends.
    pub fn is_all_sent(&self) -> bool {
        match self.envelope.protocol.plain() {
            Protocol::Medium => true,
            Protocol::LongCts => self.envelope.len - self.received.bytes() <= self.window,
            // What is read of it has been; the rest comes in packets.
            Protocol::RuntRead => self.rma_read.is_none() && !self.nack,
            _ => false,
        }
    }
}

/// A message no receive has matched yet.
#[derive(Debug)]
pub struct Unexpected {
    /// What its first packet said.
    pub envelope: Envelope,
    /// Tagged or not.
    pub kind: Kind,
    /// Its place in the queue of unexpected messages; `None` once a probe has taken it out.
    pub queued: Option<u32>,
    /// Bytes so far, with their offsets.
    pub segments: Segments,
    /// Which bytes have arrived.
    pub received: ReceivedRanges,
    /// What is to be read of it.
    pub rma_read: Option<SlotId>,
}

/// Pieces of a message, held. One piece, the common case, needs no list.
#[derive(Debug)]
pub enum Segments {
    /// The only packet, or the first.
    One(u64, HeldBytes),
    /// Several packets of a MEDIUM message.
    Many(Vec<(u64, HeldBytes)>),
}

impl Segments {
    /// Adds a piece.
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

    /// Hands out every piece.
    pub fn drain(self, mut each: impl FnMut(u64, HeldBytes)) {
        match self {
            Segments::One(at, held) => each(at, held),
            Segments::Many(list) => list.into_iter().for_each(|(at, held)| each(at, held)),
        }
    }
}

impl RxOp {
    /// A receive that has not matched, queued for what it wants.
    #[inline(always)]
    pub fn posted(buf: RecvBuf, user: u64, want: MatchEntry, kind: Kind) -> RxOp {
        RxOp { buf, user, want, state: RxState::Posted, kind, role: Role::Single }
    }

    /// A receive of a message that is here, or has begun to come: no other will match.
    pub fn begun(buf: RecvBuf, user: u64, kind: Kind) -> RxOp {
        RxOp::posted(buf, user, MatchEntry::new(Pattern::ANY), kind)
    }

    /// Names what follows the message, once matched.
    #[inline]
    pub fn rxe(&self) -> Option<SlotId> {
        match self.state {
            RxState::Matched(rxe) => Some(rxe),
            RxState::Posted | RxState::OnDevice(_) => None,
        }
    }
}

impl Envelope {
    /// What the user hears of it, when its receive has `room` bytes.
    #[inline]
    pub fn status(&self, room: usize) -> Result<RecvStatus, OpError> {
        if self.len > room as u64 {
            return Err(OpError::Truncated { len: self.len, room });
        }
        Ok(RecvStatus { len: self.len as usize, tag: self.tag, from: self.from, cq_data: self.cq_data })
    }
}
