//! Operations that wait before they start: they own copies of the lists that the call passed.

use std::ffi::c_void;

use ucp::rdm::amo::Form;
use ucp::{Error, Iov};

use super::Ep;
use super::atomics::Atomic;
use super::one_sided::OneSided;
use super::recv::Recv;
use super::send::{Memory, Send, shown_flags};
use crate::abi::{FiAddr, Ioc, RmaIov, TriggeredContext, flags};
use crate::errno::Errno;
use crate::info::INJECT_SIZE;
use crate::object::read;

/// An operation of an endpoint, as its call describes it.
pub(crate) struct OwnedOp {
    peer: FiAddr,
    flags: u64,
    context: *mut c_void,
    call: Call,
    /// Bytes of an operation with `FI_INJECT`, where its memory is.
    _copy: Box<[u8]>,
}

enum Call {
    Send { memory: Vec<Iov>, tag: Option<u64>, data: Option<u64> },
    Recv { memory: Vec<Iov>, tag: Option<(u64, u64)> },
    Read { memory: Vec<Iov>, remote: Vec<RmaIov> },
    Write { memory: Vec<Iov>, remote: Vec<RmaIov>, data: Option<u64> },
    Atomic { kind: (Form, u32, u32), local: [Vec<Ioc>; 3], remote: Vec<RmaIov> },
}

/// Pieces of memory as an operation has them.
fn memory_of(pieces: &[Iov]) -> Memory<'_> {
    match pieces {
        [one] => Memory::Bytes(one.addr, one.len),
        pieces => Memory::Pieces(pieces),
    }
}

/// A list of the pieces, or of a copy of their bytes if the operation has `FI_INJECT`.
fn kept(memory: &Memory<'_>, op_flags: u64) -> Result<(Vec<Iov>, Box<[u8]>), Errno> {
    if op_flags & flags::INJECT == 0 {
        let pieces = match *memory {
            Memory::Bytes(addr, len) => vec![Iov { addr, len }],
            Memory::Pieces(pieces) => pieces.to_vec(),
        };
        return Ok((pieces, Box::default()));
    }
    let len = memory.len();
    if len > INJECT_SIZE {
        return Err(Errno::MSGSIZE);
    }
    let mut copy = vec![0; len].into_boxed_slice();
    memory.copy_to(&mut copy);
    Ok((vec![Iov { addr: copy.as_mut_ptr(), len }], copy))
}

impl OwnedOp {
    pub(super) fn of_send(send: &Send<'_>) -> Result<OwnedOp, Errno> {
        let (memory, copy) = kept(&send.memory, send.flags)?;
        let call = Call::Send { memory, tag: send.tag, data: send.data };
        Ok(OwnedOp { peer: send.to, flags: send.flags, context: send.context, call, _copy: copy })
    }

    pub(super) fn of_recv(recv: &Recv<'_>) -> Result<OwnedOp, Errno> {
        let (memory, copy) = kept(&recv.memory, 0)?;
        let call = Call::Recv { memory, tag: recv.tag };
        Ok(OwnedOp { peer: recv.from, flags: recv.flags, context: recv.context, call, _copy: copy })
    }

    pub(super) fn of_read(read: &OneSided<'_>) -> Result<OwnedOp, Errno> {
        let (memory, copy) = kept(&read.memory, 0)?;
        let call = Call::Read { memory, remote: read.remote.to_vec() };
        Ok(OwnedOp { peer: read.peer, flags: read.flags, context: read.context, call, _copy: copy })
    }

    pub(super) fn of_write(write: &OneSided<'_>) -> Result<OwnedOp, Errno> {
        let (memory, copy) = kept(&write.memory, write.flags)?;
        let call = Call::Write { memory, remote: write.remote.to_vec(), data: write.data };
        Ok(OwnedOp { peer: write.peer, flags: write.flags, context: write.context, call, _copy: copy })
    }

    pub(super) fn of_atomic(atomic: &Atomic<'_>) -> Result<OwnedOp, Errno> {
        if atomic.flags & flags::INJECT != 0 {
            tracing::debug!("an atomic operation that waits, with FI_INJECT, is not supported");
            return Err(Errno::OPNOTSUPP);
        }
        let kind = (atomic.form, atomic.op, atomic.datatype);
        let local = [atomic.operand.to_vec(), atomic.compare.to_vec(), atomic.result.to_vec()];
        let call = Call::Atomic { kind, local, remote: atomic.remote.to_vec() };
        let Atomic { peer, flags, context, .. } = *atomic;
        Ok(OwnedOp { peer, flags, context, call, _copy: Box::default() })
    }

    /// Whether it is a receive.
    pub(crate) fn is_recv(&self) -> bool {
        matches!(self.call, Call::Recv { .. })
    }

    pub(crate) fn context(&self) -> *mut c_void {
        self.context
    }

    /// Whether it has the flag `FI_TRIGGER`.
    pub(super) fn has_trigger(&self) -> bool {
        self.flags & flags::TRIGGER != 0
    }

    /// Takes the flag `FI_TRIGGER` off, and returns the event that the context names.
    /// # Safety
    /// The operation was called with the flag, so that its context is a `struct fi_triggered_context`.
    pub(super) unsafe fn take_trigger(&mut self) -> Result<TriggeredContext, Errno> {
        self.flags &= !flags::TRIGGER;
        // SAFETY: this function's contract.
        unsafe { read(self.context.cast()) }
    }

    /// Starts the operation. One that cannot start ends with an error. [`Errno::AGAIN`]: there is no room.
    pub(crate) fn start(&self, ep: &Ep) -> Result<(), Errno> {
        match self.call_on(ep) {
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            Err(errno) => {
                tracing::error!("a triggered operation could not start: error {}", errno.0);
                ep.inside(|_| self.end(ep, errno));
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Reports that the operation was cancelled before it has started.
    pub(crate) fn end_cancelled(&self, ep: &Ep) {
        ep.inside(|_| self.end(ep, Errno::CANCELED));
    }

    /// Starts the operation, or tells why it cannot.
    pub(super) fn call_on(&self, ep: &Ep) -> Result<isize, Errno> {
        let (peer, context, flags, is_silent) = (self.peer, self.context, self.flags, false);
        match &self.call {
            Call::Send { memory, tag, data } => {
                let (memory, tag, data) = (memory_of(memory), *tag, *data);
                ep.send(&Send { memory, to: peer, tag, data, flags, context, is_silent })
            }
            Call::Recv { memory, tag } => {
                ep.recv(&Recv { memory: memory_of(memory), from: peer, tag: *tag, flags, context })
            }
            Call::Read { memory, remote } => {
                let memory = memory_of(memory);
                ep.read(&OneSided { memory, peer, remote, data: None, flags, context, is_silent })
            }
            Call::Write { memory, remote, data } => {
                let memory = memory_of(memory);
                ep.write(&OneSided { memory, peer, remote, data: *data, flags, context, is_silent })
            }
            Call::Atomic { kind: (form, op, datatype), local: [operand, compare, result], remote } => {
                let (form, op, datatype) = (*form, *op, *datatype);
                ep.atomic(&Atomic {
                    form,
                    op,
                    datatype,
                    operand,
                    compare,
                    result,
                    peer,
                    remote,
                    flags,
                    context,
                    is_silent,
                })
            }
        }
    }

    /// Reports that the operation could not start. Inside the lock.
    fn end(&self, ep: &Ep, errno: Errno) {
        let error = match errno {
            Errno::OPNOTSUPP | Errno::NOSYS => Error::Unsupported,
            Errno::NOTCONN | Errno::SHUTDOWN | Errno::CONNRESET | Errno::HOSTUNREACH => Error::NotConnected,
            Errno::NOMEM => Error::Exhausted,
            Errno::CANCELED => Error::Cancelled,
            _ => Error::Invalid,
        };
        let shown = match &self.call {
            Call::Recv { memory, tag } => {
                let (memory, tag, flags) = (memory_of(memory), *tag, self.flags);
                let recv = Recv { memory, from: self.peer, tag, flags, context: self.context };
                return ep.end_recv(&ep.new_recv(&recv), Err(error), None);
            }
            Call::Send { tag, .. } => shown_flags(*tag),
            Call::Read { .. } => flags::RMA | flags::READ,
            Call::Write { .. } => flags::RMA | flags::WRITE,
            Call::Atomic { kind: (Form::Write, ..), .. } => flags::ATOMIC | flags::WRITE,
            Call::Atomic { .. } => flags::ATOMIC | flags::READ,
        };
        ep.end_send(&ep.new_transmit(shown, self.flags, self.context, false), Err(error));
    }
}
