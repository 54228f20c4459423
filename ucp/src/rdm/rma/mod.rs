//! One-sided operations: their arguments, how they start, move on and end, memory that peers may reach, and
//! reads of a peer's memory.

pub mod args;
pub(super) mod data;
pub(super) mod fast_path;
pub mod mem;
pub mod mem_table;
pub(super) mod ops;
pub mod own_memory;
pub(super) mod progress;
pub mod published;
pub(super) mod reads;
pub mod region_counts;
pub(super) mod regions;

pub use args::*;

use std::sync::Arc;

use ucs::coll::slots::SlotId;

use crate::rdm::op::rma_ops::RmaTable;
use crate::rdm::op::rma_read::RmaRead;
use crate::rdm::op::table::Table;
use crate::rdm::status::OpError;
use mem_table::MemTable;
use regions::Regions;

/// One-sided operations, ours and those of peers, and the memory that peers may reach.
pub(in crate::rdm) struct RmaOps {
    pub table: RmaTable,
    pub regions: Regions,
    /// The operation whose call is in progress, and its result if it ended in the call.
    pub in_call: Option<(SlotId, Option<Result<(), OpError>>)>,
    /// Old values of an atomic while it computes; kept for its memory.
    pub old_values: Vec<u8>,
}

impl RmaOps {
    pub fn new(memory: Arc<MemTable>) -> RmaOps {
        let regions = Regions::new(memory);
        RmaOps { table: RmaTable::new(), regions, in_call: None, old_values: Vec::new() }
    }
}

/// Reads of peers' memory: of messages, and of peers' writes to us.
pub(in crate::rdm) struct Reads {
    pub table: Table<RmaRead>,
}

impl Default for Reads {
    fn default() -> Reads {
        Reads { table: Table::new() }
    }
}
