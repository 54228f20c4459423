//! Protection domains with their address handles, and memory regions. An address handle is an index, looked
//! up at each post, so a destroyed one is detected.

#![allow(unsafe_code)]

use super::context::{Context, PORT};
use super::efadv;
use super::status::{error, last_error};
use crate::api::{Access, Error};
use crate::efa::dev::{DevMr, Gid};
use rdma_sys::*;
use rustc_hash::FxHashMap;
use std::any::Any;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use ucs::Errno;
use ucs::mem::Mapping;

/// An address handle: an index in its domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ah(u32);

/// A protection domain. Clones share it.
#[derive(Clone)]
pub struct Pd(pub(super) Rc<PdCore>);

pub(super) struct PdCore {
    ptr: NonNull<ibv_pd>,
    ahs: RefCell<AhTable>,
    ctx: Rc<Context>,
}

#[derive(Default)]
struct AhTable {
    entries: Vec<Option<AhEntry>>,
    free: Vec<u32>,
    by_gid: FxHashMap<Gid, u32>,
    /// GIDs by AHN, by which completions name senders.
    by_ahn: Vec<Option<Gid>>,
}

struct AhEntry {
    ptr: NonNull<ibv_ah>,
    gid: Gid,
    ahn: u16,
    refs: u32,
}

impl PdCore {
    pub(super) fn new(ctx: &Rc<Context>) -> Result<Self, Error> {
        // SAFETY: an open device.
        let ptr =
            NonNull::new(unsafe { ibv_alloc_pd(ctx.as_ptr()) }).ok_or_else(|| last_error("ibv_alloc_pd"))?;
        Ok(PdCore { ptr, ahs: RefCell::default(), ctx: ctx.clone() })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.ptr.as_ptr()
    }

    pub(super) fn belongs_to(&self, ctx: &Rc<Context>) -> bool {
        Rc::ptr_eq(&self.ctx, ctx)
    }

    /// Creates the handle of a GID, or adds a reference.
    pub(super) fn create_ah(&self, gid: Gid) -> Result<Ah, Error> {
        let t = &mut *self.ahs.borrow_mut();
        if let Some(&at) = t.by_gid.get(&gid) {
            if let Some(entry) = &mut t.entries[at as usize] {
                entry.refs += 1;
            }
            return Ok(Ah(at));
        }
        let (ptr, ahn) = self.make_ah(gid)?;
        let entry = Some(AhEntry { ptr, gid, ahn, refs: 1 });
        let at = match t.free.pop() {
            Some(at) => {
                t.entries[at as usize] = entry;
                at
            }
            None => {
                t.entries.push(entry);
                t.entries.len() as u32 - 1
            }
        };
        t.by_gid.insert(gid, at);
        let ahn = usize::from(ahn);
        if t.by_ahn.len() <= ahn {
            t.by_ahn.resize(ahn + 1, None);
        }
        t.by_ahn[ahn] = Some(gid);
        Ok(Ah(at))
    }

    fn make_ah(&self, gid: Gid) -> Result<(NonNull<ibv_ah>, u16), Error> {
        // SAFETY: integers only.
        let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
        attr.grh.dgid = ibv_gid { raw: gid.0 };
        attr.is_global = 1;
        attr.port_num = PORT;
        // SAFETY: a live domain, a whole attribute.
        let ptr = unsafe { ibv_create_ah(self.as_ptr(), &mut attr) };
        let ptr = NonNull::new(ptr).ok_or_else(|| match Errno::last_os().0 {
            libc::ENOMEM => Error::Exhausted("address handles"),
            e => error("ibv_create_ah", Errno(e)),
        })?;
        let mut efa = efadv::AhAttr::default();
        // SAFETY: a live handle; `efa` is as long as is said.
        let failed = unsafe { efadv::efadv_query_ah(ptr.as_ptr(), &mut efa, size_of_val(&efa) as u32) };
        if failed != 0 {
            // SAFETY: made above, known to nobody.
            unsafe { ibv_destroy_ah(ptr.as_ptr()) };
            return Err(error("efadv_query_ah", Errno(failed)));
        }
        Ok((ptr, efa.ahn))
    }

    pub(super) fn destroy_ah(&self, ah: Ah) {
        let t = &mut *self.ahs.borrow_mut();
        let Some(slot) = t.entries.get_mut(ah.0 as usize) else { return };
        let Some(entry) = slot else { return };
        entry.refs -= 1;
        if entry.refs > 0 {
            return;
        }
        t.by_gid.remove(&entry.gid);
        t.by_ahn[usize::from(entry.ahn)] = None;
        t.free.push(ah.0);
        // SAFETY: made by `make_ah`, destroyed once: its entry is emptied now.
        unsafe { ibv_destroy_ah(entry.ptr.as_ptr()) };
        *slot = None;
    }

    /// The library's handle; `None` if it was destroyed. // HOT
    #[inline]
    pub(super) fn ah(&self, ah: Ah) -> Option<*mut ibv_ah> {
        let t = self.ahs.borrow();
        t.entries.get(ah.0 as usize)?.as_ref().map(|entry| entry.ptr.as_ptr())
    }

    /// GID of an AHN. // HOT
    #[inline]
    pub(super) fn gid_of(&self, ahn: u32) -> Option<Gid> {
        self.ahs.borrow().by_ahn.get(ahn as usize).copied().flatten()
    }
}

impl Drop for PdCore {
    fn drop(&mut self) {
        for entry in self.ahs.get_mut().entries.drain(..).flatten() {
            // SAFETY: made by `make_ah`; nobody is left to post with it.
            unsafe { ibv_destroy_ah(entry.ptr.as_ptr()) };
        }
        // SAFETY: regions and queue pairs of the domain hold a share of `self` and are gone.
        unsafe { ibv_dealloc_pd(self.as_ptr()) };
    }
}

/// A memory region. Fields are dropped after deregistration.
pub struct Mr {
    ptr: NonNull<ibv_mr>,
    addr: *mut u8,
    len: usize,
    lkey: u32,
    rkey: u32,
    memory: Option<Arc<Mapping>>,
    _pd: Rc<PdCore>,
}

impl Mr {
    /// Registers `len` bytes at `addr`, of which the region owns `memory`.
    /// # Safety
    /// The memory stays mapped, and is used as the access rights allow, until the region is dropped.
    pub(super) unsafe fn new(
        pd: &Pd,
        addr: *mut u8,
        len: usize,
        access: Access,
        memory: Option<Mapping>,
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
        Ok(Mr { ptr, addr, len, lkey, rkey, memory: memory.map(Arc::new), _pd: pd.0.clone() })
    }
}

impl DevMr for Mr {
    fn addr(&self) -> *mut u8 {
        self.addr
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

    fn backing(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.memory.clone().map(|memory| memory as _)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: registered once, given back once; the memory goes after it.
        unsafe { ibv_dereg_mr(self.ptr.as_ptr()) };
    }
}
