//! Memory of request blocks: chunks that neither move nor return to the system, so that the status of a
//! request can be read at any time. The chunks of a dropped worker serve later workers.

use std::alloc::{Layout, alloc_zeroed};
use std::fmt;
use std::mem::needs_drop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::block::{BLOCK_SIZE, Block, BlockPtr, Generation, OwnerNumber};

/// Most operations of one kind that a worker has in progress, such as receives, and most requests in all.
pub const MAX_OPERATIONS: usize = 1 << 20;
const BLOCKS_PER_CHUNK: usize = 256;
/// Size of a chunk above which it has fewer blocks, bytes.
const CHUNK_BYTES: usize = 64 << 10;
const CACHE_LINE: usize = 64;

type Hook = Arc<dyn Fn(NonNull<u8>) + Send + Sync>;

/// User memory behind each request of a context's workers: its size, and functions that are called once for
/// each request block, when it is made and when its worker is dropped. Reusing a block calls neither.
/// ```
/// let room = ucp::RequestParams::of::<std::sync::atomic::AtomicU64>();
/// assert_eq!(room.size(), 8);
/// ```
#[derive(Clone, Default)]
pub struct RequestParams {
    size: usize,
    init: Option<Hook>,
    cleanup: Option<Hook>,
}

impl fmt::Debug for RequestParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestParams").field("size", &self.size).finish_non_exhaustive()
    }
}

impl RequestParams {
    /// Greatest alignment of user memory, bytes.
    pub const ALIGN: usize = 16;

    /// `size` bytes, zero when the block is made.
    pub const fn bytes(size: usize) -> RequestParams {
        RequestParams { size, init: None, cleanup: None }
    }

    /// A `T`, made with the block and dropped with the worker. Reach it by [`RequestId::user_memory`].
    /// Panics if `T` is aligned to more than [`RequestParams::ALIGN`].
    ///
    /// [`RequestId::user_memory`]: crate::RequestId::user_memory
    pub fn of<T: Default + Send + 'static>() -> RequestParams {
        assert!(align_of::<T>() <= Self::ALIGN, "requests are aligned to {} bytes", Self::ALIGN);
        let room = RequestParams::bytes(size_of::<T>()).on_init(|at| {
            // SAFETY: the hook gets memory of the size above, aligned to at least `ALIGN`.
            unsafe { at.cast::<T>().write(T::default()) }
        });
        if !needs_drop::<T>() {
            return room;
        }
        // SAFETY: the other hook has written it, and neither is called again.
        room.on_cleanup(|at| unsafe { at.cast::<T>().drop_in_place() })
    }

    /// Calls `init` with the memory of each block that is made. `init` must not use the worker.
    #[must_use]
    pub fn on_init(self, init: impl Fn(NonNull<u8>) + Send + Sync + 'static) -> RequestParams {
        RequestParams { init: Some(Arc::new(init)), ..self }
    }

    /// Calls `cleanup` with the memory of each block when its worker is dropped.
    #[must_use]
    pub fn on_cleanup(self, cleanup: impl Fn(NonNull<u8>) + Send + Sync + 'static) -> RequestParams {
        RequestParams { cleanup: Some(Arc::new(cleanup)), ..self }
    }

    /// Size of the user memory, bytes.
    pub const fn size(&self) -> usize {
        self.size
    }
}

/// Memory of many blocks.
struct Chunk {
    memory: NonNull<u8>,
    /// Bytes from block to block.
    stride: usize,
    blocks: usize,
}

// SAFETY: a chunk is only an address; `Pool` and `SPARE` pass its blocks on from one owner to the next.
unsafe impl Send for Chunk {}

/// Chunks of dropped workers.
static SPARE: Mutex<Vec<Chunk>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<Chunk>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chunk {
    /// A chunk of free blocks with `room` bytes each; `None` without memory.
    fn get(room: usize) -> Option<Chunk> {
        let stride = room.checked_add(BLOCK_SIZE)?.checked_next_multiple_of(CACHE_LINE)?;
        let mut spare = spare();
        if let Some(at) = spare.iter().position(|chunk| chunk.stride == stride) {
            return Some(spare.swap_remove(at));
        }
        drop(spare);
        let blocks = (CHUNK_BYTES / stride).clamp(1, BLOCKS_PER_CHUNK);
        let layout = Layout::from_size_align(stride.checked_mul(blocks)?, CACHE_LINE).ok()?;
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        for n in 0..blocks {
            // SAFETY: the memory has `blocks` strides.
            let at = unsafe { memory.add(n * stride) };
            // SAFETY: a stride holds a block, and the memory is never freed.
            unsafe { BlockPtr::init(at, Block::new(OwnerNumber::NONE, Generation::FIRST)) };
        }
        Some(Chunk { memory, stride, blocks })
    }

    /// The block at an address, which may be any number.
    fn at(&self, address: usize) -> Option<BlockPtr> {
        let offset = address.checked_sub(self.memory.addr().get())?;
        let number = offset / self.stride;
        if number >= self.blocks || !offset.is_multiple_of(self.stride) {
            return None;
        }
        // SAFETY: the memory has `blocks` strides.
        let at = unsafe { self.memory.add(offset) };
        // SAFETY: `get` has made a block at each.
        Some(unsafe { BlockPtr::at(at) })
    }

    fn blocks(&self) -> impl DoubleEndedIterator<Item = BlockPtr> + use<> {
        let (memory, stride) = (self.memory, self.stride);
        (0..self.blocks).map(move |n| {
            // SAFETY: the memory has `blocks` strides.
            let at = unsafe { memory.add(n * stride) };
            // SAFETY: `get` has made a block at each.
            unsafe { BlockPtr::at(at) }
        })
    }
}

/// Blocks of one worker.
pub(super) struct Pool {
    chunks: Vec<Chunk>,
    room: RequestParams,
    blocks: usize,
}

impl Pool {
    pub(super) fn new(room: RequestParams) -> Pool {
        Pool { chunks: Vec::new(), room, blocks: 0 }
    }

    /// Adds blocks for the worker with number `owner`, and returns the first of their list. `None`: no
    /// memory, or too many blocks.
    #[cold]
    pub(super) fn grow(&mut self, owner: OwnerNumber) -> Option<BlockPtr> {
        if self.blocks >= MAX_OPERATIONS {
            return None;
        }
        let chunk = Chunk::get(self.room.size)?;
        let mut next = None;
        for block in chunk.blocks().rev() {
            // SAFETY: the stride has room for as many bytes behind the block, and nobody else uses them.
            unsafe { block.user_memory().write_bytes(0, self.room.size) };
            if let Some(init) = &self.room.init {
                init(block.user_memory());
            }
            block.set_owner(owner);
            block.next.set(next);
            next = Some(block);
        }
        self.blocks += chunk.blocks;
        self.chunks.push(chunk);
        next
    }

    pub(super) fn room(&self) -> &RequestParams {
        &self.room
    }

    /// The block at an address, which may be any number. Nothing at the address is read.
    pub(super) fn at(&self, address: usize) -> Option<BlockPtr> {
        self.chunks.iter().find_map(|chunk| chunk.at(address))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = BlockPtr> + '_ {
        self.chunks.iter().flat_map(Chunk::blocks)
    }
}

/// The blocks have been released.
impl Drop for Pool {
    fn drop(&mut self) {
        for block in self.iter() {
            block.set_owner(OwnerNumber::NONE);
            if let Some(cleanup) = &self.room.cleanup {
                cleanup(block.user_memory());
            }
        }
        spare().append(&mut self.chunks);
    }
}
