//! The user receive queue pair (RDM v4, wire facts 11.3): receives into user memory, on the shared CQ.

use super::dev::{Cqe, CqeOp, Dev, DevQp, DevStatus, PostError, QpInit, QpKind, Sge};
use crate::api::{Error, OpenError, Outcome, Refused, Sent, SrcAddr, UserQp, UserRecv};

/// Work request bit of user receives; the other 63 bits are the caller's.
pub(super) const USER_RECV_BIT: u64 = 1 << 63;

pub(super) struct UserRecvQp<Q> {
    qp: Q,
    qkey: u32,
}

impl<Q: DevQp> UserRecvQp<Q> {
    /// Opens a queue pair with room for `depth` receives, which complete to `cq`.
    pub(super) fn open<D: Dev<Qp = Q>>(
        dev: &D,
        pd: &D::Pd,
        cq: &D::Cq,
        depth: u32,
        qkey: u32,
    ) -> Result<Self, OpenError> {
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth: 1,
            recv_depth: depth,
            qkey,
            rnr_retry: 0,
            unsolicited_write_recv: false,
        };
        Ok(UserRecvQp { qp: dev.create_qp(pd, cq, cq, &init)?, qkey })
    }

    pub(super) fn addr(&self) -> UserQp {
        UserQp { qpn: self.qp.qpn(), qkey: self.qkey }
    }

    pub(super) fn post(&self, token: u64, sge: Sge) -> Outcome {
        match self.qp.recv(token | USER_RECV_BIT, sge) {
            Ok(()) => {
                self.qp.ring_doorbell();
                Ok(Sent::InProgress)
            }
            Err(PostError::Full) => Err(Refused::NoResource),
            Err(PostError::Invalid(why)) => Err(Error::InvalidParam(why).into()),
        }
    }
}

pub(super) fn user_recv_completion(cqe: &Cqe, error: impl FnOnce(DevStatus) -> Error) -> (u64, UserRecv) {
    let (mut len, mut imm) = (cqe.len as usize, cqe.imm);
    let result = match cqe.status {
        DevStatus::Ok if cqe.op == CqeOp::RecvWriteImm => {
            // The bytes, if any, are elsewhere.
            (len, imm) = (0, None);
            Err(error(DevStatus::RemoteAbort))
        }
        DevStatus::Ok => Ok(()),
        // The owner knows the length of the receive.
        DevStatus::BadLength => Err(Error::TooLong { len, max: 0 }),
        status => Err(error(status)),
    };
    let source = SrcAddr { node: cqe.src_gid.iid(), port: u32::from(cqe.src_qpn) };
    (cqe.wr_id & !USER_RECV_BIT, UserRecv { result, len, imm, source })
}
