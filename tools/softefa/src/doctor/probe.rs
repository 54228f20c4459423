//! Datagrams by which two doctors try the way between their hosts. An answer is as long as its question, so
//! that nobody gains by asking in another's name.
//!
//! | at | bytes | |
//! |---|---|---|
//! | 0 | 4 | `sefd` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | 0 question, 1 answer |
//! | 6 | 1 | answers: whether the question's code is that of the listener's secret ([`Agreement`]) |
//! | 7 | 1 | 1: sent whole or not at all, and so is the answer |
//! | 8 | 8 | number of the question |
//! | 16 | 4 | bytes of the datagram |
//! | 20 | 4 | answers: bytes of the listener's receive buffer |
//! | 24 | 8 | zero |
//! | 32 | 32 | HMAC-SHA256 of the above by the secret; zero without one |

use rustix::net::{self, AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use uct::efa::dev::soft::secret;
use usnic::auth::MacKey;

/// Shortest probe, bytes.
pub const SHORTEST: usize = 64;
/// Longest one, bytes.
pub const LONGEST: usize = 65_507;
/// Bytes of a receive buffer, at least as many as the device asks for: the answer tells how many are granted.
const RECV_BUFFER: usize = 32 << 20;

const MAGIC: [u8; 4] = *b"sefd";
const VERSION: u8 = 1;
const HEADER: usize = 32;

/// Whether two sides have the same secret, in the view of the listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agreement {
    /// Neither has one, or the listener has not said.
    None,
    /// Both have the same.
    Same,
    /// Each has another.
    Different,
    /// The listener alone has one.
    Wanted,
    /// The listener has none.
    Unwanted,
}

impl Agreement {
    const ALL: [Agreement; 5] =
        [Agreement::None, Agreement::Same, Agreement::Different, Agreement::Wanted, Agreement::Unwanted];

    fn of(byte: u8) -> Option<Agreement> {
        Agreement::ALL.get(usize::from(byte)).copied()
    }
}

/// Contents of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    pub is_answer: bool,
    pub agreement: Agreement,
    pub whole: bool,
    pub number: u64,
    pub len: u32,
    pub buffer: u32,
}

/// Outcome of the check of a code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// There is none.
    Absent,
    /// It is that of the own secret.
    Right,
    /// It is another's, or there is no own secret.
    Wrong,
}

impl Probe {
    /// Writes the probe to the first `len` bytes of `to`.
    pub fn write(&self, key: Option<&MacKey>, to: &mut [u8]) {
        to.fill(0);
        to[..4].copy_from_slice(&MAGIC);
        to[4] = VERSION;
        to[5] = self.is_answer.into();
        to[6] = self.agreement as u8;
        to[7] = self.whole.into();
        to[8..16].copy_from_slice(&self.number.to_le_bytes());
        to[16..20].copy_from_slice(&self.len.to_le_bytes());
        to[20..24].copy_from_slice(&self.buffer.to_le_bytes());
        if let Some(key) = key {
            let code = key.sign(&[&to[..HEADER]]);
            to[HEADER..SHORTEST].copy_from_slice(&code);
        }
    }

    /// Reads a probe, and whether its code is right.
    pub fn read(key: Option<&MacKey>, bytes: &[u8]) -> Option<(Probe, Code)> {
        let head = bytes.get(..SHORTEST)?;
        let (head, code) = head.split_at(HEADER);
        if head[..4] != MAGIC || head[4] != VERSION || head[5] > 1 || head[7] > 1 {
            return None;
        }
        let probe = Probe {
            is_answer: head[5] == 1,
            agreement: Agreement::of(head[6])?,
            whole: head[7] == 1,
            number: u64::from_le_bytes(head[8..16].try_into().ok()?),
            len: u32::from_le_bytes(head[16..20].try_into().ok()?),
            buffer: u32::from_le_bytes(head[20..24].try_into().ok()?),
        };
        let code: &[u8; 32] = code.try_into().ok()?;
        let outcome = match key {
            _ if *code == [0; 32] => Code::Absent,
            Some(key) if key.verify(head, code) => Code::Right,
            _ => Code::Wrong,
        };
        (probe.len as usize == bytes.len()).then_some((probe, outcome))
    }
}

/// Key of the probes, if there is a secret.
pub fn key(secret_file: &str) -> Result<Option<MacKey>, String> {
    if secret_file.is_empty() {
        return Ok(None);
    }
    let secret = secret::load(secret_file).map_err(|e| e.to_string())?;
    Ok(Some(secret.mac_key("softefa doctor")))
}

/// Opens a socket as the device does. Returns it with the bytes of its receive buffer.
pub fn open(addr: SocketAddr) -> io::Result<(UdpSocket, usize)> {
    let socket = bound(addr)?;
    // Without privileges the kernel grants what net.core.rmem_max allows.
    if sockopt::set_socket_recv_buffer_size_force(&socket, RECV_BUFFER).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(&socket, RECV_BUFFER);
    }
    // It counts its own overhead, half of the number.
    let granted = sockopt::socket_recv_buffer_size(&socket)? / 2;
    Ok((socket, granted))
}

/// A socket at an address. One of IPv6 leaves the same port of IPv4 to another socket.
fn bound(addr: SocketAddr) -> io::Result<UdpSocket> {
    if addr.is_ipv4() {
        return UdpSocket::bind(addr);
    }
    let socket =
        net::socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(ipproto::UDP))?;
    sockopt::set_ipv6_v6only(&socket, true)?;
    net::bind(&socket, &addr)?;
    Ok(socket.into())
}

/// Has datagrams sent whole or not at all; or cut where a path carries less.
#[allow(unsafe_code)]
pub fn set_whole(socket: &UdpSocket, whole: bool) {
    let is_v4 = socket.local_addr().is_ok_and(|addr| addr.is_ipv4());
    let (level, option, values) = match is_v4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, [libc::IP_PMTUDISC_PROBE, libc::IP_PMTUDISC_DONT]),
        false => {
            let values = [libc::IPV6_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_DONT];
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, values)
        }
    };
    let value: libc::c_int = values[usize::from(!whole)];
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, value) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: the value is an integer of ours, read during the call.
    unsafe { libc::setsockopt(fd, level, option, value, len) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use uct::efa::dev::soft::link::udp::{longest_datagram, rcvbuf_for};
    use usnic::auth::Secret;

    #[test]
    fn the_listener_asks_for_as_much_as_any_device() {
        let longest = longest_datagram([127, 0, 0, 1].into(), u32::MAX, 0);
        assert!(rcvbuf_for(longest, 4096) <= RECV_BUFFER);
    }

    #[test]
    fn a_probe_tells_whether_secrets_agree() {
        let key = |text: &str| Secret::new(text.as_bytes()).unwrap().mac_key("softefa doctor");
        let (ours, other) = (key("the secret of a job"), key("the secret of another"));
        let probe = Probe {
            is_answer: true,
            agreement: Agreement::Wanted,
            whole: true,
            number: 0x0123_4567_89ab,
            len: 100,
            buffer: 7,
        };
        let mut bytes = [9; 100];
        probe.write(Some(&ours), &mut bytes);
        assert_eq!(Probe::read(Some(&ours), &bytes), Some((probe, Code::Right)));
        assert_eq!(Probe::read(Some(&other), &bytes), Some((probe, Code::Wrong)));
        assert_eq!(Probe::read(None, &bytes), Some((probe, Code::Wrong)));
        // One that was cut, changed, or is none of ours.
        assert_eq!(Probe::read(Some(&ours), &bytes[..99]), None);
        assert_eq!(Probe::read(Some(&ours), &bytes[..40]), None);
        bytes[8] ^= 1;
        assert_eq!(Probe::read(Some(&ours), &bytes).map(|(_, code)| code), Some(Code::Wrong));
        bytes[6] = 5;
        assert_eq!(Probe::read(Some(&ours), &bytes), None);
        probe.write(None, &mut bytes);
        assert_eq!(Probe::read(Some(&ours), &bytes), Some((probe, Code::Absent)));
    }
}
