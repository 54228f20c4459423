//! The 32-byte raw address of an EFA interface, as in EFA RDM v4's raw address header.

use super::dev::Gid;
use crate::api::ConnectError;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian as le};

/// Length of a packed raw address, bytes.
pub const RAW_ADDR_LEN: usize = 32;

/// Length of the device address (the GID), bytes.
pub const DEVICE_ADDR_LEN: usize = 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    gid: [u8; 16],
    qpn: le::U16,
    pad: [u8; 2],
    connid: le::U32,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<Layout>() == RAW_ADDR_LEN);

/// Address of an EFA queue pair: device, queue pair number and connection id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct RawAddr {
    /// GID of the device.
    pub gid: Gid,
    /// Queue pair number.
    pub qpn: u16,
    /// Connection id, equal to the q-key: 31 random bits, which distinguish a reused queue pair number.
    pub connid: u32,
}

impl RawAddr {
    /// Encodes the address in its wire form.
    pub fn pack(&self) -> [u8; RAW_ADDR_LEN] {
        zerocopy::transmute!(Layout {
            gid: self.gid.0,
            qpn: self.qpn.into(),
            pad: [0; 2],
            connid: self.connid.into(),
            reserved: [0; 8],
        })
    }

    /// Parses a packed address; ignores reserved bytes, which later peers may use.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConnectError> {
        let raw = Layout::ref_from_bytes(bytes).map_err(|_| ConnectError::Malformed)?;
        let gid = Gid(raw.gid);
        if gid.iid() == 0 {
            return Err(ConnectError::Malformed);
        }
        Ok(RawAddr { gid, qpn: raw.qpn.get(), connid: raw.connid.get() })
    }
}

/// Parses the device and interface address given to `connect`; both must name the same GID.
pub(super) fn parse_pair(device: &[u8], iface: &[u8]) -> Result<RawAddr, ConnectError> {
    let addr = RawAddr::parse(iface)?;
    if device == addr.gid.0 { Ok(addr) } else { Err(ConnectError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let addr = RawAddr { gid: Gid::link_local(0x14b0_33ff_fef8_77cd), qpn: 0x1234, connid: 0x5678_9abc };
        let mut want = [0u8; 32];
        want[..2].copy_from_slice(&[0xfe, 0x80]);
        want[8..16].copy_from_slice(&[0x14, 0xb0, 0x33, 0xff, 0xfe, 0xf8, 0x77, 0xcd]);
        want[16..18].copy_from_slice(&[0x34, 0x12]);
        want[20..24].copy_from_slice(&[0xbc, 0x9a, 0x78, 0x56]);
        assert_eq!(addr.pack(), want);
    }

    #[test]
    fn malformed_addresses_are_rejected() {
        let good = RawAddr { gid: Gid::link_local(7), qpn: 1, connid: 2 }.pack();
        assert!(parse_pair(&good[..16], &good).is_ok());
        assert_eq!(parse_pair(&Gid::link_local(8).0, &good), Err(ConnectError::Malformed));
        assert_eq!(parse_pair(&[], &good), Err(ConnectError::Malformed));
        for len in 0..32 {
            assert_eq!(RawAddr::parse(&good[..len]), Err(ConnectError::Malformed));
        }
        assert_eq!(RawAddr::parse(&[0; 33]), Err(ConnectError::Malformed));
        assert_eq!(RawAddr::parse(&[0; 32]), Err(ConnectError::Malformed), "interface id 0 names no device");
    }

    proptest! {
        #[test]
        fn round_trip(iid in 1u64.., qpn: u16, connid: u32) {
            let addr = RawAddr { gid: Gid::link_local(iid), qpn, connid };
            prop_assert_eq!(RawAddr::parse(&addr.pack()), Ok(addr));
        }
    }
}
