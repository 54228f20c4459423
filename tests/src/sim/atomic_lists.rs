//! Atomics on lists: each worker has an area in the memory of every worker, and operates on up to four pieces
//! of it. They are ordered, so each old value is known. Started by `rma`; `atomics` checks the ends.

use super::Failed;
use super::atomics::PendingAtomic;
use super::job::Job;
use super::rma::{AREAS, PIECES, local_iov};
use std::ops::Range;
use ucp::rdm::amo::{self, Form};
use ucp::select::DeliveryComplete;
use ucp::{AtomicIovParams, AtomicOp, OpStatus, RemoteIov};

pub const AREA: usize = 64;
/// Bytes of a packet beside operands, at most: headers, four pieces, the address of a new worker.
const HEADERS: usize = 200;

impl Job {
    pub(super) fn start_atomic_list(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let ty = self.type_of(n, to);
        let (op, form) = self.operation(ty);
        let size = ty.size();
        // Operands and compare values go in one packet.
        let fits = (self.params.mtu as usize - HEADERS) / 2 / size;
        let count = self.rng.range(1, fits.min(AREA / size).max(1) as u64) as usize;
        let ranges = self.ranges(count, size);
        let (mut operand, mut compare) = (self.elements(ty, count), self.elements(ty, count));
        let sync = if form == Form::Write && self.rng.percent(30) {
            DeliveryComplete::Yes
        } else {
            DeliveryComplete::No
        };
        let refused = sync == DeliveryComplete::Yes && self.workers[to].withholds_dc();
        let cuts = [self.cut(count * size), self.cut(count * size), self.cut(count * size)];
        self.trace.record(
            &[22, n as u64, to as u64, u64::from(op as u32), count as u64, ranges.len() as u64],
            format_args!(
                "{}: {n} does {op:?} {form:?} on {count} {ty:?} of {to} at {ranges:?}, {sync:?}",
                self.step
            ),
        );
        let area = &mut self.workers[to].rma.expected[AREAS + n * AREA..][..AREA];
        let mut old = Vec::with_capacity(count * size);
        for range in ranges.iter().flat_map(|range| range.clone().step_by(size)) {
            let element = &mut area[range..range + size];
            let e = old.len()..old.len() + size;
            old.extend_from_slice(element);
            if !refused {
                amo::apply(op, ty, element, &operand[e.clone()], &compare[e]);
            }
        }
        let base = self.workers[to].rma.addr() + (AREAS + n * AREA) as u64;
        let sim_worker = &mut self.workers[n];
        let (Some(ep), Some([rkey, _])) = (&sim_worker.eps[to], &sim_worker.rma.keys[to]) else {
            return Ok(());
        };
        let far =
            |range: &Range<usize>| RemoteIov { addr: base + range.start as u64, len: range.len(), rkey };
        let far: Vec<RemoteIov<'_>> = ranges.iter().map(far).collect();
        let want = if form == Form::Write { Vec::new() } else { old };
        let mut result = vec![0; want.len()].into_boxed_slice();
        let room = (form != Form::Write).then(|| local_iov(&mut result, &cuts[2]));
        let operands = if op == AtomicOp::Read { Vec::new() } else { local_iov(&mut operand, &cuts[0]) };
        let compares = if form == Form::Compare { local_iov(&mut compare, &cuts[1]) } else { Vec::new() };
        let params = AtomicIovParams {
            op,
            ty,
            operand: &operands,
            compare: &compares,
            result: room.as_deref(),
            sync,
            done: None,
            mem: None,
        };
        // SAFETY: operands and the room for the result are kept with the request until it has ended, and
        // nobody looks at them before.
        let started = unsafe { ep.atomic_iov_raw(&far, &params) };
        self.outcome.lists += 1;
        let _kept = [operand, compare];
        match started {
            Ok(OpStatus::InProgress(id)) => {
                sim_worker.rma.atomics.push(PendingAtomic { to, id, want, refused, result, _kept });
                Ok(())
            }
            Ok(OpStatus::Done(_)) => self.check_atomic(n, to, Ok(()), &want, &result, refused),
            Err(error) => self.check_atomic(n, to, Err(error), &want, &result, refused),
        }
    }

    /// Draws up to four disjoint ranges of an area, in any order, with `count` elements in all.
    fn ranges(&mut self, count: usize, size: usize) -> Vec<Range<usize>> {
        let pieces = self.rng.range(1, PIECES.min(count) as u64) as usize;
        let mut spare = AREA / size - count;
        let (mut ranges, mut at, mut left) = (Vec::with_capacity(pieces), 0, count);
        for piece in 0..pieces {
            let gap = self.rng.below(spare as u64 + 1) as usize;
            let behind = pieces - piece - 1;
            let len = if behind == 0 { left } else { self.rng.range(1, (left - behind) as u64) as usize };
            ranges.push((at + gap) * size..(at + gap + len) * size);
            (at, left, spare) = (at + gap + len, left - len, spare - gap);
        }
        self.rng.shuffle(&mut ranges);
        ranges
    }
}
