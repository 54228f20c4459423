//! A macro for structs of named counters. Counting is `stats.field += 1`.

/// Structs of [`counters!`](crate::counters). The struct is its own snapshot.
pub trait Counters: Copy + Default {
    /// Name and help of each counter, in order of declaration.
    const FIELDS: &'static [(&'static str, &'static str)];

    /// Current values in the order of [`FIELDS`](Self::FIELDS).
    fn values(&self) -> impl Iterator<Item = u64>;

    /// Name and value of each counter, in order of declaration.
    fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::FIELDS.iter().map(|(name, _)| *name).zip(self.values())
    }

    /// Difference to `earlier`. Counters wrap.
    #[must_use]
    fn diff(&self, earlier: &Self) -> Self;

    /// Adds what another worker counted.
    fn add(&mut self, other: &Self);
}

/// Declares a struct of `u64` counters.
/// ```
/// ucs::counters! {
///     /// Counters of one worker.
///     pub struct WorkerStats {
///         /// Packets sent.
///         sent,
///         /// Packets dropped because they did not parse.
///         bad_pkts,
///     }
/// }
/// use ucs::stats::Counters;
///
/// let mut stats = WorkerStats::default();
/// let before = stats;
/// stats.sent += 3;
/// let all: Vec<_> = stats.diff(&before).fields().collect();
/// assert_eq!(all, [("sent", 3), ("bad_pkts", 0)]);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])+
        $vis:vis struct $Stats:ident {
            $( $(#[doc = $help:literal])+ $field:ident ),+ $(,)?
        }
    ) => {
        $(#[$meta])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, $crate::stats::serde::Serialize)]
        #[serde(crate = "ucs::stats::serde")]
        $vis struct $Stats {
            $( $(#[doc = $help])+ pub $field: u64 ),+
        }

        impl $crate::stats::Counters for $Stats {
            const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($field), concat!($($help),+))),+];

            fn values(&self) -> impl Iterator<Item = u64> {
                [$(self.$field),+].into_iter()
            }

            fn diff(&self, earlier: &Self) -> Self {
                $Stats { $($field: self.$field.wrapping_sub(earlier.$field)),+ }
            }

            fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::counters! {
        /// For the test.
        struct Two {
            /// The first of two.
            first,
            /// The second.
            second,
        }
    }

    #[test]
    fn subtracts_and_adds() {
        let a = Two { first: 1, second: u64::MAX };
        let mut b = Two { first: 4, second: 1 };
        assert_eq!(b.diff(&a), Two { first: 3, second: 2 });
        b.add(&a);
        assert_eq!(b, Two { first: 5, second: 0 });
        assert_eq!(Two::FIELDS[0], ("first", " The first of two."));
        assert_eq!(b.fields().last(), Some(("second", 0)));
    }
}
