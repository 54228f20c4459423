//! Every program that prints ends quietly when its output is closed, as by `head`.

use std::process::{Command, Stdio};

fn ends_quietly(command: &mut Command) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), said.as_ref()), (Some(tools_common::out::BROKEN_PIPE), ""), "{command:?}");
}

#[test]
fn measuring_programs_end_quietly_on_closed_pipe() {
    ends_quietly(Command::new(env!("CARGO_BIN_EXE_count")).args(["engine", "-n", "1"]));
    let scale = || Command::new(env!("CARGO_BIN_EXE_scale"));
    ends_quietly(scale().args(["self", "1", "64"]).env("UCX_TLS", "self"));
    ends_quietly(scale().args(["shared", "3", "1000", "0", "0"]));
}

#[test]
fn versus_ends_quietly_on_closed_pipe() {
    // Prints a heading with the version that `ucx_info` beside it tells, before it measures a case.
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ucx_perftest");
    let mut versus = Command::new(env!("CARGO_BIN_EXE_versus"));
    ends_quietly(versus.args(["--quick", "--only", "tag_lat", "--ucx", program]));
}
