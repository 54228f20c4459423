//! Completed messages of multi-receives, until the program takes them.

use std::any::Any;
use std::collections::VecDeque;
use std::task::Waker;

use ucs::coll::slots::Slots;

use crate::api::core::error::Error;

use crate::rdm::RecvStatus;

#[derive(Default)]
pub(crate) struct MultiRecvState {
    pub(crate) messages: VecDeque<(usize, Result<RecvStatus, Error>)>,
    pub(crate) result: Option<Result<(), Error>>,
    pub(crate) waker: Option<Waker>,
    pub(crate) kept_buf: Option<Box<dyn Any>>,
}

pub(crate) type MultiRecvs = Slots<MultiRecvState>;
