//! The matrix as data: protocols, message kinds, directions, first contact or not, networks, and the sizes
//! around each switch point of the sender. Read by `run` and `report`.

use super::process::Stack;

/// Default MTU of the software device, bytes.
pub const MTU: usize = 8928;
/// Longest MEDIUM message of either end, bytes.
const MEDIUM_MAX: usize = 65536;
/// Shortest message that is sent by RDMA read, bytes.
const MIN_READ: usize = 1 << 20;
/// Shortest write that is done by RDMA read, bytes.
const MIN_READ_WRITE: usize = 65_536;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Protocol {
    Eager,
    Medium,
    LongCts,
    LongRead,
    RuntRead,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Delivery {
    Plain,
    Complete,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    Untagged,
    Tagged,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Contact {
    /// Each message is the first packet between two new endpoints.
    First,
    /// HANDSHAKEs have been exchanged.
    After,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Net {
    Ordered,
    /// One packet in five is held back and overtaken.
    Reordered,
    /// One send in twenty finds the receiver not ready.
    Rnr,
    SmallQueues,
}

impl Net {
    pub const ALL: [Net; 4] = [Net::Ordered, Net::Reordered, Net::Rnr, Net::SmallQueues];

    pub fn name(self) -> &'static str {
        match self {
            Net::Ordered => "ordered",
            Net::Reordered => "reordered",
            Net::Rnr => "RNR",
            Net::SmallQueues => "small queues",
        }
    }

    pub fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Net::Ordered => &[],
            Net::Reordered => &[("SOFTEFA_REORDER", "0.2")],
            Net::Rnr => &[("SOFTEFA_RNR", "0.05")],
            Net::SmallQueues => &[
                ("FI_EFA_TX_SIZE", "32"),
                ("FI_EFA_RX_SIZE", "32"),
                ("UCX_EFA_TX_QUEUE_LEN", "8"),
                ("UCX_EFA_RX_QUEUE_LEN", "16"),
                ("UCX_EFA_RX_SPARE", "4"),
            ],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Nic {
    Packets,
    /// RDMA read, no RDMA write.
    Reads,
    /// RDMA read, and runting reads.
    Runts,
    /// RDMA read and write.
    Writes,
}

impl Nic {
    pub const ALL: [Nic; 4] = [Nic::Packets, Nic::Reads, Nic::Runts, Nic::Writes];

    /// Settings of both ends. Reads are made in pieces.
    pub fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // 1.17 begins a long write by RDMA read before it knows whether the peer has it (wire facts 3.4).
            Nic::Packets => {
                &[("FI_EFA_USE_DEVICE_RDMA", "0"), ("FI_EFA_INTER_MIN_READ_WRITE_SIZE", "1000000000")]
            }
            Nic::Reads => &[("SOFTEFA_GEN", "efa1"), RDMA, LIBFABRIC_PIECES, OUR_PIECES],
            Nic::Runts => &[
                ("SOFTEFA_GEN", "efa1"),
                RDMA,
                LIBFABRIC_PIECES,
                OUR_PIECES,
                ("FI_EFA_RUNT_SIZE", "65536"),
                ("UCX_RUNT_SIZE", "65536"),
            ],
            // Ours takes data that come with a write as libfabric did before 2.1.
            Nic::Writes => &[RDMA, ("FI_EFA_USE_UNSOLICITED_WRITE_RECV", "0")],
        }
    }
}

const RDMA: (&str, &str) = ("FI_EFA_USE_DEVICE_RDMA", "1");
const LIBFABRIC_PIECES: (&str, &str) = ("FI_EFA_INTER_READ_SEGMENT_SIZE", "400000");
const OUR_PIECES: (&str, &str) = ("UCX_READ_SEGMENT", "300000");

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Length {
    Short,
    /// It goes in windows that the receiver of the bytes opens.
    Long,
}

/// Whether a write carries data for the other end's completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum CqData {
    No,
    Yes,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Atomic {
    Write,
    ConfirmedWrite,
    Fetch,
    Compare,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum What {
    Message(Protocol, Delivery, Kind),
    Write(Length, Delivery),
    /// Writes that the target reads out of the writer's memory.
    LongReadWrite(Delivery),
    Read(Length),
    DirectRead,
    DirectWrite(CqData),
    Atomic(Atomic),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cell {
    pub what: What,
    /// The initiator; the other end receives.
    pub sender: Stack,
    pub contact: Contact,
    pub net: Net,
}

impl What {
    pub fn all() -> Vec<What> {
        const DELIVERIES: [Delivery; 2] = [Delivery::Plain, Delivery::Complete];
        let mut all = Vec::new();
        for protocol in
            [Protocol::Eager, Protocol::Medium, Protocol::LongCts, Protocol::LongRead, Protocol::RuntRead]
        {
            for delivery in DELIVERIES {
                if (protocol, delivery) == (Protocol::RuntRead, Delivery::Complete) {
                    continue; // goes by LONGREAD
                }
                all.extend(
                    [Kind::Untagged, Kind::Tagged].map(|kind| What::Message(protocol, delivery, kind)),
                );
            }
        }
        for length in [Length::Short, Length::Long] {
            all.extend(DELIVERIES.map(|delivery| What::Write(length, delivery)));
        }
        all.extend(DELIVERIES.map(What::LongReadWrite));
        all.extend([Length::Short, Length::Long].map(What::Read));
        all.push(What::DirectRead);
        all.extend([CqData::No, CqData::Yes].map(What::DirectWrite));
        let atomics = [Atomic::Write, Atomic::ConfirmedWrite, Atomic::Fetch, Atomic::Compare];
        all.extend(atomics.map(What::Atomic));
        all
    }

    /// Name of the first packet of each operation, as `efa-dump` has it.
    pub fn packet(self) -> String {
        let dc = |delivery| if delivery == Delivery::Complete { "DC_" } else { "" };
        match self {
            What::Message(protocol, delivery, kind) => {
                let name = match protocol {
                    Protocol::Eager => "EAGER",
                    Protocol::Medium => "MEDIUM",
                    Protocol::LongCts => "LONGCTS",
                    Protocol::LongRead => "LONGREAD",
                    Protocol::RuntRead => "RUNTREAD",
                };
                // An EOR confirms as well as a RECEIPT does.
                let dc = if protocol == Protocol::LongRead { "" } else { dc(delivery) };
                let kind = if kind == Kind::Tagged { "TAG" } else { "MSG" };
                format!("{dc}{name}_{kind}RTM")
            }
            What::Write(Length::Short, delivery) => format!("{}EAGER_RTW", dc(delivery)),
            What::Write(Length::Long, delivery) => format!("{}LONGCTS_RTW", dc(delivery)),
            What::LongReadWrite(_) => "LONGREAD_RTW".into(),
            What::Read(Length::Short) => "SHORT_RTR".into(),
            What::Read(Length::Long) => "LONGCTS_RTR".into(),
            What::DirectRead => "RDMA_READ".into(),
            What::DirectWrite(CqData::No) => "RDMA_WRITE".into(),
            What::DirectWrite(CqData::Yes) => "RDMA_WRITE_IMM".into(),
            What::Atomic(Atomic::Write) => "WRITE_RTA".into(),
            What::Atomic(Atomic::ConfirmedWrite) => "DC_WRITE_RTA".into(),
            What::Atomic(Atomic::Fetch) => "FETCH_RTA".into(),
            What::Atomic(Atomic::Compare) => "COMPARE_RTA".into(),
        }
    }

    pub fn nic(self) -> Nic {
        match self {
            What::Message(Protocol::RuntRead, ..) => Nic::Runts,
            What::Message(Protocol::LongRead, ..) | What::LongReadWrite(_) | What::DirectRead => Nic::Reads,
            What::DirectWrite(_) => Nic::Writes,
            _ => Nic::Packets,
        }
    }

    /// HANDSHAKE bits without which libfabric's release or build lacks it; then it is not played.
    pub fn needs(self) -> u64 {
        if let What::DirectWrite(_) = self { 1 << 5 } else { 0 }
    }

    pub fn delivery(self) -> Delivery {
        match self {
            What::Message(_, delivery, _) | What::Write(_, delivery) | What::LongReadWrite(delivery) => {
                delivery
            }
            What::Atomic(Atomic::ConfirmedWrite) => Delivery::Complete,
            _ => Delivery::Plain,
        }
    }

    /// A one-sided operation that changes memory unconfirmed. Ours confirms them all, for its flush.
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
    /// The longest that `sender` surely sends in one packet, and the shortest that it surely does not (wire
    /// facts 5.2 and 5.6). They are adjacent where all releases of libfabric send the same headers.
    fn bounds(&self) -> (usize, usize) {
        let fixed = match self.what {
            What::Message(_, Delivery::Plain, Kind::Untagged) => 8,
            What::Message(_, Delivery::Plain, Kind::Tagged) => 16,
            What::Message(_, Delivery::Complete, Kind::Untagged) => 16,
            What::Message(_, Delivery::Complete, Kind::Tagged) => 24,
            What::Write(_, Delivery::Plain) => 8 + 24,
            What::Write(_, Delivery::Complete) => 16 + 24,
            // The answer has to fit, with room to spare.
            What::Read(_) => return (MTU - 24 - 1, MTU - 24),
            What::LongReadWrite(_) | What::DirectRead | What::DirectWrite(_) | What::Atomic(_) => 0,
        };
        // Behind a raw address, or a connection id.
        let (longest, shortest) = (MTU - fixed - 40, MTU - fixed - 4);
        let message = self.what.kind().is_some();
        match (self.sender, self.contact) {
            // Ours chooses once, for the longest header.
            (Stack::Ours, _) if message => (longest, longest + 1),
            (Stack::Libfabric, Contact::First) if message && self.what.delivery() == Delivery::Plain => {
                (longest, longest + 1)
            }
            // Some releases wait for the handshake first.
            (Stack::Libfabric, Contact::First) => (longest, shortest + 1),
            _ => (shortest, shortest + 1),
        }
    }

    /// Packets its messages may begin with at first contact, when the other's features are unknown.
    pub fn before_handshake(&self) -> Vec<String> {
        match self.what {
            _ if self.contact == Contact::After => Vec::new(),
            What::Message(Protocol::LongRead | Protocol::RuntRead, delivery, kind) => {
                vec![What::Message(Protocol::LongCts, delivery, kind).packet()]
            }
            What::DirectRead => {
                [Length::Short, Length::Long].map(|length| What::Read(length).packet()).into()
            }
            _ => Vec::new(),
        }
    }

    /// The longest that surely goes in one packet.
    pub fn eager_max(&self) -> usize {
        self.bounds().0
    }

    /// Lengths to send: the protocol's limits, and some between.
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
            What::Message(Protocol::LongRead | Protocol::RuntRead, ..) => {
                vec![MIN_READ, MIN_READ + 1, 1_300_000, 2 * MIN_READ + 7]
            }
            What::LongReadWrite(_) => vec![MIN_READ_WRITE, MIN_READ_WRITE + 1, 500_001, 1 << 20],
            // What fits a packet carries its data in it.
            What::DirectWrite(CqData::Yes) => vec![10_000, 65_536, 300_001, 1 << 20],
            What::DirectRead | What::DirectWrite(CqData::No) => vec![0, 1, 8, 4096, 65_536, 300_001, 1 << 20],
            What::Write(Length::Short, _) | What::Read(Length::Short) => vec![0, 1, 8, 4096, max - 1, max],
            What::Write(Length::Long, _) | What::Read(Length::Long) => {
                vec![least, 65_536, 300_001, 1 << 20]
            }
            What::Atomic(_) => vec![8],
        }
    }
}

/// `sender PACKET contact network`, which `--only` matches.
impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let contact = if self.contact == Contact::First { "first" } else { "after" };
        let packet = self.what.packet();
        // The packet's name tells, except of messages that are read.
        let in_name = packet.starts_with("DC_") || self.what.delivery() == Delivery::Plain;
        let dc = if in_name { "" } else { " DC" };
        write!(f, "{} {packet}{dc} {contact} {}", self.sender.name(), self.net.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_named_as_on_the_wire() {
        let names: Vec<String> = What::all().into_iter().map(What::packet).collect();
        assert_eq!(names.len(), 33);
        let known: Vec<String> = (0..=255).map(|ty| ucp::wire::PktType(ty).to_string()).collect();
        for name in names.into_iter().filter(|name| !name.starts_with("RDMA_")) {
            assert!(known.contains(&name), "{name}");
        }
    }
}
