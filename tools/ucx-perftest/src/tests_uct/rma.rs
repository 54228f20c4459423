//! Put and get: ping-pong through memory, streams of puts, streams of gets.

use std::cell::RefCell;
use std::rc::Rc;

use ucs::mem::copy_slice;
use uct::api::{Comp, Ep as _, Iface};

use super::context::TestContext;
use super::memory::AlignedBuffer;
use crate::fail::Failure;
use crate::link::Side;
use crate::page_buffer::zeros;
use crate::payload;
use crate::spec::Layout;

/// Puts `bytes` at `offset` of the other side's target.
// HOT
#[inline(always)]
fn put<I: Iface>(
    ctx: &mut TestContext<'_, I>,
    path: Layout,
    bytes: &[u8],
    offset: usize,
) -> Result<(), Failure> {
    let to = ctx.remote.0 + offset as u64;
    match path {
        Layout::Zcopy => ctx.post_slot(|ctx, slot| {
            // The other side waits for the last byte; the others only matter when checked.
            if ctx.validates() {
                ctx.scatter(slot, bytes);
            } else if let (Some(last), Some((at, len))) = (bytes.last(), ctx.spec.piece_ranges().last()) {
                ctx.source.store(slot as usize * ctx.spec.span() + at + len - 1, *last);
            }
            let iov = ctx.iov(slot, 0);
            // SAFETY: the pieces are in registered memory that outlives its use by the interface (the test
            // flushes at its end), and the slot is written again only after its completion freed it.
            unsafe { ctx.ep().put_zcopy(&iov, to, &ctx.remote.1, Comp::Token(slot.into())) }
        }),
        Layout::Bcopy => ctx.post(|ep, key| {
            let fill = |buf: &mut [u8]| {
                copy_slice(&mut buf[..bytes.len()], bytes);
                bytes.len()
            };
            ep.put_bcopy(bytes.len(), fill, to, key).map(drop)
        }),
        _ => ctx.post(|ep, key| ep.put_short(bytes, to, key).map(drop)),
    }
}

/// Half a round trip: each side puts when the last byte of the other's put is in its memory.
pub fn put_lat<I: Iface>(ctx: &mut TestContext<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    match path {
        Layout::Zcopy => lat_loop(ctx, Layout::Zcopy, iters),
        Layout::Bcopy => lat_loop(ctx, Layout::Bcopy, iters),
        _ => lat_loop(ctx, Layout::Short, iters),
    }
}

#[inline(always)]
fn lat_loop<I: Iface>(ctx: &mut TestContext<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    let size = ctx.spec.size();
    let mut bytes = AlignedBuffer::new(size)?;
    let first = ctx.side != Side::Server;
    ctx.target.write(0, &bytes);
    ctx.barrier()?;
    ctx.counter.start();
    // The clock is read while the put travels, as `ucx_perftest` does: a sample is the time from put to put.
    for seq in 0..iters {
        // Differs from the previous put's.
        let flag = (seq % 255) as u8 + 1;
        if ctx.validates() {
            // Number 0 is in memory before the first put.
            payload::fill(&mut bytes, seq + 1);
        }
        if ctx.spec.size() < payload::SEQ_LEN || !ctx.validates() {
            bytes[size - 1] = flag;
        }
        if first {
            put(ctx, path, &bytes, 0)?;
            ctx.counter.tick();
        }
        if ctx.validates() {
            wait_for(ctx, &bytes)?;
        } else {
            ctx.poll_memory_until(|ctx| ctx.target.load(size - 1) == flag)?;
        }
        if !first {
            put(ctx, path, &bytes, 0)?;
            ctx.counter.tick();
        }
    }
    Ok(())
}

/// An unordered network may bring the last byte first. If the rest never comes, the wait times out.
fn wait_for<I: Iface>(ctx: &mut TestContext<'_, I>, bytes: &[u8]) -> Result<(), Failure> {
    while ctx.target.read(0, bytes.len()) != bytes {
        ctx.poll()?;
    }
    Ok(())
}

pub fn put_bw<I: Iface>(ctx: &mut TestContext<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    if ctx.validates() {
        return put_checked(ctx, path, iters);
    }
    match path {
        Layout::Zcopy => bw_loop(ctx, Layout::Zcopy, iters),
        Layout::Bcopy => bw_loop(ctx, Layout::Bcopy, iters),
        _ => bw_loop(ctx, Layout::Short, iters),
    }
}

#[inline(always)]
fn bw_loop<I: Iface>(ctx: &mut TestContext<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    if !ctx.side.is_active() {
        return Ok(());
    }
    let mut bytes = AlignedBuffer::new(ctx.spec.size())?;
    payload::fill(&mut bytes, 0);
    let bytes = &*bytes;
    ctx.counter.start();
    for _ in 0..iters {
        put(ctx, path, bytes, 0)?;
        ctx.counter.tick_stream();
    }
    ctx.flush()
}

/// Rounds of puts to different places; after each round the target checks every byte.
fn put_checked<I: Iface>(ctx: &mut TestContext<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    let size = ctx.spec.size();
    let slots = u64::from(ctx.spec.window);
    let mut bytes = AlignedBuffer::new(size)?;
    let mut seq = 0;
    ctx.counter.start();
    while seq < iters {
        let round = slots.min(iters - seq);
        if ctx.side.is_active() {
            for i in 0..round {
                payload::fill(&mut bytes, seq + i);
                put(ctx, path, &bytes, i as usize * size)?;
                ctx.counter.tick_stream();
            }
            ctx.flush()?;
        }
        ctx.barrier()?;
        if ctx.side.is_passive() {
            for i in 0..round {
                ctx.target.check(i as usize * size, size, seq + i).map_err(Failure::Validation)?;
            }
        }
        ctx.barrier()?;
        seq += round;
    }
    Ok(())
}

pub fn get<I: Iface>(ctx: &mut TestContext<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    let size = ctx.spec.size();
    // The memory must not change under reads of the previous pass.
    ctx.barrier()?;
    if ctx.side.is_passive() {
        let mut bytes = zeros(size)?;
        payload::fill(&mut bytes, iters);
        ctx.target.write(0, &bytes);
    }
    ctx.barrier()?;
    if !ctx.side.is_active() {
        return Ok(());
    }
    ctx.counter.start();
    match path {
        Layout::Zcopy => get_zcopy(ctx, iters),
        Layout::Bcopy => get_bcopy(ctx, iters),
        _ => get_short(ctx, iters),
    }
}

fn get_short<I: Iface>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    let size = ctx.spec.size();
    let mut bytes = AlignedBuffer::new(size)?;
    for _ in 0..iters {
        let from = ctx.remote.0;
        ctx.post(|ep, key| ep.get_short(&mut bytes, from, key).map(drop))?;
        if ctx.validates() {
            payload::check(&bytes, iters, size).map_err(Failure::Validation)?;
            bytes.fill(0);
        }
        ctx.counter.tick_stream();
    }
    Ok(())
}

fn get_bcopy<I: Iface>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    let (size, from) = (ctx.spec.size(), ctx.remote.0);
    let into = Rc::new(RefCell::new(AlignedBuffer::new(size)?));
    let error = Rc::new(RefCell::new(None));
    for _ in 0..iters {
        ctx.post_slot(|ctx, slot| {
            let (into, error, checked) = (into.clone(), error.clone(), ctx.validates());
            let unpack = move |bytes: &[u8]| {
                let mut into = into.borrow_mut();
                copy_slice(&mut into[..bytes.len()], bytes);
                if checked && let Err(why) = payload::check(bytes, iters, size) {
                    error.borrow_mut().get_or_insert(why);
                }
            };
            ctx.ep().get_bcopy(size, unpack, from, &ctx.remote.1, Comp::Token(slot.into()))
        })?;
        if ctx.spec.window == 1 {
            ctx.drain()?;
        }
        ctx.counter.tick_stream();
    }
    ctx.drain()?;
    error.take().map_or(Ok(()), |why| Err(Failure::Validation(why)))
}

fn get_zcopy<I: Iface>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    let (size, from) = (ctx.spec.size(), ctx.remote.0);
    let one_by_one = ctx.validates() || ctx.spec.window == 1;
    for _ in 0..iters {
        let mut used = 0;
        ctx.post_slot(|ctx, slot| {
            used = slot;
            let iov = ctx.iov(slot, 0);
            // SAFETY: the pieces are in registered memory that outlives its use by the interface, and is not
            // touched before its completion.
            unsafe { ctx.ep().get_zcopy(&iov, from, &ctx.remote.1, Comp::Token(slot.into())) }
        })?;
        if one_by_one {
            ctx.drain()?;
        }
        if ctx.validates() {
            payload::check(&ctx.gather(used), iters, size).map_err(Failure::Validation)?;
            ctx.scatter(used, &vec![0; size]);
        }
        ctx.counter.tick_stream();
    }
    ctx.drain()
}
