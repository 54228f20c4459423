//! Profile of a software device: an EFA generation's attributes, and the `SOFTEFA_*` keys that change them.

use super::fault_model::FaultPlan;
use super::job_secret::JobSecret;
use super::link::udp::UdpConfig;
use crate::api::{Linear, ResourcePerf, RmaPerf};
use crate::efa::dev::{DevAttr, DevPerf, DevStatus};
use std::time::Duration;
use ucs::config::{Auto, ConfigValue};

ucs::config_enum! {
    /// Device generations, by capability.
    pub enum Generation {
        /// Sends only.
        Efa0 = "efa0",
        /// RDMA read and RNR retry counts.
        Efa1 = "efa1",
        /// RDMA write and unsolicited write receive as well.
        Efa2 = "efa2",
        /// As `efa2`, with its own part id.
        Efa3 = "efa3",
    }
}

/// An interface id: the low half of a link-local GID, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iid(pub u64);

impl ConfigValue for Iid {
    fn parse(text: &str) -> Option<Iid> {
        if let Ok(ip) = text.parse::<std::net::Ipv6Addr>() {
            let bits = ip.to_bits();
            return (bits >> 64 == 0xfe80 << 48 && bits as u64 != 0).then_some(Iid(bits as u64));
        }
        let digits = text.strip_prefix("0x").unwrap_or(text);
        u64::from_str_radix(digits, 16).ok().filter(|n| *n != 0).map(Iid)
    }

    fn expected() -> String {
        "a link-local address (fe80::...) or a non-zero hexadecimal interface id".into()
    }
}

ucs::config_enum! {
    /// Which peers a device reaches over UDP.
    pub enum UdpUse {
        /// None: it reaches processes of this host only.
        None = "n",
        /// Those that shared memory does not reach.
        Others = "y",
        /// All, for tests.
        All = "all",
    }
}

/// UDP ports to try, first and last; 0: any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange(pub u16, pub u16);

impl ConfigValue for PortRange {
    fn parse(text: &str) -> Option<PortRange> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = PortRange(first.parse().ok()?, last.parse().ok()?);
        (range.0 <= range.1 && (range.0 != 0 || range.1 == 0)).then_some(range)
    }

    fn expected() -> String {
        "a port or a range of ports, such as 40000-40099, or 0 for any".into()
    }
}

/// A planned outage of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Number of the NIC: 1 is `softefa1`.
    pub nic: usize,
    /// Requests posted and messages received before it.
    pub after: u64,
}

impl ConfigValue for Outage {
    fn parse(text: &str) -> Option<Outage> {
        let (nic, after) = text.split_once(':')?;
        Some(Outage { nic: nic.parse().ok()?, after: after.parse().ok()? })
    }

    fn expected() -> String {
        "NIC:PACKETS, such as 1:1000".into()
    }
}

ucs::config_table! {
    /// Software EFA device.
    pub struct SoftConfig, prefix "SOFTEFA_" {
        /// Number of devices: softefa0, softefa1, ...
        pub devices: usize = "1", key "DEVICES", range 1..=8;
        /// Device generation, which decides the capabilities.
        pub generation: Generation = "efa2", key "GEN";
        /// Longest message.
        pub mtu: u32 = "8928", key "MTU", unit "bytes", range 128..=32768;
        /// Longest inline send.
        pub inline: u32 = "32", key "INLINE", unit "bytes", range 0..=80;
        /// Longest RDMA operation; none where the generation has no RDMA.
        pub max_rdma: u32 = "1g", key "MAX_RDMA", unit "bytes", range 0..=1073741824;
        /// Most queue pairs of a device.
        pub max_qp: u32 = "256", key "MAX_QP", range 1..=32768;
        /// Deepest send queue.
        pub send_depth: u32 = "4096", key "SEND_DEPTH", unit "requests", range 1..=65536;
        /// Deepest receive queue.
        pub recv_depth: u32 = "32768", key "RECV_DEPTH", unit "requests", range 1..=65536;
        /// Most memory regions.
        pub max_mr: u32 = "65536", key "MAX_MR", range 16..=65536;
        /// Most address handles.
        pub max_ah: u32 = "8192", key "MAX_AH", range 1..=65536;
        /// Whether the device has its generation's RDMA. Automatic: unless the system denies access to other
        /// processes' memory.
        pub rdma: Auto<bool> = "auto", key "RDMA";
        /// Let other processes of this user read and write this one's memory where Yama's ptrace_scope is 1,
        /// for as long as it lives. Without it peers there reach only memory that the device has allocated.
        pub allow_peers: bool = "y", key "ALLOW_PEERS";
        /// GID of the first device. Automatic: unique per process, so that each process is a host of its own.
        pub gid: Auto<Iid> = "auto", key "GID";
        /// Peers that are reached over UDP: those of other hosts (y), all (all), or none. SOFTEFA_NET implies
        /// y.
        pub udp: UdpUse = "n", key "UDP";
        /// Interface name, address, or network such as 10.0.0.0/8 or fd00::/8, at which the device listens.
        /// Empty: the loopback interface.
        pub net: String = "", key "NET";
        /// Address, with or without a port, by which peers reach this host. Empty: the one it listens
        /// at.
        pub udp_address: String = "", key "UDP_ADDRESS";
        /// IPv6 hosts of the job whose addresses differ in their first 96 bits: addresses and names with
        /// commas between, or @ and a file with one in each line.
        pub udp_hosts: String = "", key "UDP_HOSTS";
        /// UDP ports to listen at. Each device of a process takes one.
        pub udp_ports: PortRange = "0", key "UDP_PORTS";
        /// Longest datagram, with its headers; 0: what the network interface carries.
        pub udp_mtu: u32 = "0", key "UDP_MTU", unit "bytes", check |mtu| *mtu == 0 || *mtu >= 1280 => "0, or at least 1280";
        /// Lets the kernel cut and join datagrams (UDP GSO and GRO), where it can: many go through it as one.
        pub udp_offload: bool = "y", key "UDP_OFFLOAD";
        /// Whether each channel of the UDP link has a socket.
        pub udp_channels: bool = "y", key "UDP_CHANNELS";
        /// Flows to each peer over UDP: ports that datagrams come from, so that a network with several ways
        /// uses them. More than one makes them overtake each other.
        pub udp_flows: u8 = "1", key "UDP_FLOWS", range 1..=8;
        /// Datagrams that may be on their way to a peer: a power of two. Fewer where the socket's buffer
        /// holds fewer.
        pub udp_window: u32 = "4096", key "UDP_WINDOW", check |n| n.is_power_of_two() && (64..=4096).contains(n) => "a power of two from 64 to 4096";
        /// Silence of a peer over UDP, from which something is awaited, after which it is dead.
        pub udp_timeout: Duration = "7s", key "UDP_TIMEOUT", check |t| (500..=3_600_000).contains(&t.as_millis()) => "a time from 500ms to 1h";
        /// Time for which the kernel looks for arrivals in the network card's queue when a poll finds nothing
        /// (SO_BUSY_POLL); 0: it waits for interrupts.
        pub udp_busy_poll: u32 = "0", key "UDP_BUSY_POLL", unit "us", range 0..=1000000;
        /// Probability that a datagram is lost by its sender, for tests.
        pub udp_loss: f64 = "0", key "UDP_LOSS", range 0.0..=1.0;
        /// File with the secret of the job, at least 16 bytes: datagrams are encrypted, and only processes
        /// with the same secret reach the device, over UDP or by shared memory.
        pub secret_file: String = "", key "SECRET_FILE";
        /// Takes the secret of the job from its launcher instead of from a file (pmix): from mpirun, or srun
        /// --mpi=pmix.
        pub job_secret: JobSecret = "n", key "JOB_SECRET";
        /// Let anybody who can send datagrams to the device read and write the memory that programs register.
        /// Without it and without a secret only processes of this user on this host reach the device, in any
        /// network namespace.
        pub insecure: bool = "n", key "INSECURE";
        /// RDMA fails with status 14 when the target has no address handle of the initiator, as on hardware.
        pub strict: bool = "y", key "STRICT";
        /// Time between two attempts at a receiver that is not ready.
        pub rnr_interval: Duration = "50us", key "RNR_INTERVAL";
        /// Keys of registered memory that a program unmapped end. For programs under `softefa run`, by
        /// userfaultfd.
        pub watch_memory: bool = "n", key "WATCH_MEMORY";
        /// Requests on registered memory that a program unmapped end with a status, by a handler for SIGSEGV
        /// and SIGBUS; else they crash it. Automatic: under `softefa run` only.
        pub guard_memory: Auto<bool> = "auto", key "GUARD_MEMORY";
        /// Seed of all random numbers; 0: a new one each time.
        pub seed: u64 = "0", key "SEED";
        /// Probability that a request is delayed and overtaken by later ones.
        pub reorder: f64 = "0", key "REORDER", range 0.0..=1.0;
        /// Longest delay of a reordered request.
        pub window: u64 = "64", key "WINDOW", unit "polls", range 1..=1000000;
        /// Least delay of every request.
        pub delay: u64 = "0", key "DELAY", unit "polls", range 0..=1000000;
        /// Probability that the first attempt finds the receiver not ready.
        pub rnr: f64 = "0", key "RNR", range 0.0..=1.0;
        /// Probability that a request fails.
        pub fault: f64 = "0", key "FAULT", range 0.0..=1.0;
        /// Status of the requests that fail.
        pub fault_status: u8 = "13", key "FAULT_STATUS", check |v| DevStatus::try_from(*v).is_ok() => "a status code of the device";
        /// NICs that go down after a number of requests posted and messages received: 1:1000 takes softefa1
        /// down.
        pub down: Vec<Outage> = "", key "DOWN", check |all| all.iter().all(|o| o.nic < 8) => "numbers of devices, 0 to 7";
        /// Capture file (pcapng): %p stands for the process id, which is appended if there is no %p.
        pub pcap: String = "", key "PCAP";
        /// Capture file (pcapng) of the datagrams over UDP, in clear where they are sealed; %p as above.
        pub udp_pcap: String = "", key "UDP_PCAP";
    }
}

impl SoftConfig {
    /// Settings of the UDP link, if the device has one.
    pub(super) fn udp(&self) -> Option<UdpConfig> {
        if self.udp == UdpUse::None && self.net.is_empty() {
            return None;
        }
        Some(UdpConfig {
            net: self.net.clone(),
            address: self.udp_address.clone(),
            hosts: self.udp_hosts.clone(),
            ports: (self.udp_ports.0, self.udp_ports.1),
            secret_file: self.secret_file.clone(),
            job_secret: self.job_secret,
            insecure: self.insecure,
            only: self.udp == UdpUse::All,
            mtu: self.udp_mtu,
            offload: self.udp_offload,
            channels: self.udp_channels,
            flows: self.udp_flows,
            window: self.udp_window,
            timeout: self.udp_timeout.as_nanos() as u64,
            busy_poll: self.udp_busy_poll,
            loss: self.udp_loss,
            pcap: self.udp_pcap.clone(),
        })
    }

    /// Fault plan of device `nth`, with times in polls.
    pub fn faults(&self, nth: usize) -> FaultPlan {
        FaultPlan {
            reorder: self.reorder,
            window: self.window,
            delay: self.delay,
            jitter: 0,
            rnr: self.rnr,
            fail: self.fault,
            fail_status: DevStatus::try_from(self.fault_status).unwrap_or(DevStatus::Unresponsive),
            down_after: self.down.iter().find(|o| o.nic == nth).map(|o| o.after),
        }
    }

    /// Profile of the configured generation.
    pub fn profile(&self) -> Profile {
        let (part_id, fw) = match self.generation {
            Generation::Efa0 => (0xefa0, "soft-efa0"),
            Generation::Efa1 => (0xefa1, "soft-efa1"),
            Generation::Efa2 => (0xefa2, "soft-efa2"),
            Generation::Efa3 => (0xefa3, "soft-efa3"),
        };
        Profile {
            attr: DevAttr {
                name: String::new(),
                part_id,
                fw: fw.into(),
                mtu: self.mtu,
                max_inline: self.inline,
                max_rdma: if part_id >= 0xefa1 { self.max_rdma } else { 0 },
                rdma_read: part_id >= 0xefa1,
                rdma_write: part_id >= 0xefa2,
                unsolicited_write_recv: part_id >= 0xefa2,
                rnr_retry: part_id >= 0xefa1,
                max_qp: self.max_qp,
                max_send_depth: self.send_depth,
                max_recv_depth: self.recv_depth,
                max_cqe: 1 << 20,
                max_mr: self.max_mr,
                max_ah: self.max_ah,
                max_send_sge: 2,
                link_bps: 100_000_000_000,
                perf: PERF,
            },
            strict: self.strict,
            allow_peers: self.allow_peers,
            rnr_interval_ns: self.rnr_interval.as_nanos() as u64,
        }
    }
}

/// Estimates of a device, before it is opened.
pub(crate) const RESOURCE_PERF: ResourcePerf = ResourcePerf::new(PERF.latency, PERF.overhead, PERF.bandwidth);

/// Costs on a present-day machine; `ucp`'s calibration measures the actual one.
const PERF: DevPerf = DevPerf {
    latency: 100.0,
    overhead: 60.0,
    bandwidth: 25e9,
    register: Linear { fixed: 250.0, per_byte: 0.0 },
    rma: RmaPerf {
        put_allocated: Linear::new(150.0, 12e9),
        put_registered: Linear::new(1700.0, 16e9),
        get_allocated: Linear::new(150.0, 12e9),
        get_registered: Linear::new(2000.0, 17e9),
    },
};

/// Attributes and rules of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Attributes. The name is filled in at open.
    pub attr: DevAttr,
    /// Whether RDMA needs an address handle of the initiator at the target.
    pub strict: bool,
    /// Whether other processes of the user may reach this one's memory where Yama would not let them.
    pub allow_peers: bool,
    /// Time between two attempts at a receiver that is not ready, ns.
    pub rnr_interval_ns: u64,
}

impl Default for Profile {
    fn default() -> Self {
        SoftConfig::default().profile()
    }
}

impl Profile {
    /// A profile with small tables, for simulations with many devices in one process.
    pub fn small() -> Self {
        let mut p = Profile::default();
        p.attr.max_mr = 1024;
        p.attr.max_ah = 1024;
        p
    }
}
