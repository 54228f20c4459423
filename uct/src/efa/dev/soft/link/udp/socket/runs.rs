//! Runs of datagrams that one system call hands over as one: the kernel, or the network card, cuts a run into
//! datagrams of one length, of which the last may be shorter (UDP GSO), and joins what arrives (UDP GRO).

use std::net::SocketAddr;
use std::ops::Range;

/// Datagrams of a run, at most: what the first kernels with GSO allow.
pub const MAX_RUN: usize = 64;
/// Bytes of a run, at most: what a datagram of IPv6 and IPv4 holds.
pub const MAX_BYTES: usize = 65_535 - 48;

/// Datagrams of the longest run at the start of a batch: those to one address, of one length but for the
/// last.
pub fn first_run(batch: &[(SocketAddr, &[u8])]) -> usize {
    let Some((to, first)) = batch.first() else { return 0 };
    let (segment, mut total, mut n) = (first.len(), 0, 0);
    for (addr, bytes) in batch.iter().take(MAX_RUN) {
        total += bytes.len();
        if addr != to || bytes.len() > segment || total > MAX_BYTES {
            break;
        }
        // An empty one has no place in a run.
        if bytes.is_empty() {
            break;
        }
        n += 1;
        if bytes.len() < segment {
            break;
        }
    }
    n.max(1)
}

/// Places of the datagrams in what has arrived as one; `segment` is their length, 0 if it is one datagram.
pub fn split(len: usize, segment: usize) -> impl Iterator<Item = Range<usize>> {
    let step = if segment == 0 { len.max(1) } else { segment };
    let count = len.div_ceil(step).max(1);
    (0..count).map(move |n| n * step..len.min((n + 1) * step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addr(n: u8) -> SocketAddr {
        ([10, 0, 0, n], 5000).into()
    }

    fn runs(lens: &[(u8, usize)]) -> Vec<usize> {
        let bytes = vec![0; 70_000];
        let batch: Vec<_> = lens.iter().map(|(to, len)| (addr(*to), &bytes[..*len])).collect();
        let (mut rest, mut runs) = (&batch[..], Vec::new());
        while !rest.is_empty() {
            let n = first_run(rest);
            runs.push(n);
            rest = &rest[n..];
        }
        runs
    }

    #[test]
    fn a_run_has_one_length_and_one_address() {
        assert_eq!(runs(&[(1, 100), (1, 100), (1, 100)]), [3]);
        assert_eq!(runs(&[(1, 100), (1, 60), (1, 60)]), [2, 1], "a short one ends it");
        assert_eq!(runs(&[(1, 60), (1, 100), (1, 100)]), [1, 2], "a longer one is no part of it");
        assert_eq!(runs(&[(1, 100), (2, 100), (1, 100)]), [1, 1, 1], "others have others");
        assert_eq!(runs(&[(1, 100), (1, 0), (1, 100), (1, 0)]), [1, 1, 1, 1], "an empty one goes alone");
        assert_eq!(runs(&[]), []);
    }

    #[test]
    fn a_run_is_no_longer_than_the_kernel_takes() {
        assert_eq!(runs(&[(1, 8); 130]), [64, 64, 2]);
        assert_eq!(runs(&[(1, 1472); 50]), [44, 6]);
        assert_eq!(runs(&[(1, 65_000), (1, 65_000)]), [1, 1]);
        assert_eq!(runs(&[(1, 69_000), (1, 2)]), [1, 1], "what no datagram holds goes alone, to be refused");
    }

    #[test]
    fn what_was_joined_is_cut_again() {
        let cut = |len, segment| split(len, segment).map(|range| range.len()).collect::<Vec<_>>();
        assert_eq!(cut(3000, 1472), [1472, 1472, 56], "a short tail");
        assert_eq!(cut(2944, 1472), [1472, 1472]);
        assert_eq!(cut(100, 1472), [100]);
        assert_eq!(cut(100, 0), [100], "one datagram");
        assert_eq!(cut(0, 0), [0], "an empty datagram is one");
        assert_eq!(cut(0, 7), [0]);
    }

    proptest! {
        #[test]
        fn each_run_is_cut_into_its_datagrams(lens in proptest::collection::vec((0u8..2, 0usize..2000), 0..200)) {
            let mut at = 0;
            for run in runs(&lens) {
                let of_run = &lens[at..at + run];
                at += run;
                let total = of_run.iter().map(|(_, len)| len).sum();
                let segment = if run > 1 { of_run[0].1 } else { 0 };
                let cut: Vec<_> = split(total, segment).map(|range| range.len()).collect();
                let want: Vec<_> = of_run.iter().map(|(_, len)| *len).collect();
                prop_assert_eq!(cut, want);
            }
            prop_assert_eq!(at, lens.len());
        }
    }
}
