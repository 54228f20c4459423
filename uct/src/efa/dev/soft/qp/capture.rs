//! Capture records of a queue pair. Reads memory only where its key allows.

#![allow(unsafe_code)]

use super::super::capture::{Capture, RemoteAddr, SentRecord, WireOp};
use super::super::link::{Link, PostedRecv};
use super::QpCore;
use super::deferred::{Body, Wr};
use crate::api::Access;
use crate::efa::dev::{Cqe, CqeOp, DevStatus, Sge};
use std::borrow::Cow;
use ucs::mem::guard;

/// An attempt whose outcome comes later: when it was made, and what was sent. By then a program that has its
/// answer may have given its memory back.
pub(super) struct CapturedAttempt {
    at: Option<u64>,
    bytes: [Vec<u8>; 2],
}

impl<L: Link> QpCore<L> {
    /// Copies what the attempt at a request sends.
    #[cold]
    pub(super) fn capture_attempt(&self, wr: &Wr) -> Box<CapturedAttempt> {
        let bytes = sent_bytes(self, wr).map(Cow::into_owned);
        Box::new(CapturedAttempt { at: self.attempted_at.take(), bytes })
    }

    /// Records a completed request, unless it had no destination and never reached the wire. `attempt` is
    /// there if the outcome has come later.
    #[cold]
    pub(super) fn capture_request(
        &self,
        capture: &Capture,
        wr: &Wr,
        status: DevStatus,
        attempt: Option<Box<CapturedAttempt>>,
    ) {
        if wr.iid == 0 {
            return;
        }
        let (attempted_at, bytes) = match attempt {
            Some(attempt) => (attempt.at, attempt.bytes.map(Cow::Owned)),
            None => (self.attempted_at.take(), sent_bytes(self, wr)),
        };
        let (op, len, remote) = match &wr.body {
            Body::Inline { len, .. } => (WireOp::Send, u32::from(*len), RemoteAddr::default()),
            Body::Send { sge } => (WireOp::Send, sge[0].len + sge[1].len, RemoteAddr::default()),
            Body::Read { sge, raddr, rkey, total } => {
                (WireOp::Read, *total, whole(sge, *raddr, *rkey, *total))
            }
            Body::Write { sge, raddr, rkey, total } => {
                (WireOp::Write, *total, whole(sge, *raddr, *rkey, *total))
            }
        };
        let (iid, qpn, imm) = (wr.iid, wr.qpn, wr.imm);
        capture.record_sent(&SentRecord {
            from: self.sender(),
            iid,
            qpn,
            op,
            status,
            imm,
            len,
            remote,
            bytes: [&bytes[0], &bytes[1]],
            attempted_at,
        });
    }

    fn readable(&self, sge: &Sge) -> Cow<'_, [u8]> {
        if sge.len == 0 || !self.lkey_allows(sge, Access::LOCAL_READ) {
            return Cow::default();
        }
        // SAFETY: the range lies in a live registration (checked above); the request has not completed, so
        // its user leaves the bytes alone.
        unsafe { registered(sge) }
    }

    #[cold]
    pub(in super::super) fn capture_arrival(
        &self,
        capture: &Capture,
        cqe: &Cqe,
        posted: Option<&PostedRecv>,
    ) {
        let message = posted.filter(|_| cqe.op == CqeOp::Recv && cqe.status == DevStatus::Ok && cqe.len > 0);
        let sge = message.map(|p| Sge { addr: p.addr, len: cqe.len, lkey: p.lkey });
        let bytes = match sge.filter(|sge| self.lkey_allows(sge, Access::LOCAL_WRITE)) {
            // SAFETY: the range lies in a live registration (checked just now), and its message was not
            // handed to the user yet.
            Some(sge) => unsafe { registered(&sge) },
            None => Cow::default(),
        };
        capture.record_received(cqe, &bytes);
    }
}

/// Bytes of a message, where their keys still allow it.
fn sent_bytes<'a, L: Link>(qp: &'a QpCore<L>, wr: &'a Wr) -> [Cow<'a, [u8]>; 2] {
    match &wr.body {
        Body::Inline { len, bytes } => [Cow::Borrowed(&bytes[..usize::from(*len)]), Cow::default()],
        Body::Send { sge } => [qp.readable(&sge[0]), qp.readable(&sge[1])],
        Body::Read { .. } | Body::Write { .. } => Default::default(),
    }
}

/// Bytes of a registration; none if the program has unmapped them. Unsafe: the range lies in a registration
/// that stays, and nobody writes it.
unsafe fn registered<'a>(sge: &Sge) -> Cow<'a, [u8]> {
    if !guard::is_on() {
        // SAFETY: this function's contract.
        return Cow::Borrowed(unsafe { std::slice::from_raw_parts(sge.addr, sge.len as usize) });
    }
    let mut bytes = vec![0; sge.len as usize];
    // SAFETY: this function's contract; the vector has room.
    let copied = unsafe { guard::copy(sge.addr, bytes.as_mut_ptr(), bytes.len()) };
    if copied { Cow::Owned(bytes) } else { Cow::default() }
}

/// Remote address at which an RDMA operation started, of which `sge` and `raddr` may be the rest.
fn whole(sge: &Sge, raddr: u64, rkey: u32, total: u32) -> RemoteAddr {
    RemoteAddr { raddr: raddr.wrapping_sub(u64::from(total - sge.len)), rkey }
}
