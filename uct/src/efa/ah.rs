//! Address handles, which the device counts: one per remote GID however many endpoints go there.
//! Called when endpoints are made and dropped, and when the last operation of a dropped one is done. Never on the data path:
//! endpoints carry their handle with them.

use super::dev::{Dev, Gid};
use super::tx::EpIdx;
use crate::api::Error;

/// The handles of one protection domain.
pub(super) struct AddressHandles<D: Dev> {
    dev: D,
    pd: D::Pd,
    /// Handles of endpoints that are dropped and still have operations on their way.
    dropped: Vec<(EpIdx, D::Ah)>,
}

impl<D: Dev> AddressHandles<D> {
    /// None yet.
    pub(super) fn new(dev: D, pd: D::Pd) -> Self {
        AddressHandles { dev, pd, dropped: Vec::new() }
    }

    /// The handle of `gid`, counted once more.
    pub(super) fn create(&self, gid: Gid) -> Result<D::Ah, Error> {
        self.dev.create_ah(&self.pd, gid)
    }

    /// Gives back what [`AddressHandles::get`] gave; the last one destroys the handle, so nothing posted may need it.
    pub(super) fn destroy(&self, ah: D::Ah) {
        self.dev.destroy_ah(&self.pd, ah);
    }

    /// The endpoint is dropped, its operations are not done: [`AddressHandles::retire`] gives the handle back.
    pub(super) fn destroy_when_idle(&mut self, ep: EpIdx, ah: D::Ah) {
        self.dropped.push((ep, ah));
    }

    /// The last operation of a dropped endpoint is done.
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
