//! Tag of an active message: handler number, header length, and whether the data is packed or announced.

/// Longest packed message that fits a posted buffer, bytes.
pub(crate) const POSTED_LEN: usize = 8 << 10;

/// Longest header of an active message, bytes.
pub const AM_MAX_HEADER: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AmTag {
    pub id: u16,
    pub header_len: u16,
    pub kind: AmKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AmKind {
    Packed,
    Announced,
}

impl AmTag {
    const ANNOUNCED: u64 = 1 << 63;
    pub const LARGE: u64 = 1 << 62;

    #[inline]
    pub fn tag(self, packed_len: usize) -> u64 {
        let large = if packed_len > POSTED_LEN { AmTag::LARGE } else { 0 };
        let kind = if self.kind == AmKind::Announced { AmTag::ANNOUNCED } else { 0 };
        u64::from(self.id) | u64::from(self.header_len) << 16 | large | kind
    }

    pub fn of(tag: u64) -> AmTag {
        let kind = if tag & AmTag::ANNOUNCED != 0 { AmKind::Announced } else { AmKind::Packed };
        AmTag { id: tag as u16, header_len: (tag >> 16) as u16, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive_their_tag() {
        for kind in [AmKind::Packed, AmKind::Announced] {
            for (id, header_len) in [(0, 0), (u16::MAX, AM_MAX_HEADER as u16), (7, 1)] {
                let label = AmTag { id, header_len, kind };
                assert_eq!(AmTag::of(label.tag(5)), label);
                assert_eq!(AmTag::of(label.tag(POSTED_LEN + 1)), label);
                assert_eq!(label.tag(POSTED_LEN) & AmTag::LARGE, 0);
                assert_ne!(label.tag(POSTED_LEN + 1) & AmTag::LARGE, 0);
            }
        }
    }
}
