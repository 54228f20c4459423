//! Datagrams of the UDP link, from captures of networks, and the way of one segment through losses.

mod network;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use tools_common::out;
use uct::efa::dev::soft::link::udp::describe_head;
use usnic::{Decoded, Plain, decode};

/// A datagram of a capture.
struct Seen {
    /// File, counted from 0.
    file: usize,
    /// ns.
    time: u64,
    from: SocketAddr,
    to: SocketAddr,
    /// Bytes of the datagram.
    len: usize,
    what: Decoded,
}

/// A number, decimal or with `0x` hexadecimal.
pub fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|e| e.to_string())
}

/// Prints the datagrams that are asked for. Returns whether the segment that is followed was acknowledged, if
/// one is, and all checksums are right.
pub fn print(files: &[PathBuf], connection: Option<u32>, segment: Option<u32>) -> Result<bool, String> {
    let mut all = Vec::new();
    for (nth, path) in files.iter().enumerate() {
        let capture = network::read(path)?;
        if let Some(why) = capture.truncated {
            crate::tell_of_cut(path, &why);
        }
        capture.packets.iter().for_each(|packet| all.extend(cut(nth, packet)));
    }
    all.sort_by_key(|seen| seen.time);
    let start = all.first().map_or(0, |seen| seen.time);
    let mut follow = segment.map(|seq| Follow::new(connection.unwrap_or(0), seq));
    let (mut times, mut shown, mut wrong) = (HashMap::new(), 0, 0);
    for (nth, seen) in all.iter().enumerate() {
        let again = count(&mut times, seen);
        let wanted = match &mut follow {
            Some(follow) => follow.concerns(seen),
            None => connection.is_none_or(|number| is_of(seen, number)),
        };
        if wanted {
            let file = if files.len() > 1 { format!(" file {}", seen.file + 1) } else { String::new() };
            out::line(format!(
                "{:>6} {:>12.6}{file} {}",
                nth + 1,
                seconds(seen.time - start),
                line(seen, again)
            ));
            shown += 1;
            wrong += u64::from(matches!(&seen.what, Decoded::Plain(plain) if !plain.good));
        }
    }
    out::line(format!("# {shown} of {} datagrams, {wrong} with a wrong checksum", all.len()));
    let acknowledged = follow.is_none_or(|follow| follow.print());
    Ok(wrong == 0 && acknowledged)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Cuts what was captured before the system had cut it.
fn cut(file: usize, packet: &network::Packet) -> Vec<Seen> {
    let (mut rest, mut all) = (&packet.bytes[..], Vec::new());
    while let Some(what) = decode(rest) {
        let len = match &what {
            Decoded::Plain(plain) => plain.len,
            // Where one of these ends cannot be seen.
            Decoded::Sealed(_) => rest.len(),
        };
        all.push(Seen { file, time: packet.time, from: packet.from, to: packet.to, len, what });
        rest = &rest[len..];
    }
    all
}

/// How often this file has the segment of a datagram, up to now.
fn count(times: &mut HashMap<(usize, u32, u32), u32>, seen: &Seen) -> u32 {
    match &seen.what {
        Decoded::Plain(plain) if plain.carries => {
            let count = times.entry((seen.file, plain.src, plain.seq)).or_default();
            *count += 1;
            *count
        }
        _ => 0,
    }
}

fn is_of(seen: &Seen, connection: u32) -> bool {
    matches!(&seen.what, Decoded::Plain(plain) if plain.src == connection || plain.dst == connection)
}

fn line(seen: &Seen, times: u32) -> String {
    let ends = format!("{} > {}", seen.from, seen.to);
    match &seen.what {
        Decoded::Plain(plain) => format!("{ends} {}", plain_text(plain, times)),
        Decoded::Sealed(clear) if clear.kind == "SEALED" => {
            let channel = if clear.priority { ", priority" } else { "" };
            format!(
                "{ends} SEALED session {:#x} number {}, {} bytes{channel}",
                clear.session, clear.number, seen.len
            )
        }
        Decoded::Sealed(clear) => format!("{ends} {} session {:#x}", clear.kind, clear.session),
    }
}

fn plain_text(plain: &Plain, times: u32) -> String {
    let mut text = format!("{} {:#x} > {:#x}", plain.kind, plain.src, plain.dst);
    let mut add = |more: String| text.push_str(&more);
    if plain.carries {
        add(format!(" seq {}", plain.seq));
    }
    if plain.dst != 0 {
        add(format!(" ack {}", plain.ack));
    }
    // Of a segment: acknowledgements and control always take it.
    if plain.carries && plain.priority {
        add(" priority".into());
    }
    let beyond: u32 = plain.sack.iter().map(|word| word.count_ones()).sum();
    if beyond != 0 {
        add(format!(" and {beyond} beyond"));
    }
    if let Some(piece) = &plain.piece {
        add(format!(
            " seq {}: {} at {} of {} of a {}",
            plain.seq, plain.payload, piece.at, piece.total, piece.kind
        ));
    } else if let Some((frag, total, offset)) = plain.chunk {
        add(format!(" fragment {frag}: {} at {offset} of {total}", plain.payload));
    } else if plain.carries {
        add(format!(" {} bytes", plain.payload));
    }
    if let Some(head) = plain.head.as_ref().and_then(describe_head) {
        add(format!(" {head}"));
    }
    if let Some(node) = plain.node {
        add(format!(" fe80::{node:x}"));
    }
    for (is_set, name) in [(plain.ack_due, "due"), (plain.repeated, "came-again"), (plain.aborts, "ABORTED")]
    {
        if is_set {
            add(format!(" {name}"));
        }
    }
    if times > 1 {
        add(format!(" (time {times})"));
    }
    if let Some(sealed) = &plain.sealed {
        add(format!(" sealed: session {:#x} number {}", sealed.session, sealed.number));
    }
    if !plain.good {
        add(" WRONG CHECKSUM".into());
    }
    text
}

/// The way of one segment.
struct Follow {
    connection: u32,
    seq: u32,
    /// Datagrams that carried it: file and time.
    sent: Vec<(usize, u64)>,
    /// Datagrams that carried a piece of it: file and time.
    pieces: Vec<(usize, u64)>,
    acked: Option<u64>,
}

impl Follow {
    fn new(connection: u32, seq: u32) -> Follow {
        Follow { connection, seq, sent: Vec::new(), pieces: Vec::new(), acked: None }
    }

    fn concerns(&mut self, seen: &Seen) -> bool {
        let Decoded::Plain(plain) = &seen.what else { return false };
        if plain.carries && plain.src == self.connection && plain.seq == self.seq {
            self.sent.push((seen.file, seen.time));
            return true;
        }
        if plain.piece.is_some() && plain.src == self.connection && plain.seq == self.seq {
            self.pieces.push((seen.file, seen.time));
            return true;
        }
        let has_started = !self.sent.is_empty() || !self.pieces.is_empty();
        let acks = plain.dst == self.connection && has_started && plain.acknowledges(self.seq);
        if acks && plain.good && self.acked.is_none() {
            self.acked = Some(seen.time);
            return true;
        }
        false
    }

    /// Prints what became of it. Returns whether it was acknowledged.
    fn print(&self) -> bool {
        let Follow { connection, seq, .. } = self;
        let Some((_, first)) = self.sent.iter().chain(&self.pieces).min_by_key(|(_, time)| time) else {
            out::line(format!("# segment {seq} of connection {connection:#x} is not in the capture"));
            return false;
        };
        let files = self.sent.iter().chain(&self.pieces).map(|(file, _)| *file).max();
        // How many there are in each file.
        let counts = |seen: &[(usize, u64)]| {
            let count = |file| seen.iter().filter(|(of, _)| *of == file).count().to_string();
            (0..=files.unwrap_or(0)).map(count).collect::<Vec<_>>().join(" and ")
        };
        let in_pieces = match self.pieces.is_empty() {
            true => String::new(),
            false => format!(", {} pieces of it", counts(&self.pieces)),
        };
        let fate = match self.acked {
            Some(time) => format!("acknowledged {:.6} s after the first time", seconds(time - first)),
            None => "not acknowledged".into(),
        };
        out::line(format!(
            "# segment {seq} of connection {connection:#x}: seen {} times{in_pieces}, {fate}",
            counts(&self.sent)
        ));
        self.acked.is_some()
    }
}
