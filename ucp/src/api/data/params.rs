//! Parameters that raw operations share: what is called at their end, and where their data is registered.

use std::cell::Cell;

use crate::api::core::error::Error;
use crate::api::core::requests::Callback;
use crate::api::data::iov::Iov;
use crate::api::mem::memory::Mem;

use crate::rdm::RecvStatus;

/// Parameters of raw operations that have no others: receives, and the calls of streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpParams<'a> {
    /// Called at completion, unless the operation completes in the call.
    pub done: Option<Callback>,
    /// Registered memory that holds the data: nothing is registered for the operation if its access suffices.
    /// [`Error::OutsideMem`] if the data, or a piece of it, is not in there. Of data that callbacks pack or
    /// unpack nothing is checked.
    pub mem: Option<&'a Mem>,
    /// Receives length, tag and sender of a message that a receive truncates within the call
    /// ([`Error::Truncated`]). Of one that is truncated later [`RequestId::info`](crate::RequestId::info)
    /// tells.
    pub truncated: Option<&'a Cell<RecvStatus>>,
}

impl OpParams<'_> {
    /// Parameters with a callback.
    pub fn with_callback(done: Callback) -> Self {
        OpParams { done: Some(done), ..OpParams::default() }
    }
}

/// Checks that `len` bytes at `addr` lie in the memory that the parameters name, if they name one.
// HOT
#[inline(always)]
pub(crate) fn check_mem(mem: Option<&Mem>, addr: *const u8, len: usize) -> Result<(), Error> {
    match mem {
        Some(mem) if !mem.holds(addr, len) => Err(Error::OutsideMem { len, mem: mem.len() }),
        _ => Ok(()),
    }
}

/// Checks pieces as [`check_mem`] does.
#[inline]
pub(crate) fn check_mem_of_pieces(mem: Option<&Mem>, pieces: &[Iov]) -> Result<(), Error> {
    pieces.iter().try_for_each(|piece| check_mem(mem, piece.addr, piece.len))
}
