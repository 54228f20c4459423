//! Fragments on their way out. *"fragments are either large (> MTU) or small (<= MTU)"*, *"a small fragment
//! has a segment descriptor embedded within it"*, *"a large fragment has no permanently associated segments,
//! but allocates them as needed"* (Nomenclature).

use crate::header::Head;
use crate::segment::SegId;
use std::collections::VecDeque;

/// A large fragment, some of whose chunks were sent.
#[derive(Clone, Copy, Debug)]
pub struct LargeFrag {
    /// Head, repeated in each chunk: whichever arrives first tells where all go.
    pub head: Head,
    /// Number. *"allocated when the first chunk the fragment is sent"* (Fragment sending).
    pub id: Option<u32>,
    /// Bytes.
    pub total: u32,
    /// Bytes sent.
    pub offset: u32,
    /// Name by which the source of the bytes knows it.
    pub token: u64,
}

/// A fragment to send.
#[derive(Clone, Copy, Debug)]
pub enum Fragment {
    /// In a segment, whose headers lack number and acknowledgement.
    Small(SegId),
    /// To be cut into chunks.
    Large(LargeFrag),
}

/// Fragments of one endpoint, tiny ones apart from the others.
#[derive(Default)]
pub struct SendQueue {
    priority: VecDeque<SegId>,
    data: VecDeque<Fragment>,
    /// Small fragments that requests of the peer ask for.
    pub replies: u32,
    next_id: u32,
}

impl SendQueue {
    /// Whether there is nothing to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.priority.is_empty() && self.data.is_empty()
    }

    /// Fragments of the data channel.
    pub fn data(&mut self) -> &mut VecDeque<Fragment> {
        &mut self.data
    }

    /// Small fragments of the priority channel.
    pub fn priority(&mut self) -> &mut VecDeque<SegId> {
        &mut self.priority
    }

    /// Small fragments of the priority channel that there are.
    pub fn tiny(&self) -> usize {
        self.priority.len()
    }

    /// Next fragment of the data channel.
    pub fn next_data(&self) -> Option<&Fragment> {
        self.data.front()
    }

    /// Next fragment of the priority channel.
    pub fn next_priority(&self) -> Option<SegId> {
        self.priority.front().copied()
    }

    /// Number of the next large fragment.
    pub fn new_id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }
}
