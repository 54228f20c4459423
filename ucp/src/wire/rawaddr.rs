//! The raw address of an EFA endpoint, as on the wire, in address vectors and in worker addresses.

use core::net::Ipv6Addr;
use std::fmt;
use std::str::FromStr;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The 32 bytes: pad and reserved are zero when written, ignored when read.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawAddrBytes {
    gid: [u8; 16],
    qpn: U16,
    pad: [u8; 2],
    connid: U32,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<RawAddrBytes>() == RawAddr::LEN && align_of::<RawAddrBytes>() == 1);
const _: () = assert!(std::mem::offset_of!(RawAddrBytes, gid) == 0);
const _: () = assert!(std::mem::offset_of!(RawAddrBytes, qpn) == 16);
const _: () = assert!(std::mem::offset_of!(RawAddrBytes, pad) == 18);
const _: () = assert!(std::mem::offset_of!(RawAddrBytes, connid) == 20);
const _: () = assert!(std::mem::offset_of!(RawAddrBytes, reserved) == 24);

/// Address of one incarnation of an endpoint: device, queue pair and connection id.
///
/// Queue pair numbers are reused; the connid, the queue pair's real qkey, tells incarnations apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RawAddr {
    /// The device, in the form of an IPv6 address.
    pub gid: [u8; 16],
    /// Queue pair number.
    pub qpn: u16,
    /// Connection id, and the qkey of every send to this address.
    pub connid: u32,
}

impl RawAddr {
    /// Bytes on the wire.
    pub const LEN: usize = 32;

    /// The low half of the GID: what tells devices apart.
    #[inline]
    pub const fn node(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.gid;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// As other implementations expect it: pad and reserved zero.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(RawAddrBytes::from(*self))
    }

    /// Reads an address; pad and reserved are ignored.
    #[inline]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let raw: RawAddrBytes = zerocopy::transmute!(*bytes);
        raw.into()
    }
}

impl From<RawAddr> for RawAddrBytes {
    #[inline]
    fn from(addr: RawAddr) -> Self {
        RawAddrBytes {
            gid: addr.gid,
            qpn: addr.qpn.into(),
            pad: [0; 2],
            connid: addr.connid.into(),
            reserved: [0; 8],
        }
    }
}

impl From<RawAddrBytes> for RawAddr {
    #[inline]
    fn from(raw: RawAddrBytes) -> Self {
        RawAddr { gid: raw.gid, qpn: raw.qpn.get(), connid: raw.connid.get() }
    }
}

/// `[fe80::1]:17:1804289383`: GID, queue pair number, connid.
impl fmt::Display for RawAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}:{}", Ipv6Addr::from(self.gid), self.qpn, self.connid)
    }
}

impl fmt::Debug for RawAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not of the form `[GID]:QPN:CONNID`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a raw address of the form [GID]:QPN:CONNID")]
pub struct BadRawAddr;

/// Reads what `Display` prints, with or without `fi_addr_efa://` before it.
impl FromStr for RawAddr {
    type Err = BadRawAddr;

    fn from_str(text: &str) -> Result<Self, BadRawAddr> {
        let text = text.strip_prefix("fi_addr_efa://").unwrap_or(text);
        let (gid, numbers) = text.strip_prefix('[').and_then(|t| t.split_once("]:")).ok_or(BadRawAddr)?;
        let (qpn, connid) = numbers.split_once(':').ok_or(BadRawAddr)?;
        Ok(RawAddr {
            gid: gid.parse::<Ipv6Addr>().map_err(|_| BadRawAddr)?.octets(),
            qpn: qpn.parse().map_err(|_| BadRawAddr)?,
            connid: connid.parse().map_err(|_| BadRawAddr)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDR: RawAddr = RawAddr {
        gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55],
        qpn: 0x0102,
        connid: 0x7a0b0c0d,
    };

    #[test]
    fn bytes_follow_the_layout() {
        let want: [u8; 32] = [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55, // gid
            0x02, 0x01, // qpn
            0, 0, // pad
            0x0d, 0x0c, 0x0b, 0x7a, // connid
            0, 0, 0, 0, 0, 0, 0, 0, // reserved
        ];
        assert_eq!(ADDR.to_bytes(), want);
        assert_eq!(RawAddr::from_bytes(&want), ADDR);
    }

    #[test]
    fn padding_is_ignored() {
        let mut bytes = ADDR.to_bytes();
        bytes[18] = 0xaa;
        bytes[31] = 0xbb;
        let read = RawAddr::from_bytes(&bytes);
        assert_eq!(read, ADDR);
        assert_eq!(read.to_bytes(), ADDR.to_bytes());
    }

    #[test]
    fn text_round_trip() {
        let text = ADDR.to_string();
        assert_eq!(text, "[fe80::211:22ff:fe33:4455]:258:2047544333");
        assert_eq!(text.parse(), Ok(ADDR));
        assert_eq!(format!("fi_addr_efa://{text}").parse(), Ok(ADDR));
        for bad in ["", "[", "[fe80::1]", "[fe80::1]:1", "[fe80::1]:70000:1", "fe80::1:1:1", "[x]:1:1"] {
            assert_eq!(bad.parse::<RawAddr>(), Err(BadRawAddr), "{bad}");
        }
    }
}
