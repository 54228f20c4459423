//! Names of what the engine deals with: peers, wires, sources of packets, operations, posted packets. Plain
//! numbers.

use ucs::coll::slots::SlotId;

/// A peer of this engine: an index that stays valid until the peer is removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// One of the wires an engine serves: each has its own address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct WireId(pub u8);

/// Source of a packet, as the wire knows it (see `uct::api::SrcAddr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Source {
    /// Interface id, or the low eight bytes of the GID.
    pub node: u64,
    /// Queue pair number; 0 where there is none.
    pub port: u32,
}

/// A number the engine gives a packet, read or write whose fate it wants to know; comes back in
/// `Engine::on_sent`. 63 bits: the id of an operation, and which part of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TxToken(u64);

impl TxToken {
    /// Nobody waits for this packet. An error still makes the wire report the peer as failed.
    pub const NONE: TxToken = TxToken(u32::MAX as u64);

    /// Of an operation whose parts are not told apart.
    #[inline]
    pub const fn of(id: u32) -> TxToken {
        TxToken(id as u64)
    }

    /// Of one part of an operation; `part` has 31 bits.
    #[inline]
    pub const fn part_of(id: u32, part: u32) -> TxToken {
        TxToken((part as u64 & 0x7fff_ffff) << 32 | id as u64)
    }

    /// The operation.
    #[inline]
    pub const fn id(self) -> u32 {
        self.0 as u32
    }

    /// The part; 0 where they are not told apart.
    #[inline]
    pub const fn part(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// As a number for the wire to keep.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Restores the token from the number that the wire kept.
    #[inline]
    pub const fn from_raw(raw: u64) -> TxToken {
        TxToken(raw)
    }
}

/// Names a pending send or receive. Sends and receives have separate tables: a send's id means nothing to
/// `cancel_recv`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpId(pub(in crate::rdm) SlotId);

/// Names a message found by a probe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MsgHandle(pub(in crate::rdm) SlotId);
