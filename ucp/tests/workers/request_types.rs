//! Every request can be asked, tested, cancelled and given a callback; every error works with `?`; a scope
//! has all operations on borrowed memory.

use std::cell::Cell;
use std::error::Error as StdError;
use std::rc::Rc;

use crate::common::{Pair, bytes};
use ucp::mt::{SharedEp, SharedRequest, SharedWorker, ThreadMode};
use ucp::{
    Access, AmProto, AmSend, AtomicOp, Error, FetchRequest, RecvRequest, RecvStatus, Scope, ScopedRequest,
    SendRequest, StreamRecvMode, TAG_MASK_FULL,
};

fn is_error<E: StdError + Send + Sync + 'static>() {}

#[test]
fn every_error_works_with_the_question_mark() {
    is_error::<Error>();
    is_error::<ucp::AddressError>();
    is_error::<ucp::CacheError>();
    is_error::<ucp::ConnectError>();
    is_error::<ucp::ConnectFailure>();
    is_error::<ucp::DatatypeError>();
    is_error::<ucp::Errno>();
    is_error::<ucp::JobError>();
    is_error::<ucp::ListenError>();
    is_error::<ucp::LockError>();
    is_error::<ucp::MemError>();
    is_error::<ucp::OpenError>();
    is_error::<ucp::RkeyError>();
    is_error::<ucp::SpawnError<Error>>();
    is_error::<ucp::uct::api::ConnectError>();
    is_error::<ucp::uct::api::Error>();
    is_error::<ucp::uct::api::Refused>();
    is_error::<ucp::uct::config::ConfigError>();
    is_error::<ucp::ucs::mem::MemError>();
}

/// Checks the methods that all requests have: `waiting` makes one that has not ended and may be cancelled.
macro_rules! check {
    ($pair:expr, $waiting:expr, $end:path, ($($arg:ident),+)) => {{
        let request = $waiting;
        assert!(!request.is_done());
        let Err(request) = request.test() else { panic!("it has not ended") };
        assert!(request.cancel() && !request.cancel());
        $pair.until(|| request.is_done());
        let Ok(tested) = request.test() else { panic!("it has ended") };
        assert_eq!($end(tested), Err(Error::Cancelled));
        let (calls, request) = (Rc::new(Cell::new(0)), $waiting);
        let count = calls.clone();
        let cancelled = request.cancel();
        #[allow(unused_parens, reason = "some have one argument")]
        request.then(move |$($arg),+| {
            count.set(count.get() + u32::from($end(($($arg),+)) == Err(Error::Cancelled)));
        });
        assert!(cancelled);
        $pair.until(|| calls.get() == 1);
        $waiting.detach();
    }};
}

/// A pair whose first message waits: the peer does not progress until it is asked to.
fn full() -> (Pair, Vec<SendRequest<Vec<u8>>>) {
    let pair = Pair::on("posix");
    pair.meet();
    let mut sent = Vec::new();
    loop {
        let send = pair.ab.tag_send(1, vec![1; 8]);
        match send.is_done() {
            true => sent.push(send),
            false if send.cancel() => return (pair, sent),
            false => panic!("it has not been sent"),
        }
    }
}

#[test]
fn requests_have_the_same_methods() {
    let (pair, _kept) = full();
    check!(pair, recv(&pair), received, (ended, buf));
    check!(pair, pair.a.flush_within(std::time::Duration::from_secs(100)), flushed, (ended));
    let send = || -> SendRequest<Vec<u8>> { full_send(&pair, 2) };
    check!(pair, send(), sent, (ended, buf));
    let am = || -> AmSend<Vec<u8>> {
        full_send(&pair, 2).detach();
        pair.ab.am_send_with(AmProto::Eager, 2, b"head", vec![1; 8])
    };
    check!(pair, am(), sent, (ended, buf));
    let mut word = [0u64; 1];
    // SAFETY: the memory lives longer, and nobody else uses it.
    let mem = unsafe { pair.b.mem_map(word.as_mut_ptr().cast(), 8, Access::all()) }.unwrap();
    let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
    let fetch = || -> FetchRequest<u64> {
        full_send(&pair, 2).detach();
        pair.ab.atomic_fetch(AtomicOp::Sum, 1, mem.addr(), &rkey)
    };
    check!(pair, fetch(), fetched, (ended));
}

fn sent((ended, _): (Result<(), Error>, Vec<u8>)) -> Result<(), Error> {
    ended
}

fn received((ended, _): (Result<RecvStatus, Error>, Vec<u8>)) -> Result<(), Error> {
    ended.map(drop)
}

fn flushed(ended: Result<(), Error>) -> Result<(), Error> {
    ended
}

fn fetched(ended: Result<u64, Error>) -> Result<(), Error> {
    ended.map(drop)
}

fn recv(pair: &Pair) -> RecvRequest<Vec<u8>> {
    pair.a.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(8))
}

/// A send that waits for room.
fn full_send(pair: &Pair, tag: u64) -> SendRequest<Vec<u8>> {
    loop {
        let send = pair.ab.tag_send(tag, vec![1; 8]);
        if !send.is_done() {
            return send;
        }
        send.detach();
    }
}

#[test]
fn a_scope_has_all_operations_on_borrowed_memory() {
    for tls in ["posix", "efa"] {
        let pair = Pair::on(tls);
        pair.meet();
        let (mut words, operands, mut old) = ([1u64, 2, 3, 4], [10u64; 4], [0u64; 4]);
        // SAFETY: the memory lives longer, and only operations below use it.
        let mem = unsafe { pair.b.mem_map(words.as_mut_ptr().cast(), 32, Access::all()) }.unwrap();
        let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
        let (at, out, mut back) = (mem.addr(), bytes(1, 20_000), vec![0; 20_000]);
        let got = Rc::new(Cell::new(0));
        let count = got.clone();
        pair.a.set_am_handler(1, move |message| {
            count.set(count.get() + message.header().len() + message.data_len() as usize);
        });
        // One worker progresses in a wait, so the other side is a scope of the same thread.
        pair.b.scope(|theirs: &Scope<'_, '_>| {
            pair.a.scope(|s| {
                let done = |request: &ScopedRequest<'_, ()>| request.is_done();
                let fetched = s.atomic_fetch(&pair.ab, AtomicOp::Sum, &operands, &mut old, at, &rkey);
                pair.until(|| done(&fetched));
                assert_eq!(fetched.test().map_err(drop), Ok(Ok(())));
                let mut short = [0u64; 2];
                let wrong =
                    s.atomic_fetch(&pair.ab, AtomicOp::Sum, &operands, unbound(&mut short), at, &rkey);
                assert_eq!(wrong.wait(), Err(Error::Invalid));
                let sent = s.stream_send(&pair.ab, &out);
                let received = theirs.stream_recv(&pair.ba, &mut back, StreamRecvMode::WaitAll);
                pair.until(|| sent.is_done() && received.is_done());
                assert_eq!(
                    (sent.wait(), received.test().map_err(drop).unwrap().unwrap().len),
                    (Ok(()), 20_000)
                );
            });
            let (eager, long) = (
                theirs.am_send(&pair.ba, 1, b"head", b"data"),
                theirs.am_send_with(&pair.ba, AmProto::Rendezvous, 1, b"head", b"data"),
            );
            pair.until(|| eager.is_done() && long.is_done() && got.get() == 16);
        });
        assert_eq!((old, words), ([1, 2, 3, 4], [11, 12, 13, 14]));
        assert!(back == out);
    }
}

/// Memory for the rest of the program.
fn unbound<T: Copy>(slice: &mut [T]) -> &'static mut [T] {
    slice.to_vec().leak()
}

#[test]
fn a_shared_scope_has_them_too() {
    let worker: SharedWorker = crate::common::context("posix").shared_worker(ThreadMode::Multi).unwrap();
    let ep: SharedEp = worker.connect(&worker.address().unwrap(), Default::default()).unwrap();
    let mem = worker.mem_alloc(64, Access::all()).unwrap();
    let rkey = ep.unpack_rkey(&mem.pack_rkey()).unwrap();
    let (operands, mut old, mut back) = ([3u32; 4], [9u32; 4], [0u8; 4]);
    let got = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = got.clone();
    worker
        .set_am_handler(1, move |message| {
            let len = message.data_len() as usize;
            count.fetch_add(len, std::sync::atomic::Ordering::SeqCst);
        })
        .unwrap();
    worker.scope(|s| {
        s.atomic_fetch(&ep, AtomicOp::Sum, &operands, &mut old, mem.addr(), &rkey).wait().unwrap();
        let mut received = s.stream_recv(&ep, &mut back, StreamRecvMode::WaitAll);
        s.stream_send(&ep, b"data").wait().unwrap();
        s.am_send(&ep, 1, &[], b"data").wait().unwrap();
        let status = loop {
            worker.progress().unwrap();
            match received.test() {
                Ok(ended) => break ended.unwrap(),
                Err(request) => received = request,
            }
        };
        assert_eq!(status.len, 4);
    });
    while got.load(std::sync::atomic::Ordering::SeqCst) < 4 {
        worker.progress().unwrap();
    }
    assert_eq!((old, &back), ([0; 4], b"data"));
    let mut recv: SharedRequest<RecvRequest<Vec<u8>>> = worker.tag_recv(1, TAG_MASK_FULL, Vec::new());
    assert_eq!((recv.test().unwrap().is_none(), recv.is_done()), (true, Ok(false)));
    assert!(recv.cancel().unwrap());
    assert_eq!(recv.wait().unwrap().0.map(drop), Err(Error::Cancelled));
}
