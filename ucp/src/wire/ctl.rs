//! Control packets: CTS, CTSDATA, READRSP, EOR, ATOMRSP, RECEIPT, READ_NACK, PEER_ERROR.
//!
//! Ids in a received packet are not validated: the engine looks them up with owner and state.

use super::base::{Base, CtlFlags, PktType, VERSION};
use super::error::{ParseError, Section};
use super::layout::layout;
use super::reader::{Reader, put, read_prefix};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CtsHdr {
    base: Base,
    connid: U32,
    send_id: U32,
    recv_id: U32,
    recv_length: U64,
}

layout! {
    pub(super) const CTS: CtsHdr = 24 {
        connid: 4 @ 4, Hex, "which life of the queue pair sends, if flagged";
        send_id: 4 @ 8, Dec, "id of the side that sends the data";
        recv_id: 4 @ 12, Dec, "id of the side that receives the data";
        recv_length: 8 @ 16, Dec, "bytes the window holds";
    }
}

/// CTSDATA without the trailing connid.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CtsDataHdr {
    base: Base,
    recv_id: U32,
    seg_length: U64,
    seg_offset: U64,
}

layout! {
    pub(super) const CTSDATA: CtsDataHdr = 24 {
        recv_id: 4 @ 4, Dec, "id of the side that receives the data";
        seg_length: 8 @ 8, Dec, "bytes in this packet";
        seg_offset: 8 @ 16, Dec, "their offset in the message";
    }
}

/// The optional header of CTSDATA, and the same in HANDSHAKE.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ConnidHdr {
    pub connid: U32,
    pub pad: U32,
}

const _: () = assert!(size_of::<ConnidHdr>() == 8 && std::mem::offset_of!(ConnidHdr, connid) == 0);

/// READRSP: recv_id comes before send_id.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReadRspHdr {
    base: Base,
    connid: U32,
    recv_id: U32,
    send_id: U32,
    seg_length: U64,
}

layout! {
    pub(super) const READRSP: ReadRspHdr = 24 {
        connid: 4 @ 4, Hex, "which life of the queue pair sends, if flagged";
        recv_id: 4 @ 8, Dec, "the requester's id";
        send_id: 4 @ 12, Dec, "the responder's id, for CTS";
        seg_length: 8 @ 16, Dec, "bytes in this packet";
    }
}

/// EOR without the word that 1.10-1.13 do not send.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EorShortHdr {
    base: Base,
    send_id: U32,
    recv_id: U32,
}

const _: () = assert!(size_of::<EorShortHdr>() == 12 && std::mem::offset_of!(EorShortHdr, recv_id) == 8);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EorHdr {
    base: Base,
    send_id: U32,
    recv_id: U32,
    connid: U32,
}

layout! {
    pub(super) const EOR: EorHdr = 16 {
        send_id: 4 @ 4, Dec, "id of the side whose memory was read";
        recv_id: 4 @ 8, Dec, "id of the side that has read";
        connid: 4 @ 12, Hex, "which life of the queue pair sends, if flagged; absent from 1.10-1.13";
    }
}

layout! {
    pub(super) const READ_NACK: EorHdr = 16 {
        send_id: 4 @ 4, Dec, "id of the side whose memory was to be read";
        recv_id: 4 @ 8, Dec, "id of the side that cannot read";
        connid: 4 @ 12, Hex, "which life of the queue pair sends, if flagged";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AtomRspHdr {
    base: Base,
    connid: U32,
    reserved: U32,
    recv_id: U32,
    seg_length: U64,
}

layout! {
    pub(super) const ATOMRSP: AtomRspHdr = 24 {
        connid: 4 @ 4, Hex, "which life of the queue pair sends, if flagged";
        reserved: 4 @ 8, Pad, "reserved; the responder's id from 1.10-1.13";
        recv_id: 4 @ 12, Dec, "the requester's id";
        seg_length: 8 @ 16, Dec, "bytes of old values";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReceiptHdr {
    base: Base,
    send_id: U32,
    msg_id: U32,
    connid: U32,
}

layout! {
    pub(super) const RECEIPT: ReceiptHdr = 16 {
        send_id: 4 @ 4, Dec, "id given in the DC packet";
        msg_id: 4 @ 8, Dec, "msg_id of the DC packet; meaningless for RTW";
        connid: 4 @ 12, Hex, "which life of the queue pair sends, if flagged";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PeerErrorHdr {
    base: Base,
    op_id: U32,
    ref_kind: U32,
    prov_errno: U32,
    connid: U32,
}

layout! {
    pub(super) const PEER_ERROR: PeerErrorHdr = 20 {
        op_id: 4 @ 4, Dec, "what failed: see ref_kind";
        ref_kind: 4 @ 8, Dec, "op_id is 0: an operation id, 1: a msg_id, 2: a msg_id to be skipped";
        prov_errno: 4 @ 12, Dec, "the sender's error code";
        connid: 4 @ 16, Hex, "which life of the queue pair sends, if flagged";
    }
}

/// Flags and multi-use word of a packet that always has room for a connid.
#[inline]
fn base(ty: PktType, connid: Option<u32>) -> (Base, U32) {
    flagged(ty, CtlFlags::empty(), connid)
}

fn flagged(ty: PktType, flags: CtlFlags, connid: Option<u32>) -> (Base, U32) {
    let flags = if connid.is_some() { flags | CtlFlags::CONNID } else { flags };
    (Base::new(ty, flags.bits()), connid.unwrap_or(0).into())
}

/// Whether a packet is of this type, and of the version there is.
#[inline(always)]
fn is(base: Base, ty: PktType) -> bool {
    base.ty == ty.0 && base.version == VERSION
}

/// The multi-use word is a connid only if the flag says so.
#[inline]
fn connid(base: Base, word: U32) -> Option<u32> {
    has_connid(base).then_some(word.get())
}

#[inline]
fn has_connid(base: Base) -> bool {
    CtlFlags::from_bits_retain(base.flags.get()).contains(CtlFlags::CONNID)
}

/// Kind of transfer a CTS belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CtsFor {
    /// A message or a write.
    #[default]
    Send,
    /// An emulated read: flag 0x80, which selects the id table in 1.10-1.14 peers.
    Read,
}

/// Clear to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cts {
    /// Message and write, or read.
    pub of: CtsFor,
    /// Id of the side that sends the data.
    pub send_id: u32,
    /// Id of the side that receives the data, to be put into CTSDATA.
    pub recv_id: u32,
    /// Bytes granted behind those already granted.
    pub recv_length: u64,
    /// Connection id of the sender, if known.
    pub connid: Option<u32>,
}

impl Cts {
    /// Bytes of the packet.
    pub const LEN: usize = size_of::<CtsHdr>();

    /// Writes the packet to `buf` and returns its length. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (mut base, connid) = base(PktType::CTS, self.connid);
        if self.of == CtsFor::Read {
            base.flags |= zerocopy::little_endian::U16::new(CtlFlags::READ.bits());
        }
        let (send_id, recv_id) = (self.send_id.into(), self.recv_id.into());
        put(buf, 0, &CtsHdr { base, connid, send_id, recv_id, recv_length: self.recv_length.into() })
    }

    pub(super) fn parse(packet: &[u8], base: Base) -> Result<Self, ParseError> {
        let hdr: CtsHdr = Reader::new(packet).take(Section::Header)?;
        let read = CtlFlags::from_bits_retain(base.flags.get()).contains(CtlFlags::READ);
        Ok(Cts {
            of: if read { CtsFor::Read } else { CtsFor::Send },
            send_id: hdr.send_id.get(),
            recv_id: hdr.recv_id.get(),
            recv_length: hdr.recv_length.get(),
            connid: connid(base, hdr.connid),
        })
    }
}

/// The header of data within a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CtsData {
    /// The receiver's id, from its CTS.
    pub recv_id: u32,
    /// Bytes in this packet.
    pub seg_length: u64,
    /// Their offset in the message. `seg_offset + seg_length` of a parsed one does not overflow.
    pub seg_offset: u64,
    /// Our connid, only if the peer asks for it: it lengthens the header by 8 bytes.
    pub connid: Option<u32>,
}

impl CtsData {
    /// Bytes of the header with or without a connid.
    #[inline]
    pub const fn header_len(connid: Option<u32>) -> usize {
        size_of::<CtsDataHdr>() + if connid.is_some() { size_of::<ConnidHdr>() } else { 0 }
    }

    /// Writes the header to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    // HOT
    #[inline]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (base, connid) = base(PktType::CTSDATA, self.connid);
        let (seg_length, seg_offset) = (self.seg_length.into(), self.seg_offset.into());
        let mut at = put(buf, 0, &CtsDataHdr { base, recv_id: self.recv_id.into(), seg_length, seg_offset });
        if self.connid.is_some() {
            at = put(buf, at, &ConnidHdr { connid, pad: U32::ZERO });
        }
        at
    }

    // HOT
    #[inline]
    pub(super) fn parse(packet: &[u8], base: Base) -> Result<(Self, &[u8]), ParseError> {
        let mut from = Reader::new(packet);
        let hdr: CtsDataHdr = from.take(Section::Header)?;
        let connid = match has_connid(base) {
            true => Some(from.take::<ConnidHdr>(Section::Connid)?.connid.get()),
            false => None,
        };
        let (seg_length, seg_offset) = (hdr.seg_length.get(), hdr.seg_offset.get());
        let payload = segment(from, seg_length)?;
        if seg_offset.checked_add(seg_length).is_none() {
            return Err(ParseError::Range { offset: seg_offset, len: seg_length, total: u64::MAX });
        }
        Ok((CtsData { recv_id: hdr.recv_id.get(), seg_length, seg_offset, connid }, payload))
    }
}

/// The claimed bytes of what is left; more than those are ignored.
// [M1.5]
#[inline]
fn segment<'a>(mut from: Reader<'a>, seg_length: u64) -> Result<&'a [u8], ParseError> {
    let have = from.left();
    from.bytes(seg_length, Section::Payload).map_err(|_| ParseError::Length { claimed: seg_length, have })
}

/// The header of the first, or only, data of an emulated read: offset 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadRsp {
    /// The requester's id.
    pub recv_id: u32,
    /// The responder's id, to be put into CTS.
    pub send_id: u32,
    /// Bytes in this packet.
    pub seg_length: u64,
    /// Connection id of the sender, if known.
    pub connid: Option<u32>,
}

impl ReadRsp {
    /// Bytes of the header.
    pub const LEN: usize = size_of::<ReadRspHdr>();

    /// Writes the header to `buf` and returns the offset of the payload. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (base, connid) = base(PktType::READRSP, self.connid);
        let (recv_id, send_id) = (self.recv_id.into(), self.send_id.into());
        put(buf, 0, &ReadRspHdr { base, connid, recv_id, send_id, seg_length: self.seg_length.into() })
    }

    pub(super) fn parse(packet: &[u8], base: Base) -> Result<(Self, &[u8]), ParseError> {
        let mut from = Reader::new(packet);
        let hdr: ReadRspHdr = from.take(Section::Header)?;
        let seg_length = hdr.seg_length.get();
        let payload = segment(from, seg_length)?;
        let (recv_id, send_id) = (hdr.recv_id.get(), hdr.send_id.get());
        Ok((ReadRsp { recv_id, send_id, seg_length, connid: connid(base, hdr.connid) }, payload))
    }
}

/// End of read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Eor {
    /// Id of the side whose memory was read.
    pub send_id: u32,
    /// Id of the side that has read; for information.
    pub recv_id: u32,
    /// Connection id of the sender, if known.
    pub connid: Option<u32>,
}

impl Eor {
    /// Bytes of the packet as we send it.
    pub const LEN: usize = size_of::<EorHdr>();

    /// Writes the packet to `buf` and returns its length. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (base, connid) = base(PktType::EOR, self.connid);
        put(buf, 0, &EorHdr { base, send_id: self.send_id.into(), recv_id: self.recv_id.into(), connid })
    }

    /// 12 bytes are enough, unless a connid is announced.
    pub(super) fn parse(packet: &[u8], base: Base) -> Result<Self, ParseError> {
        let mut from = Reader::new(packet);
        let hdr: EorShortHdr = from.take(Section::Header)?;
        let connid = match has_connid(base) {
            true => Some(from.take::<U32>(Section::Connid)?.get()),
            false => None,
        };
        Ok(Eor { send_id: hdr.send_id.get(), recv_id: hdr.recv_id.get(), connid })
    }
}

/// The header of an atomic's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomRsp {
    /// The requester's id.
    pub recv_id: u32,
    /// Bytes of old values.
    pub seg_length: u64,
    /// Connection id of the sender, if known.
    pub connid: Option<u32>,
}

impl AtomRsp {
    /// Bytes of the header.
    pub const LEN: usize = size_of::<AtomRspHdr>();

    /// Writes the header to `buf` and returns the offset of the old values. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (base, connid) = base(PktType::ATOMRSP, self.connid);
        let (recv_id, seg_length) = (self.recv_id.into(), self.seg_length.into());
        put(buf, 0, &AtomRspHdr { base, connid, reserved: U32::ZERO, recv_id, seg_length })
    }

    /// Header and old values, if it is a sound packet of this type.
    // HOT
    #[inline]
    pub fn read(packet: &[u8]) -> Option<(AtomRsp, &[u8])> {
        let (hdr, payload) = read_prefix::<AtomRspHdr>(packet)?;
        let (base, seg_length) = (hdr.base, hdr.seg_length.get());
        let sound = is(base, PktType::ATOMRSP) && seg_length == payload.len() as u64;
        let rsp = AtomRsp { recv_id: hdr.recv_id.get(), seg_length, connid: connid(base, hdr.connid) };
        sound.then_some((rsp, payload))
    }

    pub(super) fn parse(packet: &[u8], base: Base) -> Result<(Self, &[u8]), ParseError> {
        let mut from = Reader::new(packet);
        let hdr: AtomRspHdr = from.take(Section::Header)?;
        let seg_length = hdr.seg_length.get();
        let payload = segment(from, seg_length)?;
        Ok((AtomRsp { recv_id: hdr.recv_id.get(), seg_length, connid: connid(base, hdr.connid) }, payload))
    }
}

/// Delivery complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Receipt {
    /// The id from the DC packet; the only field that counts.
    pub send_id: u32,
    /// The DC packet's msg_id, 0 for RTW.
    pub msg_id: u32,
    /// Connection id of the sender, if known.
    pub connid: Option<u32>,
}

impl Receipt {
    /// Bytes of the packet.
    pub const LEN: usize = size_of::<ReceiptHdr>();

    /// Writes the packet to `buf` and returns its length. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (base, connid) = base(PktType::RECEIPT, self.connid);
        put(buf, 0, &ReceiptHdr { base, send_id: self.send_id.into(), msg_id: self.msg_id.into(), connid })
    }

    /// The packet, if it is one of this type.
    // HOT
    #[inline]
    pub fn read(packet: &[u8]) -> Option<Receipt> {
        let (hdr, _) = read_prefix::<ReceiptHdr>(packet)?;
        let connid = connid(hdr.base, hdr.connid);
        let receipt = Receipt { send_id: hdr.send_id.get(), msg_id: hdr.msg_id.get(), connid };
        is(hdr.base, PktType::RECEIPT).then_some(receipt)
    }

    pub(super) fn parse(packet: &[u8], base: Base) -> Result<Self, ParseError> {
        let hdr: ReceiptHdr = Reader::new(packet).take(Section::Header)?;
        let connid = connid(base, hdr.connid);
        Ok(Receipt { send_id: hdr.send_id.get(), msg_id: hdr.msg_id.get(), connid })
    }
}

/// The receiver cannot read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadNack {
    /// Id of the side whose memory was to be read.
    pub send_id: u32,
    /// Id of the side that cannot read.
    pub recv_id: u32,
    /// The receiver can read but prefers packets for this message: an extension of ours, between processes of
    /// a host.
    pub not_now: bool,
    /// Connection id of the sender, if known.
    pub connid: Option<u32>,
}

impl ReadNack {
    /// Bytes of the packet.
    pub const LEN: usize = size_of::<EorHdr>();

    /// Writes the packet to `buf` and returns its length. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let flags = if self.not_now { CtlFlags::NOT_NOW } else { CtlFlags::empty() };
        let (base, connid) = flagged(PktType::READ_NACK, flags, self.connid);
        put(buf, 0, &EorHdr { base, send_id: self.send_id.into(), recv_id: self.recv_id.into(), connid })
    }

    pub(super) fn parse(packet: &[u8], base: Base) -> Result<Self, ParseError> {
        let hdr: EorHdr = Reader::new(packet).take(Section::Header)?;
        let connid = connid(base, hdr.connid);
        let not_now = CtlFlags::from_bits_retain(base.flags.get()).contains(CtlFlags::NOT_NOW);
        let (send_id, recv_id) = (hdr.send_id.get(), hdr.recv_id.get());
        Ok(ReadNack { send_id, recv_id, not_now, connid })
    }
}

/// Subject of a PEER_ERROR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorRef {
    /// The receiver's own operation id.
    Op(u32),
    /// The message of this msg_id, of which something has arrived.
    Msg(u32),
    /// The msg_id of a message that will not come: step over it.
    Skip(u32),
}

/// The other side of an operation failed. Only for peers that announced [`super::Features::PEER_ERROR`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerError {
    /// The operation or message that failed.
    pub what: ErrorRef,
    /// The sender's error code.
    pub prov_errno: u32,
    /// Connection id of the sender, if known.
    pub connid: Option<u32>,
}

impl PeerError {
    /// Bytes of the packet.
    pub const LEN: usize = size_of::<PeerErrorHdr>();

    /// Writes the packet to `buf` and returns its length. Panics if `buf` is too short.
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let (base, connid) = base(PktType::PEER_ERROR, self.connid);
        let (ref_kind, op_id) = match self.what {
            ErrorRef::Op(id) => (0, id),
            ErrorRef::Msg(id) => (1, id),
            ErrorRef::Skip(id) => (2, id),
        };
        let (op_id, ref_kind, prov_errno) = (U32::new(op_id), U32::new(ref_kind), self.prov_errno.into());
        put(buf, 0, &PeerErrorHdr { base, op_id, ref_kind, prov_errno, connid })
    }

    pub(super) fn parse(packet: &[u8], base: Base) -> Result<Self, ParseError> {
        let hdr: PeerErrorHdr = Reader::new(packet).take(Section::Header)?;
        let id = hdr.op_id.get();
        let what = match hdr.ref_kind.get() {
            0 => ErrorRef::Op(id),
            1 => ErrorRef::Msg(id),
            2 => ErrorRef::Skip(id),
            other => return Err(ParseError::RefKind(other)),
        };
        Ok(PeerError { what, prov_errno: hdr.prov_errno.get(), connid: connid(base, hdr.connid) })
    }
}
