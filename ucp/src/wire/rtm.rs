//! RTM packets: two-sided messages, tagged and untagged, with and without delivery complete.
//!
//! The protocols call the builders to write into a buffer of the wire; the parser returns [`Rtm`].
//! [`RtmHeader`] is what the builders have in common.

pub(super) mod hdr;
pub(super) mod read;
mod short;

use super::base::{Base, PktType, ReqFlags};
use super::iov::Iovs;
use super::opt::Opts;
use super::reader::put;
pub use short::Short;

use hdr::{DcEagerHdr, DcMediumHdr, EagerHdr, LongCtsHdr, LongReadHdr, MediumHdr, RuntHdr};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

/// Completion semantics of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delivery {
    /// Plain packet types.
    #[default]
    Plain,
    /// Delivery complete: a RECEIPT follows (DC packet types).
    Complete,
}

/// Why a LONGCTS_RTM is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Cause {
    /// A new message.
    #[default]
    Fresh,
    /// The answer to a READ_NACK: same ids, no payload, flag 0x2000.
    ReadNack,
}

/// The headers of an RTM, to be written before its payload.
pub trait RtmHeader: Copy {
    /// Packet type of the untagged form; the tagged one follows it.
    fn untagged(&self) -> PktType;
    /// The tag, if the message has one.
    fn tag(&self) -> Option<u64>;
    /// Writes the headers to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    fn write(&self, buf: &mut [u8]) -> usize;

    /// Packet type.
    #[inline(always)]
    fn ty(&self) -> PktType {
        PktType(self.untagged().0 + self.tag().is_some() as u8)
    }
}

macro_rules! rtm_header {
    ($($Hdr:ty: |$hdr:ident| $untagged:expr;)+) => {$(
        impl RtmHeader for $Hdr {
            #[inline(always)]
            fn untagged(&self) -> PktType {
                let $hdr = self;
                $untagged
            }
            #[inline(always)]
            fn tag(&self) -> Option<u64> {
                self.tag
            }
            #[inline(always)]
            fn write(&self, buf: &mut [u8]) -> usize {
                <$Hdr>::write(self, buf)
            }
        }
    )+};
}

rtm_header! {
    Eager: |hdr| if hdr.receipt.is_some() { PktType::DC_EAGER_MSGRTM } else { PktType::EAGER_MSGRTM };
    Medium: |hdr| if hdr.receipt.is_some() { PktType::DC_MEDIUM_MSGRTM } else { PktType::MEDIUM_MSGRTM };
    LongCts: |hdr| match hdr.delivery {
        Delivery::Plain => PktType::LONGCTS_MSGRTM,
        Delivery::Complete => PktType::DC_LONGCTS_MSGRTM,
    };
    LongRead: |_hdr| PktType::LONGREAD_MSGRTM;
    RuntRead: |_hdr| PktType::RUNTREAD_MSGRTM;
}

/// Flags and type of an RTM.
// [M1.7]
#[inline(always)]
fn base<H: RtmHeader>(hdr: &H, opts: &Opts) -> Base {
    let tagged = if hdr.tag().is_some() { ReqFlags::TAGGED } else { ReqFlags::empty() };
    let flags = ReqFlags::MSG.union(tagged).union(opts.flags());
    Base::new(hdr.ty(), flags.bits())
}

/// Writes header, tag and options; returns the offset behind them.
#[inline(always)]
fn write<H: IntoBytes + Immutable>(buf: &mut [u8], hdr: &H, tag: Option<u64>, opts: &Opts) -> usize {
    let mut at = put(buf, 0, hdr);
    if let Some(tag) = tag {
        at = put(buf, at, &U64::new(tag));
    }
    opts.write(buf, at)
}

/// EAGER or DC_EAGER: the message in one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Eager {
    /// Sequence number of the message.
    pub msg_id: u32,
    /// Tag, if the message has one.
    pub tag: Option<u64>,
    /// Sender's id for the RECEIPT; selects the DC packet type.
    pub receipt: Option<u32>,
    /// Optional headers.
    pub opts: Opts,
}

impl Eager {
    /// Writes the headers to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    // HOT
    #[inline(always)]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (base, msg_id) = (base(self, &self.opts), self.msg_id.into());
        match self.receipt {
            None => write(buf, &EagerHdr { base, msg_id }, self.tag, &self.opts),
            Some(send_id) => {
                let hdr = DcEagerHdr { base, msg_id, send_id: send_id.into(), pad: U32::ZERO };
                write(buf, &hdr, self.tag, &self.opts)
            }
        }
    }
}

/// The end of a conversation: a DC_EAGER_MSGRTM with [`ReqFlags::CLOSE`], which has its place in the order of
/// messages. Only for peers that announced [`super::Features::CLOSE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Close {
    /// Sequence number among the messages.
    pub msg_id: u32,
    /// Why the sender ended it: libfabric's code, as in a PEER_ERROR.
    pub code: u32,
    /// The first message of the receiver that the sender did not take.
    pub taken: u32,
    /// Optional headers.
    pub opts: Opts,
}

impl Close {
    /// The id that the RECEIPT carries: it names no operation.
    pub const ID: u32 = 0;

    /// Bytes behind the headers.
    pub const BODY: usize = 8;

    /// Bytes of the packet.
    pub fn wire_len(&self) -> usize {
        size_of::<DcEagerHdr>() + self.opts.wire_len() + Close::BODY
    }

    /// Writes the packet to `buf` and returns its length. Panics if `buf` is too short.
    // [M11.15]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let hdr = Eager { msg_id: self.msg_id, tag: None, receipt: Some(Close::ID), opts: self.opts };
        let mut base = base(&hdr, &hdr.opts);
        base.flags |= U16::new(ReqFlags::CLOSE.bits());
        let (msg_id, send_id) = (self.msg_id.into(), Close::ID.into());
        let at = write(buf, &DcEagerHdr { base, msg_id, send_id, pad: U32::ZERO }, None, &self.opts);
        let at = put(buf, at, &U32::new(self.code));
        put(buf, at, &U32::new(self.taken))
    }
}

/// MEDIUM or DC_MEDIUM: one packet of a message in several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Medium {
    /// Sequence number of the message, equal in all its packets.
    pub msg_id: u32,
    /// Tag, if the message has one.
    pub tag: Option<u64>,
    /// Sender's id for the RECEIPT; selects the DC packet type.
    pub receipt: Option<u32>,
    /// Bytes of the whole message.
    pub msg_length: u64,
    /// Offset of this packet's bytes in the message.
    pub seg_offset: u64,
    /// Optional headers.
    pub opts: Opts,
}

impl Medium {
    /// Writes the headers to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    // HOT
    #[inline(always)]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (base, msg_id) = (base(self, &self.opts), self.msg_id.into());
        let (msg_length, seg_offset) = (self.msg_length.into(), self.seg_offset.into());
        match self.receipt {
            None => write(buf, &MediumHdr { base, msg_id, msg_length, seg_offset }, self.tag, &self.opts),
            Some(send_id) => {
                let send_id = send_id.into();
                let hdr = DcMediumHdr { base, msg_id, send_id, pad: U32::ZERO, msg_length, seg_offset };
                write(buf, &hdr, self.tag, &self.opts)
            }
        }
    }
}

/// LONGCTS or DC_LONGCTS: the first packet of a message under flow control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongCts {
    /// Sequence number of the message.
    pub msg_id: u32,
    /// Tag, if the message has one.
    pub tag: Option<u64>,
    /// Plain or DC.
    pub delivery: Delivery,
    /// Bytes of the whole message.
    pub msg_length: u64,
    /// The sender's id of the operation, to come back in CTS (and RECEIPT).
    pub send_id: u32,
    /// Packets the sender would like to be granted; newer receivers ignore it.
    pub credit_request: u32,
    /// Fresh, or instead of a read.
    pub cause: Cause,
    /// Optional headers.
    pub opts: Opts,
}

impl LongCts {
    /// Writes the headers to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let mut base = base(self, &self.opts);
        if self.cause == Cause::ReadNack {
            base.flags |= U16::new(ReqFlags::READ_NACK.bits());
        }
        let hdr = LongCtsHdr {
            base,
            msg_id: self.msg_id.into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            credit_request: self.credit_request.into(),
        };
        write(buf, &hdr, self.tag, &self.opts)
    }
}

/// LONGREAD: the receiver reads the whole message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongRead {
    /// Sequence number of the message.
    pub msg_id: u32,
    /// Tag, if the message has one.
    pub tag: Option<u64>,
    /// Bytes of the whole message.
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
        let hdr = LongReadHdr {
            base: base(self, &self.opts),
            msg_id: self.msg_id.into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            read_iov_count: (self.read_iov.count() as u32).into(),
        };
        let at = write(buf, &hdr, self.tag, &self.opts);
        self.read_iov.write(buf, at)
    }
}

/// RUNTREAD: one packet of the head of a message whose tail the receiver reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuntRead {
    /// Sequence number of the message, equal in all its packets.
    pub msg_id: u32,
    /// Tag, if the message has one.
    pub tag: Option<u64>,
    /// Bytes of the whole message.
    pub msg_length: u64,
    /// The sender's id of the operation, to come back in EOR or READ_NACK.
    pub send_id: u32,
    /// Offset of this packet's bytes in the message.
    pub seg_offset: u64,
    /// Bytes that travel in all RUNTREAD packets of the message.
    pub runt_length: u64,
    /// Where to read: the whole message, in every packet of it.
    pub read_iov: Iovs,
    /// Optional headers.
    pub opts: Opts,
}

impl RuntRead {
    /// Writes headers and read iovs to `buf`; returns the offset of the payload. Panics if `buf` is too
    /// short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let hdr = RuntHdr {
            base: base(self, &self.opts),
            msg_id: self.msg_id.into(),
            msg_length: self.msg_length.into(),
            send_id: self.send_id.into(),
            count: (self.read_iov.count() as u32).into(),
            seg_offset: self.seg_offset.into(),
            runt_length: self.runt_length.into(),
        };
        let at = write(buf, &hdr, self.tag, &self.opts);
        self.read_iov.write(buf, at)
    }
}

/// A parsed request to message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rtm<'a> {
    /// Packet type, an RTM in use.
    pub ty: PktType,
    /// All flags, unknown ones too.
    pub flags: ReqFlags,
    /// Sequence number of the message.
    pub msg_id: u32,
    /// The tag, if the type is tagged.
    pub tag: Option<u64>,
    /// Id that the RECEIPT must carry: the DC types.
    pub receipt: Option<u32>,
    /// Optional headers.
    pub opts: Opts,
    /// Fields of the protocol.
    pub body: RtmBody,
    /// Application bytes, still in packet memory.
    pub payload: &'a [u8],
}

impl Rtm<'_> {
    /// Returns what the message says, if it ends a conversation: code, and first message not taken.
    pub fn close(&self) -> Option<(u32, u32)> {
        let [a, b, c, d, e, f, g, h] = *self.payload else { return None };
        let ends = self.ty == PktType::DC_EAGER_MSGRTM && self.flags.contains(ReqFlags::CLOSE);
        ends.then_some((u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])))
    }

    /// Bytes of the whole message.
    #[inline]
    pub fn msg_length(&self) -> u64 {
        match self.body {
            RtmBody::Eager => self.payload.len() as u64,
            RtmBody::Medium { msg_length, .. }
            | RtmBody::LongCts { msg_length, .. }
            | RtmBody::LongRead { msg_length, .. }
            | RtmBody::RuntRead { msg_length, .. } => msg_length,
        }
    }
}

/// The parts of an RTM that depend on the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtmBody {
    /// EAGER, DC_EAGER.
    Eager,
    /// MEDIUM, DC_MEDIUM: `seg_offset + payload.len() <= msg_length` holds.
    Medium {
        /// Bytes of the whole message.
        msg_length: u64,
        /// Offset of the payload in it.
        seg_offset: u64,
    },
    /// LONGCTS, DC_LONGCTS: the payload is the start of the message and not longer than it.
    LongCts {
        /// Bytes of the whole message.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// Packets the sender asks for.
        credit_request: u32,
        /// Fresh, or the answer to our READ_NACK.
        cause: Cause,
    },
    /// LONGREAD.
    LongRead {
        /// Bytes of the whole message.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// Where to read; its lengths need not add up to `msg_length`.
        read_iov: Iovs,
    },
    /// RUNTREAD: `seg_offset + payload.len() <= runt_length <= msg_length` holds.
    RuntRead {
        /// Bytes of the whole message.
        msg_length: u64,
        /// The sender's id.
        send_id: u32,
        /// Offset of the payload in the message.
        seg_offset: u64,
        /// Bytes that travel in packets.
        runt_length: u64,
        /// Where to read; its lengths need not add up to `msg_length`.
        read_iov: Iovs,
    },
}
