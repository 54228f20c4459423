//! Work completions from device completions: status, vendor code, opcode, address handle number.

use crate::abi::IbvWc;
use crate::ahn::NO_AH;
use crate::state::{QpState, State};
use ucs::coll::slots::SlotId;
use uct::efa::dev::{Cqe, CqeOp, DevStatus};

const WC_SEND: i32 = 0;
const WC_RDMA_WRITE: i32 = 1;
const WC_RECV: i32 = 128;
const WC_RECV_RDMA_WITH_IMM: i32 = 129;
const WC_WITH_IMM: u32 = 2;

/// A completion, for both poll styles.
#[derive(Clone, Copy, Default)]
pub struct Completion {
    pub wc: IbvWc,
    pub sgid: [u8; 16],
    pub unsolicited: bool,
}

/// `enum ibv_wc_status` of a device status.
pub fn wc_status(status: DevStatus) -> i32 {
    match status {
        DevStatus::Ok => 0,
        DevStatus::Flushed => 5,
        DevStatus::QpInternal | DevStatus::UnsupportedOp | DevStatus::InvalidAh => 2,
        DevStatus::InvalidLkey => 4,
        DevStatus::BadLength => 1,
        DevStatus::RemoteBadAddress => 10,
        DevStatus::RemoteAbort => 16,
        DevStatus::BadDestQpn => 15,
        DevStatus::Rnr => 13,
        DevStatus::RemoteBadLength | DevStatus::FeatureMismatch => 9,
        DevStatus::BadStatus => 7,
        DevStatus::Unresponsive | DevStatus::Unreachable => 20,
        DevStatus::UnknownPeer => 11,
    }
}

/// The next completion of a queue.
// HOT
#[inline]
pub fn next_completion(state: &mut State, id: SlotId) -> Option<Completion> {
    loop {
        let cqe = state.cqs.get_mut(id)?.pop()?;
        if let Some(qp_state) = state.qp_by_number(cqe.qpn) {
            return Some(completion(state, qp_state, &cqe));
        }
    }
}

/// Converts `cqe`, a completion of `qp_state`.
// HOT
pub fn completion(state: &State, qp_state: &QpState, cqe: &Cqe) -> Completion {
    let receive = matches!(cqe.op, CqeOp::Recv | CqeOp::RecvWriteImm);
    let mut out = Completion::default();
    let wc = &mut out.wc;
    wc.wr_id = cqe.wr_id;
    wc.status = wc_status(cqe.status);
    wc.vendor_err = u8::from(cqe.status).into();
    wc.qp_num = cqe.qpn.into();
    // A read completes as a send, as in the real library; libfabric 1.17 expects no other.
    wc.opcode = match cqe.op {
        CqeOp::Send | CqeOp::Read => WC_SEND,
        CqeOp::Write => WC_RDMA_WRITE,
        CqeOp::Recv => WC_RECV,
        CqeOp::RecvWriteImm => WC_RECV_RDMA_WITH_IMM,
    };
    if receive {
        wc.byte_len = cqe.len;
        wc.src_qp = cqe.src_qpn.into();
        wc.slid = state.ahs.number(qp_state.pd, cqe.src_gid).unwrap_or(NO_AH);
        out.sgid = cqe.src_gid.0;
        out.unsolicited = cqe.op == CqeOp::RecvWriteImm && qp_state.unsolicited;
    }
    if let Some(imm) = cqe.imm {
        wc.imm_data = imm;
        wc.wc_flags = WC_WITH_IMM;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_device_has_its_verbs_status() {
        let codes = (0..=18u8).filter_map(|c| DevStatus::try_from(c).ok());
        let shown: Vec<(u8, i32)> = codes.map(|c| (c.into(), wc_status(c))).collect();
        let expected = [
            (0, 0),
            (1, 5),
            (2, 2),
            (3, 2),
            (4, 2),
            (5, 4),
            (6, 1),
            (7, 10),
            (8, 16),
            (9, 15),
            (10, 13),
            (11, 9),
            (12, 7),
            (13, 20),
            (14, 11),
            (15, 20),
            (18, 9),
        ];
        assert_eq!(shown, expected);
    }
}
