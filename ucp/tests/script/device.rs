//! A scripted device: keeps the last packets, may return each once, refuses now and then, and does RDMA in
//! memory. Registrations are checked at every use; receives of user memory end as the script says.

use ucp::rdm::io::{
    Flushed, LaneId, NotPosted, PeerError, PeerId, Posted, Rdma, ReceiveSink, Reg, RegAccess, RegError,
    Remote, Source, TxToken, Wire,
};
use ucp::rdm::{Piece, WireId};
use ucp::wire::{RawAddr, UserRecvQp};

pub const MTU: usize = 1024;
/// Longest RDMA operation, and longest one through the device's own buffers.
pub const RDMA: usize = 700;
const COPY: usize = 64;
const SENT: usize = 16;
/// Most receives at a time.
const LENT: usize = 4;
/// Every byte that RDMA reads from peers.
pub const READ: u8 = 0x77;

/// An RDMA operation in flight.
pub struct InFlight {
    token: TxToken,
    into: Option<Piece>,
    reg: Option<u32>,
}

/// A send in flight that may be returned.
pub struct Out {
    pub to: LaneId,
    pub bytes: Vec<u8>,
    /// Of a send without header: its immediate word.
    pub bare: Option<Option<u32>>,
}

/// A receive of user memory.
pub struct PostedBuffer {
    into: Piece,
    reg: u32,
    /// Number of the receive in the engine.
    pub receive: u32,
}

pub struct Device {
    /// Packets sent, the latest last.
    pub sent: Vec<Vec<u8>>,
    /// Operations in flight.
    pub flying: Vec<InFlight>,
    /// The last sends, neither arrived nor returned.
    pub out: Vec<Out>,
    /// Peers whose sends in flight the engine waits for.
    pub settling: Vec<LaneId>,
    /// Receives in flight.
    pub lent: Vec<PostedBuffer>,
    regs: Vec<Option<(Piece, RegAccess)>>,
    posts: u32,
    /// One post in so many finds no room; 0: none.
    full_every: u32,
    /// One registration in so many is refused; 0: none.
    refuse_every: u32,
    packet: Vec<u8>,
}

impl Device {
    pub fn new(full_every: u32, refuse_every: u32) -> Device {
        Device {
            sent: Vec::new(),
            flying: Vec::new(),
            out: Vec::new(),
            settling: Vec::new(),
            lent: Vec::new(),
            regs: Vec::new(),
            posts: 0,
            full_every,
            refuse_every,
            packet: vec![0; MTU],
        }
    }

    /// The device's limits for the engine.
    pub fn rdma() -> Rdma {
        Rdma { read: RDMA as u64, write: RDMA as u64, write_imm: true }
    }

    /// Live registrations.
    pub fn live(&self) -> usize {
        self.regs.iter().flatten().count()
    }

    fn room(&mut self) -> Result<(), NotPosted> {
        self.posts += 1;
        match self.full_every > 0 && self.posts.is_multiple_of(self.full_every) {
            true => Err(NotPosted::Full),
            false => Ok(()),
        }
    }

    fn holds(&self, reg: &Reg, piece: Piece, need: RegAccess) {
        let (whole, of) =
            self.regs[reg.id as usize].expect("an operation with a registration that has ended");
        let at = piece.ptr().addr().wrapping_sub(whole.ptr().addr());
        assert!(of.contains(need), "an operation that its registration is not for");
        assert!(
            at <= whole.len() && piece.len() <= whole.len() - at,
            "an operation outside its registration"
        );
    }

    fn fly(
        &mut self,
        token: TxToken,
        into: Option<Piece>,
        reg: Option<u32>,
        len: usize,
    ) -> Result<Posted, NotPosted> {
        assert!(len > 0 && len <= RDMA, "an RDMA operation of {len} bytes");
        self.room()?;
        self.flying.push(InFlight { token, into, reg });
        Ok(Posted::Pending)
    }

    fn sends(&mut self, to: LaneId, len: usize, bare: Option<Option<u32>>) {
        if self.out.len() == SENT {
            self.out.remove(0);
        }
        self.out.push(Out { to, bytes: self.packet[..len].to_vec(), bare });
    }

    /// Whether a send to a peer is in flight.
    pub fn is_busy(&self, to: LaneId) -> bool {
        self.out.iter().any(|out| out.to == to)
    }

    /// Completes a receive of user memory with a message of `len` bytes; returns its number and length.
    pub fn receive(&mut self, nth: usize, len: usize) -> (u32, usize) {
        let PostedBuffer { into, reg, receive } = self.lent.swap_remove(nth);
        assert!(self.regs[reg as usize].is_some(), "released under a receive");
        let len = len.min(into.len());
        // SAFETY: the engine has lent the piece until this receive is complete.
        unsafe { std::ptr::write_bytes(into.ptr(), READ, len) };
        (receive, len)
    }

    /// Completes an operation; returns what to report. A successful read has written all bytes.
    pub fn land(&mut self, nth: usize, result: Result<(), PeerError>) -> (TxToken, Result<(), PeerError>) {
        let InFlight { token, into, reg } = self.flying.swap_remove(nth);
        if let Some(reg) = reg {
            assert!(self.regs[reg as usize].is_some(), "released under an operation");
        }
        if let (Some(into), Ok(())) = (into, result) {
            // SAFETY: the engine has lent the piece until this operation is complete.
            unsafe { std::ptr::write_bytes(into.ptr(), READ, into.len()) };
        }
        (token, result)
    }
}

impl ReceiveSink for Device {}

impl Wire for Device {
    fn mtu(&self, _to: PeerId) -> usize {
        MTU
    }

    fn send_to_user_qp<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: PeerId,
        _: UserRecvQp,
        max: usize,
        imm: Option<u32>,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        assert!(max <= MTU, "a message of {max} bytes");
        self.room()?;
        let len = fill(&mut self.packet[..max]);
        assert!(len <= max);
        self.sends(to.into(), len, Some(imm));
        Ok(Posted::Done)
    }

    fn post_user_recv(
        &mut self,
        _wire: WireId,
        into: Piece,
        reg: &Reg,
        receive: u32,
    ) -> Result<(), NotPosted> {
        self.holds(reg, into, RegAccess::LOCAL_WRITE);
        if self.lent.len() == LENT {
            return Err(NotPosted::Full);
        }
        self.lent.push(PostedBuffer { into, reg: reg.id, receive });
        Ok(())
    }

    fn flush_lane(&mut self, to: LaneId) -> Flushed {
        if !self.is_busy(to) {
            return Flushed::Now;
        }
        self.settling.push(to);
        Flushed::Later
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: LaneId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        assert!(max <= MTU, "a packet longer than the wire takes");
        self.room()?;
        let len = fill(&mut self.packet[..max]);
        assert!(len <= max);
        if self.sent.len() == SENT {
            self.sent.remove(0);
        }
        self.sent.push(self.packet[..len].to_vec());
        self.sends(to, len, None);
        Ok(Posted::Done)
    }

    fn connect(&mut self, _peer: LaneId, from: Source, _addr: &RawAddr) -> Result<(), PeerError> {
        if from.port == 99 { Err(PeerError::Unreachable) } else { Ok(()) }
    }

    fn register(&mut self, _wire: WireId, piece: Piece, for_what: RegAccess) -> Result<Reg, RegError> {
        assert!(!piece.is_empty());
        let id = self.regs.len() as u32;
        if self.refuse_every > 0 && id.is_multiple_of(self.refuse_every) {
            self.regs.push(None);
            return Err(if id.is_multiple_of(2) { RegError::Full } else { RegError::Refused });
        }
        self.regs.push(Some((piece, for_what)));
        Ok(Reg { id, key: u64::from(id) | 1 << 20 })
    }

    fn release(&mut self, reg: Reg) {
        assert!(self.regs[reg.id as usize].take().is_some(), "released twice");
        assert!(self.flying.iter().all(|f| f.reg != Some(reg.id)), "released under an operation");
        assert!(self.lent.iter().all(|l| l.reg != reg.id), "released under a receive");
    }

    fn read(
        &mut self,
        _peer: LaneId,
        to: Piece,
        reg: &Reg,
        _from: Remote,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        self.holds(reg, to, RegAccess::LOCAL_WRITE);
        self.fly(token, Some(to), Some(reg.id), to.len())
    }

    fn write(
        &mut self,
        _peer: LaneId,
        from: Piece,
        reg: &Reg,
        _to: Remote,
        _imm: Option<u32>,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        self.holds(reg, from, RegAccess::empty());
        self.fly(token, None, Some(reg.id), from.len())
    }

    fn write_copy<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _peer: PeerId,
        len: usize,
        fill: F,
        _to: Remote,
    ) -> Result<(), NotPosted> {
        if len > COPY {
            return Err(NotPosted::Peer(PeerError::NO_RDMA));
        }
        self.room()?;
        assert_eq!(fill(&mut self.packet[..len]), len);
        Ok(())
    }

    fn read_copy(
        &mut self,
        _peer: PeerId,
        to: Piece,
        _from: Remote,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        if to.len() > COPY {
            return Err(NotPosted::Peer(PeerError::NO_RDMA));
        }
        self.fly(token, Some(to), None, to.len())
    }
}
