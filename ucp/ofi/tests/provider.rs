//! The provider in the system's libfabric: `fi_info`, `fi_pingpong` in two processes, a C program, Open MPI.
//!
//! Skipped where libfabric, its headers or Open MPI are not installed (Debian: libfabric-bin,
//! libfabric-dev, gcc, openmpi-bin, libopenmpi-dev).

mod common;

use std::net::TcpListener;
use std::process::Command;

use ucs::testing::wait_for_listener;

use common::{command, compiled, compiled_for_mpi, end_of, has_program, text};

fn spawn(mut command: Command) -> std::process::Child {
    command.spawn().expect("the program starts")
}

#[test]
fn fi_info_lists_the_provider() {
    if !has_program("fi_info") {
        return;
    }
    for name in ["efa4", "efa"] {
        let mut list = command("fi_info", "posix,efa");
        list.args(["-p", name, "-v"]).env("UCX_OFI_NAME", name);
        let output = end_of(spawn(list), 60);
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        for part in ["type: FI_EP_RDM", "FI_TAGGED", "FI_ORDER_SAS", &format!("prov_name: {name}\n")] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}

#[test]
fn fi_info_without_a_matching_answer_says_why() {
    if !has_program("fi_info") {
        return;
    }
    let mut list = command("fi_info", "posix");
    list.args(["-p", "efa4", "-t", "FI_EP_DGRAM", "-c", "FI_RMA", "-d", "nope"])
        .env("UCX_LOG_LEVEL", "debug");
    let output = end_of(spawn(list), 60);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(
        text.contains("no answer for domain efa4, Dgram endpoints: the hints name domain nope; capabilities 0x4 are not supported"),
        "{text}"
    );
}

/// Names of the providers with endpoints of type `FI_EP_RDM` that this one is part of, as libfabric ranks
/// them.
fn ranked(variable: &str, value: &str) -> Vec<String> {
    let mut list = command("fi_info", "posix");
    list.args(["-t", "FI_EP_RDM"]).env(variable, value);
    let mut names: Vec<_> = text(&end_of(spawn(list), 60))
        .lines()
        .filter_map(|line| line.strip_prefix("provider: "))
        .filter(|name| name.starts_with("efa4"))
        .map(str::to_owned)
        .collect();
    names.dedup();
    names
}

#[test]
fn utility_providers_layer_over_it_only_if_they_shall() {
    if !has_program("fi_info") {
        return;
    }
    assert_eq!(ranked("UCX_OFI_LAYERED", "n"), ["efa4"]);
    for variable in ["UCX_OFI_LAYERED", "FI_EFA4_OFI_LAYERED"] {
        let names = ranked(variable, "y");
        for name in ["efa4;ofi_rxm", "efa4;ofi_rxd"] {
            assert!(names.iter().any(|known| known == name), "{name} in {names:?} by {variable}");
        }
        // libfabric ranks what it does not know last.
        assert_eq!(names.last().map(String::as_str), Some("efa4"), "{names:?}");
    }
}

#[test]
fn the_only_nic_has_a_domain_of_its_name() {
    if !has_program("fi_info") {
        return;
    }
    for (name, is_there) in [("softefa0", true), ("efa4", true), ("softefa7", false)] {
        let mut list = command("fi_info", "posix,efa");
        list.args(["-p", "efa4", "-t", "FI_EP_RDM", "-d", name]);
        let output = end_of(spawn(list), 60);
        let text = text(&output);
        assert_eq!(output.status.success(), is_there, "{name}: {text}");
        assert_eq!(text.matches("domain: ").count(), usize::from(is_there), "{name}: {text}");
    }
}

#[test]
fn endpoints_by_node_and_service() {
    for (tls, form) in [("posix", "0"), ("efa", "0"), ("efa", "12")] {
        run("tests/c/nodes.c", tls, &[form]);
    }
}

#[test]
fn a_bad_configuration_value_is_a_warning() {
    if !has_program("fi_info") {
        return;
    }
    let mut list = command("fi_info", "posix");
    list.args(["-p", "efa4"]).env("UCX_RCACHE_MAX_REGIONS", "many").env("FI_LOG_LEVEL", "warn");
    let output = end_of(spawn(list), 60);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    for log in [" WARN ", "efa4:core:getinfo():0<warn>"] {
        let lines = text.lines().filter(|line| line.contains(log) && line.contains("UCX_RCACHE_MAX_REGIONS"));
        assert_eq!(lines.count(), 1, "{log} in {text}");
    }
}

/// A port that nobody listens on at the moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it has an address").port()
}

/// Exchanges messages of all sizes, whose bytes are checked, between two processes, by each kind of endpoint
/// and of message.
fn all_pingpongs(tls: &str) {
    for ep in ["rdm", "dgram", "msg"] {
        for mode in ["msg", "tagged"] {
            pingpong_by("efa4", tls, ep, mode);
        }
    }
}

/// Exchanges such messages by a provider of this name.
fn pingpong_by(provider: &str, tls: &str, ep: &str, mode: &str) {
    pingpong_on(provider, (tls, "all"), ep, mode);
}

/// As above, with the values of `UCX_TLS` and `UCX_NET_DEVICES`.
fn pingpong_on(provider: &str, (tls, devices): (&str, &str), ep: &str, mode: &str) {
    if !has_program("fi_pingpong") {
        return;
    }
    let number = free_port();
    let port = number.to_string();
    let arguments = ["-p", provider, "-e", ep, "-m", mode, "-S", "all", "-c", "-I", "4"];
    let is_layered = if provider.contains(';') { "y" } else { "n" };
    let mut server = command("fi_pingpong", tls);
    server
        .args(arguments)
        .args(["-B", &port])
        .env("UCX_OFI_LAYERED", is_layered)
        .env("UCX_NET_DEVICES", devices);
    let server = spawn(server);
    wait_for_listener(number);
    let mut client = command("fi_pingpong", tls);
    client
        .args(arguments)
        .args(["-P", &port, "127.0.0.1"])
        .env("UCX_OFI_LAYERED", is_layered)
        .env("UCX_NET_DEVICES", devices);
    let (client, server) = (end_of(spawn(client), 180), end_of(server, 60));
    for output in [&client, &server] {
        let text = text(output);
        let last = if ep == "dgram" { "\n8k " } else { "\n6m " };
        assert!(output.status.success() && text.contains(last), "{ep}, {mode} on {tls}: {text}");
    }
}

#[test]
fn fi_pingpong_over_shared_memory() {
    all_pingpongs("posix");
}

#[test]
fn fi_pingpong_over_connections_below_a_utility_provider() {
    for tls in ["posix", "efa"] {
        pingpong_by("efa4;ofi_rxm", tls, "rdm", "tagged");
    }
}

/// The device of libibverbs, as it is reached by the provider that `tools/install --verbs` builds. These
/// tests run under `softefa run`.
#[cfg(feature = "verbs")]
mod verbs {
    use super::*;

    #[test]
    fn fi_pingpong_through_verbs() {
        for (ep, mode) in [("rdm", "msg"), ("rdm", "tagged"), ("msg", "tagged"), ("dgram", "msg")] {
            pingpong_on("efa4", ("efa", "softefa0:1"), ep, mode);
        }
    }

    /// libfabric's own provider of that name has a device here, too.
    #[test]
    fn the_name_efa_takes_the_place_of_libfabrics_own() {
        if !has_program("fi_info") {
            return;
        }
        for (name, is_ours) in [("efa4", false), ("efa", true)] {
            let mut list = command("fi_info", "efa");
            list.args(["-p", "efa"]).env("UCX_OFI_NAME", name);
            let text = text(&end_of(spawn(list), 60));
            let is_listed = |fabric: &str| text.contains(&format!("    fabric: {fabric}\n"));
            assert_eq!((is_listed("efa4"), is_listed("efa")), (is_ours, !is_ours), "{name}: {text}");
        }
    }
}

#[test]
fn fi_pingpong_over_efa() {
    all_pingpongs("efa");
}

/// `FI_THREAD_SAFE`.
const THREAD_SAFE: &str = "1";
/// `FI_THREAD_DOMAIN`.
const THREAD_DOMAIN: &str = "3";

/// Runs a C program with threading, data progress and address format as numbers of libfabric.
fn run(program: &str, tls: &str, arguments: &[&str]) {
    run_with(program, tls, arguments, &[]);
}

/// As above, with variables of the environment.
fn run_with(program: &str, tls: &str, arguments: &[&str], variables: &[(&str, &str)]) {
    let Some(program) = compiled(program) else { return };
    let mut run = command(program, tls);
    // Its bad calls are logged as errors.
    run.args(arguments).env("UCX_LOG_LEVEL", "fatal").envs(variables.iter().copied());
    let output = end_of(spawn(run), 180);
    assert!(output.status.success(), "{arguments:?} on {tls}, {variables:?}: {}", text(&output));
}

/// Runs the program of two endpoints of one process.
fn rdm(tls: &str, arguments: &[&str]) {
    run("tests/c/rdm.c", tls, arguments);
}

/// Groups of three endpoints: every collective operation, joins, sets of addresses.
#[test]
fn collective_operations() {
    for tls in ["posix", "posix,cma", "efa"] {
        run("tests/c/collective.c", tls, &[]);
    }
    run("tests/c/collective.c", "posix", &[THREAD_DOMAIN]);
}

#[test]
fn memory_of_peers() {
    for tls in ["posix", "posix,cma", "efa"] {
        run("tests/c/rma.c", tls, &[]);
    }
    run("tests/c/rma.c", "posix", &["3", "2"]);
    run("tests/c/rma.c", "posix", &["1", "1"]);
}

/// `mr_mode` of each: none, and that of keys for devices.
#[test]
fn lists_of_as_many_pieces_as_promised() {
    for tls in ["posix", "posix,cma", "efa"] {
        for mode in ["0", "112"] {
            run("tests/c/lists.c", tls, &[mode]);
        }
    }
}

#[test]
fn memory_of_peers_by_keys_of_devices() {
    for tls in ["all", "self,posix,cma,efa"] {
        run("tests/c/rma.c", tls, &[]);
    }
}

/// By keys and addresses of the provider and of the program. Its costs would leave short ones to packets.
#[test]
fn memory_of_a_process_that_sleeps() {
    if let Some(why) = ucp::uct::cma::unavailable_reason() {
        return ucs::testing::skipped("memory of a process that sleeps", why);
    }
    let Some(program) = compiled("tests/c/rma.c") else { return };
    for (tls, mode) in [("posix,cma", "112"), ("posix,cma", "2"), ("all", "112")] {
        let mut run = command(&program, tls);
        run.args(["1", "2", mode, "-", "asleep"]).env("UCX_LOG_LEVEL", "fatal");
        run.env("UCX_MIN_RDMA_PUT", "0").env("UCX_MIN_RDMA_GET", "0");
        let output = end_of(spawn(run), 180);
        assert!(output.status.success(), "{mode} on {tls}: {}", text(&output));
    }
}

/// With a thread that makes progress, as the program asks or as the user says.
#[test]
fn memory_of_a_process_that_sleeps_is_served() {
    let Some(program) = compiled("tests/c/rma.c") else { return };
    for (tls, progress, forced) in [("posix", "1", "n"), ("posix", "2", "y"), ("efa", "2", "y")] {
        let mut run = command(&program, tls);
        run.args(["1", progress, "112", "-", "served"]).env("UCX_LOG_LEVEL", "fatal");
        run.env("UCX_OFI_AUTO_PROGRESS", forced);
        let output = end_of(spawn(run), 180);
        assert!(output.status.success(), "{progress}, {forced} on {tls}: {}", text(&output));
    }
}

#[test]
fn a_peer_that_dies() {
    for tls in ["posix", "posix,cma", "efa"] {
        run("tests/c/death.c", tls, &[]);
        run("tests/c/death.c", tls, &["asleep"]);
    }
}

/// `mr_mode` of each: none, a key of the provider, virtual addresses, `FI_MR_BASIC`, `FI_MR_SCALABLE`.
#[test]
fn memory_of_peers_by_keys_and_offsets_of_the_program() {
    for tls in ["posix,cma", "efa"] {
        for mode in ["0", "64", "16", "1", "2"] {
            run("tests/c/rma.c", tls, &["1", "2", mode]);
        }
    }
}

/// `FI_MR_SCALABLE`, none, `FI_MR_PROV_KEY`, this with virtual addresses, and all bits.
#[test]
fn memory_without_pages_and_the_whole_address_space() {
    for tls in ["posix", "posix,cma", "efa"] {
        for mode in ["2", "0", "64", "80", "112"] {
            run("tests/c/space.c", tls, &[mode]);
        }
    }
}

#[test]
fn counters_of_what_peers_have_done() {
    for tls in ["posix,cma", "efa"] {
        for (progress, mode) in [("2", "112"), ("1", "112"), ("2", "2")] {
            run("tests/c/rma.c", tls, &["1", progress, mode, "events"]);
        }
    }
}

#[test]
fn messages_queues_and_counters() {
    for tls in ["posix", "efa", "posix,cma,self,efa"] {
        rdm(tls, &[]);
    }
}

#[test]
fn connected_endpoints() {
    for tls in ["posix", "efa"] {
        run("tests/c/msg.c", tls, &[]);
    }
}

#[test]
fn aliases_shared_contexts_and_addresses_in_words() {
    for (tls, format) in [("posix", "0"), ("efa", "0"), ("efa", "12")] {
        run("tests/c/contexts.c", tls, &[format]);
    }
}

/// By the minor version of libfabric with which a program was built.
#[test]
fn entries_of_errors() {
    for (tls, minor) in [("posix", "17"), ("posix", "4"), ("efa", "4")] {
        run("tests/c/error_entries.c", tls, &[minor]);
    }
}

#[test]
fn poll_sets_and_wait_sets() {
    let Some(program) = compiled("tests/c/sets.c") else { return };
    for tls in ["posix", "efa"] {
        let mut run = command(&program, tls);
        run.arg(tls).env("UCX_LOG_LEVEL", "error");
        let output = end_of(spawn(run), 180);
        let text = text(&output);
        // A set takes each object for what it is.
        assert!(output.status.success() && !text.contains("not a completion queue"), "{tls}: {text}");
        assert!(!text.contains("not a counter"), "{tls}: {text}");
    }
}

#[test]
fn fi_info_lists_the_keys() {
    if !has_program("fi_info") {
        return;
    }
    let mut list = command("fi_info", "posix");
    list.arg("-e");
    let text = text(&end_of(spawn(list), 60));
    for key in ["FI_EFA4_TLS", "FI_EFA4_NET_DEVICES", "FI_EFA4_CM_TIMEOUT", "FI_EFA4_OFI_AUTO_PROGRESS"] {
        assert!(text.contains(key), "{key} in {text}");
    }
    let mut list = command("fi_info", "posix");
    list.args(["-p", "efa4"]).env_remove("UCX_TLS").env("FI_EFA4_TLS", "no-such-transport");
    assert!(!end_of(spawn(list), 60).status.success());
}

#[test]
fn many_messages_into_one_buffer() {
    for tls in ["posix", "efa"] {
        run("tests/c/multi_recv.c", tls, &[]);
    }
}

/// With threading, data progress and the address format as numbers of libfabric.
#[test]
fn senders_that_are_not_in_the_address_vector() {
    for tls in ["posix", "efa", "self,posix,cma,efa"] {
        run("tests/c/source_err.c", tls, &[]);
    }
    run("tests/c/source_err.c", "efa", &["1", "2", "12"]);
    run("tests/c/source_err.c", "posix", &["3", "2"]);
}

#[test]
fn address_vectors_that_processes_share() {
    for (tls, format) in [("posix", "0"), ("efa", "12")] {
        run("tests/c/shared_av.c", tls, &["1", "2", format]);
    }
}

#[test]
fn datagrams_to_a_receiver_that_makes_no_progress() {
    for tls in ["posix", "efa"] {
        run("tests/c/dgram.c", tls, &[]);
    }
}

#[test]
fn operations_that_are_cancelled() {
    for tls in ["posix", "efa"] {
        run("tests/c/cancel.c", tls, &[]);
    }
}

#[test]
fn receives_that_endpoints_share() {
    for tls in ["posix", "efa"] {
        run("tests/c/shared_recv.c", tls, &[]);
    }
}

#[test]
fn work_that_waits_for_counters() {
    for tls in ["posix", "efa"] {
        for threading in [THREAD_SAFE, THREAD_DOMAIN] {
            run("tests/c/deferred.c", tls, &[threading]);
            run("tests/c/triggered.c", tls, &[threading]);
        }
    }
}

#[test]
fn work_that_waits_while_its_process_makes_no_call() {
    for tls in ["posix", "efa"] {
        run("tests/c/auto_work.c", tls, &[]);
    }
}

#[test]
fn several_contexts_behind_one_address() {
    for tls in ["posix", "efa", "posix,cma,self,efa"] {
        run("tests/c/scalable.c", tls, &["1", "2"]);
    }
    run("tests/c/scalable.c", "posix", &["3", "2"]);
    run("tests/c/scalable.c", "efa", &["1", "1"]);
}

#[test]
fn one_thread_at_a_time() {
    rdm("posix", &[THREAD_DOMAIN]);
}

/// `FI_THREAD_FID`, `FI_THREAD_COMPLETION` and `FI_THREAD_ENDPOINT`, with two threads.
#[test]
fn two_threads_as_modes_permit() {
    for threading in ["2", "4", "5"] {
        run("tests/c/threads.c", "posix", &[threading]);
        run("tests/c/threads.c", "efa", &[threading]);
    }
}

#[test]
fn versions_formats_and_levels_of_completion() {
    for tls in ["posix", "efa"] {
        run("tests/c/forms.c", tls, &[]);
    }
}

/// Two NICs of this host: a domain of both, and one for each.
#[test]
fn domains_of_two_nics() {
    let two = [("SOFTEFA_DEVICES", "2")];
    run_with("tests/c/rma.c", "efa", &[], &two);
    run_with("tests/c/contexts.c", "efa", &["0"], &two);
    run_with("examples/shmem.c", "efa", &[], &two);
    if !has_program("fi_info") {
        return;
    }
    let mut list = command("fi_info", "efa");
    list.args(["-p", "efa4", "-t", "FI_EP_RDM"]).envs(two);
    let text = text(&end_of(spawn(list), 60));
    for domain in ["efa4", "softefa0", "softefa1"] {
        assert_eq!(text.matches(&format!("domain: {domain}\n")).count(), 1, "{domain} in {text}");
    }
}

/// Between hosts there is no shared memory, and nobody tells of a death.
#[test]
fn packets_over_udp() {
    let udp = [("SOFTEFA_UDP", "all")];
    for program in ["tests/c/rdm.c", "tests/c/rma.c", "tests/c/cancel.c", "examples/mpi.c"] {
        run_with(program, "efa", &[], &udp);
    }
    run_with("tests/c/death.c", "efa", &["remote"], &udp);
}

#[test]
fn threads_that_sleep_on_one_endpoint() {
    for tls in ["posix", "efa"] {
        run("tests/c/sleepers.c", tls, &[]);
    }
}

#[test]
fn threads_that_open_close_and_count() {
    for tls in ["posix", "efa"] {
        run("tests/c/threads.c", tls, &[]);
    }
}

#[test]
fn progress_by_a_thread() {
    rdm("posix", &["1", "1"]);
    rdm("efa", &["1", "1"]);
}

#[test]
fn names_of_libfabrics_own_provider() {
    rdm("efa", &["1", "2", "12"]);
}

/// Text that an example prints with a provider on these transports.
fn printed_by_example(name: &str, provider: &str, tls: &str) -> Option<String> {
    let (name, argument) = name.split_once(' ').unwrap_or((name, "rdm"));
    let program = compiled(&format!("examples/{name}.c"))?;
    let mut run = command(program, tls);
    run.arg(argument).env("FI_PROVIDER", provider).env("FI_TCP_IFACE", "lo").env("FI_UDP_IFACE", "lo");
    let output = end_of(spawn(run), 90);
    assert!(output.status.success(), "{name} on {provider}, {tls}: {}", text(&output));
    let is_by_names = name == "pingpong" && argument != "msg" && provider == "efa4";
    assert!(
        !is_by_names || text(&output).contains("found by node and port"),
        "{argument}: {}",
        text(&output)
    );
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether libfabric's own provider of that name has endpoints of this type.
fn has_provider(name: &str, ep_type: &str) -> bool {
    let mut list = command("fi_info", "posix");
    list.args(["-p", name, "-t", ep_type]).env("FI_TCP_IFACE", "lo").env("FI_UDP_IFACE", "lo");
    has_program("fi_info") && end_of(spawn(list), 60).status.success()
}

#[test]
fn examples_print_the_same_with_each_provider() {
    let has_tcp = has_provider("tcp", "FI_EP_RDM");
    let has_udp = has_provider("udp", "FI_EP_DGRAM");
    for (name, last) in [
        ("pingpong", "65536 bytes: 50 round trips, data as sent\n"),
        ("pingpong msg", "65536 bytes: 50 round trips, data as sent\n"),
        ("pingpong dgram", "1024 bytes: 50 round trips, data as sent\n"),
        ("mpi", "lock and unlock: as expected\n"),
        ("shmem", "shmem_double_swap: as expected\n"),
        ("shmem scalable", "shmem_double_swap: as expected\n"),
    ] {
        let Some(expected) = printed_by_example(name, "efa4", "posix") else { return };
        assert!(expected.ends_with(last), "{name}: {expected}");
        assert_eq!(printed_by_example(name, "efa4", "efa").as_deref(), Some(&*expected), "{name}");
        let (other, is_there) = if name == "pingpong dgram" { ("udp", has_udp) } else { ("tcp", has_tcp) };
        if is_there {
            assert_eq!(printed_by_example(name, other, "posix").as_deref(), Some(&*expected), "{name}");
        }
    }
}

/// Runs tests of the MPI program of `ucp/abi` on two processes of the system's Open MPI, which uses
/// libfabric.
fn open_mpi(tls: &str) {
    let Some(program) = compiled_for_mpi("mpi.c") else { return };
    let mut job = command("mpirun.openmpi", tls);
    job.args(["-n", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    // Messages go through `mtl ofi`, windows through `btl ofi`.
    let messages = [("pml", "cm"), ("mtl", "ofi"), ("mtl_ofi_provider_include", "efa4")];
    let windows = [
        ("btl", "ofi,self"),
        ("btl_ofi_provider_include", "efa4"),
        ("btl_ofi_mode", "2"),
        ("osc", "rdma"),
        ("osc_rdma_btls", "ofi"),
    ];
    for (name, value) in messages.into_iter().chain(windows) {
        job.args(["--mca", name, value]);
    }
    // Other accumulates and fetches end in Open MPI's own `btl ofi` (docs/ofi.md).
    let tests = "library lengths forms reductions collectives fence locks pscw requests shared-locks dynamic \
                 accumulate-operations";
    let count = tests.split_whitespace().count();
    job.arg(program).args(tests.split_whitespace());
    job.env("EXPECT_LIBRARY", "libucp_ofi.so").env("UCX_LOG_LEVEL", "warn");
    let output = end_of(spawn(job), 90);
    let text = text(&output);
    assert!(
        output.status.success() && text.contains(&format!("all is well: {count} tests")),
        "{tls}: {text}"
    );
}

#[test]
fn open_mpi_over_both_transports() {
    open_mpi("posix,cma");
    open_mpi("efa");
}
