//! One-sided operations, active messages, probed messages, pieces and streams of several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ucp::mt::SharedAmMessage;
use ucp::{ANY_TAG, Access, AmProto, AtomicOp, Match, TAG_MASK_FULL};

use crate::Shared;
use crate::common::bytes;

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

on! {
    [threads_share_memory_and_keys kept_active_messages_are_for_any_thread begun_by_one_thread_and_ended_by_another]
    posix: "posix",
    efa: "efa",
    all: "all",
}
