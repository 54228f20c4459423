//! Request blocks: the state of one operation, at an address that does not change. The address is the
//! operation's token in the engine. Any thread may read status and message of a block, its worker the rest.

use std::cell::Cell;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI8, AtomicU32, AtomicU64, Ordering, fence};

use ucs::Status;

use super::{CallAt, Callback, EMPTY_STATUS, Ended, Notify, Role};
use crate::api::core::error::Error;

use crate::rdm::RecvStatus;
use crate::rdm::io::PeerId;

/// Bytes of a block. User memory follows.
pub(crate) const BLOCK_SIZE: usize = 112;
const _: () = assert!(size_of::<Block>() == BLOCK_SIZE && align_of::<Block>() == 8);

/// State of an operation, for its worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Running, without notification.
    Running = 0,
    /// Running; completion wakes the waker or calls the callback.
    Awaited = 1,
    /// Running, and its request was dropped; completion frees the block and the kept buffer.
    Detached = 2,
    /// Completed, not yet taken; or no operation.
    Ended = 3,
}

/// State of an operation in one word, so that the common cases are a comparison and an addition.
///
/// | bits | |
/// |---|---|
/// | 0, 1 | [`Stage`] |
/// | 2 | the memory is the caller's |
/// | 3 | there is `cq_data` |
/// | 4 | the operation has failed: [`Block::status`] |
/// | 5 to 31 | generation: differs between operations of a block |
/// | 32 | carry of the generation, cleared when next somebody looks |
/// | 33 to 63 | number of the owning worker's request table; 0: none |
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u64);

impl State {
    const STAGE: u64 = 3;
    const CALLERS: u64 = 1 << 2;
    const HAS_CQ_DATA: u64 = 1 << 3;
    const FAILED: u64 = 1 << 4;
    /// All bits but generation and owner.
    const FLAGS: u64 = Self::NEXT_GENERATION - 1;
    const NEXT_GENERATION: u64 = 1 << 5;
    /// Stage and flags after a plain end, and of a free block.
    const ENDED_WELL: u64 = Stage::Ended as u64;

    #[inline]
    pub(super) const fn stage(self) -> Stage {
        match self.0 & Self::STAGE {
            0 => Stage::Running,
            1 => Stage::Awaited,
            2 => Stage::Detached,
            _ => Stage::Ended,
        }
    }

    #[inline]
    pub(super) const fn is_callers(self) -> bool {
        self.0 & Self::CALLERS != 0
    }

    /// True for an operation that runs without notification in a block of the worker.
    // HOT
    #[inline(always)]
    pub(super) const fn is_plainly_running(self) -> bool {
        self.0 & Self::FLAGS == 0
    }

    /// True for an operation that runs with a notification in a block of the worker.
    // HOT
    #[inline(always)]
    pub(super) const fn is_plainly_awaited(self) -> bool {
        self.0 & Self::FLAGS == Stage::Awaited as u64
    }

    /// Generation, in the form that requests have.
    #[inline]
    const fn generation(self) -> Generation {
        Generation((self.0 & !Self::FLAGS) as u32 | Self::ENDED_WELL as u32)
    }

    #[inline]
    const fn owner(self) -> OwnerNumber {
        OwnerNumber(self.0 & OwnerNumber::MASK)
    }

    /// True for a block of the table with this number.
    pub(super) const fn is_of(self, owner: OwnerNumber) -> bool {
        self.owner().0 == owner.0
    }

    /// The state with these flags and stage instead of its own.
    const fn with_flags(self, flags: u64) -> State {
        State(self.0 & !Self::FLAGS | flags)
    }
}

/// Number of a request table, in the place that it has in a [`State`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnerNumber(u64);

impl OwnerNumber {
    pub(super) const NONE: OwnerNumber = OwnerNumber(0);
    const SHIFT: u32 = 33;
    const MASK: u64 = u64::MAX << Self::SHIFT;

    /// A number that no table of the process has had.
    pub(super) fn next() -> OwnerNumber {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number <= Self::MASK >> Self::SHIFT, "a process has at most 2^31 workers in its life");
        OwnerNumber(number << Self::SHIFT)
    }
}

/// Generation of a block: the lower half of its [`State`] once the operation has ended well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Generation(u32);

impl Generation {
    /// The generation of blocks that have had no operation.
    pub(super) const FIRST: Generation = Generation(State::ENDED_WELL as u32);

    pub(super) const fn next(self) -> Generation {
        Generation(self.0.wrapping_add(State::NEXT_GENERATION as u32))
    }
}

/// State of one operation. Atomic fields are for any thread, the others for the worker that owns the block.
///
/// Field order in memory: an operation without notification uses the first cache line only.
#[repr(C)]
pub(crate) struct Block {
    /// [`State`]. The end is stored after the fields that it announces.
    state: AtomicU64,
    pub(super) role: Cell<Role>,
    /// Next block of the list of free or ready blocks. Of a running operation with `Role::Forwarded`: the
    /// block of the request that carries it out.
    pub(super) next: Cell<Option<BlockPtr>>,
    len: AtomicU64,
    tag: AtomicU64,
    /// Sender, a [`PeerId`].
    from: AtomicU32,
    /// Status of an operation that has failed.
    failure: AtomicI8,
    /// Set if the state says so.
    cq_data: AtomicU64,
    /// Position among the caller's blocks that run, for `CallersBlocks`.
    pub(super) callers_at: Cell<u32>,
    /// Number of the endpoint of a send or of an operation on memory that runs.
    pub(super) ep: Cell<u32>,
    pub(super) notify: Cell<Notify>,
    /// Error of an operation that has not ended well.
    error: Cell<Option<Error>>,
}

impl Block {
    /// A block without operation.
    pub(super) const fn new(owner: OwnerNumber, generation: Generation) -> Block {
        Block {
            state: AtomicU64::new(owner.0 | generation.0 as u64),
            role: Cell::new(Role::Unstarted),
            next: Cell::new(None),
            len: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            from: AtomicU32::new(EMPTY_STATUS.from.0),
            failure: AtomicI8::new(Status::Ok as i8),
            cq_data: AtomicU64::new(0),
            callers_at: Cell::new(0),
            ep: Cell::new(0),
            notify: Cell::new(Notify::None),
            error: Cell::new(None),
        }
    }

    // HOT
    #[inline(always)]
    pub(super) fn state(&self) -> State {
        State(self.state.load(Ordering::Relaxed))
    }

    /// The state, read without the cost of an atomic operation.
    /// # Safety
    /// The calling thread has the worker that owns the block: nobody else writes the state.
    // HOT
    #[inline(always)]
    pub(super) unsafe fn own_state(&self) -> State {
        // SAFETY: this function's contract.
        State(unsafe { self.state.as_ptr().read() })
    }

    #[inline]
    pub(super) fn generation(&self) -> Generation {
        self.state().generation()
    }

    /// True for the block of the request with this generation, of the worker with this number.
    #[inline]
    pub(super) fn is_of(&self, owner: OwnerNumber, generation: Generation) -> bool {
        let state = self.state();
        state.is_of(owner) && state.generation() == generation
    }

    /// True if the request with this generation, of the worker with this number, has ended well in a
    /// block of the worker, without `cq_data`. It is false for some that have.
    // HOT
    #[inline(always)]
    pub(super) fn has_ended_well(&self, owner: OwnerNumber, generation: Generation) -> bool {
        // A subtraction from what was read: one instruction less than a sum, which needs a register.
        self.state.load(Ordering::Relaxed).wrapping_sub(owner.0) == u64::from(generation.0)
    }

    /// Gives a block without operation to a worker.
    pub(super) fn set_owner(&self, owner: OwnerNumber) {
        self.set_state(State(owner.0 | u64::from(self.generation().0)));
    }

    // HOT
    #[inline(always)]
    pub(super) fn stage(&self) -> Stage {
        self.state().stage()
    }

    #[inline]
    fn set_state(&self, state: State) {
        self.state.store(state.0, Ordering::Release);
    }

    /// Adds to the state; one instruction on x86, as only the worker writes it.
    // HOT
    #[inline(always)]
    fn add_to_state(&self, plus: u64) {
        self.state.store(self.state.load(Ordering::Relaxed).wrapping_add(plus), Ordering::Release);
    }

    /// Changes the stage of an operation that runs.
    #[inline]
    pub(super) fn set_stage(&self, stage: Stage) {
        let state = self.state();
        self.set_state(state.with_flags(state.0 & State::FLAGS & !State::STAGE | stage as u64));
    }

    /// The callback that is called at that point of the operation's end; the notification stays in its
    /// place.
    // HOT
    #[inline(always)]
    pub(super) fn callback(&self, at: CallAt) -> Option<Callback> {
        // SAFETY: only the thread that has the worker uses the cell, and nothing changes it meanwhile.
        match unsafe { &*self.notify.as_ptr() } {
            Notify::Raw(call) if call.at == at => Some(*call),
            _ => None,
        }
    }

    /// Whether an operation whose result is stored has an error.
    // HOT
    #[inline(always)]
    pub(super) fn has_error(&self) -> bool {
        self.error.get().is_some()
    }

    /// Notes that the memory is the caller's.
    pub(super) fn mark_callers(&self) {
        self.set_state(State(self.state().0 | State::CALLERS));
    }

    /// Begins an operation in a free block of the calling thread's worker. Returns its generation.
    // HOT
    #[inline(always)]
    pub(super) fn begin(&self, role: Role) -> Generation {
        self.begin_in(Stage::Running, role)
    }

    /// Begins an operation as [`Block::begin`], at whose end `call` is called.
    // HOT
    #[inline(always)]
    pub(super) fn begin_awaited(&self, role: Role, call: Callback) -> Generation {
        self.set_first_callback(call);
        self.begin_in(Stage::Awaited, role)
    }

    /// Has `call` called at the end of an operation that runs, which nothing awaits.
    // HOT
    #[inline(always)]
    pub(super) fn await_end(&self, call: Callback) {
        self.set_first_callback(call);
        self.add_to_state(Stage::Awaited as u64);
    }

    // HOT
    #[inline(always)]
    fn set_first_callback(&self, call: Callback) {
        // A block that nothing awaits has no notification that is to be dropped: at most a callback that has
        // been called.
        std::mem::forget(self.notify.replace(Notify::Raw(call)));
    }

    // HOT
    #[inline(always)]
    fn begin_in(&self, stage: Stage, role: Role) -> Generation {
        self.role.set(role);
        let generation = self.state.load(Ordering::Relaxed) as u32;
        self.add_to_state((stage as u64).wrapping_sub(State::ENDED_WELL));
        Generation(generation)
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

    /// Stores all of a message but `cq_data`.
    // HOT
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

    /// Message without `cq_data`.
    // HOT
    #[inline(always)]
    pub(super) fn load_plain_message(&self) -> RecvStatus {
        RecvStatus {
            len: self.len(),
            tag: self.tag.load(Ordering::Relaxed),
            from: PeerId(self.from.load(Ordering::Relaxed)),
            cq_data: None,
        }
    }

    /// Ends an operation that is plainly running. Its message, without `cq_data`, is stored.
    // HOT
    #[inline(always)]
    pub(super) fn end_well(&self) {
        self.add_to_state(State::ENDED_WELL);
    }

    /// Ends an operation that is plainly awaited, as [`Block::end_well`].
    // HOT
    #[inline(always)]
    pub(super) fn end_awaited_well(&self) {
        self.add_to_state(State::ENDED_WELL - Stage::Awaited as u64);
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
        let failed = self.error.get().map_or(0, |error| {
            self.failure.store(error.status() as i8, Ordering::Relaxed);
            State::FAILED
        });
        self.set_state(State(self.state().0 | State::ENDED_WELL | failed));
    }

    /// Result of an operation that has ended.
    #[inline]
    pub(super) fn result(&self) -> Ended {
        let state = self.state();
        match self.error.get() {
            Some(error) if state.0 & State::FAILED != 0 => Err(error),
            _ => Ok(self.message(state)),
        }
    }

    /// Ends the use of a block that has ended well, without `cq_data`: its request is stale.
    // HOT
    #[inline(always)]
    pub(super) fn release_well(&self) {
        self.add_to_state(State::NEXT_GENERATION);
        // A thread that sees a store of the next operation sees the new generation, too.
        fence(Ordering::Release);
    }

    /// Ends the use of a block of the worker: its request is stale.
    pub(super) fn release(&self) {
        self.go_on(State::ENDED_WELL);
    }

    /// Ends the use of a block of the caller: its request is stale. The state stays readable by address.
    pub(super) fn release_callers(&self) {
        self.go_on(self.state().0 & State::FLAGS);
    }

    fn go_on(&self, flags: u64) {
        let (owner, generation) = (self.state().owner(), self.generation().next());
        // The carry that `release_well` may have left goes.
        self.set_state(State(owner.0 | u64::from(generation.0)).with_flags(flags));
        fence(Ordering::Release);
    }

    /// Gives a free block the last generation before they begin again.
    #[cfg(test)]
    pub(super) fn set_last_generation(&self) -> Generation {
        let last = u32::MAX << State::NEXT_GENERATION.trailing_zeros() | State::ENDED_WELL as u32;
        self.set_state(State(self.state().owner().0 | u64::from(last)));
        Generation(last)
    }

    /// Status of the current operation.
    // HOT
    #[inline(always)]
    pub(super) fn status(&self) -> Status {
        self.status_in(State(self.state.load(Ordering::Acquire)))
    }

    // HOT
    #[inline(always)]
    fn status_in(&self, state: State) -> Status {
        match state.stage() {
            Stage::Running | Stage::Awaited | Stage::Detached => Status::InProgress,
            Stage::Ended if state.0 & State::FAILED == 0 => Status::Ok,
            Stage::Ended => self.failure(),
        }
    }

    #[cold]
    #[inline(never)]
    fn failure(&self) -> Status {
        Status::try_from(self.failure.load(Ordering::Relaxed)).unwrap_or(Status::IoError)
    }

    /// Status of the operation with this generation, for any thread; `None` if the block has been released.
    #[inline]
    pub(super) fn status_of(&self, generation: Generation) -> Option<Status> {
        let state = State(self.state.load(Ordering::Acquire));
        let status = self.status_in(state);
        fence(Ordering::Acquire);
        (state.generation() == generation && self.generation() == generation).then_some(status)
    }

    /// Message that the operation with this generation has received, for any thread; `None` before its end.
    #[inline]
    pub(super) fn message_of(&self, generation: Generation) -> Option<RecvStatus> {
        let state = State(self.state.load(Ordering::Acquire));
        if state.stage() != Stage::Ended || state.generation() != generation {
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

    /// Address, as an operation's token in the engine.
    // HOT
    #[inline(always)]
    pub(super) fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The block of a token.
    /// # Safety
    /// `address` is the result of [`BlockPtr::address`], and its block still keeps to the invariant.
    // HOT
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
