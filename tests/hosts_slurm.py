"""A Slurm cluster of the two hosts of tests/hosts: slurmctld on one, slurmd on each."""

import os, subprocess, time

from hosts_net import slowness

NAMES = ("host-a", "host-b")
IPS = ("10.77.0.1", "10.77.0.2")
NEEDS = ["munged", "slurmctld", "slurmd", "srun", "unshare"]
# Folders of administrators' programs.
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
CONF = """ClusterName=two
SlurmctldHost=host-a(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort=47201
SlurmdPort=47202
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
NodeName=host-a NodeAddr=10.77.0.1 CPUs=4 State=UNKNOWN
NodeName=host-b NodeAddr=10.77.0.2 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=host-a,host-b Default=YES State=UP
"""


def with_names(folder, *mounts):
    """Words before a command that make the hosts known by their names, in a mount namespace of its own."""
    path = os.path.join(folder, "hosts")
    with open(path, "w") as f:
        f.write("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for ip, name in zip(IPS, NAMES)))
    binds = [f"mount --bind {what} {where}" for what, where in [(path, "/etc/hosts"), *mounts]]
    return ["sh", "-c", " && ".join([*binds, 'exec "$@"']), "sh"]


def why_not():
    """Why there can be no cluster here, if so: Slurm's daemons change users, which a user namespace of one user forbids."""
    with open("/proc/self/uid_map") as f:
        return "right to be another user (root)" if f.read().split()[-1] == "1" else None


class Cluster:
    """The daemons, each gone with this object. A node's processes are in a pid namespace: they end with its slurmd."""

    def __init__(self, network, folder):
        self.network, self.folder, self.running = network, folder, []
        # Munge requires that only the owner may write and everybody may enter.
        os.chmod(folder, 0o755)
        for part in ["state", "tmp"] + [f"{part}-{name}" for part in ("spool", "tmp") for name in NAMES]:
            os.mkdir(os.path.join(folder, part), 0o755)
        with open(os.open(os.path.join(folder, "key"), os.O_WRONLY | os.O_CREAT, 0o400), "wb") as f:
            f.write(os.urandom(1024))
        with open(os.path.join(folder, "slurm.conf"), "w") as f:
            f.write(CONF.format(folder=folder))
        try:
            parts = {"socket": "munge", "key-file": "key", "log-file": "munge.log", "pid-file": "munge.pid", "seed-file": "seed"}
            self.daemon(0, "munged", "--foreground", *(f"--{option}={folder}/{file}" for option, file in parts.items()))
            self.await_what(lambda: os.path.exists(f"{folder}/munge"), "munged does not start")
            self.daemon(0, "slurmctld", "-D")
            for n, name in enumerate(NAMES):
                self.daemon(n, "slurmd", "-D", "-N", name)
            self.await_what(lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 2", "the nodes are not ready")
        except BaseException:
            self.end()
            raise

    def start(self, n, command, **more):
        """Starts a command on a host, as it is after the start of its slurmd."""
        env = {**os.environ, "PATH": PATH, "SLURM_CONF": f"{self.folder}/slurm.conf", **more.pop("env", {})}
        names = with_names(self.folder, (f"{self.folder}/tmp-{NAMES[n]}", f"{self.folder}/tmp"))
        own = ["unshare", "-m", "-p", "--fork", "--mount-proc", "--kill-child=KILL"]
        return self.network.start(n, own + names + list(command), env=env, **more)

    def daemon(self, n, *command):
        with open(os.path.join(self.folder, f"{command[0]}-{n}.out"), "w") as log:
            self.running.append(self.start(n, command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def ask(self, *command):
        """What a client of the cluster prints."""
        return self.start(0, command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).communicate(timeout=60)[0].strip()

    def await_what(self, is_so, told):
        until = time.monotonic() + 30 * slowness()
        while not is_so():
            if time.monotonic() > until:
                raise OSError(f"{told}\n{self.logs()}")
            time.sleep(0.2)

    def logs(self):
        texts = [open(os.path.join(self.folder, name)).read() for name in sorted(os.listdir(self.folder)) if name.endswith(".out")]
        return "".join(texts)

    def end(self):
        for daemon in reversed(self.running):
            daemon.kill()
            daemon.wait()


def srun(*command):
    """Words that start a process on each node."""
    return ["srun", "-K", "--mpi=pmix", "-N", "2", "-n", "2", "--ntasks-per-node=1", *command]
