//! Memory and keys of a shared interface, used and dropped inside the lock.

#![allow(unsafe_code)]

use super::Iface;
use super::iface::Shared;
use crate::any;
use crate::api::{
    Access, AddrBuf, Advice, AllocMethod, AllocReq, Error, Iface as _, Md as _, MdAttr, MemQuery,
    Memory as _, Rkey as _,
};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

macro_rules! locked_object {
    ($(#[$doc:meta])+ $Outer:ident, $inner:ident: $Inner:ty) => {
        $(#[$doc])+
        pub struct $Outer {
            pub(super) $inner: ManuallyDrop<$Inner>,
            pub(super) shared: Arc<Shared>,
        }

        // SAFETY: what is inside shares state with its interface only, and is used and dropped inside its
        // lock.
        unsafe impl Send for $Outer {}
        // SAFETY: as above.
        unsafe impl Sync for $Outer {}

        impl $Outer {
            pub(super) fn new($inner: $Inner, shared: &Arc<Shared>) -> Self {
                $Outer { $inner: ManuallyDrop::new($inner), shared: shared.clone() }
            }
        }

        impl Drop for $Outer {
            fn drop(&mut self) {
                let Some(_guard) = self.shared.lock_for_drop() else { return };
                // SAFETY: dropped once, here, inside the lock.
                unsafe { ManuallyDrop::drop(&mut self.$inner) };
            }
        }
    };
}

pub(super) use locked_object;

locked_object! {
    /// Registered memory.
    Mem, mem: any::Mem
}

locked_object! {
    /// An unpacked remote key.
    Rkey, rkey: any::Rkey
}

impl Mem {
    /// First byte.
    pub fn addr(&self) -> *mut u8 {
        self.mem.addr()
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.mem.len()
    }

    /// Never true: a registration has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The way it was allocated, or `None` if the caller owns the memory.
    pub fn method(&self) -> Option<AllocMethod> {
        self.mem.method()
    }

    /// Registered access.
    pub fn access(&self) -> Access {
        self.mem.access()
    }
}

impl Rkey {
    /// The remote range it names: first virtual address in the owner's process, and length.
    pub fn range(&self) -> (u64, usize) {
        self.rkey.range()
    }
}

/// Memory domain of the interface.
impl Iface {
    /// Attributes of the memory domain.
    pub fn md_attr(&self) -> &MdAttr {
        &self.shared.md_attr
    }

    /// Allocates and registers memory.
    pub fn alloc(&self, req: &AllocReq<'_>) -> Result<Mem, Error> {
        let _guard = self.shared.lock()?;
        Ok(Mem::new(self.shared.iface.md().alloc(req)?, &self.shared))
    }

    /// Registers memory the caller owns.
    /// # Safety
    /// As [`crate::api::Md::register`].
    pub unsafe fn register(&self, addr: NonNull<u8>, len: usize, access: Access) -> Result<Mem, Error> {
        let _guard = self.shared.lock()?;
        // SAFETY: the caller's promise is the same.
        let mem = unsafe { self.shared.iface.md().register(addr.as_ptr(), len, access) }?;
        Ok(Mem::new(mem, &self.shared))
    }

    /// Packs the remote key of a registration made here.
    pub fn pack_rkey(&self, mem: &Mem) -> Result<AddrBuf, Error> {
        self.shared.check_same_iface(&mem.shared)?;
        let _guard = self.shared.lock()?;
        self.shared.iface.md().pack_rkey(&mem.mem)
    }

    /// Unpacks a peer's remote key.
    pub fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, Error> {
        let _guard = self.shared.lock()?;
        Ok(Rkey::new(self.shared.iface.md().unpack_rkey(packed)?, &self.shared))
    }

    /// Whether a range lies in one allocation made here; see [`crate::api::Md::has_allocated`].
    pub fn has_allocated(&self, addr: *const u8, len: usize) -> Result<bool, Error> {
        let _guard = self.shared.lock()?;
        Ok(self.shared.iface.md().has_allocated(addr, len))
    }

    /// See [`crate::api::Md::advise`].
    pub fn advise(&self, mem: &Mem, offset: usize, len: usize, advice: Advice) -> Result<(), Error> {
        self.shared.check_same_iface(&mem.shared)?;
        let _guard = self.shared.lock()?;
        self.shared.iface.md().advise(&mem.mem, offset, len, advice)
    }

    /// See [`crate::api::Md::query`].
    pub fn query(&self, addr: *const u8) -> Result<Option<MemQuery>, Error> {
        let _guard = self.shared.lock()?;
        Ok(self.shared.iface.md().query(addr))
    }

    /// See [`crate::api::Md::mr_key`].
    pub fn mr_key(&self, mem: &Mem) -> Result<u64, Error> {
        self.shared.check_same_iface(&mem.shared)?;
        let _guard = self.shared.lock()?;
        self.shared.iface.md().mr_key(&mem.mem)
    }

    /// See [`crate::api::Md::rkey_from_mr_key`].
    pub fn rkey_from_mr_key(&self, key: u64, addr: u64, len: u64) -> Result<Rkey, Error> {
        let _guard = self.shared.lock()?;
        Ok(Rkey::new(self.shared.iface.md().rkey_from_mr_key(key, addr, len)?, &self.shared))
    }

    /// See [`crate::api::Md::rkey_ptr`].
    pub fn rkey_ptr(&self, rkey: &Rkey, remote: u64, len: usize) -> Result<Option<NonNull<u8>>, Error> {
        self.shared.check_same_iface(&rkey.shared)?;
        let _guard = self.shared.lock()?;
        Ok(self.shared.iface.md().rkey_ptr(&rkey.rkey, remote, len).and_then(NonNull::new))
    }
}
