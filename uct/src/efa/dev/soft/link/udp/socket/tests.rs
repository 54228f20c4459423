//! Batches over sockets of the loopback interface, with and without the kernel's help.

use super::*;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

fn bind(longest: usize, offload: bool) -> Socket {
    bind_with(SocketConfig { longest, offload, channels: false, flows: 1, busy_poll: 0, arrivals: 4 << 20 })
}

fn bind_with(config: SocketConfig) -> Socket {
    Socket::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap()
}

/// Datagrams of these lengths, each with bytes of its own.
fn datagrams(lens: &[usize]) -> Vec<Vec<u8>> {
    lens.iter().enumerate().map(|(n, len)| (0..*len).map(|at| (at ^ n) as u8).collect()).collect()
}

fn send(from: &Socket, to: SocketAddr, all: &[Vec<u8>]) {
    let batch: Vec<_> = all.iter().map(|bytes| (to, &bytes[..])).collect();
    let (mut at, start) = (0, Instant::now());
    while at < batch.len() {
        at += from.send(ChannelId::Data, 0, &batch[at..]);
        assert!(start.elapsed() < Duration::from_secs(10), "{at} of {}", batch.len());
    }
}

fn recv(at: &mut Socket, from: SocketAddr, count: usize) -> Vec<Vec<u8>> {
    recv_at(at, ChannelId::Data, from, count)
}

fn recv_at(at: &mut Socket, channel: ChannelId, from: SocketAddr, count: usize) -> Vec<Vec<u8>> {
    let (mut all, start) = (Vec::new(), Instant::now());
    while all.len() < count {
        let (n, _) = at.recv(channel);
        for n in 0..n {
            let (sender, bytes) = at.datagram(n);
            assert_eq!(sender, from);
            all.push(bytes.to_vec());
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{} of {count}", all.len());
    }
    all
}

fn count(socket: &Socket, name: &str) -> u64 {
    socket.counts().iter().find(|(of, _)| *of == name).unwrap().1
}

#[test]
fn batches_go_and_come() {
    let (a, mut b) = (bind(100, false), bind(100, false));
    assert_eq!(b.recv(ChannelId::Data), (0, false));
    let all: Vec<Vec<u8>> = (0..80u8).map(|n| vec![n; usize::from(n) + 40]).collect();
    let batch: Vec<_> = all.iter().map(|bytes| (b.addr(), &bytes[..])).collect();
    assert_eq!(
        (
            a.send(ChannelId::Data, 0, &batch),
            a.send(ChannelId::Data, 0, &batch[BATCH..]),
            a.send(ChannelId::Data, 0, &[])
        ),
        (BATCH, 16, 0)
    );
    for (n, bytes) in recv(&mut b, a.addr(), 80).iter().enumerate() {
        // Those that are too long are cut, and count as empty.
        let want: &[u8] = if n <= 60 { &all[n] } else { &[] };
        assert_eq!(bytes, want, "{n}");
    }
    // Nobody has this port: the kernel says so at the next send, which is lost, and goes on.
    drop(b);
    assert_eq!(a.send(ChannelId::Data, 0, &batch[..1]), 1);
}

#[test]
fn runs_of_mixed_lengths_arrive_as_they_were() {
    let mut lens = vec![1472; 100];
    lens.extend([700, 1, 1, 1, 40, 1472, 1472, 3, 9000, 9000, 200, 64, 64]);
    let all = datagrams(&lens);
    // With the kernel's help at both ends, at one, at none. A sender's runs are cut for a receiver without.
    for (of_a, of_b) in [(true, true), (true, false), (false, true), (false, false)] {
        let (a, mut b) = (bind(9000, of_a), bind(9000, of_b));
        send(&a, b.addr(), &all);
        assert!(recv(&mut b, a.addr(), all.len()) == all, "{of_a} {of_b}");
        assert_eq!(count(&b, "datagrams received"), all.len() as u64);
        let runs = count(&a, "runs sent");
        match of_a && has_segmentation() {
            true => assert!(runs >= 3 && count(&a, "send calls") == 2, "{runs} runs"),
            false => assert_eq!(runs, 0),
        }
        if of_a && of_b && has_segmentation() && has_joining() {
            assert!(count(&b, "runs received") != 0);
        }
    }
}

/// Whether this kernel has the option.
fn has_segmentation() -> bool {
    bind(100, true).joins_in.get().is_some()
}

fn has_joining() -> bool {
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    set_option(&udp, SOL_UDP, UDP_GRO, 1)
}

#[test]
fn a_kernel_that_refuses_runs_gets_datagrams() {
    let (a, mut b) = (bind(65_507, true), bind(65_507, true));
    if !has_segmentation() {
        return;
    }
    // The loopback interface carries 65536 bytes, so these fit; a run of them does not.
    let long = datagrams(&[40_000, 40_000]);
    send(&a, b.addr(), &long);
    assert!(recv(&mut b, a.addr(), 2) == long);
    // It is as if the path had refused.
    a.stop_joining();
    let short = datagrams(&[100; 10]);
    send(&a, b.addr(), &short);
    assert!(recv(&mut b, a.addr(), 10) == short);
    assert_eq!(count(&a, "runs sent"), 0);
    // It is asked again after a while.
    a.joins_in.set(Some(0));
    send(&a, b.addr(), &short);
    assert!(recv(&mut b, a.addr(), 10) == short);
    assert_eq!(count(&a, "runs sent"), 1);
}

#[test]
fn a_run_that_the_kernel_refuses_is_sent_again_one_by_one() {
    let (a, mut b) = (bind(1000, true), bind(1000, true));
    if !has_segmentation() {
        return;
    }
    // Without checksums the kernel refuses to cut.
    assert!(set_option(&a.udp, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1));
    let all = datagrams(&[500; 20]);
    send(&a, b.addr(), &all);
    assert!(recv(&mut b, a.addr(), 20) == all);
    assert_eq!((count(&a, "runs sent"), a.joins_in.get().is_some_and(|left| left > 0)), (0, true));
}

#[test]
fn addresses_of_both_families_are_used() {
    let config = SocketConfig {
        longest: 2000,
        offload: true,
        channels: false,
        flows: 1,
        busy_poll: 0,
        arrivals: 4 << 20,
    };
    let Ok(a) = Socket::bind("[::1]:0".parse().unwrap(), config) else {
        return; // A host without IPv6.
    };
    let mut b = Socket::bind("[::1]:0".parse().unwrap(), config).unwrap();
    let all = datagrams(&[1000, 1000, 1000, 10, 2000]);
    send(&a, b.addr(), &all);
    assert!(recv(&mut b, a.addr(), 5) == all);
}

#[test]
fn each_flow_sends_from_a_port_of_its_own() {
    let config = SocketConfig {
        longest: 2000,
        offload: true,
        channels: false,
        flows: 4,
        busy_poll: 0,
        arrivals: 4 << 20,
    };
    let a = Socket::bind((Ipv4Addr::LOCALHOST, 0).into(), config).unwrap();
    let ports = a.flow_ports();
    assert!(ports[..3].iter().all(|port| *port != 0 && *port != a.addr().port()) && ports[3..] == [0; 4]);
    let mut b = bind(2000, true);
    for (flow, port) in (0..).zip([&[a.addr().port()], &ports[..3]].concat()) {
        let all = datagrams(&[1000; 5]);
        let batch: Vec<_> = all.iter().map(|bytes| (b.addr(), &bytes[..])).collect();
        assert_eq!(a.send(ChannelId::Data, flow, &batch), 5);
        assert!(recv(&mut b, (Ipv4Addr::LOCALHOST, port).into(), 5) == all);
        assert_eq!(a.ping(flow, &batch[..1]), 1);
        assert!(recv(&mut b, (Ipv4Addr::LOCALHOST, port).into(), 1) == all[..1]);
    }
    assert_eq!(count(&a, "other flows"), 18);
}

#[test]
fn a_refused_option_is_told() {
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert_eq!(refusal(&udp, libc::SO_REUSEADDR, 1), None);
    let why = refusal(&udp, 9999, 50).unwrap();
    assert!(why.contains("refuses") && why.contains("built without it"), "{why}");
}

/// The kernel has the time of `SOFTEFA_UDP_BUSY_POLL` for each socket at which datagrams arrive, unless it
/// refuses it; then the sockets work without.
#[test]
fn so_busy_poll_is_set_on_receiving_sockets() {
    let config = SocketConfig {
        longest: 2000,
        offload: true,
        channels: true,
        flows: 2,
        busy_poll: 50,
        arrivals: 4 << 20,
    };
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (a, mut b) = (bind_with(config), bind_with(config));
    let of = |socket: &UdpSocket| option_of(socket, libc::SOL_SOCKET, SO_BUSY_POLL);
    match refusal(&udp, SO_BUSY_POLL, 50) {
        None => {
            assert_eq!((of(&a.udp), a.priority.as_ref().and_then(of)), (Some(50), Some(50)));
            let without = bind_with(SocketConfig { busy_poll: 0, ..config });
            assert_ne!(of(&without.udp), Some(50), "nobody has asked for it");
        }
        Some(why) => assert!(why.contains("CAP_NET_ADMIN") || why.contains("built without it"), "{why}"),
    }
    let all = datagrams(&[1000; 5]);
    send(&a, b.addr(), &all);
    assert!(recv(&mut b, a.addr(), 5) == all);
}

#[test]
fn each_channel_has_a_socket_of_one_address() {
    let config = SocketConfig {
        longest: 2000,
        offload: true,
        channels: true,
        flows: 1,
        busy_poll: 0,
        arrivals: 4 << 20,
    };
    let (a, mut b) = (bind_with(config), bind_with(config));
    assert!(b.priority.is_some(), "a kernel of these years has the filter");
    assert_eq!(b.priority.as_ref().unwrap().local_addr().unwrap(), b.addr());
    // All that the filter looks at, both kinds of datagrams, and those that are too short for it.
    let mut all: Vec<Vec<u8>> = Vec::new();
    for first in [0, 1, 2, 0x3f, 0x40, 0x45, 0xff] {
        for second in [0, 1, 2, 3, 9, 0xff] {
            for third in [0, 1, 2, 15, 16, 17, 32, 0xff] {
                all.push([&[first, second, third, 0][..], &[7; 60]].concat());
            }
        }
    }
    all.extend([vec![1], vec![1, 1], vec![0x40, 1], vec![]]);
    let is = |channel| move |bytes: &&Vec<u8>| usnic::channel_of(bytes) == channel;
    for channel in [ChannelId::Priority, ChannelId::Data] {
        let its: Vec<Vec<u8>> = all.iter().filter(is(channel)).cloned().collect();
        // Whatever socket they leave from, the mark decides; and they come from the one address.
        for from in [ChannelId::Priority, ChannelId::Data] {
            let batch: Vec<_> = its.iter().map(|bytes| (b.addr(), &bytes[..])).collect();
            for some in batch.chunks(20) {
                assert_eq!(a.send(from, 0, some), some.len());
            }
            let got = recv_at(&mut b, channel, a.addr(), its.len());
            assert!(got == its, "{channel:?} {from:?}");
        }
    }
    assert_eq!(b.recv(ChannelId::Priority).0 + b.recv(ChannelId::Data).0, 0);
    assert_eq!((count(&b, "priority sockets"), count(&a, "priority sent") > 100), (1, true));
}

#[test]
fn a_shared_port_is_nobody_elses() {
    let config = SocketConfig {
        longest: 2000,
        offload: true,
        channels: true,
        flows: 1,
        busy_poll: 0,
        arrivals: 4 << 20,
    };
    let a = bind_with(config);
    let why = Socket::bind(a.addr(), config).err().map(|e| e.to_string());
    assert!(why.is_some_and(|why| why.contains("cannot use UDP address")), "another device has it");
    let one = SocketConfig { channels: false, ..config };
    assert!(Socket::bind(a.addr(), one).is_err());
    let addr = a.addr();
    drop(a);
    assert!(Socket::bind(addr, one).unwrap().priority.is_none(), "as it was asked for");
}
