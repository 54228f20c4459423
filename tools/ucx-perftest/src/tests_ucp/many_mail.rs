//! One worker and many peers: active messages and streams, from everybody to the first, or to everybody else.
//! Run by `many` on every seat of a group. How a message goes is a [`Way`]'s, one for each peer.

use super::am::{ActiveMessages, Inbox};
use super::mail::Way;
use super::many::Crowd;
use super::ring::Message;
use super::stream::Bytes;
use crate::fail::Failure;
use crate::spec::{Test, Validate};

/// Whether the ways count together what has come, or each for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Together,
    Each,
}

impl Crowd<'_> {
    /// One pass: `each` messages to every target, `from_each` of every source.
    pub fn mail(&mut self, each: u64, from_each: u64, me: usize) -> Result<(), Failure> {
        let (spec, worker) = (self.spec, self.worker.clone());
        let eps = self.eps.clone();
        if spec.test == Test::StreamBw {
            let ways = eps.iter().map(|ep| ep.as_ref().map(|ep| Bytes::new(spec, &worker, ep)).transpose());
            let mut ways = ways.collect::<Result<Vec<_>, _>>()?;
            return self.exchange(&mut ways, Counts::Each, (each, from_each), me);
        }
        let inbox = Inbox::listen(spec, &worker)?;
        let ways = eps.iter().map(|ep| ep.as_ref().map(|ep| ActiveMessages::new(spec, ep, inbox.clone())));
        let mut ways: Vec<_> = ways.collect();
        self.exchange(&mut ways, Counts::Together, (each, from_each), me)
    }

    fn exchange<W: Way>(
        &mut self,
        ways: &mut [Option<W>],
        counts: Counts,
        (each, from_each): (u64, u64),
        me: usize,
    ) -> Result<(), Failure> {
        let (seats, window) = (ways.len() as u64, self.spec.window as u64);
        let (out, inward) = (each * self.targets.len() as u64, from_each * self.sources.len() as u64);
        match counts {
            // Messages are told apart by numbers that interleave those of all seats.
            Counts::Together => match ways.iter_mut().flatten().next() {
                Some(way) => way.expect(from_each * seats)?,
                None => return Ok(()),
            },
            Counts::Each => {
                for from in &self.sources {
                    if let Some(way) = &mut ways[*from] {
                        way.expect(from_each)?;
                    }
                }
            }
        }
        let mut ring = self.ring()?;
        self.barrier()?;
        self.pulse.start();
        let (mut sent, mut received) = (0, 0);
        while sent < out || received < inward {
            let mut moved = false;
            let slot = (sent % window) as usize;
            if sent < out && ring.is_idle(slot)? {
                let (to, seq) = (
                    self.targets[(sent % self.targets.len() as u64) as usize],
                    sent / self.targets.len() as u64,
                );
                if self.spec.validate == Validate::Yes {
                    ring.number(slot, if counts == Counts::Together { seq * seats + me as u64 } else { seq });
                }
                let way = ways[to].as_mut().ok_or_else(|| Failure::Run("a seat without a way".into()))?;
                // SAFETY: the ring keeps the buffer as it is until the send has ended.
                let begin = |message: Message<'_>| unsafe { way.send(message) };
                // SAFETY: a way sends on an endpoint of the ring's worker, and keeps nothing.
                unsafe { ring.send_by(slot, begin) }?;
                sent += 1;
                self.pulse.beat();
                moved = true;
            }
            let come = come(ways, counts)?;
            if come > received {
                received = come;
                moved = true;
            }
            if !moved {
                self.progress()?;
            }
        }
        for slot in 0..ring.len() {
            while !ring.is_idle(slot)? {
                self.progress()?;
            }
        }
        Ok(())
    }
}

/// How many messages have come, of all. HOT
#[inline(always)]
fn come<W: Way>(ways: &mut [Option<W>], counts: Counts) -> Result<u64, Failure> {
    let mut ways = ways.iter_mut().flatten();
    match counts {
        Counts::Together => ways.next().map_or(Ok(0), Way::come),
        Counts::Each => ways.try_fold(0, |sum, way| Ok(sum + way.come()?)),
    }
}
