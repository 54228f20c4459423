//! Endpoints that are ready to send. *"Each module maintains a queue of endpoints that are ready to send"*
//! (Sending): with fragments, credits and an open window. They take turns.

use std::collections::VecDeque;

/// Queue of endpoints, by index. Each is in it once at most; the endpoint keeps that flag.
#[derive(Default)]
pub struct ReadyQueue {
    queue: VecDeque<u32>,
    /// Segments that the first endpoint has sent in its turn.
    sent: u32,
}

impl ReadyQueue {
    /// Endpoint at a place of the queue. The first one is that whose turn it is.
    #[inline]
    pub fn get(&self, at: usize) -> Option<u32> {
        self.queue.get(at).copied()
    }

    /// Puts an endpoint at the end.
    pub fn push(&mut self, endpoint: u32) {
        self.queue.push_back(endpoint);
    }

    /// Takes a send of the first endpoint: after `quantum` of them it is the next one's turn.
    #[inline]
    pub fn on_sent(&mut self, quantum: u32) {
        self.sent += 1;
        if self.sent >= quantum {
            self.sent = 0;
            self.queue.rotate_left(usize::from(self.queue.len() > 1));
        }
    }

    /// Removes the endpoint at a place: it has nothing to send, no credits, or a full window.
    pub fn remove_at(&mut self, at: usize) {
        if at == 0 {
            self.sent = 0;
        }
        self.queue.remove(at);
    }

    /// Removes an endpoint, wherever it stands: its peer is dead.
    pub fn remove(&mut self, endpoint: u32) {
        if self.get(0) == Some(endpoint) {
            self.sent = 0;
        }
        self.queue.retain(|other| *other != endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_take_turns() {
        let mut ready = ReadyQueue::default();
        (0..3).for_each(|n| ready.push(n));
        let order: Vec<u32> = (0..8)
            .map(|_| {
                let first = ready.get(0).expect("one is ready");
                ready.on_sent(2);
                first
            })
            .collect();
        assert_eq!(order, [0, 0, 1, 1, 2, 2, 0, 0]);
        ready.remove_at(0);
        ready.remove(0);
        assert_eq!((ready.get(0), ready.get(1)), (Some(2), None));
    }
}
