//! Receives that workers share: each is for the first message that one of the workers has for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::api::tag::recv::{Match, Message};
use crate::api::worker::handle::Worker;
use crate::rdm::{Kind, RecvKind};

/// Receives posted for several workers, of one context or several, in whichever threads they are. A worker
/// that has made progress asks for the next one that it has a message for, and receives that message into
/// what was posted: a buffer, or whatever the program keeps of a receive.
///
/// ```
/// # use ucp::{Context, EpParams, Match, SharedRecvs};
/// # let context = Context::new().unwrap();
/// let workers = [context.worker().unwrap(), context.worker().unwrap()];
/// let shared = SharedRecvs::default();
/// shared.post(Match::untagged(), vec![0; 64]);
/// let client = context.worker().unwrap();
/// let ep = client.connect(&workers[1].address(), EpParams::default()).unwrap();
/// let send = ep.msg_send(b"hello".to_vec());
/// let got = loop {
///     workers.iter().for_each(|worker| _ = worker.progress());
///     client.progress();
///     if let Some((message, buf)) = workers.iter().find_map(|worker| shared.take(worker)) {
///         break message.recv(buf).wait().1;
///     }
/// };
/// assert_eq!(&got[..5], b"hello");
/// # send.wait();
/// ```
///
/// Of one worker, messages meet receives as if those were its own: the oldest receive takes the oldest
/// message that it matches. Messages of different workers have no order. A message waits as one that nobody
/// expects, which costs a copy, until its worker asks.
#[derive(Debug)]
pub struct SharedRecvs<T> {
    posted: Mutex<VecDeque<(RecvKind, T)>>,
    /// Number of receives, read without the lock.
    len: AtomicUsize,
}

impl<T> Default for SharedRecvs<T> {
    fn default() -> SharedRecvs<T> {
        SharedRecvs { posted: Mutex::default(), len: AtomicUsize::new(0) }
    }
}

impl<T> SharedRecvs<T> {
    /// Posts a receive of a message that `matching` accepts. The sender is not looked at, as each worker has
    /// numbers of its own for peers.
    pub fn post(&self, matching: Match, what: T) {
        let mut posted = self.lock();
        posted.push_back((matching.kind, what));
        self.len.store(posted.len(), Ordering::Release);
    }

    /// Number of receives that no message has taken.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the oldest receive for which `is_it` is true.
    pub fn cancel(&self, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let mut is_it = is_it;
        let mut posted = self.lock();
        let at = posted.iter().position(|(_, what)| is_it(what))?;
        self.remove(&mut posted, at)
    }

    /// Takes the oldest receive for which the worker has a message, and that message. Makes no progress.
    pub fn take(&self, worker: &Worker) -> Option<(Message, T)> {
        if self.is_empty() {
            return None;
        }
        let waits = |kind| worker.core().engine.has_unexpected(kind);
        if !waits(Kind::Tagged) && !waits(Kind::Untagged) {
            return None;
        }
        let mut posted = self.lock();
        let mut failed = None;
        let found = posted.iter().enumerate().find_map(|(at, (kind, _))| {
            // Many receives in a row are often alike.
            if failed == Some(*kind) {
                return None;
            }
            let message = worker.mprobe(Match { kind: *kind, from: None });
            failed = Some(*kind);
            Some((at, message?))
        });
        let (at, message) = found?;
        let what = self.remove(&mut posted, at)?;
        Some((message, what))
    }

    fn remove(&self, posted: &mut MutexGuard<'_, VecDeque<(RecvKind, T)>>, at: usize) -> Option<T> {
        let (_, what) = posted.remove(at)?;
        self.len.store(posted.len(), Ordering::Release);
        Some(what)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(RecvKind, T)>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
