//! Packets of messages: what those of all protocols have in common. A protocol adds its own fields, and
//! chooses which bytes a packet carries.

use std::ops::Range;

use crate::rdm::ids::PeerId;
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::op::SendBuf;
use crate::rdm::op::tx::TxOp;
use crate::rdm::peers::Peers;
use crate::rdm::protocol::{Kind, Protocol, Sync};
use crate::wire::rtm::{LongCts, RtmHeader};
use crate::wire::{Cause, Delivery, MsgClass, Opts};

/// A message to be sent.
#[derive(Clone, Copy)]
pub(in crate::rdm) struct Message {
    pub to: PeerId,
    pub tag: Option<u64>,
    pub class: MsgClass,
    pub cq_data: Option<u64>,
    pub buf: SendBuf,
}

/// Header fields that each packet of a message has.
pub(in crate::rdm) struct CommonFields {
    pub msg_id: u32,
    pub tag: Option<u64>,
    pub opts: Opts,
}

impl TxOp {
    /// Returns the message of a send.
    #[inline]
    pub(in crate::rdm) fn message(&self) -> Message {
        let &TxOp { peer, tag, class, cq_data, buf, .. } = self;
        Message { to: peer, tag, class, cq_data, buf }
    }
}

impl Message {
    /// Returns the bytes before the payload of a packet; a name of memory to read comes on top.
    #[inline]
    pub(in crate::rdm) fn header_len(&self, peers: &Peers, protocol: Protocol) -> usize {
        let kind = Kind::of(self.tag, self.class);
        protocol.header_len(kind, peers.table[self.to].hdr(), self.cq_data.is_some())
    }

    /// Posts a packet: the headers that `hdr` makes, of `header` bytes, and the bytes `part`.
    /// Without `msg_id` it is the first packet and takes the next id. Returns the id. // HOT
    #[inline(always)]
    pub(in crate::rdm) fn post<W: Wire, H: RtmHeader>(
        &self,
        peers: &mut Peers,
        w: &mut W,
        msg_id: Option<u32>,
        (header, part): (usize, Range<usize>),
        hdr: impl FnOnce(CommonFields) -> H,
    ) -> Result<u32, NotPosted> {
        let &Message { to, tag, class, cq_data, buf } = self;
        let peer = &peers.table[to];
        let opts = peers.wires.req_opts(peer, cq_data).of_class(class);
        let id = msg_id.unwrap_or(peer.next_tx);
        let hdr = hdr(CommonFields { msg_id: id, tag, opts });
        peers.post(w, to, hdr.ty(), header + part.len(), |slot| {
            let at = hdr.write(slot);
            at + buf.copy_to(part.start, &mut slot[at..at + part.len()])
        })?;
        if msg_id.is_none() {
            peers.table[to].next_tx = id.wrapping_add(1);
        }
        Ok(id)
    }

    /// Posts the announcement of a long-CTS message, with its first bytes. `msg_id`: of a message that could
    /// not be read, of which no bytes go along.
    pub(in crate::rdm) fn post_long_cts<W: Wire>(
        &self,
        peers: &mut Peers,
        w: &mut W,
        protocol: Protocol,
        send_id: u32,
        (msg_id, first_bytes): (Option<u32>, usize),
    ) -> Result<u32, NotPosted> {
        let header = self.header_len(peers, protocol);
        let credit_request = peers.cfg.cts_credits;
        let cause = if msg_id.is_some() { Cause::ReadNack } else { Cause::Fresh };
        self.post(peers, w, msg_id, (header, 0..first_bytes), |common| LongCts {
            msg_id: common.msg_id,
            tag: common.tag,
            delivery: if protocol.sync() == Sync::Yes { Delivery::Complete } else { Delivery::Plain },
            msg_length: self.buf.len() as u64,
            send_id,
            credit_request,
            cause,
            opts: common.opts,
        })
    }
}
