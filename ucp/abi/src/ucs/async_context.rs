//! Contexts of asynchronous events. Interfaces here need none: what must happen without progress is done by
//! threads of their own. A context is made and freed, and holds nothing.

use std::ffi::{c_int, c_uint, c_void};

use ::ucs::Status;

use crate::arg::OutPtr;
use crate::entry::CStatus;

/// `UCS_ASYNC_MODE_LAST`.
const MODES: c_int = 4;

fn check(mode: c_int) -> Result<(), Status> {
    if (0..MODES).contains(&mode) { Ok(()) } else { Err(Status::InvalidParam) }
}

fn refuse(name: &str) -> Result<(), Status> {
    tracing::error!("{name}: handlers of asynchronous events are not supported");
    Err(Status::Unsupported)
}

entry! {
    /// Prepares a context in memory of the caller, which is not used.
    fn ucs_async_context_init(context: *mut c_void, mode: c_int) -> CStatus {
        check(mode)?;
        if context.is_null() { Err(Status::InvalidParam) } else { Ok(()) }
    }

    /// Ends what `ucs_async_context_init` began.
    fn ucs_async_context_cleanup(_context: *mut c_void) {
        Ok(())
    }

    /// Makes a context.
    fn ucs_async_context_create(mode: c_int, context: OutPtr<*mut c_void>) -> CStatus {
        check(mode)?;
        if context.is_null() {
            return Err(Status::InvalidParam);
        }
        context.store(Box::into_raw(Box::new(mode)).cast())
    }

    /// Frees a context.
    fn ucs_async_context_destroy(context: *mut c_void) {
        if !context.is_null() {
            // SAFETY: `ucs_async_context_create` has made it.
            drop(unsafe { Box::from_raw(context.cast::<c_int>()) });
        }
        Ok(())
    }

    /// Polls events: there are none.
    fn ucs_async_poll(_context: *mut c_void) {
        Ok(())
    }

    /// Not supported: a handler of a descriptor.
    fn ucs_async_set_event_handler(
        _mode: c_int, _fd: c_int, _events: c_uint, _handler: *const c_void, _arg: *mut c_void,
        _context: *mut c_void,
    ) -> CStatus {
        refuse("ucs_async_set_event_handler")
    }

    /// Not supported: a timer.
    fn ucs_async_add_timer(
        _mode: c_int, _interval: u64, _handler: *const c_void, _arg: *mut c_void, _context: *mut c_void,
        _id: *mut c_int,
    ) -> CStatus {
        refuse("ucs_async_add_timer")
    }

    /// No handler has that number.
    fn ucs_async_remove_handler(_id: c_int, _sync: c_int) -> CStatus {
        Err(Status::NoElem)
    }

    /// No handler has that descriptor.
    fn ucs_async_modify_handler(_fd: c_int, _events: c_uint) -> CStatus {
        Err(Status::NoElem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_made_and_freed() {
        let mut context = std::ptr::null_mut::<c_void>();
        // SAFETY: the memory is of this test.
        unsafe {
            assert_eq!(ucs_async_context_create(1, (&mut context).into()), CStatus(0));
            ucs_async_context_destroy(context);
            assert_eq!(ucs_async_context_create(4, (&mut context).into()), Status::InvalidParam.into());
            assert_eq!(
                ucs_async_context_create(1, OutPtr::new(std::ptr::null_mut())),
                Status::InvalidParam.into()
            );
            assert_eq!(ucs_async_context_init(std::ptr::null_mut(), 1), Status::InvalidParam.into());
            ucs_async_context_destroy(std::ptr::null_mut());
        }
    }
}
