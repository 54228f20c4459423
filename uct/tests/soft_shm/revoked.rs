//! Copies of another process in memory whose key is removed, or through a queue pair that is destroyed: when
//! the call returns, none is under way.

use super::*;

/// Length of a copy, and of its end, where the owner looks.
const LEN: usize = 1 << 20;
const END: usize = 64 << 10;

/// Has the peer write to its memory, over and over, and takes it away in the middle, `rounds` times.
pub fn owner(source: &Source, kind: &str, how: &str, rounds: u32) {
    let side = Side::open(source, &INIT, Channel::Without);
    let memory = side.memory(kind, LEN);
    send_line(&side.dev.gid().iid().to_string());
    let (mut bad, words) = (0, read_line());
    side.to(words.parse().unwrap(), 0);
    for round in 0..rounds {
        let qp = side.dev.create_qp(&side.pd, &side.cq, &side.cq, &INIT).unwrap();
        // SAFETY: the memory is mapped as long as `memory` lives.
        let mr = unsafe { side.dev.reg_mr(&side.pd, memory.mr.addr(), LEN, Access::ALL) }.unwrap();
        memory.put(LEN - 1, &[0]);
        send_line(&format!("{} {} {}", qp.qpn(), memory.mr.addr() as u64, mr.rkey()));
        // The peer writes.
        let end = Instant::now() + TIMEOUT;
        while memory.get(LEN - 1, 1) == [0] {
            assert!(Instant::now() < end, "nothing was written");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(u64::from(round * 37 % 1000)));
        match how {
            "key" => mr.revoke(),
            _ => drop(qp),
        }
        memory.put(LEN - END, &[0x5a; END]);
        std::thread::sleep(Duration::from_millis(5));
        bad += u32::from(memory.get(LEN - END, END) != [0x5a; END]);
        assert_eq!(read_line(), "ended");
    }
    send_line(&bad.to_string());
    read_line();
}

#[test]
fn no_copy_of_a_peer_is_under_way_when_its_memory_or_queue_pair_is_gone() {
    for (kind, how) in [("file", "key"), ("file", "queue pair"), ("own", "key"), ("own", "queue pair")] {
        let side = side();
        let mut peer = Peer::start(&format!("owner {kind} {} 60", &how[..3]), &[]);
        let iid = peer.numbers()[0];
        writeln!(peer.input, "{}", side.dev.gid().iid()).unwrap();
        let local = side.memory("own", LEN);
        local.put(0, &vec![0xff; LEN]);
        for _ in 0..60 {
            let [qpn, addr, rkey] = peer.numbers()[..] else { panic!("a place") };
            let to = side.to(iid, qpn as u16);
            let ended = loop {
                side.qp.write(&to, 1, local.sge(0, LEN), addr, rkey as u32, None).unwrap();
                match side.next_cqe().status {
                    DevStatus::Ok => {}
                    status => break status,
                }
            };
            let wanted = if how == "key" { DevStatus::RemoteBadAddress } else { DevStatus::BadDestQpn };
            assert_eq!(ended, wanted, "{kind} {how}");
            writeln!(peer.input, "ended").unwrap();
        }
        assert_eq!(peer.line(), "0", "{kind} {how}: writes after the call");
    }
}
