//! Endpoints for answers to the senders of active messages: the program's own, or ones of this library. Those
//! of this library that have failed are freed when others are made, unless a handler that has got one runs.

use std::collections::HashMap;

use super::{Ep, add_unnamed_ep};
use crate::handle::{from_handle, from_ptr};
use crate::worker::Worker;

/// Number of the peer of an endpoint that is not connected yet.
const NO_PEER: ucp::PeerId = ucp::PeerId::NONE;

/// Endpoints of this library from which on those that have failed are looked for. A program that learns late
/// of a failure may still name one of the last.
const KEPT: usize = 64;

/// A peer, and its connection to this worker; 0: none.
type Sender = (ucp::PeerId, u32);

/// Endpoints for answers of a worker, used inside its lock.
#[derive(Default)]
pub(crate) struct ReplyEps {
    by_sender: HashMap<Sender, *mut Ep>,
    /// Those that this library has made, and the program has not closed, oldest first.
    made: Vec<*mut Ep>,
    /// Those that running handlers, or receives for handlers, have got, once for each.
    held: Vec<*mut Ep>,
    /// Number of `made` from which on those that have failed are looked for.
    sweep_at: usize,
}

impl ReplyEps {
    /// The endpoint of a sender, if it has not failed.
    fn find(&self, sender: Sender) -> Option<*mut Ep> {
        // SAFETY: the endpoints of a worker are live.
        self.by_sender.get(&sender).copied().filter(|ep| !unsafe { has_failed(*ep) })
    }

    /// Keeps an endpoint until [`ReplyEps::release`].
    pub(crate) fn hold(&mut self, ep: *mut Ep) {
        if !ep.is_null() {
            self.held.push(ep);
        }
    }

    /// Undoes one [`ReplyEps::hold`].
    pub(crate) fn release(&mut self, ep: *mut Ep) {
        if let Some(at) = self.held.iter().rposition(|held| *held == ep) {
            self.held.swap_remove(at);
        }
    }

    /// Forgets an endpoint that the program closes.
    pub(crate) fn forget(&mut self, ep: *mut Ep) {
        self.by_sender.retain(|_, of| *of != ep);
        self.made.retain(|made| *made != ep);
    }

    /// Forgets all: the worker is freed.
    pub(crate) fn clear(&mut self) {
        *self = ReplyEps::default();
    }

    /// Takes out the endpoints that have failed and that nobody holds, if there may be many.
    fn take_failed(&mut self) -> Vec<*mut Ep> {
        if self.made.len() < self.sweep_at.max(KEPT) {
            return Vec::new();
        }
        let ReplyEps { by_sender, made, held, sweep_at } = self;
        // The last ones stay.
        let old = made.len() - KEPT / 2;
        // SAFETY: as above.
        let is_gone = |ep: &mut *mut Ep| unsafe { has_failed(*ep) } && !held.contains(ep);
        let gone: Vec<_> = made.extract_if(..old, is_gone).collect();
        *sweep_at = made.len() * 2;
        if !gone.is_empty() {
            by_sender.retain(|_, ep| !gone.contains(ep));
        }
        gone
    }
}

/// Whether an endpoint of a worker has failed.
/// # Safety
/// It is live.
unsafe fn has_failed(ep: *mut Ep) -> bool {
    // SAFETY: this function's contract.
    unsafe { from_ptr(ep) }.is_ok_and(|ep| ucp::failure_of(&ep.ep).is_some())
}

/// Endpoint for answers to a peer, inside the lock; null if there is none.
pub(crate) fn reply_ep(worker: &Worker, message: &ucp::AmMessage) -> *mut Ep {
    let (from, connection) = (message.from(), message.connection());
    let known = worker.reply_eps.borrow().find((from, connection));
    if let Some(known) = known {
        return known;
    }
    // The program's own endpoint, as in UCX: that of the connection, else one to the peer. Else one of this
    // library, which is the same for all connections that the program does not have.
    let of_connection = |ep: &ucp::Ep| {
        // The peer may send before this worker has its address.
        ep.socket_addrs().is_some_and(|of| of.connection == connection)
            && [from, NO_PEER].contains(&ep.peer())
    };
    if connection != 0
        && let Some(own) = find_own(worker, of_connection)
    {
        worker.reply_eps.borrow_mut().by_sender.insert((from, connection), own);
        return own;
    }
    let known = worker.reply_eps.borrow().find((from, 0));
    if let Some(known) = known {
        return known;
    }
    if connection == 0
        && let Some(own) = find_own(worker, |ep| ep.peer() == from)
    {
        worker.reply_eps.borrow_mut().by_sender.insert((from, 0), own);
        return own;
    }
    let Some(ep) = message.reply_ep() else { return std::ptr::null_mut() };
    free_failed(worker);
    let handle = add_unnamed_ep(worker, ep);
    let mut eps = worker.reply_eps.borrow_mut();
    eps.by_sender.insert((from, 0), handle);
    eps.made.push(handle);
    handle
}

/// An endpoint of the worker that `is_wanted` and has not failed.
fn find_own(worker: &Worker, is_wanted: impl Fn(&ucp::Ep) -> bool) -> Option<*mut Ep> {
    let is_own = |ep: &*mut Ep| {
        // SAFETY: a worker has endpoints that are live.
        let is_wanted = unsafe { from_ptr(*ep) }.is_ok_and(|of| is_wanted(&of.ep));
        // SAFETY: as above.
        is_wanted && !unsafe { has_failed(*ep) }
    };
    worker.eps.borrow().iter().copied().find(is_own)
}

/// Frees endpoints of this library that have failed.
fn free_failed(worker: &Worker) {
    let gone = worker.reply_eps.borrow_mut().take_failed();
    for ep in gone {
        worker.eps.borrow_mut().remove(&ep);
        drop(from_handle(ep));
    }
}
