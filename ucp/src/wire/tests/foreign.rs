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
