//! Memory domains: what is allocated is zero and writable, by each method and at a chosen address; what is registered
//! works; keys are claims.

use super::Pair;
use std::ptr::NonNull;
use uct::api::{
    Access, Advice, AllocMethod, AllocReq, Caps, Error, Fill, Iface, Md, MemKind, Memory, Op, Rkey,
};

/// Fresh memory of some sizes.
pub fn allocations_are_zero_and_ours<I: Iface>(p: &Pair<I>) {
    let md = p.a.md();
    if !md.attr().can_alloc {
        assert!(md.alloc(&AllocReq::new(1, "conform")).is_err());
        return;
    }
    for len in [1, 64, 4096, 100_000] {
        let mem = md.alloc(&AllocReq::new(len, "conform")).unwrap();
        assert_eq!((mem.len(), mem.is_empty()), (len, false));
        assert!(mem.method().is_some());
        // Who says that keys are words has them.
        assert_eq!(md.word_key(&mem).is_ok(), p.a.attr().has(Caps::WORD_KEY));
        for at in [0, len / 2, len - 1] {
            let byte = mem.addr().wrapping_add(at);
            // SAFETY: inside the allocation, which is ours alone.
            assert_eq!(unsafe { byte.read() }, 0);
            // SAFETY: as above.
            unsafe { byte.write(1) };
            // SAFETY: as above; the same byte may come up again.
            unsafe { byte.write(0) };
        }
    }
    let req = |len, methods| AllocReq { methods, ..AllocReq::new(len, "conform") };
    assert!(md.alloc(&req(0, &[AllocMethod::Md])).is_err());
    assert!(md.alloc(&req(64, &[])).is_err());
    assert!(md.alloc(&req(1 << 46, &[AllocMethod::Md, AllocMethod::Mmap])).is_err());
}

/// Each method alone: memory that works as any other, or a refusal.
pub fn every_allocation_method<I: Iface>(p: &Pair<I>) {
    let md = p.a.md();
    if !md.attr().can_alloc {
        return;
    }
    use AllocMethod as M;
    let mut worked = 0;
    for method in [M::Md, M::Huge, M::Thp, M::Memfd, M::Mmap, M::Heap] {
        for fill in [Fill::Now, Fill::Lazy] {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let methods = &[method];
            let req = AllocReq { methods, fill, access, ..AllocReq::new(10_000, "conform") };
            let Ok(mem) = md.alloc(&req) else { continue };
            worked += 1;
            assert_eq!((mem.len(), mem.method()), (10_000, Some(method)));
            let given = mem.access();
            assert!(access.contains(given - Access::LOCAL_READ) && given.contains(Access::LOCAL_WRITE));
            let last = mem.addr().wrapping_add(9_999);
            // SAFETY: inside the allocation, which is ours alone.
            assert_eq!(unsafe { last.read() }, 0);
            // SAFETY: as above.
            unsafe { last.write(1) };
            for advice in [Advice::Normal, Advice::WillNeed, Advice::Huge] {
                md.advise(&mem, 100, 9_900, advice).unwrap();
            }
            assert!(md.advise(&mem, 1, 10_000, Advice::Normal).is_err());
            // SAFETY: as above.
            assert_eq!(unsafe { last.read() }, 1, "advice changes no byte");
            let found = md.query(last).unwrap();
            // Advice for a part may have split the mapping.
            assert!(found.start <= last.addr() && last.addr() < found.start + found.len);
            assert!(found.kind == MemKind::Host && found.page.is_power_of_two());
        }
    }
    assert!(worked >= 4, "{worked} of 12 ways to allocate");
    // The first that works wins.
    let both = AllocReq { methods: &[M::Thp, M::Mmap], ..AllocReq::new(64, "conform") };
    assert_eq!(md.alloc(&both).unwrap().method(), Some(M::Thp));
}

/// At an address of the caller's choice, or not at all.
pub fn allocation_at_an_address<I: Iface>(p: &Pair<I>) {
    const LEN: usize = 1 << 20;
    let md = p.a.md();
    if !md.attr().can_alloc {
        return;
    }
    // A hole in the address space: other tests of this process allocate too, so it may be taken before we are there.
    for _ in 0..20 {
        let hole = ucs::mem::Mapping::new(LEN, Default::default()).unwrap();
        let at = NonNull::new(hole.as_ptr()).unwrap();
        let methods = &[AllocMethod::Md, AllocMethod::Mmap];
        let req = AllocReq { at: Some(at), methods, ..AllocReq::new(LEN, "fixed") };
        assert!(md.alloc(&req).is_err(), "something is there");
        drop(hole);
        let Ok(mem) = md.alloc(&req) else { continue };
        assert_eq!((mem.addr(), mem.len()), (at.as_ptr(), LEN));
        // SAFETY: inside the allocation.
        assert_eq!(unsafe { mem.addr().wrapping_add(LEN - 1).read() }, 0);
        if let Ok(packed) = md.pack_rkey(&mem) {
            let rkey = p.b.md().unpack_rkey(&packed).unwrap();
            assert_eq!(rkey.range(), (at.addr().get() as u64, LEN).min(rkey.range()));
        }
        return;
    }
    panic!("never got the address");
}

/// Memory of the caller's own.
pub fn registration_works<I: Iface>(p: &Pair<I>) {
    let md = p.a.md();
    let mut own = vec![0u8; 8192];
    // SAFETY: the registration is dropped before `own`, which nobody reads meanwhile.
    let mem = unsafe { md.register(own.as_mut_ptr(), own.len(), Access::ALL) };
    if !md.attr().can_register {
        assert!(mem.is_err());
        return;
    }
    let mem = mem.unwrap();
    assert_eq!((mem.addr(), mem.len(), mem.method()), (own.as_mut_ptr(), own.len(), None));
    match md.pack_rkey(&mem) {
        Ok(key) => assert_eq!(key.len(), md.attr().rkey_len),
        Err(e) => assert_eq!(e, Error::Unsupported(Op::RemoteKey)),
    }
}

/// Keys survive the way, and damaged ones never panic.
pub fn keys_are_checked<I: Iface>(p: &Pair<I>) {
    let md = p.b.md();
    if !md.attr().has_rkey {
        return;
    }
    let mem = md.alloc(&AllocReq::new(5000, "conform")).unwrap();
    let packed = md.pack_rkey(&mem).unwrap();
    assert_eq!(packed.len(), md.attr().rkey_len);
    let rkey = p.a.md().unpack_rkey(&packed).unwrap();
    assert_eq!(rkey.range(), (mem.addr().addr() as u64, 5000).min(rkey.range()));
    if let Some(at) = p.a.md().direct_ptr(&rkey, mem.addr().addr() as u64 + 8, 8) {
        // SAFETY: mapped as long as the key lives; the owner of the memory is this test.
        unsafe { at.write(77) };
        // SAFETY: inside the allocation.
        assert_eq!(unsafe { mem.addr().wrapping_add(8).read_volatile() }, 77);
        assert!(p.a.md().direct_ptr(&rkey, mem.addr().addr() as u64 + 4993, 8).is_none());
    }
    for cut in 0..packed.len() {
        assert!(p.a.md().unpack_rkey(&packed[..cut]).is_err());
    }
    for (at, bit) in (0..packed.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut bad = packed.clone();
        bad[at] ^= 1 << bit;
        let _ = p.a.md().unpack_rkey(&bad);
    }
}
