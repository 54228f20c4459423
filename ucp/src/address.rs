//! Worker addresses: what one worker tells another, out of band, so that an endpoint can be made.
//! Made by `Worker::address`, read by `Worker::connect`; `lane::wireup` chooses among the entries.
//! Never trusts the bytes: a packed address comes from a peer.

use std::fmt;

use arrayvec::ArrayVec;

/// Longest address of a transport's device or interface, bytes.
pub(crate) const MAX_PART: usize = 64;
/// Longest transport name, bytes.
const MAX_TL: usize = 16;
/// Most transports in an address.
const MAX_ENTRIES: usize = 16;
/// Length of a bare EFA raw address.
const RAW_LEN: usize = 32;
/// First bytes of a packed address. An EFA raw address starts with a GID, `fe80...`, and never looks like
/// this.
const MAGIC: [u8; 4] = *b"UCPA";
/// Version of the packing.
const VERSION: u8 = 1;
/// Magic, version, number of entries, two reserved bytes, process.
const HEADER: usize = 16;

/// Bytes of a device or interface address: opaque here.
pub(crate) type Part = ArrayVec<u8, MAX_PART>;

/// One way to reach a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Transport name: says how the two addresses are to be read.
    pub tl: ArrayVec<u8, MAX_TL>,
    /// Connection id its packets carry (RDM v4 raw address, bytes 20..24).
    pub connid: u32,
    /// Device address.
    pub device: Part,
    /// Interface address.
    pub iface: Part,
}

impl Entry {
    pub(crate) fn tl(&self) -> &str {
        std::str::from_utf8(&self.tl).unwrap_or("?")
    }
}

/// The address of a worker: every transport it can be reached over.
///
/// Packed with [`Address::pack`], sent to the peer by any means, and read there with [`Address::unpack`],
/// which takes a bare 32-byte EFA raw address too (what libfabric's `fi_getname` answers).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// Which process the worker lives in; 0 if unknown.
    pub(crate) process: u64,
    pub(crate) entries: Vec<Entry>,
}

/// Why bytes are not the address of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Neither a packed worker address nor a 32-byte EFA raw address.
    #[error("not a worker address ({len} bytes)")]
    NotAnAddress {
        /// Bytes given.
        len: usize,
    },
    /// The peer's library packs addresses another way.
    #[error(
        "worker address has version {theirs}, this library reads version {ours}: run the same version on both sides"
    )]
    Version {
        /// Version found.
        theirs: u8,
        /// Version understood.
        ours: u8,
    },
    /// Cut short, or longer than it says.
    #[error("worker address is damaged: {len} bytes do not hold what it announces")]
    Damaged {
        /// Bytes given.
        len: usize,
    },
}

impl Address {
    /// The address as bytes to send to a peer.
    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.entries.len() as u8, 0, 0]);
        out.extend_from_slice(&self.process.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&[
                entry.tl.len() as u8,
                entry.device.len() as u8,
                entry.iface.len() as u8,
                0,
            ]);
            out.extend_from_slice(&entry.connid.to_le_bytes());
            out.extend_from_slice(&entry.tl);
            out.extend_from_slice(&entry.device);
            out.extend_from_slice(&entry.iface);
        }
        out
    }

    /// Reads a packed address, or a bare EFA raw address.
    pub fn unpack(bytes: &[u8]) -> Result<Address, AddressError> {
        if !bytes.starts_with(&MAGIC) {
            return Self::from_efa_raw(bytes).ok_or(AddressError::NotAnAddress { len: bytes.len() });
        }
        let damaged = AddressError::Damaged { len: bytes.len() };
        let [_, _, _, _, version, count, ..] = *bytes else { return Err(damaged) };
        if version != VERSION {
            return Err(AddressError::Version { theirs: version, ours: VERSION });
        }
        let (header, mut rest) = bytes.split_first_chunk::<HEADER>().ok_or(damaged)?;
        let [.., a, b, c, d, e, f, g, h] = *header;
        let process = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let mut entries = Vec::with_capacity(usize::from(count).min(MAX_ENTRIES));
        for _ in 0..count {
            let (lens, connid) = (take(&mut rest, 4).ok_or(damaged)?, take(&mut rest, 4).ok_or(damaged)?);
            let mut part = |len: u8| take(&mut rest, usize::from(len));
            let tl = part(lens[0]).and_then(|b| ArrayVec::try_from(b).ok()).ok_or(damaged)?;
            let device = part(lens[1]).and_then(|b| Part::try_from(b).ok()).ok_or(damaged)?;
            let iface = part(lens[2]).and_then(|b| Part::try_from(b).ok()).ok_or(damaged)?;
            let connid = u32::from_le_bytes([connid[0], connid[1], connid[2], connid[3]]);
            if entries.len() == MAX_ENTRIES {
                return Err(damaged);
            }
            entries.push(Entry { tl, connid, device, iface });
        }
        if rest.is_empty() { Ok(Address { process, entries }) } else { Err(damaged) }
    }

    /// The address of a libfabric EFA endpoint, or of one lane: GID, queue pair number and connection id.
    fn from_efa_raw(bytes: &[u8]) -> Option<Address> {
        let raw: &[u8; RAW_LEN] = bytes.try_into().ok()?;
        if raw[..8] != [0xfe, 0x80, 0, 0, 0, 0, 0, 0] {
            return None;
        }
        Some(Address {
            process: 0,
            entries: vec![Entry {
                tl: ArrayVec::try_from(b"efa".as_slice()).ok()?,
                connid: u32::from_le_bytes([raw[20], raw[21], raw[22], raw[23]]),
                device: Part::try_from(&raw[..16]).ok()?,
                iface: Part::try_from(raw.as_slice()).ok()?,
            }],
        })
    }

    /// Names of the transports in it, in the worker's order.
    pub fn transports(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(Entry::tl)
    }

    /// The 32-byte EFA raw address in it, if the worker has an EFA lane: what libfabric's address vector
    /// takes.
    pub fn efa_raw(&self) -> Option<[u8; RAW_LEN]> {
        self.entries.iter().find_map(|e| e.iface.as_slice().try_into().ok())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, entry) in self.entries.iter().enumerate() {
            write!(f, "{}{}/", if i > 0 { " " } else { "" }, entry.tl())?;
            entry.iface.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        }
        Ok(())
    }
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(n)?;
    *rest = tail;
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(tl: &str, device: &[u8], iface: &[u8]) -> Entry {
        Entry {
            tl: tl.as_bytes().try_into().unwrap(),
            connid: 0x1234_5678,
            device: device.try_into().unwrap(),
            iface: iface.try_into().unwrap(),
        }
    }

    fn sample() -> Address {
        let mut raw = [0u8; 32];
        raw[..2].copy_from_slice(&[0xfe, 0x80]);
        raw[15] = 9;
        Address {
            process: 5,
            entries: vec![entry("posix", &[1; 8], &[2; 8]), entry("efa", &raw[..16], &raw)],
        }
    }

    #[test]
    fn golden_bytes() {
        let one =
            Address { process: 0x0807_0605_0403_0201, entries: vec![entry("posix", &[0xaa; 8], &[0xbb; 8])] };
        let want = [
            b"UCPA\x01\x01\0\0".as_slice(),
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[5, 8, 8, 0, 0x78, 0x56, 0x34, 0x12],
            b"posix",
            &[0xaa; 8],
            &[0xbb; 8],
        ]
        .concat();
        assert_eq!(one.pack(), want);
    }

    #[test]
    fn address_round_trips() {
        assert_eq!(Address::unpack(&sample().pack()), Ok(sample()));
        assert_eq!(sample().transports().collect::<Vec<_>>(), ["posix", "efa"]);
    }

    #[test]
    fn raw_address_alone_parses() {
        let raw = sample().efa_raw().unwrap();
        let address = Address::unpack(&raw).unwrap();
        assert_eq!(address.transports().collect::<Vec<_>>(), ["efa"]);
        assert_eq!(address.efa_raw(), Some(raw));
    }

    #[test]
    fn malformed_addresses_are_rejected() {
        let mut other = sample().pack();
        other[4] = 9;
        assert_eq!(Address::unpack(&other), Err(AddressError::Version { theirs: 9, ours: 1 }));
        let text = Address::unpack(&other).unwrap_err().to_string();
        assert!(text.contains("version 9") && text.contains("version 1"), "{text}");
        assert_eq!(Address::unpack(b"hello"), Err(AddressError::NotAnAddress { len: 5 }));
        assert_eq!(Address::unpack(&[0; 32]), Err(AddressError::NotAnAddress { len: 32 }));
        let good = sample().pack();
        for cut in 4..good.len() {
            assert_eq!(
                Address::unpack(&good[..cut]),
                Err(AddressError::Damaged { len: cut }),
                "cut at {cut}"
            );
        }
        assert!(matches!(Address::unpack(&[good, vec![0]].concat()), Err(AddressError::Damaged { .. })));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Address::unpack(&bytes);
            for (at, b) in MAGIC.iter().chain(&[VERSION]).enumerate().take(bytes.len()) {
                bytes[at] = *b;
            }
            if let Ok(address) = Address::unpack(&bytes) {
                prop_assert_eq!(Address::unpack(&address.pack()), Ok(address));
            }
        }
    }
}
