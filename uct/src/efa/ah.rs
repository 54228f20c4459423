//! Address handles of one protection domain, reference counted by the device. Not used on the data path.

use super::dev::{Dev, Gid};
use super::tx::EpIdx;
use crate::api::Error;

pub(super) struct AddressHandles<D: Dev> {
    dev: D,
    pd: D::Pd,
    /// Handles of dropped endpoints that still have operations in flight.
    dropped: Vec<(EpIdx, D::Ah)>,
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

    /// Keeps the handle of a dropped endpoint until [`AddressHandles::ep_idle`].
    pub(super) fn destroy_when_idle(&mut self, ep: EpIdx, ah: D::Ah) {
        self.dropped.push((ep, ah));
    }

    pub(super) fn ep_idle(&mut self, ep: EpIdx) {
        if let Some(at) = self.dropped.iter().position(|(other, _)| *other == ep) {
            let (_, ah) = self.dropped.swap_remove(at);
            self.destroy(ah);
        }
    }
}

impl<D: Dev> Drop for AddressHandles<D> {
    fn drop(&mut self) {
        self.dropped.iter().for_each(|(_, ah)| self.dev.destroy_ah(&self.pd, *ah));
    }
}
