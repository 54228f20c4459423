//! Operations on borrowed memory: they return only after the operation's end, even if a callback panics.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::request::SharedRequest;
use super::shared::Inside;
use crate::api::RawRequest;
use crate::{Error, RecvStatus, RequestId};

/// Leaves the lock and waits for the end of an operation, which a panic of a callback cancels.
pub(super) fn wait(inside: Inside<'_>, id: RequestId) -> Result<RecvStatus, Error> {
    let mut request = SharedRequest::new(RawRequest::running(inside.worker().clone(), id), &inside);
    drop(inside);
    let mut first_panic = None;
    loop {
        match catch_unwind(AssertUnwindSafe(|| request.wait_for_end())) {
            Ok(ended) => match first_panic {
                None => return ended,
                Some(panic) => resume_unwind(panic),
            },
            Err(panic) => {
                first_panic.get_or_insert(panic);
                // An error means that another thread is inside (mode serialized); the operation goes on.
                let _ = request.cancel();
            }
        }
    }
}
