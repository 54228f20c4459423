//! Memory regions. Local buffers need none; a region gives a key that peers may use.

use std::ffi::{c_int, c_void};

use ucp::{Access, MapParams, Mem, MemError, ServedOps};

use crate::abi::ops::{FidOps, MrOps};
use crate::abi::{Fid, IoVec, MrAttr, flags};
use crate::domain::Domain;
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, from_handle, read, store_handle};
use crate::refused;

/// `struct fid_mr`, and what belongs to it.
#[repr(C)]
pub(crate) struct Mr {
    fid: Fid,
    /// Result of `fi_mr_desc`. Operations ignore it.
    mem_desc: *mut c_void,
    /// Result of `fi_mr_key`.
    key: u64,
    domain: *const Domain,
    users: UserCount,
    /// `None`: a region without memory.
    mem: Option<Mem>,
}

impl Object for Mr {
    const CLASS: usize = flags::CLASS_MR;
    const NAME: &'static str = "a memory region";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, bind, control);

pub(crate) static OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

impl Mr {
    /// Number of operations of peers on the region.
    pub(crate) fn served(&self) -> ServedOps {
        self.mem.as_ref().map_or(ServedOps::default(), Mem::served)
    }
}

/// Accesses that a program may ask for.
const KNOWN: u64 =
    flags::SEND | flags::RECV | flags::READ | flags::WRITE | flags::REMOTE_READ | flags::REMOTE_WRITE;

/// Rights of peers. Atomic operations write, so that `FI_REMOTE_READ` alone does not permit them.
fn access_of(access: u64) -> Access {
    let mut of_peers = Access::empty();
    of_peers.set(Access::READ, access & flags::REMOTE_READ != 0);
    of_peers.set(Access::WRITE | Access::ATOMIC, access & flags::REMOTE_WRITE != 0);
    of_peers
}

/// How the engine registers a region. A local one of a program that chooses keys has none.
fn params_of(domain: &Domain, memory: IoVec, access: u64, requested_key: u64) -> Result<MapParams, Errno> {
    let of_peers = access_of(access);
    let mut params = MapParams::new(of_peers);
    if domain.takes_unbacked() && (memory.iov_base.is_null() || domain.counts_offsets()) {
        params = params.unbacked();
    }
    if of_peers.is_empty() {
        return Ok(params);
    }
    if domain.has_own_keys() {
        params = params.key(u32::try_from(requested_key).map_err(|_| {
            tracing::error!("fi_mr_reg: key {requested_key:#x} is longer than the 4 bytes of mr_key_size");
            Errno::INVAL
        })?);
    }
    if domain.counts_offsets() {
        params = params.base(0);
    }
    if domain.caps & flags::RMA_EVENT != 0 {
        params = params.counted();
    }
    Ok(params)
}

/// # Safety
/// As for [`checked`]; the program keeps the memory until it closes the region; `to` is null or can be
/// written.
unsafe fn register(
    fid: *mut Fid,
    memory: IoVec,
    access: u64,
    (requested_key, flags): (u64, u64),
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<c_int, Errno> {
    // SAFETY: this function's contract.
    let domain: &Domain = unsafe { checked(fid) }?;
    // Counters of a region need no flag in a domain that counts what peers do.
    if flags & !(domain.caps & flags::RMA_EVENT) != 0 || access & !KNOWN != 0 {
        tracing::error!("fi_mr_reg: flags {flags:#x} or access {access:#x} are not supported");
        return Err(Errno::BADFLAGS);
    }
    // From null to the end is the whole address space, by addresses of the process.
    let is_whole = memory.iov_len == usize::MAX && domain.takes_unbacked();
    if memory.iov_base.is_null() && memory.iov_len > 0 && !is_whole {
        return Err(Errno::INVAL);
    }
    let mem = if memory.iov_len == 0 {
        None
    } else {
        // SAFETY: the program keeps the memory until it closes the region.
        let mapped = unsafe {
            let params = params_of(domain, memory, access, requested_key)?;
            domain.context.mem_map_with(memory.iov_base.cast(), memory.iov_len, params)
        };
        Some(mapped.map_err(|error| {
            tracing::error!("fi_mr_reg: {error}");
            match error {
                MemError::BadRange => Errno::INVAL,
                MemError::KeyInUse { .. } => Errno::NOKEY,
                _ => Errno::NOMEM,
            }
        })?)
    };
    let key = match &mem {
        _ if domain.has_own_keys() => requested_key,
        Some(mem) => mem.libfabric_key(),
        None => 0,
    };
    let made = Mr {
        fid: refused::fid(flags::CLASS_MR, context, &FID_OPS),
        mem_desc: std::ptr::null_mut(),
        key,
        domain,
        users: UserCount::default(),
        mem,
    };
    // SAFETY: this function's contract.
    unsafe { store_handle(to, made) }?;
    domain.users().add();
    Ok(0)
}

/// The only piece of memory of a region.
/// # Safety
/// `iov` is null or has `count` pieces.
unsafe fn single(iov: *const IoVec, count: usize) -> Result<IoVec, Errno> {
    if count != 1 {
        tracing::error!("a memory region has one piece, not {count}");
        return Err(Errno::INVAL);
    }
    // SAFETY: this function's contract.
    unsafe { read(iov) }
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Mr>(fid)?;
        // SAFETY: a domain is not closed before its regions.
        let domain = unsafe { &*gone.domain };
        domain.forget_region(&gone);
        domain.users().remove();
        drop(gone.mem);
        Ok(0)
    }

    /// Binds a counter of what peers do with the region. An endpoint changes nothing: a region is of all
    /// endpoints of its domain.
    fn bind(fid: *mut Fid, to: *mut Fid, flags: u64) -> c_int {
        let mr: &Mr = checked(fid)?;
        // SAFETY: every object begins with its class.
        match unsafe { to.as_ref() }.ok_or(Errno::INVAL)?.fclass {
            flags::CLASS_EP if flags == 0 => {}
            flags::CLASS_CNTR => {
                // SAFETY: a domain is not closed before its regions.
                unsafe { &*mr.domain }.count_region(mr, checked(to)?, flags)?;
            }
            class => {
                tracing::error!("fi_mr_bind: an object of class {class} cannot be bound with flags {flags:#x}");
                return Err(Errno::INVAL);
            }
        }
        Ok(0)
    }

    /// Enables a region, which it is from the beginning.
    fn control(fid: *mut Fid, command: c_int, _arg: *mut c_void) -> c_int {
        checked::<Mr>(fid)?;
        match command {
            flags::ENABLE => Ok(0),
            command => Err(refused::log_refusal(&format!("fi_control of a memory region: command {command}"))),
        }
    }

    fn reg(
        fid: *mut Fid,
        buf: *const c_void,
        len: usize,
        access: u64,
        _offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut Fid,
        context: *mut c_void,
    ) -> c_int {
        register(fid, IoVec { iov_base: buf.cast_mut(), iov_len: len }, access, (requested_key, flags), mr, context)
    }

    fn regv(
        fid: *mut Fid,
        iov: *const IoVec,
        count: usize,
        access: u64,
        _offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut Fid,
        context: *mut c_void,
    ) -> c_int {
        register(fid, single(iov, count)?, access, (requested_key, flags), mr, context)
    }

    fn regattr(fid: *mut Fid, attr: *const MrAttr, flags: u64, mr: *mut *mut Fid) -> c_int {
        let attr = read(attr)?;
        if attr.iface != 0 {
            tracing::error!("fi_mr_regattr: only memory of the host is supported");
            return Err(Errno::OPNOTSUPP);
        }
        let memory = single(attr.mr_iov, attr.iov_count)?;
        register(fid, memory, attr.access, (attr.requested_key, flags), mr, attr.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_peers_are_no_wider_than_asked() {
        let (read, write) = (flags::REMOTE_READ, flags::REMOTE_WRITE);
        assert_eq!(access_of(KNOWN & !read & !write), Access::empty());
        assert_eq!(access_of(read), Access::READ);
        assert_eq!(access_of(write), Access::WRITE | Access::ATOMIC);
        assert_eq!(access_of(read | write), Access::all());
    }
}
