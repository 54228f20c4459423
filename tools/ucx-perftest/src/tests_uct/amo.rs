//! Atomics on the first word of the other side's target: posted additions, and fetching operations.
//! Run by `tests_uct`. With `--validate` every fetched value and the final word are checked.

use std::cell::Cell;
use std::ptr::NonNull;

use uct::api::{AtomicOp, Comp, Ep as _, Iface, Word};

use super::rig::Rig;
use crate::fail::Failure;
use crate::link::Side;
use crate::spec::Test;

/// Calls `$run` with the word of the message's size.
macro_rules! by_word {
    ($rig:ident, $run:ident, $iters:expr) => {
        match $rig.spec.size() {
            1 => $run::<I, u8>($rig, $iters),
            2 => $run::<I, u16>($rig, $iters),
            4 => $run::<I, u32>($rig, $iters),
            8 => $run::<I, u64>($rig, $iters),
            _ => $run::<I, u128>($rig, $iters),
        }
    };
}

/// Half a round trip: each side adds one to the other's word when its own was added to.
pub fn add_lat<I: Iface>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    rig.target.clear_word();
    rig.barrier()?;
    rig.pulse.start();
    by_word!(rig, add_loop, iters)
}

fn add_loop<I: Iface, W: Word>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    let (to, one) = (rig.remote.0, W::from_u64(1));
    let first = rig.side != Side::Server;
    // The clock is read while the addition travels, as ucx_perftest does: a sample is the time from post to post.
    for seq in 0..iters {
        let want = W::from_u64(seq + 1).to_u64();
        if first {
            rig.post(|ep, key| ep.atomic_post(AtomicOp::Add, one, to, key).map(drop))?;
            rig.pulse.tick();
        }
        rig.watch_until(|rig| rig.target.word(W::BYTES) == want)?;
        if !first {
            rig.post(|ep, key| ep.atomic_post(AtomicOp::Add, one, to, key).map(drop))?;
            rig.pulse.tick();
        }
    }
    Ok(())
}

/// Posted additions, then a wait until all have taken effect.
pub fn add_mr<I: Iface>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    by_word!(rig, post_loop, iters)
}

fn post_loop<I: Iface, W: Word>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    start(rig)?;
    if rig.side.is_active() {
        let (to, one) = (rig.remote.0, W::from_u64(1));
        rig.pulse.start();
        for _ in 0..iters {
            rig.post(|ep, key| ep.atomic_post(AtomicOp::Add, one, to, key).map(drop))?;
            rig.pulse.beat();
        }
        rig.flush()?;
    }
    finish::<I, W>(rig, iters)
}

/// Fetching operations, as many at a time as the window allows; one by one where results are checked.
pub fn fetch<I: Iface>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    by_word!(rig, fetch_by_test, iters)
}

fn fetch_by_test<I: Iface, W: Word>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    start(rig)?;
    if rig.side.is_active() {
        // Each leaves the number of operations so far in the word and finds the number before.
        match rig.spec.test {
            Test::Fadd => fetch_loop::<I, W>(rig, iters, |rig, _, result, comp| {
                let one = W::from_u64(1);
                // SAFETY: `fetch_loop` keeps the result until the completion.
                unsafe {
                    rig.ep().atomic_fetch(AtomicOp::Add, one, result, rig.remote.0, &rig.remote.1, comp)
                }
            })?,
            Test::Swap => fetch_loop::<I, W>(rig, iters, |rig, seq, result, comp| {
                let next = W::from_u64(seq + 1);
                // SAFETY: `fetch_loop` keeps the result until the completion.
                unsafe {
                    rig.ep().atomic_fetch(AtomicOp::Swap, next, result, rig.remote.0, &rig.remote.1, comp)
                }
            })?,
            _ => fetch_loop::<I, W>(rig, iters, |rig, seq, result, comp| {
                let (old, new) = (W::from_u64(seq), W::from_u64(seq + 1));
                // SAFETY: `fetch_loop` keeps the result until the completion.
                unsafe { rig.ep().atomic_cswap(old, new, result, rig.remote.0, &rig.remote.1, comp) }
            })?,
        }
    }
    // With several in flight on an unordered wire only the sum is certain.
    if rig.validates() || rig.spec.test == Test::Fadd { finish::<I, W>(rig, iters) } else { rig.barrier() }
}

#[inline(always)]
fn fetch_loop<I: Iface, W: Word>(
    rig: &mut Rig<'_, I>,
    iters: u64,
    op: impl Fn(&Rig<'_, I>, u64, NonNull<W>, Comp) -> uct::api::Outcome,
) -> Result<(), Failure> {
    let results: Vec<Cell<W>> = vec![Cell::new(W::from_u64(0)); rig.spec.window as usize];
    let one_by_one = rig.validates() || rig.spec.window == 1;
    rig.pulse.start();
    let done = (0..iters).try_for_each(|seq| {
        let mut used = 0;
        rig.post_slot(|rig, slot| {
            used = slot as usize;
            let result = NonNull::from(&results[used]).cast();
            op(rig, seq, result, Comp::Token(slot.into()))
        })?;
        if one_by_one {
            rig.drain()?;
        }
        if rig.validates() && results[used].get() != W::from_u64(seq) {
            let got = results[used].get();
            return Err(Failure::Corrupt(format!(
                "{} {seq} fetched {got:?} instead of {seq}",
                rig.spec.test.name()
            )));
        }
        rig.pulse.beat();
        Ok(())
    });
    // Results must outlive the operations, whatever went wrong.
    if rig.drain().is_err() {
        std::mem::forget(results);
    }
    done
}

fn start<I: Iface>(rig: &mut Rig<'_, I>) -> Result<(), Failure> {
    rig.target.clear_word();
    rig.barrier()
}

fn finish<I: Iface, W: Word>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    rig.barrier()?;
    let (word, want) = (rig.target.word(W::BYTES), W::from_u64(iters).to_u64());
    if rig.side.is_passive() && rig.validates() && word != want {
        return Err(Failure::Corrupt(format!("the word is {word} after {iters} operations")));
    }
    rig.barrier()
}
