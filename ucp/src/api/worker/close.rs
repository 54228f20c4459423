//! The end of a worker: its operations end, and the user code that it keeps is dropped.

use std::rc::{Rc, Weak};

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::worker_core::WorkerCore;
use crate::api::ep::end_ops::abort_ep_ops;
use crate::api::worker::handle::Worker;

use crate::rdm::io::PeerId;

/// Passes over operations that callbacks of ended ones begin.
const MAX_PASSES: u32 = 8;
/// Empty progress calls after which nothing more is expected to end.
const QUIET: u32 = 64;

impl Worker {
    /// Ends everything that the worker does, so that dropping its handles frees it, whatever handlers and
    /// callbacks hold. Blocks for some progress calls only: flush first what is to arrive.
    ///
    /// * Endpoints refuse operations with [`Error::Closed`], and their peers are told as by
    ///   [`CloseMode::Force`](crate::CloseMode::Force). Their error callbacks are dropped, not called.
    /// * Unfinished operations end, most with [`Error::Cancelled`] or the error of their peer. Their
    ///   callbacks and wakers are called; those should begin nothing new.
    /// * Listeners close their sockets. Handlers of active messages and callbacks of listeners are dropped.
    ///
    /// Handlers and callbacks live in the worker. One that holds the worker, an endpoint or a message of it
    /// keeps the worker, its descriptors and threads as long as the worker keeps the handler. Let it hold a
    /// [`WeakWorker`](crate::WeakWorker) or use what it is given ([`AmMessage::worker`](crate::AmMessage),
    /// `reply_ep`), or call this at the end.
    /// ```
    /// let worker = ucp::Context::new()?.worker()?;
    /// let (held, weak) = (worker.clone(), worker.downgrade());
    /// worker.set_am_handler(1, move |_| drop(held.address()));
    /// worker.close();
    /// drop(worker);
    /// assert!(weak.upgrade().is_none(), "it has been freed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        drop(self.inner.am_handlers.clear());
        let listeners = self.core().cm.get().map(|exchanges| exchanges.unlisten_all());
        drop(listeners);
        let (eps, peers) = eps_and_peers(&self.core());
        for ep in &eps {
            ep.refuse(Error::Closed);
            drop(ep.take_error_handler());
            if ep.is_pending() {
                abort_ep_ops(&mut self.core(), ep, Error::Cancelled);
            }
        }
        let mut core = self.core();
        force_close_all(&mut core, &peers);
        core.cancel_multi_recvs();
        drop(core);
        for _ in 0..MAX_PASSES {
            let running = self.core().reqs.running();
            for id in &running {
                self.cancel(*id);
            }
            progress_until_quiet(self);
            if running.is_empty() {
                return;
            }
        }
        tracing::debug!("close: operations are still running after cancel");
    }
}

fn progress_until_quiet(worker: &Worker) {
    let mut idle = 0;
    while idle < QUIET {
        idle = if worker.progress() > 0 { 0 } else { idle + 1 };
    }
}

fn eps_and_peers(core: &WorkerCore) -> (Vec<Rc<EpState>>, Vec<PeerId>) {
    let eps = core.eps.iter().filter_map(Weak::upgrade).collect();
    let peers = core.engine.peers().iter_with_stats().map(|(id, ..)| id).collect();
    (eps, peers)
}

fn force_close_all(core: &mut WorkerCore, peers: &[PeerId]) {
    let (engine, mut wire, _) = core.split();
    peers.iter().for_each(|&peer| engine.force_close(&mut wire, peer));
}
