//! Settings of a module.

use crate::header::MAX_FLOWS;

/// Depth and MTU of a channel. *"each channel has its own MTU and r/w queue entry counts"* (Channels).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelConfig {
    /// Sends posted and not completed at once, at most.
    pub depth: u32,
    /// Longest datagram, bytes.
    pub mtu: u32,
}

/// Settings of a module. Times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Segments sent to one peer and not acknowledged, at most: a power of two, at least 64.
    pub window: u32,
    /// Congestion window of a new connection, segments.
    pub initial_window: u32,
    /// Time from an arrival to its explicit acknowledgement.
    pub ack_delay: u64,
    /// Retransmit timer before the round-trip time is known.
    pub initial_rto: u64,
    /// Shortest retransmit timer.
    pub min_rto: u64,
    /// Longest retransmit timer.
    pub max_rto: u64,
    /// Flows per peer over which data segments are spread, at most [`MAX_FLOWS`](crate::MAX_FLOWS).
    pub flows: u8,
    /// Ports that datagrams of the flows behind the first come from, which peers are told.
    pub ports: [u16; MAX_FLOWS - 1],
    /// Whether selective acknowledgement is offered. It is used if both sides offer it.
    pub sack: bool,
    /// Sends of one endpoint posted and not completed, at most.
    pub credits: u32,
    /// The priority channel: acknowledgements, control, tiny fragments.
    pub priority: ChannelConfig,
    /// The data channel: everything else, and each retransmission.
    pub data: ChannelConfig,
    /// Longest payload that may take the priority channel, bytes.
    pub tiny: u32,
    /// Segments of one endpoint sent before the next endpoint's turn.
    pub quantum: u32,
    /// Time without a word from a peer that is waited for, after which it is probed.
    pub keepalive: u64,
    /// Probes without an answer after which a peer is dead.
    pub probes: u32,
    /// Times that a segment is sent again to a peer that is heard. If it has then not arrived, and as long
    /// has passed as a silent peer is given, the path drops datagrams of its length.
    pub resends: u32,
    /// Time from the first to the second request to connect; it doubles from then on.
    pub hello_interval: u64,
    /// Requests to connect without an answer after which a peer is unreachable.
    pub hellos: u32,
    /// Fragments of a peer that are reassembled at once, at most.
    pub max_assemblies: usize,
    /// Peers at most.
    pub max_peers: usize,
    /// First sequence number.
    pub first_seq: u32,
    /// Random bits from which connection ids begin.
    pub salt: u32,
    /// Start of this module: a later module at the same address has a larger one.
    pub epoch: u64,
    /// Name of this module, which peers are told.
    pub node: u64,
    /// Bits by which the layer above tells its peers what it understands.
    pub features: u8,
}

/// Doublings of the time between two requests to connect, at most.
pub(crate) const MAX_HELLO_DOUBLINGS: u32 = 6;

/// Number of tries, of which the first waits `first` ns and each next twice as long up to `doublings`
/// doublings, that together take at least `ns`.
pub(crate) fn tries_within(ns: u64, first: u64, doublings: u32) -> u32 {
    let (mut waited, mut tries) = (0, 0);
    while waited < ns {
        waited += first << tries.min(doublings);
        tries += 1;
    }
    tries
}

impl Config {
    /// Keeps asking for a connection for at least so long.
    pub fn connecting_for(self, ns: u64) -> Config {
        let hellos = tries_within(ns, self.hello_interval, MAX_HELLO_DOUBLINGS);
        Config { hellos: self.hellos.max(hellos), ..self }
    }
}

impl Default for Config {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Config {
            window: 4096,
            initial_window: 32,
            ack_delay: 50_000,
            initial_rto: 100 * MS,
            min_rto: 5 * MS,
            max_rto: 2_000 * MS,
            flows: 1,
            ports: [0; MAX_FLOWS - 1],
            sack: true,
            credits: 1024,
            priority: ChannelConfig { depth: 512, mtu: 1024 },
            data: ChannelConfig { depth: 2048, mtu: 1472 },
            tiny: 768,
            quantum: 16,
            keepalive: 1_000 * MS,
            probes: 5,
            resends: 12,
            hello_interval: 20 * MS,
            hellos: 8,
            max_assemblies: 4096,
            max_peers: 1 << 16,
            first_seq: 0,
            salt: 0,
            epoch: 1,
            node: 0,
            features: 0,
        }
    }
}
