//! Remote keys. A packed key has a part for packets and one for each lane of the memory's owner.

use uct::api::{DevKind, Iface as _, Md as _};

use crate::api::ep::handle::Ep;

use crate::lane;
use crate::rdm::{Access, RailKeys};
use crate::select::RemoteMem;

const MAGIC: [u8; 4] = *b"UCRK";
const VERSION: u8 = 1;
/// Device key of a lane whose device does not know the memory.
const NO_WORD: u64 = u64::MAX;
/// Bytes before the lanes: magic, version, access, number and origin of lanes, key, address, length.
const HEADER: usize = 32;
/// Offset of the bit set of lanes, of the first eight, that allocated the memory.
const OWN: usize = 7;

fn own_bit(nth: usize) -> u8 {
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
    is_mapped: bool,
    /// Kernel-copy key, if the memory is not mapped.
    pub(crate) rma_only: Option<lane::Rkey>,
    device: Option<u64>,
    place: RemoteMem,
    pub(crate) rails: RailKeys,
    /// Shortest operation that may use several lanes, bytes.
    pub(crate) rail_from: u64,
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

    /// Adds a lane. `word` is the device key; `place` says whether the device allocated the memory.
    pub(crate) fn lane(&mut self, connid: u32, key: &[u8], word: Option<u64>, place: RemoteMem) {
        let Ok(len) = u16::try_from(key.len()) else { return };
        if place == RemoteMem::Allocated {
            self.0[OWN] |= own_bit(usize::from(self.0[6]));
        }
        self.0[6] += 1;
        self.0.extend_from_slice(&connid.to_le_bytes());
        self.0.extend_from_slice(&len.to_le_bytes());
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(&word.unwrap_or(NO_WORD).to_le_bytes());
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

pub(crate) struct Parts<'a> {
    key: u64,
    addr: u64,
    len: u64,
    access: Access,
    /// Connid, key and device key of each lane.
    pub lanes: Vec<(u32, &'a [u8], Option<u64>)>,
    own: u8,
}

fn read(bytes: &[u8]) -> Result<Parts<'_>, RkeyError> {
    let not = RkeyError::NotAKey { len: bytes.len() };
    let (header, mut rest) = bytes.split_first_chunk::<HEADER>().ok_or(not)?;
    if header[..4] != MAGIC {
        return Err(not);
    }
    if header[4] != VERSION {
        return Err(RkeyError::Version { theirs: header[4] });
    }
    let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let mut lanes = Vec::new();
    for _ in 0..header[6] {
        let (connid, tail) = rest.split_first_chunk().ok_or(not)?;
        let (len, tail) = tail.split_first_chunk().ok_or(not)?;
        let (key, tail) = tail.split_at_checked(usize::from(u16::from_le_bytes(*len))).ok_or(not)?;
        let (word, tail) = tail.split_first_chunk().ok_or(not)?;
        let word = Some(u64::from_le_bytes(*word)).filter(|word| *word != NO_WORD);
        lanes.push((u32::from_le_bytes(*connid), key, word));
        rest = tail;
    }
    let access = Access::from_bits_truncate(header[5]);
    Ok(Parts { key: word(8), addr: word(16), len: word(24), access, lanes, own: header[OWN] })
}

impl Ep {
    /// Unpacks a remote key of the peer's memory. Maps the memory, if possible, while the key lives.
    pub fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, RkeyError> {
        let parts = read(packed)?;
        let core = self.worker().core();
        let connid = core.engine.peer_info(self.peer()).map(|peer| peer.addr.connid);
        let at = parts.lanes.iter().position(|(id, ..)| Some(*id) == connid);
        let place = match at {
            Some(nth) if parts.own & own_bit(nth) != 0 => RemoteMem::Allocated,
            _ => RemoteMem::Registered,
        };
        let own = at.map(|nth| &parts.lanes[nth]);
        let lane = own.and_then(|(_, key, _)| {
            let lane = &core.lanes[usize::from(self.lane()?.0)];
            let unpacked = lane.iface.md().unpack_rkey(key);
            unpacked.inspect_err(|e| tracing::debug!("memory of a peer goes by packets: {e}")).ok()
        });
        let by_net = |lane: lane::LaneIdx| core.lanes[usize::from(lane.0)].iface.attr().kind == DevKind::Net;
        let is_mapped = lane.is_some() && self.lane().is_some_and(|lane| !by_net(lane));
        let device = own.and_then(|(.., word)| *word).filter(|_| lane.is_some());
        let rma_only = if lane.is_none() { self.rma_only_ep(&core) } else { None };
        let rma_only = rma_only.and_then(|(_, connid)| {
            let (_, key, _) = parts.lanes.iter().find(|(id, ..)| *id == connid)?;
            core.rma_only.as_ref()?.unpack_rkey(key)
        });
        let rails = match device {
            Some(_) => core.rail_keys(self.further_lanes(), &parts),
            None => RailKeys::default(),
        };
        let rail_from = core.rail_from(&rails);
        let Parts { key, addr, len, access, .. } = parts;
        Ok(Rkey { key, addr, len, access, lane, is_mapped, rma_only, device, place, rails, rail_from })
    }
}

impl Rkey {
    /// Remote key for packets, from a peer with another library. Covers all addresses; the peer checks them.
    pub fn from_key(key: u64) -> Rkey {
        let (access, rails) = (Access::all(), RailKeys::default());
        let (lane, rma_only, device) = (None, None, None);
        let (place, rail_from, is_mapped) = (RemoteMem::Registered, u64::MAX, false);
        Rkey {
            key,
            addr: 0,
            len: u64::MAX,
            access,
            lane,
            is_mapped,
            rma_only,
            device,
            place,
            rails,
            rail_from,
        }
    }

    /// Remote key for device and packets, from a peer with libfabric, which uses one key for both.
    pub fn from_device_key(key: u64) -> Rkey {
        Rkey { device: Some(key), ..Rkey::from_key(key) }
    }

    /// First address, as in the owner's process, and length in bytes.
    pub fn range(&self) -> (u64, u64) {
        (self.addr, self.len)
    }

    /// Permitted kinds of access.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Lane key of mapped memory, on which the lane completes operations within the call. // HOT
    #[inline]
    pub(crate) fn mapped(&self) -> Option<&lane::Rkey> {
        if self.is_mapped { self.lane.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn device(&self) -> Option<u64> {
        self.device
    }

    #[inline]
    pub(crate) fn place(&self) -> RemoteMem {
        self.place
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
    fn what_is_packed_is_read() {
        let mut packer = Packer::new(7, 0x1000, 64, Access::READ | Access::ATOMIC);
        packer.lane(5, b"posix", None, RemoteMem::Registered);
        packer.lane(6, b"", Some(9), RemoteMem::Allocated);
        let bytes = packer.finish();
        let parts = read(&bytes).unwrap();
        assert_eq!((parts.key, parts.addr, parts.len), (7, 0x1000, 64));
        assert_eq!(parts.access, Access::READ | Access::ATOMIC);
        assert_eq!(parts.own, 0b10);
        assert_eq!(parts.lanes, [(5, &b"posix"[..], None), (6, &b""[..], Some(9))]);
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err());
        }
        let mut other = bytes.clone();
        other[4] = 9;
        assert!(matches!(read(&other), Err(RkeyError::Version { theirs: 9 })));
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
