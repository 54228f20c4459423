//! Runs the example programs as a user does: each does what its text says, and fails with one readable line.
//! Builds them with the cargo that runs this test, into the same target directory.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);

fn build(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // This program is TARGET/PROFILE/deps/NAME.
    let me = std::env::current_exe().unwrap();
    let profile = me.ancestors().nth(2).unwrap();
    let mut cargo = suites::cargo::command();
    cargo.current_dir(root).args(suites::cargo::build(profile, "--example", name));
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    let built = cargo.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    profile.join("examples").join(name)
}

/// Limit for an example with more processes than processors.
const JOB_TIMEOUT: Duration = Duration::from_secs(300);

fn run(program: &Path, vars: &[(&str, &str)]) -> Output {
    run_with(program, "", vars)
}

fn run_with(program: &Path, args: &str, vars: &[(&str, &str)]) -> Output {
    run_within(TIMEOUT, program, args, vars)
}

fn run_within(timeout: Duration, program: &Path, args: &str, vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("UCX_") || text.starts_with("SOFTEFA_") {
            command.env_remove(&name);
        }
    }
    command.envs(vars.iter().copied());
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = Spawned(child.spawn().unwrap());
    // Reads all along: a full pipe would stop the program.
    let stdout = read_all(child.0.stdout.take().unwrap());
    let stderr = read_all(child.0.stderr.take().unwrap());
    let until = Instant::now() + timeout;
    while child.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "{} {vars:?} hangs", program.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    Output { status: child.0.wait().unwrap(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

fn read_all(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).unwrap();
        all
    })
}

struct Spawned(std::process::Child);

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn expect_success(program: &Path, vars: &[(&str, &str)]) -> String {
    expect_success_with(program, "", vars)
}

fn expect_success_with(program: &Path, args: &str, vars: &[(&str, &str)]) -> String {
    let out = run_with(program, args, vars);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && err.is_empty(), "{}: {:?} {err}", program.display(), out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// Checks that an invalid setting is reported in one line, with what to do.
fn check_invalid_setting(program: &Path) {
    let out = run(program, &[("UCX_POSIX_FIFO_SIZE", "lots")]);
    let err = String::from_utf8(out.stderr).unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(err.starts_with(&format!("{name}: UCX_POSIX_FIFO_SIZE=lots (environment): expected ")), "{err}");
    assert_eq!((err.lines().count(), err.matches('{').count()), (1, 0), "{err}");
}

#[test]
fn hello_tag() {
    let program = build("hello_tag");
    for wire in ["posix", "efa"] {
        let text = expect_success(&program, &[("UCX_TLS", wire)]);
        assert!(text.starts_with("parent got: hello from process "), "{text}");
        assert!(text.ends_with(&format!(" over {wire}\n")), "{text}");
    }
    check_invalid_setting(&program);
    check_refusal_prefix(
        &program,
        "",
        &[("UCX_TLS", "rc")],
        "unknown transport 'rc' (there are: self, posix, ",
    );
}

#[test]
fn remote_counter() {
    let program = build("remote_counter");
    for (wire, how) in [("posix", "in place"), ("efa", "by RDMA")] {
        let text = expect_success(&program, &[("UCX_TLS", wire)]);
        let want = format!("parent has: 42 and a text over {wire}, written {how}, when the counter was 40\n");
        assert_eq!(text, want);
    }
    check_invalid_setting(&program);
}

#[test]
fn async_ping() {
    let program = build("async_ping");
    let text = expect_success(&program, &[]);
    assert!(text.starts_with("10000 round trips over ") && text.ends_with(" us each way\n"), "{text}");
    check_invalid_setting(&program);
}

#[test]
fn tokio_tasks() {
    let program = build("tokio_tasks");
    for wire in ["posix", "efa"] {
        let text = expect_success(&program, &[("UCX_TLS", wire)]);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let answered = format!("1000 questions answered over {wire}");
        assert_eq!(lines, [answered.as_str(), "a receive was given up after 50 ms"]);
    }
    check_invalid_setting(&program);
}

#[test]
fn bootstrap() {
    let program = build("bootstrap");
    for wire in ["posix", "efa"] {
        let text = expect_success(&program, &[("UCX_TLS", wire)]);
        let is_greeting = |line: &str| line.contains(" got: hello from process ") && line.ends_with(wire);
        assert!(text.lines().count() == 2 && text.lines().all(is_greeting), "{text}");
    }
    // In two terminals.
    let mut listening = Command::new(&program);
    listening.args(["listen", "127.0.0.1:0"]).stdout(std::process::Stdio::piped());
    let mut listening = Spawned(listening.spawn().unwrap());
    let mut lines = std::io::BufReader::new(listening.0.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let at = first.strip_prefix("listening at ").unwrap();
    let text = expect_success_with(&program, &format!("connect {at}"), &[]);
    let theirs = lines.next().unwrap().unwrap();
    assert!(text.contains(" got: hello from process ") && theirs.contains(" got: hello"), "{text}{theirs}");
    assert!(listening.0.wait().unwrap().success());
    check_invalid_setting(&program);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    check_refusal_prefix(
        &program,
        &format!("connect {nobody}"),
        &[],
        &format!("{nobody}: Connection refused"),
    );
    check_refusal_prefix(&program, "192.0.2.1", &[], "expected nothing, 'listen ADDRESS' or ");
}

#[test]
fn pmix_ring() {
    let program = build("pmix_ring");
    let alone = expect_success(&program, &[("UCX_TLS", "self")]);
    assert_eq!(alone, "a token went around 1 processes over self: the sum of their ranks is 0\n");
    check_invalid_setting(&program);
    let there = Command::new("mpirun").arg("--version").output();
    if !there.is_ok_and(|out| out.status.success()) {
        return ucs::testing::not_installed("a job over PMIx", "there is no mpirun (openmpi-bin)");
    }
    for wire in ["posix", "efa"] {
        let mut job = Command::new("timeout");
        job.args(["60", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"]).arg(&program);
        let out = job.env("UCX_TLS", wire).stdin(std::process::Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let want = format!("a token went around 3 processes over {wire}: the sum of their ranks is 3\n");
        assert_eq!(text, want, "{}", String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success());
    }
}

#[test]
fn examples_are_jobs_of_a_launcher() {
    let there = Command::new("mpirun").arg("--version").output();
    if !there.is_ok_and(|out| out.status.success()) {
        return ucs::testing::not_installed("examples started by mpirun", "there is no mpirun (openmpi-bin)");
    }
    let start = |name: &str, processes: &str, args: &[&str], tls: &str| {
        let mut job = Command::new("timeout");
        job.args(["60", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", processes])
            .arg(build(name));
        job.args(args).env("UCX_TLS", tls).stdin(std::process::Stdio::null()).output().unwrap()
    };
    for (name, processes, args, tls, line) in [
        ("hello", "2", &["efa", "softefa0"][..], "efa", "process 0 got: hello from process 1 over efa"),
        ("put_get", "2", &[], "posix", "read back over posix: same = true"),
        ("pgas", "3", &["3", "efa", "softefa0"], "efa", "put, barrier, get: 3 PEs hold"),
        ("mpi", "3", &[], "posix", "matched probe: who found a message has it: good, over posix"),
        ("ping_pong", "2", &["8", "100"], "efa", "100 round trips of 8 bytes over efa"),
    ] {
        let out = start(name, processes, args, tls);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success() && text.contains(line),
            "{name}: {text}{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
    let out = start("hello", "3", &[], "posix");
    let err = String::from_utf8_lossy(&out.stderr);
    let want = "hello: this example is for 2 processes, and the launcher has started 3";
    assert!(!out.status.success() && err.contains(want), "{err}");
}

#[test]
fn two_transports() {
    let program = build("two_transports");
    let text = expect_success(&program, &[]);
    for line in ["UCX_TLS=posix:", "UCX_TLS=efa:"] {
        assert!(text.lines().any(|l| l == line), "{text}");
    }
    assert_eq!(text.matches("  1000000 bytes arrived\n").count(), 2, "{text}");
    check_invalid_setting(&program);
}

/// Checks that a run is refused with exactly this line.
fn check_refusal(program: &Path, args: &str, vars: &[(&str, &str)], want: &str) {
    assert_eq!(refusal(program, args, vars), format!("{want}\n"), "{args}");
}

/// Checks that a run is refused with one line that begins so.
fn check_refusal_prefix(program: &Path, args: &str, vars: &[(&str, &str)], want: &str) {
    let line = refusal(program, args, vars);
    assert!(line.starts_with(want) && line.lines().count() == 1, "{args}: {line}");
}

/// The message of a run that must fail, without the program's name.
fn refusal(program: &Path, args: &str, vars: &[(&str, &str)]) -> String {
    let out = run_with(program, args, vars);
    let err = String::from_utf8(out.stderr).unwrap();
    let name = program.file_name().unwrap().to_str().unwrap();
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{args}: {err}");
    err.strip_prefix(&format!("{name}: ")).unwrap_or_else(|| panic!("{err}")).to_owned()
}

#[test]
fn hello() {
    let program = build("hello");
    for wire in ["posix memory", "efa softefa0"] {
        let tl = wire.split(' ').next().unwrap();
        let text = expect_success_with(&program, wire, &[]);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let want = [(0, 1), (1, 0)]
            .map(|(to, from)| format!("process {to} got: hello from process {from} over {tl}"));
        assert_eq!(lines, want);
    }
    check_invalid_setting(&program);
    check_refusal_prefix(&program, "tcp lo", &[], "unknown transport 'tcp' (there are: self, posix, ");
    check_refusal(
        &program,
        "self memory",
        &[],
        "self reaches this process only: choose another (see ucx-info -d)",
    );
}

#[test]
fn put_get() {
    let program = build("put_get");
    for wire in ["posix memory", "efa softefa0"] {
        let tl = wire.split(' ').next().unwrap();
        let text = expect_success_with(&program, wire, &[]);
        assert_eq!(
            text,
            format!(
                "32768 bytes written to process 1 and read back over {tl}: same = true\n\
                 beyond its end: remote key does not allow this access\n"
            )
        );
    }
    check_invalid_setting(&program);
    check_refusal(&program, "posix eth0", &[], "transport 'posix' has no device 'eth0' (there are: memory)");
}

#[test]
fn pgas() {
    let program = build("pgas");
    // 64 is the maximum; it takes seconds on an idle machine, and minutes on a busy one.
    for size in ["", "2", "5", "13", "32", "64"] {
        let out = run_within(JOB_TIMEOUT, &program, size, &[]);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && err.is_empty(), "{size}: {:?} {err}", out.status);
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.lines().all(|l| l.ends_with(": true")), "{text}");
    }
    check_invalid_setting(&program);
    check_refusal(&program, "65", &[], "'65' is not a number of processes from 2 to 64");
    // Over a network, whose atomics the targets' threads carry out; also out of order.
    for (args, reorder) in [("2 efa softefa0", "0"), ("5 efa softefa0", "0"), ("4 efa softefa0", "0.3")] {
        let out = run_within(JOB_TIMEOUT, &program, args, &[("SOFTEFA_REORDER", reorder)]);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && err.is_empty(), "{args}: {:?} {err}", out.status);
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.lines().count() == 5 && text.lines().all(|l| l.ends_with(": true")), "{text}");
    }
    check_refusal_prefix(&program, "2 efa softefa0", &[("UCX_EFA_ATOMICS", "n")], "efa/softefa0 lacks ");
}

#[test]
fn ping_pong() {
    let program = build("ping_pong");
    for (wire, args, want) in [
        ("posix", "", "10000 round trips of 8 bytes over posix: "),
        ("efa", "0 10", "10 round trips of 0 bytes over efa: "),
        ("efa", "300000 10", "10 round trips of 300000 bytes over efa: "),
    ] {
        let text = expect_success_with(&program, args, &[("UCX_TLS", wire)]);
        assert!(text.starts_with(want) && text.ends_with(" us each way\n"), "{text}");
    }
    let text = expect_success_with(&program, "8388608 20", &[("UCX_TLS", "efa"), ("SOFTEFA_DEVICES", "4")]);
    assert!(text.starts_with("20 round trips of 8388608 bytes over efa: "), "{text}");
    check_invalid_setting(&program);
    check_refusal(&program, "many", &[], "expected [SIZE [ROUNDS]], such as 8 10000");
}

#[test]
fn server() {
    let program = build("server");
    for wire in ["posix", "efa", "all"] {
        let text = expect_success(&program, &[("UCX_TLS", wire)]);
        let mut lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.pop(), Some("served 4 clients"));
        lines.sort_unstable();
        assert_eq!(lines, [0, 1, 2, 3].map(|n| format!("HELLO FROM CLIENT {n}")));
    }
    check_invalid_setting(&program);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let want = "endpoint could not be connected: nobody listens at the address";
    check_refusal(&program, &format!("client {nobody} hello"), &[], want);
    check_refusal_prefix(&program, "serve here", &[], "here: invalid socket address");
    check_refusal_prefix(&program, "192.0.2.1", &[], "expected nothing, 'serve ADDRESS' or ");
}

#[test]
fn mpi() {
    let program = build("mpi");
    for (wire, size, reorder) in [("posix", "", "0"), ("efa", "2", "0"), ("efa", "5", "0.3")] {
        let text = expect_success_with(&program, size, &[("UCX_TLS", wire), ("SOFTEFA_REORDER", reorder)]);
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.lines().all(|l| l.ends_with(&format!(": good, over {wire}"))), "{text}");
    }
    check_invalid_setting(&program);
    check_refusal(&program, "1", &[], "'1' is not a number of processes from 2 to 64");
}

#[test]
fn killing_one_process_ends_all() {
    let program = build("pgas");
    let mut command = Command::new(&program);
    command.arg("16").stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut first = Spawned(command.spawn().unwrap());
    let pid = first.0.id();
    let until = Instant::now() + TIMEOUT;
    let children = loop {
        let children = children_of(pid);
        if children.len() == 16 || first.0.try_wait().unwrap().is_some() {
            break children;
        }
        assert!(Instant::now() < until);
    };
    let Some(victim) = children.get(3) else {
        return ucs::testing::skipped("a job of which one is killed", "it was too fast for us");
    };
    let _ = Command::new("kill").args(["-9", &victim.to_string()]).output().unwrap();
    while first.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "the job hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    while children.iter().any(|pid| is_running(*pid)) {
        assert!(Instant::now() < until, "a member is left behind");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn killing_an_unconnected_process_ends_all() {
    let program = build("pgas");
    for _ in 0..5 {
        let mut command = Command::new(&program);
        command.arg("16").stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut first = Spawned(command.spawn().unwrap());
        let until = Instant::now() + TIMEOUT;
        let victim = loop {
            if let Some(ninth) = children_of(first.0.id()).into_iter().nth(8) {
                break ninth;
            }
            assert!(Instant::now() < until && first.0.try_wait().unwrap().is_none());
        };
        let victim = rustix::process::Pid::from_raw(victim as i32).unwrap();
        let _ = rustix::process::kill_process(victim, rustix::process::Signal::KILL);
        while first.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "the job hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!first.0.wait().unwrap().success());
    }
}

#[test]
fn benches_of_single_parts() {
    let text = expect_success_with(&build("posix_bench"), "1", &[]);
    assert!(text.lines().count() > 4 && text.lines().all(|l| l.ends_with(" M/s")), "{text}");
    let program = build("soft_pingpong");
    for (args, memory) in [("2", "memory of the device's"), ("2 --own-memory", "private memory")] {
        let text = expect_success_with(&program, args, &[]);
        assert!(text.starts_with(&format!("posted receives in {memory}\n")), "{text}");
        assert!(text.lines().count() == 5 && text.lines().skip(1).all(|l| l.ends_with(" GB/s")), "{text}");
    }
}

fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = text.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

fn children_of(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|p| stat(*p).is_some_and(|(_, parent)| parent == pid)).collect()
}

fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

#[test]
fn commands_of_the_examples_page_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(root.join("docs/examples.md")).unwrap();
    let (mut named, mut is_run) = (Vec::new(), false);
    for line in page.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            // The blocks of two terminals and of other profiles are not for this test.
            is_run = kind == "sh run";
        }
        if !is_run || !line.starts_with("cargo run ") {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["cargo", "run", "-p", package, "--example", name, ref rest @ ..] = words[..] else {
            panic!("not a command of an example: {line}")
        };
        let args = rest.strip_prefix(&["--"]).unwrap_or(rest).join(" ");
        let file = root.join(package).join("examples").join(name);
        assert!(file.with_extension("rs").exists() || file.is_dir(), "no such example: {line}");
        expect_success_with(&build(name), &args, &[]);
        named.push(name.to_owned());
    }
    for package in ["uct", "ucp"] {
        for entry in std::fs::read_dir(root.join(package).join("examples")).unwrap().flatten() {
            let name = entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
            let is_example = entry.path().is_file() || entry.path().join("main.rs").exists();
            let known = named.contains(&name) || page.contains(&format!("`{name}`"));
            assert!(!is_example || known, "{name} is not on the page");
        }
    }
}
