//! Receives into memory that is not contiguous: pieces, blocks, or unpacked by callbacks. RMA reads write up
//! to four pieces directly.

#![allow(unsafe_code)]

use std::convert::Infallible;
use std::io::IoSliceMut;

use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, Ended, OpStatus, RequestId};
use crate::api::data::iov::Iov;
use crate::api::data::ops::DataOp;
use crate::api::data::params::OpParams;
use crate::api::data::raw::{Data, Layout};
use crate::api::data::view::RecvView;
use crate::api::ep::handle::Ep;
use crate::api::request::buf::{IoBufMut, LentBuf};
use crate::api::request::handles::RecvRequest;
use crate::api::stream::state::StreamRecvMode;
use crate::api::tag::recv::{Match, Message};
use crate::api::worker::handle::{AmMessage, Worker};

use crate::rdm::{RecvArgs, RecvBuf, RecvList, RecvStatus};

fn iov_of_mut<B: IoBufMut>(bufs: &mut [B]) -> Vec<Iov> {
    bufs.iter_mut().map(|buf| buf.memory()).map(|(addr, len)| Iov { addr, len }).collect()
}

/// Sets `list` to `pieces`, if the sum of their lengths does not overflow. Safety: as for [`RecvBuf::new`].
unsafe fn build_list(list: &mut RecvList, pieces: &[Iov]) -> Result<(), Error> {
    // SAFETY: this function's contract.
    let bufs = pieces.iter().map(|piece| unsafe { RecvBuf::new(piece.addr, piece.len) });
    if list.fill(bufs) { Ok(()) } else { Err(Error::Invalid) }
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
        let start = |buf, done| self.start_recv(buf, matching, done);
        // SAFETY: this function's contract.
        unsafe { self.with_recv_data(data.into(), params, start) }
    }

    pub(crate) fn start_recv(
        &self,
        buf: RecvBuf,
        matching: Match,
        done: Option<Callback>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let mut core = self.core();
        let user = core.reqs.next_token()?;
        core.recv(RecvArgs { buf, kind: matching.kind, from: matching.from, user }, done)
    }

    /// Receives a message accepted by `matching` into containers, filled in order. Sets the length of each.
    pub fn recv_iov<B: IoBufMut>(&self, matching: Match, mut bufs: Vec<B>) -> RecvRequest<Vec<B>> {
        let pieces = iov_of_mut(&mut bufs);
        let lent = LentBuf::new(bufs);
        // SAFETY: the request keeps the containers until the end, and `IoBufMut` fixes their memory.
        let started = unsafe { self.recv_layout_raw(&pieces, matching, &OpParams::default()) };
        self.make_list_request(started, lent)
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

    /// Starts a receive and keeps what the engine needs. Safety: as for [`Worker::recv_layout_raw`].
    unsafe fn with_recv_data<T>(
        &self,
        data: Layout<'_>,
        params: &OpParams<'_>,
        start: impl FnOnce(RecvBuf, Option<Callback>) -> Result<OpStatus<T>, Error>,
    ) -> Result<OpStatus<T>, Error> {
        match data.data_in(params.mem)? {
            // SAFETY: this function's contract.
            Data::Bytes(at, len) => start(unsafe { RecvBuf::new(at, len) }, params.done),
            // SAFETY: as above.
            Data::Pieces(pieces) => unsafe { self.with_recv_list(pieces, |buf| start(buf, params.done)) },
            Data::Callbacks(data) => {
                // SAFETY: as above.
                let list = |op: &DataOp| unsafe { RecvView::List(op.bound.list()).buf() };
                // SAFETY: as above.
                unsafe { self.with_data(data, params.done, |op, done| start(list(op), Some(done))) }
            }
        }
    }

    /// Starts a write to `pieces` and keeps their list. Safety: as for [`Worker::recv_raw`].
    unsafe fn with_recv_list<T>(
        &self,
        pieces: &[Iov],
        start: impl FnOnce(RecvBuf) -> Result<OpStatus<T>, Error>,
    ) -> Result<OpStatus<T>, Error> {
        let mut list = self.recv_lists().take();
        // SAFETY: this function's contract.
        let built = unsafe { build_list(&mut list, pieces) };
        // SAFETY: as above; the list is boxed and kept until the operation's end.
        let started = built.and_then(|()| start(unsafe { RecvBuf::of_list(&list) }));
        match started {
            Ok(OpStatus::InProgress(id)) => {
                let core = self.core();
                self.recv_lists().keep(id, list, |id| core.reqs.role(id).is_some());
            }
            _ => self.recv_lists().recycle(list),
        }
        started
    }

    fn make_list_request<B: IoBufMut>(
        &self,
        started: Result<OpStatus<RecvStatus>, Error>,
        lent: LentBuf<Vec<B>>,
    ) -> RecvRequest<Vec<B>> {
        match started {
            Ok(OpStatus::Done(status)) => RecvRequest::ended_list(Ok(status), lent),
            Ok(OpStatus::InProgress(id)) => RecvRequest::running_list(self.clone(), id, lent),
            Err(e) => RecvRequest::ended_list(Err(e), lent),
        }
    }
}

impl Message {
    /// Receives the message into the memory of a [`Layout`].
    /// # Safety
    /// As for [`Worker::recv_layout_raw`].
    pub unsafe fn recv_layout_raw<'a>(
        mut self,
        data: impl Into<Layout<'a>>,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let worker = self.worker.clone();
        // SAFETY: this function's contract.
        unsafe { worker.with_recv_data(data.into(), params, |buf, done| self.start(buf, done)) }
    }

    /// Receives the message into containers, filled in order.
    pub fn recv_iov<B: IoBufMut>(self, mut bufs: Vec<B>) -> RecvRequest<Vec<B>> {
        let pieces = iov_of_mut(&mut bufs);
        let (worker, lent) = (self.worker.clone(), LentBuf::new(bufs));
        // SAFETY: as in `Worker::recv_iov`.
        let started = unsafe { self.recv_layout_raw(&pieces, &OpParams::default()) };
        worker.make_list_request(started, lent)
    }
}

impl AmMessage {
    /// Receives the data into containers, filled in order; otherwise like [`AmMessage::recv`].
    pub fn recv_iov<B: IoBufMut>(mut self, mut bufs: Vec<B>) -> RecvRequest<Vec<B>> {
        if let Some(data) = self.take_data_match() {
            return self.worker.recv_iov(data, bufs);
        }
        let pieces = iov_of_mut(&mut bufs);
        let lent = LentBuf::new(bufs);
        // SAFETY: `lent` keeps the containers for this call, and nothing is written later.
        let ended = unsafe { self.copy_to_pieces(&pieces) };
        RecvRequest::ended_list(ended, lent)
    }

    /// Receives data that is already here. Safety: as for [`RecvBuf::new`], of every piece.
    unsafe fn copy_to_pieces(&self, pieces: &[Iov]) -> Ended {
        let mut list = RecvList::NONE;
        // SAFETY: this function's contract.
        unsafe { build_list(&mut list, pieces) }?;
        // SAFETY: as above.
        self.copy_data(unsafe { RecvBuf::of_list(&list) })
    }

    /// Receives the data into the memory of a [`Layout`]; otherwise like [`AmMessage::recv`].
    /// # Safety
    /// As for [`Worker::recv_layout_raw`].
    pub unsafe fn recv_layout_raw<'a>(
        mut self,
        data: impl Into<Layout<'a>>,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let worker = self.worker.clone();
        if let Some(matching) = self.take_data_match() {
            // SAFETY: this function's contract.
            return unsafe { worker.recv_layout_raw(data, matching, params) };
        }
        let copy = |buf, _done| self.copy_data(buf).map(OpStatus::Done);
        // SAFETY: this function's contract.
        unsafe { worker.with_recv_data(data.into(), params, copy) }
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
            |buf, done| self.start_stream_recv(buf, mode, done).map(OpStatus::<Infallible>::InProgress);
        // SAFETY: the caller vouches for the memory until the operation's end.
        let OpStatus::InProgress(id) = unsafe { self.worker().with_recv_data(data.into(), params, start) }?;
        Ok(id)
    }

    /// Receives stream bytes into containers, filled in order.
    pub fn stream_recv_iov<B: IoBufMut>(
        &self,
        mut bufs: Vec<B>,
        mode: StreamRecvMode,
    ) -> RecvRequest<Vec<B>> {
        let pieces = iov_of_mut(&mut bufs);
        let lent = LentBuf::new(bufs);
        // SAFETY: as in `Worker::recv_iov`.
        let started = unsafe { self.stream_recv_layout_raw(&pieces, mode, &OpParams::default()) };
        self.worker().make_list_request(started.map(OpStatus::InProgress), lent)
    }
}
