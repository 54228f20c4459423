//! Trees of `struct fi_info` in memory of the C library: libfabric frees them, and may be a later release
//! with longer structures, so that each has zeros behind it.

use std::ffi::{CStr, c_char, c_void};

use super::answer::Answer;
use super::domains::FABRIC;
use crate::abi::info::Info;

/// Zeros behind each structure, bytes: room for fields of later releases.
const GROWTH: usize = 128;

/// Memory of the C library with a value, and zeros behind it; null if there is no memory.
fn allocate<T: Copy>(value: T) -> *mut T {
    // SAFETY: no precondition.
    let at = unsafe { libc::calloc(1, size_of::<T>() + GROWTH) }.cast::<T>();
    if !at.is_null() {
        // SAFETY: the memory is new and long enough.
        unsafe { at.write(value) };
    }
    at
}

fn text(value: &str) -> *mut c_char {
    let at = bytes(value.as_bytes(), 1);
    at.cast()
}

/// A copy with zeros behind it; null for no bytes.
fn bytes(value: &[u8], zeros: usize) -> *mut c_void {
    if value.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: no precondition.
    let at = unsafe { libc::calloc(1, value.len() + zeros) };
    if !at.is_null() {
        // SAFETY: the memory is new and long enough.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), at.cast(), value.len()) };
    }
    at
}

/// Makes an answer, followed by `next`. `None`: no memory.
pub(super) fn build(answer: &Answer, next: *mut Info) -> Option<*mut Info> {
    let mut fabric = answer.fabric;
    fabric.name = text(FABRIC);
    let mut domain = answer.domain;
    domain.name = text(&answer.domain_name);
    let info = allocate(Info {
        next,
        caps: answer.caps,
        mode: 0,
        addr_format: answer.addr_format,
        src_addrlen: answer.src_addr.len(),
        dest_addrlen: answer.dest_addr.len(),
        src_addr: bytes(&answer.src_addr, 0),
        dest_addr: bytes(&answer.dest_addr, 0),
        handle: answer.handle,
        tx_attr: allocate(answer.tx),
        rx_attr: allocate(answer.rx),
        ep_attr: allocate(answer.ep),
        domain_attr: allocate(domain),
        fabric_attr: allocate(fabric),
        nic: std::ptr::null_mut(),
    });
    // SAFETY: not null, and written above.
    let made = unsafe { info.as_ref() }?;
    let is_whole = !made.tx_attr.is_null()
        && !made.rx_attr.is_null()
        && !made.ep_attr.is_null()
        && !made.domain_attr.is_null()
        && !made.fabric_attr.is_null()
        && made.src_addr.is_null() == answer.src_addr.is_empty()
        && made.dest_addr.is_null() == answer.dest_addr.is_empty();
    if is_whole {
        return Some(info);
    }
    // SAFETY: the list after it is the caller's.
    unsafe { (*info).next = std::ptr::null_mut() };
    // SAFETY: it has just been made, and ends with itself.
    unsafe { free(info) };
    None
}

/// Writes the provider's name. It stays null if there is no memory.
/// # Safety
/// [`build`] has made `info`.
pub(super) unsafe fn set_provider(info: *mut Info, name: &CStr) {
    // SAFETY: `build` has made it.
    if let Some(fabric) = unsafe { info.as_ref().and_then(|info| info.fabric_attr.as_mut()) } {
        fabric.prov_name = bytes(name.to_bytes(), 1).cast();
    }
}

/// Frees a list.
/// # Safety
/// `list` is null or was made by [`build`], and nobody else uses it.
pub(super) unsafe fn free(mut list: *mut Info) {
    // SAFETY: `build` has made it; pointers are null or of the C library.
    while let Some(info) = unsafe { list.as_ref() } {
        // SAFETY: as above.
        let names = unsafe {
            [
                info.domain_attr.as_ref().map_or(std::ptr::null_mut(), |attr| attr.name),
                info.fabric_attr.as_ref().map_or(std::ptr::null_mut(), |attr| attr.name),
                info.fabric_attr.as_ref().map_or(std::ptr::null_mut(), |attr| attr.prov_name),
            ]
        };
        let next = info.next;
        let parts: [*mut c_void; 9] = [
            names[0].cast(),
            names[1].cast(),
            names[2].cast(),
            info.src_addr,
            info.dest_addr,
            info.tx_attr.cast(),
            info.rx_attr.cast(),
            info.ep_attr.cast(),
            info.domain_attr.cast(),
        ];
        let fabric = info.fabric_attr;
        for part in parts.into_iter().chain([fabric.cast(), list.cast()]) {
            // SAFETY: as above; each is freed once.
            unsafe { libc::free(part) };
        }
        list = next;
    }
}
