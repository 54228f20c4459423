//! Peeks at messages that have arrived: `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD`.

use std::ffi::c_void;

use ucp::{Envelope, Error, Layout, Match, Message, RecvStatus};

use super::Ep;
use super::complete::Op;
use super::recv::Recv;
use super::send::Memory;
use crate::abi::flags;
use crate::errno::Errno;

/// A message that a peek has claimed for a context.
pub(super) struct Claimed {
    context: *mut c_void,
    message: Message,
}

/// Result of a peek, as a receive would report it.
fn status_of(found: &Envelope) -> RecvStatus {
    RecvStatus { len: found.len as usize, tag: found.tag, from: found.from, cq_data: found.cq_data }
}

impl Ep {
    /// Looks for a message, or receives or discards one that was claimed. Inside the lock.
    #[cold]
    pub(super) fn peek(&self, plain: &ucp::Worker, recv: &Recv<'_>, matching: Match) -> Result<isize, Errno> {
        let asked = recv.flags & (flags::PEEK | flags::CLAIM | flags::DISCARD);
        let op = Op { room: usize::MAX, ..self.new_recv(recv) };
        if asked & flags::PEEK == 0 {
            return self.take_claimed(recv, op, asked & flags::DISCARD != 0);
        }
        self.progress();
        let found = match asked {
            flags::PEEK => plain.probe(matching),
            _ => plain.mprobe(matching).map(|message| {
                let found = message.envelope();
                if asked & flags::DISCARD == 0 {
                    self.claimed.borrow_mut().push(Claimed { context: recv.context, message });
                }
                found
            }),
        };
        match found {
            Some(found) => self.end_recv(&op, Ok(status_of(&found)), None),
            None => self.end_recv(&op, Err(Error::NoMessage), None),
        }
        Ok(0)
    }

    /// Receives or discards the message that was claimed for the context of the call.
    fn take_claimed(&self, recv: &Recv<'_>, op: Op, discards: bool) -> Result<isize, Errno> {
        let mut claimed = self.claimed.borrow_mut();
        let at = claimed.iter().position(|claimed| claimed.context == recv.context);
        let Some(at) = at else {
            tracing::error!("FI_CLAIM or FI_DISCARD: no message was claimed for context {:p}", recv.context);
            return Err(Errno::INVAL);
        };
        let mut message = claimed.swap_remove(at).message;
        drop(claimed);
        if discards {
            let found = status_of(&message.envelope());
            message.discard();
            self.end_recv(&op, Ok(found), None);
            return Ok(0);
        }
        // SAFETY: as for a receive that is posted.
        let started = self.receive_into(&recv.memory, op, |memory, params| unsafe {
            match *memory {
                Memory::Bytes(at, len) => message.recv_raw(at, len, params),
                Memory::Pieces(pieces) => message.recv_layout_raw(Layout::Iov(pieces), params),
            }
        });
        if let Err(Errno::AGAIN) = started {
            self.claimed.borrow_mut().push(Claimed { context: recv.context, message });
        }
        started
    }
}
