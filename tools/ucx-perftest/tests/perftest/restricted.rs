//! Systems that refuse something: processors to choose from, a loopback interface, a server that runs. Each
//! is named, and what can go on does.

use crate::common::{Ran, Server, program};
use std::process::{Command, Stdio};

/// The program, run by `wrapper` with arguments.
fn wrapped(wrapper: &[&str], line: &str) -> Command {
    let plain = program();
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(plain.get_program()).args(line.split_whitespace());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::null());
    command
}

fn run(wrapper: &[&str], line: &str) -> Ran {
    wrapped(wrapper, line).output().unwrap().into()
}

#[test]
fn without_affinity_the_sides_run_unpinned() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/c/no_affinity.c");
    let wrapper = format!("{}/no_affinity", env!("CARGO_TARGET_TMPDIR"));
    if !Command::new("cc").args(["-o", &wrapper, source]).status().is_ok_and(|status| status.success()) {
        return ucs::testing::not_installed("a process that is refused a call", "no C compiler");
    }
    for line in ["--local", "--local --procs 4", "--local -T 2", "-l -T 2"] {
        let ran = run(&[&wrapper], &format!("{line} -q -f -t tag_lat -n 100"));
        let note = "ucx-perftest: note: the sides are not pinned to cores (sched_setaffinity: EPERM";
        assert!(ran.err.starts_with(note), "{line}: {}", ran.err);
        assert_eq!((ran.status, ran.err.lines().count(), ran.out.lines().count()), (0, 1, 1), "{line}");
    }
    // Cores that the user asks for are a condition.
    for line in ["--local -c 0", "--local --procs 2 -c 0", "-l -c 0"] {
        let ran = run(&[&wrapper], &format!("{line} -q -f -t tag_lat -n 100"));
        assert!(ran.err.contains("-c: sched_setaffinity: EPERM"), "{line}: {}", ran.err);
        assert!(ran.status == 129 || ran.status == 255, "{line}: {}", ran.status);
    }
}

/// Without `pidfd_open`, as in a strict container, peers are watched by their directories in /proc.
#[test]
fn without_pidfd_open_every_transport_goes_on() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/c/refuse.c");
    let wrapper = format!("{}/refuse", env!("CARGO_TARGET_TMPDIR"));
    if !Command::new("cc").args(["-o", &wrapper, source]).status().is_ok_and(|status| status.success()) {
        return ucs::testing::not_installed("a process that is refused a call", "no C compiler");
    }
    for tl in ["posix", "efa", "posix,cma", "all"] {
        let line = format!("--local -q -f -x {tl} -t tag_lat -n 100 -s 100000");
        let ran = run(&[&wrapper, "pidfd_open"], &line);
        assert_eq!((ran.status, ran.err.as_str(), ran.out.lines().count()), (0, "", 1), "{tl}");
    }
}

#[test]
fn absence_of_a_loopback_interface_is_named() {
    const NO_NETWORK: [&str; 2] = ["unshare", "-rn"];
    if !Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|status| status.success()) {
        return ucs::testing::skipped("no loopback interface", "namespaces of networks cannot be made here");
    }
    for line in ["--local -t tag_lat", "--local --procs 2 -t tag_lat", "--local -T 2 -t tag_lat"] {
        let ran = run(&NO_NETWORK, line);
        assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{line}: {}", ran.err);
        assert!(ran.err.ends_with("is the loopback interface up?\n"), "{line}: {}", ran.err);
    }
    let ran = run(&NO_NETWORK, "-l -q -f -t tag_lat -n 100");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "one process needs no network");
}

#[test]
fn stopped_server_is_named() {
    let mut server = Server::start("");
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let client = program().args(["-t", "tag_lat", "-p", &server.port.to_string(), "localhost"]).output();
    let ran = Ran::from(client.unwrap());
    let _ = server.child.kill();
    assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{}", ran.err);
    let want = "is connected and says nothing: is ucx-perftest stopped there, or is another program there?";
    assert!(ran.err.contains(want), "{}", ran.err);
}
