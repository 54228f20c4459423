//! The measured loops, one for each test of `perf/fabric/bench.c`.

use ucp::select::DeliveryComplete;
use ucp::{
    Access, AtomicOp, AtomicParams, Datatype, Ep, Mem, OpStatus, Rkey, RmaParams, SendRequest, TAG_MASK_FULL,
    Worker,
};

pub const MSG: u64 = 0x6d73_6700;
/// The receiver's acknowledgement, and the end of one-sided tests.
const ACK: u64 = 0x6163_6b00;
/// As in `bench.c`; a quarter for long operations.
const WINDOW: usize = 64;

pub use perf::second_process::Failure;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Test {
    TagLat,
    TagBw,
    PutLat,
    PutBw,
    GetLat,
    GetBw,
    Fadd,
}

impl Test {
    pub fn parse(name: &str) -> Option<Test> {
        Some(match name {
            "tag_lat" => Test::TagLat,
            "tag_bw" => Test::TagBw,
            "put_lat" => Test::PutLat,
            "put_bw" => Test::PutBw,
            "get_lat" => Test::GetLat,
            "get_bw" => Test::GetBw,
            "fadd" => Test::Fadd,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Starts every exchange, and measures.
    First,
    Second,
}

pub struct Remote {
    pub rkey: Rkey,
    pub addr: u64,
}

pub struct Runner {
    pub test: Test,
    pub size: usize,
    pub side: Side,
    pub worker: Worker,
    pub ep: Ep,
    pub remote: Remote,
    out: &'static [u8],
    back: Vec<u8>,
}

fn window(size: usize) -> usize {
    if size < 65536 { WINDOW } else { WINDOW / 4 }
}

/// Memory that the peer may access: the program's own, as in `bench.c`.
pub fn map_target(worker: &Worker, size: usize) -> Result<Mem, Failure> {
    let buf: &'static mut [u8] = vec![1; window(size) * size.max(8)].leak();
    // SAFETY: nobody else has a reference to this memory, which is never freed.
    Ok(unsafe { worker.mem_map(buf.as_mut_ptr(), buf.len(), Access::all()) }?)
}

impl Runner {
    pub fn new(test: Test, size: usize, side: Side, worker: Worker, ep: Ep, remote: Remote) -> Runner {
        // Initialised, as in `bench.c`.
        let (out, back) = (vec![1; size.max(8)].leak(), vec![1; size.max(8) * window(size)]);
        Runner { test, size, side, worker, ep, remote, out, back }
    }

    pub fn pass(&mut self, iters: usize) -> Result<(), Failure> {
        match (self.test, self.side) {
            (Test::TagLat, _) => self.ping_pong(iters),
            (Test::TagBw, Side::First) => self.send_all(iters),
            (Test::TagBw, Side::Second) => self.receive_all(iters),
            (_, Side::Second) => {
                // Waiting makes progress, which is all that the target does.
                self.worker.tag_recv_blocking(ACK, TAG_MASK_FULL, &mut [])?;
                Ok(())
            }
            _ => {
                self.one_sided(iters)?;
                Ok(self.ep.tag_send_blocking(ACK, &[])?)
            }
        }
    }

    /// One-sided operations of a pass.
    pub fn one_sided(&mut self, iters: usize) -> Result<(), Failure> {
        let depth = window(self.size);
        match self.test {
            Test::TagLat | Test::TagBw => Ok(()),
            Test::PutLat => self.put_each(iters),
            Test::PutBw => self.put_windows(iters, depth),
            Test::GetLat => self.get_each(iters),
            Test::GetBw => self.get_windows(iters, depth),
            Test::Fadd => self.add_each(iters),
        }
    }

    fn ping_pong(&mut self, iters: usize) -> Result<(), Failure> {
        let (out, back) = (&self.out[..self.size], &mut self.back[..self.size]);
        for _ in 0..iters {
            if self.side == Side::First {
                self.ep.tag_send_blocking(MSG, out)?;
            }
            self.worker.tag_recv_blocking(MSG, TAG_MASK_FULL, back)?;
            if self.side == Side::Second {
                self.ep.tag_send_blocking(MSG, out)?;
            }
        }
        Ok(())
    }

    fn send_all(&mut self, iters: usize) -> Result<(), Failure> {
        let out = &self.out[..self.size];
        for n in windows(iters, window(self.size)) {
            self.worker.scope(|s| {
                let sends: Vec<_> = (0..n).map(|_| s.tag_send(&self.ep, MSG, out)).collect();
                sends.into_iter().try_for_each(|send| send.wait())
            })?;
            self.worker.tag_recv_blocking(ACK, TAG_MASK_FULL, &mut [])?;
        }
        Ok(())
    }

    fn receive_all(&mut self, iters: usize) -> Result<(), Failure> {
        for n in windows(iters, window(self.size)) {
            self.worker.scope(|s| {
                let buffers = self.back.chunks_mut(self.size.max(1)).take(n);
                let recvs: Vec<_> = buffers.map(|buf| s.tag_recv(MSG, TAG_MASK_FULL, buf)).collect();
                recvs.into_iter().try_for_each(|recv| recv.wait().map(drop))
            })?;
            self.ep.tag_send_blocking(ACK, &[])?;
        }
        Ok(())
    }

    /// A put that ends when the data are in the target's memory.
    fn put(&self, slot: usize) -> SendRequest<&'static [u8]> {
        let params = RmaParams { sync: DeliveryComplete::Yes, ..RmaParams::default() };
        let at = self.remote.addr + (slot * self.size) as u64;
        self.ep.put_with(&self.out[..self.size], at, &self.remote.rkey, &params)
    }

    fn put_each(&mut self, iters: usize) -> Result<(), Failure> {
        (0..iters).try_for_each(|_| Ok(self.put(0).wait().0?))
    }

    fn put_windows(&mut self, iters: usize, depth: usize) -> Result<(), Failure> {
        for n in windows(iters, depth) {
            let puts: Vec<_> = (0..n).map(|slot| self.put(slot)).collect();
            puts.into_iter().try_for_each(|put| put.wait().0)?;
        }
        Ok(())
    }

    fn get_each(&mut self, iters: usize) -> Result<(), Failure> {
        let Remote { addr, rkey } = &self.remote;
        (0..iters).try_for_each(|_| Ok(self.ep.get_blocking(&mut self.back[..self.size], *addr, rkey)?))
    }

    fn get_windows(&mut self, iters: usize, depth: usize) -> Result<(), Failure> {
        let Remote { addr, rkey } = &self.remote;
        for n in windows(iters, depth) {
            self.worker.scope(|s| {
                let buffers = self.back.chunks_mut(self.size).take(n).enumerate();
                let gets: Vec<_> = buffers
                    .map(|(slot, buf)| s.get(&self.ep, buf, addr + (slot * self.size) as u64, rkey))
                    .collect();
                gets.into_iter().try_for_each(|get| get.wait().map(drop))
            })?;
        }
        Ok(())
    }

    fn add_each(&mut self, iters: usize) -> Result<(), Failure> {
        let params = AtomicParams {
            op: AtomicOp::Sum,
            ty: Datatype::Uint64,
            count: self.size / 8,
            operand: self.out.as_ptr(),
            compare: std::ptr::null(),
            result: self.back.as_mut_ptr(),
            sync: DeliveryComplete::No,
            done: None,
            mem: None,
        };
        for _ in 0..iters {
            // SAFETY: operand and result have `size` bytes, and stay until the end of the operation, which is
            // waited for.
            let started = unsafe { self.ep.atomic_raw(self.remote.addr, &self.remote.rkey, &params) }?;
            if let OpStatus::InProgress(id) = started {
                self.worker.wait_for(id)?;
            }
        }
        Ok(())
    }
}

/// `iters` in portions of at most `depth`.
fn windows(iters: usize, depth: usize) -> impl Iterator<Item = usize> {
    (0..iters).step_by(depth).map(move |done| (iters - done).min(depth))
}
