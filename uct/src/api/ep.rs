//! Endpoints: connections to one remote interface, and everything that is sent over them.

#![allow(unsafe_code)]

use super::{
    Access, AddrBuf, AtomicOp, Comp, ConnectError, Error, Op, Outcome, Pending, PendingQueued, Refused, Sent,
    Word,
};
use std::ptr::NonNull;

/// A number the user gives an endpoint, to recognise it in error reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EpTag(pub u64);

/// A peer's queue pair for receives without an id ([`Ep::send_to_user_qp`]), as claimed by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UserQp {
    /// Queue pair number.
    pub qpn: u16,
    /// Q-key.
    pub qkey: u32,
}

/// A piece of local memory for zcopy: `count` blocks of `len` bytes, `stride` bytes apart.
#[derive(Debug)]
pub struct Iov<'m, M> {
    /// First byte of the first block.
    pub addr: *mut u8,
    /// Bytes in a block.
    pub len: usize,
    /// Distance between blocks, bytes; ignored when `count` is 1.
    pub stride: usize,
    /// Blocks.
    pub count: usize,
    /// The registration, where the domain needs one ([`super::MdAttr::needs_local_key`]).
    pub mem: Option<&'m M>,
}

impl<'m, M> Iov<'m, M> {
    /// One contiguous block.
    pub fn new(addr: *const u8, len: usize, mem: Option<&'m M>) -> Self {
        Iov { addr: addr.cast_mut(), len, stride: 0, count: 1, mem }
    }

    /// Bytes in all blocks.
    pub fn total(&self) -> usize {
        self.len * self.count
    }

    /// The first byte of each block that has bytes.
    // HOT
    #[inline]
    pub(crate) fn blocks(&self) -> impl Iterator<Item = *mut u8> + use<'m, M> {
        let (addr, stride) = (self.addr, self.stride);
        let count = if self.len == 0 { 0 } else { self.count };
        (0..count).map(move |n| addr.wrapping_add(n.wrapping_mul(stride)))
    }

    /// Address and length, if the blocks leave no gap.
    #[inline]
    pub fn contiguous(&self) -> Option<(*mut u8, usize)> {
        let whole = self.count == 1 || self.count > 1 && self.stride == self.len;
        if whole { Some((self.addr, self.len.checked_mul(self.count)?)) } else { None }
    }
}

impl<M> Clone for Iov<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Iov<'_, M> {}

/// A piece of remote memory: `count` blocks of `len` bytes, `stride` bytes apart.
#[derive(Debug)]
pub struct RemoteIov<'k, K> {
    /// Address of the first block, in the owner's process.
    pub addr: u64,
    /// Bytes in a block.
    pub len: usize,
    /// Distance between blocks, bytes; ignored when `count` is 1.
    pub stride: u64,
    /// Blocks.
    pub count: usize,
    /// The key that covers them.
    pub rkey: &'k K,
}

impl<'k, K> RemoteIov<'k, K> {
    /// One contiguous block.
    pub fn new(addr: u64, len: usize, rkey: &'k K) -> Self {
        RemoteIov { addr, len, stride: 0, count: 1, rkey }
    }
}

impl<K> Clone for RemoteIov<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for RemoteIov<'_, K> {}

macro_rules! unsupported {
    ($op:ident) => {
        Err(Refused::Failed(Error::Unsupported(Op::$op)))
    };
}

/// Writer of a packet of [`Ep::am_short_packet`]: a closure, or a type to be inlined.
pub trait Pack {
    /// Whether packing may send (see [`Ep::am_bcopy`]). If false, such a send may lose the message.
    const MAY_SEND: bool = true;

    /// Writes the packet to the start of `slot`; returns its length.
    fn pack(self, slot: &mut [u8]) -> usize;

    /// A copy for one of several code paths. Shared by pointer, it would be stored to memory for all of them.
    // HOT
    #[inline(always)]
    fn copy(&self) -> Self
    where
        Self: Copy,
    {
        *self
    }
}

impl<F: FnOnce(&mut [u8]) -> usize> Pack for F {
    #[inline]
    fn pack(self, slot: &mut [u8]) -> usize {
        self(slot)
    }
}

/// An endpoint. Operations that a transport lacks return [`Error::Unsupported`].
///
/// Remote addresses are virtual addresses of the owner, inside the key's range; anything else is
/// [`Error::RemoteAccess`], where the wire can tell, and touches no memory outside it.
pub trait Ep {
    /// Registered local memory.
    type Mem;
    /// Unpacked remote key.
    type Rkey;

    /// The number given by [`Ep::set_tag`].
    fn tag(&self) -> EpTag;
    /// Sets the number that error reports of this endpoint carry.
    fn set_tag(&self, tag: EpTag);

    /// Sends `header` (8 bytes, little endian) followed by `payload`, together at most
    /// [`AmLimits::max_short`](super::AmLimits::max_short) bytes.
    fn am_short(&self, _id: u8, _header: u64, _payload: &[u8]) -> Outcome {
        unsupported!(AmShort)
    }

    /// Sends the pieces of `iov` as one message of at most
    /// [`AmLimits::max_short`](super::AmLimits::max_short) bytes.
    fn am_short_iov(&self, _id: u8, _iov: &[&[u8]]) -> Outcome {
        unsupported!(AmShortIov)
    }

    /// Sends what `pack` writes into the transport's buffer (at least `max_bcopy` bytes, initialised); `pack`
    /// returns its length and is called only when there is room. Returns that length; nothing completes
    /// later. A length beyond the buffer is [`Error::InvalidParam`].
    ///
    /// `pack` may use the interface as a handler may. Its own messages to the same peer may find *no
    /// resource*: it must not retry them.
    fn am_bcopy<F: FnOnce(&mut [u8]) -> usize>(&self, id: u8, pack: F) -> Outcome<usize> {
        self.am_packet(1 + self.max_bcopy(), |slot| {
            slot[0] = id;
            pack(&mut slot[1..]).saturating_add(1)
        })
        .map(|n| n - 1)
    }

    /// Sends a packet that has its id as byte 0, at most `max` bytes (up to `max_bcopy + 1`). A close `max`
    /// lets the transport choose a small slot. Rules of [`Ep::am_bcopy`].
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, _max: usize, _pack: F) -> Outcome<usize> {
        unsupported!(AmBcopy)
    }

    /// [`Ep::am_packet`] for mostly short packets: the short path and `pack` are inlined.
    #[inline(always)]
    fn am_short_packet<P: Pack + Copy>(&self, max: usize, pack: P) -> Outcome<usize> {
        self.am_packet(max, |slot| pack.pack(slot))
    }

    /// Sends up to `max` bytes (at most `max_bcopy + 1`, perhaps none) without an id to a user queue pair of
    /// the peer, with an immediate. Flush, fence, tag and errors are the endpoint's. Returns the bytes
    /// packed.
    fn send_to_user_qp<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        _to: UserQp,
        _max: usize,
        _imm: Option<u32>,
        _pack: F,
    ) -> Outcome<usize> {
        unsupported!(SendToUserQp)
    }

    /// The interface's `am.max_bcopy`, for the default of [`Ep::am_bcopy`].
    fn max_bcopy(&self) -> usize;

    /// Sends `header` followed by the bytes of `iov`, read in place.
    /// # Safety
    /// The memory of `iov` stays valid and unchanged until the completion (or *done*).
    unsafe fn am_zcopy(&self, _id: u8, _header: &[u8], _iov: &[Iov<'_, Self::Mem>], _comp: Comp) -> Outcome {
        unsupported!(AmZcopy)
    }

    /// Whether loads, stores and atomic instructions of the program, on memory that `rkey` maps here
    /// ([`Md::rkey_ptr`](super::Md::rkey_ptr)), may take the place of operations of this endpoint. `need` is
    /// the access. False if the peer has failed, the key has been revoked or lacks the right, and for
    /// transports that map no memory.
    // HOT
    #[inline(always)]
    fn may_access(&self, _rkey: &Self::Rkey, _need: Access) -> bool {
        false
    }

    /// Writes `bytes` to remote memory.
    fn put_short(&self, _bytes: &[u8], _remote: u64, _rkey: &Self::Rkey) -> Outcome {
        unsupported!(PutShort)
    }

    /// Writes what `pack` writes to remote memory; returns the bytes. `pack` may get the remote memory
    /// itself, so all `max` bytes lie inside the key's range, and a refused write may leave bytes.
    fn put_bcopy<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        _max: usize,
        _pack: F,
        _remote: u64,
        _rkey: &Self::Rkey,
    ) -> Outcome<usize> {
        unsupported!(PutBcopy)
    }

    /// Writes the bytes of `iov` to remote memory.
    /// # Safety
    /// As for [`Ep::am_zcopy`].
    unsafe fn put_zcopy(
        &self,
        _iov: &[Iov<'_, Self::Mem>],
        _remote: u64,
        _rkey: &Self::Rkey,
        _comp: Comp,
    ) -> Outcome {
        unsupported!(PutZcopy)
    }

    /// Reads remote memory into `out` before returning.
    fn get_short(&self, _out: &mut [u8], _remote: u64, _rkey: &Self::Rkey) -> Outcome {
        unsupported!(GetShort)
    }

    /// Reads `len` bytes of remote memory and hands them to `unpack`, now or from progress.
    fn get_bcopy<F: FnOnce(&[u8]) + 'static>(
        &self,
        _len: usize,
        _unpack: F,
        _remote: u64,
        _rkey: &Self::Rkey,
        _comp: Comp,
    ) -> Outcome {
        unsupported!(GetBcopy)
    }

    /// Reads remote memory into the blocks of `iov`.
    /// # Safety
    /// The memory of `iov` stays valid, and is written by nobody else, until the completion.
    unsafe fn get_zcopy(
        &self,
        _iov: &[Iov<'_, Self::Mem>],
        _remote: u64,
        _rkey: &Self::Rkey,
        _comp: Comp,
    ) -> Outcome {
        unsupported!(GetZcopy)
    }

    /// Writes the bytes of `iov` to the blocks of `remote`, equally long, with one completion. May fail
    /// half-way.
    /// # Safety
    /// As for [`Ep::am_zcopy`].
    unsafe fn put_sgl(
        &self,
        _iov: &[Iov<'_, Self::Mem>],
        _remote: &[RemoteIov<'_, Self::Rkey>],
        _comp: Comp,
    ) -> Outcome {
        unsupported!(PutSgl)
    }

    /// Reads the blocks of `remote` into those of `iov`; as [`Ep::put_sgl`].
    /// # Safety
    /// As for [`Ep::get_zcopy`].
    unsafe fn get_sgl(
        &self,
        _iov: &[Iov<'_, Self::Mem>],
        _remote: &[RemoteIov<'_, Self::Rkey>],
        _comp: Comp,
    ) -> Outcome {
        unsupported!(GetSgl)
    }

    /// [`Ep::put_zcopy`] of at most one piece; then the owner gets `imm` ([`super::Sink::on_imm`]).
    /// # Safety
    /// As for [`Ep::am_zcopy`].
    unsafe fn put_imm(
        &self,
        _iov: &[Iov<'_, Self::Mem>],
        _remote: u64,
        _rkey: &Self::Rkey,
        _imm: u32,
        _comp: Comp,
    ) -> Outcome {
        unsupported!(PutImm)
    }

    /// Does `op` on a remote word, without a result. [`AtomicOp::Swap`] has no post form.
    fn atomic_post<W: Word>(&self, _op: AtomicOp, _value: W, _remote: u64, _rkey: &Self::Rkey) -> Outcome {
        unsupported!(AtomicPost)
    }

    /// Does `op` on a remote word and stores the old value in `result`.
    /// # Safety
    /// `result` stays valid for writes until the completion (or *done*).
    unsafe fn atomic_fetch<W: Word>(
        &self,
        _op: AtomicOp,
        _value: W,
        _result: NonNull<W>,
        _remote: u64,
        _rkey: &Self::Rkey,
        _comp: Comp,
    ) -> Outcome {
        unsupported!(AtomicFetch)
    }

    /// Stores `swap` in a remote word if it holds `compare`; the old value goes to `result` either way.
    /// # Safety
    /// As for [`Ep::atomic_fetch`].
    unsafe fn atomic_cswap<W: Word>(
        &self,
        _compare: W,
        _swap: W,
        _result: NonNull<W>,
        _remote: u64,
        _rkey: &Self::Rkey,
        _comp: Comp,
    ) -> Outcome {
        unsupported!(AtomicCswap)
    }

    /// Completes after all earlier operations of this endpoint (remotely with [`super::Caps::FLUSH_REMOTE`]).
    /// On `efa` it completes also if operations failed: the error handler was called before. On `posix` and
    /// `cma` it fails with [`Error::PeerDead`] when the peer is dead.
    fn flush(&self, comp: Comp) -> Outcome;

    /// Operations issued after it take effect after those issued before it.
    fn fence(&self) -> Outcome;

    /// Queues an operation until there is room: in order per endpoint, endpoints in turn. On ordered wires
    /// ([`super::OrderKind::Ordered`]) a direct send finds *no resource* while others wait.
    /// [`PendingQueued`] tells whether the operation was queued, or there is room for it now.
    fn pending_add(&self, _op: Pending) -> Result<PendingQueued, Error> {
        Err(Error::Unsupported(Op::Pending))
    }

    /// Takes all waiting operations off the queue and hands each to `each`.
    fn pending_purge(&self, _each: &mut dyn FnMut(Pending)) {}

    /// Connects now if deferred; waits for the peer up to the transport's time ([`ConnectError::NoAnswer`]).
    fn ensure_connected(&self) -> Result<(), ConnectError> {
        Ok(())
    }

    /// [`Ep::ensure_connected`] that waits a few ms. False: sends find no resource until the answer comes.
    fn begin_connecting(&self) -> Result<bool, ConnectError> {
        self.ensure_connected().map(|()| true)
    }

    /// Asks whether the peer is alive; completes with [`Error::PeerDead`], [`Error::Unreachable`] or
    /// [`Error::Unresponsive`] if not.
    fn check(&self, _comp: Comp) -> Outcome {
        unsupported!(Check)
    }

    /// Whether the endpoint leads to that address; no message is sent ([`Ep::check`] asks the peer).
    fn is_connected(&self, _device: &[u8], _iface: &[u8]) -> bool;

    /// Returns a number that stands for the process at the other end; `None` if the transport does not know
    /// it. Endpoints of different transports of one host return the same number for the same process, if they
    /// pass memory over the same sockets.
    fn peer_process(&self) -> Option<u64> {
        None
    }

    /// Reads the number that the interface at the other end has published ([`super::Iface::publish`]), as it
    /// is now. `None` if the transport has no such numbers, or the process is gone.
    fn published(&self) -> Option<u64> {
        None
    }

    /// Gives the endpoint up: hands pending operations to `each`, untried. Completes when nothing is in
    /// flight; what the wire has ends normally and uses its memory until then. Given up even on error.
    fn cancel(self, each: &mut dyn FnMut(Pending), comp: Comp) -> Outcome
    where
        Self: Sized,
    {
        self.pending_purge(each);
        match self.flush(comp) {
            Err(Refused::Failed(Error::PeerDead)) => Ok(Sent::Done),
            flushed => flushed,
        }
    }

    /// This endpoint's own address, for [`Ep::connect_to_ep`] on the other side.
    fn ep_addr(&self) -> Result<AddrBuf, Error> {
        Err(Error::Unsupported(Op::ConnectToEp))
    }

    /// Connects an endpoint made by `create_ep` to a remote endpoint. Both sides call it.
    fn connect_to_ep(&self, _device: &[u8], _iface: &[u8], _ep: &[u8]) -> Result<(), ConnectError> {
        Err(ConnectError::Op(Error::Unsupported(Op::ConnectToEp)))
    }
}
