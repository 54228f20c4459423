//! Inputs of protocol selection as plain data: one [`SelectKey`] gives one [`Table`](super::Table). Filled in
//! by `api` from its lanes and from the engine's view of the peer.

use super::cost::{Costs, Line};
use crate::rdm::features::ReqHdr;
use crate::rdm::protocol::{DeliveryComplete, Kind};
use crate::wire::Features;

/// Kind of memory of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[non_exhaustive]
pub enum MemKind {
    /// Host memory.
    #[default]
    Host,
    /// Host memory of a process that lets the kernel copy for the peer's process.
    Process,
    /// Host memory allocated by the wire's transport: peers of this host map it.
    Allocated,
}

/// Whether the message carries 64 bits for the receiver's completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum CqData {
    /// No.
    #[default]
    No,
    /// Yes: 8 more header bytes.
    Yes,
}

/// Capabilities and costs of a wire.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WireCaps {
    /// Longest packet, bytes.
    pub mtu: usize,
    /// Whether it reads any memory of peers.
    pub reads: ReadSupport,
    /// Whether it reads memory that the transport allocated ([`MemKind::Allocated`]).
    pub reads_allocated: ReadSupport,
    /// Cost of a kernel read of another process's memory, if that is allowed ([`MemKind::Process`]).
    pub kernel: Option<Line>,
    /// Cost model.
    pub costs: Costs,
}

/// Whether one side of a message can read the other's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum ReadSupport {
    /// No.
    #[default]
    No,
    /// Not known before the handshake; the engine falls back to long-CTS if it cannot.
    Unknown,
    /// Yes.
    Yes,
}

impl ReadSupport {
    /// Read support by the peer's handshake, if it has arrived.
    pub const fn of(features: Option<Features>) -> ReadSupport {
        match features {
            None => ReadSupport::Unknown,
            Some(features) if features.contains(Features::RDMA_READ) => ReadSupport::Yes,
            Some(_) => ReadSupport::No,
        }
    }
}

/// How a peer receives messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[non_exhaustive]
pub enum RecvMode {
    /// In packets, as far as is known.
    #[default]
    Packets,
    /// In zero-copy receive mode: payload without headers.
    ZeroCopy,
}

/// Capabilities of a peer (see `Peers::info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct PeerCaps {
    /// Identity header in REQ packets to it.
    pub hdr: ReqHdr,
    /// Whether it reads our memory.
    pub reads: ReadSupport,
    /// How it receives messages.
    pub recv_mode: RecvMode,
}

impl Default for PeerCaps {
    /// Values before the handshake.
    fn default() -> Self {
        PeerCaps { hdr: ReqHdr::FIRST, reads: ReadSupport::Unknown, recv_mode: RecvMode::Packets }
    }
}

/// All inputs of the selection except the size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SelectKey {
    /// Tagged or untagged send.
    pub kind: Kind,
    /// When the send completes.
    pub sync: DeliveryComplete,
    /// Kind of memory.
    pub mem: MemKind,
    /// Whether it carries completion data.
    pub cq_data: CqData,
    /// The wire it is sent on.
    pub wire: WireCaps,
    /// The destination.
    pub peer: PeerCaps,
}

impl SelectKey {
    /// Whether the wire reads this kind of memory.
    pub(super) fn wire_reads(&self) -> ReadSupport {
        match self.mem {
            MemKind::Process if self.wire.kernel.is_some() => ReadSupport::Yes,
            MemKind::Host | MemKind::Process => self.wire.reads,
            MemKind::Allocated => self.wire.reads_allocated,
        }
    }

    /// Whether the receiver's processor reads the message in place: the wire reads only mapped memory.
    pub(super) fn is_read_in_place(&self) -> bool {
        self.mem == MemKind::Allocated
            && self.wire.reads != ReadSupport::Yes
            && self.wire.reads_allocated == ReadSupport::Yes
    }

    /// Whether the receiver reads without a device, by itself or by its kernel. This may pay below the length
    /// of a packet too.
    pub(super) fn is_read_by_host(&self) -> bool {
        let by_kernel = self.mem == MemKind::Process && self.wire.kernel.is_some();
        by_kernel || self.is_read_in_place()
    }

    /// Costs of the wire for this kind of memory.
    pub(super) fn costs(&self) -> Costs {
        match self.mem {
            MemKind::Host => self.wire.costs.sanitized(),
            MemKind::Process => match self.wire.kernel {
                None => self.wire.costs.sanitized(),
                // A kernel read needs no registration.
                Some(read) => {
                    Costs { register: Line::default(), get: [read; 2], ..self.wire.costs }.sanitized()
                }
            },
            MemKind::Allocated => self.wire.costs.sanitized().for_allocated(),
        }
    }

    /// Key for host memory without completion data.
    pub fn new(kind: Kind, sync: DeliveryComplete, wire: WireCaps, peer: PeerCaps) -> SelectKey {
        SelectKey { kind, sync, mem: MemKind::Host, cq_data: CqData::No, wire, peer }
    }
}
