//! Receives into memory that is not contiguous: pieces, blocks, or unpacked by callbacks. RMA reads write up
//! to four pieces directly.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::io::IoSliceMut;

use crate::api::core::error::Error;
use crate::api::core::requests::{OpStatus, RequestId};
use crate::api::data::iov::Iov;
use crate::api::data::params::OpParams;
use crate::api::data::raw::Layout;
use crate::api::data::start::with_recv_data;
use crate::api::ep::handle::Ep;
use crate::api::request::buf::{InFlightBuf, IoBufMut};
use crate::api::request::handles::RecvRequest;
use crate::api::stream::ops::start_stream_recv;
use crate::api::stream::state::StreamRecvMode;
use crate::api::tag::recv::{Match, Message, start_recv};
use crate::api::worker::handle::{AmMessage, Worker};

use crate::rdm::RecvStatus;

fn iov_of_mut<B: IoBufMut>(bufs: &mut [B]) -> Vec<Iov> {
    bufs.iter_mut().map(|buf| buf.memory()).map(|(addr, len)| Iov { addr, len }).collect()
}

impl Worker {
    /// Receives a message accepted by `matching` into the memory of a [`Layout`]; a longer one ends with
    /// [`Error::Truncated`]. [`Error::Unsupported`] on a worker in zero-copy receive mode.
    /// # Safety
    /// As for [`Worker::recv_raw`], of every piece; callbacks may be called with their state as long.
    pub unsafe fn recv_layout_raw<'a>(
        &self,
        data: impl Into<Layout<'a>>,
        matching: Match,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let start = |buf, done| start_recv(self, buf, matching, &OpParams { done, ..*params });
        // SAFETY: this function's contract.
        unsafe { with_recv_data(self, data.into(), params, start) }
    }

    /// Receives a message accepted by `matching` into containers, filled in order. Sets the length of each.
    pub fn recv_iov<B: IoBufMut>(&self, matching: Match, mut bufs: Vec<B>) -> RecvRequest<Vec<B>> {
        let pieces = iov_of_mut(&mut bufs);
        let in_flight = InFlightBuf::new(bufs);
        // SAFETY: the request keeps the containers until the end, and `IoBufMut` fixes their memory.
        let started = unsafe { self.recv_layout_raw(&pieces, matching, &OpParams::default()) };
        RecvRequest::new_list(self, started, in_flight)
    }

    /// Receives a message into borrowed memory, making progress until it has arrived.
    pub fn recv_iov_blocking(
        &self,
        matching: Match,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<RecvStatus, Error> {
        let iov = |buf: &mut IoSliceMut<'_>| Iov { addr: buf.as_mut_ptr(), len: buf.len() };
        let pieces: Vec<Iov> = bufs.iter_mut().map(iov).collect();
        // SAFETY: `wait_borrowed` returns after the operation's end, even if a callback panics.
        match unsafe { self.recv_layout_raw(&pieces, matching, &OpParams::default()) }? {
            OpStatus::Done(status) => Ok(status),
            OpStatus::InProgress(id) => self.wait_borrowed(id),
        }
    }
}

impl Message {
    /// Receives the message into the memory of a [`Layout`]; otherwise like [`Message::recv_raw`].
    /// # Safety
    /// As for [`Worker::recv_layout_raw`].
    pub unsafe fn recv_layout_raw<'a>(
        &mut self,
        data: impl Into<Layout<'a>>,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let worker = self.worker.clone();
        let start = |buf, done| self.start(buf, &OpParams { done, ..*params });
        // SAFETY: this function's contract.
        unsafe { with_recv_data(&worker, data.into(), params, start) }
    }

    /// Receives the message into containers, filled in order.
    pub fn recv_iov<B: IoBufMut>(mut self, mut bufs: Vec<B>) -> RecvRequest<Vec<B>> {
        let pieces = iov_of_mut(&mut bufs);
        let (worker, in_flight) = (self.worker.clone(), InFlightBuf::new(bufs));
        // SAFETY: as in `Worker::recv_iov`.
        let started = unsafe { self.recv_layout_raw(&pieces, &OpParams::default()) };
        RecvRequest::new_list(&worker, started, in_flight)
    }
}

impl AmMessage {
    /// Receives the data into containers, filled in order; otherwise like [`AmMessage::recv`].
    pub fn recv_iov<B: IoBufMut>(mut self, mut bufs: Vec<B>) -> RecvRequest<Vec<B>> {
        let pieces = iov_of_mut(&mut bufs);
        let in_flight = InFlightBuf::new(bufs);
        // SAFETY: as in `Worker::recv_iov`.
        let started = unsafe { self.recv_layout_raw(&pieces, &OpParams::default()) };
        RecvRequest::new_list(&self.worker, started, in_flight)
    }

    /// Receives the data into the memory of a [`Layout`]; otherwise like [`AmMessage::recv_raw`].
    /// # Safety
    /// As for [`Worker::recv_layout_raw`].
    pub unsafe fn recv_layout_raw<'a>(
        &mut self,
        data: impl Into<Layout<'a>>,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let worker = self.worker.clone();
        let start = |buf, done| self.start_recv(buf, &OpParams { done, ..*params });
        // SAFETY: this function's contract.
        unsafe { with_recv_data(&worker, data.into(), params, start) }
    }

    /// Copies data that came with the header into the memory of a [`Layout`]. The message keeps it. `None`:
    /// the data is still to be received.
    /// # Safety
    /// As for [`Worker::recv_layout_raw`], for the time of this call.
    pub unsafe fn copy_layout_raw<'a>(
        &self,
        data: impl Into<Layout<'a>>,
        params: &OpParams<'_>,
    ) -> Option<Result<OpStatus<RecvStatus>, Error>> {
        self.data()?;
        let copy = |buf, _done| self.copy_data(buf).map(OpStatus::Done);
        // SAFETY: this function's contract.
        Some(unsafe { with_recv_data(self.worker(), data.into(), params, copy) })
    }
}

impl Ep {
    /// Receives stream bytes into the memory of a [`Layout`]; otherwise like [`Ep::stream_recv_raw`].
    /// # Safety
    /// As for [`Ep::stream_recv_raw`], of every piece; callbacks may be called with their state as long.
    pub unsafe fn stream_recv_layout_raw<'a>(
        &self,
        data: impl Into<Layout<'a>>,
        mode: StreamRecvMode,
        params: &OpParams<'_>,
    ) -> Result<RequestId, Error> {
        let start =
            |buf, done| start_stream_recv(self, buf, mode, done).map(OpStatus::<Infallible>::InProgress);
        // SAFETY: the caller vouches for the memory until the operation's end.
        let OpStatus::InProgress(id) = unsafe { with_recv_data(self.worker(), data.into(), params, start) }?;
        Ok(id)
    }

    /// Receives stream bytes into containers, filled in order.
    pub fn stream_recv_iov<B: IoBufMut>(
        &self,
        mut bufs: Vec<B>,
        mode: StreamRecvMode,
    ) -> RecvRequest<Vec<B>> {
        let pieces = iov_of_mut(&mut bufs);
        let in_flight = InFlightBuf::new(bufs);
        // SAFETY: as in `Worker::recv_iov`.
        let started = unsafe { self.stream_recv_layout_raw(&pieces, mode, &OpParams::default()) };
        RecvRequest::new_list(self.worker(), started.map(OpStatus::InProgress), in_flight)
    }
}
