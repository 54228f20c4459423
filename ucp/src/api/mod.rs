//! Public interface: contexts, workers, endpoints, requests, messages, RMA. Checks arguments, then calls
//! selection, the engine and the lanes. Never reads or writes a packet.

mod am;
mod context;
mod core;
mod ep;
mod mem;
mod request;
mod rma;
mod stream;
mod tag;
mod worker;

pub use am::send::{AmParams, AmProto, AmSend};
pub use am::tag::AM_MAX_HEADER;
pub use context::calibrate::{CacheError, Calibration, DeviceCosts, DeviceType, Key as CalibrationKey};
pub use context::config::Config;
pub use context::open::Context;
pub use core::ep_state::ErrorMode;
pub use core::error::Error;
pub use core::report::Report;
pub use core::requests::{Callback, OpStatus, RequestId};
pub use ep::handle::{CloseMode, Ep, EpParams, SendParams};
pub use ep::protocols::EpProtocols;
pub use ep::rails::{Rail, TransferKind};
pub use mem::memory::{Mem, MemError};
pub use mem::remote_writes::RemoteWrite;
pub use request::buf::{IoBuf, IoBufMut};
pub use request::handles::{FlushRequest, RecvRequest, SendRequest};
pub use request::scope::{Scope, ScopedRequest};
pub use rma::atomic::{AtomicParams, AtomicType, FetchRequest};
pub use rma::atomic_iov::AtomicIovParams;
pub use rma::put_get::{Iov, RemoteIov, RmaMethod, RmaParams};
pub use rma::rkey::{Rkey, RkeyError};
pub use stream::ops::StreamData;
pub use stream::state::StreamRecvMode;
pub use tag::multi_recv::{MultiRecv, Part};
pub use tag::recv::{ANY_TAG, Envelope, Match, Message, TAG_MASK_FULL};
pub use worker::diagnostics::Diagnostics;
pub use worker::handle::{AmMessage, Worker};
pub use worker::progress::WaitStatus;
pub use worker::thread::{JobError, SpawnError, WorkerThread};
