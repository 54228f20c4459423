//! Headerless sends: untagged messages to peers in zero-copy receive mode (libfabric 1.22 to 2.5), whose device puts them
//! into the program's receives itself (RDM v4 4.8; wire facts 11.3). The sending half only: this end never asks for it.
//! Called for every send to such a peer; it has no packet, no id and no order, and nobody acknowledges it.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ask::OpError;
use crate::rdm::io::{Fault, Refused, Wire};
use crate::rdm::op::tx::{TxOp, TxState};
use crate::rdm::peer::Was;
use crate::rdm::room::{Kind, Push, Row, Sync};

/// Sends the op at the head of its peer's queue, or says why that peer does not take it.
// [M5.10] [M5.11]
pub(in crate::rdm) fn push<W: Wire>(e: &mut Engine, w: &mut W, id: SlotId) -> Push {
    let Some(op) = e.tx.get_mut(id) else { return Push::Out };
    let (to, buf) = (op.peer, op.buf);
    let max = w.mtu(to);
    let imm = match fits(op, max) {
        Ok(imm) => imm,
        Err(error) => return Push::Fail(error),
    };
    op.row = Row::Headerless;
    let peer = &mut e.peers[to];
    let Some(qp) = peer.work.as_ref().and_then(|work| work.user_qp) else {
        return Push::Fail(OpError::Unsupported);
    };
    match w.send_headerless(to, qp, buf.len(), imm, |slot| buf.copy_to(0, slot)) {
        Ok(_) => {
            peer.was |= Was::POSTED | Was::ASKED;
            e.by_peer.of(to).tx_pkts += 1;
            e.all_out(w, id);
            Push::Out
        }
        Err(Refused::Full) => {
            e.stats.rare.full += 1;
            Push::Full
        }
        Err(Refused::Fault(Fault::NO_RDMA)) => Push::Fail(OpError::Unsupported),
        Err(refused) => refused.into(),
    }
}

/// The word that goes along, if the message can go at all: untagged, in one packet of nothing else, with no more than 32
/// bits of data for the completion, and without a RECEIPT, which nobody there would send.
fn fits(op: &TxOp, max: usize) -> Result<Option<u32>, OpError> {
    let begun = op.state != TxState::Queued;
    let sync = op.sync == Sync::Yes || op.row.sync() == Sync::Yes;
    if begun || sync || op.kind() != Kind::Untagged {
        return Err(OpError::Unsupported);
    }
    let imm = op.cq_data.map(u32::try_from).transpose().map_err(|_| OpError::Unsupported)?;
    match op.buf.len() {
        len if len > max => Err(OpError::TooLong { len, max }),
        _ => Ok(imm),
    }
}
