//! Reads captures of networks: pcap and pcapng, of Ethernet, Linux's "any" interface, loopback or bare IP.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};

use crate::file::{nanoseconds, unit, why_cut};

/// A UDP packet of a capture.
pub struct Packet {
    /// ns.
    pub time: u64,
    /// Sender.
    pub from: SocketAddr,
    /// Receiver.
    pub to: SocketAddr,
    /// Payload.
    pub bytes: Vec<u8>,
}

const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// UDP packets of a file, as far as it is whole.
pub struct Capture {
    pub packets: Vec<Packet>,
    /// Why the file ends early, if it does.
    pub truncated: Option<String>,
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Capture, String> {
    let refused = |why: String| format!("{}: {why}", path.display());
    let mut file = File::open(path).map_err(|e| refused(e.to_string()))?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic).map_err(|_| refused("no capture".into()))?;
    file.seek(SeekFrom::Start(0)).map_err(|e| refused(e.to_string()))?;
    let file = BufReader::new(file);
    if magic == PCAPNG { read_ng(file) } else { read_old(file) }.map_err(refused)
}

fn read_old(file: BufReader<File>) -> Result<Capture, String> {
    let mut reader = PcapReader::new(file).map_err(|e| format!("no pcap or pcapng file ({e})"))?;
    let link = reader.header().datalink;
    let mut packets = Vec::new();
    let truncated = loop {
        match reader.next_packet() {
            None => break None,
            Some(Err(e)) => break Some(why_cut(&e)),
            Some(Ok(packet)) => {
                packets.extend(parse(link, packet.timestamp.as_nanos() as u64, &packet.data)?);
            }
        }
    };
    Ok(Capture { packets, truncated })
}

fn read_ng(file: BufReader<File>) -> Result<Capture, String> {
    let mut reader = PcapNgReader::new(file).map_err(|e| e.to_string())?;
    let (mut links, mut packets) = (Vec::new(), Vec::new());
    let truncated = loop {
        let block = match reader.next_block() {
            None => break None,
            Some(Err(e)) => break Some(why_cut(&e)),
            Some(Ok(block)) => block,
        };
        match block {
            Block::SectionHeader(_) => links.clear(),
            Block::InterfaceDescription(interface) => {
                links.push((interface.linktype, unit(&interface.options)));
            }
            Block::EnhancedPacket(packet) => {
                let Some((link, unit)) = links.get(packet.interface_id as usize) else { continue };
                packets.extend(parse(*link, nanoseconds(packet.timestamp, *unit), &packet.data)?);
            }
            _ => {}
        }
    };
    Ok(Capture { packets, truncated })
}

/// The UDP packet in a frame; `None` if it is none, or a piece of one.
fn parse(link: DataLink, time: u64, frame: &[u8]) -> Result<Option<Packet>, String> {
    let before = match link {
        DataLink::ETHERNET => 14 + 4 * usize::from(frame.get(12..14) == Some(&[0x81, 0])),
        DataLink::LINUX_SLL => 16,
        DataLink::LINUX_SLL2 => 20,
        DataLink::NULL | DataLink::LOOP => 4,
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => 0,
        other => {
            return Err(format!(
                "link type {other:?} is not read; tcpdump -i IFACE -w FILE udp makes others"
            ));
        }
    };
    Ok(frame.get(before..).and_then(|packet| ip(time, packet)))
}

fn ip(time: u64, packet: &[u8]) -> Option<Packet> {
    const UDP: u8 = 17;
    let (from, to, udp): (IpAddr, IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
            if *packet.get(9)? != UDP || fragment != 0 {
                return None;
            }
            let addr = |at: usize| packet.get(at..at + 4).and_then(|ip| <[u8; 4]>::try_from(ip).ok());
            (addr(12)?.into(), addr(16)?.into(), packet.get(header..)?)
        }
        6 => {
            if *packet.get(6)? != UDP {
                return None;
            }
            let addr = |at: usize| packet.get(at..at + 16).and_then(|ip| <[u8; 16]>::try_from(ip).ok());
            (addr(8)?.into(), addr(24)?.into(), packet.get(40..)?)
        }
        _ => return None,
    };
    let number = |at: usize| udp.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (source, target, len) = (number(0)?, number(2)?, usize::from(number(4)?));
    // A packet that the system has not cut yet may be longer than its headers say.
    let bytes = udp.get(8..)?;
    let bytes = if len >= 8 && packet.len() < 1600 { bytes.get(..len - 8).unwrap_or(bytes) } else { bytes };
    Some(Packet {
        time,
        from: SocketAddr::new(from, source),
        to: SocketAddr::new(to, target),
        bytes: bytes.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(payload: &[u8]) -> Vec<u8> {
        let len = (8 + payload.len()) as u16;
        let mut all = vec![0x9c, 0x40, 0x9c, 0x41];
        all.extend(len.to_be_bytes());
        all.extend([0, 0]);
        all.extend(payload);
        all
    }

    fn v4(payload: &[u8]) -> Vec<u8> {
        let mut all = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        all.extend(udp(payload));
        all
    }

    #[test]
    fn udp_is_found_in_frames_of_each_kind() {
        let mut v6 = vec![0x60, 0, 0, 0, 0, 0, 17, 64];
        v6.extend([0; 15]);
        v6.push(1);
        v6.extend([0; 15]);
        v6.push(2);
        v6.extend(udp(b"six"));
        let tagged = [&[0; 12][..], &[0x81, 0, 0, 7, 8, 0]].concat();
        for (link, before, packet, from, bytes) in [
            (DataLink::RAW, vec![], v4(b"four"), "10.0.0.1:40000", &b"four"[..]),
            (DataLink::RAW, vec![], v6.clone(), "[::1]:40000", b"six"),
            (DataLink::ETHERNET, vec![0; 14], v4(b"x"), "10.0.0.1:40000", b"x"),
            (DataLink::ETHERNET, tagged, v4(b"y"), "10.0.0.1:40000", b"y"),
            (DataLink::LINUX_SLL, vec![0; 16], v6, "[::1]:40000", b"six"),
            (DataLink::LINUX_SLL2, vec![0; 20], v4(b""), "10.0.0.1:40000", b""),
        ] {
            let frame = [before, packet].concat();
            let found = parse(link, 5, &frame).unwrap().unwrap();
            assert_eq!((found.time, found.from.to_string().as_str(), &found.bytes[..]), (5, from, bytes));
        }
    }

    #[test]
    fn what_is_no_udp_is_passed_over() {
        let mut tcp = v4(b"t");
        tcp[9] = 6;
        let mut piece = v4(b"p");
        piece[7] = 1;
        for packet in [tcp, piece, vec![], vec![0x45; 9], vec![0x60; 39], vec![0x30; 60]] {
            assert!(parse(DataLink::RAW, 0, &packet).unwrap().is_none());
        }
        for len in 0..v4(b"abc").len() {
            let _ = parse(DataLink::RAW, 0, &v4(b"abc")[..len]);
        }
        assert!(parse(DataLink::USER0, 0, &[]).is_err());
    }
}
