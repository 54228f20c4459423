//! Fabrics: domains and event queues are opened from them.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use ucp::SockCm;
use ucs::config::Table as _;

use crate::abi::info::{FabricAttr, Info};
use crate::abi::ops::{FabricOps, FidOps};
use crate::abi::queue::{EqAttr, WaitAttr};
use crate::abi::{Fid, flags, version};
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, from_handle, read, store_handle};
use crate::open_objects::FABRICS;
use crate::refused;

/// `struct fid_fabric`, and what belongs to it.
#[repr(C)]
pub(crate) struct Fabric {
    fid: Fid,
    ops: &'static FabricOps,
    api_version: u32,
    users: UserCount,
    /// Connections of endpoints, from the first one on.
    cm: OnceLock<SockCm>,
}

impl Object for Fabric {
    const CLASS: usize = flags::CLASS_FABRIC;
    const NAME: &'static str = "a fabric";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, refused::control);

static OPS: FabricOps =
    FabricOps { size: size_of::<FabricOps>(), domain, passive_ep, eq_open, wait_open, trywait, domain2 };

/// Opens a fabric.
/// # Safety
/// `attr` is null or whole; `to` is null or can be written.
pub(crate) unsafe fn open(
    attr: *mut FabricAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let attr = unsafe { read(attr) }?;
    let made = Fabric {
        fid: refused::fid(flags::CLASS_FABRIC, context, &FID_OPS),
        ops: &OPS,
        api_version: attr.api_version,
        users: UserCount::default(),
        cm: OnceLock::new(),
    };
    // SAFETY: as above.
    unsafe { store_handle(to, made) }?;
    // SAFETY: it has just been stored.
    FABRICS.add(unsafe { *to }, crate::info::FABRIC);
    Ok(())
}

impl Fabric {
    /// Connections, with their thread.
    pub(crate) fn cm(&self) -> Result<&SockCm, Errno> {
        if self.cm.get().is_none() {
            let config = ucp::Config::load(&crate::provider::source()?).map_err(|error| {
                tracing::error!("connections: {error}");
                Errno::INVAL
            })?;
            let limits = (config.cm_timeout, config.cm_max_pending);
            let made = SockCm::with_limits(limits.0, limits.1, crate::pep::on_cm_event)
                .map_err(|error| Errno(error.0))?;
            // Another thread may have been faster.
            let _ = self.cm.set(made);
        }
        self.cm.get().ok_or(Errno::NOMEM)
    }

    /// Whether an error entry says how much memory it has for data: from version 1.5 on.
    pub(crate) fn has_error_data(&self) -> bool {
        self.api_version >= version(1, 5)
    }
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        from_handle::<Fabric>(fid)?;
        FABRICS.remove(fid);
        Ok(0)
    }

    fn domain(fid: *mut Fid, info: *mut Info, domain: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::domain::open(checked(fid)?, info, domain, context).map(|()| 0)
    }

    fn passive_ep(fid: *mut Fid, info: *mut Info, pep: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::pep::open(checked(fid)?, info, pep, context).map(|()| 0)
    }

    fn domain2(
        fid: *mut Fid, info: *mut Info, domain: *mut *mut Fid, flags: u64, context: *mut c_void,
    ) -> c_int {
        if flags != 0 {
            tracing::debug!("fi_domain2: flags {flags:#x} are not supported");
            return Err(Errno::NOSYS);
        }
        crate::domain::open(checked(fid)?, info, domain, context).map(|()| 0)
    }

    fn eq_open(fid: *mut Fid, attr: *mut EqAttr, eq: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::eq::open(checked(fid)?, attr, eq, context).map(|()| 0)
    }

    fn wait_open(fid: *mut Fid, attr: *const WaitAttr, set: *mut *mut Fid) -> c_int {
        crate::wait_set::open(checked(fid)?, attr, set).map(|()| 0)
    }

    /// Whether a program may sleep on the descriptors of these queues.
    fn trywait(fid: *mut Fid, fids: *mut *mut Fid, count: c_int) -> c_int {
        checked::<Fabric>(fid)?;
        for at in 0..usize::try_from(count).map_err(|_| Errno::INVAL)? {
            // SAFETY: the caller passes as many.
            let queue = unsafe { fids.add(at).read() };
            if !crate::wait_set::try_wait(queue)? {
                return Err(Errno::AGAIN);
            }
        }
        Ok(0)
    }
}
