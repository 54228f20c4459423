//! The hot path allocates nothing: counted on every lane once traffic is steady.

use crate::common::Pair;
use ucp::{
    Callback, CompletionQueue, Counter, Error, Match, OpParams, OpStatus, RecvStatus, RequestId, SendParams,
    TAG_MASK_FULL,
};

/// Allocations of this thread in 1000 rounds, after as many to warm up.
fn in_steady_state(mut round: impl FnMut()) -> u64 {
    (0..1000).for_each(|_| round());
    let before = crate::counting::count();
    (0..1000).for_each(|_| round());
    crate::counting::count() - before
}

/// A pair after its handshake: the allocations of a first message depend on when the other thread runs.
fn met(tls: &str) -> Pair {
    let pair = Pair::on(tls);
    pair.meet();
    pair
}

fn raw(tls: &str, len: usize) {
    let pair = met(tls);
    let (out, mut room) = (vec![1u8; len], vec![0u8; len]);
    let count = in_steady_state(|| {
        // SAFETY: `room` lives until the loop below has seen the completion.
        let recv = unsafe {
            pair.b.recv_raw(room.as_mut_ptr(), len, Match::tagged(1, TAG_MASK_FULL), &OpParams::default())
        };
        let params = SendParams { tag: Some(1), ..SendParams::default() };
        // SAFETY: `out` lives until the loop below has seen the completion.
        let send = unsafe { pair.ab.send_raw(out.as_ptr(), len, &params) };
        let Ok(OpStatus::InProgress(recv)) = recv else { panic!("nothing was there to receive: {recv:?}") };
        let mut send = match send.unwrap() {
            OpStatus::InProgress(id) => Some(id),
            OpStatus::Done(()) => None,
        };
        let mut received = false;
        while !received || send.is_some() {
            pair.a.progress();
            pair.b.progress();
            received = received || pair.b.test(recv).is_some_and(|end| end.is_ok());
            send = send.filter(|id| pair.a.test(*id).is_none());
        }
    });
    assert_eq!(count, 0, "{tls}, {len} bytes");
}

fn owned(tls: &str, len: usize) {
    let pair = met(tls);
    let mut bufs = Some((vec![1u8; len], Vec::with_capacity(len)));
    let count = in_steady_state(|| {
        let (out, room) = bufs.take().unwrap();
        let recv = pair.b.tag_recv(1, TAG_MASK_FULL, room);
        let send = pair.ab.tag_send(1, out);
        pair.until(|| recv.is_done() && send.is_done());
        bufs = Some((send.wait().1, recv.wait().1));
    });
    assert_eq!(count, 0, "{tls}, {len} bytes");
}

#[test]
fn receives_with_callbacks_allocate_nothing() {
    unsafe fn count(arg: *mut (), request: RequestId, ended: Result<RecvStatus, Error>) {
        assert!(ended.is_ok() && request.status() == Some(ucs::Status::Ok));
        // SAFETY: the test passes its own counter.
        let ends = unsafe { &*arg.cast::<std::cell::Cell<u32>>() };
        ends.set(ends.get() + 1);
    }
    for tls in ["self", "posix", "efa"] {
        let pair = met(tls);
        let (mut room, ends) = ([0u8; 8], std::cell::Cell::new(0));
        let done = Callback::new(count, std::ptr::from_ref(&ends).cast_mut().cast());
        let count = in_steady_state(|| {
            ends.set(0);
            // SAFETY: `room` and `ends` live until the callbacks have been called, below.
            let [first, second] = [1, 1].map(|tag| unsafe {
                pair.b
                    .recv_raw(
                        room.as_mut_ptr(),
                        8,
                        Match::tagged(tag, TAG_MASK_FULL),
                        &OpParams::with_callback(done),
                    )
                    .unwrap()
            });
            let params = SendParams { tag: Some(1), ..SendParams::default() };
            // SAFETY: a short message is sent within the call.
            let sent = [(); 2].map(|()| unsafe { pair.ab.send_raw([7u8; 8].as_ptr(), 8, &params) });
            assert_eq!(sent, [Ok(OpStatus::Done(())); 2]);
            pair.until(|| ends.get() == 2);
            for recv in [first, second] {
                let OpStatus::InProgress(id) = recv else { panic!("nothing was there to receive") };
                pair.b.free(id);
            }
        });
        assert_eq!(count, 0, "{tls}");
    }
}

#[test]
fn completion_queues_and_counters_allocate_nothing() {
    for tls in ["self", "posix", "efa"] {
        for len in [8, 20_000] {
            let pair = met(tls);
            let (sends, recvs) = (CompletionQueue::new(&pair.a, 4), CompletionQueue::new(&pair.b, 4));
            let sent = Counter::new(&pair.a);
            let mut bufs = Some((vec![1u8; len], Vec::with_capacity(len)));
            let count = in_steady_state(|| {
                let (out, room) = bufs.take().unwrap();
                assert!(recvs.track(pair.b.tag_recv(1, TAG_MASK_FULL, room), 1).is_ok());
                assert!(sends.track(pair.ab.tag_send(1, out), 2).is_ok());
                let params = SendParams { tag: Some(2), ..SendParams::default() };
                // SAFETY: it is sent within the call.
                sent.track(unsafe { pair.ab.send_raw([7u8; 8].as_ptr(), 8, &params) }).unwrap();
                let (mut done, mut received, mut byte) = (None, None, [0; 8]);
                pair.until(|| {
                    done = done.take().or_else(|| sends.read());
                    received = received.take().or_else(|| recvs.read());
                    done.is_some() && received.is_some()
                });
                pair.b.tag_recv_blocking(2, TAG_MASK_FULL, &mut byte).unwrap();
                bufs = done.and_then(|end| end.buf).zip(received.and_then(|end| end.buf));
            });
            assert_eq!((count, sent.value()), (0, 2000), "{tls}, {len} bytes");
        }
    }
}

#[test]
fn active_messages_allocate_nothing() {
    for tls in ["self", "posix", "efa"] {
        let pair = met(tls);
        let seen = std::rc::Rc::new(std::cell::Cell::new(0u64));
        let count = seen.clone();
        pair.b.set_am_handler(1, move |message| count.set(count.get() + message.header().len() as u64));
        let mut sent = 0;
        let count = in_steady_state(|| {
            sent += 8;
            let send = pair.ab.am_send(1, &[1; 8], "data");
            pair.until(|| send.is_done() && seen.get() == sent);
            assert_eq!(send.wait().0, Ok(()));
        });
        assert_eq!(count, 0, "{tls}");
    }
}

#[test]
fn sends_and_receives_allocate_nothing() {
    for tls in ["self", "posix", "efa", "all"] {
        for len in [0, 8, 1000, 20_000, 200_000] {
            raw(tls, len);
            owned(tls, len);
        }
    }
}

#[test]
fn atomics_with_a_result_allocate_nothing() {
    for tls in ["self", "posix", "efa"] {
        let pair = met(tls);
        let (mut memory, mut seen) = ([0u64; 1], 0);
        // SAFETY: the memory lives longer, and only the peer below uses it.
        let mem = unsafe { pair.b.mem_map(memory.as_mut_ptr().cast(), 8, ucp::Access::all()) }.unwrap();
        let (at, rkey) = (mem.addr(), pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap());
        let count = in_steady_state(|| {
            let request = pair.ab.atomic_fetch(ucp::AtomicOp::Sum, 1u64, at, &rkey);
            pair.until(|| request.is_done());
            assert_eq!(request.test().map_err(drop), Ok(Ok(seen)));
            seen += 1;
        });
        assert_eq!(count, 0, "{tls}");
    }
}
