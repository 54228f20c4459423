//! A worker with a progress thread serves emulated operations while its program computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{bytes, context, ends};
use ucp::{
    Access, Address, AtomicOp, JobError, Mem, Rkey, RmaMethod, SpawnError, TAG_MASK_FULL, WorkerThread,
};

fn served(tls: &'static str, name: &str) -> WorkerThread<Mem> {
    let make = move || {
        let worker = context(ends(tls).1).worker().unwrap();
        let mem = worker.mem_alloc(4096, Access::all()).unwrap();
        Ok::<_, ()>((worker, mem))
    };
    WorkerThread::spawn(name, make).unwrap()
}

/// Atomics, puts and gets by packets, and a long message, served by the target's progress thread alone.
fn emulated_operations_are_served(tls: &'static str) {
    let served = served(tls, "served");
    let (address, key, at) =
        served.run(|worker, mem| (worker.address().pack(), mem.key(), mem.addr())).unwrap();
    let worker = context(ends(tls).0).worker().unwrap();
    let ep = worker.connect(&Address::unpack(&address).unwrap(), Default::default()).unwrap();
    // By packets, also where it could be mapped.
    let rkey = Rkey::from_key(key);
    assert_eq!(
        ep.protocols().atomic_method(&rkey, AtomicOp::Sum, ucp::Datatype::Uint64),
        Some(RmaMethod::Emulated)
    );
    for n in 0..500u64 {
        assert_eq!(ep.atomic_fetch(AtomicOp::Sum, 2u64, at, &rkey).wait(), Ok(2 * n));
    }
    let text = bytes(1, 3000);
    ep.put(text.clone(), at + 8, &rkey).wait().0.unwrap();
    ep.flush().wait().unwrap();
    let (status, back) = ep.get(Vec::with_capacity(3000), at + 8, &rkey).wait();
    assert!(status.is_ok() && back == text);
    assert_eq!(served.run(|_, mem| mem.word(0)), Ok(1000));

    let (told, len) = std::sync::mpsc::channel();
    served
        .post(move |worker, _| {
            let recv = worker.tag_recv(7, TAG_MASK_FULL, Vec::with_capacity(1 << 20));
            recv.then(move |status, data| _ = told.send((status.map(|s| s.len), data.len())));
        })
        .unwrap();
    assert_eq!(ep.tag_send_sync(7, bytes(7, 1 << 20)).wait().0, Ok(()));
    assert_eq!(len.recv_timeout(Duration::from_secs(60)), Ok((Ok(1 << 20), 1 << 20)));
    served.join();
}

fn state(name: &str) -> Option<char> {
    std::fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        head.ends_with(&format!("({name}")).then(|| tail.chars().next())?
    })
}

fn progress_thread_sleeps_and_wakes(tls: &'static str) {
    let name = format!("naps {}", tls.replace('|', "-"));
    let served = served(tls, &name);
    let (address, key, at) =
        served.run(|worker, mem| (worker.address().pack(), mem.key(), mem.addr())).unwrap();
    let worker = context(ends(tls).0).worker().unwrap();
    let ep = worker.connect(&Address::unpack(&address).unwrap(), Default::default()).unwrap();
    let rkey = Rkey::from_key(key);
    for n in 0..5u64 {
        let start = Instant::now();
        while state(&name) != Some('S') {
            assert!(start.elapsed() < Duration::from_secs(30), "{name} is {:?}", state(&name));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(ep.atomic_fetch(AtomicOp::Sum, 1u64, at, &rkey).wait(), Ok(n));
    }
    drop(served);
    // A thread that has been joined leaves the list a little later.
    let start = Instant::now();
    while state(&name).is_some() {
        assert!(start.elapsed() < Duration::from_secs(30), "{name} is {:?}", state(&name));
        std::thread::sleep(Duration::from_millis(1));
    }
}

on! {
    [emulated_operations_are_served progress_thread_sleeps_and_wakes]
    posix: "posix",
    efa: "efa",
    all: "all",
}

#[test]
fn jobs_run_in_order_and_panics_return_to_the_caller() {
    let served = served("posix", "jobs");
    let next = |x: u64, n: u64| x.wrapping_mul(3).wrapping_add(n);
    for n in 0..100u64 {
        served.post(move |_, mem| mem.write(0, &next(mem.word(0), n).to_le_bytes())).unwrap();
    }
    let expected = (0..100u64).fold(0u64, next);
    assert_eq!(served.run(|_, mem| mem.word(0)), Ok(expected));
    let ask = std::panic::AssertUnwindSafe(|| served.run(|_, _| -> u64 { panic!("on purpose") }));
    let panicked = std::panic::catch_unwind(ask);
    assert!(panicked.is_err_and(|panic| panic.downcast_ref() == Some(&"on purpose")));
    assert_eq!(served.run(|_, _| 7), Ok(7), "it goes on");
    served.post(|_, _| panic!("on purpose, too")).unwrap();
    assert_eq!(served.run(|_, _| 7), Err(JobError::Ended));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| served.join())).is_err());
}

#[test]
fn failed_start_is_reported() {
    let failed = WorkerThread::<()>::spawn("none", || Err("no worker today"));
    assert!(matches!(failed, Err(SpawnError::Make("no worker today"))));
    let panicked =
        std::panic::catch_unwind(|| WorkerThread::<()>::spawn("none", || -> Result<_, ()> { panic!("no") }));
    assert!(panicked.is_err());
}

#[test]
fn nested_job_does_not_deadlock() {
    let served = Arc::new(served("posix", "own"));
    let (again, done) = (served.clone(), Arc::new(AtomicBool::new(false)));
    let seen = done.clone();
    served
        .run(move |_, _| {
            assert_eq!(again.run(|_, _| ()), Err(JobError::OwnThread));
            again.post(move |_, _| seen.store(true, Ordering::Relaxed)).unwrap();
            // The last handle may be dropped here: a thread does not wait for itself.
            drop(again);
        })
        .unwrap();
    served.run(|_, _| ()).unwrap();
    assert!(done.load(Ordering::Relaxed));
}
