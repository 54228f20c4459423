//! The programs' face: contexts, workers, endpoints, requests, tagged and untagged messages.
//! Thin on purpose: check, then call down to selection, engine and lanes. Never knows a wire format.

mod address;
mod alive;
mod am;
mod amo;
mod buf;
mod config;
mod context;
mod core;
mod ep;
mod err;
mod flush;
mod mem;
mod multi;
mod op;
mod rails;
mod recv;
mod report;
mod request;
mod rkey;
mod rma;
mod scope;
mod stream;
mod tables;
mod worker;

pub(crate) use address::Entry;
pub use address::{Address, AddressError};
pub use am::{AM_MAX_HEADER, AmMessage, AmProto, AmSend};
pub use amo::{AtomicParams, AtomicType, FetchRequest};
pub use buf::{IoBuf, IoBufMut};
pub use config::Config;
pub use context::Context;
pub use ep::{Close, Ep, EpParams, ErrorMode, SendParams, Started};
pub use err::{ConnectError, Error};
pub use mem::{Mem, MemError, RemoteWrite};
pub use multi::{MultiRecv, Part};
pub use op::{FlushRequest, RecvRequest, SendRequest};
pub use rails::{Rail, RailsOf};
pub use recv::{ANY_TAG, EXACT, Envelope, Match, Message};
pub use report::Report;
pub use request::{Callback, RequestId};
pub use rkey::{Rkey, RkeyError};
pub use rma::{Means, Piece, RemotePiece, RmaParams};
pub use scope::{Borrowed, Scope};
pub(crate) use worker::process;
pub use worker::{Woken, Worker};
