//! Wire format of EFA RDM v4: builders write in place, [`parse()`] checks received ones once, [`Print`]
//! shows them. No state, no I/O, no panic on received bytes.

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
pub use reader::peek_type;
pub use rta::{AtomicOp, Datatype};
pub use rtm::{Cause, Delivery};
pub use size::{header_len, max_eager_payload, max_payload};
pub use status::EfaStatus;

#[cfg(test)]
mod tests;
