//! `tools/install` lays out what this build has made; a C program is compiled with it by pkg-config and runs.
//!
//! Skipped where gcc, pkg-config or one of the programs is missing, as when this test is built alone.

use std::path::Path;
use std::process::{Command, Output};
use ucs::testing::skipped;

/// Output of a command that must succeed.
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

#[test]
fn what_is_installed_is_used_by_programs() {
    let exe = std::env::current_exe().expect("a test has a path");
    let built = exe.parent().and_then(Path::parent).expect("it is in a folder of the build's folder");
    let is_there = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    let parts = ["ucx-info", "ucx-perftest", "softefa", "deps/libsoftefa.so", "deps/libucp_ofi.so"];
    let missing = ["gcc", "pkg-config"].into_iter().find(|tool| !is_there(tool));
    if let Some(part) = missing.or(parts.into_iter().find(|part| !built.join(part).exists())) {
        return skipped("install", format!("there is no {part}"));
    }
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
    _ = std::fs::remove_dir_all(&prefix);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    run(Command::new(root.join("tools/install")).arg("--built").args([built, &prefix]));

    let lib = prefix.join("lib");
    // No other UCX is found.
    let flags_of = |package: &str| {
        run(Command::new("pkg-config")
            .env("PKG_CONFIG_LIBDIR", lib.join("pkgconfig"))
            .args(["--cflags", "--libs", package]))
    };
    // Flags of a package and of those that it requires, as with libucx-dev.
    for (package, libraries) in [
        ("ucx-ucs", &["-lucs", "-lucm"][..]),
        ("ucx-uct", &["-luct", "-lucs", "-lucm"]),
        ("ucx", &["-lucp", "-luct", "-lucs", "-lucm"]),
    ] {
        let flags = flags_of(package);
        let named: Vec<&str> = flags.split_whitespace().filter(|flag| flag.starts_with("-l")).collect();
        assert_eq!(named, libraries, "{package}");
        for (option, folder) in [("-I", prefix.join("include")), ("-L", lib.clone())] {
            let wanted = format!("{option}{}", folder.display());
            assert!(flags.split_whitespace().any(|flag| flag == wanted), "{package}: {wanted} in {flags}");
        }
    }
    let flags = flags_of("ucx");
    let program = prefix.join("bin/tagged");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/tagged.c");
    run(Command::new("gcc").arg(source).args(flags.split_whitespace()).arg("-o").arg(&program));
    // It is linked with the names that are installed, and runs as built against these headers.
    run(Command::new(&program).env("LD_LIBRARY_PATH", &lib).env("UCX_TLS", "self,posix"));
    for name in ["libucs.so.0", "libucm.so.0", "libuct.so.0", "libucp.so.0", "libucp.so", "libsoftefa.so"] {
        assert!(lib.join(name).exists(), "{name}");
    }
    assert!(lib.join("libfabric/libefa4-fi.so").exists());
    let mca = std::fs::read_to_string(prefix.join("etc/openmpi-mca-params.conf")).expect("it is installed");
    assert_eq!(mca, "opal_common_ucx_tls = any\nopal_common_ucx_devices = any\n");

    assert!(run(Command::new(prefix.join("bin/ucx-info")).arg("-v")).contains("EFA RDM v4"));
    for name in ["softefa", "ucx-perftest"] {
        run(Command::new(prefix.join("bin").join(name)).arg("--help"));
    }
}
