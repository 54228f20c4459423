//! Raw addresses: 32 bytes per lane in EFA's form, so that the raw address header of RDM v4 connects an
//! unknown sender in-band on any wire. An 8-byte interface id is wrapped: GID = link-local prefix and id,
//! queue pair number 0, random connection id.

use uct::api::{AddrBuf, IfaceAttr};

use crate::rdm::io::Source;

pub(crate) const RAW_LEN: usize = 32;
const LINK_LOCAL: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// GID 16 bytes, queue pair number 2, pad 2, connection id 4, reserved 8 (RDM v4 1.6).
pub(crate) type RawBytes = [u8; RAW_LEN];

/// How a transport's interface address maps to its raw address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AddrForm {
    /// The two are equal.
    Raw,
    /// The interface address is an 8-byte id, little endian.
    Id,
}

impl AddrForm {
    /// Returns the form of an interface's addresses; `None` if it cannot be connected in-band.
    pub(crate) fn of(attr: &IfaceAttr) -> Option<AddrForm> {
        AddrForm::of_len(attr.iface_addr_len)
    }

    /// Returns the form of interface addresses of this length.
    pub(crate) fn of_len(len: usize) -> Option<AddrForm> {
        match len {
            RAW_LEN => Some(AddrForm::Raw),
            8 => Some(AddrForm::Id),
            _ => None,
        }
    }

    pub(crate) fn raw(self, iface: &[u8], connid: u32) -> Option<RawBytes> {
        match self {
            AddrForm::Raw => iface.try_into().ok(),
            AddrForm::Id => {
                let id = u64::from_le_bytes(iface.try_into().ok()?);
                let mut raw = [0; RAW_LEN];
                raw[..8].copy_from_slice(&LINK_LOCAL);
                raw[8..16].copy_from_slice(&id.to_be_bytes());
                raw[20..24].copy_from_slice(&connid.to_le_bytes());
                Some(raw)
            }
        }
    }

    /// Splits a raw address into device and interface address. A wire without device addresses uses
    /// `own_device`.
    pub(crate) fn addrs(self, raw: &RawBytes, own_device: &AddrBuf) -> (AddrBuf, AddrBuf) {
        match self {
            AddrForm::Raw => (raw[..16].iter().copied().collect(), raw.iter().copied().collect()),
            AddrForm::Id => (own_device.clone(), source(raw).node.to_le_bytes().into_iter().collect()),
        }
    }
}

/// Returns the source that packets of this interface carry.
pub(crate) fn source(raw: &RawBytes) -> Source {
    let [.., a, b, c, d, e, f, g, h] = *raw.first_chunk::<16>().expect("a raw address has 32 bytes");
    Source {
        node: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        port: u32::from(u16::from_le_bytes([raw[16], raw[17]])),
    }
}

pub(crate) fn connid(raw: &RawBytes) -> u32 {
    u32::from_le_bytes([raw[20], raw[21], raw[22], raw[23]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_id_round_trips_through_raw_address() {
        let id = 0x0102_0304_0506_0708u64;
        let raw = AddrForm::Id.raw(&id.to_le_bytes(), 0xdead_beef).unwrap();
        assert_eq!(raw[..2], [0xfe, 0x80]);
        assert_eq!(raw[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(source(&raw), Source { node: id, port: 0 });
        assert_eq!(connid(&raw), 0xdead_beef);
        let own: AddrBuf = [9u8; 8].into_iter().collect();
        let (device, iface) = AddrForm::Id.addrs(&raw, &own);
        assert_eq!((device, iface.as_slice()), (own, id.to_le_bytes().as_slice()));
    }

    #[test]
    fn raw_address_is_unchanged() {
        let mut raw = [7u8; 32];
        raw[16..18].copy_from_slice(&0x1234u16.to_le_bytes());
        assert_eq!(AddrForm::Raw.raw(&raw, 0), Some(raw));
        assert_eq!(source(&raw).port, 0x1234);
        let (device, iface) = AddrForm::Raw.addrs(&raw, &AddrBuf::new());
        assert_eq!((device.as_slice(), iface.as_slice()), (&raw[..16], raw.as_slice()));
        assert_eq!(AddrForm::Raw.raw(&raw[1..], 0), None);
        assert_eq!(AddrForm::Id.raw(&raw, 0), None);
    }
}
