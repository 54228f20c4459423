//! Error entries of completion queues, and the texts of their numbers.

use std::ffi::{CString, c_char, c_int};

use ucs::Status;

use super::Cq;
use crate::abi::queue::CqErrEntry;
use crate::errno::Errno;
use crate::info::MAX_ERR_DATA;
use crate::object::store_error_entry;
use crate::ring::{Cause, Entry, Failure, Ring};

impl Cq {
    /// Takes an error.
    /// # Safety
    /// `to` is an entry, with the memory that it names.
    pub(super) unsafe fn take_error(&self, to: *mut CqErrEntry) -> Result<isize, Errno> {
        let inside = self.members.inside();
        for ep in inside.eps() {
            let next = ep.inside(|_| {
                let found = ep.rings_of(self).find_map(Ring::take_error);
                found.map(|(entry, failure)| match failure.cause {
                    // Answers to the program rather than failures. Programs read them into entries that
                    // they have not initialized, as `fi_recv_cancel` of fabtests: no data is written.
                    Cause::Failed(error) if matches!(Errno::from(error), Errno::CANCELED | Errno::NOMSG) => {
                        (entry, failure, Vec::new())
                    }
                    Cause::Failed(error) => (entry, failure, text_bytes(ep.text_of(error))),
                    Cause::UnknownSource => (entry, failure, ep.name_of(entry.from)),
                })
            });
            if let Some((entry, failure, made)) = next {
                // SAFETY: inside the lock of the members.
                let data = unsafe { &mut *self.err_data.get() };
                *data = made;
                // SAFETY: the caller passes an entry.
                unsafe { write_error(to, &entry, failure, data, self.domain().fabric().has_error_data()) };
                return Ok(1);
            }
        }
        Err(Errno::AGAIN)
    }
}

/// A text as the data of an error: as much as fits, and a zero.
fn text_bytes(words: String) -> Vec<u8> {
    let mut bytes = words.into_bytes();
    bytes.truncate(MAX_ERR_DATA - 1);
    bytes.push(0);
    bytes
}

/// Provider's number of an error whose data is the name of an unknown sender. Others are not positive.
pub(super) const UNKNOWN_SOURCE: c_int = Errno::ADDRNOTAVAIL.0;

/// Writes an error entry. Its data is copied to the memory that the entry names, or stays in `data`. A text
/// that has no room is cut, and ends with a zero. `has_size`: the entry has a size of its data, which those
/// of programs of versions before 1.5 do not have.
/// # Safety
/// `to` is an entry of the caller, without its last field unless `has_size`.
unsafe fn write_error(to: *mut CqErrEntry, entry: &Entry, failure: Failure, data: &[u8], has_size: bool) {
    let (room, size) = match has_size {
        // SAFETY: this function's contract.
        true => unsafe { ((*to).err_data, (*to).err_data_size) },
        false => (std::ptr::null_mut(), 0),
    };
    let (err_data, err_data_size) = if data.is_empty() {
        // `fi_cq_strerror` of a null pointer describes the number.
        (std::ptr::null_mut(), 0)
    } else if size > 0 && !room.is_null() {
        let len = data.len().min(size);
        // SAFETY: the caller's memory has this size.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), room.cast::<u8>(), len) };
        if matches!(failure.cause, Cause::Failed(_)) {
            // SAFETY: as above; it is not empty.
            unsafe { room.cast::<u8>().add(len - 1).write(0) };
        }
        (room, len)
    } else {
        (data.as_ptr().cast_mut().cast(), data.len())
    };
    let (err, prov_errno) = match failure.cause {
        Cause::Failed(error) => (Errno::from(error), error.status().code()),
        Cause::UnknownSource => (Errno::ADDRNOTAVAIL, UNKNOWN_SOURCE),
    };
    let shown = entry.shown;
    let made = CqErrEntry {
        op_context: shown.op_context,
        flags: shown.flags,
        len: shown.len,
        buf: shown.buf,
        data: shown.data,
        tag: shown.tag,
        olen: failure.cut,
        err: err.0,
        prov_errno,
        err_data,
        err_data_size,
    };
    // SAFETY: this function's contract.
    unsafe { store_error_entry(to, &made, has_size) };
}

/// Description of a provider's error number, in the caller's memory if there is some.
/// # Safety
/// `buf` is null or memory of `len` bytes.
pub(crate) unsafe fn describe(number: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    const UNKNOWN_SENDER: &str = "the sender is not in the address vector";
    static NAMES: std::sync::Mutex<Vec<(c_int, &'static CString)>> = std::sync::Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = names.iter().find(|(known, _)| *known == number).map(|(_, text)| *text);
    let words = match number {
        UNKNOWN_SOURCE => Some(UNKNOWN_SENDER.to_owned()),
        number => Status::from_code(number).map(|status| status.to_string()),
    };
    let text = match (known, words) {
        (Some(text), _) => text,
        (None, Some(words)) => {
            // Kept for the life of the process, as callers keep what they get. There are few numbers.
            let text = CString::new(words).unwrap_or_default();
            let text: &'static CString = Box::leak(Box::new(text));
            names.push((number, text));
            text
        }
        (None, None) => return c"unknown error of the provider".as_ptr(),
    };
    if !buf.is_null() && len > 0 {
        let bytes = text.as_bytes();
        let copied = bytes.len().min(len - 1);
        // SAFETY: the caller passes memory of this length.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast::<u8>(), copied);
            buf.add(copied).write(0);
        }
    }
    text.as_ptr()
}
