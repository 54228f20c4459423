//! A worker that sleeps while a peer is killed: notified within a second by default, on every transport.

use crate::{NOTIFY_LIMIT, TIMEOUT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::Duration;
use suites::partner::Partner;
use suites::rng::Rng;
use suites::sched_delay::Clock;
use ucp::{Address, Context, TAG_MASK_FULL, Worker};
use ucs::config::Source;

/// Rounds of each way of waiting on each transport.
const ROUNDS: usize = 3;

fn worker(tls: &str) -> Worker {
    Context::configured(Source::empty().with("UCX_TLS", tls)).unwrap().worker().unwrap()
}

/// Exchanges a message, and sleeps until it is killed.
pub fn sleeper(tls: &str) {
    let (mut line, worker) = (Partner::parent(), worker(tls));
    line.send(&worker.address().pack()).unwrap();
    let address: Vec<u8> = line.recv(TIMEOUT).unwrap();
    let ep = worker.connect(&Address::unpack(&address).unwrap(), Default::default()).unwrap();
    ep.tag_send_sync(1, vec![1; 8]).wait().0.unwrap();
    line.send(&()).unwrap();
    while !line.is_gone() {
        worker.progress();
        worker.wait(None).unwrap();
    }
}

/// Sleeps until there is something to progress, by `wait` or on the descriptor.
fn sleep(worker: &Worker, uses_wait: bool) {
    if uses_wait {
        worker.wait(None).unwrap();
    } else if worker.arm() {
        let time = worker.next_timer().map(|time| Timespec::try_from(time).unwrap());
        let fd = worker.event_fd().expect("each of them has one");
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], time.as_ref()).unwrap();
    }
}

pub fn waiting_worker_is_notified() {
    let (mut rng, clock) = (Rng::new(0x0dea_d002, 0), Clock::start());
    for (tls, uses_wait) in [("posix", true), ("posix", false), ("efa", true), ("efa", false)] {
        let mut longest = Duration::ZERO;
        for _ in 0..ROUNDS {
            let own = worker(tls);
            let mut victim = Partner::start(&["sleeper".into(), tls.into()]).unwrap();
            let address: Vec<u8> = victim.recv(TIMEOUT).unwrap();
            victim.send(&own.address().pack()).unwrap();
            let ep = own.connect(&Address::unpack(&address).unwrap(), Default::default()).unwrap();
            own.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8)).wait().0.unwrap();
            while victim.try_recv::<()>().unwrap().is_none() {
                own.progress();
            }
            // Never received: it ends by the death.
            let send = ep.tag_send_sync(2, vec![2; 8]);
            let every = own.next_timer().expect("peers are checked");
            assert!(
                every < Duration::from_millis(500),
                "a check that finds no room is repeated in time: {every:?}"
            );
            let (pid, delay) = (victim.pid().unwrap() as i32, Duration::from_millis(rng.below(600)));
            let start = clock.now();
            let killer = std::thread::spawn(move || {
                std::thread::sleep(delay);
                rustix::process::kill_process(
                    rustix::process::Pid::from_raw(pid).unwrap(),
                    rustix::process::Signal::KILL,
                )
                .unwrap();
            });
            while !send.is_done() {
                own.progress();
                sleep(&own, uses_wait);
                assert!(
                    clock.since(start) < delay + NOTIFY_LIMIT,
                    "{tls}, uses wait: {uses_wait}: not notified"
                );
            }
            longest = longest.max(clock.since(start).saturating_sub(delay));
            killer.join().unwrap();
            assert_eq!(send.wait().0, Err(ucp::Error::PeerGone(ep.peer())));
        }
        println!(
            "    notified after at most {:.0} ms after kill -9, {tls}, uses wait: {uses_wait}",
            longest.as_secs_f64() * 1e3
        );
    }
}
