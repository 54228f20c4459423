//! The same interface over the shared-memory link, both ends in this process: what the link between processes may do
//! differently is order, receivers not ready, and memory that is mapped or not.

use super::*;
use crate::efa::dev::soft::{Shm, open_shm};
use ucs::mem::{MapOpts, Mapping};

type ShmDev = soft::Device<Shm>;

fn open(source: &Source) -> Iface<ShmDev> {
    Iface::open(open_shm(source, "softefa0").unwrap(), &Params::from_source(source).unwrap()).unwrap()
}

/// Polls both interfaces until `done` holds.
fn until(a: &Iface<ShmDev>, b: &Iface<ShmDev>, log: &mut Log, done: impl Fn(&Log) -> bool) {
    let mut polls = 0u64;
    while !done(log) {
        a.poll(16, log);
        b.poll(16, log);
        polls += 1;
        assert!(polls < 200_000_000, "stuck with {} messages, {:?}", log.ams.len(), log.errors);
    }
}

#[test]
fn a_reordering_device_with_tiny_queues_loses_nothing() {
    let source = Source::empty()
        .with("SOFTEFA_REORDER", "0.3")
        .with("SOFTEFA_SEED", "7")
        .with("UCX_EFA_TX_QUEUE_LEN", "16")
        .with("UCX_EFA_RX_QUEUE_LEN", "8");
    let (a, b) = (open(&source), open(&source));
    let ep = a.connect_raw(&b.raw_addr()).unwrap();
    let mut log = Log::default();
    for n in 0..5000u64 {
        let len = 8 + (n * 37 % 8000) as usize;
        let pack = |buf: &mut [u8]| {
            buf[..len].fill(n as u8);
            buf[..8].copy_from_slice(&n.to_le_bytes());
            len
        };
        while let Err(e) = ep.am_bcopy(1, pack) {
            assert_eq!(e, Refused::NoResource);
            a.poll(16, &mut log);
            b.poll(16, &mut log);
        }
    }
    until(&a, &b, &mut log, |log| log.ams.len() == 5000);
    let number = |p: &[u8]| u64::from_le_bytes(p[1..9].try_into().expect("8 bytes"));
    assert!(!log.ams.is_sorted_by_key(|(_, p)| number(p)), "the device reorders");
    log.ams.sort_by_key(|(_, p)| number(p));
    let from = From { node: a.raw_addr().gid.iid(), port: u32::from(a.raw_addr().qpn) };
    for (n, (source, packet)) in log.ams.iter().enumerate() {
        let len = 8 + n * 37 % 8000;
        assert_eq!((*source, packet[0], packet.len(), number(packet)), (from, 1, 1 + len, n as u64));
        assert!(packet[9..].iter().all(|&b| b == n as u8));
    }
    assert_eq!(log.errors, []);
}

#[test]
fn rdma_reaches_memory_of_the_device_and_memory_of_the_caller() {
    let source = Source::empty();
    let (a, b) = (open(&source), open(&source));
    let (ep, _back) = (a.connect_raw(&b.raw_addr()).unwrap(), b.connect_raw(&a.raw_addr()).unwrap());
    let local = a.md().alloc(&AllocReq::new(100_000, "test")).unwrap();
    // SAFETY: freshly allocated, nobody else knows it.
    unsafe { local.addr().write_bytes(7, 100_000) };
    let map = Mapping::new(100_000, MapOpts::default()).unwrap();
    // SAFETY: the mapping outlives the registration, and is looked at only when no operation is on its way.
    let own = unsafe { b.md().register(map.as_ptr(), 100_000, Access::ALL) }.unwrap();
    let given = b.md().alloc(&AllocReq::new(100_000, "test")).unwrap();
    let mut log = Log::default();
    for remote in [&own, &given] {
        let rkey = a.md().unpack_rkey(&b.md().pack_rkey(remote).unwrap()).unwrap();
        let base = remote.addr() as u64;
        let iov = [Iov::new(local.addr(), 60_000, Some(&local))];
        // SAFETY: `local` lives to the end of the test and is not written.
        let sent = unsafe { ep.put_zcopy(&iov, base + 40_000, &rkey, Comp::Token(1)) };
        assert_eq!(sent, Ok(Sent::InProgress));
        until(&a, &b, &mut log, |log| log.comps.len() == 1);
        let back = a.md().alloc(&AllocReq::new(100_000, "test")).unwrap();
        let iov = [Iov::new(back.addr(), 100_000, Some(&back))];
        // SAFETY: `back` lives until the operation is done.
        let sent = unsafe { ep.get_zcopy(&iov, base, &rkey, Comp::Token(2)) };
        assert_eq!(sent, Ok(Sent::InProgress));
        until(&a, &b, &mut log, |log| log.comps.len() == 2);
        assert_eq!(std::mem::take(&mut log.comps), [(1, Ok(())), (2, Ok(()))]);
        let mut got = vec![1; 100_000];
        // SAFETY: the registration covers the bytes, and nothing is on its way.
        unsafe { back.addr().copy_to_nonoverlapping(got.as_mut_ptr(), got.len()) };
        assert!(got[..40_000].iter().all(|&b| b == 0) && got[40_000..].iter().all(|&b| b == 7));
    }
    assert_eq!(log.errors, []);
}

#[test]
fn a_peer_that_went_away_is_dead_for_messages_and_for_checks() {
    let source = Source::empty();
    let (a, b) = (open(&source), open(&source));
    let ep = a.connect_raw(&b.raw_addr()).unwrap();
    let mut log = Log::default();
    assert_eq!(ep.check(Comp::Token(1)), Ok(Sent::InProgress));
    until(&a, &b, &mut log, |log| log.comps.len() == 1);
    drop(b);
    assert_eq!(ep.check(Comp::Token(2)), Ok(Sent::InProgress));
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    while log.comps.len() < 2 || log.errors.is_empty() {
        a.poll(16, &mut log);
    }
    assert_eq!(log.comps, [(1, Ok(())), (2, Err(Error::PeerDead))]);
    assert_eq!(log.errors, [(EpTag(0), Error::PeerDead)]);
}
