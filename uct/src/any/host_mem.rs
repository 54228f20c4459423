//! Memory of the program that no domain owns.

use crate::api::{AllocMethod, AllocReq, Error};
use crate::base::alloc::{Backing, backing, by_methods};

/// Memory that is registered with no domain, until the caller registers it. Freed when it is dropped.
#[derive(Debug)]
pub struct HostMem {
    backing: Backing,
    len: usize,
    method: AllocMethod,
}

impl HostMem {
    /// Allocates zeroed memory by the first method of the request that works. [`AllocMethod::Md`] never does.
    pub fn alloc(req: &AllocReq<'_>) -> Result<HostMem, Error> {
        by_methods(req, |method| Ok(HostMem { backing: backing(req, method)?, len: req.len, method }))
    }

    /// Address of the first byte.
    pub fn addr(&self) -> *mut u8 {
        self.backing.as_ptr()
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "it has at least one byte")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The method that worked.
    pub fn method(&self) -> AllocMethod {
        self.method
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::api::Op;

    #[test]
    fn the_first_method_without_a_domain_allocates() {
        let methods = [AllocMethod::Md, AllocMethod::Mmap, AllocMethod::Heap];
        let req = AllocReq { methods: &methods, ..AllocReq::new(5000, "host") };
        let mem = HostMem::alloc(&req).expect("a mapping");
        assert_eq!((mem.len(), mem.method()), (5000, AllocMethod::Mmap));
        let heap = HostMem::alloc(&AllocReq { methods: &methods[2..], ..req }).expect("heap");
        assert_ne!(heap.addr(), mem.addr());
        let refused = HostMem::alloc(&AllocReq { methods: &methods[..1], ..req });
        assert_eq!(refused.err(), Some(Error::Unsupported(Op::Alloc)));
        assert!(HostMem::alloc(&AllocReq { len: 0, ..req }).is_err());
    }
}
