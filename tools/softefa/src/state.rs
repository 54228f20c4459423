//! State behind a context: the device and its objects, under one lock, by ids with a generation. The lock is
//! never held while a caller's code runs, nor across an extended poll or a batch.

use crate::abi::IbvQpCap;
use crate::ahn::AhnTable;
use crate::errno::Errno;
use crate::unmapped::Unmapped;
use std::thread::JoinHandle;
use ucs::coll::slots::{SlotId, Slots};
use uct::efa::dev::soft::{Cq, Device, Mr, Net, Pd, Qp};
use uct::efa::dev::{Cqe, Dev, DevCq, DevQp};

/// Completions polled from the device at a time.
const BATCH: usize = 16;

pub struct CqState {
    pub cq: Cq<Net>,
    /// Completions polled and not yet shown: `batch[next..end]`.
    batch: [Cqe; BATCH],
    next: usize,
    end: usize,
    /// Queue pairs on it, counted for sends and for receives.
    pub users: u32,
}

impl CqState {
    pub fn new(cq: Cq<Net>) -> CqState {
        CqState { cq, batch: [Cqe::EMPTY; BATCH], next: 0, end: 0, users: 0 }
    }

    pub fn has_batched(&self) -> bool {
        self.next != self.end
    }

    // HOT
    #[inline]
    pub fn pop(&mut self) -> Option<Cqe> {
        if self.next == self.end {
            self.next = 0;
            self.end = self.cq.poll(&mut self.batch);
            if self.end == 0 {
                return None;
            }
        }
        self.next += 1;
        Some(self.batch[self.next - 1])
    }

    /// Drops completions of a queue pair that is being destroyed.
    pub fn discard_qp(&mut self, qpn: u16) {
        let mut keep = self.next;
        for i in self.next..self.end {
            if self.batch[i].qpn != qpn {
                self.batch[keep] = self.batch[i];
                keep += 1;
            }
        }
        self.end = keep;
    }
}

pub struct QpState {
    pub qp: Qp<Net>,
    pub pd: Pd,
    pub datagram: bool,
    /// Writes with immediate consume no receive.
    pub unsolicited: bool,
    pub send_cq: SlotId,
    pub recv_cq: SlotId,
    /// Capacities of this queue pair.
    pub cap: IbvQpCap,
    pub attrs: QpAttrs,
}

/// Attributes set by the program, for queries.
#[derive(Clone, Copy, Default)]
pub struct QpAttrs {
    pub qkey: u32,
    pub sq_psn: u32,
    pub rnr_retry: u8,
}

#[derive(Default)]
pub struct ThreadState {
    /// The thread, and its process: a forked child has none.
    pub handle: Option<(JoinHandle<()>, u32)>,
    /// Parked, or about to park.
    pub idle: bool,
    pub stop: bool,
}

pub struct State {
    pub dev: Device<Net>,
    pub mrs: Slots<Mr<Net>>,
    pub unmapped: Unmapped,
    pub cqs: Slots<CqState>,
    pub qps: Slots<QpState>,
    /// Queue pairs by number modulo the length, a power of two, by which the device keeps them distinct.
    by_qpn: Vec<SlotId>,
    pub ahs: AhnTable,
    pub thread: ThreadState,
}

// SAFETY: device objects share reference counts and cells without synchronisation. All those of a context are
// inside one `State`, which gives out only plain values and borrows bound to its guard, so the holder of the
// context's lock is the only user.
unsafe impl Send for State {}

impl State {
    /// `watch`: end the keys of regions that the program unmaps.
    pub fn new(dev: Device<Net>, watch: bool) -> State {
        let numbers = (dev.attr().max_qp.max(1) as usize).next_power_of_two();
        State {
            dev,
            mrs: Slots::with_limit(1 << 16),
            unmapped: Unmapped::new(watch),
            cqs: Slots::with_limit(1 << 16),
            qps: Slots::with_limit(1 << 16),
            by_qpn: vec![SlotId::NONE; numbers],
            ahs: AhnTable::default(),
            thread: ThreadState::default(),
        }
    }

    fn qpn_slot(&self, qpn: u16) -> usize {
        usize::from(qpn) & (self.by_qpn.len() - 1)
    }

    pub fn insert_qp(&mut self, qp_state: QpState) -> Result<SlotId, Errno> {
        let slot = self.qpn_slot(qp_state.qp.qpn());
        let id = self.qps.insert(qp_state).map_err(|_| libc::ENOMEM)?;
        self.by_qpn[slot] = id;
        Ok(id)
    }

    pub fn remove_qp(&mut self, id: SlotId) -> Option<QpState> {
        let qp_state = self.qps.remove(id)?;
        let slot = self.qpn_slot(qp_state.qp.qpn());
        self.by_qpn[slot] = SlotId::NONE;
        Some(qp_state)
    }

    // HOT
    #[inline]
    pub fn qp_by_number(&self, qpn: u16) -> Option<&QpState> {
        self.qps.get(self.by_qpn[self.qpn_slot(qpn)])
    }

    pub fn is_idle(&self) -> bool {
        let empty = |n: usize| n == 0;
        empty(self.mrs.iter().count()) && empty(self.cqs.iter().count()) && empty(self.qps.iter().count())
    }
}
