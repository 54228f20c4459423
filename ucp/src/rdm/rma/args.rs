//! Arguments and protocols of one-sided operations: plain types of the engine's interface.

use crate::rdm::op::{Gather, Scatter};
use crate::rdm::protocol::DeliveryComplete;
use crate::rdm::rails::rail_plan::MAX_RAILS;
use crate::wire::{AtomicOp, Datatype, Iovs};

/// Protocol of a one-sided operation.
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
    /// Atomic without a result (WRITE_RTA).
    WriteAtomic,
    /// Atomic that returns the old values (FETCH_RTA, ATOMRSP).
    FetchAtomic,
    /// Atomic that compares and returns the old values (COMPARE_RTA, ATOMRSP).
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

    /// Returns the protocol to use when no device does it: one packet, or more if it does not fit.
    #[inline]
    pub const fn by_packets(self) -> RmaProtocol {
        match self {
            RmaProtocol::DirectWrite | RmaProtocol::LongReadWrite => RmaProtocol::EagerWrite,
            RmaProtocol::DirectRead => RmaProtocol::ShortRead,
            protocol => protocol,
        }
    }

    /// True if the target's memory is read: an atomic operation with a result reads, too.
    pub const fn is_read(self) -> bool {
        matches!(
            self,
            RmaProtocol::ShortRead
                | RmaProtocol::LongCtsRead
                | RmaProtocol::DirectRead
                | RmaProtocol::FetchAtomic
                | RmaProtocol::CompareAtomic
        )
    }

    /// True if the target's processor takes part: all but RDMA.
    pub const fn is_emulated(self) -> bool {
        !matches!(self, RmaProtocol::DirectWrite | RmaProtocol::DirectRead)
    }
}

/// Longest piece that is copied rather than registered, if the wire has buffers for it, bytes.
pub const MAX_COPY: usize = 8192;

/// Packet order of a wire, per sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketOrder {
    /// In order: one acknowledgement covers all packets before it.
    Kept,
    /// Unordered: each write is acknowledged by itself.
    None,
}

/// Operations that a fence orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceScope {
    /// Operations by packets: on an ordered wire, earlier ones need no acknowledgement.
    Packets,
    /// All operations.
    Memory,
}

/// Keys of a piece of a peer's memory on its further lanes, in the order of `Engine::set_peer_rails`.
pub type RailKeys = [Option<u64>; MAX_RAILS - 1];

/// Arguments of a put.
#[derive(Clone, Copy, Debug)]
pub struct PutArgs {
    /// The bytes.
    pub local: Gather,
    /// Target memory; as long as `local`.
    pub remote: Iovs,
    /// Completion: bytes reusable, or in the target's memory.
    pub sync: DeliveryComplete,
    /// Data for a completion at the target once all bytes are there.
    pub cq_data: Option<u64>,
    /// Protocol (from `select`). An eager write that does not fit one packet goes by long-CTS.
    pub protocol: RmaProtocol,
    /// Returned in [`crate::rdm::EngineEvent::RmaDone`].
    pub user: u64,
}

/// Arguments of a get.
#[derive(Debug)]
pub struct GetArgs {
    /// Destination; as long as `remote`.
    pub local: Scatter,
    /// Source memory.
    pub remote: Iovs,
    /// Protocol (from `select`).
    pub protocol: RmaProtocol,
    /// Returned in [`crate::rdm::EngineEvent::RmaDone`].
    pub user: u64,
}

/// Arguments of an atomic on each element of `remote`.
#[derive(Debug)]
pub struct AtomicArgs {
    /// The operation.
    pub op: AtomicOp,
    /// Type of the elements.
    pub ty: Datatype,
    /// The elements; each piece a multiple of the type's size.
    pub remote: Iovs,
    /// One operand per element; none for [`AtomicOp::Read`]. Up to 32 bytes of operands and compare values
    /// are copied in the call.
    pub operand: Gather,
    /// One compare value per element, for operations that compare; `None` for others.
    pub compare: Option<Gather>,
    /// The old values; `None` for an operation without result.
    pub result: Option<Scatter>,
    /// Completion of an operation without a result.
    pub sync: DeliveryComplete,
    /// Returned in [`crate::rdm::EngineEvent::RmaDone`].
    pub user: u64,
}
