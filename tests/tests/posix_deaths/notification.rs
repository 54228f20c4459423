//! Notification of a single death with nothing else going on: which poll reports it to whom, and which calls
//! find it.

use crate::{Seen, TIMEOUT, contact_of, open};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use suites::partner::Partner;
use ucs::config::Source;
use uct::any;
use uct::api::{
    AllocReq, Comp, ConnectError, Ep as _, EpTag, Error, Iface as _, Md as _, Memory as _, Refused, Sent,
};
use uct::mt::{self, ThreadMode};
use uct::worker::Worker;

/// Address of an interface, a key, and the address that it is for.
type Contact = (Vec<u8>, Vec<u8>, Vec<u8>, u64);

/// Closes its interface when told to, keeps its memory, and stays.
pub fn idle() {
    let mut line = Partner::parent();
    let (posix, other) = (open("posix", ""), open("posix", ""));
    let mem = other.md().alloc(&AllocReq::new(4096, "idle")).unwrap();
    let (device, iface) = contact_of(&posix);
    let key = other.md().pack_rkey(&mem).unwrap().to_vec();
    line.send(&(device, iface, key, mem.addr().addr() as u64)).unwrap();
    while line.recv::<()>(TIMEOUT).is_err() {}
    drop(posix);
    line.send(&()).unwrap();
    std::thread::sleep(TIMEOUT);
}

fn victim() -> (Partner, Contact) {
    let mut victim = Partner::start(&["idle".into()]).unwrap();
    let peer = victim.recv(TIMEOUT).unwrap();
    (victim, peer)
}

/// Kills it when the caller sleeps, or nearly.
fn kill_later(victim: Partner) -> std::thread::JoinHandle<()> {
    let pid = victim.pid().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).unwrap();
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    });
    // The kill needs the process unreaped.
    std::mem::forget(victim);
    later
}

fn polled(mut poll: impl FnMut() -> usize) -> usize {
    let start = Instant::now();
    loop {
        match poll() {
            0 => assert!(start.elapsed() < TIMEOUT, "nothing has come"),
            events => return events,
        }
    }
}

pub fn death_ends_a_sleep() {
    let (worker, posix) = (Worker::new(), Rc::new(open("posix", "")));
    worker.add(posix.clone()).unwrap();
    let (idle, peer) = victim();
    let ep = posix.connect(&peer.0, &peer.1).unwrap();
    ep.set_tag(EpTag(5));
    ep.ensure_connected().unwrap();
    let (notified, notified_mt) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let log = notified.clone();
    posix.set_error_handler(Some(Box::new(move |tag, error| log.lock().unwrap().push((tag, error)))));
    let later = kill_later(idle);
    assert_eq!(worker.wait(8, 0, None), Ok(1));
    assert_eq!(*notified.lock().unwrap(), [(EpTag(5), Error::PeerDead)]);
    assert_eq!(ep.flush(Comp::None), Err(Refused::Failed(Error::PeerDead)));
    later.join().unwrap();

    let shared = mt::Iface::open("posix", "memory", &Source::empty(), ThreadMode::Multi).unwrap();
    let (idle, peer) = victim();
    let ep = shared.connect(&peer.0, &peer.1).unwrap();
    ep.set_tag(EpTag(6)).unwrap();
    ep.ensure_connected().unwrap();
    let log = notified_mt.clone();
    let handler = move |tag, error| log.lock().unwrap().push((tag, error));
    shared.set_error_handler(Some(Box::new(handler))).unwrap();
    let later = kill_later(idle);
    assert_eq!(shared.wait(0, None), Ok(1));
    assert_eq!(*notified_mt.lock().unwrap(), [(EpTag(6), Error::PeerDead)]);
    assert_eq!(ep.flush(None), Err(Refused::Failed(Error::PeerDead)));
    later.join().unwrap();
}

pub fn poll_reports_at_most_max() {
    const EPS: u64 = 100;
    let posix = open("posix", "");
    let (idle, peer) = victim();
    let mut eps: Vec<any::Ep> = (0..EPS).map(|_| posix.connect(&peer.0, &peer.1).unwrap()).collect();
    eps.iter().zip(1..).for_each(|(ep, n)| ep.set_tag(EpTag(n)));
    eps[0].ensure_connected().unwrap();
    drop(idle);
    let mut seen = Seen::default();
    for n in 1..=3 {
        assert_eq!((polled(|| posix.poll(1, &mut seen)), seen.failed_eps.len()), (1, n));
    }
    assert_eq!(posix.poll(0, &mut seen), 0);
    assert_eq!(posix.arm(uct::api::Events::all()), Ok(false), "more to report");
    // All endpoints fail, notified or not. Dropped and later ones are not notified.
    assert_eq!(eps[99].am_bcopy(1, |_| 4), Err(Refused::Failed(Error::PeerDead)));
    drop(eps.swap_remove(50));
    let late = [(); 2].map(|()| posix.connect(&peer.0, &peer.1).unwrap());
    late.iter().for_each(|ep| assert_eq!(ep.ensure_connected(), Err(ConnectError::Gone)));
    while posix.poll(10, &mut seen) > 0 {}
    let notified: Vec<u64> = seen.failed_eps.iter().map(|tag| tag.0).collect();
    assert_eq!(notified, (1..=EPS).filter(|n| *n != 51).collect::<Vec<_>>());
    assert_eq!(posix.arm(uct::api::Events::all()), Ok(true));
}

pub fn check_and_flush_find_a_death_under_load() {
    let (posix, busy_sender) = (open("posix", ""), open("posix", ""));
    let (device, iface) = contact_of(&posix);
    let to = busy_sender.connect(&device, &iface).unwrap();
    to.ensure_connected().unwrap();
    let (idle, peer) = victim();
    let ep = posix.connect(&peer.0, &peer.1).unwrap();
    assert_eq!(ep.check(Comp::None), Ok(Sent::Done));
    let send = || {
        to.am_bcopy(1, |room| {
            room[..10].fill(1);
            10
        })
    };
    (0..10).for_each(|_| assert_eq!(send(), Ok(10)));
    drop(idle);
    let mut seen = Seen::default();
    // The victim's messages can only be among the first ten.
    for n in 0..10 {
        assert_eq!(ep.check(Comp::None), Ok(Sent::Done), "{n} read");
        assert_eq!(send(), Ok(10));
        assert_eq!(posix.poll(1, &mut seen), 1);
    }
    assert_eq!(ep.check(Comp::None), Err(Refused::Failed(Error::PeerDead)));
    // A flush also fails, once the fd server is notified and before a poll has reported it.
    let (idle, peer) = victim();
    let ep = posix.connect(&peer.0, &peer.1).unwrap();
    ep.ensure_connected().unwrap();
    drop(idle);
    let wake =
        [rustix::event::PollFd::from_borrowed_fd(posix.event_fd().unwrap(), rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut { wake }, None), Ok(1));
    for n in 0..10 {
        assert_eq!(ep.flush(Comp::None), Ok(Sent::Done), "{n} read");
        assert_eq!((send(), posix.poll(1, &mut seen)), (Ok(10), 1));
    }
    assert_eq!(ep.flush(Comp::None), Err(Refused::Failed(Error::PeerDead)));
}

pub fn endpoints_to_a_closed_interface_are_notified() {
    let posix = open("posix", "");
    let (mut idle, peer) = victim();
    let old = posix.connect(&peer.0, &peer.1).unwrap();
    old.set_tag(EpTag(1));
    old.ensure_connected().unwrap();
    let rkey = posix.md().unpack_rkey(&peer.2).unwrap();
    idle.send(&()).unwrap();
    idle.recv::<()>(TIMEOUT).unwrap();
    let new = posix.connect(&peer.0, &peer.1).unwrap();
    new.set_tag(EpTag(2));
    assert_eq!(new.ensure_connected(), Err(ConnectError::Gone));
    assert_eq!(old.put_short(&[1], peer.3, &rkey), Ok(Sent::Done), "it lives");
    drop(idle);
    let mut seen = Seen::default();
    while seen.failed_eps.len() < 2 {
        polled(|| posix.poll(1, &mut seen));
    }
    seen.failed_eps.sort_by_key(|tag| tag.0);
    assert_eq!(seen.failed_eps, [EpTag(1), EpTag(2)]);
    assert_eq!(old.put_short(&[1], peer.3, &rkey), Err(Refused::Failed(Error::PeerDead)));
}
