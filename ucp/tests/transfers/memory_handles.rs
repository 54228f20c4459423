//! Operations whose parameters name the registered memory that holds their data.

// Blocks of calls that share one argument of safety.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{Pair, bytes};
use ucp::{
    Access, AmParams, AmProto, AtomicIovParams, AtomicOp, AtomicParams, Datatype, Error, IoBufMut, Iov,
    Match, Mem, MultiRecvParams, OpParams, OpStatus, RemoteIov, RequestId, Rkey, RmaParams, SendParams,
    StreamRecvMode, StridedIov, TAG_MASK_FULL,
};

const LEN: usize = 1 << 20;
const TAG: Match = Match::tagged(1, TAG_MASK_FULL);

fn send_params(mem: &Mem) -> SendParams<'_> {
    SendParams { tag: Some(1), mem: Some(mem), ..SendParams::default() }
}

fn op_params(mem: &Mem) -> OpParams<'_> {
    OpParams { mem: Some(mem), ..OpParams::default() }
}

fn rma_params(mem: &Mem) -> RmaParams<'_> {
    RmaParams { mem: Some(mem), ..RmaParams::default() }
}

/// An addition to bytes, whose old values go to `result`.
fn atomic_params(mem: &Mem, result: *mut u8, count: usize) -> AtomicParams<'_> {
    AtomicParams {
        op: AtomicOp::Sum,
        ty: Datatype::Uint8,
        count,
        operand: mem.as_ptr(),
        compare: std::ptr::null(),
        result,
        sync: ucp::select::DeliveryComplete::No,
        done: None,
        mem: Some(mem),
    }
}

/// The result of the same, in pieces.
fn atomic_iov_params<'a>(mem: &'a Mem, operand: &'a [Iov], result: &'a [Iov]) -> AtomicIovParams<'a> {
    AtomicIovParams {
        op: AtomicOp::Sum,
        ty: Datatype::Uint8,
        operand,
        compare: &[],
        result: Some(result),
        sync: ucp::select::DeliveryComplete::No,
        done: None,
        mem: Some(mem),
    }
}

/// Memory that the test keeps.
struct Borrowed(*mut u8, usize);

// SAFETY: the memory of the tests outlives the receives, and the refused ranges are not accessed.
unsafe impl IoBufMut for Borrowed {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.0, self.1)
    }

    unsafe fn set_filled(&mut self, _len: usize) {}
}

/// The operation, if it runs on.
fn running<T>(started: Result<OpStatus<T>, Error>) -> Option<RequestId> {
    match started.unwrap() {
        OpStatus::Done(_) => None,
        OpStatus::InProgress(id) => Some(id),
    }
}

fn until_ended(pair: &Pair, ids: &[Option<RequestId>]) {
    let mut running: Vec<RequestId> = ids.iter().copied().flatten().collect();
    pair.until(|| {
        running.retain(|id| id.status().is_some_and(|status| status == ucs::Status::InProgress));
        running.is_empty()
    });
    for id in ids.iter().copied().flatten() {
        assert_eq!(id.status(), Some(ucs::Status::Ok));
        pair.a.free(id);
        pair.b.free(id);
    }
}

fn named_memory_is_not_registered_again(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let all = Access::READ | Access::WRITE;
    let (from, to) = (pair.a.mem_alloc(LEN, all).unwrap(), pair.b.mem_alloc(LEN, all).unwrap());
    let rkey = pair.ab.unpack_rkey(&to.pack_rkey()).unwrap();
    let made = || (pair.a.diagnostics().registrations_made(), pair.b.diagnostics().registrations_made());
    let before = made();
    for n in 0..3 {
        let sent = bytes(n, LEN);
        from.write(0, &sent);
        let ids = match n {
            // SAFETY: both allocations outlive the operations, which end below.
            0 => unsafe {
                let received = pair.b.recv_raw(to.as_ptr(), LEN, TAG, &op_params(&to));
                [running(received), running(pair.ab.send_raw(from.as_ptr(), LEN, &send_params(&from)))]
            },
            // SAFETY: as above.
            1 => unsafe {
                let params = rma_params(&from);
                [running(pair.ab.put_raw(from.as_ptr(), LEN, to.addr(), &rkey, &params)), None]
            },
            // SAFETY: as above.
            _ => unsafe {
                let received =
                    pair.ba.stream_recv_raw(to.as_ptr(), LEN, StreamRecvMode::WaitAll, &op_params(&to));
                let sent = pair.ab.stream_send_raw(from.as_ptr(), LEN, &op_params(&from));
                [Some(received.unwrap()), running(sent)]
            },
        };
        until_ended(&pair, &ids);
        let flush = pair.a.flush();
        pair.until(|| flush.is_done());
        flush.wait().unwrap();
        let mut got = vec![0; LEN];
        to.read(0, &mut got);
        assert!(got == sent, "operation {n}");
    }
    // SAFETY: as above.
    let got = unsafe { pair.ab.get_raw(from.as_ptr(), LEN, to.addr(), &rkey, &rma_params(&from)) };
    until_ended(&pair, &[running(got)]);
    let params = MultiRecvParams { min_room: 1, mem: Some(&to), watcher: None };
    let mut many = pair.b.recv_multi(TAG, Borrowed(to.as_ptr(), LEN), params).map_err(|(e, _)| e).unwrap();
    // SAFETY: as above.
    let sent = unsafe { pair.ab.send_raw(from.as_ptr(), LEN, &send_params(&from)) };
    until_ended(&pair, &[running(sent)]);
    pair.until(|| many.try_next().is_some());
    assert_eq!(made(), before, "nothing was registered for the operations");
}

/// Old values go to the memory that atomic operations name.
fn named_memory_receives_old_values(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let (own, target) =
        (pair.a.mem_alloc(64, Access::empty()).unwrap(), pair.b.mem_alloc(64, Access::all()).unwrap());
    let rkey = pair.ab.unpack_rkey(&target.pack_rkey()).unwrap();
    own.write(0, &[1; 8]);
    target.write(0, &[7; 8]);
    let room = own.as_ptr().wrapping_add(own.len() - 8);
    // SAFETY: both allocations outlive the operations, which end below.
    let first = unsafe { pair.ab.atomic_raw(target.addr(), &rkey, &atomic_params(&own, room, 8)) };
    until_ended(&pair, &[running(first)]);
    let mut old = [0; 8];
    own.read(own.len() - 8, &mut old);
    assert_eq!(old, [7; 8]);
    let (operand, result) = ([Iov { addr: own.as_ptr(), len: 8 }], [Iov { addr: room, len: 8 }]);
    let remote = [RemoteIov { addr: target.addr(), len: 8, rkey: &rkey }];
    // SAFETY: as above.
    let second = unsafe { pair.ab.atomic_iov_raw(&remote, &atomic_iov_params(&own, &operand, &result)) };
    until_ended(&pair, &[running(second)]);
    own.read(own.len() - 8, &mut old);
    assert_eq!(old, [8; 8]);
}

fn data_outside_of_named_memory_is_refused(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let mem = pair.a.mem_alloc(4096, Access::READ | Access::WRITE).unwrap();
    let len = mem.len();
    let target = pair.b.mem_alloc(len, Access::READ | Access::WRITE).unwrap();
    let rkey = pair.ab.unpack_rkey(&target.pack_rkey()).unwrap();
    let (send, op, rma) = (send_params(&mem), op_params(&mem), rma_params(&mem));
    let am = AmParams { mem: Some(&mem), ..AmParams::default() };
    let requests = pair.a.diagnostics().requests();
    // One byte before, behind, an address that wraps, and an empty range beyond the end.
    let start = mem.as_ptr();
    let ranges = [
        (start.wrapping_sub(1), 2),
        (start.wrapping_add(len - 1), 2),
        (start, usize::MAX),
        (start.wrapping_add(len + 1), 0),
    ];
    for (at, n) in ranges {
        let whole = [Iov { addr: start, len: 1 }, Iov { addr: at, len: n }];
        let blocks = StridedIov { addr: start, len: 1, stride: 4096, count: 3 };
        let (ep, worker, remote) = (&pair.ab, &pair.a, target.addr());
        // SAFETY: each call refuses the memory before it accesses any.
        let refused = unsafe {
            [
                ep.send_raw(at, n, &send).err(),
                ep.send_layout_raw(&whole, &send).err(),
                ep.am_send_raw(1, b"", at, n, &am).err(),
                ep.am_send_layout_raw(1, b"", &whole, &am).err(),
                ep.stream_send_raw(at, n, &op).err(),
                ep.stream_send_layout_raw(&whole, &op).err(),
                ep.stream_recv_raw(at, n, StreamRecvMode::Some, &op).err(),
                ep.stream_recv_layout_raw(&whole, StreamRecvMode::Some, &op).err(),
                worker.recv_raw(at, n, TAG, &op).err(),
                worker.recv_layout_raw(&whole, TAG, &op).err(),
                ep.put_raw(at, n, remote, &rkey, &rma).err(),
                ep.put_iov_raw(&whole, &[], &rma).err(),
                ep.get_raw(at, n, remote, &rkey, &rma).err(),
                ep.get_iov_raw(&whole, &[], &rma).err(),
                ep.atomic_raw(remote, &rkey, &atomic_params(&mem, at, n)).err(),
                ep.atomic_iov_raw(&[], &atomic_iov_params(&mem, &[], &whole)).err(),
            ]
        };
        // SAFETY: as above.
        let strided = unsafe {
            [ep.send_layout_raw(blocks, &send).err(), worker.recv_layout_raw(blocks, TAG, &op).err()]
        };
        assert_eq!(strided, [Some(Error::OutsideMem { len: 2 * 4096 + 1, mem: len }); 2]);
        assert_eq!(refused, [Some(Error::OutsideMem { len: n, mem: len }); 16]);
        let params = MultiRecvParams { mem: Some(&mem), ..MultiRecvParams::from(1) };
        let multi = worker.recv_multi(TAG, Borrowed(at, n), params).err().map(|(error, _)| error);
        assert_eq!(multi, Some(Error::OutsideMem { len: n, mem: len }));
    }
    assert_eq!(pair.a.diagnostics().requests(), requests, "nothing was started");
    assert_eq!(Error::OutsideMem { len: 2, mem: len }.status(), ucs::Status::InvalidParam);
}

/// A message that is refused for its memory is received by the next call, or dropped: its send ends.
fn a_refused_message_stays(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    pair.b.set_am_handler(5, move |message| to.borrow_mut().push(message));
    let mem = pair.b.mem_alloc(LEN, Access::READ | Access::WRITE).unwrap();
    let (at, op) = (mem.as_ptr(), op_params(&mem));
    let outside = Err(Error::OutsideMem { len: LEN, mem: mem.len() });
    let pieces = [Iov { addr: at.wrapping_add(mem.len()), len: LEN }];
    for (n, proto) in [AmProto::Rendezvous, AmProto::Rendezvous, AmProto::Eager].into_iter().enumerate() {
        let len = if proto == AmProto::Eager { 5000 } else { LEN };
        let sent = bytes(n as u64, len);
        let send = pair.ab.am_send_with(proto, 5, b"header", sent.clone());
        pair.until(|| !kept.borrow().is_empty());
        let mut message = kept.borrow_mut().pop().unwrap();
        // SAFETY: the memory outlives the operations; what is outside of it is not accessed.
        let refused = unsafe {
            [
                message.recv_raw(at.wrapping_add(mem.len()), LEN, &op),
                message.recv_layout_raw(&pieces, &op),
                message.recv_raw(at.wrapping_add(1), mem.len(), &op),
            ]
        };
        assert!(refused.iter().all(|started| started.is_err_and(Error::keeps_message)));
        assert_eq!(refused.map(|started| started.map(drop))[..2], [outside, outside]);
        assert_eq!((message.data_len(), message.header()), (len as u64, &b"header"[..]));
        if n == 1 {
            drop(message);
        } else {
            // SAFETY: as above.
            let received = unsafe { message.recv_raw(at, LEN, &op) };
            until_ended(&pair, &[running(received)]);
            let mut got = vec![0; len];
            mem.read(0, &mut got);
            assert!(got == sent);
            // SAFETY: as above.
            let again = unsafe { message.recv_raw(at, LEN, &op) };
            assert_eq!(again.is_err(), proto == AmProto::Rendezvous, "announced data is received once");
            assert!(!again.is_err_and(Error::keeps_message));
        }
        pair.until(|| send.is_done());
        send.wait().0.unwrap();
    }
    let send = pair.ab.tag_send(1, bytes(9, LEN));
    let mut found = None;
    pair.until(|| {
        found = pair.b.mprobe(TAG);
        found.is_some()
    });
    let mut message = found.unwrap();
    // SAFETY: as above.
    let refused =
        unsafe { [message.recv_raw(pieces[0].addr, LEN, &op), message.recv_layout_raw(&pieces, &op)] };
    assert_eq!(refused.map(|started| started.map(drop)), [outside, outside]);
    // SAFETY: as above.
    let received = unsafe { message.recv_raw(at, LEN, &op) };
    until_ended(&pair, &[running(received)]);
    pair.until(|| send.is_done());
    send.wait().0.unwrap();
    kept.borrow_mut().clear();
}

/// Ends of a put that is acknowledged, a get, and an atomic operation with a result on eight bytes at `at`,
/// by a peer that claims all rights. It also posts an atomic operation, of which it hears no more.
fn outcomes(pair: &Pair, at: u64, key: &Rkey) -> [Result<(), Error>; 3] {
    let sync = RmaParams { sync: ucp::select::DeliveryComplete::Yes, ..RmaParams::default() };
    let put = pair.ab.put_with(vec![1; 8], at, key, &sync);
    let get = pair.ab.get(vec![0; 8], at, key);
    pair.until(|| put.is_done() && get.is_done());
    let _ = pair.ab.atomic_post(AtomicOp::Sum, 1u64, at, key);
    let fetch = pair.ab.atomic_fetch(AtomicOp::Sum, 1u64, at, key);
    pair.until(|| fetch.is_done());
    [put.wait().0, get.wait().0.map(drop), fetch.wait().map(drop)]
}

/// A peer does what the region permits, whatever rights it claims.
fn rights_bound_packets(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let mut own = vec![0u64; 512];
    for bits in 0..=Access::all().bits() {
        let access = Access::from_bits_truncate(bits);
        // SAFETY: the vector outlives the registration, and nobody refers to it meanwhile.
        let registered = unsafe { pair.b.mem_map(own.as_mut_ptr().cast(), 4096, access) }.unwrap();
        let allocated = pair.b.mem_alloc(4096, access).unwrap();
        for mem in [registered, allocated] {
            let refused = Err(Error::RemoteAccess(pair.ab.peer()));
            let needs = [Access::WRITE, Access::READ, Access::ATOMIC];
            let expected = needs.map(|need| if access.contains(need) { Ok(()) } else { refused });
            let before = mem.word(0);
            let ended = outcomes(&pair, mem.addr(), &Rkey::from_key(mem.key()));
            assert_eq!(ended, expected, "{access:?}");
            let may_change = access.intersects(Access::WRITE | Access::ATOMIC);
            assert!(may_change || mem.word(0) == before, "{access:?}");
        }
    }
}

/// A refusal that is told to nobody else ends the next flush with the cause, once: of short puts that the
/// caller may forget at once, of posted atomic operations, of puts that nobody waits for.
fn flushes_report_refused_posts(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let mem = pair.b.mem_alloc(4096, Access::READ).unwrap();
    let (at, key, from) = (mem.addr(), Rkey::from_key(mem.key()), [1u8; 2000]);
    // SAFETY: `from` outlives the operation, which the flush below waits for.
    let put = |len| unsafe { pair.ab.put_nbi(from.as_ptr(), len, at, &key) };
    let posts: [&dyn Fn() -> Result<(), Error>; 4] =
        [&|| put(8), &|| put(2000), &|| pair.ab.put_blocking(&from[..8], at, &key), &|| {
            pair.ab.atomic_post(AtomicOp::Sum, 1u64, at, &key)
        }];
    let refused = Err(Error::RemoteAccess(pair.ab.peer()));
    for (n, post) in posts.iter().enumerate() {
        for of_worker in [false, true] {
            let told = post();
            let ended = [(); 2].map(|()| {
                let flush = if of_worker { pair.a.flush() } else { pair.ab.flush() };
                pair.until(|| flush.is_done());
                flush.wait()
            });
            match told {
                Ok(()) => assert_eq!(ended, [refused, Ok(())], "post {n}, of the worker {of_worker}"),
                Err(_) => assert_eq!((told, ended), (refused, [Ok(()); 2]), "post {n}"),
            }
        }
    }
}

static READ_ONLY: [u64; 2048] = [7; 2048];

/// Memory whose pages may not be written, registered for everything: peers read it, and write nothing.
fn read_only_pages(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let at = READ_ONLY.as_ptr().cast_mut().cast();
    // SAFETY: it is there as long as the program; whether it can be written is what this test asks.
    let mem = unsafe { pair.b.mem_map(at, size_of_val(&READ_ONLY), Access::all()) }.unwrap();
    assert_eq!(mem.access(), Access::READ);
    let keys = [pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap(), Rkey::from_key(mem.key())];
    for key in keys {
        let [put, get, fetched] = outcomes(&pair, mem.addr(), &key);
        assert!(put.is_err() && fetched.is_err(), "{put:?} {fetched:?}");
        assert_eq!(get, Ok(()));
        // Long ones too.
        let sync = RmaParams { sync: ucp::select::DeliveryComplete::Yes, ..RmaParams::default() };
        let put = pair.ab.put_with(vec![1; 16_000], mem.addr(), &key, &sync);
        let get = pair.ab.get(vec![0; 16_000], mem.addr(), &key);
        pair.until(|| put.is_done() && get.is_done());
        assert!(put.wait().0.is_err() && get.wait().0.is_ok());
    }
}

/// A page of no rights, and none at all, registered for everything: peers reach nothing.
fn pages_without_rights(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    // SAFETY: nobody has this page; whether it can be reached is what this test asks.
    let mem = unsafe { pair.b.mem_map(std::ptr::without_provenance_mut(4096), 4096, Access::all()) }.unwrap();
    assert_eq!(mem.access(), Access::empty());
    let ended = outcomes(&pair, mem.addr(), &Rkey::from_key(mem.key()));
    assert!(ended.iter().all(Result::is_err), "{ended:?}");
}

on! {
    [named_memory_is_not_registered_again named_memory_receives_old_values
     data_outside_of_named_memory_is_refused a_refused_message_stays rights_bound_packets read_only_pages pages_without_rights flushes_report_refused_posts]
    to_itself: "self",
    over_posix: "posix",
    over_efa: "efa",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}

#[test]
fn rights_of_a_kernel_copy() {
    rights_bound_packets("posix,cma");
    read_only_pages("posix,cma");
    pages_without_rights("posix,cma");
    flushes_report_refused_posts("posix,cma");
}
