//! Segments that go again in pieces, and arrive so: see [`crate::pieces`].

use super::core::Core;
use super::endpoint::Endpoint;
use crate::channel::ChannelId;
use crate::header::{HEADER, Header, PIECE_HEADER, PieceHeader, flag, kind, padding_of, parse_piece};
use crate::pieces::{MOST, count};
use crate::segment::{SegId, Size};
use crate::seq::Seq;
use zerocopy::{FromBytes, IntoBytes};

impl Endpoint {
    /// Whether a segment is longer than the path carries now, and the peer takes as many pieces.
    #[inline]
    pub(super) fn needs_pieces(&self, core: &Core, id: SegId) -> bool {
        let len = core.segments[id].len;
        len > self.mtu && self.takes_pieces && count(len, self.mtu - PIECE_HEADER as u32) <= MOST
    }

    /// Queues the pieces of a segment, which is lost, as datagrams without a number.
    #[cold]
    #[inline(never)]
    pub(super) fn resend_in_pieces(&mut self, core: &mut Core, now: u64, id: SegId) {
        self.count_resent(core, id);
        self.check_in(core, now, id, ChannelId::Data);
        core.stats.resent_in_pieces += 1;
        let segment = &core.segments[id];
        let Ok((header, _)) = Header::ref_from_prefix(&segment.buf) else { return };
        let (seq, kind, flags) = (segment.seq, header.kind, header.flags & flag::ABORT);
        let end = segment.len as usize - padding_of(header);
        let (total, unit) = ((end - HEADER) as u32, self.mtu - PIECE_HEADER as u32);
        for nth in 0..count(total, unit) {
            let at = nth * unit;
            let of = PieceHeader {
                kind,
                flags: if kind == kind::CHUNK { flags } else { 0 },
                unit: (unit as u16).into(),
                total: total.into(),
                at: at.into(),
            };
            let len = unit.min(total - at) as usize;
            let Some(piece) = self.new_datagram(core, kind::PIECE, len as u16, Size::Data) else { return };
            let start = HEADER + at as usize;
            let mut bytes = std::mem::take(&mut core.segments[piece].buf);
            if let Ok((header, _)) = Header::mut_from_prefix(&mut bytes) {
                header.seq.set(seq.0);
            }
            bytes[HEADER..PIECE_HEADER].copy_from_slice(of.as_bytes());
            bytes[PIECE_HEADER..][..len].copy_from_slice(&core.segments[id].buf[start..start + len]);
            core.segments[piece].buf = bytes;
            self.queue_posted(core, piece, ChannelId::Data, false);
        }
    }

    /// Takes a piece of a segment. With the last one returns the segment: its header, and what is behind it.
    #[cold]
    #[inline(never)]
    pub(super) fn on_piece(
        &mut self,
        core: &mut Core,
        now: u64,
        header: &Header,
        rest: &[u8],
    ) -> Option<(Header, Vec<u8>)> {
        let seq = Seq(header.seq.get());
        if !self.recv.check(seq).is_new() {
            // It has come whole, or is beyond the window: acknowledged or dropped as a segment is, which was
            // sent again once, however many pieces there are.
            let is_first = parse_piece(rest).is_some_and(|(of, _)| of.at.get() == 0);
            let again = if is_first { flag::AGAIN } else { 0 };
            self.arrive(core, now, &Header { flags: header.flags & !flag::AGAIN | again, ..*header });
            return None;
        }
        let recv = &self.recv;
        self.pieces.retain(|seq| recv.check(seq).is_new());
        let taken = parse_piece(rest).filter(|(of, _)| matches!(of.kind, kind::FRAG | kind::CHUNK));
        let longest = core.config.data.mtu - HEADER as u32;
        let taken = taken.map(|(of, bytes)| (of, self.pieces.take(seq, of, bytes, longest)));
        let Some((of, Ok(whole))) = taken else {
            core.stats.malformed += 1;
            return None;
        };
        let whole = whole?;
        let flags = of.flags & flag::ABORT | header.flags & flag::ACK_DUE | flag::AGAIN;
        Some((Header { kind: of.kind, flags, ..*header }, whole))
    }
}
