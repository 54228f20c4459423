//! Active messages as the receiver sees them.
//!
//! Layout rule of this crate: on every transport an active message lies in memory as **one id byte directly
//! followed by the data**. [`Am::data`] is what the sender packed; [`Am::packet`] is the same with the id byte
//! in front, which a protocol whose first byte *is* the id (EFA RDM) reads as one contiguous packet.
//!
//! The memory may be shared with the sending process. Read each header field once, into a local, and decide on
//! the local.

#![allow(unsafe_code)]

use super::{EpTag, Error, SrcAddr};
use std::cell::Cell;
use std::sync::Arc;

/// One arrived active message. Dropping it gives the buffer back; [`Am::keep`] holds on to it.
pub struct Am<'a> {
    packet: &'a [u8],
    source: SrcAddr,
    keeper: &'a dyn Keep,
    accessed: Option<&'a Cell<bool>>,
}

/// What a transport offers to let a handler hold on to a message's buffer past its return.
pub trait Keep {
    /// Takes the message out of the transport's receive slot, replacing the slot's buffer by a fresh one, or by
    /// copying if the transport has none to spare.
    fn keep(&self, packet: &[u8]) -> RecvDesc;
}

/// An active message that outlives its handler. Dropping it gives the buffer back to the transport, from whatever
/// thread: a kept message may be handed to another one.
pub struct RecvDesc {
    bytes: RecvDescBytes,
}

enum RecvDescBytes {
    Heap(Box<[u8]>),
    Pooled { owner: Arc<dyn RecvDescOwner>, slot: u32, at: *const u8, len: usize },
}

// SAFETY: the bytes are only read while they are kept (`RecvDesc::from_pool`), their owner is itself for all threads.
unsafe impl Send for RecvDesc {}
// SAFETY: as above; sharing gives out nothing but `&[u8]`.
unsafe impl Sync for RecvDesc {}

/// A pool of receive buffers that outlives the interface while messages are kept.
pub trait RecvDescOwner: Send + Sync {
    /// The slot's buffer is free again. Called once for each lent slot, by any thread.
    fn release(&self, slot: u32);
}

impl<'a> Am<'a> {
    /// For transports: wraps an arrived packet (id byte first, never empty).
    #[inline(always)]
    pub fn new(packet: &'a [u8], source: SrcAddr, keeper: &'a dyn Keep) -> Self {
        debug_assert!(!packet.is_empty());
        Am { packet, source, keeper, accessed: None }
    }

    /// For transports that want to know: `accessed` is set if somebody asks for the data or keeps the message.
    #[inline(always)]
    pub fn with_access_flag(self, accessed: Option<&'a Cell<bool>>) -> Self {
        Am { accessed, ..self }
    }

    #[inline(always)]
    fn mark_accessed(&self) {
        if let Some(accessed) = self.accessed {
            accessed.set(true);
        }
    }

    /// The active message id.
    #[inline(always)]
    pub fn id(&self) -> u8 {
        self.packet[0]
    }

    /// What the sender packed after the id.
    #[inline(always)]
    pub fn data(&self) -> &'a [u8] {
        self.mark_accessed();
        &self.packet[1..]
    }

    /// Bytes of the data, without a look at them.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.packet.len() - 1
    }

    /// Whether there is an id only.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Id byte and data as one slice.
    #[inline(always)]
    pub fn packet(&self) -> &'a [u8] {
        self.mark_accessed();
        self.packet
    }

    /// The sender, if [`super::Caps::AM_SOURCE`] is set.
    #[inline(always)]
    pub fn source(&self) -> SrcAddr {
        self.source
    }

    /// For decorators: the message that the packet holds behind its first `n` bytes, if there is one.
    pub fn skip(self, n: usize) -> Option<Am<'a>> {
        let packet = self.packet.get(n..).filter(|packet| !packet.is_empty())?;
        Some(Am { packet, ..self })
    }

    /// Keeps the message past the handler's return.
    pub fn keep(self) -> RecvDesc {
        self.mark_accessed();
        self.keeper.keep(self.packet)
    }
}

impl RecvDesc {
    /// A copy on the heap, for transports that have no buffer to give away.
    pub fn copied(packet: &[u8]) -> Self {
        RecvDesc { bytes: RecvDescBytes::Heap(packet.into()) }
    }

    /// A buffer of the transport's own pool: the packet (id byte and data) is the `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes must stay valid while `owner` lives, be initialised, and be written by nobody until `owner` has been
    /// told that `slot` is free again.
    pub unsafe fn from_pool(owner: Arc<dyn RecvDescOwner>, slot: u32, at: *const u8, len: usize) -> Self {
        RecvDesc { bytes: RecvDescBytes::Pooled { owner, slot, at, len } }
    }

    /// Id byte and data.
    pub fn packet(&self) -> &[u8] {
        match &self.bytes {
            RecvDescBytes::Heap(b) => b,
            // SAFETY: promised to `from_pool`: valid while the owner lives, and unchanged until the drop of `self`.
            RecvDescBytes::Pooled { at, len, .. } => unsafe { std::slice::from_raw_parts(*at, *len) },
        }
    }
}

impl Drop for RecvDesc {
    fn drop(&mut self) {
        if let RecvDescBytes::Pooled { owner, slot, .. } = &self.bytes {
            owner.release(*slot);
        }
    }
}

impl std::fmt::Debug for Am<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Am")
            .field("id", &self.id())
            .field("len", &self.len())
            .field("source", &self.source)
            .finish()
    }
}

/// A peer has written to our memory and sent a word along ([`super::Ep::put_imm`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Imm {
    /// The word.
    pub value: u32,
    /// Bytes written before it came.
    pub len: usize,
    /// Who wrote them.
    pub source: SrcAddr,
}

/// A receive of [`super::Iface::post_user_recv`] is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserRecv {
    /// Whether the message is there. [`Error::TooLong`]: it was longer than the receive, which it has used up.
    pub result: Result<(), Error>,
    /// Bytes of the message, as far as the device says.
    pub len: usize,
    /// What came with it.
    pub imm: Option<u32>,
    /// Who sent it.
    pub source: SrcAddr,
}

/// What is called for words that come along with writes. Rules as for [`AmHandler`].
pub type ImmHandler = Box<dyn FnMut(Imm)>;

/// A handler registered for one active message id. Called from progress only, unless the program
/// [asks](super::Iface::deliver_within_send) to have it called within sends too; it may send, it may not progress.
pub type AmHandler = Box<dyn FnMut(Am<'_>)>;

/// Everything an interface has to tell, as one object: what [`super::Iface::poll`] reports to.
///
/// This is the fast way to receive: the interface calls straight into the engine, without a table of boxed
/// handlers between. [`super::Iface::progress`] is the same poll with the table as its sink. A sink may send on
/// any endpoint; it must not poll or progress the interface that is calling it.
pub trait Sink {
    /// A message arrived.
    fn on_am(&mut self, am: Am<'_>);
    /// An operation that was given [`super::Comp::Token`] has completed locally.
    fn on_comp(&mut self, token: u64, result: Result<(), Error>);
    /// An operation nobody waits for failed on the endpoint that carries this tag.
    fn on_ep_error(&mut self, ep: EpTag, error: Error);
    /// A packet sent by copy on the endpoint that carries this tag has come back: its receiver had no buffer for it, as
    /// often as the device tried. Whoever does not send it again has lost it, and is told so by an error of the endpoint.
    fn on_rnr(&mut self, ep: EpTag, _packet: &[u8]) {
        self.on_ep_error(ep, Error::NotReady);
    }
    /// As [`Sink::on_rnr`], for a message of [`super::Ep::send_to_user_qp`] and what went with it.
    fn on_user_rnr(&mut self, ep: EpTag, _data: &[u8], _imm: Option<u32>) {
        self.on_ep_error(ep, Error::NotReady);
    }
    /// A packet sent by copy on the endpoint that carries this tag has not been acknowledged, since the way to the peer is
    /// lost: our device went down, or the peer's does not answer any more. It may have arrived all the same. Whoever does not
    /// send it another way is told of the loss by an error of the endpoint.
    fn on_lost(&mut self, ep: EpTag, error: Error, _packet: &[u8]) {
        self.on_ep_error(ep, error);
    }
    /// A receive posted with this token by [`super::Iface::post_user_recv`] is over: its memory is the program's again. Told to
    /// sinks that post such receives.
    fn on_user_recv(&mut self, _token: u64, _bare: UserRecv) {}
    /// A peer's write brought a word along, and its bytes are here. Where nobody expects any, they are ignored.
    fn on_imm(&mut self, _imm: Imm) {}
}
