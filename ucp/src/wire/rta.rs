//! Requests for atomics, and the numbers of operations and data types.
//!
//! The builder is called by the engine, `parse` by `view::parse` only. Nothing is computed here; which pairs of
//! operation and type are allowed, the engine knows.

mod short;

use super::base::{Base, Iovs, PktType, Reader, ReqFlags, put};
use super::opt::Opts;
use super::rtw::rma_iovs;
use super::table::layout;
use super::view::{Packet, Part, Reject};
use num_enum::{IntoPrimitive, TryFromPrimitive};
pub use short::Short;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// All RTAs.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RtaHdr {
    base: Base,
    msg_id: U32,
    rma_iov_count: U32,
    datatype: U32,
    op: U32,
    id: U32,
}

layout! {
    /// Fields of WRITE_RTA.
    pub(super) const WRITE: RtaHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        rma_iov_count: 4 @ 8, Dec, "pieces of memory to operate on";
        datatype: 4 @ 12, Datatype, "type of the elements";
        op: 4 @ 16, Op, "operation";
        id as "pad": 4 @ 20, Pad, "padding";
    }
}

layout! {
    /// Fields of FETCH_RTA and COMPARE_RTA.
    pub(super) const FETCH: RtaHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        rma_iov_count: 4 @ 8, Dec, "pieces of memory to operate on";
        datatype: 4 @ 12, Datatype, "type of the elements";
        op: 4 @ 16, Op, "operation";
        id as "recv_id": 4 @ 20, Dec, "the requester's id, for the ATOMRSP";
    }
}

layout! {
    /// Fields of DC_WRITE_RTA.
    pub(super) const DC_WRITE: RtaHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        rma_iov_count: 4 @ 8, Dec, "pieces of memory to operate on";
        datatype: 4 @ 12, Datatype, "type of the elements";
        op: 4 @ 16, Op, "operation";
        id as "send_id": 4 @ 20, Dec, "the requester's id, for the RECEIPT";
    }
}

/// An atomic operation, by its number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u32)]
pub enum AtomicOp {
    /// Smaller of the two.
    Min = 0,
    /// Larger of the two.
    Max = 1,
    /// Sum.
    Sum = 2,
    /// Product.
    Prod = 3,
    /// Logical or: 0 or 1.
    LogicOr = 4,
    /// Logical and: 0 or 1.
    LogicAnd = 5,
    /// Bitwise or.
    BitOr = 6,
    /// Bitwise and.
    BitAnd = 7,
    /// Logical exclusive or: 0 or 1.
    LogicXor = 8,
    /// Bitwise exclusive or.
    BitXor = 9,
    /// The target's value, unchanged.
    Read = 10,
    /// The operand.
    Write = 11,
    /// The operand if compare equals the target.
    CompareSwap = 12,
    /// The operand if compare differs from the target.
    CompareSwapNe = 13,
    /// The operand if compare <= target.
    CompareSwapLe = 14,
    /// The operand if compare < target.
    CompareSwapLt = 15,
    /// The operand if compare >= target.
    CompareSwapGe = 16,
    /// The operand if compare > target.
    CompareSwapGt = 17,
    /// The operand's bits where compare has ones.
    MaskSwap = 18,
    /// Difference; newest header only, supported by nobody.
    Diff = 19,
}

/// A type of atomic elements, by its number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Datatype {
    Int8 = 0,
    Uint8 = 1,
    Int16 = 2,
    Uint16 = 3,
    Int32 = 4,
    Uint32 = 5,
    Int64 = 6,
    Uint64 = 7,
    Float = 8,
    Double = 9,
    FloatComplex = 10,
    DoubleComplex = 11,
    LongDouble = 12,
    LongDoubleComplex = 13,
    Int128 = 14,
    Uint128 = 15,
    Float16 = 16,
    Bfloat16 = 17,
    Fp8E4m3 = 18,
    Fp8E5m2 = 19,
}

impl Datatype {
    /// Bytes of one element, as on x86-64.
    pub const fn size(self) -> usize {
        use Datatype::*;
        match self {
            Int8 | Uint8 | Fp8E4m3 | Fp8E5m2 => 1,
            Int16 | Uint16 | Float16 | Bfloat16 => 2,
            Int32 | Uint32 | Float => 4,
            Int64 | Uint64 | Double | FloatComplex => 8,
            DoubleComplex | LongDouble | Int128 | Uint128 => 16,
            LongDoubleComplex => 32,
        }
    }
}

/// Which RTA, and the id only that one carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RtaKind {
    /// WRITE_RTA: no answer.
    #[default]
    Write,
    /// FETCH_RTA: answered by ATOMRSP.
    Fetch {
        /// The requester's id.
        recv_id: u32,
    },
    /// COMPARE_RTA: answered by ATOMRSP.
    Compare {
        /// The requester's id.
        recv_id: u32,
    },
    /// DC_WRITE_RTA: answered by RECEIPT.
    DcWrite {
        /// The requester's id.
        send_id: u32,
    },
}

/// The headers of an RTA, to write or as read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rta {
    /// Which RTA.
    pub kind: RtaKind,
    /// Place in the sender's order, which messages share.
    pub msg_id: u32,
    /// Memory to operate on; lengths in bytes. Of a peer: addresses and keys are claims.
    pub rma_iov: Iovs,
    /// The number of a [`Datatype`]; an unknown one parses, so that the msg_id is not lost.
    pub datatype: u32,
    /// The number of an [`AtomicOp`]; an unknown one parses, so that the msg_id is not lost.
    pub op: u32,
    /// Optional headers.
    pub opts: Opts,
}

impl Rta {
    /// The data type, if we know it.
    pub fn datatype(&self) -> Option<Datatype> {
        Datatype::try_from(self.datatype).ok()
    }

    /// The operation, if we know it.
    pub fn op(&self) -> Option<AtomicOp> {
        AtomicOp::try_from(self.op).ok()
    }

    /// Writes the headers to the start of `buf`; operands, and behind all of them the compare values, go at the
    /// offset answered. Panics if `buf` is shorter than the headers.
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (ty, id) = match self.kind {
            RtaKind::Write => (PktType::WRITE_RTA, 0),
            RtaKind::Fetch { recv_id } => (PktType::FETCH_RTA, recv_id),
            RtaKind::Compare { recv_id } => (PktType::COMPARE_RTA, recv_id),
            RtaKind::DcWrite { send_id } => (PktType::DC_WRITE_RTA, send_id),
        };
        let hdr = RtaHdr {
            base: Base::new(ty, ReqFlags::ATOMIC.union(self.opts.flags()).bits()),
            msg_id: self.msg_id.into(),
            rma_iov_count: (self.rma_iov.count() as u32).into(),
            datatype: self.datatype.into(),
            op: self.op.into(),
            id: id.into(),
        };
        let at = put(buf, 0, &hdr);
        let at = self.rma_iov.write(buf, at);
        self.opts.write(buf, at)
    }
}

/// All RTAs. The payload's length is not checked: what it must be depends on the operation.
pub(super) fn parse(packet: &[u8], base: Base) -> Result<Packet<'_>, Reject> {
    let mut from = Reader::new(packet);
    let hdr: RtaHdr = from.take(Part::Header)?;
    let (rma_iov, _) = rma_iovs(&mut from, hdr.rma_iov_count.get())?;
    let opts = Opts::read(&mut from, ReqFlags::from_bits_retain(base.flags.get()))?;
    let id = hdr.id.get();
    let kind = match PktType(base.ty) {
        PktType::FETCH_RTA => RtaKind::Fetch { recv_id: id },
        PktType::COMPARE_RTA => RtaKind::Compare { recv_id: id },
        PktType::DC_WRITE_RTA => RtaKind::DcWrite { send_id: id },
        _ => RtaKind::Write,
    };
    let (msg_id, datatype, op) = (hdr.msg_id.get(), hdr.datatype.get(), hdr.op.get());
    Ok(Packet::Rta(Rta { kind, msg_id, rma_iov, datatype, op, opts }, from.rest()))
}
