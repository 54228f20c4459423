//! The program as a user runs it: output of each option as text and as JSON, and errors.

use std::process::{Command, Output};

fn run(line: &str, vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ucx-info"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("UCX_") || text.starts_with("SOFTEFA_") {
            command.env_remove(&name);
        }
    }
    // Keeps the results of `--calibrate` away from the user's cache.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(line.split_whitespace()).envs(vars.iter().copied()).output().unwrap()
}

fn run_ok(line: &str) -> String {
    let out = run(line, &[]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && err.is_empty(), "{line}: {:?} {err}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

fn fails_with(line: &str, vars: &[(&str, &str)], want: &str) {
    let out = run(line, vars);
    assert_eq!(String::from_utf8(out.stderr).unwrap(), format!("ucx-info: {want}\n"), "{line}");
    assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{line}");
}

#[test]
fn every_option_prints_text_and_json() {
    let letters = [
        ("-v", "version", "# Wire protocol: EFA RDM v4"),
        ("-b", "build", "# software EFA device: yes"),
        ("-s", "system", "# Memory copy bandwidth:"),
        ("-y", "types", "# wire control packet"),
        ("-c", "config", "UCX_TLS=all"),
        ("-d", "devices", "#      Transport: posix"),
        ("-p", "context", "#            RMA-only: cma/memory"),
        ("-w", "worker", "#             lane[0]: posix/memory"),
        ("-e", "endpoints", "# UCP endpoint"),
        ("-T", "topology", "# CPUs of this process: "),
        ("-M", "copies", "# Memory copy bandwidth:"),
        ("-m 64k", "memory", "#           allocated: 64K at address 0x"),
    ];
    for (letter, key, line) in letters {
        let text = run_ok(letter);
        assert!(text.lines().any(|l| l.starts_with(line)), "{letter}: {text}");
        assert!(
            text.lines().all(|l| l.starts_with('#') || l.is_empty() || letter == "-c"),
            "{letter}: {text}"
        );
        let value: serde_json::Value = serde_json::from_str(&run_ok(&format!("{letter} --json"))).unwrap();
        let object = value.as_object().unwrap();
        assert_eq!(object.keys().collect::<Vec<_>>(), [key]);
        assert!(!object[key].is_null());
    }
    assert!(run_ok("-p").contains("#          transports: self/memory, posix/memory"));
    let all = run_ok("-v -b -s -y -c -d -p -w -e -T -M -m 64k --json");
    assert_eq!(all.lines().count(), 1);
    let value: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!(value.as_object().unwrap().len(), letters.len());
}

#[test]
fn doctor_reports_checks_and_sets_status() {
    let out = run("--doctor", &[]);
    let text = String::from_utf8(out.stdout).unwrap();
    // The result of the checks depends on the machine.
    let ill = text.lines().any(|l| l.starts_with("# BAD "));
    assert_eq!(out.status.code(), Some(i32::from(ill)), "{text}");
    for check in ["cores", "kernel", "memory files", "descriptors", "huge pages", "configuration"] {
        assert!(text.lines().any(|l| l.contains(&format!("  {check} "))), "{check}: {text}");
    }
    assert!(text.contains("posix/memory opens"), "{text}");

    let doctor = |vars: &[(&str, &str)]| String::from_utf8(run("--doctor", vars).stdout).unwrap();
    let text = doctor(&[("UCX_IB_SL", "1"), ("UCX_PROTO_INFO", "y")]);
    let good = "# good  configuration    every value is good; settings of UCX without effect here: UCX_IB_SL, UCX_PROTO_INFO\n";
    assert!(text.contains(good), "{text}");
    let text = doctor(&[("UCX_NO_SUCH_THING", "1")]);
    assert!(text.contains("# SLOW  configuration    unknown configuration key UCX_NO_SUCH_THING"), "{text}");

    let out = run("--doctor --json", &[("UCX_POSIX_FIFO_SIZE", "lots")]);
    let value: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(1));
    let findings = value["doctor"].as_array().unwrap();
    let config = findings.iter().find(|f| f["check"] == "configuration").unwrap();
    assert_eq!(config["verdict"], "bad");
    assert!(
        config["found"].as_str().unwrap().starts_with("UCX_POSIX_FIFO_SIZE=lots (environment): "),
        "{config}"
    );
}

#[test]
fn doctor_names_what_the_system_refuses() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/c/refuse.c");
    let refuse = format!("{}/refuse", env!("CARGO_TARGET_TMPDIR"));
    if !Command::new("cc").args(["-o", &refuse, source]).status().is_ok_and(|status| status.success()) {
        return ucs::testing::not_installed("a process that is refused a call", "no C compiler");
    }
    for (call, line) in [
        ("process_vm_readv", "# SLOW  copies           process_vm_readv: EPERM"),
        ("userfaultfd", "# SLOW  unmapped memory  userfaultfd: EPERM"),
        ("eventfd2", "# BAD   system calls "),
    ] {
        let program = env!("CARGO_BIN_EXE_ucx-info");
        let out = Command::new(&refuse).args([call, program, "--doctor"]).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.lines().any(|l| l.starts_with(line)), "{call}: {text}");
    }
}

#[test]
fn configuration_can_be_read_back() {
    let text = run_ok("-c --plain");
    assert!(text.lines().all(|l| l.split_once('=').is_some()), "{text}");
    let vars: Vec<(&str, &str)> = text.lines().map(|l| l.split_once('=').unwrap()).collect();
    let again = run("-c --plain", &vars);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);
    // Only changed variables.
    let out = run("-c -C", &[("UCX_LOG_LEVEL", "error")]);
    let text = String::from_utf8(out.stdout).unwrap();
    let set: Vec<&str> = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).collect();
    assert_eq!(set, ["UCX_LOG_LEVEL=error"]);
}

#[test]
fn errors_have_one_line() {
    let nothing = "say what to show: -v, -b, -s, -T, -M, -y, -c, -d, -p, -w, -e, -m, --doctor or --calibrate (see ucx-info -h)";
    fails_with("", &[], nothing);
    fails_with("--json", &[], nothing);
    fails_with("-q", &[], "unexpected argument '-q' found (see ucx-info -h)");
    let out = run("-c", &[("UCX_NO_SUCH_THING", "1")]);
    let err = String::from_utf8(out.stderr).unwrap();
    let want =
        "unknown configuration key UCX_NO_SUCH_THING (environment): see `ucx-info -c` for the keys there are";
    assert!(err.contains(want) && err.lines().count() == 1, "{err}");
    assert!(out.status.success() && !out.stdout.is_empty());
    let quiet = [("UCX_NO_SUCH_THING", "1"), ("UCX_WARN_UNUSED_ENV_VARS", "n"), ("UCX_IB_SL", "1")];
    let out = run("-v", &quiet);
    assert!(out.status.success() && out.stderr.is_empty());
    for (line, tls) in [("-p", "rc"), ("-w", "rc"), ("-e", "rc"), ("-d -t rc", "all")] {
        let out = run(line, &[("UCX_TLS", tls)]);
        let err = String::from_utf8(out.stderr).unwrap();
        assert!(err.starts_with("ucx-info: unknown transport 'rc' (there are: self, posix, "), "{err}");
        assert_eq!((err.lines().count(), out.status.code()), (1, Some(2)), "{err}");
    }
}

#[test]
fn options_of_ucx_info_are_accepted() {
    assert_eq!(run_ok("-f"), run_ok("-c"));
    let text = run_ok("-c -F fifo_size --plain");
    assert!(text.lines().all(|line| line.contains("FIFO_SIZE")) && !text.is_empty(), "{text}");
    let text = run_ok("-epw -u t");
    assert!(text.contains("tag_send: ") && !text.contains("msg_send") && !text.contains(" put: "), "{text}");
    let text = run_ok("-e -u r -P intra -D shm");
    assert!(text.contains(" put: ") && !text.contains("tag_send") && !text.contains("self/memory"), "{text}");
    assert!(!run_ok("-p -u t -D net").contains("posix"));
    for (line, want) in [
        ("-p -D net", "-D: no transport of network devices is left (there are: posix"),
        ("-e -u t -P self", "-P: none of the transports that are left leads there (they are: posix"),
        ("-m 100000t -u r", "-m 109951162777600000: "),
    ] {
        let out = run(line, &[("UCX_TLS", "posix")]);
        let err = String::from_utf8(out.stderr).unwrap();
        assert!(err.starts_with(&format!("ucx-info: {want}")) && err.lines().count() == 1, "{line}: {err}");
        assert_eq!(out.status.code(), Some(2), "{line}");
    }
    fails_with("-y -t posix", &[], "-t is for -d, which is not asked for (see ucx-info -h)");
}

#[test]
fn commands_of_the_page_work() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/info.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut commands = Vec::new();
    for line in page.lines().filter(|l| l.starts_with("ucx-info ")) {
        let words = line.split('#').next().unwrap().trim().strip_prefix("ucx-info ").unwrap();
        let out = run(words, &[]);
        assert!(out.status.code() != Some(2) && !out.stdout.is_empty(), "{words}");
        commands.push(words.to_owned());
    }
    for letter in ["-v", "-b", "-s", "-y", "-c", "-d", "-p", "-w", "-e", "-T", "-M", "-f", "--doctor"] {
        assert!(commands.iter().any(|c| c == letter), "{letter} is not on the page");
    }
}

/// A line with every number replaced, so that machines and builds differ in nothing else.
fn shape(line: &str) -> String {
    let mut out = String::new();
    for c in line.replace("release", "debug").chars() {
        match c {
            '0'..='9' if out.ends_with('N') => {}
            '0'..='9' => out.push('N'),
            other => out.push(other),
        }
    }
    out.trim_end().to_owned()
}

/// The commands of the page's `text` blocks, each with the output shown.
fn shown_commands(page: &str) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        match line {
            "```text" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match (line.strip_prefix("$ "), all.last_mut()) {
                (Some(command), _) => all.push((command.into(), Vec::new())),
                (None, Some((_, lines))) if !line.is_empty() => lines.push(line.into()),
                _ => {}
            },
        }
    }
    all
}

#[test]
fn commands_of_the_page_show_what_it_shows() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/info.md");
    let shown = shown_commands(&std::fs::read_to_string(page).unwrap());
    assert!(shown.len() >= 6, "{shown:?}");
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_ucx-info"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    for (command, want) in &shown {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("PATH", &path).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("UCX_") || text.starts_with("SOFTEFA_") {
                shell.env_remove(&name);
            }
        }
        let out = String::from_utf8(shell.output().unwrap().stdout).unwrap();
        let got: Vec<String> = out.lines().map(shape).filter(|line| !line.is_empty()).collect();
        if command.contains("--doctor") {
            // Which checks are good depends on the machine; the columns do not.
            let verdict =
                |line: &str| ["# good  ", "# SLOW  ", "# BAD   "].iter().any(|v| line.starts_with(v));
            let advice = |line: &str| line.starts_with(&format!("#{}-> ", " ".repeat(24)));
            let rule = |line: &str| line == "#";
            let total =
                |line: &str| line.starts_with("# N missing or broken, N slower") || line.starts_with("# all");
            for line in want.iter().map(|line| shape(line)).filter(|line| line != "...").chain(got) {
                assert!(verdict(&line) || advice(&line) || total(&line) || rule(&line), "{line}");
            }
            continue;
        }
        let want: Vec<String> = want.iter().map(|line| shape(line)).collect();
        assert_eq!(got, want, "{command}");
    }
}
