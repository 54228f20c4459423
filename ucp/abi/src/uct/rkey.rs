//! Remote keys: packed, they begin with their length, since UCX passes none.

use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use ::ucs::Status;
use ::uct::any;
use ::uct::api::{Iface as _, Md as _, Rkey as _};

use super::component::Component;
use super::iface::Iface;
use super::md::{Md, MemHandle};
use super::types::{INVALID_RKEY, RkeyBundle};
use crate::arg::OutPtr;
use crate::entry::{CStatus, invalid};
use crate::handle::{Handle, Magic, checked, from_handle, into_handle};

/// Bytes of a packed key, if its content takes at most `len`.
pub(crate) fn packed_size(len: usize) -> usize {
    1 + len
}

/// An unpacked key. UCX unpacks for a component, this engine for a memory domain: it is unpacked for each
/// domain by whose endpoints it is used. Endpoints of several threads may use it at a time.
#[repr(C)]
pub(crate) struct Rkey {
    magic: Magic,
    packed: Vec<u8>,
    /// The key for the first domain, with that domain's number.
    first: OnceLock<(usize, any::Rkey)>,
    others: Mutex<Vec<(usize, Box<any::Rkey>)>>,
}

impl Handle for Rkey {
    const MAGIC: u32 = 0x7563_746b;
    const NAME: &'static str = "uct remote key";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

impl Rkey {
    /// The key for endpoints of an interface.
    // HOT
    #[inline(always)]
    fn on(&self, iface: &Iface) -> Result<&any::Rkey, Status> {
        match self.first.get() {
            Some((id, rkey)) if *id == iface.md_id => Ok(rkey),
            _ => self.unpack_for(iface),
        }
    }

    #[cold]
    fn unpack_for(&self, iface: &Iface) -> Result<&any::Rkey, Status> {
        let unpack = || iface.inner.md().unpack_rkey(&self.packed).map_err(|error| error.status());
        if self.first.get().is_none() {
            // Another thread may be faster, with another domain.
            let _ = self.first.set((iface.md_id, unpack()?));
        }
        if let Some((id, rkey)) = self.first.get()
            && *id == iface.md_id
        {
            return Ok(rkey);
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match others.iter().position(|(id, _)| *id == iface.md_id) {
            Some(at) => at,
            None => {
                others.push((iface.md_id, Box::new(unpack()?)));
                others.len() - 1
            }
        };
        // SAFETY: the key is in a box of its own, which lives as long as `self`: none is removed.
        Ok(unsafe { &*std::ptr::from_ref(&*others[at].1) })
    }
}

/// Order of two keys of the caller, by what their owners packed.
pub(super) fn compare(one: usize, other: usize) -> Result<std::cmp::Ordering, Status> {
    let packed = |rkey: usize| -> Result<&[u8], Status> {
        if rkey == INVALID_RKEY {
            return Err(invalid("the remote key is UCT_INVALID_RKEY"));
        }
        Ok(&checked(std::ptr::with_exposed_provenance::<Rkey>(rkey))?.packed)
    };
    Ok(packed(one)?.cmp(packed(other)?))
}

/// The key behind a number of the caller, for endpoints of an interface.
/// # Safety
/// `rkey` is 0, [`INVALID_RKEY`], or a key of `uct_rkey_unpack`, which is not released while the result is
/// used.
// HOT
#[inline(always)]
pub(crate) unsafe fn rkey_of<'a>(rkey: usize, iface: &Iface) -> Result<&'a any::Rkey, Status> {
    if rkey == 0 || rkey == INVALID_RKEY {
        return Err(invalid("the remote key is 0 or UCT_INVALID_RKEY"));
    }
    // SAFETY: this function's contract.
    let key: &'a Rkey = unsafe { &*std::ptr::with_exposed_provenance(rkey) };
    key.on(iface)
}

entry! {
    /// Packs the key of registered memory into `uct_md_attr_t::rkey_packed_size` bytes.
    fn uct_md_mkey_pack(md: *mut Md, memh: *const MemHandle, buffer: *mut c_void) -> CStatus {
        let (md, memory) = (checked(md)?, checked(memh)?);
        if buffer.is_null() {
            return Err(invalid("uct_md_mkey_pack: buffer is null"));
        }
        let packed = md.md.pack_rkey(&memory.mem).map_err(|error| {
            tracing::error!("cannot pack a key of {}: {error}", md.name());
            error.status()
        })?;
        let length = u8::try_from(packed.len()).map_err(|_| Status::ExceedsLimit)?;
        // SAFETY: the caller has room for the longest key and its length.
        unsafe {
            buffer.cast::<u8>().write(length);
            buffer.cast::<u8>().add(1).copy_from_nonoverlapping(packed.as_ptr(), packed.len());
        }
        Ok(())
    }

    /// Unpacks a key. It is checked here if a memory domain of the component is open, else at its first use.
    fn uct_rkey_unpack(
        component: *const Component, buffer: *const c_void, bundle: OutPtr<RkeyBundle>,
    ) -> CStatus {
        let component = checked(component)?;
        if buffer.is_null() || bundle.is_null() {
            return Err(invalid("uct_rkey_unpack: buffer or bundle is null"));
        }
        // SAFETY: the caller passes what `uct_md_mkey_pack` wrote: a length, and that many bytes.
        let packed = unsafe {
            let length = usize::from(buffer.cast::<u8>().read());
            std::slice::from_raw_parts(buffer.cast::<u8>().add(1), length).to_vec()
        };
        let first = OnceLock::new();
        if let Some((id, md)) = super::md::open_domain(component.tl) {
            let rkey = md.unpack_rkey(&packed).map_err(|error| {
                tracing::error!("cannot unpack a key of component {}: {error}", component.tl);
                error.status()
            })?;
            let _ = first.set((id, rkey));
        }
        let key = into_handle(Rkey { magic: Magic::of::<Rkey>(), packed, first, others: Mutex::default() });
        let kind = std::ptr::from_ref(component).cast_mut().cast();
        bundle.store(RkeyBundle { rkey: key.expose_provenance(), handle: key.cast(), kind })
    }

    /// Frees a key.
    fn uct_rkey_release(component: *const Component, bundle: *const RkeyBundle) -> CStatus {
        checked(component)?;
        // SAFETY: the caller passes a bundle, or null.
        let bundle = unsafe { bundle.as_ref() }.ok_or_else(|| invalid("uct_rkey_release: bundle is null"))?;
        from_handle(bundle.handle.cast::<Rkey>()).map(drop)
    }

    /// Stores an address at which remote memory is mapped here.
    fn uct_rkey_ptr(
        component: *const Component, bundle: *const RkeyBundle, remote: u64, address: OutPtr<*mut c_void>,
    ) -> CStatus {
        let component = checked(component)?;
        // SAFETY: the caller passes a bundle, or null.
        let bundle = unsafe { bundle.as_ref() }.ok_or_else(|| invalid("uct_rkey_ptr: bundle is null"))?;
        let key = checked(bundle.handle.cast::<Rkey>().cast_const())?;
        let (_, md) = super::md::open_domain(component.tl).ok_or(Status::Unreachable)?;
        let unpacked = md.unpack_rkey(&key.packed).map_err(|error| error.status())?;
        let rkey = key.first.get().map_or(&unpacked, |(_, rkey)| rkey);
        let (start, len) = rkey.range();
        let left = start.checked_add(len as u64).and_then(|end| end.checked_sub(remote)).filter(|_| remote >= start);
        let left = left.filter(|left| *left > 0).ok_or(Status::InvalidAddr)?;
        let found = md.rkey_ptr(rkey, remote, left as usize).ok_or(Status::Unreachable)?;
        address.store(found.cast())
    }
}
