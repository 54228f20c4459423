//! Builds the programs that a test runs with the test's own cargo, profile and features, so that nothing is
//! built twice.

use std::path::Path;
use std::process::Command;

/// The cargo that runs this test, without the variables that it has set for the test.
pub fn command() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    remove_test_variables(&mut cargo);
    cargo
}

/// Removes from a command that runs cargo the variables that cargo has set for the test. Build scripts that
/// read them would run again, and all that depends on them would be built twice.
pub fn remove_test_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let of_the_test = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if of_the_test.iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
}

/// Arguments of cargo that build program `name` into `profile`; `kind` is `--bin` or `--example`.
pub fn build(profile: &Path, kind: &str, name: &str) -> Vec<String> {
    let mut args = vec!["build", "--quiet", "--workspace", kind, name];
    if kind == "--bin" {
        // With an example come the features that tests' dependencies ask for, as with every test.
        args.extend(["--example", "hello_tag"]);
    }
    if cfg!(feature = "verbs") {
        args.extend([
            "--features",
            "uct/verbs,ucp/verbs,suites/verbs,conform/verbs,ucx-info/verbs,ucx-perftest/verbs",
        ]);
    }
    if profile.ends_with("release") {
        args.push("--release");
    }
    args.into_iter().map(String::from).collect()
}
