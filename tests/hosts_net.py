"""Networks of tests/hosts: hosts that are network namespaces, and relays that lose, repeat, swap, corrupt and delay."""

import ctypes, errno, fcntl, heapq, os, random, select, shutil, signal, socket, struct, subprocess, sys, threading, time

NEWNS, NEWUTS, NEWUSER, NEWNET = 0x20000, 0x04000000, 0x10000000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)
IPS = ("10.77.0.1", "10.77.0.2", "10.77.0.3")
# Addresses as hosts give themselves: they differ before their last 32 bits, too.
HOSTS_V6 = ["fd78::1:0:a:1", "fd78::2:0:a:2"]
PORT = 47000
# Silence after which a peer is dead, in rows where none dies: on a machine with other work, processes and the relay wait long.
PATIENCE = {"SOFTEFA_UDP_TIMEOUT": "60s"}
FLOWS = 4
IP_UDP = 28


def call(name, *args):
    if getattr(libc, name)(*args) != 0:
        e = ctypes.get_errno()
        raise OSError(e, f"{name}: {os.strerror(e)}")


EFFECTS = (("loss", "lost"), ("reorder", "overtaken"), ("double", "repeated"), ("corrupt", "corrupted"))


def effects(net):
    """Words for what a network does to datagrams, as in the tables."""
    net = net or {}
    words = [f"{100 * net[key]:.0f} % {word}" for key, word in EFFECTS if net.get(key)]
    words += [f"{1000 * net['delay']:.0f} ms late"] if net.get("delay") else []
    words += [f"{net['rate'] / 1e9:g} Gbit/s"] if net.get("rate") else []
    return ", ".join(words or ["nothing lost"])


def told_if_other(about, really):
    """Words before what a row has brought, if it is not what the row is named for."""
    return f"({really}) " if really != about else ""


def by_sender(net):
    """Words for a row of devices at the loopback interface: no relay stands between them, and the sender loses."""
    sealed = "; sealed" if (net or {}).get("secret") else ""
    loss = f"the sender loses {100 * net['loss']:.0f} %" if net and net.get("loss") else "nothing lost"
    return f"loopback, no relay; {loss}{sealed}"


class Pauses(threading.Thread):
    """Measures for how long this machine lets a process wait that wants to run: more than the waits of a test by itself."""

    def __init__(self):
        super().__init__(daemon=True)
        self.total = 0.0

    def run(self):
        while True:
            start = time.monotonic()
            time.sleep(0.05)
            self.total += max(0.0, time.monotonic() - start - 0.1)


PAUSES = Pauses()


def slowness():
    """How many times longer than alone a process needs now, since others want the processors. Limits are multiplied by it."""
    wall, cpu = time.monotonic(), time.process_time()
    while time.process_time() - cpu < 0.1:
        pass
    return max(1.0, (time.monotonic() - wall) / (time.process_time() - cpu))


def die_with_parent():
    """The kernel ends this process when its parent ends, however that happens."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Relay:
    """What happens to datagrams in between. `out(n, datagram)` delivers one to side n."""

    def __init__(self, net, seed, out, sides=2, header=0):
        """`header`: bytes before the IP header."""
        self.net, self.out, self.header = net, out, header
        self.rng = random.Random(seed)
        self.late, self.count = [], 0
        self.free_at = [0.0] * sides
        self.seen = self.lost = 0
        self.first = None

    def corrupt(self, datagram, body):
        """A wrong bit behind the headers. The checksum of UDP is taken away, so that the receiver has to see it."""
        wrong = bytearray(datagram)
        if len(wrong) <= body:
            return datagram
        bit = self.rng.randrange(8 * (len(wrong) - body))
        wrong[body + bit // 8] ^= 1 << bit % 8
        if body:
            wrong[self.header + 26:self.header + 28] = b"\0\0"
        return bytes(wrong)

    def take(self, side, datagram, now, body):
        net, rng = self.net, self.rng
        self.seen += 1
        is_udp = body and len(datagram) > self.header + 9 and datagram[self.header + 9] == socket.IPPROTO_UDP
        # The kernel has sent before, when the interface came up.
        if self.first is None and (is_udp or not body):
            self.first = now
        # A route that changes later drops what is longer from then on.
        is_long = len(datagram) > net.get("longest", 1 << 20) and self.first is not None and now - self.first >= net.get("longest_after", 0)
        if rng.random() < net.get("loss", 0) or is_long or is_udp and net.get("no_udp"):
            self.lost += 1
            return
        if rng.random() < net.get("corrupt", 0):
            datagram = self.corrupt(datagram, body)
        when = now + net.get("delay", 0)
        if "rate" in net:
            # As tbf does: a queue of 50 ms; what does not fit is lost.
            start = max(self.free_at[side], now)
            if start - now > 0.05:
                self.lost += 1
                return
            self.free_at[side] = start + 8 * len(datagram) / net["rate"]
            when += self.free_at[side] - now
        if rng.random() < net.get("reorder", 0):
            when += rng.uniform(0.0005, 0.003)
        for _ in range(2 if rng.random() < net.get("double", 0) else 1):
            if when <= now:
                self.out(side, datagram)
            else:
                self.count += 1
                heapq.heappush(self.late, (when, self.count, side, datagram))

    def on_time(self, now):
        while self.late and self.late[0][0] <= now:
            _, _, side, datagram = heapq.heappop(self.late)
            self.out(side, datagram)

    def wait(self, now):
        return max(0.0, self.late[0][0] - now) if self.late else 0.2


def run_relay(net, seed, files, read, write, body):
    """Passes datagrams on until the process is ended. `files[n]` are those of side n."""
    poll, side_of = select.epoll(), {}
    for side in (0, 1):
        for f in files[side]:
            side_of[f.fileno()] = (side, f)
            poll.register(f, select.EPOLLIN)
    relay = Relay(net, seed, write)
    while True:
        events = poll.poll(relay.wait(time.monotonic()))
        for fd, _ in events:
            side, f = side_of[fd]
            for _ in range(64):
                try:
                    datagram = read(f)
                except (BlockingIOError, ConnectionRefusedError):
                    break
                relay.take(1 - side, datagram, time.monotonic(), body)
        relay.on_time(time.monotonic())


class Child:
    """A process forked from this one, which ends with it."""

    def __init__(self, work):
        ready, self.tell = os.pipe()
        report, done = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(report)
                die_with_parent()
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                work(lambda: os.write(done, b"1"))
                code = 0
            except BaseException as e:
                try:
                    os.write(done, f"0{e}".encode())
                except BrokenPipeError:
                    # It was ready long ago, and nobody waits for its answer.
                    print(f"a process of the network has ended: {e!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        os.close(done)
        os.close(ready)
        answer = os.read(report, 4096)
        os.close(report)
        if answer[:1] != b"1":
            self.end()
            raise OSError((answer[1:] or b"a process has ended").decode())

    def end(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def ip(*args):
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(args)}: {done.stderr.strip()}")


def enter(pid):
    """Enters the network of a process, and its host name."""
    for name in ("net", "uts"):
        fd = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        call("setns", fd, 0)
        os.close(fd)


def tbf(interface, rate):
    command = ["tc", "qdisc", "add", "dev", interface, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def has_tbf(net):
    """Whether a network asks for tbf, and the kernel and a program tc have it: tried on a loopback interface."""
    if "tbf" not in (net or {}) or not shutil.which("tc"):
        return False

    def attempt(ready):
        call("unshare", NEWNET)
        tbf("lo", net["tbf"])
        ready()
    try:
        Child(attempt).end()
    except OSError:
        return False
    return True


def open_tun(name, flags=0x1001):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", name.encode(), flags))  # TUNSETIFF; IFF_TUN | IFF_NO_PI
    return os.fdopen(fd, "r+b", buffering=0)


class Namespaces:
    """Two hosts, joined by veth or by a relay between two TUN devices."""

    def __init__(self, net, seed):
        # Where the kernel has tbf, it keeps the rate on the veth; else the relay does.
        self.children, self.net, self.has_tbf = [], net, has_tbf(net)
        self.is_veth = net is None or self.has_tbf
        try:
            hosts = [self.host(f"host-{name}") for name in "ab"]
            if self.is_veth:
                ip("link", "add", "join0", "netns", str(hosts[0]), "type", "veth", "peer", "name", "join0", "netns",
                   str(hosts[1]))
            else:
                self.children.append(Child(lambda ready: self.relay(hosts, seed, ready)))
            for n in (0, 1):
                self.inside(hosts[n], lambda n=n: self.configure(n))
            self.hosts = hosts
        except BaseException:
            self.close()
            raise

    def host(self, name):
        def work(ready):
            call("unshare", NEWNET | NEWUTS)
            socket.sethostname(name)
            ready()
            while True:
                signal.pause()
        self.children.append(Child(work))
        return self.children[-1].pid

    def inside(self, pid, work):
        def entered(ready):
            enter(pid)
            work()
            ready()
        child = Child(entered)
        os.waitpid(child.pid, 0)

    def configure(self, n):
        ip("link", "set", "lo", "up")
        peer = [] if self.is_veth else ["peer", IPS[1 - n]]
        ip("addr", "add", IPS[n] + ("" if peer else "/24"), *peer, "dev", "join0")
        if self.is_veth:
            # Not on a host without IPv6.
            for address in (f"fd77::{n + 1}/64", f"{HOSTS_V6[n]}/64"):
                subprocess.run(["ip", "-6", "addr", "add", address, "dev", "join0", "nodad"], capture_output=True)
        ip("link", "set", "join0", "mtu", "1500", "up")
        if self.has_tbf:
            tbf("join0", self.net["tbf"])

    def relay(self, hosts, seed, ready):
        tuns = []
        for pid in hosts:
            enter(pid)
            tuns.append(open_tun("join0"))
        fds = [tun.fileno() for tun in tuns]

        def write(side, datagram):
            try:
                os.write(fds[side], datagram)
            except OSError as e:
                if e.errno not in (errno.EINVAL, errno.EIO, errno.EAGAIN, errno.ENOBUFS):
                    raise

        ready()
        run_relay(self.net, seed, [[tuns[0]], [tuns[1]]], lambda f: os.read(f.fileno(), 65536), write, IP_UDP)

    def really(self, about):
        """What stands in the table: what the row is to do, or what it does instead where the kernel cannot."""
        is_replaced = "tbf" in (self.net or {}) and not self.has_tbf
        return f"relay that keeps {effects(self.net)}: this kernel has no tbf" if is_replaced else about

    def start(self, n, command, **more):
        return subprocess.Popen(command, preexec_fn=lambda: (enter(self.hosts[n]), die_with_parent()), **more)

    def wait_for_listener(self, n, port, until):
        """Waits until a process of a host listens at a TCP port."""
        while time.monotonic() < until:
            for table in ("tcp", "tcp6"):
                with open(f"/proc/{self.hosts[n]}/net/{table}") as f:
                    sockets = [line.split() for line in f][1:]
                if any(s[1].endswith(f":{port:04X}") and s[3] == "0A" for s in sockets):
                    return
            time.sleep(0.02)
        raise OSError(f"nobody listens at port {port}")

    def addresses(self):
        return [[f"{IPS[0]}:{PORT}", f"{IPS[1]}:{PORT}"], [f"{IPS[1]}:{PORT}", f"{IPS[0]}:{PORT}"]]

    def close(self):
        for child in reversed(self.children):
            child.end()


class Loopback:
    """Two processes of the loopback interface, with a relay between their sockets."""

    def __init__(self, net, seed):
        self.net = net or {}
        held = []
        self.ports = [self.free_ports(held) for _ in range(4)]
        # A process that takes one from now on makes the row fail.
        for s in held:
            s.close()
        self.child = Child(lambda ready: self.relay(seed, ready))

    def free_ports(self, held):
        """First of some ports in a row that are free; `held` gets sockets that keep them."""
        rng = random.Random()
        while True:
            first, own = rng.randrange(20000, 32000), []
            try:
                for n in range(FLOWS):
                    own.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                    own[-1].bind(("127.0.0.1", first + n))
                held.extend(own)
                return first
            except OSError:
                for s in own:
                    s.close()

    def relay(self, seed, ready):
        files, to = [[], []], {}
        for side in (0, 1):
            for n in range(FLOWS):
                s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                s.bind(("127.0.0.1", self.ports[2 + side] + n))
                s.setblocking(False)
                files[side].append(s)
        where = {s: (side, n) for side in (0, 1) for n, s in enumerate(files[side])}

        def read(s):
            return bytes([where[s][1]]) + s.recv(65536)

        def write(side, datagram):
            n = datagram[0]
            if n < FLOWS:
                try:
                    files[side][n].sendto(datagram[1:], ("127.0.0.1", self.ports[side] + n))
                except (ConnectionRefusedError, BlockingIOError):
                    pass

        ready()
        run_relay(self.net, seed, files, read, write, 0)

    def really(self, _):
        """What stands in the table."""
        sealed = "; sealed by a secret" if self.net.get("secret") else ""
        return f"loopback, a relay between the sockets: {effects(self.net)}{sealed}"

    def start(self, n, command, **more):
        return subprocess.Popen(command, preexec_fn=die_with_parent, **more)

    def addresses(self):
        own, relay = self.ports[:2], self.ports[2:]
        return [[f"127.0.0.1:{own[n]}", f"127.0.0.1:{relay[n]}"] for n in (0, 1)]

    def close(self):
        self.child.end()


def enter_own_namespace():
    """Moves this process to a namespace of its own, in which it may do all that a row needs."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", NEWNET if uid == 0 else NEWUSER | NEWNET)
    if uid != 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
    try:
        own_shared_memory()
    except OSError:
        pass  # Then rows use that of this machine.


def own_shared_memory():
    """Gives this process and its children a /dev/shm of their own: what programs leave there goes with them."""
    call("unshare", NEWNS)
    call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
    call("mount", b"none", b"/dev/shm", b"tmpfs", 0, None)


def why_no_namespaces():
    """Tries all that a row needs, in a process of its own. Returns what failed."""
    def attempt(ready):
        enter_own_namespace()
        os.close(os.open("/dev/net/tun", os.O_RDWR))
        Namespaces({}, 0).close()
        ready()
    if not shutil.which("ip"):
        return "there is no program ip (iproute2)"
    try:
        Child(attempt).end()
    except OSError as e:
        return str(e)
    return None


def wait_for(run, limit):
    """Exit code, output and errors of a process; one that takes longer is killed, and has no code."""
    try:
        out, err = run.communicate(timeout=limit)
        return run.returncode, out, err
    except subprocess.TimeoutExpired:
        run.kill()
        out, err = run.communicate()
        return f"none within {limit:.0f} s", out, err


def traffic_rows(rows):
    """Lines of a table for docs/usnic.md: rows with the counters of the traffic program."""
    lines = ["| Network | Messages | Puts, gets, atomics | MB of messages | Lost, doubled or corrupt | Seconds |",
             "|---|---|---|---|---|---|"]
    return lines + [f"| {got.get('about', row[1])} | {got['messages']} | {got['rma']} | {got['mb']:.0f} | {got['lost']} | {got['seconds']:.1f} |"
                    for row, got in rows]
