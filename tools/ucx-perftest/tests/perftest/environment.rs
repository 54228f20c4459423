//! Environments that were written for UCX: the tool runs in each, and says no more than it has to.

use crate::common::{Ran, program, run_with};
use std::process::Stdio;

const SHORT: &str = "--local -q -f -t tag_lat -n 100";

#[test]
fn ordinary_environments_of_ucx_are_silent() {
    for (name, value) in [
        ("UCX_PROTO_INFO", "y"),
        ("UCX_PROTO_ENABLE", "y"),
        ("UCX_MEMTYPE_CACHE", "n"),
        ("UCX_IB_GID_INDEX", "3"),
        ("UCX_RC_MLX5_TX_QUEUE_LEN", "256"),
        ("UCX_RC_SOMETHING_OF_TOMORROW", "1"),
        ("UCX_KEEPALIVE_INTERVAL", "inf"),
        ("UCX_RNDV_SCHEME", "get_zcopy"),
        ("UCX_MAX_RNDV_RAILS", "8"),
        ("UCX_TLS", "rc,ud,sm"),
        ("UCX_TLS", "^ib,tcp"),
        ("UCX_NET_DEVICES", "mlx5_0:1,softefa0:1"),
        ("UCX_ERROR_SIGNALS", "SIGILL,SIGSEGV"),
        ("UCX_WARN_UNUSED_ENV_VARS", "n"),
        ("UCX_LOG_LEVEL", "error"),
    ] {
        let ran = run_with(SHORT, &[(name, value)]);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{name}={value}: {}", ran.out);
        assert_eq!(ran.out.lines().count(), 1, "{name}={value}: {}", ran.out);
    }
}

#[test]
fn devices_of_another_machine_leave_shared_memory() {
    let ran = run_with(&format!("{SHORT} --json"), &[("UCX_NET_DEVICES", "mlx5_0:1")]);
    assert_eq!((ran.status, ran.err.lines().count()), (0, 1), "{}", ran.err);
    assert!(ran.err.contains("WARN") && ran.err.contains("has no device 'mlx5_0:1' (there are: softefa0"));
    assert!(ran.out.contains("\"transport\":\"posix\""), "{}", ran.out);
    // Nothing is left, or the user has named the device for this run.
    let ran = run_with("--local -t tag_lat -x efa", &[("UCX_NET_DEVICES", "mlx5_0:1")]);
    assert_eq!(ran.status, 255);
    assert!(ran.err.contains("ucx-perftest: UCX_TLS=efa and UCX_NET_DEVICES=mlx5_0:1 leave no transport"));
    let ran = run_with("--local -t tag_lat -d mlx5_0:1", &[]);
    assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{}", ran.err);
    assert!(ran.err.contains("has no device 'mlx5_0:1'"), "{}", ran.err);
}

#[test]
fn list_without_any_transport_of_ours_is_refused() {
    for list in ["rc", "rc,ud", "posxi"] {
        let ran = run_with("--local -t tag_lat", &[("UCX_TLS", list)]);
        let start = format!("ucx-perftest: unknown transport '{list}' (there are: self, posix, cma, efa");
        assert!(ran.err.starts_with(&start), "{}", ran.err);
        assert_eq!((ran.status, ran.err.lines().count()), (255, 1));
    }
    let ran = run_with(SHORT, &[("UCX_TLS", "posxi,posix")]);
    assert_eq!((ran.status, ran.err.lines().count()), (0, 1), "{}", ran.err);
    assert!(
        ran.err.contains("UCX_TLS=posxi,posix: transport 'posxi' is unknown (there are: "),
        "{}",
        ran.err
    );
}

#[test]
fn unknown_name_is_one_warning_of_all_processes() {
    for (name, near) in [
        ("UCX_POSIX_FIFO_SIZ", "UCX_POSIX_FIFO_SIZE"),
        ("SOFTEFA_REORDR", "SOFTEFA_REORDER"),
        ("UCX_MEMTYPE_CACH", "UCX_MEMTYPE_CACHE"),
    ] {
        for line in [SHORT, "--local --procs 4 -q -f -t tag_lat -n 100"] {
            let ran = run_with(line, &[(name, "64")]);
            let want = format!("unknown configuration key {name} (environment): did you mean {near}?");
            assert!(ran.err.contains(&want) && ran.err.contains("WARN"), "{}", ran.err);
            assert_eq!((ran.status, ran.err.lines().count()), (0, 1), "{}", ran.err);
        }
        let ran = run_with(SHORT, &[(name, "64"), ("UCX_WARN_UNUSED_ENV_VARS", "n")]);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{name}");
    }
}

#[test]
fn malformed_value_of_a_key_of_ours_is_refused() {
    for (name, value, want) in [
        ("UCX_KEEPALIVE_INTERVAL", "soon", "expected auto or a time such as"),
        ("UCX_WARN_UNUSED_ENV_VARS", "perhaps", "expected y or n"),
        ("UCX_RCACHE_ENABLE", "often", "expected try or y or n"),
        ("UCX_LOG_LEVEL", "loud", "expected one of fatal, error"),
    ] {
        let ran = run_with(SHORT, &[(name, value)]);
        let start = format!("ucx-perftest: {name}={value} (environment): {want}");
        assert!(ran.err.starts_with(&start), "{}", ran.err);
        assert_eq!((ran.status, ran.err.lines().count()), (129, 1));
    }
}

#[test]
fn log_goes_to_a_file_for_each_process() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("log-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = format!("{}/ucx.%h.%p.log", dir.display());
    let ran = run_with(SHORT, &[("UCX_LOG_FILE", &path), ("UCX_LOG_LEVEL", "debug"), ("UCX_IB_SL", "1")]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let logs: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(logs.len(), 2, "server and client: {logs:?}");
    for log in &logs {
        let text = std::fs::read_to_string(log).unwrap();
        let unused =
            text.lines().filter(|l| l.contains("UCX_IB_SL: a setting of UCX that has no effect here"));
        assert_eq!(unused.count(), 1, "{text}");
        assert!(!log.to_string_lossy().contains('%') && !text.contains('\x1b'), "{log:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
    let ran = run_with(SHORT, &[("UCX_LOG_FILE", "/no/such/directory/%p")]);
    assert_eq!(ran.status, 0);
    assert!(ran.err.contains("UCX_LOG_FILE=/no/such/directory/%p: cannot open /no/such/"), "{}", ran.err);
}

#[test]
fn value_that_is_not_text_counts_only_where_it_is_read() {
    use std::os::unix::ffi::OsStrExt;
    let run = |name: &str| {
        let mut command = program();
        command.args(SHORT.split_whitespace()).env(name, std::ffi::OsStr::from_bytes(b"a\xff"));
        Ran::from(command.stdin(Stdio::null()).output().unwrap())
    };
    let ran = run("UCX_GDB_COMMAND");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let ran = run("UCX_TLS");
    assert_eq!(ran.err, "ucx-perftest: UCX_TLS (environment): the value is not valid UTF-8\n");
    assert_eq!(ran.status, 129);
}

#[test]
fn command_lines_of_ucx_run_as_they_are() {
    for (line, part) in [
        ("-l -x srd -d softefa0:1 -t am_lat -n 100 --json", "\"transport\":\"efa\",\"device\":\"softefa0\""),
        ("-l -x efa -d softefa0 -t get -s 4096 -n 100 --json", "\"test\":\"get\""),
        ("-l -x srd -d softefa0:1 -t tag_lat -n 100 --json", "\"transport\":\"efa\""),
        ("-l -t tag_bw -s 1048576 -n 100 --json", "\"size\":1048576"),
        ("-l -t tag_bw -e -n 100 -v -q", "iterations,"),
        ("-l -t ucp_am_bw -s 8 -n 100 -m host -I -A thread -v -q", "iterations,"),
        ("-l -t ucp_get -n 100 -M multi -T 2 -f", "Test"),
    ] {
        let ran = run_with(line, &[]);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{line}");
        assert!(ran.out.contains(part), "{line}: {}", ran.out);
    }
    let ran = run_with("-t tag_bw -l -n 100 -q -f", &[("UCX_TLS", "srd")]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let ran = run_with("-l -x srd -d mlx5_0:1 -t am_lat", &[]);
    assert_eq!(ran.err, "ucx-perftest: transport 'efa' has no device 'mlx5_0:1' (there are: softefa0)\n");
}
