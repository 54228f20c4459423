//! An endpoint that threads share.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use super::request::SharedRequest;
use super::shared::{Inside, Locked, OfWorker, Shared};
use super::{SharedWorker, blocking};
use crate::rdm::PeerView;
use crate::{
    Address, AmProto, AmSend, AtomicOp, AtomicType, CloseMode, ConnectError, Ep, EpConnector, EpParams,
    EpProtocols, Error, ErrorMode, FetchRequest, FlushRequest, IoBuf, IoBufMut, OpStatus, PeerId, RecvData,
    RecvRequest, Rkey, RkeyError, RmaParams, SendData, SendParams, SendRequest, SocketAddrs, StreamData,
    StreamRecvMode,
};

/// Parameters of [`SharedWorker::connect`].
#[derive(Default)]
#[non_exhaustive]
pub struct SharedEpParams {
    /// Called by progress, once, when the peer has failed: [`crate::ErrorMode::Peer`].
    pub on_error: Option<Box<dyn FnMut(Error) + Send>>,
    /// As [`EpParams::check_peer`].
    pub check_peer: bool,
}

impl SharedEpParams {
    /// With a callback for the failure of the peer.
    pub fn on_error(call: impl FnMut(Error) + Send + 'static) -> Self {
        SharedEpParams { on_error: Some(Box::new(call)), check_peer: false }
    }

    pub(super) fn plain(self) -> EpParams {
        let errors = self.on_error.map_or(ErrorMode::None, |call| ErrorMode::Peer(call));
        EpParams { errors, check_peer: self.check_peer }
    }
}

/// An endpoint of a [`SharedWorker`]. Dropping it does not cancel sends.
pub struct SharedEp(Locked<Ep>);

// SAFETY: its callback is `Send`: see `SharedEpParams`. All else is its worker's.
unsafe impl OfWorker for Ep {}

/// Defines methods that start an operation of the plain endpoint inside the lock. `else`: the output if the
/// thread may not go in.
macro_rules! start {
    ($($(#[$doc:meta])+ $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Request:ty;
       |$error:ident| else $refused:expr;)+) => {$(
        $(#[$doc])+
        #[inline]
        pub fn $name<$($generics)*>(&self, $($arg: $T),*) -> SharedRequest<$Request> {
            let inside = match self.0.enter() {
                Ok(inside) => inside,
                Err(e) => {
                    let $error = Error::from(e);
                    return SharedRequest::ended($refused);
                }
            };
            SharedRequest::new(self.0.fixed().$name($($arg),*), &inside)
        }
    )+};
}

impl SharedEp {
    pub(super) fn new(ep: Ep, inside: &Inside<'_>) -> Self {
        SharedEp(Locked::new(ep, inside))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        self.0.shared()
    }

    /// The plain endpoint, for a thread that is inside.
    pub(super) fn plain(&self, _inside: &Inside<'_>) -> &Ep {
        self.0.fixed()
    }

    /// Another handle to the worker of the endpoint.
    pub fn worker(&self) -> SharedWorker {
        SharedWorker::of(self.0.shared())
    }

    /// Number of the peer at this worker, as in [`crate::RecvStatus::from`].
    pub fn peer(&self) -> Result<PeerId, Error> {
        Ok(self.0.look(Ep::peer)?)
    }

    /// Runs `f` on the plain endpoint, inside the lock.
    /// # Safety
    /// As for [`SharedWorker::with`].
    pub unsafe fn with<R>(&self, f: impl FnOnce(&Ep) -> R) -> Result<R, Error> {
        Ok(self.0.with(|ep, _| f(ep))?)
    }

    start! {
        /// Sends a tagged message. Completes when the buffer may be reused.
        tag_send [B: SendData + Send] (tag: u64, buf: B) SendRequest<B>; |e| else (Err(e), buf);
        /// Sends a tagged message. Completes when it was matched and is in the receiver's buffer.
        tag_send_sync [B: SendData + Send] (tag: u64, buf: B) SendRequest<B>; |e| else (Err(e), buf);
        /// Sends an untagged message.
        msg_send [B: SendData + Send] (buf: B) SendRequest<B>; |e| else (Err(e), buf);
        /// Sends a message as `params` specify: [`Ep::send`].
        send [B: SendData + Send] (buf: B, params: &SendParams) SendRequest<B>; |e| else (Err(e), buf);
        /// Sends the bytes of containers in order as one message: [`Ep::send_iov`].
        send_iov [B: IoBuf + Send] (bufs: Vec<B>, params: &SendParams) SendRequest<Vec<B>>;
            |e| else (Err(e), bufs);
        /// Sends a copy of `header`, and `data`, to handler `id` of the peer: [`Ep::am_send`].
        am_send [B: SendData + Send] (id: u16, header: &[u8], data: B) AmSend<B>; |e| else (Err(e), data);
        /// Sends an active message with a chosen protocol: [`Ep::am_send_with`].
        am_send_with [B: SendData + Send] (proto: AmProto, id: u16, header: &[u8], data: B) AmSend<B>;
            |e| else (Err(e), data);
        /// Sends an active message with the bytes of containers in order: [`Ep::am_send_iov`].
        am_send_iov [B: IoBuf + Send] (proto: AmProto, id: u16, header: &[u8], bufs: Vec<B>) AmSend<Vec<B>>;
            |e| else (Err(e), bufs);
        /// Sends bytes to the peer's stream: [`Ep::stream_send`].
        stream_send [B: SendData + Send] (buf: B) SendRequest<B>; |e| else (Err(e), buf);
        /// Receives available stream bytes, at least one: [`Ep::stream_recv`].
        stream_recv [B: RecvData + Send] (buf: B) RecvRequest<B>; |e| else (Err(e), buf);
        /// Receives stream bytes until the buffer is full: [`Ep::stream_recv_full`].
        stream_recv_full [B: RecvData + Send] (buf: B) RecvRequest<B>; |e| else (Err(e), buf);
        /// Receives stream bytes into containers, filled in order: [`Ep::stream_recv_iov`].
        stream_recv_iov [B: IoBufMut + Send] (bufs: Vec<B>, mode: StreamRecvMode) RecvRequest<Vec<B>>;
            |e| else (Err(e), bufs);
        /// Writes to the peer's memory. Completes when the buffer may be reused.
        put [B: IoBuf + Send] (buf: B, remote: u64, rkey: &Rkey) SendRequest<B>;
            |e| else (Err(e), buf);
        /// Writes to the peer's memory as `params` specify: [`Ep::put_with`].
        put_with [B: IoBuf + Send] (buf: B, remote: u64, rkey: &Rkey, params: &RmaParams) SendRequest<B>;
            |e| else (Err(e), buf);
        /// Reads from the peer's memory as many bytes as the container has room for.
        get [B: IoBufMut + Send] (buf: B, remote: u64, rkey: &Rkey) RecvRequest<B>;
            |e| else (Err(e), buf);
        /// Executes `op` on the peer's element at `remote` and returns the old value: [`Ep::atomic_fetch`].
        atomic_fetch [T: AtomicType + Send] (op: AtomicOp, value: T, remote: u64, rkey: &Rkey)
            FetchRequest<T>; |e| else Err(e);
        /// Executes a compare operation on the peer's element at `remote`: [`Ep::atomic_compare`].
        atomic_compare [T: AtomicType + Send]
            (op: AtomicOp, compare: T, value: T, remote: u64, rkey: &Rkey)
            FetchRequest<T>; |e| else Err(e);
        /// Completes when everything sent to this peer was handed over: [`Ep::flush`].
        flush [] () FlushRequest; |e| else Err(e);
        /// Flushes within the time limit: [`Ep::flush_within`].
        flush_within [] (limit: Duration) FlushRequest; |e| else Err(e);
    }

    /// Closes the endpoint: further sends fail. [`Error::TimedOut`]: not everything arrived in time. With
    /// [`Error::Thread`] the endpoint is dropped, not closed.
    pub fn close(self, how: CloseMode) -> SharedRequest<FlushRequest> {
        match self.0.consume(|ep, inside| SharedRequest::new(ep.close(how), inside)) {
            Ok(request) => request,
            Err(error) => SharedRequest::ended(Err(error.into())),
        }
    }

    /// Sends borrowed bytes. If they cannot go out within the call, returns a request that owns a copy.
    pub fn tag_inject(&self, tag: u64, bytes: &[u8]) -> Result<(), SharedRequest<SendRequest<Box<[u8]>>>> {
        match self.0.enter() {
            Ok(inside) => {
                let sent = self.0.fixed().tag_inject(tag, bytes);
                sent.map_err(|request| SharedRequest::new(request, &inside))
            }
            Err(e) => Err(SharedRequest::ended((Err(e.into()), bytes.into()))),
        }
    }

    /// Sends borrowed bytes and makes progress until they may be reused.
    pub fn tag_send_blocking(&self, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        let inside = self.0.enter()?;
        let params = SendParams { tag: Some(tag), ..SendParams::default() };
        // SAFETY: `bytes` is borrowed until the wait below has seen the end of the operation.
        match unsafe { self.0.fixed().send_raw(bytes.as_ptr(), bytes.len(), &params) }? {
            OpStatus::Done(()) => Ok(()),
            OpStatus::InProgress(id) => blocking::wait(inside, id).map(drop),
        }
    }

    /// Writes borrowed bytes to the peer's memory and makes progress until they may be reused.
    pub fn put_blocking(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Result<(), Error> {
        let inside = self.0.enter()?;
        let params = RmaParams::default();
        // SAFETY: as in `tag_send_blocking`.
        match unsafe { self.0.fixed().put_raw(bytes.as_ptr(), bytes.len(), remote, rkey, &params) }? {
            OpStatus::Done(()) => Ok(()),
            OpStatus::InProgress(id) => blocking::wait(inside, id).map(drop),
        }
    }

    /// Reads the peer's memory into borrowed memory and makes progress until the bytes have arrived.
    pub fn get_blocking(&self, out: &mut [u8], remote: u64, rkey: &Rkey) -> Result<(), Error> {
        let inside = self.0.enter()?;
        let params = RmaParams::default();
        // SAFETY: as in `tag_send_blocking`.
        match unsafe { self.0.fixed().get_raw(out.as_mut_ptr(), out.len(), remote, rkey, &params) }? {
            OpStatus::Done(_) => Ok(()),
            OpStatus::InProgress(id) => blocking::wait(inside, id).map(drop),
        }
    }

    /// Executes `op` as [`SharedEp::atomic_fetch`] and makes progress until the old value has arrived.
    pub fn atomic_fetch_blocking<T: AtomicType + Send>(
        &self,
        op: AtomicOp,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<T, Error> {
        self.atomic_fetch(op, value, remote, rkey).wait()
    }

    /// Executes `op` as [`SharedEp::atomic_compare`] and makes progress until the old value has arrived.
    pub fn atomic_compare_blocking<T: AtomicType + Send>(
        &self,
        op: AtomicOp,
        compare: T,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<T, Error> {
        self.atomic_compare(op, compare, value, remote, rkey).wait()
    }

    /// Starts `op` on the peer's element at `remote`, without result. A flush completes it.
    pub fn atomic_post<T: AtomicType>(
        &self,
        op: AtomicOp,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<(), Error> {
        self.0.with(|ep, _| ep.atomic_post(op, value, remote, rkey))?
    }

    /// Orders one-sided operations to this peer: later ones take effect after earlier ones.
    pub fn fence(&self) -> Result<(), Error> {
        Ok(self.0.with(|ep, _| ep.fence())?)
    }

    /// Whether stream bytes, or an error, have arrived that no receive waits for: [`Ep::has_stream_data`].
    pub fn has_stream_data(&self) -> Result<bool, Error> {
        Ok(self.0.look(Ep::has_stream_data)?)
    }

    /// Returns stream bytes of one send in memory of the library: [`Ep::stream_recv_data`].
    pub fn stream_recv_data(&self) -> Result<Option<StreamData>, Error> {
        self.0.with(|ep, _| ep.stream_recv_data())?
    }

    /// Unpacks a remote key of the peer's memory: [`Ep::unpack_rkey`].
    pub fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, RkeyError> {
        self.0.with(|ep, _| ep.unpack_rkey(packed))?
    }

    /// Engine's view of the peer: [`Ep::peer_view`].
    pub fn peer_view(&self) -> Result<Option<PeerView>, Error> {
        Ok(self.0.look(Ep::peer_view)?)
    }

    /// Socket addresses of an endpoint of [`SharedWorker::connect_to`] or [`SharedWorker::accept`].
    pub fn socket_addrs(&self) -> Result<Option<SocketAddrs>, Error> {
        Ok(self.0.look(Ep::socket_addrs)?)
    }

    /// Calls `f` with the queries of the protocols that operations to this peer take: [`Ep::protocols`].
    pub fn protocols<R>(&self, f: impl FnOnce(EpProtocols<'_>) -> R) -> Result<R, Error> {
        Ok(self.0.look(|ep| f(ep.protocols()))?)
    }
}

/// Gives an endpoint of [`SharedWorker::connect_later`] its peer. Dropping it before fails the endpoint.
#[must_use = "an endpoint without a peer fails when this is dropped"]
pub struct SharedEpConnector(Locked<EpConnector>);

// SAFETY: it holds an endpoint's state, which is its worker's.
unsafe impl OfWorker for EpConnector {}

impl SharedEpConnector {
    /// Connects the endpoint to the worker at `address`: [`EpConnector::connect`].
    pub fn connect(self, address: &Address) -> Result<(), ConnectError> {
        self.0.consume(|connector, _| connector.connect(address))?
    }

    /// Fails the endpoint and all its operations.
    pub fn fail(self, error: Error) -> Result<(), Error> {
        Ok(self.0.consume(|connector, _| connector.fail(error))?)
    }

    /// Whether the endpoint still waits for its peer: [`EpConnector::is_awaited`].
    pub fn is_awaited(&self) -> Result<bool, Error> {
        Ok(self.0.look(EpConnector::is_awaited)?)
    }
}

impl SharedWorker {
    /// Creates an endpoint to the worker at `address`.
    pub fn connect(&self, address: &Address, params: SharedEpParams) -> Result<SharedEp, ConnectError> {
        let inside = self.shared.enter()?;
        let ep = inside.worker().connect(address, params.plain())?;
        Ok(SharedEp::new(ep, &inside))
    }

    /// Creates an endpoint whose peer is not known yet: [`crate::Worker::connect_later`].
    pub fn connect_later(&self, params: SharedEpParams) -> Result<(SharedEp, SharedEpConnector), Error> {
        let inside = self.shared.enter()?;
        let (ep, connector) = inside.worker().connect_later(params.plain());
        Ok((SharedEp::new(ep, &inside), SharedEpConnector(Locked::new(connector, &inside))))
    }
}

impl std::fmt::Debug for SharedEp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.peer() {
            Ok(peer) => write!(f, "SharedEp(peer {})", peer.0),
            Err(error) => write!(f, "SharedEp({error})"),
        }
    }
}
