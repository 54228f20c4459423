//! Tests of what only `self` promises; the rest is in the conformance suite.

#![allow(unsafe_code)]

use super::{Config, Ep, Iface};
use crate::api::{
    AllocReq, Am, Comp, ConnectError, Ep as _, EpTag, Error, Iface as _, Md as _, Memory as _, PendingQueued,
    PollOne, Refused, Sent, Sink, SrcAddr,
};
use std::cell::RefCell;
use std::rc::Rc;

fn pair(source: ucs::config::Source) -> (Iface, Ep) {
    let iface = Iface::open(&<Config as ucs::config::Table>::load(&source).unwrap()).unwrap();
    let ep = iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
    (iface, ep)
}

#[test]
fn nothing_is_delivered_inside_the_send() {
    let (iface, ep) = pair(Default::default());
    let got = Rc::new(RefCell::new(Vec::new()));
    let sink = got.clone();
    iface.set_am_handler(3, Some(Box::new(move |am| sink.borrow_mut().push(am.packet().to_vec()))));
    assert!(iface.is_idle());
    assert_eq!(ep.am_short(3, 0x0807060504030201, &[9]), Ok(Sent::Done));
    assert!(got.borrow().is_empty() && !iface.is_idle());
    assert_eq!(iface.progress(8), 1);
    assert_eq!(*got.borrow(), [[3, 1, 2, 3, 4, 5, 6, 7, 8, 9]]);
}

fn all_forms(ep: &Ep) -> [Vec<u8>; 5] {
    assert_eq!(ep.am_short(3, 0x0807060504030201, &[]), Ok(Sent::Done));
    assert_eq!(ep.am_short(3, 1, b"payload"), Ok(Sent::Done));
    assert_eq!(ep.am_short_iov(3, &[b"a", b"bc"]), Ok(Sent::Done));
    assert_eq!(ep.am_bcopy(3, |slot| (slot[..2].copy_from_slice(b"de"), 2).1), Ok(2));
    // SAFETY: no blocks.
    assert_eq!(unsafe { ep.am_zcopy(3, b"head", &[], Comp::None) }, Ok(Sent::Done));
    let payload = [b"\x03\x01\0\0\0\0\0\0\0".as_slice(), b"payload"].concat();
    [vec![3, 1, 2, 3, 4, 5, 6, 7, 8], payload, b"\x03abc".into(), b"\x03de".into(), b"\x03head".into()]
}

#[test]
fn messages_are_delivered_within_the_send_on_request() {
    let (iface, ep) = pair(Default::default());
    assert!(iface.deliver_within_send(true));
    let kept = Rc::new(RefCell::new(Vec::new()));
    let keeps = kept.clone();
    iface.set_am_handler(3, Some(Box::new(move |am| keeps.borrow_mut().push(am.keep()))));
    let sent = all_forms(&ep);
    assert!(iface.is_idle() && iface.progress(9) == 0);
    assert!(kept.borrow().iter().map(|kept| kept.packet()).eq(&sent));
    // Kept messages stay, whatever is sent after.
    all_forms(&ep);
    assert!(kept.borrow().iter().map(|kept| kept.packet()).eq(sent.iter().chain(&sent)));
    assert!(!iface.deliver_within_send(false));
    kept.borrow_mut().clear();
    all_forms(&ep);
    assert!(kept.borrow().is_empty() && iface.progress(9) == 5);
}

#[test]
fn what_a_handler_sends_waits_for_a_poll_in_order() {
    let (iface, ep) = pair(Default::default());
    iface.deliver_within_send(true);
    let (ep, got) = (Rc::new(ep), Rc::new(RefCell::new(Vec::new())));
    let (e, g, i) = (ep.clone(), got.clone(), iface.clone());
    let handler = move |am: Am<'_>| {
        let n = am.data()[0];
        g.borrow_mut().push(n);
        assert_eq!(i.progress(9), 0);
        if n < 10 {
            assert_eq!(e.am_short_iov(1, &[&[n + 10]]), Ok(Sent::Done));
            assert_eq!(e.am_short(1, u64::from(n) + 20, &[]), Ok(Sent::Done));
        }
        assert_eq!(g.borrow().last(), Some(&n));
    };
    iface.set_am_handler(1, Some(Box::new(handler)));
    assert_eq!(ep.am_short(1, 1, &[]), Ok(Sent::Done));
    assert_eq!(*got.borrow(), [1]);
    assert_eq!(ep.am_short(1, 30, &[]), Ok(Sent::Done));
    assert_eq!(*got.borrow(), [1], "it is behind what the handler sent");
    assert_eq!(iface.progress(2), 2);
    assert_eq!(ep.am_short_iov(1, &[&[31]]), Ok(Sent::Done));
    assert_eq!(iface.progress(9), 2);
    assert_eq!(ep.am_short(1, 32, &[]), Ok(Sent::Done));
    assert_eq!(*got.borrow(), [1, 11, 21, 30, 31, 32]);
    iface.set_am_handler(1, None);
    assert_eq!((ep.am_short(1, 33, &[]), iface.dropped()), (Ok(Sent::Done), 1));
}

#[test]
fn delivery_within_a_send_survives_panics_and_closing() {
    let (iface, ep) = pair(ucs::config::Source::empty().with("UCX_SELF_FIFO_SIZE", "1"));
    iface.deliver_within_send(true);
    let count = Rc::new(RefCell::new(0));
    let c = count.clone();
    iface.set_am_handler(1, Some(Box::new(move |_| *c.borrow_mut() += 1)));
    iface.set_am_handler(2, Some(Box::new(|_| panic!("no"))));
    for _ in 0..9 {
        for payload in [&b""[..], b"x"] {
            let send = std::panic::AssertUnwindSafe(|| ep.am_short(2, 0, payload));
            assert!(std::panic::catch_unwind(send).is_err());
        }
        let pack = |slot: &mut [u8]| {
            assert_eq!(ep.am_short(1, 0, &[]), Err(Refused::NoResource), "that one has its place first");
            slot[0] = 0;
            1
        };
        assert_eq!(ep.am_bcopy(1, pack), Ok(1));
    }
    assert_eq!(*count.borrow(), 9);
    let iface = RefCell::new(Some(iface));
    let other = Iface::open(&Config::default()).unwrap();
    let there = iface.borrow().as_ref().map(|i| i.iface_addr()).unwrap();
    let from_other = other.connect(&[], &there).unwrap();
    drop(ep);
    let closes = |_: &mut [u8]| (iface.take(), 1).1;
    assert_eq!(from_other.am_bcopy(1, closes), Err(Error::PeerDead.into()));
    assert_eq!(from_other.am_short(1, 0, &[]), Err(Error::PeerDead.into()));
    assert_eq!(*count.borrow(), 9);
}

#[test]
fn a_handler_may_send_and_the_queue_is_bounded() {
    let (iface, ep) = pair(ucs::config::Source::empty().with("UCX_SELF_FIFO_SIZE", "2"));
    let ep = Rc::new(ep);
    let answers = Rc::new(RefCell::new(0));
    let (e, a) = (ep.clone(), answers.clone());
    iface.set_am_handler(
        1,
        Some(Box::new(move |_| {
            *a.borrow_mut() += 1;
            assert_eq!(e.am_short_iov(2, &[]), Ok(Sent::Done));
        })),
    );
    assert_eq!(ep.am_short_iov(1, &[]), Ok(Sent::Done));
    assert_eq!(ep.am_short_iov(1, &[]), Ok(Sent::Done));
    assert_eq!(ep.am_short_iov(1, &[]), Err(Refused::NoResource));
    assert_eq!(iface.progress(2), 2);
    assert_eq!((*answers.borrow(), iface.dropped()), (2, 0));
    assert_eq!(iface.progress(9), 2);
    assert_eq!(iface.dropped(), 2);
    iface.set_am_handler(1, None);
}

#[test]
fn keys_die_with_their_registration() {
    let (iface, ep) = pair(Default::default());
    let mem = iface.md().alloc(&AllocReq::new(64, "test")).unwrap();
    let packed = iface.md().pack_rkey(&mem).unwrap();
    let rkey = iface.md().unpack_rkey(&packed).unwrap();
    let at = mem.addr().addr() as u64;
    assert_eq!(ep.put_short(&[1; 8], at, &rkey), Ok(Sent::Done));
    drop(mem);
    assert_eq!(ep.put_short(&[1; 8], at, &rkey), Err(Refused::Failed(Error::RemoteAccess)));
    assert_eq!(iface.md().unpack_rkey(&packed).unwrap_err(), Error::RemoteAccess);
}

#[test]
fn mr_keys_die_with_their_registration() {
    let (iface, ep) = pair(Default::default());
    let other = pair(Default::default()).0;
    let mem = iface.md().alloc(&AllocReq::new(64, "test")).unwrap();
    let (word, at) = (iface.md().mr_key(&mem).unwrap(), mem.addr().addr() as u64);
    assert_eq!(iface.md().mr_key(&mem), Ok(word), "it has one");
    let rkey = other.md().rkey_from_mr_key(word, at, 64).unwrap();
    assert_eq!(ep.put_short(&[1; 8], at + 56, &rkey), Ok(Sent::Done));
    assert_eq!(ep.put_short(&[1; 8], at + 57, &rkey), Err(Refused::Failed(Error::RemoteAccess)));
    drop(mem);
    let next = iface.md().alloc(&AllocReq::new(64, "test")).unwrap();
    assert_ne!(iface.md().mr_key(&next), Ok(word), "no number comes twice");
    assert_eq!(ep.put_short(&[1; 8], at, &rkey), Err(Refused::Failed(Error::RemoteAccess)));
    assert_eq!(iface.md().rkey_from_mr_key(word, at, 64).unwrap_err(), Error::RemoteAccess);
}

#[test]
fn memory_is_of_the_process() {
    let (iface, ep) = pair(Default::default());
    let md = iface.md().clone();
    let made = std::thread::spawn(move || {
        let mem = md.alloc(&AllocReq::new(64, "test")).unwrap();
        (md.pack_rkey(&mem).unwrap(), md.mr_key(&mem).unwrap(), mem)
    });
    let (packed, word, mem) = made.join().unwrap();
    let at = mem.addr().addr() as u64;
    let [by_pack, by_word] = [iface.md().unpack_rkey(&packed), iface.md().rkey_from_mr_key(word, at, 64)];
    let (by_pack, by_word) = (by_pack.unwrap(), by_word.unwrap());
    assert_eq!(ep.put_short(&[7; 8], at, &by_pack), Ok(Sent::Done));
    let mut got = [0; 8];
    assert_eq!((ep.get_short(&mut got, at, &by_word), got), (Ok(Sent::Done), [7; 8]));
    let drops = std::thread::spawn(move || drop(mem));
    drops.join().unwrap();
    assert_eq!(ep.put_short(&[7; 8], at, &by_pack), Err(Refused::Failed(Error::RemoteAccess)));
    assert!(iface.md().unpack_rkey(&packed).is_err());
}

#[test]
fn a_put_goes_on_while_another_thread_ends_the_registration() {
    let (iface, ep) = pair(Default::default());
    for _ in 0..200 {
        let mem = iface.md().alloc(&AllocReq::new(1 << 16, "test")).unwrap();
        let rkey = iface.md().unpack_rkey(&iface.md().pack_rkey(&mem).unwrap()).unwrap();
        let at = mem.addr().addr() as u64;
        let drops = std::thread::spawn(move || drop(mem));
        let refused = Err(Refused::Failed(Error::RemoteAccess));
        while ep.put_short(&[1; 1 << 16], at, &rkey) != refused {}
        drops.join().unwrap();
    }
}

#[test]
fn messages_do_not_reach_another_thread() {
    let (iface, _ep) = pair(Default::default());
    let addr = iface.iface_addr();
    let there = std::thread::spawn(move || {
        let (there, _) = pair(Default::default());
        (there.reachable(&[], &addr), there.connect(&[], &addr).err())
    });
    let refused = ConnectError::OtherThread;
    assert_eq!(there.join().unwrap(), (Err(refused), Some(refused)));
}

#[test]
fn a_private_interface_reaches_itself_only() {
    let (other, _ep) = pair(Default::default());
    let private = Iface::open_private_on(other.md(), &Config::default()).unwrap();
    assert_eq!(private.reachable(&[], &private.iface_addr()), Ok(()));
    assert_eq!(private.reachable(&[], &other.iface_addr()), Err(ConnectError::OtherThread));
    assert_eq!(other.reachable(&[], &private.iface_addr()), Err(ConnectError::OtherThread));
    let addr = private.iface_addr();
    drop(private);
    assert_eq!(other.reachable(&[], &addr), Err(ConnectError::Gone));
}

#[test]
fn poll_one_takes_one_message_or_leaves_it() {
    let (iface, ep) = pair(ucs::config::Source::empty().with("UCX_SELF_FIFO_SIZE", "2"));
    let quiet = |iface: &Iface| {
        iface.poll_one(|_: &[u8], _: SrcAddr| unreachable!("there is none")) == PollOne::Empty
    };
    assert!(quiet(&iface));
    assert_eq!((ep.am_short(1, 0, b"a"), ep.am_short(1, 0, b"b")), (Ok(Sent::Done), Ok(Sent::Done)));
    let seen = RefCell::new(Vec::new());
    let look = |wanted: bool, full: bool| {
        iface.poll_one(|packet: &[u8], from: SrcAddr| {
            assert_eq!(
                from,
                SrcAddr { node: u64::from_le_bytes(iface.iface_addr()[..].try_into().unwrap()), port: 0 }
            );
            // No other consumer gets it, or its slot.
            assert!(iface.progress(9) == 0 && quiet(&iface));
            assert!(!full || ep.am_short(1, 0, b"c") == Err(Refused::NoResource));
            seen.borrow_mut().push(packet[9]);
            wanted
        })
    };
    assert_eq!(look(false, true), PollOne::NeedsPoll);
    assert_eq!(look(true, true), PollOne::Received { more: true });
    assert_eq!(ep.am_short(1, 0, b"d"), Ok(Sent::Done));
    // What panics over a message is not given it again.
    let panics = std::panic::AssertUnwindSafe(|| iface.poll_one(|_: &[u8], _: SrcAddr| panic!("no")));
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!(ep.am_short(1, 0, b"e"), Ok(Sent::Done));
    assert_eq!(
        (look(true, true), look(true, false)),
        (PollOne::Received { more: true }, PollOne::Received { more: false })
    );
    assert!(quiet(&iface));
    assert_eq!(*seen.borrow(), b"aade");
}

#[test]
fn a_payload_begins_with_a_cache_line() {
    let (iface, ep) = pair(Default::default());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let sink = seen.clone();
    iface.set_am_handler(1, Some(Box::new(move |am| sink.borrow_mut().push(am.data().as_ptr().addr() % 64))));
    for len in [1, 200, ep.max_bcopy()] {
        assert_eq!(ep.am_bcopy(1, |_| len), Ok(len));
    }
    assert_eq!(iface.progress(9), 3);
    assert_eq!(*seen.borrow(), [0; 3]);
}

#[test]
fn panicking_closure_leaks_nothing() {
    let (iface, ep) = pair(ucs::config::Source::empty().with("UCX_SELF_FIFO_SIZE", "1"));
    for _ in 0..10 {
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ep.am_packet(8, |_| panic!("no"))));
        assert!(caught.is_err());
    }
    assert_eq!(
        ep.am_packet(1, |slot| {
            slot[0] = 1;
            1
        }),
        Ok(1)
    );
    assert_eq!(iface.progress(9), 1);
}

#[test]
fn a_closed_interface_fails_its_senders() {
    let dead = || Err(Refused::Failed(Error::PeerDead));
    let (one, _) = pair(Default::default());
    let (other, other_ep) = pair(Default::default());
    let ep = one.connect(&[], &other.iface_addr()).unwrap();
    let addr = other.iface_addr();
    drop(other.clone());
    drop(other);
    assert_eq!((ep.am_short(1, 0, &[]), ep.check(Comp::None)), (Ok(Sent::Done), Ok(Sent::Done)));
    assert_eq!(one.reachable(&[], &addr), Ok(()), "its endpoint keeps it open");
    drop(other_ep);
    assert_eq!(one.reachable(&[], &addr), Err(ConnectError::Gone));
    assert_eq!((ep.am_short(1, 0, &[]), ep.am_short_iov(1, &[])), (dead(), dead()));
    assert_eq!(ep.am_bcopy(1, |_| unreachable!("nobody reads it")).map(drop), dead().map(drop));
    // SAFETY: neither has memory.
    assert_eq!(unsafe { ep.am_zcopy(1, &[], &[], Comp::None) }, dead());
    assert_eq!((ep.check(Comp::None), ep.flush(Comp::None)), (dead(), dead()));
    let wait = ep.pending_add(Box::new(|| unreachable!("there is room for the call that says so")));
    assert_eq!(wait, Ok(PendingQueued::Busy));
    assert_eq!(one.flush(Comp::None), Ok(Sent::Done));
}

#[test]
fn an_interface_may_close_while_a_message_to_it_is_packed() {
    let (one, _) = pair(Default::default());
    let (other, other_ep) = pair(Default::default());
    let ep = one.connect(&[], &other.iface_addr()).unwrap();
    let packed = ep.am_packet(8, |_| {
        drop((other, other_ep));
        8
    });
    assert_eq!(packed, Err(Refused::Failed(Error::PeerDead)));
    assert_eq!(ep.am_short(1, 0, &[]), Err(Refused::Failed(Error::PeerDead)));
}

struct Poller(Iface, Vec<u8>);

impl Sink for Poller {
    fn on_am(&mut self, am: Am<'_>) {
        let mut within = Poller(self.0.clone(), Vec::new());
        assert_eq!((self.0.poll(9, &mut within), self.0.progress(9)), (0, 0));
        assert!(within.1.is_empty());
        self.1.push(am.data()[0]);
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, _ep: EpTag, _error: Error) {}
}

#[test]
fn nested_poll_delivers_nothing() {
    let (iface, ep) = pair(Default::default());
    for n in 0..3 {
        assert_eq!(ep.am_short_iov(1, &[&[n]]), Ok(Sent::Done));
    }
    let mut sink = Poller(iface.clone(), Vec::new());
    assert_eq!((iface.poll(2, &mut sink), iface.poll(9, &mut sink)), (2, 1));
    assert_eq!(sink.1, [0, 1, 2]);
}

#[test]
fn a_closed_interface_is_unreachable() {
    let (one, _) = pair(Default::default());
    let (other, other_ep) = pair(Default::default());
    let addr = other.iface_addr();
    assert_eq!(one.reachable(&[], &addr), Ok(()));
    drop((other, other_ep));
    assert_eq!(one.reachable(&[], &addr), Err(ConnectError::Gone));
    assert_eq!(one.reachable(&[], &addr[1..]), Err(ConnectError::Malformed));
}

const PEER_ARGS: &str = "UCT_TEST_SELF_PEER";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The other process of the next test, with more interfaces and keys than that one can have numbered.
#[test]
#[ignore = "started by keys_of_another_process_are_rejected"]
fn another_process() {
    let args = std::env::var(PEER_ARGS).unwrap();
    let mut args = args.split(' ').map(|text| -> Vec<u8> {
        (0..text.len() / 2).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap()).collect()
    });
    let (addr, key) = (args.next().unwrap(), args.next().unwrap());
    let ours: Vec<_> =
        (0..1000).map(|_| pair(ucs::config::Source::empty().with("UCX_SELF_FIFO_SIZE", "1"))).collect();
    let (iface, _) = &ours[0];
    let _mems: Vec<_> = (0..1000).map(|_| iface.md().alloc(&AllocReq::new(64, "test")).unwrap()).collect();
    assert_eq!(iface.reachable(&[], &addr), Err(ConnectError::Gone));
    assert_eq!(iface.md().unpack_rkey(&key).unwrap_err(), Error::RemoteAccess);
}

#[test]
fn keys_of_another_process_are_rejected() {
    let (iface, _ep) = pair(Default::default());
    let mem = iface.md().alloc(&AllocReq::new(64, "test")).unwrap();
    let args = format!("{} {}", hex(&iface.iface_addr()), hex(&iface.md().pack_rkey(&mem).unwrap()));
    let ran = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "loopback::tests::another_process"])
        .env(PEER_ARGS, args)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && out.contains("1 passed"), "{out}");
}
