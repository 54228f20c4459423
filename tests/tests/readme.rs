//! The commands of README.md's shell blocks, run as they stand there: whoever changes a program or an option has to change
//! the README with it. Only the profile and the features differ (this test's: nothing is built twice), and a fixed TCP port.
//! What a test cannot run here is listed with the step of `tests/run` that does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A command that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(600);

enum How {
    Run,
    /// It is run; it may find something wrong with this machine (exit status 1), and says so.
    Finds(&'static str),
    /// It is a server: started before the next command, which it ends with.
    Server,
    /// It is run with the server before.
    Client,
    /// A step of `tests/run` runs it: it needs more than a toolchain, or is `tests/run` itself.
    Step(&'static str),
}

const COMMANDS: &[(&str, How)] = &[
    ("cargo run --release --bin ucx-perftest -- --local", How::Run),
    ("tests/run", How::Step("--list")),
    ("cargo run --release --bin ucx-info -- -d", How::Run),
    ("cargo run --release --bin ucx-info -- -e", How::Run),
    ("cargo run --release --bin ucx-info -- --doctor", How::Finds("missing or broken")),
    ("cargo run --release --bin ucx-info -- -c", How::Run),
    ("ucx-perftest -t tag_lat &", How::Server),
    ("ucx-perftest -t tag_lat localhost", How::Client),
    ("cargo run -p ucp --example hello_tag", How::Run),
    ("SOFTEFA_REORDER=0.1 UCX_TLS=efa cargo run -p ucp --example hello_tag", How::Run),
    ("cargo build --release && target/release/versus", How::Step("versus")),
    ("target/release/versus --against libfabric", How::Step("versus")),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

/// What `cargo run TARGET` does with these variables, for programs of this profile: the target is built as this test was, and
/// run.
fn run(vars: &str, target: &str, profile: &Path) -> String {
    let (target, args) = target.split_once(" -- ").unwrap_or((target, ""));
    let words: Vec<&str> = target.split_whitespace().filter(|&word| word != "--release").collect();
    let at =
        words.iter().position(|word| ["--bin", "--example"].contains(word)).expect("what to run is named");
    let (kind, name) = (words[at], words[at + 1]);
    let folder = if kind == "--bin" { "" } else { "examples/" };
    let build = suites::cargo::build(profile, kind, name).join(" ");
    format!("cargo {build} && {vars} exec {}/{folder}{name} {args}", profile.display())
}

/// The lines of ```sh blocks, without what comes after `#`.
fn commands(text: &str) -> Vec<String> {
    let (mut all, mut inside) = (Vec::new(), false);
    for line in text.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => {
                let command = line.split(" #").next().unwrap_or_default().trim();
                if !command.is_empty() && !command.starts_with('#') {
                    all.push(command.to_owned());
                }
            }
            _ => {}
        }
    }
    all
}

/// Killed, with everything it started, if it has not ended.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Started {
    /// By a shell, as a person would; `exec`, so that the shell is not between.
    fn new(command: &str, args: &str) -> Started {
        // This program is TARGET/PROFILE/deps/NAME.
        let me = std::env::current_exe().expect("this program");
        let profile = me.ancestors().nth(2).expect("a profile's folder").to_path_buf();
        let path = std::env::var("PATH").unwrap_or_default();
        let command = command.trim_end_matches('&');
        let command = match command.split_once("cargo run ") {
            Some((vars, target)) => run(vars, target, &profile),
            None => match command.find("ucx-") {
                Some(at) => format!("{} exec {}{args}", &command[..at], &command[at..]),
                None => command.to_owned(),
            },
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(root()).env("PATH", format!("{}:{path}", profile.display()));
        shell.env("CARGO_TARGET_DIR", profile.parent().expect("the target folder"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("UCX_") || text.starts_with("SOFTEFA_") {
                shell.env_remove(&name);
            }
        }
        shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Started(shell.spawn().unwrap_or_else(|e| panic!("{command}: {e}")))
    }

    fn end(mut self, command: &str) -> (Option<i32>, String) {
        // Read all along: a pipe that is full would stop the program.
        fn reader(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = from.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        }
        let out = reader(self.0.stdout.take().expect("piped"));
        let err = reader(self.0.stderr.take().expect("piped"));
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match self.0.try_wait().expect("a child of ours") {
                Some(status) => break status.code(),
                None => assert!(Instant::now() < until, "{command}: hangs"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        (status, out.join().unwrap_or_default() + &err.join().unwrap_or_default())
    }
}

/// A port nobody listens on: the fixed one of the README belongs to whoever is at this machine.
fn free_port() -> u16 {
    let probe = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    probe.local_addr().expect("it has one").port()
}

fn wait_listening(port: u16) {
    let needle = format!(":{port:04X} ");
    let until = Instant::now() + Duration::from_secs(30);
    let listens = || {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|t| std::fs::read_to_string(t).unwrap_or_default());
        tables
            .iter()
            .flat_map(|t| t.lines())
            .any(|l| l.contains(&needle) && l.split_whitespace().nth(3) == Some("0A"))
    };
    while !listens() {
        assert!(Instant::now() < until, "nobody listens on port {port}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn every_command_of_the_readme_works() {
    let text = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let written = commands(&text);
    let steps = std::fs::read_to_string(root().join("tests/run")).expect("tests/run");
    let gone: Vec<&str> =
        COMMANDS.iter().map(|(c, _)| *c).filter(|c| !written.iter().any(|w| w == c)).collect();
    assert!(gone.is_empty(), "no longer in README.md, take them off this test's list: {gone:#?}");
    // The programs that the README takes for installed.
    let installed = "cargo run --bin ucx-perftest -- --version";
    let built = Started::new(installed, "").end(installed);
    assert_eq!(built.0, Some(0), "{}", built.1);
    let (mut server, mut port) = (None, 0);
    for command in &written {
        let how = COMMANDS.iter().find(|(c, _)| c == command).map(|(_, how)| how);
        let how =
            how.unwrap_or_else(|| panic!("README.md has a command that this test does not know: {command}"));
        match how {
            How::Run => {
                let (status, said) = Started::new(command, "").end(command);
                assert_eq!(status, Some(0), "{command}:\n{said}");
                assert!(!said.trim().is_empty(), "{command}: says nothing");
            }
            How::Finds(words) => {
                let (status, said) = Started::new(command, "").end(command);
                let fits = status == Some(0) || status == Some(1) && said.contains(words);
                assert!(fits, "{command}: {status:?}\n{said}");
            }
            How::Server => {
                port = free_port();
                server = Some(Started::new(command, &format!(" -p {port}")));
                wait_listening(port);
            }
            How::Client => {
                let (status, said) = Started::new(command, &format!(" -p {port} -n 2000")).end(command);
                assert_eq!(status, Some(0), "{command}:\n{said}");
                let server = server.take().expect("a server before its client");
                let (status, said) = server.end(command);
                assert_eq!(status, Some(0), "the server of {command}:\n{said}");
            }
            How::Step(step) => {
                let known =
                    steps.contains(&format!("step_{step}()")) || steps.contains(&format!("\"{step}\""));
                assert!(known, "tests/run has no step '{step}', which is said to run: {command}");
            }
        }
    }
}

#[test]
fn commands_are_found() {
    let text = "a\n```sh\n# only a note\nx -y   # why\n\nz && w\n```\nnot this\n```text\nnor this\n```\n";
    assert_eq!(commands(text), ["x -y", "z && w"]);
}
