//! Requests of clients that have told their address, until the program answers them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::conn::Conn;
use super::frame::{Answer, Frame, Kind};
use crate::address::Address;

/// A client's request to be connected, which a [`Listener`](crate::Listener) has passed to its callback. Any
/// worker may accept it ([`Worker::accept`](crate::Worker::accept)), in another thread, too. Dropping it
/// rejects it.
#[must_use = "dropping a request rejects it"]
pub struct ConnRequest {
    /// `None` once it is answered.
    conn: Option<Conn>,
    address: Address,
    client_id: u64,
    data: Vec<u8>,
    peer_addr: SocketAddr,
    local_addr: SocketAddr,
    _open: OpenRequest,
}

/// Description of itself that a client begins with.
pub(super) struct Hello {
    pub(super) address: Address,
    pub(super) client_id: u64,
    pub(super) data: Vec<u8>,
}

/// Counts a request that is not answered.
pub(super) struct OpenRequest(Arc<AtomicUsize>);

impl OpenRequest {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> OpenRequest {
        count.fetch_add(1, Ordering::Relaxed);
        OpenRequest(count.clone())
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnRequest {
    pub(super) fn new(
        conn: Conn,
        Hello { address, client_id, data }: Hello,
        (local_addr, peer_addr): (SocketAddr, SocketAddr),
        open: OpenRequest,
    ) -> ConnRequest {
        ConnRequest { conn: Some(conn), address, client_id, data, peer_addr, local_addr, _open: open }
    }

    /// Socket address of the client.
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer_addr
    }

    /// Socket address that the client has connected to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Address of the client's worker.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Number that the client has chosen for itself; 0 if it has not.
    pub fn client_id(&self) -> u64 {
        self.client_id
    }

    /// Data that the client has sent with its request to a [`SockCm`](crate::SockCm), in bytes as sent. A
    /// client of [`Worker::connect_to`](crate::Worker::connect_to) has none: these are four bytes, its number
    /// of the connection.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Tells the client that it is not wanted: its endpoint fails with
    /// [`ConnectFailure::Rejected`](crate::ConnectFailure::Rejected).
    pub fn reject(mut self) {
        self.answer(Answer::Rejected);
    }

    /// Rejects a request to a [`SockCm`](crate::SockCm) with data, which the client gets. More than
    /// [`SockCm::MAX_DATA`](crate::SockCm::MAX_DATA) bytes are cut.
    pub fn reject_with(mut self, data: &[u8]) {
        self.answer_with(Answer::Rejected, &data[..data.len().min(super::SockCm::MAX_DATA)]);
    }

    /// Tells the client why it is not connected.
    pub(crate) fn answer(&mut self, answer: Answer) {
        self.answer_with(answer, &[]);
    }

    fn answer_with(&mut self, answer: Answer, data: &[u8]) {
        if let Some(mut conn) = self.conn.take() {
            conn.queue(&Frame { kind: Kind::Reject, word: answer.into(), body: data.to_vec() });
            // Nothing else is in the socket's buffer, so it takes this.
            let _ = conn.send();
        }
    }

    /// Takes the connection, to accept the request.
    pub(crate) fn take_conn(&mut self) -> Option<Conn> {
        self.conn.take()
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        self.answer(Answer::Rejected);
    }
}

impl std::fmt::Debug for ConnRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnRequest")
            .field("peer_addr", &self.peer_addr)
            .field("client_id", &self.client_id)
            .field("address", &format_args!("{}", self.address))
            .finish()
    }
}
