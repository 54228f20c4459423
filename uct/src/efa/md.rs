//! The memory domain: a device and a protection domain.

#![allow(unsafe_code)]

use super::dev::{Dev, DevMr, Placement, Sge};
use crate::api::{self, Access, AddrBuf, AllocMethod, AllocReq, Error, MdAttr, MemKind, Memory, OpenError};
use crate::base::alloc::{self, Backing, by_methods};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian as le};

/// A device with one protection domain. Clones share it.
pub struct Md<D: Dev> {
    inner: Arc<Inner<D>>,
}

struct Inner<D: Dev> {
    dev: D,
    pd: D::Pd,
    attr: MdAttr,
}

impl<D: Dev> Clone for Md<D> {
    fn clone(&self) -> Self {
        Md { inner: self.inner.clone() }
    }
}

/// Registered memory.
pub struct Mem<D: Dev> {
    mr: D::Mr,
    access: Access,
    method: Option<AllocMethod>,
    /// Memory owned beside what `mr` owns; declared after `mr`, as it is unmapped later.
    _backing: Option<Backing>,
}

/// A remote key, with the range it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rkey {
    addr: u64,
    len: u64,
    key: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PackedRkey {
    addr: le::U64,
    len: le::U64,
    key: le::U32,
}

const RKEY_LEN: usize = size_of::<PackedRkey>();
const _: () = assert!(RKEY_LEN == 20);

impl<D: Dev> Md<D> {
    /// Opens `dev` with its own protection domain.
    pub fn open(dev: D) -> Result<Self, OpenError> {
        let pd = dev.alloc_pd()?;
        let a = dev.attr();
        let attr = MdAttr {
            component: "efa",
            can_alloc: true,
            can_register: true,
            has_rkey: a.rdma_read || a.rdma_write,
            rkey_needs_alloc: false,
            needs_local_key: true,
            rkey_len: RKEY_LEN,
            max_reg: Some(a.max_mr as usize),
            revokes_keys: true,
        };
        Ok(Md { inner: Arc::new(Inner { dev, pd, attr }) })
    }

    /// The device.
    pub fn dev(&self) -> &D {
        &self.inner.dev
    }

    pub(super) fn pd(&self) -> &D::Pd {
        &self.inner.pd
    }

    /// `access` without the rights that the device has no operation for.
    fn granted(&self, access: Access) -> Access {
        let a = self.dev().attr();
        let mut granted = (access | Access::LOCAL_READ) - Access::REMOTE_ATOMIC;
        granted.set(Access::REMOTE_READ, granted.contains(Access::REMOTE_READ) && a.rdma_read);
        granted.set(Access::REMOTE_WRITE, granted.contains(Access::REMOTE_WRITE) && a.rdma_write);
        granted
    }

    fn alloc_by(&self, method: AllocMethod, req: &AllocReq<'_>, access: Access) -> Result<Mem<D>, Error> {
        if method == AllocMethod::Md {
            let place = Placement { at: req.at, fill: req.fill };
            let mr = self.dev().alloc_mr_with(self.pd(), req.len, access, place)?;
            return Ok(Mem { mr, access, method: Some(method), _backing: None });
        }
        if method == AllocMethod::Heap {
            // The device registers whole pages, which heap allocations share.
            return Err(Error::Unsupported(api::Op::Alloc));
        }
        let backing = alloc::backing(req, method)?;
        // SAFETY: the memory is mapped until it is dropped, which is after `mr`; no reference to it is made.
        let mr = unsafe { self.dev().reg_mr(self.pd(), backing.as_ptr(), req.len, access) }?;
        Ok(Mem { mr, access, method: Some(method), _backing: Some(backing) })
    }
}

impl<D: Dev> api::Md for Md<D> {
    type Mem = Mem<D>;
    type Rkey = Rkey;

    fn attr(&self) -> &MdAttr {
        &self.inner.attr
    }

    fn device_addr(&self) -> AddrBuf {
        self.inner.dev.gid().0.into_iter().collect()
    }

    fn alloc(&self, req: &AllocReq<'_>) -> Result<Mem<D>, Error> {
        let MemKind::Host = req.kind;
        let access = self.granted(req.access);
        by_methods(req, |method| self.alloc_by(method, req, access))
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem<D>, Error> {
        if len == 0 || addr.is_null() {
            return Err(Error::InvalidParam("registration of nothing"));
        }
        let access = self.granted(access);
        // SAFETY: the caller's promise is the one the device asks for.
        let mr = unsafe { self.dev().reg_mr(self.pd(), addr, len, access) }?;
        Ok(Mem { mr, access, method: None, _backing: None })
    }

    fn pack_rkey(&self, mem: &Mem<D>) -> Result<AddrBuf, Error> {
        if !self.inner.attr.has_rkey {
            return Err(Error::Unsupported(api::Op::RemoteKey));
        }
        mem.check_not_revoked()?;
        let packed = PackedRkey {
            addr: (mem.mr.addr() as u64).into(),
            len: (mem.mr.len() as u64).into(),
            key: mem.mr.rkey().into(),
        };
        Ok(AddrBuf::try_from(packed.as_bytes()).expect("20 bytes fit"))
    }

    fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, Error> {
        Rkey::parse(packed)
    }

    fn mr_key(&self, mem: &Mem<D>) -> Result<u64, Error> {
        mem.check_not_revoked()?;
        Ok(mem.mr.rkey().into())
    }

    fn rkey_from_mr_key(&self, key: u64, addr: u64, len: u64) -> Result<Rkey, Error> {
        let malformed = Error::InvalidParam("not a remote key of the efa transport");
        Rkey::new(addr, len, u32::try_from(key).map_err(|_| malformed)?).ok_or(malformed)
    }
}

impl Rkey {
    fn parse(packed: &[u8]) -> Result<Self, Error> {
        let malformed = Error::InvalidParam("not a remote key of the efa transport");
        let p = PackedRkey::ref_from_bytes(packed).map_err(|_| malformed)?;
        Rkey::new(p.addr.get(), p.len.get(), p.key.get()).ok_or(malformed)
    }

    fn new(addr: u64, len: u64, key: u32) -> Option<Self> {
        addr.checked_add(len.checked_sub(1)?)?;
        usize::try_from(len).is_ok().then_some(Rkey { addr, len, key })
    }

    pub(super) fn word(&self) -> u32 {
        self.key
    }

    /// The key, if it covers `remote..remote + len`. // HOT
    #[inline]
    pub(super) fn covering(&self, remote: u64, len: usize) -> Result<u32, Error> {
        let offset = remote.wrapping_sub(self.addr);
        if offset <= self.len && len as u64 <= self.len - offset {
            Ok(self.key)
        } else {
            Err(Error::RemoteAccess)
        }
    }
}

impl api::Rkey for Rkey {
    fn range(&self) -> (u64, usize) {
        (self.addr, self.len as usize)
    }
}

impl<D: Dev> Mem<D> {
    pub(super) fn lkey(&self) -> u32 {
        self.mr.lkey()
    }

    fn check_not_revoked(&self) -> Result<(), Error> {
        if self.mr.is_revoked() { Err(Error::BadLocalKey) } else { Ok(()) }
    }

    /// The SGE of `len` bytes at `addr`, if this registration covers them. // HOT
    #[inline]
    pub(super) fn sge(&self, addr: *mut u8, len: usize) -> Result<Sge, Error> {
        let offset = (addr as usize).wrapping_sub(self.mr.addr() as usize);
        let max_len = self.mr.len();
        if offset <= max_len && len <= max_len - offset && u32::try_from(len).is_ok() {
            Ok(Sge { addr, len: len as u32, lkey: self.mr.lkey() })
        } else {
            Err(Error::BadLocalKey)
        }
    }
}

impl<D: Dev> Memory for Mem<D> {
    fn addr(&self) -> *mut u8 {
        self.mr.addr()
    }

    fn len(&self) -> usize {
        self.mr.len()
    }

    fn method(&self) -> Option<AllocMethod> {
        self.method
    }

    fn access(&self) -> Access {
        self.access
    }

    /// The device refuses the local and the remote key from now on.
    fn revoke(&self) {
        self.mr.revoke();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_rkey() {
        let packed = PackedRkey { addr: 0x1122_3344.into(), len: 0x1000.into(), key: 0xab_cdef.into() };
        let want = [0x44, 0x33, 0x22, 0x11, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0xef, 0xcd, 0xab, 0];
        assert_eq!(packed.as_bytes(), want);
        assert_eq!(Rkey::parse(&want), Ok(Rkey { addr: 0x1122_3344, len: 0x1000, key: 0xab_cdef }));
    }

    #[test]
    fn packed_rkeys_are_checked() {
        let pack = |addr: u64, len: u64| {
            PackedRkey { addr: addr.into(), len: len.into(), key: 1.into() }.as_bytes().to_vec()
        };
        assert!(Rkey::parse(&pack(u64::MAX, 1)).is_ok());
        assert!(Rkey::parse(&pack(u64::MAX, 2)).is_err(), "the range wraps");
        assert!(Rkey::parse(&pack(1, 0)).is_err());
        assert!(Rkey::parse(&pack(1, 1)[..19]).is_err());
    }

    proptest! {
        #[test]
        fn covering_checks_bounds(addr in 0u64..1000, len in 1u64..1000, remote in 0u64..3000, n in 0usize..3000) {
            let key = Rkey { addr, len, key: 9 };
            let inside = remote >= addr && remote + n as u64 <= addr + len;
            prop_assert_eq!(key.covering(remote, n), if inside { Ok(9) } else { Err(Error::RemoteAccess) });
        }

        #[test]
        fn covering_does_not_wrap(remote: u64, n: usize) {
            let key = Rkey { addr: u64::MAX - 9, len: 10, key: 9 };
            let inside = remote > u64::MAX - 10 && n as u128 + u128::from(remote) <= 1 << 64;
            prop_assert_eq!(key.covering(remote, n).is_ok(), inside);
        }
    }
}
