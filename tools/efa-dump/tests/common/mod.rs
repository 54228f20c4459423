//! Captures for tests: two workers of this process over the software EFA device; running the program on them.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod all_packets;
pub mod script;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ucp::{Context, EpParams, Worker};
use ucs::config::Source;

/// A folder that is removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("efa-dump-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Ran {
    pub out: String,
    pub err: String,
    pub status: i32,
}

pub fn run_dump<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    let ran = Command::new(env!("CARGO_BIN_EXE_efa-dump")).args(args).stdin(Stdio::null()).output().unwrap();
    Ran {
        out: String::from_utf8(ran.stdout).unwrap(),
        err: String::from_utf8(ran.stderr).unwrap(),
        status: ran.status.code().unwrap_or(-1),
    }
}

/// Lengths on both sides of each switch of protocol.
pub const LENGTHS: [usize; 10] = [0, 1, 8, 4000, 8872, 8873, 20_000, 65_536, 65_537, 300_000];

/// Sends a message of each length both ways, plain and synchronous.
pub fn exchange_messages(context: &Context) {
    exchange_messages_of(context, context);
}

/// Sends between workers of two contexts as [`exchange_messages`] does.
pub fn exchange_messages_of(of_a: &Context, of_b: &Context) {
    let (a, b) = (of_a.worker().unwrap(), of_b.worker().unwrap());
    let ab = a.connect(&b.address(), EpParams::default()).unwrap();
    let ba = b.connect(&a.address(), EpParams::default()).unwrap();
    for (tag, len) in LENGTHS.into_iter().enumerate() {
        let tag = tag as u64;
        let bytes = vec![tag as u8; len];
        let mut sends = [
            ab.tag_send(tag, bytes.clone()),
            ba.tag_send(tag, bytes.clone()),
            ab.tag_send_sync(tag, bytes.clone()),
        ];
        let room = || Vec::with_capacity(300_000);
        let mut recvs = [
            b.tag_recv(tag, ucp::TAG_MASK_FULL, room()),
            a.tag_recv(tag, ucp::TAG_MASK_FULL, room()),
            b.tag_recv(tag, ucp::TAG_MASK_FULL, room()),
        ];
        let all = |sends: &mut [ucp::SendRequest<Vec<u8>>; 3], recvs: &mut [ucp::RecvRequest<Vec<u8>>; 3]| {
            sends.iter_mut().all(|s| s.is_done()) && recvs.iter_mut().all(|r| r.is_done())
        };
        until(&[&a, &b], || all(&mut sends, &mut recvs));
        for recv in recvs {
            assert!(recv.wait().1 == bytes, "{len} bytes");
        }
    }
}

pub fn until(workers: &[&Worker], mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        workers.iter().for_each(|w| {
            w.progress();
        });
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happens any more");
    }
}

/// A context that captures to `path` (with %p).
pub fn context(path: &Path, more: &[(&str, &str)]) -> Context {
    let source = Source::empty().with("UCX_TLS", "efa").with("SOFTEFA_PCAP", path.to_str().unwrap());
    let source = more.iter().fold(source, |source, (name, value)| source.with(name, value));
    Context::configured(source).unwrap()
}

/// A capture of [`exchange_messages`].
pub fn capture(folder: &Folder, name: &str, more: &[(&str, &str)]) -> PathBuf {
    exchange_messages(&context(&folder.path(&format!("{name}.%p")), more));
    folder.path(&format!("{name}.{}", std::process::id()))
}
