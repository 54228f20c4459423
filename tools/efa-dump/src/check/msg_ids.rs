//! Message ids of one direction: each once, the packets of one message agree, no gaps.

use std::collections::{BTreeMap, BTreeSet};

use ucp::wire::PktType;
use ucp::wire::rtm::Rtm;

use super::Finding;
use super::window::Ranges;

struct Message {
    ty: PktType,
    total: u64,
    tag: Option<u64>,
    ranges: Ranges,
}

#[derive(Default)]
pub struct MsgIds {
    seen: BTreeMap<u32, Option<Message>>,
    /// Ids of failed sends, and ids that the sender skipped.
    skipped: BTreeSet<u32>,
}

impl MsgIds {
    /// A packet that is a message of its own or begins one.
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

    pub fn skip(&mut self, id: u32) {
        self.skipped.insert(id);
    }

    pub fn has(&self, id: u32) -> bool {
        self.seen.contains_key(&id)
    }

    /// Ranges of missing ids.
    pub fn gaps(&self) -> Vec<(u32, u32)> {
        let all: BTreeSet<u32> = self.seen.keys().chain(&self.skipped).copied().collect();
        let pairs = all.iter().zip(all.iter().skip(1));
        // A gap of half the numbers is where ids wrap.
        pairs.filter(|(a, b)| (2..1 << 31).contains(&(**b - **a))).map(|(a, b)| (a + 1, b - 1)).collect()
    }
}
