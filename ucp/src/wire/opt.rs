//! Optional headers of REQ packets: raw address, cq data, connid, in this order.

use super::base::{MsgClass, ReqFlags};
use super::error::{ParseError, Section};
use super::rawaddr::{RawAddr, RawAddrBytes};
use super::reader::{Reader, put};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `addr_len` as written: libfabric since 1.13 sends 4 bytes more than the address has, and an endpoint with
/// a constant header length counts on them.
pub const RAW_ADDR_EMIT: usize = 36;

/// The head of a raw address header: at least 32 bytes of address follow the length.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAddrHdr {
    addr_len: U32,
    addr: RawAddrBytes,
}

const _: () = assert!(size_of::<RawAddrHdr>() == 36 && align_of::<RawAddrHdr>() == 1);
const _: () = assert!(std::mem::offset_of!(RawAddrHdr, addr_len) == 0);
const _: () = assert!(std::mem::offset_of!(RawAddrHdr, addr) == 4);

/// The optional headers of a REQ packet, to write or as read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opts {
    /// Sender's address: until the peer's HANDSHAKE came, or forever if it asks for constant header length.
    pub raw_addr: Option<RawAddr>,
    /// Completion data of the application.
    pub cq_data: Option<u64>,
    /// Connection id of the sender. Written only without `raw_addr`, which contains it; accepted with both.
    pub connid: Option<u32>,
    /// Message class of an RTM: two flags, no header.
    pub class: MsgClass,
}

impl Opts {
    /// No optional header.
    pub const NONE: Opts = Opts { raw_addr: None, cq_data: None, connid: None, class: MsgClass::Message };

    /// Only a raw address.
    #[inline]
    pub const fn raw_addr(addr: RawAddr) -> Self {
        Opts { raw_addr: Some(addr), ..Opts::NONE }
    }

    /// Only a connid.
    #[inline]
    pub const fn connid(connid: u32) -> Self {
        Opts { connid: Some(connid), ..Opts::NONE }
    }

    /// Adds completion data.
    #[inline]
    pub const fn with_cq_data(self, cq_data: u64) -> Self {
        Opts { cq_data: Some(cq_data), ..self }
    }

    /// Sets the message class.
    #[inline(always)]
    pub const fn of_class(self, class: MsgClass) -> Self {
        Opts { class, ..self }
    }

    /// Bytes on the wire.
    #[inline]
    pub const fn wire_len(&self) -> usize {
        let mut len = 0;
        if self.raw_addr.is_some() {
            len += 4 + RAW_ADDR_EMIT;
        }
        if self.cq_data.is_some() {
            len += 8;
        }
        if self.connid.is_some() {
            len += 4;
        }
        len
    }

    /// The connid by which the sender names itself, in whichever header.
    #[inline]
    pub fn sender_connid(&self) -> Option<u32> {
        self.connid.or(self.raw_addr.map(|addr| addr.connid))
    }

    /// The flags that announce these headers.
    #[inline(always)]
    pub fn flags(&self) -> ReqFlags {
        let mut flags = self.class.flags();
        flags.set(ReqFlags::RAW_ADDR, self.raw_addr.is_some());
        flags.set(ReqFlags::CQ_DATA, self.cq_data.is_some());
        flags.set(ReqFlags::CONNID, self.connid.is_some());
        flags
    }

    /// Writes the headers at `buf[at..]`; returns the offset behind them.
    // [M1.10]
    #[inline(always)]
    pub(super) fn write(&self, buf: &mut [u8], mut at: usize) -> usize {
        if let Some(addr) = self.raw_addr {
            let hdr = RawAddrHdr { addr_len: U32::new(RAW_ADDR_EMIT as u32), addr: addr.into() };
            at = put(buf, at, &hdr);
            at = put(buf, at, &[0u8; RAW_ADDR_EMIT - RawAddr::LEN]);
        }
        if let Some(cq_data) = self.cq_data {
            at = put(buf, at, &U64::new(cq_data));
        }
        if let Some(connid) = self.connid {
            at = put(buf, at, &U32::new(connid));
        }
        at
    }

    /// Reads the headers the flags announce.
    // [M1.8]
    #[inline]
    pub(super) fn read(from: &mut Reader<'_>, flags: ReqFlags) -> Result<Self, ParseError> {
        let mut opts = Opts::NONE.of_class(MsgClass::of(flags));
        if flags.contains(ReqFlags::RAW_ADDR) {
            opts.raw_addr = Some(read_raw_addr(from)?);
        }
        if flags.contains(ReqFlags::CQ_DATA) {
            opts.cq_data = Some(from.take::<U64>(Section::CqData)?.get());
        }
        if flags.contains(ReqFlags::CONNID) {
            opts.connid = Some(from.take::<U32>(Section::Connid)?.get());
        }
        Ok(opts)
    }
}

// [M1.9]
fn read_raw_addr(from: &mut Reader<'_>) -> Result<RawAddr, ParseError> {
    let hdr: RawAddrHdr = from.take(Section::RawAddr)?;
    let len = hdr.addr_len.get();
    let Some(tail) = len.checked_sub(RawAddr::LEN as u32) else { return Err(ParseError::AddrLen(len)) };
    from.bytes(u64::from(tail), Section::RawAddr)?;
    Ok(hdr.addr.into())
}
