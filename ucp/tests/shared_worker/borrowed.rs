//! Borrowed memory of several threads, and data that threads pack, unpack and lay out in blocks.

use std::io::IoSliceMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use ucp::mt::ThreadMode;
use ucp::{
    Access, AtomicOp, Error, Match, Pack, Packed, StreamRecvMode, Stride, Strided, TAG_MASK_FULL, Unpack,
    Unpacked,
};

use crate::common::{bytes, context};
use crate::{Shared, WRONG, connect, multi, named, until_asleep};

/// Each thread sends, receives, puts and gets borrowed memory in the scopes of both workers.
fn threads_use_borrowed_memory(tls: &str) {
    let Shared { a, b, ab, ba: _ba } = &Shared::on(tls);
    let mem = b.mem_alloc(8192, Access::all()).unwrap();
    let _served = (a.spawn_progress().unwrap(), b.spawn_progress().unwrap());
    let rkey = ab.unpack_rkey(&mem.pack_rkey()).unwrap();
    let (mem, rkey) = (&mem, &rkey);
    for len in [0, 8, 5000, 200_000] {
        let texts = [0, 1, 2, 3].map(|seed| bytes(seed, len));
        let mut received = [(); 4].map(|()| vec![0; len]);
        let mut halves = [(); 4].map(|()| (vec![0; len / 2], vec![0; len - len / 2]));
        let mut read = [(); 4].map(|()| vec![0; len.min(2000)]);
        let all = texts.iter().zip(&mut received).zip(&mut halves).zip(&mut read);
        b.scope(|receives| {
            a.scope(|sends| {
                thread::scope(|threads| {
                    for (tag, (((text, received), halves), read)) in (0..).zip(all) {
                        threads.spawn(move || {
                            let at = mem.addr() + tag * 2048;
                            let recv = receives.tag_recv(tag, TAG_MASK_FULL, received);
                            let matching = Match::tagged(10 + tag, TAG_MASK_FULL);
                            let split = receives.recv_iov(matching, [&mut halves.0[..], &mut halves.1[..]]);
                            let put = sends.put(ab, &text[..read.len()], at, rkey);
                            // The scope waits for what thread 0 leaves.
                            let whole = match tag % 2 {
                                0 => sends.tag_send(ab, tag, text),
                                _ => sends.tag_send_sync(ab, tag, text),
                            };
                            let second = sends.tag_send(ab, 10 + tag, text);
                            if tag > 0 {
                                let status = recv.wait().unwrap();
                                assert_eq!((status.len, status.tag), (len, tag));
                                assert_eq!(split.wait().map(|status| status.len), Ok(len));
                                assert!(whole.wait().is_ok() && second.wait().is_ok());
                            }
                            put.wait().unwrap();
                            ab.flush().wait().unwrap();
                            sends.get(ab, read, at, rkey).wait().unwrap();
                        });
                    }
                });
            });
        });
        for n in 0..4 {
            assert!(received[n] == texts[n] && [&*halves[n].0, &*halves[n].1].concat() == texts[n]);
            assert!(read[n] == texts[n][..read[n].len()], "{n}");
        }
    }
    let mut word = 0u64;
    for n in 0..3u64 {
        mem.write(0, &word.to_ne_bytes());
        assert_eq!(ab.atomic_fetch_blocking(AtomicOp::Sum, n, mem.addr(), rkey), Ok(word));
        word += n;
        let swapped = ab.atomic_compare_blocking(AtomicOp::CompareSwap, word, 7 * n, mem.addr(), rkey);
        assert_eq!((swapped, mem.word(0)), (Ok(word), 7 * n));
        word = 7 * n;
    }
    let (mut head, mut tail) = ([0; 3], [0; 10]);
    ab.msg_send(bytes(9, 13)).wait().unwrap().0.unwrap();
    let mut pieces = [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
    assert_eq!(b.recv_iov_blocking(Match::untagged(), &mut pieces).map(|status| status.len), Ok(13));
    assert_eq!([&head[..], &tail].concat(), bytes(9, 13));
}

/// A panic in a scope cancels what is not matched, and one of a callback reaches the thread that waits.
#[test]
fn panic_in_a_scope_ends_its_operations() {
    let worker = multi("posix");
    let ep = connect(&worker, &worker);
    let mut buf = [0; 8];
    let panic = catch_unwind(AssertUnwindSafe(|| {
        worker.scope(|s| {
            let never = s.tag_recv(1, TAG_MASK_FULL, &mut buf);
            assert!(!never.is_done());
            panic!("on purpose");
        })
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"on purpose"));
    worker.tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(8)).then(|_| panic!("on purpose")).unwrap();
    let panic = thread::scope(|scope| {
        let blocked = named(scope, "blocked", || {
            let wait = || worker.scope(|s| s.tag_recv(6, TAG_MASK_FULL, &mut buf).wait());
            catch_unwind(AssertUnwindSafe(wait))
        });
        until_asleep("blocked");
        ep.tag_send_blocking(5, &[5; 8]).unwrap();
        blocked.join().unwrap()
    });
    assert!(panic.is_err(), "the receive was cancelled");
    let other = multi("posix");
    assert!(catch_unwind(AssertUnwindSafe(|| other.scope(|s| s.tag_send(&ep, 1, &[1]).wait()))).is_err());
    worker.scope(|s| {
        let recv = s.tag_recv(7, TAG_MASK_FULL, &mut buf);
        assert_eq!((recv.cancel(), recv.wait()), (Ok(true), Err(Error::Cancelled)));
    });
    assert_eq!(worker.diagnostics(|d| d.requests()), Ok(0));
}

/// In mode single another thread starts and waits for nothing; the scope waits for what is left.
#[test]
fn scope_keeps_to_the_thread_mode() {
    let worker = context("posix").shared_worker(ThreadMode::Single).unwrap();
    let ep = connect(&worker, &worker);
    let (mut mine, mut theirs) = ([0; 8], [0; 8]);
    worker.scope(|s| {
        let recv = s.tag_recv(1, TAG_MASK_FULL, &mut mine);
        thread::scope(|threads| {
            threads.spawn(|| {
                assert_eq!(s.tag_recv(1, TAG_MASK_FULL, &mut theirs).wait(), Err(WRONG));
                assert_eq!((recv.cancel(), recv.is_done()), (Err(WRONG), false));
                assert_eq!(recv.wait(), Err(WRONG));
            });
        });
        assert_eq!(s.tag_send(&ep, 1, &[7; 8]).wait(), Ok(()));
    });
    assert_eq!((mine, theirs), ([7; 8], [0; 8]));
}

/// Packs and unpacks a vector, at most 1000 bytes a call.
struct Parts(Vec<u8>);

impl Pack for Parts {
    fn packed_size(&self) -> usize {
        self.0.len()
    }

    fn pack(&mut self, offset: usize, to: &mut [u8]) -> usize {
        let n = to.len().min(1000);
        to[..n].copy_from_slice(&self.0[offset..offset + n]);
        n
    }
}

impl Unpack for Parts {
    fn packed_size(&self) -> usize {
        self.0.len()
    }

    fn unpack(&mut self, offset: usize, from: &[u8]) -> Result<(), ucs::Status> {
        self.0[offset..offset + from.len()].copy_from_slice(from);
        Ok(())
    }
}

/// Four threads send packed data and blocks, and unpack what they receive.
fn threads_pack_and_unpack(tls: &str) {
    let pair = &Shared::on(tls);
    let _served = (pair.a.spawn_progress().unwrap(), pair.b.spawn_progress().unwrap());
    thread::scope(|threads| {
        for tag in 0..4u64 {
            threads.spawn(move || {
                for len in [8, 6000, 120_000] {
                    let text = bytes(tag, len);
                    let packed = || Packed::new(Parts(text.clone()));
                    let blocks = Stride { offset: 1, len: 4, stride: 9, count: len / 16 };
                    let mut recv = pair.b.tag_recv(tag, TAG_MASK_FULL, Unpacked::new(Parts(vec![0; len])));
                    pair.ab.tag_send(tag, packed()).wait().unwrap().0.unwrap();
                    let (ended, got) = recv.wait().unwrap();
                    assert_eq!(ended.map(|status| status.len), Ok(len));
                    assert!(got.get().0 == text);

                    let room = Strided::new(vec![0; len], blocks);
                    let mut recv = pair.b.tag_recv(10 + tag, TAG_MASK_FULL, room);
                    pair.ab.tag_send(10 + tag, Strided::new(text.clone(), blocks)).wait().unwrap().0.unwrap();
                    let (ended, got) = recv.wait().unwrap();
                    assert_eq!(ended.map(|status| status.len), Ok(4 * (len / 16)));
                    for block in (0..len / 16).map(|n| 1 + 9 * n..5 + 9 * n) {
                        assert_eq!(got.get()[block.clone()], text[block]);
                    }
                }
            });
        }
    });
    let text = bytes(1, 50_000);
    let mut send = pair.ab.stream_send(Packed::new(Parts(text.clone())));
    let mut recv = pair.ba.stream_recv_iov(vec![Vec::with_capacity(50_000)], StreamRecvMode::WaitAll);
    assert!(recv.wait().unwrap().1.concat() == text);
    send.wait().unwrap().0.unwrap();
}

on! {
    [threads_use_borrowed_memory threads_pack_and_unpack]
    posix: "posix",
    efa: "efa",
    all: "all",
}
