//! Memory that peers may access.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::{Access, AllocParams, MemError};
use uct::api::Advice;

use crate::context::{Context, open_status};
use crate::entry::{CStatus, mask_of};
use crate::handle::{Handle, Magic, checked, from_handle, into_handle, store};
use crate::rkey::pack;
use crate::types::{MemAdviseParams, MemAttr, MemMapParams, MemhPackParams, mem_map};

/// `UCS_MEMORY_TYPE_HOST`.
const HOST: c_int = 0;
/// Least value of `UCS_MEMORY_TYPE_UNKNOWN`, which lets the library find out. It is one more than the last
/// type, and grows with releases of UCX. Types before it are those of devices.
const UNKNOWN: c_int = 5;
/// `UCP_MADV_WILLNEED`.
const WILLNEED: c_int = 1;
/// `UCP_MEMH_PACK_FLAG_EXPORT`.
const EXPORT: u64 = 1 << 0;

/// `ucp_mem_h`.
#[repr(C)]
pub(crate) struct Mem {
    magic: Magic,
    /// `None`: memory of no bytes.
    pub(crate) mem: Option<ucp::Mem>,
    addr: *mut c_void,
    len: usize,
}

impl Handle for Mem {
    const MAGIC: u32 = 0x7570_6d6d;
    const NAME: &'static str = "memory handle";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

fn mem_status(error: &MemError) -> Status {
    tracing::error!("{error}");
    match error {
        MemError::BadRange => Status::InvalidParam,
        MemError::TooMany => Status::ExceedsLimit,
        MemError::Open(error) => open_status(error),
        MemError::Thread(_) => Status::InvalidParam,
        _ => Status::NoMemory,
    }
}

fn access_of(prot: Option<u32>) -> Access {
    let Some(prot) = prot else { return Access::all() };
    let mut access = Access::empty();
    access.set(Access::READ, prot & mem_map::REMOTE_READ != 0);
    access.set(Access::WRITE | Access::ATOMIC, prot & mem_map::REMOTE_WRITE != 0);
    access
}

fn map(context: &Context, params: *const MemMapParams) -> Result<Mem, Status> {
    let mask = mask_of(params)?;
    if mask & mem_map::EXPORTED_MEMH_BUFFER != 0 {
        tracing::error!("imported memory handles are not supported");
        return Err(Status::Unsupported);
    }
    let len = field!(params, mask, mem_map::LENGTH, length).ok_or(Status::InvalidParam)?;
    let addr = field!(params, mask, mem_map::ADDRESS, address).unwrap_or(std::ptr::null_mut());
    let flags = field!(params, mask, mem_map::FLAGS, flags).unwrap_or(0);
    let memory_type = field!(params, mask, mem_map::MEMORY_TYPE, memory_type).unwrap_or(HOST);
    if memory_type != HOST && memory_type < UNKNOWN {
        tracing::error!("memory type {memory_type}: only memory of the host is supported");
        return Err(Status::Unsupported);
    }
    let access = access_of(field!(params, mask, mem_map::PROT, prot));
    let is_allocated = flags & mem_map::ALLOCATE != 0;
    let must_be_there = flags & mem_map::FIXED != 0;
    if addr.is_null() && (!is_allocated || must_be_there) && len > 0 {
        return Err(Status::InvalidParam);
    }
    if len == 0 {
        return Ok(Mem { magic: Magic::of::<Mem>(), mem: None, addr, len });
    }
    let mem = if is_allocated {
        let mut how = AllocParams::new(access);
        if flags & mem_map::NONBLOCK != 0 {
            how = how.lazily_filled();
        }
        // Without FIXED the address is a hint, which nothing depends on.
        if let Some(at) = NonNull::new(addr.cast::<u8>()).filter(|_| must_be_there) {
            how = how.at(at);
        }
        context.context.mem_alloc_with(len, how)
    } else {
        // SAFETY: the program keeps the memory until it unmaps it.
        unsafe { context.context.mem_map(addr.cast(), len, access) }
    };
    let mem = mem.map_err(|error| mem_status(&error))?;
    let addr = mem.as_ptr().cast();
    Ok(Mem { magic: Magic::of::<Mem>(), mem: Some(mem), addr, len })
}

entry! {
    /// Allocates or registers memory.
    fn ucp_mem_map(context: *mut Context, params: *const MemMapParams, memh: *mut *mut Mem) -> CStatus {
        if memh.is_null() {
            return Err(Status::InvalidParam);
        }
        store(memh, into_handle(map(checked(context)?, params)?))
    }

    /// Withdraws and frees memory.
    fn ucp_mem_unmap(context: *mut Context, memh: *mut Mem) -> CStatus {
        checked(context)?;
        from_handle(memh).map(drop)
    }

    /// Address, length and type of memory.
    fn ucp_mem_query(memh: *mut Mem, attr: *mut MemAttr) -> CStatus {
        let memh = checked(memh)?;
        let mask = mask_of(attr)?;
        answer!(attr, mask, 1 << 0, address = memh.addr);
        answer!(attr, mask, 1 << 1, length = memh.len);
        answer!(attr, mask, 1 << 2, mem_type = HOST);
        Ok(())
    }

    /// Advises the system about a range of memory.
    fn ucp_mem_advise(context: *mut Context, memh: *mut Mem, params: *const MemAdviseParams) -> CStatus {
        checked(context)?;
        let memh = checked(memh)?;
        let mask = mask_of(params)?;
        let addr = field!(params, mask, 1 << 0, address).ok_or(Status::InvalidParam)?;
        let len = field!(params, mask, 1 << 1, length).ok_or(Status::InvalidParam)?;
        let advice = field!(params, mask, 1 << 2, advice).ok_or(Status::InvalidParam)?;
        let offset = (addr as usize).checked_sub(memh.addr as usize).ok_or(Status::InvalidParam)?;
        let advice = if advice == WILLNEED { Advice::WillNeed } else { Advice::Normal };
        match &memh.mem {
            Some(mem) => mem.advise(offset, len, advice).map_err(|_| Status::InvalidParam),
            None => Ok(()),
        }
    }

    /// Packs a remote key. Keys for other contexts of this host (export) are not supported.
    fn ucp_memh_pack(
        memh: *mut Mem, params: *const MemhPackParams, buffer: *mut *mut c_void, size: *mut usize,
    ) -> CStatus {
        let mask = mask_of(params)?;
        if field!(params, mask, 1 << 0, flags).unwrap_or(0) & EXPORT != 0 {
            tracing::warn!("ucp_memh_pack: exported memory handles are not supported");
            return Err(Status::Unsupported);
        }
        pack(checked(memh)?, buffer, size)
    }

    /// Frees what `ucp_memh_pack` has packed.
    fn ucp_memh_buffer_release(buffer: *mut c_void, _params: *const c_void) {
        // SAFETY: `pack` has allocated it; the program frees it once.
        unsafe { libc::free(buffer) };
        Ok(())
    }
}
