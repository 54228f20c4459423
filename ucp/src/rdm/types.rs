//! Arguments, results and configuration of the engine: plain types of its public face.
//! Used by `api` and `lane`; no behaviour here.

use crate::rdm::features::ReqHdr;
use crate::rdm::flow::retry::RetryPolicy;
use crate::rdm::ids::{MsgHandle, OpId, PeerId, Source, WireId};
use crate::rdm::io::Rdma;
use crate::rdm::op::{RecvBuf, SendBuf};
use crate::rdm::protocol::{Kind, Protocol, Sync};
use crate::rdm::rails::rail_plan::MAX_RAILS;
use crate::rdm::recv::matching::Pattern;
use crate::rdm::status::{OpError, PeerError, RecvStatus};
use crate::wire::{Features, MsgClass, RawAddr};

/// How much of a long message is granted by one CTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// [`EngineConfig::cts_credits`] packets: what a wire has receive buffers for is bounded.
    Window,
    /// All that is missing: the wire itself makes senders wait for room, so a window would only cost time.
    Whole,
}

/// Whether the peer's processor may be asked to do what is one-sided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Emulation {
    /// Where no device does it.
    #[default]
    Allowed,
    /// Never: such an operation fails with [`OpError::Emulated`], before anything of it is sent.
    Refused,
}

/// Handling of an untagged message to a peer whose HANDSHAKE has not come: it may be in zero-copy receive
/// mode, and loses packets with messages then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum FirstContact {
    /// It goes out: other peers take it, and know us by it.
    #[default]
    Send,
    /// It waits for the HANDSHAKE.
    Wait,
}

/// How long the headers of a peer's REQ packets are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReqLen {
    /// As short as may be: the connid says who sends.
    #[default]
    Shortest,
    /// Constant: the raw address names the sender, in the last packet as in the first.
    Constant,
}

/// Limits and identity of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Packets granted by one CTS (libfabric: `FI_EFA_TX_MIN_CREDITS`).
    pub cts_credits: u32,
    /// Vendor part id sent in HANDSHAKE.
    pub device_version: u32,
    /// Most peers, those that introduce themselves included.
    pub max_peers: u32,
    /// Packets sent to one peer before the next one's turn.
    pub burst: u32,
    /// Bytes of the head of a RUNTREAD message; 0: there are none (libfabric: `FI_EFA_RUNT_SIZE`).
    pub runt_size: usize,
    /// Longest read of a message in one piece, bytes (libfabric: `FI_EFA_INTER_READ_SEGMENT_SIZE`).
    pub read_segment: u64,
    /// Memory that unexpected messages may use before
    /// [`Engine::may_stop_polling`](crate::rdm::Engine::may_stop_polling) says so, bytes.
    pub unexpected_max: usize,
    /// Hard limit of the memory of unexpected messages, bytes: a peer whose message would cost more
    /// [fails](PeerError::Flood).
    pub unexpected_hard_max: usize,
    /// Whether one-sided operations may go by packets.
    pub emulation: Emulation,
    /// Whether untagged messages wait for their peer's HANDSHAKE.
    pub first_contact: FirstContact,
    /// How long a receiver that is not ready is left alone.
    pub retry: RetryPolicy,
    /// Most rails of one message; 1: only the peer's own wire.
    pub rndv_rails: u8,
    /// Fewest bytes of a message that go over one rail.
    pub rndv_chunk: u64,
    /// Most rails of one put or get.
    pub rma_rails: u8,
    /// Fewest bytes of a put or get that go over one rail.
    pub rma_chunk: u64,
    /// Part of the keys of memory: differs between workers.
    pub nonce: u32,
    /// Length of the headers that peers' REQ packets carry once they have our HANDSHAKE.
    pub req_len: ReqLen,
    /// Features that our HANDSHAKE leaves out, as if we were an older peer: others then take their fallbacks.
    pub withhold: Features,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            cts_credits: 32,
            device_version: 0xefa2,
            max_peers: 1 << 24,
            burst: 16,
            runt_size: 0,
            read_segment: 1 << 30,
            unexpected_max: 256 << 20,
            unexpected_hard_max: 1 << 30,
            emulation: Emulation::Allowed,
            first_contact: FirstContact::Send,
            retry: RetryPolicy::default(),
            rndv_rails: MAX_RAILS as u8,
            rndv_chunk: 128 << 10,
            rma_rails: MAX_RAILS as u8,
            rma_chunk: 128 << 10,
            nonce: 0,
            req_len: ReqLen::Shortest,
            withhold: Features::empty(),
        }
    }
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendArgs {
    /// The bytes.
    pub buf: SendBuf,
    /// The tag; `None` for an untagged message.
    pub tag: Option<u64>,
    /// When it is complete; a protocol that is delivery complete makes it [`Sync::Yes`] in any case.
    pub sync: Sync,
    /// Data for the receiver's completion.
    pub cq_data: Option<u64>,
    /// How to send it (from `select`). A message that does not fit one packet goes as MEDIUM if `protocol` is
    /// eager.
    pub protocol: Protocol,
    /// Comes back in [`EngineEvent::SendDone`].
    pub user: u64,
}

/// The messages that a receive or a probe looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvKind {
    /// A tagged message whose tag equals `tag` in the bits set in `mask`.
    Tagged {
        /// Bits wanted,
        tag: u64,
        /// where this is set.
        mask: u64,
    },
    /// An untagged message.
    Untagged,
    /// A message of one of our own classes.
    Class {
        /// Which; [`MsgClass::Message`] stands for tagged messages.
        class: MsgClass,
        /// Bits wanted,
        tag: u64,
        /// where this is set.
        mask: u64,
    },
}

impl RecvKind {
    /// Which of the two queues.
    #[inline]
    pub const fn kind(self) -> Kind {
        match self {
            RecvKind::Tagged { .. } => Kind::Tagged,
            RecvKind::Untagged => Kind::Untagged,
            RecvKind::Class { class, .. } => Kind::of(Some(0), class),
        }
    }

    #[inline]
    pub(super) const fn pattern(self, from: Option<PeerId>) -> Pattern {
        match self {
            RecvKind::Tagged { tag, mask } | RecvKind::Class { tag, mask, .. } => Pattern { tag, mask, from },
            RecvKind::Untagged => Pattern { from, ..Pattern::ANY },
        }
    }
}

/// A receive to post.
#[derive(Debug)]
pub struct RecvArgs {
    /// Where the bytes go.
    pub buf: RecvBuf,
    /// Which messages match.
    pub kind: RecvKind,
    /// Only messages of this peer match.
    pub from: Option<PeerId>,
    /// Comes back in [`EngineEvent::RecvDone`].
    pub user: u64,
}

/// How an operation began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started<T> {
    /// It is complete; no [`EngineEvent`] follows.
    Done(T),
    /// It goes on; exactly one [`EngineEvent`] follows.
    Pending(OpId),
    /// It failed; no [`EngineEvent`] follows.
    Failed(OpError),
}

/// Something came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineEvent {
    /// A send.
    SendDone {
        /// As given.
        user: u64,
        /// How it ended.
        result: Result<(), OpError>,
    },
    /// A receive.
    RecvDone {
        /// As given.
        user: u64,
        /// Status of the message received.
        result: Result<RecvStatus, OpError>,
    },
    /// One message of a receive of many.
    MultiRecvMessage {
        /// As given.
        user: u64,
        /// Where in the buffer it is.
        at: usize,
        /// Status of the message received.
        result: Result<RecvStatus, OpError>,
    },
    /// A receive of many messages: nothing more is written to its buffer.
    MultiRecvDone {
        /// As given.
        user: u64,
        /// Bytes of the buffer used, when little enough was left; an error if it was ended before that.
        result: Result<usize, OpError>,
    },
    /// A one-sided operation.
    RmaDone {
        /// As given.
        user: u64,
        /// How it ended.
        result: Result<(), OpError>,
    },
    /// A peer has written to our memory, and said so.
    RemoteWrite {
        /// Which peer.
        from: PeerId,
        /// Bytes.
        len: u64,
        /// Data that came with the write.
        cq_data: u64,
    },
    /// A peer. Its operations have ended with the fault; nothing can be sent to it any more.
    PeerFailed {
        /// Which.
        peer: PeerId,
        /// Why.
        fault: PeerError,
    },
}

/// Should a probe take the message out, so that only `recv_probed` can receive it?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeRemove {
    /// Leave it for any receive.
    No,
    /// Take it.
    Yes,
}

/// A message found by a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probed {
    /// To receive it by; only good after [`Take::Yes`].
    pub handle: MsgHandle,
    /// Bytes of the whole message.
    pub len: u64,
    /// Tag; 0 for an untagged message.
    pub tag: u64,
    /// The sender.
    pub from: PeerId,
}

/// Public view of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerView {
    /// The wire it is on.
    pub wire: WireId,
    /// Address of the peer.
    pub addr: RawAddr,
    /// Source of the peer's packets.
    pub from: Source,
    /// The feature word of its HANDSHAKE, once that has arrived.
    pub features: Option<Features>,
    /// Identity header of our REQ packets to it: selection depends on it.
    pub hdr: ReqHdr,
    /// RDMA capabilities of its wire.
    pub rdma: Rdma,
    /// Sends to it that are not complete.
    pub outstanding: u32,
    /// Why it failed, if it did.
    pub fault: Option<PeerError>,
}
