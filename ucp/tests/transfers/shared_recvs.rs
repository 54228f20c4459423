//! Receives that workers share: a message to any of them takes the oldest that matches.

use crate::common::{bytes, context, ends, spin};
use ucp::{EpParams, Error, Match, SharedRecvs, Worker};

const LENS: [usize; 4] = [0, 8, 10_000, 300_000];

/// Takes the next receive that a message of one of the workers is for, and finishes it.
fn next(
    shared: &SharedRecvs<(usize, Vec<u8>)>,
    all: &[&Worker],
    workers: &[Worker],
) -> (usize, usize, Vec<u8>) {
    let mut found = None;
    spin(all, &mut || {
        let take = |(at, worker): (usize, &Worker)| Some((at, shared.take(worker)?));
        found = workers.iter().enumerate().find_map(take);
        found.is_some()
    });
    let (by, (message, (number, buf))) = found.unwrap();
    let recv = message.recv(buf);
    spin(all, &mut || recv.is_done());
    let (result, mut buf) = recv.wait();
    buf.truncate(result.unwrap().len);
    (by, number, buf)
}

fn messages_take_the_oldest_receive(tls: &str) {
    let (ours, theirs) = ends(tls);
    let (client, context) = (context(ours).worker().unwrap(), context(theirs));
    let workers = [context.worker().unwrap(), context.worker().unwrap()];
    let all = [&client, &workers[0], &workers[1]];
    let eps = [0, 1].map(|n| client.connect(&workers[n].address(), EpParams::default()).unwrap());
    let shared = SharedRecvs::default();
    // Receives first, then messages; and the other way round.
    for early in [true, false] {
        let post = || {
            for n in 0..LENS.len() {
                shared.post(Match::untagged(), (n, vec![0; 300_000]));
                shared.post(Match::tagged(n as u64, u64::MAX), (100 + n, vec![0; 300_000]));
            }
        };
        if early {
            post();
        }
        let sends: Vec<_> = LENS
            .iter()
            .enumerate()
            .flat_map(|(n, &len)| {
                let tagged = eps[1 - n % 2].tag_send(n as u64, bytes(50 + n as u64, len));
                [eps[n % 2].msg_send(bytes(n as u64, len)), tagged]
            })
            .collect();
        if !early {
            (0..50).for_each(|_| all.iter().for_each(|worker| _ = worker.progress()));
            assert!(workers.iter().all(|worker| shared.take(worker).is_none()));
            post();
        }
        let mut untagged = [Vec::new(), Vec::new()];
        let mut numbers = Vec::new();
        for _ in 0..2 * LENS.len() {
            let (by, number, got) = next(&shared, &all, &workers);
            match number.checked_sub(100) {
                Some(n) => assert!(by == 1 - n % 2 && got == bytes(50 + n as u64, LENS[n]), "tag {n}"),
                None => {
                    numbers.push(number);
                    untagged[by].push(got);
                }
            }
        }
        // Receives go in order, and messages of each worker, too.
        assert_eq!(numbers, [0, 1, 2, 3]);
        for (by, got) in untagged.iter().enumerate() {
            let sent = [by, by + 2].map(|n| bytes(n as u64, LENS[n]));
            assert_eq!(got[..], sent, "worker {by}");
        }
        spin(&all, &mut || sends.iter().all(|send| send.is_done()));
        sends.into_iter().for_each(|send| send.wait().0.unwrap());
        assert!(shared.is_empty());
    }
}

fn too_short_and_cancelled_receives(tls: &str) {
    let (ours, theirs) = ends(tls);
    let (client, worker) = (context(ours).worker().unwrap(), context(theirs).worker().unwrap());
    let all = [&client, &worker];
    let ep = client.connect(&worker.address(), EpParams::default()).unwrap();
    let shared = SharedRecvs::default();
    (0..3).for_each(|n| shared.post(Match::untagged(), (n, vec![0; 8])));
    assert_eq!(shared.cancel(|(n, _)| *n == 0).map(|(n, _)| n), Some(0));
    assert!(shared.cancel(|(n, _)| *n == 0).is_none() && shared.len() == 2);
    let send = ep.msg_send(vec![7; 100]);
    let mut found = None;
    spin(&all, &mut || {
        found = found.take().or_else(|| shared.take(&worker));
        found.is_some()
    });
    let (message, (number, buf)) = found.unwrap();
    assert_eq!((number, message.envelope().len), (1, 100));
    let recv = message.recv(buf);
    spin(&all, &mut || recv.is_done() && send.is_done());
    assert!(matches!(recv.wait().0, Err(Error::Truncated { .. })));
    send.wait().0.unwrap();
}

/// Workers in threads of their own take each receive once.
fn workers_of_other_threads(tls: &str) {
    const EACH: usize = 200;
    let (ours, theirs) = ends(tls);
    let (client, context) = (context(ours).worker().unwrap(), context(theirs));
    let shared = SharedRecvs::default();
    let (send, addresses) = std::sync::mpsc::channel();
    let left = std::sync::atomic::AtomicUsize::new(2 * EACH);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (context, shared, left, send) = (context.clone(), &shared, &left, send.clone());
            scope.spawn(move || {
                let worker = context.worker().unwrap();
                send.send(worker.address().pack()).unwrap();
                while left.load(std::sync::atomic::Ordering::Acquire) > 0 {
                    worker.progress();
                    if let Some((message, buf)) = shared.take(&worker) {
                        let buf: Vec<u8> = buf;
                        let recv = message.recv(buf);
                        spin(&[&worker], &mut || recv.is_done());
                        let (result, buf) = recv.wait();
                        assert!(result.unwrap().len == 8 && buf == [9; 8]);
                        left.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
                    }
                }
            });
        }
        let eps: Vec<_> = addresses
            .iter()
            .take(2)
            .map(|packed| {
                client.connect(&ucp::Address::unpack(&packed).unwrap(), EpParams::default()).unwrap()
            })
            .collect();
        let mut sends = Vec::new();
        for n in 0..2 * EACH {
            shared.post(Match::untagged(), vec![0; 8]);
            sends.push(eps[n % 2].msg_send(vec![9; 8]));
            client.progress();
        }
        let is_over = || left.load(std::sync::atomic::Ordering::Acquire) == 0;
        spin(&[&client], &mut || is_over() && sends.iter().all(|send| send.is_done()));
    });
    assert!(shared.is_empty());
}

on! { [messages_take_the_oldest_receive too_short_and_cancelled_receives workers_of_other_threads]
    posix: "posix",
    posix_and_cma: "posix,cma",
    efa: "efa",
    all: "all",
}
