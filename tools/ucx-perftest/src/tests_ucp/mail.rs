//! Active messages and streams: ping-pong, and a stream of messages with a window. The loops are the same; how a message is
//! sent and how arrivals are counted is a [`Way`]'s. Run by `tests_ucp` on both sides.

use ucp::{Ep, Started, Worker};

use super::am::{ActiveMessages, Inbox};
use super::ring::{Buffers, Message, Ring, Waiter};
use super::stream::Bytes;
use crate::fail::Failure;
use crate::link::Side;
use crate::pattern;
use crate::pulse::Pulse;
use crate::spec::{Spec, Test, Validate};

/// How messages go.
pub trait Way {
    /// Gets ready for `count` messages; none has come.
    fn expect(&mut self, count: u64) -> Result<(), Failure>;
    /// Sends one. HOT
    ///
    /// # Safety
    /// Its bytes stay as they are until the send has ended.
    unsafe fn send(&mut self, message: Message<'_>) -> Result<Started<()>, ucp::Error>;
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
}

impl Mail<'_> {
    /// Warm-up and measurement.
    pub fn run(&mut self) -> Result<(), Failure> {
        match self.spec.test {
            Test::StreamLat | Test::StreamBw => {
                let mut way = Bytes::new(self.spec, &self.worker, self.ep)?;
                self.passes(&mut way)
            }
            _ => {
                let mut way =
                    ActiveMessages::new(self.spec, self.ep, Inbox::listen(self.spec, &self.worker)?);
                self.passes(&mut way)
            }
        }
    }

    fn passes<W: Way>(&mut self, way: &mut W) -> Result<(), Failure> {
        let mut slots = self.slots(if self.is_ping_pong() { 1 } else { self.spec.window as usize })?;
        if self.spec.warmup > 0 {
            self.pass(way, &mut slots, self.spec.warmup)?;
        }
        self.pass(way, &mut slots, self.spec.iters)
    }

    fn is_ping_pong(&self) -> bool {
        matches!(self.spec.test, Test::StreamLat | Test::UcpAmLat)
    }

    fn pass<W: Way>(&mut self, way: &mut W, slots: &mut Ring, iters: u64) -> Result<(), Failure> {
        let ping_pong = self.is_ping_pong();
        // In a stream the receiver answers once, when it has everything.
        let expected = if !ping_pong && self.side == Side::Client { 1 } else { iters };
        way.expect(expected)?;
        self.barrier()?;
        self.pulse.start();
        let window = slots.len();
        match (ping_pong, self.side) {
            (true, _) => self.ping_pong(way, slots, iters)?,
            (false, Side::Server) => {
                let mut seen = 0;
                while seen < iters {
                    let come = self.until(way, seen + 1)?;
                    (seen..come).for_each(|_| self.pulse.beat());
                    seen = come;
                }
                self.send(way, slots, 0, 0)?;
            }
            (false, _) => {
                let mut slot = 0;
                for seq in 0..iters {
                    if self.side == Side::Both {
                        // A long message goes when its receive is there, and that is posted by whoever looks.
                        self.until(way, (seq + 1).saturating_sub(window as u64))?;
                    }
                    self.send(way, slots, slot, seq)?;
                    slot = if slot + 1 == window { 0 } else { slot + 1 };
                    self.pulse.beat();
                }
                self.until(way, expected)?;
            }
        }
        slots.drain(&mut self.wait)?;
        self.barrier()
    }

    /// Buffers; runs that look at no byte have one for all.
    fn slots(&self, count: usize) -> Result<Ring, Failure> {
        let buffers = if self.spec.validate == Validate::Yes { Buffers::Each } else { Buffers::One };
        let mut ring = Ring::of_sender(self.spec, &self.worker, count, buffers)?;
        (0..count).for_each(|slot| pattern::fill(ring.bytes(slot), 0));
        Ok(ring)
    }

    fn ping_pong<W: Way>(&mut self, way: &mut W, slots: &mut Ring, iters: u64) -> Result<(), Failure> {
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
    fn send<W: Way>(&mut self, way: &mut W, slots: &mut Ring, slot: usize, seq: u64) -> Result<(), Failure> {
        slots.wait(slot, &mut self.wait)?;
        if self.spec.validate == Validate::Yes {
            slots.number(slot, seq);
        }
        // SAFETY: the ring keeps the buffer as it is until the send has ended.
        let begin = |message: Message<'_>| unsafe { way.send(message) };
        // SAFETY: a way sends on an endpoint of the ring's worker, and keeps nothing.
        unsafe { slots.send_by(slot, begin) }
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
