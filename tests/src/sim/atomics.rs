//! Atomics: each worker applies every operation to a slot in the memory of every worker, of one type in a
//! run. They are ordered, so each old value is known. Called by `rma`, which has shared sums.

use super::Failed;
use super::job::Job;
use super::rma::SLOTS;
use ucp::rdm::amo::{self, Form};
use ucp::select::DeliveryComplete;
use ucp::{AtomicOp, AtomicParams, Datatype, Error, OpStatus, RequestId};

pub const SLOT: usize = 16;

const TYPES: [Datatype; 14] = [
    Datatype::Int8,
    Datatype::Uint8,
    Datatype::Int16,
    Datatype::Uint16,
    Datatype::Int32,
    Datatype::Uint32,
    Datatype::Int64,
    Datatype::Uint64,
    Datatype::Int128,
    Datatype::Uint128,
    Datatype::Float,
    Datatype::Double,
    Datatype::FloatComplex,
    Datatype::DoubleComplex,
];

pub struct PendingAtomic {
    pub to: usize,
    pub id: RequestId,
    /// The old value that must be returned; empty if none is.
    pub want: Vec<u8>,
    /// The peer does not acknowledge, so the operation must fail.
    pub refused: bool,
    pub result: Box<[u8]>,
    pub _kept: [Vec<u8>; 2],
}

impl Job {
    pub(super) fn start_atomic(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let ty = self.type_of(n, to);
        let (op, form) = self.operation(ty);
        let size = ty.size();
        let count = self.rng.range(1, (SLOT / size) as u64) as usize;
        let (operand, compare) = (self.elements(ty, count), self.elements(ty, count));
        let sync = if form == Form::Write && self.rng.percent(30) {
            DeliveryComplete::Yes
        } else {
            DeliveryComplete::No
        };
        let refused = sync == DeliveryComplete::Yes && self.workers[to].withholds_dc();
        let at = SLOTS + n * SLOT;
        self.trace.record(
            &[20, n as u64, to as u64, u64::from(op as u32), u64::from(ty as u32), count as u64],
            format_args!("{}: {n} does {op:?} {form:?} on {count} {ty:?} of {to}, {sync:?}", self.step),
        );
        let slot = &mut self.workers[to].rma.expected[at..at + count * size];
        let old = slot.to_vec();
        if !refused {
            for k in 0..count {
                let e = k * size..(k + 1) * size;
                amo::apply(op, ty, &mut slot[e.clone()], &operand[e.clone()], &compare[e]);
            }
        }
        let remote = self.workers[to].rma.addr() + at as u64;
        let sim_worker = &mut self.workers[n];
        let (Some(ep), Some(keys)) = (&sim_worker.eps[to], &sim_worker.rma.keys[to]) else { return Ok(()) };
        let mut result = vec![0; if form == Form::Write { 0 } else { old.len() }].into_boxed_slice();
        let params = AtomicParams {
            op,
            ty,
            count,
            operand: operand.as_ptr(),
            compare: compare.as_ptr(),
            result: if form == Form::Write { std::ptr::null_mut() } else { result.as_mut_ptr() },
            sync,
            done: None,
            mem: None,
        };
        // SAFETY: operands of up to 32 bytes are copied in the call; the room for the result is kept with the
        // request until it has ended, and nobody looks at it before.
        let started = unsafe { ep.atomic_raw(remote, &keys[0], &params) };
        let want = if form == Form::Write { Vec::new() } else { old };
        match started {
            Ok(OpStatus::InProgress(id)) => {
                let _kept = [operand, compare];
                sim_worker.rma.atomics.push(PendingAtomic { to, id, want, refused, result, _kept })
            }
            Ok(OpStatus::Done(_)) => self.check_atomic(n, to, Ok(()), &want, &result, refused)?,
            Err(error) => self.check_atomic(n, to, Err(error), &want, &result, refused)?,
        }
        self.outcome.atomics += 1;
        Ok(())
    }

    /// The type of what worker `n` has at `to`, constant in a run.
    pub(super) fn type_of(&self, n: usize, to: usize) -> Datatype {
        TYPES[(self.seed as usize + n * 5 + to * 3) % TYPES.len()]
    }

    pub(super) fn reap_atomics(&mut self, n: usize) -> Result<(), Failed> {
        let mut at = 0;
        while let Some(one) = self.workers[n].rma.atomics.get(at) {
            let Some(end) = self.workers[n].worker.test(one.id) else {
                at += 1;
                continue;
            };
            let PendingAtomic { to, want, refused, result, .. } = self.workers[n].rma.atomics.swap_remove(at);
            self.check_atomic(n, to, end.map(drop), &want, &result, refused)?;
        }
        Ok(())
    }

    pub(super) fn check_atomic(
        &mut self,
        n: usize,
        to: usize,
        end: Result<(), Error>,
        want: &[u8],
        got: &[u8],
        refused: bool,
    ) -> Result<(), Failed> {
        match end {
            Ok(()) if got == want && !refused => Ok(()),
            Err(Error::Unsupported) if refused => Ok(()),
            _ if self.is_lost(n, to) => Ok(()),
            _ => Err(self.fail(format!(
                "worker {n}: an atomic at {to} ended {end:?} with {got:x?}, not {want:x?} (refused {refused})"
            ))),
        }
    }

    pub(super) fn operation(&mut self, ty: Datatype) -> (AtomicOp, Form) {
        loop {
            let op = AtomicOp::try_from(self.rng.below(19) as u32);
            let form = *self.rng.pick(&[Form::Write, Form::Fetch, Form::Compare]);
            if let Ok(op) = op
                && amo::has_type(op, ty)
                && amo::has_form(op, form)
            {
                return (op, form);
            }
        }
    }

    /// Draws any integers, or small floating-point numbers, so that no sum is NaN.
    pub(super) fn elements(&mut self, ty: Datatype, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count * ty.size());
        while bytes.len() < count * ty.size() {
            let small = self.rng.below(4);
            match ty {
                Datatype::Float | Datatype::FloatComplex => bytes.extend((small as f32).to_le_bytes()),
                Datatype::Double | Datatype::DoubleComplex => bytes.extend((small as f64).to_le_bytes()),
                _ => bytes.extend(self.rng.bits().to_le_bytes()),
            }
        }
        bytes.truncate(count * ty.size());
        bytes
    }
}
