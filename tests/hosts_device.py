"""The software EFA device between the two hosts of tests/hosts: this project's traffic program, and stock programs."""

import json, os, shutil, subprocess, tempfile, time

import hosts_slurm
from hosts_net import HOSTS_V6, PATIENCE, by_sender, slowness, told_if_other, traffic_rows, wait_for

SECRET = "the secret of tests/hosts"
NET = "10.77.0.0/24"
NET_V6 = "fd77::/64"
PINGPONG_PORT = 47592

# What a relay does to datagrams: end of the row's name, what stands in the table, the network, and the share of the messages
# each way: half, so that both ways make the number; or a twentieth, unless rows are run whole.
RELAYS = [
    ("", "relay", {}, 0.5),
    ("-loss", "1 % lost", {"loss": 0.01}, 0.5),
    ("-loss-5", "5 % lost", {"loss": 0.05}, 0.5),
    ("-loss-20", "20 % lost", {"loss": 0.20}, 0.05),
    ("-reorder", "10 % overtaken", {"reorder": 0.10}, 0.5),
    ("-double", "1 % repeated, 1 % corrupted", {"double": 0.01, "corrupt": 0.01}, 0.5),
    ("-repeat", "1 % repeated", {"double": 0.01}, 0.5),
    ("-corrupt", "1 % corrupted", {"corrupt": 0.01}, 0.5),
    ("-delay", "10 ms late", {"delay": 0.010}, 0.5),
    ("-rate", "1 Gbit/s", {"rate": 1e9}, 0.5),
]
ALL = ("-all", "5 % lost, 10 % overtaken, 1 % repeated, 1 % corrupted, 10 ms late, 1 Gbit/s; sealed",
       {"loss": 0.05, "reorder": 0.10, "double": 0.01, "corrupt": 0.01, "delay": 0.010, "rate": 1e9, "secret": True}, 0.05)


def relayed(name, relays):
    """Rows of that name, one for each of these relays."""
    return [(name + end, *row) for end, *row in relays]


# Name, what stands in the table, the network, and the share.
TRAFFIC = [
    ("device-veth", "veth, nothing in between", None, 0.5),
    ("device-v6", "veth, IPv6", None, 0.5),
    ("device-v6-hosts", "veth, IPv6 addresses that differ in their first 96 bits", None, 0.5),
    *relayed("device", RELAYS),
    ("device-tbf", "veth, 1 Gbit/s by the kernel's tbf", {"tbf": "1gbit", "rate": 1e9}, 0.5),
    ("device-get", "veth, a device that does not write: the target reads what is put", None, 0.5),
    *relayed("device", [ALL]),
]
# Name, what stands in the table, the network.
STOCK = [
    ("pingpong", "`fi_pingpong -p efa -e rdm -m tagged -c`, veth", None),
    ("pingpong-loss", "the same, 1 % lost", {"loss": 0.01}),
    ("pingpong-user", "the same under `softefa run --net 10.77.0.0/24` alone: both hosts are of one user, veth", None),
    ("mpi", "Open MPI (`mtl ofi`), `mpi_check`, 2 ranks, veth", None),
    ("mpi-loss", "the same, 1 % lost", {"loss": 0.01}),
    ("mpi-secret", "the same, 1 % lost, the secret from the launcher", {"loss": 0.01}),
    ("perftest", "`ucx-perftest -t tag_bw` by mpirun, the secret from the launcher, veth", None),
    ("perftest-loss", "the same, 1 % lost", {"loss": 0.01}),
    ("ring", "the example `pmix_ring` by mpirun, the secret from the launcher, veth", None),
    ("example-pgas", "the example `pgas`, which is a PGAS on `uct`, by mpirun, the secret from the launcher, veth", None),
    ("example-mpi", "the example `mpi` by mpirun, the secret from the launcher, veth", None),
    ("srun", "`ucx-perftest -t tag_bw` by srun on two nodes, the secret from the launcher, veth", None),
    ("srun-loss", "the same, 1 % lost", {"loss": 0.01}),
    ("srun-ring", "the example `pmix_ring` by srun on two nodes, the secret from the launcher, veth", None),
    ("srun-pgas", "the example `pgas` by srun on two nodes, the secret from the launcher, veth", None),
    ("srun-mpi", "Open MPI (`mtl ofi`), `mpi_check`, by srun on two nodes, the secret from the launcher, veth", None),
]
QUICK = ["device-v6-hosts", "device-loss", "device-all", "pingpong-loss", "mpi-secret", "perftest-loss", "srun-loss"]


def missing(name):
    """Program that a stock row needs and that is not here."""
    wanted = {"pingpong": ["fi_pingpong"], "mpi": ["mpirun.openmpi", "mpicc.openmpi"], "perftest": ["mpirun.openmpi", "unshare"],
              "ring": ["mpirun.openmpi", "unshare"], "example": ["mpirun.openmpi", "unshare"],
              "srun": hosts_slurm.NEEDS, "srun-mpi": hosts_slurm.NEEDS + ["mpicc.openmpi"]}
    for program in ["nsenter"] + (wanted.get(name) or wanted[name.split("-")[0]]):
        if not shutil.which(program, path=hosts_slurm.PATH):
            return program
    if name.startswith("srun"):
        return hosts_slurm.why_not()
    if name.startswith("mpi"):
        header = subprocess.run(["mpicc.openmpi", "-E", "-x", "c", "-"], input="#include <mpi.h>", text=True,
                                capture_output=True)
        return "mpi.h of Open MPI" if header.returncode else None
    return None


class Secret:
    """File with the secret of a row, gone afterwards; or nothing."""

    def __init__(self, net):
        self.path = None
        if (net or {}).get("secret"):
            fd, self.path = tempfile.mkstemp()
            os.write(fd, SECRET.encode())
            os.close(fd)

    def keys(self):
        return {"SOFTEFA_SECRET_FILE": self.path} if self.path else {"SOFTEFA_INSECURE": "y"}

    def options(self):
        return ["--secret-file", self.path] if self.path else ["--insecure"]

    def close(self):
        if self.path:
            os.unlink(self.path)


def waiting(net):
    """Option of processes that wait for the network most of the time: they leave the cores to others."""
    return ["--sleep"] if net and (net.get("delay") or net.get("loss", 0) >= 0.05) else []


def run_traffic(row, folder, messages, seed, limit, make, is_whole):
    """Runs the traffic program. Returns the counters of the row; a failure counts every message as lost."""
    name, about, net, share = row
    messages, limit = max(200, int(messages * (0.5 if is_whole else share))), limit * slowness()
    wanted = max(1, messages // 5)
    network, secret, run = make(net, seed), Secret(net), None
    command = [os.path.join(folder, "traffic"), "--tls", "efa", "--unpinned", "--json", "-n", str(messages), "--rma",
               str(wanted), "--seed", str(seed)]
    command += waiting(net)
    keys = {**PATIENCE, **secret.keys()}
    really = network.really(about) if hasattr(network, "hosts") else by_sender(net)
    if hasattr(network, "hosts"):
        keys["SOFTEFA_NET"] = NET_V6 if name.endswith("-v6") else NET
        if name == "device-v6-hosts":
            # Each takes its own address in the network, and finds the other one by the list.
            keys |= {"SOFTEFA_NET": "fd78::/64", "SOFTEFA_UDP_HOSTS": ",".join(HOSTS_V6)}
        command += ["--launcher", f"nsenter -t {network.hosts[1]} -n -u --"]
        if name == "device-get":
            keys |= {"SOFTEFA_GEN": "efa1", "UCX_MIN_READ_WRITE": "0"}
    else:
        # No relay stands between devices of one host: the sender loses.
        keys["SOFTEFA_UDP"], keys["SOFTEFA_UDP_LOSS"] = "all", str((net or {}).get("loss", 0))
    try:
        run = network.start(0, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **keys})
        code, out, err = wait_for(run, limit)
    finally:
        if run:
            run.kill()
            run.wait()
        network.close()
        secret.close()
    total = {"messages": 0, "rma": 0, "mb": 0.0, "seconds": float(limit), "lost": 2 * messages}
    if code == 0:
        got = json.loads(out)
        rma = sum(sum(got[side]["rma"].values()) for side in ("parent", "child"))
        total = {"messages": got["messages"], "rma": rma, "mb": got["bytes"] / 1e6, "seconds": got["seconds"], "lost": 0}
    total["about"] = really
    if code:
        print(f"{name}: exit code {code}\n{err.strip()}", flush=True)
    print(f"{name:14} {told_if_other(about, really)}{total['messages']} messages, {total['rma']} puts, gets and atomics checked; {total['mb']:.0f} MB of "
          f"messages, {total['seconds']:.1f} s", flush=True)
    return total


MCA = {"pml": "cm", "mtl": "ofi", "mtl_ofi_provider_include": "efa", "btl": "^vader,tcp,openib,uct", "osc": "^ucx"}


def of_ucp():
    """Settings of a program that uses the device through ucp, with a secret from its launcher."""
    return {"UCX_TLS": "efa", "SOFTEFA_NET": NET, "SOFTEFA_JOB_SECRET": "pmix", **PATIENCE}


def own_program(name, folder, is_quick):
    """A program of this project that a launcher starts on each host."""
    if name.endswith("ring"):
        return [os.path.join(folder, "examples/pmix_ring")]
    if name.endswith("-pgas"):
        return [os.path.join(folder, "examples/pgas"), "2", "efa", "softefa0"]
    if name == "example-mpi":
        return [os.path.join(folder, "examples/mpi")]
    return [os.path.join(folder, "ucx-perftest"), "-t", "tag_bw", "-s", "65536", "--validate", "-n", "200" if is_quick else "2000"]


def mpi_check(work):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = os.path.join(work, "mpi_check")
    subprocess.run(["mpicc.openmpi", "-O1", "-o", program, os.path.join(root, "tests/c/mpi_check.c")], check=True,
                   stderr=subprocess.DEVNULL)
    return program


def start_srun(name, cluster, folder, work, is_quick, **more):
    """Starts a process on each node of a cluster."""
    if name == "srun-mpi":
        softefa = [os.path.join(folder, "softefa"), "run", "--net", NET, "--job-secret", "pmix", "--"]
        keys = {f"OMPI_MCA_{key}": value for key, value in MCA.items()} | {"FI_EFA_ENABLE_SHM_TRANSFER": "0"}
        return cluster.start(0, hosts_slurm.srun(*softefa, mpi_check(work)), env=keys, **more)
    return cluster.start(0, hosts_slurm.srun(*own_program(name, folder, is_quick)), env=of_ucp(), **more)


def stock_commands(name, network, folder, device, work, is_quick):
    """Commands of the two hosts; the second may be none."""
    softefa = [os.path.join(folder, "softefa"), "run", *device, "--"]
    if name.startswith("pingpong"):
        sizes = ["-S", "65536", "-I", "20"] if is_quick else ["-S", "all", "-I", "10"]
        program = ["fi_pingpong", "-p", "efa", "-e", "rdm", "-m", "tagged", "-c", *sizes]
        return [softefa + program, softefa + program + ["10.77.0.1"]]
    # Open MPI starts its daemon at the other host by this agent: host, then the command for a shell.
    agent = os.path.join(work, "agent")
    with open(agent, "w") as f:
        f.write(f'#!/bin/sh\nshift\nexec nsenter -t {network.hosts[1]} -n -u -- sh -c "$*"\n')
    os.chmod(agent, 0o755)
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--host", "10.77.0.1:1,10.77.0.2:1", "-n", "2", "--mca", "plm_rsh_agent", agent,
              "--mca", "oob_tcp_if_include", NET]
    if name in ("perftest", "perftest-loss", "ring", "example-pgas", "example-mpi"):
        # Processes of ucx-perftest meet by host name. The launcher passes on a secret.
        set_up = ["unshare", "-m", *hosts_slurm.with_names(work)]
        keys = [word for key, value in of_ucp().items() for word in ("-x", f"{key}={value}")]
        return [set_up + mpirun + keys + own_program(name, folder, is_quick), None]
    program = mpi_check(work)
    options = [word for key, value in MCA.items() for word in ("--mca", key, value)]
    if name == "mpi-secret":
        # Each process asks the launcher, which has started `softefa run`.
        return [mpirun + options + softefa + [program], None]
    return [softefa + mpirun + options + [program], None]


def run_stock(row, folder, seed, limit, make, is_quick):
    """Runs a stock program. Returns whether it passed, and its seconds; `None` if it is not installed."""
    name, _, net = row
    absent = missing(name)
    if absent:
        print(f"{name:14} not run: there is no {absent}", flush=True)
        return None
    network, ends, outs, passed, cluster = make(net, seed), [], [], False, None
    start, limit = time.monotonic(), limit * slowness()
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        device = ["--net", NET] + {"mpi-secret": ["--job-secret", "pmix"], "pingpong-user": []}.get(name, ["--insecure"])
        env = {**os.environ, **PATIENCE, "FI_EFA_ENABLE_SHM_TRANSFER": "0", "TMPDIR": work}
        try:
            if name.startswith("srun"):
                cluster = hosts_slurm.Cluster(network, work)
                ends.append(start_srun(name, cluster, folder, work, is_quick, **options))
            else:
                for n, command in enumerate(stock_commands(name, network, folder, device, work, is_quick)):
                    if command:
                        ends.append(network.start(n, command, env=env, **options))
                    if n == 0 and name.startswith("pingpong"):
                        network.wait_for_listener(0, PINGPONG_PORT, start + limit)
            codes = []
            for end in ends:
                code, out, _ = wait_for(end, max(0.1, start + limit - time.monotonic()))
                codes.append(code)
                outs.append(out if code == 0 else f"{out}exit code {code}\n")
            passed = not any(codes)
        except OSError as e:
            outs.append(f"{e}\n")
        finally:
            for end in ends:
                end.kill()
                end.wait()
            if cluster:
                outs.append("" if passed else cluster.logs())
                cluster.end()
            network.close()
    seconds = time.monotonic() - start
    if not passed:
        print("".join(outs).strip(), flush=True)
    print(f"{name:14} {'passed' if passed else 'FAILED'}, {seconds:.1f} s", flush=True)
    return {"passed": passed, "seconds": seconds}


def traffic_table(rows, messages, is_whole):
    """Table for docs/usnic.md."""
    share = "" if is_whole else " (a tenth with 20 % lost and in the last row)"
    lines = [f"The software EFA device, {messages} tagged messages up to 1 MiB, half of them each way{share}, "
             "and at the same time a fifth as many puts and gets, and two fifths as many atomics, all checked "
             "(`traffic --tls efa --rma`):", ""]
    return lines + traffic_rows(rows)


def stock_table(rows):
    """Table for docs/usnic.md."""
    lines = ["Stock programs of Debian 12 under `softefa run --net 10.77.0.0/24 --insecure`, and `ucx-perftest`:", "",
             "| Program, network | Outcome | Seconds |", "|---|---|---|"]
    return lines + [f"| {row[1]} | {'passed' if got['passed'] else 'failed'} | {got['seconds']:.1f} |" for row, got in rows if got]
