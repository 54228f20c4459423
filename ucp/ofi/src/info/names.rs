//! Nodes and services, and the socket addresses of this host.

use std::ffi::CString;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use crate::abi::flags;
use crate::name_server::{self, Told};
use crate::sockaddr;

/// The first socket address of a node and a service, of which one may be missing.
pub(super) fn resolve(
    node: Option<&str>,
    service: Option<&str>,
    call_flags: u64,
    addr_format: u32,
) -> Result<SocketAddr, String> {
    Ok(resolve_all(node, service, call_flags, addr_format)?[0])
}

/// The name that the endpoint of a node and a service tells.
pub(super) fn ask(node: Option<&str>, service: Option<&str>, call_flags: u64) -> Result<Told, String> {
    name_server::ask(&resolve_all(node, service, call_flags, flags::FORMAT_UNSPEC)?)
}

/// All of their socket addresses, of which there is at least one.
fn resolve_all(
    node: Option<&str>,
    service: Option<&str>,
    call_flags: u64,
    addr_format: u32,
) -> Result<Vec<SocketAddr>, String> {
    let c_text = |text: Option<&str>| text.map(|text| CString::new(text).unwrap_or_default());
    let (c_node, c_service) = (c_text(node), c_text(service));
    // SAFETY: zeros are a value of this structure.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = match addr_format {
        flags::SOCKADDR_IN => libc::AF_INET,
        flags::SOCKADDR_IN6 => libc::AF_INET6,
        _ => libc::AF_UNSPEC,
    };
    hints.ai_socktype = libc::SOCK_STREAM;
    if call_flags & flags::NUMERICHOST != 0 {
        hints.ai_flags |= libc::AI_NUMERICHOST;
    }
    if call_flags & flags::SOURCE != 0 {
        hints.ai_flags |= libc::AI_PASSIVE;
    }
    let at = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let mut list = std::ptr::null_mut();
    // SAFETY: the texts and hints outlive the call, which sets `list`.
    let error = unsafe { libc::getaddrinfo(at(&c_node), at(&c_service), &hints, &mut list) };
    if error != 0 {
        return Err(format!("{node:?}, {service:?} cannot be resolved (getaddrinfo: {error})"));
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: `getaddrinfo` has made the list.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an entry has a whole address.
        found.extend(unsafe { sockaddr::of_caller(entry.ai_addr.cast()) });
        next = entry.ai_next;
    }
    // SAFETY: as above; it is freed once.
    unsafe { libc::freeaddrinfo(list) };
    if found.is_empty() {
        return Err(format!("{node:?}, {service:?} have no IP address"));
    }
    Ok(found)
}

/// Address of this host on the way to another, with port 0. Nothing is sent.
pub(super) fn source_to(dest: SocketAddr) -> Result<SocketAddr, String> {
    let any: SocketAddr = if dest.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    // A port is needed to connect, whichever it is.
    let at = SocketAddr::new(dest.ip(), if dest.port() == 0 { 9 } else { dest.port() });
    let source = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(at)?;
        socket.local_addr()
    });
    let source = source.map_err(|error| format!("there is no way to {dest}: {error}"))?;
    Ok(SocketAddr::new(source.ip(), 0))
}

/// Addresses of the network interfaces that are up, with port 0: other hosts reach the first ones.
pub(super) fn of_this_host() -> Vec<SocketAddr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the call sets `list`.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    // SAFETY: `getifaddrs` has made the list.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let is_up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: an entry has a whole address, or none.
        if let Some(addr) = unsafe { sockaddr::of_caller(entry.ifa_addr.cast()) }
            && is_up
        {
            found.push(SocketAddr::new(addr.ip(), 0));
        }
    }
    // SAFETY: as above; it is freed once.
    unsafe { libc::freeifaddrs(list) };
    found.retain(|addr| !matches!(addr.ip(), IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80));
    found.sort_by_key(|addr| (addr.ip().is_loopback(), addr.is_ipv6()));
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_services_are_resolved() {
        let numeric = flags::NUMERICHOST;
        let at: SocketAddr = "127.0.0.1:80".parse().unwrap();
        assert_eq!(resolve(Some("127.0.0.1"), Some("80"), numeric, flags::FORMAT_UNSPEC), Ok(at));
        assert!(resolve(Some("localhost"), None, numeric, flags::FORMAT_UNSPEC).is_err());
        assert!(resolve(Some("127.0.0.1"), None, numeric, flags::SOCKADDR_IN6).is_err());
        let any = resolve(None, Some("81"), flags::SOURCE, flags::SOCKADDR_IN);
        assert_eq!(any, Ok("0.0.0.0:81".parse().unwrap()));
        assert_eq!(source_to(at), Ok("127.0.0.1:0".parse().unwrap()));
        assert!(of_this_host().iter().all(|addr| addr.port() == 0));
    }
}
