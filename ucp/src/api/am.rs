//! Active messages: a header and data that call a handler at the receiver, by number.
//! Called by programs. Uses tagged messages of the classes `Am` and `AmData` (rdm-v4, chapter 11), which other endpoints
//! never see; small ones are one packet, the data of large ones travels as the receiver asks for it.
//!
//! | Message | How |
//! |---|---|
//! | header and data of up to 8 KiB | packed into one message; taken in as it is, if it is one packet in its turn, else into a buffer posted in advance |
//! | up to 64 KiB, if asked for ([`AmProto::Eager`]) | packed into one message; the receiver makes room when it comes |
//! | longer | the packed header announces it; the data, straight from its buffer, goes to whoever receives it |

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::rdm::io::PeerId;
use crate::rdm::{RecvKind, RecvStatus};
use crate::wire::Class;

use super::buf::Held;
use super::ep::Started;
use super::op::{RecvRequest, SendRequest};
use super::recv::{EXACT, Match};
use super::request::{Callback, Ended, RequestId};
use super::worker::WeakWorker;
use super::{Ep, Error, IoBuf, IoBufMut, Worker};

/// Longest header of an active message, bytes.
pub const AM_MAX_HEADER: usize = 4096;
/// Longest packed message, bytes: the receiver makes no room for more on a sender's word.
const PACKED_MAX: usize = 64 << 10;
/// Longest packed message that fits a buffer posted in advance, bytes.
pub(super) const POSTED_LEN: usize = 8 << 10;
/// Buffers posted in advance.
const POSTED: usize = 32;
/// Bytes behind the header of a message that announces data: its length and its number.
const NOTICE: usize = 16;

/// How the data of an active message travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AmProto {
    /// With the header if both fit one packet, otherwise as by [`AmProto::Rendezvous`].
    #[default]
    Auto,
    /// With the header, up to 64 KiB together; longer ones as by [`AmProto::Rendezvous`].
    Eager,
    /// When the receiver has said where to: the handler gets the header, and calls [`AmMessage::recv`].
    Rendezvous,
}

/// What the tag of an active message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Label {
    id: u16,
    header_len: u16,
    kind: LabelKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LabelKind {
    Packed,
    Announced,
}

impl Label {
    const ANNOUNCED: u64 = 1 << 63;
    const LARGE: u64 = 1 << 62;

    fn tag(self, packed_len: usize) -> u64 {
        let large = if packed_len > POSTED_LEN { Label::LARGE } else { 0 };
        let kind = if self.kind == LabelKind::Announced { Label::ANNOUNCED } else { 0 };
        u64::from(self.id) | u64::from(self.header_len) << 16 | large | kind
    }

    fn of(tag: u64) -> Label {
        let kind = if tag & Label::ANNOUNCED != 0 { LabelKind::Announced } else { LabelKind::Packed };
        Label { id: tag as u16, header_len: (tag >> 16) as u16, kind }
    }
}

/// Receives for packed messages: `LARGE` or not.
const fn packed(large: u64) -> Match {
    Match { kind: RecvKind::Class { class: Class::Am, tag: large, mask: Label::LARGE }, from: None }
}

fn data_of(number: u64, from: PeerId) -> Match {
    Match { kind: RecvKind::Class { class: Class::AmData, tag: number, mask: EXACT }, from: Some(from) }
}

/// A posted receive.
pub(super) struct Place {
    worker: WeakWorker,
    buf: Cell<Option<Box<[u8]>>>,
}

/// An active message, as its handler gets it. It may be kept; its memory is reused when it is dropped.
pub struct AmMessage {
    worker: Worker,
    from: PeerId,
    id: u16,
    bytes: Box<[u8]>,
    /// Bytes of the header, of header and data.
    header_len: usize,
    len: usize,
    notice: Option<Notice>,
}

#[derive(Clone, Copy)]
struct Notice {
    len: u64,
    number: u64,
}

impl AmMessage {
    /// The number of the handler.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Who sent it.
    pub fn from(&self) -> PeerId {
        self.from
    }

    /// The header.
    pub fn header(&self) -> &[u8] {
        &self.bytes[..self.header_len]
    }

    /// The data, if it has come with the header; `None` if it has to be received by [`AmMessage::recv`].
    pub fn data(&self) -> Option<&[u8]> {
        match self.notice {
            None => Some(&self.bytes[self.header_len..self.len]),
            Some(_) => None,
        }
    }

    /// Bytes of data, here or to be received.
    pub fn data_len(&self) -> u64 {
        self.notice.map_or((self.len - self.header_len) as u64, |notice| notice.len)
    }

    /// An endpoint to the sender. `None` if it has failed or there is no way back to it.
    pub fn reply_ep(&self) -> Option<Ep> {
        self.worker.ep_to(self.from)
    }

    /// Receives the data into `buf`, whether it has come already or not. Data that is longer ends with
    /// [`Error::Truncated`]. A message that is dropped without this discards its data.
    pub fn recv<B: IoBufMut>(mut self, buf: B) -> RecvRequest<B> {
        if let Some(notice) = self.notice.take() {
            return self.worker.recv(data_of(notice.number, self.from), buf);
        }
        let mut held = Held::new(buf);
        let (at, room) = held.room();
        let data = &self.bytes[self.header_len..self.len];
        let n = data.len().min(room);
        // SAFETY: `room` bytes at `at` are the container's own and valid for writes; it is ours alone, so that it does
        // not overlap the message.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), at, n) };
        let ended: Ended = match n == data.len() {
            true => Ok(RecvStatus { len: n, tag: 0, from: self.from, cq_data: None }),
            false => Err(Error::Truncated { len: data.len() as u64, room }),
        };
        RecvRequest::ended(ended, held)
    }
}

impl Drop for AmMessage {
    fn drop(&mut self) {
        if let Some(notice) = self.notice {
            // Into no room: the sender's operation ends, the data is lost.
            self.worker.recv(data_of(notice.number, self.from), Vec::new()).detach();
        }
        self.worker.ams().spare(std::mem::take(&mut self.bytes));
    }
}

impl std::fmt::Debug for AmMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("AmMessage");
        f.field("id", &self.id).field("from", &self.from).field("header_len", &self.header_len);
        f.field("data_len", &self.data_len()).finish_non_exhaustive()
    }
}

impl Worker {
    /// Calls `handler` from progress for each active message with this number that comes; it may start operations. The
    /// handler there was is replaced. Messages that come before the worker's first handler wait for it; later ones
    /// without a handler are dropped.
    pub fn set_am_handler(&self, id: u16, handler: impl Fn(AmMessage) + 'static) {
        self.ams().handlers.borrow_mut().insert(id, Rc::new(handler));
        if !self.ams().on.replace(true) {
            for _ in 0..POSTED {
                let place = Rc::new(Place { worker: self.downgrade(), buf: Cell::new(None) });
                self.ams().posted.borrow_mut().push(place.clone());
                self.post(&place);
            }
        }
    }

    /// Takes a handler away.
    pub fn clear_am_handler(&self, id: u16) {
        self.ams().handlers.borrow_mut().remove(&id);
    }

    /// Posts the buffer of a place; what waits already is handled at once.
    fn post(&self, place: &Rc<Place>) {
        loop {
            let mut buf = self.ams().buffer();
            let at = buf.as_mut_ptr();
            place.buf.set(Some(buf));
            let done = Callback { fun: on_packed, arg: Rc::as_ptr(place).cast_mut().cast() };
            // SAFETY: the buffer lies in the place until the receive has ended; the worker keeps the place, and drops
            // it after the engine. `done` is called with the place, from progress, while the worker lives.
            match unsafe { self.recv_raw(at, POSTED_LEN, packed(0), Some(done)) } {
                Ok(Started::Done(status)) => self.take_packed(place, Ok(status)),
                Ok(Started::Running(_)) => return,
                // Cut, or of a failed peer; the next one may be well.
                Err(Error::Truncated { .. }) => {}
                Err(_) => return,
            }
        }
    }

    fn take_packed(&self, place: &Place, ended: Ended) {
        let Some(buf) = place.buf.take() else { return };
        match ended {
            Ok(status) => self.deliver(status, buf),
            Err(_) => self.ams().spare(buf),
        }
    }

    /// Hands a packed message to its handler.
    fn deliver(&self, status: RecvStatus, bytes: Box<[u8]>) {
        let (label, from) = (Label::of(status.tag), status.from);
        let header_len = usize::from(label.header_len);
        let mut message = AmMessage {
            worker: self.clone(),
            from,
            id: label.id,
            bytes,
            header_len,
            len: status.len,
            notice: None,
        };
        let behind = match label.kind {
            LabelKind::Packed => 0,
            LabelKind::Announced => NOTICE,
        };
        if header_len + behind > status.len {
            tracing::debug!(peer = from.0, id = label.id, "malformed active message dropped");
            return;
        }
        if let Some((len, number)) = message.bytes[header_len..][..behind].split_first_chunk::<8>() {
            let number = number.first_chunk::<8>().copied().map(u64::from_le_bytes).unwrap_or_default();
            message.notice = Some(Notice { len: u64::from_le_bytes(*len), number });
        }
        let handler = self.ams().handlers.borrow().get(&label.id).cloned();
        match handler {
            Some(handler) => handler(message),
            None => tracing::debug!(peer = from.0, id = label.id, "active message without a handler dropped"),
        }
    }

    /// Handles what was taken in. // HOT
    #[inline]
    pub(crate) fn handle_ams(&self) {
        // Asked anew each time: a handler may call `progress`, which goes on with the next one.
        while let Some((status, bytes)) = self.ams().next() {
            self.deliver(status, bytes);
        }
    }

    /// Receives packed messages that fit no posted buffer. Answers how many there were.
    #[inline]
    pub(crate) fn take_large_ams(&self) -> usize {
        match self.ams().on.get() {
            true => self.look_for_large_ams(),
            false => 0,
        }
    }

    fn look_for_large_ams(&self) -> usize {
        let mut found = 0;
        while let Some(message) = self.mprobe(packed(Label::LARGE)) {
            found += 1;
            let len = message.envelope().len;
            if len > PACKED_MAX as u64 {
                tracing::debug!(len, "active message too long, dropped");
                continue;
            }
            let worker = self.downgrade();
            message.recv(vec![0; len as usize].into_boxed_slice()).then(move |ended, bytes| {
                if let (Some(worker), Ok(status)) = (worker.upgrade(), ended) {
                    worker.deliver(status, bytes);
                }
            });
        }
        found
    }
}

/// A packed message has come.
///
/// # Safety
/// `arg` is a [`Place`] of a worker that is in progress.
unsafe fn on_packed(arg: *mut (), request: RequestId, ended: Ended) {
    let place: *const Place = arg.cast();
    // SAFETY: the worker keeps its places until it is dropped, and made `arg` by `Rc::as_ptr`.
    unsafe { Rc::increment_strong_count(place) };
    // SAFETY: as above; the count was raised for this.
    let place = unsafe { Rc::from_raw(place) };
    let Some(worker) = place.worker.upgrade() else { return };
    worker.free(request);
    worker.take_packed(&place, ended);
    worker.post(&place);
}

/// Packed bytes, and the data they were packed from, to be given back.
pub struct Packed<B> {
    bytes: Vec<u8>,
    data: B,
}

// SAFETY: the bytes are a vector's that nothing changes; moving the container does not move them.
unsafe impl<B: 'static> IoBuf for Packed<B> {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// An active message under way. A future of the result and the data's buffer. Dropping it lets the message go on.
#[must_use = "an active message may still be under way: wait for it, await it, or detach it"]
pub struct AmSend<B: IoBuf>(Form<B>);

enum Form<B: IoBuf> {
    Ended(Option<(Result<(), Error>, B)>),
    Packed(SendRequest<Packed<B>>),
    Lent(SendRequest<B>),
}

// Nothing in it is pinned: the requests are looked at only by moving buffers out.
impl<B: IoBuf> Unpin for AmSend<B> {}

impl<B: IoBuf> AmSend<B> {
    /// Whether it has ended: the buffer may be reused.
    pub fn is_done(&mut self) -> bool {
        match &mut self.0 {
            Form::Ended(_) => true,
            Form::Packed(send) => send.is_done(),
            Form::Lent(send) => send.is_done(),
        }
    }

    /// Makes progress until it has ended.
    pub fn wait(self) -> (Result<(), Error>, B) {
        match self.0 {
            Form::Ended(end) => end.expect("request was polled after its end"),
            Form::Packed(send) => {
                let (result, packed) = send.wait();
                (result, packed.data)
            }
            Form::Lent(send) => send.wait(),
        }
    }

    /// Lets it go on without anybody asking for its end.
    pub fn detach(self) {
        match self.0 {
            Form::Ended(_) => {}
            Form::Packed(send) => send.detach(),
            Form::Lent(send) => send.detach(),
        }
    }
}

impl<B: IoBuf> Future for AmSend<B> {
    type Output = (Result<(), Error>, B);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Form::Ended(end) => Poll::Ready(end.take().expect("request was polled after its end")),
            Form::Packed(send) => Pin::new(send).poll(cx).map(|(result, packed)| (result, packed.data)),
            Form::Lent(send) => Pin::new(send).poll(cx),
        }
    }
}

impl Ep {
    /// Sends an active message: `header`, which is copied, and `data`, to the peer's handler `id`. Ends when the data's buffer
    /// may be reused. Headers longer than [`AM_MAX_HEADER`] are refused.
    pub fn am_send<B: IoBuf>(&self, id: u16, header: &[u8], data: B) -> AmSend<B> {
        self.am_send_by(AmProto::Auto, id, header, data)
    }

    /// The same, with a say in how the data travels. // HOT
    pub fn am_send_by<B: IoBuf>(&self, how: AmProto, id: u16, header: &[u8], data: B) -> AmSend<B> {
        if header.len() > AM_MAX_HEADER {
            let error = Error::HeaderTooLong { len: header.len(), max: AM_MAX_HEADER };
            return AmSend(Form::Ended(Some((Err(error), data))));
        }
        if header.is_empty() && data.bytes().len() <= self.packed_max(how) {
            return self.am_bare(id, data);
        }
        let header_len = header.len() as u16;
        let both = header.len().saturating_add(data.bytes().len());
        let ams = self.worker().ams();
        if both <= self.packed_max(how) {
            let label = Label { id, header_len, kind: LabelKind::Packed };
            return AmSend(match self.am_packed(label.tag(both), ams.pack([header, data.bytes()])) {
                Ok(None) => Form::Ended(Some((Ok(()), data))),
                Ok(Some((id, bytes))) => {
                    let held = Held::new(Packed { bytes, data });
                    Form::Packed(SendRequest::running(self.worker().clone(), id.0, held))
                }
                Err(error) => Form::Ended(Some((Err(error), data))),
            });
        }
        let number = ams.next_number.replace(ams.next_number.get().wrapping_add(1));
        let mut notice = [0; NOTICE];
        notice[..8].copy_from_slice(&(data.bytes().len() as u64).to_le_bytes());
        notice[8..].copy_from_slice(&number.to_le_bytes());
        let label = Label { id, header_len, kind: LabelKind::Announced };
        match self.am_packed(label.tag(header.len() + NOTICE), ams.pack([header, &notice])) {
            Ok(None) => {}
            Ok(Some((id, bytes))) => {
                let held = Held::new(bytes);
                SendRequest::running(self.worker().clone(), id.0, held).detach();
            }
            Err(error) => return AmSend(Form::Ended(Some((Err(error), data)))),
        }
        AmSend(Form::Lent(self.send_class(Class::AmData, number, data)))
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

    /// Sends data without a header, which needs no packing. // HOT
    fn am_bare<B: IoBuf>(&self, id: u16, data: B) -> AmSend<B> {
        let held = Held::new(data);
        let (at, len) = held.bytes();
        let tag = Label { id, header_len: 0, kind: LabelKind::Packed }.tag(len);
        // SAFETY: the request keeps the container until the operation's end, and `IoBuf` promises that its bytes
        // neither move nor change meanwhile.
        AmSend(match unsafe { self.send_class_raw(Class::Am, tag, at, len) } {
            Ok(Started::Done(())) => Form::Ended(Some((Ok(()), held.back()))),
            Ok(Started::Running(id)) => Form::Lent(SendRequest::running(self.worker().clone(), id.0, held)),
            Err(error) => Form::Ended(Some((Err(error), held.back()))),
        })
    }

    /// Sends packed bytes; they come back if the send goes on, to be kept until its end.
    fn am_packed(&self, tag: u64, bytes: Vec<u8>) -> Result<Option<(RequestId, Vec<u8>)>, Error> {
        // SAFETY: unless the send ends in this call, the caller puts `bytes` into the request, which keeps them until
        // the end; moving a vector does not move its bytes.
        let started = unsafe { self.send_class_raw(Class::Am, tag, bytes.as_ptr(), bytes.len()) };
        if let Ok(Started::Running(id)) = started {
            return Ok(Some((id, bytes)));
        }
        self.worker().ams().give_back(bytes);
        started.map(|_| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive_their_tag() {
        for kind in [LabelKind::Packed, LabelKind::Announced] {
            for (id, header_len) in [(0, 0), (u16::MAX, AM_MAX_HEADER as u16), (7, 1)] {
                let label = Label { id, header_len, kind };
                assert_eq!(Label::of(label.tag(5)), label);
                assert_eq!(Label::of(label.tag(POSTED_LEN + 1)), label);
                assert_eq!(label.tag(POSTED_LEN) & Label::LARGE, 0);
                assert_ne!(label.tag(POSTED_LEN + 1) & Label::LARGE, 0);
            }
        }
    }
}
