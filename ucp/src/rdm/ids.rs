//! Names of what the engine deals with: peers, wires, sources of packets, operations, posted packets. Plain
//! numbers.

use ucs::coll::slots::SlotId;

use crate::wire::RawAddr;

/// A peer of this engine: an index that stays valid until the peer is removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    /// No peer: that of an endpoint whose peer is not known, and of a message without a known sender.
    pub const NONE: PeerId = PeerId(u32::MAX);
}

/// A lane to a peer: a pair of NICs, one of ours and one of its worker's. The first lane of a peer has the
/// peer's number; further ones have their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct LaneId(pub u32);

/// Bit of the number of a further lane.
const FURTHER: u32 = 1 << 31;

impl LaneId {
    pub(in crate::rdm) const fn further(slot: SlotId) -> LaneId {
        LaneId(slot.raw() | FURTHER)
    }

    /// Returns the slot of a further lane.
    pub(in crate::rdm) const fn slot(self) -> Option<SlotId> {
        if self.is_further() { Some(SlotId::from_raw(self.0 & !FURTHER)) } else { None }
    }

    /// Returns the peer whose first lane it is.
    #[inline(always)]
    pub const fn first_of(self) -> Option<PeerId> {
        if self.is_further() { None } else { Some(PeerId(self.0)) }
    }

    /// Whether it is not the first lane of a peer.
    #[inline(always)]
    pub const fn is_further(self) -> bool {
        self.0 & FURTHER != 0
    }
}

impl From<PeerId> for LaneId {
    /// The first lane of a peer, or the one that it uses in its place.
    #[inline(always)]
    fn from(peer: PeerId) -> LaneId {
        LaneId(peer.0)
    }
}

/// One of the wires an engine serves: each has its own address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct WireId(pub u8);

/// A memory domain: wires of the same one know memory by the same device keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct DomainId(pub u8);

impl DomainId {
    /// Names of memory that all wires know: the key of the only device of a context ([`KeySpace::Device`]).
    pub const ONLY_DEVICE: DomainId = DomainId(u8::MAX);
    /// Names of memory that the program has chosen ([`KeySpace::Program`]).
    pub const PROGRAM: DomainId = DomainId(u8::MAX - 1);
}

/// A set of 32-bit keys that name memory on every wire, in packets of this library. The high half of the key
/// in a packet tells which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeySpace {
    /// The keys of the only device of a context.
    Device,
    /// Keys that the program has chosen.
    Program,
}

impl KeySpace {
    /// The key in packets of the memory that this key names.
    pub const fn key(self, key: u32) -> u64 {
        (self as u64 + 1) << 32 | key as u64
    }

    /// The key in packets that memory with this key of a domain has on every wire, if that is one of a set.
    pub(in crate::rdm) fn name_of(domain: DomainId, key: u64) -> Option<u64> {
        let space = match domain {
            DomainId::ONLY_DEVICE => KeySpace::Device,
            DomainId::PROGRAM => KeySpace::Program,
            _ => return None,
        };
        Some(space.key(u32::try_from(key).ok()?))
    }

    /// The domain whose keys have this high half.
    pub(in crate::rdm) const fn domain_of(high: u32) -> Option<DomainId> {
        match high {
            1 => Some(DomainId::ONLY_DEVICE),
            2 => Some(DomainId::PROGRAM),
            _ => None,
        }
    }
}

/// Source of a packet, as the wire knows it (see `uct::api::SrcAddr`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Source {
    /// Interface id, or the low eight bytes of the GID.
    pub node: u64,
    /// Queue pair number; 0 where there is none.
    pub port: u32,
}

impl From<&RawAddr> for Source {
    /// The source of packets from this address.
    fn from(addr: &RawAddr) -> Source {
        Source { node: addr.node(), port: u32::from(addr.qpn) }
    }
}

/// Bit of an id that tells one-sided operations (`RmaTable`, the upper half of ids) from sends, receives and
/// reads of message data (the lower half).
const RMA_ID: u32 = 1 << 31;

/// Whether an id names a one-sided operation.
#[inline]
pub(in crate::rdm) const fn is_rma_id(id: SlotId) -> bool {
    id.raw() & RMA_ID != 0
}

/// Names what the engine has posted; comes back in `Engine::on_sent`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TxToken {
    /// A packet. It is copied when posted, so nobody waits for its end. An error still makes the wire report
    /// the peer as failed.
    Packet,
    /// An RDMA read of message data, in the table of reads.
    RmaRead {
        /// The read.
        id: SlotId,
        /// Number of the part, of 30 bits; 0 where there is only one.
        part: u32,
    },
    /// An RDMA read or write of a one-sided operation, in the table of those.
    RmaOp {
        /// The operation.
        id: SlotId,
        /// Number of the part, of 30 bits; 0 where there is only one.
        part: u32,
    },
}

/// Bits of a part.
const PART_MASK: u32 = (1 << 30) - 1;
/// The word of [`TxToken::Packet`]; no table issues this id.
const PACKET: u64 = SlotId::NONE.raw() as u64;

impl TxToken {
    /// The token of a part of a read or one-sided operation, whichever the id names.
    #[inline(always)]
    pub(in crate::rdm) const fn part_of(id: SlotId, part: u32) -> TxToken {
        if is_rma_id(id) { TxToken::RmaOp { id, part } } else { TxToken::RmaRead { id, part } }
    }

    /// The word that the wire keeps, of 62 bits.
    #[inline(always)]
    pub const fn pack(self) -> u64 {
        match self {
            TxToken::Packet => PACKET,
            TxToken::RmaRead { id, part } | TxToken::RmaOp { id, part } => {
                ((part & PART_MASK) as u64) << 32 | id.raw() as u64
            }
        }
    }

    /// Reads a word made by [`TxToken::pack`].
    #[inline(always)]
    pub const fn unpack(word: u64) -> TxToken {
        let (id, part) = (SlotId::from_raw(word as u32), (word >> 32) as u32);
        if is_rma_id(id) {
            TxToken::RmaOp { id, part }
        } else if word == PACKET {
            TxToken::Packet
        } else {
            TxToken::RmaRead { id, part }
        }
    }
}

/// Names a pending send or receive. Sends and receives have separate tables: a send's id means nothing to
/// `cancel_recv`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpId(pub(in crate::rdm) SlotId);

/// Names a message found by a probe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MsgHandle(pub(in crate::rdm) SlotId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tx_tokens_round_trip() {
        let mut tokens = vec![TxToken::Packet];
        for part in [0, 1, PART_MASK] {
            for n in [1, 2, RMA_ID - 1] {
                let (read, op) = (SlotId::from_raw(n), SlotId::from_raw(RMA_ID | n));
                assert_eq!(TxToken::part_of(read, part), TxToken::RmaRead { id: read, part });
                assert_eq!(TxToken::part_of(op, part), TxToken::RmaOp { id: op, part });
                tokens.extend([TxToken::RmaRead { id: read, part }, TxToken::RmaOp { id: op, part }]);
            }
        }
        for (n, token) in tokens.iter().enumerate() {
            assert_eq!(TxToken::unpack(token.pack()), *token);
            assert!(token.pack() < 1 << 62, "{token:?}");
            assert!(tokens[..n].iter().all(|other| other.pack() != token.pack()), "{token:?}");
        }
    }
}
