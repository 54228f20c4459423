//! RTR packets: emulated reads. They have no family flag, no msg_id and no payload.

use super::base::{Base, PktType, ReqFlags};
use super::error::{ParseError, Section};
use super::iov::Iovs;
use super::layout::layout;
use super::opt::Opts;
use super::reader::{Reader, put};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RtrHdr {
    base: Base,
    rma_iov_count: U32,
    msg_length: U64,
    recv_id: U32,
    recv_length: U32,
}

layout! {
    pub(super) const FIELDS: RtrHdr = 24 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to read from";
        msg_length: 8 @ 8, Dec, "bytes of the whole read";
        recv_id: 4 @ 16, Dec, "the requester's id of the operation";
        recv_length: 4 @ 20, Dec, "bytes the first window holds; SHORT_RTR: to be ignored";
    }
}

/// How a read is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadKind {
    /// SHORT_RTR: one READRSP.
    #[default]
    Short,
    /// LONGCTS_RTR: a READRSP, then CTSDATA within the window.
    LongCts,
}

/// SHORT_RTR or LONGCTS_RTR, to write or as read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rtr {
    /// Kind of read.
    pub kind: ReadKind,
    /// Where to read. Not validated when parsed.
    pub rma_iov: Iovs,
    /// Bytes of the whole read: the rma iovs' sum. As read it is that sum, whatever the packet says.
    pub msg_length: u64,
    /// The requester's id of the operation.
    pub recv_id: u32,
    /// Bytes of the first window; write the total here for a short read, ignore it when reading one.
    pub recv_length: u32,
    /// Optional headers.
    pub opts: Opts,
}

impl Rtr {
    /// Packet type.
    #[inline]
    pub fn ty(&self) -> PktType {
        match self.kind {
            ReadKind::Short => PktType::SHORT_RTR,
            ReadKind::LongCts => PktType::LONGCTS_RTR,
        }
    }

    /// Writes the whole packet to `buf` and returns its length. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let hdr = RtrHdr {
            base: Base::new(self.ty(), self.opts.flags().bits()),
            rma_iov_count: (self.rma_iov.count() as u32).into(),
            msg_length: self.msg_length.into(),
            recv_id: self.recv_id.into(),
            recv_length: self.recv_length.into(),
        };
        let at = put(buf, 0, &hdr);
        let at = self.rma_iov.write(buf, at);
        self.opts.write(buf, at)
    }

    /// SHORT_RTR and LONGCTS_RTR. Bytes behind the headers are ignored.
    pub(super) fn parse(packet: &[u8], base: Base, kind: ReadKind) -> Result<Self, ParseError> {
        let mut from = Reader::new(packet);
        let hdr: RtrHdr = from.take(Section::Header)?;
        let (rma_iov, msg_length) = Iovs::read_rma(&mut from, hdr.rma_iov_count.get())?;
        let opts = Opts::read(&mut from, ReqFlags::from_bits_retain(base.flags.get()))?;
        let (recv_id, recv_length) = (hdr.recv_id.get(), hdr.recv_length.get());
        Ok(Rtr { kind, rma_iov, msg_length, recv_id, recv_length, opts })
    }
}
