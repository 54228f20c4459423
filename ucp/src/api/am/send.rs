//! Sends active messages: with their data, of any length by [`AmProto::Eager`]. One that is longer than a
//! packet is else announced by its header and an RTS; its data is sent from the caller's buffer when the
//! handler receives it.

#![allow(unsafe_code)]

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::am::announced::Announced;
use crate::api::am::tag::{AM_MAX_HEADER, AmKind, AmTag, POSTED_LEN};
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus};
use crate::api::data::params::check_mem;
use crate::api::data::start::{send_generic, with_header};
use crate::api::data::view::{SendData, SendView};
use crate::api::ep::deferred::defer;
use crate::api::ep::handle::Ep;
use crate::api::ep::send::SendParams;
use crate::api::mem::memory::Mem;
use crate::api::request::buf::InFlightBuf;
use crate::api::request::handles::SendRequest;

use crate::rdm::{ContigBuf, SendBuf};
use crate::wire::MsgClass;

/// Longest eager message in bytes; the receiver drops longer ones.
pub(crate) const EAGER_MAX: usize = u32::MAX as usize;
/// Length of the `Rts` behind the header, bytes: data length and number, each u64.
pub(crate) const RTS_LEN: usize = 16;

/// Number of the data that an RTS announces.
pub(crate) fn rts_number(header_and_rts: &SendBuf) -> u64 {
    let mut number = [0; 8];
    header_and_rts.copy_to(header_and_rts.len().saturating_sub(8), &mut number);
    u64::from_le_bytes(number)
}

/// Protocol of an active message's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AmProto {
    /// With the header if both fit one packet, otherwise [`AmProto::Rendezvous`].
    #[default]
    Auto,
    /// With the header, into memory of the receiver's worker, whose handler gets both. Header and data of
    /// 4 GiB and more: [`AmProto::Rendezvous`].
    Eager,
    /// Sent when the handler, which gets only the header, calls [`AmMessage::recv`](crate::AmMessage::recv).
    Rendezvous,
}

/// Parameters of [`Ep::am_send_raw`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AmParams<'a> {
    /// Protocol of the data.
    pub proto: AmProto,
    /// Tells the receiver that a reply is asked for, see
    /// [`AmMessage::wants_reply`](crate::AmMessage::wants_reply).
    pub reply: bool,
    /// Called when the operation ends, unless it ends within the call.
    pub done: Option<Callback>,
    /// Registered memory that holds the data, as in [`OpParams::mem`](crate::OpParams::mem).
    pub mem: Option<&'a Mem>,
}

/// An active message being sent. A future of the result and the buffer. Dropping it lets the send continue.
#[must_use = "an active message may still be under way: wait for it, await it, or detach it"]
pub struct AmSend<B: 'static>(pub(crate) SendRequest<B>);

impl<B: 'static> AmSend<B> {
    pub(crate) fn as_send(&self) -> &SendRequest<B> {
        &self.0
    }

    /// The send of which it consists.
    #[inline]
    pub(crate) fn into_send(self) -> SendRequest<B> {
        self.0
    }

    /// Whether the operation has ended and the buffer may be reused.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Returns the result and the buffer if the operation has ended, otherwise the request.
    pub fn test(self) -> Result<(Result<(), Error>, B), Self> {
        self.0.test().map_err(AmSend)
    }

    /// Takes the result and the buffer, once, if the operation has ended.
    pub(crate) fn take(&mut self) -> Option<(Result<(), Error>, B)> {
        self.0.take()
    }

    /// Makes progress until the operation ends.
    pub fn wait(self) -> (Result<(), Error>, B) {
        self.0.wait()
    }

    /// Cancels the operation if no byte has been sent (true; it ends as cancelled). Returns false if it
    /// continues or has ended; a rendezvous message always continues, as its handler may have been called.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// Calls `then` from progress when the operation ends, or at once if it has ended. Allocates.
    pub fn then(self, then: impl FnOnce(Result<(), Error>, B) + 'static) {
        self.0.then(then);
    }

    /// Lets the operation continue; its result is dropped.
    pub fn detach(self) {
        self.0.detach();
    }
}

impl<B: 'static> Future for AmSend<B> {
    type Output = (Result<(), Error>, B);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Ep {
    /// Sends a copy of `header`, and `data`, to handler `id` of the peer; ends when the buffer may be reused.
    /// [`Error::HeaderTooLong`] if `header` exceeds [`AM_MAX_HEADER`].
    pub fn am_send<B: SendData>(&self, id: u16, header: &[u8], data: B) -> AmSend<B> {
        self.am_send_with(AmProto::Auto, id, header, data)
    }

    /// Sends an active message like [`Ep::am_send`], with a chosen protocol.
    pub fn am_send_with<B: SendData>(&self, proto: AmProto, id: u16, header: &[u8], data: B) -> AmSend<B> {
        let params = &AmParams { proto, ..AmParams::default() };
        let mut in_flight = InFlightBuf::new(data);
        let started = match in_flight.send_view() {
            // SAFETY: the request keeps the container until completion; its data does not move or change.
            Ok(SendView::Bytes(at, len)) => unsafe { self.am_send_raw(id, header, at, len, params) },
            Ok(SendView::Generic(data)) => {
                // SAFETY: as above.
                let start = |buf| unsafe { start_am(self, (id, header), buf, params) };
                // SAFETY: as above.
                unsafe { send_generic(data, start) }
            }
            Err(error) => Err(error),
        };
        AmSend(SendRequest::new(self.worker(), started, in_flight))
    }

    /// Sends a copy of `header` and `len` bytes at `data` to handler `id` of the peer.
    /// # Safety
    /// Unless the call returns *done* or an error, `data..data + len` stays valid and unchanged until the
    /// operation ends, and `params.done` may be called with its argument.
    // HOT
    #[inline]
    pub unsafe fn am_send_raw(
        &self,
        id: u16,
        header: &[u8],
        data: *const u8,
        len: usize,
        params: &AmParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        check_mem(params.mem, data, len)?;
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let data = unsafe { SendBuf::new(data, len) };
        let connection = self.state().peer_connection();
        if header.is_empty()
            && len <= POSTED_LEN
            && params.proto != AmProto::Rendezvous
            && let Some(whole) = data.whole()
            && self.send_short(
                MsgClass::Am,
                AmTag { id, header_len: 0, kind: AmKind::Eager, reply: params.reply, connection }.encode(len),
                whole,
            )
        {
            return Ok(OpStatus::Done(()));
        }
        // SAFETY: as above.
        unsafe { start_am(self, (id, header), data, params) }
    }
}

/// Starts a message. Safety: as for [`Ep::am_send_raw`].
// HOT
#[inline]
pub(crate) unsafe fn start_am(
    ep: &Ep,
    (id, header): (u16, &[u8]),
    data: SendBuf,
    params: &AmParams,
) -> Result<OpStatus<()>, Error> {
    if header.len() > AM_MAX_HEADER {
        return Err(Error::HeaderTooLong { len: header.len(), max: AM_MAX_HEADER });
    }
    let total_len = header.len().saturating_add(data.len());
    // Limit of header and data in one message.
    let eager_max = match params.proto {
        AmProto::Auto => POSTED_LEN.min(ep.state().eager_max()),
        AmProto::Eager => EAGER_MAX,
        AmProto::Rendezvous => 0,
    };
    if total_len > eager_max {
        // SAFETY: this function's contract.
        return unsafe { send_rts(ep, (id, header), data, params) };
    }
    let connection = ep.state().peer_connection();
    let am_tag =
        AmTag { id, header_len: header.len() as u16, kind: AmKind::Eager, reply: params.reply, connection };
    let tag = am_tag.encode(total_len);
    if header.is_empty() {
        // SAFETY: this function's contract.
        return unsafe { ep.send_buf(MsgClass::Am, data, &SendParams::of_class(tag, params.done)) };
    }
    // SAFETY: this function's contract; the header is copied if the send outlives the call.
    unsafe { send_with_header(ep, tag, header, data, params.done) }
}

/// Longest header and data that are put together before they are sent: a list takes more to send.
const SHORT_MESSAGE: usize = 256;

/// Sends `data` behind `header` as one packet within the call. Returns whether it sent.
/// # Safety
/// As for [`SendBuf::new`], until the call returns.
// HOT
#[inline(never)]
pub(crate) unsafe fn send_header_now(ep: &Ep, tag: u64, header: &[u8], data: SendBuf) -> Result<bool, Error> {
    if let Some(whole) = data.whole()
        && header.len().saturating_add(data.len()) <= SHORT_MESSAGE
    {
        let mut message = [MaybeUninit::<u8>::uninit(); SHORT_MESSAGE];
        let at = message.as_mut_ptr().cast::<u8>();
        // SAFETY: the message has room for both, and is this function's own.
        let len = unsafe { whole.copy_behind(header, at) };
        // SAFETY: these bytes have been written, and stay until the call returns.
        return Ok(ep.send_short(MsgClass::Am, tag, unsafe { ContigBuf::new(at, len) }));
    }
    // SAFETY: the header is read in this call.
    let list = [unsafe { SendBuf::new(header.as_ptr(), header.len()) }, data];
    // SAFETY: as above, of the list.
    let header_and_data = unsafe { SendBuf::of_list(&list) }.ok_or(Error::Invalid)?;
    Ok(ep.send_short_list(MsgClass::Am, tag, header_and_data))
}

/// Sends `data` behind a copy of `header`. Safety: as for [`Ep::am_send_raw`].
// HOT
#[inline]
unsafe fn send_with_header(
    ep: &Ep,
    tag: u64,
    header: &[u8],
    data: SendBuf,
    done: Option<Callback>,
) -> Result<OpStatus<()>, Error> {
    // SAFETY: this function's contract.
    if unsafe { send_header_now(ep, tag, header, data) }? {
        return Ok(OpStatus::Done(()));
    }
    // SAFETY: this function's contract; `with_header` keeps what the engine reads.
    let start = |buf| unsafe { ep.send_buf(MsgClass::Am, buf, &SendParams::of_class(tag, done)) };
    // SAFETY: this function's contract.
    unsafe { with_header(ep.worker(), header, data, start) }
}

/// Bytes of the longest header with an RTS that are put together without an allocation.
const SHORT_RTS: usize = 512;

/// Sends the RTS of `data`, then starts the send of `data`. Safety: as for [`Ep::am_send_raw`].
#[inline(never)]
unsafe fn send_rts(
    ep: &Ep,
    (id, header): (u16, &[u8]),
    data: SendBuf,
    params: &AmParams,
) -> Result<OpStatus<()>, Error> {
    // Without a peer the limit of a packet is not known, and every message with bytes comes here.
    if let Some(refusal) = ep.state().refusal.get() {
        let (header, done): (Box<[u8]>, _) = (header.into(), params.done);
        let params = AmParams { proto: params.proto, reply: params.reply, ..AmParams::default() };
        // SAFETY: the caller keeps the data valid until completion, which comes after this.
        let start = move |ep: &Ep| unsafe { start_am(ep, (id, &header), data, &params) };
        return defer(ep, refusal, done, Box::new(move |ep| start(ep).map(OpStatus::with_empty_status)));
    }
    let number = ep.worker().inner.am_handlers.take_number();
    let announced = Announced::begin(ep, number, params.done)?;
    let (mut short, mut long);
    let header_and_rts: &mut [u8] = match header.len() + RTS_LEN {
        len @ ..=SHORT_RTS => {
            short = [0; SHORT_RTS];
            &mut short[..len]
        }
        len => {
            long = vec![0; len];
            &mut long
        }
    };
    let (copy, rts) = header_and_rts.split_at_mut(header.len());
    copy.copy_from_slice(header);
    rts[..8].copy_from_slice(&(data.len() as u64).to_le_bytes());
    rts[8..].copy_from_slice(&number.to_le_bytes());
    let (header_len, connection) = (header.len() as u16, ep.state().peer_connection());
    let am_tag = AmTag { id, header_len, kind: AmKind::Rendezvous, reply: params.reply, connection };
    let tag = am_tag.encode(header_and_rts.len());
    // SAFETY: `header_and_rts` outlives the call, and is copied if the send outlives that.
    let sent = unsafe { send_with_header(ep, tag, header_and_rts, SendBuf::EMPTY, None) };
    match sent {
        Ok(OpStatus::Done(())) => {}
        Ok(OpStatus::InProgress(id)) => ep.worker().free(id),
        Err(error) => {
            announced.give_up();
            return Err(error);
        }
    }
    announced.send(data)
}
