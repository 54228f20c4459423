//! The wire under a script: takes packets and keeps the last ones, refuses now and then, and does RDMA in memory. A
//! registration is looked at whenever it is used, so that an operation outside of it, or after its end, is a failure.

use ucp::rdm::io::{Fault, NoReg, PeerId, Posted, Rdma, Refused, Reg, Remote, Source, TxToken, Use, Wire};
use ucp::rdm::{Piece, WireId};
use ucp::wire::{RawAddr, UserRecvQp};

/// Longest packet.
pub const MTU: usize = 1024;
/// Longest RDMA operation, and longest one through the wire's own buffers.
pub const RDMA: usize = 700;
const COPY: usize = 64;
/// Packets kept.
const SENT: usize = 16;
/// What RDMA reads from anybody's memory.
pub const READ: u8 = 0x77;

/// An RDMA operation under way.
pub struct Flying {
    token: TxToken,
    /// Where a read puts its bytes.
    into: Option<Piece>,
    /// The registration it uses.
    reg: Option<u32>,
}

/// The wire and its device.
pub struct Device {
    /// Packets sent, the latest last.
    pub sent: Vec<Vec<u8>>,
    /// Operations that have not ended.
    pub flying: Vec<Flying>,
    regs: Vec<Option<(Piece, Use)>>,
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

    fn room(&mut self) -> Result<(), Refused> {
        self.posts += 1;
        match self.full_every > 0 && self.posts.is_multiple_of(self.full_every) {
            true => Err(Refused::Full),
            false => Ok(()),
        }
    }

    fn holds(&self, reg: &Reg, piece: Piece, need: Use) {
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
    ) -> Result<Posted, Refused> {
        assert!(len > 0 && len <= RDMA, "an RDMA operation of {len} bytes");
        self.room()?;
        self.flying.push(Flying { token, into, reg });
        Ok(Posted::Pending)
    }

    /// Ends an operation as the device would; answers what the engine is to be told. Of a read that is well, all bytes are
    /// written.
    pub fn land(&mut self, nth: usize, result: Result<(), Fault>) -> (TxToken, Result<(), Fault>) {
        let Flying { token, into, reg } = self.flying.swap_remove(nth);
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

impl Wire for Device {
    fn mtu(&self, _to: PeerId) -> usize {
        MTU
    }

    fn send_headerless<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _: PeerId,
        _: UserRecvQp,
        max: usize,
        _: Option<u32>,
        fill: F,
    ) -> Result<Posted, Refused> {
        assert!(max <= MTU, "a message of {max} bytes");
        self.room()?;
        assert!(fill(&mut self.packet[..max]) <= max);
        Ok(Posted::Done)
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _to: PeerId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, Refused> {
        assert!(max <= MTU, "a packet longer than the wire takes");
        self.room()?;
        let len = fill(&mut self.packet[..max]);
        assert!(len <= max);
        if self.sent.len() == SENT {
            self.sent.remove(0);
        }
        self.sent.push(self.packet[..len].to_vec());
        Ok(Posted::Done)
    }

    fn connect(&mut self, _peer: PeerId, from: Source, _addr: &RawAddr) -> Result<(), Fault> {
        if from.port == 99 { Err(Fault::Unreachable) } else { Ok(()) }
    }

    fn register(&mut self, _wire: WireId, piece: Piece, for_what: Use) -> Result<Reg, NoReg> {
        assert!(!piece.is_empty());
        let id = self.regs.len() as u32;
        if self.refuse_every > 0 && id.is_multiple_of(self.refuse_every) {
            self.regs.push(None);
            return Err(if id.is_multiple_of(2) { NoReg::Full } else { NoReg::Refused });
        }
        self.regs.push(Some((piece, for_what)));
        Ok(Reg { id, key: u64::from(id) | 1 << 20 })
    }

    fn release(&mut self, reg: Reg) {
        assert!(self.regs[reg.id as usize].take().is_some(), "released twice");
        assert!(self.flying.iter().all(|f| f.reg != Some(reg.id)), "released under an operation");
    }

    fn read(
        &mut self,
        _peer: PeerId,
        to: Piece,
        reg: &Reg,
        _from: Remote,
        token: TxToken,
    ) -> Result<Posted, Refused> {
        self.holds(reg, to, Use::LOCAL_WRITE);
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
    ) -> Result<Posted, Refused> {
        self.holds(reg, from, Use::empty());
        self.fly(token, None, Some(reg.id), from.len())
    }

    fn write_copy<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _peer: PeerId,
        len: usize,
        fill: F,
        _to: Remote,
    ) -> Result<(), Refused> {
        if len > COPY {
            return Err(Refused::Fault(Fault::NO_RDMA));
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
    ) -> Result<Posted, Refused> {
        if to.len() > COPY {
            return Err(Refused::Fault(Fault::NO_RDMA));
        }
        self.fly(token, Some(to), None, to.len())
    }
}
