//! Requests as blocks of memory: status without the worker, callbacks in order, memory of the user and of the
//! caller, requests that are freed or cancelled while they run.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Pair, bytes, context, ends};
use ucp::{
    CallAt, Callback, CloseMode, Error, Match, OpParams, OpStatus, RecvStatus, RequestId, RequestParams,
    SendParams, TAG_MASK_FULL, Worker, cancel_now, flush_ep_raw, flush_worker_raw,
};
use ucs::Status;

on! { [
    another_thread_sees_the_end
    callbacks_run_in_order
    callbacks_at_the_end_free_their_requests
    memory_of_the_caller_holds_a_request
    freed_requests_go_on
    cancelled_requests_say_so
    a_cancel_ends_within_the_call
    a_truncated_message_is_told_by_tag_and_sender
    memory_of_the_caller_outlives_its_worker
    an_ended_request_has_its_result
    a_message_truncated_in_the_call_is_told
    flush_and_close_call_back
]
    to_self: "self",
    posix: "posix",
    efa: "efa",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}

const LONG: usize = 300_000;

/// Posts a receive that nothing has matched yet.
///
/// Safety: as for [`Worker::recv_raw`].
unsafe fn post(at: &Worker, tag: u64, room: &mut [u8], done: Option<Callback>) -> RequestId {
    // SAFETY: the caller's promise.
    match unsafe {
        at.recv_raw(
            room.as_mut_ptr(),
            room.len(),
            Match::tagged(tag, TAG_MASK_FULL),
            &OpParams { done, ..OpParams::default() },
        )
    } {
        Ok(OpStatus::InProgress(id)) => id,
        other => panic!("nothing was there to receive: {other:?}"),
    }
}

fn another_thread_sees_the_end(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    for len in [8, LONG] {
        let (out, mut room) = (bytes(1, len), vec![0; len]);
        // SAFETY: the receive ends below, and `room` is not used before.
        let id = unsafe { post(&pair.b, 77, &mut room, None) };
        assert_eq!((id.status(), id.info()), (Some(Status::InProgress), None));
        let seen = Arc::new(AtomicBool::new(false));
        let (is_seen, start) = (seen.clone(), Instant::now());
        let watcher = std::thread::spawn(move || {
            while id.status() == Some(Status::InProgress) && start.elapsed() < Duration::from_secs(60) {
                std::hint::spin_loop();
            }
            is_seen.store(true, Ordering::Release);
            (id.status(), id.info())
        });
        let send = pair.ab.tag_send(77, out.clone());
        pair.until(|| seen.load(Ordering::Acquire));
        let (status, info) = watcher.join().unwrap();
        let info = info.unwrap();
        assert_eq!((status, info.len, info.tag), (Some(Status::Ok), len, 77), "{tls}");
        assert_eq!(pair.b.test(id), Some(Ok(info)));
        assert_eq!((id.status(), id.info()), (None, None), "freed");
        assert!(room == out);
        assert_eq!(send.wait().0, Ok(()));
    }
}

type Ends = RefCell<Vec<(RequestId, Option<Status>, Result<RecvStatus, Error>)>>;

unsafe fn note(arg: *mut (), request: RequestId, ended: Result<RecvStatus, Error>) {
    // SAFETY: the tests pass their own list.
    let ends: &Ends = unsafe { &*arg.cast() };
    ends.borrow_mut().push((request, request.status(), ended));
}

fn noting(ends: &Ends) -> Option<Callback> {
    Some(Callback::new(note, std::ptr::from_ref(ends).cast_mut().cast()))
}

/// Long and short messages end in the order of their arrival where each has arrived with its last packet.
fn callbacks_run_in_order(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let ends = Ends::default();
    let mut rooms = vec![vec![0; 64]; 100];
    // SAFETY: all receives end below; nothing uses the rooms before.
    let ids: Vec<_> = rooms.iter_mut().map(|room| unsafe { post(&pair.b, 5, room, noting(&ends)) }).collect();
    let sends: Vec<_> = (0..100u8).map(|n| pair.ab.tag_send(5, vec![n; 1 + usize::from(n % 64)])).collect();
    pair.until(|| ends.borrow().len() == 100);
    for (n, (id, status, ended)) in ends.borrow().iter().enumerate() {
        assert_eq!((*id, *status), (ids[n], Some(Status::Ok)), "{tls}");
        assert_eq!(ended.map(|info| (info.len, info.tag)), Ok((1 + n % 64, 5)));
        assert_eq!(pair.b.test(*id), Some(*ended), "a callback does not free its request");
    }
    assert!(rooms.iter().enumerate().all(|(n, room)| room[n % 64] == n as u8));
    pair.until(|| sends.iter().all(|send| send.is_done()));
}

/// Callbacks that are called while the worker is in use: short, long and truncated messages, one-sided
/// operations and cancelled receives.
fn callbacks_at_the_end_free_their_requests(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let ends = Ends::default();
    let done = noting(&ends).map(|done| Callback { at: CallAt::End, ..done });
    let mut rooms = [vec![0; 64], vec![0; LONG], vec![0; 4], vec![0; 8]];
    // SAFETY: all receives end below; nothing uses the rooms before.
    let ids: Vec<_> = rooms.iter_mut().map(|room| unsafe { post(&pair.b, 5, room, done) }).collect();
    let sends = [8, LONG, 16].map(|len| pair.ab.tag_send(5, vec![1u8; len]));
    pair.until(|| ends.borrow().len() == 3);
    assert!(pair.b.cancel(ids[3]));
    pair.until(|| ends.borrow().len() == 4);
    let seen = ends.take();
    for id in &ids {
        assert_eq!((id.status(), pair.b.test(*id)), (None, None), "{tls}: the callback's return frees it");
        let of_id = seen.iter().find(|(of, ..)| of == id).map(|(_, status, ended)| (*status, *ended));
        let at = ids.iter().position(|known| known == id).unwrap_or_default();
        match at {
            0 | 1 => {
                let (status, ended) = of_id.unwrap();
                assert_eq!((status, ended.map(|info| info.len)), (Some(Status::Ok), Ok([8, LONG][at])));
            }
            2 => assert_eq!(of_id.map(|(_, ended)| ended), Some(Err(Error::Truncated { len: 16, room: 4 }))),
            _ => assert_eq!(of_id.map(|(_, ended)| ended), Some(Err(Error::Cancelled))),
        }
    }
    pair.until(|| sends.iter().all(|send| send.is_done()));
    assert_eq!(pair.b.diagnostics().requests(), 0);
}

struct Block([MaybeUninit<u64>; RequestId::SIZE / 8 + 1]);

impl Block {
    const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

    fn new() -> Box<Block> {
        Box::new(Block([MaybeUninit::new(Block::UNTOUCHED); RequestId::SIZE / 8 + 1]))
    }

    fn start(&mut self) -> NonNull<u8> {
        NonNull::from(&mut self.0).cast()
    }

    /// The request in this memory, by the address behind it.
    fn request(&mut self) -> RequestId {
        // SAFETY: the block is longer.
        let behind = unsafe { self.start().add(RequestId::SIZE) };
        // SAFETY: the tests have started an operation here.
        unsafe { RequestId::from_user_memory(behind) }
    }

    fn assert_rest_is_untouched(&self) {
        // SAFETY: the word has been written by `new`.
        assert_eq!(unsafe { self.0[RequestId::SIZE / 8].assume_init() }, Block::UNTOUCHED);
    }
}

fn memory_of_the_caller_holds_a_request(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let requests = || (pair.a.diagnostics().requests(), pair.b.diagnostics().requests());
    let before = requests();
    let (mut of_recv, mut of_send) = (Block::new(), Block::new());
    for len in [8, LONG, 8] {
        let (out, mut room) = (bytes(2, len), vec![0; len]);
        // SAFETY: `room` is used by this receive only, until it has ended below.
        let receive = || unsafe { post(&pair.b, 1, &mut room, None) };
        // SAFETY: the block is used by this receive only, until it has ended below.
        let recv = unsafe { pair.b.with_request_memory(of_recv.start(), receive) };
        assert_eq!(recv, of_recv.request());
        let params =
            SendParams { tag: Some(1), sync: ucp::select::DeliveryComplete::Yes, ..SendParams::default() };
        // SAFETY: as above, of `out`.
        let start = || unsafe { pair.ab.send_raw(out.as_ptr(), len, &params) };
        // SAFETY: as above.
        let send = unsafe { pair.a.with_request_memory(of_send.start(), start) };
        let send = match send.unwrap() {
            OpStatus::InProgress(id) => Some(id),
            OpStatus::Done(()) => None,
        };
        assert_eq!(requests(), before, "no block of the workers");
        let ended = |id: RequestId| id.status() != Some(Status::InProgress);
        pair.until(|| ended(recv) && send.is_none_or(ended));
        let info = of_recv.request().info().unwrap();
        assert_eq!((of_recv.request().status(), info.len, info.tag), (Some(Status::Ok), len, 1), "{tls}");
        if len == LONG {
            assert_eq!(pair.b.test(recv), Some(Ok(info)));
            assert_eq!(recv.status(), None);
        }
        assert_eq!(of_recv.request().status(), Some(Status::Ok), "by address");
        assert!(room == out);
    }
    of_recv.assert_rest_is_untouched();
    of_send.assert_rest_is_untouched();
    let sent = pair.ab.tag_send(1, vec![1]);
    let recv = pair.b.tag_recv(1, TAG_MASK_FULL, vec![0; 1].into_boxed_slice());
    pair.until(|| recv.is_done() && sent.is_done());
}

fn freed_requests_go_on(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let before = pair.b.diagnostics().requests();
    let ends = Ends::default();
    for (len, done) in [(8, None), (8, noting(&ends)), (LONG, noting(&ends)), (LONG, None)] {
        let (out, mut room) = (bytes(3, len), vec![0; len]);
        // SAFETY: the receive has ended when the bytes are there; `ends` lives longer than the workers use
        // it.
        let id = unsafe { post(&pair.b, 9, &mut room, done) };
        pair.b.free(id);
        assert_eq!(id.status(), Some(Status::InProgress), "freed at its end");
        let send = pair.ab.tag_send(9, out.clone());
        pair.until(|| id.status().is_none() && send.is_done());
        assert!(room == out, "{tls}");
        assert_eq!(pair.b.diagnostics().requests(), before);
    }
    assert_eq!(ends.borrow().len(), 2);
    // It is there in its callback, whose operations thus get other requests.
    assert!(ends.borrow().iter().all(|(_, status, ended)| *status == Some(Status::Ok) && ended.is_ok()));
}

fn cancelled_requests_say_so(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let (ends, mut block) = (Ends::default(), Block::new());
    let (mut first, mut second) = ([0; 8], [0; 8]);
    // SAFETY: the receives end below, before their memory goes.
    let plain = unsafe { post(&pair.b, 9, &mut first, None) };
    // SAFETY: as above.
    let receive = || unsafe { post(&pair.b, 9, &mut second, noting(&ends)) };
    // SAFETY: as above.
    let called = unsafe { pair.b.with_request_memory(block.start(), receive) };
    for id in [plain, called] {
        assert!(pair.b.cancel(id));
        pair.until(|| id.status() == Some(Status::Canceled));
        assert!(!pair.b.cancel(id), "it has ended");
    }
    assert_eq!(ends.borrow()[..], [(called, Some(Status::Canceled), Err(Error::Cancelled))], "{tls}");
    assert_eq!(pair.b.test(plain), Some(Err(Error::Cancelled)));
    assert_eq!(block.request().status(), Some(Status::Canceled));
}

fn a_cancel_ends_within_the_call(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let ends = Ends::default();
    let (mut first, mut second, mut third) = ([0; 8], [0; 8], [0; 8]);
    // SAFETY: the receives end below, before their memory goes.
    let early = unsafe { post(&pair.b, 9, &mut first, noting(&ends)) };
    // SAFETY: as above.
    let plain = unsafe { post(&pair.b, 9, &mut second, None) };
    // SAFETY: as above.
    let called = unsafe { post(&pair.b, 9, &mut third, noting(&ends)) };
    // The end of the first waits for progress, and is not this one's.
    assert!(pair.b.cancel(early) && ends.borrow().is_empty());
    assert!(cancel_now(&pair.b, plain));
    assert_eq!(plain.status(), Some(Status::Canceled));
    assert!(ends.borrow().is_empty());
    assert!(cancel_now(&pair.b, called));
    assert_eq!(ends.borrow()[..], [(called, Some(Status::Canceled), Err(Error::Cancelled))], "{tls}");
    assert!(!cancel_now(&pair.b, called), "it has ended");
    pair.until(|| ends.borrow().len() == 2);
    assert_eq!(ends.borrow()[1].0, early);
}

fn a_truncated_message_is_told_by_tag_and_sender(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    for (len, early) in [(100, false), (100, true), (LONG, false)] {
        let (out, ends, mut room) = (bytes(4, len), Ends::default(), vec![0; 60]);
        // Another message first, so that the receive is not the oldest of its list.
        let mut other = [0; 8];
        // SAFETY: both receives end below, and their memory is not used before.
        let first = unsafe { post(&pair.b, 1, &mut other, None) };
        if early {
            // The message is there before its receive, and the call says so.
            let send = pair.ab.tag_send(70, out.clone());
            pair.until(|| pair.b.probe(Match::tagged(70, TAG_MASK_FULL)).is_some());
            // SAFETY: as above.
            let ended = unsafe {
                pair.b.recv_raw(
                    room.as_mut_ptr(),
                    60,
                    Match::tagged(0, 0),
                    &OpParams { done: noting(&ends), ..OpParams::default() },
                )
            };
            assert_eq!(ended, Err(Error::Truncated { len: len as u64, room: 60 }));
            pair.until(|| send.is_done());
        } else {
            // SAFETY: as above.
            let id = unsafe { post(&pair.b, 70, &mut room, noting(&ends)) };
            let send = pair.ab.tag_send(70, out.clone());
            pair.until(|| send.is_done() && !ends.borrow().is_empty());
            let info = id.info().unwrap();
            assert_eq!((info.len, info.tag, info.from), (len, 70, pair.ba.peer()), "{tls}");
            assert_eq!(id.status(), Some(Status::MessageTruncated));
            let error = Error::Truncated { len: len as u64, room: 60 };
            assert_eq!(ends.borrow()[..], [(id, Some(Status::MessageTruncated), Err(error))]);
            assert_eq!(pair.b.test(id), Some(Err(error)));
        }
        assert!(room == out[..60]);
        assert!(pair.b.cancel(first));
        pair.until(|| pair.b.test(first).is_some());
    }
}

/// A runtime that polls the status in its own memory does not wait for a worker that is gone.
fn memory_of_the_caller_outlives_its_worker(tls: &str) {
    let (mut block, mut room) = (Block::new(), [0; 8]);
    let worker = context(ends(tls).0).worker().unwrap();
    // SAFETY: the worker, which alone uses the room, is dropped before it.
    let receive = || unsafe { post(&worker, 9, &mut room, None) };
    // SAFETY: nobody else uses the block.
    let id = unsafe { worker.with_request_memory(block.start(), receive) };
    assert_eq!(id.status(), Some(Status::InProgress));
    drop(worker);
    assert_eq!(block.request().status(), Some(Status::Canceled), "{tls}");
    block.assert_rest_is_untouched();
}

fn an_ended_request_has_its_result(tls: &str) {
    let pair = Pair::on(tls);
    let message = RecvStatus { len: 7, tag: 9, from: pair.ab.peer(), cq_data: Some(3) };
    let truncated = Error::Truncated { len: 7, room: 1 };
    for error in [None, Some(Error::Cancelled), Some(truncated)] {
        let id = RequestId::ended(&pair.a, message, error).unwrap();
        let result = error.map_or(Ok(message), Err);
        assert_eq!((id.status(), id.info()), (Some(error.map_or(Status::Ok, Error::status)), Some(message)));
        assert!(!pair.a.cancel(id));
        assert_eq!(pair.a.test(id), Some(result), "{tls}");
        assert_eq!(id.status(), None);
    }
    let mut block = Block::new();
    // SAFETY: `block` outlives the request.
    let id = unsafe {
        pair.a.with_request_memory(block.start(), || RequestId::ended(&pair.a, message, None).unwrap())
    };
    assert_eq!((id.status(), id.info()), (Some(Status::Ok), Some(message)));
    pair.a.free(id);
}

fn a_message_truncated_in_the_call_is_told(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let send = pair.ab.tag_send(0x1234, bytes(1, 100));
    pair.until(|| pair.b.probe(Match::tagged(0, 0)).is_some());
    let (told, mut room) =
        (Cell::new(RecvStatus { len: 0, tag: 0, from: pair.ab.peer(), cq_data: None }), [0; 10]);
    let params = OpParams { truncated: Some(&told), ..OpParams::default() };
    // SAFETY: the call ends the receive.
    let ended = unsafe { pair.b.recv_raw(room.as_mut_ptr(), room.len(), Match::tagged(0, 0), &params) };
    assert_eq!(ended, Err(Error::Truncated { len: 100, room: 10 }), "{tls}");
    assert_eq!((told.get().len, told.get().tag), (100, 0x1234));
    assert_eq!(room, bytes(1, 100)[..10]);
    pair.until(|| send.is_done());
}

fn flush_and_close_call_back(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let ends = Ends::default();
    // SAFETY: `ends` outlives the operations, which end below.
    let of_ep = unsafe { flush_ep_raw(&pair.ab, noting(&ends)) };
    // SAFETY: as above.
    let of_worker = unsafe { flush_worker_raw(&pair.a, noting(&ends)) };
    let flushes = [of_ep.unwrap(), of_worker.unwrap()];
    pair.until(|| ends.borrow().len() == 2);
    // SAFETY: as above.
    let closed = unsafe { pair.ab.close_raw(CloseMode::Flush(Duration::from_secs(60)), noting(&ends)) };
    let Ok(OpStatus::InProgress(close)) = closed else { panic!("{tls}: {closed:?}") };
    assert_eq!(pair.ab.tag_send(1, vec![0]).wait().0, Err(Error::Closed));
    pair.until(|| ends.borrow().len() == 3);
    for (n, id) in flushes.into_iter().chain([close]).enumerate() {
        assert_eq!(ends.borrow()[n].0, id, "in the order of their calls");
        assert!(ends.borrow()[n].2.is_ok());
        pair.a.free(id);
    }
    // SAFETY: nothing is called.
    assert_eq!(unsafe { pair.ba.close_raw(CloseMode::Force, None) }, Ok(OpStatus::Done(())));
}

#[test]
fn callbacks_may_free_start_and_progress() {
    let pair = Rc::new(Pair::on("posix"));
    pair.meet();
    struct Chain {
        pair: Rc<Pair>,
        left: AtomicU32,
        room: RefCell<[u8; 8]>,
    }
    unsafe fn next(arg: *mut (), request: RequestId, ended: Result<RecvStatus, Error>) {
        // SAFETY: the test keeps the chain until it has ended.
        let chain: &Chain = unsafe { &*arg.cast() };
        assert_eq!(ended.map(|info| info.len), Ok(8));
        let worker = &chain.pair.b;
        worker.free(request);
        assert_eq!(request.status(), None);
        worker.progress();
        if chain.left.fetch_sub(1, Ordering::Relaxed) > 1 {
            let done = Some(Callback::new(next, arg));
            // SAFETY: the room is of the chain, and one receive at a time uses it.
            let id = unsafe { post(worker, 3, &mut *chain.room.borrow_mut(), done) };
            assert_eq!(id.status(), Some(Status::InProgress));
            assert!(chain.pair.ab.tag_send(3, [1u8; 8].to_vec()).is_done());
        }
    }
    let chain = Chain { pair: pair.clone(), left: AtomicU32::new(1000), room: RefCell::default() };
    let done = Some(Callback::new(next, std::ptr::from_ref(&chain).cast_mut().cast()));
    // SAFETY: as above.
    unsafe { post(&pair.b, 3, &mut *chain.room.borrow_mut(), done) };
    assert!(pair.ab.tag_send(3, vec![1; 8]).is_done());
    pair.until(|| chain.left.load(Ordering::Relaxed) == 0);
    assert_eq!(pair.b.diagnostics().requests(), 0);
}

#[test]
fn user_memory_belongs_to_a_request() {
    let (inits, cleanups) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (made, gone) = (inits.clone(), cleanups.clone());
    let room = RequestParams::bytes(24)
        .on_init(move |at| {
            // SAFETY: the room has 24 bytes, aligned to 16.
            unsafe { at.cast::<u64>().write(made.fetch_add(1, Ordering::Relaxed) as u64 + 1) };
        })
        .on_cleanup(move |at| {
            // SAFETY: as above.
            assert!(unsafe { at.cast::<u64>().read() } > 0);
            gone.fetch_add(1, Ordering::Relaxed);
        });
    let context = context("posix").with_request_params(room);
    let pair = Pair::of(context.worker().unwrap(), context.worker().unwrap());
    assert_eq!((pair.a.request_size(), inits.load(Ordering::Relaxed)), (24, 0), "none before the first");
    pair.meet();
    let mut rooms = [[0u8; 8]; 10];
    for _ in 0..1000 {
        // SAFETY: the receives are cancelled and end below.
        let ids: Vec<_> = rooms.iter_mut().map(|room| unsafe { post(&pair.b, 9, room, None) }).collect();
        for id in ids {
            // SAFETY: the room has been made, and the request runs.
            assert!(unsafe { id.user_memory().cast::<u64>().read() } > 0);
            pair.b.cancel(id);
            assert_eq!(pair.b.wait_for(id), Err(Error::Cancelled));
        }
    }
    let blocks = inits.load(Ordering::Relaxed);
    assert!(blocks < 1000, "{blocks}");
    drop(pair);
    assert_eq!((inits.load(Ordering::Relaxed), cleanups.load(Ordering::Relaxed)), (blocks, blocks));
}

#[test]
fn requests_of_a_dropped_worker_are_gone() {
    let pair = Pair::on("posix");
    let room: &'static mut [u8; 8] = Box::leak(Box::default());
    // SAFETY: the memory is leaked.
    let id = unsafe { post(&pair.b, 9, room, None) };
    assert_eq!(id.status(), Some(Status::InProgress));
    let a = pair.a.clone();
    drop(pair);
    assert_eq!((id.status(), id.info(), a.knows(id), a.cancel(id)), (None, None, false, false));
    assert_eq!((a.test(id), a.wait_for(id)), (None, Err(Error::Cancelled)));
}
