//! Connection management: the exchange of worker addresses over TCP, between a client that knows a socket
//! address and a listener. Sockets are non-blocking; the worker's progress moves them. `api::cm` makes the
//! endpoints.
//!
//! | File | Contents |
//! |---|---|
//! | `frame.rs` | the frames of an exchange, and reading them from a stream |
//! | `conn.rs` | one end of one exchange: its socket, and what it has read and written |
//! | `exchanges.rs` | all exchanges and listeners of a worker |
//! | `sock_cm.rs` | connections that stay, with a thread of their own |
//! | `limits.rs` | what a hostile client is prevented from: half-open exchanges beyond a number |
//! | `request.rs` | a request that the program has to accept or reject |
//! | `failure.rs` | the ways in which an exchange ends without an address |

mod conn;
mod exchanges;
mod failure;
mod frame;
mod limits;
mod request;
mod sock_cm;
#[cfg(test)]
mod tests;

pub(crate) use conn::{start_connect, start_listen};
pub(crate) use exchanges::{CmEvent, Exchanges, Lifetime, ListenerId};
pub use failure::ConnectFailure;
pub(crate) use frame::{Answer, MAX_BODY};
pub(crate) use limits::CmConfig;
pub use request::ConnRequest;
pub use sock_cm::{SockCm, SockCmEvent, SockConn, SockListener};
