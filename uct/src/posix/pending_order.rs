//! Who sends to a peer while endpoints to it wait for room: nobody overtakes what waits on its own endpoint. Asked by `peer.rs`
//! when its copy of the tail says full, and by then the copy stays what it is: so whoever sends as usual, by the copy, pays
//! nothing for that others may wait.

use crate::base::pending::{Arbiter, QueueId};
use std::cell::RefCell;

/// The endpoints to one peer that wait for room, or did when they were last asked for.
#[derive(Default)]
pub struct WaitingQueues {
    queues: RefCell<Vec<QueueId>>,
}

/// An endpoint, for who sends by it and asks only when there seems to be no room.
pub trait Sender {
    /// Where it stands.
    fn order(&self) -> PendingOrder<'_>;
    /// Its peer was found dead by a send.
    fn on_peer_dead(&self);
}

/// Where an endpoint stands that wants to send.
#[derive(Clone, Copy)]
pub struct PendingOrder<'a> {
    /// Those to its peer.
    pub waiting: &'a WaitingQueues,
    /// What waits at its interface.
    pub pending: &'a Arbiter,
    /// Where it waits itself.
    pub queue: QueueId,
}

impl PendingOrder<'_> {
    /// It waits from now on.
    pub fn enqueue(&self) {
        let mut queues = self.waiting.queues.borrow_mut();
        if !queues.contains(&self.queue) {
            queues.push(self.queue);
        }
    }

    /// Whether it has something waiting, which is to go first.
    pub fn has_own_pending(&self) -> bool {
        self.pending.waiting() > 0 && self.pending.holds_back(self.queue)
    }

    /// Whether any endpoint to the peer waits, itself perhaps.
    pub fn has_any_pending(&self) -> bool {
        let mut queues = self.waiting.queues.borrow_mut();
        queues.retain(|queue| !self.pending.is_empty(*queue));
        !queues.is_empty()
    }
}
