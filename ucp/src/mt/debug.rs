//! `Debug` of the handles of shared workers: names alone, since a look inside would take the worker's lock.

use std::fmt::{Debug, Formatter, Result};

use crate::IoBufMut;
use crate::api::debug::debug_handles;
use crate::mt::cm::SharedConnectParams;
use crate::mt::ep::{SharedEpConnector, SharedEpParams};
use crate::mt::message::{SharedMessage, SharedMultiRecv};
use crate::mt::queue::SharedCompletionQueue;
use crate::mt::request::{Operation, SharedRequest};
use crate::mt::scope::{SharedScope, SharedScopedRequest};
use crate::mt::shared::{Unlocked, WorkerGuard};

debug_handles! {
    [] SharedConnectParams: SharedConnectParams;
    [] SharedEpParams: SharedEpParams;
    [] SharedEpConnector: SharedEpConnector;
    [] SharedMessage: SharedMessage;
    [B: IoBufMut + Send] SharedMultiRecv<B>: SharedMultiRecv;
    [B: Send + 'static] SharedCompletionQueue<B>: SharedCompletionQueue;
    [R: Operation] SharedRequest<R>: SharedRequest;
    ['scope, 'env: 'scope] SharedScope<'scope, 'env>: SharedScope;
    ['scope, T] SharedScopedRequest<'scope, T>: SharedScopedRequest;
    [] WorkerGuard<'_>: WorkerGuard;
    [] Unlocked<'_>: Unlocked;
}
