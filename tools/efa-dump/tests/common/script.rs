//! Captures made by hand: packets between two ends, in the order in which the first saw them.

use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use ucp::wire::RawAddr;
use uct::efa::dev::soft::capture::CaptureHdr;
use zerocopy::IntoBytes;

/// The end at which the capture is made, and the other one.
pub const HERE: RawAddr =
    RawAddr { gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], qpn: 11, connid: 0x111 };
pub const THERE: RawAddr =
    RawAddr { gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], qpn: 22, connid: 0x222 };

/// Packets as seen at [`HERE`].
#[derive(Clone, Default)]
pub struct Script(Vec<(CaptureHdr, Vec<u8>)>);

/// A packet: headers by `write`, then `payload` bytes.
pub fn packet(write: impl Fn(&mut [u8]) -> usize, payload: usize) -> Vec<u8> {
    let mut buf = vec![0; 512];
    let len = write(&mut buf);
    buf.truncate(len);
    buf.resize(len + payload, 0xab);
    buf
}

impl Script {
    fn add(&mut self, direction: u8, from: RawAddr, to: RawAddr, status: u8, packet: Vec<u8>) {
        let hdr = CaptureHdr {
            version: CaptureHdr::VERSION,
            hdr_len: CaptureHdr::LEN as u8,
            direction,
            op: 0,
            status,
            flags: 0,
            reserved: [0; 2],
            src_qpn: from.qpn.into(),
            dst_qpn: to.qpn.into(),
            len: (packet.len() as u32).into(),
            src_gid: from.gid,
            dst_gid: to.gid,
            imm: 0.into(),
            rkey: 0.into(),
            raddr: 0.into(),
        };
        self.0.push((hdr, packet));
    }

    pub fn send(mut self, write: impl Fn(&mut [u8]) -> usize, payload: usize) -> Script {
        self.add(0, HERE, THERE, 0, packet(write, payload));
        self
    }

    /// A packet from here that the device does not deliver.
    pub fn fail(mut self, write: impl Fn(&mut [u8]) -> usize, payload: usize) -> Script {
        self.add(0, HERE, THERE, 10, packet(write, payload));
        self
    }

    pub fn recv(mut self, write: impl Fn(&mut [u8]) -> usize, payload: usize) -> Script {
        self.add(1, THERE, HERE, 0, packet(write, payload));
        self
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn write(&self, path: &Path) {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::USER0,
            snaplen: 0,
            options: vec![InterfaceDescriptionOption::IfTsResol(9)],
        };
        writer.write_pcapng_block(interface).unwrap();
        for (nth, (hdr, packet)) in self.0.iter().enumerate() {
            let bytes = [hdr.as_bytes(), packet].concat();
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_micros(nth as u64),
                original_len: bytes.len() as u32,
                data: Cow::Owned(bytes),
                options: Vec::new(),
            };
            writer.write_pcapng_block(block).unwrap();
        }
        std::fs::write(path, writer.into_inner()).unwrap();
    }
}
