//! `Debug` of handles. It names the type and what its handle holds itself: it looks at nothing of the worker,
//! so that it may be called anywhere.

use std::fmt::{Debug, Formatter, Result};

use crate::api::am::send::AmSend;
use crate::api::cm::connect::ConnectParams;
use crate::api::core::ep_state::ErrorMode;
use crate::api::core::report::Report;
use crate::api::data::strided::Strided;
use crate::api::ep::handle::{Ep, EpParams};
use crate::api::ep::protocols::EpProtocols;
use crate::api::group::collective::GroupMaker;
use crate::api::group::request::GroupRequest;
use crate::api::queue::completion::CompletionQueue;
use crate::api::queue::counter::Counter;
use crate::api::request::buf::IoBufMut;
use crate::api::request::handles::{FlushRequest, RecvRequest, SendRequest};
use crate::api::request::scope::{Scope, ScopedRequest};
use crate::api::request::tracked::TrackedOp;
use crate::api::rma::atomic_type::AtomicType;
use crate::api::rma::fetch::FetchRequest;
use crate::api::tag::multi_recv::MultiRecv;
use crate::api::tag::recv::Message;
use crate::api::worker::diagnostics::Diagnostics;
use crate::api::worker::thread::WorkerThread;

/// Implements `Debug` of each type: its name, and the results of the methods behind it.
macro_rules! debug_handles {
    ($([$($generics:tt)*] $type:ty: $name:ident $(($($method:ident),*))?;)*) => {$(
        impl<$($generics)*> Debug for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                f.debug_struct(stringify!($name))
                    $($(.field(stringify!($method), &self.$method()))*)?
                    .finish_non_exhaustive()
            }
        }
    )*};
}
pub(crate) use debug_handles;

debug_handles! {
    [] Ep: Ep(peer);
    [] EpParams: EpParams;
    [] ErrorMode: ErrorMode;
    [] ConnectParams: ConnectParams;
    [] EpProtocols<'_>: EpProtocols;
    [] Diagnostics<'_>: Diagnostics;
    [] Report: Report;
    [] Message: Message;
    [B: 'static] SendRequest<B>: SendRequest;
    [B: 'static] RecvRequest<B>: RecvRequest;
    [B: 'static] AmSend<B>: AmSend;
    [] FlushRequest: FlushRequest;
    [T: AtomicType] FetchRequest<T>: FetchRequest;
    [] GroupMaker: GroupMaker;
    [] GroupRequest: GroupRequest;
    ['scope, T] ScopedRequest<'scope, T>: ScopedRequest;
    ['scope, 'env: 'scope] Scope<'scope, 'env>: Scope;
    [B: IoBufMut] MultiRecv<B>: MultiRecv;
    [B: 'static] CompletionQueue<B>: CompletionQueue(depth);
    [] Counter: Counter(value);
    [B] Strided<B>: Strided;
    [B: 'static] TrackedOp<B>: TrackedOp;
    [T] WorkerThread<T>: WorkerThread;
}
