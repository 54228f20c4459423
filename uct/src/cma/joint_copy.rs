//! Long copies that both processes carry out: the requester from the front, the peer from the back whenever
//! it polls and finds nothing else. A peer that does not poll costs the requester nothing: it copies all
//! parts itself.
//!
//! Each interface has a table of slots that peers map. The requester offers a copy in a slot of the peer's
//! table. The peer copies between its own memory and that of the process which the slot names, once that
//! process has proved by its key that it has an interface too. This gives a peer no access that the kernel
//! would not give it: a process that lets no peer in has no table, and one that the kernel protects copies
//! nothing.

#![allow(unsafe_code)]

use super::Config;
use super::iface::{Addr, Inner, Proc};
use super::vm::{self, Direction};
use crate::api::{
    Access, AllocMethod, AllocReq, Comp, ConnectError, Error, Md as _, Memory as _, Outcome, Sent,
};
use crate::base::ep_table::EpIdx;
use crate::host::fd_server::{Capability, Name};
use crate::host::joint::{self, PeerState};
use crate::host::{self, RemoteSegment};
use arrayvec::ArrayVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use ucs::sync::Ordering::Relaxed;
use ucs::sync::{AtomicU32, AtomicU64};

/// Shortest copy that is offered to the peer.
pub(super) const MIN_LEN: usize = 128 << 10;
/// Longest such copy. Longer ones are carried out by the requester alone.
pub(super) const MAX_LEN: usize = 1 << 30;
const PARTS: u32 = 4;
/// Shorter parts cost more system calls, longer ones leave one side waiting.
const PART: (u32, u32) = (64 << 10, 256 << 10);
/// Most parts of one copy. Long copies have longer parts.
const TARGET_PARTS: u32 = 128;
const MAX_PART: u32 = MAX_LEN as u32 / TARGET_PARTS;

/// Copies that peers of one interface offer at a time.
const SLOTS: usize = 8;
/// Processes whose copies an interface has taken part in, and which it has not to ask for their key again.
const KNOWN: usize = 16;

/// Longest wait for the peer's part within the call. Then the operation is in progress.
const WAIT: Duration = Duration::from_millis(20);
/// Longest wait for it when an endpoint is dropped.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Follows the published number in an interface's words where the name of its table follows this.
pub(super) const HAS_TABLE: u64 = 0x71C8_5A0E_D93B_264F;

/// The slots of an interface. Peers write it at any time: every field is read once and checked.
#[repr(C)]
struct Table {
    /// Bit of each slot with an offer. A line of its own, which the owner reads at every idle poll.
    offers: Line,
    slots: [Slot; SLOTS],
}

#[repr(C, align(128))]
struct Line(AtomicU32);

/// A copy between a requester and the owner of the table.
#[repr(C, align(128))]
struct Slot {
    /// State of the copy ([`joint`]).
    word: AtomicU64,
    /// The requester: its process, and where its interface keeps which key.
    pid: AtomicU32,
    /// Non-zero: the owner's memory is written.
    write: AtomicU32,
    key: AtomicU64,
    key_addr: AtomicU64,
    /// Both ends of the copy, in the requester's memory and in the owner's.
    theirs: AtomicU64,
    ours: AtomicU64,
    len: AtomicU32,
    /// Length of a part.
    part: AtomicU32,
}

/// A contiguous copy between the requester's memory and the peer's.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub direction: Direction,
    pub local: *mut u8,
    pub remote: u64,
    pub len: usize,
}

impl Block {
    fn part(&self, at: u32, len: u32) -> Block {
        let (local, remote) = (self.local.wrapping_add(at as usize), self.remote.wrapping_add(at.into()));
        Block { local, remote, len: len as usize, ..*self }
    }

    /// Copies it in this process.
    /// # Safety
    /// As [`vm::transfer`].
    pub(super) unsafe fn transfer(&self, pid: u32) -> Result<(), Error> {
        let (mut local, mut remote) =
            ([vm::local_block(self.local, self.len)], [vm::remote_block(self.remote, self.len)]);
        // SAFETY: the caller's promise is the same.
        let done = unsafe { vm::transfer_blocks(self.direction, pid, &mut local, &mut remote, self.len) };
        done.map_err(|partial| partial.why)
    }
}

/// The table of this interface.
pub(super) struct OwnTable {
    mem: host::Mem,
    at: NonNull<Table>,
    known: RefCell<ArrayVec<Rc<Proc>, KNOWN>>,
}

impl OwnTable {
    /// Allocates a table, if peers are let in. `None` as well if there is no memory for it: copies are the
    /// requester's then.
    pub(super) fn new(md: &host::Md, config: &Config) -> Option<OwnTable> {
        if !(config.joint && config.map && config.allow_peers) {
            return None;
        }
        let methods = &[AllocMethod::Md];
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let req = AllocReq { methods, access, ..AllocReq::new(size_of::<Table>(), "copies of peers") };
        let mem = md
            .alloc(&req)
            .inspect_err(|why| tracing::debug!("joint copies are off, cannot allocate their table: {why}"))
            .ok()?;
        let at = NonNull::new(mem.addr())?.cast();
        Some(OwnTable { mem, at, known: RefCell::default() })
    }

    /// Name, nonce and address of the table, by which peers map it. They follow [`HAS_TABLE`].
    pub(super) fn capability(&self, md: &host::Md) -> Option<[u64; 3]> {
        let it = md.capability(&self.mem).ok()??;
        Some([it.name.0, it.nonce, self.at.as_ptr().addr() as u64])
    }

    fn table(&self) -> &Table {
        // SAFETY: memory of `self.mem`, zeroed at first, aligned to a page, and as long as a table. Only
        // atomics are in it, so that peers may write it meanwhile.
        unsafe { self.at.as_ref() }
    }

    /// Whether a peer offers a copy.
    // HOT
    #[inline(always)]
    pub(super) fn has_offers(&self) -> bool {
        self.table().offers.0.load(Relaxed) != 0
    }

    /// Copies a part of one copy that a peer has offered.
    #[cold]
    pub(super) fn join(&self, own: &Inner) {
        if !own.is_ours() {
            return;
        }
        let table = self.table();
        let offers = table.offers.0.load(Relaxed);
        let is_offered = |(at, slot)| (offers >> at & 1 != 0).then_some(slot);
        for slot in table.slots.iter().enumerate().filter_map(is_offered) {
            let seen = joint::load(&slot.word);
            let offer = slot.read();
            if !joint::is_offered(seen) {
                continue;
            }
            // What the kernel refuses to peers is not done for them.
            let requester = ucs::sys::proc::is_dumpable().then(|| self.known(own, &offer.requester));
            let Some(n) = joint::claim_last(&slot.word, seen) else { continue };
            let copied = matches!(requester, Some(Ok(proc)) if offer.copy_part(&proc, n).is_ok());
            joint::end_part(&slot.word, copied);
            return;
        }
        self.give_up_copies(own);
    }

    /// Frees slots of dead requesters, also of those that had taken their offer back. Others are between two
    /// steps, or wait for a part.
    fn give_up_copies(&self, own: &Inner) {
        let table = self.table();
        for (at, slot) in table.slots.iter().enumerate() {
            let seen = joint::load(&slot.word);
            if joint::has_requester(seen)
                && self.is_gone(own, &slot.read().requester)
                && joint::give_up(&slot.word, seen)
            {
                table.offers.0.fetch_and(!(1 << at), Relaxed);
            }
        }
    }

    /// The process that an offer names, once it has shown its key.
    fn known(&self, own: &Inner, requester: &Addr) -> Result<Rc<Proc>, ConnectError> {
        let mut known = self.known.borrow_mut();
        let is_it = |proc: &Rc<Proc>| (proc.pid, proc.key.0) == (requester.pid.get(), requester.key.get());
        if let Some(at) = known.iter().position(is_it) {
            if !known[at].is_dead() {
                return Ok(known[at].clone());
            }
            known.remove(at);
        }
        let proc = own.proc(requester)?;
        if known.is_full() {
            known.remove(0);
        }
        known.push(proc.clone());
        Ok(proc)
    }

    fn is_gone(&self, own: &Inner, requester: &Addr) -> bool {
        matches!(self.known(own, requester), Err(ConnectError::Gone))
    }
}

/// A copy that a peer offers to share.
struct Offer {
    requester: Addr,
    write: bool,
    theirs: u64,
    ours: u64,
    len: u32,
    part: u32,
}

impl Offer {
    /// Copies part `n` in the peer's stead. The kernel checks both ranges.
    fn copy_part(&self, requester: &Proc, n: u32) -> Result<(), Error> {
        let at = n.checked_mul(self.part).filter(|at| *at < self.len).ok_or(Error::RemoteAccess)?;
        let len = self.part.min(self.len - at);
        if self.part > MAX_PART {
            return Err(Error::RemoteAccess);
        }
        // A put of the requester is our read of its memory.
        let direction = if self.write { Direction::Read } else { Direction::Write };
        let local = std::ptr::with_exposed_provenance_mut(self.ours as usize);
        let all = Block { direction, local, remote: self.theirs, len: self.len as usize };
        // SAFETY: the bytes are of a range for which the requester has a key, or could have reached by its
        // own system call as well: the kernel checks that they are mapped, and their owner has let peers in.
        unsafe { all.part(at, len).transfer(requester.pid) }
    }
}

impl Slot {
    fn fill(&self, me: &Addr, block: &Block, part: u32) {
        self.pid.store(me.pid.get(), Relaxed);
        self.key.store(me.key.get(), Relaxed);
        self.key_addr.store(me.key_addr.get(), Relaxed);
        self.theirs.store(block.local.expose_provenance() as u64, Relaxed);
        self.ours.store(block.remote, Relaxed);
        self.len.store(block.len as u32, Relaxed);
        self.part.store(part, Relaxed);
        self.write.store((block.direction == Direction::Write).into(), Relaxed);
    }

    /// Reads the fields, each once: the requester could change them between check and use.
    fn read(&self) -> Offer {
        Offer {
            requester: Addr::new(self.pid.load(Relaxed), self.key.load(Relaxed), self.key_addr.load(Relaxed)),
            write: self.write.load(Relaxed) != 0,
            theirs: self.theirs.load(Relaxed),
            ours: self.ours.load(Relaxed),
            len: self.len.load(Relaxed),
            part: self.part.load(Relaxed),
        }
    }
}

/// A copy that waits for the peer's part.
struct Unfinished {
    slot: usize,
    /// The bytes of the peer's parts. The part that it took last comes first.
    rest: Block,
    part: u32,
    /// The result of the requester's parts.
    result: Result<(), Error>,
    comp: Comp,
    ep: EpIdx,
}

/// A peer's table, and the copy with it that waits. There is at most one, as later operations wait behind it.
#[derive(Default)]
pub(super) struct PeerCopies {
    /// Mapped by the first long copy; `None` inside if the peer has none, or cannot take part.
    table: OnceCell<Option<PeerTable>>,
    /// The peer has left a part to us: it cannot reach our memory.
    is_refused: Cell<bool>,
    unfinished: RefCell<Option<Unfinished>>,
    waits: Cell<bool>,
    /// Bit of each slot of a copy that was given up while the peer copied its part.
    given_up: Cell<u32>,
}

struct PeerTable {
    at: NonNull<Table>,
    _segment: Arc<RemoteSegment>,
}

impl PeerTable {
    /// Maps the table that an interface names in its words.
    fn open(own: &Inner, peer: &Proc, key_addr: u64) -> Option<PeerTable> {
        let [mark, name, nonce, addr] = own.read_words(peer, key_addr, 3).ok()?;
        if mark != HAS_TABLE || Name(name).owner() != peer.key {
            return None;
        }
        let mapped = own.segments().map(Capability { name: Name(name), nonce });
        let segment = mapped
            .inspect_err(|why| tracing::debug!("no joint copies with a peer, cannot map its table: {why}"))
            .ok()?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let window = segment.window(addr, size_of::<Table>(), access).ok()?;
        let at = NonNull::new(window.start()).filter(|at| at.cast::<Table>().is_aligned())?;
        (window.access().contains(access)).then_some(PeerTable { at: at.cast(), _segment: segment })
    }

    fn table(&self) -> &Table {
        // SAFETY: as long as a table, aligned, and mapped for writes as long as the segment (checked in
        // `open`). Only atomics are in it.
        unsafe { self.at.as_ref() }
    }

    fn free_slot(&self) -> Option<(usize, &Slot)> {
        self.table().slots.iter().enumerate().find(|(_, slot)| joint::begin(&slot.word).is_some())
    }
}

fn part_of(len: usize) -> u32 {
    let (least, most) = PART;
    let part = (len as u32 / PARTS).next_multiple_of(4096).clamp(least, most);
    part.max((len as u32).div_ceil(TARGET_PARTS).next_multiple_of(4096))
}

impl PeerCopies {
    /// Whether a copy waits for the peer's part: no other operation begins.
    #[inline(always)]
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.get()
    }

    /// Copies a block of [`MIN_LEN`] to [`MAX_LEN`] bytes together with the peer, or alone if it cannot take
    /// part. In progress: the peer still copies its part after [`WAIT`].
    /// # Safety
    /// As [`vm::transfer`], until the operation is complete.
    pub(super) unsafe fn copy(
        own: &Inner,
        (peer, key_addr): (&Rc<Proc>, u64),
        block: Block,
        (comp, ep): (Comp, EpIdx),
    ) -> Outcome {
        let copies = &peer.copies;
        let table = match copies.is_refused.get() {
            true => None,
            false => copies.table.get_or_init(|| PeerTable::open(own, peer, key_addr)).as_ref(),
        };
        let table = table.inspect(|table| copies.close_given_up(table.table()));
        let Some((table, (at, slot))) = table.and_then(|table| Some((table.table(), table.free_slot()?)))
        else {
            // SAFETY: the caller's promise is the same.
            unsafe { block.transfer(peer.pid) }?;
            return Ok(Sent::Done);
        };
        let (len, part) = (block.len as u32, part_of(block.len));
        slot.fill(&own.addr(), &block, part);
        joint::offer(&slot.word, len.div_ceil(part));
        table.offers.0.fetch_or(1 << at, Relaxed);
        // SAFETY: the caller's promise is the same.
        let copy = |at, len| unsafe { block.part(at, len).transfer(peer.pid) };
        let (from, result) = joint::copy_front(&slot.word, (len, part), copy);
        table.offers.0.fetch_and(!(1 << at), Relaxed);
        let rest = block.part(from, len - from);
        let copy = Unfinished { slot: at, rest, part, result, comp, ep };
        let state = match from == len {
            true => PeerState::Done,
            false => joint::await_peer(&slot.word, WAIT, || peer.is_dead()),
        };
        if state == PeerState::Busy {
            copies.waits.set(true);
            copies.unfinished.replace(Some(copy));
            return Ok(Sent::InProgress);
        }
        // SAFETY: the caller's promise is the same.
        unsafe { copies.end(peer, slot, state, &copy) }?;
        Ok(Sent::Done)
    }

    /// Ends a copy in whose slot the peer does nothing any more.
    /// # Safety
    /// As [`vm::transfer`], for the rest.
    unsafe fn end(&self, peer: &Proc, slot: &Slot, state: PeerState, copy: &Unfinished) -> Result<(), Error> {
        joint::close(&slot.word);
        copy.result?;
        if state == PeerState::Failed {
            self.is_refused.set(true);
            let last = copy.rest.part(0, copy.part.min(copy.rest.len as u32));
            // SAFETY: the caller's promise is the same.
            unsafe { last.transfer(peer.pid) }?;
        }
        Ok(())
    }

    /// Ends the copy that waits, if the peer's part is over. Returns its completion, endpoint and result.
    pub(super) fn poll(&self, peer: &Proc) -> Option<(Comp, EpIdx, Result<(), Error>)> {
        self.finish(peer, Duration::ZERO)
    }

    #[cold]
    fn finish(&self, peer: &Proc, longest: Duration) -> Option<(Comp, EpIdx, Result<(), Error>)> {
        let mut unfinished = self.unfinished.borrow_mut();
        let (at, table) = (unfinished.as_ref()?.slot, self.table.get()?.as_ref()?);
        let slot = &table.table().slots[at];
        let state = match longest.is_zero() {
            true => joint::peer_state(&slot.word),
            false => joint::await_peer(&slot.word, longest, || peer.is_dead()),
        };
        let state = if state == PeerState::Busy && peer.is_dead() { PeerState::Failed } else { state };
        if state == PeerState::Busy {
            return None;
        }
        let copy = unfinished.take()?;
        self.waits.set(false);
        // SAFETY: promised to `copy` until the operation is complete, which it is now.
        let result = unsafe { self.end(peer, slot, state, &copy) };
        Some((copy.comp, copy.ep, result))
    }

    /// Waits for the peer's part of the copy of an endpoint that is dropped: its memory may be used again.
    #[cold]
    pub(super) fn await_unfinished(&self, peer: &Proc, ep: EpIdx) -> Option<(Comp, Result<(), Error>)> {
        if self.unfinished.borrow().as_ref().is_none_or(|copy| copy.ep != ep) {
            return None;
        }
        if let Some((comp, _, result)) = self.finish(peer, LAST_WAIT) {
            return Some((comp, result));
        }
        tracing::warn!(
            "joint copy abandoned: the stopped peer process may still copy for the closed endpoint"
        );
        self.waits.set(false);
        let copy = self.unfinished.borrow_mut().take()?;
        self.given_up.set(self.given_up.get() | 1 << copy.slot);
        Some((copy.comp, Err(Error::Cancelled)))
    }

    /// Frees slots of copies that were given up, and of which the peer has copied its part since.
    fn close_given_up(&self, table: &Table) {
        for at in (0..SLOTS).filter(|at| self.given_up.get() >> at & 1 != 0) {
            let word = &table.slots[at].word;
            if joint::peer_state(word) != PeerState::Busy {
                self.given_up.set(self.given_up.get() & !(1 << at));
                joint::close(word);
            }
        }
    }
}

#[cfg(test)]
mod tests;
