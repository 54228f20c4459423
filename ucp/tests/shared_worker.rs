//! Workers that threads share: messages of several threads on one worker, thread modes, sleeping threads,
//! panics, and objects that other threads drop.

#[macro_use]
mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{bytes, context, ends};
use ucp::mt::{
    LockError, ProgressThread, SharedAmMessage, SharedEp, SharedEpParams, SharedMessage, SharedMultiRecv,
    SharedRequest, SharedWorker, ThreadMode,
};
use ucp::{
    ANY_TAG, Access, AmProto, AtomicOp, CloseMode, Error, Match, SendRequest, TAG_MASK_FULL, WaitStatus,
};

const WRONG: Error = Error::Thread(LockError::WrongThread);
const CONCURRENT: Error = Error::Thread(LockError::Concurrent);

/// Types that other threads may use, and hand on.
const fn assert_send_sync<T: Send + Sync>() {}
const _: () = {
    assert_send_sync::<SharedWorker>();
    assert_send_sync::<SharedEp>();
    assert_send_sync::<SharedRequest<SendRequest<Vec<u8>>>>();
    assert_send_sync::<SharedRequest<ucp::RecvRequest<Vec<u8>>>>();
    assert_send_sync::<SharedRequest<ucp::AmSend<String>>>();
    assert_send_sync::<SharedRequest<ucp::FlushRequest>>();
    assert_send_sync::<SharedRequest<ucp::FetchRequest<u64>>>();
    assert_send_sync::<ucp::Mem>();
    assert_send_sync::<ucp::Rkey>();
    assert_send_sync::<SharedAmMessage>();
    assert_send_sync::<SharedMessage>();
    assert_send_sync::<SharedMultiRecv<Vec<u8>>>();
    assert_send_sync::<ucp::StreamData>();
    assert_send_sync::<ProgressThread>();
};

/// Two shared workers, each with an endpoint to the other.
struct Shared {
    a: SharedWorker,
    b: SharedWorker,
    ab: SharedEp,
    ba: SharedEp,
}

impl Shared {
    fn on(tls: &str) -> Shared {
        let (first, second) = ends(tls);
        let one = context(first);
        let a = one.shared_worker(ThreadMode::Multi).unwrap();
        let b = if first == second { one } else { context(second) }.shared_worker(ThreadMode::Multi).unwrap();
        let (ab, ba) = (connect(&a, &b), connect(&b, &a));
        Shared { a, b, ab, ba }
    }

    fn progress(&self) {
        self.a.progress().unwrap();
        self.b.progress().unwrap();
    }

    fn until(&self, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            self.progress();
            assert!(start.elapsed() < Duration::from_secs(60), "nothing happens any more");
        }
    }
}

fn connect(from: &SharedWorker, to: &SharedWorker) -> SharedEp {
    from.connect(&to.address().unwrap(), SharedEpParams::default()).unwrap()
}

fn multi(tls: &str) -> SharedWorker {
    context(tls).shared_worker(ThreadMode::Multi).unwrap()
}

/// Messages in all of a stress test; `UCX_STRESS_MESSAGES` sets another number.
fn stress_messages() -> u64 {
    let given = std::env::var("UCX_STRESS_MESSAGES").ok();
    given.map_or(40_000, |n| n.parse().expect("UCX_STRESS_MESSAGES is a number"))
}

/// Sent before an acknowledgement is waited for.
const BATCH: u64 = 64;

/// Length of message `n`: few are long.
fn len_of(n: u64) -> usize {
    match n % 1024 {
        77 => 20_000,
        511 => 100_000,
        _ => 8 + (n % 57) as usize,
    }
}

/// A number, and bytes that follow from it and the channel.
fn message(channel: u64, n: u64) -> Vec<u8> {
    let mut message = n.to_le_bytes().to_vec();
    message.resize(len_of(n), (channel * 31 + n) as u8);
    message
}

fn send_all(ep: &SharedEp, worker: &SharedWorker, channel: u64, count: u64) {
    let mut sends = Vec::new();
    for n in 0..count {
        let mut send = ep.tag_send(channel, message(channel, n));
        // Some are waited for by the sender, most are taken later.
        if n % 7 == 0 {
            send.wait().unwrap().0.unwrap();
        } else {
            sends.push(send);
        }
        if n % BATCH == BATCH - 1 {
            let (ended, ack) =
                worker.tag_recv(1000 + channel, TAG_MASK_FULL, Vec::with_capacity(8)).wait().unwrap();
            assert_eq!((ended.map(|s| s.len), ack), (Ok(8), n.to_le_bytes().to_vec()));
            sends.drain(..).for_each(|mut send| send.wait().unwrap().0.unwrap());
        }
    }
    sends.into_iter().for_each(|mut send| send.wait().unwrap().0.unwrap());
}

fn recv_all(ep: &SharedEp, worker: &SharedWorker, channel: u64, count: u64) {
    let post = |n| worker.tag_recv(channel, TAG_MASK_FULL, Vec::with_capacity(len_of(n)));
    let mut posted: std::collections::VecDeque<_> = (0..count.min(8)).map(post).collect();
    for n in 0..count {
        let (ended, got) = posted.pop_front().unwrap().wait().unwrap();
        let status = ended.unwrap();
        assert_eq!((status.len, status.tag), (len_of(n), channel));
        assert!(got == message(channel, n), "message {n} of {channel}");
        if n + 8 < count {
            posted.push_back(post(n + 8));
        }
        if n % BATCH == BATCH - 1 {
            ep.tag_send_blocking(1000 + channel, &n.to_le_bytes()).unwrap();
        }
    }
}

/// `threads` threads send on `a` and as many receive on `b`, which may be the same worker.
fn pass((a, ab): (&SharedWorker, &SharedEp), (b, ba): (&SharedWorker, &SharedEp), threads: u64, total: u64) {
    thread::scope(|scope| {
        for channel in 0..threads {
            scope.spawn(move || send_all(ab, a, channel, total / threads));
            scope.spawn(move || recv_all(ba, b, channel, total / threads));
        }
    });
}

fn four_threads_pass_messages(tls: &str) {
    let pair = Shared::on(tls);
    pass((&pair.a, &pair.ab), (&pair.b, &pair.ba), 4, stress_messages());
    assert_eq!(pair.a.diagnostics(|d| d.requests()), Ok(0));
    assert_eq!(pair.b.diagnostics(|d| (d.requests(), d.held_bytes())), Ok((0, 0)));
}

fn four_threads_pass_messages_to_their_own_worker(tls: &str) {
    let worker = multi(tls);
    let ep = connect(&worker, &worker);
    pass((&worker, &ep), (&worker, &ep), 4, stress_messages());
    assert_eq!(worker.diagnostics(|d| (d.requests(), d.held_bytes())), Ok((0, 0)));
}

/// Two workers of one context, two threads each, to a worker with four.
fn two_workers_of_a_context(tls: &str) {
    let (one, peer) = (context(tls), multi(tls));
    let workers = [(); 2].map(|()| one.shared_worker(ThreadMode::Multi).unwrap());
    let ends = [0, 1].map(|n| (connect(&workers[n], &peer), connect(&peer, &workers[n])));
    thread::scope(|scope| {
        for n in 0..2 {
            let ((to, back), worker, peer) = (&ends[n], &workers[n], &peer);
            for channel in [2 * n as u64, 2 * n as u64 + 1] {
                scope.spawn(move || send_all(to, worker, channel, stress_messages() / 4));
                scope.spawn(move || recv_all(back, peer, channel, stress_messages() / 4));
            }
        }
    });
}

/// Counters, puts, gets and keys of several threads on one endpoint.
fn threads_share_memory_and_keys(tls: &str) {
    const ADDS: u64 = 2000;
    let pair = Shared::on(tls);
    let mem = pair.b.mem_alloc(4096, Access::all()).unwrap();
    let served = pair.b.spawn_progress().unwrap();
    let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let (pair, rkey, mem) = (&pair, &rkey, &mem);
            scope.spawn(move || {
                let mut last = None;
                for _ in 0..ADDS {
                    let old = pair.ab.atomic_fetch(AtomicOp::Sum, 1u64, mem.addr(), rkey).wait().unwrap();
                    assert!(last < Some(old), "{last:?} {old}");
                    last = Some(old);
                }
                pair.ab.atomic_post(AtomicOp::Sum, 1u64, mem.addr() + 8, rkey).unwrap();
                let (at, text) = (mem.addr() + 64 + thread * 512, bytes(thread, 500));
                pair.ab.put(text.clone(), at, rkey).wait().unwrap().0.unwrap();
                pair.ab.put_blocking(&text[..8], mem.addr() + 16 + thread * 8, rkey).unwrap();
                pair.ab.fence().unwrap();
                pair.ab.flush().wait().unwrap();
                let (got, back) = pair.ab.get(Vec::with_capacity(500), at, rkey).wait().unwrap();
                assert!(got.is_ok() && back == text);
                let mut word = [0; 8];
                pair.ab.get_blocking(&mut word, mem.addr() + 16 + thread * 8, rkey).unwrap();
                assert_eq!(word, text[..8]);
            });
        }
    });
    assert_eq!((mem.word(0), mem.word(8)), (4 * ADDS, 4));
    let old = pair.ab.atomic_compare(AtomicOp::CompareSwap, 4 * ADDS, 5, mem.addr(), &rkey).wait();
    assert_eq!((old, mem.word(0)), (Ok(4 * ADDS), 5));
    assert!(served.is_running());
    drop((served, rkey, mem));
}

/// Active messages kept beyond the handler, and answered by other threads.
fn kept_active_messages_are_for_any_thread(tls: &str) {
    let pair = Shared::on(tls);
    let (to_others, kept) = channel::<SharedAmMessage>();
    pair.b.set_am_handler(3, move |message| to_others.send(message).unwrap()).unwrap();
    let answers = Arc::new(AtomicUsize::new(0));
    let count = answers.clone();
    pair.a.set_am_handler(4, move |_| _ = count.fetch_add(1, Ordering::Relaxed)).unwrap();
    let (_one, _two) = (pair.a.spawn_progress().unwrap(), pair.b.spawn_progress().unwrap());
    let kept = Mutex::new(kept.into_iter());
    const MESSAGES: u64 = 300;
    thread::scope(|scope| {
        for _ in 0..3 {
            let kept = &kept;
            scope.spawn(move || {
                // The handler, which holds the other end of the channel, is removed at the end.
                let next = || kept.lock().unwrap().next();
                while let Some(message) = next() {
                    let n = u64::from_le_bytes(message.header().try_into().unwrap());
                    let ep = message.reply_ep().unwrap().expect("a way back");
                    let len = message.data_len() as usize;
                    let (ended, data) = message.recv(Vec::with_capacity(len)).wait().unwrap();
                    assert!(ended.map(|s| s.len) == Ok(len) && data == bytes(n, len), "{n}: {ended:?}");
                    ep.am_send(4, &[], Vec::new()).wait().unwrap().0.unwrap();
                }
            });
        }
        for n in 0..MESSAGES {
            let (proto, len) = match n % 3 {
                0 => (AmProto::Auto, 8),
                1 => (AmProto::Eager, 20_000),
                _ => (AmProto::Rendezvous, 30_000),
            };
            let mut sent = pair.ab.am_send_with(proto, 3, &n.to_le_bytes(), bytes(n, len));
            if n % 10 == 0 {
                sent.wait().unwrap().0.unwrap();
            } else {
                sent.detach().unwrap();
            }
        }
        let start = Instant::now();
        while answers.load(Ordering::Relaxed) < MESSAGES as usize {
            assert!(start.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        pair.b.clear_am_handler(3).unwrap();
    });
}

/// Probed messages, several pieces, streams and receives of many messages, each begun by one thread and ended
/// by another.
fn begun_by_one_thread_and_ended_by_another(tls: &str) {
    let pair = Shared::on(tls);
    let (_one, _two) = (pair.a.spawn_progress().unwrap(), pair.b.spawn_progress().unwrap());
    let elsewhere = |f: &mut (dyn FnMut() + Send)| thread::scope(|scope| scope.spawn(f).join().unwrap());
    for len in [0, 8, 5000, 200_000] {
        let text = bytes(len as u64, len);
        let mut send = pair.ab.tag_send_sync(1, text.clone());
        let mut found = None;
        pair.until(|| {
            found = pair.b.mprobe(Match::tagged(1, TAG_MASK_FULL)).unwrap();
            found.is_some()
        });
        let mut recv = None;
        elsewhere(&mut || recv = found.take().map(|message| message.recv(Vec::with_capacity(len))));
        let (ended, got) = recv.unwrap().wait().unwrap();
        assert!(ended.is_ok() && got == text && send.wait().unwrap().0.is_ok());

        let (head, tail) = text.split_at(len / 3);
        let params = ucp::SendParams { tag: Some(2), ..Default::default() };
        let mut send = Some(pair.ab.send_iov(vec![head.to_vec(), tail.to_vec()], &params));
        let rooms = vec![Vec::with_capacity(len / 2), Vec::with_capacity(len)];
        let mut recv = pair.b.recv_iov(Match::tagged(2, TAG_MASK_FULL), rooms);
        elsewhere(&mut || {
            let (ended, got) = recv.wait().unwrap();
            assert!(ended.map(|s| s.len) == Ok(len) && got.concat() == text);
            send.take().unwrap().wait().unwrap().0.unwrap();
        });

        let mut send = pair.ab.stream_send(text.clone());
        let mut recv = pair.ba.stream_recv_full(Vec::with_capacity(len));
        elsewhere(&mut || assert!(recv.wait().unwrap().1 == text));
        send.wait().unwrap().0.unwrap();
        if len > 0 {
            let mut send = pair.ab.stream_send(text.clone());
            let mut data = None;
            pair.until(|| {
                data = pair.ba.stream_recv_data().unwrap();
                data.is_some()
            });
            elsewhere(&mut || assert!(**data.as_ref().unwrap() == text[..]));
            send.wait().unwrap().0.unwrap();
        }
    }
    let mut many = pair.b.recv_multi(Match::tagged(0, ANY_TAG), vec![0u8; 50_000], 10_000).unwrap();
    for n in 0..4 {
        pair.ab.tag_send(n, bytes(n, 10_000)).detach().unwrap();
    }
    let mut parts = Vec::new();
    elsewhere(&mut || {
        while let (Some(part), true) = (many.wait_next().unwrap(), parts.len() < 3) {
            parts.push(part);
        }
    });
    for part in &parts {
        assert!(many.bytes(part) == bytes(part.status().unwrap().tag, 10_000));
    }
    assert_eq!(many.finish().map(|(ended, buf)| (ended, buf.len())), Ok((Ok(()), 50_000)));
}

/// Waits until a thread sleeps.
fn until_asleep(name: &str) {
    let state = || {
        std::fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            let (head, tail) = stat.rsplit_once(") ")?;
            head.ends_with(&format!("({name}")).then(|| tail.chars().next())?
        })
    };
    let start = Instant::now();
    while state() != Some('S') {
        assert!(start.elapsed() < Duration::from_secs(60), "{name} is {:?}", state());
        thread::sleep(Duration::from_millis(1));
    }
}

fn named<'s, T: Send + 's>(
    scope: &'s thread::Scope<'s, '_>,
    name: &str,
    f: impl FnOnce() -> T + Send + 's,
) -> thread::ScopedJoinHandle<'s, T> {
    thread::Builder::new().name(name.into()).spawn_scoped(scope, f).unwrap()
}

/// Threads asleep in a wait for their own requests are woken by the thread that completes these, and by
/// arrivals if there is none.
fn sleeping_threads_are_woken(tls: &str) {
    let pair = Shared::on(tls);
    pair.ab.tag_send(99, vec![1]).wait().unwrap().0.unwrap();
    pair.b.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(1)).wait().unwrap().0.unwrap();
    for one_progresses in [true, false] {
        let (pair, woken) = (&pair, &Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for tag in 0..3 {
                let name = format!("sleeper {tag}");
                named(scope, &name, move || {
                    let mut recv = pair.b.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8));
                    assert_eq!(recv.wait().unwrap().1, tag.to_le_bytes());
                    woken.lock().unwrap().push(tag);
                });
            }
            (0..3).for_each(|tag| until_asleep(&format!("sleeper {tag}")));
            // Not in the order in which they wait, so that the one that progresses leaves in between.
            for tag in [1, 0, 2] {
                pair.ab.tag_send_blocking(tag, &tag.to_le_bytes()).unwrap();
                let start = Instant::now();
                while !woken.lock().unwrap().contains(&tag) {
                    if one_progresses {
                        pair.b.progress().unwrap();
                    }
                    pair.a.progress().unwrap();
                    assert!(start.elapsed() < Duration::from_secs(60), "{tag} sleeps on");
                }
            }
        });
    }
}

/// A signal ends a wait, one that is under way and the next one.
fn signal_ends_a_wait(tls: &str) {
    for mode in [ThreadMode::Single, ThreadMode::Serialized, ThreadMode::Multi] {
        let (ready, go) = channel();
        thread::scope(|scope| {
            named(scope, "waits", || {
                let worker = context(tls).shared_worker(mode).unwrap();
                ready.send(worker.clone()).unwrap();
                let start = Instant::now();
                let waits = || worker.wait(Some(Duration::from_secs(100)));
                while !start.elapsed().is_zero() && worker.progress().unwrap() > 0 {}
                // At once, by the signal before.
                until_signalled(&waits);
                until_signalled(&waits);
                assert!(start.elapsed() < Duration::from_secs(60), "{mode:?}");
                assert_eq!(worker.wait(Some(Duration::from_millis(10))), Ok(WaitStatus::TimedOut));
            });
            let worker = go.recv().unwrap();
            for _ in 0..2 {
                until_asleep("waits");
                worker.signal();
                thread::sleep(Duration::from_millis(50));
            }
        });
    }
}

fn until_signalled(wait: &dyn Fn() -> Result<WaitStatus, Error>) {
    assert_eq!(wait(), Ok(WaitStatus::Ready));
}

/// An armed descriptor tells of arrivals, of events that another thread has received, and of signals.
fn armed_descriptor_is_readable(tls: &str) {
    let pair = Shared::on(tls);
    pair.ab.tag_send(99, vec![1]).wait().unwrap().0.unwrap();
    pair.b.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(1)).wait().unwrap().0.unwrap();
    let fd = pair.b.event_fd().unwrap().expect("each lane has one");
    let readable = |time| ucs::sys::fd::wait_readable(&[fd], Some(Duration::from_millis(time))).unwrap();
    let arm = || {
        let start = Instant::now();
        while !pair.b.arm().unwrap() {
            pair.progress();
            assert!(start.elapsed() < Duration::from_secs(60), "cannot be armed");
        }
    };
    arm();
    assert!(!readable(10));
    pair.b.signal();
    assert!(readable(10_000) && !pair.b.arm().unwrap());
    arm();
    let other = pair.b.clone();
    pair.ab.tag_send(1, vec![1]).wait().unwrap().0.unwrap();
    assert!(readable(10_000));
    while pair.b.probe(Match::tagged(1, TAG_MASK_FULL)).unwrap().is_none() {
        other.progress().unwrap();
    }
    assert!(readable(10_000), "events that another handle has received");
    assert!(!pair.b.arm().unwrap(), "there were events");
    assert!(pair.b.discard(Match::tagged(1, TAG_MASK_FULL)).unwrap().is_some());
}

#[test]
fn single_is_for_its_thread() {
    let worker = context("posix").shared_worker(ThreadMode::Single).unwrap();
    let address = worker.address().unwrap();
    let ep = worker.connect(&address, SharedEpParams::default()).unwrap();
    let mem = worker.mem_alloc(64, Access::all()).unwrap();
    let key = mem.pack_rkey();
    let rkey = ep.unpack_rkey(&key).unwrap();
    let recv = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
    let (worker_in, ep_in) = (worker.clone(), &ep);
    let mut recv = thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut recv = recv;
            assert_eq!(worker_in.progress(), Err(WRONG));
            assert_eq!(worker_in.address().map(drop), Err(WRONG));
            assert_eq!(worker_in.wait(None), Err(WRONG));
            assert_eq!(worker_in.arm(), Err(WRONG));
            assert_eq!(worker_in.block_on(async { 1 }), Err(WRONG));
            assert_eq!(worker_in.flush().wait(), Err(WRONG));
            assert_eq!(worker_in.mprobe(Match::untagged()).map(|m| m.is_some()), Err(WRONG));
            assert!(worker_in.connect(&address, SharedEpParams::default()).is_err());
            assert!(worker_in.mem_alloc(8, Access::all()).is_err());
            assert!(worker_in.set_am_handler(1, |_| {}).is_err());
            assert!(
                worker_in.recv_multi(Match::untagged(), vec![0; 8], 1).is_err_and(|(_, buf)| buf.len() == 8)
            );
            let (ended, buf) = ep_in.tag_send(1, vec![1, 2]).wait().unwrap();
            assert_eq!((ended, buf), (Err(WRONG), vec![1, 2]), "the buffer comes back");
            assert_eq!(ep_in.tag_send_blocking(1, &[1]), Err(WRONG));
            assert!(ep_in.unpack_rkey(&key).is_err());
            assert_eq!(ep_in.atomic_fetch(AtomicOp::Sum, 1u64, mem.addr(), &rkey).wait(), Err(WRONG));
            assert_eq!((recv.wait().map(drop), recv.is_done()), (Err(WRONG), Err(WRONG)));
            assert_eq!((recv.test().map(drop), recv.cancel()), (Err(WRONG), Err(WRONG)));
            // Dropped by the worker's thread, later.
            drop((rkey, mem, worker_in.clone()));
            let message = Error::Thread(LockError::WrongThread).to_string();
            assert!(message.contains("another thread"), "{message}");
            recv
        });
        other.join().unwrap()
    });
    worker.progress().unwrap();
    ep.tag_send(1, vec![1; 8]).wait().unwrap().0.unwrap();
    assert_eq!(recv.wait().unwrap().1, [1; 8]);
    let error = worker.spawn_progress().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn serialized_refuses_a_second_thread_while_one_is_inside() {
    let worker = context("posix").shared_worker(ThreadMode::Serialized).unwrap();
    let ep = connect(&worker, &worker);
    let (inside, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (there, leave) = (inside.clone(), go.clone());
    worker
        .set_am_handler(1, move |_| {
            there.wait();
            leave.wait();
        })
        .unwrap();
    let mut recv = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
    thread::scope(|scope| {
        scope.spawn(|| ep.am_send(1, &[], Vec::new()).wait().unwrap().0.and_then(|()| worker.flush().wait()));
        inside.wait();
        assert_eq!(worker.progress(), Err(CONCURRENT));
        assert_eq!((recv.wait().map(drop), recv.is_done()), (Err(CONCURRENT), Err(CONCURRENT)));
        let (ended, buf) = ep.tag_send(1, vec![1, 2]).wait().unwrap();
        assert_eq!((ended, buf), (Err(CONCURRENT), vec![1, 2]));
        go.wait();
    });
    // Any thread may use it, one after another.
    thread::scope(|scope| {
        scope.spawn(|| ep.tag_send(1, vec![3; 8]).wait().unwrap().0.unwrap()).join().unwrap();
        scope.spawn(|| assert_eq!(recv.wait().unwrap().1, [3; 8]));
    });
}

/// Futures of shared requests, in tasks that a runtime moves between its threads.
fn tasks_of_a_runtime_await_messages(tls: &str) {
    let pair = Shared::on(tls);
    let (ab, ba) = (Arc::new(pair.ab), Arc::new(pair.ba));
    let _served = (pair.a.spawn_progress().unwrap(), pair.b.spawn_progress().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
    let tasks: Vec<_> = (0..16u64)
        .map(|tag| {
            let (ab, ba, a, b) = (ab.clone(), ba.clone(), pair.a.clone(), pair.b.clone());
            runtime.spawn(async move {
                for n in 0..50 {
                    let text = message(tag, n * 77);
                    let recv = b.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(text.len()));
                    ab.tag_send_sync(tag, text.clone()).await?.0?;
                    let (ended, got) = recv.await?;
                    assert!(ended?.len == text.len() && got == text, "{n} of {tag}");
                    let back = a.tag_recv(1000 + tag, TAG_MASK_FULL, Vec::with_capacity(8));
                    ba.tag_send(1000 + tag, n.to_le_bytes().to_vec()).await?.0?;
                    assert_eq!(back.await?.1, n.to_le_bytes());
                    // Polled once, by another task, and dropped.
                    let never = a.tag_recv(5000 + tag, TAG_MASK_FULL, Vec::with_capacity(8));
                    let waits = tokio::spawn(never);
                    waits.abort();
                }
                ab.flush().await
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap().unwrap();
    }
    drop(runtime);
    assert_eq!(pair.a.block_on(async { pair.a.flush().await }), Ok(Ok(())));
}

/// An endpoint whose peer is told later, by another thread.
fn endpoint_is_connected_later(tls: &str) {
    let pair = Shared::on(tls);
    let (ep, connector) = pair.a.connect_later(SharedEpParams::default()).unwrap();
    let mut sends: Vec<_> = (0..5u64).map(|n| ep.tag_send(1, n.to_le_bytes().to_vec())).collect();
    assert!(connector.is_awaited().unwrap());
    let address = pair.b.address().unwrap();
    thread::scope(|scope| scope.spawn(|| connector.connect(&address).unwrap()).join().unwrap());
    for n in 0..5u64 {
        let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
        pair.until(|| recv.is_done().unwrap());
        assert_eq!({ recv }.wait().unwrap().1, n.to_le_bytes());
    }
    sends.iter_mut().for_each(|send| send.wait().unwrap().0.unwrap());
    let (ep, connector) = pair.a.connect_later(SharedEpParams::default()).unwrap();
    let mut send = ep.tag_send(1, vec![1]);
    drop(connector);
    assert!(matches!(send.wait().unwrap().0, Err(Error::ConnectFailed(_))));
}

/// A panic of a handler reaches the thread that progresses, and leaves the worker to the others.
#[test]
fn panic_in_a_handler_leaves_the_lock_open() {
    let worker = multi("posix");
    let ep = connect(&worker, &worker);
    worker.set_am_handler(1, |_| panic!("on purpose")).unwrap();
    let send_panic = || ep.am_send(1, &[], Vec::new()).detach().unwrap();
    send_panic();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            worker.progress().unwrap();
        }
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"));
    // Of two threads that wait, the one that progresses panics, and the other one goes on progressing.
    let wait = |tag: u64| {
        let mut recv = worker.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8));
        catch_unwind(AssertUnwindSafe(|| recv.wait().unwrap().1)).ok()
    };
    thread::scope(|scope| {
        let waiting = [2, 3].map(|tag| named(scope, &format!("waits {tag}"), move || wait(tag)));
        [2, 3].iter().for_each(|tag| until_asleep(&format!("waits {tag}")));
        send_panic();
        let start = Instant::now();
        while !waiting.iter().any(|thread| thread.is_finished()) {
            assert!(start.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        for tag in [2, 3] {
            ep.tag_send_blocking(tag, &[tag as u8; 8]).unwrap();
        }
        let mut got = waiting.map(|thread| thread.join().unwrap());
        got.sort();
        assert!(got == [None, Some(vec![2; 8])] || got == [None, Some(vec![3; 8])], "{got:?}");
    });
    // A callback's panic ends neither a wait for borrowed memory nor the worker.
    let (mut recv, mut buf) = (worker.tag_recv(4, TAG_MASK_FULL, Vec::with_capacity(8)), [0; 8]);
    worker.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(8)).then(|_| panic!("on purpose")).unwrap();
    let panic = thread::scope(|scope| {
        let blocked = named(scope, "blocked", || {
            catch_unwind(AssertUnwindSafe(|| worker.tag_recv_blocking(6, TAG_MASK_FULL, &mut buf)))
        });
        until_asleep("blocked");
        ep.tag_send_blocking(5, &[5; 8]).unwrap();
        blocked.join().unwrap()
    });
    assert!(panic.is_err(), "the receive was cancelled");
    ep.tag_send_blocking(4, &[4; 8]).unwrap();
    assert_eq!(recv.wait().unwrap().1, [4; 8]);
}

/// A buffer that counts those that exist.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Counted {
    fn new(len: usize, count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(vec![0; len], count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: the bytes are the vector's, which is not changed.
unsafe impl ucp::IoBuf for Counted {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

// SAFETY: as above.
unsafe impl ucp::IoBufMut for Counted {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.0.as_mut_ptr(), self.0.len())
    }

    unsafe fn set_filled(&mut self, _len: usize) {}
}

/// All kinds of objects of a worker, and some operations under way.
fn all_objects(mode: ThreadMode, buffers: &Arc<AtomicUsize>) -> Vec<Box<dyn std::any::Any + Send>> {
    let worker = context("posix").shared_worker(mode).unwrap();
    let ep = connect(&worker, &worker);
    let (kept, all) = channel();
    let owned = Counted::new(1, buffers);
    worker
        .set_am_handler(1, move |message| {
            let _owned = &owned;
            kept.send(message).unwrap();
        })
        .unwrap();
    let params = SharedEpParams::on_error(|_| {});
    let with_callback = worker.connect(&worker.address().unwrap(), params).unwrap();
    let mem = worker.mem_alloc(64, Access::all()).unwrap();
    let rkey = ep.unpack_rkey(&mem.pack_rkey()).unwrap();
    ep.am_send(1, &[1], vec![2; 100]).wait().unwrap().0.unwrap();
    ep.am_send_with(AmProto::Rendezvous, 1, &[1], Counted::new(9000, buffers)).detach().unwrap();
    ep.tag_send(77, vec![7; 100]).wait().unwrap().0.unwrap();
    let (mut eager, mut rendezvous, mut probed) = (None, None, None);
    while eager.is_none() || rendezvous.is_none() || probed.is_none() {
        worker.progress().unwrap();
        for message in all.try_iter() {
            let to = if message.data().is_some() { &mut eager } else { &mut rendezvous };
            *to = Some(message);
        }
        probed = probed.or_else(|| worker.mprobe(Match::tagged(77, TAG_MASK_FULL)).unwrap());
    }
    let recv = worker.tag_recv(1, TAG_MASK_FULL, Counted::new(8, buffers));
    let matched = worker.tag_recv(2, TAG_MASK_FULL, Counted::new(200_000, buffers));
    let send = ep.tag_send_sync(2, Counted::new(200_000, buffers));
    let unmatched = ep.tag_send_sync(3, Counted::new(8, buffers));
    let called = worker.tag_recv(4, TAG_MASK_FULL, Counted::new(8, buffers));
    called.then(|_| {}).unwrap();
    let many = worker.recv_multi(Match::tagged(5, TAG_MASK_FULL), Counted::new(100, buffers), 10);
    let flush = worker.flush();
    let fetch = ep.atomic_fetch(AtomicOp::Sum, 1u64, mem.addr(), &rkey);
    vec![
        Box::new(worker),
        Box::new(ep),
        Box::new(with_callback),
        Box::new(mem),
        Box::new(rkey),
        Box::new(eager),
        Box::new(rendezvous),
        Box::new(probed),
        Box::new(recv),
        Box::new(matched),
        Box::new(send),
        Box::new(unmatched),
        Box::new(many.map_err(drop)),
        Box::new(flush),
        Box::new(fetch),
    ]
}

/// Objects of a worker may be dropped in any order, each by any thread.
#[test]
fn objects_are_dropped_in_any_order_by_any_thread() {
    for mode in [ThreadMode::Single, ThreadMode::Serialized, ThreadMode::Multi] {
        for seed in 0..30 {
            let buffers = Arc::new(AtomicUsize::new(0));
            let mut objects = all_objects(mode, &buffers);
            assert!(buffers.load(Ordering::Relaxed) > 5);
            let order = bytes(seed, objects.len());
            let mut hands: [Vec<_>; 3] = Default::default();
            for n in order {
                hands[usize::from(n) % 3].push(objects.swap_remove(usize::from(n) / 3 % objects.len()));
            }
            let [mine, first, second] = hands;
            thread::scope(|scope| {
                scope.spawn(|| first.into_iter().for_each(drop));
                let second = scope.spawn(|| second.into_iter().for_each(drop));
                if seed % 2 == 0 {
                    second.join().unwrap();
                }
                mine.into_iter().for_each(drop);
            });
            assert_eq!(buffers.load(Ordering::Relaxed), 0, "{mode:?} {seed}");
        }
    }
}

/// Handlers and callbacks may use the worker that calls them.
fn handlers_use_their_worker(tls: &str) {
    let pair = Shared::on(tls);
    let ep = Arc::new(connect(&pair.b, &pair.a));
    let inner = ep.clone();
    pair.b
        .set_am_handler(1, move |message| {
            let n = message.header()[0];
            // Progress, queries, sends and a wait, all inside.
            inner.worker().progress().unwrap();
            assert!(!inner.worker().lanes().unwrap().is_empty());
            inner.tag_send(1, vec![n; 8]).wait().unwrap().0.unwrap();
            let then = inner.clone();
            inner
                .tag_send(2, vec![n; 8])
                .then(move |_| then.tag_send(3, vec![n; 8]).detach().unwrap())
                .unwrap();
        })
        .unwrap();
    let _served = pair.b.spawn_progress().unwrap();
    for n in 0..100u8 {
        pair.ab.am_send(1, &[n], Vec::new()).wait().unwrap().0.unwrap();
        for tag in 1..4 {
            let (ended, got) = pair.a.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8)).wait().unwrap();
            assert!(ended.is_ok() && got == [n; 8]);
        }
    }
    // The handler holds an endpoint, and that the worker.
    pair.b.clear_am_handler(1).unwrap();
    assert_eq!(Arc::strong_count(&ep), 1);
}

/// Flush, cancel, close, and the callback when the peer is gone.
fn endpoints_are_flushed_and_closed(tls: &str) {
    let Shared { a, b, ab, ba } = Shared::on(tls);
    ab.tag_send(1, bytes(1, 100)).detach().unwrap();
    let served = b.spawn_progress().unwrap();
    ab.flush().wait().unwrap();
    a.flush_within(Duration::from_secs(60)).wait().unwrap();
    a.fence().unwrap();
    assert_eq!(b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(100)).wait().unwrap().1, bytes(1, 100));
    let mut recv = a.tag_recv(9, TAG_MASK_FULL, Vec::with_capacity(8));
    assert_eq!(recv.test().map(|ended| ended.is_some()), Ok(false));
    assert_eq!(recv.cancel(), Ok(true));
    assert_eq!(recv.wait().unwrap().0, Err(Error::Cancelled));
    assert!(ab.peer_view().unwrap().is_some() && !ab.protocols(|p| p.transports()).unwrap().is_empty());
    let failed = Arc::new(Mutex::new(None));
    let callback = failed.clone();
    let params = SharedEpParams::on_error(move |error| *callback.lock().unwrap() = Some(error));
    let observed = b.connect(&a.address().unwrap(), params).unwrap();
    observed.tag_send(1, vec![1]).wait().unwrap().0.unwrap();
    assert_eq!(ab.close(CloseMode::Flush(Duration::from_secs(60))).wait(), Ok(()));
    drop((recv, a));
    let start = Instant::now();
    while failed.lock().unwrap().is_none() {
        b.check_peers().unwrap();
        let _ = observed.tag_send(1, vec![1]).wait().unwrap();
        assert!(start.elapsed() < Duration::from_secs(60), "the peer's end is not noticed");
    }
    assert!(observed.tag_send(1, vec![1]).wait().unwrap().0.is_err());
    assert_eq!(ba.close(CloseMode::Force).wait().is_ok(), failed.lock().unwrap().is_none());
    drop((served, observed));
}

on! {
    [
        four_threads_pass_messages four_threads_pass_messages_to_their_own_worker two_workers_of_a_context
        threads_share_memory_and_keys kept_active_messages_are_for_any_thread
        begun_by_one_thread_and_ended_by_another sleeping_threads_are_woken signal_ends_a_wait
        armed_descriptor_is_readable handlers_use_their_worker endpoints_are_flushed_and_closed
        tasks_of_a_runtime_await_messages endpoint_is_connected_later
    ]
    posix: "posix",
    efa: "efa",
    all: "all",
}

/// A worker's own interface carries messages to itself, and reaches no other worker of the process.
#[test]
fn messages_to_itself_go_by_its_own_interface() {
    for tls in ["self", "self,posix"] {
        let context = context(tls);
        let worker = context.shared_worker(ThreadMode::Multi).unwrap();
        let other = context.shared_worker(ThreadMode::Multi).unwrap();
        let ep = worker.connect(&worker.address().unwrap(), SharedEpParams::default()).unwrap();
        std::thread::scope(|scope| {
            for tag in 0..4u64 {
                let (worker, ep) = (&worker, &ep);
                scope.spawn(move || {
                    for n in 0..1000u64 {
                        let mut recv = worker.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(8));
                        let sent = ep.tag_send(tag, n.to_ne_bytes().to_vec()).wait().unwrap();
                        assert_eq!(sent.0, Ok(()));
                        let (status, got) = recv.wait().unwrap();
                        assert_eq!((status.map(|s| s.len), got), (Ok(8), n.to_ne_bytes().to_vec()), "{tls}");
                    }
                });
            }
        });
        let reached = worker.connect(&other.address().unwrap(), SharedEpParams::default());
        assert_eq!(reached.is_ok(), tls != "self", "{tls}");
    }
}
