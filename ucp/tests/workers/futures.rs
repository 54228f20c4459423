//! Requests as futures: awaited in turn and together, polled and dropped, on every kind of lane.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::common::{bytes, context};
use ucp::{Ep, EpParams, TAG_MASK_FULL, Worker};

fn alone(tls: &str) -> (Worker, Ep) {
    let worker = context(tls).worker().unwrap();
    let ep = worker.connect(&worker.address(), EpParams::default()).unwrap();
    (worker, ep)
}

fn messages_are_awaited(tls: &str) {
    let (worker, ep) = alone(tls);
    worker.block_on(async {
        for len in [0, 8, 9000, 100_000] {
            let recv = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(len));
            // The send completes after the receive has the message; one executor drives both.
            let (sent, message) = ep.tag_send_sync(1, bytes(1, len)).await;
            assert_eq!(sent, Ok(()));
            let (status, got) = recv.await;
            assert_eq!(status.map(|s| s.len), Ok(len));
            assert!(got == message);
        }
        ep.flush().await.unwrap();
    });
    assert_eq!(worker.diagnostics().requests(), 0);
}

fn dropped_future_loses_nothing(tls: &str) {
    let (worker, ep) = alone(tls);
    worker.block_on(async {
        for _ in 0..300 {
            {
                let mut recv = pin!(worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8)));
                poll_fn(|cx| {
                    assert!(recv.as_mut().poll(cx).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            let send = ep.tag_send(1, bytes(1, 8));
            assert_eq!(worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8)).await.1, bytes(1, 8));
            assert_eq!(send.await.0, Ok(()));
        }
    });
    while worker.progress() > 0 {}
    assert_eq!(worker.diagnostics().requests(), 0);
}

/// A waker that owns a receive, as the waker of a task owns the task's future.
struct OwnsRequest(#[expect(dead_code, reason = "only dropped")] Mutex<Option<ucp::RecvRequest<Vec<u8>>>>);

// SAFETY: the test has one thread.
unsafe impl Send for OwnsRequest {}
// SAFETY: as above.
unsafe impl Sync for OwnsRequest {}

impl Wake for OwnsRequest {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn dropped_wakers_may_use_the_worker() {
    let (worker, _ep) = alone("self");
    let owner = |owned| Waker::from(Arc::new(OwnsRequest(Mutex::new(owned))));
    let recv = || worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
    // Replaced by another waker, by a callback, and dropped with the request.
    for last in 0..3 {
        let mut polled = recv();
        let first = owner(Some(recv()));
        assert!(Pin::new(&mut polled).poll(&mut Context::from_waker(&first)).is_pending());
        drop(first);
        match last {
            0 => assert!(Pin::new(&mut polled).poll(&mut Context::from_waker(Waker::noop())).is_pending()),
            1 => polled.then(|ended, _| assert_eq!(ended, Err(ucp::Error::Cancelled))),
            _ => drop(polled),
        }
    }
    let mut multi = worker.recv_multi(ucp::Match::tagged(2, TAG_MASK_FULL), vec![0; 8].into_boxed_slice(), 1);
    let multi = multi.as_mut().map_err(|(e, _)| *e).unwrap();
    let first = owner(Some(recv()));
    assert!(pin!(multi.next_message()).poll(&mut Context::from_waker(&first)).is_pending());
    drop(first);
    assert!(pin!(multi.next_message()).poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

on! {
    [messages_are_awaited dropped_future_loses_nothing]
    loopback: "self",
    posix: "posix",
    efa: "efa",
    all: "all",
    // On libibverbs: under `softefa run`, see `tests/run verbs`.
    #[cfg(feature = "verbs")]
    verbs: "verbs",
}
