"""What befalls hosts and the network between the two hosts of tests/hosts, and what `softefa doctor` says of it."""

import os, re, select, signal, socket, struct, subprocess, tempfile, threading, time

from hosts_net import PAUSES, slowness

SECRETS = ("the secret of tests/hosts", "the secret of another job")
IPS = ("10.77.0.1", "10.77.0.2")
PORTS = "47100-47107"
LEN = 4000
# Counters of datagrams that are dropped since they do not authenticate.
REFUSED = ("malformed", "forged", "unknown", "strangers", "stray", "cookies_refused", "repeated", "old")


class Fault(Exception):
    """An outcome that is not the expected one."""


class Hosts:
    """Programs on the two hosts of a network, ended with it."""

    def __init__(self, network, folder, work):
        self.network, self.folder, self.work, self.running = network, folder, work, []
        self.keys = {"SOFTEFA_NET": "10.77.0.0/24", "SOFTEFA_INSECURE": "y", "SOFTEFA_UDP_PORTS": PORTS}

    def secret(self, nth):
        path = os.path.join(self.work, f"secret-{nth}")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write(SECRETS[nth])
        return path

    def start(self, host, *command, **keys):
        env = {name: value for name, value in os.environ.items() if not name.startswith("SOFTEFA_")}
        run = self.network.start(host, list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 env={**env, **self.keys, **keys})
        run.paused_before = PAUSES.total
        self.running.append(run)
        return run

    def ip(self, host, *args):
        done = subprocess.run(["nsenter", "-t", str(self.network.hosts[host]), "-n", "ip", *args], capture_output=True,
                              text=True)
        if done.returncode:
            raise Fault(f"ip {' '.join(args)}: {done.stderr.strip()}")

    def peer(self):
        return os.path.join(self.folder, "examples/udp_peer")

    def serve(self, host=1, **keys):
        """Starts a receiver. Returns it, and the words that name it to a sender."""
        server = self.start(host, self.peer(), "serve", **keys)
        if not select.select([server.stdout], [], [], 20)[0]:
            raise Fault("the receiver does not start")
        line = server.stdout.readline()
        if not line.startswith("fe80"):
            raise Fault(f"the receiver: {line}{server.communicate()[0]}")
        return server, line.split()

    def send(self, to, seconds, length=LEN, **keys):
        return self.start(0, self.peer(), "send", *to, str(length), str(seconds), **keys)

    def counters(self, server):
        """Counters of a receiver: a dictionary of each part. That of `clock` tells how the clock of the day was set."""
        server.stdin.write("\n")
        server.stdin.flush()
        parts, patience = {}, threading.Timer(20 * slowness(), server.kill)
        patience.start()
        for line in server.stdout:
            if line == "end\n":
                break
            # Others are lines of the log.
            found = re.fullmatch(r"([a-z ]+): (.+) (-?\d+)\n", line)
            if found:
                parts.setdefault(found[1], {})[found[2]] = int(found[3])
        patience.cancel()
        expect("clock" in parts, f"the receiver tells no counters: {parts}")
        return parts

    def dropped_by_kernel(self, host):
        """Datagrams that found a full socket buffer on a host, and those that no socket took."""
        with open(f"/proc/{self.network.hosts[host]}/net/snmp") as f:
            names, counts = [line.split()[1:] for line in f if line.startswith("Udp:")]
        counts = dict(zip(names, map(int, counts)))
        return counts["RcvbufErrors"] + counts["NoPorts"]

    def end(self):
        for run in self.running:
            run.kill()
            run.wait()


def outcome(sender, limit):
    """What a sender says at its end: messages, status, longest wait, time of the end. Of the wait, pauses of the machine are taken off."""
    limit = int(limit * slowness())
    try:
        out = sender.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        raise Fault(f"the sender does not end within {limit} s") from None
    found = re.search(r"(\d+) messages, last (\w+), longest ([\d.]+) s, end at ([\d.]+) s", out)
    if not found:
        raise Fault(f"the sender: {out.strip()}")
    paused = PAUSES.total - sender.paused_before
    return int(found[1]), found[2], max(0.0, float(found[3]) - paused), float(found[4]), out


def expect(what, told):
    if not what:
        raise Fault(told)


def goes_on(sender, server, limit, most):
    """Expects that all went well, with no wait longer than `most`."""
    messages, status, longest, _, out = outcome(sender, limit)
    expect(status == "Ok" and messages > 20 and longest <= most * slowness(), out)
    expect(server.poll() is None, f"the receiver: {server.stdout.read() if server.poll() is not None else ''}")
    return f"goes on; the longest wait was {longest:.1f} s"


def ends(sender, limit, status, within):
    """Expects that the request in flight ends so."""
    _, last, longest, _, out = outcome(sender, limit)
    expect(last == status and longest <= within * slowness(), out)
    return f"the request ends with `{status}` after {longest:.1f} s"


def under_way():
    """Lets a sender connect and send."""
    time.sleep(min(2, slowness()))


def killed(hosts):
    server, to = hosts.serve()
    sender = hosts.send(to, 30)
    under_way()
    server.kill()
    return ends(sender, 40, "Unresponsive", 9)


def cut_off(hosts):
    _, to = hosts.serve()
    sender = hosts.send(to, 30)
    under_way()
    hosts.ip(1, "link", "set", "join0", "down")
    return ends(sender, 40, "Unresponsive", 9)


def cut_off_shortly(hosts):
    server, to = hosts.serve()
    sender = hosts.send(to, 6)
    under_way()
    hosts.ip(1, "link", "set", "join0", "down")
    time.sleep(2)
    hosts.ip(1, "link", "set", "join0", "up")
    return goes_on(sender, server, 20, 5)


def stopped(hosts, seconds, sending):
    server, to = hosts.serve()
    sender = hosts.send(to, sending)
    under_way()
    server.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    server.send_signal(signal.SIGCONT)
    return server, to, sender


def stopped_shortly(hosts):
    server, _, sender = stopped(hosts, 3, 6)
    return goes_on(sender, server, 20, 5)


def stopped_for_long(hosts):
    server, to, sender = stopped(hosts, 30, 40)
    told = ends(sender, 20, "Unresponsive", 9)
    again = goes_on(hosts.send(to, 2), server, 20, 3)
    return f"{told}; continued, it serves the next sender ({again})"


def replaced(hosts, **keys):
    """Another process takes the place of the receiver, whose port it gets."""
    server, to = hosts.serve(SOFTEFA_UDP_PORTS="47100")
    sender = hosts.send(to, 30)
    under_way()
    server.kill()
    server.wait()
    server, to = hosts.serve(SOFTEFA_UDP_PORTS="47100", **keys)
    is_behind = hosts.counters(server)["clock"]["reads"] - time.time()
    expect(abs(is_behind - int(keys.get("STEP", 0))) < 60, f"the clock of the new process is {is_behind:.0f} s ahead")
    told = ends(sender, 40, "BadDestQpn", 9)
    again = goes_on(hosts.send(to, 2), server, 20, 3)
    return f"{told}; the new process is reached ({again})"


SHIM = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *t) {
    static long start;
    struct timespec real;
    long failed = syscall(SYS_clock_gettime, clock, t);
    if (failed || clock != CLOCK_REALTIME) return failed;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &real);
    if (!start) start = real.tv_sec;
    if (real.tv_sec - start >= atol(getenv("STEP_AFTER"))) t->tv_sec += atol(getenv("STEP"));
    return 0;
}
"""


def shim(hosts, after, step):
    """Keys of a process whose clock is set by `step` seconds when `after` seconds have passed."""
    library = os.path.join(hosts.work, "clock.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", library], input=SHIM, text=True, check=True)
    return {"LD_PRELOAD": library, "STEP_AFTER": str(after), "STEP": str(step)}


def clock_stepped(hosts):
    keys = shim(hosts, 1, -3600)
    server, to = hosts.serve(**keys)
    sender = hosts.send(to, 4, **keys)
    messages, status, longest, _, out = outcome(sender, 20)
    expect(status == "Ok" and messages > 20 and longest <= slowness() and server.poll() is None, out)
    # Both have seen the step, or the row says nothing.
    seen = re.search(r"clock moved by (-?\d+) s", out)
    expect(seen and int(seen[1]) == -3600, f"the sender's clock was not set: {out}")
    moved = hosts.counters(server)["clock"]["moved"]
    expect(moved == -3600, f"the receiver's clock was set by {moved} s")
    return f"both processes see it; goes on; the longest wait was {longest:.1f} s"


def clock_back_and_replaced(hosts):
    return replaced(hosts, **shim(hosts, 0, -3600))


def address_changed(hosts):
    """The other host gets another hardware address, as when another machine takes over."""
    server, to = hosts.serve()
    sender = hosts.send(to, 6)
    under_way()
    hosts.ip(1, "link", "set", "join0", "down")
    hosts.ip(1, "link", "set", "join0", "address", "02:00:00:00:77:02")
    hosts.ip(1, "link", "set", "join0", "up")
    return goes_on(sender, server, 20, 5)


def route_changed(hosts):
    server, to = hosts.serve()
    hosts.ip(0, "link", "add", "join1", "type", "veth", "peer", "name", "join1", "netns", str(hosts.network.hosts[1]))
    for host in (0, 1):
        hosts.ip(host, "link", "set", "join1", "up")
    sender = hosts.send(to, 4)
    under_way()
    for host in (0, 1):
        hosts.ip(host, "route", "replace", f"{IPS[1 - host]}/32", "dev", "join1", "src", IPS[host])
    return goes_on(sender, server, 20, 3)


def port_taken(hosts):
    first, to = hosts.serve(SOFTEFA_UDP_PORTS="47100")
    second = hosts.start(1, hosts.peer(), "serve", SOFTEFA_UDP_PORTS="47100")
    out = second.communicate(timeout=20)[0]
    expect(second.returncode != 0 and "10.77.0.2:47100" in out, out)
    other, next_to = hosts.serve(SOFTEFA_UDP_PORTS="47100-47101")
    expect(next_to[0] != to[0], f"{to} {next_to}")
    told = goes_on(hosts.send(next_to, 2), other, 20, 5)
    return f"an error that names address and port; with a range the next port is taken ({told})"


def one_user(hosts):
    """Namespaces of one user meet without a secret; a host that shares no memory with them does not."""
    own = {"SOFTEFA_INSECURE": "n"}
    server, to = hosts.serve(**own)
    told = goes_on(hosts.send(to, 3, **own), server, 20, 3)
    # With a /dev/shm of its own it is as another host.
    alone = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
    refused = ends(hosts.start(0, *alone, hosts.peer(), "send", *to, str(LEN), "30", **own), 40, "Unreachable", 9)
    server.terminate()
    out = server.communicate(timeout=20)[0]
    lines = [line for line in out.splitlines() if IPS[0] in line and "SOFTEFA_SECRET_FILE" in line]
    expect(len(lines) == 1, f"the receiver says: {out}")
    return f"{told}; from another host {refused}, and the receiver's log names it and `SOFTEFA_SECRET_FILE`, once"


def black_hole(hosts, seconds=3, most=2):
    """The device finds what the path carries, and says so."""
    server, to = hosts.serve()
    messages, status, longest, _, out = outcome(hosts.send(to, seconds, UCX_LOG_LEVEL="warn"), 30)
    expect(status == "Ok" and messages > 20 and longest <= most * slowness() and server.poll() is None, out)
    line = re.search(r"the path from (\S+) to (\S+) does not carry packets of (\d+) bytes, so they are of (\d+): (\w+)", out)
    expect(line and line.groups() == (*IPS, "1500", "1280", "SOFTEFA_UDP_MTU"), out)
    return f"goes on in packets of {line[4]} bytes; the longest wait was {longest:.1f} s; the log names both addresses and lengths"


def later_black_hole(hosts):
    """The same, where a route changes while a message is on its way."""
    return black_hole(hosts, seconds=7, most=4)


def flooded(hosts):
    """10 000 datagrams a second of a stranger, half of them random and half with a header of ours."""
    keys = {"SOFTEFA_SECRET_FILE": hosts.secret(0)}
    server, to = hosts.serve(SOFTEFA_UDP_PORTS="47100", **keys)
    calm = outcome(hosts.send(to, 2, **keys), 20)
    before = hosts.counters(server)["udp session"]
    flood = hosts.start(0, "python3", __file__, IPS[1], "47100", "10000", "4")
    time.sleep(0.5)
    sender = hosts.send(to, 3, **keys)
    told = goes_on(sender, server, 20, 3)
    sent = int(flood.communicate(timeout=20)[0])
    expect(sent >= 20_000 / slowness(), f"only {sent} datagrams were sent")
    expect(calm[0] > 20, calm[4])
    # Each that has reached the receiver is counted by its reason. The kernel counts those that found its buffer full,
    # maybe with some of the sender's among them, and nobody those that veth's queue had no room for.
    time.sleep(0.2)
    of_kernel = hosts.dropped_by_kernel(1)
    counts = hosts.counters(server)["udp session"]
    dropped = {name: counts[name] - before.get(name, 0) for name in REFUSED if counts[name] > before.get(name, 0)}
    counted = sum(dropped.values())
    expect(0.5 * sent <= counted + of_kernel and counted <= sent + 100,
           f"of {sent} datagrams {counted} are counted, {of_kernel} dropped by the kernel: {counts}")
    expect(all(dropped.get(name) for name in ("malformed", "strangers", "unknown")), f"{dropped}")
    kinds = ", ".join(f"{count} `{name}`" for name, count in dropped.items())
    kernel = f", and {of_kernel} by the kernel, for a full buffer" if of_kernel else ""
    return f"{told}; of {sent} datagrams in 4 s the receiver counts and drops {counted} ({kinds}){kernel}"


def other_secret(hosts):
    server, to = hosts.serve(SOFTEFA_SECRET_FILE=hosts.secret(0))
    told = ends(hosts.send(to, 30, SOFTEFA_SECRET_FILE=hosts.secret(1)), 40, "Unreachable", 9)
    server.terminate()
    out = server.communicate(timeout=20)[0]
    lines = [line for line in out.splitlines() if IPS[0] in line and "SOFTEFA_SECRET_FILE" in line]
    expect(len(lines) == 1, f"the receiver says: {out}")
    return f"{told}; the receiver's log names the sender and `SOFTEFA_SECRET_FILE`, once"


def flood(ip, port, rate, seconds):
    rng, out = __import__("random").Random(1), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    start, sent = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        while sent < min(seconds, time.monotonic() - start) * rate:
            body = rng.randbytes(200)
            if sent % 2:
                body = struct.pack("<BBHI", rng.choice((0x40, 0x41, 0x43, 0x45)), 1, 0, sent % 9) + body[:120]
            try:
                out.sendto(body, (ip, port))
                sent += 1
            except OSError:
                break
        time.sleep(0.001)
    print(sent)


# Name, what stands in the table, the network, what is done.
FAULTS = [
    ("killed", "Peer killed", None, killed),
    ("cut-off", "Host cut off (link down)", None, cut_off),
    ("cut-off-2s", "Host cut off for 2 s", None, cut_off_shortly),
    ("stopped-3s", "Peer stopped for 3 s", None, stopped_shortly),
    ("stopped-30s", "Peer stopped for 30 s, then continued", None, stopped_for_long),
    ("replaced", "Address used again by a new process", None, replaced),
    ("clock", "Clock of both hosts set back by an hour", None, clock_stepped),
    ("clock-replaced", "Address used again after the clock was set back by an hour", None, clock_back_and_replaced),
    ("arp", "Hardware address of the other host changes", None, address_changed),
    ("route", "Route changes to another interface", None, route_changed),
    ("port", "Port taken", None, port_taken),
    ("other-secret", "The other host has another secret", None, other_secret),
    ("one-user", "No secret: both hosts are namespaces of one user", None, one_user),
    ("black-hole", "Packets over 1300 bytes vanish on the way", {"longest": 1300}, black_hole),
    ("black-hole-later", "Packets over 1300 bytes begin to vanish after 2 s", {"longest": 1300, "longest_after": 2}, later_black_hole),
    ("flood", "10 000 unauthenticated datagrams a second", None, flooded),
]
QUICK_FAULTS = ["replaced", "clock-replaced", "port", "route", "black-hole-later", "flood", "one-user"]


# Name, what stands in the table, the network, options of the listener and of the doctor, what one line says, and whether
# the doctor finds a fault. In options `secret-N` stands for `--secret-file` with that secret.
DOCTORS = [
    ("doctor-good", "Nothing is wrong", None, ["secret-0", "--udp-ports", PORTS], ["secret-0", "--udp-ports", PORTS],
     "ok       ports: all of 47100-47107 answer", False),
    ("doctor-secret", "Another secret", None, ["secret-0"], ["secret-1"], "MISSING  secret: each host has another", True),
    ("doctor-no-secret", "No secret here", None, ["secret-0"], [], "MISSING  secret: the other host has one", True),
    ("doctor-closed", "Nobody listens", None, None, [], "MISSING  reachable: 10.77.0.2 answers, but nobody listens", True),
    ("doctor-firewall", "UDP is dropped", {"no_udp": True}, [], [], "MISSING  reachable: 10.77.0.2 is up, but UDP port", True),
    ("doctor-cut-off", "All is dropped", {"loss": 1}, [], [], "MISSING  reachable: 10.77.0.2 does not answer at all", True),
    ("doctor-black-hole", "Packets over 1300 bytes vanish", {"longest": 1300}, [], [],
     "MISSING  MTU: the path between 10.77.0.1 and 10.77.0.2 drops packets longer than 1300 bytes", True),
    ("doctor-ports", "One port is taken", None, ["--udp-ports", PORTS, "taken"], ["--udp-ports", PORTS],
     "MISSING  ports: of 47100-47107 these do not answer: 47103", True),
]


def run_doctor(hosts, row):
    _, _, _, of_listener, of_doctor, wanted, is_fault = row
    hosts.keys = {}

    def options(words):
        for word in words:
            if word.startswith("secret-"):
                yield from ("--secret-file", hosts.secret(int(word[-1])))
            elif word != "taken":
                yield word

    doctor = [os.path.join(hosts.folder, "softefa"), "doctor", "--net", "10.77.0.0/24"]
    if of_listener is not None:
        if "taken" in of_listener:
            taker = hosts.start(1, "python3", "-c", "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
                                "s.bind(('10.77.0.2', 47103)); print(flush=True); time.sleep(60)")
            taker.stdout.readline()
        listener = hosts.start(1, *doctor, *options(of_listener), "--listen")
        if not select.select([listener.stdout], [], [], 20)[0] or "listening" not in listener.stdout.readline():
            raise Fault("the listener does not start")
    run = hosts.start(0, *doctor, *options(of_doctor), IPS[1])
    out = run.communicate(timeout=60)[0]
    line = next((line for line in out.splitlines() if line.startswith(wanted)), None)
    expect(line and (run.returncode != 0) == is_fault, f"exit code {run.returncode}, not {wanted!r}:\n{out}")
    return f"`{line}`"


def run(row, folder, seed, make):
    """Runs a row. Returns what was seen, or None after a failure, and the seconds."""
    name, network, start = row[0], None, time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        try:
            network = make(row[2], seed)
            hosts = Hosts(network, folder, work)
            try:
                told = run_doctor(hosts, row) if name.startswith("doctor-") else row[3](hosts)
            finally:
                hosts.end()
        except Exception as e:
            # One row that fails in whichever way does not keep the others from running.
            print(f"{name:18} FAILED: {e if isinstance(e, Fault) else repr(e)}", flush=True)
            told = None
        finally:
            if network:
                network.close()
    seconds = time.monotonic() - start
    if told:
        print(f"{name:18} {told}, {seconds:.1f} s", flush=True)
    return {"told": told, "seconds": seconds}


def table(rows, title):
    return [title, "", "| What happens | Outcome |", "|---|---|"] + [f"| {row[1]} | {got['told'] or 'failed'} |" for row, got in rows]


if __name__ == "__main__":
    import sys
    flood(sys.argv[1], *map(int, sys.argv[2:5]))
