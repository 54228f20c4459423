//! Time after which a peer that is gone ends the requests to it: `SOFTEFA_UDP_TIMEOUT`.

use super::multipath::{exchange, pair_over};
use super::*;
use crate::api::OpenError;

/// Time from a request to its end, where the network is cut off before it. The status is checked.
fn time_to_death(name: &str, timeout: &str) -> Duration {
    let (network, a, b) = pair_over(name, usize::MAX, &[("SOFTEFA_UDP_TIMEOUT", timeout)]);
    exchange(&a, &b);
    let start = Instant::now();
    drop(network);
    b.qp.recv(1, b.sge(0, 100)).unwrap();
    a.qp.send(&a.to(&b), 2, &[a.sge(0, 100)], None).unwrap();
    // The peer is there and polls; nothing comes through.
    assert_eq!(status(&a, &b), DevStatus::Unresponsive);
    assert_eq!(counter(&a, "deaths"), 1);
    start.elapsed()
}

#[test]
fn a_peer_that_is_gone_ends_a_request_within_the_time_that_was_set() {
    for (name, timeout) in [("a-secret-of-2000ms", 2000u64), ("a-secret-of-4000ms", 4000)] {
        let took = time_to_death(name, &format!("{timeout}ms"));
        // Its silence is looked at seven times. A machine that pauses comes to it later.
        let (least, most) = (timeout * 5 / 7, timeout + 5000);
        let range = Duration::from_millis(least)..Duration::from_millis(most);
        assert!(range.contains(&took), "{timeout} ms: {took:?}");
    }
}

#[test]
fn a_time_that_is_out_of_range_is_refused() {
    for timeout in ["499ms", "2h", "0"] {
        let vars = [("SOFTEFA_UDP", "all"), ("SOFTEFA_UDP_TIMEOUT", timeout)];
        let vars = vars.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let why = soft::open(&Source::from_vars(vars).unwrap(), "softefa0").err();
        assert!(
            matches!(&why, Some(OpenError::Config(text)) if text.contains("UDP_TIMEOUT")),
            "{timeout}: {why:?}"
        );
    }
}
