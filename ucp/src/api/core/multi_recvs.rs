//! Receives of many messages that are under way or not picked up: what has ended in each.

use std::any::Any;
use std::collections::VecDeque;
use std::task::Waker;

use ucs::coll::slots::Slots;

use crate::api::core::error::Error;

use crate::rdm::RecvStatus;

/// What a worker keeps of one: shared by slot, as requests are.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) ended: VecDeque<(usize, Result<RecvStatus, Error>)>,
    pub(crate) end: Option<Result<(), Error>>,
    pub(crate) waker: Option<Waker>,
    /// The buffer, once nobody asks any more.
    pub(crate) orphan: Option<Box<dyn Any>>,
}

/// All receives of many messages of a worker.
pub(crate) type Multis = Slots<Parts>;
