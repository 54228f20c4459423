//! The number of a node, which is the interface id of its device's GID.
//!
//! | Bits | |
//! |---|---|
//! | 56 to 63 | `0x0a`: the address is IPv4; `0x0e`: IPv6 |
//! | 48 to 55 | device |
//! | 32 to 47 | UDP port |
//! | 0 to 31 | IPv4 address; or the last 32 bits of the IPv6 address |
//!
//! No hardware and no other software device has these first octets. All numbers are big endian in the GID,
//! so `fe80::a00:1388:a00:1` is device 0 at `10.0.0.1:5000`.

use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::fmt;

const V4: u8 = 0x0a;
const V6: u8 = 0x0e;

/// A node: a device at a UDP address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(u64);

impl Node {
    /// Node of a device at an address.
    pub fn new(device: u8, addr: SocketAddr) -> Node {
        let (tag, number) = match addr.ip() {
            IpAddr::V4(ip) => (V4, ip.to_bits()),
            IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
                Some(ip) => (V4, ip.to_bits()),
                None => (V6, ip.to_bits() as u32),
            },
        };
        let upper = u32::from(tag) << 24 | u32::from(device) << 16 | u32::from(addr.port());
        Node(u64::from(upper) << 32 | u64::from(number))
    }

    /// The node that an interface id names; `None` if it is none of this form, or has no port.
    pub fn from_u64(iid: u64) -> Option<Node> {
        let node = Node(iid);
        (matches!(node.tag(), V4 | V6) && node.port() != 0).then_some(node)
    }

    /// Interface id of the GID.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    fn tag(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// Number of the device on its host.
    pub fn device(self) -> u8 {
        (self.0 >> 48) as u8
    }

    /// UDP port.
    pub fn port(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Whether the address is IPv6, of which the node has the last 32 bits only.
    pub fn is_v6(self) -> bool {
        self.tag() == V6
    }

    /// Last 32 bits of the address.
    pub(super) fn low_bits(self) -> u32 {
        self.0 as u32
    }

    /// Address, if it is IPv4.
    pub fn socket_addr_v4(self) -> Option<SocketAddrV4> {
        let ip = Ipv4Addr::from_bits(self.low_bits());
        (!self.is_v6()).then(|| SocketAddrV4::new(ip, self.port()))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.socket_addr_v4() {
            Some(addr) => write!(f, "{addr}")?,
            None => {
                let bits = self.low_bits();
                write!(f, "[..:{:x}:{:x}]:{}", bits >> 16, bits & 0xffff, self.port())?;
            }
        }
        if self.device() != 0 { write!(f, " device {}", self.device()) } else { Ok(()) }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv6Addr;
    use proptest::prelude::*;

    #[test]
    fn golden_numbers() {
        let node = Node::new(0, "10.0.0.1:5000".parse().unwrap());
        assert_eq!(node.as_u64(), 0x0a00_1388_0a00_0001);
        let gid = Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(node.as_u64()));
        assert_eq!(gid.to_string(), "fe80::a00:1388:a00:1");
        let node = Node::new(3, "[2001:db8::17:42]:65535".parse().unwrap());
        assert_eq!((node.as_u64(), node.is_v6(), node.device()), (0x0e03_ffff_0017_0042, true, 3));
        assert_eq!(node.to_string(), "[..:17:42]:65535 device 3");
        let mapped = Node::new(0, "[::ffff:10.0.0.1]:5000".parse().unwrap());
        assert_eq!(mapped.to_string(), "10.0.0.1:5000");
    }

    #[test]
    fn other_interface_ids_name_no_node() {
        // Generated, of hardware, given by hand, without a port.
        for iid in [0x0212_3456_789a_bcd0, 0x14b0_33ff_fef8_77cd, 0xa1, 0, 0x0a00_0000_0a00_0001] {
            assert_eq!(Node::from_u64(iid), None, "{iid:x}");
        }
    }

    proptest! {
        #[test]
        fn a_number_gives_back_its_address(device: u8, port in 1u16.., ip: u32) {
            let addr = SocketAddrV4::new(Ipv4Addr::from_bits(ip), port);
            let node = Node::from_u64(Node::new(device, addr.into()).as_u64()).unwrap();
            prop_assert_eq!((node.socket_addr_v4(), node.device()), (Some(addr), device));
        }
    }
}
