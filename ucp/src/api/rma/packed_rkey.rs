//! Packed remote keys: a part for packets, and one for each memory domain of the owner's context.

use crate::rdm::Access;
use crate::select::RemoteMem;

const MAGIC: [u8; 2] = *b"RK";
/// Magic of earlier versions.
const OLD_MAGIC: [u8; 4] = *b"UCRK";
const VERSION: u8 = 3;
/// Device key of a domain whose device does not know the memory.
const NO_DEVICE_KEY: u64 = u64::MAX;
/// Bytes before the domains: magic, packed length, version, access, number and origin of domains, key,
/// address, length.
const HEADER: usize = 32;
/// Offset of the bit set of domains, of the first eight, that allocated the memory.
const ALLOCATED: usize = 7;

/// Bit of the n-th domain in the set of those that allocated the memory.
pub(crate) fn allocated_bit(nth: usize) -> u8 {
    1u8.checked_shl(nth as u32).unwrap_or(0)
}

/// Error of unpacking a remote key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RkeyError {
    /// The bytes are not a remote key.
    #[error("these {len} bytes do not begin a remote key")]
    NotAKey {
        /// Length of the input, bytes.
        len: usize,
    },
    /// The peer's library uses another packing version.
    #[error(
        "remote key has version {theirs}, this library reads version {VERSION}: run the same version on both sides"
    )]
    Version {
        /// Version of the key.
        theirs: u8,
    },
    /// The calling thread may not use the worker ([`crate::mt`]).
    #[error("worker: {0}")]
    Thread(#[from] ucs::sync::LockError),
}

/// Bytes of a domain beside its key: label, length, device key.
const DOMAIN: usize = 14;

/// Length of the packed remote key with which `bytes` begins, from its first five bytes.
pub fn packed_rkey_len(bytes: &[u8]) -> Result<usize, RkeyError> {
    let not = RkeyError::NotAKey { len: bytes.len() };
    let first: &[u8; 5] = bytes.first_chunk().ok_or(not)?;
    if first[..4] == OLD_MAGIC {
        return Err(RkeyError::Version { theirs: first[4] });
    }
    if first[..2] != MAGIC {
        return Err(not);
    }
    if first[4] != VERSION {
        return Err(RkeyError::Version { theirs: first[4] });
    }
    Ok(usize::from(u16::from_le_bytes([first[2], first[3]])))
}

/// Builds a packed key.
pub(crate) struct Packer(Vec<u8>);

impl Packer {
    pub(crate) fn new(key: u64, addr: u64, len: u64, access: Access) -> Packer {
        let mut out = Vec::with_capacity(HEADER + 64);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&[VERSION, access.bits(), 0, 0]);
        [key, addr, len].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        Packer(out)
    }

    /// Adds a memory domain. `remote_mem` tells whether it allocated the memory.
    pub(crate) fn domain(&mut self, label: u32, key: &[u8], device_key: Option<u64>, remote_mem: RemoteMem) {
        let Ok(len) = u16::try_from(key.len()) else { return };
        if self.0.len() + key.len() + DOMAIN > usize::from(u16::MAX) {
            return;
        }
        if remote_mem == RemoteMem::Allocated {
            self.0[ALLOCATED] |= allocated_bit(usize::from(self.0[6]));
        }
        self.0[6] += 1;
        self.0.extend_from_slice(&label.to_le_bytes());
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(&device_key.unwrap_or(NO_DEVICE_KEY).to_le_bytes());
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u16;
        self.0[2..4].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

/// Contents of a packed key.
pub(crate) struct PackedRkey<'a> {
    pub key: u64,
    pub addr: u64,
    pub len: u64,
    pub access: Access,
    /// Label, key and device key of each memory domain.
    pub domains: Vec<(u32, &'a [u8], Option<u64>)>,
    /// Bit set of the domains, of the first eight, that allocated the memory.
    pub allocated: u8,
}

pub(crate) fn parse(bytes: &[u8]) -> Result<PackedRkey<'_>, RkeyError> {
    let not = RkeyError::NotAKey { len: bytes.len() };
    let bytes = bytes.get(..packed_rkey_len(bytes)?).ok_or(not)?;
    let (header, mut rest) = bytes.split_first_chunk::<HEADER>().ok_or(not)?;
    let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let mut domains = Vec::new();
    for _ in 0..header[6] {
        let (label, tail) = rest.split_first_chunk().ok_or(not)?;
        let (len, tail) = tail.split_first_chunk().ok_or(not)?;
        let (key, tail) = tail.split_at_checked(usize::from(u16::from_le_bytes(*len))).ok_or(not)?;
        let (device_key, tail) = tail.split_first_chunk().ok_or(not)?;
        let device_key = Some(u64::from_le_bytes(*device_key)).filter(|key| *key != NO_DEVICE_KEY);
        domains.push((u32::from_le_bytes(*label), key, device_key));
        rest = tail;
    }
    let access = Access::from_bits_truncate(header[5]);
    Ok(PackedRkey {
        key: word(8),
        addr: word(16),
        len: word(24),
        access,
        domains,
        allocated: header[ALLOCATED],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_keys_parse() {
        let mut packer = Packer::new(7, 0x1000, 64, Access::READ | Access::ATOMIC);
        packer.domain(5, b"posix", None, RemoteMem::Registered);
        packer.domain(6, b"", Some(9), RemoteMem::Allocated);
        let bytes = packer.finish();
        let parsed = parse(&bytes).unwrap();
        assert_eq!((parsed.key, parsed.addr, parsed.len), (7, 0x1000, 64));
        assert_eq!(parsed.access, Access::READ | Access::ATOMIC);
        assert_eq!(parsed.allocated, 0b10);
        assert_eq!(parsed.domains, [(5, &b"posix"[..], None), (6, &b""[..], Some(9))]);
        for len in 0..bytes.len() {
            assert!(parse(&bytes[..len]).is_err());
        }
        assert_eq!(packed_rkey_len(&bytes[..5]).unwrap(), bytes.len());
        let longer = [&bytes[..], b"behind"].concat();
        assert_eq!(parse(&longer).unwrap().domains.len(), 2);
        assert!(matches!(packed_rkey_len(b"UCRK\x02"), Err(RkeyError::Version { theirs: 2 })));
        let mut other = bytes.clone();
        other[4] = 9;
        assert!(matches!(parse(&other), Err(RkeyError::Version { theirs: 9 })));
    }
}
