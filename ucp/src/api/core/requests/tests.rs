use super::*;
use crate::rdm::io::PeerId;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use ucs::Status;

fn table() -> Requests {
    Requests::new(RequestParams::default())
}

fn begin(reqs: &mut Requests) -> RequestId {
    let token = reqs.next_token().unwrap();
    let id = reqs.start(token, Role::Flush, None);
    assert_eq!(token, id.block.address() as u64);
    id
}

fn message(len: usize) -> RecvStatus {
    RecvStatus { len, tag: 7 << 40, from: PeerId(5), cq_data: Some(9) }
}

fn callback(calls: &Cell<u32>) -> Callback {
    unsafe fn count(arg: *mut (), _: RequestId, _: Ended) {
        // SAFETY: the test passes a pointer to its own cell.
        let calls = unsafe { &*arg.cast::<Cell<u32>>() };
        calls.set(calls.get() + 1);
    }
    Callback::new(count, std::ptr::from_ref(calls).cast_mut().cast())
}

#[test]
fn a_block_with_room_for_two_words_has_two_cache_lines() {
    assert_eq!((RequestId::SIZE, size_of::<RequestId>()), (112, 16));
    let mut reqs = Requests::new(RequestParams::bytes(16));
    let (a, b) = (begin(&mut reqs), begin(&mut reqs));
    assert_eq!(b.block.address() - a.block.address(), 128);
    assert_eq!((a.block.address() % 64, a.user_memory().as_ptr() as usize % RequestParams::ALIGN), (0, 0));
    assert_eq!(a.user_memory().as_ptr() as usize - a.block.address(), RequestId::SIZE);
}

#[test]
fn immediate_completion_uses_no_block() {
    let mut reqs = table();
    let token = reqs.next_token().unwrap();
    assert_eq!(reqs.next_token(), Ok(token));
    assert_eq!(reqs.len(), 0);
    let id = begin(&mut reqs);
    assert_eq!(id.block.address() as u64, token);
    assert_eq!(reqs.len(), 1);
}

#[test]
fn completed_once_and_taken_once() {
    let mut reqs = table();
    let id = begin(&mut reqs);
    assert_eq!((reqs.take(id), id.status(), id.info()), (None, Some(Status::InProgress), None));
    assert!(reqs.complete(id, Ok(message(3))).is_none());
    assert!(reqs.knows(id) && reqs.is_complete(id) && reqs.role(id).is_none());
    assert_eq!((id.status(), id.info()), (Some(Status::Ok), Some(message(3))));
    assert_eq!(reqs.take(id), Some(Ok(message(3))));
    assert!(!reqs.knows(id));
    assert_eq!((reqs.take(id), id.status(), id.info()), (None, None, None));
    let next = begin(&mut reqs);
    assert!(next.block == id.block && next != id && reqs.take(id).is_none() && reqs.knows(next));
}

#[test]
fn requests_of_another_worker_are_unknown() {
    let (mut mine, mut other) = (table(), table());
    let id = begin(&mut other);
    assert!(!mine.knows(id) && mine.complete(id, Ok(EMPTY_STATUS)).is_none());
    assert!(other.complete(id, Ok(EMPTY_STATUS)).is_none());
    assert!(mine.take(id).is_none() && mine.detach(id, None).0.is_none());
    drop(other);
    assert_eq!((id.status(), mine.knows(id)), (None, false), "the worker is gone, its memory is not");
}

#[test]
fn errors_keep_their_cause_and_show_their_status() {
    let mut reqs = table();
    let id = begin(&mut reqs);
    let error = Error::Truncated { len: 100, room: 8 };
    assert!(reqs.complete(id, Err(error)).is_none());
    assert_eq!((id.status(), id.info().map(|info| info.len)), (Some(Status::MessageTruncated), Some(100)));
    assert_eq!(reqs.take(id), Some(Err(error)));
}

#[test]
fn a_truncated_message_keeps_its_tag_and_sender() {
    let mut reqs = table();
    let id = begin(&mut reqs);
    let error = OpError::Truncated { len: 100, room: 8, tag: 7, from: PeerId(5) };
    assert!(reqs.complete_token(id.block.address() as u64, Err(error)).is_none());
    let message = RecvStatus { len: 100, tag: 7, from: PeerId(5), cq_data: None };
    assert_eq!((id.status(), id.info()), (Some(Status::MessageTruncated), Some(message)));
    assert_eq!(reqs.take(id), Some(Err(Error::Truncated { len: 100, room: 8 })));
    // The next operation of the block has nothing of it.
    let next = begin(&mut reqs);
    assert!(reqs.complete_token(next.block.address() as u64, Ok(message)).is_none());
    assert_eq!((next.info(), reqs.take(next)), (Some(message), Some(Ok(message))));
}

#[test]
fn detached_buffer_lives_until_completion() {
    struct Buf(Rc<Cell<bool>>);
    impl Drop for Buf {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Rc::new(Cell::new(false));
    let mut reqs = table();
    let id = begin(&mut reqs);
    assert!(reqs.detach(id, Some(Box::new(Buf(dropped.clone())))).0.is_none());
    assert!(!dropped.get());
    let action = reqs.complete(id, Ok(EMPTY_STATUS)).unwrap();
    assert!(!dropped.get(), "dropped by the action, outside of any borrow");
    action.run();
    assert!(dropped.get());
    assert_eq!(reqs.len(), 0);
    dropped.set(false);
    let id = begin(&mut reqs);
    drop(reqs.detach(id, Some(Box::new(Buf(dropped.clone())))));
    drop(reqs);
    assert!(dropped.get(), "by a worker that is dropped first, too");
}

#[test]
fn callbacks_run_once_even_when_detached() {
    let calls = Cell::new(0u32);
    let mut reqs = table();
    for detach in [false, true] {
        let token = reqs.next_token().unwrap();
        let id = reqs.start(token, Role::Flush, Some(callback(&calls)));
        if detach {
            drop(reqs.detach(id, Some(Box::new(1u8))));
        }
        reqs.complete(id, Err(Error::PeerGone(PeerId(3)))).unwrap().run();
        reqs.take(id);
    }
    assert_eq!((calls.get(), reqs.len()), (2, 0));
}

#[test]
fn a_ready_request_ends_when_its_turn_comes() {
    let calls = Cell::new(0u32);
    let mut reqs = table();
    let tokens: Vec<(u64, RequestId)> = (0..3)
        .map(|_| {
            let token = reqs.next_token().unwrap();
            (token, reqs.start(token, Role::Flush, Some(callback(&calls))))
        })
        .collect();
    assert!(!reqs.complete_recv(tokens[0].0, message(0), false), "an event precedes it");
    for (n, (token, id)) in tokens.iter().enumerate() {
        assert!(reqs.complete_recv(*token, message(n), true));
        assert_eq!(id.status(), Some(Status::InProgress));
        assert!(reqs.take(*id).is_none() && reqs.role(*id).is_some());
    }
    drop(reqs.detach(tokens[1].1, None));
    for (n, (_, id)) in tokens.iter().enumerate() {
        assert!(reqs.has_ready());
        let (of, ended, action) = match reqs.next_ready() {
            Some(action @ (Action::Raw(_, of, ended) | Action::RawOfDropped(_, of, ended))) => {
                (of, ended, action)
            }
            _ => panic!("a callback"),
        };
        assert_eq!((of, ended), (*id, Ok(message(n))), "in the order of their ends");
        // The worker frees one that was dropped after the call.
        assert_eq!(matches!(action, Action::RawOfDropped(..)), n == 1);
        assert_eq!((id.status(), id.info()), (Some(Status::Ok), Some(message(n))));
        action.run();
    }
    assert_eq!(reqs.take(tokens[1].1), Some(Ok(message(1))));
    assert!(reqs.next_ready().is_none() && !reqs.has_ready());
    assert_eq!((calls.get(), reqs.len()), (3, 2));
}

#[test]
fn a_receive_that_is_being_posted_is_reported_later() {
    let mut reqs = table();
    let token = reqs.next_token().unwrap();
    assert!(!reqs.complete_recv(token, message(1), true));
    let id = reqs.start(token, Role::Flush, None);
    assert!(reqs.complete_token(token, Ok(message(1))).is_none());
    assert_eq!(reqs.take(id), Some(Ok(message(1))));
}

#[test]
fn user_memory_is_made_once_a_block_and_keeps_its_contents() {
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    struct Counted(u32);
    impl Default for Counted {
        fn default() -> Self {
            LIVE.fetch_add(1, Ordering::Relaxed);
            Counted(0)
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            LIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
    for _ in 0..2 {
        let mut reqs = Requests::new(RequestParams::of::<Counted>());
        let mut most = 0;
        for n in 0..1000 {
            let id = begin(&mut reqs);
            // SAFETY: the room has been made with a `Counted` in it.
            let user = unsafe { id.user_memory().cast::<Counted>().as_mut() };
            assert_eq!(user.0, n, "the block used last is used next");
            user.0 += 1;
            // SAFETY: the request runs.
            assert_eq!(unsafe { RequestId::from_user_memory(id.user_memory()) }, id);
            most = most.max(LIVE.load(Ordering::Relaxed));
            reqs.complete(id, Ok(EMPTY_STATUS));
            reqs.take(id);
        }
        assert_eq!(most, reqs.pool.iter().count());
        drop(reqs);
        assert_eq!(LIVE.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn memory_of_the_caller_serves_one_operation_and_keeps_its_status() {
    let mut reqs = table();
    let own = begin(&mut reqs);
    let mut memory = Box::new([MaybeUninit::<u64>::uninit(); RequestId::SIZE / 8]);
    let at = NonNull::from(memory.as_mut()).cast::<u8>();
    for used in [false, true, true] {
        // SAFETY: `memory` lives until the end of the test.
        let block = unsafe { reqs.set_next_block(at) };
        let id = used.then(|| begin(&mut reqs));
        reqs.clear_next_block(block);
        let Some(id) = id else { continue };
        assert!(id == block && id.block.address() == at.as_ptr() as usize);
        assert_eq!(reqs.len(), 1, "not in memory of the worker");
        assert!(reqs.complete(id, Ok(message(8))).is_none());
        assert_eq!((id.status(), id.info()), (Some(Status::Ok), Some(message(8))));
        assert_eq!(reqs.take(id), Some(Ok(message(8))));
        assert_eq!((id.status(), id.block.status()), (None, Status::Ok));
        let next = begin(&mut reqs);
        assert!(next.block != id.block);
        reqs.complete(next, Ok(EMPTY_STATUS));
        reqs.take(next);
    }
    // SAFETY: as above.
    let block = unsafe { reqs.set_next_block(at) };
    reqs.complete(own, Ok(EMPTY_STATUS));
    reqs.take(own);
    reqs.clear_next_block(block);
    let next = begin(&mut reqs);
    assert_eq!(next.block, own.block, "unused memory of the caller leaves the list wherever it is");
    assert!(begin(&mut reqs).block != block.block);
}

/// Addresses that are no request's are told without a look at their memory.
#[test]
fn requests_are_found_by_their_addresses() {
    let mut reqs = table();
    assert_eq!(reqs.at(0), None, "no memory yet");
    let all: Vec<RequestId> = (0..600).map(|_| begin(&mut reqs)).collect();
    for id in &all {
        let address = id.block.address();
        assert_eq!(reqs.at(address), Some(*id));
        assert!([1, 8, 64].iter().all(|offset| reqs.at(address + offset) != Some(*id)));
        assert_eq!(reqs.at(address + 8), None, "inside of a block");
    }
    for address in [1, 8, usize::MAX, usize::MAX - 7, (&raw const reqs).addr()] {
        assert_eq!(reqs.at(address), None);
    }
    assert_eq!(table().at(all[0].block.address()), None, "of another worker");
    let mut memory = Box::new([MaybeUninit::<u64>::uninit(); RequestId::SIZE / 8]);
    let at = NonNull::from(memory.as_mut()).cast::<u8>();
    assert_eq!(reqs.at(at.addr().get()), None);
    // SAFETY: `memory` lives until the end of the test.
    let block = unsafe { reqs.set_next_block(at) };
    let id = begin(&mut reqs);
    reqs.clear_next_block(block);
    assert_eq!(reqs.at(at.addr().get()), Some(id), "while it runs");
    reqs.complete(id, Ok(EMPTY_STATUS));
    assert_eq!(reqs.at(at.addr().get()), None, "the memory is the caller's again");
}

#[test]
fn memory_of_the_caller_is_not_in_progress_once_its_worker_is_dropped() {
    const WORDS: usize = RequestId::SIZE / 8;
    let (mut reqs, calls) = (table(), Cell::new(0));
    let mut memory = Box::new([const { [MaybeUninit::<u64>::uninit(); WORDS] }; 4]);
    let ids = memory.each_mut().map(|part| {
        let at = NonNull::from(part).cast::<u8>();
        // SAFETY: `memory` lives until the end of the test.
        let block = unsafe { reqs.set_next_block(at) };
        let token = reqs.next_token().unwrap();
        let id = reqs.start(token, Role::Flush, Some(callback(&calls)));
        reqs.clear_next_block(block);
        id
    });
    let [ended, ready, running, detached] = ids;
    reqs.complete(ended, Ok(message(1))).unwrap().run();
    assert!(reqs.complete_recv(ready.block.address() as u64, message(2), true));
    drop(reqs.detach(detached, None));
    assert_eq!(running.status(), Some(Status::InProgress));
    drop(reqs);
    let statuses = ids.map(|id| id.block.status());
    assert_eq!(statuses, [Status::Ok, Status::Ok, Status::Canceled, Status::Canceled]);
    assert_eq!(calls.get(), 1, "callbacks are not called");
}

#[test]
fn other_threads_see_status_and_message_or_that_the_request_is_gone() {
    const ROUNDS: usize = if cfg!(miri) { 50 } else { 2_000 };
    let mut reqs = table();
    let barrier = Arc::new(Barrier::new(2));
    let (send, receive) = std::sync::mpsc::sync_channel::<RequestId>(1);
    let start = barrier.clone();
    let watcher = std::thread::spawn(move || {
        start.wait();
        let mut seen = 0;
        while let Ok(id) = receive.recv() {
            while let Some(status) = id.status() {
                let Some(info) = id.info() else { continue };
                assert_eq!(info.tag as usize, info.len + 1, "of one message");
                seen += usize::from(status == Status::Ok);
                break;
            }
        }
        seen
    });
    barrier.wait();
    for len in 0..ROUNDS {
        let id = begin(&mut reqs);
        send.send(id).unwrap();
        reqs.complete(id, Ok(RecvStatus { len, tag: len as u64 + 1, ..EMPTY_STATUS }));
        if len % 2 == 0 {
            std::thread::yield_now();
        }
        reqs.take(id);
    }
    drop(send);
    watcher.join().unwrap();
}

#[test]
fn blocks_of_a_dropped_worker_serve_the_next() {
    // A room of this size is used by this test only: 12 blocks a chunk.
    let worker = || Requests::new(RequestParams::bytes(5000));
    let mut first = worker();
    let ids: Vec<RequestId> = (0..96).map(|_| begin(&mut first)).collect();
    drop(first);
    assert!(ids.iter().all(|id| id.status().is_none()));
    let mut second = worker();
    let again: Vec<RequestId> = (0..96).map(|_| begin(&mut second)).collect();
    assert!(again.iter().all(|id| ids.iter().any(|old| old.block == id.block) && !ids.contains(id)));
    assert!(ids.iter().all(|id| !second.knows(*id)));
}

#[test]
fn a_generation_that_begins_again_leaves_the_owner_alone() {
    let mut reqs = table();
    let first = begin(&mut reqs);
    reqs.complete(first, Ok(EMPTY_STATUS));
    reqs.take(first);
    let last = first.block.set_last_generation();
    for round in 0..4u32 {
        let id = begin(&mut reqs);
        assert!(id.block == first.block && (id.generation == last) == (round == 0), "round {round}");
        assert!(reqs.knows(id) && reqs.take(id).is_none());
        let status = RecvStatus { len: 3, tag: 1, from: PeerId(2), cq_data: None };
        assert!(reqs.complete_recv(id.block.address() as u64, status, true));
        assert_eq!((id.status(), id.info()), (Some(Status::Ok), Some(status)), "round {round}");
        assert_eq!((reqs.take(id), reqs.take(id)), (Some(Ok(status)), None), "round {round}");
        assert_eq!((reqs.knows(id), reqs.len()), (false, 0), "round {round}");
    }
}

#[test]
fn a_callback_at_the_end_is_called_within_it_and_frees_the_request() {
    let calls = Cell::new(0u32);
    let mut reqs = table();
    for (n, cq_data) in [None, Some(3), None].into_iter().enumerate() {
        let token = reqs.next_token().unwrap();
        let id = reqs.start(token, Role::Flush, Some(Callback { at: CallAt::End, ..callback(&calls) }));
        let status = RecvStatus { cq_data, ..message(n) };
        assert!(!reqs.complete_recv(token, status, false), "an event precedes it");
        assert_eq!((calls.get() as usize, id.status()), (n, Some(Status::InProgress)));
        assert!(reqs.complete_recv(token, status, true));
        assert_eq!((calls.get() as usize, id.status(), reqs.len()), (n + 1, None, 0));
        assert!(!reqs.has_ready());
    }
}

#[test]
fn an_operation_does_not_call_the_callback_of_the_one_before_it_in_its_block() {
    let calls = Cell::new(0u32);
    for at in [CallAt::End, CallAt::Progress] {
        calls.set(0);
        let mut reqs = table();
        let token = reqs.next_token().unwrap();
        let first = reqs.start(token, Role::Flush, Some(Callback { at, ..callback(&calls) }));
        let plain = RecvStatus { cq_data: None, ..message(1) };
        assert!(reqs.complete_recv(token, plain, true));
        if let Some((call, id, message)) = reqs.next_call() {
            Action::Raw(call, id, Ok(message)).run();
        }
        reqs.take(first);
        assert_eq!((calls.get(), reqs.len()), (1, 0));
        let second = begin(&mut reqs);
        assert_eq!(second.block, first.block);
        drop(reqs.detach(second, None));
        assert!(reqs.complete(second, Ok(EMPTY_STATUS)).is_none());
        assert_eq!((calls.get(), reqs.len()), (1, 0));
    }
}
