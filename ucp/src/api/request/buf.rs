//! Containers that an operation owns while it runs and returns with the result; their bytes do not move.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::Arc;

/// A container whose bytes can be sent while an operation owns it.
/// # Safety
/// The slice of [`bytes`](IoBuf::bytes) keeps its address and contents while the container exists and is
/// neither borrowed nor consumed, even if the container is moved.
pub unsafe trait IoBuf: 'static {
    /// Bytes to send.
    fn bytes(&self) -> &[u8];
}

/// A container that can be received into while an operation owns it.
/// # Safety
/// The bytes that [`memory`](IoBufMut::memory) returns stay valid for writes at one address while the
/// container exists and is neither borrowed nor consumed, even if the container is moved.
pub unsafe trait IoBufMut: 'static {
    /// Address and length in bytes of the writable memory; it may be uninitialised.
    fn memory(&mut self) -> (*mut u8, usize);

    /// Tells the container that the first `len` bytes of its memory hold a message.
    /// # Safety
    /// `len` is at most the memory's length, and these bytes have been written.
    unsafe fn set_filled(&mut self, len: usize);

    /// Length that [`set_filled`](IoBufMut::set_filled) has set, or that the container had before, bytes. The
    /// default is for containers whose length does not change.
    fn current_len(&self) -> usize {
        usize::MAX
    }
}

macro_rules! impl_io_buf {
    ($($ty:ty)*) => {$(
        // SAFETY: the bytes are on the heap or static, and only a borrow or the end of the container changes
        // them. A counted container is mutable only while its count is one, and the operation owns one.
        unsafe impl IoBuf for $ty {
            fn bytes(&self) -> &[u8] {
                self.as_ref()
            }
        }
    )*};
}
impl_io_buf!(Vec<u8> Box<[u8]> Rc<[u8]> Arc<[u8]> String &'static [u8] &'static str);

// SAFETY: as above; a static array is never moved or written.
unsafe impl<const N: usize> IoBuf for &'static [u8; N] {
    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }
}

/// Receives into the vector's capacity; a message sets the vector's length.
// SAFETY: the allocation is on the heap and stays where it is until the vector is grown, shrunk or dropped.
unsafe impl IoBufMut for Vec<u8> {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.capacity())
    }

    unsafe fn set_filled(&mut self, len: usize) {
        debug_assert!(len <= self.capacity());
        // SAFETY: the caller vouches that `len` bytes, within the capacity, were written.
        unsafe { self.set_len(len) };
    }

    fn current_len(&self) -> usize {
        self.len()
    }
}

// SAFETY: the allocation is on the heap and stays where it is until the box is dropped.
unsafe impl IoBufMut for Box<[u8]> {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }

    unsafe fn set_filled(&mut self, _len: usize) {}
}

/// A container in_flight to a running operation. Moving it asserts nothing about the memory that the engine
/// writes. Dropping it leaks the container; call [`InFlightBuf::into_inner`] when the operation has ended.
pub(crate) struct InFlightBuf<B>(MaybeUninit<B>);

impl<B> InFlightBuf<B> {
    pub(crate) fn new(buf: B) -> Self {
        InFlightBuf(MaybeUninit::new(buf))
    }

    pub(crate) fn get_mut(&mut self) -> &mut B {
        // SAFETY: initialised, see `into_inner`.
        unsafe { self.0.assume_init_mut() }
    }

    pub(crate) fn into_inner(self) -> B {
        // SAFETY: `new`, the only constructor, initialises it, and `self` is consumed.
        unsafe { self.0.assume_init() }
    }
}

impl<B: IoBuf> InFlightBuf<B> {
    pub(crate) fn bytes(&self) -> (*const u8, usize) {
        // SAFETY: initialised, see `into_inner`.
        let buf = unsafe { self.0.assume_init_ref() };
        let bytes = buf.bytes();
        (bytes.as_ptr(), bytes.len())
    }
}

impl<B: IoBufMut> InFlightBuf<B> {
    pub(crate) fn memory(&mut self) -> (*mut u8, usize) {
        self.get_mut().memory()
    }
}

/// Buffer of an operation that continues without its request, dropped when the operation has ended.
pub(crate) struct DetachedBuf<B>(Option<InFlightBuf<B>>);

impl<B> DetachedBuf<B> {
    pub(crate) fn new(buf: InFlightBuf<B>) -> Self {
        DetachedBuf(Some(buf))
    }

    pub(crate) fn into_inner(mut self) -> B {
        self.0.take().expect("only this takes it").into_inner()
    }
}

impl<B> Drop for DetachedBuf<B> {
    fn drop(&mut self) {
        drop(self.0.take().map(InFlightBuf::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent<B: IoBuf>(buf: B) -> Vec<u8> {
        let in_flight = InFlightBuf::new(buf);
        let before = in_flight.bytes();
        let moved = Box::new(in_flight);
        assert_eq!(before, moved.bytes());
        moved.into_inner().bytes().to_vec()
    }

    #[test]
    fn every_container_keeps_its_bytes_in_place() {
        assert_eq!(sent(vec![1, 2, 3]), [1, 2, 3]);
        assert_eq!(sent(vec![4u8; 9].into_boxed_slice()), [4; 9]);
        assert_eq!(sent(Rc::<[u8]>::from([7u8, 8])), [7, 8]);
        assert_eq!(sent(Arc::<[u8]>::from([7u8, 8])), [7, 8]);
        assert_eq!(sent("text"), b"text");
        assert_eq!(sent(b"bytes"), b"bytes");
        assert_eq!(sent(String::from("owned")), b"owned");
    }

    #[test]
    fn a_vectors_length_follows_the_message() {
        let mut in_flight = InFlightBuf::new(Vec::<u8>::with_capacity(16));
        let (at, capacity) = in_flight.memory();
        assert!(capacity >= 16);
        // SAFETY: `at` is the start of at least 16 bytes of the vector's own allocation.
        unsafe { at.write_bytes(5, 3) };
        let mut buf = in_flight.into_inner();
        // SAFETY: three bytes were written just now.
        unsafe { buf.set_filled(3) };
        assert_eq!(buf, [5, 5, 5]);
    }
}
