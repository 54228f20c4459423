//! Captures in pcapng of what a software device sends and receives, if `SOFTEFA_PCAP` names a file.
//!
//! Fed by queue pairs and completion queues; read by `efa-dump` and Wireshark (docs/softefa-capture.md). A
//! file that cannot be written ends the capture and never fails a request.

pub(super) mod datagrams;
mod pcapng;

use super::link;
use crate::api::OpenError;
use crate::efa::dev::{Cqe, CqeOp, DevStatus, Gid};
use num_enum::{IntoPrimitive, TryFromPrimitive};
use pcapng::Writer;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Link type of captures: LINKTYPE_USER0.
pub const LINKTYPE: u16 = 147;

/// Pseudo header in front of each packet, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CaptureHdr {
    /// [`CaptureHdr::VERSION`].
    pub version: u8,
    /// Bytes of this header: where the packet starts.
    pub hdr_len: u8,
    /// A [`Direction`].
    pub direction: u8,
    /// A [`WireOp`].
    pub op: u8,
    /// A [`DevStatus`].
    pub status: u8,
    /// Bit 0: `imm` is there.
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// Queue pair that posted the request.
    pub src_qpn: U16,
    /// Destination queue pair.
    pub dst_qpn: U16,
    /// Length of the message or RDMA operation.
    pub len: U32,
    /// GID of the device that posted the request.
    pub src_gid: [u8; 16],
    /// Destination GID.
    pub dst_gid: [u8; 16],
    /// Immediate of a send or write.
    pub imm: U32,
    /// Remote key of RDMA, in records of the initiator.
    pub rkey: U32,
    /// Remote address of RDMA, in records of the initiator.
    pub raddr: U64,
}

const _: () = assert!(size_of::<CaptureHdr>() == CaptureHdr::LEN);

impl CaptureHdr {
    /// Version of this layout.
    pub const VERSION: u8 = 1;
    /// Length of this header.
    pub const LEN: usize = 64;
    /// Flag: `imm` is there.
    pub const HAS_IMM: u8 = 1;

    /// Splits a captured record into header and packet; `None` if it is malformed.
    pub fn split(record: &[u8]) -> Option<(CaptureHdr, &[u8])> {
        let (hdr, _) = CaptureHdr::read_from_prefix(record).ok()?;
        let start = usize::from(hdr.hdr_len);
        let good = hdr.version == CaptureHdr::VERSION && start >= CaptureHdr::LEN;
        good.then(|| record.get(start..).map(|packet| (hdr, packet)))?
    }
}

/// Side that captured a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u8)]
pub enum Direction {
    /// The sender.
    Out = 0,
    /// The receiver.
    In = 1,
}

/// Operation of a captured packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u8)]
pub enum WireOp {
    /// A message; its bytes follow.
    Send = 0,
    /// An RDMA read; no bytes follow.
    Read = 1,
    /// An RDMA write; no bytes follow.
    Write = 2,
}

#[derive(Clone, Copy, Default)]
pub(super) struct RemoteAddr {
    pub(super) raddr: u64,
    pub(super) rkey: u32,
}

pub(super) struct SentRecord<'a> {
    pub(super) from: link::Sender,
    pub(super) iid: u64,
    pub(super) qpn: u16,
    pub(super) op: WireOp,
    pub(super) status: DevStatus,
    pub(super) imm: Option<u32>,
    pub(super) len: u32,
    pub(super) remote: RemoteAddr,
    pub(super) bytes: [&'a [u8]; 2],
    /// When it was attempted last.
    pub(super) attempted_at: Option<u64>,
}

/// A capture file. One per process and name, shared by all devices.
struct CaptureFile {
    path: PathBuf,
    linktype: u16,
    writer: Mutex<Writer>,
}

impl CaptureFile {
    /// Opens or shares the file that setting `key` names: `%p` is the process id, appended if missing.
    fn open(key: &'static str, name: &str, linktype: u16, mode: u32) -> Result<Arc<CaptureFile>, OpenError> {
        let pid = std::process::id().to_string();
        let path = PathBuf::from(match name.contains("%p") {
            true => name.replace("%p", &pid),
            false => format!("{name}.{pid}"),
        });
        let refuse =
            |why: String| OpenError::Config(format!("{key}: cannot write {}: {why}", path.display()));
        let mut files = lock(&FILES);
        if let Some(known) = files.iter().find(|file| file.path == path) {
            let is_same = known.linktype == linktype;
            return is_same.then(|| known.clone()).ok_or_else(|| refuse("it is another capture".into()));
        }
        let mut options = OpenOptions::new();
        options.write(true).mode(mode);
        let made = if mode & 0o077 == 0 {
            // A file that is there would keep its owner and mode, and a link leads elsewhere.
            _ = std::fs::remove_file(&path);
            options.create_new(true).open(&path)
        } else {
            options.create(true).truncate(true).open(&path)
        };
        let writer = made.and_then(|file| Writer::new(file, linktype, key));
        let writer = Mutex::new(writer.map_err(|e| refuse(e.to_string()))?);
        let file = Arc::new(CaptureFile { path, linktype, writer });
        files.push(file.clone());
        Ok(file)
    }
}

static FILES: Mutex<Vec<Arc<CaptureFile>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Data behind these locks is consistent between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64)
}

/// Access of one device to its capture file.
pub(super) struct Capture {
    file: Arc<CaptureFile>,
    gid: Gid,
    clock: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Capture {
    /// Opens or shares the file `SOFTEFA_PCAP` names: `%p` is the process id, appended if missing.
    pub(super) fn open(
        name: &str,
        gid: Gid,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Capture, OpenError> {
        let file = CaptureFile::open("SOFTEFA_PCAP", name, LINKTYPE, 0o666)?;
        Ok(Capture { file, gid, clock: Box::new(clock) })
    }

    /// Time of the device's clock.
    pub(super) fn now(&self) -> u64 {
        (self.clock)()
    }

    pub(super) fn record_sent(&self, out: &SentRecord<'_>) {
        let hdr = CaptureHdr {
            version: CaptureHdr::VERSION,
            hdr_len: CaptureHdr::LEN as u8,
            direction: Direction::Out.into(),
            op: out.op.into(),
            status: out.status.into(),
            flags: imm_flag(out.imm),
            reserved: [0; 2],
            src_qpn: out.from.qpn.into(),
            dst_qpn: out.qpn.into(),
            len: out.len.into(),
            src_gid: self.gid.0,
            dst_gid: Gid::link_local(out.iid).0,
            imm: out.imm.unwrap_or(0).into(),
            rkey: out.remote.rkey.into(),
            raddr: out.remote.raddr.into(),
        };
        let time = out.attempted_at.unwrap_or_else(|| self.now());
        self.write(time, &hdr, &out.bytes);
    }

    /// Records an arrival. `bytes` is empty for a write.
    pub(super) fn record_received(&self, cqe: &Cqe, bytes: &[u8]) {
        let hdr = CaptureHdr {
            version: CaptureHdr::VERSION,
            hdr_len: CaptureHdr::LEN as u8,
            direction: Direction::In.into(),
            op: if cqe.op == CqeOp::RecvWriteImm { WireOp::Write } else { WireOp::Send }.into(),
            status: cqe.status.into(),
            flags: imm_flag(cqe.imm),
            reserved: [0; 2],
            src_qpn: cqe.src_qpn.into(),
            dst_qpn: cqe.qpn.into(),
            len: cqe.len.into(),
            src_gid: cqe.src_gid.0,
            dst_gid: self.gid.0,
            imm: cqe.imm.unwrap_or(0).into(),
            rkey: U32::ZERO,
            raddr: U64::ZERO,
        };
        self.write((self.clock)(), &hdr, &[bytes, &[]]);
    }

    fn write(&self, time: u64, hdr: &CaptureHdr, bytes: &[&[u8]; 2]) {
        let is_inbound = hdr.direction == u8::from(Direction::In);
        lock(&self.file.writer).packet(time, is_inbound, &[hdr.as_bytes(), bytes[0], bytes[1]]);
    }

    pub(super) fn flush(&self) {
        lock(&self.file.writer).flush();
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.flush();
    }
}

fn imm_flag(imm: Option<u32>) -> u8 {
    if imm.is_some() { CaptureHdr::HAS_IMM } else { 0 }
}
