//! The memory domain: a device and a protection domain.

#![allow(unsafe_code)]

use super::amo::{AmoAddr, AmoDomain, AmoRegion};
use super::dev::{Dev, DevMr, Gid, Placement, Sge};
use crate::api::{self, Access, AddrBuf, AllocMethod, AllocReq, Error, MdAttr, MemKind, Memory, OpenError};
use crate::base::alloc::{self, Backing, by_methods};
use crate::base::check::registrable;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian as le};

/// A device with one protection domain. Clones share it.
pub struct Md<D: Dev> {
    inner: Arc<Inner<D>>,
}

struct Inner<D: Dev> {
    /// Emulated atomics. Its thread ends before the protection domain goes.
    amo: Option<AmoDomain>,
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
    /// Declared first: peers' atomics end before the memory is deregistered.
    amo: Option<AmoRegion>,
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
    /// Address of the thread that carries out atomics, if it grants them.
    amo: Option<AmoAddr>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PackedRkey {
    addr: le::U64,
    len: le::U64,
    key: le::U32,
}

/// Second part of a key that grants atomics.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PackedAmo {
    gid: [u8; 16],
    qpn: le::U16,
    reserved: [u8; 2],
    qkey: le::U32,
}

const RKEY_LEN: usize = size_of::<PackedRkey>();
const AMO_RKEY_LEN: usize = RKEY_LEN + size_of::<PackedAmo>();
const _: () = assert!(RKEY_LEN == 20 && AMO_RKEY_LEN == 44);

/// Bit of the packed length that says that [`PackedAmo`] follows.
const HAS_AMO: u64 = 1 << 63;

/// Rights to ask the device for: it has no atomics.
fn device_access(access: Access) -> Access {
    access - Access::REMOTE_ATOMIC
}

impl<D: Dev> Md<D> {
    /// Opens `dev` with its own protection domain, with emulated atomics.
    pub fn open(dev: D) -> Result<Self, OpenError> {
        Self::open_with(dev, true)
    }

    /// Opens `dev` with its own protection domain, and with emulated atomics if `atomics` and the device
    /// allows a thread of the library's.
    pub fn open_with(dev: D, atomics: bool) -> Result<Self, OpenError> {
        // A key is there on devices with RDMA only.
        let has_rkey = dev.attr().rdma_read || dev.attr().rdma_write;
        let has_atomics = atomics && has_rkey && dev.serves_threads();
        let amo = if has_atomics { Some(AmoDomain::new()?) } else { None };
        let pd = dev.alloc_pd()?;
        let a = dev.attr();
        let attr = MdAttr {
            component: "efa",
            can_alloc: true,
            can_register: true,
            has_rkey,
            rkey_needs_alloc: false,
            needs_local_key: true,
            rkey_len: if amo.is_some() { AMO_RKEY_LEN } else { RKEY_LEN },
            max_reg: Some(a.max_mr as usize),
            revokes_keys: true,
        };
        Ok(Md { inner: Arc::new(Inner { amo, dev, pd, attr }) })
    }

    /// The device.
    pub fn dev(&self) -> &D {
        &self.inner.dev
    }

    pub(super) fn pd(&self) -> &D::Pd {
        &self.inner.pd
    }

    pub(super) fn amo(&self) -> Option<&AmoDomain> {
        self.inner.amo.as_ref()
    }

    /// `access` without the rights that there is no operation for.
    fn granted(&self, access: Access) -> Access {
        let a = self.dev().attr();
        let mut granted = access | Access::LOCAL_READ;
        granted.set(Access::REMOTE_ATOMIC, granted.contains(Access::REMOTE_ATOMIC) && self.amo().is_some());
        granted.set(Access::REMOTE_READ, granted.contains(Access::REMOTE_READ) && a.rdma_read);
        granted.set(Access::REMOTE_WRITE, granted.contains(Access::REMOTE_WRITE) && a.rdma_write);
        granted
    }

    fn alloc_by(&self, method: AllocMethod, req: &AllocReq<'_>, access: Access) -> Result<Mem<D>, Error> {
        if method == AllocMethod::Md {
            let place = Placement { at: req.at, fill: req.fill };
            let mr = self.dev().alloc_mr_with(self.pd(), req.len, device_access(access), place)?;
            return Ok(self.mem(mr, access, Some(method), None));
        }
        if method == AllocMethod::Heap {
            // The device registers whole pages, which heap allocations share.
            return Err(Error::Unsupported(api::Op::Alloc));
        }
        let backing = alloc::backing(req, method)?;
        // SAFETY: the memory is mapped until it is dropped, which is after `mr`; no reference to it is made.
        let mr = unsafe { self.dev().reg_mr(self.pd(), backing.as_ptr(), req.len, device_access(access)) }?;
        Ok(self.mem(mr, access, Some(method), Some(backing)))
    }

    fn mem(
        &self,
        mr: D::Mr,
        access: Access,
        method: Option<AllocMethod>,
        backing: Option<Backing>,
    ) -> Mem<D> {
        let amo = self.amo().filter(|_| access.contains(Access::REMOTE_ATOMIC));
        let amo = amo.map(|amo| amo.add_region(mr.rkey(), mr.addr(), mr.len()));
        Mem { amo, mr, access, method, _backing: backing }
    }

    /// Address of the thread that carries out atomics on `mem`, if it grants them. A thread that cannot start
    /// takes no other right away.
    fn amo_addr(&self, mem: &Mem<D>) -> Option<AmoAddr> {
        let amo = self.amo().filter(|_| mem.amo.is_some())?;
        match amo.start(self.dev(), self.pd()) {
            Ok(addr) => Some(addr),
            Err(error) => {
                tracing::warn!(%error, "a remote key does not grant atomics");
                None
            }
        }
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
        registrable(addr, len)?;
        let access = self.granted(access);
        // SAFETY: the caller's promise is the one the device asks for.
        let mr = unsafe { self.dev().reg_mr(self.pd(), addr, len, device_access(access)) }?;
        Ok(self.mem(mr, access, None, None))
    }

    unsafe fn register_for_op(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem<D>, Error> {
        registrable(addr, len)?;
        let access = self.granted(access);
        // SAFETY: the caller's promise is the one the device asks for.
        let mr = unsafe { self.dev().reg_mr_for_op(self.pd(), addr, len, device_access(access)) }?;
        Ok(self.mem(mr, access, None, None))
    }

    fn pack_rkey(&self, mem: &Mem<D>) -> Result<AddrBuf, Error> {
        if !self.inner.attr.has_rkey {
            return Err(Error::Unsupported(api::Op::RemoteKey));
        }
        mem.check_not_revoked()?;
        let (addr, len, key) = (mem.mr.addr() as u64, mem.mr.len() as u64, mem.mr.rkey());
        Ok(Rkey { addr, len, key, amo: self.amo_addr(mem) }.pack())
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
    fn pack(&self) -> AddrBuf {
        let flag = if self.amo.is_some() { HAS_AMO } else { 0 };
        let fixed =
            PackedRkey { addr: self.addr.into(), len: (self.len | flag).into(), key: self.key.into() };
        let mut packed = AddrBuf::try_from(fixed.as_bytes()).expect("20 bytes fit");
        if let Some(AmoAddr { gid, qpn, qkey }) = self.amo {
            let amo = PackedAmo { gid: gid.0, qpn: qpn.into(), reserved: [0; 2], qkey: qkey.into() };
            packed.extend(amo.as_bytes().iter().copied());
        }
        packed
    }

    fn parse(packed: &[u8]) -> Result<Self, Error> {
        let malformed = Error::InvalidParam("not a remote key of the efa transport");
        let (p, rest) = PackedRkey::ref_from_prefix(packed).map_err(|_| malformed)?;
        let amo = match p.len.get() & HAS_AMO {
            0 if rest.is_empty() => None,
            0 => return Err(malformed),
            _ => {
                let amo = PackedAmo::ref_from_bytes(rest).map_err(|_| malformed)?;
                Some(AmoAddr { gid: Gid(amo.gid), qpn: amo.qpn.get(), qkey: amo.qkey.get() })
            }
        };
        let rkey = Rkey::new(p.addr.get(), p.len.get() & !HAS_AMO, p.key.get()).ok_or(malformed)?;
        Ok(Rkey { amo, ..rkey })
    }

    fn new(addr: u64, len: u64, key: u32) -> Option<Self> {
        addr.checked_add(len.checked_sub(1)?)?;
        (len & HAS_AMO == 0 && usize::try_from(len).is_ok()).then_some(Rkey { addr, len, key, amo: None })
    }

    /// The key and who carries out atomics, if it grants them on `len` bytes at `remote`.
    pub(super) fn amo_covering(&self, remote: u64, len: usize) -> Result<(u32, AmoAddr), Error> {
        Ok((self.covering(remote, len)?, self.amo.ok_or(Error::RemoteAccess)?))
    }

    pub(super) fn word(&self) -> u32 {
        self.key
    }

    /// The key, if it covers `remote..remote + len`.
    // HOT
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

    /// The SGE of `len` bytes at `addr`, if this registration covers them.
    // HOT
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
        if let Some(amo) = &self.amo {
            amo.close();
        }
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
        assert_eq!(
            Rkey::parse(&want),
            Ok(Rkey { addr: 0x1122_3344, len: 0x1000, key: 0xab_cdef, amo: None })
        );
        let amo = AmoAddr { gid: Gid::link_local(0x0102), qpn: 0x0304, qkey: 0x0506_0708 };
        let rkey = Rkey { amo: Some(amo), ..Rkey::parse(&want).unwrap() };
        let packed = rkey.pack();
        let mut with_amo = want.to_vec();
        with_amo[15] = 0x80;
        with_amo.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 3, 0, 0, 8, 7, 6, 5]);
        assert_eq!(packed[..], with_amo);
        assert_eq!(Rkey::parse(&packed), Ok(rkey));
        assert!(Rkey::parse(&packed[..20]).is_err() && Rkey::parse(&[&want[..], &[0; 24]].concat()).is_err());
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
            let key = Rkey { addr, len, key: 9, amo: None };
            let inside = remote >= addr && remote + n as u64 <= addr + len;
            prop_assert_eq!(key.covering(remote, n), if inside { Ok(9) } else { Err(Error::RemoteAccess) });
        }

        #[test]
        fn covering_does_not_wrap(remote: u64, n: usize) {
            let key = Rkey { addr: u64::MAX - 9, len: 10, key: 9, amo: None };
            let inside = remote > u64::MAX - 10 && n as u128 + u128::from(remote) <= 1 << 64;
            prop_assert_eq!(key.covering(remote, n).is_ok(), inside);
        }
    }
}
