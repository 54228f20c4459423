//! Pack callbacks of bcopy: what they may do, and wrong results.

use super::{Log, Pair, bytes, rma};
use std::cell::Cell;
use std::rc::Rc;
use uct::api::{Access, Caps, Comp, Ep, Error, Iface, Md, Outcome, Refused};

fn is_invalid(outcome: Outcome<usize>) -> bool {
    matches!(outcome, Err(Refused::Failed(Error::InvalidParam(_))))
}

/// A pack callback that answers more bytes than it was given, or no id, is an error; nothing is sent.
pub fn invalid_pack_length_is_rejected<I: Iface>(p: &Pair<I>) {
    let (attr, mut at_a, mut at_b) = (p.a.attr(), Log::default(), Log::default());
    // Missing resources are retried.
    let mut bad = |call: &dyn Fn() -> Outcome<usize>| {
        let refused = p.retry(&mut at_a, &mut at_b, || match call() {
            Err(Refused::NoResource) => Err(Refused::NoResource),
            other => Ok(other),
        });
        assert!(refused.is_ok_and(is_invalid), "{refused:?}");
    };
    if attr.has(Caps::AM_BCOPY) {
        let max = attr.am.max_bcopy + 1;
        for _ in 0..10 {
            bad(&|| p.ab.am_bcopy(1, |slot| slot.len() + 1));
            bad(&|| p.ab.am_bcopy(1, |_| usize::MAX));
            for hint in [6, max.min(200), max] {
                bad(&|| p.ab.am_packet(hint, |_| hint + 1));
                bad(&|| p.ab.am_short_packet(hint, |_: &mut [u8]| hint + 1));
                bad(&|| p.ab.am_packet(hint, |_| 0));
            }
            bad(&|| p.ab.am_packet(0, |_| 0));
            bad(&|| p.ab.am_packet(0, |_| 1));
        }
        let sent = p.retry(&mut at_a, &mut at_b, || p.ab.am_bcopy(2, |_| 7));
        assert_eq!(sent, Ok(7));
        at_b.ams.append(&mut at_a.ams);
        p.arrived(&mut at_b, 1);
        assert_eq!((at_b.ams[0].0[0], at_b.ams[0].0.len()), (2, 8));
    }
    if attr.has(Caps::PUT_BCOPY) {
        let t = rma::target(p, 64, Access::ALL);
        let mut bad = |len: usize| {
            let put =
                p.retry(&mut at_a, &mut at_b, || match p.ab.put_bcopy(16, |_| len, t.at + 8, &t.rkey) {
                    Err(Refused::NoResource) => Err(Refused::NoResource),
                    other => Ok(other),
                });
            assert!(put.is_ok_and(is_invalid), "{put:?}");
        };
        bad(17);
        bad(usize::MAX);
        assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
    }
}

/// A pack callback may send, also to the same peer; neither message harms the other.
pub fn pack_callback_may_send<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    let max = p.a.attr().am.max_bcopy;
    let (mut at_a, mut at_b) = (Log::default(), Log::default());
    let mut sent = Vec::new();
    for (n, len) in [5, 30, 60, 4000].into_iter().filter(|len| *len <= max).enumerate() {
        let (outer, inner) = (bytes(n as u64, len), bytes(100 + n as u64, 20));
        let send = |data: &[u8]| {
            p.ab.am_packet(1 + data.len(), |slot| {
                slot[0] = 2;
                slot[1..=data.len()].copy_from_slice(data);
                1 + data.len()
            })
        };
        let mut nested = Err(Refused::NoResource);
        let packed = p.retry(&mut at_a, &mut at_b, || {
            p.ab.am_packet(1 + len, |slot| {
                slot[0] = 1;
                nested = send(&inner);
                let mut seen = Log::default();
                for _ in 0..20_000 {
                    (p.tick)();
                    p.b.poll(16, &mut seen);
                }
                slot[1..=len].copy_from_slice(&outer);
                sent.extend(seen.ams);
                1 + len
            })
        });
        assert_eq!(packed, Ok(1 + len));
        let inner_went = match nested {
            Ok(packed) => {
                assert_eq!(packed, 21);
                1
            }
            Err(why) => {
                assert_eq!(why, Refused::NoResource);
                0
            }
        };
        at_b.ams.append(&mut sent);
        at_b.ams.append(&mut at_a.ams);
        p.arrived(&mut at_b, 1 + inner_went);
        let of = |id: u8| at_b.ams.iter().find(|(packet, _)| packet[0] == id).map(|(packet, _)| &packet[1..]);
        assert!(of(1) == Some(&outer[..]), "{len} bytes sent by who sends meanwhile");
        assert!(of(2) == (inner_went == 1).then_some(&inner[..]), "what was sent meanwhile");
        at_b.ams.clear();
        let after = p.retry(&mut at_a, &mut at_b, || send(&outer));
        assert_eq!(after, Ok(1 + len));
        at_b.ams.append(&mut at_a.ams);
        p.arrived(&mut at_b, 1);
        assert!(at_b.ams[0].0[1..] == outer);
        at_b.ams.clear();
    }
}

/// A pack callback may drop the memory that it was given a part of; the memory stays until it returns.
pub fn memory_outlives_pack_callback<I: Iface>(p: &Pair<I>)
where
    <I::Md as Md>::Mem: 'static,
{
    const LEN: usize = 8192;
    let caps = p.a.attr().caps;
    let (mut a, mut b) = (Log::default(), Log::default());
    if caps.contains(Caps::PUT_BCOPY) {
        let t = rma::target(p, LEN, Access::ALL);
        let (at, rkey, mut mem) = (t.at, t.rkey, Some(t.mem));
        let len = LEN.min(p.a.attr().put.max_bcopy);
        let put = p.retry(&mut a, &mut b, || {
            let mem = &mut mem;
            let packed = p.ab.put_bcopy(
                len,
                |slot| {
                    slot.fill(7);
                    *mem = None;
                    assert!(slot.iter().all(|byte| matches!(byte, 0 | 7)));
                    slot.fill(8);
                    assert!(slot.iter().all(|byte| *byte == 8));
                    slot.len()
                },
                at,
                &rkey,
            );
            match packed {
                Err(Refused::NoResource) => Err(Refused::NoResource),
                other => Ok(other),
            }
        });
        // The call may fail: the memory is gone.
        assert!(matches!(put, Ok(Ok(_) | Err(Refused::Failed(_)))), "{put:?}");
        assert!(mem.is_none());
    }
    if caps.contains(Caps::GET_BCOPY) {
        let t = rma::target(p, LEN, Access::ALL);
        let (at, rkey, mem) = (t.at, t.rkey, Rc::new(Cell::new(Some(t.mem))));
        let seen = Rc::new(Cell::new(false));
        let len = LEN.min(p.a.attr().get.max_bcopy);
        let got = p.retry(&mut a, &mut b, || {
            let (mem, seen) = (mem.clone(), seen.clone());
            let unpack = move |bytes: &[u8]| {
                drop(mem.take());
                seen.set(bytes.iter().all(|byte| *byte == 0));
            };
            p.ab.get_bcopy(len, unpack, at, &rkey, Comp::None)
        });
        assert!(got.is_ok(), "{got:?}");
        for _ in 0..100_000 {
            if seen.get() {
                break;
            }
            p.poll_both(&mut a, &mut b);
        }
        assert!(seen.get());
    }
}
