//! The engine's only window to the world: what it may ask of a wire, what it is told, what it hands out.
//!
//! Implemented by `lane::bind` over real transports and by the test pair over queues. Nothing here names a
//! transport.

use crate::wire::RawAddr;

/// A peer of this engine: an index that stays valid until the peer is removed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// Who sent a packet, as the wire knows it (see `uct::api::Source`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Source {
    /// Interface id, or the low eight bytes of the GID.
    pub node: u64,
    /// Queue pair number; 0 where there is none.
    pub port: u32,
}

/// A number the engine gives a packet whose fate it wants to know; comes back in `Engine::on_sent`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TxToken(pub u32);

impl TxToken {
    /// Nobody waits for this packet. An error still makes the wire report the peer as failed.
    pub const NONE: TxToken = TxToken(u32::MAX);
}

/// What became of a packet that was accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posted {
    /// It has left; `on_sent` will not be called.
    Done,
    /// The wire still holds it; if it carried a token, `on_sent` is called once.
    Pending,
}

/// Why the wire took nothing. The fill closure was not called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No room now; try again after progress.
    Full,
    /// The peer cannot be reached any more.
    Fault(Fault),
}

/// What is wrong with a peer, or with one packet to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// Its process or queue pair is gone.
    #[error("peer is gone")]
    Gone,
    /// Its address cannot be connected to.
    #[error("peer is not reachable")]
    Unreachable,
    /// The device ended a packet with this EFA completion status.
    #[error("device completion status {0}")]
    Device(u8),
}

/// A wire, or several, as the engine sees them.
pub trait Wire {
    /// Longest packet to this peer, bytes.
    fn mtu(&self, to: PeerId) -> usize;

    /// Sends one packet of at most `max` bytes: `fill` writes it into the wire's own buffer, which has at least
    /// `max` bytes, and answers its length. [`Refused::Full`] comes before `fill` runs: nothing half-built,
    /// nothing to undo. `max` is a close bound, so that small packets use small slots.
    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: PeerId,
        max: usize,
        token: TxToken,
        fill: F,
    ) -> Result<Posted, Refused>;

    /// Makes a path to a peer that introduced itself by a raw address header (it is unknown to the lanes).
    fn connect(&mut self, peer: PeerId, from: Source, addr: &RawAddr) -> Result<(), Fault>;
}
