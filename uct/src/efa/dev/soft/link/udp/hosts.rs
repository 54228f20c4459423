//! IPv6 hosts of the job, as a setting names them. A node's number has the last 32 bits of an IPv6 address
//! only, so hosts in different /96 networks find each other by this list.

use crate::api::OpenError;
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};

/// IPv6 addresses of a list: addresses and host names with commas between, or `@` and a file with one in each
/// line, of which the first word counts and `#` begins a comment. Names are looked up by the system; one that
/// has IPv4 addresses only brings nothing, as IPv4 hosts need no list.
///
/// # Errors
/// Fails for a file that cannot be read and for a name that the system does not know, and says which.
pub fn addresses(list: &str) -> Result<Vec<Ipv6Addr>, OpenError> {
    let refused = |why: String| OpenError::Config(format!("SOFTEFA_UDP_HOSTS={list}: {why}"));
    let text = match list.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).map_err(|e| refused(e.to_string()))?,
        None => list.replace(',', "\n"),
    };
    let mut all = Vec::new();
    for line in text.lines() {
        let Some(host) = line.split('#').next().and_then(|line| line.split_whitespace().next()) else {
            continue;
        };
        all.extend(of_host(host).map_err(|e| refused(format!("{host}: {e}")))?);
    }
    Ok(all)
}

fn of_host(host: &str) -> std::io::Result<Vec<Ipv6Addr>> {
    let found: Vec<IpAddr> = match host.parse() {
        Ok(ip) => vec![ip],
        Err(_) => (host, 0).to_socket_addrs()?.map(|addr| addr.ip()).collect(),
    };
    let usable = |ip| match ip {
        IpAddr::V6(ip) if !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none() => Some(ip),
        _ => None,
    };
    Ok(found.into_iter().filter_map(usable).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_names_and_files() {
        let of = |list: &str| addresses(list).unwrap_or_else(|e| panic!("{e}"));
        let [a, b]: [Ipv6Addr; 2] = ["2001:db8::1:a", "fd00::b"].map(|text| text.parse().unwrap());
        assert!(of("").is_empty());
        assert_eq!(of("2001:db8::1:a, fd00::b,10.0.0.1"), [a, b]);
        assert!(of("fe80::1,::ffff:10.0.0.1,127.0.0.1").is_empty());
        let path = std::env::temp_dir().join(format!("softefa-hosts-{}", std::process::id()));
        std::fs::write(&path, "# of the job\n2001:db8::1:a slots=4\n\nfd00::b # second\n").unwrap();
        let read = addresses(&format!("@{}", path.display()));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), [a, b]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let why = |list: &str| addresses(list).unwrap_err().to_string();
        let unknown = why("fd00::b,no-host.invalid");
        assert!(unknown.contains("SOFTEFA_UDP_HOSTS") && unknown.contains("no-host.invalid: "), "{unknown}");
        assert!(why("@/nowhere/hosts").contains("/nowhere/hosts"));
    }
}
