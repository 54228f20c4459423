//! Remote keys. A packed key has a part for packets and one for each memory domain of the owner's context.

use uct::api::{DevKind, Iface as _, Md as _};

use crate::api::ep::handle::Ep;

use crate::lane;
use crate::rdm::{Access, RailKeys};
use crate::select::RemoteMem;

const MAGIC: [u8; 4] = *b"UCRK";
const VERSION: u8 = 2;
/// Device key of a domain whose device does not know the memory.
const NO_DEVICE_KEY: u64 = u64::MAX;
/// Bytes before the domains: magic, version, access, number and origin of domains, key, address, length.
const HEADER: usize = 32;
/// Offset of the bit set of domains, of the first eight, that allocated the memory.
const ALLOCATED: usize = 7;

fn allocated_bit(nth: usize) -> u8 {
    1u8.checked_shl(nth as u32).unwrap_or(0)
}

/// Remote key: lets endpoints to the owner read, write or compute on the owner's memory.
pub struct Rkey {
    pub(crate) key: u64,
    addr: u64,
    len: u64,
    access: Access,
    /// Key of the lane that maps the memory or whose device reaches it.
    lane: Option<lane::Rkey>,
    /// Address here of the first byte of mapped memory.
    mapped_at: Option<usize>,
    /// Kernel-copy key, if the memory is not mapped.
    pub(crate) rma_only: Option<lane::Rkey>,
    device: Option<u64>,
    remote_mem: RemoteMem,
    pub(crate) rails: RailKeys,
    /// Shortest operation that may use several lanes, bytes.
    pub(crate) min_striped_len: u64,
}

/// Error of unpacking a remote key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RkeyError {
    /// The bytes are not a remote key.
    #[error("not a remote key ({len} bytes)")]
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

pub(crate) struct Packer(Vec<u8>);

impl Packer {
    pub(crate) fn new(key: u64, addr: u64, len: u64, access: Access) -> Packer {
        let mut out = Vec::with_capacity(HEADER + 64);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, access.bits(), 0, 0]);
        [key, addr, len].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        Packer(out)
    }

    /// Adds a memory domain. `remote_mem` tells whether it allocated the memory.
    pub(crate) fn domain(&mut self, label: u32, key: &[u8], device_key: Option<u64>, remote_mem: RemoteMem) {
        let Ok(len) = u16::try_from(key.len()) else { return };
        if remote_mem == RemoteMem::Allocated {
            self.0[ALLOCATED] |= allocated_bit(usize::from(self.0[6]));
        }
        self.0[6] += 1;
        self.0.extend_from_slice(&label.to_le_bytes());
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(&device_key.unwrap_or(NO_DEVICE_KEY).to_le_bytes());
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) struct PackedRkey<'a> {
    key: u64,
    addr: u64,
    len: u64,
    access: Access,
    /// Label, key and device key of each memory domain.
    pub domains: Vec<(u32, &'a [u8], Option<u64>)>,
    /// Bit set of the domains, of the first eight, that allocated the memory.
    allocated: u8,
}

fn parse(bytes: &[u8]) -> Result<PackedRkey<'_>, RkeyError> {
    let not = RkeyError::NotAKey { len: bytes.len() };
    let (header, mut rest) = bytes.split_first_chunk::<HEADER>().ok_or(not)?;
    if header[..4] != MAGIC {
        return Err(not);
    }
    if header[4] != VERSION {
        return Err(RkeyError::Version { theirs: header[4] });
    }
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

impl Ep {
    /// Unpacks a remote key of the peer's memory. Maps the memory, if possible, while the key lives.
    pub fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, RkeyError> {
        let parsed = parse(packed)?;
        let core = self.worker().core();
        let label = core.remote_domain(self.peer());
        let at = parsed.domains.iter().position(|(of, ..)| Some(*of) == label);
        let remote_mem = match at {
            Some(nth) if parsed.allocated & allocated_bit(nth) != 0 => RemoteMem::Allocated,
            _ => RemoteMem::Registered,
        };
        let of_lane = at.map(|nth| &parsed.domains[nth]);
        let lane = of_lane.and_then(|(_, key, _)| {
            let lane = &core.lanes[usize::from(self.lane()?.0)];
            let unpacked = lane.iface.md().unpack_rkey(key);
            unpacked.inspect_err(|e| tracing::debug!("memory of a peer goes by packets: {e}")).ok()
        });
        let mapped_at = lane.as_ref().and_then(|key| {
            let lane = &core.lanes[usize::from(self.lane()?.0)];
            let at = lane.iface.md().rkey_ptr(key, parsed.addr, parsed.len as usize);
            at.filter(|_| lane.iface.attr().kind != DevKind::Net).map(|at| at.expose_provenance())
        });
        let device = of_lane.and_then(|(.., key)| *key).filter(|_| lane.is_some());
        let rma_only = match &core.rma_only {
            Some(rma_only) if lane.is_none() && self.rma_only_ep(&core).is_some() => {
                let of_lane = parsed.domains.iter().find(|(of, ..)| *of == rma_only.domain_label());
                of_lane.and_then(|(_, key, _)| rma_only.unpack_rkey(key))
            }
            _ => None,
        };
        let rails = match device {
            Some(_) => core.rail_keys(self.further_lanes(), &parsed),
            None => RailKeys::default(),
        };
        let min_striped_len = core.min_striped_len(&rails);
        let PackedRkey { key, addr, len, access, .. } = parsed;
        Ok(Rkey {
            key,
            addr,
            len,
            access,
            lane,
            mapped_at,
            rma_only,
            device,
            remote_mem,
            rails,
            min_striped_len,
        })
    }
}

impl Rkey {
    /// Remote key for packets, from a peer with another library. Covers all addresses; the peer checks them.
    pub fn from_key(key: u64) -> Rkey {
        let (access, rails) = (Access::all(), RailKeys::default());
        let (lane, mapped_at, rma_only, device) = (None, None, None, None);
        let (remote_mem, min_striped_len) = (RemoteMem::Registered, u64::MAX);
        Rkey {
            key,
            addr: 0,
            len: u64::MAX,
            access,
            lane,
            mapped_at,
            rma_only,
            device,
            remote_mem,
            rails,
            min_striped_len,
        }
    }

    /// Remote key for device and packets, from a peer with libfabric, which uses one key for both.
    pub fn from_device_key(key: u64) -> Rkey {
        Rkey { device: Some(key), ..Rkey::from_key(key) }
    }

    /// A copy for devices and packets, which does not map the memory.
    pub(crate) fn unmapped(&self) -> Rkey {
        let Rkey { key, addr, len, access, device, remote_mem, .. } = *self;
        Rkey { key, addr, len, access, device, remote_mem, ..Rkey::from_key(key) }
    }

    /// First address, as in the owner's process, and length in bytes.
    pub fn range(&self) -> (u64, u64) {
        (self.addr, self.len)
    }

    /// Address in this process of `len` bytes at `remote`, for loads, stores and atomics of the program;
    /// `None` if this process does not map the memory or the range is not inside. Valid while the key lives.
    /// Memory that the owner has withdrawn stays mapped, and is then nobody's.
    pub fn ptr(&self, remote: u64, len: u64) -> Option<*mut u8> {
        if !self.covers(remote, len, Access::empty()) {
            return None;
        }
        let at = self.mapped_at? + (remote - self.addr) as usize;
        Some(std::ptr::with_exposed_provenance_mut(at))
    }

    /// Order of keys; equal if both are of the same memory of the same owner, with the same access.
    pub fn compare(&self, other: &Rkey) -> std::cmp::Ordering {
        let order = |key: &Rkey| (key.key, key.addr, key.len, key.access.bits(), key.device);
        order(self).cmp(&order(other))
    }

    /// Permitted kinds of access.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Lane key of mapped memory, on which the lane completes operations within the call. // HOT
    #[inline]
    pub(crate) fn mapped(&self) -> Option<&lane::Rkey> {
        if self.mapped_at.is_some() { self.lane.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn device(&self) -> Option<u64> {
        self.device
    }

    #[inline]
    pub(crate) fn remote_mem(&self) -> RemoteMem {
        self.remote_mem
    }

    /// Whether `len` bytes at `remote` are in range and `need` is permitted. // HOT
    #[inline]
    pub(crate) fn covers(&self, remote: u64, len: u64, need: Access) -> bool {
        let offset = remote.wrapping_sub(self.addr);
        self.access.contains(need) && offset <= self.len && len <= self.len - offset
    }
}

impl std::fmt::Debug for Rkey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mapped = self.lane.is_some();
        f.debug_struct("Rkey")
            .field("key", &format_args!("{:#x}", self.key))
            .field("addr", &format_args!("{:#x}", self.addr))
            .field("len", &self.len)
            .field("lane", &mapped)
            .finish()
    }
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
        let mut other = bytes.clone();
        other[4] = 9;
        assert!(matches!(parse(&other), Err(RkeyError::Version { theirs: 9 })));
    }

    #[test]
    fn ranges_do_not_wrap() {
        let key = Rkey { addr: 100, len: 50, access: Access::READ, ..Rkey::from_key(1) };
        assert!(key.covers(100, 50, Access::READ) && key.covers(150, 0, Access::READ));
        for (remote, len) in [(99, 1), (100, 51), (150, 1), (0, u64::MAX), (u64::MAX, 101)] {
            assert!(!key.covers(remote, len, Access::READ), "{remote} {len}");
        }
        assert!(!key.covers(100, 1, Access::WRITE));
    }
}
