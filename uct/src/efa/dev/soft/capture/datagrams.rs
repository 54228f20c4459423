//! Captures of the UDP link's datagrams, if `SOFTEFA_UDP_PCAP` names a file: each as a packet of IP, so that
//! `efa-dump --udp` and Wireshark read it as a capture of a network (docs/softefa-capture.md).
//!
//! A sealed datagram is recorded as it was before it was sealed, or is after it was opened, behind its clear
//! header ([`usnic::auth::opened_header`]). So the file is for its owner only.

use super::{CaptureFile, lock, wall_clock};
use crate::api::OpenError;
use arrayvec::ArrayVec;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use usnic::MAX_FLOWS;
use usnic::auth::{CLEAR, opened_header};

/// LINKTYPE_RAW: packets begin with the header of IPv4 or IPv6.
const LINKTYPE: u16 = 101;
const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const HOPS: u8 = 64;

/// Access of one NIC to its capture file.
pub(in super::super) struct DatagramCapture {
    file: Arc<CaptureFile>,
    own: SocketAddr,
    /// Ports of the flows behind the first.
    ports: [u16; MAX_FLOWS - 1],
}

impl DatagramCapture {
    /// Opens or shares the file, for a NIC with this address.
    pub fn open(name: &str, own: SocketAddr, ports: [u16; MAX_FLOWS - 1]) -> Result<Self, OpenError> {
        let file = CaptureFile::open("SOFTEFA_UDP_PCAP", name, LINKTYPE, 0o600)?;
        Ok(DatagramCapture { file, own, ports })
    }

    /// Records a datagram that the kernel has taken, and the header in which it was sealed.
    #[cold]
    pub fn sent(&self, flow: u8, to: SocketAddr, sealed: Option<[u8; CLEAR]>, datagram: &[u8]) {
        let port = usize::from(flow).checked_sub(1).and_then(|at| self.ports.get(at));
        let from = SocketAddr::new(self.own.ip(), port.copied().unwrap_or(self.own.port()));
        self.record(false, (from, to), sealed, datagram);
    }

    /// Records what has arrived, unless it is sealed: that is recorded when it is open, behind the header
    /// that is returned.
    #[cold]
    pub fn arrived(&self, may_be_sealed: bool, from: SocketAddr, datagram: &[u8]) -> Option<[u8; CLEAR]> {
        let sealed = may_be_sealed.then(|| opened_header(datagram)).flatten();
        if sealed.is_none() {
            self.received(from, None, datagram);
        }
        sealed
    }

    /// Records a datagram that has arrived, and the header in which it was sealed.
    #[cold]
    pub fn received(&self, from: SocketAddr, sealed: Option<[u8; CLEAR]>, datagram: &[u8]) {
        self.record(true, (from, self.own), sealed, datagram);
    }

    fn record(
        &self,
        is_inbound: bool,
        ends: (SocketAddr, SocketAddr),
        sealed: Option<[u8; CLEAR]>,
        bytes: &[u8],
    ) {
        let sealed = sealed.as_ref().map_or(&[][..], |sealed| sealed);
        let headers = headers(ends, sealed.len() + bytes.len());
        lock(&self.file.writer).packet(wall_clock(), is_inbound, &[&headers, sealed, bytes]);
    }

    /// Writes what was recorded to the file.
    #[cold]
    pub fn flush(&self) {
        lock(&self.file.writer).flush();
    }
}

/// Headers of IP and UDP before a payload of `len` bytes. Checksums are zero: a capture without them.
fn headers((from, to): (SocketAddr, SocketAddr), len: usize) -> ArrayVec<u8, 48> {
    let length = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    let mut all = ArrayVec::new();
    // They are shorter than the room.
    let mut add = |bytes: &[u8]| all.extend(bytes.iter().copied());
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            add(&[0x45, 0]);
            add(&length(20 + UDP_HEADER + len));
            add(&[0, 0, 0, 0, HOPS, UDP, 0, 0]);
            add(&from.octets());
            add(&to.octets());
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            add(&[0x60, 0, 0, 0]);
            add(&length(UDP_HEADER + len));
            add(&[UDP, HOPS]);
            add(&octets(from));
            add(&octets(to));
        }
    }
    add(&from.port().to_be_bytes());
    add(&to.port().to_be_bytes());
    add(&length(UDP_HEADER + len));
    add(&[0, 0]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_families() {
        let of = |from: &str, to: &str, len| headers((from.parse().unwrap(), to.parse().unwrap()), len);
        let four = of("10.0.0.1:258", "10.0.0.2:772", 100);
        let want =
            [0x45, 0, 0, 128, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 3, 4, 0, 108, 0, 0];
        assert_eq!(four[..], want);
        let six = of("[::1]:258", "[::2]:772", 100);
        assert_eq!((six.len(), &six[4..8], six[23], six[39]), (48, &[0, 108, 17, 64][..], 1, 2));
        assert_eq!(of("[::1]:1", "10.0.0.2:2", 70_000).len(), 48, "what cannot be does no harm");
    }
}
