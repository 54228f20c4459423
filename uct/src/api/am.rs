//! Active messages as the receiver sees them.
//!
//! On every transport a message is **one id byte directly followed by the data**: [`Am::data`] is the data,
//! [`Am::packet`] both. The memory may be shared with the sending process: read each header field once, into
//! a local.

#![allow(unsafe_code)]

use super::{EpTag, Error, SrcAddr};
use std::cell::Cell;
use std::sync::Arc;
use ucs::sync::copy_once;

/// One arrived active message. Dropping it gives the buffer back; [`Am::keep`] holds on to it.
pub struct Am<'a> {
    packet: &'a [u8],
    source: SrcAddr,
    keeper: &'a dyn Keep,
    accessed: Option<&'a Cell<bool>>,
}

/// Lets a handler keep a message's buffer past its return.
pub trait Keep {
    /// Takes the message out of the receive slot: swaps the slot's buffer for a spare one, or copies.
    fn keep(&self, packet: &[u8]) -> RecvDesc;
}

/// A message that outlives its handler. Dropping it, on any thread, returns the buffer.
pub struct RecvDesc {
    bytes: RecvDescBytes,
}

enum RecvDescBytes {
    Heap(Box<[u8]>),
    Pooled { owner: Arc<dyn RecvDescOwner>, slot: u32, at: *const u8, len: usize },
}

// SAFETY: the bytes are only read while they are kept (`RecvDesc::from_pool`), their owner is itself for all
// threads.
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

    /// For transports: sets `accessed` when the data are read or the message is kept.
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

    /// The active message id. Each call reads it: the next one may find another, if the sender is dishonest.
    #[inline(always)]
    pub fn id(&self) -> u8 {
        let mut id = [0];
        copy_once(&self.packet[..1], &mut id);
        id[0]
    }

    /// Data packed by the sender, after the id.
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

    /// A buffer of the transport's pool: the packet is the `len` bytes at `at`.
    /// # Safety
    /// The bytes are initialised and valid while `owner` lives; nobody writes them until `slot` is released.
    pub unsafe fn from_pool(owner: Arc<dyn RecvDescOwner>, slot: u32, at: *const u8, len: usize) -> Self {
        RecvDesc { bytes: RecvDescBytes::Pooled { owner, slot, at, len } }
    }

    /// Id byte and data.
    pub fn packet(&self) -> &[u8] {
        match &self.bytes {
            RecvDescBytes::Heap(b) => b,
            // SAFETY: promised to `from_pool`: valid while the owner lives, and unchanged until the drop of
            // `self`.
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
    /// Address of the writer.
    pub source: SrcAddr,
}

/// A receive of [`super::Iface::post_user_recv`] is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserRecv {
    /// [`Error::TooLong`]: the message was longer than the receive, which is used up. [`Error::Device`]: also
    /// if a peer's write with immediate has used it up, which puts nothing into it.
    pub result: Result<(), Error>,
    /// Bytes of the message, as far as the device says.
    pub len: usize,
    /// Immediate value that came with the message.
    pub imm: Option<u32>,
    /// Address of the sender.
    pub source: SrcAddr,
}

/// Handler of immediates of a peer's writes. Rules as for [`AmHandler`].
pub type ImmHandler = Box<dyn FnMut(Imm)>;

/// Handler of one active message id, called from progress, or sends if allowed. It may send, not progress.
pub type AmHandler = Box<dyn FnMut(Am<'_>)>;

/// Receiver of all events of an interface: the fast path of [`super::Iface::poll`], without boxed handlers.
///
/// A sink may send on any endpoint; it must not poll or progress the interface that calls it.
pub trait Sink {
    /// A message arrived.
    fn on_am(&mut self, am: Am<'_>);
    /// An operation that was given [`super::Comp::Token`] has completed locally.
    fn on_comp(&mut self, token: u64, result: Result<(), Error>);
    /// An operation without a completion failed on the endpoint with this tag.
    fn on_ep_error(&mut self, ep: EpTag, error: Error);
    /// A packet sent by copy was returned after the device's RNR retries. By default an endpoint error.
    fn on_rnr(&mut self, ep: EpTag, _packet: &[u8]) {
        self.on_ep_error(ep, Error::NotReady);
    }
    /// As [`Sink::on_rnr`], for a message of [`super::Ep::send_to_user_qp`] and what went with it.
    fn on_user_rnr(&mut self, ep: EpTag, _data: &[u8], _imm: Option<u32>) {
        self.on_ep_error(ep, Error::NotReady);
    }
    /// A packet sent by copy was not acknowledged: our device is down or the peer does not answer. It may
    /// have arrived. The default reports an endpoint error.
    fn on_lost(&mut self, ep: EpTag, error: Error, _packet: &[u8]) {
        self.on_ep_error(ep, error);
    }
    /// A receive of [`super::Iface::post_user_recv`] with this token has ended; its memory is free again.
    fn on_user_recv(&mut self, _token: u64, _recv: UserRecv) {}
    /// A peer's write with an immediate has arrived, with its bytes. Ignored by default.
    fn on_imm(&mut self, _imm: Imm) {}
}
