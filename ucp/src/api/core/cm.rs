//! Exchanges of worker addresses over TCP, as part of a worker's state.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::api::core::ep_state::EpState;
use crate::cm::{CmConfig, ConnRequest, Exchanges};
use crate::token::CONNECTIONS;
use ucs::sys::Epoll;
use ucs::time::Nanos;

/// Callback of a listener.
pub(crate) type RequestHandler = Rc<RefCell<dyn FnMut(ConnRequest)>>;

/// Exchanges of a worker; no socket and no cost before the first.
pub(crate) struct WorkerCm {
    pub(crate) config: CmConfig,
    exchanges: Option<Box<Exchanges<Rc<EpState>, RequestHandler>>>,
    /// Endpoints of connections, by number.
    connections: HashMap<u32, Weak<EpState>, FxBuildHasher>,
    last_connection: u32,
}

impl WorkerCm {
    pub(crate) fn new(config: CmConfig) -> WorkerCm {
        WorkerCm { config, exchanges: None, connections: HashMap::default(), last_connection: 0 }
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

    /// Gives an endpoint the number of its connection.
    pub(crate) fn number(&mut self, ep: &Rc<EpState>) -> u32 {
        if self.connections.len() == self.connections.capacity() {
            self.connections.retain(|_, ep| ep.strong_count() > 0);
        }
        // Numbers come again after 2^28 connections; those that are in use are passed over.
        loop {
            self.last_connection = (self.last_connection + 1) % CONNECTIONS;
            let number = self.last_connection;
            if number != 0 && self.ep_of(number).is_none() {
                ep.set_connection(number);
                self.connections.insert(number, Rc::downgrade(ep));
                return number;
            }
        }
    }

    /// The endpoint of a connection, if the program has it.
    pub(crate) fn ep_of(&self, connection: u32) -> Option<Rc<EpState>> {
        self.connections.get(&connection)?.upgrade()
    }

    /// Whether there are events to be handled.
    // HOT
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
