//! Messages of a worker to itself: matching is as over a wire, also for those copied from memory to memory.

use std::cell::RefCell;

use proptest::prelude::*;
use ucp::rdm::RecvStatus;
use ucp::{
    Callback, Context, Ep, EpParams, Error, Match, OpParams, OpStatus, RecvRequest, RequestId, SendParams,
    SendRequest, TAG_MASK_FULL, Worker,
};
use ucs::config::Source;

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

#[test]
fn order_is_kept_with_the_shortcut() {
    let (worker, ep) = itself();
    let first = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(LONG));
    let second = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(LONG));
    let short = ep.tag_send(1, vec![1; 9]);
    let long = ep.tag_send(1, message(2, LONG));
    assert_eq!((passed(&worker), second.is_done()), (0, false));
    assert_eq!(first.wait().1, [1; 9]);
    assert!(second.wait().1 == message(2, LONG));
    assert_eq!((short.wait().0, long.wait().0), (Ok(()), Ok(())));
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
