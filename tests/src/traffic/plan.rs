//! The plan of a run: messages and receives, drawn from a seed in blocks. Both processes draw the same plan.
//! By construction exactly one message may match each receive, whatever the timing.
//!
//! Messages of one direction are numbered in the order of sending. A receiver posts the receives of a block
//! in the block's order, and blocks in order. Matching is then determined, though it races with arrival:
//!
//! * In a block of *streams*, a message belongs to a stream (the tag's top byte). Receives name the whole
//!   tag, or only the stream; those that name the whole tag are posted first, in any order. So a receive for
//!   a stream gets the oldest message left in it.
//! * In a block of *any*, all receives take any tag: they get the messages in the order sent.
//! * Earlier blocks are posted and sent earlier, so blocks do not mix.

use crate::rng::Rng;
use crate::sizes::Sizes;
use std::ops::Range;

/// Messages in a block; the last one of a run may be shorter.
pub const BLOCK: u64 = 64;
const STREAMS: u64 = 8;
const STREAM_SHIFT: u32 = 56;
const STREAM_MASK: u64 = u64::MAX << STREAM_SHIFT;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompleteOn {
    Sent,
    Received,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Sequence number in its direction.
    pub seq: u64,
    /// Stream and number.
    pub tag: u64,
    pub len: usize,
    pub complete_on: CompleteOn,
    /// Size of its receive, if too short.
    pub short: Option<usize>,
}

/// A receive, and the message that must match it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    pub tag: u64,
    pub mask: u64,
    /// Names the partner as the sender.
    pub from_partner: bool,
    /// Position of its message in the block.
    pub of: usize,
}

/// When the receives of a block are posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posting {
    Early,
    /// When the block's first message has arrived unexpected.
    Late,
    /// Late, and the first message is claimed by a probe.
    Probed,
}

#[derive(Clone, Debug, Default)]
pub struct Block {
    pub messages: Vec<Message>,
    pub receives: Vec<Receive>,
}

#[derive(Clone, Debug)]
pub struct Plan {
    seed: u64,
    direction: u64,
    total: u64,
    sizes: Sizes,
}

impl Plan {
    /// Plans `total` messages in a direction (0 or 1) of the run of `seed`.
    pub fn new(seed: u64, direction: u64, total: u64, sizes: Sizes) -> Plan {
        Plan { seed, direction, total, sizes }
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn blocks(&self) -> u64 {
        self.total.div_ceil(BLOCK)
    }

    fn numbers(&self, block: u64) -> Range<u64> {
        block * BLOCK..self.total.min((block + 1) * BLOCK)
    }

    /// Draws block number `n` into `block`; answers how it is posted.
    pub fn draw(&self, n: u64, block: &mut Block) -> Posting {
        let mut rng = Rng::new(self.seed, (n << 1) | self.direction);
        let any = rng.percent(20);
        let exact = rng.range(0, 100);
        let posting = match rng.below(100) {
            0..8 => Posting::Late,
            8..12 => Posting::Probed,
            _ => Posting::Early,
        };
        block.messages.clear();
        block.messages.extend(self.numbers(n).map(|seq| self.message(seq, &mut rng)));
        block.receives.clear();
        if any {
            block.receives.extend((0..block.messages.len()).map(|of| Receive {
                tag: 0,
                mask: 0,
                from_partner: false,
                of,
            }));
        } else {
            receives_by_stream(block, exact, &mut rng);
        }
        for receive in &mut block.receives {
            receive.from_partner = rng.percent(25);
        }
        posting
    }

    fn message(&self, seq: u64, rng: &mut Rng) -> Message {
        let len = self.sizes.draw(rng);
        let complete_on = if rng.percent(4) { CompleteOn::Received } else { CompleteOn::Sent };
        let short = (len > 0 && rng.percent(1)).then(|| rng.below(len as u64) as usize);
        Message { seq, tag: rng.below(STREAMS) << STREAM_SHIFT | seq, len, complete_on, short }
    }
}

/// Receives by whole tag in any order, then receives by stream in the order of sending.
fn receives_by_stream(block: &mut Block, exact: u64, rng: &mut Rng) {
    let Block { messages, receives } = block;
    let mut by_stream = Vec::with_capacity(messages.len());
    for (of, message) in messages.iter().enumerate() {
        let whole = Receive { tag: message.tag, mask: u64::MAX, from_partner: false, of };
        if rng.percent(exact) {
            receives.push(whole);
        } else {
            // Bits below the stream are set, as they must not count.
            by_stream.push(Receive { tag: message.tag ^ (message.seq | 1), mask: STREAM_MASK, ..whole });
        }
    }
    rng.shuffle(receives);
    receives.extend(by_stream);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::sizes::MAX;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn plan(seed: u64, total: u64) -> Plan {
        Plan::new(seed, 0, total, Sizes::new(MAX, vec![1000]))
    }

    #[test]
    fn both_sides_draw_the_same_and_directions_differ() {
        let (mut a, mut b) = (Block::default(), Block::default());
        assert_eq!(plan(5, 1000).draw(3, &mut a), plan(5, 1000).draw(3, &mut b));
        assert_eq!((&a.messages, &a.receives), (&b.messages, &b.receives));
        Plan::new(5, 1, 1000, Sizes::new(MAX, vec![1000])).draw(3, &mut b);
        assert_ne!(a.messages, b.messages);
    }

    #[test]
    fn blocks_cover_the_run_without_overlap() {
        let plan = plan(1, 150);
        let mut block = Block::default();
        let mut seqs = Vec::new();
        for n in 0..plan.blocks() {
            plan.draw(n, &mut block);
            assert_eq!(block.receives.len(), block.messages.len());
            seqs.extend(block.messages.iter().map(|m| m.seq));
        }
        assert_eq!(seqs, (0..150).collect::<Vec<_>>());
    }

    #[test]
    fn everything_is_drawn() {
        let plan = plan(2, 64 * 200);
        let mut block = Block::default();
        let mut posting = Vec::new();
        let (mut any, mut stream, mut whole, mut short, mut sync) = (0, 0, 0, 0, 0);
        for n in 0..plan.blocks() {
            posting.push(plan.draw(n, &mut block));
            any += block.receives.iter().filter(|r| r.mask == 0).count();
            stream += block.receives.iter().filter(|r| r.mask == STREAM_MASK).count();
            whole += block.receives.iter().filter(|r| r.mask == u64::MAX).count();
            short += block.messages.iter().filter(|m| m.short.is_some()).count();
            sync += block.messages.iter().filter(|m| m.complete_on == CompleteOn::Received).count();
        }
        for n in [any, stream, whole, short, sync] {
            assert!(n > 50, "{any} {stream} {whole} {short} {sync}");
        }
        for kind in [Posting::Early, Posting::Late, Posting::Probed] {
            assert!(posting.contains(&kind), "{kind:?}");
        }
    }

    proptest! {
        #[test]
        fn matching_does_not_depend_on_timing(seed in any::<u64>(), times in any::<u64>()) {
            let plan = plan(seed, 64 * 6);
            let mut receives = Vec::new();
            let mut messages = Vec::new();
            let mut block = Block::default();
            for n in 0..plan.blocks() {
                plan.draw(n, &mut block);
                receives.extend(block.receives.iter().map(|r| (*r, block.messages[r.of].tag)));
                messages.extend(block.messages.iter().map(|m| m.tag));
            }
            let mut rng = Rng::new(times, 0);
            let (mut posted, mut waiting) = (VecDeque::new(), VecDeque::new());
            let (mut receives, mut messages) = (receives.into_iter(), messages.into_iter());
            let (mut more_receives, mut more_messages) = (true, true);
            while more_receives || more_messages {
                if rng.percent(50) {
                    let Some((receive, want)) = receives.next() else { more_receives = false; continue };
                    let found = waiting.iter().position(|tag: &u64| (tag ^ receive.tag) & receive.mask == 0);
                    match found.and_then(|at| waiting.remove(at)) {
                        Some(tag) => prop_assert_eq!(tag, want),
                        None => posted.push_back((receive, want)),
                    }
                } else {
                    let Some(tag) = messages.next() else { more_messages = false; continue };
                    let found = posted.iter().position(|(r, _): &(Receive, u64)| (tag ^ r.tag) & r.mask == 0);
                    match found.and_then(|at| posted.remove(at)) {
                        Some((_, want)) => prop_assert_eq!(tag, want),
                        None => waiting.push_back(tag),
                    }
                }
            }
            prop_assert!(posted.is_empty() && waiting.is_empty());
        }
    }
}
