//! Put, get and check: bounds, access rights, and the peer's answers.

#![allow(unsafe_code)]

use super::*;
use ucs::mem::{MapOpts, Mapping};

on_every_network!(rdma_moves_bytes_within_bounds_only a_stale_or_read_only_rkey_is_rejected_by_the_peer check_succeeds_without_an_address_handle_at_the_peer rdma_reaches_allocated_and_registered_memory);

fn rdma_moves_bytes_within_bounds_only<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    let ep = a.ep_to(&b);
    let (local, remote) = (alloc(&a, 3000, 0xaa), alloc(&b, 2000, 0xbb));
    let rkey = rkey_of(&b, &remote, &a);
    let base = remote.addr() as u64;
    let piece = |at: usize, len: usize| [Iov::new(local.addr().wrapping_add(at), len, Some(&local))];
    // SAFETY: `local` and `remote` live to the end of the test and are looked at only after `settle`.
    let put = |at: usize, len, to, comp| unsafe { ep.put_zcopy(&piece(at, len), to, &rkey, comp) };
    // SAFETY: as above.
    let get = |at: usize, len, from, comp| unsafe { ep.get_zcopy(&piece(at, len), from, &rkey, comp) };

    assert_eq!(put(0, 100, base, Comp::Token(1)), Ok(Sent::InProgress));
    settle(&net, &mut a, &mut b);
    assert_eq!(a.log.comps, [(1, Err(Error::Device(14)))], "b has no endpoint to a yet");
    let _back = b.ep_to(&a);

    a.log.comps.clear();
    assert_eq!(put(0, 1500, base + 500, Comp::Token(2)), Ok(Sent::InProgress));
    settle(&net, &mut a, &mut b);
    assert_eq!(read(&remote), [vec![0xbb; 500], vec![0xaa; 1500]].concat());
    assert_eq!(get(1000, 2000, base, Comp::Token(3)), Ok(Sent::InProgress));
    settle(&net, &mut a, &mut b);
    assert_eq!(read(&local), [vec![0xaa; 1000], vec![0xbb; 500], vec![0xaa; 1500]].concat());
    assert_eq!(a.log.comps, [(2, Ok(())), (3, Ok(()))]);

    assert_eq!(put(0, 0, base + 2000, Comp::None), Ok(Sent::Done), "nothing, at the end");
    for (to, len) in [(base + 1, 2000), (base - 1, 1), (base + 2000, 1), (u64::MAX, 2)] {
        assert_eq!(put(0, len, to, Comp::None), Err(Error::RemoteAccess.into()));
        assert_eq!(get(0, len, to, Comp::None), Err(Error::RemoteAccess.into()));
    }
    assert_eq!(put(2000, 1001, base, Comp::None), Err(Error::BadLocalKey.into()), "leaves the registration");
    let unregistered = [Iov::new(local.addr(), 8, None)];
    // SAFETY: as above.
    let answer = unsafe { ep.put_zcopy(&unregistered, base, &rkey, Comp::None) };
    assert_eq!(answer, Err(Error::BadLocalKey.into()));
}

fn a_stale_or_read_only_rkey_is_rejected_by_the_peer<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    let (ep, _back) = (a.ep_to(&b), b.ep_to(&a));
    let local = alloc(&a, 64, 1);
    let read_only = AllocReq { access: Access::LOCAL_WRITE | Access::REMOTE_READ, ..AllocReq::new(64, "ro") };
    let guarded = b.iface.md().alloc(&read_only).unwrap();
    let gone = alloc(&b, 64, 2);
    let (guarded_key, gone_key) = (rkey_of(&b, &guarded, &a), rkey_of(&b, &gone, &a));
    let gone_addr = gone.addr() as u64;
    drop(gone);
    let iov = [Iov::new(local.addr(), 64, Some(&local))];
    // SAFETY: `local` lives to the end of the test.
    let _ = unsafe { ep.put_zcopy(&iov, guarded.addr() as u64, &guarded_key, Comp::Token(1)) };
    // SAFETY: as above.
    let _ = unsafe { ep.put_zcopy(&iov, gone_addr, &gone_key, Comp::Token(2)) };
    // SAFETY: as above.
    let _ = unsafe { ep.get_zcopy(&iov, gone_addr, &gone_key, Comp::Token(3)) };
    settle(&net, &mut a, &mut b);
    a.log.comps.sort_by_key(|c| c.0);
    let refused = Err(Error::RemoteAccess);
    assert_eq!(a.log.comps, [(1, refused), (2, refused), (3, refused)]);
    assert_eq!(read(&guarded), [0; 64]);
}

fn check_succeeds_without_an_address_handle_at_the_peer<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    let ep = a.ep_to(&b);
    assert_eq!(ep.check(Comp::Token(1)), Ok(Sent::InProgress));
    settle(&net, &mut a, &mut b);
    let _back = b.ep_to(&a);
    assert_eq!(ep.check(Comp::Token(2)), Ok(Sent::InProgress));
    settle(&net, &mut a, &mut b);
    assert_eq!(a.log.comps, [(1, Ok(())), (2, Ok(()))]);
}

fn rdma_reaches_allocated_and_registered_memory<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    let (ep, _back) = (a.ep_to(&b), b.ep_to(&a));
    let local = alloc(&a, 100_000, 7);
    let map = Mapping::new(100_000, MapOpts::default()).unwrap();
    // SAFETY: the mapping outlives the registration; it is read only when no operation is in flight.
    let own = unsafe { b.iface.md().register(map.as_ptr(), 100_000, Access::ALL) }.unwrap();
    let given = alloc(&b, 100_000, 0);
    for remote in [&own, &given] {
        let rkey = rkey_of(&b, remote, &a);
        let base = remote.addr() as u64;
        let iov = [Iov::new(local.addr(), 60_000, Some(&local))];
        // SAFETY: `local` lives to the end of the test and is not written.
        let sent = unsafe { ep.put_zcopy(&iov, base + 40_000, &rkey, Comp::Token(1)) };
        assert_eq!(sent, Ok(Sent::InProgress));
        settle(&net, &mut a, &mut b);
        let back = alloc(&a, 100_000, 1);
        let iov = [Iov::new(back.addr(), 100_000, Some(&back))];
        // SAFETY: `back` lives until the operation is done.
        let sent = unsafe { ep.get_zcopy(&iov, base, &rkey, Comp::Token(2)) };
        assert_eq!(sent, Ok(Sent::InProgress));
        settle(&net, &mut a, &mut b);
        assert_eq!(std::mem::take(&mut a.log.comps), [(1, Ok(())), (2, Ok(()))]);
        assert!(read(&back) == [vec![0; 40_000], vec![7; 60_000]].concat());
    }
    assert_eq!(a.log.errors, []);
}
