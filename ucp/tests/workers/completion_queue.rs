//! Completion queues and counters: each end is read once, with its number and buffer, whatever becomes of the
//! queue meanwhile.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::common::{Pair, bytes};
use ucp::{
    Access, Callback, Completion, CompletionQueue, Counter, Error, IoBuf, IoBufMut, Layout, Match, OpParams,
    OpStatus, RecvStatus, RequestId, Rkey, RmaParams, StridedIov, TAG_MASK_FULL, Triggers,
};

const LENGTHS: [usize; 5] = [0, 8, 5000, 20_000, 300_000];

/// Progresses the pair until as many ends have been read.
fn read<B>(pair: &Pair, queue: &CompletionQueue<B>, count: usize) -> Vec<Completion<B>> {
    let mut all = Vec::new();
    pair.until(|| {
        all.extend(std::iter::from_fn(|| queue.read()));
        all.len() >= count
    });
    assert_eq!((all.len(), queue.running(), queue.len()), (count, 0, 0));
    all
}

fn each_end_is_read_once(tls: &str) {
    let pair = Pair::on(tls);
    let (sends, recvs) = (CompletionQueue::new(&pair.a, 16), CompletionQueue::new(&pair.b, 16));
    for round in 0..20 {
        let is_posted_first = round % 2 == 0;
        let post = || {
            for (n, len) in (0..).zip(LENGTHS) {
                recvs.track(pair.b.tag_recv(n, TAG_MASK_FULL, Vec::with_capacity(len)), n).unwrap();
            }
        };
        if is_posted_first {
            post();
        }
        for (n, len) in (0..).zip(LENGTHS) {
            sends.track(pair.ab.tag_send(n, bytes(n + round, len)), 100 + n).unwrap();
        }
        sends.track(pair.a.flush(), 200).unwrap();
        if !is_posted_first {
            pair.a.progress();
            pair.b.progress();
            post();
        }
        let mut seen = [0; 5];
        let mut sent = Vec::new();
        pair.until(|| {
            for Completion { context, result, buf } in std::iter::from_fn(|| recvs.read()) {
                let at = context as usize;
                seen[at] += 1;
                assert_eq!(
                    result.map(|status| (status.len, status.tag)),
                    Ok((LENGTHS[at], context)),
                    "{tls}"
                );
                assert_eq!(buf, Some(bytes(context + round, LENGTHS[at])), "{tls}");
            }
            for Completion { context, result, buf } in std::iter::from_fn(|| sends.read()) {
                assert_eq!((result.map(drop), buf.is_some()), (Ok(()), context != 200), "{tls}");
                sent.push(context);
            }
            recvs.running() + sends.running() == 0
        });
        sent.sort_unstable();
        assert_eq!((seen, sent), ([1; 5], vec![100, 101, 102, 103, 104, 200]), "{tls}");
    }
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().requests()), (0, 0));
}

/// A full queue returns the request, which goes on; an end makes room when it is read.
fn a_full_queue_loses_nothing(tls: &str) {
    let pair = Pair::on(tls);
    let queue = CompletionQueue::new(&pair.b, 2);
    let recv = |tag| pair.b.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8));
    queue.track(recv(1), 1).unwrap();
    queue.track(recv(2), 2).unwrap();
    let refused = queue.track(recv(3), 3).unwrap_err();
    assert_eq!((refused.error, queue.depth()), (Error::QueueFull(2), 2));
    assert!(refused.to_string().contains("all 2 entries"), "{refused}");
    let sends = [1, 2, 3].map(|tag| pair.ab.tag_send(tag, vec![tag as u8; 8]));
    pair.until(|| refused.request.is_done() && queue.len() == 2);
    // Ended, and not read.
    let refused = queue.track(refused.request, 3).unwrap_err();
    assert_eq!(queue.read().map(|end| end.context), Some(1));
    queue.track(refused.request, 3).unwrap();
    let ends = read(&pair, &queue, 2);
    assert_eq!(ends.iter().map(|end| end.context).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(ends[1].buf, Some(vec![3; 8]));
    pair.until(|| sends.iter().all(|send| send.is_done()));
}

/// Bytes whose drop uses a worker and a queue, and is counted.
struct Noted(Vec<u8>, Rc<NotedDrops>);

struct NotedDrops {
    count: Cell<usize>,
    pair: Pair,
    queue: RefCell<Option<CompletionQueue<Noted>>>,
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.1.count.set(self.1.count.get() + 1);
        self.1.pair.a.progress();
        self.1.pair.b.progress();
        let queue = self.1.queue.borrow();
        assert!(queue.as_ref().is_none_or(|queue| queue.is_empty()));
    }
}

// SAFETY: the vector's bytes are on the heap, and nothing changes them.
unsafe impl IoBuf for Noted {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Noted {
    fn memory(&mut self) -> (*mut u8, usize) {
        self.0.memory()
    }

    unsafe fn set_filled(&mut self, len: usize) {
        // SAFETY: this function's contract.
        unsafe { self.0.set_filled(len) };
    }
}

/// Dropping a queue cancels receives, lets sends go on, and drops each buffer once, not inside the worker.
fn a_dropped_queue_drops_each_buffer_once(tls: &str) {
    for is_read in [false, true] {
        let noted =
            Rc::new(NotedDrops { count: Cell::new(0), pair: Pair::on(tls), queue: RefCell::default() });
        let pair = &noted.pair;
        pair.meet();
        let queue = CompletionQueue::new(&pair.a, 8);
        let buf = |len| Noted(bytes(len as u64, len), noted.clone());
        queue.track(pair.ab.tag_send(1, buf(8)), 1).unwrap();
        queue.track(pair.ab.tag_send_sync(2, buf(300_000)), 2).unwrap();
        queue.track(pair.a.tag_recv(3, TAG_MASK_FULL, buf(64)), 3).unwrap();
        pair.until(|| queue.len() == 1);
        if is_read {
            drop(queue.read());
        }
        drop(queue);
        *noted.queue.borrow_mut() = Some(CompletionQueue::new(&pair.a, 1));
        pair.until(|| noted.count.get() == 2);
        // Nobody receives it any more but this.
        let late = pair.ba.tag_send(3, vec![7; 8]);
        let recv = pair.a.tag_recv(3, TAG_MASK_FULL, Vec::with_capacity(8));
        let long = pair.b.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(300_000));
        pair.until(|| recv.is_done() && late.is_done() && long.is_done());
        assert_eq!(recv.wait().1, vec![7; 8]);
        assert_eq!(long.wait().1, bytes(300_000, 300_000));
        pair.until(|| noted.count.get() == 3);
        drop(noted.queue.take());
        pair.settle();
        assert_eq!((noted.count.get(), pair.a.diagnostics().requests()), (3, 0), "{tls}");
    }
}

fn operations_are_cancelled_by_number(tls: &str) {
    let pair = Pair::on(tls);
    let queue = CompletionQueue::new(&pair.b, 8);
    for context in [1, 2, 2, 3] {
        let recv = pair.b.tag_recv(context, TAG_MASK_FULL, Vec::with_capacity(8));
        queue.track(recv, context).unwrap();
    }
    assert_eq!((queue.cancel(2), queue.cancel(9)), (2, 0));
    for context in [1, 3] {
        pair.ab.tag_send(context, vec![1; 8]).detach();
    }
    let mut ends: Vec<_> =
        read(&pair, &queue, 4).iter().map(|end| (end.context, end.result.is_ok())).collect();
    ends.sort_unstable();
    assert_eq!(ends, [(1, true), (2, false), (2, false), (3, true)]);
    assert_eq!(queue.wait().map(|end| end.context), None, "nothing runs");
}

/// Puts and gets by raw calls, counted and queued; a refused one is an error in both.
fn raw_operations_are_queued_and_counted(tls: &str) {
    const PUTS: u64 = 50;
    let pair = Pair::on(tls);
    let mem = pair.b.mem_alloc(64 * 1024, Access::all()).unwrap();
    let rkey = Rkey::from_key(mem.key());
    let data: Vec<u64> = (0..8192).collect();
    let mut back = vec![0u64; 8192];
    let (puts, gets) = (Counter::new(&pair.a), CompletionQueue::<()>::new(&pair.a, 4));
    let after = Triggers::default();
    after.defer(PUTS, "get");
    for n in 0..PUTS as usize {
        let (first, words) = if n == 7 { (0, 8192) } else { (n, 1) };
        let to = mem.addr() + 8 * first as u64;
        // SAFETY: the words stay until the puts have ended, below.
        let started = unsafe {
            let from = data[first..].as_ptr().cast();
            pair.ab.put_raw(from, 8 * words, to, &rkey, &RmaParams::default())
        };
        puts.track(started).unwrap();
    }
    pair.until(|| after.take_due(puts.value()).is_some());
    assert_eq!((puts.value(), puts.errors(), puts.running()), (PUTS, 0, 0));
    let flush = pair.a.flush();
    pair.until(|| flush.is_done());
    // SAFETY: the memory stays until the get has ended.
    let started = unsafe {
        pair.ab.get_raw(back.as_mut_ptr().cast(), 64 * 1024, mem.addr(), &rkey, &RmaParams::default())
    };
    gets.track_raw(started, 5).unwrap();
    let ends = read(&pair, &gets, 1);
    assert_eq!((ends[0].context, ends[0].result.map(drop), ends[0].buf), (5, Ok(()), None));
    assert!(back == data, "{tls}");

    // Beyond the memory: the call tells, or the operation.
    let beyond = mem.addr() + (1 << 40);
    let word = back.as_mut_ptr();
    // SAFETY: as above.
    let get = || unsafe { pair.ab.get_raw(word.cast(), 8, beyond, &rkey, &RmaParams::default()) };
    gets.track_raw(get(), 6).unwrap();
    let ends = read(&pair, &gets, 1);
    assert_eq!((ends[0].context, ends[0].result.is_err()), (6, true), "{tls}");
    puts.track(get()).unwrap();
    pair.until(|| puts.errors() == 1);
    assert_eq!(puts.wait(PUTS), Ok(()), "the value has been reached");
    assert_eq!(puts.wait(PUTS + 1), Err(puts.last_error().unwrap()));
    puts.clear_errors();
    assert_eq!((puts.errors(), puts.last_error()), (0, None));
    assert_eq!(puts.wait_within(PUTS + 1, Duration::from_millis(20)), Err(Error::TimedOut(None)));
    puts.add(1);
    assert_eq!(puts.wait_within(PUTS + 1, Duration::from_secs(60)), Ok(()));
    puts.set(0);
    assert_eq!(puts.value(), 0);
}

/// A queue and a counter that are dropped before the ends of raw operations, and requests that were freed.
fn ends_without_a_reader_are_dropped(tls: &str) {
    let pair = Pair::on(tls);
    let (queue, counter) = (CompletionQueue::<()>::new(&pair.b, 4), Counter::new(&pair.b));
    let mut rooms = [[0u8; 8]; 3];
    let mut post = |at: usize| {
        let room = &mut rooms[at];
        let matching = ucp::Match::tagged(at as u64, TAG_MASK_FULL);
        // SAFETY: the rooms are there until all receives have ended.
        unsafe { pair.b.recv_raw(room.as_mut_ptr(), 8, matching, &OpParams::default()) }
    };
    queue.track_raw(post(0), 0).unwrap();
    counter.track(post(1)).unwrap();
    drop((queue, counter));
    let freed = post(2);
    if let Ok(ucp::OpStatus::InProgress(id)) = freed {
        pair.b.free(id);
    }
    let (queue, counter) = (CompletionQueue::<()>::new(&pair.b, 4), Counter::new(&pair.b));
    assert_eq!(queue.track_raw(freed, 2).map_err(Error::from), Err(Error::Invalid));
    assert_eq!(counter.track(freed), Err(Error::Invalid));
    assert_eq!((queue.len(), queue.running(), counter.running()), (0, 0, 0));
    for tag in 0..3 {
        pair.ab.tag_send(tag, vec![tag as u8 + 1; 8]).detach();
    }
    pair.until(|| pair.b.diagnostics().requests() == 0);
    pair.settle();
    assert_eq!(rooms, [[1; 8], [2; 8], [3; 8]], "{tls}");
}

/// An operation with a callback keeps it: one of the program, and the library's own of data that is unpacked.
fn operations_with_callbacks_are_refused(tls: &str) {
    unsafe fn count(arg: *mut (), _: RequestId, _: Result<RecvStatus, Error>) {
        // SAFETY: the test passes its own counter, which it keeps.
        let calls = unsafe { &*arg.cast::<Cell<u32>>() };
        calls.set(calls.get() + 1);
    }
    let pair = Pair::on(tls);
    let (queue, counter) = (CompletionQueue::<()>::new(&pair.b, 4), Counter::new(&pair.b));
    let calls = Cell::new(0);
    let done = Callback::new(count, std::ptr::from_ref(&calls).cast_mut().cast());
    let mut room = [0u64; 8];
    let at = room.as_mut_ptr().cast::<u8>();
    // SAFETY: the room and the counter are there until both receives have ended, below.
    let plain = unsafe {
        let matching = Match::tagged(1, TAG_MASK_FULL);
        pair.b.recv_raw(at, 8, matching, &OpParams::with_callback(done))
    };
    let blocks = StridedIov { addr: at.wrapping_add(32), len: 8, stride: 16, count: 2 };
    let matching = Match::tagged(2, TAG_MASK_FULL);
    // SAFETY: as above.
    let strided = unsafe { pair.b.recv_layout_raw(Layout::Strided(blocks), matching, &OpParams::default()) };
    for started in [plain, strided] {
        assert_eq!(queue.track_raw(started, 1).map_err(Error::from), Err(Error::Invalid), "{tls}");
        assert_eq!(counter.track(started), Err(Error::Invalid), "{tls}");
    }
    for tag in [1, 2] {
        pair.ab.tag_send(tag, vec![tag as u8; 8 * tag as usize]).detach();
    }
    let ids = [plain, strided].map(|started| match started {
        Ok(OpStatus::InProgress(id)) => id,
        other => panic!("nothing was there to receive: {other:?}"),
    });
    pair.until(|| ids.iter().all(|id| id.status() == Some(ucs::Status::Ok)) && calls.get() == 1);
    assert_eq!([room[0], room[4], room[5], room[6]], [1, 2, 0, 2].map(|n| n * 0x0101_0101_0101_0101));
    ids.into_iter().for_each(|id| pair.b.free(id));
}

/// A loop that sleeps when progress returns 0 reads every end before.
fn progress_tells_of_ends(tls: &str) {
    let pair = Pair::on(tls);
    let queue = CompletionQueue::new(&pair.a, 4);
    queue.track(pair.ab.stream_recv(vec![0; 8]), 1).unwrap();
    queue.track(pair.a.tag_recv(1, TAG_MASK_FULL, vec![0; 8]), 2).unwrap();
    assert_eq!((queue.cancel(1), queue.cancel(2)), (1, 1));
    for _ in 0..100 {
        let before = queue.len();
        assert!(pair.a.progress() > 0 || queue.len() == before, "an end without an event");
    }
    let ends = [queue.read(), queue.read()].map(|end| end.map(|end| end.result.map(drop)));
    assert_eq!(ends, [Some(Err(Error::Cancelled)); 2], "{tls}");
}

on! {
    [each_end_is_read_once a_full_queue_loses_nothing a_dropped_queue_drops_each_buffer_once
     operations_are_cancelled_by_number raw_operations_are_queued_and_counted
     ends_without_a_reader_are_dropped operations_with_callbacks_are_refused progress_tells_of_ends]
    posix: "posix",
    efa: "efa",
    all: "all",
}
