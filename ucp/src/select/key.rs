//! What a choice of protocol depends on, as plain data: one [`SelectKey`] gives one [`Table`](super::Table).
//! Filled in by `api` from its lanes and from the engine's view of the peer.

use super::cost::{Costs, Line};
use crate::rdm::features::ReqHdr;
use crate::rdm::protocol::{Kind, Sync};
use crate::wire::Features;

/// Where the message lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[non_exhaustive]
pub enum MemKind {
    /// Memory of the processor.
    #[default]
    Host,
    /// Such memory, of a process whose memory the kernel lets the peer's process read.
    Process,
    /// Such memory, allocated by the wire's transport, for peers to read: those of this host map it.
    Own,
}

/// Does the message carry 64 bits for the receiver's completion?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum CqData {
    /// No.
    #[default]
    No,
    /// Yes: 8 more header bytes.
    Yes,
}

/// What selection wants to know of a wire.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WireCaps {
    /// Longest packet, bytes.
    pub mtu: usize,
    /// Whether it reads memory of peers, whatever that is.
    pub reads: ReadSupport,
    /// Whether it reads what the transport has allocated there ([`MemKind::Own`]).
    pub reads_own: ReadSupport,
    /// What the kernel takes to read memory of another process, if it may be asked to ([`MemKind::Process`]).
    pub kernel: Option<Line>,
    /// What it costs.
    pub costs: Costs,
}

/// Whether one side of a message can read the other's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum ReadSupport {
    /// No.
    #[default]
    No,
    /// Not known before the handshake; the engine sends by long-CTS if it turns out that it cannot.
    Unknown,
    /// Yes.
    Yes,
}

impl ReadSupport {
    /// What a peer's handshake says of it, if that has arrived.
    pub const fn of(features: Option<Features>) -> ReadSupport {
        match features {
            None => ReadSupport::Unknown,
            Some(features) if features.contains(Features::RDMA_READ) => ReadSupport::Yes,
            Some(_) => ReadSupport::No,
        }
    }
}

/// In which form a peer takes messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum RecvMode {
    /// In packets, as far as is known.
    #[default]
    Packets,
    /// As their bytes alone: it is in zero-copy receive mode.
    ZeroCopy,
}

/// What selection wants to know of a peer (see `Engine::peer_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct PeerCaps {
    /// Identity header in REQ packets to it.
    pub hdr: ReqHdr,
    /// Whether it reads our memory.
    pub reads: ReadSupport,
    /// In which form it takes messages.
    pub recv_mode: RecvMode,
}

impl Default for PeerCaps {
    /// Before the handshake.
    fn default() -> Self {
        PeerCaps { hdr: ReqHdr::FIRST, reads: ReadSupport::Unknown, recv_mode: RecvMode::Packets }
    }
}

/// Everything a choice depends on, except the size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SelectKey {
    /// Tagged or untagged send.
    pub kind: Kind,
    /// When it is to complete.
    pub sync: Sync,
    /// Where the bytes lie.
    pub mem: MemKind,
    /// With data for the completion?
    pub cq_data: CqData,
    /// The wire it goes by.
    pub wire: WireCaps,
    /// Whom it goes to.
    pub peer: PeerCaps,
}

impl SelectKey {
    /// Whether the wire reads such memory.
    pub(super) fn wire_reads(&self) -> ReadSupport {
        match self.mem {
            MemKind::Process if self.wire.kernel.is_some() => ReadSupport::Yes,
            MemKind::Host | MemKind::Process => self.wire.reads,
            MemKind::Own => self.wire.reads_own,
        }
    }

    /// Whether the receiver's processor reads the message where it lies: the wire reads only what its transport has allocated,
    /// which it maps.
    pub(super) fn is_read_in_place(&self) -> bool {
        self.mem == MemKind::Own
            && self.wire.reads != ReadSupport::Yes
            && self.wire.reads_own == ReadSupport::Yes
    }

    /// Whether the receiver reads the message by itself, or has its kernel read it: that costs no turn of a device, and may pay
    /// below the length of a packet too.
    pub(super) fn is_read_by_host(&self) -> bool {
        let by_kernel = self.mem == MemKind::Process && self.wire.kernel.is_some();
        by_kernel || self.is_read_in_place()
    }

    /// What the wire costs with such memory.
    pub(super) fn costs(&self) -> Costs {
        match self.mem {
            MemKind::Host => self.wire.costs.sanitized(),
            MemKind::Process => match self.wire.kernel {
                None => self.wire.costs.sanitized(),
                // It needs no registration.
                Some(read) => {
                    Costs { register: Line::default(), get: [read; 2], ..self.wire.costs }.sanitized()
                }
            },
            MemKind::Own => self.wire.costs.sanitized().for_allocated(),
        }
    }

    /// A send of host memory without completion data.
    pub fn new(kind: Kind, sync: Sync, wire: WireCaps, peer: PeerCaps) -> SelectKey {
        SelectKey { kind, sync, mem: MemKind::Host, cq_data: CqData::No, wire, peer }
    }
}
