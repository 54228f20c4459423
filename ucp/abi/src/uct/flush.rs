//! Flush and fence.

use std::ffi::c_uint;

use ::ucs::Status;
use ::uct::api::{Ep as _, Error, Iface as _, Refused};

use super::answer;
use super::ep::{Ep, checked_ep};
use super::iface::{Iface, checked_iface};
use super::progress::comp_of;
use super::types::Completion;
use crate::entry::CStatus;

/// `UCT_FLUSH_FLAG_CANCEL`: what the device has goes on to its end, as UCX allows.
const CANCEL: c_uint = 1 << 0;

fn check_flags(flags: c_uint, known: c_uint) -> Result<(), Status> {
    if flags & !known == 0 {
        return Ok(());
    }
    tracing::error!("flush flags {:#x} are not supported", flags & !known);
    Err(Status::Unsupported)
}

operation! {
    /// Completes when the endpoint's operations have.
    fn ep_flush(ep: *mut Ep, flags: c_uint, completion: *mut Completion) -> CStatus {
        check_flags(flags, CANCEL)?;
        // SAFETY: the caller's contract.
        match checked_ep(ep)?.inner.flush(unsafe { comp_of(completion) }) {
            // Nothing is left of what was to be cancelled.
            Err(Refused::Failed(Error::PeerDead)) if flags & CANCEL != 0 => Ok(()),
            flushed => answer(flushed),
        }
    }

    /// Operations that follow take effect after those before.
    fn ep_fence(ep: *mut Ep, _flags: c_uint) -> CStatus {
        answer(checked_ep(ep)?.inner.fence())
    }

    /// Completes when all operations of the interface have.
    fn iface_flush(iface: *mut Iface, flags: c_uint, completion: *mut Completion) -> CStatus {
        check_flags(flags, 0)?;
        // SAFETY: the caller's contract.
        answer(checked_iface(iface)?.inner.flush(unsafe { comp_of(completion) }))
    }

    /// Operations of all endpoints that follow take effect after those before.
    fn iface_fence(iface: *mut Iface, _flags: c_uint) -> CStatus {
        answer(checked_iface(iface)?.inner.fence())
    }
}
