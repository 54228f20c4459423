//! Start by `mpirun` (Open MPI), which gives ranks by PMIx. Tests that need it are skipped without it; the
//! step `launcher` of `tests/run` installs it.

mod common;
use common::{Ran, program, run_with};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs under `mpirun -n COUNT`; `None` if there is none.
fn mpirun(count: u32, line: &str) -> Option<Ran> {
    mpirun_with("--oversubscribe", count, line)
}

fn mpirun_with(options: &str, count: u32, line: &str) -> Option<Ran> {
    let this = program();
    let mut command = Command::new("timeout");
    command.args(["60", "mpirun", "--allow-run-as-root", "-n", &count.to_string()]).args(options.split(' '));
    command.arg(this.get_program()).args(line.split_whitespace());
    for (name, _) in this.get_envs() {
        command.env_remove(name);
    }
    let there = Command::new("mpirun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        ucs::testing::not_installed("a job of mpirun", "no mpirun (openmpi-bin)");
        return None;
    }
    // Runs that end and begin at once would remove each other's folder.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let sessions = format!("mpirun-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let sessions = std::env::temp_dir().join(sessions);
    std::fs::create_dir_all(&sessions).unwrap();
    command.env("OMPI_MCA_orte_tmpdir_base", &sessions);
    let ran = command.stdin(Stdio::null()).output().unwrap();
    std::fs::remove_dir_all(sessions).unwrap();
    Some(ran.into())
}

#[test]
fn launcher_runs_a_pair_and_last_rank_prints() {
    let Some(ran) = mpirun(2, "-q -f -t am_lat -x posix -n 500 --validate") else { return };
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}", ran.out);
    // One pair has all columns.
    assert_eq!(ran.out.split_whitespace().count(), 8, "{}", ran.out);
    assert_eq!(ran.out.lines().filter(|l| l.contains(" 500 ")).count(), 1, "{}", ran.out);
}

#[test]
fn many_processes_of_several_threads() {
    let Some(ran) = mpirun(3, "--json -T 2 -t tag_bw -s 2000 -n 300 --validate --pattern alltoall") else {
        return;
    };
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}", ran.out);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&value["seats"], &value["iterations"]), (&6.into(), &1800.into()), "{}", ran.out);
}

#[test]
fn processes_bound_to_own_cores_do_not_yield() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return ucs::testing::skipped("processes bound to own cores", "there is one core");
    }
    let line = "--json -t am_lat -x posix -n 300 --procs 2";
    for (options, shared) in [("--bind-to core", false), ("--bind-to none", false)] {
        let Some(ran) = mpirun_with(options, 2, line) else { return };
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{options}: {}", ran.out);
        let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(value["run"]["yields"], shared, "{options}: {value}");
    }
    let more = 2 * std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let Some(ran) = mpirun(more, "--json -t am_lat -x posix -n 300") else { return };
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value["run"]["yields"], true, "{value}");
    let Some(ran) = mpirun(2, "-t tag_lat --procs 4") else { return };
    assert!(ran.err.contains("--procs 4: the launcher has started 2\n"), "{}", ran.err);
    assert_eq!(ran.status, 129);
}

#[test]
fn errors_are_reported_under_launcher() {
    let Some(ran) = mpirun(3, "-t tag_lat") else { return };
    assert!(
        ran.err.contains("ucx-perftest: the launcher has started 3 processes: pairs need an even number; "),
        "{}",
        ran.err
    );
    assert_eq!(ran.status, 129, "{}", ran.err);
    let Some(ran) = mpirun(2, "-t am_lat -x posix -d eth0 -f -q") else { return };
    assert!(ran.err.contains("transport 'posix' has no device 'eth0' (there are: memory)\n"), "{}", ran.err);
    assert_eq!((ran.status, ran.out.as_str()), (255, ""), "{}", ran.err);
}

#[test]
fn batch_with_and_without_threads_runs_under_launcher() {
    let file = std::env::temp_dir().join(format!("perftest-launcher-{}", std::process::id()));
    let text =
        "a -t tag_lat\nb -t tag_lat -T 2\nc -t am_lat -D short -s 1m\nd -t tag_bw -m cuda\ne -t tag_bw\n";
    std::fs::write(&file, text).unwrap();
    let ran = mpirun(2, &format!("--json -x posix -n 300 -V -b {}", file.display()));
    std::fs::remove_file(file).unwrap();
    let Some(ran) = ran else { return };
    let labels: Vec<serde_json::Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["label"].clone())
        .collect();
    assert_eq!(labels, ["a", "b", "e"], "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("c: am_lat: posix/memory cannot do short of 1048576 bytes"), "{}", ran.err);
    assert!(ran.err.contains("2 of 5 tests could not be done"), "{}", ran.err);
    assert_eq!(ran.status, 255);
}

#[test]
fn srun_without_pmix_is_an_error() {
    let vars = [("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")];
    let ran = run_with("-t tag_lat", &vars);
    assert_eq!((ran.status, ran.err.lines().count()), (129, 1), "{}", ran.err);
    assert!(ran.err.contains("srun --mpi=pmix, or -P 0"), "{}", ran.err);
    let ran = run_with("-l -x self -t am_lat -n 100", &vars);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "what needs no launcher asks none");
}

#[test]
fn silent_launcher_is_an_error() {
    let vars = [("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "nobody")];
    let ran = run_with("-t tag_lat", &vars);
    assert_eq!((ran.status, ran.err.lines().count()), (255, 1), "{}", ran.err);
    assert!(ran.err.contains("-P 0"), "{}", ran.err);
    let ran = run_with("-l -x self -t am_lat -n 100", &vars);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "what needs no launcher asks none");
}
