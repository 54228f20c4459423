//! Datagrams that two devices seal, and a network between them loses: the devices capture them in clear, and
//! a segment is followed through its loss.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use common::{Folder, exchange_messages_of, run_dump, until};
use ucp::{Context, EpParams};
use ucs::config::Source;

/// Of the long datagrams to the device that stands behind the network, each one of so many is lost.
const LOSES: usize = 10;
/// Bytes of the longest datagram that is never lost: handshakes, acknowledgements.
const SHORT: usize = 200;

/// A network between a device and its peer, which translates addresses.
struct Network {
    public: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

impl Network {
    fn start(device: SocketAddr) -> Network {
        let (outside, inside) = (socket(), socket());
        let public = outside.local_addr().unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let thread = std::thread::spawn(move || {
            let (mut peer, mut count, mut bytes) = (None, 0, vec![0; 1 << 16]);
            while !ended.load(Relaxed) {
                while let Ok((len, from)) = outside.recv_from(&mut bytes) {
                    peer = Some(from);
                    count += usize::from(len > SHORT);
                    if len <= SHORT || count % LOSES != 0 {
                        let _ = inside.send_to(&bytes[..len], device);
                    }
                }
                while let Ok((len, _)) = inside.recv_from(&mut bytes) {
                    let _ = peer.map(|peer| outside.send_to(&bytes[..len], peer));
                }
                std::thread::yield_now();
            }
        });
        Network { public, ends, thread: Some(thread) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The captures of a device, and of its peer behind the network.
fn lossy(folder: &Folder) -> [PathBuf; 2] {
    let secret = folder.path("secret");
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.write(true).create(true).mode(0o600).open(&secret).unwrap();
    std::io::Write::write_all(&mut file, b"the secret of this test").unwrap();
    let device = socket().local_addr().unwrap();
    let network = Network::start(device);
    let context = |name: &str, more: &[(&str, String)]| {
        let of_all = [
            ("UCX_TLS", "efa".to_owned()),
            ("SOFTEFA_UDP", "all".to_owned()),
            ("SOFTEFA_UDP_MTU", "1500".to_owned()),
            ("SOFTEFA_SECRET_FILE", secret.to_str().unwrap().to_owned()),
            ("SOFTEFA_UDP_PCAP", folder.path(name).to_str().unwrap().to_owned()),
        ];
        let source =
            of_all.iter().chain(more).fold(Source::empty(), |all, (key, value)| all.with(key, value));
        Context::configured(source).unwrap()
    };
    let inner = [
        ("SOFTEFA_UDP_PORTS", device.port().to_string()),
        ("SOFTEFA_UDP_ADDRESS", network.public.to_string()),
    ];
    let (a, b) = (context("a.%p", &[]), context("b.%p", &inner));
    // The first device connects, through the network. Were it the other one, answers would go straight to
    // where its datagrams come from.
    let (first, second) = (a.worker().unwrap(), b.worker().unwrap());
    let ep = first.connect(&second.address(), EpParams::default()).unwrap();
    let send = ep.tag_send_sync(1, vec![1; 8]);
    let recv = second.tag_recv(1, ucp::TAG_MASK_FULL, Vec::with_capacity(8));
    until(&[&first, &second], || send.is_done() && recv.is_done());
    exchange_messages_of(&a, &b);
    ["a", "b"].map(|name| folder.path(&format!("{name}.{}", std::process::id())))
}

fn dump(files: &[PathBuf], more: &[&str]) -> common::Ran {
    let mut args = vec!["--udp".to_owned()];
    args.extend(files.iter().map(|file| file.to_str().unwrap().to_owned()));
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    run_dump(&args)
}

/// The word behind another one.
fn after<'a>(line: &'a str, word: &str) -> &'a str {
    let mut words = line.split_whitespace().skip_while(|it| *it != word);
    words.nth(1).unwrap_or_else(|| panic!("no {word} in {line}"))
}

#[test]
fn a_sealed_segment_is_followed_through_its_loss() {
    let folder = Folder::new("sealed");
    // What is there already does not keep its mode.
    std::fs::write(folder.path(&format!("a.{}", std::process::id())), "an older file").unwrap();
    let files = lossy(&folder);
    for file in &files {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o077, 0, "its owner's only");
    }
    let all = dump(&files, &[]);
    assert!(all.status == 0 && all.out.contains("0 with a wrong checksum"), "{} {}", all.out, all.err);
    for part in ["AUTH_REQUEST", "HELLO_ACK", "CHUNK", "ACK 0x"] {
        assert!(all.out.contains(part), "{part}: {}", all.out);
    }
    let segments = |line: &&str| line.contains("CHUNK");
    assert!(all.out.lines().filter(segments).all(|line| line.contains(" sealed: session 0x")), "{}", all.out);
    // A segment that the first device has sent twice, and the second one has got once.
    let again =
        |line: &&str| line.contains(" file 1 ") && line.contains("CHUNK") && line.contains("(time 2)");
    let fates = all.out.lines().filter(again).map(|line| {
        let (connection, seq) = (after(line, "CHUNK"), after(line, "seq"));
        dump(&files, &["--connection", connection, "--segment", seq])
    });
    // What is sent again is sealed under a new number, and has that number at both ends. One whose second
    // copy was lost has its first number there.
    let is_followed = |fate: &common::Ran| {
        let lines = fate.out.lines().filter(|line| line.contains("CHUNK"));
        let numbers: Vec<&str> = lines.map(|line| after(line, "number")).collect();
        fate.out.contains("seen 2 and 1 times, acknowledged")
            && numbers.len() == 3
            && numbers[0] != numbers[1]
            && numbers[1] == numbers[2]
    };
    let lost = fates.into_iter().find(is_followed);
    let lost = lost.unwrap_or_else(|| panic!("none was lost: {}", all.out));
    assert_eq!(lost.status, 0, "{}", lost.out);
}

#[test]
fn tshark_shows_the_same() {
    if Command::new("tshark").arg("--version").output().is_err() {
        return ucs::testing::not_installed("the dissector in tshark", "no tshark (tshark)");
    }
    let folder = Folder::new("sealed-tshark");
    let [file, _] = lossy(&folder);
    let script = folder.path("efa_rdm.lua");
    std::fs::write(&script, run_dump(&["--dissector"]).out).unwrap();
    let rows = |filter: &str| {
        let mut tshark = Command::new("tshark");
        tshark.env("HOME", folder.path("home")).env("XDG_CONFIG_HOME", folder.path("home"));
        tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(&file);
        tshark.args(["-Y", filter, "-T", "fields", "-e", "efa_udp.session", "-e", "_ws.malformed"]);
        let ran = tshark.output().unwrap();
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success() && !err.contains("Lua"), "{err}");
        String::from_utf8_lossy(&ran.stdout).lines().count()
    };
    let of_dump =
        |part: &str| dump(std::slice::from_ref(&file), &[]).out.lines().filter(|l| l.contains(part)).count();
    assert_eq!(rows("efa_udp.kind == 2 && efa_udp.session"), of_dump("CHUNK"));
    assert_eq!(rows("efa_udp.kind == 3 && efa_udp.session"), of_dump(" ACK 0x"));
}
