//! Known bytes of every packet type that travels, written from the offsets by hand, read and written.

use super::super::ctl::*;
use super::super::handshake::UserRecvQp;
use super::super::rta::{Rta, RtaKind};
use super::super::rtm::{Rtm, RtmBody};
use super::super::rtr::{ReadKind, Rtr};
use super::super::rtw::{Rtw, RtwBody};
use super::super::table::{Assignment, TABLE};
use super::super::*;
use super::{ADDR, bytes};
use std::collections::BTreeSet;

/// Raw address header as we write it: length 36, 32 bytes of address, 4 of zeroes.
pub const RAW: &str = "
    24000000                            # addr_len 36
    fe80000000000000 021122fffe334455   # gid
    0201 0000                           # qpn, pad
    0d0c0b7a 0000000000000000           # connid, reserved
    00000000                            # tail";

pub struct Golden {
    hex: String,
    pub packet: Packet<'static>,
}

impl Golden {
    pub fn bytes(&self) -> Vec<u8> {
        from_hex(&self.hex)
    }
}

/// Hex digits; spaces mean nothing, `#` starts a comment.
pub fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .lines()
        .flat_map(|line| line.split('#').next().unwrap_or("").bytes())
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(byte).to_digit(16).expect("hex digit") as u8)
        .collect();
    assert!(digits.len().is_multiple_of(2));
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn golden(hex: impl Into<String>, packet: Packet<'static>) -> Golden {
    Golden { hex: hex.into(), packet }
}

const IOV: RmaIov = RmaIov { addr: 0x1122_3344_5566_7788, len: 5, key: 0x99aa };
pub const IOV_HEX: &str = "8877665544332211 0500000000000000 aa99000000000000";
const IOV2: RmaIov = RmaIov { addr: 0x7fff_0000_1000, len: 0x300, key: 0xffff_fffe };
const IOV2_HEX: &str = "00100000ff7f0000 0003000000000000 feffffff00000000";

fn two() -> Iovs {
    Iovs::try_from(&[IOV, IOV2][..]).expect("two fit")
}

fn rtm(ty: PktType, flags: u16, body: RtmBody) -> Rtm<'static> {
    Rtm {
        ty,
        flags: ReqFlags::from_bits_retain(flags),
        msg_id: 0x0102_0304,
        tag: None,
        receipt: None,
        opts: Opts::NONE,
        body,
        payload: b"",
    }
}

const TAG: u64 = 0x1112_1314_1516_1718;
pub const CONNID: u32 = 0x7a0b_0c0d;

pub fn all() -> Vec<Golden> {
    let mut all = messages();
    all.extend(delivery_complete());
    all.extend(reads());
    all.extend(one_sided());
    all.extend(atomics());
    all.extend(control());
    all.extend(handshakes());
    all
}

fn messages() -> Vec<Golden> {
    let medium = RtmBody::Medium { msg_length: 0x0001_0203, seg_offset: 0x2040 };
    let longcts = RtmBody::LongCts {
        msg_length: 0x1_0000_0000,
        send_id: 0xa1a2_a3a4,
        credit_request: 32,
        cause: Cause::Fresh,
    };
    let nacked = RtmBody::LongCts {
        msg_length: 0x1_0000_0000,
        send_id: 0xa1a2_a3a4,
        credit_request: 32,
        cause: Cause::ReadNack,
    };
    vec![
        golden(
            format!(
                "40 04 0500  # EAGER_MSGRTM, version 4, RAW_ADDR|MSG
                 04030201    # msg_id
                 {RAW}
                 6869        # payload"
            ),
            Packet::Rtm(Rtm {
                opts: Opts::raw_addr(ADDR),
                payload: b"hi",
                ..rtm(PktType::EAGER_MSGRTM, 0x0005, RtmBody::Eager)
            }),
        ),
        golden(
            "41 04 0e80       # EAGER_TAGRTM, CQ_DATA|MSG|TAGGED|CONNID
             04030201         # msg_id
             1817161514131211 # tag
             efcdab8967452301 # cq data
             0d0c0b7a         # connid, no padding
             6869             # payload",
            Packet::Rtm(Rtm {
                tag: Some(TAG),
                opts: Opts::connid(CONNID).with_cq_data(0x0123_4567_89ab_cdef),
                payload: b"hi",
                ..rtm(PktType::EAGER_TAGRTM, 0x800e, RtmBody::Eager)
            }),
        ),
        golden(
            "42 04 0400       # MEDIUM_MSGRTM, MSG
             04030201         # msg_id
             0302010000000000 # msg_length, the whole message's
             4020000000000000 # seg_offset
             6869",
            Packet::Rtm(Rtm { payload: b"hi", ..rtm(PktType::MEDIUM_MSGRTM, 0x0004, medium) }),
        ),
        golden(
            "43 04 0c80       # MEDIUM_TAGRTM, MSG|TAGGED|CONNID
             04030201         # msg_id
             0302010000000000 # msg_length
             4020000000000000 # seg_offset
             1817161514131211 # tag
             0d0c0b7a         # connid
             6869",
            Packet::Rtm(Rtm {
                tag: Some(TAG),
                opts: Opts::connid(CONNID),
                payload: b"hi",
                ..rtm(PktType::MEDIUM_TAGRTM, 0x800c, medium)
            }),
        ),
        golden(
            "44 04 0480       # LONGCTS_MSGRTM, MSG|CONNID
             04030201         # msg_id
             0000000001000000 # msg_length
             a4a3a2a1         # send_id
             20000000         # credit_request
             0d0c0b7a         # connid
             6869",
            Packet::Rtm(Rtm {
                opts: Opts::connid(CONNID),
                payload: b"hi",
                ..rtm(PktType::LONGCTS_MSGRTM, 0x8004, longcts)
            }),
        ),
        golden(
            "45 04 0c00       # LONGCTS_TAGRTM, MSG|TAGGED
             04030201         # msg_id
             0000000001000000 # msg_length
             a4a3a2a1         # send_id
             20000000         # credit_request
             1817161514131211 # tag
             6869",
            Packet::Rtm(Rtm {
                tag: Some(TAG),
                payload: b"hi",
                ..rtm(PktType::LONGCTS_TAGRTM, 0x000c, longcts)
            }),
        ),
        golden(
            "45 04 0c20       # LONGCTS_TAGRTM, MSG|TAGGED|READ_NACK
             04030201         # msg_id
             0000000001000000 # msg_length
             a4a3a2a1         # send_id
             20000000         # credit_request
             1817161514131211 # tag, no payload after a NACK",
            Packet::Rtm(Rtm { tag: Some(TAG), ..rtm(PktType::LONGCTS_TAGRTM, 0x200c, nacked) }),
        ),
    ]
}

fn delivery_complete() -> Vec<Golden> {
    let receipt = Some(0xa1a2_a3a4);
    let medium = RtmBody::Medium { msg_length: 0x0001_0203, seg_offset: 0x2040 };
    let longcts =
        RtmBody::LongCts { msg_length: 2, send_id: 0xa1a2_a3a4, credit_request: 1, cause: Cause::Fresh };
    vec![
        golden(
            "85 04 0400       # DC_EAGER_MSGRTM, MSG
             04030201         # msg_id
             a4a3a2a1         # send_id
             00000000         # pad
             6869",
            Packet::Rtm(Rtm {
                receipt,
                payload: b"hi",
                ..rtm(PktType::DC_EAGER_MSGRTM, 0x0004, RtmBody::Eager)
            }),
        ),
        golden(
            "86 04 0c80       # DC_EAGER_TAGRTM, MSG|TAGGED|CONNID
             04030201         # msg_id
             a4a3a2a1         # send_id
             00000000         # pad
             1817161514131211 # tag
             0d0c0b7a         # connid
             6869",
            Packet::Rtm(Rtm {
                receipt,
                tag: Some(TAG),
                opts: Opts::connid(CONNID),
                payload: b"hi",
                ..rtm(PktType::DC_EAGER_TAGRTM, 0x800c, RtmBody::Eager)
            }),
        ),
        golden(
            "87 04 0400       # DC_MEDIUM_MSGRTM, MSG
             04030201         # msg_id
             a4a3a2a1         # send_id
             00000000         # pad
             0302010000000000 # msg_length
             4020000000000000 # seg_offset
             6869",
            Packet::Rtm(Rtm { receipt, payload: b"hi", ..rtm(PktType::DC_MEDIUM_MSGRTM, 0x0004, medium) }),
        ),
        golden(
            "88 04 0c00       # DC_MEDIUM_TAGRTM, MSG|TAGGED
             04030201         # msg_id
             a4a3a2a1         # send_id
             00000000         # pad
             0302010000000000 # msg_length
             4020000000000000 # seg_offset
             1817161514131211 # tag
             6869",
            Packet::Rtm(Rtm {
                receipt,
                tag: Some(TAG),
                payload: b"hi",
                ..rtm(PktType::DC_MEDIUM_TAGRTM, 0x000c, medium)
            }),
        ),
        golden(
            "89 04 0400       # DC_LONGCTS_MSGRTM, MSG
             04030201         # msg_id
             0200000000000000 # msg_length
             a4a3a2a1         # send_id
             01000000         # credit_request
             68",
            Packet::Rtm(Rtm { receipt, payload: b"h", ..rtm(PktType::DC_LONGCTS_MSGRTM, 0x0004, longcts) }),
        ),
        golden(
            "8a 04 0c00       # DC_LONGCTS_TAGRTM, MSG|TAGGED
             04030201         # msg_id
             0200000000000000 # msg_length
             a4a3a2a1         # send_id
             01000000         # credit_request
             1817161514131211 # tag
             68",
            Packet::Rtm(Rtm {
                receipt,
                tag: Some(TAG),
                payload: b"h",
                ..rtm(PktType::DC_LONGCTS_TAGRTM, 0x000c, longcts)
            }),
        ),
    ]
}

fn reads() -> Vec<Golden> {
    let longread = RtmBody::LongRead { msg_length: 0x305, send_id: 0xa1a2_a3a4, read_iov: two() };
    let runtread = RtmBody::RuntRead {
        msg_length: 0x305,
        send_id: 0xa1a2_a3a4,
        seg_offset: 8,
        runt_length: 0x10,
        read_iov: two(),
    };
    vec![
        golden(
            format!(
                "80 04 0480       # LONGREAD_MSGRTM, MSG|CONNID
                 04030201         # msg_id
                 0503000000000000 # msg_length
                 a4a3a2a1         # send_id
                 02000000         # read_iov_count
                 0d0c0b7a         # connid
                 {IOV_HEX} {IOV2_HEX}"
            ),
            Packet::Rtm(Rtm {
                opts: Opts::connid(CONNID),
                ..rtm(PktType::LONGREAD_MSGRTM, 0x8004, longread)
            }),
        ),
        golden(
            format!(
                "81 04 0c00       # LONGREAD_TAGRTM, MSG|TAGGED
                 04030201         # msg_id
                 0503000000000000 # msg_length
                 a4a3a2a1         # send_id
                 02000000         # read_iov_count
                 1817161514131211 # tag
                 {IOV_HEX} {IOV2_HEX}"
            ),
            Packet::Rtm(Rtm { tag: Some(TAG), ..rtm(PktType::LONGREAD_TAGRTM, 0x000c, longread) }),
        ),
        golden(
            format!(
                "91 04 0480       # RUNTREAD_MSGRTM, MSG|CONNID
                 04030201         # msg_id
                 0503000000000000 # msg_length
                 a4a3a2a1         # send_id
                 02000000         # read_iov_count
                 0800000000000000 # seg_offset
                 1000000000000000 # runt_length, of all packets
                 0d0c0b7a         # connid
                 {IOV_HEX} {IOV2_HEX}
                 6869"
            ),
            Packet::Rtm(Rtm {
                opts: Opts::connid(CONNID),
                payload: b"hi",
                ..rtm(PktType::RUNTREAD_MSGRTM, 0x8004, runtread)
            }),
        ),
        golden(
            format!(
                "92 04 0c00       # RUNTREAD_TAGRTM, MSG|TAGGED
                 04030201         # msg_id
                 0503000000000000 # msg_length
                 a4a3a2a1         # send_id
                 02000000         # read_iov_count
                 0800000000000000 # seg_offset
                 1000000000000000 # runt_length
                 1817161514131211 # tag
                 {IOV_HEX} {IOV2_HEX}
                 6869"
            ),
            Packet::Rtm(Rtm {
                tag: Some(TAG),
                payload: b"hi",
                ..rtm(PktType::RUNTREAD_TAGRTM, 0x000c, runtread)
            }),
        ),
    ]
}

fn rtw(ty: PktType, flags: u16, rma_iov: Iovs, body: RtwBody) -> Rtw<'static> {
    let flags = ReqFlags::from_bits_retain(flags);
    Rtw { ty, flags, rma_iov, receipt: None, opts: Opts::NONE, body, payload: b"" }
}

fn one_sided() -> Vec<Golden> {
    let longcts = RtwBody::LongCts { msg_length: 0x305, send_id: 0xa1a2_a3a4, credit_request: 32 };
    let longread = RtwBody::LongRead {
        msg_length: 5,
        send_id: 0xa1a2_a3a4,
        read_iov: Iovs::one(RmaIov { len: 5, ..IOV2 }),
    };
    let rtr = Rtr {
        kind: ReadKind::Short,
        rma_iov: two(),
        msg_length: 0x305,
        recv_id: 0xb1b2_b3b4,
        recv_length: 0x305,
        opts: Opts::connid(CONNID),
    };
    vec![
        golden(
            format!(
                "46 04 0100  # EAGER_RTW, RAW_ADDR and no class flag: the trigger, 48 bytes
                 00000000    # rma_iov_count
                 {RAW}"
            ),
            Packet::Rtw(Rtw {
                opts: Opts::raw_addr(ADDR),
                ..rtw(PktType::EAGER_RTW, 0x0001, Iovs::NONE, RtwBody::Eager)
            }),
        ),
        golden(
            format!(
                "46 04 0280       # EAGER_RTW, CQ_DATA|CONNID
                 01000000         # rma_iov_count
                 {IOV_HEX}
                 efcdab8967452301 # cq data
                 0d0c0b7a         # connid
                 68656c6c6f"
            ),
            Packet::Rtw(Rtw {
                opts: Opts::connid(CONNID).with_cq_data(0x0123_4567_89ab_cdef),
                payload: b"hello",
                ..rtw(PktType::EAGER_RTW, 0x8002, Iovs::one(IOV), RtwBody::Eager)
            }),
        ),
        golden(
            format!(
                "8b 04 0000       # DC_EAGER_RTW
                 01000000         # rma_iov_count
                 a4a3a2a1         # send_id
                 00000000         # pad
                 {IOV_HEX}
                 68656c6c6f"
            ),
            Packet::Rtw(Rtw {
                receipt: Some(0xa1a2_a3a4),
                payload: b"hello",
                ..rtw(PktType::DC_EAGER_RTW, 0, Iovs::one(IOV), RtwBody::Eager)
            }),
        ),
        golden(
            format!(
                "47 04 0080       # LONGCTS_RTW, CONNID
                 02000000         # rma_iov_count
                 0503000000000000 # msg_length
                 a4a3a2a1         # send_id
                 20000000         # credit_request
                 {IOV_HEX} {IOV2_HEX}
                 0d0c0b7a         # connid
                 6869"
            ),
            Packet::Rtw(Rtw {
                opts: Opts::connid(CONNID),
                payload: b"hi",
                ..rtw(PktType::LONGCTS_RTW, 0x8000, two(), longcts)
            }),
        ),
        golden(
            format!(
                "8c 04 0000       # DC_LONGCTS_RTW
                 02000000         # rma_iov_count
                 0503000000000000 # msg_length
                 a4a3a2a1         # send_id
                 20000000         # credit_request
                 {IOV_HEX} {IOV2_HEX}
                 6869"
            ),
            Packet::Rtw(Rtw {
                receipt: Some(0xa1a2_a3a4),
                payload: b"hi",
                ..rtw(PktType::DC_LONGCTS_RTW, 0, two(), longcts)
            }),
        ),
        golden(
            format!(
                "82 04 0080       # LONGREAD_RTW, CONNID
                 01000000         # rma_iov_count
                 0500000000000000 # msg_length
                 a4a3a2a1         # send_id
                 01000000         # read_iov_count
                 {IOV_HEX}        # rma iov
                 0d0c0b7a         # connid
                 00100000ff7f0000 0500000000000000 feffffff00000000 # read iov"
            ),
            Packet::Rtw(Rtw {
                opts: Opts::connid(CONNID),
                ..rtw(PktType::LONGREAD_RTW, 0x8000, Iovs::one(IOV), longread)
            }),
        ),
        golden(
            format!(
                "48 04 0080       # SHORT_RTR, CONNID
                 02000000         # rma_iov_count
                 0503000000000000 # msg_length
                 b4b3b2b1         # recv_id
                 05030000         # recv_length: the total, not padding
                 {IOV_HEX} {IOV2_HEX}
                 0d0c0b7a"
            ),
            Packet::Rtr(rtr),
        ),
        golden(
            format!(
                "49 04 0000       # LONGCTS_RTR
                 02000000         # rma_iov_count
                 0503000000000000 # msg_length
                 b4b3b2b1         # recv_id
                 00020000         # recv_length
                 {IOV_HEX} {IOV2_HEX}"
            ),
            Packet::Rtr(Rtr { kind: ReadKind::LongCts, recv_length: 0x200, opts: Opts::NONE, ..rtr }),
        ),
    ]
}

fn atomics() -> Vec<Golden> {
    let rta = |kind, datatype: Datatype, op: AtomicOp| Rta {
        kind,
        msg_id: 0x0102_0304,
        rma_iov: Iovs::one(RmaIov { len: 4, ..IOV }),
        datatype: datatype.into(),
        op: op.into(),
        opts: Opts::NONE,
    };
    let iov = "8877665544332211 0400000000000000 aa99000000000000";
    vec![
        golden(
            format!(
                "4a 04 2000       # WRITE_RTA, ATOMIC
                 04030201         # msg_id
                 01000000         # rma_iov_count
                 05000000         # UINT32
                 02000000         # SUM
                 00000000         # pad
                 {iov}
                 01020304         # operand"
            ),
            Packet::Rta(rta(RtaKind::Write, Datatype::Uint32, AtomicOp::Sum), &[1, 2, 3, 4]),
        ),
        golden(
            format!(
                "4b 04 2080       # FETCH_RTA, ATOMIC|CONNID
                 04030201         # msg_id
                 01000000         # rma_iov_count
                 08000000         # FLOAT
                 0b000000         # ATOMIC_WRITE
                 b4b3b2b1         # recv_id
                 {iov}
                 0d0c0b7a         # connid
                 01020304         # operand"
            ),
            Packet::Rta(
                Rta {
                    opts: Opts::connid(CONNID),
                    ..rta(RtaKind::Fetch { recv_id: 0xb1b2_b3b4 }, Datatype::Float, AtomicOp::Write)
                },
                &[1, 2, 3, 4],
            ),
        ),
        golden(
            format!(
                "4c 04 2000       # COMPARE_RTA, ATOMIC
                 04030201         # msg_id
                 01000000         # rma_iov_count
                 04000000         # INT32
                 0c000000         # CSWAP
                 b4b3b2b1         # recv_id
                 {iov}
                 01020304         # operand
                 05060708         # compare"
            ),
            Packet::Rta(
                rta(RtaKind::Compare { recv_id: 0xb1b2_b3b4 }, Datatype::Int32, AtomicOp::CompareSwap),
                &[1, 2, 3, 4, 5, 6, 7, 8],
            ),
        ),
        golden(
            format!(
                "8d 04 2000       # DC_WRITE_RTA, ATOMIC
                 04030201         # msg_id
                 01000000         # rma_iov_count
                 05000000         # UINT32
                 09000000         # BXOR
                 a4a3a2a1         # send_id
                 {iov}
                 01020304         # operand"
            ),
            Packet::Rta(
                rta(RtaKind::DcWrite { send_id: 0xa1a2_a3a4 }, Datatype::Uint32, AtomicOp::BitXor),
                &[1, 2, 3, 4],
            ),
        ),
    ]
}

fn control() -> Vec<Golden> {
    let (send_id, recv_id, connid) = (0xa1a2_a3a4, 0xb1b2_b3b4, Some(CONNID));
    let ctsdata = CtsData { recv_id, seg_length: 2, seg_offset: 0x0102_0304_0506, connid: None };
    vec![
        golden(
            "03 04 0080       # CTS, CONNID
             0d0c0b7a         # connid
             a4a3a2a1         # send_id
             b4b3b2b1         # recv_id
             0000040000000000 # recv_length",
            Packet::Cts(Cts { of: CtsFor::Send, send_id, recv_id, recv_length: 0x40000, connid }),
        ),
        golden(
            "03 04 8080       # CTS of an emulated read, 0x80|CONNID
             0d0c0b7a         # connid
             a4a3a2a1         # send_id
             b4b3b2b1         # recv_id
             0000040000000000 # recv_length",
            Packet::Cts(Cts { of: CtsFor::Read, send_id, recv_id, recv_length: 0x40000, connid }),
        ),
        golden(
            "04 04 0000       # CTSDATA
             b4b3b2b1         # recv_id
             0200000000000000 # seg_length
             0605040302010000 # seg_offset
             6869",
            Packet::CtsData(ctsdata, b"hi"),
        ),
        golden(
            "04 04 0080       # CTSDATA, CONNID
             b4b3b2b1         # recv_id
             0200000000000000 # seg_length
             0605040302010000 # seg_offset
             0d0c0b7a 00000000 # connid, pad
             6869",
            Packet::CtsData(CtsData { connid, ..ctsdata }, b"hi"),
        ),
        golden(
            "05 04 0080       # READRSP, CONNID
             0d0c0b7a         # connid
             b4b3b2b1         # recv_id first
             a4a3a2a1         # send_id
             0200000000000000 # seg_length
             6869",
            Packet::ReadRsp(ReadRsp { recv_id, send_id, seg_length: 2, connid }, b"hi"),
        ),
        golden(
            "07 04 0080       # EOR, CONNID
             a4a3a2a1         # send_id
             b4b3b2b1         # recv_id
             0d0c0b7a         # connid",
            Packet::Eor(Eor { send_id, recv_id, connid }),
        ),
        golden(
            "08 04 0080       # ATOMRSP, CONNID
             0d0c0b7a         # connid
             00000000         # reserved
             b4b3b2b1         # recv_id
             0200000000000000 # seg_length
             6869",
            Packet::AtomRsp(AtomRsp { recv_id, seg_length: 2, connid }, b"hi"),
        ),
        golden(
            "0a 04 0080       # RECEIPT, CONNID
             a4a3a2a1         # send_id
             04030201         # msg_id
             0d0c0b7a         # connid",
            Packet::Receipt(Receipt { send_id, msg_id: 0x0102_0304, connid }),
        ),
        golden(
            "0b 04 0080       # READ_NACK, CONNID
             a4a3a2a1         # send_id
             b4b3b2b1         # recv_id
             0d0c0b7a         # connid",
            Packet::ReadNack(ReadNack { send_id, recv_id, not_now: false, connid }),
        ),
        golden(
            "0b 04 0081       # READ_NACK, CONNID|NOT_NOW
             a4a3a2a1         # send_id
             b4b3b2b1         # recv_id
             0d0c0b7a         # connid",
            Packet::ReadNack(ReadNack { send_id, recv_id, not_now: true, connid }),
        ),
        golden(
            "0c 04 0080       # PEER_ERROR, CONNID
             04030201         # op_id
             02000000         # ref_kind: skip this msg_id
             1f100000         # prov_errno 4127
             0d0c0b7a         # connid",
            Packet::PeerError(PeerError { what: ErrorRef::Skip(0x0102_0304), prov_errno: 4127, connid }),
        ),
    ]
}

fn handshakes() -> Vec<Golden> {
    let features = Features::DELIVERY_COMPLETE | Features::CONNID | Features::RUNT_READ | Features::READ_NACK;
    vec![
        golden(
            "09 04 0280       # HANDSHAKE, DEVICE_VERSION|CONNID
             04000000         # nextra_p3: one word
             5a00000000000000 # bits 1, 3, 4, 6
             0d0c0b7a 00000000 # connid
             a2ef0000 00000000 # device version 0xefa2",
            Packet::Handshake(Handshake::new(features, CONNID, 0xefa2)),
        ),
        golden(
            "09 04 0f80       # HANDSHAKE, all five optional headers
             05000000         # nextra_p3: two words
             5a02000000000000 # bits 1, 3, 4, 6, 9
             0100000000000000 # bit 64
             0d0c0b7a 00000000 # connid
             efcdab8967452301 # host id
             a2ef0000 00000000 # device version
             22000000 33000000 # user receive queue pair: qpn, qkey
             01 00000000000000 # p2p",
            Packet::Handshake(Handshake {
                extra: [0x25a, 1, 0, 0],
                nwords: 2,
                connid: Some(CONNID),
                host_id: Some(0x0123_4567_89ab_cdef),
                device_version: Some(0xefa2),
                user_recv_qp: Some(UserRecvQp { qpn: 0x22, qkey: 0x33 }),
                hmem_p2p: Some(true),
            }),
        ),
        golden(
            "09 04 0000       # HANDSHAKE of 1.10-1.13
             04000000         # nextra_p3: one word
             0300000000000000 # bits 0, 1",
            Packet::Handshake(Handshake { extra: [3, 0, 0, 0], nwords: 1, ..Handshake::default() }),
        ),
    ]
}

#[test]
fn every_type_in_use_has_golden_bytes() {
    let have: BTreeSet<u8> = all().iter().map(|golden| golden.bytes()[0]).collect();
    let want: BTreeSet<u8> =
        TABLE.iter().filter(|info| info.assignment == Assignment::InUse).map(|info| info.ty.0).collect();
    assert_eq!(have, want);
}

// [M3.2]
#[test]
fn golden_packets_are_parsed() {
    for golden in all() {
        assert_eq!(parse(&golden.bytes()), Ok(golden.packet), "{}", golden.hex);
        assert_eq!(golden.packet.ty().0, golden.bytes()[0], "{}", golden.hex);
    }
}

// [M1.7]
#[test]
fn golden_packets_are_written() {
    for golden in all() {
        assert_eq!(bytes(&golden.packet), golden.bytes(), "{}", golden.hex);
    }
}

#[test]
fn trigger_is_48_bytes() {
    let mut buf = [0xee; 64];
    let len = rtw::Eager::trigger(ADDR).write(&mut buf);
    assert_eq!(buf[..len], from_hex(&format!("46040100 00000000 {RAW}")));
    assert_eq!(len, 48);
    assert!(matches!(parse(&buf[..len]), Ok(Packet::Rtw(rtw)) if rtw.is_trigger()));
}
