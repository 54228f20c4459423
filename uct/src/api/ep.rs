//! Endpoints: connections to one remote interface, and everything that is sent over them.

#![allow(unsafe_code)]

use super::{
    AddrBuf, AtomicOp, Comp, ConnectError, Error, Op, Outcome, Pending, PendingQueued, Refused, Sent, Word,
};
use std::ptr::NonNull;

/// A number the user gives an endpoint, to recognise it in error reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EpTag(pub u64);

/// A further queue pair of a peer, whose receives take data without anything in front of it ([`Ep::send_to_user_qp`]). What a
/// peer says of itself is a claim: the device tells if there is no such queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UserQp {
    /// Its number.
    pub qpn: u16,
    /// Its q-key.
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

    /// Where it begins and how long it is, if there is no gap in it: one block, or blocks that follow each other.
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

/// Who writes the packet of [`Ep::am_short_packet`]: a closure, or what is to be compiled into its caller.
pub trait Pack {
    /// Whether it may send as well ([`Ep::am_bcopy`] says what becomes of that). Who says no and sends by the same endpoint all the
    /// same may lose the message that it was packing.
    const MAY_SEND: bool = true;

    /// Writes the packet to the start of `slot`, which has the room that was asked for, and answers its length.
    fn pack(self, slot: &mut [u8]) -> usize;

    /// A copy of its own, for one of several ways that a packet may take. Handed over as it is, what a way that is not compiled
    /// into the caller gets by pointer is stored before the ways part, though the others have it in registers. // HOT
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

/// An endpoint. What the interface cannot do answers [`Error::Unsupported`]: that is the default of each method.
///
/// Remote addresses are virtual addresses of the owner's process, inside the range the key names; anything else
/// is [`Error::RemoteAccess`], on a wire that can tell, and never touches memory outside the key's range.
pub trait Ep {
    /// Registered local memory.
    type Mem;
    /// Unpacked remote key.
    type Rkey;

    /// The number given by [`Ep::set_tag`].
    fn tag(&self) -> EpTag;
    /// Sets the number that error reports of this endpoint carry.
    fn set_tag(&self, tag: EpTag);

    /// Sends `header` (8 bytes, little endian) followed by `payload`.
    fn am_short(&self, _id: u8, _header: u64, _payload: &[u8]) -> Outcome {
        unsupported!(AmShort)
    }

    /// Sends the pieces of `iov` as one message.
    fn am_short_iov(&self, _id: u8, _iov: &[&[u8]]) -> Outcome {
        unsupported!(AmShortIov)
    }

    /// Sends what `pack` writes; `pack` gets the transport's buffer (at least `max_bcopy` bytes, contents
    /// undefined but initialised) and returns how many bytes it used. It is only called when there is room.
    /// Answers the number of bytes packed; the data are copied, nothing completes later. If `pack` says that it used more than
    /// there is, the answer is [`Error::InvalidParam`], and nothing is sent: so it is with every closure that packs.
    ///
    /// A closure may use its interface and endpoints, as a handler may: send, and queue what finds no room. A message to the peer
    /// of the one that it packs may find *no resource* until that is packed, so it must not try again until it is sent.
    fn am_bcopy<F: FnOnce(&mut [u8]) -> usize>(&self, id: u8, pack: F) -> Outcome<usize> {
        self.am_packet(1 + self.max_bcopy(), |slot| {
            slot[0] = id;
            pack(&mut slot[1..]).saturating_add(1)
        })
        .map(|n| n - 1)
    }

    /// Sends a message that brings its own id as byte 0: what `pack` writes is the whole packet, at most `max`
    /// bytes (`max` at most `max_bcopy + 1`). A hint of the true size lets the transport choose a small slot. What the closure
    /// may do is said at [`Ep::am_bcopy`]; a packet has its id at least.
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, _max: usize, _pack: F) -> Outcome<usize> {
        unsupported!(AmBcopy)
    }

    /// [`Ep::am_packet`], for packets that are mostly short: what has a short way compiles it into the caller, `pack` and all.
    #[inline(always)]
    fn am_short_packet<P: Pack + Copy>(&self, max: usize, pack: P) -> Outcome<usize> {
        self.am_packet(max, |slot| pack.pack(slot))
    }

    /// Sends what `pack` writes, at most `max` bytes (at most `max_bcopy + 1`) and perhaps none, as it is: no id goes in
    /// front. It goes to another queue pair of the endpoint's peer, with `imm` for its completion. The endpoint's flush, fence,
    /// tag and errors are for such messages too. Answers the number of bytes packed; the data are copied.
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
    ///
    /// # Safety
    /// The memory of `iov` must stay valid and unchanged until the completion fires (or the call answers *done*).
    unsafe fn am_zcopy(&self, _id: u8, _header: &[u8], _iov: &[Iov<'_, Self::Mem>], _comp: Comp) -> Outcome {
        unsupported!(AmZcopy)
    }

    /// Writes `bytes` to remote memory.
    fn put_short(&self, _bytes: &[u8], _remote: u64, _rkey: &Self::Rkey) -> Outcome {
        unsupported!(PutShort)
    }

    /// Writes what `pack` writes to remote memory; answers the number of bytes. All `max` bytes must be inside the key's range:
    /// the closure may be given the remote memory itself, so what it wrote there stays if it panics or is refused.
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
    ///
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
    ///
    /// # Safety
    /// The memory of `iov` must stay valid, and be written by nobody else, until the completion fires.
    unsafe fn get_zcopy(
        &self,
        _iov: &[Iov<'_, Self::Mem>],
        _remote: u64,
        _rkey: &Self::Rkey,
        _comp: Comp,
    ) -> Outcome {
        unsupported!(GetZcopy)
    }

    /// Writes the bytes of `iov`, one after the other, to the blocks of `remote`, one after the other. Both lists have
    /// the same number of bytes; one completion for all. A failure may leave some blocks written.
    ///
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

    /// Reads the blocks of `remote`, one after the other, into those of `iov`; as [`Ep::put_sgl`].
    ///
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

    /// As [`Ep::put_zcopy`], and when the bytes are there the owner of the memory is told the word `imm`
    /// ([`super::Sink::on_imm`]). At most one contiguous piece; it may be empty.
    ///
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
    ///
    /// # Safety
    /// `result` must stay valid for writes until the completion fires (or the call answers *done*).
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
    ///
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

    /// Completes when all operations issued on this endpoint so far have completed (remotely, where the
    /// interface has [`super::Caps::FLUSH_REMOTE`]).
    fn flush(&self, comp: Comp) -> Outcome;

    /// Operations issued after it take effect after those issued before it.
    fn fence(&self) -> Outcome;

    /// Queues an operation until there is room. Order is kept per endpoint, endpoints take turns. Where messages keep order
    /// ([`super::OrderKind::Ordered`]), one that is sent at once while others wait on its endpoint finds *no resource*, until they
    /// are gone.
    fn pending_add(&self, _op: Pending) -> Result<PendingQueued, Error> {
        Err(Error::Unsupported(Op::Pending))
    }

    /// Takes all waiting operations off the queue and hands each to `each`.
    fn pending_purge(&self, _each: &mut dyn FnMut(Pending)) {}

    /// Does now what [`connect`](super::Iface::connect) may have put off until the first message. For who wants to know
    /// before it sends whether the peer can be reached, or wants no slow first message, and has nothing else to do: it waits
    /// for the peer's answer, and after a time that the transport sets no more ([`ConnectError::NoAnswer`]).
    fn ensure_connected(&self) -> Result<(), ConnectError> {
        Ok(())
    }

    /// The same for who has other peers too: waits a few milliseconds at most. False: the peer has not answered yet. Then
    /// messages to it find no resource until it has, and each looks whether it has, as this does.
    fn begin_connecting(&self) -> Result<bool, ConnectError> {
        self.ensure_connected().map(|()| true)
    }

    /// Asks whether the peer is alive; completes with [`Error::PeerDead`] if not.
    fn check(&self, _comp: Comp) -> Outcome {
        unsupported!(Check)
    }

    /// Whether it leads to the interface of that address. Asks nobody: who is there now only [`Ep::check`] tells.
    fn is_connected(&self, _device: &[u8], _iface: &[u8]) -> bool;

    /// Gives the endpoint up: what waits for room is handed to `each`, untried, and nothing more is sent by it. Completes when
    /// nothing of it is on its way any more. What the wire has already cannot be called back: it ends as it would have, and its
    /// completions fire, with an error if a peer or device has failed; until then its memory is in use. Should it answer
    /// an error, the endpoint is given up all the same, and a flush of the interface tells.
    fn cancel(self, each: &mut dyn FnMut(Pending), comp: Comp) -> Outcome
    where
        Self: Sized,
    {
        self.pending_purge(each);
        match self.flush(comp) {
            // Nothing goes to it, and nothing comes back.
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
