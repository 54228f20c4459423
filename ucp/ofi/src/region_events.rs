//! Counters of regions: what peers do with the memory of a region is counted by the engine, and goes to the
//! counters when an endpoint of the domain has served something.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ucp::ServedOps;

use crate::abi::flags;
use crate::cntr::Cntr;
use crate::domain::Domain;
use crate::ep::Ep;
use crate::errno::Errno;
use crate::mr::Mr;
use crate::object::Object;

/// Regions with counters, and endpoints that serve peers, of a domain.
#[derive(Default)]
pub(crate) struct RegionEvents(Mutex<Lists>);

#[derive(Default)]
struct Lists {
    regions: Vec<Counted>,
    eps: Vec<*const Ep>,
}

/// A region with its counters, null where there is none, and what those have got.
struct Counted {
    region: *const Mr,
    reads: *const Cntr,
    writes: *const Cntr,
    seen: ServedOps,
}

impl Counted {
    fn counters(&self) -> impl Iterator<Item = &Cntr> {
        // SAFETY: a counter is not closed before the regions that use it.
        [self.reads, self.writes].into_iter().filter_map(|cntr| unsafe { cntr.as_ref() })
    }

    fn served(&self) -> ServedOps {
        // SAFETY: a region leaves the list before it is freed.
        unsafe { &*self.region }.served()
    }
}

impl RegionEvents {
    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Domain {
    /// Adds an endpoint that serves peers: whoever waits for a counter of a region makes its progress.
    pub(crate) fn add_server(&self, ep: &Ep) -> Result<(), Errno> {
        let _joins = self.lock_joins();
        let mut lists = self.region_events.lock();
        lists.eps.push(ep);
        let counters = lists.regions.iter().flat_map(|counted| [counted.reads, counted.writes]);
        let counters: Vec<*const Cntr> = counters.collect();
        // Endpoints that make progress take this lock inside those that a join takes.
        drop(lists);
        // SAFETY: a counter is not closed while endpoints join.
        counters.into_iter().filter_map(|cntr| unsafe { cntr.as_ref() }).try_for_each(|cntr| ep.join(cntr))
    }

    pub(crate) fn remove_server(&self, ep: &Ep) {
        self.region_events.lock().eps.retain(|known| !std::ptr::eq(*known, ep));
    }

    /// Binds a counter to a region, for reads, writes or both.
    pub(crate) fn count_region(&self, region: &Mr, cntr: &Cntr, asked: u64) -> Result<(), Errno> {
        if self.caps & flags::RMA_EVENT == 0 {
            return Err(crate::refused::log_refusal("fi_mr_bind: counters of a region need FI_RMA_EVENT"));
        }
        if asked == 0 || asked & !(flags::REMOTE_READ | flags::REMOTE_WRITE) != 0 {
            return Err(Errno::BADFLAGS);
        }
        let _joins = self.lock_joins();
        // As in `add_server`. It joins before the region counts.
        let eps = self.region_events.lock().eps.clone();
        for ep in eps {
            // SAFETY: an endpoint is not closed while endpoints join.
            unsafe { &*ep }.join(cntr)?;
        }
        let mut lists = self.region_events.lock();
        let regions = &mut lists.regions;
        let at = regions.iter().position(|known| std::ptr::eq(known.region, region)).unwrap_or_else(|| {
            let (reads, writes) = (std::ptr::null(), std::ptr::null());
            regions.push(Counted { region, reads, writes, seen: region.served() });
            regions.len() - 1
        });
        let counted = &mut regions[at];
        let of = [(flags::REMOTE_READ, &mut counted.reads), (flags::REMOTE_WRITE, &mut counted.writes)];
        let of: Vec<_> = of.into_iter().filter(|(bit, _)| asked & bit != 0).collect();
        if of.iter().any(|(_, bound)| !bound.is_null()) {
            return Err(Errno::INVAL);
        }
        for (_, bound) in of {
            *bound = cntr;
            cntr.users().add();
        }
        Ok(())
    }

    /// Leaves the counters of a region that is closed.
    pub(crate) fn forget_region(&self, region: &Mr) {
        self.region_events.lock().regions.retain(|counted| {
            let is_other = !std::ptr::eq(counted.region, region);
            if !is_other {
                counted.counters().for_each(|cntr| cntr.users().remove());
            }
            is_other
        });
    }

    /// Tells the counters what peers have done, after an endpoint has served them. Inside its lock.
    pub(crate) fn count_regions(&self) {
        for counted in &mut self.region_events.lock().regions {
            let (now, before) = (counted.served(), counted.seen);
            counted.seen = now;
            let new =
                [(counted.reads, now.reads - before.reads), (counted.writes, now.writes - before.writes)];
            for (cntr, number) in new {
                // SAFETY: a counter is not closed before the regions that use it.
                if let (Some(cntr), 1..) = (unsafe { cntr.as_ref() }, number) {
                    cntr.count_many(number);
                    cntr.members.wake();
                }
            }
        }
    }
}
