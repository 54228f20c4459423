//! Active messages and streams between two workers of one thread, on every lane, byte for byte.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::{Pair, bytes};
use ucp::{AM_MAX_HEADER, AmMessage, AmProto, Context, Error, Worker};
use ucs::config::Source;

const SIZES: [usize; 9] = [0, 1, 8, 4000, 8100, 8192, 20_000, 65_000, 500_000];

fn keep(worker: &Worker, id: u16) -> Rc<RefCell<Vec<AmMessage>>> {
    let kept = Rc::new(RefCell::new(Vec::new()));
    let to = kept.clone();
    worker.set_am_handler(id, move |message| to.borrow_mut().push(message));
    kept
}

fn am_headers_and_data_arrive(tls: &str) {
    let pair = Pair::on(tls);
    let kept = keep(&pair.b, 5);
    let mut number = 0;
    for how in [AmProto::Auto, AmProto::Eager, AmProto::Rendezvous] {
        for header_len in [0, 3, 64, AM_MAX_HEADER] {
            for len in SIZES {
                number += 1;
                let (header, data) = (bytes(number, header_len), bytes(number + 1000, len));
                let send = pair.ab.am_send_with(how, 5, &header, data.clone());
                pair.until(|| !kept.borrow().is_empty());
                let message = kept.borrow_mut().pop().unwrap();
                assert_eq!(
                    (message.id(), message.header(), message.data_len()),
                    (5, &header[..], len as u64)
                );
                let packed = match how {
                    AmProto::Auto => header_len + len <= 4000,
                    AmProto::Eager => true,
                    _ => false,
                };
                assert!(!packed || message.data().is_some(), "{how:?} {header_len} {len}");
                if let Some(here) = message.data() {
                    assert!(here == data, "{how:?} {header_len} {len}");
                }
                let recv = message.recv(Vec::with_capacity(len));
                pair.until(|| recv.is_done() && send.is_done());
                let (status, got) = recv.wait();
                assert!(
                    status.map(|s| s.len) == Ok(len) && got == data,
                    "{how:?} {header_len} {len}: {status:?}"
                );
                let (result, back) = send.wait();
                assert!(result == Ok(()) && back == data);
            }
        }
    }
    pair.settle();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().held_bytes()), (0, 0));
}

fn handlers_may_reply_and_keep_messages(tls: &str) {
    let pair = Pair::on(tls);
    let answers = keep(&pair.a, 9);
    let ep: Rc<RefCell<Option<ucp::Ep>>> = Rc::default();
    let kept = Rc::new(RefCell::new(Vec::new()));
    let (ep_in, kept_in) = (ep.clone(), kept.clone());
    pair.b.set_am_handler(4, move |message| {
        let mut ep = ep_in.borrow_mut();
        let ep = ep.get_or_insert_with(|| message.reply_ep().expect("a way back"));
        ep.am_send(9, message.header(), Vec::new()).detach();
        kept_in.borrow_mut().push(message);
    });
    // More messages than posted buffers, all kept until the end.
    for n in 0..200u64 {
        pair.ab.am_send(4, &n.to_le_bytes(), n.to_le_bytes().to_vec()).detach();
    }
    pair.until(|| answers.borrow().len() == 200);
    let mut seen: Vec<u64> = kept
        .borrow()
        .iter()
        .map(|m| {
            assert_eq!(m.data(), Some(m.header()));
            u64::from_le_bytes(m.header().try_into().unwrap())
        })
        .collect();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..200));
}

/// On the short path and the general one, some before the handler, which may progress the worker.
fn short_messages_arrive_in_order(tls: &str) {
    let pair = Pair::on(tls);
    let came = Rc::new(RefCell::new(Vec::new()));
    let send = |n: u64| {
        let data = vec![n as u8; (n % 40) as usize];
        let header = n.to_le_bytes();
        pair.ab.am_send(4, &header, data).detach();
    };
    (0..50).for_each(send);
    pair.settle();
    let (came_in, worker) = (came.clone(), pair.b.clone());
    pair.b.set_am_handler(4, move |message| {
        let n = u64::from_le_bytes(message.header().try_into().unwrap());
        assert_eq!(message.data(), Some(&vec![n as u8; (n % 40) as usize][..]));
        came_in.borrow_mut().push(n);
        if n % 5 == 0 {
            worker.progress();
        }
    });
    for n in 50..1000 {
        send(n);
        if n % 64 == 0 {
            pair.settle();
        }
    }
    pair.until(|| came.borrow().len() == 1000);
    assert!(came.borrow().iter().copied().eq(0..1000), "{:?}", came.borrow());
    // The handler holds the worker.
    pair.b.clear_am_handler(4);
}

fn messages_without_header_arrive(tls: &str) {
    let pair = Pair::on(tls);
    let kept = keep(&pair.b, 7);
    for len in [0, 1, 8, 2000, 8000, 100_000] {
        let send = pair.ab.am_send(7, &[], vec![len as u8; len]);
        if len > 8192 {
            pair.until(|| kept.borrow().len() == 6);
            let message = kept.borrow_mut().pop().unwrap();
            assert_eq!((message.header(), message.data(), message.data_len()), (&[][..], None, len as u64));
            let recv = message.recv(Vec::with_capacity(len));
            pair.until(|| recv.is_done());
            assert_eq!(recv.wait().1, vec![len as u8; len]);
        }
        pair.until(|| send.is_done());
        assert_eq!(send.wait(), (Ok(()), vec![len as u8; len]));
    }
    pair.until(|| kept.borrow().len() == 5);
    for (message, len) in kept.borrow().iter().zip([0, 1, 8, 2000, 8000]) {
        assert_eq!((message.header(), message.data()), (&[][..], Some(&vec![len as u8; len][..])));
    }
}

fn messages_without_a_handler(tls: &str) {
    let pair = Pair::on(tls);
    // Waits for the first handler of the worker.
    pair.ab.am_send(1, b"early", "data").detach();
    pair.settle();
    let kept = keep(&pair.b, 1);
    pair.until(|| !kept.borrow().is_empty());
    assert_eq!(kept.borrow()[0].header(), b"early");
    // Without a handler it is dropped; the send completes, also if its data was never fetched.
    for len in [10, 300_000] {
        let send = pair.ab.am_send(2, b"?", vec![1; len]);
        pair.until(|| send.is_done());
        assert_eq!(send.wait().0, Ok(()));
    }
    let send = pair.ab.am_send(1, b"unwanted", vec![1; 300_000]);
    pair.until(|| kept.borrow().len() == 2);
    kept.borrow_mut().clear();
    pair.until(|| send.is_done());
    assert_eq!(send.wait().0, Ok(()));
    for len in [100, 100_000] {
        let send = pair.ab.am_send(1, b"", vec![7; len]);
        pair.until(|| !kept.borrow().is_empty());
        let recv = kept.borrow_mut().pop().unwrap().recv(vec![0; 10].into_boxed_slice());
        pair.until(|| recv.is_done() && send.is_done());
        let (status, got) = recv.wait();
        assert_eq!((status, &got[..]), (Err(Error::Truncated { len: len as u64, room: 10 }), &[7; 10][..]));
        assert_eq!(send.wait().0, Ok(()));
    }
    let refused = pair.ab.am_send(1, &[0; AM_MAX_HEADER + 1], "").wait();
    assert_eq!(refused.0, Err(Error::HeaderTooLong { len: AM_MAX_HEADER + 1, max: AM_MAX_HEADER }));
    pair.settle();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().held_bytes()), (0, 0));
}

fn callbacks_may_use_the_worker(tls: &str) {
    let pair = Rc::new(Pair::on(tls));
    let left = Rc::new(Cell::new(100));
    for (worker, to) in [(&pair.a, 0), (&pair.b, 1)] {
        let (weak, left, handled) = (Rc::downgrade(&pair), left.clone(), worker.clone());
        worker.set_am_handler(3, move |_| {
            handled.progress();
            let Some(pair) = weak.upgrade() else { return };
            if left.replace(left.get() - 1) > 0 {
                let ep = if to == 0 { &pair.ab } else { &pair.ba };
                ep.am_send(3, b"", "on").detach();
            }
        });
    }
    pair.ab.am_send(3, b"", "on").detach();
    pair.until(|| left.get() < 0);
    pair.a.clear_am_handler(3);
    pair.b.clear_am_handler(3);
}

fn nested_progress_delivers_later_messages(tls: &str) {
    const COUNT: u32 = 20;
    let pair = Pair::on(tls);
    // Later sends go out at once.
    pair.meet();
    let seen = Rc::new(Cell::new(0));
    let (worker, counted, outer) = (pair.b.clone(), seen.clone(), Cell::new(true));
    pair.b.set_am_handler(4, move |_| {
        counted.set(counted.get() + 1);
        if outer.replace(false) {
            (0..100_000).take_while(|_| counted.get() < COUNT).for_each(|_| _ = worker.progress());
            assert_eq!(counted.get(), COUNT);
        }
    });
    (0..COUNT).for_each(|_| pair.ab.am_send(4, b"", "on").detach());
    pair.until(|| seen.get() == COUNT);
    pair.b.clear_am_handler(4);
}

fn stream_has_no_message_boundaries(tls: &str) {
    let pair = Pair::on(tls);
    let all = bytes(77, 2_000_000);
    // Sent in some pieces, received in others.
    let mut cuts = [1usize, 10, 0, 5000, 8192, 70_000, 300_000, 3].into_iter().cycle();
    let mut sends = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let n = cuts.next().unwrap().min(all.len() - at);
        sends.push(pair.ab.stream_send(all[at..at + n].to_vec()));
        at += n;
    }
    let mut got = Vec::new();
    let mut rooms = [3usize, 100_000, 1, 20_000].into_iter().cycle();
    while got.len() < all.len() {
        let room = rooms.next().unwrap();
        let recv = pair.ba.stream_recv(Vec::with_capacity(room));
        pair.until(|| recv.is_done());
        let (status, bytes) = recv.wait();
        assert!(!bytes.is_empty() && status.map(|s| s.len) == Ok(bytes.len()));
        got.extend(bytes);
        if got.len() < all.len() {
            let want = room.min(all.len() - got.len());
            let full = pair.ba.stream_recv_full(vec![0; want].into_boxed_slice());
            pair.until(|| full.is_done());
            let (status, bytes) = full.wait();
            assert_eq!(status.map(|s| s.len), Ok(want));
            got.extend(bytes);
        }
    }
    assert!(got == all);
    pair.until(|| sends.iter().all(|send| send.is_done()));
    sends.into_iter().for_each(|send| assert_eq!(send.wait().0, Ok(())));
    let first = pair.ab.stream_recv(vec![0; 4].into_boxed_slice());
    let second = pair.ab.stream_recv(vec![0; 4].into_boxed_slice());
    let third = pair.ab.stream_recv_full(vec![0; 4].into_boxed_slice());
    assert!(second.cancel());
    drop(second);
    let send = pair.ba.stream_send("abcdefgh");
    pair.until(|| first.is_done() && third.is_done());
    assert_eq!((&first.wait().1[..], &third.wait().1[..]), (&b"abcd"[..], &b"efgh"[..]));
    drop(send);
    let kept = keep(&pair.b, 0);
    pair.ab.stream_send("stream").detach();
    pair.ab.tag_send(0, "message").detach();
    pair.ab.msg_send("untagged").detach();
    pair.ab.am_send(0, b"header", "data").detach();
    let messages = (pair.b.tag_recv(0, 0, Vec::with_capacity(10)), pair.b.msg_recv(Vec::with_capacity(10)));
    let stream = pair.ba.stream_recv(Vec::with_capacity(10));
    pair.until(|| {
        messages.0.is_done() && messages.1.is_done() && stream.is_done() && kept.borrow().len() == 1
    });
    assert_eq!((messages.0.wait().1, messages.1.wait().1), (b"message".to_vec(), b"untagged".to_vec()));
    assert_eq!(stream.wait().1, b"stream");
    kept.borrow_mut().clear();
    pair.settle();
    assert_eq!(
        (pair.a.diagnostics().requests(), pair.b.diagnostics().requests() > 0),
        (0, true),
        "buffers stay posted"
    );
}

/// Data taken in the library's memory: each send's, in order; waiting receives come first.
fn stream_data_can_be_taken(tls: &str) {
    let pair = Pair::on(tls);
    assert_eq!(pair.ba.stream_recv_data().unwrap().as_deref(), None);
    assert!(!pair.ba.has_stream_data());
    for (n, len) in [1, 3000, 20_000, 200_000, 1_000_000, 5].into_iter().enumerate() {
        let sent = bytes(n as u64, len);
        let send = pair.ab.stream_send(sent.clone());
        let mut got = Vec::new();
        pair.until(|| {
            if let Some(data) = pair.ba.stream_recv_data().unwrap() {
                assert!(!data.is_empty());
                got.extend_from_slice(&data);
            }
            got.len() == len && send.is_done()
        });
        assert!(got == sent, "{len} bytes");
    }
    pair.ab.stream_send("abcdef").detach();
    let four = pair.ba.stream_recv_full(vec![0; 4].into_boxed_slice());
    pair.until(|| four.is_done());
    assert_eq!(&four.wait().1[..], b"abcd");
    assert!(pair.ba.has_stream_data());
    assert_eq!(pair.ba.stream_recv_data().unwrap().as_deref(), Some(&b"ef"[..]));
    assert!(!pair.ba.has_stream_data());
    let waits = pair.ba.stream_recv(vec![0; 4].into_boxed_slice());
    pair.ab.stream_send("gh").detach();
    pair.until(|| {
        assert_eq!(pair.ba.stream_recv_data().unwrap().as_deref(), None);
        waits.is_done()
    });
    assert_eq!(&waits.wait().1[..2], b"gh");
}

/// Dropping the data of an announced message loses it, and the send completes.
fn dropped_stream_data_blocks_nobody(tls: &str) {
    let tls = crate::common::ends(tls).0;
    let config = || Source::empty().with("UCX_TLS", tls).with("UCX_PROGRESS_BATCH", "1");
    let worker = || Context::configured(config()).unwrap().worker().unwrap();
    let a = worker();
    let pair = Pair::of(a.clone(), if tls == "self" { a } else { worker() });
    let (given_up, received) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
    let (given_up_in, received_in) = (given_up.clone(), received.clone());
    pair.b.set_am_handler(5, move |message| {
        let recv = message.recv(vec![0; 20_000].into_boxed_slice());
        given_up_in.set(given_up_in.get() + u32::from(recv.cancel()));
        received_in.borrow_mut().push(recv);
    });
    let send = |n| {
        pair.ab.am_send_with(AmProto::Rendezvous, 5, b"header", bytes(n, [10, 3000, 20_000][n as usize % 3]))
    };
    let mut sends: Vec<_> = (0..30).map(send).collect();
    pair.until(|| received.borrow().len() == 30 && sends.iter_mut().all(|send| send.is_done()));
    pair.until(|| received.borrow_mut().iter_mut().all(|recv| recv.is_done()));
    let ends = received.take().into_iter().map(|recv| recv.wait().0);
    let cancelled = ends.filter(|end| *end == Err(Error::Cancelled)).count();
    assert!(cancelled as u32 == given_up.get() && cancelled > 0, "{cancelled} given up");
    pair.settle();
    assert_eq!((pair.b.diagnostics().held_bytes(), pair.b.diagnostics().snapshot().unexpected), (0, 0));
}

fn failed_peer_ends_its_stream(tls: &str) {
    let pair = Pair::on(tls);
    pair.ab.stream_send("last words").detach();
    pair.settle();
    let recv = pair.ba.stream_recv_full(vec![0; 10].into_boxed_slice());
    let none = pair.ba.stream_recv(vec![0; 10].into_boxed_slice());
    pair.until(|| recv.is_done());
    assert_eq!(&recv.wait().1[..], b"last words");
    let Pair { a, b, ab, ba, shared: _shared } = pair;
    let _ = ba.close(ucp::CloseMode::Force).wait();
    crate::common::spin(&[&a, &b], &mut || none.is_done());
    assert!(none.wait().0.is_err());
    drop(ab);
}

on! {
    [am_headers_and_data_arrive handlers_may_reply_and_keep_messages short_messages_arrive_in_order
     messages_without_header_arrive messages_without_a_handler callbacks_may_use_the_worker
     nested_progress_delivers_later_messages stream_has_no_message_boundaries
     stream_data_can_be_taken dropped_stream_data_blocks_nobody failed_peer_ends_its_stream]
    loopback: "self",
    posix: "posix",
    efa: "efa",
    own_contexts: "apart posix",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}

/// An operation not sent yet can be cancelled; one that may have been announced cannot.
fn unsent_operations_are_cancelled(tls: &str) {
    let pair = Pair::on(tls);
    let kept = keep(&pair.b, 5);
    // Nothing of these is sent before the handshake.
    let packed = [
        pair.ab.am_send(5, b"first", bytes(1, 100)),
        pair.ab.am_send(5, b"", bytes(2, 100)),
        pair.ab.am_send_with(AmProto::Eager, 5, b"third", bytes(3, 30_000)),
    ];
    let announced = pair.ab.am_send_with(AmProto::Rendezvous, 5, b"fourth", bytes(4, 100));
    let last = pair.ab.am_send(5, b"last", bytes(5, 10));
    let streamed = [
        pair.ab.stream_send(bytes(6, 50)),
        pair.ab.stream_send(bytes(7, 50)),
        pair.ab.stream_send(bytes(8, 50)),
    ];
    let flush = pair.ab.flush();
    assert!(flush.cancel());
    assert_eq!(flush.wait(), Err(Error::Cancelled));
    for send in packed {
        assert!(send.cancel());
        let (result, back) = send.wait();
        assert_eq!((result, back.is_empty()), (Err(Error::Cancelled), false));
    }
    assert!(!announced.cancel(), "its handler may have been told");
    assert!(streamed[1].cancel());
    let recv = pair.ba.stream_recv_full(vec![0; 100]);
    pair.until(|| recv.is_done() && kept.borrow().len() == 2);
    assert!(recv.wait().1 == [bytes(6, 50), bytes(8, 50)].concat());
    let mut messages = kept.borrow_mut().drain(..).collect::<Vec<_>>();
    let (second, first) = (messages.pop().unwrap(), messages.pop().unwrap());
    assert_eq!((first.header(), second.header()), (&b"fourth"[..], &b"last"[..]));
    drop(second);
    let data = first.recv(vec![0; 100]);
    pair.until(|| data.is_done());
    assert!(data.wait().1 == bytes(4, 100));
    assert_eq!((announced.wait().0, last.wait().0), (Ok(()), Ok(())));
    let ends = streamed.map(|send| send.wait().0);
    assert_eq!(ends, [Ok(()), Err(Error::Cancelled), Ok(())]);
    let done = pair.ab.am_send(5, b"out", bytes(9, 10));
    assert!(!done.cancel(), "it has gone out");
    drop(done);
    pair.settle();
    kept.borrow_mut().clear();
    assert_eq!((pair.a.diagnostics().requests(), pair.b.diagnostics().held_bytes()), (0, 0));
}

#[test]
fn unsent_operations_are_cancelled_on_shared_memory() {
    unsent_operations_are_cancelled("posix");
}

#[test]
fn unsent_operations_are_cancelled_on_efa() {
    unsent_operations_are_cancelled("efa");
}
