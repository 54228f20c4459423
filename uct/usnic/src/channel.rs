//! The two channels. *"command queue is used for ACKs and tiny fragments. data queue is used for everything
//! else"* (Channels).

use crate::auth::mark_of;
use crate::config::ChannelConfig;
use crate::header::{Header, VERSION, is_priority};
use zerocopy::FromBytes;

/// A channel of the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChannelId {
    /// Acknowledgements, control and tiny fragments: the document's command queue.
    Priority,
    /// Everything else, and each retransmission.
    Data,
}

/// Channel that a datagram says to have taken, sealed or not; data where it says nothing. Nothing else of it
/// is checked. Its sender marks it only for a peer that takes the mark.
pub fn channel_of(datagram: &[u8]) -> ChannelId {
    let says = match Header::ref_from_prefix(datagram) {
        Ok((header, _)) if header.version == VERSION => is_priority(header),
        _ => mark_of(datagram),
    };
    if says { ChannelId::Priority } else { ChannelId::Data }
}

/// Sends of one channel.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    config: ChannelConfig,
    used: u32,
}

impl Channel {
    /// Creates a channel without sends.
    pub fn new(config: ChannelConfig) -> Self {
        Channel { config, used: 0 }
    }

    /// Whether a send may be posted.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.used < self.config.depth
    }

    /// Whether *"very few command queue send WQEs have been consumed"* (`usnic_send()`): a quarter.
    #[inline]
    pub fn is_lightly_used(&self) -> bool {
        self.used <= self.config.depth / 4
    }

    /// Takes a posted send.
    #[inline]
    pub fn on_posted(&mut self) {
        self.used += 1;
    }

    /// Takes a completed send.
    #[inline]
    pub fn on_completed(&mut self) {
        debug_assert!(self.used != 0);
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_up_to_a_quarter_of_its_depth() {
        let mut channel = Channel::new(ChannelConfig { depth: 4, mtu: 1024 });
        let seen: Vec<(bool, bool)> = (0..5)
            .map(|_| {
                let seen = (channel.is_lightly_used(), channel.has_room());
                channel.on_posted();
                seen
            })
            .collect();
        assert_eq!(seen, [(true, true), (true, true), (false, true), (false, true), (false, false)]);
        channel.on_completed();
        assert_eq!(channel.used, 4);
    }
}
