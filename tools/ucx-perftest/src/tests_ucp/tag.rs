//! Tag matching: ping-pong, and a stream with a window on both sides. `--validate` checks every byte and the
//! order.

use ucp::rdm::RecvStatus;
use ucp::select::DeliveryComplete;
use ucp::{ANY_TAG, Ep, Match, SendParams, TAG_MASK_FULL};

use super::single_buffer::SingleBuffer;
use super::slot::Slot;
use super::test_worker::TestWorker;
use super::waiter::Waiter;
use super::window::{Sharing, WindowBuffers};
use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Side;
use crate::payload;
use crate::spec::{Arrival, Memory, Spec, TagMatch, Test, Validate};

const MSG: u64 = 0x6d73_6700;
/// The receiver's acknowledgement at the end of a stream.
const ACK: u64 = 0x6163_6b00;

pub fn with_tag(tag: u64, sync: DeliveryComplete) -> SendParams<'static> {
    SendParams { tag: Some(tag), sync, ..SendParams::default() }
}

/// Numbers of messages per round of a window, `iters` in all; none for an empty window.
fn window_rounds(iters: u64, window: usize) -> impl Iterator<Item = usize> {
    let round = window as u64;
    let whole = iters.checked_div(round).unwrap_or(0);
    // Smaller than a window.
    let rest = iters.checked_rem(round).unwrap_or(0) as usize;
    (0..whole).map(move |_| window).chain((rest > 0).then_some(rest))
}

pub struct TagTest<'a> {
    pub spec: &'a Spec,
    pub side: Side,
    pub worker: TestWorker,
    pub ep: &'a Ep,
    pub wait: Waiter<'a>,
    pub counter: IterationCounter<'a>,
    pub buffers: Option<TagBuffers>,
}

/// Empty where a side does not send or receive.
pub struct TagBuffers {
    sends: WindowBuffers,
    recvs: WindowBuffers,
}

impl TagTest<'_> {
    pub fn measure(&mut self, iters: u64) -> Result<(), Failure> {
        let mut buffers = match self.buffers.take() {
            Some(buffers) => buffers,
            None => self.buffers()?,
        };
        self.pass(&mut buffers, iters)?;
        self.buffers = Some(buffers);
        Ok(())
    }

    fn buffers(&self) -> Result<TagBuffers, Failure> {
        let window = self.spec.window as usize;
        let (sends, recvs) = match (self.spec.test, self.side) {
            (Test::TagLat | Test::TagSyncLat, _) => (1, 1),
            (_, Side::Client) => (window, 0),
            (_, Side::Server) => (0, window),
            (_, Side::Both) => (window, window),
        };
        Ok(TagBuffers { sends: self.send_buffers(sends)?, recvs: self.recv_buffers(recvs)? })
    }

    fn pass(&mut self, TagBuffers { sends, recvs }: &mut TagBuffers, iters: u64) -> Result<(), Failure> {
        let sync = match self.spec.test {
            Test::TagSyncLat | Test::TagSyncBw => DeliveryComplete::Yes,
            _ => DeliveryComplete::No,
        };
        self.wait.barrier(&self.worker)?;
        self.counter.start();
        match (self.spec.test, self.side) {
            (Test::TagLat | Test::TagSyncLat, _) => self.ping_pong(sends, recvs, iters, sync)?,
            (_, Side::Client) => self.send_all(sends, iters, sync)?,
            (_, Side::Server) => self.receive_all(recvs, iters)?,
            (_, Side::Both) => self.send_to_self(sends, recvs, iters, sync)?,
        }
        self.counter.stop();
        Ok(())
    }

    /// Messages are only counted.
    fn is_unchecked(&self) -> bool {
        self.spec.validate == Validate::No && self.spec.arrival == Arrival::Expected
    }

    fn wanted(&self) -> Match {
        Match::tagged(MSG, if self.spec.tag_match == TagMatch::Any { ANY_TAG } else { TAG_MASK_FULL })
    }

    fn recv_buffers(&self, slots: usize) -> Result<WindowBuffers, Failure> {
        let sharing = if self.spec.validate == Validate::Yes { Sharing::PerSlot } else { Sharing::Shared };
        let mut buffers = WindowBuffers::of_receiver(self.spec, &self.worker, slots, sharing)?;
        (0..slots).for_each(|slot| payload::fill(buffers.bytes(slot), 0));
        Ok(buffers)
    }

    fn send_buffers(&self, slots: usize) -> Result<WindowBuffers, Failure> {
        let sharing = if self.spec.validate == Validate::Yes { Sharing::PerSlot } else { Sharing::Shared };
        let mut buffers = WindowBuffers::of_sender(self.spec, &self.worker, slots, sharing)?;
        (0..slots).for_each(|slot| payload::fill(buffers.bytes(slot), 0));
        Ok(buffers)
    }

    #[inline(always)]
    fn number(&self, buffers: &mut WindowBuffers, slot: usize, seq: u64) {
        if self.spec.validate == Validate::Yes {
            buffers.number(slot, seq);
        }
    }

    #[inline(always)]
    fn check(
        &mut self,
        buffers: &mut WindowBuffers,
        slot: usize,
        status: Option<RecvStatus>,
        seq: u64,
    ) -> Result<(), Failure> {
        if self.spec.validate == Validate::No {
            return Ok(());
        }
        let size = self.spec.size();
        match status {
            Some(status) if status.len == size && status.tag == MSG => {}
            other => {
                return Err(Failure::Validation(format!("message {seq} of {size} bytes came as {other:?}")));
            }
        }
        payload::check(&buffers.received(slot), seq, size).map_err(Failure::Validation)?;
        // So that a message that leaves bytes unwritten is found.
        buffers.bytes(slot).fill(0xee);
        Ok(())
    }

    #[inline(always)]
    fn post(&mut self, buffers: &mut WindowBuffers, slot: usize) -> Result<(), Failure> {
        match self.spec.arrival {
            Arrival::Expected => buffers.recv(slot, self.wanted()),
            Arrival::Unexpected => buffers.probe_and_recv(slot, self.wanted(), &mut self.wait),
        }
    }

    fn ping_pong(
        &mut self,
        sends: &mut WindowBuffers,
        recvs: &mut WindowBuffers,
        iters: u64,
        sync: DeliveryComplete,
    ) -> Result<(), Failure> {
        let first = self.side != Side::Server;
        let params = with_tag(MSG, sync);
        if self.is_unchecked()
            && let (Some((sends, [to])), Some((recvs, [from]))) =
                (sends.single_buffer(), recvs.single_buffer())
        {
            return self.ping_pong_single((sends, to), (recvs, from), iters, &params);
        }
        // Read while the message travels, as `ucx_perftest` does: a sample is from send to send.
        for seq in 0..iters {
            if first {
                self.number(sends, 0, seq);
                sends.send(0, self.ep, &params)?;
                self.counter.tick();
            }
            self.post(recvs, 0)?;
            let status = recvs.wait(0, &mut self.wait)?;
            self.check(recvs, 0, status, seq)?;
            if !first {
                self.number(sends, 0, seq);
                sends.send(0, self.ep, &params)?;
                self.counter.tick();
            }
            sends.wait(0, &mut self.wait)?;
        }
        Ok(())
    }

    /// Ping-pong of messages that are only counted.
    fn ping_pong_single(
        &mut self,
        (sends, to): (SingleBuffer<'_>, &mut Slot),
        (recvs, from): (SingleBuffer<'_>, &mut Slot),
        iters: u64,
        params: &SendParams,
    ) -> Result<(), Failure> {
        let (first, matching) = (self.side != Side::Server, self.wanted());
        for _ in 0..iters {
            if first {
                sends.send(to, self.ep, params)?;
                self.counter.tick();
            }
            recvs.recv(from, matching)?;
            recvs.wait(from, &mut self.wait)?;
            if !first {
                sends.send(to, self.ep, params)?;
                self.counter.tick();
            }
            sends.wait(to, &mut self.wait)?;
        }
        Ok(())
    }

    fn send_all(
        &mut self,
        sends: &mut WindowBuffers,
        iters: u64,
        sync: DeliveryComplete,
    ) -> Result<(), Failure> {
        let window = self.spec.window as usize;
        let mut ack = WindowBuffers::new(&self.worker, 1, 8, Sharing::PerSlot, Memory::Plain)?;
        ack.recv(0, Match::tagged(ACK, TAG_MASK_FULL))?;
        let (params, mut slot) = (with_tag(MSG, sync), 0);
        match sends.single_buffer() {
            Some((sends, slots)) if self.is_unchecked() => {
                self.send_all_single(&sends, slots, iters, &params)?
            }
            _ => {
                for seq in 0..iters {
                    sends.wait(slot, &mut self.wait)?;
                    self.number(sends, slot, seq);
                    sends.send(slot, self.ep, &params)?;
                    slot = if slot + 1 == window { 0 } else { slot + 1 };
                    self.counter.tick_stream();
                }
            }
        }
        sends.drain(&mut self.wait)?;
        // The rate counts received messages, not sent ones.
        ack.wait(0, &mut self.wait).map(drop)
    }

    fn send_all_single(
        &mut self,
        sends: &SingleBuffer<'_>,
        slots: &mut [Slot],
        iters: u64,
        params: &SendParams,
    ) -> Result<(), Failure> {
        for count in window_rounds(iters, slots.len()) {
            for slot in &mut slots[..count] {
                sends.wait(slot, &mut self.wait)?;
                sends.send(slot, self.ep, params)?;
                self.counter.tick_stream();
            }
        }
        Ok(())
    }

    fn receive_all(&mut self, recvs: &mut WindowBuffers, iters: u64) -> Result<(), Failure> {
        let mut ack = WindowBuffers::new(&self.worker, 1, 8, Sharing::PerSlot, Memory::Plain)?;
        match recvs.single_buffer() {
            Some((recvs, slots)) if self.is_unchecked() => self.receive_all_single(&recvs, slots, iters)?,
            _ => self.receive_each(recvs, iters)?,
        }
        ack.send(0, self.ep, &with_tag(ACK, DeliveryComplete::No))?;
        ack.drain(&mut self.wait)
    }

    fn receive_all_single(
        &mut self,
        recvs: &SingleBuffer<'_>,
        slots: &mut [Slot],
        iters: u64,
    ) -> Result<(), Failure> {
        let matching = self.wanted();
        let ahead = slots.len().min(usize::try_from(iters).unwrap_or(usize::MAX));
        for slot in &mut slots[..ahead] {
            recvs.recv(slot, matching)?;
        }
        let again = iters - ahead as u64;
        for count in window_rounds(again, slots.len()) {
            for slot in &mut slots[..count] {
                recvs.wait(slot, &mut self.wait)?;
                recvs.recv(slot, matching)?;
                self.counter.tick_stream();
            }
        }
        // The oldest receive is where the last round ended.
        slots.rotate_left((again % slots.len() as u64) as usize);
        for slot in &mut slots[..ahead] {
            recvs.wait(slot, &mut self.wait)?;
            self.counter.tick_stream();
        }
        Ok(())
    }

    fn receive_each(&mut self, recvs: &mut WindowBuffers, iters: u64) -> Result<(), Failure> {
        let window = self.spec.window as usize;
        if self.spec.arrival == Arrival::Expected {
            for slot in 0..window.min(usize::try_from(iters).unwrap_or(usize::MAX)) {
                self.post(recvs, slot)?;
            }
        }
        let mut slot = 0;
        for seq in 0..iters {
            if self.spec.arrival == Arrival::Unexpected {
                self.post(recvs, slot)?;
            }
            let status = recvs.wait(slot, &mut self.wait)?;
            self.check(recvs, slot, status, seq)?;
            if self.spec.arrival == Arrival::Expected && seq + (window as u64) < iters {
                self.post(recvs, slot)?;
            }
            slot = if slot + 1 == window { 0 } else { slot + 1 };
            self.counter.tick_stream();
        }
        Ok(())
    }

    fn send_to_self(
        &mut self,
        sends: &mut WindowBuffers,
        recvs: &mut WindowBuffers,
        iters: u64,
        sync: DeliveryComplete,
    ) -> Result<(), Failure> {
        let window = u64::from(self.spec.window);
        let (params, mut slot) = (with_tag(MSG, sync), 0);
        for seq in 0..iters + window {
            if seq >= window {
                let status = recvs.wait(slot, &mut self.wait)?;
                self.check(recvs, slot, status, seq - window)?;
                sends.wait(slot, &mut self.wait)?;
            }
            if seq < iters {
                self.number(sends, slot, seq);
                if self.spec.arrival == Arrival::Expected {
                    self.post(recvs, slot)?;
                }
                sends.send(slot, self.ep, &params)?;
                if self.spec.arrival == Arrival::Unexpected {
                    self.post(recvs, slot)?;
                }
                self.counter.tick_stream();
            }
            slot = if slot + 1 == sends.len() { 0 } else { slot + 1 };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::window_rounds;

    #[test]
    fn rounds_add_up_to_all_messages() {
        for (iters, window) in [(0, 32), (1, 32), (31, 32), (32, 32), (33, 32), (1000, 7), (5, 1)] {
            let all: Vec<usize> = window_rounds(iters, window).collect();
            assert_eq!(all.iter().sum::<usize>() as u64, iters);
            assert!(all.iter().rev().skip(1).all(|n| *n == window));
        }
        assert_eq!(window_rounds(9, 0).count(), 0);
    }
}
