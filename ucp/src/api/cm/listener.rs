//! Listeners, and accepting what they are asked.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use ucs::Errno;
use ucs::sync::LockError;

use crate::api::cm::connect::{packed_address, read_connection};
use crate::api::ep::handle::{Ep, EpParams};
use crate::api::worker::handle::Worker;
use crate::cm::{Answer, ConnRequest, ConnectFailure, Lifetime, ListenerId, start_listen};
use crate::lane::ConnectError;

/// A socket address at which clients ask to be connected. Progress of its worker serves it. Dropping it
/// closes the socket; endpoints and requests stay.
#[must_use = "dropping a listener closes its socket"]
pub struct Listener {
    worker: Worker,
    id: ListenerId,
    addr: SocketAddr,
}

/// Error of [`Worker::listen`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The system refuses the socket.
    #[error("cannot listen at {addr}: {errno}")]
    Socket {
        /// Socket address asked for.
        addr: SocketAddr,
        /// Error of the system.
        errno: Errno,
    },
    /// The calling thread may not use the worker ([`crate::mt`]).
    #[error("worker: {0}")]
    Thread(#[from] LockError),
}

impl Worker {
    /// Listens at `addr`; port 0: any free one. Progress calls `on_request` for each client that asks to be
    /// connected. The callback may answer at once, keep the request for later, or pass it to another thread.
    /// It keeps what it owns alive until the listener is dropped: a clone of the worker in it keeps both.
    ///
    /// Clients that do not say what they want are dropped after `UCX_CM_TIMEOUT`, or earlier if there are
    /// more than `UCX_CM_MAX_PENDING`, so that they cannot keep others out.
    pub fn listen(
        &self,
        addr: SocketAddr,
        on_request: impl FnMut(ConnRequest) + 'static,
    ) -> Result<Listener, ListenError> {
        let fail = |errno| ListenError::Socket { addr, errno };
        let socket = start_listen(addr).map_err(|error| fail(error.into()))?;
        let bound = socket.local_addr().map_err(|error| fail(error.into()))?;
        let mut core = self.core();
        let exchanges = core.cm.open(self.inner.events.as_ref()).map_err(fail)?;
        let id = exchanges
            .listen(socket, Rc::new(RefCell::new(on_request)), Lifetime::UntilConnected)
            .map_err(fail)?;
        Ok(Listener { worker: self.clone(), id, addr: bound })
    }

    /// Connects the client that has made `request` to this worker, which may be another than the listener's.
    /// The endpoint can be used at once. It fails with
    /// [`Error::ConnectFailed`](crate::Error::ConnectFailed) if the client does not confirm the connection
    /// within `UCX_CM_TIMEOUT`. If no transport reaches the client, it is told.
    pub fn accept(&self, mut request: ConnRequest, params: EpParams) -> Result<Ep, ConnectError> {
        let ep = match self.connect(request.address(), params) {
            Ok(ep) => ep,
            Err(error) => {
                request.answer(Answer::Unreachable);
                return Err(error);
            }
        };
        let address = packed_address(self, ep.state())?;
        ep.state().set_peer_connection(read_connection(request.data()));
        ep.state().set_sockets(request.local_addr(), request.peer_addr());
        let mut core = self.core();
        let now = core.now();
        let exchanges = core.cm.open(self.inner.events.as_ref()).map_err(ConnectFailure::Socket)?;
        if let Some(conn) = request.take_conn() {
            exchanges
                .accept(conn, (ep.state().clone(), address), Lifetime::UntilConnected, now)
                .map_err(ConnectFailure::Socket)?;
        }
        drop(core);
        Ok(ep)
    }
}

impl Listener {
    /// Socket address that it listens at, with the port that the system has chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Worker whose progress serves it.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The callback is user code: dropped with nothing borrowed.
        let ended = self.worker.core().cm.get().map(|exchanges| exchanges.unlisten(self.id));
        drop(ended);
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("addr", &self.addr).finish_non_exhaustive()
    }
}
