//! One-sided operations of ucp: ping-pong through memory, streams of puts, gets and atomics. The passive side
//! makes progress, since operations may need packets.

use std::fmt::Display;

use ucp::select::RmaOp;
use ucp::{Access, AtomicOp, AtomicParams, Datatype, Ep, Mem, Rkey, RmaMethod};

use super::test_worker::TestWorker;
use super::waiter::Waiter;
use super::window::{Sharing, WindowBuffers};
use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Side;
use crate::page_buffer::{PageBuffer, zeros};
use crate::payload;
use crate::spec::{Layout, Passive, Spec, Target, Test, Validate};

pub struct RemoteMemory {
    pub addr: u64,
    pub rkey: Rkey,
}

pub struct RmaTest<'a> {
    pub spec: &'a Spec,
    pub side: Side,
    pub worker: TestWorker,
    pub ep: &'a Ep,
    pub remote: &'a RemoteMemory,
    pub target: &'a Mem,
    pub wait: Waiter<'a>,
    pub counter: IterationCounter<'a>,
}

pub struct TargetMemory {
    /// Dropped before `own`, which it maps.
    pub mem: Mem,
    own: Option<PageBuffer>,
    ended: bool,
}

impl TargetMemory {
    /// No side will access the memory any more.
    pub fn mark_ended(mut self) {
        self.ended = true;
    }
}

impl Drop for TargetMemory {
    fn drop(&mut self) {
        // After a failure the other side may still write here by the kernel: leak it.
        if !self.ended {
            std::mem::forget(self.own.take());
        }
    }
}

pub fn target(spec: &Spec, worker: &TestWorker) -> Result<TargetMemory, Failure> {
    let slots = if spec.validate == Validate::Yes { spec.window as usize } else { 1 };
    let len = spec.size().saturating_mul(slots).max(64);
    let cannot = |why: &dyn Display| {
        Failure::Unsupported(format!("cannot get {len} bytes of memory for peers (see -s, -O): {why}"))
    };
    let (got, own) = match spec.target {
        Target::Allocated => (worker.mem_alloc(len, Access::all()), None),
        Target::Own => {
            let own = PageBuffer::new(len, spec.pages).ok_or_else(|| cannot(&"there is not as much"))?;
            // SAFETY: `TargetMemory` keeps the memory longer than the `Mem`, through which alone it is
            // accessed.
            (unsafe { worker.mem_map(own.start().as_ptr(), len, Access::all()) }, Some(own))
        }
    };
    Ok(TargetMemory { mem: got.map_err(|e| cannot(&e))?, own, ended: false })
}

/// Name of the method of a test's operations.
pub fn data_path(spec: &Spec, ep: &Ep, rkey: &Rkey) -> &'static str {
    let rma = if spec.test == Test::UcpGet { RmaOp::Get } else { RmaOp::Put };
    let means = match operation(spec.test) {
        Some(op) => ep.protocols().atomic_method(rkey, op, word(spec)).unwrap_or(RmaMethod::Emulated),
        None => ep.protocols().rma_method_for(rkey, rma, spec.size()),
    };
    match means {
        RmaMethod::Mapped => "mapped",
        RmaMethod::Kernel => "kernel",
        RmaMethod::Rdma => "rdma",
        RmaMethod::Emulated => "packets",
    }
}

/// `-E sleep` needs packets: nothing else wakes a target of puts.
pub fn can_sleep(data_path: &str) -> Result<(), Failure> {
    match data_path {
        "packets" => Ok(()),
        path => Err(Failure::Unsupported(format!(
            "-E sleep: puts of ucp_put_lat go by '{path}' here, which wakes nobody at the target: poll"
        ))),
    }
}

pub fn operation(test: Test) -> Option<AtomicOp> {
    match test {
        Test::UcpAdd | Test::UcpFadd => Some(AtomicOp::Sum),
        Test::UcpSwap => Some(AtomicOp::Write),
        Test::UcpCswap => Some(AtomicOp::CompareSwap),
        _ => None,
    }
}

pub fn word(spec: &Spec) -> Datatype {
    match spec.size() {
        1 => Datatype::Uint8,
        2 => Datatype::Uint16,
        4 => Datatype::Uint32,
        8 => Datatype::Uint64,
        _ => Datatype::Uint128,
    }
}

/// Mask of the bits that the word holds, of the lower 64.
pub fn bits(spec: &Spec) -> u64 {
    u64::MAX >> (64 - 8 * spec.size().min(8))
}

impl RmaTest<'_> {
    pub fn measure(&mut self, iters: u64) -> Result<(), Failure> {
        self.target.write(0, &[0; 16]);
        self.barrier()?;
        self.counter.start();
        match (self.spec.test, self.side) {
            (Test::UcpPutLat, _) => self.put_lat(iters)?,
            (Test::UcpPutBw, _) if self.validates() => self.put_checked(iters)?,
            (Test::UcpGet, _) => self.get(iters)?,
            (_, Side::Server) => {}
            (Test::UcpPutBw, _) => self.put_bw(iters)?,
            _ => self.atomics(iters)?,
        }
        self.barrier()?;
        if operation(self.spec.test).is_some() && self.side.is_passive() && self.validates() {
            let word = self.target.word(0) & bits(self.spec);
            if word != iters & bits(self.spec) {
                return Err(Failure::Validation(format!("the word is {word} after {iters} operations")));
            }
        }
        self.barrier()
    }

    fn validates(&self) -> bool {
        self.spec.validate == Validate::Yes
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        match self.spec.passive {
            // `-o`: no progress until the other side has finished.
            Passive::Idle if !self.side.is_active() => self.wait.barrier_idle(),
            _ if !self.side.is_active() => self.wait.busy_barrier(&self.worker),
            _ => self.wait.barrier(&self.worker),
        }
    }

    fn buffers(&self, slots: usize) -> Result<WindowBuffers, Failure> {
        let sharing = if self.validates() { Sharing::PerSlot } else { Sharing::Shared };
        let mut buffers =
            WindowBuffers::new(&self.worker, slots, self.spec.size(), sharing, self.spec.memory)?;
        (0..slots).for_each(|slot| payload::fill(buffers.bytes(slot), 0));
        if self.spec.layout == Some(Layout::Iov) && self.spec.pieces.len() > 1 {
            buffers.split_into(&self.spec.pieces);
        }
        Ok(buffers)
    }

    /// Half a round trip: each side puts when the last byte of the other's put is in its memory.
    fn put_lat(&mut self, iters: u64) -> Result<(), Failure> {
        let (size, first) = (self.spec.size(), self.side != Side::Server);
        let mut out = self.buffers(1)?;
        let mut got = zeros(size)?;
        self.target.write(0, &got);
        self.barrier()?;
        self.counter.start();
        for seq in 0..iters {
            // Differs from the previous put's.
            let flag = (seq % 255) as u8 + 1;
            out.wait(0, &mut self.wait)?;
            let bytes = out.bytes(0);
            if self.spec.validate == Validate::Yes {
                payload::fill(bytes, seq + 1);
            }
            if size < payload::SEQ_LEN || self.spec.validate == Validate::No {
                bytes[size - 1] = flag;
            }
            let last = bytes[size - 1];
            if first {
                out.put(0, self.ep, self.remote.addr, &self.remote.rkey)?;
                self.counter.tick();
            }
            let (target, tail) = (&self.target, &mut got[size - 1..]);
            self.wait.until(&self.worker, || {
                target.read(size - 1, tail);
                tail[0] == last
            })?;
            if self.validates() {
                self.wait_for_whole(&mut got, seq + 1)?;
            }
            if !first {
                out.put(0, self.ep, self.remote.addr, &self.remote.rkey)?;
                self.counter.tick();
            }
        }
        out.drain(&mut self.wait)?;
        self.end()
    }

    /// An unordered network may bring the last byte first. If the rest never comes, the wait times out.
    fn wait_for_whole(&mut self, got: &mut [u8], seq: u64) -> Result<(), Failure> {
        let size = got.len();
        if size < payload::SEQ_LEN {
            return Ok(());
        }
        loop {
            self.target.read(0, got);
            if payload::check(got, seq, size).is_ok() {
                return Ok(());
            }
            self.wait.progress(&self.worker)?;
        }
    }

    fn put_bw(&mut self, iters: u64) -> Result<(), Failure> {
        let window = self.spec.window as usize;
        let mut out = self.buffers(window)?;
        self.counter.start();
        let mut slot = 0;
        for _ in 0..iters {
            out.wait(slot, &mut self.wait)?;
            out.put(slot, self.ep, self.remote.addr, &self.remote.rkey)?;
            slot = if slot + 1 == window { 0 } else { slot + 1 };
            self.counter.tick_stream();
        }
        out.drain(&mut self.wait)?;
        self.end()
    }

    /// Rounds of puts to different places; after each round the target checks every byte.
    fn put_checked(&mut self, iters: u64) -> Result<(), Failure> {
        let (size, window) = (self.spec.size(), u64::from(self.spec.window));
        let (mut out, mut got) = (self.buffers(window as usize)?, zeros(size)?);
        let mut seq = 0;
        while seq < iters {
            let round = window.min(iters - seq);
            if self.side.is_active() {
                for i in 0..round {
                    payload::fill(out.bytes(i as usize), seq + i);
                    let to = self.remote.addr + i * size as u64;
                    out.put(i as usize, self.ep, to, &self.remote.rkey)?;
                    self.counter.tick_stream();
                }
                out.drain(&mut self.wait)?;
                self.flush()?;
            }
            self.barrier()?;
            if self.side.is_passive() {
                for i in 0..round {
                    self.target.read(i as usize * size, &mut got);
                    payload::check(&got, seq + i, size).map_err(Failure::Validation)?;
                }
            }
            self.barrier()?;
            seq += round;
        }
        self.counter.stop();
        Ok(())
    }

    fn get(&mut self, iters: u64) -> Result<(), Failure> {
        let size = self.spec.size();
        if self.side.is_passive() {
            let mut bytes = zeros(size)?;
            payload::fill(&mut bytes, iters);
            self.target.write(0, &bytes);
        }
        self.barrier()?;
        if !self.side.is_active() {
            return Ok(());
        }
        let window = self.spec.window as usize;
        let mut into = self.buffers(window)?;
        self.counter.start();
        let mut slot = 0;
        for seq in 0..iters + window as u64 {
            let ended = into.wait(slot, &mut self.wait)?;
            if ended.is_some() && self.validates() {
                payload::check(into.bytes(slot), iters, size).map_err(Failure::Validation)?;
                into.bytes(slot).fill(0);
            }
            if seq < iters {
                into.get(slot, self.ep, self.remote.addr, &self.remote.rkey)?;
                if window == 1 && !self.validates() {
                    into.wait(slot, &mut self.wait)?;
                }
                self.counter.tick_stream();
            }
            slot = if slot + 1 == window { 0 } else { slot + 1 };
        }
        self.counter.stop();
        Ok(())
    }

    /// One at a time where results are checked.
    fn atomics(&mut self, iters: u64) -> Result<(), Failure> {
        let fetches = self.spec.test != Test::UcpAdd;
        let window = self.spec.window as usize;
        let mut into = self.buffers(window)?;
        let Some(op) = operation(self.spec.test) else { return Ok(()) };
        self.counter.start();
        let mut slot = 0;
        for seq in 0..iters {
            into.wait(slot, &mut self.wait)?;
            // Each operation leaves the number of operations so far in the word.
            let value = if op == AtomicOp::Sum { 1 } else { seq + 1 };
            let (value, compare) = (u128::from(value).to_le_bytes(), u128::from(seq).to_le_bytes());
            let params = AtomicParams {
                op,
                ty: word(self.spec),
                count: 1,
                operand: value.as_ptr(),
                compare: compare.as_ptr(),
                result: std::ptr::null_mut(),
                sync: ucp::select::DeliveryComplete::No,
                done: None,
                mem: None,
            };
            into.atomic(slot, self.ep, self.remote.addr, &self.remote.rkey, params, fetches)?;
            if self.validates() && fetches {
                into.wait(slot, &mut self.wait)?;
                let mut old = [0; 16];
                old[..self.spec.size()].copy_from_slice(into.bytes(slot));
                let old = u128::from_le_bytes(old);
                if old != u128::from(seq & bits(self.spec)) {
                    let test = self.spec.test.name();
                    return Err(Failure::Validation(format!("{test} {seq} fetched {old} instead of {seq}")));
                }
            } else if window == 1 {
                into.wait(slot, &mut self.wait)?;
            }
            slot = if slot + 1 == window { 0 } else { slot + 1 };
            self.counter.tick_stream();
        }
        into.drain(&mut self.wait)?;
        self.end()
    }

    /// The end of what is measured, before buffers are freed.
    fn end(&mut self) -> Result<(), Failure> {
        self.flush()?;
        self.counter.stop();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let flush = self.worker.call(|_| self.ep.flush());
        while !self.worker.call(|_| flush.is_done()) {
            self.wait.progress(&self.worker)?;
        }
        flush.wait().map_err(|e| Failure::Run(format!("flush failed: {e}")))
    }
}
