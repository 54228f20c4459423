//! Errors are one line that says what to do, with an exit status that is not 0, and leave no process behind.

use crate::common::{Server, children_of, is_running, program, run, run_with, soon};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use tools_common::boot::PROTOCOL;

/// Runs and expects exactly this line and status.
fn fails_with(line: &str, status: i32, want: &str) {
    fails_with_vars(line, &[], status, want);
}

fn fails_with_vars(line: &str, vars: &[(&str, &str)], status: i32, want: &str) {
    let ran = run_with(line, vars);
    assert_eq!(ran.err, format!("ucx-perftest: {want}\n"), "{line}");
    assert_eq!(ran.status, status, "{line}");
}

const TESTS: &str = "am_lat, put_lat, add_lat, get, get_bw, fadd, swap, cswap, am_bw, am_mr, put_bw, add_mr, tag_lat, tag_bw, \
                     tag_sync_lat, tag_sync_bw, stream_lat, stream_bw, ucp_am_lat, ucp_am_bw, ucp_put_lat, ucp_put_bw, ucp_get, ucp_add, ucp_fadd, ucp_swap, \
                     ucp_cswap";

#[test]
fn unknown_names_and_options_are_refused() {
    fails_with("--local -t am_latt", 129, &format!("-t: test 'am_latt' is unknown (there are: {TESTS})"));
    fails_with(
        "--local -t am_lat -x tcp -d lo",
        255,
        "unknown transport 'tcp' (there are: self, posix, cma, efa)",
    );
    fails_with("-l -t am_lat -x tcp", 255, "unknown transport 'tcp' (there are: self, posix, cma, efa)");
    fails_with(
        "--local -t am_lat -x posix -d eth0",
        255,
        "transport 'posix' has no device 'eth0' (there are: memory)",
    );
    fails_with(
        "localhost -t tag_lat --frob",
        129,
        "unexpected argument '--frob' found (see ucx-perftest -h)",
    );
    fails_with(
        "-l -t tag_lat -T 2:4",
        129,
        "-T: blocks of threads are for accelerators, of which this program knows none",
    );
    fails_with("-l -t tag_lat -a cuda:0", 129, "-a: this program was built without accelerators");
    fails_with("-l -t tag_lat -G 127.0.0.1", 129, "-G: there is no daemon to give operations to");
    fails_with("-l -t tag_bw --pattern incast", 129, "--pattern: with -l everybody sends to itself");
    for line in [
        "--local -t am_lat -x self",
        "--local -t am_lat -x self -T 2",
        "--local -t am_bw -x self --pattern incast",
    ] {
        fails_with(
            line,
            129,
            "transport 'self' reaches its own thread only: use -l, with -T for several threads",
        );
    }
    for option in
        ["-x", "-s", "-n", "-T", "-V", "-m", "--procs", "--pattern", "-O", "--hist", "-N", "-R", "-e"]
    {
        let value = match option {
            "-x" => "posix",
            "-m" => "host",
            "--pattern" => "incast",
            "-V" | "--hist" | "-N" | "-e" => "",
            _ => "8",
        };
        let want = format!(
            "{option} is for a test, which -t or -b names; --local alone is a short sweep of tests, for which there are: --json, -v, -c, -q, -f"
        );
        fails_with(&format!("--local {option} {value}"), 129, &want);
    }
    fails_with(
        "--local -t tag_lat --procs 3",
        129,
        "--procs 3: pairs need an even number; --pattern incast and alltoall take any",
    );
    fails_with(
        "localhost -t tag_lat --procs 4",
        129,
        "--procs needs --local, or a launcher such as mpirun or srun",
    );
    fails_with(
        "-l -t tag_lat -c 0-x",
        129,
        "-c: bad cpu list \"0-x\": expected numbers and ranges such as 0-3,5",
    );
    fails_with(
        "--plot x.png --with /no/such/file",
        129,
        "--plot: 'x.png': plots are written as SVG: name a file that ends with .svg",
    );
    fails_with(
        "--plot x.svg --with /no/such/file",
        129,
        "--with: cannot read /no/such/file: entity not found",
    );
    let ran = run("--local -t tag_lat -x posix -n 100 --json --plot /no/such/x.svg");
    // Before the measurement.
    assert_eq!((ran.status, ran.out.as_str()), (255, ""), "{}", ran.err);
    assert!(ran.err.starts_with("ucx-perftest: --plot: cannot write /no/such/x.svg: "), "{}", ran.err);
    fails_with("--local --plot x.svg", 129, "--plot draws what -t or -b measures, and what --with names");
    let ran = run("-l -t tag_lat -c 9999");
    assert!(
        ran.err.starts_with("ucx-perftest: -c: cpu 9999 cannot be used here: this process may run on "),
        "{}",
        ran.err
    );
    assert_eq!(ran.status, 129);
}

#[test]
fn unsupported_sizes_are_refused() {
    fails_with(
        "-l -t am_lat -x posix -s 8q",
        129,
        "-s: '8q' is not a size (a number of bytes, or with k, m, g such as 64k)",
    );
    fails_with(
        "--local -t put_lat -x efa -D short -s 100k",
        255,
        "put_lat: efa/softefa0 cannot do short of 102400 bytes (it can: short up to 8928, bcopy up to 8928, zcopy up \
         to 1G)",
    );
    fails_with("--local -t fadd -x posix -s 12", 129, "-s 12: fadd works on words of 1, 2, 4, 8 or 16 bytes");
    fails_with(
        "--local -t tag_lat -n -5",
        129,
        "-n: '-5' is not a count (a number, or with k, m such as 10k)",
    );
    fails_with(
        "--local -q -t put_lat -x posix --own",
        255,
        "--own: transport 'posix': peers reach only memory that it has allocated",
    );
    fails_with(
        "--local -q -t am_lat -x cma",
        255,
        "am_lat: cma/memory has no such operation (see `ucx-info -d`)",
    );
    let ran = run("--local -t am_lat -x posix -s 1m");
    assert!(
        ran.err
            .starts_with("ucx-perftest: am_lat: posix/memory cannot do 1048576 bytes (it can: short up to ")
    );
    assert_eq!(ran.status, 255);
}

#[test]
fn missing_resources_are_errors_without_abort() {
    let ran = run("-l -q --own -V -x posix -t ucp_put_bw -s 4g -O 65536");
    assert!(ran.err.starts_with("ucx-perftest: cannot get 281474976710656 bytes of memory"), "{}", ran.err);
    assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{}", ran.err);
    let ran = run("-l -q -V -x posix -t am_bw -n 1000000t");
    assert!(ran.err.contains("iterations"), "{}", ran.err);
    assert_eq!((ran.status, ran.err.lines().count()), (129, 1), "{}", ran.err);
    fails_with(
        "--local -q -t ucp_put_lat -x posix -E sleep",
        255,
        "-E sleep: puts of ucp_put_lat go by 'mapped' here, which wakes nobody at the target: poll",
    );
}

#[test]
fn missing_memory_for_messages_is_an_error() {
    for test in ["am_bw", "put_bw", "put_lat", "get -D bcopy", "get"] {
        let ran = limited("-v 2000000", &format!("-l -q -x self -s 3g -t {test}"), &[]);
        assert!(ran.err.starts_with("ucx-perftest: "), "{test}: {}", ran.err);
        assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{test}: {}", ran.err);
    }
    for test in ["tag_lat", "ucp_am_lat -y", "stream_lat -r recv_data -D iov", "ucp_put_lat", "ucp_get --own"]
    {
        let ran = limited("-v 2000000", &format!("-l -q -x self -n 10 -s 3g -t {test}"), &[]);
        assert!(ran.err.starts_with("ucx-perftest: "), "{test}: {}", ran.err);
        assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{test}: {}", ran.err);
    }
}

#[test]
fn bad_configuration_is_refused() {
    let posix = "--local -t am_lat -x posix";
    fails_with_vars(
        posix,
        &[("UCX_POSIX_FIFO_SIZE", "lots")],
        129,
        "UCX_POSIX_FIFO_SIZE=lots (environment): expected a number with optional k/m/g/t or inf, within 2..=65536, a \
         power of two",
    );
    // Names and lists: `environment.rs`.
}

#[test]
fn missing_core_of_one_member_ends_all() {
    for how in ["-l -T 2", "-l -T 3", "--local -T 2", "--local --procs 2"] {
        let ran = limited("-n 1000", &format!("{how} -q -t tag_lat -n 100 -c 9999,0"), &[]);
        assert!(ran.err.contains("cpu 9999 cannot be used here: "), "{how}: {}", ran.err);
        assert!(ran.status == 129 || ran.status == 255, "{how}: {} {}", ran.status, ran.err);
    }
    for n in 8..30 {
        let ran = limited(&format!("-n {n}"), "-l -T 3 -q -f -n 100 -t tag_lat -x posix", &[]);
        assert_ne!(ran.status, 124, "with {n} descriptors it hangs");
        assert!(ran.status == 0 || !ran.err.is_empty(), "{n}");
    }
}

/// Runs under a limit of the shell (`ulimit`).
fn limited(limit: &str, line: &str, vars: &[(&str, &str)]) -> crate::common::Ran {
    let mut shell = std::process::Command::new("timeout");
    let this = env!("CARGO_BIN_EXE_ucx-perftest");
    shell.args(["60", "sh", "-c", &format!("ulimit {limit}; exec {this} {line}")]);
    shell.envs(vars.iter().copied());
    shell.stdin(Stdio::null()).output().unwrap().into()
}

#[test]
fn missing_shared_memory_is_an_error() {
    let huge = [("UCX_POSIX_FIFO_SIZE", "65536"), ("UCX_POSIX_SEG_SIZE", "8m")];
    let line = "-l -t am_lat -x posix -n 100";
    let ran = run_with(line, &huge);
    assert!(ran.err.starts_with("ucx-perftest: transport 'posix': cannot get 5503"), "{}", ran.err);
    assert!(ran.err.contains("ENOMEM") && ran.err.contains("lower the size"), "{}", ran.err);
    assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{}", ran.err);
    // The system would kill a process that exceeds the limit.
    let ran = limited("-f 100", line, &[]);
    assert!(ran.err.contains("files may have ") && ran.err.contains("ulimit -f"), "{}", ran.err);
    assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{}", ran.err);
    let some = [("UCX_POSIX_FIFO_SIZE", "4096"), ("UCX_POSIX_SEG_SIZE", "64k")];
    let ran = limited("-v 200000", line, &some);
    assert!(ran.err.contains("cannot get ") && ran.err.contains("ENOMEM"), "{}", ran.err);
    assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{}", ran.err);
}

#[test]
fn missing_descriptors_are_an_error() {
    for line in ["am_lat -x posix", "am_lat -x efa", "tag_lat -x posix", "tag_lat -x efa"] {
        let mut went_well = false;
        for n in 4..32 {
            let ran = limited(&format!("-n {n}"), &format!("-l -n 100 -t {line}"), &[]);
            went_well = ran.status == 0;
            if !went_well {
                assert_eq!(ran.status, 255, "{line} with {n}: {}", ran.err);
                assert!(ran.err.contains("ulimit -n"), "{line} with {n}: {}", ran.err);
                assert!(!ran.err.contains(" is gone"), "{line} with {n}: {}", ran.err);
                let last = ran.err.lines().last().unwrap();
                assert!(last.starts_with("ucx-perftest: "), "{line} with {n}: {}", ran.err);
            }
        }
        assert!(went_well, "{line}");
    }
}

#[test]
fn absent_server_and_port_in_use_are_errors() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    fails_with(
        &format!("-p {port}"),
        255,
        &format!("TCP port {port} is taken: choose another with -p on both sides"),
    );
    drop(taken);
    fails_with(
        &format!("127.0.0.1 -p {port} -t tag_lat"),
        255,
        &format!(
            "no server at 127.0.0.1:{port} (Connection refused): start `ucx-perftest` there first, with the same -p"
        ),
    );
    let ran = run("no.such.host.invalid -t tag_lat");
    assert!(ran.err.starts_with("ucx-perftest: cannot find host 'no.such.host.invalid': "), "{}", ran.err);
    assert_eq!(ran.status, 255);
}

#[test]
fn client_of_another_version_or_protocol_is_refused() {
    for (words, want) in [
        (
            "{\"hello\":{\"tool\":\"ucx-perftest\",\"protocol\":99,\"version\":\"9.9\"}}\n",
            format!(
                "the other side is ucx-perftest 9.9 (protocol 99), this is ucx-perftest {} (protocol {}): run the same \
                 version on both sides",
                env!("CARGO_PKG_VERSION"),
                PROTOCOL
            ),
        ),
        (
            "GET / HTTP/1.0\r\n\r\n",
            "does not speak the protocol of ucx-perftest: is another program there?".into(),
        ),
    ] {
        let server = Server::start("");
        let mut line = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        line.write_all(words.as_bytes()).unwrap();
        // The server goes on, and tells of it.
        assert_eq!(client_of(&server), 0);
        let ran = server.finish();
        assert!(ran.err.starts_with("ucx-perftest: turned 127.0.0.1:"), "{}", ran.err);
        assert!(ran.err.ends_with(&format!("{want}\n")), "{}", ran.err);
        assert_eq!((ran.status, ran.err.lines().count()), (0, 1));
    }
}

/// Runs a short test with a server and returns the client's exit status.
fn client_of(server: &Server) -> i32 {
    run(&format!("127.0.0.1 -p {} -q -f -t am_lat -x posix -n 100", server.port)).status
}

#[test]
fn silent_clients_delay_nobody() {
    let server = Server::start("");
    let hello =
        format!("{{\"hello\":{{\"tool\":\"ucx-perftest\",\"protocol\":{PROTOCOL},\"version\":\"0\"}}}}\n");
    // Some say nothing, some send a handshake and nothing more; more than the server receives at a time.
    let silent: Vec<TcpStream> = (0..100)
        .map(|n| {
            let mut line = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            if n % 2 == 0 {
                line.write_all(hello.as_bytes()).unwrap();
            }
            line
        })
        .collect();
    let start = std::time::Instant::now();
    // Not as other tests run a client, one at a time.
    let args = format!("127.0.0.1 -p {} -q -f -t am_lat -x posix -n 100", server.port);
    assert!(program().args(args.split(' ')).output().unwrap().status.success());
    // A silent one has 10 s.
    assert!(start.elapsed() < std::time::Duration::from_millis(9500), "{:?}", start.elapsed());
    let ran = server.finish();
    assert_eq!(ran.status, 0, "{}", ran.err);
    assert!(ran.err.lines().count() <= 12, "{}", ran.err);
    drop(silent);
}

#[test]
fn a_plan_that_asks_for_too_much_is_turned_away() {
    let server = Server::start("");
    let plan = two_threads();
    assert!(plan.contains("\"window\":") && plan.contains("\"pieces\":[8]"), "{plan}");
    let hello =
        format!("{{\"hello\":{{\"tool\":\"ucx-perftest\",\"protocol\":{PROTOCOL},\"version\":\"0\"}}}}\n");
    let greedy =
        plan.replace("\"pieces\":[8]", "\"pieces\":[4294967296]").replace("\"threads\":2", "\"threads\":64");
    let chatty = plan.replace("\"names\":[]", &format!("\"names\":[\"{}\"]", "x".repeat(5000)));
    let wrong = plan.replace("\"threads\":2", "\"threads\":65");
    for (plan, why) in [(greedy, "bytes of memory"), (chatty, "have at most 4096 bytes"), (wrong, "-T: 65")] {
        let mut line = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        write!(line, "{hello}{{\"value\":[{plan}]}}\n{{\"value\":[]}}\n").unwrap();
        let answer: Vec<String> = BufReader::new(line).lines().map_while(Result::ok).collect();
        let answer = answer.last().unwrap();
        assert!(answer.starts_with("{\"abort\":") && answer.contains(why), "{answer}");
    }
    assert_eq!(client_of(&server), 0);
    assert_eq!(server.finish().status, 0);
}

#[test]
fn the_server_listens_where_it_is_told() {
    let server = Server::start("--bind 127.0.0.2");
    let refused = TcpStream::connect(("127.0.0.1", server.port));
    assert!(refused.is_err(), "it listens on another address too");
    for test in ["-t am_lat", "-t am_lat -T 2"] {
        let server = Server::start("--bind 127.0.0.2");
        let line = format!("127.0.0.2 -p {} -q -f {test} -x posix -n 100", server.port);
        assert_eq!(run(&line).status, 0, "{test}");
        assert_eq!(server.finish().status, 0, "{test}");
    }
    let mut server = server;
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let ran = run("--bind nowhere");
    assert_eq!((ran.status, ran.err.lines().count()), (129, 1), "{}", ran.err);
    let ran = run("--bind 127.0.0.1 localhost -t tag_lat");
    assert_eq!((ran.status, ran.err.lines().count()), (129, 1), "{}", ran.err);
}

/// Messages of a client until its server announces the port of the group's server. `plan` is as on the wire.
fn handshake_until_port(server: &Server, plan: &str) -> TcpStream {
    let mut line = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let hello =
        format!("{{\"hello\":{{\"tool\":\"ucx-perftest\",\"protocol\":{},\"version\":\"0\"}}}}", PROTOCOL);
    write!(line, "{hello}\n{{\"value\":[{plan}]}}\n{{\"value\":[]}}\n").unwrap();
    let mut reader = BufReader::new(line.try_clone().unwrap());
    let mut received = String::new();
    (0..2).for_each(|_| assert!(reader.read_line(&mut received).unwrap() > 0, "{received}"));
    assert!(received.lines().last().unwrap().starts_with("{\"value\":"), "{received}");
    line
}

/// A test with two threads per side, as a client sends it.
fn two_threads() -> String {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let mut client = program();
    client.args(["127.0.0.1", "-p", &port]).args("-t tag_lat -x posix -T 2".split(' '));
    let mut client = client.stderr(Stdio::null()).spawn().unwrap();
    let (mut line, _) = server.accept().unwrap();
    let hello =
        format!("{{\"hello\":{{\"tool\":\"ucx-perftest\",\"protocol\":{},\"version\":\"0\"}}}}\n", PROTOCOL);
    line.write_all(hello.as_bytes()).unwrap();
    let mut reader = BufReader::new(line);
    let mut received = String::new();
    (0..2).for_each(|_| {
        received.clear();
        reader.read_line(&mut received).unwrap();
    });
    client.kill().unwrap();
    client.wait().unwrap();
    let plan = received.trim().strip_prefix("{\"value\":[").and_then(|plan| plan.strip_suffix("]}"));
    plan.unwrap_or_else(|| panic!("{received}")).to_owned()
}

#[test]
fn control_characters_of_a_client_are_removed() {
    let server = Server::start("");
    let named = |name: &str| two_threads().replace("\"names\":[]", &format!("\"names\":[\"{name}\"]"));
    let plan = named("a\\n\\u001b[2J").replace("\"threads\":2", "\"threads\":1");
    let other = plan.replace("posix", "none\\u001b[0m");
    let hello =
        format!("{{\"hello\":{{\"tool\":\"ucx-perftest\",\"protocol\":{PROTOCOL},\"version\":\"0\"}}}}");
    let mut line = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    write!(line, "{hello}\n{{\"value\":[{other},{plan}]}}\n{{\"value\":[]}}\n").unwrap();
    // The client's answer in the first test: it failed too.
    writeln!(line, "{{\"value\":{{\"Err\":\"me neither\"}}}}").unwrap();
    line.shutdown(std::net::Shutdown::Write).unwrap();
    let ran = server.finish();
    assert!(ran.err.starts_with("ucx-perftest: a  [2J: "), "{:?}", ran.err);
    assert!(!ran.err.contains('\x1b') && ran.err.contains("'none [0m'"), "{:?}", ran.err);
}

#[test]
fn client_leaving_before_joining_group_ends_server() {
    let mut server = Server::start("");
    drop(handshake_until_port(&server, &two_threads()));
    let ended = soon(|| server.child.try_wait().unwrap().is_some());
    server.child.kill().unwrap();
    assert!(ended, "the server waits for ever");
    let ran = server.finish();
    assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{}", ran.err);
    assert!(ran.err.contains("the other side went away"), "{}", ran.err);
}

#[test]
fn dead_server_ends_client() {
    let mut server = Server::start("");
    let client = program()
        .args(["127.0.0.1", "-p", &server.port.to_string(), "-t", "am_lat", "-x", "posix", "-n", "1000m"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let out = client.wait_with_output().unwrap();
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(255));
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn killed_or_interrupted_run_leaves_no_process() {
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let mut parent = program()
            .args("--local -q -f -t tag_lat -x posix -n 1000m".split(' '))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut children = Vec::new();
        assert!(soon(|| {
            children = children_of(parent.id());
            !children.is_empty()
        }));
        std::thread::sleep(std::time::Duration::from_millis(100));
        let pid = rustix::process::Pid::from_child(&parent);
        rustix::process::kill_process(pid, signal).unwrap();
        parent.wait().unwrap();
        assert!(soon(|| !children.iter().any(|c| is_running(*c))), "{signal:?}: {children:?}");
    }
}

/// Standard error on a full disk, and a stranger, whom the server would name there: it serves the client.
#[test]
fn a_server_that_cannot_name_a_stranger_goes_on() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let server = Server::start_with("", || full().into());
    let mut stranger = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    // The server closes the connection when it has turned the stranger away.
    _ = std::io::Read::read_to_end(&mut stranger, &mut Vec::new());
    assert_eq!(client_of(&server), 0);
    assert_eq!(server.finish().status, 0);
    let refused = program().args(["-t", "nonsense"]).stderr(full()).stdout(Stdio::null()).status().unwrap();
    assert_eq!(refused.code(), Some(129));
}

#[test]
fn closed_pipe_ends_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = program()
        .args("-l -x self -t am_lat -n 1000 -v -s 8..64".split(' '))
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    assert_eq!(out.status.code(), Some(141));
}

/// A result that a full disk does not take is not lost in silence.
#[test]
fn results_that_cannot_be_written_are_a_failure() {
    for line in ["--local -t tag_lat -x posix -n 10 --json", "--local -t tag_lat -x posix -n 10 -f", "-h"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let out = program().args(line.split(' ')).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(255), "{line}: {err}");
        assert!(err.starts_with("ucx-perftest: cannot write to standard output: "), "{line}: {err}");
    }
}

/// Peers are of one user: both transports say so by name. Only root becomes another user.
#[test]
fn the_client_of_another_user_is_told_why() {
    use std::os::unix::process::CommandExt;
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    if owner != 0 {
        return ucs::testing::skipped("a client of another user", "only root becomes another user");
    }
    // Where the other user reaches it. Another process writes it, so that no fork of ours inherits it open
    // for writing; it could not be run then ("text file busy").
    let copy = std::env::temp_dir().join(format!("ucx-perftest-of-nobody.{}", std::process::id()));
    let program = env!("CARGO_BIN_EXE_ucx-perftest");
    assert!(std::process::Command::new("cp").arg(program).arg(&copy).status().unwrap().success());
    let wanted = [
        (&["-x", "posix"][..], "(different user?)"),
        (&["-x", "efa"], "peers must be of one user"),
        (&[], "peers must be of one user"),
    ];
    for (tl, why) in wanted {
        let server = Server::start("");
        let mut client = std::process::Command::new(&copy);
        client.args(["127.0.0.1", "-t", "tag_lat", "-n", "100", "-p", &server.port.to_string()]).args(tl);
        let ran = crate::common::Ran::from(client.uid(65534).gid(65534).current_dir("/").output().unwrap());
        assert_eq!(ran.status, 255, "{tl:?}: {}", ran.err);
        assert!(ran.err.contains(why), "{tl:?}: {}", ran.err);
        assert!(ran.err.lines().count() < 4, "{tl:?}: {}", ran.err);
        assert_eq!(server.finish().status, 255, "{tl:?}");
    }
    std::fs::remove_file(&copy).unwrap();
}
