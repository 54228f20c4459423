//! Sends of data that is not contiguous: pieces, blocks, or packed by callbacks. It is copied into packets,
//! never read by RMA.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use arrayvec::ArrayVec;

use crate::api::am::send::{AmParams, AmProto, AmSend};
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus};
use crate::api::core::staging::Staged;
use crate::api::data::iov::Iov;
use crate::api::data::ops::DataOp;
use crate::api::data::params::OpParams;
use crate::api::data::raw::{Data, Layout};
use crate::api::ep::handle::{Ep, SendParams};
use crate::api::request::buf::{IoBuf, LentBuf};
use crate::api::request::handles::SendRequest;

use crate::rdm::{GenericData, SendBuf};
use crate::select::Sync;
use crate::wire::MsgClass;

/// Most pieces that need no allocation if the send ends within the call.
const INLINE_PIECES: usize = 16;

/// Safety: as for [`SendBuf::new`].
unsafe fn send_buf_of(piece: &Iov) -> SendBuf {
    // SAFETY: this function's contract.
    unsafe { SendBuf::new(piece.addr, piece.len) }
}

/// Result of a send of `data`: a failed callback fails what has ended within the call.
fn with_error_of(data: &GenericData, started: Result<OpStatus<()>, Error>) -> Result<OpStatus<()>, Error> {
    match (started, data.error()) {
        (Ok(OpStatus::Done(())), Some(error)) => Err(Error::Datatype(error)),
        (started, _) => started,
    }
}

fn iov_of<B: IoBuf>(buf: &B) -> Iov {
    let bytes = buf.bytes();
    Iov { addr: bytes.as_ptr().cast_mut(), len: bytes.len() }
}

impl Ep {
    /// Sends the data of a [`Layout`] as one message. [`Error::Invalid`] if the sum of lengths overflows.
    /// # Safety
    /// Unless the call returns *done* or an error, the bytes of every piece stay valid and unchanged until
    /// the operation ends, callbacks may be called with their state as long, and `params.done` may be called
    /// with its argument.
    pub unsafe fn send_layout_raw<'a>(
        &self,
        data: impl Into<Layout<'a>>,
        params: &SendParams,
    ) -> Result<OpStatus<()>, Error> {
        match data.into().data_in(params.mem)? {
            // SAFETY: this function's contract.
            Data::Bytes(at, len) => unsafe { self.send_raw(at, len, params) },
            // SAFETY: as above.
            Data::Pieces(pieces) => unsafe { self.send_pieces(pieces, params) },
            Data::Callbacks(data) => {
                let start = |op: &DataOp, done| {
                    let params = &SendParams { done: Some(done), ..*params };
                    // SAFETY: as above.
                    unsafe { self.send_generic(op.bound.data(), params) }
                };
                // SAFETY: as above.
                unsafe { self.worker().with_data(data, params.done, start) }
            }
        }
    }

    /// Sends a message that callbacks pack. Safety: as for [`Ep::send_layout_raw`].
    #[inline(never)]
    pub(crate) unsafe fn send_generic(
        &self,
        data: NonNull<GenericData>,
        params: &SendParams,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: this function's contract.
        let data = unsafe { data.as_ref() };
        // SAFETY: as above.
        let buf = unsafe { SendBuf::of_generic(data) };
        let sent = match *params {
            SendParams { tag: Some(tag), sync: Sync::No, cq_data: None, .. } => {
                self.send_short_list(MsgClass::Message, tag, buf)
            }
            _ => false,
        };
        // SAFETY: as above.
        let started = if sent { Ok(OpStatus::Done(())) } else { unsafe { self.send_any(buf, params) } };
        with_error_of(data, started)
    }

    /// Safety: as for [`Ep::send_layout_raw`].
    unsafe fn send_pieces(&self, pieces: &[Iov], params: &SendParams) -> Result<OpStatus<()>, Error> {
        if let SendParams { tag: Some(tag), sync: Sync::No, cq_data: None, .. } = *params
            // SAFETY: the caller vouches for the bytes during this call.
            && unsafe { self.try_send_short_iov(MsgClass::Message, tag, pieces) }?
        {
            return Ok(OpStatus::Done(()));
        }
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let list = pieces.iter().map(|piece| unsafe { send_buf_of(piece) });
        // SAFETY: as above.
        let staged = unsafe { self.worker().staging().stage(&[], list) };
        // SAFETY: as above, and what is staged is kept as long.
        self.with_staged(staged, |buf| unsafe { self.send_any(buf, params) })
    }

    /// Sends the bytes of containers in order as one message. Ignores `params.done`.
    pub fn send_iov<B: IoBuf>(&self, bufs: Vec<B>, params: &SendParams) -> SendRequest<Vec<B>> {
        let params = &SendParams { done: None, ..*params };
        let pieces: Vec<Iov> = bufs.iter().map(iov_of).collect();
        let lent = LentBuf::new(bufs);
        // SAFETY: the request keeps the containers until the end, and `IoBuf` fixes their bytes.
        let started = unsafe { self.send_layout_raw(&pieces, params) };
        self.make_request(started, lent)
    }

    /// Sends an active message with the data of a [`Layout`]; otherwise like [`Ep::am_send_raw`].
    /// # Safety
    /// As for [`Ep::send_layout_raw`].
    pub unsafe fn am_send_layout_raw<'a>(
        &self,
        id: u16,
        header: &[u8],
        data: impl Into<Layout<'a>>,
        params: &AmParams,
    ) -> Result<OpStatus<()>, Error> {
        match data.into().data_in(params.mem)? {
            // SAFETY: this function's contract.
            Data::Bytes(at, len) => unsafe { self.am_send_raw(id, header, at, len, params) },
            // SAFETY: as above.
            Data::Pieces(pieces) => unsafe { self.am_send_pieces(id, header, pieces, params) },
            Data::Callbacks(data) => {
                let start = |op: &DataOp, done| {
                    let params = &AmParams { done: Some(done), ..*params };
                    // SAFETY: as above.
                    unsafe { self.am_send_generic(id, header, op.bound.data(), params) }
                };
                // SAFETY: as above.
                unsafe { self.worker().with_data(data, params.done, start) }
            }
        }
    }

    /// Sends an active message with data that callbacks pack. Safety: as for [`Ep::send_layout_raw`].
    pub(crate) unsafe fn am_send_generic(
        &self,
        id: u16,
        header: &[u8],
        data: NonNull<GenericData>,
        params: &AmParams,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: this function's contract.
        let data = unsafe { data.as_ref() };
        // SAFETY: as above.
        let buf = unsafe { SendBuf::of_generic(data) };
        // SAFETY: as above.
        with_error_of(data, unsafe { self.start_am(id, header, buf, params) })
    }

    /// Safety: as for [`Ep::send_layout_raw`].
    unsafe fn am_send_pieces(
        &self,
        id: u16,
        header: &[u8],
        pieces: &[Iov],
        params: &AmParams,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let list = pieces.iter().map(|piece| unsafe { send_buf_of(piece) });
        // SAFETY: as above.
        let staged = unsafe { self.worker().staging().stage(&[], list) };
        // SAFETY: as above, and what is staged is kept as long.
        self.with_staged(staged, |buf| unsafe { self.start_am(id, header, buf, params) })
    }

    /// Sends an active message with the bytes of containers in order; otherwise like [`Ep::am_send_with`].
    pub fn am_send_iov<B: IoBuf>(
        &self,
        proto: AmProto,
        id: u16,
        header: &[u8],
        bufs: Vec<B>,
    ) -> AmSend<Vec<B>> {
        let pieces: Vec<Iov> = bufs.iter().map(iov_of).collect();
        let lent = LentBuf::new(bufs);
        // SAFETY: as in `send_iov`.
        let started = unsafe {
            self.am_send_layout_raw(id, header, &pieces, &AmParams { proto, ..AmParams::default() })
        };
        AmSend(self.make_request(started, lent))
    }

    /// Sends the data of a [`Layout`] to the peer's stream; otherwise like [`Ep::stream_send_raw`].
    /// # Safety
    /// As for [`Ep::send_layout_raw`].
    pub unsafe fn stream_send_layout_raw<'a>(
        &self,
        data: impl Into<Layout<'a>>,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        match data.into().data_in(params.mem)? {
            // SAFETY: this function's contract.
            Data::Bytes(at, len) => unsafe { self.stream_send_raw(at, len, params) },
            // SAFETY: as above.
            Data::Pieces(pieces) => unsafe { self.stream_send_pieces(pieces, params.done) },
            Data::Callbacks(data) => {
                // SAFETY: as above.
                let start =
                    |op: &DataOp, done| unsafe { self.stream_send_generic(op.bound.data(), Some(done)) };
                // SAFETY: as above.
                unsafe { self.worker().with_data(data, params.done, start) }
            }
        }
    }

    /// Sends data that callbacks pack to the peer's stream. Safety: as for [`Ep::send_layout_raw`].
    pub(crate) unsafe fn stream_send_generic(
        &self,
        data: NonNull<GenericData>,
        done: Option<Callback>,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: this function's contract.
        let data = unsafe { data.as_ref() };
        // SAFETY: as above.
        let buf = unsafe { SendBuf::of_generic(data) };
        // SAFETY: as above.
        with_error_of(data, unsafe { self.start_stream_send(buf, done) })
    }

    /// Safety: as for [`Ep::send_layout_raw`].
    unsafe fn stream_send_pieces(
        &self,
        pieces: &[Iov],
        done: Option<Callback>,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let list = pieces.iter().map(|piece| unsafe { send_buf_of(piece) });
        // SAFETY: as above.
        let staged = unsafe { self.worker().staging().stage(&[], list) };
        // SAFETY: as above, and what is staged is kept as long.
        self.with_staged(staged, |buf| unsafe { self.start_stream_send(buf, done) })
    }

    /// Sends a copy of `header`, then `pieces`, and keeps their list. Safety: as for [`Ep::send_layout_raw`].
    #[inline(never)]
    pub(crate) unsafe fn send_staged(
        &self,
        class: MsgClass,
        tag: u64,
        header: &[u8],
        pieces: &[SendBuf],
        done: Option<Callback>,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let staged = unsafe { self.worker().staging().stage(header, pieces.iter().copied()) };
        // SAFETY: as above, and what is staged is kept as long.
        self.with_staged(staged, |buf| unsafe { self.send_class_raw(class, tag, buf, done) })
    }

    /// Starts an operation that reads `staged`, and keeps `staged` until it ends.
    fn with_staged(
        &self,
        staged: Staged,
        start: impl FnOnce(SendBuf) -> Result<OpStatus<()>, Error>,
    ) -> Result<OpStatus<()>, Error> {
        let started = staged.buf().ok_or(Error::Invalid).and_then(start);
        match started {
            Ok(OpStatus::InProgress(id)) => {
                let core = self.worker().core();
                self.worker().staging().keep(id, staged, |id| core.reqs.role(id).is_some());
            }
            _ => self.worker().staging().recycle(staged),
        }
        started
    }

    /// Sends one packet within the call, if possible. Safety: `pieces` is valid during the call. // HOT
    unsafe fn try_send_short_iov(&self, class: MsgClass, tag: u64, pieces: &[Iov]) -> Result<bool, Error> {
        let mut list = ArrayVec::<SendBuf, INLINE_PIECES>::new();
        for piece in pieces {
            // SAFETY: this function's contract.
            if list.try_push(unsafe { send_buf_of(piece) }).is_err() {
                return Ok(false);
            }
        }
        // SAFETY: the list outlives this call, in which the send ends or does not start.
        let buf = unsafe { SendBuf::of_list(&list) }.ok_or(Error::Invalid)?;
        Ok(self.send_short_list(class, tag, buf))
    }
}
