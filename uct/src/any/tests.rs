//! Opening by name, and objects of different transports kept apart.

#![allow(unsafe_code)]

use super::{Iface, open, open_iface, open_md, resources};
use crate::api::{
    AllocReq, Caps, Comp, Ep as _, Error, Iface as _, Iov, Md as _, Memory as _, OpenError, Refused, Sent,
};
use ucs::config::Source;

fn by_name(tl: &str) -> Iface {
    open(tl, "memory", &Source::empty()).unwrap()
}

#[test]
fn listed_resources_open() {
    for found in resources(&Source::empty()).unwrap() {
        let iface = open(found.tl, &found.dev, &Source::empty()).unwrap();
        assert_eq!((iface.attr().tl, &iface.attr().dev), (found.tl, &found.dev));
        let (attr, perf) = (iface.attr(), found.perf);
        assert_eq!((perf.latency, perf.bandwidth), (attr.latency.fixed, attr.bandwidth));
        assert!((perf.message_rate * attr.overhead - 1e9).abs() < 1.0, "{perf:?}");
        assert!(found.locality.cpus.is_none_or(|cpus| !cpus.is_empty()));
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
fn blocks_without_a_byte_take_no_time() {
    for (tl, dev) in [("self", "memory"), ("posix", "memory"), ("cma", "memory"), ("efa", "softefa0")] {
        let iface = open(tl, dev, &Source::empty()).unwrap();
        let ep = iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
        let mem = iface.md().alloc(&AllocReq::new(64, "test")).unwrap();
        let rkey = iface.md().unpack_rkey(&iface.md().pack_rkey(&mem).unwrap()).unwrap();
        let iov = [Iov { addr: mem.addr(), len: 0, stride: 0, count: usize::MAX, mem: Some(&mem) }];
        let at = mem.addr().addr() as u64;
        // SAFETY: no byte is read or written.
        let put = unsafe { ep.put_zcopy(&iov, at, &rkey, Comp::None) };
        // SAFETY: as above.
        let get = unsafe { ep.get_zcopy(&iov, at, &rkey, Comp::None) };
        assert_eq!((put, get), (Ok(Sent::Done), Ok(Sent::Done)), "{tl}");
        if iface.attr().has(Caps::AM_ZCOPY) {
            // SAFETY: as above.
            let sent = unsafe { ep.am_zcopy(1, b"head", &iov, Comp::None) };
            assert_eq!(sent, Ok(Sent::Done), "{tl}");
        }
    }
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

#[test]
fn interfaces_share_a_domain() {
    let source = Source::empty();
    for found in resources(&source).unwrap() {
        let md = open_md(found.tl, &found.dev, &source).unwrap();
        let (a, b) = (open_iface(&md, &source).unwrap(), open_iface(&md, &source).unwrap());
        assert_eq!((a.attr().tl, &b.attr().dev), (found.tl, &found.dev));
        let mem = md.alloc(&AllocReq::new(4096, "shared")).unwrap();
        let rkey = a.md().unpack_rkey(&b.md().pack_rkey(&mem).unwrap()).unwrap();
        let local = b.md().alloc(&AllocReq::new(8, "local")).unwrap();
        let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
        let _back = b.connect(&a.device_addr(), &a.iface_addr()).unwrap();
        let at = mem.addr().addr() as u64;
        // SAFETY: eight bytes of ours, which no operation uses.
        unsafe { local.addr().cast::<u64>().write(0x1234_5678) };
        // SAFETY: `local` lives until the flush below is over, and nobody writes it.
        let put =
            unsafe { ep.put_zcopy(&[Iov::new(local.addr(), 8, Some(&local))], at, &rkey, Comp::Token(1)) };
        assert!(put.is_ok());
        wait_for_flush(&a, &ep);
        // SAFETY: the put is over.
        assert_eq!(unsafe { mem.addr().cast::<u64>().read() }, 0x1234_5678, "{}", found.tl);
        // What one interface allocated serves the other when that one is closed.
        drop((ep, _back));
        drop(b);
        assert!(md.pack_rkey(&mem).is_ok() && a.md().pack_rkey(&local).is_ok());
    }
}

fn wait_for_flush(iface: &Iface, ep: &super::Ep) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while iface.progress(16) > 0 || ep.flush(Comp::None) != Ok(Sent::Done) {
        assert!(std::time::Instant::now() < until, "the flush does not end");
    }
}
