//! When an acknowledgement is due. *"schedule ack of largest in-order sequence received if not already
//! scheduled. dflt time is 50us"*, *"if a packet with seq < expected seq arrives, we send an ACK immediately,
//! as this indicates a lost ACK"* (Reliability).

use crate::hotel::Room;
use crate::recv_window::Arrival;

/// AckUrgency of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum AckUrgency {
    /// None.
    #[default]
    None,
    /// When its time has come, unless a send takes it along.
    Scheduled,
    /// At once.
    Now,
}

/// Acknowledgement owed to one peer.
#[derive(Debug)]
pub struct AckState {
    /// How urgently.
    pub need: AckUrgency,
    /// The timer of a scheduled one.
    pub room: Room,
    /// Whether a segment has arrived again since the last one.
    pub repeated: bool,
    /// Segments that the peer has sent again though they had arrived, modulo 2¹⁶.
    pub spurious: u16,
}

impl Default for AckState {
    fn default() -> Self {
        AckState { need: AckUrgency::None, room: Room::NONE, repeated: false, spurious: 0 }
    }
}

impl AckState {
    /// AckUrgency that an arrival makes, if it is more urgent than before. `again`: it was sent before.
    pub fn on_arrival(&mut self, arrival: Arrival, again: bool) -> Option<AckUrgency> {
        let need = match arrival {
            Arrival::Below => AckUrgency::Now,
            _ => AckUrgency::Scheduled,
        };
        self.repeated |= !arrival.is_new();
        // A network may repeat a datagram, too: that tells nothing.
        self.spurious = self.spurious.wrapping_add(u16::from(again && !arrival.is_new()));
        self.raise(need)
    }

    /// Raises the need; `None` if it was as urgent before.
    pub fn raise(&mut self, need: AckUrgency) -> Option<AckUrgency> {
        (need > self.need).then(|| {
            self.need = need;
            need
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduled_once_and_at_once_below() {
        let mut acks = AckState::default();
        assert_eq!(acks.on_arrival(Arrival::Next, false), Some(AckUrgency::Scheduled));
        assert_eq!(acks.on_arrival(Arrival::Early, false), None, "already scheduled");
        assert!(!acks.repeated);
        assert_eq!(acks.on_arrival(Arrival::Below, false), Some(AckUrgency::Now));
        assert!(acks.repeated && acks.spurious == 0, "the network has repeated it");
        acks.on_arrival(Arrival::Below, true);
        acks.on_arrival(Arrival::Next, true);
        assert_eq!(acks.spurious, 1, "one that was lost was not sent again for nothing");
        assert_eq!(acks.on_arrival(Arrival::Next, false), None);
    }
}
