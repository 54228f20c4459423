//! Address handles, which the device counts: one per remote GID however many endpoints go there.
//! Called when endpoints are made and dropped, and when the last operation of a dropped one is done. Never on the data path:
//! endpoints carry their handle with them.

use super::dev::{Dev, Gid};
use super::tx::EpIdx;
use crate::api::Error;

/// The handles of one protection domain.
pub(super) struct Ahs<D: Dev> {
    dev: D,
    pd: D::Pd,
    /// Handles of endpoints that are dropped and still have operations on their way.
    orphans: Vec<(EpIdx, D::Ah)>,
}

impl<D: Dev> Ahs<D> {
    /// None yet.
    pub(super) fn new(dev: D, pd: D::Pd) -> Self {
        Ahs { dev, pd, orphans: Vec::new() }
    }

    /// The handle of `gid`, counted once more.
    pub(super) fn get(&self, gid: Gid) -> Result<D::Ah, Error> {
        self.dev.create_ah(&self.pd, gid)
    }

    /// Gives back what [`Ahs::get`] gave; the last one destroys the handle, so nothing posted may need it.
    pub(super) fn put(&self, ah: D::Ah) {
        self.dev.destroy_ah(&self.pd, ah);
    }

    /// The endpoint is dropped, its operations are not done: [`Ahs::retire`] gives the handle back.
    pub(super) fn keep(&mut self, ep: EpIdx, ah: D::Ah) {
        self.orphans.push((ep, ah));
    }

    /// The last operation of a dropped endpoint is done.
    pub(super) fn retire(&mut self, ep: EpIdx) {
        if let Some(at) = self.orphans.iter().position(|(orphan, _)| *orphan == ep) {
            let (_, ah) = self.orphans.swap_remove(at);
            self.put(ah);
        }
    }
}

impl<D: Dev> Drop for Ahs<D> {
    fn drop(&mut self) {
        self.orphans.iter().for_each(|(_, ah)| self.dev.destroy_ah(&self.pd, *ah));
    }
}
