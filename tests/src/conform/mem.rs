//! Memory domains: allocation by each method and at an address, registration, keys.

use super::Pair;
use super::rma::{read, target, write};
use std::ptr::NonNull;
use uct::api::{
    Access, Advice, AllocMethod, AllocReq, Caps, DevKind, Ep, Error, Fill, Iface, Iov, Md, MemKind, Memory,
    Op, Rkey,
};

/// Allocations are zeroed and writable.
pub fn allocations_are_zeroed_and_writable<I: Iface>(p: &Pair<I>) {
    let md = p.a.md();
    if !md.attr().can_alloc {
        assert!(md.alloc(&AllocReq::new(1, "conform")).is_err());
        return;
    }
    for len in [1, 64, 4096, 100_000] {
        let mem = md.alloc(&AllocReq::new(len, "conform")).unwrap();
        assert_eq!((mem.len(), mem.is_empty()), (len, false));
        assert!(mem.method().is_some());
        assert_eq!(md.mr_key(&mem).is_ok(), p.a.attr().has(Caps::MR_KEY));
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

/// Each allocation method works or is refused.
pub fn every_allocation_method<I: Iface>(p: &Pair<I>) {
    let md = p.a.md();
    if !md.attr().can_alloc {
        return;
    }
    use AllocMethod as M;
    for method in [M::Md, M::Huge, M::Thp, M::Memfd, M::Mmap, M::Heap] {
        for fill in [Fill::Now, Fill::Lazy] {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let methods = &[method];
            let req = AllocReq { methods, fill, access, ..AllocReq::new(10_000, "conform") };
            let mem = match md.alloc(&req) {
                Ok(mem) => mem,
                // There may be no huge pages, and not every device registers less than a page.
                Err(_) if matches!(method, M::Huge | M::Heap) => continue,
                Err(e) => panic!("{method:?}, {fill:?}: {e}"),
            };
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
    let both = AllocReq { methods: &[M::Thp, M::Mmap], ..AllocReq::new(64, "conform") };
    assert_eq!(md.alloc(&both).unwrap().method(), Some(M::Thp));
}

/// Allocation at a given address, by each method about pages and for lengths that are no multiple of a page.
pub fn allocation_at_an_address<I: Iface>(p: &Pair<I>) {
    const HUGE: usize = 2 << 20;
    let md = p.a.md();
    if !md.attr().can_alloc {
        return;
    }
    use AllocMethod as M;
    for methods in [&[M::Md, M::Mmap][..], &[M::Mmap], &[M::Thp], &[M::Huge]] {
        for (len, fill) in [(1 << 20, Fill::Now), (10_000, Fill::Lazy), (HUGE + 1, Fill::Now)] {
            let Some(mem) = at_a_hole(p, methods, len, fill) else {
                assert_eq!(methods, [M::Huge], "{len} {fill:?}: never got the address");
                continue;
            };
            let at = mem.addr();
            assert_eq!((mem.len(), mem.method()), (len, methods.first().copied()));
            let last = at.wrapping_add(len - 1);
            // SAFETY: inside the allocation.
            assert_eq!(unsafe { last.read() }, 0);
            // SAFETY: as above.
            unsafe { last.write(9) };
            let Ok(packed) = md.pack_rkey(&mem) else { continue };
            let rkey = p.b.md().unpack_rkey(&packed).unwrap();
            assert_eq!(rkey.range(), (at.addr() as u64, len));
            if let Some(there) = p.b.md().rkey_ptr(&rkey, last.addr() as u64, 1) {
                // SAFETY: mapped as long as the key lives.
                assert_eq!(unsafe { there.read_volatile() }, 9);
            }
        }
    }
}

/// Large memory costs nothing before it is used, if it is asked for so; else it is there at once.
pub fn memory_is_filled_when_asked<I: Iface>(p: &Pair<I>) {
    const LEN: usize = 32 << 20;
    let md = p.a.md();
    if !md.attr().can_alloc {
        return;
    }
    for method in [AllocMethod::Md, AllocMethod::Mmap] {
        for (fill, filled) in [(Fill::Lazy, false), (Fill::Now, true)] {
            let req = AllocReq { methods: &[method], fill, ..AllocReq::new(LEN, "fill") };
            let mem = md.alloc(&req).unwrap();
            // A device may pin what it registers.
            let resident = resident(mem.addr().addr(), LEN);
            let pinned = p.a.attr().kind == DevKind::Net && !filled;
            assert!(pinned || (resident >= LEN) == filled, "{method:?} {fill:?}: {resident} bytes");
            // SAFETY: inside the allocation, which is ours alone.
            assert_eq!(unsafe { mem.addr().wrapping_add(LEN - 1).read() }, 0);
        }
    }
}

/// Bytes of the pages of a range that are in physical memory and mapped.
fn resident(addr: usize, len: usize) -> usize {
    use std::os::unix::fs::FileExt;
    const PRESENT: u64 = 1 << 63;
    let page = ucs::mem::page::page_size();
    let mut entries = vec![0; len / page * 8];
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut entries, (addr / page * 8) as u64).unwrap();
    let entries = entries.as_chunks::<8>().0.iter().map(|entry| u64::from_ne_bytes(*entry));
    entries.filter(|entry| entry & PRESENT != 0).count() * page
}

/// Allocates in a hole of the address space, which other tests may take before.
fn at_a_hole<'p, I: Iface>(
    p: &'p Pair<I>,
    methods: &[AllocMethod],
    len: usize,
    fill: Fill,
) -> Option<<I::Md as Md>::Mem> {
    const HUGE: usize = 2 << 20;
    let md: &'p I::Md = p.a.md();
    (0..20).find_map(|_| {
        let hole = ucs::mem::Mapping::new(len + 2 * HUGE, Default::default()).unwrap();
        let at = NonNull::new(hole.as_ptr().map_addr(|at| at.next_multiple_of(HUGE))).unwrap();
        let req = AllocReq { at: Some(at), methods, fill, ..AllocReq::new(len, "fixed") };
        assert!(md.alloc(&req).is_err(), "something is there");
        drop(hole);
        let mem = md.alloc(&req).ok()?;
        assert_eq!(mem.addr(), at.as_ptr());
        Some(mem)
    })
}

/// Registered memory of the caller works.
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

/// Revoked memory yields no key; where the transport can, earlier ones give no access any more.
pub fn revoked_memory_yields_no_access<I: Iface>(p: &Pair<I>) {
    let md = p.b.md();
    if !md.attr().has_rkey {
        return;
    }
    let t = target(p, 4096, Access::ALL);
    let local = p.a.md().alloc(&AllocReq::new(8, "local")).unwrap();
    let iov = [Iov::new(local.addr(), 8, Some(&local))];
    let put = |value: u8| {
        write(&local, 0, &[value; 8]);
        // SAFETY: `local` lives until the operation is over, which is waited for.
        p.finish(|comp| unsafe { p.ab.put_zcopy(&iov, t.at, &t.rkey, comp) })
    };
    let can_put = p.a.attr().has(Caps::PUT_ZCOPY);
    assert!(!can_put || put(1) == Ok(()));
    let late = md.alloc(&AllocReq::new(64, "late")).unwrap();
    let packed = md.pack_rkey(&late).unwrap();
    for _ in 0..2 {
        t.mem.revoke();
        late.revoke();
        assert_eq!(md.pack_rkey(&t.mem).err(), Some(Error::BadLocalKey));
        if p.b.attr().has(Caps::MR_KEY) {
            assert_eq!(md.mr_key(&t.mem).err(), Some(Error::BadLocalKey));
        }
    }
    // The memory itself is as before.
    assert_eq!((t.mem.len(), read(&t.mem, 0, 8)), (4096, vec![u8::from(can_put); 8]));
    if md.attr().rkey_needs_alloc {
        assert_eq!(p.a.md().unpack_rkey(&packed).err(), Some(Error::RemoteAccess), "nobody maps it any more");
    }
    if md.attr().revokes_keys && can_put {
        assert_eq!(put(2), Err(Error::RemoteAccess));
        assert_eq!(read(&t.mem, 0, 8), [1; 8]);
    }
    // The device's next registration has a key of its own.
    let next = target(p, 4096, Access::ALL);
    drop(t.mem);
    assert!(next.rkey != t.rkey && p.a.md().unpack_rkey(&md.pack_rkey(&next.mem).unwrap()).is_ok());
}

/// A key whose registration was dropped gives no access where the transport can tell. An operation of no
/// bytes touches no memory: only `self` checks its key.
pub fn dropped_registrations_give_no_access<I: Iface>(p: &Pair<I>) {
    let md = p.b.md();
    if !md.attr().has_rkey || !md.attr().can_register || !p.a.attr().has(Caps::PUT_ZCOPY) {
        return;
    }
    let own = md.alloc(&AllocReq::new(4096, "own")).unwrap();
    // SAFETY: inside an allocation that outlives the registration.
    let registered = unsafe { md.register(own.addr(), 4096, Access::ALL) }.unwrap();
    let rkey = p.a.md().unpack_rkey(&md.pack_rkey(&registered).unwrap()).unwrap();
    let local = p.a.md().alloc(&AllocReq::new(8, "local")).unwrap();
    let at = own.addr().addr() as u64;
    let put = |value: u8, len: usize| {
        write(&local, 0, &[value; 8]);
        let iov = [Iov::new(local.addr(), len, Some(&local))];
        // SAFETY: `local` lives until the operation is over, which is waited for.
        p.finish(|comp| unsafe { p.ab.put_zcopy(&iov, at, &rkey, comp) })
    };
    assert_eq!(put(1, 8), Ok(()));
    drop(registered);
    if md.attr().revokes_keys {
        assert_eq!(put(2, 8), Err(Error::RemoteAccess));
        assert_eq!(read(&own, 0, 8), [1; 8]);
    }
    // Only where the key is a number of this process is it looked up in any case.
    let of_no_bytes = if p.a.attr().kind == DevKind::Loopback { Err(Error::RemoteAccess) } else { Ok(()) };
    assert_eq!(put(3, 0), of_no_bytes);
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
}

/// Keys are equal if they name the same registration with the same rights.
pub fn keys_have_an_order<I: Iface>(p: &Pair<I>) {
    let md = p.b.md();
    if !md.attr().has_rkey {
        return;
    }
    let mems: Vec<_> = (0..4).map(|_| md.alloc(&AllocReq::new(5000, "conform")).unwrap()).collect();
    let all = || mems.iter().map(|mem| p.a.md().unpack_rkey(&md.pack_rkey(mem).unwrap()).unwrap());
    let (mut keys, again): (Vec<_>, Vec<_>) = (all().collect(), all().collect());
    assert!(keys == again);
    keys.sort();
    assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    let access = Access::REMOTE_READ;
    // SAFETY: inside an allocation that outlives the registration.
    let part = unsafe { md.register(mems[0].addr(), 4096, access) }.unwrap();
    let key = p.a.md().unpack_rkey(&md.pack_rkey(&part).unwrap()).unwrap();
    assert!(keys.iter().all(|other| *other != key), "another range, with other rights");
}

/// Packed keys work, and damaged ones never panic.
pub fn damaged_keys_are_rejected<I: Iface>(p: &Pair<I>) {
    let md = p.b.md();
    if !md.attr().has_rkey {
        return;
    }
    let mem = md.alloc(&AllocReq::new(5000, "conform")).unwrap();
    let packed = md.pack_rkey(&mem).unwrap();
    assert_eq!(packed.len(), md.attr().rkey_len);
    let rkey = p.a.md().unpack_rkey(&packed).unwrap();
    assert_eq!(rkey.range(), (mem.addr().addr() as u64, 5000));
    if let Some(at) = p.a.md().rkey_ptr(&rkey, mem.addr().addr() as u64 + 8, 8) {
        // SAFETY: mapped as long as the key lives; the owner of the memory is this test.
        unsafe { at.write(77) };
        // SAFETY: inside the allocation.
        assert_eq!(unsafe { mem.addr().wrapping_add(8).read_volatile() }, 77);
        assert!(p.a.md().rkey_ptr(&rkey, mem.addr().addr() as u64 + 4993, 8).is_none());
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
