//! The containers that sends and receives take, and how the engine sees them.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::api::core::error::Error;
use crate::api::request::buf::{InFlightBuf, IoBuf, IoBufMut};

use crate::rdm::{GenericData, RecvBuf, RecvList};

/// How the engine sees data to send.
pub enum SendView {
    /// Contiguous bytes.
    Bytes(*const u8, usize),
    /// Data that callbacks pack, at a stable address.
    Generic(NonNull<GenericData>),
}

/// How the engine sees memory to receive into.
pub enum RecvView {
    /// Contiguous bytes.
    Bytes(*mut u8, usize),
    /// Data that callbacks unpack, at a stable address.
    List(NonNull<RecvList>),
}

/// Data of a message, an active message or a stream: a container of bytes ([`IoBuf`]),
/// [`Packed`](crate::Packed) or [`Strided`](crate::Strided). The request owns it while the operation runs,
/// and returns it with the result.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be sent",
    note = "send a container of bytes, or wrap a `Pack` in `ucp::Packed`"
)]
pub trait SendData: Sized + 'static {
    /// Returns the data of an operation that owns the container.
    #[doc(hidden)]
    fn send_view(&mut self) -> Result<SendView, Error>;
}

/// Memory for a message, an active message or a stream: a container of bytes ([`IoBufMut`]),
/// [`Unpacked`](crate::Unpacked) or [`Strided`](crate::Strided). The request owns it while the operation
/// runs, and returns it with the result.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be received into",
    note = "receive into a container of bytes, or wrap an `Unpack` in `ucp::Unpacked`"
)]
pub trait RecvData: Sized + 'static {
    /// Returns the memory of an operation that owns the container.
    #[doc(hidden)]
    fn recv_view(&mut self) -> Result<RecvView, Error>;

    /// Tells the container that its first `len` bytes hold a message.
    /// # Safety
    /// `len` is at most the length of the memory, and these bytes have been written.
    #[doc(hidden)]
    unsafe fn filled(&mut self, len: usize);
}

impl<B: IoBuf> SendData for B {
    #[inline(always)]
    fn send_view(&mut self) -> Result<SendView, Error> {
        let bytes = self.bytes();
        Ok(SendView::Bytes(bytes.as_ptr(), bytes.len()))
    }
}

impl<B: IoBufMut> RecvData for B {
    #[inline(always)]
    fn recv_view(&mut self) -> Result<RecvView, Error> {
        let (at, len) = self.memory();
        Ok(RecvView::Bytes(at, len))
    }

    #[inline(always)]
    unsafe fn filled(&mut self, len: usize) {
        // SAFETY: this function's contract.
        unsafe { self.set_filled(len) };
    }
}

impl<B: SendData> InFlightBuf<B> {
    #[inline(always)]
    pub(crate) fn send_view(&mut self) -> Result<SendView, Error> {
        self.get_mut().send_view()
    }
}

impl<B: RecvData> InFlightBuf<B> {
    #[inline(always)]
    pub(crate) fn recv_view(&mut self) -> Result<RecvView, Error> {
        self.get_mut().recv_view()
    }

    /// Destination of a receive. Unsafe: the container is kept until the receive has ended.
    pub(crate) unsafe fn recv_buf(&mut self) -> Result<RecvBuf, Error> {
        // SAFETY: this function's contract; the memory does not move.
        self.recv_view().map(|view| unsafe { view.buf() })
    }
}

impl RecvView {
    /// Destination of a receive. Unsafe: the container is kept until the receive has ended.
    #[inline]
    pub(crate) unsafe fn buf(self) -> RecvBuf {
        match self {
            // SAFETY: this function's contract.
            RecvView::Bytes(at, len) => unsafe { RecvBuf::new(at, len) },
            RecvView::List(list) => {
                // SAFETY: as above.
                let list = unsafe { list.as_ref() };
                // SAFETY: as above.
                unsafe { RecvBuf::of_list(list) }
            }
        }
    }
}
