//! Contents of messages for `--validate`: a sequence number, then bytes that follow from number and offset.
//! Written by the sender and checked by the receiver.

pub const SEQ_LEN: usize = 8;

/// Sequence number of messages too short to carry one.
const SHORT: u64 = 0x5a;

/// Bytes in a row count up from a first value.
const ROW: usize = 256;
/// Each row is a slice of this.
static RAMP: [u8; 2 * ROW] = {
    let mut ramp = [0; 2 * ROW];
    let mut at = 0;
    while at < ramp.len() {
        ramp[at] = at as u8;
        at += 1;
    }
    ramp
};

/// Row `row` of a message. Its first byte depends on number and offset: misplaced bytes are found.
fn row(seq: u64, row: usize) -> &'static [u8] {
    let mixed = seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    let first = (mixed as u8).wrapping_add((row as u8).wrapping_mul(31));
    &RAMP[first as usize..][..ROW]
}

pub fn fill(message: &mut [u8], seq: u64) {
    match message.split_first_chunk_mut::<SEQ_LEN>() {
        Some((front, rest)) => {
            *front = seq.to_le_bytes();
            fill_rows(rest, seq);
        }
        None => fill_rows(message, SHORT),
    }
}

fn fill_rows(bytes: &mut [u8], seq: u64) {
    bytes
        .chunks_mut(ROW)
        .enumerate()
        .for_each(|(at, bytes)| bytes.copy_from_slice(&row(seq, at)[..bytes.len()]));
}

/// The sequence number of a message that has one. Not trusted: [`check`] it.
pub fn seq(message: &[u8]) -> Option<u64> {
    message.first_chunk::<SEQ_LEN>().map(|front| u64::from_le_bytes(*front))
}

/// Checks every byte; the error names the first wrong one.
pub fn check(message: &[u8], seq: u64, len: usize) -> Result<(), String> {
    if message.len() != len {
        return Err(format!("message {seq} has {} bytes instead of {len}", message.len()));
    }
    let wrong = match message.split_first_chunk::<SEQ_LEN>() {
        Some((front, rest)) => {
            let front = find(front, &seq.to_le_bytes());
            front.or_else(|| find_in_rows(rest, seq).map(|(at, want)| (at + SEQ_LEN, want)))
        }
        None => find_in_rows(message, SHORT),
    };
    match wrong {
        None => Ok(()),
        Some((at, want)) => {
            Err(format!("message {seq}: byte {at} of {len} is {:#04x} instead of {want:#04x}", message[at]))
        }
    }
}

/// Offset of the first wrong byte, and its expected value.
fn find_in_rows(bytes: &[u8], seq: u64) -> Option<(usize, u8)> {
    let mut rows = bytes.chunks(ROW).enumerate();
    rows.find_map(|(at, bytes)| find(bytes, row(seq, at)).map(|(within, want)| (at * ROW + within, want)))
}

fn find(bytes: &[u8], want: &[u8]) -> Option<(usize, u8)> {
    if bytes == &want[..bytes.len()] {
        return None;
    }
    std::iter::zip(bytes, want).position(|(byte, want)| byte != want).map(|at| (at, want[at]))
}

const MOST: usize = 1 << 27;
pub const MAX_TRACKED: u64 = 64 * MOST as u64;

pub struct SeenMessages {
    /// Grows on demand, as the count may come from a peer.
    bits: Vec<u64>,
    count: u64,
    left: u64,
}

impl SeenMessages {
    pub fn new(count: u64) -> SeenMessages {
        SeenMessages { bits: Vec::new(), count, left: count }
    }

    /// Records the arrival of message `seq`; an error if it is a duplicate or out of range.
    pub fn mark(&mut self, seq: u64) -> Result<(), String> {
        if seq >= self.count {
            return Err(format!("message {seq} came, of {} that were sent", self.count));
        }
        let (at, bit) = ((seq / 64) as usize, 1 << (seq % 64));
        if at >= self.bits.len() {
            self.grow(at + 1)?;
        }
        let word = &mut self.bits[at];
        if *word & bit != 0 {
            return Err(format!("message {seq} came twice"));
        }
        *word |= bit;
        self.left -= 1;
        Ok(())
    }

    fn grow(&mut self, words: usize) -> Result<(), String> {
        let more = words - self.bits.len();
        if words > MOST || self.bits.try_reserve(more).is_err() {
            return Err(format!("of {} messages it cannot be told which have come", self.count));
        }
        self.bits.resize(words, 0);
        Ok(())
    }

    pub fn missing(&self) -> u64 {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_marked_once() {
        let mut seen = SeenMessages::new(65);
        for seq in 0..65 {
            seen.mark(seq).unwrap();
        }
        assert_eq!(seen.missing(), 0);
        assert_eq!(seen.mark(64).unwrap_err(), "message 64 came twice");
        assert_eq!(seen.mark(65).unwrap_err(), "message 65 came, of 65 that were sent");
        let mut seen = SeenMessages::new(u64::MAX);
        seen.mark(1000).unwrap();
        assert_eq!(seen.mark(1000).unwrap_err(), "message 1000 came twice");
        assert!(seen.mark(MAX_TRACKED).unwrap_err().ends_with("cannot be told which have come"));
    }

    proptest! {
        #[test]
        fn every_wrong_byte_is_found(len in 1usize..600, seq in 0u64..1000, at in any::<prop::sample::Index>(), by in 1u8..) {
            let mut message = vec![0; len];
            fill(&mut message, seq);
            prop_assert_eq!(check(&message, seq, len), Ok(()));
            let at = at.index(len);
            message[at] = message[at].wrapping_add(by);
            let text = check(&message, seq, len).unwrap_err();
            prop_assert!(text.contains(&format!("byte {at} of")), "{}", text);
            prop_assert!(check(&message[1..], seq, len).is_err());
        }

        #[test]
        fn payload_rows_differ(seq in any::<u64>(), at in 0usize..100_000) {
            let mut message = vec![0; 100_000 + SEQ_LEN];
            fill(&mut message, seq);
            let mixed = (seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize;
            prop_assert_eq!(message[SEQ_LEN + at], (mixed + at + at / 256 * 31) as u8);
        }

        #[test]
        fn payloads_of_other_messages_are_rejected(len in 16usize..100, seq in 0u64..1000) {
            let mut message = vec![0; len];
            fill(&mut message, seq);
            prop_assert!(check(&message, seq + 1, len).is_err());
        }
    }
}
