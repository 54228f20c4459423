//! Addresses as the wire carries them, and where an active message came from.

use arrayvec::ArrayVec;

/// No device, interface or endpoint address is longer than this.
pub const MAX_ADDR_LEN: usize = 64;

/// A packed address: opaque bytes to everybody but the transport that made it.
pub type AddrBuf = ArrayVec<u8, MAX_ADDR_LEN>;

/// Source address of an active message, as the transport knows it without reading the data. `posix`: `node`
/// is the sender's interface id, `port` is 0. `efa`: `node` is the low eight bytes of the GID, `port` the
/// queue pair number. Unique among live interfaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct SrcAddr {
    /// Interface or GID part.
    pub node: u64,
    /// Queue pair part; 0 where the transport has none.
    pub port: u32,
}

/// Why an address cannot be connected to, in words a person can act on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The bytes are not an address of this transport.
    #[error("not an address of this transport")]
    Malformed,
    /// The peer lives on another host (or in another process-id namespace) than this transport spans.
    #[error("peer is on another host")]
    OtherHost,
    /// The peer lives on another host, and one of the two devices has no network.
    #[error(
        "peer is on another host, which the software device reaches over UDP only: set SOFTEFA_NET on both hosts"
    )]
    NoNetwork,
    /// The peer's device is of another kind than ours: software and hardware do not reach each other.
    #[error("peer has a device of another kind (software, and hardware)")]
    OtherKind,
    /// Nobody lives at that address any more.
    #[error("nobody is at that address")]
    Gone,
    /// Somebody lives at that address, but does not answer: stopped, perhaps.
    #[error("peer does not answer (is its process stopped?)")]
    NoAnswer,
    /// The peer is an interface of this process that only its own thread, or the holder of its lock, may use.
    #[error(
        "peer is an interface of another thread or lock, which this transport does not reach (posix does)"
    )]
    OtherThread,
    /// The peer speaks another version of this transport's layout.
    #[error("peer speaks layout version {theirs}, we speak {ours}")]
    Version {
        /// The peer's version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The peer lives on this host, but where its descriptors cannot be passed to us.
    #[error(
        "peer is on this host, but shares neither network namespace nor socket directory with us (see UCX_POSIX_SOCKET_DIR)"
    )]
    OtherNamespace,
    /// This user may not look at the peer's process.
    #[error("no permission to reach the peer's process (different user?)")]
    Permission,
    /// Anything else, as a data-path error.
    #[error(transparent)]
    Op(#[from] super::Error),
}
