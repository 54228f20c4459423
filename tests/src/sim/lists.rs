//! Atomics on lists in a job: each worker has an area of its own in the memory of every worker, and does anything to elements
//! anywhere in it, in up to four pieces there and up to four here. In order, so that each old value is known beforehand.
//! Called by `rma` to start; ends are looked at as those of `amo`.

use super::Failed;
use super::amo::Computing;
use super::rma::{AREAS, PIECES, local};
use super::world::World;
use std::ops::Range;
use ucp::rdm::amo::{self, Form};
use ucp::select::Sync;
use ucp::{AtomicIovParams, AtomicOp, RemotePiece, Started};

/// Bytes of an area.
pub const AREA: usize = 64;
/// Bytes of a packet that are no operands: headers, four pieces, the address of a worker that is new.
const HEADERS: usize = 200;

impl World {
    /// Does an operation on elements of the area that worker `n` has at `to`.
    pub(super) fn compute_list(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let ty = self.type_of(n, to);
        let (op, form) = self.operation(ty);
        let size = ty.size();
        // Operands and what they are compared with go in one packet.
        let fits = (self.knobs.mtu as usize - HEADERS) / 2 / size;
        let count = self.rng.range(1, fits.min(AREA / size).max(1) as u64) as usize;
        let places = self.places(count, size);
        let (mut operand, mut compare) = (self.elements(ty, count), self.elements(ty, count));
        let sync = if form == Form::Write && self.rng.percent(30) { Sync::Yes } else { Sync::No };
        let refused = sync == Sync::Yes && self.nodes[to].withholds_dc();
        let cuts = [self.cut(count * size), self.cut(count * size), self.cut(count * size)];
        self.trace.tell(
            &[22, n as u64, to as u64, u64::from(op as u32), count as u64, places.len() as u64],
            format_args!(
                "{}: {n} does {op:?} {form:?} on {count} {ty:?} of {to} at {places:?}, {sync:?}",
                self.step
            ),
        );
        let area = &mut self.nodes[to].shore.model[AREAS + n * AREA..][..AREA];
        let mut old = Vec::with_capacity(count * size);
        for place in places.iter().flat_map(|place| place.clone().step_by(size)) {
            let element = &mut area[place..place + size];
            let e = old.len()..old.len() + size;
            old.extend_from_slice(element);
            if !refused {
                amo::apply(op, ty, element, &operand[e.clone()], &compare[e]);
            }
        }
        let base = self.nodes[to].shore.addr() + (AREAS + n * AREA) as u64;
        let node = &mut self.nodes[n];
        let (Some(ep), Some([rkey, _])) = (&node.eps[to], &node.shore.keys[to]) else { return Ok(()) };
        let far =
            |place: &Range<usize>| RemotePiece { addr: base + place.start as u64, len: place.len(), rkey };
        let far: Vec<RemotePiece<'_>> = places.iter().map(far).collect();
        let want = if form == Form::Write { Vec::new() } else { old };
        let mut result = vec![0; want.len()].into_boxed_slice();
        let room = (form != Form::Write).then(|| local(&mut result, &cuts[2]));
        let operands = if op == AtomicOp::Read { Vec::new() } else { local(&mut operand, &cuts[0]) };
        let compares = if form == Form::Compare { local(&mut compare, &cuts[1]) } else { Vec::new() };
        let params = AtomicIovParams {
            op,
            ty,
            operand: &operands,
            compare: &compares,
            result: room.as_deref(),
            sync,
            done: None,
        };
        // SAFETY: operands and the room for the result are kept with the request until it has ended, and nobody looks at them
        // before.
        let started = unsafe { ep.atomic_iov_raw(&far, &params) };
        self.outcome.lists += 1;
        let _kept = [operand, compare];
        match started {
            Ok(Started::Running(id)) => {
                node.shore.computing.push(Computing { to, id, want, refused, result, _kept });
                Ok(())
            }
            Ok(Started::Done(_)) => self.computed(n, to, Ok(()), &want, &result, refused),
            Err(error) => self.computed(n, to, Err(error), &want, &result, refused),
        }
    }

    /// Up to four places in an area, apart from each other and in any order, with `count` elements together.
    fn places(&mut self, count: usize, size: usize) -> Vec<Range<usize>> {
        let pieces = self.rng.range(1, PIECES.min(count) as u64) as usize;
        let mut spare = AREA / size - count;
        let (mut places, mut at, mut left) = (Vec::with_capacity(pieces), 0, count);
        for piece in 0..pieces {
            let gap = self.rng.below(spare as u64 + 1) as usize;
            let behind = pieces - piece - 1;
            let len = if behind == 0 { left } else { self.rng.range(1, (left - behind) as u64) as usize };
            places.push((at + gap) * size..(at + gap + len) * size);
            (at, left, spare) = (at + gap + len, left - len, spare - gap);
        }
        self.rng.shuffle(&mut places);
        places
    }
}
