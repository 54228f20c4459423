//! Sending active messages: header and data gathered into one packet where they fit, announced where they do not.
//! Called by programs. How they are received is in `am`.
//!
//! | Message | How |
//! |---|---|
//! | header and data of up to 8 KiB and a packet | one message, gathered into the packet |
//! | up to 64 KiB, if asked for ([`AmProto::Eager`]) | one message, gathered into as many packets as it takes |
//! | longer | the header announces it; the data, straight from its buffer, goes to whoever receives it |

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::api::am::tag::{AM_MAX_HEADER, Label, LabelKind, POSTED_LEN};
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus};
use crate::api::ep::handle::Ep;
use crate::api::request::buf::{Held, IoBuf};
use crate::api::request::handles::SendRequest;

use crate::rdm::SendBuf;
use crate::wire::MsgClass;

/// Longest packed message, bytes: the receiver makes no room for more on a sender's word.
pub(crate) const PACKED_MAX: usize = 64 << 10;
/// Bytes behind the header of a message that announces data: its length and its number.
pub(crate) const NOTICE: usize = 16;

/// How the data of an active message travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AmProto {
    /// With the header if both fit one packet, otherwise as by [`AmProto::Rendezvous`].
    #[default]
    Auto,
    /// With the header, up to 64 KiB together; longer ones as by [`AmProto::Rendezvous`].
    Eager,
    /// When the receiver has said where to: the handler gets the header, and calls [`AmMessage::recv`](super::AmMessage::recv).
    Rendezvous,
}

/// An active message of the `*_raw` kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct AmParams {
    /// How its data travels.
    pub how: AmProto,
    /// Called at the end, if it does not end in the call.
    pub done: Option<Callback>,
}

/// An active message under way. A future of the result and the data's buffer. Dropping it lets the message go on.
#[must_use = "an active message may still be under way: wait for it, await it, or detach it"]
pub struct AmSend<B: 'static>(pub(crate) SendRequest<B>);

impl<B: 'static> AmSend<B> {
    /// Whether it has ended: the buffer may be reused.
    pub fn is_done(&mut self) -> bool {
        self.0.is_done()
    }

    /// Makes progress until it has ended.
    pub fn wait(self) -> (Result<(), Error>, B) {
        self.0.wait()
    }

    /// Asks for it to be given up. `true`: nothing of it has gone out, and nothing will; it ends as cancelled. `false`: it
    /// goes on, or has ended. One whose data is announced ([`AmProto::Rendezvous`], or too long for a packet) always goes on:
    /// the peer's handler may have been told of it.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// Lets it go on without anybody asking for its end.
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
    /// Sends an active message: `header`, which is copied, and `data`, to the peer's handler `id`. Ends when the data's buffer
    /// may be reused. Headers longer than [`AM_MAX_HEADER`] are refused.
    pub fn am_send<B: IoBuf>(&self, id: u16, header: &[u8], data: B) -> AmSend<B> {
        self.am_send_with(AmProto::Auto, id, header, data)
    }

    /// The same, with a say in how the data travels.
    pub fn am_send_with<B: IoBuf>(&self, how: AmProto, id: u16, header: &[u8], data: B) -> AmSend<B> {
        let held = Held::new(data);
        let (at, len) = held.bytes();
        // SAFETY: the request keeps the container until the operation's end, and `IoBuf` promises that its bytes
        // neither move nor change meanwhile.
        let started = unsafe { self.am_send_raw(id, header, at, len, &AmParams { how, done: None }) };
        AmSend(self.owned(started, held))
    }

    /// Sends an active message of `header`, which is copied, and the `len` bytes at `data`. // HOT
    ///
    /// # Safety
    /// Unless the call answers *done* or an error, `data..data + len` stays valid and unchanged until the operation's
    /// end, and `params.done` may be called with its argument.
    #[inline]
    pub unsafe fn am_send_raw(
        &self,
        id: u16,
        header: &[u8],
        data: *const u8,
        len: usize,
        params: &AmParams,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let data = unsafe { SendBuf::new(data, len) };
        // Data alone, and short: one packet, by one call.
        if header.is_empty()
            && len <= POSTED_LEN
            && params.how != AmProto::Rendezvous
            && let Some(whole) = data.whole()
            && self.send_short(
                MsgClass::Am,
                Label { id, header_len: 0, kind: LabelKind::Packed }.tag(len),
                whole,
            )
        {
            return Ok(OpStatus::Done(()));
        }
        // SAFETY: as above.
        unsafe { self.start_am(id, header, data, params) }
    }

    /// Starts an active message. // HOT
    ///
    /// # Safety
    /// `data` stays valid, as [`SendBuf::new`] has it, until the operation's end, and `params.done` may be called with its
    /// argument.
    #[inline]
    pub(crate) unsafe fn start_am(
        &self,
        id: u16,
        header: &[u8],
        data: SendBuf,
        params: &AmParams,
    ) -> Result<OpStatus<()>, Error> {
        if header.len() > AM_MAX_HEADER {
            return Err(Error::HeaderTooLong { len: header.len(), max: AM_MAX_HEADER });
        }
        let both = header.len().saturating_add(data.len());
        if both > self.packed_max(params.how) {
            // SAFETY: this function's contract.
            return unsafe { self.announce(id, header, data, params) };
        }
        let tag = Label { id, header_len: header.len() as u16, kind: LabelKind::Packed }.tag(both);
        if header.is_empty() {
            // SAFETY: this function's contract.
            return unsafe { self.send_class_raw(MsgClass::Am, tag, data, params.done) };
        }
        // SAFETY: this function's contract; the header outlives the call, and is copied if the send outlives that.
        unsafe { self.send_behind(tag, header, data, params.done) }
    }

    /// Most bytes of header and data that travel in one message. // HOT
    #[inline]
    fn packed_max(&self, how: AmProto) -> usize {
        match how {
            AmProto::Auto => POSTED_LEN.min(self.eager_max()),
            AmProto::Eager => PACKED_MAX,
            AmProto::Rendezvous => 0,
        }
    }

    /// Sends `data` behind `header`, which is kept if need be, as one message. // HOT
    ///
    /// # Safety
    /// As for [`Ep::start_am`].
    #[inline]
    unsafe fn send_behind(
        &self,
        tag: u64,
        header: &[u8],
        data: SendBuf,
        done: Option<Callback>,
    ) -> Result<OpStatus<()>, Error> {
        // SAFETY: the header is only read if the send ends in this call.
        let list = [unsafe { SendBuf::new(header.as_ptr(), header.len()) }, data];
        // SAFETY: as above, of the list.
        let both = unsafe { SendBuf::of_list(&list) }.ok_or(Error::Invalid)?;
        if self.send_short_list(MsgClass::Am, tag, both) {
            return Ok(OpStatus::Done(()));
        }
        // SAFETY: this function's contract.
        unsafe { self.send_lent(MsgClass::Am, tag, header, &[data], done) }
    }

    /// Tells of data, and sends it to whoever receives it.
    ///
    /// # Safety
    /// As for [`Ep::start_am`].
    #[inline(never)]
    unsafe fn announce(
        &self,
        id: u16,
        header: &[u8],
        data: SendBuf,
        params: &AmParams,
    ) -> Result<OpStatus<()>, Error> {
        let ams = self.worker().ams();
        let number = ams.next_number.replace(ams.next_number.get().wrapping_add(1));
        let mut head = Vec::with_capacity(header.len() + NOTICE);
        head.extend_from_slice(header);
        head.extend_from_slice(&(data.len() as u64).to_le_bytes());
        head.extend_from_slice(&number.to_le_bytes());
        let label = Label { id, header_len: header.len() as u16, kind: LabelKind::Announced };
        // SAFETY: nothing but the head, which outlives the call, and is copied if the send outlives that.
        let told = unsafe { self.send_behind(label.tag(head.len()), &head, SendBuf::EMPTY, None) }?;
        if let OpStatus::InProgress(id) = told {
            self.worker().free(id);
        }
        // SAFETY: this function's contract.
        unsafe { self.send_class_raw(MsgClass::AmData, number, data, params.done) }
    }
}
