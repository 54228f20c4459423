//! Types shared by protocols and the engine: the protocol of a send, the handler of a packet type, and send
//! progress. Read by `select` and `handlers`; plain data.

use crate::rdm::features::ReqHdr;
use crate::rdm::ids::PeerId;
use crate::rdm::io::NotPosted;
use crate::rdm::recv::sequence::{MsgIdUse, MsgOrder};
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::wire::rta::RtaKind;
use crate::wire::rtm::RtmBody;
use crate::wire::rtw::RtwBody;
use crate::wire::{MsgClass, Packet, PktType};

/// Kind of a message: only receives of the same kind match it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Carries a 64-bit tag; matched by tag and mask.
    Tagged = MsgClass::Message as u8,
    /// An active message ([`MsgClass::Am`]). This and the following two carry a tag as well.
    Am = MsgClass::Am as u8,
    /// Data of an announced active message ([`MsgClass::AmData`]).
    AmData = MsgClass::AmData as u8,
    /// A piece of a stream ([`MsgClass::Stream`]).
    Stream = MsgClass::Stream as u8,
    /// Carries no tag; matched in order of arrival.
    Untagged,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = 5;

    /// Returns the kind of a message with this tag and class. Untagged messages have no class.
    // HOT
    #[inline(always)]
    pub const fn of(tag: Option<u64>, class: MsgClass) -> Kind {
        match (tag, class) {
            (None, _) => Kind::Untagged,
            (Some(_), MsgClass::Message) => Kind::Tagged,
            (Some(_), MsgClass::Am) => Kind::Am,
            (Some(_), MsgClass::AmData) => Kind::AmData,
            (Some(_), MsgClass::Stream) => Kind::Stream,
        }
    }
}

/// Completion semantics of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum DeliveryComplete {
    /// Complete when the buffer may be reused.
    #[default]
    No,
    /// Complete when the data is in the receiver's buffer (delivery complete).
    Yes,
}

/// Protocol of a message. The `Dc` variants ask the receiver for a RECEIPT.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Protocol {
    /// One packet.
    Eager,
    /// Several packets without a grant.
    Medium,
    /// First packet, then data as the receiver grants (CTS).
    LongCts,
    /// [`Protocol::Eager`], delivery complete.
    DcEager,
    /// [`Protocol::Medium`], delivery complete.
    DcMedium,
    /// [`Protocol::LongCts`], delivery complete.
    DcLongCts,
    /// The receiver reads the message and sends EOR: as good as delivery complete.
    LongRead,
    /// [`Protocol::LongRead`] with the head of the message in packets.
    RuntRead,
    /// Bytes without a header, to the user receive QP of a peer in zero-copy receive mode. Chosen by the
    /// engine.
    UserQp,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 9] = [
        Protocol::Eager,
        Protocol::Medium,
        Protocol::LongCts,
        Protocol::DcEager,
        Protocol::DcMedium,
        Protocol::DcLongCts,
        Protocol::LongRead,
        Protocol::RuntRead,
        Protocol::UserQp,
    ];

    /// Returns the variant for this completion.
    #[inline]
    pub const fn with(self, sync: DeliveryComplete) -> Protocol {
        match (self.plain(), sync) {
            (Protocol::Eager, DeliveryComplete::Yes) => Protocol::DcEager,
            (Protocol::Medium, DeliveryComplete::Yes) => Protocol::DcMedium,
            (Protocol::LongCts, DeliveryComplete::Yes) => Protocol::DcLongCts,
            // [M7.9]
            (Protocol::RuntRead, DeliveryComplete::Yes) => Protocol::LongRead,
            (protocol, _) => protocol,
        }
    }

    /// Returns the variant without delivery complete.
    #[inline]
    pub const fn plain(self) -> Protocol {
        match self {
            Protocol::Eager | Protocol::DcEager => Protocol::Eager,
            Protocol::Medium | Protocol::DcMedium => Protocol::Medium,
            Protocol::LongCts | Protocol::DcLongCts => Protocol::LongCts,
            // The engine chooses it, not the caller.
            Protocol::UserQp => Protocol::Eager,
            protocol => protocol,
        }
    }

    /// Whether a send by this protocol ends by a RECEIPT.
    #[inline]
    pub const fn sync(self) -> DeliveryComplete {
        match self {
            Protocol::DcEager | Protocol::DcMedium | Protocol::DcLongCts => DeliveryComplete::Yes,
            _ => DeliveryComplete::No,
        }
    }

    /// Bytes of the mandatory header of its first packet (RDM v4, wire facts 1.3).
    #[inline]
    pub const fn fixed_len(self, kind: Kind) -> usize {
        let untagged = match self {
            Protocol::Eager => 8,
            Protocol::DcEager => 16,
            Protocol::Medium | Protocol::LongCts | Protocol::DcLongCts | Protocol::LongRead => 24,
            Protocol::RuntRead => 40,
            Protocol::DcMedium => 32,
            Protocol::UserQp => return 0,
        };
        match kind {
            Kind::Untagged => untagged,
            _ => untagged + 8,
        }
    }

    /// Bytes before the payload of its first packet.
    #[inline]
    pub const fn header_len(self, kind: Kind, hdr: ReqHdr, cq_data: bool) -> usize {
        if let Protocol::UserQp = self {
            return 0;
        }
        let cq = if cq_data { 8 } else { 0 };
        self.fixed_len(kind) + hdr.wire_len() + cq
    }

    /// Payload bytes that fit behind the headers in a packet of `mtu` bytes.
    #[inline]
    pub const fn capacity(self, kind: Kind, hdr: ReqHdr, cq_data: bool, mtu: usize) -> usize {
        mtu.saturating_sub(self.header_len(kind, hdr, cq_data))
    }

    /// Name as printed by tools.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Eager => "eager",
            Protocol::Medium => "medium",
            Protocol::LongCts => "longcts",
            Protocol::DcEager => "dc_eager",
            Protocol::DcMedium => "dc_medium",
            Protocol::DcLongCts => "dc_longcts",
            Protocol::LongRead => "longread",
            Protocol::RuntRead => "runtread",
            Protocol::UserQp => "headerless",
        }
    }
}

/// The file of `protocols` that handles a packet type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) enum HandlerKind {
    Eager,
    /// DC_EAGER_MSGRTM: a close, or as `Eager`.
    Close,
    /// DC_EAGER_TAGRTM: a note, or as `Eager`.
    Note,
    Medium,
    LongCts,
    LongRead,
    ReadNack,
    PeerError,
    Handshake,
    Receipt,
    Write,
    WriteRead,
    Read,
    Atomic,
    /// No handler: counted and dropped.
    None,
}

/// Handler of one packet type, and its part in the message order.
#[derive(Clone, Copy, Debug)]
pub(in crate::rdm) struct PacketHandler {
    pub ty: PktType,
    /// The handler.
    pub kind: HandlerKind,
    /// For packets with a `msg_id`: how several may use the same.
    pub id_use: Option<MsgIdUse>,
}

/// A parsed packet on its way to its handler.
#[derive(Clone, Copy, Debug)]
pub(in crate::rdm) struct Arrival<'a> {
    /// The sender.
    pub peer: PeerId,
    /// The handler of its type.
    pub handler: &'static PacketHandler,
    /// The parsed packet: lengths are checked, claims are not.
    pub packet: &'a Packet<'a>,
    /// `MsgOrder::Next`, or `MsgOrder::Past` for a further packet of a message.
    pub order: MsgOrder,
}

/// Result of an attempt to send the next packet of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) enum SendProgress {
    /// A packet went out; more of this send follow.
    Sent,
    /// The last packet that needs no answer went out: the send leaves its queue.
    Done,
    /// No room; nothing changed.
    Full,
    /// The send waits for the peer's HANDSHAKE.
    AwaitHandshake,
    /// Another protocol has to continue it.
    Switch(Protocol),
    /// The send failed.
    Fail(OpError),
    /// The peer failed.
    PeerFailed(PeerError),
}

/// Result of one step for a peer.
pub(in crate::rdm) enum Step {
    /// A packet was sent, or a send ended.
    Done,
    /// Nothing to do before the peer answers.
    Idle,
    Full,
}

impl From<NotPosted> for SendProgress {
    fn from(refused: NotPosted) -> SendProgress {
        match refused {
            NotPosted::Full => SendProgress::Full,
            NotPosted::Peer(fault) => SendProgress::PeerFailed(fault),
        }
    }
}

/// Returns the requester's id of a request, if it would accept a PEER_ERROR by it.
pub(in crate::rdm) fn requester_id(packet: &Packet<'_>) -> Option<u32> {
    match packet {
        Packet::Rtm(rtm) => match rtm.body {
            RtmBody::LongCts { send_id, .. }
            | RtmBody::LongRead { send_id, .. }
            | RtmBody::RuntRead { send_id, .. } => Some(send_id),
            RtmBody::Eager | RtmBody::Medium { .. } => rtm.receipt,
        },
        Packet::Rtw(rtw) => match rtw.body {
            RtwBody::Eager => rtw.receipt,
            RtwBody::LongCts { send_id, .. } | RtwBody::LongRead { send_id, .. } => Some(send_id),
        },
        Packet::Rtr(rtr) => Some(rtr.recv_id),
        Packet::Rta(rta, _) => match rta.kind {
            RtaKind::Write => None,
            RtaKind::DcWrite { send_id } => Some(send_id),
            RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => Some(recv_id),
        },
        _ => None,
    }
}
