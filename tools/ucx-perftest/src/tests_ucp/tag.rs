//! Tag matching: ping-pong, and a stream with a window on both sides.
//! Run by `tests_ucp` on both sides. With `--validate` each message is checked, and so is their order.

use ucp::rdm::RecvStatus;
use ucp::select::Sync;
use ucp::{ANY_TAG, EXACT, Ep, Match, SendParams, Worker};

use super::plain::Plain;
use super::ring::{Buffers, Ring, Slot, Waiter};
use crate::fail::Failure;
use crate::link::Side;
use crate::pattern;
use crate::pulse::Pulse;
use crate::spec::{Arrival, Memory, Spec, TagMatch, Test, Validate};

/// Tag of measured messages.
const MSG: u64 = 0x6d73_6700;
/// Tag of the receiver's answer at the end of a stream.
const ACK: u64 = 0x6163_6b00;

/// A send with this tag.
pub fn tagged(tag: u64, sync: Sync) -> SendParams {
    SendParams { tag: Some(tag), sync, ..SendParams::default() }
}

/// How many messages there are in each round of a window, for `iters` of them. Of an empty window there are none.
fn rounds(iters: u64, window: usize) -> impl Iterator<Item = usize> {
    let round = window as u64;
    let whole = iters.checked_div(round).unwrap_or(0);
    // The rest of a round fits.
    let rest = iters.checked_rem(round).unwrap_or(0) as usize;
    (0..whole).map(move |_| window).chain((rest > 0).then_some(rest))
}

/// Everything a tag test has.
pub struct Tag<'a> {
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
    /// The buffers, of all passes.
    pub rings: Option<Rings>,
}

/// Buffers to send from and to receive into: none where a side does not.
pub struct Rings {
    out: Ring,
    inward: Ring,
}

impl Tag<'_> {
    /// One pass of `iters` iterations.
    pub fn measure(&mut self, iters: u64) -> Result<(), Failure> {
        let mut rings = match self.rings.take() {
            Some(rings) => rings,
            None => self.rings()?,
        };
        self.pass(&mut rings, iters)?;
        self.rings = Some(rings);
        Ok(())
    }

    fn rings(&self) -> Result<Rings, Failure> {
        let window = self.spec.window as usize;
        let (out, inward) = match (self.spec.test, self.side) {
            (Test::TagLat | Test::TagSyncLat, _) => (1, 1),
            (_, Side::Client) => (window, 0),
            (_, Side::Server) => (0, window),
            (_, Side::Both) => (window, window),
        };
        Ok(Rings { out: self.out(out)?, inward: self.ring(inward)? })
    }

    fn pass(&mut self, Rings { out, inward }: &mut Rings, iters: u64) -> Result<(), Failure> {
        let sync = match self.spec.test {
            Test::TagSyncLat | Test::TagSyncBw => Sync::Yes,
            _ => Sync::No,
        };
        self.wait.barrier(&self.worker)?;
        self.pulse.start();
        match (self.spec.test, self.side) {
            (Test::TagLat | Test::TagSyncLat, _) => self.ping_pong(out, inward, iters, sync),
            (_, Side::Client) => self.send_all(out, iters, sync),
            (_, Side::Server) => self.receive_all(inward, iters),
            (_, Side::Both) => self.send_to_self(out, inward, iters, sync),
        }
    }

    /// Nothing is asked of a message but that it comes.
    fn is_plain(&self) -> bool {
        self.spec.validate == Validate::No && self.spec.arrival == Arrival::Expected
    }

    fn wanted(&self) -> Match {
        Match::tagged(MSG, if self.spec.tag_match == TagMatch::Any { ANY_TAG } else { EXACT })
    }

    fn ring(&self, slots: usize) -> Result<Ring, Failure> {
        let buffers = if self.spec.validate == Validate::Yes { Buffers::Each } else { Buffers::One };
        let mut ring = Ring::of_receiver(self.spec, &self.worker, slots, buffers)?;
        (0..slots).for_each(|slot| pattern::fill(ring.bytes(slot), 0));
        Ok(ring)
    }

    /// Buffers to send from.
    fn out(&self, slots: usize) -> Result<Ring, Failure> {
        let buffers = if self.spec.validate == Validate::Yes { Buffers::Each } else { Buffers::One };
        let mut ring = Ring::of_sender(self.spec, &self.worker, slots, buffers)?;
        (0..slots).for_each(|slot| pattern::fill(ring.bytes(slot), 0));
        Ok(ring)
    }

    #[inline(always)]
    fn number(&self, ring: &mut Ring, slot: usize, seq: u64) {
        if self.spec.validate == Validate::Yes {
            ring.number(slot, seq);
        }
    }

    #[inline(always)]
    fn check(
        &mut self,
        ring: &mut Ring,
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
                return Err(Failure::Corrupt(format!("message {seq} of {size} bytes came as {other:?}")));
            }
        }
        pattern::check(&ring.received(slot), seq, size).map_err(Failure::Corrupt)?;
        // So that a message that leaves bytes as they were is found.
        ring.bytes(slot).fill(0xee);
        Ok(())
    }

    #[inline(always)]
    fn post(&mut self, ring: &mut Ring, slot: usize) -> Result<(), Failure> {
        match self.spec.arrival {
            Arrival::Expected => ring.recv(slot, self.wanted()),
            Arrival::Unexpected => ring.probe_and_recv(slot, self.wanted(), &mut self.wait),
        }
    }

    fn ping_pong(
        &mut self,
        out: &mut Ring,
        inward: &mut Ring,
        iters: u64,
        sync: Sync,
    ) -> Result<(), Failure> {
        let first = self.side != Side::Server;
        let params = tagged(MSG, sync);
        if self.is_plain()
            && let (Some((out, [to])), Some((inward, [from]))) = (out.plain(), inward.plain())
        {
            return self.plain_ping_pong((out, to), (inward, from), iters, &params);
        }
        // The clock is read while the message travels, as ucx_perftest does: a sample is the time from send to send.
        for seq in 0..iters {
            if first {
                self.number(out, 0, seq);
                out.send(0, self.ep, &params)?;
                self.pulse.tick();
            }
            self.post(inward, 0)?;
            let status = inward.wait(0, &mut self.wait)?;
            self.check(inward, 0, status, seq)?;
            if !first {
                self.number(out, 0, seq);
                out.send(0, self.ep, &params)?;
                self.pulse.tick();
            }
            out.wait(0, &mut self.wait)?;
        }
        Ok(())
    }

    /// The same, when nothing is asked of a message but that it comes.
    fn plain_ping_pong(
        &mut self,
        (out, to): (Plain<'_>, &mut Slot),
        (inward, from): (Plain<'_>, &mut Slot),
        iters: u64,
        params: &SendParams,
    ) -> Result<(), Failure> {
        let (first, what) = (self.side != Side::Server, self.wanted());
        for _ in 0..iters {
            if first {
                out.send(to, self.ep, params)?;
                self.pulse.tick();
            }
            inward.recv(from, what)?;
            inward.wait(from, &mut self.wait)?;
            if !first {
                out.send(to, self.ep, params)?;
                self.pulse.tick();
            }
            out.wait(to, &mut self.wait)?;
        }
        Ok(())
    }

    fn send_all(&mut self, out: &mut Ring, iters: u64, sync: Sync) -> Result<(), Failure> {
        let window = self.spec.window as usize;
        let mut ack = Ring::new(&self.worker, 1, 8, Buffers::Each, Memory::Plain)?;
        ack.recv(0, Match::tagged(ACK, EXACT))?;
        let (params, mut slot) = (tagged(MSG, sync), 0);
        match out.plain() {
            Some((out, slots)) if self.is_plain() => self.plain_send_all(&out, slots, iters, &params)?,
            _ => {
                for seq in 0..iters {
                    out.wait(slot, &mut self.wait)?;
                    self.number(out, slot, seq);
                    out.send(slot, self.ep, &params)?;
                    slot = if slot + 1 == window { 0 } else { slot + 1 };
                    self.pulse.beat();
                }
            }
        }
        out.drain(&mut self.wait)?;
        // Sent is not received: the rate counts what has been.
        ack.wait(0, &mut self.wait).map(drop)
    }

    fn plain_send_all(
        &mut self,
        out: &Plain<'_>,
        slots: &mut [Slot],
        iters: u64,
        params: &SendParams,
    ) -> Result<(), Failure> {
        for turns in rounds(iters, slots.len()) {
            for slot in &mut slots[..turns] {
                out.wait(slot, &mut self.wait)?;
                out.send(slot, self.ep, params)?;
                self.pulse.beat();
            }
        }
        Ok(())
    }

    fn receive_all(&mut self, inward: &mut Ring, iters: u64) -> Result<(), Failure> {
        let mut ack = Ring::new(&self.worker, 1, 8, Buffers::Each, Memory::Plain)?;
        match inward.plain() {
            Some((inward, slots)) if self.is_plain() => self.plain_receive_all(&inward, slots, iters)?,
            _ => self.receive_each(inward, iters)?,
        }
        ack.send(0, self.ep, &tagged(ACK, Sync::No))?;
        ack.drain(&mut self.wait)
    }

    fn plain_receive_all(
        &mut self,
        inward: &Plain<'_>,
        slots: &mut [Slot],
        iters: u64,
    ) -> Result<(), Failure> {
        let what = self.wanted();
        let ahead = slots.len().min(usize::try_from(iters).unwrap_or(usize::MAX));
        for slot in &mut slots[..ahead] {
            inward.recv(slot, what)?;
        }
        let again = iters - ahead as u64;
        for turns in rounds(again, slots.len()) {
            for slot in &mut slots[..turns] {
                inward.wait(slot, &mut self.wait)?;
                inward.recv(slot, what)?;
                self.pulse.beat();
            }
        }
        // The oldest is where the last round ended.
        slots.rotate_left((again % slots.len() as u64) as usize);
        for slot in &mut slots[..ahead] {
            inward.wait(slot, &mut self.wait)?;
            self.pulse.beat();
        }
        Ok(())
    }

    fn receive_each(&mut self, inward: &mut Ring, iters: u64) -> Result<(), Failure> {
        let window = self.spec.window as usize;
        if self.spec.arrival == Arrival::Expected {
            for slot in 0..window.min(usize::try_from(iters).unwrap_or(usize::MAX)) {
                self.post(inward, slot)?;
            }
        }
        let mut slot = 0;
        for seq in 0..iters {
            if self.spec.arrival == Arrival::Unexpected {
                self.post(inward, slot)?;
            }
            let status = inward.wait(slot, &mut self.wait)?;
            self.check(inward, slot, status, seq)?;
            if self.spec.arrival == Arrival::Expected && seq + (window as u64) < iters {
                self.post(inward, slot)?;
            }
            slot = if slot + 1 == window { 0 } else { slot + 1 };
            self.pulse.beat();
        }
        Ok(())
    }

    fn send_to_self(
        &mut self,
        out: &mut Ring,
        inward: &mut Ring,
        iters: u64,
        sync: Sync,
    ) -> Result<(), Failure> {
        let window = u64::from(self.spec.window);
        let (params, mut slot) = (tagged(MSG, sync), 0);
        for seq in 0..iters + window {
            if seq >= window {
                let status = inward.wait(slot, &mut self.wait)?;
                self.check(inward, slot, status, seq - window)?;
                out.wait(slot, &mut self.wait)?;
            }
            if seq < iters {
                self.number(out, slot, seq);
                if self.spec.arrival == Arrival::Expected {
                    self.post(inward, slot)?;
                }
                out.send(slot, self.ep, &params)?;
                if self.spec.arrival == Arrival::Unexpected {
                    self.post(inward, slot)?;
                }
                self.pulse.beat();
            }
            slot = if slot + 1 == out.len() { 0 } else { slot + 1 };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::rounds;

    #[test]
    fn rounds_are_all_of_the_messages() {
        for (iters, window) in [(0, 32), (1, 32), (31, 32), (32, 32), (33, 32), (1000, 7), (5, 1)] {
            let all: Vec<usize> = rounds(iters, window).collect();
            assert_eq!(all.iter().sum::<usize>() as u64, iters);
            assert!(all.iter().rev().skip(1).all(|n| *n == window));
        }
        assert_eq!(rounds(9, 0).count(), 0);
    }
}
