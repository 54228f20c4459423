//! The loops of active messages and streams: ping-pong, and a stream with a window. [`MessageIo`] sends and
//! counts.

use ucp::Ep;

use super::am::{AmIo, AmReceiver};
use super::message_io::MessageIo;
use super::stream::StreamIo;
use super::test_worker::TestWorker;
use super::waiter::Waiter;
use super::window::{Message, Sharing, WindowBuffers};
use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Side;
use crate::payload;
use crate::spec::{Spec, Test, Validate};

pub struct AmLoop<'a> {
    pub spec: &'a Spec,
    pub side: Side,
    pub worker: TestWorker,
    pub ep: &'a Ep,
    pub wait: Waiter<'a>,
    pub counter: IterationCounter<'a>,
}

impl AmLoop<'_> {
    pub fn run(&mut self) -> Result<(), Failure> {
        match self.spec.test {
            Test::StreamLat | Test::StreamBw => {
                let mut channel = StreamIo::new(self.spec, &self.worker, self.ep)?;
                self.passes(&mut channel)
            }
            _ => {
                let mut channel =
                    AmIo::new(self.spec, self.ep, AmReceiver::register(self.spec, &self.worker)?);
                self.passes(&mut channel)
            }
        }
    }

    fn passes<W: MessageIo>(&mut self, channel: &mut W) -> Result<(), Failure> {
        let mut slots = self.slots(if self.is_ping_pong() { 1 } else { self.spec.window as usize })?;
        if self.spec.warmup > 0 {
            self.counter.set_warm_up(true);
            self.pass(channel, &mut slots, self.spec.warmup)?;
            self.counter.set_warm_up(false);
        }
        self.pass(channel, &mut slots, self.spec.iters)
    }

    fn is_ping_pong(&self) -> bool {
        matches!(self.spec.test, Test::StreamLat | Test::UcpAmLat)
    }

    fn pass<W: MessageIo>(
        &mut self,
        channel: &mut W,
        slots: &mut WindowBuffers,
        iters: u64,
    ) -> Result<(), Failure> {
        let ping_pong = self.is_ping_pong();
        // In a stream the receiver answers once, when it has everything.
        let expected = if !ping_pong && self.side == Side::Client { 1 } else { iters };
        channel.expect(expected)?;
        self.barrier()?;
        self.counter.start();
        let window = slots.len();
        match (ping_pong, self.side) {
            (true, _) => self.ping_pong(channel, slots, iters)?,
            (false, Side::Server) => {
                let mut seen = 0;
                while seen < iters {
                    let received = self.until(channel, seen + 1)?;
                    (seen..received).for_each(|_| self.counter.tick_stream());
                    seen = received;
                }
                self.send(channel, slots, 0, 0)?;
            }
            (false, _) => {
                let mut slot = 0;
                for seq in 0..iters {
                    if self.side == Side::Both {
                        // A long message ends once its receive is posted: this side does that while it polls.
                        self.until(channel, (seq + 1).saturating_sub(window as u64))?;
                    }
                    self.send(channel, slots, slot, seq)?;
                    slot = if slot + 1 == window { 0 } else { slot + 1 };
                    self.counter.tick_stream();
                }
                self.until(channel, expected)?;
            }
        }
        slots.drain(&mut self.wait)?;
        self.counter.stop();
        self.barrier()
    }

    fn slots(&self, count: usize) -> Result<WindowBuffers, Failure> {
        let sharing = if self.spec.validate == Validate::Yes { Sharing::PerSlot } else { Sharing::Shared };
        let mut buffers = WindowBuffers::of_sender(self.spec, &self.worker, count, sharing)?;
        (0..count).for_each(|slot| payload::fill(buffers.bytes(slot), 0));
        Ok(buffers)
    }

    fn ping_pong<W: MessageIo>(
        &mut self,
        channel: &mut W,
        slots: &mut WindowBuffers,
        iters: u64,
    ) -> Result<(), Failure> {
        let first = self.side != Side::Server;
        for seq in 0..iters {
            if first {
                self.send(channel, slots, 0, seq)?;
                self.counter.tick();
            }
            self.until(channel, seq + 1)?;
            if !first {
                self.send(channel, slots, 0, seq)?;
                self.counter.tick();
            }
        }
        Ok(())
    }

    // HOT
    #[inline(always)]
    fn send<W: MessageIo>(
        &mut self,
        channel: &mut W,
        slots: &mut WindowBuffers,
        slot: usize,
        seq: u64,
    ) -> Result<(), Failure> {
        slots.wait(slot, &mut self.wait)?;
        if self.spec.validate == Validate::Yes {
            slots.number(slot, seq);
        }
        // SAFETY: the window leaves the buffer unchanged until the send has ended.
        let begin = |message: Message<'_>| unsafe { channel.send(message) };
        // SAFETY: a channel sends on an endpoint of the window's worker, and keeps nothing.
        unsafe { slots.send_by(slot, begin) }
    }

    /// Waits until at least `count` messages have arrived; returns their number.
    // HOT
    #[inline(always)]
    fn until<W: MessageIo>(&mut self, channel: &mut W, count: u64) -> Result<u64, Failure> {
        loop {
            let received = channel.received()?;
            if received >= count {
                return Ok(received);
            }
            self.wait.progress(&self.worker)?;
        }
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        self.wait.barrier(&self.worker)
    }
}
