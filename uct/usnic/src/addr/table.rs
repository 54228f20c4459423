//! Network addresses of nodes. That of an IPv4 node is its number. Of an IPv6 node the number has the last 32
//! bits: a host of the job whose address ends so is taken, if hosts were given, else the node is looked for
//! in this node's own /96 network, until a message from it has told its address.

use super::Node;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Addresses that messages have told, and how to guess others.
pub struct NodeTable {
    own: IpAddr,
    most: usize,
    /// Hosts of the job by the last 32 bits of their addresses.
    hosts: HashMap<u32, Ipv6Addr>,
    learned: HashMap<Node, SocketAddr>,
}

impl NodeTable {
    /// A table that remembers up to `most` nodes, of a host with this address.
    pub fn new(own: IpAddr, most: usize) -> NodeTable {
        NodeTable { own, most, hosts: HashMap::new(), learned: HashMap::new() }
    }

    /// Names the IPv6 hosts of the job, of which any network may be.
    ///
    /// # Errors
    /// Fails if two of them have the same last 32 bits, and names both.
    pub fn add_hosts(&mut self, hosts: impl IntoIterator<Item = Ipv6Addr>) -> Result<(), String> {
        for host in hosts {
            match self.hosts.entry(host.to_bits() as u32) {
                Entry::Occupied(other) if *other.get() != host => {
                    return Err(format!("the last 32 bits of {} and {host} are the same", other.get()));
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(place) => {
                    place.insert(host);
                }
            }
        }
        Ok(())
    }

    /// Address that datagrams for a node go to; `None` for an IPv6 node that is not known here, on a host
    /// without an IPv6 address.
    #[inline]
    pub fn socket_addr(&self, node: Node) -> Option<SocketAddr> {
        if let Some(addr) = self.learned.get(&node) {
            return Some(*addr);
        }
        if let Some(addr) = node.socket_addr_v4() {
            return Some(addr.into());
        }
        let IpAddr::V6(own) = self.own else { return None };
        if let Some(host) = self.hosts.get(&node.low_bits()) {
            return Some((*host, node.port()).into());
        }
        let network = own.to_bits() & !u128::from(u32::MAX);
        Some((Ipv6Addr::from_bits(network | u128::from(node.low_bits())), node.port()).into())
    }

    /// Remembers the address from which an authentic message of a node came. A network in between may have
    /// changed address and port.
    ///
    /// # Errors
    /// Fails if two IPv6 hosts have the same last 32 bits, port and device, and names both; or if the table
    /// is full.
    pub fn learn(&mut self, node: Node, from: SocketAddr) -> Result<(), String> {
        if self.socket_addr(node) == Some(from) && !node.is_v6() {
            return Ok(());
        }
        match self.learned.get(&node) {
            Some(known) if known.ip() != from.ip() && node.is_v6() => Err(format!(
                "{known} and {from} have the same node number {node}; give one of them another port or \
                 address (SOFTEFA_UDP_ADDRESS)"
            )),
            None if self.learned.len() >= self.most => {
                Err(format!("{from}: {} addresses of peers are known already", self.most))
            }
            _ => {
                self.learned.insert(node, from);
                Ok(())
            }
        }
    }

    /// Forgets the address of a node that is gone.
    pub fn forget(&mut self, node: Node) {
        self.learned.remove(&node);
    }

    /// Error for a node whose address is not known.
    pub fn unknown(&self, node: Node) -> String {
        format!(
            "the address of {node} is not known on this host ({}); it has no IPv6 address that could reach it",
            self.own
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ipv4_nodes_are_their_number_until_a_network_changes_it() {
        let mut table = NodeTable::new(addr("10.0.0.9:1").ip(), 1);
        let node = Node::new(0, addr("10.0.0.1:5000"));
        assert_eq!(table.socket_addr(node), Some(addr("10.0.0.1:5000")));
        assert_eq!(table.learn(node, addr("10.0.0.1:5000")), Ok(()));
        assert_eq!(table.learn(node, addr("192.0.2.7:61000")), Ok(()));
        assert_eq!(table.socket_addr(node), Some(addr("192.0.2.7:61000")));
        assert_eq!(table.learn(node, addr("192.0.2.7:61001")), Ok(()), "rebound");
        let other = Node::new(0, addr("10.0.0.2:5000"));
        let full = table.learn(other, addr("192.0.2.7:61002")).unwrap_err();
        assert!(full.contains("1 addresses"), "{full}");
        table.forget(node);
        assert_eq!(table.socket_addr(node), Some(addr("10.0.0.1:5000")));
    }

    #[test]
    fn hosts_of_the_job_are_found_in_any_network() {
        let mut table = NodeTable::new(addr("[fd00:1::1:a]:1").ip(), 8);
        let hosts = ["2001:db8::2:b", "fd00:1::1:a", "2001:db8::2:b"].map(|text| text.parse().unwrap());
        assert_eq!(table.add_hosts(hosts), Ok(()));
        let node = |text: &str| Node::new(0, addr(text));
        assert_eq!(table.socket_addr(node("[2001:db8::2:b]:7")), Some(addr("[2001:db8::2:b]:7")));
        assert_eq!(table.socket_addr(node("[fd00:1::c]:7")), Some(addr("[fd00:1::c]:7")), "not named");
        table.learn(node("[2001:db8::2:b]:7"), addr("[2001:db8::2:b]:9")).unwrap();
        assert_eq!(table.socket_addr(node("[2001:db8::2:b]:7")), Some(addr("[2001:db8::2:b]:9")));
        let same = table.add_hosts(["fd00:9::2:b".parse().unwrap()]).unwrap_err();
        assert!(same.contains("2001:db8::2:b and fd00:9::2:b"), "{same}");
    }

    #[test]
    fn ipv6_nodes_are_of_the_own_network_or_learned() {
        let mut table = NodeTable::new(addr("[fd00:1::a]:1").ip(), 8);
        let near = Node::new(0, addr("[fd00:1::b]:5000"));
        let far = Node::new(0, addr("[2001:db8::c]:5000"));
        assert_eq!(table.socket_addr(near), Some(addr("[fd00:1::b]:5000")));
        assert_ne!(table.socket_addr(far), Some(addr("[2001:db8::c]:5000")), "a guess");
        table.learn(far, addr("[2001:db8::c]:5000")).unwrap();
        assert_eq!(table.socket_addr(far), Some(addr("[2001:db8::c]:5000")));
        let twice = table.learn(far, addr("[2001:db9::c]:5000")).unwrap_err();
        assert!(twice.contains("[2001:db8::c]:5000 and [2001:db9::c]:5000"), "{twice}");
        let table = NodeTable::new(addr("10.0.0.9:1").ip(), 8);
        assert_eq!(table.socket_addr(near), None);
        assert!(table.unknown(near).contains("[..:0:b]:5000"));
    }
}
