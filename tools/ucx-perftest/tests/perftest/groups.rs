//! More than two sides: processes, threads, and traffic patterns. Every byte is checked, and so are the sums.

use crate::common::{Server, children_of, is_running, program, run_ok, run_with, soon};
use serde_json::Value;
use std::io::Read;
use std::process::Stdio;

fn json(line: &str) -> Value {
    let out = run_ok(line);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{line}: {e}: {out}"))
}

/// Checks that the figures of a group agree with one another.
fn adds_up(line: &str, value: &Value, members: usize, senders: usize) {
    assert_eq!(value["seats"], members, "{line}: {value}");
    let each = value["each"].as_array().unwrap();
    assert_eq!(each.len(), senders, "{line}: {value}");
    let sum: u64 = each.iter().map(|e| e["iterations"].as_u64().unwrap()).sum();
    assert_eq!(value["iterations"], sum, "{line}: {value}");
    assert_eq!(value["validated"], true, "{line}");
    let alone: f64 = each.iter().map(|e| e["msg_rate"].as_f64().unwrap()).sum();
    let rate = value["msg_rate"].as_f64().unwrap();
    // Rounded figures: all together are not faster than the sum of each.
    assert!(rate > 0.0 && rate <= alone * 1.01 + 1.0, "{line}: {value}");
}

#[test]
fn pairs_of_processes_and_of_threads() {
    for test in [
        "am_lat -x posix",
        "put_bw -x posix -D zcopy -s 9k",
        "am_bw -x efa",
        "fadd -x posix",
        "tag_bw -s 20k",
    ] {
        for (group, members) in [("--procs 4", 4), ("-T 3", 6), ("--procs 4 -T 2", 8)] {
            let line = format!("--local --json --validate -n 200 -w 10 {group} -t {test}");
            let value = json(&line);
            assert_eq!(value["pattern"], "pairs");
            adds_up(&line, &value, members, members / 2);
        }
    }
}

#[test]
fn loopback_runs_with_threads() {
    for test in [
        "am_lat -x self",
        "am_bw -x self -M multi -D bcopy -s 300",
        "am_mr -x posix",
        "put_bw -x self -s 3000",
        "get -x self -D zcopy -s 9k",
        "fadd -x self",
        "am_bw -x efa",
        "tag_lat -x self",
        "tag_bw -s 20k",
        "ucp_am_bw -x self",
        "stream_lat -x self",
        "ucp_put_bw",
    ] {
        let line = format!("-l --json --validate -n 200 -w 10 -T 3 -t {test}");
        adds_up(&line, &json(&line), 3, 3);
    }
    let text = run_ok("-l -q -f -T 2 -c 0 -n 500 -t am_mr -x self");
    assert_eq!(text.split_whitespace().next(), Some("500"), "{text}");
}

#[test]
fn incast_and_alltoall_validate() {
    let tests = [
        "am_bw -x posix",
        "am_bw -x efa -D bcopy -s 2000 -W 3",
        "put_bw -x posix",
        "put_bw -x efa -s 9000",
        "get -x posix",
        "get_bw -x efa -s 5000",
        "add_mr -x posix",
        "fadd -x posix -s 4 -O 4",
        "tag_bw -x posix",
        "tag_bw -x efa -s 200k -n 30",
        "tag_sync_bw -x posix -s 20k -O 3",
        "ucp_put_bw -x posix",
        "ucp_put_bw -x efa -s 20k",
        "ucp_get -x posix -s 5000 -O 4",
        "ucp_get -x efa",
        "ucp_add -x posix",
        "ucp_fadd -x efa -s 4",
        "swap -x posix",
        "swap -x posix -s 2 -O 4",
        "cswap -x posix",
        "cswap -x posix -s 1",
        "stream_bw -x posix",
        "stream_bw -x efa -s 3000 -r recv_data -O 4",
        "ucp_am_bw -x posix",
        "ucp_am_bw -x efa -s 100k -n 30 -H 16 -y",
        "ucp_am_bw -x posix -s 3",
        "ucp_swap -x posix",
        "ucp_cswap -x efa -s 4",
        "fadd -x posix -s 1",
        "add_mr -x posix -s 2",
        "ucp_add -x posix -s 1",
        "tag_bw -x posix -C -E sleep",
        "ucp_am_bw -x efa -E sleep",
        "ucp_put_bw -x posix -E sleep",
    ];
    for test in tests {
        for (pattern, senders) in [("incast", 2), ("alltoall", 3)] {
            let line =
                format!("--local --procs 3 --json --validate -n 300 -w 20 --pattern {pattern} -t {test}");
            let value = json(&line);
            assert_eq!(value["pattern"], pattern);
            adds_up(&line, &value, 3, senders);
        }
    }
}

/// Killed with the test.
struct Spawned(std::process::Child);

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last put of a member is the last in memory, whatever the network does with the order.
#[test]
fn checked_puts_pass_on_a_network_that_reorders() {
    for layout in ["short", "bcopy"] {
        let line = "--local --procs 2 --pattern incast -t put_bw -x efa -V -n 500 -D";
        let ran = run_with(&format!("{line} {layout}"), &[("SOFTEFA_REORDER", "0.5")]);
        assert_eq!(ran.status, 0, "{layout}: {}", ran.err);
    }
}

fn read_until(from: &mut impl Read, wanted: &str) -> String {
    let (mut all, mut buf) = (Vec::new(), [0; 512]);
    loop {
        match from.read(&mut buf) {
            Ok(n @ 1..) => all.extend_from_slice(&buf[..n]),
            _ => return String::from_utf8_lossy(&all).into(),
        }
        let text = String::from_utf8_lossy(&all);
        if text.contains(wanted) {
            return text.into();
        }
    }
}

#[test]
fn long_test_prints_progress() {
    for test in [
        "-t am_lat -x posix",
        "-t tag_bw -x posix --procs 3 --pattern incast",
        "-t am_bw -x posix --procs 3 --pattern alltoall",
        "-t ucp_put_bw -x posix --procs 3 --pattern incast",
        "-t stream_bw -x posix --procs 3 --pattern incast",
    ] {
        let line = format!("--local -n 1000m -w 0 {test}");
        let run = program().args(line.split(' ')).stdout(Stdio::piped()).spawn().unwrap();
        let mut run = Spawned(run);
        let mut out = run.0.stdout.take().unwrap();
        let text = read_until(&mut out, "[thread 0]");
        assert!(text.contains("\n[thread 0]  "), "{test}: {text}");
    }
}

#[test]
fn progress_line_is_shown_on_a_terminal() {
    let line = format!(
        // `env` makes it end with its terminal under `nohup` too.
        "env --default-signal=HUP {} --local --json -n 1000m -w 0 --procs 3 --pattern incast -t tag_bw -x posix",
        program().get_program().display()
    );
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(run) = script.spawn() else {
        return ucs::testing::not_installed("a line on a terminal", "no script (bsdutils)");
    };
    let mut run = Spawned(run);
    let mut out = run.0.stdout.take().unwrap();
    let text = read_until(&mut out, " M/s");
    assert!(text.contains("\r\x1b[Ktag_bw of 8 bytes: ") && text.ends_with(" M/s"), "{text:?}");
}

#[test]
fn sums_are_printed_as_ucx_perftest_prints_those_of_threads() {
    let text = run_ok("--local -q -f -T 2 -n 500 -t tag_bw -x posix");
    let cells: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!((cells.len(), cells[0]), (4, "500"), "{text}");
    let text = run_ok("--local -q -v -T 2 -n 500 -t tag_bw -x posix");
    assert!(text.lines().last().unwrap().starts_with("500,"), "{text}");
    let text = run_ok("--local -T 2 -n 500 -t tag_bw -x posix --pattern alltoall -s 8..16 -v");
    assert_eq!(text.lines().count(), 3, "{text}");
    // The label and four figures, under all titles.
    assert!(text.lines().nth(1).unwrap().starts_with("8,1992,"), "{text}");
    let cells: Vec<usize> = text.lines().map(|l| l.split(',').count()).collect();
    assert_eq!(cells, [9, 5, 5], "{text}");
}

#[test]
fn histogram_counts_samples_of_all_members() {
    for group in ["--procs 4 -t tag_lat", "-T 3 -t am_lat", "--procs 3 --pattern alltoall -t tag_bw"] {
        let line = format!("--local --json --hist -n 500 -w 10 -x posix {group}");
        let value = json(&line);
        let bins = value["histogram_us"].as_array().unwrap();
        let sum: u64 = bins.iter().map(|b| b[1].as_u64().unwrap()).sum();
        assert_eq!(value["iterations"], sum, "{line}: {value}");
        let upto: Vec<f64> = bins.iter().map(|b| b[0].as_f64().unwrap()).collect();
        assert!(upto.is_sorted(), "{line}: {value}");
    }
}

#[test]
fn server_and_client_measure_with_threads() {
    let server = Server::start("");
    let port = server.port.to_string();
    let line = "--json -T 3 -t am_lat -x posix -n 300 --validate";
    let client = program().args(["127.0.0.1", "-p", &port]).args(line.split(' ')).output().unwrap();
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    let value: Value = serde_json::from_slice(&client.stdout).unwrap();
    adds_up(line, &value, 6, 3);
    let ran = server.finish();
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let tests = ran.out.lines().filter(|l| l.starts_with("| Test:         active message latency ")).count();
    assert_eq!(tests, 1, "{}", ran.out);
    assert!(ran.out.trim_end().ends_with("-+") && !ran.out.contains("# iterations"), "{}", ran.out);
}

#[test]
fn dead_process_ends_group() {
    let parent = program()
        .args("--local -q -f --procs 4 -t am_lat -x posix -n 1000m".split(' '))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut children = Vec::new();
    assert!(soon(|| {
        children = children_of(parent.id());
        children.len() == 3
    }));
    std::thread::sleep(std::time::Duration::from_millis(200));
    let victim = rustix::process::Pid::from_raw(children[1] as i32).unwrap();
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).unwrap();
    let out = parent.wait_with_output().unwrap();
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), err.lines().count()), (Some(255), 1), "{err}");
    assert!(soon(|| !children.iter().any(|c| is_running(*c))), "{children:?}");
}
