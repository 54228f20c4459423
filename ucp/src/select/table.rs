//! The choice, worked out: three limits and four rows. `pick` is what a send costs.

use super::key::Key;
use super::rules::{Thresholds, capacity};
use crate::rdm::room::Row;

/// Protocol by size for one [`Key`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table {
    eager_max: usize,
    medium_max: usize,
    /// Smallest message that goes by the last row.
    read_from: usize,
    rows: [Row; 4],
}

/// Sizes `from..=to` go by `row`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Smallest size, bytes.
    pub from: usize,
    /// Largest size, bytes.
    pub to: usize,
    /// How they go.
    pub row: Row,
}

impl Table {
    /// Works out the table for `key`.
    pub fn new(key: &Key, limits: &Thresholds) -> Table {
        let read_from = limits.read_from(key);
        let read = read_from.map_or(Row::LongCts, |_| limits.read_row());
        let rows = [Row::Eager, Row::Medium, Row::LongCts, read].map(|row| row.with(key.sync));
        let eager_max = capacity(key, rows[0]);
        let read_from = read_from.map_or(usize::MAX, |from| from.max(eager_max + 1));
        let medium_max = limits.medium_limit().max(eager_max).min(read_from - 1);
        Table { eager_max, medium_max, read_from, rows }
    }

    /// How a message of `len` bytes goes. // HOT
    #[inline]
    pub const fn pick(&self, len: usize) -> Row {
        if len <= self.eager_max {
            self.rows[0]
        } else if len <= self.medium_max {
            self.rows[1]
        } else if len < self.read_from {
            self.rows[2]
        } else {
            self.rows[3]
        }
    }

    /// Largest message that goes in one packet, bytes.
    pub const fn eager_max(&self) -> usize {
        self.eager_max
    }

    /// The whole table: ascending, without gaps, from 0 to `usize::MAX`.
    pub fn ranges(&self) -> impl Iterator<Item = Range> {
        let [eager, medium, long, read] = self.rows;
        let first = Range { from: 0, to: self.eager_max, row: eager };
        let second = (self.medium_max > self.eager_max).then_some(Range {
            from: self.eager_max + 1,
            to: self.medium_max,
            row: medium,
        });
        let long_max = if read == long { usize::MAX } else { self.read_from - 1 };
        let third = (self.medium_max < long_max).then_some(Range {
            from: self.medium_max + 1,
            to: long_max,
            row: long,
        });
        let fourth = (read != long).then_some(Range { from: self.read_from, to: usize::MAX, row: read });
        std::iter::once(first).chain(second).chain(third).chain(fourth)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, PeerCaps, Reads, ReqHdr, Sync, WireCaps};
    use super::*;

    /// Golden: the limits of RDM v4 for a packet of 8900 bytes (wire facts 5.2) and the default medium limit.
    #[test]
    fn golden() {
        use Kind::{Tagged, Untagged};
        use ReqHdr::{Bare, Connid, RawAddr};
        let mtu = 8900;
        let golden = [
            (Untagged, Sync::No, RawAddr, mtu - 48),
            (Tagged, Sync::No, RawAddr, mtu - 56),
            (Untagged, Sync::No, Connid, mtu - 12),
            (Tagged, Sync::No, Connid, mtu - 20),
            (Untagged, Sync::Yes, Connid, mtu - 20),
            (Tagged, Sync::Yes, Connid, mtu - 28),
            (Untagged, Sync::No, Bare, mtu - 8),
            (Tagged, Sync::Yes, Bare, mtu - 24),
        ];
        for (kind, sync, hdr, eager_max) in golden {
            let key = Key::new(
                kind,
                sync,
                WireCaps { mtu, reads: Reads::No },
                PeerCaps { hdr, ..PeerCaps::default() },
            );
            let table = Table::new(&key, &Thresholds::default());
            let rows: Vec<_> = table.ranges().map(|r| (r.from, r.to, r.row)).collect();
            assert_eq!(
                rows,
                [
                    (0, eager_max, Row::Eager.with(sync)),
                    (eager_max + 1, 65536, Row::Medium.with(sync)),
                    (65537, usize::MAX, Row::LongCts.with(sync)),
                ],
                "{kind:?} {sync:?} {hdr:?}"
            );
            for range in table.ranges() {
                assert_eq!((table.pick(range.from), table.pick(range.to)), (range.row, range.row));
            }
        }
    }

    #[test]
    fn rndv_threshold_replaces_the_medium_limit_but_not_one_packet() {
        let key =
            Key::new(Kind::Tagged, Sync::No, WireCaps { mtu: 1000, reads: Reads::No }, PeerCaps::default());
        let at = |rndv| Table::new(&key, &Thresholds { rndv_thresh: Some(rndv), ..Thresholds::default() });
        assert_eq!(at(5000).pick(4999), Row::Medium);
        assert_eq!(at(5000).pick(5000), Row::LongCts);
        assert_eq!(at(0).pick(944), Row::Eager);
        assert_eq!(at(0).pick(945), Row::LongCts);
        assert_eq!(at(usize::MAX).pick(1 << 40), Row::Medium);
    }

    #[test]
    fn what_both_ends_can_read_is_read_from_its_size_on() {
        let wire = WireCaps { mtu: 1000, reads: Reads::Yes };
        let rows = |sync, peer: Reads, limits: Thresholds| {
            let peer = PeerCaps { reads: peer, ..PeerCaps::default() };
            let table = Table::new(&Key::new(Kind::Tagged, sync, wire, peer), &limits);
            for range in table.ranges() {
                assert_eq!((table.pick(range.from), table.pick(range.to)), (range.row, range.row));
            }
            table.ranges().map(|r| (r.from, r.row)).collect::<Vec<_>>()
        };
        let default = Thresholds::default();
        let eager = [(0, Row::Eager), (945, Row::Medium), (65537, Row::LongCts)];
        assert_eq!(rows(Sync::No, Reads::No, default), eager);
        assert_eq!(rows(Sync::No, Reads::Unknown, default)[3], (1 << 20, Row::LongRead));
        let runts = Thresholds { runt_size: 100, min_read: 2000, ..default };
        assert_eq!(rows(Sync::No, Reads::Yes, runts)[1..], [(945, Row::Medium), (2000, Row::RuntRead)]);
        assert_eq!(rows(Sync::Yes, Reads::Yes, runts)[2], (2000, Row::LongRead));
        let all = Thresholds { min_read: 0, ..default };
        assert_eq!(rows(Sync::No, Reads::Yes, all), [(0, Row::Eager), (945, Row::LongRead)]);
    }

    #[test]
    fn cq_data_takes_eight_bytes() {
        let mut key =
            Key::new(Kind::Tagged, Sync::No, WireCaps { mtu: 1000, reads: Reads::No }, PeerCaps::default());
        let without = Table::new(&key, &Thresholds::default()).eager_max();
        key.cq_data = super::super::CqData::Yes;
        assert_eq!(Table::new(&key, &Thresholds::default()).eager_max(), without - 8);
    }
}
