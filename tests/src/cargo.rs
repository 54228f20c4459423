//! Programs that a test runs, built with the cargo that runs the test, with the test's own profile and features: what is
//! there already is not built again.

use std::path::Path;

/// Cargo's arguments for building a program (`kind` is `--bin` or `--example`) into `profile`, a target folder's `debug` or
/// `release`.
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
