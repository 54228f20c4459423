//! Exchanges of worker addresses over TCP, as part of a worker's state.

use std::cell::RefCell;
use std::rc::Rc;

use crate::api::core::ep_state::EpState;
use crate::cm::{CmConfig, ConnRequest, Exchanges};
use ucs::sys::Epoll;
use ucs::time::Nanos;

/// Callback of a listener.
pub(crate) type RequestHandler = Rc<RefCell<dyn FnMut(ConnRequest)>>;

/// Exchanges of a worker; no socket and no cost before the first.
pub(crate) struct WorkerCm {
    pub(crate) config: CmConfig,
    exchanges: Option<Box<Exchanges<Rc<EpState>, RequestHandler>>>,
}

impl WorkerCm {
    pub(crate) fn new(config: CmConfig) -> WorkerCm {
        WorkerCm { config, exchanges: None }
    }

    pub(crate) fn get(&mut self) -> Option<&mut Exchanges<Rc<EpState>, RequestHandler>> {
        self.exchanges.as_deref_mut()
    }

    /// Exchanges, and their descriptor among the worker's `events`.
    pub(crate) fn open(
        &mut self,
        events: Option<&Epoll>,
    ) -> Result<&mut Exchanges<Rc<EpState>, RequestHandler>, ucs::Errno> {
        let exchanges = match self.exchanges.take() {
            Some(exchanges) => exchanges,
            None => {
                let exchanges = Box::new(Exchanges::new(self.config)?);
                if let Some(events) = events {
                    events.add(exchanges.fd(), u64::MAX)?;
                }
                exchanges
            }
        };
        Ok(self.exchanges.insert(exchanges))
    }

    /// Whether there are events to be handled. // HOT
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.exchanges.as_ref().is_some_and(|exchanges| exchanges.has_events())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.exchanges.as_ref().is_some_and(|exchanges| exchanges.is_ready())
    }

    #[inline]
    pub(crate) fn poll(&mut self, now: Nanos) {
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.poll(now, |ep| ep.is_pending());
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.exchanges.as_ref().and_then(|exchanges| exchanges.next_deadline())
    }
}
