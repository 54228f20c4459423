//! What the matrix has: protocols, kinds of message, directions, first contact or not, networks; and the sizes at and
//! around each switch point of whoever sends. Pure data; read by `run` and `report`.

use super::end::Player;

/// MTU of the software device unless told otherwise, bytes.
pub const MTU: usize = 8928;
/// Largest MEDIUM message of either end, bytes.
const MEDIUM_MAX: usize = 65536;

/// A subprotocol for messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Protocol {
    /// One packet.
    Eager,
    /// Several packets at once.
    Medium,
    /// Data in windows that the receiver opens.
    LongCts,
}

/// Whether the sender asked for delivery to be confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Delivery {
    /// It did not.
    Plain,
    /// It did: delivery complete.
    Complete,
}

/// Tagged or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// MSG packets.
    Untagged,
    /// TAG packets.
    Tagged,
}

/// What the two ends know of each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Contact {
    /// Each message is the first packet ever between two new endpoints.
    First,
    /// HANDSHAKEs have been exchanged.
    After,
}

/// How the network behaves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Net {
    /// Order is kept.
    Ordered,
    /// One packet in five is held back and overtaken.
    Reordered,
    /// One send in twenty finds the receiver not ready.
    Rnr,
}

impl Net {
    /// All of them.
    pub const ALL: [Net; 3] = [Net::Ordered, Net::Reordered, Net::Rnr];

    /// In the table.
    pub fn name(self) -> &'static str {
        match self {
            Net::Ordered => "ordered",
            Net::Reordered => "reordered",
            Net::Rnr => "RNR",
        }
    }

    /// Settings of the device at both ends.
    pub fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Net::Ordered => &[],
            Net::Reordered => &[("SOFTEFA_REORDER", "0.2")],
            Net::Rnr => &[("SOFTEFA_RNR", "0.05")],
        }
    }
}

/// What is sent in a cell, a row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct What {
    /// Subprotocol.
    pub protocol: Protocol,
    /// Confirmed or not.
    pub delivery: Delivery,
    /// Tagged or not.
    pub kind: Kind,
}

/// One cell of the matrix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cell {
    /// What is sent.
    pub what: What,
    /// By whom; the other end receives.
    pub sender: Player,
    /// First contact or not.
    pub contact: Contact,
    /// Over what network.
    pub net: Net,
}

impl What {
    /// Every row.
    pub fn all() -> Vec<What> {
        let mut all = Vec::new();
        for protocol in [Protocol::Eager, Protocol::Medium, Protocol::LongCts] {
            for delivery in [Delivery::Plain, Delivery::Complete] {
                for kind in [Kind::Untagged, Kind::Tagged] {
                    all.push(What { protocol, delivery, kind });
                }
            }
        }
        all
    }

    /// Name of the packet with which such a message begins, as `efa-dump` has it.
    pub fn packet(self) -> String {
        let dc = if self.delivery == Delivery::Complete { "DC_" } else { "" };
        let name = match self.protocol {
            Protocol::Eager => "EAGER",
            Protocol::Medium => "MEDIUM",
            Protocol::LongCts => "LONGCTS",
        };
        let kind = if self.kind == Kind::Tagged { "TAG" } else { "MSG" };
        format!("{dc}{name}_{kind}RTM")
    }
}

impl Cell {
    /// The largest message that `sender` sends in one packet (RDM v4 5.2 of the wire facts).
    pub fn eager_max(&self) -> usize {
        let fixed = match (self.what.delivery, self.what.kind) {
            (Delivery::Plain, Kind::Untagged) => 8,
            (Delivery::Plain, Kind::Tagged) | (Delivery::Complete, Kind::Untagged) => 16,
            (Delivery::Complete, Kind::Tagged) => 24,
        };
        // Ours chooses once, for the longest header. libfabric asks for a handshake before delivery complete.
        let raw_address = self.sender == Player::Ours
            || (self.contact == Contact::First && self.what.delivery == Delivery::Plain);
        MTU - fixed - if raw_address { 40 } else { 4 }
    }

    /// Lengths of the messages of this cell: the protocol's ends, and some between.
    pub fn sizes(&self) -> Vec<usize> {
        let max = self.eager_max();
        match self.what.protocol {
            Protocol::Eager => vec![0, 1, 8, 4096, max - 1, max],
            Protocol::Medium => vec![max + 1, 2 * max, 30_001, MEDIUM_MAX - 1, MEDIUM_MAX],
            Protocol::LongCts => vec![MEDIUM_MAX + 1, 100_000, 1 << 20, (1 << 20) + 7],
        }
    }
}

/// `sender PACKET contact network`: what `--only` looks in.
impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let contact = if self.contact == Contact::First { "first" } else { "after" };
        write!(f, "{} {} {contact} {}", self.sender.name(), self.what.packet(), self.net.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_named_as_on_the_wire() {
        let names: Vec<String> = What::all().into_iter().map(What::packet).collect();
        assert_eq!(names.len(), 12);
        let known: Vec<String> = (0..=255).map(|ty| ucp::wire::PktType(ty).to_string()).collect();
        for name in names {
            assert!(known.contains(&name), "{name}");
        }
    }
}
