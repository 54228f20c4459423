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

/// Whether something fits one packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Length {
    /// It does.
    Short,
    /// It goes in windows that whoever receives the bytes opens.
    Long,
}

/// An atomic operation's packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Atomic {
    /// Without a result.
    Write,
    /// Without a result, confirmed.
    ConfirmedWrite,
    /// With the old value.
    Fetch,
    /// With a compare value and the old value.
    Compare,
}

/// What is done in a cell, a row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum What {
    /// Messages.
    Message(Protocol, Delivery, Kind),
    /// Writes to the other end's memory, by packets.
    Write(Length, Delivery),
    /// Reads of it, by packets.
    Read(Length),
    /// Atomic operations on it.
    Atomic(Atomic),
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
        const DELIVERIES: [Delivery; 2] = [Delivery::Plain, Delivery::Complete];
        let mut all = Vec::new();
        for protocol in [Protocol::Eager, Protocol::Medium, Protocol::LongCts] {
            for delivery in DELIVERIES {
                all.extend(
                    [Kind::Untagged, Kind::Tagged].map(|kind| What::Message(protocol, delivery, kind)),
                );
            }
        }
        for length in [Length::Short, Length::Long] {
            all.extend(DELIVERIES.map(|delivery| What::Write(length, delivery)));
        }
        all.extend([Length::Short, Length::Long].map(What::Read));
        let atomics = [Atomic::Write, Atomic::ConfirmedWrite, Atomic::Fetch, Atomic::Compare];
        all.extend(atomics.map(What::Atomic));
        all
    }

    /// Name of the packet with which each of them begins, as `efa-dump` has it.
    pub fn packet(self) -> String {
        let dc = |delivery| if delivery == Delivery::Complete { "DC_" } else { "" };
        match self {
            What::Message(protocol, delivery, kind) => {
                let name = match protocol {
                    Protocol::Eager => "EAGER",
                    Protocol::Medium => "MEDIUM",
                    Protocol::LongCts => "LONGCTS",
                };
                let kind = if kind == Kind::Tagged { "TAG" } else { "MSG" };
                format!("{}{name}_{kind}RTM", dc(delivery))
            }
            What::Write(Length::Short, delivery) => format!("{}EAGER_RTW", dc(delivery)),
            What::Write(Length::Long, delivery) => format!("{}LONGCTS_RTW", dc(delivery)),
            What::Read(Length::Short) => "SHORT_RTR".into(),
            What::Read(Length::Long) => "LONGCTS_RTR".into(),
            What::Atomic(Atomic::Write) => "WRITE_RTA".into(),
            What::Atomic(Atomic::ConfirmedWrite) => "DC_WRITE_RTA".into(),
            What::Atomic(Atomic::Fetch) => "FETCH_RTA".into(),
            What::Atomic(Atomic::Compare) => "COMPARE_RTA".into(),
        }
    }

    /// Whether its end has to be confirmed.
    pub fn delivery(self) -> Delivery {
        match self {
            What::Message(_, delivery, _) | What::Write(_, delivery) => delivery,
            What::Atomic(Atomic::ConfirmedWrite) => Delivery::Complete,
            _ => Delivery::Plain,
        }
    }

    /// A one-sided operation that changes memory without being confirmed: ours has them all confirmed, for its flush.
    pub fn is_unconfirmed(self) -> bool {
        matches!(self, What::Write(_, Delivery::Plain) | What::Atomic(Atomic::Write))
    }

    /// Tagged or not, if it is a message.
    pub fn kind(self) -> Option<Kind> {
        match self {
            What::Message(.., kind) => Some(kind),
            _ => None,
        }
    }
}

impl Cell {
    /// The largest that `sender` surely does with one packet, and the least that it surely does not (RDM v4 5.2 and 5.6 of
    /// the wire facts). They are neighbours where all releases of libfabric send the same headers.
    fn bounds(&self) -> (usize, usize) {
        let fixed = match self.what {
            What::Message(_, Delivery::Plain, Kind::Untagged) => 8,
            What::Message(_, Delivery::Plain, Kind::Tagged) => 16,
            What::Message(_, Delivery::Complete, Kind::Untagged) => 16,
            What::Message(_, Delivery::Complete, Kind::Tagged) => 24,
            What::Write(_, Delivery::Plain) => 8 + 24,
            What::Write(_, Delivery::Complete) => 16 + 24,
            // It is the answer that has to fit, with room to spare.
            What::Read(_) => return (MTU - 24 - 1, MTU - 24),
            What::Atomic(_) => 0,
        };
        // Behind a raw address, or a connection id.
        let (longest, shortest) = (MTU - fixed - 40, MTU - fixed - 4);
        let message = self.what.kind().is_some();
        match (self.sender, self.contact) {
            // Ours chooses once, for the longest header.
            (Player::Ours, _) if message => (longest, longest + 1),
            (Player::Libfabric, Contact::First) if message && self.what.delivery() == Delivery::Plain => {
                (longest, longest + 1)
            }
            // Some releases wait for the handshake before they do this.
            (Player::Libfabric, Contact::First) => (longest, shortest + 1),
            _ => (shortest, shortest + 1),
        }
    }

    /// The largest that goes by one packet, for certain.
    pub fn eager_max(&self) -> usize {
        self.bounds().0
    }

    /// Lengths of what is sent in this cell: the protocol's ends, and some between.
    pub fn sizes(&self) -> Vec<usize> {
        let (max, least) = self.bounds();
        match self.what {
            What::Message(Protocol::Eager, ..) => vec![0, 1, 8, 4096, max - 1, max],
            What::Message(Protocol::Medium, ..) => {
                vec![least, 2 * least, 30_001, MEDIUM_MAX - 1, MEDIUM_MAX]
            }
            What::Message(Protocol::LongCts, ..) => {
                vec![MEDIUM_MAX + 1, 100_000, 1 << 20, (1 << 20) + 7]
            }
            What::Write(Length::Short, _) | What::Read(Length::Short) => vec![0, 1, 8, 4096, max - 1, max],
            What::Write(Length::Long, _) | What::Read(Length::Long) => {
                vec![least, 65_536, 300_001, 1 << 20]
            }
            What::Atomic(_) => vec![8],
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
        assert_eq!(names.len(), 22);
        let known: Vec<String> = (0..=255).map(|ty| ucp::wire::PktType(ty).to_string()).collect();
        for name in names {
            assert!(known.contains(&name), "{name}");
        }
    }
}
