//! Memory domain of `self`: registrations in a list of the thread. A key dies with its registration.

#![allow(unsafe_code)]

use super::TL;
use super::regions::Region;
use crate::api::{self, Access, AddrBuf, AllocMethod, AllocReq, Error, MdAttr};
use crate::base::alloc::{self, Backing, by_methods};
use crate::base::direct::Window;
use std::rc::Rc;

const RKEY_LEN: usize = 8;

/// The memory domain of `self`.
#[derive(Clone, Debug)]
pub struct Md {
    attr: Rc<MdAttr>,
}

/// Registered memory.
#[derive(Debug)]
pub struct Mem {
    addr: *mut u8,
    region: Rc<Region>,
    method: Option<AllocMethod>,
}

/// An unpacked key.
#[derive(Clone, Debug)]
pub struct Rkey {
    region: Rc<Region>,
}

impl Default for Md {
    fn default() -> Self {
        Md::open()
    }
}

impl Md {
    /// Opens a domain. Keys are good in all domains of the thread.
    pub fn open() -> Self {
        Md {
            attr: Rc::new(MdAttr {
                component: TL,
                can_alloc: true,
                can_register: true,
                has_rkey: true,
                rkey_needs_alloc: false,
                needs_local_key: false,
                rkey_len: RKEY_LEN,
                max_reg: None,
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
    ) -> Rc<Region> {
        // SAFETY: the memory is valid until the registration is dropped, which closes the region, or for as
        // long as its backing lives.
        let window = unsafe { Window::new(addr.addr() as u64, len, addr, access) };
        // SAFETY: as above.
        unsafe { Region::open(window, backing) }
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
            let region = unsafe { self.region(addr, req.len, req.access, Some(backing)) };
            Ok(Mem { addr, region, method: Some(method) })
        })
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, Error> {
        if addr.is_null() || len == 0 {
            return Err(Error::InvalidParam("registration of no memory"));
        }
        // SAFETY: the caller's promise is the same.
        let region = unsafe { self.region(addr, len, access, None) };
        Ok(Mem { addr, region, method: None })
    }

    fn pack_rkey(&self, mem: &Mem) -> Result<AddrBuf, Error> {
        Ok(mem.region.key().to_le_bytes().into_iter().collect())
    }

    fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, Error> {
        let key = packed.try_into().map_err(|_| Error::InvalidParam("not a key of this transport"))?;
        Ok(Rkey { region: Region::of(u64::from_le_bytes(key))? })
    }

    fn mr_key(&self, mem: &Mem) -> Result<u64, Error> {
        Ok(mem.region.mr_key())
    }

    fn rkey_from_mr_key(&self, key: u64, _addr: u64, _len: u64) -> Result<Rkey, Error> {
        Ok(Rkey { region: Region::of(key)? })
    }

    fn rkey_ptr(&self, rkey: &Rkey, remote: u64, len: usize) -> Option<*mut u8> {
        rkey.window().ok()?.at(remote, len, Access::empty()).ok()
    }
}

impl Rkey {
    /// The memory, while it is registered. // HOT
    #[inline(always)]
    pub(super) fn window(&self) -> Result<&Window, Error> {
        self.region.window()
    }

    /// Keeps the memory mapped for a closure that is shown a part of it, which may let go of it.
    pub(super) fn keep_mapped(&self) -> Option<Rc<Backing>> {
        self.region.keep_mapped()
    }
}

impl api::Rkey for Rkey {
    fn range(&self) -> (u64, usize) {
        self.region.any_window().range()
    }
}

impl api::Memory for Mem {
    fn addr(&self) -> *mut u8 {
        self.addr
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
}

impl Drop for Mem {
    fn drop(&mut self) {
        self.region.close();
    }
}
