//! A pcapng writer: one section, one interface, enhanced packet blocks. Only whole blocks are written, so a
//! killed process leaves a valid file.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

const BUFFER: usize = 64 * 1024;
/// Longest time that a packet stays buffered.
const MAX_DELAY: Duration = Duration::from_millis(10);

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

const OPT_END: u16 = 0;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

pub(super) struct Writer {
    file: Option<File>,
    buf: Vec<u8>,
    flushed: Instant,
    /// Setting that names the file.
    key: &'static str,
}

impl Writer {
    pub(super) fn new(file: File, linktype: u16, key: &'static str) -> io::Result<Writer> {
        let buf = Vec::with_capacity(2 * BUFFER);
        let mut writer = Writer { file: Some(file), buf, flushed: Instant::now(), key };
        let program = std::env::current_exe().unwrap_or_default();
        let about = format!(
            "softefa {}, process {}: {}",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            program.display()
        );
        writer.block(SECTION, |buf| {
            put32(buf, BYTE_ORDER);
            put32(buf, 1);
            buf.extend(u64::MAX.to_le_bytes());
            option(buf, SHB_USERAPPL, about.as_bytes());
            option(buf, OPT_END, &[]);
        });
        writer.block(INTERFACE, |buf| {
            put32(buf, linktype.into());
            put32(buf, 0);
            option(buf, IF_NAME, b"softefa");
            option(buf, IF_TSRESOL, &[9]);
            option(buf, OPT_END, &[]);
        });
        writer.write_out()?;
        Ok(writer)
    }

    /// Adds a packet, which is these parts together.
    pub(super) fn packet(&mut self, time: u64, is_inbound: bool, parts: &[&[u8]]) {
        if self.file.is_none() {
            return;
        }
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.block(PACKET, |buf| {
            put32(buf, 0);
            put32(buf, (time >> 32) as u32);
            put32(buf, time as u32);
            put32(buf, len as u32);
            put32(buf, len as u32);
            parts.iter().for_each(|part| buf.extend_from_slice(part));
            pad(buf);
            option(buf, EPB_FLAGS, &if is_inbound { 1u32 } else { 2 }.to_le_bytes());
            option(buf, OPT_END, &[]);
        });
        if self.buf.len() >= BUFFER || self.flushed.elapsed() > MAX_DELAY {
            self.flush();
        }
    }

    /// Writes buffered blocks; an error ends the capture.
    pub(super) fn flush(&mut self) {
        if !self.buf.is_empty()
            && let Err(e) = self.write_out()
        {
            tracing::error!("{}: the capture ends here: {e}", self.key);
            self.file = None;
            self.buf = Vec::new();
        }
    }

    fn write_out(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            file.write_all(&self.buf)?;
        }
        self.buf.clear();
        self.flushed = Instant::now();
        Ok(())
    }

    fn block(&mut self, ty: u32, body: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buf.len();
        put32(&mut self.buf, ty);
        put32(&mut self.buf, 0);
        body(&mut self.buf);
        let len = (self.buf.len() - start + 4) as u32;
        self.buf[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
        put32(&mut self.buf, len);
    }
}

fn put32(buf: &mut Vec<u8>, value: u32) {
    buf.extend(value.to_le_bytes());
}

fn pad(buf: &mut Vec<u8>) {
    buf.resize(buf.len().next_multiple_of(4), 0);
}

fn option(buf: &mut Vec<u8>, code: u16, value: &[u8]) {
    buf.extend(code.to_le_bytes());
    buf.extend((value.len() as u16).to_le_bytes());
    buf.extend_from_slice(value);
    pad(buf);
}
