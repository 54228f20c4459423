//! Endpoints to a socket address, of clients.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::api::core::ep_state::EpState;
use crate::api::ep::connect::make_pending_ep;
use crate::api::ep::handle::{Ep, EpParams};
use crate::api::stream::ops::open_stream;
use crate::api::worker::handle::Worker;
use crate::cm::{ConnectFailure, Lifetime, MAX_BODY, start_connect};
use crate::lane::ConnectError;
use crate::token::CONNECTIONS;

/// Parameters of [`Worker::connect_to`].
#[derive(Default)]
pub struct ConnectParams {
    /// Parameters of the endpoint.
    pub ep: EpParams,
    /// Socket address to connect from; port 0: any. `None`: as the system chooses.
    pub local: Option<SocketAddr>,
    /// Number of the client's choice that the listener sees ([`ConnRequest::client_id`](crate::ConnRequest)).
    pub client_id: u64,
}

/// The connection by which an endpoint was made ([`Worker::connect_to`], [`Worker::accept`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketAddrs {
    /// Number of the connection at this worker. Active messages that the peer sends on it have this number
    /// ([`AmMessage::connection`](crate::AmMessage::connection)).
    pub connection: u32,
    /// This end of the TCP connection.
    pub local: SocketAddr,
    /// The peer's end of it.
    pub remote: SocketAddr,
}

impl Worker {
    /// Creates an endpoint to the worker that accepts at `addr` ([`Worker::listen`]). Returns at once;
    /// operations wait until the peer has accepted, and then start in order. If it does not, the endpoint and
    /// they fail with [`Error::ConnectFailed`](crate::Error::ConnectFailed), at the latest after
    /// `UCX_CM_TIMEOUT`. TCP carries the exchange of addresses only.
    pub fn connect_to(&self, addr: SocketAddr, params: ConnectParams) -> Result<Ep, ConnectError> {
        let conn = start_connect(addr, params.local).map_err(ConnectFailure::from)?;
        let local = conn.local_addr();
        let ep = make_pending_ep(self, params.ep);
        let address = packed_address(self, ep.state())?;
        if let Some(local) = local {
            ep.state().set_sockets(local, addr);
        }
        let mut core = self.core();
        let now = core.now();
        let exchanges = core.cm.open(self.inner.events.as_ref()).map_err(ConnectFailure::Socket)?;
        exchanges
            .connect(conn, (ep.state().clone(), address, params.client_id), Lifetime::UntilConnected, now)
            .map_err(ConnectFailure::Socket)?;
        core.on_wakeup();
        core.needs_poll = true;
        drop(core);
        Ok(ep)
    }
}

/// Address of a worker and the number of an endpoint's connection behind it, if a message of the exchange has
/// room for them.
pub(crate) fn packed_address(worker: &Worker, ep: &Rc<EpState>) -> Result<Vec<u8>, ConnectError> {
    let mut address = worker.address().pack();
    let mut core = worker.core();
    let number = core.cm.number(ep);
    open_stream(&mut core, ep);
    drop(core);
    address.extend_from_slice(&number.to_le_bytes());
    if address.len() > MAX_BODY {
        return Err(ConnectError::AddressTooLong { len: address.len(), max: MAX_BODY });
    }
    Ok(address)
}

/// The peer's number of a connection, which follows its address; 0 if nothing does.
pub(crate) fn read_connection(behind: &[u8]) -> u32 {
    behind.try_into().map(u32::from_le_bytes).ok().filter(|number| *number < CONNECTIONS).unwrap_or(0)
}

impl Ep {
    /// Socket addresses and number of the connection of an endpoint of [`Worker::connect_to`] or
    /// [`Worker::accept`].
    pub fn socket_addrs(&self) -> Option<SocketAddrs> {
        let connection = self.state().connection();
        self.state().sockets().map(|(local, remote)| SocketAddrs { local, remote, connection })
    }
}
