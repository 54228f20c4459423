//! Addresses of this host, and what their networks carry.

#![allow(unsafe_code)]

use crate::api::{Error, OpenError};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr};
use ucs::Errno;
use usnic::addr::{BadSetting, NetSpec};

/// An address of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local {
    /// Name of the interface.
    pub name: String,
    /// Address.
    pub ip: IpAddr,
    /// Longest packet of the interface, bytes.
    pub mtu: u32,
}

/// Longest packet of most networks.
const USUAL_MTU: u32 = 1500;

/// Chooses the local address: the first one of an interface of that name, in that network, or equal to that
/// address. Empty: of the loopback interface.
pub fn choose(net: &str) -> Result<Local, OpenError> {
    choose_of(net, list()?)
}

/// This address, if this host has it: of an interface that is up, or any of the loopback network.
pub(super) fn own(ip: IpAddr) -> Result<Option<Local>, OpenError> {
    let all = list()?;
    let found = all.iter().find(|local| local.ip == ip);
    let of_loopback = || all.iter().find(|local| ip.is_ipv4() && ip.is_loopback() && local.ip.is_loopback());
    Ok(found.or_else(of_loopback).map(|local| Local { ip, ..local.clone() }))
}

fn choose_of(net: &str, all: Vec<Local>) -> Result<Local, OpenError> {
    let refused = |why: String| OpenError::Config(format!("SOFTEFA_NET={net}: {why}"));
    let wanted = if net.is_empty() { "127.0.0.0/8" } else { net };
    let spec: NetSpec = wanted.parse().map_err(|bad: BadSetting| refused(bad.to_string()))?;
    let addresses: Vec<(&str, IpAddr)> = all.iter().map(|local| (&*local.name, local.ip)).collect();
    let ip = spec.choose(&addresses).map_err(refused)?;
    let found = all.iter().find(|local| local.ip == ip).cloned();
    found.ok_or_else(|| refused("no address".into()))
}

/// Addresses of interfaces that are up.
fn list() -> Result<Vec<Local>, OpenError> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is ours; the call stores a list there, or fails.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(OpenError::Op(Error::Sys { call: "getifaddrs", errno: Errno::last_os() }));
    }
    let mut all = Vec::new();
    let mut at = first;
    // SAFETY: elements of the list, which ends with null, are valid until it is freed below.
    while let Some(entry) = unsafe { at.as_ref() } {
        all.extend(read(entry));
        at = entry.ifa_next;
    }
    // SAFETY: made by the call above and freed once; what was read was copied.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

fn read(entry: &libc::ifaddrs) -> Option<Local> {
    // SAFETY: null, or an address that lives as long as the entry.
    let address = unsafe { entry.ifa_addr.as_ref() }?;
    if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
        return None;
    }
    let ip = match i32::from(address.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says that the address has this layout; it need not be aligned.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            IpAddr::from(address.sin_addr.s_addr.to_ne_bytes())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            IpAddr::from(address.sin6_addr.s6_addr)
        }
        _ => return None,
    };
    // SAFETY: the name of an entry is a string that lives as long as the entry.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_str().ok()?;
    Some(Local { name: name.into(), ip, mtu: mtu(name).unwrap_or(USUAL_MTU) })
}

/// Longest packet of an interface.
fn mtu(name: &str) -> Option<u32> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // SAFETY: all fields are integers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    let bytes = name.bytes().take(room);
    request.ifr_name.iter_mut().zip(bytes).for_each(|(to, from)| *to = from as libc::c_char);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the request is one of ours with a name that ends with zero; the kernel stores a number.
    if unsafe { libc::ioctl(fd, libc::SIOCGIFMTU, &raw mut request) } != 0 {
        return None;
    }
    // SAFETY: the call above has stored this field.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let local = choose("").unwrap();
        assert!(local.ip.is_loopback() && local.mtu >= USUAL_MTU, "{local:?}");
        assert_eq!(choose(&local.name).unwrap(), local);
        assert_eq!(choose("127.0.0.1").unwrap().ip, Ipv4Addr::LOCALHOST);
    }

    #[test]
    fn a_network_or_a_name_chooses() {
        let local = |name: &str, ip: Ipv4Addr| Local { name: name.into(), ip: ip.into(), mtu: 1500 };
        let all =
            || vec![local("eth0", Ipv4Addr::new(10, 1, 0, 5)), local("eth1", Ipv4Addr::new(192, 168, 7, 9))];
        let chosen = |net: &str| choose_of(net, all()).map(|local| local.name).map_err(|e| e.to_string());
        assert_eq!(chosen("eth1").unwrap(), "eth1");
        assert_eq!(chosen("192.168.0.0/16").unwrap(), "eth1");
        assert_eq!(chosen("0.0.0.0/0").unwrap(), "eth0");
        assert_eq!(chosen("10.1.0.5").unwrap(), "eth0");
        let refused = chosen("ib0").unwrap_err();
        assert!(refused.contains("ib0") && refused.contains("eth0 10.1.0.5"), "{refused}");
        assert!(chosen("10.0.0.0/40").is_err() && chosen("").is_err());
    }
}
