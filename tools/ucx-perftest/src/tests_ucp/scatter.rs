//! Copies a received message out of the library's memory, as part of the measurement: for `-y`, and into the
//! pieces of `-D iov` where the API delivers data there (`am`, and `stream` with `-r recv_data`).

use crate::fail::Failure;
use crate::page_buffer::zeros;
use crate::spec::{Layout, Spec, Validate};

pub struct ScatterBuffer {
    ranges: Vec<(usize, usize)>,
    area: Vec<u8>,
    checks: bool,
}

impl ScatterBuffer {
    /// The receiver's buffer, if the test copies.
    pub fn of_receiver(spec: &Spec) -> Result<Option<ScatterBuffer>, Failure> {
        (spec.recv_layout == Some(Layout::Iov) || spec.copies).then(|| ScatterBuffer::new(spec)).transpose()
    }

    fn new(spec: &Spec) -> Result<ScatterBuffer, Failure> {
        let checks = spec.validate == Validate::Yes;
        Ok(ScatterBuffer { ranges: spec.piece_ranges().collect(), area: zeros(spec.span())?, checks })
    }

    fn gather(&self, message: &mut [u8]) {
        let mut at = 0;
        for &(from, len) in &self.ranges {
            message[at..at + len].copy_from_slice(&self.area[from..from + len]);
            at += len;
        }
    }

    /// Copies as much of a message as there is into the pieces.
    // HOT
    #[inline(always)]
    pub fn scatter(&mut self, message: &[u8]) {
        let mut rest = message;
        for &(to, len) in &self.ranges {
            let (piece, after) = rest.split_at(len.min(rest.len()));
            self.area[to..to + piece.len()].copy_from_slice(piece);
            rest = after;
        }
    }

    /// The message as the pieces have it, if bytes are checked.
    pub fn gathered(&self, len: usize) -> Option<Vec<u8>> {
        self.checks.then(|| {
            let mut message = vec![0; self.ranges.iter().map(|(_, len)| len).sum()];
            self.gather(&mut message);
            message.truncate(len);
            message
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn scatter_and_gather_round_trip(
            lens in prop::collection::vec(0usize..40, 1..8),
            gap in 0usize..9,
            cut in 0usize..9,
            byte in any::<u8>(),
        ) {
            let mut next = 0;
            let ranges: Vec<(usize, usize)> = lens.iter().map(|len| {
                let at = next;
                next += len + gap;
                (at, *len)
            }).collect();
            let mut pieces = ScatterBuffer { ranges, area: vec![0xaa; next], checks: true };
            let size = lens.iter().sum::<usize>();
            let message: Vec<u8> = (0..size).map(|n| byte.wrapping_add(n as u8)).collect();
            pieces.scatter(&message);
            prop_assert_eq!(pieces.gathered(size).unwrap(), message.clone());
            let short = &message[..size.saturating_sub(cut)];
            pieces.area.fill(0);
            pieces.scatter(short);
            prop_assert_eq!(pieces.gathered(short.len()).unwrap(), short);
        }
    }
}
