//! Packets of messages: what those of all protocols have in common. A protocol adds its own fields, and
//! chooses which bytes a packet carries.

use std::ops::Range;

use crate::rdm::ids::PeerId;
use crate::rdm::io::{NotPosted, PacketWriter, Wire};
use crate::rdm::op::tx::TxOp;
use crate::rdm::op::{Payload, SendBuf};
use crate::rdm::peers::Peers;
use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol, SendProgress};
use crate::rdm::status::OpError;
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

/// A packet of a message: the headers that `hdr` makes when there is room for them, and `body` behind. It
/// writes all packets of messages, of every protocol.
#[derive(Clone, Copy)]
pub(in crate::rdm) struct MessagePacket<F, B> {
    pub hdr: F,
    pub body: B,
}

impl<H: RtmHeader, F: FnOnce() -> H + Copy, B: Payload> PacketWriter for MessagePacket<F, B> {
    // HOT
    #[inline(always)]
    fn fill(self, slot: &mut [u8]) -> usize {
        let at = (self.hdr)().write(slot);
        at + self.body.copy_all(&mut slot[at..])
    }
}

impl Payload for &[u8] {
    #[inline(always)]
    fn size(&self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn copy_all(self, to: &mut [u8]) -> usize {
        copy_packed(self, to)
    }
}

/// `len` bytes of `buf` from `at`.
#[derive(Clone, Copy)]
struct Part<'a> {
    buf: &'a SendBuf,
    at: usize,
    len: usize,
}

impl Payload for Part<'_> {
    #[inline(always)]
    fn size(&self) -> usize {
        self.len
    }
    #[inline(always)]
    fn copy_all(self, to: &mut [u8]) -> usize {
        self.buf.copy_to(self.at, &mut to[..self.len])
    }
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
    /// Without `msg_id` it is the first packet and takes the next id. Returns the id.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn post<W: Wire, H: RtmHeader>(
        &self,
        peers: &mut Peers,
        w: &mut W,
        msg_id: Option<u32>,
        (header, part): (usize, Range<usize>),
        hdr: impl FnOnce(CommonFields) -> H,
    ) -> Result<u32, SendProgress> {
        if self.buf.has_callbacks() {
            return self.post_packed(peers, w, msg_id, (header, part), hdr);
        }
        let part = Part { buf: &self.buf, at: part.start, len: part.len() };
        Ok(self.post_with(peers, w, msg_id, header, hdr, part)?)
    }

    /// Posts bytes that callbacks pack. They are packed before, so that a failing callback sends nothing and
    /// uses no id. To a peer that has a part of the message and cannot be told of the failure, zeros go.
    #[cold]
    fn post_packed<W: Wire, H: RtmHeader>(
        &self,
        peers: &mut Peers,
        w: &mut W,
        msg_id: Option<u32>,
        (header, part): (usize, Range<usize>),
        hdr: impl FnOnce(CommonFields) -> H,
    ) -> Result<u32, SendProgress> {
        let posted = with_packed(peers, self.to, &self.buf, part, msg_id.is_none(), |peers, bytes| {
            self.post_with(peers, w, msg_id, header, hdr, bytes)
        });
        Ok(posted.map_err(SendProgress::Fail)??)
    }

    /// Posts a packet with `body` behind the headers.
    // HOT
    #[inline(always)]
    fn post_with<W: Wire, H: RtmHeader>(
        &self,
        peers: &mut Peers,
        w: &mut W,
        msg_id: Option<u32>,
        header: usize,
        hdr: impl FnOnce(CommonFields) -> H,
        body: impl Payload,
    ) -> Result<u32, NotPosted> {
        let &Message { to, tag, class, cq_data, .. } = self;
        let peer = &peers.table[to];
        let opts = peers.wires.req_opts(peer, cq_data).of_class(class);
        let id = msg_id.unwrap_or(peer.next_tx);
        let hdr = hdr(CommonFields { msg_id: id, tag, opts });
        let packet = MessagePacket { hdr: || hdr, body };
        peers.post(w, to, hdr.ty(), header + body.size(), |slot| packet.fill(slot))?;
        if msg_id.is_none() {
            peers.table[to].next_tx = id.wrapping_add(1);
        }
        Ok(id)
    }

    /// Posts the announcement of a long-CTS message, with its first bytes.
    pub(in crate::rdm) fn post_long_cts<W: Wire>(
        &self,
        peers: &mut Peers,
        w: &mut W,
        protocol: Protocol,
        send_id: u32,
        first_bytes: usize,
    ) -> Result<u32, SendProgress> {
        let header = self.header_len(peers, protocol);
        let hdr = self.long_cts(peers, protocol, send_id, Cause::Fresh);
        self.post(peers, w, None, (header, 0..first_bytes), hdr)
    }

    /// Posts the announcement of a message that could not be read, without any of its bytes.
    pub(in crate::rdm) fn post_reannouncement<W: Wire>(
        &self,
        peers: &mut Peers,
        w: &mut W,
        protocol: Protocol,
        (send_id, msg_id): (u32, u32),
    ) -> Result<(), NotPosted> {
        let header = self.header_len(peers, protocol);
        let hdr = self.long_cts(peers, protocol, send_id, Cause::ReadNack);
        self.post_with(peers, w, Some(msg_id), header, hdr, &[][..]).map(drop)
    }

    fn long_cts(
        &self,
        peers: &Peers,
        protocol: Protocol,
        send_id: u32,
        cause: Cause,
    ) -> impl FnOnce(CommonFields) -> LongCts + use<> {
        let (msg_length, credit_request) = (self.buf.len() as u64, peers.cfg.cts_credits);
        let delivery =
            if protocol.sync() == DeliveryComplete::Yes { Delivery::Complete } else { Delivery::Plain };
        move |CommonFields { msg_id, tag, opts }| LongCts {
            msg_id,
            tag,
            delivery,
            msg_length,
            send_id,
            credit_request,
            cause,
            opts,
        }
    }
}

/// Copies packed bytes to the start of `to`, up to the end of either. Returns how many.
pub(in crate::rdm) fn copy_packed(bytes: &[u8], to: &mut [u8]) -> usize {
    let len = bytes.len().min(to.len());
    to[..len].copy_from_slice(&bytes[..len]);
    len
}

/// Packs `part` of `buf`, which has callbacks, and sends the bytes. Fails without sending if a callback
/// has failed, and the peer has nothing of the message yet or can be told.
pub(in crate::rdm) fn with_packed<T>(
    peers: &mut Peers,
    to: PeerId,
    buf: &SendBuf,
    part: Range<usize>,
    is_first: bool,
    send: impl FnOnce(&mut Peers, &[u8]) -> T,
) -> Result<T, OpError> {
    let mut bytes = std::mem::take(&mut peers.packed);
    bytes.resize(part.len(), 0);
    buf.copy_to(part.start, &mut bytes);
    let sent = match buf.error() {
        Some(error) if is_first || peers.table.can_send_error(to) => Err(OpError::Datatype(error)),
        _ => Ok(send(peers, &bytes)),
    };
    peers.packed = bytes;
    sent
}
