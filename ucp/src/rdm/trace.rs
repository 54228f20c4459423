//! Trace events, for logs: peers that come and go, packets that were dropped and why. The engine writes no
//! text; whoever drives it may take these and log them. A short ring: the oldest are forgotten.

use std::collections::VecDeque;

use crate::rdm::ids::{PeerId, Source};
use crate::rdm::status::PeerError;

/// Why a packet was dropped. Each reason is also a counter of `RdmStats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DropReason {
    /// Does not parse.
    Malformed,
    /// A type that no protocol handles (reserved, not implemented, or not ours to receive).
    Unsupported,
    /// From nobody we know, and without a raw address.
    UnknownSender,
    /// From nobody we know, with the raw address of another.
    WrongAddress,
    /// The sender's address cannot be connected to, or there is no room for another peer.
    NoPath,
    /// The `msg_id` was seen already.
    Duplicate,
    /// Repeats bytes of a message in several packets, or disagrees with its first packet.
    BadSegment,
    /// Echoes an id that names no operation of its sender in a state that expects it.
    BadId,
    /// Data beyond the window granted, or a window of nothing.
    BadWindow,
    /// No room for another unexpected message.
    NoRoom,
    /// Names memory that it may not reach, or operands that do not fit what it asks for.
    BadAccess,
    /// The sender has failed and could not be answered.
    PeerFailed,
}

/// One thing that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A sender unknown so far introduced itself.
    PeerFound(PeerId),
    /// A peer's queue pair number now belongs to another.
    PeerDisplaced {
        /// The peer that had it.
        old: PeerId,
        /// The peer that has it now.
        new: PeerId,
    },
    /// A peer's HANDSHAKE arrived.
    Handshake(PeerId),
    /// A peer failed.
    PeerFailed(PeerId, PeerError),
    /// A NIC on the way to a peer is lost: the peer goes on over another pair.
    PeerMoved(PeerId, PeerError),
    /// An operation with a peer ended with this fault, and nobody can say whether it has taken effect: a NIC
    /// on its way was lost. The peer goes on.
    Uncertain(PeerId, PeerError),
    /// A packet was dropped.
    Dropped {
        /// Why.
        why: DropReason,
        /// Type byte of the packet.
        ty: u8,
        /// Source of the packet.
        from: Source,
    },
}

/// The last events.
#[derive(Debug, Default)]
pub struct TraceEvents {
    ring: VecDeque<TraceEvent>,
}

impl TraceEvents {
    /// TraceEvents kept.
    pub const LEN: usize = 64;

    /// Adds one.
    #[cold]
    pub(super) fn push(&mut self, event: TraceEvent) {
        if self.ring.len() == Self::LEN {
            self.ring.pop_front();
        }
        self.ring.push_back(event);
    }

    /// Takes the oldest.
    pub fn take(&mut self) -> Option<TraceEvent> {
        self.ring.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_events_are_dropped() {
        let mut events = TraceEvents::default();
        (0..100).for_each(|n| events.push(TraceEvent::PeerFound(PeerId(n))));
        assert_eq!(events.take(), Some(TraceEvent::PeerFound(PeerId(36))));
    }
}
