//! Where the sockets listen, and the address that peers are told.

use super::UdpConfig;
use super::interfaces::{self, Local};
use super::socket::{Socket, SocketConfig};
use crate::api::OpenError;
use std::net::{IpAddr, SocketAddr};
use usnic::addr::{Advertised, BadSetting};

/// Binds the first port of the range that is free.
pub(super) fn bind(ip: IpAddr, (first, last): (u16, u16), config: SocketConfig) -> Result<Socket, OpenError> {
    let mut failed = None;
    for port in first..=last.max(first) {
        match Socket::bind((ip, port).into(), config) {
            Ok(socket) => return Ok(socket),
            Err(e) => failed = Some(e),
        }
    }
    Err(failed.unwrap_or_else(|| OpenError::Config("SOFTEFA_UDP_PORTS names no port".into())))
}

/// The address to bind. On a host with several addresses it is the advertised one, so that datagrams leave
/// from it. If the advertised address is not local, or has a port that the device does not bind, a NAT is in
/// between and the chosen address is used.
pub(super) fn bind_addr(chosen: Local, config: &UdpConfig) -> Result<Local, OpenError> {
    let Ok(told) = config.address.parse::<Advertised>() else { return Ok(chosen) };
    let (first, last) = config.ports;
    let is_ours = told.port.is_none_or(|port| (first..=last).contains(&port));
    if !is_ours || told.ip == chosen.ip {
        return Ok(chosen);
    }
    Ok(interfaces::own(told.ip)?.unwrap_or(chosen))
}

/// Address by which peers reach this host.
pub(super) fn advertised(address: &str, local: SocketAddr) -> Result<SocketAddr, OpenError> {
    if address.is_empty() {
        return Ok(local);
    }
    let refused = |why: String| OpenError::Config(format!("SOFTEFA_UDP_ADDRESS={address}: {why}"));
    let told: Advertised = address.parse().map_err(|bad: BadSetting| refused(bad.to_string()))?;
    if told.ip.is_ipv4() != local.is_ipv4() {
        return Err(refused(format!("the device listens at {}, of the other kind of address", local.ip())));
    }
    Ok(told.socket_addr(local.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::efa::dev::soft::SoftConfig;
    use ucs::config::{Source, Table};

    #[test]
    fn a_host_with_several_addresses_listens_at_the_one_that_peers_are_told() {
        let at = |address: &str, ports: &str| {
            let source = Source::empty().with("SOFTEFA_UDP", "y").with("SOFTEFA_UDP_ADDRESS", address);
            let source = if ports.is_empty() { source } else { source.with("SOFTEFA_UDP_PORTS", ports) };
            let config = SoftConfig::load(&source).unwrap().udp().unwrap();
            let chosen = interfaces::choose(&config.net).unwrap();
            bind_addr(chosen, &config).unwrap().ip.to_string()
        };
        assert_eq!(at("", ""), "127.0.0.1");
        assert_eq!(at("127.0.0.2", ""), "127.0.0.2");
        assert_eq!(at("127.0.0.2:4000", "4000-4001"), "127.0.0.2");
        // A translator has the port, or the address.
        assert_eq!(at("127.0.0.2:4000", ""), "127.0.0.1");
        assert_eq!(at("127.0.0.2:4000", "5000"), "127.0.0.1");
        assert_eq!((at("192.0.2.7", ""), at("2001:db8::7", "")), ("127.0.0.1".into(), "127.0.0.1".into()));
    }

    #[test]
    fn the_advertised_address_is_given_with_or_without_a_port() {
        let told = |text, local: &str| advertised(text, local.parse().unwrap()).ok().map(|it| it.to_string());
        for (text, local, want) in [
            ("", "127.0.0.1:7", "127.0.0.1:7"),
            ("10.0.0.1", "127.0.0.1:7", "10.0.0.1:7"),
            ("10.0.0.1:9", "127.0.0.1:7", "10.0.0.1:9"),
            ("", "[::1]:7", "[::1]:7"),
            ("2001:db8::7", "[::1]:7", "[2001:db8::7]:7"),
            ("[2001:db8::7]:9", "[::1]:7", "[2001:db8::7]:9"),
        ] {
            assert_eq!(told(text, local).as_deref(), Some(want), "{text}");
        }
        // Peers could not send to these, or not from a socket of the other kind.
        for bad in ["nowhere", "2001:db8::7", "10.0.0.1:0", "0.0.0.0"] {
            assert_eq!(told(bad, "127.0.0.1:7"), None, "{bad}");
        }
        assert_eq!(told("10.0.0.1", "[::1]:7"), None);
    }
}
