//! Compares tests and their defaults with `ucx_perftest` (the table of tests in UCX HEAD of August 2026).

use super::*;

/// Name, layer, flow, default window, title of times, description.
type Known = (&'static str, Layer, Flow, u32, &'static str, &'static str);

const KNOWN: [Known; 26] = [
    ("am_lat", Uct, PingPong, 1, "latency", "active message latency"),
    ("put_lat", Uct, PingPong, 1, "latency", "put latency"),
    ("add_lat", Uct, PingPong, 1, "latency", "atomic add latency"),
    ("get", Uct, Stream, 1, "latency", "get latency / bandwidth / message rate"),
    ("fadd", Uct, Stream, 1, "latency", "atomic fetch-and-add latency / rate"),
    ("swap", Uct, Stream, 1, "latency", "atomic swap latency / rate"),
    ("cswap", Uct, Stream, 1, "latency", "atomic compare-and-swap latency / rate"),
    ("am_bw", Uct, Stream, 1, "overhead", "active message bandwidth / message rate"),
    ("put_bw", Uct, Stream, 32, "overhead", "put bandwidth / message rate"),
    ("get_bw", Uct, Stream, 32, "overhead", "get bandwidth / message rate"),
    ("add_mr", Uct, Stream, 1, "overhead", "atomic add message rate"),
    ("tag_lat", Ucp, PingPong, 1, "latency", "tag match latency"),
    ("tag_bw", Ucp, Stream, 32, "overhead", "tag match bandwidth"),
    ("tag_sync_lat", Ucp, PingPong, 1, "latency", "tag sync match latency"),
    ("tag_sync_bw", Ucp, Stream, 32, "overhead", "tag sync match bandwidth"),
    ("ucp_put_lat", Ucp, PingPong, 1, "latency", "put latency"),
    ("ucp_put_bw", Ucp, Stream, 32, "overhead", "put bandwidth"),
    ("ucp_get", Ucp, Stream, 1, "latency", "get latency / bandwidth / message rate"),
    ("ucp_add", Ucp, Stream, 1, "overhead", "atomic add bandwidth / message rate"),
    ("ucp_fadd", Ucp, Stream, 1, "latency", "atomic fetch-and-add latency / bandwidth / rate"),
    ("ucp_swap", Ucp, Stream, 1, "latency", "atomic swap latency / bandwidth / rate"),
    ("ucp_cswap", Ucp, Stream, 1, "latency", "atomic compare-and-swap latency / bandwidth / rate"),
    ("stream_bw", Ucp, Stream, 1, "overhead", "stream bandwidth"),
    ("stream_lat", Ucp, PingPong, 1, "latency", "stream latency"),
    ("ucp_am_lat", Ucp, PingPong, 1, "latency", "am latency"),
    ("ucp_am_bw", Ucp, Stream, 32, "overhead", "am bandwidth / message rate"),
];

use Flow::*;
use Layer::*;

#[test]
fn tests_and_defaults_equal_those_of_ucx_perftest() {
    for (name, layer, flow, window, times, about) in KNOWN {
        let test = Test::parse(name).unwrap();
        let ours = (test.name(), test.layer(), test.flow(), test.window(), test.times(), test.about());
        assert_eq!(ours, (name, layer, flow, window, times, about));
    }
    let more: Vec<&str> =
        Test::ALL.iter().map(|t| t.name()).filter(|n| KNOWN.iter().all(|k| k.0 != *n)).collect();
    assert_eq!(more, ["am_mr"]);
    assert_eq!(Test::AmMr.window(), Test::AmBw.window());
}
