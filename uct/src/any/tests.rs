//! Opening by name, and objects of different transports kept apart.

#![allow(unsafe_code)]

use super::{Iface, open, resources};
use crate::api::{AllocReq, Ep as _, Error, Iface as _, Iov, Md as _, Memory as _, OpenError, Refused, Sent};
use ucs::config::Source;

fn by_name(tl: &str) -> Iface {
    open(tl, "memory", &Source::empty()).unwrap()
}

#[test]
fn listed_resources_open() {
    for found in resources(&Source::empty()).unwrap() {
        let iface = open(found.tl, &found.dev, &Source::empty()).unwrap();
        assert_eq!((iface.attr().tl, &iface.attr().dev), (found.tl, &found.dev));
    }
}

#[test]
fn unknown_names_list_the_known_ones() {
    let none = Source::empty();
    let error = open("poxis", "memory", &none).err().unwrap();
    assert!(matches!(error, OpenError::UnknownTransport { .. }));
    assert!(error.to_string().starts_with("unknown transport 'poxis' (there are: self, posix"));
    let error = open("posix", "mlx5_0", &none).err().unwrap();
    assert_eq!(error.to_string(), "transport 'posix' has no device 'mlx5_0' (there are: memory)");
    let error = open("posix", "memory", &none.with("UCX_POSIX_FIFO_SIZE", "63")).err().unwrap();
    assert!(error.to_string().contains("UCX_POSIX_FIFO_SIZE=63"), "{error}");
}

#[test]
fn a_key_of_another_transport_is_refused() {
    let (one, two) = (by_name("self"), by_name("posix"));
    let ep = one.connect(&one.device_addr(), &one.iface_addr()).unwrap();
    let mem = two.md().alloc(&AllocReq::new(64, "test")).unwrap();
    let rkey = two.md().unpack_rkey(&two.md().pack_rkey(&mem).unwrap()).unwrap();
    let mixed = Err(Refused::Failed(Error::InvalidParam("memory or key of another transport")));
    assert_eq!(ep.put_short(&[1], mem.addr().addr() as u64, &rkey), mixed);
    assert!(one.md().pack_rkey(&mem).is_err());
    let bytes = [1u8];
    // SAFETY: `bytes` outlives the call, which completes at once.
    let sent = unsafe { ep.am_zcopy(1, &[], &[Iov::new(bytes.as_ptr(), 1, Some(&mem))], Default::default()) };
    assert_eq!(sent, mixed);
    // SAFETY: as above.
    let sent = unsafe { ep.am_zcopy(1, &[], &[Iov::new(bytes.as_ptr(), 1, None)], Default::default()) };
    assert_eq!((sent, one.progress(9)), (Ok(Sent::Done), 1));
}

#[test]
fn several_domains_share_memory_in_the_right_order() {
    let (one, two) = (by_name("self"), by_name("posix"));
    let mds = [one.md(), two.md()];
    assert_eq!(super::registration_order(&mds), [1, 0], "posix gives keys for its own memory only");
    let set = super::MemSet::alloc(&mds, &AllocReq::new(5000, "both")).unwrap();
    let (here, there) = (set.mem(0).unwrap(), set.mem(1).unwrap());
    assert_eq!((here.addr(), here.len(), here.method()), (there.addr(), 5000, None));
    for (md, mem) in [(one.md(), here), (two.md(), there)] {
        assert!(md.unpack_rkey(&md.pack_rkey(mem).unwrap()).is_ok());
    }
    let mut own = vec![0u8; 100];
    // SAFETY: `own` outlives the set, and nobody looks at it meanwhile.
    let set =
        unsafe { super::MemSet::register(&mds, own.as_mut_ptr(), 100, crate::api::Access::ALL) }.unwrap();
    assert!(one.md().pack_rkey(set.mem(0).unwrap()).is_ok());
    assert!(two.md().pack_rkey(set.mem(1).unwrap()).is_err(), "not its own");
    assert!(super::MemSet::alloc(&[], &AllocReq::new(1, "none")).is_err());
}
