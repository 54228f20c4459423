//! Lengths: of datagrams, of their headers, and of the buffers and windows that take them.

use std::net::IpAddr;
use usnic::Config;

/// Longest datagram used: it holds a message of the default length whole, where the path carries it.
pub(super) const MAX_DATAGRAM: u32 = 9216;
/// Smallest window of the engine, segments.
const MIN_WINDOW: u32 = 64;

/// Bytes of a datagram that the headers of IP and UDP take.
pub fn header_len(ip: IpAddr) -> u32 {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// Longest datagram that is sent from an interface with this address, where `mtu` limits it; 0: it does not.
pub fn longest_datagram(ip: IpAddr, of_interface: u32, mtu: u32) -> u32 {
    let path = if mtu == 0 { of_interface } else { mtu.min(of_interface) };
    path.saturating_sub(header_len(ip)).min(MAX_DATAGRAM)
}

/// Bytes of a socket's buffer that a datagram of this length takes: the kernel counts its own memory, too.
fn truesize(datagram: u32) -> usize {
    datagram as usize * 3 / 2 + 256
}

/// Datagrams on their way to a socket that it has room for, where its buffer has `holds` bytes, as the kernel
/// counts them: what does not fit is lost. A power of two, of the range of
/// [`UdpConfig::window`](super::UdpConfig::window).
pub fn window(holds: usize, datagram: u32) -> u32 {
    let most = Config::default().window;
    let fit = u32::try_from(holds / truesize(datagram)).unwrap_or(most).clamp(MIN_WINDOW, most);
    1 << fit.ilog2()
}

/// Bytes to ask of the kernel for arrivals, so that so many datagrams of this length fit. It counts twice as
/// many.
pub fn rcvbuf_for(datagram: u32, window: u32) -> usize {
    (truesize(datagram) * window as usize).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_fits_the_socket() {
        assert_eq!(window(8 << 20, 1472), 2048);
        assert_eq!(window(425_984, 1472), 128);
        assert_eq!(window(425_984, 9000), 64, "the smallest");
        assert_eq!(window(usize::MAX, 1472), 4096, "the largest");
        // The kernel grants twice what it is asked for.
        for datagram in [1232, 1472, 8972, MAX_DATAGRAM] {
            for wanted in [64, 1024, 4096] {
                assert_eq!(window(2 * rcvbuf_for(datagram, wanted), datagram), wanted);
            }
        }
    }

    #[test]
    fn datagrams_leave_room_for_their_headers() {
        let [v4, v6] = ["10.0.0.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        assert_eq!((longest_datagram(v4, 1500, 0), longest_datagram(v6, 1500, 0)), (1472, 1452));
        assert_eq!((longest_datagram(v4, 65_536, 0), longest_datagram(v6, 9000, 1280)), (9216, 1232));
    }
}
