//! Put and get: ping-pong through memory, streams of puts, streams of gets.
//! Run by `tests_uct`. The target is only touched by the other side's operations while a loop runs.

use std::cell::RefCell;
use std::rc::Rc;

use ucs::mem::copy_slice;
use uct::api::{Comp, Ep as _, Iface};

use super::mem::Own;
use super::rig::Rig;
use crate::fail::Failure;
use crate::heap::zeros;
use crate::link::Side;
use crate::pattern;
use crate::spec::Layout;

/// Puts `bytes` to `offset` of the other side's target by the data path. HOT
#[inline(always)]
fn put<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, bytes: &[u8], offset: usize) -> Result<(), Failure> {
    let to = rig.remote.0 + offset as u64;
    match path {
        Layout::Zcopy => rig.post_slot(|rig, slot| {
            // The last byte is what the other side waits for; the rest only matters to a validating run.
            if rig.validates() {
                rig.scatter(slot, bytes);
            } else if let (Some(last), Some((at, len))) = (bytes.last(), rig.spec.spots().last()) {
                rig.source.store(slot as usize * rig.spec.span() + at + len - 1, *last);
            }
            let iov = rig.iov(slot, 0);
            // SAFETY: the pieces are in registered memory that outlives the interface's use of it (the rig flushes
            // before it ends), and the slot is written again only after its completion gave it back.
            unsafe { rig.ep().put_zcopy(&iov, to, &rig.remote.1, Comp::Token(slot.into())) }
        }),
        Layout::Bcopy => rig.post(|ep, key| {
            let fill = |room: &mut [u8]| {
                copy_slice(&mut room[..bytes.len()], bytes);
                bytes.len()
            };
            ep.put_bcopy(bytes.len(), fill, to, key).map(drop)
        }),
        _ => rig.post(|ep, key| ep.put_short(bytes, to, key).map(drop)),
    }
}

/// Half a round trip: each side puts when the other's put is in its memory. The last byte tells.
pub fn put_lat<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    match path {
        Layout::Zcopy => lat_loop(rig, Layout::Zcopy, iters),
        Layout::Bcopy => lat_loop(rig, Layout::Bcopy, iters),
        _ => lat_loop(rig, Layout::Short, iters),
    }
}

#[inline(always)]
fn lat_loop<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    let size = rig.spec.size();
    let mut bytes = Own::new(size)?;
    let first = rig.side != Side::Server;
    rig.target.write(0, &bytes);
    rig.barrier()?;
    rig.pulse.start();
    // The clock is read while the put travels, as ucx_perftest does: a sample is the time from put to put.
    for seq in 0..iters {
        // Never what is there from the put before.
        let flag = (seq % 255) as u8 + 1;
        if rig.validates() {
            // Number 0 would be what was there before.
            pattern::fill(&mut bytes, seq + 1);
        }
        if rig.spec.size() < pattern::SEQ || !rig.validates() {
            bytes[size - 1] = flag;
        }
        if first {
            put(rig, path, &bytes, 0)?;
            rig.pulse.tick();
        }
        if rig.validates() {
            wait_for(rig, &bytes)?;
        } else {
            rig.watch_until(|rig| rig.target.load(size - 1) == flag)?;
        }
        if !first {
            put(rig, path, &bytes, 0)?;
            rig.pulse.tick();
        }
    }
    Ok(())
}

/// Waits until the whole message is there: an unordered wire may bring its last byte first. If it never comes whole,
/// the error of the wait is that nothing happened.
fn wait_for<I: Iface>(rig: &mut Rig<'_, I>, bytes: &[u8]) -> Result<(), Failure> {
    while rig.target.read(0, bytes.len()) != bytes {
        rig.poll()?;
    }
    Ok(())
}

/// Puts one way, then waits until all have arrived.
pub fn put_bw<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    if rig.validates() {
        return put_checked(rig, path, iters);
    }
    match path {
        Layout::Zcopy => bw_loop(rig, Layout::Zcopy, iters),
        Layout::Bcopy => bw_loop(rig, Layout::Bcopy, iters),
        _ => bw_loop(rig, Layout::Short, iters),
    }
}

#[inline(always)]
fn bw_loop<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    if !rig.side.is_active() {
        return Ok(());
    }
    let mut bytes = Own::new(rig.spec.size())?;
    pattern::fill(&mut bytes, 0);
    let bytes = &*bytes;
    rig.pulse.start();
    for _ in 0..iters {
        put(rig, path, bytes, 0)?;
        rig.pulse.beat();
    }
    rig.flush()
}

/// Rounds of puts to different places; after each round the target looks at every byte.
fn put_checked<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    let size = rig.spec.size();
    let slots = u64::from(rig.spec.window);
    let mut bytes = Own::new(size)?;
    let mut seq = 0;
    rig.pulse.start();
    while seq < iters {
        let round = slots.min(iters - seq);
        if rig.side.is_active() {
            for i in 0..round {
                pattern::fill(&mut bytes, seq + i);
                put(rig, path, &bytes, i as usize * size)?;
                rig.pulse.beat();
            }
            rig.flush()?;
        }
        rig.barrier()?;
        if rig.side.is_passive() {
            for i in 0..round {
                rig.target.check(i as usize * size, size, seq + i).map_err(Failure::Corrupt)?;
            }
        }
        rig.barrier()?;
        seq += round;
    }
    Ok(())
}

/// Gets, as many at a time as the window allows.
pub fn get<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    let size = rig.spec.size();
    // What a pass before this one read must not change under it.
    rig.barrier()?;
    if rig.side.is_passive() {
        let mut bytes = zeros(size)?;
        pattern::fill(&mut bytes, iters);
        rig.target.write(0, &bytes);
    }
    rig.barrier()?;
    if !rig.side.is_active() {
        return Ok(());
    }
    rig.pulse.start();
    match path {
        Layout::Zcopy => get_zcopy(rig, iters),
        Layout::Bcopy => get_bcopy(rig, iters),
        _ => get_short(rig, iters),
    }
}

fn get_short<I: Iface>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    let size = rig.spec.size();
    let mut bytes = Own::new(size)?;
    for _ in 0..iters {
        let from = rig.remote.0;
        rig.post(|ep, key| ep.get_short(&mut bytes, from, key).map(drop))?;
        if rig.validates() {
            pattern::check(&bytes, iters, size).map_err(Failure::Corrupt)?;
            bytes.fill(0);
        }
        rig.pulse.beat();
    }
    Ok(())
}

fn get_bcopy<I: Iface>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    let (size, from) = (rig.spec.size(), rig.remote.0);
    let into = Rc::new(RefCell::new(Own::new(size)?));
    let wrong = Rc::new(RefCell::new(None));
    for _ in 0..iters {
        rig.post_slot(|rig, slot| {
            let (into, wrong, checked) = (into.clone(), wrong.clone(), rig.validates());
            let unpack = move |bytes: &[u8]| {
                let mut into = into.borrow_mut();
                copy_slice(&mut into[..bytes.len()], bytes);
                if checked && let Err(why) = pattern::check(bytes, iters, size) {
                    wrong.borrow_mut().get_or_insert(why);
                }
            };
            rig.ep().get_bcopy(size, unpack, from, &rig.remote.1, Comp::Token(slot.into()))
        })?;
        if rig.spec.window == 1 {
            rig.drain()?;
        }
        rig.pulse.beat();
    }
    rig.drain()?;
    wrong.take().map_or(Ok(()), |why| Err(Failure::Corrupt(why)))
}

fn get_zcopy<I: Iface>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    let (size, from) = (rig.spec.size(), rig.remote.0);
    let one_by_one = rig.validates() || rig.spec.window == 1;
    for _ in 0..iters {
        let mut used = 0;
        rig.post_slot(|rig, slot| {
            used = slot;
            let iov = rig.iov(slot, 0);
            // SAFETY: the pieces are in registered memory that outlives the interface's use of it, and is not touched
            // before its completion.
            unsafe { rig.ep().get_zcopy(&iov, from, &rig.remote.1, Comp::Token(slot.into())) }
        })?;
        if one_by_one {
            rig.drain()?;
        }
        if rig.validates() {
            pattern::check(&rig.gather(used), iters, size).map_err(Failure::Corrupt)?;
            rig.scatter(used, &vec![0; size]);
        }
        rig.pulse.beat();
    }
    rig.drain()
}
