//! Address handles, one per remote GID however many endpoints go there.
//! Called when endpoints are made and when the last operation of a dropped one is done. Never on the data path:
//! endpoints carry their handle with them.

use super::dev::{Dev, Gid};
use crate::api::Error;
use rustc_hash::FxHashMap;

/// The handles of one protection domain.
pub(super) struct AhCache<D: Dev> {
    dev: D,
    pd: D::Pd,
    by_gid: FxHashMap<Gid, Entry<D::Ah>>,
}

struct Entry<A> {
    ah: A,
    refs: u32,
}

impl<D: Dev> AhCache<D> {
    /// An empty cache.
    pub(super) fn new(dev: D, pd: D::Pd) -> Self {
        AhCache { dev, pd, by_gid: FxHashMap::default() }
    }

    /// The handle of `gid`, counted once more.
    pub(super) fn get(&mut self, gid: Gid) -> Result<D::Ah, Error> {
        if let Some(entry) = self.by_gid.get_mut(&gid) {
            entry.refs += 1;
            return Ok(entry.ah);
        }
        let ah = self.dev.create_ah(&self.pd, gid)?;
        self.by_gid.insert(gid, Entry { ah, refs: 1 });
        Ok(ah)
    }

    /// Gives back what [`AhCache::get`] gave; the last one destroys the handle, so nothing posted may need it.
    pub(super) fn put(&mut self, gid: Gid) {
        let entry = self.by_gid.get_mut(&gid).expect("a handle is given back as often as it was taken");
        entry.refs -= 1;
        if entry.refs == 0 {
            self.dev.destroy_ah(&self.pd, entry.ah);
            self.by_gid.remove(&gid);
        }
    }
}

impl<D: Dev> Drop for AhCache<D> {
    fn drop(&mut self) {
        for entry in self.by_gid.values() {
            self.dev.destroy_ah(&self.pd, entry.ah);
        }
    }
}
