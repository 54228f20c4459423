//! Page-aligned memory of the process, as registered memory and UCX's tool have it: a copy from or to another
//! offset in a page takes up to a third longer.

use std::alloc::Layout;
use std::ptr::NonNull;

use crate::fail::Failure;
use crate::spec::Pages;

/// `len` zeros, or an error: the length may come from a peer.
pub fn zeros(len: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| {
        Failure::Unsupported(format!("cannot get {len} bytes of memory for a message (see -s)"))
    })?;
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Page-aligned heap memory, used by address: others may write it at any time.
pub struct PageBuffer {
    at: NonNull<u8>,
    layout: Layout,
}

impl PageBuffer {
    /// `len` zeros from the start of a page; `None` without memory.
    pub fn new(len: usize, pages: Pages) -> Option<PageBuffer> {
        let layout = Layout::from_size_align(len.max(1), rustix::param::page_size()).ok()?;
        // SAFETY: the layout is not empty.
        let at = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        if pages == Pages::Now {
            // SAFETY: `len` bytes that nobody else knows of yet.
            unsafe { at.as_ptr().write_bytes(0, len) };
        }
        Some(PageBuffer { at, layout })
    }

    pub fn start(&self) -> NonNull<u8> {
        self.at
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; users of the address have ended.
        unsafe { std::alloc::dealloc(self.at.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_buffer_is_aligned_and_zero() {
        for len in [0, 1, 5000] {
            let heap = PageBuffer::new(len, Pages::Now).unwrap();
            assert_eq!(heap.start().addr().get() % rustix::param::page_size(), 0);
            // SAFETY: nobody else has the address.
            let bytes = unsafe { std::slice::from_raw_parts(heap.start().as_ptr(), len) };
            assert!(bytes.iter().all(|byte| *byte == 0));
        }
        assert!(PageBuffer::new(usize::MAX, Pages::Lazy).is_none());
        let text = zeros(usize::MAX).unwrap_err().to_string();
        assert!(text.starts_with("cannot get 18446744073709551615 bytes of memory"), "{text}");
    }
}
