//! Polls for one message: it is taken or left, and all else waits for a poll.

#![allow(unsafe_code)]

use super::*;
use crate::api::PollOne;

on_every_network!(
    poll_one_takes_or_leaves_one_message poll_one_leaves_reports_to_a_poll
    a_message_left_by_poll_one_wakes_a_sleeper
);

fn never(packet: &[u8], _: From) -> bool {
    panic!("{packet:?}")
}

/// Polls for one message until something comes.
fn poll_one<N: Network>(net: &N, side: &Side<N::A>, mut take: impl FnMut(u8) -> bool) -> PollOne {
    for _ in 0..10_000 {
        match side.iface.poll_one(|packet: &[u8], _: From| take(packet[1])) {
            PollOne::Empty => net.advance_time(),
            polled => return polled,
        }
    }
    panic!("nothing came")
}

fn poll_one_takes_or_leaves_one_message<N: Network>() {
    let (net, mut a, b) = faultless_pair::<N>();
    assert_eq!(a.iface.poll_one(never), PollOne::Empty);
    let ep = b.ep_to(&a);
    let back = a.ep_to(&b);
    let send = |n: u8| assert_eq!(ep.am_short_iov(1, &[&[n]]), Ok(Sent::Done));
    send(0);
    // The completion of a send that nobody waits for is no event.
    assert_eq!(back.am_short_iov(1, &[&[9]]), Ok(Sent::Done));
    assert_eq!(poll_one(&net, &a, |n| n != 0), PollOne::NeedsPoll, "it is not wanted");
    assert!(!a.iface.is_idle(), "it is still there");
    assert_eq!(poll_one(&net, &a, |n| n == 0), PollOne::Received { more: false });
    send(1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        poll_one(&net, &a, |n| panic!("{n}"));
    }));
    assert!(caught.is_err());
    // What panics over a message is not given it again, and no buffer is lost.
    for n in 2..u8::MAX {
        send(n);
        assert_eq!(poll_one(&net, &a, |_| false), PollOne::NeedsPoll);
        match n % 2 {
            0 => assert!(matches!(poll_one(&net, &a, |got| got == n), PollOne::Received { .. })),
            _ => assert_eq!(a.poll(), 1),
        }
    }
    let left = (3..u8::MAX).step_by(2).map(|n| vec![1, n]);
    assert_eq!(a.log.ams.drain(..).map(|(_, packet)| packet).collect::<Vec<_>>(), left.collect::<Vec<_>>());
    let nested = |_: &[u8], _: From| a.iface.poll_one(never) == PollOne::Empty && a.iface.progress(9) == 0;
    send(0);
    while a.iface.poll_one(nested) == PollOne::Empty {
        net.advance_time();
    }
    assert_eq!((a.log.ams.len(), a.log.comps.len()), (0, 0));
}

/// A completion that has an owner, an arrival that is no message, and what waits for room.
fn poll_one_leaves_reports_to_a_poll<N: Network>() {
    let (net, mut a, b) = faultless_pair::<N>();
    let (ep, back) = (a.ep_to(&b), b.ep_to(&a));
    let mem = alloc(&a, 100, 1);
    let iov = [Iov::new(mem.addr(), 100, Some(&mem))];
    // SAFETY: `mem` lives to the end of the test and is not written.
    assert_eq!(unsafe { ep.am_zcopy(1, &[], &iov, Comp::Token(7)) }, Ok(Sent::InProgress));
    assert_eq!(poll_one(&net, &a, |n| panic!("{n}")), PollOne::NeedsPoll);
    assert_eq!(poll_one(&net, &a, |n| panic!("{n}")), PollOne::NeedsPoll, "it stays");
    assert_eq!((a.poll(), a.log.comps.drain(..).collect::<Vec<_>>()), (1, vec![(7, Ok(()))]));
    for n in 0..40 {
        assert_eq!(back.am_short_iov(1, &[&[n]]), Ok(Sent::Done));
    }
    // SAFETY: as above.
    assert_eq!(unsafe { ep.am_zcopy(1, &[], &iov, Comp::Token(8)) }, Ok(Sent::InProgress));
    let mut taken = 0;
    while taken < 40 || a.log.comps.is_empty() {
        match poll_one(&net, &a, |_| true) {
            PollOne::Received { .. } => taken += 1,
            // One event: the poll goes on where this one stopped.
            _ => assert_eq!(a.iface.poll(1, &mut a.log), 1),
        }
    }
    assert_eq!((taken + a.log.ams.len(), a.log.comps), (40, vec![(8, Ok(()))]));
}

fn a_message_left_by_poll_one_wakes_a_sleeper<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    assert_eq!(b.ep_to(&a).am_short_iov(1, &[&[5]]), Ok(Sent::Done));
    assert_eq!(poll_one(&net, &a, |_| false), PollOne::NeedsPoll);
    assert_eq!(a.iface.arm(Events::RECV), Ok(false), "the message is there already");
    assert_eq!((a.poll(), a.log.ams.len()), (1, 1));
    settle(&net, &mut a, &mut b);
    assert_eq!(a.iface.arm(Events::RECV), Ok(true));
}
