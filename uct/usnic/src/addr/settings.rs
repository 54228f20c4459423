//! Settings of addresses, as texts: the network that is used, the range of ports, the address that peers are
//! told.

use core::net::{IpAddr, SocketAddr};
use core::str::FromStr;
use std::fmt;

/// A text that is no setting of its kind. The text of the error says what is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadSetting(pub &'static str);

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.0)
    }
}

impl std::error::Error for BadSetting {}

/// Longest name of an interface (`IFNAMSIZ` less its end).
const LONGEST_NAME: usize = 15;

/// The network that a device uses: an interface, or the addresses of a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NetSpec {
    /// An interface by name.
    Iface(String),
    /// Addresses whose first bits are those of this one.
    Cidr(IpAddr, u8),
}

impl NetSpec {
    /// Text for errors.
    pub const EXPECTED: &str = "an interface (eth0), a network (10.1.0.0/16) or an address (10.1.2.3)";

    /// Chooses the address of this host to use, from those of its interfaces, in their order. IPv4 goes
    /// before IPv6. Link-local IPv6 addresses are not taken, since they mean nothing without an interface.
    ///
    /// # Errors
    /// Fails if none fits, and names those there are.
    pub fn choose(&self, all: &[(&str, IpAddr)]) -> Result<IpAddr, String> {
        let fits = |ip: IpAddr| all.iter().any(|(name, other)| *other == ip && self.includes(name, ip));
        let usable = |ip: &IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let mut found: Vec<IpAddr> = all.iter().map(|(_, ip)| *ip).filter(usable).collect();
        found.retain(|ip| fits(*ip));
        found.iter().find(|ip| ip.is_ipv4()).or(found.first()).copied().ok_or_else(|| {
            let there: Vec<String> = all.iter().map(|(name, ip)| format!("{name} {ip}")).collect();
            match there.len() {
                0 => format!("no address for {self}: this host has none"),
                _ => format!("no address for {self}; there are {}", there.join(", ")),
            }
        })
    }

    fn includes(&self, name: &str, ip: IpAddr) -> bool {
        match self {
            NetSpec::Iface(wanted) => wanted == name,
            NetSpec::Cidr(net, bits) => match (net, ip) {
                (IpAddr::V4(net), IpAddr::V4(ip)) => {
                    (net.to_bits() ^ ip.to_bits()).leading_zeros() >= u32::from(*bits)
                }
                (IpAddr::V6(net), IpAddr::V6(ip)) => {
                    (net.to_bits() ^ ip.to_bits()).leading_zeros() >= u32::from(*bits)
                }
                _ => false,
            },
        }
    }
}

fn longest_prefix(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl FromStr for NetSpec {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<NetSpec, BadSetting> {
        const BAD: BadSetting = BadSetting(NetSpec::EXPECTED);
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(NetSpec::Cidr(ip, longest_prefix(ip)));
        }
        if let Some((ip, bits)) = text.split_once('/') {
            let (Ok(ip), Ok(bits)) = (ip.parse::<IpAddr>(), bits.parse::<u8>()) else { return Err(BAD) };
            return if bits <= longest_prefix(ip) { Ok(NetSpec::Cidr(ip, bits)) } else { Err(BAD) };
        }
        let is_name = !text.is_empty() && text.len() <= LONGEST_NAME && text != "." && text != "..";
        let plain = |c: char| c.is_ascii_graphic() && c != ':';
        // Digits and dots are an address with a slip, and not a name.
        let is_address = text.chars().all(|c| c.is_ascii_digit() || c == '.');
        if is_name && text.chars().all(plain) && !is_address {
            Ok(NetSpec::Iface(text.into()))
        } else {
            Err(BAD)
        }
    }
}

impl fmt::Display for NetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetSpec::Iface(name) => f.write_str(name),
            NetSpec::Cidr(ip, bits) if *bits == longest_prefix(*ip) => write!(f, "{ip}"),
            NetSpec::Cidr(ip, bits) => write!(f, "{ip}/{bits}"),
        }
    }
}

/// UDP ports of which each device takes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Text for errors.
    pub const EXPECTED: &str = "a port (5000), a range (5000-5999) or 0 for any";

    /// Any port: the system chooses one.
    pub const ANY: PortRange = PortRange { first: 0, last: 0 };

    /// Ports to try, in this order: each once, beginning at a place that `salt` tells, so that processes that
    /// start together meet few ports in use. Port 0 alone if the system chooses.
    pub fn ports(self, salt: u64) -> impl Iterator<Item = u16> {
        let count = u64::from(self.last - self.first) + 1;
        (0..count).map(move |n| self.first + ((salt % count + n) % count) as u16)
    }
}

impl FromStr for PortRange {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<PortRange, BadSetting> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(0), Ok(0)) => Ok(PortRange::ANY),
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(PortRange { first, last }),
            _ => Err(BadSetting(PortRange::EXPECTED)),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// Address that peers are told, where it is another than the socket's: behind a network that translates
/// addresses, or on a host with several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertised {
    /// Address.
    pub ip: IpAddr,
    /// Port; `None`: the socket's.
    pub port: Option<u16>,
}

impl Advertised {
    /// Text for errors.
    pub const EXPECTED: &str = "an address (192.0.2.7, 2001:db8::7) or address and port (192.0.2.7:5000)";

    /// Address that peers are told of a socket at this port.
    pub fn socket_addr(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, self.port.unwrap_or(port))
    }
}

impl FromStr for Advertised {
    type Err = BadSetting;

    fn from_str(text: &str) -> Result<Advertised, BadSetting> {
        let parsed = match (text.parse::<IpAddr>(), text.parse::<SocketAddr>()) {
            (Ok(ip), _) => Some(Advertised { ip, port: None }),
            (_, Ok(addr)) if addr.port() != 0 => Some(Advertised { ip: addr.ip(), port: Some(addr.port()) }),
            _ => None,
        };
        // Peers could not send there.
        parsed
            .filter(|it| !it.ip.is_unspecified() && !it.ip.is_multicast())
            .ok_or(BadSetting(Advertised::EXPECTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let spec = |text: &str| text.parse::<NetSpec>();
        let hosts: Vec<(&str, IpAddr)> = [
            ("lo", "127.0.0.1"),
            ("eth0", "fe80::1"),
            ("eth0", "2001:db8::1"),
            ("eth0", "10.1.2.3"),
            ("eth1", "10.2.0.1"),
        ]
        .map(|(name, ip)| (name, ip.parse().unwrap()))
        .to_vec();
        for (text, want) in [
            ("eth0", "10.1.2.3"),
            ("lo", "127.0.0.1"),
            ("10.0.0.0/8", "10.1.2.3"),
            ("10.2.0.0/16", "10.2.0.1"),
            ("0.0.0.0/0", "127.0.0.1"),
            ("10.2.0.1", "10.2.0.1"),
            ("2001:db8::/32", "2001:db8::1"),
        ] {
            let found = spec(text).unwrap().choose(&hosts);
            assert_eq!(found, Ok(want.parse().unwrap()), "{text}");
            assert_eq!(spec(text).unwrap().to_string(), text);
        }
        let none = spec("192.168.0.0/16").unwrap().choose(&hosts).unwrap_err();
        assert!(none.starts_with("no address for 192.168.0.0/16; there are lo 127.0.0.1"), "{none}");
        assert!(spec("fe80::/10").unwrap().choose(&hosts).is_err());
        assert!(spec("eth0").unwrap().choose(&[]).unwrap_err().ends_with("this host has none"));
        for bad in
            ["", "10.0.0.0/33", "::/129", "eth0/8", "10.0.0", "a b", "an-interface-too-long", "a/b", ".."]
        {
            assert_eq!(spec(bad), Err(BadSetting(NetSpec::EXPECTED)), "{bad}");
        }
    }

    #[test]
    fn ranges_of_ports() {
        let range: PortRange = "5000-5003".parse().unwrap();
        assert_eq!(range.ports(6).collect::<Vec<_>>(), [5002, 5003, 5000, 5001]);
        assert_eq!(range.to_string(), "5000-5003");
        assert_eq!("1-65535".parse::<PortRange>().unwrap().ports(u64::MAX).count(), 65535);
        assert_eq!("0".parse::<PortRange>().unwrap().ports(9).collect::<Vec<_>>(), [0]);
        assert_eq!("7".parse::<PortRange>().unwrap().ports(9).collect::<Vec<_>>(), [7]);
        for bad in ["", "-", "5-4", "0-9", "65536", "1-2-3", "a"] {
            assert!(bad.parse::<PortRange>().is_err(), "{bad}");
        }
    }

    #[test]
    fn advertised_addresses() {
        let parse = |text: &str| text.parse::<Advertised>().map(|it| it.socket_addr(9).to_string());
        assert_eq!(parse("192.0.2.7").unwrap(), "192.0.2.7:9");
        assert_eq!(parse("192.0.2.7:5000").unwrap(), "192.0.2.7:5000");
        assert_eq!(parse("2001:db8::7").unwrap(), "[2001:db8::7]:9");
        assert_eq!(parse("[2001:db8::7]:5000").unwrap(), "[2001:db8::7]:5000");
        for bad in ["", "host", "0.0.0.0", "224.0.0.1", "192.0.2.7:0", "192.0.2.7:", "::"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
