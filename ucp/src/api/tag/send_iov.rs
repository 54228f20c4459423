//! Sends of data that is not contiguous: pieces, blocks, or packed by callbacks. It is copied into packets,
//! never read by RMA.

#![allow(unsafe_code)]

use arrayvec::ArrayVec;

use crate::api::am::send::{AmParams, AmProto, AmSend, start_am};
use crate::api::core::error::Error;
use crate::api::core::requests::OpStatus;
use crate::api::data::iov::Iov;
use crate::api::data::params::{OpParams, check_mem_of_pieces};
use crate::api::data::raw::Layout;
use crate::api::data::start::{send_buf_of, with_send_data};
use crate::api::ep::handle::Ep;
use crate::api::ep::send::SendParams;
use crate::api::request::buf::{InFlightBuf, IoBuf};
use crate::api::request::handles::SendRequest;
use crate::api::stream::ops::start_stream_send;

use crate::rdm::SendBuf;
use crate::wire::MsgClass;

/// Most pieces that need no allocation if the send ends within the call.
const INLINE_PIECES: usize = 16;

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
        let data = data.into();
        if let (Layout::Iov(pieces), Some(tag)) = (&data, params.plain_tag()) {
            check_mem_of_pieces(params.mem, pieces)?;
            // SAFETY: the caller vouches for the bytes during this call.
            if unsafe { send_short_pieces(self, tag, pieces) }? {
                return Ok(OpStatus::Done(()));
            }
        }
        let of_op = OpParams { done: params.done, mem: params.mem, truncated: None };
        // SAFETY: this function's contract; `with_send_data` keeps what the engine reads.
        let start =
            |buf, done| unsafe { self.send_buf(MsgClass::Message, buf, &SendParams { done, ..*params }) };
        // SAFETY: this function's contract.
        unsafe { with_send_data(self.worker(), data, &of_op, start) }
    }

    /// Sends the bytes of containers in order as one message. Ignores `params.done`.
    pub fn send_iov<B: IoBuf>(&self, bufs: Vec<B>, params: &SendParams) -> SendRequest<Vec<B>> {
        let params = &SendParams { done: None, ..*params };
        let pieces: Vec<Iov> = bufs.iter().map(iov_of).collect();
        let in_flight = InFlightBuf::new(bufs);
        // SAFETY: the request keeps the containers until the end, and `IoBuf` fixes their bytes.
        let started = unsafe { self.send_layout_raw(&pieces, params) };
        SendRequest::new(self.worker(), started, in_flight)
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
        let of_op = OpParams { done: params.done, mem: params.mem, truncated: None };
        // SAFETY: this function's contract; `with_send_data` keeps what the engine reads.
        let start = |buf, done| unsafe { start_am(self, (id, header), buf, &AmParams { done, ..*params }) };
        // SAFETY: this function's contract.
        unsafe { with_send_data(self.worker(), data.into(), &of_op, start) }
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
        let in_flight = InFlightBuf::new(bufs);
        // SAFETY: as in `send_iov`.
        let started = unsafe {
            self.am_send_layout_raw(id, header, &pieces, &AmParams { proto, ..AmParams::default() })
        };
        AmSend(SendRequest::new(self.worker(), started, in_flight))
    }

    /// Sends the data of a [`Layout`] to the peer's stream; otherwise like [`Ep::stream_send_raw`].
    /// # Safety
    /// As for [`Ep::send_layout_raw`].
    pub unsafe fn stream_send_layout_raw<'a>(
        &self,
        data: impl Into<Layout<'a>>,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: this function's contract; `with_send_data` keeps what the engine reads.
        let start = |buf, done| unsafe { start_stream_send(self, buf, done) };
        // SAFETY: this function's contract.
        unsafe { with_send_data(self.worker(), data.into(), params, start) }
    }
}

/// Sends a tagged message as one packet within the call, if possible. Safety: `pieces` is valid during the
/// call.
// HOT
unsafe fn send_short_pieces(ep: &Ep, tag: u64, pieces: &[Iov]) -> Result<bool, Error> {
    let mut list = ArrayVec::<SendBuf, INLINE_PIECES>::new();
    for piece in pieces {
        // SAFETY: this function's contract.
        if list.try_push(unsafe { send_buf_of(piece) }).is_err() {
            return Ok(false);
        }
    }
    // SAFETY: the list outlives this call, in which the send ends or does not start.
    let buf = unsafe { SendBuf::of_list(&list) }.ok_or(Error::Invalid)?;
    Ok(ep.send_short_list(MsgClass::Message, tag, buf))
}
