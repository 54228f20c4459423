//! Shared transmit contexts. Only the object is shared: each endpoint keeps its own device queues and its own
//! limit of operations.

use std::ffi::{c_int, c_void};

use crate::abi::ops::{EpOps, FidOps};
use crate::abi::{Fid, flags};
use crate::domain::Domain;
use crate::errno::Errno;
use crate::object::{Object, UserCount, from_handle, store_handle};
use crate::refused;

/// `struct fid_stx`, and what belongs to it.
#[repr(C)]
pub(crate) struct Stx {
    fid: Fid,
    ops: &'static EpOps,
    domain: *const Domain,
    users: UserCount,
}

impl Object for Stx {
    const CLASS: usize = flags::CLASS_STX_CTX;
    const NAME: &'static str = "a shared transmit context";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, refused::control);

/// Opens a shared transmit context.
/// # Safety
/// `to` is null or can be written.
pub(crate) unsafe fn open(domain: &Domain, to: *mut *mut Fid, context: *mut c_void) -> Result<(), Errno> {
    let made = Stx {
        fid: refused::fid(flags::CLASS_STX_CTX, context, &FID_OPS),
        ops: &crate::pep::EP_OPS,
        domain,
        users: UserCount::default(),
    };
    // SAFETY: this function's contract.
    unsafe { store_handle(to, made) }?;
    domain.users().add();
    Ok(())
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Stx>(fid)?;
        // SAFETY: a domain is not closed before its contexts.
        unsafe { &*gone.domain }.users().remove();
        Ok(0)
    }
}
