//! The order of sends to a peer while endpoints wait for room: no send overtakes what is queued on its own
//! endpoint. `peer.rs` asks only when its cached tail says full, and keeps the tail so while anybody waits:
//! sends that find room pay nothing.

use crate::base::pending::{Arbiter, QueueId};
use std::cell::RefCell;

/// The queues of the endpoints to one peer that wait for room, or did when last checked.
#[derive(Default)]
pub struct WaitingQueues {
    queues: RefCell<Vec<QueueId>>,
}

/// An endpoint that sends, asked only when there seems to be no room.
pub trait Sender {
    /// The queues that the order depends on.
    fn order(&self) -> PendingOrder<'_>;
    /// A send has found the peer dead.
    fn on_peer_dead(&self);
}

/// The queues that decide whether an endpoint may send.
#[derive(Clone, Copy)]
pub struct PendingOrder<'a> {
    /// The queues of all endpoints to the peer that wait.
    pub waiting: &'a WaitingQueues,
    /// The pending operations of the interface.
    pub pending: &'a Arbiter,
    /// The endpoint's own queue.
    pub queue: QueueId,
}

impl PendingOrder<'_> {
    /// Enters the endpoint among those that wait.
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

    /// Whether any endpoint to the peer waits, this one included.
    pub fn has_any_pending(&self) -> bool {
        let mut queues = self.waiting.queues.borrow_mut();
        queues.retain(|queue| !self.pending.is_empty(*queue));
        !queues.is_empty()
    }
}
