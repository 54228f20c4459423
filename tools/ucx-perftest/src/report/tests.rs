use super::*;
use crate::cli::{Sizes, TestArgs};

fn spec(size: usize) -> Spec {
    let args = TestArgs {
        test: Some(Test::AmLat),
        tl: Some("posix".into()),
        size: Some(Sizes::Pieces(vec![size])),
        ..TestArgs::default()
    };
    args.specs(None).unwrap().remove(0)
}

fn report(args: &[&str]) -> Report {
    Report::new(&Cli::read(["ucx-perftest"].iter().chain(args)).unwrap())
}

/// Figures whose printed forms are known from `ucx_perftest`'s own output.
fn reading() -> Reading {
    Reading { iters: 3_000_000, rank: 0.5e-6, p50: 0.5e-6, p99_9: 2e-6, recent: 0.384e-6, overall: 0.403e-6 }
}

#[test]
fn columns_stand_where_ucx_perftest_has_them() {
    let report = report(&[]);
    assert_eq!(
        report.columns("Final:", &spec(8), reading()),
        "Final:               3000000      0.500     0.384     0.403       19.87      18.93     2604167     2481390"
    );
    assert_eq!(
        report.columns("[thread 0]", &spec(8), reading()),
        "[thread 0]           3000000      0.500     0.384     0.403       19.87      18.93     2604167     2481390"
    );
}

#[test]
fn thousands_are_separated_on_demand() {
    assert_eq!(
        report(&["-N", "-f"]).columns("", &spec(8), reading()),
        "                   3,000,000      0.500     0.384     0.403       19.87      18.93   2,604,167   2,481,390"
    );
}

#[test]
fn heads_are_ucx_perftests() {
    let text = head(Test::AmLat, 50.0, false).join("\n");
    assert_eq!(
        text,
        "\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|              |              |        latency (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+"
    );
    let text = head(Test::AmBw, 99.9, true).join("\n");
    assert!(text.contains("|       overhead (usec)        |"), "{text}");
    assert!(text.contains("|     Test     | # iterations | 99.9%ile |"), "{text}");
}

#[test]
fn json_has_the_promised_fields() {
    let path = Path { transport: "posix".into(), device: "memory".into(), data_path: "short".into() };
    let done = Done::new(&spec(8), path, reading(), Vec::new());
    let text = serde_json::to_string(&object(&done)).unwrap();
    assert_eq!(
        text,
        "{\"test\":\"am_lat\",\"transport\":\"posix\",\"device\":\"memory\",\"data_path\":\"short\",\"size\":8,\
         \"iterations\":3000000,\"window\":1,\"validated\":false,\
         \"latency_us\":{\"p50\":0.5,\"avg\":0.403,\"p99_9\":2.0},\"bandwidth_mbs\":18.9315,\"msg_rate\":2481390.0}"
    );
}
