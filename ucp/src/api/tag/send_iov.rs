//! Sends of several pieces of memory as one message, gathered into packets; never read by RMA.

#![allow(unsafe_code)]

use arrayvec::ArrayVec;

use crate::api::am::send::{AmParams, AmProto, AmSend};
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus};
use crate::api::core::staging::Staged;
use crate::api::ep::handle::{Ep, SendParams};
use crate::api::request::buf::{IoBuf, LentBuf};
use crate::api::request::handles::SendRequest;
use crate::api::rma::put_get::Iov;

use crate::rdm::SendBuf;
use crate::select::Sync;
use crate::wire::MsgClass;

/// Most pieces that need no allocation if the send ends within the call.
const INLINE_PIECES: usize = 16;

/// Safety: as for [`SendBuf::new`].
unsafe fn send_buf_of(piece: &Iov) -> SendBuf {
    // SAFETY: this function's contract.
    unsafe { SendBuf::new(piece.addr, piece.len) }
}

fn iov_of<B: IoBuf>(buf: &B) -> Iov {
    let bytes = buf.bytes();
    Iov { addr: bytes.as_ptr().cast_mut(), len: bytes.len() }
}

impl Ep {
    /// Sends `pieces` in order as one message. [`Error::Invalid`] if the sum of their lengths overflows.
    /// # Safety
    /// Unless the call returns *done* or an error, the bytes of every piece stay valid and unchanged until
    /// the operation ends, and `params.done` may be called with its argument.
    pub unsafe fn send_iov_raw(&self, pieces: &[Iov], params: &SendParams) -> Result<OpStatus<()>, Error> {
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
        let started = unsafe { self.send_iov_raw(&pieces, params) };
        self.make_request(started, lent)
    }

    /// Sends an active message with the bytes of `pieces` in order; otherwise like [`Ep::am_send_raw`].
    /// # Safety
    /// As for [`Ep::send_iov_raw`].
    pub unsafe fn am_send_iov_raw(
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
        let started = unsafe { self.am_send_iov_raw(id, header, &pieces, &AmParams { proto, done: None }) };
        AmSend(self.make_request(started, lent))
    }

    /// Sends the bytes of `pieces` in order to the peer's stream; otherwise like [`Ep::stream_send_raw`].
    /// # Safety
    /// As for [`Ep::send_iov_raw`].
    pub unsafe fn stream_send_iov_raw(
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

    /// Sends a copy of `header`, then `pieces`, and keeps their list. Safety: as for [`Ep::send_iov_raw`].
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
