//! Programs as Debian ships them, on this library: `ucx_perftest` was built for UCX 1.13.1.
//!
//! Skipped where it is not installed (Debian: ucx-utils).

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ::ucs::testing::wait_for_listener;

use common::library_folder;

/// The library's folder, if the program is installed and would load the library.
fn installed(program: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/bin").join(program);
    if !path.exists() {
        ::ucs::testing::not_installed("programs built for UCX", format!("no {} (ucx-utils)", path.display()));
        return None;
    }
    if Command::new("gcc").arg("--version").output().is_err() {
        ::ucs::testing::not_installed(
            "programs built for UCX",
            "no gcc, which makes the companions of the library",
        );
        return None;
    }
    let folder = library_folder();
    let ldd = Command::new("ldd").arg(&path).env("LD_LIBRARY_PATH", &folder).output().expect("ldd runs");
    let loaded = String::from_utf8_lossy(&ldd.stdout).into_owned();
    assert!(loaded.contains(&format!("{}/libucp.so.0", folder.display())), "{loaded}");
    Some(folder)
}

/// A port that nobody uses now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    listener.local_addr().expect("it is bound").port()
}

/// `ucx_perftest` with these arguments; it ends within a minute.
fn perftest(folder: &Path, tls: &str, args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["60", "/usr/bin/ucx_perftest"])
        .args(args)
        .env("LD_LIBRARY_PATH", folder)
        .env("UCX_TLS", tls);
    command
}

fn assert_ended_well(what: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{what}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs a server and a client with the same arguments. Both must end well, and the client must report.
fn run_pair(folder: &Path, tls: &str, args: &str) {
    run_pair_on(folder, (tls, "all"), args);
}

/// As above, with the values of `UCX_TLS` and `UCX_NET_DEVICES`.
fn run_pair_on(folder: &Path, (tls, devices): (&str, &str), args: &str) {
    let port = free_port().to_string();
    let mut args: Vec<_> = args.split_whitespace().collect();
    args.extend(["-p", &port]);
    let mut server = perftest(folder, tls, &args);
    let server = server
        .env("UCX_NET_DEVICES", devices)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let server = server.spawn().expect("the server starts");
    wait_for_listener(port.parse().expect("a port"));
    args.insert(0, "127.0.0.1");
    let client =
        perftest(folder, tls, &args).env("UCX_NET_DEVICES", devices).output().expect("the client runs");
    let server = server.wait_with_output().expect("the server ends");
    assert_ended_well(&format!("client of {args:?} on {tls}"), &client);
    assert_ended_well(&format!("server of {args:?} on {tls}"), &server);
    assert!(String::from_utf8_lossy(&client.stdout).contains("Final:"), "{args:?} on {tls} reports nothing");
}

/// Every ucp test that `ucx_perftest -h` lists.
const UCP_TESTS: [&str; 15] = [
    "tag_lat",
    "tag_bw",
    "tag_sync_lat",
    "tag_sync_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
    "ucp_add",
    "ucp_fadd",
    "ucp_swap",
    "ucp_cswap",
    "stream_bw",
    "stream_lat",
    "ucp_am_lat",
    "ucp_am_bw",
];

fn every_ucp_test(tls: &str) {
    let Some(folder) = installed("ucx_perftest") else { return };
    for test in UCP_TESTS {
        run_pair(&folder, tls, &format!("-t {test} -n 30 -w 3"));
    }
}

#[test]
fn every_ucp_test_on_posix() {
    every_ucp_test("posix");
}

#[test]
fn every_ucp_test_on_posix_and_cma() {
    every_ucp_test("posix,cma");
}

#[test]
fn every_ucp_test_on_efa() {
    every_ucp_test("efa");
}

/// Sizes, layouts, threads, sleep and what else the options change.
#[test]
fn options_of_ucp_tests() {
    let Some(folder) = installed("ucx_perftest") else { return };
    for (args, tls) in [
        ("-t tag_lat -I -E sleep", "posix"),
        ("-t tag_bw -E sleep -s 1048576", "efa"),
        ("-t tag_lat -C -U", "posix"),
        ("-t tag_bw -e -s 65536", "efa"),
        ("-t tag_bw -D iov,iov -s 8,16,100", "posix"),
        ("-t tag_bw -D iov,contig -s 1000,20000,60000 -i 60000", "efa"),
        ("-t tag_bw -T 2 -M multi -s 1024", "posix"),
        ("-t ucp_put_bw -T 2 -M serialized -s 4096", "efa"),
        ("-t tag_bw -z -s 262144", "posix,cma"),
        ("-t stream_bw -r recv_data -s 5000", "efa"),
        ("-t stream_lat -r recv_data -s 100000", "posix"),
        ("-t ucp_am_lat -H 64 -s 100", "efa"),
        ("-t ucp_am_bw -D iov,iov -s 100,200000", "posix,cma"),
        ("-t ucp_get -s 1048576", "posix,cma"),
        ("-t ucp_fadd -s 4", "posix"),
        ("-t ucp_cswap -s 8 -O 4", "efa"),
        ("-t ucp_put_lat -E sleep", "posix"),
        ("-t tag_lat -B -s 100000", "posix"),
    ] {
        run_pair(&folder, tls, &format!("{args} -n 20 -w 2"));
    }
}

/// The device of libibverbs, as it is reached by the library that `tools/install --verbs` builds. These tests
/// run under `softefa run`.
#[cfg(feature = "verbs")]
mod verbs {
    use super::*;

    #[test]
    fn every_ucp_test_through_verbs() {
        let Some(folder) = installed("ucx_perftest") else { return };
        for test in UCP_TESTS {
            run_pair_on(&folder, ("efa", "softefa0:1"), &format!("-t {test} -n 30 -w 3"));
        }
    }

    #[test]
    fn every_uct_test_through_verbs() {
        uct_tests("efa", "softefa0:1", &UCT_TESTS);
    }

    #[test]
    fn ucx_info_lists_the_device() {
        let Some(folder) = installed("ucx_info") else { return };
        let output = Command::new("/usr/bin/ucx_info").arg("-d").env("LD_LIBRARY_PATH", &folder).output();
        let output = output.expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("Device: softefa0:1"), "{text}");
    }
}

/// Every uct test that `ucx_perftest -h` lists, in each layout that it has.
const UCT_TESTS: [&str; 21] = [
    "put_bw -D short",
    "put_bw -D bcopy",
    "put_bw -D zcopy",
    "put_lat -D short",
    "put_lat -D bcopy",
    "put_lat -D zcopy",
    "get -D bcopy",
    "get -D zcopy",
    // From here on also messages and atomics, which `cma` does not have.
    "am_lat -D short",
    "am_lat -D shortiov",
    "am_lat -D bcopy",
    "am_lat -D zcopy",
    "am_bw -D short",
    "am_bw -D shortiov",
    "am_bw -D bcopy",
    "am_bw -D zcopy",
    "add_lat",
    "add_mr",
    "fadd",
    "swap",
    "cswap",
];

fn uct_tests(tl: &str, dev: &str, tests: &[&str]) {
    let Some(folder) = installed("ucx_perftest") else { return };
    for test in tests {
        run_pair(&folder, "all", &format!("-x {tl} -d {dev} -t {test} -n 20 -w 2"));
    }
}

#[test]
fn every_uct_test_on_posix() {
    uct_tests("posix", "memory", &UCT_TESTS);
}

#[test]
fn every_uct_test_on_efa() {
    uct_tests("efa", "softefa0", &UCT_TESTS);
}

#[test]
fn puts_and_gets_of_uct_on_cma() {
    uct_tests("cma", "memory", &UCT_TESTS[..8]);
}

/// Queues that fill, sizes, lists, flow control.
#[test]
fn options_of_uct_tests() {
    let Some(folder) = installed("ucx_perftest") else { return };
    for args in [
        "-x posix -d memory -t am_bw -D bcopy -s 8000 -n 10000",
        "-x posix -d memory -t am_bw -D zcopy -s 16,100,2000 -n 500",
        "-x posix -d memory -t add_mr -s 4 -n 500 -o",
        "-x cma -d memory -t put_bw -D zcopy -s 1000000 -n 50",
        "-x cma -d memory -t get -D zcopy -s 1000,1000,5000 -i 6000 -n 50",
        "-x efa -d softefa0 -t am_bw -D bcopy -s 4000 -n 5000",
        "-x efa -d softefa0 -t am_bw -D zcopy -s 4000 -n 2000",
        "-x efa -d softefa0 -t put_bw -D zcopy -s 1000000 -n 50",
        "-x efa -d softefa0 -t get -D bcopy -s 4096 -n 200 -O 8",
        "-x efa -d softefa0 -t fadd -s 4 -n 500 -O 16",
    ] {
        run_pair(&folder, "all", &format!("{args} -w 2"));
    }
}

/// A test that a transport cannot do ends with an error at both sides.
#[test]
fn what_a_transport_does_not_have_is_refused() {
    let Some(folder) = installed("ucx_perftest") else { return };
    for args in [
        "-x self -d memory -t get -D bcopy -s 200000",
        "-x cma -d memory -t am_lat",
        "-x cma -d memory -t fadd",
    ] {
        let args: Vec<_> = ["-l"].into_iter().chain(args.split_whitespace()).collect();
        let output = perftest(&folder, "all", &args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(255), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Programs with the headers of this crate: what two interfaces of a process exchange is compared; a peer is
/// killed, threads take turns, and garbage is passed.
#[test]
fn uct_from_c() {
    if Command::new("gcc").arg("--version").output().is_err() {
        return ::ucs::testing::not_installed("programs built for UCX", "no gcc");
    }
    let folder = library_folder();
    for name in ["uct", "uct_peer"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-Wall", "-Werror", "-Wno-unused-function", "-o"]).arg(&program).arg(source);
        gcc.arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"));
        gcc.arg(format!("-L{}", folder.display())).args(["-l:libucp.so.0", "-lpthread"]);
        assert_ended_well("gcc", &gcc.output().expect("gcc runs"));
        for (tl, dev) in [("self", "memory"), ("posix", "memory"), ("cma", "memory"), ("efa", "softefa0")] {
            let mut run = Command::new("timeout");
            run.arg("120").arg(&program).args([tl, dev]).env("LD_LIBRARY_PATH", &folder);
            assert_ended_well(&format!("{name} on {tl}"), &run.output().expect("it runs"));
        }
    }
}

/// `ucx_info` prints devices, configuration, and what a context and an endpoint are.
#[test]
fn ucx_info_prints() {
    let Some(folder) = installed("ucx_info") else { return };
    for (args, expected) in [
        (&["-d"][..], "Transport: efa"),
        (&["-d", "-t", "posix"], "Transport: posix"),
        (&["-c"], "UCX_TLS="),
        (&["-s"], "# CPU vendor: "),
        (&["-p", "-u", "t"], "# UCP context"),
        (&["-w", "-u", "ta"], "# UCP worker"),
        (&["-e", "-u", "t"], "# UCP endpoint"),
        (&["-m", "20m", "-u", "r"], "allocated 20971520 bytes"),
        (&["-v"], "#"),
    ] {
        let mut info = Command::new("timeout");
        info.args(["60", "/usr/bin/ucx_info"]).args(args).env("LD_LIBRARY_PATH", &folder);
        let output = info.output().expect("it runs");
        assert_ended_well(&format!("ucx_info {args:?}"), &output);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(expected), "ucx_info {args:?} does not print {expected:?}:\n{text}");
    }
}

/// Every key of the distribution's UCX is taken, with its default value: without a word, and nothing fails.
#[test]
fn every_key_of_ucx_is_taken() {
    let Some(folder) = installed("ucx_info") else { return };
    let mut theirs = Command::new("timeout");
    theirs.args(["60", "/usr/bin/ucx_info", "-cfa"]).env_remove("LD_LIBRARY_PATH");
    let theirs = theirs.output().expect("it runs");
    assert_ended_well("ucx_info -cfa", &theirs);
    let text = String::from_utf8_lossy(&theirs.stdout);
    let keys: Vec<_> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let keys: Vec<_> = keys.into_iter().filter(|(name, _)| name.starts_with("UCX_")).collect();
    assert!(keys.len() > 400, "{} keys", keys.len());
    let run = |more: Option<(&str, &str)>| {
        let mut info = Command::new("timeout");
        info.args(["60", "/usr/bin/ucx_info", "-w", "-u", "ta"]);
        info.envs(keys.iter().copied()).envs(more).env("LD_LIBRARY_PATH", &folder);
        let output = info.output().expect("it runs");
        assert_ended_well("ucx_info with every key", &output);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(run(None), "");
    assert!(run(Some(("UCX_NO_SUCH_KEY", "1"))).contains("UCX_NO_SUCH_KEY"));
}

/// UCX's example, compiled as it is installed, sends a text by each kind of active message.
#[test]
fn uct_hello_world() {
    let source = Path::new("/usr/share/doc/libucx-dev/examples/uct_hello_world.c");
    if !source.exists() || Command::new("gcc").arg("--version").output().is_err() {
        return ::ucs::testing::skipped(
            "programs built for UCX",
            format!("no gcc or no {} (libucx-dev)", source.display()),
        );
    }
    let folder = library_folder();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("uct_hello_world");
    let mut gcc = Command::new("gcc");
    gcc.arg("-o").arg(&program).arg(source).arg(format!("-L{}", folder.display()));
    let gcc = gcc.args(["-l:libucp.so.0"]).output().expect("gcc runs");
    assert_ended_well("gcc", &gcc);
    for (tl, dev) in [("posix", "memory"), ("efa", "softefa0")] {
        for kind in ["-i", "-b", "-z"] {
            let port = free_port();
            let run = |more: &[&str]| {
                let mut command = Command::new("timeout");
                command.arg("60").arg(&program).args(["-t", tl, "-d", dev, kind, "-p", &port.to_string()]);
                command.args(more).env("LD_LIBRARY_PATH", &folder);
                command
            };
            let server = run(&[]).stdout(std::process::Stdio::piped()).spawn().expect("the server starts");
            wait_for_listener(port);
            assert_ended_well(
                &format!("client {kind} on {tl}"),
                &run(&["-n", "127.0.0.1"]).output().expect("it runs"),
            );
            let server = server.wait_with_output().expect("the server ends");
            assert_ended_well(&format!("server {kind} on {tl}"), &server);
            assert!(String::from_utf8_lossy(&server.stdout).contains("UCT TEST SUCCESS"), "{kind} on {tl}");
        }
    }
}

/// A message of the program is in the library's log, unless the level hides it: program and library share
/// `ucs_global_opts`, which the linker has copied into the program.
#[test]
fn messages_of_a_program_are_in_the_log() {
    let Some(folder) = installed("ucx_perftest") else { return };
    let args = ["-l", "-t", "tag_bw", "-m", "cuda"];
    for (level, is_logged) in [("error", true), ("fatal", false)] {
        let output = perftest(&folder, "posix", &args).env("UCX_LOG_LEVEL", level).output().expect("it runs");
        assert!(!output.status.success(), "there is no memory of CUDA devices");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.contains("unsupported memory type: \"cuda\""), is_logged, "{level}: {text}");
    }
}

#[test]
fn one_process_sends_to_itself() {
    let Some(folder) = installed("ucx_perftest") else { return };
    for tls in ["self", "posix", "efa"] {
        let args = ["-l", "-t", "tag_bw", "-s", "20000", "-n", "50", "-w", "5"];
        let output = perftest(&folder, tls, &args).output().expect("it runs");
        assert_ended_well(tls, &output);
    }
    for args in
        ["-x self -d memory -t am_bw", "-x posix -d memory -t fadd", "-x efa -d softefa0 -t put_bw -D bcopy"]
    {
        let args: Vec<_> =
            ["-l", "-n", "500", "-w", "5"].into_iter().chain(args.split_whitespace()).collect();
        assert_ended_well("uct", &perftest(&folder, "all", &args).output().expect("it runs"));
    }
}

/// UCX's own examples, as Debian ships them (libucx-dev), compiled with the headers of this crate.
#[test]
fn examples_of_ucx_run() {
    let examples = Path::new("/usr/share/doc/libucx-dev/examples");
    if !examples.join("ucp_hello_world.c").exists() || Command::new("gcc").arg("--version").output().is_err()
    {
        return ::ucs::testing::skipped(
            "programs built for UCX",
            format!("no gcc, or no {} (libucx-dev)", examples.display()),
        );
    }
    let folder = library_folder();
    let compile = |name: &str| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-w", "-o"]).arg(&program).arg(examples.join(name).with_extension("c"));
        gcc.arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"));
        gcc.arg(format!("-L{}", folder.display())).arg("-l:libucp.so.0");
        assert_ended_well(name, &gcc.output().expect("gcc runs"));
        program
    };
    let programs =
        ["ucp_hello_world", "ucp_client_server", "uct_hello_world"].map(|name| (name, compile(name)));
    for (name, how, to, tls) in [
        (0, "", "-n localhost", "posix"),
        (0, "-w", "-n localhost", "efa"),
        (0, "-f", "-n localhost", "posix"),
        (0, "-f -e send", "-n localhost", "efa"),
        (1, "-c am", "-a 127.0.0.1", "posix"),
        (1, "-c stream", "-a 127.0.0.1", "efa"),
        (1, "-c tag", "-a 127.0.0.1", "posix"),
        (2, "-t posix -d memory", "-n localhost", "all"),
        (2, "-t efa -d softefa0", "-n localhost", "all"),
    ] {
        let (name, program) = &programs[name];
        let port = free_port().to_string();
        // The server of this one kills itself, and its client hears of it in its sleep.
        let is_killed = how.contains("-e");
        // The server of this one serves until it is killed.
        let is_endless = *name == "ucp_client_server";
        let start = |to: &str| {
            let is_limited = !is_endless || !to.is_empty();
            let mut command = Command::new(if is_limited { "timeout".as_ref() } else { program.as_os_str() });
            if is_limited {
                command.arg("60").arg(program);
            }
            command.args(how.split_whitespace()).args(to.split_whitespace()).args(["-p", &port]);
            command.env("LD_LIBRARY_PATH", &folder).env("UCX_TLS", tls);
            command
        };
        let mut server = start("");
        server.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut server = server.spawn().expect("the server starts");
        wait_for_listener(port.parse().expect("a port"));
        let client = start(to).output().expect("the client runs");
        if is_killed {
            // The client says so and ends with an error.
            _ = server.wait();
            let said = String::from_utf8_lossy(&client.stdout);
            assert!(said.contains("failure handler called"), "{}\n{said}", client.status);
            assert_ne!(client.status.code(), Some(124), "the client sleeps on: {said}");
            continue;
        }
        if is_endless {
            _ = server.kill();
        }
        let server = server.wait_with_output().expect("the server ends");
        assert_ended_well(&format!("client of {name} {how} on {tls}"), &client);
        if !is_endless {
            assert_ended_well(&format!("server of {name} {how} on {tls}"), &server);
        }
    }
}
