//! A send that is not complete: waiting for room, between packets, for a grant or for a receipt.
//! Driven by the rooms; owned by the engine's send table.

use crate::rdm::ids::PeerId;
use crate::rdm::ids::WireId;
use crate::rdm::io::Reg;
use crate::rdm::op::buf::SendBuf;
use crate::rdm::protocol::{Kind, Protocol, Sync};
use crate::rdm::rails::rail_plan::RailList;
use crate::wire::MsgClass;

/// How far a send has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxState {
    /// In the peer's send queue, no packet out, no `msg_id` taken: may be cancelled.
    Queued,
    /// MEDIUM or RUNTREAD with some packets out; at the head of the peer's send queue.
    Sending,
    /// LONGCTS: the first packet is out, data follows as the receiver grants.
    Granted,
    /// All bytes are out; only the RECEIPT is missing.
    AllOut,
    /// LONGREAD, RUNTREAD: all packets are out, the receiver reads.
    Exposed,
    /// RUNTREAD: EOR has come, packets of the head are not out yet.
    Ended,
    /// The receiver cannot read: it is to be announced once more, as LONGCTS.
    Nacked,
}

/// One send.
#[derive(Debug)]
pub struct TxOp {
    /// The bytes.
    pub buf: SendBuf,
    /// Returned with the completion.
    pub user: u64,
    /// Tag of a tagged message.
    pub tag: Option<u64>,
    /// Whose message it is.
    pub class: MsgClass,
    /// Data for the receiver's completion.
    pub cq_data: Option<u64>,
    /// Bytes the wire has taken.
    pub sent: usize,
    /// Bytes of the current grant not yet sent.
    pub window: usize,
    /// To whom.
    pub peer: PeerId,
    /// Valid once a packet is out.
    pub msg_id: u32,
    /// The receiver's id, once its CTS has told it.
    pub recv_id: Option<u32>,
    /// How it is sent.
    pub protocol: Protocol,
    /// When it is complete.
    pub sync: Sync,
    /// Registered for the receiver to read.
    pub reg: Option<Reg>,
    /// The same on further wires.
    pub rails: Option<Box<RailList<(WireId, Reg)>>>,
    /// How far it is.
    pub state: TxState,
    /// In the peer's data queue.
    pub in_data_queue: bool,
}

impl TxOp {
    /// Which queue of the receiver it is for.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::of(self.tag, self.class)
    }
}
