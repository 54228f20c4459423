//! Tagged messages of one worker and many peers. Sends and receives are polled together: a member waiting for
//! one only could deadlock with a member waiting for the other.

use ucp::select::DeliveryComplete;
use ucp::{ANY_TAG, Match, TAG_MASK_FULL};

use super::group_test::GroupTest;
use super::tag::with_tag;
use crate::fail::Failure;
use crate::payload;
use crate::spec::{TagMatch, Test, Validate};

/// Tag of measured messages; the lower half is the sender's rank.
const MSG: u64 = 0x6d73_6700_0000_0000;

impl GroupTest<'_> {
    /// One pass: `each` messages to every target, `from_each` from every source.
    pub fn tagged(&mut self, each: u64, from_each: u64, me: usize) -> Result<(), Failure> {
        let (out, incoming) = (each * self.targets.len() as u64, from_each * self.sources.len() as u64);
        let (mut sends, mut recvs) = (self.buffers()?, self.buffers()?);
        let window = self.spec.window as u64;
        let sync =
            if self.spec.test == Test::TagSyncBw { DeliveryComplete::Yes } else { DeliveryComplete::No };
        let checks = self.spec.validate == Validate::Yes;
        let any = Match::tagged(
            MSG,
            match self.spec.tag_match {
                TagMatch::Exact => TAG_MASK_FULL << 32,
                TagMatch::Any => ANY_TAG,
            },
        );
        let mut next = vec![0u64; self.eps.len()];
        self.barrier()?;
        // Receives are posted after the barrier, before the first message can arrive.
        let mut posted = 0;
        while posted < incoming.min(window) {
            recvs.recv(posted as usize, any)?;
            posted += 1;
        }
        self.counter.start();
        let (mut sent, mut received) = (0, 0);
        while sent < out || received < incoming {
            let mut moved = false;
            let slot = (sent % window) as usize;
            if sent < out && sends.is_idle(slot)? {
                let to = self.targets[(sent % self.targets.len() as u64) as usize];
                if checks {
                    payload::fill(sends.bytes(slot), sent / self.targets.len() as u64);
                }
                let ep =
                    self.eps[to].as_ref().ok_or_else(|| Failure::Run("no endpoint to that rank".into()))?;
                sends.send(slot, ep, &with_tag(MSG | me as u64, sync))?;
                sent += 1;
                self.counter.tick_stream();
                moved = true;
            }
            let slot = (received % window) as usize;
            if received < incoming
                && let Some(status) = recvs.poll(slot)?
            {
                if checks {
                    let from = (status.tag & (u64::MAX >> 32)) as usize;
                    let seq =
                        next.get_mut(from).ok_or_else(|| Failure::Validation(format!("from rank {from}")))?;
                    payload::check(recvs.bytes(slot), *seq, self.spec.size())
                        .map_err(|why| Failure::Validation(format!("from rank {from}: {why}")))?;
                    *seq += 1;
                    recvs.bytes(slot).fill(0xee);
                }
                received += 1;
                if posted < incoming {
                    recvs.recv(slot, any)?;
                    posted += 1;
                }
                moved = true;
            }
            if !moved {
                self.progress()?;
            }
        }
        for slot in 0..sends.len() {
            while !sends.is_idle(slot)? {
                self.progress()?;
            }
        }
        self.counter.stop();
        Ok(())
    }
}
