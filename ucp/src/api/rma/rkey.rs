//! Remote keys of peers' memory, and what an endpoint can do with them.

use std::num::NonZeroUsize;

use uct::api::{DevKind, Iface as _, Md as _};

use crate::api::ep::handle::Ep;
use crate::api::ep::rails::{min_striped_len, rail_keys, remote_domain};
use crate::api::rma::packed_rkey::{PackedRkey, RkeyError, allocated_bit, parse};

use crate::lane;
use crate::rdm::{Access, KeySpace, RailKeys};
use crate::select::RemoteMem;

/// Remote key: lets endpoints to the owner read, write or compute on the owner's memory.
pub struct Rkey {
    pub(crate) key: u64,
    addr: u64,
    len: u64,
    access: Access,
    /// Key of the lane that maps the memory or whose device reaches it.
    lane: Option<lane::Rkey>,
    /// Address here of the first byte of mapped memory.
    mapped_at: Option<NonZeroUsize>,
    /// Kernel-copy key, if the memory is not mapped.
    pub(crate) rma_only: Option<lane::Rkey>,
    device: Option<u64>,
    remote_mem: RemoteMem,
    /// Whether it was made from a bare key (`fi_mr_key`), without the owner's packed key. It may name memory
    /// of the worker's own context.
    pub(crate) is_key_only: bool,
    pub(crate) rails: RailKeys,
    /// Shortest operation that may use several lanes, bytes.
    pub(crate) min_striped_len: u64,
}

impl Ep {
    /// Unpacks a remote key of the peer's memory. Maps the memory, if possible, while the key lives.
    pub fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, RkeyError> {
        let parsed = parse(packed)?;
        let core = self.worker().core();
        let label = remote_domain(&core, self.peer());
        let at = parsed.domains.iter().position(|(of, ..)| Some(*of) == label);
        let remote_mem = match at {
            Some(nth) if parsed.allocated & allocated_bit(nth) != 0 => RemoteMem::Allocated,
            _ => RemoteMem::Registered,
        };
        let of_lane = at.map(|nth| &parsed.domains[nth]);
        let lane = of_lane.and_then(|(_, key, _)| {
            let lane = &core.ifaces[usize::from(self.state().lane()?.0)];
            let unpacked = lane.iface.md().unpack_rkey(key);
            unpacked
                .inspect_err(|e| {
                    tracing::debug!("cannot unpack the peer's key on its lane, uses packets: {e}")
                })
                .ok()
        });
        let mapped_at = lane.as_ref().and_then(|key| {
            let lane = &core.ifaces[usize::from(self.state().lane()?.0)];
            let at = lane.iface.md().rkey_ptr(key, parsed.addr, parsed.len as usize);
            let at = at.filter(|_| lane.iface.attr().kind != DevKind::Net)?;
            NonZeroUsize::new(at.expose_provenance())
        });
        let device = of_lane.and_then(|(.., key)| *key).filter(|_| lane.is_some());
        let rma_only = match &core.rma_only {
            Some(rma_only) if lane.is_none() && self.state().kernel_copy_ep(Some(rma_only)).is_some() => {
                let of_lane = parsed.domains.iter().find(|(of, ..)| *of == rma_only.domain_label());
                of_lane.and_then(|(_, key, _)| rma_only.unpack_rkey(key))
            }
            _ => None,
        };
        let rails = match device {
            Some(_) => rail_keys(&core, self.state().rails(), &parsed),
            None => RailKeys::default(),
        };
        let min_striped_len = min_striped_len(&core, &rails);
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
            is_key_only: false,
            rails,
            min_striped_len,
        })
    }
}

/// The transport whose devices and keys are libfabric's, too.
pub(crate) const EFA: &str = "efa";

impl Rkey {
    /// Remote key of memory of an endpoint's peer, of a key of libfabric: a peer's `fi_mr_key`, or
    /// [`Mem::libfabric_key`](crate::Mem::libfabric_key). A key of 32 bits is one of the peer's only `efa`
    /// device. On lanes of that transport it names the memory to devices and in packets; on others, in
    /// packets. Operations of a worker on memory of its own context end within the call.
    pub fn from_libfabric_key(ep: &Ep, key: u64) -> Rkey {
        let Ok(device_key) = u32::try_from(key) else { return Rkey::from_key(key) };
        let core = ep.worker().core_keep_idle();
        let lane = ep.state().lane().and_then(|lane| core.ifaces.get(usize::from(lane.0)));
        match lane {
            Some(lane) if lane.iface.attr().tl == EFA => Rkey::from_device_key(key),
            _ => Rkey::from_key(KeySpace::Device.key(device_key)),
        }
    }

    /// Remote key of memory to which its owner has given this key ([`crate::MapParams::key`]).
    pub fn from_program_key(key: u32) -> Rkey {
        Rkey::from_key(KeySpace::Program.key(key))
    }

    /// Remote key from a peer with another library. Covers all addresses; the peer checks them. For packets,
    /// and for the kernel where the peer is another process of this host and publishes its memory.
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
            is_key_only: true,
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
        Rkey { key, addr, len, access, device, remote_mem, is_key_only: false, ..Rkey::from_key(key) }
    }

    /// First address, as in the owner's process, and length in bytes.
    pub fn range(&self) -> (u64, u64) {
        (self.addr, self.len)
    }

    /// Address in this process of `len` bytes at `remote`, for loads, stores and atomics of the program;
    /// `None` if this process does not map the memory or the range is not inside. Valid while the key lives.
    /// Memory that the owner has withdrawn stays mapped, and is then nobody's.
    pub fn ptr(&self, remote: u64, len: u64) -> Option<*mut u8> {
        self.mapped_bytes(remote, len, Access::empty())
    }

    /// Order of keys; equal if both are of the same memory of the same owner, with the same access. A key
    /// that is only a number ([`Rkey::from_program_key`], [`Rkey::from_key`]) does not say whose memory it is
    /// of: two of one number are equal, and none equals a key that was unpacked.
    pub fn compare(&self, other: &Rkey) -> std::cmp::Ordering {
        let order = |key: &Rkey| (key.key, key.addr, key.len, key.access.bits(), key.device);
        order(self).cmp(&order(other))
    }

    /// Permitted kinds of access.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Address in this process of `len` bytes at `remote`, if they are mapped and in range and `need` is
    /// permitted.
    // HOT
    #[inline(always)]
    pub(crate) fn mapped_bytes(&self, remote: u64, len: u64, need: Access) -> Option<*mut u8> {
        let start = self.mapped_at?;
        if !self.covers(remote, len, need) {
            return None;
        }
        Some(std::ptr::with_exposed_provenance_mut(start.get() + (remote - self.addr) as usize))
    }

    /// Key of the lane that maps the memory or whose device reaches it.
    // HOT
    #[inline(always)]
    pub(crate) fn of_lane(&self) -> Option<&lane::Rkey> {
        self.lane.as_ref()
    }

    /// Lane key of mapped memory, on which the lane completes operations within the call.
    // HOT
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

    /// Whether `len` bytes at `remote` are in range and `need` is permitted.
    // HOT
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
    fn ranges_do_not_wrap() {
        let key = Rkey { addr: 100, len: 50, access: Access::READ, ..Rkey::from_key(1) };
        assert!(key.covers(100, 50, Access::READ) && key.covers(150, 0, Access::READ));
        for (remote, len) in [(99, 1), (100, 51), (150, 1), (0, u64::MAX), (u64::MAX, 101)] {
            assert!(!key.covers(remote, len, Access::READ), "{remote} {len}");
        }
        assert!(!key.covers(100, 1, Access::WRITE));
    }
}
