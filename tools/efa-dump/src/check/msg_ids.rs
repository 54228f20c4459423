//! The msg_ids of one direction: each once, packets of one message agreeing, no holes. Used by `talk`.

use std::collections::{BTreeMap, BTreeSet};

use ucp::wire::PktType;
use ucp::wire::rtm::Rtm;

use super::Finding;
use super::window::Ranges;

/// A message whose packets are several.
struct Message {
    ty: PktType,
    total: u64,
    tag: Option<u64>,
    ranges: Ranges,
}

/// All ids seen.
#[derive(Default)]
pub struct MsgIds {
    seen: BTreeMap<u32, Option<Message>>,
    /// MsgIds that were tried, or that the sender said to step over.
    skipped: BTreeSet<u32>,
}

impl MsgIds {
    /// A packet that is a message of its own, or opens one.
    pub fn single(&mut self, id: u32, found: &mut Vec<Finding>) {
        if self.seen.insert(id, None).is_some() {
            found.push(Finding::Duplicate(id));
        }
    }

    /// One of several packets of a message: a MEDIUM or RUNTREAD with its bytes at `offset`.
    pub fn part(&mut self, rtm: &Rtm<'_>, offset: u64, found: &mut Vec<Finding>) {
        let id = rtm.msg_id;
        let fresh =
            || Some(Message { ty: rtm.ty, total: rtm.msg_length(), tag: rtm.tag, ranges: Ranges::default() });
        match self.seen.entry(id).or_insert_with(fresh) {
            None => found.push(Finding::Duplicate(id)),
            Some(message) if message.ty != rtm.ty => found.push(Finding::Duplicate(id)),
            Some(message) if message.total != rtm.msg_length() => {
                found.push(Finding::Disagree(id, "its length"));
            }
            Some(message) if message.tag != rtm.tag => found.push(Finding::Disagree(id, "its tag")),
            Some(message) => {
                let end = offset.saturating_add(rtm.payload.len() as u64);
                if !message.ranges.add(offset, end) {
                    found.push(Finding::Again { from: offset, to: end });
                }
            }
        }
    }

    /// An id that need not come.
    pub fn skip(&mut self, id: u32) {
        self.skipped.insert(id);
    }

    /// Whether a message of this id came.
    pub fn has(&self, id: u32) -> bool {
        self.seen.contains_key(&id)
    }

    /// Holes between the ids that came.
    pub fn gaps(&self) -> Vec<(u32, u32)> {
        let all: BTreeSet<u32> = self.seen.keys().chain(&self.skipped).copied().collect();
        let pairs = all.iter().zip(all.iter().skip(1));
        // A hole of end the numbers is where they start over.
        pairs.filter(|(a, b)| (2..1 << 31).contains(&(**b - **a))).map(|(a, b)| (a + 1, b - 1)).collect()
    }
}
