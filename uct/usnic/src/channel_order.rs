//! Loss told by order, for peers with one flow. *"duplicate ACK triggers immediate retrans if one is not
//! pending for that segment"* (Reliability). An acknowledgement that repeats a number proves a loss only if
//! what caused it was sent behind the missing segment on the same channel: *"small send can jump far ahead of
//! large sends"* (Reordering). With one flow a channel is a socket, and a network keeps the order of what it
//! sends.

use crate::channel::ChannelId;

/// Order of the segments of one endpoint on each channel.
#[derive(Clone, Copy, Default, Debug)]
pub struct ChannelOrder {
    sent: [u64; 2],
    arrived: [u64; 2],
}

impl ChannelOrder {
    /// Takes a segment that is sent. Returns its place, from 1 on.
    #[inline]
    pub fn on_sent(&mut self, channel: ChannelId) -> u64 {
        let sent = &mut self.sent[channel as usize];
        *sent += 1;
        *sent
    }

    /// Takes the arrival of a segment that was sent once: of another one it is not known which sending has
    /// arrived.
    #[inline]
    pub fn on_arrived(&mut self, channel: ChannelId, place: u64) {
        let arrived = &mut self.arrived[channel as usize];
        *arrived = place.max(*arrived);
    }

    /// Whether a segment sent behind this one has arrived before it.
    #[inline]
    pub fn is_overtaken(&self, channel: ChannelId, place: u64) -> bool {
        place < self.arrived[channel as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_overtake_each_other() {
        let mut order = ChannelOrder::default();
        let data: Vec<u64> = (0..3).map(|_| order.on_sent(ChannelId::Data)).collect();
        let tiny = order.on_sent(ChannelId::Priority);
        assert_eq!((&data[..], tiny), (&[1, 2, 3][..], 1));
        order.on_arrived(ChannelId::Priority, tiny);
        assert!(!order.is_overtaken(ChannelId::Data, 1), "by the other channel");
        order.on_arrived(ChannelId::Data, 2);
        order.on_arrived(ChannelId::Data, 1);
        let overtaken: Vec<bool> =
            data.iter().map(|place| order.is_overtaken(ChannelId::Data, *place)).collect();
        assert_eq!(overtaken, [true, false, false]);
    }
}
