//! Interface of the engine to the outside: the wires it sends by, and the sink for completed receives.
//! Implemented by `lane::bind` over real transports, and by queues in tests.

use arrayvec::ArrayVec;
use bitflags::bitflags;

use crate::rdm::ids::WireId;
use crate::rdm::op::Piece;
use crate::rdm::status::RecvStatus;
use crate::wire::{MAX_IOV, MsgClass, RawAddr, RmaIov, UserRecvQp};

pub use super::ids::{LaneId, PeerId, Source, TxToken};
pub use super::status::PeerError;

/// State of a packet that the wire accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posted {
    /// It has left the wire; `on_sent` is not called.
    Done,
    /// The wire holds it; if it carries a token, `on_sent` is called once.
    Pending,
}

/// Result of [`Wire::flush_lane`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flushed {
    /// Nothing is in flight on the lane.
    Now,
    /// Packets are in flight; `Returns::on_flushed` is called once they are not.
    Later,
}

/// Reason why the wire took nothing. The fill closure was not called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotPosted {
    /// No room now; try again after progress.
    Full,
    /// The peer failed.
    Peer(PeerError),
}

/// RDMA capabilities of a wire, given to the engine once by `Wires::set_rdma`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Rdma {
    /// Longest RDMA read, bytes; 0 if there is none.
    pub read: u64,
    /// Longest RDMA write, bytes; 0 if there is none.
    pub write: u64,
    /// True if a write may carry 32 bits of immediate data.
    pub write_imm: bool,
}

impl Rdma {
    /// No RDMA.
    pub const NONE: Rdma = Rdma { read: 0, write: 0, write_imm: false };
}

bitflags! {
    /// Access that a registration allows. Our own device may always read it.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct RegAccess: u8 {
        /// Our reads write to it.
        const LOCAL_WRITE = 1;
        /// Peers read it.
        const REMOTE_READ = 2;
        /// Peers write it.
        const REMOTE_WRITE = 4;
        /// Not shared: a release while one of our reads still writes to it ends that access at once.
        const EXCLUSIVE = 8;
    }
}

/// A registration: made by [`Wire::register`], ended once by [`Wire::release`].
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a registration has to be released"]
pub struct Reg {
    /// Number of the registration on its wire.
    pub id: u32,
    /// Key by which peers name the memory: in RDM v4 the device's remote key.
    pub key: u64,
}

/// Reason why nothing was registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegError {
    /// Too many registrations, or too much memory, at present.
    Full,
    /// Not possible for this memory, this access or this wire.
    Refused,
}

/// Memory of a peer, by an address and a key that it sent: a claim, which its device checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// First byte.
    pub addr: u64,
    /// The key.
    pub key: u64,
}

/// Address of an RMA-only lane, as [`Wire::rma_address`] returns it.
pub type RmaAddress = ArrayVec<RmaIov, { MAX_IOV - 1 }>;

/// A sink that takes completed receives at once, without an [`EngineEvent`](super::EngineEvent).
pub trait ReceiveSink {
    /// Reports that the receive posted with this `user` has ended well. `is_next`: no event waits to be
    /// taken, which this end would overtake. False: an [`EngineEvent`](super::EngineEvent) reports it.
    // HOT
    #[inline]
    fn received(&mut self, _user: u64, _status: RecvStatus, _is_next: bool) -> bool {
        false
    }

    /// Delivers a short message of a class of our own, in order, when no earlier one waits for a receive.
    /// True: it was taken and needs no receive.
    // HOT
    #[inline]
    fn deliver(&mut self, _class: MsgClass, _from: PeerId, _tag: u64, _payload: &[u8]) -> bool {
        false
    }
}

/// A writer of the packet of [`Wire::send_short`]: a type, so that it is inlined into its caller, unlike a
/// closure.
pub trait PacketWriter: Copy {
    /// Writes the packet to the start of `slot`, which has the requested room, and returns its length.
    fn fill(self, slot: &mut [u8]) -> usize;
}

/// One or several wires, as the engine sees them. Memory that the engine registers stays in use by it until
/// it releases the registration, which it does only when none of its reads and writes is under way.
pub trait Wire: ReceiveSink {
    /// Longest packet to this peer, bytes.
    fn mtu(&self, to: PeerId) -> usize;

    /// Sends one packet of at most `max` bytes: `fill` writes it into the wire's buffer of at least `max`
    /// bytes and returns its length. [`NotPosted::Full`] is returned before `fill` runs. `max` is a close
    /// bound, so that small packets use small slots.
    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: LaneId,
        max: usize,
        token: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted>;

    /// Sends a packet as [`Wire::send`] does; for short packets without a completion.
    #[inline]
    fn send_short<F: PacketWriter>(&mut self, to: PeerId, max: usize, fill: F) -> Result<Posted, NotPosted> {
        self.send(to.into(), max, TxToken::Packet, |slot| fill.fill(slot))
    }

    /// Sends at most `max` bytes without a header to the user receive QP of a peer, with `imm` for its
    /// completion. What comes back does so by `Returns::on_rnr_user_qp`. Fails with [`PeerError::NO_RDMA`],
    /// before `fill` runs, on a wire without such queue pairs.
    fn send_to_user_qp<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _to: PeerId,
        _qp: UserRecvQp,
        _max: usize,
        _imm: Option<u32>,
        _fill: F,
    ) -> Result<Posted, NotPosted> {
        Err(NotPosted::Peer(PeerError::NO_RDMA))
    }

    /// Posts a receive for one message without a header: memory of ours, which lies in `reg`.
    /// `Engine::on_user_recv` reports its end, with the same number. [`NotPosted::Full`]: the device has
    /// enough of them.
    fn post_user_recv(
        &mut self,
        _wire: WireId,
        _into: Piece,
        _reg: &Reg,
        _receive: u32,
    ) -> Result<(), NotPosted> {
        Err(NotPosted::Peer(PeerError::NO_RDMA))
    }

    /// Asks for `Returns::on_flushed` when everything sent on this lane so far is delivered or handed back.
    /// Only called on wires that hand packets back.
    fn flush_lane(&mut self, _to: LaneId) -> Flushed {
        Flushed::Now
    }

    /// Connects a lane whose other end introduced itself by a raw address header.
    fn connect(&mut self, lane: LaneId, from: Source, addr: &RawAddr) -> Result<(), PeerError>;

    /// Sends what goes to `peer` over the further lane `onto`, at address `addr`, in place of the lane used
    /// before. Packets in flight on that may still come back.
    fn reroute(&mut self, _peer: PeerId, _onto: LaneId, _addr: &RawAddr) -> Result<(), PeerError> {
        Err(PeerError::Unreachable)
    }

    /// Gives the connection of a further lane to a new peer, whose first lane it becomes.
    fn promote(&mut self, _lane: LaneId, _peer: PeerId) {}

    /// Registers local memory on a wire.
    fn register(&mut self, _wire: WireId, _piece: Piece, _for_what: RegAccess) -> Result<Reg, RegError> {
        Err(RegError::Refused)
    }

    /// Ends a registration that neither our operations nor a peer use. The wire may keep it for the next one
    /// of the same memory, unless it is [`RegAccess::EXCLUSIVE`].
    fn release(&mut self, _reg: Reg) {}

    /// Ends a registration whose key a peer may still use: no device accesses the memory by it from now on.
    fn revoke(&mut self, reg: Reg) {
        self.release(reg);
    }

    /// Reads `to.len()` bytes at the other end of a lane into `to`, which lies in `reg`: at least one, and at
    /// most [`Rdma::read`]. After [`Posted::Pending`], `on_sent` reports the end. An error in the result
    /// concerns this operation only.
    fn read(
        &mut self,
        _lane: LaneId,
        _to: Piece,
        _reg: &Reg,
        _from: Remote,
        _token: TxToken,
    ) -> Result<Posted, NotPosted> {
        Err(NotPosted::Peer(PeerError::NO_RDMA))
    }

    /// Returns the address by which peers read this memory over an RMA-only lane: pieces of no length, which
    /// requests carry behind the memory's own. `None` for memory that the wire itself reads.
    fn rma_address(&self, _reg: &Reg) -> Option<RmaAddress> {
        None
    }

    /// Returns true if a message of `len` bytes offered over an RMA-only lane is faster in packets. Called
    /// once for each message that could be read so.
    fn prefers_packets(&mut self, _peer: PeerId, _len: usize, _address: &RmaAddress) -> bool {
        false
    }

    /// Reports that a peer has read memory offered over an RMA-only lane, or asked for packets instead.
    fn on_offer_result(&mut self, _peer: PeerId, _reg: &Reg, _len: usize, _read: bool) {}

    /// Reads a peer's memory over the RMA-only lane that it named. [`NotPosted::Full`]: the peer copies a
    /// part, `to` stays in use, and the same call is made again until it returns another result, or until
    /// [`Wire::abandon_rma_lane_read`]. `None`: the wire has no such lane, and nothing has happened.
    fn read_rma_lane(
        &mut self,
        _peer: PeerId,
        _to: Piece,
        _from: Remote,
        _address: &RmaAddress,
    ) -> Option<Result<(), NotPosted>> {
        None
    }

    /// Gives up a read that [`Wire::read_rma_lane`] answered by [`NotPosted::Full`]. Nobody writes to its
    /// memory any more when this returns.
    fn abandon_rma_lane_read(&mut self, _peer: PeerId) {}

    /// Writes bytes of ours, which lie in `reg`, to the other end of a lane: at least one, and at most
    /// [`Rdma::write`]. With `imm` the peer gets a completion with these 32 bits. Ends as [`Wire::read`]
    /// does.
    fn write(
        &mut self,
        _lane: LaneId,
        _from: Piece,
        _reg: &Reg,
        _to: Remote,
        _imm: Option<u32>,
        _token: TxToken,
    ) -> Result<Posted, NotPosted> {
        Err(NotPosted::Peer(PeerError::NO_RDMA))
    }

    /// Writes `len` bytes that `fill` copies into the wire's buffer, without a registration. Fails with
    /// [`PeerError::NO_RDMA`], before `fill` runs, if they are too many.
    fn write_copy<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _peer: PeerId,
        _len: usize,
        _fill: F,
        _to: Remote,
    ) -> Result<(), NotPosted> {
        Err(NotPosted::Peer(PeerError::NO_RDMA))
    }

    /// Most bytes of one [`Wire::read_copy`] from this peer; 0 if there is none.
    fn read_copy_max(&self, _peer: PeerId) -> usize {
        0
    }

    /// Reads through the wire's buffer: `to` needs no registration, but is written until `on_sent`. Fails
    /// with [`PeerError::NO_RDMA`] if the bytes are too many.
    fn read_copy(
        &mut self,
        _peer: PeerId,
        _to: Piece,
        _from: Remote,
        _token: TxToken,
    ) -> Result<Posted, NotPosted> {
        Err(NotPosted::Peer(PeerError::NO_RDMA))
    }
}
