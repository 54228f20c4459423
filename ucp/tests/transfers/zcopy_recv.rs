//! Zero-copy receive mode between two of our workers on the software device: messages that land in receives
//! directly, packets from senders that do not know of the mode, and unsupported operations.

use crate::common::{Pair, bytes, spin};
use ucp::rdm::{DeliveryComplete, Protocol};
use ucp::wire::Features;
use ucp::{Context, Ep, Error, Match, RecvRequest, SendParams, Worker};
use ucs::config::Source;

const NAME: [(&str, &str); 2] = [("UCX_TLS", "efa"), ("UCX_NET_DEVICES", "softefa0")];

fn context(keys: &[(&str, &str)]) -> Result<Context, uct::api::OpenError> {
    let source =
        NAME.iter().chain(keys).fold(Source::empty(), |source, (key, value)| source.with(key, value));
    Context::configured(source)
}

fn worker(keys: &[(&str, &str)]) -> Result<Worker, uct::api::OpenError> {
    context(keys).and_then(|context| context.worker())
}

/// A sender, and a receiver in the mode that posts up to four receives.
fn pair(kind: &str, sender: &[(&str, &str)], receiver: &[(&str, &str)]) -> Pair {
    let mode = [("UCX_ZCOPY_RECV", "y"), ("UCX_EFA_USER_RX_QUEUE_LEN", "4")];
    let receiver: Vec<_> = mode.iter().chain(receiver).copied().collect();
    Pair::of_contexts(&context(sender).unwrap(), &context(&receiver).unwrap(), kind == "shared")
}

fn with_data(cq_data: u64) -> SendParams<'static> {
    SendParams { cq_data: Some(cq_data), ..SendParams::default() }
}

fn post(worker: &Worker, n: usize) -> Vec<RecvRequest<Vec<u8>>> {
    (0..n).map(|_| worker.msg_recv(vec![0; 9000])).collect()
}

/// Received messages, sorted by their data.
fn take(pair: &Pair, mut receives: Vec<RecvRequest<Vec<u8>>>, from: &Ep) -> Vec<(Option<u64>, Vec<u8>)> {
    pair.until(|| receives.iter_mut().all(|receive| receive.is_done()));
    let got = receives.into_iter().map(|receive| {
        let (status, mut room) = receive.wait();
        let status = status.unwrap();
        assert_eq!((status.from, status.tag), (from.peer(), 0));
        room.truncate(status.len);
        (status.cq_data, room)
    });
    let mut got: Vec<_> = got.collect();
    got.sort();
    got
}

// [M5.10] [M5.12]
fn messages_land_in_receives_directly(kind: &str) {
    let mode = [("UCX_ZCOPY_RECV", "y"), ("UCX_UNTAGGED_WAIT", "y")];
    let pair = pair(kind, &mode, &mode[1..]);
    for (from, to, ep, back) in
        [(&pair.a, &pair.b, &pair.ab, &pair.ba), (&pair.b, &pair.a, &pair.ba, &pair.ab)]
    {
        let receives = post(to, 12);
        let mut sent = Vec::new();
        for (n, len) in [0, 1, 8, 31, 32, 33, 100, 4096, 8000, 8500, 3, 5].into_iter().enumerate() {
            let data = (n % 3 > 0).then_some(n as u64);
            let (message, params) =
                (bytes(n as u64, len), SendParams { cq_data: data, ..Default::default() });
            let send = ep.send(message.clone(), &params);
            pair.until(|| send.is_done());
            send.wait().0.unwrap();
            sent.push((data, message));
        }
        sent.sort();
        assert_eq!(take(&pair, receives, back), sent);
        let (tx, rx) = (from.stats(), to.stats());
        assert_eq!((tx.sent(Protocol::UserQp).msgs, rx.received(Protocol::UserQp).msgs), (12, 12));
        assert_eq!(rx.rare.forwarded, 0, "none by way of a packet");
    }
    assert_eq!((pair.a.diagnostics().registrations(), pair.b.diagnostics().registrations()), (0, 0));
}

/// The first message precedes the handshake, and some peers never know of the mode.
// [M5.13]
fn packets_deliver_sender_and_data(kind: &str) {
    let old = Features::USER_RECV_QP.bits().to_string();
    for (receiver, mode) in
        [(&[][..], "knows later"), (&[("UCX_WITHHOLD_FEATURES", &old[..])][..], "never knows")]
    {
        let pair = pair(kind, &[], receiver);
        let (mut sent, mut sends) = (Vec::new(), Vec::new());
        for n in 0..10u64 {
            let message = bytes(n, 1 + n as usize * 800);
            // 64 bits of data fit a packet only.
            let data = if n == 0 || !receiver.is_empty() { n << 40 } else { n };
            // Sends without a packet wait here for receives.
            sends.push(pair.ab.send(message.clone(), &with_data(data)));
            sent.push((Some(data), message));
            pair.settle();
        }
        let snapshot = pair.b.diagnostics().snapshot();
        assert!(
            pair.b.diagnostics().unexpected_bytes() > 0 && snapshot.held_bytes > 0,
            "{mode}: they wait for receives"
        );
        let receives = post(&pair.b, 10);
        sent.sort();
        assert_eq!(take(&pair, receives, &pair.ba), sent, "{mode}");
        sends.into_iter().for_each(|send| send.wait().0.unwrap());
        let passed = pair.b.stats().rare.forwarded;
        assert!(
            if receiver.is_empty() { (1..10).contains(&passed) } else { passed == 10 },
            "{mode}: {passed}"
        );
        pair.settle();
        assert_eq!(
            (pair.b.diagnostics().unexpected_bytes(), pair.b.diagnostics().snapshot().held_bytes),
            (0, 0),
            "{mode}"
        );
    }
}

fn zero_copy_worker_sends_long_messages_and_rma(kind: &str) {
    for keys in [
        &[("UCX_RNDV_THRESH", "0")][..],
        &[("UCX_MIN_READ", "0")],
        &[("UCX_MIN_READ", "0"), ("UCX_RUNT_SIZE", "1k")],
        &[("UCX_MIN_RDMA_PUT", "inf"), ("UCX_MIN_RDMA_GET", "inf")],
        &[("UCX_MIN_READ_WRITE", "0"), ("UCX_MIN_RDMA_PUT", "inf")],
    ] {
        let pair = pair(kind, &[], keys);
        let message = bytes(7, 50_000);
        let receive = pair.a.tag_recv(1, !0, vec![0; message.len()]);
        let send = pair.ba.tag_send_sync(1, message.clone());
        pair.until(|| send.is_done());
        send.wait().0.unwrap();
        assert!(receive.wait() == (Ok(receive_status(&pair, message.len())), message.clone()), "{keys:?}");
        let mem = pair.a.mem_alloc(message.len(), ucp::Access::all()).unwrap();
        let rkey = ucp::Rkey::from_key(mem.key());
        let params = ucp::RmaParams { sync: DeliveryComplete::Yes, ..Default::default() };
        let put = pair.ba.put_with(message.clone(), mem.addr(), &rkey, &params);
        pair.until(|| put.is_done());
        put.wait().0.unwrap();
        let get = pair.ba.get(vec![0; message.len()].into_boxed_slice(), mem.addr(), &rkey);
        pair.until(|| get.is_done());
        let (end, got) = get.wait();
        assert!(end.is_ok() && got[..] == message[..], "{keys:?}: {end:?}");
        drop(mem);
        pair.settle();
        assert_eq!(
            (pair.a.diagnostics().registrations(), pair.b.diagnostics().registrations()),
            (0, 0),
            "{keys:?}"
        );
    }
}

fn receive_status(pair: &Pair, len: usize) -> ucp::rdm::RecvStatus {
    ucp::rdm::RecvStatus { len, tag: 1, from: pair.ab.peer(), cq_data: None }
}

// [M5.13] [M6.1]
fn receipt_follows_the_receive(kind: &str) {
    let old = Features::USER_RECV_QP.bits().to_string();
    let pair = pair(kind, &[], &[("UCX_WITHHOLD_FEATURES", &old)]);
    let send =
        pair.ab.send(b"sync".to_vec(), &SendParams { sync: DeliveryComplete::Yes, ..SendParams::default() });
    pair.until(|| pair.b.stats().rare.forwarded == 1);
    pair.settle();
    assert!(!send.is_done());
    let got = take(&pair, post(&pair.b, 1), &pair.ba);
    assert_eq!(got, [(None, b"sync".to_vec())]);
    pair.until(|| send.is_done());
    send.wait().0.unwrap();
}

// [M5.13]
fn unsupported_receives_are_rejected(kind: &str) {
    let old = Features::USER_RECV_QP.bits().to_string();
    let pair = pair(kind, &[("UCX_RNDV_THRESH", "10k")], &[("UCX_WITHHOLD_FEATURES", &old)]);
    pair.ab.msg_send(b"first".to_vec()).wait().0.unwrap();
    take(&pair, post(&pair.b, 1), &pair.ba);
    let long = pair.ab.msg_send(vec![1; 100_000]);
    pair.until(|| long.is_done());
    assert!(matches!(long.wait().0, Err(Error::Aborted(..))), "the sender is told");
    let before = pair.b.stats().rare.unsupported;
    pair.ab.tag_send(5, b"tagged".to_vec()).wait().0.unwrap();
    pair.until(|| pair.b.stats().rare.unsupported == before + 1);
    assert_eq!((pair.b.diagnostics().snapshot().unexpected, pair.b.diagnostics().unexpected_bytes()), (0, 0));
    // The receive fails as well.
    let refused = |receive: RecvRequest<Vec<u8>>| receive.wait().0 == Err(Error::Unsupported);
    assert!(refused(pair.b.tag_recv(5, !0, vec![0; 8])));
    assert!(refused(pair.b.recv(Match::untagged().from(&pair.ba), vec![0; 8])));
    assert!(pair.b.msg_recv(Vec::new()).wait().0.is_err(), "a receive of nothing has no memory");
}

fn short_receive_has_its_own_error(kind: &str) {
    let pair = pair(kind, &[("UCX_UNTAGGED_WAIT", "y")], &[]);
    for headerless in [true, false] {
        let short = pair.b.msg_recv(vec![0; 10]);
        match headerless {
            true => {
                let send = pair.ab.msg_send(vec![1; 100]);
                pair.until(|| send.is_done());
                send.wait().0.unwrap();
            }
            // Messages to self are delivered like packets.
            false => drop(myself(&pair.b).msg_send(vec![1; 100])),
        }
        let (status, _) = short.wait();
        assert!(matches!(status, Err(Error::Truncated { room: 10, .. })), "{status:?}");
        pair.settle();
    }
    let receives = post(&pair.b, 1);
    pair.ab.msg_send(b"goes on".to_vec()).wait().0.unwrap();
    assert_eq!(take(&pair, receives, &pair.ba), [(None, b"goes on".to_vec())]);
}

fn myself(worker: &Worker) -> Ep {
    worker.connect(&worker.address(), ucp::EpParams::default()).unwrap()
}

#[test]
fn zero_copy_worker_sends_to_itself() {
    let worker = worker(&[("UCX_ZCOPY_RECV", "y")]).unwrap();
    let me = myself(&worker);
    let mut sends: Vec<_> = (0..5).map(|n| me.send(vec![n; 50], &with_data(u64::MAX))).collect();
    let mut receives = post(&worker, 5);
    spin(&[&worker], &mut || {
        sends.iter_mut().all(|send| send.is_done()) && receives.iter_mut().all(|receive| receive.is_done())
    });
    for (n, receive) in receives.into_iter().enumerate() {
        let (status, room) = receive.wait();
        let status = status.unwrap();
        assert_eq!((status.len, status.from, status.cq_data), (50, me.peer(), Some(u64::MAX)));
        assert_eq!(room[..50], [n as u8; 50]);
    }
    sends.into_iter().for_each(|send| send.wait().0.unwrap());
}

fn undelivered_messages_are_bounded(kind: &str) {
    let old = Features::USER_RECV_QP.bits().to_string();
    let pair = pair(kind, &[], &[("UCX_WITHHOLD_FEATURES", &old), BOUNDS[0], BOUNDS[1]]);
    // A worker that may expect something does not sleep.
    let _mem = pair.b.mem_alloc(64, ucp::Access::all()).unwrap();
    pair.until(|| {
        pair.ab.msg_send(vec![2; 3000]).detach();
        pair.b.stats().rare.no_room > 0
    });
    assert!(
        (MOST - 10_000..=MOST).contains(&pair.b.diagnostics().unexpected_bytes()),
        "{}",
        pair.b.diagnostics().unexpected_bytes()
    );
    let fault = pair.b.diagnostics().peer_view(pair.ba.peer()).and_then(|view| view.fault);
    assert_eq!(fault, Some(ucp::rdm::io::PeerError::OverLimit));
    // Kept messages can be received.
    let mut receives = post(&pair.b, 100);
    pair.until(|| receives.iter_mut().all(|receive| receive.is_done()));
    assert!(pair.b.diagnostics().unexpected_bytes() < MOST - 100 * 3000);
}

const MOST: usize = 2 << 20;
const BOUNDS: [(&str, &str); 2] = [("UCX_UNEXP_MEM", "256k"), ("UCX_UNEXP_MAX", "2m")];

#[test]
fn messages_to_self_wait_for_room() {
    let worker = worker(&[("UCX_ZCOPY_RECV", "y"), BOUNDS[0], BOUNDS[1]]).unwrap();
    let me = myself(&worker);
    let met = me.tag_send_sync(1, b"met, and refused".to_vec());
    spin(&[&worker], &mut || met.is_done());
    let mut sends: Vec<_> = (0..1000).map(|_| me.msg_send(vec![1; 3000])).collect();
    for _ in 0..100 {
        worker.progress();
    }
    assert!(
        (MOST - 10_000..=MOST).contains(&worker.diagnostics().unexpected_bytes()),
        "{}",
        worker.diagnostics().unexpected_bytes()
    );
    assert!(sends.iter_mut().any(|send| !send.is_done()));
    let mut receives = post(&worker, 1000);
    spin(&[&worker], &mut || receives.iter_mut().all(|receive| receive.is_done()));
    spin(&[&worker], &mut || sends.iter_mut().all(|send| send.is_done()));
    sends.into_iter().for_each(|send| send.wait().0.unwrap());
    assert_eq!((worker.diagnostics().unexpected_bytes(), worker.stats().rare.no_room), (0, 0));
}

fn closing_the_endpoint_to_self_affects_no_other(kind: &str) {
    let old = Features::USER_RECV_QP.bits().to_string();
    let pair = pair(kind, &[], &[("UCX_WITHHOLD_FEATURES", &old)]);
    let me = myself(&pair.b);
    let receives = post(&pair.b, 1);
    me.msg_send(b"to myself".to_vec()).wait().0.unwrap();
    pair.until(|| pair.b.diagnostics().unexpected_bytes() == 0);
    take(&pair, receives, &me);
    let lost = me.msg_send(b"given up".to_vec());
    me.close(ucp::CloseMode::Force).wait().unwrap();
    drop(lost);
    pair.settle();
    for n in 0..3 {
        pair.ab.msg_send(vec![n; 10]).wait().0.unwrap();
        pair.settle();
    }
    let mut receives = post(&pair.b, 4);
    pair.until(|| pair.b.stats().rare.forwarded >= 4 && pair.b.diagnostics().unexpected_bytes() == 0);
    let got = receives.iter_mut().filter_map(|receive| receive.is_done().then_some(())).count();
    assert!(got >= 3, "{got}");
    // The others cannot be cancelled, and end with their worker.
    drop(receives);
}

fn worker_ends_with_posted_receives(kind: &str) {
    let pair = pair(kind, &[("UCX_UNTAGGED_WAIT", "y")], &[]);
    let receives = post(&pair.b, 20);
    let send = pair.ab.msg_send(b"one of them".to_vec());
    pair.until(|| send.is_done());
    pair.settle();
    drop(receives);
    let Pair { a, b, ab, ba, .. } = pair;
    drop((b, ba));
    for _ in 0..10 {
        drop(ab.msg_send(vec![7; 100]));
        a.progress();
    }
}

#[test]
fn unsupported_mode_is_rejected() {
    let two = worker(&[("UCX_ZCOPY_RECV", "y"), ("SOFTEFA_DEVICES", "2"), ("UCX_NET_DEVICES", "all")]);
    assert!(two.unwrap_err().to_string().contains("one NIC and no other transport, not 2"));
    let none = worker(&[("UCX_ZCOPY_RECV", "y"), ("UCX_TLS", "posix")]);
    assert!(none.unwrap_err().to_string().contains("no receives of the program's own memory"));
}

on! {
    [messages_land_in_receives_directly packets_deliver_sender_and_data zero_copy_worker_sends_long_messages_and_rma receipt_follows_the_receive unsupported_receives_are_rejected short_receive_has_its_own_error undelivered_messages_are_bounded closing_the_endpoint_to_self_affects_no_other worker_ends_with_posted_receives]
    plain: "plain",
    shared: "shared",
}
