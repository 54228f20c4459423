//! Memory that peers may access.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use ::ucs::Status;
use ucp::{Access, AllocParams, MemError};
use uct::api::Advice;

use crate::arg::{AttrPtr, OutPtr, ParamsPtr};
use crate::context::{Context, open_status};
use crate::entry::{CStatus, invalid};
use crate::handle::{Handle, Magic, checked, from_handle, into_handle};
use crate::packed::{Packed, alloc_packed, release};
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
        MemError::NotExportable => Status::Unsupported,
        MemError::NotExported => Status::InvalidParam,
        MemError::NotMapped => Status::Unreachable,
        _ => Status::NoMemory,
    }
}

/// Refuses memory of devices.
pub(crate) fn check_type(memory_type: c_int) -> Result<(), Status> {
    if memory_type != HOST && memory_type < UNKNOWN {
        tracing::error!("memory type {memory_type}: only memory of the host is supported");
        return Err(Status::Unsupported);
    }
    Ok(())
}

fn access_of(prot: Option<u32>) -> Access {
    let Some(prot) = prot else { return Access::all() };
    let mut access = Access::empty();
    access.set(Access::READ, prot & mem_map::REMOTE_READ != 0);
    access.set(Access::WRITE | Access::ATOMIC, prot & mem_map::REMOTE_WRITE != 0);
    access
}

/// Bytes of exported memory that tell its length.
const EXPORT_PREFIX: usize = 9;

/// Maps memory that another process has exported.
/// # Safety
/// Exported memory can be read at `at`.
unsafe fn import(context: &Context, at: *const u8) -> Result<Mem, Status> {
    // SAFETY: this function's contract: none is shorter.
    let first = unsafe { std::slice::from_raw_parts(at, EXPORT_PREFIX) };
    let len = ucp::exported_mem_len(first).map_err(|error| mem_status(&error))?;
    // SAFETY: that is its length.
    let exported = unsafe { std::slice::from_raw_parts(at, len) };
    let mem = context.context.mem_import(exported).map_err(|error| match &error {
        MemError::Wire(reason) => {
            tracing::error!("exported memory cannot be mapped: {reason}");
            reason.status()
        }
        _ => mem_status(&error),
    })?;
    Ok(Mem { magic: Magic::of::<Mem>(), addr: mem.as_ptr().cast(), len: mem.len(), mem: Some(mem) })
}

/// Allocates, registers or imports memory.
fn map(context: &Context, params: ParamsPtr<MemMapParams>) -> Result<Mem, Status> {
    let params = params.fields("ucp_mem_map")?;
    let exported = field!(params, mem_map::EXPORTED_MEMH_BUFFER, exported_memh_buffer);
    if let Some(exported) = exported.filter(|exported| !exported.is_null()) {
        // SAFETY: the program's parameters name exported memory.
        return unsafe { import(context, exported.cast()) };
    }
    let len =
        field!(params, mem_map::LENGTH, length).ok_or_else(|| invalid("ucp_mem_map: length is missing"))?;
    let addr = field!(params, mem_map::ADDRESS, address).unwrap_or(std::ptr::null_mut());
    let flags = field!(params, mem_map::FLAGS, flags).unwrap_or(0);
    let memory_type = field!(params, mem_map::MEMORY_TYPE, memory_type).unwrap_or(HOST);
    check_type(memory_type)?;
    let access = access_of(field!(params, mem_map::PROT, prot));
    let is_allocated = flags & mem_map::ALLOCATE != 0;
    let must_be_there = flags & mem_map::FIXED != 0;
    if addr.is_null() && (!is_allocated || must_be_there) && len > 0 {
        return Err(invalid(
            "ucp_mem_map: the address is null, and the flags do not let the library choose one",
        ));
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
    fn ucp_mem_map(context: *mut Context, params: ParamsPtr<MemMapParams>, memh: OutPtr<*mut Mem>) -> CStatus {
        if memh.is_null() {
            return Err(invalid("ucp_mem_map: memh is null"));
        }
        memh.store(into_handle(map(checked(context)?, params)?))
    }

    /// Withdraws and frees memory.
    fn ucp_mem_unmap(context: *mut Context, memh: *mut Mem) -> CStatus {
        checked(context)?;
        from_handle(memh).map(drop)
    }

    /// Address, length and type of memory.
    fn ucp_mem_query(memh: *mut Mem, attr: AttrPtr<MemAttr>) -> CStatus {
        let memh = checked(memh)?;
        let attr = attr.fields("ucp_mem_query")?;
        answer!(attr, 1 << 0, address = memh.addr);
        answer!(attr, 1 << 1, length = memh.len);
        answer!(attr, 1 << 2, mem_type = HOST);
        Ok(())
    }

    /// Advises the system about a range of memory.
    fn ucp_mem_advise(context: *mut Context, memh: *mut Mem, params: ParamsPtr<MemAdviseParams>) -> CStatus {
        checked(context)?;
        let memh = checked(memh)?;
        let params = params.fields("ucp_mem_advise")?;
        let addr = field!(params, 1 << 0, address).ok_or_else(|| invalid("ucp_mem_advise: address is missing"))?;
        let len = field!(params, 1 << 1, length).ok_or_else(|| invalid("ucp_mem_advise: length is missing"))?;
        let advice = field!(params, 1 << 2, advice).ok_or_else(|| invalid("ucp_mem_advise: advice is missing"))?;
        let offset = (addr as usize).checked_sub(memh.addr as usize);
        let offset = offset.ok_or_else(|| invalid("ucp_mem_advise: the address is not within the memory"))?;
        let advice = if advice == WILLNEED { Advice::WillNeed } else { Advice::Normal };
        match &memh.mem {
            Some(mem) => mem.advise(offset, len, advice).map_err(|error| mem_status(&error)),
            None => Ok(()),
        }
    }

    /// Packs a remote key, or memory for `ucp_mem_map` of another process of this user.
    fn ucp_memh_pack(
        memh: *mut Mem, params: ParamsPtr<MemhPackParams>, buffer: OutPtr<*mut c_void>, size: OutPtr<usize>,
    ) -> CStatus {
        let params = params.fields("ucp_memh_pack")?;
        let memh = checked(memh)?;
        if field!(params, 1 << 0, flags).unwrap_or(0) & EXPORT == 0 {
            return pack(memh, buffer, size);
        }
        if buffer.is_null() || size.is_null() {
            return Err(invalid("ucp_memh_pack: buffer or size is null"));
        }
        let exported = memh.mem.as_ref().ok_or(MemError::NotExportable).and_then(ucp::Mem::export);
        let exported = exported.map_err(|error| mem_status(&error))?;
        buffer.store(alloc_packed(&exported, Packed::Key)?)?;
        size.store(exported.len())
    }

    /// Frees what `ucp_memh_pack` has packed; refuses anything else.
    fn ucp_memh_buffer_release(buffer: *mut c_void, _params: *const c_void) {
        release(buffer, Packed::Key)
    }
}
