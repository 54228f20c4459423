//! Options that change who works, how sides find each other, and which percentile is reported.

use crate::common::{Server, program, run_ok};
use serde_json::Value;

fn of(line: &str) -> Value {
    let out = run_ok(line);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {out}"))
}

#[test]
fn idle_target_serves_one_sided_operations() {
    for test in [
        "put_bw -x posix",
        "put_bw -x posix -D zcopy -s 20k -V",
        "get -x posix",
        "get_bw -x cma -s 20k",
        "add_mr -x posix",
        "fadd -x posix",
        "cswap -x posix -V",
        "put_bw -x efa -D zcopy -s 20k -V",
        "get_bw -x efa -s 20k",
        "ucp_put_bw -x posix -V",
        "ucp_get -x posix -s 20k",
        "ucp_fadd -x posix -V",
    ] {
        let value = of(&format!("--local --json -n 300 -w 20 -o -t {test}"));
        assert_eq!(
            (&value["iterations"], &value["run"]["idle_passive"]),
            (&300.into(), &true.into()),
            "{test}"
        );
    }
}

#[test]
fn ipv6_connects_sides() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return ucs::testing::skipped("a connection by IPv6", "there is no IPv6 here");
    }
    for (test, lines) in [("-t am_lat -x posix", 2), ("-t tag_lat -x posix -T 2", 2)] {
        let server = Server::start("-6");
        let mut client = program();
        client.args(["::1", "-p", &server.port.to_string(), "-6", "-v", "-n", "300"]).args(test.split(' '));
        let client = client.output().unwrap();
        assert!(client.status.success(), "{test}: {}", String::from_utf8_lossy(&client.stderr));
        assert_eq!(String::from_utf8_lossy(&client.stdout).lines().count(), lines, "{test}");
        let ran = server.finish();
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{test}");
        assert!(ran.out.starts_with("Accepted connection from [::1]:"), "{test}: {}", ran.out);
    }
}

#[test]
fn percentile_of_r_is_reported() {
    let line = |rank: &str| format!("--local --json -t tag_lat -x posix -n 5000 -R {rank}");
    for (rank, number) in [("0", 0.0), ("50", 50.0), ("99.9", 99.9), ("100", 100.0)] {
        let value = of(&line(rank));
        let us = |value: &Value| value.as_f64().unwrap();
        assert_eq!(us(&value["percentile"]["rank"]), number);
        let (asked, times) = (us(&value["percentile"]["us"]), &value["latency_us"]);
        assert!(asked > 0.0, "{value}");
        match rank {
            "0" => assert!(asked <= us(&times["p50"]), "{value}"),
            "50" => assert_eq!(asked, us(&times["p50"]), "{value}"),
            "99.9" => assert_eq!(asked, us(&times["p99_9"]), "{value}"),
            _ => assert!(asked >= us(&times["p99_9"]), "{value}"),
        }
    }
    let csv = run_ok("--local -v -t tag_lat -x posix -n 5000 -R 99");
    assert!(csv.starts_with("iterations,99.0_percentile_lat,avg_lat,"), "{csv}");
    let text = run_ok("--local -t tag_lat -x posix -n 5000 -R 99");
    assert!(text.contains("| 99.0%ile | average |"), "{text}");
}

/// Memory that a transport has allocated is freed in some 10 ms, which is no part of what a test measures.
#[test]
fn freeing_of_buffers_is_not_measured() {
    for test in ["ucp_am_bw", "ucp_am_lat", "stream_lat", "stream_bw"] {
        let average = || {
            let value = of(&format!("--local -x posix -t {test} -n 1000 --json"));
            value["latency_us"]["avg"].as_f64().unwrap()
        };
        // A busy host makes any of them slow: one of many is not.
        assert!((0..20).any(|_| average() < 5.0), "{test}");
    }
}
