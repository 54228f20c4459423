//! Decides which datagrams the engine sees. Processes of the same user on this host may connect; with
//! `SOFTEFA_INSECURE=y` anybody who can send datagrams.

use super::state::State;
use std::net::{IpAddr, SocketAddr};
use usnic::{ClaimedSource, Module};

/// Senders that may connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Policy {
    /// Processes of this user on this host.
    SameUser,
    /// Anybody.
    Anybody,
    /// Processes that know the job's secret, which has authenticated the datagram.
    Authenticated,
}

impl Policy {
    /// The policy of a device.
    pub fn new(has_secret: bool, insecure: bool) -> Policy {
        match (has_secret, insecure) {
            (true, _) => Policy::Authenticated,
            (false, true) => Policy::Anybody,
            (false, false) => Policy::SameUser,
        }
    }
}

/// Checks of a datagram before the engine sees it.
pub(super) struct Admission {
    pub policy: Policy,
    /// Datagrams that were refused.
    pub refused: u64,
}

impl Admission {
    /// Whether an authenticated datagram of a node speaks for that node only.
    pub fn admits_node(&mut self, state: &State, node: u64, datagram: &[u8]) -> bool {
        let admitted = match usnic::claimed_source(datagram) {
            None => false,
            Some(ClaimedSource::Connection(ep)) => state.peers.get(&ep).is_none_or(|peer| peer.iid == node),
            Some(ClaimedSource::Node(claimed)) => claimed == node && node != state.me,
        };
        self.refused += u64::from(!admitted);
        admitted
    }

    /// Whether a datagram may come from this address. A datagram of a connection must come from its peer's
    /// address or from a port that the peer announced for a flow; a request to connect must come from the
    /// address in the peer's name.
    pub fn admits(&mut self, (state, module): (&State, &Module), from: SocketAddr, datagram: &[u8]) -> bool {
        let admitted = match usnic::claimed_source(datagram) {
            None => false,
            Some(ClaimedSource::Connection(ep)) => match state.peers.get(&ep) {
                Some(peer) => {
                    let is_of_flow = || from.ip() == peer.addr.ip() && module.has_flow_port(ep, from.port());
                    peer.addr == from || is_of_flow()
                }
                // It is answered by a reset, which is no longer than itself.
                None => self.policy == Policy::Anybody || from.ip().is_loopback(),
            },
            Some(ClaimedSource::Node(node)) => {
                state.may_be_at(node, from) && node != state.me && self.trusts(from)
            }
        };
        self.refused += u64::from(!admitted);
        admitted
    }

    fn trusts(&self, from: SocketAddr) -> bool {
        match self.policy {
            Policy::Anybody => true,
            Policy::Authenticated => false,
            Policy::SameUser => from.ip().is_loopback() && is_own_user(from),
        }
    }
}

/// Senders without the secret of the job, which are told of in the log now and then.
pub(super) struct UnauthenticatedLog {
    /// The secret that is missing there, and what to do.
    lack: &'static str,
    seen: u64,
    told: u64,
    /// When there may be another line.
    quiet_until: u64,
}

impl UnauthenticatedLog {
    /// Time between two lines, ns.
    const PAUSE: u64 = 10_000_000_000;

    /// Begins, for a device with the secret of a job or, without one, with the user's on this host.
    pub fn new(has_job: bool) -> UnauthenticatedLog {
        let lack = match has_job {
            true => "the secret of this job (SOFTEFA_SECRET_FILE names another one there)",
            false => "the secret of this user on this host: other hosts need the same SOFTEFA_SECRET_FILE",
        };
        UnauthenticatedLog { lack, seen: 0, told: 0, quiet_until: 0 }
    }

    /// Line for the log when a datagram from there was dropped and the count of those without the secret is
    /// `seen`; none for other causes, and none so soon after the last one.
    #[cold]
    pub fn line(&mut self, now: u64, from: SocketAddr, seen: u64) -> Option<String> {
        if seen == std::mem::replace(&mut self.seen, seen) || now < self.quiet_until {
            return None;
        }
        self.quiet_until = now + Self::PAUSE;
        let more = match seen - std::mem::replace(&mut self.told, seen) {
            1 => String::new(),
            n => format!(", {n} datagrams since the last such line"),
        };
        Some(format!("refused {from}: it does not have {}{more}", self.lack))
    }
}

/// Whether a socket of this user has that address of this host.
fn is_own_user(addr: SocketAddr) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let list = if addr.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    let sockets = std::fs::read_to_string(list).unwrap_or_default();
    owner(&sockets, addr) == Some(user)
}

/// An address as the system's lists of sockets write it: words in the order of this machine.
fn listed(addr: SocketAddr) -> String {
    let words = match addr.ip() {
        IpAddr::V4(ip) => format!("{:08X}", u32::from_ne_bytes(ip.octets())),
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            octets
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| format!("{:08X}", u32::from_ne_bytes(*word)))
                .collect()
        }
    };
    format!("{words}:{:04X}", addr.port())
}

/// User who has a local address, in the system's list of sockets.
fn owner(sockets: &str, addr: SocketAddr) -> Option<u32> {
    let name = listed(addr);
    sockets.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        words.nth(1).filter(|local| *local == name)?;
        words.nth(5)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn strangers_are_told_of_now_and_then() {
        let (mut unauthenticated, from) = (UnauthenticatedLog::new(true), "10.0.0.7:5000".parse().unwrap());
        assert_eq!(unauthenticated.line(0, from, 0), None, "dropped for another cause");
        let line = unauthenticated.line(5, from, 1).unwrap();
        assert!(line.contains("10.0.0.7:5000") && line.contains("SOFTEFA_SECRET_FILE"), "{line}");
        assert_eq!(unauthenticated.line(6, from, 2), None);
        assert_eq!(
            unauthenticated.line(UnauthenticatedLog::PAUSE + 5, from, 2),
            None,
            "dropped for another cause"
        );
        let line = unauthenticated.line(UnauthenticatedLog::PAUSE + 5, from, 9).unwrap();
        assert!(line.contains("8 datagrams"), "{line}");
        let line = UnauthenticatedLog::new(false).line(0, from, 1).unwrap();
        assert!(line.contains("this user on this host") && line.contains("SOFTEFA_SECRET_FILE"), "{line}");
    }

    #[test]
    fn the_user_of_a_socket_is_told() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(ip) else { continue };
            let addr = socket.local_addr().unwrap();
            assert!(is_own_user(addr), "{addr}");
            drop(socket);
            assert!(!is_own_user(addr), "{addr}");
        }
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n \
                    12: 0100007F:1F90 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 5 2 0 0\n \
                    13: 000080FE00000000FF005450B6AD1DFE:1F90 00000000000000000000000000000000:0000 07 0:0 00:0 0  1002 0 5\n";
        if cfg!(target_endian = "little") {
            let of = |addr: &str| owner(list, addr.parse().unwrap());
            assert_eq!((of("127.0.0.1:8080"), of("127.0.0.1:8081")), (Some(1001), None));
            assert_eq!(of("[fe80::5054:ff:fe1d:adb6]:8080"), Some(1002));
        }
    }
}
