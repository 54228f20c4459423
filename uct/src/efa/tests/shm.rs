//! The interface over the shared-memory link, both ends in this process, with faults.

use super::*;
use crate::api::ConnectError;
use crate::efa::dev::soft::{Shm, open_shm};

type ShmDev = soft::Device<Shm>;

fn open(source: &Source) -> Iface<ShmDev> {
    Iface::open(open_shm(source, "softefa0").unwrap(), &Params::from_source(source).unwrap()).unwrap()
}

fn until(a: &Iface<ShmDev>, b: &Iface<ShmDev>, log: &mut Log, done: impl Fn(&Log) -> bool) {
    let mut polls = 0u64;
    while !done(log) {
        a.poll(16, log);
        b.poll(16, log);
        polls += 1;
        assert!(polls < 200_000_000, "stuck with {} messages, {:?}", log.ams.len(), log.errors);
    }
}

#[test]
fn a_reordering_device_with_tiny_queues_loses_nothing() {
    let source = Source::empty()
        .with("SOFTEFA_REORDER", "0.3")
        .with("SOFTEFA_SEED", "7")
        .with("UCX_EFA_TX_QUEUE_LEN", "16")
        .with("UCX_EFA_RX_QUEUE_LEN", "8");
    let (a, b) = (open(&source), open(&source));
    let ep = a.connect_raw(&b.raw_addr()).unwrap();
    let mut log = Log::default();
    for n in 0..5000u64 {
        let len = 8 + (n * 37 % 8000) as usize;
        let pack = |buf: &mut [u8]| {
            buf[..len].fill(n as u8);
            buf[..8].copy_from_slice(&n.to_le_bytes());
            len
        };
        while let Err(e) = ep.am_bcopy(1, pack) {
            assert_eq!(e, Refused::NoResource);
            a.poll(16, &mut log);
            b.poll(16, &mut log);
        }
    }
    until(&a, &b, &mut log, |log| log.ams.len() == 5000);
    let number = |p: &[u8]| u64::from_le_bytes(p[1..9].try_into().expect("8 bytes"));
    assert!(!log.ams.is_sorted_by_key(|(_, p)| number(p)), "the device reorders");
    log.ams.sort_by_key(|(_, p)| number(p));
    let from = From { node: a.raw_addr().gid.iid(), port: u32::from(a.raw_addr().qpn) };
    for (n, (source, packet)) in log.ams.iter().enumerate() {
        let len = 8 + n * 37 % 8000;
        assert_eq!((*source, packet[0], packet.len(), number(packet)), (from, 1, 1 + len, n as u64));
        assert!(packet[9..].iter().all(|&b| b == n as u8));
    }
    assert_eq!(log.errors, []);
}

/// Devices that come, exchange messages and go leave neither descriptors nor mappings. They are counted in a
/// process of its own, since other tests open devices too.
#[test]
fn peers_that_have_gone_leave_nothing() {
    let ran = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "efa::tests::shm::peers_that_come_and_go"])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && out.contains("1 passed"), "{out}");
}

#[test]
#[ignore = "started by peers_that_have_gone_leave_nothing"]
fn peers_that_come_and_go() {
    let entries = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    let ours = |maps: &str| maps.lines().filter(|line| line.contains("softefa")).count();
    let usage = || (entries("/proc/self/fd"), ours(&std::fs::read_to_string("/proc/self/maps").unwrap()));
    let source = Source::empty();
    let (stays, other) = (open(&source), open(&source));
    let to_other = stays.connect_raw(&other.raw_addr()).unwrap();
    let mut after_few = None;
    for round in 0..60 {
        let comes = open(&source);
        let (there, back) =
            (stays.connect_raw(&comes.raw_addr()).unwrap(), comes.connect_raw(&stays.raw_addr()).unwrap());
        let (mut log, mut other_log) = (Log::default(), Log::default());
        let pack = |buf: &mut [u8]| {
            buf[..100].fill(7);
            100
        };
        there.am_bcopy(1, pack).unwrap();
        back.am_bcopy(1, pack).unwrap();
        to_other.am_bcopy(1, pack).unwrap();
        until(&stays, &comes, &mut log, |log| log.ams.len() == 2);
        until(&stays, &other, &mut other_log, |log| log.ams.len() == 1);
        assert_eq!((log.errors.len(), other_log.errors.len()), (0, 0));
        drop((there, back, comes));
        match after_few {
            None if round == 9 => after_few = Some(usage()),
            Some(few) => {
                let now = usage();
                assert!(now.0 <= few.0 && now.1 <= few.1, "{few:?}, later {now:?}");
            }
            None => {}
        }
    }
}

#[test]
fn a_packet_beyond_the_receivers_mtu_fails_at_once() {
    let source = Source::empty();
    let (a, b) = (open(&source), open(&source.clone().with("SOFTEFA_MTU", "2048")));
    let (there, back) = (a.connect_raw(&b.raw_addr()).unwrap(), b.connect_raw(&a.raw_addr()).unwrap());
    let mut log = Log::default();
    let pack = |len: usize| {
        move |buf: &mut [u8]| {
            buf[..len].fill(7);
            len
        }
    };
    there.am_bcopy(1, pack(4000)).unwrap();
    until(&a, &b, &mut log, |log| !log.errors.is_empty());
    assert_eq!(log.errors.iter().map(|(_, e)| *e).collect::<Vec<_>>(), [Error::RemoteLength]);
    until(&a, &b, &mut log, |_| b.stats().rx_errors == 1);
    there.am_bcopy(1, pack(2000)).unwrap();
    back.am_bcopy(1, pack(2000)).unwrap();
    until(&a, &b, &mut log, |log| log.ams.len() == 2);
    assert_eq!(log.errors.len(), 1);
}

#[test]
fn is_idle_holds_after_idle_polls_and_lets_upkeep_run() {
    let (a, b) = (open(&Source::empty()), open(&Source::empty()));
    let ep = a.connect_raw(&b.raw_addr()).unwrap();
    let mut log = Log::default();
    // Receives were posted before any poll.
    assert!(b.is_idle());
    ep.am_bcopy(1, |_| 0).unwrap();
    assert!(!b.is_idle());
    until(&a, &b, &mut log, |log| log.ams.len() == 1);
    // Polls look for the next arrival for a while.
    assert!(!b.is_idle());
    let polls = (0..5000).take_while(|_| !b.is_idle()).map(|_| assert_eq!(b.poll(16, &mut log), 0)).count();
    assert!((1..1000).contains(&polls), "{polls}");
    // Each `true` stands for a poll; now and then `false` asks for one, for upkeep.
    let answers = (0..5000).take_while(|_| b.is_idle()).count();
    assert!((1..1024).contains(&answers), "{answers}");
    assert_eq!(b.poll(16, &mut log), 0);
    assert!(b.is_idle());
}

#[test]
fn unreachable_gids_are_rejected_by_address() {
    let (a, b) = (open(&Source::empty()), open(&Source::empty()));
    let ask = |iface: &Iface<ShmDev>, iid: u64| {
        let to = RawAddr { gid: Gid::link_local(iid), ..b.raw_addr() };
        let reachable = iface.reachable(&to.gid.0, &to.pack());
        assert_eq!(iface.connect(&to.gid.0, &to.pack()).err(), reachable.err());
        reachable
    };
    let here = b.raw_addr().gid.iid();
    assert_eq!(ask(&a, here), Ok(()));
    assert_eq!(ask(&a, here ^ 1 << 50), Err(ConnectError::OtherHost));
    assert_eq!(ask(&a, 0x14b0_33ff_fef8_77cd), Err(ConnectError::OtherKind));
    assert_eq!(ask(&a, 0xa1), Ok(()), "a number that says nothing");
    let given = open(&Source::empty().with("SOFTEFA_GID", "0xa1"));
    assert_eq!((ask(&given, here), ask(&given, here ^ 1 << 50)), (Ok(()), Err(ConnectError::OtherHost)));
}
