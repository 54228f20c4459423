//! Delivery to queue pairs of this process: data that arrives over UDP takes the path of a message between
//! two processes of one host, so credits, keys and lengths are checked in one place.

#![allow(unsafe_code)]

use super::super::shm::{Shm, ShmDevice, ShmRemoteQp};
use super::super::{Link, RemoteQp, TryOutcome};
use crate::efa::dev::{DevStatus, QpKind};
use rustc_hash::FxHashMap;
use std::sync::Weak;

/// A queue pair of this process, as a sender sees it.
struct LocalQp(ShmRemoteQp);

// SAFETY: its pointers are to shared mappings that it owns and that any thread may use; its cells are reached
// through `&mut Locals` or under the lock of the NIC only, by one thread at a time.
unsafe impl Send for LocalQp {}

/// Queue pairs of this process.
#[derive(Default)]
pub(super) struct Locals {
    /// Contexts of the device that are open. Any of them finds all queue pairs.
    contexts: Vec<Weak<ShmDevice>>,
    qps: FxHashMap<(u16, bool), LocalQp>,
}

impl Locals {
    /// Adds a context of the device.
    pub fn add_context(&mut self, context: &Shm) {
        self.contexts.retain(|context| context.strong_count() > 0);
        self.contexts.push(context.downgrade());
    }

    /// Attempts an operation on queue pair (`iid`, `qpn`) of this process.
    pub fn with(
        &mut self,
        iid: u64,
        (qpn, kind): (u16, QpKind),
        attempt: impl Fn(&ShmRemoteQp) -> TryOutcome,
    ) -> TryOutcome {
        let key = (qpn, kind == QpKind::Ud);
        if let Some(cached) = self.qps.get(&key) {
            let outcome = attempt(&cached.0);
            if outcome != TryOutcome::Done(DevStatus::BadDestQpn) {
                return outcome;
            }
            // The number may have been reused.
            self.qps.remove(&key);
        }
        let Some(context) = self.contexts.iter().find_map(Weak::upgrade).map(Shm::of) else {
            return TryOutcome::Done(DevStatus::BadDestQpn);
        };
        match context.resolve(iid, qpn, kind) {
            Err(outcome) => outcome,
            Ok(qp) => {
                self.qps.retain(|_, qp| !qp.0.is_gone());
                let outcome = attempt(&qp);
                self.qps.insert(key, LocalQp(qp));
                outcome
            }
        }
    }
}
