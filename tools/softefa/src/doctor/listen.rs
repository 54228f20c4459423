//! `softefa doctor --listen`: answers the doctors of other hosts.

use super::probe::{self, Agreement, Code, Probe};
use rustix::event::{PollFd, PollFlags};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use tools_common::out;
use ucs::config::{Source, Table as _};
use uct::efa::dev::soft::SoftConfig;
use uct::efa::dev::soft::link::udp::local_address;
use usnic::auth::MacKey;

/// Port at which a doctor listens if no ports are given.
pub const PORT: u16 = 40_700;
/// Ports that a doctor listens at, or tries, at most.
pub const MAX_PORTS: usize = 256;
/// Answers in a second, at most.
const MAX_ANSWERS: u32 = if cfg!(test) { 50 } else { 5000 };

/// Ports of the settings.
pub fn ports(config: &SoftConfig) -> Vec<u16> {
    match (config.udp_ports.0, config.udp_ports.1) {
        (0, _) => vec![PORT],
        (first, last) => (first..=last).take(MAX_PORTS).collect(),
    }
}

/// Answers until the process is ended.
pub fn listen(source: &Source) -> Result<Infallible, String> {
    let config = SoftConfig::load(source).map_err(|e| e.to_string())?;
    let key = probe::key(&config.secret_file)?;
    let ips = match &*config.net {
        "" => vec![IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)],
        net => vec![local_address(net).map_err(|e| e.to_string())?.ip],
    };
    let (open, taken) = open_all(&ips, &ports(&config));
    let first = |ip: &IpAddr| {
        let of = open.iter().filter_map(|(socket, _)| socket.local_addr().ok()).find(|at| at.ip() == *ip);
        of.map(|at| at.to_string())
    };
    let firsts: Vec<String> = ips.iter().filter_map(first).collect();
    if firsts.is_empty() {
        return Err(format!("no UDP port of {} can be used: {}", ips[0], taken.join(", ")));
    }
    let secret = if key.is_some() { "with the secret" } else { "without a secret" };
    let at = firsts.join(" and ");
    out::line(format!("listening at UDP {at}, {} sockets, {secret}; Ctrl-C ends it", open.len()));
    taken.iter().for_each(|port| out::line(format!("note     port {port} is not listened at")));
    serve(&open, key.as_ref())
}

/// Sockets at these addresses and ports, and the ports that are not to be had. A host without IPv6 lacks none
/// of IPv6.
fn open_all(ips: &[IpAddr], ports: &[u16]) -> (Vec<(UdpSocket, usize)>, Vec<String>) {
    let (mut open, mut taken) = (Vec::new(), Vec::new());
    for (ip, port) in ips.iter().flat_map(|ip| ports.iter().map(move |port| (*ip, *port))) {
        match probe::open(SocketAddr::new(ip, port)) {
            Ok(opened) => open.push(opened),
            Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
            Err(e) if e.raw_os_error() == Some(libc::EADDRNOTAVAIL) && ip.is_unspecified() => {}
            Err(e) if ips.len() > 1 => taken.push(format!("{} ({e})", SocketAddr::new(ip, port))),
            Err(e) => taken.push(format!("{port} ({e})")),
        }
    }
    (open, taken)
}

fn serve(open: &[(UdpSocket, usize)], key: Option<&MacKey>) -> ! {
    let mut bytes = vec![0; probe::LONGEST];
    let (mut second, mut answers) = (Instant::now(), 0);
    loop {
        let mut fds: Vec<_> = open.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::IN)).collect();
        // An error, such as a signal, makes another round.
        let _ = rustix::event::poll(&mut fds, None);
        for (fd, (socket, buffer)) in fds.iter().zip(open) {
            if fd.revents().is_empty() {
                continue;
            }
            // An error is that of an earlier answer, which nobody was there for.
            let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
            let Some((question, code)) = Probe::read(key, &bytes[..len]).filter(|(p, _)| !p.is_answer) else {
                continue;
            };
            if second.elapsed() > Duration::from_secs(1) {
                (second, answers) = (Instant::now(), 0);
            }
            answers += 1;
            if answers > MAX_ANSWERS {
                continue;
            }
            answer(&question, (code, key), *buffer as u32).write(key, &mut bytes[..len]);
            probe::set_whole(socket, question.whole);
            // One that the kernel refuses is one that did not arrive.
            let _ = socket.send_to(&bytes[..len], from);
        }
    }
}

fn answer(question: &Probe, (code, key): (Code, Option<&MacKey>), buffer: u32) -> Probe {
    let agreement = match (code, key) {
        (Code::Right, _) => Agreement::Same,
        (Code::Absent, None) => Agreement::None,
        (Code::Absent, Some(_)) => Agreement::Wanted,
        (Code::Wrong, None) => Agreement::Unwanted,
        (Code::Wrong, Some(_)) => Agreement::Different,
    };
    Probe { is_answer: true, agreement, buffer, ..*question }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(len: usize, is_answer: bool) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let probe = Probe {
            is_answer,
            agreement: Agreement::None,
            whole: false,
            number: 1,
            len: len as u32,
            buffer: 0,
        };
        probe.write(None, &mut bytes);
        bytes
    }

    #[test]
    fn a_listener_answers_on_both_families() {
        let free = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let (open, taken) = open_all(&[Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()], &[port]);
        assert!(taken.is_empty(), "{taken:?}");
        std::thread::spawn(move || serve(&open, None));
        let localhosts = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        for ip in localhosts {
            let Ok(asks) = UdpSocket::bind((ip, 0)) else {
                ucs::testing::skipped("a doctor on IPv6", format!("no address {ip}"));
                continue;
            };
            asks.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            asks.send_to(&question(100, false), (ip, port)).unwrap();
            assert_eq!(asks.recv(&mut [0; 1000]).unwrap(), 100, "{ip}");
        }
    }

    /// Lengths of the answers that come until none has come for a while.
    fn answers(socket: &UdpSocket) -> Vec<usize> {
        let mut room = [0; 1000];
        std::iter::from_fn(|| socket.recv(&mut room).ok()).collect()
    }

    #[test]
    fn a_listener_sends_no_more_than_it_gets_and_a_bounded_number() {
        let (socket, buffer) = probe::open((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let to = socket.local_addr().unwrap();
        // It ends with the process.
        std::thread::spawn(move || serve(&[(socket, buffer)], None));
        let asks = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        asks.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (good, answer) = (question(100, false), question(100, true));
        for bytes in [&good[..99], &good[..10], b"", &[7; 900], &answer, &good] {
            asks.send_to(bytes, to).unwrap();
        }
        // The good one was sent last.
        assert_eq!(asks.recv(&mut [0; 1000]).unwrap(), 100);
        asks.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert_eq!(answers(&asks), [0; 0]);
        let start = Instant::now();
        let mut got = Vec::new();
        let mut rounds = 0;
        while rounds < 10 || got.len() < 40 && start.elapsed() < Duration::from_secs(60) {
            rounds += 1;
            for _ in 0..40 {
                asks.send_to(&good, to).unwrap();
            }
            asks.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            got.extend(answers(&asks));
        }
        let seconds = start.elapsed().as_secs() as usize + 2;
        assert!(got.len() >= 40 && got.len() <= seconds * MAX_ANSWERS as usize, "{} answers", got.len());
    }
}
