//! Memory that the engine has registered on lanes, by the number it knows it by.
//! Filled and emptied through `bind`, owned by the worker's core. Never registers by itself.

use ucs::coll::slots::{SlotId, Slots};
use uct::api::{Access, Caps, Iface as _};

use crate::rdm::io::{Rdma, Use};

use super::{Iface, LaneIdx, Mem};

/// Registrations of a worker.
#[derive(Default)]
pub(crate) struct Regs {
    all: Slots<(LaneIdx, Mem)>,
}

impl Regs {
    /// Keeps one; `None` if there is no number left, and then it ends here.
    pub(super) fn insert(&mut self, lane: LaneIdx, mem: Mem) -> Option<u32> {
        self.all.insert((lane, mem)).ok().map(SlotId::raw)
    }

    /// The memory, and the lane that it is registered on.
    pub(super) fn get(&self, id: u32) -> Option<(LaneIdx, &Mem)> {
        self.all.get(SlotId::from_raw(id)).map(|(lane, mem)| (*lane, mem))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Ends one.
    pub(super) fn remove(&mut self, id: u32) {
        self.all.remove(SlotId::from_raw(id));
    }
}

/// The engine's use of memory in the words of the lanes.
pub(super) fn access(for_what: Use) -> Access {
    let mut access = Access::LOCAL_READ;
    access.set(Access::LOCAL_WRITE, for_what.intersects(Use::LOCAL_WRITE | Use::REMOTE_WRITE));
    access.set(Access::REMOTE_READ, for_what.contains(Use::REMOTE_READ));
    access.set(Access::REMOTE_WRITE, for_what.contains(Use::REMOTE_WRITE));
    access
}

/// What a lane can do beside packets: only with keys that RDM v4 can carry.
pub(crate) fn rdma(iface: &Iface) -> Rdma {
    let attr = iface.attr();
    if !attr.has(Caps::WORD_KEY) {
        return Rdma::NONE;
    }
    let max = |cap: Caps, max: usize| if attr.has(cap) { max as u64 } else { 0 };
    Rdma {
        read: max(Caps::GET_ZCOPY, attr.get.max_zcopy),
        write: max(Caps::PUT_ZCOPY, attr.put.max_zcopy),
        write_imm: attr.has(Caps::PUT_ZCOPY | Caps::PUT_IMM),
    }
}
