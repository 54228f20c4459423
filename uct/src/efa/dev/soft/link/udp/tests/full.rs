//! A NIC one of whose sockets takes nothing.

use super::*;

/// The data channel's socket has no room: acknowledgements and responses go all the same, and so do short
/// messages. The rest goes when there is room again.
#[test]
fn short_messages_do_not_wait_for_a_full_data_channel() {
    // A NIC that no other test has.
    let own = [("SOFTEFA_UDP_MTU", "1500"), ("SOFTEFA_UDP_TIMEOUT", "8s")];
    let (a, b) = pair(&own);
    let (to, back) = (a.to(&b), b.to(&a));
    let link = &a.dev.link().udp().unwrap().0;
    let write = |a: &Side, b: &Side| {
        a.qp.write(&to, 1, a.sge(0, 1 << 20), b.mr.addr() as u64, b.mr.rkey(), None).unwrap();
    };
    let window = || {
        let nic = link.nic();
        let ep = nic.module.find(b.dev.gid().iid());
        ep.and_then(|ep| nic.module.congestion_window(ep)).unwrap_or(0)
    };
    let start = Instant::now();
    while window() < 200 {
        write(&a, &b);
        assert_eq!(status(&a, &b), DevStatus::Ok);
        assert!(start.elapsed() < PATIENCE);
    }
    link.nic().socket.full.set([false, true]);
    write(&a, &b);
    let before = counter(&a, "priority sent");
    for n in 0..20 {
        a.qp.recv(n, a.sge(2 << 20, 100)).unwrap();
        b.qp.recv(n, b.sge(2 << 20, 100)).unwrap();
        b.qp.send_inline(&back, n, b"to the full one", None).unwrap();
        a.qp.send_inline(&to, n, b"from the full one", None).unwrap();
        let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
        let start = Instant::now();
        while at_a.len() + at_b.len() < 4 {
            at_a.extend(a.poll());
            at_b.extend(b.poll());
            assert!(start.elapsed() < PATIENCE, "{n}: {at_a:?} {at_b:?} {:?}", link.nic().module.stats());
        }
        assert!(at_a.iter().chain(&at_b).all(|cqe| (cqe.wr_id, cqe.status) == (n, DevStatus::Ok)));
    }
    // A response may ride in a message that goes the same way.
    assert!(counter(&a, "priority sent") >= before + 20);
    link.nic().socket.full.set([false; 2]);
    assert_eq!(wait(&a, &b, 0).0.wr_id, 1);
}
