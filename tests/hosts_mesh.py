"""Three hosts of tests/hosts, joined by a bridge: on each a process that exchanges messages, puts, gets and atomics with
each other one at the same time (`traffic --with`)."""

import errno, json, math, os, select, subprocess, time

from hosts_device import ALL, NET, RELAYS, Secret, relayed
from hosts_net import (IP_UDP, IPS, PATIENCE, Child, Namespaces, Relay, by_sender, die_with_parent, enter, ip, open_tun, slowness,
                       told_if_other, traffic_rows, wait_for)

# Name, what stands in the table, the network of each host's line to the bridge, and the share of the operations between two of
# them each way: a third of that between two hosts, as there are three pairs. Each fault of the rows of two hosts, and several.
SEVERAL = [("-several", "1 % lost, 10 % overtaken", {"loss": 0.01, "reorder": 0.10}, 0.5), ALL]
MESH = [(name, about, net, share / 3) for name, about, net, share in [
    ("three", "veth, nothing in between", None, 0.5),
    *relayed("three", [relay for relay in RELAYS if len(relay[2]) == 1] + SEVERAL)]]
QUICK = ["three-several"]
TAP = 0x1002  # IFF_TAP | IFF_NO_PI
ETHERNET = 14
IPV4 = b"\x08\x00"


class Bridged(Namespaces):
    """Three hosts, and a bridge in a namespace of its own. With a network, a relay stands between each host and its port;
    it treats what the host sends. What is not IPv4 passes."""

    def __init__(self, net, seed):
        self.children, self.net = [], net
        try:
            self.hosts = [self.host(f"host-{name}") for name in "abc"]
            switch = self.host("switch")
            self.inside(switch, lambda: (ip("link", "add", "br0", "type", "bridge"), ip("link", "set", "br0", "up")))
            if net is None:
                for n, pid in enumerate(self.hosts):
                    ip("link", "add", "join0", "netns", str(pid), "type", "veth", "peer", "name", f"port{n}", "netns", str(switch))
            else:
                self.children.append(Child(lambda ready: self.relay(switch, seed, ready)))
            for n, pid in enumerate(self.hosts):
                self.inside(switch, lambda n=n: ip("link", "set", f"port{n}", "master", "br0", "up"))
                self.inside(pid, lambda n=n: self.configure(n))
        except BaseException:
            self.close()
            raise

    def configure(self, n):
        ip("link", "set", "lo", "up")
        ip("addr", "add", f"{IPS[n]}/24", "dev", "join0")
        ip("link", "set", "join0", "mtu", "1500", "up")

    def relay(self, switch, seed, ready):
        of_host, of_port = [], []
        for n, pid in enumerate(self.hosts):
            enter(pid)
            of_host.append(open_tun("join0", TAP))
            enter(switch)
            of_port.append(open_tun(f"port{n}", TAP))
        ready()
        relay = Relay(self.net, seed, lambda n, frame: write(of_port[n], frame), sides=len(of_host), header=ETHERNET)
        poll, taps = select.epoll(), {}
        for n, (host, port) in enumerate(zip(of_host, of_port)):
            taps[host.fileno()], taps[port.fileno()] = (n, host, None), (n, port, host)
            poll.register(host, select.EPOLLIN)
            poll.register(port, select.EPOLLIN)
        while True:
            for fd, _ in poll.poll(relay.wait(time.monotonic())):
                n, tap, host = taps[fd]
                for frame in frames(tap):
                    if host:
                        write(host, frame)
                    elif frame[12:14] != IPV4:
                        write(of_port[n], frame)
                    else:
                        relay.take(n, frame, time.monotonic(), ETHERNET + IP_UDP)
            relay.on_time(time.monotonic())


def frames(tap, most=64):
    for _ in range(most):
        try:
            yield os.read(tap.fileno(), 65536)
        except BlockingIOError:
            return


def write(tap, frame):
    try:
        os.write(tap.fileno(), frame)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.EIO, errno.EAGAIN, errno.ENOBUFS):
            raise


def run(row, folder, messages, seed, limit, is_loopback, is_whole):
    """Runs three processes. Returns the counters of the row; a failure counts every message as lost."""
    name, about, net, share = row
    messages, limit = max(100, math.ceil(messages * (1 / 6 if is_whole else share))), limit * slowness()
    command = [os.path.join(folder, "traffic"), "--tls", "efa", "--unpinned", "--json", "-n", str(messages), "--rma",
               str(max(1, messages // 5)), "--seed", str(seed)]
    # Three processes and a relay have few processors.
    command += ["--sleep"] if net else []
    network, secret, run = None if is_loopback else Bridged(net, seed), Secret(net), None
    really = by_sender(net) if is_loopback else about
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        keys = {**os.environ, **PATIENCE, **secret.keys()}
        if network:
            for pid in network.hosts[1:]:
                command += ["--with", f"nsenter -t {pid} -n -u --"]
            run = network.start(0, command, env={**keys, "SOFTEFA_NET": NET}, **options)
        else:
            # No relay stands between devices of one host: the sender loses.
            keys |= {"SOFTEFA_UDP": "all", "SOFTEFA_UDP_LOSS": str((net or {}).get("loss", 0))}
            run = subprocess.Popen([*command, "--with", "", "--with", ""], preexec_fn=die_with_parent, env=keys, **options)
        code, out, err = wait_for(run, limit)
    finally:
        if run:
            run.kill()
            run.wait()
        if network:
            network.close()
        secret.close()
    total = {"messages": 0, "rma": 0, "mb": 0.0, "seconds": float(limit), "lost": 6 * messages}
    if code == 0:
        got = json.loads(out)
        rma = sum(sum(each["rma"].values()) for each in got["processes"])
        total = {"messages": got["messages"], "rma": rma, "mb": got["bytes"] / 1e6, "seconds": got["seconds"],
                 "lost": 6 * messages - got["messages"]}
    total["about"] = really
    if code:
        print(f"{name}: exit code {code}\n{err.strip()}", flush=True)
    print(f"{name:14} {told_if_other(about, really)}{total['messages']} messages among three processes, {total['rma']} puts, gets and atomics checked; "
          f"{total['mb']:.0f} MB of messages, {total['seconds']:.1f} s", flush=True)
    return total


def table(rows, messages, is_whole):
    share = "" if is_whole else " (a tenth with 20 % lost and in the last row)"
    lines = [f"Three hosts at a bridge, a process on each, {messages} messages among all of them{share}, "
             "and puts, gets and atomics as above (`traffic --tls efa --rma --with`):", ""]
    return lines + traffic_rows(rows)
