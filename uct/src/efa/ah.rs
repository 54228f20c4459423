//! Address handles of one protection domain, reference counted by the device. Not used on the data path.

use super::dev::{Dev, DevQp, Gid};
use super::tx::EpIdx;
use crate::api::Error;

pub(super) struct AddressHandles<D: Dev> {
    dev: D,
    pd: D::Pd,
    /// Handles and queue pair numbers of dropped endpoints that still have operations in flight.
    dropped: Vec<(EpIdx, D::Ah, u16)>,
}

impl<D: Dev> AddressHandles<D> {
    pub(super) fn new(dev: D, pd: D::Pd) -> Self {
        AddressHandles { dev, pd, dropped: Vec::new() }
    }

    pub(super) fn create(&self, gid: Gid) -> Result<D::Ah, Error> {
        self.dev.create_ah(&self.pd, gid)
    }

    /// Drops a reference; the last one destroys the handle, so no posted request may need it.
    pub(super) fn destroy(&self, ah: D::Ah) {
        self.dev.destroy_ah(&self.pd, ah);
    }

    /// Ends an endpoint that has nothing in flight: gives back what `qp` keeps of its peer, and its handle.
    pub(super) fn end_ep(&self, qp: &D::Qp, ah: D::Ah, qpn: u16) {
        qp.forget(ah, qpn);
        self.destroy(ah);
    }

    /// Keeps the handle of a dropped endpoint until [`AddressHandles::ep_idle`].
    pub(super) fn end_ep_when_idle(&mut self, ep: EpIdx, ah: D::Ah, qpn: u16) {
        self.dropped.push((ep, ah, qpn));
    }

    pub(super) fn ep_idle(&mut self, qp: &D::Qp, ep: EpIdx) {
        if let Some(at) = self.dropped.iter().position(|(other, ..)| *other == ep) {
            let (_, ah, qpn) = self.dropped.swap_remove(at);
            self.end_ep(qp, ah, qpn);
        }
    }
}

impl<D: Dev> Drop for AddressHandles<D> {
    fn drop(&mut self) {
        self.dropped.iter().for_each(|(_, ah, _)| self.dev.destroy_ah(&self.pd, *ah));
    }
}
