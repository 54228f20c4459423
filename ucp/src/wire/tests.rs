//! Tests of the codec: known bytes, every packet there and back, hostile bytes, sizes, text.

mod foreign;
mod golden;
mod hostile;
mod round_trip;

use super::rtm::Delivery;
use super::*;

const ADDR: RawAddr = RawAddr {
    gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55],
    qpn: 0x0102,
    connid: 0x7a0b_0c0d,
};

fn bytes(packet: &Packet<'_>) -> Vec<u8> {
    let mut buf = vec![0xee; 512 + packet.payload().len()];
    let len = packet.write(&mut buf);
    buf.truncate(len);
    buf
}

#[test]
fn largest_eager() {
    const MTU: usize = 8928;
    let before = Opts::raw_addr(ADDR);
    let after = Opts::connid(ADDR.connid);
    for (tagged, opts, minus) in [
        (Tagged::No, before, 48),
        (Tagged::Yes, before, 56),
        (Tagged::No, after, 12),
        (Tagged::Yes, after, 20),
        (Tagged::No, Opts::NONE, 8),
    ] {
        assert_eq!(max_eager_payload(MTU, tagged, Delivery::Plain, &opts), MTU - minus);
        let with = opts.with_cq_data(1);
        assert_eq!(max_eager_payload(MTU, tagged, Delivery::Plain, &with), MTU - minus - 8);
        assert_eq!(max_eager_payload(minus - 1, tagged, Delivery::Plain, &opts), 0);
    }
    assert_eq!(max_eager_payload(MTU, Tagged::No, Delivery::Complete, &after), MTU - 20);
    assert_eq!(max_eager_payload(MTU, Tagged::Yes, Delivery::Complete, &after), MTU - 28);
    assert_eq!(max_payload(MTU, PktType::EAGER_RTW, 1, 0, &before), MTU - 72);
    assert_eq!(max_payload(MTU, PktType::EAGER_RTW, 1, 0, &after), MTU - 36);
    assert_eq!(max_payload(MTU, PktType::RUNTREAD_MSGRTM, 0, 2, &after), MTU - 40 - 4 - 48);
    assert_eq!(max_payload(MTU, PktType::CTSDATA, 0, 0, &after), MTU - 24);
    assert_eq!(ctl::CtsData::header_len(None), 24);
    assert_eq!(ctl::CtsData::header_len(Some(1)), 32);
}

#[test]
fn header_len_is_exact() {
    for golden in golden::all() {
        let packet = golden.bytes();
        let ty = PktType(packet[0]);
        let opts = golden.packet.opts().copied().unwrap_or_default();
        let (rma, read) = match golden.packet {
            Packet::Rtm(rtm) => match rtm.body {
                rtm::RtmBody::LongRead { read_iov, .. } | rtm::RtmBody::RuntRead { read_iov, .. } => {
                    (0, read_iov.wire_len())
                }
                _ => (0, 0),
            },
            Packet::Rtw(rtw) => match rtw.body {
                rtw::RtwBody::LongRead { read_iov, .. } => (rtw.rma_iov.count(), read_iov.wire_len()),
                _ => (rtw.rma_iov.count(), 0),
            },
            Packet::Rtr(rtr) => (rtr.rma_iov.count(), 0),
            Packet::Rta(rta, _) => (rta.rma_iov.count(), 0),
            Packet::Handshake(shake) => {
                assert_eq!(shake.wire_len(), packet.len());
                continue;
            }
            Packet::CtsData(hdr, payload) => {
                assert_eq!(ctl::CtsData::header_len(hdr.connid) + payload.len(), packet.len());
                continue;
            }
            _ => (0, 0),
        };
        let payload = golden.packet.payload().len();
        assert_eq!(header_len(ty, rma, &opts) + read + payload, packet.len(), "{ty}");
    }
}

#[test]
fn table_agrees_with_packets() {
    use rtm::RtmBody::{LongRead, RuntRead};
    use table::PktFamily;
    let mut carries = [false; 256];
    for golden in golden::all() {
        let info = table::info(PktType(golden.bytes()[0]));
        let (class, tagged, rma_iov, read_iov, dc) = match golden.packet {
            Packet::Rtm(rtm) => {
                let reads = matches!(rtm.body, LongRead { .. } | RuntRead { .. });
                (PktFamily::Rtm, rtm.tag.is_some(), false, reads, rtm.receipt.is_some())
            }
            Packet::Rtw(rtw) => {
                let reads = matches!(rtw.body, rtw::RtwBody::LongRead { .. });
                (PktFamily::Rtw, false, true, reads, rtw.receipt.is_some())
            }
            Packet::Rtr(_) => (PktFamily::Rtr, false, true, false, false),
            Packet::Rta(rta, _) => {
                (PktFamily::Rta, false, true, false, matches!(rta.kind, rta::RtaKind::DcWrite { .. }))
            }
            _ => (PktFamily::Control, false, false, false, false),
        };
        assert_eq!((info.family, info.tagged, info.rma_iov), (class, tagged, rma_iov), "{}", info.ty);
        assert_eq!((info.read_iov, info.dc), (read_iov, dc), "{}", info.ty);
        assert_eq!(golden.packet.msg_id().is_some(), class.has_msg_id(), "{}", info.ty);
        assert_eq!(golden.packet.opts().is_some(), class.is_req(), "{}", info.ty);
        carries[usize::from(info.ty.0)] |= !golden.packet.payload().is_empty();
    }
    for info in table::TABLE.iter().filter(|info| info.assignment == table::Assignment::InUse) {
        assert_eq!(info.payload, carries[usize::from(info.ty.0)], "{}", info.ty);
    }
}

#[test]
fn features_needed() {
    let needs = |ty| table::info(ty).needs.bits();
    assert_eq!(needs(PktType::EAGER_TAGRTM), 0);
    assert_eq!(needs(PktType::HANDSHAKE), 0);
    assert_eq!(needs(PktType::LONGREAD_MSGRTM), 1);
    assert_eq!(needs(PktType::LONGREAD_RTW), 1);
    assert_eq!(needs(PktType::DC_EAGER_MSGRTM), 1 << 1);
    assert_eq!(needs(PktType::DC_WRITE_RTA), 1 << 1);
    assert_eq!(needs(PktType::RECEIPT), 1 << 1);
    assert_eq!(needs(PktType::RUNTREAD_TAGRTM), 1 | 1 << 4);
    assert_eq!(needs(PktType::READ_NACK), 1 << 6);
    assert_eq!(needs(PktType::PEER_ERROR), 1 << 9);
}

#[test]
fn text_names_every_field() {
    for golden in golden::all() {
        let packet = golden.bytes();
        let info = table::info(PktType(packet[0]));
        let (line, lines) = (format!("{}", Print(&packet)), format!("{:#}", Print(&packet)));
        assert!(line.starts_with(info.name) && lines.starts_with(info.name), "{line}");
        assert!(!line.contains('\n') && !line.contains("rejected"), "{line}");
        for field in info.all_fields() {
            assert!(line.contains(&format!(" {}=", field.name)), "{line}");
            assert!(lines.contains(field.meaning), "{lines}");
        }
    }
}

#[test]
fn text_of_one_packet() {
    let opts = Opts::connid(0xc0ffee).with_cq_data(0x55);
    let mut packet = [0; 64];
    let at = rtm::Eager { msg_id: 7, tag: Some(0x1122), receipt: None, opts }.write(&mut packet);
    assert_eq!(
        Print(&packet[..at + 5]).to_string(),
        "EAGER_TAGRTM flags=CQ_DATA|MSG|TAGGED|CONNID msg_id=7 tag=0x1122 cq_data=0x55 connid=0xc0ffee payload=5"
    );
    assert_eq!(
        Print(&packet[..12]).to_string(),
        "EAGER_TAGRTM flags=CQ_DATA|MSG|TAGGED|CONNID msg_id=7 \
         rejected=\"fixed header needs 16 bytes, 12 are left\""
    );
    assert_eq!(
        format!("{:#}", Print(&packet[..at])),
        "EAGER_TAGRTM, 28 bytes
  @0   type            65
  @1   version         4
  @2   flags           CQ_DATA|MSG|TAGGED|CONNID
  @4   msg_id          7                   place in the sender's order
  @8   tag             0x1122              tag of the message
       cq_data         0x55
       connid          0xc0ffee"
    );
}

#[test]
fn numbers_of_atomics() {
    assert_eq!(u32::from(AtomicOp::Write), 11);
    assert_eq!(u32::from(AtomicOp::MaskSwap), 18);
    assert_eq!(AtomicOp::try_from(12), Ok(AtomicOp::CompareSwap));
    assert!(AtomicOp::try_from(20).is_err() && Datatype::try_from(20).is_err());
    assert_eq!(u32::from(Datatype::Float), 8);
    assert_eq!(u32::from(Datatype::LongDoubleComplex), 13);
    let sizes: Vec<usize> =
        (0..20).map(|number| Datatype::try_from(number).map_or(0, Datatype::size)).collect();
    assert_eq!(sizes, [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32, 16, 16, 2, 2, 1, 1]);
}
