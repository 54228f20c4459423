//! C programs, compiled against the system's UCX headers, on this library: every function that they call has
//! UCX's prototype. Layouts of structures are compared by the compiler.
//!
//! Skipped where there is no C compiler or no header (Debian: gcc, libucx-dev).

mod common;

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{library_folder, output_within};

const ASAN: &str = "-fsanitize=address";
const HEADER: &str = "/usr/include/ucp/api/ucp.h";

fn compile(name: &str, folder: &Path, arguments: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    // Tests compile the same program at the same time.
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let number = COMPILED.fetch_add(1, Ordering::Relaxed);
    let program = format!("{}.{number}", name.trim_end_matches(".c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program);
    let run_gcc = |gcc: &mut Command| {
        let output = gcc.output().expect("gcc runs");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-Wno-unused-function"]);
    let link = [format!("-L{}", folder.display()), "-l:libucp.so.0".into(), "-lpthread".into()];
    let Some(runtime) = sanitizer_runtime() else {
        run_gcc(gcc.args(arguments).arg("-o").arg(&program).arg(source).args(link));
        return program;
    };
    // One runtime for the program and the library: the compiler's of the library.
    let object = program.with_extension(format!("{number}.o"));
    run_gcc(gcc.args(arguments).args([ASAN, "-g", "-c", "-o"]).arg(&object).arg(source));
    let mut gcc = Command::new("gcc");
    gcc.arg("-o").arg(&program).arg(object).args(["-rdynamic", "-Wl,--whole-archive"]).arg(runtime);
    run_gcc(gcc.arg("-Wl,--no-whole-archive").args(link).args(["-lm", "-ldl", "-lrt", "-lresolv"]));
    program
}

/// The runtime of the address sanitizer with which the library was built: `tests/run asan-abi`. `None` if it
/// was built without.
fn sanitizer_runtime() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        std::env::var_os("LIBRARY_HAS_ASAN")?;
        let mut rustc = Command::new("rustc");
        let output = rustc.args(["--print", "target-libdir"]).output().expect("rustc runs");
        let folder = String::from_utf8(output.stdout).expect("a path");
        let files = std::fs::read_dir(folder.trim()).expect("the compiler's libraries");
        let mut paths = files.map(|file| file.expect("a file").path());
        Some(
            paths
                .find(|path| path.to_string_lossy().ends_with("_rt.asan.a"))
                .expect("the sanitizer's runtime"),
        )
    };
    FOUND.get_or_init(find).as_deref()
}

/// Options of the address sanitizer for a program that is compiled for it. A child process that `fork` has
/// made without the library's threads ends by `exit`: what those threads have held counts as a leak.
fn sanitizer_options(name: &str) -> Option<(&'static str, &'static str)> {
    (name == "pitfalls.c").then_some(("ASAN_OPTIONS", "detect_leaks=0"))
}

/// Whether there is a C compiler and UCX's headers.
fn has_headers() -> bool {
    let found = Path::new(HEADER).exists() && Command::new("gcc").arg("--version").output().is_ok();
    if !found {
        ::ucs::testing::not_installed("C programs", format!("no gcc or no {HEADER} (libucx-dev)"));
    }
    found
}

fn run(name: &str, tls: &[&str]) {
    run_with(name, tls, &[]);
}

fn run_with(name: &str, tls: &[&str], environment: &[(&str, &str)]) {
    run_compiled(name, tls, &[], &[], environment);
}

/// Programs that use what is newer than Debian's headers.
const NEED_OUR_HEADERS: [&str; 13] = [
    "killed.c",
    "network_only.c",
    "fuzz.c",
    "masks.c",
    "rest.c",
    "wrong_kind.c",
    "exported.c",
    "attributes.c",
    "allocations.c",
    "lists.c",
    "refused.c",
    "uct.c",
    "uct_peer.c",
];

/// Compiles a program and runs it on each list of transports, with arguments.
fn run_compiled(name: &str, tls: &[&str], flags: &[&str], arguments: &[&str], environment: &[(&str, &str)]) {
    if !has_headers() {
        return;
    }
    let folder = library_folder();
    // Some functions are newer than Debian's headers.
    let ours = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let mut flags = flags.to_vec();
    if NEED_OUR_HEADERS.contains(&name) {
        flags.push(ours);
    }
    let program = compile(name, &folder, &flags);
    // The address sanitizer loads modules itself, so that the library does not see who does.
    let module = if name == "pitfalls.c" && !flags.contains(&ASAN) && sanitizer_runtime().is_none() {
        compile("module.c", &folder, &["-shared", "-fPIC"])
    } else {
        PathBuf::new()
    };
    for tls in tls {
        let mut command = Command::new(&program);
        command.args(arguments);
        // The prefix of the configuration wins.
        command.env("LD_LIBRARY_PATH", &folder).env("UCX_TLS", tls).env("UCX_TEST_LOG_LEVEL", "fatal");
        if name == "fuzz.c" {
            command.env("UCX_LOG_LEVEL", "fatal");
        }
        command.envs(sanitizer_options(name));
        command.envs(environment.iter().copied());
        if !module.as_os_str().is_empty() {
            command.env("MODULE", module.as_os_str());
        }
        let output = output_within(command, 120);
        assert!(output.stdout.is_empty(), "{name} on {tls} prints to standard output");
        assert!(
            output.status.success(),
            "{name} on {tls}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Threads with a worker each, and threads that share one.
#[test]
fn threads_with_own_and_shared_workers() {
    run("threads.c", &["posix", "efa", "self,posix,cma"]);
}

#[test]
fn tagged_messages() {
    run("tagged.c", &["posix", "efa", "posix,cma"]);
}

/// Bytes of a datatype of callbacks come in another order than they were sent.
#[test]
fn datatypes_are_unpacked_out_of_order() {
    run("reordered.c", &["posix", "efa"]);
    run_with("reordered.c", &["efa"], &[("SOFTEFA_REORDER", "0.3")]);
}

/// Operations wait for a connection, go on without their request, and keep the order of fences.
#[test]
fn operations_before_a_connection_and_without_a_request() {
    run("early.c", &["posix", "efa", "posix,cma"]);
    run_with("early.c", &["efa"], &[("SOFTEFA_REORDER", "0.3")]);
}

#[test]
fn an_address_of_the_network_has_no_shared_memory() {
    run("network_only.c", &["posix,efa", "posix,cma,efa"]);
    run_with("network_only.c", &["posix,cma,efa"], &[("SOFTEFA_DEVICES", "3")]);
}

/// A child of `fork` uses the library while its parent's context is open.
#[test]
fn a_forked_child_uses_the_library() {
    run("forked.c", &["posix", "efa", "posix,cma,efa"]);
}

/// Registrations are cached, or are not.
#[test]
fn operations_with_and_without_a_registration_cache() {
    let mut modes = vec!["n", "try"];
    // SAFETY: the call has no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if fd >= 0 {
        modes.push("y");
        // SAFETY: it is this function's descriptor.
        unsafe { libc::close(fd as i32) };
    } else {
        ::ucs::testing::skipped("UCX_RCACHE_ENABLE=y", "no userfaultfd");
    }
    for mode in modes {
        for program in ["one_sided.c", "tagged.c"] {
            run_with(program, &["posix", "efa", "posix,cma"], &[("UCX_RCACHE_ENABLE", mode)]);
        }
    }
}

#[test]
fn memory_and_one_sided_operations() {
    run("one_sided.c", &["posix", "efa", "posix,cma"]);
}

/// Lists of local and remote memory, and what is refused before anything is written.
#[test]
fn puts_and_gets_on_lists() {
    run("lists.c", &["posix", "efa", "posix,cma"]);
}

#[test]
fn active_messages_streams_and_connections() {
    run("messages.c", &["posix", "efa"]);
}

/// Each form of a send, and data that the program keeps, in both thread modes.
#[test]
fn forms_of_active_messages() {
    run("active_messages.c", &["posix", "efa", "self,posix,cma"]);
}

/// Programs that nothing but a descriptor wakes hear of arrivals and of timers.
#[test]
fn sleeps_on_descriptors() {
    run("sleeps.c", &["posix", "efa", "self,posix,cma,efa"]);
}

#[test]
fn closes_of_one_of_two_connections() {
    run("closes.c", &["posix", "efa", "self,posix,cma,efa"]);
}

/// A close after the peer's process was killed.
#[test]
fn closes_without_the_peers_process() {
    run("killed.c", &["posix", "efa", "posix,cma,efa"]);
}

/// Answers behind a close by force, and error handlers that another thread calls.
#[test]
fn endpoints_that_fail() {
    run("failed.c", &["posix", "efa", "self,posix,cma,efa"]);
}

#[test]
fn other_forms_of_operations() {
    run("rest.c", &["posix", "efa"]);
}

#[test]
fn fields_of_parameters_and_attributes() {
    run("attributes.c", &["posix", "efa", "self,posix,cma"]);
    // A fence has something to order.
    run_with("attributes.c", &["efa"], &[("SOFTEFA_REORDER", "0.3")]);
}

#[test]
fn operations_allocate_nothing() {
    if sanitizer_runtime().is_some() {
        // The program counts by an allocator of its own, and the sanitizer has one.
        return;
    }
    run("allocations.c", &["posix", "efa", "self,posix,cma"]);
}

#[test]
fn memory_exported_to_another_process() {
    run("exported.c", &["posix", "posix,cma", "posix,efa"]);
    run_compiled("exported.c", &["posix", "efa", "self"], &[], &["refused"], &[]);
}

/// The programs find no use of freed memory, no access out of bounds, and no leak. Only they are compiled for
/// it: the library's allocations are those of its C allocator, which they replace. `tests/run asan-abi` runs
/// all tests of this file with a library that is compiled for it, too.
#[test]
fn programs_under_the_address_sanitizer() {
    let flag = ASAN;
    let mut gcc = Command::new("gcc");
    gcc.args([flag, "-x", "c", "-o", "/dev/null", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
    let linked = gcc.spawn().and_then(|mut gcc| {
        gcc.stdin.take().expect("piped").write_all(b"int main(void) { return 0; }\n")?;
        gcc.wait()
    });
    if !linked.is_ok_and(|status| status.success()) {
        return ::ucs::testing::skipped("C programs", format!("no gcc with {flag}"));
    }
    for name in PROGRAMS {
        run_compiled(name, &["posix"], &[flag, "-g"], &[], &[]);
    }
    for name in ["uct.c", "uct_peer.c"] {
        let domains = [["self", "memory"], ["posix", "memory"], ["cma", "memory"], ["efa", "softefa0"]];
        for arguments in domains {
            run_compiled(name, &["all"], &[flag, "-g"], &arguments, &[]);
        }
    }
    run_compiled("exported.c", &["posix"], &[flag, "-g"], &["refused"], &[]);
}

/// UCX of the distribution.
const UCX: &str = "/usr/lib/x86_64-linux-gnu/libucp.so.0";

/// Copies of the library, and UCX beside it, work in one process, whichever is closed first.
#[test]
fn copies_in_one_process_do_not_clash() {
    if !has_headers() {
        return;
    }
    let folder = library_folder();
    // UCX replaces functions that the sanitizer has replaced.
    let has_ucx = Path::new(UCX).exists() && sanitizer_runtime().is_none();
    let copies = ["first", "second"].map(|name| {
        let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&copy).expect("a folder for a copy");
        let copy = copy.join("libucp.so.0");
        std::fs::copy(folder.join("libucp.so.0"), &copy).expect("a copy of the library");
        copy
    });
    let run = |program: &Path, tls: &str, files: [&Path; 2], how: &str, folder: Option<&Path>| {
        let mut command = Command::new(program);
        command.args(files).args(["4", how]).env("UCX_TLS", tls).env_remove("LD_LIBRARY_PATH");
        if let Some(folder) = folder {
            command.env("LD_LIBRARY_PATH", folder);
        }
        let output = output_within(command, 120);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{tls} {how} {folder:?}: {}\n{text}", output.status);
        assert!(output.stdout.is_empty(), "nothing on standard output");
    };
    let alone = compile("copies.c", &folder, &["-Wl,--as-needed"]);
    let linked = compile("copies.c", &folder, &["-Wl,--no-as-needed"]);
    for tls in ["posix", "efa", "posix,cma,efa"] {
        run(&alone, tls, [&copies[0], &copies[1]], "together", None);
        // The program has a third one, whose functions are the first that are found.
        run(&linked, tls, [&copies[0], &copies[1]], "together", Some(&folder));
    }
    if has_ucx {
        run(&alone, "posix,cma,self", [Path::new(UCX), &copies[0]], "apart", None);
        run(&alone, "posix,cma,self", [&copies[1], Path::new(UCX)], "apart", None);
    }
}

/// `libuct`, `libucs` and `libucm` hold nothing, and may be opened and closed before `libucp`.
#[test]
fn stubs_are_opened_and_closed_in_any_order() {
    // The program has no runtime of the sanitizer to load the library with.
    if !has_headers() || sanitizer_runtime().is_some() {
        return;
    }
    let folder = library_folder();
    let program = compile("stubs.c", &folder, &["-Wl,--as-needed"]);
    let is_order = |number: &usize| {
        let digits = [number % 4, number / 4 % 4, number / 16 % 4, number / 64];
        (0..4).all(|digit| digits.contains(&digit))
    };
    for order in (0..256).filter(is_order) {
        let mut command = Command::new(&program);
        command.arg(order.to_string()).env("LD_LIBRARY_PATH", &folder);
        let output = output_within(command, 60);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "order {order}: {}\n{text}", output.status);
    }
}

/// Every C program of the tests on `ucp_*` and `ucs_*` functions that ends by itself.
const PROGRAMS: [&str; 28] = [
    "attributes.c",
    "tagged.c",
    "one_sided.c",
    "lists.c",
    "messages.c",
    "active_messages.c",
    "closes.c",
    "failed.c",
    "rest.c",
    "pitfalls.c",
    "bad_input.c",
    "wrong_kind.c",
    "fuzz.c",
    "masks.c",
    "early.c",
    "exported.c",
    "idle.c",
    "refused.c",
    "reordered.c",
    "sleeps.c",
    "forked.c",
    "options.c",
    "pools.c",
    "killed.c",
    "later.c",
    "threads.c",
    "structures.c",
    "classes.c",
];

/// Every C program with a `main` runs under the address sanitizer, but for those named here.
#[test]
fn no_program_is_left_out() {
    let others = [
        // Parts of others, and programs that abort, call nothing of the library, load it themselves, have an
        // allocator of their own, or need an MPI library or libfabric.
        "allocations.c",
        "module.c",
        // They take this project's headers only, or both kinds: `helpers` runs them.
        "arrays.c",
        "shared_table.c",
        // It needs two transports.
        "network_only.c",
        // `consumers` runs it, on UCX as well.
        "bitwise.c",
        "copies.c",
        "stubs.c",
        "check_rules.c",
        "macros.c",
        "mpi.c",
        "mpi_spawn.c",
        "shmem.c",
        "uct.c",
        "uct_peer.c",
        "libfabric_peer.c",
        "libfabric_ucp.c",
    ];
    let files = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")).expect("programs");
    for file in files {
        let name = file.expect("a file").file_name().to_string_lossy().into_owned();
        let is_known = PROGRAMS.contains(&&*name) || others.contains(&&*name);
        assert!(!name.ends_with(".c") || is_known, "{name} does not run under the address sanitizer");
    }
}

#[test]
fn what_programs_rely_on() {
    run("pitfalls.c", &["posix", "efa", "posix,cma"]);
}

#[test]
fn progress_costs_little_while_nothing_happens() {
    run("idle.c", &["posix", "efa", "posix,cma,efa"]);
}

#[test]
fn bad_input_answers_a_status() {
    run("bad_input.c", &["posix"]);
    run("wrong_kind.c", &["posix"]);
    run("fuzz.c", &["posix", "efa"]);
    run("masks.c", &["posix", "efa"]);
}

/// Each refused parameter has a line in the log that says which one.
#[test]
fn refused_parameters_are_named() {
    if !has_headers() {
        return;
    }
    let folder = library_folder();
    let mut command = Command::new(compile("bad_input.c", &folder, &[]));
    command.env("LD_LIBRARY_PATH", &folder).env("UCX_TLS", "posix").env("UCX_TEST_LOG_LEVEL", "error");
    let output = output_within(command, 120);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}", output.status);
    for line in [
        "ucp_init: features is missing",
        "ucp_init: the structure of parameters or attributes is null",
        "a handle or structure is null",
        "param is null",
        "the buffer is null",
        "memory type 1: only memory of the host is supported",
        "the request is null",
        "ucp_tag_recv_nbr: the request is null",
        "ucp_tag_send_nbr: the request is null",
        "the request of the program is null",
        "puts and gets take no datatype of callbacks",
        "ucp_ep_create: the address is null",
        "ucp_ep_create: address is missing",
    ] {
        assert!(log.lines().any(|found| found.ends_with(line)), "no line says {line:?}");
    }
}

/// Each call that `refused.c` makes is refused, with a line of the log at level `error`.
#[test]
fn what_is_refused_is_logged() {
    run("refused.c", &["posix", "efa"]);
    if !has_headers() {
        return;
    }
    let folder = library_folder();
    let ours = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let mut command = Command::new(compile("refused.c", &folder, &[ours]));
    command
        .arg("marks")
        .env("LD_LIBRARY_PATH", &folder)
        .env("UCX_TLS", "posix")
        .env("UCX_TEST_LOG_RATE", "1000");
    command.env("UCX_LOG_LEVEL", "error").env("UCX_TEST_LOG_LEVEL", "error");
    let output = output_within(command, 120);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{log}", output.status);
    let mut lines_before = 0;
    for line in log.lines() {
        if let Some(call) = line.strip_prefix("refused: ") {
            assert!(lines_before > 0, "{call}: no line of the log");
            lines_before = 0;
        } else {
            lines_before += usize::from(line.contains("ERROR"));
        }
    }
}

/// Standard error on a full disk: lines of the log are lost, the program goes on.
#[test]
fn a_log_line_that_cannot_be_written_ends_no_program() {
    if !has_headers() {
        return;
    }
    let folder = library_folder();
    let ours = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    // The name of no setting gives a warning, and each refused call an error.
    for name in ["tagged.c", "refused.c"] {
        let mut command = Command::new(compile(name, &folder, &[ours]));
        command.env("LD_LIBRARY_PATH", &folder).env("UCX_TLS", "posix").env("UCX_POSIX_FIFO_SIZ", "8");
        command.env("UCX_TEST_LOG_LEVEL", "error");
        let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let status = command.stderr(full).status().expect("the program runs");
        assert!(status.success(), "{name}: {status}");
    }
}

/// A call that is refused as unsupported has a line in the log that names it.
#[test]
fn what_is_not_supported_is_named() {
    if !has_headers() {
        return;
    }
    let folder = library_folder();
    let ours = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    for (name, arguments, lines) in [
        (
            "uct.c",
            &["self", "memory"][..],
            &[
                "uct_md_mkey_pack_v2: exported keys are not supported: see ucp_memh_pack",
                "uct_ep_query: endpoints have no socket addresses",
                "uct_md_mem_attach: no memory domain exports keys",
                "flush flags 0x200 are not supported",
                "atomic operation 77 is not supported",
            ][..],
        ),
        (
            "pitfalls.c",
            &[],
            &["ucp_worker_get_efd: the worker reports to the descriptor of the program (event_fd)"],
        ),
        (
            "refused.c",
            &[],
            &[
                "counts and strides of lists are not supported",
                "only puts and gets take remote lists (UCP_OP_ATTR_FIELD_REMOTE)",
            ],
        ),
    ] {
        let mut command = Command::new(compile(name, &folder, &[ours]));
        command.args(arguments).env("LD_LIBRARY_PATH", &folder).env("UCX_TLS", "posix");
        command
            .envs(sanitizer_options(name))
            .env("UCX_LOG_LEVEL", "error")
            .env("UCX_TEST_LOG_LEVEL", "error");
        if name == "pitfalls.c" && sanitizer_runtime().is_none() {
            command.env("MODULE", compile("module.c", &folder, &["-shared", "-fPIC"]));
        }
        let output = output_within(command, 120);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {}\n{log}", output.status);
        for line in lines {
            assert!(log.lines().any(|found| found.ends_with(line)), "{name}: no line says {line:?}");
        }
    }
}

/// Rule of `check_rules.c`, and what `UCX_CHECK=y` says of it. `ADDR` stands for an address.
const RULES: &[(&str, &str)] = &[
    ("worker_as_endpoint", "ucp_tag_send_nbx: ADDR is a worker, not an endpoint"),
    ("context_as_worker", "ucp_worker_progress: ADDR is a context, not a worker"),
    ("request_as_endpoint", "ucp_ep_flush_nbx: ADDR is a request, not an endpoint"),
    ("own_memory_as_worker", "ucp_tag_recv_nbx: ADDR is not a worker of this library"),
    ("own_memory_as_rkey", "ucp_put_nbx: ADDR is not a remote key of this library"),
    ("own_memory_as_datatype", "ucp_tag_send_nbx: ADDR is not a datatype of callbacks of this library"),
    ("freed_worker", "ucp_worker_progress: ADDR is a worker that ucp_worker_destroy has freed"),
    ("closed_endpoint", "ucp_tag_send_nbx: ADDR is an endpoint that ucp_ep_close_nb has freed"),
    ("endpoint_of_a_freed_worker", "ucp_ep_flush_nbx: ADDR is an endpoint that ucp_worker_destroy has freed"),
    ("memory_freed_twice", "ucp_mem_unmap: ADDR is a memory handle that ucp_mem_unmap has freed"),
    ("freed_rkey", "ucp_get_nbx: ADDR is a remote key that ucp_rkey_destroy has freed"),
    ("freed_context", "ucp_context_print_info: ADDR is a context that ucp_cleanup has freed"),
    ("own_memory_as_memory_of_an_operation", "ucp_tag_send_nbx: ADDR is not a memory handle of this library"),
    (
        "freed_memory_of_an_operation",
        "ucp_tag_recv_nbx: ADDR is a memory handle that ucp_mem_unmap has freed",
    ),
    ("freed_config", "ucp_config_print: ADDR is a configuration that ucp_config_release has freed"),
    ("freed_datatype", "ucp_tag_send_nbx: ADDR is a datatype of callbacks that ucp_dt_destroy has freed"),
    ("freed_listener", "ucp_listener_query: ADDR is a listener that ucp_listener_destroy has freed"),
    (
        "connection_request_rejected_twice",
        "ucp_listener_reject: ADDR is a connection request that ucp_listener_reject has freed",
    ),
    (
        "connection_request_accepted_twice",
        "ucp_ep_create: ADDR is a connection request that ucp_ep_create has freed",
    ),
    (
        "uct_configuration_released_twice",
        "uct_config_release: ADDR is a uct configuration that uct_config_release has freed",
    ),
    (
        "components_released_twice",
        "uct_release_component_list: ADDR is no list of components of this library, or it has been released",
    ),
    ("freed_uct_rkey", "put_short: ADDR is a uct remote key that uct_rkey_release has freed"),
    ("own_memory_as_uct_rkey", "get_short: ADDR is not a uct remote key of this library"),
    ("freed_uct_memory", "am_zcopy: ADDR is a uct memory handle that uct_iface_mem_free has freed"),
    ("closed_uct_md", "uct_md_query: ADDR is a memory domain that uct_md_close has freed"),
    ("destroyed_uct_endpoint", "ep_put_short: ADDR is a uct endpoint that uct_ep_destroy has freed"),
    ("uct_endpoint_destroyed_twice", "uct_ep_destroy: ADDR is a uct endpoint that uct_ep_destroy has freed"),
    ("closed_uct_interface", "iface_flush: ADDR is an interface that uct_iface_close has freed"),
    ("uct_endpoint_of_a_closed_interface", "ep_flush: ADDR is a uct endpoint that uct_iface_close has freed"),
    ("destroyed_uct_worker", "uct_worker_progress: ADDR is a uct worker that uct_worker_destroy has freed"),
    (
        "message_received_twice",
        "ucp_tag_msg_recv_nbx: ADDR is a probed message that ucp_tag_msg_recv_nbx has freed",
    ),
    ("message_left_in_the_queue", "ucp_tag_msg_recv_nbx: ADDR is not a probed message of this library"),
    ("request_freed_twice", "ucp_request_free: ADDR is a request that ucp_request_free has freed"),
    (
        "status_of_a_freed_request",
        "ucp_request_check_status: ADDR is a request that ucp_request_release has freed",
    ),
    ("cancel_of_a_freed_request", "ucp_request_cancel: ADDR is a request that ucp_request_free has freed"),
    (
        "freed_request_behind_other_receives",
        "ucp_request_check_status: ADDR is a request that ucp_request_free has freed",
    ),
    (
        "request_freed_while_it_ran_behind_other_receives",
        "ucp_request_free: ADDR is a request that ucp_request_free has freed",
    ),
    (
        "use_of_a_freed_allocated_request_behind_another",
        "ucp_tag_recv_nbx: ADDR is a request that ucp_request_free has freed",
    ),
    ("own_memory_as_request", "ucp_request_check_status: ADDR is not a request of this library"),
    (
        "free_of_a_request_of_the_program",
        "ucp_request_free: ADDR is a request in memory of the program, which the library does not free",
    ),
    (
        "request_of_a_freed_worker",
        "ucp_request_check_status: ADDR is a request that ucp_worker_destroy has freed",
    ),
    (
        "use_of_a_freed_allocated_request",
        "ucp_tag_recv_nbx: ADDR is a request that ucp_request_free has freed",
    ),
    (
        "release_of_data_that_is_not_kept",
        "ucp_am_data_release: ADDR is no data that the program has kept, or it has been released",
    ),
    (
        "receive_of_data_that_is_not_kept",
        "ucp_am_recv_data_nbx: ADDR is no data that the program has kept, or it has been released",
    ),
    (
        "release_of_stream_data_that_is_not_kept",
        "ucp_stream_data_release: ADDR is no data that the program has kept, or it has been released",
    ),
    (
        "key_released_twice",
        "ucp_rkey_buffer_release: ADDR is no packed key of this library, or it has been released",
    ),
    (
        "own_memory_as_packed_address",
        "ucp_worker_release_address: ADDR is no packed address of this library, or it has been released",
    ),
];

/// Whether a text is a line, but for addresses.
fn is_line(text: &str, line: &str) -> bool {
    let Some((before, behind)) = line.split_once("ADDR") else { return text == line };
    let rest = text.strip_prefix("ucp: UCX_CHECK: ").and_then(|text| text.strip_prefix(before));
    let Some(rest) = rest.and_then(|rest| rest.strip_prefix("0x")) else { return false };
    rest.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()) == format!("{behind}\n")
}

#[test]
fn a_broken_rule_ends_the_program_with_one_line() {
    if !has_headers() {
        return;
    }
    let folder = library_folder();
    let program = compile("check_rules.c", &folder, &[]);
    let run = |rule: Option<&str>| {
        let mut command = Command::new(&program);
        command.args(rule).env("LD_LIBRARY_PATH", &folder).env("UCX_TLS", "posix").env("UCX_CHECK", "y");
        // The line is that of the check, not of the log.
        command.env("UCX_LOG_LEVEL", "fatal");
        output_within(command, 60)
    };
    let names = String::from_utf8(run(None).stderr).expect("names");
    let tested: Vec<&str> = RULES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names.lines().collect::<Vec<_>>(), tested, "the program's rules, and those that are tested");
    for (name, line) in RULES {
        let output = run(Some(name));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{name}: {}\n{text}", output.status);
        assert!(is_line(&text, line), "{name}: {text:?} is not {line:?}");
    }
}

/// Checks find nothing in programs that break no rule.
#[test]
fn programs_that_break_no_rule_run_with_checks() {
    for name in [
        "tagged.c",
        "one_sided.c",
        "messages.c",
        "rest.c",
        "pitfalls.c",
        "early.c",
        "lists.c",
        "closes.c",
        "failed.c",
        "threads.c",
        "sleeps.c",
    ] {
        run_with(name, &["posix"], &[("UCX_CHECK", "y")]);
    }
}

/// Names of the functions that a header declares.
fn declared(header: &str) -> Vec<String> {
    let text = std::fs::read_to_string(header).expect("the header is there");
    let mut code = String::new();
    for (at, part) in text.split("/*").enumerate() {
        code += if at == 0 { part } else { part.split_once("*/").map_or("", |(_, behind)| behind) };
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names: Vec<_> = code
        .split('(')
        .filter_map(|before| {
            let before = before.trim_end();
            let at = before.rfind(|c| !is_name(c)).map_or(0, |at| at + 1);
            Some(before[at..].to_owned()).filter(|name| name.starts_with("ucp_"))
        })
        .collect();
    // Made of others by the header.
    names.retain(|name| name != "ucp_init" && !name.starts_with("ucp_dt_make_"));
    names.sort();
    names.dedup();
    names
}

/// Programs that were linked with any release of UCX find the symbols: they have no version, as UCX's.
#[test]
fn exported_symbols_have_no_version() {
    let library = library_folder().join("libucp.so.0");
    let Ok(nm) = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output() else {
        return ::ucs::testing::not_installed("C programs", "no nm (binutils)");
    };
    let text = String::from_utf8_lossy(&nm.stdout);
    let names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(names.len() > 200 && names.contains(&"ucp_tag_send_nbx"), "{names:?}");
    let versioned: Vec<&&str> = names.iter().filter(|name| name.contains('@')).collect();
    assert!(versioned.is_empty(), "{versioned:?}");
}

#[test]
fn every_public_function_is_exported() {
    // The program has no runtime of the sanitizer.
    if !has_headers() || sanitizer_runtime().is_some() {
        return;
    }
    let mut names = declared(HEADER);
    names.extend(declared("/usr/include/ucp/api/ucp_compat.h"));
    // Of later releases.
    names.extend(
        ["dt_query", "memh_pack", "memh_buffer_release", "rkey_compare"].map(|name| format!("ucp_{name}")),
    );
    assert!(names.len() >= 110, "{names:?}");
    let folder = library_folder();
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("all_functions.c");
    let declarations: String = names.iter().map(|name| format!("void {name}(void);\n")).collect();
    let uses: String = names.iter().map(|name| format!("(void*){name}, ")).collect();
    let text = format!("{declarations}void *all[] = {{{uses}}};\nint main(void) {{ return all[0] == 0; }}\n");
    std::fs::write(&source, text).expect("the source is written");
    let gcc = Command::new("gcc")
        .arg("-o")
        .arg(source.with_extension(""))
        .arg(&source)
        .arg(format!("-L{}", folder.display()))
        .args(["-l:libucp.so.0", "-Wl,--no-undefined"])
        .output()
        .expect("gcc runs");
    assert!(gcc.status.success(), "{}", String::from_utf8_lossy(&gcc.stderr));
}
