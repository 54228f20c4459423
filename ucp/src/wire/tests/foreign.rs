//! Packets that other implementations send and this one does not, which must parse.

use super::super::ctl::Eor;
use super::super::rtr::Rtr;
use super::super::*;
use super::ADDR;
use super::golden::{CONNID, IOV_HEX, RAW, from_hex};

fn opts(packet: &str) -> Opts {
    let packet = from_hex(packet);
    *parse(&packet).expect("accepted").opts().expect("a REQ packet")
}

#[test]
fn raw_address_of_32_bytes() {
    let addr = "fe80000000000000 021122fffe334455 0201 0000 0d0c0b7a 0000000000000000";
    assert_eq!(opts(&format!("40040500 04030201 20000000 {addr} 6869")), Opts::raw_addr(ADDR));
}

// [M1.9]
#[test]
fn raw_address_with_garbage() {
    let addr = "fe80000000000000 021122fffe334455 0201 ffff 0d0c0b7a ffffffffffffffff";
    assert_eq!(opts(&format!("40040500 04030201 24000000 {addr} deadbeef 6869")), Opts::raw_addr(ADDR));
}

// [M1.8]
#[test]
fn raw_address_and_connid_together() {
    let opts = opts(&format!("40040580 04030201 {RAW}\n 01000000"));
    assert_eq!((opts.raw_addr, opts.connid), (Some(ADDR), Some(1)));
    assert_eq!(opts.sender_connid(), Some(1));
}

// [M1.10]
#[test]
fn options_stand_in_order_without_gaps() {
    let (addr, data, connid) = (Some(ADDR), Some(0x1122_3344_5566_7788), Some(CONNID));
    for has in 0..8 {
        let pick = |bit: u32| has >> bit & 1 == 1;
        let wanted = Opts {
            raw_addr: addr.filter(|_| pick(0)),
            cq_data: data.filter(|_| pick(1)),
            connid: connid.filter(|_| pick(2)),
            ..Opts::NONE
        };
        let hex = |on: bool, text: &str| if on { text.to_owned() } else { String::new() };
        let (data, connid) = ("8877665544332211", CONNID.to_le_bytes().map(|b| format!("{b:02x}")).concat());
        let flags = 0x0004 | u16::from(pick(0)) | u16::from(pick(1)) << 1 | u16::from(pick(2)) << 15;
        let flags = flags.to_le_bytes().map(|b| format!("{b:02x}")).concat();
        let all = [hex(pick(0), RAW), hex(pick(1), data), hex(pick(2), &connid)].join("\n");
        let packet = from_hex(&format!("4004{flags} 04030201 {all}\n 6869"));
        let Ok(Packet::Rtm(rtm)) = parse(&packet) else { panic!("rejected") };
        assert_eq!((rtm.opts, rtm.payload), (wanted, &b"hi"[..]), "{has:03b}");
        let mut written = [0; 128];
        let mut at = 8 + wanted.wire_len();
        assert_eq!(wanted.write(&mut written, 8), at);
        assert_eq!(written[8..at], packet[8..at]);
        at += 2;
        assert_eq!(at, packet.len());
    }
    let whole = Handshake {
        host_id: Some(2),
        user_recv_qp: Some(UserRecvQp { qpn: 4, qkey: 5 }),
        hmem_p2p: Some(true),
        ..Handshake::new(Features::empty(), 1, 3)
    };
    let mut packet = [0; 64];
    let len = whole.write(&mut packet);
    let words: Vec<u64> =
        packet[16..len].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    assert_eq!(words, [1, 2, 3, 5 << 32 | 4, 1]);
    // An unknown option behind them changes nothing.
    packet[2] |= 0x10;
    assert_eq!(parse(&packet[..len + 8]), Ok(Packet::Handshake(whole)));
}

// [M1.7]
#[test]
fn class_flags_missing_and_unknown_flags_there() {
    let packet = from_hex("40044010 04030201 6869");
    let Ok(Packet::Rtm(rtm)) = parse(&packet) else { panic!("rejected") };
    assert_eq!((rtm.msg_id, rtm.payload, rtm.flags.bits()), (0x0102_0304, &b"hi"[..], 0x1040));
}

#[test]
fn eor_of_12_bytes() {
    let eor = Eor { send_id: 1, recv_id: 2, connid: None };
    assert_eq!(parse(&from_hex("07040000 01000000 02000000")), Ok(Packet::Eor(eor)));
    assert!(parse(&from_hex("07040080 01000000 02000000")).is_err());
}

#[test]
fn multi_use_word_without_the_flag_is_no_connid() {
    let packet = from_hex("0a040000 01000000 02000000 ffffffff");
    assert_eq!(parse(&packet).expect("accepted").sender_connid(), None);
}

// [M3.3]
#[test]
fn handshake_of_many_words() {
    let words = "0100000000000000 ".repeat(6);
    let packet = from_hex(&format!("09040080 09000000 {words} 0d0c0b7a 00000000"));
    let Ok(Packet::Handshake(shake)) = parse(&packet) else { panic!("rejected") };
    assert_eq!((shake.nwords, shake.extra, shake.connid), (4, [1; 4], Some(CONNID)));
}

#[test]
fn bytes_behind_a_segment_are_ignored() {
    let packet = from_hex("04040000 01000000 0200000000000000 0000000000000000 68690000");
    assert_eq!(parse(&packet).expect("accepted").payload(), b"hi");
}

#[test]
fn msg_length_of_one_sided_packets_does_not_count() {
    let packet = from_hex(&format!("48040000 01000000 ffff000000000000 01000000 00000000 {IOV_HEX}"));
    assert!(matches!(parse(&packet), Ok(Packet::Rtr(Rtr { msg_length: 5, .. }))));
}

#[test]
fn unknown_atomic_keeps_its_msg_id() {
    let packet = from_hex(&format!("4a042000 04030201 01000000 63000000 64000000 00000000 {IOV_HEX}"));
    let Ok(Packet::Rta(rta, _)) = parse(&packet) else { panic!("rejected") };
    assert_eq!((rta.msg_id, rta.op(), rta.datatype()), (0x0102_0304, None, None));
}
