//! `softefa doctor HOST`: tries the way to another host, where a doctor listens.

use super::Finding::{self, Bad, Good, Note};
use super::listen::{PORT, ports};
use super::probe::{self, Agreement, Code, Probe};
use crate::program;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};
use ucs::config::{Source, Table as _};
use uct::efa::dev::soft::SoftConfig;
use uct::efa::dev::soft::link::udp::{
    Local, header_len, local_address, longest_datagram, rcvbuf_for, window,
};
use usnic::auth::MacKey;

/// Time for an answer before the round-trip time is known, and at most.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time for an answer at least.
const SHORTEST_PATIENCE: Duration = Duration::from_millis(50);
/// Questions of each kind, as a path may lose some.
const TRIES: usize = 5;
/// Questions that measure loss and time.
const SAMPLES: usize = 50;

/// A host, and a port if one is given. `None`: a program of this machine.
pub fn parse(name: &OsStr) -> Option<(&str, Option<u16>)> {
    let name = name.to_str()?;
    if let Ok(SocketAddr::V6(_)) = name.parse() {
        let (host, port) = name.strip_prefix('[')?.rsplit_once("]:")?;
        return Some((host, port.parse().ok()));
    }
    if name.parse::<Ipv6Addr>().is_ok() {
        return Some((name, None));
    }
    let (host, port) = match name.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (name, None),
    };
    let is_host = host.parse::<Ipv4Addr>().is_ok()
        || (!host.contains('/') && program::find(OsStr::new(host)).is_err() && resolve(host, 0).is_some());
    is_host.then_some((host, port))
}

/// An address of a host; IPv4 goes before IPv6, as in the device.
fn resolve(host: &str, port: u16) -> Option<SocketAddr> {
    let all: Vec<_> = (host, port).to_socket_addrs().ok()?.collect();
    all.iter().find(|addr| addr.is_ipv4()).or(all.first()).copied()
}

/// All checks of the way to a host, as far as they make sense.
pub fn checks(host: &str, port: Option<u16>, source: &Source) -> Vec<Finding> {
    let config = match SoftConfig::load(source) {
        Ok(config) => config,
        Err(e) => return vec![Bad(format!("settings: {e}"))],
    };
    let port = port.unwrap_or_else(|| ports(&config).first().copied().unwrap_or(PORT));
    let Some(to) = resolve(host, port) else {
        return vec![Bad(format!("address: {host} has no address"))];
    };
    let key = match probe::key(&config.secret_file) {
        Ok(key) => key,
        Err(e) => return vec![Bad(format!("secret: {e}"))],
    };
    let local = match local(&config.net, to) {
        Ok(local) => local,
        Err(e) => return vec![Bad(format!("route: {e}"))],
    };
    let mut all = vec![Good(format!(
        "route: from {} ({}, {} bytes) to {} (so: --net {})",
        local.ip,
        local.name,
        local.mtu,
        to.ip(),
        local.ip
    ))];
    let (socket, granted) = match connected(local.ip, to) {
        Ok(opened) => opened,
        Err(e) => {
            all.push(Bad(format!("socket: {e}")));
            return all;
        }
    };
    let wanted = (longest_datagram(local.ip, local.mtu, config.udp_mtu), config.udp_window);
    all.push(buffer("this host", granted, wanted));
    let mut path = Path { socket, key, local, to, number: 1, patience: PATIENCE };
    match path.first_answer() {
        Err(unreachable) => all.push(unreachable),
        Ok((answer, code)) => {
            all.push(path.quality());
            all.push(buffer("the other host", answer.buffer as usize, wanted));
            all.push(secret(answer.agreement, code));
            all.push(path.mtu(config.udp_mtu));
            if config.udp_ports.0 != 0 {
                all.push(path.ports(&ports(&config)));
            }
        }
    }
    all
}

/// The local address: as set, or that of the route.
fn local(net: &str, to: SocketAddr) -> Result<Local, String> {
    if !net.is_empty() {
        return local_address(net).map_err(|e| e.to_string());
    }
    let route = UdpSocket::bind((any(to.ip()), 0)).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    let addr = route.map_err(|e| format!("none to {}: {e} (fix: ip route)", to.ip()))?;
    local_address(&addr.ip().to_string()).map_err(|e| e.to_string())
}

/// The address of any interface, of the same kind.
fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn connected(ip: IpAddr, to: SocketAddr) -> std::io::Result<(UdpSocket, usize)> {
    let (socket, granted) = probe::open(SocketAddr::new(ip, 0))?;
    socket.connect(to)?;
    Ok((socket, granted))
}

/// Whether a receive buffer holds as many datagrams as may be on their way to it. Its limit is the kernel's.
fn buffer(whose: &str, granted: usize, (datagram, wanted): (u32, u32)) -> Finding {
    let fit = window(2 * granted, datagram).min(wanted);
    let text =
        format!("socket buffer of {whose}: {} KiB, for {fit} datagrams of {datagram} bytes", granted >> 10);
    if fit == wanted {
        return Good(text);
    }
    let enough = rcvbuf_for(datagram, wanted);
    Note(format!(
        "{text}, not {wanted}, are on their way from a peer at most: net.core.rmem_max limits it (fix there: sysctl -w \
         net.core.rmem_max={enough})"
    ))
}

fn secret(agreement: Agreement, code: Code) -> Finding {
    let file = "fix: the same SOFTEFA_SECRET_FILE on both";
    match (agreement, code) {
        (Agreement::Same, Code::Right) => Good("secret: both hosts have the same".into()),
        (Agreement::None, _) => Note(
            "secret: none on either; two hosts then meet with SOFTEFA_INSECURE=y only, and anybody may talk"
                .into(),
        ),
        (Agreement::Wanted, _) => Bad(format!("secret: the other host has one, this one has none ({file})")),
        (Agreement::Unwanted, _) => Bad(format!("secret: this host has one, the other has none ({file})")),
        _ => Bad(format!("secret: each host has another, so they do not meet ({file})")),
    }
}

/// The way to a host, by a socket that is connected to its doctor.
struct Path {
    socket: UdpSocket,
    key: Option<MacKey>,
    local: Local,
    to: SocketAddr,
    number: u64,
    /// Time for an answer.
    patience: Duration,
}

impl Path {
    /// Asks once, with a datagram of `len` bytes. Fails with the error of the socket if nothing comes.
    fn ask(&mut self, len: usize, whole: bool) -> Result<(Probe, Code), ErrorKind> {
        self.number += 1;
        let mut bytes = vec![0; len];
        let question = Probe {
            is_answer: false,
            agreement: Agreement::None,
            whole,
            number: self.number,
            len: len as u32,
            buffer: 0,
        };
        question.write(self.key.as_ref(), &mut bytes);
        probe::set_whole(&self.socket, whole);
        let until = Instant::now() + self.patience;
        self.socket.send(&bytes).map_err(|e| e.kind())?;
        let mut room = vec![0; probe::LONGEST];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut);
            }
            self.socket.set_read_timeout(Some(left)).map_err(|e| e.kind())?;
            let got = self.socket.recv(&mut room).map_err(|e| e.kind())?;
            let answer = Probe::read(self.key.as_ref(), &room[..got]);
            if let Some(answer) = answer.filter(|(p, _)| p.is_answer && p.number == self.number) {
                return Ok(answer);
            }
        }
    }

    fn answers(&mut self, len: usize, whole: bool) -> bool {
        (0..TRIES).any(|_| self.ask(len, whole).is_ok())
    }

    /// The first answer; or why there is none.
    fn first_answer(&mut self) -> Result<(Probe, Code), Finding> {
        let mut last = ErrorKind::TimedOut;
        for _ in 0..TRIES {
            match self.ask(probe::SHORTEST, false) {
                Ok(answer) => return Ok(answer),
                Err(kind) => last = kind,
            }
        }
        Err(Bad(format!("reachable: {}", self.why_silent(last))))
    }

    fn why_silent(&self, kind: ErrorKind) -> String {
        let (ip, port) = (self.to.ip(), self.to.port());
        match kind {
            ErrorKind::ConnectionRefused => format!(
                "{ip} answers, but nobody listens at its UDP port {port} (fix: there, softefa doctor --listen)"
            ),
            ErrorKind::NetworkUnreachable => format!("no route to {ip} (fix: ip route)"),
            ErrorKind::HostUnreachable => {
                format!("{ip} is not there, or a firewall rejects what goes there (fix: ping {ip})")
            }
            ErrorKind::PermissionDenied => {
                format!("a firewall of this host forbids to send to {ip} port {port} (fix: nft list ruleset)")
            }
            // A host that is up refuses a connection, or accepts it.
            _ => match TcpStream::connect_timeout(&self.to, PATIENCE) {
                Err(e) if e.kind() != ErrorKind::ConnectionRefused => {
                    format!(
                        "{ip} does not answer at all: it is down or cut off, or a firewall drops all (fix: ping {ip})"
                    )
                }
                _ => format!(
                    "{ip} is up, but UDP port {port} does not answer: a firewall of either host drops it (fix: open UDP \
                     {port}, or name open ports by SOFTEFA_UDP_PORTS)"
                ),
            },
        }
    }

    /// Loss and round-trip time.
    fn quality(&mut self) -> Finding {
        let mut times = Vec::new();
        for _ in 0..SAMPLES {
            let start = Instant::now();
            if self.ask(probe::SHORTEST, false).is_ok() {
                times.push(start.elapsed());
            }
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or(PATIENCE);
        self.patience = (4 * median).clamp(SHORTEST_PATIENCE, PATIENCE);
        let median = median.as_micros();
        let lost = SAMPLES - times.len();
        let text =
            format!("reachable: {} answers, {lost} of {SAMPLES} lost, {median} µs there and back", self.to);
        if lost == 0 { Good(text) } else { Note(text) }
    }

    /// Whether the longest datagrams of the device arrive.
    fn mtu(&mut self, limit: u32) -> Finding {
        let headers = header_len(self.local.ip) as usize;
        let longest = (longest_datagram(self.local.ip, self.local.mtu, limit) as usize).max(probe::SHORTEST);
        if self.answers(longest, true) {
            return Good(format!("MTU: packets of {} bytes arrive whole", longest + headers));
        }
        let (mut fits, mut fails) = (probe::SHORTEST, longest);
        while fails - fits > 1 {
            let middle = fits.midpoint(fails);
            match self.answers(middle, true) {
                true => fits = middle,
                false => fails = middle,
            }
        }
        let (from, to) = (self.local.ip, self.to.ip());
        let (longest, fits) = (longest + headers, fits + headers);
        // The device takes no lower limit.
        let fix = match fits {
            0..1280 => format!("fix: `ip link set {} mtu {fits}` on both hosts", self.local.name),
            _ => format!("fix: SOFTEFA_UDP_MTU={fits} on both hosts"),
        };
        if self.answers(longest - headers, false) {
            return Note(format!(
                "MTU: the path between {from} and {to} carries {fits} bytes; packets of {longest} are cut on it, which costs \
                 time and multiplies losses ({fix})"
            ));
        }
        Bad(format!(
            "MTU: the path between {from} and {to} drops packets longer than {fits} bytes; the device sends {longest} ({fix})"
        ))
    }

    /// Whether all ports of the range answer.
    fn ports(&mut self, all: &[u16]) -> Finding {
        let mut silent = Vec::new();
        for port in all {
            self.to.set_port(*port);
            let connected = self.socket.connect(self.to).is_ok();
            if !connected || !self.answers(probe::SHORTEST, false) {
                silent.push(port.to_string());
            }
            // A firewall that drops them all would take minutes.
            if silent.len() == 8 {
                silent.push("more".into());
                break;
            }
        }
        let (first, last) = (all.first().unwrap_or(&0), all.last().unwrap_or(&0));
        if silent.is_empty() {
            return Good(format!("ports: all of {first}-{last} answer"));
        }
        Bad(format!(
            "ports: of {first}-{last} these do not answer: {} (a firewall drops them, or another process has them)",
            silent.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_socket_buffer_is_told_with_the_limit_that_makes_it_small() {
        // What Linux grants where nobody has set anything.
        let Note(text) = buffer("this host", 212_992, (1472, 4096)) else { panic!("not a note") };
        assert!(
            text.starts_with(
                "socket buffer of this host: 208 KiB, for 128 datagrams of 1472 bytes, not 4096,"
            ),
            "{text}"
        );
        let enough =
            text.rsplit_once("net.core.rmem_max=").and_then(|(_, n)| n.trim_end_matches(')').parse().ok());
        let Good(text) = buffer("the other host", enough.unwrap(), (1472, 4096)) else { panic!("{text}") };
        assert!(text.ends_with("for 4096 datagrams of 1472 bytes"), "{text}");
        // A smaller window is enough for whoever asks for one.
        assert!(matches!(buffer("this host", 212_992, (1472, 128)), Good(_)));
    }

    #[test]
    fn hosts_and_programs_are_told_apart() {
        assert_eq!(parse(OsStr::new("10.0.0.7")), Some(("10.0.0.7", None)));
        assert_eq!(parse(OsStr::new("127.0.0.1:4000")), Some(("127.0.0.1", Some(4000))));
        assert_eq!(parse(OsStr::new("2001:db8::7")), Some(("2001:db8::7", None)));
        assert_eq!(parse(OsStr::new("[::1]:4000")), Some(("::1", Some(4000))));
        for program in ["sh", "/bin/sh", "./10.0.0.7x", "10.0.0.7:many"] {
            assert_eq!(parse(OsStr::new(program)), None, "{program}");
        }
    }
}
