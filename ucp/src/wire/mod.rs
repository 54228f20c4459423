//! The bytes of EFA RDM v4: every packet type, built in place and parsed once. No state, no I/O.
//!
//! The engine (`rdm`) writes packets with the builders of `rtm`, `rtw`, `rtr`, `rta`, `ctl` and `handshake` and
//! takes received ones through [`parse`]; tools print them with [`Print`]. Nothing here depends on a peer's
//! state, and nothing a peer sends makes it panic.

pub mod base;
pub mod ctl;
pub mod error;
pub mod handshake;
pub mod iov;
mod layout;
pub mod opt;
mod pack;
pub mod packet;
pub mod parse;
pub mod print;
pub mod rawaddr;
mod reader;
pub mod rta;
pub mod rtm;
pub mod rtr;
pub mod rtw;
mod short;
mod size;
pub mod status;
pub mod table;

pub use base::{CtlFlags, MsgClass, PktType, ReqFlags, Tagged, VERSION};
pub use error::{ParseError, Section};
pub use handshake::{Features, Handshake, HandshakeFlags, UserRecvQp};
pub use iov::{Iovs, MAX_IOV, RmaIov, TooManyIovs};
pub use opt::Opts;
pub use packet::Packet;
pub use parse::parse;
pub use print::{Item, Print, items};
pub use rawaddr::RawAddr;
pub use rta::{AtomicOp, Datatype};
pub use rtm::{Cause, Delivery};
pub use size::{header_len, max_eager_payload, max_payload};
pub use status::EfaStatus;

#[cfg(test)]
mod tests;
