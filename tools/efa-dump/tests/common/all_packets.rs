//! Correct exchanges of every packet type.

use super::script::{HERE, Script, THERE};
use ucp::wire::ctl::{AtomRsp, Cts, CtsData, CtsFor, Eor, ErrorRef, PeerError, ReadNack, ReadRsp, Receipt};
use ucp::wire::rta::{Rta, RtaKind};
use ucp::wire::rtm::{Eager, LongCts, LongRead, Medium, RuntRead};
use ucp::wire::rtr::{ReadKind, Rtr};
use ucp::wire::{Cause, Delivery, Features, Handshake, Iovs, Opts, RmaIov, rtw};

pub const OURS: Opts = Opts::connid(HERE.connid);
pub const THEIRS: Option<u32> = Some(THERE.connid);
pub const TAG: Option<u64> = Some(0x7a6);

pub fn iov(len: u64) -> Iovs {
    Iovs::one(RmaIov { addr: 0x1000, len, key: 9 })
}

pub fn handshake(connid: u32) -> Handshake {
    let all = Features::RDMA_READ
        | Features::DELIVERY_COMPLETE
        | Features::CONNID
        | Features::RUNT_READ
        | Features::READ_NACK
        | Features::PEER_ERROR;
    Handshake::new(all, connid, 0xefa2)
}

pub fn eager(msg_id: u32) -> Eager {
    Eager { msg_id, tag: TAG, opts: OURS, ..Eager::default() }
}

/// First contact: message 0 with our address, and both HANDSHAKEs.
pub fn after_handshake() -> Script {
    let first = Eager { opts: Opts::raw_addr(HERE), ..eager(0) };
    Script::default()
        .send(|b| first.write(b), 8)
        .recv(|b| handshake(THERE.connid).write(b), 0)
        .send(|b| handshake(HERE.connid).write(b), 0)
}

pub fn longcts(send_id: u32, cause: Cause) -> LongCts {
    LongCts {
        msg_id: 1,
        tag: TAG,
        msg_length: 3000,
        send_id,
        credit_request: 32,
        cause,
        opts: OURS,
        ..LongCts::default()
    }
}

pub fn cts(send_id: u32, recv_id: u32, recv_length: u64) -> Cts {
    Cts { send_id, recv_id, recv_length, connid: THEIRS, ..Cts::default() }
}

pub fn data(recv_id: u32, seg_offset: u64, seg_length: u64) -> CtsData {
    CtsData { recv_id, seg_length, seg_offset, connid: Some(HERE.connid) }
}

pub fn longread(msg_id: u32, send_id: u32) -> LongRead {
    LongRead { msg_id, tag: TAG, msg_length: 5000, send_id, read_iov: iov(5000), opts: OURS }
}

pub fn eor(send_id: u32) -> Eor {
    Eor { send_id, recv_id: 5, connid: THEIRS }
}

pub fn rta(msg_id: u32, kind: RtaKind) -> Rta {
    Rta { kind, msg_id, rma_iov: iov(8), datatype: 7, op: 2, opts: OURS }
}

pub fn all_packets() -> Script {
    let medium = |msg_id, seg_offset, receipt| Medium {
        msg_id,
        tag: TAG,
        receipt,
        msg_length: 100,
        seg_offset,
        opts: OURS,
    };
    let runt = |seg_offset| RuntRead {
        msg_id: 9,
        tag: None,
        msg_length: 4000,
        send_id: 40,
        seg_offset,
        runt_length: 1000,
        read_iov: iov(4000),
        opts: OURS,
    };
    let dc = |send_id| LongCts {
        msg_id: 6,
        delivery: Delivery::Complete,
        send_id,
        ..longcts(send_id, Cause::Fresh)
    };
    let receipt = |send_id, msg_id| Receipt { send_id, msg_id, connid: THEIRS };
    let refused = || LongCts { msg_id: 10, msg_length: 5000, ..longcts(50, Cause::ReadNack) };
    let write = |send_id| rtw::LongCts {
        rma_iov: iov(3000),
        delivery: Delivery::Plain,
        msg_length: 3000,
        send_id,
        credit_request: 32,
        opts: OURS,
    };
    after_handshake()
        // Windows, the second part first.
        .send(|b| longcts(20, Cause::Fresh).write(b), 1000)
        .recv(|b| cts(20, 5, 1500).write(b), 0)
        .send(|b| data(5, 2000, 500).write(b), 500)
        .send(|b| data(5, 1000, 1000).write(b), 1000)
        .recv(|b| cts(20, 5, 500).write(b), 0)
        .send(|b| data(5, 2500, 500).write(b), 500)
        // Packets out of order, and a failed send.
        .fail(|b| medium(2, 0, None).write(b), 50)
        .send(|b| medium(2, 50, None).write(b), 50)
        .send(|b| medium(2, 0, None).write(b), 50)
        // Untagged, with cq data.
        .send(|b| Eager { msg_id: 3, opts: OURS.with_cq_data(1), ..Eager::default() }.write(b), 5)
        // Delivery complete.
        .send(|b| Eager { receipt: Some(21), ..eager(4) }.write(b), 5)
        .recv(|b| receipt(21, 4).write(b), 0)
        .send(|b| medium(5, 0, Some(22)).write(b), 50)
        .send(|b| medium(5, 50, Some(22)).write(b), 50)
        .recv(|b| receipt(22, 5).write(b), 0)
        .send(|b| dc(23).write(b), 3000)
        .recv(|b| receipt(23, 6).write(b), 0)
        // Reads of the sender's memory.
        .send(|b| longread(8, 30).write(b), 0)
        .recv(|b| eor(30).write(b), 0)
        .send(|b| runt(500).write(b), 500)
        .send(|b| runt(0).write(b), 500)
        .recv(|b| eor(40).write(b), 0)
        // A refused read, continued in windows.
        .send(|b| longread(10, 50).write(b), 0)
        .recv(|b| ReadNack { send_id: 50, recv_id: 6, not_now: false, connid: THEIRS }.write(b), 0)
        .send(|b| refused().write(b), 0)
        .recv(|b| cts(50, 6, 5000).write(b), 0)
        .send(|b| data(6, 0, 5000).write(b), 5000)
        .send(|b| rtw::Eager { rma_iov: iov(10), receipt: None, opts: OURS }.write(b), 10)
        .send(|b| rtw::Eager { rma_iov: iov(10), receipt: Some(60), opts: OURS }.write(b), 10)
        .recv(|b| receipt(60, 0).write(b), 0)
        .send(|b| write(61).write(b), 1000)
        .recv(|b| cts(61, 7, 2000).write(b), 0)
        .send(|b| data(7, 1000, 2000).write(b), 2000)
        .send(
            |b| {
                rtw::LongRead { rma_iov: iov(70), msg_length: 70, send_id: 62, read_iov: iov(70), opts: OURS }
                    .write(b)
            },
            0,
        )
        .recv(|b| eor(62).write(b), 0)
        .send(
            |b| {
                Rtr {
                    kind: ReadKind::Short,
                    rma_iov: iov(80),
                    msg_length: 80,
                    recv_id: 70,
                    recv_length: 80,
                    opts: OURS,
                }
                .write(b)
            },
            0,
        )
        .recv(|b| ReadRsp { recv_id: 70, send_id: 3, seg_length: 80, connid: THEIRS }.write(b), 80)
        .send(
            |b| {
                Rtr {
                    kind: ReadKind::LongCts,
                    rma_iov: iov(900),
                    msg_length: 900,
                    recv_id: 71,
                    recv_length: 500,
                    opts: OURS,
                }
                .write(b)
            },
            0,
        )
        .recv(|b| ReadRsp { recv_id: 71, send_id: 4, seg_length: 300, connid: THEIRS }.write(b), 300)
        .recv(|b| CtsData { recv_id: 71, seg_length: 200, seg_offset: 300, connid: THEIRS }.write(b), 200)
        .send(
            |b| {
                Cts { of: CtsFor::Read, send_id: 4, recv_id: 71, recv_length: 400, connid: OURS.connid }
                    .write(b)
            },
            0,
        )
        .recv(|b| CtsData { recv_id: 71, seg_length: 400, seg_offset: 500, connid: THEIRS }.write(b), 400)
        // Atomics share the order of messages.
        .send(|b| rta(7, RtaKind::Write).write(b), 8)
        .send(|b| rta(11, RtaKind::Fetch { recv_id: 80 }).write(b), 8)
        .recv(|b| AtomRsp { recv_id: 80, seg_length: 8, connid: THEIRS }.write(b), 8)
        .send(|b| rta(12, RtaKind::Compare { recv_id: 81 }).write(b), 16)
        .recv(|b| AtomRsp { recv_id: 81, seg_length: 8, connid: THEIRS }.write(b), 8)
        .send(|b| rta(13, RtaKind::DcWrite { send_id: 82 }).write(b), 8)
        .recv(|b| receipt(82, 13).write(b), 0)
        // A skipped message.
        .send(|b| PeerError { what: ErrorRef::Skip(14), prov_errno: 4127, connid: OURS.connid }.write(b), 0)
        .send(|b| eager(15).write(b), 1)
}
