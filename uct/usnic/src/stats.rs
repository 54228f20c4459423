//! Counters of a module.

/// Buckets of the histogram of round-trip times.
pub const RTT_BUCKETS: usize = 40;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Events since the module was made.
        #[derive(Clone, Copy, Debug)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Round-trip times: bucket `n` counts those below 2ⁿ⁺¹ ns and not below 2ⁿ.
            pub rtt: [u64; RTT_BUCKETS],
        }

        impl Default for Stats {
            fn default() -> Self {
                Stats { $($name: 0,)* rtt: [0; RTT_BUCKETS] }
            }
        }

        impl Stats {
            /// Counters with their names.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

stats! {
    /// Segments sent for the first time.
    sent,
    /// Segments sent again after their timer expired.
    resent_by_timer,
    /// Segments sent again after a repeated acknowledgement.
    resent_by_duplicate_ack,
    /// Segments sent again since later ones had arrived.
    resent_by_time,
    /// Segments sent again in pieces, since the path no longer carries them whole.
    resent_in_pieces,
    /// Tiny fragments sent within the call.
    sent_at_once,
    /// Acknowledgements that a send took along.
    acks_piggybacked,
    /// Acknowledgements sent after their delay.
    acks_delayed,
    /// Acknowledgements sent at once.
    acks_immediate,
    /// Acknowledgements received that were older than others.
    acks_old,
    /// Acknowledgements received that repeated another.
    acks_duplicate,
    /// Segments received in order.
    received_in_order,
    /// Segments received before others that are missing.
    received_early,
    /// Segments received again.
    received_again,
    /// Segments delivered before their bookkeeping.
    received_fast,
    /// Segments beyond the window.
    beyond_window,
    /// Datagrams with a wrong checksum.
    corrupt,
    /// Datagrams that are none of ours.
    malformed,
    /// Datagrams of an unknown connection.
    unknown,
    /// Acknowledgements of what was never sent, and chunks that do not fit their fragment.
    violations,
    /// Times that an endpoint left the ready queue with a full send window.
    window_stalls,
    /// Times that it left for a full congestion window.
    congestion_stalls,
    /// Times that it left without credits.
    credit_stalls,
    /// Times that it left to keep its pace.
    pace_stalls,
    /// Times that the path to a peer was probed.
    path_probes,
    /// Paths that do not carry what both sides take.
    short_paths,
    /// Recoveries, which make a congestion window smaller.
    recoveries,
    /// Segments sent again that had arrived, as peers tell.
    resent_spuriously,
    /// Congestion windows restored, since nothing was lost.
    window_restored,
    /// Probes sent.
    probes,
    /// Connections that ended with the peer's death.
    deaths,
}

impl Stats {
    pub(crate) fn count_rtt(&mut self, rtt: u64) {
        let bucket = (63 - rtt.max(1).leading_zeros()) as usize;
        self.rtt[bucket.min(RTT_BUCKETS - 1)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_of_round_trips() {
        let mut stats = Stats::default();
        [0, 1, 2, 1000, 1024, u64::MAX].into_iter().for_each(|rtt| stats.count_rtt(rtt));
        assert_eq!((stats.rtt[0], stats.rtt[1], stats.rtt[9], stats.rtt[10]), (2, 1, 1, 1));
        assert_eq!(stats.rtt[RTT_BUCKETS - 1], 1);
        assert_eq!(stats.counters().next(), Some(("sent", 0)));
    }
}
