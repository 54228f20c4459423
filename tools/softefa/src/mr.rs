//! Memory regions: the `ibv_reg_*` family and `ibv_dereg_mr`.

use crate::abi::{IbvMr, IbvPd};
use crate::context::Context;
use crate::errno::{Errno, errno_of, ret_int, ret_ptr};
use crate::pd::PdObj;
use std::ffi::{c_int, c_uint, c_void};
use ucs::coll::slots::SlotId;
use uct::api::Access;
use uct::efa::dev::{Dev, DevMr};

const LOCAL_WRITE: c_uint = 1;
const REMOTE_WRITE: c_uint = 2;
const REMOTE_READ: c_uint = 4;
/// Flags that a device may ignore.
const OPTIONAL: c_uint = 0x3ff0_0000;

#[repr(C)]
struct MrObj {
    abi: IbvMr,
    id: SlotId,
}

fn access_of(flags: c_uint, rdma_read: bool, rdma_write: bool) -> Result<Access, Errno> {
    let mut access = Access::LOCAL_READ;
    let mut left = flags & !OPTIONAL;
    let mut grant = |bit: c_uint, is: Access| {
        if left & bit != 0 {
            access |= is;
            left &= !bit;
        }
    };
    grant(LOCAL_WRITE, Access::LOCAL_WRITE);
    if rdma_read {
        grant(REMOTE_READ, Access::REMOTE_READ);
    }
    if rdma_write {
        grant(REMOTE_WRITE, Access::REMOTE_WRITE);
    }
    if left == 0 { Ok(access) } else { Err(libc::EOPNOTSUPP) }
}

unsafe fn register(
    pd: *mut IbvPd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut IbvMr, Errno> {
    // SAFETY: by this function's contract `pd` is a domain.
    let pd_obj = unsafe { PdObj::of(pd) };
    let context = pd_obj.context();
    let access = access_of(flags, context.attr.rdma_read, context.attr.rdma_write)?;
    if iova != addr as u64 {
        return Err(libc::EOPNOTSUPP);
    }
    let state = &mut *context.lock();
    state.unmapped.add(addr as usize, len);
    // SAFETY: the caller of verbs keeps registered memory mapped until it is deregistered. Else the region's
    // key ends with the memory.
    let mr = unsafe { state.dev.reg_mr(&pd_obj.pd, addr.cast(), len, access) }.map_err(errno_of)?;
    let (lkey, rkey) = (mr.lkey(), mr.rkey());
    let id = state.mrs.insert(mr).map_err(|_| libc::ENOMEM)?;
    pd_obj.add_user();
    let abi = IbvMr { context: pd_obj.abi.context, pd, addr, length: len, number: lkey, lkey, rkey };
    Ok(Box::into_raw(Box::new(MrObj { abi, id })).cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(pd: *mut IbvPd, addr: *mut c_void, len: usize, flags: c_int) -> *mut IbvMr {
    // SAFETY: by this function's contract.
    ret_ptr(unsafe { register(pd, addr, len, addr as u64, flags as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut IbvPd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_int,
) -> *mut IbvMr {
    // SAFETY: by this function's contract.
    ret_ptr(unsafe { register(pd, addr, len, iova, flags as c_uint) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut IbvPd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    flags: c_uint,
) -> *mut IbvMr {
    // SAFETY: by this function's contract.
    ret_ptr(unsafe { register(pd, addr, len, iova, flags) })
}

/// Region to register, as C fills it: fields without their bit in `comp_mask` may not be there.
#[repr(C)]
pub struct IbvMrInitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
}

/// Registers ordinary memory. There is no device memory, DMA handle or buffer of this device to register.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut IbvPd, attr: *const IbvMrInitAttr) -> *mut IbvMr {
    const IOVA: u64 = 1;
    const ADDR: u64 = 2;
    // SAFETY: by this function's contract; every layout of the structure has these fields.
    let attr = unsafe { &*attr };
    let mask = attr.comp_mask;
    if mask & !(IOVA | ADDR) != 0 {
        return ret_ptr(Err(libc::EOPNOTSUPP));
    }
    if mask & ADDR == 0 {
        return ret_ptr(Err(libc::EINVAL));
    }
    let iova = if mask & IOVA != 0 { attr.iova } else { attr.addr as u64 };
    // SAFETY: by this function's contract.
    ret_ptr(unsafe { register(pd, attr.addr, attr.length, iova, attr.access as c_uint) })
}

/// There is no device memory: EOPNOTSUPP, not EBADF, tells programs that probe.
#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut IbvPd,
    _offset: u64,
    _len: usize,
    _iova: u64,
    _fd: c_int,
    _flags: c_int,
) -> *mut IbvMr {
    ret_ptr(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut IbvMr) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { &*mr.cast::<MrObj>() };
    // SAFETY: a domain outlives its regions.
    let pd = unsafe { PdObj::of(obj.abi.pd) };
    // SAFETY: a context outlives its domains.
    let Some(mut state) = (unsafe { Context::of(obj.abi.context) }).lock_to_free() else { return 0 };
    // Dropped under the lock: device objects share unsynchronised counts and the key table.
    let removed = state.mrs.remove(obj.id).map(drop);
    drop(state);
    pd.remove_user();
    // SAFETY: made by Box::into_raw in `register`, given back once.
    drop(unsafe { Box::from_raw(mr.cast::<MrObj>()) });
    ret_int(removed.ok_or(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_follows_the_capabilities() {
        assert_eq!(access_of(0, false, false), Ok(Access::LOCAL_READ));
        let read = access_of(LOCAL_WRITE | REMOTE_READ, true, false).unwrap();
        assert!(read.contains(Access::LOCAL_WRITE | Access::REMOTE_READ));
        assert_eq!(access_of(REMOTE_WRITE, true, false), Err(libc::EOPNOTSUPP));
        assert_eq!(access_of(REMOTE_READ, false, false), Err(libc::EOPNOTSUPP));
        assert_eq!(access_of(8, true, true), Err(libc::EOPNOTSUPP));
        assert!(access_of(1 << 20 | LOCAL_WRITE, false, false).is_ok(), "relaxed ordering may be ignored");
    }
}
