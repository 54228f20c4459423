//! What only `self` promises; the rest is in the conformance suite.

use super::{Config, Ep, Iface};
use crate::api::{AllocReq, ConnectError, Ep as _, Error, Iface as _, Md as _, Memory as _, Refused, Sent};
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
    assert!(iface.is_quiet());
    assert_eq!(ep.am_short(3, 0x0807060504030201, &[9]), Ok(Sent::Done));
    assert!(got.borrow().is_empty() && !iface.is_quiet());
    assert_eq!(iface.progress(8), 1);
    assert_eq!(*got.borrow(), [[3, 1, 2, 3, 4, 5, 6, 7, 8, 9]]);
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
fn a_panicking_closure_costs_nothing() {
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
fn nobody_is_at_the_address_of_a_closed_interface() {
    let (one, _) = pair(Default::default());
    let (other, other_ep) = pair(Default::default());
    let addr = other.iface_addr();
    assert_eq!(one.reachable(&[], &addr), Ok(()));
    drop((other, other_ep));
    assert_eq!(one.reachable(&[], &addr), Err(ConnectError::Gone));
    assert_eq!(one.reachable(&[], &addr[1..]), Err(ConnectError::Malformed));
}

const TOLD: &str = "UCT_TEST_SELF_TOLD";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Not a test: the other process of the next one. Has more interfaces and keys than that one can have numbered.
#[test]
#[ignore = "started by what_another_process_has_is_not_ours"]
fn another_process() {
    let told = std::env::var(TOLD).unwrap();
    let mut told = told.split(' ').map(|text| -> Vec<u8> {
        (0..text.len() / 2).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap()).collect()
    });
    let (addr, key) = (told.next().unwrap(), told.next().unwrap());
    let ours: Vec<_> =
        (0..1000).map(|_| pair(ucs::config::Source::empty().with("UCX_SELF_FIFO_SIZE", "1"))).collect();
    let (iface, _) = &ours[0];
    let _mems: Vec<_> = (0..1000).map(|_| iface.md().alloc(&AllocReq::new(64, "test")).unwrap()).collect();
    assert_eq!(iface.reachable(&[], &addr), Err(ConnectError::Gone));
    assert_eq!(iface.md().unpack_rkey(&key).unwrap_err(), Error::RemoteAccess);
}

#[test]
fn what_another_process_has_is_not_ours() {
    let (iface, _ep) = pair(Default::default());
    let mem = iface.md().alloc(&AllocReq::new(64, "test")).unwrap();
    let told = format!("{} {}", hex(&iface.iface_addr()), hex(&iface.md().pack_rkey(&mem).unwrap()));
    let ran = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "loopback::tests::another_process"])
        .env(TOLD, told)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && out.contains("1 passed"), "{out}");
}
