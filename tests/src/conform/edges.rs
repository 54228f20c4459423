//! Local memory and registrations at their edges.

use super::rma::{self, read, write};
use super::{Log, Pair};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use ucs::Errno;
use ucs::mem::page::page_size;
use uct::api::{
    Access, AllocReq, Caps, Comp, Ep, Error, Iface, Iov, Md, Memory, Outcome, Refused, RemoteIov,
};

const LEN: usize = 4096;

/// A local piece that its registration does not cover, or without one, is rejected where the transport needs
/// local keys; nothing is sent.
pub fn local_pieces_outside_registrations_are_rejected<I: Iface>(p: &Pair<I>) {
    let caps = p.a.attr().caps;
    let has_rma = caps.contains(Caps::PUT_ZCOPY | Caps::GET_ZCOPY | Caps::PUT_SGL | Caps::GET_SGL);
    if !p.a.md().attr().needs_local_key || !has_rma {
        return;
    }
    let t = rma::target(p, 2 * LEN, Access::ALL);
    write(&t.mem, 0, &[3; 2 * LEN]);
    let whole = p.a.md().alloc(&AllocReq::new(3 * LEN, "local")).unwrap();
    let start = whole.addr().wrapping_add(LEN);
    // SAFETY: inside an allocation that outlives the registration.
    let part = unsafe { p.a.md().register(start, LEN, Access::ALL) }.unwrap();
    let bad = |sent: Outcome| assert_eq!(sent, Err(Refused::Failed(Error::BadLocalKey)));
    let pieces = [
        Iov::new(start.wrapping_sub(1), 200, Some(&part)),
        Iov::new(start.wrapping_add(LEN - 199), 200, Some(&part)),
        Iov::new(start.wrapping_add(LEN), 200, Some(&part)),
        Iov::new(whole.addr(), LEN, Some(&part)),
        Iov::new(start, 200, None),
        // The second block is outside.
        Iov { stride: LEN, count: 2, ..Iov::new(start.wrapping_add(LEN / 2), 200, Some(&part)) },
    ];
    for piece in pieces {
        let len = piece.total();
        let iov = [Iov::new(start, 200, Some(&part)), piece];
        let remote = [RemoteIov::new(t.at, 200 + len, &t.rkey)];
        // SAFETY: all pieces lie in `whole`, which lives; the calls are refused.
        let put = |iov: &[_]| unsafe { p.ab.put_zcopy(iov, t.at, &t.rkey, Comp::None) };
        // SAFETY: as above.
        let get = |iov: &[_]| unsafe { p.ab.get_zcopy(iov, t.at, &t.rkey, Comp::None) };
        for iov in [&iov[1..], &iov] {
            bad(put(iov));
            bad(get(iov));
        }
        // SAFETY: as above.
        bad(unsafe { p.ab.put_sgl(&iov, &remote, Comp::None) });
        // SAFETY: as above.
        bad(unsafe { p.ab.get_sgl(&iov, &remote, Comp::None) });
        if caps.contains(Caps::AM_ZCOPY) && len < p.a.attr().am.max_zcopy {
            // SAFETY: as above.
            bad(unsafe { p.ab.am_zcopy(1, &[], &iov[1..], Comp::None) });
        }
    }
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
    assert!(read(&t.mem, 0, 2 * LEN).iter().all(|byte| *byte == 3));
    assert!(read(&whole, 0, 3 * LEN).iter().all(|byte| *byte == 0));
    p.arrived(&mut Log::default(), 0);
}

/// Registrations of overlapping ranges work side by side, and end one by one.
pub fn registrations_may_overlap<I: Iface>(p: &Pair<I>) {
    let md = p.b.md();
    if !p.a.attr().has(Caps::PUT_ZCOPY) || !md.attr().has_rkey || !md.attr().can_register {
        return;
    }
    let whole = md.alloc(&AllocReq::new(3 * LEN, "whole")).unwrap();
    let local = p.a.md().alloc(&AllocReq::new(8, "local")).unwrap();
    let part = |from: usize, access| {
        // SAFETY: inside an allocation that outlives the registration.
        let mem = unsafe { md.register(whole.addr().wrapping_add(from), 2 * LEN, access) }.unwrap();
        let rkey = p.a.md().unpack_rkey(&md.pack_rkey(&mem).unwrap()).unwrap();
        (mem, rkey)
    };
    let (first, again) = (part(0, Access::ALL), part(0, Access::ALL));
    let (second, poor) = (part(LEN, Access::ALL), part(LEN, Access::REMOTE_READ));
    let iov = [Iov::new(local.addr(), 8, Some(&local))];
    let put = |at: usize, rkey: &<I::Md as Md>::Rkey, value: u8| {
        write(&local, 0, &[value; 8]);
        let at = whole.addr().addr() as u64 + at as u64;
        // SAFETY: `local` lives until the operation is over, which is waited for.
        p.finish(|comp| unsafe { p.ab.put_zcopy(&iov, at, rkey, comp) })
    };
    for (n, (_, rkey)) in [&first, &again, &second].into_iter().enumerate() {
        assert_eq!(put(LEN, rkey, n as u8 + 1), Ok(()));
        assert_eq!(read(&whole, LEN, 8), [n as u8 + 1; 8]);
    }
    assert_eq!(put(LEN, &poor.1, 9), Err(Error::RemoteAccess));
    assert_eq!(put(2 * LEN, &first.1, 9), Err(Error::RemoteAccess));
    drop(first);
    assert_eq!(put(LEN, &again.1, 11), Ok(()));
    drop((again, poor));
    assert_eq!(put(LEN, &second.1, 12), Ok(()));
    drop(second);
    assert_eq!(read(&whole, LEN, 8), [12; 8]);
}

/// A registration of nothing, or of a range that wraps, is an error.
pub fn invalid_registrations_are_rejected<I: Iface>(p: &Pair<I>) {
    let md = p.a.md();
    let mut own = vec![0u8; LEN];
    let register = |addr: *mut u8, len| {
        // SAFETY: what is not ours is refused, before any access.
        let registered = unsafe { md.register(addr, len, Access::ALL) };
        registered.map(|mem| (mem.addr().addr(), mem.len()))
    };
    let invalid = |found: Result<_, Error>| {
        let refused = matches!(found, Err(Error::InvalidParam(_) | Error::Unsupported(_)));
        assert!(refused, "{found:?}");
    };
    invalid(register(own.as_mut_ptr(), 0));
    invalid(register(std::ptr::null_mut(), LEN));
    invalid(register(own.as_mut_ptr(), usize::MAX));
    invalid(register(std::ptr::without_provenance_mut(usize::MAX - 10), 100));
    if md.attr().can_register {
        assert_eq!(register(own.as_mut_ptr(), LEN), Ok((own.as_mut_ptr().addr(), LEN)));
    }
    assert!(p.finish(|comp| p.a.flush(comp)).is_ok());
}

/// Two pages without rights, unmapped when dropped.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Pages {
        // SAFETY: a new mapping, at an address of the system's choice.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 2 * page_size(), ProtFlags::empty(), MapFlags::PRIVATE)
        };
        Pages(at.unwrap().cast())
    }

    /// Gives the first page rights.
    fn allow(&self, rights: MprotectFlags) {
        // SAFETY: a page of this mapping, to which there are no references.
        unsafe { mprotect(self.0.cast(), page_size(), rights) }.unwrap();
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which there are no references.
        unsafe { munmap(self.0.cast(), 2 * page_size()) }.unwrap();
    }
}

/// Memory that is not mapped, or is read-only and to be written, is not registered where the program's own
/// instructions would access it. Else there is no key of it, or the kernel refuses the access.
pub fn inaccessible_memory_stays_so<I: Iface>(p: &Pair<I>) {
    let (md, attr) = (p.b.md(), p.a.attr());
    if !md.attr().can_register {
        return;
    }
    let is_checked = matches!(attr.tl, "self" | "efa");
    let (page, pages) = (page_size(), Pages::new());
    pages.allow(MprotectFlags::READ);
    let local = p.a.md().alloc(&AllocReq::new(8, "local")).unwrap();
    write(&local, 0, &[7; 8]);
    let iov = [Iov::new(local.addr(), 8, Some(&local))];
    let readable = Access::LOCAL_READ | Access::REMOTE_READ;
    let below_any_mapping = std::ptr::without_provenance_mut(4096);
    for (at, len, access, used) in [
        (pages.0, page, Access::ALL, 0),
        (pages.0, 2 * page, readable, page),
        (pages.0.wrapping_add(page), page, readable, 0),
        (pages.0.wrapping_add(page), page, Access::ALL, 0),
        (below_any_mapping, page, Access::ALL, 0),
    ] {
        // SAFETY: the range is refused before any access, or the kernel refuses the access.
        let mem = match unsafe { md.register(at, len, access) } {
            Ok(mem) => mem,
            Err(e) => {
                let is_fault = matches!(e, Error::Sys { errno: Errno(14), .. });
                assert!(is_checked && is_fault, "{at:?}, {len}, {access:?}: {e}");
                continue;
            }
        };
        assert!(!is_checked, "{at:?}, {len}, {access:?}");
        let Ok(packed) = md.pack_rkey(&mem) else { continue };
        let (rkey, remote) = (p.a.md().unpack_rkey(&packed).unwrap(), (at.addr() + used) as u64);
        if attr.has(Caps::PUT_ZCOPY) {
            // SAFETY: `local` lives until the operation is over, which is waited for.
            let put = p.finish(|comp| unsafe { p.ab.put_zcopy(&iov, remote, &rkey, comp) });
            assert_eq!(put, Err(Error::RemoteAccess), "{at:?}, {len}, {access:?}");
        }
        if attr.has(Caps::GET_ZCOPY) && remote != pages.0.addr() as u64 {
            // SAFETY: as above.
            let get = p.finish(|comp| unsafe { p.ab.get_zcopy(&iov, remote, &rkey, comp) });
            assert_eq!(get, Err(Error::RemoteAccess), "{at:?}, {len}, {access:?}");
        }
    }
    // What may be read only is registered for reading.
    // SAFETY: the page stays mapped, nobody writes it.
    let mem = unsafe { md.register(pages.0, page, readable) }.unwrap();
    if let (true, Ok(packed)) = (attr.has(Caps::GET_ZCOPY), md.pack_rkey(&mem)) {
        let rkey = p.a.md().unpack_rkey(&packed).unwrap();
        // SAFETY: as above.
        let get = p.finish(|comp| unsafe { p.ab.get_zcopy(&iov, pages.0.addr() as u64, &rkey, comp) });
        assert_eq!((get, read(&local, 0, 8)), (Ok(()), vec![0; 8]));
    }
    assert!(p.finish(|comp| p.a.flush(comp)).is_ok());
}
