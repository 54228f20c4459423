//! Streams: ordered bytes without boundaries. Each send is a message of class `Stream` (rdm-v4, chapter 11).

#![allow(unsafe_code)]

use crate::api::data::params::{OpParams, check_mem};
use crate::api::stream::state::InflightRecv;

use std::convert::Infallible;

use crate::api::core::ep_state::{EpState, LinkStage};
use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus, RequestId, Role};
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::start::send_generic;
use crate::api::data::view::{RecvData, SendData, SendView};
use crate::api::ep::deferred::defer;
use crate::api::ep::handle::Ep;
use crate::api::ep::send::SendParams;
use crate::api::request::buf::InFlightBuf;
use crate::api::request::handles::{RecvRequest, SendRequest};
use crate::api::stream::state::{Stream, StreamRecvMode, Waiter};

use crate::rdm::{
    ABORTED, Conversation, Kind, OpError, ProbeRemove, RecvBuf, RecvKind, RecvStatus, SendBuf, Started,
    stream_error,
};
use crate::token::{StreamId, UserToken};
use crate::wire::MsgClass;

/// The messages of a stream.
const fn messages_of(tag: u64) -> RecvKind {
    RecvKind::Class { class: MsgClass::Stream, tag, mask: !0 }
}

/// Bytes of a stream in memory of the library: those of one send, or the rest of them.
#[non_exhaustive]
pub struct StreamData {
    bytes: Vec<u8>,
    offset: usize,
}

impl std::ops::Deref for StreamData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.offset..]
    }
}

impl std::fmt::Debug for StreamData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamData({} bytes)", self.len())
    }
}

impl WorkerCore {
    pub(crate) fn start_stream_recv(
        &mut self,
        id: StreamId,
        buf: RecvBuf,
        mode: StreamRecvMode,
        done: Option<Callback>,
    ) -> Result<RequestId, Error> {
        let token = self.reqs.next_token()?;
        self.renew_stream(id);
        self.engine.peers_mut().mark_awaited(id.peer);
        let request = self.reqs.start(token, Role::Stream, done);
        let len = buf.len();
        let stream = self.stream_of(id);
        stream.waiters.push_back(Waiter { id: request, buf, len, filled: 0, mode, is_last: false });
        let must_wait = stream.unread.is_empty() && stream.error.is_none() && !stream.broken && len > 0;
        if !self.streams.with_waiters.contains(&id) {
            self.streams.with_waiters.push(id);
        }
        if !must_wait
            || self.engine.has_unexpected(Kind::Stream)
            || stream_error(self.engine.peers_mut(), id.peer, id.tag()).is_some()
        {
            self.progress_streams();
        }
        Ok(request)
    }

    /// Returns the stream of the present conversation with a peer.
    fn stream_of(&mut self, id: StreamId) -> &mut Stream {
        let conversation = Conversation::with(self.engine.peers(), id.peer).number;
        self.streams.by_id.entry(id).or_insert_with(|| Stream { conversation, ..Stream::default() })
    }

    /// Ends the stream of a conversation that is over, if another has begun.
    fn renew_stream(&mut self, id: StreamId) {
        let conversation = Conversation::with(self.engine.peers(), id.peer).number;
        let Some(stream) = self.streams.by_id.get(&id) else { return };
        if stream.conversation == conversation {
            return;
        }
        let Some(mut old) = self.streams.by_id.remove(&id) else { return };
        match old.inflight {
            Some(_) => self.streams.ending.push((id, old)),
            None => self.end_waiters(&mut old, Error::Aborted(id.peer, ABORTED)),
        }
    }

    fn end_waiters(&mut self, stream: &mut Stream, error: Error) {
        stream.waiters.drain(..).for_each(|waiter| self.reqs.end(waiter.id, Err(error)));
    }

    /// Ends the receives from a stream as cancelled: no endpoint is left that waits for them. One that
    /// holds bytes ends with them, and one that the engine is filling with what it gets.
    pub(crate) fn cancel_stream_recvs(&mut self, id: StreamId) {
        let Some(stream) = self.streams.by_id.get_mut(&id) else { return };
        let is_filling = matches!(stream.inflight, Some(InflightRecv::Direct(_)));
        let cancelled = stream.waiters.split_off(usize::from(is_filling).min(stream.waiters.len()));
        if let Some(first) = stream.waiters.front_mut() {
            first.is_last = true;
        }
        for waiter in cancelled {
            self.reqs.end(waiter.id, waiter.cut_short(id.peer));
        }
    }

    #[cold]
    pub(crate) fn progress_streams(&mut self) {
        let mut index = 0;
        while let Some(&id) = self.streams.with_waiters.get(index) {
            self.progress_stream(id);
            match self.streams.by_id.get(&id).is_none_or(|stream| stream.waiters.is_empty()) {
                true => drop(self.streams.with_waiters.swap_remove(index)),
                false => index += 1,
            }
        }
    }

    fn progress_stream(&mut self, id: StreamId) {
        self.renew_stream(id);
        loop {
            let Some(stream) = self.streams.by_id.get_mut(&id) else { return };
            stream.fill_waiters(id.peer, &mut self.reqs);
            let Some(waiter) = stream.waiters.front() else { return };
            if stream.inflight.is_some() {
                return;
            }
            let probed = match stream.broken {
                true => None,
                false => self.engine.receives().probe(messages_of(id.tag()), Some(id.peer), ProbeRemove::Yes),
            };
            let Some(probed) = probed else {
                let peer_error = || stream_error(self.engine.peers_mut(), id.peer, id.tag()).map(Error::from);
                if let Some(error) = stream.error.or_else(peer_error) {
                    stream.waiters.drain(..).for_each(|waiter| self.reqs.end(waiter.id, Err(error)));
                    fail_stream(self, id, error);
                }
                return;
            };
            // A length from the wire may exceed the memory; that fails only the stream.
            let len = usize::try_from(probed.len).unwrap_or(usize::MAX);
            let (buf, inflight) = if waiter.has_room_for_all(len) {
                (waiter.buf.part(waiter.filled, len), InflightRecv::Direct(len))
            } else {
                let mut bytes = Vec::new();
                if bytes.try_reserve_exact(len).is_err() {
                    (stream.broken, stream.error) = (true, Some(Error::Exhausted));
                    continue;
                }
                // SAFETY: the `len` bytes are of the vector in `inflight`, unused until the receive ends.
                (unsafe { RecvBuf::new(bytes.as_mut_ptr(), len) }, InflightRecv::Buffered(bytes, len))
            };
            stream.inflight = Some(inflight);
            let (engine, mut wire, _) = self.split();
            let result = match engine.recv_probed(&mut wire, probed.handle, buf, UserToken::Stream(id).pack())
            {
                Started::Done(_) => Ok(()),
                Started::Failed(error) => Err(error),
                Started::Pending(_) => return,
            };
            self.finish_stream_recv(id, result);
        }
    }

    /// Returns the bytes of the next message, or starts to receive it.
    fn read_stream_data(&mut self, id: StreamId) -> Result<Option<StreamData>, Error> {
        self.renew_stream(id);
        self.engine.peers_mut().mark_awaited(id.peer);
        let stream = self.stream_of(id);
        if stream.inflight.is_none()
            && stream.waiters.is_empty()
            && stream.unread.is_empty()
            && !stream.broken
        {
            recv_next_into_vec(self, id);
        }
        let stream = self.stream_of(id);
        if stream.inflight.is_some() || !stream.waiters.is_empty() {
            return Ok(None);
        }
        if stream.read_pos < stream.unread.len() {
            let (bytes, offset) = (std::mem::take(&mut stream.unread), std::mem::take(&mut stream.read_pos));
            return Ok(Some(StreamData { bytes, offset }));
        }
        let error = stream.error;
        match error.or_else(|| stream_error(self.engine.peers_mut(), id.peer, id.tag()).map(Error::from)) {
            None => Ok(None),
            Some(error) => {
                fail_stream(self, id, error);
                Err(error)
            }
        }
    }

    #[cold]
    pub(crate) fn on_stream_recv_done(&mut self, id: StreamId, result: Result<RecvStatus, OpError>) {
        if let Some(at) = self.streams.ending.iter().position(|(of, _)| *of == id) {
            let (_, mut old) = self.streams.ending.remove(at);
            return self.end_waiters(&mut old, Error::Aborted(id.peer, ABORTED));
        }
        self.finish_stream_recv(id, result.map(drop));
        self.progress_streams();
    }

    fn finish_stream_recv(&mut self, id: StreamId, result: Result<(), OpError>) {
        if let Some(stream) = self.streams.by_id.get_mut(&id) {
            stream.on_recv_done(result);
        }
        if result.is_err() {
            let (engine, mut wire, _) = self.split();
            engine.end_stream(&mut wire, Some(id.peer), id.tag());
        }
    }

    /// Cancels a receive if it holds no bytes.
    pub(crate) fn cancel_stream_recv(&mut self, request: RequestId) -> bool {
        let at = |stream: &Stream| stream.waiters.iter().position(|waiter| waiter.id == request);
        let mut all = self.streams.by_id.values_mut();
        let Some((stream, index)) = all.find_map(|stream| at(stream).map(|index| (stream, index))) else {
            return false;
        };
        let is_receiving = index == 0 && matches!(stream.inflight, Some(InflightRecv::Direct(_)));
        if is_receiving || stream.waiters[index].filled > 0 {
            return false;
        }
        stream.waiters.remove(index);
        self.reqs.end(request, Err(Error::Cancelled));
        true
    }
}

/// Ends a stream whose error has been returned: nothing more is received from it.
fn fail_stream(core: &mut WorkerCore, id: StreamId, error: Error) {
    if let Some(stream) = core.streams.by_id.get_mut(&id) {
        (stream.broken, stream.error) = (true, Some(error));
    }
    let (engine, mut wire, _) = core.split();
    engine.end_stream(&mut wire, Some(id.peer), id.tag());
}

/// Makes the stream of a connection one that messages are received from.
pub(crate) fn open_stream(core: &mut WorkerCore, ep: &EpState) {
    let peer = (!ep.is_pending()).then(|| ep.peer());
    core.engine.peers_mut().streams.open(u64::from(ep.connection()), peer);
}

/// Ends the stream of a connection that the peer has closed, behind what has arrived of it.
pub(crate) fn end_stream(core: &mut WorkerCore, ep: &EpState, error: Error) {
    let id = ep.stream();
    if id.connection != 0 {
        core.stream_of(id).error.get_or_insert(error);
        core.progress_streams();
    }
}

/// Ends the stream of a connection: nobody receives from it any more.
pub(crate) fn close_stream(core: &mut WorkerCore, ep: &EpState) {
    let id = StreamId { peer: ep.peer(), connection: ep.connection() };
    core.cancel_stream_recvs(id);
    let (engine, mut wire, _) = core.split();
    engine.end_stream(&mut wire, None, id.tag());
    core.streams.with_waiters.retain(|of| *of != id);
    if let Some(stream) = core.streams.by_id.remove(&id).filter(|stream| stream.inflight.is_some()) {
        core.streams.ending.push((id, stream));
    }
}

/// Whether bytes, or an error, have arrived that no receive waits for.
fn has_stream_data(core: &mut WorkerCore, id: StreamId) -> bool {
    let stream = core.streams.by_id.get(&id);
    if stream.is_some_and(|stream| stream.inflight.is_some() || !stream.waiters.is_empty()) {
        return false;
    }
    let is_read = stream.is_none_or(|stream| stream.read_pos == stream.unread.len());
    !is_read
        || stream.is_some_and(|stream| stream.error.is_some())
        || core.engine.receives().probe(messages_of(id.tag()), Some(id.peer), ProbeRemove::No).is_some()
        || stream_error(core.engine.peers_mut(), id.peer, id.tag()).is_some()
}

/// Starts to receive the next message into memory of the library.
fn recv_next_into_vec(core: &mut WorkerCore, id: StreamId) {
    let Some(probed) = core.engine.receives().probe(messages_of(id.tag()), Some(id.peer), ProbeRemove::Yes)
    else {
        return;
    };
    let Some(stream) = core.streams.by_id.get_mut(&id) else { return };
    let len = usize::try_from(probed.len).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(len).is_err() {
        stream.error = Some(Error::Exhausted);
        return;
    }
    let at = bytes.as_mut_ptr();
    stream.inflight = Some(InflightRecv::Buffered(bytes, len));
    // SAFETY: the `len` bytes belong to the vector in `inflight`, untouched until the receive has ended.
    let buf = unsafe { RecvBuf::new(at, len) };
    let (engine, mut wire, _) = core.split();
    let result = match engine.recv_probed(&mut wire, probed.handle, buf, UserToken::Stream(id).pack()) {
        Started::Done(_) => Ok(()),
        Started::Failed(error) => Err(error),
        Started::Pending(_) => return,
    };
    if let Some(stream) = core.streams.by_id.get_mut(&id) {
        stream.on_recv_done(result);
    }
}

impl Ep {
    /// Sends bytes to the peer's stream; ends when the buffer may be reused. An empty buffer sends nothing.
    pub fn stream_send<B: SendData>(&self, buf: B) -> SendRequest<B> {
        let mut in_flight = InFlightBuf::new(buf);
        let started = match in_flight.send_view() {
            // SAFETY: the request keeps the container until completion; its data does not move or change.
            Ok(SendView::Bytes(at, len)) => unsafe { self.stream_send_raw(at, len, &OpParams::default()) },
            Ok(SendView::Generic(data)) => {
                // SAFETY: as above.
                let start = |buf| unsafe { start_stream_send(self, buf, None) };
                // SAFETY: as above.
                unsafe { send_generic(data, start) }
            }
            Err(error) => Err(error),
        };
        SendRequest::new(self.worker(), started, in_flight)
    }

    /// Sends `len` bytes at `buf` to the peer's stream.
    /// # Safety
    /// Unless the call returns *done* or an error, `buf..buf + len` stays valid and unchanged until the
    /// operation ends, and `params.done` may be called with its argument.
    // HOT
    #[inline]
    pub unsafe fn stream_send_raw(
        &self,
        buf: *const u8,
        len: usize,
        params: &OpParams<'_>,
    ) -> Result<OpStatus<()>, Error> {
        check_mem(params.mem, buf, len)?;
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let buf = unsafe { SendBuf::new(buf, len) };
        // SAFETY: as above.
        unsafe { start_stream_send(self, buf, params.done) }
    }

    /// Receives stream bytes into `len` bytes at `buf`; ends only from progress.
    /// # Safety
    /// Unless the call returns an error, until the operation ends `buf..buf + len` stays valid for writes, is
    /// used only by receives of this worker, and `params.done` may be called with its argument.
    // HOT
    pub unsafe fn stream_recv_raw(
        &self,
        buf: *mut u8,
        len: usize,
        mode: StreamRecvMode,
        params: &OpParams<'_>,
    ) -> Result<RequestId, Error> {
        check_mem(params.mem, buf, len)?;
        // SAFETY: the caller vouches for the memory until the operation's end.
        let buf = unsafe { RecvBuf::new(buf, len) };
        start_stream_recv(self, buf, mode, params.done)
    }

    /// Receives available stream bytes, at least one. Receives are served in the order in which they start.
    pub fn stream_recv<B: RecvData>(&self, buf: B) -> RecvRequest<B> {
        stream_recv_with_mode(self, buf, StreamRecvMode::Some)
    }

    /// Receives stream bytes until the buffer is full.
    pub fn stream_recv_full<B: RecvData>(&self, buf: B) -> RecvRequest<B> {
        stream_recv_with_mode(self, buf, StreamRecvMode::WaitAll)
    }

    /// Whether bytes of the stream, or an error, have arrived that no receive waits for. They may be of a
    /// message that is still being received: [`Ep::stream_recv_data`] returns `None` until it is there.
    pub fn has_stream_data(&self) -> bool {
        self.state().stage() == LinkStage::Linked
            && has_stream_data(&mut self.worker().core(), self.state().stream())
    }

    /// Returns stream bytes of one send in memory of the library. `None`: none has arrived, or an earlier
    /// receive waits for them. Makes no progress. Fails if the peer or the stream has failed.
    pub fn stream_recv_data(&self) -> Result<Option<StreamData>, Error> {
        match self.state().stage() {
            LinkStage::Linked => self.worker().core().read_stream_data(self.state().stream()),
            LinkStage::Pending => Ok(None),
            LinkStage::Failed(error) => Err(error),
        }
    }
}

/// Starts a send. Safety: as for [`Ep::stream_send_raw`].
#[inline]
pub(crate) unsafe fn start_stream_send(
    ep: &Ep,
    buf: SendBuf,
    done: Option<Callback>,
) -> Result<OpStatus<()>, Error> {
    if buf.is_empty() {
        return match ep.state().usable() {
            Ok(()) | Err(Error::NotConnected) => Ok(OpStatus::Done(())),
            Err(error) => Err(error),
        };
    }
    let tag = u64::from(ep.state().peer_connection());
    // SAFETY: this function's contract.
    unsafe { ep.send_buf(MsgClass::Stream, buf, &SendParams::of_class(tag, done)) }
}

/// Starts a receive, or defers it while the peer is not known.
pub(crate) fn start_stream_recv(
    ep: &Ep,
    buf: RecvBuf,
    mode: StreamRecvMode,
    done: Option<Callback>,
) -> Result<RequestId, Error> {
    match ep.state().stage() {
        LinkStage::Linked => ep.worker().core().start_stream_recv(ep.state().stream(), buf, mode, done),
        LinkStage::Failed(error) => Err(error),
        LinkStage::Pending => {
            let mut buf = Some(buf);
            let start = move |ep: &Ep| {
                let buf = buf.take().ok_or(Error::Invalid)?;
                start_stream_recv(ep, buf, mode, None).map(OpStatus::InProgress)
            };
            match defer::<Infallible>(ep, Error::NotConnected, done, Box::new(start))? {
                OpStatus::InProgress(id) => Ok(id),
            }
        }
    }
}

fn stream_recv_with_mode<B: RecvData>(ep: &Ep, buf: B, mode: StreamRecvMode) -> RecvRequest<B> {
    let mut in_flight = InFlightBuf::new(buf);
    // SAFETY: the request keeps the container until the receive ends; its memory does not move.
    let started = unsafe { in_flight.recv_buf() }.and_then(|buf| start_stream_recv(ep, buf, mode, None));
    RecvRequest::new(ep.worker(), started.map(OpStatus::InProgress), in_flight)
}
