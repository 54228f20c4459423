//! Messages from memory that the transport allocated, on lanes that read only such memory: read directly once
//! its owner has said where it is, and sent in packets before; other memory always is sent in packets.

use crate::common::{Pair, bytes};
use ucp::rdm::Protocol;
use ucp::select::{DeliveryComplete, Kind, MemKind, Verdict};
use ucp::{Access, Mem, OpStatus, Rkey, RmaMethod, SendParams, TAG_MASK_FULL};

const LEN: usize = 300_000;

fn send(pair: &Pair, mem: &Mem, (from, len): (usize, usize), params: &SendParams) -> Vec<u8> {
    assert!(from + len <= mem.len());
    let recv = match params.tag {
        Some(tag) => pair.b.tag_recv(tag, TAG_MASK_FULL, vec![0; len]),
        None => pair.b.msg_recv(vec![0; len]),
    };
    let at = mem.as_ptr().wrapping_add(from);
    // SAFETY: inside the memory, which nobody writes until both sides are complete.
    let id = match unsafe { pair.ab.send_raw(at, len, params) }.unwrap() {
        OpStatus::Done(()) => None,
        OpStatus::InProgress(id) => Some(id),
    };
    pair.until(|| recv.is_done() && id.is_none_or(|id| pair.a.test(id).is_some()));
    recv.wait().1
}

fn sent(pair: &Pair, row: Protocol) -> u64 {
    pair.a.stats().sent(row).msgs
}

fn filled(pair: &Pair, access: Access) -> (Mem, Vec<u8>) {
    let (mem, all) = (pair.a.mem_alloc(LEN, access).unwrap(), bytes(7, LEN));
    mem.write(0, &all);
    (mem, all)
}

fn transport_memory_is_read_directly(tls: &str) {
    let pair = Pair::on(tls);
    let (mem, all) = filled(&pair, Access::READ);
    let kinds = [
        SendParams { tag: Some(3), ..SendParams::default() },
        SendParams::default(),
        SendParams { tag: Some(4), sync: DeliveryComplete::Yes, cq_data: Some(5), ..SendParams::default() },
    ];
    // The first ones precede the handshake and the reply of the owner's fd server.
    while sent(&pair, Protocol::LongRead) == 0 {
        assert_eq!(send(&pair, &mem, (0, LEN), &kinds[0]), all);
    }
    let before = (sent(&pair, Protocol::LongRead), pair.a.stats().rare.nacks_received);
    let ranges = [(0, LEN), (1, LEN - 1), (4097, 100_000), (LEN - 40_000, 40_000)];
    for (n, (from, len)) in ranges.into_iter().enumerate() {
        for params in &kinds {
            assert_eq!(send(&pair, &mem, (from, len), params), all[from..from + len], "{n}");
        }
    }
    let reads = (ranges.len() * kinds.len()) as u64;
    assert_eq!(
        (sent(&pair, Protocol::LongRead), pair.a.stats().rare.nacks_received),
        (before.0 + reads, before.1)
    );
    // The message has the bytes at the time of the send.
    mem.write(10, &[9; 20]);
    assert_eq!(send(&pair, &mem, (10, 50_000), &kinds[0])[..20], [9; 20]);
}

fn other_memory_is_sent_in_packets(tls: &str) {
    let pair = Pair::on(tls);
    let params = SendParams { tag: Some(3), ..SendParams::default() };
    // Without the right to read it, peers do not read it for messages either.
    let (mem, all) = filled(&pair, Access::WRITE);
    for _ in 0..5 {
        assert_eq!(send(&pair, &mem, (0, LEN), &params), all);
        let (send, recv) =
            (pair.ab.tag_send(1, bytes(1, LEN)), pair.b.tag_recv(1, TAG_MASK_FULL, vec![0; LEN]));
        pair.until(|| send.is_done() && recv.is_done());
        assert_eq!(recv.wait().1, bytes(1, LEN));
    }
    assert_eq!((sent(&pair, Protocol::LongRead), pair.a.stats().rare.nacks_received), (0, 0));
}

#[test]
fn all_memory_is_read_within_a_thread() {
    let pair = Pair::on("self");
    let of = |len: usize, tag| {
        let (send, recv) =
            (pair.ab.tag_send(tag, bytes(tag, len)), pair.b.tag_recv(tag, TAG_MASK_FULL, vec![0; len]));
        pair.until(|| send.is_done() && recv.is_done());
        assert!(recv.wait().1 == bytes(tag, len), "{len}");
    };
    // The first one precedes the handshake.
    of(LEN, 1);
    let before = sent(&pair, Protocol::LongRead);
    let lens = [20_000, 65_536, 65_537, LEN];
    for (n, len) in lens.into_iter().enumerate() {
        of(len, 2 + n as u64);
    }
    let sent_by = |row| sent(&pair, row);
    assert_eq!((sent_by(Protocol::LongRead), sent_by(Protocol::Medium)), (before + lens.len() as u64, 0));
    assert_eq!(pair.a.stats().rare.nacks_received, 0);
}

fn reused_addresses_are_read_correctly(tls: &str) {
    let pair = Pair::on(tls);
    let params = SendParams { tag: Some(3), ..SendParams::default() };
    for round in 0..6 {
        let mem = pair.a.mem_alloc(LEN, Access::all()).unwrap();
        let reads = sent(&pair, Protocol::LongRead);
        while sent(&pair, Protocol::LongRead) == reads {
            let now = bytes(round, LEN);
            mem.write(0, &now);
            assert_eq!(send(&pair, &mem, (0, LEN), &params), now);
        }
    }
}

fn explain_covers_both_kinds_of_memory(tls: &str) {
    let pair = Pair::on(tls);
    let taken = |mem| {
        let all = pair.ab.protocols().explain_from(mem, Kind::Tagged, DeliveryComplete::No, LEN);
        all.into_iter().find(|one| one.verdict == Verdict::Taken).unwrap().protocol
    };
    assert_eq!((taken(MemKind::Host), taken(MemKind::Allocated)), (Protocol::LongCts, Protocol::LongRead));
    for mem in [MemKind::Host, MemKind::Allocated] {
        assert_eq!(
            pair.ab.protocols().table_from(mem, Kind::Tagged, DeliveryComplete::No).pick(LEN),
            taken(mem)
        );
    }
    let why = pair.ab.protocols().explain(Kind::Tagged, DeliveryComplete::No, LEN);
    assert_eq!(
        why.iter().find(|one| one.protocol == Protocol::LongRead).unwrap().verdict,
        Verdict::NotMapped
    );
    // Puts and gets have their own keys: such memory is mapped, other memory uses packets.
    let mem = pair.b.mem_alloc(LEN, Access::all()).unwrap();
    assert_eq!(mem.device_key("posix"), None);
    assert_eq!(
        pair.ab.protocols().rma_method(&pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap()),
        RmaMethod::Mapped
    );
    assert_eq!(pair.ab.protocols().rma_method(&Rkey::from_key(mem.key())), RmaMethod::Emulated);
}

on! {
    [transport_memory_is_read_directly other_memory_is_sent_in_packets reused_addresses_are_read_correctly
     explain_covers_both_kinds_of_memory]
    plain: "posix",
    shared: "shared posix",
}
