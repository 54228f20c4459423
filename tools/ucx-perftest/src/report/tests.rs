use super::*;
use crate::cli::{Sizes, TestArgs};

fn spec(size: usize) -> Spec {
    let args = TestArgs {
        test: Some(Test::AmLat),
        tl: Some("posix".into()),
        size: Some(Sizes::Pieces(vec![size])),
        ..TestArgs::default()
    };
    args.specs(&[]).unwrap().remove(0)
}

fn report(args: &[&str]) -> Report {
    Report::new(&Cli::read(["ucx-perftest"].iter().chain(args)).unwrap())
}

/// Figures as `ucx_perftest` prints them.
fn reading() -> Reading {
    Reading { iters: 3_000_000, rank: 0.5e-6, p50: 0.5e-6, p99_9: 2e-6, recent: 0.384e-6, overall: 0.403e-6 }
}

#[test]
fn columns_equal_those_of_ucx_perftest() {
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
fn column_titles_equal_those_of_ucx_perftest() {
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
fn banners_equal_those_of_ucx_perftest() {
    let of = |line: &str| {
        let cli = Cli::read(format!("ucx-perftest {line}").split(' ')).unwrap();
        banner(&cli.test.specs(&[]).unwrap()[0]).join("\n")
    };
    assert_eq!(
        of("-t ucp_am_bw -n 1000 -H 16"),
        "\
+----------------------------------------------------------------------------------------------------------+
| API:          protocol layer                                                                             |
| Test:         am bandwidth / message rate                                                                |
| Data layout:  (automatic)                                                                                |
| Send memory:  host                                                                                       |
| Recv memory:  host                                                                                       |
| Message size: 8                                                                                          |
| Window size:  32                                                                                         |
| AM header size: 16                                                                                       |"
    );
    assert_eq!(
        of("-t am_lat -x posix -d memory -D shortiov -n 1000"),
        "\
+----------------------------------------------------------------------------------------------------------+
| API:          transport layer                                                                            |
| Test:         active message latency                                                                     |
| Data layout:  short iov                                                                                  |
| Send memory:  host                                                                                       |
| Recv memory:  host                                                                                       |
| Message size: 8                                                                                          |
| Window size:  1                                                                                          |"
    );
    let text = of("-t tag_bw -D iov,contig -s 8,8 -O 7 -V");
    let ours = text.lines().skip(3).filter(|l| !l.contains("memory:")).map(str::trim_end).collect::<Vec<_>>();
    assert!(
        ours[0].starts_with("| Data layout:  (automatic) ") && ours[2].starts_with("| Window size:  7 "),
        "{text}"
    );
    assert!(text.lines().last().unwrap().starts_with("| Validation:   every byte "), "{text}");
    assert!(text.lines().all(|l| l.len() == BOX.len()), "{text}");
    // Asked for, and shown in the banner.
    for (line, want) in [
        ("-t tag_bw -M multi", Some("multi")),
        ("-t am_bw -x posix -M serialized", Some("serialized")),
        ("-t am_bw -x posix -M single", None),
    ] {
        let text = of(line);
        let row = text.lines().find_map(|l| l.strip_prefix("| Thread mode:  "));
        assert_eq!(row.map(|row| row.trim_end_matches([' ', '|'])), want, "{text}");
        assert!(text.lines().all(|l| l.len() == BOX.len()), "{text}");
    }
}

#[test]
fn extra_column_follows_two_blanks() {
    let path =
        UsedTransport { transport: "posix".into(), device: "memory".into(), data_path: "eager".into() };
    assert_eq!(report(&["-X"]).transport_suffix(&path), "  posix/memory eager");
    assert_eq!(report(&[]).transport_suffix(&path), "");
}

#[test]
fn groups_have_four_csv_cells() {
    let member_result = |iters| MemberResult {
        iters,
        seconds: 1.0,
        ended: 2.0,
        host: 1,
        p50: 0.5e-6,
        p99_9: 1e-6,
        rank: 0.5e-6,
        bins: Vec::new(),
    };
    let path =
        UsedTransport { transport: "posix".into(), device: "memory".into(), data_path: "short".into() };
    let mut done = TestResult::new(&spec(8), path, reading(), Vec::new());
    assert_eq!(csv_cells(&done).join(","), "3000000,0.500,0.384,0.403,19.87,18.93,2604167,2481390");
    done.group = Some(GroupResult::new(
        Pattern::Pairs,
        vec![member_result(0), member_result(0), member_result(500), member_result(500)],
    ));
    assert_eq!(csv_cells(&done).join(","), "1000,2000.000,0.01,1000");
}

#[test]
fn json_has_the_promised_fields() {
    let path =
        UsedTransport { transport: "posix".into(), device: "memory".into(), data_path: "short".into() };
    let mut done = TestResult::new(&spec(8), path, reading(), Vec::new());
    let member = |cores: &str| MemberInfo {
        cores: cores.into(),
        tls: "posix".into(),
        devices: "all".into(),
        yields: false,
    };
    done.members = vec![member("1"), member("0")];
    let text = serde_json::to_string(&json::object(&done)).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        text,
        format!(
            "{{\"test\":\"am_lat\",\"transport\":\"posix\",\"device\":\"memory\",\"data_path\":\"short\",\"size\":8,\
             \"iterations\":3000000,\"window\":1,\"validated\":false,\
             \"latency_us\":{{\"p50\":0.5,\"avg\":0.403,\"p99_9\":2.0}},\"bandwidth_mbs\":18.9315,\"msg_rate\":2481390.0,\
             \"version\":\"{version}\",\"percentile\":{{\"rank\":50.0,\"us\":0.5}},\
             \"run\":{{\"warmup\":10000,\"pieces\":[8],\"stride\":0,\"header\":8,\"credits\":127,\"processes\":2,\"threads\":1,\
             \"thread_mode\":\"single\",\"cores\":[\"1\",\"0\"],\"yields\":false,\"tls\":\"posix\",\"devices\":\"all\",\"wait\":\"poll\",\
             \"receive\":\"recv\",\"wildcard\":false,\"unexpected\":false,\"peer_errors\":false,\"idle_passive\":false,\
             \"lazy_pages\":false,\"memory\":\"allocated\",\"target\":\"allocated\",\"copies\":false}}}}"
        )
    );
}
