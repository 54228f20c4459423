//! Remote keys.

use std::ffi::{c_int, c_void};

use ::ucs::Status;

use crate::arg::OutPtr;
use crate::context::Context;
use crate::entry::{CStatus, invalid};
use crate::ep::Ep;
use crate::handle::{Handle, Magic, checked, from_handle, into_handle};
use crate::mem::Mem;
use crate::packed::{Packed, alloc_packed, release};
use crate::worker::Worker;

/// Bytes of a packed key that tell its length.
const LENGTH_PREFIX: usize = 5;
/// Packed key of memory of no bytes.
const EMPTY: &[u8; LENGTH_PREFIX] = b"RK\x05\x00\x00";

/// `ucp_rkey_h`.
#[repr(C)]
pub(crate) struct Rkey {
    magic: Magic,
    pub(crate) rkey: ucp::Rkey,
}

impl Handle for Rkey {
    const MAGIC: u32 = 0x7570_726b;
    const NAME: &'static str = "remote key";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

/// Packs the key of memory.
pub(crate) fn pack(memh: &Mem, buffer: OutPtr<*mut c_void>, size: OutPtr<usize>) -> Result<(), Status> {
    if buffer.is_null() || size.is_null() {
        return Err(invalid("ucp_rkey_pack: buffer or size is null"));
    }
    let packed = memh.mem.as_ref().map_or_else(|| EMPTY.to_vec(), ucp::Mem::pack_rkey);
    buffer.store(alloc_packed(&packed, Packed::Key)?)?;
    size.store(packed.len())
}

/// Unpacks a key for an endpoint.
/// # Safety
/// `at` is null, or a packed key can be read there.
unsafe fn unpack(ep: &Ep, at: *const c_void) -> Result<ucp::Rkey, Status> {
    if at.is_null() {
        return Err(invalid("ucp_ep_rkey_unpack: the packed key is null"));
    }
    // SAFETY: this function's contract: none is shorter.
    let first = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), LENGTH_PREFIX) };
    if first == EMPTY {
        return Ok(ucp::Rkey::from_key(0));
    }
    let len = ucp::packed_rkey_len(first).map_err(|error| {
        tracing::error!("{error}");
        Status::InvalidParam
    })?;
    // SAFETY: that is the length of the key.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
    ep.worker().with_worker(|_| ep.ep.unpack_rkey(bytes))?.map_err(|error| {
        tracing::error!("{error}");
        Status::InvalidParam
    })
}

entry! {
    /// Packs the remote key of memory.
    fn ucp_rkey_pack(
        context: *mut Context, memh: *mut Mem, buffer: OutPtr<*mut c_void>, size: OutPtr<usize>,
    ) -> CStatus {
        checked(context)?;
        pack(checked(memh)?, buffer, size)
    }

    /// Frees a packed key of this library; refuses anything else.
    fn ucp_rkey_buffer_release(buffer: *mut c_void) {
        release(buffer, Packed::Key)
    }

    /// Unpacks a remote key, for an endpoint to its owner.
    fn ucp_ep_rkey_unpack(ep: *mut Ep, buffer: *const c_void, rkey: OutPtr<*mut Rkey>) -> CStatus {
        if rkey.is_null() {
            return Err(invalid("ucp_ep_rkey_unpack: rkey is null"));
        }
        // SAFETY: the caller's contract.
        let unpacked = unsafe { unpack(checked(ep)?, buffer) }?;
        rkey.store(into_handle(Rkey { rkey: unpacked, magic: Magic::of::<Rkey>() }))
    }

    /// Frees a remote key.
    fn ucp_rkey_destroy(rkey: *mut Rkey) {
        from_handle(rkey).map(drop)
    }

    /// Address here of a peer's memory, if it is mapped.
    fn ucp_rkey_ptr(rkey: *mut Rkey, raddr: u64, addr: OutPtr<*mut c_void>) -> CStatus {
        let at = checked(rkey)?.rkey.ptr(raddr, 0).ok_or(Status::Unreachable)?;
        addr.store(at.cast())
    }

    /// Order of two keys: negative, 0 or positive.
    fn ucp_rkey_compare(
        worker: *mut Worker, one: *mut Rkey, other: *mut Rkey, _params: *const c_void, result: OutPtr<c_int>,
    ) -> CStatus {
        checked(worker)?;
        let order = checked(one)?.rkey.compare(&checked(other)?.rkey);
        result.store(order as c_int)
    }
}
