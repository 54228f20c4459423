//! Every packet type with all combinations of optional headers, there and back.

use super::super::ctl::*;
use super::super::handshake::UserRecvQp;
use super::super::rta::{Rta, RtaKind};
use super::super::rtm::{Rtm, RtmBody};
use super::super::rtr::{ReadKind, Rtr};
use super::super::rtw::{Rtw, RtwBody};
use super::super::*;
use super::bytes;
use proptest::option;
use proptest::prelude::*;

fn raw_addrs() -> impl Strategy<Value = RawAddr> {
    any::<([u8; 16], u16, u32)>().prop_map(|(gid, qpn, connid)| RawAddr { gid, qpn, connid })
}

fn opts() -> impl Strategy<Value = Opts> {
    (option::of(raw_addrs()), any::<Option<u64>>(), any::<Option<u32>>())
        .prop_map(|(raw_addr, cq_data, connid)| Opts { raw_addr, cq_data, connid, ..Opts::NONE })
}

/// Lengths are small enough to add up.
fn iovs() -> impl Strategy<Value = Iovs> {
    let one = (any::<u64>(), 0..=u64::MAX / 8, any::<u64>());
    prop::collection::vec(one.prop_map(|(addr, len, key)| RmaIov { addr, len, key }), 0..=MAX_IOV)
        .prop_map(|iovs| Iovs::try_from(&iovs[..]).expect("at most four"))
}

fn payloads() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

fn check(packet: Packet<'_>) -> Result<(), TestCaseError> {
    let wire = bytes(&packet);
    prop_assert_eq!(parse(&wire), Ok(packet));
    let rejected = Print(&wire).to_string().contains("rejected");
    prop_assert!(!rejected);
    Ok(())
}

fn flags(tag: Option<u64>, opts: &Opts, more: ReqFlags) -> ReqFlags {
    let tagged = if tag.is_some() { ReqFlags::TAGGED } else { ReqFlags::empty() };
    ReqFlags::MSG | tagged | opts.flags() | more
}

/// `plain` or `dc`, tagged if there is a tag.
fn rtm_type(plain: PktType, dc: PktType, tag: Option<u64>, receipt: Option<u32>) -> PktType {
    let untagged = if receipt.is_some() { dc } else { plain };
    PktType(untagged.0 + u8::from(tag.is_some()))
}

proptest! {
    #[test]
    fn messages(
        (msg_id, send_id, credit_request) in any::<(u32, u32, u32)>(),
        (tag, dc, nacked) in any::<(Option<u64>, bool, bool)>(),
        opts in opts(),
        read_iov in iovs(),
        payload in payloads(),
        (before, between, after) in (0..=u64::MAX / 8, 0..=u64::MAX / 8, 0..=u64::MAX / 8),
    ) {
        let len = payload.len() as u64;
        let seg_offset = before;
        let runt_length = seg_offset + len + between;
        let msg_length = runt_length + after;
        let receipt = dc.then_some(send_id);
        let (cause, nack) = match nacked {
            true => (Cause::ReadNack, ReqFlags::READ_NACK),
            false => (Cause::Fresh, ReqFlags::empty()),
        };
        let rtm = |plain, dc, body, payload, receipt| {
            let more = if matches!(body, RtmBody::LongCts { .. }) { nack } else { ReqFlags::empty() };
            let (ty, flags) = (rtm_type(plain, dc, tag, receipt), flags(tag, &opts, more));
            Packet::Rtm(Rtm { ty, flags, msg_id, tag, receipt, opts, body, payload })
        };
        let eager = RtmBody::Eager;
        check(rtm(PktType::EAGER_MSGRTM, PktType::DC_EAGER_MSGRTM, eager, &payload[..], receipt))?;
        let medium = RtmBody::Medium { msg_length, seg_offset };
        check(rtm(PktType::MEDIUM_MSGRTM, PktType::DC_MEDIUM_MSGRTM, medium, &payload[..], receipt))?;
        let longcts = RtmBody::LongCts { msg_length, send_id, credit_request, cause };
        check(rtm(PktType::LONGCTS_MSGRTM, PktType::DC_LONGCTS_MSGRTM, longcts, &payload[..], receipt))?;
        let longread = RtmBody::LongRead { msg_length, send_id, read_iov };
        check(rtm(PktType::LONGREAD_MSGRTM, PktType::LONGREAD_MSGRTM, longread, &[], None))?;
        let runtread = RtmBody::RuntRead { msg_length, send_id, seg_offset, runt_length, read_iov };
        check(rtm(PktType::RUNTREAD_MSGRTM, PktType::RUNTREAD_MSGRTM, runtread, &payload[..], None))?;
    }

    #[test]
    fn one_sided(
        (send_id, credit_request, recv_length, dc) in any::<(u32, u32, u32, bool)>(),
        opts in opts(),
        rma_iov in iovs(),
        read_iov in iovs(),
        payload in payloads(),
    ) {
        let flags = opts.flags();
        let receipt = dc.then_some(send_id);
        let pick = |plain, dc| if receipt.is_some() { dc } else { plain };

        // The payload of an eager write is as long as its iovs: cut it into as many pieces.
        let mut cut = rma_iov.as_slice().to_vec();
        let count = cut.len().max(1);
        cut.iter_mut().for_each(|iov| iov.len = (payload.len() / count) as u64);
        cut.iter_mut().take(1).for_each(|iov| iov.len += (payload.len() % count) as u64);
        let fits = if cut.is_empty() { &[] } else { &payload[..] };
        let exact = Iovs::try_from(&cut[..]).expect("at most four");
        let (ty, body) = (pick(PktType::EAGER_RTW, PktType::DC_EAGER_RTW), RtwBody::Eager);
        check(Packet::Rtw(Rtw { ty, flags, rma_iov: exact, receipt, opts, body, payload: fits }))?;

        let msg_length = rma_iov.total().expect("small lengths");
        let start = &payload[..payload.len().min(msg_length as usize)];
        let ty = pick(PktType::LONGCTS_RTW, PktType::DC_LONGCTS_RTW);
        let body = RtwBody::LongCts { msg_length, send_id, credit_request };
        check(Packet::Rtw(Rtw { ty, flags, rma_iov, receipt, opts, body, payload: start }))?;

        let (ty, body) = (PktType::LONGREAD_RTW, RtwBody::LongRead { msg_length, send_id, read_iov });
        check(Packet::Rtw(Rtw { ty, flags, rma_iov, receipt: None, opts, body, payload: &[] }))?;

        for kind in [ReadKind::Short, ReadKind::LongCts] {
            check(Packet::Rtr(Rtr { kind, rma_iov, msg_length, recv_id: send_id, recv_length, opts }))?;
        }
    }

    #[test]
    fn atomics(
        (msg_id, id, datatype, op) in any::<(u32, u32, u32, u32)>(),
        opts in opts(),
        rma_iov in iovs(),
        payload in payloads(),
    ) {
        for kind in [
            RtaKind::Write,
            RtaKind::Fetch { recv_id: id },
            RtaKind::Compare { recv_id: id },
            RtaKind::DcWrite { send_id: id },
        ] {
            check(Packet::Rta(Rta { kind, msg_id, rma_iov, datatype, op, opts }, &payload))?;
        }
    }

    #[test]
    fn control(
        (send_id, recv_id, msg_id, prov_errno) in any::<(u32, u32, u32, u32)>(),
        (recv_length, seg_offset, connid) in (any::<u64>(), 0..u64::MAX / 2, any::<Option<u32>>()),
        payload in payloads(),
    ) {
        let seg_length = payload.len() as u64;
        for of in [CtsFor::Send, CtsFor::Read] {
            check(Packet::Cts(Cts { of, send_id, recv_id, recv_length, connid }))?;
        }
        check(Packet::CtsData(CtsData { recv_id, seg_length, seg_offset, connid }, &payload))?;
        check(Packet::ReadRsp(ReadRsp { recv_id, send_id, seg_length, connid }, &payload))?;
        check(Packet::AtomRsp(AtomRsp { recv_id, seg_length, connid }, &payload))?;
        check(Packet::Eor(Eor { send_id, recv_id, connid }))?;
        check(Packet::Receipt(Receipt { send_id, msg_id, connid }))?;
        for not_now in [false, true] {
            check(Packet::ReadNack(ReadNack { send_id, recv_id, not_now, connid }))?;
        }
        for what in [ErrorRef::Op(send_id), ErrorRef::Msg(msg_id), ErrorRef::Skip(msg_id)] {
            check(Packet::PeerError(PeerError { what, prov_errno, connid }))?;
        }
    }

    #[test]
    fn handshakes(
        (words, nwords) in (any::<[u64; 4]>(), 0..=4u8),
        (connid, host_id, device_version) in any::<(Option<u32>, Option<u64>, Option<u32>)>(),
        (user_qp, hmem_p2p) in any::<(Option<(u32, u32)>, Option<bool>)>(),
    ) {
        let mut extra = [0; 4];
        extra[..usize::from(nwords)].copy_from_slice(&words[..usize::from(nwords)]);
        let user_recv_qp = user_qp.map(|(qpn, qkey)| UserRecvQp { qpn, qkey });
        let shake = Handshake { extra, nwords, connid, host_id, device_version, user_recv_qp, hmem_p2p };
        prop_assert_eq!(bytes(&Packet::Handshake(shake)).len(), shake.wire_len());
        prop_assert!(shake.wire_len() <= Handshake::MAX_LEN);
        check(Packet::Handshake(shake))?;
    }
}
