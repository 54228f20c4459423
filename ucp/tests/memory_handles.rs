//! Operations whose parameters name the registered memory that holds their data.

// Blocks of calls that share one argument of safety.
#![allow(clippy::multiple_unsafe_ops_per_block)]

#[macro_use]
mod common;

use common::{Pair, bytes};
use ucp::{
    Access, AmParams, Error, Iov, Match, Mem, OpParams, OpStatus, RequestId, RmaParams, SendParams,
    StreamRecvMode, StridedIov, TAG_MASK_FULL,
};

const LEN: usize = 1 << 20;
const TAG: Match = Match::tagged(1, TAG_MASK_FULL);

fn send_params(mem: &Mem) -> SendParams<'_> {
    SendParams { tag: Some(1), mem: Some(mem), ..SendParams::default() }
}

fn op_params(mem: &Mem) -> OpParams<'_> {
    OpParams { mem: Some(mem), ..OpParams::default() }
}

fn rma_params(mem: &Mem) -> RmaParams<'_> {
    RmaParams { mem: Some(mem), ..RmaParams::default() }
}

/// The operation, if it runs on.
fn running<T>(started: Result<OpStatus<T>, Error>) -> Option<RequestId> {
    match started.unwrap() {
        OpStatus::Done(_) => None,
        OpStatus::InProgress(id) => Some(id),
    }
}

fn until_ended(pair: &Pair, ids: &[Option<RequestId>]) {
    let mut running: Vec<RequestId> = ids.iter().copied().flatten().collect();
    pair.until(|| {
        running.retain(|id| id.status().is_some_and(|status| status == ucs::Status::InProgress));
        running.is_empty()
    });
    for id in ids.iter().copied().flatten() {
        assert_eq!(id.status(), Some(ucs::Status::Ok));
        pair.a.free(id);
        pair.b.free(id);
    }
}

fn named_memory_is_not_registered_again(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let all = Access::READ | Access::WRITE;
    let (from, to) = (pair.a.mem_alloc(LEN, all).unwrap(), pair.b.mem_alloc(LEN, all).unwrap());
    let rkey = pair.ab.unpack_rkey(&to.pack_rkey()).unwrap();
    let made = || (pair.a.diagnostics().registrations_made(), pair.b.diagnostics().registrations_made());
    let before = made();
    for n in 0..3 {
        let sent = bytes(n, LEN);
        from.write(0, &sent);
        let ids = match n {
            // SAFETY: both allocations outlive the operations, which end below.
            0 => unsafe {
                let received = pair.b.recv_raw(to.as_ptr(), LEN, TAG, &op_params(&to));
                [running(received), running(pair.ab.send_raw(from.as_ptr(), LEN, &send_params(&from)))]
            },
            // SAFETY: as above.
            1 => unsafe {
                let params = rma_params(&from);
                [running(pair.ab.put_raw(from.as_ptr(), LEN, to.addr(), &rkey, &params)), None]
            },
            // SAFETY: as above.
            _ => unsafe {
                let received =
                    pair.ba.stream_recv_raw(to.as_ptr(), LEN, StreamRecvMode::WaitAll, &op_params(&to));
                let sent = pair.ab.stream_send_raw(from.as_ptr(), LEN, &op_params(&from));
                [Some(received.unwrap()), running(sent)]
            },
        };
        until_ended(&pair, &ids);
        let flush = pair.a.flush();
        pair.until(|| flush.is_done());
        flush.wait().unwrap();
        let mut got = vec![0; LEN];
        to.read(0, &mut got);
        assert!(got == sent, "operation {n}");
    }
    // SAFETY: as above.
    let got = unsafe { pair.ab.get_raw(from.as_ptr(), LEN, to.addr(), &rkey, &rma_params(&from)) };
    until_ended(&pair, &[running(got)]);
    assert_eq!(made(), before, "nothing was registered for the operations");
}

fn data_outside_of_named_memory_is_refused(tls: &str) {
    let pair = Pair::on(tls);
    pair.meet();
    let mem = pair.a.mem_alloc(4096, Access::READ | Access::WRITE).unwrap();
    let len = mem.len();
    let target = pair.b.mem_alloc(len, Access::READ | Access::WRITE).unwrap();
    let rkey = pair.ab.unpack_rkey(&target.pack_rkey()).unwrap();
    let (send, op, rma) = (send_params(&mem), op_params(&mem), rma_params(&mem));
    let am = AmParams { mem: Some(&mem), ..AmParams::default() };
    let requests = pair.a.diagnostics().requests();
    // One byte before, behind, an address that wraps, and an empty range beyond the end.
    let start = mem.as_ptr();
    let ranges = [
        (start.wrapping_sub(1), 2),
        (start.wrapping_add(len - 1), 2),
        (start, usize::MAX),
        (start.wrapping_add(len + 1), 0),
    ];
    for (at, n) in ranges {
        let whole = [Iov { addr: start, len: 1 }, Iov { addr: at, len: n }];
        let blocks = StridedIov { addr: start, len: 1, stride: 4096, count: 3 };
        let (ep, worker, remote) = (&pair.ab, &pair.a, target.addr());
        // SAFETY: each call refuses the memory before it accesses any.
        let refused = unsafe {
            [
                ep.send_raw(at, n, &send).err(),
                ep.send_layout_raw(&whole, &send).err(),
                ep.am_send_raw(1, b"", at, n, &am).err(),
                ep.am_send_layout_raw(1, b"", &whole, &am).err(),
                ep.stream_send_raw(at, n, &op).err(),
                ep.stream_send_layout_raw(&whole, &op).err(),
                ep.stream_recv_raw(at, n, StreamRecvMode::Some, &op).err(),
                ep.stream_recv_layout_raw(&whole, StreamRecvMode::Some, &op).err(),
                worker.recv_raw(at, n, TAG, &op).err(),
                worker.recv_layout_raw(&whole, TAG, &op).err(),
                ep.put_raw(at, n, remote, &rkey, &rma).err(),
                ep.put_iov_raw(&whole, &[], &rma).err(),
                ep.get_raw(at, n, remote, &rkey, &rma).err(),
                ep.get_iov_raw(&whole, &[], &rma).err(),
            ]
        };
        // SAFETY: as above.
        let strided = unsafe {
            [ep.send_layout_raw(blocks, &send).err(), worker.recv_layout_raw(blocks, TAG, &op).err()]
        };
        assert_eq!(strided, [Some(Error::OutsideMem { len: 2 * 4096 + 1, mem: len }); 2]);
        assert_eq!(refused, [Some(Error::OutsideMem { len: n, mem: len }); 14]);
    }
    assert_eq!(pair.a.diagnostics().requests(), requests, "nothing was started");
    assert_eq!(Error::OutsideMem { len: 2, mem: len }.status(), ucs::Status::InvalidParam);
}

on! {
    [named_memory_is_not_registered_again data_outside_of_named_memory_is_refused]
    to_itself: "self",
    over_posix: "posix",
    over_efa: "efa",
    shared_posix: "shared posix",
    shared_efa: "shared efa",
}
