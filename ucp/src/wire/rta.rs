//! RTA packets: atomics. Nothing is computed here, and pairs of operation and type are not checked.

pub(super) mod hdr;
mod ops;
pub(super) mod read;
mod short;

pub use ops::{AtomicOp, Datatype};
pub use short::Short;

use super::base::{Base, PktType, ReqFlags};
use super::iov::Iovs;
use super::opt::Opts;
use super::reader::put;
use hdr::RtaHdr;

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
    /// Kind of RTA.
    pub kind: RtaKind,
    /// Sequence number, shared with messages.
    pub msg_id: u32,
    /// Memory to operate on; lengths in bytes. Not validated when parsed.
    pub rma_iov: Iovs,
    /// The number of a [`Datatype`]; an unknown one parses, so that the msg_id is not lost.
    pub datatype: u32,
    /// The number of an [`AtomicOp`]; an unknown one parses, so that the msg_id is not lost.
    pub op: u32,
    /// Optional headers.
    pub opts: Opts,
}

impl Rta {
    /// Packet type.
    #[inline]
    pub fn ty(&self) -> PktType {
        match self.kind {
            RtaKind::Write => PktType::WRITE_RTA,
            RtaKind::Fetch { .. } => PktType::FETCH_RTA,
            RtaKind::Compare { .. } => PktType::COMPARE_RTA,
            RtaKind::DcWrite { .. } => PktType::DC_WRITE_RTA,
        }
    }

    /// The data type, if we know it.
    pub fn datatype(&self) -> Option<Datatype> {
        Datatype::try_from(self.datatype).ok()
    }

    /// The operation, if we know it.
    pub fn op(&self) -> Option<AtomicOp> {
        AtomicOp::try_from(self.op).ok()
    }

    /// Writes the headers to `buf`; returns the offset of the operands and compare values. Panics if `buf` is
    /// too short.
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let id = match self.kind {
            RtaKind::Write => 0,
            RtaKind::Fetch { recv_id: id }
            | RtaKind::Compare { recv_id: id }
            | RtaKind::DcWrite { send_id: id } => id,
        };
        let hdr = RtaHdr {
            base: Base::new(self.ty(), ReqFlags::ATOMIC.union(self.opts.flags()).bits()),
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
