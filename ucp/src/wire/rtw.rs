//! RTW packets: emulated writes, and the trigger of a handshake. They have no family flag and no msg_id; the
//! rma iovs stand between the fixed header and the optional headers.

pub(super) mod hdr;
pub(super) mod read;
mod short;

pub use short::Short;

use super::base::{Base, PktType, ReqFlags};
use super::iov::{Iovs, RmaIov};
use super::opt::Opts;
use super::rawaddr::RawAddr;
use super::reader::put;
use super::rtm::Delivery;
use hdr::{DcEagerHdr, EagerHdr, LongHdr};
use zerocopy::little_endian::U32;
use zerocopy::{Immutable, IntoBytes};

/// Writes header, rma iovs and options; returns the offset behind them.
#[inline(always)]
fn write<H: IntoBytes + Immutable>(buf: &mut [u8], hdr: &H, rma_iov: &Iovs, opts: &Opts) -> usize {
    let at = put(buf, 0, hdr);
    let at = rma_iov.write(buf, at);
    opts.write(buf, at)
}

/// EAGER_RTW or DC_EAGER_RTW: a write in one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Eager {
    /// Where to write; the lengths add up to the payload's.
    pub rma_iov: Iovs,
    /// Sender's id for the RECEIPT; selects the DC packet type.
    pub receipt: Option<u32>,
    /// Optional headers.
    pub opts: Opts,
}

impl Eager {
    /// The handshake trigger: no iov, no payload, the raw address; 48 bytes.
    #[inline]
    pub const fn trigger(from: RawAddr) -> Self {
        Eager { rma_iov: Iovs::NONE, receipt: None, opts: Opts::raw_addr(from) }
    }

    /// Writes the headers to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    // HOT
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let flags = self.opts.flags().bits();
        let rma_iov_count = (self.rma_iov.count() as u32).into();
        match self.receipt {
            None => {
                let base = Base::new(PktType::EAGER_RTW, flags);
                write(buf, &EagerHdr { base, rma_iov_count }, &self.rma_iov, &self.opts)
            }
            Some(send_id) => {
                let base = Base::new(PktType::DC_EAGER_RTW, flags);
                let hdr = DcEagerHdr { base, rma_iov_count, send_id: send_id.into(), pad: U32::ZERO };
                write(buf, &hdr, &self.rma_iov, &self.opts)
            }
        }
    }
}

/// LONGCTS_RTW or DC_LONGCTS_RTW: the first packet of a write under flow control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongCts {
    /// Where to write; the lengths add up to `msg_length`.
    pub rma_iov: Iovs,
    /// Plain or DC.
    pub delivery: Delivery,
    /// Bytes of the whole write.
    pub msg_length: u64,
    /// The sender's id of the operation, to come back in CTS (and RECEIPT).
    pub send_id: u32,
    /// Packets the sender would like to be granted.
    pub credit_request: u32,
    /// Optional headers.
    pub opts: Opts,
}

impl LongCts {
    /// Writes the headers to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let ty = match self.delivery {
            Delivery::Plain => PktType::LONGCTS_RTW,
            Delivery::Complete => PktType::DC_LONGCTS_RTW,
        };
        let hdr = LongHdr {
            base: Base::new(ty, self.opts.flags().bits()),
            rma_iov_count: (self.rma_iov.count() as u32).into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            count: self.credit_request.into(),
        };
        write(buf, &hdr, &self.rma_iov, &self.opts)
    }
}

/// LONGREAD_RTW: the target reads what it is to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongRead {
    /// Where to write; the lengths add up to `msg_length`.
    pub rma_iov: Iovs,
    /// Bytes of the whole write.
    pub msg_length: u64,
    /// The sender's id of the operation, to come back in EOR or READ_NACK.
    pub send_id: u32,
    /// Where to read.
    pub read_iov: Iovs,
    /// Optional headers.
    pub opts: Opts,
}

impl LongRead {
    /// Writes the whole packet to `buf` and returns its length. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let hdr = LongHdr {
            base: Base::new(PktType::LONGREAD_RTW, self.opts.flags().bits()),
            rma_iov_count: (self.rma_iov.count() as u32).into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            count: (self.read_iov.count() as u32).into(),
        };
        let at = write(buf, &hdr, &self.rma_iov, &self.opts);
        self.read_iov.write(buf, at)
    }
}

/// A parsed request to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtw<'a> {
    /// Packet type, an RTW in use.
    pub ty: PktType,
    /// All flags, unknown ones too.
    pub flags: ReqFlags,
    /// Where to write. Not validated.
    pub rma_iov: Iovs,
    /// Id that the RECEIPT must carry: the DC types.
    pub receipt: Option<u32>,
    /// Optional headers.
    pub opts: Opts,
    /// Fields of the protocol.
    pub body: RtwBody,
    /// Application bytes, still in packet memory.
    pub payload: &'a [u8],
}

impl Rtw<'_> {
    /// Whether it is a handshake trigger (no iov), which is accepted silently.
    #[inline]
    pub fn is_trigger(&self) -> bool {
        self.body == RtwBody::Eager && self.rma_iov.count() == 0
    }

    /// Whether it is the write by which our engine asks for the acknowledgement of earlier ones: it writes no
    /// byte at address 0 of key 0.
    pub fn is_flush(&self) -> bool {
        self.body == RtwBody::Eager
            && self.receipt.is_some()
            && self.rma_iov.as_slice() == [RmaIov::default()]
    }
}

/// The parts of an RTW that depend on the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtwBody {
    /// EAGER_RTW, DC_EAGER_RTW: the payload is as long as the rma iovs together.
    Eager,
    /// LONGCTS_RTW, DC_LONGCTS_RTW: `msg_length` is the rma iovs' sum, the payload not longer.
    LongCts {
        /// Bytes of the whole write.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// Packets the sender asks for.
        credit_request: u32,
    },
    /// LONGREAD_RTW: `msg_length` is the rma iovs' sum.
    LongRead {
        /// Bytes of the whole write.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// Where to read; its lengths need not add up to `msg_length`.
        read_iov: Iovs,
    },
}
