//! The state word of a peer: its lifecycle, the progress of the HANDSHAKE exchange, and flags. One word, so
//! that the fast paths ask everything by one comparison.

use bitflags::bitflags;

use crate::rdm::features::ReqHdr;

/// Lifecycle of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifecycle {
    /// Usable: it has neither failed nor been closed.
    Up,
    /// It failed: nothing can be sent to it, packets of it may still arrive.
    Failed,
    /// It failed, and nothing more of it can arrive.
    Drained,
    /// The user, or its memory limit, has closed it by force: its packets are refused.
    Closed,
    /// The slot is free.
    Removed,
}

/// How far our HANDSHAKE has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnHandshake {
    /// Not due: no packet of the peer has arrived, or the HANDSHAKE was lost.
    NotDue,
    /// It waits for room.
    Queued,
    /// It was sent, and is not known to be lost.
    Sent,
}

/// The packets that the wire has accepted for a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Accepted {
    /// Nothing.
    Nothing,
    /// Our HANDSHAKE only.
    Handshake,
    /// Another packet.
    Packets,
}

bitflags! {
    /// Flags of a peer, none of which depends on another.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PeerFlags: u32 {
        /// The HANDSHAKE of the peer has arrived.
        const HANDSHAKE_RECEIVED = 1 << 10;
        /// Sends to it are queued: later ones queue behind them.
        const SENDS_QUEUED = 1 << 11;
        /// It is in the engine's list of peers with work.
        const SCHEDULED = 1 << 12;
        /// The reorder window holds packets.
        const REORDERING = 1 << 13;
        /// It was not ready to receive: packets to it came back, and nothing new goes out before them.
        const BACKED_OFF = 1 << 14;
        /// A piece of the workers' stream is lost: what follows is not delivered.
        const STREAM_BROKEN = 1 << 15;
        /// It is in zero-copy receive mode: it takes messages without a header only.
        const USER_QP_ONLY = 1 << 16;
        /// Writes to it are complete here and not acknowledged.
        const UNACKED = 1 << 17;
        /// Something sent to it is not known to be delivered.
        const UNCONFIRMED = 1 << 18;
        /// It could not read our memory over the RMA-only lane.
        const READ_DENIED = 1 << 19;
        /// The caller waits for it in a way that the engine does not see.
        const AWAITED = 1 << 20;
        /// It is over its memory limit: its packets are refused until it is closed.
        const OVER_LIMIT = 1 << 21;
        /// A close is to be sent to it, before new messages.
        const CLOSE_DUE = 1 << 22;
        /// A close was sent on a wire without order and is not acknowledged: what has no message id waits.
        const CLOSE_UNCONFIRMED = 1 << 23;
        /// The peer's close is still to come: what it sends before belongs to a conversation that is over.
        const AWAITS_CLOSE = 1 << 24;
        /// The program has connected to it, and may name it by its number.
        const CONNECTED = 1 << 25;
        /// A request of it that names no operation was refused: its next flush is told.
        const UNREPORTED_REFUSAL = 1 << 26;
    }
}

/// The state word of a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeerState(u32);

const FAILED: u32 = 1;
const DRAINED: u32 = 1 << 1;
const CLOSED: u32 = 1 << 2;
const REMOVED: u32 = 1 << 3;
const LIFE: u32 = FAILED | DRAINED | CLOSED | REMOVED;
const SEEN: u32 = 1 << 4;
const QUEUED: u32 = 1 << 5;
const POSTED: u32 = 1 << 6;
const REQUESTED: u32 = 1 << 7;
const CONNID: u32 = 1 << 8;
const BARE: u32 = 1 << 9;

/// A new operation cannot be sent at once, or not in the usual way.
const BLOCKED: u32 = FAILED
    | REMOVED
    | PeerFlags::SENDS_QUEUED.bits()
    | PeerFlags::BACKED_OFF.bits()
    | PeerFlags::USER_QP_ONLY.bits()
    | PeerFlags::CLOSE_DUE.bits()
    | PeerFlags::CLOSE_UNCONFIRMED.bits();

/// Packets of the peer are not taken as they come.
const REFUSES: u32 = CLOSED | PeerFlags::OVER_LIMIT.bits() | PeerFlags::AWAITS_CLOSE.bits();

impl PeerState {
    /// The state of a new peer.
    pub const NEW: PeerState = PeerState(0);

    /// The state of a free slot.
    pub const REMOVED: PeerState = PeerState(REMOVED);

    pub const fn life(self) -> Lifecycle {
        match self.0 & LIFE {
            0 => Lifecycle::Up,
            FAILED => Lifecycle::Failed,
            life if life & REMOVED != 0 => Lifecycle::Removed,
            life if life & CLOSED != 0 => Lifecycle::Closed,
            _ => Lifecycle::Drained,
        }
    }

    pub const fn set_life(&mut self, life: Lifecycle) {
        let bits = match life {
            Lifecycle::Up => 0,
            Lifecycle::Failed => FAILED,
            Lifecycle::Drained => FAILED | DRAINED,
            Lifecycle::Closed => FAILED | DRAINED | CLOSED,
            Lifecycle::Removed => REMOVED,
        };
        self.0 = self.0 & !LIFE | bits;
    }

    /// Whether nothing can be sent to the peer any more. False for a removed one.
    // HOT
    #[inline(always)]
    pub const fn is_failed(self) -> bool {
        self.0 & FAILED != 0
    }

    /// Whether nothing of the peer can arrive any more, or would be taken.
    // HOT
    #[inline(always)]
    pub const fn is_drained(self) -> bool {
        self.0 & DRAINED != 0
    }

    /// Whether the peer was closed by force.
    // HOT
    #[inline(always)]
    pub const fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    /// Whether packets of the peer are refused: it was closed by force, or will be, or they belong to a
    /// conversation that is over.
    // HOT
    #[inline(always)]
    pub const fn refuses_packets(self) -> bool {
        self.0 & REFUSES != 0
    }

    /// Whether the slot is free.
    // HOT
    #[inline(always)]
    pub const fn is_removed(self) -> bool {
        self.0 & REMOVED != 0
    }

    /// Whether the peer is in use: it has neither failed nor was it removed.
    // HOT
    #[inline(always)]
    pub const fn is_up(self) -> bool {
        self.0 & (FAILED | REMOVED) == 0
    }

    /// Whether our HANDSHAKE is due for this packet, the first, of a peer that has not failed.
    // HOT
    #[inline(always)]
    pub const fn owes_handshake(self) -> bool {
        self.0 & (SEEN | FAILED) == 0
    }

    pub const fn own_handshake(self) -> OwnHandshake {
        match self.0 & (SEEN | QUEUED) {
            0 => OwnHandshake::NotDue,
            SEEN => OwnHandshake::Sent,
            _ => OwnHandshake::Queued,
        }
    }

    pub const fn set_own_handshake(&mut self, handshake: OwnHandshake) {
        let bits = match handshake {
            OwnHandshake::NotDue => 0,
            OwnHandshake::Queued => SEEN | QUEUED,
            OwnHandshake::Sent => SEEN,
        };
        self.0 = self.0 & !(SEEN | QUEUED) | bits;
    }

    /// Whether our HANDSHAKE waits for room.
    // HOT
    #[inline(always)]
    pub const fn is_handshake_queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    /// Gives up a HANDSHAKE that waits for room.
    pub const fn drop_queued_handshake(&mut self) {
        self.0 &= !QUEUED;
    }

    pub const fn accepted(self) -> Accepted {
        match self.0 & (POSTED | REQUESTED) {
            0 => Accepted::Nothing,
            POSTED => Accepted::Handshake,
            _ => Accepted::Packets,
        }
    }

    /// Notes a packet that the wire has accepted; `unconfirmed`: its loss does harm.
    // HOT
    #[inline(always)]
    pub const fn note_posted(&mut self, accepted: Accepted, unconfirmed: bool) {
        self.0 |= match accepted {
            Accepted::Nothing => 0,
            Accepted::Handshake => POSTED,
            Accepted::Packets => POSTED | REQUESTED,
        };
        if unconfirmed {
            self.0 |= PeerFlags::UNCONFIRMED.bits();
        }
    }

    /// Returns the identity header of our REQ packets to the peer.
    // HOT
    #[inline]
    pub const fn hdr(self) -> ReqHdr {
        match self.0 & (CONNID | BARE) {
            CONNID => ReqHdr::Connid,
            BARE => ReqHdr::Bare,
            _ => ReqHdr::FIRST,
        }
    }

    /// Sets the identity header of our REQ packets to the peer.
    pub const fn set_hdr(&mut self, hdr: ReqHdr) {
        let bits = match hdr {
            ReqHdr::Connid => CONNID,
            ReqHdr::Bare => BARE,
            ReqHdr::RawAddr => 0,
        };
        self.0 = self.0 & !(CONNID | BARE) | bits;
    }

    /// Whether a new operation cannot be sent at once, or not in the usual way.
    // HOT
    #[inline(always)]
    pub const fn is_blocked(self) -> bool {
        self.0 & BLOCKED != 0
    }

    /// Whether a short message can go out at once, and changes nothing here: it is not the first request, and
    /// has a connid.
    // HOT
    #[inline(always)]
    pub const fn is_ready_for_short(self) -> bool {
        let ready = POSTED | REQUESTED | PeerFlags::UNCONFIRMED.bits() | CONNID;
        self.0 & (BLOCKED | ready) == ready
    }

    /// Whether a one-sided request can go out at once.
    // HOT
    #[inline(always)]
    pub const fn is_ready_for_rma(self) -> bool {
        let ready = POSTED | REQUESTED | PeerFlags::HANDSHAKE_RECEIVED.bits();
        self.0 & (BLOCKED | ready) == ready
    }

    /// Whether a message to ourselves can be delivered at once.
    // HOT
    #[inline(always)]
    pub const fn is_ready_for_self(self) -> bool {
        let ready = SEEN | POSTED;
        self.0 & (BLOCKED | REFUSES | PeerFlags::REORDERING.bits() | ready) == ready
    }

    /// Whether a short message of the peer can be taken at once, if it is next.
    // HOT
    #[inline(always)]
    pub const fn takes_short(self) -> bool {
        self.0 & (SEEN | FAILED | REFUSES | PeerFlags::REORDERING.bits()) == SEEN
    }

    /// Whether a request outside the message order can be taken at once.
    // HOT
    #[inline(always)]
    pub const fn takes_request(self) -> bool {
        self.0 & (SEEN | FAILED | REFUSES | PeerFlags::UNREPORTED_REFUSAL.bits()) == SEEN
    }

    /// Whether a control packet can go out, if none is queued.
    // HOT
    #[inline(always)]
    pub const fn takes_ctl(self) -> bool {
        self.0 & (QUEUED | FAILED | REMOVED | PeerFlags::BACKED_OFF.bits()) == 0
    }

    /// Whether the peer's HANDSHAKE has arrived, and it has not failed.
    pub const fn is_met(self) -> bool {
        self.0 & (FAILED | REMOVED | PeerFlags::HANDSHAKE_RECEIVED.bits())
            == PeerFlags::HANDSHAKE_RECEIVED.bits()
    }

    /// Whether all these flags are set.
    // HOT
    #[inline(always)]
    pub const fn has(self, flags: PeerFlags) -> bool {
        self.0 & flags.bits() == flags.bits()
    }

    /// Whether one of these flags is set.
    #[inline(always)]
    pub const fn has_any(self, flags: PeerFlags) -> bool {
        self.0 & flags.bits() != 0
    }

    #[inline(always)]
    pub const fn insert(&mut self, flags: PeerFlags) {
        self.0 |= flags.bits();
    }

    #[inline(always)]
    pub const fn remove(&mut self, flags: PeerFlags) {
        self.0 &= !flags.bits();
    }

    #[inline(always)]
    pub const fn set(&mut self, flags: PeerFlags, on: bool) {
        if on {
            self.insert(flags);
        } else {
            self.remove(flags);
        }
    }
}

impl std::fmt::Debug for PeerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerState")
            .field("life", &self.life())
            .field("own_handshake", &self.own_handshake())
            .field("accepted", &self.accepted())
            .field("hdr", &self.hdr())
            .field("flags", &PeerFlags::from_bits_truncate(self.0))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_word_do_not_disturb_each_other() {
        let lives =
            [Lifecycle::Up, Lifecycle::Failed, Lifecycle::Drained, Lifecycle::Closed, Lifecycle::Removed];
        let handshakes = [OwnHandshake::NotDue, OwnHandshake::Queued, OwnHandshake::Sent];
        let hdrs = [ReqHdr::RawAddr, ReqHdr::Connid, ReqHdr::Bare];
        let mut state = PeerState::NEW;
        state.note_posted(Accepted::Handshake, false);
        for flags in [PeerFlags::empty(), PeerFlags::all()] {
            state.set(flags, true);
            for life in lives {
                for handshake in handshakes {
                    for hdr in hdrs {
                        state.set_life(life);
                        state.set_own_handshake(handshake);
                        state.set_hdr(hdr);
                        let parts = (state.life(), state.own_handshake(), state.hdr(), state.accepted());
                        assert_eq!(parts, (life, handshake, hdr, Accepted::Handshake));
                        assert_eq!(state.has(PeerFlags::all()), flags == PeerFlags::all());
                        assert_eq!(state.is_up(), life == Lifecycle::Up);
                        let failed = !matches!(life, Lifecycle::Up | Lifecycle::Removed);
                        assert_eq!(state.is_failed(), failed);
                        assert_eq!(state.is_drained(), failed && life != Lifecycle::Failed);
                    }
                }
            }
        }
    }
}
