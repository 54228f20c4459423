//! Sessions with peers that come and go.

use super::*;

/// Polls a device until it has so many sessions.
fn until_sessions(side: &Side, wanted: usize) {
    let start = Instant::now();
    while side.dev.link().udp().unwrap().sessions() != wanted {
        drop(side.poll());
        let has = side.dev.link().udp().unwrap().sessions();
        assert!(start.elapsed() < PATIENCE, "{has} sessions, not {wanted}");
    }
}

#[test]
fn sessions_end_with_their_peers_and_begin_anew() {
    let secret = SecretFile::new("the-secret-of-peers-that-go");
    let more = [("SOFTEFA_SECRET_FILE", secret.path())];
    let (a, mut b) = pair(&more);
    for round in 0..3 {
        b.qp.recv(1, b.sge(0, 100)).unwrap();
        a.qp.send(&a.to(&b), 2, &[a.sge(0, 100)], None).unwrap();
        assert_eq!(wait(&a, &b, 1).0.status, DevStatus::Ok, "round {round}");
        assert!(a.dev.link().udp().unwrap().sessions() > 0);
        // The last queue pair says goodbye.
        drop(b.qp);
        until_sessions(&a, 0);
        b = Side::open("softefa1", &more, QpKind::Srd);
    }
}

#[test]
fn a_peer_that_never_answers_leaves_no_handshake() {
    let secret = SecretFile::new("the-secret-of-nobody-there");
    let a = Side::open("softefa0", &[("SOFTEFA_SECRET_FILE", secret.path())], QpKind::Srd);
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let gid = crate::efa::dev::Gid::link_local(0x0a << 56 | u64::from(gone) << 32 | 0x7f00_0001);
    let to = Dest { ah: a.dev.create_ah(&a.pd, gid).unwrap(), qpn: 5, qkey: QKEY };
    a.qp.send_inline(&to, 1, b"x", None).unwrap();
    let start = Instant::now();
    while a.poll().is_empty() {
        assert!(start.elapsed() < PATIENCE);
    }
    until_sessions(&a, 0);
}

/// The first request to connect is lost where there is no session yet. The one that follows the session is as
/// long as the interface allows, so that nothing searches for what the path carries.
#[test]
fn the_first_datagram_of_a_session_tries_the_whole_path() {
    // A machine that pauses lets a second, short request overtake the long one.
    let is_whole = (0..10).any(|n| {
        let secret = SecretFile::new(&format!("the-secret-of-a-long-first-datagram-{n}"));
        let (a, b) = pair(&[("SOFTEFA_SECRET_FILE", secret.path())]);
        b.qp.recv(1, b.sge(0, 8928)).unwrap();
        a.qp.send(&a.to(&b), 2, &[a.sge(0, 8928)], None).unwrap();
        assert_eq!(wait(&a, &b, 1).0.status, DevStatus::Ok);
        [&a, &b].iter().all(|side| {
            let (stats, _) = side.dev.link().udp().unwrap().stats();
            (stats.path_probes, stats.short_paths) == (0, 0)
        })
    });
    assert!(is_whole, "the path is searched each time");
}
