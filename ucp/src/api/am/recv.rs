//! Active messages: a header and data that call a handler at the receiver, by number. This half receives; `am_send` sends.
//! Called by programs. Uses tagged messages of the classes `Am` and `AmData` (rdm-v4, chapter 11), which other endpoints
//! never see.
//!
//! | Message | How it comes in |
//! |---|---|
//! | one packet in its turn | copied beside others ([`super::am_pool`]) |
//! | up to 8 KiB in any other case | into a buffer posted in advance |
//! | packed and longer | into a buffer made when it comes |
//! | announced | the handler gets the header and says where the data goes |

use crate::api::worker::handle::Place;
use std::cell::Cell;
use std::rc::Rc;

use crate::api::am::pool::AmBuf;
use crate::api::am::queue::Come;
use crate::api::am::send::{NOTICE, PACKED_MAX};
use crate::api::am::tag::{Label, LabelKind, POSTED_LEN};
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, Ended, OpStatus, RequestId};
use crate::api::ep::handle::Ep;
use crate::api::request::buf::{Held, IoBufMut};
use crate::api::request::handles::RecvRequest;
use crate::api::tag::recv::{Match, TAG_MASK_FULL};
use crate::api::worker::handle::{AmMessage, Worker};

use crate::rdm::io::PeerId;
use crate::rdm::{RecvKind, RecvStatus};
use crate::wire::MsgClass;

/// Buffers posted in advance.
const POSTED: usize = 32;

/// Receives for packed messages: `LARGE` or not.
const fn packed(large: u64) -> Match {
    Match { kind: RecvKind::Class { class: MsgClass::Am, tag: large, mask: Label::LARGE }, from: None }
}

fn data_of(number: u64, from: PeerId) -> Match {
    Match {
        kind: RecvKind::Class { class: MsgClass::AmData, tag: number, mask: TAG_MASK_FULL },
        from: Some(from),
    }
}

#[derive(Clone, Copy)]
struct Notice {
    len: u64,
    number: u64,
}

impl AmMessage {
    /// The number of the handler.
    pub fn id(&self) -> u16 {
        Label::of(self.tag).id
    }

    /// Who sent it.
    pub fn from(&self) -> PeerId {
        self.from
    }

    /// Header, and what is behind it. // HOT
    #[inline]
    pub(crate) fn parts(&self) -> (&[u8], &[u8]) {
        // Their lengths were compared before the handler was called.
        self.buf.bytes().split_at(usize::from(Label::of(self.tag).header_len))
    }

    /// The header. // HOT
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.parts().0
    }

    /// The data, if it has come with the header; `None` if it has to be received by [`AmMessage::recv`]. // HOT
    #[inline]
    pub fn data(&self) -> Option<&[u8]> {
        match self.kind {
            LabelKind::Packed => Some(self.parts().1),
            LabelKind::Announced => None,
        }
    }

    /// Bytes of data, here or to be received.
    pub fn data_len(&self) -> u64 {
        self.notice().map_or(self.parts().1.len() as u64, |notice| notice.len)
    }

    fn notice(&self) -> Option<Notice> {
        if self.kind == LabelKind::Packed {
            return None;
        }
        let (len, rest) = self.parts().1.split_first_chunk()?;
        let number = rest.first_chunk()?;
        Some(Notice { len: u64::from_le_bytes(*len), number: u64::from_le_bytes(*number) })
    }

    /// An endpoint to the sender. `None` if it has failed or there is no way back to it.
    pub fn reply_ep(&self) -> Option<Ep> {
        self.worker.ep_to(self.from)
    }

    /// The data goes into no room: the sender's operation ends.
    #[cold]
    fn discard(&self) {
        if let Some(notice) = self.notice() {
            self.worker.recv(data_of(notice.number, self.from), Vec::new()).detach();
        }
    }

    /// What matches the data, if it has to be received: from now on by the caller.
    pub(crate) fn claim(&mut self) -> Option<Match> {
        let notice = self.notice()?;
        // Nothing is left to be discarded.
        self.kind = LabelKind::Packed;
        Some(data_of(notice.number, self.from))
    }

    /// How a receive of data that is here ends, in `room` bytes.
    pub(crate) fn end_in(&self, room: usize) -> Ended {
        let len = self.parts().1.len();
        match len <= room {
            true => Ok(RecvStatus { len, tag: 0, from: self.from, cq_data: None }),
            false => Err(Error::Truncated { len: len as u64, room }),
        }
    }

    /// Receives the data into `buf`, whether it has come already or not. Data that is longer ends with
    /// [`Error::Truncated`]. A message that is dropped without this discards its data, and so does a receive that is cancelled.
    pub fn recv<B: IoBufMut>(mut self, buf: B) -> RecvRequest<B> {
        if let Some(data) = self.claim() {
            return self.worker.recv(data, buf);
        }
        let mut held = Held::new(buf);
        let (at, room) = held.room();
        let data = self.parts().1;
        let n = data.len().min(room);
        // SAFETY: `room` bytes at `at` are the container's own and valid for writes; it is ours alone, so that it does
        // not overlap the message.
        unsafe { ucs::mem::copy_bytes(data.as_ptr(), at, n) };
        RecvRequest::ended(self.end_in(room), held)
    }
}

impl Drop for AmMessage {
    #[inline]
    fn drop(&mut self) {
        if self.kind == LabelKind::Announced {
            self.discard();
        }
    }
}

impl std::fmt::Debug for AmMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("AmMessage");
        f.field("id", &self.id()).field("from", &self.from).field("header_len", &self.header().len());
        f.field("data_len", &self.data_len()).finish_non_exhaustive()
    }
}

impl Worker {
    /// Calls `handler` from progress for each active message with this number that comes; it may start operations. The
    /// handler there was is replaced. Messages that come before the worker's first handler wait for it; later ones
    /// without a handler are dropped.
    pub fn set_am_handler(&self, id: u16, handler: impl Fn(AmMessage) + 'static) {
        self.ams().set_handler(id, Some(Rc::new(handler)));
        if !self.ams().queue.on.replace(true) {
            for _ in 0..POSTED {
                let place = Rc::new(Place { worker: self.downgrade(), room: Cell::new(None) });
                self.ams().posted.borrow_mut().push(place.clone());
                self.post(place);
            }
        }
    }

    /// Takes a handler away.
    pub fn clear_am_handler(&self, id: u16) {
        self.ams().set_handler(id, None);
    }

    /// Posts the buffer of a place; what waits already is handled at once. False: too many operations are running, so it is posted
    /// later, by [`Worker::post_idle`].
    fn post(&self, place: Rc<Place>) -> bool {
        loop {
            let mut room = self.ams().queue.room();
            let at = room.as_mut_ptr();
            place.room.set(Some(room));
            let done = Callback { fun: on_packed, arg: Rc::as_ptr(&place).cast_mut().cast() };
            // SAFETY: the room lies in the place until the receive has ended; the worker keeps the place, and drops
            // it after the engine. `done` is called with the place, from progress, while the worker lives.
            match unsafe { self.recv_raw(at, POSTED_LEN, packed(0), Some(done)) } {
                Ok(OpStatus::Done(status)) => self.take_packed(&place, Ok(status)),
                Ok(OpStatus::InProgress(_)) => return true,
                // Cut, or of a failed peer; the next one may be well.
                Err(Error::Truncated { .. }) => {}
                Err(Error::Exhausted) => {
                    place.room.take();
                    self.ams().idle.borrow_mut().push(place);
                    return false;
                }
                Err(_) => return true,
            }
        }
    }

    /// Posts the places that could not be, until one cannot still. A worker of its own: as long as no reference to one escapes from
    /// what progress calls, compilers hand progress the worker's state itself, and it has a register more.
    #[cold]
    #[inline(never)]
    fn post_idle(self) {
        // One by one: what is handled meanwhile may come here too.
        loop {
            let place = self.ams().idle.borrow_mut().pop();
            if !place.is_some_and(|place| self.post(place)) {
                return;
            }
        }
    }

    fn take_packed(&self, place: &Place, ended: Ended) {
        if let (Some(room), Ok(status)) = (place.room.take(), ended) {
            self.deliver(Come::of(&status, room));
        }
    }

    /// Hands a packed message to its handler. Inline, and the message is put together in its place: moved from one to another by
    /// words of another size, it would be waited for each time. // HOT
    #[inline(always)]
    fn deliver(&self, Come { from, tag, buf }: Come) {
        let Label { id, header_len, kind } = Label::of(tag);
        let behind = match kind {
            LabelKind::Packed => 0,
            LabelKind::Announced => NOTICE,
        };
        if usize::from(header_len) + behind > buf.len() {
            return ill(from, id, "malformed");
        }
        match self.ams().handler(id) {
            Some(handler) => handler(AmMessage { worker: self.clone(), buf, tag, from, kind }),
            None => {
                // Dropped as a message, so that data it has announced is let go.
                drop(AmMessage { worker: self.clone(), buf, tag, from, kind });
                ill(from, id, "without a handler");
            }
        }
    }

    /// Handles what was taken in. // HOT
    #[inline]
    pub(crate) fn handle_ams(&self) {
        if self.ams().queue.has_come() {
            self.handle_come();
        }
    }

    #[inline(never)]
    fn handle_come(&self) {
        // Asked anew each time: a handler may call `progress`, which goes on with the next one.
        while let Some(come) = self.ams().queue.next() {
            if self.ams().queue.has_come() {
                // That `progress` is to see them.
                self.core().calm = false;
            }
            self.deliver(come);
        }
    }

    /// Receives packed messages that fit no posted buffer. Answers how many there were.
    #[inline]
    pub(crate) fn take_large_ams(&self) -> usize {
        match self.ams().queue.on.get() {
            true => self.look_for_large_ams(),
            false => 0,
        }
    }

    fn look_for_large_ams(&self) -> usize {
        if !self.ams().idle.borrow().is_empty() {
            self.clone().post_idle();
        }
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
                    worker.deliver(Come::of(&status, AmBuf::own(bytes)));
                }
            });
        }
        found
    }
}

/// A message that nobody gets.
#[cold]
fn ill(from: PeerId, id: u16, why: &str) {
    tracing::debug!(peer = from.0, id, "active message {why} dropped");
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
    worker.post(place);
}
