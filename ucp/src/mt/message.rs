//! Messages that threads share: probed ones, active messages, and receives of many messages.

#![allow(unsafe_code)]

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;

use super::SharedWorker;
use super::ep::SharedEp;
use super::request::SharedRequest;
use super::shared::{Locked, OfWorker};
use crate::{
    AmMessage, Envelope, Error, IoBufMut, Match, Message, MultiRecv, MultiRecvMessage, MultiRecvParams,
    PeerId, RecvData, RecvRequest,
};

/// A message removed from the queue by [`SharedWorker::mprobe`]. Dropping it discards the message.
#[must_use = "a probed message is lost unless it is received"]
pub struct SharedMessage(pub(super) Locked<Message>);

// SAFETY: it holds a handle of its worker's and numbers.
unsafe impl OfWorker for Message {}

impl SharedMessage {
    /// Length, tag and sender.
    pub fn envelope(&self) -> Envelope {
        self.0.fixed().envelope()
    }

    /// Receives the message: [`Message::recv`]. With [`Error::Thread`] the message is discarded.
    pub fn recv<B: RecvData + Send>(self, buf: B) -> SharedRequest<RecvRequest<B>> {
        consume(self.0, buf, |message, buf| message.recv(buf))
    }

    /// Receives the message into containers, filled in order: [`Message::recv_iov`].
    pub fn recv_iov<B: IoBufMut + Send>(self, bufs: Vec<B>) -> SharedRequest<RecvRequest<Vec<B>>> {
        consume(self.0, bufs, |message, bufs| message.recv_iov(bufs))
    }
}

/// Receives what `object` names into `buf`, inside the lock.
fn consume<T: OfWorker, B: Send + 'static>(
    object: Locked<T>,
    buf: B,
    recv: impl FnOnce(T, B) -> RecvRequest<B>,
) -> SharedRequest<RecvRequest<B>> {
    let mut buf = Some(buf);
    let started = object.consume(|object, inside| {
        let request = recv(object, buf.take().expect("taken once, here"));
        SharedRequest::new(request, inside)
    });
    match (started, buf) {
        (Ok(request), _) => request,
        (Err(error), Some(buf)) => SharedRequest::ended((Err(error.into()), buf)),
        (Err(_), None) => unreachable!("a refused call takes no buffer"),
    }
}

/// A received active message. A handler may keep it or hand it to another thread; dropping it recycles its
/// memory.
pub struct SharedAmMessage(Locked<AmMessage>);

// SAFETY: it holds memory of its worker's, which is only read while the message exists.
unsafe impl OfWorker for AmMessage {}

impl SharedAmMessage {
    /// Number of the handler.
    pub fn id(&self) -> u16 {
        self.0.fixed().id()
    }

    /// Sender.
    pub fn from(&self) -> PeerId {
        self.0.fixed().from()
    }

    /// Number at this worker of the connection that the message belongs to; 0: none.
    pub fn connection(&self) -> u32 {
        self.0.fixed().connection()
    }

    /// Whether the sender has asked for a reply.
    pub fn wants_reply(&self) -> bool {
        self.0.fixed().wants_reply()
    }

    /// Header bytes.
    // HOT
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.0.fixed().header()
    }

    /// Data that came with the header; `None` if [`SharedAmMessage::recv`] has to receive it.
    // HOT
    #[inline]
    pub fn data(&self) -> Option<&[u8]> {
        self.0.fixed().data()
    }

    /// Length of the data in bytes, received or not.
    pub fn data_len(&self) -> u64 {
        self.0.fixed().data_len()
    }

    /// Another handle to the worker that has received the message.
    pub fn worker(&self) -> SharedWorker {
        SharedWorker::of(self.0.shared())
    }

    /// Returns an endpoint to the sender; `None` if the peer has failed or its address is unknown.
    pub fn reply_ep(&self) -> Result<Option<SharedEp>, Error> {
        Ok(self.0.with(|message, inside| message.reply_ep().map(|ep| SharedEp::new(ep, inside)))?)
    }

    /// Receives the data into `buf`: [`AmMessage::recv`]. With [`Error::Thread`] the data is discarded.
    pub fn recv<B: RecvData + Send>(self, buf: B) -> SharedRequest<RecvRequest<B>> {
        consume(self.0, buf, |message, buf| message.recv(buf))
    }

    /// Receives the data into containers, filled in order: [`AmMessage::recv_iov`].
    pub fn recv_iov<B: IoBufMut + Send>(self, bufs: Vec<B>) -> SharedRequest<RecvRequest<Vec<B>>> {
        consume(self.0, bufs, |message, bufs| message.recv_iov(bufs))
    }
}

impl std::fmt::Debug for SharedAmMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fixed().fmt(f)
    }
}

/// A receive of many messages. Dropping it cancels it; the buffer lives until matched messages have arrived.
#[must_use = "messages are lost unless they are taken out"]
pub struct SharedMultiRecv<B: IoBufMut + Send>(Locked<MultiRecv<B>>);

// SAFETY: of the user's it holds a buffer, which is `Send`; all else is its worker's.
unsafe impl<B: IoBufMut + Send> OfWorker for MultiRecv<B> {}

impl<B: IoBufMut + Send> SharedMultiRecv<B> {
    /// Returns the next message that has ended. Makes no progress.
    pub fn try_next(&mut self) -> Result<Option<MultiRecvMessage>, Error> {
        Ok(self.0.look_mut(MultiRecv::try_next)?)
    }

    /// Makes progress until it can return a message; `None` if no more come.
    pub fn wait_next(&mut self) -> Result<Option<MultiRecvMessage>, Error> {
        let shared = self.0.shared().clone();
        shared.block_on(|cx| self.poll_next(cx))
    }

    /// Returns a future of the result of [`SharedMultiRecv::wait_next`].
    pub fn next_message(&mut self) -> impl Future<Output = Result<Option<MultiRecvMessage>, Error>> + Send {
        std::future::poll_fn(|cx| self.poll_next(cx))
    }

    fn poll_next(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Result<Option<MultiRecvMessage>, Error>> {
        match self.0.with_mut(|recv| recv.poll_next(cx)) {
            Ok(polled) => polled.map(Ok),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Returns the bytes of a message; none if `message` belongs to another buffer.
    pub fn bytes(&self, message: &MultiRecvMessage) -> &[u8] {
        self.0.fixed().bytes(message)
    }

    /// Whether no more messages arrive; [`SharedMultiRecv::try_next`] may still return some.
    pub fn is_done(&self) -> Result<bool, Error> {
        Ok(self.0.look(MultiRecv::is_done)?)
    }

    /// Stops matching messages; those already matched still arrive. False if it had already stopped.
    pub fn cancel(&mut self) -> Result<bool, Error> {
        Ok(self.0.with_mut(MultiRecv::cancel)?)
    }

    /// Ends the receive, waits for matched messages, and returns the buffer, and how the receive had ended
    /// before: [`MultiRecv::finish`].
    pub fn finish(mut self) -> Result<(Result<(), Error>, B), Error> {
        let was_cancelled = self.cancel()?;
        let shared = self.0.shared().clone();
        shared.block_on(|cx| self.poll_end(cx))?;
        let (ended, buf) = self.0.consume(|recv, _| recv.finish())?;
        Ok((if was_cancelled { Ok(()) } else { ended }, buf))
    }

    /// Ready when no more messages arrive.
    fn poll_end(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            match self.poll_next(cx) {
                Poll::Ready(Ok(Some(_))) => {}
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl SharedWorker {
    /// Receives messages that match `matching` into `buf`, one after another:
    /// [`crate::Worker::recv_multi`].
    pub fn recv_multi<'a, B: IoBufMut + Send>(
        &self,
        matching: Match,
        buf: B,
        params: impl Into<MultiRecvParams<'a>>,
    ) -> Result<SharedMultiRecv<B>, (Error, B)> {
        let inside = match self.enter() {
            Ok(inside) => inside,
            Err(error) => return Err((error, buf)),
        };
        let recv = inside.worker().recv_multi(matching, buf, params)?;
        Ok(SharedMultiRecv(Locked::new(recv, &inside)))
    }

    /// Sets the handler of number `id`, called by the thread that progresses, inside the lock:
    /// [`crate::Worker::set_am_handler`]. A worker or endpoint that it holds keeps the worker alive until the
    /// handler is removed, or the worker is closed ([`SharedWorker::close`]).
    pub fn set_am_handler(
        &self,
        id: u16,
        handler: impl Fn(SharedAmMessage) + Send + 'static,
    ) -> Result<(), Error> {
        let inside = self.enter()?;
        let shared = Arc::downgrade(&self.shared);
        inside.worker().set_am_handler(id, move |message| {
            // Progress holds the worker, so it is there, and the thread is inside.
            if let Some(shared) = shared.upgrade()
                && let Ok(inside) = shared.enter()
            {
                handler(SharedAmMessage(Locked::new(message, &inside)));
            }
        });
        Ok(())
    }
}
