//! Messages that have come before their operation was started. They count as unexpected messages of the
//! worker, so that no sender fills its memory.

use std::collections::HashMap;

use crate::api::worker::handle::WeakWorker;
use crate::rdm::close_over_limit;
use crate::rdm::io::PeerId;

use super::part::{OpKey, Part};

/// Bytes of a message beside its data: its entry, and its share of the tables.
const OVERHEAD: usize = size_of::<Part>() + 2 * size_of::<(OpKey, Vec<Part>)>();

impl Part {
    /// Memory of the message while it waits, bytes.
    fn cost(&self) -> usize {
        self.data.len() + OVERHEAD
    }
}

/// The messages that wait for their operation.
#[derive(Default)]
pub(super) struct EarlyMessages {
    /// Worker whose limit counts. `None`: no limit.
    worker: Option<WeakWorker>,
    parts: HashMap<OpKey, Vec<Part>>,
}

impl EarlyMessages {
    /// Counts messages as unexpected ones of this worker.
    pub(super) fn of(worker: WeakWorker) -> EarlyMessages {
        EarlyMessages { worker: Some(worker), parts: HashMap::new() }
    }

    /// Keeps a message. Beyond the limit, first those of dead senders go whose group `is_known` does not
    /// have. Then the sender of most of what counts, or else that of the message, fails with
    /// [`Error::OverLimit`](crate::Error).
    pub(super) fn keep(&mut self, key: OpKey, part: Part, is_known: impl Fn(u64) -> bool) {
        if self.reserve(&part, is_known) {
            self.parts.entry(key).or_default().push(part);
        }
    }

    /// Whether there is room for a message. If not, its sender has failed.
    fn reserve(&mut self, part: &Part, is_known: impl Fn(u64) -> bool) -> bool {
        let Some(worker) = self.worker.as_ref().and_then(WeakWorker::upgrade) else { return true };
        let mut core = worker.core();
        let (engine, mut wire, _) = core.split();
        loop {
            if engine.pending_mut().hold_external(part.cost()) {
                return true;
            }
            let peers = engine.peers();
            let is_gone = |peer| peers.info(peer).is_none_or(|view| view.fault.is_some());
            let freed = drop_parts(&mut self.parts, |key, part| !is_known(key.group) && is_gone(part.from));
            engine.pending_mut().release_external(freed);
            if freed > 0 {
                continue;
            }
            // Or its sender, if others have what counts.
            let held = engine.pending().unexpected_bytes();
            let most = sender_of_most(&self.parts).filter(|(_, bytes)| bytes.saturating_mul(2) > held);
            let most = most.map_or(part.from, |(peer, _)| peer);
            engine.pending_mut().release_external(drop_parts(&mut self.parts, |_, part| part.from == most));
            close_over_limit(engine, &mut wire, most);
            if most == part.from {
                return false;
            }
        }
    }

    /// Takes the messages of an operation that begins.
    pub(super) fn take(&mut self, key: OpKey) -> Vec<Part> {
        let parts = self.parts.remove(&key).unwrap_or_default();
        self.release(parts.iter().map(Part::cost).sum());
        parts
    }

    /// Drops the messages of a group.
    pub(super) fn forget(&mut self, group: u64) {
        let freed = drop_parts(&mut self.parts, |key, _| key.group == group);
        self.release(freed);
    }

    fn release(&self, bytes: usize) {
        if bytes > 0
            && let Some(worker) = self.worker.as_ref().and_then(WeakWorker::upgrade)
        {
            worker.core().engine.pending_mut().release_external(bytes);
        }
    }

    #[cfg(test)]
    pub(super) fn operations(&self) -> usize {
        self.parts.len()
    }
}

impl Drop for EarlyMessages {
    fn drop(&mut self) {
        let all = self.parts.values().flatten();
        self.release(all.map(Part::cost).sum());
    }
}

/// Drops these messages. Returns their memory.
fn drop_parts(parts: &mut HashMap<OpKey, Vec<Part>>, is_dropped: impl Fn(&OpKey, &Part) -> bool) -> usize {
    let mut freed = 0;
    parts.retain(|key, parts| {
        parts.retain(|part| {
            let is_dropped = is_dropped(key, part);
            freed += if is_dropped { part.cost() } else { 0 };
            !is_dropped
        });
        !parts.is_empty()
    });
    freed
}

/// The sender of the most bytes, and their number.
fn sender_of_most(parts: &HashMap<OpKey, Vec<Part>>) -> Option<(PeerId, usize)> {
    let mut by_sender = HashMap::<u32, usize>::new();
    for part in parts.values().flatten() {
        *by_sender.entry(part.from.0).or_default() += part.cost();
    }
    by_sender
        .into_iter()
        .max_by_key(|(peer, bytes)| (*bytes, *peer))
        .map(|(peer, bytes)| (PeerId(peer), bytes))
}
