//! Measurements of processors and transports: each is the best of a few tries within a time limit.

#![allow(unsafe_code)]

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ucs::config::Source;
use ucs::mem::copy_slice;
use uct::any::{Ep, Iface, Mem, Rkey};
use uct::api::{
    Access, AllocReq, Caps, Comp, DevKind, Ep as _, Iface as _, Iov, Md as _, Memory as _, Outcome, Sent,
    TlResource,
};

use crate::select::{Line, RmaOp};

use super::{Calibration, DeviceCosts, DeviceType};

/// Time limit of one measurement.
const TIME_LIMIT: Duration = Duration::from_millis(2);
const TRIES: usize = 24;
/// Sizes of a short and a long transfer, bytes.
const SHORT: usize = 8;
const LONG: usize = 1 << 18;
/// Sizes of a block within caches and of one beyond, bytes.
const CACHED_BLOCK: usize = 1 << 16;
const UNCACHED_BLOCK: usize = 4 << 20;

pub(super) fn all<'a>(found: impl IntoIterator<Item = &'a TlResource>) -> Calibration {
    let mut devices: Vec<DeviceCosts> = Vec::new();
    for resource in found.into_iter().filter(|r| is_wanted(r)) {
        // NICs of one kind cost the same.
        if !devices.iter().any(|d| d.tl == resource.tl) {
            devices.extend(device(resource));
        }
    }
    Calibration {
        copy: copy(CACHED_BLOCK),
        copy_uncached: copy(UNCACHED_BLOCK),
        core_to_core: core_to_core(),
        devices,
    }
}

/// Whether a transport is measured: others only copy by the processor.
pub(super) fn is_wanted(r: &TlResource) -> bool {
    r.kind == DevKind::Net || !r.has_am
}

fn best_ns(mut once: impl FnMut() -> Option<Duration>) -> Option<f64> {
    let end = Instant::now() + TIME_LIMIT;
    let mut least = once()?;
    for _ in 1..TRIES {
        least = least.min(once()?);
        if Instant::now() > end {
            break;
        }
    }
    Some(least.as_nanos() as f64)
}

fn fit(short: f64, long: f64, (from, to): (usize, usize)) -> Line {
    let per_byte = ((long - short) / (to - from) as f64).max(0.0);
    Line::new((short - per_byte * from as f64).max(0.0), per_byte)
}

/// Cost of copying a block, ns per byte.
fn copy(bytes: usize) -> f64 {
    let (from, mut to) = (vec![1u8; bytes], vec![2u8; bytes]);
    let once = || {
        let begun = Instant::now();
        copy_slice(black_box(&mut to), black_box(&from));
        Some(begun.elapsed())
    };
    best_ns(once).unwrap_or(0.0) / bytes as f64
}

/// Cost from one processor to another: two threads pass a block to and fro.
fn core_to_core() -> Option<Line> {
    if ucs::sys::CpuSet::allowed().is_ok_and(|cpus| cpus.len() < 2) {
        return None;
    }
    let ping_pong = PingPong::default();
    let (mut word, mut fetch) = (f64::INFINITY, f64::INFINITY);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| ping_pong.respond());
        let end = Instant::now() + 3 * TIME_LIMIT;
        let done = ping_pong.measure(end, &mut word, &mut fetch);
        ping_pong.stop.store(true, Ordering::Release);
        done
    });
    let cached = copy(CACHED_BLOCK);
    done.map(|()| Line::new(word, (fetch / CACHED_BLOCK as f64 - cached).max(0.0)))
}

struct PingPong {
    turn: AtomicUsize,
    stop: AtomicBool,
    block: Vec<AtomicUsize>,
}

impl Default for PingPong {
    fn default() -> Self {
        let block = (0..CACHED_BLOCK / size_of::<usize>()).map(|_| AtomicUsize::new(0)).collect();
        PingPong { turn: AtomicUsize::new(0), stop: AtomicBool::new(false), block }
    }
}

impl PingPong {
    /// Words passed before each block.
    const WORDS: usize = 64;
    const ROUNDS: usize = 16;

    /// Second thread: answers each word, then writes the block.
    fn respond(&self) {
        for turn in 0..Self::ROUNDS * (Self::WORDS + 1) {
            while self.turn.load(Ordering::Acquire) != 2 * turn + 1 {
                if self.stop.load(Ordering::Acquire) {
                    return;
                }
                spin_loop();
            }
            if turn % (Self::WORDS + 1) == Self::WORDS {
                self.block.iter().for_each(|word| word.store(turn, Ordering::Relaxed));
            }
            self.turn.store(2 * turn + 2, Ordering::Release);
        }
    }

    /// First thread. `None` if the second got no processor in time.
    fn measure(&self, end: Instant, word: &mut f64, fetch: &mut f64) -> Option<()> {
        let mut turn = 0;
        let mut round_trip = || {
            self.turn.store(2 * turn + 1, Ordering::Release);
            turn += 1;
            while self.turn.load(Ordering::Acquire) != 2 * turn {
                if Instant::now() > end {
                    return None;
                }
                spin_loop();
            }
            Some(())
        };
        for _ in 0..Self::ROUNDS {
            let begun = Instant::now();
            for _ in 0..Self::WORDS {
                round_trip()?;
            }
            *word = word.min(begun.elapsed().as_nanos() as f64 / (2 * Self::WORDS) as f64);
            round_trip()?;
            let begun = Instant::now();
            let sum =
                self.block.iter().fold(0usize, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
            black_box(sum);
            *fetch = fetch.min(begun.elapsed().as_nanos() as f64);
        }
        Some(())
    }
}

/// Two connected interfaces of one device.
struct Pair {
    a: Iface,
    b: Iface,
    ab: Ep,
    _ba: Ep,
}

fn device(resource: &TlResource) -> Option<DeviceCosts> {
    // Without user settings: injected faults are no cost of the machine.
    let source = Source::empty();
    let open = || uct::any::open(resource.tl, &resource.dev, &source).ok();
    let (a, b) = (open()?, open()?);
    let ab = a.connect(&b.device_addr(), &b.iface_addr()).ok()?;
    let ba = b.connect(&a.device_addr(), &a.iface_addr()).ok()?;
    let pair = Pair { a, b, ab, _ba: ba };
    let has = |cap| pair.a.attr().has(cap);
    let mut costs = DeviceCosts {
        tl: resource.tl.into(),
        dev: resource.dev.clone(),
        device_type: if resource.is_software || resource.kind != DevKind::Net {
            DeviceType::Software
        } else {
            DeviceType::Hardware
        },
        overhead: if has(Caps::AM_BCOPY) { pair.message_overhead() } else { None },
        register: pair.registration_cost(),
        put: [None; 2],
        get: [None; 2],
    };
    let mut local_buf = vec![1u8; LONG];
    // SAFETY: `local_buf` outlives the registration, and all transfers end before.
    let local = unsafe { pair.a.md().register(local_buf.as_mut_ptr(), LONG, Access::ALL) }.ok()?;
    let mut remote_buf = vec![2u8; LONG];
    // SAFETY: as above, of `remote_buf`.
    let registered = unsafe { pair.b.md().register(remote_buf.as_mut_ptr(), LONG, Access::ALL) }.ok();
    let allocated = pair.b.md().alloc(&AllocReq::new(LONG, "calibration")).ok();
    for (memory, mem) in [(0, &allocated), (1, &registered)] {
        let Some(mem) = mem else { continue };
        costs.put[memory] =
            if has(Caps::PUT_ZCOPY) { pair.transfer_cost(&local, mem, RmaOp::Put) } else { None };
        costs.get[memory] =
            if has(Caps::GET_ZCOPY) { pair.transfer_cost(&local, mem, RmaOp::Get) } else { None };
    }
    Some(costs)
}

impl Pair {
    fn until(&self, mut done: impl FnMut(usize) -> bool) -> Option<()> {
        let end = Instant::now() + TIME_LIMIT;
        loop {
            self.a.progress(32);
            if done(self.b.progress(32)) {
                return Some(());
            }
            if Instant::now() > end {
                return None;
            }
        }
    }

    /// Processor cost of a message at one end: half of both.
    fn message_overhead(&self) -> Option<f64> {
        self.b.set_am_handler(0, Some(Box::new(|_| {})));
        let once = || {
            let begun = Instant::now();
            let packed = self.ab.am_bcopy(0, |slot| {
                slot[..SHORT].fill(1);
                SHORT
            });
            packed.ok()?;
            self.until(|arrived| arrived > 0)?;
            Some(begun.elapsed())
        };
        let whole = best_ns(once);
        self.b.set_am_handler(0, None);
        whole.map(|ns| ns / 2.0)
    }

    fn registration_cost(&self) -> Option<Line> {
        let mut memory = vec![0u8; LONG];
        let mut of = |len: usize| {
            best_ns(|| {
                let begun = Instant::now();
                // SAFETY: the memory outlives the registration, which is unused.
                drop(unsafe { self.a.md().register_for_op(memory.as_mut_ptr(), len, Access::ALL) }.ok()?);
                Some(begun.elapsed())
            })
        };
        Some(fit(of(4096)?, of(LONG)?, (4096, LONG)))
    }

    fn transfer_cost(&self, local: &Mem, remote: &Mem, op: RmaOp) -> Option<Line> {
        let packed = self.b.md().pack_rkey(remote).ok()?;
        let rkey = self.a.md().unpack_rkey(&packed).ok()?;
        let of = |len| best_ns(|| self.transfer(local, (remote.addr() as u64, &rkey), op, len));
        Some(fit(of(SHORT)?, of(LONG)?, (SHORT, LONG)))
    }

    fn transfer(&self, local: &Mem, (at, rkey): (u64, &Rkey), op: RmaOp, len: usize) -> Option<Duration> {
        let iov = [Iov::new(local.addr(), len, Some(local))];
        let begun = Instant::now();
        let started: Outcome = match op {
            // SAFETY: both buffers outlive the transfer, which is waited for; no references to them exist.
            RmaOp::Put => unsafe { self.ab.put_zcopy(&iov, at, rkey, Comp::None) },
            // SAFETY: as above.
            RmaOp::Get => unsafe { self.ab.get_zcopy(&iov, at, rkey, Comp::None) },
        };
        if started.ok()? == Sent::InProgress {
            self.until(|_| matches!(self.a.flush(Comp::None), Ok(Sent::Done)))?;
        }
        Some(begun.elapsed())
    }
}
