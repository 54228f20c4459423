//! Thread modes: who may go in, and what the others get.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use ucp::mt::{LockError, SharedEpParams, ThreadMode};
use ucp::{Access, AtomicOp, Error, Match, TAG_MASK_FULL};

use crate::common::context;
use crate::{CONCURRENT, WRONG, connect, multi};

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

#[test]
fn a_thread_adopts_a_single_worker() {
    let worker = context("posix").shared_worker(ThreadMode::Single).unwrap();
    let here = worker.clone();
    thread::spawn(move || {
        assert_eq!(worker.progress(), Err(WRONG));
        // SAFETY: the other thread waits for this one.
        assert!(unsafe { worker.adopt() });
        assert_eq!(worker.progress(), Ok(0));
        // SAFETY: this thread has the worker.
        let adopt = || unsafe { worker.adopt() };
        // SAFETY: nothing of the worker leaves the closure.
        assert!(!unsafe { worker.with(|_| adopt()) }.unwrap(), "its thread is inside");
    })
    .join()
    .unwrap();
    assert_eq!(here.progress(), Err(WRONG));
    // SAFETY: the other thread has ended.
    assert!(unsafe { here.adopt() });
    assert_eq!(here.progress(), Ok(0));
    let multi = context("posix").shared_worker(ThreadMode::Multi).unwrap();
    // SAFETY: no other thread uses it.
    assert!(!unsafe { multi.adopt() });
}

/// The calls for mode single without a lock leave a worker of mode multi alone, also while a thread sleeps.
#[test]
fn unlocked_calls_leave_a_multi_worker_alone() {
    let (worker, ended) = (&multi("posix"), &AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // SAFETY: nothing is done with the worker.
                assert!(unsafe { worker.unlocked() }.is_none());
                // SAFETY: as above; the worker has no plain objects.
                unsafe { worker.with_unlocked(|_| ()) }.unwrap();
            }
        });
        let progress = thread::Builder::new().name("progress".into());
        let progress = progress.spawn_scoped(scope, || {
            for _ in 0..20_000 {
                // A race shows as a panic: the worker is in use.
                worker.progress().unwrap();
                worker.arm().unwrap();
            }
        });
        let result = progress.unwrap().join();
        ended.store(true, Ordering::Relaxed);
        assert!(result.is_ok(), "another thread was in the worker meanwhile");
    });
}
