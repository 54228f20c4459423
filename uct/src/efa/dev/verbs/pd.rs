//! Protection domains and memory regions.

#![allow(unsafe_code)]

use super::ah::{Ah, AhTable};
use super::context::Context;
use super::status::last_error;
use crate::api::{Access, Error};
use crate::base::alloc::Backing;
use crate::base::mem_ptr::MemPtr;
use crate::efa::dev::{DevMr, Gid};
use rdma_sys::*;
use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A protection domain. Clones share it.
#[derive(Clone)]
pub struct Pd(pub(super) Arc<PdCore>);

pub(super) struct PdCore {
    ptr: NonNull<ibv_pd>,
    ahs: ManuallyDrop<AhTable>,
    ctx: Arc<Context>,
}

// SAFETY: the library's domains are for any thread; the handles have their own synchronisation.
unsafe impl Send for PdCore {}
// SAFETY: as above.
unsafe impl Sync for PdCore {}

impl PdCore {
    pub(super) fn new(ctx: &Arc<Context>) -> Result<Self, Error> {
        let ahs = ManuallyDrop::new(AhTable::new()?);
        // SAFETY: an open device.
        let ptr =
            NonNull::new(unsafe { ibv_alloc_pd(ctx.as_ptr()) }).ok_or_else(|| last_error("ibv_alloc_pd"))?;
        Ok(PdCore { ptr, ahs, ctx: ctx.clone() })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.ptr.as_ptr()
    }

    pub(super) fn belongs_to(&self, ctx: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.ctx, ctx)
    }

    /// Creates the handle of a GID, or adds a reference.
    pub(super) fn create_ah(&self, gid: Gid) -> Result<Ah, Error> {
        self.ahs.create(self.as_ptr(), gid)
    }

    pub(super) fn destroy_ah(&self, ah: Ah) {
        self.ahs.destroy(ah);
    }

    /// The library's handle; `None` if it was destroyed.
    // HOT
    #[inline]
    pub(super) fn ah(&self, ah: Ah) -> Option<*mut ibv_ah> {
        self.ahs.handle(ah)
    }

    /// GID of an AHN.
    // HOT
    #[inline]
    pub(super) fn gid_of(&self, ahn: u32) -> Option<Gid> {
        self.ahs.gid_of(ahn)
    }
}

impl Drop for PdCore {
    fn drop(&mut self) {
        // SAFETY: dropped once, here: handles go before their domain.
        unsafe { ManuallyDrop::drop(&mut self.ahs) };
        // SAFETY: regions and queue pairs of the domain hold a share of `self` and are gone.
        unsafe { ibv_dealloc_pd(self.as_ptr()) };
    }
}

/// A memory region. Fields are dropped after deregistration.
pub struct Mr {
    ptr: NonNull<ibv_mr>,
    addr: MemPtr,
    len: usize,
    lkey: u32,
    rkey: u32,
    memory: Option<Arc<Backing>>,
    revoked: AtomicBool,
    _pd: Arc<PdCore>,
}

// SAFETY: the library's regions are for any thread; the other fields do not change.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes at `addr`, of which the region owns `memory`.
    /// # Safety
    /// The memory stays mapped, and is used as the access rights allow, until the region is dropped.
    pub(super) unsafe fn new(
        pd: &Pd,
        addr: *mut u8,
        len: usize,
        access: Access,
        memory: Option<Backing>,
    ) -> Result<Mr, Error> {
        if addr.is_null() || len == 0 || (addr as usize).checked_add(len).is_none() {
            return Err(Error::InvalidParam("not a range of memory"));
        }
        if access.contains(Access::REMOTE_WRITE) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::InvalidParam("remote write needs local write"));
        }
        let flags = [
            (Access::LOCAL_WRITE, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
            (Access::REMOTE_READ, ibv_access_flags::IBV_ACCESS_REMOTE_READ),
            (Access::REMOTE_WRITE, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
        ];
        let flags = flags.iter().filter(|(ours, _)| access.contains(*ours)).fold(0, |all, (_, f)| all | f.0);
        // SAFETY: a live domain; the range is the caller's promise.
        let ptr = unsafe { ibv_reg_mr(pd.0.as_ptr(), addr.cast(), len, flags as i32) };
        let ptr = NonNull::new(ptr).ok_or_else(|| last_error("ibv_reg_mr"))?;
        // SAFETY: a region just made; nobody writes to it.
        let mr = unsafe { ptr.as_ref() };
        let (lkey, rkey) = (mr.lkey, mr.rkey);
        Ok(Mr {
            ptr,
            addr: MemPtr(addr),
            len,
            lkey,
            rkey,
            memory: memory.map(Arc::new),
            revoked: AtomicBool::new(false),
            _pd: pd.0.clone(),
        })
    }
}

impl DevMr for Mr {
    fn addr(&self) -> *mut u8 {
        self.addr.0
    }

    fn len(&self) -> usize {
        self.len
    }

    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn revoke(&self) {
        if !self.revoked.swap(true, Ordering::Relaxed) {
            // SAFETY: registered once, given back once; the memory goes after it.
            unsafe { ibv_dereg_mr(self.ptr.as_ptr()) };
        }
    }

    fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    fn backing(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.memory.clone().map(|memory| memory as _)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.revoke();
    }
}
