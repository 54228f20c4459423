//! A message, or a write to us, that is read from its sender's memory. Created by its first packet.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::PeerId;
use crate::rdm::io::{Reg, Remote, RmaAddress};
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::wire::{Iovs, MAX_IOV};

use crate::rdm::op::staged::Staged;
use crate::rdm::rails::rail_plan::RailPlan;

#[derive(Debug)]
pub struct RmaRead {
    pub peer: PeerId,
    /// The receive, or the peer's write to our memory, whose data are read. Their ids differ.
    pub to: Option<SlotId>,
    /// The whole message in the sender's memory, as its unverified request says.
    pub iov: Iovs,
    /// Bytes that come in packets; the read begins after them.
    pub from: u64,
    pub at: u64,
    /// End of the read: the message's end, or the receive's if that is shorter.
    pub end: u64,
    pub in_flight: u32,
    /// The RMA-only lane reads on, and the peer may copy a part of it.
    pub lane_waits: bool,
    pub queued: bool,
    /// Registrations of the destination, by piece.
    pub regs: [Option<Reg>; MAX_IOV],
    /// Memory in between, for a receive that callbacks unpack.
    pub staged: Option<Staged>,
    /// Split over rails; `at` and `regs` are unused then.
    pub rail_plan: Option<Box<(RailPlan, u64)>>,
    /// Nothing more is read: the rest comes by long-CTS, or the receive ends.
    pub stop: Option<Stop>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// We cannot read: the sender must send the data.
    Nack,
    /// We could read, but the sender is asked to send this one.
    Declined,
    PeerError(PeerError),
    Fail(OpError),
}

impl RmaRead {
    /// Creates a read that has not begun and has no destination yet.
    pub fn new(peer: PeerId, iov: Iovs, from: u64) -> RmaRead {
        RmaRead {
            peer,
            to: None,
            iov,
            from,
            at: from,
            end: from,
            in_flight: 0,
            lane_waits: false,
            queued: false,
            regs: [const { None }; MAX_IOV],
            staged: None,
            rail_plan: None,
            stop: None,
        }
    }

    pub fn all_posted(&self) -> bool {
        match &self.rail_plan {
            Some(rail_plan) => rail_plan.0.all_posted(),
            None => self.at == self.end,
        }
    }

    /// Returns the address that the sender has named for reads by another transport, if any.
    pub fn rma_address(&self) -> Option<RmaAddress> {
        if self.iov.count() < 2 {
            return None;
        }
        let address: RmaAddress =
            self.iov.as_slice().iter().skip(1).copied().filter(|iov| iov.len == 0).collect();
        (!address.is_empty()).then_some(address)
    }

    /// Returns the sender's memory at `self.at` and the bytes left in that piece.
    pub fn next(&self) -> Option<(Remote, u64)> {
        let mut skip = self.at;
        for iov in self.iov.as_slice() {
            if skip < iov.len {
                let addr = iov.addr.checked_add(skip)?;
                return Some((Remote { addr, key: iov.key }, iov.len - skip));
            }
            skip -= iov.len;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::RmaIov;

    #[test]
    fn next_read_skips_earlier_pieces() {
        let piece = |addr, len| RmaIov { addr, len, key: addr };
        let iov = Iovs::try_from([piece(100, 10), piece(7, 0), piece(500, 5)].as_slice()).unwrap();
        let mut rma_read = RmaRead::new(PeerId(0), iov, 4);
        let at = |addr, key| Remote { addr, key };
        assert_eq!(rma_read.next(), Some((at(104, 100), 6)));
        rma_read.at = 10;
        assert_eq!(rma_read.next(), Some((at(500, 500), 5)));
        rma_read.at = 15;
        assert_eq!(rma_read.next(), None);
        rma_read.iov = Iovs::one(piece(u64::MAX, 9));
        rma_read.at = 3;
        assert_eq!(rma_read.next(), None, "wraps");
    }
}
