//! The order of sends to a peer while endpoints wait for room: no send overtakes its own endpoint's queue.
//! `peer.rs` asks only while its cached tail says full, as it does while anybody waits: others pay nothing.

use crate::base::pending::{Arbiter, QueueId};
use std::cell::RefCell;

/// The queues of the endpoints to one peer that wait for room, or did when last checked.
#[derive(Default)]
pub struct WaitingQueues {
    queues: RefCell<Vec<QueueId>>,
}

/// An endpoint that sends, asked only when there seems to be no room.
pub trait Sender {
    fn order(&self) -> PendingOrder<'_>;
    fn on_peer_dead(&self);
    fn on_peer_corrupt(&self);
}

#[derive(Clone, Copy)]
pub struct PendingOrder<'a> {
    pub waiting: &'a WaitingQueues,
    pub pending: &'a Arbiter,
    pub queue: QueueId,
}

impl PendingOrder<'_> {
    pub fn enqueue(&self) {
        let mut queues = self.waiting.queues.borrow_mut();
        if !queues.contains(&self.queue) {
            queues.push(self.queue);
        }
    }

    /// Whether the endpoint has queued operations, which go first.
    pub fn has_own_pending(&self) -> bool {
        self.pending.waiting() > 0 && self.pending.holds_back(self.queue)
    }

    pub fn has_any_pending(&self) -> bool {
        let mut queues = self.waiting.queues.borrow_mut();
        queues.retain(|queue| !self.pending.is_empty(*queue));
        !queues.is_empty()
    }
}
