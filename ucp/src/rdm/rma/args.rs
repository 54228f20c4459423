//! One-sided operations as they are asked for: what to write, read or compute, where, and by which protocol.
//! Plain types of the engine's public face, as `types` has them for messages; no behaviour beyond tables of
//! names.

use crate::rdm::op::{Gather, Scatter};
use crate::rdm::protocol::Sync;
use crate::rdm::rails::rail_plan::MAX_RAILS;
use crate::wire::{AtomicOp, Datatype, Iovs};

/// A way to carry out a one-sided operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum RmaProtocol {
    /// Write in one packet (EAGER_RTW).
    EagerWrite,
    /// Write whose data follow as the target grants (LONGCTS_RTW, CTS, CTSDATA).
    LongCtsWrite,
    /// Write that the target reads by RDMA (LONGREAD_RTW, EOR).
    LongReadWrite,
    /// RDMA write: no packet at all.
    DirectWrite,
    /// Read answered by one packet (SHORT_RTR, READRSP).
    ShortRead,
    /// Read under flow control (LONGCTS_RTR, READRSP, CTS, CTSDATA).
    LongCtsRead,
    /// RDMA read: no packet at all.
    DirectRead,
    /// Atomic without result (WRITE_RTA).
    WriteAtomic,
    /// Atomic that answers the old values (FETCH_RTA, ATOMRSP).
    FetchAtomic,
    /// Compare and swap kind of atomic (COMPARE_RTA, ATOMRSP).
    CompareAtomic,
}

impl RmaProtocol {
    /// Every protocol, in the order of its number.
    pub const ALL: [RmaProtocol; 10] = [
        RmaProtocol::EagerWrite,
        RmaProtocol::LongCtsWrite,
        RmaProtocol::LongReadWrite,
        RmaProtocol::DirectWrite,
        RmaProtocol::ShortRead,
        RmaProtocol::LongCtsRead,
        RmaProtocol::DirectRead,
        RmaProtocol::WriteAtomic,
        RmaProtocol::FetchAtomic,
        RmaProtocol::CompareAtomic,
    ];

    /// Name as printed by tools.
    pub const fn name(self) -> &'static str {
        match self {
            RmaProtocol::EagerWrite => "eager_write",
            RmaProtocol::LongCtsWrite => "longcts_write",
            RmaProtocol::LongReadWrite => "longread_write",
            RmaProtocol::DirectWrite => "direct_write",
            RmaProtocol::ShortRead => "short_read",
            RmaProtocol::LongCtsRead => "longcts_read",
            RmaProtocol::DirectRead => "direct_read",
            RmaProtocol::WriteAtomic => "write_atomic",
            RmaProtocol::FetchAtomic => "fetch_atomic",
            RmaProtocol::CompareAtomic => "compare_atomic",
        }
    }

    /// The protocol to go on by when no device does it, or none reads it: in one packet, or more if it does
    /// not fit.
    #[inline]
    pub const fn by_packets(self) -> RmaProtocol {
        match self {
            RmaProtocol::DirectWrite | RmaProtocol::LongReadWrite => RmaProtocol::EagerWrite,
            RmaProtocol::DirectRead => RmaProtocol::ShortRead,
            protocol => protocol,
        }
    }

    /// Whether the target's processor takes part: everything but RDMA.
    pub const fn is_emulated(self) -> bool {
        !matches!(self, RmaProtocol::DirectWrite | RmaProtocol::DirectRead)
    }
}

/// Longest stretch that is copied rather than registered for the device, if the wire has buffers for it,
/// bytes.
pub const MAX_COPY: usize = 8192;

/// How far a wire keeps the order of packets of one sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketOrder {
    /// They arrive as sent: one acknowledgement stands for all before it.
    Kept,
    /// They may overtake each other: each write is acknowledged by itself.
    None,
}

/// Operations that a fence orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceScope {
    /// Operations by packets: where the wire keeps order, those before need not be acknowledged.
    Packets,
    /// Others too.
    Memory,
}

/// Keys of a piece of a peer's memory on its further lanes, in the order of `Engine::set_peer_rails`.
pub type RailKeys = [Option<u64>; MAX_RAILS - 1];

/// A write.
#[derive(Clone, Copy, Debug)]
pub struct PutArgs {
    /// The bytes.
    pub local: Gather,
    /// Where they go; as long as `local`.
    pub remote: Iovs,
    /// When it is complete: the bytes may be reused, or they are in the target's memory.
    pub sync: Sync,
    /// Told to the target when all bytes are there.
    pub cq_data: Option<u64>,
    /// How to do it (from `select`). A write that does not fit one packet goes by long-CTS if `protocol` is
    /// eager.
    pub protocol: RmaProtocol,
    /// Comes back in [`crate::rdm::EngineEvent::RmaDone`].
    pub user: u64,
}

/// A read.
#[derive(Debug)]
pub struct GetArgs {
    /// Where the bytes go; as long as `remote`.
    pub local: Scatter,
    /// Where they are.
    pub remote: Iovs,
    /// How to do it (from `select`).
    pub protocol: RmaProtocol,
    /// Comes back in [`crate::rdm::EngineEvent::RmaDone`].
    pub user: u64,
}

/// An atomic operation on each of the elements of `remote`.
#[derive(Debug)]
pub struct AtomicArgs {
    /// The operation.
    pub op: AtomicOp,
    /// Type of the elements.
    pub ty: Datatype,
    /// The elements; each piece a multiple of the type's size.
    pub remote: Iovs,
    /// One operand for each element; none for [`AtomicOp::Read`]. Operands and compare values of up to 32
    /// bytes together are copied in the call.
    pub operand: Gather,
    /// One compare value for each element, for the operations that compare; else none.
    pub compare: Gather,
    /// The old values; `None` for an operation without result.
    pub result: Option<Scatter>,
    /// When one without result is complete; one with a result is when that is there.
    pub sync: Sync,
    /// Comes back in [`crate::rdm::EngineEvent::RmaDone`].
    pub user: u64,
}
