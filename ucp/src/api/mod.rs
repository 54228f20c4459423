//! Public interface: checks arguments, then calls selection, engine and lanes. Never touches a packet.

mod am;
mod cm;
mod context;
mod core;
mod data;
mod ep;
mod mem;
mod raw;
mod request;
mod rma;
mod stream;
mod tag;
mod worker;

pub use crate::cm::{ConnRequest, ConnectFailure, SockCm, SockCmEvent, SockConn, SockListener};
pub use am::send::{AmParams, AmProto, AmSend};
pub use am::tag::AM_MAX_HEADER;
pub use cm::connect::{ConnectParams, SocketAddrs};
pub use cm::listener::{ListenError, Listener};
pub use context::calibrate::{CacheError, Calibration, DeviceCosts, DeviceType, Key as CalibrationKey};
pub use context::config::Config;
pub use context::open::Context;
pub use core::ep_state::ErrorMode;
pub use core::error::Error;
pub use core::report::Report;
#[doc(hidden)]
pub use core::requests::RequestTable;
pub use core::requests::{CallAt, Callback, MAX_OPERATIONS, OpStatus, RequestId, RequestRoom};
pub use data::iov::Iov;
pub use data::packed::{Pack, Packed, Unpack, Unpacked};
pub use data::params::OpParams;
pub use data::raw::{Generic, Layout};
pub use data::strided::{Stride, Strided, StridedIov};
pub use data::view::{RecvData, SendData};
pub use ep::address_table::AddressTable;
pub use ep::close::CloseMode;
pub use ep::connect::EpConnector;
pub use ep::handle::{Ep, EpParams};
pub use ep::protocols::EpProtocols;
pub use ep::rails::{Rail, TransferKind};
pub use ep::send::SendParams;
pub use ep::shared_list::{SharedTableError, TableAccess};
pub use mem::export::exported_mem_len;
pub use mem::map_params::MapParams;
pub use mem::memory::{AllocParams, Mem, MemError};
pub use mem::remote_writes::RemoteWrite;
pub use mem::served::ServedOps;
pub use raw::{
    am_send_now_raw, cancel_now, flush_ep_raw, flush_worker_raw, post_recv_raw, send_now_calling,
    send_now_raw,
};
pub use request::buf::{IoBuf, IoBufMut};
pub(crate) use request::handles::RawRequest;
pub use request::handles::{FlushRequest, RecvRequest, SendRequest};
pub use request::scope::{Scope, ScopedRequest};
pub(crate) use request::scope::{atomic_params, with_empty_status};
pub use request::triggers::Triggers;
pub use rma::atomic_params::{AtomicIovParams, AtomicParams};
pub use rma::atomic_type::AtomicType;
pub use rma::fetch::FetchRequest;
pub use rma::packed_rkey::{RkeyError, packed_rkey_len};
pub use rma::params::{RemoteIov, RmaParams};
pub use rma::query::RmaMethod;
pub use rma::rkey::Rkey;
pub use stream::ops::StreamData;
pub use stream::state::StreamRecvMode;
pub use tag::multi_recv::{MultiRecv, MultiRecvMessage, MultiRecvParams};
pub use tag::recv::{ANY_TAG, Envelope, Match, Message, TAG_MASK_FULL};
pub use tag::shared_recvs::SharedRecvs;
pub use worker::armed::WorkerEvents;
pub(crate) use worker::armed::arm_lanes;
pub use worker::diagnostics::Diagnostics;
pub use worker::handle::{AmMessage, WeakWorker, Worker};
pub use worker::signal::{WorkerSignal, wait_mem};
pub(crate) use worker::sleep::SleepPlan;
pub use worker::sleep::WaitStatus;
pub use worker::thread::{JobError, SpawnError, WorkerThread};
