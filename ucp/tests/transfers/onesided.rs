//! Put, get and atomics between two workers of one thread on every lane, with memory that is mapped and
//! memory that only packets reach: every form of the calls, flushes and fences, and wrong keys.

use crate::common::{Pair, bytes};
use ucp::select::DeliveryComplete;
use ucp::{Access, AtomicOp, AtomicType, Error, Iov, Mem, OpStatus, RemoteIov, Rkey, RmaMethod, RmaParams};

/// Sizes around every change of protocol on every lane.
const SIZES: [usize; 16] =
    [0, 1, 7, 8, 9, 63, 64, 500, 4000, 8164, 8192, 8876, 8900, 20_000, 65_537, 1_000_000];
const LEN: usize = 1 << 20;

struct Target {
    pair: Pair,
    mem: Mem,
    rkey: Rkey,
    /// Backs `mem` if that was not allocated; not read.
    _own: Option<Box<[u64]>>,
}

impl Target {
    fn alloc(tls: &str) -> Target {
        let pair = Pair::on(tls);
        let mem = pair.b.mem_alloc(LEN, Access::all()).unwrap();
        let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
        Target { pair, mem, rkey, _own: None }
    }

    /// Memory of the program, with a complete key.
    fn lent(tls: &str) -> Target {
        let mut target = Target::packets(tls);
        target.rkey = target.pair.ab.unpack_rkey(&target.mem.pack_rkey()).unwrap();
        target
    }

    /// Memory of the program, by its packet key alone.
    fn packets(tls: &str) -> Target {
        let mut own = vec![0u64; LEN / 8].into_boxed_slice();
        let pair = Pair::on(tls);
        // SAFETY: the box is kept beside the registration and not used.
        let mem = unsafe { pair.b.mem_map(own.as_mut_ptr().cast(), LEN, Access::all()) }.unwrap();
        let rkey = Rkey::from_key(mem.key());
        Target { pair, mem, rkey, _own: Some(own) }
    }

    fn at(&self, at: usize) -> u64 {
        self.mem.addr() + at as u64
    }

    fn flush(&self) {
        let flush = self.pair.ab.flush();
        self.pair.until(|| flush.is_done());
        flush.wait().unwrap();
    }

    fn holds(&self, at: usize, want: &[u8]) {
        let mut got = vec![0; want.len()];
        self.mem.read(at, &mut got);
        assert!(got == want, "{} bytes at {at}", want.len());
    }
}

fn all_sizes(t: &Target) {
    for (n, len) in SIZES.into_iter().enumerate() {
        let sent = bytes(n as u64, len);
        let at = if len > LEN / 2 { 13 } else { n * 16 + 1 };
        let put = t.pair.ab.put(sent.clone(), t.at(at), &t.rkey);
        t.pair.until(|| put.is_done());
        let (result, back) = put.wait();
        assert_eq!((result, back == sent), (Ok(()), true));
        t.flush();
        t.holds(at, &sent);
        let get = t.pair.ab.get(Vec::with_capacity(len), t.at(at), &t.rkey);
        t.pair.until(|| get.is_done());
        let (status, got) = get.wait();
        assert_eq!(status.map(|s| s.len), Ok(len.max(got.capacity())));
        assert!(got[..len] == sent[..], "read of {len} bytes differs");
    }
    t.pair.settle();
    assert_eq!((t.pair.a.diagnostics().requests(), t.pair.b.diagnostics().requests()), (0, 0));
}

fn without_requests(t: &Target) {
    let sent = bytes(5, 100_000);
    let mut got = vec![0u8; 100_000];
    for (n, chunk) in sent.chunks(1000).enumerate() {
        // SAFETY: `sent` is unchanged until the flush is complete.
        unsafe { t.pair.ab.put_nbi(chunk.as_ptr(), chunk.len(), t.at(n * 1000), &t.rkey) }.unwrap();
    }
    t.pair.ab.fence();
    // SAFETY: `got` is not read before the flush is complete.
    unsafe { t.pair.ab.get_nbi(got.as_mut_ptr(), got.len(), t.at(0), &t.rkey) }.unwrap();
    let flush = t.pair.a.flush();
    t.pair.until(|| flush.is_done());
    flush.wait().unwrap();
    assert!(got == sent);
    t.holds(0, &sent);
}

/// A write behind messages that find no room is queued; the flush begins before it is sent.
#[test]
fn flush_covers_a_write_that_is_still_queued() {
    for tls in ["posix", "efa"] {
        let t = Target::packets(tls);
        for whole in [false, true] {
            let word = (7 + u64::from(whole)).to_ne_bytes();
            let messages: Vec<_> = (0..4000).map(|_| t.pair.ab.tag_send(1, vec![0; 8])).collect();
            // SAFETY: `word` is unchanged until the flush is complete.
            unsafe { t.pair.ab.put_nbi(word.as_ptr(), 8, t.at(0), &t.rkey) }.unwrap();
            let flush = if whole { t.pair.a.flush() } else { t.pair.ab.flush() };
            while !flush.is_done() {
                // The target takes a few packets, then this side sends all it can.
                t.pair.b.progress();
                for _ in 0..100 {
                    t.pair.a.progress();
                }
            }
            t.holds(0, &word);
            flush.wait().unwrap();
            assert!(messages.iter().all(|message| message.is_done()));
        }
    }
}

fn pieces(t: &Target) {
    let mut sent = bytes(6, 9000);
    let (remote, params) = (
        [
            RemoteIov { addr: t.at(0), len: 8000, rkey: &t.rkey },
            RemoteIov { addr: t.at(20_000), len: 1000, rkey: &t.rkey },
        ],
        RmaParams { cq_data: Some(99), ..RmaParams::default() },
    );
    let base = sent.as_mut_ptr();
    let local = [Iov { addr: base, len: 10 }, Iov { addr: base.wrapping_add(10), len: 8990 }];
    // SAFETY: `sent` is unchanged until the flush is complete.
    let started = unsafe { t.pair.ab.put_iov_raw(&local, &remote, &params) }.unwrap();
    if let OpStatus::InProgress(id) = started {
        t.pair.a.free(id);
    }
    let mut heard = None;
    t.pair.until(|| {
        heard = heard.or(t.pair.b.take_remote_write());
        heard.is_some()
    });
    let heard = heard.unwrap();
    assert_eq!((heard.len, heard.cq_data, heard.from), (9000, 99, t.pair.ba.peer()));
    t.flush();
    t.holds(0, &sent[..8000]);
    t.holds(20_000, &sent[8000..]);
    let mut got = vec![0u8; 9000];
    let base = got.as_mut_ptr();
    let local = [Iov { addr: base, len: 1 }, Iov { addr: base.wrapping_add(1), len: 8999 }];
    // SAFETY: `got` is not read before the operation is complete.
    match unsafe { t.pair.ab.get_iov_raw(&local, &remote, &RmaParams::default()) }.unwrap() {
        OpStatus::Done(_) => {}
        OpStatus::InProgress(id) => {
            let mut ended = None;
            t.pair.until(|| {
                ended = t.pair.a.test(id);
                ended.is_some()
            });
            assert_eq!(ended.unwrap().map(|s| s.len), Ok(9000));
        }
    }
    assert!(got == sent);
}

fn add<T: AtomicType + PartialEq + std::fmt::Debug>(t: &Target, at: usize, old: T, with: T, new: T) {
    t.pair.ab.atomic_post(AtomicOp::Write, old, t.at(at), &t.rkey).unwrap();
    let fetch = |op, value| {
        let fetch = t.pair.ab.atomic_fetch(op, value, t.at(at), &t.rkey);
        t.pair.until(|| fetch.is_done());
        fetch.wait().unwrap()
    };
    assert_eq!(fetch(AtomicOp::Sum, with), old);
    assert_eq!(fetch(AtomicOp::Read, with), new);
    let swap = t.pair.ab.atomic_compare(AtomicOp::CompareSwap, new, with, t.at(at), &t.rkey);
    t.pair.until(|| swap.is_done());
    assert_eq!(swap.wait(), Ok(new));
    let swap = t.pair.ab.atomic_compare(AtomicOp::CompareSwap, new, old, t.at(at), &t.rkey);
    t.pair.until(|| swap.is_done());
    assert_eq!(swap.wait(), Ok(with));
}

fn atomics(t: &Target) {
    add(t, 0, 250u8, 7, 1);
    add(t, 2, -7i16, 9, 2);
    add(t, 4, u32::MAX, 3, 2);
    add(t, 8, u64::MAX, 3, 2);
    add(t, 16, -5i64, -6, -11);
    add(t, 32, u128::MAX - 1, 4, 2);
    add(t, 48, 1.5f32, 2.25, 3.75);
    add(t, 56, 1e300f64, 1e300, 2e300);
    add(t, 65, 40_000u32, 2, 40_002);
    t.mem.write(800, &[0; 16]);
    for _ in 0..100 {
        t.pair.ab.atomic_post(AtomicOp::Sum, 2u64, t.at(800), &t.rkey).unwrap();
        t.pair.ab.atomic_post(AtomicOp::Sum, 0.5f64, t.at(808), &t.rkey).unwrap();
    }
    t.flush();
    assert_eq!((t.mem.word(800), f64::from_bits(t.mem.word(808))), (200, 50.0));
}

fn wrong_keys_are_rejected(t: &Target) {
    let read_only = t.pair.b.mem_alloc(64, Access::READ).unwrap();
    let rkey = t.pair.ab.unpack_rkey(&read_only.pack_rkey()).unwrap();
    let at = read_only.addr();
    let put = |at: u64, len| t.pair.ab.put(vec![1; len], at, &rkey).wait().0;
    assert_eq!(put(at, 1), Err(Error::RemoteAccess(t.pair.ab.peer())));
    let get = |at: u64, len| t.pair.ab.get(vec![0; len].into_boxed_slice(), at, &rkey).wait().0;
    assert_eq!(get(at + 1, 64).map(drop), Err(Error::RemoteAccess(t.pair.ab.peer())));
    assert_eq!(get(at - 1, 1).map(drop), Err(Error::RemoteAccess(t.pair.ab.peer())));
    assert_eq!(
        t.pair.ab.atomic_post(AtomicOp::Sum, 1u64, at, &rkey),
        Err(Error::RemoteAccess(t.pair.ab.peer()))
    );
    assert_eq!(t.pair.ab.atomic_post(AtomicOp::BitOr, 1f64, t.at(0), &t.rkey), Err(Error::Invalid));
    let get = t.pair.ab.get(vec![7; 64].into_boxed_slice(), at, &rkey);
    t.pair.until(|| get.is_done());
    assert_eq!(&get.wait().1[..], [0; 64]);
    // The target checks these itself: no reply, and nothing is written.
    let wrong = Rkey::from_key(t.mem.key() ^ 1);
    let put = t.pair.ab.put(vec![1; 8], t.at(0), &wrong);
    put.detach();
    t.pair.settle();
    assert_eq!(t.pair.b.stats().rare.bad_access, 1);
}

fn blocking_and_borrowed(tls: &str) {
    // One worker with an endpoint to itself: blocking calls progress both ends.
    let worker = crate::common::context(crate::common::ends(tls).0).worker().unwrap();
    let ep = worker.connect(&worker.address(), ucp::EpParams::default()).unwrap();
    let mem = worker.mem_alloc(70_000, Access::all()).unwrap();
    let rkey = ep.unpack_rkey(&mem.pack_rkey()).unwrap();
    let (sent, mut got, mut word) = (bytes(3, 60_000), vec![0; 60_000], [0; 8]);
    ep.put_blocking(&sent, mem.addr() + 64, &rkey).unwrap();
    ep.flush().wait().unwrap();
    ep.get_blocking(&mut got, mem.addr() + 64, &rkey).unwrap();
    assert!(got == sent);
    worker.scope(|s| {
        let put = s.put(&ep, &sent[..8], mem.addr(), &rkey);
        put.wait().unwrap();
        ep.fence();
        assert_eq!(s.get(&ep, &mut word, mem.addr(), &rkey).wait().map(|s| s.len), Ok(8));
    });
    assert_eq!(word, sent[..8]);
    ep.put_blocking(&5u64.to_le_bytes(), mem.addr(), &rkey).unwrap();
    ep.fence();
    assert_eq!(ep.atomic_fetch_blocking(AtomicOp::Prod, 7u64, mem.addr(), &rkey), Ok(5));
    assert_eq!(ep.atomic_compare_blocking(AtomicOp::CompareSwapGt, 36u64, 1, mem.addr(), &rkey), Ok(35));
    assert_eq!(mem.word(0), 1);
}

macro_rules! on_lanes {
    ($($lane:ident: $tls:literal)*) => {$(
        mod $lane {
            use super::*;

            #[test]
            fn memory_is_allocated_for_the_lane() {
                let t = Target::alloc($tls);
                all_sizes(&t);
                without_requests(&t);
                pieces(&t);
                atomics(&t);
                wrong_keys_are_rejected(&t);
            }

            #[test]
            fn memory_by_packets() {
                let t = Target::packets($tls);
                assert_eq!(t.pair.ab.protocols().rma_method(&t.rkey), RmaMethod::Emulated);
                all_sizes(&t);
                without_requests(&t);
                pieces(&t);
                atomics(&t);
                wrong_keys_are_rejected(&t);
            }

            #[test]
            fn blocking() {
                blocking_and_borrowed($tls);
            }
        }
    )*};
}
on_lanes!(
    self_: "self"
    posix: "posix"
    efa: "efa"
    own_contexts: "apart efa"
    shared_posix: "shared posix"
    shared_efa: "shared efa"
);

#[test]
fn mapped_memory_is_reported() {
    let t = Target::alloc("posix");
    assert_eq!(t.pair.ab.protocols().rma_method(&t.rkey), RmaMethod::Mapped);
    let of = |op, ty| t.pair.ab.protocols().atomic_method(&t.rkey, op, ty);
    assert_eq!(of(AtomicOp::Sum, ucp::Datatype::Uint64), Some(RmaMethod::Mapped));
    assert_eq!(of(AtomicOp::Sum, ucp::Datatype::Double), Some(RmaMethod::Emulated));
    assert_eq!(of(AtomicOp::BitOr, ucp::Datatype::Double), None);
    // Nobody progresses the target, and the data arrives.
    t.pair.ab.put_blocking(&[9; 100], t.at(0), &t.rkey).unwrap();
    assert_eq!(t.pair.ab.atomic_fetch_blocking(AtomicOp::Sum, 1u64, t.at(200), &t.rkey), Ok(0));
    t.holds(0, &[9; 100]);
    assert_eq!(t.mem.word(200), 1);
}

#[test]
fn explained_protocol_is_used() {
    use ucp::select::{RmaChoice, RmaOp, RmaVerdict};
    for t in [Target::packets("posix"), Target::packets("efa"), Target::alloc("efa"), Target::lent("efa")] {
        for len in
            [1, 4000, 8000, 8100, 8827, 8828, 8829, 8860, 8880, 8901, 8904, 8905, 30_000, 65_536, 1_000_000]
        {
            for op in [RmaOp::Put, RmaOp::Get] {
                let explain = || t.pair.ab.protocols().explain_rma(&t.rkey, op, None, len);
                let before = t.pair.a.stats().initiated;
                let taken = explain().into_iter().find(|c| c.verdict == RmaVerdict::Taken).unwrap().choice;
                let mut done: Box<dyn FnMut() -> bool> = match op {
                    RmaOp::Put => {
                        let put = t.pair.ab.put(vec![1; len], t.at(0), &t.rkey);
                        Box::new(move || put.is_done())
                    }
                    RmaOp::Get => {
                        let get = t.pair.ab.get(vec![1; len].into_boxed_slice(), t.at(0), &t.rkey);
                        Box::new(move || get.is_done())
                    }
                };
                t.pair.until(&mut done);
                let after = t.pair.a.stats().initiated;
                let RmaChoice::Protocol(row) = taken else { panic!("not mapped here") };
                // The first operation may change the header, and so the threshold.
                if len > 1 {
                    let n = row as usize;
                    assert_eq!(after[n].msgs, before[n].msgs + 1, "{} bytes, {op:?}: {}", len, row.name());
                }
            }
        }
    }
}

#[test]
fn long_put_with_data_notifies_its_target() {
    use ucp::rdm::RmaProtocol;
    use ucp::wire::PktType;
    for (word, row) in [(7, RmaProtocol::DirectWrite), (7 << 32, RmaProtocol::LongReadWrite)] {
        let t = Target::alloc("efa");
        let sent = bytes(8, 900_000);
        let params = RmaParams { cq_data: Some(word), ..RmaParams::default() };
        let put = t.pair.ab.put_with(sent.clone(), t.at(5), &t.rkey, &params);
        let mut heard = None;
        t.pair.until(|| {
            heard = heard.or(t.pair.b.take_remote_write());
            heard.is_some()
        });
        t.holds(5, &sent);
        let heard = heard.map(|heard| (heard.len, heard.cq_data, heard.from));
        assert_eq!(heard, Some((900_000, word, t.pair.ba.peer())));
        t.pair.until(|| put.is_done());
        assert_eq!(put.wait().0, Ok(()));
        let stats = (t.pair.a.stats(), t.pair.b.stats());
        assert_eq!((stats.0.initiated(row).msgs, stats.1.served(row).bytes), (1, 900_000));
        let read = u64::from(row == RmaProtocol::LongReadWrite);
        assert_eq!((stats.1.tx_pkts[usize::from(PktType::EOR.0)], stats.1.rare.reads), (read, read));
        let explain =
            t.pair.ab.protocols().explain_rma(&t.rkey, ucp::select::RmaOp::Put, Some(word), 900_000);
        let taken = explain.iter().find(|c| c.verdict == ucp::select::RmaVerdict::Taken);
        assert_eq!(taken.map(|c| c.choice.name()), Some(row.name()));
    }
}

#[test]
fn packets_are_used_where_faster() {
    use ucp::select::{RmaOp, RmaVerdict};
    let t = Target::lent("efa");
    assert_eq!(t.pair.ab.protocols().rma_method(&t.rkey), RmaMethod::Rdma);
    let first = t.pair.ab.put(vec![1; 8], t.at(0), &t.rkey);
    t.pair.until(|| first.is_done());
    t.pair.settle();
    for op in [RmaOp::Put, RmaOp::Get] {
        assert_eq!(t.pair.ab.protocols().rma_method_for(&t.rkey, op, 8), RmaMethod::Emulated);
        assert_eq!(t.pair.ab.protocols().rma_method_for(&t.rkey, op, 1 << 20), RmaMethod::Rdma);
        let ways = t.pair.ab.protocols().explain_rma(&t.rkey, op, None, 8);
        assert!(matches!(ways[1].verdict, RmaVerdict::Slower { ns, best } if ns > best), "{ways:?}");
    }
    let sync = RmaParams { sync: DeliveryComplete::Yes, ..RmaParams::default() };
    let put = t.pair.ab.put_with(vec![3; 8], t.at(80), &t.rkey, &sync);
    t.pair.until(|| put.is_done());
    assert_eq!(t.mem.word(80), u64::from_le_bytes([3; 8]));
    let get = t.pair.ab.get(vec![0; 8], t.at(80), &t.rkey);
    t.pair.until(|| get.is_done());
    assert_eq!(get.wait().1, [3; 8]);
    let stats = t.pair.a.stats();
    let count = |protocol| stats.initiated(protocol).msgs;
    assert_eq!((count(ucp::rdm::RmaProtocol::EagerWrite), count(ucp::rdm::RmaProtocol::ShortRead)), (1, 1));
    drop((first, put));

    let source = ucs::config::Source::empty().with("UCX_TLS", "efa").with("UCX_NET_DEVICES", "softefa0");
    for (key, value) in [("UCX_MIN_RDMA_PUT", "0"), ("UCX_EMULATION", "n")] {
        let context = ucp::Context::configured(source.clone().with(key, value)).unwrap();
        let pair = Pair::of(context.worker().unwrap(), context.worker().unwrap());
        let mut own = vec![0u64; 8].into_boxed_slice();
        // SAFETY: the box outlives the registration and is not used meanwhile.
        let mem = unsafe { pair.b.mem_map(own.as_mut_ptr().cast(), 64, Access::all()) }.unwrap();
        let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
        assert_eq!(pair.ab.protocols().rma_method_for(&rkey, RmaOp::Put, 8), RmaMethod::Rdma, "{key}");
    }
}

#[test]
fn device_rma_needs_no_peer_progress() {
    let t = Target::alloc("efa");
    assert_eq!(t.pair.ab.protocols().rma_method(&t.rkey), RmaMethod::Rdma);
    let of = |op| t.pair.ab.protocols().atomic_method(&t.rkey, op, ucp::Datatype::Uint64);
    assert_eq!(of(AtomicOp::Sum), Some(RmaMethod::Emulated));
    // Needs the handshake.
    let first = t.pair.ab.put(vec![1; 8], t.at(0), &t.rkey);
    t.pair.until(|| first.is_done());
    drop(first);
    t.pair.settle();
    // From here on nobody progresses the target.
    let (sent, long) = (bytes(7, 5000), bytes(8, 300_000));
    t.pair.ab.put_blocking(&sent, t.at(0), &t.rkey).unwrap();
    t.pair.ab.put_blocking(&long, t.at(8192), &t.rkey).unwrap();
    let sync = RmaParams { sync: DeliveryComplete::Yes, ..RmaParams::default() };
    t.pair.ab.put_with(vec![3; 8], t.at(400_000), &t.rkey, &sync).wait().0.unwrap();
    assert_eq!(t.mem.word(400_000), u64::from_le_bytes([3; 8]));
    let mut got = vec![0; 5000];
    t.pair.ab.fence();
    t.pair.ab.get_blocking(&mut got, t.at(0), &t.rkey).unwrap();
    assert!(got == sent);
    t.pair.ab.flush().wait().unwrap();
    t.holds(8192, &long);
    let mut got = vec![0; 300_000];
    t.pair.ab.get_blocking(&mut got, t.at(8192), &t.rkey).unwrap();
    assert!(got == long);
    let stats = t.pair.a.stats();
    let row = |row| (stats.initiated(row).msgs, stats.initiated(row).bytes);
    assert_eq!(row(ucp::rdm::RmaProtocol::DirectWrite), (4, 305_016));
    assert_eq!(row(ucp::rdm::RmaProtocol::DirectRead), (2, 305_000));
    assert!(t.pair.b.stats().served.iter().all(|served| served.msgs == 0));
    // An unknown key fails the operation, if it was a long one, and nothing else.
    let Target { pair, mem, rkey, .. } = t;
    let at = mem.addr();
    drop(mem);
    let (result, _) = pair.ab.put(long, at, &rkey).wait();
    assert_eq!(result, Err(Error::RemoteAccess(pair.ab.peer())));
    assert_eq!(pair.ab.peer_view().and_then(|peer| peer.fault), None);
}

/// The next flush reports a refused write that nobody waits for, once. Everything else to this peer goes on.
#[test]
fn a_refused_write_is_reported_by_the_flush() {
    for (tls, len) in [("efa", 8), ("efa", 300_000), ("self", 8), ("self", 300_000)] {
        let t = Target::alloc(tls);
        t.pair.meet();
        let (pair, at) = (&t.pair, t.mem.addr());
        let dropped = pair.b.mem_alloc(LEN, Access::all()).unwrap();
        let stale = pair.ab.unpack_rkey(&dropped.pack_rkey()).unwrap();
        let stale_at = dropped.addr();
        drop(dropped);
        let refused = Err(Error::RemoteAccess(pair.ab.peer()));
        let sent = bytes(3, len);
        for of_worker in [false, true] {
            // SAFETY: `sent` is unchanged until the flush has ended.
            let put = unsafe { pair.ab.put_nbi(sent.as_ptr(), len, stale_at, &stale) };
            let flush = || if of_worker { pair.a.flush() } else { pair.ab.flush() };
            let (first, what) = (flush(), format!("{tls}, {len} bytes, of the worker: {of_worker}"));
            pair.until(|| first.is_done());
            // A transport that checks within the call says so at once.
            assert!(put == refused || (put == Ok(()) && first.wait() == refused), "{what}: {put:?}");
            let second = flush();
            pair.until(|| second.is_done());
            assert_eq!(second.wait(), Ok(()), "reported once: {what}");
            assert_eq!(pair.ab.peer_view().and_then(|peer| peer.fault), None, "{what}");
            let put = pair.ab.put(sent.clone(), at, &t.rkey);
            pair.until(|| put.is_done());
            assert_eq!(put.wait().0, Ok(()), "{what}");
            t.flush();
            t.holds(0, &sent);
        }
        let again = pair.a.connect(&pair.b.address(), Default::default()).unwrap();
        let (send, recv) =
            (again.tag_send(1, vec![7; 9]), pair.b.tag_recv(1, ucp::TAG_MASK_FULL, vec![0; 9]));
        pair.until(|| send.is_done() && recv.is_done());
        assert_eq!((send.wait().0, recv.wait().1), (Ok(()), vec![7; 9]), "{tls}");
    }
}

/// An atomic that fits no packet names the limit, and the limit can be asked for.
#[test]
fn an_atomic_longer_than_a_packet_names_the_limit() {
    for t in [Target::packets("efa"), Target::packets("posix")] {
        for op in [AtomicOp::Sum, AtomicOp::CompareSwap] {
            let is_fetching = op == AtomicOp::CompareSwap;
            let max = t.pair.ab.protocols().max_atomic(op, is_fetching) / 8;
            assert!(max > 100, "{max}");
            let mut old = vec![0u64; max + 1000];
            for count in [max, max + 1000] {
                let ones = vec![1u64; count];
                let params = ucp::AtomicParams {
                    op,
                    ty: u64::TYPE,
                    count,
                    operand: ones.as_ptr().cast(),
                    compare: ones.as_ptr().cast(),
                    result: if is_fetching { old.as_mut_ptr().cast() } else { std::ptr::null_mut() },
                    sync: DeliveryComplete::No,
                    done: None,
                    mem: None,
                };
                // SAFETY: the lists outlive the operation, which has ended below.
                let started = unsafe { t.pair.ab.atomic_raw(t.at(0), &t.rkey, &params) };
                let ended = started.and_then(|started| match started {
                    OpStatus::Done(_) => Ok(()),
                    OpStatus::InProgress(id) => {
                        let mut ended = None;
                        t.pair.until(|| {
                            ended = t.pair.a.test(id);
                            ended.is_some()
                        });
                        ended.unwrap().map(drop)
                    }
                });
                match ended {
                    Ok(()) => assert_eq!(count, max),
                    Err(Error::AtomicTooLong { len, max }) => {
                        assert!(len == count * 8 && max < len && count > max / 8, "{len} {max}");
                    }
                    Err(other) => panic!("{count} elements: {other}"),
                }
            }
            t.flush();
        }
    }
}

#[test]
fn too_many_pieces_name_the_limit() {
    let t = Target::packets("efa");
    let piece = |n: usize| RemoteIov { addr: t.at(n * 8), len: 8, rkey: &t.rkey };
    let remote: Vec<RemoteIov<'_>> = (0..5).map(piece).collect();
    let mut sent = [1u8; 40];
    let local = [Iov { addr: sent.as_mut_ptr(), len: 40 }];
    // SAFETY: nothing is started.
    let refused = unsafe { t.pair.ab.put_iov_raw(&local, &remote, &RmaParams::default()) };
    assert!(matches!(refused, Err(Error::TooManyPieces { max: 4 })));
}

/// Lists of local pieces that are longer than one operation's are several operations behind one request.
#[test]
fn many_local_pieces_are_one_operation() {
    const PIECES: usize = 23;
    const LEN: usize = 700;
    unsafe fn count(arg: *mut (), _: ucp::RequestId, ended: Result<ucp::RecvStatus, Error>) {
        // SAFETY: the test passes a counter that outlives the operation.
        let calls = unsafe { &*arg.cast::<std::cell::Cell<usize>>() };
        ended.unwrap();
        calls.set(calls.get() + 1);
    }
    for t in [Target::alloc("posix"), Target::alloc("efa"), Target::packets("efa")] {
        let calls = std::cell::Cell::new(0_usize);
        let done = Some(ucp::Callback::new(count, (&raw const calls).cast_mut().cast()));
        let remote = RemoteIov { addr: t.at(0), len: PIECES * LEN, rkey: &t.rkey };
        let mut sent: Vec<u8> = (0..PIECES * LEN * 2).map(|at| (at % 251) as u8).collect();
        let mut got = vec![0u8; PIECES * LEN * 2];
        let pieces = |of: &mut [u8]| -> Vec<Iov> {
            of.chunks_mut(LEN * 2).map(|piece| Iov { addr: piece.as_mut_ptr(), len: LEN }).collect()
        };
        let (from, to) = (pieces(&mut sent), pieces(&mut got));
        let mut expected_calls = 0;
        for put in [true, false] {
            let params = RmaParams { done, ..RmaParams::default() };
            let started = match put {
                true => {
                    // SAFETY: the pieces outlive the operation, which is waited for.
                    let started = unsafe { t.pair.ab.put_iov_raw(&from, &[remote], &params) };
                    started.map(|started| match started {
                        ucp::OpStatus::Done(()) => None,
                        ucp::OpStatus::InProgress(id) => Some(id),
                    })
                }
                false => {
                    // SAFETY: as above.
                    let started = unsafe { t.pair.ab.get_iov_raw(&to, &[remote], &params) };
                    started.map(|started| match started {
                        ucp::OpStatus::Done(status) => {
                            assert_eq!(status.len, PIECES * LEN);
                            None
                        }
                        ucp::OpStatus::InProgress(id) => Some(id),
                    })
                }
            };
            if let Some(id) = started.unwrap() {
                expected_calls += 1;
                t.pair.until(|| calls.get() == expected_calls);
                t.pair.a.free(id);
            }
            t.flush();
            assert_eq!(calls.get(), expected_calls, "one call for all parts");
        }
        for (sent, got) in sent.chunks(LEN * 2).zip(got.chunks(LEN * 2)) {
            assert!(sent[..LEN] == got[..LEN] && got[LEN..].iter().all(|byte| *byte == 0));
        }
        let short = RemoteIov { len: 5, ..remote };
        // SAFETY: nothing is started.
        let refused = unsafe { t.pair.ab.put_iov_raw(&from, &[short], &RmaParams::default()) };
        assert!(matches!(refused, Err(Error::Invalid)));
    }
}

/// Lists of up to nine pieces here and four there, of odd lengths, with data for the target or without it.
#[test]
fn many_local_pieces_to_and_from_several_there() {
    for t in [Target::alloc("posix"), Target::packets("posix"), Target::alloc("efa"), Target::packets("efa")]
    {
        for (here, cq_data) in (1..=9_usize).flat_map(|n| [(n, None), (n, Some(n as u64))]) {
            let lens: Vec<usize> = (0..here).map(|n| 1 + 2 * n * n * n).collect();
            let total: usize = lens.iter().sum();
            let mut sent = bytes(here as u64, 2 * total);
            let mut got = vec![0_u8; 2 * total];
            // Between two pieces there is as much memory that is none of them.
            let cut = |of: &mut [u8]| -> Vec<Iov> {
                let mut at = of.as_mut_ptr();
                let piece = |len: &usize| {
                    let piece = Iov { addr: at, len: *len };
                    at = at.wrapping_add(2 * len);
                    piece
                };
                lens.iter().map(piece).collect()
            };
            let (from, to) = (cut(&mut sent), cut(&mut got));
            let there = here.min(4);
            let remote: Vec<RemoteIov<'_>> = (0..there)
                .map(|n| {
                    let len = if n + 1 < there { 1 } else { total + 1 - there };
                    RemoteIov { addr: t.at(10 * n), len, rkey: &t.rkey }
                })
                .collect();
            let params = RmaParams { cq_data, sync: DeliveryComplete::Yes, ..RmaParams::default() };
            let finish = |id| {
                let mut end = None;
                t.pair.until(|| {
                    end = t.pair.a.test(id);
                    end.is_some()
                });
                end.unwrap().unwrap();
            };
            // SAFETY: the pieces outlive the operation, which is waited for.
            match unsafe { t.pair.ab.put_iov_raw(&from, &remote, &params) }.unwrap() {
                OpStatus::Done(()) => {}
                OpStatus::InProgress(id) => finish(id),
            }
            if cq_data.is_some() {
                t.pair.until(|| t.pair.b.take_remote_write().is_some_and(|write| write.len == total as u64));
            }
            // SAFETY: as above; the pieces are not read before.
            match unsafe { t.pair.ab.get_iov_raw(&to, &remote, &RmaParams::default()) }.unwrap() {
                OpStatus::Done(_) => {}
                OpStatus::InProgress(id) => finish(id),
            }
            let mut at = 0;
            for len in &lens {
                assert_eq!(sent[at..at + len], got[at..at + len]);
                assert!(got[at + len..at + 2 * len].iter().all(|byte| *byte == 0), "memory of no piece");
                at += 2 * len;
            }
        }
    }
}

#[test]
fn key_may_outlive_its_memory() {
    for tls in ["posix", "self", "efa"] {
        let t = Target::alloc(tls);
        let Target { pair, mem, rkey, .. } = t;
        let at = mem.addr();
        drop(mem);
        let by_packets = pair.ab.put(vec![1; 8], at, &Rkey::from_key(rkey_of(&rkey)));
        by_packets.detach();
        // The first packet on `posix` waits for the fd server.
        pair.until(|| pair.b.stats().rare.bad_access > 0);
        pair.settle();
        assert_eq!(pair.b.stats().rare.bad_access, 1, "{tls}");
    }
}

/// The packet key, from the debug text: programs do not need it.
fn rkey_of(rkey: &Rkey) -> u64 {
    let text = format!("{rkey:?}");
    let hex = text.split("key: 0x").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    u64::from_str_radix(hex, 16).unwrap()
}
