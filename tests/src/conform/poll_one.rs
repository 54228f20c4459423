//! `poll_one`: each message is received once, whether its callback takes or leaves it.

use super::{Log, Pair, ordered};
use std::cell::RefCell;
use uct::api::{Caps, Ep, Iface, PollOne, Refused, SrcAddr};

/// Messages are taken by `poll_one`, left by it, or delivered by polls, in any order.
pub fn poll_one_and_poll_share_messages<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    const COUNT: u32 = 500;
    let number = |packet: &[u8]| {
        assert_eq!((packet.len(), packet[0]), (5, 9));
        u32::from_le_bytes(packet[1..].try_into().unwrap())
    };
    let (mut a, mut b, got) = (Log::default(), Log::default(), RefCell::new(Vec::new()));
    let (mut sent, mut left) = (0, None);
    for look in 0..2_000_000u32 {
        if got.borrow().len() == COUNT as usize {
            break;
        }
        // Up to four at a time, so that the queue is empty now and then.
        while sent < COUNT && sent - (got.borrow().len() as u32) < look % 5 {
            let packed = p.ab.am_packet(5, |slot| {
                slot[0] = 9;
                slot[1..5].copy_from_slice(&sent.to_le_bytes());
                5
            });
            match packed {
                Ok(_) => sent += 1,
                Err(Refused::NoResource) => break,
                Err(why) => panic!("{why:?}"),
            }
        }
        (p.tick)();
        if !p.same {
            p.a.poll(8, &mut a);
        }
        let before = got.borrow().len();
        match look % 4 {
            0 => {
                let is_wanted = look % 8 == 0;
                let seen = RefCell::new(None);
                let polled = p.b.poll_one(|packet: &[u8], _: SrcAddr| {
                    *seen.borrow_mut() = Some(number(packet));
                    is_wanted
                });
                let seen = seen.take();
                assert!(
                    left.is_none() || seen.is_none() || left == seen,
                    "what was left is still the next one"
                );
                match polled {
                    PollOne::Received { .. } => {
                        assert!(is_wanted);
                        got.borrow_mut().push(seen.expect("it was shown"));
                        left = None;
                    }
                    PollOne::NeedsPoll => {
                        assert!(!is_wanted || seen.is_none());
                        left = seen.or(left);
                    }
                    PollOne::Empty => assert!(seen.is_none() && left.is_none(), "{left:?} is there"),
                }
            }
            _ => {
                p.b.poll(1 + look as usize % 2, &mut b);
                got.borrow_mut().extend(b.ams.drain(..).map(|(packet, _)| number(&packet)));
                if let (Some(left), Some(next)) = (left, got.borrow().get(before)) {
                    assert_eq!(left, *next, "a poll gets what was left");
                }
                if got.borrow().len() > before {
                    left = None;
                }
            }
        }
    }
    let mut got = got.into_inner();
    if !ordered(&p.a) {
        got.sort_unstable();
    }
    assert!(got.iter().copied().eq(0..COUNT), "{} of {COUNT}", got.len());
}
