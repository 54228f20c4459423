//! Batch files as UCX ships them: all kinds of options, several files combined, tests that cannot be run here
//! among others.

use crate::common::{Server, program, run};
use std::path::PathBuf;

struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("perftest-batches-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const PROTOCOLS: &str = "\
#
# messages
#
iov_lat        -t tag_lat -D iov,contig
threads_lat    -t tag_lat -D iov,iov    -T 2
bw_registered  -t tag_bw  -D contig,contig -z -R 99.0 -q
stream         -t stream_bw  -r recv_data
#
# memory that is not here
#
cuda_lat       -t tag_lat -D contig,contig -m cuda,host
cuda_sleep     -I -E sleep  -t tag_lat -m cuda -T 2 
sleeps         -I -E sleep  -t tag_lat
";

const DONE: [&str; 5] = ["iov_lat", "threads_lat", "bw_registered", "stream", "sleeps"];

/// Errors of the others.
const REFUSED: &str = "ucx-perftest: cuda_lat: -m cuda: this program was built without CUDA (there is: host)\n\
                       ucx-perftest: cuda_sleep: -m cuda: this program was built without CUDA (there is: host)\n\
                       ucx-perftest: 2 of 7 tests could not be done\n";

fn labels(out: &str) -> Vec<String> {
    let label = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {out}"));
        value["label"].as_str().unwrap().to_owned()
    };
    out.lines().map(label).collect()
}

#[test]
fn unsupported_tests_are_reported_and_others_run() {
    let file = File::new("protocols", PROTOCOLS);
    for how in ["--local -x posix", "-l -x posix,self"] {
        let ran = run(&format!("{how} --json -n 100 -V -b {}", file.path()));
        assert_eq!((ran.status, ran.err.as_str()), (255, REFUSED), "{how}");
        assert_eq!(labels(&ran.out), DONE, "{how}");
        let seats: Vec<bool> = ran.out.lines().map(|line| line.contains("\"seats\"")).collect();
        assert_eq!(seats, [false, true, false, false, false], "{}", ran.out);
    }
}

#[test]
fn server_accepts_batch_with_unsupported_tests() {
    let file = File::new("protocols-server", PROTOCOLS);
    let server = Server::start("");
    let mut client = program();
    client.args(["127.0.0.1", "-p", &server.port.to_string(), "--json", "-x", "posix", "-n", "100"]);
    let client = client.args(["-b", file.path()]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&client.stderr), REFUSED);
    assert_eq!(client.status.code(), Some(255));
    assert_eq!(labels(&String::from_utf8_lossy(&client.stdout)), DONE);
    let ran = server.finish();
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    // One test has -q.
    assert_eq!(ran.out.matches("| Test: ").count(), 4, "{}", ran.out);
}

#[test]
fn unsupported_size_fails_its_test_only() {
    let tests =
        File::new("tests", "short -t am_lat -D short\nzcopy -t put_bw -D zcopy\nget -t get -D short\n");
    let sizes =
        File::new("sizes", "      8 -s       8 -n 200\n1048576 -s 1048576 -n 20\n     64 -s 64 -n 200\n");
    let want =
        ["short/8", "short/64", "zcopy/8", "zcopy/1048576", "zcopy/64", "get/8", "get/1048576", "get/64"];
    for how in ["--local", "-l", "--local --procs 4"] {
        let line = format!("{how} --json -x posix -b {} -b {}", tests.path(), sizes.path());
        let ran = run(&line);
        assert_eq!(ran.status, 255, "{line}: {}", ran.err);
        let err: Vec<&str> = ran.err.lines().collect();
        assert_eq!(err.len(), 2, "{line}: {}", ran.err);
        let why = "ucx-perftest: short/1048576: am_lat: posix/memory cannot do short of 1048576 bytes (it can: short up to ";
        assert!(err[0].starts_with(why), "{line}: {}", ran.err);
        assert_eq!(err[1], "ucx-perftest: 1 of 9 tests could not be done", "{line}");
        assert_eq!(labels(&ran.out), want, "{line}");
    }
}

#[test]
fn test_failing_while_running_leaves_others() {
    // More memory than there is for all slots: found when the loop begins.
    let tests = File::new("fails", "a -t tag_lat -s 8\nb -t tag_bw -V -s 4g -O 65536\nc -t tag_lat -s 16\n");
    let ran = run(&format!("--local --json -x posix -n 50 -b {}", tests.path()));
    assert_eq!(ran.status, 255, "{}", ran.err);
    assert!(ran.err.starts_with("ucx-perftest: b: "), "{}", ran.err);
    assert!(ran.err.ends_with("1 of 3 tests could not be done\n"), "{}", ran.err);
    assert_eq!(labels(&ran.out), ["a", "c"]);
}

#[test]
fn batch_longer_than_a_line_is_sent_in_chunks() {
    let name = "n".repeat(4000);
    let text: String = (0..300).map(|n| format!("{name}{n} -t tag_lat -n 1 -w 0\n")).collect();
    let file = File::new("long", &text);
    for how in ["--local", "--local --procs 2"] {
        let ran = run(&format!("{how} --json -x posix -b {}", file.path()));
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{how}");
        assert_eq!(ran.out.lines().count(), 300, "{how}");
    }
}

#[test]
fn batch_with_too_many_tests_is_refused() {
    let text: String = (0..257).map(|n| format!("{n} -t tag_lat\n")).collect();
    let file = File::new("endless", &text);
    let ran = run(&format!("-l -x self -b {0} -b {0}", file.path()));
    assert_eq!(
        (ran.status, ran.err.as_str()),
        (129, "ucx-perftest: -b: 66049 tests, of at most 65536 in a run\n")
    );
}

#[test]
fn unknown_value_in_batch_is_refused_before_any_test() {
    let tests = File::new("typo", "a -t tag_lat\nb -t tag_latt\n");
    let ran = run(&format!("--local --json -x posix -n 50 -b {}", tests.path()));
    assert_eq!((ran.status, ran.out.as_str()), (129, ""));
    assert!(ran.err.contains("line 2: -t: test 'tag_latt' is unknown"), "{}", ran.err);
}
