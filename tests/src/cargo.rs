//! Builds the programs that a test runs with the test's own cargo, profile and features, so that nothing is
//! built twice.

use std::path::Path;

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
