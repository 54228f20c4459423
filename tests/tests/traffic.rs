//! Short runs of two-process traffic, and errors of bad options.

use std::process::{Command, Output};

fn traffic(args: &[&str], env: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_traffic"))
        .args(args)
        .envs(env.iter().copied())
        .output()
        .expect("traffic starts")
}

fn passes(args: &[&str], env: &[(&str, &str)]) -> serde_json::Value {
    let out = traffic(&[&["--unpinned", "--json"], args].concat(), env);
    assert!(out.status.success(), "{args:?} {env:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("one JSON object")
}

#[test]
fn posix_every_protocol() {
    let run = passes(&["--tls", "posix", "-n", "5000"], &[]);
    for side in ["parent", "child"] {
        assert_eq!(run[side]["messages"], 5000);
        for protocol in ["eager", "medium", "long"] {
            assert!(run[side]["sent"][protocol].as_u64().is_some_and(|n| n > 0), "{protocol}: {run}");
        }
        assert!(
            run[side]["truncated"].as_u64() > Some(0) && run[side]["late_blocks"].as_u64() > Some(0),
            "{run}"
        );
    }
}

#[test]
fn efa_with_reordering() {
    let run = passes(&["--tls", "efa", "-n", "5000"], &[("SOFTEFA_REORDER", "0.2"), ("SOFTEFA_SEED", "7")]);
    assert!(run["parent"]["out_of_order"].as_u64() > Some(0), "{run}");
    assert!(run["child"]["out_of_order"].as_u64() > Some(0), "{run}");
}

#[test]
fn puts_gets_and_atomics() {
    for (tls, env) in [("posix", &[][..]), ("efa", &[("SOFTEFA_REORDER", "0.2")])] {
        let run = passes(&["--tls", tls, "-n", "500", "--rma", "300", "--launcher", "env RMA=y"], env);
        for side in ["parent", "child"] {
            let rma = &run[side]["rma"];
            assert!(rma["puts"] == 304 && rma["gets"] == 304 && rma["atomics"] == 627, "{tls}: {rma}");
        }
    }
}

#[test]
fn three_processes_talk_all_to_all() {
    for (tls, env) in [("posix", &[][..]), ("efa", &[("SOFTEFA_REORDER", "0.2")])] {
        let run =
            passes(&["--tls", tls, "-n", "500", "--rma", "100", "--with", "", "--with", "env A=b"], env);
        let all = run["processes"].as_array().expect("a list");
        assert_eq!((all.len(), &run["messages"]), (3, &3000.into()), "{run}");
        for one in all {
            let rma = &one["rma"];
            assert_eq!(
                (&one["messages"], &rma["puts"], &rma["gets"]),
                (&1000.into(), &224.into(), &224.into()),
                "{run}"
            );
        }
    }
}

#[test]
fn processes_sleep_until_something_comes() {
    for (tls, env) in [("posix", &[][..]), ("efa", &[("SOFTEFA_RNR", "0.05")])] {
        passes(&["--tls", tls, "-n", "1000", "--rma", "100", "--sleep"], env);
        passes(&["--tls", tls, "-n", "200", "--sleep", "--with", "", "--with", ""], env);
    }
}

#[test]
fn narrow_windows_and_short_queues() {
    passes(&["--tls", "posix", "-n", "1000", "--window", "1"], &[("UCX_POSIX_FIFO_SIZE", "2")]);
    let queues = [("UCX_EFA_TX_QUEUE_LEN", "2"), ("UCX_EFA_RX_QUEUE_LEN", "2"), ("SOFTEFA_RNR", "0.05")];
    passes(&["--tls", "efa", "-n", "1000", "--window", "3"], &queues);
}

#[test]
fn runs_that_end_within_a_block() {
    for n in ["0", "1", "31", "65"] {
        passes(&["--tls", "posix", "-n", n], &[]);
    }
}

#[test]
fn unknown_transport_prints_one_line() {
    let out = traffic(&["--tls", "tcp", "-n", "1"], &[]);
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.lines().next().is_some_and(|line| line.contains("tcp") && line.contains("posix")), "{said}");
}
