//! Endpoints whose peer is not known when they are made: operations wait for it in order, and end with an
//! error if it never comes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::{LockedWorkers, bytes, context, is_shared, shared_worker, spin, spin_with};
use ucp::mt::ThreadMode;
use ucp::rdm::RecvStatus;
use ucp::select::{DeliveryComplete, Kind};
use ucp::{
    Access, AtomicOp, AtomicParams, Callback, CloseMode, ConnectError, ConnectFailure, Datatype, Ep,
    EpConnector, EpParams, Error, ErrorMode, Match, OpStatus, RequestId, Rkey, SendParams, TAG_MASK_FULL,
    TransferKind, Worker,
};

const GIVEN_UP: Error = Error::ConnectFailed(ConnectFailure::Cancelled);

struct Pair {
    a: Worker,
    b: Worker,
    ep: Ep,
    connector: Option<EpConnector>,
    /// The shared workers around the two, if threads may share them.
    shared: Option<LockedWorkers>,
}

impl Pair {
    fn on(tls: &str) -> Pair {
        let (is_shared, tls) = is_shared(tls);
        let (context, mut kept) = (context(tls), Vec::new());
        let mut open = |mode| match is_shared {
            false => context.worker().unwrap(),
            true => {
                let (plain, shared) = shared_worker(&context, mode);
                kept.push(shared);
                plain
            }
        };
        let (a, b) = (open(ThreadMode::Multi), open(ThreadMode::Serialized));
        let shared = is_shared.then(|| LockedWorkers::new(kept));
        let (ep, connector) = a.connect_later(EpParams::default());
        Pair { a, b, ep, connector: Some(connector), shared }
    }

    fn connect(&mut self) {
        for _ in 0..100 {
            assert_eq!(self.a.progress(), 0, "nothing happens before");
        }
        self.connector.take().unwrap().connect(&self.b.address()).unwrap();
    }

    fn until(&self, mut done: impl FnMut() -> bool) {
        match &self.shared {
            Some(shared) => spin_with(|| _ = shared.progress(), &mut done, &|| format!("{:?}", self.a)),
            None => spin(&[&self.a, &self.b], &mut done),
        }
    }
}

fn messages_wait_and_keep_their_order(tls: &str) {
    let mut pair = Pair::on(tls);
    let lens = [0, 8, 4000, 1 << 20, 1, 70_000];
    let mut sends: Vec<_> = (0..).zip(lens).map(|(n, len)| pair.ep.tag_send(5, bytes(n, len))).collect();
    let sync = pair.ep.tag_send_sync(6, b"sync".to_vec());
    let injected = pair.ep.tag_inject(5, b"copied").unwrap_err();
    let list = pair.ep.send_iov(vec![b"in ".to_vec(), b"pieces".to_vec()], &tagged(5));
    let untagged = pair.ep.msg_send(b"untagged".to_vec());
    let flush = pair.ep.flush();
    assert!(sends.iter().all(|send| !send.is_done()) && !flush.is_done());
    pair.connect();
    // Sent after the peer is known, behind the others.
    let last = pair.ep.tag_send(5, b"last".to_vec());
    let want: Vec<Vec<u8>> = (0..).zip(lens).map(|(n, len)| bytes(n, len)).collect();
    for want in want.into_iter().chain([&b"copied"[..], b"in pieces", b"last"].map(<[u8]>::to_vec)) {
        let recv = pair.b.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(want.len()));
        pair.until(|| recv.is_done());
        let (status, got) = recv.wait();
        assert!(status.is_ok_and(|status| status.len == want.len()) && got == want);
    }
    assert!(!sync.is_done());
    let recv = pair.b.tag_recv(6, TAG_MASK_FULL, Vec::with_capacity(8));
    let other = pair.b.msg_recv(Vec::with_capacity(8));
    pair.until(|| recv.is_done() && other.is_done() && sync.is_done() && flush.is_done() && last.is_done());
    assert_eq!((recv.wait().1, other.wait().1), (b"sync".to_vec(), b"untagged".to_vec()));
    assert_eq!((flush.wait(), sync.wait().0), (Ok(()), Ok(())));
    sends.extend([untagged, last]);
    for (n, send) in sends.into_iter().enumerate() {
        pair.until(|| send.is_done());
        let (result, back) = send.wait();
        assert!(result == Ok(()) && lens.get(n).is_none_or(|len| back.len() == *len));
    }
    assert_eq!((injected.wait().0, list.wait().0), (Ok(()), Ok(())));
    assert_eq!(pair.a.diagnostics().requests(), 0);
}

fn tagged(tag: u64) -> SendParams<'static> {
    SendParams { tag: Some(tag), ..SendParams::default() }
}

/// A receive from the stream waits for its peer, whose bytes have come before.
fn stream_bytes_come_before_their_peer_is_known(tls: &str) {
    let mut pair = Pair::on(tls);
    let back = pair.b.connect(&pair.a.address(), EpParams::default()).unwrap();
    back.stream_send(b"early".to_vec()).detach();
    let flush = back.flush();
    pair.until(|| flush.is_done());
    let first = pair.ep.stream_recv_full(Vec::with_capacity(3));
    let rest = pair.ep.stream_recv_full(Vec::with_capacity(4));
    pair.connector.take().unwrap().connect(&pair.b.address()).unwrap();
    back.stream_send(b"rest".to_vec()).detach();
    pair.until(|| first.is_done() && rest.is_done());
    assert_eq!((first.wait().1, rest.wait().1), (b"ear".to_vec(), b"lyre".to_vec()));
    assert_eq!(pair.a.diagnostics().requests(), 0);
}

fn active_messages_and_streams_wait(tls: &str) {
    let mut pair = Pair::on(tls);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    pair.b.set_am_handler(3, move |message| to.borrow_mut().push(message));
    let lens = [0, 8, 3000, 300_000];
    for len in lens {
        pair.ep.am_send(3, b"header", bytes(7, len)).detach();
        pair.ep.stream_send(bytes(8, len)).detach();
    }
    let answer = pair.ep.stream_recv_full(Vec::with_capacity(6));
    assert_eq!(pair.ep.stream_recv_data().unwrap().as_deref(), None);
    pair.connect();
    pair.until(|| kept.borrow().len() == lens.len());
    for (message, len) in kept.take().into_iter().zip(lens) {
        assert_eq!((message.header(), message.data_len()), (&b"header"[..], len as u64));
        // As if it were sent to a known peer.
        assert_eq!(message.data().is_some(), len <= 3000, "{len}");
        let data = message.recv(Vec::with_capacity(len));
        pair.until(|| data.is_done());
        assert!(data.wait().1 == bytes(7, len));
    }
    let back = pair.b.connect(&pair.a.address(), EpParams::default()).unwrap();
    let stream = back.stream_recv_full(Vec::with_capacity(lens.iter().sum()));
    back.stream_send(b"answer".to_vec()).detach();
    pair.until(|| stream.is_done() && answer.is_done());
    assert!(stream.wait().1 == lens.map(|len| bytes(8, len)).concat());
    assert_eq!(answer.wait().1, b"answer");
    pair.until(|| pair.a.diagnostics().requests() == 0);
}

fn one_sided_operations_wait(tls: &str) {
    let mut pair = Pair::on(tls);
    let mem = pair.b.mem_alloc(1 << 20, Access::all()).unwrap();
    // A key of another endpoint, one of this, and one without a peer: all are good.
    let other = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
    let keys = [
        other.unpack_rkey(&mem.pack_rkey()).unwrap(),
        pair.ep.unpack_rkey(&mem.pack_rkey()).unwrap(),
        Rkey::from_key(mem.key()),
    ];
    let mut puts = Vec::new();
    for (n, rkey) in (0..).zip(&keys) {
        puts.push(pair.ep.put(bytes(n, 50_000), mem.addr() + n * 100_000, rkey));
        pair.ep.atomic_post(AtomicOp::Sum, 5u64, mem.addr() + 500_000, rkey).unwrap();
    }
    pair.ep.fence();
    let get = pair.ep.get(vec![0u8; 50_000].into_boxed_slice(), mem.addr() + 100_000, &keys[0]);
    let fetch = pair.ep.atomic_fetch(AtomicOp::Sum, 1u64, mem.addr() + 500_000, &keys[1]);
    let compare = pair.ep.atomic_compare(AtomicOp::CompareSwap, 0u32, 7, mem.addr() + 600_000, &keys[0]);
    let flush = pair.a.flush();
    drop(keys);
    assert!(!flush.is_done() && !get.is_done());
    pair.connect();
    pair.until(|| flush.is_done() && get.is_done());
    assert_eq!(flush.wait(), Ok(()));
    let (status, got) = get.wait();
    assert!(status.is_ok_and(|status| status.len == 50_000) && got[..] == bytes(1, 50_000)[..]);
    assert_eq!((fetch.wait(), compare.wait()), (Ok(15), Ok(0)));
    for (n, put) in puts.into_iter().enumerate() {
        assert_eq!(put.wait().0, Ok(()));
        let mut there = vec![0; 50_000];
        mem.read(n * 100_000, &mut there);
        assert!(there == bytes(n as u64, 50_000));
    }
    let mut word = [0; 8];
    mem.read(500_000, &mut word);
    assert_eq!(u64::from_le_bytes(word), 16);
    assert_eq!(pair.a.diagnostics().requests(), 0);
}

fn each_operation_ends_when_the_peer_never_comes(tls: &str) {
    let mut pair = Pair::on(tls);
    let told = Rc::new(RefCell::new(Vec::new()));
    let to = told.clone();
    let errors = ErrorMode::Peer(Box::new(move |error| to.borrow_mut().push(error)));
    let (ep, connector) = pair.a.connect_later(EpParams { errors, ..EpParams::default() });
    let send = ep.tag_send(1, vec![1; 100]);
    let am = ep.am_send(1, b"header", vec![2; 100_000]);
    let recv = ep.stream_recv(Vec::with_capacity(8));
    let get = ep.get(Vec::with_capacity(8), 0x1000, &Rkey::from_key(1));
    let fetch = ep.atomic_fetch(AtomicOp::Sum, 1u64, 0x1000, &Rkey::from_key(1));
    let (flush, worker_flush) = (ep.flush(), pair.a.flush());
    drop(connector);
    assert_eq!(*told.borrow(), [GIVEN_UP]);
    assert_eq!((send.wait().0, am.wait().0, flush.wait()), (Err(GIVEN_UP), Err(GIVEN_UP), Err(GIVEN_UP)));
    assert_eq!((recv.wait().0, get.wait().0.map(drop)), (Err(GIVEN_UP), Err(GIVEN_UP)));
    assert_eq!((fetch.wait(), worker_flush.wait()), (Err(GIVEN_UP), Err(GIVEN_UP)));
    assert_eq!(pair.a.flush().wait(), Ok(()), "reported once");
    // And so does what comes later.
    assert_eq!(ep.tag_send(1, vec![1]).wait().0, Err(GIVEN_UP));
    assert_eq!(ep.stream_recv(Vec::with_capacity(8)).wait().0, Err(GIVEN_UP));
    assert_eq!(ep.stream_recv_data().map(|_| ()), Err(GIVEN_UP));
    assert_eq!((ep.flush().wait(), told.borrow().len()), (Err(GIVEN_UP), 1));
    assert_eq!(ep.close(CloseMode::Flush(Duration::from_secs(1))).wait(), Err(GIVEN_UP));
    // One that nothing waited for is no loss.
    drop(pair.a.connect_later(EpParams::default()));
    assert_eq!(pair.a.flush().wait(), Ok(()));
    // With an error of the program's choice; a later flush of the worker reports it, too.
    let send = pair.ep.tag_send(1, vec![1; 100]);
    let error = Error::ConnectFailed(ConnectFailure::Unreachable);
    pair.connector.take().unwrap().fail(error);
    assert_eq!((send.wait().0, pair.a.flush().wait()), (Err(error), Err(error)));
    assert_eq!(pair.a.diagnostics().requests(), 0);
}

fn cancelled_operations_do_not_start(tls: &str) {
    let mut pair = Pair::on(tls);
    let (first, second, third) =
        (pair.ep.tag_send(1, vec![1]), pair.ep.tag_send(1, vec![2]), pair.ep.tag_send(1, vec![3]));
    assert!(second.cancel() && !second.cancel());
    pair.until(|| second.is_done());
    assert_eq!(second.wait().0, Err(Error::Cancelled));
    let flush = pair.ep.flush();
    assert!(flush.cancel());
    assert_eq!(flush.wait(), Err(Error::Cancelled));
    drop(third);
    pair.connect();
    for want in [1, 3] {
        let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(1));
        pair.until(|| recv.is_done());
        assert_eq!(recv.wait().1, [want]);
    }
    assert_eq!(first.wait().0, Ok(()));
    // Once it has started, a cancel reaches the operation that carries it out.
    let (ep, connector) = pair.a.connect_later(EpParams::default());
    let recv = ep.stream_recv(Vec::with_capacity(8));
    connector.connect(&pair.b.address()).unwrap();
    assert!(recv.cancel());
    assert_eq!(recv.wait().0, Err(Error::Cancelled));
    assert_eq!(pair.a.diagnostics().requests(), 0);
}

fn closing_ends_within_its_time(tls: &str) {
    let mut pair = Pair::on(tls);
    let send = pair.ep.tag_send(1, vec![1]);
    let connector = pair.connector.take().unwrap();
    assert!(connector.is_awaited());
    let close = pair.ep.close(CloseMode::Force);
    assert_eq!((close.wait(), send.wait().0), (Ok(()), Err(Error::Cancelled)));
    assert_eq!(pair.a.flush().wait(), Ok(()), "an endpoint closed by force does not count");
    assert!(!connector.is_awaited());
    assert_eq!(connector.connect(&pair.b.address()), Err(ConnectError::EndpointClosed));

    let (ep, connector) = pair.a.connect_later(EpParams::default());
    let send = ep.tag_send(1, vec![1]);
    let start = Instant::now();
    let limit = Duration::from_millis(20);
    assert_eq!(ep.flush_within(limit).wait(), Err(Error::TimedOut(None)));
    assert!(!send.is_done() && start.elapsed() >= limit);
    assert_eq!(ep.close(CloseMode::Flush(limit)).wait(), Err(Error::TimedOut(None)));
    assert_eq!(send.wait().0, Err(Error::TimedOut(None)));
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(connector.connect(&pair.b.address()), Err(ConnectError::EndpointClosed));

    // In time: what was sent before arrives.
    let (ep, connector) = pair.a.connect_later(EpParams::default());
    ep.tag_send(9, b"in time".to_vec()).detach();
    let close = ep.close(CloseMode::Flush(Duration::from_secs(30)));
    connector.connect(&pair.b.address()).unwrap();
    let recv = pair.b.tag_recv(9, TAG_MASK_FULL, Vec::with_capacity(8));
    spin(&[&pair.a, &pair.b], &mut || recv.is_done() && close.is_done());
    assert_eq!((close.wait(), recv.wait().1), (Ok(()), b"in time".to_vec()));
    // The endpoint may go; the connector still delivers what was sent.
    let (ep, connector) = pair.a.connect_later(EpParams::default());
    ep.tag_send(9, b"dropped".to_vec()).detach();
    drop(ep);
    connector.connect(&pair.b.address()).unwrap();
    let recv = pair.b.tag_recv(9, TAG_MASK_FULL, Vec::with_capacity(8));
    spin(&[&pair.a, &pair.b], &mut || recv.is_done());
    assert_eq!(recv.wait().1, b"dropped");
}

unsafe fn count(arg: *mut (), _: RequestId, ended: Result<RecvStatus, Error>) {
    // SAFETY: the test passes a pointer to its own cell, which outlives the operations.
    let calls = unsafe { &*arg.cast::<RefCell<Vec<Result<usize, Error>>>>() };
    calls.borrow_mut().push(ended.map(|status| status.len));
}

fn raw_callbacks_are_called_once(tls: &str) {
    let mut pair = Pair::on(tls);
    let mem = pair.b.mem_alloc(4096, Access::all()).unwrap();
    let rkey = Rkey::from_key(mem.key());
    let calls = RefCell::new(Vec::<Result<usize, Error>>::new());
    let done = Some(Callback::new(count, std::ptr::from_ref(&calls).cast_mut().cast()));
    let (buf, mut old) = ([7u8; 8], [0u8; 8]);
    let params = SendParams { done, ..tagged(1) };
    // SAFETY: the buffers outlive the operations, which end below.
    let send = unsafe { pair.ep.send_raw(buf.as_ptr(), 8, &params) };
    let fetch = {
        let operand = 3u64.to_le_bytes();
        let params = AtomicParams {
            op: AtomicOp::Sum,
            ty: Datatype::Uint64,
            count: 1,
            operand: operand.as_ptr(),
            compare: std::ptr::null(),
            result: old.as_mut_ptr(),
            sync: DeliveryComplete::No,
            done,
            mem: None,
        };
        // SAFETY: as above; the operand is copied.
        unsafe { pair.ep.atomic_raw(mem.addr(), &rkey, &params) }
    };
    let (Ok(OpStatus::InProgress(send)), Ok(OpStatus::InProgress(fetch))) = (send, fetch) else {
        panic!("both wait")
    };
    pair.a.free(fetch);
    pair.connect();
    let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
    pair.until(|| calls.borrow().len() == 2 && recv.is_done());
    for _ in 0..1000 {
        pair.a.progress();
    }
    assert_eq!(*calls.borrow(), [Ok(0), Ok(8)]);
    assert!(pair.a.test(send).is_some_and(|ended| ended.is_ok()) && !pair.a.knows(fetch));
    assert_eq!((old, pair.a.diagnostics().requests()), ([0; 8], 0));
}

fn unreachable_peer_is_told(tls: &str) {
    let mut pair = Pair::on(tls);
    let nobody = context("posix").worker().unwrap().address_net();
    let send = pair.ep.tag_send(1, vec![1]);
    let error = pair.connector.take().unwrap().connect(&nobody).unwrap_err();
    assert!(matches!(error, ConnectError::NoCommonTransport { .. }), "{error}");
    assert_eq!(send.wait().0, Err(Error::ConnectFailed(ConnectFailure::Unreachable)));
}

/// The callback of an endpoint that fails before it is connected may use the worker and make another one.
fn error_callback_may_use_the_worker(tls: &str) {
    let pair = Pair::on(tls);
    let (worker, next) = (pair.a.clone(), Rc::new(RefCell::new(None)));
    let made = next.clone();
    let errors = ErrorMode::Peer(Box::new(move |_| {
        worker.progress();
        *made.borrow_mut() = Some(worker.connect_later(EpParams::default()));
    }));
    let (ep, connector) = pair.a.connect_later(EpParams { errors, ..EpParams::default() });
    let send = ep.tag_send(1, vec![1]);
    connector.fail(GIVEN_UP);
    assert_eq!(send.wait().0, Err(GIVEN_UP));
    let (ep, connector) = next.take().expect("the callback has been called");
    let send = ep.tag_send(2, vec![2]);
    connector.connect(&pair.b.address()).unwrap();
    let recv = pair.b.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(1));
    pair.until(|| recv.is_done() && send.is_done());
}

/// Making an endpoint finds out at once that a worker of this host is gone if it is asked to; else the first
/// operation does.
#[test]
fn a_worker_that_is_gone_is_unreachable() {
    let gone = context("posix").worker().unwrap().address();
    let worker = context("posix").worker().unwrap();
    let checked = EpParams { check_peer: true, ..EpParams::default() };
    assert!(matches!(worker.connect(&gone, checked), Err(ConnectError::Unreachable { .. })));
    let ep = worker.connect(&gone, EpParams::default()).unwrap();
    assert_eq!(ep.tag_send(1, vec![1]).wait().0, Err(Error::PeerGone(ep.peer())));
}

/// Queries answer something, and callbacks may use the endpoint.
fn endpoint_without_a_peer_can_be_asked(tls: &str) {
    let mut pair = Pair::on(tls);
    let (ep, rkey) = (&pair.ep, Rkey::from_key(1));
    let protocols = ep.protocols();
    assert_eq!(protocols.transports(), Vec::<&str>::new());
    assert!(protocols.rails().is_empty());
    assert_eq!(pair.a.diagnostics().peer_view(ep.peer()).map(|_| ()), None);
    for sync in [DeliveryComplete::No, DeliveryComplete::Yes] {
        let _ = (protocols.table(Kind::Tagged, sync), protocols.explain(Kind::Untagged, sync, 1 << 20));
        let _ = protocols.kernel_copy_from(Kind::Tagged, sync);
    }
    let _ = (
        protocols.rail_plan(TransferKind::Rma),
        protocols.rma_method(&rkey),
        protocols.measured_copy_cost(8),
    );
    let _ = protocols.atomic_method(&rkey, AtomicOp::Sum, Datatype::Uint64);
    let probe = pair.a.recv(Match::tagged(1, TAG_MASK_FULL).from(ep), Vec::with_capacity(1));
    drop(probe);
    pair.a.fence();
    let chained = Rc::new(Cell::new(false));
    let (ep, done) = (Rc::new(pair.ep), chained.clone());
    let again = ep.clone();
    ep.tag_send(1, vec![1]).then(move |result, _| {
        assert_eq!(result, Ok(()));
        again.tag_send(2, vec![2]).then(move |result, _| done.set(result.is_ok()));
    });
    pair.connector.take().unwrap().connect(&pair.b.address()).unwrap();
    let recvs = [1, 2].map(|tag| pair.b.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(1)));
    spin(&[&pair.a, &pair.b], &mut || recvs.iter().all(|recv| recv.is_done()) && chained.get());
    assert!(!ep.protocols().transports().is_empty());
}

on! {
    [
        messages_wait_and_keep_their_order active_messages_and_streams_wait
        stream_bytes_come_before_their_peer_is_known one_sided_operations_wait
        each_operation_ends_when_the_peer_never_comes cancelled_operations_do_not_start
        closing_ends_within_its_time raw_callbacks_are_called_once unreachable_peer_is_told
        endpoint_without_a_peer_can_be_asked error_callback_may_use_the_worker
    ]
    own: "self", posix: "posix", kernel: "kernel", soft: "soft", several: "self,posix,efa",
    shared_posix: "shared posix", shared_efa: "shared efa",
}
