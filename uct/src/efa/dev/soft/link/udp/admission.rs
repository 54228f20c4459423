//! Decides which datagrams the engine sees. Processes of the same user on this host may connect; with
//! `SOFTEFA_INSECURE=y` anybody who can send datagrams.

use super::node_addr;
use super::state::State;
use std::net::SocketAddrV4;
use usnic::Claim;

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

/// Checks of a datagram before the engine sees it.
pub(super) struct Admission {
    pub policy: Policy,
    /// Datagrams that were refused.
    pub refused: u64,
}

impl Admission {
    /// Whether an authenticated datagram of a node speaks for that node only.
    pub fn admits_node(&mut self, state: &State, node: u64, datagram: &[u8]) -> bool {
        let admitted = match usnic::claim(datagram) {
            None => false,
            Some(Claim::Connection(ep)) => state.peers.get(&ep).is_none_or(|peer| peer.iid == node),
            Some(Claim::Node(claimed)) => claimed == node && node != state.me,
        };
        self.refused += u64::from(!admitted);
        admitted
    }

    /// Whether a datagram may come from there: one of a connection only from its peer's address, a request
    /// to connect only from the address that the peer's name says.
    pub fn admits(&mut self, state: &State, from: SocketAddrV4, datagram: &[u8]) -> bool {
        let admitted = match usnic::claim(datagram) {
            None => false,
            Some(Claim::Connection(ep)) => match state.peers.get(&ep) {
                Some(peer) => peer.addr == from,
                // It is answered by a reset, which is no longer than itself.
                None => self.policy == Policy::Anybody || from.ip().is_loopback(),
            },
            Some(Claim::Node(node)) => node_addr(node) == Some(from) && node != state.me && self.trusts(from),
        };
        self.refused += u64::from(!admitted);
        admitted
    }

    fn trusts(&self, from: SocketAddrV4) -> bool {
        match self.policy {
            Policy::Anybody => true,
            Policy::Authenticated => false,
            Policy::SameUser => from.ip().is_loopback() && is_own_user(from),
        }
    }
}

/// Whether a socket of this user has that address of this host.
fn is_own_user(addr: SocketAddrV4) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let sockets = std::fs::read_to_string("/proc/net/udp").unwrap_or_default();
    owner(&sockets, addr) == Some(user)
}

/// User who has a local address, in the system's list of sockets.
fn owner(sockets: &str, addr: SocketAddrV4) -> Option<u32> {
    let raw = u32::from_ne_bytes(addr.ip().octets());
    let name = format!("{raw:08X}:{:04X}", addr.port());
    sockets.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        words.nth(1).filter(|local| *local == name)?;
        words.nth(5)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};

    #[test]
    fn the_user_of_a_socket_is_told() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let addr = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        assert!(is_own_user(addr));
        drop(socket);
        assert!(!is_own_user(addr));
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n \
                    12: 0100007F:1F90 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 5 2 0 0\n";
        if cfg!(target_endian = "little") {
            assert_eq!(owner(list, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080)), Some(1001));
        }
        assert_eq!(owner(list, SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8081)), None);
    }
}
