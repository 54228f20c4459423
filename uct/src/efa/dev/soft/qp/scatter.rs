//! Receives of several SGEs: a message lands in a device buffer and is scattered at poll.

#![allow(unsafe_code)]

use super::super::link::{Link, PostedRecv, RecvQueue};
use super::super::{Device, Mr, Pd};
use super::datagram::GRH_LEN;
use super::{Qp, QpCore, State};
use crate::api::{Access, Error};
use crate::efa::dev::{Cqe, CqeOp, Dev, DevMr, DevQp, DevStatus, PostError, Sge};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use ucs::mem::guard;

/// Most SGEs of a receive.
pub const MAX_RECV_SGE: usize = 3;
const CHUNK: usize = 64;

/// Buffers of one queue pair, and the SGEs they stand for.
pub(super) struct Scatter<L: Link> {
    chunks: Vec<Mr<L>>,
    of_key: FxHashMap<u32, usize>,
    sges: Vec<[Sge; MAX_RECV_SGE]>,
    free: Vec<usize>,
    dst: usize,
}

impl<L: Link> Scatter<L> {
    pub(super) fn new(dst: usize) -> Self {
        Scatter {
            chunks: Vec::new(),
            of_key: FxHashMap::default(),
            sges: Vec::new(),
            free: Vec::new(),
            dst: dst.next_multiple_of(64),
        }
    }

    fn grow(&mut self, qp: &QpCore<L>) -> Result<(), Error> {
        let dev = Device(Arc::clone(&qp.dev));
        let chunk = dev.alloc_mr(&Pd(qp.pd), CHUNK * self.dst, Access::LOCAL_WRITE)?;
        self.of_key.insert(chunk.lkey(), self.chunks.len());
        self.chunks.push(chunk);
        let first = self.sges.len();
        self.sges.resize(first + CHUNK, [super::post::NO_SGE; MAX_RECV_SGE]);
        self.free.extend((first..first + CHUNK).rev());
        Ok(())
    }

    fn buffer(&self, slot: usize, len: u32) -> Sge {
        let chunk = &self.chunks[slot / CHUNK];
        let addr = chunk.addr().wrapping_add(slot % CHUNK * self.dst);
        Sge { addr, len: len.min(self.dst as u32), lkey: chunk.lkey() }
    }

    fn slot(&self, posted: &PostedRecv) -> Option<usize> {
        let chunk = *self.of_key.get(&posted.lkey)?;
        let offset = (posted.addr as usize).checked_sub(self.chunks[chunk].addr() as usize)?;
        Some(chunk * CHUNK + offset / self.dst)
    }
}

impl<L: Link> Qp<L> {
    /// Posts a receive of up to [`MAX_RECV_SGE`] SGEs, filled in order.
    pub fn recv_sge_list(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut list = [super::post::NO_SGE; MAX_RECV_SGE];
        match sges {
            [] => return self.recv(wr_id, list[0]),
            [one] => return self.recv(wr_id, *one),
            _ => {}
        }
        let dst = list.get_mut(..sges.len()).ok_or(PostError::Invalid("more SGEs than a receive has"))?;
        dst.copy_from_slice(sges);
        let qp = &*self.0;
        if qp.rx.outstanding() >= qp.recv_depth {
            return Err(PostError::Full);
        }
        let len = list.iter().fold(0u32, |n, sge| n.saturating_add(sge.len));
        let good = list.iter().all(|sge| qp.lkey_allows(sge, Access::LOCAL_WRITE));
        if qp.state.get() == State::Error || !good {
            qp.reject_recv(wr_id);
            return Ok(());
        }
        let mut all = qp.scatter.borrow_mut();
        let all = all.get_or_insert_with(|| Scatter::new((qp.dev.attr.mtu + GRH_LEN) as usize));
        if all.free.is_empty() {
            all.grow(qp).map_err(|_| PostError::Full)?;
        }
        let slot = all.free.pop().ok_or(PostError::Full)?;
        all.sges[slot] = list;
        let posted = self.recv(wr_id, all.buffer(slot, len));
        if posted.is_err() {
            all.free.push(slot);
        }
        posted
    }
}

impl<L: Link> QpCore<L> {
    /// Whether receives of several SGEs were posted.
    // HOT
    #[inline]
    pub(in super::super) fn scatters(&self) -> bool {
        self.scatter.borrow().is_some()
    }

    /// Scatters an arrival to the SGEs of its receive, checking their keys.
    #[cold]
    pub(in super::super) fn scatter_arrival(&self, cqe: &mut Cqe, posted: &PostedRecv) {
        let mut all = self.scatter.borrow_mut();
        let Some((all, slot)) = all.as_mut().and_then(|all| all.slot(posted).map(|slot| (all, slot))) else {
            return;
        };
        let from = all.buffer(slot, cqe.len);
        let sges = all.sges[slot];
        all.free.push(slot);
        // A write with immediate put nothing into the receive.
        if cqe.status != DevStatus::Ok || cqe.op != CqeOp::Recv {
            return;
        }
        let mut done = 0;
        for sge in sges {
            let len = sge.len.min(from.len - done);
            if len == 0 {
                continue;
            }
            if !self.lkey_allows(&Sge { len, ..sge }, Access::LOCAL_WRITE) {
                cqe.status = DevStatus::InvalidLkey;
                return;
            }
            // SAFETY: the target is a live registration for local writes of that length (checked just now);
            // the source lies in a buffer of ours that has `done + len` bytes and overlaps no SGE.
            if !unsafe { guard::copy(from.addr.wrapping_add(done as usize), sge.addr, len as usize) } {
                cqe.status = DevStatus::InvalidLkey;
                return;
            }
            done += len;
        }
    }
}
