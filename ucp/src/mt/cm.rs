//! Connecting shared workers by socket address: listeners, accepting, and endpoints to a socket address.

#![allow(unsafe_code)]

use std::net::SocketAddr;

use super::SharedWorker;
use super::ep::{SharedEp, SharedEpParams};
use super::shared::{Locked, OfWorker};
use crate::{ConnRequest, ConnectError, ConnectParams, ListenError, Listener};

/// Parameters of [`SharedWorker::connect_to`].
#[derive(Default)]
pub struct SharedConnectParams {
    /// Parameters of the endpoint.
    pub ep: SharedEpParams,
    /// Socket address to connect from; port 0: any. `None`: as the system chooses.
    pub local: Option<SocketAddr>,
    /// Number of the client's choice that the listener sees ([`ConnRequest::client_id`]).
    pub client_id: u64,
}

/// A socket address at which clients ask to be connected: a [`Listener`] of a shared worker, whose progress
/// serves it. Dropping it closes the socket; endpoints and requests stay.
#[must_use = "dropping a listener closes its socket"]
pub struct SharedListener(Locked<Listener>);

// SAFETY: it holds a handle of its worker's and numbers; its callback, which is `Send`, is the worker's.
unsafe impl OfWorker for Listener {}

impl SharedListener {
    /// Socket address that it listens at, with the port that the system has chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.fixed().local_addr()
    }

    /// Another handle to the worker whose progress serves it.
    pub fn worker(&self) -> SharedWorker {
        SharedWorker::of(self.0.shared())
    }
}

impl std::fmt::Debug for SharedListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedListener").field("addr", &self.local_addr()).finish_non_exhaustive()
    }
}

impl SharedWorker {
    /// Listens at `addr`: [`crate::Worker::listen`]. The thread that progresses calls `on_request`, inside
    /// the lock. A handle to this worker in the callback keeps the worker until the listener is dropped.
    pub fn listen(
        &self,
        addr: SocketAddr,
        on_request: impl FnMut(ConnRequest) + Send + 'static,
    ) -> Result<SharedListener, ListenError> {
        let inside = self.shared.enter()?;
        let listener = inside.worker().listen(addr, on_request)?;
        Ok(SharedListener(Locked::new(listener, &inside)))
    }

    /// Connects the client that has made `request`, at whichever worker's listener, to this worker:
    /// [`crate::Worker::accept`]. [`ConnectError::Thread`] rejects it.
    pub fn accept(&self, request: ConnRequest, params: SharedEpParams) -> Result<SharedEp, ConnectError> {
        let inside = self.shared.enter()?;
        let ep = inside.worker().accept(request, params.plain())?;
        Ok(SharedEp::new(ep, &inside))
    }

    /// Creates an endpoint to the worker that accepts at `addr`: [`crate::Worker::connect_to`].
    pub fn connect_to(
        &self,
        addr: SocketAddr,
        params: SharedConnectParams,
    ) -> Result<SharedEp, ConnectError> {
        let inside = self.shared.enter()?;
        let SharedConnectParams { ep, local, client_id } = params;
        let ep = inside.worker().connect_to(addr, ConnectParams { ep: ep.plain(), local, client_id })?;
        Ok(SharedEp::new(ep, &inside))
    }
}
