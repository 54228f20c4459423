//! Messages of a worker to itself: matching is as over a wire, also for those copied from memory to memory.

use std::cell::RefCell;
use std::time::Duration;

use proptest::prelude::*;
use ucp::rdm::RecvStatus;
use ucp::{
    Callback, Context, Ep, EpParams, Error, Match, OpParams, OpStatus, RecvRequest, RequestId, SendParams,
    SendRequest, TAG_MASK_FULL, Worker,
};
use ucs::config::Source;
use ucs::sys::fd::wait_readable;

/// A worker and an endpoint to itself that has carried a message.
fn itself() -> (Worker, Ep) {
    let context = Context::configured(Source::empty().with("UCX_TLS", "self")).unwrap();
    let worker = context.worker().unwrap();
    let ep = worker.connect(&worker.address(), EpParams::default()).unwrap();
    ep.tag_send_blocking(0, b"hello").unwrap();
    worker.tag_recv_blocking(0, TAG_MASK_FULL, &mut [0; 5]).unwrap();
    while worker.progress() > 0 {}
    (worker, ep)
}

fn message(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at * 7 + at / 251) as u8).collect()
}

fn passed(worker: &Worker) -> u64 {
    worker.stats().rare.passed_to_self
}

const LONG: usize = 50_000;

#[test]
fn expected_message_is_copied_once() {
    let (worker, ep) = itself();
    let packets = || worker.stats().tx_pkts.iter().sum::<u64>();
    let before = packets();
    for n in 0..10 {
        let recv = worker.tag_recv(n, TAG_MASK_FULL, Vec::with_capacity(LONG));
        let bytes = message(n as usize, LONG);
        let send = if n % 2 == 0 { ep.tag_send_sync(n, bytes) } else { ep.tag_send(n, bytes) };
        assert!(send.is_done() && recv.is_done(), "within the call");
        let (status, got) = recv.wait();
        let status = status.unwrap();
        assert_eq!((status.len, status.tag, status.from), (LONG, n, ep.peer()));
        assert!(got == message(n as usize, LONG));
        assert_eq!(passed(&worker), n + 1);
    }
    assert_eq!(packets(), before);
}

/// The first of two messages is under way as a packet when a receive is posted: the second does not overtake.
#[test]
fn order_is_kept_with_the_shortcut() {
    for len in [0, 9, LONG] {
        let (worker, ep) = itself();
        let short = ep.tag_send(1, vec![1; 9]);
        let first = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(LONG));
        let second = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(LONG));
        let other = ep.tag_send(1, message(2, len));
        assert_eq!((passed(&worker), first.is_done(), second.is_done()), (0, false, false));
        assert_eq!(first.wait().1, [1; 9]);
        assert!(second.wait().1 == message(2, len));
        assert_eq!((short.wait().0, other.wait().0), (Ok(()), Ok(())));
    }
}

/// Each form of a short send: copied within the call, without a packet.
#[test]
fn short_expected_messages_need_no_packet() {
    let (worker, ep) = itself();
    let packets = || worker.stats().tx_pkts.iter().sum::<u64>();
    let before = packets();
    for len in [0, 1, 8, 500, 4000] {
        let bytes = message(len, len);
        for form in 0..4 {
            let recv = worker.tag_recv(7, TAG_MASK_FULL, Vec::with_capacity(len + 1));
            let is_sent = match form {
                0 => ep.tag_send(7, bytes.clone()).is_done(),
                1 => ep.tag_inject(7, &bytes).is_ok(),
                2 => ep.tag_send_blocking(7, &bytes).is_ok(),
                // SAFETY: the bytes are there during the call.
                _ => unsafe { ucp::send_now_raw(&ep, 7, bytes.as_ptr(), len) },
            };
            assert!(is_sent && recv.is_done(), "form {form}, {len} bytes");
            assert!(recv.wait().1 == bytes);
        }
    }
    assert_eq!((packets(), passed(&worker)), (before, 20));
    // SAFETY: there is no callback.
    let closed = unsafe { ep.close_raw(ucp::CloseMode::Force, None) };
    assert_eq!(closed, Ok(OpStatus::Done(())));
    let recv = worker.tag_recv(7, TAG_MASK_FULL, Vec::with_capacity(8));
    assert_eq!(ep.tag_send(7, vec![1; 8]).wait().0, Err(Error::Closed));
    assert!(recv.cancel());
}

/// Callbacks that send to the worker itself are called one after another, not within each other, and may drop
/// the endpoint.
#[test]
fn callbacks_of_messages_to_oneself_run_in_the_send() {
    struct State {
        worker: Worker,
        ep: Option<Ep>,
        word: [u8; 8],
        left: u32,
        depth: u32,
        deepest: u32,
    }
    thread_local!(static STATE: RefCell<Option<State>> = const { RefCell::new(None) });
    fn post_and_send() {
        let (worker, ep, at) = STATE.with_borrow_mut(|state| {
            let state = state.as_mut().unwrap();
            (state.worker.clone(), state.ep.take().unwrap(), state.word.as_mut_ptr())
        });
        let (matching, done) = (Match::tagged(1, TAG_MASK_FULL), Callback::new(done, std::ptr::null_mut()));
        // SAFETY: the word is in the state, which stays until the last receive has ended.
        let id = unsafe { ucp::post_recv_raw(&worker, at, 8, matching, Some(done)) }.unwrap();
        worker.free(id);
        STATE.with_borrow_mut(|state| state.as_mut().unwrap().ep = Some(ep));
        let ep =
            STATE.with_borrow_mut(|state| std::ptr::from_ref(state.as_ref().unwrap().ep.as_ref().unwrap()));
        // SAFETY: the endpoint stays in the state until the last callback drops it.
        assert!(unsafe { ucp::send_now_calling(&worker, ep, 1, [7; 8].as_ptr(), 8) });
    }
    unsafe fn done(_: *mut (), _: RequestId, ended: Result<RecvStatus, Error>) {
        assert_eq!(ended.map(|status| status.len), Ok(8));
        let left = STATE.with_borrow_mut(|state| {
            let state = state.as_mut().unwrap();
            (state.left, state.depth) = (state.left - 1, state.depth + 1);
            state.deepest = state.deepest.max(state.depth);
            state.left
        });
        if left > 0 {
            post_and_send();
        } else {
            let last = STATE.with_borrow_mut(|state| state.as_mut().unwrap().ep.take());
            drop(last);
        }
        STATE.with_borrow_mut(|state| state.as_mut().unwrap().depth -= 1);
    }
    let (worker, ep) = itself();
    let state =
        State { worker: worker.clone(), ep: Some(ep), word: [0; 8], left: 1000, depth: 0, deepest: 0 };
    STATE.set(Some(state));
    post_and_send();
    let state = STATE.take().unwrap();
    assert_eq!((state.left, state.word), (0, [7; 8]), "all have run in the first send");
    assert_eq!(state.deepest, 1);
    assert_eq!(passed(&worker), 1000);
}

/// A worker that sends to itself before each progress also receives what others send.
#[test]
fn messages_to_oneself_hold_back_no_others() {
    thread_local!(static ENDS: RefCell<usize> = const { RefCell::new(0) });
    unsafe fn done(_: *mut (), _: RequestId, _: Result<RecvStatus, Error>) {
        ENDS.with_borrow_mut(|ends| *ends += 1);
    }
    let context = Context::configured(Source::empty().with("UCX_TLS", "self,posix")).unwrap();
    let (worker, other) = (context.worker().unwrap(), context.worker().unwrap());
    let ep = worker.connect(&worker.address(), EpParams::default()).unwrap();
    ep.tag_send_blocking(0, b"hello").unwrap();
    worker.tag_recv_blocking(0, TAG_MASK_FULL, &mut [0; 5]).unwrap();
    let from_other = other.connect(&worker.address(), EpParams::default()).unwrap();
    let recv = worker.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(8));
    let sent = from_other.tag_send(5, vec![3; 8]);
    let callback = Callback::new(done, std::ptr::null_mut());
    let mut word = [0_u8; 8];
    let mut rounds = 0;
    while !recv.is_done() {
        rounds += 1;
        assert!(rounds < 10_000, "nothing of the other worker arrives");
        // SAFETY: the word outlives the receive, which ends below; the callback takes any argument.
        let started = unsafe {
            worker.recv_raw(
                word.as_mut_ptr(),
                8,
                Match::tagged(1, TAG_MASK_FULL),
                &OpParams::with_callback(callback),
            )
        };
        let Ok(OpStatus::InProgress(id)) = started else { unreachable!("nothing was sent") };
        ep.tag_send_blocking(1, &[9; 8]).unwrap();
        other.progress();
        assert!(worker.progress() > 0, "a callback is an event");
        assert_eq!(ENDS.with_borrow(|ends| *ends), rounds);
        worker.free(id);
    }
    assert_eq!((recv.wait().1, sent.wait().0, word), (vec![3; 8], Ok(()), [9; 8]));
}

/// The armed descriptor tells of a receive that another task's send to the worker itself has ended.
#[test]
fn armed_worker_is_told_of_messages_to_itself() {
    for len in [8, LONG] {
        let (worker, ep) = itself();
        let recv = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(len));
        while worker.progress() > 0 || !worker.arm() {}
        let fd = worker.event_fd().expect("self has events");
        assert!(!wait_readable(&[fd], Some(Duration::ZERO)).unwrap());
        ep.tag_send_blocking(1, &message(1, len)).unwrap();
        assert!(wait_readable(&[fd], Some(Duration::ZERO)).unwrap(), "{len} bytes");
        assert!(recv.is_done() && recv.wait().1 == message(1, len));
    }
}

#[test]
fn unexpected_message_takes_no_shortcut() {
    let (worker, ep) = itself();
    let send = ep.tag_send(1, message(1, LONG));
    let other = worker.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(LONG));
    worker.progress();
    assert_eq!((passed(&worker), other.is_done()), (0, false));
    let recv = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(LONG));
    assert!(recv.wait().1 == message(1, LONG) && send.wait().0 == Ok(()));
    other.cancel();
}

#[test]
fn callbacks_run_from_progress() {
    thread_local!(static ENDS: RefCell<Vec<Result<usize, Error>>> = const { RefCell::new(Vec::new()) });
    unsafe fn done(_: *mut (), _: RequestId, ended: Result<RecvStatus, Error>) {
        ENDS.with_borrow_mut(|ends| ends.push(ended.map(|status| status.len)));
    }
    let (worker, ep) = itself();
    let callback = Callback::new(done, std::ptr::null_mut());
    let (mut enough, mut little) = (vec![0u8; LONG], vec![7u8; 100]);
    let mut ids = Vec::new();
    for buf in [&mut enough, &mut little] {
        // SAFETY: the buffers outlive the receives, which complete below, and are read afterwards; the
        // callback takes any argument.
        let started = unsafe {
            worker.recv_raw(
                buf.as_mut_ptr(),
                buf.len(),
                Match::tagged(1, TAG_MASK_FULL),
                &OpParams::with_callback(callback),
            )
        };
        match started.unwrap() {
            OpStatus::InProgress(id) => ids.push(id),
            OpStatus::Done(_) => unreachable!("nothing was sent"),
        }
        let bytes = message(3, LONG);
        // SAFETY: a message that is complete when the call returns needs nothing.
        let sent = unsafe {
            ep.send_raw(bytes.as_ptr(), LONG, &SendParams { tag: Some(1), ..SendParams::default() })
        };
        assert_eq!(sent, Ok(OpStatus::Done(())));
    }
    assert_eq!((passed(&worker), ENDS.with_borrow(Vec::len)), (2, 0));
    while worker.progress() > 0 || ENDS.with_borrow(Vec::len) < 2 {}
    assert_eq!(ENDS.take(), [Ok(LONG), Err(Error::Truncated { len: LONG as u64, room: 100 })]);
    assert!(enough == message(3, LONG) && little == message(3, 100));
    ids.into_iter().for_each(|id| worker.free(id));
}

#[derive(Clone, Debug)]
enum Step {
    Send { tag: u64, len: usize },
    Recv { tag: u64, mask: u64 },
    Progress,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![0..200usize, 7_000..9_000usize, 10_000..60_000usize];
    prop_oneof![
        4 => (0..3u64, len).prop_map(|(tag, len)| Step::Send { tag, len }),
        4 => (0..3u64, prop_oneof![Just(TAG_MASK_FULL), Just(0), Just(1)]).prop_map(|(tag, mask)| Step::Recv { tag, mask }),
        2 => Just(Step::Progress),
    ]
}

/// The reference model: receives and messages match oldest first.
#[derive(Default)]
struct Model {
    /// Unmatched receives: number, tag, mask.
    posted: Vec<(usize, u64, u64)>,
    /// Unmatched messages: number, tag.
    arrived: Vec<(usize, u64)>,
    /// Pairs of receive and message.
    pairs: Vec<(usize, usize)>,
}

impl Model {
    fn send(&mut self, n: usize, tag: u64) {
        match self.posted.iter().position(|(_, want, mask)| (tag ^ want) & mask == 0) {
            Some(at) => self.pairs.push((self.posted.remove(at).0, n)),
            None => self.arrived.push((n, tag)),
        }
    }

    fn recv(&mut self, n: usize, want: u64, mask: u64) {
        match self.arrived.iter().position(|(_, tag)| (tag ^ want) & mask == 0) {
            Some(at) => self.pairs.push((n, self.arrived.remove(at).0)),
            None => self.posted.push((n, want, mask)),
        }
    }
}

proptest! {
    #[test]
    fn receives_match_like_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let (worker, ep) = itself();
        let mut model = Model::default();
        let (mut sends, mut recvs) = (Vec::<(SendRequest<Vec<u8>>, usize)>::new(), Vec::<RecvRequest<Vec<u8>>>::new());
        for step in steps {
            match step {
                Step::Send { tag, len } => {
                    model.send(sends.len(), tag);
                    sends.push((ep.tag_send(tag, message(sends.len(), len)), len));
                }
                Step::Recv { tag, mask } => {
                    model.recv(recvs.len(), tag, mask);
                    recvs.push(worker.tag_recv(tag, mask, Vec::with_capacity(60_000)));
                }
                Step::Progress => _ = worker.progress(),
            }
        }
        for (_, tag) in model.arrived.clone() {
            model.recv(recvs.len(), tag, TAG_MASK_FULL);
            recvs.push(worker.tag_recv(tag, TAG_MASK_FULL, Vec::with_capacity(60_000)));
        }
        for (_, tag, _) in model.posted.clone() {
            model.send(sends.len(), tag);
            sends.push((ep.tag_send(tag, message(sends.len(), 5)), 5));
        }
        let mut by_recv = vec![None; recvs.len()];
        model.pairs.iter().for_each(|(recv, send)| by_recv[*recv] = Some(*send));
        for (recv, send) in recvs.into_iter().zip(by_recv) {
            let (status, got) = recv.wait();
            let send = send.expect("each has one");
            prop_assert_eq!(status.map(|status| status.len), Ok(sends[send].1));
            prop_assert!(got == message(send, sends[send].1), "not that message");
        }
        for (send, _) in sends {
            prop_assert_eq!(send.wait().0, Ok(()));
        }
        while worker.progress() > 0 {}
        prop_assert_eq!(worker.diagnostics().unexpected_bytes(), 0);
    }
}
