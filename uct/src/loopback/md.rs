//! Memory domain of `self`: registrations of the process. A key dies with its registration.

#![allow(unsafe_code)]

use super::TL;
use super::regions::{Region, Registration, this_process};
use crate::api::{self, Access, AddrBuf, AllocMethod, AllocReq, Error, MdAttr};
use crate::base::alloc::{self, Backing, by_methods};
use crate::base::check::{accessible, registrable};
use crate::base::direct::Window;
use std::sync::Arc;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct PackedKey {
    number: U64,
    process: U64,
}

const RKEY_LEN: usize = size_of::<PackedKey>();
const _: () = assert!(RKEY_LEN == 16);

/// The memory domain of `self`.
#[derive(Clone, Debug)]
pub struct Md {
    attr: Arc<MdAttr>,
}

/// Registered memory.
#[derive(Debug)]
pub struct Mem {
    region: Registration,
    method: Option<AllocMethod>,
}

/// An unpacked key.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rkey {
    region: Region,
}

impl Default for Md {
    fn default() -> Self {
        Md::open()
    }
}

impl Md {
    /// Opens a domain. Keys are good in all domains of the process.
    pub fn open() -> Self {
        Md {
            attr: Arc::new(MdAttr {
                component: TL,
                can_alloc: true,
                can_register: true,
                has_rkey: true,
                rkey_needs_alloc: false,
                needs_local_key: false,
                rkey_len: RKEY_LEN,
                max_reg: None,
                revokes_keys: true,
            }),
        }
    }

    /// # Safety
    /// As [`api::Md::register`].
    unsafe fn region(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
        backing: Option<Backing>,
    ) -> Result<Registration, Error> {
        // SAFETY: the memory is valid until the registration is dropped and operations on it are over, or for
        // as long as its backing lives.
        let window = unsafe { Window::new(addr.addr() as u64, len, addr, access) };
        // SAFETY: as above.
        unsafe { Registration::open(window, backing) }
    }
}

impl api::Md for Md {
    type Mem = Mem;
    type Rkey = Rkey;

    fn attr(&self) -> &MdAttr {
        &self.attr
    }

    fn alloc(&self, req: &AllocReq<'_>) -> Result<Mem, Error> {
        by_methods(req, |method| {
            // Its own way is ordinary pages.
            let how = if method == AllocMethod::Md { AllocMethod::Mmap } else { method };
            let backing = alloc::backing(req, how)?;
            let addr = backing.as_ptr();
            // SAFETY: the memory is valid for its length as long as its backing lives.
            let region = unsafe { self.region(addr, req.len, req.access, Some(backing)) }?;
            Ok(Mem { region, method: Some(method) })
        })
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, Error> {
        registrable(addr, len)?;
        accessible(addr, len, access)?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.register_for_op(addr, len, access) }
    }

    unsafe fn register_for_op(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, Error> {
        registrable(addr, len)?;
        // SAFETY: the caller's promise is the same.
        let region = unsafe { self.region(addr, len, access, None) }?;
        Ok(Mem { region, method: None })
    }

    fn pack_rkey(&self, mem: &Mem) -> Result<AddrBuf, Error> {
        let key = PackedKey { number: self.mr_key(mem)?.into(), process: this_process().into() };
        Ok(key.as_bytes().iter().copied().collect())
    }

    fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, Error> {
        let malformed = |_| Error::InvalidParam("not a key of this transport");
        let key = PackedKey::read_from_bytes(packed).map_err(malformed)?;
        if key.process.get() != this_process() {
            return Err(Error::RemoteAccess);
        }
        Ok(Rkey { region: Region::of(key.number.get())? })
    }

    fn mr_key(&self, mem: &Mem) -> Result<u64, Error> {
        mem.region.window().map_err(|_| Error::BadLocalKey)?;
        Ok(mem.region.number())
    }

    fn rkey_from_mr_key(&self, key: u64, _addr: u64, _len: u64) -> Result<Rkey, Error> {
        Ok(Rkey { region: Region::of(key)? })
    }

    fn rkey_ptr(&self, rkey: &Rkey, remote: u64, len: usize) -> Option<*mut u8> {
        rkey.window().ok()?.at(remote, len, Access::empty()).ok()
    }
}

impl Rkey {
    /// The memory, while it is registered.
    // HOT
    #[inline(always)]
    pub(super) fn window(&self) -> Result<&Window, Error> {
        self.region.window()
    }
}

impl api::Rkey for Rkey {
    fn range(&self) -> (u64, usize) {
        self.region.any_window().range()
    }
}

impl api::Memory for Mem {
    fn addr(&self) -> *mut u8 {
        self.region.any_window().start()
    }

    fn len(&self) -> usize {
        self.region.any_window().range().1
    }

    fn method(&self) -> Option<AllocMethod> {
        self.method
    }

    fn access(&self) -> Access {
        self.region.any_window().access()
    }

    fn revoke(&self) {
        self.region.close();
    }
}
