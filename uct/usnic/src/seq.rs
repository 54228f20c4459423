//! Sequence numbers, which wrap. *"every packet has sequence #"* (Reliability).

/// Sequence number of a segment. Comparisons hold for numbers less than 2³¹ apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Seq(pub u32);

impl Seq {
    /// Number `n` further on.
    #[inline]
    pub fn add(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }

    /// Number before this one.
    #[inline]
    pub fn before(self) -> Seq {
        Seq(self.0.wrapping_sub(1))
    }

    /// How far this number is behind `first`; a huge value if it is before it.
    #[inline]
    pub fn since(self, first: Seq) -> u32 {
        self.0.wrapping_sub(first.0)
    }

    /// Whether this number comes before `other`.
    #[inline]
    pub fn is_before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let last = Seq(u32::MAX);
        assert_eq!(last.add(1), Seq(0));
        assert_eq!(Seq(0).before(), last);
        assert!(last.is_before(Seq(0)) && last.is_before(Seq(4096)));
        assert!(!Seq(0).is_before(last) && !last.is_before(last));
        assert_eq!(Seq(5).since(last), 6);
    }
}
