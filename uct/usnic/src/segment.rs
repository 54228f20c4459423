//! Segments and their pool. *"segment - something we can put on the wire in a single packet"* (Nomenclature).
//! Each has memory for a datagram of its channel; acknowledgements have *"small segments with only enough
//! memory for an ACK"*. A segment goes back to the pool, memory and all, so a warm pool allocates nothing.

use crate::channel::ChannelId;
use crate::header::MAX_ACK;
use crate::hotel::Room;
use crate::seq::Seq;

/// A segment of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SegId(pub u32);

/// Sizes of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// An acknowledgement or other control.
    Ack,
    /// Up to the MTU of the priority channel.
    Priority,
    /// Up to the MTU of the data channel.
    Data,
}

/// State of a segment. *"a send segment is always in one of 4 states"* (Reliability).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegState {
    /// *"on free list, unallocated"*
    Free,
    /// *"on endpoint to-send list in the case of segment associated with small fragment"*
    ToSend,
    /// *"posted to NIC and in hotel awaiting ACK"*
    InHotel,
    /// *"on module re-send list awaiting retransmission"*
    ReSend,
    /// Acknowledged, or in need of no acknowledgement, and in the hands of the channel until its send has
    /// completed: a state that the document does not name.
    Posted,
}

/// Rule by which a segment is held for lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The timer expired.
    Timer,
    /// An acknowledgement was repeated.
    DuplicateAck,
    /// One sent later has arrived.
    Time,
}

/// End of the list of segments by the time of their sending.
pub const NIL: u32 = u32::MAX;

/// A segment.
pub struct Segment {
    /// Memory for the datagram.
    pub buf: Box<[u8]>,
    /// Bytes of the datagram.
    pub len: u32,
    /// Size of its memory.
    pub size: Size,
    /// State.
    pub state: SegState,
    /// Index of the endpoint that it goes to.
    pub endpoint: u32,
    /// Sequence number, once sent.
    pub seq: Seq,
    /// Channel that it took last.
    pub channel: ChannelId,
    /// Place in the order of that channel.
    pub place: u64,
    /// When it was last sent, ns.
    pub sent: u64,
    /// When it was sent first, ns.
    pub first_sent: u64,
    /// Whether it is of a fragment that waits in a queue, and a request of the peer asks for it.
    pub is_reply: bool,
    /// How often it was sent.
    pub tries: u32,
    /// How often its timer expired.
    pub timeouts: u32,
    /// Sends posted and not completed.
    pub posted: u32,
    /// Retransmit timer.
    pub room: Room,
    /// Segments of the endpoint in the hotel sent before and after it.
    pub older: u32,
    /// See `older`.
    pub newer: u32,
    /// Rule by which it was last held for lost.
    pub lost_by: Cause,
    /// Counts the uses of this segment: an entry of the re-send list may be of an earlier one.
    pub uses: u32,
}

/// Segments of a module.
pub struct SegmentPool {
    segments: Vec<Segment>,
    free: [Vec<u32>; 3],
    sizes: [u32; 3],
}

impl SegmentPool {
    /// Creates an empty pool for channels of these MTUs.
    pub fn new(priority: u32, data: u32) -> Self {
        let sizes = [MAX_ACK as u32, priority, data.max(priority)];
        SegmentPool { segments: Vec::new(), free: Default::default(), sizes }
    }

    /// Takes a free segment, or makes one.
    #[inline]
    pub fn alloc(&mut self, size: Size, endpoint: u32) -> SegId {
        let id = match self.free[size as usize].pop() {
            Some(id) => id,
            None => self.grow(size),
        };
        let segment = &mut self.segments[id as usize];
        segment.state = SegState::ToSend;
        segment.endpoint = endpoint;
        (segment.tries, segment.timeouts) = (0, 0);
        segment.uses = segment.uses.wrapping_add(1);
        SegId(id)
    }

    #[cold]
    fn grow(&mut self, size: Size) -> u32 {
        self.segments.push(Segment {
            buf: vec![0; self.sizes[size as usize] as usize].into_boxed_slice(),
            len: 0,
            size,
            state: SegState::Free,
            endpoint: 0,
            seq: Seq(0),
            channel: ChannelId::Data,
            place: 0,
            sent: 0,
            first_sent: 0,
            is_reply: false,
            tries: 0,
            timeouts: 0,
            posted: 0,
            room: Room::NONE,
            older: NIL,
            newer: NIL,
            lost_by: Cause::Timer,
            uses: 0,
        });
        self.segments.len() as u32 - 1
    }

    /// Gives a segment back. It is in no list and in no hands.
    #[inline]
    pub fn free(&mut self, id: SegId) {
        let segment = &mut self.segments[id.0 as usize];
        debug_assert!(segment.state != SegState::Free && segment.posted == 0 && segment.room.is_none());
        segment.state = SegState::Free;
        self.free[segment.size as usize].push(id.0);
    }

    /// Segments made so far.
    pub fn made(&self) -> usize {
        self.segments.len()
    }

    /// Segments in use.
    pub fn in_use(&self) -> usize {
        self.segments.len() - self.free.iter().map(Vec::len).sum::<usize>()
    }

    /// Every segment, for checks.
    pub fn iter(&self) -> impl Iterator<Item = (SegId, &Segment)> {
        self.segments.iter().enumerate().map(|(n, segment)| (SegId(n as u32), segment))
    }
}

impl std::ops::Index<SegId> for SegmentPool {
    type Output = Segment;

    #[inline]
    fn index(&self, id: SegId) -> &Segment {
        &self.segments[id.0 as usize]
    }
}

impl std::ops::IndexMut<SegId> for SegmentPool {
    #[inline]
    fn index_mut(&mut self, id: SegId) -> &mut Segment {
        &mut self.segments[id.0 as usize]
    }
}

/// Segments of one endpoint in the hotel, in the order of their sending on each channel.
#[derive(Clone, Copy, Debug)]
pub struct BySendTime {
    oldest: [u32; 2],
    newest: [u32; 2],
    len: u32,
}

impl Default for BySendTime {
    fn default() -> Self {
        BySendTime { oldest: [NIL; 2], newest: [NIL; 2], len: 0 }
    }
}

impl BySendTime {
    /// Segments on their way.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Segment of that channel that was sent first.
    #[inline]
    pub fn oldest(&self, channel: ChannelId) -> Option<SegId> {
        let oldest = self.oldest[channel as usize];
        (oldest != NIL).then_some(SegId(oldest))
    }

    /// Adds the segment that was sent last, on its channel.
    pub fn push(&mut self, pool: &mut SegmentPool, id: SegId) {
        let at = pool[id].channel as usize;
        let before = std::mem::replace(&mut self.newest[at], id.0);
        (pool[id].older, pool[id].newer) = (before, NIL);
        match before {
            NIL => self.oldest[at] = id.0,
            before => pool[SegId(before)].newer = id.0,
        }
        self.len += 1;
    }

    /// Removes a segment.
    pub fn remove(&mut self, pool: &mut SegmentPool, id: SegId) {
        let (at, older, newer) = (pool[id].channel as usize, pool[id].older, pool[id].newer);
        match older {
            NIL => self.oldest[at] = newer,
            older => pool[SegId(older)].newer = newer,
        }
        match newer {
            NIL => self.newest[at] = older,
            newer => pool[SegId(newer)].older = older,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_pool_makes_nothing() {
        let mut pool = SegmentPool::new(1024, 9000);
        for _ in 0..10 {
            let all = [Size::Ack, Size::Priority, Size::Data].map(|size| pool.alloc(size, 0));
            assert_eq!(all.map(|id| pool[id].buf.len()), [MAX_ACK, 1024, 9000]);
            all.into_iter().for_each(|id| pool.free(id));
        }
        assert_eq!((pool.made(), pool.in_use()), (3, 0));
    }

    #[test]
    fn list_by_send_time() {
        let mut pool = SegmentPool::new(64, 64);
        let mut list = BySendTime::default();
        let ids: Vec<SegId> = (0..3).map(|_| pool.alloc(Size::Data, 0)).collect();
        ids.iter().for_each(|id| list.push(&mut pool, *id));
        list.remove(&mut pool, ids[1]);
        list.push(&mut pool, ids[1]);
        let mut order = Vec::new();
        while let Some(id) = list.oldest(ChannelId::Data) {
            order.push(id.0);
            list.remove(&mut pool, id);
        }
        assert_eq!((order, list.len()), (vec![0, 2, 1], 0));
    }
}
