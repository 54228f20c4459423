//! A send that is not complete: waiting for room, between packets, for a grant or for a receipt.

use crate::rdm::ids::PeerId;
use crate::rdm::ids::WireId;
use crate::rdm::io::Reg;
use crate::rdm::op::send_buf::SendBuf;
use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol};
use crate::rdm::rails::rail_plan::RailList;
use crate::wire::MsgClass;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxState {
    /// In the peer's send queue, no packet out, no `msg_id` taken: may be cancelled.
    Queued,
    /// MEDIUM or RUNTREAD with some packets out; at the head of the peer's send queue.
    Sending,
    /// LONGCTS: the first packet is out, data follows as the receiver grants.
    Granted,
    /// All bytes are out; only the RECEIPT is missing.
    AllSent,
    /// LONGREAD, RUNTREAD: all packets are out, the receiver reads.
    Exposed,
    /// RUNTREAD: EOR has come, packets of the head are not out yet.
    Ended,
    /// The receiver cannot read: the message restarts as LONGCTS.
    Nacked,
}

#[derive(Debug)]
pub struct TxOp {
    pub buf: SendBuf,
    pub user: u64,
    pub tag: Option<u64>,
    pub class: MsgClass,
    pub cq_data: Option<u64>,
    /// Bytes that the wire has accepted.
    pub sent: usize,
    /// Bytes of the current grant not yet sent.
    pub window: usize,
    pub peer: PeerId,
    /// Valid once a packet is out.
    pub msg_id: u32,
    /// The receiver's id, once its CTS has come.
    pub recv_id: Option<u32>,
    pub protocol: Protocol,
    pub sync: DeliveryComplete,
    pub reg: Option<Reg>,
    /// Registrations on further wires.
    pub rails: Option<Box<RailList<(WireId, Reg)>>>,
    pub state: TxState,
    pub in_data_queue: bool,
}

impl TxOp {
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::of(self.tag, self.class)
    }
}
