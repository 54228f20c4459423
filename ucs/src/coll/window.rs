//! Wrapping sequence numbers: signed difference and receive window. Never compare them with `<`.

/// Signed distance from `b` to `a`: positive when `a` is later. Valid while less than 2^31 apart.
#[inline]
pub const fn seq_diff(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// `a` comes before `b`.
#[inline]
pub const fn seq_lt(a: u32, b: u32) -> bool {
    seq_diff(a, b) < 0
}

/// `a` comes before `b` or is `b`.
#[inline]
pub const fn seq_le(a: u32, b: u32) -> bool {
    seq_diff(a, b) <= 0
}

/// Where an arriving number lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeqPosition {
    /// Exactly the expected one.
    Expected,
    /// Later by this many (1 or more) and inside the window: keep it.
    Ahead(u32),
    /// Before the expected one: seen already.
    Duplicate,
    /// Outside the window: a peer that does not keep to the rules, or a window too small.
    OutOfWindow,
}

/// The next expected sequence number and how far ahead of it is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqWindow {
    next: u32,
    size: u32,
}

impl SeqWindow {
    /// Expects `next`; accepts numbers below `next + size`. `size` is between 1 and 2^31.
    pub const fn new(next: u32, size: u32) -> SeqWindow {
        assert!(size >= 1 && size <= 1 << 31);
        SeqWindow { next, size }
    }

    /// The number expected next.
    #[inline]
    pub const fn next(&self) -> u32 {
        self.next
    }

    /// Places `seq` without changing the window.
    #[inline]
    // HOT
    pub const fn classify(&self, seq: u32) -> SeqPosition {
        match seq_diff(seq, self.next) {
            0 => SeqPosition::Expected,
            d if d < 0 => SeqPosition::Duplicate,
            d if (d as u32) < self.size => SeqPosition::Ahead(d as u32),
            _ => SeqPosition::OutOfWindow,
        }
    }

    /// The expected number was handled: expect the one after it.
    #[inline]
    pub const fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        assert!(seq_lt(u32::MAX, 0));
        assert!(!seq_lt(0, u32::MAX));
        assert!(seq_le(5, 5) && !seq_lt(5, 5));
        assert_eq!(seq_diff(2, u32::MAX), 3);
    }

    #[test]
    fn numbers_are_classified() {
        let mut w = SeqWindow::new(u32::MAX, 4);
        assert_eq!(w.classify(u32::MAX), SeqPosition::Expected);
        assert_eq!(w.classify(0), SeqPosition::Ahead(1));
        assert_eq!(w.classify(2), SeqPosition::Ahead(3));
        assert_eq!(w.classify(3), SeqPosition::OutOfWindow);
        assert_eq!(w.classify(u32::MAX - 1), SeqPosition::Duplicate);
        w.advance();
        assert_eq!(w.next(), 0);
        assert_eq!(w.classify(u32::MAX), SeqPosition::Duplicate);
        assert_eq!(w.classify(3), SeqPosition::Ahead(3));
    }
}
