//! Active messages and streams: ping-pong, and a stream of messages with a window. The loops are the same; how a message is
//! sent and how arrivals are counted is a [`Way`]'s. Run by `tests_ucp` on both sides.

use ucp::{Ep, Worker};

use super::am::ActiveMessages;
use super::ring::Waiter;
use super::scattered::Scattered;
use super::stream::Bytes;
use crate::fail::Failure;
use crate::link::Side;
use crate::pattern;
use crate::pulse::Pulse;
use crate::spec::{Spec, Test, Validate};

/// A send or receive under way that owns its buffer.
pub trait Running {
    /// Whether it has ended.
    fn is_done(&mut self) -> bool;
    /// Its end, which has come, and its buffer.
    fn end(self) -> (Result<(), ucp::Error>, Vec<u8>);
}

/// How messages go.
pub trait Way {
    /// A send under way.
    type Sent: Running;
    /// Gets ready for `count` messages; none has come.
    fn expect(&mut self, count: u64) -> Result<(), Failure>;
    /// Sends one.
    fn send(&mut self, bytes: Vec<u8>) -> Self::Sent;
    /// How many have come since [`Way::expect`], all of them checked if they are to be. Makes no progress. HOT
    fn come(&mut self) -> Result<u64, Failure>;
}

/// Everything a test has.
pub struct Mail<'a> {
    /// What is measured.
    pub spec: &'a Spec,
    /// Which side this is.
    pub side: Side,
    /// The worker.
    pub worker: Worker,
    /// The way to the other side.
    pub ep: &'a Ep,
    /// Waits for it.
    pub wait: Waiter<'a>,
    /// Counts iterations.
    pub pulse: Pulse<'a>,
    /// Where messages come from, if not from one piece.
    pub from: Option<Scattered>,
}

/// A buffer that is here, or with the send that has it.
enum Slot<S> {
    Idle(Vec<u8>),
    Running(S),
}

impl Mail<'_> {
    /// Warm-up and measurement.
    pub fn run(&mut self) -> Result<(), Failure> {
        match self.spec.test {
            Test::StreamLat | Test::StreamBw => {
                let mut way = Bytes::new(self.spec, self.ep);
                self.passes(&mut way)
            }
            _ => {
                let mut way = ActiveMessages::new(self.spec, &self.worker, self.ep);
                self.passes(&mut way)
            }
        }
    }

    fn passes<W: Way>(&mut self, way: &mut W) -> Result<(), Failure> {
        if self.spec.warmup > 0 {
            self.pass(way, self.spec.warmup)?;
        }
        self.pass(way, self.spec.iters)
    }

    fn pass<W: Way>(&mut self, way: &mut W, iters: u64) -> Result<(), Failure> {
        let ping_pong = matches!(self.spec.test, Test::StreamLat | Test::UcpAmLat);
        // In a stream the receiver answers once, when it has everything.
        let expected = if !ping_pong && self.side == Side::Client { 1 } else { iters };
        way.expect(expected)?;
        self.barrier()?;
        self.pulse.start();
        let window = if ping_pong { 1 } else { self.spec.window as usize };
        let mut slots = self.slots::<W>(window)?;
        match (ping_pong, self.side) {
            (true, _) => self.ping_pong(way, &mut slots, iters)?,
            (false, Side::Server) => {
                let mut seen = 0;
                while seen < iters {
                    let come = self.until(way, seen + 1)?;
                    (seen..come).for_each(|_| self.pulse.beat());
                    seen = come;
                }
                self.send(way, &mut slots, 0, 0)?;
            }
            (false, _) => {
                for seq in 0..iters {
                    if self.side == Side::Both {
                        // A long message goes when its receive is there, and that is posted by whoever looks.
                        self.until(way, (seq + 1).saturating_sub(window as u64))?;
                    }
                    self.send(way, &mut slots, (seq % window as u64) as usize, seq)?;
                    self.pulse.beat();
                }
                self.until(way, expected)?;
            }
        }
        for slot in &mut slots {
            self.idle(slot)?;
        }
        self.barrier()
    }

    fn slots<W: Way>(&self, count: usize) -> Result<Vec<Slot<W::Sent>>, Failure> {
        let one = |_| {
            let mut bytes = Vec::new();
            let size = self.spec.size();
            bytes.try_reserve_exact(size).map_err(|_| {
                Failure::Cannot(format!("cannot get {size} bytes for each of {count} messages"))
            })?;
            bytes.resize(size, 0);
            pattern::fill(&mut bytes, 0);
            Ok(Slot::Idle(bytes))
        };
        (0..count).map(one).collect()
    }

    fn ping_pong<W: Way>(
        &mut self,
        way: &mut W,
        slots: &mut [Slot<W::Sent>],
        iters: u64,
    ) -> Result<(), Failure> {
        let first = self.side != Side::Server;
        for seq in 0..iters {
            if first {
                self.send(way, slots, 0, seq)?;
                self.pulse.tick();
            }
            self.until(way, seq + 1)?;
            if !first {
                self.send(way, slots, 0, seq)?;
                self.pulse.tick();
            }
        }
        Ok(())
    }

    /// HOT
    #[inline(always)]
    fn send<W: Way>(
        &mut self,
        way: &mut W,
        slots: &mut [Slot<W::Sent>],
        slot: usize,
        seq: u64,
    ) -> Result<(), Failure> {
        let slot = &mut slots[slot];
        let mut bytes = self.idle(slot)?;
        match (self.spec.validate, &mut self.from) {
            (Validate::Yes, Some(from)) => from.number(&mut bytes, seq),
            (Validate::Yes, None) => pattern::fill(&mut bytes, seq),
            (Validate::No, _) => {}
        }
        if let Some(from) = &self.from {
            from.gather(&mut bytes);
        }
        *slot = Slot::Running(way.send(bytes));
        Ok(())
    }

    /// Waits for a slot's send to end; takes its buffer. HOT
    #[inline(always)]
    fn idle<S: Running>(&mut self, slot: &mut Slot<S>) -> Result<Vec<u8>, Failure> {
        if let Slot::Running(running) = slot {
            while !running.is_done() {
                self.wait.progress(&self.worker)?;
            }
        }
        match std::mem::replace(slot, Slot::Idle(Vec::new())) {
            Slot::Idle(bytes) => Ok(bytes),
            Slot::Running(running) => {
                let (result, bytes) = running.end();
                result.map(|()| bytes).map_err(failed)
            }
        }
    }

    /// Waits until at least `count` messages have come; answers how many. HOT
    #[inline(always)]
    fn until<W: Way>(&mut self, way: &mut W, count: u64) -> Result<u64, Failure> {
        loop {
            let come = way.come()?;
            if come >= count {
                return Ok(come);
            }
            self.wait.progress(&self.worker)?;
        }
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.wait.barrier(&self.worker)
    }
}

/// The error of an operation.
pub fn failed(e: ucp::Error) -> Failure {
    Failure::Run(format!("an operation failed: {e}"))
}
