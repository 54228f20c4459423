//! Tests of what `posix` alone promises; the rest is in the conformance suite.

#![allow(unsafe_code)]

mod panics;
mod remote_memory;
mod scribbler;

use super::{Config, Ep, Iface};
use crate::api::{
    ConnectError, Ep as _, Error, Events, Iface as _, Outcome, PendingQueued, PollOne, Refused, Retry, Sent,
};
use crate::host::fd_server::MAX_NAMES;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucs::config::{Source, Table};

fn open(source: &Source) -> Iface {
    Iface::open(&Config::load(source).unwrap()).unwrap()
}

fn pair() -> (Iface, Ep) {
    let iface = open(&Source::empty());
    let ep = iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
    assert_eq!(ep.ensure_connected(), Ok(()));
    (iface, ep)
}

fn first(mut send: impl FnMut() -> Outcome) -> Outcome {
    loop {
        match send() {
            Err(Refused::NoResource) => std::thread::yield_now(),
            sent => return sent,
        }
    }
}

fn collect(iface: &Iface, id: u8) -> Rc<RefCell<Vec<Vec<u8>>>> {
    let got = Rc::new(RefCell::new(Vec::new()));
    let sink = got.clone();
    iface.set_am_handler(id, Some(Box::new(move |am| sink.borrow_mut().push(am.data().to_vec()))));
    got
}

#[test]
fn every_length_arrives_through_cell_and_slot() {
    let (iface, ep) = pair();
    let got = collect(&iface, 5);
    for len in (0..200).chain([8192, 8447]) {
        let data: Vec<u8> = (0..len).map(|i| i as u8 ^ len as u8).collect();
        assert_eq!(
            ep.am_bcopy(5, |slot| {
                slot[..len].copy_from_slice(&data);
                len
            }),
            Ok(len)
        );
        assert_eq!(
            ep.am_packet(1 + len, |slot| {
                slot[0] = 5;
                slot[1..=len].copy_from_slice(&data);
                1 + len
            }),
            Ok(1 + len)
        );
        assert_eq!(iface.progress(9), 2);
        assert_eq!(*got.borrow_mut().drain(..).collect::<Vec<_>>(), [data.clone(), data]);
    }
}

#[test]
fn fifo_has_one_to_four_buffers_per_cell() {
    for (cells, bufs, map_entries) in
        [("64", "256", 256), ("64", "64", 64), ("64", "2", 64), ("2", "256", 8), ("512", "256", 512)]
    {
        let source = Source::empty().with("UCX_POSIX_FIFO_SIZE", cells).with("UCX_POSIX_FIFO_BUFS", bufs);
        assert_eq!(
            open(&source).segment().shape().map_entries,
            map_entries,
            "{cells} messages, {bufs} buffers"
        );
    }
    let odd = Config::load(&Source::empty().with("UCX_POSIX_FIFO_BUFS", "100")).unwrap_err().to_string();
    assert!(odd.starts_with("UCX_POSIX_FIFO_BUFS=100 (override): expected a number"), "{odd}");
}

#[test]
fn mixed_lengths_arrive_intact() {
    let (iface, ep) = pair();
    let (kept, got) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(0)));
    let (keeps, count) = (kept.clone(), got.clone());
    let lens = [150, 4000, 16_000, 3000, 500, 8000, 9000, 2500];
    let bytes = move |n: usize| vec![n as u8 ^ (n >> 8) as u8; lens[n * n % 31 % lens.len()]];
    let handler = move |am: crate::api::Am<'_>| {
        let n = count.replace_with(|n| *n + 1);
        assert!(am.data() == bytes(n), "message {n}");
        if n % 37 == 5 {
            keeps.borrow_mut().push((n, am.keep()));
        }
    };
    iface.set_am_handler(5, Some(Box::new(handler)));
    for n in 0..2000 {
        let data = bytes(n);
        let pack = |slot: &mut [u8]| {
            slot[..data.len()].copy_from_slice(&data);
            data.len()
        };
        assert_eq!(ep.am_bcopy(5, pack), Ok(data.len()));
        iface.progress(if n % 50 == 49 { 64 } else { n % 2 });
    }
    while iface.progress(64) > 0 {}
    assert_eq!((*got.borrow(), kept.borrow().len()), (2000, 54));
    kept.borrow()
        .iter()
        .for_each(|(n, kept)| assert!(kept.packet()[1..] == bytes(*n), "message {n} is another's now"));
}

#[test]
fn unread_payloads_use_fewer_buffers() {
    let (iface, ep) = pair();
    let (lens, count) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(0)));
    let (to, counts) = (lens.clone(), count.clone());
    let (skim, read, keep) = (5, 6, 7);
    iface.set_am_handler(skim, Some(Box::new(move |am| to.borrow_mut().push((am.id(), am.len())))));
    iface.set_am_handler(read, Some(Box::new(move |am| *counts.borrow_mut() += am.data().len())));
    iface.set_am_handler(keep, Some(Box::new(|am| drop(am.keep()))));
    let buffers = |id: u8, times: usize| {
        let mut at = std::collections::HashSet::new();
        for _ in 0..times {
            let pack = |slot: &mut [u8]| {
                at.insert(slot.as_ptr() as usize / 64);
                fill(slot, id, 4096)
            };
            assert_eq!(ep.am_bcopy(id, pack), Ok(4096));
            assert_eq!(iface.progress(1), 1);
        }
        at.len()
    };
    assert_eq!(buffers(read, 512), 256);
    buffers(skim, 256);
    assert_eq!(buffers(skim, 512), 64);
    for id in [read, keep] {
        // The writer reads the hint when it has used up its room.
        buffers(id, 64);
        assert!(buffers(id, 512) >= 256);
        buffers(skim, 256);
        assert_eq!(buffers(skim, 512), 64);
    }
    assert!(lens.borrow().iter().all(|got| *got == (skim, 4096)));
    assert_eq!(*count.borrow(), (512 + 64 + 512) * 4096);
}

#[test]
fn poll_inside_a_handler_delivers_nothing() {
    let (iface, ep) = pair();
    let (seen, polled) = (Rc::new(RefCell::new(Vec::new())), iface.clone());
    let sink = seen.clone();
    let handler = move |am: crate::api::Am<'_>| {
        let first = am.data()[0];
        let more =
            (0..1000).take_while(|_| ep.am_bcopy(6, |slot| fill(slot, first + 1, 3000)).is_ok()).count();
        assert_eq!(polled.progress(64), 0);
        assert!(am.data().len() == 3000 && am.data().iter().all(|byte| *byte == first));
        sink.borrow_mut().push(more);
    };
    let ep = iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
    iface.set_am_handler(5, Some(Box::new(handler)));
    let late = collect(&iface, 6);
    ep.am_bcopy(5, |slot| fill(slot, 1, 3000)).unwrap();
    assert_eq!(iface.progress(1), 1);
    while iface.progress(64) > 0 {}
    assert_eq!((seen.borrow().len(), late.borrow().len()), (1, seen.borrow()[0]));
    assert!(late.borrow().len() > 8 && late.borrow().iter().all(|data| *data == vec![2; 3000]));
    iface.set_am_handler(5, None);
}

fn fill(slot: &mut [u8], with: u8, len: usize) -> usize {
    slot[..len].fill(with);
    len
}

#[test]
fn forked_child_drops_its_copies_harmlessly() {
    let (reader, writer) = (open(&Source::empty()), open(&Source::empty()));
    let got = collect(&reader, 5);
    let ep = writer.connect(&reader.device_addr(), &reader.iface_addr()).unwrap();
    assert_eq!(first(|| ep.am_short(5, 1, &[])), Ok(Sent::Done));
    // SAFETY: the child drops its copies and exits; nothing of that takes a lock that another thread may
    // hold.
    match unsafe { libc::fork() } {
        0 => {
            drop((ep, writer, reader));
            // SAFETY: ends the child without the exit handlers of the test's process.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    for n in 0..100u64 {
        assert_eq!(ep.am_short(5, n, &[]), Ok(Sent::Done));
        while reader.progress(8) > 0 {}
    }
    assert_eq!(got.borrow().len(), 101);
    assert_eq!(ep.check(Default::default()), Ok(Sent::Done));
    let third = open(&Source::empty());
    let other = third.connect(&reader.device_addr(), &reader.iface_addr()).unwrap();
    assert_eq!(other.ensure_connected(), Ok(()));
    for _ in 0..10 {
        assert_eq!(other.am_short(5, 7, &[]), Ok(Sent::Done));
        assert_eq!(ep.am_short(5, 8, &[]), Ok(Sent::Done));
        while reader.progress(8) > 0 {}
    }
    assert_eq!(got.borrow().len(), 121);
}

#[test]
fn send_to_a_closed_interface_fails() {
    let (reader, _) = pair();
    let writer = open(&Source::empty());
    let ep = writer.connect(&reader.device_addr(), &reader.iface_addr()).unwrap();
    let (device, addr) = (reader.device_addr(), reader.iface_addr());
    assert_eq!(ep.ensure_connected(), Ok(()));
    assert_eq!(ep.check(Default::default()), Ok(Sent::Done));
    drop(reader);
    assert_eq!(ep.check(Default::default()), Err(Refused::Failed(Error::PeerDead)));
    let refused = (0..1000).find_map(|_| ep.am_short(1, 0, &[]).err());
    assert_eq!(refused, Some(Refused::Failed(Error::PeerDead)));
    let late = writer.connect(&device, &addr).unwrap();
    assert_eq!(late.ensure_connected(), Err(ConnectError::Gone));
}

#[test]
fn ping_pong_delays_polls() {
    let exchange = |setting: &str, a_sends: usize, send: &dyn Fn(&Ep, u64)| {
        const ROUNDS: usize = 3000;
        const SLOW: usize = 1200;
        let source = Source::empty().with("UCX_POSIX_POLL_DELAY", setting);
        let (a, b) = (open(&source), open(&source));
        let to = |from: &Iface, to: &Iface| from.connect(&to.device_addr(), &to.iface_addr()).unwrap();
        let (ab, ba) = (to(&a, &b), to(&b, &a));
        assert_eq!((ab.ensure_connected(), ba.ensure_connected()), (Ok(()), Ok(())));
        let (at_a, at_b) = (collect(&a, 1), collect(&b, 1));
        for round in 0..ROUNDS {
            (0..a_sends).for_each(|_| send(&ab, round as u64));
            // Answers are slow at first; when they come at once, the first poll still sees each.
            let sent = Instant::now();
            while round < SLOW && sent.elapsed() < Duration::from_micros(100) {}
            assert_eq!((b.progress(16), at_b.borrow().len()), (a_sends, (round + 1) * a_sends));
            send(&ba, round as u64);
            assert_eq!((a.progress(16), at_a.borrow().len()), (1, round + 1));
        }
        let received: Vec<_> = at_a
            .borrow()
            .iter()
            .map(|received| u64::from_le_bytes(received[..8].try_into().unwrap()))
            .collect();
        assert!(received.into_iter().eq(0..ROUNDS as u64));
        (a.delays_polls(), b.delays_polls())
    };
    let packet = |ep: &Ep, round: u64| {
        let packet = |slot: &mut [u8]| {
            slot[0] = 1;
            slot[1..9].copy_from_slice(&round.to_le_bytes());
            9
        };
        assert_eq!(ep.am_short_packet(9, packet), Ok(9));
    };
    let short = |ep: &Ep, round: u64| assert_eq!(ep.am_short(1, round, &[]), Ok(Sent::Done));
    let short_iov = |ep: &Ep, round: u64| {
        let bytes = round.to_le_bytes();
        assert_eq!(ep.am_short_iov(1, &[&bytes[..3], &bytes[3..]]), Ok(Sent::Done));
    };
    for send in [&packet as &dyn Fn(&Ep, u64), &short, &short_iov] {
        assert_eq!(exchange("1s", 1, send), (true, true));
        assert_eq!(exchange("0", 1, send), (false, false), "switched off");
        assert_eq!(exchange("1s", 3, send), (false, false), "no turns");
    }
}

#[test]
fn one_query_fetches_many_peers() {
    const READERS: usize = MAX_NAMES + 4;
    let readers: Vec<_> = (0..READERS).map(|_| open(&Source::empty())).collect();
    let got: Vec<_> = readers.iter().map(|reader| collect(reader, 1)).collect();
    let writer = open(&Source::empty());
    let to = |reader: &Iface| writer.connect(&reader.device_addr(), &reader.iface_addr()).unwrap();
    let eps: Vec<_> = readers.iter().map(to).collect();
    let never = to(&readers[0]);
    assert_eq!(writer.peers_without_query(), READERS);
    assert_eq!(first(|| eps[3].am_short(1, 3, &[])), Ok(Sent::Done));
    assert_eq!(writer.peers_without_query(), READERS - MAX_NAMES);
    drop(never);
    // The next query covers what the first left out; what was fetched needs no query.
    for (n, ep) in eps.iter().enumerate().filter(|(n, _)| *n != 3) {
        assert_eq!(first(|| ep.am_short(1, n as u64, &[])), Ok(Sent::Done), "{n}");
    }
    assert_eq!(writer.peers_without_query(), 0);
    for (n, (reader, got)) in readers.iter().zip(&got).enumerate() {
        assert_eq!(reader.progress(9), 1, "{n}");
        assert_eq!(*got.borrow(), [(n as u64).to_le_bytes().to_vec()]);
    }
}

#[test]
fn fetched_segment_of_a_closed_interface_is_rejected() {
    let (kept, closed) = (open(&Source::empty()), open(&Source::empty()));
    let writer = open(&Source::empty());
    let [to_kept, to_closed] =
        [&kept, &closed].map(|to| writer.connect(&to.device_addr(), &to.iface_addr()).unwrap());
    assert_eq!(to_kept.ensure_connected(), Ok(()));
    assert_eq!(writer.peers_without_query(), 0, "queried with the other");
    drop(closed);
    assert_eq!(to_closed.am_short(1, 0, &[]), Err(Refused::Failed(Error::PeerDead)));
    assert_eq!(to_closed.ensure_connected(), Err(ConnectError::Gone));
    assert_eq!(to_kept.am_short(1, 0, &[]), Ok(Sent::Done));
}

#[test]
fn peer_is_queried_at_the_first_message() {
    let (reader, _) = pair();
    let got = collect(&reader, 1);
    let writer = open(&Source::empty());
    let (device, addr) = (reader.device_addr(), reader.iface_addr());
    let ep = writer.connect(&device, &addr).unwrap();
    let taken = || reader.segment().writer(0).owner.load(std::sync::atomic::Ordering::Relaxed) != 0;
    assert_eq!((ep.max_bcopy(), ep.check(Default::default())), (16639, Ok(Sent::Done)));
    assert!(!taken(), "neither the limit nor the check needs the peer's memory");
    assert_eq!(first(|| ep.am_short(1, 7, &[])), Ok(Sent::Done));
    assert!(taken());
    assert_eq!((reader.progress(9), got.borrow().len()), (1, 1));
    drop(ep);
    let late: Vec<_> = (0..3).map(|_| writer.connect(&device, &addr).unwrap()).collect();
    drop(reader);
    let dead = Refused::Failed(Error::PeerDead);
    assert_eq!(first(|| late[0].am_short(1, 0, &[])), Err(dead));
    for _ in 0..2 {
        assert_eq!(late[0].am_short(1, 0, &[]), Err(dead));
        assert_eq!(late[1].am_packet(4000, |_| unreachable!("nothing to write to")), Err(dead));
    }
    assert_eq!(late[1].check(Default::default()), Err(dead));
    assert!(matches!(late[2].pending_add(Box::new(|| unreachable!())), Ok(PendingQueued::Busy)));
}

#[test]
fn name_tells_default_slot_length() {
    let writer = open(&Source::empty());
    for (size, usual) in [("16640", true), ("4096", false), ("65536", false)] {
        let reader = open(&Source::empty().with("UCX_POSIX_SEG_SIZE", size));
        let ep = writer.connect(&reader.device_addr(), &reader.iface_addr()).unwrap();
        assert_eq!((ep.max_bcopy() + 1).to_string(), size);
        let queried = reader.segment().writer(0).owner.load(std::sync::atomic::Ordering::Relaxed) != 0;
        assert_eq!(queried, !usual);
    }
    assert_eq!(Config::load(&Source::empty()).unwrap().seg_size as usize, super::seg::DEFAULT_SLOT_LEN);
}

#[test]
fn panicking_closure_leaves_the_fifo_usable() {
    let (iface, ep) = pair();
    let got = collect(&iface, 1);
    for max in [8, 4000] {
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ep.am_packet(max, |_| panic!("no"))));
        assert!(caught.is_err());
    }
    assert_eq!(ep.am_short_iov(1, &[b"x"]), Ok(Sent::Done));
    assert_eq!(iface.progress(9), 3);
    assert_eq!((got.borrow().len(), iface.rx_stats().malformed), (1, 2));
}

#[test]
fn operation_queued_by_a_closure_is_not_overtaken() {
    let (iface, ep) = pair();
    let (ep, got) = (Rc::new(ep), collect(&iface, 5));
    for max in [16, 4000] {
        let by = Rc::downgrade(&ep);
        let packed = ep.am_packet(max, |slot| {
            assert_eq!(ep.am_short(5, 1, &[]), Err(Refused::NoResource), "the closure is packing");
            let op = move || match by.upgrade().unwrap().am_short(5, 1, &[]) {
                Ok(_) => Retry::Done,
                Err(_) => Retry::NoResource,
            };
            assert_eq!(ep.pending_add(Box::new(op)), Ok(PendingQueued::Queued));
            assert_eq!(ep.am_short(5, 1, &[]), Err(Refused::NoResource));
            slot[..9].copy_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 0]);
            9
        });
        assert_eq!(packed, Ok(9));
        assert_eq!(ep.am_short(5, 2, &[]), Err(Refused::NoResource), "one waits");
        while iface.progress(9) > 0 {}
        assert_eq!(ep.am_short(5, 2, &[]), Ok(Sent::Done));
        while iface.progress(9) > 0 {}
        assert_eq!(*got.borrow_mut().drain(..).collect::<Vec<_>>(), [0u64, 1, 2].map(u64::to_le_bytes));
    }
}

#[test]
fn event_fd_wakes_once_per_arm() {
    let (iface, ep) = pair();
    let epoll = ucs::sys::Epoll::new().unwrap();
    epoll.add(iface.event_fd().unwrap(), 1).unwrap();
    let woken = || epoll.wait(&mut Vec::new(), Some(std::time::Duration::ZERO)).unwrap() == 1;
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    assert!(!woken(), "not armed");
    assert_eq!(iface.arm(Events::RECV), Ok(false));
    assert_eq!(iface.progress(9), 1);
    assert_eq!(iface.arm(Events::RECV), Ok(true));
    assert!(!woken());
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    assert!(woken());
    assert_eq!((iface.progress(9), iface.arm(Events::RECV)), (1, Ok(true)));
    assert!(!woken());
}

#[test]
fn writer_entries_are_bounded_and_reused() {
    let reader = open(&Source::empty().with("UCX_POSIX_MAX_WRITERS", "1"));
    let (device, addr) = (reader.device_addr(), reader.iface_addr());
    let (one, two) = (open(&Source::empty()), open(&Source::empty()));
    let ep = one.connect(&device, &addr).unwrap();
    let again = one.connect(&device, &addr).unwrap();
    assert_eq!((ep.ensure_connected(), again.ensure_connected()), (Ok(()), Ok(())));
    let other = two.connect(&device, &addr).unwrap();
    let refused = other.ensure_connected().unwrap_err();
    assert!(matches!(refused, ConnectError::Op(Error::Exhausted(_))));
    assert!(refused.to_string().contains("UCX_POSIX_MAX_WRITERS"), "{refused}");
    let sent = first(|| other.am_short(1, 0, &[]));
    assert!(matches!(sent, Err(Refused::Failed(Error::Exhausted(_)))));
    drop((ep, again));
    assert_eq!(other.ensure_connected(), Ok(()), "retried, since it may pass");
}

/// A table for 65536 writers is four mebibytes long. All else has memory: no store to it raises SIGBUS.
#[test]
fn writer_entries_take_memory_when_they_are_claimed() {
    let taken = |writers| {
        let iface = open(&Source::empty().with("UCX_POSIX_MAX_WRITERS", writers));
        let mem = iface.segment().own_mem().unwrap().clone();
        let stat = rustix::fs::fstat(&*mem).unwrap();
        (mem.len(), stat.st_blocks as usize * 512)
    };
    let ((short, least), (long, most)) = (taken("512"), taken("65536"));
    assert_eq!(short, least);
    assert!(
        long > short + (3 << 20) && most < least + (64 << 10),
        "{long} bytes take {most}, {short} {least}"
    );
}

/// The 601st peer connects, and the reader delivers its messages.
#[test]
fn an_interface_takes_as_many_peers_as_connect() {
    let reader = open(&Source::empty());
    let me = 7;
    (0..600).for_each(|_| _ = reader.segment().claim_writer(me, |_| true).unwrap());
    let writer = open(&Source::empty());
    let ep = writer.connect(&reader.device_addr(), &reader.iface_addr()).unwrap();
    assert_eq!(ep.ensure_connected(), Ok(()));
    assert_eq!(reader.segment().writers().count(), 601);
    assert_eq!((ep.am_short(1, 0, &[]), reader.progress(9)), (Ok(Sent::Done), 1));
}

#[test]
fn corrupt_fifo_words_are_survived() {
    use std::sync::atomic::Ordering::Relaxed;
    let (corrupt, _) = pair();
    let seg = corrupt.segment();
    for (head, tail) in [(u64::MAX, u64::MAX), (u64::MAX, u64::MAX - 5), (5, u64::MAX), (1 << 63, 0)] {
        for slot in [u32::MAX, 1 << 18] {
            let writer = open(&Source::empty());
            seg.state().store(0, Relaxed);
            let ep = writer.connect(&corrupt.device_addr(), &corrupt.iface_addr()).unwrap();
            assert_eq!(ep.ensure_connected(), Ok(()));
            for n in 0..200 {
                // A writer that finds it corrupt closes it.
                seg.state().store(0, Relaxed);
                seg.head().store(head, Relaxed);
                seg.tail().store(tail, Relaxed);
                (0..256).for_each(|entry| seg.slot_entry(entry).store(slot, Relaxed));
                let _ = ep.am_short(1, n, &[]);
                let _ = ep.am_packet(4000, |room| room.len());
                ep.link().unwrap().has_room(&ep);
            }
        }
    }
}

#[test]
fn live_ticket_holder_is_waited_for() {
    let (iface, ep) = pair();
    let got = collect(&iface, 1);
    ep.link().unwrap().abandon(&ep);
    let other = open(&Source::empty());
    let other_ep = other.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
    assert_eq!(other_ep.ensure_connected(), Ok(()));
    assert_eq!(other_ep.am_short(1, 0, &[]), Ok(Sent::Done));
    for _ in 0..10_000 {
        assert_eq!(iface.progress(1), 0);
    }
    assert_eq!(iface.arm(Events::RECV), Ok(false), "a claimed ticket is no reason to sleep");
    assert_eq!(iface.rx_stats().abandoned, 0);
    // Its process dies: a process with another key is not there.
    let entry = iface.segment().writers().find(|entry| entry.holder(0).is_some()).unwrap();
    entry.owner.store(77, std::sync::atomic::Ordering::Relaxed);
    while iface.progress(1) == 0 {}
    assert_eq!((got.borrow().len(), iface.rx_stats().abandoned), (1, 1));
}

#[test]
fn quiet_interface_still_does_housekeeping() {
    let (iface, ep) = pair();
    let got = collect(&iface, 5);
    assert!(iface.is_idle());
    assert_eq!(ep.am_short(5, 1, &[]), Ok(Sent::Done));
    assert!(!iface.is_idle());
    assert_eq!((iface.progress(9), got.borrow().len()), (1, 1));
    let polls = (0..5000).take_while(|_| iface.is_idle()).count();
    assert!((0..1024).contains(&polls), "{polls}");
    assert_eq!(iface.progress(9), 0);
    // The longer it was quiet, the more polls it takes.
    while !iface.is_idle() {
        assert_eq!(iface.progress(9), 0);
    }
}

#[test]
fn nested_polls_deliver_nothing() {
    let (iface, ep) = pair();
    let got = collect(&iface, 5);
    for n in 0..3u64 {
        assert_eq!(ep.am_short(5, n, &[]), Ok(Sent::Done));
    }
    let nested = |_: &[u8], _: crate::api::SrcAddr| {
        for _ in 0..3 {
            assert_eq!((iface.progress(9), got.borrow().len()), (0, 0));
            assert_ne!(
                iface.poll_one(|_: &[u8], _: crate::api::SrcAddr| true),
                PollOne::Received { more: true }
            );
        }
        true
    };
    while iface.polls_until_check() < 100 {
        assert_eq!(iface.poll_one(|_: &[u8], _: crate::api::SrcAddr| false), PollOne::NeedsPoll);
        assert_eq!(iface.progress(0), 0);
    }
    assert_eq!(iface.poll_one(nested), PollOne::Received { more: true });
    assert_eq!((iface.progress(9), got.borrow().len()), (2, 2));
}

#[test]
fn a_nested_poll_does_not_step_over_housekeeping() {
    let (iface, ep) = pair();
    let never = |_: &[u8], _: crate::api::SrcAddr| -> bool { panic!("housekeeping is due") };
    // Also for two nested polls, of which the first does the housekeeping.
    for nested in [1, 2] {
        while iface.polls_until_check() != 2 {
            assert_eq!(iface.progress(0), 0);
        }
        assert_eq!(ep.am_short(5, 1, &[]), Ok(Sent::Done));
        let nest = |_: &[u8], _: crate::api::SrcAddr| {
            (0..nested).for_each(|_| assert_eq!(iface.progress(9), 0));
            true
        };
        assert_eq!(iface.poll_one(nest), PollOne::Received { more: false });
        if nested == 1 {
            assert_eq!(iface.polls_until_check(), 1);
            assert_eq!(iface.poll_one(never), PollOne::NeedsPoll);
        }
        assert_eq!(iface.progress(9), 0);
        assert!((1..1 << 20).contains(&iface.polls_until_check()));
    }
}

#[test]
fn poll_one_takes_or_leaves_one_message() {
    let (iface, ep) = pair();
    let got = collect(&iface, 5);
    let never = |_: &[u8], _: crate::api::SrcAddr| -> bool { panic!("there is nothing to take") };
    // Just after a housekeeping, once the interval is learned.
    while iface.polls_until_check() != 1024 {
        assert_eq!(iface.progress(0), 0);
    }
    assert_eq!(iface.poll_one(never), PollOne::Empty);
    for n in 0..3u64 {
        assert_eq!(ep.am_short(5, n, &[]), Ok(Sent::Done));
    }
    let seen = RefCell::new(Vec::new());
    let poll_one = |wanted: bool| {
        iface.poll_one(|packet: &[u8], _| {
            seen.borrow_mut().push(packet.to_vec());
            wanted
        })
    };
    assert_eq!(poll_one(true), PollOne::Received { more: true });
    assert_eq!(poll_one(false), PollOne::NeedsPoll);
    assert_eq!((iface.progress(1), got.borrow().len()), (1, 1), "a poll gets what was left");
    assert_eq!(poll_one(true), PollOne::Received { more: false });
    assert_eq!(iface.poll_one(never), PollOne::Empty);
    let packet = |n: u64| [&[5][..], &n.to_le_bytes()].concat();
    assert_eq!(*seen.borrow(), [packet(0), packet(1), packet(2)]);
    assert_eq!(*got.borrow(), [1u64.to_le_bytes()]);
    let long = |n: u8| {
        let pack = |room: &mut [u8]| {
            room[..500].fill(n);
            500
        };
        assert_eq!(ep.am_bcopy(5, pack), Ok(500));
    };
    for n in 0..200 {
        long(n);
        long(n + 1);
        let is = |n: u8| {
            move |p: &[u8], _: crate::api::SrcAddr| p.len() == 501 && p[1..].iter().all(|at| *at == n)
        };
        assert_eq!(iface.poll_one(is(n)), PollOne::Received { more: true }, "{n}");
        assert_eq!(iface.poll_one(|_: &[u8], _| false), PollOne::NeedsPoll);
        match n % 2 {
            0 => assert_eq!(iface.progress(9), 1),
            _ => assert_eq!(iface.poll_one(is(n + 1)), PollOne::Received { more: false }),
        }
    }
    assert_eq!(got.borrow().len(), 1 + 100);
    // More messages than cells: they are released as by a poll.
    for n in 0..1000u64 {
        assert_eq!(ep.am_short(5, n, &[]), Ok(Sent::Done), "{n}");
        while iface.poll_one(|p: &[u8], _| p == packet(n)) != (PollOne::Received { more: false }) {
            assert_eq!(iface.progress(0), 0, "now and then it does housekeeping instead");
        }
    }
    let polls = (0..5000).take_while(|_| iface.poll_one(never) == PollOne::Empty).count();
    assert!((0..1024).contains(&polls), "{polls}");
}

#[test]
fn backlogged_reader_receives_in_order() {
    let (iface, ep) = pair();
    let got = collect(&iface, 5);
    let mut sent = 0u64;
    for max in (1..=9).cycle().take(200) {
        while ep.am_short(5, sent, &[]).is_ok() {
            sent += 1;
        }
        assert_eq!(iface.progress(max), max);
    }
    while iface.progress(64) > 0 {}
    let want: Vec<_> = (0..sent).map(|n| n.to_le_bytes().to_vec()).collect();
    assert_eq!(*got.borrow(), want);
}

/// One writer stops within its wake-up, another one is so late that the reader has armed again.
#[test]
fn writers_that_stop_within_a_wakeup_take_it_from_nobody() {
    use super::fifo::{self, ARMED};
    let (iface, ep) = pair();
    let (state, is_readable) = (iface.segment().state(), || {
        ucs::sys::fd::wait_readable(&[iface.event_fd().unwrap()], Some(Duration::ZERO)).unwrap()
    });
    let armed = || {
        assert_eq!(iface.arm(Events::RECV), Ok(true));
        fifo::flags(state)
    };
    let seen = armed();
    fifo::wake(state, seen, || {
        assert_eq!(fifo::flags(state), seen, "the signal comes first");
        false
    });
    assert_eq!(fifo::flags(state), seen);
    let again = armed();
    fifo::wake(state, seen, || true);
    assert!(again != seen && fifo::flags(state) == again, "armed since");
    assert!(!is_readable());
    assert_eq!(ep.am_bcopy(5, |slot| fill(slot, 5, 16)), Ok(16));
    assert!(fifo::flags(state) & ARMED == 0 && is_readable());
    assert_eq!(iface.progress(2), 1);
}
