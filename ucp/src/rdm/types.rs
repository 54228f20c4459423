//! Arguments, results and configuration of the engine: plain types of its public face.
//! Used by `api` and `lane`; no behaviour here.

use std::time::Duration;

use crate::rdm::features::ReqHdr;
use crate::rdm::flow::retry::RetryPolicy;
use crate::rdm::ids::{MsgHandle, OpId, PeerId, Source, WireId};
use crate::rdm::io::Rdma;
use crate::rdm::op::{RecvBuf, SendBuf};
use crate::rdm::protocol::{DeliveryComplete, Kind, Protocol};
use crate::rdm::rails::rail_plan::MAX_RAILS;
use crate::rdm::recv::matching::Pattern;
use crate::rdm::status::{OpError, PeerError, RecvStatus};
use crate::wire::{Features, MsgClass, RawAddr};

/// Amount of a long message that one CTS grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// [`EngineConfig::cts_credits`] packets, as the wire has a bounded number of receive buffers.
    Window,
    /// All that is missing: the wire itself applies back-pressure, so a window would only cost time.
    Whole,
}

/// Policy for one-sided operations that no device does: whether the peer's processor may do them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Emulation {
    /// Emulated where no device does it.
    #[default]
    Allowed,
    /// Fails with [`OpError::Emulated`], before anything is sent.
    Refused,
}

/// Handling of an untagged message to a peer whose HANDSHAKE has not arrived. In zero-copy receive mode such
/// a peer loses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum FirstContact {
    /// Sent at once.
    #[default]
    Send,
    /// Waits for the HANDSHAKE.
    Wait,
}

/// Length of the headers of a peer's REQ packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReqLen {
    /// Shortest: the connid names the sender.
    #[default]
    Shortest,
    /// Constant: the raw address names the sender in every packet.
    Constant,
}

/// Limits and identity of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Packets granted by one CTS (libfabric: `FI_EFA_TX_MIN_CREDITS`).
    pub cts_credits: u32,
    /// Vendor part id sent in HANDSHAKE.
    pub device_version: u32,
    /// Most peers, including those that introduced themselves.
    pub max_peers: u32,
    /// Most senders that have introduced themselves and not sent a HANDSHAKE. Packets of more are dropped.
    pub max_unknown_peers: u32,
    /// Time after which a sender that has introduced itself and is not there is removed.
    pub unknown_peers_timeout: Duration,
    /// Packets sent to one peer before the next one is served.
    pub burst: u32,
    /// Bytes of the head of a RUNTREAD message; 0: there are none (libfabric: `FI_EFA_RUNT_SIZE`).
    pub runt_size: usize,
    /// Longest read of a message in one piece, bytes (libfabric: `FI_EFA_INTER_READ_SEGMENT_SIZE`).
    pub read_segment: u64,
    /// Memory that unexpected messages may use before
    /// [`Engine::may_stop_polling`](crate::rdm::Engine::may_stop_polling) says so, bytes.
    pub unexpected_max: usize,
    /// Hard limit of the memory of unexpected messages, bytes: a peer whose message would cost more
    /// [fails](PeerError::OverLimit).
    pub unexpected_hard_max: usize,
    /// Policy for one-sided operations that no device does.
    pub emulation: Emulation,
    /// Whether untagged messages wait for their peer's HANDSHAKE.
    pub first_contact: FirstContact,
    /// Delays between retries to a receiver that is not ready.
    pub retry: RetryPolicy,
    /// Most rails of one message; 1: only the peer's own wire.
    pub rndv_rails: u8,
    /// Fewest bytes of a message that go over one rail.
    pub rndv_chunk: u64,
    /// Most rails of one put or get.
    pub rma_rails: u8,
    /// Fewest bytes of a put or get that go over one rail.
    pub rma_chunk: u64,
    /// Seed of the retry delays; also the high half of memory keys of an engine that has a memory table of
    /// its own. Differs between workers.
    pub nonce: u32,
    /// Length of the headers that peers' REQ packets carry once they have our HANDSHAKE.
    pub req_len: ReqLen,
    /// Features that our HANDSHAKE leaves out, so that peers use their fallbacks.
    pub withhold: Features,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            cts_credits: 32,
            device_version: 0xefa2,
            max_peers: 1 << 24,
            max_unknown_peers: 1 << 18,
            unknown_peers_timeout: Duration::from_secs(60),
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
    /// Completion; a delivery complete protocol implies [`DeliveryComplete::Yes`].
    pub sync: DeliveryComplete,
    /// Data for the receiver's completion.
    pub cq_data: Option<u64>,
    /// Protocol (from `select`). An eager one becomes MEDIUM if the message does not fit one packet.
    pub protocol: Protocol,
    /// Returned in [`EngineEvent::SendDone`].
    pub user: u64,
}

/// The messages that a receive or a probe looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvKind {
    /// A tagged message whose tag equals `tag` in the bits set in `mask`.
    Tagged {
        /// Bits to match.
        tag: u64,
        /// Mask of the bits that are compared.
        mask: u64,
    },
    /// An untagged message.
    Untagged,
    /// A message of one of our own classes.
    Class {
        /// Class of the message.
        class: MsgClass,
        /// Bits to match.
        tag: u64,
        /// Mask of the bits that are compared.
        mask: u64,
    },
}

impl RecvKind {
    /// Returns the matching queue.
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
    /// Returned in [`EngineEvent::RecvDone`].
    pub user: u64,
}

/// Result of starting an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started<T> {
    /// Complete; no [`EngineEvent`] follows.
    Done(T),
    /// In progress; exactly one [`EngineEvent`] follows.
    Pending(OpId),
    /// Failed; no [`EngineEvent`] follows.
    Failed(OpError),
}

/// Event of the engine: an operation or a peer came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EngineEvent {
    /// A send ended.
    SendDone {
        /// User value of the operation.
        user: u64,
        /// Result.
        result: Result<(), OpError>,
    },
    /// A receive ended.
    RecvDone {
        /// User value of the operation.
        user: u64,
        /// Status of the message received.
        result: Result<RecvStatus, OpError>,
    },
    /// One message of a multi-receive arrived.
    MultiRecvMessage {
        /// User value of the operation.
        user: u64,
        /// Offset in the buffer.
        at: usize,
        /// Status of the message received.
        result: Result<RecvStatus, OpError>,
    },
    /// A multi-receive ended: nothing more is written to its buffer.
    MultiRecvDone {
        /// User value of the operation.
        user: u64,
        /// Bytes of the buffer used; an error if it ended early.
        result: Result<usize, OpError>,
    },
    /// A one-sided operation ended.
    RmaDone {
        /// User value of the operation.
        user: u64,
        /// Result.
        result: Result<(), OpError>,
    },
    /// A peer has written to our memory, with data for a completion.
    RemoteWrite {
        /// The peer.
        from: PeerId,
        /// Bytes written.
        len: u64,
        /// Data that came with the write.
        cq_data: u64,
    },
    /// A peer failed. Its operations have ended with the error; nothing can be sent to it any more.
    PeerFailed {
        /// The peer.
        peer: PeerId,
        /// The error.
        fault: PeerError,
    },
    /// A peer has closed its endpoint of a connection by force; others between the two workers go on.
    ConnectionClosed {
        /// The peer.
        peer: PeerId,
        /// Our number of the connection, as the peer says.
        connection: u32,
    },
    /// Packets of senders unknown so far are dropped, since as many unknown peers as may be have not
    /// answered.
    UnknownPeersRefused {
        /// The limit.
        limit: u32,
    },
}

/// Whether a probe removes the message, so that only `recv_probed` can receive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeRemove {
    /// Leaves it for any receive.
    No,
    /// Removes it.
    Yes,
}

/// A message found by a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Probed {
    /// Handle to receive it by; valid only if it was removed.
    pub handle: MsgHandle,
    /// Length of the message, bytes.
    pub len: u64,
    /// Tag; 0 for an untagged message.
    pub tag: u64,
    /// The sender.
    pub from: PeerId,
    /// Data of the sender for the completion of its receive.
    pub cq_data: Option<u64>,
    /// All of it has come, so that a receive ends at once.
    pub is_whole: bool,
}

/// Public view of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
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
    /// Incomplete sends to it.
    pub outstanding: u32,
    /// Error, if it failed.
    pub fault: Option<PeerError>,
}
