//! The wire under a script: takes packets and keeps the last ones, refuses now and then, and does RDMA in memory. A
//! registration is looked at whenever it is used, so that an operation outside of it, or after its end, is a failure. What it
//! has sent it may hand back, once, and receives of our own memory end as the script says.

use ucp::rdm::io::{
    Flushed, NotPosted, PeerError, PeerId, Posted, Rdma, ReceiveSink, Reg, RegAccess, RegError, Remote,
    Source, TxToken, Wire,
};
use ucp::rdm::{Piece, WireId};
use ucp::wire::{RawAddr, UserRecvQp};

/// Longest packet.
pub const MTU: usize = 1024;
/// Longest RDMA operation, and longest one through the wire's own buffers.
pub const RDMA: usize = 700;
const COPY: usize = 64;
/// Packets kept.
const SENT: usize = 16;
/// Receives that it takes at a time.
const LENT: usize = 4;
/// What RDMA reads from anybody's memory.
pub const READ: u8 = 0x77;

/// An RDMA operation under way.
pub struct InFlight {
    token: TxToken,
    /// Where a read puts its bytes.
    into: Option<Piece>,
    /// The registration it uses.
    reg: Option<u32>,
}

/// Bytes under way that may come back.
pub struct Out {
    /// Whom they are for.
    pub to: PeerId,
    /// All of them.
    pub bytes: Vec<u8>,
    /// They have no header; the word that goes with them.
    pub bare: Option<Option<u32>>,
}

/// A receive of our own memory that the device has.
pub struct PostedBuffer {
    into: Piece,
    reg: u32,
    /// The engine's number.
    pub receive: u32,
}

/// The wire and its device.
pub struct Device {
    /// Packets sent, the latest last.
    pub sent: Vec<Vec<u8>>,
    /// Operations that have not ended.
    pub flying: Vec<InFlight>,
    /// What was sent last and has neither arrived nor come back.
    pub out: Vec<Out>,
    /// Peers of which the engine waits for the end of what is under way.
    pub settling: Vec<PeerId>,
    /// Receives that have not ended.
    pub lent: Vec<PostedBuffer>,
    regs: Vec<Option<(Piece, RegAccess)>>,
    posts: u32,
    /// One post in so many finds no room; 0: none does.
    full_every: u32,
    /// One registration in so many is refused; 0: none is.
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

    /// What the engine is to know of it.
    pub fn rdma() -> Rdma {
        Rdma { read: RDMA as u64, write: RDMA as u64, write_imm: true }
    }

    /// Registrations that live.
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

    fn sends(&mut self, to: PeerId, len: usize, bare: Option<Option<u32>>) {
        if self.out.len() == SENT {
            self.out.remove(0);
        }
        self.out.push(Out { to, bytes: self.packet[..len].to_vec(), bare });
    }

    /// Whether something is under way to a peer.
    pub fn is_busy(&self, to: PeerId) -> bool {
        self.out.iter().any(|out| out.to == to)
    }

    /// Ends a receive of our own memory with a message of `len` bytes; answers its number, and as many bytes as it has taken.
    pub fn receive(&mut self, nth: usize, len: usize) -> (u32, usize) {
        let PostedBuffer { into, reg, receive } = self.lent.swap_remove(nth);
        assert!(self.regs[reg as usize].is_some(), "released under a receive");
        let len = len.min(into.len());
        // SAFETY: the engine has lent the piece until this receive is over, and looks at it only then.
        unsafe { std::ptr::write_bytes(into.ptr(), READ, len) };
        (receive, len)
    }

    /// Ends an operation as the device would; answers what the engine is to be told. Of a read that is well, all bytes are
    /// written.
    pub fn land(&mut self, nth: usize, result: Result<(), PeerError>) -> (TxToken, Result<(), PeerError>) {
        let InFlight { token, into, reg } = self.flying.swap_remove(nth);
        if let Some(reg) = reg {
            assert!(self.regs[reg as usize].is_some(), "released under an operation");
        }
        if let (Some(into), Ok(())) = (into, result) {
            // SAFETY: the engine has lent the piece until this operation is over, and looks at it only then.
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
        self.sends(to, len, Some(imm));
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

    fn flush_peer(&mut self, to: PeerId) -> Flushed {
        if !self.is_busy(to) {
            return Flushed::Now;
        }
        self.settling.push(to);
        Flushed::Later
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: PeerId,
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

    fn connect(&mut self, _peer: PeerId, from: Source, _addr: &RawAddr) -> Result<(), PeerError> {
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
        _peer: PeerId,
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
        _peer: PeerId,
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
