//! Puts, gets and atomics of one worker in the memory of many peers. A member with nothing left to do makes
//! progress, as others may need it.

use tools_common::boot::HexBytes;
use ucp::{AtomicOp, AtomicParams, Ep, Mem, Rkey, Worker};

use super::group_test::GroupTest;
use super::rma;
use super::window::WindowBuffers;
use crate::fail::Failure;
use crate::link::Link;
use crate::page_buffer::zeros;
use crate::payload;
use crate::spec::{Spec, Test, Validate};

pub struct GroupMemory {
    local: Mem,
    remote: Vec<Option<(u64, Rkey)>>,
}

/// Message number: the rank in the upper bits.
fn number(rank: usize, seq: u64) -> u64 {
    (rank as u64) << 40 | seq
}

/// Allocates memory and exchanges keys with all.
pub fn exchange(
    spec: &Spec,
    worker: &Worker,
    eps: &[Option<Ep>],
    link: &mut Link,
) -> Result<GroupMemory, Failure> {
    let len = spec.size().saturating_mul(eps.len()).max(64);
    let got = worker.mem_alloc(len, ucp::Access::all());
    let got =
        got.map_err(|e| Failure::Unsupported(format!("cannot get {len} bytes of memory for peers: {e}")));
    let mine = got.as_ref().map(|mem| (mem.addr(), HexBytes(mem.pack_rkey())));
    let all = link.allgather_result(mine.map_err(|e| Failure::Unsupported(e.to_string())))?;
    let unpack = |(ep, (addr, packed)): (&Option<Ep>, &(u64, HexBytes))| {
        let unpack = |ep: &Ep| ep.unpack_rkey(&packed.0).map(|rkey| (*addr, rkey));
        ep.as_ref().map(unpack).transpose().map_err(|e| Failure::Run(e.to_string()))
    };
    let remote = eps.iter().zip(&all).map(unpack).collect::<Result<_, _>>()?;
    Ok(GroupMemory { local: got?, remote })
}

impl GroupMemory {
    pub fn data_path(&self, spec: &Spec, eps: &[Option<Ep>]) -> &'static str {
        let mut both =
            eps.iter().zip(&self.remote).filter_map(|(ep, remote)| ep.as_ref().zip(remote.as_ref()));
        both.next().map_or("", |(ep, (_, rkey))| rma::data_path(spec, ep, rkey))
    }
}

impl GroupTest<'_> {
    /// One pass: `each` operations on every target.
    pub fn rma(&mut self, memory: &GroupMemory, each: u64, from_each: u64, me: usize) -> Result<(), Failure> {
        let (size, checks) = (self.spec.size(), self.spec.validate == Validate::Yes);
        let mut buffers = self.buffers()?;
        memory.local.write(0, &[0; 16]);
        self.deltas.fill(0);
        // Value of each member's word when this one last saw it.
        let mut last_seen = vec![0u64; self.deltas.len()];
        if checks && self.spec.test == Test::UcpGet {
            let mut bytes = zeros(size)?;
            payload::fill(&mut bytes, number(me, 0));
            memory.local.write(0, &bytes);
        }
        self.barrier()?;
        self.counter.start();
        let (out, window) = (each * self.targets.len() as u64, self.spec.window as u64);
        for n in 0..out {
            let (slot, seq) = ((n % window) as usize, n / self.targets.len() as u64);
            let to = self.targets[(n % self.targets.len() as u64) as usize];
            self.idle(&mut buffers, slot)?;
            let (before, after) = match self.spec.test {
                Test::UcpSwap => (0, number(me, seq) & rma::bits(self.spec)),
                Test::UcpCswap => (last_seen[to], last_seen[to].wrapping_add(1) & rma::bits(self.spec)),
                _ => (0, 1),
            };
            self.operation(memory, &mut buffers, (slot, to), (number(me, seq), before, after), me)?;
            if checks {
                self.idle(&mut buffers, slot)?;
                match self.spec.test {
                    Test::UcpSwap | Test::UcpCswap => {
                        let mut old = [0; 16];
                        old[..size].copy_from_slice(buffers.bytes(slot));
                        let old = u128::from_le_bytes(old) as u64;
                        let swaps = self.spec.test == Test::UcpSwap;
                        let change = if swaps || old == before { after.wrapping_sub(old) } else { 0 };
                        self.deltas[to] = self.deltas[to].wrapping_add(change);
                        last_seen[to] = if old == before { after } else { old };
                    }
                    // The next put goes to the same place, and the network may reorder them.
                    Test::UcpPutBw => self.flush()?,
                    Test::UcpGet => {
                        payload::check(buffers.bytes(slot), number(to, 0), size)
                            .map_err(Failure::Validation)?;
                        buffers.bytes(slot).fill(0);
                    }
                    _ => {}
                }
            }
            self.counter.tick_stream();
        }
        (0..buffers.len()).try_for_each(|slot| self.idle(&mut buffers, slot))?;
        self.flush()?;
        self.counter.stop();
        if checks {
            self.barrier()?;
            self.check_target(memory, from_each, me)?;
        }
        Ok(())
    }

    // HOT
    #[inline(always)]
    fn operation(
        &self,
        memory: &GroupMemory,
        buffers: &mut WindowBuffers,
        (slot, to): (usize, usize),
        (number, before, after): (u64, u64, u64),
        me: usize,
    ) -> Result<(), Failure> {
        let (Some(ep), Some((addr, rkey))) = (&self.eps[to], &memory.remote[to]) else {
            return Err(Failure::Run("no endpoint to that rank".into()));
        };
        match self.spec.test {
            Test::UcpPutBw => {
                if self.spec.validate == Validate::Yes {
                    payload::fill(buffers.bytes(slot), number);
                }
                buffers.put(slot, ep, addr + (me * self.spec.size()) as u64, rkey)
            }
            Test::UcpGet => buffers.get(slot, ep, *addr, rkey),
            test => {
                let (before, after) = (u128::from(before).to_le_bytes(), u128::from(after).to_le_bytes());
                let params = AtomicParams {
                    op: rma::operation(test).unwrap_or(AtomicOp::Sum),
                    ty: rma::word(self.spec),
                    count: 1,
                    operand: after.as_ptr(),
                    compare: before.as_ptr(),
                    result: std::ptr::null_mut(),
                    sync: ucp::select::DeliveryComplete::No,
                    done: None,
                    mem: None,
                };
                buffers.atomic(slot, ep, *addr, rkey, params, test != Test::UcpAdd)
            }
        }
    }

    fn check_target(&mut self, memory: &GroupMemory, from_each: u64, me: usize) -> Result<(), Failure> {
        let size = self.spec.size();
        match self.spec.test {
            Test::UcpPutBw => self.sources.iter().try_for_each(|from| {
                let mut got = zeros(size)?;
                memory.local.read(from * size, &mut got);
                payload::check(&got, number(*from, from_each - 1), size)
                    .map_err(|why| Failure::Validation(format!("from rank {from}: {why}")))
            }),
            Test::UcpAdd | Test::UcpFadd => {
                let mut word = [0; 16];
                memory.local.read(0, &mut word[..size]);
                let want = (from_each * self.sources.len() as u64) & rma::bits(self.spec);
                let (word, want) = (u128::from_le_bytes(word), u128::from(want));
                let same = word == want;
                same.then_some(()).ok_or_else(|| {
                    Failure::Validation(format!("the word of rank {me} is {word} instead of {want}"))
                })
            }
            Test::UcpSwap | Test::UcpCswap => {
                let mut word = [0; 16];
                memory.local.read(0, &mut word[..size]);
                let want = self.sum_of_deltas(me)? & rma::bits(self.spec);
                let word = u128::from_le_bytes(word);
                let same = word == u128::from(want);
                same.then_some(()).ok_or_else(|| {
                    Failure::Validation(format!(
                        "the word of rank {me} is {word}, its changes sum up to {want}"
                    ))
                })
            }
            _ => Ok(()),
        }
    }

    fn idle(&mut self, buffers: &mut WindowBuffers, slot: usize) -> Result<(), Failure> {
        while !buffers.is_idle(slot)? {
            self.progress()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let flush = self.worker.call(|worker| worker.flush());
        while !self.worker.call(|_| flush.is_done()) {
            self.progress()?;
        }
        flush.wait().map_err(|e| Failure::Run(format!("flush failed: {e}")))
    }
}
