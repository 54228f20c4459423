//! Start by `srun`, which gives ranks by PMIx, on a Slurm cluster of this host with ports and a folder of its
//! own. Skipped without Slurm; the step `srun` of `tests/run` installs it.

mod common;
use common::{Ran, program};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The node is usually ready after two seconds.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Programs and their Debian packages.
const NEEDS: [(&str, &str); 5] = [
    ("munged", "munge"),
    ("slurmctld", "slurmctld"),
    ("slurmd", "slurmd"),
    ("srun", "slurm-client"),
    ("setpriv", "util-linux"),
];

/// The cluster; its processes die with the test.
struct Cluster {
    folder: PathBuf,
    running: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.wait_until_idle();
        for child in self.running.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Standard output of a command that succeeds.
fn stdout_of(command: &mut Command) -> Option<String> {
    let out = command.stdin(Stdio::null()).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// With the folders of administrators' programs.
fn path() -> String {
    std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin"
}

/// The node is this host, with four processors whatever it has.
fn conf(folder: &Path, host: &str, user: &str) -> String {
    let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (folder, of_slurmctld, of_slurmd) = (folder.display(), port(), port());
    format!(
        "ClusterName=one\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
         AuthType=auth/munge\nAuthInfo=socket={folder}/munge\nStateSaveLocation={folder}/state\n\
         SlurmdSpoolDir={folder}/spool\nTmpFS={folder}/tmp\nSlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n\
         SlurmctldPort={of_slurmctld}\nSlurmdPort={of_slurmd}\nSlurmdParameters=config_overrides\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\nMpiDefault=none\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\nPartitionName=all Nodes={host} Default=YES State=UP\n"
    )
}

impl Cluster {
    /// `None`, with a message, without a Slurm that speaks PMIx.
    fn start() -> Option<Cluster> {
        for (name, package) in NEEDS {
            if !path().split(':').any(|folder| Path::new(folder).join(name).exists()) {
                ucs::testing::not_installed("a job of Slurm", format!("no {name} ({package})"));
                return None;
            }
        }
        let host = stdout_of(Command::new("hostname").arg("-s"))?;
        let user = stdout_of(Command::new("id").arg("-un"))?;
        let folder = std::env::temp_dir().join(format!("perftest-srun-{}", std::process::id()));
        // Munge requires that only the owner may write and everybody may enter.
        for part in ["", "state", "spool", "tmp"] {
            fs::DirBuilder::new().mode(0o755).create(folder.join(part)).unwrap();
        }
        fs::write(folder.join("slurm.conf"), conf(&folder, &host, &user)).unwrap();
        let key = fs::OpenOptions::new().write(true).create_new(true).mode(0o400).open(folder.join("key"));
        let random = fs::File::open("/dev/urandom").unwrap();
        std::io::copy(&mut std::io::Read::take(random, 1024), &mut key.unwrap()).unwrap();
        let mut cluster = Cluster { folder, running: Vec::new() };
        let at = |name: &str| cluster.folder.join(name).display().to_string();
        let munged = format!(
            "munged --foreground --socket={} --key-file={} --log-file={} --pid-file={} --seed-file={}",
            at("munge"),
            at("key"),
            at("munged.log"),
            at("munged.pid"),
            at("seed")
        );
        cluster.spawn(&munged);
        cluster.spawn("slurmctld -D");
        cluster.spawn("slurmd -D");
        if !stdout_of(cluster.command("srun").arg("--mpi=list"))
            .is_some_and(|plugins| plugins.contains("pmix"))
        {
            ucs::testing::not_installed("a job of Slurm", "srun has no pmix (libpmix-dev)");
            return None;
        }
        let deadline = Instant::now() + READY_TIMEOUT;
        while stdout_of(cluster.command("sinfo").args(["-h", "-o", "%T"])).as_deref() != Some("idle") {
            assert!(Instant::now() < deadline, "the node is not ready\n{}", cluster.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(cluster)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("PATH", path()).env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    /// Starts a daemon that dies with the test.
    fn spawn(&mut self, line: &str) {
        let name = line.split(' ').next().unwrap();
        let log = fs::File::create(self.folder.join(name).with_extension("out")).unwrap();
        let mut command = self.command("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(line.split(' ')).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.running.push(command.spawn().unwrap());
    }

    /// A job started while slurmctld still hears of the end of another may not start at all.
    fn wait_until_idle(&self) {
        let deadline = Instant::now() + READY_TIMEOUT;
        while stdout_of(self.command("squeue").arg("-h")).is_some_and(|jobs| !jobs.is_empty())
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn logs(&self) -> String {
        let read = |name| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        ["munged.out", "slurmctld.out", "slurmd.out"].map(read).concat()
    }

    /// Runs `srun OPTIONS ucx-perftest LINE`, without the messages of `srun` itself.
    fn srun(&self, options: &str, line: &str) -> Ran {
        self.wait_until_idle();
        let this = program();
        let mut command = self.command("timeout");
        command.arg("60").arg("srun").args(options.split_whitespace());
        command.arg(this.get_program()).args(line.split_whitespace());
        for (name, _) in this.get_envs() {
            command.env_remove(name);
        }
        let mut ran: Ran = command.stdin(Stdio::null()).output().unwrap().into();
        ran.err = ran
            .err
            .lines()
            .filter(|line| !line.starts_with("srun: "))
            .map(|line| format!("{line}\n"))
            .collect();
        ran
    }
}

#[test]
fn srun_processes_connect_by_pmix() {
    let Some(cluster) = Cluster::start() else { return };

    for tl in ["posix", "efa"] {
        let ran = cluster.srun("--mpi=pmix -n 2", &format!("-q -f -t tag_lat -x {tl} -n 500 --validate"));
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}{}", ran.out, cluster.logs());
        assert_eq!(ran.out.split_whitespace().count(), 8, "{}", ran.out);
        assert_eq!(ran.out.lines().filter(|l| l.contains(" 500 ")).count(), 1, "{}", ran.out);
    }

    let ran =
        cluster.srun("--mpi=pmix -n 3", "--json -T 2 -t tag_bw -s 2000 -n 300 --validate --pattern alltoall");
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{}", ran.out);
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&value["seats"], &value["iterations"]), (&6.into(), &1800.into()), "{}", ran.out);

    let ran = cluster.srun("--mpi=pmix -n 3", "-t tag_lat");
    assert!(
        ran.err.contains("ucx-perftest: the launcher has started 3 processes: pairs need an even number; "),
        "{}",
        ran.err
    );
    assert_eq!(ran.status, 129, "{}", ran.err);

    for mpi in ["none", "pmi2"] {
        let ran = cluster.srun(&format!("--mpi={mpi} -n 2"), "-t tag_lat");
        assert!(ran.err.contains("srun --mpi=pmix, or -P 0"), "--mpi={mpi}: {}", ran.err);
        assert_eq!(ran.status, 129, "{}", ran.err);
    }
}
