//! Requests in memory of the caller, one operation each.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use super::block::{Block, BlockPtr, Generation, Stage};
use super::{Notify, RequestId, Requests, Role};
use crate::api::core::error::Error;

/// Blocks of the caller whose operations have not ended.
#[derive(Default)]
pub(super) struct CallersBlocks {
    /// Each has its position in [`Block::callers_at`].
    running: Vec<BlockPtr>,
    /// Generation of the last block.
    generation: Option<Generation>,
}

impl CallersBlocks {
    /// The block at an address, which may be any number. Nothing at the address is read.
    fn at(&self, address: usize) -> Option<BlockPtr> {
        self.iter().find(|block| block.address() == address)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = BlockPtr> + '_ {
        self.running.iter().copied()
    }

    fn add(&mut self, block: BlockPtr) {
        block.callers_at.set(self.running.len() as u32);
        self.running.push(block);
    }

    /// Forgets a block whose operation ends.
    pub(super) fn remove(&mut self, block: BlockPtr) {
        let at = block.callers_at.get() as usize;
        debug_assert_eq!(self.running[at], block);
        self.running.swap_remove(at);
        if let Some(moved) = self.running.get(at) {
            moved.callers_at.set(at as u32);
        }
    }
}

impl Requests {
    /// The request whose block is at an address, which may be any number: one of this worker's memory, or one
    /// in memory of the caller whose operation has not ended. Nothing else is read. Searches all memory of
    /// requests.
    pub(crate) fn at(&self, address: usize) -> Option<RequestId> {
        let block = self.pool.at(address).or_else(|| self.callers.at(address))?;
        Some(RequestId { block, generation: block.generation() })
    }

    /// Makes `memory` the block of the next operation. [`Requests::clear_next_block`] follows.
    ///
    /// Safety: as for [`BlockPtr::init`].
    pub(crate) unsafe fn set_next_block(&mut self, memory: NonNull<u8>) -> RequestId {
        let generation = self.callers.generation.map_or(Generation::FIRST, Generation::next);
        self.callers.generation = Some(generation);
        // SAFETY: this function's contract.
        let block = unsafe { BlockPtr::init(memory, Block::new(self.number, generation)) };
        block.next.set(self.first_free.replace(block));
        RequestId { block, generation }
    }

    /// Notes whose block it is, or forgets it if no operation has used it.
    pub(crate) fn clear_next_block(&mut self, id: RequestId) {
        if id.block.role.get() != Role::Unstarted {
            id.block.mark_callers();
            // It may have ended within the call that has started it.
            if id.block.stage() != Stage::Ended {
                self.callers.add(id.block);
            }
            return;
        }
        let mut before: Option<BlockPtr> = None;
        let mut next = self.first_free;
        while let Some(block) = next {
            next = block.next.get();
            if block == id.block {
                match before {
                    Some(before) => before.next.set(next),
                    None => self.first_free = next,
                }
                return;
            }
            before = Some(block);
        }
    }

    /// Shows those who look at their own memory that nothing is in progress there any more: operations that
    /// were ready have their results, others are cancelled.
    pub(super) fn end_callers(&mut self) {
        let mut ready = self.first_ready;
        while let Some(block) = ready {
            ready = block.next.get();
            if block.state().is_callers() {
                self.callers.remove(block);
                block.publish();
                drop(block.notify.take());
                block.release_callers();
            }
        }
        for block in std::mem::take(&mut self.callers.running) {
            block.store_result(Err(Error::Cancelled));
            block.publish();
            drop(block.notify.replace(Notify::None));
            block.release_callers();
        }
    }
}
