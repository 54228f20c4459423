//! Operations of a worker on memory of its own context, by a key that is a number: within the call, and in
//! order with those by packets.

// Blocks of calls that share one argument of safety.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use crate::common::{LockedWorkers, is_shared, shared_worker};
use ucp::mt::ThreadMode;
use ucp::rdm::amo::Form;
use ucp::select::DeliveryComplete;
use ucp::{
    Access, AtomicOp, AtomicParams, Context, Datatype, Ep, EpParams, Error, Mem, OpStatus, RecvStatus, Rkey,
    RmaParams, TAG_MASK_FULL, Worker, atomic_self_raw, get_self_raw, put_self_raw,
};
use ucs::config::Source;

struct Own {
    worker: Worker,
    ep: Ep,
    mem: Mem,
    key: Rkey,
    bytes: Box<[u64; 64]>,
    /// The shared worker around it, if threads may share it.
    _shared: Option<LockedWorkers>,
}

impl Own {
    /// A worker that has carried a message to itself, and registered memory of it.
    fn on(tls: &str) -> Own {
        let (is_shared, tls) = is_shared(tls);
        let context = Context::configured(Source::empty().with("UCX_TLS", tls)).unwrap();
        let (worker, shared) = match is_shared {
            false => (context.worker().unwrap(), None),
            true => {
                let (worker, shared) = shared_worker(&context, ThreadMode::Multi);
                (worker, Some(LockedWorkers::new(vec![shared])))
            }
        };
        let ep = worker.connect(&worker.address(), EpParams::default()).unwrap();
        ep.tag_send_blocking(0, b"hello").unwrap();
        worker.tag_recv_blocking(0, TAG_MASK_FULL, &mut [0; 5]).unwrap();
        while worker.progress() > 0 {}
        let mut bytes = Box::new([0u64; 64]);
        // SAFETY: the memory is dropped before its bytes, and no reference to them is used meanwhile.
        let mem = unsafe { context.mem_map(bytes.as_mut_ptr().cast(), 512, Access::all()) }.unwrap();
        let key = Rkey::from_libfabric_key(&ep, mem.libfabric_key());
        Own { worker, ep, mem, key, bytes, _shared: shared }
    }

    fn packets(&self) -> u64 {
        self.worker.stats().tx_pkts.iter().sum()
    }

    fn put(&self, from: &[u8], at: u64, key: &Rkey) -> Result<OpStatus<()>, Error> {
        let params = RmaParams { sync: DeliveryComplete::Yes, ..RmaParams::default() };
        // SAFETY: the tests keep the bytes until the operation has ended.
        unsafe { self.ep.put_raw(from.as_ptr(), from.len(), at, key, &params) }
    }

    fn add(&self, at: u64, with: &[u64], old: &mut [u64]) -> Result<OpStatus<RecvStatus>, Error> {
        let params = AtomicParams {
            op: AtomicOp::Sum,
            ty: Datatype::Uint64,
            count: with.len(),
            operand: with.as_ptr().cast(),
            compare: std::ptr::null(),
            result: old.as_mut_ptr().cast(),
            sync: DeliveryComplete::Yes,
            done: None,
            mem: None,
        };
        // SAFETY: as in `put`.
        unsafe { self.ep.atomic_raw(at, &self.key, &params) }
    }

    /// The word at this index, as it is now.
    fn word(&self, at: usize) -> u64 {
        // SAFETY: inside the memory, which nobody else uses.
        unsafe { self.mem.as_ptr().cast::<u64>().add(at).read_volatile() }
    }
}

fn done<T>(started: Result<OpStatus<T>, Error>) -> bool {
    matches!(started, Ok(OpStatus::Done(_)))
}

fn operations_end_within_the_call(tls: &str) {
    let own = Own::on(tls);
    let (before, base) = (own.packets(), own.mem.addr());
    assert!(done(own.put(&7u64.to_ne_bytes(), base, &own.key)));
    assert!(done(own.put(&[9; 100], base + 64, &own.key)));
    let mut old = [0];
    assert!(done(own.add(base, &[5], &mut old)));
    assert_eq!((old, own.word(0), own.word(8)), ([7], 12, 0x0909_0909_0909_0909));
    let get = own.ep.get(vec![0u8; 8], base, &own.key);
    assert!(get.is_done());
    assert_eq!(get.wait().1, 12u64.to_ne_bytes());
    assert_eq!(own.ep.atomic_compare_blocking(AtomicOp::CompareSwap, 12u64, 40, base, &own.key), Ok(12));
    assert_eq!(own.ep.atomic_fetch_blocking(AtomicOp::Read, 0u64, base, &own.key), Ok(40));
    assert_eq!(own.packets(), before);
    // The source may be memory that is written.
    // SAFETY: inside the memory.
    let inside = unsafe { std::slice::from_raw_parts(own.mem.as_ptr(), 100) };
    assert!(done(own.put(inside, base + 8, &own.key)));
    assert_eq!((own.word(1), own.word(9)), (40, 0x0909_0909_0909_0909));
}

fn what_memory_does_not_permit_is_refused(tls: &str) {
    let own = Own::on(tls);
    let base = own.mem.addr();
    let word = 1u64.to_ne_bytes();
    let wrong = Rkey::from_libfabric_key(&own.ep, own.mem.libfabric_key() ^ 1 << 20);
    for (at, key) in [(base + 512, &own.key), (base - 8, &own.key), (base + 505, &own.key), (base, &wrong)] {
        let Ok(OpStatus::InProgress(id)) = own.put(&word, at, key) else { panic!("packets tell the error") };
        assert_eq!(own.worker.wait_for(id), Err(Error::RemoteAccess(own.ep.peer())));
    }
    // An operation that does not exist, and elements across the end.
    assert!(own.ep.atomic_fetch_blocking(AtomicOp::Diff, 1u64, base, &own.key).is_err());
    assert!(own.ep.atomic_fetch_blocking(AtomicOp::Sum, 1u64, base + 508, &own.key).is_err());
    let Own { worker, ep, mem, key, bytes, .. } = own;
    drop(mem);
    let put = ep.put_with(
        word.to_vec(),
        base,
        &key,
        &RmaParams { sync: DeliveryComplete::Yes, ..RmaParams::default() },
    );
    assert_eq!(put.wait().0, Err(Error::RemoteAccess(ep.peer())));
    assert!(bytes.iter().all(|word| *word == 0));
    drop(worker);
}

fn order_with_operations_by_packets_is_kept(tls: &str) {
    let own = Own::on(tls);
    let base = own.mem.addr();
    // More elements than are executed within the call.
    let (mut first, mut second) = ([0u64; 9], [0u64; 1]);
    let Ok(OpStatus::InProgress(long)) = own.add(base, &[1; 9], &mut first) else { panic!("in packets") };
    let Ok(OpStatus::InProgress(short)) = own.add(base, &[10], &mut second) else {
        panic!("behind the first")
    };
    own.worker.wait_for(long).unwrap();
    own.worker.wait_for(short).unwrap();
    assert_eq!((first, second, own.word(0)), ([0; 9], [1], 11));
    assert!(done(own.add(base, &[10], &mut second)), "nothing is under way");
}

fn counted_memory_is_counted(tls: &str) {
    let own = Own::on(tls);
    let mut counted = [0u64; 8];
    let params = ucp::MapParams::new(Access::all()).counted();
    let context = Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap();
    let worker = context.worker().unwrap();
    let ep = worker.connect(&worker.address(), EpParams::default()).unwrap();
    ep.tag_send_blocking(0, b"hello").unwrap();
    worker.tag_recv_blocking(0, TAG_MASK_FULL, &mut [0; 5]).unwrap();
    // SAFETY: the memory is dropped before its bytes, and no reference to them is used meanwhile.
    let mem = unsafe { context.mem_map_with(counted.as_mut_ptr().cast(), 64, params) }.unwrap();
    let key = Rkey::from_libfabric_key(&ep, mem.libfabric_key());
    let put = ep.put_with(
        vec![1u8; 8],
        mem.addr(),
        &key,
        &RmaParams { sync: DeliveryComplete::Yes, ..Default::default() },
    );
    assert_eq!(put.wait().0, Ok(()));
    assert_eq!(mem.served().writes, 1);
    // Memory of another context is not the worker's own, whatever the number.
    let foreign = Rkey::from_libfabric_key(&ep, own.mem.libfabric_key());
    let get = ep.get(vec![0u8; 8], own.mem.addr(), &foreign);
    assert_eq!(get.wait().0.map(|status| status.len), Err(Error::RemoteAccess(ep.peer())));
}

fn calls_that_take_the_number_do_what_the_others_do_or_nothing(tls: &str) {
    let own = Own::on(tls);
    let (base, key) = (own.mem.addr(), own.mem.libfabric_key());
    let other = Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap().worker().unwrap();
    let theirs = other.connect(&own.worker.address(), EpParams::default()).unwrap();
    // SAFETY: the bytes are locals.
    let put = |ep: &Ep, at, key| unsafe { put_self_raw(ep, [7u8; 8].as_ptr(), 8, at, key) };
    assert!(put(&own.ep, base, key) && own.word(0) == 0x0707_0707_0707_0707);
    assert!(!put(&own.ep, base + 8, key ^ 1 << 20) && !put(&own.ep, base + 505, key));
    assert!(!put(&theirs, base + 8, key), "another worker's memory");
    let mut got = [0u8; 16];
    // SAFETY: as above.
    let mut get = |at| unsafe { get_self_raw(&own.ep, got.as_mut_ptr(), 16, at, key) };
    assert!(get(base) && !get(base + 504));
    assert_eq!(got, [7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
    let run = |op, ty, form, (operand, compare): (u64, u64), at| {
        let mut old = 0u64;
        let operands = [(&raw const operand).cast(), (&raw const compare).cast()];
        // SAFETY: as above.
        unsafe { atomic_self_raw(&own.ep, (op, ty, form), operands, (&raw mut old).cast(), at, key) }
            .then_some(old)
    };
    let (word, half) = (Datatype::Uint64, Datatype::Int32);
    assert_eq!(run(AtomicOp::Write, word, Form::Fetch, (5, 0), base + 16), Some(0));
    assert_eq!(run(AtomicOp::Sum, half, Form::Fetch, (u64::MAX, 0), base + 16), Some(5));
    assert_eq!(run(AtomicOp::Read, word, Form::Fetch, (9, 0), base + 16), Some(4));
    assert_eq!(run(AtomicOp::CompareSwap, word, Form::Compare, (8, 3), base + 16), Some(4));
    assert_eq!(run(AtomicOp::CompareSwap, word, Form::Compare, (8, 4), base + 16), Some(4));
    for (op, ty, form, at) in [
        (AtomicOp::Sum, Datatype::Double, Form::Fetch, 16),
        (AtomicOp::Max, word, Form::Fetch, 16),
        (AtomicOp::Sum, word, Form::Fetch, 20),
        (AtomicOp::Sum, half, Form::Fetch, 18),
        (AtomicOp::Sum, word, Form::Fetch, 512),
    ] {
        assert_eq!(run(op, ty, form, (1, 0), base + at), None, "{op:?} {ty:?} at {at}");
    }
    assert_eq!((own.word(1), own.word(2), own.word(3)), (0, 8, 0));
}

on! {
    [operations_end_within_the_call what_memory_does_not_permit_is_refused order_with_operations_by_packets_is_kept
     counted_memory_is_counted calls_that_take_the_number_do_what_the_others_do_or_nothing]
    plain: "posix",
    shared: "shared posix",
}
