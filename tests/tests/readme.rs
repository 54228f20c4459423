//! Runs the commands of the pages. `sh run` blocks are run as they stand, with this test's profile and
//! features; `sh long` blocks take minutes, `sh manual` blocks need another machine, a file, or a hand.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(600);
/// Programs of the workspace that a command may begin with; they are built, and found on `PATH`.
const PROGRAMS: [&str; 4] = ["ucx-perftest", "ucx-info", "efa-dump", "softefa"];
/// Pages whose `run` blocks another test runs: `tests/examples.rs`.
const ELSEWHERE: [&str; 1] = ["docs/examples.md"];

/// How a block's commands are tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Run,
    Long,
    Manual,
}

#[derive(PartialEq, Eq, Debug)]
struct Block {
    kind: Kind,
    commands: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

/// The shell command for `cargo run TARGET`: builds the target as this test was built, and runs it.
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

/// The `sh` blocks of a page, their commands without what comes after ` #`. An unmarked block is an error.
fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let (mut all, mut inside, mut fenced): (Vec<Block>, bool, bool) = (Vec::new(), false, false);
    for (n, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match fence.map(|info| info.split_whitespace().collect::<Vec<_>>()) {
            Some(_) if fenced => (inside, fenced) = (false, false),
            Some(info) if info.first() == Some(&"sh") => {
                let kind = match info[1..] {
                    ["run"] => Kind::Run,
                    ["long"] => Kind::Long,
                    ["manual"] => Kind::Manual,
                    _ => {
                        return Err(format!(
                            "line {}: an `sh` block is marked run, long or manual: {line}",
                            n + 1
                        ));
                    }
                };
                (inside, fenced) = (true, true);
                all.push(Block { kind, commands: Vec::new() });
            }
            Some(_) => fenced = true,
            None if inside => {
                let command = line.split(" #").next().unwrap_or_default().trim();
                if !command.is_empty() && !command.starts_with('#') {
                    all.last_mut().expect("inside a block").commands.push(command.to_owned());
                }
            }
            None => {}
        }
    }
    Ok(all)
}

/// All tracked pages except decisions: path and text.
fn pages() -> Vec<(String, String)> {
    let git = Command::new("git").current_dir(root()).args(["ls-files", "*.md"]).output();
    let listed = git
        .ok()
        .filter(|out| out.status.success())
        .map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let listed = listed.unwrap_or_else(|| "README.md".into());
    let pages = listed.lines().filter(|name| !name.starts_with("docs/decisions/"));
    pages
        .filter_map(|name| Some((name.to_owned(), std::fs::read_to_string(root().join(name)).ok()?)))
        .collect()
}

/// A process that is killed when dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Started {
    /// Starts a command by a shell; `exec` replaces the shell, so that a kill reaches the program.
    fn new(command: &str, args: &str) -> Started {
        // This program is TARGET/PROFILE/deps/NAME.
        let me = std::env::current_exe().expect("this program");
        let profile = me.ancestors().nth(2).expect("a profile's folder").to_path_buf();
        let path = std::env::var("PATH").unwrap_or_default();
        let command = command.trim_end_matches('&');
        let command = match command.split_once("cargo run ") {
            Some((vars, target)) => run(vars, target, &profile),
            None => match PROGRAMS.iter().find_map(|program| Some((program, command.find(program)?))) {
                Some((program, at)) => {
                    let build = suites::cargo::build(&profile, "--bin", program).join(" ");
                    format!("cargo {build} && {} exec {}{args}", &command[..at], &command[at..])
                }
                None => command.to_owned(),
            },
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(root()).env("PATH", format!("{}:{path}", profile.display()));
        shell.env("CARGO_TARGET_DIR", profile.parent().expect("the target folder"));
        suites::cargo::remove_test_variables(&mut shell);
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
        // Read all along: a full pipe would stop the program.
        fn reader(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = from.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        }
        let out = reader(self.0.stdout.take().expect("piped"));
        let err = reader(self.0.stderr.take().expect("piped"));
        let until = Instant::now() + TIMEOUT;
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

/// A free port instead of the page's fixed one, which another program may have.
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

/// Runs a block's commands in order. One that ends in `&` is a server of the next one.
fn run_block(page: &str, commands: &[String]) {
    let (mut server, mut port) = (None, 0);
    for command in commands {
        if command.ends_with('&') {
            port = free_port();
            server = Some(Started::new(command, &format!(" -p {port}")));
            wait_listening(port);
            continue;
        }
        let args = if server.is_some() { format!(" -p {port} -n 2000") } else { String::new() };
        let (status, said) = Started::new(command, &args).end(command);
        // The doctor may find something wrong with this machine, and says so.
        let found = command.contains("--doctor") && status == Some(1) && said.contains("missing or broken");
        assert!(status == Some(0) || found, "{page}: {command}: {status:?}\n{said}");
        assert!(!said.trim().is_empty(), "{page}: {command}: prints nothing");
        if let Some(server) = server.take() {
            let (status, said) = server.end(command);
            assert_eq!(status, Some(0), "{page}: the server of {command}:\n{said}");
        }
    }
}

#[test]
fn run_blocks_work() {
    let mut commands = 0;
    for (page, text) in pages().iter().filter(|(page, _)| !ELSEWHERE.contains(&page.as_str())) {
        for block in blocks(text).unwrap_or_else(|e| panic!("{page}: {e}")) {
            if block.kind == Kind::Run {
                run_block(page, &block.commands);
                commands += block.commands.len();
            }
        }
    }
    assert!(commands > 3, "the README's commands are not found");
}

#[test]
fn every_sh_block_is_marked() {
    let wrong: Vec<String> =
        pages().iter().filter_map(|(page, text)| Some(format!("{page}: {}", blocks(text).err()?))).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn planted_blocks_are_found() {
    let text = "a\n```sh run\n# only a note\nx -y   # why\n\nz && w\n```\nnot this\n```text\nnor this\n```\n```sh long\nl\n```\n";
    let block = |kind, commands: &[&str]| Block {
        kind,
        commands: commands.iter().map(|c| (*c).to_owned()).collect(),
    };
    assert_eq!(blocks(text), Ok(vec![block(Kind::Run, &["x -y", "z && w"]), block(Kind::Long, &["l"])]));
    assert!(blocks("```sh\nx\n```\n").is_err() && blocks("```sh now\nx\n```\n").is_err());
}
