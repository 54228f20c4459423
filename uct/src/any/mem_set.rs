//! One piece of memory registered with several domains.

#![allow(unsafe_code)]

use super::{Md, Mem};
use crate::api::{Access, AllocReq, Error, Md as _, Memory as _};

/// Memory registered with several domains, named by their place in the list it was made with.
pub struct MemSet {
    /// By place; dropped by `order`, last first, so that the domain that owns the memory lets go of it last.
    mems: Vec<Option<Mem>>,
    order: Vec<usize>,
}

/// Order of registration: domains with keys only for their own memory, those that allocate, the rest.
pub fn registration_order(mds: &[&Md]) -> Vec<usize> {
    let rank = |&n: &usize| {
        let attr = mds[n].attr();
        match (attr.can_alloc, attr.rkey_needs_alloc) {
            (true, true) => 0,
            (true, false) => 1,
            _ => 2,
        }
    };
    let mut order: Vec<usize> = (0..mds.len()).collect();
    // Stable: among equals the caller's order counts.
    order.sort_by_key(rank);
    order
}

impl MemSet {
    /// Allocates memory by the first domain in [`registration_order`] and registers it with the others.
    pub fn alloc(mds: &[&Md], req: &AllocReq<'_>) -> Result<MemSet, Error> {
        let order = registration_order(mds);
        let &first = order.first().ok_or(Error::InvalidParam("no memory domain given"))?;
        let mem = mds[first].alloc(req)?;
        let (addr, len) = (mem.addr(), mem.len());
        let mut set = MemSet { mems: mds.iter().map(|_| None).collect(), order };
        set.mems[first] = Some(mem);
        // SAFETY: the memory is that of the first domain, which the set drops last; nobody has a reference to
        // it.
        unsafe { set.register_rest(mds, addr, len, req.access) }?;
        Ok(set)
    }

    /// Registers memory of the caller's with all domains.
    /// # Safety
    /// As [`crate::api::Md::register`].
    pub unsafe fn register(mds: &[&Md], addr: *mut u8, len: usize, access: Access) -> Result<MemSet, Error> {
        let mut set = MemSet { mems: mds.iter().map(|_| None).collect(), order: registration_order(mds) };
        // SAFETY: the caller's promise is the same.
        unsafe { set.register_rest(mds, addr, len, access) }?;
        Ok(set)
    }

    /// # Safety
    /// As [`crate::api::Md::register`].
    unsafe fn register_rest(
        &mut self,
        mds: &[&Md],
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<(), Error> {
        for &n in &self.order {
            if self.mems[n].is_none() {
                // SAFETY: the caller's promise is the same.
                self.mems[n] = Some(unsafe { mds[n].register(addr, len, access) }?);
            }
        }
        Ok(())
    }

    /// The registration with domain `n` of the list.
    pub fn mem(&self, n: usize) -> Option<&Mem> {
        self.mems.get(n)?.as_ref()
    }
}

impl Drop for MemSet {
    fn drop(&mut self) {
        for &n in self.order.iter().rev() {
            self.mems[n] = None;
        }
    }
}
