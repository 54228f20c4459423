//! Datagram (UD) queue pairs: errors of network and receiver are hidden, a GRH precedes each message.

#![allow(unsafe_code)]

use super::super::link::{Link, PostedRecv};
use super::QpCore;
use crate::api::Access;
use crate::efa::dev::{Cqe, CqeOp, DevStatus, Gid, QpKind, Sge};
use ucs::mem::guard;

pub(super) const GRH_LEN: u32 = 40;

/// Status shown to the sender of a datagram.
pub(super) fn ud_status(status: DevStatus) -> DevStatus {
    match status {
        DevStatus::Rnr
        | DevStatus::BadDestQpn
        | DevStatus::RemoteBadLength
        | DevStatus::RemoteAbort
        | DevStatus::Unresponsive
        | DevStatus::Unreachable => DevStatus::Ok,
        status => status,
    }
}

/// A global route header (InfiniBand 8.3), laid out as IPv6's.
fn grh(payload: u32, from: Gid, to: Gid) -> [u8; GRH_LEN as usize] {
    const VERSION: u8 = 6 << 4;
    const NEXT_IB: u8 = 0x1b;
    const HOPS: u8 = 0xff;
    let mut grh = [0; GRH_LEN as usize];
    grh[0] = VERSION;
    grh[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    grh[6..8].copy_from_slice(&[NEXT_IB, HOPS]);
    grh[8..24].copy_from_slice(&from.0);
    grh[24..40].copy_from_slice(&to.0);
    grh
}

impl<L: Link> QpCore<L> {
    #[cold]
    pub(in super::super) fn add_grh(&self, cqe: &mut Cqe, posted: &PostedRecv) {
        if self.kind != QpKind::Ud || cqe.op != CqeOp::Recv || cqe.status != DevStatus::Ok {
            return;
        }
        let header =
            Sge { addr: posted.addr.wrapping_sub(GRH_LEN as usize), len: GRH_LEN, lkey: posted.lkey };
        if !self.lkey_allows(&header, Access::LOCAL_WRITE) {
            cqe.status = DevStatus::InvalidLkey;
            return;
        }
        let grh = grh(cqe.len, cqe.src_gid, Gid::link_local(self.dev.link.iid()));
        cqe.len += GRH_LEN;
        // SAFETY: the header's place is a live registration for local writes (checked just now), in front of
        // the message.
        if !unsafe { guard::copy(grh.as_ptr(), header.addr, grh.len()) } {
            cqe.status = DevStatus::InvalidLkey;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ud_hides_receiver_errors_only() {
        assert_eq!(ud_status(DevStatus::Rnr), DevStatus::Ok);
        assert_eq!(ud_status(DevStatus::InvalidLkey), DevStatus::InvalidLkey);
        assert_eq!(ud_status(DevStatus::Flushed), DevStatus::Flushed);
    }

    #[test]
    fn golden_header() {
        let grh = grh(0x102, Gid::link_local(0x1122), Gid::link_local(0x3344));
        let mut want = [0u8; 40];
        want[..8].copy_from_slice(&[0x60, 0, 0, 0, 1, 2, 0x1b, 0xff]);
        want[8..10].copy_from_slice(&[0xfe, 0x80]);
        want[22..26].copy_from_slice(&[0x11, 0x22, 0xfe, 0x80]);
        want[38..].copy_from_slice(&[0x33, 0x44]);
        assert_eq!(grh, want);
    }
}
