//! Counters by protocol, packet type and peer, and where they are reported.

use crate::common::{Pair, bytes};
use ucp::{Access, Context, EpParams, TAG_MASK_FULL};
use ucs::config::Source;

#[test]
fn counters_are_per_peer() {
    let context = crate::common::context("posix");
    let [a, b, c] = [(); 3].map(|()| context.worker().unwrap());
    let [ab, ac] = [&b, &c].map(|to| a.connect(&to.address(), EpParams::default()).unwrap());
    let ba = b.connect(&a.address(), EpParams::default()).unwrap();
    for (ep, worker, len) in [(&ab, &b, 100), (&ab, &b, 50_000), (&ac, &c, 7)] {
        let send = ep.tag_send(1, bytes(1, len));
        let recv = worker.tag_recv(1, TAG_MASK_FULL, vec![0; len]);
        crate::common::spin(&[&a, worker], &mut || send.is_done() && recv.is_done());
    }
    let (to_b, to_c) = (a.diagnostics().peer_stats(ab.peer()), a.diagnostics().peer_stats(ac.peer()));
    // The last packet may be in flight: a receive completes before it.
    crate::common::spin(&[&b], &mut || b.diagnostics().peer_stats(ba.peer()).rx_pkts >= to_b.tx_pkts);
    let of_a = b.diagnostics().peer_stats(ba.peer());
    assert_eq!((to_b.tx_bytes, to_b.rx_bytes, to_c.tx_bytes, of_a.rx_bytes), (50_100, 0, 7, 50_100));
    assert_eq!(to_c.tx_pkts, 1, "the message alone: it was not heard yet");
    assert_eq!(of_a.rx_pkts, to_b.tx_pkts);
    let all: u64 = a.stats().tx_pkts.iter().sum();
    assert_eq!(to_b.tx_pkts + to_c.tx_pkts, all, "every packet is some peer's");
}

#[test]
fn short_messages_of_many_peers_are_counted() {
    const PEERS: usize = 70;
    let context = crate::common::context("posix");
    let hub = context.worker().unwrap();
    let others: Vec<_> = (0..PEERS).map(|_| context.worker().unwrap()).collect();
    let eps: Vec<_> =
        others.iter().map(|to| hub.connect(&to.address(), EpParams::default()).unwrap()).collect();
    let back: Vec<_> =
        others.iter().map(|of| of.connect(&hub.address(), EpParams::default()).unwrap()).collect();
    // After the handshake messages take the short path.
    let rounds = 3;
    for round in 0..=rounds {
        for (n, (ep, worker)) in eps.iter().zip(&others).enumerate() {
            let (send, recv) =
                (ep.tag_send(1, vec![1; n]), worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(PEERS)));
            let answer = back[n].tag_send(2, vec![2; 2 * n]);
            let heard = hub.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(2 * PEERS));
            crate::common::spin(&[&hub, worker], &mut || {
                send.is_done() && recv.is_done() && answer.is_done() && heard.is_done()
            });
            assert_eq!((recv.wait().1.len(), heard.wait().1.len()), (n, 2 * n), "round {round}");
        }
    }
    for (n, (ep, worker)) in eps.iter().zip(&others).enumerate() {
        let (here, there) =
            (hub.diagnostics().peer_stats(ep.peer()), worker.diagnostics().peer_stats(back[n].peer()));
        let bytes = (rounds + 1) * n as u64;
        assert_eq!((here.tx_bytes, here.rx_bytes), (bytes, 2 * bytes), "peer {n}");
        assert_eq!((there.rx_bytes, there.tx_bytes), (bytes, 2 * bytes), "peer {n}");
        assert_eq!((here.tx_pkts, here.rx_pkts), (there.rx_pkts, there.tx_pkts), "peer {n}");
    }
    let stats = hub.stats();
    let of_peers: Vec<_> = eps.iter().map(|ep| hub.diagnostics().peer_stats(ep.peer())).collect();
    assert_eq!(stats.tx_pkts.iter().sum::<u64>(), of_peers.iter().map(|its| its.tx_pkts).sum());
    assert_eq!(stats.rx_pkts.iter().sum::<u64>(), of_peers.iter().map(|its| its.rx_pkts).sum());
    let all = (rounds + 1) * (PEERS * (PEERS - 1) / 2) as u64;
    let (sent, received) = (stats.sent[0], stats.received[0]);
    assert_eq!((sent.msgs, sent.bytes), ((rounds + 1) * PEERS as u64, all));
    assert_eq!((received.msgs, received.bytes), ((rounds + 1) * PEERS as u64, 2 * all));
}

#[test]
fn puts_and_gets_are_counted_at_both_ends() {
    let pair = Pair::on("soft");
    let mem = pair.b.mem_alloc(100_000, Access::all()).unwrap();
    let rkey = ucp::Rkey::from_key(mem.key());
    let put = pair.ab.put(bytes(1, 30_000), mem.addr(), &rkey);
    let get = pair.ab.get(vec![0; 5_000], mem.addr(), &rkey);
    let flush = pair.ab.flush();
    pair.until(|| put.is_done() && get.is_done() && flush.is_done());
    let (here, there) =
        (pair.a.diagnostics().peer_stats(pair.ab.peer()), pair.b.diagnostics().peer_stats(pair.ba.peer()));
    assert_eq!((here.tx_bytes, here.rx_bytes), (30_000, 5_000));
    assert_eq!((there.rx_bytes, there.tx_bytes), (30_000, 5_000));
}

#[test]
fn report_is_written_when_the_worker_ends() {
    let dir = std::env::temp_dir().join(format!("ucp-stats-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let dest = format!("file:{}/%p.txt", dir.display());
    let source = Source::empty().with("UCX_TLS", "self").with("UCX_STATS_DEST", &dest);
    let worker = Context::configured(source.clone()).unwrap().worker().unwrap();
    let ep = worker.connect(&worker.address(), EpParams::default()).unwrap();
    ep.tag_send_blocking(1, b"12345").unwrap();
    worker.tag_recv_blocking(1, TAG_MASK_FULL, &mut [0; 5]).unwrap();
    let by_call = worker.report().to_string();
    let path = dir.join(format!("{}.txt", std::process::id()));
    assert!(!path.exists(), "not yet");
    drop((ep, worker));
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, by_call, "nothing happened in between");
    for line in [
        "sent eager: 1 messages, 5 bytes",
        "received eager: 1 messages, 5 bytes",
        "tx EAGER_TAGRTM: 1 packets",
        "tx HANDSHAKE: 1 packets",
        "peer 0 connid ",
    ] {
        assert!(text.contains(line), "{line} in:\n{text}");
    }
    assert!(!text.contains("longcts"), "zeros are left out:\n{text}");
    std::fs::remove_dir_all(&dir).unwrap();

    let silent = source.with("UCX_STATS_TRIGGER", "signal:USR1");
    drop(Context::configured(silent).unwrap().worker().unwrap());
    assert!(!dir.exists(), "only on a signal");
}

#[test]
fn unsupported_stats_settings_are_reported() {
    let open = |key: &str, value: &str| {
        let source =
            Source::empty().with("UCX_TLS", "self").with("UCX_STATS_DEST", "stderr").with(key, value);
        Context::configured(source).unwrap().worker().unwrap_err().to_string()
    };
    assert!(open("UCX_STATS_DEST", "nowhere").contains("stdout, stderr or file:PATH"));
    assert!(open("UCX_STATS_TRIGGER", "signal:KILL").contains("USR1 or USR2"));
}

#[test]
fn the_link_to_other_hosts_is_in_the_report() {
    // Two devices: a device reaches itself in memory.
    let [a, b] = ["softefa0", "softefa1"].map(|device| {
        let source =
            Source::empty().with("UCX_TLS", "efa").with("SOFTEFA_UDP", "all").with("SOFTEFA_DEVICES", "2");
        let context = Context::configured(source.with("UCX_NET_DEVICES", device)).unwrap();
        context.worker().unwrap()
    });
    let ep = a.connect(&b.address(), EpParams::default()).unwrap();
    let send = ep.tag_send(1, bytes(1, 5000));
    let recv = b.tag_recv(1, TAG_MASK_FULL, vec![0; 5000]);
    crate::common::spin(&[&a, &b], &mut || send.is_done() && recv.is_done());
    // The send ended when its bytes were copied; a flush waits for the answer.
    let flushed = a.flush();
    crate::common::spin(&[&a, &b], &mut || flushed.is_done());
    let devices = a.diagnostics().device_counters();
    let (name, parts) = &devices[0];
    let udp = parts.iter().find(|part| part.part == "udp").expect("the device has a NIC");
    assert!(name.starts_with("softefa") && udp.get("sent") > 0 && udp.get("datagrams received") > 0, "{udp}");
    let report = a.report().to_string();
    assert!(report.contains(&format!("  {name} udp sent: ")), "{report}");
    assert!(report.contains("udp round trips: <"), "{report}");
}
