//! Active messages and streams of one worker and many peers.

use super::am::{AmIo, AmReceiver};
use super::group_test::GroupTest;
use super::message_io::MessageIo;
use super::stream::StreamIo;
use super::window::Message;
use crate::fail::Failure;
use crate::spec::{Test, Validate};

/// Whether all channels share one count of arrivals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Together,
    Each,
}

impl GroupTest<'_> {
    /// One pass: `each` messages to every target, `from_each` from every source.
    pub fn messages(&mut self, each: u64, from_each: u64, me: usize) -> Result<(), Failure> {
        let (spec, worker) = (self.spec, self.worker.clone());
        let eps = self.eps.clone();
        if spec.test == Test::StreamBw {
            let channels =
                eps.iter().map(|ep| ep.as_ref().map(|ep| StreamIo::new(spec, &worker, ep)).transpose());
            let mut channels = channels.collect::<Result<Vec<_>, _>>()?;
            return self.exchange(&mut channels, Counts::Each, (each, from_each), me);
        }
        let receiver = AmReceiver::register(spec, &worker)?;
        let channels = eps.iter().map(|ep| ep.as_ref().map(|ep| AmIo::new(spec, ep, receiver.clone())));
        let mut channels: Vec<_> = channels.collect();
        self.exchange(&mut channels, Counts::Together, (each, from_each), me)
    }

    fn exchange<W: MessageIo>(
        &mut self,
        channels: &mut [Option<W>],
        counts: Counts,
        (each, from_each): (u64, u64),
        me: usize,
    ) -> Result<(), Failure> {
        let (members, window) = (channels.len() as u64, self.spec.window as u64);
        let (out, incoming) = (each * self.targets.len() as u64, from_each * self.sources.len() as u64);
        match counts {
            // Message numbers interleave those of all members.
            Counts::Together => match channels.iter_mut().flatten().next() {
                Some(channel) => channel.expect(from_each * members)?,
                None => return Ok(()),
            },
            Counts::Each => {
                for from in &self.sources {
                    if let Some(channel) = &mut channels[*from] {
                        channel.expect(from_each)?;
                    }
                }
            }
        }
        let mut buffers = self.buffers()?;
        self.barrier()?;
        self.counter.start();
        let (mut sent, mut received) = (0, 0);
        while sent < out || received < incoming {
            let mut moved = false;
            let slot = (sent % window) as usize;
            if sent < out && buffers.is_idle(slot)? {
                let (to, seq) = (
                    self.targets[(sent % self.targets.len() as u64) as usize],
                    sent / self.targets.len() as u64,
                );
                if self.spec.validate == Validate::Yes {
                    buffers.number(
                        slot,
                        if counts == Counts::Together { seq * members + me as u64 } else { seq },
                    );
                }
                let channel =
                    channels[to].as_mut().ok_or_else(|| Failure::Run("no endpoint to that rank".into()))?;
                // SAFETY: the window leaves the buffer unchanged until the send has ended.
                let begin = |message: Message<'_>| unsafe { channel.send(message) };
                // SAFETY: a channel sends on an endpoint of the window's worker, and keeps nothing.
                unsafe { buffers.send_by(slot, begin) }?;
                sent += 1;
                self.counter.tick_stream();
                moved = true;
            }
            let now = total_received(channels, counts)?;
            if now > received {
                received = now;
                moved = true;
            }
            if !moved {
                self.progress()?;
            }
        }
        for slot in 0..buffers.len() {
            while !buffers.is_idle(slot)? {
                self.progress()?;
            }
        }
        self.counter.stop();
        Ok(())
    }
}

/// Number of messages that have arrived from all peers.
// HOT
#[inline(always)]
fn total_received<W: MessageIo>(channels: &mut [Option<W>], counts: Counts) -> Result<u64, Failure> {
    let mut channels = channels.iter_mut().flatten();
    match counts {
        Counts::Together => channels.next().map_or(Ok(0), MessageIo::received),
        Counts::Each => channels.try_fold(0, |sum, channel| Ok(sum + channel.received()?)),
    }
}
