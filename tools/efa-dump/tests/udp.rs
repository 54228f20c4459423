//! Datagrams of the UDP link in captures of networks: a segment that is lost once is followed, by efa-dump
//! and, where it is installed, by tshark.

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{Folder, run_dump};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use usnic::{CloseReason, Config, EpId, Head, Module, NoSource, Sink};

struct Ignores;

impl Sink for Ignores {
    fn on_accept(&mut self, _ep: EpId, _node: u64) {}
    fn on_dead(&mut self, _ep: EpId, _node: u64, why: CloseReason) {
        panic!("{why:?}");
    }
    fn on_frag(&mut self, _ep: EpId, _head: &Head, _payload: &[u8]) {}
    fn on_first_chunk(&mut self, _ep: EpId, _head: &Head, _total: u32) -> Option<u64> {
        None
    }
    fn on_chunk(&mut self, _target: u64, _offset: u32, _bytes: &[u8]) {}
    fn on_last_chunk(&mut self, _ep: EpId, _target: u64, _head: &Head, _whole: bool) {}
}

/// Two modules, and everything that they send.
struct Network {
    modules: [Module; 2],
    now: u64,
    /// Time, sender and bytes.
    sent: Vec<(u64, u8, Vec<u8>)>,
    /// A segment of the first module that is lost once.
    loses: Option<u32>,
    /// Longest datagram that arrives, bytes.
    carries: usize,
}

impl Network {
    fn new() -> Network {
        let config = |node| Config { node, first_seq: 100, salt: node as u32, ..Config::default() };
        let module = |node| Module::new(config(node), 0);
        Network {
            modules: [module(1), module(2)],
            now: 0,
            sent: Vec::new(),
            loses: None,
            carries: usize::MAX,
        }
    }

    fn pass(&mut self, side: usize, bytes: Vec<u8>) {
        let seq = u32::from_le_bytes(bytes[12..16].try_into().unwrap());
        self.sent.push((self.now, side as u8, bytes.clone()));
        if side == 0 && bytes[1] == 1 && self.loses == Some(seq) {
            self.loses = None;
            return;
        }
        if bytes.len() > self.carries {
            return;
        }
        assert!(self.modules[1 - side].on_datagram(self.now, &bytes, &mut Ignores).is_none());
    }

    /// Lets time pass, in steps of 20 µs.
    fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.now += 20_000;
            for side in 0..2 {
                self.modules[side].on_time(self.now, &mut Ignores);
                while let Some(posted) = self.modules[side].poll_send(self.now, &mut NoSource) {
                    let bytes = self.modules[side].bytes(&posted).to_vec();
                    self.modules[side].completed(&posted);
                    self.pass(side, bytes);
                }
            }
        }
    }

    fn send(&mut self, ep: EpId, head: Head, bytes: &[u8]) {
        let posted = self.modules[0].send(self.now, ep, &head, [bytes, &[]]).unwrap();
        if let Some(posted) = posted {
            let bytes = self.modules[0].bytes(&posted).to_vec();
            self.modules[0].completed(&posted);
            self.pass(0, bytes);
        }
    }

    /// Writes a capture, in which datagrams of one moment and sender are not cut yet.
    fn write(&self, path: &Path) {
        let header = PcapHeader { datalink: DataLink::RAW, ..Default::default() };
        let mut file = PcapWriter::with_header(File::create(path).unwrap(), header).unwrap();
        for group in self.sent.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (time, side, _) = group[0];
            let bytes: Vec<u8> = group.iter().flat_map(|(.., bytes)| bytes.clone()).collect();
            let packet = packet(side, &bytes);
            let len = packet.len() as u32;
            file.write_packet(&PcapPacket::new(Duration::from_nanos(time), len, &packet)).unwrap();
        }
    }
}

/// An IPv4 packet from host 1 or 2 to the other.
fn packet(side: u8, payload: &[u8]) -> Vec<u8> {
    let len = (28 + payload.len()) as u16;
    let mut all = vec![0x45, 0];
    all.extend(len.to_be_bytes());
    all.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1 + side, 10, 0, 0, 2 - side, 0x9c, 0x40, 0x9c, 0x40]);
    all.extend((len - 20).to_be_bytes());
    all.extend([0, 0]);
    all.extend(payload);
    all
}

/// A capture in which segment 101 is lost once, and the number of its connection.
fn lossy(folder: &Folder) -> (PathBuf, u32) {
    let mut network = Network::new();
    let ep = network.modules[0].connect(0, 2).unwrap();
    network.run(1_000_000);
    network.loses = Some(101);
    let mut head = [0; 32];
    (head[0], head[2], head[4], head[12]) = (1, 5, 6, 0x42);
    for _ in 0..3 {
        network.send(ep, head, b"some bytes");
    }
    network.run(300_000_000);
    let path = folder.path("net.pcap");
    network.write(&path);
    (path, ep.as_u32())
}

fn dump(path: &Path, more: &[&str]) -> common::Ran {
    let mut args = vec!["--udp".into(), path.to_str().unwrap().to_owned()];
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    run_dump(&args)
}

#[test]
fn a_lost_segment_is_followed() {
    let folder = Folder::new("udp");
    let (path, connection) = lossy(&folder);
    let connection = format!("{connection:#x}");
    let ran = dump(&path, &["--connection", &connection, "--segment", "101"]);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!((ran.status, lines.len()), (0, 5), "{} {}", ran.out, ran.err);
    assert!(
        lines[0].contains("FRAG") && lines[0].contains("seq 101") && !lines[0].contains("time 2"),
        "{}",
        ran.out
    );
    assert!(lines[0].contains("10.0.0.1:40000 > 10.0.0.2:40000"), "{}", ran.out);
    assert!(lines[0].contains("10 bytes SEND 0x42, qp 5 > 6"), "{}", ran.out);
    assert!(lines[1].contains("(time 2)") && lines[2].contains("ACK"), "{}", ran.out);
    assert!(lines[4].contains("seen 2 times, acknowledged"), "{}", ran.out);
    // One that was never sent.
    let ran = dump(&path, &["--connection", &connection, "--segment", "999"]);
    assert!(ran.status == 1 && ran.out.contains("is not in the capture"), "{}", ran.out);
}

#[test]
fn a_segment_in_pieces_is_followed() {
    let folder = Folder::new("udp-pieces");
    let mut network = Network::new();
    let ep = network.modules[0].connect(0, 2).unwrap();
    network.run(50_000_000);
    network.carries = 900;
    let mut head = [0; 32];
    (head[0], head[2], head[4]) = (1, 5, 6);
    network.send(ep, head, &[7; 1300]);
    network.run(10_000_000_000);
    let path = folder.path("net.pcap");
    network.write(&path);
    let ran = dump(&path, &["--connection", &ep.as_u32().to_string(), "--segment", "100"]);
    let pieces =
        |line: &&str| line.contains("PIECE") && line.contains("seq 100: ") && line.contains("of a FRAG");
    assert_eq!((ran.status, ran.out.lines().filter(pieces).count()), (0, 2), "{} {}", ran.out, ran.err);
    assert!(ran.out.contains(" times, 2 pieces of it, acknowledged"), "{}", ran.out);
}

#[test]
fn all_datagrams_are_shown() {
    let folder = Folder::new("udp-all");
    let (path, connection) = lossy(&folder);
    let all = dump(&path, &[]).out;
    for part in ["HELLO 0x", "HELLO_ACK", "seq 100", "seq 102", " fe80::2", "0 with a wrong checksum"] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let some = dump(&path, &["--connection", &connection.to_string()]).out;
    assert_eq!(some, all, "there is no other");
    let none = dump(&path, &["--connection", "5"]).out;
    assert!(none.starts_with("# 0 of"), "{none}");
}

/// A capture that ends early has a line that says so.
#[test]
fn a_capture_that_is_cut_says_so() {
    let folder = Folder::new("udp-cut");
    let (path, _) = lossy(&folder);
    assert_eq!(dump(&path, &[]).err, "");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(bytes.len() - 10);
    std::fs::write(&path, bytes).unwrap();
    let ran = dump(&path, &[]);
    assert!(ran.err.contains("its last block is not whole; showing what is before it"), "{}", ran.err);
    assert!(ran.out.contains("FRAG"), "{}", ran.out);
}

#[test]
fn files_of_other_kinds_are_refused() {
    let folder = Folder::new("udp-bad");
    let path = folder.path("text");
    std::fs::write(&path, "no capture at all").unwrap();
    let ran = dump(&path, &[]);
    assert!(ran.status == 2 && ran.err.contains("pcap"), "{}", ran.err);
    std::fs::write(&path, "no").unwrap();
    assert_eq!(dump(&path, &[]).status, 2);
    assert_eq!(run_dump(&["--segment", "1", "x"]).status, 2, "needs --udp");
}

#[test]
fn tshark_shows_the_same() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return ucs::testing::not_installed("the dissector in tshark", "no tshark (tshark)");
    }
    let folder = Folder::new("udp-tshark");
    let (path, _) = lossy(&folder);
    let script = folder.path("efa_rdm.lua");
    std::fs::write(&script, run_dump(&["--dissector"]).out).unwrap();
    let mut tshark = Command::new("tshark");
    tshark.env("HOME", folder.path("home")).env("XDG_CONFIG_HOME", folder.path("home"));
    tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(&path);
    tshark.args(["-Y", "efa_udp.seq == 101 && efa_udp.kind == 1", "-T", "fields", "-E", "separator=|"]);
    tshark.args(["-e", "efa_udp.op", "-e", "efa_udp.token", "-e", "_ws.malformed"]);
    let ran = tshark.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && !err.contains("Lua"), "{err}");
    let rows: Vec<&str> = out.lines().collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.contains("0x00000042")), "{out} {err}");
}
