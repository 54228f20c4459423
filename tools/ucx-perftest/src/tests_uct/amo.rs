//! Atomics on the first word of the other side's target: posted additions and fetching operations.
//! `--validate` checks every fetched value and the final word.

use std::cell::Cell;
use std::ptr::NonNull;

use uct::api::{AtomicOp, Comp, Ep as _, Iface, Word};

use super::context::TestContext;
use crate::fail::Failure;
use crate::link::Side;
use crate::spec::Test;

/// Calls `$run` with the word type of the message size.
macro_rules! by_word {
    ($ctx:ident, $run:ident, $iters:expr) => {
        match $ctx.spec.size() {
            1 => $run::<I, u8>($ctx, $iters),
            2 => $run::<I, u16>($ctx, $iters),
            4 => $run::<I, u32>($ctx, $iters),
            8 => $run::<I, u64>($ctx, $iters),
            _ => $run::<I, u128>($ctx, $iters),
        }
    };
}

/// Half a round trip: each side adds to the other's word when its own has changed.
pub fn add_lat<I: Iface>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    ctx.target.clear_word();
    ctx.barrier()?;
    ctx.counter.start();
    by_word!(ctx, add_loop, iters)
}

fn add_loop<I: Iface, W: Word>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    let (to, one) = (ctx.remote.0, W::from_u64(1));
    let first = ctx.side != Side::Server;
    // Read while the addition travels, as `ucx_perftest` does: a sample is from post to post.
    for seq in 0..iters {
        let want = W::from_u64(seq + 1).to_u64();
        if first {
            ctx.post(|ep, key| ep.atomic_post(AtomicOp::Add, one, to, key).map(drop))?;
            ctx.counter.tick();
        }
        ctx.poll_memory_until(|ctx| ctx.target.word(W::BYTES) == want)?;
        if !first {
            ctx.post(|ep, key| ep.atomic_post(AtomicOp::Add, one, to, key).map(drop))?;
            ctx.counter.tick();
        }
    }
    Ok(())
}

pub fn add_mr<I: Iface>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    by_word!(ctx, post_loop, iters)
}

fn post_loop<I: Iface, W: Word>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    start(ctx)?;
    if ctx.side.is_active() {
        let (to, one) = (ctx.remote.0, W::from_u64(1));
        ctx.counter.start();
        for _ in 0..iters {
            ctx.post(|ep, key| ep.atomic_post(AtomicOp::Add, one, to, key).map(drop))?;
            ctx.counter.tick_stream();
        }
        ctx.flush()?;
        ctx.counter.stop();
    }
    finish::<I, W>(ctx, iters)
}

pub fn fetch<I: Iface>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    by_word!(ctx, fetch_by_test, iters)
}

fn fetch_by_test<I: Iface, W: Word>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    start(ctx)?;
    if ctx.side.is_active() {
        // Each operation leaves the number of operations so far in the word.
        match ctx.spec.test {
            Test::Fadd => fetch_loop::<I, W>(ctx, iters, |ctx, _, result, comp| {
                let one = W::from_u64(1);
                // SAFETY: `fetch_loop` keeps the result until the completion.
                unsafe {
                    ctx.ep().atomic_fetch(AtomicOp::Add, one, result, ctx.remote.0, &ctx.remote.1, comp)
                }
            })?,
            Test::Swap => fetch_loop::<I, W>(ctx, iters, |ctx, seq, result, comp| {
                let next = W::from_u64(seq + 1);
                // SAFETY: `fetch_loop` keeps the result until the completion.
                unsafe {
                    ctx.ep().atomic_fetch(AtomicOp::Swap, next, result, ctx.remote.0, &ctx.remote.1, comp)
                }
            })?,
            _ => fetch_loop::<I, W>(ctx, iters, |ctx, seq, result, comp| {
                let (old, new) = (W::from_u64(seq), W::from_u64(seq + 1));
                // SAFETY: `fetch_loop` keeps the result until the completion.
                unsafe { ctx.ep().atomic_cswap(old, new, result, ctx.remote.0, &ctx.remote.1, comp) }
            })?,
        }
    }
    // With several in flight on an unordered network only the sum is certain.
    if ctx.validates() || ctx.spec.test == Test::Fadd { finish::<I, W>(ctx, iters) } else { ctx.barrier() }
}

#[inline(always)]
fn fetch_loop<I: Iface, W: Word>(
    ctx: &mut TestContext<'_, I>,
    iters: u64,
    op: impl Fn(&TestContext<'_, I>, u64, NonNull<W>, Comp) -> uct::api::Outcome,
) -> Result<(), Failure> {
    let results: Vec<Cell<W>> = vec![Cell::new(W::from_u64(0)); ctx.spec.window as usize];
    let one_by_one = ctx.validates() || ctx.spec.window == 1;
    ctx.counter.start();
    let done = (0..iters).try_for_each(|seq| {
        let mut used = 0;
        ctx.post_slot(|ctx, slot| {
            used = slot as usize;
            let result = NonNull::from(&results[used]).cast();
            op(ctx, seq, result, Comp::Token(slot.into()))
        })?;
        if one_by_one {
            ctx.drain()?;
        }
        if ctx.validates() && results[used].get() != W::from_u64(seq) {
            let got = results[used].get();
            return Err(Failure::Validation(format!(
                "{} {seq} fetched {got:?} instead of {seq}",
                ctx.spec.test.name()
            )));
        }
        ctx.counter.tick_stream();
        Ok(())
    });
    // Operations may still write their results after an error: leak them.
    if ctx.drain().is_err() {
        std::mem::forget(results);
    }
    ctx.counter.stop();
    done
}

fn start<I: Iface>(ctx: &mut TestContext<'_, I>) -> Result<(), Failure> {
    ctx.target.clear_word();
    ctx.barrier()
}

fn finish<I: Iface, W: Word>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    ctx.barrier()?;
    let (word, want) = (ctx.target.word(W::BYTES), W::from_u64(iters).to_u64());
    if ctx.side.is_passive() && ctx.validates() && word != want {
        return Err(Failure::Validation(format!("the word is {word} after {iters} operations")));
    }
    ctx.barrier()
}
