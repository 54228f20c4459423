//! Reused queue pair numbers: a worker ends, and another opens with the same GID and number. The second is a
//! new peer, distinguished by its connid; nothing of the first is taken for something of the second. Between
//! processes, the first of which is killed (the second is this binary, running [`child`]), and in one thread.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::common::{bytes, context, spin};
use ucp::rdm::io::PeerId;
use ucp::wire::RawAddr;
use ucp::{ANY_TAG, Address, Context, Ep, EpParams, Error, Match, TAG_MASK_FULL, Worker};
use ucs::config::Source;
use uct::efa::dev::soft::{Fabric, FaultPlan, Profile};
use uct::efa::{Iface, Params};

const LIFE: &str = "UCP_TEST_LIFE";
const GID: &str = "SOFTEFA_GID";
const MESSAGES: u64 = 20;
const QPN: u16 = 77;

fn message(life: u64, n: u64) -> Vec<u8> {
    bytes(life << 32 | n, [10, 3000, 40_000][n as usize % 3])
}

/// A process that is killed with the test.
struct Generation(Child);

impl Drop for Generation {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a process whose only queue pair has the reused GID and number.
fn start(life: u64, worker: &Worker) -> Generation {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "qpn_reuse::child", "--nocapture"])
        .env(LIFE, life.to_string())
        .env(GID, format!("fe80::7e57:{:x}", std::process::id() & 0xffff))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&worker.address().pack()).unwrap();
    Generation(child)
}

#[test]
fn child() {
    let Ok(life) = std::env::var(LIFE) else { return };
    let life: u64 = life.parse().unwrap();
    let mut packed = Vec::new();
    std::io::stdin().read_to_end(&mut packed).unwrap();
    let source = Source::empty()
        .with("UCX_TLS", "efa")
        .with(GID, &std::env::var(GID).unwrap())
        .with("SOFTEFA_SEED", &(u64::from(QPN) << 16).to_string());
    let worker = Context::configured(source).unwrap().worker().unwrap();
    let ep = worker.connect(&Address::unpack(&packed).unwrap(), EpParams::default()).unwrap();
    ep.tag_send_blocking(0, &worker.address().pack()).unwrap();
    let sends: Vec<_> = (0..MESSAGES).map(|n| ep.tag_send(7, message(life, n))).collect();
    sends.into_iter().for_each(|send| send.wait().0.unwrap());
    ep.flush().wait().unwrap();
    if life == 1 {
        // Runs until it is killed.
        loop {
            worker.progress();
        }
    }
    let mut room = [0; 100];
    let status = worker.tag_recv_blocking(0, ANY_TAG, &mut room).unwrap();
    assert_eq!(
        (status.tag, &room[..status.len]),
        (9, &b"for the second"[..]),
        "the first message is another's"
    );
    ep.tag_send_blocking(10, b"thanks").unwrap();
    ep.flush().wait().unwrap();
}

fn meet(worker: &Worker) -> Ep {
    let mut room = [0; 512];
    let status = worker.tag_recv_blocking(0, TAG_MASK_FULL, &mut room).unwrap();
    worker.connect(&Address::unpack(&room[..status.len]).unwrap(), EpParams::default()).unwrap()
}

fn addr(ep: &Ep) -> RawAddr {
    ep.peer_view().unwrap().addr
}

fn same_place(first: RawAddr, second: RawAddr) {
    assert_eq!((first.gid, first.qpn), (second.gid, second.qpn), "not the number that was to be used again");
    assert_ne!(first.connid, second.connid);
}

fn receive_all(worker: &Worker, life: u64, from: PeerId) {
    for n in 0..MESSAGES {
        let (status, got) = worker.tag_recv(7, TAG_MASK_FULL, vec![0; 40_000].into_boxed_slice()).wait();
        let status = status.unwrap();
        assert_eq!(status.from, from, "message {n} of life {life}");
        assert!(got[..status.len] == message(life, n), "message {n} of life {life}");
    }
}

#[test]
fn killed_process_is_replaced_under_its_address() {
    let worker = context("efa").worker().unwrap();
    let first = start(1, &worker);
    let to_first = meet(&worker);
    receive_all(&worker, 1, to_first.peer());
    // Never received, and the awaited message is never sent.
    let pending = to_first.tag_send_sync(8, bytes(8, 300_000));
    let posted =
        worker.recv(Match::tagged(7, TAG_MASK_FULL).from(&to_first), vec![0; 100].into_boxed_slice());
    drop(first);

    let mut second = start(2, &worker);
    let to_second = meet(&worker);
    same_place(addr(&to_first), addr(&to_second));
    assert_ne!(to_first.peer(), to_second.peer());
    // In flight to the first, whose queue pair the second has now.
    let mut late: Vec<_> = (0..10).map(|n| to_first.tag_send_sync(9, bytes(n, 100))).collect();
    receive_all(&worker, 2, to_second.peer());
    spin(&[&worker], &mut || posted.is_done() && late.iter_mut().all(|send| send.is_done()));
    let gone = Error::PeerGone(to_first.peer());
    assert_eq!(posted.wait().0.unwrap_err(), gone);
    late.into_iter().for_each(|send| assert_eq!(send.wait().0, Err(gone)));
    assert_eq!(pending.wait().0, Err(gone));

    to_second.tag_send_blocking(9, b"for the second").unwrap();
    let mut room = [0; 10];
    let status = worker.tag_recv_blocking(10, TAG_MASK_FULL, &mut room).unwrap();
    assert_eq!((status.from, &room[..status.len]), (to_second.peer(), &b"thanks"[..]));
    assert!(second.0.wait().unwrap().success());
    assert_eq!(worker.stats().rare.unknown_sender, 0);
}

/// A worker on a device of its own, with the reused number.
fn life(fabric: &Fabric, iid: u64) -> Worker {
    let context = Context::configured(Source::empty().with("UCX_KEEPALIVE_INTERVAL", "0")).unwrap();
    fabric.set_next_qpn(QPN);
    let iface = Iface::open(fabric.open(iid, Profile::small()).unwrap(), &Params::default()).unwrap();
    context.worker_simulated(vec![iface.into()], Box::new(fabric.clone()), iid as u32).unwrap()
}

fn connect(from: &Worker, to: &Worker) -> Ep {
    from.connect(&to.address(), EpParams::default()).unwrap()
}

fn rest(fabric: &Fabric, workers: &[&Worker]) {
    let mut quiet = 0;
    while quiet < 3 {
        let events: usize = workers.iter().map(|worker| worker.progress()).sum();
        quiet = if events > 0 || fabric.step() { 0 } else { quiet + 1 };
    }
}

#[test]
fn packets_of_both_processes_are_distinguished() {
    for met_before in [false, true] {
        let fabric = Fabric::new(1, FaultPlan::NONE);
        let receiver = life(&fabric, 1);
        let speak = |sender: &Worker, life: u64| {
            let ep = connect(sender, &receiver);
            if met_before {
                ep.tag_send(6, vec![life as u8]).detach();
                rest(&fabric, &[sender, &receiver]);
            }
            (0..5).for_each(|n| ep.tag_send(5, vec![life as u8, n]).detach());
            sender.progress();
            fabric.advance(1_000_000);
            ep
        };
        let first = life(&fabric, 2);
        let place = addr(&connect(&receiver, &first));
        drop(speak(&first, 1));
        drop(first);
        let second = life(&fabric, 2);
        let _ep = speak(&second, 2);
        let to_second = connect(&receiver, &second);
        same_place(place, addr(&to_second));
        rest(&fabric, &[&receiver, &second]);
        let mut peers = Vec::new();
        for life in 1..3 {
            for n in 0..5 {
                let (status, got) = receiver.tag_recv(5, TAG_MASK_FULL, vec![0; 2]).wait();
                assert_eq!(got, [life, n]);
                peers.push(status.unwrap().from);
            }
        }
        assert!(peers[..5].iter().all(|peer| *peer == peers[0] && *peer != to_second.peer()));
        assert!(peers[5..].iter().all(|peer| *peer == to_second.peer()));
        let rare = receiver.stats().rare;
        assert_eq!((rare.peers_displaced, rare.unknown_sender, rare.duplicate), (1, 0, 0));
        assert_eq!(receiver.probe(Match::tagged(5, TAG_MASK_FULL)), None);
    }
}

#[test]
fn packets_for_the_first_process_are_dropped() {
    let plan = FaultPlan { delay: 1_000_000, ..FaultPlan::NONE };
    let fabric = Fabric::new(1, plan);
    let sender = life(&fabric, 1);
    let first = life(&fabric, 2);
    let to_first = connect(&sender, &first);
    to_first.tag_send(5, "hello").detach();
    rest(&fabric, &[&sender, &first]);
    // A send complete at once, one that is not, a request.
    to_first.tag_send(5, "too late").detach();
    let sync = to_first.tag_send_sync(5, "too late");
    let long = to_first.tag_send(5, vec![0; 500_000]);
    sender.progress();
    let place = addr(&to_first);
    drop(first);
    let second = life(&fabric, 2);
    let to_second = connect(&sender, &second);
    same_place(place, addr(&to_second));
    rest(&fabric, &[&sender, &second]);
    let gone = Err(Error::PeerGone(to_first.peer()));
    assert_eq!((sync.wait().0, long.wait().0), (gone, gone));
    assert_eq!(to_first.tag_send(5, "again").wait().0, gone);
    let rare = second.stats().rare;
    assert_eq!(
        (second.probe(Match::tagged(0, ANY_TAG)), rare.peers_found, rare.unknown_sender),
        (None, 0, 0)
    );

    // The second is an ordinary peer.
    to_second.tag_send(5, "for the second").detach();
    rest(&fabric, &[&sender, &second]);
    assert_eq!(second.tag_recv(5, TAG_MASK_FULL, vec![0; 20]).wait().1, b"for the second");
    let back = connect(&second, &sender);
    back.tag_send(5, "and back").detach();
    rest(&fabric, &[&sender, &second]);
    let (status, got) = sender.tag_recv(5, TAG_MASK_FULL, vec![0; 20]).wait();
    assert_eq!((status.unwrap().from, &got[..]), (to_second.peer(), &b"and back"[..]));
}

#[test]
fn stale_replies_complete_nothing() {
    let fabric = Fabric::new(1, FaultPlan { delay: 1_000_000, ..FaultPlan::NONE });
    let peer = life(&fabric, 1);
    let long = |life: u8| vec![life; 500_000];
    let start = |worker: &Worker, life: u8| {
        let ep = connect(worker, &peer);
        ep.tag_send(1, vec![life]).detach();
        rest(&fabric, &[worker, &peer]);
        let sync = ep.tag_send_sync(2, vec![life; 100]);
        let long = ep.tag_send(3, long(life));
        rest(&fabric, &[worker, &peer]);
        (ep, sync, long)
    };
    let first = life(&fabric, 2);
    let place = addr(&connect(&peer, &first));
    drop(start(&first, 1));
    // The first's messages wait at the peer; their replies are in flight when the second opens.
    let mut rooms = [peer.tag_recv(2, TAG_MASK_FULL, vec![0; 100]), peer.tag_recv(3, TAG_MASK_FULL, long(0))];
    peer.progress();
    drop(first);
    let second = life(&fabric, 2);
    same_place(place, addr(&connect(&peer, &second)));
    let (_ep, sync, slow) = start(&second, 2);
    rest(&fabric, &[&peer, &second]);
    assert!(!sync.is_done() && !slow.is_done(), "nobody has received what the second sent");
    assert!(rooms.iter_mut().all(|room| room.is_done()));
    let [short, lost] = rooms.map(|room| room.wait());
    assert_eq!((short.0.map(|status| status.len), short.1), (Ok(100), vec![1; 100]));
    assert!(matches!(lost.0, Err(Error::PeerGone(_))), "{:?}", lost.0);
    let got = [peer.tag_recv(2, TAG_MASK_FULL, vec![0; 100]), peer.tag_recv(3, TAG_MASK_FULL, long(0))];
    rest(&fabric, &[&peer, &second]);
    assert_eq!((sync.wait().0, slow.wait().0), (Ok(()), Ok(())));
    let [short, whole] = got.map(|room| room.wait().1);
    assert!(short == vec![2; 100] && whole == long(2));
    let rare = second.stats().rare;
    assert_eq!((rare.bad_id, rare.unknown_sender, second.diagnostics().requests()), (0, 0, 0));
}
