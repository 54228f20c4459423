//! A message, or a write to us, that is read from its sender's memory: where from, how far, and what is under way. Made
//! when its first packet comes, matched or not; driven by `reading`, owned by the engine's table of rma_reads.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::PeerId;
use crate::rdm::io::{Reg, Remote, RmaAddress};
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::wire::{Iovs, MAX_IOV};

use crate::rdm::rails::rail_plan::RailPlan;

/// One message, or write, being read.
#[derive(Debug)]
pub struct RmaRead {
    /// Whose memory it is.
    pub peer: PeerId,
    /// What it is for, once there is that: a receive, or a write of the peer's to our memory. Their ids differ.
    pub to: Option<SlotId>,
    /// The whole message in the sender's memory: a claim.
    pub iov: Iovs,
    /// Bytes that come in packets: the read begins behind them.
    pub from: u64,
    /// Where the next read begins.
    pub at: u64,
    /// Where reading ends: the message's end, or the receive's if that is shorter.
    pub end: u64,
    /// Reads that the wire has not ended.
    pub in_flight: u32,
    /// In its peer's queue of reads to post.
    pub queued: bool,
    /// The memory that is read to, piece by piece.
    pub regs: [Option<Reg>; MAX_IOV],
    /// How it is spread over rails, if it is; `at` and `regs` are not used then.
    pub rail_plan: Option<Box<(RailPlan, u64)>>,
    /// Nothing more is to be read: the rest comes by long-CTS, or the receive ends.
    pub stop: Option<Stop>,
}

/// Why a reading stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// We cannot read: the sender shall send.
    Nack,
    /// The sender shall send this one all the same.
    Declined,
    /// A read found the peer failed.
    PeerError(PeerError),
    /// The receive ends with this.
    Fail(OpError),
}

impl RmaRead {
    /// One of which nothing has been read, and that is for nobody yet.
    pub fn new(peer: PeerId, iov: Iovs, from: u64) -> RmaRead {
        RmaRead {
            peer,
            to: None,
            iov,
            from,
            at: from,
            end: from,
            in_flight: 0,
            queued: false,
            regs: [const { None }; MAX_IOV],
            rail_plan: None,
            stop: None,
        }
    }

    /// No read is left to post.
    pub fn all_posted(&self) -> bool {
        match &self.rail_plan {
            Some(rail_plan) => rail_plan.0.all_posted(),
            None => self.at == self.end,
        }
    }

    /// The way beside the wire that its owner has named, if any piece says of one.
    pub fn rma_address(&self) -> Option<RmaAddress> {
        if self.iov.count() < 2 {
            return None;
        }
        let way: RmaAddress =
            self.iov.as_slice().iter().skip(1).copied().filter(|iov| iov.len == 0).collect();
        (!way.is_empty()).then_some(way)
    }

    /// The sender's memory at `self.at`, and how many bytes there are in one piece.
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
    fn a_read_skips_into_the_pieces() {
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
