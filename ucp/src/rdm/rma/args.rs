//! One-sided operations as they are asked for: what to write, read or compute, where, and by which protocol. Plain
//! types of the engine's public face, as `ask` has them for messages; no behaviour beyond tables of names.

use crate::rdm::op::{Gather, Scatter};
use crate::rdm::protocol::Sync;
use crate::rdm::rails::rail_plan::MAX_RAILS;
use crate::wire::{AtomicOp, Datatype, Iovs};

/// A way to carry out a one-sided operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum RmaRow {
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

impl RmaRow {
    /// Every row, in the order of its number.
    pub const ALL: [RmaRow; 10] = [
        RmaRow::EagerWrite,
        RmaRow::LongCtsWrite,
        RmaRow::LongReadWrite,
        RmaRow::DirectWrite,
        RmaRow::ShortRead,
        RmaRow::LongCtsRead,
        RmaRow::DirectRead,
        RmaRow::WriteAtomic,
        RmaRow::FetchAtomic,
        RmaRow::CompareAtomic,
    ];

    /// Name as printed by tools.
    pub const fn name(self) -> &'static str {
        match self {
            RmaRow::EagerWrite => "eager_write",
            RmaRow::LongCtsWrite => "longcts_write",
            RmaRow::LongReadWrite => "longread_write",
            RmaRow::DirectWrite => "direct_write",
            RmaRow::ShortRead => "short_read",
            RmaRow::LongCtsRead => "longcts_read",
            RmaRow::DirectRead => "direct_read",
            RmaRow::WriteAtomic => "write_atomic",
            RmaRow::FetchAtomic => "fetch_atomic",
            RmaRow::CompareAtomic => "compare_atomic",
        }
    }

    /// The row to go on by when no device does it, or none reads it: in one packet, or more if it does not fit.
    #[inline]
    pub const fn by_packets(self) -> RmaRow {
        match self {
            RmaRow::DirectWrite | RmaRow::LongReadWrite => RmaRow::EagerWrite,
            RmaRow::DirectRead => RmaRow::ShortRead,
            row => row,
        }
    }

    /// Whether the target's processor takes part: everything but RDMA.
    pub const fn is_emulated(self) -> bool {
        !matches!(self, RmaRow::DirectWrite | RmaRow::DirectRead)
    }
}

/// Longest stretch that is copied rather than registered for the device, if the wire has buffers for it, bytes.
pub const COPIED: usize = 8192;

/// How far a wire keeps the order of packets of one sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// They arrive as sent: one acknowledgement stands for all before it.
    Kept,
    /// They may overtake each other: each write is acknowledged by itself.
    None,
}

/// What a fence holds back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// Operations by packets: where the wire keeps order, those before need not be acknowledged.
    Packets,
    /// Others too.
    Memory,
}

/// Keys of a piece of a peer's memory on its further lanes, in the order of `Engine::link`.
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
    /// How to do it (from `select`). A write that does not fit one packet goes by long-CTS if `row` is eager.
    pub row: RmaRow,
    /// Comes back in [`crate::rdm::Out::OneDone`].
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
    pub row: RmaRow,
    /// Comes back in [`crate::rdm::Out::OneDone`].
    pub user: u64,
}

/// An atomic operation on each of the elements of `remote`.
#[derive(Debug)]
pub struct AtomicArgs {
    /// What to do.
    pub op: AtomicOp,
    /// Type of the elements.
    pub ty: Datatype,
    /// The elements; each piece a multiple of the type's size.
    pub remote: Iovs,
    /// One operand for each element; none for [`AtomicOp::Read`]. Operands and compare values of up to 32 bytes
    /// together are copied in the call.
    pub operand: Gather,
    /// One compare value for each element, for the operations that compare; else none.
    pub compare: Gather,
    /// The old values; `None` for an operation without result.
    pub result: Option<Scatter>,
    /// When one without result is complete; one with a result is when that is there.
    pub sync: Sync,
    /// Comes back in [`crate::rdm::Out::OneDone`].
    pub user: u64,
}
