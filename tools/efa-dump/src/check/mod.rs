//! Checks a capture for violations of the protocol. Each end's view is checked on its own: what it sent must
//! fit what it had received. Nothing is assumed about the order of the network. Packets that the device did
//! not deliver are ignored.

mod conversation;
mod finding;
mod msg_ids;
mod window;

use std::collections::HashMap;

use uct::efa::dev::soft::capture::WireOp;

use crate::record::{End, Names, Record};
use conversation::Conversation;
pub use finding::Finding;

#[derive(Default)]
pub struct Report {
    by_record: HashMap<usize, Vec<Finding>>,
    at_end: Vec<Finding>,
}

impl Report {
    /// Violations of packet number `nth`.
    pub fn of(&self, nth: usize) -> &[Finding] {
        self.by_record.get(&nth).map_or(&[], Vec::as_slice)
    }

    /// Violations that belong to no packet.
    pub fn at_end(&self) -> &[Finding] {
        &self.at_end
    }

    pub fn count(&self) -> usize {
        self.by_record.values().map(Vec::len).sum::<usize>() + self.at_end.len()
    }

    pub fn is_clean(&self) -> bool {
        self.count() == 0
    }
}

/// Checks packets in order of time.
pub fn check(records: &[Record]) -> Report {
    let names = Names::of(records);
    let mut report = Report::default();
    let mut conversations: HashMap<(End, End), Conversation> = HashMap::new();
    for (nth, record) in records.iter().enumerate() {
        if record.op != WireOp::Send {
            continue;
        }
        let mut found = Vec::new();
        match record.packet() {
            Some(Ok(packet)) => {
                conversations.entry(record.ends()).or_default().on_packet(record, &packet, &mut found);
            }
            Some(Err(reject)) => found.push(Finding::Rejected(reject.to_string())),
            None if record.len == 0 && !record.headerless => {
                found.push(Finding::Rejected("an empty message".into()))
            }
            None => {}
        }
        if !found.is_empty() {
            report.by_record.insert(nth, found);
        }
    }
    let mut conversations: Vec<_> = conversations.into_iter().collect();
    conversations.sort_by_key(|(ends, _)| *ends);
    for ((here, there), conversation) in &conversations {
        conversation.at_end(&names.name(here), &names.name(there), &mut report.at_end);
    }
    // Both ends of a capture see the same gaps.
    report.at_end.dedup();
    report
}
