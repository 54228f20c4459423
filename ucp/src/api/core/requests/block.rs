//! Request blocks: the state of one operation, at an address that does not change. The address is the
//! operation's token in the engine. Any thread may read status and message of a block, its worker the rest.

use std::cell::Cell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use ucs::Status;

use super::{EMPTY_STATUS, Ended, Notify, Role};
use crate::api::core::error::Error;

use crate::rdm::RecvStatus;
use crate::rdm::io::PeerId;

/// Bytes of a block. User memory follows.
pub(crate) const BLOCK_SIZE: usize = 112;
const _: () = assert!(size_of::<Block>() == BLOCK_SIZE && align_of::<Block>() == 8);

/// State of an operation, for its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// No operation.
    Free = 0,
    /// Running, without notification.
    Running = 1,
    /// Running; completion wakes the waker or calls the callback.
    Awaited = 2,
    /// Running, and its request was dropped; completion frees the block and the kept buffer.
    Detached = 3,
    /// Completed, not yet taken.
    Ended = 4,
}

/// Status (8 bits), stage (8 bits), whether the memory is the caller's and whether there is `cq_data`: one
/// word, so that the common cases are a comparison and a store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u32);

impl State {
    /// Running without notification, in a block of the worker.
    pub(super) const RUNNING: State = State::new(Status::InProgress, Stage::Running);
    /// Ended well, in a block of the worker, without `cq_data`.
    pub(super) const ENDED_WELL: State = State::new(Status::Ok, Stage::Ended);

    const STAGE_SHIFT: u32 = 8;
    const CALLERS: u32 = 1 << 16;
    const HAS_CQ_DATA: u32 = 1 << 17;
    const FLAGS: u32 = Self::CALLERS | Self::HAS_CQ_DATA;

    const fn new(status: Status, stage: Stage) -> State {
        State(status as i8 as u8 as u32 | (stage as u32) << Self::STAGE_SHIFT)
    }

    fn status(self) -> Status {
        Status::try_from(self.0 as u8 as i8).unwrap_or(Status::IoError)
    }

    #[inline]
    pub(super) const fn stage(self) -> Stage {
        match self.0 >> Self::STAGE_SHIFT & 7 {
            0 => Stage::Free,
            1 => Stage::Running,
            2 => Stage::Awaited,
            3 => Stage::Detached,
            _ => Stage::Ended,
        }
    }

    #[inline]
    pub(super) const fn is_callers(self) -> bool {
        self.0 & Self::CALLERS != 0
    }

    /// The state with another status and stage.
    #[inline]
    const fn with(self, status: Status, stage: Stage) -> State {
        State(State::new(status, stage).0 | self.0 & Self::FLAGS)
    }
}

/// State of one operation. Atomic fields are for any thread, the others for the worker that owns the block.
///
/// Field order in memory: an operation without notification uses the first cache line only.
#[repr(C)]
pub(crate) struct Block {
    /// [`State`]. Its status is [`Status::InProgress`] until the end; then it is stored after the fields that
    /// it announces.
    state: AtomicU32,
    /// Differs between operations of a block.
    generation: AtomicU32,
    pub(super) role: Cell<Role>,
    /// Next block of the list of free or ready blocks. Of a running operation with `Role::Forwarded`: the
    /// block of the request that carries it out.
    pub(super) next: Cell<Option<BlockPtr>>,
    len: AtomicU64,
    tag: AtomicU64,
    /// Sender, a [`PeerId`].
    from: AtomicU32,
    /// Number of the owning worker's request table; 0: none.
    owner: AtomicU32,
    /// Set if the state says so.
    cq_data: AtomicU64,
    /// Position among the caller's blocks that run, for `CallersBlocks`.
    pub(super) callers_at: Cell<u32>,
    pub(super) notify: Cell<Notify>,
    /// Error of an operation that has not ended well.
    error: Cell<Option<Error>>,
}

impl Block {
    /// A block without operation.
    pub(super) const fn new(owner: u32, generation: u32) -> Block {
        Block {
            state: AtomicU32::new(State::new(Status::InProgress, Stage::Free).0),
            generation: AtomicU32::new(generation),
            role: Cell::new(Role::Flush),
            next: Cell::new(None),
            len: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            from: AtomicU32::new(EMPTY_STATUS.from.0),
            owner: AtomicU32::new(owner),
            cq_data: AtomicU64::new(0),
            callers_at: Cell::new(0),
            notify: Cell::new(Notify::None),
            error: Cell::new(None),
        }
    }

    // HOT
    #[inline(always)]
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    // HOT
    #[inline(always)]
    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Gives a block without operation to a worker.
    pub(super) fn set_owner(&self, owner: u32) {
        self.owner.store(owner, Ordering::Relaxed);
        self.set_state(State::new(Status::InProgress, Stage::Free));
    }

    // HOT
    #[inline(always)]
    pub(super) fn state(&self) -> State {
        State(self.state.load(Ordering::Relaxed))
    }

    /// Generation and state, read without the cost of an atomic operation. // HOT
    /// # Safety
    /// The calling thread has the worker that owns the block: nobody else writes them.
    #[inline(always)]
    pub(super) unsafe fn own_generation_and_state(&self) -> (u32, State) {
        // SAFETY: this function's contract.
        let generation = unsafe { self.generation.as_ptr().read() };
        // SAFETY: as above.
        (generation, State(unsafe { self.state.as_ptr().read() }))
    }

    // HOT
    #[inline(always)]
    pub(super) fn stage(&self) -> Stage {
        self.state().stage()
    }

    // HOT
    #[inline(always)]
    fn set_state(&self, state: State) {
        self.state.store(state.0, Ordering::Release);
    }

    /// Changes the stage of an operation that runs.
    #[inline]
    pub(super) fn set_stage(&self, stage: Stage) {
        self.set_state(self.state().with(Status::InProgress, stage));
    }

    /// Notes that the memory is the caller's.
    pub(super) fn mark_callers(&self) {
        self.set_state(State(self.state().0 | State::CALLERS));
    }

    /// Begins an operation. // HOT
    #[inline(always)]
    pub(super) fn begin(&self, role: Role) {
        self.role.set(role);
        self.set_state(State::RUNNING);
    }

    /// Length of a one-sided operation, set when it begins.
    #[inline]
    pub(super) fn set_len(&self, len: usize) {
        self.len.store(len as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Stores a message, for [`Block::publish`].
    pub(super) fn store_message(&self, message: &RecvStatus) {
        self.store_plain_message(message);
        self.store_cq_data(message.cq_data);
    }

    /// Stores all of a message but `cq_data`. // HOT
    #[inline(always)]
    pub(super) fn store_plain_message(&self, message: &RecvStatus) {
        self.len.store(message.len as u64, Ordering::Relaxed);
        self.tag.store(message.tag, Ordering::Relaxed);
        self.from.store(message.from.0, Ordering::Relaxed);
    }

    /// Message of an operation that has ended in this state.
    #[inline]
    fn message(&self, state: State) -> RecvStatus {
        let has_data = state.0 & State::HAS_CQ_DATA != 0;
        let cq_data = has_data.then(|| self.cq_data.load(Ordering::Relaxed));
        RecvStatus { cq_data, ..self.load_plain_message() }
    }

    /// Message without `cq_data`. // HOT
    #[inline(always)]
    pub(super) fn load_plain_message(&self) -> RecvStatus {
        RecvStatus {
            len: self.len(),
            tag: self.tag.load(Ordering::Relaxed),
            from: PeerId(self.from.load(Ordering::Relaxed)),
            cq_data: None,
        }
    }

    /// Ends an operation of a block of the worker that runs without notification. Its message, without
    /// `cq_data`, is stored. // HOT
    #[inline(always)]
    pub(super) fn end_well(&self) {
        self.set_state(State::ENDED_WELL);
    }

    /// Adds `cq_data` to a message that is stored.
    pub(super) fn store_cq_data(&self, cq_data: Option<u64>) {
        let has_data = cq_data.map_or(0, |data| {
            self.cq_data.store(data, Ordering::Relaxed);
            State::HAS_CQ_DATA
        });
        self.set_state(State(self.state().0 & !State::HAS_CQ_DATA | has_data));
    }

    /// Notes that an operation, whose message is stored, has no error.
    pub(super) fn set_no_error(&self) {
        self.error.set(None);
    }

    /// Stores the result, for [`Block::publish`].
    pub(super) fn store_result(&self, ended: Ended) {
        match ended {
            Ok(message) => self.store_message(&message),
            Err(Error::Truncated { len, .. }) => {
                self.store_message(&RecvStatus { len: len as usize, ..EMPTY_STATUS });
            }
            Err(_) => self.store_message(&EMPTY_STATUS),
        }
        self.error.set(ended.err());
    }

    /// Shows every thread that the operation has ended.
    #[inline]
    pub(super) fn publish(&self) {
        let status = self.error.get().map_or(Status::Ok, Error::status);
        self.set_state(self.state().with(status, Stage::Ended));
    }

    /// Result of an operation that has ended.
    #[inline]
    pub(super) fn result(&self) -> Ended {
        match self.error.get() {
            Some(error) if self.state().status() != Status::Ok => Err(error),
            _ => Ok(self.message(self.state())),
        }
    }

    /// Ends the use of a block: its request is stale. The state stays readable by address. // HOT
    #[inline(always)]
    pub(super) fn release(&self) {
        self.generation.store(self.generation().wrapping_add(1), Ordering::Relaxed);
        // A thread that sees a store of the next operation sees the new generation, too.
        fence(Ordering::Release);
    }

    /// Status of the current operation, for any thread.
    #[inline]
    pub(super) fn status(&self) -> Status {
        State(self.state.load(Ordering::Acquire)).status()
    }

    /// Status of the operation with this generation, for any thread; `None` if the block has been released.
    #[inline]
    pub(super) fn status_of(&self, generation: u32) -> Option<Status> {
        let status = self.status();
        (self.generation() == generation).then_some(status)
    }

    /// Message that the operation with this generation has received, for any thread; `None` before its end.
    #[inline]
    pub(super) fn message_of(&self, generation: u32) -> Option<RecvStatus> {
        let state = State(self.state.load(Ordering::Acquire));
        if state.status() == Status::InProgress {
            return None;
        }
        let message = self.message(state);
        fence(Ordering::Acquire);
        (self.generation() == generation).then_some(message)
    }
}

/// Address of a block.
///
/// Invariant: the memory is a block for as long as the process runs (pools never free any), or the caller's,
/// who vouches for it until the operation has ended and while handles of it are used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockPtr(NonNull<Block>);

impl Deref for BlockPtr {
    type Target = Block;

    #[inline(always)]
    fn deref(&self) -> &Block {
        // SAFETY: the invariant of the type.
        unsafe { self.0.as_ref() }
    }
}

impl BlockPtr {
    /// Makes a block of memory.
    /// # Safety
    /// `memory` has [`BLOCK_SIZE`] bytes, is aligned to 8 bytes, and keeps to the invariant of the type.
    pub(super) unsafe fn init(memory: NonNull<u8>, block: Block) -> BlockPtr {
        let ptr = memory.cast::<Block>();
        // SAFETY: this function's contract.
        unsafe { ptr.write(block) };
        BlockPtr(ptr)
    }

    /// The block at `memory`.
    /// # Safety
    /// [`BlockPtr::init`] has been called with this address.
    pub(super) unsafe fn at(memory: NonNull<u8>) -> BlockPtr {
        BlockPtr(memory.cast())
    }

    /// Address, as an operation's token in the engine. // HOT
    #[inline(always)]
    pub(super) fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The block of a token.
    /// # Safety
    /// `address` is the result of [`BlockPtr::address`], and its block still keeps to the invariant. // HOT
    #[inline(always)]
    pub(super) unsafe fn from_address(address: usize) -> BlockPtr {
        // SAFETY: an address of a block is not null.
        BlockPtr(unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address)) })
    }

    /// First byte of the user's memory behind the block.
    pub(super) fn user_memory(self) -> NonNull<u8> {
        // SAFETY: one past the block, still within its allocation or at its end.
        unsafe { self.0.cast::<u8>().add(BLOCK_SIZE) }
    }
}
