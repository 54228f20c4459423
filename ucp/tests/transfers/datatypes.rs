//! Messages, active messages and streams of data that callbacks pack and unpack, and of strided blocks, on
//! every lane; failing callbacks; `finish` exactly once.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::rc::Rc;

use crate::common::{Pair, bytes};
use proptest::prelude::*;
use ucp::rdm::RecvStatus;
use ucp::select::DeliveryComplete;
use ucp::{
    AmMessage, AmParams, AmProto, Callback, CloseMode, DatatypeError, Error, Generic, GenericOps, Layout,
    Match, OpParams, OpStatus, Pack, Packed, RequestId, SendParams, StreamRecvMode, Stride, Strided,
    StridedIov, TAG_MASK_FULL, Unpack, Unpacked, Worker, in_callback,
};
use ucs::Status;

/// Packs bytes, at most `step` a call. Fails at `fail_at` as `fault` says.
struct Source {
    bytes: Vec<u8>,
    step: usize,
    fail_at: usize,
    fault: Fault,
}

/// Takes bytes. Fails at `fail_at` as `fault` says.
struct Target {
    bytes: Vec<u8>,
    seen: usize,
    fail_at: usize,
    fault: Fault,
}

#[derive(Clone)]
enum Fault {
    Status,
    Panic,
    Reenter(Worker),
}

impl Fault {
    fn happen(&self) {
        match self {
            Fault::Status => {}
            Fault::Panic => panic!("a planted panic"),
            Fault::Reenter(worker) => drop(worker.progress()),
        }
    }
}

impl Pack for Source {
    fn packed_size(&self) -> usize {
        self.bytes.len()
    }

    fn pack(&mut self, offset: usize, to: &mut [u8]) -> usize {
        assert!(in_callback());
        let n = to.len().min(self.step);
        if offset + n > self.fail_at {
            self.fault.happen();
            return 0;
        }
        to[..n].copy_from_slice(&self.bytes[offset..offset + n]);
        n
    }
}

impl Unpack for Target {
    fn packed_size(&self) -> usize {
        self.bytes.len()
    }

    fn unpack(&mut self, offset: usize, from: &[u8]) -> Result<(), Status> {
        assert!(in_callback());
        if offset + from.len() > self.fail_at {
            self.fault.happen();
            return Err(Status::OutOfRange);
        }
        self.bytes[offset..offset + from.len()].copy_from_slice(from);
        self.seen += from.len();
        Ok(())
    }
}

fn source(bytes: Vec<u8>, step: usize) -> Packed<Source> {
    Packed::new(Source { bytes, step, fail_at: usize::MAX, fault: Fault::Status })
}

fn target(room: usize) -> Unpacked<Target> {
    Unpacked::new(Target { bytes: vec![0xee; room], seen: 0, fail_at: usize::MAX, fault: Fault::Status })
}

/// Around the limits of one packet, several packets, and long messages on every lane.
const LENS: [usize; 14] =
    [0, 1, 8, 100, 4000, 4070, 4096, 8100, 8192, 9000, 65_536, 70_001, 300_000, 1_200_000];

fn check(status: Result<RecvStatus, Error>, got: &Target, whole: &[u8]) {
    let room = got.bytes.len();
    match status {
        Ok(status) => assert!(whole.len() <= room && status.len == whole.len()),
        Err(error) => assert_eq!(error, Error::Truncated { len: whole.len() as u64, room }),
    }
    let n = whole.len().min(room);
    assert!(got.bytes[..n] == whole[..n] && got.seen == n, "{} into {room}", whole.len());
}

fn messages(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    for (n, len) in LENS.into_iter().enumerate() {
        let whole = bytes(n as u64, len);
        for (sync, late, room, tag) in [
            (DeliveryComplete::No, false, len, Some(3)),
            (DeliveryComplete::No, true, len, Some(3)),
            (DeliveryComplete::Yes, false, len + 10, Some(3)),
            (DeliveryComplete::No, true, len / 2, Some(3)),
            (DeliveryComplete::No, false, len / 2, None),
        ] {
            let what = tag.map_or(Match::untagged(), |tag| Match::tagged(tag, TAG_MASK_FULL));
            let recv = || pair.b.recv(what, target(room));
            let posted = (!late).then(recv);
            let params = SendParams { tag, sync, ..SendParams::default() };
            let send = pair.ab.send(source(whole.clone(), 1 + n * 997), &params);
            if late {
                pair.settle();
            }
            let recv = posted.unwrap_or_else(recv);
            pair.until(|| recv.is_done() && send.is_done());
            let (status, got) = recv.wait();
            check(status, got.get(), &whole);
            let (sent, packed) = send.wait();
            assert_eq!(sent, Ok(()));
            // What comes back can be sent again, and to a contiguous receive.
            let send = pair.ab.tag_send(4, packed);
            let recv = pair.b.tag_recv(4, TAG_MASK_FULL, Vec::with_capacity(len));
            pair.until(|| recv.is_done() && send.is_done());
            assert!(recv.wait().1 == whole && send.wait().0 == Ok(()));
        }
        // A contiguous message, as long as the kernel or the device may read it, to a matched probe.
        let send = pair.ab.tag_send(5, whole.clone());
        pair.settle();
        let recv = pair.b.mprobe(Match::tagged(5, TAG_MASK_FULL)).unwrap().recv(target(len));
        pair.until(|| recv.is_done() && send.is_done());
        let (status, got) = recv.wait();
        check(status, got.get(), &whole);
    }
    pair.settle();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().requests()), (0, 0));
}

fn active_messages(tls: &str) {
    let pair = Pair::on(tls);
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    pair.b.set_am_handler(5, move |message| to.borrow_mut().push(message));
    for (n, len) in LENS.into_iter().enumerate() {
        let whole = bytes(n as u64, len);
        for (proto, header, room) in [
            (AmProto::Auto, &b"header"[..], len),
            (AmProto::Auto, b"", len / 2),
            (AmProto::Eager, b"", len),
            (AmProto::Rendezvous, b"header", len),
            (AmProto::Rendezvous, b"", len / 2),
        ] {
            let send = pair.ab.am_send_with(proto, 5, header, source(whole.clone(), 5000));
            pair.until(|| !kept.borrow().is_empty());
            let message = kept.borrow_mut().pop().unwrap();
            assert_eq!((message.header(), message.data_len()), (header, len as u64));
            let recv = message.recv(target(room));
            pair.until(|| recv.is_done() && send.is_done());
            let (status, got) = recv.wait();
            check(status, got.get(), &whole);
            assert_eq!(send.wait().0, Ok(()));
        }
    }
}

fn streams(tls: &str) {
    let pair = Pair::on(tls);
    let whole = bytes(3, 400_000);
    let sends = [0..150_000, 150_000..150_001, 150_001..400_000]
        .map(|range| pair.ab.stream_send(source(whole[range].to_vec(), 3000)));
    let mut rest = &whole[..];
    for room in [1, 8, 100_000, 100_000] {
        let recv = pair.ba.stream_recv_full(target(room));
        pair.until(|| recv.is_done());
        let (status, got) = recv.wait();
        assert_eq!(status.map(|status| status.len), Ok(room));
        assert!(got.get().bytes == rest.split_off(..room).unwrap() && got.get().seen == room);
    }
    let recv = pair.ba.stream_recv(target(400_000));
    pair.until(|| recv.is_done());
    let (status, got) = recv.wait();
    let len = status.unwrap().len;
    assert!(len > 0 && got.get().bytes[..len] == *rest.split_off(..len).unwrap());
    let recv = pair.ba.stream_recv_full(vec![0; rest.len()].into_boxed_slice());
    pair.until(|| recv.is_done() && sends.iter().all(|send| send.is_done()));
    assert!(*recv.wait().1 == *rest);
    // An error of a callback is the receive's, and the stream goes on.
    let failing = Target { bytes: vec![0; 100], seen: 0, fail_at: 50, fault: Fault::Status };
    let send = pair.ab.stream_send(vec![1; 100]);
    let recv = pair.ba.stream_recv_full(Unpacked::new(failing));
    pair.until(|| recv.is_done() && send.is_done());
    assert_eq!(recv.wait().0, Err(Error::Datatype(DatatypeError::Unpack(Status::OutOfRange))));
    let send = pair.ab.stream_send(vec![2; 100]);
    let recv = pair.ba.stream_recv_full(target(100));
    pair.until(|| recv.is_done() && send.is_done());
    assert_eq!(recv.wait().1.into_inner().bytes, [2; 100]);
}

/// Statuses, panics and calls of the worker in callbacks end the operation, and nothing else.
fn failing_callbacks(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    for len in [1, 100, 9000, 300_000] {
        let whole = bytes(1, len);
        for (fault, of_worker) in [(0, false), (1, false), (2, false), (2, true)] {
            let fault = |worker: &Worker| match fault {
                0 => Fault::Status,
                1 => Fault::Panic,
                _ => Fault::Reenter(worker.clone()),
            };
            let fail_at = if of_worker { 0 } else { len / 2 };
            let failing = Source { bytes: whole.clone(), step: 4096, fail_at, fault: fault(&pair.a) };
            let recv = pair.b.tag_recv(1, TAG_MASK_FULL, vec![1; len].into_boxed_slice());
            let send = pair.ab.tag_send(1, Packed::new(failing));
            pair.until(|| send.is_done());
            let packed = match fault(&pair.a) {
                Fault::Status => DatatypeError::Pack,
                _ => DatatypeError::Panicked,
            };
            assert_eq!(send.wait().0, Err(Error::Datatype(packed)));
            // The message does not arrive: the receive is told, or gets the next one.
            let next = pair.ab.tag_send(1, whole.clone());
            pair.until(|| recv.is_done());
            match recv.wait() {
                (Ok(status), got) => assert!(status.len == len && *got == *whole),
                (Err(error), _) => {
                    assert!(matches!(error, Error::Aborted(..)), "{error}");
                    let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(len));
                    pair.until(|| recv.is_done());
                    assert!(recv.wait().1 == whole);
                }
            }
            pair.until(|| next.is_done());
            assert_eq!(next.wait().0, Ok(()));

            let failing = Target { bytes: vec![0; len], seen: 0, fail_at, fault: fault(&pair.b) };
            let recv = pair.b.tag_recv(1, TAG_MASK_FULL, Unpacked::new(failing));
            let send = pair.ab.tag_send(1, whole.clone());
            pair.until(|| recv.is_done() && send.is_done());
            let unpacked = match fault(&pair.b) {
                Fault::Status => DatatypeError::Unpack(Status::OutOfRange),
                _ => DatatypeError::Panicked,
            };
            let (status, _) = recv.wait();
            assert_eq!(status, Err(Error::Datatype(unpacked)));
            assert!(status.unwrap_err().status().is_err());
            assert_eq!(send.wait().0, Ok(()));
        }
        let recv = pair.b.tag_recv(2, TAG_MASK_FULL, target(len));
        let send = pair.ab.tag_send(2, source(whole.clone(), 512));
        pair.until(|| recv.is_done() && send.is_done());
        assert!(recv.wait().1.into_inner().bytes == whole && send.wait().0 == Ok(()));
    }
    pair.settle();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().requests()), (0, 0));
}

/// A record of what raw callbacks have done.
struct Program {
    bytes: RefCell<Vec<u8>>,
    finished: Cell<u32>,
    /// Where the last piece ended, and whether one began before that.
    end_of_last: Cell<usize>,
    went_back: Cell<bool>,
    /// How the operation ended, and how often `finish` had been called then.
    ended: Cell<Option<(Ended, u32)>>,
}

type Ended = Result<RecvStatus, Error>;

impl Program {
    fn new(bytes: Vec<u8>) -> Rc<Program> {
        Rc::new(Program {
            bytes: RefCell::new(bytes),
            finished: Cell::new(0),
            end_of_last: Cell::new(0),
            went_back: Cell::new(false),
            ended: Cell::new(None),
        })
    }

    fn generic(self: &Rc<Self>) -> Generic {
        let ops = GenericOps { pack, unpack, finish };
        Generic { ops, state: Rc::as_ptr(self).cast_mut().cast(), len: self.bytes.borrow().len() }
    }

    fn done(self: &Rc<Self>) -> Callback {
        Callback::new(on_done, Rc::as_ptr(self).cast_mut().cast())
    }

    /// The operation has ended so, and its data were finished before.
    fn assert_ended(&self, ended: Result<usize, Error>) {
        let (got, finished) = self.ended.get().expect("it has ended");
        assert_eq!((got.map(|status| status.len), finished, self.finished.get()), (ended, 1, 1));
    }
}

unsafe extern "C" fn pack(state: *mut c_void, offset: usize, dest: *mut c_void, max: usize) -> usize {
    // SAFETY: `Program::generic` passes a program that the test keeps.
    let program = unsafe { &*state.cast::<Program>() };
    let bytes = program.bytes.borrow();
    let n = max.min(3000);
    // SAFETY: the library has `max` writable bytes there.
    unsafe { std::slice::from_raw_parts_mut(dest.cast(), n) }.copy_from_slice(&bytes[offset..offset + n]);
    assert_eq!(program.finished.get(), 0);
    n
}

unsafe extern "C" fn unpack(state: *mut c_void, offset: usize, src: *const c_void, length: usize) -> i8 {
    // SAFETY: as in `pack`.
    let program = unsafe { &*state.cast::<Program>() };
    // SAFETY: the library has `length` readable bytes there.
    let from = unsafe { std::slice::from_raw_parts(src.cast(), length) };
    program.bytes.borrow_mut()[offset..offset + length].copy_from_slice(from);
    if program.end_of_last.replace(offset + length) > offset {
        program.went_back.set(true);
    }
    assert_eq!(program.finished.get(), 0);
    0
}

unsafe extern "C" fn finish(state: *mut c_void) {
    // SAFETY: as in `pack`.
    let program = unsafe { &*state.cast::<Program>() };
    program.finished.set(program.finished.get() + 1);
}

unsafe fn on_done(arg: *mut (), _: RequestId, ended: Ended) {
    // SAFETY: as in `pack`.
    let program = unsafe { &*arg.cast::<Program>() };
    assert!(program.ended.replace(Some((ended, program.finished.get()))).is_none());
}

const TAG: Match = Match::tagged(1, TAG_MASK_FULL);

fn send_params(done: Option<Callback>) -> SendParams<'static> {
    SendParams { tag: Some(1), done, ..SendParams::default() }
}

/// Raw forms of messages, active messages and streams.
fn raw_forms(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    pair.b.set_am_handler(5, move |message| to.borrow_mut().push(message));
    for (n, len) in LENS.into_iter().enumerate().skip(1) {
        let whole = bytes(n as u64, len);
        for form in 0..4 {
            let (from, to) = (Program::new(whole.clone()), Program::new(vec![0; len]));
            let receive = || match form {
                // SAFETY: both programs are kept until both operations have ended, which is checked.
                0 => unsafe {
                    pair.b.recv_layout_raw(to.generic(), TAG, &OpParams::with_callback(to.done()))
                },
                1 => {
                    let mode = StreamRecvMode::WaitAll;
                    // SAFETY: as above.
                    let id = unsafe {
                        pair.ba.stream_recv_layout_raw(
                            to.generic(),
                            mode,
                            &OpParams::with_callback(to.done()),
                        )
                    };
                    id.map(OpStatus::InProgress)
                }
                _ => {
                    pair.until(|| !kept.borrow().is_empty());
                    let mut message = kept.borrow_mut().pop().unwrap();
                    // SAFETY: as above.
                    unsafe { message.recv_layout_raw(to.generic(), &OpParams::with_callback(to.done())) }
                }
            };
            let posted = (form == 0).then(receive);
            let done = Some(from.done());
            let sent = match form {
                // SAFETY: as above.
                0 => unsafe { pair.ab.send_layout_raw(from.generic(), &send_params(done)) },
                // SAFETY: as above.
                1 => unsafe {
                    pair.ab.stream_send_layout_raw(from.generic(), &OpParams { done, ..OpParams::default() })
                },
                _ => {
                    let proto = if form == 2 { AmProto::Auto } else { AmProto::Rendezvous };
                    let params = AmParams { proto, done, ..AmParams::default() };
                    // SAFETY: as above.
                    unsafe { pair.ab.am_send_layout_raw(5, b"head", from.generic(), &params) }
                }
            };
            let (sent, received) = (sent.unwrap(), posted.unwrap_or_else(receive).unwrap());
            pair.until(|| {
                (sent == OpStatus::Done(()) || from.ended.get().is_some())
                    && (matches!(received, OpStatus::Done(_)) || to.ended.get().is_some())
            });
            if let OpStatus::InProgress(id) = sent {
                assert_eq!(pair.a.test(id).unwrap().map(drop), Ok(()));
                from.assert_ended(Ok(0));
            }
            match received {
                OpStatus::InProgress(id) => {
                    assert_eq!(pair.b.test(id).unwrap().map(|status| status.len), Ok(len));
                    to.assert_ended(Ok(len));
                }
                OpStatus::Done(status) => assert_eq!(status.len, len),
            }
            assert_eq!((from.finished.get(), to.finished.get()), (1, 1), "form {form}, {len} bytes");
            assert!(*to.bytes.borrow() == whole, "form {form}, {len} bytes");
        }
    }
}

/// Cancelled, refused, freed early, failed with the peer, dropped with the worker.
fn finished_exactly_once(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let programs: Vec<_> = (0..6).map(|_| Program::new(vec![0; 100_000])).collect();
    let [cancelled, freed, abandoned, failed, dropped, unsent] = programs.as_slice() else { unreachable!() };
    // SAFETY: the programs live until the end.
    let receive = |program: &Rc<Program>, matching| unsafe {
        match pair.b.recv_layout_raw(program.generic(), matching, &OpParams::with_callback(program.done())) {
            Ok(OpStatus::InProgress(id)) => id,
            started => panic!("{started:?}"),
        }
    };
    let id = receive(cancelled, TAG);
    assert!(pair.b.cancel(id));
    assert_eq!(cancelled.finished.get(), 0);
    pair.settle();
    cancelled.assert_ended(Err(Error::Cancelled));
    assert_eq!(pair.b.test(id), Some(Err(Error::Cancelled)));

    let id = receive(freed, TAG);
    pair.b.free(id);
    let send = pair.ab.tag_send(1, vec![7; 100_000]);
    pair.until(|| freed.ended.get().is_some() && send.is_done());
    freed.assert_ended(Ok(100_000));
    assert!(freed.bytes.borrow().iter().all(|byte| *byte == 7));

    // The end is not told, but the data are finished with it.
    pair.b.abandon(receive(abandoned, TAG));
    pair.ab.tag_send(1, vec![8; 100_000]).detach();
    pair.until(|| abandoned.finished.get() == 1);
    pair.settle();
    assert!(abandoned.bytes.borrow().iter().all(|byte| *byte == 8) && abandoned.ended.get().is_none());

    // Nobody receives it: it waits for a grant, or lies in the peer's memory.
    receive(dropped, Match::tagged(9, TAG_MASK_FULL));
    receive(failed, TAG.from(&pair.ba));
    // SAFETY: as above.
    let waiting = unsafe {
        let params =
            SendParams { tag: Some(8), sync: DeliveryComplete::Yes, ..send_params(Some(unsent.done())) };
        pair.ab.send_layout_raw(unsent.generic(), &params).unwrap()
    };
    assert!(matches!(waiting, OpStatus::InProgress(_)));
    pair.settle();
    let Pair { a, b, ab, ba, shared } = pair;
    drop(ba.close(CloseMode::Force));
    crate::common::spin(&[&b], &mut || failed.ended.get().is_some());
    let (ended, finished) = failed.ended.get().unwrap();
    assert!(ended.is_err() && (finished, failed.finished.get()) == (1, 1));
    drop((ab, a, send, shared));
    assert_eq!(unsent.finished.get(), 1, "finished with its worker");
    drop(b);
    assert_eq!((dropped.finished.get(), dropped.ended.get()), (1, None));
    assert!(programs.iter().all(|program| program.finished.get() == 1));
}

/// Cancelled at every state: queued behind others, announced, partly sent, all sent, received. What cannot be
/// cancelled ends as if nobody had tried.
fn cancelled_operations_finish_exactly_once(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    pair.b.set_am_handler(5, move |message| to.borrow_mut().push(message));
    let mut ends = [(0, 0); 4];
    for (form, ends) in ends.iter_mut().enumerate() {
        for len in [100, 9000, 300_000] {
            for (steps, is_crowded) in
                [(0, true), (0, false), (1, false), (2, false), (4, false), (30, false)]
            {
                let case = Cancelled { form, len, steps, is_crowded };
                match case.run(&pair, &kept) {
                    true => ends.0 += 1,
                    false => ends.1 += 1,
                }
            }
        }
    }
    // The peer is told of a rendezvous by a message of its own, which is not taken back.
    assert!(ends[..3].iter().all(|(cancelled, _)| *cancelled > 0), "{ends:?}");
    assert!(ends.iter().all(|(_, not)| *not > 0), "{ends:?}");
}

#[derive(Debug)]
struct Cancelled {
    /// 0: tagged; 1: stream; 2 and 3: active messages.
    form: usize,
    len: usize,
    /// Rounds of progress before the cancellation.
    steps: usize,
    /// Whether other messages fill the queues.
    is_crowded: bool,
}

impl Cancelled {
    /// Whether the send was cancelled.
    fn run(&self, pair: &Pair, kept: &RefCell<Vec<AmMessage>>) -> bool {
        let whole = bytes(1, self.len);
        let (from, to) = (Program::new(whole.clone()), Program::new(vec![0; self.len]));
        let crowd: Vec<_> =
            (0..300 * usize::from(self.is_crowded)).map(|_| pair.ab.tag_send(99, vec![0; 4000])).collect();
        let receive = (self.form < 2).then(|| self.receive(pair, &to));
        let (sent, receive) = (self.send(pair, &from), receive.flatten());
        for _ in 0..self.steps {
            pair.a.progress();
            pair.b.progress();
        }
        let was_cancelled = match sent {
            OpStatus::InProgress(id) => pair.a.cancel(id),
            OpStatus::Done(()) => false,
        };
        for _ in &crowd {
            let other = pair.b.tag_recv(99, TAG_MASK_FULL, Vec::with_capacity(4000));
            pair.until(|| other.is_done());
        }
        let message = || kept.borrow_mut().pop();
        if !was_cancelled && self.form >= 2 {
            pair.until(|| !kept.borrow().is_empty());
            // SAFETY: as in `send`.
            let id = unsafe {
                let params = OpParams::with_callback(to.done());
                message().unwrap().recv_layout_raw(to.generic(), &params).unwrap()
            };
            pair.until(|| !matches!(id, OpStatus::InProgress(_)) || to.ended.get().is_some());
        }
        pair.until(|| !matches!(sent, OpStatus::InProgress(_)) || from.ended.get().is_some());
        if let OpStatus::InProgress(id) = sent {
            from.assert_ended(if was_cancelled { Err(Error::Cancelled) } else { Ok(0) });
            pair.a.free(id);
        }
        pair.settle();
        drop(message());
        if let Some(id) = receive {
            if was_cancelled && to.ended.get().is_none() {
                // Nothing came.
                assert!(pair.b.cancel(id), "{self:?}");
            }
            pair.until(|| to.ended.get().is_some());
            let (ended, finished) = to.ended.get().unwrap();
            assert_eq!(finished, 1, "{self:?}");
            match was_cancelled {
                true => {
                    assert!(matches!(ended, Err(Error::Cancelled | Error::Aborted(..))), "{self:?} {ended:?}")
                }
                false => assert_eq!(ended.map(|status| status.len), Ok(self.len), "{self:?}"),
            }
            pair.b.free(id);
        }
        pair.settle();
        let received = u32::from(!was_cancelled || receive.is_some());
        assert_eq!((from.finished.get(), to.finished.get()), (1, received), "{self:?}");
        assert!(was_cancelled || *to.bytes.borrow() == whole, "{self:?}");
        was_cancelled
    }

    fn receive(&self, pair: &Pair, to: &Rc<Program>) -> Option<RequestId> {
        let params = OpParams::with_callback(to.done());
        match self.form {
            // SAFETY: as in `send`.
            0 => match unsafe { pair.b.recv_layout_raw(to.generic(), TAG, &params) }.unwrap() {
                OpStatus::InProgress(id) => Some(id),
                OpStatus::Done(_) => unreachable!("nothing was sent"),
            },
            _ => {
                let mode = StreamRecvMode::WaitAll;
                // SAFETY: as in `send`.
                Some(unsafe { pair.ba.stream_recv_layout_raw(to.generic(), mode, &params) }.unwrap())
            }
        }
    }

    fn send(&self, pair: &Pair, from: &Rc<Program>) -> OpStatus<()> {
        let done = Some(from.done());
        // The program is kept until the operation has ended, which `run` checks.
        let sent = match self.form {
            // SAFETY: as said above.
            0 => unsafe { pair.ab.send_layout_raw(from.generic(), &send_params(done)) },
            1 => {
                let params = OpParams { done, ..OpParams::default() };
                // SAFETY: as said above.
                unsafe { pair.ab.stream_send_layout_raw(from.generic(), &params) }
            }
            form => {
                let proto = if form == 2 { AmProto::Auto } else { AmProto::Rendezvous };
                let params = AmParams { proto, done, ..AmParams::default() };
                // SAFETY: as said above.
                unsafe { pair.ab.am_send_layout_raw(5, b"head", from.generic(), &params) }
            }
        };
        sent.unwrap()
    }
}

/// A network that changes the order of packets lets pieces come out of order. `unpack` gets them so.
#[test]
fn pieces_come_out_of_order() {
    let pair = Pair::on("reorder");
    pair.meet();
    let mut went_back = 0;
    for n in 0..20 {
        let whole = bytes(n, 60_000);
        let to = Program::new(vec![0; whole.len()]);
        let params = OpParams::with_callback(to.done());
        // SAFETY: the program is kept until the operation has ended.
        let id = unsafe { pair.b.recv_layout_raw(to.generic(), TAG, &params) }.unwrap();
        let send = pair.ab.tag_send(1, whole.clone());
        pair.until(|| to.ended.get().is_some() && send.is_done());
        to.assert_ended(Ok(whole.len()));
        assert!(*to.bytes.borrow() == whole);
        went_back += u32::from(to.went_back.get());
        if let OpStatus::InProgress(id) = id {
            pair.b.free(id);
        }
    }
    assert!(went_back > 0, "no piece came before an earlier one");
}

#[test]
fn refused_operations_finish_their_data() {
    let pair = Pair::on("self");
    let program = Program::new(vec![0; 10]);
    // SAFETY: refused.
    let refused =
        unsafe { pair.ab.am_send_layout_raw(1, &[0; 9000], program.generic(), &AmParams::default()) };
    assert!(matches!(refused, Err(Error::HeaderTooLong { .. })));
    assert_eq!(program.finished.get(), 1);
}

/// Rows and columns of a matrix.
fn strided(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    pair.b.set_am_handler(5, move |message| to.borrow_mut().push(message));
    for (len, stride, count) in
        [(8, 64, 1), (8, 64, 3), (16, 16, 100), (24, 100, 1000), (1, 3, 30_000), (5000, 5001, 60)]
    {
        let (from, positions) = (bytes(1, 5 + stride * count), Stride { offset: 5, len, stride, count });
        let size = len * count;
        let packed: Vec<u8> = (0..count).flat_map(|n| from[5 + n * stride..][..len].to_vec()).collect();
        let spread = |got: &[u8]| {
            let mut expect = vec![0xee; 5 + stride * count];
            for (n, block) in got.chunks(len).enumerate() {
                expect[5 + n * stride..][..block.len()].copy_from_slice(block);
            }
            expect
        };
        let room = || Strided::new(vec![0xee; 5 + stride * count], positions);
        for short in [0, 1] {
            let recv = pair.b.tag_recv(1, TAG_MASK_FULL, room());
            let send = pair.ab.tag_send(1, Strided::new(from.clone(), positions));
            pair.until(|| recv.is_done() && send.is_done());
            assert!(recv.wait().1.into_inner() == spread(&packed), "{positions:?}");
            let send = pair.ab.stream_send(packed[..size - short].to_vec());
            let recv = pair.ba.stream_recv(room());
            pair.until(|| recv.is_done() && send.is_done());
            let (status, got) = recv.wait();
            let got_len = status.unwrap().len;
            assert!(got.into_inner() == spread(&packed[..got_len]), "{positions:?}");
            if got_len < size - short {
                let rest = pair.ba.stream_recv_full(vec![0; size - short - got_len].into_boxed_slice());
                pair.until(|| rest.is_done());
            }
        }
        let _send = pair.ab.am_send(5, b"header", Strided::new(from.clone(), positions));
        pair.until(|| !kept.borrow().is_empty());
        let recv = kept.borrow_mut().pop().unwrap().recv(room());
        pair.until(|| recv.is_done());
        assert!(recv.wait().1.into_inner() == spread(&packed), "{positions:?}");
        // Raw.
        let (mut from, mut to) = (from, vec![0xee; 5 + stride * count]);
        let blocks = |bytes: &mut Vec<u8>| StridedIov { addr: bytes[5..].as_mut_ptr(), len, stride, count };
        // SAFETY: both vectors live, unread, until both operations have ended.
        let received = unsafe { pair.b.recv_layout_raw(blocks(&mut to), TAG, &OpParams::default()) }.unwrap();
        let layout = Layout::Strided(blocks(&mut from));
        // SAFETY: as above.
        let sent = unsafe { pair.ab.send_layout_raw(layout, &send_params(None)) }.unwrap();
        let OpStatus::InProgress(id) = received else { panic!("nothing has come") };
        let mut result = None;
        pair.until(|| {
            result = result.or_else(|| pair.b.test(id));
            result.is_some()
        });
        assert_eq!(result.unwrap().map(|status| status.len), Ok(size));
        if let OpStatus::InProgress(id) = sent {
            assert_eq!(pair.a.wait_for(id).map(drop), Ok(()));
        }
        assert!(to == spread(&packed), "{positions:?}");
    }
}

#[test]
fn blocks_outside_their_container_are_refused() {
    let pair = Pair::on("self");
    for (offset, len, stride, count) in [
        (0, 8, 4, 2),
        (0, 8, 8, 13),
        (1, 100, 100, 1),
        (0, usize::MAX, usize::MAX, 2),
        (0, 0, usize::MAX, 3),
        (101, 0, 0, 0),
    ] {
        let positions = Stride { offset, len, stride, count };
        let blocks = || Strided::new(vec![0; 100], positions);
        assert_eq!(pair.ab.tag_send(1, blocks()).wait().0, Err(Error::Invalid), "{positions:?}");
        let (refused, blocks) = pair.b.tag_recv(1, TAG_MASK_FULL, blocks()).wait();
        assert_eq!((refused, blocks.into_inner().len()), (Err(Error::Invalid), 100));
    }
    assert_eq!(pair.ab.tag_send(1, Strided::new(vec![0; 100], Stride::default())).wait().0, Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    /// Any length, packed and unpacked in any steps, equals the contiguous message.
    #[test]
    fn any_message_arrives(
        tls in prop::sample::select(vec!["posix", "efa", "self"]),
        len in prop_oneof![0usize..300, 3000usize..10_000, 60_000usize..70_000, 0usize..600_000],
        step in prop_oneof![1usize..300, 1000usize..100_000],
        percent in 80usize..110,
        sync: bool,
        late: bool,
    ) {
        let pair = Pair::on(tls);
        let (whole, room) = (bytes(9, len), len * percent / 100);
        let sync = if sync { DeliveryComplete::Yes } else { DeliveryComplete::No };
        let recv = || pair.b.recv(TAG, target(room));
        let posted = (!late).then(recv);
        let send = pair.ab.send(source(whole.clone(), step), &SendParams { sync, ..send_params(None) });
        if late {
            for _ in 0..100 {
                pair.a.progress();
                pair.b.progress();
            }
        }
        let recv = posted.unwrap_or_else(recv);
        pair.until(|| recv.is_done() && send.is_done());
        let (status, got) = recv.wait();
        check(status, got.get(), &whole);
        prop_assert_eq!(send.wait().0, Ok(()));
    }
}

on! {
    [messages active_messages streams failing_callbacks raw_forms finished_exactly_once
     cancelled_operations_finish_exactly_once strided]
    loopback: "self",
    posix: "posix",
    cma: "posix,cma",
    kernel: "kernel",
    efa: "efa",
    reorder: "reorder",
    nics: "efa*2",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}

/// Sends on an endpoint without a peer start when the peer is known.
#[test]
fn deferred_operations_pack_and_unpack_later() {
    let pair = Pair::on("posix");
    for (len, fails) in [(100, false), (100, true), (200_000, false)] {
        let whole = bytes(2, len);
        let (later, connector) = pair.a.connect_later(ucp::EpParams::default());
        let fail_at = if fails { 0 } else { usize::MAX };
        let failing = Source { bytes: whole.clone(), step: 999, fail_at, fault: Fault::Status };
        let send = later.tag_send(1, Packed::new(failing));
        let recv = pair.b.tag_recv(1, TAG_MASK_FULL, target(len));
        connector.connect(&pair.b.address()).unwrap();
        pair.until(|| send.is_done() && (fails || recv.is_done()));
        let expect = if fails { Err(Error::Datatype(DatatypeError::Pack)) } else { Ok(()) };
        assert_eq!(send.wait().0, expect);
        if fails {
            assert!(recv.cancel(), "nothing was sent");
            continue;
        }
        assert!(recv.wait().1.get().bytes == whole);
    }
}
