//! A pointer that threads share.

#![allow(unsafe_code)]

/// The first byte of memory that threads share. Access through it is up to whoever knows the memory's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemPtr(pub *mut u8);

// SAFETY: an address is not bound to a thread; each access through it is unsafe and justified where it is.
unsafe impl Send for MemPtr {}
// SAFETY: as above.
unsafe impl Sync for MemPtr {}
