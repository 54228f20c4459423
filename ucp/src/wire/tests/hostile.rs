//! Broken and hostile packets: no panic, and whatever is accepted is consistent.

use super::super::table::{Assignment, TABLE};
use super::super::*;
use super::golden::{self, from_hex};
use super::{ADDR, bytes};
use proptest::prelude::*;

/// Flags we do not write again, and the class flags we do not require.
fn without_flags(mut packet: Packet<'_>) -> Packet<'_> {
    match &mut packet {
        Packet::Rtm(rtm) => rtm.flags = ReqFlags::empty(),
        Packet::Rtw(rtw) => rtw.flags = ReqFlags::empty(),
        _ => {}
    }
    packet
}

/// Fast path and general parser agree; an accepted packet is the same when written and parsed again.
fn is_consistent(wire: &[u8]) {
    assert_eq!(parse(wire), parse::parse_general(wire));
    let Ok(packet) = parse(wire) else { return };
    assert!(packet.payload().len() < wire.len());
    assert_eq!(packet.ty().0, wire[0]);
    let again = bytes(&packet);
    let reparsed = parse(&again).expect("own packet is accepted");
    assert_eq!(without_flags(reparsed), without_flags(packet));
}

// [M1.3]
#[test]
fn cut_at_every_length() {
    for golden in golden::all() {
        let wire = golden.bytes();
        for len in 0..wire.len() {
            if let Ok(packet) = parse(&wire[..len]) {
                // A shorter packet is a packet in its own right, of a shorter message.
                assert_eq!(bytes(&packet), wire[..len], "{packet:?}");
            }
            let _ = (Print(&wire[..len]).to_string(), format!("{:#}", Print(&wire[..len])));
        }
    }
}

#[test]
fn one_byte_wrong() {
    for golden in golden::all() {
        let wire = golden.bytes();
        for at in 0..wire.len() {
            for value in [0x00, 0x01, 0x05, 0x7f, 0x80, 0xff] {
                let mut wrong = wire.clone();
                wrong[at] = value;
                is_consistent(&wrong);
                let _ = (Print(&wrong).to_string(), format!("{:#}", Print(&wrong)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn random_bytes(wire in prop::collection::vec(any::<u8>(), 0..256)) {
        is_consistent(&wire);
        let _ = Print(&wire).to_string();
    }

    #[test]
    fn random_bytes_behind_a_good_type(
        which in any::<prop::sample::Index>(),
        flags in prop_oneof![Just(0u16), Just(1), Just(2), Just(0x8000), any::<u16>()],
        small in prop::collection::vec(0..6u8, 24),
        mut wire in prop::collection::vec(any::<u8>(), 0..256),
        sparse in any::<bool>(),
    ) {
        let types: Vec<u8> = TABLE.iter().filter(|info| info.assignment == Assignment::InUse).map(|info| info.ty.0).collect();
        if sparse {
            // Small numbers where counts and lengths are make deeper paths likely.
            for (at, byte) in wire.iter_mut().enumerate().skip(4).take(24) {
                *byte = if at % 4 == 0 { small[at - 4] } else { 0 };
            }
        }
        let mut head = vec![*which.get(&types), VERSION];
        head.extend(flags.to_le_bytes());
        let len = wire.len().min(head.len());
        wire[..len].copy_from_slice(&head[..len]);
        is_consistent(&wire);
        let _ = format!("{:#}", Print(&wire));
    }
}

fn reject(hex: &str) -> ParseError {
    parse(&from_hex(hex)).expect_err("rejected")
}

// [M1.2]
#[test]
fn types_not_in_use_are_rejected() {
    for info in &TABLE {
        let mut wire = [0; 128];
        wire[..2].copy_from_slice(&[info.ty.0, VERSION]);
        let want = match info.assignment {
            Assignment::InUse => continue,
            Assignment::NeverSent => ParseError::NeverSent(info.ty),
            Assignment::Reserved => ParseError::ReservedType(info.ty),
            Assignment::Unassigned => ParseError::UnknownType(info.ty.0),
        };
        assert_eq!(parse(&wire), Err(want));
    }
    let count = |travel| TABLE.iter().filter(|info| info.assignment == travel).count();
    assert_eq!(
        (count(Assignment::InUse), count(Assignment::NeverSent), count(Assignment::Reserved)),
        (36, 4, 5)
    );
}

// [M1.1]
#[test]
fn versions() {
    assert_eq!(reject("40 03 0400 00000000"), ParseError::Version(3));
    assert_eq!(reject("40 05 0400 00000000"), ParseError::Version(5));
    assert_eq!(parse(&[]), Err(ParseError::Truncated { section: Section::Base, need: 4, have: 0 }));
    assert_eq!(parse(&[64, 4, 0]), Err(ParseError::Truncated { section: Section::Base, need: 4, have: 3 }));
}

// [M1.4]
#[test]
fn too_many_iovs() {
    let room = "00".repeat(24 * 6);
    for count in [5, 6, 0x100, 0x0100_0000, u32::MAX] {
        let count_hex: String = count.to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let rma = ParseError::IovCount { section: Section::RmaIov, count };
        let read = ParseError::IovCount { section: Section::ReadIov, count };
        let (word, long) = ("00000000", "0000000000000000");
        for ty in ["46", "8b"] {
            assert_eq!(reject(&format!("{ty}040000 {count_hex} {room}")), rma);
        }
        for ty in ["47", "8c", "82", "48", "49"] {
            assert_eq!(reject(&format!("{ty}040000 {count_hex} {long} {word} {word} {room}")), rma);
        }
        for ty in ["4a", "4b", "4c", "8d"] {
            assert_eq!(reject(&format!("{ty}042000 {word} {count_hex} {word} {word} {word} {room}")), rma);
        }
        for ty in ["80", "81", "91", "92", "82"] {
            assert_eq!(reject(&format!("{ty}040400 {word} {long} {word} {count_hex} {room}")), read);
        }
    }
    assert_eq!(Iovs::try_from(&[RmaIov::default(); 5][..]), Err(TooManyIovs(5)));
}

// [M1.5]
#[test]
fn inconsistent_lengths_are_rejected() {
    let range = |offset, len, total| ParseError::Range { offset, len, total };
    // Medium: the segment ends behind the message; its offset wraps.
    let medium = |offset: &str| reject(&format!("42040400 00000000 0a00000000000000 {offset} 6869"));
    assert_eq!(medium("0900000000000000"), range(9, 2, 10));
    assert_eq!(medium("ffffffffffffffff"), range(u64::MAX, 2, 10));
    // Long-CTS: more data than message.
    assert_eq!(reject("44040400 00000000 0100000000000000 00000000 00000000 6869"), range(0, 2, 1));
    // Runt: longer than the message; the segment longer than the runt.
    let runt =
        |lens: &str| reject(&format!("91040400 00000000 0a00000000000000 00000000 00000000 {lens} 6869"));
    assert_eq!(runt("0000000000000000 0b00000000000000"), range(0, 11, 10));
    assert_eq!(runt("0700000000000000 0800000000000000"), range(7, 2, 8));
    // Segments longer than the packet, and beyond 64 bits.
    let length = |claimed, have| ParseError::Length { claimed, have };
    assert_eq!(reject("04040000 00000000 0300000000000000 0000000000000000 6869"), length(3, 2));
    assert_eq!(reject("04040000 00000000 ffffffffffffffff 0000000000000000 6869"), length(u64::MAX, 2));
    assert_eq!(
        reject("04040000 00000000 0200000000000000 ffffffffffffffff 6869"),
        range(u64::MAX, 2, u64::MAX)
    );
    assert_eq!(reject("05040000 00000000 00000000 00000000 0300000000000000 6869"), length(3, 2));
    assert_eq!(reject("08040000 00000000 00000000 00000000 0300000000000000 6869"), length(3, 2));
    // The last byte of the message is still in it.
    for fits in [
        "42040400 00000000 0a00000000000000 0800000000000000 6869",
        "44040400 00000000 0200000000000000 00000000 00000000 6869",
        "91040400 00000000 0a00000000000000 00000000 00000000 0800000000000000 0a00000000000000 6869",
    ] {
        assert_eq!(parse(&from_hex(fits)).map(|packet| packet.payload()), Ok(&b"hi"[..]), "{fits}");
    }
    // Eager write: payload and iovs differ; the sum of the iovs wraps.
    let iov = |len: &str| format!("0000000000000000 {len} 0000000000000000");
    let three = iov("0300000000000000");
    assert_eq!(reject(&format!("46040000 01000000 {three} 6869")), length(3, 2));
    assert_eq!(reject(&format!("46040000 01000000 {three} 68696a6b")), length(3, 4));
    let long =
        |payload: &str| format!("47040000 01000000 0300000000000000 00000000 00000000 {three} {payload}");
    assert_eq!(parse(&from_hex(&long("68696a"))).map(|packet| packet.payload().len()), Ok(3));
    assert_eq!(reject(&long("68696a6b")), range(0, 4, 3));
    let huge = iov("ffffffffffffffff");
    assert_eq!(reject(&format!("46040000 02000000 {huge} {three} 6869")), ParseError::IovTotal);
}

#[test]
fn inconsistent_options_are_rejected() {
    let addr = "00".repeat(32);
    assert_eq!(reject(&format!("40040500 00000000 1f000000 {addr}")), ParseError::AddrLen(31));
    assert_eq!(reject(&format!("40040500 00000000 00000000 {addr}")), ParseError::AddrLen(0));
    let short = |section, need, have| ParseError::Truncated { section, need, have };
    assert_eq!(reject(&format!("40040500 00000000 24000000 {addr} 0000")), short(Section::RawAddr, 4, 2));
    let most = u64::from(u32::MAX) - 32;
    assert_eq!(reject(&format!("40040500 00000000 ffffffff {addr}")), short(Section::RawAddr, most, 0));
    assert_eq!(reject("40040600 00000000 00000000000000"), short(Section::CqData, 8, 7));
    assert_eq!(reject("40040480 00000000 000000"), short(Section::Connid, 4, 3));
    let mut long = bytes(&parse(&golden::all()[0].bytes()).expect("golden"));
    long[8] = 0x26; // an address of 38 bytes takes the two of the payload
    assert_eq!(
        parse(&long).map(|packet| (packet.payload().len(), packet.opts().copied())),
        Ok((0, Some(Opts::raw_addr(ADDR))))
    );
}

#[test]
fn inconsistent_handshakes_are_rejected() {
    assert_eq!(reject("09040000 02000000"), ParseError::ExtraCount(2));
    let extra = |need, have| ParseError::Truncated { section: Section::Extra, need, have };
    assert_eq!(reject("09040000 04000000 00000000"), extra(8, 4));
    assert_eq!(reject("09040000 ffffffff 0000000000000000"), extra((u64::from(u32::MAX) - 3) * 8, 8));
    let version = ParseError::Truncated { section: Section::DeviceVersion, need: 8, have: 0 };
    assert_eq!(reject("09040200 04000000 0000000000000000"), version);
    assert_eq!(reject("0c040000 00000000 03000000 00000000 00000000"), ParseError::RefKind(3));
}
