//! HANDSHAKE packet: features, requests and identity of a peer.

use super::base::{Base, PktType};
use super::ctl::ConnidHdr;
use super::error::{ParseError, Section};
use super::layout::layout;
use super::reader::{Reader, put};
use bitflags::bitflags;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// 64-bit words of features kept and written: more overrun the peer's array.
pub const MAX_WORDS: usize = 4;

bitflags! {
    /// The first word of `extra_info`: what the sender can (features) and wants (requests). Unknown bits
    /// survive and mean nothing.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Features: u64 {
        /// Can read remote memory.
        const RDMA_READ = 1 << 0;
        /// Knows the DC packets.
        const DELIVERY_COMPLETE = 1 << 1;
        /// Wants the raw address header in every REQ packet, for ever.
        const CONST_HDR_LEN = 1 << 2;
        /// Wants a connid in REQ and CTSDATA packets.
        const CONNID = 1 << 3;
        /// Knows RUNTREAD.
        const RUNT_READ = 1 << 4;
        /// Can be written to directly.
        const RDMA_WRITE = 1 << 5;
        /// Knows READ_NACK.
        const READ_NACK = 1 << 6;
        /// Wants untagged messages headerless on its user queue pair.
        const USER_RECV_QP = 1 << 7;
        /// Takes a write with immediate without a posted receive.
        const UNSOLICITED_WRITE_RECV = 1 << 8;
        /// Knows PEER_ERROR.
        const PEER_ERROR = 1 << 9;
        /// Ends conversations by a message, and begins others. Ours as the next ones.
        const CLOSE = 1 << 61;
        /// Has several lanes and reads over them. Ours, too.
        const RAILS = 1 << 62;
        /// Knows the message classes beyond the protocol (active messages, streams). Ours: libfabric ignores
        /// unknown bits, and counts its own from the low end.
        const CLASSES = 1 << 63;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of HANDSHAKE: which optional headers follow. Unknown bits survive.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct HandshakeFlags: u16 {
        /// Host id.
        const HOST_ID = 0x0001;
        /// Device version.
        const DEVICE_VERSION = 0x0002;
        /// User receive queue pair.
        const USER_RECV_QP = 0x0004;
        /// Whether device memory can be used peer to peer.
        const HMEM_P2P = 0x0008;
        /// Connid, the first of them.
        const CONNID = 0x8000;
        const _ = !0;
    }
}

/// The fixed part.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HandshakeHdr {
    base: Base,
    nextra_p3: U32,
}

layout! {
    pub(super) const FIELDS: HandshakeHdr = 8 {
        nextra_p3: 4 @ 4, Dec, "3 more than the 64-bit words of features that follow";
    }
}

/// Two words: device version and nothing, or queue pair and qkey.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PairHdr {
    first: U32,
    second: U32,
}

const _: () = assert!(size_of::<PairHdr>() == 8 && std::mem::offset_of!(PairHdr, second) == 4);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct P2pHdr {
    supported: u8,
    reserved: [u8; 7],
}

const _: () = assert!(size_of::<P2pHdr>() == 8 && std::mem::offset_of!(P2pHdr, reserved) == 1);

/// Where a peer wants untagged messages without headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserRecvQp {
    /// Queue pair number.
    pub qpn: u32,
    /// Qkey of the queue pair.
    pub qkey: u32,
}

/// A HANDSHAKE, to write or as read.
///
/// To every peer send one word, `connid` and `device_version`: libfabric since 1.20 reads the latter blindly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handshake {
    /// The words of `extra_info`; behind `nwords` zero.
    pub extra: [u64; MAX_WORDS],
    /// Words sent, 0 to 4. Of a peer that sends more, the first 4.
    pub nwords: u8,
    /// The sender's connid.
    pub connid: Option<u32>,
    /// The sender's host; for information.
    pub host_id: Option<u64>,
    /// Vendor part id of the sender's device, such as 0xEFA2.
    pub device_version: Option<u32>,
    /// Where untagged messages go headerless, in releases 1.22-2.5.
    pub user_recv_qp: Option<UserRecvQp>,
    /// Whether device memory can be used peer to peer.
    pub hmem_p2p: Option<bool>,
}

impl Handshake {
    /// Bytes the longest one that is ever written takes.
    pub const MAX_LEN: usize = 8 + 8 * MAX_WORDS + 5 * 8;

    /// HANDSHAKE that is sent to every peer.
    // [M3.2]
    pub const fn new(features: Features, connid: u32, device_version: u32) -> Self {
        Handshake {
            extra: [features.bits(), 0, 0, 0],
            nwords: 1,
            connid: Some(connid),
            host_id: None,
            device_version: Some(device_version),
            user_recv_qp: None,
            hmem_p2p: None,
        }
    }

    /// The first word.
    pub const fn features(&self) -> Features {
        Features::from_bits_retain(self.extra[0])
    }

    /// The flags that announce the optional headers.
    pub fn flags(&self) -> HandshakeFlags {
        let mut flags = HandshakeFlags::empty();
        flags.set(HandshakeFlags::CONNID, self.connid.is_some());
        flags.set(HandshakeFlags::HOST_ID, self.host_id.is_some());
        flags.set(HandshakeFlags::DEVICE_VERSION, self.device_version.is_some());
        flags.set(HandshakeFlags::USER_RECV_QP, self.user_recv_qp.is_some());
        flags.set(HandshakeFlags::HMEM_P2P, self.hmem_p2p.is_some());
        flags
    }

    /// Bytes of the packet.
    pub fn wire_len(&self) -> usize {
        8 + 8 * self.words().len() + 8 * self.flags().bits().count_ones() as usize
    }

    fn words(&self) -> &[u64] {
        &self.extra[..usize::from(self.nwords).min(MAX_WORDS)]
    }

    /// Writes the packet to `buf` and returns its length. Panics if `buf` is too short.
    // [M1.10]
    pub fn write(&self, buf: &mut [u8]) -> usize {
        let words = self.words();
        let base = Base::new(PktType::HANDSHAKE, self.flags().bits());
        let mut at = put(buf, 0, &HandshakeHdr { base, nextra_p3: U32::new(words.len() as u32 + 3) });
        for word in words {
            at = put(buf, at, &U64::new(*word));
        }
        if let Some(connid) = self.connid {
            at = put(buf, at, &ConnidHdr { connid: connid.into(), pad: U32::ZERO });
        }
        if let Some(host_id) = self.host_id {
            at = put(buf, at, &U64::new(host_id));
        }
        if let Some(version) = self.device_version {
            at = put(buf, at, &PairHdr { first: version.into(), second: U32::ZERO });
        }
        if let Some(qp) = self.user_recv_qp {
            at = put(buf, at, &PairHdr { first: qp.qpn.into(), second: qp.qkey.into() });
        }
        if let Some(p2p) = self.hmem_p2p {
            at = put(buf, at, &P2pHdr { supported: p2p.into(), reserved: [0; 7] });
        }
        at
    }

    /// Parses a HANDSHAKE. Words beyond the fourth are skipped; unknown optional headers come last and are
    /// ignored.
    // [M3.3]
    pub(super) fn parse(packet: &[u8], base: Base) -> Result<Self, ParseError> {
        let mut from = Reader::new(packet);
        let hdr: HandshakeHdr = from.take(Section::Header)?;
        let nextra_p3 = hdr.nextra_p3.get();
        let count = u64::from(nextra_p3.checked_sub(3).ok_or(ParseError::ExtraCount(nextra_p3))?);
        let mut words = Reader::new(from.bytes(count * 8, Section::Extra)?);
        let mut shake = Handshake { nwords: count.min(MAX_WORDS as u64) as u8, ..Handshake::default() };
        for word in shake.extra.iter_mut().take(count as usize) {
            *word = words.take::<U64>(Section::Extra)?.get();
        }
        let flags = HandshakeFlags::from_bits_retain(base.flags.get());
        if flags.contains(HandshakeFlags::CONNID) {
            shake.connid = Some(from.take::<ConnidHdr>(Section::Connid)?.connid.get());
        }
        if flags.contains(HandshakeFlags::HOST_ID) {
            shake.host_id = Some(from.take::<U64>(Section::HostId)?.get());
        }
        if flags.contains(HandshakeFlags::DEVICE_VERSION) {
            shake.device_version = Some(from.take::<PairHdr>(Section::DeviceVersion)?.first.get());
        }
        if flags.contains(HandshakeFlags::USER_RECV_QP) {
            let qp: PairHdr = from.take(Section::UserRecvQp)?;
            shake.user_recv_qp = Some(UserRecvQp { qpn: qp.first.get(), qkey: qp.second.get() });
        }
        if flags.contains(HandshakeFlags::HMEM_P2P) {
            shake.hmem_p2p = Some(from.take::<P2pHdr>(Section::HmemP2p)?.supported != 0);
        }
        Ok(shake)
    }
}
